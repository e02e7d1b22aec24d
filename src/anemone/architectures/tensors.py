"""The tensors of a decoder: their names and shapes, and the check of a checkpoint against them."""

import re
from collections.abc import Collection, Mapping

from anemone.architectures.base import DecoderConfig
from anemone.architectures.quantised import FLOATS, Tensor, advice, quantised_tensor
from anemone.errors import CheckpointError, UnsupportedModel

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"

# What transformers computes itself, or saved once and reads no more.
IGNORED = re.compile(
    r"(.*\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)"
    r"|model\.layers\.\d+\.(self_attn|attn)\.(bias|masked_bias)"
)
_LAYER = re.compile(r"model\.layers\.(\d+)\.")


def layer_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Name within a layer -> shape. Linear weights are (out, in)."""
    query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
    linears = {
        "self_attn.q_proj": ((query, config.hidden), config.qkv_bias),
        "self_attn.k_proj": ((key, config.hidden), config.qkv_bias),
        "self_attn.v_proj": ((key, config.hidden), config.qkv_bias),
        "self_attn.o_proj": ((config.hidden, query), config.o_bias),
        "mlp.gate_proj": ((config.intermediate, config.hidden), config.mlp_bias),
        "mlp.up_proj": ((config.intermediate, config.hidden), config.mlp_bias),
        "mlp.down_proj": ((config.hidden, config.intermediate), config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (config.hidden,)}
    for name, (shape, bias) in linears.items():
        shapes[f"{name}.weight"] = shape
        if bias:
            shapes[f"{name}.bias"] = shape[:1]
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    shapes["post_attention_layernorm.weight"] = (config.hidden,)
    return shapes


def tensor_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that the decoder consumes, by its Hugging Face name, in the order of its use."""
    layer = layer_shapes(config)
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab, config.hidden)}
    for i in range(config.layers):
        shapes.update({f"model.layers.{i}.{name}": shape for name, shape in layer.items()})
    shapes[FINAL_NORM] = (config.hidden,)
    if not config.tied:
        shapes[HEAD] = (config.vocab, config.hidden)
    return shapes


def check_tensors(config: DecoderConfig, tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    """The names of the tensors that are ignored, after checking that the rest are exactly those of the decoder.

    Raises UnsupportedModel for quantised tensors; CheckpointError for missing, extra, misshapen or non-float ones and
    for another number of layers than the config's, naming the tensors and both numbers.
    """
    ignored = tuple(name for name in tensors if IGNORED.fullmatch(name))
    present = {name: tensor for name, tensor in tensors.items() if name not in set(ignored)}
    if found := quantised_tensor(present.values()):
        name, evidence = found
        raise UnsupportedModel(f"The checkpoint is quantised ({name}: {evidence}); {advice(name)}.")
    _check_prefix(present)
    _check_layers(config.layers, present)  # before a name is made for each layer that a damaged config claims
    wanted = tensor_shapes(config)
    if missing := [name for name in wanted if name not in present]:
        raise CheckpointError(f"The checkpoint lacks {_some(missing)}, which model_type {config.model_type} needs.")
    if extra := [name for name in present if name not in wanted]:
        raise CheckpointError(
            f"The checkpoint has {_some(extra)}, which model_type {config.model_type} with this config does not use."
        )
    for name, shape in wanted.items():
        if tuple(present[name].shape) != shape:
            raise CheckpointError(
                f"{name} is {_sizes(present[name].shape)} in the checkpoint, but {_sizes(shape)} by the config's sizes."
            )
        if present[name].dtype not in FLOATS:
            raise CheckpointError(
                f"{name} is stored as {present[name].dtype}; only {', '.join(FLOATS)} are read. "
                "If the checkpoint is quantised, convert the unquantised original instead."
            )
    return ignored


def _check_prefix(present: Collection[str]) -> None:
    if EMBEDDING not in present and EMBEDDING.removeprefix("model.") in present:
        raise UnsupportedModel(
            "The tensors have no 'model.' prefix: the checkpoint was saved without a language-model head, as embedding "
            "models are. Only text generation is built; to convert it anyway, save it through AutoModelForCausalLM."
        )


def _check_layers(layers: int, present: Collection[str]) -> None:
    numbers = {int(match[1]) for name in present if (match := _LAYER.match(name))}
    found = max(numbers, default=-1) + 1
    if found != layers:
        raise CheckpointError(f"The checkpoint has tensors for {found} layers, but num_hidden_layers is {layers}.")


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more tensors"


def _sizes(shape: tuple[int, ...]) -> str:
    return " x ".join(str(n) for n in shape) or "a scalar"
