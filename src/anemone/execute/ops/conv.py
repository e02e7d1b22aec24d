"""Convolutions of one to three spatial axes."""

from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from anemone.errors import ExecuteError
from anemone.execute.dtypes import Array
from anemone.execute.ops.registry import Kernel, Node, op

PAD_TYPES = ("valid", "custom", "same", "same_lower")
_COLUMNS = 1 << 19  # elements of the patch matrix built at once: 2 MB


@op("conv")
def conv(node: Node) -> Kernel:
    """x (N, C, *spatial), weight (O, C / groups, *kernel), bias (O,)"""
    spatial = len(node.outputs[0].shape) - 2
    strides = node.ints("strides") or (1,) * spatial
    dilations = node.ints("dilations") or (1,) * spatial
    groups = node.int("groups", 1)
    pad_type = node.text("pad_type", "valid")
    pad = node.ints("pad") or (0,) * (2 * spatial)
    if pad_type not in PAD_TYPES:
        raise ExecuteError(f"its pad_type {pad_type!r} is not known")
    plain = strides == dilations == (1,) * spatial and groups == 1 and (pad_type != "custom" or not any(pad))
    weight = node.stored("weight")
    if weight is not None and plain and prod(weight.shape[2:]) == 1:
        return _pointwise(node)

    def run(x: Array, weight: Array, bias: Array | None = None) -> Array:
        kernel = weight.shape[2:]
        padding = paddings(x.shape[2:], kernel, strides, dilations, pad_type, pad)
        if any(before or after for before, after in padding):
            x = np.pad(x, [(0, 0), (0, 0), *padding])
        result = _convolve(x, weight, strides, dilations, groups)
        if bias is not None:
            result += bias.reshape(-1, *(1,) * spatial)
        return result

    return run


def _pointwise(node: Node) -> Kernel:
    """A 1x1 kernel: one matrix product per batch item, (O, C) @ (C, spatial)."""
    stored = node.stored("weight")
    assert stored is not None
    matrix = node.weights.matrix(stored)
    bias_stored = node.stored("bias")
    bias = None if bias_stored is None else node.weights.array(bias_stored).reshape(-1, 1)

    def one(x: Array) -> Array:
        result = matrix.times(x)
        if bias is not None:
            result += bias
        return result

    def run(x: Array) -> Array:
        flat = x.reshape(x.shape[0], x.shape[1], -1)
        if len(flat) == 1:
            return one(flat[0]).reshape(1, -1, *x.shape[2:])
        # batch items side by side, so that the weight is read once
        wide = np.ascontiguousarray(flat.transpose(1, 0, 2)).reshape(x.shape[1], -1)
        result = one(wide).reshape(-1, len(flat), flat.shape[2])
        return result.transpose(1, 0, 2).reshape(len(flat), -1, *x.shape[2:])

    return run


def paddings(
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    pad_type: str,
    pad: tuple[int, ...],
) -> list[tuple[int, int]]:
    """Zeros (before, after) on each spatial axis. "same" puts the odd one after, "same_lower" before."""
    if pad_type == "valid":
        return [(0, 0)] * len(size)
    if pad_type == "custom":
        return list(zip(pad[::2], pad[1::2], strict=True))
    result = []
    for n, k, stride, dilation in zip(size, kernel, strides, dilations, strict=True):
        total = max(0, (-(-n // stride) - 1) * stride + (k - 1) * dilation + 1 - n)
        less, more = total // 2, total - total // 2
        result.append((less, more) if pad_type == "same" else (more, less))
    return result


def _convolve(x: Array, weight: Array, strides: tuple[int, ...], dilations: tuple[int, ...], groups: int) -> Array:
    """Without padding: patches as columns of a matrix, one product per group."""
    windows: Any = _windows(x, weight.shape[2:], strides, dilations)
    spatial = weight.ndim - 2
    if weight.shape[1] == 1 and groups > 1:
        return _depthwise(windows, weight, groups)
    batch, channels = x.shape[:2]
    out = windows.shape[-spatial:]
    filters = weight.reshape(groups, len(weight) // groups, -1)  # (G, O/G, C/G * kernel)
    result = np.empty((batch, len(weight), *out), np.float32)
    rows = max(1, _COLUMNS // max(1, prod(out[1:]) * channels * prod(weight.shape[2:])))
    for item in range(batch):
        for start in range(0, out[0], rows):
            part = windows[(item, ..., slice(start, start + rows), *(slice(None),) * (spatial - 1))]
            size = part.shape[-spatial:]
            columns = part.reshape(groups, filters.shape[2], prod(size))  # (G, C/G * kernel, positions)
            result[item, :, start : start + rows] = (filters @ columns).reshape(len(weight), *size)
    return result


def _windows(x: Array, kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]) -> Array:
    """A view (N, C, *kernel, *out) of x: what each tap of the kernel sees."""
    extents = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    found: Any = sliding_window_view(x, extents, axis=tuple(range(2, x.ndim)))  # type: ignore[call-overload]
    found = found[(slice(None), slice(None), *(slice(None, None, s) for s in strides))]
    found = found[(..., *(slice(None, None, d) for d in dilations))]
    return np.moveaxis(found, range(2, x.ndim), range(-len(kernel), 0))


def _depthwise(windows: Array, weight: Array, groups: int) -> Array:
    """One input channel per group: scaled copies of it, tap by tap."""
    spatial = weight.ndim - 2
    filters = weight.reshape(groups, -1, *weight.shape[2:], *(1,) * spatial)  # (G, O/G, *kernel, 1...)
    out = windows.shape[-spatial:]
    result = np.zeros((len(windows), groups, filters.shape[1], *out), np.float32)
    for tap in np.ndindex(*weight.shape[2:]):
        result += filters[(slice(None), slice(None), *tap)] * windows[(slice(None), slice(None), None, *tap)]
    return result.reshape(len(windows), len(weight), *out)
