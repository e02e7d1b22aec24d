"""Builds one Function: names values, records operations and weights, and knows the shape rule of each operation used.

Only static shapes are computed. An operation appears here because the decoder emits it; docs/ane-forms.md gives the
evidence for each form.
"""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from anemone.graph.ir import Function, Op, Operand, Shape, Value, Weight


class Builder:
    """Collects the operations of one function. Names are ``{scope}{kind}_{n}`` unless given."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.scope = ""
        self._inputs: list[Value] = []
        self._states: list[Value] = []
        self._ops: list[Op] = []
        self._weights: dict[str, Weight] = {}
        self._flexible: dict[str, tuple[Shape, ...]] = {}
        self._counts: dict[str, int] = {}

    def input(self, name: str, dtype: str, shape: Shape, flexible: tuple[Shape, ...] = ()) -> Value:
        value = Value(name, dtype, shape)
        self._inputs.append(value)
        if flexible:
            self._flexible[name] = flexible
        return value

    def state(self, name: str, shape: Shape) -> Value:
        value = Value(name, "fp16", shape)
        self._states.append(value)
        return value

    def weight(self, weight: Weight) -> Value:
        """A stored tensor; asking twice for one key gives the same value."""
        name = weight.key.replace(".", "_")
        known = self._weights.setdefault(name, weight)
        if known != weight:
            raise ValueError(f"two weights are named {name}")
        return Value(name, "fp16", weight.shape)

    def op(self, kind: str, inputs: Mapping[str, Operand], shape: Shape, dtype: str = "fp16", name: str = "") -> Value:
        """Append an operation with one output and return that output."""
        out = Value(name or self._fresh(kind), dtype, shape)
        self._ops.append(Op(kind, inputs, (out,)))
        return out

    def finish(self, outputs: Sequence[Value]) -> Function:
        return Function(
            name=self.name,
            inputs=tuple(self._inputs),
            states=tuple(self._states),
            outputs=tuple(outputs),
            ops=tuple(self._ops),
            weights=self._weights,
            flexible=self._flexible,
        )

    def _fresh(self, kind: str) -> str:
        base = self.scope + kind
        count = self._counts.get(base, 0)
        self._counts[base] = count + 1
        return f"{base}_{count}"

    # Elementwise, with broadcasting.

    def add(self, x: Value, y: Operand, name: str = "") -> Value:
        return self._binary("add", x, y, name)

    def mul(self, x: Value, y: Operand) -> Value:
        return self._binary("mul", x, y)

    def sub(self, x: Value, y: Operand) -> Value:
        return self._binary("sub", x, y)

    def maximum(self, x: Value, y: Operand) -> Value:
        return self._binary("maximum", x, y)

    def equal(self, x: Value, y: Operand) -> Value:
        return self.op("equal", {"x": x, "y": y}, _broadcast(x, y), "bool")

    def _binary(self, kind: str, x: Value, y: Operand, name: str = "") -> Value:
        return self.op(kind, {"x": x, "y": y}, _broadcast(x, y), x.dtype, name)

    def unary(self, kind: str, x: Value, **extra: Operand) -> Value:
        return self.op(kind, {"x": x, **extra}, x.shape, x.dtype)

    def cast(self, x: Value, dtype: str) -> Value:
        return self.op("cast", {"x": x, "dtype": dtype}, x.shape, dtype)

    def softmax(self, x: Value, axis: int) -> Value:
        return self.unary("softmax", x, axis=np.int32(axis))

    def layer_norm(self, x: Value, axis: int, epsilon: float) -> Value:
        return self.unary("layer_norm", x, axes=_ints(axis), epsilon=np.float16(epsilon))

    # Products.

    def conv1x1(self, x: Value, weight: Value, bias: Value | None = None, name: str = "") -> Value:
        """x (1, I, 1, S), weight (O, I, 1, 1), bias (O,) -> (1, O, 1, S)."""
        inputs: dict[str, Operand] = {"x": x, "weight": weight, "strides": _ints(1, 1), "pad_type": "valid"}
        inputs |= {"pad": _ints(0, 0, 0, 0), "dilations": _ints(1, 1), "groups": np.int32(1)}
        if bias is not None:
            inputs["bias"] = bias
        return self.op("conv", inputs, (x.shape[0], weight.shape[0], *x.shape[2:]), name=name)

    def matmul(self, x: Value, y: Value, transpose_y: bool = False) -> Value:
        rows, columns = x.shape[-2], y.shape[-2 if transpose_y else -1]
        batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        inputs: dict[str, Operand] = {"x": x, "y": y, "transpose_x": False, "transpose_y": transpose_y}
        return self.op("matmul", inputs, (*batch, rows, columns))

    # Shapes.

    def reshape(self, x: Value, shape: Shape, name: str = "") -> Value:
        if prod(shape) != prod(x.shape):
            raise ValueError(f"cannot reshape {x.shape} to {shape}")
        return self.op("reshape", {"x": x, "shape": _ints(*shape)}, shape, x.dtype, name)

    def transpose(self, x: Value, perm: Sequence[int], name: str = "") -> Value:
        shape = tuple(x.shape[axis] for axis in perm)
        return self.op("transpose", {"x": x, "perm": _ints(*perm)}, shape, x.dtype, name)

    def expand_dims(self, x: Value, axis: int) -> Value:
        shape = (*x.shape[:axis], 1, *x.shape[axis:])
        return self.op("expand_dims", {"x": x, "axes": _ints(axis)}, shape, x.dtype)

    def squeeze(self, x: Value, axes: Sequence[int], name: str = "") -> Value:
        shape = tuple(size for axis, size in enumerate(x.shape) if axis not in axes)
        return self.op("squeeze", {"x": x, "axes": _ints(*axes)}, shape, x.dtype, name)

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        shape = list(values[0].shape)
        shape[axis] = sum(value.shape[axis] for value in values)
        inputs: dict[str, Operand] = {"values": tuple(values), "axis": np.int32(axis), "interleave": False}
        return self.op("concat", inputs, tuple(shape), values[0].dtype)

    def split(self, x: Value, sizes: Sequence[int], axis: int) -> tuple[Value, ...]:
        shapes = [(*x.shape[:axis], size, *x.shape[axis + 1 :]) for size in sizes]
        base = self._fresh("split")
        outputs = tuple(Value(f"{base}_{i}", x.dtype, shape) for i, shape in enumerate(shapes))
        inputs: dict[str, Operand] = {"x": x, "split_sizes": _ints(*sizes), "axis": np.int32(axis)}
        self._ops.append(Op("split", inputs, outputs))
        return outputs

    def narrow(self, x: Value, axis: int, start: int, stop: int) -> Value:
        """Rows start..stop-1 of one axis."""
        begin, end = [0] * len(x.shape), list(x.shape)
        begin[axis], end[axis] = start, stop
        shape = (*x.shape[:axis], stop - start, *x.shape[axis + 1 :])
        return self.op("slice_by_index", {"x": x, "begin": _ints(*begin), "end": _ints(*end)}, shape, x.dtype)

    def gather(self, x: Value, indices: Value, axis: int, name: str = "") -> Value:
        inputs: dict[str, Operand] = {"x": x, "indices": indices, "axis": np.int32(axis)}
        inputs |= {"batch_dims": np.int32(0), "validate_indices": False}
        return self.op("gather", inputs, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype, name)

    def reduce_max(self, x: Value, axis: int, keep: bool = False) -> Value:
        inputs: dict[str, Operand] = {"x": x, "axes": _ints(axis), "keep_dims": keep}
        return self.op("reduce_max", inputs, _reduced(x.shape, axis, keep), x.dtype)

    def reduce_argmax(self, x: Value, axis: int) -> Value:
        inputs: dict[str, Operand] = {"x": x, "axis": np.int32(axis), "keep_dims": False, "output_dtype": "int32"}
        return self.op("reduce_argmax", inputs, _reduced(x.shape, axis, False), "int32")

    # State.

    def read_state(self, state: Value) -> Value:
        return self.op("read_state", {"input": state}, state.shape)

    def write_state(self, state: Value, data: Value) -> None:
        self._ops.append(Op("write_state", {"input": state, "data": data}, ()))

    def slice_update(self, x: Value, update: Value, begin: Operand, end: Operand) -> Value:
        return self.op("slice_update", {"x": x, "update": update, "begin": begin, "end": end}, x.shape)


def _ints(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def _reduced(shape: Shape, axis: int, keep: bool) -> Shape:
    return tuple(1 if i == axis else size for i, size in enumerate(shape) if keep or i != axis)


def _broadcast(x: Value, y: Operand) -> Shape:
    other = y.shape if isinstance(y, Value) else np.shape(y)  # type: ignore[arg-type]
    return np.broadcast_shapes(x.shape, other)
