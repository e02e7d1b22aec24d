"""A checkpoint: configuration, named tensors that are read on demand, and tokenizer files, whatever the file format."""

import hashlib
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from anemone.errors import CheckpointError

TokenizerFiles = Mapping[str, bytes | Path]
"""File name (with / for subfolders) -> its content, or where it lies."""


@dataclass(frozen=True)
class TensorInfo:
    """A stored tensor as its header describes it; dtype in safetensors' words (F32, F16, BF16, F8_E4M3, U8, ...)."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class Weights(Protocol):
    """Tensors under Hugging Face names, spread over one or more files."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    @property
    def files(self) -> tuple[Path, ...]: ...

    def read(self, name: str, rows: slice | None = None) -> NDArray[Any]: ...

    def release(self) -> None: ...


@dataclass(frozen=True)
class Checkpoint:
    """One model.

    ``config`` is config.json as it stands, with the content of a hf_quant_config.json beside it (ModelOpt's mark of
    quantised weights) under that key; for GGUF it is made from the file's metadata, in the same words.
    """

    path: Path
    name: str
    config: dict[str, Any]
    generation_config: dict[str, Any]
    weights: Weights
    tokenizer: Callable[[], TokenizerFiles]

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every stored tensor by its Hugging Face name, known from the headers alone."""
        return self.weights.tensors

    def read(self, name: str, rows: slice | None = None) -> NDArray[Any]:
        """The tensor, or a range of its rows (first axis), as float32, float16 or bfloat16; not to be written to.

        Safetensors and unquantised GGUF tensors come as views of the mapped file; quantised GGUF tensors are
        dequantised to float32, the rows asked for only. CheckpointError for an unknown name or another dtype.
        """
        return self.weights.read(name, rows)

    def release(self) -> None:
        """Give back the memory of pages that ``read`` has touched; arrays that it gave stay valid."""
        self.weights.release()

    def tokenizer_files(self) -> TokenizerFiles:
        """The files that a bundle carries so that its text side works: tokenizer, chat templates, generation config.

        Found once per object: rebuilding a large vocabulary from a GGUF file takes seconds.
        """
        return self._tokenizer_files

    @cached_property
    def _tokenizer_files(self) -> TokenizerFiles:
        return self.tokenizer()

    def source_hash(self) -> str:
        """SHA-256 (hex) over the whole content of every weight file.

        Whole, because a sampled hash would let a changed weight through; 1 to 2 GB/s, computed once per object. Neither
        names nor paths enter, nor tokenizer files, nor the config, which says the same thing in several layouts.
        """
        return self._source_hash

    @cached_property
    def _source_hash(self) -> str:
        digest = hashlib.sha256()
        with ThreadPoolExecutor() as pool:
            for part in pool.map(_file_digest, self.weights.files):
                digest.update(part)
        return digest.hexdigest()


def _file_digest(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; CheckpointError when it is unreadable or something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}); download it again.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a JSON {type(content).__name__}, but an object is needed.")
    return content
