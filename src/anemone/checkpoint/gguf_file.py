"""The container of GGUF: metadata and tensor table of one file or of all parts of a split one.

The reader is our own because the library's makes several arrays per metadata value: 2 s and more for a vocabulary,
against 0.1 s here. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import mmap
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from anemone.errors import CheckpointError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_SPLIT_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True)
class GgufTensor:
    """A tensor as stored: shape with rows first, and where its bytes lie."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    file: Path
    start: int
    nbytes: int


@dataclass(frozen=True)
class GgufFile:
    """Metadata by key (of the first part) and tensors by GGUF name (of all parts)."""

    path: Path
    files: tuple[Path, ...]
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def split_parts(path: Path) -> tuple[Path, ...]:
    """All parts of a GGUF by their names, first part first; (path,) when the name is not that of a part."""
    match = _SPLIT_NAME.fullmatch(path.name)
    if match is None:
        return (path,)
    stem, _, count = match.groups()
    return tuple(path.with_name(f"{stem}-{number:05d}-of-{count}.gguf") for number in range(1, int(count) + 1))


def read_gguf(path: Path) -> GgufFile:
    """Headers of a GGUF file, and of its sister parts if it is split; CheckpointError for damaged or missing files."""
    files = split_parts(path)
    metadata: dict[str, Any] = {}
    tensors: dict[str, GgufTensor] = {}
    for number, file in enumerate(files):
        if not file.is_file():
            raise CheckpointError(f"{file} is missing, one of the {len(files)} parts of this GGUF; download it again.")
        part_metadata, part_tensors = _read_part(file)
        if number == 0:
            metadata = part_metadata
        for tensor in part_tensors:
            if tensor.name in tensors:
                raise CheckpointError(f"{file} lists tensor {tensor.name} a second time.")
            tensors[tensor.name] = tensor
    parts = metadata.get("split.count", 1)
    if parts > 1 and parts != len(files):
        raise CheckpointError(
            f"{path} is one of {parts} parts; give it its name back (NAME-00001-of-{parts:05d}.gguf) beside the others."
        )
    return GgufFile(path, files, metadata, tensors)


def _read_part(file: Path) -> tuple[dict[str, Any], list[GgufTensor]]:
    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise CheckpointError(f"{file} is not a GGUF file: it does not begin with the letters GGUF.")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _parse(_Cursor(data), file)
            except struct.error as error:
                raise CheckpointError(f"{file} is cut short or damaged in its header; download it again.") from error
            except UnicodeDecodeError as error:
                raise CheckpointError(f"{file} is damaged: its header holds text that is not UTF-8.") from error


def _parse(cursor: "_Cursor", file: Path) -> tuple[dict[str, Any], list[GgufTensor]]:
    (version,) = cursor.unpack("I")
    if version not in (2, 3):
        raise CheckpointError(f"{file} has GGUF version {version}, but 2 and 3 (little-endian) are read.")
    tensor_count, key_count = cursor.unpack("QQ")
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = cursor.string()
        metadata[key] = cursor.value(*cursor.unpack("I"))
    table = [(cursor.string(), cursor.dimensions(), *cursor.unpack("IQ")) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    data_start = -(-cursor.offset // alignment) * alignment
    return metadata, [
        _tensor(file, name, shape, kind, data_start + offset, len(cursor.data)) for name, shape, kind, offset in table
    ]


def _tensor(file: Path, name: str, shape: tuple[int, ...], kind: int, start: int, size: int) -> GgufTensor:
    try:
        known = GGMLQuantizationType(kind)
    except ValueError:
        raise CheckpointError(
            f"Tensor {name} of {file} has GGML type {kind}, which the installed gguf library does not know; update it."
        ) from None
    block, block_bytes = GGML_QUANT_SIZES[known]
    if shape and shape[-1] % block:
        raise CheckpointError(f"Tensor {name} of {file} has rows of {shape[-1]}, but {known.name} blocks hold {block}.")
    nbytes = math.prod(shape) // block * block_bytes
    if start + nbytes > size:
        raise CheckpointError(
            f"{file} is cut short: {name} ends at byte {start + nbytes}, the file at {size}; download it again."
        )
    return GgufTensor(name, shape, known, file, start, nbytes)


class _Cursor:
    """Reads values in file order; struct.error beyond the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.offset = 4  # after the magic

    def unpack(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + layout, self.data, self.offset)
        self.offset += struct.calcsize("<" + layout)
        return values

    def string(self) -> str:
        (length,) = self.unpack("Q")
        end = self.offset + length
        if end > len(self.data):
            raise struct.error("string beyond the end")
        text = self.data[self.offset : end]
        self.offset = end
        return text.decode()

    def dimensions(self) -> tuple[int, ...]:
        """The shape, turned to rows first; the file has the fastest axis first."""
        (count,) = self.unpack("I")
        return tuple(reversed(self.unpack(f"{count}Q")))

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item, count = self.unpack("IQ")
            if item in _SCALARS:
                return list(self.unpack(f"{count}{_SCALARS[item]}"))
            return [self.value(item) for _ in range(count)]
        if kind not in _SCALARS:
            raise struct.error(f"unknown value type {kind}")
        return self.unpack(_SCALARS[kind])[0]
