"""Search of lists: codes sorted by the list that they are in, of which the ones near a query are scanned.

With a decoder that has lists (core/decoders.py), a code's list is in its first bytes. The distance that
orders codes is ((norm + T[0, byte 0]) + T[1, byte 1] + …) + the list's offset, in float32; equal ones are
ordered by position. Hash codes are divided by the distance of their bits to centroids, which are found on
the codes themselves.

Slots count the codes of a segment, which are sorted. Codes that came since are a segment of their own, as in
a log of merged runs: a segment is merged with the one before it when it has an eighth of its codes.
"""

from __future__ import annotations

import json
import math
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.core.checks import (
    Array,
    Bytes,
    Float32,
    Float64,
    Packed,
    PathLike,
    Positions,
    Words,
    check_mapped,
    check_squares,
)
from auxbit.core.decoders import LEARNED_KS, Coverage, ListDecoder, TableDecoder
from auxbit.core.files import check_layout, replacing
from auxbit.core.maps import VALUES, unpack
from auxbit.core.parallel import Workers, block_slices, kernel
from auxbit.core.simd import (
    TILE,
    address,
    byte_at,
    extremes,
    fetch_line,
    float_at,
    index_bits,
    lowest_bit,
    place_at,
    put_float,
    put_place,
    smaller,
    squared_apart,
    word_at,
)
from auxbit.errors import Damaged, InvalidInput
from auxbit.index.asymmetric import (
    LOOSE,
    NARROW_LIMIT,
    ROUNDING,
    WIDE_LIMIT,
    WIDE_TABLES,
    bounds_of,
    in_order,
    limit_of,
    n_tables,
    next_tile,
    offer,
    round_tables,
    smallest_sum,
    split_codes,
    widest_entry,
)
from auxbit.index.codes import (
    LANES,
    LEVELS,
    CodeBlocks,
    CodeNorms,
    LaneMasks,
    LaneSet,
    aligned_zeros,
    as_bools,
    lanes_of,
    nearest_first,
)
from auxbit.index.scan import next_hit
from auxbit.quantiser.lists import (
    ASKED,
    ASKED_SHARE,
    ROWS_PER_LIST,
    Centroids,
    find_centroids,
    number_of_lists,
    ranks_of,
)

# ---- Kernels: the lists nearest to queries, and the nearest codes of these lists

EVERY = np.uint64(2**64 - 1)
RANKED_AT_ONCE = 16  # numbers that are compared with another at once; ∞ fills up the last of them


@kernel
def nearest_lists(costs: Float32, lists: Positions) -> None:
    """The lists with the least costs, (q, K), in order, of equals the first, into (q, probes) each.

    Twice as many groups of lists as are wanted: what so many groups have lists below is a limit for all.
    """
    n_lists, probes = costs.shape[1], lists.shape[1]
    n_groups = min(n_lists, 2 * probes)
    least = np.full(n_groups + RANKED_AT_ONCE, np.inf, dtype=np.float32)
    near, numbers = np.empty(n_lists + RANKED_AT_ONCE, np.float32), np.empty(n_lists + 1, np.int64)
    for q in range(len(costs)):
        row, own, count = costs[q], lists[q], 0
        least[:n_groups] = row[:n_groups]
        for first in range(n_groups, n_lists - n_groups + 1, n_groups):
            for i in range(n_groups):
                least[i] = min(least[i], row[first + i])
        limit = np.float32(np.inf)
        for i in range(n_groups):
            if smaller(address(least), n_groups, least[i]) >= probes - 1:  # as many, and itself
                limit = min(limit, least[i])
        for number in range(n_lists):  # no branches: which of them are near cannot be foreseen
            near[count], numbers[count] = row[number], number
            count += row[number] <= limit
        near[count : count + RANKED_AT_ONCE] = np.inf
        own[:] = -1
        for i in range(count):
            place = smaller(address(near), count, near[i])
            while place < probes and own[place] >= 0:  # by one that is as near, and comes before it
                place += 1
            if place < probes:
                own[place] = numbers[i]


@kernel
def all_in_order(counts: Positions, distances: Float32, positions: Positions) -> None:
    """Turn the heaps into lists, nearest first."""
    for q in range(len(counts)):
        in_order(distances[q], positions[q], counts[q])


@kernel
def exact_offsets(rows: Float64, centres: Float32, lists: Positions, out: Float32, sizes: Float64) -> None:
    """‖x − c‖² of rows, (q, D), and the centres of some lists each, (q, probes), in float64.

    sizes : (3, q), gets ‖x‖, and the least and the largest of a row of `out`.
    """
    n_dims, nothing = rows.shape[1], np.zeros(rows.shape[1], dtype=np.float32)
    for q in range(len(rows)):
        x, least, most = address(rows) + 8 * q * n_dims, np.float32(np.inf), np.float32(0)
        for i in range(lists.shape[1]):
            out[q, i] = squared_apart(x, address(centres) + 4 * lists[q, i] * n_dims, n_dims, 1.0)
            least, most = min(least, out[q, i]), max(most, out[q, i])
        sizes[0, q] = np.sqrt(squared_apart(x, address(nothing), n_dims, 1.0))
        sizes[1, q], sizes[2, q] = least, most


@kernel
def edge_mask(block: int, start: int, stop: int) -> Any:
    """The lanes of a block that are slots start..stop."""
    mask = EVERY
    if block == start // LANES:
        mask &= EVERY << np.uint64(start % LANES)
    if block == (stop - 1) // LANES:
        mask &= EVERY >> np.uint64(LANES - 1 - (stop - 1) % LANES)
    return mask


# Codes that may be among the k nearest of a query are kept as they come, and counted by how far away they
# are: in PLACES of equal width, between the nearest and the farthest of the first ones. As soon as k codes
# lie in the first places, those beyond are no longer kept. Only in the end, or when there is no room left,
# are they compared with each other. What bounds let pass is collected before distances are computed: their
# norms are fetched meanwhile.

PLACES = 1024
EXACT_CODES = 128  # whose distances are computed before there is a limit, or k of them, if that is more
ROOM = 2048  # for codes that come after them
FETCHED = 2**14  # bytes of a list that are fetched while the list before it is searched
CHUNK_BLOCKS = 16  # whose codes are compared with one limit
SORTED_BY_RANK = 1024  # codes that are sorted by counting the nearer ones; if there are more, by a heap

LOW, SCALE, BASE, WIDEST, UNITS, RANGE = range(6)  # numbers of a query: of its places, and of its bounds
COUNT, MOST, WITHIN = range(3)  # how many are kept; the last place for them, −1: there is none; those within


@kernel
def scan_lists(
    planes: Bytes, plane_words: Words, allowed: Words, norms: Float32, level_words: Words, floors: Float32,
    order: Any, starts: Positions, tables: Float32, slack: Float64, least: Float64, bits: int, wide: bool,
    pair_lists: Positions, pair_queries: Positions, pair_offsets: Float32, index: Words, rounded: Bytes,
    lowest: Float64, numbers: Float64, states: Positions, places: Positions, near: Float32, where: Positions,
    counts: Positions, distances: Float32, positions: Positions,
) -> None:  # fmt: skip
    """Offer the codes of lists to the k nearest of queries, pair by pair.

    planes to floors as in asymmetric.scan_blocks, by slots; order : the position of each slot;
    starts : (K+1,) slots; slack, least : (q,), the least offset of a query's lists; bits : 0 for no bounds;
    index : (CHUNK_BLOCKS and a tile, 1 + tables, 8), or of no blocks if bytes of planes are looked up.
    rounded to where : for use in here, a row for each query; or one row, if a query's pairs come together.
    counts, distances, positions : the nearest of each query so far, in order, (q, k).
    """
    shared, hits = len(near) == len(tables), np.empty(CHUNK_BLOCKS * LANES, dtype=np.int64)
    buffer, masks = np.empty(len(hits), dtype=np.float32), np.empty(TILE, dtype=np.uint64)
    width, k, n = planes.shape[1], distances.shape[1], index.shape[1] - 1
    planes_at, levels_at, norms_at, allowed_at = (
        address(planes), address(level_words), address(norms), address(allowed)
    )  # fmt: skip
    hits_at, buffer_at, masks_at = address(hits), address(buffer), address(masks)
    now = -1  # the query whose codes are kept, if rows are not shared
    for q in range(len(tables) if shared else 0):
        begin(counts[q], distances[q], positions[q], numbers[q], states[q], places[q], near[q], where[q])
    for pair in range(len(pair_lists)):
        q, offset, number = pair_queries[pair], pair_offsets[pair], pair_lists[pair]
        if shared or q != now:  # rows are taken as seldom as can be: each costs a count of references
            s = q if shared else 0
            own, state, placed, kept, slots = numbers[s], states[s], places[s], near[s], where[s]
            table, nearest, found, lows, entries = (
                tables[q], distances[q], positions[q], lowest[s], rounded[s]
            )  # fmt: skip
            if not shared:
                if now >= 0:
                    counts[now] = finish(order, own, state, kept, slots, distances[now], positions[now])
                begin(counts[q], nearest, found, own, state, placed, kept, slots)
                if bits:  # which also brings the table near, line after line
                    own[BASE], own[WIDEST] = smallest_sum(table, floors, bits, lows)
            now = q
        if pair + 1 < len(pair_lists):
            following = pair_lists[pair + 1]
            fetch_list(planes_at, levels_at, width * LANES, starts[following], starts[following + 1])
        start, stop = starts[number], starts[number + 1]
        block, end = start // LANES, -(-stop // LANES) if stop > start else start // LANES
        while block < end:
            if not bits or state[MOST] < 0:
                mask = word_at(allowed_at, block) & edge_mask(block, start, stop)
                n_hits, next_block = lanes_of_mask(mask, block, hits_at, 0), block + 1
            else:
                if shared and own[RANGE] == np.inf:
                    own[BASE], own[WIDEST] = smallest_sum(table, floors, bits, lows)
                left = edge(own[LOW], own[SCALE], state[MOST]) + slack[q] - own[BASE]
                # tables are rounded for the query's nearest list, in which sums may be the largest
                if 0 < left - least[q] < LOOSE * own[RANGE]:
                    own[RANGE] = left - least[q]
                    own[UNITS] = units_of(own[RANGE], own[WIDEST], len(lows), wide)
                    round_tables(table, floors, bits, wide, lows, own[UNITS], entries)
                limit = limit_of(left - offset, own[UNITS], WIDE_LIMIT if wide else NARROW_LIMIT)
                if limit < 0:
                    break
                next_block = min(block + CHUNK_BLOCKS, end)
                codes_at, step, looked_up, levels_step, whole = (
                    planes_at, width * LANES, levels_at, LANES, len(planes)
                )  # fmt: skip
                if len(index):
                    split_codes(plane_words, level_words, bits, block, next_block, index)
                    step = levels_step = (1 + n) * LANES
                    looked_up, whole = address(index) - block * step, next_block + TILE
                    codes_at = looked_up + LANES
                n_hits = pass_bounds(
                    codes_at, step, looked_up, levels_step, whole, allowed_at, norms_at, bits, wide, n, start,
                    stop, block, next_block, address(entries), limit, masks_at, hits_at,
                )  # fmt: skip
            block = next_block
            if not n_hits:
                continue
            if state[COUNT] + n_hits > len(kept):
                make_room(order, own, state, placed, kept, slots, nearest, found)
            code_distances(planes_at, width, norms_at, address(table), offset, hits_at, n_hits, buffer_at)
            if state[MOST] >= 0:
                state[COUNT], state[MOST], state[WITHIN] = keep(
                    buffer_at, hits_at, n_hits, own[LOW], own[SCALE], k, state[COUNT], state[MOST],
                    state[WITHIN], address(placed), address(kept), address(slots),
                )  # fmt: skip
                continue
            for i in range(n_hits):
                kept[state[COUNT] + i], slots[state[COUNT] + i] = buffer[i], -1 - hits[i]
            state[COUNT] += n_hits
            if state[COUNT] >= max(k, EXACT_CODES):
                count_places(k, kept, own, state, placed)
    for q in range(len(tables)):
        if shared or q == now:
            s = q if shared else 0
            counts[q] = finish(order, numbers[s], states[s], near[s], where[s], distances[q], positions[q])


# What is called for each list or chunk of codes takes addresses: numba counts references to arrays.


@kernel
def fetch_list(planes: int, levels: int, size: int, start: int, stop: int) -> None:
    """Have the codes of a list brought near, as far as FETCHED: where it begins cannot be foreseen."""
    first, last = start // LANES, -(-stop // LANES)
    for at in range(first * size, min(last * size, first * size + FETCHED), LANES):
        fetch_line(planes + at)
    for block in range(first, min(last, first + FETCHED // size)):
        fetch_line(levels + block * LANES)


@kernel
def lanes_of_mask(mask: Any, block: int, hits: int, n: int) -> int:
    """Write the slots of a mask of a block, from hit n on; return how many hits there are then."""
    while mask:
        put_place(hits, n, block * LANES + lowest_bit(mask))
        n += 1
        mask &= mask - np.uint64(1)
    return n


@kernel
def units_of(left: float, widest: float, n: int, wide: bool) -> float:
    """In which tables are rounded, of the range that sums are compared in, and the largest of a table."""
    if wide and widest > 0:
        return min(WIDE_LIMIT / left, widest_entry(n) / min(left, widest))
    return (WIDE_LIMIT if wide else NARROW_LIMIT) / left


@kernel
def pass_bounds(
    codes: int, step: int, levels: int, levels_step: int, n_blocks: int, allowed: int, norms: int, bits: int,
    wide: bool, n: int, start: int, stop: int, first: int, last: int, entries: int, limit: int, masks: int,
    hits: int,
) -> int:  # fmt: skip
    """Write the slots start..stop of blocks first..last whose bounds are within the limit; how many?

    codes, levels : what is looked up of n_blocks blocks, which follow each other in steps of bytes.
    """
    block, n_hits = first, 0
    while block < last:
        tiles, passed, known = min(-(-(last - block) // TILE), (n_blocks - block) // TILE), 0, True
        if tiles:
            passed = next_tile(
                bits, wide, levels + block * levels_step, levels_step, codes + block * step, step, tiles, n,
                entries, limit, masks,
            )  # fmt: skip
            block += TILE * passed
            if passed == tiles:
                continue
        else:  # a tile would reach beyond the last block
            known = False
        for u in range(min(TILE, last - block)):
            mask = word_at(masks, u) if known else EVERY
            if mask:
                mask &= word_at(allowed, block + u) & edge_mask(block + u, start, stop)
                for line in range(0, LANES if mask else 0, LANES // 4):
                    fetch_line(norms + 4 * ((block + u) * LANES + line))
                n_hits = lanes_of_mask(mask, block + u, hits, n_hits)
        block += TILE
    return n_hits


@kernel
def code_distances(
    planes: int, width: int, norms: int, table: int, offset: Any, slots: int, n: int, out: int
) -> None:
    """asymmetric.code_distance of n slots, and the offset of their list."""
    for i in range(n):
        slot = place_at(slots, i)
        total, at = float_at(norms, slot), planes + slot // LANES * width * LANES + slot % LANES
        for j in range(width):
            total += float_at(table, j * VALUES + byte_at(at, j * LANES))
        put_float(out, i, total + offset)


@kernel
def begin(
    count: int, distances: Float32, positions: Positions, numbers: Float64, state: Positions,
    places: Positions, near: Float32, where: Positions,
) -> None:  # fmt: skip
    """Keep what was found before."""
    near[:count], where[:count] = distances[:count], positions[:count]
    state[COUNT], state[MOST], numbers[RANGE] = count, -1, np.inf
    if count == len(distances):
        count_places(count, near, numbers, state, places)


@kernel
def count_places(k: int, near: Float32, numbers: Float64, state: Positions, places: Positions) -> None:
    """Count the codes that are kept, at least k, by their places."""
    low, high, count = near[0], near[0], state[COUNT]
    if count >= 16:
        low, high = extremes(address(near), count)
    for i in range(count if count < 16 else 0):
        low, high = min(low, near[i]), max(high, near[i])
    apart = max(np.float64(high) - np.float64(low), 1e-6 * max(abs(low), abs(high)), 1e-30)
    numbers[LOW], numbers[SCALE] = low, (PLACES - 1) / apart
    places[:] = 0
    for i in range(count):
        places[int(place_of(near[i], numbers[LOW], numbers[SCALE]))] += 1
    state[MOST], state[WITHIN] = -1, 0
    while state[WITHIN] < k:
        state[MOST] += 1
        state[WITHIN] += places[state[MOST]]


@kernel
def place_of(distance: Any, low: float, scale: float) -> float:
    """The place, rounded down, of a distance; it may be beyond the last."""
    return float(max((np.float64(distance) - low) * scale, 0.0))


@kernel
def edge(low: float, scale: float, most: int) -> float:
    """A distance that no code which is still to be kept exceeds, up to what a slack covers."""
    return float(low + (most + 1) / scale * (1 + 1e-9))


@kernel
def keep(
    buffer: int, hits: int, n_hits: int, low: float, scale: float, k: int, count: int, most: int, within: int,
    places: int, near: int, where: int,
) -> tuple[int, int, int]:  # fmt: skip
    """Keep those of some slots, by their distances in the buffer, whose codes may be among the nearest.

    Returns count, most and within as they are then.
    """
    first, beyond = count, float(most + 1)
    for i in range(n_hits):  # no branches: which of them are near cannot be foreseen
        distance = float_at(buffer, i)
        put_float(near, count, distance)
        put_place(where, count, -1 - place_at(hits, i))
        count += place_of(distance, low, scale) < beyond
    for i in range(first, count):
        place = int(place_of(float_at(near, i), low, scale))
        put_place(places, place, place_at(places, place) + 1)
    within += count - first
    while within - place_at(places, most) >= k:
        within -= place_at(places, most)
        most -= 1
    return count, most, within


@kernel
def still_kept(order: Any, numbers: Float64, state: Positions, near: Float32, where: Positions) -> int:
    """Forget the codes beyond the last place; return how many are left, now with positions for slots."""
    count, beyond = state[COUNT], state[MOST] + 1
    if beyond > 0:
        count, low, scale = 0, numbers[LOW], numbers[SCALE]
        for i in range(state[COUNT]):
            near[count], where[count] = near[i], where[i]
            count += place_of(near[i], low, scale) < beyond
    for i in range(count):
        if where[i] < 0:
            where[i] = order[-1 - where[i]]
    return int(count)


@kernel
def make_room(
    order: Any, numbers: Float64, state: Positions, places: Positions, near: Float32, where: Positions,
    distances: Float32, positions: Positions,
) -> None:  # fmt: skip
    """Forget codes that are not among the nearest, and count the others again if many are as far away."""
    state[COUNT] = still_kept(order, numbers, state, near, where)
    if state[COUNT] + CHUNK_BLOCKS * LANES <= len(near):
        return
    count = 0
    for i in range(state[COUNT]):
        count = offer(distances, positions, count, near[i], where[i])
    near[:count], where[:count] = distances[:count], positions[:count]
    state[COUNT] = count
    count_places(count, near, numbers, state, places)


@kernel
def finish(
    order: Any, numbers: Float64, state: Positions, near: Float32, where: Positions, distances: Float32,
    positions: Positions,
) -> int:  # fmt: skip
    """The nearest of what is kept, in order, ∞ and −1 for none; return how many there are."""
    count, k = still_kept(order, numbers, state, near, where), len(distances)
    if count > SORTED_BY_RANK:
        held = 0
        for i in range(count):
            held = offer(distances, positions, held, near[i], where[i])
        in_order(distances, positions, held)
        return held
    kept = near[:count]
    for i in range(count):
        nearer, equal = 0, 0
        for j in range(count):
            nearer += kept[j] < kept[i]
            equal += kept[j] == kept[i]
        for j in range(count if equal > 1 else 0):
            nearer += kept[j] == kept[i] and where[j] < where[i]
        if nearer < k:
            distances[nearer], positions[nearer] = kept[i], where[i]
    for rest in range(count, k):
        distances[rest], positions[rest] = np.inf, -1
    return min(count, k)


@kernel
def scan_hash_lists(
    codes: Bytes, allowed: Words, order: Any, starts: Positions, words: Any, lists: Positions, n_bits: int,
    counts: Positions, distances: Float32, positions: Positions,
) -> None:  # fmt: skip
    """Offer hash codes of lists, (q, probes), to the k nearest of each query by Hamming distance.

    codes : flat planes; words : (q, width) as in index/scan.py.
    """
    width, k = words.shape[1], distances.shape[1]
    codes_at, words_at = address(codes), address(words)
    block = np.empty(LANES, dtype=np.uint16)
    for q in range(len(words)):
        nearest, where, count, query = distances[q], positions[q], counts[q], words_at + 4 * q * width
        for number in lists[q]:
            start, stop = starts[number], starts[number + 1]
            first, last = start // LANES, -(-stop // LANES)
            if start == stop:
                continue
            masks = _list_masks(allowed, start, stop)
            masks_at, i = address(masks) - 8 * first, first
            while i < last:
                most = n_bits if count < k else int(nearest[0])
                i, hits = next_hit(width, codes_at, masks_at, i, last, query, most, address(block))
                while hits:
                    lane = lowest_bit(hits)
                    hits &= hits - np.uint64(1)
                    distance = np.float32(block[lane])
                    if count < k or distance <= nearest[0]:
                        count = offer(nearest, where, count, distance, int(order[i * LANES + lane]))
                i += 1
        counts[q] = count


@kernel
def _list_masks(allowed: Words, start: int, stop: int) -> Words:
    first, last = start // LANES, -(-stop // LANES)
    masks = allowed[first:last].copy()
    masks[0] &= edge_mask(first, start, stop)
    masks[-1] &= edge_mask(last - 1, start, stop)
    return masks


@kernel
def within_hash_lists(
    codes: Bytes, allowed: Words, order: Any, starts: Positions, words: Any, lists: Positions, r: int,
    counts: Positions, distances: Any, positions: Positions, fill: bool,
) -> None:  # fmt: skip
    """Count the hash codes of lists within r of each query; or write them, from counts[q] on."""
    width = words.shape[1]
    codes_at, words_at = address(codes), address(words)
    block = np.empty(LANES, dtype=np.uint16)
    for q in range(len(words)):
        query, at = words_at + 4 * q * width, counts[q]
        for number in lists[q]:
            start, stop = starts[number], starts[number + 1]
            first, last = start // LANES, -(-stop // LANES)
            if start == stop:
                continue
            masks = _list_masks(allowed, start, stop)
            masks_at, i = address(masks) - 8 * first, first
            while i < last:
                i, hits = next_hit(width, codes_at, masks_at, i, last, query, r, address(block))
                while hits:
                    lane = lowest_bit(hits)
                    hits &= hits - np.uint64(1)
                    if fill:
                        distances[at], positions[at] = block[lane], order[i * LANES + lane]
                    at += 1
                i += 1
        counts[q] = at


# ---- Sorted codes

SORTED = 2**18  # codes whose norms are computed at a time


class SortedCodes:
    """Some codes of an index, sorted by list, by position within a list.

    starts : (K+1,) the first slot of each list; order : the position of each slot; norms : None for hash
    codes.
    """

    def __init__(
        self, numbers: Positions, codes: Packed, positions: Positions, n_lists: int, n_bits: int,
        decoder: ListDecoder | None,
    ) -> None:  # fmt: skip
        """Of the list of each code, (n,), whole codes, (n, width), and their positions, which rise."""
        small = numbers.astype(np.uint16) if n_lists <= 2**16 else numbers  # which numpy sorts by digits
        by_list = np.argsort(small, kind="stable")
        self.order = positions[by_list].astype(
            np.uint32 if len(positions) == 0 or positions[-1] < 2**32 else np.int64
        )
        self.starts = np.zeros(n_lists + 1, dtype=np.int64)
        np.cumsum(np.bincount(numbers, minlength=n_lists), out=self.starts[1:])
        own = slice(None)  # of a code's bytes, what a scan reads
        if decoder is not None:
            own = slice(decoder.number_bytes, decoder.number_bytes + decoder.inner_bytes)
            n_bits = decoder.inner.n_bits
        self.blocks, self.norms = CodeBlocks(n_bits), None
        self.blocks.reserve(len(codes))
        if decoder is not None:
            self.norms = CodeNorms(decoder)
            self.norms.reserve(len(codes))
        for some in block_slices(len(codes), SORTED):
            part = codes[by_list[some]]
            self.blocks.append(part[:, own])
            if self.norms is not None:
                self.norms.append(part)

    def __len__(self) -> int:
        return len(self.order)

    @property
    def nbytes(self) -> int:
        """The bytes that codes, positions and norms take."""
        norms = 0 if self.norms is None else self.norms.values.nbytes + self.norms.levels.nbytes
        return self.blocks.planes.nbytes + self.order.nbytes + self.starts.nbytes + norms

    def masks(self, allowed: npt.NDArray[np.bool_]) -> LaneMasks:
        """By slots, of one truth value per position."""
        return lanes_of(allowed[self.order])

    def save(self, path: PathLike, about: dict[str, Any], more: dict[str, Array]) -> None:
        """Write a file that `mapped` maps, atomically. about, more : JSON and arrays that belong to it."""
        arrays = {"planes": self.blocks.planes, "order": self.order, "starts": self.starts} | more
        if self.norms is not None:
            arrays |= {"norms": self.norms.values, "levels": self.norms.levels, "floors": self.norms.floors}
            about = about | {"largest": self.norms.largest}
        write_arrays(path, about | {"n_bits": self.blocks.n_bits}, arrays)

    @classmethod
    def mapped(
        cls, about: dict[str, Any], arrays: dict[str, Array], decoder: ListDecoder | None
    ) -> SortedCodes:
        """What `save` has written, where it lies."""
        made = cls.__new__(cls)
        made.order, made.starts, made.norms = arrays["order"], arrays["starts"], None
        made.blocks = CodeBlocks.mapped(arrays["planes"], about["n_bits"], len(made.order))
        if decoder is not None:
            made.norms = CodeNorms.mapped(decoder, len(made.order), about["largest"], arrays)
        return made


# ---- Files of arrays, each on a boundary of 64 bytes

HEAD = 2**12  # bytes for JSON, at least


def write_arrays(path: PathLike, about: dict[str, Any], arrays: dict[str, Array]) -> None:
    """Write arrays behind a line of JSON, which knows their places and the checksum of all that follows."""
    places, end, check = {}, 0, 0
    for name, array in arrays.items():
        places[name] = {"at": end, "shape": list(array.shape), "dtype": array.dtype.str}
        check = zlib.crc32(np.ascontiguousarray(array).data, check)
        end += -(-array.nbytes // LANES) * LANES
    text = json.dumps({"about": about, "arrays": places, "checksum": check}).encode() + b"\n"
    head = -(-max(len(text) + 8, HEAD) // LANES) * LANES
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(head.to_bytes(8, "little") + text.ljust(head - 8, b" "))
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).data)
            file.write(bytes(-array.nbytes % LANES))


def map_arrays(path: Path) -> tuple[dict[str, Any], dict[str, Array]] | None:
    """What `write_arrays` has written, mapped; None if it is not there, or not whole."""
    try:
        content = np.memmap(path, dtype=np.uint8, mode="r")
        head = int.from_bytes(content[:8].tobytes(), "little")
        found = json.loads(content[8:head].tobytes())
        arrays, check = {}, 0
        for name, place in found["arrays"].items():
            dtype, shape = np.dtype(place["dtype"]), tuple(place["shape"])
            start = head + place["at"]
            flat = content[start : start + dtype.itemsize * math.prod(shape)]
            arrays[name] = np.asarray(flat).view(dtype).reshape(shape)
            check = zlib.crc32(np.asarray(flat).data, check)
        return (found["about"], arrays) if check == found["checksum"] else None
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None


Heaps = tuple[Positions, Float32, Positions]  # counts, (q,), distances and positions, (q, k)


def empty_heaps(n_queries: int, k: int) -> Heaps:
    """The k nearest of queries that have found nothing yet."""
    distances = np.full((n_queries, k), np.inf, dtype=np.float32)
    return np.zeros(n_queries, dtype=np.int64), distances, np.full((n_queries, k), -1, dtype=np.int64)


# ---- Searches

RECALL = 0.98  # part of the nearest that the lists searched hold, by default
MERGED = 8  # a segment with more than an eighth of the codes of the one before it is merged with it
AT_ONCE = 512  # queries that are compared with the centroids together
QUERY_BLOCK = 256  # queries that a thread takes at a time
TABLE_BLOCK = 128  # the same, if it makes their tables, which are to stay in its cache
CACHED_BYTES = 2**23  # of codes, that caches hold while queries go through their lists one by one
SHARED = 8  # queries that search a list, with more it is read for all of them together
RANKED_PROBES = 128  # lists that are sorted by counting the nearer ones
PART_CODES = 2**17  # of lists, that are worth a thread of their own
MOST_PAIRS = 2**24  # of queries and lists that a thread holds


class ListSearch:
    """Searches the lists of an index. decoder : with lists; or None: hash codes, in that many `lists`."""

    def __init__(self, n_bits: int, decoder: ListDecoder | None, lists: str | int | None) -> None:
        self.n_bits, self.decoder, self.lists = n_bits, decoder, lists
        # without b, by which rows may lie far from 0, where float32 is coarse
        self.centroids = None if decoder is None else Centroids(decoder.centroids - decoder.b)
        self._building = threading.Lock()
        self._segments: list[tuple[int, SortedCodes]] = []  # and the first position of each
        self._of: CodeBlocks | None = None
        self._covered = 0  # positions
        self._changed: tuple[int, SortedCodes] | None = None  # and the version of codes that it is of
        self._masks: dict[int, tuple[Any, LaneMasks]] = {}
        self.coverage = Coverage.unknown(1) if decoder is None else decoder.coverage

    @property
    def n_lists(self) -> int:
        """How many there are; of hash codes none before there are codes."""
        return 0 if self.centroids is None else len(self.centroids.centroids)

    @property
    def nbytes(self) -> int:
        """The bytes of sorted codes."""
        return sum(each.nbytes for _, each in self._segments)

    # ---- what is searched

    def up_to_date(self, codes: CodeBlocks, alive: LaneSet, workers: Workers) -> list[SortedCodes]:
        """The sorted codes: segments, and last of all those that have changed since, if any have."""
        with self._building:
            if self._of is not codes or len(codes.changed) * MERGED >= max(codes.size, 1):
                self._segments, self._covered, self._changed, self._of = [], 0, None, codes
                codes.watch()
            first = self._covered
            while self._segments and first < codes.size:
                at, segment = self._segments[-1]
                if (codes.size - first) * MERGED < len(segment):
                    break
                first = at
                self._segments.pop()
            if first < codes.size:
                self._sort(codes, first, alive, workers)
            found = [each for _, each in self._segments]
            for each in found:
                check_mapped(each.order, "the file of codes sorted by list", Damaged)
            if len(codes.changed):
                if self._changed is None or self._changed[0] != codes.version:
                    self._changed = codes.version, self._sorted(codes.take(codes.changed), codes.changed)
                found.append(self._changed[1])
            return found

    def save(self, path: PathLike, key: str, codes: CodeBlocks, alive: LaneSet, workers: Workers) -> None:
        """Write all codes as one segment, for `adopt`; key : names the codes, and what they are."""
        with self._building:
            self._segments, self._covered, self._of = [], 0, None
        if not codes.size:
            return
        self.up_to_date(codes, alive, workers)
        more: dict[str, Array] = {"coverage": self.coverage.parts}
        if self.decoder is None and self.centroids is not None:
            more["centroids"] = self.centroids.centroids
        self._segments[0][1].save(path, {"key": key, "rows": self.coverage.n_rows}, more)

    def adopt(self, path: Path, key: str, codes: CodeBlocks) -> None:
        """Take in what was saved of the first codes, if it is of these; else nothing changes."""
        found = map_arrays(path)
        if found is None:
            return
        about, arrays = found
        try:
            if about["key"] != key:
                return
            self._check_saved(about, arrays, codes.size)
        except (InvalidInput, KeyError, TypeError, ValueError, OverflowError):
            return  # damaged, or made by somebody who wanted it to be
        with self._building:
            if self.decoder is None:
                self.centroids = Centroids(np.array(arrays["centroids"]))
                self.coverage = Coverage(np.array(arrays["coverage"]), int(about["rows"]))
            segment = SortedCodes.mapped(about, arrays, self.decoder)
            self._segments, self._covered, self._of = [(0, segment)], len(segment), codes
            self._changed, self._masks = None, {}
            codes.watch()
            codes.watched = len(segment)

    def _check_saved(self, about: dict[str, Any], arrays: dict[str, Array], n_codes: int) -> None:
        """Refuse what is not as `save` writes it: kernels read by address."""
        n_lists, n = len(arrays["starts"]) - 1, len(arrays["order"])
        n_bits = self.n_bits if self.decoder is None else self.decoder.inner.n_bits
        sizes = {"K": n_lists, "N": n_codes, "n": n, "B": -(-n // LANES), "S": -(-n // LANES) * LANES}
        sizes |= {"w": -(-n_bits // 8), "L": self.n_bits, "F": LEVELS}
        wide = "int64" if arrays["order"].dtype == np.int64 else "uint32"
        layout = (
            f"planes uint8 B w {LANES}; order {wide} n 0..N-1; starts int64 K+1 0..n; coverage float64 c K"
        )
        if self.decoder is None:
            layout += "; centroids float32 K L"
        else:
            layout += f"; norms float32 S; levels uint8 B {LANES} 0..F-1; floors float32 F"
        check_layout(arrays, layout, sizes)
        rises = (np.diff(arrays["starts"]) >= 0).all() and (arrays["starts"][0], arrays["starts"][-1]) == (
            0,
            n,
        )
        as_many = self.decoder is None or n_lists == self.n_lists
        if not (rises and as_many and len(arrays["coverage"]) <= len(LEARNED_KS) and n and n_lists):
            raise InvalidInput("the lists do not hold the codes")
        if about["n_bits"] != n_bits or not (
            np.isfinite(about.get("largest", 0)) and int(about["rows"]) >= 0
        ):
            raise InvalidInput("the codes are others")

    def _sort(self, codes: CodeBlocks, first: int, alive: LaneSet, workers: Workers) -> None:
        """Make a segment of the positions from `first` on."""
        positions = np.arange(first, codes.size)
        packed = codes.take(positions) if first else codes.packed()
        if self.decoder is None and not first:
            self._learn_centroids(packed, workers)
        self._segments.append((first, self._sorted(packed, positions)))
        self._covered, self._masks = codes.size, {}
        codes.watched = codes.size
        if not first and self.decoder is None:
            self._learn(codes, alive, workers)

    def _sorted(self, packed: Packed, positions: Positions) -> SortedCodes:
        numbers = self.numbers_of(packed)
        return SortedCodes(numbers, packed, positions, self.n_lists, self.n_bits, self.decoder)

    def numbers_of(self, packed: Packed) -> Positions:
        """The list of each code."""
        if self.decoder is not None:
            return self.decoder.split(packed)[0]
        assert self.centroids is not None
        rows = (packed[some] for some in block_slices(len(packed), SORTED))
        found = [self.centroids.nearest(unpack(each, self.n_bits).astype(np.float32)) for each in rows]
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    def _learn_centroids(self, packed: Packed, workers: Workers) -> None:
        rng, wanted = np.random.RandomState(0), max(1, number_of_lists(self.lists, len(packed)))
        some = packed[np.sort(rng.permutation(len(packed))[: ROWS_PER_LIST * wanted])]
        bits = unpack(some, self.n_bits).astype(np.float32)
        self.centroids = Centroids(find_centroids(bits, wanted, workers, rng))

    def _learn(self, codes: CodeBlocks, alive: LaneSet, workers: Workers) -> None:
        """From some of the hash codes: in which of their lists their neighbours are."""
        (_, segment), present = self._segments[0], as_bools(alive.masks, codes.size)
        places = np.flatnonzero(present)
        self.coverage = Coverage.unknown(self.n_lists)
        if len(places) < ASKED_SHARE:
            return
        asked = codes.take(np.sort(np.random.RandomState(0).permutation(places)[:ASKED]))
        costs, k = self._costs(asked), min(LEARNED_KS[-1], len(places) // ASKED_SHARE) + 1
        everything = [(segment, segment.masks(present))]
        _, found = self._search(everything, asked, None, costs, k, self.n_lists, workers)
        numbers = self.numbers_of(codes.take(np.maximum(found, 0).ravel())).reshape(found.shape)
        self.coverage = Coverage.of(ranks_of(costs, numbers)[:, 1:], self.n_lists, len(places))

    def _costs(self, asked: Array) -> Float32:
        """By which lists are near to queries, (q, K)."""
        assert self.centroids is not None
        if self.decoder is None:
            return self.centroids.costs(unpack(asked, self.n_bits).astype(np.float32))
        return self.centroids.costs(self.decoder.centred(asked).astype(np.float32))

    def _present(
        self, codes: CodeBlocks, alive: LaneSet, allowed: npt.NDArray[np.bool_] | None, workers: Workers
    ) -> list[tuple[SortedCodes, LaneMasks]]:
        """What is searched, and which slots may be returned. allowed : one truth value per position."""
        parts, found = self.up_to_date(codes, alive, workers), []
        n_segments = len(parts) - (len(codes.changed) > 0)
        key = (alive.size, alive.count, codes.version)
        for number, part in enumerate(parts):
            kept = self._masks.get(number)
            if allowed is None and kept is not None and kept[0] == key:
                found.append((part, kept[1]))
                continue
            present = as_bools(alive.masks, codes.size) if allowed is None else allowed.copy()
            if number < n_segments:
                present[codes.changed] = False
            found.append((part, part.masks(present)))
            if allowed is None:
                self._masks[number] = key, found[-1][1]
        return found

    # ---- searches

    def nearest(
        self, codes: CodeBlocks, alive: LaneSet, asked: Array, k: int, probes: int,
        allowed: npt.NDArray[np.bool_] | None, workers: Workers,
    ) -> tuple[Float32, Positions]:  # fmt: skip
        """Distances and positions of the k nearest in each query's first lists, (q, k).

        asked : rows, or packed hash codes.
        """
        segments, found = self._present(codes, alive, allowed, workers), []
        for some in list(block_slices(len(asked), AT_ONCE)) or [slice(0, 0)]:
            # products are made here, where BLAS has all cores, not by threads that would share them; of as
            # many queries whatever the number of threads, as they are rounded differently for others
            rows, costs, tables = asked[some], self._costs(asked[some]), None
            if self.decoder is not None:
                rows = np.ascontiguousarray(self.decoder.centred(rows))  # kernels read them by address
                check_squares(np.einsum("qd,qd->q", rows, rows), self.decoder.reach)
                if not self.decoder.inner.steady:
                    tables = self._tables(rows)
            found.append(self._search(segments, rows, tables, costs, k, probes, workers))
        return np.concatenate([each for each, _ in found]), np.concatenate([each for _, each in found])

    def within(
        self, codes: CodeBlocks, alive: LaneSet, asked: Packed, r: int, probes: int,
        allowed: npt.NDArray[np.bool_] | None, workers: Workers,
    ) -> tuple[Positions, npt.NDArray[np.int32], Positions]:  # fmt: skip
        """The hash codes within r in each query's first lists: lims, distances, positions, as index/scan."""
        segments, costs = self._present(codes, alive, allowed, workers), self._costs(asked)

        def search(rows: slice) -> list[tuple[Positions, Array, Positions]]:
            lists = self._first_lists(costs[rows], probes)
            return [(queries + rows.start, distances, positions)
                    for queries, distances, positions in (_within(*each, asked[rows], lists, r)
                                                          for each in segments)]  # fmt: skip

        per_job = max(1, min(QUERY_BLOCK, -(-len(asked) // workers.n_jobs)))
        found = [each for part in workers.map(search, len(asked), per_job) for each in part]
        nothing = (np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int64))
        queries, distances, positions = (np.concatenate(each) for each in zip(nothing, *found, strict=True))
        order = np.lexsort((positions, distances, queries))
        lims = np.concatenate([[0], np.cumsum(np.bincount(queries, minlength=len(asked)))])
        return lims, distances[order], positions[order]

    def _first_lists(self, costs: Float32, probes: int) -> Positions:
        """The lists nearest to each query, in order, (q, probes)."""
        if probes > RANKED_PROBES:
            lists = np.argpartition(costs, min(probes, self.n_lists) - 1, axis=1)[:, :probes].astype(np.int64)
            order = np.argsort(np.take_along_axis(costs, lists, axis=1), axis=1, kind="stable")
            return np.take_along_axis(lists, order, axis=1)
        lists = np.empty((len(costs), min(probes, self.n_lists)), dtype=np.int64)
        nearest_lists(costs, lists)
        return lists

    def _search(
        self, segments: list[tuple[SortedCodes, LaneMasks]], asked: Array, tables: Float32 | None,
        costs: Float32, k: int, probes: int, workers: Workers,
    ) -> tuple[Float32, Positions]:  # fmt: skip
        """As `nearest`, of hash codes, or of rows without b and their tables, if they are made already."""
        n_queries, probes = len(asked), min(probes, self.n_lists)
        per_job = -(-n_queries // workers.n_jobs)
        held = QUERY_BLOCK if self.decoder is None or tables is not None else TABLE_BLOCK
        rows = max(1, min(held, per_job, MOST_PAIRS // max(1, probes)))
        n_groups = -(-n_queries // rows)
        n_codes = sum(len(each) for each, _ in segments) * probes // max(1, self.n_lists)
        n_parts = max(1, min(-(-workers.n_jobs // max(1, n_groups)), n_codes // PART_CODES))
        found: list[Any] = [None] * (n_groups * n_parts)

        def search(item: slice) -> None:
            group, part = divmod(item.start, n_parts)
            some = slice(group * rows, min((group + 1) * rows, n_queries))
            lists = self._first_lists(costs[some], probes)
            heaps = empty_heaps(len(lists), k)
            own = np.ascontiguousarray(lists[:, part::n_parts])
            self._scan(segments, asked[some], None if tables is None else tables[some], own, heaps)
            found[item.start] = heaps[1:]

        workers.run(search, n_groups * n_parts, 1)
        groups = [
            nearest_first(found[at : at + n_parts], k) if n_parts > 1 else found[at]
            for at in range(0, len(found), n_parts)
        ]
        if not groups:
            return np.empty((0, k), dtype=np.float32), np.empty((0, k), dtype=np.int64)
        return np.concatenate([each[0] for each in groups]), np.concatenate([each[1] for each in groups])

    def _tables(self, rows: Float64) -> Float32:
        """Of rows without b, (q, D) → (q, M, 256)."""
        assert self.decoder is not None
        tables = np.empty((len(rows), self.decoder.inner_bytes, VALUES), dtype=np.float32)
        self.decoder.inner.rough_tables(rows, tables)
        return tables

    def _scan(
        self, segments: list[tuple[SortedCodes, LaneMasks]], asked: Array, tables: Float32 | None,
        lists: Positions, heaps: Heaps,
    ) -> None:  # fmt: skip
        if self.decoder is None:
            words = asked.astype(np.uint32, order="C") * np.uint32(0x01010101)
            for segment, masks in segments:
                flat = segment.blocks.planes.reshape(-1)
                scan_hash_lists(flat, masks, segment.order, segment.starts, words, lists, self.n_bits, *heaps)
            all_in_order(*heaps)
            return
        scan = DecoderScan(self.decoder, asked, self._tables(asked) if tables is None else tables, lists)
        for segment, masks in segments:
            if len(segment):
                scan.offer(segment, masks, heaps)


def _within(
    segment: SortedCodes, masks: LaneMasks, asked: Packed, lists: Positions, r: int
) -> tuple[Positions, npt.NDArray[np.int32], Positions]:
    """Queries, distances and positions of all hash codes within r in the queries' lists."""
    words = asked.astype(np.uint32, order="C") * np.uint32(0x01010101)
    what = (segment.blocks.planes.reshape(-1), masks, segment.order, segment.starts, words, lists, r)
    counts = np.zeros(len(asked), dtype=np.int64)
    within_hash_lists(*what, counts, np.empty(0, np.int32), np.empty(0, np.int64), False)
    ends = np.cumsum(counts)
    n = int(ends[-1]) if len(ends) else 0
    distances, positions = np.empty(n, np.int32), np.empty(n, np.int64)
    within_hash_lists(*what, ends - counts, distances, positions, True)
    return np.repeat(np.arange(len(asked)), counts), distances, positions


class DecoderScan:
    """Queries without b, (q, D), their tables, and their lists, (q, probes), to scan by the decoder."""

    def __init__(self, decoder: ListDecoder, rows: Array, tables: Float32, lists: Positions) -> None:
        self.tables, self.reach = np.ascontiguousarray(tables, dtype=np.float32), None
        offsets, sizes = np.empty(lists.shape, dtype=np.float32), np.empty((3, len(lists)))
        exact_offsets(rows, decoder.centres, lists, offsets, sizes)
        lengths, self.least, self.most = sizes
        if isinstance(decoder.inner, TableDecoder):  # what entries of the tables can add up to, in size
            self.reach = 2.1 * lengths * decoder.inner.longest  # rounded as they may be
        self.offsets, self.lists, self.n_lists = offsets, lists, len(decoder.centroids)

    def pairs(self, shared: bool) -> tuple[Any, Any, Any]:
        """Lists, queries and offsets. shared : queries with the same list together, else query by query."""
        queries = np.repeat(np.arange(len(self.lists)), self.lists.shape[1])
        if not shared:
            return self.lists.ravel(), queries, self.offsets.ravel()
        keys = self.lists + self.n_lists
        keys[:, 0] -= self.n_lists  # the nearest lists first, which give a limit
        small = np.uint16 if self.n_lists <= 2**15 else np.int64  # numpy sorts it by digits
        order = np.argsort(keys.ravel().astype(small), kind="stable")
        return self.lists.ravel()[order], queries[order], self.offsets.ravel()[order]

    def offer(self, segment: SortedCodes, masks: LaneMasks, heaps: Heaps) -> None:
        """Offer the codes of a segment."""
        assert segment.norms is not None
        norms, planes, width = segment.norms, segment.blocks.planes, self.tables.shape[1]
        if self.reach is None:
            bits, slack = bounds_of(self.tables, norms)
        else:
            bits, slack = 8 if index_bits() == 6 else 0, ROUNDING * (width + 2) * (self.reach + norms.largest)
        slack = slack + ROUNDING * 4 * (self.most + norms.largest)
        # codes that caches do not hold are read once for many queries, if these share lists
        shared = planes.nbytes > CACHED_BYTES and self.lists.size > SHARED * self.n_lists
        rows, k = len(self.tables) if shared else 1, heaps[1].shape[1]
        kind = bits or 8
        wide = n_tables(width, kind, wide=False) > WIDE_TABLES
        n, n_first = n_tables(width, kind, wide), 2 if wide else 1
        chunk = 0 if kind == 8 and n == width else CHUNK_BLOCKS + TILE  # else planes serve as they are
        index = aligned_zeros((chunk, 1 + n, LANES))
        rounded = aligned_zeros((rows, n_first * LANES + n * (VALUES if kind == 8 else LANES)))
        kept = (rows, max(k, EXACT_CODES) + LANES + ROOM)
        scan_lists(
            planes, planes.view(np.uint64), masks, norms.values, norms.levels.view(np.uint64), norms.floors,
            segment.order, segment.starts, self.tables, slack, self.least, bits, wide, *self.pairs(shared),
            index.view(np.uint64), rounded, np.empty((rows, n)), np.empty((rows, 6)),
            np.empty((rows, 3), dtype=np.int64), np.empty((rows, PLACES), dtype=np.int64),
            np.empty(kept, dtype=np.float32), np.empty(kept, dtype=np.int64), *heaps,
        )  # fmt: skip
