"""Operations that make new tensors: ranges, fills, masks, sorted orders and running sums."""

from math import ceil

import numpy as np

from anemone.execute.dtypes import Array
from anemone.execute.ops.registry import Kernel, Node, kernel, op


@op("range_1d")
def range_1d(node: Node) -> Kernel:
    carrier = node.carrier

    def run(start: float, end: float, step: float) -> Array:
        node.expect((max(0, ceil((end - start) / step)),))
        return np.arange(start, end, step, dtype=carrier)

    return run


@op("fill")
def fill(node: Node) -> Kernel:
    value, carrier = node.float("value", 0.0), node.carrier

    def run(shape: Array) -> Array:
        node.expect(tuple(shape.tolist()))
        return np.full(shape.tolist(), value, carrier)

    return run


@op("fill_like")
def fill_like(node: Node) -> Kernel:
    value, carrier = node.float("value", 0.0), node.carrier
    return lambda ref_tensor: np.full(ref_tensor.shape, value, carrier)


@op("one_hot")
def one_hot(node: Node) -> Kernel:
    axis = node.int("axis", -1)
    on, off = node.float("on_value", 1.0), node.float("off_value", 0.0)
    carrier = node.carrier

    def run(indices: Array, one_hot_vector_size: int) -> Array:
        expanded = np.expand_dims(indices, axis)
        where = axis % expanded.ndim
        node.expect((*expanded.shape[:where], int(one_hot_vector_size), *expanded.shape[where + 1 :]))
        positions = np.arange(int(one_hot_vector_size))
        along = positions.reshape([-1 if a == where else 1 for a in range(expanded.ndim)])
        return np.where(expanded == along, on, off).astype(carrier)

    return run


@op("band_part")
def band_part(node: Node) -> Kernel:
    """Zero outside the diagonals -lower..upper of the last two axes; a negative bound keeps all."""
    lower, upper = node.int("lower", -1), node.int("upper", -1)

    def run(x: Array) -> Array:
        below = np.arange(x.shape[-2])[:, None] - np.arange(x.shape[-1])
        kept = (below <= lower if lower >= 0 else True) & (-below <= upper if upper >= 0 else np.ones_like(below, bool))
        return np.where(kept, x, np.zeros((), x.dtype))

    return run


@op("cumsum")
def cumsum(node: Node) -> Kernel:
    axis = node.int("axis", 0)
    exclusive, backwards = node.flag("exclusive", False), node.flag("reverse", False)

    def run(x: Array) -> Array:
        ordered = np.flip(x, axis) if backwards else x
        result = np.cumsum(ordered, axis=axis, dtype=x.dtype)
        if exclusive:
            result = np.roll(result, 1, axis)
            first = [slice(None)] * x.ndim
            first[axis] = slice(0, 1)
            result[tuple(first)] = 0
        return np.flip(result, axis) if backwards else result

    return run


@kernel("non_zero")
def non_zero(x: Array) -> Array:
    return np.argwhere(x)


def _order(x: Array, axis: int, ascending: bool) -> Array:
    """Positions in sorted order; equal values keep their order."""
    if ascending:
        return np.argsort(x, axis=axis, kind="stable")
    return np.argsort(-(x if x.dtype.kind == "f" else x.astype(np.int64)), axis=axis, kind="stable")


@op("argsort")
def argsort(node: Node) -> Kernel:
    axis, ascending = node.int("axis", -1), node.flag("ascending", False)
    return lambda x: _order(x, axis, ascending)


@op("topk")
def topk(node: Node) -> Kernel:
    """The k largest values, or the smallest when ascending, and their positions; all for k = -1."""
    k, axis, ascending = node.int("k", 1), node.int("axis", -1), node.flag("ascending", False)
    both = len(node.outputs) > 1

    def run(x: Array) -> Array | tuple[Array, Array]:
        count = x.shape[axis] if k == -1 else k
        best = np.take(_order(x, axis, ascending), np.arange(count), axis=axis)
        values = np.take_along_axis(x, best, axis)
        return (values, best) if both else values

    return run
