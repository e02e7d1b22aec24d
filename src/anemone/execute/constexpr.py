"""Compressed constants: what MIL's constexpr operations say, decoded a range of rows at a time.

Each class is one formula over other constants, so that they nest: a table of a palettised weight may itself be
quantised. Results are computed in fp32 and rounded once to their declared type.
"""

from collections.abc import Callable, Mapping
from math import prod

import numpy as np

from anemone.errors import ExecuteError
from anemone.execute.dtypes import Array, Shape
from anemone.execute.numerics import round_half
from anemone.execute.stored import Plain, Stored


class Lut(Stored):
    """Palettised: ``indices`` into tables of shape (tables per axis..., palette, vector).

    An axis of n indices and t tables gives each table n/t consecutive positions. A vector replaces one index by
    ``vector`` consecutive elements along ``vector_axis``.
    """

    def __init__(self, indices: Stored, tables: Stored, vector_axis: int = 0) -> None:
        rank = len(indices.shape)
        self.indices, self.tables = indices, tables
        self.grid, (palette, self.vector) = tables.shape[:-2], tables.shape[-2:]
        if len(self.grid) != rank or any(n % t for n, t in zip(indices.shape, self.grid, strict=True)):
            raise ExecuteError(f"tables {list(tables.shape)} do not divide indices {list(indices.shape)}")
        if indices.dtype != f"uint{palette.bit_length() - 1}":
            raise ExecuteError(f"indices of type {indices.dtype} do not fit a table of {palette} values")
        self.palette = palette
        self.vector_axis = vector_axis % rank
        self.dtype = tables.dtype
        self.shape = tuple(n * (self.vector if a == self.vector_axis else 1) for a, n in enumerate(indices.shape))
        self.key = ("lut", indices.key, tables.key, self.vector_axis)
        self._values: dict[bool, Array] = {}

    def rows(self, start: int, stop: int) -> Array:
        return self._decode(start, stop, wide=False)

    def wide_rows(self, start: int, stop: int) -> Array:
        return self._decode(start, stop, wide=True)

    def _table(self, wide: bool) -> Array:
        """(tables, palette, vector)"""
        if wide not in self._values:
            values = self.tables.wide_array() if wide else self.tables.array()
            self._values[wide] = values.reshape(-1, self.palette, self.vector)
        return self._values[wide]

    def _decode(self, start: int, stop: int, wide: bool) -> Array:
        table = self._table(wide)
        step = self.vector if self.vector_axis == 0 else 1
        first, last = start // step, -(-stop // step)
        if self.vector == 1 and prod(self.grid[1:]) == 1:
            return self._decode_groups(table[:, :, 0], first, last).reshape(last - first, *self.shape[1:])
        indices = self.indices.rows(first, last).astype(np.intp)
        which = self._table_of(first, last)
        values = table.reshape(-1, self.vector)[which * self.palette + indices]
        values = np.moveaxis(values, -1, self.vector_axis + 1)  # the vector directly behind its axis
        values = values.reshape(-1, *self.shape[1:])
        return values[start - first * step : stop - first * step]

    def _table_of(self, first: int, last: int) -> Array:
        """Which table each index of these rows uses, broadcastable to them."""
        result = np.zeros((1,) * len(self.grid), np.intp)
        for axis, (count, tables) in enumerate(zip(self.indices.shape, self.grid, strict=True)):
            positions = np.arange(first, last) if axis == 0 else np.arange(count)
            shape = [-1 if other == axis else 1 for other in range(len(self.grid))]
            result = result * tables + (positions // (count // tables)).reshape(shape)
        return result

    def _decode_groups(self, table: Array, first: int, last: int) -> Array:
        """(rows, elements of a row) when the row alone decides the table; at 4 bits one lookup gives two elements."""
        group = self.indices.shape[0] // self.grid[0]
        row = prod(self.indices.shape[1:])
        result = np.empty((last - first, row), table.dtype)
        paired = isinstance(self.indices, Plain) and self.indices.bits == 4 and row % 2 == 0
        if isinstance(self.indices, Plain) and paired:
            width, items = row // 2, self.indices.data[first * row // 2 : last * row // 2]
        else:
            width, items = row, self.indices.rows(first, last).reshape(-1)
        for index in range(first // group, -(-last // group)):
            begin, end = max(first, index * group) - first, min(last, (index + 1) * group) - first
            part, out = items[begin * width : end * width], result[begin:end].reshape(-1)
            if paired:
                np.take(_pairs(table[index]), part, out=out.view(_PAIR[out.dtype.itemsize]), mode="clip")
            else:
                np.take(table[index], part, out=out, mode="clip")
        return result


_PAIR = {1: np.uint16, 2: np.uint32, 4: np.uint64}


def _pairs(table: Array) -> Array:
    """For each byte of two 4-bit indices the two values, as one item of twice the size."""
    both = np.empty((16, 16, 2), table.dtype)
    both[:, :, 0] = table[None, :]  # the low half of the byte comes first
    both[:, :, 1] = table[:, None]
    return both.reshape(256, 2).view(_PAIR[table.dtype.itemsize]).reshape(256)


class ShiftScale(Stored):
    """Quantised: (data - offset) * scale. n data and s scales on an axis make blocks of n/s with one scale each."""

    def __init__(self, data: Stored, scale: Stored, offset: Stored | None) -> None:
        if len(data.shape) != len(scale.shape) or any(n % s for n, s in zip(data.shape, scale.shape, strict=True)):
            raise ExecuteError(f"scales {list(scale.shape)} do not divide data {list(data.shape)}")
        self.data, self.scale, self.offset = data, scale, offset
        self.dtype, self.shape = scale.dtype, data.shape
        self.key = ("scale", data.key, scale.key, offset.key if offset else None)

    def rows(self, start: int, stop: int) -> Array:
        values = self.wide_rows(start, stop)
        return values.astype(np.float16) if self.dtype == "fp16" else values

    def wide_rows(self, start: int, stop: int) -> Array:
        blocked: list[int] = [stop - start]
        for count, scales in zip(self.shape[1:], self.scale.shape[1:], strict=True):
            blocked += [scales, count // scales]
        values = self.data.wide_rows(start, stop).astype(np.float32).reshape(blocked)
        if self.offset is not None:
            values -= self._per_block(self.offset, start, stop)
        values *= self._per_block(self.scale, start, stop)
        values = values.reshape(stop - start, *self.shape[1:])
        return round_half(values) if self.dtype == "fp16" else values

    def _per_block(self, stored: Stored, start: int, stop: int) -> Array:
        block = self.shape[0] // stored.shape[0]
        first, last = start // block, -(-stop // block)
        values = stored.wide_rows(first, last).astype(np.float32)[np.arange(start, stop) // block - first]
        blocked: Array = values.reshape([stop - start, *(n for size in stored.shape[1:] for n in (size, 1))])
        return blocked


class Affine(ShiftScale):
    """Quantised with a scalar or a vector along one axis, as iOS16 writes it."""

    def __init__(self, data: Stored, scale: Stored, offset: Stored, axis: int) -> None:
        super().__init__(data, _along(scale, axis, data.shape), _along(offset, axis, data.shape))


def _along(stored: Stored, axis: int, shape: Shape) -> Plain:
    """A scalar or a vector along ``axis`` with the rank of ``shape``."""
    values = stored.array().reshape(-1)
    where = axis % len(shape)
    new_shape = tuple(values.size if a == where else 1 for a in range(len(shape)))
    return Plain(values, stored.dtype, new_shape, key=("along", stored.key, axis, len(shape)))


class Sparse(Stored):
    """Values where the mask has a one, zero elsewhere."""

    def __init__(self, nonzero: Stored, mask: Stored) -> None:
        self.nonzero, self.mask = nonzero, mask
        self.dtype, self.shape = nonzero.dtype, mask.shape
        self.key = ("sparse", nonzero.key, mask.key)
        self._before: Array | None = None  # how many values precede each row

    def rows(self, start: int, stop: int) -> Array:
        if self._before is None:
            counts = [np.zeros(1, np.intp)]
            for first in range(0, self.shape[0], 1024):
                mask = self.mask.rows(first, min(first + 1024, self.shape[0]))
                counts.append(np.count_nonzero(mask.reshape(len(mask), -1), axis=1))
            self._before = np.cumsum(np.concatenate(counts))
        mask = self.mask.rows(start, stop) != 0
        values = self.nonzero.rows(int(self._before[start]), int(self._before[stop]))
        result = np.zeros(mask.shape, values.dtype)
        result[mask] = values
        return result


class Nonzero(Stored):
    """The values of a dense constant where a mask has a one: the second result of the sparse-to-sparse operations."""

    def __init__(self, dense: Stored, mask: Stored, count: int) -> None:
        self.dense, self.mask = dense, mask
        self.dtype, self.shape = dense.dtype, (count,)
        self.key = ("nonzero", dense.key, mask.key)

    def rows(self, start: int, stop: int) -> Array:
        values: Array = self.dense.array()[self.mask.array() != 0]
        return values[start:stop]


class Cast(Stored):
    """fp16 stored, fp32 meant."""

    def __init__(self, source: Stored) -> None:
        self.source = source
        self.dtype, self.shape = "fp32", source.shape
        self.key = ("cast", source.key)

    def rows(self, start: int, stop: int) -> Array:
        return self.source.wide_rows(start, stop)


def _flat_bits(stored: Stored, bits: int, shape: Shape) -> Plain:
    """A byte tensor read as packed elements of ``bits`` bits: how iOS16 stores indices and masks."""
    if stored.size != -(-prod(shape) * bits // 8):
        raise ExecuteError(f"{stored.size} bytes cannot hold {list(shape)} elements of {bits} bits")
    return Plain(stored.array(), f"uint{bits}", shape, key=("bits", stored.key, bits, shape))


def _lut_to_dense(args: Mapping[str, Stored]) -> tuple[Stored, ...]:
    indices, tables = args["indices"], args["lut"]
    if "shape" in args:  # iOS16
        shape = tuple(int(n) for n in args["shape"].array())
        bits = int(tables.shape[0]).bit_length() - 1
        indices = _flat_bits(indices, bits, shape)
        grid = (1,) * len(shape)
        tables = Plain(tables.array(), tables.dtype, (*grid, tables.shape[0], 1), key=("tables", tables.key))
    return (Lut(indices, tables, _int(args, "vector_axis")),)


def _lut_to_sparse(args: Mapping[str, Stored]) -> tuple[Stored, ...]:
    mask, tables = args["indices_mask"], args["lut"]
    axis, vector = _int(args, "vector_axis"), tables.shape[-1]
    nonzero = args["indices_nonzero_data"]
    dense = Lut(Sparse(nonzero, mask), tables, axis)
    if vector > 1:
        repeated = np.repeat(mask.array(), vector, axis)
        mask = Plain(repeated.reshape(-1), "uint8", repeated.shape, key=("repeat", mask.key, axis, vector))
    return mask, Nonzero(dense, mask, nonzero.size * vector)


def _sparse_shift_scale(args: Mapping[str, Stored]) -> tuple[Stored, ...]:
    mask, nonzero = args["data_mask"], args["nonzero_data"]
    dense = ShiftScale(Sparse(nonzero, mask), args["scale"], args.get("offset"))
    return mask, Nonzero(dense, mask, nonzero.size)


def _sparse_to_dense(args: Mapping[str, Stored]) -> tuple[Stored, ...]:
    mask = args["mask"]
    if "shape" in args:  # iOS16
        mask = _flat_bits(mask, 1, tuple(int(n) for n in args["shape"].array()))
    return (Sparse(args["nonzero_data"], mask),)


def _affine(args: Mapping[str, Stored]) -> tuple[Stored, ...]:
    return (Affine(args["quantized_data"], args["scale"], args["zero_point"], _int(args, "axis")),)


def _int(args: Mapping[str, Stored], name: str) -> int:
    return int(args[name].array()) if name in args else 0


KINDS: dict[str, Callable[[Mapping[str, Stored]], tuple[Stored, ...]]] = {
    "constexpr_lut_to_dense": _lut_to_dense,
    "constexpr_lut_to_sparse": _lut_to_sparse,
    "constexpr_blockwise_shift_scale": lambda args: (ShiftScale(args["data"], args["scale"], args.get("offset")),),
    "constexpr_sparse_blockwise_shift_scale": _sparse_shift_scale,
    "constexpr_sparse_to_dense": _sparse_to_dense,
    "constexpr_affine_dequantize": _affine,
    "constexpr_cast": lambda args: (Cast(args["source_val"]),),
}


def constexpr(kind: str, args: Mapping[str, Stored]) -> tuple[Stored, ...]:
    """The constants that a constexpr operation stands for. Raises ExecuteError."""
    if kind not in KINDS:
        raise ExecuteError(f"{kind} is not supported; supported are {', '.join(sorted(KINDS))}")
    try:
        return KINDS[kind](args)
    except KeyError as error:
        raise ExecuteError(f"{kind} has no input {error}") from error
