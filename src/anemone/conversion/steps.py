"""ANEMLL's eight steps, by which people restart or repeat parts of a conversion."""

from dataclasses import dataclass

from anemone.errors import RecipeError

STEPS = {"embeddings": (1,), "lm_head": (2,), "chunk": (3, 4, 5)}
"""ANEMLL's step numbers by kind of part; a chunk is written with all its functions, so its three steps are one."""

COMPILE, COMPLETE, TEST = 6, 7, 8
"""The other steps: coremlcompiler (macOS only); tokenizer files and metadata; verification."""


@dataclass(frozen=True)
class Steps:
    """Which of ANEMLL's eight steps to run: all, all with those from ``restart`` on done again, or ``only`` one."""

    restart: int | None = None
    only: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("restart", self.restart), ("only", self.only)):
            if value is not None and not 1 <= value <= TEST:
                raise RecipeError(f"{name} is {value}, the steps are 1 to {TEST}")
        if self.restart and self.only:
            raise RecipeError(f"restart {self.restart} and only {self.only} exclude each other; give one of them")

    def wanted(self, *steps: int) -> bool:
        return self.only is None or self.only in steps

    def again(self, *steps: int) -> bool:
        """Whether to redo steps whose result is there."""
        return self.only in steps or (self.restart is not None and max(steps) >= self.restart)
