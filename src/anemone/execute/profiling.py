"""Where the time of a run goes, by kind of operation."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from anemone.errors import ExecuteError
from anemone.execute.program import Program
from anemone.execute.state import State
from anemone.execute.traffic import weight_bytes


@dataclass(frozen=True)
class KindTime:
    """All operations of a kind in one run: how many, seconds, and bytes read from weight files."""

    kind: str
    calls: int
    seconds: float
    weight_bytes: int


@dataclass(frozen=True)
class Profile:
    """Means over ``runs`` runs, slowest kind first."""

    function: str
    numerics: str
    runs: int
    seconds: float
    kinds: Sequence[KindTime]

    @property
    def weight_bytes(self) -> int:
        return sum(kind.weight_bytes for kind in self.kinds)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "weight_bytes": self.weight_bytes}


def profile(
    program: Program,
    inputs: Mapping[str, ArrayLike],
    state: State | None = None,
    function: str | None = None,
    runs: int = 3,
) -> Profile:
    """Time a function op by op, after one run that is not counted. ``state`` ends as after all those runs.

    Seconds include what the executor itself spends per operation. Raises ExecuteError as predict() does.
    """
    if runs < 1:
        raise ExecuteError(f"runs is {runs}, the least is 1")
    program.predict(inputs, state, function)
    seconds: dict[str, float] = {}
    counts: dict[str, int] = {}
    weights: dict[str, int] = {}
    for run in range(runs):
        plan, values, _ = program.bind(inputs, state, function, fused=True)
        slots = plan.begin(values)
        with np.errstate(all="ignore"):
            for step in plan.steps:
                kind, begun = step.op.kind, perf_counter()
                plan.advance(step, slots)
                seconds[kind] = seconds.get(kind, 0.0) + perf_counter() - begun
                if run == 0:
                    counts[kind] = counts.get(kind, 0) + 1
                    results = {str(result.slot): slots[result.slot] for result in step.results}
                    weights[kind] = weights.get(kind, 0) + weight_bytes(step.op, results)
                for i in step.dead:
                    slots[i] = None
    order = sorted(seconds, key=lambda kind: -seconds[kind])
    kinds = [KindTime(kind, counts[kind], seconds[kind] / runs, weights[kind]) for kind in order]
    return Profile(plan.function, program.numerics.name, runs, sum(k.seconds for k in kinds), kinds)
