"""Lists of tensors of one shape. A list is never changed: writing gives another one that shares the elements."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from anemone.errors import ExecuteError
from anemone.execute.dtypes import Array, Shape, carrier_type
from anemone.execute.ops.registry import Kernel, Node, kernel, op


@dataclass(frozen=True, slots=True)
class TensorList:
    """``items``: None where nothing was written. ``shape``: of the elements, None when only an element tells."""

    items: tuple[Array | None, ...]
    carrier: np.dtype[Any]
    shape: Shape | None
    grows: bool

    def read(self, index: int) -> Array:
        """An element; zeros where nothing was written. Raises ExecuteError outside the list."""
        if not 0 <= index < len(self.items):
            raise ExecuteError(f"the list has {len(self.items)} elements, but element {index} is read")
        item = self.items[index]
        if item is not None:
            return item
        if self.shape is None:
            raise ExecuteError(f"element {index} of the list is read before it is written")
        return np.zeros(self.shape, self.carrier)

    def written(self, indices: Sequence[int], values: Sequence[Array]) -> "TensorList":
        """With these elements replaced, longer when an index asks for it. Raises ExecuteError when it may not grow."""
        length = max([len(self.items), *(index + 1 for index in indices)])
        if min(indices, default=0) < 0 or (length > len(self.items) and not self.grows):
            raise ExecuteError(f"the list has {len(self.items)} elements, but element {max(indices)} is written")
        items = [*self.items, *[None] * (length - len(self.items))]
        for index, value in zip(indices, values, strict=True):
            items[index] = np.asarray(value, self.carrier)
        shape = np.shape(values[0]) if self.shape is None and len(values) else self.shape
        return replace(self, items=tuple(items), shape=shape)


_MAX_LENGTH = 1 << 24


@op("make_list")
def make_list(node: Node) -> Kernel:
    """Zeros at first. Sizes in ``elem_shape`` that are names become known with the first element."""
    sizes = [operand.array().item() for operand in node.constants("elem_shape")]
    shape = None if any(isinstance(size, str) for size in sizes) else tuple(int(size) for size in sizes)
    carrier = carrier_type(node.text("dtype", "fp32"))
    if carrier is None:
        raise ExecuteError(f"its dtype {node.text('dtype', '')!r} is not known")
    grows = node.flag("dynamic_length", True)

    def run(init_length: int = 1) -> TensorList:
        length = int(init_length)
        if not 0 <= length <= _MAX_LENGTH:
            raise ExecuteError(f"a list of {length} elements cannot be made; the limit is {_MAX_LENGTH}")
        return TensorList((None,) * length, carrier, shape, grows)

    return run


@kernel("list_length")
def list_length(ls: TensorList) -> int:
    return len(ls.items)


@kernel("list_read", moves=True)
def list_read(ls: TensorList, index: Any) -> Array:
    return ls.read(int(index))


@kernel("list_write", moves=True)
def list_write(ls: TensorList, index: Any, value: Array) -> TensorList:
    return ls.written([int(index)], [value])


@kernel("list_gather", moves=True)
def list_gather(ls: TensorList, indices: Array) -> Array:
    return np.stack([ls.read(int(index)) for index in indices])


@kernel("list_scatter", moves=True)
def list_scatter(ls: TensorList, indices: Array, value: Array) -> TensorList:
    return ls.written([int(index) for index in indices], list(value))
