"""Weight files: tensors behind 64-byte records, mapped and read when needed."""

import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anemone.errors import ExecuteError
from anemone.execute.dtypes import packed_bits, stored_type

_RECORD = struct.Struct("<IIQQQ")  # sentinel, type, bytes, offset of the data, unused bits at its end
_SENTINEL = 0xDEADBEEF
_TYPES = {
    1: "fp16", 2: "fp32", 3: "uint8", 4: "int8", 5: "bf16", 6: "int16", 7: "uint16", 8: "int4", 9: "uint1",
    10: "uint2", 11: "uint4", 12: "uint3", 13: "uint6", 14: "int32", 15: "uint32",
}  # fmt: skip


class BlobFile:
    """One mapped weight file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ExecuteError(f"the weight file {path} cannot be read: {error}") from error

    def read(self, offset: int, dtype: str, count: int) -> NDArray[Any]:
        """The tensor of ``count`` elements whose record is at ``offset``: a flat view, bytes for packed types."""
        where = f"the tensor at byte {offset} of {self.path.name}"
        if offset < 0 or offset + _RECORD.size > len(self._map):
            raise ExecuteError(f"{where} lies outside the file of {len(self._map)} bytes: the package is damaged")
        sentinel, kind, size, start, _ = _RECORD.unpack_from(self._map, offset)
        if sentinel != _SENTINEL:
            raise ExecuteError(f"{where} has no record: the package is damaged")
        if _TYPES.get(kind) != dtype and not (dtype == "bool" and _TYPES.get(kind) == "uint8"):
            raise ExecuteError(f"{where} is stored as {_TYPES.get(kind, f'type {kind}')}, but the program says {dtype}")
        bits = packed_bits(dtype)
        itemsize = stored_type(dtype)
        if itemsize is None or dtype == "string":
            raise ExecuteError(f"{where} has type {dtype}, which cannot be read")
        need = -(-count * bits // 8) if bits else count * itemsize.itemsize
        if size != need or start + size > len(self._map):
            raise ExecuteError(f"{where} has {size} bytes at {start}, but {count} elements of {dtype} take {need}")
        element = np.dtype(np.uint8) if bits else itemsize
        return np.frombuffer(self._map, element, need // element.itemsize, start)

    def release(self) -> None:
        """Let the system drop what has been read; it is read again when it is needed."""
        if hasattr(self._map, "madvise"):
            self._map.madvise(mmap.MADV_DONTNEED)


def unpack(packed: NDArray[np.uint8], bits: int, start: int, count: int, signed: bool = False) -> NDArray[Any]:
    """Elements start..start+count of a bit-packed array, least significant bits first: uint8, or int8 when signed."""
    first = start * bits // 8
    skip = (start * bits - first * 8) // bits if bits in (1, 2, 4) else 0
    if bits in (3, 6):  # begin where an element begins at a byte: every eight elements
        skip = start % 8
        first = (start - skip) * bits // 8
    groups = -(-(skip + count) // 8)
    raw = packed[first : first + groups * bits]
    if raw.size < groups * bits:
        raw = np.concatenate([raw, np.zeros(groups * bits - raw.size, np.uint8)])
    raw = raw.reshape(groups, bits)
    values = np.empty((groups, 8), np.uint8)
    for element in range(8):
        byte, shift = divmod(element * bits, 8)
        value = raw[:, byte] >> shift
        if shift + bits > 8:
            value |= raw[:, byte + 1] << (8 - shift)
        np.bitwise_and(value, (1 << bits) - 1, out=values[:, element])
    result = values.reshape(-1)[skip : skip + count]
    if signed:
        sign = np.uint8(1 << (bits - 1))
        return ((result ^ sign) - sign).view(np.int8)
    return result
