"""Changes of a collection that can be told in advance, and what it must hold after them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from auxbit import LSH, Collection, HammingIndex
from auxbit.collection.storage import LOCK, MANIFEST, Manifest

D = 12
MODEL_BITS = (32, 24, 32)
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

    model : its number, None for codes alone.
    """

    n_bits: int
    model: int | None
    ids: np.ndarray
    codes: np.ndarray
    rows: tuple[dict[str, Any], ...] = ()
    vectors: np.ndarray | None = None
    next_id: int = 0

    @classmethod
    def empty(cls, number: int | None) -> Contents:
        n_bits = 20 if number is None else MODEL_BITS[number]
        vectors = None if number is None else np.zeros((0, D), np.float16)
        codes = np.zeros((0, -(-n_bits // 8)), np.uint8)
        return cls(n_bits, number, np.zeros(0, np.int64), codes, (), vectors)

    def added(self, ids: np.ndarray, codes: np.ndarray, rows: Any, X: np.ndarray | None) -> Contents:
        rest = self.without(ids)
        return replace(
            rest,
            ids=np.concatenate([rest.ids, ids]),
            codes=np.concatenate([rest.codes, codes]),
            rows=rest.rows + tuple(rows if rows is not None else [{}] * len(ids)),
            vectors=None if X is None else np.concatenate([rest.vectors, X.astype(np.float16)]),
            next_id=max(rest.next_id, int(ids.max()) + 1),
        )

    def without(self, ids: np.ndarray) -> Contents:
        kept = ~np.isin(self.ids, ids)
        return replace(
            self,
            ids=self.ids[kept],
            codes=self.codes[kept],
            rows=tuple(row for row, keep in zip(self.rows, kept, strict=True) if keep),
            vectors=None if self.vectors is None else self.vectors[kept],
        )

    def retrained(self, number: int) -> Contents:
        codes = model(number).encode(self.vectors) if len(self.ids) else Contents.empty(number).codes
        return replace(self, model=number, n_bits=MODEL_BITS[number], codes=codes)


def difference(collection: Collection, contents: Contents) -> str:
    """How a collection differs from contents, empty if it does not; searches count as well."""
    if collection.n_bits != contents.n_bits or not np.array_equal(collection.ids, contents.ids):
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
    if collection._storage.manifest.next_id != contents.next_id:
        return "ids would be numbered on from elsewhere"
    index = HammingIndex(contents.n_bits, n_jobs=1)
    index.add(contents.codes, ids=contents.ids)
    queries = np.random.default_rng(len(contents.ids)).integers(
        0, 256, size=(3, contents.codes.shape[1]), dtype=np.uint8
    )
    queries[:, -1] &= 0xFF >> (-contents.n_bits % 8)
    for found, expected in zip(collection.search(codes=queries, k=7), index.search(queries, 7), strict=True):
        if not np.array_equal(found, expected):
            return "other answers than an index over the same codes"
    return ""


def change(before: Contents | None, seed: int, number: int, largest: int = 3000) -> tuple[Change, Contents]:
    """Change `number` of a run: what makes it, and the contents after it. largest : rows to add at once."""
    rng = np.random.default_rng([seed, number])
    if before is None:
        return _creation(None if seed % 2 else int(rng.integers(len(MODEL_BITS))))
    n = len(before.ids)
    kinds = ["add"] * 8 + ["upsert"] * 3 + ["delete"] * 3 + ["compact"]
    kind = str(rng.choice(kinds + ["retrain"] * (before.model is not None)))
    if n > MOST_ROWS or (kind == "delete" and n):
        share = 0.9 if n > MOST_ROWS else rng.random() ** 3
        gone = rng.permutation(before.ids)[: max(1, int(n * share))]
        return _method(lambda c: c.delete(gone)), before.without(gone)
    if kind == "compact":
        return _method(lambda c: c.compact()), before
    if kind == "retrain":
        new = int(rng.integers(len(MODEL_BITS)))
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
    if upsert:
        given["upsert"] = True
        ids = given["ids"] = rng.permutation(before.next_id + size)[:size]
    elif rng.random() < 0.2:
        ids = given["ids"] = before.next_id + rng.permutation(2 * size)[:size]
    else:
        ids = before.next_id + np.arange(size)
    rows = None
    if rng.random() < 0.7:
        rows = given["metadata"] = [{"n": int(i), "text": "μ" * int(i % 5)} for i in ids]
    return _method(lambda c: c.add(**given)), before.added(ids, codes, rows, X)


def _creation(number: int | None) -> tuple[Change, Contents]:
    def create(path: Path, _: Collection | None) -> Collection:
        if number is None:
            return Collection.create(path, n_bits=20, n_jobs=1)
        return Collection.create(path, model(number), vectors="float16", n_jobs=1)

    return create, Contents.empty(number)


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
    if contents is None and not (path / MANIFEST).exists():
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
            writer.delete([])  # takes the lock and changes nothing
            if not np.array_equal(writer.ids, now.ids):
                return "a writer finds other ids than a reader", False
    except OSError as error:  # FileProblem among them
        return f"{type(error).__name__}: {error}", False
    left_over = {entry.name for entry in path.iterdir()} - Manifest.read(path).files - {MANIFEST, LOCK}
    return (f"left over: {left_over}" if left_over else ""), now is following
