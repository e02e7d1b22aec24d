"""The state of a program: named tensors that live from one prediction to the next."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anemone.errors import ExecuteError
from anemone.execute.signature import TensorSpec

Array = NDArray[np.generic]


class State:
    """Named tensors, zero at first, that any Program accepts which declares the same names and shapes.

    Reading ``state["kv"]`` gives a copy in the declared dtype; assigning replaces the content. Inside, fp16 tensors are
    held as fp32 arrays of fp16 values, so that no step has to convert the whole cache.
    """

    def __init__(self, specs: Mapping[str, TensorSpec]) -> None:
        self.specs = dict(specs)
        self.arrays: dict[str, Array] = {
            name: np.zeros(spec.shape, np.float32 if spec.dtype in ("fp16", "fp32") else spec.dtype)
            for name, spec in self.specs.items()
        }

    def __getitem__(self, name: str) -> Array:
        raise NotImplementedError

    def __setitem__(self, name: str, value: ArrayLike) -> None:
        raise NotImplementedError

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)

    def copy(self) -> "State":
        """An independent state with the same content."""
        raise NotImplementedError

    def clear(self) -> None:
        """Every tensor back to zero."""
        raise NotImplementedError

    def check(self, specs: Mapping[str, TensorSpec], function: str) -> None:
        """Raise ExecuteError unless every state that the function declares is here with the same shape."""
        raise ExecuteError("not implemented")
