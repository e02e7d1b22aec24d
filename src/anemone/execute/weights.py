"""Decoded constants, shared by the functions of a program, and products with large constant matrices.

``keep`` holds every weight as fp32 for speed; otherwise a weight is decoded in blocks of rows at each use, so that
memory holds one block at a time.
"""

from collections.abc import Callable, Hashable, Iterator

import numpy as np

from anemone.execute.dtypes import Array
from anemone.execute.stored import Stored

_TILE = 1 << 20  # elements decoded at once: 4 MB of fp32
_RELEASED_AT_ONCE = 1 << 24  # elements decoded before their pages are let go


class Matrix:
    """A constant as a matrix of its first axis by all others.

    ``whole``: all of it as fp32; without it, tiles are decoded at each use.
    """

    def __init__(self, stored: Stored, whole: Array | None) -> None:
        self.stored = stored
        self.rows = stored.shape[0]
        self.columns = stored.size // max(self.rows, 1)
        self._whole = whole

    def tiles(self) -> Iterator[tuple[int, int, Array]]:
        """(start, stop, the rows in between as fp32) over all rows."""
        if self._whole is not None:
            yield 0, self.rows, self._whole
            return
        step = max(1, _TILE // max(self.columns, 1))
        step = step - step % 8 or step  # whole bytes of packed indices, whole groups of 8 rows
        for start in range(0, self.rows, step):
            stop = min(start + step, self.rows)
            yield start, stop, self.stored.wide_rows(start, stop).reshape(stop - start, self.columns)

    def times(self, x: Array) -> Array:
        """matrix @ x, x (columns, n) -> (rows, n)"""
        if self._whole is not None:
            return self._whole @ x
        result = np.empty((self.rows, x.shape[1]), np.float32)
        for start, stop, tile in self.tiles():
            np.matmul(tile, x, out=result[start:stop])
        return result

    def transposed_after(self, x: Array) -> Array:
        """x @ matrix.T, x (..., columns) -> (..., rows)"""
        if self._whole is not None:
            return x @ self._whole.T
        result = np.empty((*x.shape[:-1], self.rows), np.float32)
        for start, stop, tile in self.tiles():
            result[..., start:stop] = x @ tile.T
        return result

    def after(self, x: Array) -> Array:
        """x @ matrix, x (..., rows) -> (..., columns)"""
        if self._whole is not None:
            return x @ self._whole
        result = np.zeros((*x.shape[:-1], self.columns), np.float32)
        for start, stop, tile in self.tiles():
            result += x[..., start:stop] @ tile
        return result


class Weights:
    """What has been decoded so far, by the constant's key.

    ``release`` lets go of the pages of weight files: without it they would count, until memory is short, as much again
    as the weights decoded from them.
    """

    def __init__(self, release: Callable[[], None] = lambda: None) -> None:
        self.keep = True
        self._decoded: dict[Hashable, Array] = {}
        self._release = release
        self._unreleased = 0

    def array(self, stored: Stored) -> Array:
        """All values, fp16 as fp32, decoded once and not to be written."""
        return self._once(stored.key, stored, stored.wide_array)

    def matrix(self, stored: Stored) -> Matrix:
        """The constant as the matrix of a product."""
        if not self.keep and stored.size > _TILE // 4:
            return Matrix(stored, None)
        rows, columns = stored.shape[0], stored.size // max(stored.shape[0], 1)
        if rows <= columns:
            return Matrix(stored, self.array(stored).reshape(rows, columns))
        return Matrix(stored, self._once(("by columns", stored.key), stored, lambda: _by_columns(stored, columns)))

    def _once(self, key: Hashable, stored: Stored, decode: Callable[[], Array]) -> Array:
        if key not in self._decoded:
            values = decode()
            values.flags.writeable = False
            self._decoded[key] = values
            self._unreleased += stored.size
            if self._unreleased > _RELEASED_AT_ONCE:
                self._release()
                self._unreleased = 0
        return self._decoded[key]


def _by_columns(stored: Stored, columns: int) -> Array:
    """The matrix with each column in one piece: BLAS multiplies a vector faster along the longer side."""
    values = np.empty((stored.shape[0], columns), np.float32, order="F")
    for start, stop, tile in Matrix(stored, None).tiles():
        values[start:stop] = tile
    return values
