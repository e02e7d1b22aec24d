"""How far one set of next-token distributions is from another, accumulated over batches of rows."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 16
"""Rows taken at a time, so that float64 copies of wide vocabularies stay small."""


@dataclass
class Divergence:
    """Rows of logits against the reference's: top-1 agreement, KL(reference || other) in nats, cosine.

    ``ties`` counts the rows whose choices differ although the reference holds them less than one fp16 step apart: no
    fp16 logits could tell these two tokens from each other.
    """

    rows: int = 0
    agreed: int = 0
    ties: int = 0
    kl: list[float] = field(default_factory=list)
    cosine: list[float] = field(default_factory=list)

    def add(self, reference: NDArray[np.float32], other: NDArray[np.float32]) -> None:
        """Both (rows, vocab)."""
        for start in range(0, len(reference), BLOCK):
            self._add(reference[start : start + BLOCK], other[start : start + BLOCK])

    def add_choices(self, reference: NDArray[np.float32], choices: NDArray[np.integer[Any]]) -> None:
        """Where the other gives only its first choice (rows,), as a head with an argmax inside does."""
        rows, best = np.arange(len(choices)), reference.argmax(axis=1)
        gap = reference[rows, best] - reference[rows, choices]
        step = np.spacing(np.abs(reference[rows, best]).astype(np.float16)).astype(np.float32)
        self.rows += len(choices)
        self.agreed += int((best == choices).sum())
        self.ties += int(((best != choices) & (gap < step)).sum())

    def _add(self, reference: NDArray[np.float32], other: NDArray[np.float32]) -> None:
        self.add_choices(reference, other.argmax(axis=1))
        log_p, log_q = log_softmax(reference), log_softmax(other)
        self.kl += (np.exp(log_p) * (log_p - log_q)).sum(axis=1).tolist()
        self.cosine += cosines(reference, other).tolist()

    @property
    def top1(self) -> float:
        return self.agreed / self.rows

    @property
    def top1_or_tie(self) -> float:
        return (self.agreed + self.ties) / self.rows

    @property
    def mean_kl(self) -> float | None:
        return float(np.mean(self.kl)) if self.kl else None

    def as_dict(self) -> dict[str, Any]:
        """KL and cosine are None where there were only choices."""
        return {
            "tokens": self.rows,
            "top1_agreement": self.top1,
            "top1_ties": self.ties,
            "mean_kl": self.mean_kl,
            "max_kl": float(np.max(self.kl)) if self.kl else None,
            "min_cosine": float(np.min(self.cosine)) if self.cosine else None,
        }


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """(rows, vocab) -> natural logarithms of the probabilities."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def relative_errors(reference: NDArray[np.floating[Any]], other: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Length of the difference of each pair of rows over the reference's: unlike a cosine it sees a wrong scale.

    0 where both are zero, infinite where only the reference is, NaN where either is not finite.
    """
    wanted, found = reference.astype(np.float64), other.astype(np.float64)
    difference, length = np.linalg.norm(found - wanted, axis=1), np.linalg.norm(wanted, axis=1)
    return np.where(
        length == 0, np.where(difference == 0, 0.0, np.inf), difference / np.where(length == 0, 1.0, length)
    )


def cosines(a: NDArray[np.floating[Any]], b: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Cosine of each pair of rows: 1 where both are zero, 0 where one is, NaN where either is not finite."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    lengths = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    both_zero = ~(x.any(axis=1) | y.any(axis=1))
    return np.where(both_zero, 1.0, (x * y).sum(axis=1) / np.where(lengths == 0, 1.0, lengths))
