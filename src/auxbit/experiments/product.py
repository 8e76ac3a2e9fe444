"""Product quantisation by FAISS at equal bits: PQ and OPQ, searched asymmetrically (the query is not coded).

Not Hamming codes, so rows of their own in a comparison: what the same bits give to a slower search.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from auxbit.blocks import block_slices
from auxbit.errors import InvalidParameter
from auxbit.index.approximate import faiss_threads

# with fewer rows FAISS's threads mostly wait: OPQ of the digits took 19 s on two of them, 1.6 s on one
MANY_ROWS = 50_000
MAX_CENTROID_BITS, USUAL_CENTROID_BITS = 12, 8


class Shape(NamedTuple):
    """M parts of the vector, each coded in `n_bits` bits."""

    M: int
    n_bits: int


def choose_shape(bits: int, n_dims: int, n_train: int) -> Shape:
    """M and its bits with M * n_bits = bits, M dividing the dimensions, and n_bits nearest to the usual 8."""
    most = min(MAX_CENTROID_BITS, int(np.log2(max(n_train, 1))))
    found = [
        Shape(bits // each, each)
        for each in range(1, most + 1)
        if bits % each == 0 and n_dims % (bits // each) == 0
    ]
    if not found:
        raise InvalidParameter(
            "bits",
            bits,
            f"M × b for product quantisation, M dividing {n_dims} dimensions and b at most {most}",
        )
    return min(found, key=lambda shape: (abs(shape.n_bits - USUAL_CENTROID_BITS), shape.n_bits))


class ProductQuantizer:
    """FAISS's PQ, or OPQ with `rotate`, behind the few calls that a comparison needs."""

    def __init__(self, bits: int, *, rotate: bool, seed: int = 0, n_jobs: int | None = None) -> None:
        self.bits, self.rotate, self.seed, self.n_jobs = bits, rotate, seed, n_jobs

    def fit(self, X: npt.NDArray[Any]) -> float:
        """Train on the rows of X, (n, D); returns the seconds."""
        import faiss

        D = X.shape[1]
        shape = choose_shape(self.bits, D, len(X))
        flat = faiss.IndexPQ(D, *shape)
        _prepare(flat.pq, self.seed)
        self._index: Any = flat
        if self.rotate:
            rotation = faiss.OPQMatrix(D, shape.M)
            inner = faiss.ProductQuantizer(D, *shape)
            _prepare(inner, self.seed)
            rotation.pq = inner
            self._index = faiss.IndexPreTransform(rotation, flat)
            self._parts = (rotation, inner, flat)  # FAISS keeps bare pointers to them
        start = time.perf_counter()
        with faiss_threads(self.n_jobs if len(X) >= MANY_ROWS else 1):
            self._index.train(np.ascontiguousarray(X, dtype=np.float32))
        return time.perf_counter() - start

    def encode(self, X: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        """The codes of the rows, (n, ceil(bits/8)) uint8."""
        with faiss_threads(self.n_jobs):
            codes: npt.NDArray[np.uint8] = self._index.sa_encode(np.ascontiguousarray(X, dtype=np.float32))
        return codes

    def error(self, X: npt.NDArray[Any], codes: npt.NDArray[np.uint8]) -> float:
        """The mean over rows of the squared distance from a row to the reconstruction of its code."""
        total = 0.0
        for rows in block_slices(len(X)):
            residual = X[rows].astype(np.float64) - self._index.sa_decode(np.ascontiguousarray(codes[rows]))
            total += float(np.einsum("nd,nd->", residual, residual))
        return total / len(X)

    def search(self, X: npt.NDArray[Any], queries: npt.NDArray[Any], k: int) -> npt.NDArray[np.int64]:
        """Row numbers, (q, k), of the rows of X whose reconstructions are nearest to each query."""
        self._index.reset()
        with faiss_threads(self.n_jobs):
            self._index.add(np.ascontiguousarray(X, dtype=np.float32))
            _, ids = self._index.search(np.ascontiguousarray(queries, dtype=np.float32), k)
        return np.asarray(ids, dtype=np.int64)


def _prepare(quantizer: Any, seed: int) -> None:
    quantizer.cp.seed = 1234 + seed  # FAISS's own default, moved by ours
    quantizer.cp.min_points_per_centroid = 1  # it would print a warning for each part
