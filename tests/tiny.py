"""Tiny random Hugging Face checkpoints, built offline, and what transformers makes of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

MODEL_TYPES = ("llama", "qwen2", "qwen3", "mistral")
CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mistral": "MistralForCausalLM",
}
SPECIALS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
MERGES = ("h e", "i n", "Ġ t", "Ġt he", "a n", "e r", "o n", "an d", "r e", "Ġ a", "in g", "o u", "Ġ s", "Ġ w", "l l")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BYTES_AND_SPECIALS = 256 + len(SPECIALS)


def make_tiny(
    path: Path,
    model_type: str,
    *,
    layout: str = "v4",
    tied: bool = True,
    qkv_bias: bool | None = None,
    mlp_bias: bool = False,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    intermediate: int = 128,
    vocab: int = 320,
    rope: dict[str, Any] | None = None,
    dtype: str = "float32",
    seed: int = 0,
    max_positions: int = 512,
    sliding_window: int | None = None,
) -> Path:
    """Write a checkpoint folder: config.json in transformers' 4 or 5 layout, model.safetensors, tokenizer.

    ``rope`` is transformers 5's ``rope_parameters`` (rope_theta 10000 where absent). ``qkv_bias`` may be set for llama
    and qwen3, whose ``attention_bias`` also puts a bias on o_proj; qwen2 always has it and mistral never. The seed
    alone decides the weights of given sizes, so two layouts hold the same model. A vocab below 260 gets no tokenizer.
    """
    config: dict[str, Any] = {
        "architectures": [CLASSES[model_type]],
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": max_positions,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": tied,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
    }
    if head_dim is not None or model_type == "qwen3":
        config["head_dim"] = head_dim or hidden // heads
    config |= bias_keys(model_type, qkv_bias, mlp_bias) | window_keys(model_type, sliding_window, layers)
    config |= rope_keys(layout, rope, dtype)

    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config, indent=2))
    (path / "generation_config.json").write_text(json.dumps({"bos_token_id": 0, "eos_token_id": [1, 3]}))
    write_weights(path, random_weights(tiny_shapes(config), seed), dtype)
    if vocab >= BYTES_AND_SPECIALS:
        write_tokenizer(path, vocab)
    return path


def bias_keys(model_type: str, qkv_bias: bool | None, mlp_bias: bool) -> dict[str, Any]:
    """attention_bias and mlp_bias for the families that have such keys; ValueError for a bias a family cannot have."""
    fixed = {"qwen2": True, "mistral": False}.get(model_type)
    if fixed is not None and qkv_bias not in (None, fixed):
        raise ValueError(f"{model_type} cannot have qkv_bias={qkv_bias}")
    if mlp_bias and model_type != "llama":
        raise ValueError(f"{model_type} has no mlp_bias")
    keys = {} if fixed is not None else {"attention_bias": bool(qkv_bias)}
    return keys | ({"mlp_bias": mlp_bias} if model_type == "llama" else {})


def window_keys(model_type: str, window: int | None, layers: int) -> dict[str, Any]:
    """A sliding window in every layer, or none, in the family's own words."""
    if model_type == "mistral":
        return {"sliding_window": window}
    if model_type == "llama":
        return {}
    on = window is not None
    return {"use_sliding_window": on, "sliding_window": window, "max_window_layers": 0 if on else layers}


def rope_keys(layout: str, rope: dict[str, Any] | None, dtype: str) -> dict[str, Any]:
    """The keys that differ between the two layouts of config.json."""
    parameters = {"rope_theta": 10000.0, "rope_type": "default"} | (rope or {})
    if layout == "v5":
        return {"rope_parameters": parameters, "dtype": dtype, "transformers_version": "5.24.0"}
    theta = parameters.pop("rope_theta")
    scaling = None if parameters["rope_type"] == "default" else parameters
    return {"rope_theta": theta, "rope_scaling": scaling, "torch_dtype": dtype, "transformers_version": "4.48.0"}


def tiny_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors that transformers' class for the config has, written down independently of the product."""
    hidden, intermediate = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    query, key = head_dim * config["num_attention_heads"], head_dim * config["num_key_value_heads"]
    qkv_bias = config.get("attention_bias", config["model_type"] == "qwen2")
    o_bias, mlp_bias = config.get("attention_bias", False), config.get("mlp_bias", False)
    linears = {
        "self_attn.q_proj": (query, hidden, qkv_bias),
        "self_attn.k_proj": (key, hidden, qkv_bias),
        "self_attn.v_proj": (key, hidden, qkv_bias),
        "self_attn.o_proj": (hidden, query, o_bias),
        "mlp.gate_proj": (intermediate, hidden, mlp_bias),
        "mlp.up_proj": (intermediate, hidden, mlp_bias),
        "mlp.down_proj": (hidden, intermediate, mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in (f"model.layers.{i}." for i in range(config["num_hidden_layers"])):
        for name, (rows, columns, bias) in linears.items():
            shapes[f"{layer}{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{layer}{name}.bias"] = (rows,)
        if config["model_type"] == "qwen3":
            shapes[f"{layer}self_attn.q_norm.weight"] = (head_dim,)
            shapes[f"{layer}self_attn.k_norm.weight"] = (head_dim,)
        shapes[f"{layer}input_layernorm.weight"] = (hidden,)
        shapes[f"{layer}post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def random_weights(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, NDArray[np.float32]]:
    """Norms around 1, biases around 0, matrices scaled so that attention is uneven and logits spread over some nats."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in shapes.items():
        noise = rng.standard_normal(shape, dtype=np.float32)
        if name.endswith("norm.weight"):
            weights[name] = 1 + np.float32(0.2) * noise
        elif name.endswith(".bias"):
            weights[name] = np.float32(0.3) * noise
        else:
            weights[name] = noise * np.float32(1.7 / np.sqrt(shape[1]))
    return weights


def write_weights(path: Path, weights: dict[str, NDArray[np.float32]], dtype: str = "float32") -> None:
    """model.safetensors, the values rounded to ``dtype``."""
    from safetensors.numpy import save_file

    stored = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    save_file({name: w.astype(stored) for name, w in weights.items()}, path / "model.safetensors")


def write_tokenizer(path: Path, vocab: int) -> None:
    """A byte-level BPE of a few merges and at most ``vocab`` tokens, with ChatML markers and template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    pairs = [tuple(merge.split(" ")) for merge in MERGES[: vocab - BYTES_AND_SPECIALS]]
    words = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in pairs)]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, normalized=False, special=True) for word in SPECIALS])
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": 512,
        "chat_template": CHAT_TEMPLATE,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))


def truth_model(path: Path) -> Any:
    """The checkpoint in transformers, float32, eager attention; every tensor must have found its place."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model, loading = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    wrong = {kind: names for kind, names in loading.items() if names}
    assert not wrong, wrong
    return model.eval()


def truth_logits(path: Path, ids: Sequence[int]) -> NDArray[np.float32]:
    """T token ids -> logits (T, vocab), by transformers."""
    import torch

    with torch.inference_mode():
        logits = truth_model(path)(torch.tensor([list(ids)])).logits[0]
    return logits.float().numpy()


def truth_generate(path: Path, ids: Sequence[int], count: int) -> list[int]:
    """The ``count`` tokens that follow greedily, by transformers; stop tokens do not stop it."""
    import torch

    model = truth_model(path)
    model.generation_config.eos_token_id = None
    prompt = torch.tensor([list(ids)])
    with torch.inference_mode():
        out = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        )
    return [int(token) for token in out[0, len(ids) :]]


def load_weights(path: Path) -> dict[str, NDArray[Any]]:
    """Every tensor of model.safetensors by name."""
    from safetensors.numpy import load_file

    return load_file(path / "model.safetensors")
