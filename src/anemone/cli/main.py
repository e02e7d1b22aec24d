"""The command ``anemone``: one small module per command, heavy imports inside the commands."""

import logging
import os
import signal
import sys
from typing import Annotated

import typer

from anemone.cli import convert, diff, execute, generate, inspect, plan, verify
from anemone.errors import AnemoneError
from anemone.version import __version__

INTERRUPTED, TERMINATED = 130, 143
"""Exit codes for Ctrl-C and for SIGTERM: 128 and the signal's number."""

app = typer.Typer(
    name="anemone",
    help="Language models for the Apple Neural Engine: convert, verify and run Core ML packages on any machine.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("plan", short_help="Show what a conversion would write; reads headers only.")(plan.command)
app.command("convert")(convert.command)
app.command("verify", short_help="Compare a bundle with its checkpoint.")(verify.command)
app.command("generate", short_help="Generate text with a bundle, on any machine.")(generate.command)
app.command("inspect", short_help="Show functions, inputs, operations and weights.")(inspect.command)
app.command("execute", short_help="Run one function of an ML program on any machine.")(execute.command)
app.command("diff", short_help="Run two packages on the same inputs and show where they part.")(diff.command)


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"anemone {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line.

    Our errors become one line and their exit code, those of the operating system one line and exit code 2; others are
    bugs and show a traceback. Being told to stop is no error, but ends with the shells' codes for it.
    """
    # Waiting BLAS threads cost more than they bring where cores are shared: up to ten times slower than one thread was
    # measured on two busy cores. Setting the variable to more is respected.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    logging.basicConfig(level=logging.WARNING, format="anemone: %(message)s")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # so that what is half-written is cleared away
    try:
        app()
    except AnemoneError as error:
        print(f"anemone: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        about = f"{error.filename}: " if error.filename else ""
        print(f"anemone: {about}{error.strerror or error}", file=sys.stderr)
        sys.exit(AnemoneError.exit_code)
    except SystemExit as end:
        if end.code in (INTERRUPTED, TERMINATED):  # the first is what typer makes of Ctrl-C
            print("\nanemone: stopped", file=sys.stderr)
        raise


if __name__ == "__main__":
    main()
