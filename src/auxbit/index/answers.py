"""Answers: what a search found for each query, to be read query by query or written; and search in files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from auxbit.core import files
from auxbit.core.checks import Array, Ids, PathLike, warn
from auxbit.core.progress import Progress, Silent
from auxbit.data.vectors import read_data
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.hashers.base import Hasher
from auxbit.hashers.files import best_coding, check_coding, codes_of, holds_codes, read_vectors_for
from auxbit.index.hamming import HammingIndex

ENDINGS = (".npz", ".jsonl")
READ_QUERIES = 256  # whose metadata are read together

MetadataOf = Callable[[Array], list[dict[str, Any]]]


@dataclass(frozen=True)
class Answers:
    """The answers to query i are from lims[i] up to lims[i+1] of `ids` and `distances`.

    arrays : what the search returned, which an .npz file keeps. metadata_of : ids to metadata, such as
    Collection.metadata; None if there are none. about : what was searched, and how, for JSON.

    >>> found = Answers.of(papers.search(queries), papers.metadata)
    >>> found[0]
    {'ids': [17, …], 'distances': [3, …], 'metadata': [{'title': …}, …]}
    >>> found.write("found.jsonl")
    """

    lims: Ids
    distances: Array
    ids: Ids
    arrays: dict[str, Array]
    metadata_of: MetadataOf | None = None
    about: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, found: tuple[Array, ...], metadata_of: MetadataOf | None = None,
        about: dict[str, Any] | None = None,
    ) -> Self:  # fmt: skip
        """Of what `search` returns, distances and ids; or `search_radius`: lims, distances and ids."""
        arrays = dict(zip(("distances", "ids"), found[-2:]))
        if len(found) == 3:
            lims, distances, ids = found
            arrays = {"lims": lims, **arrays}
        else:
            near, at = found
            there = at >= 0  # there may be fewer than k
            lims = np.concatenate([[0], np.cumsum(there.sum(axis=1))])
            distances, ids = near[there], at[there]
        asked = (about or {}) | {"retrieved": len(ids)}
        return cls(lims, distances, ids, arrays, metadata_of, asked)

    def __len__(self) -> int:
        return len(self.lims) - 1

    def __getitem__(self, query: int) -> dict[str, Any]:
        return self.first(query, None)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The answers to each query; the metadata of many queries are read together."""
        for first in range(0, len(self), READ_QUERIES):
            lims = self.lims[first : first + READ_QUERIES + 1].tolist()
            metadata = self._metadata(lims[0], lims[-1])
            for start, stop in pairwise(lims):
                yield self._between(start, stop, metadata and metadata[start - lims[0] : stop - lims[0]])

    def first(self, query: int, most: int | None) -> dict[str, Any]:
        """Ids, distances and metadata of the nearest answers to a query, `most` of them at most."""
        start, stop = int(self.lims[query]), int(self.lims[query + 1])
        stop = stop if most is None else min(stop, start + most)
        return self._between(start, stop, self._metadata(start, stop))

    def n_found(self, query: int) -> int:
        """How many answers a query has."""
        return int(self.lims[query + 1] - self.lims[query])

    def write(self, path: PathLike, *, overwrite: bool = False) -> None:
        """Write all: distances and ids as arrays to an .npz file, or one JSON line per query to a .jsonl."""
        files.check_output(path, overwrite=overwrite, endings=ENDINGS)
        with files.replacing(path, overwrite=overwrite) as temporary:
            if Path(path).suffix.lower() == ".npz":
                with temporary.open("wb") as file:
                    np.savez(file, **self.arrays)  # type: ignore[arg-type]
                return
            with temporary.open("w", encoding="utf-8") as lines:
                for query, found in enumerate(self):
                    lines.write(json.dumps({"query": query} | found, ensure_ascii=False) + "\n")

    def _between(self, start: int, stop: int, metadata: list[dict[str, Any]] | None) -> dict[str, Any]:
        found: dict[str, Any] = {
            "ids": self.ids[start:stop].tolist(),
            "distances": self.distances[start:stop].tolist(),
        }
        return found if metadata is None else found | {"metadata": metadata}

    def _metadata(self, start: int, stop: int) -> list[dict[str, Any]] | None:
        if self.metadata_of is None:
            return None
        try:
            return self.metadata_of(self.ids[start:stop])
        except InvalidInput:  # somebody has deleted an item since the search: it has no metadata any more
            if stop - start == 1:
                return [{}]
            return [each for at in range(start, stop) for each in self._metadata(at, at + 1) or []]


def search_files(
    model: Hasher, base: str, queries: str, k: int = 10, *, radius: int | None = None, codes: bool = False,
    asymmetric: bool = False, shortlist: int | None = None, coding: str = "hash", mu: float = 0.0,
    n_jobs: int | None = None, progress: Progress | None = None,
) -> Answers:  # fmt: skip
    """Search the rows of one file for those of another: the k nearest, or all within a Hamming radius.

    base : vectors, which are encoded as coding and mu say, or codes, by their shape or by `codes`.
    asymmetric : rank by the decoder, all codes or the `shortlist` of the nearest by Hamming distance.
    """
    told = progress or Silent()
    check_coding(coding, mu)
    if coding == "optimal" and not mu and not asymmetric:
        raise InvalidParameter(
            "coding", coding, "hash for Hamming distances: optimal codes at μ = 0 are for the decoder",
            "Add --asymmetric, or a --mu of 0.03 and more.",
        )  # fmt: skip
    told.stage("encoding the base", None)
    index = HammingIndex(model.n_bits, decoder=model.decoder_ if asymmetric else None, n_jobs=n_jobs)
    index.add(codes_of(model, base, are_codes=codes, coding=coding, mu=mu))
    encoded = not codes and not holds_codes(read_data(base), model.n_bits, model.n_features_in_)
    if asymmetric and encoded and coding != best_coding(model) == "optimal":
        warn("this model's tables are fitted to optimal codes: add --coding optimal.")
    told.stage("encoding the queries", None)
    rows = read_vectors_for(model, queries) if asymmetric else None
    asked = codes_of(model, queries) if rows is None or shortlist is not None else None
    told.stage("searching", None)
    about: dict[str, Any] = {
        "bits": model.n_bits,
        "n_base": len(index),
        "queries": len(rows if rows is not None else asked if asked is not None else ()),
        "k": None if radius is not None else k,
        "radius": radius,
        "by": "the decoder" if asymmetric else "Hamming distance",
    }
    most = min(k, len(index))
    if radius is not None and asked is not None:
        return Answers.of(index.search_radius(asked, radius), about=about)
    about["retrieved_per_query"] = most  # fewer than k if the base is smaller
    if rows is not None:
        near = index.search_asymmetric(rows, most, query_codes=asked, shortlist=shortlist)
        return Answers.of(near, about=about)
    assert asked is not None
    return Answers.of(index.search(asked, most), about=about)
