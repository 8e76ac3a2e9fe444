"""A collection changes while it is served: what to compute anew, and answers made of one state alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from auxbit.collection.collection import Collection

Made = TypeVar("Made")
State = tuple[str, int, int, int]  # key, generation, rows removed, changes

TRIES = 10


def state_of(collection: Collection) -> State:
    """What tells one state of a collection from another; the first two change with the codes' meaning."""
    manifest = collection.manifest
    return manifest.key, manifest.generation, manifest.n_removed, manifest.changes


def consistently(collection: Collection, work: Callable[[], Made]) -> Made:
    """What `work` makes of several questions to a collection, of which none fell before a retraining.

    It is done again where an item was deleted, or all codes were replaced, between them.
    """
    for attempt in range(TRIES):
        before = state_of(collection)
        try:
            made = work()
        except Exception:  # parts of two states fit together in no way that could be foreseen
            if attempt == TRIES - 1 or state_of(collection) == before:
                raise
            continue
        if state_of(collection)[:2] == before[:2]:
            break
    return made


class Cached(Generic[Made]):
    """What is made of a collection, kept until that changes."""

    def __init__(self, collection: Collection, make: Callable[[], Made]) -> None:
        self._collection, self._make = collection, make
        self._lock = threading.Lock()
        self._kept: tuple[State, Made] | None = None

    def __call__(self) -> Made:
        """As of now."""
        with self._lock:
            state = state_of(self._collection)
            if self._kept is None or self._kept[0] != state:
                self._kept = state, self._make()
            return self._kept[1]
