"""Each operation against what coremltools infers for constant operands, or against torch."""

import numpy as np
import pytest
import torch
from execute_helpers import Case, Numbers, check_precisions, coremltools, of_torch, write_cases

from anemone.execute import Program

coremltools()
NUMBERS = Numbers(7)
real, whole, truth = NUMBERS.real, NUMBERS.whole, NUMBERS.truth
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

FAMILIES = {
    "elementwise": ELEMENTWISE,
    "activation": ACTIVATION,
    "reduce": REDUCE,
    "shape": SHAPE,
    "slicing": SLICING,
}


@pytest.mark.parametrize("opset", ["iOS15", "iOS16", "iOS17", "iOS18"])
@pytest.mark.parametrize("family", FAMILIES)
def test_family(family, opset, tmp_path):
    check_precisions(FAMILIES[family], tmp_path, opset)


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
