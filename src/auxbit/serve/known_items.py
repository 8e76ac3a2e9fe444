"""What answers say of items, kept by id as long as the collection stays as it is."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from auxbit.codes import Packed, unpack
from auxbit.collection.collection import Collection
from auxbit.serve.catalogue import name_in
from auxbit.serve.states import State, state_of

ITEMS = "/api/v1/items"
MOST = 50_000  # items; a few hundred bytes each


class Known(NamedTuple):
    """An item: its document, its code as bytes, and as text of 0 and 1."""

    item: dict[str, Any]
    code: bytes
    bits: str


class KnownItems:
    """Items that have been in an answer: to parse their metadata takes longer than to search."""

    def __init__(self, collection: Collection) -> None:
        self._collection, self._lock = collection, threading.Lock()
        self._state: State | None = None
        self._kept: dict[int, Known] = {}

    def of(self, ids: Sequence[int]) -> list[Known]:
        """What is known of these items; InvalidInput where one is not in the collection."""
        collection, state = self._collection, state_of(self._collection)
        with self._lock:
            if state != self._state or len(self._kept) > MOST:
                self._state, self._kept = state, {}
            kept = self._kept
        missing = [id_ for id_ in ids if id_ not in kept]
        if missing:
            codes = collection.codes(missing)
            texts = bits_text(codes, collection.n_bits)
            found = zip(missing, collection.metadata(missing), codes, texts, strict=True)
            made = {id_: Known(item_of(id_, row), code.tobytes(), text) for id_, row, code, text in found}
            if state_of(collection) != state:  # a change fell between: what was read is for this answer alone
                kept = dict(kept)
            kept.update(made)
        return [kept[id_] for id_ in ids]


def bits_text(codes: Packed, n_bits: int) -> list[str]:
    """Codes as text of 0 and 1. codes : (n, bytes) packed → n texts of n_bits characters."""
    text = (unpack(codes, n_bits) + ord("0")).tobytes().decode("ascii")
    return [text[first : first + n_bits] for first in range(0, len(text), n_bits)]


def version_of(row: dict[str, Any]) -> str:
    """What changes when the picture of an item does, from its metadata."""
    return str(row.get("sha256", ""))[:12]


def item_of(id_: int, row: dict[str, Any]) -> dict[str, Any]:
    """What every listing says of an item, from its metadata."""
    return {
        "id": id_,
        "file": name_in(row),
        "width": row.get("width", 0),
        "height": row.get("height", 0),
        "thumbnail": f"{ITEMS}/{id_}/thumbnail?v={version_of(row)}",
    }
