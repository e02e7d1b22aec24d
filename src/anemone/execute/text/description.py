"""What a compiled model says of its inputs and outputs, as the description that a .mlpackage holds.

Names and types come from the program, flexible shapes from the functions' FlexibleShapeInformation or metadata.json,
and the rest (optional inputs, images, the default function, texts) from metadata.json, which may be missing.
"""

import json
from collections.abc import Mapping
from typing import Any

from anemone.errors import ExecuteError
from anemone.execute.text.literals import Constant
from anemone.execute.text.parser import Attributes

_ARRAYS = {"fp16": 65552, "fp32": 65568, "fp64": 65600, "int32": 131104, "int8": 131080}
_COLORS = {"Grayscale": 10, "RGB": 20, "BGR": 30, "GrayscaleFloat16": 40, "Grayscale16Half": 40}
_INFORMATION = "FlexibleShapeInformation"
Metadata = Mapping[str, Any]


def fill_description(
    model: Any, functions: Mapping[str, Attributes], metadata: Metadata, dtypes: Mapping[int, str]
) -> None:
    """Fill the description of a Model message whose program is there. ``dtypes``: names of MIL's type numbers."""
    description = model.description
    described = {entry.get("name"): entry for entry in _entries(metadata.get("functions"))}
    single = len(functions) == 1 and not described
    for name, attributes in functions.items():
        message = description if single else description.functions.add(name=name)
        function = model.mlProgram.functions[name]
        _describe(message, function, described.get(name, metadata), _flexible(attributes), dtypes)
    default = metadata.get("defaultFunctionName")
    if default in functions:
        description.defaultFunctionName = default
    for key, field in (("shortDescription", "shortDescription"), ("author", "author"), ("license", "license")):
        setattr(description.metadata, field, _text(metadata.get(key)))
    description.metadata.versionString = _text(metadata.get("version"))
    user = metadata.get("userDefinedMetadata")
    for key, value in user.items() if isinstance(user, dict) else ():
        description.metadata.userDefined[key] = _text(value)


def _describe(message: Any, function: Any, schema: Metadata, flexible: Metadata, dtypes: Mapping[int, str]) -> None:
    given = {entry.get("name"): entry for entry in _entries(schema.get("inputSchema"))}
    results = {entry.get("name"): entry for entry in _entries(schema.get("outputSchema"))}
    block = function.block_specializations[function.opset]
    for value in function.inputs:
        if value.type.WhichOneof("type") == "stateType":
            array = message.state.add(name=value.name).type.stateType.arrayType
            _fill_array(array, value.type.stateType.wrappedType.tensorType, dtypes)
            continue
        feature = message.input.add(name=value.name)
        entry = given.get(value.name, {})
        _fill_feature(feature, value.type.tensorType, entry, dtypes)
        if feature.type.WhichOneof("Type") == "multiArrayType":
            _fill_shapes(feature, len(value.type.tensorType.dimensions), entry, flexible)
    types = {value.name: value.type.tensorType for op in block.operations for value in op.outputs}
    types.update({value.name: value.type.tensorType for value in function.inputs})
    for name in block.outputs:
        feature = message.output.add(name=name)
        if name in types:
            _fill_feature(feature, types[name], results.get(name, {}), dtypes)


def _fill_feature(feature: Any, tensor: Any, entry: Metadata, dtypes: Mapping[int, str]) -> None:
    feature.shortDescription = _text(entry.get("shortDescription"))
    feature.type.isOptional = entry.get("isOptional") in ("1", 1, True)
    if entry.get("type") == "Image":
        image = feature.type.imageType
        image.width, image.height = _whole(entry.get("width")), _whole(entry.get("height"))
        image.colorSpace = _COLORS.get(_text(entry.get("colorspace")), 0)
        return
    _fill_array(feature.type.multiArrayType, tensor, dtypes)


def _fill_array(array: Any, tensor: Any, dtypes: Mapping[int, str]) -> None:
    array.dataType = _ARRAYS.get(dtypes.get(tensor.dataType, ""), 0)
    if all(size.WhichOneof("dimension") == "constant" for size in tensor.dimensions):
        array.shape.extend(size.constant.size for size in tensor.dimensions)


def _fill_shapes(feature: Any, rank: int, entry: Metadata, flexible: Metadata) -> None:
    """Default, enumerated and ranged shapes of an input: those of the program before those of metadata.json."""
    array, name = feature.type.multiArrayType, feature.name
    if array.shape:
        return
    default = flexible.get("DefaultShapes", {}).get(name) or _listed(entry.get("shape"))
    listed = flexible.get("EnumeratedShapes", {})
    shapes = [shape[name] for shape in listed.values() if name in shape] if isinstance(listed, dict) else []
    ranges = flexible.get("RangeDims", {}).get(name)
    if not shapes and not ranges:
        shapes, ranges = _listed(entry.get("enumeratedShapes")), _listed(entry.get("shapeRange"))
    if default:
        array.shape.extend(_sizes(default, rank, name))
    for shape in shapes:
        array.enumeratedShapes.shapes.add().shape.extend(_sizes(shape, rank, name))
    if ranges and not shapes:
        if len(ranges) != rank:
            raise ExecuteError(f"the flexible shape of input {name!r} has {len(ranges)} ranges for {rank} sizes")
        for bounds in ranges:
            low, high = _sizes(bounds, 2, name)
            array.shapeRange.sizeRanges.add(lowerBound=max(low, 0), upperBound=high)


def _sizes(value: Any, count: int, name: str) -> list[int]:
    if isinstance(value, list) and len(value) == count and all(type(n) is int and -1 <= n < 2**63 for n in value):
        return value
    raise ExecuteError(f"the flexible shape of input {name!r} is {str(value)[:60]}, but {count} sizes are needed")


def _flexible(attributes: Attributes) -> dict[str, Any]:
    """FlexibleShapeInformation as dicts and lists of numbers."""
    if _INFORMATION not in attributes:
        return {}
    plain = _plain(attributes[_INFORMATION])
    pairs = [pair for pair in plain if isinstance(pair, list) and len(pair) == 2] if isinstance(plain, list) else []
    return {pair[0]: pair[1] for pair in pairs if isinstance(pair[0], str) and isinstance(pair[1], dict)}


def _plain(constant: Constant) -> Any:
    kind, value = constant.type, constant.value
    if kind.kind == "dict":
        return {key: _plain(content) for name, content in value if isinstance(key := _plain(name), str)}
    if kind.kind in ("tuple", "list"):
        return [_plain(part) for part in value]
    if kind.dtype == "string":
        return value[0] if not kind.dims else list(value)
    return value.tolist()


def read_metadata(text: str) -> Metadata:
    """The content of metadata.json. Raises ValueError when it is damaged."""
    content = json.loads(text)
    if isinstance(content, list):
        content = content[0] if content else {}
    if not isinstance(content, dict):
        raise ValueError("it holds no description of a model")
    return content


def _entries(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _listed(value: Any) -> list[Any]:
    """Numbers that metadata.json writes as a text such as "[1, 4]"; an empty list where it holds anything else."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _whole(value: Any) -> int:
    return int(value) if isinstance(value, int | str) and str(value).isdecimal() and len(str(value)) < 10 else 0
