"""Weights as tables and indices, by rows."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from anemone.compress.codes import last_code_to, to_codes
from anemone.compress.fp16 import to_fp16
from anemone.compress.kmeans import kmeans
from anemone.compress.points import Points, histogram, points_of_histogram, points_of_rows
from anemone.compress.spec import LutSpec
from anemone.compress.tensor import Lut

Read = Callable[[slice], NDArray[np.float16]]
Item = TypeVar("Item")
Result = TypeVar("Result")

BLOCK_VALUES = 1 << 20
"""Weights worked on at a time by one worker, in groups; about 40 bytes each are in use."""

BLOCK_GROUPS = 256
"""The most groups at a time: small ones need memory for their bins."""

PINNED = 2.0**40
"""Weight that makes zero a centroid; sums of it with counts stay exact."""


def effective_group(rows: int, group: int) -> int:
    """Rows that share a table: the largest divisor of ``rows`` not above ``group``; 0 means all rows."""
    return next(size for size in range(min(group or rows, rows), 0, -1) if rows % size == 0)


def palettize(weight: NDArray[np.generic], bits: int, group: int, *, workers: int = 1, name: str = "the weight") -> Lut:
    """Palettise ``weight`` (rows, columns) of fp16, bf16 or fp32. Otherwise as ``palettize_blocks``.

    CheckpointError naming ``name`` when fp16 cannot hold a value.
    """
    narrow, _ = to_fp16(weight, name)
    rows, columns = narrow.shape
    blocks = list(palettize_blocks(lambda some: narrow[some], rows, columns, bits, group, workers=workers))
    return Lut(np.concatenate([block.indices for block in blocks]), np.concatenate([b.table for b in blocks]), bits)


def palettize_blocks(read: Read, rows: int, columns: int, bits: int, group: int, *, workers: int = 1) -> Iterator[Lut]:
    """Palettise a (rows, columns) matrix whose rows ``read`` gives as fp16, block by block of whole groups, in order.

    Each group of ``effective_group(rows, group)`` rows gets the table of 2**bits values with the least squared error
    (see kmeans). A group with fewer distinct values keeps them exactly, and rows of zeros stay zero: their group's
    table has a zero, at some cost to the others where bits are few. RecipeError on bits that Core ML cannot store.

    ``workers`` threads work on blocks of up to 2**20 weights; the result does not depend on their number. ``read`` is
    called by them, and twice for rows of groups that are larger than a block.
    """
    spec = LutSpec(bits, group)
    size = effective_group(rows, spec.group)
    if size * columns > BLOCK_VALUES:
        for start in range(0, rows, size):
            yield _large_group(read, slice(start, start + size), columns, bits, workers)
        return
    step = min(BLOCK_VALUES // (size * columns), BLOCK_GROUPS) * size
    yield from _in_order(lambda block: _groups(read(block), size, bits), _slices(slice(0, rows), step), workers)


def _groups(values: NDArray[np.float16], size: int, bits: int) -> Lut:
    """Palettise some whole groups of ``size`` rows."""
    codes = to_codes(values)
    grouped = codes.reshape(-1, size * codes.shape[1])
    has_zero_row = _zero_rows(codes).reshape(-1, size).max(axis=1)
    table = _table(points_of_rows(grouped), has_zero_row, bits)
    return Lut(_nearest(grouped, table).reshape(codes.shape), table, bits)


def _large_group(read: Read, rows: slice, columns: int, bits: int, workers: int) -> Lut:
    """Palettise one group, however large, from its histogram."""
    blocks = list(_slices(rows, max(1, BLOCK_VALUES // columns)))
    counts, has_zero_row = np.zeros(1 << 16), False

    def count(block: slice) -> tuple[NDArray[np.float64], bool]:
        codes = to_codes(read(block))
        return histogram(codes), bool(_zero_rows(codes).any())

    for some, zero in _in_order(count, blocks, workers):
        counts += some
        has_zero_row |= zero
    table = _table(points_of_histogram(counts), np.array([has_zero_row]), bits)
    indices = np.empty((rows.stop - rows.start, columns), np.uint8)

    def assign(block: slice) -> None:
        found = _nearest(to_codes(read(block)).reshape(1, -1), table)
        indices[block.start - rows.start : block.stop - rows.start] = found.reshape(-1, columns)

    deque(_in_order(assign, blocks, workers), maxlen=0)
    return Lut(indices, table, bits)


def _table(points: Points, pinned: NDArray[np.bool_], bits: int) -> NDArray[np.float16]:
    """The groups' tables (groups, 2**bits); those of ``pinned`` groups hold an exact zero."""
    if pinned.any():
        points = points.heavier((points.values == 0) & np.repeat(pinned, points.counts), PINNED)
    table = kmeans(points, 1 << bits)
    nearest = np.abs(table[pinned]).argmin(axis=1)
    table[pinned, nearest] = 0
    return table


def _zero_rows(codes: NDArray[np.int16]) -> NDArray[np.bool_]:
    zero: NDArray[np.bool_] = (codes.max(axis=1) == 0) & (codes.min(axis=1) == 0)
    return zero


def _nearest(codes: NDArray[np.int16], table: NDArray[np.float16]) -> NDArray[np.uint8]:
    """The index of each number's nearest centroid, the lower of two: codes (groups, numbers), table (groups, k).

    A list of the answers for all 65,536 codes is made for each group.
    """
    wide = table.astype(np.float64)
    last = last_code_to((wide[:, 1:] + wide[:, :-1]) / 2).astype(np.int64)
    spans = np.diff(last, axis=1, prepend=-0x8001, append=0x7FFF)
    every = np.arange(table.shape[1], dtype=np.uint8)
    from_lowest = codes.view(np.uint16) ^ 0x8000
    nearest = np.empty(codes.shape, np.uint8)
    for group, span in enumerate(spans):
        np.take(np.repeat(every, span), from_lowest[group], out=nearest[group], mode="clip")
    return nearest


def _slices(rows: slice, step: int) -> Iterator[slice]:
    for start in range(rows.start, rows.stop, step):
        yield slice(start, min(start + step, rows.stop))


def _in_order(work: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """``work`` on each item by ``workers`` threads; results in order, few of them waiting."""
    if workers <= 1:
        yield from map(work, items)
        return
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
