"""Branches, loops and lists: programs built with coremltools, against the same computation in Python."""

from pathlib import Path

import numpy as np
import pytest
import torch
from execute_helpers import convert_torch, coremltools, save

from anemone.errors import ExecuteError
from anemone.execute import Program

ct = coremltools()

from coremltools.converters.mil.mil import Builder as mb  # noqa: E402
from coremltools.converters.mil.mil import Function, types  # noqa: E402
from coremltools.converters.mil.mil import Program as MilProgram  # noqa: E402

COVERS = dict.fromkeys(
    ("cond", "while_loop", "make_list", "list_length", "list_read", "list_write", "list_gather", "list_scatter"),
    "python",
)


def package(path: Path, build, opset="iOS18", **shapes) -> Path:
    """build(**inputs) of fp32 inputs with these shapes, one of (1,) being a scalar."""
    placeholders = {name: mb.placeholder(shape=shape, dtype=types.fp32) for name, shape in shapes.items()}
    for name, placeholder in placeholders.items():
        placeholder.name = placeholder.outputs[0].name = name
    program = MilProgram()
    with Function(placeholders, getattr(ct.target, opset)) as function:
        given = {n: mb.squeeze(x=v) if v.shape == (1,) else v for n, v in function.inputs.items()}
        results = build(**given)
        results = results if isinstance(results, (list, tuple)) else [results]
        function.set_outputs([mb.identity(x=result, name=f"y{n}") for n, result in enumerate(results)])
    program.add_function("main", function)
    return save(program, path, opset)


@pytest.mark.parametrize("opset", ["iOS15", "iOS16", "iOS17", "iOS18"])
def test_cond(opset, tmp_path):
    def build(x, t):
        positive = mb.greater(x=t, y=np.float32(0))
        large = mb.greater(x=t, y=np.float32(10))

        def branch():
            inner = mb.cond(
                pred=large, _true_fn=lambda: mb.mul(x=x, y=np.float32(3)), _false_fn=lambda: mb.identity(x=x)
            )
            return inner, mb.add(x=t, y=np.float32(1))

        def other():
            return mb.sub(x=x, y=t), mb.const(val=np.float32(5))

        return mb.cond(pred=positive, _true_fn=branch, _false_fn=other)

    program = Program(package(tmp_path / "cond.mlpackage", build, opset, x=(2, 3), t=(1,)))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for t, wanted in ((1, (x, 2)), (20, (3 * x, 21)), (-1, (x + 1, 5))):
        got = program.predict({"x": x, "t": [float(t)]})
        np.testing.assert_array_equal(got["y0"], wanted[0])
        assert got["y1"] == wanted[1]


@pytest.mark.parametrize("opset", ["iOS15", "iOS18"])
def test_while_loop(opset, tmp_path):
    """Newton's square root, and a loop inside it; a value from outside is used in every round."""

    def build(x, t):
        def inner(j, total):
            return mb.add(x=j, y=np.float32(1)), mb.add(x=total, y=mb.mul(x=x, y=j))

        def body(i, guess, total):
            better = mb.mul(x=mb.add(x=guess, y=mb.real_div(x=x, y=guess)), y=np.float32(0.5))
            _, total = mb.while_loop(
                _cond=lambda j, _: mb.less(x=j, y=np.float32(2.5)), _body=inner, loop_vars=(np.float32(1), total)
            )
            return mb.add(x=i, y=np.float32(1)), better, total

        return mb.while_loop(
            _cond=lambda i, *_: mb.less(x=i, y=t),
            _body=body,
            loop_vars=(np.float32(0), mb.identity(x=x), mb.sub(x=x, y=x)),
        )

    program = Program(package(tmp_path / "loop.mlpackage", build, opset, x=(2, 3), t=(1,)))
    x = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    for rounds in (0, 1, 6):
        got = program.predict({"x": x, "t": [float(rounds)]})
        guess = x
        for _ in range(rounds):
            guess = (guess + x / guess) * 0.5
        np.testing.assert_allclose(got["y1"], guess, rtol=1e-6)
        np.testing.assert_allclose(got["y2"], rounds * 3 * x, rtol=1e-6)
        assert got["y0"] == rounds


def test_a_loop_may_change_a_shape(tmp_path):
    def build(x, t):
        return mb.while_loop(
            _cond=lambda v: mb.less(x=mb.cast(x=mb.gather(x=mb.shape(x=v), indices=0), dtype="fp32"), y=t),
            _body=lambda v: mb.concat(values=[v, v], axis=0),
            loop_vars=(x,),
        )

    program = Program(package(tmp_path / "grow.mlpackage", build, x=(1, 2), t=(1,)))
    assert program.predict({"x": [[1.0, 2.0]], "t": [5.0]})["y0"].shape == (8, 2)


def test_observers_see_inside_of_blocks(tmp_path):
    def build(x, t):
        return mb.while_loop(
            _cond=lambda i, _: mb.less(x=i, y=t),
            _body=lambda i, v: (mb.add(x=i, y=np.float32(1)), mb.exp2(x=v)),
            loop_vars=(np.float32(0), x),
        )

    program = Program(package(tmp_path / "loop.mlpackage", build, x=(2,), t=(1,)))
    kinds = []
    program.predict({"x": [0.0, 1.0], "t": [3.0]}, observe=lambda name, kind, outputs: kinds.append(kind))
    assert kinds.count("exp2") == 3
    assert kinds.count("less") == 4
    assert kinds[-3] == "while_loop"


def test_lists(tmp_path):
    def build(x):
        ls = mb.make_list(init_length=3, elem_shape=(2,), dtype="fp32")
        ls = mb.list_write(ls=ls, index=1, value=mb.gather(x=x, indices=0))
        longer = mb.list_scatter(ls=ls, indices=[0, 4], value=x)
        again = mb.list_write(ls=longer, index=0, value=mb.gather(x=x, indices=1))
        return (
            mb.list_read(ls=ls, index=1), mb.list_read(ls=ls, index=2), mb.list_gather(ls=longer, indices=[4, 0, 1]),
            mb.list_length(ls=longer), mb.list_read(ls=again, index=0), mb.list_read(ls=longer, index=0),
        )  # fmt: skip

    x = np.array([[1, 2], [3, 4]], np.float32)
    got = Program(package(tmp_path / "lists.mlpackage", build, x=(2, 2))).predict({"x": x})
    wanted = [x[0], [0, 0], [x[1], x[0], x[0]], 5, x[1], x[0]]
    for name, value in zip((f"y{n}" for n in range(6)), wanted, strict=True):
        np.testing.assert_array_equal(got[name], value, err_msg=name)


@pytest.mark.parametrize("opset", ["iOS15", "iOS16", "iOS17", "iOS18"])
def test_lists_in_loops(opset, tmp_path):
    """Powers of x, one element a round, and their number."""

    def build(x, t):
        ls = mb.make_list(init_length=1, elem_shape=(3,), dtype="fp32")

        def body(i, power, ls):
            index = mb.cast(x=i, dtype="int32")
            return mb.add(x=i, y=np.float32(1)), mb.mul(x=power, y=x), mb.list_write(ls=ls, index=index, value=power)

        _, _, ls = mb.while_loop(_cond=lambda i, *_: mb.less(x=i, y=t), _body=body, loop_vars=(np.float32(0), x, ls))
        return mb.list_gather(ls=ls, indices=[3, 1]), mb.list_length(ls=ls)

    x = np.array([1, 2, -3], np.float32)
    got = Program(package(tmp_path / "lists.mlpackage", build, opset, x=(3,), t=(1,))).predict({"x": x, "t": [5.0]})
    np.testing.assert_array_equal(got["y0"], [x**4, x**2])
    assert got["y1"] == 5


def test_wrong_list_positions_are_explained(tmp_path):
    def build(x):
        ls = mb.make_list(init_length=2, elem_shape=(2,), dtype="fp32", dynamic_length=False)
        ls = mb.list_write(ls=ls, index=mb.cast(x=mb.reduce_max(x=x), dtype="int32"), value=x)
        return mb.list_read(ls=ls, index=mb.cast(x=mb.reduce_min(x=x), dtype="int32"))

    program = Program(package(tmp_path / "lists.mlpackage", build, x=(2,)))
    assert program.predict({"x": [1.0, 1.0]})["y0"].tolist() == [1, 1]
    with pytest.raises(ExecuteError, match=r"op list_write .* has 2 elements, but element 2 is written"):
        program.predict({"x": [0.0, 2.0]})
    with pytest.raises(ExecuteError, match=r"op list_read .* has 2 elements, but element -1 is read"):
        program.predict({"x": [-1.0, 1.0]})


def test_gru_as_a_loop_of_apple_s_frontend(tmp_path):
    """torch's GRU becomes while_loops over slices, because Core ML's resets before the product."""
    torch.manual_seed(5)
    module = torch.nn.GRU(3, 4, num_layers=2, bidirectional=True).eval()
    x = torch.randn(5, 2, 3)
    program = Program(convert_torch(module, (x,), tmp_path / "gru.mlpackage"))
    got = program.predict({"x": x.numpy()})
    with torch.no_grad():
        wanted = module(x)
    for result, value in zip(got.values(), wanted, strict=True):
        np.testing.assert_allclose(result, value.numpy(), atol=1e-5)
