"""Which sizes of a function's values are unknown until run time, when an input has several shapes.

The IR gives every value its shape for the first of the enumerated shapes. A dimension of an input is unknown when the
enumerated shapes differ in it; unknown dimensions then follow the operations, by the rules of the few operations for
which that is clear. Anything else is refused: what depends on the number of rows belongs in a function of its own.
"""

from typing import Any

import numpy as np

from anemone.errors import PackageError
from anemone.graph.ir import Function, Op, Shape, Value
from anemone.package.tidy import values_of
from anemone.package.values import Dims

_ELEMENTWISE = {"add", "sub", "mul", "real_div", "maximum", "minimum", "cast", "identity", "clip"}


def dimensions(function: Function) -> dict[str, Dims]:
    """The dims of every value by name. PackageError where a flexible dimension cannot be followed."""
    dims: dict[str, Dims] = {value.name: value.shape for value in (*function.inputs, *function.states)}
    for name, shapes in function.flexible.items():
        if name not in dims or dims[name] != shapes[0] or len({len(shape) for shape in shapes}) != 1:
            raise PackageError(
                f"The shapes {shapes} of {name} must begin with its own, {dims.get(name)}, and have its rank."
            )
        dims[name] = _differing(shapes)
    for op in function.ops:
        unknown = [v for v in values_of(op) if None in dims.get(v.name, ())]
        for output in op.outputs:
            dims[output.name] = _followed(op, output, dims) if unknown else output.shape
    return dims


def _differing(shapes: tuple[Shape, ...]) -> Dims:
    return tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True))


def _followed(op: Op, output: Value, dims: dict[str, Dims]) -> Dims:
    def of(parameter: str) -> Dims:
        operand: Any = op.inputs[parameter]
        return dims.get(operand.name, operand.shape) if isinstance(operand, Value) else np.shape(operand)

    if op.kind == "gather" and op.inputs.get("axis", 0) == 0:
        result = of("indices") + of("x")[1:]
    elif op.kind == "transpose":
        result = tuple(of("x")[axis] for axis in np.asarray(op.inputs["perm"]))
    elif op.kind in _ELEMENTWISE:
        result = of("x")
        if "y" in op.inputs:
            result = _broadcast(of("x"), of("y"))
    else:
        raise PackageError(f"The operation {op.kind} ({output.name}) cannot take an input of flexible shape.")
    default = tuple(size if got is not None else got for size, got in zip(output.shape, result, strict=True))
    if default != result:
        raise PackageError(f"The value {output.name} has shape {output.shape}, but {op.kind} gives {result}.")
    return result


def _broadcast(x: Dims, y: Dims) -> Dims:
    rank = max(len(x), len(y))
    pairs = zip((1,) * (rank - len(x)) + x, (1,) * (rank - len(y)) + y, strict=True)
    return tuple(b if a == 1 else a for a, b in pairs)
