"""What we serialise is what coremltools serialises, message by message."""

from collections import Counter

import coremltools as ct
import numpy as np
import pytest
from mil_truth import convert, load, normal, write, write_with_coremltools

from anemone.compress.tensor import Dense, Lut
from anemone.graph.ir import Function, Op, Program, Value, Weight
from anemone.package import opset
from anemone.package.read import load_model

H, F, C, D = 32, 64, 16, 16
INT = np.int32


def ints(*values):
    return np.array(values, INT)


def lut(rows, columns, bits, group, seed=0):
    rng = np.random.default_rng(seed)
    table = np.sort(rng.standard_normal((rows // group, 2**bits)).astype(np.float16), axis=1)
    return Lut(rng.integers(0, 2**bits, (rows, columns), dtype=np.uint8), table, bits)


def dense(*shape, seed=0):
    return Dense(np.random.default_rng(seed).standard_normal(shape).astype(np.float16))


def decoder_function(name, rows):
    """A feed-forward pair and one attention row with a state: every way in which operands are bound."""
    x, position = Value("x", "fp16", (1, H, 1, rows)), Value("current_pos", "int32", (1,))
    cache = Value("kv.cache".replace(".", "_"), "fp16", (2, 1, C, D))
    up, down = Weight("layers.0.up", (F, H, 1, 1), "linear", "up"), Weight("layers.0.down", (H, F, 1, 1), "linear", "d")
    gamma, scalar = Weight("norm", (H,), "norm", "norm"), Weight("tiny", (1, 4, 1, 1), "bias", "tiny")
    ops = []

    def op(kind, shape, inputs, dtype="fp16", wish=None):
        value = Value(wish or f"{kind}_{len(ops)}", dtype, shape)
        ops.append(Op(kind, inputs, (value,)))
        return value

    h = op("conv", (1, F, 1, rows), {"x": x, "weight": Value("up", "fp16", up.shape), "pad_type": "valid"})
    h = op("silu", h.shape, {"x": h})
    y = op("conv", (1, H, 1, rows), {"x": h, "weight": Value("down", "fp16", down.shape)}, wish="1.down")
    y = op("layer_norm", y.shape, {"x": y, "axes": ints(1), "epsilon": np.float16(1e-5)})
    halves = Value("left", "fp16", (1, H // 2, 1, rows)), Value("right", "fp16", (1, H // 2, 1, rows))
    ops.append(Op("split", {"x": y, "split_sizes": ints(H // 2, H // 2), "axis": INT(1)}, halves))
    key = op("transpose", (1, 1, rows, D), {"x": halves[0], "perm": ints(0, 2, 3, 1)})
    stop = op("add", (1,), {"x": position, "y": ints(rows)}, "int32")
    begin, end = (ints(0), ints(0), position, ints(0)), (ints(1), ints(1), stop, ints(D))
    begin, end = (op("concat", (4,), {"values": v, "axis": INT(0), "interleave": False}, "int32") for v in (begin, end))
    old = op("read_state", cache.shape, {"input": cache})
    new = op("slice_update", cache.shape, {"x": old, "update": key, "begin": begin, "end": end})
    ops.append(Op("write_state", {"input": cache, "data": new}, ()))
    new = op("read_state", cache.shape, {"input": cache})
    keys = op("slice_by_index", (1, 1, C, D), {"x": new, "begin": ints(0, 0, 0, 0), "end": ints(1, 1, C, D)})
    scores = op("matmul", (1, 1, rows, C), {"x": key, "y": keys, "transpose_y": True})
    scores = op("softmax", scores.shape, {"x": scores, "axis": INT(-1)}, wish="scores")
    tall = op("mul", (1, 4, H, rows), {"x": op("transpose", (1, 1, H, rows), {"x": y, "perm": ints(0, 2, 1, 3)}),
                                       "y": Value("tiny", "fp16", scalar.shape)})  # fmt: skip
    table = np.arange(4 * H, dtype=np.float16).reshape(1, 4, H, 1)
    tall = op("add", tall.shape, {"x": tall, "y": table}, wish="tall")
    weights = {"up": up, "down": down, "tiny": scalar}
    return Function(name, (x, position), (cache,), (scores, tall), tuple(ops), weights), gamma


def decoder(*functions):
    program = Program(tuple(decoder_function(name, rows)[0] for name, rows in functions))
    tensors = {"layers.0.up": dense(F, H, 1, 1), "layers.0.down": lut(H, F, 4, 8), "tiny": dense(1, 4, 1, 1)}
    return program, tensors


def both(tmp_path, program, tensors):
    write(tmp_path / "ours.mlpackage", program, tensors)
    write_with_coremltools(program, tensors, tmp_path / "theirs.mlpackage")
    return normal(tmp_path / "ours.mlpackage"), normal(tmp_path / "theirs.mlpackage")


@pytest.mark.parametrize("functions", [[("main", 1)], [("infer", 1)], [("infer", 1), ("prefill", 4)]])
def test_equal_to_coremltools_builder(tmp_path, functions):
    ours, theirs = both(tmp_path, *decoder(*functions))
    assert ours == theirs


def test_operations_of_a_small_program(tmp_path):
    program, tensors = decoder(("main", 1))
    write(tmp_path / "ours.mlpackage", program, tensors)
    block = load_model(tmp_path / "ours.mlpackage").mlProgram.functions["main"].block_specializations["CoreML8"]
    assert [op.type for op in block.operations if op.type != "const"] == [
        *("conv", "silu", "constexpr_lut_to_dense", "conv", "layer_norm", "split", "transpose", "add"),
        *("concat", "concat", "read_state", "slice_update", "write_state", "read_state", "slice_by_index"),
        *("matmul", "softmax", "transpose", "mul", "add"),
    ]
    assert [op.outputs[0].name for op in block.operations[:8]] == [
        *("layers_0_up", "conv_0_pad_type_0", "conv_0_strides_0", "conv_0_pad_0", "conv_0_dilations_0"),
        *("conv_0_groups_0", "conv_0", "silu_1"),
    ]


def case(kind, shape, result="fp16", /, outputs=1, **inputs):
    return pytest.param(kind, shape, result, outputs, inputs, id=f"{kind}-{'-'.join(inputs)}")


X = Value("x", "fp16", (2, 4, 6, 8))
Y = Value("y", "fp16", (2, 4, 6, 8))
N = Value("n", "int32", (3,))
B = Value("b", "bool", (2, 4, 6, 8))
LINEAR = Value("linear", "fp16", (5, 8))
KERNEL = Value("kernel", "fp16", (3, 4, 1, 1))
BIAS = Value("bias", "fp16", (3,))
SAME = X.shape
CASES = [
    *(case(k, SAME, x=X) for k in ["silu", "sigmoid", "tanh", "exp", "sqrt", "square", "abs", "identity", "relu"]),
    *(case(k, SAME, x=X) for k in ["cos", "sin", "erf", "gelu", "rsqrt", "inverse", "softmax"]),
    *(case(k, SAME, x=X, y=Y) for k in ["add", "sub", "mul", "real_div", "pow", "maximum", "minimum"]),
    *(case(k, SAME, "bool", x=X, y=Y) for k in ["equal", "not_equal", "less", "less_equal", "greater"]),
    case("greater_equal", SAME, "bool", x=X, y=np.float16(0)),
    case("logical_not", SAME, "bool", x=B),
    case("logical_and", SAME, "bool", x=B, y=B),
    case("logical_or", SAME, "bool", x=B, y=B),
    *(case(k, (2, 1, 6, 8), x=X, axes=ints(1), keep_dims=True) for k in ["reduce_mean", "reduce_sum"]),
    *(case(k, (2, 6, 8), x=X, axes=ints(1)) for k in ["reduce_max", "reduce_min"]),
    case("cast", SAME, "int32", x=X, dtype="int32"),
    case("clip", SAME, x=X, alpha=np.float16(-1), beta=np.float16(1)),
    case("concat", (2, 8, 6, 8), values=(X, Y), axis=INT(1)),
    case("conv", (2, 3, 6, 8), x=X, weight=KERNEL),
    case("conv", (2, 3, 6, 8), x=X, weight=KERNEL, bias=BIAS, pad_type="valid"),
    case("expand_dims", (2, 4, 1, 6, 8), x=X, axes=ints(2)),
    case("gather", (3, 4, 6, 8), x=X, indices=N),
    case("gather", (2, 4, 3, 8), x=X, indices=N, axis=INT(2)),
    case("gather_along_axis", SAME, x=X, indices=np.zeros(SAME, INT)),
    case("gelu", SAME, x=X, mode="TANH_APPROXIMATION"),
    case("layer_norm", SAME, x=X, axes=ints(-1), gamma=np.ones(8, np.float16), epsilon=np.float16(1e-6)),
    case("linear", (2, 4, 6, 5), x=X, weight=LINEAR),
    case("matmul", (2, 4, 6, 6), x=X, y=Y, transpose_y=True),
    case("matmul", (2, 4, 8, 8), x=X, y=Y, transpose_x=True),
    case("reduce_argmax", (2, 4, 6), "int32", x=X),
    case("reduce_argmax", (2, 1, 6, 8), "int32", x=X, axis=INT(1), keep_dims=True),
    case("reshape", (2, 24, 8), x=X, shape=ints(2, 24, 8)),
    case("select", SAME, cond=B, a=X, b=Y),
    case("slice_by_index", (1, 4, 6, 8), x=X, begin=ints(0, 0, 0, 0), end=ints(1, 4, 6, 8)),
    case(
        "slice_by_index",
        (1, 4, 3, 8),
        x=X,
        begin=ints(1, 0, 0, 0),
        end=ints(2, 0, 6, 8),
        stride=ints(1, 1, 2, 1),
        begin_mask=np.array([False, True, False, False]),
        end_mask=np.array([False, True, False, True]),
    ),
    case("slice_by_size", (1, 4, 6, 8), x=X, begin=ints(1, 0, 0, 0), size=ints(1, 4, 6, 8)),
    case("slice_update", SAME, x=X, update=Y, begin=ints(0, 0, 0, 0), end=ints(2, 4, 6, 8)),
    case("split", (1, 4, 6, 8), outputs=2, x=X, axis=INT(0), num_splits=INT(2)),
    case("squeeze", (4, 6, 8), x=Value("z", "fp16", (1, 4, 6, 8)), axes=ints(0)),
    case("stack", (2, 2, 4, 6, 8), values=(X, Y), axis=INT(0)),
    case("tile", (2, 8, 6, 8), x=X, reps=ints(1, 2, 1, 1)),
    case("transpose", (2, 6, 8, 4), x=X, perm=ints(0, 2, 3, 1)),
]
WEIGHTS = {v.name: Weight(v.name, v.shape, "linear", v.name) for v in (LINEAR, KERNEL, BIAS)}


@pytest.mark.parametrize(("kind", "shape", "result", "outputs", "inputs"), CASES)
def test_each_operation_as_coremltools_writes_it(tmp_path, kind, shape, result, outputs, inputs):
    operands = [v for operand in inputs.values() for v in (operand if isinstance(operand, tuple) else (operand,))]
    values = list(dict.fromkeys(v for v in operands if isinstance(v, Value)))
    weights = {v.name: WEIGHTS[v.name] for v in values if v.name in WEIGHTS}
    interface = [
        Value(v.name, "fp16" if v.dtype == "bool" else v.dtype, v.shape) for v in values if v.name not in weights
    ]
    ops, replaced = [], {}
    for value in interface:  # a package has no boolean inputs or outputs
        if B.name == value.name:
            replaced[B] = Value("b_bool", "bool", B.shape)
            ops.append(Op("cast", {"x": value, "dtype": "bool"}, (replaced[B],)))
    inputs = {key: replaced.get(v, v) if isinstance(v, Value) else v for key, v in inputs.items()}
    results = tuple(Value(f"out_{i}", result, shape) for i in range(outputs))
    ops.append(Op(kind, inputs, results))
    if result == "bool":
        results = (Value("out", "fp16", shape),)
        ops.append(Op("cast", {"x": ops[-1].outputs[0], "dtype": "fp16"}, results))
    program = Program((Function("main", tuple(interface), (), results, tuple(ops), weights),))
    tensors = {key: dense(*weight.shape) for key, weight in program.weights().items()}
    ours, theirs = both(tmp_path, program, tensors)
    assert ours == theirs


def test_every_operation_of_the_table_has_a_case():
    states = {"read_state", "write_state"}  # in test_equal_to_coremltools_builder
    assert {parameter.values[0] for parameter in CASES} | states == set(opset.SIGNATURES)


@pytest.mark.parametrize("kind", sorted(set(opset.SIGNATURES) - {"write_state"}))
def test_parameters_are_those_of_coremltools(kind):
    from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry

    versions = SSAOpRegistry.core_ops[kind]
    newest = max((v for v in versions if v.value <= opset.SPECIFICATION_VERSION), key=lambda v: v.value)
    types = versions[newest].input_spec.input_types
    signature = opset.SIGNATURES[kind]
    assert {name for name, kind in types.items() if not kind.optional} <= set(signature.required)
    assert sorted(signature.required + signature.optional) == sorted(types)


@pytest.mark.parametrize("tensor", [dense(40, H), lut(40, H, 6, 8), lut(40, H, 8, 40), lut(40, H, 1, 8)])
def test_enumerated_shapes_as_coremltools_writes_them(tmp_path, tensor):
    ids = Value("input_ids", "int32", (1, 1))
    table = Weight("embed.weight", (40, H), "embedding", "embed")
    hidden, scaled = Value("gather_0", "fp16", (1, 1, H)), Value("hidden_states", "fp16", (1, 1, H))
    ops = (
        Op("gather", {"x": Value("embed_weight", "fp16", (40, H)), "indices": ids, "axis": INT(0)}, (hidden,)),
        Op("mul", {"x": hidden, "y": np.float16(5.656)}, (scaled,)),
    )
    flexible = {"input_ids": ((1, 1), (1, 64))}
    function = Function("main", (ids,), (), (scaled,), ops, {"embed_weight": table}, flexible)
    ours, theirs = both(tmp_path, Program((function,)), {"embed.weight": tensor})
    assert ours == theirs


def test_survives_coremltools_round_trip(tmp_path):
    program, tensors = decoder(("infer", 1), ("prefill", 4))
    write(tmp_path / "ours.mlpackage", program, tensors)
    again = convert(load(tmp_path / "ours.mlpackage"), tmp_path / "again.mlpackage")
    assert normal(tmp_path / "ours.mlpackage") == normal(again)


def test_survives_coremltools_default_passes(tmp_path):
    program, tensors = decoder(("infer", 1), ("prefill", 4))
    write(tmp_path / "ours.mlpackage", program, tensors)
    passed = convert(load(tmp_path / "ours.mlpackage"), tmp_path / "passed.mlpackage", ct.PassPipeline.DEFAULT)
    ours, theirs = normal(tmp_path / "ours.mlpackage"), normal(passed)
    assert ours["description"] == theirs["description"]
    for name, function in ours["functions"].items():
        other = theirs["functions"][name]
        assert Counter(op[0] for op in function["operations"]) == Counter(op[0] for op in other["operations"])
        assert function["inputs"] == other["inputs"]
