"""Rules that a written program must keep to load and run everywhere; each breach is one sentence.

Works on the Model message, so it judges what is in the file, whoever wrote it.
"""

from collections.abc import Iterator
from typing import Any

from anemone.package.opset import SPECIFICATION_VERSION
from anemone.package.proto import MIL

_STATE_OPERATIONS = ("read_state", "write_state")


def breaches(model: Any) -> list[str]:
    """Sentences about everything wrong with an ML program; empty when all is well."""
    return [
        f"{name}: {sentence}"
        for name, function in sorted(model.mlProgram.functions.items())
        for sentence in _function_breaches(function, features(model, name), model.specificationVersion)
    ]


def features(model: Any, function: str) -> Any:
    """The message that describes one function: its own, or the model's description where there is only ``main``."""
    for description in model.description.functions:
        if description.name == function:
            return description
    return model.description


def block_of(function: Any) -> Any:
    """The block of a function's op set."""
    return function.block_specializations[function.opset]


def operations(block: Any) -> Iterator[Any]:
    """Every operation of a block and of the blocks inside it."""
    for operation in block.operations:
        yield operation
        for inner in operation.blocks:
            yield from operations(inner)


def _function_breaches(function: Any, description: Any, version: int) -> Iterator[str]:
    types = {value.name: value.type for value in function.inputs}
    for operation in block_of(function).operations:
        yield from _undefined(operation, types)
        for output in operation.outputs:
            if output.name in types:
                yield f"{output.name} is computed twice."
            types[output.name] = output.type
    yield from (f"the output {name} is never computed." for name in block_of(function).outputs if name not in types)
    yield from _state_breaches(function, description, version)
    for operation in block_of(function).operations:
        yield from _type_breaches(operation, types)
    if not any(f.type.multiArrayType.WhichOneof("ShapeFlexibility") for f in description.input):
        yield from _shape_breaches(function)


def _undefined(operation: Any, types: dict[str, Any]) -> Iterator[str]:
    for name in _arguments(operation):
        if name not in types:
            yield f"{operation.type} reads {name} before it is computed."


def _arguments(operation: Any) -> list[str]:
    bindings = [binding for argument in operation.inputs.values() for binding in argument.arguments]
    return [binding.name for binding in bindings if binding.WhichOneof("binding") == "name"]


def _state_breaches(function: Any, description: Any, version: int) -> Iterator[str]:
    """States described, declared and used must be the same ones; a buffer that only looks like a state fails late."""
    described = {feature.name for feature in description.state}
    declared = {value.name for value in function.inputs if value.type.WhichOneof("type") == "stateType"}
    used = {
        operation.inputs["input"].arguments[0].name
        for operation in operations(block_of(function))
        if operation.type in _STATE_OPERATIONS
    }
    if not described == declared == used:
        yield f"states described {sorted(described)}, declared {sorted(declared)} and used {sorted(used)} differ."
    for value in function.inputs:
        if value.name in declared and value.type.stateType.wrappedType.tensorType.dataType != MIL.FLOAT16:
            yield f"the state {value.name} is not fp16, the only type that Core ML keeps states in."
    if declared and version < SPECIFICATION_VERSION:
        yield f"states need specification version {SPECIFICATION_VERSION} (iOS 18, macOS 15), not {version}."


def _type_breaches(operation: Any, types: dict[str, Any]) -> Iterator[str]:
    """macOS 26 stops at a cache update of another type than the cache, which earlier systems let pass."""

    def of(parameter: str) -> Any:
        value = types.get(operation.inputs[parameter].arguments[0].name)
        return value.stateType.wrappedType if value and value.WhichOneof("type") == "stateType" else value

    if operation.type == "slice_update":
        found = {type_.tensorType.dataType for type_ in (of("x"), of("update"), operation.outputs[0].type) if type_}
        if len(found) > 1:
            yield f"slice_update {operation.outputs[0].name} mixes the types of cache, update and output."
    elif operation.type == "write_state" and of("input") != of("data"):
        yield f"write_state gives {operation.inputs['input'].arguments[0].name} a value of another type or shape."
    elif operation.type == "read_state" and of("input") != operation.outputs[0].type:
        yield f"read_state {operation.outputs[0].name} has another type or shape than its state."


def _shape_breaches(function: Any) -> Iterator[str]:
    """A shape that depends on a run-time value makes the planner reject the whole program."""
    for operation in operations(block_of(function)):
        for output in operation.outputs:
            if any(size.WhichOneof("dimension") == "unknown" for size in output.type.tensorType.dimensions):
                yield f"{output.name} ({operation.type}) has a size that is known at run time only."
