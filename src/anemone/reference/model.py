"""A decoder run step by step in float32, one checkpoint tensor at a time."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anemone.architectures.base import DecoderConfig
from anemone.architectures.tensors import EMBEDDING, FINAL_NORM, HEAD
from anemone.reference.ops import ACTIVATIONS, Array, attention, linear, rms_norm, rope_tables, rotate


class KVCache:
    """Keys and values (kv_heads, capacity, head_dim) of each layer, filled from position 0 on."""

    def __init__(self, config: DecoderConfig, capacity: int):
        shape = (config.layers, config.kv_heads, capacity, config.head_dim)
        self._keys = np.zeros(shape, np.float32)
        self._values = np.zeros(shape, np.float32)
        self._filled = [0] * config.layers

    def start(self, layer: int) -> int:
        """The position that the next row of this layer has."""
        return self._filled[layer]

    def extend(self, layer: int, key: Array, value: Array) -> tuple[Array, Array]:
        """Append (kv_heads, T, head_dim) and return all that the layer holds so far."""
        first = self._filled[layer]
        last = first + key.shape[1]
        if last > self._keys.shape[2]:
            raise IndexError(f"position {last - 1} in a cache of {self._keys.shape[2]}")
        self._keys[layer, :, first:last] = key
        self._values[layer, :, first:last] = value
        self._filled[layer] = last
        return self._keys[layer, :, :last], self._values[layer, :, :last]


class Reference:
    """The forward pass of a decoder. ``weight(name)`` gives a tensor by its Hugging Face name, in any float type.

    Nothing is kept between calls: each tensor is asked for where it is used and converted a block at a time, so the
    peak is the largest tensor plus the activations. Layers can therefore be run one by one over a whole text.
    """

    def __init__(self, config: DecoderConfig, weight: Callable[[str], NDArray[Any]]):
        self.config = config
        self._weight = weight

    def embed(self, ids: Sequence[int] | NDArray[np.integer]) -> Array:
        """T token ids -> (T, hidden)."""
        return np.asarray(self._weight(EMBEDDING)[np.asarray(ids, np.int64)], np.float32)

    def layer(self, i: int, x: Array, cache: KVCache | None = None) -> Array:
        """(T, hidden) -> (T, hidden) through layer i; the rows follow those in the cache, or start at position 0."""
        eps = self.config.norm_eps
        x = x + self._attention(i, rms_norm(x, self._layer_weight(i, "input_layernorm.weight"), eps), cache)
        return x + self._mlp(i, rms_norm(x, self._layer_weight(i, "post_attention_layernorm.weight"), eps))

    def final(self, x: Array) -> Array:
        """The norm after the last layer, (T, hidden) -> (T, hidden)."""
        return rms_norm(x, self._weight(FINAL_NORM), self.config.norm_eps)

    def logits(self, x: Array) -> Array:
        """The output of ``final``, (T, hidden) -> (T, vocab)."""
        return linear(x, self._weight(EMBEDDING if self.config.tied else HEAD))

    def forward(self, ids: Sequence[int] | NDArray[np.integer], cache: KVCache | None = None) -> Array:
        """T token ids -> logits (T, vocab)."""
        x = self.embed(ids)
        for i in range(self.config.layers):
            x = self.layer(i, x, cache)
        return self.logits(self.final(x))

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        """The ``count`` most likely tokens after a prompt, each given the ones before it."""
        cache = KVCache(self.config, len(ids) + count)
        rows, tokens = list(ids), list[int]()
        while len(tokens) < count:
            tokens.append(int(self.forward(rows, cache)[-1].argmax()))
            rows = tokens[-1:]
        return tokens

    def _attention(self, i: int, x: Array, cache: KVCache | None) -> Array:
        config = self.config
        query = self._heads(i, "q", x, config.heads)
        key = self._heads(i, "k", x, config.kv_heads)
        value = self._heads(i, "v", x, config.kv_heads)
        if config.qk_norm:
            query = rms_norm(query, self._layer_weight(i, "self_attn.q_norm.weight"), config.norm_eps)
            key = rms_norm(key, self._layer_weight(i, "self_attn.k_norm.weight"), config.norm_eps)
        start = cache.start(i) if cache else 0
        cos, sin = rope_tables(config.rope, start, len(x))
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        if cache:
            key, value = cache.extend(i, key, value)
        mixed = attention(query, key, value, start).transpose(1, 0, 2).reshape(len(x), -1)  # (T, heads * head_dim)
        return self._linear(i, "self_attn.o_proj", mixed, config.o_bias)

    def _heads(self, i: int, name: str, x: Array, heads: int) -> Array:
        """(T, hidden) -> (heads, T, head_dim)."""
        out = self._linear(i, f"self_attn.{name}_proj", x, self.config.qkv_bias)
        return out.reshape(len(x), heads, self.config.head_dim).transpose(1, 0, 2)

    def _mlp(self, i: int, x: Array) -> Array:
        bias = self.config.mlp_bias
        gate = ACTIVATIONS[self.config.activation](self._linear(i, "mlp.gate_proj", x, bias))
        return self._linear(i, "mlp.down_proj", gate * self._linear(i, "mlp.up_proj", x, bias), bias)

    def _linear(self, i: int, name: str, x: Array, bias: bool) -> Array:
        offset = self._layer_weight(i, f"{name}.bias") if bias else None
        return linear(x, self._layer_weight(i, f"{name}.weight"), offset)

    def _layer_weight(self, i: int, name: str) -> NDArray[Any]:
        return self._weight(f"model.layers.{i}.{name}")
