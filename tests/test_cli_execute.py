"""anemone execute and anemone diff: files in and out, random inputs, reports and exit codes."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("coremltools")

import naive_forms
from bundles import FP16, command
from execute_helpers import convert_torch, coremltools
from naive_forms import graph_with

from anemone.conversion.convert import convert
from anemone.execute import Program, random_inputs
from anemone.recipe import Recipe


def one_object(text: str) -> dict:
    value = json.loads(text)
    assert isinstance(value, dict)
    assert text.count("\n") == 1
    return value


def linear(path: Path, scale: float = 1.0, biased: bool = False) -> Path:
    """x (1, 4), y (1, 4) -> two outputs, by torch."""
    import torch

    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(4, 3)
            self.layer.weight.data *= scale

        def forward(self, x, y):
            out = torch.relu(self.layer(x + y))
            return (out + 1 if biased else out), x * y

    names = [coremltools().TensorType("sums"), coremltools().TensorType("products")]
    return convert_torch(Two(), [torch.zeros(1, 4), torch.zeros(1, 4)], path, outputs=names)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return linear(tmp_path_factory.mktemp("package") / "two.mlpackage")


@pytest.fixture(scope="module")
def numbers():
    rng = np.random.default_rng(1)
    return {name: rng.standard_normal((1, 4)).astype(np.float32) for name in ("x", "x1")}


@pytest.fixture(scope="module")
def expected(package, numbers):
    return Program(package).predict(numbers)


@pytest.fixture(scope="module")
def chunk(workshop):
    (path,) = workshop.bundle(workshop.checkpoint("llama")).glob("*_chunk_01of01.mlpackage")
    return path


def test_npz_in_and_out(package, numbers, expected, tmp_path):
    np.savez(tmp_path / "x.npz", **numbers)
    done = command("execute", package, "--inputs", tmp_path / "x.npz", "--outputs", tmp_path / "y.npz", "--json")
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "y.npz") as arrays:
        assert {name: arrays[name].tolist() for name in arrays.files} == {k: v.tolist() for k, v in expected.items()}
    outputs = one_object(done.stdout)["outputs"]
    assert outputs["products"]["shape"] == [1, 4]
    assert outputs["products"]["max"] == pytest.approx(float(expected["products"].max()))
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["x.npz", "y.npz"]


def test_named_npy_and_json(package, numbers, expected, tmp_path):
    np.save(tmp_path / "x.npy", numbers["x"])
    (tmp_path / "rest.json").write_text(json.dumps({"x1": numbers["x1"].tolist()}))
    inputs = ("--inputs", f"x={tmp_path / 'x.npy'}", "--inputs", tmp_path / "rest.json")
    assert command("execute", package, *inputs, "-o", tmp_path / "y.json").returncode == 0
    found = json.loads((tmp_path / "y.json").read_text())
    assert np.allclose(found["sums"], expected["sums"])


def test_an_image(tmp_path):
    image = pytest.importorskip("PIL.Image")
    import torch

    ct = coremltools()
    kind = ct.ImageType("picture", shape=(1, 3, 6, 5), color_layout=ct.colorlayout.RGB)
    path = convert_torch(torch.nn.Sigmoid(), [torch.zeros(1, 3, 6, 5)], tmp_path / "p.mlpackage", inputs=[kind])
    pixels = np.random.default_rng(0).integers(0, 255, (6, 5, 4), np.uint8)
    image.fromarray(pixels).save(tmp_path / "photo.png")
    done = command("execute", path, "--inputs", tmp_path / "photo.png", "-o", tmp_path / "y.npy", "--json")
    assert done.returncode == 0, done.stderr
    exact = 1 / (1 + np.exp(-pixels[None, :, :, :3].transpose(0, 3, 1, 2).astype(np.float64)))
    assert np.allclose(np.load(tmp_path / "y.npy"), exact, atol=1e-6)
    assert command("execute", path, "--random", "0").returncode == 0


def test_random_inputs_repeat(package, tmp_path):
    for seed, name in ((1, "a"), (1, "b"), (2, "c")):
        assert command("execute", package, "--random", seed, "-o", tmp_path / f"{name}.json").returncode == 0
    a, b, c = ((tmp_path / f"{name}.json").read_bytes() for name in "abc")
    assert a == b != c


@pytest.mark.parametrize("function", ["infer", "prefill", "score"])
def test_random_inputs_of_a_decoder_are_a_prompt(chunk, function):
    program = Program(chunk)
    given = random_inputs(program, 5, function)
    rows, context = given["causal_mask"].shape[-2:]
    assert np.array_equal(given["position_ids"], np.arange(rows))
    assert given["current_pos"] == 0
    assert np.array_equal(np.isfinite(given["causal_mask"][0, 0]), np.tri(rows, context, dtype=bool))
    outputs = program.predict(given, program.new_state(), function)
    assert np.isfinite(outputs["output_hidden_states"]).all()


def test_random_ids_stay_within_the_table(workshop):
    source = workshop.checkpoint("llama")
    (path,) = workshop.bundle(source).glob("*_embeddings.mlpackage")
    program = Program(path)
    ids = random_inputs(program, 0, shapes={"input_ids": (1, 8)})["input_ids"]
    vocab = program.weight(program.weight_names()[0]).shape[0]
    assert ids.shape == (1, 8)
    assert ids.min() >= 0
    assert 2 < ids.max() < vocab
    assert command("execute", path, "--random", "0", "--shape", "input_ids=1,8").returncode == 0
    assert "takes shape" in command("execute", path, "--random", "0", "--shape", "input_ids=1,7").stderr


def test_trace_and_profile(chunk):
    line = ("execute", chunk, "--random", "0", "--function", "score", "--numerics", "ane:m2")
    result = one_object(command(*line, "--trace", "--profile", "--json").stdout)
    assert result["trace"]["numerics"] == "ane:m2"
    assert result["trace"]["first_break"] is None
    wanted = {"name", "kind", "max_abs", "subnormal", "inf", "nan", "snr_db", "bytes_read"}
    assert wanted <= set(result["trace"]["ops"][0])
    assert {"kind", "calls", "seconds", "weight_bytes"} <= set(result["profile"]["kinds"][0])
    shown = command(*line, "--trace", "--profile").stdout
    assert "nothing breaks here" in shown
    assert "of weights read" in shown


def test_a_trace_names_what_breaks(workshop, tmp_path):
    with graph_with(norm=naive_forms.plain_norm):
        convert(workshop.checkpoint("llama"), tmp_path / "out", Recipe(**FP16, context=64, batch=8), verification=False)
    (path,) = (tmp_path / "out").glob("*_chunk_01of01.mlpackage")
    inputs = random_inputs(Program(path), 0, "infer")
    np.savez(tmp_path / "x.npz", **{**inputs, "hidden_states": inputs["hidden_states"] * np.float16(1000)})
    done = command("execute", path, "--inputs", tmp_path / "x.npz", "--function", "infer", "--trace")
    assert "first to break: mul layer_0_mul_0" in done.stdout


WRONG = {
    "no inputs": [],
    "both": ["--random", "0", "--inputs", "X"],
    "shape of a file": ["--inputs", "X", "--shape", "x=1,4"],
    "no shape": ["--random", "0", "--shape", "x=one"],
    "shape of nothing": ["--random", "0", "--shape", "z=1,4"],
    "missing file": ["--inputs", "x=none.npy"],
    "unknown suffix": ["--inputs", "x=setup.cfg"],
    "array without a name": ["--inputs", "ONE"],
    "one input missing": ["--inputs", "x=ONE"],
    "twice": ["--inputs", "x=ONE", "--inputs", "x=ONE"],
    "damaged file": ["--inputs", "BAD"],
    "two outputs in one array": ["--random", "0", "--outputs", "y.npy"],
    "unknown kind of output": ["--random", "0", "--outputs", "y.csv"],
    "unknown function": ["--random", "0", "--function", "other"],
    "unknown numerics": ["--random", "0", "--numerics", "fp16"],
    "unknown chip": ["--random", "0", "--numerics", "ane:m9"],
}


@pytest.mark.parametrize("options", WRONG.values(), ids=WRONG.keys())
def test_mistakes_are_one_line(package, numbers, tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", **numbers)
    np.save("one.npy", numbers["x"])
    Path("bad.npz").write_bytes(b"PK nothing")
    Path("setup.cfg").touch()
    before = sorted(tmp_path.iterdir())
    names = {"X": "x.npz", "ONE": "one.npy", "BAD": "bad.npz", "x=ONE": "x=one.npy"}
    done = command("execute", package, *(names.get(option, option) for option in options))
    assert done.returncode == 2
    assert done.stderr.startswith("anemone: ")
    assert done.stderr.count("\n") == 1
    assert not done.stdout
    assert sorted(tmp_path.iterdir()) == before


# diff


def test_a_package_equals_itself(package):
    done = command("diff", package, package, "--random", "0", "--json")
    assert done.returncode == 0, done.stderr
    result = one_object(done.stdout)
    assert result["passed"]
    assert result["stepped"]
    assert result["structure"] == []
    assert result["first_difference"] is result["parts_at"] is None
    assert [output["max_abs"] for output in result["outputs"]] == [0, 0]


def test_other_weights_are_named_and_part_at_their_operation(package, tmp_path):
    other = linear(tmp_path / "other.mlpackage", scale=1.5)
    done = command("diff", package, other, "--random", "0", "--json")
    assert done.returncode == 1
    result = one_object(done.stdout)
    assert not result["passed"]
    assert any("other values" in line and "weight" in line for line in result["structure"])
    assert result["parts_at"]["name"].startswith("linear ")
    by_name = {output["name"]: output for output in result["outputs"]}
    assert by_name["products"]["snr_db"] is None
    given = random_inputs(Program(package), 0)
    a, b = (Program(path).predict(given)["sums"].astype(np.float64) for path in (package, other))
    assert by_name["sums"]["max_abs"] == pytest.approx(np.abs(a - b).max())
    assert by_name["sums"]["rel_l2"] == pytest.approx(np.linalg.norm(a - b) / np.linalg.norm(b))
    assert "parts at: linear " in command("diff", package, other, "--random", "0").stdout


def test_other_graphs_are_compared_by_their_outputs(package, tmp_path):
    other = linear(tmp_path / "other.mlpackage", biased=True)
    result = one_object(command("diff", package, other, "--random", "0", "--json").stdout)
    assert not result["stepped"]
    assert result["outputs"][0]["max_abs"] == pytest.approx(1, abs=1e-5)


def test_expected_outputs_from_a_file(package, numbers, expected, tmp_path):
    np.savez(tmp_path / "x.npz", **numbers)
    np.savez(tmp_path / "good.npz", **expected)
    np.savez(tmp_path / "near.npz", sums=expected["sums"], products=expected["products"] + np.float32(0.01))
    np.savez(tmp_path / "less.npz", sums=expected["sums"])
    inputs = ("--inputs", tmp_path / "x.npz")
    assert command("diff", package, tmp_path / "good.npz", *inputs).returncode == 0
    assert command("diff", package, tmp_path / "near.npz", *inputs, "--tolerance", "0.02").returncode == 0
    assert command("diff", package, tmp_path / "near.npz", *inputs, "--tolerance", "0.005").returncode == 1
    assert command("diff", package, tmp_path / "near.npz", *inputs, "--min-snr", "80").returncode == 1
    less = command("diff", package, tmp_path / "less.npz", *inputs)
    assert less.returncode == 1
    assert "only one side has the output products" in less.stdout
    assert command("diff", package, tmp_path / "none.npz", *inputs).returncode == 2


def test_functions_and_inputs_of_only_one_side_are_listed(package, chunk, workshop):
    (embeddings,) = workshop.bundle(workshop.checkpoint("llama")).glob("*_embeddings.mlpackage")
    done = command("diff", embeddings, chunk, "--random", "0")
    assert done.returncode == 2  # the second cannot take the first one's inputs
    other = workshop.bundle(workshop.checkpoint("llama"), score=False)
    (without,) = other.glob("*_chunk_01of01.mlpackage")
    done = command("diff", chunk, without, "--random", "0", "--function", "infer", "--json")
    assert done.returncode == 0, done.stderr
    assert "only the first has function score" in one_object(done.stdout)["structure"]
