"""Reading and writing at positions that are data.

Negative positions count from the end, as iOS15 and iOS16 define it; iOS17 leaves them undefined. Positions outside the
axis are an error, whatever ``validate_indices`` says.
"""

# mypy: disable-error-code="no-any-return"

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from anemone.errors import ExecuteError
from anemone.execute.dtypes import Array
from anemone.execute.numerics import widen
from anemone.execute.ops.registry import Kernel, Node, op
from anemone.execute.stored import Plain, Stored

_LARGE = 1 << 18  # elements of a constant table from which rows are decoded when they are asked for


@op("gather", moves=True)
def gather(node: Node) -> Kernel:
    axis, batch_dims = node.int("axis", 0), node.int("batch_dims", 0)
    table = node.stored("x")
    if table is not None and table.size > _LARGE and axis % len(table.shape) == 0 and batch_dims == 0:
        return lambda indices: _rows(table, np.asarray(indices))

    def run(x: Array, indices: Array) -> Array:
        if batch_dims == 0:
            return np.take(x, indices, axis=axis)
        inner = axis % x.ndim - batch_dims
        flat_x = x.reshape(-1, *x.shape[batch_dims:])
        flat_indices = indices.reshape(len(flat_x), *indices.shape[batch_dims:])
        taken = np.stack([np.take(a, i, axis=inner) for a, i in zip(flat_x, flat_indices, strict=True)])
        return taken.reshape(*x.shape[:batch_dims], *taken.shape[1:])

    return run


def _rows(table: Stored, indices: Array) -> Array:
    """Rows of a large constant, read or decoded one by one."""
    count = table.shape[0]
    wanted = np.where(indices < 0, indices + count, indices).astype(np.int64).reshape(-1)
    if wanted.size and not (wanted.min() >= 0 and wanted.max() < count):
        raise ExecuteError(f"indices {indices.min()}..{indices.max()} reach outside the {count} rows")
    if isinstance(table, Plain) and not table.bits:
        rows = table.data.reshape(table.shape)[wanted]
        rows = widen(rows) if rows.dtype == np.float16 else rows
    else:
        rows = np.concatenate([table.wide_rows(int(i), int(i) + 1) for i in wanted])
    return rows.reshape(*indices.shape, *table.shape[1:])


@op("gather_along_axis", moves=True)
def gather_along_axis(node: Node) -> Kernel:
    axis = node.int("axis", 0)
    return lambda x, indices: np.take_along_axis(x, indices, axis)


def _grid(shape: tuple[int, ...], rank: int) -> list[Array]:
    """Positions along each axis of ``shape``, broadcastable to an array of ``rank`` axes."""
    return [np.arange(n).reshape([-1 if a == axis else 1 for a in range(rank)]) for axis, n in enumerate(shape)]


@op("gather_nd", moves=True)
def gather_nd(node: Node) -> Kernel:
    """The last axis of ``indices`` holds one position per axis of x, after the batch axes."""
    batch_dims = node.int("batch_dims", 0)

    def run(x: Array, indices: Array) -> Array:
        batch = _grid(x.shape[:batch_dims], indices.ndim - 1)
        return x[(*batch, *np.moveaxis(indices, -1, 0))]

    return run


_INTO: dict[str, Callable[..., Any]] = {
    "add": np.add.at, "sub": np.subtract.at, "mul": np.multiply.at, "div": np.true_divide.at,
    "max": np.maximum.at, "min": np.minimum.at,
}  # fmt: skip


def _scatter_into(data: Array, key: Any, updates: Array, mode: str) -> Array:
    result = np.array(data)
    if mode == "update":
        result[key] = updates
    elif mode in _INTO:
        _INTO[mode](result, key, updates)
    else:
        raise ExecuteError(f"its mode {mode!r} is not known")
    return result


@op("scatter")
def scatter(node: Node) -> Kernel:
    axis, mode = node.int("axis", 0), node.text("mode", "add")

    def run(data: Array, indices: Array, updates: Array) -> Array:
        key = (*(slice(None),) * (axis % data.ndim), np.asarray(indices))
        return _scatter_into(data, key, updates, mode)

    return run


@op("scatter_along_axis")
def scatter_along_axis(node: Node) -> Kernel:
    axis, mode = node.int("axis", 0), node.text("mode", "add")

    def run(data: Array, indices: Array, updates: Array) -> Array:
        key = _grid(indices.shape, data.ndim)
        key[axis % data.ndim] = indices
        return _scatter_into(data, tuple(key), updates, mode)

    return run


@op("scatter_nd")
def scatter_nd(node: Node) -> Kernel:
    mode = node.text("mode", "add")

    def run(data: Array, indices: Array, updates: Array) -> Array:
        if prod(indices.shape[:-1]) == 0:
            return np.array(data)
        return _scatter_into(data, tuple(np.moveaxis(indices, -1, 0)), updates, mode)

    return run
