"""Completing a bundle: tokenizer files, config.json and meta.yaml for ANEMLL's apps, and the manifest."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anemone.errors import PackageError
from anemone.jsontext import dumps
from anemone.package.bundle import MANIFEST, META, file_hashes, sha256, write_text

TOKENIZER_CLASSES = {"qwen2": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer"}


def write_tokenizer(folder: Path, files: Mapping[str, bytes | Path]) -> None:
    """Copy the tokenizer files into the bundle, atomically each."""
    for name, content in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        if isinstance(content, bytes):
            part.write_bytes(content)
        else:
            shutil.copyfile(content, part)
        part.replace(target)


def write_config(folder: Path, model_type: str, stop_tokens: Sequence[int], bos_token: int | None) -> None:
    """config.json with what apps read from it: the tokenizer's class, and the ids that begin and end a text."""
    tokenizer = TOKENIZER_CLASSES.get(model_type, "LlamaTokenizer")
    values: dict[str, Any] = {"model_type": model_type, "tokenizer_class": tokenizer}
    if bos_token is not None:
        values["bos_token_id"] = bos_token
    values["eos_token_id"] = list(stop_tokens)
    write_text(folder / "config.json", json.dumps(values, indent=2) + "\n")


def write_meta(folder: Path, values: Mapping[str, Any]) -> None:
    """meta.yaml with plain scalars, lists on one line and longer texts as literal blocks."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    def sequence(dumper: yaml.SafeDumper, value: list[Any]) -> yaml.SequenceNode:
        return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)

    Dumper.add_representer(str, text)
    Dumper.add_representer(list, sequence)
    dumped = yaml.dump(dict(values), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)
    write_text(folder / META, dumped)


def write_manifest(folder: Path, values: Mapping[str, Any], packages: Mapping[str, Mapping[str, str]]) -> None:
    """manifest.json: ``values`` and the SHA-256 of every file; ``packages`` brings those known already."""
    files: dict[str, str] = {}
    for entry in sorted(folder.iterdir()):
        if entry.name in packages:
            files |= {f"{entry.name}/{name}": digest for name, digest in sorted(packages[entry.name].items())}
        elif entry.is_file() and entry.name != MANIFEST and not entry.name.startswith("."):
            files |= {entry.name: sha256(entry)}
        elif entry.is_dir() and not entry.name.startswith("."):
            files |= {f"{entry.name}/{name}": digest for name, digest in file_hashes(entry).items()}
    write_text(folder / MANIFEST, dumps({**values, "files": files}, indent=2) + "\n")


def check_folder(folder: Path) -> None:
    """Refuse to write a bundle over something else."""
    if folder.exists() and not folder.is_dir():
        raise PackageError(f"{folder} is a file; give a folder for the bundle")
    if folder.is_dir() and (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
        raise PackageError(f"{folder} holds a checkpoint; give another folder, its config.json would be replaced")
