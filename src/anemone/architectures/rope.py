"""Rotary embedding from a config: both layouts of its keys, and the scaling kinds.

Formulas are those of transformers' ``ROPE_INIT_FUNCTIONS``, computed in float64.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anemone.architectures.base import Rope
from anemone.architectures.spec import Keys
from anemone.errors import CheckpointError, UnsupportedModel

ROPE_KEYS = frozenset({"rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"})
_COMMON = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})
_WHY_NOT = {
    "dynamic": "its frequencies change with the length of the text, but a package has one fixed table",
    "longrope": "it switches between two sets of frequencies with the length of the text",
    "su": "the old name of longrope, which switches between two sets of frequencies",
    "mrope": "multimodal positions are not built",
    "proportional": "rotating only part of each head is not built",
}

Frequencies: TypeAlias = NDArray[np.float64]


def resolve_rope(keys: Keys, head_dim: int, max_positions: int) -> tuple[Rope, tuple[str, ...]]:
    """The Rope of a config, and notes about anything a reader of the config would not expect.

    Understands ``rope_theta`` + ``rope_scaling`` (transformers 4) and ``rope_parameters`` (transformers 5). Raises
    UnsupportedModel naming a kind or key that is not built, CheckpointError where a number is missing or wrong.
    """
    parameters, notes = _parameters(keys)
    name = str(parameters.get("rope_type", parameters.get("type", "default")))
    kind = KINDS.get(name)
    if kind is None:
        why = _WHY_NOT.get(name, f"only {', '.join(KINDS)} are built")
        raise UnsupportedModel(f"Rope scaling {name!r} is not supported: {why}.")
    for key, value in parameters.items():
        if value is not None and key not in _COMMON | kind.needs | kind.takes:
            raise UnsupportedModel(f"Rope key {key} is {value!r}, which rope scaling {name!r} does not define.")
    if parameters.get("partial_rotary_factor", 1.0) not in (None, 1.0):
        share = parameters["partial_rotary_factor"]
        raise UnsupportedModel(f"partial_rotary_factor is {share}; rotating only part of each head is not built.")
    for key in sorted(kind.needs):
        if parameters.get(key) is None:
            raise CheckpointError(f"Rope scaling {name!r} needs {key}, which the config does not give.")
    scaled = Scaling(Keys(parameters, {}), max_positions)
    theta = scaled.number("rope_theta")
    base = theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    inv_freq, attention_factor = kind.scale(base, scaled)
    return Rope(name, theta, tuple(inv_freq.tolist()), attention_factor), notes


def _parameters(keys: Keys) -> tuple[dict[str, Any], tuple[str, ...]]:
    """One dict in the transformers 5 layout, whichever layout the config has."""
    old, new = keys.raw("rope_scaling"), keys.raw("rope_parameters")
    notes: list[str] = []
    for name, value in (("rope_scaling", old), ("rope_parameters", new)):
        if value is not None and not isinstance(value, dict):
            raise CheckpointError(f"Config key {name} is {value!r}; it must be an object or null.")
    if old and new and old != new:
        notes.append(f"rope_scaling {old} and rope_parameters {new} differ; the first is used, as in transformers.")
    parameters = dict(old or new or {})
    if nested := [key for key, value in parameters.items() if isinstance(value, dict)]:
        raise UnsupportedModel(f"The config gives rope parameters per layer type ({', '.join(nested)}): not built.")
    outer, inner = keys.raw("rope_theta"), parameters.get("rope_theta")
    if inner is None:
        parameters["rope_theta"] = outer
    elif keys.states("rope_theta") and outer is not None and outer != inner:
        notes.append(f"rope_theta is {outer} outside and {inner} inside the rope parameters; the second is used.")
    if inner is None and not keys.states("rope_theta"):
        notes.append(f"The config has no rope_theta; the default of its model_type, {outer:g}, is used.")
    parameters.setdefault("partial_rotary_factor", keys.raw("partial_rotary_factor"))
    return parameters, tuple(notes)


@dataclass(frozen=True)
class Scaling:
    """The rope parameters of one model, checked as they are read."""

    keys: Keys
    max_positions: int

    def number(self, name: str, default: float | None = None) -> float:
        """The value of ``name``, above 0; ``default`` where it is absent or null."""
        value = default if self.keys.raw(name) is None and default is not None else self.keys.number(name)
        if value <= 0:
            raise CheckpointError(f"Rope parameter {name} is {value:g}; it must be above 0.")
        return value

    def number_or(self, name: str, default: float) -> float:
        """As ``number``, where transformers takes the default for 0 too."""
        return self.number(name) if self.keys.raw(name) else default


def _default(base: Frequencies, scaling: Scaling) -> tuple[Frequencies, float]:
    return base, 1.0


def _linear(base: Frequencies, scaling: Scaling) -> tuple[Frequencies, float]:
    return base / scaling.number("factor"), 1.0


def _llama3(base: Frequencies, scaling: Scaling) -> tuple[Frequencies, float]:
    """Long waves are slowed by ``factor``, short ones kept, those between blended."""
    low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    turns = scaling.number("original_max_position_embeddings") * base / (2 * math.pi)
    if high <= low:
        raise CheckpointError(f"Rope high_freq_factor is {high:g}; it must be above low_freq_factor, {low:g}.")
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return base * (kept + (1 - kept) / scaling.number("factor")), 1.0


def _yarn(base: Frequencies, scaling: Scaling) -> tuple[Frequencies, float]:
    """Blend by the number of turns within the original context; cos and sin grow by the attention factor."""
    original = scaling.number("original_max_position_embeddings", scaling.max_positions)
    factor = scaling.number("factor", scaling.max_positions / original)
    head_dim, theta = 2 * len(base), scaling.number("rope_theta")
    if theta <= 1:
        raise CheckpointError(f"Rope parameter rope_theta is {theta:g}; yarn needs it above 1.")

    def dimension_of(turns: float) -> float:
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first = dimension_of(scaling.number_or("beta_fast", 32))
    last = dimension_of(scaling.number_or("beta_slow", 1))
    if scaling.keys.raw("truncate") is not False:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    width = last - first or 0.001
    slowed = np.clip((np.arange(len(base)) - first) / width, 0.0, 1.0)
    return base * (1 - slowed + slowed / factor), _yarn_attention_factor(scaling, factor)


def _yarn_attention_factor(scaling: Scaling, factor: float) -> float:
    def grown(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    if scaling.keys.raw("attention_factor") is not None:
        return scaling.keys.number("attention_factor")
    above, below = scaling.number_or("mscale", 0), scaling.number_or("mscale_all_dim", 0)
    return grown(above) / grown(below) if above and below else grown(1.0)


@dataclass(frozen=True)
class Kind:
    """A scaling kind: the parameters it needs and may take, and its frequencies and attention factor."""

    scale: Callable[[Frequencies, Scaling], tuple[Frequencies, float]]
    needs: frozenset[str] = frozenset()
    takes: frozenset[str] = frozenset()


KINDS: Mapping[str, Kind] = {
    "default": Kind(_default),
    "linear": Kind(_linear, needs=frozenset({"factor"})),
    "llama3": Kind(
        _llama3,
        needs=frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
    ),
    "yarn": Kind(
        _yarn,
        takes=frozenset(
            {"factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow"}
            | {"mscale", "mscale_all_dim", "truncate", "finetuned"}  # "finetuned": a record of training
        ),
    ),
}
