"""Operations that combine tensors: products, convolutions, norms, gathers, sorts; against coremltools or torch."""

import numpy as np
import pytest
import torch
from execute_helpers import Case, Numbers, check_precisions, coremltools, of_torch, write_cases

from anemone.execute import Program

coremltools()
NUMBERS = Numbers(8)
real, whole, truth = NUMBERS.real, NUMBERS.whole, NUMBERS.truth
X = real(2, 3, 4)

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
    Case("non_zero", {"x": np.round(X)}),
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
    "create": CREATE,
    "gather": GATHER,
    "conv": CONV,
    "matmul": MATMUL,
    "norm": NORM,
}


@pytest.mark.parametrize("opset", ["iOS15", "iOS16", "iOS17", "iOS18"])
@pytest.mark.parametrize("family", FAMILIES)
def test_family(family, opset, tmp_path):
    check_precisions(FAMILIES[family], tmp_path, opset)


def test_rms_norm_as_layer_norm_of_both_signs(tmp_path):
    """Accumulation inside an operation is wide: |x| = 300 over 4096 channels survives, an all-zero row stays zero."""
    x = NUMBERS.rng.choice([-300, 300, 150], (1, 4096, 1, 2)).astype(np.float16)
    x[..., 1] = 0
    both = np.concatenate([x, -x], 1)
    case = Case("layer_norm", {"x": both}, {"axes": [1], "epsilon": np.float16(1e-5)})
    got = Program(write_cases(tmp_path / "norm.mlpackage", [case])).predict({"c0_0": both})["y0_0"][:, :4096]
    wide = x.astype(np.float64)
    wanted = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got[..., 0], wanted[..., 0], rtol=1e-3)
    assert not got[..., 1].any()
