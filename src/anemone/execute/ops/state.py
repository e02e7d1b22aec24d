"""Reading and writing state tensors. The operand of a state is the dictionary of the state's arrays."""

import numpy as np

from anemone.errors import ExecuteError
from anemone.execute.dtypes import Array
from anemone.execute.ops.registry import Kernel, Node, op


def state_name(node: Node) -> str:
    """Which state the operation works on."""
    operand = node.op.inputs["input"][0]
    if not isinstance(operand, str):
        raise ExecuteError("its operand input must be a state")
    return operand


@op("read_state", moves=True)
def read_state(node: Node) -> Kernel:
    """The live array: whatever would overwrite it while the value is still needed makes a copy instead."""
    name = state_name(node)
    return lambda input: input[name]


@op("write_state", moves=True)
def write_state(node: Node) -> Kernel:
    """The value becomes the state: it is there already after an update in place, or is taken over, or copied."""
    name, adopt = state_name(node), node.adopt

    def run(input: dict[str, Array], data: Array) -> None:
        live = input[name]
        if data is live:
            return
        if data.shape != live.shape:
            raise ExecuteError(f"state {name!r} has shape {list(live.shape)}, but the value {list(data.shape)}")
        owned = adopt and data.flags.c_contiguous and data.flags.writeable
        input[name] = data if owned else np.array(data, live.dtype, order="C")

    return run
