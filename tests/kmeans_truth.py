"""ckwrap as the truth about k-means of numbers: its optimum, as it is and in fp16 as tables are stored."""

import ckwrap
import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


def squared_error(values: Numbers, centroids: NDArray[np.floating], weights: Numbers | None = None) -> float:
    """The mean over ``values``, each taken for its nearest centroid."""
    wide = np.sort(np.asarray(centroids, np.float64))
    nearest = wide[np.searchsorted((wide[1:] + wide[:-1]) / 2, values)]
    return float(np.average((values - nearest) ** 2, weights=weights))


def best_centroids(values: NDArray[np.float16], k: int, weights: Numbers | None = None) -> Numbers:
    """The means of the optimal clusters, in float64. There must be more than k distinct values (ckwrap crashes)."""
    wide = values.astype(np.float64).reshape(-1)
    lone = np.unique(wide[np.abs(wide) == 65504])
    if 0 < lone.size < k:  # beside these, ckwrap's sums lose small numbers; they are sure to be clusters of their own
        return np.append(best_centroids(values[np.abs(wide) < 65504], k - lone.size), lone)
    scale = 2.0 ** -np.floor(np.log2(np.abs(wide).max()))  # nor does it take subnormal numbers
    labels = ckwrap.ckmeans(wide * scale, k, weights).labels
    return np.bincount(labels, wide if weights is None else wide * weights, k) / np.bincount(labels, weights, k)


def best_errors(values: NDArray[np.float16], k: int, weights: Numbers | None = None) -> tuple[float, float]:
    """The least squared error, and that of the same centroids rounded to fp16."""
    wide, best = values.astype(np.float64).reshape(-1), best_centroids(values, k, weights)
    return squared_error(wide, best, weights), squared_error(wide, best.astype(np.float16), weights)
