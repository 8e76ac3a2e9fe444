"""The spherical Hamming distance (Heo et al. 2012) and an exact search by it.

d(a, b) = |a xor b| / |a and b|: rows in many common spheres are near, for those spheres meet in a small
region, while rows outside of the same sphere may be anywhere. The quotient is not defined for codes without
a common 1: here it is n_bits + |a xor b|, larger than any quotient (the largest is n_bits − 1), equal codes
of zeros included. So such pairs come last, by Hamming distance. No triangle inequality holds. Which of the
two distances finds more neighbours depends on data and bits: measure both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.blocks import Workers
from auxbit.checks import check_integer
from auxbit.codes import check_n_bits, check_packed, to_words
from auxbit.compiled import kernel
from auxbit.popcount import CHUNK, popcount, query_words, to_planes

Distances = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

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
    base_codes: npt.ArrayLike,
    query_codes: npt.ArrayLike,
    k: int = 10,
    *,
    n_bits: int | None = None,
    n_jobs: int | None = None,
) -> tuple[Distances, Ids]:
    """The k base codes nearest to each query in spherical Hamming distance, ordered by (distance, position).

    base_codes : (n, ceil(n_bits/8)) uint8, query_codes : (q, …) uint8 → distances (q, k) float32, ids (q, k)
    int64, row numbers of the base. Where k > n, rows end in ids of -1 at distance inf. Without n_bits, all
    bits of the bytes count; it matters only for the distance of codes without a common 1.
    """
    k = check_integer("k", k, 1, None, "Try k=10.")
    packed = np.asarray(base_codes)
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
