"""Weights as they are stored: dense fp16, or palettised (a table of values and an index per weight)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Dense:
    """fp16 values of any shape, stored as they are."""

    values: NDArray[np.float16]

    def dequantise(self) -> NDArray[np.float16]:
        return self.values

    @property
    def nbytes(self) -> int:
        return self.values.nbytes


@dataclass(frozen=True)
class Lut:
    """A (rows, columns) matrix as indices into tables of 2**bits fp16 values; each table serves ``group`` rows.

    indices: uint8 (rows, columns), each below 2**bits; table: fp16 (rows / group, 2**bits), ascending.
    """

    indices: NDArray[np.uint8]
    table: NDArray[np.float16]
    bits: int

    @property
    def group(self) -> int:
        return int(self.indices.shape[0] // self.table.shape[0])

    def dequantise(self) -> NDArray[np.float16]:
        """(rows, columns) fp16."""
        tables = np.repeat(self.table, self.group, axis=0)
        return np.take_along_axis(tables, self.indices, axis=1)

    @property
    def nbytes(self) -> int:
        """Bytes in the package, alignment apart: packed indices and table."""
        return int(-(-self.indices.size * self.bits // 8)) + int(self.table.nbytes)
