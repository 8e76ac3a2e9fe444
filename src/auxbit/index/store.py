"""What an index holds: codes, ids, norms for a decoder, and which codes have not been removed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from auxbit.codes import Packed
from auxbit.decoders import Decoder
from auxbit.errors import InvalidInput
from auxbit.index.asymmetric import CodeNorms
from auxbit.index.code_blocks import CodeBlocks, LaneMasks, LaneSet, all_lanes, allowed_positions, lanes_of
from auxbit.index.id_table import IdTable, check_ids, repeats

Ids = npt.NDArray[np.int64]


class At(NamedTuple):
    """Positions to search among, rising, of codes that were there a moment ago, be they removed since."""

    positions: Ids


Among = npt.ArrayLike | At | None

FEW_SHARE = 8  # of the codes: where a filter leaves fewer than one in so many, these are copied and scanned
MANY_REMOVED = 4096
ATTACHED = 2**18  # codes whose norms are computed at a time


class CodeStore:
    """Codes by position, in the order of insertion, and what belongs to them."""

    def __init__(self, n_bits: int, decoder: Decoder | None) -> None:
        self.n_bits, self.decoder = n_bits, decoder
        self.codes, self.ids, self.alive = CodeBlocks(self.n_bits), IdTable(), LaneSet()
        self.norms = None if self.decoder is None else CodeNorms(self.decoder)

    @classmethod
    def of(cls, codes: CodeBlocks, ids: IdTable, alive: LaneSet) -> CodeStore:
        """A store of parts that are there already; `attach` adds norms."""
        store = cls(codes.n_bits, None)
        store.codes, store.ids, store.alive = codes, ids, alive
        return store

    def __len__(self) -> int:
        return self.alive.count

    def attach(self, decoder: Decoder) -> None:
        """Compute the norms that asymmetric search with this decoder needs."""
        norms = CodeNorms(decoder)
        norms.reserve(self.codes.size)
        for start in range(0, self.codes.size, ATTACHED):
            norms.append(self.codes.take(np.arange(start, min(start + ATTACHED, self.codes.size))))
        self.decoder, self.norms = decoder, norms

    def add(self, packed: Packed, ids: Ids | None, upsert: bool) -> None:
        """Append codes under ids, or numbered on; `upsert` replaces the codes of ids that are there."""
        if ids is None:
            ids = self.ids.number_on(len(packed))
        elif len(ids):
            packed, ids = self._settle_known(packed, ids, upsert)
        if len(ids):
            self.append(packed, ids)

    def remove(self, ids: Ids) -> None:
        """Remove codes by their ids, all or none."""
        places = self.places(ids)
        if (places < 0).any():
            missing = int(ids[(places < 0).argmax()])
            raise InvalidInput(f"id {missing} is not in the index; nothing was removed.")
        self.alive.discard(places)
        if self.codes.size - len(self) > max(MANY_REMOVED, len(self)):
            self._compact()

    def append(self, packed: Packed, ids: Ids) -> None:
        """Add codes at the end, under ids that are not there."""
        first, next_id = self.codes.size, self.ids.next_id
        try:
            if self.norms is not None:
                self.norms.append(packed)
            self.codes.append(packed)
            self.ids.append(ids)
            self.alive.append(len(ids))
        except BaseException:  # no memory left, or an interrupt: all of them end where they did
            if self.norms is not None:
                self.norms.size = first
            self.codes.size = first
            self.ids.truncate(first, next_id)
            self.alive.truncate(first)
            raise

    def present(self) -> Ids:
        """The positions of codes that have not been removed."""
        if len(self) == self.codes.size:
            return np.arange(self.codes.size, dtype=np.int64)
        return allowed_positions(self.alive.masks)

    def places(self, ids: Ids) -> Ids:
        """The positions of ids, -1 where one is missing or removed."""
        places = self.ids.find(ids)
        return np.where(self.alive.holds(places), places, -1)

    def selection(self, among: Among, *, copy_few: bool = True) -> tuple[CodeBlocks, LaneMasks, Ids | None]:
        """The codes to search, which of them may be answered, and, of a copy of few, their positions."""
        if among is None:
            return self.codes, self.alive.masks, None
        if isinstance(among, At):
            return self._chosen(among.positions, copy_few)
        wanted = np.asarray(sorted(among) if isinstance(among, set | frozenset) else among)
        if wanted.dtype == np.bool_:
            if wanted.shape != (len(self),):
                raise InvalidInput(
                    f"among must have one truth value a code, shape ({len(self)},), got {wanted.shape}; "
                    "or a list of ids."
                )
            chosen = self.present()[wanted]
        else:
            chosen = np.unique(self.places(check_ids(wanted, name="among")))
            chosen = chosen[chosen >= 0]
        return self._chosen(chosen, copy_few)

    def _chosen(self, chosen: Ids, copy_few: bool) -> tuple[CodeBlocks, LaneMasks, Ids | None]:
        """The selection of positions, in order."""
        if copy_few and len(chosen) * FEW_SHARE <= self.codes.size:
            return CodeBlocks.of(self.codes.take(chosen), self.n_bits), all_lanes(len(chosen)), chosen
        allowed = np.zeros(self.codes.size, dtype=np.bool_)
        allowed[chosen] = True
        return self.codes, lanes_of(allowed), None

    def _settle_known(self, packed: Packed, ids: Ids, upsert: bool) -> tuple[Packed, Ids]:
        """Refuse ids that are there, or replace their codes; returns what remains to be appended."""
        places, again = self.places(ids), repeats(ids)
        known = places >= 0
        if not upsert and (known | again).any():
            first = int((known | again).argmax())
            place = "is already in the index" if known[first] else "comes twice in ids"
            raise InvalidInput(f"id {ids[first]} {place}; nothing was added. upsert=True replaces its code.")
        if not (known | again).any():
            return packed, ids
        last = {each: row for row, each in enumerate(ids.tolist())}  # in the order of first appearance
        rows = np.array(list(last.values()), dtype=np.int64)
        old, new = rows[known[rows]], rows[~known[rows]]
        if len(old):
            if self.norms is not None:  # first, as it is what may fail
                self.norms.replace(places[old], packed[old])
            self.codes.replace(places[old], packed[old])
        return packed[new], ids[new]

    def _compact(self) -> None:
        """Copy what has not been removed together, in its order."""
        present, fresh = self.present(), CodeStore(self.n_bits, self.decoder)
        fresh.append(self.codes.take(present), self.ids.at(present))
        fresh.ids.next_id = self.ids.next_id
        self.codes, self.ids, self.alive, self.norms = fresh.codes, fresh.ids, fresh.alive, fresh.norms
