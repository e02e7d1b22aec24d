"""MIL's data types: how each is stored and which numpy type carries it in a computation.

fp16 tensors are carried as fp32 arrays. numpy has no vectorised fp16 arithmetic (an fp16 add costs 5 ns per element, an
fp32 add 0.1 ns), so a computation stays in fp32 and ``numerics`` decides where it is rounded.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Shape = tuple[int, ...]

_NUMPY = {
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
    "bool": "bool",
    "string": "str",
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
_PACKED_BITS = {"uint1": 1, "uint2": 2, "uint3": 3, "uint4": 4, "uint6": 6, "int4": 4}


def packed_bits(dtype: str) -> int:
    """Bits per element of a type that is packed into bytes; 0 for all others."""
    return _PACKED_BITS.get(dtype, 0)


def stored_type(dtype: str) -> np.dtype[Any] | None:
    """The numpy type with the values of this MIL type (bytes for packed types), None when there is no such type."""
    if dtype in _PACKED_BITS:
        return np.dtype(np.int8 if dtype == "int4" else np.uint8)
    name = _NUMPY.get(dtype)
    return None if name is None else np.dtype(name)


def carrier_type(dtype: str) -> np.dtype[Any] | None:
    """The numpy type that carries this MIL type in a computation."""
    return np.dtype(np.float32) if dtype == "fp16" else stored_type(dtype)
