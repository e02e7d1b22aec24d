"""Writing a .mlpackage: weights streamed into one blob file, then the program that refers to them.

    with PackageWriter("model_FFN.mlpackage") as package:
        package.add_dense("norm", (1, 64, 1, 1), values)
        package.add_lut("q", (64, 64, 1, 1), lut)
        written = package.finish(program, Description(short="FFN", user_defined={"bits": "4"}))

Nothing appears at the path before ``finish``; leaving the block without it leaves nothing at all.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from anemone.compress.tensor import Lut
from anemone.graph.ir import Program, Shape


@dataclass(frozen=True)
class Description:
    """What a package says about itself. ``features`` describes inputs, outputs and states by name."""

    short: str = ""
    author: str = ""
    version: str = ""
    license: str = ""
    user_defined: Mapping[str, str] = field(default_factory=dict)
    features: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stored:
    """How one weight was stored. format: fp16, or lut1 ... lut8; ``group`` rows share a table (0 when dense).

    ``nbytes`` counts indices and table, or values, without alignment.
    """

    shape: Shape
    format: str
    group: int
    nbytes: int


@dataclass(frozen=True)
class Written:
    """A finished package: its size on disk, the size of its weight file (bytes), and each weight by key.

    ``sha256`` holds the hex digest of every file by its path inside the package.
    """

    path: Path
    bytes: int
    weight_bytes: int
    stored: Mapping[str, Stored]
    sha256: Mapping[str, str]


class PackageWriter:
    """Builds the package in a hidden sibling of ``path``; ``finish`` moves it into place."""

    def __init__(self, path: str | Path) -> None:
        """``path`` ends in .mlpackage; an older package there is replaced by ``finish``. PackageError otherwise."""
        raise NotImplementedError

    def __enter__(self) -> "PackageWriter":
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raise NotImplementedError

    def add_dense(
        self, key: str, shape: Shape, values: NDArray[np.float16] | Iterable[NDArray[np.float16]]
    ) -> Stored:
        """Store an fp16 weight of ``shape`` under Weight.key ``key``.

        ``values``: one array, or its consecutive pieces in row-major order (only their sizes must add up). PackageError on another dtype,
        a wrong number of values or a key given twice.
        """
        raise NotImplementedError

    def add_lut(self, key: str, shape: Shape, lut: Lut | Iterable[Lut]) -> Stored:
        """Store a palettised weight of shape (rows, columns) or (rows, columns, 1, 1).

        ``lut``: all rows, or consecutive blocks of rows with the same bits and group (a table per tensor must come as one
        Lut). Bytes go to the file block by block. PackageError on contradictions.
        """
        raise NotImplementedError

    def finish(self, program: Program, description: Description) -> Written:
        """Write the program, sync, and move the package to its path. Every weight of the program must have been added.

        A single function named ``main`` becomes a plain package; anything else a multifunction one whose default is the first function.
        """
        raise NotImplementedError
