"""Random tensors: the right distribution, the same numbers for the same seed. Core ML's own numbers are not ours."""

import numpy as np
import pytest
from execute_helpers import coremltools, save
from scipy import stats

from anemone.execute import Program

ct = coremltools()

from coremltools.converters.mil.mil import Builder as mb  # noqa: E402
from coremltools.converters.mil.mil import Function, types  # noqa: E402
from coremltools.converters.mil.mil import Program as MilProgram  # noqa: E402

COVERS = dict.fromkeys(
    ("random_uniform", "random_normal", "random_bernoulli", "random_categorical"), "scipy (distribution)"
)
COUNT = 20_000
SHARES = np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 0]], np.float32)


def package(path, opset="iOS18", seed=3):
    """All four kinds; ``size`` is the shape of most."""
    given = {} if seed is None else {"seed": seed}
    placeholders = {
        "size": mb.placeholder(shape=(2,), dtype=types.int32),
        "shares": mb.placeholder(shape=SHARES.shape, dtype=types.fp32),
    }
    for name, placeholder in placeholders.items():
        placeholder.name = placeholder.outputs[0].name = name
    program = MilProgram()
    with Function(placeholders, getattr(ct.target, opset)) as function:
        size, shares = function.inputs["size"], function.inputs["shares"]
        logits = mb.log(x=shares, epsilon=np.float32(1e-9))
        function.set_outputs(
            [
                mb.random_uniform(shape=size, low=np.float32(-2), high=np.float32(3), name="uniform", **given),
                mb.random_normal(shape=size, mean=np.float32(1), stddev=np.float32(2), name="normal", **given),
                mb.random_bernoulli(shape=size, prob=np.float32(0.3), name="bernoulli", **given),
                mb.random_categorical(x=logits, size=COUNT, name="logits", **given),
                mb.random_categorical(x=shares, size=COUNT, mode="probs", name="probs", **given),
            ]
        )
    program.add_function("main", function)
    return save(program, path, opset)


INPUTS = {"size": np.array([COUNT // 100, 100], np.int32), "shares": SHARES}


@pytest.mark.parametrize("opset", ["iOS15", "iOS16", "iOS17", "iOS18"])
def test_distributions(opset, tmp_path):
    got = Program(package(tmp_path / "a.mlpackage", opset)).predict(INPUTS)
    assert got["uniform"].shape == (COUNT // 100, 100)
    assert got["uniform"].min() >= -2
    assert got["uniform"].max() < 3
    assert stats.kstest(got["uniform"].ravel(), stats.uniform(-2, 5).cdf).pvalue > 0.01
    assert stats.kstest(got["normal"].ravel(), stats.norm(1, 2).cdf).pvalue > 0.01
    assert set(np.unique(got["bernoulli"])) == {0, 1}
    assert stats.binomtest(int(got["bernoulli"].sum()), COUNT, 0.3).pvalue > 0.01
    for name in ("logits", "probs"):
        for drawn, shares in zip(got[name], SHARES, strict=True):
            counts = np.bincount(drawn.astype(int), minlength=3)
            assert stats.chisquare(counts[shares > 0], shares[shares > 0] * COUNT).pvalue > 0.01
            assert not counts[shares == 0].any()


@pytest.mark.parametrize("seed", [3, None])
def test_each_program_begins_anew_and_goes_on(seed, tmp_path):
    path = package(tmp_path / "a.mlpackage", seed=seed)
    one, two = Program(path), Program(path)
    first, second = one.predict(INPUTS), one.predict(INPUTS)
    for name, value in two.predict(INPUTS).items():
        np.testing.assert_array_equal(first[name], value)
        assert (first[name] != second[name]).any()


def test_another_seed_draws_other_numbers(tmp_path):
    results = [Program(package(tmp_path / f"{s}.mlpackage", seed=s)).predict(INPUTS) for s in (3, 4)]
    assert (results[0]["normal"] != results[1]["normal"]).mean() > 0.99
