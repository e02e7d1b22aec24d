"""Choosing the next token."""

import math

import numpy as np
from numpy.typing import NDArray

from anemone.errors import ExecuteError, RequestError
from anemone.runtime.engine import Candidates, Output

Scores = NDArray[np.float64]  # (V,), minus infinity for a token that is ruled out


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
        probabilities = self.probabilities(output)
        kept = np.flatnonzero(probabilities)
        cumulative = np.cumsum(probabilities[kept])
        draw = self._random.random() * cumulative[-1]
        place = int(np.searchsorted(cumulative, draw, side="right"))
        return int(kept[min(place, kept.size - 1)])  # the product may have rounded up to the whole sum

    def probabilities(self, logits: NDArray[np.float32]) -> NDArray[np.float64]:
        """The distribution (V,) that ``pick`` draws from, float64; tokens ruled out have exactly 0."""
        best = _best(logits)
        if self.greedy:
            chosen = np.zeros(logits.shape, np.float64)
            chosen[best] = 1.0
            return chosen
        scores = logits.astype(np.float64) / self.temperature
        if self.top_k:
            scores = keep_top_k(scores, self.top_k)
        if self.top_p < 1:
            scores = keep_top_p(scores, self.top_p)
        return softmax(scores)


def keep_top_k(scores: Scores, k: int) -> Scores:
    """Rule out every token below the k-th best; tokens equal to it stay."""
    if k >= scores.size:
        return scores
    least = np.partition(scores, -k)[-k]
    return np.where(scores < least, -np.inf, scores)


def keep_top_p(scores: Scores, p: float) -> Scores:
    """Rule out the least likely tokens while those removed together have a probability of at most 1 - p.

    At least one stays. Among equal tokens the first stay, as a greedy choice would have it.
    """
    alive = np.flatnonzero(scores > -np.inf)[::-1]
    ascending = alive[np.argsort(scores[alive], kind="stable")]
    removed = np.cumsum(softmax(scores[ascending])) <= 1 - p
    removed[-1] = False
    kept = scores.copy()
    kept[ascending[removed]] = -np.inf
    return kept


def softmax(scores: Scores) -> NDArray[np.float64]:
    """Probabilities of the scores, safe against overflow."""
    weights = np.exp(scores - scores.max())
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
