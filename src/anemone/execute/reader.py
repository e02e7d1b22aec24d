"""From a package's messages to functions of operations; constants stay stored until they are needed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anemone.errors import ExecuteError
from anemone.execute import files, proto
from anemone.execute.blob import BlobFile
from anemone.execute.constexpr import constexpr
from anemone.execute.damage import blamed_on, check_size
from anemone.execute.dtypes import Shape, packed_bits
from anemone.execute.formats import read_model
from anemone.execute.stored import Plain, Stored, plain_blob, plain_values


@dataclass(frozen=True)
class Var:
    """A value's name and type; a size of -1 is known only when running. ``state``: a state instead of a tensor."""

    name: str
    dtype: str
    shape: Shape
    state: bool = False


Operand = str | Stored  # the name of a value, or a constant


@dataclass(frozen=True)
class Op:
    """One operation: MIL's name of the kind, and its operands by MIL's parameter names."""

    kind: str
    name: str
    inputs: Mapping[str, tuple[Operand, ...]]
    outputs: tuple[Var, ...]
    blocks: tuple["Block", ...] = ()


@dataclass(frozen=True)
class Block:
    """Operations in order, without the constant ones, and the names of the results."""

    inputs: tuple[Var, ...]
    ops: tuple[Op, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Function:
    """One function. ``constants``: every value that is constant, by name, in program order."""

    name: str
    opset: str
    inputs: tuple[Var, ...]
    body: Block
    constants: Mapping[str, Stored]


class Package:
    """A .mlpackage or .mlmodelc: its description, and its functions read one by one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        model, self._folder = read_model(path)
        self.description = model.description
        self.program = model.mlProgram
        self._dtypes = proto.dtype_names()
        self._blobs: dict[str, BlobFile] = {}

    @property
    def function_names(self) -> tuple[str, ...]:
        """All functions, the ones of the description first and in its order."""
        described = [f.name for f in self.description.functions if f.name in self.program.functions]
        return (*described, *sorted(set(self.program.functions) - set(described)))

    def inputs(self, function: str) -> tuple[Var, ...]:
        """The inputs and states of a function, in order. Raises ExecuteError."""
        return tuple(self.var(v) for v in self.program.functions[function].inputs)

    def function(self, name: str) -> Function:
        """Read one function. Raises ExecuteError."""
        message = self.program.functions[name]
        if message.opset not in message.block_specializations:
            raise ExecuteError(f"function {name!r} has no block for its opset {message.opset!r}: a damaged package")
        constants: dict[str, Stored] = {}
        with blamed_on(f"function {name!r} of {self.path}"):
            body = self._block(message.block_specializations[message.opset], constants)
        return Function(name, message.opset, self.inputs(name), body, constants)

    def _block(self, message: Any, constants: dict[str, Stored]) -> Block:
        inputs = tuple(self.var(v) for v in message.inputs)
        ops = tuple(self._ops(message.operations, constants))
        return Block(inputs, ops, tuple(message.outputs))

    def _ops(self, messages: Any, constants: dict[str, Stored]) -> Iterator[Op]:
        for message in messages:
            if message.type == "const":
                self._define(message, (self._value(message.attributes["val"], _first_name(message)),), constants)
            elif message.type.startswith("constexpr_"):
                with blamed_on(f"{message.type} {_first_name(message)!r}"):
                    results = constexpr(message.type, self._constexpr_inputs(message, constants))
                self._define(message, results, constants)
            else:
                yield self._op(message, constants)

    def _define(self, message: Any, results: tuple[Stored, ...], constants: dict[str, Stored]) -> None:
        """Name the constants of an operation, which must be what it declares."""
        if len(message.outputs) != len(results):
            raise ExecuteError(f"{message.type} {_first_name(message)!r} has {len(message.outputs)} results")
        for output, stored in zip(message.outputs, results, strict=True):
            var = self._type(output.type, output.name)
            same = var.shape == stored.shape and (var.dtype == stored.dtype or packed_bits(var.dtype))
            if var.dtype != "list" and not same:
                raise ExecuteError(
                    f"constant {output.name!r} is declared as {var.dtype} {list(var.shape)}, "
                    f"but its value is {stored.dtype} {list(stored.shape)}"
                )
            if constants.get(output.name, stored) is not stored:
                raise ExecuteError(f"constant {output.name!r} is defined twice")
            constants[output.name] = stored

    def _op(self, message: Any, constants: dict[str, Stored]) -> Op:
        outputs = tuple(self.var(v) for v in message.outputs)
        name = self._name(message, outputs)
        inputs = {
            key: tuple(self._operand(binding, constants, f"{name}.{key}") for binding in argument.arguments)
            for key, argument in message.inputs.items()
        }
        blocks = tuple(self._block(block, constants) for block in message.blocks)
        return Op(message.type, name, inputs, outputs, blocks)

    def _name(self, message: Any, outputs: tuple[Var, ...]) -> str:
        if "name" in message.attributes:
            values = message.attributes["name"].immediateValue.tensor.strings.values
            if values:
                return str(values[0])
        return outputs[0].name if outputs else str(message.type)

    def _operand(self, binding: Any, constants: dict[str, Stored], name: str) -> Operand:
        if binding.WhichOneof("binding") == "value":
            return self._value(binding.value, name)
        return constants.get(binding.name, str(binding.name))

    def _constexpr_inputs(self, message: Any, constants: dict[str, Stored]) -> dict[str, Stored]:
        """Operands of a constexpr operation: inputs since iOS18, attributes before."""
        result = {key: self._value(value, key) for key, value in message.attributes.items() if key != "name"}
        for key, argument in message.inputs.items():
            if len(argument.arguments) != 1:
                raise ExecuteError(f"{message.type} has {len(argument.arguments)} values for its input {key}")
            operand = self._operand(argument.arguments[0], constants, key)
            if isinstance(operand, str):
                raise ExecuteError(f"{message.type} needs constants, but its input {key} is the value {operand!r}")
            result[key] = operand
        return result

    def _value(self, message: Any, name: str) -> Stored:
        if message.WhichOneof("value") is None:
            raise ExecuteError(f"constant {name!r} has no value")
        var = self._type(message.type, name)
        if -1 in var.shape:
            raise ExecuteError(f"constant {name!r} has a size that is not known")
        if var.dtype == "list":
            return _texts_or_numbers(message.immediateValue.list.values, name)
        if message.WhichOneof("value") == "blobFileValue":
            blob = message.blobFileValue
            return plain_blob(self._blob(blob.fileName), blob.offset, var.dtype, var.shape)
        immediate = message.immediateValue
        if immediate.WhichOneof("value") != "tensor":
            raise ExecuteError(f"constant {name!r} is a {immediate.WhichOneof('value')}, which is not supported")
        return plain_values(_immediate(immediate.tensor), var.dtype, var.shape, name)

    def _blob(self, name: str) -> BlobFile:
        if name not in self._blobs:
            self._blobs[name] = BlobFile(files.weight_file(self.path, self._folder, name))
        return self._blobs[name]

    def release(self) -> None:
        """Let go of the pages of the weight files."""
        for blob in self._blobs.values():
            blob.release()

    def var(self, message: Any) -> Var:
        """A named value type. Raises ExecuteError for tensors that cannot be held."""
        var = self._type(message.type, message.name)
        check_size(var.shape, var.name)
        return var

    def _type(self, message: Any, name: str) -> Var:
        kind = message.WhichOneof("type")
        if kind == "stateType":
            wrapped = self._type(message.stateType.wrappedType, name)
            return Var(name, wrapped.dtype, wrapped.shape, state=True)
        if kind != "tensorType":
            return Var(name, str(kind).removesuffix("Type"), ())
        tensor = message.tensorType
        sizes = tensor.dimensions
        shape = tuple(int(d.constant.size) if d.WhichOneof("dimension") == "constant" else -1 for d in sizes)
        return Var(name, self._dtypes.get(tensor.dataType, f"type {tensor.dataType}"), shape)


_FIELDS: dict[str, Callable[[Any], Any]] = {
    "floats": lambda m: np.array(m.floats.values, np.float32),
    "ints": lambda m: np.array(m.ints.values, np.int32),
    "bools": lambda m: np.array(m.bools.values, np.bool_),
    "strings": lambda m: np.array(list(m.strings.values)),
    "longInts": lambda m: np.array(m.longInts.values, np.int64),
    "doubles": lambda m: np.array(m.doubles.values, np.float64),
    "bytes": lambda m: np.frombuffer(m.bytes.values, np.uint8),
}


def _texts_or_numbers(values: Any, name: str) -> Stored:
    """A list of scalars, such as the labels of a classifier, as a vector."""
    parts = [_immediate(value.immediateValue.tensor) for value in values]
    if any(part.size != 1 for part in parts):
        raise ExecuteError(f"constant {name!r} is a list of tensors; only lists of scalars are supported")
    array = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    return Plain(array, "string" if array.dtype.kind == "U" else str(array.dtype), array.shape)


def _first_name(message: Any) -> str:
    """The name of an operation's first result."""
    return str(message.outputs[0].name) if message.outputs else ""


def _immediate(tensor: Any) -> Any:
    field = tensor.WhichOneof("value")
    return _FIELDS[field](tensor) if field else np.zeros(0, np.float32)


def is_weight(stored: Stored) -> bool:
    """Whether a constant lives in a weight file: compressed, or plain behind a record."""
    return not isinstance(stored, Plain) or isinstance(stored.key, tuple)
