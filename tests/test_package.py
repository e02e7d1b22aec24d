"""Packages on disk: what is stored, decoded by coremltools; atomic, deterministic, shared."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from anemone.compress.tensor import Dense, Lut
from anemone.errors import PackageError
from anemone.graph.ir import Function, Op, Program, Value, Weight
from anemone.package.mlpackage import MODEL_FILE, WEIGHT_FILE, Description, PackageWriter
from anemone.package.size import weight_file_bytes

ROWS, COLUMNS = 48, 40


def lut(bits, group, rows=ROWS, columns=COLUMNS, seed=0):
    rng = np.random.default_rng(seed)
    table = np.sort(rng.standard_normal((rows // group, 2**bits)).astype(np.float16), axis=1)
    return Lut(rng.integers(0, 2**bits, (rows, columns), dtype=np.uint8), table, bits)


def dense(rows=ROWS, columns=COLUMNS, seed=0):
    return Dense(np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float16))


def convolution(name, tensors, rows=1, role="linear"):
    """A function that multiplies x by each weight."""
    x = Value("x", "fp16", (1, COLUMNS, 1, rows))
    ops, outputs, weights = [], [], {}
    for i, (key, tensor) in enumerate(tensors.items()):
        values = tensor.indices if isinstance(tensor, Lut) else tensor.values
        weights[f"w{i}"] = Weight(key, (*values.shape, 1, 1), role, key)
        outputs.append(Value(f"y{i}", "fp16", (1, values.shape[0], 1, rows)))
        weight = Value(f"w{i}", "fp16", weights[f"w{i}"].shape)
        ops.append(Op("conv", {"x": x, "weight": weight}, (outputs[-1],)))
    return Function(name, (x,), (), tuple(outputs), tuple(ops), weights)


def add(package, key, tensor):
    if isinstance(tensor, Lut):
        return package.add_lut(key, (*tensor.indices.shape, 1, 1), tensor)
    return package.add_dense(key, (*tensor.values.shape, 1, 1), tensor.values)


def write(path, tensors, functions=(("main", 1),), description=None):
    program = Program(tuple(convolution(name, tensors, rows) for name, rows in functions))
    with PackageWriter(path) as package:
        for key, tensor in tensors.items():
            add(package, key, tensor)
        return package.finish(program, description or Description())


def contents(path):
    return {file.relative_to(path): file.read_bytes() for file in path.rglob("*") if file.is_file()}


TENSORS = {
    "model.layers.0.mlp.up_proj.weight": dense(seed=1),
    **{f"model.layers.{bits}.grouped": lut(bits, 8, seed=bits) for bits in (1, 2, 3, 4, 6, 8)},
    **{f"model.layers.{bits}.whole": lut(bits, ROWS, seed=10 + bits) for bits in (1, 2, 3, 4, 6, 8)},
    "odd": lut(3, 1, rows=7, columns=COLUMNS, seed=30),
    "extremes": Dense(np.array([[0, -0.0, 65504, 6e-8, np.inf] * 8], np.float16)),
}


def test_coremltools_decodes_exactly_what_was_stored(tmp_path):
    mil_truth = pytest.importorskip("mil_truth")
    write(tmp_path / "all.mlpackage", TENSORS)
    operations = mil_truth.load(tmp_path / "all.mlpackage").functions["main"].operations
    decoded = {
        op.outputs[0].name: op.materialized_val_inference() if op.op_type.startswith("constexpr") else op.val.val
        for op in operations
        if op.op_type in ("const", "constexpr_lut_to_dense")
    }
    for key, tensor in TENSORS.items():
        suffix = "_palettized" if isinstance(tensor, Lut) else ""
        values = decoded[key.replace(".", "_") + suffix]
        assert values.dtype == np.float16
        np.testing.assert_array_equal(values[:, :, 0, 0].view(np.uint16), tensor.dequantise().view(np.uint16), key)


def test_only_the_promised_constexpr_form(tmp_path):
    from anemone.package.read import read_package

    write(tmp_path / "all.mlpackage", TENSORS)
    (function,) = read_package(tmp_path / "all.mlpackage").functions
    assert {kind for kind in function.operations if kind.startswith("constexpr")} == {"constexpr_lut_to_dense"}


def test_names_of_palettised_weights(tmp_path):
    mil_truth = pytest.importorskip("mil_truth")
    write(tmp_path / "a.mlpackage", {"model.layers.0.q": lut(4, 8)})
    operations = mil_truth.load(tmp_path / "a.mlpackage").functions["main"].operations
    names = [op.name for op in operations]
    for name in ("model_layers_0_q_palettized_indices", "model_layers_0_q_palettized_lut"):
        assert any(found.startswith(name) for found in names), names
    assert "model_layers_0_q_palettized" in names


def test_reported_sizes(tmp_path):
    written = write(tmp_path / "all.mlpackage", TENSORS)
    files = contents(written.path)
    assert written.bytes == sum(map(len, files.values()))
    assert written.weight_bytes == len(files[Path(WEIGHT_FILE)])
    for key, tensor in TENSORS.items():
        assert written.stored[key].nbytes == tensor.nbytes
    assert (written.stored["odd"].format, written.stored["odd"].group) == ("lut3", 1)
    assert written.stored["extremes"].format == "fp16"


def test_size_is_known_beforehand(tmp_path):
    tensors = TENSORS | {"tiny": Dense(np.ones((1, COLUMNS), np.float16))}
    program = Program((convolution("infer", tensors), convolution("prefill", tensors, 4)))
    x = program.functions[0].inputs[0]
    table, total = np.arange(COLUMNS, dtype=np.float16).reshape(1, -1, 1, 1), Value("sum", "fp16", x.shape)
    first = program.functions[0]
    adds = (Op("add", {"x": x, "y": table}, (Value("half", "fp16", x.shape),)),)
    adds += (Op("add", {"x": Value("half", "fp16", x.shape), "y": table + 0}, (total,)),)
    first = Function("infer", first.inputs, (), (*first.outputs, total), first.ops + adds, first.weights)
    program = Program((first, program.functions[1]))

    def encoding(weight):
        tensor = tensors[weight.key]
        return (tensor.bits, len(tensor.table)) if isinstance(tensor, Lut) else None

    with PackageWriter(tmp_path / "a.mlpackage") as package:
        for key, tensor in tensors.items():
            add(package, key, tensor)
        written = package.finish(program, Description())
    assert weight_file_bytes(program, encoding) == written.weight_bytes


def test_weights_in_blocks_make_the_same_package(tmp_path):
    tensors = {"dense": dense(), "lut": lut(6, 8)}
    write(tmp_path / "whole.mlpackage", tensors)
    table, indices = tensors["lut"].table, tensors["lut"].indices
    with PackageWriter(tmp_path / "blocks.mlpackage") as package:
        package.add_dense(
            "dense", (ROWS, COLUMNS, 1, 1), (tensors["dense"].values[i : i + 5] for i in range(0, ROWS, 5))
        )
        blocks = (Lut(indices[i : i + 16], table[i // 8 : i // 8 + 2], 6) for i in range(0, ROWS, 16))
        package.add_lut("lut", (ROWS, COLUMNS, 1, 1), blocks)
        package.finish(Program((convolution("main", tensors),)), Description())
    assert contents(tmp_path / "whole.mlpackage") == contents(tmp_path / "blocks.mlpackage")


def test_two_functions_share_their_weights(tmp_path):
    tensors = {"a": dense(256), "b": lut(4, 8, 256)}
    one = write(tmp_path / "one.mlpackage", tensors, [("infer", 1)])
    two = write(tmp_path / "two.mlpackage", tensors, [("infer", 1), ("prefill", 4), ("score", 4)])
    assert two.weight_bytes <= 1.01 * one.weight_bytes
    assert two.stored == one.stored


def test_two_writes_are_byte_identical(tmp_path):
    described = Description("d", "a", "1", "l", {"b": "1", "a": "2"}, {"x": "what goes in"})
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "p.mlpackage", TENSORS, [("infer", 1), ("prefill", 4)], described)
    assert contents(tmp_path / "one/p.mlpackage") == contents(tmp_path / "two/p.mlpackage")
    reordered = Description("d", "a", "1", "l", {"a": "2", "b": "1"}, {"x": "what goes in"})
    write(tmp_path / "two/p.mlpackage", TENSORS, [("infer", 1), ("prefill", 4)], reordered)
    assert contents(tmp_path / "one/p.mlpackage") == contents(tmp_path / "two/p.mlpackage")


def test_manifest_has_coremltools_structure(tmp_path):
    mil_truth = pytest.importorskip("mil_truth")
    tensors = {"w": dense()}
    write(tmp_path / "ours.mlpackage", tensors)
    program = Program((convolution("main", tensors),))
    mil_truth.write_with_coremltools(program, tensors, tmp_path / "theirs.mlpackage")

    def manifest(name):
        content = json.loads((tmp_path / name / "Manifest.json").read_text())
        root = content.pop("rootModelIdentifier")
        items = content.pop("itemInfoEntries")
        return content, items[root], sorted(items.values(), key=str)

    assert manifest("ours.mlpackage") == manifest("theirs.mlpackage")
    assert sorted(contents(tmp_path / "ours.mlpackage")) == sorted(contents(tmp_path / "theirs.mlpackage"))


def test_description_reaches_the_file(tmp_path):
    ct = pytest.importorskip("coremltools")
    described = Description("short", "someone", "1.2", "Apache-2.0", {"com.key": "value"}, {"x": "rows", "y0": "out"})
    path = write(tmp_path / "a.mlpackage", {"w": dense()}, [("infer", 1), ("prefill", 2)], described).path
    description = ct.utils.load_spec(str(path)).description
    metadata = description.metadata
    assert (metadata.shortDescription, metadata.author) == ("short", "someone")
    assert (metadata.versionString, metadata.license) == ("1.2", "Apache-2.0")
    assert dict(metadata.userDefined) == {"com.key": "value"}
    assert [f.input[0].shortDescription for f in description.functions] == ["rows", "rows"]
    assert description.functions[1].output[0].shortDescription == "out"


def test_package_without_large_values_has_no_weight_file(tmp_path):
    x = Value("x", "fp16", (1, 4))
    y = Value("y", "fp16", (1, 4))
    program = Program((Function("main", (x,), (), (y,), (Op("mul", {"x": x, "y": np.float16(2)}, (y,)),), {}),))
    with PackageWriter(tmp_path / "a.mlpackage") as package:
        written = package.finish(program, Description())
    assert written.weight_bytes == 0
    assert sorted(map(str, contents(written.path))) == [MODEL_FILE, "Manifest.json"]
    assert weight_file_bytes(program, lambda weight: None) == 0


class Stop(Exception):
    pass


@pytest.mark.parametrize("moment", ["first", "in a tensor", "before finish", "no finish"])
@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt])
def test_nothing_is_left_when_writing_stops(tmp_path, moment, error):
    def blocks():
        yield dense().values
        raise error

    def attempt():
        with PackageWriter(tmp_path / "a.mlpackage") as package:
            if moment == "first":
                raise error
            if moment == "in a tensor":
                package.add_dense("w", (2 * ROWS, COLUMNS, 1, 1), blocks())
            package.add_dense("w", (ROWS, COLUMNS, 1, 1), dense().values)
            if moment == "before finish":
                raise error

    if moment == "no finish":
        attempt()
    else:
        with pytest.raises(error):
            attempt()
    assert list(tmp_path.iterdir()) == []


def test_failure_keeps_the_older_package(tmp_path):
    path = write(tmp_path / "a.mlpackage", {"w": dense()}).path
    before = contents(path)
    with pytest.raises(PackageError, match="weights missing"), PackageWriter(path) as package:
        package.finish(Program((convolution("main", {"w": dense()}),)), Description())
    assert contents(path) == before
    assert list(tmp_path.iterdir()) == [path]


def test_newer_package_replaces_the_older(tmp_path):
    path = write(tmp_path / "a.mlpackage", {"w": dense(), "v": dense(seed=3)}).path
    (path / "stray").write_text("not ours")
    write(path, {"w": lut(4, 8)})
    write(tmp_path / "b.mlpackage", {"w": lut(4, 8)})
    assert contents(path) == contents(tmp_path / "b.mlpackage")
    assert len(list(tmp_path.iterdir())) == 2


def test_failed_move_puts_the_older_package_back(tmp_path, monkeypatch):
    path = write(tmp_path / "a.mlpackage", {"w": dense()}).path
    before, rename = contents(path), Path.rename

    def failing(self, target):
        if self.name.endswith(".partial"):
            raise OSError("disk on fire")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="on fire"):
        write(path, {"w": lut(4, 8)})
    assert contents(path) == before
    assert list(tmp_path.iterdir()) == [path]


def test_leftovers_of_a_killed_run_are_cleared(tmp_path):
    (tmp_path / ".a.mlpackage.partial/Data").mkdir(parents=True)
    (tmp_path / ".a.mlpackage.old").mkdir()
    path = write(tmp_path / "a.mlpackage", {"w": dense()}).path
    assert list(tmp_path.iterdir()) == [path]


def test_path_with_a_space(tmp_path):
    path = write(tmp_path / "my models" / "a b.mlpackage", {"w": dense()}).path
    ct = pytest.importorskip("coremltools")
    assert ct.utils.load_spec(str(path)).specificationVersion == 9


def test_what_is_no_package_is_not_replaced(tmp_path):
    (tmp_path / "a.mlpackage").mkdir()
    with pytest.raises(PackageError, match="is not a package"):
        PackageWriter(tmp_path / "a.mlpackage")
    with pytest.raises(PackageError, match=r"must end in \.mlpackage"):
        PackageWriter(tmp_path / "a.mlmodel")


SHAPE = (ROWS, COLUMNS, 1, 1)
BAD_WEIGHTS = {
    "twice": (lambda p: [p.add_dense("w", SHAPE, dense().values) for _ in range(2)], "added twice"),
    "short": (lambda p: p.add_dense("w", SHAPE, dense().values[1:]), "40 values fewer"),
    "type": (lambda p: p.add_dense("w", SHAPE, dense().values.astype(np.float32)), "not float32"),
    "bits": (lambda p: p.add_lut("w", SHAPE, lut(5, 8)), "5-bit indices"),
    "shape": (lambda p: p.add_lut("w", (COLUMNS, ROWS, 1, 1), lut(4, 8)), "got indices of shape"),
    "rows": (lambda p: p.add_lut("w", (2 * ROWS, COLUMNS, 1, 1), lut(4, 8)), "fewer"),
    "group": (lambda p: p.add_lut("w", SHAPE, iter([lut(4, 8, 24), lut(4, 12, 24)])), "tables of 8 rows"),
    "infinite": (
        lambda p: p.add_lut("w", SHAPE, Lut(lut(1, ROWS).indices, np.array([[0, np.inf]], np.float16), 1)),
        "not finite",
    ),
    "none": (lambda p: p.add_lut("w", SHAPE, iter(())), "no values"),
    "inline": (lambda p: p.add_dense("w", (3,), np.ones(4, np.float16)), "3 float16 values"),
}


@pytest.mark.parametrize("name", BAD_WEIGHTS)
def test_contradictions_in_weights_are_refused(tmp_path, name):
    attempt, message = BAD_WEIGHTS[name]
    with pytest.raises(PackageError, match=message), PackageWriter(tmp_path / "a.mlpackage") as package:
        attempt(package)


@pytest.mark.parametrize("role", ["norm", "bias", "table"])
def test_only_matrices_are_palettised(tmp_path, role):
    program = Program((convolution("main", {"w": lut(4, 8)}, role=role),))
    with PackageWriter(tmp_path / "a.mlpackage") as package:
        add(package, "w", lut(4, 8))
        with pytest.raises(PackageError, match=f"is a {role}"):
            package.finish(program, Description())


@pytest.mark.parametrize(("key", "rows", "message"), [("v", ROWS, "nothing reads"), ("w", 8, "was stored")])
def test_weights_must_fit_the_program(tmp_path, key, rows, message):
    program = Program((convolution("main", {"w": dense()}),))
    with PackageWriter(tmp_path / "a.mlpackage") as package:
        add(package, key, dense(rows))
        with pytest.raises(PackageError, match=message):
            package.finish(program, Description())


def test_writing_needs_neither_coremltools_nor_its_binaries(tmp_path):
    code = f"""
import sys, numpy as np
sys.path.insert(0, {str(Path(__file__).parent)!r})
sys.modules["coremltools.libmilstoragepython"] = sys.modules["coremltools.libmodelpackage"] = None
from test_package import dense, write
from anemone.package.read import read_package
from pathlib import Path
read_package(write(Path({str(tmp_path)!r}) / "a.mlpackage", {{"w": dense()}}).path)
assert "coremltools" not in sys.modules and "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
