"""Grouped-query attention against the cache, without repeating keys or values.

The query heads that share a key head are folded into rows: q (1, kv_heads, group * S, head_dim) against
K (1, kv_heads, context, head_dim), so each cached row is read once and nothing is tiled.
"""

import numpy as np

from anemone.architectures.base import DecoderConfig
from anemone.graph.builder import Builder
from anemone.graph.ir import Value, Weight
from anemone.graph.kv import Cache
from anemone.graph.linear import linear
from anemone.graph.norm import normalise
from anemone.graph.rope import rotate

MASK_FLOOR = -40000.0
"""Clients send -inf for hidden positions, which the ANE mishandles; Apple's rules use -40000."""


def fold_mask(b: Builder, mask: Value, group: int) -> Value:
    """causal_mask (1, 1, S, context) -> bounded below and, for several rows, repeated for each query of a group."""
    bounded = b.maximum(mask, np.float16(MASK_FLOOR))
    return bounded if mask.shape[2] == 1 or group == 1 else b.concat([bounded] * group, axis=2)


def store_keys_and_values(
    b: Builder, config: DecoderConfig, layer: int, x: Value, cache: Cache, tables: tuple[Value, Value], queries: bool
) -> Value | None:
    """Project normed hidden x (1, H, 1, S), write the layer's keys and values, return q (1, heads, S, head_dim).

    With ``queries`` false only the cache is filled.
    """
    prefix = f"model.layers.{layer}.self_attn"
    counts = {"q": config.heads if queries else 0, "k": config.kv_heads, "v": config.kv_heads}
    parts = [
        linear(b, x, f"{prefix}.{name}_proj", count * config.head_dim, config.qkv_bias)
        for name, count in counts.items()
        if count
    ]
    joined = _heads_last(b, b.concat(parts, axis=1), sum(counts.values()), config.head_dim)
    turned, values = b.split(joined, [counts["q"] + counts["k"], counts["v"]], axis=1)
    if config.qk_norm:
        turned = _normalise_heads(b, config, prefix, turned, counts["q"])
    turned = rotate(b, turned, *tables)
    query, keys = b.split(turned, [counts["q"], counts["k"]], axis=1) if queries else (None, turned)
    cache.write(layer, keys)
    cache.write(config.layers + layer, values)
    return query


def attend(b: Builder, config: DecoderConfig, layer: int, query: Value, mask: Value, cache: Cache) -> Value:
    """q (1, heads, S, head_dim), folded mask -> (1, H, 1, S), the output projection included."""
    rows, head_dim = query.shape[2], config.head_dim
    scaled = b.mul(query, np.float16(head_dim**-0.5))
    if config.group > 1:
        scaled = b.reshape(scaled, (1, config.kv_heads, config.group * rows, head_dim))
    scores = b.matmul(scaled, cache.read(layer), transpose_y=True)  # (1, kv_heads, group * S, context)
    weights = b.softmax(b.add(scores, mask), axis=-1)
    mixed = b.matmul(weights, cache.read(config.layers + layer))  # (1, kv_heads, group * S, head_dim)
    channels = _channels_first(b, mixed, config.heads, rows, head_dim)
    return linear(b, channels, f"model.layers.{layer}.self_attn.o_proj", config.hidden, config.o_bias)


def _heads_last(b: Builder, x: Value, heads: int, head_dim: int) -> Value:
    """(1, heads * head_dim, 1, S) -> (1, heads, S, head_dim); one row needs no transpose."""
    rows = x.shape[3]
    if rows == 1:
        return b.reshape(x, (1, heads, 1, head_dim))
    return b.transpose(b.reshape(x, (1, heads, head_dim, rows)), (0, 1, 3, 2))


def _channels_first(b: Builder, x: Value, heads: int, rows: int, head_dim: int) -> Value:
    """(1, kv_heads, group * S, head_dim) -> (1, heads * head_dim, 1, S)."""
    channels = (1, heads * head_dim, 1, rows)
    if rows == 1:
        return b.reshape(x, channels)
    split = x if x.shape[1] == heads else b.reshape(x, (1, heads, rows, head_dim))
    return b.reshape(b.transpose(split, (0, 1, 3, 2)), channels)


def _normalise_heads(b: Builder, config: DecoderConfig, prefix: str, x: Value, queries: int) -> Value:
    """RMSNorm of each head of x (1, queries + kv_heads, S, head_dim), with the gains of q_norm and k_norm."""

    def gain(name: str) -> Value:
        source = f"{prefix}.{name}.weight"
        return b.weight(Weight(source, (1, 1, 1, config.head_dim), "norm", source))

    normed = normalise(b, x, 3, config.norm_eps)
    if not queries:
        return b.mul(normed, gain("k_norm"))
    query, keys = b.split(normed, [queries, config.kv_heads], axis=1)
    return b.concat([b.mul(query, gain("q_norm")), b.mul(keys, gain("k_norm"))], axis=1)
