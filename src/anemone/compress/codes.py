"""fp16 values as integers in the order of the values: -0 and 0 are one code, neighbouring values differ by 1."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST = 0x7BFF
"""Code of 65504; what is larger in size is infinite or not a number."""


def to_codes(values: NDArray[np.float16]) -> NDArray[np.int16]:
    """The code of each value, of the same shape: its magnitude's bits, with its sign."""
    bits = np.ascontiguousarray(values).view(np.int16)
    sign = bits >> 15
    return ((bits & 0x7FFF) ^ sign) - sign


def from_codes(codes: NDArray[np.int16]) -> NDArray[np.float16]:
    """The value of each code."""
    bits: NDArray[np.int16] = np.abs(codes) | (codes & -0x8000)
    return bits.view(np.float16)


def last_code_to(limits: NDArray[np.floating[Any]]) -> NDArray[np.int16]:
    """The code of the largest fp16 value that is not above each limit (finite, at most 65504 in size)."""
    nearest = limits.astype(np.float16)
    return to_codes(nearest) - (nearest > limits).astype(np.int16)


def rounding(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """What each value (at most 65504 in size) changes by when it is rounded to fp16."""
    return values.astype(np.float16) - values
