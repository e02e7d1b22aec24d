"""Branches and loops. The first parameter holds the nested blocks: each takes its inputs and returns its results."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anemone.execute.ops.registry import kernel

Blocks = Sequence[Callable[..., tuple[Any, ...]]]


@kernel("cond", moves=True)
def cond(blocks: Blocks, pred: Any) -> Any:
    """The results of the first block when ``pred`` holds, else of the second."""
    return _results(blocks[0 if np.asarray(pred).item() else 1]())


@kernel("while_loop", moves=True)
def while_loop(blocks: Blocks, *loop_vars: Any) -> Any:
    """The second block turns the variables into those of the next round for as long as the first one says so."""
    condition, body = blocks
    values = tuple(loop_vars)
    while np.asarray(condition(*values)[0]).item():
        values = body(*values)
    return _results(values)


def _results(values: tuple[Any, ...]) -> Any:
    return values[0] if len(values) == 1 else values
