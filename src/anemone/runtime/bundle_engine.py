"""The engine over a bundle's packages: embeddings, chunks that share one state, and the language-model head.

It speaks the input and output names of bundles and leaves running a package to whatever opens it, so the same code
serves every way to run one.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from anemone.errors import ExecuteError
from anemone.runtime.engine import Candidates, Output, State

if TYPE_CHECKING:
    from anemone.package.bundle import Bundle

Array = NDArray[np.generic]

# Added to the scores of hidden positions: far enough for a weight of exactly 0 after softmax, and finite in fp16, so
# that no sum can become a NaN.
HIDDEN = np.float16(-40000)


class Runner(Protocol):
    """An opened package."""

    @property
    def functions(self) -> Collection[str]: ...

    def new_state(self) -> State: ...

    def predict(
        self, inputs: Mapping[str, Array], state: State | None = None, function: str | None = None
    ) -> Mapping[str, Array]: ...


class BundleEngine:
    """An ``Engine`` (see engine.py) over the packages of ``bundle``; ``open_package`` opens one of them.

    Raises ExecuteError for a package without the functions that the bundle promises.
    """

    def __init__(self, bundle: "Bundle", open_package: Callable[[Path], Runner]) -> None:
        self.context = bundle.context
        self.batch = bundle.batch
        self.vocab = bundle.vocab
        self.has_score = bundle.has_score
        self.argmax = bundle.argmax
        self._offsets = np.cumsum((0, *bundle.head_sizes[:-1]))  # first token id of each part of the head
        self._columns = np.arange(bundle.context)
        score = ("score",) if bundle.has_score else ()
        self._embeddings = _open(open_package, bundle.embeddings, ("main",))
        self._chunks = [_open(open_package, path, ("infer", "prefill")) for path in bundle.chunks[:-1]]
        self._chunks.append(_open(open_package, bundle.chunks[-1], ("infer", "prefill", *score)))
        self._head = _open(open_package, bundle.lm_head, ("main", *score))

    def new_state(self) -> State:
        """An empty cache, shared by all chunks and functions."""
        return self._chunks[0].new_state()

    def prefill(self, state: State, ids: Sequence[int], position: int) -> None:
        """Put 1..batch tokens at ``position`` and after.

        One padded call where batch positions are free, else one call per token.
        """
        self._check(ids, position)
        if self._fits(ids, position):
            self._rows(state, ids, position, "prefill")
        else:
            for index, token in enumerate(ids):
                self._row(state, token, position + index)

    def step(self, state: State, token: int, position: int) -> Output:
        """Put one token at ``position``; the logits (V,) float32, or the candidates of a head with argmax."""
        self._check((token,), position)
        hidden = self._row(state, token, position)
        return self._candidates(hidden) if self.argmax else np.asarray(self._logits(hidden, "main")[0])

    def score(self, state: State, ids: Sequence[int], position: int, first: int = 0) -> NDArray[np.float32]:
        """As ``prefill``, and the logits (n - first, V) float32 after each of the n tokens from index ``first`` on.

        Raises ExecuteError without has_score, and for a head with argmax when fewer than batch positions are free.
        """
        self._check(ids, position)
        if not self.has_score:
            raise ExecuteError("This bundle has no score function: convert again without --no-score.")
        if self._fits(ids, position):
            hidden = self._rows(state, ids, position, "score")  # (1, B, H)
            if len(ids) - first == 1 and not self.argmax:
                return self._logits(hidden[:, len(ids) - 1 : len(ids)], "main")
            return self._logits(hidden, "score")[first : len(ids)]
        if self.argmax:
            raise ExecuteError(
                f"Scoring at position {position} needs {self.batch} free positions of the context of {self.context}: "
                "start earlier, with known tokens."
            )
        rows = [self._row(state, token, position + index) for index, token in enumerate(ids)]
        return np.concatenate([self._logits(row, "main") for row in rows[first:]])

    def _fits(self, ids: Sequence[int], position: int) -> bool:
        """Whether a call of batch rows may be used: its padding writes rows behind the tokens, which must exist."""
        return len(ids) > 1 and position + self.batch <= self.context

    def _check(self, ids: Sequence[int], position: int) -> None:
        if not 1 <= len(ids) <= self.batch:
            raise ExecuteError(f"{len(ids)} tokens in one call, but this bundle takes 1 to {self.batch}.")
        if position < 0 or position + len(ids) > self.context:
            last = position + len(ids) - 1
            raise ExecuteError(f"Positions {position} to {last} are not all inside the context of {self.context}.")
        if not 0 <= min(ids) <= max(ids) < self.vocab:
            raise ExecuteError(f"Token ids {min(ids)} to {max(ids)} are not all inside the vocabulary of {self.vocab}.")

    def _row(self, state: State, token: int, position: int) -> Array:
        """The last hidden state (1, 1, H) of one token, final norm applied."""
        return self._run(state, np.array([[token]], np.int32), position, ["infer"] * len(self._chunks))

    def _rows(self, state: State, ids: Sequence[int], position: int, last: str) -> Array:
        """Batch rows, padded with token 0, through ``prefill`` and function ``last`` of the last chunk; its output.

        The padding's keys and values stay unseen: each position is written again before a token may look at it.
        """
        tokens = np.zeros((1, self.batch), np.int32)
        tokens[0, : len(ids)] = ids
        return self._run(state, tokens, position, ["prefill"] * (len(self._chunks) - 1) + [last])

    def _run(self, state: State, tokens: NDArray[np.int32], position: int, functions: Sequence[str]) -> Array:
        positions = np.arange(position, position + tokens.shape[1], dtype=np.int32)  # (S,)
        visible = self._columns <= positions[:, None]  # (S, C)
        where = {
            "position_ids": positions,
            "causal_mask": np.where(visible, np.float16(0), HIDDEN)[None, None],  # (1, 1, S, C)
            "current_pos": positions[:1],
        }
        hidden = self._embeddings.predict({"input_ids": tokens}, function="main")["hidden_states"]  # (1, S, H)
        for chunk, function in zip(self._chunks, functions, strict=True):
            hidden = chunk.predict({"hidden_states": hidden, **where}, state, function)["output_hidden_states"]
        return hidden

    def _candidates(self, hidden: Array) -> Candidates:
        found = self._head.predict({"hidden_states": hidden}, function="main")
        ids = output(found, "argmax_idx").astype(np.int64) + self._offsets  # each part counts from its own first token
        return Candidates(ids, output(found, "argmax_val").astype(np.float32))

    def _logits(self, hidden: Array, function: str) -> NDArray[np.float32]:
        """(1, S, H) to (S, V): the parts of the head side by side."""
        parts = self._head.predict({"hidden_states": hidden}, function=function)
        names = [f"logits{index + 1}" for index in range(self._offsets.size)]
        return np.concatenate([output(parts, name)[0] for name in names], axis=-1, dtype=np.float32)


def output(outputs: Mapping[str, Array], name: str) -> Array:
    """The output ``name``. ExecuteError where a package lacks what its bundle promises."""
    if name not in outputs:
        raise ExecuteError(
            f"A package gives no {name} (it gives {', '.join(outputs)}), but its bundle promises it: convert again."
        )
    return outputs[name]


def _open(open_package: Callable[[Path], Runner], path: Path, functions: Collection[str]) -> Runner:
    package = open_package(path)
    missing = [name for name in functions if name not in package.functions]
    if missing:
        raise ExecuteError(
            f"{path.name} has no function {missing[0]!r} (it has {', '.join(package.functions)}), but its bundle "
            "promises it: convert this part again."
        )
    return package
