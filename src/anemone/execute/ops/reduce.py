"""Reductions over axes, accumulated in fp32."""

# mypy: disable-error-code="no-any-return"

from collections.abc import Callable
from typing import Any

import numpy as np

from anemone.execute.dtypes import Array
from anemone.execute.ops.registry import Kernel, Node, op

Axes = tuple[int, ...] | None


def _log_sum_exp(x: Array, axis: Axes, keepdims: bool) -> Array:
    peak = np.max(x, axis=axis, keepdims=True)
    peak = np.where(np.isfinite(peak), peak, 0)
    result = np.log(np.sum(np.exp(x - peak), axis=axis, keepdims=True)) + peak
    return result if keepdims else np.squeeze(result, axis)


_OVER_AXES: dict[str, Callable[..., Any]] = {
    "reduce_sum": np.sum,
    "reduce_mean": np.mean,
    "reduce_max": np.max,
    "reduce_min": np.min,
    "reduce_prod": np.prod,
    "reduce_l1_norm": lambda x, **how: np.sum(np.abs(x), **how),
    "reduce_l2_norm": lambda x, **how: np.sqrt(np.sum(np.square(x), **how)),
    "reduce_sum_square": lambda x, **how: np.sum(np.square(x), **how),
    "reduce_log_sum": lambda x, **how: np.log(np.sum(x, **how)),
    "reduce_log_sum_exp": _log_sum_exp,
}


@op(*_OVER_AXES)
def over_axes(node: Node) -> Kernel:
    function = _OVER_AXES[node.op.kind]
    axes = node.ints("axes")
    keep_dims = node.flag("keep_dims", False)
    return lambda x: function(x, axis=axes, keepdims=keep_dims)


@op("reduce_argmax", "reduce_argmin")
def argument(node: Node) -> Kernel:
    """The first position of the extreme value."""
    function: Any = np.argmax if node.op.kind == "reduce_argmax" else np.argmin
    axis = node.int("axis", -1)
    keep_dims = node.flag("keep_dims", False)
    return lambda x: function(x, axis=axis, keepdims=keep_dims)
