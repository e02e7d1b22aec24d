"""Between the caller's arrays and a function's tensors: signatures from the package, checks, conversions."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from anemone.errors import ExecuteError
from anemone.execute.damage import check_size
from anemone.execute.dtypes import Array, Shape, carrier_type, stored_type
from anemone.execute.images import image, image_spec, pixels
from anemone.execute.numerics import Numerics, widen
from anemone.execute.reader import Package, Var
from anemone.execute.signature import Signature, TensorSpec

_SCALARS = {"stringType": "string", "int64Type": "int64", "doubleType": "fp64"}
_ARRAY_DTYPES = {65552: "fp16", 65568: "fp32", 65600: "fp64", 131104: "int32", 131080: "int8"}


def read_signature(package: Package, function: str) -> Signature:
    """Types from the program, flexible shapes from the description."""
    description = package.description
    for candidate in description.functions:
        if candidate.name == function:
            description = candidate
    described = {feature.name: feature.type for feature in description.input}
    inputs, states = {}, {}
    for var in package.inputs(function):
        if var.state:
            states[var.name] = TensorSpec(var.name, var.dtype, var.shape)
        else:
            inputs[var.name] = _checked(_input_spec(var, described.get(var.name)), var)
    outputs = {}
    for feature in description.output:
        outputs[feature.name] = _output_spec(feature.name, feature.type)
    return Signature(inputs, outputs, states)


def _output_spec(name: str, described: Any) -> TensorSpec:
    """Scalars have the dtype of their type, dictionaries the dtype "dictionary"."""
    kind = described.WhichOneof("Type")
    if kind == "imageType":
        return image_spec(name, "uint8", described.imageType)
    if kind == "multiArrayType":
        array = described.multiArrayType
        return TensorSpec(name, _ARRAY_DTYPES.get(array.dataType, ""), tuple(array.shape))
    return TensorSpec(name, _SCALARS.get(kind, str(kind).removesuffix("Type")), ())


def _input_spec(var: Var, described: Any) -> TensorSpec:
    if described is not None and described.WhichOneof("Type") == "imageType":
        return image_spec(var.name, var.dtype, described.imageType)
    if described is None or described.WhichOneof("Type") != "multiArrayType":
        return TensorSpec(var.name, var.dtype, var.shape)
    array = described.multiArrayType
    default: Shape = tuple(int(n) for n in array.shape) or var.shape
    shapes = tuple(tuple(int(n) for n in option.shape) for option in array.enumeratedShapes.shapes)
    ranges = tuple((int(r.lowerBound), int(r.upperBound)) for r in array.shapeRange.sizeRanges)
    if shapes:
        ranges = ()
    elif not ranges and -1 in var.shape:
        ranges = tuple((1, -1) if n == -1 else (n, n) for n in var.shape)
    return TensorSpec(var.name, var.dtype, default, shapes, ranges, _default_value(described))


def _checked(spec: TensorSpec, var: Var) -> TensorSpec:
    """The spec if its shapes are possible ones of the program's input. Raises ExecuteError."""
    for shape in (spec.shape, *spec.shapes):
        sizes = zip(shape, var.shape, strict=False)
        if len(shape) != len(var.shape) or any(n != m and not (m == -1 and n >= -1) for n, m in sizes):
            raise ExecuteError(
                f"input {var.name!r} is described as {list(shape)}, but the program takes {list(var.shape)}"
            )
        check_size(shape, var.name)
    return spec


def _default_value(described: Any) -> float | None:
    if not described.isOptional:
        return None
    array = described.multiArrayType
    field = array.WhichOneof("defaultOptionalValue")
    return float(getattr(array, field)) if field else 0.0


def convert_inputs(
    given: Mapping[str, Any], specs: Mapping[str, TensorSpec], function: str, numerics: Numerics
) -> dict[str, Array]:
    """The caller's arrays and images as the function's tensors.

    Raises ExecuteError for wrong names, shapes or dtypes.
    """
    unknown = [name for name in given if name not in specs]
    missing = [name for name, spec in specs.items() if name not in given and spec.default is None]
    if unknown or missing:
        problem = f"no input {unknown[0]!r}" if unknown else f"an input {missing[0]!r} that is not given"
        raise ExecuteError(f"function {function!r} has {problem}; its inputs are {', '.join(specs) or 'none'}")
    result = {}
    for name, spec in specs.items():
        if name in given and spec.layout:
            result[name] = _convert_float(pixels(given[name], spec), spec.dtype, numerics)
        elif name in given:
            result[name] = _convert(_array(given[name], name), spec, numerics)
        else:
            result[name] = np.full(spec.shape, spec.default, carrier_type(spec.dtype))
    return result


def _array(given: Any, name: str) -> Array:
    try:
        return np.asarray(given)
    except (TypeError, ValueError) as error:
        raise ExecuteError(f"input {name!r} takes an array, got {type(given).__name__}: {error}") from error


def _convert(array: Array, spec: TensorSpec, numerics: Numerics) -> Array:
    if not spec.accepts(array.shape):
        raise ExecuteError(f"input {spec.name!r} takes shape {spec.accepted()}, got {list(array.shape)}")
    target = stored_type(spec.dtype)
    if target is None:
        raise ExecuteError(f"input {spec.name!r} has type {spec.dtype}, which is not supported")
    if target.kind == "f":
        if array.dtype.kind != "f":
            raise ExecuteError(f"input {spec.name!r} takes {spec.dtype}, got {array.dtype}; convert it first")
        return _convert_float(array, spec.dtype, numerics)
    allowed = "iu" if target.kind in "iu" else target.kind
    if array.dtype.kind not in allowed:
        raise ExecuteError(f"input {spec.name!r} takes {spec.dtype}, got {array.dtype}; convert it first")
    if target.kind in "iu" and array.size:
        limits = np.iinfo(target)
        if array.min() < limits.min or array.max() > limits.max:
            raise ExecuteError(f"input {spec.name!r} has values outside {spec.dtype}: {array.min()}..{array.max()}")
    return np.ascontiguousarray(array, target).reshape(array.shape)


def _convert_float(array: Array, dtype: str, numerics: Numerics) -> Array:
    if array.dtype == np.float16:
        return widen(np.ascontiguousarray(array)).reshape(array.shape)
    values = np.ascontiguousarray(array, carrier_type(dtype)).reshape(array.shape)
    return numerics.store(values) if dtype == "fp16" and numerics.store is not None else values


def convert_output(array: Any, dtype: str, numerics: Numerics, spec: TensorSpec | None = None) -> Any:
    """A result for the caller, in memory of its own. Without rounding, fp16 stays fp32.

    An image comes as a PIL image, the label of a classifier as a str or int, its probabilities as a dict.
    """
    if dtype == "dictionary":
        return array
    if spec is not None and spec.layout:
        return image(array, spec)
    if spec is not None and spec.dtype in ("string", "int64") and not spec.shape and array.size == 1:
        return array.item()
    if dtype == "fp16" and numerics.store is None:
        return array.astype(np.float32)
    return array.astype(stored_type(dtype))
