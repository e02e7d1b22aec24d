"""Matrix products, convolutions and attention built on the Neural Engine's dot product.

Each step that the hardware stores as fp16 is rounded: the sum, then the sum with its bias.
"""

from collections.abc import Callable, Hashable
from math import prod
from typing import Any

import numpy as np

from anemone.execute.ane_products import Accumulation, Packed, product
from anemone.execute.dtypes import Array
from anemone.execute.numerics import Float, round_half
from anemone.execute.ops import DEFINITIONS, Kernel, Node
from anemone.execute.ops.conv import paddings
from anemone.execute.ops.tiles import softmax_over
from anemone.execute.stored import Stored


class Layers:
    """Kernels by kind of operation. ``plain`` is the rule of a 1x1 convolution, ``limited`` that of all others."""

    def __init__(self, plain: Accumulation, limited: Accumulation) -> None:
        self.plain, self.limited = plain, limited
        self._packed: dict[Hashable, Packed] = {}
        self.kernels: dict[str, Callable[[Node], Kernel]] = {
            "conv": self.conv,
            "linear": self.linear,
            "matmul": self.matmul,
            "einsum": self.einsum,
            "scaled_dot_product_attention": self.attention,
        }

    def conv(self, node: Node) -> Kernel:
        """x (N, C, *spatial), weight (O, C / groups, *kernel): patches as the columns of a matrix."""
        spatial = len(node.outputs[0].shape) - 2
        patches = Patches(node, spatial)
        stored, groups = node.stored("weight"), node.int("groups", 1)

        def convolve(x: Array, weight: Array | None, bias: Array | None) -> Array:
            kernel = stored.shape[2:] if stored is not None else np.asarray(weight).shape[2:]
            rules = self.plain if prod(kernel) == 1 else self.limited
            columns, out = patches(x, kernel)  # (N, C * kernel, positions)
            depth = columns.shape[1] // groups
            results = []
            for group in range(groups):
                packed = self._matrix(stored, weight, rules, group, groups)
                part = columns[:, group * depth : (group + 1) * depth]
                wide = np.ascontiguousarray(part.transpose(1, 0, 2)).reshape(depth, -1)  # items side by side
                results.append(product(packed, wide).reshape(packed.rows, len(x), -1).transpose(1, 0, 2))
            return _with_bias(np.concatenate(results, axis=1).reshape(len(x), -1, *out), bias, spatial)

        if stored is not None:
            return lambda x, bias=None: convolve(x, None, bias)
        return lambda x, weight, bias=None: convolve(x, weight, bias)

    def _matrix(
        self, stored: Stored | None, weight: Array | None, rules: Accumulation, group: int = 0, groups: int = 1
    ) -> Packed:
        """The rows of one group of a weight, packed once when it is constant."""
        key = (stored.key, rules, group, groups) if stored is not None else None
        if key in self._packed:
            return self._packed[key]
        values = stored.array() if stored is not None else weight
        assert values is not None
        count = len(values) // groups
        packed = Packed(values[group * count : (group + 1) * count].reshape(count, -1), rules)
        if key is not None:
            self._packed[key] = packed
        return packed

    def linear(self, node: Node) -> Kernel:
        """x (..., in) @ weight (out, in) transposed + bias (out,)"""
        stored = node.stored("weight")

        def run(x: Array, weight: Array | None, bias: Array | None) -> Array:
            return _with_bias(self._rows(x, self._matrix(stored, weight, self.limited)), bias, 0)

        if stored is not None:
            return lambda x, bias=None: run(x, None, bias)
        return lambda x, weight, bias=None: run(x, weight, bias)

    def _rows(self, x: Array, packed: Packed) -> Array:
        """x (..., depth) -> (..., rows of the matrix)"""
        flat = np.ascontiguousarray(x.reshape(-1, x.shape[-1]).T)
        return product(packed, flat).T.reshape(*x.shape[:-1], packed.rows)

    def matmul(self, node: Node) -> Kernel:
        turn_x, turn_y = node.flag("transpose_x", False), node.flag("transpose_y", False)
        stored = node.stored("y")
        if stored is not None and len(stored.shape) == 2:
            values = stored.array()
            packed = Packed(values if turn_y else values.T, self.limited)
            return lambda x: self._rows(x.swapaxes(-1, -2) if turn_x else x, packed)

        def run(x: Array, y: Array) -> Array:
            return self.batched(_turned(x, turn_x), _turned(y, turn_y))

        return run

    def batched(self, x: Array, y: Array) -> Array:
        """As numpy.matmul."""
        left, right = (x[None] if x.ndim == 1 else x), (y[:, None] if y.ndim == 1 else y)
        lead = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        lefts = np.broadcast_to(left, (*lead, *left.shape[-2:])).reshape(-1, *left.shape[-2:])
        rights = np.broadcast_to(right, (*lead, *right.shape[-2:])).reshape(-1, *right.shape[-2:])
        parts = [product(Packed(a, self.limited), b) for a, b in zip(lefts, rights, strict=True)]
        result = np.array(parts, np.float32).reshape(*lead, left.shape[-2], right.shape[-1])
        if x.ndim == 1:
            result = result[..., 0, :]
        return result[..., 0] if y.ndim == 1 else result

    def einsum(self, node: Node) -> Kernel:
        """Two operands whose sums are matrix products; other equations as their definition has them."""
        equation = node.text("equation", "").replace(" ", "")
        inputs, _, out = equation.partition("->")
        a, _, b = inputs.partition(",")
        if "." in equation or "," in b or not b or any(len(set(part)) < len(part) for part in (a, b, out)):
            return DEFINITIONS["einsum"].prepare(node)
        batch = [c for c in a if c in b and c in out]
        summed = [c for c in a if c in b and c not in out]
        rows, columns = [c for c in a if c not in b], [c for c in b if c not in a]
        if not set(rows + columns) <= set(out):
            return DEFINITIONS["einsum"].prepare(node)

        def run(*values: Array) -> Array:
            x = values[0].transpose([a.index(c) for c in batch + rows + summed])
            y = values[1].transpose([b.index(c) for c in batch + summed + columns])
            lead, free = len(batch), len(batch) + len(rows)
            left = x.reshape(*x.shape[:lead], prod(x.shape[lead:free]), -1)
            right = y.reshape(*y.shape[:lead], left.shape[-1], -1)
            product_ = self.batched(left, right)
            sizes = (*product_.shape[:lead], *x.shape[lead:free], *y.shape[lead + len(summed) :])
            return product_.reshape(sizes).transpose([(batch + rows + columns).index(c) for c in out])

        return run

    def attention(self, node: Node) -> Kernel:
        """softmax(query @ key.T / sqrt(E) + attn_mask) @ value, every step stored as fp16."""

        def run(query: Array, key: Array, value: Array, attn_mask: Array | None = None) -> Array:
            scaled = round_half(query * np.float32(query.shape[-1] ** -0.5))
            scores = round_half(self.batched(scaled, _turned(key, True)))
            if attn_mask is not None:
                hidden = np.float32(-np.inf)
                scores = np.where(attn_mask, scores, hidden) if attn_mask.dtype == np.bool_ else scores + attn_mask
            return self.batched(round_half(softmax_over(round_half(scores), -1)), value)

        return run


class Patches:
    """Cuts x into what each position of a convolution sees."""

    def __init__(self, node: Node, spatial: int) -> None:
        self.strides = node.ints("strides") or (1,) * spatial
        self.dilations = node.ints("dilations") or (1,) * spatial
        self.pad_type, self.pad = node.text("pad_type", "valid"), node.ints("pad") or (0,) * (2 * spatial)

    def __call__(self, x: Array, kernel: tuple[int, ...]) -> tuple[Array, tuple[int, ...]]:
        """x (N, C, *spatial) -> (N, C * taps, positions) and the sizes of the positions."""
        around = paddings(x.shape[2:], kernel, self.strides, self.dilations, self.pad_type, self.pad)
        if any(before or after for before, after in around):
            x = np.pad(x, [(0, 0), (0, 0), *around])
        extents = tuple((k - 1) * d + 1 for k, d in zip(kernel, self.dilations, strict=True))
        windows: Any = np.lib.stride_tricks.sliding_window_view(  # type: ignore[call-overload]
            x, extents, axis=tuple(range(2, x.ndim))
        )
        windows = windows[(slice(None), slice(None), *(slice(None, None, s) for s in self.strides))]
        windows = windows[(..., *(slice(None, None, d) for d in self.dilations))]
        count = len(kernel)
        out = windows.shape[2 : 2 + count]
        order = (0, 1, *range(2 + count, 2 + 2 * count), *range(2, 2 + count))
        return windows.transpose(order).reshape(x.shape[0], x.shape[1] * prod(kernel), prod(out)), out


def _turned(x: Array, turn: bool) -> Array:
    return x.swapaxes(-1, -2) if turn and x.ndim > 1 else x


def _with_bias(x: Float, bias: Array | None, spatial: int) -> Float:
    """The sum is stored as fp16 before the bias is added."""
    if bias is None:
        return x
    result: Float = round_half(np.ascontiguousarray(x)) + np.reshape(bias, (-1, *(1,) * spatial))
    return result
