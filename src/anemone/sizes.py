"""Exact bytes of what a program will store, from shapes alone."""

from math import prod

from anemone.compress.palettize import effective_group
from anemone.compress.spec import LutSpec
from anemone.graph.ir import Program, Weight
from anemone.package.values import INLINE_BELOW

PALETTISED_ROLES = ("linear", "head", "embedding")

ALIGNMENT = 64
"""Bytes to which the weight file's header, records and data are padded."""


def weight_bytes(weight: Weight, lut: LutSpec | None) -> int:
    """Bytes of one weight as stored: fp16, or packed indices and their tables."""
    return sum(_arrays(weight, lut))


def weight_file_bytes(program: Program, lut: LutSpec | None) -> int:
    """Size of weight.bin: a header, and per array a record and its bytes; short arrays stay in the program."""
    arrays = [array.nbytes for array in program.constants() if array.size >= INLINE_BELOW]
    arrays += [
        size for weight in program.weights().values() for size in _arrays(weight, lut) if size >= 2 * INLINE_BELOW
    ]
    return ALIGNMENT + sum(ALIGNMENT * (1 + -(-size // ALIGNMENT)) for size in arrays) if arrays else 0


def matrices(program: Program) -> list[Weight]:
    """The weights that may be palettised."""
    return [weight for weight in program.weights().values() if weight.role in PALETTISED_ROLES]


def bits_per_weight(weights: list[tuple[Weight, LutSpec | None]]) -> float:
    """Stored bits per number, tables included."""
    return 8 * sum(weight_bytes(w, lut) for w, lut in weights) / sum(prod(w.shape) for w, _ in weights)


def largest_activation(program: Program) -> int:
    """Bytes of the largest value that an operation gives, the cache apart."""
    states = {state.shape for function in program.functions for state in function.states}
    outputs = [out for function in program.functions for op in function.ops for out in op.outputs]
    return max(2 * prod(out.shape) for out in outputs if out.shape not in states)


def _arrays(weight: Weight, lut: LutSpec | None) -> list[int]:
    """Bytes of the values, or of the packed indices and the tables."""
    if lut is None or weight.role not in PALETTISED_ROLES:
        return [2 * prod(weight.shape)]
    rows = weight.shape[0]
    group = effective_group(rows, lut.group)
    return [-(-prod(weight.shape) * lut.bits // 8), rows // group * 2**lut.bits * 2]
