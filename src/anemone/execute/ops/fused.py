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
            return product(_weights(_masked(product(query, key), mask, store), None, store), value)
        reach = mask.reshape(-1, columns).max(axis=0)
        shown = _shown(reach)
        scores = _masked(by_columns(query, key[..., shown]), mask[..., shown], store)
        peaks = np.max(scores, axis=-1, keepdims=True)
        if not _rest_vanishes(query, key, value, reach, shown, peaks.min()):
            shown = slice(0, columns)
            scores = _masked(by_columns(query, key), mask, store)
            peaks = np.max(scores, axis=-1, keepdims=True)
        return by_terms(_weights(scores, peaks, store), value[..., shown, :])

    return run


def _shown(reach: Array) -> slice:
    """The tiles from the first to the last column that the mask does not hide from all rows. ``reach`` (columns,): the
    most that the mask adds to each."""
    seen = np.flatnonzero(reach > reach.max() - _FAR)
    if not seen.size:  # NaN
        return slice(0, len(reach))
    return slice(int(seen[0]) // TILE * TILE, min(len(reach), (int(seen[-1]) // TILE + 1) * TILE))


def _masked(scores: Array, mask: Array, store: Store) -> Array:
    if store is None:
        return scores + mask
    scores = store(scores, scores) + mask
    return store(scores, scores)


def _weights(scores: Array, peaks: Array | None, store: Store) -> Array:
    weights = softmax_over(scores, -1, peaks)
    return weights if store is None else store(weights, weights)


def _rest_vanishes(query: Array, key: Array, value: Array, reach: Array, shown: slice, peak: float) -> bool:
    """Whether all other columns surely get a weight of exactly 0 for finite values. ``peak``: the least of all rows."""
    rest = [part for part in (slice(0, shown.start), slice(shown.stop, len(reach))) if part.start < part.stop]
    most = 1.01 * query.shape[-1] * _largest(query) if rest else 0.0
    for part in rest:
        score = most * _largest(key[..., part])
        unseen = score < _MOST and score + reach[part].max() < peak - _VANISHES
        if not (unseen and np.isfinite(_largest(value[..., part, :]))):
            return False
    return True


def _largest(x: Array) -> float:
    """The largest magnitude; NaN if there is one."""
    return float(max(x.max(), -x.min()))


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
