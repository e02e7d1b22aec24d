"""What a verification measured, the limits it is held to, and where the package first parts from the reference."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anemone.evaluate.divergence import Divergence

MIN_TOP1 = 0.99
MAX_MEAN_KL = 1e-3
MAX_STAGE_ERROR = 0.04
"""A stage with a row of a larger relative error is named as the place where package and reference part."""

MAX_ONE_ROW_ERROR = 0.02
"""Relative error of the functions for one row, which decode, to those for a batch; fp16 noise is ten times smaller."""


@dataclass(frozen=True)
class Gate:
    """One limit: ``value`` must not be on the wrong side of ``limit``."""

    name: str
    value: float
    limit: float
    passed: bool


@dataclass
class Report:
    """What a verification measured: ``graph`` against the bundle's own weights, ``checkpoint`` against the source's.

    choices: an argmax head's choices against its own logits. misplaced: stored values that are not what the checkpoint
    gives. one_row_error: the worst relative error of the functions for one row to those for a batch. diverged: the
    first place where package and reference part.
    """

    graph: Divergence = field(default_factory=Divergence)
    checkpoint: Divergence = field(default_factory=Divergence)
    choices: Divergence = field(default_factory=Divergence)
    nonfinite: int = 0
    misplaced: int = 0
    one_row_error: float = 0.0
    diverged: str = ""
    gates: tuple[Gate, ...] = ()

    def saw_one_row(self, error: float) -> None:
        """Keep the worst one-row error; a NaN stays one, and fails its gate."""
        self.one_row_error = float(np.maximum(self.one_row_error, error))

    @property
    def passed(self) -> bool:
        return all(gate.passed for gate in self.gates)

    @property
    def failure(self) -> str:
        """The missed gates in words, and where the package first parts from the reference; empty when passed."""
        missed = [
            f"{gate.name} is {gate.value if isinstance(gate.value, int) else f'{gate.value:.4g}'}, "
            f"the limit is {gate.limit:g}"
            for gate in self.gates
            if not gate.passed
        ]
        where = [f"first divergence at {self.diverged}"] if self.diverged else []
        return "; ".join(missed + where) if missed else ""

    def as_dict(self) -> dict[str, Any]:
        return {
            **self.graph.as_dict(),
            "nan_count": self.nonfinite,
            "misplaced_weights": self.misplaced,
            "one_row_error": self.one_row_error,
            "checkpoint": self.checkpoint.as_dict(),
            "passed": self.passed,
            "gates": [vars(gate) for gate in self.gates],
            "first_divergence": self.diverged or None,
        }


def gates(report: Report, max_kl: float | None) -> tuple[Gate, ...]:
    """The limits; ``max_kl`` adds one on the mean KL from the checkpoint."""
    found = [
        Gate("nan_count", report.nonfinite, 0, report.nonfinite == 0),
        Gate("misplaced_weights", report.misplaced, 0, report.misplaced == 0),
        _top1_gate(report),
        Gate("one_row_error", report.one_row_error, MAX_ONE_ROW_ERROR, report.one_row_error <= MAX_ONE_ROW_ERROR),
    ]
    limits = (("mean_kl", report.graph.mean_kl, MAX_MEAN_KL), ("checkpoint_mean_kl", report.checkpoint.mean_kl, max_kl))
    found += [
        Gate(name, value, limit, value <= limit)
        for name, value, limit in limits
        if value is not None and limit is not None
    ]
    if report.choices.rows:
        found.append(Gate("argmax_agreement", report.choices.top1, 1.0, report.choices.top1 == 1.0))
    return tuple(found)


def _top1_gate(report: Report) -> Gate:
    """Agreement itself where it suffices; else ties of the two likeliest tokens in fp16 count as agreement."""
    agreement = report.graph.top1 if report.graph.top1 >= MIN_TOP1 else report.graph.top1_or_tie
    return Gate("top1_agreement", agreement, MIN_TOP1, agreement >= MIN_TOP1)
