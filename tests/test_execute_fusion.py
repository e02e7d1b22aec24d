"""Chains of operations in one kernel give the bits that the single operations give."""

import numpy as np
import pytest
from execute_helpers import coremltools, save

from anemone.execute import Program
from anemone.execute.numerics import round_half
from anemone.execute.ops.fused import ATTENTION, RMS_NORM

HEADS, ROWS, SIZE = 2, 12, 32


def package(path, inputs, build):
    """A package of one function; ``build`` gets the builder and the inputs."""
    coremltools()
    from coremltools.converters.mil.mil import Builder as mb
    from coremltools.converters.mil.mil import Function, types
    from coremltools.converters.mil.mil import Program as MilProgram

    placeholders = {}
    for name, shape in inputs.items():
        placeholders[name] = mb.placeholder(shape=shape, dtype=types.fp16)
        placeholders[name].name = placeholders[name].outputs[0].name = name
    program = MilProgram()
    with Function(placeholders, coremltools().target.iOS18) as function:
        results = build(mb, *(function.inputs[name] for name in inputs))
        function.set_outputs(list(results) if isinstance(results, tuple) else [results])
    program.add_function("main", function)
    return save(program, path)


def attention(mb, q, k, v, mask):
    scores = mb.matmul(x=q, y=k, transpose_y=True)
    return mb.matmul(x=mb.softmax(x=mb.add(x=scores, y=mask), axis=-1), y=v)


def kinds(program, inputs):
    plan, _, _ = program.bind(inputs, fused=True)
    return [step.op.kind for step in plan.steps]


def same_bits(program, inputs):
    fused, plain = program.predict(inputs), program.predict(inputs, observe=lambda *_: None)
    for name, value in plain.items():
        np.testing.assert_array_equal(fused[name].view(np.uint8), value.view(np.uint8))
    return plain


def causal(columns):
    return np.arange(columns) <= np.arange(ROWS)[:, None]


def late(columns):
    return np.arange(columns) <= np.arange(columns - ROWS, columns)[:, None]


def window(columns):
    positions = np.arange(200, 200 + ROWS)[:, None]
    return (np.arange(columns) <= positions) & (np.arange(columns) > positions - 30)


def everything(columns):
    return np.ones((ROWS, columns), bool)


def one_blind_row(columns):
    return causal(columns) & (np.arange(ROWS) != 3)[:, None]


@pytest.mark.parametrize("numerics", ["float16", "float32"])
@pytest.mark.parametrize("columns", [20, 128, 300, 512, 1100])
def test_attention(columns, numerics, tmp_path):
    shapes = {"q": (1, HEADS, ROWS, SIZE), "k": (1, HEADS, columns, SIZE), "v": (1, HEADS, columns, SIZE)}
    shapes["mask"] = (1, 1, ROWS, columns)
    program = Program(package(tmp_path / "a.mlpackage", shapes, attention), numerics=numerics)
    rng = np.random.default_rng(columns)
    for seen in (causal, late, window, everything, one_blind_row):
        for scale in (1, 30, 3000):  # from 30 on scores may reach the mask's -40000, then beyond fp16
            inputs = {name: rng.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}
            inputs["k"] *= np.float16(scale)
            inputs["mask"] = np.where(seen(columns), 0, -40000).astype(np.float16)[None, None]
            assert kinds(program, inputs) == [ATTENTION]
            same_bits(program, inputs)


@pytest.mark.parametrize("value", [np.inf, np.nan, 60000])
@pytest.mark.parametrize("name", ["q", "k", "v", "mask"])
def test_extreme_values_in_hidden_places_are_not_lost(name, value, tmp_path):
    shapes = {"q": (1, 1, ROWS, SIZE), "k": (1, 1, 512, SIZE), "v": (1, 1, 512, SIZE), "mask": (1, 1, ROWS, 512)}
    program = Program(package(tmp_path / "a.mlpackage", shapes, attention))
    inputs = {key: np.ones(shape, np.float16) for key, shape in shapes.items()}
    inputs["mask"] = np.where(causal(512), 0, -40000).astype(np.float16)[None, None]
    inputs[name][0, 0, -1, -1] = value
    result = same_bits(program, inputs)
    if name == "v" and value != 60000:
        assert np.isnan(next(iter(result.values()))).any()  # 0 * inf


def test_attention_stays_when_its_inside_is_used(tmp_path):
    def build(mb, q, k, v, mask):
        scores = mb.matmul(x=q, y=k, transpose_y=True)
        weights = mb.softmax(x=mb.add(x=mask, y=scores), axis=-1)
        return mb.matmul(x=weights, y=v), weights

    shapes = {"q": (1, 1, ROWS, SIZE), "k": (1, 1, 200, SIZE), "v": (1, 1, 200, SIZE), "mask": (1, 1, 1, 1)}
    program = Program(package(tmp_path / "a.mlpackage", shapes, build))
    inputs = {name: np.ones(shape, np.float16) for name, shape in shapes.items()}
    assert kinds(program, inputs) == ["matmul", "add", "softmax", "matmul"]
    assert kinds(program.with_numerics("ane"), inputs) == ["matmul", "add", "softmax", "matmul"]


def rms_norm(axis):
    def build(mb, x):
        doubled = mb.concat(values=[x, mb.mul(x=x, y=np.float16(-1))], axis=axis)
        normed = mb.layer_norm(x=doubled, axes=[axis], epsilon=np.float16(1e-5))
        return mb.slice_by_index(x=normed, begin=[0] * 4, end=list(x.shape))

    return build


@pytest.mark.parametrize("numerics", ["float16", "float32"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((1, 96, 1, 7), 1), ((1, 576, 1, 1), 1), ((1, 5, 9, 64), 3), ((1, 3, 1, 33), -1)]
)
def test_rms_norm(shape, axis, numerics, tmp_path):
    program = Program(package(tmp_path / "n.mlpackage", {"x": shape}, rms_norm(axis)), numerics=numerics)
    rng = np.random.default_rng(0)
    for scale in (1, 1e-4, 1e4):
        x = (rng.standard_normal(shape) * scale).astype(np.float16)
        assert kinds(program, {"x": x}) == [RMS_NORM]
        (got,) = same_bits(program, {"x": x}).values()
        wide = x.astype(np.float64)
        wanted = wide / np.sqrt((wide**2).mean(axis=axis, keepdims=True) + 1e-5)
        np.testing.assert_allclose(got, wanted, rtol=2e-3, atol=1e-3)
    for value in (np.inf, np.nan, 0):
        x.reshape(-1)[3:5] = value
        same_bits(program, {"x": x})


def test_layer_norm_of_other_pairs_stays(tmp_path):
    def build(mb, x):
        doubled = mb.concat(values=[x, mb.mul(x=x, y=np.float16(-2))], axis=1)
        normed = mb.layer_norm(x=doubled, axes=[1], epsilon=np.float16(1e-5))
        return mb.slice_by_index(x=normed, begin=[0] * 4, end=list(x.shape))

    program = Program(package(tmp_path / "n.mlpackage", {"x": (1, 8, 1, 3)}, build))
    assert kinds(program, {"x": np.ones((1, 8, 1, 3), np.float16)})[-1] == "slice_by_index"


@pytest.mark.parametrize("low", [-140, -30, -24, -13, 0, 14, 15, 100])
def test_rounding_of_values_of_like_size_equals_numpys(low):
    """Whole blocks within three binades, so that each short cut is taken."""
    rng = np.random.default_rng(low + 200)
    values = np.ldexp(rng.uniform(1, 2, 70000), rng.integers(low, low + 3, 70000)).astype(np.float32)
    values *= rng.choice([-1, 1], values.size).astype(np.float32)
    with np.errstate(all="ignore"):
        wanted = values.astype(np.float16).astype(np.float32)
        for sign in (values, np.abs(values)):
            got = round_half(sign)
            np.testing.assert_array_equal(np.abs(got), np.abs(wanted))
            np.testing.assert_array_equal(np.signbit(got), np.signbit(sign))
        assert round_half(values, values) is not None
    np.testing.assert_array_equal(values.view(np.int32), wanted.view(np.int32))
