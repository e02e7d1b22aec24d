"""Rotary position embedding from tables of exactly the context's length, computed in float64."""

import numpy as np
from numpy.typing import NDArray

from anemone.architectures.base import DecoderConfig
from anemone.graph.builder import Builder
from anemone.graph.ir import Value, Weight


def rotary_tables(b: Builder, config: DecoderConfig, context: int, positions: Value) -> tuple[Value, Value]:
    """The rows of the cos and sin tables at ``positions`` (S,) -> two (1, 1, S, head_dim).

    The sin table carries rotate-half's sign, so that rotating needs no negation.
    """
    angles = config.rope.angles(np.arange(context))  # (context, head_dim / 2)
    cos, sin = np.cos(angles) * config.rope.attention_factor, np.sin(angles) * config.rope.attention_factor
    shape = (1, 1, context, config.head_dim)

    def table(key: str, values: NDArray[np.float64]) -> Value:
        constant = values.astype(np.float16).reshape(shape)
        return b.gather(b.weight(Weight(key, shape, "table", constant=constant)), positions, axis=2)

    return (
        table("rope.cos", np.concatenate([cos, cos], axis=1)),
        table("rope.sin", np.concatenate([-sin, sin], axis=1)),
    )


def rotate(b: Builder, x: Value, cos: Value, sin: Value) -> Value:
    """x (1, heads, S, head_dim) turned by the angles of its rows."""
    half = x.shape[-1] // 2
    first, second = b.split(x, [half, half], axis=3)
    return b.add(b.mul(x, cos), b.mul(b.concat([second, first], axis=3), sin))
