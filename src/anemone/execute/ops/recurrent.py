"""Recurrent layers over x (sequence, batch, input). Backwards, steps come out in the order in which they were computed.

Formulas from MIL's documentation; for the reset gate and for the cell's clip, which it leaves open, from the numpy
references in the tests of coremltools.
"""

# mypy: disable-error-code="no-any-return"

from collections.abc import Callable

import numpy as np

from anemone.errors import ExecuteError
from anemone.execute.dtypes import Array
from anemone.execute.ops.activation import sigmoid
from anemone.execute.ops.registry import Kernel, Node, op

Activation = Callable[[Array], Array]

_ACTIVATIONS: dict[str, Activation] = {
    "tanh": np.tanh,
    "scaled_tanh": np.tanh,  # with the factors 1 and 1
    "sigmoid": sigmoid,
    "hard_sigmoid": lambda x: np.clip(np.float32(0.2) * x + np.float32(0.5), 0, 1),
    "relu": lambda x: np.maximum(x, 0),
    "linear": lambda x: x,
}
_ACTIVATIONS["sigmoid_hard"] = _ACTIVATIONS["hard_sigmoid"]


def _activation(node: Node, name: str, default: str) -> Activation:
    chosen = node.text(name, default)
    if chosen.lower() not in _ACTIVATIONS:
        raise ExecuteError(f"its {name} {chosen!r} is not known; choose one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[chosen.lower()]


def _weight(node: Node, name: str) -> Array:
    stored = node.stored(name)
    if stored is None:
        raise ExecuteError(f"its operand {name} must be given and constant")
    return node.weights.array(stored)


def _optional(node: Node, name: str) -> Array | None:
    return _weight(node, name) if node.has(name) else None


def _backwards(node: Node, *allowed: str) -> bool:
    direction = node.text("direction", "forward")
    if direction not in ("forward", "reverse", *allowed):
        raise ExecuteError(f"its direction {direction!r} is not known")
    return direction == "reverse"


def _steps(x: Array, weight: Array, bias: Array | None, backwards: bool) -> Array:
    """What the input adds to the gates at each step, (sequence, batch, gates), in the order of computation."""
    result = x[::-1] @ weight.T if backwards else x @ weight.T
    return result if bias is None else result + bias


@op("rnn")
def rnn(node: Node) -> Kernel:
    """h = activation(W x + R h + b)"""
    weight, recurrent, bias = _weight(node, "weight_ih"), _weight(node, "weight_hh"), _optional(node, "bias")
    activation, backwards = _activation(node, "activation", "tanh"), _backwards(node)
    sequence = node.flag("output_sequence", False)

    def run(x: Array, initial_h: Array) -> tuple[Array, Array]:
        h, outputs = initial_h, []
        for step in _steps(x, weight, bias, backwards):
            h = activation(step + h @ recurrent.T)
            outputs.append(h)
        return np.stack(outputs if sequence else [h]), h

    return run


@op("gru")
def gru(node: Node) -> Kernel:
    """Gates in the order reset, output, update. The reset gate is applied to h, or with ``reset_after`` to R h + b."""
    weight, recurrent = _weight(node, "weight_ih"), _weight(node, "weight_hh")
    bias, input_bias = _optional(node, "bias"), _optional(node, "input_bias")
    activation, gate = _activation(node, "activation", "tanh"), _activation(node, "recurrent_activation", "sigmoid")
    backwards, sequence = _backwards(node), node.flag("output_sequence", False)
    reset_after, hidden = node.flag("reset_after", False), recurrent.shape[1]
    hidden_bias = np.zeros(3 * hidden, np.float32) if bias is None else bias
    to_output, to_gates = recurrent[hidden : 2 * hidden], np.delete(recurrent, np.s_[hidden : 2 * hidden], 0)
    gates_bias, output_bias = np.delete(hidden_bias, np.s_[hidden : 2 * hidden]), hidden_bias[hidden : 2 * hidden]

    def run(x: Array, initial_h: Array) -> tuple[Array, Array]:
        h, outputs = initial_h, []
        for step in _steps(x, weight, input_bias, backwards):
            added = h @ to_gates.T + gates_bias
            reset = gate(step[:, :hidden] + added[:, :hidden])
            update = gate(step[:, 2 * hidden :] + added[:, hidden:])
            past = reset * (h @ to_output.T + output_bias) if reset_after else (reset * h) @ to_output.T + output_bias
            h = (1 - update) * activation(step[:, hidden : 2 * hidden] + past) + update * h
            outputs.append(h)
        return np.stack(outputs if sequence else [h]), h

    return run


@op("lstm")
def lstm(node: Node) -> Kernel:
    """Gates in the order input, forget, output, cell; peepholes of the first three, the output's onto the new cell."""
    backwards = _backwards(node, "bidirectional")
    if node.text("direction", "forward") != "bidirectional":
        return _lstm_layer(node, "", backwards)
    forward, back = _lstm_layer(node, "", False), _lstm_layer(node, "_back", True)
    sequence = node.flag("output_sequence", False)

    def run(x: Array, initial_h: Array, initial_c: Array) -> tuple[Array, Array, Array]:
        hidden = initial_h.shape[1] // 2
        y, h, c = forward(x, initial_h[:, :hidden], initial_c[:, :hidden])
        y_back, h_back, c_back = back(x, initial_h[:, hidden:], initial_c[:, hidden:])
        y_back = y_back[::-1] if sequence else y_back  # both directions at the same step
        return np.concatenate([y, y_back], 2), np.concatenate([h, h_back], 1), np.concatenate([c, c_back], 1)

    return run


def _lstm_layer(node: Node, suffix: str, backwards: bool) -> Kernel:
    weight, recurrent = _weight(node, f"weight_ih{suffix}"), _weight(node, f"weight_hh{suffix}")
    bias, peephole = _optional(node, f"bias{suffix}"), _optional(node, f"peephole{suffix}")
    gate = _activation(node, "recurrent_activation", "sigmoid")
    cell, activation = _activation(node, "cell_activation", "tanh"), _activation(node, "activation", "tanh")
    clip = node.float("clip", np.inf)
    sequence, hidden = node.flag("output_sequence", False), recurrent.shape[1]
    peeps = np.zeros((3, hidden), np.float32) if peephole is None else peephole.reshape(3, hidden)

    def run(x: Array, initial_h: Array, initial_c: Array) -> tuple[Array, Array, Array]:
        h, c, outputs = initial_h, initial_c, []
        for step in _steps(x, weight, bias, backwards):
            to_input, to_forget, to_output, to_cell = np.split(step + h @ recurrent.T, 4, 1)
            c = gate(to_forget + peeps[1] * c) * c + gate(to_input + peeps[0] * c) * cell(to_cell)
            c = np.clip(c, -clip, clip)
            h = gate(to_output + peeps[2] * c) * activation(c)
            outputs.append(h)
        return np.stack(outputs if sequence else [h]), h, c

    return run
