"""anemone verify"""

from pathlib import Path
from typing import Annotated

import typer

from anemone.cli import options
from anemone.cli.output import print_json
from anemone.cli.progress import make_progress
from anemone.cli.report import print_report

Bundle = Annotated[Path, typer.Argument(metavar="OUT", help="Bundle folder.")]
SourceOption = Annotated[str, typer.Option("--source", metavar="SRC", help="The checkpoint it was made from.")]
TextFile = Annotated[Path | None, typer.Option("--text", metavar="FILE", help="Text to use [default: built in].")]
Tokens = Annotated[int, typer.Option("--tokens", help="Tokens of the text to use.")]
MaxKl = Annotated[
    float | None, typer.Option("--max-kl", help="Fail when the mean KL (nats) from the checkpoint is larger.")
]


def command(
    bundle: Bundle,
    source: SourceOption,
    text: TextFile = None,
    tokens: Tokens = 512,
    max_kl: MaxKl = None,
    as_json: options.Json = False,
) -> None:
    """Compare a bundle with its checkpoint; exit code 1 when a gate fails."""
    from anemone.checkpoint import open_checkpoint
    from anemone.cli.files import read_text
    from anemone.evaluate.verify import verify

    content = read_text(text) if text else None
    report = verify(
        bundle, open_checkpoint(source), text=content, tokens=tokens, max_kl=max_kl, progress=make_progress()
    )
    if as_json:
        print_json(report.as_dict())
    else:
        print_report(report)
    if not report.passed:
        raise typer.Exit(1)
