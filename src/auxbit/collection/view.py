"""What searches need of a snapshot, made at first use and kept up to date as the collection grows."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from auxbit.collection.metadata import Fields
from auxbit.collection.segment import Segment
from auxbit.collection.snapshot import Snapshot
from auxbit.collection.where import Where
from auxbit.errors import InvalidInput
from auxbit.index.code_blocks import LaneSet, allowed_positions, as_bools
from auxbit.index.id_table import IdTable

if TYPE_CHECKING:  # numba and scikit-learn take longer to import than a collection to open
    from auxbit.decoders import Decoder
    from auxbit.hashers.base import Hasher
    from auxbit.index.hamming import HammingIndex

Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class View:
    """Ids and deletions by position, the index over the codes, and fields of metadata, of one generation.

    Positions keep their meaning while it grows, so a search may go on with those that it has found.
    """

    def __init__(self, snapshot: Snapshot, n_jobs: int | None, before: View | None = None) -> None:
        self.snapshot, self.n_jobs = snapshot, n_jobs
        self._model: tuple[str, Hasher] | None = None
        if before is not None and before.snapshot.manifest.key == snapshot.manifest.key:
            self._model = before._model
        self._lock = threading.RLock()
        self._ids: IdTable | None = None
        self._alive = LaneSet()
        self._index: HammingIndex | None = None
        self._fields: dict[str, Fields] = {}

    def model(self) -> Hasher:
        """The hasher of this generation, loaded at first use."""
        folder, name = self.snapshot.folder, self.snapshot.manifest.model
        if name is None:
            raise InvalidInput(
                f"{folder} has no model: it holds codes alone. Search and add codes=…, or give a model "
                "to Collection.create."
            )
        with self._lock:
            if self._model is None or self._model[0] != name:
                from auxbit.hashers.model_file import load

                model = load(folder / name)
                model.n_jobs = self.n_jobs
                self._model = name, model
            return self._model[1]

    def advance(self, snapshot: Snapshot) -> None:
        """Take in what has been added and deleted since, in a later snapshot of the same generation."""
        with self._lock:
            before = self.snapshot
            # a search that finds new positions must find their rows, too: both change behind the guard
            with self._index._guard.writing() if self._index is not None else nullcontext():
                self._take_in(before, snapshot)
                self.snapshot = snapshot
            here = {part.file for part in snapshot.manifest.segments}
            self._fields = {name: fields for name, fields in self._fields.items() if name in here}

    def _take_in(self, before: Snapshot, after: Snapshot) -> None:
        if self._ids is None:
            return
        start, stop = before.n_positions, after.n_positions
        if stop > start:
            ids = np.ascontiguousarray(after.ids(start, stop))
            if self._index is not None:
                self._index._store.append(after.blocks(start, stop).packed(), ids)
            else:
                self._ids.append(ids)
                self._alive.append(len(ids))
        known = {part.file for part in before.manifest.removed}
        for part, removal in zip(after.manifest.removed, after.removals, strict=True):
            if part.file not in known and removal is not None:
                self._discard(removal.column("positions"))

    def _discard(self, positions: Positions) -> None:
        self._alive.discard(positions[self._alive.holds(positions)])

    @property
    def ids(self) -> IdTable:
        """Ids by position; deleted ones are still there."""
        with self._lock:
            if self._ids is None:
                snapshot = self.snapshot
                ids = IdTable.of(snapshot.ids(0, snapshot.n_positions), snapshot.manifest.next_id)
                self._alive.append(snapshot.n_positions)
                self._discard(snapshot.removed())
                if snapshot.lost is not None:  # of an id whose deletion was lost, the last row counts
                    here = allowed_positions(self._alive.masks)
                    self._alive.discard(here[ids.find(ids.at(here)) != here])
                self._ids = ids
            return self._ids

    @property
    def alive(self) -> LaneSet:
        """The positions that are not deleted."""
        _ = self.ids  # makes both
        return self._alive

    def places(self, ids: Positions) -> Positions:
        """The positions of ids, -1 where one is missing or deleted."""
        with self._lock:
            places = self.ids.find(ids)
            return np.where(self._alive.holds(places), places, -1)

    def present(self) -> Positions:
        """The positions that are not deleted, in order."""
        with self._lock:
            return allowed_positions(self.alive.masks)

    def index(self) -> HammingIndex:
        """The index over the codes."""
        with self._lock:
            if self._index is None:
                from auxbit.index.hamming import HammingIndex
                from auxbit.index.store import CodeStore

                snapshot, ids = self.snapshot, self.ids
                index = HammingIndex(snapshot.manifest.n_bits, n_jobs=self.n_jobs)
                index._store = CodeStore.of(snapshot.blocks(0, snapshot.n_positions), ids, self._alive)
                self._index = index
            return self._index

    def index_with(self, decoder: Decoder) -> HammingIndex:
        """The index, ready for asymmetric search with this decoder."""
        with self._lock:
            index = self.index()
            if index.decoder is not decoder:
                with index._guard.writing():
                    index._store.attach(decoder)
                    index.decoder = decoder
            return index

    def matching(self, where: Where) -> Mask:
        """Which positions have metadata that `where` asks for and are not deleted, (n_positions,)."""
        with self._lock:
            snapshot, mask = self.snapshot, as_bools(self.alive.masks, self.snapshot.n_positions)
        for number, segment in enumerate(snapshot.segments):  # without the lock: others need not wait
            if segment is not None:
                start, stop = snapshot.starts[number], snapshot.starts[number + 1]
                mask[start:stop] &= where.mask(self._fields_of(snapshot, number, segment), segment.rows)
        return mask

    def _fields_of(self, snapshot: Snapshot, number: int, segment: Segment) -> Fields:
        with self._lock:
            fields = self._fields.get(segment.path.name)
            if fields is None:
                fields = self._fields[segment.path.name] = _fields(snapshot, number, segment)
            return fields


def _fields(snapshot: Snapshot, number: int, segment: Segment) -> Fields:
    """The metadata of a segment; lost rows have none."""
    if "text" not in segment:
        return Fields(np.zeros(segment.rows + 1, dtype=np.int64), np.zeros(0, dtype=np.uint8))
    lost = None
    if snapshot.lost is not None:
        lost = np.zeros(snapshot.n_positions, dtype=np.bool_)
        lost[snapshot.lost] = True
        lost = lost[snapshot.starts[number] : snapshot.starts[number + 1]]
    return Fields(segment.column("offsets"), segment.column("text"), lost)
