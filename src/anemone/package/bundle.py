"""A bundle: a folder with packages, tokenizer files, meta.yaml (ANEMLL's keys) and manifest.json (everything else).

meta.yaml is what ANEMLL's apps read; the manifest carries recipe, source hash, sizes, gates and the SHA-256 of
every file. A bundle without manifest (made by ANEMLL) is read from meta.yaml alone.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anemone.errors import PackageError

META = "meta.yaml"
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Bundle:
    """Where a bundle's packages are and what a runtime must know about them."""

    path: Path
    context: int
    batch: int
    vocab: int
    embeddings: Path
    chunks: tuple[Path, ...]
    lm_head: Path
    argmax: bool
    head_sizes: tuple[int, ...]
    has_score: bool
    stop_tokens: tuple[int, ...]
    meta: Mapping[str, Any]
    manifest: Mapping[str, Any]

    @property
    def tokenizer_dir(self) -> Path:
        return self.path

    @property
    def packages(self) -> tuple[Path, ...]:
        return (self.embeddings, *self.chunks, self.lm_head)


def read_bundle(path: str | Path) -> Bundle:
    """Open a bundle folder. Raises PackageError when a file that it names is missing or a key has the wrong kind."""
    import yaml

    path = Path(path)
    if not (path / META).is_file():
        raise PackageError(f"{path} is not a bundle: it has no {META}; give the folder that `anemone convert` wrote")
    try:
        meta = yaml.safe_load((path / META).read_text("utf-8"))
        parameters = meta["model_info"]["parameters"]
    except (yaml.YAMLError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise PackageError(f"{path / META} is damaged: {error}; convert again") from None
    manifest = _read_json(path / MANIFEST)
    count = _whole(parameters, "num_chunks", 1)
    first = str(parameters.get("ffn", ""))
    chunks = [_resolve(path, name) for name in _chunk_names(first, count)]
    vocab = _whole(parameters, "vocab_size", 0)
    sizes = parameters.get("lm_head_chunk_sizes") or _head_sizes(vocab, _whole(parameters, "split_lm_head", 8))
    return Bundle(
        path=path,
        context=_whole(parameters, "context_length", 512),
        batch=_whole(parameters, "batch_size", 64),
        vocab=vocab or sum(sizes),
        embeddings=_resolve(path, str(parameters.get("embeddings", ""))),
        chunks=tuple(chunks),
        lm_head=_resolve(path, str(parameters.get("lm_head", ""))),
        argmax=bool(parameters.get("argmax_in_model", False)),
        head_sizes=tuple(sizes),
        has_score=bool(manifest.get("recipe", {}).get("score", False)),
        stop_tokens=tuple(manifest.get("stop_tokens") or _stop_tokens(path)),
        meta=meta,
        manifest=manifest,
    )


def write_text(path: Path, text: str) -> None:
    """Replace a file's text at once: a reader sees the old or the new one."""
    temporary = path.with_name(f".{path.name}.part")
    with open(temporary, "w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, path)


def file_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file under ``folder``, by relative path."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): sha256(file) for file in files}


def sha256(file: Path) -> str:
    with open(file, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise PackageError(f"{path} is damaged: {error}; convert again") from None
    if not isinstance(value, dict):
        raise PackageError(f"{path} is damaged: it holds no JSON object; convert again")
    return value


def _whole(parameters: Mapping[str, Any], key: str, default: int) -> int:
    value = parameters.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise PackageError(f"{META}: {key} is {value!r}, expected a whole number")
    return value


def _chunk_names(first: str, count: int) -> list[str]:
    """Names of all chunks from the first one's; old bundles give the name without ``_chunk_``."""
    stem, _, suffix = first.rpartition(".") if first.endswith((".mlmodelc", ".mlpackage")) else (first, "", "")
    base = stem.split("_chunk_")[0]
    return [f"{base}_chunk_{i + 1:02d}of{count:02d}.{suffix or 'mlpackage'}" for i in range(count)]


def _resolve(folder: Path, name: str) -> Path:
    """The package that ``name`` means: the .mlpackage beside a compiled .mlmodelc counts as the same part."""
    stem = name.removesuffix(".mlmodelc").removesuffix(".mlpackage")
    for candidate in (f"{stem}.mlpackage", f"{stem}.mlmodelc"):
        if stem and (folder / candidate).is_dir():
            return folder / candidate
    raise PackageError(
        f"{folder} lacks {name or 'a package'} that {META} names; convert again or copy the missing folder"
    )


def _head_sizes(vocab: int, parts: int) -> list[int]:
    base, extra = divmod(vocab, parts)
    return [base + (i < extra) for i in range(parts)]


def _stop_tokens(path: Path) -> list[int]:
    """End-of-sequence ids of config.json and generation_config.json, for bundles without a manifest."""
    found: list[int] = []
    for name in ("config.json", "generation_config.json"):
        value = _read_json(path / name).get("eos_token_id")
        found += [i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int) and i not in found]
    return found
