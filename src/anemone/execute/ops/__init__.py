"""All operations, by family; importing this package defines them."""

from anemone.execute.ops import (
    activation,
    conv,
    create,
    elementwise,
    gather,
    matmul,
    norm,
    reduce,
    shape,
    slicing,
    state,
)
from anemone.execute.ops.registry import DEFINITIONS, Definition, Kernel, Node

__all__ = [
    "DEFINITIONS",
    "Definition",
    "Kernel",
    "Node",
    "activation",
    "conv",
    "create",
    "elementwise",
    "gather",
    "matmul",
    "norm",
    "reduce",
    "shape",
    "slicing",
    "state",
]
