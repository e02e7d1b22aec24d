"""An ML Program from a .mlpackage, executed with numpy."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anemone.errors import ExecuteError
from anemone.execute.signature import Signature
from anemone.execute.state import State

Array = NDArray[np.generic]
Observer = Callable[[str, str, Mapping[str, Array]], None]


class Program:
    """The functions of one .mlpackage, ready to run.

    path: the package folder. numerics: "float16" rounds every fp16 tensor as it is stored, with fp32 inside an op;
    "float32" rounds nothing (weights keep their stored fp16 values). function: the default of predict(), in place of
    the package's own. weights: "keep" decodes each weight once to fp32; "stream" decodes row blocks at each use, so
    that memory stays small; "auto" keeps them when they need no more than 1.5 GB.
    Raises ExecuteError when the package is no ML Program, is damaged, or uses an op that is not known.
    """

    functions: Mapping[str, Signature]
    default_function: str
    metadata: Mapping[str, str]  # the package's user-defined metadata

    def __init__(
        self,
        path: str | Path,
        *,
        numerics: str = "float16",
        function: str | None = None,
        weights: str = "auto",
    ) -> None:
        raise ExecuteError("not implemented")

    def new_state(self, function: str | None = None) -> State:
        """A zero state with all the states of the program, or of one function. Programs with the same states share it."""
        raise ExecuteError("not implemented")

    def predict(
        self,
        inputs: Mapping[str, ArrayLike],
        state: State | None = None,
        function: str | None = None,
        observe: Observer | None = None,
    ) -> dict[str, Array]:
        """Run one function and return its outputs by name.

        Floating inputs may be of any floating dtype, integer inputs of any integer dtype whose values fit. Outputs have
        the declared dtype; with "float32" numerics, fp16 outputs come as unrounded fp32 (and may be fed as such to the
        next program). ``state`` is updated in place; it is needed when the function declares states.
        ``observe(op_name, op_kind, outputs)`` is called after every op; the arrays are only valid during the call.
        Raises ExecuteError for wrong names, shapes or dtypes, a missing state and an unknown function.
        """
        raise ExecuteError("not implemented")

    def weight_names(self, function: str | None = None) -> tuple[str, ...]:
        """MIL value names of the stored weights (constexpr results and constants in the blob file), in program order."""
        raise ExecuteError("not implemented")

    def weight(self, name: str, function: str | None = None) -> Array:
        """The decoded weight of this MIL value name, in its declared dtype (fp16 for fp16) and shape."""
        raise ExecuteError("not implemented")
