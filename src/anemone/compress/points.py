"""What k-means needs to know of groups of numbers: their distinct values and how much each weighs."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from anemone.compress.codes import from_codes


@dataclass(frozen=True)
class Points:
    """Groups of weighted values, one group after the other.

    values: float64 (points,), ascending and distinct within a group; mass: float64 (points + 1,), the weight of all
    points before each; starts: int64 (groups + 1,), where each group begins among the points. Sums of counts and of
    fp16 values are exact (up to 2**29 in all), so that a group does not feel its neighbours.
    """

    values: NDArray[np.float64]
    mass: NDArray[np.float64]
    starts: NDArray[np.int64]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Distinct values of each group (groups,)."""
        return np.diff(self.starts)

    @property
    def weights(self) -> NDArray[np.float64]:
        """(points,)"""
        return np.diff(self.mass)

    @cached_property
    def moment(self) -> NDArray[np.float64]:
        """Weight times value of all points before each (points + 1,)."""
        return _before(self.weights * self.values)

    def take(self, groups: NDArray[np.bool_]) -> "Points":
        """The groups that are marked (groups,)."""
        if groups.all():
            return self
        kept = np.repeat(groups, self.counts)
        starts = np.concatenate([[0], np.cumsum(self.counts[groups])])
        return Points(self.values[kept], _before(self.weights[kept]), starts)

    def heavier(self, points: NDArray[np.bool_], weight: float) -> "Points":
        """The same with ``weight`` added to the points that are marked (points,)."""
        return Points(self.values, self.mass + _before(np.where(points, weight, 0.0)), self.starts)


def points_of_rows(codes: NDArray[np.int16]) -> Points:
    """Each row of codes (groups, numbers) as a group; every number weighs 1."""
    groups, numbers = codes.shape
    ordered = np.sort(codes, axis=1, kind="stable")  # radix sort, five times as fast as the default for 16 bits
    first = np.empty(codes.shape, np.bool_)
    first[:, 0] = True
    np.not_equal(ordered[:, 1:], ordered[:, :-1], out=first[:, 1:])
    at = np.flatnonzero(first)
    values = from_codes(ordered.reshape(-1)[at]).astype(np.float64)
    starts = np.searchsorted(at, numbers * np.arange(groups + 1))
    return Points(values, np.append(at, codes.size).astype(np.float64), starts)


def histogram(codes: NDArray[np.int16], weights: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """The weight of each of the 65,536 codes, from -32768 on. Histograms of parts add up to that of the whole."""
    flat = None if weights is None else weights.reshape(-1)
    return np.bincount(codes.reshape(-1).view(np.uint16) ^ 0x8000, flat, 1 << 16).astype(np.float64)


def points_of_histogram(weights: NDArray[np.float64]) -> Points:
    """The group that a histogram describes."""
    present = np.flatnonzero(weights)
    values = from_codes((present - 0x8000).astype(np.int16)).astype(np.float64)
    return Points(values, _before(weights[present]), np.array([0, present.size]))


def _before(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum of all numbers before each, and of all."""
    sums: NDArray[np.float64] = np.zeros(numbers.size + 1)
    np.cumsum(numbers, out=sums[1:])
    return sums
