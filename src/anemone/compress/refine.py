"""Moving the edges between clusters to the best places nearby, all edges of a group together."""

import numpy as np
from numpy.typing import NDArray

from anemone.compress.codes import rounding
from anemone.compress.points import Points

REACH = 2
"""Steps that an edge may move at a time, to either side."""

PASSES = 24


def refine(points: Points, edges: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Better edges than ``edges``, all (clusters + 1, groups).

    edges: positions among the points, those of a group from its start to the next group's. steps: how far from its best
    place each edge may be. Every pass halves them; the last ones go point by point, until nothing changes.
    """
    for _ in range(PASSES):
        steps = np.maximum(steps // 2, 1)
        moved = _best_nearby(points, edges, steps)
        done = bool((steps == 1).all() and (moved == edges).all())
        edges = moved
        if done:
            break
    return edges


def _best_nearby(points: Points, edges: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """The best edges among those up to REACH steps away, by dynamic programming from cluster to cluster.

    The squared error of a cluster is its second moment less moment**2 / weight; second moments add up to the same
    whatever the edges are, so the sum of moment**2 / weight is what grows. Gains are counted from the present edges on:
    an outlier's large term would drown the others.
    """
    moves = np.arange(-REACH, REACH + 1)
    places = edges[:, None] + moves[:, None] * steps[:, None]  # (clusters + 1, moves, groups)
    places[0], places[-1] = edges[0], edges[-1]
    places = np.clip(places, edges[0], edges[-1])
    mass, sums = points.mass[places], points.moment[places]
    mass = mass[1:, None] - mass[:-1, :, None]  # (clusters, moves of the begin, moves of the end, groups)
    sums = sums[1:, None] - sums[:-1, :, None]
    mean = np.divide(sums, mass, out=np.zeros_like(sums), where=mass > 0)
    gain = sums * mean - mass * rounding(mean) ** 2
    possible = (mass > 0) | (mass == mass[:, None, None, REACH, REACH])  # no cluster becomes empty
    gain = np.where(possible, gain - gain[:, None, None, REACH, REACH], -np.inf)

    best = np.empty((len(gain), *places.shape[1:]))  # of all clusters before, by the place of the next one's begin
    best[0] = 0
    for n in range(1, len(gain)):
        best[n] = (best[n - 1, :, None] + gain[n - 1]).max(axis=0)
    moved, every = edges.copy(), np.arange(edges.shape[1])
    move = np.full(edges.shape[1], REACH)
    for n in range(len(gain) - 1, 0, -1):
        move = (best[n] + gain[n][:, move, every]).argmax(axis=0)
        moved[n] = places[n, move, every]
    return moved
