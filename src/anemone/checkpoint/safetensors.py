"""Safetensors files, one or many with an index, mapped into memory.

The reader is our own because a bfloat16 row range must come as a view of the file, without a copy, which the
library's numpy interface does not give. Format: https://github.com/huggingface/safetensors#format
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from anemone.checkpoint.base import TensorInfo, read_json
from anemone.checkpoint.mapping import MappedFiles
from anemone.errors import CheckpointError

DTYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16)}
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

_LARGEST_HEADER = 100_000_000  # bytes; the limit of the format's own library


@dataclass(frozen=True)
class _Entry:
    info: TensorInfo
    file: Path
    start: int  # byte offsets in the file
    end: int


class SafetensorsWeights:
    """The tensors of a Hugging Face folder."""

    def __init__(self, folder: Path) -> None:
        """Read the headers. CheckpointError for missing, damaged or contradicting files."""
        self._entries = _sharded(folder) if _is_sharded(folder) else _header(_single_file(folder))
        self._mapped = MappedFiles()

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return {name: entry.info for name, entry in self._entries.items()}

    @cached_property
    def files(self) -> tuple[Path, ...]:
        return tuple(sorted({entry.file for entry in self._entries.values()}))

    def read(self, name: str, rows: slice | None = None) -> NDArray[Any]:
        """A read-only view; see Checkpoint.read."""
        entry = self._entries.get(name)
        if entry is None:
            raise CheckpointError(f"The checkpoint has no tensor {name}.")
        dtype = DTYPES.get(entry.info.dtype)
        if dtype is None:
            raise CheckpointError(
                f"Tensor {name} is stored as {entry.info.dtype}, which cannot be read as numbers; "
                f"use a checkpoint in {', '.join(DTYPES)}."
            )
        raw = self._mapped.bytes(entry.file)[entry.start : entry.end]
        tensor: NDArray[Any] = raw.view(dtype).reshape(entry.info.shape)
        return tensor if rows is None else tensor[rows]

    def release(self) -> None:
        """See Checkpoint.release."""
        self._mapped.release()


def _is_sharded(folder: Path) -> bool:
    return not (folder / SINGLE).is_file() and (folder / INDEX).is_file()


def _single_file(folder: Path) -> Path:
    if (folder / SINGLE).is_file():
        return folder / SINGLE
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found[0]
    if found:
        raise CheckpointError(
            f"{folder} holds {len(found)} .safetensors files but neither {SINGLE} nor {INDEX}, "
            "so it is not known which belong together; add the index."
        )
    pickles = sorted(folder.glob("*.bin")) + sorted(folder.glob("*.pth"))
    also = f"; {pickles[0].name} is a PyTorch pickle, save it as safetensors first" if pickles else ""
    raise CheckpointError(f"{folder} has a config.json but no .safetensors file{also}.")


def _sharded(folder: Path) -> dict[str, _Entry]:
    index = folder / INDEX
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise CheckpointError(f"{index} has no weight_map from tensor names to files; download it again.")
    entries: dict[str, _Entry] = {}
    for shard in sorted(set(weight_map.values())):
        file = folder / shard
        if not file.is_file():
            raise CheckpointError(f"{file} is missing, although {INDEX} lists it; download it again.")
        for name, entry in _header(file).items():
            if name in entries:
                raise CheckpointError(f"Tensor {name} is in both {entries[name].file.name} and {shard} of {folder}.")
            entries[name] = entry
    for name, shard in weight_map.items():
        if name not in entries or entries[name].file != folder / shard:
            raise CheckpointError(f"Tensor {name} is not in {shard}, where {index} places it.")
    return entries


def _header(file: Path) -> dict[str, _Entry]:
    """Name -> entry, from the first bytes of the file."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        first = stream.read(8)
        length = int.from_bytes(first, "little")
        if first == b"version ":  # the text that git leaves in place of a large file
            raise CheckpointError(f"{file} is a Git LFS pointer, not the weights; run `git lfs pull` in its folder.")
        if len(first) < 8 or length > min(_LARGEST_HEADER, size - 8):
            raise CheckpointError(f"{file} ({size} bytes) is not a safetensors file, or is cut short in its header.")
        header = _parse(stream.read(length), file)
    header.pop("__metadata__", None)
    start = 8 + length
    return {name: _entry(name, fields, file, start, size) for name, fields in header.items()}


def _parse(text: bytes, file: Path) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise CheckpointError(f"{file} lists {twice} twice in its header.")
        return fields

    try:
        header = json.loads(text, object_pairs_hook=once)
    except ValueError as error:
        raise CheckpointError(f"The header of {file} is not valid JSON ({error}); download it again.") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"The header of {file} is not a JSON object; download it again.")
    return header


def _entry(name: str, fields: Any, file: Path, start: int, size: int) -> _Entry:
    try:
        info = TensorInfo(name, tuple(int(n) for n in fields["shape"]), str(fields["dtype"]))
        begin, end = (start + int(offset) for offset in fields["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"The header entry of {name} in {file} is malformed; download it again.") from error
    if end > size:
        raise CheckpointError(f"{file} is cut short: {name} ends at byte {end}, the file at {size}; download it again.")
    dtype = DTYPES.get(info.dtype)
    if dtype is not None and end - begin != math.prod(info.shape) * dtype.itemsize:
        raise CheckpointError(f"{file} gives {end - begin} bytes to {name}, a {info.dtype} of shape {info.shape}.")
    return _Entry(info, file, begin, end)
