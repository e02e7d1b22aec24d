"""Qwen3 dense models: RMSNorm on each query and key head before the rotation, head_dim of its own."""

from anemone.architectures.spec import Architecture
from anemone.architectures.windows import window_of_flagged_layers

ARCHITECTURE = Architecture(
    classes=("Qwen3ForCausalLM", "Qwen3Model"),
    defaults={
        "num_key_value_heads": 32,
        "head_dim": 128,  # whatever hidden_size / num_attention_heads is
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    must={"use_mrope": False},
    qkv_bias="attention_bias",
    o_bias="attention_bias",
    qk_norm=True,
    window=window_of_flagged_layers,
)
