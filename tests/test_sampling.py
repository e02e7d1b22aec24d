"""Sampling against transformers' logits warpers."""

import numpy as np
import pytest

from anemone.errors import ExecuteError, RequestError
from anemone.runtime.engine import Candidates
from anemone.runtime.sampling import Sampler

SETTINGS = [
    (1.0, 0, 1.0),
    (0.7, 0, 1.0),
    (1.0, 1, 1.0),
    (1.3, 40, 1.0),
    (1.0, 5000, 1.0),
    (1.0, 0, 0.9),
    (0.6, 0, 0.05),
    (0.8, 50, 0.95),
    (2.0, 7, 0.5),
    (1e-3, 10, 0.9),
    (5.0, 0, 0.999),
]


def transformers_probabilities(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    torch = pytest.importorskip("torch")
    warpers = pytest.importorskip("transformers.generation.logits_process")
    chain = [warpers.TemperatureLogitsWarper(temperature)]
    chain += [warpers.TopKLogitsWarper(top_k)] if top_k else []
    chain += [warpers.TopPLogitsWarper(top_p)] if top_p < 1 else []
    scores = torch.from_numpy(logits.astype(np.float64))[None]
    for warper in chain:
        scores = warper(None, scores)
    return scores.softmax(-1)[0].numpy()


def probabilities(sampler: Sampler, logits: np.ndarray) -> np.ndarray:
    """The sampler's distribution over the whole vocabulary."""
    ids, kept = sampler.distribution(logits)
    assert (np.diff(ids) > 0).all()
    whole = np.zeros(logits.size)
    whole[ids] = kept
    return whole


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SETTINGS)
@pytest.mark.parametrize("kind", ["normal", "sharp", "fp16 with ties"])
def test_distribution_equals_transformers(temperature: float, top_k: int, top_p: float, kind: str) -> None:
    random = np.random.default_rng(len(kind))
    sampler = Sampler(temperature, top_k, top_p)
    for _ in range(20):
        logits = random.normal(size=1000).astype(np.float32) * (8 if kind == "sharp" else 2)
        if kind == "fp16 with ties":
            logits = np.round(logits * 4).astype(np.float16).astype(np.float32) / 4
        expected = transformers_probabilities(logits, temperature, top_k, top_p)
        found = probabilities(sampler, logits)
        if kind == "fp16 with ties":  # which of several equal tokens top-p keeps is not defined there
            found, expected = np.sort(found), np.sort(expected)
        np.testing.assert_array_equal(found > 0, expected > 0)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-300)


def test_draws_follow_the_distribution() -> None:
    logits = np.random.default_rng(3).normal(size=12).astype(np.float32) * 2
    sampler = Sampler(0.9, 8, 0.9, seed=5)
    draws = 20_000
    counts = np.bincount([sampler.pick(logits) for _ in range(draws)], minlength=logits.size)
    expected = probabilities(sampler, logits)
    assert (counts[expected == 0] == 0).all()
    kept = expected > 0
    chi_square = ((counts[kept] - draws * expected[kept]) ** 2 / (draws * expected[kept])).sum()
    assert chi_square < 3 * kept.sum()


def test_a_seed_repeats_the_draws() -> None:
    logits = np.random.default_rng(0).normal(size=500).astype(np.float32)
    runs = [[Sampler(1.0, seed=seed).pick(logits)] for seed in (1, 1)]
    assert runs[0] == runs[1]
    first, second = Sampler(1.0, seed=11), Sampler(1.0, seed=11)
    assert [first.pick(logits) for _ in range(50)] == [second.pick(logits) for _ in range(50)]
    other = Sampler(1.0, seed=12)
    assert [Sampler(1.0, seed=11).pick(logits) for _ in range(9)] != [other.pick(logits) for _ in range(9)]


def test_greedy_takes_the_first_of_the_largest() -> None:
    logits = np.array([0, 5, -1, 5], np.float32)
    assert Sampler().pick(logits) == 1
    assert probabilities(Sampler(), logits).tolist() == [0, 1, 0, 0]
    assert Sampler().pick(Candidates(np.array([30, 7]), np.array([2.0, 2.5], np.float32))) == 7


def test_top_p_keeps_the_greedy_token_of_equal_ones() -> None:
    logits = np.array([1, 2, 2, 2, 0], np.float32)
    assert Sampler(1.0, top_p=0.1).distribution(logits)[0].tolist() == [1]


def test_a_vanishing_temperature_is_greedy() -> None:
    logits = np.array([1, 3, 2], np.float32)
    assert probabilities(Sampler(5e-324), logits).tolist() == [0, 1, 0]


def test_candidates_serve_only_greedy() -> None:
    found = Candidates(np.array([3, 9]), np.array([1.0, 2.0], np.float32))
    with pytest.raises(RequestError, match="convert again without --argmax"):
        Sampler(0.7, seed=1).pick(found)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_k": -1}, "top-k is -1"),
        ({"top_p": 0}, "top-p is 0"),
        ({"top_p": 1.5}, "top-p is 1.5"),
        ({"top_p": float("nan")}, "top-p is nan"),
        ({"seed": -3}, "seed is -3"),
    ],
)
def test_impossible_settings_are_named(settings: dict[str, float], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        Sampler(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_choose_nothing(bad: float, temperature: float) -> None:
    logits = np.zeros(10, np.float32)
    logits[4] = bad
    with pytest.raises(ExecuteError, match="overflowed"):
        Sampler(temperature).pick(logits)


def test_ruled_out_tokens_are_never_drawn() -> None:
    logits = np.full(10, -np.inf, np.float32)
    logits[[2, 5]] = 1.0
    sampler = Sampler(1.0, top_p=0.99, seed=0)
    assert {sampler.pick(logits) for _ in range(50)} == {2, 5}
