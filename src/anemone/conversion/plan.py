"""What a conversion will write, from headers alone: parts, chunks with the reason, exact bytes, memory.

``make_plan`` refuses whatever cannot work, so that nothing slow starts in vain.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from anemone.architectures import resolve
from anemone.architectures.base import DecoderConfig
from anemone.checkpoint import Checkpoint, open_checkpoint
from anemone.compress.spec import LutSpec
from anemone.conversion.sizes import bits_per_weight, largest_activation, matrices, program_bytes
from anemone.errors import RecipeError, UnsupportedModel
from anemone.graph.functions import Shapes, chunk_program, embeddings_program, head_program
from anemone.graph.ir import Program
from anemone.graph.kv import state_shape
from anemone.package import layout
from anemone.recipe import PLATFORM_LIMITS, Recipe

OVERHEAD = 1.10
"""ANEMLL's allowance on a chunk's estimated bytes."""

LARGE_PROGRAM = 1 << 30
"""Single programs above 1.0 to 1.4 GB are reported to miss the ANE."""


@dataclass(frozen=True)
class Part:
    """One package to write. layers: empty unless kind is "chunk"; weight_bytes: exact size of its weight file."""

    name: str
    kind: str  # embeddings, lm_head or chunk
    program: Program
    lut: LutSpec | None
    layers: range
    weight_bytes: int

    @property
    def bits_per_weight(self) -> float:
        return bits_per_weight([(weight, self.lut) for weight in matrices(self.program)])


@dataclass(frozen=True)
class Plan:
    """``parts``: embeddings, LM head, then the decoder chunks in order."""

    recipe: Recipe
    config: DecoderConfig
    prefix: str
    head_split: int
    parts: tuple[Part, ...]
    chunk_reason: str
    notes: tuple[str, ...]

    @property
    def chunks(self) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if part.kind == "chunk")

    @property
    def kv_bytes(self) -> int:
        """Bytes of the cache: fp16 keys and values of every layer and position."""
        return 2 * prod(state_shape(self.config, self.recipe.context))

    @property
    def total_bytes(self) -> int:
        return sum(part.weight_bytes for part in self.parts)

    @property
    def bits_per_weight(self) -> float:
        return bits_per_weight([(weight, part.lut) for part in self.parts for weight in matrices(part.program)])

    @property
    def resident_bytes(self) -> int:
        """What a running model holds: weights, cache and its largest activation."""
        return self.total_bytes + self.kv_bytes + max(largest_activation(part.program) for part in self.parts)

    @property
    def peak_memory_mb(self) -> int:
        """Expected anonymous memory of the conversion in MB: the interpreter, and blocks or one whole tensor."""
        largest = max(prod(weight.shape) for part in self.parts for weight in matrices(part.program))
        whole_tensor = any(part.lut and not part.lut.group for part in self.parts)
        blocks = 250 if any(part.lut for part in self.parts) else 50
        return 100 + blocks + (largest // 1_000_000 if whole_tensor else 0)

    def as_dict(self) -> dict[str, Any]:
        return {
            "model_type": self.config.model_type,
            "parts": [_part_dict(part) for part in self.parts],
            "chunks": len(self.chunks),
            "chunk_reason": self.chunk_reason,
            "total_bytes": self.total_bytes,
            "bits_per_weight": round(self.bits_per_weight, 4),
            "kv_bytes": self.kv_bytes,
            "resident_bytes": self.resident_bytes,
            "peak_memory_mb": self.peak_memory_mb,
            "rope": {"kind": self.config.rope.kind, "theta": self.config.rope.theta},
            "layer_types": ["full_attention"] * self.config.layers,
            "notes": list(self.notes),
            "recipe": self.recipe.as_dict(),
        }


def make_plan(source: str | Path | Checkpoint, recipe: Recipe | None = None) -> Plan:
    """Plan the conversion of a checkpoint (or of the one at a path or hub id); reads no weights.

    Raises UnsupportedModel for a model that would be computed wrongly and RecipeError for settings that cannot work.
    """
    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    model = resolve(checkpoint.config, checkpoint.tensors)
    return plan_decoder(model.config, recipe or Recipe(), model.notes)


def plan_decoder(config: DecoderConfig, recipe: Recipe, notes: Sequence[str] = ()) -> Plan:
    """As ``make_plan``, for a decoder that is known already."""
    _check_context(config, recipe)
    prefix = recipe.prefix or layout.default_prefix(config)
    head_split = recipe.head_split or layout.default_head_split(config)
    if head_split > config.vocab:
        raise RecipeError(f"head-split is {head_split}, above the vocabulary of {config.vocab} tokens")
    shapes = Shapes(recipe.context, recipe.batch, recipe.kv_write, recipe.score, recipe.silu)
    count, reason = _chunk_count(config, recipe)
    lut = recipe.lut_embeddings
    name = layout.embeddings_name(prefix, lut.bits if lut else None)
    parts = [_part(name, "embeddings", embeddings_program(config, shapes), lut)]
    lut = recipe.lut_lmhead
    name = layout.head_name(prefix, lut.bits if lut else None)
    parts.append(_part(name, "lm_head", head_program(config, shapes, head_split, recipe.argmax), lut))
    lut = recipe.lut_ffn
    for i, layers in enumerate(split_layers(config.layers, count)):
        name = layout.chunk_name(prefix, lut.bits if lut else None, i, count)
        parts.append(_part(name, "chunk", chunk_program(config, shapes, layers), lut, layers))
    _check_platform(parts, config, recipe, shapes)
    return Plan(recipe, config, prefix, head_split, tuple(parts), reason, (*notes, *_remarks(parts, config)))


def split_layers(layers: int, count: int) -> list[range]:
    """``count`` contiguous ranges; the first ones take the remainder, as ANEMLL's converter does."""
    base, extra = divmod(layers, count)
    starts = [i * base + min(i, extra) for i in range(count + 1)]
    return [range(a, b) for a, b in pairwise(starts)]


def layer_parameters(config: DecoderConfig) -> int:
    """Numbers in one decoder layer, norms and biases included."""
    weights = chunk_program(config, Shapes(context=1, batch=1, score=False), range(1)).weights().values()
    return sum(prod(weight.shape) for weight in weights if weight.source.startswith("model.layers."))


def _part(name: str, kind: str, program: Program, lut: LutSpec | None, layers: range = range(0)) -> Part:
    return Part(name, kind, program, lut, layers, program_bytes(program, lut))


def _part_dict(part: Part) -> dict[str, Any]:
    return {
        "name": part.name,
        "kind": part.kind,
        "layers": [part.layers.start, part.layers.stop] if part.kind == "chunk" else None,
        "functions": [function.name for function in part.program.functions],
        "bytes": part.weight_bytes,
        "bits_per_weight": round(part.bits_per_weight, 4),
    }


def _chunk_count(config: DecoderConfig, recipe: Recipe) -> tuple[int, str]:
    """The number of chunks and why: ANEMLL's rule is the fewest whose largest stays below the limit."""
    if recipe.chunks is not None:
        if recipe.chunks > config.layers:
            raise RecipeError(f"chunk is {recipe.chunks}, but the model has only {config.layers} layers to divide")
        return recipe.chunks, "as asked"
    layer = 2 * layer_parameters(config)  # fp16 bytes
    bits = recipe.lut_ffn.bits if recipe.lut_ffn else 16

    def estimate(count: int) -> int:
        largest = -(-config.layers // count)
        return int(layer * largest * bits / 16 * OVERHEAD)

    limit = recipe.max_chunk_mb << 20
    count = next((n for n in range(1, config.layers + 1) if estimate(n) <= limit), config.layers)
    largest = f"{-(-config.layers // count)} layers of {layer * bits / 16 / 2**20:.1f} MiB + 10 %"
    return count, f"{largest} = {estimate(count) / 2**20:.0f} MiB, limit {recipe.max_chunk_mb} MiB"


def _check_context(config: DecoderConfig, recipe: Recipe) -> None:
    if recipe.context > config.max_positions:
        raise RecipeError(
            f"context is {recipe.context}, but the checkpoint was made for at most {config.max_positions} positions "
            "(max_position_embeddings); use a shorter context"
        )
    if config.sliding_window and recipe.context > config.sliding_window:
        raise UnsupportedModel(
            f"context is {recipe.context}, beyond this model's attention window of {config.sliding_window} tokens "
            f"(sliding_window); use a context of at most {config.sliding_window}"
        )


def _check_platform(parts: Sequence[Part], config: DecoderConfig, recipe: Recipe, shapes: Shapes) -> None:
    limit = PLATFORM_LIMITS[recipe.platform]
    for part in parts:
        if limit is None or part.weight_bytes <= limit:
            continue
        remedy = f"palettise it with fewer bits (--lut-{'embeddings' if part.kind == 'embeddings' else 'lmhead'})"
        if part.kind == "chunk":
            fits = _smallest_fit(config, recipe, shapes, limit)
            remedy = f"use --chunk {fits}, the smallest that fits" if fits else "use fewer bits (--lut-ffn)"
        raise RecipeError(
            f"{part.name} would hold {part.weight_bytes / 2**20:.0f} MiB of weights, above the {limit >> 20} MiB "
            f"that {recipe.platform} loads; {remedy}"
        )


def _smallest_fit(config: DecoderConfig, recipe: Recipe, shapes: Shapes, limit: int) -> int | None:
    def largest(count: int) -> int:
        first = split_layers(config.layers, count)[0]
        return program_bytes(chunk_program(config, shapes, first), recipe.lut_ffn)

    return next((n for n in range(1, config.layers + 1) if largest(n) <= limit), None)


def _remarks(parts: Sequence[Part], config: DecoderConfig) -> list[str]:
    notes = [
        f"{part.name} holds {part.weight_bytes >> 20} MiB in one program; programs above about 1 GiB are reported to "
        "miss the ANE: consider more chunks or fewer bits"
        for part in parts
        if part.weight_bytes > LARGE_PROGRAM
    ]
    notes += [
        f"{part.name} takes {part.bits_per_weight:.1f} bits per weight with its tables, no less than fp16's 16: use "
        f"larger groups than {part.lut.group}, fewer bits or none"
        for part in parts
        if part.lut and part.bits_per_weight >= 16
    ]
    if config.head_dim % 32:
        notes.append(
            f"head_dim {config.head_dim} is the last axis of the cache, where Core ML is reported to need a multiple "
            "of 32"
        )
    return notes
