"""AuxbitTransformer: neighbours by codes as a sparse graph, for TSNE, DBSCAN, Isomap and others.

from auxbit.integrations.scikit_learn import AuxbitTransformer

make_pipeline(AuxbitTransformer(n_neighbors=90), TSNE(metric="precomputed", init="random")).fit_transform(X)
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from auxbit.core.checks import Array, Float64, Ids, Positions, check_integer
from auxbit.core.decoders import Decoder
from auxbit.core.progress import Silent
from auxbit.errors import InvalidParameter
from auxbit.evaluate import ground_truth
from auxbit.hashers.base import Hasher
from auxbit.hashers.files import model_for
from auxbit.index.asymmetric import rank_by_vectors
from auxbit.index.hamming import HammingIndex
from auxbit.index.queries import Queries

METRICS = ("euclidean", "cosine")
MODES = ("distance", "connectivity")


class AuxbitTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Compute the sparse graph of nearest neighbours of X, like scikit-learn's KNeighborsTransformer.

    Candidates are found by codes that `fit` learns, and ranked by exact distances between rows.

    Parameters
    ----------
    n_neighbors : neighbours per row. With mode="distance" there is one more: each row is its own first.
    mode : "distance", or "connectivity", a graph of ones.
    metric : "euclidean", or "cosine", 1 minus the cosine.
    n_bits : bits per code; by default about half as many as features, 16 to 256.
    candidates : how many rows are compared with each query; by default 10 per neighbour, at least 100.
    exact_below : with fewer rows than this, all are compared and no codes are learned.
    random_state, n_jobs : seed of the codes; threads, None for all cores.

    Attributes
    ----------
    model_ : the hasher; None if all rows are compared.
    """

    def __init__(
        self, n_neighbors: int = 5, *, mode: str = "distance", metric: str = "euclidean",
        n_bits: int | None = None, candidates: int | None = None, exact_below: int = 5000,
        random_state: int = 0, n_jobs: int | None = None,
    ) -> None:  # fmt: skip
        self.n_neighbors = n_neighbors
        self.mode = mode
        self.metric = metric
        self.n_bits = n_bits
        self.candidates = candidates
        self.exact_below = exact_below
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any = None) -> Self:
        """Keep the rows, (n, D), and learn codes for them. y is ignored."""
        check_integer("n_neighbors", self.n_neighbors, 1, None, "Try n_neighbors=5.")
        for name, allowed in (("mode", MODES), ("metric", METRICS)):
            if getattr(self, name) not in allowed:
                raise InvalidParameter(name, getattr(self, name), " or ".join(map(repr, allowed)))
        rows = validate_data(self, X, dtype=np.float32, copy=True)
        model, index = None, None
        if len(rows) >= max(2, check_integer("exact_below", self.exact_below, 0)):
            model, _ = model_for(
                None, rows, "X", are_codes=False, progress=Silent(), metric=self.metric, coding=None, mu=None,
                decoder=None, lists="auto", refine_bits=0, method=None, bits=self.n_bits, n_features=None,
                random_state=self.random_state, n_jobs=self.n_jobs,
            )  # fmt: skip
            assert model is not None
            index = HammingIndex(model=model, n_jobs=self.n_jobs)
            index.add(model.encode(rows, coding=index.coding, mu=index.mu))
        self.model_, self._index, self._rows, self.n_samples_fit_ = model, index, rows, len(rows)
        return self

    def transform(self, X: Any) -> csr_matrix:
        """The neighbours of X among the rows of fit: a sparse (q, n), distances sorted within each row."""
        check_is_fitted(self)
        return self.kneighbors_graph(X, self.n_neighbors + (self.mode == "distance"), mode=self.mode)

    def kneighbors(
        self, X: Any = None, n_neighbors: int | None = None, return_distance: bool = True
    ) -> tuple[Float64, Ids] | Ids:
        """Distances and row numbers of the nearest rows, (q, n_neighbors) each.

        X : (q, D); None: the rows of fit, each without itself.
        """
        check_is_fitted(self)
        k = check_integer("n_neighbors", self.n_neighbors if n_neighbors is None else n_neighbors, 1)
        itself = X is None
        queries = self._rows if itself else validate_data(self, X, dtype=np.float32, copy=True, reset=False)
        if k + itself > self.n_samples_fit_:
            raise InvalidParameter(
                "n_neighbors",
                k,
                f"at most {self.n_samples_fit_ - itself}, for n_samples_fit_={self.n_samples_fit_}",
            )
        squared, found = self._nearest(queries, k + itself)
        if itself:
            others = _others(found)
            squared, found = (each[others].reshape(len(queries), k) for each in (squared, found))
        distances = squared / 2 if self.metric == "cosine" else np.sqrt(squared)
        return (distances, found) if return_distance else found

    def kneighbors_graph(
        self, X: Any = None, n_neighbors: int | None = None, mode: str = "connectivity"
    ) -> csr_matrix:
        """The same as a sparse matrix, (q, n), of distances or of ones."""
        if mode not in MODES:
            raise InvalidParameter("mode", mode, " or ".join(map(repr, MODES)))
        distances, found = self.kneighbors(X, n_neighbors)
        values = distances.ravel() if mode == "distance" else np.ones(found.size)
        ends = np.arange(0, found.size + 1, found.shape[1])
        return csr_matrix((values, found.ravel(), ends), shape=(len(found), self.n_samples_fit_))

    def _nearest(self, X: Array, k: int) -> tuple[Float64, Ids]:
        """Squared distances and numbers of the k nearest rows."""
        if self.model_ is None or self._index is None:
            found: Ids = ground_truth(self._rows, X, k, metric=self.metric, n_jobs=self.n_jobs)
            squared, found = rank_by_vectors(X, found, self._rows, k, metric=self.metric, n_jobs=self.n_jobs)
        else:
            rerank = self.candidates is None or max(k, check_integer("candidates", self.candidates, 1))
            searched = _Rows(self.model_, self._index, self._rows)
            squared, found = Queries(searched, X).nearest(k, rerank=rerank)
        return np.maximum(squared.astype(np.float64), 0), found

    @property
    def _n_features_out(self) -> int:
        return self.n_samples_fit_


class _Rows:
    """Rows in memory, and their codes in an index: what `Queries` search."""

    place = "X"
    kept: str | None = "float32"
    n_features: int | None

    def __init__(self, model: Hasher, index: HammingIndex, rows: Array) -> None:
        self.n_bits, self.coding, self.mu, self.n_jobs = index.n_bits, index.coding, index.mu, index.n_jobs
        self.n_features, self.has_lists = int(model.n_features_in_), bool(index.n_lists)
        self.metric = model.scaling_.metric
        self._model, self._index, self._rows = model, index, rows

    def model(self) -> Hasher:
        return self._model

    def index(self, decoder: Decoder | None = None) -> HammingIndex:
        return self._index

    def mapped_vectors(self, positions: Positions) -> Array:
        return self._rows


def _others(found: Ids) -> Any:
    """Which neighbours are not the row itself: all but one in each row, (n, k) → (n, k)."""
    own = found == np.arange(len(found))[:, None]
    own[~own.any(axis=1), -1] = True  # among more equal rows than k, or missed by its code
    return ~own
