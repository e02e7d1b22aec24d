"""Each operation against what coremltools infers for constant operands, or against torch."""

import numpy as np
import pytest
import torch
from execute_helpers import Case, case_inputs, coremltools, exists, expected, write_cases

from anemone.execute import Program

RNG = np.random.default_rng(7)
coremltools()


def real(*shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    """Values that fp16 holds exactly, so that both precisions see the same operands."""
    return RNG.uniform(low, high, shape).astype(np.float16).astype(np.float32)


def whole(*shape: int, low: int = -4, high: int = 5) -> np.ndarray:
    return RNG.integers(low, high, shape).astype(np.int32)


def truth(*shape: int) -> np.ndarray:
    return RNG.random(shape) < 0.5


def of_torch(function):
    """A torch function as the truth of a case: arrays in, arrays out."""

    def run(*values, **params):
        tensors = [
            torch.from_numpy(np.asarray(v, np.float32 if np.asarray(v).dtype.kind == "f" else None)) for v in values
        ]
        result = function(*tensors, **params)
        return [r.numpy() for r in result] if isinstance(result, (tuple, list)) else result.numpy()

    return run


X = real(2, 3, 4)
ONES = real(1, 3, 1)

ELEMENTWISE = [
    *[
        Case(kind, {"x": X, "y": y})
        for kind in ("add", "sub", "mul", "real_div", "maximum", "minimum", "mod", "floor_div")
        for y in (real(3, 1, low=0.5), ONES + 3)
    ],
    Case("add", {"x": X}, {"y": np.float32(1.5)}),
    Case("mul", {"y": X}, {"x": np.float32(-0.25)}),
    Case("sub", {"x": whole(4), "y": whole(4)}),
    Case("mul", {"x": whole(2, 4), "y": whole(4)}),
    Case("floor_div", {"x": whole(3, 4), "y": whole(3, 4, low=1)}),
    Case("mod", {"x": whole(3, 4), "y": whole(3, 4, low=1)}),
    Case("pow", {"x": real(3, 4, low=0.1), "y": real(4)}),
    *[
        Case(kind, {"x": x, "y": y})
        for kind in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
        for x, y in ((whole(3, 4), whole(4)), (np.round(X), np.round(real(3, 4))))
    ],
    *[Case(kind, {"x": truth(3, 4), "y": truth(4)}) for kind in ("logical_and", "logical_or", "logical_xor")],
    Case("logical_not", {"x": truth(5)}),
    *[
        Case(kind, {"x": X})
        for kind in ("abs", "atan", "ceil", "cos", "cosh", "exp", "exp2", "floor", "round", "sign", "sin", "sinh")
    ],
    *[Case(kind, {"x": X}) for kind in ("square", "tanh", "erf")],
    Case("round", {"x": np.array([0.5, 1.5, -0.5, 2.5, -2.5], np.float32)}),
    *[Case(kind, {"x": real(6, low=-0.9, high=0.9)}) for kind in ("acos", "asin", "atanh", "tan")],
    Case("sqrt", {"x": real(6, low=0.0)}),
    Case("rsqrt", {"x": real(6, low=0.1)}),
    Case("rsqrt", {"x": real(6, low=0.1)}, {"epsilon": np.float32(0.5)}),
    Case("inverse", {"x": real(6, low=0.1)}, {"epsilon": np.float32(0.25)}),
    Case("log", {"x": real(6, low=0.1)}, {"epsilon": np.float32(0.125)}),
    Case("clip", {"x": X}, {"alpha": np.float32(-0.5), "beta": np.float32(1.0)}),
    Case("threshold", {"x": X}, {"alpha": np.float32(0.25)}),
    Case("select", {"cond": truth(3, 4), "a": real(3, 4), "b": real(3, 4)}),
    Case("select", {"cond": truth(3, 1), "a": whole(3, 4), "b": whole(4)}),
    Case("cast", {"x": X * 3}, {"dtype": "int32"}),
    Case("cast", {"x": whole(3, 4)}, {"dtype": "fp32"}),
    Case("cast", {"x": whole(3, 4)}, {"dtype": "bool"}),
    Case("cast", {"x": truth(3, 4)}, {"dtype": "fp16"}),
    Case("cast", {"x": whole(5, low=0, high=200)}, {"dtype": "uint8"}),
]

ACTIVATION = [
    *[Case(kind, {"x": X * 3}) for kind in ("relu", "relu6", "sigmoid", "softplus", "softsign")],
    Case("silu", {"x": X * 3}, {}, of_torch(torch.nn.functional.silu)),
    Case("leaky_relu", {"x": X}, {"alpha": np.float32(0.1)}),
    Case("thresholded_relu", {"x": X}, {"alpha": np.float32(0.5)}),
    Case("clamped_relu", {"x": X}, {"alpha": np.float32(0.1), "beta": np.float32(0.75)}),
    Case("elu", {"x": X}, {"alpha": np.float32(0.5)}),
    Case("linear_activation", {"x": X}, {"alpha": np.float32(0.5), "beta": np.float32(2.0)}),
    Case("scaled_tanh", {"x": X}, {"alpha": np.float32(0.5), "beta": np.float32(2.0)}),
    Case("sigmoid_hard", {"x": X}, {"alpha": np.float32(0.25), "beta": np.float32(0.5)}),
    Case("prelu", {"x": real(2, 3, 4, 5)}, {"alpha": np.array([0.1, 0.2, 0.3], np.float32)}),
    Case(
        "softplus_parametric",
        {"x": real(2, 3, 4, 5)},
        {"alpha": np.array([0.1, 0.2, 0.3], np.float32), "beta": np.array([1, 2, 3], np.float32)},
    ),
    *[Case("gelu", {"x": X * 2}, {"mode": mode}) for mode in ("EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION")],
    *[Case("softmax", {"x": X * 4}, {"axis": axis}) for axis in (-1, 0, 1)],
]

REDUCE = [
    *[
        Case(kind, {"x": real(2, 3, 4, low=0.5)}, params)
        for kind in (
            "reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod", "reduce_l1_norm",
            "reduce_l2_norm", "reduce_sum_square", "reduce_log_sum", "reduce_log_sum_exp",
        )
        for params in ({"axes": [-1], "keep_dims": True}, {"axes": [0, 2], "keep_dims": False})
    ],
    Case("reduce_sum", {"x": whole(2, 3, 4)}, {"axes": [1]}),
    Case("reduce_max", {"x": X}, {"keep_dims": True, "axes": [0, 1, 2]}),
    *[
        Case(kind, {"x": X}, params)
        for kind in ("reduce_argmax", "reduce_argmin")
        for params in ({"axis": -1}, {"axis": 1, "keep_dims": True})
    ],
]  # fmt: skip

SHAPE = [
    Case("identity", {"x": X}),
    Case("transpose", {"x": X}, {"perm": [2, -3, 1]}),
    Case("reshape", {"x": X}, {"shape": [4, -1]}),
    Case("reshape", {"x": X}, {"shape": [0, 2, -1]}),
    Case("expand_dims", {"x": X}, {"axes": [0, -1]}),
    Case("squeeze", {"x": real(1, 3, 1, 4)}, {"axes": [0, -2]}),
    Case("squeeze", {"x": real(1, 3, 1, 4)}),
    Case("flatten2d", {"x": X}, {"axis": -1}),
    Case("concat", {"values": (X, real(2, 1, 4))}, {"axis": -2}),
    Case("concat", {"values": (whole(2), whole(3))}, {"axis": 0}),
    Case(
        "concat",
        {"values": (real(3, 2), real(3, 2))},
        {"axis": 0, "interleave": True},
        lambda a, b, **_: np.stack([a, b], 1).reshape(6, 2),
    ),
    Case("stack", {"values": (X, X + 1)}, {"axis": 1}),
    Case("stack", {"values": (X, X + 1)}, {"axis": -1}),
    Case("tile", {"x": X}, {"reps": [1, 2, 3]}),
    Case("reverse", {"x": X}, {"axes": [0, -1]}),
    Case("reverse", {"x": X}),
    Case("pad", {"x": X}, {"pad": [1, 2, 0, 3], "mode": "constant", "constant_val": np.float32(2.5)}),
    Case("pad", {"x": X}, {"pad": [1, 2, 2, 1], "mode": "reflect"}),
    Case("pad", {"x": X}, {"pad": [1, 2], "mode": "replicate"}),
    Case("shape", {"x": X}),
]

SLICING = [
    Case("slice_by_index", {"x": X}, {"begin": [0, 1, 1], "end": [2, 3, 3]}),
    Case("slice_by_index", {"x": X}, {"begin": [0, -2, 0], "end": [1, -1, 4], "stride": [1, 1, 2]}),
    Case("slice_by_index", {"x": X}, {"begin": [0, 0, -1], "end": [2, 3, -4], "stride": [1, 1, -2]}),
    Case(
        "slice_by_index",
        {"x": X},
        {"begin": [1, 1, 3], "end": [0, 2, 0], "begin_mask": [True, False, False], "end_mask": [True, False, True]},
    ),
    Case(
        "slice_by_index",
        {"x": X},
        {"begin": [1, 0, 2], "end": [2, 3, 3], "squeeze_mask": [True, False, True]},
    ),
    Case("slice_by_index", {"x": X, "begin": np.array([0, 1, 0], np.int32), "end": np.array([2, 2, 3], np.int32)}),
    Case("slice_by_size", {"x": X}, {"begin": [0, 1, -3], "size": [2, -1, 2]}),
    Case("split", {"x": X}, {"num_splits": 2, "axis": -1}),
    Case("split", {"x": X}, {"split_sizes": [1, 2], "axis": 1}),
    Case("slice_update", {"x": X, "update": real(2, 1, 2)}, {"begin": [0, 1, 1], "end": [2, 2, 3]}),
    Case(
        "slice_update",
        {"x": X, "update": real(2, 2)},
        {
            "begin": [0, 2, 0], "end": [0, 0, 0], "stride": [1, 1, 2],
            "begin_mask": [True, False, True], "end_mask": [True, False, True], "squeeze_mask": [False, True, False],
        },
    ),
    Case(
        "slice_update",
        {"x": X, "update": real(2, 1, 4), "begin": np.array([0, 2, 0], np.int32), "end": np.array([2, 3, 4], np.int32)},
    ),
]  # fmt: skip

CREATE = [
    Case("range_1d", {"start": np.int32(2), "end": np.int32(11), "step": np.int32(3)}),
    Case("range_1d", {"start": np.float32(0), "end": np.float32(2), "step": np.float32(0.5)}),
    Case("fill", {"shape": np.array([2, 3], np.int32)}, {"value": np.float32(1.5)}),
    Case("fill_like", {"ref_tensor": X}, {"value": np.float32(-1.0)}),
    Case(
        "one_hot",
        {"indices": whole(3, low=0)},
        {"one_hot_vector_size": 5, "axis": -1, "on_value": np.float32(2), "off_value": np.float32(-1)},
        lambda i, **_: np.where(np.eye(5)[i] > 0, 2.0, -1.0),
    ),
    *[Case("band_part", {"x": real(2, 4, 4)}, {"lower": a, "upper": b}) for a, b in ((-1, 0), (1, -1), (0, 2))],
    *[
        Case("cumsum", {"x": X}, {"axis": axis, "reverse": reverse, "exclusive": False})
        for axis, reverse in ((0, False), (-1, True))
    ],
    Case(
        "cumsum",
        {"x": X},
        {"axis": 2, "exclusive": True},
        lambda x, **_: np.cumsum(np.concatenate([np.zeros((2, 3, 1)), x[:, :, :-1]], 2), 2),
    ),
    Case("argsort", {"x": X}, {"axis": 1, "ascending": True}),
    Case("argsort", {"x": X}, {"axis": -1}),
    Case("topk", {"x": X}, {"k": 2, "axis": -1}),
    Case("topk", {"x": X}, {"k": 2, "axis": 1, "ascending": True}),
    Case("topk", {"x": whole(4, 5)}, {"k": 1}, of_torch(lambda x, k: (x.max(-1, True)[0], x.argmax(-1, True)))),
]

TABLE = real(5, 3, 4)
BATCHED = real(2, 3, 4, 5)


def scattered(data, indices, updates, mode="add", axis=0):
    result = np.array(data, np.float64)
    for i, index in enumerate(indices):
        key = (*(slice(None),) * axis, index)
        new = updates[(*(slice(None),) * axis, i)]
        result[key] = {
            "add": result[key] + new, "sub": result[key] - new, "mul": result[key] * new, "div": result[key] / new,
            "max": np.maximum(result[key], new), "min": np.minimum(result[key], new), "update": new,
        }[mode]  # fmt: skip
    return result


GATHER = [
    Case("gather", {"x": TABLE, "indices": np.array([4, 0, 2], np.int32)}),
    Case("gather", {"x": TABLE, "indices": np.array([[1, 0], [2, 2]], np.int32)}, {"axis": -2}),
    Case("gather", {"x": TABLE, "indices": np.int32(3)}, {"axis": 2}, lambda x, i, **_: x[:, :, 3]),
    Case("gather", {"x": BATCHED, "indices": whole(2, 3, 2, low=0, high=4)}, {"axis": 2, "batch_dims": 2}),
    Case("gather", {"x": BATCHED, "indices": whole(2, 3, low=0, high=5)}, {"axis": 3, "batch_dims": 1}),
    Case("gather_along_axis", {"x": TABLE, "indices": whole(5, 2, 4, low=0, high=3)}, {"axis": 1}),
    Case("gather_along_axis", {"x": TABLE, "indices": whole(5, 3, 6, low=0, high=4)}, {"axis": -1}),
    Case(
        "gather_nd",
        {"x": TABLE, "indices": np.array([[0, 1], [4, 2]], np.int32)},
        {},
        lambda x, i: np.stack([x[0, 1], x[4, 2]]),
    ),
    Case(
        "gather_nd",
        {"x": BATCHED, "indices": np.array([[[0, 1]], [[2, 3]]], np.int32)},
        {"batch_dims": 1},
        lambda x, i, **_: np.stack([x[0, 0, 1][None], x[1, 2, 3][None]]),
    ),
    *[
        Case(
            "scatter",
            {"data": TABLE, "indices": np.array([3, 1], np.int32), "updates": real(2, 3, 4, low=0.5)},
            {"mode": mode, "axis": 0},
            scattered,
        )
        for mode in ("add", "sub", "mul", "div", "max", "min", "update")
    ],
    Case(
        "scatter",
        {"data": TABLE, "indices": np.array([1, 1], np.int32), "updates": real(5, 2, 4)},
        {"mode": "add", "axis": 1},
        scattered,
    ),
    Case(
        "scatter_along_axis",
        {"data": TABLE, "indices": np.argsort(real(5, 3, 4), 1)[:, :2].astype(np.int32), "updates": real(5, 2, 4)},
        {"axis": 1, "mode": "update"},
    ),
    Case(
        "scatter_along_axis",
        {"data": TABLE, "indices": whole(5, 2, 4, low=0, high=3), "updates": real(5, 2, 4)},
        {"axis": 1, "mode": "add"},
        of_torch(lambda d, i, u, axis, mode: d.scatter_add(axis, i.long(), u)),
    ),
    Case(
        "scatter_nd",
        {"data": TABLE, "indices": np.array([[0, 1], [4, 2]], np.int32), "updates": real(2, 4)},
        {"mode": "update"},
        of_torch(lambda d, i, u, mode: d.index_put((i[:, 0].long(), i[:, 1].long()), u)),
    ),
    Case(
        "scatter_nd",
        {"data": TABLE, "indices": np.array([[1], [1]], np.int32), "updates": real(2, 3, 4)},
        {"mode": "add"},
        of_torch(lambda d, i, u, mode: d.index_put((i[:, 0].long(),), u, accumulate=True)),
    ),
]


def torch_conv(x, weight, bias=None, **p):
    spatial = x.ndim - 2
    function = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)[spatial - 1]
    weight = torch.from_numpy(np.asarray(weight, np.float32))
    bias = None if bias is None else torch.from_numpy(np.asarray(bias, np.float32))
    pad = p.get("pad", [0] * 2 * spatial)
    padded = torch.nn.functional.pad(x, [v for i in reversed(range(spatial)) for v in pad[2 * i : 2 * i + 2]])
    options = {"stride": tuple(p.get("strides", [1] * spatial)), "dilation": tuple(p.get("dilations", [1] * spatial))}
    return function(padded, weight, bias, groups=p.get("groups", 1), **options)


def conv(x, weight, **params):
    return Case("conv", {"x": x}, {"weight": weight, **params}, of_torch(torch_conv))


def same(size, kernel, stride):
    """Padding (before, after) by which an axis keeps ceil(size / stride) elements, the odd one after."""
    total = max(0, (-(-size // stride) - 1) * stride + kernel - size)
    return [total // 2, total - total // 2]


CONV = [
    conv(real(1, 6, 1, 5), real(4, 6, 1, 1)),
    conv(real(2, 6, 3, 5), real(4, 6, 1, 1), bias=real(4)),
    conv(real(1, 6, 7), real(4, 6, 1), bias=real(4)),
    conv(real(1, 4, 9), real(3, 4, 3), strides=[2], pad_type="custom", pad=[1, 2]),
    conv(real(2, 4, 8, 9), real(6, 4, 3, 2), bias=real(6), strides=[2, 1], dilations=[1, 2]),
    conv(real(1, 4, 8, 9), real(6, 2, 3, 3), groups=2, pad_type="custom", pad=[1, 1, 0, 2]),
    conv(real(1, 4, 8, 9), real(8, 1, 3, 3), groups=4, bias=real(8)),
    conv(real(1, 2, 4, 5, 6), real(3, 2, 2, 2, 3), strides=[1, 2, 1]),
    Case("conv", {"x": real(1, 3, 6), "weight": real(2, 3, 2)}, {}, of_torch(torch_conv)),
    *[
        Case(
            "conv",
            {"x": real(1, 3, size, 6)},
            {"weight": real(2, 3, kernel, 3), "pad_type": "same", "strides": [stride, 1]},
            lambda x, weight, strides, pad_type, s=size, k=kernel: of_torch(torch_conv)(
                x, weight=weight, strides=strides, pad=[*same(s, k, strides[0]), 1, 1]
            ),
        )
        for size, kernel, stride in ((7, 3, 1), (8, 3, 2), (7, 4, 2))
    ],
    Case(
        "conv",
        {"x": real(1, 3, 7)},
        {"weight": real(2, 3, 4), "pad_type": "same_lower"},
        lambda x, weight, pad_type: of_torch(torch_conv)(x, weight=weight, pad=same(7, 4, 1)[::-1]),
    ),
]

MATMUL = [
    Case("matmul", {"x": X, "y": real(4, 5)}),
    Case("matmul", {"x": X, "y": real(2, 5, 4)}, {"transpose_y": True}),
    Case("matmul", {"x": real(3, 1, 4, 2), "y": real(2, 4, 5)}, {"transpose_x": True}),
    Case("matmul", {"x": X}, {"y": real(4, 5)}, lambda x, y: x @ y),
    Case("matmul", {"x": X}, {"y": real(5, 4), "transpose_y": True}, lambda x, y, **_: x @ y.T),
    Case("matmul", {"y": X}, {"x": real(5, 3)}, lambda y, x: x @ y),
    Case("linear", {"x": X}, {"weight": real(5, 4), "bias": real(5)}, lambda x, weight, bias: x @ weight.T + bias),
    Case("linear", {"x": real(4)}, {"weight": real(5, 4)}, lambda x, weight: x @ weight.T),
    Case("einsum", {"values": (real(2, 3, 4, 5), real(2, 5, 4, 6))}, {"equation": "bchw,bwhu->bchu"}),
    Case("einsum", {"values": (real(3, 4, 5), real(5, 4, 6))}, {"equation": "chw,whr->chr"}),
    Case(
        "scaled_dot_product_attention",
        {"query": real(1, 2, 3, 4), "key": real(1, 2, 5, 4), "value": real(1, 2, 5, 6)},
        {},
        of_torch(torch.nn.functional.scaled_dot_product_attention),
    ),
    *[
        Case(
            "scaled_dot_product_attention",
            {"query": real(1, 2, 3, 4), "key": real(1, 2, 5, 4), "value": real(1, 2, 5, 6), "attn_mask": mask},
            {},
            of_torch(torch.nn.functional.scaled_dot_product_attention),
        )
        for mask in (real(3, 5), np.tri(3, 5, 1, dtype=bool))
    ],
]


def normalised(function):
    def run(x, epsilon=None, **params):
        given = {k: torch.from_numpy(np.asarray(v, np.float32)) for k, v in params.items() if v is not None}
        return function(x, eps=float(epsilon), **given)

    return of_torch(run)


F = torch.nn.functional
NORM = [
    Case("layer_norm", {"x": X}, {"axes": [-1], "gamma": real(4), "beta": real(4), "epsilon": np.float32(1e-5)}),
    Case("layer_norm", {"x": real(1, 6, 1, 3)}, {"axes": [1], "gamma": real(6), "epsilon": np.float32(1e-4)}),
    Case("layer_norm", {"x": X}, {"axes": [1, 2], "gamma": real(3, 4), "epsilon": np.float32(1e-4)}),
    Case("layer_norm", {"x": X}, {"axes": [2, 0], "epsilon": np.float32(1e-4)}),
    Case(
        "batch_norm",
        {"x": X},
        {"mean": real(3), "variance": real(3, low=0.5), "gamma": real(3), "beta": real(3), "epsilon": np.float32(0.01)},
        normalised(lambda x, eps, mean, variance, gamma, beta: F.batch_norm(x, mean, variance, gamma, beta, eps=eps)),
    ),
    Case(
        "instance_norm",
        {"x": real(2, 3, 4, 5)},
        {"gamma": real(3), "beta": real(3), "epsilon": np.float32(0.01)},
        normalised(lambda x, eps, gamma, beta: F.instance_norm(x, weight=gamma, bias=beta, eps=eps)),
    ),
    Case("l2_norm", {"x": real(2, 3, 4, 5)}, {"epsilon": np.float32(0.01)}),
]

FAMILIES = {
    "elementwise": ELEMENTWISE,
    "activation": ACTIVATION,
    "reduce": REDUCE,
    "shape": SHAPE,
    "slicing": SLICING,
    "create": CREATE,
    "gather": GATHER,
    "conv": CONV,
    "matmul": MATMUL,
    "norm": NORM,
}


def check(cases: list[Case], path, numerics: str, tolerance: float, opset: str) -> None:
    program = Program(write_cases(path / "cases.mlpackage", cases, opset), numerics=numerics)
    results = program.predict(case_inputs(cases))
    for number, case in enumerate(cases):
        for index, value in enumerate(expected(case, opset)):
            got = results[f"y{number}_{index}"]
            where = f"{case.kind} {dict(case.params)} output {index}"
            assert got.shape == (value.shape or got.shape), where
            assert (got.dtype.kind == "f") == (value.dtype.kind == "f"), where
            np.testing.assert_allclose(
                got.astype(np.float64).reshape(value.shape), value.astype(np.float64),
                rtol=tolerance, atol=tolerance, err_msg=where,
            )  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_float32(family, tmp_path):
    check(FAMILIES[family], tmp_path, "float16", 2e-6 if family in ("shape", "slicing") else 2e-5, "iOS18")


@pytest.mark.parametrize("family", FAMILIES)
def test_float16(family, tmp_path):
    cases = [case.typed(np.float16) for case in FAMILIES[family]]
    check(cases, tmp_path, "float16", 4e-3, "iOS18")


@pytest.mark.parametrize("opset", ["iOS15", "iOS16", "iOS17"])
def test_older_op_sets(opset, tmp_path):
    cases = [case for family in FAMILIES.values() for case in family if exists(case, opset)]
    assert len(cases) > 150
    check(cases, tmp_path, "float16", 2e-5, opset)


def test_float16_overflows_and_float32_does_not(tmp_path):
    """fp16 tensors are rounded as they are stored: products beyond 65504 are infinite, tiny ones subnormal or zero."""
    x = np.array([300, -300, 255, 2**-12, 2**-13], np.float16)
    path = write_cases(tmp_path / "cases.mlpackage", [Case("mul", {"x": x, "y": x}), Case("square", {"x": x})])
    inputs = dict.fromkeys(("c0_0", "c0_1", "c1_0"), x)
    wide = Program(path, numerics="float32").predict(inputs)
    np.testing.assert_array_equal(wide["y0_0"], x.astype(np.float32) ** 2)
    assert wide["y0_0"].dtype == np.float32
    with np.errstate(over="ignore"):
        narrow = x * x
    assert np.isinf(narrow[:2]).all()
    results = Program(path).predict(inputs)
    for name in ("y0_0", "y1_0"):
        np.testing.assert_array_equal(results[name], narrow)


def test_rms_norm_as_layer_norm_of_both_signs(tmp_path):
    """Accumulation inside an operation is wide: |x| = 300 over 4096 channels survives, an all-zero row stays zero."""
    x = RNG.choice([-300, 300, 150], (1, 4096, 1, 2)).astype(np.float16)
    x[..., 1] = 0
    both = np.concatenate([x, -x], 1)
    case = Case("layer_norm", {"x": both}, {"axes": [1], "epsilon": np.float16(1e-5)})
    got = Program(write_cases(tmp_path / "norm.mlpackage", [case])).predict({"c0_0": both})["y0_0"][:, :4096]
    wide = x.astype(np.float64)
    wanted = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got[..., 0], wanted[..., 0], rtol=1e-3)
    assert not got[..., 1].any()
