"""What `collection search`, `stats` and `check` do: plain functions that print nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from auxbit.cli import tasks
from auxbit.cli.collection_rows import check_width, holds_codes, packed
from auxbit.cli.output import number
from auxbit.collection.collection import Collection
from auxbit.collection.where import Where
from auxbit.core import files
from auxbit.core.types import Array
from auxbit.errors import InvalidInput, InvalidParameter

if TYPE_CHECKING:
    from auxbit.collection.drift import Measure, Statistics

WRITTEN_AS = (".npz", ".jsonl")
READ_QUERIES = 256  # whose metadata are read together


@dataclass(frozen=True)
class Answers:
    """What was found for each query: those of query i are from lims[i] up to lims[i+1]."""

    collection: Collection
    lims: Array
    distances: Array
    ids: Array
    about: dict[str, Any]

    @property
    def n_queries(self) -> int:
        """How many queries there were."""
        return len(self.lims) - 1

    def of(self, query: int, most: int | None = None) -> dict[str, Any]:
        """Ids, distances and metadata of the answers to a query, or of the first of them."""
        start, stop = int(self.lims[query]), int(self.lims[query + 1])
        stop = stop if most is None else min(stop, start + most)
        return self._between(start, stop, _metadata(self.collection, self.ids[start:stop]))

    def all(self) -> Iterator[dict[str, Any]]:
        """The same of every query; metadata are read for many at a time."""
        for first in range(0, self.n_queries, READ_QUERIES):
            lims = self.lims[first : first + READ_QUERIES + 1].tolist()
            metadata = _metadata(self.collection, self.ids[lims[0] : lims[-1]])
            for start, stop in pairwise(lims):
                yield self._between(start, stop, metadata[start - lims[0] : stop - lims[0]])

    def _between(self, start: int, stop: int, metadata: list[dict[str, Any]]) -> dict[str, Any]:
        ids, distances = self.ids[start:stop].tolist(), self.distances[start:stop].tolist()
        return {"ids": ids, "distances": distances, "metadata": metadata}

    def document(self, *, whole: bool) -> dict[str, Any]:
        """For JSON: with every answer, or only what was asked where a file has the answers."""
        return self.about | ({"results": list(self.all())} if whole else {})


@dataclass(frozen=True)
class Queries:
    """Rows to search for: X : (q, D) vectors, codes : (q, ceil(n_bits/8)) uint8, or both."""

    X: Array | None = None
    codes: Array | None = None

    def __len__(self) -> int:
        return len(self.X if self.X is not None else self.codes if self.codes is not None else ())


def read_queries(collection: Collection, source: str, *, codes: bool) -> Queries:
    """The queries in a file of vectors or of codes."""
    state, X = collection.manifest, tasks.read(source)
    n_features = state.n_features if state.model is not None else None
    codes = holds_codes(X, codes=codes, n_bits=state.n_bits, n_features=n_features)
    check_width(X, source, codes=codes, n_bits=state.n_bits, n_features=n_features)
    if codes:
        return Queries(codes=packed(np.asarray(X), state.n_bits, source))
    tasks.check_all_finite(X, source)
    return Queries(X)


def stored_item(collection: Collection, id_: int) -> Queries:
    """An item as a query: its vector where that is kept, its code where that is all or none can be made."""
    if id_ not in collection:
        raise InvalidInput(f"id {id_} is not in the collection, which has {len(collection):,} items.")
    state = collection.manifest
    X = None if state.vectors is None else collection.vectors([id_])
    return Queries(X, collection.codes([id_]) if X is None or state.model is None else None)


def search(
    collection: Collection, queries: Queries, *, k: int | None, radius: int | None, mode: str | None,
    rerank: int | None, where: list[str], out: str | None, force: bool,
) -> Answers:  # fmt: skip
    """Search a collection, among what `where` finds; with `out`, write the answers there."""
    mode = _mode(collection, queries, mode)
    if queries.X is None and rerank is not None:
        raise InvalidInput("--rerank compares vectors, and the queries are codes: search with vectors.")
    conditions = Where.of(where) if where else None
    about: dict[str, Any] = {
        "collection": str(collection.path),
        "items": len(collection),
        "bits": collection.n_bits,
        "queries": len(queries),
        "k": k,
        "radius": radius,
        "mode": mode,
        "rerank": rerank,
        "where": None if conditions is None else str(conditions),
    }
    arrays: dict[str, Array]
    if radius is not None:
        lims, distances, ids = collection.search_radius(
            queries.X, radius, codes=queries.codes, where=conditions
        )
        arrays = {"lims": lims, "distances": distances, "ids": ids}
    else:
        near, found = collection.search(
            queries.X, 10 if k is None else k, codes=queries.codes, mode=mode,
            rerank=False if rerank is None else rerank, where=conditions,
        )  # fmt: skip
        arrays = {"distances": near, "ids": found}
        there = found >= 0  # there may be fewer than k
        lims = np.concatenate([[0], np.cumsum(there.sum(axis=1))])
        distances, ids = near[there], found[there]
    about["retrieved"] = int(lims[-1])
    answers = Answers(collection, lims, distances, ids, about)
    if out is not None:
        _write(answers, arrays, out, force=force)
        about["written"] = out
    return answers


def check_out(out: str, *, force: bool) -> None:
    """Refuse before the work what could not be written after it."""
    if Path(out).suffix.lower() not in WRITTEN_AS:
        raise InvalidParameter("out", out, f"a name that ends in {' or '.join(WRITTEN_AS)}")
    tasks.check_output(out, force=force)


def _write(answers: Answers, arrays: dict[str, Array], out: str, *, force: bool) -> None:
    with files.replacing(out, overwrite=force) as temporary:
        if Path(out).suffix.lower() == ".npz":
            with temporary.open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
            return
        with temporary.open("w", encoding="utf-8") as lines:
            for query, found in enumerate(answers.all()):
                lines.write(json.dumps({"query": query} | found, ensure_ascii=False) + "\n")


def _mode(collection: Collection, queries: Queries, mode: str | None) -> str:
    """How to search: as asked for, else as the codes are meant, if the queries allow it."""
    if mode is None:
        optimal = collection.manifest.coding == "optimal" and queries.X is not None
        return "asymmetric" if optimal else "hamming"
    if mode == "asymmetric" and queries.X is None:
        raise InvalidInput("--mode asymmetric compares vectors with codes, and the queries are codes.")
    return mode


def _metadata(collection: Collection, ids: Array) -> list[dict[str, Any]]:
    try:
        return collection.metadata(ids)
    except InvalidInput:  # somebody has deleted one of them since the search
        return [collection.metadata([each])[0] if each in collection else {} for each in ids.tolist()]


# ---- stats


def drift_lines(stats: Statistics) -> list[tuple[str, str, str, str, str, str, str]]:
    """A row a comparison: measure, which rows, trained on, found, change, limit, verdict."""
    lines = []
    for sample, drift in stats.drift.items():
        for measure in drift.measures:
            change, limit = (_change(measure, value) for value in (measure.change, measure.limit))
            verdict = "drifted" if measure.exceeded else "fine" if measure.limit is not None else "not judged"
            verdict = verdict if drift.enough else "too few rows"
            rows = f"{sample}, {drift.n_added:,} rows"
            found = number(measure.trained), number(measure.added)
            lines.append((measure.name, rows, *found, change, limit, verdict))
    return lines


def verdict(stats: Statistics, command: Callable[..., str]) -> str:
    """The sentence whether retraining is due. command : makes one for a shell of its arguments."""
    reasons = "; ".join(stats.reasons)
    if stats.retrain:
        data = [] if stats.vectors is not None else ["--data", "FILE"]
        return f"Retraining is due: {reasons}.\nNext: {command('collection', 'retrain', stats.path, *data)}"
    if stats.drift and all(drift.enough for drift in stats.drift.values()):
        return "Retraining is not due: what was added is like what the model was trained on."
    return f"Whether retraining is due cannot be told ({reasons})."


def _change(measure: Measure, value: float | None) -> str:
    from auxbit.collection.drift import EFFECTIVE_BITS, ERROR

    if value is None:
        return "-"
    if measure.name == ERROR:
        return f"× {value:.2f}" if value < 1e6 else f"× {value:.0e}"
    return f"{-value + 0.0:+.2f} bits" if measure.name == EFFECTIVE_BITS else f"{value:.3f}"


# ---- check


def check(collection: Collection) -> dict[str, Any]:
    """What is damaged of a collection that was opened in spite of damage."""
    state, damage = collection.manifest, collection.damage
    parts = (*state.segments, *state.removed)
    return {
        "collection": str(collection.path),
        "items": len(collection),
        "lost": collection.lost,
        "files": len(state.files) + 1,
        "bytes": sum(part.bytes for part in parts),
        "damage": damage,
        "model_is_damaged": any(state.model is not None and state.model in line for line in damage),
    }
