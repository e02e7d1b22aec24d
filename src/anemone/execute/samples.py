"""Random inputs that a function accepts: whole numbers within the tables they pick from, positions within the cache."""

import re
from collections.abc import Iterator, Mapping
from math import prod

import numpy as np

from anemone.errors import ExecuteError
from anemone.execute.dtypes import Array, Shape, stored_type
from anemone.execute.program import Program
from anemone.execute.reader import Function, Op
from anemone.execute.signature import TensorSpec
from anemone.execute.stored import Stored

UNKNOWN_BOUND = 2
"""Whole numbers are 0 or 1 where the program does not show what they pick from."""

_POSITION, _MASK = re.compile(r"pos"), re.compile(r"mask")
_KEEPS_NUMBERS = {
    "add", "cast", "concat", "expand_dims", "identity", "maximum", "minimum", "reshape", "select", "slice_by_index",
    "squeeze", "tile", "transpose",
}  # fmt: skip


def random_inputs(
    program: Program, seed: int, function: str | None = None, shapes: Mapping[str, Shape] | None = None
) -> dict[str, Array]:
    """One array per input that must be given, the same for the same seed.

    Numbers are drawn from the normal distribution. Whole numbers lie below the size of what they index; those named
    like positions count up from one common position, 0 where there is a state; masks hide what comes after it (-inf to
    add, from rank 3 on).
    ``shapes``: for inputs of flexible shape, in place of the default. Raises ExecuteError for unknown names.
    """
    name = function or program.default_function
    if name not in program.functions:
        raise ExecuteError(f"{program.path} has no function {name!r}; it has {', '.join(program.functions)}")
    specs = program.functions[name].inputs
    if unknown := sorted(set(shapes or {}) - set(specs)):
        raise ExecuteError(f"function {name!r} has no input {unknown[0]!r}; its inputs are {', '.join(specs)}")
    sizes = {key: (shapes or {}).get(key) or default_shape(spec) for key, spec in specs.items()}
    rng = np.random.default_rng(seed)
    limits = {key: _bound(program.graph(name), key) for key, spec in specs.items() if _is_whole(spec)}
    counting = [key for key in limits if _POSITION.search(key)]
    free = [max(0, limit - prod(sizes[key])) for key in counting if (limit := limits[key])]
    fresh = bool(program.functions[name].states)  # an empty cache has seen nothing
    position = int(rng.integers(0, min(free) + 1)) if free and not fresh else 0
    result = {}
    for key, spec in specs.items():
        if spec.default is not None and key not in (shapes or {}):
            continue
        values: Array
        if spec.layout:
            values = _image(spec, sizes[key], rng)
        elif key in counting:
            values = position + np.arange(prod(sizes[key])).reshape(sizes[key])
        elif _MASK.search(key):
            values = _mask(sizes[key], position) if not _is_whole(spec) else np.ones(sizes[key])
        elif key in limits:
            values = rng.integers(0, limits[key] or UNKNOWN_BOUND, sizes[key])
        else:
            values = rng.standard_normal(sizes[key])
        result[key] = values if spec.layout else values.astype(stored_type(spec.dtype))
    return result


def default_shape(spec: TensorSpec) -> Shape:
    """The declared shape, with the least size where an axis is free."""
    lows = [low for low, _ in spec.ranges] or [1] * len(spec.shape)
    return tuple(max(low, 1) if size < 0 else size for size, low in zip(spec.shape, lows, strict=True))


def _image(spec: TensorSpec, shape: Shape, rng: np.random.Generator) -> Array:
    """Pixels (height, width) or (height, width, 3)."""
    sides = shape[2:] if shape[1] == 1 else (*shape[2:], shape[1])
    if spec.layout == "GRAYSCALE_FLOAT16":
        return rng.uniform(0, 255, sides).astype(np.float32)
    return rng.integers(0, 256, sides).astype(np.uint8)


def _is_whole(spec: TensorSpec) -> bool:
    kind = stored_type(spec.dtype)
    return kind is not None and kind.kind in "iu"


def _mask(shape: Shape, position: int) -> Array:
    """(..., rows, context): row i sees everything up to ``position`` + i."""
    if len(shape) < 3:
        return np.ones(shape)
    rows, context = shape[-2:]
    visible = np.arange(context) <= position + np.arange(rows)[:, None]
    return np.broadcast_to(np.where(visible, 0.0, -np.inf), shape)


def _bound(function: Function, name: str) -> int | None:
    """What the numbers of an input must stay below to pick what exists; None when the program does not show it."""
    shapes = {var.name: var.shape for var in function.inputs}
    shapes |= {var.name: var.shape for op in function.body.ops for var in op.outputs}
    makers = {var.name: op for op in function.body.ops for var in op.outputs}
    follows = {name}
    found: list[int] = []
    for op in function.body.ops:
        if op.kind in _KEEPS_NUMBERS and follows & _names(op):
            follows |= {var.name for var in op.outputs if var.dtype.startswith(("int", "uint"))}
        found += _limits(op, follows, shapes, makers)
    return min(found) if found else None


def _names(op: Op, *keys: str) -> set[str]:
    groups = [op.inputs.get(key, ()) for key in keys] if keys else op.inputs.values()
    return {operand for group in groups for operand in group if isinstance(operand, str)}


def _limits(op: Op, follows: set[str], shapes: Mapping[str, Shape], makers: Mapping[str, Op]) -> Iterator[int]:
    """Sizes that the followed values index, or at which they may begin at most (plus one)."""
    if op.kind in ("gather", "gather_along_axis") and follows & _names(op, "indices"):
        axis = next((int(a.array().item()) for a in op.inputs.get("axis", ()) if isinstance(a, Stored)), 0)
        yield _shape(op, "x", shapes)[axis]
    if op.kind in ("slice_update", "slice_by_index") and follows & _names(op, "begin"):
        whole = _shape(op, "x", shapes)
        part = _shape(op, "update", shapes) if op.kind == "slice_update" else op.outputs[0].shape
        if len(part) == len(whole):
            for axis in _followed_axes(op, follows, makers, len(whole)):
                yield whole[axis] - part[axis] + 1


def _followed_axes(op: Op, follows: set[str], makers: Mapping[str, Op], rank: int) -> list[int]:
    """Which elements of ``begin`` are followed values: told apart where a concat puts it together."""
    begin = op.inputs["begin"][0]
    maker = makers.get(begin) if isinstance(begin, str) else None
    if maker is None or maker.kind != "concat" or len(maker.inputs["values"]) != rank:
        return list(range(rank))
    return [axis for axis, value in enumerate(maker.inputs["values"]) if isinstance(value, str) and value in follows]


def _shape(op: Op, key: str, shapes: Mapping[str, Shape]) -> Shape:
    operand = op.inputs[key][0]
    return operand.shape if isinstance(operand, Stored) else shapes[operand]
