"""Reading what a .mlpackage contains, whoever wrote it: interface, operations, weights by format and size.

Loads model.mlmodel and the 64-byte records of the weight file, never the weights.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anemone.errors import PackageError
from anemone.graph.ir import Shape
from anemone.package.blob import RECORD, SENTINEL
from anemone.package.check import block_of, breaches, features, operations
from anemone.package.locate import inside, load_model, model_file
from anemone.package.proto import FEATURES, MIL


@dataclass(frozen=True)
class Feature:
    """An input, output or state. ``shape`` is empty where it depends on the input; ``shapes`` lists enumerated ones."""

    name: str
    dtype: str
    shape: Shape
    shapes: tuple[Shape, ...] = ()


@dataclass(frozen=True)
class FunctionInfo:
    """One function; ``operations`` counts its operations by kind, constants included."""

    name: str
    inputs: tuple[Feature, ...]
    outputs: tuple[Feature, ...]
    states: tuple[Feature, ...]
    operations: Mapping[str, int]


@dataclass(frozen=True)
class WeightInfo:
    """A tensor in the weight file. format: fp16, int32, lut4, blockwise_shift_scale ...; nbytes without alignment."""

    name: str
    format: str
    shape: Shape
    nbytes: int
    functions: tuple[str, ...]


@dataclass(frozen=True)
class PackageInfo:
    """A package. ``shared_bytes`` of the weights serve more than one function; ``problems`` are ``check.breaches``."""

    path: Path
    specification_version: int
    functions: tuple[FunctionInfo, ...]
    weights: tuple[WeightInfo, ...]
    metadata: Mapping[str, str]
    user_defined: Mapping[str, str]
    model_bytes: int
    weight_bytes: int
    shared_bytes: int
    problems: tuple[str, ...]

    def formats(self) -> dict[str, tuple[int, int]]:
        """Tensors and bytes by format, the largest first."""
        totals: dict[str, tuple[int, int]] = {}
        for weight in self.weights:
            count, nbytes = totals.get(weight.format, (0, 0))
            totals[weight.format] = (count + 1, nbytes + weight.nbytes)
        return dict(sorted(totals.items(), key=lambda item: -item[1][1]))


@dataclass(frozen=True)
class _Use:
    """An operation of one function that brings a stored tensor in; ``records`` are (file, offset) pairs."""

    function: str
    name: str
    format: str
    shape: Shape
    records: tuple[tuple[str, int], ...]


def read_package(path: str | Path) -> PackageInfo:
    """Everything that ``inspect`` shows. PackageError on what is no readable ML program or lacks its weight file."""
    file = model_file(path)
    return describe(Path(path), load_model(path), file.parent, file)


def describe(path: Path, model: Any, folder: Path, file: Path) -> PackageInfo:
    """What ``inspect`` shows of a Model message.

    folder: where the names of weight files begin; file: the program as it is stored. PackageError when the model is
    damaged or lacks its weight file.
    """
    try:
        return _described(path, model, folder, file)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise PackageError(f"{path} is damaged: its program is none ({cause}); copy or make it again.") from error


def _described(path: Path, model: Any, folder: Path, file: Path) -> PackageInfo:
    uses = [use for name in _function_names(model) for use in _uses(name, model.mlProgram.functions[name])]
    sizes = _record_sizes(path, folder, {record for use in uses for record in use.records})
    readers: dict[tuple[str, int], set[str]] = {}
    for use in uses:
        for record in use.records:
            readers.setdefault(record, set()).add(use.function)
    metadata = model.description.metadata
    return PackageInfo(
        path=path,
        specification_version=model.specificationVersion,
        functions=tuple(_function_info(model, name) for name in _function_names(model)),
        weights=_weights(uses, sizes),
        metadata={
            "short_description": metadata.shortDescription,
            "author": metadata.author,
            "version": metadata.versionString,
            "license": metadata.license,
        },
        user_defined=dict(sorted(metadata.userDefined.items())),
        model_bytes=file.stat().st_size,
        weight_bytes=sum((folder / file).stat().st_size for file in {file for file, _ in sizes}),
        shared_bytes=sum(size for record, size in sizes.items() if len(readers[record]) > 1),
        problems=tuple(breaches(model)),
    )


def _function_names(model: Any) -> list[str]:
    """In the order of the description, the default first; a plain package has the one function main."""
    described = [function.name for function in model.description.functions]
    default = model.description.defaultFunctionName
    return sorted(described, key=lambda name: name != default) or sorted(model.mlProgram.functions)


def _function_info(model: Any, name: str) -> FunctionInfo:
    description = features(model, name)
    counts = Counter(op.type for op in operations(block_of(model.mlProgram.functions[name])))
    return FunctionInfo(
        name,
        tuple(map(_feature, description.input)),
        tuple(map(_feature, description.output)),
        tuple(map(_feature, description.state)),
        dict(counts.most_common()),
    )


def _feature(message: Any) -> Feature:
    kind = message.type.WhichOneof("Type")
    array = message.type.stateType.arrayType if kind == "stateType" else message.type.multiArrayType
    if kind not in ("multiArrayType", "stateType"):
        return Feature(message.name, kind.removesuffix("Type"), ())
    dtype = FEATURES.ArrayFeatureType.ArrayDataType.Name(array.dataType)
    shapes = tuple(tuple(item.shape) for item in array.enumeratedShapes.shapes)
    return Feature(message.name, _short(dtype), tuple(array.shape), shapes)


def _uses(function: str, message: Any) -> Iterator[_Use]:
    for op in operations(block_of(message)):
        if op.type != "const" and not op.type.startswith("constexpr_"):
            continue
        values = {key: argument.arguments[0].value for key, argument in op.inputs.items()} | dict(op.attributes.items())
        files = [value.blobFileValue for value in values.values() if value.WhichOneof("value") == "blobFileValue"]
        if files:
            output = op.outputs[0]
            records = sorted((file.fileName.removeprefix("@model_path/"), file.offset) for file in files)
            yield _Use(function, output.name, _format(op, values), _shape(output.type), tuple(records))


def _format(op: Any, values: dict[str, Any]) -> str:
    if op.type == "const":
        dtype = MIL.DataType.Name(op.outputs[0].type.tensorType.dataType)
        return _short(dtype)
    if op.type == "constexpr_lut_to_dense":
        shape = _shape(values["lut"].type)
        entries = shape[-2] if len(shape) > 1 else shape[0]  # iOS 16 form: one table, one axis
        return f"lut{round(math.log2(entries))}"
    return str(op.type).removeprefix("constexpr_")


def _short(dtype: str) -> str:
    return {"FLOAT16": "fp16", "FLOAT32": "fp32", "FLOAT64": "fp64"}.get(dtype, dtype.lower())


def _shape(value_type: Any) -> Shape:
    return tuple(dimension.constant.size for dimension in value_type.tensorType.dimensions)


def _weights(uses: list[_Use], sizes: Mapping[tuple[str, int], int]) -> tuple[WeightInfo, ...]:
    by_records: dict[tuple[tuple[str, int], ...], list[_Use]] = {}
    for use in uses:
        by_records.setdefault(use.records, []).append(use)
    return tuple(
        WeightInfo(
            group[0].name,
            group[0].format,
            group[0].shape,
            sum(sizes[record] for record in records),
            tuple(dict.fromkeys(use.function for use in group)),
        )
        for records, group in by_records.items()
    )


def _record_sizes(package: Path, folder: Path, records: set[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Bytes of data of each (file, offset) record. PackageError when a file is missing or cut."""
    sizes = {}
    for name in {name for name, _ in records}:
        path = inside(package, folder / name)
        if not path.is_file():
            raise PackageError(f"{str(path)[:200]} is missing, but the program refers to it; copy the package again.")
        end = path.stat().st_size
        with open(path, "rb") as file:
            for offset in sorted(offset for other, offset in records if other == name):
                file.seek(min(offset, end))
                record = file.read(RECORD.size)
                sentinel, _, size, start, _ = RECORD.unpack(record.ljust(RECORD.size, b"\0"))
                if sentinel != SENTINEL or start + size > end:
                    raise PackageError(f"{path} is damaged: no whole tensor at byte {offset}; copy the package again.")
                sizes[name, offset] = size
    return sizes
