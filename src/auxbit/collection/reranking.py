"""Candidates ranked anew by true distances, from vectors that stay on disk: retrieve more, then verify."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.blocks import Workers
from auxbit.collection.snapshot import Snapshot

Positions = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]

FACTOR = 10  # candidates for each answer, unless told


def rerank(
    snapshot: Snapshot, X: npt.NDArray[Any], candidates: Positions, k: int, normalize: bool, workers: Workers
) -> tuple[Float32, Positions]:
    """The k nearest of each query's candidates by ‖x − y‖², and their positions, (q, k).

    X : (q, D); candidates : (q, m) positions, -1 for none. `normalize` divides rows by their norm first.
    Ties go to the smaller position; missing answers are -1 at distance inf.
    """
    distances = np.full((len(X), k), np.inf, dtype=np.float32)
    positions = np.full((len(X), k), -1, dtype=np.int64)

    def rank(rows: slice) -> None:
        for row in range(rows.start, rows.stop):
            near = np.sort(candidates[row][candidates[row] >= 0])
            vectors = snapshot.vectors(near).astype(np.float64)  # float16 squares would overflow
            squared = _squared_distances(np.asarray(X[row], dtype=np.float64), vectors, normalize)
            best = np.argsort(squared, kind="stable")[:k]
            distances[row, : len(best)], positions[row, : len(best)] = squared[best], near[best]

    workers.run(rank, len(X), 1)
    return distances, positions


def _squared_distances(
    x: npt.NDArray[np.float64], vectors: npt.NDArray[np.float64], normalize: bool
) -> npt.NDArray[np.float64]:
    if normalize:
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = vectors / np.where(norms > 0, norms, 1)
        x = x / (np.linalg.norm(x) or 1)
    difference = vectors - x
    squared: npt.NDArray[np.float64] = np.einsum("nd,nd->n", difference, difference)
    return squared
