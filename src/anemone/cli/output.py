"""What commands print: one JSON object for programs, or short tables for people."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import typer

from anemone.jsontext import dumps


def print_json(value: Mapping[str, Any]) -> None:
    typer.echo(dumps(value))


def print_table(rows: Sequence[Sequence[str]], indent: str = "  ") -> None:
    """Columns as wide as their widest cell; behind the first, numbers (cells that start with a digit) to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for name, *values in rows:
        cells = [
            cell.rjust(w) if cell[:1].isdigit() else cell.ljust(w) for cell, w in zip(values, widths[1:], strict=True)
        ]
        typer.echo((indent + "  ".join([name.ljust(widths[0]), *cells])).rstrip())


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Names and values, one a line."""
    facts = list(facts)
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        typer.echo(f"  {name.ljust(width)}  {value}")


def size(count: float) -> str:
    """Bytes in words: 12.3 MB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} B"
