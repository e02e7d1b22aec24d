"""The weight file of a Core ML package (MIL blob storage, version 2), written as a stream.

Layout, all little-endian: a 64-byte header (number of records u32, version u32), then per tensor a 64-byte record
(sentinel u32, type u32, size in bytes u64, offset of the data u64, unused bits of the last byte u64) followed by its
data; records and data start at multiples of 64. A tensor is referred to by the offset of its record.
"""

import hashlib
import math
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from anemone.errors import PackageError
from anemone.package.packing import BitPacker

ALIGNMENT = 64
VERSION = 2
SENTINEL = 0xDEADBEEF
RECORD = struct.Struct("<IIQQQ32x")
HEADER = struct.Struct("<II56x")

_PIECE = 1 << 20  # values handled at once where a copy is unavoidable


@dataclass(frozen=True)
class BlobType:
    """An element type of the file: its code in a record, its bits, and the numpy type it is written from."""

    code: int
    bits: int
    numpy: np.dtype[Any]


TYPES = {
    "fp16": BlobType(1, 16, np.dtype("<f2")),
    "fp32": BlobType(2, 32, np.dtype("<f4")),
    "uint8": BlobType(3, 8, np.dtype("u1")),
    "int8": BlobType(4, 8, np.dtype("i1")),
    "int16": BlobType(6, 16, np.dtype("<i2")),
    "uint16": BlobType(7, 16, np.dtype("<u2")),
    "int4": BlobType(8, 4, np.dtype("i1")),
    "uint1": BlobType(9, 1, np.dtype("u1")),
    "uint2": BlobType(10, 2, np.dtype("u1")),
    "uint4": BlobType(11, 4, np.dtype("u1")),
    "uint3": BlobType(12, 3, np.dtype("u1")),
    "uint6": BlobType(13, 6, np.dtype("u1")),
    "int32": BlobType(14, 32, np.dtype("<i4")),
    "uint32": BlobType(15, 32, np.dtype("<u4")),
}


def size_in_bytes(dtype: str, count: int) -> int:
    """Bytes that ``count`` values take in the file, alignment apart."""
    return -(-count * TYPES[dtype].bits // 8)


class TensorWriter:
    """Appends the values of one tensor, block by block. ``offset`` is valid when its ``with`` block has ended."""

    def __init__(self, file: BinaryIO, dtype: str, count: int) -> None:
        self.offset = -1
        self._file = file
        self._dtype = dtype
        self._type = TYPES[dtype]
        self._left = count
        self._packer = BitPacker(self._type.bits) if self._type.bits < 8 else None

    def write(self, block: NDArray[Any]) -> None:
        """The next values in row-major order, any shape. Sub-byte types take uint8 (int4: int8), one value per byte."""
        if block.dtype != self._type.numpy:
            raise PackageError(f"A {self._dtype} tensor is written from {self._type.numpy}, not {block.dtype}.")
        if block.size > self._left:
            raise PackageError(f"A {self._dtype} tensor got {block.size - self._left} values more than announced.")
        self._left -= block.size
        for piece in _pieces(block):
            self._file.write((piece if self._packer is None else self._packer.push(self._narrow(piece))).data)

    def finish(self) -> None:
        if self._left:
            raise PackageError(f"A {self._dtype} tensor got {self._left} values fewer than announced.")
        if self._packer is not None:
            self._file.write(self._packer.flush().data)

    def _narrow(self, piece: NDArray[Any]) -> NDArray[np.uint8]:
        low, high = (-8, 7) if self._dtype == "int4" else (0, (1 << self._type.bits) - 1)
        if piece.size and (int(piece.max()) > high or (low < 0 and int(piece.min()) < low)):
            raise PackageError(f"A {self._dtype} tensor holds values outside {low} to {high}.")
        return piece.view(np.uint8) & np.uint8(15) if low < 0 else piece


class BlobWriter:
    """Creates ``path`` and appends tensors."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 - closed by close()
        self._file.write(HEADER.pack(0, VERSION))
        self._known: dict[tuple[str, bytes], int] = {}
        self.count = 0
        self.size = HEADER.size

    def __enter__(self) -> "BlobWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def tensor(self, dtype: str, count: int) -> Iterator[TensorWriter]:
        """Open a tensor of ``count`` values; PackageError, and no trace of it, unless exactly so many are written."""
        record, end = place(self.size, dtype, count)
        size = size_in_bytes(dtype, count)
        unused = size * 8 - count * TYPES[dtype].bits
        tensor = TensorWriter(self._file, dtype, count)
        try:
            self._file.write(bytes(record - self.size))
            self._file.write(RECORD.pack(SENTINEL, TYPES[dtype].code, size, record + RECORD.size, unused))
            yield tensor
            tensor.finish()
        except BaseException:
            self._file.seek(self.size)
            self._file.truncate()
            raise
        tensor.offset, self.size, self.count = record, end, self.count + 1

    def write(self, dtype: str, count: int, blocks: NDArray[Any] | Iterable[NDArray[Any]]) -> int:
        """Append a whole tensor, given at once or as consecutive blocks; the offset of its record."""
        with self.tensor(dtype, count) as tensor:
            for block in [blocks] if isinstance(blocks, np.ndarray) else blocks:
                tensor.write(block)
        return tensor.offset

    def write_once(self, dtype: str, values: NDArray[Any]) -> int:
        """As ``write``, but values that were given before are not stored again. For small arrays."""
        key = (dtype, hashlib.sha256(values.tobytes()).digest())
        if key not in self._known:
            self._known[key] = self.write(dtype, values.size, values)
        return self._known[key]

    def close(self) -> None:
        """Complete the header and flush; further calls do nothing."""
        if not self._file.closed:
            self._file.seek(0)
            self._file.write(HEADER.pack(self.count, VERSION))
            self._file.close()


def place(end: int, dtype: str, count: int) -> tuple[int, int]:
    """Where the record of the next tensor begins in a file of ``end`` bytes, and where its data ends."""
    record = -(-end // ALIGNMENT) * ALIGNMENT
    return record, record + RECORD.size + size_in_bytes(dtype, count)


def _pieces(block: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Contiguous 1-D pieces of ``block`` in row-major order; views where its memory allows."""
    if block.flags.c_contiguous:
        flat = block.reshape(-1)
        for start in range(0, flat.size, _PIECE):
            yield flat[start : start + _PIECE]
        return
    row = max(1, math.prod(block.shape[1:]))
    if row > _PIECE and block.ndim > 1:
        for part in block:
            yield from _pieces(part)
        return
    rows = max(1, _PIECE // row)
    for start in range(0, len(block), rows):
        yield np.ascontiguousarray(block[start : start + rows]).reshape(-1)
