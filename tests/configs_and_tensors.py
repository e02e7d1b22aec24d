"""A small config, the tensor headers that fit it, and the one-line message of a refusal."""

from typing import Any

import pytest

from anemone.architectures import resolve, tensor_shapes
from anemone.checkpoint import TensorInfo
from anemone.errors import AnemoneError

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


def config(model_type: str = "llama", **keys: Any) -> dict[str, Any]:
    return {"model_type": model_type, **SIZES, **keys}


def tensors(model_type: str = "llama", **keys: Any) -> dict[str, TensorInfo]:
    shapes = tensor_shapes(resolve(config(model_type, **keys)).config)
    return {name: TensorInfo(name, shape, "BF16") for name, shape in shapes.items()}


def refusal(config: dict[str, Any], tensors: dict[str, TensorInfo] | None = None) -> str:
    with pytest.raises(AnemoneError) as caught:
        resolve(config, tensors)
    message = str(caught.value)
    assert "\n" not in message
    return message
