"""A bundle: a folder with packages, tokenizer files, meta.yaml (ANEMLL's keys) and manifest.json (everything else).

meta.yaml is what ANEMLL's apps read; the manifest carries recipe, source hash, sizes, gates and the SHA-256 of
every file. A bundle without manifest (made by ANEMLL) is read from meta.yaml alone.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anemone.errors import PackageError
from anemone.package.place import replacing

META = "meta.yaml"
MANIFEST = "manifest.json"

FORMAT = 1
"""Of the manifest; readers refuse another."""

MOST, MOST_CHUNKS = 1 << 24, 999
"""Beyond every real context, vocabulary or number of chunks: meta.yaml is edited by hand now and then."""

_CHUNK = re.compile(r"_chunk_\d+of\d+$")


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
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise PackageError(f"{path / META} is damaged: {' '.join(str(error).split())}; convert again") from None
    parameters = _parameters(meta, path / META)
    manifest = _read_manifest(path / MANIFEST)
    chunks = [_resolve(path, name) for name in _chunk_names(_name(parameters, "ffn"), parameters)]
    sizes = _head_sizes(parameters)
    context = _whole(parameters, "context_length", 512)
    return Bundle(
        path=path,
        context=context,
        batch=_whole(parameters, "batch_size", 64, most=context),
        vocab=sum(sizes),
        embeddings=_resolve(path, _name(parameters, "embeddings")),
        chunks=tuple(chunks),
        lm_head=_resolve(path, _name(parameters, "lm_head")),
        argmax=_flag(parameters, "argmax_in_model"),
        head_sizes=tuple(sizes),
        has_score=bool(manifest.get("recipe", {}).get("score", False)),
        stop_tokens=tuple(manifest.get("stop_tokens") or _stop_tokens(path)),
        meta=meta,
        manifest=manifest,
    )


def write_text(path: Path, text: str) -> None:
    """Replace a file's text at once: a reader sees the old or the new one."""
    with replacing(path) as temporary:
        temporary.write_text(text, "utf-8")


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


def _read_manifest(path: Path) -> dict[str, Any]:
    """The manifest, or nothing where there is none; what this module reads from it has the kinds that it needs."""
    manifest = _read_json(path)
    if manifest.get("format", FORMAT) != FORMAT:
        raise PackageError(
            f"{path} has format {manifest['format']}, but this version reads {FORMAT}; use the anemone that wrote it"
        )
    stops = manifest.get("stop_tokens", [])
    if not isinstance(stops, list) or not all(isinstance(token, int) for token in stops):
        raise PackageError(f"{path} is damaged: stop_tokens is {stops!r}, expected a list of token ids; convert again")
    if not isinstance(manifest.get("recipe", {}), dict):
        raise PackageError(f"{path} is damaged: recipe is no object; convert again")
    return manifest


def _parameters(meta: Any, path: Path) -> dict[str, Any]:
    """model_info.parameters of meta.yaml."""
    for key in ("model_info", "parameters"):
        meta = meta.get(key) if isinstance(meta, dict) else None
    if not isinstance(meta, dict):
        raise PackageError(f"{path} is damaged: it has no model_info with parameters; convert again")
    return meta


def _whole(parameters: Mapping[str, Any], key: str, default: int, most: int = MOST) -> int:
    value = parameters.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise PackageError(f"{META}: {key} is {value!r}, expected a whole number from 1 to {most}; convert again")
    return value


def _flag(parameters: Mapping[str, Any], key: str) -> bool:
    value = parameters.get(key, False)
    if not isinstance(value, bool):
        raise PackageError(f"{META}: {key} is {value!r}, expected true or false; convert again")
    return value


def _name(parameters: Mapping[str, Any], key: str) -> str:
    value = parameters.get(key)
    if not isinstance(value, str) or not value:
        if "monolithic_model" in parameters:
            raise PackageError(f"{META} describes one model of all parts; only separate parts are read")
        raise PackageError(f"{META} names no package under {key}; convert again")
    return value


def _chunk_names(first: str, parameters: Mapping[str, Any]) -> list[str]:
    """Names of all chunks from the first one's; old bundles give the name without ``_chunk_``."""
    count = _whole(parameters, "num_chunks", 1, most=MOST_CHUNKS)
    stem, _, suffix = first.rpartition(".") if first.endswith((".mlmodelc", ".mlpackage")) else (first, "", "")
    base = _CHUNK.sub("", stem)
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


def _head_sizes(parameters: Mapping[str, Any]) -> list[int]:
    """Tokens of each part of the head: as listed, or equal shares of the vocabulary."""
    if "lm_head_chunk_sizes" in parameters:
        sizes = parameters["lm_head_chunk_sizes"]
        if not isinstance(sizes, list) or not sizes or not all(isinstance(size, int) and size > 0 for size in sizes):
            raise PackageError(f"{META}: lm_head_chunk_sizes is {sizes!r}, expected a list of numbers; convert again")
        if sum(sizes) != _whole(parameters, "vocab_size", sum(sizes)):
            raise PackageError(
                f"{META}: lm_head_chunk_sizes give {sum(sizes)} tokens, vocab_size {parameters['vocab_size']}; "
                "convert again"
            )
        return sizes
    if "vocab_size" not in parameters:
        raise PackageError(f"{META} has neither vocab_size nor lm_head_chunk_sizes, so token ids cannot be told")
    vocab = _whole(parameters, "vocab_size", 0)
    base, extra = divmod(vocab, parts := _whole(parameters, "split_lm_head", 8, most=vocab))
    return [base + (i < extra) for i in range(parts)]


def _stop_tokens(path: Path) -> list[int]:
    """End-of-sequence ids of config.json and generation_config.json, for bundles without a manifest."""
    found: list[int] = []
    for name in ("config.json", "generation_config.json"):
        value = _read_json(path / name).get("eos_token_id")
        found += [i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int) and i not in found]
    return found
