"""The commands' contracts: JSON keys, exit codes, one line for a mistake, and nothing half-written after one."""

import json
import re
import shutil
from pathlib import Path

import pytest
from bundles import command, weight_file
from programs import shape_only_checkpoint
from tiny import MODEL_TYPES

SIZES = ("--context", "64", "--batch", "8")
PLAIN = ("--lut-embeddings", "none", "--lut-ffn", "none", "--lut-lmhead", "none")


@pytest.fixture(scope="module")
def converted(workshop, tmp_path_factory):
    """A checkpoint, its verified two-chunk bundle, and what the conversion said."""
    source = workshop.checkpoint("llama", layers=4)
    out = tmp_path_factory.mktemp("converted") / "out"
    done = command("convert", source, "-o", out, *SIZES, "--chunk", "2", "--json")
    assert done.returncode == 0, done.stderr
    return source, out, one_object(done.stdout)


def one_object(text: str) -> dict:
    value = json.loads(text)
    assert isinstance(value, dict)
    assert text.count("\n") == 1
    return value


def test_convert_reports_what_it_wrote(converted):
    _, out, result = converted
    assert {"bundle", "parts", "seconds", "peak_rss_mb", "verify"} <= set(result)
    assert result["bundle"] == str(out)
    for part in result["parts"]:
        size = sum(path.stat().st_size for path in (out / part["name"]).rglob("*") if path.is_file())
        assert part["bytes"] == size
    assert {part["name"] for part in result["parts"]} == {path.name for path in out.glob("*.mlpackage")}
    assert result["seconds"] > 0
    assert result["peak_rss_mb"] > 10
    assert result["verify"]["passed"] is True


def test_verify_reports_the_measurements_and_their_gates(converted):
    source, out, result = converted
    done = command("verify", out, "--source", source, "--tokens", "100", "--json")
    assert done.returncode == 0, done.stderr
    report = one_object(done.stdout)
    wanted = {"tokens", "top1_agreement", "mean_kl", "max_kl", "min_cosine", "nan_count", "passed", "gates"}
    assert wanted <= set(report)
    assert wanted <= set(result["verify"])
    assert report["tokens"] == 100
    assert report["top1_agreement"] >= 0.99
    assert 0 <= report["mean_kl"] <= 1e-3
    assert report["mean_kl"] <= report["max_kl"]
    assert report["nan_count"] == 0
    assert {gate["name"] for gate in report["gates"]} >= {"top1_agreement", "mean_kl", "nan_count"}


def test_generate_reports_text_and_speed(converted):
    _, out, _ = converted
    line = ("generate", out, "--prompt", "the hen and the ring", "--max-tokens", "5")
    done = command(*line, "--json")
    assert done.returncode == 0, done.stderr
    result = one_object(done.stdout)
    assert {"text", "token_ids", "stop_reason", "prefill_tokens_per_s", "decode_tokens_per_s"} <= set(result)
    assert len(result["token_ids"]) <= 5
    assert result["stop_reason"] in ("stop", "length", "context")
    sampled = ("--temperature", "0.9", "--top-k", "40", "--top-p", "0.95")
    first, second, third = (
        one_object(command(*line, *sampled, "--seed", str(seed), "--json").stdout)["token_ids"] for seed in (1, 1, 2)
    )
    assert first == second != third
    assert command(*line).stdout.startswith(result["text"])


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("luts", [PLAIN, ()], ids=["fp16", "default"])
def test_plan_tells_the_bytes_that_convert_writes(workshop, tmp_path, model_type, luts):
    source = workshop.checkpoint(model_type, layers=3, vocab=323)
    options = (*SIZES, "--chunk", "2", *luts)
    plan = one_object(command("plan", source, *options, "--json").stdout)
    done = command("convert", source, "-o", tmp_path / "out", *options, "--no-verify", "--json")
    written = {part["name"]: part for part in one_object(done.stdout)["parts"]}
    for part in plan["parts"]:
        name = part["name"].removesuffix(".mlpackage") + ".mlpackage"
        assert part["bytes"] == weight_file(tmp_path / "out" / name).stat().st_size
        assert name in written
    assert len(plan["parts"]) == len(written)
    assert plan["total_bytes"] == sum(part["bytes"] for part in plan["parts"])
    assert plan["kv_bytes"] == 2 * 2 * 3 * 2 * 64 * 16  # fp16, K and V, layers, kv heads, context, head_dim
    assert plan["rope"]["kind"] == "default"
    assert plan["rope"]["theta"] == 10000.0
    assert len(plan["layer_types"]) == 3
    assert {"chunks", "peak_memory_mb", "bits_per_weight"} <= set(plan)


def test_plan_reads_headers_only(tmp_path):
    """A checkpoint of 16 GB that is nothing but a header over holes is planned in a moment."""
    sizes = {"hidden": 4096, "intermediate": 14336, "layers": 32, "heads": 32, "kv_heads": 8}
    source = shape_only_checkpoint(tmp_path / "llama-8b", "llama", vocab=128256, tied=False, **sizes)
    plan = one_object(command("plan", source, "--json").stdout)
    assert plan["chunks"] == 4
    assert 0.9 < plan["total_bytes"] / (2 * 128256 * 4096 + 7.5e9 * 4 / 8) < 1.1


def test_plan_gives_the_documented_number_of_chunks(tmp_path):
    """ANEMLL's documents: Qwen3-4B at 6 bits gives 4."""
    sizes = {"hidden": 2560, "intermediate": 9728, "layers": 36, "heads": 32, "kv_heads": 8}
    source = shape_only_checkpoint(tmp_path / "source", "qwen3", **sizes)
    assert one_object(command("plan", source, "--lut2", "6", "--json").stdout)["chunks"] == 4


def test_inspect_shows_a_package_and_a_bundle(converted):
    _, out, _ = converted
    bundle = one_object(command("inspect", out, "--json").stdout)
    assert len(bundle["packages"]) == 4
    last = out / "llama_FFN_PF_lut4_chunk_02of02.mlpackage"
    package = one_object(command("inspect", last, "--json").stdout)
    assert package in bundle["packages"]
    functions = {function["name"]: function for function in package["functions"]}
    assert set(functions) == {"infer", "prefill", "score"}
    infer = functions["infer"]
    shapes = {feature["name"]: list(feature["shape"]) for feature in infer["inputs"]}
    assert shapes == {
        "hidden_states": [1, 1, 64], "position_ids": [1], "causal_mask": [1, 1, 1, 64], "current_pos": [1],
    }  # fmt: skip
    assert [list(feature["shape"]) for feature in infer["outputs"]] == [[1, 1, 64]]
    assert [(f["name"], list(f["shape"])) for f in infer["states"]] == [("model_model_kv_cache_0", [8, 2, 64, 16])]
    assert infer["operations"]["conv"] == 2 * 7
    assert package["weights"]["lut4"]["tensors"] == 2 * 7
    assert package["weights"]["lut4"]["bytes"] > 0
    assert 0.5 * package["weight_bytes"] < package["shared_bytes"] <= package["weight_bytes"]
    people = command("inspect", out).stdout
    assert all(word in people for word in ("llama_lm_head_lut6", "infer", "prefill", "causal_mask", "conv"))


def test_leaving_score_out_works_everywhere(workshop, tmp_path):
    for model_type in ("llama", "qwen3"):
        source, out = workshop.checkpoint(model_type), tmp_path / model_type
        done = command("convert", source, "-o", out, *SIZES, "--no-score", "--argmax", "--json")
        assert done.returncode == 0, done.stderr
        assert one_object(done.stdout)["verify"]["passed"] is True
        listed = json.dumps(one_object(command("inspect", out, "--json").stdout)["packages"])
        assert '"score"' not in listed
        assert command("verify", out, "--source", source, "--tokens", "60").returncode == 0
        answer = one_object(command("generate", out, "--prompt", "the hen", "--max-tokens", "4", "--json").stdout)
        assert answer["stop_reason"] in ("stop", "length")


MISTAKES = {
    "misspelt option": ["convert", "SRC", "-o", "OUT", "--contxt", "64"],
    "misspelt command": ["convrt", "SRC"],
    "no output": ["convert", "SRC"],
    "missing checkpoint": ["convert", "nowhere/at/all", "-o", "OUT"],
    "missing checkpoint, planning": ["plan", "nowhere/at/all"],
    "5 bits": ["convert", "SRC", "-o", "OUT", "--lut2", "5"],
    "bits that are no number": ["convert", "SRC", "-o", "OUT", "--lut2", "four"],
    "a group that is no number": ["convert", "SRC", "-o", "OUT", "--lut2", "4,x"],
    "three numbers": ["convert", "SRC", "-o", "OUT", "--lut3", "4,8,8"],
    "context beyond the checkpoint's": ["convert", "SRC", "-o", "OUT", "--context", "1024"],
    "context beyond the hardware's": ["convert", "SRC", "-o", "OUT", "--context", "32768"],
    "context of nothing": ["convert", "SRC", "-o", "OUT", "--context", "0"],
    "context that is no number": ["convert", "SRC", "-o", "OUT", "--context", "many"],
    "batch beyond the context": ["convert", "SRC", "-o", "OUT", "--context", "64", "--batch", "65"],
    "more chunks than layers": ["convert", "SRC", "-o", "OUT", *SIZES, "--chunk", "99"],
    "no chunks": ["convert", "SRC", "-o", "OUT", *SIZES, "--chunk", "0"],
    "chunks in words": ["convert", "SRC", "-o", "OUT", *SIZES, "--chunk", "few"],
    "unknown platform": ["convert", "SRC", "-o", "OUT", *SIZES, "--platform", "android"],
    "unknown way to write": ["convert", "SRC", "-o", "OUT", *SIZES, "--kv-write", "scatter"],
    "step nine": ["convert", "SRC", "-o", "OUT", *SIZES, "--only", "9"],
    "head of too many parts": ["convert", "SRC", "-o", "OUT", *SIZES, "--head-split", "1000"],
    "prefix with a slash": ["convert", "SRC", "-o", "OUT", *SIZES, "--prefix", "a/b"],
    "no workers": ["convert", "SRC", "-o", "OUT", *SIZES, "--workers", "0"],
    "output over the checkpoint": ["convert", "SRC", "-o", "SRC", *SIZES],
    "verifying no bundle": ["verify", "SRC", "--source", "SRC"],
    "verifying against nothing": ["verify", "BUNDLE", "--source", "nowhere/at/all"],
    "verifying on no tokens": ["verify", "BUNDLE", "--source", "SRC", "--tokens", "0"],
    "verifying on a missing text": ["verify", "BUNDLE", "--source", "SRC", "--text", "nowhere.txt"],
    "generating from no bundle": ["generate", "SRC", "--prompt", "a"],
    "generating from nothing": ["generate", "nowhere", "--prompt", "a"],
    "generating nothing": ["generate", "BUNDLE", "--prompt", "a", "--max-tokens", "0"],
    "negative temperature": ["generate", "BUNDLE", "--prompt", "a", "--temperature", "-1"],
    "top-p beyond one": ["generate", "BUNDLE", "--prompt", "a", "--temperature", "1", "--top-p", "1.5"],
    "prompt beyond the context": ["generate", "BUNDLE", "--prompt", "the hen " * 100],
    "inspecting nothing": ["inspect", "nowhere"],
    "inspecting a checkpoint": ["inspect", "SRC"],
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing(converted, tmp_path, name):
    source, bundle, _ = converted
    copy = shutil.copytree(source, tmp_path / "source")
    before = {path: path.read_bytes() for path in copy.iterdir()}
    places = {"SRC": copy, "OUT": tmp_path / "out", "BUNDLE": bundle}
    done = command(*(places.get(word, word) for word in MISTAKES[name]))
    assert done.returncode == 2
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("Usage:", "Try "))]
    assert len([line for line in lines if line.strip()]) == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
    assert {path: path.read_bytes() for path in copy.iterdir()} == before


def test_messages_name_the_value_the_limit_and_the_way_out(converted):
    source, bundle, _ = converted

    def message(*words: object) -> str:
        return command(*words).stderr

    assert re.search(r"1024.*512", message("convert", source, "-o", "x", "--context", "1024"))
    assert re.search(r"99.*4", message("plan", source, *SIZES, "--chunk", "99"))
    assert re.search(r"65.*64", message("plan", source, "--context", "64", "--batch", "65"))
    assert "ios" in message("plan", source, *SIZES, "--platform", "android")
    assert "6" in message("plan", source, *SIZES, "--lut2", "5")
    long = message("generate", bundle, "--prompt", "the hen " * 100)
    assert re.search(r"64.*--context \d+", long)


@pytest.fixture
def copied(converted, tmp_path):
    source, out, _ = converted
    return source, Path(shutil.copytree(out, tmp_path / "copy"))


def corrupt(package: Path, name: str) -> None:
    """Turn every byte of one stored weight around."""
    from programs import functions, operations

    for function in functions(package).values():
        for op in operations(function):
            if op.outputs[0].name.startswith(name) if op.outputs else False:
                attributes = [*op.attributes.values(), *(a.arguments[0].value for a in op.inputs.values())]
                for value in attributes:
                    if value.WhichOneof("value") == "blobFileValue":
                        return flip(weight_file(package), value.blobFileValue.offset)
    raise AssertionError(f"{name} is not in {package}")


def flip(file: Path, offset: int) -> None:
    content = bytearray(file.read_bytes())
    size = int.from_bytes(content[offset + 8 : offset + 16], "little")
    start = int.from_bytes(content[offset + 16 : offset + 24], "little")
    content[start : start + size] = bytes(byte ^ 0x5A for byte in content[start : start + size])
    file.write_bytes(content)


def failed(source: Path, bundle: Path) -> dict:
    done = command("verify", bundle, "--source", source, "--tokens", "64", "--json")
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    report = one_object(done.stdout)
    assert report["passed"] is False
    assert command("verify", bundle, "--source", source, "--tokens", "64").returncode == 1
    return report


@pytest.mark.parametrize("layer", [0, 2])
def test_verify_names_the_first_part_and_layer_with_a_damaged_weight(copied, layer):
    source, bundle = copied
    package = f"llama_FFN_PF_lut4_chunk_0{1 + layer // 2}of02.mlpackage"
    corrupt(bundle / package, f"model_layers_{layer}_mlp_down_proj_weight")
    where = failed(source, bundle)["first_divergence"]
    assert package in where
    assert f"layer {layer}" in where


def test_verify_names_a_damaged_head_or_embedding(copied):
    source, bundle = copied
    corrupt(bundle / "llama_embeddings.mlpackage", "model_embed_tokens_weight")
    assert "llama_embeddings" in failed(source, bundle)["first_divergence"]


def test_verify_notices_chunks_that_were_swapped(copied):
    source, bundle = copied
    first, second = (bundle / f"llama_FFN_PF_lut4_chunk_0{i}of02.mlpackage" for i in (1, 2))
    first.rename(bundle / "aside")
    second.rename(first)
    (bundle / "aside").rename(second)
    done = command("verify", bundle, "--source", source, "--tokens", "64")
    assert done.returncode in (1, 2)
    assert "chunk_01of02" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_verify_fails_on_the_cost_of_palettising_only_when_asked(converted):
    source, out, _ = converted
    line = ("verify", out, "--source", source, "--tokens", "64", "--json")
    assert command(*line, "--max-kl", "1000").returncode == 0
    report = command(*line, "--max-kl", "0.000001")
    assert report.returncode == 1
    gates = {gate["name"]: gate for gate in one_object(report.stdout)["gates"]}
    assert [name for name, gate in gates.items() if not gate["passed"]] == ["checkpoint_mean_kl"]


def test_verify_refuses_another_checkpoint(converted, workshop):
    _, out, _ = converted
    other = workshop.checkpoint("llama", vocab=331)
    assert command("verify", out, "--source", other).returncode == 2


def test_help_is_plain_and_complete():
    text = command("--help").stdout
    assert all(name in text for name in ("plan", "convert", "verify", "generate", "inspect"))
    assert not re.search(r"[\u2500-\u257f\x1b]", text)
    options = command("convert", "--help").stdout
    names = (
        "context batch chunk max-chunk-mb lut-embeddings lut-ffn lut-lmhead lut1 lut2 lut3 argmax head-split prefix "
        "no-verify no-score kv-write silu platform workers restart only json"
    )
    assert not [name for name in re.findall(r"\S+", names) if f"--{name}" not in options]
