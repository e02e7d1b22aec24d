"""Writing a .mlpackage: weights streamed into one blob file, then the program that refers to them.

    with PackageWriter("model_FFN.mlpackage") as package:
        package.add_dense("norm", (1, 64, 1, 1), values)
        package.add_lut("q", (64, 64, 1, 1), lut)
        written = package.finish(program, Description(short="FFN", user_defined={"bits": "4"}))

Nothing appears at the path before ``finish``; leaving the block without it leaves nothing at all.
"""

import hashlib
import json
import logging
import math
import shutil
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from anemone.compress.tensor import Lut
from anemone.errors import PackageError
from anemone.graph.ir import Program, Shape
from anemone.package import mil
from anemone.package.blob import BlobWriter, size_in_bytes
from anemone.package.check import breaches
from anemone.package.description import Description, model
from anemone.package.place import hidden_sibling, move_into_place
from anemone.package.values import file_value, immediate, is_inline

__all__ = ["Description", "PackageWriter", "Stored", "Written"]

log = logging.getLogger(__name__)

AUTHOR = "com.apple.CoreML"
MODEL_FILE = f"Data/{AUTHOR}/model.mlmodel"
WEIGHTS_FOLDER = f"Data/{AUTHOR}/weights"
WEIGHT_FILE = f"{WEIGHTS_FOLDER}/weight.bin"

INDEX_BITS = (1, 2, 3, 4, 6, 8)
"""Widths of the indices that a palettised weight of Core ML can have."""

PALETTISABLE = ("linear", "head", "embedding")


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
    """A finished package: its size on disk, the size of its weight file (bytes), and each weight by key."""

    path: Path
    bytes: int
    weight_bytes: int
    stored: Mapping[str, Stored]


class PackageWriter:
    """Builds the package in a hidden sibling of ``path``; ``finish`` moves it into place."""

    def __init__(self, path: str | Path) -> None:
        """``path`` ends in .mlpackage; an older package there is replaced by ``finish``. PackageError otherwise."""
        self.path = Path(path)
        if self.path.suffix != ".mlpackage":
            raise PackageError(f"{self.path} must end in .mlpackage.")
        if self.path.exists() and not (self.path / "Manifest.json").is_file():
            raise PackageError(
                f"{self.path} exists and is not a package; it is not replaced. Remove it or choose another path."
            )
        self._stored: dict[str, Stored] = {}
        self._values: dict[str, mil.DenseValue | mil.LutValue] = {}
        self._building = hidden_sibling(self.path, "partial")

    def __enter__(self) -> "PackageWriter":
        shutil.rmtree(self._building, ignore_errors=True)
        (self._building / WEIGHTS_FOLDER).mkdir(parents=True)
        self._blob = BlobWriter(self._building / WEIGHT_FILE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._blob.close()  # fails again where the disk is full
        finally:
            shutil.rmtree(self._building, ignore_errors=True)

    def add_dense(self, key: str, shape: Shape, values: NDArray[np.float16] | Iterable[NDArray[np.float16]]) -> Stored:
        """Store an fp16 weight of ``shape`` under Weight.key ``key``.

        ``values``: one array, or its consecutive pieces in row-major order (only their sizes must add up). PackageError
        on another dtype, a wrong number of values or a key given twice.
        """
        self._check_new(key)
        count = math.prod(shape)
        if is_inline("fp16", count):
            pieces = [values] if isinstance(values, np.ndarray) else list(values)
            array = np.concatenate([piece.reshape(-1) for piece in pieces])
            if array.dtype != np.float16 or array.size != count:
                raise PackageError(f"{key} needs {count} float16 values, not {array.size} of {array.dtype}.")
            value = immediate("fp16", array.reshape(shape))
        else:
            value = file_value("fp16", shape, self._blob.write("fp16", count, values))
        self._values[key] = mil.DenseValue(shape, value)
        return self._keep(key, Stored(shape, "fp16", 0, 2 * count))

    def add_lut(self, key: str, shape: Shape, lut: Lut | Iterable[Lut]) -> Stored:
        """Store a palettised weight of shape (rows, columns) or (rows, columns, 1, 1).

        ``lut``: all rows, or consecutive blocks of rows with the same bits and group (a table per tensor must come as
        one Lut). Bytes go to the file block by block. PackageError on contradictions.
        """
        self._check_new(key)
        blocks = iter([lut] if isinstance(lut, Lut) else lut)
        first = next(blocks, None)
        if first is None:
            raise PackageError(f"{key} got no values.")
        dtype = f"uint{first.bits}"
        if first.bits not in INDEX_BITS:
            raise PackageError(f"{key} has {first.bits}-bit indices; Core ML stores {INDEX_BITS}.")
        tables = []
        with self._blob.tensor(dtype, math.prod(shape)) as tensor:
            for block in chain([first], blocks):
                _check_block(key, shape, block, first)
                tensor.write(block.indices)
                tables.append(block.table)
        table = np.concatenate(tables)
        if shape[0] != len(table) * first.group:
            raise PackageError(f"{key} has {shape[0]} rows, but {len(table)} tables for {first.group} rows each.")
        lut_shape = (len(table), *(1,) * (len(shape) - 1), 2**first.bits, 1)
        if is_inline("fp16", table.size):
            lut_value = immediate("fp16", table.reshape(lut_shape))
        else:
            lut_value = file_value("fp16", lut_shape, self._blob.write("fp16", table.size, table))
        self._values[key] = mil.LutValue(shape, file_value(dtype, shape, tensor.offset), lut_value)
        nbytes = size_in_bytes(dtype, math.prod(shape)) + table.nbytes
        return self._keep(key, Stored(shape, f"lut{first.bits}", first.group, nbytes))

    def finish(self, program: Program, description: Description) -> Written:
        """Write the program, sync, and move the package to its path. Every weight of the program must have been added.

        A single function named ``main`` becomes a plain package; anything else a multifunction one whose default is the
        first function. PackageError when weights are missing, left over or contradict the program, and on any breach of
        ``check.breaches``; the package at the path is then unchanged.
        """
        self._check_weights(program)
        message = model(program, mil.serialise(program, self._values, self._blob), description)
        found = breaches(message)
        if found:
            raise PackageError(f"{self.path.name} would not run: {' '.join(found)}")
        has_weights = self._blob.count > 0
        self._blob.close()
        if not has_weights:
            shutil.rmtree(self._building / WEIGHTS_FOLDER)
        (self._building / MODEL_FILE).write_bytes(message.SerializeToString(deterministic=True))
        (self._building / "Manifest.json").write_text(_manifest(_sha256(self._building / MODEL_FILE), has_weights))
        files = ["Manifest.json", MODEL_FILE, *([WEIGHT_FILE] if has_weights else [])]
        sizes = {name: (self._building / name).stat().st_size for name in files}
        move_into_place(self._building, self.path)
        log.info("wrote %s, %d bytes", self.path, sum(sizes.values()))
        return Written(self.path, sum(sizes.values()), sizes.get(WEIGHT_FILE, 0), dict(self._stored))

    def _check_new(self, key: str) -> None:
        if key in self._stored:
            raise PackageError(f"The weight {key} was added twice.")

    def _keep(self, key: str, stored: Stored) -> Stored:
        self._stored[key] = stored
        return stored

    def _check_weights(self, program: Program) -> None:
        needed = program.weights()
        if needed.keys() != self._stored.keys():
            missing, extra = sorted(needed.keys() - self._stored), sorted(self._stored.keys() - needed)
            raise PackageError(
                f"{self.path.name}: weights missing {missing[:5]}, weights that nothing reads {extra[:5]}."
            )
        for key, weight in needed.items():
            stored = self._stored[key]
            if stored.shape != weight.shape:
                raise PackageError(f"The weight {key} has shape {weight.shape}, but {stored.shape} was stored.")
            if stored.group and weight.role not in PALETTISABLE:
                raise PackageError(
                    f"The weight {key} is a {weight.role}; only {', '.join(PALETTISABLE)} may be palettised."
                )


def _check_block(key: str, shape: Shape, block: Lut, first: Lut) -> None:
    rows, columns = block.indices.shape
    if len(shape) not in (2, 4) or shape[2:] not in ((), (1, 1)) or columns != shape[1]:
        raise PackageError(f"{key} of shape {shape} got indices of shape {block.indices.shape}.")
    if block.bits != first.bits or block.group != first.group or block.group * len(block.table) != rows:
        raise PackageError(
            f"{key} got a block of {rows} rows, {block.bits} bits and {len(block.table)} tables; "
            f"its first block had {first.bits} bits and tables of {first.group} rows."
        )
    if block.table.dtype != np.float16 or block.table.shape[1] != 2**block.bits:
        raise PackageError(f"{key} needs tables of {2**block.bits} float16 values.")
    if not np.isfinite(block.table).all():
        raise PackageError(f"{key} has values in its table that are not finite.")


def _manifest(model_digest: str, has_weights: bool) -> str:
    """Manifest.json; its identifiers follow from the model, so that equal packages are equal byte by byte."""
    items = {MODEL_FILE: "CoreML Model Specification"}
    if has_weights:
        items[WEIGHTS_FOLDER] = "CoreML Model Weights"
    ids = {path: str(uuid.uuid5(uuid.NAMESPACE_OID, f"{path} {model_digest}")) for path in items}
    entries = {
        ids[path]: {
            "author": AUTHOR,
            "description": text,
            "name": path.rpartition("/")[2],
            "path": path.removeprefix("Data/"),
        }
        for path, text in items.items()
    }
    manifest = {"fileFormatVersion": "1.0.0", "itemInfoEntries": entries, "rootModelIdentifier": ids[MODEL_FILE]}
    return json.dumps(manifest, indent=4, sort_keys=True) + "\n"


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
