"""Products and sums tile by tile, so that columns with a weight of 0 may be left out without changing a bit.

A product of two values has its columns computed, or its terms added, in tiles of 128, whichever are more: what a tile
holds depends on nothing outside it, and a tile of zeros adds exactly nothing.
"""

# mypy: disable-error-code="no-any-return"

import numpy as np

from anemone.execute.dtypes import Array

TILE = 128


def tiles(size: int) -> list[slice]:
    return [slice(start, min(start + TILE, size)) for start in range(0, max(size, 1), TILE)]


def product(x: Array, y: Array) -> Array:
    """x (..., n, k) @ y (..., k, m)"""
    if x.ndim < 2 or y.ndim < 2:
        return np.matmul(x, y)
    return by_columns(x, y) if y.shape[-1] > y.shape[-2] else by_terms(x, y)


def by_columns(x: Array, y: Array) -> Array:
    if y.shape[-1] <= TILE:
        return np.matmul(x, y)
    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    result = np.empty((*batch, x.shape[-2], y.shape[-1]), np.result_type(x, y))
    for part in tiles(y.shape[-1]):
        np.matmul(x, y[..., part], out=result[..., part])
    return result


def by_terms(x: Array, y: Array) -> Array:
    first, *others = tiles(y.shape[-2])
    result = np.matmul(x[..., first], y[..., first, :])
    for part in others:
        result += np.matmul(x[..., part], y[..., part, :])
    return result


def total(x: Array, axis: int) -> Array:
    """The sum over one axis, which stays with size 1."""
    axis %= x.ndim
    before = (slice(None),) * axis
    first, *others = tiles(x.shape[axis])
    result = np.add.reduce(x[(*before, first)], axis=axis, keepdims=True)
    for part in others:
        result += np.add.reduce(x[(*before, part)], axis=axis, keepdims=True)
    return result


def softmax_over(x: Array, axis: int, peaks: Array | None = None) -> Array:
    """Softmax in fp32 after subtracting ``peaks``, the maxima along the axis."""
    result = x - (np.max(x, axis=axis, keepdims=True) if peaks is None else peaks)
    np.exp(result, out=result)
    result /= total(result, axis)
    return result
