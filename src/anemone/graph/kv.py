"""The key/value cache: one fp16 state (2 * layers, kv_heads, context, head_dim), keys in the first half of the rows.

Every chunk declares the whole state and touches only its layers' rows, so that chunks and functions can share one.
New rows are merged in one of two ways, which give the same values: "slice" updates rows whose bounds depend on the
position (what shipped packages do); "mask" rewrites the whole cached row under a mask, with constant bounds, for
compilers that reject run-time ones.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from anemone.architectures.base import DecoderConfig
from anemone.graph.builder import Builder
from anemone.graph.ir import Operand, Shape, Value

STATE_NAME = "model_model_kv_cache_0"

Merge: TypeAlias = Callable[[Value, int, Value], Value]
"""(cache, row, update (1, kv_heads, S, head_dim)) -> cache with the update in place."""


def state_shape(config: DecoderConfig, context: int) -> Shape:
    return (2 * config.layers, config.kv_heads, context, config.head_dim)


class Cache:
    """The cache inside one function whose first new row sits at ``position`` (1,) int32."""

    def __init__(self, b: Builder, shape: Shape, position: Value, rows: int, how: str) -> None:
        self._b = b
        self._state = b.state(STATE_NAME, shape)
        self._value = b.read_state(self._state)
        self._merge = {"slice": merge_by_slice, "mask": merge_by_mask}[how](b, shape, position, rows)

    def write(self, row: int, update: Value) -> None:
        """Store update (1, kv_heads, S, head_dim) in state row ``row``."""
        self._b.write_state(self._state, self._merge(self._value, row, update))
        self._value = self._b.read_state(self._state)

    def read(self, row: int) -> Value:
        """State row ``row``: (1, kv_heads, context, head_dim)."""
        return self._b.narrow(self._value, 0, row, row + 1)


def merge_by_slice(b: Builder, shape: Shape, position: Value, rows: int) -> Merge:
    stop = b.add(position, np.array([rows], np.int32))

    def bound(row: int, head: int, position: Value, channel: int) -> Value:
        parts = (_int(row), _int(head), position, _int(channel))
        return b.op("concat", {"values": parts, "axis": np.int32(0), "interleave": False}, (4,), "int32")

    def merge(cache: Value, row: int, update: Value) -> Value:
        begin, end = bound(row, 0, position, 0), bound(row + 1, shape[1], stop, shape[3])
        return b.slice_update(cache, update, begin, end)

    return merge


def merge_by_mask(b: Builder, shape: Shape, position: Value, rows: int) -> Merge:
    """K * (1 - m) + P k, where P (context, S) puts new row s at position + s and m marks the rows that P fills."""
    _, kv_heads, context, head_dim = shape
    offset = np.arange(context, dtype=np.int32)[:, None] - np.arange(rows, dtype=np.int32)  # (context, S)
    placement = b.cast(b.equal(position, offset.reshape(1, 1, context, rows)), "fp16")
    filled = placement if rows == 1 else b.reduce_max(placement, 3, keep=True)  # (1, 1, context, 1)
    kept = b.sub(b.mul(filled, np.float16(-1)), np.float16(-1))

    def merge(cache: Value, row: int, update: Value) -> Value:
        placed = b.mul(update, placement) if rows == 1 else b.matmul(placement, update)
        old = b.narrow(cache, 0, row, row + 1)
        merged = b.add(b.mul(old, kept), placed)
        begin: Operand = np.array([row, 0, 0, 0], np.int32)
        end: Operand = np.array([row + 1, kv_heads, context, head_dim], np.int32)
        return b.slice_update(cache, merged, begin, end)

    return merge


def _int(value: int) -> NDArray[np.int32]:
    return np.array([value], np.int32)
