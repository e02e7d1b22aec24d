"""Where resized pixels come from: n positions on an axis of a given size, by MIL's sampling modes.

Formulas from the documentation of MIL's resize_bilinear. The axis may have a fractional size (a box to be cropped).
"""

from collections.abc import Callable

import numpy as np

from anemone.errors import ExecuteError
from anemone.execute.dtypes import Array


def _strict_align_corners(size: float, count: int) -> Array:
    return np.arange(count) * ((size - 1) / max(count - 1, 1))


def _align_corners(size: float, count: int) -> Array:
    return np.array([(size - 1) / 2]) if count == 1 else _strict_align_corners(size, count)


def _default(size: float, count: int) -> Array:
    return np.arange(count) * (size / count)


def _offset_corners(size: float, count: int) -> Array:
    return (np.arange(count) + 0.5) * (max(1.0, size - 1) / count)


def _unalign_corners(size: float, count: int) -> Array:
    return (np.arange(count) + 0.5) * (size / count) - 0.5


_MODES: dict[str, Callable[[float, int], Array]] = {
    "STRICT_ALIGN_CORNERS": _strict_align_corners,
    "ALIGN_CORNERS": _align_corners,
    "DEFAULT": _default,
    "OFFSET_CORNERS": _offset_corners,
    "UNALIGN_CORNERS": _unalign_corners,
}


def checked_mode(mode: str) -> str:
    """The sampling mode. Raises ExecuteError when there is no such mode."""
    if mode not in _MODES:
        raise ExecuteError(f"its sampling_mode {mode!r} is not known")
    return mode


def positions(size: int, count: int, mode: str) -> Array:
    """``count`` positions in 0..size - 1, fp64."""
    return np.clip(_MODES[mode](size, count), 0, size - 1)


def box_positions(start: float, end: float, count: int, mode: str) -> Array:
    """``count`` positions between two that are both pixels of the box, fp64; backwards when start is behind end."""
    steps = _MODES[mode](abs(end - start) + 1, count)
    steps = np.clip(steps, 0, abs(end - start))
    return start + steps if end >= start else start - steps
