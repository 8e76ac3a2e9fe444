"""Documents: texts with vectors, ids and metadata in a collection that begins empty, for frameworks.

A store of documents grows from nothing, and there are no rows yet to learn codes from. So vectors are kept,
and searched exactly, until there are enough rows: then codes are learned, and learned again whenever there
are several times as many. From then on a search ranks candidates by codes, and these by their vectors.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from auxbit.collection.collection import Collection
from auxbit.collection.storage import is_collection
from auxbit.core.checks import Array, PathLike, check_integer, warn
from auxbit.data.records import Row
from auxbit.data.where import Where
from auxbit.errors import AuxbitError, InvalidInput, InvalidParameter
from auxbit.evaluate import check_metric
from auxbit.hashers.files import TRAINING_ROWS, default_bits, parameters_for

EXACT_ROWS = 20_000  # below, all vectors are compared: milliseconds, and nothing to learn
GROWTH = 4  # times the rows that codes were learned from, after which they are learned again
FIRST_BITS = 8  # of the codes before that, which say nothing
FACTOR, FEWEST = 50, 500  # candidates for each answer, and at least, whose vectors are compared
KEPT = ("float32", "float16")


class Found(NamedTuple):
    """A document. score : larger is nearer, see `similarity`; 0 if it was not found by a search."""

    id: str
    text: str
    metadata: Row
    score: float = 0.0


def similarity(distances: Any, metric: str) -> Any:
    """Distances of a search as scores; larger is nearer.

    The score is the cosine, the inner product, or minus the squared distance, by the metric; if no vectors
    are kept, it is computed from what codes decode to.
    """
    return np.clip(1 - distances / 2, -1, 1) if metric == "cosine" else -distances


class Documents:
    """Texts with vectors, ids and metadata. collection : None until the first texts are added.

    place : a folder, which is opened if it exists; None: in memory; or a Collection, which is used as it is
        and keeps its codes.
    text_field : the field of the metadata that holds the text.
    metric, vectors : of a new collection, as in Collection.create; vectors are always kept.
    """

    def __init__(
        self, place: PathLike | Collection | None = None, *, text_field: str = "text", metric: str = "cosine",
        vectors: str = "float32",
    ) -> None:  # fmt: skip
        if vectors not in KEPT:
            raise InvalidParameter("vectors", vectors, " or ".join(map(repr, KEPT)))
        self.text_field, self._metric, self._kept = text_field, check_metric(metric), vectors
        self.collection: Collection | None = None
        self.path: Path | None = None
        self._learns = not isinstance(place, Collection)
        self._changing = threading.RLock()
        if isinstance(place, Collection):
            self.collection, self.path = place, place.path
        elif isinstance(place, str | os.PathLike):
            self.path = Path(place)
            if is_collection(self.path) or os.path.lexists(self.path):
                self.collection = Collection(self.path)
        elif place is not None:
            raise InvalidParameter("path", place, "a folder, a Collection, or None for memory")

    @property
    def metric(self) -> str:
        """The metric by which documents are near: that of the collection, if there is one."""
        if self.collection is None or self.collection.state.model is None:
            return self._metric
        return self.collection.model.scaling_.metric

    def __len__(self) -> int:
        return 0 if self.collection is None else len(self.collection)

    # ---- changes

    def add(self, vectors: Any, texts: Sequence[str], metadata: Sequence[Row], ids: Sequence[str]) -> None:
        """Add documents, all or none; those with existing ids are replaced.

        vectors : (n, D). They are on disk when it returns.
        """
        if not len(texts):
            return
        X = np.asarray(vectors)
        if X.ndim != 2 or len(X) != len(texts):
            raise InvalidInput(
                f"the embedding returned shape {X.shape} for {len(texts)} texts; expected one row per text."
            )
        rows = [self._row(text, row) for text, row in zip(texts, metadata, strict=True)]
        with self._changing:
            collection = self.collection or self._create(X.shape[1])
            try:
                self._check_dimension(collection, X.shape[1])
                known = collection.state.ids is not None
                listed = collection.parse_ids(ids) if known else list(ids)
                collection.add(X, ids=listed, metadata=rows, upsert=True)
            except BaseException:
                if self.collection is None:
                    _remove(collection)  # the first documents cannot be added
                raise
            self.collection = collection
            if self._learns:
                self._learn(collection)

    def _check_dimension(self, collection: Collection, n_features: int) -> None:
        expected = collection.state.n_features
        if expected not in (None, n_features):
            raise InvalidInput(
                f"the embedding gives vectors of {n_features} numbers, but those of "
                f"{self.path or 'the collection'} have {expected}. Use the embedding that it was made with, "
                "or another path."
            )

    def _row(self, text: str, metadata: Row) -> Row:
        if self.text_field in metadata:
            raise InvalidInput(
                f"metadata has the field {self.text_field!r}, in which the text is kept. Rename it, or set "
                "text_field to another name."
            )
        return {**metadata, self.text_field: text}

    def _create(self, n_features: int) -> Collection:
        """An empty collection whose codes say nothing: its model knows the metric."""
        from auxbit.hashers.linear import LSH

        rows = np.stack([np.ones(n_features), -np.ones(n_features)])
        model = LSH(FIRST_BITS, random_state=0, **parameters_for(self._metric)).fit(rows)
        model.fit_decoder(rows, "tables")
        return Collection.create(self.path, model, vectors=self._kept, coding="optimal")

    def _learn(self, collection: Collection) -> None:
        """Learn codes, if there are enough rows, or several times as many as they were learned from."""
        n, keeps = len(collection), collection.state.vectors is not None
        if n < EXACT_ROWS or not keeps or collection.state.model is None:
            return
        first, record = collection.n_bits == FIRST_BITS, collection.model.training_
        known = 0 if first else TRAINING_ROWS if record is None else record.n_rows
        if n < GROWTH * known or known >= TRAINING_ROWS:
            return
        try:
            if first:
                collection.retrain(method="ba", bits=default_bits(collection.state.n_features or 0))
            else:
                collection.retrain()
        except AuxbitError as error:  # the documents are there, and are found without
            warn(f"no codes could be learned from {n:,} documents, so searches stay as they were: {error}")

    def delete(self, ids: Sequence[str] | None = None, where: Any = None) -> int:
        """Delete documents by id, ignoring unknown ids, or those that match `where`; returns how many."""
        if ids is not None and where is not None:
            raise InvalidInput("choose what to delete: give ids or where, not both.")
        with self._changing:
            if self.collection is None:
                return 0
            if ids is None:
                return self.collection.delete(where=where)
            known = self._known(ids)
            return self.collection.delete(known) if len(known) else 0

    def clear(self) -> None:
        """Delete all."""
        with self._changing:
            if self.collection is not None and len(self.collection):
                self.collection.delete(self.collection.ids)
                self.collection.compact()

    def close(self) -> None:
        """Let other processes write to the folder. All changes are on disk already."""
        if self.collection is not None:
            self.collection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- what is in it

    def _known(self, ids: Sequence[Any]) -> list[Any]:
        """Those of the ids that are there, each once, as the collection has them."""
        if isinstance(ids, str):  # whose letters may be ids
            raise InvalidInput(f"ids must be a list; got {ids!r}. For one, give [{ids!r}].")
        if self.collection is None or self.collection.state.ids is None or not len(ids):
            return []
        try:
            given = list(dict.fromkeys(self.collection.parse_ids(ids)))
            there = self.collection.holds(given)
        except InvalidInput:  # one cannot be an id of the collection, of which others are
            return [each for one in ids for each in self._known([one])] if len(ids) > 1 else []
        return [id_ for id_, known in zip(given, there) if known]

    def get(self, ids: Sequence[str]) -> list[Found]:
        """The documents with these ids, in their order; unknown ids are left out."""
        known = self._known(ids)
        if self.collection is None or not known:
            return []
        return [self._found(item["id"], item["metadata"]) for item in self.collection.get(known)]

    def all(self, where: Any = None) -> list[Found]:
        """All documents, or those that match `where`, in the order they were added."""
        if self.collection is None:
            return []
        items = self.collection.list(where, limit=None)
        return [self._found(item["id"], item["metadata"]) for item in items]

    def vectors(self, ids: Sequence[str]) -> Array:
        """The vectors of documents, (n, D); if none are kept, what their codes decode to."""
        assert self.collection is not None
        known = self.collection.parse_ids(ids)
        if self.collection.state.vectors is None:
            return self.collection.model.decode(self.collection.codes(known))
        return self.collection.vectors(known)

    def search(self, x: Any, k: int, where: Any = None) -> list[Found]:
        """The k nearest documents to a vector, (D,), nearest first; with fewer, all of them.

        where : as in Collection.search.
        """
        k = check_integer("k", k, 0, None, "Try k=4.")
        query = np.asarray(x, dtype=np.float32)
        if query.ndim != 1:
            raise InvalidInput(f"the query must be one vector; got shape {query.shape}.")
        if self.collection is None or not len(self.collection) or not k:
            return []
        wanted = None if where is None else Where.of(where)
        answers = self.collection.search(query, k, where=wanted, rerank=self._candidates(k))
        scores = similarity(np.asarray(answers.distances, dtype=np.float64), self.metric)
        rows = zip(answers.ids, answers.metadata, scores.tolist())
        return [self._found(id_, metadata, score) for id_, metadata, score in rows]

    def _candidates(self, k: int) -> int | None:
        """How many of the nearest by codes are compared by their vectors; all, if there are few."""
        assert self.collection is not None
        if self.collection.state.vectors is None:
            return None
        n = len(self.collection)
        if n < EXACT_ROWS or self.collection.n_bits == FIRST_BITS:
            return max(n, k)
        return max(FACTOR * k, FEWEST)

    def _found(self, id_: Any, metadata: Row, score: float = 0.0) -> Found:
        rest = {name: value for name, value in metadata.items() if name != self.text_field}
        return Found(str(id_), str(metadata.get(self.text_field, "")), rest, score)


def _remove(collection: Collection) -> None:
    """Remove a collection that was just made."""
    collection.close()
    if collection.path is not None:
        shutil.rmtree(collection.path)
