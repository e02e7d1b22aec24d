"""Which state updates may overwrite the state's memory, decided once per function.

The usual cache write is read_state, slice_update, write_state. Copying the whole cache for it would cost more than
the attention that reads it. It may be done in place when nobody can tell: no other value that may share the state's
memory is used after the update, and the updated value is written to the same state before the state is read again.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from anemone.execute.reader import Op

_NEVER = -1


@dataclass(frozen=True)
class StateUse:
    """Indices of operations: slice_updates that overwrite their operand, write_states that take over their operand."""

    in_place: frozenset[int]
    adopt: frozenset[int]


def names_of(op: Op) -> list[str]:
    """The values that an operation uses, those inside its blocks included."""
    names = [operand for operands in op.inputs.values() for operand in operands if isinstance(operand, str)]
    for block in op.blocks:
        names += [name for inner in block.ops for name in names_of(inner)]
        names += block.outputs
    return names


def last_uses(ops: Sequence[Op], outputs: Collection[str]) -> dict[str, int]:
    """The index of the last operation that uses each value; outputs are used after the end."""
    last = {name: index for index, op in enumerate(ops) for name in names_of(op)}
    return last | dict.fromkeys(outputs, len(ops))


def analyse(ops: Sequence[Op], outputs: Collection[str], moves: Mapping[str, bool]) -> StateUse:
    """moves: for each kind of operation, whether its results may share memory with its operands."""
    if any(op.blocks for op in ops):
        return StateUse(frozenset(), frozenset())
    last = last_uses(ops, outputs)
    sharing: dict[str, set[str]] = {}  # state -> values that may share its memory
    whole: dict[str, str] = {}  # value -> the state whose array it is
    fresh: set[str] = set()  # values in memory of their own
    in_place, adopt = set(), set()
    for index, op in enumerate(ops):
        produced = [var.name for var in op.outputs]
        if op.kind == "read_state":
            state = _name(op, "input")
            whole[produced[0]] = state
            sharing.setdefault(state, set()).add(produced[0])
        elif op.kind == "write_state":
            data = _name(op, "data")
            if data in fresh and last[data] == index:
                adopt.add(index)
        elif op.kind == "slice_update":
            found = whole.get(_name(op, "x"))
            unused = found is not None and all(last.get(v, _NEVER) <= index for v in sharing[found])
            if found is not None and unused and _is_written(ops, index, found):
                in_place.add(index)
                whole[produced[0]] = found
                sharing[found].add(produced[0])
            else:
                fresh.add(produced[0])
        elif moves[op.kind]:
            used = set(names_of(op))
            for values in sharing.values():
                if used & values:
                    values.update(produced)
        else:
            fresh.update(produced)
    return StateUse(frozenset(in_place), frozenset(adopt))


def _name(op: Op, key: str) -> str:
    operand = op.inputs[key][0]
    return operand if isinstance(operand, str) else ""


def _is_written(ops: Sequence[Op], index: int, state: str) -> bool:
    """Whether the slice_update at ``index``, or an update of its result, is what the state is written with next."""
    current = ops[index].outputs[0].name
    for op in ops[index + 1 :]:
        if op.kind == "read_state" and _name(op, "input") == state:
            return False
        if op.kind == "write_state" and _name(op, "input") == state:
            return _name(op, "data") == current
        if op.kind == "slice_update" and _name(op, "x") == current:
            current = op.outputs[0].name
    return False
