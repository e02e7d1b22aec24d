"""A conversion as a process: the same bytes every time, never half-written, continued where it stopped."""

import dataclasses
import hashlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from bundles import FP16, command, files, package_files, weight_file
from tiny import MODEL_TYPES, load_weights, make_tiny, write_weights

from anemone.checkpoint import open_checkpoint
from anemone.compress.spec import LutSpec
from anemone.conversion.convert import convert
from anemone.conversion.steps import Steps
from anemone.errors import AnemoneError, PackageError, RecipeError
from anemone.recipe import Recipe

PARTS = ("llama_embeddings", "llama_lm_head_lut6", "llama_FFN_PF_lut4_chunk_01of02", "llama_FFN_PF_lut4_chunk_02of02")
SMALL = ("--context", "64", "--batch", "8", "--no-verify")
LUT4 = {"lut_ffn": LutSpec(4, 8), "lut_lmhead": LutSpec(6, 8)}


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("lut", [{}, LUT4], ids=["fp16", "lut"])
def test_two_conversions_are_byte_identical(workshop, tmp_path, model_type, lut):
    source = workshop.checkpoint(model_type, dtype="bfloat16")
    recipe = Recipe(**{**FP16, "context": 64, "batch": 8, **lut})
    first, second = tmp_path / "one", tmp_path / "with a space" / "two"
    for out, workers in ((first, 1), (second, 2)):
        convert(source, out, recipe, workers=workers, verification=False)
    assert files(first) == files(second)
    assert files(first)


def test_verified_conversions_are_byte_identical_too(workshop, tmp_path):
    source = workshop.checkpoint("qwen3")
    for name in ("one", "two"):
        convert(source, tmp_path / name, Recipe(context=64, batch=8))
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert json.loads((tmp_path / "one/manifest.json").read_text())["validated"] is True


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("bits", [16, 4])
def test_more_functions_cost_no_weights(workshop, model_type, bits):
    """infer, prefill and score together take what the layers' tensors and one pair of rope tables take."""
    source = workshop.checkpoint(model_type, hidden=256, intermediate=512, heads=4, kv_heads=2)
    folder = workshop.bundle(source, **({"lut_ffn": LutSpec(bits, 8)} if bits < 16 else {}))
    (package,) = folder.glob("*_chunk_01of01.mlpackage")
    expected = 2 * 2 * 64 * 64  # cos and sin, (context, head_dim) fp16
    for name, tensor in load_weights(source).items():
        if name.startswith("model.layers.") and tensor.ndim == 2 and bits < 16:
            expected += tensor.size * bits // 8 + tensor.shape[0] // 8 * 2**bits * 2
        elif name.startswith(("model.layers.", "model.norm.")):
            expected += 2 * tensor.size
    assert expected <= weight_file(package).stat().st_size <= 1.01 * expected


def test_all_weight_files_together_hold_each_tensor_once(workshop):
    source = workshop.checkpoint("llama", layers=4, hidden=256, intermediate=512, tied=False)
    unique = None
    for chunks in (1, 2, 4):
        folder = workshop.bundle(source, chunks=chunks)
        total = sum(weight_file(package).stat().st_size for package in folder.glob("*.mlpackage"))
        unique = unique or (source / "model.safetensors").stat().st_size / 2  # float32 there, fp16 here
        tables = 2 * 2 * 64 * 64 * chunks  # each chunk has its own cos and sin, (context, head_dim) fp16
        assert total <= 1.02 * (unique + tables)


def start(source: Path, out: Path, *more: str) -> "subprocess.Popen[bytes]":
    line = [Path(sys.executable).parent / "anemone", "convert", source, "-o", out, *SMALL, "--chunk", "2", *more]
    return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def wait_for(path: Path, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + 60
    while not path.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.001)
    assert path.exists()


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A checkpoint whose conversion takes a second or two, and its bundle made without interruption."""
    root = tmp_path_factory.mktemp("wide")
    source = make_tiny(root / "source", "llama", hidden=512, intermediate=1536, layers=4, vocab=3000, dtype="bfloat16")
    recipe = Recipe(context=64, batch=8, chunks=2)
    convert(source, root / "whole", recipe, verification=False)
    return source, root / "whole"


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT], ids=lambda s: s.name)
def test_an_interrupted_conversion_goes_on_where_it_stopped(wide, tmp_path, stop):
    source, whole = wide
    out = tmp_path / "out"
    process = start(source, out)
    wait_for(out / f"{PARTS[0]}.mlpackage", process)
    process.send_signal(stop)
    code = process.wait()
    message = process.stderr.read().decode()
    assert code == (-9 if stop is signal.SIGKILL else 130)
    done = {path.name for path in out.glob("*.mlpackage")}
    assert f"{PARTS[0]}.mlpackage" in done
    assert len(done) < len(PARTS)
    if stop is signal.SIGINT:
        assert "Traceback" not in message
        assert not [path for path in out.iterdir() if path.name.startswith(".")]
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for name in done for path in (out / name).rglob("*")}
    again = command("convert", source, "-o", out, *SMALL, "--chunk", "2", "--json")
    assert again.returncode == 0, again.stderr
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in before} == before
    reused = {part["name"] for part in json.loads(again.stdout)["parts"] if part["reused"]}
    assert reused == done
    assert files(out) == files(whole)


class FailingWeights:
    """Another object's tensors, until one of layer 1 is asked for."""

    def __init__(self, weights):
        self.weights, self.tensors, self.files = weights, weights.tensors, weights.files
        self.release = weights.release

    def read(self, name, rows=None):
        if "layers.1" in name:
            raise OSError("the disk went away")
        return self.weights.read(name, rows)


def test_an_exception_in_the_middle_leaves_no_stray_files(wide, tmp_path):
    source = open_checkpoint(str(wide[0]))
    broken = dataclasses.replace(source, weights=FailingWeights(source.weights))
    with pytest.raises(OSError, match="the disk went away"):
        convert(broken, tmp_path / "out", Recipe(context=64, batch=8, chunks=2), verification=False)
    left = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert left == [f"{name}.mlpackage" for name in PARTS[:2]]


def test_another_recipe_or_source_does_not_reuse_a_part(workshop, tmp_path):
    source = workshop.checkpoint("llama")
    out = tmp_path / "out"

    def reused(where: Path = source, **recipe: object) -> set[str]:
        done = convert(where, out, Recipe(**{**FP16, "context": 64, "batch": 8, **recipe}), verification=False)
        return {build.part.kind for build in done.parts if build.reused}

    assert reused() == set()
    assert reused() == {"embeddings", "lm_head", "chunk"}
    assert "chunk" not in reused(context=48)
    assert "chunk" not in reused(kv_write="mask", context=48)
    assert "chunk" not in reused(kv_write="mask", context=48, silu="native")
    assert reused(workshop.checkpoint("llama", seed=9), kv_write="mask", context=48, silu="native") == set()


def test_a_renamed_checkpoint_is_the_same_source(workshop, tmp_path):
    source = workshop.checkpoint("qwen3")
    copy = shutil.copytree(source, tmp_path / "Merged-R1-SLERP")
    assert package_files(workshop.bundle(copy)) == package_files(workshop.bundle(source))


def test_steps_do_what_they_say(workshop, tmp_path):
    source, out = workshop.checkpoint("llama"), tmp_path / "out"
    recipe = Recipe(**FP16, context=64, batch=8)

    def run(**steps: int) -> object:
        return convert(source, out, recipe, steps=Steps(**steps), verification=False)

    with pytest.raises(PackageError):
        run(only=7)  # nothing is there yet
    convert(source, out, recipe, verification=False)
    whole = files(out)

    def inodes() -> dict[str, int]:
        return {path.name: weight_file(path).stat().st_ino for path in out.glob("*.mlpackage")}

    kept = inodes()
    run(only=2)
    again = inodes()
    assert {name for name in kept if kept[name] != again[name]} == {"llama_lm_head.mlpackage"}
    for step in (3, 4, 5):
        before = inodes()
        run(only=step)
        assert {name for name in before if before[name] != inodes()[name]} == {"llama_FFN_PF_chunk_01of01.mlpackage"}
    before = inodes()
    run(restart=2)
    assert {name for name in before if before[name] == inodes()[name]} == {"llama_embeddings.mlpackage"}
    before = inodes()
    run(restart=7)
    assert inodes() == before
    assert files(out) == whole
    for wrong in ({"only": 9}, {"restart": 0}, {"only": 1, "restart": 2}):
        with pytest.raises(RecipeError):
            Steps(**wrong)


def test_compiling_off_a_mac_is_skipped_with_a_note(workshop, tmp_path):
    if sys.platform == "darwin":
        pytest.skip("this machine can compile")
    done = command("convert", workshop.checkpoint("llama"), "-o", tmp_path / "out", *SMALL)
    assert done.returncode == 0
    assert "compile" in done.stderr
    assert "skip" in done.stderr
    assert not list((tmp_path / "out").glob("*.mlmodelc"))


def test_every_file_of_a_bundle_is_in_its_manifest(workshop):
    folder = workshop.bundle(workshop.checkpoint("llama"))
    manifest = json.loads((folder / "manifest.json").read_text())
    content = files(folder)
    content.pop("manifest.json")
    assert manifest["files"] == {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}


def test_a_damaged_part_is_not_kept(workshop, tmp_path):
    """A part whose weight file was cut is made again, not reused."""
    source, out = workshop.checkpoint("llama"), tmp_path / "out"
    recipe = Recipe(**FP16, context=64, batch=8)
    convert(source, out, recipe, verification=False)
    whole = files(out)
    os.truncate(weight_file(out / "llama_lm_head.mlpackage"), 1000)
    convert(source, out, recipe, verification=False)
    assert files(out) == whole


def test_values_that_fp16_cannot_hold_are_counted_or_refused(tmp_path):
    source = make_tiny(tmp_path / "source", "llama", dtype="bfloat16", tied=False)
    weights = {name: tensor.astype(np.float32) for name, tensor in load_weights(source).items()}
    chosen = weights["model.layers.0.mlp.up_proj.weight"]
    chosen[0, :5] = 1e-8
    write_weights(source, weights, "bfloat16")
    stored = np.concatenate([np.abs(tensor.astype(np.float32)).ravel() for tensor in load_weights(source).values()])
    zeroed = np.count_nonzero((stored > 0) & (stored.astype(np.float16) == 0))
    subnormal = np.count_nonzero((stored.astype(np.float16) > 0) & (stored.astype(np.float16) < 2.0**-14))
    assert zeroed >= 5
    line = ("convert", source, "-o", tmp_path / "out", *SMALL)
    loss = json.loads(command(*line, "--json").stdout)["fp16_loss"]
    assert loss == {"values": stored.size, "subnormal": subnormal, "zeroed": zeroed}
    shutil.rmtree(tmp_path / "out")
    assert f"{zeroed + subnormal} of {stored.size} weights" in command(*line).stdout

    chosen[1, 1] = 70000.0
    write_weights(source, weights, "bfloat16")
    refused = command(*line, "--lut-ffn", "none")
    assert refused.returncode == 2
    assert "model.layers.0.mlp.up_proj.weight" in refused.stderr.splitlines()[-1]
    with pytest.raises(AnemoneError, match="up_proj"):
        convert(source, tmp_path / "other", Recipe(context=64, batch=8), verification=False)


@pytest.mark.parametrize("group", [0, 8])
def test_each_weight_counts_once_in_what_fp16_loses(workshop, tmp_path, group, monkeypatch):
    """A group larger than a block is read twice, once for its histogram and once for its indices."""
    monkeypatch.setattr("anemone.compress.palettize.BLOCK_VALUES", 1 << 10)
    lut = LutSpec(4, group)
    recipe = Recipe(context=64, batch=8, lut_embeddings=lut, lut_ffn=lut, lut_lmhead=lut)
    done = convert(workshop.checkpoint("llama"), tmp_path / "out", recipe, verification=False)
    weights = [weight for part in done.plan.parts for weight in part.program.weights().values() if weight.source]
    assert done.loss.values == sum(math.prod(weight.shape) for weight in weights)
