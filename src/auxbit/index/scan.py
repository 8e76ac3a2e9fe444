"""Exact search of codes by a linear scan: the k nearest, and all within a radius.

Queries go over the codes in groups, a tile of codes at a time, so that a tile is fetched once per group. Few
queries share out the codes instead. Answers are ordered by (distance, position), whatever the split.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from auxbit.core.checks import Distances, Packed, Positions
from auxbit.core.parallel import Workers, block_slices, kernel
from auxbit.core.simd import (
    add_planes,
    address,
    fetch_line,
    lanes_within,
    literally,
    lowest_bit,
    popcount,
    store,
    wide_zeros,
    widen_add,
    word_at,
    zeros,
)
from auxbit.errors import InvalidInput
from auxbit.index.codes import LANES, LaneMasks, Planes, nearest_first

# ---- Kernels: which of the 64 codes of a block lie within a distance, 64 bytes per instruction
#
# Distances are counted with one byte per lane; from 256 bits on, which a byte may not hold, with two.

Codes = npt.NDArray[np.uint8]  # the planes of all blocks, flat
QueryWords = npt.NDArray[np.uint32]  # (q, width), each byte of a query four times

TILE_BYTES = 2**15  # codes that stay in the first-level cache while a group of queries is compared to them
TILE_BLOCKS = 2**7  # at most
AHEAD = 6144  # bytes: the machine fetches what follows by itself, but only within a page of 4 KB


@kernel
def _next_of_width(
    width: int, codes: int, masks: int, i: int, stop: int, query: int, most: int, out: int
) -> tuple[int, np.uint64]:
    """`next_hit` with all planes of a block unrolled and the query in registers; `most` is below 255."""
    literally(width)  # numba compiles a copy for each width, so that the loop over planes is unrolled
    while i < stop:
        allowed, at = word_at(masks, i), codes + i * (width * LANES)
        fetch_line(at + AHEAD)
        if allowed:
            counts = add_planes(width, zeros(), at, query)
            hits = lanes_within(counts, most) & allowed
            if hits:
                store(widen_add(wide_zeros(), counts), out)
                return i, hits
        i += 1
    return stop, np.uint64(0)


@kernel
def _next_of_few(
    width: int, codes: int, masks: int, i: int, stop: int, query: int, most: int, out: int
) -> tuple[int, np.uint64]:
    """`next_hit` for fewer than 32 bytes: a distance fits into a byte."""
    while i < stop:
        allowed = word_at(masks, i)
        if allowed:
            at, word, counts = codes + i * (width * LANES), query, zeros()
            for _ in range(width // 4):
                counts = add_planes(4, counts, at, word)
                at, word = at + 4 * LANES, word + 4 * 4
            for _ in range(width % 4):
                counts = add_planes(1, counts, at, word)
                at, word = at + LANES, word + 4
            hits = lanes_within(counts, most) & allowed
            if hits:
                store(widen_add(wide_zeros(), counts), out)
                return i, hits
        i += 1
    return stop, np.uint64(0)


@kernel
def _next_of_many(
    width: int, codes: int, masks: int, i: int, stop: int, query: int, most: int, out: int
) -> tuple[int, np.uint64]:
    """`next_hit` for any number of bytes: after each 32, a block that is already too far is left."""
    while i < stop:
        at, word = codes + i * (width * LANES), query
        wide, left, hits = wide_zeros(), width, word_at(masks, i)
        while left >= 32 and hits:
            wide = widen_add(wide, add_planes(16, zeros(), at, word))
            wide = widen_add(wide, add_planes(16, zeros(), at + 16 * LANES, word + 16 * 4))
            at, word, left = at + 32 * LANES, word + 32 * 4, left - 32
            hits &= lanes_within(wide, most)
        if left and hits:
            counts = zeros()
            for _ in range(left):
                counts = add_planes(1, counts, at, word)
                at, word = at + LANES, word + 4
            wide = widen_add(wide, counts)
            hits &= lanes_within(wide, most)
        if hits:
            store(wide, out)
            return i, hits
        i += 1
    return stop, np.uint64(0)


@kernel
def next_hit(
    width: int, codes: int, masks: int, i: int, stop: int, query: int, most: int, out: int
) -> tuple[int, np.uint64]:
    """The first of blocks i..stop with allowed lanes within `most`, and these lanes; or `stop` and none.

    The others are addresses: of the planes, of the masks of allowed lanes, of the query's words, and of 64
    uint16, which get the distances of the block that is found.
    """
    if width == 4:
        return _next_of_width(4, codes, masks, i, stop, query, most, out)
    if width == 8:
        return _next_of_width(8, codes, masks, i, stop, query, most, out)
    if width == 16:
        return _next_of_width(16, codes, masks, i, stop, query, most, out)
    if width == 32 and most < 255:
        return _next_of_width(32, codes, masks, i, stop, query, most, out)
    if width < 32:
        return _next_of_few(width, codes, masks, i, stop, query, most, out)
    return _next_of_many(width, codes, masks, i, stop, query, most, out)


@kernel
def tile_blocks(width: int) -> int:
    """How many blocks a group of queries is compared to at a time."""
    return max(1, min(TILE_BLOCKS, TILE_BYTES // (width * LANES)))


# ---- Kernels: the k nearest of the codes that a scan finds, or all within a radius
#
# A hit is one number, query << QUERY_AT | distance << DISTANCE_AT | position.

Hits = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int64]

DISTANCE_AT, QUERY_AT = 41, 55  # 2**41 positions; 14 bits for distances of up to 2**13
QUERY_GROUP = 2**8  # queries that go over the codes together; a hit has 8 bits for them


@kernel
def count_lanes(masks: LaneMasks, start: int, stop: int, enough: int) -> int:
    """How many lanes of blocks start..stop are allowed, counted until there are enough."""
    n = 0
    for i in range(start, stop):
        n += int(np.int64(popcount(masks[i])))
        if n >= enough:
            break
    return n


@kernel
def scan_nearest(
    codes: Codes, allowed: LaneMasks, words: QueryWords, start: int, stop: int, n_bits: int, k: int,
    capacity: int, counts: Counts, distances: Distances, positions: Positions,
) -> None:  # fmt: skip
    """Write the k nearest of at least k allowed codes to each query, by (distance, position).

    A candidate is kept if its distance is at most `most`, which falls as soon as k candidates lie within
    it: later codes at that distance lose their ties. When `capacity` are kept, only the best k stay.
    counts : (q,), where `most` begins; comes back as how many were kept, fewer than k if that was too low.
    """
    n_queries, width = words.shape
    codes_at, masks_at, words_at = address(codes), address(allowed), address(words)
    kept = np.empty((n_queries, capacity), dtype=np.int64)
    histogram = np.zeros((n_queries, n_bits + 1), dtype=np.int64)
    states = np.zeros((n_queries, 3), dtype=np.int64)  # kept; kept within `most`, fewer than k; `most`
    for q in range(n_queries):
        states[q, 2] = counts[q]
    block = np.empty(LANES, dtype=np.uint16)
    block_at = address(block)
    tile = tile_blocks(width)
    for first in range(start, stop, tile):
        end = min(stop, first + tile)
        for q in range(n_queries):
            query = words_at + 4 * q * width
            i, n_kept, n_within, most = first, states[q, 0], states[q, 1], states[q, 2]
            while most >= 0:
                i, hits = next_hit(width, codes_at, masks_at, i, end, query, most, block_at)
                if i == end:
                    break
                while hits:
                    lane = lowest_bit(hits)
                    hits &= hits - np.uint64(1)
                    distance = np.int64(block[lane])
                    if distance > most:  # which has fallen since the block was compared
                        continue
                    if n_kept == capacity:
                        n_kept = _keep_best(kept[q], most, k - n_within)
                    kept[q, n_kept] = distance << DISTANCE_AT | (i * LANES + lane)
                    n_kept += 1
                    histogram[q, distance] += 1
                    n_within += 1
                    while n_within >= k:
                        n_within -= histogram[q, most]
                        most -= 1
                i += 1
            states[q, 0], states[q, 1], states[q, 2] = n_kept, n_within, most
    for q in range(n_queries):
        counts[q] = states[q, 0]
        _sort_best(kept[q, : states[q, 0]], n_bits, k, distances[q], positions[q])


@kernel
def _keep_best(kept: Hits, most: int, n_beyond: int) -> int:
    """Keep, in order, the candidates within `most` and the first `n_beyond` one further; say how many."""
    n = 0
    for j in range(len(kept)):
        distance = kept[j] >> DISTANCE_AT
        if distance > most:
            if distance > most + 1 or n_beyond == 0:
                continue
            n_beyond -= 1
        kept[n] = kept[j]
        n += 1
    return n


@kernel
def _sort_best(kept: Hits, n_bits: int, k: int, distances: Any, positions: Any) -> None:
    """Sort by counting, which keeps the order of positions, and write the first k."""
    place = np.zeros(n_bits + 2, dtype=np.int64)
    for j in range(len(kept)):
        place[(kept[j] >> DISTANCE_AT) + 1] += 1
    for d in range(n_bits + 1):
        place[d + 1] += place[d]
    for j in range(len(kept)):
        distance = kept[j] >> DISTANCE_AT
        at = place[distance]
        place[distance] += 1
        if at < k:
            distances[at] = distance
            positions[at] = kept[j] & ((1 << DISTANCE_AT) - 1)


@kernel
def scan_within(
    codes: Codes, allowed: LaneMasks, words: QueryWords, start: int, stop: int, counts: Counts, hits_out: Hits
) -> tuple[int, int]:  # fmt: skip
    """Append the codes within r of each query to `hits_out`, from block `start` on, and count them.

    counts : (q, r+1) int64, by query and distance. Returns the next block to read, `stop` at the end, and
    the number of hits; it ends before a tile whose hits may not fit.
    """
    n_queries, width = words.shape
    codes_at, masks_at, words_at = address(codes), address(allowed), address(words)
    r = counts.shape[1] - 1
    block = np.empty(LANES, dtype=np.uint16)
    block_at = address(block)
    n, tile = 0, tile_blocks(width)
    while start < stop and n + n_queries * tile * LANES <= len(hits_out):
        end = min(stop, start + tile)
        for q in range(n_queries):
            i, query = start, words_at + 4 * q * width
            while True:
                i, hits = next_hit(width, codes_at, masks_at, i, end, query, r, block_at)
                if i == end:
                    break
                while hits:
                    lane = lowest_bit(hits)
                    hits &= hits - np.uint64(1)
                    distance = np.int64(block[lane])
                    position = i * LANES + lane
                    hits_out[n] = q << QUERY_AT | distance << DISTANCE_AT | position
                    n += 1
                    counts[q, distance] += 1
                i += 1
        start = end
    return start, n


@kernel
def place_hits(hits: Hits, starts: Any, distances: Any, positions: Any) -> None:
    """Write hits where they belong. starts : (q, r+1) int64, moved on by each hit."""
    for j in range(len(hits)):
        q = hits[j] >> QUERY_AT
        distance = hits[j] >> DISTANCE_AT & ((1 << QUERY_AT - DISTANCE_AT) - 1)
        at = starts[q, distance]
        starts[q, distance] += 1
        distances[at] = distance
        positions[at] = hits[j] & ((1 << DISTANCE_AT) - 1)


# ---- Searches

PADDING_DISTANCE = np.iinfo(np.int32).max
PADDING_POSITION = -1
MIN_CAPACITY = 2**8  # candidates that are kept for a query before the best are chosen
MAX_CANDIDATES = 2**21  # of a group: 16 MB per worker
FEW_QUERIES = 2**3  # per job; fewer than that share out the codes
SAMPLED_BLOCKS = 32  # from which it is guessed how near the k nearest will be,
WORTH_A_SAMPLE = 48  # for k of at least this
PART_BYTES = 2**20  # codes that are worth a thread
MAX_COUNTS = 2**23  # of answers by query and distance: 64 MB


class _Scan(NamedTuple):
    """What kernels read: flat planes, allowed lanes, (n_blocks,), queries, (q, width), and which blocks."""

    codes: Codes
    allowed: LaneMasks
    words: QueryWords
    start: int
    stop: int

    @classmethod
    def of(cls, planes: Planes, allowed: LaneMasks, queries: Packed) -> _Scan:
        n_blocks, width, _ = planes.shape
        if allowed.shape != (n_blocks,) or queries.shape[1:] != (width,):  # kernels read by address
            raise InvalidInput(
                f"planes of shape {planes.shape} need lanes of shape ({n_blocks},) and queries of shape "
                f"(q, {width}), got {allowed.shape} and {queries.shape}."
            )
        words = queries.astype(np.uint32, order="C") * np.uint32(0x01010101)
        return cls(planes.reshape(-1), np.ascontiguousarray(allowed), words, 0, n_blocks)

    def part(self, rows: slice, blocks: slice) -> _Scan:
        return _Scan(self.codes, self.allowed, self.words[rows], blocks.start, blocks.stop)

    def n_allowed(self, enough: int) -> int:
        """How many codes may be returned, or a number of at least `enough`."""
        return count_lanes(self.allowed, self.start, self.stop, enough)

    def shares(self, n_jobs: int) -> list[slice]:
        """The blocks in as many slices as it takes to keep the jobs busy: one if the queries do."""
        few = len(self.words) < FEW_QUERIES * n_jobs
        n = max(1, min(n_jobs, self.codes.size // PART_BYTES)) if few else 1
        return list(block_slices(self.stop, max(1, -(-self.stop // n)))) or [slice(0, 0)]

    def groups(self, n_shares: int, n_jobs: int, most: int) -> list[slice]:
        """The queries in slices of at most `most`, smaller if that keeps the jobs busy."""
        per_job = len(self.words) if n_shares > 1 else -(-len(self.words) // n_jobs)
        return list(block_slices(len(self.words), max(1, min(most, per_job))))


def nearest(
    planes: Planes, allowed: LaneMasks, queries: Packed, n_bits: int, k: int, workers: Workers
) -> tuple[Distances, Positions]:
    """The k nearest allowed codes to each query, by (distance, position).

    planes : (n_blocks, width, 64), allowed : (n_blocks,), queries : (q, width) packed → distances (q, k)
    int32, positions (q, k) int64. Rows of fewer than k codes end in positions of -1 at distance 2**31 - 1.
    """
    distances = np.full((len(queries), k), PADDING_DISTANCE, dtype=np.int32)
    positions = np.full((len(queries), k), PADDING_POSITION, dtype=np.int64)
    scan = _Scan.of(planes, allowed, queries)
    shares = scan.shares(workers.n_jobs)
    found = min(k, scan.n_allowed(k))
    if not found:
        return distances, positions
    groups = scan.groups(len(shares), workers.n_jobs, max(1, min(QUERY_GROUP, MAX_CANDIDATES // (2 * found))))

    if len(shares) == 1:

        def search(group: slice) -> None:
            rows = groups[group.start]
            _nearest_of(scan.part(rows, shares[0]), n_bits, k, distances[rows], positions[rows])

        workers.run(search, len(groups), 1)
        return distances, positions

    for rows in groups:

        def search_share(share: slice, rows: slice = rows) -> tuple[Distances, Positions]:
            part = scan.part(rows, shares[share.start])
            shape = len(part.words), min(k, part.n_allowed(k))
            answers = np.empty(shape, dtype=np.int32), np.empty(shape, dtype=np.int64)
            _nearest_of(part, n_bits, k, *answers)
            return answers

        answers = list(workers.map(search_share, len(shares), 1))
        distances[rows, :found], positions[rows, :found] = nearest_first(answers, k)
    return distances, positions


def _nearest_of(scan: _Scan, n_bits: int, k: int, distances: Distances, positions: Positions) -> None:
    """Write the answers to all queries of `scan`, as many as there are, up to k."""
    capacity = max(2 * k, MIN_CAPACITY)
    n_allowed = scan.n_allowed(capacity)  # a capacity for all codes is never used up
    found, capacity = min(k, n_allowed), min(capacity, n_allowed)
    counts = _likely_limits(scan, n_bits, found)
    scan_nearest(*scan, n_bits, found, capacity, counts, distances, positions)
    short = np.flatnonzero(counts < found)  # the sample was nearer than the rest: once more, without it
    if len(short):
        again = np.empty((len(short), found), np.int32), np.empty((len(short), found), np.int64)
        part = scan._replace(words=scan.words[short])
        scan_nearest(*part, n_bits, found, capacity, np.full(len(short), n_bits), *again)
        distances[short, :found], positions[short, :found] = again


def _likely_limits(scan: _Scan, n_bits: int, k: int) -> Counts:
    """Distances, (q,), within which k codes are likely to lie, so that fewer come to be looked at.

    Without them some k·log(n/k) codes are kept for a while. They come from a few blocks in the middle.
    """
    anything = np.full(len(scan.words), n_bits, dtype=np.int64)
    n_blocks = scan.stop - scan.start
    enough = int(2 * k * SAMPLED_BLOCKS / max(n_blocks, 1)) + 5
    if k < WORTH_A_SAMPLE or enough > SAMPLED_BLOCKS * LANES // 16:
        return anything
    first = scan.start + (n_blocks - SAMPLED_BLOCKS) // 2
    sample = scan._replace(start=first, stop=first + SAMPLED_BLOCKS)
    n_sampled = sample.n_allowed(SAMPLED_BLOCKS * LANES)
    if n_sampled < enough:
        return anything
    shape = len(scan.words), enough
    distances, positions = np.empty(shape, dtype=np.int32), np.empty(shape, dtype=np.int64)
    capacity = min(max(2 * enough, MIN_CAPACITY), n_sampled)
    scan_nearest(*sample, n_bits, enough, capacity, anything, distances, positions)
    return distances[:, -1].astype(np.int64)


def within(
    planes: Planes, allowed: LaneMasks, queries: Packed, n_bits: int, r: int, workers: Workers
) -> tuple[npt.NDArray[np.int64], Distances, Positions]:
    """All allowed codes within distance r, inclusive, of each query, by (distance, position).

    As for `nearest` → lims (q+1,) int64, distances int32, positions int64, FAISS's layout: the answers to
    query i are those from lims[i] up to lims[i+1].
    """
    scan, radius = _Scan.of(planes, allowed, queries), min(r, n_bits)
    batches = list(block_slices(len(queries), max(QUERY_GROUP, MAX_COUNTS // (radius + 1)))) or [slice(0, 0)]
    answers = [_within_of(scan.part(rows, slice(0, scan.stop)), radius, workers) for rows in batches]
    lims = np.zeros(len(queries) + 1, dtype=np.int64)
    np.cumsum(np.concatenate([counts for counts, _, _ in answers]), out=lims[1:])
    if len(answers) == 1:
        return lims, *answers[0][1:]
    return lims, np.concatenate([each[1] for each in answers]), np.concatenate([each[2] for each in answers])


def _within_of(scan: _Scan, r: int, workers: Workers) -> tuple[Counts, Distances, Positions]:
    """The number of answers to each query, (q,), and the answers one after the other."""
    shares = scan.shares(workers.n_jobs)
    groups = scan.groups(len(shares), workers.n_jobs, QUERY_GROUP)
    units = [(share, rows) for rows in groups for share in range(len(shares))]
    counts = np.zeros((len(shares), len(scan.words), r + 1), dtype=np.int64)

    def collect(unit: slice) -> list[Hits]:
        share, rows = units[unit.start]
        return _hits_within(scan.part(rows, shares[share]), counts[share, rows])

    hits = list(workers.map(collect, len(units), 1))
    # answers are ordered by query, distance and share: where the first of each goes
    in_order = counts.transpose(1, 2, 0)
    ends = np.cumsum(in_order)
    starts = np.ascontiguousarray((ends.reshape(in_order.shape) - in_order).transpose(2, 0, 1))
    n_answers = int(ends[-1]) if len(ends) else 0
    distances, positions = np.empty(n_answers, dtype=np.int32), np.empty(n_answers, dtype=np.int64)

    def place(unit: slice) -> None:
        share, rows = units[unit.start]
        for each in hits[unit.start]:
            place_hits(each, starts[share, rows], distances, positions)

    workers.run(place, len(units), 1)
    return counts.sum(axis=(0, 2)), distances, positions


def _hits_within(scan: _Scan, counts: Counts) -> list[Hits]:
    """The hits of all queries, in the order of positions; adds up `counts`, (q, r+1)."""
    per_tile = len(scan.words) * tile_blocks(scan.words.shape[1]) * LANES
    buffer = np.empty(per_tile + 2**15, dtype=np.int64)
    hits, start = [], scan.start
    while start < scan.stop:
        start, n_hits = scan_within(*scan._replace(start=start), counts, buffer)
        hits.append(buffer[:n_hits].copy())
    return hits
