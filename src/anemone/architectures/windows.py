"""Sliding-window attention: the window of a model, if any of its layers has one.

A context that is not longer than the window sees everything, so such a context is computed as full attention.
"""

from collections.abc import Callable

from anemone.architectures.spec import Keys
from anemone.errors import CheckpointError, UnsupportedModel

SLIDING = "sliding_attention"
ATTENTION = frozenset({"full_attention", "attention", SLIDING})  # the second is an older spelling of the first


def sliding_window(keys: Keys, rule: Callable[[Keys], int | None] | None, layers: int) -> int | None:
    """The window by an architecture's rule. Raises unless ``layer_types`` names attention only, and agrees with it."""
    types = keys.raw("layer_types")
    if types is not None:
        if not isinstance(types, list) or len(types) != layers:
            raise CheckpointError(f"Config key layer_types is {types!r}; it must name each of the {layers} layers.")
        if other := sorted({str(name) for name in types} - ATTENTION):
            raise UnsupportedModel(f"layer_types has {', '.join(other)} layers; only attention layers are built.")
    window = rule(keys) if rule else None
    if window is None and SLIDING in (types or ()):
        raise CheckpointError(f"layer_types has {SLIDING} layers, but the other config keys give them no window.")
    return window


def window_of_every_layer(keys: Keys) -> int | None:
    """Mistral's rule: ``sliding_window``, unless null, holds for all layers whatever ``layer_types`` says."""
    return None if keys.raw("sliding_window") is None else keys.count("sliding_window")


def window_of_flagged_layers(keys: Keys) -> int | None:
    """Qwen's rule: ``use_sliding_window`` switches it on, ``layer_types`` or ``max_window_layers`` say where."""
    if not keys.flag("use_sliding_window") or keys.raw("sliding_window") is None:
        return None
    if keys.raw("layer_types") is not None:
        slides = SLIDING in keys.raw("layer_types")
    else:
        slides = keys.number("max_window_layers") < keys.count("num_hidden_layers")
    return keys.count("sliding_window") if slides else None
