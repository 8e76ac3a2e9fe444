"""Measures of retrieval by codes: true neighbours, precision, recall, mAP, effective number of bits.

    truth = ground_truth(X_base, X_query, k=50, metric="cosine")
    ranking = hamming_ranking(model.encode(X_base), model.encode(X_query), truth, n_bits=32)
    precision, recall = precision_recall_at_k(ranking, k=50)

Every measure is computed from a `Ranking`; codes are packed; true neighbours are row numbers of the base.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import digamma

from auxbit.core import maps
from auxbit.core.checks import (
    LARGEST,
    Array,
    Float64,
    Ids,
    Packed,
    as_array,
    check_finite,
    check_integer,
    check_positive,
)
from auxbit.core.maps import (
    CHUNK,
    check_n_bits,
    check_packed,
    lifted,
    lifted_queries,
    query_words,
    row_norms,
    to_planes,
    to_words,
)
from auxbit.core.parallel import BLOCK_ROWS, Workers, block_slices, kernel
from auxbit.core.simd import chunk_distances
from auxbit.errors import InvalidInput, InvalidParameter

__all__ = [
    "METRICS", "PrecisionRecall", "PrecisionRecallCurve", "Ranking", "check_metric", "code_counts",
    "effective_bits", "effective_bits_bound", "ground_truth", "hamming_ranking", "largest_norm",
    "lift_queries", "lift_rows", "mean_average_precision", "one_recall_at", "precision_recall_at_k",
    "precision_recall_at_radius", "precision_recall_curve", "recall_at", "retrieved_ranking", "unit_rows",
]  # fmt: skip

# ---- exact nearest neighbours: the truth that codes are measured against

QUERY_BLOCK, MOST_BASE_ROWS = 128, 16384
UNIT = 2.0**-24  # unit roundoff of float32
METRICS = ("euclidean", "cosine", "inner_product")
LEAST_REACH, ENLARGED = 2.0**-400, 2.0**600  # the square of a scale is finite; those of tiny numbers vanish


def ground_truth(
    X_base: npt.ArrayLike, X_query: npt.ArrayLike, k: int, *, metric: str = "euclidean",
    n_jobs: int | None = None,
) -> Ids:  # fmt: skip
    """Row numbers, (q, k) int64, of the k nearest base rows to each query, ties by the smallest number.

    >>> ground_truth([[0.0], [1.0], [5.0]], [[0.9]], k=2).tolist()
    [[1, 0]]

    metric : "euclidean"; "cosine", the Euclidean distance of rows divided by their norms; "inner_product",
        the largest products first.

    The result is exact: distances and products of all rows that come close are summed in float64; float32
    only excludes rows that are too far even at its worst rounding. Memory-mapped rows are read twice, in
    blocks.
    """
    base, queries = _check_vectors(X_base, "X_base"), _check_vectors(X_query, "X_query")
    n, n_dims = base.shape
    if queries.shape[1] != n_dims:
        raise InvalidInput(f"X_query must have the {n_dims} columns of X_base, got {queries.shape[1]}.")
    k = check_integer("k", k, 1, n, f"X_base has {n} rows.")
    if check_metric(metric) == "cosine":
        base, queries = unit_rows(base, n_jobs=n_jobs), unit_rows(queries, n_jobs=n_jobs)
    with Workers(n_jobs) as workers:
        sieve = _Sieve.measure(base, queries, workers, products=metric == "inner_product")
        if sieve.is_tiny:  # a power of two changes no order
            base, queries = base * np.float64(ENLARGED), queries * np.float64(ENLARGED)
            sieve = _Sieve.measure(base, queries, workers, products=sieve.products)
        return _nearest(sieve, base, queries, k, workers)[1]


def check_metric(metric: str) -> str:
    """Refuse what is no metric."""
    if metric not in METRICS:
        raise InvalidParameter("metric", metric, f"one of {', '.join(METRICS)}")
    return metric


# ---- rows whose Euclidean neighbours are those of another metric


def unit_rows(X: Array, *, n_jobs: int | None = None) -> Float64:
    """Rows divided by their norms, for cosine; zero rows stay zero. X : (n, D) → (n, D) float64.

    >>> unit_rows(np.array([[3.0, 4.0]])).tolist()
    [[0.6, 0.8]]
    """
    vectors = _check_vectors(X, "X")
    out = np.empty(vectors.shape)

    def fill(rows: slice) -> None:
        block = vectors[rows].astype(np.float64)
        norms = row_norms(block)
        out[rows] = block / np.where(norms > 0, norms, 1.0)[:, None]

    with Workers(n_jobs) as workers:
        check_finite(vectors, workers)
        workers.run(fill, len(vectors))
    return out


def largest_norm(X: Array, *, n_jobs: int | None = None) -> float:
    """The largest ‖x‖ of the rows, for `lift_rows`.

    >>> largest_norm(np.array([[3.0, 4.0], [1.0, 1.0]]))
    5.0
    """
    vectors = _check_vectors(X, "X")
    with Workers(n_jobs) as workers:
        check_finite(vectors, workers)
        return maps.largest_norm(vectors, workers)


def lift_rows(X: Array, largest: float) -> Float64:
    """Rows with one more coordinate, so that all have length `largest`, for inner products. → (n, D + 1).

    >>> lift_rows(np.array([[3.0, 0.0]]), 5.0).tolist()
    [[3.0, 0.0, 4.0]]

    The coordinate is sqrt(largest² − ‖x‖²): the rows nearest to a query of `lift_queries` are then those
    with the largest inner products. largest : at least `largest_norm` of all rows.
    """
    block, largest = _check_vectors(X, "X"), _check_largest(largest)
    check_finite(block)
    norms = row_norms(block)
    if norms.max() > largest * (1 + 1e-6):  # rows of float32 may be rounded
        raise InvalidInput(
            f"a row has the norm {norms.max():.6g}, more than largest={largest:.6g}. Use largest_norm of all "
            "rows."
        )
    return lifted(block, largest)


def lift_queries(X: Array, largest: float) -> Float64:
    """Queries for rows of `lift_rows`: the new coordinate is 0. (q, D) → (q, D + 1).

    >>> lift_queries(np.array([[0.0, 2.0]]), 5.0).tolist()
    [[0.0, 5.0, 0.0]]

    They are scaled to the length of those rows, which changes no order of rows. By codes, a much shorter
    query would be nearest to the shortest reconstructions, whatever their direction.
    """
    block, largest = _check_vectors(X, "X"), _check_largest(largest)
    check_finite(block)
    return lifted_queries(block, largest)


def _check_largest(largest: object) -> float:
    return check_positive("largest", largest, remedy="Use largest_norm of all rows; they must not all be 0.")


# ---- the k nearest, exactly


def nearest_scaled(
    base: Any, queries: npt.NDArray[np.float32], k: int, workers: Workers
) -> tuple[Float64, Ids]:
    """As `ground_truth`, for rows that are read by slices, once, and are known to lie within ±2 of 0.

    base : (n, D), an array or rows by slices. Also returns the squared distances, (q, k), inf beyond n rows.
    """
    reach = max(2.0, float(np.abs(queries).max()))
    sieve = _Sieve.within(np.zeros(base.shape[1]), reach)
    return _nearest(sieve, base, queries, k, workers, most_rows=BLOCK_ROWS)


def _nearest(
    sieve: _Sieve, base: Any, queries: Array, k: int, workers: Workers, most_rows: int = MOST_BASE_ROWS
) -> tuple[Float64, Ids]:
    """Squared distances and rows of the k nearest, reading the base block by block."""
    n, n_dims = base.shape
    base_rows = int(np.clip(2**22 // n_dims, 256, most_rows))
    query_rows = max(1, min(QUERY_BLOCK, 2**23 // max(k, base_rows)))
    best = np.full((len(queries), k), np.inf)
    ids = np.full((len(queries), k), -1, dtype=np.int64)
    asked = sieve.shrink(queries, workers)
    for rows in block_slices(n, base_rows):
        block = sieve.shrink(base[rows], workers)

        def scan(some: slice, start: int = rows.start, block: _Shrunk = block) -> None:
            _update(sieve, asked.rows(some), block, start, best[some], ids[some])

        workers.run(scan, len(queries), query_rows)
    return best, ids


class _Shrunk(NamedTuple):
    """Rows as they came, their centred, scaled copies in float32, and the squared norms of those."""

    raw: Array
    small: npt.NDArray[np.float32]
    norms: Float64

    def rows(self, some: slice) -> _Shrunk:
        return _Shrunk(self.raw[some], self.small[some], self.norms[some])


class _Sieve(NamedTuple):
    """How rows are centred and scaled, and how far products of their float32 copies may be off.

    With x' = scale (x − centre), x̃ its float32 copy and u the unit roundoff, ‖q'‖² + ‖b'‖² − 2q̃ᵀb̃ as computed
    is within error (‖q'‖+‖b'‖)² ≤ 2 error (‖q'‖²+‖b'‖²) of ‖q'−b'‖²: γ_d/2 comes from summing d products in
    any order, u each from rounding the vectors, ‖b'‖² and the sum; the rest is slack for float64. For
    `products`, the distance is −qᵀb, and the centre 0: −q̃ᵀb̃ is within 2 error ‖q'‖‖b'‖ of it.
    """

    centre: Float64
    scale: float
    error: float
    underflow: float
    products: bool = False

    @classmethod
    def measure(cls, base: Array, queries: Array, workers: Workers, *, products: bool) -> _Sieve:
        low, high, centre = _extent(base, "X_base", workers)
        query_low, query_high, _ = _extent(queries, "X_query", workers)
        centre = np.zeros_like(centre) if products else centre
        corners = np.concatenate([low, high, query_low, query_high]) - np.tile(centre, 4)
        return cls.within(centre, float(np.abs(corners).max()))._replace(products=products)

    @classmethod
    def within(cls, centre: Float64, reach: float) -> _Sieve:
        """For rows that are nowhere farther than `reach` from the centre."""
        reach = max(reach, LEAST_REACH)
        n_dims = len(centre)
        gamma = n_dims * UNIT / (1 - n_dims * UNIT)
        return cls(centre, 2.0 ** -np.ceil(np.log2(reach)), gamma / 2 + 6 * UNIT, n_dims * 2.0**-115)

    @property
    def is_tiny(self) -> bool:
        """Whether squares of the rows, and of their differences, may vanish in float64."""
        return self.scale * LEAST_REACH >= 1 and float(np.abs(self.centre).max()) <= LEAST_REACH

    def shrink(self, X: Array, workers: Workers) -> _Shrunk:
        raw = np.asarray(X)
        shrunk = _Shrunk(raw, np.empty(raw.shape, dtype=np.float32), np.empty(len(raw)))

        def convert(rows: slice) -> None:
            block = (raw[rows].astype(np.float64) - self.centre) * self.scale
            shrunk.small[rows] = block
            shrunk.norms[rows] = np.einsum("ij,ij->i", block, block)

        workers.run(convert, len(raw), 1024)
        return shrunk

    def bound(self, asked: _Shrunk, block: _Shrunk) -> npt.NDArray[np.float32]:
        """What `threshold` is compared with, (queries, rows): ‖b'‖² (1 − 2 error) − 2q̃ᵀb̃."""
        if self.products:
            reach = np.outer(np.sqrt(asked.norms), 2 * self.error * np.sqrt(block.norms))
            low: npt.NDArray[np.float32] = -asked.small @ block.small.T - reach.astype(np.float32)
            return low
        bound: npt.NDArray[np.float32] = (-2 * asked.small) @ block.small.T
        bound += (block.norms * (1 - 2 * self.error)).astype(np.float32)
        return bound

    def threshold(self, furthest: Float64, norms: Float64) -> npt.NDArray[np.float32]:
        """What a bound cannot exceed where b is as near to q as `furthest`."""
        others = 0.0 if self.products else norms * (1 - 2 * self.error)
        limit = furthest * self.scale**2 - others + self.underflow
        return np.nextafter(limit.astype(np.float32), np.float32(np.inf))

    def exactly(self, asked: Array, base: Array, left: Ids, right: Ids) -> Float64:
        """Distances between the rows left[i] of `asked` and right[i] of `base`, in float64."""
        out = np.empty(len(left))
        kernel = _negative_products if self.products else _squared_distances
        for some in block_slices(len(left), max(1, 2**20 // asked.shape[1])):
            kernel(asked[left[some]].astype(np.float64), base[right[some]].astype(np.float64), out[some])
        return out


def _update(sieve: _Sieve, asked: _Shrunk, block: _Shrunk, start: int, best: Float64, ids: Ids) -> None:
    """Put the base rows start, start+1, … that are near enough into `best` and `ids` of the queries."""
    k = best.shape[1]
    bound = sieve.bound(asked, block)
    furthest = best[:, -1]
    if start == 0 and k < len(block.raw):  # any k rows bound the k-th distance from above
        seeds = np.argpartition(bound, k - 1, axis=1)[:, :k]
        owners = np.repeat(np.arange(len(seeds)), k)
        furthest = sieve.exactly(asked.raw, block.raw, owners, seeds.ravel()).reshape(-1, k).max(axis=1)
    owners, rows = np.nonzero(bound <= sieve.threshold(furthest, asked.norms)[:, None])
    distances = sieve.exactly(asked.raw, block.raw, owners, rows)
    order = np.lexsort((distances, owners))  # stable: ties stay in the order of ids
    _merge(owners[order], distances[order], rows[order] + start, best, ids)


@kernel
def _squared_distances(A: Float64, B: Float64, out: Float64) -> None:
    for i in range(A.shape[0]):
        total = 0.0
        for j in range(A.shape[1]):
            total += (A[i, j] - B[i, j]) ** 2
        out[i] = total


@kernel
def _negative_products(A: Float64, B: Float64, out: Float64) -> None:
    for i in range(A.shape[0]):
        total = 0.0
        for j in range(A.shape[1]):
            total -= A[i, j] * B[i, j]
        out[i] = total


@kernel
def _merge(owners: Ids, distances: Float64, rows: Ids, best: Float64, ids: Ids) -> None:
    """Merge candidates, sorted by (owner, distance), into the owners' sorted k; the old win ties."""
    k = best.shape[1]
    i = 0
    while i < len(owners):
        owner = owners[i]
        old_best, old_ids, old = best[owner].copy(), ids[owner].copy(), 0
        for place in range(k):
            if i < len(owners) and owners[i] == owner and distances[i] < old_best[old]:
                best[owner, place], ids[owner, place] = distances[i], rows[i]
                i += 1
            else:
                best[owner, place], ids[owner, place] = old_best[old], old_ids[old]
                old += 1
        while i < len(owners) and owners[i] == owner:
            i += 1


def _check_vectors(X: npt.ArrayLike, name: str) -> Array:
    vectors = as_array(X, name)
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiub" or 0 in vectors.shape:
        raise InvalidInput(
            f"{name} must be a 2-D array of numbers with at least one row and one column, "
            f"got shape {vectors.shape} of {vectors.dtype}."
        )
    return vectors


def _extent(X: Array, name: str, workers: Workers) -> tuple[Float64, Float64, Float64]:
    """Smallest, largest and mean values of the columns."""

    def extent(rows: slice) -> tuple[Float64, Float64, Float64]:
        block = np.asarray(X[rows]).astype(np.float64)
        with np.errstate(all="ignore"):  # what is not finite is refused below
            return block.min(axis=0), block.max(axis=0), block.sum(axis=0)

    lows, highs, sums = (np.array(each) for each in zip(*workers.map(extent, len(X))))
    low, high = lows.min(axis=0), highs.max(axis=0)
    if not (low >= -LARGEST).all() or not (high <= LARGEST).all():  # NaN fails every comparison
        raise InvalidInput(
            f"{name} must be finite, of magnitude at most {LARGEST:g}, and has a column with "
            f"values from {low.min()} to {high.max()}. Remove or fill such rows first."
        )
    return low, high, sums.sum(axis=0) / len(X)


# ---- rankings


class PrecisionRecall(NamedTuple):
    """Precision and recall, means over the queries: `precision, recall = precision_recall_at_k(…)`."""

    precision: float
    recall: float


class PrecisionRecallCurve(NamedTuple):
    """Precision and recall within each Hamming radius, as arrays with one entry per radius 0..L.

    radius : 0 to L.
    precision, recall : means over the queries that find something within the radius.
    answered : how many queries do.
    """

    radius: Ids
    precision: Float64
    recall: Float64
    answered: Ids


@dataclass(frozen=True)
class Ranking:
    """The ranks of the K true neighbours of each of q queries among the n_base ranked rows.

    ranks : (q, K) rank from 0 in the order (Hamming distance, id), n_base if it was not retrieved;
    counts, hits : (q, L+1) base codes and true neighbours at each distance, None for lists of ids.
    """

    ranks: Ids
    counts: Ids | None
    hits: Ids | None
    n_base: int


def hamming_ranking(
    base_codes: npt.ArrayLike, query_codes: npt.ArrayLike, truth: npt.ArrayLike, n_bits: int | None = None,
    *, n_jobs: int | None = None,
) -> Ranking:  # fmt: skip
    """Rank the base codes by Hamming distance to each query, and find the ranks of the true neighbours.

    >>> codes = np.array([[0b000], [0b001], [0b111]], dtype=np.uint8)
    >>> ranking = hamming_ranking(codes, codes[:1], truth=[[0, 2]], n_bits=3)
    >>> ranking.ranks.tolist()  # the true neighbours come first and third
    [[0, 2]]

    base_codes, query_codes : (n, ceil(n_bits/8)) and (q, ceil(n_bits/8)) uint8, packed.
    truth : (q, K) row numbers of the base, nearest first.
    n_bits : by default all bits of the bytes.
    """
    packed = as_array(base_codes, "base_codes")
    if n_bits is None:
        n_bits = 8 * packed.shape[1] if packed.ndim == 2 and packed.shape[1] else 8
    n_bits = check_n_bits(n_bits)
    base = check_packed(packed, n_bits, "base_codes")
    queries = query_words(check_packed(query_codes, n_bits, "query_codes"), n_bits)
    wanted = _check_truth(truth, len(queries), len(base))
    planes = to_planes(base, n_bits)
    columns = np.argsort(wanted, axis=1)
    wanted = np.take_along_axis(wanted, columns, axis=1)
    ranks = np.empty(wanted.shape, dtype=np.int64)
    counts = np.zeros((len(queries), n_bits + 1), dtype=np.int64)
    hits = np.zeros_like(counts)

    def rank(rows: slice) -> None:
        _rank_block(planes, queries[rows], wanted[rows], columns[rows], ranks[rows], counts[rows], hits[rows])

    with Workers(n_jobs) as workers:
        workers.run(rank, len(queries), 16)
    return Ranking(ranks, counts, hits, len(base))


@kernel
def _rank_block(
    planes: Any, queries: Any, wanted: Ids, columns: Ids, ranks: Ids, counts: Ids, hits: Ids
) -> None:
    """One pass over the base. At a wanted id, the histogram so far says how many codes tie before it.

    wanted : (q, K) true neighbours in rising order, columns : where their ranks belong.
    """
    n, (n_queries, k) = planes.shape[1], wanted.shape
    distance = np.empty((n_queries, k), dtype=np.int64)
    following = np.zeros(n_queries, dtype=np.int64)
    buffer = np.empty(CHUNK, dtype=np.uint16)
    for start in range(0, n, CHUNK):
        stop = min(n, start + CHUNK)
        for i in range(n_queries):
            chunk_distances(planes, start, stop, queries[i], buffer)
            done = 0
            while following[i] < k and wanted[i, following[i]] < stop:
                at, column = wanted[i, following[i]] - start, columns[i, following[i]]
                for j in range(done, at):
                    counts[i, buffer[j]] += 1
                done = at
                distance[i, column] = buffer[at]
                ranks[i, column] = counts[i, buffer[at]]
                hits[i, buffer[at]] += 1
                following[i] += 1
            for j in range(done, stop - start):
                counts[i, buffer[j]] += 1
    for i in range(n_queries):
        nearer = np.cumsum(counts[i]) - counts[i]
        for column in range(k):
            ranks[i, column] += nearer[distance[i, column]]


def retrieved_ranking(ids: npt.ArrayLike, truth: npt.ArrayLike) -> Ranking:
    """Rank the true neighbours by their place in lists of ids, for methods that return lists.

    >>> retrieved_ranking([[4, 7, 1]], truth=[[7, 9]]).ranks.tolist()  # 9 was not retrieved
    [[1, 3]]

    ids : (q, R) integers, best first, -1 if nothing was found; truth : (q, K). Metrics at k ≤ R work.
    """
    lists = as_array(ids, "ids")
    if lists.ndim != 2 or lists.dtype.kind not in "iu" or 0 in lists.shape:
        raise InvalidInput(f"ids must be a (q, R) array of integers, got {lists.shape} of {lists.dtype}.")
    in_order = np.sort(lists, axis=1)
    if ((in_order[:, 1:] == in_order[:, :-1]) & (in_order[:, 1:] >= 0)).any():
        raise InvalidInput("ids must not contain a row twice for one query.")
    wanted = _check_truth(truth, len(lists), None)
    ranks = np.full(wanted.shape, lists.shape[1], dtype=np.int64)
    for row, (found, true) in enumerate(zip(lists.astype(np.int64), wanted)):
        _, places, columns = np.intersect1d(found, true, return_indices=True)
        ranks[row, columns] = places
    return Ranking(ranks, None, None, lists.shape[1])


# ---- metrics


def precision_recall_at_k(ranking: Ranking, k: int, *, ties: str = "id") -> PrecisionRecall:
    """Precision and recall of the first k of each ranking.

    >>> ranking = retrieved_ranking([[4, 7, 1]], truth=[[7, 9]])
    >>> precision_recall_at_k(ranking, k=2)
    PrecisionRecall(precision=0.5, recall=0.5)

    ties="id" ranks equal distances by id; "average" is the mean over all orders of ties, which does not
    depend on the order of the rows.
    """
    k = check_integer("k", k, 1, ranking.n_base, f"{ranking.n_base} rows are ranked.")
    if _averages(ties):
        counts, hits = _histograms(ranking, 'ties="average"')
        found = (hits * _share_within(counts, k)).sum(axis=1)
    else:
        found = (ranking.ranks < k).sum(axis=1)
    return PrecisionRecall(float(found.mean() / k), float(found.mean() / ranking.ranks.shape[1]))


def precision_recall_at_radius(ranking: Ranking, r: int) -> PrecisionRecall:
    """Precision and recall within Hamming distance r; a query that finds nothing counts as 0.

    >>> codes = np.array([[0b000], [0b001], [0b111]], dtype=np.uint8)
    >>> ranking = hamming_ranking(codes, codes[:1], truth=[[0, 2]], n_bits=3)
    >>> precision_recall_at_radius(ranking, r=1)
    PrecisionRecall(precision=0.5, recall=0.5)
    """
    counts, hits = _histograms(ranking, "precision_recall_at_radius")
    r = check_integer("r", r, 0, counts.shape[1] - 1, "It is a Hamming distance.")
    returned, found = counts[:, : r + 1].sum(axis=1), hits[:, : r + 1].sum(axis=1)
    precision = found / np.maximum(returned, 1)
    return PrecisionRecall(float(precision.mean()), float(found.mean() / ranking.ranks.shape[1]))


def precision_recall_curve(ranking: Ranking) -> PrecisionRecallCurve:
    """Precision and recall within r = 0..L, over the queries that find something; NaN if none does.

    >>> codes = np.array([[0b000], [0b001], [0b111]], dtype=np.uint8)
    >>> ranking = hamming_ranking(codes, codes[:1], truth=[[0, 2]], n_bits=3)
    >>> precision_recall_curve(ranking).recall.tolist()  # within 0, 1, 2 and 3 bits
    [0.5, 0.5, 0.5, 1.0]
    """
    counts, hits = _histograms(ranking, "precision_recall_curve")
    returned, found = counts.cumsum(axis=1), hits.cumsum(axis=1)
    answered = (returned > 0).sum(axis=0)
    precision = (found / np.maximum(returned, 1)).sum(axis=0)
    recall = found.sum(axis=0) / ranking.ranks.shape[1]
    radius, mean_over = np.arange(counts.shape[1]), np.where(answered > 0, answered, np.nan)
    return PrecisionRecallCurve(radius, precision / mean_over, recall / mean_over, answered)


def recall_at(ranking: Ranking, k: int, *, ties: str = "id") -> float:
    """Recall@k: the share of the k nearest neighbours, truth's first k columns, that is in the first k.

    >>> recall_at(retrieved_ranking([[4, 7, 1]], truth=[[7, 9]]), k=2)
    0.5
    """
    most = min(ranking.n_base, ranking.ranks.shape[1])
    k = check_integer("k", k, 1, most, f"The truth has {ranking.ranks.shape[1]} neighbours per query.")
    return _share_found(ranking, k, k, ties)


def one_recall_at(ranking: Ranking, R: int, *, ties: str = "id") -> float:
    """1-recall@R: the share of queries whose nearest neighbour, truth's first column, is in the first R.

    >>> one_recall_at(retrieved_ranking([[4, 7, 1]], truth=[[7, 9]]), R=2)
    1.0
    """
    R = check_integer("R", R, 1, ranking.n_base, f"{ranking.n_base} rows are ranked.")
    return _share_found(ranking, 1, R, ties)


def _share_found(ranking: Ranking, n_true: int, k: int, ties: str) -> float:
    """The share of the first n_true neighbours that is in the first k of the ranking."""
    wanted = ranking.ranks[:, :n_true]
    if not _averages(ties):
        return float((wanted < k).mean())
    counts, _ = _histograms(ranking, 'ties="average"')
    ends = counts.cumsum(axis=1)
    distance = np.stack([np.searchsorted(row, ranks, "right") for row, ranks in zip(ends, wanted)])
    return float(np.take_along_axis(_share_within(counts, k), distance, axis=1).mean())


def mean_average_precision(ranking: Ranking, *, ties: str = "id") -> float:
    """Mean over the queries of the average precision at their true neighbours.

    >>> mean_average_precision(retrieved_ranking([[4, 7, 1, 9]], truth=[[7, 9]]))
    0.5

    ties="average" is its expectation over random orders of ties (McSherry & Najork, 2008).
    """
    n_true = ranking.ranks.shape[1]
    if not _averages(ties):
        if (ranking.ranks >= ranking.n_base).any():
            raise InvalidInput("mean_average_precision needs all true neighbours ranked: retrieve more ids.")
        return float((np.arange(1, n_true + 1) / (np.sort(ranking.ranks, axis=1) + 1)).mean())
    counts, hits = _histograms(ranking, 'ties="average"')
    before, found = counts.cumsum(axis=1) - counts, hits.cumsum(axis=1) - hits
    # Place j of n tied rows with h hits is a hit with chance h/n, with (j-1)(h-1)/(n-1) tied hits before it:
    # Σ_j h/n (found + 1 + (j-1) slope) / (before + j), with Σ_j 1/(before + j) a difference of digammas.
    slope = (hits - 1) / np.maximum(counts - 1, 1)
    harmonic = digamma(before + counts + 1.0) - digamma(before + 1.0)
    sums = slope * counts + (found + 1 - slope * (before + 1)) * harmonic
    return float((hits / np.maximum(counts, 1) * sums).sum(axis=1).mean() / n_true)


# ---- code utilisation


def code_counts(codes: npt.ArrayLike) -> Ids:
    """How often each code occurs, the most frequent first, int64. codes : (n, bytes) packed.

    >>> code_counts(np.array([[3], [5], [3]], dtype=np.uint8)).tolist()
    [2, 1]
    """
    packed: Packed = as_array(codes, "codes")
    if packed.ndim != 2 or packed.dtype != np.uint8 or 0 in packed.shape:
        raise InvalidInput(
            "codes must be packed codes, a (n, bytes) array of uint8 with at least one row, "
            f"got shape {packed.shape} of {packed.dtype}. encode() makes them, pack() packs 0/1 arrays."
        )
    words = to_words(packed)
    words = words[np.lexsort(words.T)]
    starts = np.flatnonzero((words[1:] != words[:-1]).any(axis=1)) + 1
    return np.sort(np.diff(starts, prepend=0, append=len(words)))[::-1].astype(np.int64)


def effective_bits(codes: npt.ArrayLike) -> float:
    """The entropy of the code distribution in bits, L_eff in the paper. codes : (n, bytes) packed.

    >>> effective_bits(np.array([[0], [1], [2], [3]], dtype=np.uint8))  # each code once
    2.0
    """
    counts = code_counts(codes)
    share = counts / counts.sum()
    return max(0.0, float(-(share * np.log2(share)).sum()))


def effective_bits_bound(n_bits: int, n_codes: int) -> float:
    """The maximum of `effective_bits` for n_codes codes of n_bits bits: min(n_bits, log2 n_codes).

    >>> effective_bits_bound(n_bits=32, n_codes=1024)
    10.0
    """
    n_codes = check_integer("n_codes", n_codes, 1, None, "It is the number of codes.")
    return min(float(check_n_bits(n_bits)), math.log2(n_codes))


# ---- checks


def _share_within(counts: Ids, k: int) -> Float64:
    """The expected share of the rows at each distance that come among the first k."""
    before = counts.cumsum(axis=1) - counts
    return np.clip((k - before) / np.maximum(counts, 1), 0.0, 1.0)


def _averages(ties: str) -> bool:
    if ties not in ("id", "average"):
        raise InvalidParameter("ties", ties, "'id' or 'average'")
    return ties == "average"


def _histograms(ranking: Ranking, what: str) -> tuple[Ids, Ids]:
    if ranking.counts is None or ranking.hits is None:
        raise InvalidInput(
            f"{what} needs Hamming distances, and this ranking was made from lists of ids. "
            "Use hamming_ranking on codes, or metrics at k."
        )
    return ranking.counts, ranking.hits


def _check_truth(truth: npt.ArrayLike, n_queries: int, n_base: int | None) -> Ids:
    true = as_array(truth, "truth")
    if true.ndim != 2 or len(true) != n_queries or 0 in true.shape or true.dtype.kind not in "iu":
        raise InvalidInput(
            f"truth must be a ({n_queries}, K) array of integers, one row per query, "
            f"got shape {true.shape} of {true.dtype}. ground_truth() makes it."
        )
    if true.min() < 0 or (n_base is not None and true.max() >= n_base):
        allowed = "at least 0" if n_base is None else f"in 0..{n_base - 1}, row numbers of the base"
        raise InvalidInput(f"truth must be {allowed}, got values from {true.min()} to {true.max()}.")
    in_order = np.sort(true, axis=1)
    if (in_order[:, 1:] == in_order[:, :-1]).any():
        raise InvalidInput("truth must not contain a row twice for one query.")
    return true.astype(np.int64)
