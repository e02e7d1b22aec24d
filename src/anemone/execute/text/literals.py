"""Typed values in MIL text: ``tensor<int32, [2]>([1, 1])``, ``fp16(0x1p-3)``, ``string("same")``, weights in files.

A value is written without the types of its parts, so each is read by its type: scalars as they are, tensors and lists
in [ ], tuples in ( ), dicts as {{key, value}, {key, value}}.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from anemone.execute.dtypes import Array, packed_bits, stored_type
from anemone.execute.text.tokens import Tokens
from anemone.execute.text.types import DEEPEST, Type, parse_type

_INT = r"[-+]?\d{1,20}"
_FLOAT = (
    r"[-+]?(?:0[xX](?:[0-9a-fA-F]{1,40}\.?[0-9a-fA-F]{0,40}|\.[0-9a-fA-F]{1,40})(?:[pP][-+]?\d{1,5})?"
    r"|(?:\d{1,400}\.?\d{0,400}|\.\d{1,400})(?:[eE][-+]?\d{1,5})?|inf(?:inity)?|nan)"
)
_ITEM = {kind: re.compile(pattern, re.ASCII) for kind, pattern in (("int", _INT), ("float", _FLOAT))}
_BOOLS = {"true": True, "false": False}


@dataclass(frozen=True)
class Blob:
    """A tensor in a weight file."""

    path: str
    offset: int


@dataclass(frozen=True)
class Constant:
    """A typed value: a flat array, strings, a ``Blob``, a tuple of parts, or a dict as pairs."""

    type: Type
    value: Any


def parse_constant(tokens: Tokens) -> Constant:
    """Pass a type and a value in parentheses. Raises ExecuteError."""
    kind = parse_type(tokens)
    tokens.expect("(", "and a value after its type")
    value = _blob(tokens) if tokens.current == "BLOBFILE" else _value(tokens, kind, 0)
    tokens.expect(")", "after the value")
    return Constant(kind, value)


def _blob(tokens: Tokens) -> Blob:
    tokens.advance()
    tokens.expect("(", "after BLOBFILE")
    found: dict[str, Any] = {}
    for key, dtype in (("path", "string"), ("offset", "uint64")):
        if found:
            tokens.expect(",", f"and {key}")
        tokens.expect(key)
        tokens.expect("=", f"after {key}")
        constant = parse_constant(tokens)
        if constant.type.dtype != dtype or constant.type.dims or isinstance(constant.value, Blob):
            raise tokens.fault(f"{key} of BLOBFILE must be one {dtype}")
        found[key] = constant.value[0]
    tokens.expect(")", "at the end of BLOBFILE")
    return Blob(str(found["path"]), int(found["offset"]))


def _value(tokens: Tokens, kind: Type, depth: int) -> Any:
    if depth >= DEEPEST:
        raise tokens.fault(f"values are nested more than {DEEPEST} deep")
    if kind.kind == "tensor":
        return _tensor(tokens, kind)
    if kind.kind == "list":
        return _list(tokens, kind, depth)
    if kind.kind == "tuple":
        return _tuple(tokens, kind, depth)
    if kind.kind == "dict":
        return _dict(tokens, kind, depth)
    raise tokens.fault(f"a {kind.kind} has no values that could be written")


def _list(tokens: Tokens, kind: Type, depth: int) -> tuple[Constant, ...]:
    part = kind.parts[0]
    if part.kind == "tensor" and not part.dims:
        items = [Constant(part, _converted(tokens, part.dtype, [item])) for item in _row(tokens, part.dtype)]
    else:
        items = []
        if not tokens.accept("[]"):
            tokens.expect("[", "before the values of a list")
            while not items or tokens.accept(","):
                items.append(Constant(part, _value(tokens, part, depth + 1)))
            tokens.expect("]", "after the values of a list")
    if kind.length not in (None, len(items)):
        raise tokens.fault(f"a list of {kind.length} has {len(items)} values")
    return tuple(items)


def _tuple(tokens: Tokens, kind: Type, depth: int) -> tuple[Constant, ...]:
    tokens.expect("(", "before the values of a tuple")
    items = []
    for position, part in enumerate(kind.parts):
        if position:
            tokens.expect(",", f"and value {position + 1} of a tuple")
        items.append(Constant(part, _value(tokens, part, depth + 1)))
    tokens.expect(")", "after the values of a tuple")
    return tuple(items)


def _dict(tokens: Tokens, kind: Type, depth: int) -> tuple[tuple[Constant, Constant], ...]:
    tokens.expect("{", "before the pairs of a dict")
    pairs: list[tuple[Constant, Constant]] = []
    key, content = kind.parts
    while tokens.current != "}":
        if pairs:
            tokens.expect(",", "or '}' after a pair of a dict")
        tokens.expect("{", "before a pair of a dict")
        first = Constant(key, _value(tokens, key, depth + 1))
        tokens.expect(",", "between key and value")
        pairs.append((first, Constant(content, _value(tokens, content, depth + 1))))
        tokens.expect("}", "after a pair of a dict")
    tokens.expect("}", "after the pairs of a dict")
    return tuple(pairs)


def _tensor(tokens: Tokens, kind: Type) -> Any:
    """A flat array of the type's numpy dtype, or a tuple of strings."""
    if not kind.dims:
        return _converted(tokens, kind.dtype, [_scalar(tokens, kind.dtype)])
    rows: list[Any] = []
    _rows(tokens, kind, 0, rows)
    if kind.dtype == "string":
        return tuple(text for row in rows for text in row)
    return np.concatenate(rows) if rows else _converted(tokens, kind.dtype, [])


def _rows(tokens: Tokens, kind: Type, axis: int, rows: list[Any]) -> None:
    """Collect the innermost rows of an array that must have exactly the type's shape; ? takes what stands there."""
    size = kind.dims[axis]
    if axis == len(kind.dims) - 1:
        items = _row(tokens, kind.dtype)
        if size not in (None, len(items)):
            raise tokens.fault(f"a row of {len(items)} values stands where the type says {size}")
        rows.append(_converted(tokens, kind.dtype, items))
        return
    parts = 0
    if not tokens.accept("[]"):
        tokens.expect("[", "before the parts of a tensor")
        while not parts or tokens.accept(","):
            _rows(tokens, kind, axis + 1, rows)
            parts += 1
        tokens.expect("]", "after the parts of a tensor")
    if size not in (None, parts):
        raise tokens.fault(f"a tensor of {parts} parts stands where the type says {size}")


def _row(tokens: Tokens, dtype: str) -> list[str]:
    """The texts of the items in [ ]."""
    token = tokens.current
    if token[:1] == "[" and token[-1:] == "]" and (dtype != "string" or token == "[]"):
        tokens.advance()
        body = token[1:-1]
        return [item.strip() for item in body.split(",")] if body.strip() else []
    tokens.expect("[", "before the values of a row")
    items: list[str] = []
    while not items or tokens.accept(","):
        items.append(_scalar(tokens, dtype))
    tokens.expect("]", "after the values of a row")
    return items


def _scalar(tokens: Tokens, dtype: str) -> str:
    if dtype == "string":
        return tokens.string("a string in double quotes")
    if not tokens.current or tokens.current[0] in '"[](){},;=':
        raise tokens.error(f"a value of type {dtype}")
    return tokens.advance()


def _converted(tokens: Tokens, dtype: str, items: list[str]) -> Any:
    """The texts as an array of the type; strings as they are. Raises ExecuteError for what is none or does not fit."""
    if dtype == "string":
        return tuple(items)
    target = stored_type(dtype)
    if target is None:
        raise tokens.fault(f"values of type {dtype} cannot be read")
    if dtype == "bool":
        return np.array(_each(tokens, dtype, items, _BOOLS.__getitem__), np.bool_)
    if target.kind == "f":
        return _floats(tokens, dtype, target, items)
    values = _each(tokens, dtype, items, _whole)
    bits = packed_bits(dtype) or 8 * target.itemsize
    low, high = (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    outside = next((value for value in values if not low <= value <= high), None)
    if outside is not None:
        raise tokens.fault(f"the value {outside} does not fit {dtype}")
    return np.array(values, target)


def _floats(tokens: Tokens, dtype: str, target: Any, items: list[str]) -> Array:
    wide = np.array(_each(tokens, dtype, items, _real), np.float64)
    with np.errstate(all="ignore"):
        values = wide.astype(target)
    lost = np.isinf(values) & ~np.isinf(wide)
    if lost.any():
        raise tokens.fault(f"the value {wide[lost][0]:g} does not fit {dtype}")
    return values


def _each(tokens: Tokens, dtype: str, items: list[str], convert: Callable[[str], Any]) -> list[Any]:
    position = 0
    try:
        result = []
        for item in items:
            result.append(convert(item))
            position += 1
        return result
    except (ValueError, KeyError, OverflowError):
        raise tokens.fault(f"{items[position][:40]!r} is no value of type {dtype}") from None


def _whole(text: str) -> int:
    if _ITEM["int"].fullmatch(text) is None:
        raise ValueError(text)
    return int(text)


def _real(text: str) -> float:
    if _ITEM["float"].fullmatch(text) is None:
        raise ValueError(text)
    return float.fromhex(text) if "x" in text or "X" in text else float(text)
