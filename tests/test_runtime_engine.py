"""The engine over a bundle's packages: what it sends, and that every way to fill the cache gives the same answer."""

import numpy as np
import pytest
from runtime_fakes import Package, bundle

from anemone.errors import ExecuteError
from anemone.runtime.bundle_engine import BundleEngine
from anemone.runtime.engine import Engine
from anemone.runtime.session import Session
from anemone.runtime.spans import spans

FACTS = bundle()
LENGTHS = (1, FACTS.batch - 1, FACTS.batch, FACTS.batch + 1, 2 * FACTS.batch, 2 * FACTS.batch + 1, FACTS.context - 1)


def engine(**changes: object) -> BundleEngine:
    facts = bundle(**changes)
    return BundleEngine(facts, lambda path: Package(path, facts))


def prompt(length: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(length).integers(0, FACTS.vocab, length)]


def one_by_one(runner: Engine, ids: list[int]) -> np.ndarray:
    state = runner.new_state()
    return np.stack([runner.step(state, token, position) for position, token in enumerate(ids)])


def greedy(runner: Engine, ids: list[int], count: int) -> list[int]:
    return list(Session(runner).generate(ids, max_tokens=count))


@pytest.mark.parametrize("length", LENGTHS)
def test_score_gives_the_logits_of_single_steps(length: int) -> None:
    runner = engine()
    ids = prompt(length)
    state = runner.new_state()
    rows = [
        runner.score(state, ids[begin:end], begin, first=max(0, done - begin))
        for done, (begin, end) in _batches(runner, ids)
    ]
    np.testing.assert_allclose(np.concatenate(rows), one_by_one(runner, ids), rtol=0, atol=1e-5)


def _batches(runner: BundleEngine, ids: list[int]) -> list[tuple[int, tuple[int, int]]]:
    ranges = list(spans(0, len(ids), runner.batch, runner.context))
    return list(zip([0, *(end for _, end in ranges)], ranges, strict=False))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("has_score", [True, False])
@pytest.mark.parametrize("argmax", [True, False])
def test_every_prompt_length_decodes_as_one_by_one(length: int, has_score: bool, argmax: bool) -> None:
    runner = engine(has_score=has_score, argmax=argmax)
    ids = prompt(length)
    expected: list[int] = []
    while len(ids) + len(expected) <= runner.context and len(expected) < 5:
        expected.append(int(one_by_one(engine(), ids + expected)[-1].argmax()))
    assert greedy(runner, ids, 5) == expected


@pytest.mark.parametrize("position", [FACTS.context - 3, FACTS.context - 2])
def test_a_batch_that_cannot_be_padded_goes_token_by_token(position: int) -> None:
    runner = engine()
    ids = prompt(FACTS.context)
    expected = one_by_one(runner, ids)
    state = runner.new_state()
    for begin in range(position):
        runner.prefill(state, [ids[begin]], begin)
    np.testing.assert_allclose(runner.score(state, ids[position:], position), expected[position:], atol=1e-5)
    runner.prefill(state, ids[position:], position)
    np.testing.assert_allclose(runner.step(state, ids[-1], len(ids) - 1), expected[-1], atol=1e-5)


def test_only_the_wanted_row_passes_the_whole_head() -> None:
    runner = engine()
    state = runner.new_state()
    row = runner.score(state, [3, 1, 2], 0, first=2)
    assert row.shape == (1, FACTS.vocab)
    assert row.dtype == np.float32
    assert runner._head.calls == ["main"]
    assert runner.score(state, [3, 1, 2], 0, first=1).shape == (2, FACTS.vocab)


def test_argmax_parts_count_from_their_own_first_token() -> None:
    ids = prompt(6)
    state = (runner := engine(argmax=True)).new_state()
    found = [runner.step(state, token, position) for position, token in enumerate(ids)][-1]
    logits = one_by_one(engine(), ids)[-1]
    np.testing.assert_allclose(logits[found.ids], found.values)
    assert found.ids[found.values.argmax()] == logits.argmax()


def test_what_does_not_fit_is_refused() -> None:
    runner = engine()
    state = runner.new_state()
    for ids, position, words in (
        ([0] * 5, 0, "5 tokens in one call"),
        ([], 0, "0 tokens in one call"),
        ([1], FACTS.context, "context of 24"),
        ([1], -1, "context of 24"),
        ([FACTS.vocab], 0, "vocabulary of 20"),
        ([-1, 1], 0, "vocabulary of 20"),
    ):
        with pytest.raises(ExecuteError, match=words):
            runner.prefill(state, ids, position)
    with pytest.raises(ExecuteError, match="no score function"):
        engine(has_score=False).score(state, [1, 2], 0)
    with pytest.raises(ExecuteError, match="start earlier"):
        engine(argmax=True).score(state, [1, 2], FACTS.context - 2)


def test_a_package_without_a_promised_function_is_refused() -> None:
    facts, plain = bundle(), bundle(has_score=False)
    with pytest.raises(ExecuteError, match=r"chunk_02.mlpackage has no function 'score' \(it has infer, prefill\)"):
        BundleEngine(facts, lambda path: Package(path, plain))


@pytest.mark.parametrize("context", [4, 5, 7, 12])
@pytest.mark.parametrize("batch", [1, 3, 4])
def test_spans_cover_every_position_and_leave_room_for_padding(context: int, batch: int) -> None:
    for start in range(context):
        for stop in range(start, context + 1):
            covered: set[int] = set()
            for begin, end in spans(start, stop, batch, context):
                assert begin <= start + len(covered - set(range(start)))
                assert end - begin <= batch
                assert end - begin == 1 or begin + batch <= context
                covered |= set(range(begin, end))
            assert covered >= set(range(start, stop))
            assert all(position < stop for position in covered)
