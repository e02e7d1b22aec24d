"""Slices by MIL's begin, end, stride and masks: reading them and updating them."""

from collections.abc import Callable, Sequence

import numpy as np

from anemone.errors import ExecuteError
from anemone.execute.dtypes import Array
from anemone.execute.ops.registry import Kernel, Node, op

Key = tuple[slice | int, ...]


def _key_maker(node: Node) -> Callable[[Sequence[int], Sequence[int]], Key]:
    """From begin and end to an index, with the node's constant strides and masks."""
    stride, begin_mask = node.ints("stride"), node.ints("begin_mask")
    end_mask, squeeze_mask = node.ints("end_mask"), node.ints("squeeze_mask")

    def make(begin: Sequence[int], end: Sequence[int]) -> Key:
        key: list[slice | int] = []
        for axis, (first, last) in enumerate(zip(begin, end, strict=True)):
            start = None if begin_mask and begin_mask[axis] else first
            if squeeze_mask and squeeze_mask[axis]:
                key.append(start or 0)
                continue
            stop = None if end_mask and end_mask[axis] else last
            key.append(slice(start, stop, stride[axis] if stride else None))
        return tuple(key)

    return make


def _static_key(node: Node, make: Callable[[Sequence[int], Sequence[int]], Key]) -> Key | None:
    if node.stored("begin") is None or node.stored("end") is None:
        return None
    return make(node.ints("begin") or (), node.ints("end") or ())


@op("slice_by_index", moves=True)
def slice_by_index(node: Node) -> Kernel:
    make = _key_maker(node)
    key = _static_key(node, make)
    if key is not None:
        return lambda x: x[key]
    return lambda x, begin, end: x[make(begin.tolist(), end.tolist())]


@op("slice_update", moves=True)
def slice_update(node: Node) -> Kernel:
    make = _key_maker(node)
    static = _static_key(node, make)
    in_place = node.in_place

    def updated(x: Array, update: Array, key: Key) -> Array:
        result = x if in_place else x.copy()
        target = result[key]
        if target.size != update.size:
            raise ExecuteError(f"the slice has shape {list(target.shape)}, but the update {list(update.shape)}")
        result[key] = update.reshape(target.shape)
        return result

    if static is not None:
        return lambda x, update: updated(x, update, static)
    return lambda x, update, begin, end: updated(x, update, make(begin.tolist(), end.tolist()))


@op("slice_by_size", moves=True)
def slice_by_size(node: Node) -> Kernel:
    """``size`` elements from ``begin`` on; -1 takes all that are left."""

    def run(x: Array, begin: Array, size: Array) -> Array:
        key = []
        for axis, (first, count) in enumerate(zip(begin.tolist(), size.tolist(), strict=True)):
            first += x.shape[axis] if first < 0 else 0
            key.append(slice(first, None if count == -1 else first + count))
        return x[tuple(key)]

    return run


@op("split", moves=True)
def split(node: Node) -> Kernel:
    axis = node.int("axis", 0)
    sizes = node.ints("split_sizes")
    parts = node.int("num_splits", len(node.outputs))
    where = np.cumsum(sizes)[:-1].tolist() if sizes else parts

    def run(x: Array) -> tuple[Array, ...] | Array:
        if sizes and sum(sizes) != x.shape[axis]:
            raise ExecuteError(f"split_sizes {list(sizes)} do not add up to the {x.shape[axis]} of axis {axis}")
        pieces = np.split(x, where, axis=axis)
        return tuple(pieces) if len(pieces) > 1 else pieces[0]

    return run
