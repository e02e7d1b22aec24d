"""Constant tensors that stay in their stored form until somebody needs values."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from math import prod

import numpy as np

from anemone.errors import ExecuteError
from anemone.execute.blob import BlobFile, unpack
from anemone.execute.dtypes import Array, Shape, packed_bits, stored_type
from anemone.execute.numerics import widen

_BLOCK = 1 << 20  # elements decoded at once


class Stored(ABC):
    """A constant of the program. Equal keys mean equal values, so that functions can share what they decode."""

    dtype: str
    shape: Shape
    key: Hashable

    @property
    def size(self) -> int:
        return prod(self.shape)

    @abstractmethod
    def rows(self, start: int, stop: int) -> Array:
        """Rows start..stop of the first axis, (stop - start, *shape[1:]), in the type's own numpy dtype."""

    def wide_rows(self, start: int, stop: int) -> Array:
        """As ``rows``, with fp16 given as fp32."""
        values = self.rows(start, stop)
        return widen(values) if values.dtype == np.float16 else values

    def array(self) -> Array:
        """All values, in the type's own numpy dtype."""
        return self._all(self.rows)

    def wide_array(self) -> Array:
        """All values, with fp16 given as fp32."""
        return self._all(self.wide_rows)

    def _all(self, rows: Callable[[int, int], Array]) -> Array:
        """All rows, block by block, so that what decoding needs on the way stays small."""
        count = self.shape[0]
        step = max(1, _BLOCK * count // max(self.size, 1) // 8 * 8)
        first = rows(0, min(step, count))
        if step >= count:
            return first
        result = np.empty(self.shape, first.dtype)
        result[:step] = first
        for start in range(step, count, step):
            stop = min(start + step, count)
            result[start:stop] = rows(start, stop)
        return result


class Plain(Stored):
    """A tensor stored element by element: in the program itself or in a weight file, packed or not."""

    def __init__(self, data: Array, dtype: str, shape: Shape, key: Hashable | None = None) -> None:
        self.data = data  # flat; bytes for packed types
        self.dtype = dtype
        self.shape = shape
        self.key = key if key is not None else object()

    @property
    def bits(self) -> int:
        """Bits per element of a packed type, else 0."""
        return packed_bits(self.dtype)

    def rows(self, start: int, stop: int) -> Array:
        row = prod(self.shape[1:])
        return self.elements(start * row, (stop - start) * row).reshape(stop - start, *self.shape[1:])

    def elements(self, start: int, count: int) -> Array:
        """``count`` elements of the flattened tensor."""
        if self.bits:
            return unpack(self.data, self.bits, start, count, signed=self.dtype == "int4")
        return self.data[start : start + count]

    def array(self) -> Array:
        return self.elements(0, self.size).reshape(self.shape)

    def wide_array(self) -> Array:
        values = self.array()
        return widen(values) if values.dtype == np.float16 else values


def plain_blob(file: BlobFile, offset: int, dtype: str, shape: Shape) -> Plain:
    """The tensor behind a record of a weight file, not copied."""
    return Plain(file.read(offset, dtype, prod(shape)), dtype, shape, key=(str(file.path), offset, shape))


def plain_values(values: Array, dtype: str, shape: Shape, name: str) -> Plain:
    """A tensor from values in the program: elements, or the bytes that hold them. Raises ExecuteError."""
    numpy_type = stored_type(dtype)
    if numpy_type is None:
        raise ExecuteError(f"constant {name!r} has type {dtype}, which cannot be read")
    if values.dtype == np.uint8 and dtype not in ("uint8", "bool") and not packed_bits(dtype):
        if values.size != prod(shape) * numpy_type.itemsize:
            raise ExecuteError(f"constant {name!r} has {values.size} bytes, not those of {list(shape)} {dtype}")
        values = values.view(numpy_type)
    elif not packed_bits(dtype) and dtype != "string":
        values = values.astype(numpy_type)
    count = values.size if not packed_bits(dtype) else values.size * 8 // packed_bits(dtype)
    if count < prod(shape) or (count > prod(shape) and not packed_bits(dtype)):
        raise ExecuteError(f"constant {name!r} has {count} values, not those of shape {list(shape)}")
    return Plain(values, dtype, shape)
