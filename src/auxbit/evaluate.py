"""How good codes are: ground truth, precision and recall, recall@R, mAP, effective number of bits.

    truth = ground_truth(X_base, X_query, k=50)
    ranking = hamming_ranking(model.encode(X_base), model.encode(X_query), truth, n_bits=32)
    precision, recall = precision_recall_at_k(ranking, k=50)

Every metric is read off one `Ranking`; codes are packed; true neighbours are row numbers of the base.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import digamma

from auxbit.blocks import Workers
from auxbit.checks import check_integer
from auxbit.codes import Packed, check_n_bits, check_packed, to_words
from auxbit.compiled import kernel
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.neighbours import ground_truth
from auxbit.popcount import CHUNK, chunk_distances, query_words, to_planes

__all__ = [
    "PrecisionRecall",
    "PrecisionRecallCurve",
    "Ranking",
    "code_counts",
    "effective_bits",
    "effective_bits_bound",
    "ground_truth",
    "hamming_ranking",
    "mean_average_precision",
    "precision_recall_at_k",
    "precision_recall_at_radius",
    "precision_recall_curve",
    "recall_at",
    "retrieved_ranking",
]

Ids = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Array = npt.NDArray[Any]


class PrecisionRecall(NamedTuple):
    """Means over the queries."""

    precision: float
    recall: float


class PrecisionRecallCurve(NamedTuple):
    """One entry a radius 0..L: means over the queries that return something, and how many those are."""

    radius: Ids
    precision: Float64
    recall: Float64
    answered: Ids


@dataclass(frozen=True)
class Ranking:
    """Where the K true neighbours of each of q queries come among the n_base ranked rows.

    ranks : (q, K) rank from 0 in the order (Hamming distance, id), n_base where it was not retrieved;
    counts, hits : (q, L+1) base codes and true neighbours at each distance, None for lists of ids.
    """

    ranks: Ids
    counts: Ids | None
    hits: Ids | None
    n_base: int


# ---- rankings


def hamming_ranking(
    base_codes: npt.ArrayLike,
    query_codes: npt.ArrayLike,
    truth: npt.ArrayLike,
    n_bits: int | None = None,
    *,
    n_jobs: int | None = None,
) -> Ranking:
    """Rank the base by Hamming distance to each query and find the true neighbours in it.

    base_codes : (n, ceil(n_bits/8)) uint8, query_codes : (q, …) uint8, truth : (q, K) row numbers of the
    base, nearest first. Without n_bits, all bits of the bytes count.
    """
    packed = np.asarray(base_codes)
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
    """One pass over the base: the histogram, when it comes to a wanted id, says how many tie before it.

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

    ids : (q, R) integers, best first, -1 where nothing was found; truth : (q, K). Metrics at k ≤ R work.
    """
    lists = np.asarray(ids)
    if lists.ndim != 2 or lists.dtype.kind not in "iu" or 0 in lists.shape:
        raise InvalidInput(
            f"ids must be a (q, R) array of integers, got shape {lists.shape} of {lists.dtype}."
        )
    in_order = np.sort(lists, axis=1)
    if ((in_order[:, 1:] == in_order[:, :-1]) & (in_order[:, 1:] >= 0)).any():
        raise InvalidInput("ids must not name a row twice for one query.")
    wanted = _check_truth(truth, len(lists), None)
    ranks = np.full(wanted.shape, lists.shape[1], dtype=np.int64)
    for row, (found, true) in enumerate(zip(lists, wanted)):
        _, places, columns = np.intersect1d(found, true, return_indices=True)
        ranks[row, columns] = places
    return Ranking(ranks, None, None, lists.shape[1])


# ---- metrics


def precision_recall_at_k(ranking: Ranking, k: int, *, ties: str = "id") -> PrecisionRecall:
    """Precision and recall of the first k of each ranking.

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
    """Precision and recall of what lies within Hamming distance r; a query with nothing there counts as 0."""
    counts, hits = _histograms(ranking, "precision_recall_at_radius")
    r = check_integer("r", r, 0, counts.shape[1] - 1, "It is a Hamming distance.")
    returned, found = counts[:, : r + 1].sum(axis=1), hits[:, : r + 1].sum(axis=1)
    precision = found / np.maximum(returned, 1)
    return PrecisionRecall(float(precision.mean()), float(found.mean() / ranking.ranks.shape[1]))


def precision_recall_curve(ranking: Ranking) -> PrecisionRecallCurve:
    """Precision and recall within r = 0..L, over the queries that return something; NaN where none does."""
    counts, hits = _histograms(ranking, "precision_recall_curve")
    returned, found = counts.cumsum(axis=1), hits.cumsum(axis=1)
    answered = (returned > 0).sum(axis=0)
    precision = (found / np.maximum(returned, 1)).sum(axis=0)
    recall = found.sum(axis=0) / ranking.ranks.shape[1]
    mean_over = np.where(answered > 0, answered, np.nan)
    return PrecisionRecallCurve(
        np.arange(counts.shape[1]), precision / mean_over, recall / mean_over, answered
    )


def recall_at(ranking: Ranking, R: int, *, ties: str = "id") -> float:
    """Recall@R: the share of queries whose nearest neighbour, truth's first column, is in the first R."""
    R = check_integer("R", R, 1, ranking.n_base, f"{ranking.n_base} rows are ranked.")
    nearest = ranking.ranks[:, :1]
    if not _averages(ties):
        return float((nearest < R).mean())
    counts, _ = _histograms(ranking, 'ties="average"')
    distance = (counts.cumsum(axis=1) <= nearest).sum(axis=1, keepdims=True)
    return float(np.take_along_axis(_share_within(counts, R), distance, axis=1).mean())


def mean_average_precision(ranking: Ranking, *, ties: str = "id") -> float:
    """Mean over the queries of the average precision at their true neighbours.

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
    """How often each used code occurs, in falling order, int64. codes : (n, bytes) packed."""
    packed: Packed = np.asarray(codes)
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
    """The entropy of the code distribution in bits, L_eff in the paper. codes : (n, bytes) packed."""
    counts = code_counts(codes)
    share = counts / counts.sum()
    return max(0.0, float(-(share * np.log2(share)).sum()))


def effective_bits_bound(n_bits: int, n_codes: int) -> float:
    """The most that `effective_bits` of n_codes codes of n_bits bits can be: min(L, log2 N)."""
    n_codes = check_integer("n_codes", n_codes, 1, None, "It is the number of codes.")
    return min(float(check_n_bits(n_bits)), float(np.log2(n_codes)))


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
    true = np.asarray(truth)
    if true.ndim != 2 or len(true) != n_queries or 0 in true.shape or true.dtype.kind not in "iu":
        raise InvalidInput(
            f"truth must be a ({n_queries}, K) array of integers, one row a query, "
            f"got shape {true.shape} of {true.dtype}. ground_truth() makes it."
        )
    if true.min() < 0 or (n_base is not None and true.max() >= n_base):
        allowed = "at least 0" if n_base is None else f"in 0..{n_base - 1}, row numbers of the base"
        raise InvalidInput(f"truth must be {allowed}, got values from {true.min()} to {true.max()}.")
    in_order = np.sort(true, axis=1)
    if (in_order[:, 1:] == in_order[:, :-1]).any():
        raise InvalidInput("truth must not name a row twice for one query.")
    return true.astype(np.int64)
