"""Work that threads and processes do at once, with results that can be compared to the last bit."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np

from auxbit import BinaryAutoencoder, Collection, load
from helpers.collection_truth import D, model

X = np.random.default_rng(0).normal(size=(6000, D)).astype(np.float32)
SECONDS = 120  # after which a child that hangs is ended


def fitted(seed: int) -> list[bytes]:
    """Fit, and what has been learned."""
    hasher = BinaryAutoencoder(8, random_state=seed, n_jobs=2, max_iter=2).fit(X[:1500])
    return [hasher.encode(X).tobytes(), hasher.decode(hasher.encode(X[:100])).tobytes()]


def encoded(path: Path) -> bytes:
    """The codes of all rows by a model file."""
    return load(path / "m.safetensors").encode(X).tobytes()


def searched(collection: Collection, seed: int) -> list[bytes]:
    """Searches by Hamming distance, by vectors, and among some items."""
    queries = np.random.default_rng(seed).normal(size=(20, D)).astype(np.float32)
    answers = (
        collection.search(queries, k=5, mode="hamming"),
        collection.search(queries, k=5, rerank=50),
        collection.search(queries, k=5, where="n < 500"),
    )
    return [np.ascontiguousarray(each).tobytes() for found in answers for each in found]


def written(path: Path) -> list[Any]:
    """Changes of all kinds in a new collection, and what is in it then."""
    with Collection.create(path, model(0), vectors="float16", n_jobs=2) as collection:
        for start in range(0, 600, 200):
            rows = [{"n": n} for n in range(start, start + 200)]
            collection.add(X[start : start + 200], metadata=rows)
        collection.delete(np.arange(50, 100))
        collection.compact()
        collection.retrain(model(1))
        ids = collection.ids
        assert collection.check() == []
        return [ids.tolist(), collection.codes().tobytes(), collection.metadata(ids), searched(collection, 0)]


def in_a_child(path: Path, shared: Collection | None, answers: Any) -> None:
    """Encode and search, by a collection that is shared (fork) or opened here, and send what was found."""
    signal.alarm(SECONDS)
    collection = shared or Collection.open(path / "c", read_only=True, n_jobs=2)
    answers.send([encoded(path), searched(collection, 1)])
    answers.close()


def add_in_turns(path: Path, name: str, times: int) -> None:
    """Add items again and again, each time as the writer for a moment; others may write in between."""
    from auxbit.errors import InUse

    signal.alarm(SECONDS)
    done = 0
    while done < times:
        try:
            with Collection.open(path, n_jobs=1) as collection:
                collection.add(X[:3], ids=[f"{name} {done} {each}" for each in range(3)])
            done += 1
        except InUse:
            continue
