"""Ways to write SiLU, softplus and RMSNorm that are right in float32 and wrong on the Neural Engine."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np

from anemone.graph.builder import Builder
from anemone.graph.ir import Value
from anemone.package.opset import SIGNATURES, Signature


def native_silu(b: Builder, x: Value, *_: object) -> Value:
    return b.unary("silu", x)


def native_softplus(b: Builder, x: Value, *_: object) -> Value:
    return b.unary("softplus", x)


def plain_softplus(b: Builder, x: Value, *_: object) -> Value:
    """log(1 + exp(x)): exp overflows."""
    return b.unary("log", b.add(b.unary("exp", x), np.float16(1)), epsilon=np.float16(0))


def safe_softplus(b: Builder, x: Value, *_: object) -> Value:
    """relu(x) + log(1 + exp(-abs(x)))"""
    tail = b.unary("exp", b.mul(b.unary("abs", x), np.float16(-1)))
    return b.add(b.unary("relu", x), b.unary("log", b.add(tail, np.float16(1)), epsilon=np.float16(0)))


def _root_mean_square(b: Builder, x: Value, axis: int, epsilon: float) -> Value:
    shape = tuple(1 if i == axis else size for i, size in enumerate(x.shape))
    axes = np.array([axis], np.int32)
    mean = b.op("reduce_mean", {"x": b.mul(x, x), "axes": axes, "keep_dims": True}, shape)
    return b.unary("rsqrt", mean, epsilon=np.float16(epsilon))


def plain_norm(b: Builder, x: Value, axis: int, epsilon: float) -> Value:
    """x * rsqrt(mean(x * x)): squares overflow from 256 on."""
    return b.mul(x, _root_mean_square(b, x, axis, epsilon))


def scaled_norm(b: Builder, x: Value, axis: int, epsilon: float) -> Value:
    """The same after a division by 64: squares of small numbers are subnormal."""
    small = b.mul(x, np.float16(1 / 64))
    return b.mul(small, _root_mean_square(b, small, axis, epsilon / 64**2))


Form = Callable[..., Value]


@contextmanager
def graph_with(activation: Form | None = None, norm: Form | None = None) -> Iterator[None]:
    """Conversions inside write these forms."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(SIGNATURES, softplus=Signature(("x",)), log=Signature(("x", "epsilon"))))
        if activation:
            stack.enter_context(mock.patch("anemone.graph.mlp.activate", activation))
        if norm:
            stack.enter_context(mock.patch("anemone.graph.norm.normalise", norm))
        yield
