"""What a shard of rows computes in one pass: sums that the three steps of MAC are made from.

A pass reads each block of rows once and does all that can be done with it: scores, the Z step, and the sums
that the next h and f steps need. Nothing is kept but codes, so it does not matter where rows live: in memory,
in a file, on a worker. Sums of shards are added up in the order of the shards.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from auxbit.blocks import Workers
from auxbit.codes import Packed, bytes_per_code, pack_bools, unpack
from auxbit.compiled import kernel
from auxbit.decoders import LinearDecoder
from auxbit.mac.svm_rows import mask_scores, slack_along, slack_of
from auxbit.mac.z_step import ZOptions, ZSolver
from auxbit.maps import Float32, Float64
from auxbit.popcount import CHUNK, chunk_distances, popcount, query_words, to_planes

Ids = npt.NDArray[np.int64]
Sums = tuple[Any, ...]


class Slices(Protocol):
    """Rows that can be read by slices."""

    @property
    def shape(self) -> tuple[int, int]:
        """(n, D)."""

    def __getitem__(self, rows: slice) -> Float32:
        """These rows, scaled, float32."""


@dataclass(frozen=True)
class Judges:
    """Validation queries. words : (q, n_words), their codes; rows, owners : the true neighbours by row of the
    shard, rising, and whose they are.
    """

    words: npt.NDArray[Any]
    rows: Ids
    owners: Ids

    @classmethod
    def of(cls, codes: Packed, n_bits: int, truth: Ids, start: int, stop: int) -> Judges:
        """For the rows start..stop of all. codes : (q, M) of the queries, truth : (q, K) rows of all."""
        return cls(query_words(codes, n_bits), *neighbours_among(truth, start, stop))


def neighbours_among(truth: Ids, start: int, stop: int) -> tuple[Ids, Ids]:
    """Which of the rows start..stop are true neighbours, counted from start, rising; and whose they are."""
    owners, places = np.nonzero((truth >= start) & (truth < stop))
    rows = truth[owners, places] - start
    order = np.argsort(rows, kind="stable")
    return rows[order], owners[order]


def moments(X: Slices, workers: Workers) -> Sums:
    """XᵀX (D, D) and Σx (D,)."""

    def block(rows: slice) -> Sums:
        some = X[rows]
        return some.T @ some, some.sum(axis=0, dtype=np.float64)

    return workers.sum(block, X.shape[0])


def begin(X: Slices, W: Float64, out: Packed, workers: Workers) -> Sums:
    """Write the codes of W; ZᵀZ, Σz and XᵀZ of them, and Σ|t|, Σt² of each bit's scores t. W : (D+1, L)."""

    def block(rows: slice) -> Sums:
        some = X[rows]
        scores = _scores(some, W)
        Z = scores >= 0
        out[rows] = pack_bools(Z)
        sizes = scores.astype(np.float64)
        return (
            *_products(some, Z.astype(np.float32)), np.abs(sizes).sum(axis=0), np.square(sizes).sum(axis=0),
        )  # fmt: skip

    return workers.sum(block, X.shape[0])


def code_sums(X: Slices, Z: Packed, n_bits: int, workers: Workers) -> Sums:
    """ZᵀZ, Σz and XᵀZ of codes that are there."""

    def block(rows: slice) -> Sums:
        return _products(X[rows], unpack(Z[rows], n_bits).astype(np.float32))

    return workers.sum(block, X.shape[0])


def hash_sums(X: Slices, W: Float64, workers: Workers) -> Sums:
    """ZᵀZ, Σz and XᵀZ of the codes of W, which are not kept."""

    def block(rows: slice) -> Sums:
        some = X[rows]
        return _products(some, (_scores(some, W) >= 0).astype(np.float32))

    return workers.sum(block, X.shape[0])


def slack_sums(X: Slices, Z: Packed, W: Float64, workers: Workers) -> Sums:
    """The sums (5, L) of `svm_rows.slack_of` and Xᵀ residual, (D, L), at the scores of W."""

    def block(rows: slice) -> Sums:
        some, codes = X[rows], unpack(Z[rows], W.shape[1])
        scores = _scores(some, W)
        residual = np.empty_like(scores)
        sums = slack_of(scores, codes, np.empty(scores.shape, dtype=np.bool_), residual)
        return sums, some.T @ residual

    return workers.sum(block, X.shape[0])


def hessian_product(X: Slices, Z: Packed, W: Float64, P: Float64, bits: Any, workers: Workers) -> Sums:
    """Σ over the rows with slack of x xᵀ P, as (D, len(bits)) and (len(bits),)."""

    def block(rows: slice) -> Sums:
        some = X[rows]
        codes = np.ascontiguousarray(unpack(Z[rows], W.shape[1])[:, bits])
        scores = _scores(some, W[:, bits])
        active, residual = np.empty(scores.shape, dtype=np.bool_), np.empty_like(scores)
        slack_of(scores, codes, active, residual)
        product = some @ P[:-1].astype(np.float32)
        sums = mask_scores(product, P[-1].astype(np.float32), active)
        return some.T @ product, sums

    return workers.sum(block, X.shape[0])


def along_step(
    X: Slices, Z: Packed, W: Float64, P: Float64, bits: Any, sizes: Float64, workers: Workers
) -> Sums:
    """Σ slack², half its slope and half its curvature at W + size · P, for several sizes.

    W : (D+1, L) of all bits, P : (D+1, len(bits)), sizes : (m, len(bits)) → (m, 3, len(bits)).
    """
    here_at = W[:, bits]

    def block(rows: slice) -> Sums:
        some = X[rows]
        here, aimed = _scores(some, here_at), _scores(some, P)
        codes = np.ascontiguousarray(unpack(Z[rows], W.shape[1])[:, bits])
        return (np.stack([slack_along(here, aimed, size, codes) for size in sizes.astype(np.float32)]),)

    return workers.sum(block, X.shape[0])


def differing(X: Slices, Z: Packed, W: Float64, workers: Workers) -> Sums:
    """How many rows have a bit unlike that of W, (L,)."""

    def block(rows: slice) -> Sums:
        return (((_scores(X[rows], W) >= 0) != unpack(Z[rows], W.shape[1])).sum(axis=0),)

    return workers.sum(block, X.shape[0])


@dataclass(frozen=True)
class ZTask:
    """A Z step. W : (D+1, L) of h; f, mu, z : the problem and how it is solved."""

    W: Float64
    f: LinearDecoder
    mu: float
    z: ZOptions


def z_pass(X: Slices, Z: Packed, task: ZTask, out: Packed, judges: Judges | None, workers: Workers) -> Sums:
    """New codes for every row, and all sums of a Z step and of the h and f steps after it.

    Z : (n, M) packed, read; out : (n, M) packed, written, may be Z itself.
    → *ZCounts, flips (L,), bits unlike h(x), (5, L) and (D, L) of `slack_sums`, ZᵀZ, Σz, XᵀZ,
    and with judges the histograms of distances, of all codes h(x) and of the true neighbours, (q, L+1) each.
    """
    solver, L = ZSolver(task.f, task.mu, task.z), task.W.shape[1]

    def block(rows: slice) -> Sums:
        some = X[rows]
        scores = _scores(some, task.W)
        H = (scores >= 0).view(np.uint8)
        old = unpack(Z[rows], L)
        codes = old.copy()
        counts = solver.solve(some, H, codes, None)
        out[rows] = pack_bools(codes)
        both = np.empty((len(some), 2 * L), dtype=np.float32)
        residual, labels = both[:, :L], both[:, L:]
        labels[...] = codes
        sums = slack_of(scores, codes, np.empty(scores.shape, dtype=np.bool_), residual)
        product = some.T @ both
        seen = _judged(H, L, judges, rows) if judges is not None else ()
        return (
            *astuple(counts), (codes != old).sum(axis=0), np.count_nonzero(codes != H), sums, product[:, :L],
            labels.T @ labels, labels.sum(axis=0, dtype=np.float64), product[:, L:], *seen,
        )  # fmt: skip

    return workers.sum(block, X.shape[0])


def judge_pass(X: Slices, W: Float64, judges: Judges, workers: Workers) -> Sums:
    """The histograms of `z_pass` alone."""
    L = W.shape[1]

    def block(rows: slice) -> Sums:
        return _judged((_scores(X[rows], W) >= 0).view(np.uint8), L, judges, rows)

    return workers.sum(block, X.shape[0])


def _scores(X: Float32, W: Float64) -> Float32:
    scores: Float32 = X @ W[:-1].astype(np.float32)
    scores += W[-1].astype(np.float32)
    return scores


def _products(X: Float32, Z: Float32) -> Sums:
    return Z.T @ Z, Z.sum(axis=0, dtype=np.float64), X.T @ Z


def _judged(H: npt.NDArray[np.uint8], L: int, judges: Judges, rows: slice) -> Sums:
    planes = to_planes(pack_bools(H), L)
    counts = np.zeros((len(judges.words), L + 1), dtype=np.int64)
    hits = np.zeros_like(counts)
    _count_distances(planes, judges.words, counts)
    first, last = np.searchsorted(judges.rows, (rows.start, rows.stop))
    _count_pairs(planes, judges.words, judges.rows[first:last] - rows.start, judges.owners[first:last], hits)
    return counts, hits


@kernel
def _count_distances(planes: Any, queries: Any, counts: Ids) -> None:
    """Add to counts[q, d] how many codes are at distance d from query q."""
    n, buffer = planes.shape[1], np.empty(CHUNK, dtype=np.uint16)
    for start in range(0, n, CHUNK):
        stop = min(n, start + CHUNK)
        for q in range(len(queries)):
            chunk_distances(planes, start, stop, queries[q], buffer)
            for i in range(stop - start):
                counts[q, buffer[i]] += 1


@kernel
def _count_pairs(planes: Any, queries: Any, rows: Ids, owners: Ids, hits: Ids) -> None:
    """Add to hits[q, d] the rows that are true neighbours of query q, their owner."""
    for i in range(len(rows)):
        distance = 0
        for w in range(planes.shape[0]):
            distance += popcount(planes[w, rows[i]] ^ queries[owners[i], w])
        hits[owners[i], distance] += 1


def empty_codes(n: int, n_bits: int) -> Packed:
    """Room for the codes of n rows."""
    return np.zeros((n, bytes_per_code(n_bits)), dtype=np.uint8)
