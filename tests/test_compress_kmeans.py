"""k-means of numbers against ckwrap's exact optimum."""

import zlib
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from kmeans_truth import best_errors, squared_error
from numpy.random import Generator

from anemone.compress.bins import make_bins
from anemone.compress.codes import to_codes
from anemone.compress.kmeans import kmeans_1d
from anemone.compress.points import points_of_rows
from anemone.errors import CheckpointError, RecipeError

LIMIT = 1.005
BITS = (1, 2, 3, 4, 5, 6, 7, 8)
SUBNORMAL = 2.0**-24


def with_outliers(rng: Generator, n: int, *outliers: float) -> np.ndarray:
    values = rng.standard_normal(n) * 0.02
    values[: len(outliers)] = outliers
    return rng.permutation(values)


Draw = Callable[[Generator, int], np.ndarray]

SMOOTH: dict[str, Draw] = {
    "gaussian": lambda r, n: r.standard_normal(n) * 0.02,
    "heavy tails": lambda r, n: r.standard_t(3, n) * 0.02,
    "very heavy tails": lambda r, n: np.clip(r.standard_cauchy(n) * 0.01, -6e4, 6e4),
    "bf16": lambda r, n: (r.standard_t(4, n) * 0.02).astype(ml_dtypes.bfloat16),
    "uniform": lambda r, n: r.uniform(-1, 1, n),
    "one outlier": lambda r, n: with_outliers(r, n, 1e3),
    "largest outliers": lambda r, n: with_outliers(r, n, -65504, 65504),
    "many outliers": lambda r, n: with_outliers(r, n, *r.standard_normal(n // 200) * 10),
    "one side": lambda r, n: r.exponential(size=n) ** 2 * 0.01,
    "many scales": lambda r, n: r.standard_normal(n) * 10.0 ** r.uniform(-6, 2, n),
    "subnormal beside normal": lambda r, n: r.standard_normal(n) * np.where(np.arange(n) % 2, 0.02, 1e-6),
    "zeros": lambda r, n: r.standard_normal(n) * (np.arange(n) % 8 > 0),
}
"""Distributions on which fp16 is fine beside the clusters of up to 6 bits."""

COARSE: dict[str, Draw] = {
    "narrow": lambda r, n: r.uniform(1, 1.1, n),
    "around one": lambda r, n: 1 + r.standard_normal(n) * 0.05,
    "two narrow clusters": lambda r, n: r.choice([-1, 1], n) + r.standard_normal(n) * 0.01,
    "forty clusters": lambda r, n: r.choice(r.standard_normal(40), n) + r.standard_normal(n) * 0.003,
    "17 values": lambda r, n: r.choice(r.standard_normal(17), n),
    "300 values": lambda r, n: r.choice(r.standard_normal(300), n),
    "300 values of unequal weight": lambda r, n: r.choice(r.standard_normal(300), n, p=r.dirichlet(np.ones(300) / 5)),
    "lattice": lambda r, n: np.round(r.standard_t(3, n) * 60) / 600,
    "subnormal": lambda r, n: r.integers(-900, 900, n) * SUBNORMAL,
    "few subnormal": lambda r, n: np.round(r.standard_normal(n) * 100) * SUBNORMAL,
    "subnormal and largest": lambda r, n: np.append(r.integers(-90, 90, n - 2) * SUBNORMAL, [-65504, 65504]),
}
"""Distributions on which rounding the centroids costs as much as clustering."""


def sample(name: str, n: int) -> np.ndarray:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return (SMOOTH | COARSE)[name](rng, n).astype(np.float16)


@pytest.mark.parametrize("n", [300, 5000])
@pytest.mark.parametrize("name", [*SMOOTH, *COARSE])
def test_error_is_within_half_a_percent_of_the_optimum(name: str, n: int) -> None:
    values = sample(name, n)
    wide, distinct = values.astype(np.float64), np.unique(values)
    for bits in BITS:
        found = kmeans_1d(values, 1 << bits)
        assert found.dtype == np.float16
        assert found.shape == (1 << bits,)
        assert (np.diff(found.astype(np.float64)) >= 0).all()
        error = squared_error(wide, found)
        if distinct.size <= 1 << bits:
            assert error == 0, bits
            continue
        exact, rounded = best_errors(values, 1 << bits)
        assert error <= LIMIT * rounded, (bits, error / rounded)
        if bits <= 6 and name in SMOOTH and n > 300:
            assert error <= LIMIT * exact, (bits, error / exact)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SMOOTH, *COARSE])
def test_error_of_a_whole_group_is_within_half_a_percent_of_the_optimum(name: str) -> None:
    values = sample(name, 8 * 3072)
    for bits in BITS:
        if np.unique(values).size > 1 << bits:
            error = squared_error(values.astype(np.float64), kmeans_1d(values, 1 << bits))
            assert error <= LIMIT * best_errors(values, 1 << bits)[1], bits


@pytest.mark.parametrize("count", [16, 128, 1024])
@pytest.mark.parametrize("name", [*SMOOTH, *COARSE])
def test_bins_hold_all_points_in_order(name: str, count: int) -> None:
    groups = np.stack([sample(name, 700), sample("gaussian", 700), sample(name, 700)])
    points = points_of_rows(to_codes(groups))
    bins = make_bins(points, count)
    for group, values in enumerate(np.sort(groups.astype(np.float64), axis=1)):
        places = bins.places[:, group]
        assert places[0] == points.starts[group]
        assert places[-1] == points.starts[group + 1]
        ends = np.rint(bins.mass[:, group] - bins.mass[0, group]).astype(int)
        assert ends[-1] == values.size
        for b, held in enumerate(np.split(values, ends[1:-1])):
            assert np.unique(held).size == places[b + 1] - places[b]
            second = bins.second[b + 1, group] - bins.second[b, group]
            np.testing.assert_allclose(second, (held**2).sum(), rtol=1e-9, atol=1e-12 * (values**2).mean())
        if np.unique(values).size <= count:
            assert np.diff(places).max() == 1


@pytest.mark.parametrize("values", [[0.0], [-0.0, 0.0], [0.3] * 100, [1e3, -2.5, 0.0], [SUBNORMAL, 65504, -65504]])
def test_few_values_are_kept_and_the_last_repeated(values: list[float]) -> None:
    distinct = np.unique(np.array(values, np.float16))
    found = kmeans_1d(np.array(values, np.float16), 16)
    np.testing.assert_array_equal(found[: distinct.size], distinct)
    assert (found[distinct.size :] == distinct[-1]).all()
    assert not np.signbit(found[found == 0]).any()


def test_weights_count_errors() -> None:
    values = sample("heavy tails", 4096)
    weights = np.random.default_rng(1).lognormal(sigma=2, size=values.size)
    weights[::7] = 0
    for k in (1, 2, 16, 64):
        error = squared_error(values.astype(np.float64), kmeans_1d(values, k, weights), weights)
        kept = weights > 0
        exact, _ = best_errors(values[kept], k, weights[kept])
        assert error <= LIMIT * exact, k
    np.testing.assert_array_equal(kmeans_1d(values, 16, np.full(values.size, 3.0)), kmeans_1d(values, 16))
    np.testing.assert_array_equal(kmeans_1d(values, 16, np.zeros(values.size)), kmeans_1d(values, 16))
    # Weights over thirty orders of magnitude, as squared gradients have
    wild = 10.0 ** np.random.default_rng(2).uniform(-30, 0, values.size)
    error = squared_error(values.astype(np.float64), kmeans_1d(values, 16, wild), wild)
    assert error <= LIMIT * best_errors(values, 16, wild)[0]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_wider_values_are_clustered_as_fp16(dtype: type) -> None:
    values = sample("gaussian", 4096).reshape(64, 64).astype(dtype)
    np.testing.assert_array_equal(kmeans_1d(values, 16), kmeans_1d(values.astype(np.float16).ravel(), 16))


def test_impossible_requests_are_refused() -> None:
    values = sample("gaussian", 100)
    for k in (0, 257):
        with pytest.raises(RecipeError, match=f"{k} clusters"):
            kmeans_1d(values, k)
    with pytest.raises(RecipeError, match="no values"):
        kmeans_1d(values[:0], 4)
    for weights in (-np.ones(100), np.full(100, np.nan), np.ones(99)):
        with pytest.raises(RecipeError, match="finite weight"):
            kmeans_1d(values, 4, weights)
    for bad in (np.inf, np.nan, 70000.0):
        with pytest.raises(CheckpointError, match="1 values that fp16 cannot hold"):
            kmeans_1d(np.array([1.0, bad, 2.0], np.float32), 4)
