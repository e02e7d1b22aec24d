"""RMSNorm in a form that cannot overflow in fp16.

layer_norm of concat(x, -x): the mean is 0 and the variance is mean(x^2), so the first half is RMSNorm(x), and squares
are never stored as fp16 tensors. Every package that ANEMLL ships uses this identity on the last axis; here it also
runs over the channel axis of (1, C, 1, S), the axis of Apple's own ANE layer norm.
"""

import numpy as np

from anemone.graph.builder import Builder
from anemone.graph.ir import Value, Weight


def normalise(b: Builder, x: Value, axis: int, epsilon: float) -> Value:
    """x / sqrt(mean(x^2) + epsilon) over one axis; a zero row stays zero."""
    size = x.shape[axis]
    doubled = b.concat([x, b.mul(x, np.float16(-1))], axis)
    return b.narrow(b.layer_norm(doubled, axis, epsilon), axis, 0, size)


def rms_norm(b: Builder, x: Value, source: str, epsilon: float) -> Value:
    """RMSNorm over the channels of (1, C, 1, S) with the checkpoint's gain ``source``."""
    gain = b.weight(Weight(source, (1, x.shape[1], 1, 1), "norm", source))
    return b.mul(normalise(b, x, 1, epsilon), gain)
