"""The part of model.mlmodel that applications see: features of every function, and metadata."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anemone.errors import PackageError
from anemone.graph.ir import Function, Program, Value
from anemone.package.flexible import dimensions
from anemone.package.opset import SPECIFICATION_VERSION
from anemone.package.proto import FEATURES, MODEL

_ARRAY = FEATURES.ArrayFeatureType
_ARRAY_TYPES = {"fp16": _ARRAY.FLOAT16, "fp32": _ARRAY.FLOAT32, "int32": _ARRAY.INT32}


@dataclass(frozen=True)
class Description:
    """What a package says about itself. ``features`` describes inputs, outputs and states by name."""

    short: str = ""
    author: str = ""
    version: str = ""
    license: str = ""
    user_defined: Mapping[str, str] = field(default_factory=dict)
    features: Mapping[str, str] = field(default_factory=dict)


def model(program: Program, mil: Any, description: Description) -> Any:
    """The Model message around the MIL program ``mil`` of ``program``.

    A single function named ``main`` is described as the model itself; anything else as functions, the first being the
    default.
    """
    result = MODEL.Model(specificationVersion=SPECIFICATION_VERSION)
    first = program.functions[0]
    if len(program.functions) == 1 and first.name == "main":
        _describe(first, result.description, description.features)
    else:
        for function in program.functions:
            _describe(function, result.description.functions.add(name=function.name), description.features)
        result.description.defaultFunctionName = first.name
    metadata = result.description.metadata
    metadata.shortDescription = description.short
    metadata.author = description.author
    metadata.versionString = description.version
    metadata.license = description.license
    for key, text in description.user_defined.items():
        if not isinstance(text, str):
            raise PackageError(f"The metadata {key} is {text!r}; Core ML stores strings only.")
        metadata.userDefined[key] = text
    result.mlProgram.CopyFrom(mil)
    return result


def _describe(function: Function, message: Any, texts: Mapping[str, str]) -> None:
    """Fill input, output and state of a ModelDescription or FunctionDescription."""
    dims = dimensions(function)
    for value in function.inputs:
        array = message.input.add(name=value.name, shortDescription=texts.get(value.name, "")).type.multiArrayType
        _fill(array, value)
        for shape in function.flexible.get(value.name, ()):
            array.enumeratedShapes.shapes.add(shape=shape)
    for value in function.outputs:
        array = message.output.add(name=value.name, shortDescription=texts.get(value.name, "")).type.multiArrayType
        _fill(array, value)
        if None in dims[value.name]:
            array.ClearField("shape")
    for value in function.states:
        feature = message.state.add(name=value.name, shortDescription=texts.get(value.name, ""))
        _fill(feature.type.stateType.arrayType, value)


def _fill(array: Any, value: Value) -> None:
    if value.dtype not in _ARRAY_TYPES:
        raise PackageError(
            f"{value.name} is {value.dtype}; inputs and outputs of a package are {', '.join(_ARRAY_TYPES)}."
        )
    array.dataType = _ARRAY_TYPES[value.dtype]
    array.shape.extend(value.shape)
