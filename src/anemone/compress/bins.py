"""Few bins in place of many distinct values, so narrow that clusters may start and end at them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anemone.compress.points import Points

ONE = 1 << 32
"""A bin's width in fixed point: integer sums are exact, so that no group's bins depend on its neighbours."""


@dataclass(frozen=True)
class Bins:
    """Of each bin's begin, and of the end of the last (bins + 1, groups): its place among the points, and the weight,
    first and second moment of the points before. Differences between the begins of two bins are what they are for."""

    places: NDArray[np.int64]
    mass: NDArray[np.float64]
    moment: NDArray[np.float64]
    second: NDArray[np.float64]


def make_bins(points: Points, count: int) -> Bins:
    """``count`` bins a group; where a group has no more distinct values than that, each has a bin of its own."""
    groups = len(points.counts)
    which = _bin_of_point(points, count) + np.repeat(count * np.arange(groups), points.counts)
    begins = np.searchsorted(which, np.arange(count * groups)).reshape(groups, count)
    places = np.concatenate([begins.T, [points.starts[1:]]])
    squares = np.append(points.weights * points.values**2, 0.0)  # one more, for bins that begin after the last point
    second = np.add.reduceat(squares, begins.reshape(-1)).reshape(groups, count).T
    second = np.where(places[1:] > places[:-1], second, 0)
    negative = np.diff(points.moment[places], axis=0) < 0
    return Bins(places, points.mass[places], points.moment[places], _sums_from_zero(second, negative))


def _bin_of_point(points: Points, count: int) -> NDArray[np.int64]:
    """The bin of each point, counted from 0 in its group (points,).

    Clusters of least squared error lie as dense as the cube root of the density of the values (Panter and Dite 1951);
    bins follow the same measure, summed over the gaps between neighbours. A gap worth more than a bin counts as one:
    nothing can be split inside it, and a single outlier would take all the bins.
    """
    counts, start = points.counts, points.starts[:-1]
    gap = np.diff(points.values, prepend=0).astype(np.float32)
    gap *= gap
    gap[1:] *= (points.mass[2:] - points.mass[:-2]).astype(np.float32)  # the weight of both neighbours
    gap[start] = 0
    worth = np.cbrt(gap, out=gap)

    limit = np.add.reduceat(worth, start) / (count - 1)
    for _ in range(3):  # Newton's steps towards the limit at which all bins are used, from above
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


def _sums_from_zero(bins: NDArray[np.float64], negative: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Prefix sums less those up to the value zero: near zero they stay small and exact, however large the outliers."""
    above, below = np.zeros((2, len(bins) + 1, bins.shape[1]))
    np.cumsum(np.where(negative, 0, bins), axis=0, out=above[1:])
    np.cumsum(np.where(negative, bins, 0)[::-1], axis=0, out=below[-2::-1])
    prefix: NDArray[np.float64] = above - below
    return prefix
