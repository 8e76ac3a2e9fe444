"""Multi-index hashing (Norouzi, Punjani and Fleet): exact search that reads few codes if some are near.

Codes are cut into substrings, each with a table of the codes by its value. Codes that are near the query
are near it in some substring, so they are found a few flips away from the query's own buckets. A search
that would read too much stops, and is left to a scan: sizes of buckets are known before they are read.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from auxbit.core.checks import Distances, Packed, Positions
from auxbit.core.maps import query_words
from auxbit.core.parallel import Workers, kernel
from auxbit.core.simd import BUCKET_LANES, lowest_bit, near_lanes, popcount, prefetch
from auxbit.errors import InvalidInput
from auxbit.index.codes import LaneMasks

# ---- Tables: codes by the value of each of m substrings
#
# A table holds all codes, in the order of its substring, so that those of a bucket are read side by side.

Words = npt.NDArray[np.unsignedinteger[Any]]
Keys = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int64]

MAX_CODES = 2**32 - 1  # positions take 32 bits
MAX_SUBSTRING = 24  # bits
ALL_COVERED = 1024  # of more bits substrings leave some out, and tables take no more memory than of these
LOOK_COST = 4  # of finding out whether a bucket holds codes, in codes read


class Tables(NamedTuple):
    """Codes by substring: m tables of the same n codes, each in the order of one substring's values."""

    codes: Words  # (m, n_words, n + LANES), zeros past the last code
    positions: npt.NDArray[np.uint32]  # (m, n), in a bucket they rise
    offsets: npt.NDArray[np.uint32]  # bucket b of table t: offsets[first[t] + b] up to the next
    first: Numbers  # (m,)
    cuts: Numbers  # (m + 1,), substring t is bits cuts[t]..cuts[t+1]
    bits: Words  # (m, n_words), the bits of each substring; one more row for those of none, if there are any
    flips: npt.NDArray[np.int32]  # masks of 0, 1, 2… bits, those of equally many bits in rising order
    flips_first: Numbers  # (n_levels,), entry a : where the masks of a bits begin
    n_flips: Numbers  # (m, n_levels), entry t, a : how many masks of a bits, the first, are of substring t


def covered_bits(n_bits: int) -> int:
    """How many bits of a code, the first, are cut into substrings: of long codes as many as memory allows.

    A table holds whole codes. So tables of all bits would take memory that grows with the square of them.
    """
    return min(n_bits, ALL_COVERED**2 // n_bits)


def choose_n_tables(n: int, n_bits: int) -> int:
    """How many substrings suit n codes: of 16 bits from 2**17 to 2**24 codes."""
    log_n, covered = math.log2(max(n, 2)), covered_bits(n_bits)
    length = max(min(max(log_n - 1, 8), 16), log_n - 8)
    return max(1, round(covered / length), -(-covered // MAX_SUBSTRING))


def make_tables(codes: Packed, n_bits: int, m: int, workers: Workers | None = None) -> Tables:
    """The tables of packed codes, (n, width), cut into m substrings."""
    if len(codes) > MAX_CODES:
        raise InvalidInput(f"multi-index hashing takes at most {MAX_CODES} codes, got {len(codes)}.")
    n = len(codes)
    cuts = np.arange(m + 1) * covered_bits(n_bits) // m
    lengths = np.diff(cuts)
    first = np.concatenate([[0], np.cumsum(2**lengths + 1)])
    words = query_words(codes, n_bits)
    flips, n_flips = _flips(lengths, n)
    tables = Tables(
        codes=np.zeros((m, words.shape[1], n + BUCKET_LANES), dtype=words.dtype),
        positions=np.empty((m, n), dtype=np.uint32),
        offsets=np.empty(first[-1], dtype=np.uint32),
        first=first[:-1].copy(),
        cuts=cuts,
        bits=_substring_bits(cuts, n_bits),
        flips=np.concatenate(flips),
        flips_first=np.cumsum([0] + [len(masks) for masks in flips[:-1]]),
        n_flips=n_flips,
    )

    def make(table: slice) -> None:
        t = table.start
        keys = _substring_keys(words, int(cuts[t]), int(lengths[t]))
        keys.sort()
        offsets = tables.offsets[first[t] : first[t + 1]]
        _fill_table(keys, words, tables.codes[t], tables.positions[t], offsets)

    with nullcontext(workers) if workers is not None else Workers(1, blas=False) as threads:
        threads.run(make, m, 1)
    return tables


def _substring_bits(cuts: Numbers, n_bits: int) -> Words:
    """The bits of each substring, and of what lies past the last of them, (m or m + 1, n_words)."""
    bit = np.arange(n_bits)
    starts, stops = (cuts, np.append(cuts[1:], n_bits)) if cuts[-1] < n_bits else (cuts[:-1], cuts[1:])
    within = (bit >= starts[:, None]) & (bit < stops[:, None])
    return query_words(np.packbits(within, axis=1, bitorder="little"), n_bits)


def _flips(lengths: Numbers, n: int) -> tuple[list[npt.NDArray[np.int32]], Numbers]:
    """Masks of 0, 1, 2… bits, in rising order, and how many lie within each substring, (m, n_levels).

    Only while looking that many buckets up costs less than reading all codes.
    """
    longest = int(lengths.max())
    flips = [np.zeros(1, dtype=np.int32)]
    while (a := len(flips)) <= longest and math.comb(longest, a) * LOOK_COST <= n:
        # with bit t at the top, the other a - 1 are below it: the first masks of a - 1 bits
        tops = [flips[-1][: math.comb(t, a - 1)] | np.int32(1 << t) for t in range(a - 1, longest)]
        flips.append(np.concatenate(tops))
    return flips, np.array([[math.comb(int(s), a) for a in range(len(flips))] for s in lengths])


@kernel
def substring(words: Words, first: int, n_bits: int) -> int:
    """Bits first..first+n_bits of a code, (n_words,), as a number."""
    word_bits = words.itemsize * 8
    w, shift = first // word_bits, first % word_bits
    value = np.uint64(words[w]) >> np.uint64(shift)
    if shift + n_bits > word_bits:
        value |= np.uint64(words[w + 1]) << np.uint64(word_bits - shift)
    return int(np.int64(value & np.uint64((1 << n_bits) - 1)))


@kernel
def _substring_keys(words: Words, first: int, n_bits: int) -> Keys:
    """Substring << 32 | position of codes, (n, n_words): what a table is sorted by."""
    keys = np.empty(len(words), np.int64)
    for i in range(len(words)):
        keys[i] = substring(words[i], first, n_bits) << 32 | i
    return keys


@kernel
def _fill_table(keys: Keys, words: Words, codes: Words, positions: Any, offsets: Any) -> None:
    """Write a table of sorted keys: codes, (n_words, n + LANES), positions, (n,), offsets, (2**bits + 1,)."""
    bucket = 0
    for i in range(len(keys)):
        position = keys[i] & 0xFFFFFFFF
        positions[i] = position
        for w in range(words.shape[1]):
            codes[w, i] = words[position, w]
        while bucket <= keys[i] >> 32:
            offsets[bucket] = i
            bucket += 1
    offsets[bucket:] = len(keys)


# ---- Kernels: which buckets to read, which codes in them are near and new
#
# A search grows the radius of each substring's table; radius[t] is what table t has been read to, -1
# before. A code that no table has shown differs from the query in more than radius[t] bits of every
# substring t, so all codes within sum(radius + 1) - 1 have been seen, whatever the bits of no substring.
# Answers are kept as keys, row << 48 | distance << 32 | position, row being that of the query in its block:
# the order of keys is the order of answers.

PROBE_COST = 24  # of a bucket beyond its codes, in codes: a miss of the cache
AHEAD = 8  # buckets between prefetching one and reading it
ROOM = 64  # near codes that are found before they are looked at one by one
TRIAL = 8  # queries of a block after which the rest is given up if few of them were finished
DISTANCE_AT, ROW_AT = 32, 48
NO_KEY = np.iinfo(np.int64).max


@kernel
def _own_buckets(query: Words, cuts: Any, first: Any, offsets: Any, buckets: Any, order: Any) -> None:
    """Find the query's bucket in each table; order the tables by the size of it, smallest first.

    What has to be read further out is then read from the table in which it is likely to be cheap.
    """
    for t in range(len(order)):
        buckets[t] = substring(query, cuts[t], cuts[t + 1] - cuts[t])
        own, i = first[t] + buckets[t], t
        while i > 0:
            other = first[order[i - 1]] + buckets[order[i - 1]]
            if offsets[other + 1] - offsets[other] <= offsets[own + 1] - offsets[own]:
                break
            order[i] = order[i - 1]
            i -= 1
        order[i] = t


@kernel
def _gather(offsets: Any, first: int, bucket: int, flips: Any, probes: Numbers, n_probes: int) -> Any:
    """Add buckets that are flips away and not empty to `probes`, (most, 2); return their number, and cost."""
    n_before, n_codes = n_probes, 0
    for i in range(len(flips)):
        b = first + (bucket ^ np.int64(flips[i]))
        start, stop = int(np.int64(offsets[b])), int(np.int64(offsets[b + 1]))
        probes[n_probes, 0], probes[n_probes, 1] = start, stop
        n_probes += int(stop > start)
        n_codes += stop - start
    return n_probes, n_codes + PROBE_COST * (n_probes - n_before) + LOOK_COST * len(flips)


@kernel
def _near_places(
    codes: Words, positions: Any, query: Words, limit: int, probes: Numbers, probe: int, n_probes: int,
    places: Numbers,
) -> Any:  # fmt: skip
    """Find codes within `limit` of the query in the buckets from `probe` on, while there is room.

    Returns the number of places and the next bucket to read; one that was read in part begins later then.
    """
    n_places, flat = 0, codes.reshape(-1)
    for p in range(probe, n_probes):
        if p + AHEAD < n_probes:
            for w in range(len(query)):
                start = w * codes.shape[1] + probes[p + AHEAD, 0]
                prefetch(flat, start)
                prefetch(flat, start + BUCKET_LANES)
        stop = probes[p, 1]
        for start in range(probes[p, 0], stop, BUCKET_LANES):
            if n_places + BUCKET_LANES > len(places):
                probes[p, 0] = start
                return n_places, p
            near = near_lanes(codes, start, query, limit)
            if start + BUCKET_LANES > stop:
                near &= (1 << (stop - start)) - 1
            while near:
                places[n_places] = start + lowest_bit(near)
                prefetch(positions, places[n_places])
                near &= near - 1
                n_places += 1
    return n_places, n_probes


@kernel
def _new_keys(
    codes: Words, positions: Any, query: Words, bits: Words, radius: Any, allowed: Any, places: Any,
    keys: Keys,
) -> int:  # fmt: skip
    """Write keys of the codes at these places that are allowed and were not shown before; return how many."""
    n_keys = 0
    for i in range(len(places)):
        at, new, distance = places[i], True, 0
        for t in range(len(radius)):
            apart = 0
            for w in range(len(query)):
                apart += int(np.int64(popcount((codes[w, at] ^ query[w]) & bits[t, w])))
            new &= apart > radius[t]
            distance += apart
        position = np.int64(positions[at])
        is_allowed = np.int64((allowed[position >> 6] >> np.uint64(position & 63)) & np.uint64(1))
        keys[n_keys] = distance << DISTANCE_AT | position
        n_keys += int(is_allowed & np.int64(new))  # no branch: which are new is hard to predict
    return n_keys


@kernel
def _kth_smallest(keys: Keys, k: int, high: int) -> int:
    """The k-th smallest of keys, all of them at most `high`, by halving the range that it lies in."""
    low = 0
    while low < high:
        middle, n = (low + high) // 2, 0
        for i in range(len(keys)):
            n += int(keys[i] <= middle)
        if n >= k:
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def _up_to(kept: Keys, n_kept: int, bound: int) -> int:
    """Leave only keys up to `bound` of the first n_kept, NO_KEY after them; return how many."""
    n = 0
    for i in range(n_kept):
        kept[n] = kept[i]
        n += int(kept[i] <= bound)
    kept[n:] = NO_KEY
    return n


@kernel
def _keep(keys: Keys, k: int, kept: Keys, histogram: Numbers, state: Numbers) -> None:
    """Add keys to those kept, (2 min(k, n) + ROOM,), if they may be among the k smallest.

    state : how many are kept; the distance that a key may have; how many were found within it; a bound.
    The distance falls to the k-th smallest found. Keys at it are all kept: those found later may come first.
    """
    n_kept, limit, n_within, bound = state[0], state[1], state[2] + len(keys), state[3]
    if n_kept + len(keys) > len(kept):
        bound = _kth_smallest(kept[:n_kept], k, len(histogram) << DISTANCE_AT)
        n_kept = _up_to(kept, n_kept, bound)
    for i in range(len(keys)):
        kept[n_kept] = keys[i]
        n_kept += int(keys[i] <= bound)
        histogram[keys[i] >> DISTANCE_AT] += 1
    while n_within - histogram[limit] >= k:
        n_within -= histogram[limit]
        limit -= 1
    state[0], state[1], state[2], state[3] = n_kept, limit, n_within, bound


@kernel
def nearest_block(
    tables: Tables, queries: Words, n_bits: int, k: int, farthest: int, allowed: Any, budget: int,
    kept: Keys, finished: Any,
) -> int:  # fmt: skip
    """Fill `kept`, (q, 2 min(k, n) + ROOM), with keys of the k nearest and more; return the most of a row.

    The rest is NO_KEY. Codes beyond the distance `farthest` are not looked for: if there are not k within
    it, all codes are read. finished : (q,), false at first.
    """
    codes, positions, offsets, first, cuts, bits, flips, flips_first, n_flips = tables
    n_tables, n = positions.shape
    probes = np.empty((len(flips) + 1, 2), np.int64)
    places, keys = np.empty((2, ROOM), np.int64)
    buckets, order = np.zeros((2, n_tables), np.int64)
    radius = np.empty(len(bits), np.int64)  # stays -1 for bits of no substring
    histogram, state = np.empty(n_bits + 1, np.int64), np.empty(4, np.int64)
    n_finished = most_kept = 0
    for i in range(len(queries)):
        if i >= TRIAL and 4 * n_finished < i:
            break
        query = queries[i]
        _own_buckets(query, cuts, first, offsets, buckets, order)
        radius[:], histogram[:] = -1, 0
        state[0], state[1], state[2], state[3] = 0, farthest, 0, NO_KEY
        complete, spent = -1, 0
        while not finished[i]:
            # the next step raises the radius of one table to a; all codes within `complete` are known then
            a, t = (complete + 1) // n_tables, order[(complete + 1) % n_tables]
            cost = n
            if a < len(flips_first) and complete < farthest:
                masks = flips[flips_first[a] : flips_first[a] + n_flips[t, a]]
                n_probes, cost = _gather(offsets, first[t], buckets[t], masks, probes, 0)
            spent += min(cost, n)
            if spent > budget:
                break
            if cost >= n:  # then reading all codes, from the beginning, costs no more
                radius[:], histogram[:], probes[0, 0], probes[0, 1], n_probes, t = -1, 0, 0, n, 1, 0
                state[0], state[1], state[2], state[3] = 0, n_bits, 0, NO_KEY
            probe, codes_t, positions_t = 0, codes[t], positions[t]
            while probe < n_probes:
                n_places, probe = _near_places(
                    codes_t, positions_t, query, state[1], probes, probe, n_probes, places
                )
                n_keys = _new_keys(
                    codes_t, positions_t, query, bits, radius, allowed, places[:n_places], keys
                )
                _keep(keys[:n_keys], k, kept[i], histogram, state)
            radius[t] = a
            complete += 1
            finished[i] = cost >= n or (state[2] >= k and state[1] <= complete)
        most_kept = max(most_kept, _up_to(kept[i], state[0], ((state[1] + 1) << DISTANCE_AT) - 1))
        n_finished += finished[i]
    return most_kept


@kernel
def within_block(
    tables: Tables, queries: Words, r: int, allowed: Any, budget: int, counts: Numbers, finished: Any
) -> Keys:
    """Keys of all codes within r of each query, by query; counts, (q,), says how many each has."""
    codes, positions, offsets, first, cuts, bits, flips, flips_first, n_flips = tables
    n_tables, n = positions.shape
    # r + 1 levels in all: equally many for each table, one more for some
    each, more = (r + 1) // n_tables, (r + 1) % n_tables
    listed = each + (more > 0) <= len(flips_first)
    most = n_flips[:, : each + 1].sum() if listed else 1
    listed = listed and LOOK_COST * most <= min(n, budget)
    probes = np.empty((most + 1 if listed else 1, 2), np.int64)
    last = np.empty(n_tables + 1, np.int64)
    places, keys = np.empty((2, ROOM), np.int64)
    buckets, order = np.zeros((2, n_tables), np.int64)
    radius = np.empty(len(bits), np.int64)
    found, n_found = np.empty(ROOM, np.int64), 0
    for i in range(len(queries)):
        query, cost, n_probes = queries[i], 0 if listed else n, 0
        if listed:
            _own_buckets(query, cuts, first, offsets, buckets, order)
            for j in range(n_tables):
                last[j], t = n_probes, order[j]
                for a in range(each + (j < more)):
                    masks = flips[flips_first[a] : flips_first[a] + n_flips[t, a]]
                    n_probes, more_cost = _gather(offsets, first[t], buckets[t], masks, probes, n_probes)
                    cost += more_cost
            last[n_tables] = n_probes
        finished[i] = min(cost, n) <= budget
        if not finished[i]:
            continue
        if cost >= n:
            order[0], probes[0, 0], probes[0, 1], last[0], last[1:] = 0, 0, n, 0, 1
        radius[:], n_before = -1, n_found
        for j in range(n_tables):
            t, probe = order[j], last[j]
            codes_t, positions_t = codes[t], positions[t]
            while probe < last[j + 1]:
                n_places, probe = _near_places(
                    codes_t, positions_t, query, r, probes, probe, last[j + 1], places
                )
                n_keys = _new_keys(
                    codes_t, positions_t, query, bits, radius, allowed, places[:n_places], keys
                )
                if n_found + n_keys > len(found):
                    found = np.concatenate((found, np.empty(len(found), np.int64)))
                for at in range(n_keys):
                    found[n_found + at] = i << ROW_AT | keys[at]
                n_found += n_keys
            radius[t] = each + (j < more) - 1
        counts[i] = n_found - n_before
    return found[:n_found]


# ---- MultiIndex

Finished = npt.NDArray[np.bool_]

PADDING_DISTANCE = np.iinfo(np.int32).max
QUERY_BLOCK = 64
POSITION = MAX_CODES  # the bits of a key that are a position
MAX_KEPT = 2**21  # keys of a block: 16 MB per worker
SCAN_SPEED = 20  # codes that a scan goes over while a search of tables reads one
QUERY_COST = 1500  # of any search, in codes read
KEY_COST = 150  # of an answer beyond what it costs a scan
MIN_BITS, MAX_BITS = 24, 128  # shorter codes are dense, and a scan soon has enough; longer take much memory


class MultiIndex:
    """Tables of codes by substring. Positions are those of the codes that it was built of."""

    def __init__(self, tables: Tables, n_bits: int) -> None:
        self.tables, self.n_bits = tables, n_bits

    @classmethod
    def build(
        cls, codes: Packed, n_bits: int, workers: Workers | None = None, n_tables: int | None = None
    ) -> MultiIndex:
        """Make the tables. codes : (n, width) packed; `n_tables` as many as suit the number of codes."""
        m = n_tables or choose_n_tables(len(codes), n_bits)
        return cls(make_tables(codes, n_bits, m, workers), n_bits)

    def __len__(self) -> int:
        return len(self.tables.positions[0])

    @staticmethod
    def bytes_for(n: int, n_bits: int) -> int:
        """About how much memory tables of n codes take."""
        per_code = 4 if n_bits <= 32 else 8 * -(-n_bits // 64)
        return choose_n_tables(n, n_bits) * (per_code + 4) * n

    def nearest(
        self, queries: Packed, k: int, allowed: LaneMasks, workers: Workers, budget: float | None = None
    ) -> tuple[Distances, Positions, Finished]:
        """The k nearest allowed codes, by (distance, position), to each query whose search is finished.

        queries : (q, width) packed, allowed : (n_blocks,) lane masks → distances (q, k) int32, positions
        (q, k) int64, finished (q,). Rows end in positions of -1 at distance 2**31 - 1 if there are fewer
        than k codes; rows that are not finished hold nothing else. budget : what a search may cost, in codes
        read, or math.inf; by default what a scan costs. A search that would cost more stops; if that
        happens to most queries of a block, the rest of it is not begun.
        """
        limit, capacity = self._limit(budget, k), 2 * min(k, len(self)) + ROOM
        farthest = likely_distance(int(np.bitwise_count(allowed).sum()), self.n_bits, 2 * k)
        words = query_words(queries, self.n_bits)
        distances = np.full((len(queries), k), PADDING_DISTANCE, dtype=np.int32)
        positions = np.full((len(queries), k), -1, dtype=np.int64)
        finished = np.zeros(len(queries), dtype=np.bool_)

        def search(rows: slice) -> None:
            kept: Keys = np.full((rows.stop - rows.start, capacity), NO_KEY, dtype=np.int64)
            most = nearest_block(
                self.tables, words[rows], self.n_bits, k, farthest, allowed, limit, kept, finished[rows]
            )
            kept[~finished[rows]] = NO_KEY
            kept[:, :most].sort(axis=1)
            keys = kept[:, : min(k, most)]
            distances[rows, : keys.shape[1]] = keys >> DISTANCE_AT  # that of NO_KEY is the padding
            positions[rows, : keys.shape[1]] = np.where(keys == NO_KEY, -1, keys & POSITION)

        workers.run(search, len(queries), max(1, min(QUERY_BLOCK, MAX_KEPT // capacity)))
        return distances, positions, finished

    def within(
        self, queries: Packed, r: int, allowed: LaneMasks, workers: Workers, budget: float | None = None
    ) -> tuple[Positions, Distances, Positions, Finished]:
        """All allowed codes within distance r, inclusive, of each query whose search is finished.

        As for `nearest` → lims (q+1,) int64, distances int32, positions int64: the answers to query i are
        those from lims[i] up to lims[i+1]; and finished (q,): those that are not have no answers.
        """
        limit, radius = self._limit(budget), min(r, self.n_bits)
        words = query_words(queries, self.n_bits)
        lims = np.zeros(len(queries) + 1, dtype=np.int64)
        finished = np.zeros(len(queries), dtype=np.bool_)

        def search(rows: slice) -> tuple[Distances, Positions]:
            counts, done = lims[1:][rows], finished[rows]
            keys = within_block(self.tables, words[rows], radius, allowed, limit, counts, done)
            keys.sort()
            return (keys >> DISTANCE_AT & 0xFFFF).astype(np.int32), keys & POSITION

        answers = list(workers.map(search, len(queries), QUERY_BLOCK))
        np.cumsum(lims, out=lims)
        distances = np.concatenate([np.zeros(0, dtype=np.int32)] + [each[0] for each in answers])
        positions = np.concatenate([np.zeros(0, dtype=np.int64)] + [each[1] for each in answers])
        return lims, distances, positions, finished

    def _limit(self, budget: float | None, k: int = 0) -> int:
        asked = scan_budget(len(self), k) if budget is None else budget
        return int(min(asked, 2**62))


def scan_budget(n: int, k: int = 0) -> float:
    """What a scan of n codes costs, in codes that tables' searches read in the same time, less k answers."""
    return max(0.0, n / SCAN_SPEED - KEY_COST * k)


@lru_cache(maxsize=1024)  # called by every search, and the shortest search takes no longer than it
def worthwhile(n: int, n_bits: int, *, k: int = 0, radius: int = -1) -> bool:
    """Whether tables are likely to beat a scan for the k nearest of n codes, or for all within a radius.

    Likely is half of a scan's cost: codes may lie farther apart than learned ones, and tables take memory.
    """
    if not MIN_BITS <= n_bits <= MAX_BITS:
        return False
    if radius < 0:  # neighbours among learned codes are about half as far away as among random ones
        radius = likely_distance(n, n_bits, k) // 2
    length = n_bits / (m := choose_n_tables(n, n_bits))
    levels = [(min(radius, n_bits) + 1 + t) // m for t in range(m)]
    probes = sum(math.comb(math.ceil(length), a) for each in levels for a in range(each))
    return QUERY_COST + probes * (PROBE_COST + LOOK_COST + n / 2**length) <= scan_budget(n, k) / 2


@lru_cache(maxsize=1024)  # of long codes it takes milliseconds
def likely_distance(n: int, n_bits: int, k: int) -> int:
    """The distance of the k-th nearest of n codes that are spread evenly: of others it is rarely larger."""
    distance, within, at_distance, wanted = 0, 1, 1, int(k) << n_bits
    while n * within < wanted and distance < n_bits:
        at_distance = at_distance * (n_bits - distance) // (distance + 1)  # binomials, one from the other
        distance += 1
        within += at_distance
    return distance
