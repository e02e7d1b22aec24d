"""How a weight is palettised, and how people write it: "4", "6,4", "4,0", "none"."""

from dataclasses import dataclass

from anemone.errors import RecipeError

BITS = (1, 2, 3, 4, 6, 8)
"""Index widths that Core ML stores (MIL's uint1 to uint8; 5 and 7 do not exist)."""

GROUP = 8
"""Rows that share a table when nothing else is said: ANEMLL's default."""


@dataclass(frozen=True)
class LutSpec:
    """Tables of 2**bits values, each for ``group`` output channels; group 0: one table for the whole tensor."""

    bits: int
    group: int = GROUP

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise RecipeError(f"{self.bits} bits cannot be stored by Core ML; use one of {', '.join(map(str, BITS))}")
        if self.group < 0:
            raise RecipeError(f"group is {self.group}; use 1 or more rows a table, or 0 for one table a tensor")

    def __str__(self) -> str:
        return f"{self.bits},{self.group}"


def parse_lut(text: str) -> LutSpec | None:
    """``BITS`` or ``BITS,GROUP`` as a LutSpec, none (or no, false, empty) as None. RecipeError otherwise.

    GROUP 0, t or tensor asks for one table per tensor.
    """
    text = text.strip().lower()
    if text in ("", "none", "no", "false"):
        return None
    bits, _, group = (part.strip() for part in text.partition(","))
    group = "0" if group in ("t", "tensor") else group or str(GROUP)
    if not (bits.isdecimal() and group.isdecimal()):
        raise RecipeError(f"{text!r} is no palettisation; write bits such as 4, bits and group such as 6,4, or none")
    return LutSpec(int(bits), int(group))
