"""Matrix products: matmul, linear, einsum and attention."""

# mypy: disable-error-code="no-any-return"

import numpy as np

from anemone.errors import ExecuteError
from anemone.execute.dtypes import Array
from anemone.execute.ops.registry import Kernel, Node, op
from anemone.execute.ops.tiles import product, softmax_over


@op("matmul")
def matmul(node: Node) -> Kernel:
    transpose_x, transpose_y = node.flag("transpose_x", False), node.flag("transpose_y", False)
    stored = node.stored("y")
    if stored is not None and len(stored.shape) == 2 and stored.dtype in ("fp16", "fp32"):
        matrix = node.weights.matrix(stored)
        times = matrix.transposed_after if transpose_y else matrix.after
        return lambda x: times(_swapped(x) if transpose_x else x)

    def run(x: Array, y: Array) -> Array:
        return product(_swapped(x) if transpose_x else x, _swapped(y) if transpose_y else y)

    return run


def _swapped(x: Array) -> Array:
    return x.swapaxes(-1, -2) if x.ndim > 1 else x


@op("linear")
def linear(node: Node) -> Kernel:
    """x (..., in) @ weight (out, in) transposed + bias (out,)"""
    stored = node.stored("weight")
    if stored is None:
        return lambda x, weight, bias=0.0: x @ weight.T + bias
    matrix = node.weights.matrix(stored)
    if not node.has("bias"):
        return lambda x: matrix.transposed_after(x)

    def run(x: Array, bias: Array) -> Array:
        result = matrix.transposed_after(x)
        result += bias
        return result

    return run


@op("einsum")
def einsum(node: Node) -> Kernel:
    """Two operands as one batched matrix product; sizes of 1 broadcast."""
    equation = node.text("equation", "").replace(" ", "")
    inputs, _, out = equation.partition("->")
    labels = inputs.split(",")
    if len(labels) != 2 or "." in equation or any(len(set(part)) < len(part) for part in (*labels, out)):
        return lambda *values: np.einsum(equation, *values)
    a, b = labels
    if not set(out) <= set(a) | set(b):
        raise ExecuteError(f"its equation {equation!r} is not valid")
    batch = [c for c in a if c in b and c in out]
    summed = [c for c in a if c in b and c not in out]
    rows, columns = [c for c in a if c not in b], [c for c in b if c not in a]
    result = batch + rows + columns
    drop = [result.index(c) for c in result if c not in out]
    order = [[c for c in result if c in out].index(c) for c in out]

    def run(*values: Array) -> Array:
        x, y = (_broadcast(value, part, values, labels) for value, part in zip(values, labels, strict=True))
        x = x.transpose([a.index(c) for c in batch + rows + summed])
        y = y.transpose([b.index(c) for c in batch + summed + columns])
        lead, n, k = x.shape[: len(batch)], len(batch) + len(rows), len(batch) + len(summed)
        product = np.matmul(
            x.reshape(*lead, _count(x.shape[len(batch) : n]), _count(x.shape[n:])),
            y.reshape(*lead, _count(y.shape[len(batch) : k]), _count(y.shape[k:])),
        ).reshape(*lead, *x.shape[len(batch) : n], *y.shape[k:])
        return np.sum(product, axis=tuple(drop)).transpose(order) if drop else product.transpose(order)

    return run


def _count(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _broadcast(value: Array, part: str, values: tuple[Array, ...], labels: list[str]) -> Array:
    """A view in which every axis has the larger of the two operands' sizes."""
    sizes: dict[str, int] = {}
    for other, names in zip(values, labels, strict=True):
        for name, size in zip(names, other.shape, strict=True):
            sizes[name] = max(size, sizes.get(name, 1))
    return np.broadcast_to(value, [sizes[name] for name in part])


@op("scaled_dot_product_attention")
def attention(node: Node) -> Kernel:
    """softmax(query @ key.T / sqrt(E) + attn_mask) @ value; a boolean mask tells what may be seen."""

    def run(query: Array, key: Array, value: Array, attn_mask: Array | None = None) -> Array:
        scores = product(query, _swapped(key))
        scores *= np.float32(query.shape[-1] ** -0.5)
        if attn_mask is not None:
            scores = np.where(attn_mask, scores, -np.inf) if attn_mask.dtype == np.bool_ else scores + attn_mask
        return product(softmax_over(scores, -1), value)

    return run
