"""Normalisations; means and variances in fp32, the variance from centred values."""

# mypy: disable-error-code="no-any-return"

from math import prod

import numpy as np

from anemone.errors import ExecuteError
from anemone.execute.dtypes import Array
from anemone.execute.ops.registry import Kernel, Node, op


def normalise(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    count = np.float32(prod(x.shape[axis] for axis in axes))
    centred = x - _sum(x, axes) / count
    variance = _sum(np.square(centred), axes) / count
    centred /= np.sqrt(variance + epsilon)
    return centred


def _sum(x: Array, axes: tuple[int, ...]) -> Array:
    """The halves of an even axis apart: the mean of (x, -x), a way to write RMSNorm, is then exactly 0."""
    if len(axes) > 1 or x.shape[axes[0]] % 2:
        return np.add.reduce(x, axis=axes, keepdims=True)
    lower, upper = np.split(x, 2, axes[0])
    return np.add.reduce(lower, axis=axes, keepdims=True) + np.add.reduce(upper, axis=axes, keepdims=True)


def _parameter(node: Node, name: str, shape: tuple[int, ...]) -> Array | None:
    stored = node.stored(name)
    return None if stored is None else node.weights.array(stored).reshape(shape)


def _scale_and_shift(x: Array, gamma: Array | None, beta: Array | None) -> Array:
    if gamma is not None:
        x *= gamma
    if beta is not None:
        x += beta
    return x


@op("layer_norm")
def layer_norm(node: Node) -> Kernel:
    rank = len(node.outputs[0].shape)
    axes = node.ints("axes")
    axes = tuple(range(rank)) if axes is None else tuple(sorted(axis % rank for axis in axes))
    epsilon = node.float("epsilon", 1e-5)
    stored = node.stored("gamma") or node.stored("beta")
    # gamma has the sizes of the normalised axes, in order; spread them to the rank of x
    sizes = iter(stored.shape if stored is not None else ())
    shape = tuple(next(sizes) if stored is not None and axis in axes else 1 for axis in range(rank))
    gamma, beta = _parameter(node, "gamma", shape), _parameter(node, "beta", shape)
    return lambda x: _scale_and_shift(normalise(x, axes, epsilon), gamma, beta)


def _channels(node: Node, name: str) -> Array | None:
    """A (C,) parameter along axis 1 of the output's rank."""
    return _parameter(node, name, (-1, *(1,) * (len(node.outputs[0].shape) - 2)))


@op("batch_norm")
def batch_norm(node: Node) -> Kernel:
    epsilon = node.float("epsilon", 1e-5)
    mean, variance = _channels(node, "mean"), _channels(node, "variance")
    gamma, beta = _channels(node, "gamma"), _channels(node, "beta")
    if mean is None or variance is None:
        raise ExecuteError("its operands mean and variance must be constants")
    deviation = np.sqrt(variance + epsilon)
    return lambda x: _scale_and_shift((x - mean) / deviation, gamma, beta)


@op("instance_norm")
def instance_norm(node: Node) -> Kernel:
    epsilon = node.float("epsilon", 1e-5)
    gamma, beta = _channels(node, "gamma"), _channels(node, "beta")
    axes = tuple(range(2, len(node.outputs[0].shape)))
    return lambda x: _scale_and_shift(normalise(x, axes, epsilon), gamma, beta)


@op("l2_norm")
def l2_norm(node: Node) -> Kernel:
    """Divided by the square root of the sum of squares over the last three axes."""
    epsilon = node.float("epsilon", 1e-6)
    return lambda x: x / np.sqrt(np.sum(np.square(x), axis=(-3, -2, -1), keepdims=True) + epsilon)


@op("local_response_norm")
def local_response_norm(node: Node) -> Kernel:
    """x / (k + alpha / size * sum of squares over ``size`` neighbouring channels) ** beta"""
    size, k = node.int("size", 1), node.float("k", 1.0)
    alpha, beta = node.float("alpha", 1e-4), node.float("beta", 0.75)

    def run(x: Array) -> Array:
        before = size // 2
        squares = np.pad(np.square(x), [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)])
        total = sum(squares[:, start : start + x.shape[1]] for start in range(size))
        return x / np.power(k + np.float32(alpha / size) * total, beta)

    return run
