"""Arithmetic, comparison and logic, element by element with broadcasting."""

# mypy: disable-error-code="no-any-return"

from collections.abc import Callable
from functools import cache
from math import erf as exact_erf
from typing import Any

import numpy as np

from anemone.execute.dtypes import Array
from anemone.execute.ops.registry import Kernel, Node, kernel, op

_BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "real_div": np.divide, "floor_div": np.floor_divide,
    "mod": np.mod, "pow": np.power, "maximum": np.maximum, "minimum": np.minimum, "equal": np.equal,
    "not_equal": np.not_equal, "less": np.less, "less_equal": np.less_equal, "greater": np.greater,
    "greater_equal": np.greater_equal, "logical_and": np.logical_and, "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}  # fmt: skip

_UNARY: dict[str, Callable[..., Any]] = {
    "abs": np.abs, "acos": np.arccos, "asin": np.arcsin, "atan": np.arctan, "atanh": np.arctanh, "ceil": np.ceil,
    "cos": np.cos, "cosh": np.cosh, "exp": np.exp, "exp2": np.exp2, "floor": np.floor, "logical_not": np.logical_not,
    "round": np.rint, "sign": np.sign, "sin": np.sin, "sinh": np.sinh, "sqrt": np.sqrt, "square": np.square,
    "tan": np.tan, "tanh": np.tanh,
}  # fmt: skip


@op(*_BINARY)
def binary(node: Node) -> Kernel:
    function = _BINARY[node.op.kind]
    return lambda x, y: function(x, y)


@op(*_UNARY)
def unary(node: Node) -> Kernel:
    function = _UNARY[node.op.kind]
    return lambda x: function(x)


@op("rsqrt")
def rsqrt(node: Node) -> Kernel:
    epsilon = node.float("epsilon", 1e-12)
    return lambda x: 1 / np.sqrt(x + epsilon)


@op("inverse")
def inverse(node: Node) -> Kernel:
    epsilon = node.float("epsilon", 1e-4)
    return lambda x: 1 / (x + epsilon)


@op("log")
def log(node: Node) -> Kernel:
    epsilon = node.float("epsilon", 1e-45)
    return lambda x: np.log(x + epsilon)


@kernel("clip")
def clip(x: Array, alpha: float, beta: float) -> Array:
    return np.minimum(np.maximum(x, alpha), beta)


@kernel("threshold")
def threshold(x: Array, alpha: float) -> Array:
    return np.maximum(x, alpha)


@kernel("select", moves=True)
def select(cond: Array, a: Array, b: Array) -> Array:
    return np.where(cond, a, b)


@op("cast")
def cast(node: Node) -> Kernel:
    carrier = node.carrier
    return lambda x: np.asarray(x).astype(carrier)


@cache
def _erf_polynomial() -> np.polynomial.Chebyshev:
    """erf(x)/x as a polynomial in x**2 on 0 <= x <= 4, to 1e-10."""

    def quotient(square: Array) -> Array:
        roots = np.sqrt(square)
        return np.array([exact_erf(r) / r for r in roots])

    return np.polynomial.Chebyshev.interpolate(quotient, 32, domain=[0, 16])


def erf(x: Array) -> Array:
    """The error function to fp32 accuracy; beyond |x| = 4 it is 1 in fp32."""
    wide = np.clip(x, -4, 4).astype(np.float64)
    return (wide * _erf_polynomial()(wide * wide)).astype(np.float32)


kernel("erf")(erf)
