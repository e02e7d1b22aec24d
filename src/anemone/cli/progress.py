"""Progress on standard error: a live bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from anemone.progress import Progress, Stage

LINE_SECONDS = 20
"""Plain output says something at least this often."""


def make_progress() -> Progress:
    return Bars() if sys.stderr.isatty() else Lines()


class Bars:
    """A bar with rate and time left while a stage runs, one line when it is done."""

    @contextmanager
    def stage(self, name: str, total: float, unit: str) -> Iterator[Stage]:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} " + unit),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(compact=True),
        )
        begun = time.monotonic()
        with Progress(*columns, console=console, transient=True) as bar:
            yield _BarStage(bar, bar.add_task(name, total=total, rate=""), unit)
        console.print(_done(name, total, unit, begun), highlight=False)

    def note(self, text: str) -> None:
        print(text, file=sys.stderr)


class _BarStage:
    def __init__(self, bar: "rich.progress.Progress", task: "rich.progress.TaskID", unit: str) -> None:  # type: ignore[name-defined]  # noqa: F821
        self._bar, self._task, self._unit = bar, task, unit

    def advance(self, amount: float) -> None:
        self._bar.advance(self._task, amount)
        speed = self._bar.tasks[0].speed
        self._bar.update(self._task, rate=f"{speed:.0f} {self._unit}/s" if speed else "")


class Lines:
    """A line at the start and the end of a stage, and now and then between."""

    @contextmanager
    def stage(self, name: str, total: float, unit: str) -> Iterator[Stage]:
        begun = time.monotonic()
        print(f"{name} ...", file=sys.stderr, flush=True)
        yield _LineStage(name, total, unit, begun)
        print(_done(name, total, unit, begun), file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class _LineStage:
    def __init__(self, name: str, total: float, unit: str, begun: float) -> None:
        self._name, self._total, self._unit, self._begun = name, total, unit, begun
        self._done, self._said = 0.0, begun

    def advance(self, amount: float) -> None:
        self._done += amount
        now = time.monotonic()
        if now - self._said < LINE_SECONDS or not self._done:
            return
        self._said = now
        left = (now - self._begun) * (self._total - self._done) / self._done
        state = f"{self._done:.0f}/{self._total:.0f} {self._unit}, {max(left, 0):.0f} s left"
        print(f"  {self._name}: {state}", file=sys.stderr, flush=True)


def _done(name: str, total: float, unit: str, begun: float) -> str:
    return f"{name}: {total:.0f} {unit} in {time.monotonic() - begun:.1f} s"
