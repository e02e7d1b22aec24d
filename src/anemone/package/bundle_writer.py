"""Completing a bundle: tokenizer files, config.json and meta.yaml for ANEMLL's apps, and the manifest."""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from anemone.errors import PackageError
from anemone.jsontext import dumps
from anemone.package.bundle import MANIFEST, META, file_hashes, sha256, write_text
from anemone.package.place import replacing

TOKENIZER_CLASSES = {"qwen2": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer"}

CONFIG_KEYS = {"model_type", "tokenizer_class", "bos_token_id", "eos_token_id"}
"""All that ``write_config`` writes, by which a bundle's config.json differs from a checkpoint's."""


def write_tokenizer(folder: Path, files: Mapping[str, bytes | Path]) -> None:
    """Copy the tokenizer files into the bundle, atomically each."""
    for name, content in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as part:
            if isinstance(content, bytes):
                part.write_bytes(content)
            else:
                shutil.copyfile(content, part)


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


def write_manifest(
    folder: Path, values: Mapping[str, Any], packages: Mapping[str, Mapping[str, str]], others: Iterable[str]
) -> None:
    """manifest.json: ``values`` and the SHA-256 of every file of the bundle.

    ``packages`` brings those of the packages, ``others`` names the rest: files, and folders for what is in them.
    """
    files = {f"{package}/{name}": digest for package, digests in packages.items() for name, digest in digests.items()}
    for name in others:
        if (folder / name).is_dir():
            files |= {f"{name}/{inner}": digest for inner, digest in file_hashes(folder / name).items()}
        else:
            files[name] = sha256(folder / name)
    write_text(folder / MANIFEST, dumps({**values, "files": dict(sorted(files.items()))}, indent=2) + "\n")


def forget(folder: Path) -> None:
    """Take away what makes the folder a bundle, before a package that it names is replaced by a different one."""
    for name in (META, MANIFEST):
        (folder / name).unlink(missing_ok=True)


def check_folder(folder: Path) -> None:
    """Refuse to write a bundle over something else."""
    if folder.exists() and not folder.is_dir():
        raise PackageError(f"{folder} is a file; give a folder for the bundle")
    config = folder / "config.json"
    if config.is_file() and not (folder / META).is_file() and not _is_ours(config):
        raise PackageError(
            f"{folder} holds a checkpoint or another model; give another folder, its config.json would be replaced"
        )


def _is_ours(config: Path) -> bool:
    try:
        return set(json.loads(config.read_text("utf-8"))) <= CONFIG_KEYS
    except (ValueError, TypeError):
        return False
