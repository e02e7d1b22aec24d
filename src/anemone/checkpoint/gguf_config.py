"""Hugging Face's config.json and generation_config.json, rebuilt from GGUF metadata.

Keys of the metadata: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Every key under the architecture's name
must be understood, since it may change the mathematics.
"""

import logging
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anemone.errors import CheckpointError, UnsupportedModel

log = logging.getLogger(__name__)

_MODELS = {  # general.architecture -> model_type, class
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
}
_UNDERSTOOD = {
    "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.layer_norm_rms_epsilon",
    "attention.value_length", "block_count", "context_length", "embedding_length", "feed_forward_length",
    "rope.dimension_count", "rope.freq_base", "rope.scale_linear", "rope.scaling.factor", "rope.scaling.finetuned",
    "rope.scaling.original_context_length", "rope.scaling.type", "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow", "vocab_size",
}  # fmt: skip
_UNDERSTOOD_GEMMA3 = {"attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa"}
_NEUTRAL: dict[str, Any] = {  # understood as long as they say this
    "attention.causal": True,
    "attn_logit_softcapping": 0.0,
    "expert_count": 0,
    "expert_used_count": 0,
    "final_logit_softcapping": 0.0,
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
    "tensor_data_layout": "Meta AI original pth",
}
_LLAMA_CPP_THETA = 10000.0  # llama.cpp's own value when the file gives none
_GEMMA3_LOCAL_THETA = 10000.0  # llama.cpp and transformers agree on these for every gemma 3
_GEMMA3_PATTERN = 6


def synthesise_config(
    metadata: dict[str, Any], shapes: dict[str, tuple[int, ...]], rope_factors: NDArray[np.float32] | None
) -> dict[str, Any]:
    """config.json in the v4 layout.

    ``shapes``: tensor shapes by Hugging Face name; ``rope_factors``: head_dim / 2 divisors from rope_freqs.weight.
    UnsupportedModel for an architecture or a key that is not understood, CheckpointError for missing keys.
    """
    architecture = metadata.get("general.architecture")
    if architecture not in _MODELS:
        raise UnsupportedModel(
            f"The GGUF's architecture is {architecture}; from GGUF these are read: {', '.join(_MODELS)}."
        )
    keys = _Keys(metadata, architecture)
    keys.check(_UNDERSTOOD | (_UNDERSTOOD_GEMMA3 if architecture == "gemma3" else set()))
    model_type, class_name = _MODELS[architecture]
    heads, hidden = keys.uniform("attention.head_count"), keys.uniform("embedding_length")
    head_dim = keys.get("attention.key_length", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if keys.get(key, head_dim) != head_dim:
            raise UnsupportedModel(f"{architecture}.{key} is {keys.get(key)}, but only the head size {head_dim} works.")
    theta = _theta(keys)
    config = {
        "architectures": [class_name],
        "model_type": model_type,
        "hidden_size": hidden,
        "num_hidden_layers": keys.required("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.uniform("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": keys.uniform("feed_forward_length"),
        "vocab_size": _vocabulary(shapes),
        "max_position_embeddings": keys.required("context_length"),
        "rms_norm_eps": keys.required("attention.layer_norm_rms_epsilon"),
        "rope_theta": theta,
        "rope_scaling": _rope_scaling(keys, theta, head_dim, rope_factors),
        "tie_word_embeddings": "lm_head.weight" not in shapes,
    }
    config |= _gemma3(keys, config) if architecture == "gemma3" else {"hidden_act": "silu"}
    if architecture != "qwen2":  # always biased there, and no key says so
        config["attention_bias"] = "model.layers.0.self_attn.q_proj.bias" in shapes
    if architecture == "llama":
        config["mlp_bias"] = "model.layers.0.mlp.gate_proj.bias" in shapes
    return config | _special_ids(metadata)


def synthesise_generation_config(metadata: dict[str, Any]) -> dict[str, Any]:
    """generation_config.json: special ids, with every id that ends a turn among the eos ids."""
    ids = _special_ids(metadata)
    ends = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    stops = sorted({end for end in ends if end is not None})
    if len(stops) > 1:
        ids["eos_token_id"] = stops
    return ids


class _Keys:
    """The metadata under one architecture's name; float32 values as the decimals they were written from."""

    def __init__(self, metadata: dict[str, Any], architecture: str) -> None:
        prefix = f"{architecture}."
        self.architecture = architecture
        self._values = {
            key.removeprefix(prefix): float(str(np.float32(value))) if isinstance(value, float) else value
            for key, value in metadata.items()
            if key.startswith(prefix)
        }

    def check(self, understood: set[str]) -> None:
        for key, value in self._values.items():
            if key not in understood and not (key in _NEUTRAL and value == _NEUTRAL[key]):
                raise UnsupportedModel(f"The GGUF says {self.architecture}.{key} = {value}, which is not understood.")

    def get(self, key: str, default: Any = None) -> Any:
        return self._values.get(key, default)

    def required(self, key: str) -> Any:
        if key not in self._values:
            raise CheckpointError(f"The GGUF's metadata lacks {self.architecture}.{key}.")
        return self._values[key]

    def uniform(self, key: str, default: Any = None) -> int:
        """One whole number above 0 for all layers; some files list it per layer."""
        value = self.required(key) if default is None else self.get(key, default)
        values = set(value) if isinstance(value, list) else {value}
        if len(values) != 1:
            raise UnsupportedModel(f"{self.architecture}.{key} differs from layer to layer ({value}).")
        number = values.pop()
        if not isinstance(number, int) or number < 1:
            raise CheckpointError(f"{self.architecture}.{key} is {number!r}; it must be a whole number above 0.")
        return number


def _vocabulary(shapes: dict[str, tuple[int, ...]]) -> int:
    if "model.embed_tokens.weight" not in shapes:
        raise CheckpointError("The GGUF has no token_embd.weight; it is not a whole language model.")
    return shapes["model.embed_tokens.weight"][0]


def _theta(keys: _Keys) -> float:
    theta = keys.get("rope.freq_base")
    if theta is None:
        log.warning("The GGUF gives no %s.rope.freq_base; %g is used.", keys.architecture, _LLAMA_CPP_THETA)
        return _LLAMA_CPP_THETA
    return float(theta)


def _rope_scaling(
    keys: _Keys, theta: float, head_dim: int, factors: NDArray[np.float32] | None
) -> dict[str, Any] | None:
    factor = keys.get("rope.scaling.factor", keys.get("rope.scale_linear", 1.0))
    kind = keys.get("rope.scaling.type", "none" if factor == 1 else "linear")  # llama.cpp's default type is linear
    if kind == "none":
        return None if factors is None else _llama3_scaling(theta, head_dim, factors)
    if kind not in ("linear", "yarn") or factors is not None:
        also = "" if factors is None else " beside rope_freqs.weight"
        raise UnsupportedModel(f"The GGUF's rope scaling is {kind}{also}, which is not understood.")
    scaling = {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = keys.required("rope.scaling.original_context_length")
        for name in ("beta_fast", "beta_slow"):
            if (beta := keys.get(f"rope.scaling.yarn_{name}")) is not None:
                scaling[name] = beta
    return scaling


def _llama3_scaling(theta: float, head_dim: int, factors: NDArray[np.float32]) -> dict[str, Any] | None:
    """The parameters behind the divisors of rope_freqs.weight; UnsupportedModel when no llama3 scaling gives them.

    With wavelength w, the divisor is 1 below old / high, ``factor`` above old / low, and 1 / ((1 - s) / factor + s)
    between, where s = (old / w - low) / (high - low): a line in 1 / w, whose slope and intercept give old and high for
    low = 1. Scaling low, high and old together changes nothing.
    """
    factor = float(f"{factors.max():.5g}")
    if np.allclose(factors, 1, rtol=1e-5):
        return None
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    if factors.shape != wavelengths.shape:
        raise UnsupportedModel(f"The GGUF's rope_freqs.weight has shape {factors.shape}, not {wavelengths.shape}.")
    between = (factors > 1.0001) & (factors < 0.9999 * factor)
    low, high, old = 1.0, 4.0, 8192  # Llama 3's own, kept when fewer than two divisors lie on the line
    if np.count_nonzero(between) >= 2:
        smooth = (1 / factors[between].astype(np.float64) - 1 / factor) / (1 - 1 / factor)
        slope, intercept = np.polyfit(1 / wavelengths[between], smooth, 1)
        high = float(f"{1 - 1 / intercept:.4g}")
        old = round(slope * (high - low))
    smooth = np.clip((old / wavelengths - low) / (high - low), 0, 1)
    if not np.allclose(factors, 1 / ((1 - smooth) / factor + smooth), rtol=1e-5):
        raise UnsupportedModel("The GGUF's rope_freqs.weight is no llama3 rope scaling, the only kind known there.")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": old,
    }


def _gemma3(keys: _Keys, config: dict[str, Any]) -> dict[str, Any]:
    layers = config["num_hidden_layers"]
    pattern = keys.get("attention.sliding_window_pattern", _GEMMA3_PATTERN)
    local = pattern if isinstance(pattern, list) else [(layer + 1) % pattern != 0 for layer in range(layers)]
    query_scale = config["head_dim"]
    if layers == 62:  # the 27B alone scales by hidden / heads; llama.cpp tells it by its depth too
        query_scale = config["hidden_size"] // config["num_attention_heads"]
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": query_scale,
        "sliding_window": keys.required("attention.sliding_window"),
        "layer_types": ["sliding_attention" if is_local else "full_attention" for is_local in local],
        "rope_local_base_freq": float(keys.get("rope.freq_base_swa", _GEMMA3_LOCAL_THETA)),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    }


def _special_ids(metadata: dict[str, Any]) -> dict[str, Any]:
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    ids = {key: metadata.get(f"tokenizer.ggml.{name}_token_id") for key, name in names.items()}
    return {key: value for key, value in ids.items() if value is not None}
