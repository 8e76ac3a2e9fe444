"""Changes of a collection that can be told in advance, and what it must hold after them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from auxbit import LSH, Collection, HammingIndex
from auxbit.collection.storage import DATABASE, LOCK, is_collection

D = 12
MODEL_BITS = (32, 24, 32, 200)
CHOSEN = 3  # models that changes choose from; the others are for tests of their own
MOST_ROWS = 5000  # from then on a change may delete most of them
Change = Callable[[Path, "Collection | None"], "Collection"]


@cache
def model(number: int) -> LSH:
    """One of the models that a collection may have."""
    X = np.random.default_rng(0).normal(size=(64, D))
    return LSH(MODEL_BITS[number], random_state=number, n_jobs=1).fit(X)


@dataclass(frozen=True)
class Contents:
    """What a collection holds, row by row in the order of adding.

    model : its number, None for codes alone. ids : int64, or text as objects.
    """

    n_bits: int
    model: int | None
    ids: np.ndarray
    codes: np.ndarray
    rows: tuple[dict[str, Any], ...] = ()
    vectors: np.ndarray | None = None
    next_number: int = 0

    @classmethod
    def empty(cls, number: int | None, *, text: bool = False) -> Contents:
        n_bits = 20 if number is None else MODEL_BITS[number]
        vectors = None if number is None else np.zeros((0, D), np.float16)
        codes = np.zeros((0, -(-n_bits // 8)), np.uint8)
        return cls(n_bits, number, np.zeros(0, object if text else np.int64), codes, (), vectors)

    @property
    def text(self) -> bool:
        return self.ids.dtype == object

    def added(self, ids: np.ndarray, codes: np.ndarray, rows: Any, X: np.ndarray | None) -> Contents:
        rest = self.without(ids)
        largest = 0 if self.text else int(ids.max()) + 1
        return replace(
            rest,
            ids=np.concatenate([rest.ids, ids]),
            codes=np.concatenate([rest.codes, codes]),
            rows=rest.rows + tuple(rows if rows is not None else [{}] * len(ids)),
            vectors=None if X is None else np.concatenate([rest.vectors, X.astype(np.float16)]),
            next_number=max(rest.next_number + len(ids), largest),
        )

    def without(self, ids: np.ndarray) -> Contents:
        return self.at(np.flatnonzero(~np.isin(self.ids, ids)))

    def at(self, places: np.ndarray) -> Contents:
        """The rows at these places alone."""
        return replace(
            self,
            ids=self.ids[places],
            codes=self.codes[places],
            rows=tuple(self.rows[place] for place in places),
            vectors=None if self.vectors is None else self.vectors[places],
        )

    def updated(self, ids: np.ndarray, fields: dict[str, Any]) -> Contents:
        """With other values of some fields; None removes a field."""
        chosen = set(ids.tolist())
        rows = (
            {name: value for name, value in (row | fields).items() if value is not None}
            if id_ in chosen
            else row
            for id_, row in zip(self.ids.tolist(), self.rows, strict=True)
        )
        return replace(self, rows=tuple(rows))

    def retrained(self, number: int) -> Contents:
        codes = model(number).encode(self.vectors)
        return replace(self, model=number, n_bits=MODEL_BITS[number], codes=codes)


def difference(collection: Collection, contents: Contents) -> str:
    """How a collection differs from contents, empty if it does not; searches count as well."""
    if collection.n_bits != contents.n_bits or collection.ids.tolist() != contents.ids.tolist():
        return f"{len(collection)} rows of {collection.n_bits} bits, expected {len(contents.ids)}"
    if not np.array_equal(collection.codes(), contents.codes):
        return "other codes"
    if collection.metadata(contents.ids) != list(contents.rows):
        return "other metadata"
    vectors = contents.vectors
    if vectors is not None and not np.array_equal(collection.vectors(contents.ids), vectors):
        return "other vectors"
    if contents.model is not None and collection.model.random_state != contents.model:
        return "another model"
    state = collection.state
    if state.next_number != contents.next_number:
        return "ids would be numbered on from elsewhere"
    if len(collection) != len(contents.ids):
        return "another number of items than of ids"
    index = HammingIndex(contents.n_bits, n_jobs=1)
    index.add(contents.codes)
    queries = np.random.default_rng(len(contents.ids)).integers(
        0, 256, size=(3, contents.codes.shape[1]), dtype=np.uint8
    )
    queries[:, -1] &= 0xFF >> (-contents.n_bits % 8)
    distances, ids = collection.search(codes=queries, k=7)
    expected, places = (each[:, : len(contents.ids)] for each in index.search(queries, 7))
    if not np.array_equal(distances, expected) or ids.tolist() != contents.ids[places].tolist():
        return "other answers than an index over the same codes"
    return ""


def change(before: Contents | None, seed: int, number: int, largest: int = 3000) -> tuple[Change, Contents]:
    """Change `number` of a run: what makes it, and the contents after it. largest : rows to add at once."""
    rng = np.random.default_rng([seed, number])
    if before is None:
        return _creation(None if seed % 3 == 1 else int(rng.integers(CHOSEN)), text=seed % 3 == 2)
    n = len(before.ids)
    kinds = ["add"] * 8 + ["upsert"] * 3 + ["delete"] * 3 + ["update"] * 2 + ["compact"]
    kind = str(rng.choice(kinds + ["retrain"] * (before.model is not None)))
    if n > MOST_ROWS or (kind == "delete" and n):
        share = 0.9 if n > MOST_ROWS else rng.random() ** 3
        gone = rng.permutation(before.ids)[: max(1, int(n * share))]
        return _method(lambda c: c.delete(gone)), before.without(gone)
    if kind == "update" and n:
        some, fields = rng.permutation(before.ids)[: int(rng.integers(1, 20))], {"n": number, "text": None}
        return _method(lambda c: c.update_metadata(some, fields)), before.updated(some, fields)
    if kind == "compact":
        return _method(lambda c: c.compact()), before
    if kind == "retrain" and n:
        new = int(rng.integers(CHOSEN))
        return _method(lambda c: c.retrain(model(new))), before.retrained(new)
    return _addition(before, rng, largest, upsert=kind == "upsert")


def _addition(
    before: Contents, rng: np.random.Generator, largest: int, upsert: bool
) -> tuple[Change, Contents]:
    size = int(rng.choice([1, rng.integers(2, 90), rng.integers(90, largest + 1)], p=[0.3, 0.6, 0.1]))
    X = rng.normal(size=(size, D)).astype(np.float32) if before.model is not None else None
    given: dict[str, Any] = {"X": X}
    if before.model is None or rng.random() < 0.3:
        codes = rng.integers(0, 256, size=(size, before.codes.shape[1]), dtype=np.uint8)
        codes[:, -1] &= 0xFF >> (-before.n_bits % 8)
        given["codes"] = codes
    else:
        codes = model(before.model).encode(X)
    first = before.next_number
    if upsert:
        given["upsert"] = True
        ids = rng.permutation(first + size)[:size]
    elif before.text or rng.random() < 0.2:
        ids = first + rng.permutation(2 * size)[:size]
    else:
        ids = first + np.arange(size)
    if before.text:
        ids = np.array([f"item {i}" for i in ids], dtype=object)
        if not upsert:  # some of these may have come in a wider choice of ids before
            ids = np.array([f"{id_} of {first}" for id_ in ids], dtype=object)
    if before.text or upsert or not np.array_equal(ids, first + np.arange(size)):
        given["ids"] = ids
    rows = None
    if rng.random() < 0.7:
        rows = given["metadata"] = [{"n": i, "text": "μ" * (i % 5)} for i in range(size)]
    return _method(lambda c: c.add(**given)), before.added(ids, codes, rows, X)


def _creation(number: int | None, *, text: bool) -> tuple[Change, Contents]:
    def create(path: Path, _: Collection | None) -> Collection:
        if number is None:
            return Collection.create(path, bits=20, n_jobs=1)
        return Collection.create(path, model(number), vectors="float16", n_jobs=1)

    return create, Contents.empty(number, text=text)


def _method(call: Callable[[Collection], object]) -> Change:
    def make(path: Path, collection: Collection | None) -> Collection:
        if collection is None:
            collection = Collection.open(path, n_jobs=1)
        call(collection)
        return collection

    return make


def found_after(path: Path, contents: Contents | None, following: Contents) -> tuple[str, bool]:
    """What is wrong with a collection after a crash, and whether the change under way has come about.

    It must hold `contents`, None for no collection, or what follows; and a writer must find it the same.
    """
    if contents is None and not is_collection(path):
        return ("half a folder" if path.exists() else ""), False
    try:
        with Collection.open(path, read_only=True, n_jobs=1) as reader:
            differences = {}
            for now in (following, contents):
                if now is not None and not differences.setdefault(now is following, difference(reader, now)):
                    break
            else:
                return f"neither after the change nor before: {differences}", False
            if reader.check():
                return f"damaged: {reader.check()}", False
        with Collection.open(path, n_jobs=1) as writer:
            writer.lock()
            if writer.ids.tolist() != now.ids.tolist():
                return "a writer finds other ids than a reader", False
            named = writer.state.files
    except OSError as error:  # FileProblem among them
        return f"{type(error).__name__}: {error}", False
    left_over = {entry.name for entry in path.iterdir()} - named - {DATABASE, LOCK}
    return (f"left over: {left_over}" if left_over else ""), now is following
