"""Serialising ``graph.ir`` programs as MIL messages, the way coremltools 9 writes them.

Every constant operand becomes a ``const`` operation just before its first reader; a dense weight likewise, and a
palettised one a ``constexpr_lut_to_dense`` whose indices and table are its arguments.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anemone.errors import PackageError
from anemone.graph.ir import Function, Op, Program, Shape, Value, Weight
from anemone.package import opset
from anemone.package.blob import BlobWriter
from anemone.package.flexible import dimensions
from anemone.package.proto import MIL
from anemone.package.tidy import tidy
from anemone.package.values import constant, state_type, string, string_dictionary, tensor_type
from anemone.version import __version__

_RESERVED = {
    *("any", "bool", "program", "func", "tensor", "list", "dict", "tuple", "true", "false", "string", "state"),
    *("bf16", "fp16", "fp32", "fp64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
}


@dataclass(frozen=True)
class DenseValue:
    """A stored weight as one MIL value."""

    shape: Shape
    value: Any


@dataclass(frozen=True)
class LutValue:
    """A stored weight as MIL values of its indices and its table."""

    shape: Shape
    indices: Any
    lut: Any


def serialise(program: Program, stored: Mapping[str, DenseValue | LutValue], blob: BlobWriter) -> Any:
    """The MIL program. ``stored`` maps Weight.key to its values; large constant operands are appended to ``blob``.

    PackageError on operations, names or weights that cannot be written.
    """
    result = MIL.Program(version=1)
    for function in program.functions:
        result.functions[function.name].CopyFrom(_FunctionWriter(tidy(function), stored, blob).write())
    if len(result.functions) != len(program.functions):
        raise PackageError(f"Two functions have one name: {[f.name for f in program.functions]}.")
    result.attributes["buildInfo"].CopyFrom(string_dictionary([("anemone-version", __version__)]))
    return result


def identifier(name: str) -> str:
    """``name`` with every character that MIL names do not allow replaced by an underscore."""
    name = re.sub(r"[^a-zA-Z0-9_]", "_", name)
    return f"_{name}" if not name or name[0].isdigit() or name in _RESERVED else name


class _Names:
    """Gives every value of a function its own name."""

    def __init__(self, interface: list[Value]) -> None:
        self._taken: set[str] = set()
        for value in interface:
            if identifier(value.name) != value.name or value.name in self._taken:
                raise PackageError(
                    f"{value.name!r} cannot name an input, output or state: not a MIL name, or used twice."
                )
            self._taken.add(value.name)

    def take(self, wish: str) -> str:
        base = identifier(wish)
        name, count = base, 0
        while name in self._taken:
            name, count = f"{base}_{count}", count + 1
        self._taken.add(name)
        return name


class _FunctionWriter:
    def __init__(self, function: Function, stored: Mapping[str, DenseValue | LutValue], blob: BlobWriter) -> None:
        self._function = function
        self._stored = stored
        self._blob = blob
        self._dims = dimensions(function)
        self._block = MIL.Block()
        interface = [*function.inputs, *function.states, *function.outputs]
        self._names = _Names(interface)
        self._named = {value.name: value.name for value in interface}
        self._weights: dict[str, str] = {}

    def write(self) -> Any:
        for op in self._function.ops:
            self._write_op(op)
        self._block.outputs.extend(value.name for value in self._function.outputs)
        result = MIL.Function(opset=opset.OPSET)
        for value in self._function.inputs:
            result.inputs.add(name=value.name, type=tensor_type(value.dtype, self._dims[value.name]))
        for state in self._function.states:
            result.inputs.add(name=state.name, type=state_type(state.dtype, state.shape))
        result.block_specializations[opset.OPSET].CopyFrom(self._block)
        return result

    def _write_op(self, op: Op) -> None:
        inputs = opset.complete(op)
        outputs = [self._name(value) for value in op.outputs]
        name = outputs[0] if outputs else self._names.take(f"{_state_of(op)}_{op.kind}")
        arguments = {key: self._bindings(operand, f"{name}_{key}") for key, operand in inputs.items()}
        message = self._block.operations.add(type=op.kind)
        for key, bindings in arguments.items():
            for binding in bindings:
                message.inputs[key].arguments.add(name=binding)
        for output, value in zip(outputs, op.outputs, strict=True):
            message.outputs.add(name=output, type=tensor_type(value.dtype, self._dims[value.name]))
        message.attributes["name"].CopyFrom(string(name))

    def _name(self, value: Value) -> str:
        if value.name not in self._named:
            self._named[value.name] = self._names.take(value.name)
        return self._named[value.name]

    def _bindings(self, operand: Any, wish: str) -> list[str]:
        """Names of the values that one parameter is bound to; constants and weights among them are written first."""
        if isinstance(operand, tuple):
            return [name for i, part in enumerate(operand) for name in self._bindings(part, f"{wish}{i}")]
        if not isinstance(operand, Value):
            return [self._write_const(f"{wish}_0", constant(operand, self._blob))]
        weight = self._function.weights.get(operand.name)
        if weight is not None:
            return [self._weights.get(weight.key) or self._write_weight(weight)]
        if operand.name not in self._named:
            raise PackageError(f"{wish} reads {operand.name}, which {self._function.name} does not compute before it.")
        return [self._named[operand.name]]

    def _write_const(self, wish: str, value: Any) -> str:
        name = self._names.take(wish)
        message = self._block.operations.add(type="const")
        message.outputs.add(name=name, type=value.type)
        message.attributes["name"].CopyFrom(string(name))
        message.attributes["val"].CopyFrom(value)
        return name

    def _write_weight(self, weight: Weight) -> str:
        stored = self._stored[weight.key]
        if isinstance(stored, DenseValue):
            name = self._write_const(weight.key, stored.value)
        else:
            name = self._names.take(f"{weight.key}_palettized")
            message = self._block.operations.add(type="constexpr_lut_to_dense")
            message.inputs["indices"].arguments.add(value=stored.indices)
            message.inputs["lut"].arguments.add(value=stored.lut)
            message.outputs.add(name=name, type=tensor_type("fp16", stored.shape))
            message.attributes["name"].CopyFrom(string(name))
        self._weights[weight.key] = name
        return name


def _state_of(op: Op) -> str:
    state = op.inputs["input"]  # operations without an output write a state
    return state.name if isinstance(state, Value) else op.kind
