"""Early stopping (section 4.4): the precision of h on queries that are not trained on."""

from __future__ import annotations

import numpy as np

from auxbit.core.codes import pack_bools
from auxbit.core.maps import LinearEncoder
from auxbit.core.parallel import Workers, draw_rows
from auxbit.core.types import Float32, Packed
from auxbit.evaluate import ground_truth, hamming_ranking, precision_recall_at_k
from auxbit.mac.steps import encode_rows

AUTO_SHARE, AUTO_MOST, AUTO_LEAST = 10, 1000, 10


class Validation:
    """Precision of the k nearest codes against the K = k true neighbours, ties averaged.

    X : (N, D) the training rows, which are the database; queries : (q, D).
    """

    def __init__(self, X: Float32, queries: Float32, workers: Workers) -> None:
        self._X, self._queries, self._workers = X, queries, workers
        self.k = neighbours_to_find(len(X))
        self._truth = ground_truth(X, queries, self.k, n_jobs=workers.n_jobs)

    def precision(self, h: LinearEncoder) -> float:
        """Tie-averaged precision at k of the hash function h."""
        ranking = hamming_ranking(
            self._encode(self._X, h), self._encode(self._queries, h), self._truth, n_jobs=self._workers.n_jobs
        )
        return precision_recall_at_k(ranking, self.k, ties="average").precision

    def _encode(self, X: Float32, h: LinearEncoder) -> Packed:
        return pack_bools(encode_rows(X, h, self._workers))


def neighbours_to_find(n_rows: int) -> int:
    """K = k: 1 % of the rows, between 10 and 100."""
    return min(int(np.clip(n_rows // 100, 10, 100)), n_rows)


def choose_queries(n_rows: int, rng: np.random.RandomState) -> np.ndarray | None:
    """A tenth of the rows, at most 1,000, as queries; None where that would be fewer than 10."""
    n = min(n_rows // AUTO_SHARE, AUTO_MOST)
    return draw_rows(n_rows, n, rng) if n >= AUTO_LEAST else None
