"""Packages rewritten as compiled folders: the program as text, as coremlcompiler writes it; the readers have no part.

Two dialects: ``old`` writes scalars as ``tensor<int32, []>(1)``, the newer one as ``int32(1)``.
"""

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from execute_helpers import coremltools

OPSETS = {"CoreML5": "ios15", "CoreML6": "ios16", "CoreML7": "ios17", "CoreML8": "ios18", "CoreML9": "ios26"}
DTYPES = {
    1: "bool", 2: "string", 10: "fp16", 11: "fp32", 12: "fp64", 21: "int8", 22: "int16", 23: "int32", 24: "int64",
    25: "int4", 31: "uint8", 32: "uint16", 33: "uint32", 34: "uint64", 35: "uint4", 36: "uint2", 37: "uint1",
    38: "uint6", 39: "uint3",
}  # fmt: skip
FEATURES = {65552: "Float16", 65568: "Float32", 65600: "Double", 131104: "Int32", 131080: "Int8"}
BYTES = {"fp16": "<f2", "int8": "i1", "uint8": "u1", "int16": "<i2", "uint16": "<u2", "uint32": "<u4", "uint64": "<u8"}
PACKED = {"int4": 4, "uint4": 4, "uint2": 2, "uint1": 1, "uint6": 6, "uint3": 3}
FLEXIBLE = (
    "[FlexibleShapeInformation = tuple<tuple<{s}, dict<{s}, tensor<int32, [?]>>>, tuple<{s}, {kind}>>"
    '((("DefaultShapes", {{{default}}}), ("{name}", {{{shapes}}})))]'
)


def compile_package(package: Path, folder: Path, old: bool = False, metadata: bool = True) -> Path:
    """Write ``package`` as the .mlmodelc ``folder``."""
    spec = coremltools().utils.load_spec(str(package))
    folder.mkdir(parents=True)
    (folder / "model.mil").write_text(Writer(spec, old).program())
    weights = package / "Data/com.apple.CoreML/weights"
    if weights.is_dir():
        shutil.copytree(weights, folder / "weights")
    if metadata:
        (folder / "metadata.json").write_text(json.dumps([describe(spec)], indent=2))
    return folder


class Writer:
    def __init__(self, spec: Any, old: bool) -> None:
        self.spec, self.old = spec, old

    def program(self) -> str:
        text = self.scalar("string")
        functions = sorted(self.spec.mlProgram.functions.items())
        return "\n".join(
            [
                "program(1.0)" if self.old else "program(1.3)",
                f'[buildInfo = dict<{text}, {text}>({{{{"coremlc-version", "3404.23.1"}}, {{"a", "b\\"c"}}}})]',
                "{",
                *(self.function(name, message) for name, message in functions),
                "}",
            ]
        )

    def function(self, name: str, message: Any) -> str:
        inputs = ", ".join(f"{self.type(value.type)} {value.name}" for value in message.inputs)
        block = self.block(message.block_specializations[message.opset], 3)
        return f"    func {name}<{OPSETS[message.opset]}>({inputs}){self.flexible(name)} {block};"

    def block(self, message: Any, depth: int) -> str:
        lines = [f"{'    ' * depth}{self.operation(op, depth)};\n" for op in message.operations]
        return f"{{\n{''.join(lines)}{'    ' * (depth - 1)}}} -> ({', '.join(message.outputs)})"

    def operation(self, op: Any, depth: int) -> str:
        results = ", ".join(f"{self.type(value.type)} {value.name}" for value in op.outputs)
        operands = ", ".join(f"{key} = {self.operand(op.inputs[key].arguments)}" for key in sorted(op.inputs))
        attributes = ", ".join(f"{key} = {self.value(op.attributes[key])}" for key in sorted(op.attributes))
        blocks = "".join(
            f" ({', '.join(f'{self.type(v.type)} {v.name}' for v in block.inputs)}) {self.block(block, depth + 1)}"
            for block in op.blocks
        )
        given = f"{op.type}({operands}){f'[{attributes}]' if attributes else ''}{blocks}"
        return f"{results} = {given}" if results else given

    def operand(self, bindings: Sequence[Any]) -> str:
        texts = [binding.name or self.value(binding.value) for binding in bindings]
        return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"

    def scalar(self, dtype: str) -> str:
        return f"tensor<{dtype}, []>" if self.old else dtype

    def type(self, message: Any) -> str:
        if message.WhichOneof("type") == "stateType":
            return f"state<{self.type(message.stateType.wrappedType)}>"
        tensor = message.tensorType
        sizes = [
            str(d.constant.size) if d.WhichOneof("dimension") == "constant" else "?"
            for d in message.tensorType.dimensions
        ]
        dtype = DTYPES[tensor.dataType]
        return f"tensor<{dtype}, [{', '.join(sizes)}]>" if sizes else self.scalar(dtype)

    def value(self, message: Any) -> str:
        kind = self.type(message.type)
        if message.WhichOneof("value") == "blobFileValue":
            blob = message.blobFileValue
            path, offset = f'{self.scalar("string")}("{blob.fileName}")', f"{self.scalar('uint64')}({blob.offset})"
            return f"{kind}(BLOBFILE(path = {path}, offset = {offset}))"
        tensor = message.type.tensorType
        shape = [d.constant.size for d in tensor.dimensions]
        items = [literal(item) for item in elements(message.immediateValue.tensor, DTYPES[tensor.dataType], shape)]
        return f"{kind}({nested(items, shape)})"

    def flexible(self, function: str) -> str:
        inputs = [
            f for f in described(self.spec, function).input if f.type.multiArrayType.WhichOneof("ShapeFlexibility")
        ]
        if not inputs:
            return ""
        arrays = {feature.name: feature.type.multiArrayType for feature in inputs}
        text = self.scalar("string")
        default = ", ".join(f'{{"{name}", {list(array.shape)}}}' for name, array in arrays.items())
        if any(array.enumeratedShapes.shapes for array in arrays.values()):
            count = max(len(array.enumeratedShapes.shapes) for array in arrays.values())
            options = [
                ", ".join(f'{{"{n}", {list(a.enumeratedShapes.shapes[i].shape)}}}' for n, a in arrays.items())
                for i in range(count)
            ]
            shapes = ", ".join(f'{{"{i:08x}", {{{option}}}}}' for i, option in enumerate(options))
            kind, name = f"dict<{text}, dict<{text}, tensor<int32, [?]>>>", "EnumeratedShapes"
        else:
            shapes = ", ".join(
                f'{{"{n}", {[[r.lowerBound, r.upperBound] for r in a.shapeRange.sizeRanges]}}}'
                for n, a in arrays.items()
            )
            kind, name = f"dict<{text}, list<tensor<int32, [2]>, ?>>", "RangeDims"
        return " " + FLEXIBLE.format(s=text, kind=kind, default=default, name=name, shapes=shapes)


def elements(tensor: Any, dtype: str, shape: Sequence[int]) -> Iterable[Any]:
    """The values of an immediate tensor, as Python numbers or numpy scalars."""
    field = tensor.WhichOneof("value")
    if field is None:
        return []
    values = getattr(tensor, field).values
    if field != "bytes":
        return [np.float32(v) for v in values] if field == "floats" else list(values)
    if dtype in PACKED:
        bits = np.unpackbits(np.frombuffer(values, np.uint8), bitorder="little")[: PACKED[dtype] * int(np.prod(shape))]
        numbers = bits.reshape(-1, PACKED[dtype]) @ (1 << np.arange(PACKED[dtype]))
        return [int(n) - 16 if dtype == "int4" and n > 7 else int(n) for n in numbers]
    return list(np.frombuffer(values, BYTES[dtype]) if dtype in BYTES else np.frombuffer(values, dtype))


def literal(item: Any) -> str:
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, str):
        return '"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(item, float | np.floating):
        number = float(item)
        return number.hex() if np.isfinite(number) else str(number)
    return str(int(item))


def nested(items: Sequence[str], shape: Sequence[int]) -> str:
    if not shape:
        return items[0]
    if len(shape) == 1:
        return f"[{', '.join(items)}]"
    part = len(items) // shape[0] if shape[0] else 0
    return f"[{', '.join(nested(items[i * part : (i + 1) * part], shape[1:]) for i in range(shape[0]))}]"


def described(spec: Any, function: str) -> Any:
    return next((f for f in spec.description.functions if f.name == function), spec.description)


def describe(spec: Any) -> dict[str, Any]:
    """metadata.json's entry."""
    functions = [
        {"name": function.name, **schemas(function), "mlProgramOperationTypeHistogram": {}}
        for function in spec.description.functions
    ]
    default = described(spec, spec.description.defaultFunctionName)
    result = {
        "metadataOutputVersion": "3.0",
        **schemas(default),
        "specificationVersion": spec.specificationVersion,
        "modelType": {"name": "MLModelType_mlProgram"},
        "userDefinedMetadata": dict(spec.description.metadata.userDefined),
        "shortDescription": spec.description.metadata.shortDescription,
        "generatedClassName": "model",
        "method": "predict",
    }
    if functions:
        result |= {"functions": functions, "defaultFunctionName": spec.description.defaultFunctionName}
    return result


def schemas(message: Any) -> dict[str, Any]:
    return {
        "inputSchema": [schema(feature) for feature in message.input],
        "outputSchema": [schema(feature) for feature in message.output],
        "stateSchema": [schema(feature) for feature in message.state],
    }


def schema(feature: Any) -> dict[str, str]:
    kind = feature.type.WhichOneof("Type")
    if kind == "imageType":
        image = feature.type.imageType
        colors = {10: "Grayscale", 20: "RGB", 30: "BGR", 40: "Grayscale16Half"}
        sizes = {"width": str(image.width), "height": str(image.height), "colorspace": colors[image.colorSpace]}
        return {"name": feature.name, "type": "Image", "isOptional": "0", **sizes}
    array = feature.type.stateType.arrayType if kind == "stateType" else feature.type.multiArrayType
    flexible = array.WhichOneof("ShapeFlexibility")
    result = {
        "name": feature.name,
        "type": "State" if kind == "stateType" else "MultiArray",
        "dataType": FEATURES.get(array.dataType, ""),
        "shape": str(list(array.shape)),
        "isOptional": str(int(feature.type.isOptional)),
        "hasShapeFlexibility": str(int(bool(flexible))),
        "shortDescription": feature.shortDescription,
    }
    if flexible == "enumeratedShapes":
        result["enumeratedShapes"] = str([list(shape.shape) for shape in array.enumeratedShapes.shapes])
    elif flexible:
        result["shapeRange"] = str([[r.lowerBound, r.upperBound] for r in array.shapeRange.sizeRanges])
    return result
