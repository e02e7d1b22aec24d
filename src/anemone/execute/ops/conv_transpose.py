"""Transposed convolutions of one to three spatial axes."""

from itertools import product
from math import prod

import numpy as np

from anemone.errors import ExecuteError
from anemone.execute.dtypes import Array
from anemone.execute.ops.registry import Kernel, Node, op


@op("conv_transpose")
def conv_transpose(node: Node) -> Kernel:
    """x (N, C, *spatial), weight (C, O / groups, *kernel), bias (O,): each input adds a scaled kernel to the output.

    ``pad`` is cut off the full result; "same" keeps spatial * stride of it, or what ``output_shape`` says.
    """
    spatial = len(node.outputs[0].shape) - 2
    strides = node.ints("strides") or (1,) * spatial
    dilations = node.ints("dilations") or (1,) * spatial
    pad = node.ints("pad") or (0,) * (2 * spatial)
    groups, pad_type = node.int("groups", 1), node.text("pad_type", "valid")
    output_shape = node.ints("output_shape")
    if pad_type not in ("valid", "custom", "same"):
        raise ExecuteError(f"its pad_type {pad_type!r} is not known")
    stored, bias_stored = node.stored("weight"), node.stored("bias")
    if stored is None:
        raise ExecuteError("its operand weight must be given and constant")
    weight = node.weights.array(stored)
    bias = None if bias_stored is None else node.weights.array(bias_stored).reshape(-1, *(1,) * spatial)

    def cut(axis: int, size: int, full: int) -> slice:
        """The part of the full result of one axis that is kept."""
        before = pad[2 * axis] if pad_type == "custom" else 0
        kept = full - before - pad[2 * axis + 1] if pad_type == "custom" else full
        if output_shape is not None:
            kept = output_shape[axis + 2]
        elif pad_type == "same":
            kept = size * strides[axis]
        if pad_type == "same":
            before = max(0, full - kept) // 2
        return slice(before, before + kept)

    def run(x: Array) -> Array:
        full = _transposed(x, weight, strides, dilations, groups)
        parts = [cut(axis, size, n) for axis, (size, n) in enumerate(zip(x.shape[2:], full.shape[2:], strict=True))]
        missing = [max(0, part.stop - n) for part, n in zip(parts, full.shape[2:], strict=True)]
        if any(missing):  # an output shape may ask for more than any input reaches
            full = np.pad(full, [(0, 0), (0, 0), *((0, amount) for amount in missing)])
        result = full[(slice(None), slice(None), *parts)]
        return result if bias is None else result + bias

    return run


def _transposed(x: Array, weight: Array, strides: tuple[int, ...], dilations: tuple[int, ...], groups: int) -> Array:
    """The full result (N, O, (size - 1) * stride + (kernel - 1) * dilation + 1 per axis)."""
    batch, channels = x.shape[:2]
    sizes, kernel, outputs = x.shape[2:], weight.shape[2:], weight.shape[1]
    filters = weight.reshape(groups, channels // groups, -1)  # (G, C/G, O/G * kernel)
    columns = x.reshape(batch, groups, channels // groups, prod(sizes))
    scaled = filters.swapaxes(1, 2) @ columns  # (N, G, O/G * kernel, positions)
    scaled = scaled.reshape(batch, groups * outputs, *kernel, *sizes)
    full = [
        (n - 1) * stride + (k - 1) * dilation + 1
        for n, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True)
    ]
    result = np.zeros((batch, groups * outputs, *full), np.float32)
    for offsets in product(*(range(k) for k in kernel)):
        target = tuple(
            slice(offset * dilation, offset * dilation + (n - 1) * stride + 1, stride)
            for offset, dilation, n, stride in zip(offsets, dilations, sizes, strides, strict=True)
        )
        result[(..., *target)] += scaled[(slice(None), slice(None), *offsets)]  # type: ignore[arg-type]
    return result
