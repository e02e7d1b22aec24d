"""What a session keeps, what it computes again, and why it stops."""

import random

import numpy as np
import pytest
from runtime_fakes import ToyEngine, next_logits

from anemone.errors import RequestError
from anemone.runtime.sampling import Sampler
from anemone.runtime.session import Session


def plain(ids: list[int], count: int, vocab: int = 50, sampler: Sampler | None = None) -> list[int]:
    """The continuation by definition: each token from the whole text before it."""
    sampler = sampler or Sampler()
    tokens = list(ids)
    for _ in range(count):
        tokens.append(sampler.pick(next_logits(tokens, vocab)))
    return tokens[len(ids) :]


PROMPT = [4, 8, 15, 16, 23, 42, 7, 9, 3]


def test_a_prompt_with_score_needs_one_call_per_batch() -> None:
    engine = ToyEngine()
    run = Session(engine).generate(PROMPT, max_tokens=3)
    assert list(run) == plain(PROMPT, 3)
    assert engine.calls == [
        ("prefill", 0, 4),
        ("prefill", 4, 4),
        ("score", 8, 1),
        ("step", 9, 1),
        ("step", 10, 1),
    ]
    assert run.stop_reason == "length"
    assert (run.prompt_tokens, run.prefill_tokens, run.decode_tokens) == (9, 9, 2)
    assert run.prefill_seconds > 0
    assert run.decode_seconds > 0


def test_without_score_the_last_prompt_token_is_a_step() -> None:
    engine = ToyEngine(has_score=False)
    assert list(Session(engine).generate(PROMPT, max_tokens=2)) == plain(PROMPT, 2)
    assert engine.calls == [("prefill", 0, 4), ("prefill", 4, 4), ("step", 8, 1), ("step", 9, 1)]


@pytest.mark.parametrize("has_score", [True, False])
def test_a_second_turn_computes_only_its_new_tokens(has_score: bool) -> None:
    engine = ToyEngine(has_score=has_score)
    session = Session(engine)
    answer = list(session.generate(PROMPT, max_tokens=4))
    engine.calls.clear()
    second = PROMPT + answer + [11, 12]
    run = session.generate(second, max_tokens=2)
    assert list(run) == plain(second, 2)
    # The last token of the answer was given out but never computed, so three tokens are new.
    assert run.prefill_tokens == 3
    assert sum(tokens for _, _, tokens in engine.calls) == 3 + 1
    assert min(position for _, position, _ in engine.calls) == len(PROMPT) + 3


def test_the_same_prompt_again_costs_one_token() -> None:
    engine = ToyEngine()
    session = Session(engine)
    first = list(session.generate(PROMPT, max_tokens=5))
    engine.calls.clear()
    run = session.generate(PROMPT, max_tokens=1)
    assert list(run) == first[:1]
    assert engine.calls == [("score", 8, 1)]
    assert run.prefill_tokens == 1


@pytest.mark.parametrize("has_score", [True, False])
@pytest.mark.parametrize("argmax", [True, False])
def test_any_edit_of_the_history_equals_a_fresh_session(has_score: bool, argmax: bool) -> None:
    draw = random.Random(1)
    session = Session(ToyEngine(has_score=has_score, argmax=argmax))
    ids = PROMPT
    for turn in range(60):
        count = draw.randint(1, 4)
        # Random answers where the engine can, so that a wrong row of logits cannot hide behind its largest value.
        sampler, fresh = (Sampler(),) * 2 if argmax else (Sampler(1.0, seed=turn), Sampler(1.0, seed=turn))
        answer = list(session.generate(ids, max_tokens=count, sampler=sampler))
        assert answer == plain(ids, len(answer), sampler=fresh)
        assert len(answer) == min(count, 32 - len(ids) + 1)
        ids = (ids + answer)[: draw.randint(0, 31)] + [draw.randrange(50) for _ in range(draw.randint(0, 3))]
        ids = ids[:32] or PROMPT


def test_a_stop_token_ends_and_is_not_given() -> None:
    expected = plain(PROMPT, 6)
    session = Session(ToyEngine(), stop_tokens=[expected[3]])
    run = session.generate(PROMPT)
    assert list(run) == expected[: expected.index(expected[3])]
    assert run.stop_reason == "stop"


@pytest.mark.parametrize("length", [30, 31, 32])
def test_the_context_ends_a_generation(length: int) -> None:
    ids = [token % 50 for token in range(length)]
    run = Session(ToyEngine()).generate(ids)
    assert list(run) == plain(ids, 33 - length)
    assert run.stop_reason == "context"


def test_max_tokens_is_named_before_the_context() -> None:
    run = Session(ToyEngine()).generate(list(range(32)), max_tokens=1)
    assert len(list(run)) == 1
    assert run.stop_reason == "length"


def test_what_cannot_work_is_refused_before_any_call() -> None:
    engine = ToyEngine()
    session = Session(engine)
    with pytest.raises(RequestError, match=r"33 tokens, but .* context of 32: shorten it, or convert .*--context 512"):
        session.generate([1] * 33)
    with pytest.raises(RequestError, match="no tokens"):
        session.generate([])
    with pytest.raises(RequestError, match=r"id 50 is outside .* vocabulary of 50"):
        session.generate([1, 50])
    with pytest.raises(RequestError, match="max-tokens is 0"):
        session.generate([1], max_tokens=0)
    with pytest.raises(RequestError, match="without --argmax"):
        Session(ToyEngine(argmax=True)).generate([1], sampler=Sampler(0.5))
    assert engine.calls == []


def test_a_long_prompt_is_told_the_context_it_needs() -> None:
    with pytest.raises(RequestError, match="--context 2048"):
        Session(ToyEngine()).generate([1] * 1024)


def test_cancelling_stops_before_the_next_call_and_keeps_the_cache_right() -> None:
    for allowed in range(7):
        engine = ToyEngine()
        session = Session(engine)
        run = session.generate(PROMPT, max_tokens=20, cancel=lambda: len(engine.calls) >= allowed)  # noqa: B023
        given = list(run)
        assert given == plain(PROMPT, len(given))
        assert len(engine.calls) == allowed
        assert run.stop_reason == "cancelled"
        other = [*PROMPT[:6], 1, 2]
        assert list(session.generate(other, max_tokens=3)) == plain(other, 3)


def test_a_caller_that_leaves_keeps_what_was_computed() -> None:
    engine = ToyEngine()
    session = Session(engine)
    run = session.generate(PROMPT)
    tokens = iter(run)
    given = [next(tokens), next(tokens)]
    assert run.stop_reason is None
    tokens.close()
    assert run.stop_reason == "cancelled"
    assert session.tokens == PROMPT + given[:1]


def test_a_newer_generation_ends_the_older_one() -> None:
    session = Session(ToyEngine())
    older = session.generate(PROMPT)
    first = next(iter(older))
    newer = session.generate([1, 2, 3], max_tokens=3)
    assert list(newer) == plain([1, 2, 3], 3)
    assert list(older) == []
    assert older.stop_reason == "cancelled"
    assert first == plain(PROMPT, 1)[0]


def test_an_engine_that_fails_leaves_a_usable_session() -> None:
    engine = ToyEngine()
    session = Session(engine)
    list(session.generate(PROMPT, max_tokens=2))
    step, engine.step = engine.step, None  # type: ignore[method-assign, assignment]
    run = session.generate([*PROMPT[:5], 30], max_tokens=2)
    with pytest.raises(TypeError):
        list(run)
    assert run.stop_reason is None
    engine.step = step  # type: ignore[method-assign]
    assert list(session.generate(PROMPT, max_tokens=4)) == plain(PROMPT, 4)


def test_seeded_sampling_does_not_depend_on_what_was_cached() -> None:
    session = Session(ToyEngine())
    first = list(session.generate(PROMPT, max_tokens=8, sampler=Sampler(1.0, seed=9)))
    again = list(session.generate(PROMPT, max_tokens=8, sampler=Sampler(1.0, seed=9)))
    assert first == again == plain(PROMPT, 8, sampler=Sampler(1.0, seed=9))
    assert len(np.unique(first)) > 1
