"""Pooling and transposed convolution against torch."""

import numpy as np
import pytest
import torch
from execute_helpers import Case, Numbers, by, check, check_precisions, coremltools, of_torch, published

coremltools()
NUMBERS = Numbers(21)
real = NUMBERS.real
F = torch.nn.functional


def same(size, kernel, stride, lower):
    """Padding by which an axis keeps ceil(size / stride) elements; the odd one after, or before for "same_lower"."""
    total = max(0, (-(-size // stride) - 1) * stride + kernel - size)
    return [total - total // 2, total // 2] if lower else [total // 2, total - total // 2]


def padded(x, pad, value=0.0):
    return F.pad(x, [v for i in reversed(range(x.ndim - 2)) for v in pad[2 * i : 2 * i + 2]], value=value)


def max_pool(x, kernel_sizes, strides, pad, ceil_mode):
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[x.ndim - 3]
    if ceil_mode:  # symmetric then, as torch has it
        return pool(x, kernel_sizes, strides, pad[::2], ceil_mode=True)
    return pool(padded(x, pad, -torch.inf), kernel_sizes, strides)


def avg_pool(x, kernel_sizes, strides, pad, ceil_mode, exclude_padding_from_average=False):
    pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[x.ndim - 3]
    if ceil_mode:
        how = {"ceil_mode": True, "count_include_pad": not exclude_padding_from_average}
        return pool(x, kernel_sizes, strides, pad[::2], **how)
    result = pool(padded(x, pad), kernel_sizes, strides)
    if exclude_padding_from_average:
        result = result / pool(padded(torch.ones_like(x), pad), kernel_sizes, strides)
    return result


def l2_pool(x, kernel_sizes, strides, pad, ceil_mode):
    pool = (F.lp_pool1d, F.lp_pool2d)[x.ndim - 3]
    if ceil_mode:  # torch scales partial windows up, so here they end in zeros
        pad = [v for s in strides for v in (0, s - 1)]
    return pool(padded(x, pad), 2.0, kernel_sizes[0] if x.ndim == 3 else kernel_sizes, strides)


POOLS = {"max_pool": max_pool, "avg_pool": avg_pool, "l2_pool": l2_pool}


def pool(kind, x, kernel_sizes, strides=None, pad_type="valid", pad=None, **params):
    def truth(x, kernel_sizes, pad_type, strides=None, pad=None, ceil_mode=False, **params):
        strides = strides or [1] * len(kernel_sizes)
        amounts = pad or [0] * (2 * len(kernel_sizes))
        if pad_type.startswith("same"):
            axes = zip(x.shape[2:], kernel_sizes, strides, strict=True)
            amounts = [v for n, k, s in axes for v in same(n, k, s, pad_type == "same_lower")]
        return POOLS[kind](x, kernel_sizes, strides, amounts, ceil_mode, **params)

    given = {"kernel_sizes": kernel_sizes, "pad_type": pad_type, **params}
    given |= {"strides": strides} if strides else {}
    given |= {"pad": pad} if pad else {}
    return Case(kind, {"x": x}, given, of_torch(truth))


POOL = [
    *[
        case
        for kind in POOLS
        for case in (
            pool(kind, real(2, 3, 9), [3]),
            pool(kind, real(1, 3, 8), [3], [2], "same"),
            pool(kind, real(1, 3, 8, 9), [2, 3], [2, 1]),
            pool(kind, real(1, 3, 8, 9), [3, 2], [2, 2], "custom", [1, 1, 0, 1]),
            pool(kind, real(2, 3, 8, 7), [3, 2], [2, 1], "same"),
            pool(kind, real(2, 3, 8, 7), [4, 2], [1, 3], "same_lower"),
            pool(kind, real(1, 2, 7, 7), [7, 7]),
        )
    ],
    *[
        case
        for kind in ("max_pool", "avg_pool")
        for case in (
            pool(kind, real(1, 2, 5, 6, 7), [2, 2, 3], [1, 2, 2]),
            pool(kind, real(1, 2, 4, 5, 6), [2, 3, 2], [2, 1, 1], "custom", [1, 1, 0, 1, 1, 0]),
            pool(kind, real(1, 2, 8, 9), [3, 2], [2, 2], ceil_mode=True),
            pool(kind, real(1, 2, 8, 8), [3, 3], [2, 3], "custom", [1, 1, 1, 1], ceil_mode=True),
            pool(kind, real(1, 2, 10), [3], [3], "custom", [1, 1], ceil_mode=True),
        )
    ],
    pool("l2_pool", real(1, 2, 8, 9), [3, 2], [2, 2], ceil_mode=True),
    *[
        pool("avg_pool", x, kernel, strides, pad_type, pad, exclude_padding_from_average=True)
        for x, kernel, strides, pad_type, pad in (
            (real(1, 2, 7), [3], [2], "custom", [1, 1]),
            (real(1, 2, 7, 6), [3, 2], [2, 1], "custom", [2, 1, 1, 0]),
            (real(1, 2, 7, 6), [3, 4], [2, 2], "same", None),
            (real(1, 2, 4, 5, 6), [2, 2, 2], [2, 2, 2], "same", None),
        )
    ],
    pool("avg_pool", real(1, 2, 8, 8), [3, 3], [2, 2], "custom", [1, 1, 1, 1], ceil_mode=True,
         exclude_padding_from_average=True),
]  # fmt: skip


def torch_transpose(x, weight, bias=None, strides=None, dilations=None, groups=1, pad_type="valid", **given):
    """The full result from torch, cut as MIL's documentation says."""
    spatial = x.ndim - 2
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[spatial - 1]
    weight = torch.from_numpy(np.asarray(weight, np.float32))
    bias = None if bias is None else torch.from_numpy(np.asarray(bias, np.float32))
    strides = strides or [1] * spatial
    output_padding = [s - 1 for s in strides]
    full = function(x, weight, bias, strides, 0, output_padding, groups, dilations or [1] * spatial)
    pad, shape = given.get("pad", [0] * (2 * spatial)), given.get("output_shape")
    for axis in range(spatial):
        size = full.shape[axis + 2] - output_padding[axis]
        begin, kept = pad[2 * axis], size - pad[2 * axis] - pad[2 * axis + 1]
        if pad_type == "same":
            kept = x.shape[axis + 2] * strides[axis]
            begin = (size - kept) // 2
        kept = kept if shape is None else shape[axis + 2]
        full = full.narrow(axis + 2, begin, kept)
    return full


def transpose(x, weight, **params):
    return Case("conv_transpose", {"x": x}, {"weight": weight, **params}, of_torch(torch_transpose))


TRANSPOSE = [
    transpose(real(1, 4, 5), real(4, 3, 3)),
    transpose(real(2, 4, 5), real(4, 3, 3), bias=real(3), strides=[2]),
    transpose(real(1, 4, 5, 6), real(4, 3, 2, 3), strides=[2, 3], bias=real(3)),
    transpose(real(1, 4, 5, 6), real(4, 3, 3, 3), strides=[2, 1], pad_type="custom", pad=[1, 1, 0, 2]),
    transpose(real(1, 4, 5, 6), real(4, 2, 3, 3), groups=2, strides=[2, 2]),
    transpose(real(1, 4, 5, 6), real(4, 1, 3, 3), groups=4, bias=real(4), pad_type="custom", pad=[1, 0, 1, 1]),
    transpose(real(1, 2, 4, 5), real(2, 3, 3, 2), dilations=[2, 3], strides=[1, 2]),
    transpose(real(1, 2, 4, 5), real(2, 3, 3, 4), strides=[2, 2], pad_type="same"),
    transpose(real(1, 2, 4, 5), real(2, 3, 3, 3), strides=[2, 2], pad_type="custom", pad=[1, 1, 1, 1],
              output_shape=[1, 3, 8, 10]),
    transpose(real(1, 2, 3, 4, 3), real(2, 3, 2, 3, 2), strides=[2, 1, 2], bias=real(3)),
    Case(
        "conv_transpose",
        {"x": real(1, 1, 2, 2)},
        {"weight": np.ones((1, 1, 2, 2), np.float32), "strides": [2, 2]},
        by("numpy", lambda x, **_: np.kron(x[0, 0], np.ones((2, 2)))[None, None]),
    ),
]  # fmt: skip

FAMILIES = {"pool": POOL, "transpose": TRANSPOSE}


@pytest.mark.parametrize("opset", ["iOS15", "iOS18"])
@pytest.mark.parametrize("family", FAMILIES)
def test_family(family, opset, tmp_path):
    check_precisions(FAMILIES[family], tmp_path, opset)


RAMP = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 2, 2, 2)
LINE = np.arange(1, 8, dtype=np.float32).reshape(1, 1, 7)
EIGHTHS = [0.125, 0.375, 0.5, 1.25, 0.75, 1.75, 2, 4.5]
PUBLISHED = [
    Case(kind, {"x": x}, {"kernel_sizes": kernel, **params}, published(np.reshape(values, shape)))
    for kind, x, kernel, params, values, shape in (
        ("avg_pool", RAMP, [2, 2, 2], {"pad_type": "same_lower"}, EIGHTHS, RAMP.shape),
        ("avg_pool", RAMP[:, :, 0], [2, 2], {"pad_type": "same_lower"}, [0.25, 0.75, 1, 2.5], (1, 1, 2, 2)),
        ("l2_pool", RAMP[:, :, 0], [2, 2], {"pad_type": "same_lower"}, np.sqrt([1, 5, 10, 30]), (1, 1, 2, 2)),
        ("l2_pool", LINE, [3], {"pad_type": "same", "strides": [3]}, np.sqrt([5, 50, 85]), (1, 1, 3)),
        ("max_pool", LINE, [3], {"pad_type": "same", "strides": [3]}, [2.0, 5.0, 7.0], (1, 1, 3)),
    )
]


def test_published_values(tmp_path):
    """Odd paddings before the values, windows that reach beyond, 2-norms."""
    check(PUBLISHED, tmp_path, 1e-5)
