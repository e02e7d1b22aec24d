"""Random bf16 checkpoints in Hugging Face's layout, in the shapes of real models and written piece by piece."""

import json
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np

PIECE = 1 << 24  # values drawn at once

_COMMON = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "rope_scaling": None,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
QWEN3_4_LAYERS = _COMMON | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}
SMOLLM2_135M = _COMMON | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rope_theta": 1e5,
    "tie_word_embeddings": True,
    "mlp_bias": False,
}
LLAMA_8B_1_LAYER = _COMMON | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 1,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "rope_theta": 5e5,
    "tie_word_embeddings": False,
    "mlp_bias": False,
}


def shapes(config: dict) -> dict[str, tuple[int, ...]]:
    """The tensors of a llama or qwen3 checkpoint, in the order in which they are stored."""
    hidden, ffn, width = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    layer = {
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (ffn, hidden),
        "mlp.up_proj": (ffn, hidden),
        "mlp.down_proj": (hidden, ffn),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    if config["model_type"] == "qwen3":
        layer |= {"self_attn.q_norm": (width,), "self_attn.k_norm": (width,)}
    tensors = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for i in range(config["num_hidden_layers"]):
        tensors |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    tensors["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = (config["vocab_size"], hidden)
    return tensors


def write(config: dict, folder: Path, seed: int = 0) -> Path:
    """Write the checkpoint unless it is there already; returns the folder."""
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    header, offset = {}, 0
    for name, shape in shapes(config).items():
        end = offset + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    generator = np.random.default_rng(seed)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes(config).values():
            for piece in _values(shape, generator):
                file.write(piece.astype(ml_dtypes.bfloat16).tobytes())
    _write_tokenizer(folder, config["vocab_size"])
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder


def _values(shape: tuple[int, ...], generator: np.random.Generator) -> Iterator[np.ndarray]:
    """Norm weights near one; matrices scaled so that activations keep their size."""
    count = int(np.prod(shape))
    mean, scale = (1.0, 0.1) if len(shape) == 1 else (0.0, shape[-1] ** -0.5)
    for start in range(0, count, PIECE):
        yield generator.standard_normal(min(PIECE, count - start), np.float32) * np.float32(scale) + np.float32(mean)


def _write_tokenizer(folder: Path, vocab_size: int) -> None:
    """One token per byte: enough for a text to have ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {char: 3 + i for i, char in enumerate(alphabet)}
    assert len(vocab) <= vocab_size
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast"} | special
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
