"""From what a user names to a checkpoint."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from anemone.checkpoint.base import Checkpoint, read_json
from anemone.checkpoint.safetensors import SafetensorsWeights
from anemone.checkpoint.tokenizer import find_tokenizer_files
from anemone.errors import CheckpointError

_EXPECTED = "a folder with config.json and safetensors, a .gguf file, or a hub id such as org/name"
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def open_checkpoint(source: str | Path) -> Checkpoint:
    """Open a Hugging Face folder, a GGUF file (or the folder around a single one), or a hub id "org/name".

    Reads headers only. CheckpointError when nothing usable is there or its files contradict each other;
    UnsupportedModel for a GGUF architecture that is not known.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return _open_folder(path, _name(path.resolve().name))
    if path.suffix == ".gguf" and path.is_file():
        return _open_gguf(path)
    if path.exists():
        raise CheckpointError(f"{source} is not a checkpoint; give {_EXPECTED}.")
    if isinstance(source, str) and _HUB_ID.fullmatch(source) and path.suffix != ".gguf":
        from anemone.checkpoint.hub import download

        folder = download(source)
        if not (folder / "config.json").is_file():
            raise CheckpointError(
                f"{source} on the hub has no config.json; where it holds GGUF files, download one and give its path."
            )
        return _open_folder(folder, source.split("/")[1])
    raise CheckpointError(f"{source} does not exist; give {_EXPECTED}.")


def _name(name: str) -> str:
    """A file's name as text that can be written: bytes in it that are no UTF-8 become question marks."""
    return name.encode(errors="replace").decode()


def _open_folder(folder: Path, name: str) -> Checkpoint:
    if (folder / "config.json").is_file():
        return Checkpoint(
            path=folder,
            name=name,
            config=_config(folder),
            generation_config=_read_if_there(folder / "generation_config.json"),
            weights=SafetensorsWeights(folder),
            tokenizer=lambda: find_tokenizer_files(folder),
        )
    from anemone.checkpoint.gguf_file import split_parts

    models = sorted({split_parts(file)[0] for file in folder.glob("*.gguf")})
    if len(models) == 1:
        return _open_gguf(models[0])
    if models:
        names = ", ".join(model.name for model in models)
        raise CheckpointError(f"{folder} holds {len(models)} GGUF models ({names}); name one of them.")
    raise CheckpointError(f"{folder} has neither config.json nor a .gguf file; give {_EXPECTED}.")


def _config(folder: Path) -> dict[str, Any]:
    config = read_json(folder / "config.json")
    quantised = _read_if_there(folder / "hf_quant_config.json")
    return config | {"hf_quant_config": quantised} if quantised else config


def _read_if_there(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _open_gguf(path: Path) -> Checkpoint:
    from anemone.checkpoint.gguf import GgufWeights
    from anemone.checkpoint.gguf_config import synthesise_generation_config
    from anemone.checkpoint.gguf_file import read_gguf
    from anemone.checkpoint.gguf_tokenizer import rebuild_tokenizer

    file = read_gguf(path)
    weights = GgufWeights(file)
    generation_config = synthesise_generation_config(file.metadata)

    @cache
    def tokenizer() -> dict[str, bytes]:
        files = rebuild_tokenizer(file.metadata, weights.config["max_position_embeddings"])
        return files | {"generation_config.json": json.dumps(generation_config, indent=2).encode()}

    return Checkpoint(path, _name(path.stem), weights.config, generation_config, weights, tokenizer)
