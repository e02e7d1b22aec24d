"""Weights as tables and indices, by rows."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from anemone.compress.tensor import Lut


def effective_group(rows: int, group: int) -> int:
    """Rows that share a table: the largest divisor of ``rows`` not above ``group``; 0 means all rows."""
    return next(size for size in range(min(group or rows, rows), 0, -1) if rows % size == 0)


def palettize_blocks(
    read: Callable[[slice], NDArray[np.float16]], rows: int, columns: int, bits: int, group: int, *, workers: int = 1
) -> Iterator[Lut]:
    """Palettise a (rows, columns) matrix whose rows ``read`` gives as fp16, block by block."""
    raise NotImplementedError
