"""Damaged models: one clear error or a result; never a crash, a hang, much memory or a look outside the package."""

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from execute_helpers import convert_torch, coremltools, write_cases
from mil_text_writer import compile_package
from test_execute_ops import FAMILIES as PLAIN
from test_execute_products import FAMILIES as PRODUCTS
from test_mlmodelc import Net
from test_mlmodelc_text import HEAD, TAIL, folder_of

from anemone.compress.spec import LutSpec
from anemone.errors import ExecuteError, PackageError
from anemone.execute import Program
from anemone.execute.damage import blamed_on, check_size
from anemone.package.read import read_package

MODEL, WEIGHTS = "Data/com.apple.CoreML/model.mlmodel", "Data/com.apple.CoreML/weights/weight.bin"


@pytest.fixture(scope="session")
def sound(workshop, tmp_path_factory):
    """A folder of small sound models of many kinds: our own, and coremltools' with its compressions."""
    folder = tmp_path_factory.mktemp("sound")
    lut = LutSpec(4, 8)
    bundle = workshop.bundle(workshop.checkpoint("llama"), lut_ffn=lut, head_split=2)
    for package in bundle.glob("*.mlpackage"):
        shutil.copytree(package, folder / package.name)
    for target in ("iOS16", "iOS18"):
        compressed(folder, target)
    for package in list(folder.glob("*.mlpackage")):
        compile_package(package, folder / f"{package.stem}.mlmodelc", old="iOS16" in package.name)
    for name in ("shape", "slicing"):
        write_cases(folder / f"{name}.mlpackage", PLAIN[name])
    for name in ("create", "gather"):
        write_cases(folder / f"{name}.mlpackage", PRODUCTS[name])
    return folder


def compressed(folder, target):
    ct = coremltools()
    import coremltools.optimize.coreml as cto

    kinds = {
        "lut": (cto.palettize_weights, cto.OpPalettizerConfig(mode="uniform", nbits=4, weight_threshold=0)),
        "int8": (cto.linear_quantize_weights, cto.OpLinearQuantizerConfig(weight_threshold=0)),
        "sparse": (cto.prune_weights, cto.OpMagnitudePrunerConfig(target_sparsity=0.5, weight_threshold=0)),
    }
    options = {"minimum_deployment_target": getattr(ct.target, target)}
    plain = convert_torch(Net(), (torch.zeros(1, 3, 8, 8),), folder / f"{target}.mlpackage", "FLOAT16", **options)
    for name, (change, config) in kinds.items():
        model = change(ct.models.MLModel(str(plain), skip_model_load=True), cto.OptimizationConfig(config))
        model.save(str(folder / f"{name} {target}.mlpackage"))


def check_mutations(sound, kind, first, last):
    """Run a range of mutations in a process of its own."""
    script = Path(__file__).with_name("damage.py")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(sound), kind, str(first), str(last)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert not report["bad"], "\n\n".join(report["bad"][:5])
    assert report["outside"] == []
    assert report["slowest"][0] < 2, report["slowest"]
    assert report["peak_mb"] < 1000
    assert sum(report["ends"].values()) == last - first
    assert report["ends"]["refused"] > (last - first) / 10


KINDS = {
    "text": 500, "program": 2000, "bytes": 1200, "files": 500, "program+inspect": 500, "bytes+inspect": 300,
    "files+inspect": 300,
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_some_mutations(kind, sound):
    check_mutations(sound, kind, 0, 60)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_all_mutations(kind, sound):
    check_mutations(sound, kind, 60, KINDS[kind] + 60)


@pytest.fixture
def package(sound, tmp_path):
    """A copy that may be damaged, two folders below a secret."""
    (tmp_path / "secret.bin").write_bytes(b"\0" * 4096)
    return Path(shutil.copytree(next(sound.glob("*embeddings*.mlpackage")), tmp_path / "inner" / "p.mlpackage"))


OUTSIDE = ["../../../secret.bin", "/etc/passwd", "com.apple.CoreML/../../../../secret.bin"]


@pytest.mark.parametrize("path", OUTSIDE)
def test_manifest_that_leads_outside(path, package):
    manifest = json.loads((package / "Manifest.json").read_text())
    manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"] = path
    (package / "Manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ExecuteError, match="names a file outside itself"):
        Program(package)
    with pytest.raises(PackageError, match="names a file outside itself"):
        read_package(package)


@pytest.mark.parametrize("name", ["Manifest.json", MODEL, WEIGHTS])
@pytest.mark.parametrize("target", ["../../../../secret.bin", "/etc/passwd"])
def test_links_that_lead_outside(name, target, package):
    (package / name).unlink()
    (package / name).symlink_to(target if target[0] == "/" else package.parents[1] / "secret.bin")
    with pytest.raises(ExecuteError, match="names a file outside itself"):
        Program(package).predict({"input_ids": np.zeros((1, 1), np.int32)})
    with pytest.raises(PackageError, match="names a file outside itself"):
        read_package(package)


def test_links_inside_are_followed(package):
    (package / WEIGHTS).rename(package / "Data" / "stored")
    (package / WEIGHTS).symlink_to(package / "Data" / "stored")
    Program(package).predict({"input_ids": np.zeros((1, 1), np.int32)})
    read_package(package)


@pytest.mark.parametrize("name", ["model.mil", "metadata.json", "weights/weight.bin"])
def test_compiled_files_that_lead_outside(name, sound, tmp_path):
    folder = Path(shutil.copytree(next(sound.glob("*embeddings*.mlmodelc")), tmp_path / "m.mlmodelc"))
    (folder / name).unlink()
    (folder / name).symlink_to("/etc/passwd")
    with pytest.raises(ExecuteError, match="names a file outside itself"):
        Program(folder).predict({"input_ids": np.zeros((1, 1), np.int32)})


@pytest.mark.parametrize("name", ["Manifest.json", MODEL, WEIGHTS])
def test_pipes_are_not_waited_for(name, package):
    (package / name).unlink()
    os.mkfifo(package / name)
    with pytest.raises(ExecuteError, match=r"does not exist|has no Manifest\.json"):
        Program(package).predict({"input_ids": np.zeros((1, 1), np.int32)})
    with pytest.raises(PackageError, match=r"is missing|lacks|has no Manifest\.json"):
        read_package(package)


BOMBS = {
    "an input": HEAD.replace("[2]", "[1099511627776]"),
    "a state": HEAD.replace("tensor<fp32, [2]> x", "tensor<fp32, [2]> x, state<tensor<fp16, [1099511627776]>> s"),
    "a result": HEAD + "tensor<fp32, [1048576, 1048576]> y = relu(x = x);",
    "no elements": HEAD.replace("[2]", "[0, 4611686018427387904]"),
}


@pytest.mark.parametrize("what", BOMBS)
def test_tensors_that_no_machine_holds(what, tmp_path):
    text = BOMBS[what] if "y = " in BOMBS[what] else BOMBS[what] + "tensor<fp32, [2]> y = relu(x = x);"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ExecuteError, match=r"elements take more than the \d+ bytes of this machine's memory"):
        Program(folder_of(tmp_path / "m.mlmodelc", text + TAIL)).predict({"x": np.zeros(2, np.float32)})
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_sizes_that_can_be_held_are_accepted():
    check_size((1, 4096, 1, 512), "x")
    check_size((-1, 3), "x")
    check_size((), "x")


def test_blame():
    with pytest.raises(ExecuteError, match="it is damaged: KeyError: 'a'"), blamed_on("it"):
        {}["a"]
    with pytest.raises(ExecuteError, match="it needs more memory than there is"), blamed_on("it"):
        raise MemoryError
    with pytest.raises(ExecuteError, match=r"^as it was$"), blamed_on("it"):
        raise ExecuteError("as it was")


def test_inspect_shows_compiled_models(sound, capsys):
    from bundles import command

    shown = []
    for suffix in ("mlpackage", "mlmodelc"):
        done = command("inspect", next(sound.glob(f"*FFN*.{suffix}")), "--json")
        assert done.returncode == 0, done.stderr
        shown.append(json.loads(done.stdout))
    for package in shown:
        del package["path"]
    one, other = shown
    assert [f.pop("operations") for f in one["functions"]] == [f.pop("operations") for f in other["functions"]]
    assert sorted(one["functions"], key=str) == sorted(other["functions"], key=str)
    assert (one["weights"], one["shared_bytes"]) == (other["weights"], other["shared_bytes"])
    assert (one["user_defined"], one["problems"]) == (other["user_defined"], other["problems"])
