"""Types in MIL text: ``tensor<fp16, [1, ?]>``, ``int32``, ``list<string, 3>``, ``state<...>`` and their nestings."""

import re
from dataclasses import dataclass
from functools import lru_cache

from anemone.execute.text.tokens import Tokens

DEEPEST = 32  # types, values and blocks inside one another; real programs stay below 8
_LARGEST = 2**63 - 1
COMPOSED = ("list", "tuple", "dict", "state")
_TENSOR = re.compile(r"tensor<\s*(\w+)\s*,\s*\[(.*)\]\s*>", re.ASCII)
DTYPES = {
    "bool", "string", "fp8e4m3fn", "fp8e5m2", "fp16", "fp32", "fp64", "bf16", "int4", "int8", "int16", "int32", "int64",
    "uint1", "uint2", "uint3", "uint4", "uint6", "uint8", "uint16", "uint32", "uint64",
}  # fmt: skip


@dataclass(frozen=True)
class Type:
    """A type: ``kind`` is tensor, list, tuple, dict or state.

    A tensor has a dtype and dims, where None is a size known when running; a scalar is a tensor without dims. Others
    have ``parts``, the types of what they hold, and a list a length, None when it is open.
    """

    kind: str
    dtype: str = ""
    dims: tuple[int | None, ...] = ()
    parts: tuple["Type", ...] = ()
    length: int | None = None


def begins_type(word: str) -> bool:
    """Whether a type begins with this token."""
    return word.startswith("tensor<") or word in DTYPES or word in COMPOSED


def parse_type(tokens: Tokens, depth: int = 0) -> Type:
    """Pass a type. Raises ExecuteError."""
    word = tokens.current
    if word.startswith("tensor<"):
        try:
            found = _tensor(word)
        except ValueError as error:
            raise tokens.fault(str(error)) from None
        tokens.advance()
        return found
    if word in DTYPES:
        tokens.advance()
        return _scalar(word)
    if word not in COMPOSED:
        raise tokens.error("a type such as tensor<fp16, [1, 4]> or int32")
    if depth >= DEEPEST:
        raise tokens.fault(f"types are nested more than {DEEPEST} deep")
    tokens.advance()
    return _composed(tokens, word, depth)


def _composed(tokens: Tokens, kind: str, depth: int) -> Type:
    tokens.expect("<", f"after {kind}")
    parts = [] if tokens.current == ">" else [parse_type(tokens, depth + 1)]
    length = None
    if kind == "list":
        tokens.expect(",", "and the length of the list")
        length = _length(tokens)
    elif kind == "dict":
        tokens.expect(",", "and the type of the dict's values")
        parts.append(parse_type(tokens, depth + 1))
    elif kind == "tuple":
        while tokens.accept(","):
            parts.append(parse_type(tokens, depth + 1))
    tokens.expect(">", f"at the end of the {kind} type")
    if kind != "tuple" and len(parts) != (2 if kind == "dict" else 1):
        raise tokens.fault(f"a {kind} type lacks the type of what it holds")
    return Type(kind, parts=tuple(parts), length=length)


def _length(tokens: Tokens) -> int | None:
    if tokens.accept("?"):
        return None
    try:
        length = _size(tokens.current)
    except ValueError as error:
        raise tokens.fault(str(error)) from None
    tokens.advance()
    return length


@lru_cache(maxsize=4096)
def _scalar(dtype: str) -> Type:
    return Type("tensor", dtype)


@lru_cache(maxsize=65536)
def _tensor(word: str) -> Type:
    match = _TENSOR.fullmatch(word)
    if match is None or match[1] not in DTYPES:
        raise ValueError(f"{match[1] if match else word} is no type of tensor elements")
    sizes = match[2].split(",") if match[2].strip() else []
    if len(sizes) > DEEPEST:
        raise ValueError(f"a tensor has {len(sizes)} dimensions; no more than {DEEPEST} are possible")
    return Type("tensor", match[1], tuple(_size(size.strip()) for size in sizes))


def _size(text: str) -> int | None:
    if text == "?":
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > _LARGEST:
        raise ValueError(f"expected a size or ?, found {text[:40]!r}")
    return int(text)
