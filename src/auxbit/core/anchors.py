"""The Gaussian kernel, anchors and bandwidths that methods with a kernel share.

Rows are scaled float32; distances and sums are float64. Of anchors that are equally near up to rounding, the
first counts as the nearest, so that a change of units or of the block cannot change which anchors are near.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from auxbit.core.checks import Float32, Float64, Ids, check_finite, check_integer, check_positive
from auxbit.core.maps import Scaling
from auxbit.core.parallel import Workers, block_slices, kernel, some_rows
from auxbit.errors import InvalidInput

SAMPLE_ROWS = 10_000  # anchors and bandwidths are found on at most that many rows
KMEANS_ITERATIONS = 10  # anchors only have to cover the rows, so it need not converge
TIE = 1e-5  # squared distances that differ by less than this share are equal
PART_ROWS = 512  # rows whose distances to all anchors are held at a time


# ---- distances and the kernel


def squared_distances(X: Float32, anchors: Float32 | Float64) -> Float64:
    """‖x − u‖² of each row and anchor. X : (n, D), anchors : (m, D) → (n, m) float64."""
    rows, centres = X.astype(np.float64), anchors.astype(np.float64)
    distances = rows @ (-2.0 * centres.T)
    distances += np.einsum("nd,nd->n", rows, rows)[:, None]
    distances += np.einsum("md,md->m", centres, centres)
    return np.maximum(distances, 0.0, out=distances)


def gaussian(distances: Float64, bandwidth: float) -> Float64:
    """exp(−d²/2σ²), from squared distances, which it overwrites."""
    distances *= -0.5 / bandwidth**2
    return np.exp(distances, out=distances)


def nearest_anchors(X: Float32, anchors: Float32, n_nearest: int) -> tuple[Float64, Ids]:
    """Squared distances, ascending, and numbers of the nearest anchors of each row, (n, n_nearest) each."""
    near = np.empty((len(X), n_nearest))
    ids = np.empty((len(X), n_nearest), dtype=np.int64)
    for part in block_slices(len(X), PART_ROWS):
        _smallest(squared_distances(X[part], anchors), near[part], ids[part])
    return near, ids


@kernel
def _smallest(distances: Float64, near: Float64, ids: Ids) -> None:
    """The smallest entries of each row of `distances`; of those that are equal, the first."""
    n_nearest = near.shape[1]
    for i in range(distances.shape[0]):
        near[i] = np.inf
        ids[i] = -1
        for j in range(distances.shape[1]):
            distance = distances[i, j]
            nearer = distance * (1.0 + TIE)  # must be nearer by more than rounding to overtake
            place = n_nearest
            while place > 0 and nearer < near[i, place - 1]:
                place -= 1
            if place < n_nearest:
                for k in range(n_nearest - 1, place, -1):
                    near[i, k] = near[i, k - 1]
                    ids[i, k] = ids[i, k - 1]
                near[i, place] = distance
                ids[i, place] = j


# ---- anchors


def find_anchors(
    given: Any, n_anchors: object, X: Float32, scaling: Scaling, workers: Workers, rng: np.random.RandomState
) -> Float32:
    """The anchors that the user gave, scaled as X is, or else k-means centres of a sample of X, (m, D)."""
    wanted = check_integer("n_anchors", n_anchors, 2, remedy="Try n_anchors=300.")
    if given is None:
        return choose_anchors(X, wanted, workers, rng)
    n_dims = X.shape[1] - (scaling.lift > 0)
    try:
        anchors = np.asarray(given)
    except ValueError as error:  # lists of unequal lengths
        raise InvalidInput(f"anchors must be None or an (m, {n_dims}) array of numbers: {error}") from error
    shaped = anchors.ndim == 2 and anchors.shape[1] == n_dims and len(anchors) > 1
    if not shaped or anchors.dtype.kind not in "fiub":
        raise InvalidInput(
            f"anchors must be None or an (m, {n_dims}) array of numbers in the units of X, of two "
            f"or more rows, got shape {anchors.shape} of {anchors.dtype}."
        )
    check_finite(anchors, workers, "anchors")
    return scaling.apply(anchors)


def choose_anchors(X: Float32, n_anchors: int, workers: Workers, rng: np.random.RandomState) -> Float32:
    """k-means centres of at most SAMPLE_ROWS rows; all distinct rows, if there are no more.

    Our own k-means, because its sums are added in block order: the same anchors for any number of threads.
    """
    X = some_rows(X, rng, SAMPLE_ROWS)
    distinct = np.unique(X, axis=0)
    if len(distinct) <= n_anchors:
        return np.ascontiguousarray(distinct)
    centres = distinct[rng.choice(len(distinct), n_anchors, replace=False)]
    for _ in range(KMEANS_ITERATIONS):
        before, centres = centres, _k_means_step(X, centres, workers)
        if np.array_equal(before, centres):
            break
    return centres


def _k_means_step(X: Float32, centres: Float32, workers: Workers) -> Float32:
    owners = np.empty(len(X), dtype=np.int64)

    def assign(rows: slice) -> None:
        owners[rows] = nearest_anchors(X[rows], centres, 1)[1][:, 0]

    workers.run(assign, len(X))
    return means_of(X, owners, centres, workers)


def means_of(X: Float32, owners: Ids, centres: Float32, workers: Workers) -> Float32:
    """The mean of the rows that each centre owns, (m, D); a centre without rows stays."""

    def members(rows: slice) -> tuple[Float64, Float64]:
        sums, counts = np.zeros(centres.shape), np.zeros(len(centres))
        _add_rows(X[rows], owners[rows], sums, counts)
        return sums, counts

    sums, counts = workers.sum(members, len(X))
    means = sums / np.maximum(counts, 1.0)[:, None]
    return np.where(counts[:, None] > 0, means, centres).astype(np.float32)


@kernel
def _add_rows(X: Float32, owners: Ids, sums: Float64, counts: Float64) -> None:
    for i in range(X.shape[0]):
        counts[owners[i]] += 1.0
        for d in range(X.shape[1]):
            sums[owners[i], d] += X[i, d]


# ---- bandwidths


def given_bandwidth(bandwidth: object, scaling: Scaling) -> float:
    """A bandwidth in the units of X as one of scaled rows."""
    remedy = "It is a distance in the units of X; None measures one."
    return check_positive("bandwidth", bandwidth, remedy=remedy) / scaling.scale


def median_distance(anchors: Float32) -> float:
    """The median distance between two anchors; 1 if there are no two that differ."""
    distances = squared_distances(anchors, anchors)[np.triu_indices(len(anchors), 1)]
    return _positive_median(distances, anchors.shape[1])


def median_distance_to(X: Float32, anchors: Float32) -> float:
    """The median distance between a row and an anchor; 1 if none is above 0."""
    return _positive_median(squared_distances(X, anchors).ravel(), X.shape[1])


def median_reach(X: Float32, anchors: Float32, n_nearest: int) -> float:
    """The median over rows of the distance to the last of the nearest anchors; 1 if that is 0."""
    return _positive_median(nearest_anchors(X, anchors, n_nearest)[0][:, -1], X.shape[1])


def _positive_median(squared: Float64, n_dims: int) -> float:
    """The root of the median of those above 0, that is, above what rounding makes of 0."""
    positive = squared[squared > 1e-15 * n_dims]  # scaled rows have squared norms of at most n_dims
    return float(np.sqrt(np.median(positive))) if len(positive) else 1.0
