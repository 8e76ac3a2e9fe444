"""Ids by position and positions by id, for hundreds of millions of them.

Ids that rise with the position, as most do, need nothing but themselves. Others get a sorted copy, 16 bytes
an id, and a dict of those that came since it was made; a dict of all would take a hundred bytes each.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from auxbit.errors import InvalidInput

Ids = npt.NDArray[np.int64]

NO_ID = -1
MAX_ID = np.iinfo(np.int64).max
FEW = 2**16  # ids that a dict may hold before they are sorted in


class IdTable:
    """The ids of positions 0, 1, 2, … An id may come again: then its last position counts."""

    def __init__(self) -> None:
        self._clear()

    @classmethod
    def of(cls, ids: Ids, next_id: int) -> IdTable:
        """The table of ids that are there already, which are not copied until others are added."""
        table = cls()
        table._ids, table.size, table.next_id = ids, len(ids), next_id
        table._rising = table._rise(0, len(ids))
        if not table._rising:
            table._sort()
        return table

    def _clear(self) -> None:
        self.size = 0
        self.next_id = 0
        self._ids: Ids = np.zeros(0, dtype=np.int64)
        self._rising = True
        self._sorted: tuple[Ids, Ids] = (self._ids, self._ids)  # ids in order, and their positions
        self._recent: dict[int, int] = {}

    @property
    def ids(self) -> Ids:
        """All ids in the order of their positions, a view."""
        return self._ids[: self.size]

    def at(self, positions: npt.NDArray[np.int64]) -> Ids:
        """The ids at these positions; NO_ID where a position is -1."""
        if not self.size:
            return np.full(positions.shape, NO_ID, dtype=np.int64)
        found: Ids = np.where(positions >= 0, self._ids[np.maximum(positions, 0)], NO_ID)
        return found

    def find(self, ids: Ids) -> npt.NDArray[np.int64]:
        """The last position of each id, -1 where it never came."""
        if self._rising:
            found = _look_up(ids, self.ids, None)
        else:
            found = _look_up(ids, *self._sorted)
            if self._recent:
                recent = [self._recent.get(each, -1) for each in ids.tolist()]
                found = np.maximum(found, np.array(recent, dtype=np.int64))
        return found

    def number_on(self, n: int) -> Ids:
        """N ids after the largest so far."""
        if n and self.next_id + n - 1 > MAX_ID:
            raise InvalidInput(
                f"{n} codes cannot be numbered on: the largest id is {self.next_id - 1}. Give their ids."
            )
        return np.arange(self.next_id, self.next_id + n, dtype=np.int64)

    def append(self, ids: Ids) -> None:
        """Give the next positions these ids."""
        if not len(ids):
            return
        first, size = self.size, self.size + len(ids)
        if size > len(self._ids):
            grown = np.empty(max(size, len(self._ids) * 5 // 4), dtype=np.int64)
            grown[:first] = self.ids
            self._ids = grown
        self._ids[first:size] = ids
        rising = self._rising and self._rise(first, size)
        if not rising and (self._rising or len(self._recent) + len(ids) > max(FEW, first // 8)):
            self._rising, self.size = rising, size
            self._sort()
        elif not rising:
            self._recent.update(zip(ids.tolist(), range(first, size), strict=True))
        self._rising, self.size = rising, size
        self.next_id = max(self.next_id, int(ids.max()) + 1)

    def truncate(self, size: int, next_id: int) -> None:
        """Forget the positions from `size` on, as if they had never come."""
        kept = self._ids[:size].copy()
        self._clear()
        self.append(kept)
        self.next_id = next_id

    def _sort(self) -> None:
        order = np.argsort(self.ids, kind="stable")
        self._sorted = (self.ids[order], order)
        self._recent = {}

    def _rise(self, first: int, size: int) -> bool:
        new = self._ids[max(first - 1, 0) : size]
        return bool((new[1:] > new[:-1]).all())


def check_ids(ids: npt.ArrayLike, n: int | None = None, name: str = "ids") -> Ids:
    """Return `ids` as int64, n of them where that is given, or say what is wrong with them."""
    given = np.asarray(sorted(ids) if isinstance(ids, set | frozenset) else ids)
    if given.ndim != 1 or (n is not None and len(given) != n):
        wanted = f"one integer a code, shape ({n},)" if n is not None else "a list of ids"
        raise InvalidInput(f"{name} must be {wanted}, got shape {given.shape}.")
    if len(given) and given.dtype.kind not in "iu":
        raise InvalidInput(f"{name} must be integers, got {given.dtype}.")
    if len(given) and (int(given.min()) < 0 or int(given.max()) > MAX_ID):
        bad = int(given.min()) if int(given.min()) < 0 else int(given.max())
        raise InvalidInput(f"{name} must lie in 0..2**63-1, got {bad}: -1 marks missing answers.")
    return given.astype(np.int64)


def repeats(ids: Ids) -> npt.NDArray[np.bool_]:
    """Which ids have come before in the same array."""
    order = np.argsort(ids, kind="stable")
    again = np.zeros(len(ids), dtype=np.bool_)
    again[order[1:]] = ids[order[1:]] == ids[order[:-1]]
    return again


def _look_up(ids: Ids, ordered: Ids, positions: Ids | None) -> npt.NDArray[np.int64]:
    """Where ids stand in `ordered`, the last of equals, as positions if these are given."""
    if not len(ordered):
        return np.full(len(ids), -1, dtype=np.int64)
    place = np.searchsorted(ordered, ids, side="right") - 1
    there = (place >= 0) & (ordered[place] == ids)
    return np.where(there, place if positions is None else positions[place], -1)
