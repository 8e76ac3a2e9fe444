"""Answers: what a search found, as arrays, query by query, in tables and files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from auxbit.core import files
from auxbit.core.checks import Array, Ids, PathLike, require
from auxbit.core.progress import html_table
from auxbit.errors import AuxbitError, InvalidInput

ENDINGS = (".npz", ".jsonl")
READ_QUERIES = 256  # whose metadata are read together
SHOWN_ANSWERS, SHOWN_FIELDS, SHOWN_LETTERS = 5, 3, 30  # of the first query; of an item; of a field

Metadata = list[dict[str, Any]]
MetadataOf = Callable[[Array], Metadata]


class Answers:
    """What a search found. It unpacks into arrays: distances, ids; or lims, distances, ids.

    distances, ids : of one query (n,), nearest first; of several queries (q, n); with `lims`, (q+1,), as in a
    search by radius, those of query i are from lims[i] up to lims[i+1]. Ids are integers, text or UUIDs.
    metadata_of : ids, (n,), to metadata. about : what was searched, and how, for JSON.

    >>> answers = papers.search(x)
    >>> distances, ids = answers
    >>> answers.metadata[0]["title"]
    >>> answers.to_pandas()
    """

    def __init__(
        self, distances: Array, ids: Array, lims: Ids | None = None, metadata_of: MetadataOf | None = None,
        about: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        fits = ids.ndim in (1, 2) if lims is None else ids.ndim == 1 and lims[-1] == len(ids)
        if distances.shape != ids.shape or not fits:
            raise InvalidInput(f"distances of shape {distances.shape} are not those of ids of {ids.shape}.")
        self.distances, self.ids, self.lims = distances, ids, lims
        self.about = {**(about or {}), "retrieved": ids.size}
        self._metadata_of = metadata_of

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
        return int(self._lims[query + 1] - self._lims[query])

    def first(self, query: int, most: int | None = None) -> dict[str, Any]:
        """Ids, distances and metadata of the nearest answers to a query, `most` of them at most."""
        start, stop = int(self._lims[query]), int(self._lims[query + 1])
        stop = stop if most is None else min(stop, start + most)
        return self._between(start, stop, self._metadata(start, stop))

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
                lines.write(json.dumps({"query": query} | found, ensure_ascii=False, default=str) + "\n")

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
        return self._heading() + (":\n" + _as_text([columns, *rows]) if rows else "") + "\n…" * bool(more)

    def _repr_html_(self) -> str:
        columns, rows, more = self._shown()
        return html_table(self._heading(), columns, rows + [["…"] * len(columns)] * bool(more))


def fields_on_a_line(metadata: dict[str, Any]) -> str:
    """Some fields of an item, for people."""
    shown = [f"{name}={_short(value)}" for name, value in list(metadata.items())[:SHOWN_FIELDS]]
    return "  ".join(shown) + (" …" if len(metadata) > SHOWN_FIELDS else "")


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= SHOWN_LETTERS else text[: SHOWN_LETTERS - 1] + "…"


def _as_text(rows: Sequence[Sequence[str]]) -> str:
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
