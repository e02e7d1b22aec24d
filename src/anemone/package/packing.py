"""Packing of sub-byte integers as Core ML stores them: one bit stream, least significant bits first."""

import numpy as np
from numpy.typing import NDArray

_STEP = 1 << 18  # values per step: its 64-bit words and the temporaries stay in the second-level cache


class BitPacker:
    """Packs a stream of 1, 2, 3, 4 or 6 bit values, given in blocks of any length, into bytes.

    Eight values make ``bits`` whole bytes, so up to seven of them wait for the next block.
    """

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self._waiting: NDArray[np.uint8] = np.empty(0, np.uint8)

    def push(self, values: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Bytes that became whole with ``values`` (1-D, each below 2**bits)."""
        if self._waiting.size:
            values = np.concatenate([self._waiting, values])
        whole = values.size // 8 * 8
        self._waiting = values[whole:].copy()
        return _pack(values[:whole], self.bits)

    def flush(self) -> NDArray[np.uint8]:
        """The last bytes, filled up with zero bits."""
        waiting, self._waiting = self._waiting, np.empty(0, np.uint8)
        padded = np.zeros(-(-waiting.size // 8) * 8, np.uint8)
        padded[: waiting.size] = waiting
        return _pack(padded, self.bits)[: -(-waiting.size * self.bits // 8)]


def _pack(values: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Multiples of eight values -> values.size * bits / 8 bytes.

    Three folds bring the eight fields of a 64-bit word together: neighbouring lanes of 8, 16 and 32 bits, each with its
    field at the bottom, become one lane of twice the width.
    """
    unit = bits & -bits  # the widest integers that the ``bits`` low bytes of a word divide into
    packed = np.empty((values.size // 8, bits // unit), f"<u{unit}")
    for start in range(0, values.size, _STEP):
        words = np.frombuffer(values[start : start + _STEP], "<u8").copy()
        for fold in range(3):
            lane, width = 8 << fold, bits << fold
            low = _lanes(lane * 2, width)
            high = words >> np.uint64(lane - width)
            high &= np.uint64(low << width)
            words &= np.uint64(low)
            words |= high
        units = words.view(packed.dtype).reshape(-1, 8 // unit)
        for column in range(bits // unit):  # one column at a time: numpy copies short rows several times slower
            packed[start // 8 : start // 8 + words.size, column] = units[:, column]
    return packed.reshape(-1).view(np.uint8)


def _lanes(lane: int, width: int) -> int:
    """A 64-bit mask of the lowest ``width`` bits in every ``lane`` bits."""
    return sum(((1 << width) - 1) << at for at in range(0, 64, lane))
