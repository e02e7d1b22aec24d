"""Llama 2 and 3.x, and what is saved as such: SmolLM, SmolLM2, TinyLlama, DeepSeek-R1-Distill-Llama, DeepHermes."""

from anemone.architectures.spec import Architecture

ARCHITECTURE = Architecture(
    classes=("LlamaForCausalLM", "LlamaModel"),
    defaults={
        "num_key_value_heads": None,
        "head_dim": None,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
    },
    must={"rope_interleaved": False},  # nanotron's key in SmolLM; the weights are stored for the half-split rotation
    qkv_bias="attention_bias",
    o_bias="attention_bias",
    mlp_bias="mlp_bias",
)
