"""Queries: vectors or codes, and how the codes of a collection or a file are searched for them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from auxbit.core.checks import Array, Ids, Packed, Positions, check_finite, check_integer
from auxbit.core.maps import check_packed, refuse_hamming
from auxbit.core.progress import Progress, Silent
from auxbit.data.records import read_records
from auxbit.data.vectors import as_rows
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.index.answers import Answers

if TYPE_CHECKING:
    from auxbit.core.decoders import Decoder
    from auxbit.hashers.base import Hasher
    from auxbit.hashers.files import CodesMade
    from auxbit.index.codes import At
    from auxbit.index.hamming import HammingIndex

FACTOR, FEWEST = 10, 100  # candidates for each answer of a re-ranked search, by default, and at least
MOST_ANSWERS = 2**31 - 1
MODES = ("hamming", "asymmetric")


class Searched:
    """What queries search: codes in an index, perhaps with their model, and with vectors to rank answers by.

    place : its name, in errors. n_features : of vectors. vectors : the type they are kept in; None for none.
    """

    def __init__(
        self, place: str, n_bits: int, n_features: int | None, coding: str, mu: float, *,
        vectors: str | None = None, has_lists: bool = False, n_jobs: int | None = None,
    ) -> None:  # fmt: skip
        self.place, self.n_bits, self.n_features, self.coding, self.mu = place, n_bits, n_features, coding, mu
        self.kept, self.has_lists, self.n_jobs = vectors, has_lists, n_jobs

    def model(self) -> Hasher:
        """The hasher that makes the codes."""
        raise NotImplementedError

    def index(self, decoder: Decoder | None = None) -> HammingIndex:
        """The index over the codes, by positions; with a decoder, ready for asymmetric search."""
        raise NotImplementedError

    def mapped_vectors(self, positions: Positions) -> Array:
        """All vectors, of which those at these positions will be read."""
        raise NotImplementedError

    @property
    def metric(self) -> str:
        """By which neighbours are meant: that of the model."""
        return self.model().scaling_.metric


class Queries:
    """Vectors or codes to search for. X : (q, D) or None; single : it was one vector or code.

    how : what the last search was, for answers to tell.
    """

    how: dict[str, Any]

    def __init__(self, of: Searched, X: Any, codes: Any = None, column: str | None = None) -> None:
        """Given by X or codes, or by X with its codes; or by their file, column : of the vectors in it."""
        self.of, self.single = of, False
        self.X: Array | None = None
        self._packed: Packed | None = None
        given = codes if X is None else X
        if given is None:
            raise InvalidInput("nothing to search for: give X, rows to encode, codes=… or like=id.")
        if type(given) is not np.ndarray and isinstance(given, str | os.PathLike):
            X, codes = self._read(given, column, are_codes=X is None)
        if X is not None:
            rows = X if type(X) is np.ndarray else np.asarray(as_rows(X))
            self.single = rows.ndim == 1
            self.X = rows[None] if rows.ndim == 1 else rows
        if codes is not None:
            packed = np.asarray(codes)
            self.single |= packed.ndim == 1
            self._packed = packed[None] if packed.ndim == 1 else packed  # which a search checks

    def _read(self, source: Any, column: str | None, *, are_codes: bool) -> tuple[Array | None, Array | None]:
        """The rows of a file as vectors, or as codes if they have the shape of these."""
        from auxbit.hashers.files import as_packed, rows_are_codes

        found = read_records(source, vectors=column, metadata=())
        X = np.asarray(found.X[:])
        if rows_are_codes(X, found.name, self.of.n_bits, None if are_codes else self.of.n_features):
            return None, as_packed(X, self.of.n_bits, found.name)
        check_finite(X, name=found.name)
        return X, None

    def __len__(self) -> int:
        rows = self._packed if self.X is None else self.X
        return 0 if rows is None else len(rows)

    @property
    def codes(self) -> Packed:
        """The packed codes of the queries."""
        if self._packed is None:
            if not len(self):
                return np.zeros((0, -(-self.of.n_bits // 8)), dtype=np.uint8)
            self._packed = self.of.model().encode(np.asarray(self.X), queries=True)
        return self._packed

    @property
    def rows(self) -> Array:
        """The queries themselves, of the right dimension."""
        if self.X is None:
            raise InvalidInput(
                'optimal codes, rerank and mode="asymmetric" compare vectors, and the queries are codes: '
                "give X."
            )
        n_features = self.of.n_features
        if self.X.ndim != 2 or self.X.shape[1] != n_features or self.X.dtype.kind not in "fiub":
            raise InvalidInput(
                f"X must be rows of {n_features} numbers, shape (q, {n_features}); got shape {self.X.shape} "
                f"of {self.X.dtype}."
            )
        return self.X

    def _check_hamming(self) -> None:
        refuse_hamming(
            self.of.place, self.of.coding, self.of.mu,
            "Search with vectors, without mode and radius (--mode, --radius); or make the codes with "
            'coding="hash" (--coding hash), or for both ways with mu=0.03 (--mu 0.03).',
        )  # fmt: skip

    def within(
        self, r: int, among: At | None = None, probes: int | str | None = None, recall: float | None = None
    ) -> tuple[Array, Positions, Ids]:
        """All codes within a Hamming distance: distances, positions and lims, as Answers takes them."""
        self._check_hamming()
        self.how = {"k": None, "radius": r, "mode": "hamming", "rerank": None}
        search = self.of.index().search_radius
        lims, distances, found = search(self.codes, r, among=among, probes=probes, recall=recall)
        return distances, found, lims

    def nearest(
        self, k: int, mode: str | None = None, rerank: bool | int | None = None, among: At | None = None,
        probes: int | str | None = None, recall: float | None = None, shortlist: int | None = None,
    ) -> tuple[Array, Positions]:  # fmt: skip
        """Distances and positions of the nearest; all queries get as many as there are, at most k.

        As in Collection.search; shortlist : as in HammingIndex.search_asymmetric.
        """
        k = check_integer("k", k, 1, MOST_ANSWERS, "Try k=10.")
        mode, n_candidates = self._ways(mode, rerank, k)
        self.how = {"k": k, "radius": None, "mode": mode, "rerank": n_candidates or None}
        X = self.rows if mode == "asymmetric" or n_candidates else None
        how: dict[str, Any] = {"among": among, "probes": probes, "recall": recall}
        if mode == "hamming":
            self._check_hamming()
            asked, index = self.codes, self.of.index()
            search: Any = index.search
        else:
            assert X is not None
            asked, index = X, self.of.index(self.of.model().decoder_)
            search, how["sure_of"] = index.search_asymmetric, k
            if shortlist is not None:
                how |= {"query_codes": self.codes, "shortlist": shortlist}
        available = len(index) if among is None else len(among.positions)
        wanted, k = min(n_candidates or k, available), min(k, available)
        if not wanted:
            asked = check_packed(asked, self.of.n_bits) if mode == "hamming" else asked
            kind = np.int32 if X is None else np.float32
            return np.zeros((len(asked), 0), dtype=kind), np.zeros((len(asked), 0), dtype=np.int64)
        distances, found = search(asked, wanted, **how)
        # with lists there may be so many codes, but not in those searched
        if self.of.has_lists and len(short := np.flatnonzero(found[:, k - 1] < 0)):
            how |= {"probes": "all", "recall": None}
            distances[short], found[short] = search(asked[short], wanted, **how)
        if not n_candidates or X is None:
            return distances, found
        from auxbit.index.asymmetric import rank_by_vectors

        vectors = self.of.mapped_vectors(np.maximum(found, 0).ravel())
        return rank_by_vectors(X, found, vectors, k, metric=self.of.metric, n_jobs=self.of.n_jobs)

    def _ways(self, mode: str | None, rerank: bool | int | None, k: int) -> tuple[str, int]:
        """How to find k answers, "asymmetric" or "hamming", and how many to rank again, 0 for none."""
        if mode is not None and mode not in MODES:
            raise InvalidParameter("mode", mode, " or ".join(map(repr, MODES)))
        if mode is None:
            mode = "asymmetric" if self.of.coding == "optimal" and self.X is not None else "hamming"
            if rerank is None:
                rerank = self.X is not None and self.of.kept is not None
        if rerank is False or rerank is None:
            return mode, 0
        if self.of.kept is None:
            raise InvalidInput(
                "rerank needs the vectors, and the collection keeps none. Create it with "
                'vectors="float16", or search with mode="asymmetric", which needs the decoder alone.'
            )
        n = max(FACTOR * k, FEWEST) if rerank is True else rerank
        return mode, check_integer("rerank", n, k, MOST_ANSWERS, f"It must hold the k={k} answers.")


# ---- Search in files


class _File(Searched):
    """The rows of a file, as codes in memory."""

    def __init__(self, place: str, model: Hasher, codes: Packed, made: CodesMade, n_jobs: int | None) -> None:
        from auxbit.core.decoders import ListDecoder
        from auxbit.index.hamming import HammingIndex

        n_bits, by_lists = model.code_bits(made.coding), isinstance(model.decoder_, ListDecoder)
        how: dict[str, Any] = {"has_lists": by_lists and made.coding == "optimal", "n_jobs": n_jobs}
        super().__init__(place, n_bits, int(model.n_features_in_), made.coding, made.mu, **how)
        self._model, self._index = model, HammingIndex(n_bits, coding=made.coding, mu=made.mu, n_jobs=n_jobs)
        self._index.add(codes)

    def model(self) -> Hasher:
        return self._model

    def index(self, decoder: Decoder | None = None) -> HammingIndex:
        if decoder is not None and self._index.decoder is not decoder:
            self._index.attach(decoder)
        return self._index


def search_files(
    model: Hasher, base: str, queries: str, k: int = 10, *, radius: int | None = None, codes: bool = False,
    mode: str | None = None, shortlist: int | None = None, coding: str | None = None,
    mu: float | None = None, n_jobs: int | None = None, progress: Progress | None = None,
) -> Answers:  # fmt: skip
    """Search the rows of one file for those of another: the k nearest, or all within a Hamming radius.

    base : vectors, which are encoded as coding and mu say, by default as the model's decoder is meant; or
    codes, by their shape or by `codes`. mode : "hamming", or "asymmetric", by the decoder, all codes or the
    `shortlist` of the nearest by Hamming distance; by default what the codes are for.
    """
    from auxbit.hashers.files import CodesMade, check_asked, check_made_by, codes_of

    told = progress or Silent()
    told.stage("encoding the base", None)
    searched = _File(base, model, *codes_of(model, base, are_codes=codes, coding=coding, mu=mu), n_jobs)
    told.stage("searching", None)
    asked = Queries(searched, queries)
    if asked.X is None:
        made = CodesMade.of_file(queries)
        check_made_by(made, model, queries)
        check_asked(made, queries, queries=True)
    found: Any = asked.nearest(k, mode, shortlist=shortlist) if radius is None else asked.within(radius)
    about: dict[str, Any] = {
        "bits": model.n_bits,
        "n_base": len(searched.index()),
        "queries": len(asked),
        "k": asked.how["k"],
        "radius": radius,
        "by": "the decoder" if asked.how["mode"] == "asymmetric" else "Hamming distance",
    }
    if radius is None:
        about["retrieved_per_query"] = found[1].shape[1]  # fewer than k if the base is smaller
    distances, ids, *lims = found
    return Answers(distances, ids, lims[0] if lims else None, about=about)
