"""The command ``anemone``: one small module per command, heavy imports inside the commands."""

import logging
import os
import sys

import typer

from anemone.cli import convert, diff, execute, generate, inspect, plan, verify
from anemone.errors import AnemoneError

app = typer.Typer(
    name="anemone",
    help="Language models for the Apple Neural Engine: convert, verify and run Core ML packages on any machine.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("plan")(plan.command)
app.command("convert")(convert.command)
app.command("verify")(verify.command)
app.command("generate")(generate.command)
app.command("inspect")(inspect.command)
app.command("execute")(execute.command)
app.command("diff")(diff.command)


def main() -> None:
    """Run the command line; our errors become one line and their exit code, others are bugs and show a traceback."""
    # Waiting BLAS threads cost more than they bring where cores are shared: up to ten times slower than one thread was
    # measured on two busy cores. Setting the variable to more is respected.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    logging.basicConfig(level=logging.WARNING, format="anemone: %(message)s")
    try:
        app()
    except AnemoneError as error:
        print(f"anemone: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("anemone: stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
