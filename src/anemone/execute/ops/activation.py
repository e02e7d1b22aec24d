"""Activation functions and softmax."""

# mypy: disable-error-code="no-any-return"

import numpy as np

from anemone.errors import ExecuteError
from anemone.execute.dtypes import Array
from anemone.execute.ops.elementwise import erf
from anemone.execute.ops.registry import Kernel, Node, kernel, op
from anemone.execute.ops.tiles import softmax_over


@kernel("relu", moves=True)
def relu(x: Array) -> Array:
    return np.clip(x, 0, np.inf)  # twice as fast as the maximum with a number


@kernel("relu6")
def relu6(x: Array) -> Array:
    return np.clip(x, 0, 6)


@kernel("leaky_relu")
def leaky_relu(x: Array, alpha: float) -> Array:
    return np.where(x >= 0, x, alpha * x)


@kernel("thresholded_relu")
def thresholded_relu(x: Array, alpha: float) -> Array:
    return np.where(x >= alpha, x, 0)


@kernel("clamped_relu")
def clamped_relu(x: Array, alpha: float, beta: float) -> Array:
    return np.minimum(beta, np.where(x >= 0, x, alpha * x))


@kernel("elu")
def elu(x: Array, alpha: float) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(x))


@kernel("linear_activation")
def linear_activation(x: Array, alpha: float, beta: float) -> Array:
    return x * alpha + beta


@kernel("scaled_tanh")
def scaled_tanh(x: Array, alpha: float, beta: float) -> Array:
    return alpha * np.tanh(beta * x)


@kernel("sigmoid_hard")
def sigmoid_hard(x: Array, alpha: float, beta: float) -> Array:
    return np.clip(alpha * x + beta, 0, 1)


@kernel("sigmoid")
def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


@kernel("silu")
def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


@kernel("softplus")
def softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


@kernel("softsign")
def softsign(x: Array) -> Array:
    return x / (1 + np.abs(x))


def _per_channel(values: Array, x: Array) -> Array:
    """(C,) to the rank of x, along axis 1."""
    return np.reshape(values, (-1, *(1,) * (x.ndim - 2)))


@kernel("prelu")
def prelu(x: Array, alpha: Array) -> Array:
    return np.where(x > 0, x, _per_channel(alpha, x) * x)


@kernel("softplus_parametric")
def softplus_parametric(x: Array, alpha: Array, beta: Array) -> Array:
    return _per_channel(alpha, x) * softplus(_per_channel(beta, x) * x)


@op("gelu")
def gelu(node: Node) -> Kernel:
    mode = node.text("mode", "EXACT")
    if mode == "EXACT":
        return lambda x: 0.5 * x * (1 + erf(x * np.float32(0.5**0.5)))
    if mode == "TANH_APPROXIMATION":
        scale = np.float32((2 / np.pi) ** 0.5)
        return lambda x: 0.5 * x * (1 + np.tanh(scale * (x + np.float32(0.044715) * x * x * x)))
    if mode == "SIGMOID_APPROXIMATION":
        return lambda x: x / (1 + np.exp(np.float32(-1.702) * x))
    raise ExecuteError(f"its mode {mode!r} is not known")


@op("softmax")
def softmax(node: Node) -> Kernel:
    axis = node.int("axis", -1)
    return lambda x: softmax_over(x, axis)
