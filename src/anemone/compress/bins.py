"""Few bins in place of many distinct values, so narrow that clusters may start and end at them."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from anemone.compress.points import Points

Number = TypeVar("Number", np.float64, np.int64)

ONE = 1 << 32
"""A bin's width in fixed point: integer sums are exact, so that no group's bins depend on its neighbours."""


@dataclass(frozen=True)
class Bins:
    """Prefix sums over the bins of each group, (bins + 1, groups): points in them, weight, first and second moment."""

    points: NDArray[np.int64]
    weight: NDArray[np.float64]
    first: NDArray[np.float64]
    second: NDArray[np.float64]


def make_bins(points: Points, count: int) -> Bins:
    """``count`` bins a group; where a group has no more distinct values than that, each has a bin of its own."""
    groups = len(points.counts)
    which = _bin_of_point(points, count) + np.repeat(count * np.arange(groups), points.counts)

    def sums(of: NDArray[np.float64]) -> NDArray[np.float64]:
        flat = np.bincount(which, of, count * groups).astype(np.float64, copy=False)
        return flat.reshape(groups, count).T

    moment = points.weights * points.values
    first, second = sums(moment), sums(moment * points.values)
    held = np.bincount(which, minlength=count * groups).reshape(groups, count).T
    return Bins(_prefix(held), _prefix(sums(points.weights)), _prefix(first), _prefix_from_zero(second, first < 0))


def _bin_of_point(points: Points, count: int) -> NDArray[np.int64]:
    """The bin of each point, counted from 0 in its group (points,).

    Clusters of least squared error lie as dense as the cube root of the density of the values (Panter and Dite 1951);
    bins follow the same measure, summed over the gaps between neighbours. A gap worth more than a bin counts as one:
    nothing can be split inside it, and a single outlier would take all the bins.
    """
    counts, start = points.counts, points.starts[:-1]
    gap = np.diff(points.values, prepend=0).astype(np.float32)
    weight = points.weights.astype(np.float32)
    gap *= gap
    gap[1:] *= weight[1:] + weight[:-1]
    gap[start] = 0
    worth = np.cbrt(gap, out=gap)

    limit = np.add.reduceat(worth, start) / (count - 1)
    for _ in range(4):  # Newton's steps towards the limit at which all bins are used, from above
        wide = worth >= np.repeat(limit, counts)
        spare = count - 1 - np.add.reduceat(wide, start, dtype=np.int64)
        limit = (np.add.reduceat(np.where(wide, 0, worth), start) / np.maximum(spare, 1)).astype(np.float32)
    few = counts <= count
    limit = np.where(few, 0, limit).astype(np.float64)
    widest = np.where(few, count * ONE // counts, ONE)
    steps = worth * np.repeat(ONE / np.maximum(limit, np.finfo(np.float32).tiny), counts)
    steps[start] = 0
    place = np.cumsum(np.minimum(steps, np.repeat(widest, counts)).astype(np.int64))
    place -= np.repeat(place[start], counts)
    return place >> 32


def _prefix(bins: NDArray[Number]) -> NDArray[Number]:
    """(bins, groups) -> (bins + 1, groups)"""
    return np.concatenate([np.zeros_like(bins[:1]), np.cumsum(bins, axis=0)])


def _prefix_from_zero(bins: NDArray[np.float64], negative: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Prefix sums less those up to the value zero: near zero they stay small and exact, however large the outliers."""
    above = _prefix(np.where(negative, 0, bins))
    below = _prefix(np.where(negative, bins, 0)[::-1])[::-1]
    prefix: NDArray[np.float64] = above - below
    return prefix
