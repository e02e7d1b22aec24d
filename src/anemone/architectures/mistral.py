"""Mistral 7B and its kin: no biases; a sliding window in every layer unless sliding_window is null."""

from anemone.architectures.spec import Architecture
from anemone.architectures.windows import window_of_every_layer

ARCHITECTURE = Architecture(
    classes=("MistralForCausalLM", "MistralModel"),
    defaults={
        "num_key_value_heads": 8,
        "head_dim": None,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
    },
    window=window_of_every_layer,
)
