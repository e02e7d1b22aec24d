"""The best division of binned groups into clusters, by dynamic programming over all groups at once."""

import numpy as np
from numpy.typing import NDArray

from anemone.compress.bins import Bins
from anemone.compress.codes import rounding

SIDE_BY_SIDE = 1 << 16
"""Numbers handled at a time, groups times bins: few enough for the cache, enough that threads seldom meet."""


def best_edges(bins: Bins, clusters: int) -> NDArray[np.int64]:
    """Where clusters of least squared error begin and end (clusters + 1, groups): bins, from 0 to their number.

    Clusters are first sought within a window of four times the mean width. A wider one would come out cut in pieces,
    at least one of them wider than half the window: groups with such a cluster are done again with twice the window.
    """
    count, groups = bins.mass.shape[0] - 1, bins.mass.shape[1]
    edges = np.empty((clusters + 1, groups), np.int64)
    open_groups, window = np.arange(groups), min(4 * count // clusters, count)
    while open_groups.size:
        sure = np.empty(open_groups.size, np.bool_)
        step = max(1, SIDE_BY_SIDE // count)
        for at in range(0, open_groups.size, step):
            some = open_groups[at : at + step]
            edges[:, some] = found = _edges_within(bins, some, clusters, window)
            widest = np.diff(found, axis=0).max(axis=0)
            sure[at : at + step] = (2 * widest <= window) | (window == count)
        open_groups, window = open_groups[~sure], min(2 * window, count)
    return edges


def _edges_within(bins: Bins, some: NDArray[np.int64], clusters: int, window: int) -> NDArray[np.int64]:
    """The best edges when no cluster is wider than ``window`` bins (clusters + 1, groups).

    ``errors[n, p]`` is the least error of dividing the first p bins among n clusters, for all groups side by side;
    p is at least n and at most the number of bins less those that the other clusters need.
    """
    cost = _costs(bins, some, window)
    count, groups = cost.shape[1] - 1, some.size
    errors = np.full((clusters + 1, count + 1, groups), np.inf, np.float32)
    errors[0, 0] = 0
    buffer = np.empty((count + 1, groups), np.float32)
    for n in range(1, clusters + 1):
        end = count - (clusters - n) + 1
        for width in range(1, min(window, end - n) + 1):
            begin = width + n - 1
            trial = np.add(errors[n - 1, n - 1 : end - width], cost[width, begin:end], out=buffer[begin:end])
            np.minimum(errors[n, begin:end], trial, out=errors[n, begin:end])

    edges = np.empty((clusters + 1, groups), np.int64)
    edges[-1] = count
    widths, every = np.arange(1, window + 1)[:, None], np.arange(groups)
    for n in range(clusters, 0, -1):
        begins = edges[n] - widths  # (window, groups)
        trial = errors[n - 1, np.maximum(begins, 0), every] + cost[widths, edges[n], every]
        edges[n - 1] = edges[n] - 1 - trial.argmin(axis=0)
    return edges


def _costs(bins: Bins, some: NDArray[np.int64], window: int) -> NDArray[np.float32]:
    """Squared error of the ``width`` bins before ``end`` as one cluster, [width, end, group]; infinite where absent."""
    masses, moments, second = (np.ascontiguousarray(x[:, some]) for x in (bins.mass, bins.moment, bins.second))
    cost = np.full((window + 1, *masses.shape), np.inf, np.float32)
    for width in range(1, window + 1):
        mass = np.maximum(masses[width:] - masses[:-width], np.finfo(np.float64).tiny)
        moment = moments[width:] - moments[:-width]
        mean = moment / mass
        error = second[width:] - second[:-width] - moment * mean + mass * rounding(mean) ** 2
        np.maximum(error, 0, out=cost[width, width:], casting="same_kind")
    return cost
