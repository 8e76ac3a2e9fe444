"""The truth about searches in a few lines of NumPy, and codes to search."""

from __future__ import annotations

import numpy as np

from auxbit.core import maps
from auxbit.index.codes import CodeNorms

FAR = np.iinfo(np.int32).max
KINDS = ("auto", "linear", "multi")


def random_codes(n, n_bits, seed=0, share_of_ones=0.5):
    bits = np.random.default_rng(seed).random((n, n_bits)) < share_of_ones
    return maps.pack(bits).reshape(n, maps.bytes_per_code(n_bits))


def clustered_codes(n, n_bits, n_clusters=20, flipped=0.03, seed=0):
    """Codes with many near and equal ones, as real data have."""
    rng = np.random.default_rng(seed)
    centres = rng.random((n_clusters, n_bits)) < 0.5
    return maps.pack(centres[rng.integers(n_clusters, size=n)] ^ (rng.random((n, n_bits)) < flipped))


def slow_search(base, ids, queries, k):
    """Sort everything by (distance, position)."""
    all_distances = maps.hamming_distances(queries, base)
    order = np.argsort(all_distances, axis=1, kind="stable")[:, :k]
    distances = np.full((len(queries), k), FAR, dtype=np.int32)
    found = np.full((len(queries), k), -1, dtype=np.int64)
    distances[:, : order.shape[1]] = np.take_along_axis(all_distances, order, axis=1)
    found[:, : order.shape[1]] = np.asarray(ids)[order]
    return distances, found


def slow_radius(base, ids, queries, r):
    every, found = slow_search(base, ids, queries, len(base))
    within = every <= r
    return np.append(0, np.cumsum(within.sum(axis=1))), every[within], found[within]


def check_search(index, base, ids, queries, k, **options):
    """The answers are true."""
    distances, found = index.search(queries, k, **options)
    assert (distances.dtype, found.dtype) == (np.int32, np.int64)
    true_distances, true_found = slow_search(base, ids, queries, k)
    np.testing.assert_array_equal(distances, true_distances)
    np.testing.assert_array_equal(found, true_found)


def check_radius(index, base, ids, queries, r, **options):
    answers = index.search_radius(queries, r, **options)
    assert [each.dtype for each in answers] == [np.int64, np.int32, np.int64]
    for ours, true in zip(answers, slow_radius(base, ids, queries, r), strict=True):
        np.testing.assert_array_equal(ours, true)


class GivenNorms:
    """A decoder of which only the norms are asked: those given, one after the other."""

    def __init__(self, norms):
        self.norms = list(np.asarray(norms, dtype=np.float32))

    def squared_norms(self, codes):
        taken, self.norms = self.norms[: len(codes)], self.norms[len(codes) :]
        return np.array(taken, dtype=np.float32)


def norms_of(norms):
    kept = CodeNorms(GivenNorms(norms))
    kept.append(np.zeros((len(norms), 1), dtype=np.uint8))
    return kept
