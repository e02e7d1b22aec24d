"""Recurrent layers against torch's, and against MIL's formulas step by step where torch has no such layer."""

import numpy as np
import pytest
import torch
from execute_helpers import Case, Numbers, by, check_precisions, coremltools

coremltools()
NUMBERS = Numbers(23)
STEPS, BATCH, INPUT, HIDDEN = 4, 2, 3, 5


def weight(*shape):
    return NUMBERS.real(*shape, low=-0.7, high=0.7)


X = weight(STEPS, BATCH, INPUT)


def reordered(parts, order):
    """Gates of the rows of a weight or bias from MIL's order to torch's."""
    pieces = np.split(np.asarray(parts, np.float32), len(order))
    return torch.from_numpy(np.concatenate([pieces[i] for i in order]))


def torch_layer(kind, order, given, suffix="", **options):
    """torch's layer with MIL's weights. torch adds the input's bias to the recurrent one."""
    layer = kind(INPUT, HIDDEN, **options)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(reordered(given[f"weight_ih{suffix}"], order))
        layer.weight_hh_l0.copy_(reordered(given[f"weight_hh{suffix}"], order))
        for name, key in (("bias_ih_l0", "input_bias"), ("bias_hh_l0", f"bias{suffix}")):
            bias = given.get(key, np.zeros(len(order) * HIDDEN))
            getattr(layer, name).copy_(reordered(bias, order))
    return layer


def tensor(array):
    return torch.from_numpy(np.array(array, np.float32))


def in_sequence(y, given):
    return y.numpy() if given.get("output_sequence") else y[-1:].numpy()


def torch_rnn(x, h, **given):
    layer = torch_layer(torch.nn.RNN, [0], given, nonlinearity=given.get("activation", "tanh"))
    x = tensor(x).flip(0) if given.get("direction") == "reverse" else tensor(x)
    with torch.no_grad():
        y, h = layer(x, tensor(h)[None])
    return in_sequence(y, given), h[0].numpy()


def torch_gru(x, h, **given):
    """Of torch's kind when the reset gate comes after the product."""
    layer = torch_layer(torch.nn.GRU, [0, 2, 1], given)
    x = tensor(x).flip(0) if given.get("direction") == "reverse" else tensor(x)
    with torch.no_grad():
        y, h = layer(x, tensor(h)[None])
    return in_sequence(y, given), h[0].numpy()


def torch_lstm(x, h, c, **given):
    order = [0, 1, 3, 2]
    with torch.no_grad():
        if given.get("direction") != "bidirectional":
            layer = torch_layer(torch.nn.LSTM, order, given)
            x = tensor(x).flip(0) if given.get("direction") == "reverse" else tensor(x)
            y, (h, c) = layer(x, (tensor(h)[None], tensor(c)[None]))
            return in_sequence(y, given), h[0].numpy(), c[0].numpy()
        results = []
        for part, suffix in enumerate(("", "_back")):
            own = slice(part * HIDDEN, (part + 1) * HIDDEN)
            layer = torch_layer(torch.nn.LSTM, order, given, suffix)
            steps = tensor(x).flip(0) if part else tensor(x)
            y, (last, cell) = layer(steps, (tensor(h[:, own])[None], tensor(c[:, own])[None]))
            y = y if given.get("output_sequence") else y[-1:]
            results.append((y.flip(0) if part else y, last[0], cell[0]))
    return [torch.cat(parts, -1).numpy() for parts in zip(*results, strict=True)]


ACTIVATIONS = {
    "tanh": torch.tanh,
    "scaled_tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "hard_sigmoid": lambda x: (0.2 * x + 0.5).clamp(0, 1),
    "sigmoid_hard": lambda x: (0.2 * x + 0.5).clamp(0, 1),
    "relu": torch.relu,
    "linear": lambda x: x,
}


def lstm_by_formula(x, h, c, **given):
    """MIL's formulas with peepholes, clip and any activation."""
    gate, cell, out = (
        ACTIVATIONS[given.get(name, default)]
        for name, default in (("recurrent_activation", "sigmoid"), ("cell_activation", "tanh"), ("activation", "tanh"))
    )
    w, r, b = (tensor(given[name]) for name in ("weight_ih", "weight_hh", "bias"))
    p_i, p_f, p_o = tensor(given.get("peephole", np.zeros(3 * HIDDEN))).split(HIDDEN)
    h, c, outputs = tensor(h), tensor(c), []
    limit = float(given.get("clip", np.inf))
    for step in tensor(x):
        i, f, o, z = (w @ step.T + r @ h.T + b[:, None]).T.split(HIDDEN, 1)
        c = (gate(f + p_f * c) * c + gate(i + p_i * c) * cell(z)).clamp(-limit, limit)
        h = gate(o + p_o * c) * out(c)
        outputs.append(h)
    return in_sequence(torch.stack(outputs), given), h.numpy(), c.numpy()


def gru_by_formula(x, h, **given):
    """MIL's own kind: the reset gate is applied before the product, as the reference in coremltools' tests has it."""
    gate = ACTIVATIONS[given.get("recurrent_activation", "sigmoid")]
    out = ACTIVATIONS[given.get("activation", "tanh")]
    (w_r, w_o, w_z), (r_r, r_o, r_z) = (tensor(given[name]).split(HIDDEN) for name in ("weight_ih", "weight_hh"))
    b_r, b_o, b_z = tensor(given.get("bias", np.zeros(3 * HIDDEN))).split(HIDDEN)
    h, outputs = tensor(h), []
    for step in tensor(x).flip(0) if given.get("direction") == "reverse" else tensor(x):
        reset = gate(step @ w_r.T + h @ r_r.T + b_r)
        update = gate(step @ w_z.T + h @ r_z.T + b_z)
        new = out(step @ w_o.T + (reset * h) @ r_o.T + b_o)
        h = (1 - update) * new + update * h
        outputs.append(h)
    return in_sequence(torch.stack(outputs), given), h.numpy()


def weights(gates, suffix=""):
    return {
        f"weight_ih{suffix}": weight(gates * HIDDEN, INPUT),
        f"weight_hh{suffix}": weight(gates * HIDDEN, HIDDEN),
        f"bias{suffix}": weight(gates * HIDDEN),
    }


def states(count, directions=1):
    return dict(zip(("initial_h", "initial_c"), weight(count, BATCH, directions * HIDDEN), strict=False))


RNN, GRU, LSTM = weights(1), weights(3), weights(4)
BOTH_WAYS = {**LSTM, **weights(4, "_back"), "direction": "bidirectional"}
UNBIASED = {name: LSTM[name] for name in ("weight_ih", "weight_hh")}
DIRECTIONS = [(d, s) for d in ("forward", "reverse") for s in (True, False)]

CASES = [
    *[
        Case("rnn", {"x": X, **states(1)}, {**RNN, "direction": d, "output_sequence": s, "activation": a},
             by("torch", torch_rnn))
        for d, s in DIRECTIONS
        for a in ("tanh", "relu")
    ],
    *[
        Case("lstm", {"x": X, **states(2)}, {**given, "direction": d, "output_sequence": s}, by("torch", torch_lstm))
        for d, s in DIRECTIONS
        for given in (LSTM, UNBIASED)
    ],
    *[
        Case("lstm", {"x": X, **states(2, 2)}, {**BOTH_WAYS, "output_sequence": s}, by("torch", torch_lstm))
        for s in (True, False)
    ],
    *[
        Case("lstm", {"x": X, **states(2)}, {**LSTM, "output_sequence": True, **given}, by("formula", lstm_by_formula))
        for given in (
            {"peephole": weight(3 * HIDDEN)},
            {"clip": np.float32(0.25)},
            {"peephole": weight(3 * HIDDEN), "clip": np.float32(0.5), "activation": "relu"},
            {"recurrent_activation": "hard_sigmoid", "cell_activation": "linear", "activation": "scaled_tanh"},
            {"recurrent_activation": "relu", "cell_activation": "sigmoid", "activation": "linear"},
            {"recurrent_activation": "tanh", "cell_activation": "scaled_tanh", "activation": "sigmoid"},
        )
    ],
    *[
        Case("gru", {"x": X, **states(1)}, {**GRU, "direction": d, "output_sequence": s}, by("formula", gru_by_formula))
        for d, s in DIRECTIONS
    ],
    Case(
        "gru", {"x": X, **states(1)},
        {**GRU, "output_sequence": True, "recurrent_activation": "tanh", "activation": "sigmoid"},
        by("formula", gru_by_formula),
    ),
]  # fmt: skip

RESET_AFTER = [
    Case(
        "gru", {"x": X, **states(1)},
        {**GRU, "direction": d, "output_sequence": s, "reset_after": True, "input_bias": weight(3 * HIDDEN)},
        by("torch", torch_gru),
    )
    for d, s in DIRECTIONS
]  # fmt: skip


@pytest.mark.parametrize("opset", ["iOS15", "iOS18"])
def test_recurrent(opset, tmp_path):
    check_precisions(CASES, tmp_path, opset)


def test_gru_with_the_reset_gate_after_the_product(tmp_path):
    check_precisions(RESET_AFTER, tmp_path, "iOS18")
