"""Pooling over windows of one to three spatial axes, one axis after the other."""

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from anemone.errors import ExecuteError
from anemone.execute.dtypes import Array
from anemone.execute.ops.conv import PAD_TYPES, paddings
from anemone.execute.ops.registry import Kernel, Node, op

Windows = tuple[int, int, int]  # size, stride, how many


def _windows(size: int, kernel: int, stride: int, before: int, after: int, ceil_mode: bool) -> Windows:
    """With ``ceil_mode`` a last window may reach beyond the padding, but not begin there."""
    room = size + before + after - kernel
    count = (-(-room // stride) if ceil_mode else room // stride) + 1
    if ceil_mode and before + after > 0 and (count - 1) * stride >= size + before:
        count -= 1
    return kernel, stride, count


def _along(x: Array, axis: int, windows: Windows, combine: Callable[..., Any]) -> Array:
    """The elements of each window on this axis, combined."""
    kernel, stride, count = windows
    parts = []
    for offset in range(kernel):
        key = [slice(None)] * x.ndim
        key[axis] = slice(offset, offset + (count - 1) * stride + 1, stride)
        parts.append(x[tuple(key)])
    result = parts[0].copy()
    for part in parts[1:]:
        combine(result, part, out=result)
    return result


@op("max_pool", "avg_pool", "l2_pool")
def pool(node: Node) -> Kernel:
    """x (N, C, *spatial). Averages count the padding unless told not to, and never what lies beyond it."""
    kernel = node.ints("kernel_sizes") or ()
    strides = node.ints("strides") or (1,) * len(kernel)
    pad_type, pad = node.text("pad_type", "valid"), node.ints("pad") or (0,) * (2 * len(kernel))
    ceil_mode, exclude = node.flag("ceil_mode", False), node.flag("exclude_padding_from_average", False)
    if pad_type not in PAD_TYPES:
        raise ExecuteError(f"its pad_type {pad_type!r} is not known")
    kind = node.op.kind
    fill, combine = (-np.inf, np.maximum) if kind == "max_pool" else (0, np.add)
    ones = (1,) * len(kernel)

    def run(x: Array) -> Array:
        sizes = x.shape[2:]
        padding = paddings(sizes, kernel, strides, ones, pad_type, pad)
        windows = [
            _windows(n, k, s, *amounts, ceil_mode)
            for n, k, s, amounts in zip(sizes, kernel, strides, padding, strict=True)
        ]
        filled = [
            (before, max(after, (count - 1) * s + k - n - before))
            for n, (before, after), (k, s, count) in zip(sizes, padding, windows, strict=True)
        ]
        result = np.square(x) if kind == "l2_pool" else x
        if any(any(amounts) for amounts in filled):
            result = np.pad(result, [(0, 0), (0, 0), *filled], constant_values=fill)
        for axis, along in enumerate(windows):
            result = _along(result, axis + 2, along, combine)
        if kind == "avg_pool":
            counts = [
                _counts(n, amounts, extent, along, exclude)
                for n, amounts, extent, along in zip(sizes, padding, filled, windows, strict=True)
            ]
            result /= reduce(np.multiply.outer, counts)
        return np.sqrt(result) if kind == "l2_pool" else result

    return run


def _counts(size: int, padding: tuple[int, int], filled: tuple[int, int], windows: Windows, exclude: bool) -> Array:
    """How many elements each window of one axis averages over, as fp32."""
    counted = np.zeros(size + sum(filled), np.float32)
    before, after = padding
    counted[before if exclude else 0 : before + size + (0 if exclude else after)] = 1
    return _along(counted, 0, windows, np.add)
