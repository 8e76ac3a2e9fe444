"""Queries: what a collection is searched for, and the nearest items of a snapshot."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np

from auxbit.collection.snapshot import Snapshot
from auxbit.core.checks import Array, Packed, PathLike, Positions, check_finite, check_integer
from auxbit.data.records import read_records
from auxbit.data.vectors import as_rows
from auxbit.data.where import Where
from auxbit.errors import InvalidInput

FACTOR = 10  # candidates for each answer of a re-ranked search, by default
MOST_ANSWERS = 2**31 - 1


class Queries:
    """Vectors or codes to search a snapshot for. X : (q, D) or None; single : it was one vector or code."""

    def __init__(self, now: Snapshot, X: Array | None, packed: Packed | None, single: bool) -> None:
        self.now, self.X, self._packed, self.single = now, X, packed, single

    @classmethod
    def of(cls, now: Snapshot, X: Any, codes: Any, like: Any, column: str | None = None) -> Queries:
        """The queries as they are given, by exactly one of X, codes and like, or X with its codes."""
        if like is not None:
            return cls._of_item(now, now.places([like]))
        if isinstance(X, str | os.PathLike):
            X, codes = _read(now, X, column, are_codes=False)
        elif isinstance(codes, str | os.PathLike):
            X, codes = _read(now, codes, column, are_codes=True)
        if X is None and codes is None:
            raise InvalidInput("nothing to search for: give X, rows to encode, codes=… or like=id.")
        rows = X if X is None or type(X) is np.ndarray else np.asarray(as_rows(X))
        packed = None if codes is None else np.asarray(codes)
        single = (rows if rows is not None else packed).ndim == 1  # type: ignore[union-attr]
        if packed is not None:
            from auxbit.core.maps import check_packed

            packed = check_packed(packed[None] if packed.ndim == 1 else packed, now.state.n_bits, "codes")
        return cls(now, rows[None] if single and rows is not None else rows, packed, single)

    @classmethod
    def _of_item(cls, now: Snapshot, place: Positions) -> Queries:
        """An item: its vector if that is kept, and its code if there is no vector or no model."""
        X = None if now.state.vectors is None else now.view.vectors(now.state, place)
        if X is not None and now.state.model is not None:
            return cls(now, X, None, True)
        return cls(now, X, now.view.codes(now.state, place), True)

    def __len__(self) -> int:
        rows = self.X if self.X is not None else self._packed
        return 0 if rows is None else len(rows)

    @property
    def codes(self) -> Packed:
        """The packed codes of the queries."""
        if self._packed is None:
            model = self.now.view.model(self.now.state)
            if not len(self):
                return np.zeros((0, -(-self.now.state.n_bits // 8)), dtype=np.uint8)
            self._packed = model.encode(np.asarray(self.X))
        return self._packed

    @property
    def rows(self) -> Array:
        """The queries themselves, of the right dimension."""
        if self.X is None:
            raise InvalidInput(
                'rerank and mode="asymmetric" compare vectors, and the queries are codes: give X.'
            )
        n_features = self.now.state.n_features
        if self.X.ndim != 2 or self.X.shape[1] != n_features or self.X.dtype.kind not in "fiub":
            raise InvalidInput(
                f"X must be rows of {n_features} numbers, shape (q, {n_features}); got shape {self.X.shape} "
                f"of {self.X.dtype}."
            )
        return self.X

    def within(self, r: int, where: Where | None) -> tuple[Array, Array, Positions]:
        """All items within a Hamming distance: lims, distances and positions."""
        index = self.now.view.index(self.now.state)
        return index.search_radius(self.codes, r, among=self._among(where))

    def nearest(
        self, k: int, mode: str, n_candidates: int, where: Where | None, n_jobs: int | None
    ) -> tuple[Array, Positions]:
        """Distances and positions of the nearest; all queries get as many as there are, at most k."""
        view, state, among = self.now.view, self.now.state, self._among(where)
        available = view.alive.count if among is None else len(among.positions)
        wanted, k = min(n_candidates or k, available), min(k, available)
        X = self.rows if mode == "asymmetric" or n_candidates else None
        if not wanted:
            kind = np.float32 if X is not None else np.int32
            n = len(self) if X is not None else len(self.codes)
            return np.zeros((n, 0), dtype=kind), np.zeros((n, 0), dtype=np.int64)
        distances: Array
        if mode == "asymmetric":
            index = view.index(state, view.model(state).decoder_)
            distances, found = index.search_asymmetric(np.asarray(X), wanted, among=among)
        else:
            distances, found = view.index(state).search(self.codes, wanted, among=among)
        if not n_candidates or X is None:
            return distances, found
        from auxbit.index.asymmetric import rank_by_vectors

        normalize = state.model is not None and bool(view.model(state).normalize)
        vectors_at = partial(view.vectors, state)
        return rank_by_vectors(X, found, vectors_at, k, normalize=normalize, n_jobs=n_jobs)

    def n_candidates(self, rerank: bool | int, k: int) -> int:
        """How many are to be ranked again, 0 for none."""
        if rerank is False or rerank is None:
            return 0
        if self.now.state.vectors is None:
            raise InvalidInput(
                "rerank needs the vectors, and the collection keeps none. Create it with "
                'vectors="float16", or search with mode="asymmetric", which needs the decoder alone.'
            )
        n = FACTOR * k if rerank is True else rerank
        return check_integer("rerank", n, k, MOST_ANSWERS, f"It must hold the k={k} answers.")

    def _among(self, where: Where | None) -> Any:
        if where is None:
            return None
        from auxbit.index.codes import At

        return At(self.now.matching(where))


def _read(
    now: Snapshot, source: PathLike, column: str | None, *, are_codes: bool
) -> tuple[Array | None, Array | None]:
    """The rows of a file as vectors, or as codes if they have the shape of these."""
    from auxbit.hashers.files import as_packed, rows_are_codes

    found = read_records(source, vectors=column, metadata=())
    X, state = np.asarray(found.X[:]), now.state
    if rows_are_codes(X, found.name, state.n_bits, None if are_codes else state.n_features):
        return None, as_packed(X, state.n_bits, found.name)
    check_finite(X, name=found.name)
    return X, None
