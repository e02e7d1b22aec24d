"""What a decoder is, in the numbers that decide its mathematics."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding of one kind, already resolved for the head size.

    ``inv_freq`` holds head_dim / 2 angular steps (radians per position) after scaling; ``attention_factor``
    multiplies both cos and sin (yarn; 1 elsewhere).
    """

    kind: str  # default, linear, llama3 or yarn
    theta: float
    inv_freq: tuple[float, ...]
    attention_factor: float = 1.0

    def angles(self, positions: NDArray[np.integer]) -> NDArray[np.float64]:
        """(S,) positions -> (S, head_dim / 2) angles in radians, computed in float64."""
        return np.outer(positions.astype(np.float64), np.asarray(self.inv_freq, np.float64))


@dataclass(frozen=True)
class DecoderConfig:
    """One decoder-only transformer. Sizes are counts of channels, heads or rows."""

    model_type: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    norm_eps: float
    activation: str  # silu, gelu (erf), gelu_tanh or relu
    rope: Rope
    max_positions: int
    tied: bool  # the LM head is the embedding matrix
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None  # a context beyond it is refused

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.heads // self.kv_heads
