"""Where a computation rounds.

Every op computes and accumulates in fp32, as the Neural Engine accumulates wider than fp16. A numerics mode says what
happens when a result becomes a tensor of the program: ``float16`` rounds fp16 tensors to nearest even, to infinity from
65520 on, subnormals kept; ``float32`` leaves every tensor as computed; ``ane`` imitates what was measured on the Neural
Engine of one chip (``ane.py``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float32]

_BLOCK = 1 << 15  # elements whose scratch memory stays in the first two cache levels
_SMALL = 1200  # below, numpy's own conversions are faster than a handful of calls
_EXPONENT, _SIGN = np.int32(0x7F800000), np.int32(-0x80000000)
_LEAST, _MOST = np.float32(2.0**-14), np.float32(2.0**15)  # the powers of two among normal fp16 numbers
_VANISHING = np.float32(2.0**-25)  # up to here the result is 0, and the sum has lost its sign
_KEEP_11_BITS = np.float32(1.5 * 2.0**13)
_UP, _DOWN = np.float32(2.0**112), np.float32(2.0**-112)


def round_half(x: Float, out: Float | None = None) -> Float:
    """fp32 values to the nearest fp16 values, as fp32: ``x.astype(float16).astype(float32)``, six times as fast.

    Adding and subtracting 1.5 * 2**(e+13), where e is the exponent of x, leaves 11 significant bits, ties to even;
    e held at -14 or more gives the fixed step of subnormal numbers. Scaling by 2**112 and back makes 2**16 infinity.
    ``out``: contiguous memory for the result, which may be that of x.
    """
    if x.size <= _SMALL:
        return x.astype(np.float16).astype(np.float32)
    source = np.ascontiguousarray(x).reshape(-1)
    result = np.empty_like(source) if out is None else out.reshape(-1)
    powers, signs = np.empty((2, min(_BLOCK, source.size)), np.float32)
    for start in range(0, source.size, _BLOCK):
        block, rounded = source[start : start + _BLOCK], result[start : start + _BLOCK]
        power, sign = powers[: block.size], signs[: block.size].view(np.int32)
        np.bitwise_and(block.view(np.int32), _EXPONENT, out=power.view(np.int32))
        least, most = power.min(), power.max()
        if least < _LEAST or most > _MOST:
            np.clip(power, _LEAST, _MOST, out=power)
        if least <= _VANISHING:
            np.bitwise_and(block.view(np.int32), _SIGN, out=sign)
        power *= _KEEP_11_BITS
        np.add(block, power, out=rounded)
        rounded -= power
        if most >= _MOST:
            rounded *= _UP
            rounded *= _DOWN
        if least <= _VANISHING:
            np.bitwise_or(rounded.view(np.int32), sign, out=rounded.view(np.int32))
    return result.reshape(x.shape)


def widen(x: NDArray[np.float16]) -> Float:
    """fp16 to fp32, exactly: ``x.astype(float32)``, five times as fast for large contiguous arrays."""
    if x.size <= _SMALL or not x.flags.c_contiguous:
        return x.astype(np.float32)
    source = x.reshape(-1).view(np.int16)
    result = np.empty(source.size, np.float32)
    for start in range(0, source.size, _BLOCK):
        bits = result[start : start + _BLOCK].view(np.int32)
        bits[:] = source[start : start + _BLOCK]
        bits <<= 13
        bits &= np.int32(-0x70002000)  # sign, 5 bits of exponent and 10 of mantissa, without the copies of the sign
        out = bits.view(np.float32)
        out *= _UP
        if max(out.max(), -out.min()) >= 65536.0:  # the exponent of infinity and NaN
            out[:] = x.reshape(-1)[start : start + _BLOCK]
    return result.reshape(x.shape)


@dataclass(frozen=True)
class Numerics:
    """``store(x, out)`` turns what an op computed for an fp16 tensor into that tensor, in the memory ``out`` unless
    that is None; no ``store`` keeps it as computed. ``kernels``: for some kinds of op, what prepares their kernel in
    place of their definition. ``chip``: what the mode imitates. ``enter`` changes floating inputs first.
    """

    name: str
    store: Callable[..., Float] | None
    kernels: Mapping[str, Callable[[Any], Callable[..., Any]]] = field(default_factory=dict)
    chip: str = ""
    enter: Callable[[NDArray[Any]], NDArray[Any]] | None = None
