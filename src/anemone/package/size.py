"""How large a package's weight file will be, before anything is read."""

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anemone.graph.ir import Function, Program, Weight
from anemone.package.blob import HEADER, place
from anemone.package.opset import complete
from anemone.package.values import dtype_of, is_inline


def weight_file_bytes(program: Program, encoding: Callable[[Weight], tuple[int, int] | None]) -> int:
    """Exact size of weight.bin when the weights are added in the order of ``program.weights()``; 0: there is none.

    ``encoding`` gives (bits, number of tables) of a palettised weight and None for a dense one.
    """
    end = HEADER.size
    for dtype, count in _tensors(program, encoding):
        end = place(end, dtype, count)[1]
    return end if end > HEADER.size else 0


def _tensors(program: Program, encoding: Callable[[Weight], tuple[int, int] | None]) -> Iterator[tuple[str, int]]:
    for weight in program.weights().values():
        lut = encoding(weight)
        if lut is not None:
            yield f"uint{lut[0]}", prod(weight.shape)
        count = prod(weight.shape) if lut is None else lut[1] * 2 ** lut[0]
        if not is_inline("fp16", count):
            yield "fp16", count
    constants = (array for function in program.functions for array in _constants(function))
    for array in {(dtype_of(array), array.tobytes()): array for array in constants}.values():
        yield dtype_of(array), array.size


def _constants(function: Function) -> Iterator[NDArray[Any]]:
    """Arrays among the operands that go to the weight file, in the order in which they are written."""
    for op in function.ops:
        for operand in complete(op).values():
            for part in operand if isinstance(operand, tuple) else (operand,):
                if isinstance(part, np.ndarray) and not is_inline(dtype_of(part), part.size):
                    yield part
