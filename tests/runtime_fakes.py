"""Stand-ins for a model: an engine whose logits depend on every earlier token, and packages computed in numpy."""

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from anemone.runtime.engine import Candidates

UNSEEN = -1


def next_logits(prefix: Sequence[int], vocab: int) -> np.ndarray:
    """Random logits (V,) that any change to the prefix changes."""
    seed = zlib.crc32(np.asarray(prefix, np.int32).tobytes())
    return np.random.default_rng(seed).normal(size=vocab).astype(np.float32) * 3


@dataclass
class ToyEngine:
    """Remembers tokens instead of keys and values, pads as real engines do, and records its calls."""

    context: int = 32
    batch: int = 4
    vocab: int = 50
    has_score: bool = True
    argmax: bool = False
    calls: list[tuple[str, int, int]] = field(default_factory=list)  # name, position, tokens

    def new_state(self) -> np.ndarray:
        return np.full(self.context, UNSEEN)

    def prefill(self, state: np.ndarray, ids: Sequence[int], position: int) -> None:
        self.calls.append(("prefill", position, len(ids)))
        self._write(state, ids, position)

    def step(self, state: np.ndarray, token: int, position: int) -> np.ndarray | Candidates:
        self.calls.append(("step", position, 1))
        state[position] = token
        logits = next_logits(state[: position + 1], self.vocab)
        if not self.argmax:
            return logits
        halves = np.split(logits, [self.vocab // 2])
        ids = np.array([halves[0].argmax(), halves[1].argmax() + self.vocab // 2])
        return Candidates(ids, logits[ids])

    def score(self, state: np.ndarray, ids: Sequence[int], position: int, first: int = 0) -> np.ndarray:
        self.calls.append(("score", position, len(ids)))
        self._write(state, ids, position)
        rows = range(position + first, position + len(ids))
        return np.stack([next_logits(state[: row + 1], self.vocab) for row in rows])

    def _write(self, state: np.ndarray, ids: Sequence[int], position: int) -> None:
        assert 1 <= len(ids) <= self.batch
        if len(ids) > 1:
            assert position + self.batch <= self.context, "the padding would leave the context"
            state[position : position + self.batch] = 0
        state[position : position + len(ids)] = ids


HIDDEN_SIZE = 8


def bundle(**changes: Any) -> SimpleNamespace:
    """What an engine reads of a bundle: two chunks, a head in three unequal parts."""
    facts = {
        "context": 24,
        "batch": 4,
        "vocab": 20,
        "embeddings": Path("embeddings.mlpackage"),
        "chunks": (Path("chunk_01.mlpackage"), Path("chunk_02.mlpackage")),
        "lm_head": Path("lm_head.mlpackage"),
        "argmax": False,
        "head_sizes": (7, 7, 6),
        "has_score": True,
    }
    return SimpleNamespace(**{**facts, **changes})


class Package:
    """One package of a two-layer attention model, strict about names, shapes and dtypes; float32 inside."""

    def __init__(self, path: Path, facts: SimpleNamespace) -> None:
        self.facts = facts
        self.path = path
        self.layer = facts.chunks.index(path) if path in facts.chunks else None
        self.last = self.layer == len(facts.chunks) - 1
        score = ["score"] if facts.has_score else []
        if self.layer is None:
            self.functions: Collection[str] = ["main", *(score if path == facts.lm_head else [])]
        else:
            self.functions = ["infer", "prefill", *(score if self.last else [])]
        self.calls: list[str] = []
        random = np.random.default_rng(7)
        self.table = random.normal(size=(facts.vocab, HIDDEN_SIZE)).astype(np.float32)
        self.mix = random.normal(size=(4, len(facts.chunks), HIDDEN_SIZE, HIDDEN_SIZE)).astype(np.float32) * 0.5

    def new_state(self) -> np.ndarray:
        return np.zeros((2, len(self.facts.chunks), self.facts.context, HIDDEN_SIZE), np.float32)

    def predict(
        self, inputs: Mapping[str, np.ndarray], state: np.ndarray | None = None, function: str | None = None
    ) -> dict[str, np.ndarray]:
        assert function in self.functions
        self.calls.append(function)
        if self.path == self.facts.embeddings:
            return self._embed(**inputs)
        if self.path == self.facts.lm_head:
            return self._head(function, **inputs)
        assert state is not None
        return self._chunk(function, state, **inputs)

    def _embed(self, input_ids: np.ndarray) -> dict[str, np.ndarray]:
        assert input_ids.dtype == np.int32
        assert input_ids.shape in ((1, 1), (1, self.facts.batch))
        return {"hidden_states": self.table[input_ids]}

    def _chunk(
        self,
        function: str,
        state: np.ndarray,
        hidden_states: np.ndarray,
        position_ids: np.ndarray,
        causal_mask: np.ndarray,
        current_pos: np.ndarray,
    ) -> dict[str, np.ndarray]:
        rows = 1 if function == "infer" else self.facts.batch
        assert hidden_states.shape == (1, rows, HIDDEN_SIZE)
        assert position_ids.dtype == current_pos.dtype == np.int32
        assert causal_mask.dtype == np.float16
        assert causal_mask.shape == (1, 1, rows, self.facts.context)
        assert np.isfinite(causal_mask).all()
        begin = int(current_pos[0])
        assert position_ids.tolist() == list(range(begin, begin + rows))
        assert begin + rows <= self.facts.context
        query, key, value, out = self.mix[:, self.layer]
        x = hidden_states[0]
        keys, values = state[0, self.layer], state[1, self.layer]
        keys[begin : begin + rows] = x @ key + np.sin(position_ids)[:, None]
        values[begin : begin + rows] = x @ value
        scores = (x @ query) @ keys.T + causal_mask[0, 0]
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        x = x + np.tanh(weights / weights.sum(-1, keepdims=True) @ values @ out)
        if not self.last:
            return {"output_hidden_states": x[None]}
        if function == "prefill":
            return {"output_hidden_states": np.full((1, 1, HIDDEN_SIZE), np.nan, np.float32)}
        return {"output_hidden_states": (x / np.sqrt(np.mean(x * x, -1, keepdims=True)))[None]}

    def _head(self, function: str, hidden_states: np.ndarray) -> dict[str, np.ndarray]:
        assert hidden_states.shape == (1, self.facts.batch if function == "score" else 1, HIDDEN_SIZE)
        logits = hidden_states @ self.table.T
        parts = np.split(logits, np.cumsum(self.facts.head_sizes)[:-1], axis=-1)
        if self.facts.argmax and function == "main":
            return {
                "argmax_idx": np.array([part[0, 0].argmax() for part in parts], np.int32),
                "argmax_val": np.array([part[0, 0].max() for part in parts], np.float32),
            }
        return {f"logits{index + 1}": part for index, part in enumerate(parts)}
