"""Types and values of MIL text as the messages that a .mlpackage holds."""

from typing import Any

import numpy as np

from anemone.execute import proto
from anemone.execute.dtypes import Array, packed_bits
from anemone.execute.text.literals import Blob, Constant
from anemone.execute.text.types import Type


class Messages:
    """Fills messages; equal types are built once and copied."""

    def __init__(self) -> None:
        self._numbers = {name: number for number, name in proto.dtype_names().items()}
        self._types: dict[Type, Any] = {}

    def fill_type(self, message: Any, kind: Type) -> None:
        """Make a ValueType message say ``kind``."""
        known = self._types.get(kind)
        if known is None:
            self._build_type(message, kind)
            self._types[kind] = type(message)()
            self._types[kind].CopyFrom(message)
        else:
            message.CopyFrom(known)

    def _build_type(self, message: Any, kind: Type) -> None:
        if kind.kind == "tensor":
            tensor = message.tensorType
            tensor.dataType = self._numbers[kind.dtype]
            tensor.rank = len(kind.dims)
            for size in kind.dims:
                dimension = tensor.dimensions.add()
                if size is None:
                    dimension.unknown.variadic = False
                else:
                    dimension.constant.size = size
        elif kind.kind == "state":
            self.fill_type(message.stateType.wrappedType, kind.parts[0])
        elif kind.kind == "list":
            self.fill_type(message.listType.type, kind.parts[0])
            if kind.length is None:
                message.listType.length.unknown.variadic = False
            else:
                message.listType.length.constant.size = kind.length
        elif kind.kind == "tuple":
            message.tupleType.SetInParent()
            for part in kind.parts:
                self.fill_type(message.tupleType.types.add(), part)
        else:
            self.fill_type(message.dictionaryType.keyType, kind.parts[0])
            self.fill_type(message.dictionaryType.valueType, kind.parts[1])

    def fill_value(self, message: Any, constant: Constant) -> None:
        """Make a Value message say ``constant``."""
        kind, value = constant.type, constant.value
        self.fill_type(message.type, kind)
        if isinstance(value, Blob):
            message.blobFileValue.fileName, message.blobFileValue.offset = value.path, value.offset
        elif kind.kind == "tensor":
            _fill_tensor(message.immediateValue.tensor, kind.dtype, value)
        elif kind.kind == "dict":
            message.immediateValue.dictionary.SetInParent()
            for key, content in value:
                pair = message.immediateValue.dictionary.values.add()
                self.fill_value(pair.key, key)
                self.fill_value(pair.value, content)
        else:
            holder = getattr(message.immediateValue, kind.kind)
            holder.SetInParent()
            for part in value:
                self.fill_value(holder.values.add(), part)


_FIELDS = {
    "fp32": "floats",
    "fp64": "doubles",
    "int32": "ints",
    "int64": "longInts",
    "uint64": "longInts",
    "bool": "bools",
    "string": "strings",
}


def _fill_tensor(message: Any, dtype: str, value: Any) -> None:
    """Elements in the field of their type; all others as bytes, packed types bit by bit."""
    field = _FIELDS.get(dtype)
    if field is None:
        message.bytes.values = _packed(value, packed_bits(dtype)) if packed_bits(dtype) else value.tobytes()
        return
    holder = getattr(message, field)
    holder.SetInParent()
    holder.values.extend(value if dtype == "string" else value.astype(_signed(dtype), copy=False).tolist())


def _signed(dtype: str) -> str:
    """uint64 travels in a field of signed numbers."""
    return {"uint64": "int64", "fp32": "float32", "fp64": "float64"}.get(dtype, dtype)


def _packed(values: Array, bits: int) -> bytes:
    """Elements of ``bits`` bits one after the other, least significant bits first."""
    planes = values.astype(np.uint8)[:, None] >> np.arange(bits, dtype=np.uint8) & 1
    return np.packbits(planes, bitorder="little").tobytes()
