"""Searching a collection: queries become codes or tables, filters positions, positions ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from auxbit.blocks import Workers
from auxbit.checks import check_finite, check_integer
from auxbit.codes import Packed, bytes_per_code, check_packed
from auxbit.collection.reranking import FACTOR, rerank
from auxbit.collection.storage import Storage
from auxbit.collection.view import View
from auxbit.collection.where import Where
from auxbit.errors import InvalidInput, ModelFileError
from auxbit.index.hamming import MOST_ANSWERS
from auxbit.index.store import At

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]
Answer = TypeVar("Answer")


def nearest(
    storage: Storage,
    X: npt.ArrayLike | None,
    k: int,
    codes: npt.ArrayLike | None,
    mode: str,
    reranked: bool | int,
    where: Where | None,
) -> tuple[Array, Ids]:
    """The k nearest of the present state of a collection: distances and ids, (q, k)."""
    k = check_integer("k", k, 1, MOST_ANSWERS, "Try k=10.")
    return _answer(storage, lambda view: _nearest(view, X, k, codes, mode, reranked, where))


def within(
    storage: Storage, X: npt.ArrayLike | None, r: int, codes: npt.ArrayLike | None, where: Where | None
) -> tuple[Ids, npt.NDArray[np.int32], Ids]:
    """All within a Hamming distance: lims, distances, ids."""

    def search(view: View) -> tuple[Ids, npt.NDArray[np.int32], Ids]:
        return view.index().search_radius(_codes(view, X, codes), r, among=_among(view, where))

    return _answer(storage, search)


def _answer(storage: Storage, search: Callable[[View], Answer]) -> Answer:
    """What a search of the present state finds; once more if a retraining took the model away meanwhile."""
    while True:
        view = storage.view
        try:
            return search(view)
        except ModelFileError:
            if storage.manifest.model == view.snapshot.manifest.model:
                raise


def _nearest(
    view: View, X: npt.ArrayLike | None, k: int, codes: npt.ArrayLike | None, mode: str,
    reranked: bool | int, where: Where | None,
) -> tuple[Array, Ids]:  # fmt: skip
    among = _among(view, where)
    n_candidates = _candidates(view, reranked, k)
    if mode == "asymmetric":
        view.model()  # says that there is none
    rows = _queries(view, X) if n_candidates or mode == "asymmetric" else None
    distances: Array
    if mode == "asymmetric":
        assert rows is not None
        index = view.index_with(view.model().decoder_)
        distances, found = index.asymmetric_positions(rows, n_candidates or k, among=among)
    else:
        distances, found = view.index().positions(_codes(view, X, codes), n_candidates or k, among)
    if n_candidates:
        assert rows is not None
        normalize = view.snapshot.manifest.model is not None and bool(view.model().normalize)
        with Workers(view.n_jobs) as workers:
            check_finite(rows, workers)
            distances, found = rerank(view.snapshot, rows, found, k, normalize, workers)
    return distances, view.ids.at(found)


def _among(view: View, where: Where | None) -> At | None:
    return None if where is None else At(np.flatnonzero(view.matching(where)))


def _candidates(view: View, reranked: bool | int, k: int) -> int:
    """How many are to be ranked anew, 0 for none."""
    if reranked is False or reranked is None:
        return 0
    manifest = view.snapshot.manifest
    if manifest.vectors is None:
        raise InvalidInput(
            "rerank needs the vectors, and the collection keeps none. Create it with "
            'vectors="float16", or search with mode="asymmetric", which needs the decoder alone.'
        )
    n = FACTOR * k if reranked is True else reranked
    return check_integer("rerank", n, k, MOST_ANSWERS, f"It must hold the k={k} answers.")


def _codes(view: View, X: npt.ArrayLike | None, codes: npt.ArrayLike | None) -> Packed:
    """The codes of the queries."""
    if codes is not None:
        return check_packed(codes, view.snapshot.manifest.n_bits, "codes")
    if X is None:
        raise InvalidInput("nothing to search for: give X, rows to encode, or codes=…")
    rows = np.asarray(X)
    model = view.model()
    if rows.ndim == 2 and not len(rows):
        return np.zeros((0, bytes_per_code(view.snapshot.manifest.n_bits)), dtype=np.uint8)
    return model.encode(rows)


def _queries(view: View, X: npt.ArrayLike | None) -> Array:
    """The queries as they are, of the right dimension."""
    if X is None:
        raise InvalidInput('rerank and mode="asymmetric" need the queries themselves: give X.')
    rows, n_features = np.asarray(X), view.snapshot.manifest.n_features
    if rows.ndim != 2 or rows.shape[1] != n_features or rows.dtype.kind not in "fiub":
        raise InvalidInput(
            f"X must be rows of {n_features} numbers, shape (q, {n_features}); got shape {rows.shape} of "
            f"{rows.dtype}."
        )
    return rows
