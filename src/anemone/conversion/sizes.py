"""What storing costs, from shapes alone: tables per matrix, bytes per part, bits per weight, largest activation."""

from math import prod

from anemone.compress.palettize import effective_group
from anemone.compress.spec import LutSpec
from anemone.graph.ir import Program, Weight
from anemone.package.size import weight_file_bytes

PALETTISED_ROLES = ("linear", "head", "embedding")


def encoding(weight: Weight, lut: LutSpec | None) -> tuple[int, int] | None:
    """(bits, number of tables) of a weight that ``lut`` palettises, None for one that stays fp16."""
    if lut is None or weight.role not in PALETTISED_ROLES:
        return None
    return lut.bits, weight.shape[0] // effective_group(weight.shape[0], lut.group)


def program_bytes(program: Program, lut: LutSpec | None) -> int:
    """Exact size of the package's weight file."""
    return weight_file_bytes(program, lambda weight: encoding(weight, lut))


def matrices(program: Program) -> list[Weight]:
    """The weights that may be palettised."""
    return [weight for weight in program.weights().values() if weight.role in PALETTISED_ROLES]


def bits_per_weight(weights: list[tuple[Weight, LutSpec | None]]) -> float:
    """Stored bits per number, tables included."""
    return sum(_bits(weight, lut) for weight, lut in weights) / sum(prod(weight.shape) for weight, _ in weights)


def largest_activation(program: Program) -> int:
    """Bytes of the largest value that an operation gives, the cache apart."""
    states = {state.shape for function in program.functions for state in function.states}
    outputs = [out for function in program.functions for op in function.ops for out in op.outputs]
    return max(2 * prod(out.shape) for out in outputs if out.shape not in states)


def _bits(weight: Weight, lut: LutSpec | None) -> int:
    coded = encoding(weight, lut)
    if coded is None:
        return 16 * prod(weight.shape)
    bits, tables = coded
    return bits * prod(weight.shape) + (16 * tables << bits)
