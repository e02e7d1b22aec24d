"""Reading packages, ours and others', and the rules that a program must keep."""

import subprocess
import sys

import numpy as np
import pytest
from test_package import COLUMNS, ROWS, dense, lut, write

from anemone.errors import PackageError
from anemone.graph.ir import Function, Op, Program, Value
from anemone.package.check import breaches
from anemone.package.mlpackage import MODEL_FILE, WEIGHT_FILE, Description, PackageWriter
from anemone.package.proto import MIL, MODEL
from anemone.package.read import Feature, load_model, read_package

TENSORS = {"a": dense(), "b": lut(4, 8), "c": lut(6, ROWS)}


@pytest.fixture
def package(tmp_path):
    described = Description("short", "someone", "1.2", "MIT", {"com.b": "2", "com.a": "1"})
    return write(tmp_path / "p.mlpackage", TENSORS, [("prefill", 4), ("infer", 1)], described).path


def test_reads_what_was_written(package):
    info = read_package(package)
    assert [function.name for function in info.functions] == ["prefill", "infer"]
    function = info.functions[0]
    assert function.inputs == (Feature("x", "fp16", (1, COLUMNS, 1, 4)),)
    assert function.outputs[2] == Feature("y2", "fp16", (1, ROWS, 1, 4))
    assert function.operations == {"const": 16, "conv": 3, "constexpr_lut_to_dense": 2}
    assert [(w.name, w.format, w.functions) for w in info.weights] == [
        ("a", "fp16", ("prefill", "infer")),
        ("b_palettized", "lut4", ("prefill", "infer")),
        ("c_palettized", "lut6", ("prefill", "infer")),
    ]
    assert [w.nbytes for w in info.weights] == [tensor.nbytes for tensor in TENSORS.values()]
    assert info.shared_bytes == sum(tensor.nbytes for tensor in TENSORS.values())
    assert info.weight_bytes == (package / WEIGHT_FILE).stat().st_size
    assert info.model_bytes == (package / MODEL_FILE).stat().st_size
    assert info.formats() == {
        "fp16": (1, TENSORS["a"].nbytes),
        "lut6": (1, TENSORS["c"].nbytes),
        "lut4": (1, TENSORS["b"].nbytes),
    }
    assert info.metadata == {"short_description": "short", "author": "someone", "version": "1.2", "license": "MIT"}
    assert list(info.user_defined.items()) == [("com.a", "1"), ("com.b", "2")]
    assert info.specification_version == 9
    assert info.problems == ()


def test_one_function_shares_nothing(tmp_path):
    info = read_package(write(tmp_path / "p.mlpackage", TENSORS).path)
    assert info.shared_bytes == 0
    assert [function.name for function in info.functions] == ["main"]


def test_reads_packages_of_coremltools(tmp_path):
    ct = pytest.importorskip("coremltools")
    from coremltools.converters.mil.mil import Builder as mb
    from coremltools.optimize.coreml import (
        OpLinearQuantizerConfig,
        OpPalettizerConfig,
        OptimizationConfig,
        linear_quantize_weights,
        palettize_weights,
    )

    kernel = np.random.default_rng(0).standard_normal((64, 64, 1, 1)).astype(np.float32)
    for target in (ct.target.iOS16, ct.target.iOS18):

        @mb.program(input_specs=[mb.TensorSpec((1, 64, 1, 4))], opset_version=target)
        def program(x):
            return mb.conv(x=x, weight=kernel, name="y")

        model = ct.convert(program, minimum_deployment_target=target, skip_model_load=True)
        config = OptimizationConfig(OpPalettizerConfig(mode="uniform", nbits=4, weight_threshold=0))
        palettize_weights(model, config).save(str(tmp_path / "lut.mlpackage"))
        info = read_package(tmp_path / "lut.mlpackage")
        assert [(w.format, w.shape, w.nbytes) for w in info.weights] == [("lut4", (64, 64, 1, 1), 64 * 64 // 2 + 32)]
        config = OptimizationConfig(OpLinearQuantizerConfig(mode="linear_symmetric", weight_threshold=0))
        linear_quantize_weights(model, config).save(str(tmp_path / "affine.mlpackage"))
        (weight,) = read_package(tmp_path / "affine.mlpackage").weights
        assert weight.format in ("affine_dequantize", "blockwise_shift_scale")
        assert weight.nbytes >= 64 * 64
        assert read_package(tmp_path / "affine.mlpackage").problems == ()


def test_what_is_not_a_package(tmp_path):
    with pytest.raises(PackageError, match="no such file"):
        read_package(tmp_path / "absent.mlpackage")
    (tmp_path / "empty.mlpackage").mkdir()
    with pytest.raises(PackageError, match=r"no Manifest\.json"):
        read_package(tmp_path / "empty.mlpackage")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"rootModelIdentifier": "a", "itemInfoEntries": {}}'])
def test_damaged_manifest(package, text):
    (package / "Manifest.json").write_text(text)
    with pytest.raises(PackageError, match="is damaged and names no model"):
        read_package(package)


def test_damaged_or_missing_model(package):
    data = (package / MODEL_FILE).read_bytes()
    (package / MODEL_FILE).write_bytes(data[:-1])
    with pytest.raises(PackageError, match="cannot be parsed"):
        read_package(package)
    (package / MODEL_FILE).write_bytes(b"")
    with pytest.raises(PackageError, match="holds no model"):
        read_package(package)
    (package / MODEL_FILE).unlink()
    with pytest.raises(PackageError, match=r"lacks model\.mlmodel"):
        read_package(package)


@pytest.mark.parametrize("kind", ["neuralNetwork", "pipeline", "glmClassifier"])
def test_other_kinds_of_model(package, kind):
    model = MODEL.Model()
    getattr(model, kind).SetInParent()
    (package / MODEL_FILE).write_bytes(model.SerializeToString())
    with pytest.raises(PackageError, match=f"holds a {kind}, not an ML program"):
        read_package(package)


def test_missing_or_damaged_weight_file(package):
    data = (package / WEIGHT_FILE).read_bytes()
    for damaged in (data[:-1], b"\0" * len(data), data[:200]):
        (package / WEIGHT_FILE).write_bytes(damaged)
        with pytest.raises(PackageError, match=r"weight\.bin is damaged: no whole tensor at byte"):
            read_package(package)
    (package / WEIGHT_FILE).unlink()
    with pytest.raises(PackageError, match=r"weight\.bin is missing"):
        read_package(package)


def test_reading_does_not_import_coremltools(package):
    code = (
        "import sys; from anemone.package.read import read_package; read_package(sys.argv[1]);"
        "assert not {'coremltools', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(package)], check=True)


CACHE = Value("cache", "fp16", (2, 1, 8, 4))
UPDATE = Value("update", "fp16", (1, 1, 1, 4))


def cache_program(update=UPDATE, states=(CACHE,), write_from="new", state=CACHE):
    """Writes one row of a cache and returns the cache."""
    begin, end = np.zeros(4, np.int32), np.array([1, 1, 1, 4], np.int32)
    old, new = Value("old", "fp16", CACHE.shape), Value("new", "fp16", CACHE.shape)
    ops = (
        Op("read_state", {"input": state}, (old,)),
        Op("slice_update", {"x": old, "update": update, "begin": begin, "end": end}, (new,)),
        Op("write_state", {"input": state, "data": {"new": new, "update": update}[write_from]}, ()),
    )
    inputs = (update,) if state in states else (update, state)
    return Program((Function("infer", inputs, states, (new,), ops, {}),))


def finish(path, program):
    with PackageWriter(path) as package:
        return package.finish(program, Description())


def test_a_sound_state_is_accepted(tmp_path):
    written = finish(tmp_path / "p.mlpackage", cache_program())
    (function,) = read_package(written.path).functions
    assert function.states == (Feature("cache", "fp16", (2, 1, 8, 4)),)
    assert function.inputs == (Feature("update", "fp16", (1, 1, 1, 4)),)


WIDE = Value("cache", "fp32", (2, 1, 8, 4))
UNUSED = Value("unused", "fp16", (1, 1, 1, 4))
BREACHES = {
    "a state of another type": (cache_program(states=(WIDE,), state=WIDE), "the state cache is not fp16"),
    "a cache update of another type": (
        cache_program(update=Value("update", "fp32", (1, 1, 1, 4))),
        "slice_update new mixes the types",
    ),
    "a state that is never touched": (cache_program(states=(CACHE, UNUSED)), "used .'cache'.* differ"),
    "a buffer that is no state": (cache_program(states=()), "described ..*used .'cache'.* differ"),
    "a write of another shape": (cache_program(write_from="update"), "write_state gives cache a value of another type"),
    "a read of another shape": (
        cache_program(state=Value("cache", "fp16", (1, 1, 8, 4)), states=(Value("cache", "fp16", (1, 1, 8, 4)),)),
        "read_state old has another type or shape",
    ),
}


@pytest.mark.parametrize("name", BREACHES)
def test_programs_that_would_not_run_are_not_written(tmp_path, name):
    program, message = BREACHES[name]
    with pytest.raises(PackageError, match=message):
        finish(tmp_path / "p.mlpackage", program)
    assert list(tmp_path.iterdir()) == []


def test_states_need_the_newest_specification(tmp_path):
    model = load_model(finish(tmp_path / "p.mlpackage", cache_program()).path)
    assert model.specificationVersion == 9
    assert {f.opset for f in model.mlProgram.functions.values()} == {"CoreML8"}
    assert breaches(model) == []
    model.specificationVersion = 8
    assert "states need specification version 9" in breaches(model)[0]


def test_sizes_of_run_time_values_are_reported(package):
    model = load_model(package)
    block = model.mlProgram.functions["infer"].block_specializations["CoreML8"]
    operation = next(op for op in block.operations if op.type == "conv")
    operation.outputs[0].type.tensorType.dimensions[1].unknown.variadic = False
    assert breaches(model) == [f"infer: {operation.outputs[0].name} (conv) has a size that is known at run time only."]


def test_order_and_names_are_checked(package):
    model = load_model(package)
    block = model.mlProgram.functions["infer"].block_specializations["CoreML8"]
    conv = next(op for op in block.operations if op.type == "conv")
    block.operations.append(conv)
    conv.inputs["x"].arguments[0].name = "nowhere"
    block.outputs.append("never")
    found = breaches(model)
    assert "infer: conv reads nowhere before it is computed." in found
    assert "infer: y0 is computed twice." in found
    assert "infer: the output never is never computed." in found
    assert MIL.Block is type(block)


X, Y = Value("x", "fp16", (1, 4)), Value("y", "fp16", (1, 4))


def single(kind, inputs, output, shapes=None):
    flexible = {"x": shapes} if shapes else {}
    return Program((Function("main", (X,), (), (output,), (Op(kind, inputs, (output,)),), {}, flexible),))


BAD = {
    "kind": (single("frobnicate", {"x": X}, Y), "operation frobnicate is not one"),
    "missing": (single("add", {"x": X}, Y), r"lacks parameters \['y'\]"),
    "unknown": (single("exp", {"x": X, "base": np.float16(2)}, Y), r"unknown parameters \['base'\]"),
    "constant": (single("mul", {"x": X, "y": np.float64(2)}, Y), "type float64 cannot be written"),
    "undefined": (single("add", {"x": X, "y": Value("z", "fp16", (1, 4))}, Y), "reads z, which main does not compute"),
    "name": (single("exp", {"x": X}, Value("y.1", "fp16", (1, 4))), "'y.1' cannot name"),
    "reserved": (single("exp", {"x": X}, Value("state", "fp16", (1, 4))), "'state' cannot name"),
    "same name": (single("exp", {"x": X}, X), "'x' cannot name"),
    "boolean": (single("less", {"x": X, "y": X}, Value("y", "bool", (1, 4))), "y is bool; inputs and outputs"),
}


@pytest.mark.parametrize("name", BAD)
def test_programs_that_cannot_be_written(tmp_path, name):
    program, message = BAD[name]
    with pytest.raises(PackageError, match=message):
        finish(tmp_path / "p.mlpackage", program)


SHAPES = ((1, 4), (1, 8))


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (single("softmax", {"x": X}, Y, SHAPES), "operation softmax .* cannot take an input of flexible shape"),
        (single("exp", {"x": X}, Y, SHAPES), "cannot take"),
        (single("identity", {"x": X}, Y, ((1, 8), (1, 4))), "must begin with its own"),
        (single("identity", {"x": X}, Y, ((1, 4), (4,))), "have its rank"),
        (single("identity", {"x": X}, Value("y", "fp16", (2, 4)), SHAPES), r"has shape \(2, 4\), but identity gives"),
    ],
)
def test_flexible_shapes_that_cannot_be_followed(tmp_path, program, message):
    with pytest.raises(PackageError, match=message):
        finish(tmp_path / "p.mlpackage", program)


def test_flexible_dimensions_follow_transpose_and_broadcast(tmp_path):
    rows, turned = Value("x", "int32", (1, 4)), Value("t", "int32", (4, 1))
    wide = Value("y", "int32", (4, 3))
    ops = (
        Op("transpose", {"x": rows, "perm": np.array([1, 0], np.int32)}, (turned,)),
        Op("add", {"x": turned, "y": np.arange(3, dtype=np.int32)}, (wide,)),
    )
    program = Program((Function("main", (rows,), (), (wide,), ops, {}, {"x": ((1, 4), (1, 8))}),))
    path = finish(tmp_path / "p.mlpackage", program).path
    (function,) = read_package(path).functions
    assert function.inputs == (Feature("x", "int32", (1, 4), ((1, 4), (1, 8))),)
    assert function.outputs == (Feature("y", "int32", ()),)
    block = load_model(path).mlProgram.functions["main"].block_specializations["CoreML8"]
    dimensions = block.operations[-1].outputs[0].type.tensorType.dimensions
    assert [d.WhichOneof("dimension") for d in dimensions] == ["unknown", "constant"]
