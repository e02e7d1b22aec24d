"""What k-means needs to know of groups of numbers: their distinct values and how much each weighs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anemone.compress.codes import from_codes


@dataclass(frozen=True)
class Points:
    """Groups of weighted values, one group after the other.

    values, weights: float64 (points,), values ascending and distinct within a group; starts: int64 (groups + 1,).
    """

    values: NDArray[np.float64]
    weights: NDArray[np.float64]
    starts: NDArray[np.int64]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Distinct values of each group (groups,)."""
        return np.diff(self.starts)

    def take(self, groups: NDArray[np.bool_]) -> "Points":
        """The groups that are marked (groups,)."""
        if groups.all():
            return self
        kept = np.repeat(groups, self.counts)
        starts = np.concatenate([[0], np.cumsum(self.counts[groups])])
        return Points(self.values[kept], self.weights[kept], starts)


def points_of_rows(codes: NDArray[np.int16]) -> Points:
    """Each row of codes (groups, numbers) as a group; every number weighs 1."""
    groups, numbers = codes.shape
    ordered = np.sort(codes, axis=1, kind="stable")  # radix sort, five times as fast as the default for 16 bits
    first = np.empty(codes.shape, np.bool_)
    first[:, 0] = True
    np.not_equal(ordered[:, 1:], ordered[:, :-1], out=first[:, 1:])
    at = np.flatnonzero(first)
    values = from_codes(ordered.reshape(-1)[at]).astype(np.float64)
    weights = np.diff(at, append=codes.size).astype(np.float64)
    return Points(values, weights, np.searchsorted(at, numbers * np.arange(groups + 1)))


def histogram(codes: NDArray[np.int16], weights: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """The weight of each of the 65,536 codes, from -32768 on. Histograms of parts add up to that of the whole."""
    flat = None if weights is None else weights.reshape(-1)
    return np.bincount(codes.reshape(-1).view(np.uint16) ^ 0x8000, flat, 1 << 16).astype(np.float64)


def points_of_histogram(counts: NDArray[np.float64]) -> Points:
    """The group that a histogram describes."""
    present = np.flatnonzero(counts)
    values = from_codes((present - 0x8000).astype(np.int16)).astype(np.float64)
    return Points(values, counts[present], np.array([0, present.size]))
