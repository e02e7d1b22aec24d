"""What coremltools does to every program that it writes, as a step from IR to IR."""

from collections.abc import Iterator
from dataclasses import replace

from anemone.graph.ir import Function, Op, Value


def tidy(function: Function) -> Function:
    """Every input has a reader, and no state is read for nothing.

    coremltools gives an input that nothing reads (position_ids of a one-row function) an ``identity``, so no shipped
    package shows how Core ML takes one without; and it closes an update of a state with a read only if that is read.
    """
    read = {value.name for op in function.ops for value in values_of(op)} | {value.name for value in function.outputs}
    ops = [op for op in function.ops if op.kind != "read_state" or op.outputs[0].name in read]
    unread = [value for value in function.inputs if value.name not in read]
    ops += [Op("identity", {"x": value}, (replace(value, name=f"{value.name}_tmp"),)) for value in unread]
    return replace(function, ops=tuple(ops))


def values_of(op: Op) -> Iterator[Value]:
    """The operands that are values, weights included."""
    for operand in op.inputs.values():
        for part in operand if isinstance(operand, tuple) else (operand,):
            if isinstance(part, Value):
                yield part
