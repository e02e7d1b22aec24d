"""Activations as 8-bit integers: quantize and dequantize, with one scale or one per position of an axis."""

# mypy: disable-error-code="no-any-return"

import numpy as np

from anemone.execute.dtypes import Array
from anemone.execute.ops.registry import Kernel, Node, op


def _spread(node: Node, name: str, rank: int) -> Array:
    """A constant scalar, or a vector along ``axis``, as fp32 that broadcasts to an operand of this rank."""
    value = node.static(name)
    if value is None:
        return np.float32(0)  # type: ignore[return-value]
    if value.ndim == 0:
        return value.astype(np.float32)
    axis = node.int("axis", 0) % rank
    return value.astype(np.float32).reshape([-1 if a == axis else 1 for a in range(rank)])


@op("quantize")
def quantize(node: Node) -> Kernel:
    """clip(round(input / scale) + zero_point), halves to even."""
    rank, carrier = len(node.outputs[0].shape), node.carrier
    assert carrier is not None
    scale, zero_point, limits = _spread(node, "scale", rank), _spread(node, "zero_point", rank), np.iinfo(carrier)
    return lambda input: np.clip(np.rint(input / scale) + zero_point, limits.min, limits.max).astype(carrier)


@op("dequantize")
def dequantize(node: Node) -> Kernel:
    """scale * (input - zero_point)"""
    rank = len(node.outputs[0].shape)
    scale, zero_point = _spread(node, "scale", rank), _spread(node, "zero_point", rank)
    return lambda input: (np.asarray(input, np.float32) - zero_point) * scale
