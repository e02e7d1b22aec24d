"""Narrowing weights to fp16, and what that loses."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anemone.errors import CheckpointError

LARGEST, SMALLEST_NORMAL = 65504.0, 2.0**-14


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
    """``array`` rounded to fp16. CheckpointError naming ``name`` when a value is beyond 65,504 or not a number."""
    wide = np.asarray(array, np.float32)
    size = np.abs(wide)
    largest = float(size.max(initial=0.0))
    if not largest < 65520.0:  # what rounds to infinity; NaN fails every comparison
        count = int(np.count_nonzero(~(size < 65520.0)))
        raise CheckpointError(
            f"{name} has {count} values that fp16 cannot hold (largest {largest:g}, the limit is {LARGEST:g}); "
            "the model needs scaling before it can run on the Neural Engine"
        )
    narrow = wide.astype(np.float16)
    small = np.count_nonzero(size < SMALLEST_NORMAL) - np.count_nonzero(wide == 0)
    zeroed = np.count_nonzero(narrow == 0) - np.count_nonzero(wide == 0)
    return narrow, Fp16Loss(array.size, int(small - zeroed), int(zeroed))
