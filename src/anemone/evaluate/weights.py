"""Does a package store the checkpoint's weights? Executing it cannot tell: a wrong weight is executed faithfully.

A dense weight must be the checkpoint's rounded to fp16. A palettised one must be, of the values that its row uses, the
nearest: a damaged index or table, or rows in a wrong place, break that for some value.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK_VALUES = 1 << 22
"""Values that are compared at a time."""


def misplaced(stored: NDArray[np.float16], source: NDArray[Any], palettised: bool) -> int:
    """How many values of ``stored`` are not what ``source`` (same shape, any float type) gives."""
    columns = stored.shape[-1]
    rows, wanted = stored.reshape(-1, columns), source.reshape(-1, columns)
    step = max(1, BLOCK_VALUES // columns)
    count = 0
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        exact = wanted[start : start + step].astype(np.float32).astype(np.float16)
        wrong = np.flatnonzero((block != exact).any(axis=1))
        if palettised:
            count += sum(_farther_than_needed(block[row], exact[row]) for row in wrong)
        else:
            count += int(np.count_nonzero(block != exact))
    return count


def _farther_than_needed(stored: NDArray[np.float16], exact: NDArray[np.float16]) -> int:
    """Values of one row for which another value that the row uses would be nearer."""
    entries = np.unique(stored.astype(np.float64))
    values = exact.astype(np.float64)
    nearest = entries[np.searchsorted((entries[1:] + entries[:-1]) / 2, values)]
    # written so that a NaN counts as wrong
    return int(np.count_nonzero(~(np.abs(values - stored) <= np.abs(values - nearest))))
