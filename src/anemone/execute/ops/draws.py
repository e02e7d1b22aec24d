"""Random tensors: the distributions that MIL defines, from numpy's generator.

Core ML does not say how it draws, so its numbers cannot be reproduced; only their distribution is the same. Ours depend
on ``seed``, or without one on the operation's name, and go on from call to call: each new Program begins anew.
"""

# mypy: disable-error-code="no-any-return"

from zlib import crc32

import numpy as np

from anemone.errors import ExecuteError
from anemone.execute.dtypes import Array
from anemone.execute.ops.registry import Kernel, Node, op


def _shape(node: Node, shape: Array) -> tuple[int, ...]:
    wanted = tuple(shape.tolist())
    node.expect(wanted)
    return wanted


def _generator(node: Node) -> np.random.Generator:
    seed = node.int("seed", -1)
    return np.random.default_rng(crc32(node.op.name.encode()) if seed == -1 else seed % 2**32)


@op("random_uniform")
def random_uniform(node: Node) -> Kernel:
    """At least ``low``, less than ``high``."""
    generator, low, high = _generator(node), node.float("low", 0.0), node.float("high", 1.0)
    return lambda shape: low + np.float32(high - low) * generator.random(_shape(node, shape), np.float32)


@op("random_normal")
def random_normal(node: Node) -> Kernel:
    generator, mean, deviation = _generator(node), node.float("mean", 0.0), node.float("stddev", 1.0)
    return lambda shape: mean + deviation * generator.standard_normal(_shape(node, shape), np.float32)


@op("random_bernoulli")
def random_bernoulli(node: Node) -> Kernel:
    """1 with probability ``prob``, else 0."""
    generator, prob = _generator(node), node.float("prob", 0.5)
    return lambda shape: (generator.random(_shape(node, shape)) < prob).astype(np.float32)


@op("random_categorical")
def random_categorical(node: Node) -> Kernel:
    """``size`` positions of the last axis, drawn with replacement, as numbers of x's type."""
    generator, size, mode = _generator(node), node.int("size", 1), node.text("mode", "logits")
    if mode not in ("logits", "probs"):
        raise ExecuteError(f"its mode {mode!r} is not known")

    def run(x: Array) -> Array:
        node.expect((*x.shape[:-1], size))
        wide = x.astype(np.float64)
        weights = np.exp(wide - wide.max(-1, keepdims=True)) if mode == "logits" else wide
        edges = np.cumsum(weights, -1)
        draws = generator.random((*x.shape[:-1], size)) * edges[..., -1:]
        return np.sum(draws[..., None] >= edges[..., None, :], -1).astype(np.float32)

    return run
