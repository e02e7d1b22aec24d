"""Faults that others met while converting and running: limits, silence, odd weights, missing modules, wrong claims."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bundles import FP16, Client, command, package_files, some_ids, weight_file
from programs import functions, operations, shape_only_checkpoint
from tiny import MODEL_TYPES, load_weights, make_tiny, write_weights

from anemone.checkpoint import open_checkpoint
from anemone.compress.spec import LutSpec
from anemone.conversion.convert import convert
from anemone.conversion.plan import make_plan
from anemone.errors import RecipeError
from anemone.recipe import Recipe
from anemone.runtime.generate import load

ROOT = Path(__file__).resolve().parents[1]
SIZES = ("--context", "64", "--batch", "8")
LLAMA_8B = {"hidden": 4096, "intermediate": 14336, "layers": 32, "heads": 32, "kv_heads": 8}
PYTHIA_28B = {"hidden": 2560, "intermediate": 8192, "layers": 32, "heads": 32, "kv_heads": 32, "head_dim": 80}
MEBI = 1 << 20


@pytest.mark.parametrize(("platform", "limit"), [("ios", 1024 * MEBI), ("macos", 2048 * MEBI)])
def test_files_above_a_platform_s_limit_are_refused_before_anything_slow(tmp_path, platform, limit):
    source = shape_only_checkpoint(tmp_path / "source", "llama", vocab=32000, **LLAMA_8B)
    luts = ("--lut2", "none", "--lut3", "none", "--platform", platform)
    done = command("convert", source, "-o", tmp_path / "out", "--chunk", "4", *luts)
    assert done.returncode == 2
    assert not (tmp_path / "out").exists()
    (fits,) = map(int, re.findall(r"--chunk (\d+)", done.stderr))
    assert re.search(r"\d+ MiB", done.stderr)
    for chunks, allowed in ((fits, True), (fits - 1, False)):
        plan = command("plan", source, "--chunk", chunks, *luts, "--json")
        assert (plan.returncode == 0) is allowed
        if allowed:
            assert max(part["bytes"] for part in json.loads(plan.stdout)["parts"]) <= limit


def test_one_program_of_several_gigabytes_is_warned_about_and_never_chosen(tmp_path):
    source = shape_only_checkpoint(tmp_path, "llama", vocab=50304, **PYTHIA_28B)
    automatic = make_plan(open_checkpoint(str(source)), Recipe(lut_ffn=None))
    assert len(automatic.chunks) > 1
    assert max(part.weight_bytes for part in automatic.chunks) <= 950 * MEBI
    assert not [note for note in automatic.notes if "in one program" in note and "_chunk_" in note]
    single = make_plan(open_checkpoint(str(source)), Recipe(lut_ffn=None, chunks=1))
    assert [note for note in single.notes if "_chunk_01of01" in note and "MiB" in note]


def test_every_stage_says_when_it_begins_and_ends(workshop, tmp_path):
    done = command("convert", workshop.checkpoint("llama", layers=4), "-o", tmp_path / "out", *SIZES, "--chunk", "2")
    for stage in ("embeddings", "lm_head_lut6", "chunk_01of02", "chunk_02of02", "verify"):
        lines = [line for line in done.stderr.splitlines() if stage in line]
        assert any(line.endswith("...") for line in lines), stage
        assert any(re.search(r"in [\d.]+ s$", line) for line in lines), stage


def test_progress_speaks_at_least_once_a_minute():
    from anemone.cli import progress

    assert progress.LINE_SECONDS <= 60


def test_workers_and_a_space_in_the_path_change_nothing(workshop, tmp_path):
    source = workshop.checkpoint("qwen3", layers=4)
    recipe = Recipe(context=64, batch=8, chunks=2)
    for workers in (1, 4):
        convert(source, tmp_path / f"with a space {workers}", recipe, workers=workers, verification=False)
    assert package_files(tmp_path / "with a space 1") == package_files(tmp_path / "with a space 4")


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_defaults_alone_give_a_verified_bundle(workshop, tmp_path, model_type):
    source = workshop.checkpoint(model_type, layers=1)  # deeper random models have too many near ties for fp16
    done = command("convert", source, "-o", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["verify"]["passed"] is True
    assert json.loads((tmp_path / "out/manifest.json").read_text())["validated"] is True


def test_a_bundle_that_was_not_verified_says_so(workshop):
    folder = workshop.bundle(workshop.checkpoint("llama"))
    assert json.loads((folder / "manifest.json").read_text())["validated"] is False
    with pytest.raises(RecipeError, match="32768"):
        Recipe(context=32768)


def test_summary_tells_what_a_running_model_holds(workshop, tmp_path):
    source = workshop.checkpoint("llama")
    plan = json.loads(command("plan", source, *SIZES, "--json").stdout)
    assert plan["resident_bytes"] >= plan["total_bytes"] + plan["kv_bytes"]
    done = command("convert", source, "-o", tmp_path / "out", *SIZES, "--no-verify")
    assert re.search(r"when running\s+[\d.]+ [kMG]B", done.stdout)


def odd_rows(weights: dict[str, np.ndarray]) -> np.ndarray:
    matrix = weights["model.layers.0.mlp.down_proj.weight"]
    matrix[0] = 0
    matrix[9] = 0.25
    matrix[17, 3] = 1e3
    matrix[26] = np.linspace(-5e-7, 5e-7, matrix.shape[1])
    matrix[32:40] = np.repeat([[0.5, -0.5]], 8, axis=0).repeat(matrix.shape[1] // 2, axis=1)  # two values only
    return matrix


@pytest.mark.parametrize(("bits", "group"), [(4, 8), (2, 8), (6, 16), (8, 0), (1, 1)])
def test_odd_rows_survive_palettising(tmp_path, bits, group):
    from mil_truth import load as load_mil

    source = make_tiny(tmp_path / "source", "llama")
    weights = load_weights(source)
    matrix = odd_rows(weights).copy()
    write_weights(source, weights)
    recipe = Recipe(**{**FP16, "lut_ffn": LutSpec(bits, group)}, context=64, batch=8)
    convert(source, tmp_path / "out", recipe, verification=False)
    (package,) = (tmp_path / "out").glob("*_chunk_*")
    ops = {op.outputs[0].name: op for op in load_mil(package).functions["infer"].operations if op.outputs}
    stored = ops["model_layers_0_mlp_down_proj_weight_palettized"].materialized_val_inference()[:, :, 0, 0]
    assert np.isfinite(stored).all()
    assert not stored[0].any()
    assert np.array_equal(stored[32:40], matrix[32:40].astype(np.float16)) or group == 0
    assert np.isfinite(Client(tmp_path / "out").decode(some_ids(4))).all()


@pytest.mark.parametrize("rows", [120, 100, 97])
def test_rows_that_no_group_divides_are_palettised_whole(tmp_path, rows):
    from mil_truth import load as load_mil

    source = make_tiny(tmp_path / "source", "llama", intermediate=rows)
    recipe = Recipe(**{**FP16, "lut_ffn": LutSpec(4, 16)}, context=64, batch=8)
    result = convert(source, tmp_path / "out", recipe, verification=False)
    (package,) = (tmp_path / "out").glob("*_chunk_*")
    ops = {op.outputs[0].name: op for op in load_mil(package).functions["infer"].operations if op.outputs}
    weights = load_weights(source)
    for name in ("gate_proj", "up_proj"):
        stored = ops[f"model_layers_0_mlp_{name}_weight_palettized"].materialized_val_inference()[:, :, 0, 0]
        matrix = weights[f"model.layers.0.mlp.{name}.weight"]
        assert stored.shape == matrix.shape
        assert np.linalg.norm(stored - matrix) < 0.12 * np.linalg.norm(matrix)  # 4 bits of a normal: 9.7 %
    assert "lut4" in result.as_dict()["parts"][-1]["weights"]


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6, 8])
def test_the_bytes_reached_are_the_bits_asked_for(workshop, bits):
    source = workshop.checkpoint("llama", hidden=1024, intermediate=1024, heads=8, kv_heads=8, layers=1, vocab=1024)
    spec = LutSpec(bits, 64)
    folder = workshop.bundle(source, lut_embeddings=spec, lut_ffn=spec, lut_lmhead=spec, head_split=2)
    weights = load_weights(source)
    table = weights["model.embed_tokens.weight"].size
    layer = sum(tensor.size for name, tensor in weights.items() if tensor.ndim == 2 and "layers" in name)
    for part, count in (("embeddings", table), ("lm_head", table), ("chunk", layer)):
        (package,) = folder.glob(f"*{part}*.mlpackage")
        reached = 8 * weight_file(package).stat().st_size / count
        assert abs(reached - bits) <= 0.05 * bits + 8 * 2**17 / count, part  # tables of one bit weigh more
        kinds = [op.type for function in functions(package).values() for op in operations(function)]
        assert "constexpr_lut_to_dense" in kinds


def test_an_overflow_in_the_middle_of_a_layer_fails_and_names_it(tmp_path):
    source = make_tiny(tmp_path / "source", "llama", layers=4)
    weights = load_weights(source)
    for name in ("gate_proj", "up_proj"):
        weights[f"model.layers.2.mlp.{name}.weight"] *= 400
    weights["model.layers.2.mlp.down_proj.weight"] *= 1e-5  # no layer's output is large
    write_weights(source, weights)
    done = command("convert", source, "-o", tmp_path / "out", *SIZES, "--chunk", "2", "--lut2", "none")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    message = done.stderr.splitlines()[-1]
    assert "chunk_02of02" in message
    assert "layer 2" in message
    assert json.loads((tmp_path / "out/manifest.json").read_text())["validated"] is False


BLOCK = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names!r} or name in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
from anemone.cli.main import main
sys.argv = ["anemone", *{arguments!r}]
main()
"""


@pytest.mark.parametrize(
    "names",
    [
        ("coremltools.libmilstoragepython", "coremltools.libcoremlpython", "coremltools.libmodelpackage"),
        ("torch", "transformers", "sklearn", "scipy", "kmeans1d"),
    ],
    ids=["without Apple's binaries", "without other people's frameworks"],
)
def test_conversion_needs_nothing_that_may_be_missing(workshop, tmp_path, names):
    source = workshop.checkpoint("llama")
    arguments = ["convert", str(source), "-o", str(tmp_path / "out"), *SIZES, "--lut1", "4", "--json"]
    code = BLOCK.format(names=names, arguments=arguments)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verify"]["passed"] is True


def test_running_for_long_does_not_grow(workshop):
    engine = load(workshop.bundle(workshop.checkpoint("llama"))).engine
    state = engine.new_state()

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    if not Path("/proc/self/statm").exists():
        pytest.skip("needs Linux's accounting of memory")

    def run(steps: int, step: Callable[..., object] = engine.step) -> None:
        for i in range(steps):
            step(state, 5 + i % 200, i % 64)

    run(300)
    before = resident()
    run(1700)
    assert resident() - before < 2e6


def test_a_second_turn_computes_only_what_is_new(workshop):
    folder = workshop.bundle(workshop.checkpoint("qwen2"))
    model = load(folder)
    prompt = some_ids(20)
    first = list(model.session.generate(prompt, max_tokens=4))
    longer = [*prompt, *first[:3], *some_ids(9, seed=4)]
    run = model.session.generate(longer, max_tokens=4)
    tokens = list(run)
    assert run.prefill_tokens <= len(longer) - len(prompt)
    fresh = load(folder).session.generate(longer, max_tokens=4)
    assert tokens == list(fresh)
    assert fresh.prefill_tokens == len(longer)


def test_the_readme_claims_no_speed_or_placement_that_was_not_measured():
    text = (ROOT / "README.md").read_text()
    claims = re.findall(
        r"[^.\n]*(?:tok/s|tokens? per second|\bwatts?\b|runs on the (?:ANE|Neural Engine))[^.\n]*", text
    )
    assert not [claim for claim in claims if not re.search(r"\b20\d\d-\d\d", claim)]
    assert "not" in (ROOT / "docs/not-yet-on-a-mac.md").read_text()
