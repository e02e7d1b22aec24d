"""From a checkpoint's config and tensor headers to the decoder they describe, or the reason why not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anemone.architectures.base import DecoderConfig
from anemone.architectures.bookkeeping import BOOKKEEPING, switches_nothing
from anemone.architectures.quantised import Tensor, advice, quantisation
from anemone.architectures.registry import architecture_of, class_conflicts
from anemone.architectures.rope import ROPE_KEYS, resolve_rope
from anemone.architectures.spec import SIZES, Architecture, Keys
from anemone.architectures.tensors import HEAD, check_tensors
from anemone.architectures.windows import sliding_window
from anemone.errors import CheckpointError, UnsupportedModel

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


@dataclass(frozen=True)
class Model:
    """A checkpoint that can be computed.

    ``notes`` are sentences a user should see; ``ignored`` names the checkpoint tensors that are not used.
    """

    name: str
    config: DecoderConfig
    notes: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


def resolve(config: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> Model:
    """The model that a Hugging Face config (transformers 4 or 5 layout) and its tensor headers describe.

    The model_type decides the architecture, as in transformers, and the tensors must fit it. Without ``tensors`` the
    config alone is checked. The content of a hf_quant_config.json beside the config belongs under the key
    ``hf_quant_config``. Raises UnsupportedModel or CheckpointError naming the key, tensor or mechanism that stands in
    the way.
    """
    quantised = quantisation(config)
    architecture = architecture_of(config, f" Its weights are also quantised ({quantised})." if quantised else "")
    if quantised:
        raise UnsupportedModel(f"The checkpoint is quantised ({quantised}); {advice(quantised)}.")
    name = str(config["model_type"])
    _check_keys(name, architecture, config)
    keys = Keys(config, architecture.defaults)
    tied, own_head = keys.flag("tie_word_embeddings"), tensors is not None and HEAD in tensors
    decoder, rope_notes = _decoder(name, architecture, keys, tied=tied and not own_head)
    ignored = check_tensors(decoder, tensors) if tensors is not None else ()
    notes = [
        *class_conflicts(name, _classes(config)),
        *_defaults_used(architecture, keys, decoder),
        *rope_notes,
    ]
    if tied and own_head:
        notes.append(
            f"tie_word_embeddings is true, but the checkpoint has {HEAD}: it is used, as transformers 5 does where the "
            "two differ (transformers 4 would take the embeddings)."
        )
    if ignored:
        notes.append(f"{len(ignored)} tensors are ignored, which transformers computes itself: {', '.join(ignored)}.")
    return Model(name, decoder, tuple(notes), ignored)


def _check_keys(name: str, architecture: Architecture, config: Mapping[str, Any]) -> None:
    """Raise for a key that may change the mathematics and is not understood."""
    must = {"is_causal": True, **architecture.must}
    known = BOOKKEEPING | ROPE_KEYS | {*SIZES, *architecture.defaults, *must, "layer_types"}
    for key, value in config.items():
        if key in must and value not in (None, must[key]):
            raise UnsupportedModel(f"Config key {key} is {value!r}; only {must[key]!r} is built.")
        if key not in known and not switches_nothing(value):
            raise UnsupportedModel(
                f"Config key {key} is {_short(value)}; model_type {name} does not define it, so it may change the "
                "mathematics. If it does not, remove it from config.json."
            )


def _classes(config: Mapping[str, Any]) -> list[str]:
    classes = config.get("architectures") or []
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise CheckpointError(f"Config key architectures is {_short(classes)}; it must be a list of class names.")
    return classes


def _defaults_used(architecture: Architecture, keys: Keys, decoder: DecoderConfig) -> list[str]:
    """A note for each key whose value decides the mathematics and is not in the config."""
    silent = {"rope_theta", "max_window_layers"}  # the first has a note of its own
    if decoder.sliding_window is None:
        silent.add("sliding_window")
    return [
        f"The config has no {key}; the default of model_type {decoder.model_type}, {value}, is used."
        for key, value in architecture.defaults.items()
        if value not in (None, False) and key not in silent and not keys.states(key)
    ]


def _decoder(name: str, architecture: Architecture, keys: Keys, tied: bool) -> tuple[DecoderConfig, tuple[str, ...]]:
    hidden, heads = keys.count("hidden_size"), keys.count("num_attention_heads")
    kv_heads = heads if keys.raw("num_key_value_heads") is None else keys.count("num_key_value_heads")
    if heads % kv_heads:
        raise CheckpointError(f"num_attention_heads is {heads}, not a multiple of num_key_value_heads, {kv_heads}.")
    head_dim = _head_dim(keys, hidden, heads)
    layers = keys.count("num_hidden_layers")
    max_positions = keys.count("max_position_embeddings")
    rope, notes = resolve_rope(keys, head_dim, max_positions)
    decoder = DecoderConfig(
        model_type=name,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=keys.count("intermediate_size"),
        vocab=keys.count("vocab_size"),
        norm_eps=keys.number("rms_norm_eps"),
        activation=_activation(keys),
        rope=rope,
        max_positions=max_positions,
        tied=tied,
        qkv_bias=_switch(architecture.qkv_bias, keys),
        o_bias=_switch(architecture.o_bias, keys),
        mlp_bias=_switch(architecture.mlp_bias, keys),
        qk_norm=architecture.qk_norm,
        sliding_window=sliding_window(keys, architecture.window, layers),
    )
    return decoder, notes


def _head_dim(keys: Keys, hidden: int, heads: int) -> int:
    if keys.raw("head_dim") is not None:
        head_dim = keys.count("head_dim")
    elif hidden % heads:
        raise CheckpointError(f"hidden_size is {hidden}, not a multiple of num_attention_heads, {heads}.")
    else:
        head_dim = hidden // heads
    if head_dim % 2:
        raise CheckpointError(f"head_dim is {head_dim}; rotary positions need an even number.")
    return head_dim


def _activation(keys: Keys) -> str:
    name = keys.raw("hidden_act")
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise UnsupportedModel(f"hidden_act is {name!r}; only {', '.join(ACTIVATIONS)} are built.")
    return ACTIVATIONS[name]


def _switch(bias: bool | str, keys: Keys) -> bool:
    return keys.flag(bias) if isinstance(bias, str) else bias


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
