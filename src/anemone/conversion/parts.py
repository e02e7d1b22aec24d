"""Writing one part of a plan: each weight read, compressed, stored and forgotten, then the program over them."""

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anemone.checkpoint import Checkpoint
from anemone.compress.fp16 import Fp16Loss, combine, to_fp16
from anemone.compress.palettize import palettize_blocks
from anemone.compress.spec import LutSpec
from anemone.conversion.plan import Part, Plan
from anemone.conversion.sizes import PALETTISED_ROLES
from anemone.errors import PackageError
from anemone.graph.functions import head_sizes
from anemone.graph.ir import Weight
from anemone.package.meta import package_metadata
from anemone.package.mlpackage import Description, PackageWriter
from anemone.package.read import read_package
from anemone.progress import Progress
from anemone.version import __version__

ENCODING = 1
"""Raise it when equal recipes and sources give other bytes than before, so that old parts are not kept."""

KEY = "com.anemone.key"
"""Where a package's metadata holds its part_key."""

BLOCK_VALUES = 4 << 20
"""Values of a tensor that are read and cast at a time."""

DESCRIPTIONS = {"embeddings": "Embeddings", "lm_head": "LM Head", "chunk": "Multifunction FFN+Prefill"}


Losses: TypeAlias = dict[tuple[str, int], Fp16Loss]
"""By weight and first row, so that rows read again do not count again."""


@dataclass(frozen=True)
class Build:
    """A part on disk. ``summary`` says how its weights are stored; ``loss`` counts what fp16 could not hold."""

    part: Part
    path: Path
    bytes: int
    summary: str
    reused: bool
    loss: Fp16Loss = field(default_factory=Fp16Loss)

    @classmethod
    def kept(cls, part: Part, path: Path) -> "Build":
        """A part that was finished before."""
        formats = read_package(path).formats()
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        counts = {name: count for name, (count, _) in formats.items()}
        return cls(part, path, size, _summary(counts), True)


def part_key(plan: Plan, part: Part, source_hash: str) -> str:
    """What decides a part's bytes: its share of the recipe, the decoder and the source's weights."""
    recipe = plan.recipe
    share: dict[str, Any] = {"context": recipe.context, "batch": recipe.batch, "score": recipe.score}
    share |= {"lut": str(part.lut), "layers": list(part.layers), "chunks": len(plan.chunks)}
    share |= {"kv_write": recipe.kv_write, "silu": recipe.silu, "head_split": plan.head_split, "argmax": recipe.argmax}
    facts = [ENCODING, __version__, part.name, share, dataclasses.asdict(plan.config), source_hash]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def finished(path: Path, part: Part, key: Callable[[], str]) -> bool:
    """Whether the package at ``path`` is this part, completed with this key (packages appear only when complete)."""
    try:
        if not path.is_dir():
            return False
        package = read_package(path)
    except PackageError:
        return False
    return package.weight_bytes == part.weight_bytes and package.user_defined.get(KEY) == key()


def build_part(
    plan: Plan, part: Part, source: Checkpoint, key: Callable[[], str], path: Path, workers: int, progress: Progress
) -> Build:
    """Write the part to ``path``. Raises PackageError when the bytes reached are not the bytes planned.

    ``key`` (see part_key) is asked for last, so that hashing the source can go on meanwhile.
    """
    losses: Losses = {}
    weights = part.program.weights().values()
    total = sum(_megabytes(weight) for weight in weights)
    with PackageWriter(path) as package, progress.stage(part.name, total, "MB") as stage:
        for weight in weights:
            _store(package, weight, part.lut, source, workers, losses)
            stage.advance(_megabytes(weight))
        written = package.finish(part.program, _describe(plan, part, key()))
    if written.weight_bytes != part.weight_bytes:
        raise PackageError(
            f"{path.name} holds {written.weight_bytes} bytes of weights, planned were {part.weight_bytes}"
        )
    counts = Counter(stored.format for stored in written.stored.values())
    return Build(part, path, written.bytes, _summary(counts), False, combine(losses.values()))


def _store(
    package: PackageWriter,
    weight: Weight,
    lut: LutSpec | None,
    source: Checkpoint,
    workers: int,
    losses: Losses,
) -> None:
    if weight.constant is not None:
        package.add_dense(weight.key, weight.shape, weight.constant)
        return
    first, last = weight.rows or (0, source.tensors[weight.source].shape[0])

    def read(rows: slice) -> NDArray[np.float16]:
        values = source.read(weight.source, slice(first + rows.start, first + rows.stop))
        narrowed, loss = to_fp16(values, weight.source)
        losses[weight.key, rows.start] = loss  # large groups are read twice
        source.release()
        return narrowed

    count, columns = last - first, prod(weight.shape) // (last - first)
    if lut and weight.role in PALETTISED_ROLES:
        blocks = palettize_blocks(read, count, columns, lut.bits, lut.group, workers=workers)
        package.add_lut(weight.key, weight.shape, blocks)
        return
    step = max(1, BLOCK_VALUES // columns)
    package.add_dense(weight.key, weight.shape, (read(slice(a, min(a + step, count))) for a in range(0, count, step)))


def _describe(plan: Plan, part: Part, key: str) -> Description:
    user_defined = package_metadata(plan.recipe, part.lut, __version__) | {KEY: key}
    if part.kind == "chunk":
        number = plan.chunks.index(part) + 1
        user_defined |= {"com.anemll.num_chunks": str(len(plan.chunks)), "com.anemll.chunk_no": str(number)}
    if part.kind == "lm_head":
        sizes = head_sizes(plan.config.vocab, plan.head_split)
        user_defined |= {
            "com.anemll.vocab_size": str(plan.config.vocab),
            "com.anemll.lm_head_chunk_sizes": ",".join(map(str, sizes)),
        }
        if plan.recipe.argmax:
            user_defined["com.anemll.argmax_in_model"] = "true"
    functions = ",".join(function.name for function in part.program.functions)
    return Description(
        short=f"{DESCRIPTIONS[part.kind]} of a {plan.config.model_type} model, for the Apple Neural Engine",
        author=f"anemone {__version__}",
        version=__version__,
        user_defined=user_defined | {"com.anemll.functions": functions},
    )


def _summary(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _megabytes(weight: Weight) -> float:
    return 2 * prod(weight.shape) / 1e6
