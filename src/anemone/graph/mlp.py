"""The gated feed-forward block."""

from anemone.architectures.base import DecoderConfig
from anemone.graph.builder import Builder
from anemone.graph.ir import Value
from anemone.graph.linear import linear


def mlp(b: Builder, config: DecoderConfig, layer: int, x: Value) -> Value:
    """down(act(gate(x)) * up(x)), all (1, C, 1, S)."""
    prefix = f"model.layers.{layer}.mlp"
    gate = linear(b, x, f"{prefix}.gate_proj", config.intermediate, config.mlp_bias)
    up = linear(b, x, f"{prefix}.up_proj", config.intermediate, config.mlp_bias)
    gated = b.mul(activate(b, gate, config.activation), up)
    return linear(b, gated, f"{prefix}.down_proj", config.hidden, config.mlp_bias)


def activate(b: Builder, x: Value, kind: str) -> Value:
    if kind == "gelu":
        return b.unary("gelu", x, mode="EXACT")
    if kind == "gelu_tanh":
        return b.unary("gelu", x, mode="TANH_APPROXIMATION")
    return b.unary({"silu": "silu", "relu": "relu"}[kind], x)
