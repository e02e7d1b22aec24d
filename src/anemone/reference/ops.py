"""The mathematics of a decoder in float32 numpy: plain, exact, and bounded in memory."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anemone.architectures.base import Rope

Array = NDArray[np.float32]
BLOCK_BYTES = 64 << 20  # the most that a temporary copy or a block of attention scores may take


def linear(x: Array, weight: NDArray[Any], bias: NDArray[Any] | None = None) -> Array:
    """(T, I) times a weight (O, I) of any float type -> (T, O). Converts the weight a block of rows at a time."""
    rows = max(1, BLOCK_BYTES // (4 * weight.shape[1]))
    out = np.empty((len(x), weight.shape[0]), np.float32)
    for first in range(0, weight.shape[0], rows):
        last = first + rows
        np.matmul(x, np.asarray(weight[first:last], np.float32).T, out=out[:, first:last])
    if bias is not None:
        out += np.asarray(bias, np.float32)
    return out


def rms_norm(x: Array, weight: NDArray[Any], eps: float) -> Array:
    """(..., C) divided by its root mean square over C, times the weight (C,)."""
    mean_square = np.mean(np.square(x), axis=-1, keepdims=True)
    out: Array = x / np.sqrt(mean_square + np.float32(eps)) * np.asarray(weight, np.float32)
    return out


def rope_tables(rope: Rope, start: int, length: int) -> tuple[Array, Array]:
    """cos and sin (T, head_dim / 2) for positions start .. start + length - 1, from float64 angles."""
    angles = rope.angles(np.arange(start, start + length))
    cos, sin = np.cos(angles) * rope.attention_factor, np.sin(angles) * rope.attention_factor
    return cos.astype(np.float32), sin.astype(np.float32)


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotate (heads, T, head_dim), pairing channel i with i + head_dim / 2 as Hugging Face checkpoints do."""
    low, high = np.split(x, 2, axis=-1)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def attention(query: Array, key: Array, value: Array, start: int) -> Array:
    """Causal attention of (heads, T, d) at positions start .. over (kv_heads, start + T, d) -> (heads, T, d).

    One key/value head and one block of queries at a time; a block sees no key that lies after its last row.
    """
    heads, length, head_dim = query.shape
    kv_heads = len(key)
    group = heads // kv_heads
    rows = max(1, BLOCK_BYTES // (4 * group * key.shape[1]))
    out = np.empty_like(query)
    for shared in range(kv_heads):
        mine = slice(shared * group, (shared + 1) * group)
        for first in range(0, length, rows):
            last = min(first + rows, length)
            seen = start + last
            scores = query[mine, first:last] @ key[shared, :seen].T  # (group, rows, seen)
            scores *= np.float32(1 / math.sqrt(head_dim))
            hidden = np.arange(seen) > np.arange(start + first, seen)[:, None]
            np.copyto(scores, -np.inf, where=hidden)
            out[mine, first:last] = softmax(scores) @ value[shared, :seen]
    return out


def softmax(x: Array) -> Array:
    """Over the last axis, in place."""
    x -= x.max(axis=-1, keepdims=True)
    np.exp(x, out=x)
    x /= x.sum(axis=-1, keepdims=True)
    return x


def silu(x: Array) -> Array:
    """x * sigmoid(x)."""
    with np.errstate(over="ignore"):  # exp(-x) overflows to inf, and the quotient is the right 0
        out: Array = x / (1 + np.exp(-x))
    return out


def gelu(x: Array) -> Array:
    """x * Phi(x), with the error function itself."""
    erf = np.frompyfunc(math.erf, 1, 1)(x * np.float32(math.sqrt(0.5)))
    out: Array = x * np.float32(0.5) * (1 + erf.astype(np.float32))
    return out


def gelu_tanh(x: Array) -> Array:
    """The tanh approximation of gelu (Hendrycks and Gimpel 2016)."""
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3)
    out: Array = x * np.float32(0.5) * (1 + np.tanh(inner))
    return out


def relu(x: Array) -> Array:
    """max(x, 0)."""
    return np.maximum(x, 0)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": relu,
}
