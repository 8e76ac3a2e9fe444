"""What an index holds: codes, ids, norms for a decoder, and which codes have not been removed.

Codes are byte planes, the layout that the scans read. A block holds 64 codes, byte j of all of them side by
side: one 64-byte vector per byte of the code, whatever the number of bits. Lane l of block b is the code at
position 64 b + l; lanes past the last code are zeros. Which positions a search may return is one bit per
lane, a 64-bit word per block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from auxbit.core.checks import Array, Float32, Ids, Packed, Positions, as_array, check_squares
from auxbit.core.decoders import Decoder, ListDecoder
from auxbit.core.files import aligned_zeros as aligned_zeros
from auxbit.core.maps import bytes_per_code
from auxbit.errors import InvalidInput

Planes = npt.NDArray[np.uint8]  # (n_blocks, width, 64)
LaneMasks = npt.NDArray[np.uint64]  # (n_blocks,), lane l is bit l
Scalar = TypeVar("Scalar", bound=np.generic)

LANES = 64
COPIED = 2**16  # codes that are brought into another order at a time


class CodeBlocks:
    """Packed codes by position, as (n_blocks, width, 64) planes that grow at the end.

    `version` changes when a position gets another code: what was derived from the codes is then out of date.
    """

    def __init__(self, n_bits: int) -> None:
        self.n_bits, self.width = n_bits, bytes_per_code(n_bits)
        self.size = self.version = 0
        self.changed, self.watched = np.zeros(0, dtype=np.int64), 0  # as in `watch`
        self._planes, self._ours = aligned_zeros((0, self.width, LANES)), True

    @classmethod
    def of(cls, codes: Packed, n_bits: int) -> CodeBlocks:
        """The blocks of packed codes, (n, width)."""
        blocks = cls(n_bits)
        blocks.append(codes)
        return blocks

    @classmethod
    def mapped(cls, planes: Planes, n_bits: int, size: int) -> CodeBlocks:
        """The blocks of `size` codes that lie in planes already, which are copied before any change."""
        blocks = cls(n_bits)
        blocks.remap(planes, size)
        return blocks

    def remap(self, planes: Planes, size: int) -> None:
        """The same codes, and perhaps more after them, now lie in these planes: of a file that has grown.

        Planes that are given are never written to; what lies in them past the last code does not matter.
        """
        enough = (max(-(-size // LANES), len(planes)), self.width, LANES)
        if planes.shape != enough or planes.dtype != np.uint8 or size < self.size:  # kernels read by address
            raise InvalidInput(
                f"{self.size} of {size} codes of {self.n_bits} bits are not in planes of shape "
                f"{planes.shape} of {planes.dtype}."
            )
        self._planes, self.size, self._ours = planes, size, False

    def __len__(self) -> int:
        return self.size

    @property
    def planes(self) -> Planes:
        """The blocks in use, a view: (ceil(size/64), width, 64) uint8, on 64-byte boundaries."""
        return self._planes[: -(-self.size // LANES)]

    def append(self, codes: Packed) -> None:
        """Add packed codes, (n, width), at the end."""
        first, size = self.size, self.size + len(codes)
        self.reserve(size)
        head = min(len(codes), -first % LANES)  # what still fits into the last block
        if head:
            lane = first % LANES
            self._planes[first // LANES, :, lane : lane + head] = codes[:head].T
        block, (whole, rest) = (first + head) // LANES, divmod(len(codes) - head, LANES)
        if whole:
            rows = codes[head : len(codes) - rest].reshape(whole, LANES, self.width)
            self._planes[block : block + whole] = rows.transpose(0, 2, 1)
        if rest:
            self._planes[block + whole, :, :rest] = codes[-rest:].T
        self.size = size

    def append_planes(self, planes: Planes, lanes: slice) -> None:
        """Add the codes in these lanes of other blocks, (n_blocks, width, 64), at the end."""
        if self.size % LANES == 0 and lanes.start == 0:
            first, n_blocks = self.size // LANES, -(-lanes.stop // LANES)
            self.reserve(self.size + lanes.stop)
            self._planes[first : first + n_blocks] = planes[:n_blocks]
            self._planes[first + n_blocks - 1, :, (lanes.stop - 1) % LANES + 1 :] = 0
            self.size += lanes.stop
            return
        for start in range(lanes.start, lanes.stop, COPIED):
            stop, block = min(start + COPIED, lanes.stop), start // LANES
            rows = planes[block : -(-stop // LANES)].transpose(0, 2, 1).reshape(-1, self.width)
            self.append(rows[start - block * LANES : stop - block * LANES])

    def replace(self, positions: Positions, codes: Packed) -> None:
        """Replace the codes at these positions."""
        self.reserve(self.size)
        self._planes[positions // LANES, :, positions % LANES] = codes
        self.version += 1
        if self.watched:
            self.changed = np.union1d(self.changed, positions[positions < self.watched])

    def watch(self) -> None:
        """Note from now on which of the first `watched` positions get other codes; at first, of none."""
        self.changed, self.watched = np.zeros(0, dtype=np.int64), 0

    def take(self, positions: Positions) -> Packed:
        """The packed codes at these positions, (m, width)."""
        return np.ascontiguousarray(self._planes[positions // LANES, :, positions % LANES])

    def packed(self) -> Packed:
        """All packed codes, (size, width), a copy."""
        rows = self.planes.transpose(0, 2, 1).reshape(-1, self.width)
        return np.ascontiguousarray(rows[: self.size])

    def reserve(self, size: int) -> None:
        """Make room for `size` codes in all, in memory of ours."""
        needed, used = -(-size // LANES), self.planes
        if needed > len(self._planes) or not self._ours:
            grown = aligned_zeros((max(needed, len(used) * 5 // 4), self.width, LANES))
            grown[: len(used)] = used
            if self.size % LANES:
                grown[len(used) - 1, :, self.size % LANES :] = 0
            self._planes, self._ours = grown, True


def full_planes(packed: Packed) -> Planes:
    """The full blocks of packed codes: (n // 64, width, 64)."""
    full = len(packed) // LANES * LANES
    return packed[:full].reshape(-1, LANES, packed.shape[1]).transpose(0, 2, 1)


def last_planes(packed: Packed) -> Planes:
    """The block of packed codes that is not full, or an empty one: (width, 64)."""
    block = np.zeros((packed.shape[1], LANES), dtype=np.uint8)
    rest = len(packed) % LANES
    block[:, :rest] = packed[len(packed) - rest :].T
    return block


class LaneSet:
    """A set of positions, one bit each: which codes have not been removed."""

    def __init__(self) -> None:
        self.size = self.count = 0
        self._masks: LaneMasks = np.zeros(0, dtype=np.uint64)

    @property
    def masks(self) -> LaneMasks:
        """The words in use, a view."""
        return self._masks[: -(-self.size // LANES)]

    def append(self, n: int) -> None:
        """Put the next n positions into the set."""
        words = -(-(self.size + n) // LANES)
        self._masks = _grown(self._masks, words)
        first, begun = divmod(self.size, LANES)
        old = self._masks[first] if begun else np.uint64(0)
        self._masks[first:words] = all_lanes(self.size + n - first * LANES)
        if begun:  # what has been taken out of the word that was begun stays out
            below = np.uint64((1 << begun) - 1)
            self._masks[first] = (self._masks[first] & ~below) | old
        self.size += n
        self.count += n

    def truncate(self, size: int) -> None:
        """Forget the positions from `size` on."""
        whole, begun = divmod(size, LANES)
        if begun:
            self._masks[whole] &= np.uint64((1 << begun) - 1)
        self._masks[whole + (begun > 0) :] = 0
        self.size, self.count = size, int(np.bitwise_count(self._masks).sum())

    def discard(self, positions: Positions) -> None:
        """Take positions, each of them in the set, out of it."""
        bits = np.left_shift(np.uint64(1), (positions % LANES).astype(np.uint64))
        np.bitwise_and.at(self._masks, positions // LANES, ~bits)
        self.count -= len(positions)

    def take_out(self, positions: Positions) -> Positions:
        """Take those positions out that are in the set; returns them in order."""
        there = np.unique(positions[self.holds(positions)])
        self.discard(there)
        return there

    def holds(self, positions: Positions) -> npt.NDArray[np.bool_]:
        """Which positions are in the set; a negative one is not."""
        there = positions >= 0
        if not self.size:
            return there & False
        places = np.where(there, positions, 0)
        bits = np.right_shift(self._masks[places // LANES], (places % LANES).astype(np.uint64))
        held: npt.NDArray[np.bool_] = there & ((bits & np.uint64(1)) == 1)
        return held


def all_lanes(size: int) -> LaneMasks:
    """Masks that allow every position below `size`."""
    masks = np.full(-(-size // LANES), np.uint64(2**64 - 1), dtype=np.uint64)
    if size % LANES:
        masks[-1] = np.uint64((1 << size % LANES) - 1)
    return masks


def lanes_of(allowed: npt.NDArray[np.bool_]) -> LaneMasks:
    """Masks that allow the positions where `allowed`, (n,), is true."""
    padded = np.zeros(-(-len(allowed) // LANES) * LANES, dtype=np.bool_)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view("<u8").astype(np.uint64)


def as_bools(masks: LaneMasks, size: int) -> npt.NDArray[np.bool_]:
    """One truth value for each of `size` positions, (size,)."""
    bits = np.unpackbits(masks.astype("<u8").view(np.uint8), bitorder="little", count=size)
    return bits.view(np.bool_)


def allowed_positions(masks: LaneMasks) -> Positions:
    """The positions that masks allow, in order."""
    return np.flatnonzero(as_bools(masks, len(masks) * LANES)).astype(np.int64)


def _grown(array: npt.NDArray[Scalar], size: int) -> npt.NDArray[Scalar]:
    """The array if it has room for `size` entries, else a longer copy, with a quarter to spare."""
    if size <= len(array):
        return array
    grown = np.zeros(max(size, len(array) * 5 // 4), dtype=array.dtype)
    grown[: len(array)] = array
    return grown


def nearest_first(
    answers: Sequence[tuple[npt.NDArray[Scalar], Positions]], k: int
) -> tuple[npt.NDArray[Scalar], Positions]:
    """The k first, by (distance, position), of several answers to the same queries, each (q, m).

    Padding comes last, since its distance is the largest of all.
    """
    distances = np.concatenate([each[0] for each in answers], axis=1)
    positions = np.concatenate([each[1] for each in answers], axis=1)
    order = np.lexsort((positions, distances), axis=1)[:, :k]
    return np.take_along_axis(distances, order, axis=1), np.take_along_axis(positions, order, axis=1)


# ---- Ids by position and positions by id, for hundreds of millions of them
#
# Ids that count the positions take no memory, and those that rise with them nothing but themselves. Others
# get a sorted copy, 16 bytes per id, and a dict of those that came since it was made; a dict of all would
# take a hundred bytes each.

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
        table._ids, table._first, table.size, table.next_id = ids, None, len(ids), next_id
        table._rising = table._rise(0, len(ids))
        if not table._rising:
            table._sort()
        return table

    @classmethod
    def numbered(cls, size: int) -> IdTable:
        """The table of ids that are positions: 0 to size - 1."""
        table = cls()
        table.size = table.next_id = size
        return table

    def _clear(self) -> None:
        self.size = self.next_id = 0
        self._first: int | None = 0  # the ids are this and the numbers after it, or None: they are in _ids
        self._ids: Ids = np.zeros(0, dtype=np.int64)
        self._rising = True
        self._sorted: tuple[Ids, Ids] = (self._ids, self._ids)  # ids in order, and their positions
        self._recent: dict[int, int] = {}

    @property
    def ids(self) -> Ids:
        """All ids in the order of their positions; not to be written to."""
        if self._first is not None:
            return np.arange(self._first, self._first + self.size, dtype=np.int64)
        return self._ids[: self.size]

    @property
    def nbytes(self) -> int:
        """The bytes that ids take; those to find them by not counted."""
        return 0 if self._first is not None else self.ids.nbytes

    def at(self, positions: npt.NDArray[np.int64]) -> Ids:
        """The ids at these positions; NO_ID for a position of -1."""
        if self._first == 0:
            return positions  # NO_ID is -1, too
        if not self.size:
            return np.full(positions.shape, NO_ID, dtype=np.int64)
        places = np.maximum(positions, 0)
        ids = self._ids[places] if self._first is None else places + self._first
        found: Ids = np.where(positions >= 0, ids, NO_ID)
        return found

    def find(self, ids: Ids) -> npt.NDArray[np.int64]:
        """The last position of each id, -1 if it never came."""
        if self._first is not None:
            places = ids - self._first
            return np.where((places >= 0) & (places < self.size), places, -1)
        if self._rising:
            return _look_up(ids, self.ids, None)
        found = _look_up(ids, *self._sorted)
        if self._recent:
            recent = [self._recent.get(each, -1) for each in ids.tolist()]
            found = np.maximum(found, np.array(recent, dtype=np.int64))
        return found

    def number_on(self, n: int) -> Ids:
        """The n ids after the largest so far."""
        return numbers_from(self.next_id, n)

    def extend(self, n: int) -> None:
        """Give the next n positions the n ids after the largest so far."""
        if self._first is None or self.next_id != self._first + self.size:
            return self.append(self.number_on(n))
        self.size, self.next_id = self.size + n, self.next_id + n

    def append(self, ids: Ids) -> None:
        """Give the next positions these ids."""
        if not len(ids):
            return
        first, size = self.size, self.size + len(ids)
        if not self._count_on(ids):
            self._ids = _grown(self._ids if self._first is None else self.ids, size)
            self._first = None
            self._ids[first:size] = ids
            rose = self._rising
            self._rising, self.size = rose and self._rise(first, size), size
            if not self._rising and (rose or len(self._recent) + len(ids) > max(FEW, first // 8)):
                self._sort()
            elif not self._rising:
                self._recent.update(zip(ids.tolist(), range(first, size), strict=True))
        self.next_id = max(self.next_id, int(ids.max()) + 1)

    def truncate(self, size: int, next_id: int) -> None:
        """Forget the positions from `size` on, as if they had never come."""
        if self._first is None:
            kept = self._ids[:size].copy()
            self._clear()
            self.append(kept)
        self.size, self.next_id = size, next_id

    def _count_on(self, ids: Ids) -> bool:
        """Take ids in without memory if, after those before, they are just the next numbers."""
        first = int(ids[0]) if not self.size else self._first
        if self._first is None or first is None or ids[0] != first + self.size or (np.diff(ids) != 1).any():
            return False
        self._first, self.size = first, self.size + len(ids)
        return True

    def _sort(self) -> None:
        order = np.argsort(self.ids, kind="stable")
        self._sorted = (self.ids[order], order)
        self._recent = {}

    def _rise(self, first: int, size: int) -> bool:
        new = self._ids[max(first - 1, 0) : size]
        return bool((new[1:] > new[:-1]).all())


def numbers_from(first: int, n: int) -> Ids:
    """The n ids from `first` on."""
    if n and first + n - 1 > MAX_ID:
        raise InvalidInput(f"no ids are left for {n} rows: the largest is {first - 1}. Give their ids.")
    return np.arange(first, first + n, dtype=np.int64)


def runs(ids: Ids) -> Ids:
    """Where ids rise by one, (n, 3): the position of the first, how many, and the first id."""
    starts = np.flatnonzero(np.diff(ids, prepend=-2) != 1)
    return np.stack([starts, np.diff(np.append(starts, len(ids))), ids[starts]], axis=1)


def runs_check(rows: Ids, others: int = 0) -> int:
    """The checksum of rows of three integers, (n, 3), in any order, and others: no flip of a bit keeps it."""
    prime = 2**31 - 1
    return (others + int((rows % prime * (3, 5, 7)).sum())) % prime


class Stretches:
    """Rising ids of positions 0, 1, 2, … in a few runs, as `runs` has them: rows, (n, 3)."""

    def __init__(self, rows: Ids | None = None) -> None:
        self.rows: Ids = np.zeros((0, 3), dtype=np.int64) if rows is None else rows
        self._counts = len(self.rows) <= 1 and not self.rows[:, 2].any()  # ids are positions

    def then(self, rows: Ids) -> Stretches:
        """These up to where others begin, and the others."""
        kept = np.searchsorted(self.rows[:, 0], rows[0, 0]) if len(rows) else len(self.rows)
        return Stretches(np.concatenate([self.rows[:kept], rows]))

    def cover(self, n: int) -> bool:
        """Whether they are rising ids of positions 0 to n - 1, each of them once."""
        firsts, counts, first_ids = self.rows.T
        ends = (int(firsts[0]), int(firsts[-1] + counts[-1])) if len(firsts) else (0, 0)
        whole = np.array_equal(firsts[1:], (firsts + counts)[:-1]) and bool((counts > 0).all())
        rising = (first_ids >= 0).all() and (first_ids[1:] >= (first_ids + counts)[:-1]).all()
        return ends == (0, n) and whole and bool(rising)

    def ids_at(self, positions: Positions) -> Ids:
        """The ids at these positions, which are there."""
        if self._counts:
            return positions
        firsts, _, first_ids = self.rows.T
        ids: Ids = positions + (first_ids - firsts)[np.searchsorted(firsts, positions, side="right") - 1]
        return ids

    def find(self, ids: Ids) -> Positions:
        """The positions of ids, -1 of one that is not there."""
        if self._counts:
            return np.where((ids >= 0) & (ids < self.rows[:, 1].sum()), ids, -1)
        firsts, counts, first_ids = self.rows.T
        place = np.searchsorted(first_ids, ids, side="right") - 1
        within = ids - first_ids[np.maximum(place, 0)]
        return np.where((place >= 0) & (within < counts[place]), firsts[place] + within, -1)


def check_ids(ids: npt.ArrayLike, n: int | None = None, name: str = "ids") -> Ids:
    """Return `ids` as int64, n of them if that is given, or say what is wrong with them."""
    given = as_listed(ids, name)
    if given.ndim != 1 or (n is not None and len(given) != n):
        wanted = f"one integer per code, shape ({n},)" if n is not None else "a list of ids"
        raise InvalidInput(f"{name} must be {wanted}, got shape {given.shape}.")
    if len(given) and given.dtype.kind not in "iu":
        raise InvalidInput(f"{name} must be integers, got {given.dtype}.")
    if len(given) and (int(given.min()) < 0 or int(given.max()) > MAX_ID):
        bad = int(given.min()) if int(given.min()) < 0 else int(given.max())
        raise InvalidInput(f"{name} must lie in 0..2**63-1, got {bad}: -1 stands for missing results.")
    return given.astype(np.int64)


def as_listed(ids: Any, name: str) -> Array:
    """Ids as an array, those of a set in order."""
    try:
        return as_array(sorted(ids) if isinstance(ids, set | frozenset) else ids, name)
    except TypeError as error:
        raise InvalidInput(f"{name} must be integers, but is a set of several types: {error}.") from error


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


# ---- Norms of reconstructions, for asymmetric search

LEVELS = 64
GRID_SAMPLE = 65536  # norms that the grid of levels is made from


class CodeNorms:
    """Squared norms ‖f(z) − b‖² of codes by position, float32, and a level of 64 of each for the bounds.

    Level i holds norms of at least `floors[i]`. Levels are made again when the number of codes has doubled.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.size = 0
        self.largest = 0.0  # |norm|, ever
        self.floors = np.zeros(LEVELS, dtype=np.float32)
        self._norms = np.zeros(0, dtype=np.float32)
        self._levels = np.zeros(0, dtype=np.uint8)
        self._levels_made_at = 0

    @classmethod
    def mapped(cls, decoder: Decoder, size: int, largest: float, arrays: dict[str, Any]) -> CodeNorms:
        """Norms, levels and floors that are there already, and are not added to."""
        made = cls(decoder)
        made.size = made._levels_made_at = size
        made.largest, made.floors = largest, arrays["floors"]
        made._norms, made._levels = arrays["norms"], arrays["levels"].reshape(-1)
        return made

    def __len__(self) -> int:
        return self.size

    @property
    def values(self) -> Float32:
        """All norms, a view: (64 · n_blocks,) float32, zeros past the last code."""
        return self._norms[: -(-self.size // LANES) * LANES]

    @property
    def levels(self) -> npt.NDArray[np.uint8]:
        """The level of each norm, a view: (n_blocks, 64) uint8."""
        return self._levels[: -(-self.size // LANES) * LANES].reshape(-1, LANES)

    def append(self, codes: Packed) -> None:
        """Add the norms of packed codes, (n, width), at the end."""
        size = self.size + len(codes)
        self.reserve(size)
        self.replace(slice(self.size, size), codes)
        self.size = size
        if self.size >= 2 * self._levels_made_at and self.size:
            self._make_levels()

    def reserve(self, size: int) -> None:
        """Make room for `size` norms in all."""
        size = -(-size // LANES) * LANES
        self._norms, self._levels = _grown(self._norms, size), _grown(self._levels, size)

    def replace(self, positions: slice | Positions, codes: Packed) -> None:
        """Replace the norms at these positions by those of packed codes."""
        if not len(codes):
            return
        with np.errstate(over="ignore", invalid="ignore"):
            norms = self.decoder.squared_norms(codes)
        check_squares(norms, 1.0, "reconstructions")
        self.floors[0] = min(self.floors[0], norms.min())
        self.largest = max(self.largest, float(np.abs(norms).max()))
        self._norms[positions], self._levels[positions] = norms, self._level_of(norms)

    def _make_levels(self) -> None:
        """Half of the levels between equal numbers of norms, half at equal distances, for outliers."""
        norms = self._norms[: self.size]
        some = norms[:: -(-self.size // GRID_SAMPLE)]
        equal = np.linspace(norms.min(), norms.max(), LEVELS // 2, endpoint=False)
        shares = np.quantile(some, np.arange(LEVELS // 2) / (LEVELS // 2))
        self.floors = np.sort(np.concatenate([equal, shares]).astype(np.float32))
        self.floors[0] = norms.min()
        self._levels[: self.size] = self._level_of(norms)
        self._levels_made_at = self.size

    def _level_of(self, norms: Float32) -> npt.NDArray[np.uint8]:
        return (np.searchsorted(self.floors, norms, side="right") - 1).astype(np.uint8)


def norms_for(decoder: Decoder | None) -> CodeNorms | None:
    """Norms by position, if a search by this decoder needs them; those of lists are sorted with the codes."""
    return None if decoder is None or isinstance(decoder, ListDecoder) else CodeNorms(decoder)


# ---- All of it together


class At(NamedTuple):
    """Positions to search among, rising, of codes that were there a moment ago, even if removed since."""

    positions: Ids


Among = npt.ArrayLike | At | None

FEW_SHARE = 8  # if a filter leaves fewer than one in that many codes, these are copied and scanned,
COPIED_SCANS = 30  # and for one query, fewer than one in that many: to mark the others takes less then
MANY_REMOVED = 4096
ATTACHED = 2**18  # codes whose norms are computed at a time


class CodeStore:
    """Codes by position, in the order of insertion, and what belongs to them.

    It has no lock: HammingIndex lets one thread change it while nobody searches.
    """

    def __init__(self, n_bits: int, decoder: Decoder | None) -> None:
        self.n_bits, self.decoder = n_bits, decoder
        self.codes, self.ids, self.alive = CodeBlocks(self.n_bits), IdTable(), LaneSet()
        self.norms = norms_for(decoder)

    @classmethod
    def of(cls, codes: CodeBlocks, ids: IdTable, alive: LaneSet) -> CodeStore:
        """A store of parts that are there already; `attach` adds norms."""
        store = cls(codes.n_bits, None)
        store.codes, store.ids, store.alive = codes, ids, alive
        return store

    def __len__(self) -> int:
        return self.alive.count

    @property
    def nbytes(self) -> int:
        """The bytes that codes, ids and norms take, without what is spare."""
        norms = 0 if self.norms is None else self.norms.values.nbytes + self.norms.levels.nbytes
        return self.codes.planes.nbytes + self.alive.masks.nbytes + self.ids.nbytes + norms

    def attach(self, decoder: Decoder) -> None:
        """Compute the norms that asymmetric search with this decoder needs."""
        norms = norms_for(decoder)
        if norms is not None:
            norms.reserve(self.codes.size)
            for start in range(0, self.codes.size, ATTACHED):
                norms.append(self.codes.take(np.arange(start, min(start + ATTACHED, self.codes.size))))
        self.decoder, self.norms = decoder, norms

    def add(self, packed: Packed, ids: Ids | None, upsert: bool) -> None:
        """Append codes under ids, by default the next numbers; `upsert` replaces those that are there."""
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
        with self._all_or_none():
            if self.norms is not None:
                self.norms.append(packed)
            self.codes.append(packed)
            self.ids.append(ids)
            self.alive.append(len(ids))

    def grow(self, planes: Planes, size: int) -> None:
        """Take in the codes that follow the others in `planes`, which are not copied, as in CodeBlocks.remap.

        Their ids continue the numbers.
        """
        first = self.codes.size
        with self._all_or_none():
            self.codes.remap(planes, size)
            if self.norms is not None:
                for start in range(first, size, ATTACHED):
                    self.norms.append(self.codes.take(np.arange(start, min(start + ATTACHED, size))))
            self.ids.extend(size - first)
            self.alive.append(size - first)

    @contextmanager
    def _all_or_none(self) -> Iterator[None]:
        """Whatever fails in the block, no memory left or an interrupt: all parts end where they did."""
        first, next_id = self.codes.size, self.ids.next_id
        try:
            yield
        except BaseException:
            if self.norms is not None:
                self.norms.size = first
            self.codes.size = first  # planes that were mapped again have the same codes up to there
            self.ids.truncate(first, next_id)
            self.alive.truncate(first)
            raise

    def present(self) -> Ids:
        """The positions of codes that have not been removed."""
        if len(self) == self.codes.size:
            return np.arange(self.codes.size, dtype=np.int64)
        return allowed_positions(self.alive.masks)

    def places(self, ids: Ids) -> Ids:
        """The positions of ids, -1 if one is missing or removed."""
        places = self.ids.find(ids)
        return np.where(self.alive.holds(places), places, -1)

    def selection(self, among: Among, n_queries: int = 0) -> tuple[CodeBlocks, LaneMasks, Ids | None]:
        """The codes to search, which of them may be returned, and, if few were copied, their positions.

        n_queries : that would scan copies; 0: none are made.
        """
        if among is None:
            return self.codes, self.alive.masks, None
        if isinstance(among, At):
            return self._chosen(among.positions, n_queries)
        wanted = as_listed(among, "among")
        if wanted.dtype == np.bool_:
            if wanted.shape != (len(self),):
                raise InvalidInput(
                    f"among must have one boolean per code, shape ({len(self)},), got {wanted.shape}; "
                    "or a list of ids."
                )
            chosen = self.present()[wanted]
        else:
            chosen = np.unique(self.places(check_ids(wanted, name="among")))
            chosen = chosen[chosen >= 0]
        return self._chosen(chosen, n_queries)

    def _chosen(self, chosen: Ids, n_queries: int) -> tuple[CodeBlocks, LaneMasks, Ids | None]:
        """The selection of positions, in order."""
        saved = min(self.codes.size // FEW_SHARE, n_queries * self.codes.size // COPIED_SCANS)
        if n_queries and len(chosen) <= saved:
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
            raise InvalidInput(f"id {ids[first]} {place}; nothing was added. Use upsert=True to replace it.")
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
