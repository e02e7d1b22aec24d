"""Everything that decides a conversion, as one frozen value that is printed, hashed and stored in the bundle."""

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

from anemone.compress.spec import LutSpec, parse_lut
from anemone.errors import RecipeError

MAX_CONTEXT = 16384
"""Longest axis that every ANE generation accepts (65,536 only from A16 on; ane-guide, appendix A)."""

PLATFORM_LIMITS = {"any": None, "ios": 1 << 30, "macos": 2 << 30}
"""Bytes per weight file above which a platform fails to load it (ANEMLL's documented limits)."""

_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

FFN_DEFAULT, HEAD_DEFAULT = LutSpec(4, 8), LutSpec(6, 8)


@dataclass(frozen=True)
class Recipe:
    """How a checkpoint becomes packages.

    context: KV rows; batch: rows of a prefill call; lut_*: palettisation of embeddings, decoder layers and LM head
    (None keeps fp16); chunks: number of decoder packages, None for the fewest whose estimate stays below max_chunk_mb
    MiB; head_split: number of LM-head parts, None for the family's habit; argmax: the head returns its best token in
    place of logits; score: add the functions that return every row of a batch; kv_write: "slice" or "mask";
    silu: "tanh" or "native", how the MLP's SiLU is written;
    prefix: start of the file names, None for the family's; platform: "any", "ios" or "macos"; layout: file and I/O
    names. Raises RecipeError on a value that cannot work with any checkpoint.
    """

    context: int = 512
    batch: int = 64
    lut_embeddings: LutSpec | None = None
    lut_ffn: LutSpec | None = FFN_DEFAULT
    lut_lmhead: LutSpec | None = HEAD_DEFAULT
    chunks: int | None = None
    max_chunk_mb: int = 950
    head_split: int | None = None
    argmax: bool = False
    score: bool = True
    kv_write: str = "slice"
    silu: str = "tanh"
    prefix: str | None = None
    platform: str = "any"
    layout: str = "anemll"

    def __post_init__(self) -> None:
        _within(
            "context", self.context, 1, MAX_CONTEXT, "the longest axis that every ANE accepts; use a shorter context"
        )
        _within("batch", self.batch, 1, self.context, "the context; use a smaller batch or a longer context")
        _within("max-chunk-mb", self.max_chunk_mb, 1, 1 << 20, "a terabyte")
        for name, value in (("chunk", self.chunks), ("head-split", self.head_split)):
            if value is not None and value < 1:
                raise RecipeError(f"{name} is {value}, the least is 1")
        _one_of("kv-write", self.kv_write, ("slice", "mask"))
        _one_of("silu", self.silu, ("tanh", "native"))
        _one_of("platform", self.platform, tuple(PLATFORM_LIMITS))
        _one_of("layout", self.layout, ("anemll",))
        if self.prefix is not None and (not _PREFIX.fullmatch(self.prefix) or "_chunk_" in self.prefix):
            raise RecipeError(
                f"prefix {self.prefix[:80]!r} becomes file names: use up to 64 of A-Z, a-z, 0-9, '_', '-' and '.', the "
                "first a letter or digit, without _chunk_"
            )

    def as_dict(self) -> dict[str, Any]:
        """Plain scalars, ready for JSON and YAML; ``from_dict`` reads it back."""
        return {
            field.name: str(value) if isinstance(value := getattr(self, field.name), LutSpec) else value
            for field in dataclasses.fields(self)
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Recipe":
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(values) - known):
            raise RecipeError(f"unknown recipe key {unknown[0]!r}; known are {', '.join(sorted(known))}")
        luts = {name: parse_lut(str(values[name] or "none")) for name in values if name.startswith("lut_")}
        return cls(**(values | luts))


def _within(name: str, value: int, low: int, high: int, why: str) -> None:
    if not low <= value <= high:
        raise RecipeError(f"{name} is {value}, allowed is {low} to {high} ({why})")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise RecipeError(f"{name} is {value!r}, allowed is {', '.join(allowed)}")
