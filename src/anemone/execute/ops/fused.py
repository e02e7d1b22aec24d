"""What chains of operations compute in one go, with the bits that the single operations give."""

# mypy: disable-error-code="no-any-return"

from collections.abc import Callable

import numpy as np

from anemone.execute.dtypes import Array
from anemone.execute.ops.norm import normalise
from anemone.execute.ops.registry import Definition, Kernel, Node
from anemone.execute.ops.tiles import TILE, by_columns, by_terms, product, softmax_over

ATTENTION = "matmul + add + softmax + matmul"
RMS_NORM = "mul + concat + layer_norm + slice_by_index"

_FAR = 1000.0  # a mask that adds this much less than elsewhere is meant to hide
_MOST = 60000.0  # scores below cannot become infinite in fp16
_VANISHES = 104.0 + 64.0  # exp(-104) is 0 in fp32; 64 is more than rounding to fp16 adds to a sum

Store = Callable[..., Array] | None


def attention(node: Node) -> Kernel:
    """softmax(query @ key + mask) @ value without the tiles of columns that the mask hides from all rows."""
    transposed, store = node.flag("transpose_key", False), node.store

    def run(query: Array, key: Array, value: Array, mask: Array) -> Array:
        key = key.swapaxes(-1, -2) if transposed else key
        columns = key.shape[-1]
        if np.ndim(mask) == 0 or mask.shape[-1] != columns or columns <= max(TILE, query.shape[-1], value.shape[-1]):
            return product(_weights(_masked(product(query, key), mask, store), store), value)
        shown = _shown(mask)
        scores = _masked(by_columns(query, key[..., shown]), mask[..., shown], store)
        if not _rest_vanishes(query, key, value, mask, shown, scores):
            shown = slice(0, columns)
            scores = _masked(by_columns(query, key), mask, store)
        return by_terms(_weights(scores, store), value[..., shown, :])

    return run


def _shown(mask: Array) -> slice:
    """The tiles from the first to the last column that the mask does not hide from all rows."""
    columns = mask.shape[-1]
    most = mask.reshape(-1, columns).max(axis=0)
    seen = np.flatnonzero(most > most.max() - _FAR)
    if not seen.size:  # NaN
        return slice(0, columns)
    return slice(int(seen[0]) // TILE * TILE, min(columns, (int(seen[-1]) // TILE + 1) * TILE))


def _masked(scores: Array, mask: Array, store: Store) -> Array:
    if store is None:
        return scores + mask
    scores = store(scores, scores) + mask
    return store(scores, scores)


def _weights(scores: Array, store: Store) -> Array:
    weights = softmax_over(scores, -1)
    return weights if store is None else store(weights, weights)


def _rest_vanishes(query: Array, key: Array, value: Array, mask: Array, shown: slice, scores: Array) -> bool:
    """Whether all other columns surely get a weight of exactly 0, which they pass on to finite values.

    A score is at most the product of the lengths of its query and its key.
    """
    rest = [part for part in (slice(0, shown.start), slice(shown.stop, key.shape[-1])) if part.start < part.stop]
    if not rest:
        return True
    least_peak = np.min(np.max(scores, axis=-1))
    longest = _longest(query)
    for part in rest:
        score = 1.01 * longest * _longest(key[..., part].swapaxes(-1, -2))
        hidden = score + np.max(mask[..., part])
        if not (score < _MOST and hidden < least_peak - _VANISHES and np.isfinite(_longest(value[..., part, :]))):
            return False
    return True


def _longest(vectors: Array) -> float:
    """The largest length of the vectors along the last axis; NaN and infinity are kept."""
    return float(np.sqrt(np.max(np.einsum("...i,...i->...", vectors, vectors))))


def rms_norm(node: Node) -> Kernel:
    """x / sqrt(mean(x^2) + epsilon) over one axis, as layer_norm(concat(x, -x)) computes it."""
    axis, epsilon = node.int("axis", 0), node.float("epsilon", 1e-5)

    def run(x: Array) -> Array:
        x = np.ascontiguousarray(x)  # what concat makes
        half = np.add.reduce(np.square(x), axis=axis, keepdims=True)
        if not np.isfinite(half).all():
            return np.split(normalise(np.concatenate([x, -x], axis), (axis % x.ndim,), epsilon), 2, axis)[0]
        return x / np.sqrt((half + half) / np.float32(2 * x.shape[axis]) + epsilon)

    return run


FUSED = {ATTENTION: Definition(attention, moves=False), RMS_NORM: Definition(rms_norm, moves=False)}
