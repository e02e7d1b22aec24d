"""Narrowing weights to fp16, and what that loses."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anemone.errors import CheckpointError

LARGEST = 65504.0

BLOCK = 1 << 16
"""Values narrowed and looked at while they are in the cache."""

SMALLEST_NORMAL, INFINITE = 0x0400, 0x7C00
"""The bits of 2**-14 and of infinity: magnitudes compare as their bits do."""


@dataclass(frozen=True)
class Fp16Loss:
    """Of ``values`` numbers, how many became subnormal (fewer bits) and how many not zero became zero."""

    values: int = 0
    subnormal: int = 0
    zeroed: int = 0

    def __add__(self, other: "Fp16Loss") -> "Fp16Loss":
        return Fp16Loss(self.values + other.values, self.subnormal + other.subnormal, self.zeroed + other.zeroed)


def combine(losses: Iterable[Fp16Loss]) -> Fp16Loss:
    return sum(losses, Fp16Loss())


def to_fp16(array: NDArray[Any], name: str) -> tuple[NDArray[np.float16], Fp16Loss]:
    """``array`` (fp16, bf16, fp32 or fp64) rounded to fp16, of the same shape; fp16 is returned as it is.

    CheckpointError naming ``name`` when a value is beyond 65,504 or not a number.
    """
    source = np.ascontiguousarray(array).reshape(-1)
    narrow = source if source.dtype == np.float16 else np.empty(source.size, np.float16)
    loss = Fp16Loss(source.size)
    for start in range(0, source.size, BLOCK):
        block, out = source[start : start + BLOCK], narrow[start : start + BLOCK]
        if narrow is not source:
            with np.errstate(over="ignore"):
                out[:] = block
        size = out.view(np.uint16) & np.uint16(0x7FFF)
        if size.max() >= INFINITE:
            raise _too_large(array, name)
        if narrow is not source:
            loss += _lost(block, size)
    return narrow.reshape(array.shape), loss


def _lost(block: NDArray[Any], size: NDArray[np.uint16]) -> Fp16Loss:
    """The loss of values whose fp16 magnitudes are ``size``; their number is not counted again."""
    small = np.flatnonzero(size < SMALLEST_NORMAL)
    zeros = np.count_nonzero(size[small] == 0)
    zeroed = np.count_nonzero(block[small]) - (small.size - zeros)
    return Fp16Loss(0, int(small.size - zeros), int(zeroed))


def _too_large(array: NDArray[Any], name: str) -> CheckpointError:
    size = np.abs(array.astype(np.float64)).reshape(-1)
    with np.errstate(over="ignore"):
        count = np.count_nonzero(~np.isfinite(size.astype(np.float16)))
    nans = np.count_nonzero(np.isnan(size))
    which = f"{nans} are not numbers" if nans else f"the largest is {size.max():g}, the limit {LARGEST:g}"
    return CheckpointError(
        f"{name} has {count} values that fp16 cannot hold ({which}); "
        "the model needs scaling before it can run on the Neural Engine"
    )
