"""Queries and Answers: what is searched for in the codes of a collection or a file, and what is found.

Answers are arrays, query by query, in tables and files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from auxbit.core import files
from auxbit.core.checks import (
    Array,
    Ids,
    Packed,
    PathLike,
    Positions,
    as_array,
    check_finite,
    check_integer,
    require,
)
from auxbit.core.maps import check_packed, refuse_hamming
from auxbit.core.progress import Progress, Silent, html_table
from auxbit.data.records import in_utf8, read_records
from auxbit.data.vectors import as_rows
from auxbit.errors import AuxbitError, InvalidInput, InvalidParameter

if TYPE_CHECKING:
    from auxbit.core.decoders import Decoder
    from auxbit.hashers.base import Hasher
    from auxbit.hashers.files import CodesMade
    from auxbit.index.codes import At
    from auxbit.index.hamming import HammingIndex

FACTOR, FEWEST = 10, 100  # candidates for each answer of a re-ranked search, by default, and at least
MOST_ANSWERS = 2**31 - 1
MODES = ("hamming", "asymmetric")
ENDINGS = (".npz", ".jsonl")
READ_QUERIES = 256  # whose metadata are read together
SHOWN_ANSWERS, SHOWN_FIELDS, SHOWN_LETTERS = 5, 3, 30  # of the first query; of an item; of a field

Metadata = list[dict[str, Any]]
MetadataOf = Callable[[Array], Metadata]

# ---- Queries


class Searched(Protocol):
    """What queries search: codes in an index, perhaps with their model, and with vectors to rank answers by.

    place : its name, in errors. n_features : of vectors. kept : the type vectors are kept in; None for none.
    """

    place: str
    n_bits: int
    n_features: int | None
    coding: str
    mu: float
    kept: str | None
    has_lists: bool
    n_jobs: int | None

    def model(self) -> Hasher:
        """The hasher that makes the codes."""

    def index(self, decoder: Decoder | None = None) -> HammingIndex:
        """The index over the codes, by positions; with a decoder, ready for asymmetric search."""

    def mapped_vectors(self, positions: Positions) -> Array:
        """All vectors, of which those at these positions will be read."""

    @property
    def metric(self) -> str:
        """By which neighbours are meant: that of the model."""


def check_hamming(of: Searched) -> None:
    """Refuse to compare codes by Hamming distance, if that means nothing for them."""
    refuse_hamming(
        of.place, of.coding, of.mu,
        "Search with vectors, without mode and radius (--mode, --radius); or make the codes with "
        'coding="hash" (--coding hash), or for both ways with mu=0.03 (--mu 0.03).',
    )  # fmt: skip


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
            raise InvalidInput("there is nothing to search for: give X, rows to encode, codes or like.")
        if type(given) is not np.ndarray and isinstance(given, str | os.PathLike):
            if X is not None and codes is not None:
                raise InvalidInput("X is a file, and codes go with rows in memory: give one of the two.")
            X, codes = self._read(given, column, are_codes=X is None)
        if X is not None:
            rows = X if type(X) is np.ndarray else as_array(as_rows(X))
            if rows.ndim not in (1, 2):
                raise InvalidInput(
                    f"X must be rows of numbers, (q, D), got shape {rows.shape} of {rows.dtype}."
                )
            self.single = rows.ndim == 1
            self.X = rows[None] if rows.ndim == 1 else rows
        if codes is not None:
            packed = as_array(codes, "codes")
            self.single |= packed.ndim == 1
            self._packed = np.atleast_2d(packed)  # which a search checks
            if self.X is not None and len(self._packed) != len(self.X):  # kernels read them by address
                raise InvalidInput(f"X has {len(self.X)} rows, but codes has {len(self._packed)}.")

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
                'optimal codes, rerank and mode="asymmetric" compare vectors, but the queries are codes: '
                "give vectors as X."
            )
        n_features = self.of.n_features
        if self.X.ndim != 2 or self.X.shape[1] != n_features or self.X.dtype.kind not in "fiub":
            raise InvalidInput(
                f"X must be rows of {n_features} numbers, shape (q, {n_features}); got shape {self.X.shape} "
                f"of {self.X.dtype}."
            )
        return self.X

    def within(
        self, r: int, among: At | None = None, probes: int | str | None = None, recall: float | None = None
    ) -> tuple[Array, Positions, Ids]:
        """All codes within a Hamming distance: distances, positions and lims, as Answers takes them."""
        check_hamming(self.of)
        self.how = {"queries": len(self), "k": None, "radius": r, "mode": "hamming", "rerank": None}
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
        self.how = {
            "queries": len(self), "k": k, "radius": None, "mode": mode, "rerank": n_candidates or None
        }  # fmt: skip
        X = self.rows if mode == "asymmetric" or n_candidates else None
        how: dict[str, Any] = {"among": among, "probes": probes, "recall": recall}
        if mode == "hamming":
            if self.of.coding != "hash":
                check_hamming(self.of)
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
                "rerank needs the vectors, but the collection keeps none. Create it with "
                'vectors="float16", or search with mode="asymmetric", which needs only the decoder.'
            )
        n = max(FACTOR * k, FEWEST) if rerank is True else rerank
        return mode, check_integer("rerank", n, k, MOST_ANSWERS, f"It must hold the k={k} answers.")


# ---- Answers


class Answers:
    """What a search found. It unpacks into arrays: distances, ids; or lims, distances, ids.

    distances, ids : of one query (n,), nearest first; of several queries (q, n); with `lims`, (q+1,), as in a
    search by radius, those of query i are from lims[i] up to lims[i+1]. Ids are integers, text or UUIDs.
    metadata_of : ids, (n,), to metadata. about : what was searched, and how; or a function that tells it.

    >>> answers = papers.search(x)
    >>> distances, ids = answers
    >>> answers.metadata[0]["title"]
    >>> answers.to_pandas()
    """

    def __init__(
        self, distances: Array, ids: Array, lims: Ids | None = None, metadata_of: MetadataOf | None = None,
        about: dict[str, Any] | Callable[[], dict[str, Any]] | None = None,
    ) -> None:  # fmt: skip
        fits = ids.ndim in (1, 2) if lims is None else ids.ndim == 1 and lims[-1] == len(ids)
        if distances.shape != ids.shape or not fits:
            raise InvalidInput(f"distances of shape {distances.shape} are not those of ids of {ids.shape}.")
        self.distances, self.ids, self.lims = distances, ids, lims
        self._metadata_of, self._about = metadata_of, about

    @cached_property
    def about(self) -> dict[str, Any]:
        """What was searched, and how, for JSON."""
        told = self._about() if callable(self._about) else self._about or {}
        return {**told, "retrieved": self.ids.size}

    @classmethod
    def of(
        cls, found: tuple[Array, ...], metadata_of: MetadataOf | None = None,
        about: dict[str, Any] | None = None,
    ) -> Self:  # fmt: skip
        """Of what `search` of an index or store returns, without the padding; or `search_radius`."""
        if len(found) == 3:
            lims, distances, ids = found
            return cls(distances, ids, lims, metadata_of, about)
        distances, ids = found
        there = ids >= 0
        counts = there.sum(axis=1)
        if len(counts) and (counts != counts[0]).any():  # as an approximate search of a store may have it
            lims = np.concatenate([[0], np.cumsum(counts)])
            return cls(distances[there], ids[there], lims, metadata_of, about)
        n = int(counts[0]) if len(counts) else ids.shape[1]
        return cls(distances[:, :n], ids[:, :n], None, metadata_of, about)

    @cached_property
    def _lims(self) -> Ids:
        if self.lims is not None:
            return self.lims
        n_queries, n_each = self.ids.shape if self.ids.ndim == 2 else (1, len(self.ids))
        lims: Ids = np.arange(n_queries + 1) * n_each
        return lims

    # ---- as the arrays that it holds

    def _arrays(self) -> dict[str, Array]:
        lims = {} if self.lims is None else {"lims": self.lims}
        return lims | {"distances": self.distances, "ids": self.ids}

    def __iter__(self) -> Iterator[Array]:
        return iter(self._arrays().values())

    def __len__(self) -> int:
        return len(self._arrays())

    def __getitem__(self, place: int) -> Array:
        return list(self)[place]

    # ---- query by query

    @property
    def n_queries(self) -> int:
        """How many queries were asked."""
        return len(self._lims) - 1

    @property
    def _is_one(self) -> bool:
        return self.lims is None and self.ids.ndim == 1

    def n_found(self, query: int) -> int:
        """How many answers a query has."""
        start, stop = self._span(query)
        return stop - start

    def first(self, query: int, most: int | None = None) -> dict[str, Any]:
        """Ids, distances and metadata of the nearest answers to a query, `most` of them at most."""
        start, stop = self._span(query)
        stop = stop if most is None else min(stop, start + check_integer("most", most, 0))
        return self._between(start, stop, self._metadata(start, stop))

    def _span(self, query: int) -> tuple[int, int]:
        query = check_integer("query", query, 0, self.n_queries - 1, "Queries count from 0.")
        return int(self._lims[query]), int(self._lims[query + 1])

    def queries(self) -> Iterator[dict[str, Any]]:
        """Ids, distances and metadata of each query; the metadata of many queries are read together."""
        for first in range(0, self.n_queries, READ_QUERIES):
            lims = self._lims[first : first + READ_QUERIES + 1].tolist()
            metadata = self._metadata(lims[0], lims[-1])
            for start, stop in pairwise(lims):
                yield self._between(start, stop, metadata and metadata[start - lims[0] : stop - lims[0]])

    @cached_property
    def metadata(self) -> Any:
        """The metadata of each answer, a list; of several queries a list of lists. Read at the first use.

        An item that was deleted since has {}.
        """
        every = self._metadata(0, self.ids.size) or [{} for _ in range(self.ids.size)]
        return every if self._is_one else [every[start:stop] for start, stop in pairwise(self._lims.tolist())]

    def _between(self, start: int, stop: int, metadata: Metadata | None) -> dict[str, Any]:
        found: dict[str, Any] = {
            "ids": self.ids.reshape(-1)[start:stop].tolist(),
            "distances": self.distances.reshape(-1)[start:stop].tolist(),
        }
        return found if metadata is None else found | {"metadata": metadata}

    def _metadata(self, start: int, stop: int) -> Metadata | None:
        if self._metadata_of is None:
            return None
        ids = self.ids.reshape(-1)[start:stop]
        try:
            return self._metadata_of(ids)
        except InvalidInput:
            self._metadata_of(ids[:0])  # fails again if not an item is missing, but the collection is closed
            if len(ids) == 1:  # it has been deleted since the search
                return [{}]
            middle = (start + stop) // 2
            return (self._metadata(start, middle) or []) + (self._metadata(middle, stop) or [])

    # ---- as a table, and in files

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with one row per answer: query (if there are several), rank, id, distance.

        Ranks begin at 1. Each field of the metadata is a column, too; its name gets an underscore at the end
        if it is one of these.
        """
        pandas = require("pandas", extra="data", purpose="to_pandas")
        counts = np.diff(self._lims)
        columns: dict[str, Any] = {
            "query": np.repeat(np.arange(self.n_queries), counts),
            "rank": np.arange(self.ids.size) - np.repeat(self._lims[:-1], counts) + 1,
            "id": self.ids.reshape(-1),
            "distance": self.distances.reshape(-1),
        }
        rows: Metadata = self.metadata if self._is_one else [each for some in self.metadata for each in some]
        for name in dict.fromkeys(name for row in rows for name in row):
            column = name
            while column in columns:
                column += "_"
            columns[column] = [row.get(name) for row in rows]
        if self._is_one:
            del columns["query"]
        return pandas.DataFrame(columns)

    def write(self, path: PathLike, *, overwrite: bool = False) -> None:
        """Write all: the arrays to an .npz file, or one JSON line per query to a .jsonl; UUIDs as text."""
        files.check_output(path, overwrite=overwrite, endings=ENDINGS)
        if Path(path).suffix.lower() == ".npz":
            arrays = self._arrays() | {"ids": _without_objects(self.ids)}
            with files.replacing(path, overwrite=overwrite) as temporary, temporary.open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
            return
        with (
            files.replacing(path, overwrite=overwrite) as temporary,
            temporary.open("w", encoding="utf-8") as lines,
        ):
            for query, found in enumerate(self.queries()):
                text = json.dumps({"query": query} | found, ensure_ascii=False, default=str)
                lines.write(in_utf8(text) + "\n")

    # ---- for people

    def _heading(self) -> str:
        n = self.n_queries
        if n == 1:
            return f"{self.ids.size:,} answer{'s' * (self.ids.size != 1)}"
        each = f", {self.n_found(0):,} each" if self.lims is None and n else ""
        first = "; to the first" if n and self.n_found(0) else ""
        return f"{self.ids.size:,} answers to {n:,} queries{each}{first}"

    def _shown(self) -> tuple[list[str], list[list[str]], int]:
        """Columns and rows of the first query's first answers, and how many answers it has besides."""
        if not self.n_queries:
            return [], [], 0
        try:
            best = self.first(0, SHOWN_ANSWERS)
        except AuxbitError:  # the collection is closed: that must not keep its answers from being shown
            best = self._between(0, min(SHOWN_ANSWERS, self.n_found(0)), None)
        near = [f"{each:.6g}" for each in best["distances"]]
        about = [fields_on_a_line(each) for each in best.get("metadata", [])]
        columns = ["id", "distance"] + ["metadata"] * any(about)
        rows = [list(map(str, row)) for row in zip(best["ids"], near, *([about] if any(about) else []))]
        return columns, rows, self.n_found(0) - len(rows)

    def __repr__(self) -> str:
        columns, rows, more = self._shown()
        return self._heading() + (":\n" + _aligned([columns, *rows]) if rows else "") + "\n…" * bool(more)

    def _repr_html_(self) -> str:
        columns, rows, more = self._shown()
        return html_table(self._heading(), columns, rows + [["…"] * len(columns)] * bool(more))


def fields_on_a_line(metadata: dict[str, Any]) -> str:
    """Some fields of an item, for people."""
    shown = [
        f"{name}={as_text(value, SHOWN_LETTERS)}" for name, value in list(metadata.items())[:SHOWN_FIELDS]
    ]
    return "  ".join(shown) + (" …" if len(metadata) > SHOWN_FIELDS else "")


def as_text(value: object, most: int | None = None) -> str:
    """A value of metadata on one line, for people: text as it is, others as JSON. most : letters."""
    text = " ".join((value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).split())
    return text if most is None or len(text) <= most else text[: most - 1] + "…"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _without_objects(ids: Array) -> Array:
    """Ids as a file can hold them without pickle: text is of a fixed length, and ends in no NUL."""
    if ids.dtype != np.object_:
        return ids
    texts = [str(each) for each in ids.reshape(-1)]
    if any(text.endswith("\0") for text in texts):
        raise InvalidInput("an .npz file cannot hold ids that end in a NUL character: write .jsonl.")
    return np.array(texts, dtype=np.str_).reshape(ids.shape)


# ---- Search in files


class _File:
    """The rows of a file, as codes in memory."""

    kept: str | None = None
    n_features: int | None

    def __init__(self, place: str, model: Hasher, codes: Packed, made: CodesMade, n_jobs: int | None) -> None:
        from auxbit.core.decoders import ListDecoder
        from auxbit.index.hamming import HammingIndex

        self.place, self.coding, self.mu, self.n_jobs = place, made.coding, made.mu, n_jobs
        self.n_bits, self.n_features = model.code_bits(made.coding), int(model.n_features_in_)
        self.has_lists = isinstance(model.decoder_, ListDecoder) and made.coding == "optimal"
        self.metric, self._model = model.scaling_.metric, model
        self._index = HammingIndex(self.n_bits, coding=made.coding, mu=made.mu, n_jobs=n_jobs)
        self._index.add(codes)

    def model(self) -> Hasher:
        return self._model

    def index(self, decoder: Decoder | None = None) -> HammingIndex:
        if decoder is not None and self._index.decoder is not decoder:
            self._index.attach(decoder)
        return self._index

    def mapped_vectors(self, positions: Positions) -> Array:
        raise InvalidInput(f"{self.place} has codes without vectors to rank by. Leave out rerank.")


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
