"""The interface: functions, states, shapes, errors, start-up and memory."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from execute_helpers import Case, convert_torch, coremltools, save, write_cases
from torch import nn

from anemone.errors import ExecuteError
from anemone.execute import Program, State
from anemone.execute.compiler import compile_function
from anemone.execute.inplace import StateUse, analyse
from anemone.execute.modes import numerics_mode
from anemone.execute.ops import DEFINITIONS
from anemone.execute.reader import Block, Function, Op, Var
from anemone.execute.stored import Plain
from anemone.execute.weights import Weights

coremltools()
RNG = np.random.default_rng(5)


class Scaled(nn.Module):
    """Two functions from one set of weights: with and without the activation."""

    def __init__(self, active: bool):
        super().__init__()
        torch.manual_seed(1)
        self.active = active
        self.conv = nn.Conv2d(48, 96, 1)

    def forward(self, x):
        y = self.conv(x)
        return torch.tanh(y) if self.active else y


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A package with the functions plain (default) and active, merged by coremltools."""
    ct = coremltools()
    folder = tmp_path_factory.mktemp("pair")
    descriptor = ct.utils.MultiFunctionDescriptor()
    for name, active, rows in (("plain", False, 3), ("active", True, 8)):
        path = convert_torch(Scaled(active), (torch.zeros(1, 48, 1, rows),), folder / f"{name}.mlpackage", "FLOAT16")
        descriptor.add_function(str(path), "main", name)
    descriptor.default_function_name = "plain"
    with contextlib.redirect_stderr(io.StringIO()):
        ct.utils.save_multifunction(descriptor, str(folder / "pair.mlpackage"))
    return folder / "pair.mlpackage"


def test_functions_share_decoded_weights(pair):
    program = Program(pair)
    assert program.default_function == "plain"
    assert set(program.functions) == {"plain", "active"}
    x = RNG.standard_normal((1, 48, 1, 8)).astype(np.float16)
    with torch.no_grad():
        wanted = Scaled(True)(torch.from_numpy(x.astype(np.float32))).numpy()
    np.testing.assert_allclose(
        *(v for r in [program.predict({"x": x}, function="active")] for v in (*r.values(), wanted)), atol=2e-3
    )
    decoded = dict(program._weights._decoded)
    plain = program.predict({"x": x[..., :3]})
    assert next(iter(plain.values())).dtype == np.float16
    assert all(a is b for a, b in zip(program._weights._decoded.values(), decoded.values(), strict=True))
    assert len(program.weight_names()) == len(program.weight_names("plain"))
    assert Program(pair, function="active").default_function == "active"


def test_signature_and_metadata(tmp_path, pair):
    program = Program(pair)
    spec = program.functions["active"].inputs["x"]
    assert (spec.dtype, spec.shape) == ("fp16", (1, 48, 1, 8))
    ct = coremltools()
    model = ct.models.MLModel(
        str(write_cases(tmp_path / "a.mlpackage", [Case("relu", {"x": np.zeros(3, np.float32)})])), skip_model_load=True
    )
    model.user_defined_metadata["com.example.rows"] = "64"
    model.save(str(tmp_path / "b.mlpackage"))
    assert dict(Program(tmp_path / "b.mlpackage").metadata)["com.example.rows"] == "64"


def test_wrong_inputs_are_explained(pair):
    program = Program(pair)
    good = np.zeros((1, 48, 1, 3), np.float16)
    for inputs, words in (
        ({}, "'plain' has an input 'x' that is not given"),
        ({"x": good, "y": good}, "no input 'y'; its inputs are x"),
        ({"x": good[:, :4]}, "takes shape [1, 48, 1, 3], got [1, 4, 1, 3]"),
        ({"x": good.astype(np.int32)}, "takes fp16, got int32"),
    ):
        with pytest.raises(ExecuteError, match=re.escape(words)):
            program.predict(inputs)
    with pytest.raises(ExecuteError, match="no function 'main'; it has plain, active"):
        program.predict({"x": good}, function="main")
    with pytest.raises(ExecuteError, match="numerics 'bf16' is not known"):
        Program(pair, numerics="bf16")
    with pytest.raises(ExecuteError, match="no weight 'nothing'"):
        program.weight("nothing")
    with pytest.raises(ExecuteError, match=r"no \.mlpackage"):
        Program(pair.parent)


def test_integers_must_fit(tmp_path):
    path = write_cases(
        tmp_path / "a.mlpackage", [Case("add", {"x": np.zeros(3, np.int32), "y": np.zeros(3, np.int32)})]
    )
    program = Program(path)
    result = program.predict({"c0_0": [1, 2, 3], "c0_1": np.array([1, 1, 1], np.uint8)})
    assert result["y0_0"].tolist() == [2, 3, 4]
    assert result["y0_0"].dtype == np.int32
    with pytest.raises(ExecuteError, match="outside int32"):
        program.predict({"c0_0": [1, 2, 2**40], "c0_1": [0, 0, 0]})
    with pytest.raises(ExecuteError, match="takes int32, got float64"):
        program.predict({"c0_0": [1.5, 2, 3], "c0_1": [0, 0, 0]})


def test_unknown_operations_are_named():
    shape = (1,)
    ops = (Op("teleport", "here", {"x": ("x",)}, (Var("y", "fp32", shape),)),)
    function = Function("main", "CoreML8", (Var("x", "fp32", shape),), Block((), ops, ("y",)), {})
    with pytest.raises(
        ExecuteError, match="op teleport 'here' of function 'main' is not supported; supported are abs, "
    ):
        compile_function(function, Weights(), numerics_mode("float16"))


def test_flexible_shapes(tmp_path):
    ct = coremltools()
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 4), nn.Softmax(-1))
    for kind, shape, good, bad in (
        ("enumerated", ct.EnumeratedShapes([[1, 1, 8], [1, 16, 8]]), (1, 16), (2, 5)),
        ("ranged", ct.Shape((1, ct.RangeDim(1, 12, default=3), 8)), (1, 3, 12), (13, 0)),
    ):
        path = convert_torch(
            module, (torch.zeros(1, 3, 8),), tmp_path / f"{kind}.mlpackage", inputs=[ct.TensorType("x", shape)]
        )
        program = Program(path)
        for rows in good:
            x = RNG.standard_normal((1, rows, 8)).astype(np.float32)
            with torch.no_grad():
                wanted = module(torch.from_numpy(x)).numpy()
            np.testing.assert_allclose(next(iter(program.predict({"x": x}).values())), wanted, atol=1e-6)
        for rows in bad:
            with pytest.raises(ExecuteError, match="takes shape"):
                program.predict({"x": np.zeros((1, rows, 8))})


def test_float32_numerics_round_nothing(pair):
    x = RNG.standard_normal((1, 48, 1, 8)).astype(np.float32)
    exact = Program(pair, numerics="float32")
    whole = exact.predict({"x": x}, function="active")
    (result,) = whole.values()
    assert result.dtype == np.float32
    weight, bias = (
        exact.weight(n).astype(np.float64)
        for n in sorted(exact.weight_names(), key=lambda n: exact.weight(n).ndim, reverse=True)
    )
    wanted = np.tanh(weight.reshape(96, 48) @ x[0, :, 0].astype(np.float64) + bias[:, None])
    np.testing.assert_allclose(result[0, :, 0], wanted, atol=1e-6)


def test_observe_sees_every_operation(pair):
    seen = []
    Program(pair).predict(
        {"x": np.ones((1, 48, 1, 8))},
        function="active",
        observe=lambda n, k, o: seen.append((n, k, {a: b.shape for a, b in o.items()})),
    )
    assert [kind for _, kind, _ in seen] == ["conv", "tanh"]
    assert list(seen[0][2].values()) == [(1, 96, 1, 8)]


def state_package(path: Path, rows: int = 4) -> Path:
    """One step of a cache: x is written at row ``at``; the sum of the cache comes out."""
    from coremltools.converters.mil.mil import Builder as mb
    from coremltools.converters.mil.mil import Function, Program, types

    placeholders = {
        "x": mb.placeholder(shape=(1, 3), dtype=types.fp16),
        "at": mb.placeholder(shape=(1,), dtype=types.int32),
        "cache": mb.state_tensor_placeholder(shape=(rows, 3), dtype=types.fp16),
    }
    for name, placeholder in placeholders.items():
        placeholder.name = placeholder.outputs[0].name = name
    program = Program()
    with Function(placeholders, coremltools().target.iOS18) as function:
        at = function.inputs["at"]
        begin = mb.concat(values=[at, np.array([0], np.int32)], axis=0)
        end = mb.concat(values=[mb.add(x=at, y=np.int32(1)), np.array([3], np.int32)], axis=0)
        cache = mb.read_state(input=function.inputs["cache"])
        cache = mb.slice_update(x=cache, update=function.inputs["x"], begin=begin, end=end)
        cache = mb.coreml_update_state(state=function.inputs["cache"], value=cache)
        function.set_outputs([mb.reduce_sum(x=cache, axes=[0], keep_dims=True, name="sum")])
    program.add_function("main", function)
    return save(program, path)


def test_states_live_between_predictions_and_are_shared(tmp_path):
    one = Program(state_package(tmp_path / "one.mlpackage"))
    two = Program(state_package(tmp_path / "two.mlpackage"))
    state = one.new_state()
    memory = state.arrays["cache"]
    x = np.array([[1, 2, 3]], np.float16)
    one.predict({"x": x, "at": [0]}, state)
    assert two.predict({"x": 2 * x, "at": [2]}, state)["sum"].tolist() == [[3, 6, 9]]
    assert state["cache"].tolist() == [[1, 2, 3], [0, 0, 0], [2, 4, 6], [0, 0, 0]]
    assert state["cache"].dtype == np.float16
    assert state.arrays["cache"] is memory  # written in place
    other = state.copy()
    state.clear()
    assert not state["cache"].any()
    assert other["cache"].any()
    state["cache"] = other["cache"]
    assert state["cache"].tolist() == other["cache"].tolist()


def test_wrong_states_are_explained(tmp_path):
    program = Program(state_package(tmp_path / "a.mlpackage"))
    inputs = {"x": np.zeros((1, 3), np.float16), "at": [0]}
    with pytest.raises(ExecuteError, match=r"needs a state: pass state=program\.new_state"):
        program.predict(inputs)
    with pytest.raises(ExecuteError, match="needs the state 'cache'; given were"):
        program.predict(inputs, State({}))
    longer = Program(state_package(tmp_path / "b.mlpackage", rows=5)).new_state()
    with pytest.raises(ExecuteError, match=r"needs the state 'cache' as fp16 \[4, 3\]; the given one is fp16 \[5, 3\]"):
        program.predict(inputs, longer)
    with pytest.raises(ExecuteError, match=r"op slice_update '.*' of function 'main': the slice has shape \[0, 3\]"):
        program.predict({"x": inputs["x"], "at": [7]}, program.new_state())


def constant(*values: float) -> Plain:
    return Plain(np.array(values, np.float32), "fp32", (len(values),))


def whole(*values: int) -> Plain:
    return Plain(np.array(values, np.int32), "int32", (len(values),))


def random_function(rng: np.random.Generator) -> Function:
    """Reads, writes and updates of two states in any order, with views and arithmetic in between."""
    shape = (4,)
    values, ops = ["x"], []

    def emit(kind: str, **operands) -> str:
        name = f"v{len(ops)}"
        made = () if kind == "write_state" else (Var(name, "fp32", shape),)
        ops.append(Op(kind, name, {k: (v,) for k, v in operands.items()}, made))
        if made:
            values.append(name)
        return name

    def some() -> str:
        return str(rng.choice(values[-5:]))

    def other() -> None:
        kind = rng.choice(["read_state", "write_state", "reverse", "add", "identity", "slice_update"])
        state = str(rng.choice(["a", "b"]))
        extra = {
            "read_state": {"input": state}, "write_state": {"input": state, "data": some()},
            "reverse": {"x": some(), "axes": whole(0)}, "add": {"x": some(), "y": some()}, "identity": {"x": some()},
            "slice_update": {"x": some(), "update": constant(9, -9), "begin": whole(0), "end": whole(2)},
        }  # fmt: skip
        emit(kind, **extra[kind])

    for number in range(5):
        state = str(rng.choice(["a", "b"]))
        current = emit("read_state", input=state)
        for _ in range(rng.integers(1, 3)):
            if rng.random() < 0.3:
                other()
            update = constant(number, -number)
            current = emit("slice_update", x=current, update=update, begin=whole(1), end=whole(3))
        if rng.random() < 0.3:
            other()
        emit("write_state", input=state, data=current)
    outputs = tuple(dict.fromkeys([*(v for v in values[1:] if rng.random() < 0.1), values[-1]]))
    states = tuple(Var(s, "fp32", shape, state=True) for s in "ab")
    return Function("main", "CoreML8", (Var("x", "fp32", shape), *states), Block((), tuple(ops), outputs), {})


def test_updates_in_place_are_never_visible(monkeypatch):
    rng = np.random.default_rng(2)
    in_place = 0
    for _ in range(300):
        function = random_function(rng)
        moves = {kind: definition.moves for kind, definition in DEFINITIONS.items()}
        in_place += len(analyse(function.body.ops, function.body.outputs, moves).in_place)
        results = []
        for careful in (False, True):
            with monkeypatch.context() as patch:
                if careful:  # every read and update a copy, as MIL defines them
                    patch.setattr("anemone.execute.compiler.analyse", lambda *_: StateUse(frozenset(), frozenset()))
                plan = compile_function(function, Weights(), numerics_mode("float32"))
            arrays = {"a": np.arange(4, dtype=np.float32), "b": -np.arange(4, dtype=np.float32)}
            for _ in range(2):
                x = np.array([5, 6, 7, 8], np.float32)
                got = plan.execute({"x": x, "a": arrays, "b": arrays}, function.body.outputs, None)
                results.append(np.concatenate([*got, arrays["a"], arrays["b"], x]))
        np.testing.assert_array_equal(np.stack(results[:2]), np.stack(results[2:]))
    assert in_place > 500


def test_start_up_leaves_coremltools_alone(pair):
    code = (
        "import sys; from anemone.execute import Program; p = Program(sys.argv[1]); "
        "import numpy as np; p.predict({'x': np.ones((1, 48, 1, 3), np.float16)}); "
        "assert not {'coremltools', 'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(pair)], check=True)


def resident() -> int:
    """Resident memory in KB."""
    return int(re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[1])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_memory_stays_flat(tmp_path):
    program = Program(state_package(tmp_path / "a.mlpackage"))
    state = program.new_state()
    for step in range(2000):
        program.predict({"x": np.full((1, 3), step % 7, np.float16), "at": [step % 4]}, state)
        if step == 200:
            before = resident()
    assert resident() - before < 2000
