"""The ``ane`` mode: every fp16 tensor rounded, and the Neural Engine's measured habits on top.

The rules are data (``anemone.ane.numerics``). Operations whose result is not an fp16 tensor are left alone: they do not
run on the Neural Engine. Not imitated, for want of a measured form: the worst cases of gelu, sigmoid, tanh, sin, cos
and atan, and the final rounding on M5 (2049 becomes 2050). Recurrent layers, transposed convolutions and operations of
other families sum in fp32.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anemone.ane.numerics import DEFAULT_CHIP, chip_rules
from anemone.execute.ane_functions import Functions
from anemone.execute.ane_layers import Layers
from anemone.execute.ane_products import Accumulation
from anemone.execute.numerics import Float, Numerics, round_half
from anemone.execute.ops import DEFINITIONS, Kernel, Node

Prepare = Callable[[Node], Kernel]


def ane_numerics(chip: str = "") -> Numerics:
    """The mode for a chip, m1 by default. Raises ExecuteError for an unknown one."""
    chip = chip or DEFAULT_CHIP
    rules = chip_rules(chip)
    flush = bool(rules["flush_products"])
    plain, limited = Accumulation(flush), Accumulation(flush, rules["product_limit"])
    kernels: dict[str, Prepare] = {**Layers(plain, limited).kernels, **Functions(rules).kernels}
    if np.isfinite(rules["slice_limit"]):
        kernels |= {kind: _crop(kind, rules["slice_limit"]) for kind in ("slice_by_index", "split")}
    halves = {kind: _only_for_halves(kind, prepare) for kind, prepare in kernels.items()}
    return Numerics(f"ane:{chip}", _store, halves, chip, _enter)


def _enter(x: NDArray[Any]) -> NDArray[Any]:
    """NaN becomes infinity."""
    return np.where(np.isnan(x), np.asarray(np.inf, x.dtype), x)


def _store(x: Float, out: Float | None = None) -> Float:
    """Rounded to fp16; inf - inf, 0 * inf and functions without a value give 0."""
    result = round_half(x, out)
    if result.size and np.isnan(result.max()):
        result[np.isnan(result)] = 0
    return result


def _only_for_halves(kind: str, prepare: Prepare) -> Prepare:
    def choose(node: Node) -> Kernel:
        return prepare(node) if node.outputs[0].dtype == "fp16" else DEFINITIONS[kind].prepare(node)

    return choose


def _crop(kind: str, limit: float) -> Prepare:
    """Slices of the last axis that start beyond 0."""

    def prepare(node: Node) -> Kernel:
        whole = DEFINITIONS[kind].prepare(node)
        run: Any = whole
        rank = len(node.outputs[0].shape)
        if kind == "split":
            if node.int("axis", 0) not in (-1, rank - 1):
                return whole
            return lambda x: tuple(part if i == 0 else _cropped(part, limit) for i, part in enumerate(run(x)))
        begin = node.ints("begin") if node.stored("begin") is not None else None
        masked = (node.ints("begin_mask") or (0,))[-1]
        if begin is None or masked or not begin[-1]:
            return whole
        if node.stored("end") is not None:
            return lambda x: _cropped(run(x), limit)
        return lambda x, begin, end: _cropped(run(x, begin, end), limit)

    return prepare


def _cropped(x: Float, limit: float) -> Float:
    over = np.abs(x) >= limit
    return np.where(over, np.copysign(np.float32(np.inf), x), x) if over.any() else x
