"""Lists: rows are divided among centroids, and codes are of what is left of a row.

A search then looks at the lists near the query alone; and as its list tells much of a row, the same bytes
tell more. What is taken from a row is a part of its centroid (SHARE): the tables then still see where in
space a row is, which finds more than codes of whole differences (docs/search.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.core.checks import Float32, Float64, check_integer
from auxbit.core.decoders import LEARNED_KS, Coverage
from auxbit.core.features import means_of
from auxbit.core.parallel import Workers, kernel, some_rows
from auxbit.errors import InvalidParameter

Owners = npt.NDArray[np.int64]

SHARE = 0.5
ROWS_PER_LIST = 64  # of the sample that centroids are found on, at most
TURNS = 10  # of k-means
LARGEST = 5  # times the mean, above which a list is divided: of other rows none has ten times the mean then
DIVISIONS = 12  # rounds of them
FEWEST_ROWS = 500_000  # with fewer, lists="auto" is none: a scan of all takes no longer
MOST_LISTS = 2**20
ASKED, ASKED_SHARE = 512, 10  # rows kept to ask with, and how many times as many there must be
ASKED_AT_ONCE = 16
CHUNK = 1024  # rows that are compared with all centroids at a time


def check_lists(lists: object) -> None:
    """Refuse what is no number of lists."""
    if lists is None or lists == "auto":
        return
    if isinstance(lists, str):
        raise InvalidParameter("lists", lists, "'auto', a number of lists, or None")
    check_integer("lists", lists, 1, MOST_LISTS, "lists='auto' chooses by the number of rows.")


def number_of_lists(lists: Any, n_rows: int) -> int:
    """How many lists n_rows rows are to have, 0 for none: as given, or about 1.5·√n as a power of two."""
    check_lists(lists)
    if lists is None or (lists == "auto" and n_rows < FEWEST_ROWS):
        return 0
    if lists == "auto":
        return int(min(2 ** round(np.log2(1.5 * np.sqrt(n_rows))), MOST_LISTS))
    return int(lists)


# ---- Which list a row is in


class Centroids:
    """The nearest of some centroids, (K, D), to rows: the same whatever rows are beside them."""

    def __init__(self, centroids: Float32 | Float64) -> None:
        self.centroids = np.ascontiguousarray(centroids, dtype=np.float32)
        self._columns = np.ascontiguousarray(-2 * self.centroids.T)
        with np.errstate(over="ignore"):  # what is too large is refused by its squares
            self._norms = np.square(self.centroids, dtype=np.float64).sum(axis=1).astype(np.float32)
        self._longest = np.sqrt(self._norms.max())

    def nearest(self, X: Float32) -> Owners:
        """The number of the nearest centroid of each row, of equals the first. X : (n, D) → (n,)."""
        X, out = np.ascontiguousarray(X, dtype=np.float32), np.empty(len(X), dtype=np.int64)
        costs = self.costs(X)
        sizes = np.sqrt(np.einsum("nd,nd->n", X, X)) + self._longest
        # what products of float32 may be wrong by, in whatever order they are added
        margin = 2.0**-22 * np.sqrt(X.shape[1]) * np.square(sizes)
        _least(costs, margin.astype(np.float32), X, self.centroids, out)
        return out

    def costs(self, X: Float32) -> Float32:
        """‖x − c‖² − ‖x‖² of rows and centroids, (n, K), up to the rounding of float32."""
        with np.errstate(over="ignore", invalid="ignore"):  # what is too large is refused by its squares
            costs: Float32 = X @ self._columns
            costs += self._norms
        return costs

    def nearest_of_all(self, X: Float32, workers: Workers) -> Owners:
        """The same for many rows."""
        return np.concatenate(list(workers.map(lambda rows: self.nearest(X[rows]), len(X), CHUNK)))


@kernel
def _least(costs: Float32, margin: Float32, X: Float32, centroids: Float32, out: Owners) -> None:
    """The centroid with the least cost of each row; in float64 if others are as near up to rounding."""
    for i in range(len(costs)):
        row = costs[i]
        least, best = row[0], 0
        for j in range(1, len(row)):
            if row[j] < least:
                least, best = row[j], j
        limit, near = least + margin[i], 0
        for j in range(len(row)):
            near += row[j] <= limit
        if near > 1:
            best = _least_exactly(row, limit, X[i], centroids)
        out[i] = best


@kernel
def _least_exactly(costs: Float32, limit: float, x: Float32, centroids: Float32) -> int:
    least, best = np.inf, 0
    for j in range(len(costs)):
        if costs[j] <= limit:
            distance = 0.0
            for d in range(len(x)):
                apart = np.float64(x[d]) - np.float64(centroids[j, d])
                distance += apart * apart
            if distance < least:
                least, best = distance, j
    return best


def ranks_of(costs: Float32, numbers: Owners) -> Owners:
    """Which of a query's lists, by their costs, (q, K), from 0, the numbers are, (q, k)."""
    ranks = np.argsort(np.argsort(costs, axis=1, kind="stable"), axis=1)
    return np.take_along_axis(ranks, numbers, axis=1)


def coverage_of(asked: Float32, X: Float32, centroids: Centroids, workers: Workers) -> Coverage:
    """In which lists the neighbours of queries, (q, D), are. X : rows to find them among, (n, D)."""
    k = min(LEARNED_KS[-1], len(X) // ASKED_SHARE)
    if not k or not len(asked):
        return Coverage.unknown(len(centroids.centroids))
    norms, found = np.einsum("nd,nd->n", X, X), np.empty((len(asked), k), dtype=np.int64)

    def search(some: slice) -> None:
        costs = norms - 2 * asked[some] @ X.T
        near = np.argpartition(costs, k - 1, axis=1)[:, :k]
        order = np.take_along_axis(costs, near, axis=1).argsort(axis=1, kind="stable")
        found[some] = np.take_along_axis(near, order, axis=1)

    workers.run(search, len(asked), ASKED_AT_ONCE)
    numbers = np.zeros(len(X), dtype=np.int64)
    places = np.unique(found)
    numbers[places] = centroids.nearest_of_all(X[places], workers)
    return Coverage.of(ranks_of(centroids.costs(asked), numbers[found]), len(centroids.centroids), len(X))


# ---- Where centroids are


def find_centroids(X: Float32, n_lists: int, workers: Workers, rng: np.random.RandomState) -> Float32:
    """Centroids of about n_lists lists, (K, D), none of which holds many times the mean of rows.

    k-means on a sample; large lists are divided in place of the smallest.
    """
    X = some_rows(X, rng, ROWS_PER_LIST * n_lists)
    centroids = k_means(X, n_lists, TURNS, workers, rng)
    for _ in range(DIVISIONS):
        owners = Centroids(centroids).nearest_of_all(X, workers)
        divided = _divided(X, owners, centroids)
        if divided is None:
            break
        centroids = divided
    return centroids


def k_means(X: Float32, k: int, turns: int, workers: Workers, rng: np.random.RandomState) -> Float32:
    """Centres of rows, (k, D); fewer only if there are fewer different rows."""
    distinct = np.unique(X, axis=0)
    if len(distinct) <= k:
        return np.ascontiguousarray(distinct)
    centres = distinct[rng.choice(len(distinct), k, replace=False)]
    for _ in range(turns):
        before, owners = centres, Centroids(centres).nearest_of_all(X, workers)
        centres = means_of(X, owners, centres, workers)
        if np.array_equal(before, centres):
            break
    return centres


def _divided(X: Float32, owners: Owners, centroids: Float32) -> Float32 | None:
    """Two centroids for each list that is too large, in place of the smallest lists; None: there is none."""
    counts = np.bincount(owners, minlength=len(centroids))
    large = np.flatnonzero(counts > LARGEST * len(X) / len(centroids))
    smallest = [each for each in np.argsort(counts, kind="stable") if each not in set(large.tolist())]
    made, changed = centroids.copy(), False
    for each, other in zip(large[np.argsort(-counts[large], kind="stable")], smallest, strict=False):
        rows = X[owners == each]
        centred = rows.astype(np.float64) - rows.mean(axis=0, dtype=np.float64)
        axis = centred[np.square(centred).sum(axis=1).argmax()]
        for _ in range(3):  # power iterations: towards the axis along which they differ most
            axis = centred.T @ (centred @ axis)
            axis /= max(float(np.linalg.norm(axis)), 1e-300)
        upper = centred @ axis > 0
        if upper.any() and not upper.all():
            made[each], made[other] = rows[upper].mean(axis=0), rows[~upper].mean(axis=0)
            changed = True
    return made if changed else None
