"""Functions of one tensor as the Neural Engine gives them: limits, biases and values where there is none."""

# mypy: disable-error-code="no-any-return"

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from anemone.execute.dtypes import Array
from anemone.execute.numerics import round_half
from anemone.execute.ops import DEFINITIONS, Kernel, Node

_LARGEST = np.float32(65504)


class Functions:
    """Kernels by kind of operation, for the rules of one chip."""

    def __init__(self, rules: Mapping[str, Any]) -> None:
        self.rules = rules
        self.kernels: dict[str, Callable[[Node], Kernel]] = {
            "exp": lambda _: lambda x: self.exp(x),
            "silu": lambda _: lambda x: self.silu(x),
            "softplus": lambda _: lambda x: self.softplus(x),
            "softplus_parametric": self.softplus_parametric,
            "gelu": self.gelu,
            "log": self.log,
            "sqrt": lambda _: lambda x: np.sqrt(np.maximum(x, 0)),
            "rsqrt": self.rsqrt,
            "inverse": self.inverse,
            "real_div": lambda _: divide,
            "reduce_log_sum_exp": self.log_sum_exp,
        }
        if rules["round_squares"]:
            self.kernels["reduce_sum_square"] = self.sum_square

    def exp(self, x: Array) -> Array:
        return np.where(x > self.rules["exp_limit"], np.float32(np.inf), np.minimum(np.exp(x), _LARGEST))

    def silu(self, x: Array) -> Array:
        """The bias follows the curvature of the function, as the error of a table of straight pieces does."""
        near = np.clip(x, -20, 20)
        gate = 1 / (1 + np.exp(-near))
        curvature = gate * (1 - gate) * (2 + near * (1 - 2 * gate)) * 2  # 1 at 0
        return x / (1 + np.exp(-x)) + np.float32(self.rules["silu_bias"]) * curvature

    def softplus(self, x: Array) -> Array:
        return np.where(x > self.rules["softplus_limit"], np.float32(0), np.log1p(np.exp(np.minimum(x, 12))))

    def softplus_parametric(self, node: Node) -> Kernel:
        per_channel = (-1, *(1,) * (len(node.outputs[0].shape) - 2))

        def run(x: Array, alpha: Array, beta: Array) -> Array:
            return np.reshape(alpha, per_channel) * self.softplus(np.reshape(beta, per_channel) * x)

        return run

    def gelu(self, node: Node) -> Kernel:
        """The bias fades as exp(-x**2 / 2), the curvature's main factor."""
        exact: Any = DEFINITIONS["gelu"].prepare(node)
        bias = np.float32(self.rules["gelu_bias"])
        return lambda x: exact(x) + bias * np.exp(-0.5 * np.square(x))

    def log(self, node: Node) -> Kernel:
        epsilon = node.float("epsilon", 1e-45)
        at_zero = np.float32(self.rules["log_of_zero"])

        def run(x: Array) -> Array:
            shifted = x + epsilon
            return np.where(shifted == 0, at_zero, np.log(np.where(shifted > 0, shifted, 1)))

        return run

    def rsqrt(self, node: Node) -> Kernel:
        epsilon = node.float("epsilon", 1e-12)

        def run(x: Array) -> Array:
            shifted = x + epsilon
            return np.where(shifted >= 0, 1 / np.sqrt(np.abs(shifted)), 0)

        return run

    def inverse(self, node: Node) -> Kernel:
        epsilon = node.float("epsilon", 1e-4)
        return lambda x: reciprocal(x + epsilon)

    def log_sum_exp(self, node: Node) -> Kernel:
        """Without subtracting the maximum, so that a sum beyond fp16 is infinite."""
        axes, keep = node.ints("axes"), node.flag("keep_dims", False)

        def run(x: Array) -> Array:
            total = np.sum(self.exp(x), axis=axes, keepdims=keep)
            return np.log(np.where(total > _LARGEST, np.float32(np.inf), total))

        return run

    def sum_square(self, node: Node) -> Kernel:
        axes, keep = node.ints("axes"), node.flag("keep_dims", False)
        return lambda x: np.sum(round_half(np.square(x)), axis=axes, keepdims=keep)


def reciprocal(x: Array) -> Array:
    """1 / x without the sign of zero."""
    return 1 / np.where(x == 0, np.float32(0), x)


def divide(x: Array, y: Array) -> Array:
    return np.where(np.equal(y, 0), x * np.float32(np.inf), np.divide(x, y))
