"""The verification report for people; convert and verify both end with it."""

from typing import TYPE_CHECKING

import typer

from anemone.cli.output import print_facts

if TYPE_CHECKING:
    from anemone.evaluate.report import Report


POOR = 0.5
"""Agreement with the checkpoint below which the cost of palettisation is pointed out."""


def print_report(report: "Report") -> None:
    graph, cost = report.graph.as_dict(), report.checkpoint.as_dict()
    typer.echo(f"verified on {graph['tokens']} tokens" if report.passed else f"NOT VERIFIED: {report.failure}")
    print_facts(
        [
            ("packages against their own weights", _line(graph)),
            ("packages against the checkpoint", _line(cost)),
            ("functions for one row against those for many", f"relative error at most {report.one_row_error:.2g}"),
            ("stored values that are not the checkpoint's", str(report.misplaced)),
            ("NaN and infinities", str(report.nonfinite)),
        ]
    )


    if report.passed and cost["top1_agreement"] < POOR:
        typer.echo("  the packages are right, but palettised so hard that they answer differently: use more bits")


def _line(values: dict[str, float]) -> str:
    agreement = f"same first choice {values['top1_agreement']:.1%}"
    if values["mean_kl"] is None:
        return agreement
    return f"{agreement}, mean KL {values['mean_kl']:.2g}, worst {values['max_kl']:.2g}"
