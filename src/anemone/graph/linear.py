"""A linear layer as a 1x1 convolution, the form that the ANE is built for (Apple's ANE authoring rules)."""

from anemone.graph.builder import Builder
from anemone.graph.ir import Value, Weight


def linear(b: Builder, x: Value, source: str, outputs: int, bias: bool, name: str = "") -> Value:
    """x (1, I, 1, S) -> (1, outputs, 1, S) with ``source``.weight (outputs, I) and, if any, ``source``.bias."""
    matrix = b.weight(Weight(f"{source}.weight", (outputs, x.shape[1], 1, 1), "linear", f"{source}.weight"))
    offset = b.weight(Weight(f"{source}.bias", (outputs,), "bias", f"{source}.bias")) if bias else None
    return b.conv1x1(x, matrix, offset, name)
