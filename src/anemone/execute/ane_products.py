"""Dot products as the Neural Engine sums them: tiles of four with 12 significant bits, then fp32.

Four consecutive products are added one after the other, starting from 0; each sum is rounded half to even to the step
of a number with 12 significant bits and the exponent of the larger operand. Tile sums are added in order to an fp32
accumulator. The rule was inferred from sums that were measured on an M1 and reproduces all of them. Sums are formed in
fp32 before they are rounded to 12 bits.
"""

from dataclasses import dataclass

import numpy as np

from anemone.execute.dtypes import Array
from anemone.execute.numerics import Float, widen

_TILE = 4
_AT_ONCE = 1024  # elements of the result: with 16 tiles, scratch arrays of 64 kB stay in the second cache level
_DEPTH = 16
_EXPONENT, _HUGE = np.int32(0x7F800000), np.float32(2.0**100).view(np.int32)
_BELOW_NORMAL = np.float32(2.0**-14).view(np.int32) - np.int32(1)
_KEEP_12_BITS = np.float32(1.5 * 2.0**12)


@dataclass(frozen=True)
class Accumulation:
    """``flush``: subnormal fp16 operands and products count as 0. ``limit``: sums from here on are infinite, interior
    ones included; infinity leaves that to the rounding of the result."""

    flush: bool
    limit: float = np.inf


class Packed:
    """A matrix (rows, depth) of fp16 values, ordered for ``product``: blocks of (4, tiles, rows)."""

    def __init__(self, matrix: Array, rules: Accumulation) -> None:
        self.rows, self.depth = matrix.shape
        self.rules = rules
        self.norm, self.finite = 0.0, True
        self.blocks = [self._block(matrix[start : start + _AT_ONCE]) for start in range(0, self.rows, _AT_ONCE)]

    def _block(self, rows: Array) -> Array:
        padded = np.zeros((len(rows), -(-self.depth // _TILE) * _TILE), np.float16)
        padded[:, : self.depth] = rows
        norms = np.linalg.norm(rows.astype(np.float32), axis=1)
        self.norm = max(self.norm, float(norms.max(initial=0)))
        self.finite &= bool(np.isfinite(norms).all())
        if self.rules.flush:
            padded[np.abs(padded) < np.float16(2.0**-14)] = 0
        return np.ascontiguousarray(padded.reshape(len(rows), -1, _TILE).transpose(2, 1, 0))


def product(matrix: Packed, x: Float) -> Float:
    """matrix (rows, depth) @ x (depth, n) -> (rows, n), not yet rounded to fp16."""
    if matrix.rules.flush:
        x = np.where(np.abs(x) < 2.0**-14, np.float32(0), x)
    largest = matrix.norm * float(np.linalg.norm(x, axis=0).max(initial=0))  # no sum can be larger
    careful = not (matrix.finite and largest < 0.9 * matrix.rules.limit and np.isfinite(largest))
    result = np.empty((matrix.rows, x.shape[1]), np.float32)
    for start in range(0, x.shape[1], _AT_ONCE):
        columns = np.ascontiguousarray(x[:, start : start + _AT_ONCE])
        step = max(1, _AT_ONCE // columns.shape[1])
        for index, block in enumerate(matrix.blocks):
            for first in range(0, block.shape[2], step):
                rows = slice(index * _AT_ONCE + first, index * _AT_ONCE + min(first + step, block.shape[2]))
                part = block[:, :, first : first + step]
                result[rows, start : start + _AT_ONCE] = _sums(part, columns, matrix.rules, careful)
    return result


def _sums(block: Array, x: Float, rules: Accumulation, careful: bool) -> Float:
    """block (4, tiles, rows), x (depth, n) -> (rows, n)"""
    total = np.zeros((block.shape[2], x.shape[1]), np.float32)
    whole, rest = divmod(len(x), _TILE)
    bounds = [(first, min(first + _DEPTH, whole), _TILE) for first in range(0, whole, _DEPTH)]
    if rest:
        bounds.append((whole, whole + 1, rest))
    for first, last, count in bounds:
        part = [widen(np.ascontiguousarray(block[i, first:last])) for i in range(count)]
        columns = x[first * _TILE : (last - 1) * _TILE + count].reshape(last - first, count, -1)
        sums = np.empty((last - first + 1, *total.shape), np.float32)
        sums[0] = total
        sums[1:] = _tiles(part, columns, rules, careful)
        if careful:
            total = _accumulated(sums, rules.limit)
        elif total.size == 1:  # numpy would add the elements of a vector in pairs
            total = np.add.accumulate(sums, axis=0)[-1]
        else:
            total = np.add.reduce(sums, axis=0)  # in order along the first axis
    return total


def _tiles(block: list[Float], x: Float, rules: Accumulation, careful: bool) -> Float:
    """block: per element of the tile (tiles, rows); x (tiles, elements, n) -> (tiles, rows, n)"""
    total: Float | None = None
    for element, rows in enumerate(block):
        added = rows[:, :, None] * x[:, element, None, :]
        if careful:
            _settle(added, rules.limit)
        power = added.view(np.int32) & _EXPONENT
        if rules.flush:
            normal = _BELOW_NORMAL - power
            normal >>= 31  # all bits set where the product is a normal number
            np.bitwise_and(added.view(np.int32), normal, out=added.view(np.int32))
            power &= normal
        if total is None:
            total = added
        else:
            np.maximum(power, total.view(np.int32) & _EXPONENT, out=power)
            total += added
        if careful:
            np.minimum(power, _HUGE, out=power)  # infinity stays infinity below
        shift = power.view(np.float32)
        shift *= _KEEP_12_BITS
        total += shift
        total -= shift
        if careful:
            _settle(total, rules.limit)
    assert total is not None
    return total


def _accumulated(sums: Float, limit: float) -> Float:
    """Rows one after the other, each sum held against the limit."""
    total: Float = sums[0]
    for row in sums[1:]:
        total = total + row
        _settle(total, limit)
    return total


def _settle(x: Float, limit: float) -> None:
    """Values from the limit on become infinite; inf - inf and 0 * inf are 0."""
    x[np.isnan(x)] = 0
    if np.isfinite(limit):
        over = np.abs(x) >= limit
        x[over] = np.copysign(np.float32(np.inf), x[over])
