"""Sliding-window attention: the window of a model, if any of its layers has one.

A context that is not longer than the window sees everything, so such a context is computed as full attention.
"""

from anemone.architectures.spec import Keys
from anemone.errors import CheckpointError, UnsupportedModel

FULL = frozenset({"full_attention", "attention"})  # the second is transformers' older spelling


def check_layer_types(keys: Keys, layers: int) -> None:
    """Raise unless ``layer_types``, where given, has one attention layer per layer."""
    types = keys.raw("layer_types")
    if types is None:
        return
    if not isinstance(types, list) or len(types) != layers:
        raise CheckpointError(f"Config key layer_types is {types!r}; it must name each of the {layers} layers.")
    if other := sorted({str(t) for t in types} - FULL - {"sliding_attention"}):
        raise UnsupportedModel(f"layer_types has {', '.join(other)} layers; only attention layers are built.")


def window_of_every_layer(keys: Keys) -> int | None:
    """Mistral's rule: ``sliding_window``, unless null, holds for all layers whatever ``layer_types`` says."""
    return None if keys.raw("sliding_window") is None else keys.count("sliding_window")


def window_of_flagged_layers(keys: Keys) -> int | None:
    """Qwen's rule: ``use_sliding_window`` switches it on, ``layer_types`` or ``max_window_layers`` say where."""
    layers = keys.count("num_hidden_layers")
    flagged = keys.flag("use_sliding_window") and keys.raw("sliding_window") is not None
    if keys.raw("layer_types") is not None:
        slides = "sliding_attention" in keys.raw("layer_types")
    else:
        slides = flagged and int(keys.number("max_window_layers")) < layers
    if not slides:
        return None
    if not flagged:
        raise CheckpointError(
            "layer_types has sliding_attention layers, but use_sliding_window is false or sliding_window is null."
        )
    return keys.count("sliding_window")
