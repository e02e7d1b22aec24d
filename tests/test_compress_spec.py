"""How people write palettisation: ANEMLL's syntax."""

import pytest

from anemone.compress.spec import BITS, LutSpec, parse_lut
from anemone.errors import RecipeError


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("4", LutSpec(4, 8)),
        ("6,4", LutSpec(6, 4)),
        (" 6 , 16 ", LutSpec(6, 16)),
        ("4,0", LutSpec(4, 0)),
        ("4,t", LutSpec(4, 0)),
        ("8,Tensor", LutSpec(8, 0)),
        ("4,", LutSpec(4, 8)),
        ("none", None),
        ("None", None),
        ("no", None),
        ("false", None),
        ("", None),
    ],
)
def test_reading(text: str, spec: LutSpec | None) -> None:
    assert parse_lut(text) == spec


@pytest.mark.parametrize("spec", [LutSpec(bits, group) for bits in BITS for group in (0, 1, 8)])
def test_what_is_written_reads_back(spec: LutSpec) -> None:
    assert parse_lut(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5", "5 bits cannot be stored by Core ML; use one of 1, 2, 3, 4, 6, 8"),
        ("7,8", "7 bits"),
        ("0", "0 bits"),
        ("16", "16 bits"),
        ("four", "'four'"),
        ("4,8,2", "'4,8,2'"),
        ("4,-1", "'4,-1'"),
        ("-4", "'-4'"),
        ("4.5", "'4.5'"),
        (",8", "',8'"),
        ("lut4", "'lut4'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(RecipeError, match="^" + message.replace("(", r"\(")) as error:
        parse_lut(text)
    assert "\n" not in str(error.value)
