"""Two programs on the same inputs: how far their outputs lie apart, and at which operation they part."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from anemone.execute.dtypes import Array
from anemone.execute.program import Program
from anemone.execute.signature import TensorSpec
from anemone.execute.tracing import snr

MIN_SNR = 40.0
"""dB: an error of 1 %."""

_LISTED = 5  # names of differing weights


@dataclass(frozen=True)
class Distance:
    """Between two tensors, over the elements that are finite in both. ``snr_db`` is None when these are equal;
    ``unlike``: elements of which only one is finite, or all of them when the shapes differ."""

    name: str
    max_abs: float
    rel_l2: float
    cosine: float | None
    snr_db: float | None
    unlike: int

    @property
    def equal(self) -> bool:
        return self.snr_db is None and not self.unlike

    def within(self, tolerance: float | None, min_snr: float | None) -> bool:
        """Whether no element is further apart than ``tolerance`` and the noise stays ``min_snr`` dB below."""
        near = tolerance is None or self.max_abs <= tolerance
        clear = min_snr is None or self.snr_db is None or self.snr_db >= min_snr
        return near and clear and not self.unlike


@dataclass(frozen=True)
class Comparison:
    """``structure``: differences that need no run. ``unmatched``: outputs of one side. ``stepped``: whether the graphs
    match, so that ``first_difference`` and ``parts_at`` name operations: the first that is not the same to the bit, and
    the first beyond the limits."""

    structure: Sequence[str]
    outputs: Sequence[Distance]
    unmatched: Sequence[str]
    stepped: bool = False
    first_difference: Distance | None = None
    parts_at: Distance | None = None
    tolerance: float | None = None
    min_snr: float | None = None

    @property
    def passed(self) -> bool:
        return not self.unmatched and all(d.within(self.tolerance, self.min_snr) for d in self.outputs)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"passed": self.passed, **asdict(self)}


@dataclass
class _Partings:
    """The first operations that differ."""

    tolerance: float | None
    min_snr: float | None
    first: Distance | None = None
    beyond: Distance | None = None

    def see(self, found: Distance) -> None:
        if self.first is None and not found.equal:
            self.first = found
        if self.beyond is None and not found.within(self.tolerance, self.min_snr):
            self.beyond = found


def compare(
    a: Program,
    b: Program,
    inputs: Mapping[str, ArrayLike],
    function: str | None = None,
    tolerance: float | None = None,
    min_snr: float | None = MIN_SNR,
) -> Comparison:
    """Run the function of both (A's default when None) with fresh states, operation by operation when the graphs match.

    Raises ExecuteError when one of them cannot run on these inputs.
    """
    name = function or a.default_function
    own = name if name in b.functions else b.default_function
    structure = list(differences(a, b))
    if [op.kind for op in a.graph(name).body.ops] != [op.kind for op in b.graph(own).body.ops]:
        found, expected = a.predict(inputs, a.new_state(), name), b.predict(inputs, b.new_state(), own)
        structure.append(f"the operations of function {name!r} differ, so only outputs are compared")
        return Comparison(structure, *compare_outputs(found, expected), tolerance=tolerance, min_snr=min_snr)
    seen = _Partings(tolerance, min_snr)
    found, expected = _together(a, b, inputs, name, own, seen)
    outputs = compare_outputs(found, expected)
    return Comparison(structure, *outputs, True, seen.first, seen.beyond, tolerance, min_snr)


def _together(
    a: Program, b: Program, inputs: Mapping[str, ArrayLike], name: str, own: str, seen: _Partings
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The outputs of both, run in lock step."""
    runs = [_steps(a, inputs, name), _steps(b, inputs, own)]
    results: list[dict[str, Array]] = [{}, {}]
    for left, right in zip(*runs, strict=True):
        for result, step in zip(results, (left, right), strict=True):
            result.update({key: value.copy() for key, value in step[2].items()})
        if left[1] is not None and right[1] is not None:
            seen.see(distance(left[0], left[1], right[1]))
    return results[0], results[1]


def _steps(
    program: Program, inputs: Mapping[str, ArrayLike], function: str
) -> Iterator[tuple[str, Array | None, dict[str, Array]]]:
    """After each operation: its name, its first result, and which outputs it made."""
    plan, values, outputs = program.bind(inputs, program.new_state(), function)
    slots = plan.begin(values)
    made = {name: slots[plan.places[name]] for name in outputs}
    yield "", None, {name: np.asarray(value) for name, value in made.items() if value is not None}
    for step in plan.steps:
        with np.errstate(all="ignore"):
            plan.advance(step, slots)
        value = slots[step.results[0].slot] if step.results else None
        array = np.asarray(value) if isinstance(value, np.ndarray) else None
        names = [var.name for var in step.op.outputs if var.name in outputs]
        yield f"{step.op.kind} {step.op.name}", array, {name: slots[plan.places[name]] for name in names}
        for i in step.dead:
            slots[i] = None


def compare_outputs(
    found: Mapping[str, Array], expected: Mapping[str, Array]
) -> tuple[list[Distance], list[str]]:
    """The distances of outputs of one name, and the names that only one side has."""
    both = [name for name in found if name in expected]
    alone = sorted(set(found) ^ set(expected))
    return [distance(name, np.asarray(found[name]), np.asarray(expected[name])) for name in both], alone


def distance(name: str, found: Array, expected: Array) -> Distance:
    """How far ``found`` lies from ``expected``."""
    if found.shape != expected.shape:
        return Distance(name, float("inf"), float("inf"), None, None, max(found.size, expected.size))
    if found.dtype.kind not in "fiub" or expected.dtype.kind not in "fiub":  # labels, probabilities by label
        return Distance(name, 0.0, 0.0, None, None, int(np.sum(found != expected)))
    x, y = found.astype(np.float64).reshape(-1), expected.astype(np.float64).reshape(-1)
    finite = np.isfinite(x) & np.isfinite(y)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    unlike = int(np.sum(~finite & ~same))
    x, y = x[finite], y[finite]
    if not x.size:
        return Distance(name, 0.0, 0.0, None, None, unlike)
    length, other = float(np.linalg.norm(y)), float(np.linalg.norm(x))
    apart = float(np.linalg.norm(x - y))
    cosine = float(x @ y / (length * other)) if length and other else None
    rel = apart / length if length else float(apart > 0)
    return Distance(name, float(np.max(np.abs(x - y))), rel, cosine, snr(y, x), unlike)


def differences(a: Program, b: Program) -> Iterator[str]:
    """What differs without running: functions, inputs, outputs, states, weights by the hash of their values."""
    for one, other, side in ((a, b, "first"), (b, a, "second")):
        if missing := [name for name in one.functions if name not in other.functions]:
            yield f"only the {side} has {'functions' if len(missing) > 1 else 'function'} {', '.join(missing)}"
    for name in (name for name in a.functions if name in b.functions):
        for role in ("inputs", "outputs", "states"):
            one, other = (getattr(program.functions[name], role) for program in (a, b))
            for key in dict.fromkeys([*one, *other]):
                left, right = _words(one.get(key)), _words(other.get(key))
                if left != right:
                    yield f"function {name}: {role[:-1]} {key} is {left} in the first, {right} in the second"
    yield from _weights(a, b)


def _words(spec: TensorSpec | None) -> str:
    return "absent" if spec is None else f"{spec.dtype} {spec.accepted()}".strip()


def _weights(a: Program, b: Program) -> Iterator[str]:
    one, other = (list(program.weight_names()) for program in (a, b))
    for names, against, side in ((one, other, "first"), (other, one, "second")):
        alone = [name for name in names if name not in set(against)]
        if alone:
            yield f"only the {side} has {_listed(alone)}"
    known = set(other)
    changed = [name for name in one if name in known and _hash(a.weight(name)) != _hash(b.weight(name))]
    if changed:
        yield f"other values: {_listed(changed)}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{'weights' if len(names) > 1 else 'weight'} {', '.join(islice(names, _LISTED))}{more}"


def _hash(array: Array) -> bytes:
    return sha256(f"{array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes()).digest()
