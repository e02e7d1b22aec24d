"""A program as data: functions of operations on named, statically shaped values.

Knows nothing of any file format: ``package`` writes it as MIL, another target could write the same data.
An operand is a Value, a constant (numpy array, numpy scalar, bool or str), or a tuple of Values and constants (concat).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Value:
    """A tensor with a name that is unique in its function. dtype: fp16, fp32, int32 or bool."""

    name: str
    dtype: str
    shape: Shape


Constant: TypeAlias = "NDArray[np.generic] | np.generic | bool | str"
Operand: TypeAlias = "Value | Constant | tuple[Value | NDArray[np.generic], ...]"


@dataclass(frozen=True)
class Op:
    """One operation; ``kind`` and the keys of ``inputs`` are MIL's names (iOS18 op set)."""

    kind: str
    inputs: Mapping[str, Operand]
    outputs: tuple[Value, ...]


@dataclass(frozen=True)
class Weight:
    """A stored fp16 tensor that functions share. How it is encoded is decided elsewhere.

    ``key`` names it in the package; ``source`` is the checkpoint tensor it comes from, or "" when ``constant`` holds
    the values; ``rows`` restricts it to a half-open range of source rows. role: linear, head, embedding, norm, bias
    or table; only the first three may be palettised.
    """

    key: str
    shape: Shape
    role: str
    source: str = ""
    rows: tuple[int, int] | None = None
    constant: NDArray[np.float16] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Function:
    """``weights`` maps the name of each value that is a weight to the Weight; such values have no Op.

    ``flexible`` lists, per input name, the enumerated shapes it accepts (the first is the default); all other inputs
    are static.
    """

    name: str
    inputs: tuple[Value, ...]
    states: tuple[Value, ...]
    outputs: tuple[Value, ...]
    ops: tuple[Op, ...]
    weights: Mapping[str, Weight]
    flexible: Mapping[str, tuple[Shape, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Program:
    """The functions of one package, the first being the default. Weights are shared by ``Weight.key``."""

    functions: tuple[Function, ...]

    def weights(self) -> dict[str, Weight]:
        """Every distinct weight, in order of first use."""
        return {w.key: w for f in self.functions for w in f.weights.values()}
