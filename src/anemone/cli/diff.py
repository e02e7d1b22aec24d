"""anemone diff"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anemone.cli import options
from anemone.cli.output import print_json, print_table

if TYPE_CHECKING:
    from anemone.execute import Program
    from anemone.execute.comparing import Comparison, Distance

First = Annotated[Path, typer.Argument(metavar="A", help="A package.")]
Second = Annotated[Path, typer.Argument(metavar="B", help="Another package, or the outputs to expect: .npz.")]
Tolerance = Annotated[float | None, typer.Option("--tolerance", help="Fail when outputs lie further apart.")]
MinSnr = Annotated[
    float | None, typer.Option("--min-snr", metavar="DB", help="Fail below this ratio [default: 40, an error of 1 %].")
]


def command(
    first: First,
    second: Second,
    inputs: options.Inputs = None,
    random: options.Random = None,
    shape: options.Shape = None,
    function: options.Function = None,
    numerics: options.Numerics = "float16",
    tolerance: Tolerance = None,
    min_snr: MinSnr = None,
    as_json: options.Json = False,
) -> None:
    """Run two packages on the same inputs and show where they part; exit code 1 beyond the limits."""
    from anemone.execute import Program
    from anemone.execute.comparing import MIN_SNR, compare

    program = Program(first, numerics=numerics, function=function)
    given = options.program_inputs(program, inputs, random, shape)
    limit = MIN_SNR if min_snr is None and tolerance is None else min_snr
    if second.suffix == ".npz":
        result = _against_file(program, second, given, tolerance, limit)
    else:
        other = Program(second, numerics=numerics)
        result = compare(program, other, given, program.default_function, tolerance, limit)
    if as_json:
        print_json(result.as_dict())
    else:
        print_comparison(result)
    if not result.passed:
        raise typer.Exit(1)


def _against_file(
    program: "Program", path: Path, given: dict[str, object], tolerance: float | None, min_snr: float | None
) -> "Comparison":
    from anemone.cli.arrays import read_arrays
    from anemone.execute.comparing import Comparison, compare_outputs

    found = program.predict(given, program.new_state())  # type: ignore[arg-type]
    return Comparison((), *compare_outputs(found, read_arrays(path)), tolerance=tolerance, min_snr=min_snr)


def print_comparison(result: "Comparison") -> None:
    for line in result.structure:
        typer.echo(f"  {line}")
    for name in result.unmatched:
        typer.echo(f"  only one side has the output {name}")
    rows = [("output", "max abs", "rel L2", "cosine", "SNR dB", "")]
    print_table([*rows, *(_row(distance) for distance in result.outputs)])
    if result.stepped:
        typer.echo(f"  first difference: {_at(result.first_difference)}")
        typer.echo(f"  parts at: {_at(result.parts_at)}")
    typer.echo("the same within the limits" if result.passed else "NOT the same within the limits")


def _row(found: "Distance") -> tuple[str, ...]:
    ratio = "equal" if found.equal else "-" if found.snr_db is None else f"{found.snr_db:.1f}"
    cosine = "-" if found.cosine is None else f"{found.cosine:.7f}"
    odd = f"{found.unlike} elements not to compare" if found.unlike else ""
    return found.name, f"{found.max_abs:.4g}", f"{found.rel_l2:.3g}", cosine, ratio, odd


def _at(found: "Distance | None") -> str:
    if found is None:
        return "nowhere"
    ratio = "" if found.snr_db is None else f", {found.snr_db:.1f} dB"
    return f"{found.name} (max abs {found.max_abs:.4g}{ratio})"
