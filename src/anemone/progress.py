"""How long work reports on itself: stages with a total, advanced in steps. The library tells, the caller shows."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Stage(Protocol):
    def advance(self, amount: float) -> None:
        """``amount`` more of the stage's total is done."""


class Progress(Protocol):
    @contextmanager
    def stage(self, name: str, total: float, unit: str) -> Iterator[Stage]:
        """Work on ``name`` inside the block; ``total`` counts ``unit`` (MB or tokens)."""
        ...

    def note(self, text: str) -> None:
        """One line that people should see."""


class Silent:
    """Reports nothing."""

    @contextmanager
    def stage(self, name: str, total: float, unit: str) -> Iterator["Silent"]:
        yield self

    def advance(self, amount: float) -> None:
        pass

    def note(self, text: str) -> None:
        pass
