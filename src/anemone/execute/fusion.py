"""Chains of operations that one kernel computes faster, to the same bits.

A chain may be replaced when nothing else uses the values between its links. The new operation stands where the chain
ends, and its kind names the links; ``ops/fused.py`` holds its kernel. Chains are recognised from their ends backwards.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace

from anemone.execute.inplace import names_of
from anemone.execute.ops.fused import ATTENTION, RMS_NORM
from anemone.execute.reader import Block, Op, Operand, Var
from anemone.execute.stored import Stored

_Operands = Mapping[str, tuple[Operand, ...]]


def fuse(block: Block, inputs: Sequence[Var], own_kernels: Set[str]) -> Block:
    """The block with its chains replaced.

    ``inputs``: of the function. ``own_kernels``: kinds of operation that a numerics mode computes in its own way;
    chains with one of them stay.
    """
    chains = {kind: find for kind, find in _CHAINS.items() if own_kernels.isdisjoint(kind.split(" + "))}
    values = _Values(block, inputs)
    ops: list[Op | None] = list(block.ops)
    for index, op in enumerate(block.ops):
        for kind, find in chains.items():
            links = _Links(values, op)
            operands = find(links) if kind.endswith(f" {op.kind}") else None
            if operands is not None:
                ops[index] = replace(op, kind=kind, inputs=operands)
                for link in links.indices:
                    ops[link] = None
    return replace(block, ops=tuple(op for op in ops if op is not None))


class _Values:
    """Where each value of a block comes from, its type, and how often it is used."""

    def __init__(self, block: Block, inputs: Sequence[Var]) -> None:
        self.ops = block.ops
        self.makers = {var.name: index for index, op in enumerate(block.ops) for var in op.outputs}
        self.types = {var.name: var for var in (*inputs, *(var for op in block.ops for var in op.outputs))}
        self.uses = Counter(name for op in block.ops for name in names_of(op))
        self.uses.update(block.outputs)


class _Links:
    """A chain while it is followed backwards from its last operation."""

    def __init__(self, values: _Values, last: Op) -> None:
        self.values, self.last = values, last
        self.indices: list[int] = []

    def before(self, op: Op, name: str, kind: str) -> Op | None:
        """The operation of this kind that makes the operand, for this one use and in the type of the last result."""
        operand = _one(op, name)
        if not isinstance(operand, str) or self.values.uses[operand] != 1 or operand not in self.values.makers:
            return None
        index = self.values.makers[operand]
        maker = self.values.ops[index]
        if maker.kind != kind or maker.outputs[0].dtype != self.last.outputs[0].dtype:
            return None
        self.indices.append(index)
        return maker

    def type(self, operand: Operand) -> Var | None:
        return self.values.types.get(operand) if isinstance(operand, str) else None


def _one(op: Op, name: str) -> Operand | None:
    operands = op.inputs.get(name, ())
    return operands[0] if len(operands) == 1 else None


def _constant(op: Op, name: str, default: object) -> object:
    """The value of a constant operand, a list for a tensor; None when it is no constant."""
    operand = _one(op, name) if name in op.inputs else None
    if operand is None:
        return default if not op.inputs.get(name) else None
    return operand.array().tolist() if isinstance(operand, Stored) else None


def _attention(links: _Links) -> _Operands | None:
    """softmax(query @ key + mask) @ value, the mask on either side of the sum."""
    mix = links.last
    softmax = links.before(mix, "x", "softmax")
    add = links.before(softmax, "x", "add") if softmax else None
    if softmax is None or add is None:
        return None
    scores, mask = links.before(add, "x", "matmul"), _one(add, "y")
    if scores is None:
        scores, mask = links.before(add, "y", "matmul"), _one(add, "x")
    if scores is None or mask is None:
        return None
    query, key, value = _one(scores, "x"), _one(scores, "y"), _one(mix, "y")
    straight = not any(
        _constant(op, name, False)
        for op, name in ((mix, "transpose_x"), (mix, "transpose_y"), (scores, "transpose_x"))
    )
    along_columns = _constant(softmax, "axis", -1) in (-1, len(softmax.outputs[0].shape) - 1)
    if not (isinstance(query, str) and isinstance(key, str) and isinstance(value, str) and straight and along_columns):
        return None
    operands: dict[str, tuple[Operand, ...]] = {"query": (query,), "key": (key,), "value": (value,), "mask": (mask,)}
    return operands | {"transpose_key": scores.inputs.get("transpose_y", ())}


def _rms_norm(links: _Links) -> _Operands | None:
    """The first half of layer_norm(concat(x, -x))."""
    half = links.last
    norm = links.before(half, "x", "layer_norm")
    doubled = links.before(norm, "x", "concat") if norm else None
    if norm is None or doubled is None or len(doubled.inputs["values"]) != 2:
        return None
    x, negated = doubled.inputs["values"]
    minus = links.before(replace(doubled, inputs={"x": (negated,)}), "x", "mul")
    rank = len(norm.outputs[0].shape)
    axis = _constant(doubled, "axis", None)
    if minus is None or not isinstance(axis, int) or norm.inputs.get("gamma") or norm.inputs.get("beta"):
        return None
    factors = [_one(minus, "x"), _one(minus, "y")]
    negates = x in factors and any(isinstance(f, Stored) and f.size == 1 and f.array().item() == -1 for f in factors)
    normalised = _constant(norm, "axes", None) in ([axis], [axis % rank], [axis % rank - rank])
    if not (negates and normalised and _is_first_half(links, x)) or _constant(doubled, "interleave", False):
        return None
    return {"x": (x,), "axis": doubled.inputs["axis"], "epsilon": norm.inputs.get("epsilon", ())}


def _is_first_half(links: _Links, x: Operand) -> bool:
    """Whether the last slice begins at 0 and has the shape of x."""
    half, source = links.last, links.type(x)
    begin, skipped = _constant(half, "begin", None), _constant(half, "begin_mask", [])
    if not isinstance(begin, list) or not isinstance(skipped, list) or half.inputs.get("squeeze_mask"):
        return False
    from_zero = all(masked or first == 0 for first, masked in zip(begin, skipped or [False] * len(begin), strict=True))
    steps = _constant(half, "stride", [1])
    fixed = source is not None and -1 not in source.shape and source.shape == half.outputs[0].shape
    return from_zero and fixed and isinstance(steps, list) and set(steps) == {1}


_CHAINS: dict[str, Callable[[_Links], _Operands | None]] = {ATTENTION: _attention, RMS_NORM: _rms_norm}
