"""The file names of a collection in memory, and its orders: added, by name, random."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from auxbit.collection.collection import Collection
from auxbit.errors import InvalidInput
from auxbit.serve.states import State, state_of

Ids = npt.NDArray[np.int64]
Order = npt.NDArray[np.intp]

CHUNK = 16_384  # rows of metadata parsed at once
KEPT_ORDERS = 4
TRIES = 5  # at a collection that changes while it is read
_NUMBERS = re.compile(r"(\d+)")


@dataclass(frozen=True)
class Listing:
    """Ids in the order in which they were added, and their names; state : what it was read from."""

    state: State
    ids: Ids
    names: list[str]
    _random: OrderedDict[int, Order] = field(default_factory=OrderedDict)

    def select(self, part: str, order: str, seed: int) -> Ids:
        """The ids whose names have this part, in either case, in the order wanted."""
        rows = {"added": self._added, "name": self._by_name}.get(order)
        places = rows() if rows is not None else self._shuffled(seed)
        if part:
            wanted = part.casefold()
            matches = np.fromiter((wanted in name for name in self._folded), np.bool_, len(self.names))
            places = places[matches[places]]
        found: Ids = self.ids[places]
        return found

    def _added(self) -> Order:
        return np.arange(len(self.ids))

    def _by_name(self) -> Order:
        return self._name_order

    def _shuffled(self, seed: int) -> Order:
        """By a hash of seed and id: what is added later leaves the order of the rest as it was."""
        found = self._random.get(seed)
        if found is None:
            found = np.argsort(_mixed(self.ids.astype(np.uint64), seed), kind="stable")
            self._random[seed] = found
            while len(self._random) > KEPT_ORDERS:
                self._random.popitem(last=False)
        return found

    @cached_property
    def _folded(self) -> list[str]:
        return [name.casefold() for name in self.names]

    @cached_property
    def _name_order(self) -> Order:
        keys = [natural(name) for name in self._folded]
        return np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.intp)


class Catalogue:
    """The listing of a collection, read anew when that has changed, and read on where it has grown."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._lock = threading.Lock()
        self._listing: Listing | None = None

    def __call__(self) -> Listing:
        """The listing as of now."""
        state = state_of(self._collection)
        with self._lock:
            listing = self._listing
            if listing is None or listing.state != state:
                listing = self._listing = self._read(listing)
            return listing

    def _read(self, before: Listing | None) -> Listing:
        for attempt in range(TRIES):
            state, ids = state_of(self._collection), self._collection.ids
            grown = before is not None and before.state[:3] == state[:3]
            names = list(before.names) if before is not None and grown else []
            try:
                for first in range(len(names), len(ids), CHUNK):
                    rows = self._collection.metadata(ids[first : first + CHUNK])
                    names += [name_in(row) for row in rows]
            except InvalidInput:  # one of them has been deleted meanwhile
                if attempt == TRIES - 1:
                    raise
                continue
            if len(names) == len(ids) and state_of(self._collection) == state:
                break
        # of a collection that never rests, what was read last
        return Listing(state, ids[: len(names)], names[: len(ids)])


def name_in(row: dict[str, object]) -> str:
    """The file name in an item's metadata, as text that UTF-8 has."""
    return str(row.get("file", "")).encode(errors="replace").decode()


def natural(text: str) -> list[tuple[int, str]]:
    """A key by which img2 comes before img10: numbers by their length, then their digits."""
    parts = _NUMBERS.split(text)
    parts[1::2] = [digits.lstrip("0") for digits in parts[1::2]]
    return [(len(part) if place % 2 else -1, part) for place, part in enumerate(parts)]


def _mixed(ids: npt.NDArray[np.uint64], seed: int) -> npt.NDArray[np.uint64]:
    """A number for each id and seed that looks random: the finaliser of splitmix64."""
    x = ids + np.uint64((seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) % 2**64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed
