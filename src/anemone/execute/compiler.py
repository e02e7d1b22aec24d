"""From a function to a plan: kernels in order, each with the slots of its operands, results and dead values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from anemone.errors import AnemoneError, ExecuteError
from anemone.execute.damage import blamed_on
from anemone.execute.dtypes import Array, Shape, carrier_type
from anemone.execute.fusion import fuse
from anemone.execute.inplace import analyse, last_uses
from anemone.execute.numerics import Numerics
from anemone.execute.ops import DEFINITIONS, Kernel, Node
from anemone.execute.ops.fused import FUSED
from anemone.execute.reader import Block, Function, Op, Operand, Var
from anemone.execute.stored import Stored
from anemone.execute.weights import Weights

Observer = Callable[[str, str, Mapping[str, Array]], None]
_KNOWN = DEFINITIONS | FUSED
_VARIADIC = 0x04  # a code object's flag for *parameters
_COLLECTIONS = ("list", "dictionary")  # types of values that are no tensors


@dataclass(frozen=True, slots=True)
class Result:
    """One output of a kernel: where it goes and what it must become.

    ``carrier``: None for a list or a dictionary. ``shape``: None when it varies.
    """

    slot: int
    carrier: np.dtype[Any] | None
    store: Callable[..., Any] | None
    shape: Shape | None


@dataclass(slots=True)
class Step:
    """One kernel call: the slots of its operands, its results, and the slots that nobody needs afterwards."""

    op: Op
    run: Kernel
    operands: tuple[int, ...]
    results: tuple[Result, ...]
    dead: tuple[int, ...]
    bodies: tuple["Body", ...] = ()


@dataclass(frozen=True, slots=True)
class Body:
    """A block inside an operation, which works on the slots of its function."""

    inputs: tuple[int, ...]
    steps: Sequence[Step]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """A prepared function. ``slots`` holds the constants; ``places`` and ``dtypes``: where and what each value is."""

    function: str
    steps: Sequence[Step]
    slots: Sequence[Any]
    places: Mapping[str, int]
    dtypes: Mapping[str, str]

    def execute(self, values: Mapping[str, Any], outputs: Sequence[str], observe: Observer | None) -> list[Array]:
        """Run all kernels on the given inputs (and states) and return the named values."""
        slots = self.begin(values)
        self._run(self.steps, slots, observe)
        return [slots[self.places[name]] for name in outputs]

    def _run(self, steps: Sequence[Step], slots: list[Any], observe: Observer | None) -> None:
        for step in steps:
            self.advance(step, slots, observe)
            if observe is not None:
                named = zip(step.op.outputs, step.results, strict=True)
                tensors = {var.name: slots[r.slot] for var, r in named if r.carrier is not None}
                observe(step.op.name, step.op.kind, tensors)
            for i in step.dead:
                slots[i] = None

    def _enter(self, body: Body, slots: list[Any], observe: Observer | None, *values: Any) -> tuple[Any, ...]:
        """Run a nested block on its inputs and return its results."""
        for slot, value in zip(body.inputs, values, strict=True):
            slots[slot] = value
        self._run(body.steps, slots, observe)
        return tuple(slots[i] for i in body.outputs)

    def begin(self, values: Mapping[str, Any]) -> list[Any]:
        """Fresh slots with the given inputs (and states)."""
        slots = list(self.slots)
        for name, value in values.items():
            slots[self.places[name]] = value
        return slots

    def advance(self, step: Step, slots: list[Any], observe: Observer | None = None) -> None:
        """Run one kernel. The caller empties the dead slots. ``observe``: for what runs inside its blocks."""
        try:
            operands = [slots[i] for i in step.operands]
            if step.bodies:
                operands.insert(0, [partial(self._enter, body, slots, observe) for body in step.bodies])
            _keep(step, step.run(*operands), operands, slots)
        except MemoryError as error:
            raise ExecuteError(f"{_where(step.op, self.function)} needs more memory than there is") from error
        except AnemoneError as error:
            raise ExecuteError(f"{_where(step.op, self.function)}: {error}") from error
        except Exception as error:
            raise ExecuteError(f"{_where(step.op, self.function)} failed: {error}") from error


def _keep(step: Step, computed: Any, operands: Sequence[Any], slots: list[Any]) -> None:
    """Store what a kernel computed as the tensors that its outputs are declared to be."""
    results = step.results
    values = (computed,) if len(results) == 1 else computed or ()
    if len(values) != len(results):
        raise ExecuteError(f"it has {len(results)} outputs, but {len(values)} were computed")
    for value, result in zip(values, results, strict=True):
        if result.carrier is None:
            slots[result.slot] = value
            continue
        array = np.asarray(value, result.carrier)
        if result.shape is not None and array.shape != result.shape:
            raise ExecuteError(f"its result is declared as {list(result.shape)}, but came out as {list(array.shape)}")
        if result.store is not None:
            array = result.store(array, array if _is_fresh(array, operands) else None)
        slots[result.slot] = array


def _is_fresh(array: Array, operands: Sequence[Any]) -> bool:
    """Whether nobody else can see the memory of a kernel's result, so that it may be rounded where it is."""
    owner = array if array.base is None else array.base
    if not (isinstance(owner, np.ndarray) and owner.flags.owndata and array.flags.carray):
        return False
    return all(owner is not x and owner is not getattr(x, "base", None) for x in operands)


def _where(op: Op, function: str) -> str:
    return f"op {op.kind} {op.name!r} of function {function!r}"


def compile_function(function: Function, weights: Weights, numerics: Numerics, fused: bool = True) -> Plan:
    """Prepare a function. ``fused``: chains of operations may become one kernel, with the same results.

    Raises ExecuteError for operations that are not known or not as MIL defines them.
    """
    with blamed_on(f"function {function.name!r}"):
        return _Compiler(function, weights, numerics).plan(fused)


class _Compiler:
    def __init__(self, function: Function, weights: Weights, numerics: Numerics) -> None:
        self.function, self.weights, self.numerics = function, weights, numerics
        self.slots: list[Any] = []
        self.places: dict[str, int] = {}
        self.dtypes: dict[str, str] = {}
        self.defined: set[str] = set()  # the names of the current block

    def plan(self, fused: bool) -> Plan:
        body = self.function.body
        self._check_kinds(body)
        if fused:
            body = fuse(body, self.function.inputs, self.numerics.kernels.keys())
        for var in self.function.inputs:
            self._place(var)
        moves = {kind: definition.moves for kind, definition in _KNOWN.items()}
        states = analyse(body.ops, body.outputs, moves)
        steps = [self._step(op, i in states.in_place, i in states.adopt) for i, op in enumerate(body.ops)]
        for name in body.outputs:
            self._result(name)
        self._mark_dead(body, steps)
        return Plan(self.function.name, steps, self.slots, self.places, self.dtypes)

    def _check_kinds(self, block: Block) -> None:
        for op in block.ops:
            if op.kind not in DEFINITIONS:
                raise ExecuteError(
                    f"{_where(op, self.function.name)} is not supported; supported are {', '.join(sorted(DEFINITIONS))}"
                )
            for inner in op.blocks:
                self._check_kinds(inner)

    def _body(self, block: Block) -> Body:
        """A nested block: it sees the values around it, and nobody outside sees its own."""
        around = self.places, self.dtypes, self.defined
        self.places, self.dtypes, self.defined = dict(self.places), dict(self.dtypes), set()
        inputs = tuple(self._place(var) for var in block.inputs)
        steps = [self._step(op, False, False) for op in block.ops]
        outputs = tuple(self._result(name) for name in block.outputs)
        self._mark_dead(block, steps)
        self.places, self.dtypes, self.defined = around
        return Body(inputs, steps, outputs)

    def _result(self, name: str) -> int:
        """The slot of a block's result, which may be a constant."""
        if name in self.function.constants:
            constant = self.function.constants[name]
            self.places[name] = self._constant(self.weights.array(constant))
            self.dtypes[name] = constant.dtype
        elif name not in self.places:
            raise ExecuteError(f"function {self.function.name!r} returns {name!r}, which nothing computes")
        return self.places[name]

    def _place(self, var: Var) -> int:
        if var.name in self.defined:
            raise ExecuteError(f"function {self.function.name!r} defines {var.name!r} twice")
        self.defined.add(var.name)
        self.places[var.name] = self._constant(None)
        self.dtypes[var.name] = var.dtype
        return self.places[var.name]

    def _constant(self, value: Any) -> int:
        self.slots.append(value)
        return len(self.slots) - 1

    def _step(self, op: Op, in_place: bool, adopt: bool) -> Step:
        definition = _KNOWN[op.kind]
        store = self.numerics.store if op.outputs and op.outputs[0].dtype == "fp16" else None
        try:
            prepare = self.numerics.kernels.get(op.kind, definition.prepare)
            run = prepare(Node(op, self.weights, in_place, adopt, store))
            operands = self._operands(op, run)
        except ExecuteError as error:
            raise ExecuteError(f"{_where(op, self.function.name)}: {error}") from error
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ExecuteError(f"{_where(op, self.function.name)} is not as MIL defines it: {error!r}") from error
        bodies = tuple(self._body(block) for block in op.blocks)
        results = tuple(self._declared(op, var, definition.moves) for var in op.outputs)
        return Step(op, run, operands, results, (), bodies)

    def _declared(self, op: Op, var: Var, moved: bool) -> Result:
        carrier = carrier_type(var.dtype)
        if carrier is None and var.dtype not in _COLLECTIONS:
            raise ExecuteError(f"{_where(op, self.function.name)} gives a {var.dtype}, which is not supported")
        store = self.numerics.store if var.dtype == "fp16" and not moved else None
        shape = None if carrier is None or -1 in var.shape else var.shape
        return Result(self._place(var), carrier, store, shape)

    def _operands(self, op: Op, run: Kernel) -> tuple[int, ...]:
        """Slots for the kernel's parameters, which are named as MIL's operands."""
        code = run.__code__
        names = code.co_varnames[1 if op.blocks else 0 : code.co_argcount]  # the first parameter takes the blocks
        defaults = run.__defaults__ or ()
        slots = []
        for position, name in enumerate(names):
            given = op.inputs.get(name, ())
            if len(given) == 1:
                slots.append(self._operand(given[0]))
            elif given:
                raise ExecuteError(f"its operand {name} has {len(given)} values instead of one")
            elif position >= len(names) - len(defaults):
                slots.append(self._constant(defaults[position - len(names) + len(defaults)]))
            else:
                raise ExecuteError(f"its operand {name} is missing")
        if code.co_flags & _VARIADIC:
            slots += [self._operand(operand) for operand in op.inputs.get(code.co_varnames[code.co_argcount], ())]
        return tuple(slots)

    def _operand(self, operand: Operand) -> int:
        if not isinstance(operand, Stored):
            if operand not in self.places:
                raise ExecuteError(f"it uses {operand!r} before anything computes it")
            return self.places[operand]
        if operand.shape:
            return self._constant(self.weights.array(operand))
        return self._constant(operand.array().item())  # a Python number takes the type of the other operand

    def _mark_dead(self, block: Block, steps: Sequence[Step]) -> None:
        last = last_uses(block.ops, block.outputs)
        own = self.defined - {var.name for var in self.function.inputs if var.state}
        unused = {var.name for op in block.ops for var in op.outputs} - set(last)
        for index, (op, step) in enumerate(zip(block.ops, steps, strict=True)):
            names = {name for name, use in last.items() if use == index and name in own}
            names |= {var.name for var in op.outputs if var.name in unused}
            step.dead = tuple(self.places[name] for name in names)
