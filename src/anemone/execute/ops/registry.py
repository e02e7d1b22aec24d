"""How an operation is defined, and the table of all definitions.

A definition turns one operation of a program, seen as a ``Node``, into its kernel: a function of arrays whose
parameters are named as MIL names the operands (a ``*parameter`` takes a tuple operand; before them comes ``blocks``,
what runs the nested blocks, where an operation has some). Constant operands are read from
the node when the program is prepared, or taken as kernel parameters like any other. Kernels get fp16 tensors as fp32
arrays, never write to an operand, and return fresh memory; those that only move values (``moves``) may return views and
are not rounded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from anemone.errors import ExecuteError
from anemone.execute.damage import check_size
from anemone.execute.dtypes import Array, Shape, carrier_type
from anemone.execute.reader import Op, Var
from anemone.execute.stored import Stored
from anemone.execute.weights import Weights

Kernel = Callable[..., Any]


@dataclass(frozen=True)
class Node:
    """One operation while it is prepared.

    ``in_place``: its first operand may be overwritten and returned. ``store``: what rounds its results, for kernels
    that stand for several operations; None rounds nothing.
    """

    op: Op
    weights: Weights
    in_place: bool = False
    adopt: bool = False
    store: Callable[..., Array] | None = None

    @property
    def outputs(self) -> tuple[Var, ...]:
        return self.op.outputs

    @property
    def carrier(self) -> np.dtype[Any] | None:
        """The numpy type that carries the first output."""
        return carrier_type(self.op.outputs[0].dtype)

    def expect(self, shape: Shape) -> None:
        """Raise ExecuteError when the first output cannot be of this shape: before memory is taken for it."""
        declared = self.outputs[0].shape
        if -1 not in declared and shape != declared:
            raise ExecuteError(f"its result is declared as {list(declared)}, but would be {list(shape)}")
        check_size(shape, self.outputs[0].name)

    def has(self, name: str) -> bool:
        """Whether the operand is given."""
        return bool(self.op.inputs.get(name))

    def stored(self, name: str) -> Stored | None:
        """The operand if it is given as a constant."""
        operands = self.op.inputs.get(name, ())
        return operands[0] if len(operands) == 1 and isinstance(operands[0], Stored) else None

    def constants(self, name: str) -> tuple[Stored, ...]:
        """A tuple operand whose values are all constants. Raises ExecuteError when one is not."""
        operands = self.op.inputs.get(name, ())
        found = tuple(operand for operand in operands if isinstance(operand, Stored))
        if len(found) < len(operands):
            raise ExecuteError(f"its operand {name} must be a constant")
        return found

    def static(self, name: str) -> Array | None:
        """The value of a constant operand; None when it is not given. Raises ExecuteError when it is no constant."""
        if not self.has(name):
            return None
        arrays = [constant.array() for constant in self.constants(name)]
        return arrays[0] if len(arrays) == 1 else np.array(arrays)

    def ints(self, name: str) -> tuple[int, ...] | None:
        """A constant vector of integers, or None."""
        value = self.static(name)
        return None if value is None else tuple(int(v) for v in value.reshape(-1))

    def int(self, name: str, default: int) -> int:
        value = self.static(name)
        return default if value is None else int(value.item())

    def float(self, name: str, default: float) -> float:
        """A constant number; the default is rounded to the type of the first output, as the operand would be."""
        value = self.static(name)
        if value is not None:
            return float(value.item())
        return float(np.float16(default)) if self.outputs[0].dtype == "fp16" else float(np.float32(default))

    def flag(self, name: str, default: bool) -> bool:
        value = self.static(name)
        return default if value is None else bool(value.item())

    def text(self, name: str, default: str) -> str:
        value = self.static(name)
        return default if value is None else str(value.item())


@dataclass(frozen=True)
class Definition:
    """``prepare`` makes the kernel of a node; ``moves``: results are operand values, only moved."""

    prepare: Callable[[Node], Kernel]
    moves: bool


DEFINITIONS: dict[str, Definition] = {}


def op(*kinds: str, moves: bool = False) -> Callable[[Callable[[Node], Kernel]], Callable[[Node], Kernel]]:
    """Define operations by a function from a node to its kernel."""

    def register(prepare: Callable[[Node], Kernel]) -> Callable[[Node], Kernel]:
        for kind in kinds:
            DEFINITIONS[kind] = Definition(prepare, moves)
        return prepare

    return register


def kernel(*kinds: str, moves: bool = False) -> Callable[[Kernel], Kernel]:
    """Define operations by a kernel that needs no preparation."""

    def register(run: Kernel) -> Kernel:
        for kind in kinds:
            DEFINITIONS[kind] = Definition(lambda _: run, moves)
        return run

    return register
