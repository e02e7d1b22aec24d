"""A run of a function beside its float32 run, op by op: how large values get, what is lost, and where it breaks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from anemone.ane.numerics import HAZARDS
from anemone.execute.compiler import Plan, Step
from anemone.execute.dtypes import Array
from anemone.execute.interface import convert_output
from anemone.execute.ops import DEFINITIONS
from anemone.execute.program import Program
from anemone.execute.state import State
from anemone.execute.traffic import bytes_read

MIN_SNR = 30.0
"""dB. Rounding to fp16 costs an operation no more than about 70 dB; 30 dB is an error of 3 %."""

_SMALLEST_NORMAL = np.float32(2.0**-14)


@dataclass(frozen=True)
class OpTrace:
    """What an operation gave. Shares are of its elements. ``snr_db`` compares with the float32 run, ``own_snr_db`` with
    float32 arithmetic on the same operands; None when nothing was lost or there is nothing to compare."""

    name: str
    kind: str
    shape: tuple[int, ...]
    max_abs: float | None
    subnormal: float
    inf: float
    nan: float
    snr_db: float | None
    own_snr_db: float | None
    bytes_read: int


@dataclass(frozen=True)
class Flag:
    """Something wrong at an operation. ``rule``: native, overflow, nan or snr; ``severity``: error or warning."""

    op: str
    kind: str
    rule: str
    severity: str
    message: str


@dataclass(frozen=True)
class Trace:
    """All operations of a run in order, and what is wrong with them."""

    function: str
    numerics: str
    ops: Sequence[OpTrace]
    flags: Sequence[Flag]
    outputs: Mapping[str, Any]

    @property
    def first_break(self) -> Flag | None:
        """The first operation that gives infinity, NaN or too much noise."""
        return next((flag for flag in self.flags if flag.rule != "native"), None)

    @property
    def bytes_read(self) -> int:
        return sum(op.bytes_read for op in self.ops)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without the outputs."""
        broken = self.first_break
        return {
            "function": self.function,
            "numerics": self.numerics,
            "bytes_read": self.bytes_read,
            "first_break": asdict(broken) if broken else None,
            "flags": [asdict(flag) for flag in self.flags],
            "ops": [asdict(op) for op in self.ops],
        }


def trace(
    program: Program,
    inputs: Mapping[str, ArrayLike],
    state: State | None = None,
    function: str | None = None,
    min_snr: float = MIN_SNR,
) -> Trace:
    """Run a function in the program's mode and in float32, in lock step on the same inputs.

    ``state`` ends as predict() would leave it. Operations are flagged that give infinity or NaN where float32 would not
    on the same operands, or whose own arithmetic leaves less than ``min_snr`` dB; in an ``ane`` mode also those that
    the hardware is known to compute badly. Raises ExecuteError as predict() does.
    """
    mirror = state.copy() if state is not None else None
    plan, values, outputs = program.bind(inputs, state, function)
    exact, exact_values, _ = program.with_numerics("float32").bind(inputs, mirror, function)
    states = program.functions[plan.function].states
    exact_values = {name: exact_values[name] if name in states else value for name, value in values.items()}
    run = _Run(plan, values, exact, exact_values)
    ops, flags = [], []
    with np.errstate(all="ignore"):
        for step, exact_step in zip(plan.steps, exact.steps, strict=True):
            found, born = run.advance(step, exact_step)
            ops.append(found)
            flags += _flags(found, born, min_snr, native=bool(program.numerics.chip))
        specs = program.functions[plan.function].outputs
        values = {name: run.slots[plan.places[name]] for name in outputs}
        results = {
            name: convert_output(value, plan.dtypes[name], program.numerics, specs.get(name))
            for name, value in values.items()
        }
    return Trace(plan.function, program.numerics.name, ops, flags, results)


class _Run:
    """Two plans of one function, each with its slots."""

    def __init__(self, plan: Plan, values: Mapping[str, Any], exact: Plan, exact_values: Mapping[str, Any]) -> None:
        self.plan, self.exact = plan, exact
        self.slots, self.exact_slots = plan.begin(values), exact.begin(exact_values)
        self._names = {place: name for name, place in exact.places.items()}

    def advance(self, step: Step, exact_step: Step) -> tuple[OpTrace, str]:
        """Both runs by one operation: what it gave, and whether infinity or NaN were born in it."""
        names = [name for group in step.op.inputs.values() for name in group if isinstance(name, str)]
        operands = {name: self.slots[self.plan.places[name]] for name in names}
        exempt = DEFINITIONS[step.op.kind].moves or step.bodies or step.op.kind.startswith("random_")
        alone = None if exempt else _alone(exact_step, [self._operand(i) for i in exact_step.operands])
        self.plan.advance(step, self.slots)
        self.exact.advance(exact_step, self.exact_slots)
        results = {
            var.name: self.slots[result.slot] for var, result in zip(step.op.outputs, step.results, strict=True)
        }
        first = next(iter(results.values()), None)
        sound = alone if alone is not None else _sum_of_ends(operands.values())
        reference = self.exact_slots[exact_step.results[0].slot] if results else None
        found = _describe(step, first, reference, alone, bytes_read(step.op, operands, self.plan.dtypes, results))
        for i, j in zip(step.dead, exact_step.dead, strict=True):
            self.slots[i] = self.exact_slots[j] = None
        return found, _born(first, sound)

    def _operand(self, exact_slot: int) -> Any:
        """What the float32 kernel takes from this slot, as this run has it."""
        name = self._names.get(exact_slot)
        return self.exact_slots[exact_slot] if name is None else self.slots[self.plan.places[name]]


def _alone(step: Step, operands: Sequence[Any]) -> Array | None:
    """The operation's first result in float32 on these operands."""
    given = [x.astype(np.float32) if getattr(x, "dtype", None) == np.float16 else x for x in operands]
    result = step.run(*given)
    if isinstance(result, tuple):
        result = result[0] if result else None
    return None if result is None else np.asarray(result)


def _sum_of_ends(operands: Iterable[Any]) -> Array | None:
    """A number that is finite when all operands are."""
    floats = [x for x in operands if isinstance(x, np.ndarray) and x.dtype.kind == "f" and x.size]
    return np.array(sum(float(x.max()) + float(x.min()) for x in floats)) if floats else None


def _born(value: Any, sound: Array | None) -> str:
    """ "nan" or "overflow" where the result is not finite although ``sound``, of its shape or one number, is."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or sound is None:
        return ""
    fine = np.isfinite(sound)
    if fine.shape not in ((), value.shape):
        return ""
    if bool(np.any(np.isnan(value) & fine)):
        return "nan"
    return "overflow" if bool(np.any(np.isinf(value) & fine)) else ""


def _describe(step: Step, value: Any, reference: Any, alone: Array | None, size: int) -> OpTrace:
    op, array = step.op, np.asarray(value if value is not None else 0)
    if value is None or array.dtype.kind != "f" or not array.size:
        return OpTrace(op.name, op.kind, array.shape, None, 0.0, 0.0, 0.0, None, None, size)
    magnitude = np.abs(array)
    finite = magnitude[np.isfinite(magnitude)]
    half = op.outputs[0].dtype == "fp16"
    return OpTrace(
        name=op.name,
        kind=op.kind,
        shape=array.shape,
        max_abs=float(finite.max()) if finite.size else None,
        subnormal=float(np.mean((magnitude > 0) & (magnitude < _SMALLEST_NORMAL))) if half else 0.0,
        inf=float(np.mean(np.isinf(array))),
        nan=float(np.mean(np.isnan(array))),
        snr_db=snr(reference, array),
        own_snr_db=None if alone is None else snr(alone, array),
        bytes_read=size,
    )


def snr(reference: Array, value: Array) -> float | None:
    """10 log10(signal / noise) over the elements that are finite in both; None when equal or of other shapes."""
    if reference.shape != value.shape:
        return None
    a, b = np.asarray(reference, np.float64).reshape(-1), np.asarray(value, np.float64).reshape(-1)
    both = np.isfinite(a) & np.isfinite(b)
    signal, noise = float(np.sum(a[both] ** 2)), float(np.sum((a[both] - b[both]) ** 2))
    if noise == 0:
        return None
    return float(10 * np.log10(max(signal, 1e-300) / noise))


def _flags(op: OpTrace, born: str, min_snr: float, native: bool) -> list[Flag]:
    found = []
    for hazard in HAZARDS if native else ():
        if hazard.kind == op.kind:
            message = f"{hazard.says}; emit {hazard.instead} ({hazard.source})"
            found.append(Flag(op.name, op.kind, "native", hazard.severity, message))
    if born:
        share, what = (op.nan, "NaN") if born == "nan" else (op.inf, "infinite")
        found.append(Flag(op.name, op.kind, born, "error", f"{share:.2%} of its values are {what}"))
    if op.own_snr_db is not None and op.own_snr_db < min_snr:
        noise = f"its result is only {op.own_snr_db:.1f} dB above its error; {op.subnormal:.0%} of it is subnormal"
        found.append(Flag(op.name, op.kind, "snr", "error", noise))
    return found
