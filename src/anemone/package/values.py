"""MIL messages for types and constant values."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anemone.errors import PackageError
from anemone.graph.ir import Constant, Shape
from anemone.package.blob import TYPES, BlobWriter
from anemone.package.packing import BitPacker
from anemone.package.proto import MIL

Dims: TypeAlias = tuple[int | None, ...]
"""A shape; None is a size that is known at run time only."""

WEIGHT_FILE = "@model_path/weights/weight.bin"
INLINE_BELOW = 10
"""Values of fewer elements than this are written into the program itself, as coremltools does."""

DATA_TYPES: dict[str, int] = {name: MIL.DataType.Value(name.upper()) for name in TYPES if not name.startswith("fp")}
DATA_TYPES |= {"fp16": MIL.FLOAT16, "fp32": MIL.FLOAT32, "bool": MIL.BOOL, "string": MIL.STRING}

_IN_BYTES = {"fp16", "int4", "int8", "uint1", "uint2", "uint3", "uint4", "uint6", "uint8", "uint32"}
_NAMES = {np.dtype(dtype).str[1:]: name for name, dtype in [("fp16", "f2"), ("fp32", "f4"), ("bool", "?")]}
_NAMES |= {np.dtype(name).str[1:]: name for name in ("uint8", "int8", "int16", "uint16", "int32", "uint32")}


def tensor_type(dtype: str, dims: Dims) -> Any:
    """ValueType of a tensor; no dims: a scalar."""
    result = MIL.ValueType()
    tensor = result.tensorType
    tensor.dataType = DATA_TYPES[dtype]
    tensor.rank = len(dims)
    for size in dims:
        if size is None:
            tensor.dimensions.add().unknown.variadic = False
        else:
            tensor.dimensions.add().constant.size = size
    return result


def state_type(dtype: str, shape: Shape) -> Any:
    result = MIL.ValueType()
    result.stateType.wrappedType.CopyFrom(tensor_type(dtype, shape))
    return result


def immediate(dtype: str, values: NDArray[Any]) -> Any:
    """Value that holds ``values`` inside the program; sub-byte types take one value per byte."""
    result = MIL.Value(type=tensor_type(dtype, values.shape))
    tensor = result.immediateValue.tensor
    if dtype in _IN_BYTES:
        tensor.bytes.values = _packed(dtype, values)
    else:
        field = {"fp32": tensor.floats, "bool": tensor.bools}.get(dtype, tensor.ints)
        field.SetInParent()
        field.values.extend(values.reshape(-1).tolist())
    return result


def string(text: str) -> Any:
    result = MIL.Value(type=tensor_type("string", ()))
    result.immediateValue.tensor.strings.values.append(text)
    return result


def string_dictionary(items: Sequence[tuple[str, str]]) -> Any:
    result = MIL.Value()
    result.type.dictionaryType.keyType.CopyFrom(tensor_type("string", ()))
    result.type.dictionaryType.valueType.CopyFrom(tensor_type("string", ()))
    for key, text in items:
        result.immediateValue.dictionary.values.add(key=string(key), value=string(text))
    return result


def file_value(dtype: str, shape: Shape, offset: int) -> Any:
    """Value whose data is the record at ``offset`` of the weight file."""
    result = MIL.Value(type=tensor_type(dtype, shape))
    result.blobFileValue.fileName = WEIGHT_FILE
    result.blobFileValue.offset = offset
    return result


def constant(value: Constant, blob: BlobWriter) -> Any:
    """Value of an operand; arrays of ``INLINE_BELOW`` elements or more go to the weight file (booleans never)."""
    if isinstance(value, str):
        return string(value)
    array = np.asarray(value)
    dtype = dtype_of(array)
    if is_inline(dtype, array.size):
        return immediate(dtype, array)
    return file_value(dtype, array.shape, blob.write_once(dtype, array))


def is_inline(dtype: str, count: int) -> bool:
    """Whether a constant is written into the program rather than into the weight file."""
    return count < INLINE_BELOW or dtype in ("bool", "string")


def dtype_of(array: NDArray[Any]) -> str:
    """The IR's name of a numpy type; PackageError when Core ML programs have no such constants."""
    name = _NAMES.get(array.dtype.str[1:])
    if name is None:
        raise PackageError(f"A constant of type {array.dtype} cannot be written; use one of {sorted(_NAMES.values())}.")
    return name


def _packed(dtype: str, values: NDArray[Any]) -> bytes:
    if TYPES[dtype].bits >= 8:
        return values.astype(TYPES[dtype].numpy).tobytes()
    packer = BitPacker(TYPES[dtype].bits)
    flat = values.reshape(-1).view(np.uint8) & np.uint8((1 << TYPES[dtype].bits) - 1)
    return packer.push(flat).tobytes() + packer.flush().tobytes()
