"""Narrowing weights to fp16, and what that loses."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anemone.errors import CheckpointError

LARGEST = 65504.0

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
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float16, copy=False)
    size = np.ascontiguousarray(narrow).view(np.uint16) & 0x7FFF
    if size.max(initial=0) >= INFINITE:
        raise CheckpointError(
            f"{name} has {np.count_nonzero(size >= INFINITE)} values that fp16 cannot hold "
            f"(largest {np.abs(array).max():g}, the limit is {LARGEST:g}); "
            "the model needs scaling before it can run on the Neural Engine"
        )
    if array.dtype == np.float16:
        return narrow, Fp16Loss(array.size)
    zeros = np.count_nonzero(size == 0)
    small = np.count_nonzero(size < SMALLEST_NORMAL)
    zeroed = zeros - np.count_nonzero(array == 0) if zeros else 0
    return narrow, Fp16Loss(array.size, int(small - zeros), int(zeroed))
