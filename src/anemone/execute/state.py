"""The state of a program: named tensors that live from one prediction to the next."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import ArrayLike

from anemone.errors import ExecuteError
from anemone.execute.damage import blamed_on
from anemone.execute.dtypes import Array, carrier_type, stored_type
from anemone.execute.signature import TensorSpec


class State:
    """Named tensors, zero at first, that any Program accepts which declares the same names and shapes.

    Reading ``state["kv"]`` gives a copy in the declared dtype; assigning replaces the content. Inside, fp16 tensors are
    held as fp32 arrays, so that no step has to convert the whole cache.
    """

    def __init__(self, specs: Mapping[str, TensorSpec]) -> None:
        self.specs = dict(specs)
        self.arrays: dict[str, Array] = {}
        self.clear()

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name].astype(stored_type(self._spec(name).dtype))

    def __setitem__(self, name: str, value: ArrayLike) -> None:
        spec = self._spec(name)
        array = np.array(value, carrier_type(spec.dtype), order="C")
        if array.shape != spec.shape:
            raise ExecuteError(f"state {name!r} has shape {list(spec.shape)}, got {list(array.shape)}")
        self.arrays[name] = array

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)

    def copy(self) -> "State":
        """An independent state with the same content."""
        other = State(self.specs)
        other.arrays = {name: array.copy() for name, array in self.arrays.items()}
        return other

    def clear(self) -> None:
        """Every tensor back to zero. Raises ExecuteError when there is no memory for them."""
        with blamed_on("the state", "cannot be made"):
            self.arrays = {name: np.zeros(spec.shape, carrier_type(spec.dtype)) for name, spec in self.specs.items()}

    def check(self, specs: Mapping[str, TensorSpec], function: str) -> None:
        """Raise ExecuteError unless every state that the function declares is here with the same shape and dtype."""
        for name, spec in specs.items():
            own = self.specs.get(name)
            if own is None:
                raise ExecuteError(f"function {function!r} needs the state {name!r}; given were {list(self.specs)}")
            if (own.shape, own.dtype) != (spec.shape, spec.dtype):
                raise ExecuteError(
                    f"function {function!r} needs the state {name!r} as {spec.dtype} {list(spec.shape)}; "
                    f"the given one is {own.dtype} {list(own.shape)}"
                )

    def _spec(self, name: str) -> TensorSpec:
        if name not in self.specs:
            raise ExecuteError(f"there is no state {name!r}; there are {list(self.specs)}")
        return self.specs[name]
