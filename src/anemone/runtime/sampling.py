"""Choosing the next token."""

import math

import numpy as np
from numpy.typing import NDArray

from anemone.errors import ExecuteError, RequestError
from anemone.runtime.engine import Candidates, Output

Ids = NDArray[np.int64]  # (N,) the tokens still in question, ascending
Scores = NDArray[np.float64]  # (N,) their logits over the temperature, the largest being 0


class Sampler:
    """Greedy at temperature 0, else a draw after temperature, top-k and top-p, in this order (as transformers does).

    temperature: at least 0. top_k: keep the k most likely tokens, 0 for all. top_p: keep the most likely tokens whose
    probabilities reach p, in (0, 1]. seed: the same seed gives the same draws; None takes a fresh one.
    Raises RequestError for other values.
    """

    def __init__(self, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, seed: int | None = None) -> None:
        if not (math.isfinite(temperature) and temperature >= 0):
            raise RequestError(f"temperature is {temperature}, but must be a number of at least 0 (0 is greedy).")
        if top_k < 0:
            raise RequestError(f"top-k is {top_k}, but must be 0 (keep every token) or the number of tokens to keep.")
        if not 0 < top_p <= 1:
            raise RequestError(f"top-p is {top_p}, but must be above 0 and at most 1 (1 keeps every token).")
        if seed is not None and seed < 0:
            raise RequestError(f"seed is {seed}, but must be a whole number of at least 0.")
        self.temperature = temperature
        self.top_k = top_k
        self.top_p = top_p
        self._random = np.random.default_rng(seed)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0

    def require(self, argmax: bool) -> None:
        """Raise RequestError when an engine that gives only candidates (``argmax``) cannot do what is asked."""
        if argmax and not self.greedy:
            raise RequestError(
                f"temperature is {self.temperature}, but this bundle finds the most likely token inside the model and "
                "gives no probabilities: use temperature 0, or convert again without --argmax."
            )

    def pick(self, output: Output) -> int:
        """The next token id, from logits (V,) or candidates."""
        if isinstance(output, Candidates):
            self.require(argmax=True)
            return int(output.ids[_best(output.values)])
        if self.greedy:
            return _best(output)
        ids, probabilities = self.distribution(output)
        cumulative = np.cumsum(probabilities)
        draw = self._random.random() * cumulative[-1]
        place = int(np.searchsorted(cumulative, draw, side="right"))
        return int(ids[min(place, ids.size - 1)])  # the product may have rounded up to the whole sum

    def distribution(self, logits: NDArray[np.float32]) -> tuple[Ids, NDArray[np.float64]]:
        """What ``pick`` draws from logits (V,): the ids (N,) that remain, ascending, and their probabilities (N,)."""
        best = _best(logits)
        if self.greedy:
            return np.array([best]), np.ones(1)
        exact = logits.astype(np.float64)
        with np.errstate(over="ignore"):  # near temperature 0 all but the best may fall to minus infinity
            scores = (exact - exact[best]) / self.temperature
        ids = np.flatnonzero(scores > -np.inf)
        scores = scores[ids]
        if self.top_k:
            ids, scores = keep_top_k(ids, scores, self.top_k)
        if self.top_p < 1:
            ids, scores = keep_top_p(ids, scores, self.top_p)
        return ids, softmax(scores)


def keep_top_k(ids: Ids, scores: Scores, k: int) -> tuple[Ids, Scores]:
    """The k best tokens, and those equal to the k-th."""
    if k >= scores.size:
        return ids, scores
    kept = scores >= np.partition(scores, -k)[-k]
    return ids[kept], scores[kept]


def keep_top_p(ids: Ids, scores: Scores, p: float) -> tuple[Ids, Scores]:
    """Without the least likely tokens, as long as those left out have together a probability of at most 1 - p.

    At least one stays. Among equal tokens the first stay, as a greedy choice would have it.
    """
    probabilities = softmax(scores)
    # All tokens below (1 - p) / N together cannot exceed 1 - p: they go without being sorted, and they are nearly all.
    kept = probabilities >= (1 - p) / scores.size
    unsure = np.flatnonzero(kept)[::-1]
    ascending = unsure[np.argsort(probabilities[unsure], kind="stable")]
    removed = probabilities[~kept].sum() + np.cumsum(probabilities[ascending]) <= 1 - p
    removed[-1] = False
    kept[ascending[removed]] = False
    return ids[kept], scores[kept]


def softmax(scores: Scores) -> NDArray[np.float64]:
    """Probabilities of scores whose largest is 0, so that none overflows."""
    weights = np.exp(scores)
    return np.asarray(weights / weights.sum())


def _best(logits: NDArray[np.float32]) -> int:
    """The index of the largest value, the first when several are equal."""
    best = int(np.argmax(logits))  # a NaN counts as the largest
    if not np.isfinite(logits[best]):
        raise ExecuteError(
            f"The model gave {logits[best]} as its largest logit, so no token can be chosen: its numbers overflowed "
            "(run `anemone verify` on the bundle)."
        )
    return best
