"""Spherical hashing (Heo et al. 2012): a bit says whether a row lies inside a hypersphere.

Also the spherical Hamming distance, which that paper made for such codes, and an exact search by it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from auxbit.core.checks import Float32, Float64, Ids, as_array, check_integer, check_positive
from auxbit.core.features import squared_distances
from auxbit.core.maps import CHUNK, Encoder, check_n_bits, check_packed, query_words, to_planes, to_words
from auxbit.core.parallel import Workers, kernel, some_rows
from auxbit.core.simd import popcount
from auxbit.hashers.base import Hasher, Learned
from auxbit.mac.fit import Beginning

logger = logging.getLogger("auxbit")

PIVOT_ROWS = 9  # rows whose mean is a first pivot; odd, so that no pivot lies midway between two clusters
ROUNDING = 1e-13  # squared distances nearer than this share of the squared norms are equal


class SphericalHashing(Hasher):
    """Spherical hashing: each bit is a sphere with half of the rows; two spheres share a quarter of them.

    >>> from sklearn.datasets import load_digits
    >>> from auxbit import SphericalHashing
    >>> X = load_digits().data
    >>> sph = SphericalHashing(n_bits=16, random_state=0).fit(X)
    >>> sph.encode(X).shape  # packed: two bytes per row
    (1797, 2)

    Centres (pivots) start as means of a few random rows. In each round, radii are set to median distances,
    and two pivots move apart if their spheres share more than a quarter of the rows, and together if they
    share less. It is trained on a sample, so that it scales to any number of rows. If the rounds end before
    the overlaps are within the bounds, the best spheres so far are kept.

    Note: the paper bounds both the mean of |o_ij − m/4| and the deviation of o_ij, by 10 and 15 % of m/4, for
    overlaps o_ij of spheres i and j and m rows. Tighter bounds would overfit the sample.

    Parameters
    ----------
    n_bits : bits per code, 1 to 1024.
    max_iter : the most rounds. Reaching it is normal, above all with more bits than dimensions; `converged_`
        is then False, and the log says so.
    mean_tol, std_tol : the bounds of the paper on the overlaps, as shares of a quarter of the rows.
    sample_size : rows to train on, drawn at random; all of them if there are no more than that.
    normalize : divide rows by their norms, to find neighbours by cosine.
    lift : add a coordinate to the rows, to find neighbours by inner product; queries are then encoded by
        encode(X, queries=True).
    random_state : seed of the sample and of the first pivots.
    n_jobs : threads; None for all cores. The result does not depend on it.

    Attributes
    ----------
    converged_ : whether the overlaps came within the bounds.
    n_iter_ : number of rounds.
    """

    def __init__(
        self, n_bits: int = 32, *, max_iter: int = 100, mean_tol: float = 0.1, std_tol: float = 0.15,
        sample_size: int = 10_000, normalize: bool = False, lift: bool = False,
        random_state: Any = None, n_jobs: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(n_bits, normalize=normalize, lift=lift, random_state=random_state, n_jobs=n_jobs)
        self.max_iter = max_iter
        self.mean_tol = mean_tol
        self.std_tol = std_tol
        self.sample_size = sample_size

    def _learn(self, given: Beginning) -> Learned:
        max_iter = check_integer("max_iter", self.max_iter, 1)
        mean_tol = check_positive("mean_tol", self.mean_tol)
        std_tol = check_positive("std_tol", self.std_tol)
        sample_size = check_integer("sample_size", self.sample_size, 2)
        S = some_rows(given.X, given.rng, sample_size)
        pivots = first_pivots(S, given.n_bits, given.rng)
        spheres, n_iter = balanced_spheres(S, pivots, given.workers, max_iter, mean_tol, std_tol)
        converged = spheres.excess(mean_tol, std_tol) <= 1
        logger.info(
            "SphericalHashing %s in %d rounds: overlaps differ from a quarter by %.3f of it on average "
            "(tolerance %g), with a deviation of %.3f (tolerance %g)",
            "converged" if converged else "did not converge",
            n_iter, spheres.mean_error, mean_tol, spheres.std_error, std_tol,
        )  # fmt: skip
        encoder = SphericalEncoder(spheres.pivots, spheres.radii)
        return Learned(encoder, attributes={"converged_": converged, "n_iter_": n_iter})

    def _saved_attributes(self) -> dict[str, Any]:
        return {"converged_": self.converged_, "n_iter_": self.n_iter_}

    def _restore_attributes(self, saved: dict[str, Any]) -> None:
        self.converged_ = bool(saved["converged_"])
        self.n_iter_ = int(saved["n_iter_"])


@dataclass(frozen=True)
class SphericalEncoder(Encoder):
    """Bit l is 1 if ‖x − pivot_l‖ ≤ radius_l. pivots : (L, D) float64, radii : (L,) float64."""

    LAYOUT = "pivots float64 L D; radii float64 L"

    pivots: Float64
    radii: Float64

    def scores(self, X: Float32) -> Float64:
        """radius² − ‖x − pivot‖². X : (n, D) scaled → (n, L)."""
        return self.radii**2 - squared_distances(X, self.pivots)


class Spheres(NamedTuple):
    """Pivots with their radii. overlaps : (L, L), shares of the rows that two spheres both hold.

    mean_error, std_error : mean of |o_ij − ¼| and deviation of o_ij over the pairs, as shares of ¼.
    """

    pivots: Float64
    radii: Float64
    overlaps: Float64
    mean_error: float
    std_error: float

    def excess(self, mean_tol: float, std_tol: float) -> float:
        """How many times too large the errors are; converged if it is at most 1."""
        return max(self.mean_error / mean_tol, self.std_error / std_tol)


def balanced_spheres(
    S: Float32, pivots: Float64, workers: Workers, max_iter: int, mean_tol: float, std_tol: float
) -> tuple[Spheres, int]:
    """Alternate radii and forces until the overlaps converge; the best spheres, and the rounds made."""
    spheres = best = measure(S, pivots, workers)
    n_iter = 1
    while best.excess(mean_tol, std_tol) > 1 and n_iter < max_iter:
        moved = spheres.pivots + forces(spheres.pivots, spheres.overlaps)
        if np.array_equal(moved, spheres.pivots):
            break  # pivots at one point cannot part
        spheres = measure(S, moved, workers)
        best = min(best, spheres, key=lambda each: each.excess(mean_tol, std_tol))
        n_iter += 1
    return best, n_iter


def first_pivots(S: Float32, n_bits: int, rng: np.random.RandomState) -> Float64:
    """Means of random subsets of the rows. S : (m, D) → (n_bits, D)."""
    n_rows = min(PIVOT_ROWS, (len(S) // 2 - 1) | 1)  # odd
    pivots = np.empty((n_bits, S.shape[1]))
    for pivot in pivots:
        pivot[:] = S[rng.choice(len(S), n_rows, replace=False)].mean(axis=0, dtype=np.float64)
    return pivots


def measure(S: Float32, pivots: Float64, workers: Workers) -> Spheres:
    """Set each radius so that its sphere holds half of the rows, and count what pairs of spheres share."""
    m, n_bits = len(S), len(pivots)
    distances = np.empty((n_bits, m))
    radii = np.empty(n_bits)

    def fill(rows: slice) -> None:
        distances[:, rows] = squared_distances(S[rows], pivots).T

    def set_radii(bits: slice) -> None:
        for bit in range(bits.start, bits.stop):
            radii[bit] = np.sqrt(halving(distances[bit], rounding[bit]))

    def shared(rows: slice) -> tuple[Float32]:
        inside = (distances[:, rows] <= radii[:, None] ** 2).astype(np.float32)
        return (inside @ inside.T,)  # whole numbers, exact in float32

    workers.run(fill, m)
    largest = np.einsum("nd,nd->n", S, S).max()
    rounding = ROUNDING * (largest + np.einsum("ld,ld->l", pivots, pivots))
    workers.run(set_radii, n_bits, 8)
    (counts,) = workers.sum(shared, m)
    overlaps = counts / m
    pairs = overlaps[np.triu_indices(n_bits, 1)] if n_bits > 1 else np.array([0.25])
    mean_error, std_error = float(np.abs(pairs - 0.25).mean() / 0.25), float(pairs.std() / 0.25)
    return Spheres(pivots, radii, overlaps, mean_error, std_error)


def halving(squared: Float64, rounding: float) -> float:
    """Return a squared radius below which half of the squared distances are, as nearly as possible.

    It lies midway between two of them that differ, so that no row is on the border and equal rows are on one
    side. If all are equal, all are inside.
    """
    half = len(squared) // 2
    inner, outer = np.partition(squared, (half - 1, half))[half - 1 : half + 1]
    if outer - inner > 4 * rounding:
        return float((inner + outer) / 2)
    ordered = np.sort(squared)
    gaps = np.flatnonzero(np.diff(ordered) > 4 * rounding)
    if not len(gaps):
        return float(ordered[-1] + 2 * rounding)
    gap = gaps[np.abs(gaps + 1 - len(squared) / 2).argmin()]
    return float((ordered[gap] + ordered[gap + 1]) / 2)


def forces(pivots: Float64, overlaps: Float64) -> Float64:
    """How far each pivot moves: f_i = (1/L) Σ_j ½ (o_ij − ¼)/¼ (p_i − p_j). → (L, D)."""
    strength = 0.5 * (overlaps - 0.25) / 0.25
    pushed: Float64 = (strength.sum(axis=1)[:, None] * pivots - strength @ pivots) / len(pivots)
    return pushed


# ---- the spherical Hamming distance, and an exact search by it
#
# d(a, b) = |a xor b| / |a and b|: rows in many common spheres are near, because those spheres meet in a
# small region, while rows outside of the same sphere may be anywhere. The quotient is not defined for codes
# without a common 1: here it is n_bits + |a xor b|, larger than any quotient (the largest is n_bits − 1),
# equal codes of zeros included. So such pairs come last, by Hamming distance. No triangle inequality
# holds. Which of the two distances finds more neighbours depends on data and bits: measure both.

Distances = npt.NDArray[np.float32]

PADDING_ID = -1
QUERY_BLOCK = 16  # queries that share one pass over the codes


def spherical_distances(a: npt.ArrayLike, b: npt.ArrayLike, n_bits: int) -> Distances:
    """All pairs of spherical Hamming distances, for few codes. a, b : packed → (len(a), len(b)) float32."""
    words_a = to_words(check_packed(a, n_bits, "a"))[:, None, :]
    words_b = to_words(check_packed(b, n_bits, "b"))[None, :, :]
    differing = np.bitwise_count(words_a ^ words_b).sum(axis=2, dtype=np.float32)
    common = np.bitwise_count(words_a & words_b).sum(axis=2, dtype=np.float32)
    distances: Distances = differing + np.float32(n_bits)
    np.divide(differing, common, out=distances, where=common > 0)
    return distances


def spherical_search(
    base_codes: npt.ArrayLike, query_codes: npt.ArrayLike, k: int = 10, *, n_bits: int | None = None,
    n_jobs: int | None = None,
) -> tuple[Distances, Ids]:  # fmt: skip
    """The k base codes nearest to each query in spherical Hamming distance, ordered by (distance, position).

    base_codes : (n, ceil(n_bits/8)) uint8, query_codes : (q, …) uint8 → distances (q, k) float32, ids (q, k)
    int64, row numbers of the base. If k > n, rows end in ids of -1 at distance inf. Without n_bits, all
    bits of the bytes count; it matters only for the distance of codes without a common 1.
    """
    k = check_integer("k", k, 1, None, "Try k=10.")
    packed = as_array(base_codes, "base_codes")
    if n_bits is None:
        n_bits = 8 * packed.shape[1] if packed.ndim == 2 and packed.shape[1] else 8
    n_bits = check_n_bits(n_bits)
    planes = to_planes(check_packed(packed, n_bits, "base_codes"), n_bits)
    queries = query_words(check_packed(query_codes, n_bits, "query_codes"), n_bits)
    found = min(k, planes.shape[1])
    distances = np.full((len(queries), k), np.inf, dtype=np.float32)
    ids = np.full((len(queries), k), PADDING_ID, dtype=np.int64)

    def scan(rows: slice) -> None:
        _search_block(planes, queries[rows], n_bits, distances[rows, :found], ids[rows, :found])

    if found:
        block_rows = max(1, min(QUERY_BLOCK, 2**21 // found))  # a worker's candidates stay below 50 MB
        with Workers(n_jobs) as workers:
            workers.run(scan, len(queries), block_rows)
    return distances, ids


@kernel
def _search_block(planes: Any, queries: Any, n_bits: int, distances: Any, positions: Any) -> None:
    """Fill distances and positions, (q, k), with the k nearest of at least k codes to each query.

    A candidate is kept if it is nearer than `limit`. When 2k are kept, the best k stay, and the last of them
    is the new limit: later codes at that distance lose their ties.
    """
    n_queries, k = positions.shape
    n = planes.shape[1]
    kept_distance = np.empty((n_queries, 2 * k), dtype=np.float32)
    kept_position = np.empty((n_queries, 2 * k), dtype=np.int64)
    kept = np.zeros(n_queries, dtype=np.int64)
    limit = np.full(n_queries, np.inf, dtype=np.float32)
    differing = np.empty(CHUNK, dtype=np.float32)
    common = np.empty(CHUNK, dtype=np.float32)
    for start in range(0, n, CHUNK):
        stop = min(n, start + CHUNK)
        for i in range(n_queries):
            _chunk_counts(planes, start, stop, queries[i], differing, common)
            for j in range(stop - start):
                d = differing[j] / common[j] if common[j] > 0 else differing[j] + np.float32(n_bits)
                if d >= limit[i]:
                    continue
                kept_distance[i, kept[i]] = d
                kept_position[i, kept[i]] = start + j
                kept[i] += 1
                if kept[i] == 2 * k:
                    _keep_best(kept_distance[i], kept_position[i], k)
                    kept[i] = k
                    limit[i] = kept_distance[i, k - 1]
    for i in range(n_queries):
        _keep_best(kept_distance[i, : kept[i]], kept_position[i, : kept[i]], k)
        distances[i] = kept_distance[i, :k]
        positions[i] = kept_position[i, :k]


@kernel
def _keep_best(distance: Any, position: Any, k: int) -> None:
    """Bring the k nearest to the front, in order. Among equals positions rise, which a stable sort keeps."""
    order = np.argsort(distance, kind="mergesort")[:k]
    distance[:k], position[:k] = distance[order], position[order]


@kernel
def _chunk_counts(planes: Any, start: int, stop: int, query: Any, differing: Any, common: Any) -> None:
    """Count the bits of codes start..stop that differ from the query's, and the ones that both have."""
    for i in range(stop - start):
        differing[i] = 0
        common[i] = 0
    for w in range(planes.shape[0]):
        plane, word = planes[w, start:stop], query[w]
        for i in range(stop - start):
            differing[i] += np.float32(popcount(plane[i] ^ word))
            common[i] += np.float32(popcount(plane[i] & word))
