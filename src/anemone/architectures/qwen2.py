"""Qwen2 and Qwen2.5, and DeepSeek-R1-Distill-Qwen: biases on q, k and v, none on o."""

from anemone.architectures.spec import Architecture
from anemone.architectures.windows import window_of_flagged_layers

ARCHITECTURE = Architecture(
    classes=("Qwen2ForCausalLM", "Qwen2Model"),
    defaults={
        "num_key_value_heads": 32,
        "head_dim": None,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "rope_theta": 10000.0,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    must={"use_mrope": False},
    qkv_bias=True,
    window=window_of_flagged_layers,
)
