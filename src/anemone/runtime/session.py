"""A conversation with an engine: what is in its cache, and how tokens are added to it."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import takewhile
from typing import Literal

from anemone.errors import RequestError
from anemone.runtime.engine import Engine, Output
from anemone.runtime.sampling import Sampler
from anemone.runtime.spans import spans

StopReason = Literal["stop", "length", "context", "cancelled"]
Cancel = Callable[[], bool]


class _Cancelled(Exception):
    """The caller asked to stop between two calls of the engine."""


class Session:
    """An engine, one state of it, and the tokens whose keys and values the state holds (``tokens``, from position 0).

    Between calls the cache stays: the next prompt costs only what it does not share with ``tokens``. One generation
    runs at a time: one that is asked for its first token ends the one before it.
    """

    def __init__(self, engine: Engine, stop_tokens: Collection[int] = ()) -> None:
        self.engine = engine
        self.stop_tokens = frozenset(stop_tokens)
        self.tokens: list[int] = []
        self._state = engine.new_state()
        self._running: Generation | None = None

    def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        max_tokens: int | None = None,
        sampler: Sampler | None = None,
        cancel: Cancel | None = None,
    ) -> "Generation":
        """Prepare a continuation of the prompt; iterating over it runs the model.

        max_tokens: at least 1; None goes on until a stop token or the end of the context. sampler: greedy by default.
        cancel: asked before every call of the engine; True ends the generation.
        Raises RequestError for a prompt that is empty or longer than the context, ids outside the vocabulary, and a
        sampler that the engine cannot serve.
        """
        sampler = sampler or Sampler()
        sampler.require(self.engine.argmax)
        if max_tokens is not None and max_tokens < 1:
            raise RequestError(f"max-tokens is {max_tokens}, but at least 1 token must be asked for.")
        self._check_prompt(prompt_ids)
        return Generation(self, list(prompt_ids), max_tokens, sampler, cancel or (lambda: False))

    def shared_prefix(self, ids: Sequence[int]) -> int:
        """How many leading tokens of ``ids`` the cache already holds."""
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self.tokens, ids, strict=False)))

    def _check_prompt(self, ids: Sequence[int]) -> None:
        context, vocab = self.engine.context, self.engine.vocab
        if not ids:
            raise RequestError("The prompt has no tokens: give at least one.")
        if len(ids) > context:
            raise RequestError(
                f"The prompt has {len(ids)} tokens, but this bundle was converted for a context of {context}: shorten "
                f"it, or convert again with --context {_next_context(len(ids))}."
            )
        wrong = next((token for token in ids if not 0 <= token < vocab), None)
        if wrong is not None:
            raise RequestError(f"Token id {wrong} is outside the model's vocabulary of {vocab}: is this its tokenizer?")

    def _prefill(self, ids: list[int], cancel: Cancel) -> tuple[Output, int]:
        """Process what the cache lacks of ``ids``; the output after the last one, and how many tokens that took."""
        engine = self.engine
        start = min(self.shared_prefix(ids), len(ids) - 1)  # the last token always runs: its output is wanted
        del self.tokens[start:]
        by_score = engine.has_score and not engine.argmax
        stop = len(ids) if by_score else len(ids) - 1
        for begin, end in spans(start, stop, engine.batch, engine.context):
            _check(cancel)
            if end == len(ids):
                output = engine.score(self._state, ids[begin:end], begin, first=end - begin - 1)[0]
                self.tokens = ids[:end]
                return output, len(ids) - start
            engine.prefill(self._state, ids[begin:end], begin)
            self.tokens = ids[:end]
        return self._step(ids[-1], cancel), len(ids) - start

    def _step(self, token: int, cancel: Cancel) -> Output:
        _check(cancel)
        output = self.engine.step(self._state, token, len(self.tokens))
        self.tokens.append(token)
        return output


class Generation:
    """The tokens of one continuation, computed as they are asked for; stop tokens end it and are not among them.

    While it runs and after it:
    stop_reason: None until the end, then "stop" (a stop token), "length" (max_tokens), "context" (no position is left)
        or "cancelled" (by ``cancel``, by a newer generation, or because the caller closed the iterator).
    prompt_tokens; prefill_tokens: those of the prompt that had to be computed; prefill_seconds: until the first token.
    decode_tokens: tokens computed one by one after the first; decode_seconds: their time, without the caller's own.
    """

    def __init__(
        self, session: Session, prompt: list[int], max_tokens: int | None, sampler: Sampler, cancel: Cancel
    ) -> None:
        self._session = session
        self._prompt = prompt
        self._max_tokens = max_tokens
        self._sampler = sampler
        self._cancel = cancel
        self._tokens = self._run()
        self.stop_reason: StopReason | None = None
        self.prompt_tokens = len(prompt)
        self.prefill_tokens = 0
        self.prefill_seconds = 0.0
        self.decode_tokens = 0
        self.decode_seconds = 0.0

    def __iter__(self) -> Iterator[int]:
        return self._tokens

    def _run(self) -> Iterator[int]:
        try:
            token = self._first()
            given = 1
            while token not in self._session.stop_tokens:
                yield token
                if given == self._max_tokens:
                    self.stop_reason = "length"
                    return
                if self.prompt_tokens + given > self._session.engine.context:
                    self.stop_reason = "context"
                    return
                token = self._next(token)
                given += 1
            self.stop_reason = "stop"
        except (_Cancelled, GeneratorExit):
            self.stop_reason = "cancelled"

    def _first(self) -> int:
        began = time.perf_counter()
        self._session._running = self
        output, self.prefill_tokens = self._session._prefill(self._prompt, self._interrupted)
        token = self._sampler.pick(output)
        self.prefill_seconds = time.perf_counter() - began
        return token

    def _next(self, token: int) -> int:
        began = time.perf_counter()
        token = self._sampler.pick(self._session._step(token, self._interrupted))
        self.decode_seconds += time.perf_counter() - began
        self.decode_tokens += 1
        return token

    def _interrupted(self) -> bool:
        return self._session._running is not self or self._cancel()


def _check(cancel: Cancel) -> None:
    if cancel():
        raise _Cancelled


def _next_context(tokens: int) -> int:
    """The usual context (a power of two, at least 512) that holds the tokens and leaves room for an answer."""
    context = 512
    while context <= tokens:
        context *= 2
    return context
