"""Asymmetric search: codes z by ‖x − f(z)‖², with the query x left as it is.

The distance that orders codes is d(z) = ((norm + T[0, byte 0]) + T[1, byte 1]) + ..., in float32, with the
norm ‖f(z) − b‖² and the tables T of the query, as core/decoders.py makes them; equal distances are ordered by
position. The squared distance that is returned is d(z) plus the query's offset, at least 0. Every way of
searching gives exactly these answers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from auxbit.core.checks import (
    LEAST_SQUARED,
    Array,
    Bytes,
    Float32,
    Float64,
    Positions,
    Words,
    check_finite,
    check_squares,
)
from auxbit.core.maps import VALUES, dot, norm_of
from auxbit.core.parallel import Workers, kernel
from auxbit.core.simd import (
    TILE,
    WIDE_STEP,
    address,
    extremes,
    fetch_line,
    first_tile,
    half,
    index_bits,
    lowest_bit,
    popcount,
    shifted_lanes,
    squared_apart,
)
from auxbit.index.codes import LANES, LEVELS, CodeNorms, LaneMasks, Planes, aligned_zeros, nearest_first

# ---- Lower bounds of distances by tables: what is rounded down to bytes, and the indices that look it up
#
# Bits of an index: 8, a table of 256 for each byte of the code, whatever it holds; 6 or 4, a table for each
# group of that many bits of the code, if the tables are sums over bits, as a linear decoder's are. How far
# they deviate from such sums is a part of the slack of a query's bounds.
#
# A bound must never exceed the distance: entries are rounded down, and the slack covers what float32 sums,
# added in another order, may lose.

NARROW_LIMIT = 254  # the largest sum of bytes that is known not to be larger
WIDE_ENTRY = 255 // WIDE_STEP
WIDE_LIMIT = 49000  # 16 bits have room for 256 entries more, those of 1024 bits by fours
WIDE_SUM = 96000  # of the largest entries of more tables: a sum of entries as they come is about half of it
ROUNDED_DOWN = 1 - 2.0**-20  # units in float32, in which no entry comes out too large
ROUNDING = 1.01 * 2.0**-24  # the relative error of a sum of two numbers in float32, and a little more


def n_tables(width: int, bits: int, wide: bool) -> int:
    """How many tables codes of `width` bytes have, without norms; a multiple of four if `wide`."""
    n = -(-8 * width // bits)
    return -(-n // WIDE_STEP) * WIDE_STEP if wide else n


@kernel
def widest_entry(n: int) -> int:
    """The largest entry of n tables whose sums are wide.

    A sum that 16 bits cannot hold begins at 0 again and passes: that costs an exact distance, not an answer.
    """
    return min(WIDE_ENTRY, WIDE_SUM // n)


@kernel
def measure_tables(tables: Float32, sizes: Float64, spreads: Float64, residuals: Float64) -> None:
    """What bounds need to know of tables, (q, width, 256). The others : (q,), sums over bytes.

    sizes: the largest |entry|; spreads: the largest minus the smallest entry; residuals: how far an entry
    is at most from the sum of those of its bits.
    """
    sums = np.empty(VALUES)
    for q in range(tables.shape[0]):
        size, spread, deviation = 0.0, 0.0, 0.0
        for j in range(tables.shape[1]):
            table = tables[q, j]
            sums[0] = table[0]
            for bit in range(8):
                term = np.float64(table[1 << bit]) - np.float64(table[0])
                for v in range(1 << bit):
                    sums[v + (1 << bit)] = sums[v] + term
            low, high, residual = sums[0], sums[0], 0.0
            for v in range(VALUES):
                entry = np.float64(table[v])
                low, high = min(low, entry), max(high, entry)
                residual = max(residual, abs(entry - sums[v]))
            size += max(abs(low), abs(high))
            spread += high - low
            deviation += residual
        sizes[q], spreads[q], residuals[q] = size, spread, deviation


@kernel
def smallest_sum(table: Float32, floors: Float32, bits: int, lowest: Float64) -> tuple[float, float]:
    """The least sum of a norm and one entry per table, and the largest range of a table.

    table : (width, 256); lowest : (tables,), gets the smallest entry of each table.
    """
    total, widest = np.float64(floors[0]), 0.0
    if bits == 8:
        for j in range(table.shape[0]):
            low, high = extremes(address(table) + 4 * j * VALUES, VALUES)
            lowest[j] = low
            total += lowest[j]
            widest = max(widest, np.float64(high) - lowest[j])
        return total, widest
    terms = np.empty(8)
    for j in range(table.shape[0]):
        total += np.float64(table[j, 0])
    for group in range(-(-8 * table.shape[0] // bits)):
        _group_terms(table, bits, group, terms)
        low, high = 0.0, 0.0
        for i in range(bits):
            low, high = low + min(terms[i], 0.0), high + max(terms[i], 0.0)
        lowest[group] = low
        total += low
        widest = max(widest, high - low)
    return total, widest


@kernel
def _group_terms(table: Float32, bits: int, group: int, terms: Float64) -> None:
    """What each bit of a group adds, into terms, (8,)."""
    for i in range(bits):
        bit = bits * group + i
        terms[i] = 0.0
        if bit < 8 * table.shape[0]:
            of_byte = table[bit // 8]
            terms[i] = np.float64(of_byte[1 << bit % 8]) - np.float64(of_byte[0])


@kernel
def round_tables(
    table: Float32, floors: Float32, bits: int, wide: bool, lowest: Float64, units: float, out: Bytes
) -> None:
    """Each entry above its table's lowest in `units` per 1, rounded down, at most what the sums can take.

    table : (width, 256); floors : (64,), of the levels of norms; lowest : (tables,);
    out : 64 entries of norms, if `wide` their upper bytes, then 64 per table, or 256 for whole bytes.
    """
    top = float(widest_entry(len(lowest)) if wide else NARROW_LIMIT + 1)
    first_bytes = (2 if wide else 1) * LANES
    step = LEVELS >> min(bits, 6)  # levels that share an entry
    singly = np.float32(min(units * ROUNDED_DOWN, 1e30))  # above that float32 might end
    for v in range(LEVELS):
        above = np.float64(floors[v % (LEVELS // step) * step]) - np.float64(floors[0])
        entry = int(min(above * units, WIDE_LIMIT + 1.0 if wide else top))
        out[v] = np.uint8(entry & 255)
        if wide:
            out[LANES + v] = np.uint8(entry >> 8)
    if bits == 8:
        for j in range(table.shape[0]):
            at, low = first_bytes + j * VALUES, np.float32(lowest[j])
            entries = out[at : at + VALUES]
            for v in range(VALUES):
                entries[v] = np.uint8(min((table[j, v] - low) * singly, np.float32(top)))
        return
    sums, terms = np.empty(LANES), np.empty(8)
    for group in range(-(-8 * table.shape[0] // bits)):
        _group_terms(table, bits, group, terms)
        sums[0] = -lowest[group]
        for i in range(bits):
            for v in range(1 << i):
                sums[v + (1 << i)] = sums[v] + terms[i]
        entries = out[first_bytes + LANES * group : first_bytes + LANES * (group + 1)]
        mask = (1 << bits) - 1
        for v in range(LANES):  # sums of terms may come out a little below 0
            entries[v] = np.uint8(min(max(sums[v & mask], 0.0) * units, top))


@kernel
def split_codes(planes: Words, levels: Words, bits: int, start: int, stop: int, index: Words) -> None:
    """Indices of the codes of blocks start..stop: of the norm, then one per table.

    planes : (n_blocks, width, 8) words of 8 bytes; levels : (n_blocks, 8); index : (blocks, 1 + tables, 8).
    """
    width, every = planes.shape[1], np.uint64(0x0101010101010101)
    coarser = np.int64(max(0, 6 - bits))
    mask, none = every * np.uint64((1 << min(bits, 6)) - 1), np.uint64(0)
    codes, norms, out = planes.reshape(-1), levels.reshape(-1), index.reshape(-1)
    for block in range(start, stop):
        to, first_byte = (block - start) * index.shape[1] * LANES, block * width * LANES
        at = block * LANES
        shifted_lanes(norms, at, at, coarser, mask, none, out, to)
        to += LANES
        for group in range(-(-8 * width // bits)):
            byte, shift = bits * group // 8, bits * group % 8
            kept = every * np.uint64((0xFF >> shift) & ((1 << bits) - 1))
            at, rest = first_byte + byte * LANES, none
            after = at
            if shift + bits > 8 and byte + 1 < width:
                after, rest = at + LANES, mask & ~kept
            shifted_lanes(codes, at, after, shift, kept, rest, out, to)
            to += LANES


# ---- Kernels: exact distances, the k nearest, and bounds that spare most exact distances
#
# The distance of a code is its norm plus an entry for each byte, added one after the other in float32. A
# query's k nearest by (distance, position) are kept as a heap. Once it is full, the query's tables are
# rounded down to bytes, in units of what lies between the smallest possible sum and the k-th distance;
# only codes whose sum of bytes is within the limit get an exact distance. Answers are those of exact
# distances alone.

CROWD = 12  # if that many codes of a block pass, all its distances are computed
LOOSE = 0.85  # the part of its range that a limit may fall to before tables are rounded again


@kernel
def rerank_rows(
    planes: Bytes, norms: Float32, tables: Float32, shortlist: Positions, distances: Float32,
    positions: Positions,
) -> None:  # fmt: skip
    """The k nearest of each row of a shortlist, (q, s), −1 for none, into (q, k) distances and positions."""
    near = np.empty(shortlist.shape[1], dtype=np.float32)
    for q in range(len(shortlist)):
        listed, table, nearest, where = shortlist[q], tables[q], distances[q], positions[q]
        for i in range(len(listed)):  # by themselves, so that many codes are fetched at a time
            near[i] = code_distance(planes, norms, table, max(listed[i], 0))
        count = 0
        for i in range(len(listed)):
            if listed[i] >= 0 and (count < len(nearest) or near[i] <= nearest[0]):
                count = offer(nearest, where, count, near[i], listed[i])
        in_order(nearest, where, count)


@kernel
def scan_blocks(
    planes: Bytes, plane_words: Words, allowed: Words, norms: Float32, level_words: Words, floors: Float32,
    tables: Float32, slack: Float64, bits: int, wide: bool, start: int, stop: int, n_exact: int,
    index: Words, rounded: Bytes, distances: Float32, positions: Positions,
) -> None:  # fmt: skip
    """The k nearest of each query among the allowed codes of blocks start..stop, (q, k).

    planes : (n_blocks, width, 64), plane_words the same as words; allowed : (n_blocks,); norms : (n,);
    level_words : (n_blocks, 8), floors : (64,), of norms; tables : (q, width, 256); slack : (q,), between
    float32 sums and bounds; bits, wide : kind of bounds; n_exact : blocks before there are bounds;
    index : (blocks at a time, 1 + tables, 8) and rounded : (q, bytes of tables), for use in here, zeros.
    """
    n_queries, chunk, block_bytes = len(tables), len(index), index.shape[1] * LANES
    n = index.shape[1] - 1
    counts = np.zeros(n_queries, dtype=np.int64)
    bases, widest = np.zeros(n_queries), np.zeros(n_queries)
    units, ranges = np.zeros(n_queries), np.full(n_queries, np.inf)
    lowest = np.empty((n_queries, n))
    buffer, masks = np.empty(LANES, dtype=np.float32), np.empty(TILE, dtype=np.uint64)
    highest = WIDE_LIMIT if wide else NARROW_LIMIT
    for first in range(start, stop, chunk):
        last = min(first + chunk, stop)
        if last > start + n_exact:
            split_codes(plane_words, level_words, bits, first, last, index)
        for q in range(n_queries):
            table, nearest, where, count = tables[q], distances[q], positions[q], counts[q]
            block = first
            # exact distances until the heap is full, and up to the beginning of a tile
            while block < last and (
                block < start + n_exact or count < len(nearest) or (block - first) % TILE
            ):
                mask = allowed[block]
                count = _offer_block(planes, norms, table, block, mask, nearest, where, count, buffer)
                block += 1
            counts[q] = count
            if block == last:
                continue
            if ranges[q] == np.inf:
                bases[q], widest[q] = smallest_sum(table, floors, bits, lowest[q])
            # what a sum may exceed the smallest possible one by: the finer the units, the fewer codes pass
            left = np.float64(nearest[0]) + slack[q] - bases[q]
            if 0 < left < LOOSE * ranges[q]:
                ranges[q] = left
                units[q] = highest / left
                if wide and widest[q] > 0:
                    units[q] = min(units[q], widest_entry(n) / min(left, widest[q]))
                round_tables(table, floors, bits, wide, lowest[q], units[q], rounded[q])
            limit, entries = limit_of(left, units[q], highest), address(rounded) + q * rounded.shape[1]
            while block < last and limit >= 0:
                at, tiles = address(index) + (block - first) * block_bytes, -(-(last - block) // TILE)
                found = next_tile(
                    bits, wide, at, block_bytes, at + LANES, block_bytes, tiles, n, entries, limit,
                    address(masks),
                )  # fmt: skip
                block += TILE * found
                for u in range(min(TILE, last - block)):
                    mask = masks[u] & allowed[block + u]
                    if popcount(mask) >= CROWD:  # all 64 at once, in vector registers
                        _offer_block(planes, norms, table, block + u, mask, nearest, where, count, buffer)
                        continue
                    while mask:
                        position = (block + u) * LANES + lowest_bit(mask)
                        distance = code_distance(planes, norms, table, position)
                        if distance < nearest[0]:  # an equal one of a later position is farther
                            _sift(nearest, where, len(nearest), distance, position)
                        mask &= mask - np.uint64(1)
                left = np.float64(nearest[0]) + slack[q] - bases[q]
                limit = limit_of(left, units[q], highest)
                block += TILE
    for q in range(n_queries):
        in_order(distances[q], positions[q], counts[q])


@kernel
def next_tile(
    bits: int, wide: bool, levels: int, levels_step: int, index: int, step: int, tiles: int, n: int,
    tables: int, limit: int, masks: int,
) -> int:  # fmt: skip
    """simd.first_tile, four times: the kind of look-up must be known when it is compiled."""
    if bits == 8 and wide:
        return int(first_tile(True, True, levels, levels_step, index, step, tiles, n, tables, limit, masks))
    if bits == 8:
        return int(first_tile(True, False, levels, levels_step, index, step, tiles, n, tables, limit, masks))
    if wide:
        return int(first_tile(False, True, levels, levels_step, index, step, tiles, n, tables, limit, masks))
    return int(first_tile(False, False, levels, levels_step, index, step, tiles, n, tables, limit, masks))


@kernel
def limit_of(left: float, units: float, highest: int) -> int:
    """The largest sum of rounded entries of a code that may be nearer; −1: none can be."""
    if not left > 0:
        return -1
    return int(min(left * units, float(highest))) if left < np.inf else highest


@kernel
def _offer_block(
    planes: Bytes, norms: Float32, table: Float32, block: int, mask: Any, nearest: Float32, where: Positions,
    count: int, buffer: Float32,
) -> int:  # fmt: skip
    """Offer the codes of a block that are in the mask to a heap; return how many it holds."""
    start = block * LANES
    if popcount(mask) < CROWD:
        while mask:
            position = start + lowest_bit(mask)
            count = offer(nearest, where, count, code_distance(planes, norms, table, position), position)
            mask &= mask - np.uint64(1)
        return count
    block_distances(planes, norms, table, block, buffer)
    for lane in range(LANES):
        if mask >> np.uint64(lane) & np.uint64(1) and (count < len(nearest) or buffer[lane] < nearest[0]):
            count = offer(nearest, where, count, buffer[lane], start + lane)
    return count


@kernel
def block_distances(planes: Bytes, norms: Float32, table: Float32, block: int, out: Float32) -> None:
    """code_distance of all 64 codes of a block."""
    for lane in range(LANES):
        out[lane] = norms[block * LANES + lane]
    for j in range(planes.shape[1]):
        for lane in range(LANES):
            out[lane] += table[j, planes[block, j, lane]]


@kernel
def code_distance(planes: Bytes, norms: Float32, table: Float32, position: int) -> Any:
    block, lane = position // LANES, position % LANES
    total = norms[position]
    for j in range(planes.shape[1]):
        total += table[j, planes[block, j, lane]]
    return total


# ---- a heap of the k nearest, the farthest of them at its root


@kernel
def _after(distance: Any, position: int, other: Any, other_position: int) -> bool:
    return bool(distance > other or (distance == other and position > other_position))


@kernel
def offer(distances: Float32, positions: Positions, count: int, distance: Any, position: int) -> int:
    """Put a code into a heap of k if it is among the nearest; return how many the heap holds."""
    k = len(distances)
    if count == k:
        if _after(distances[0], positions[0], distance, position):
            _sift(distances, positions, k, distance, position)
        return count
    place = count
    while place > 0:
        parent = (place - 1) // 2
        if _after(distances[parent], positions[parent], distance, position):
            break
        distances[place], positions[place] = distances[parent], positions[parent]
        place = parent
    distances[place], positions[place] = distance, position
    return count + 1


@kernel
def _sift(distances: Float32, positions: Positions, size: int, distance: Any, position: int) -> None:
    """Replace the root of a heap of `size` by a code."""
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        right = child + 1
        if right < size and _after(distances[right], positions[right], distances[child], positions[child]):
            child = right
        if not _after(distances[child], positions[child], distance, position):
            break
        distances[place], positions[place] = distances[child], positions[child]
        place = child
    distances[place], positions[place] = distance, position


@kernel
def in_order(distances: Float32, positions: Positions, count: int) -> None:
    """Turn the heap into a list, nearest first, and pad it with ∞ and −1."""
    for last in range(count - 1, 0, -1):
        distance, position = distances[last], positions[last]
        distances[last], positions[last] = distances[0], positions[0]
        _sift(distances, positions, last, distance, position)
    for rest in range(count, len(distances)):
        distances[rest], positions[rest] = np.inf, -1


# ---- Asymmetric search

QUERY_BLOCK = 256  # queries that share one pass over the codes
RERANKED = 64  # queries whose shortlists a worker ranks at a time
CHUNK_BYTES = 24 * 1024  # indices that these queries go through in turn: they stay in the first-level cache
EXACT_BLOCKS = 16  # of 64 codes, whose exact distances are the first limit
BOUNDED_BLOCKS = 32  # with more blocks, bounds are worth preparing
PART_BLOCKS = 512  # the fewest blocks that are worth a thread of their own
ADDITIVE = 1e-3  # the part of tables' spread by which they may deviate from sums over bits
WIDE_TABLES = 30  # with more, sums of bytes are too coarse


def nearest(
    planes: Planes, norms: CodeNorms, allowed: LaneMasks, tables: Float32, offsets: Float32, k: int,
    workers: Workers,
) -> tuple[Float32, Positions]:  # fmt: skip
    """The k nearest of all allowed codes, by (distance, position): squared distances and positions, (q, k).

    planes : (n_blocks, width, 64); allowed : (n_blocks,); tables : (q, width, 256); offsets : (q,).
    If there are fewer than k codes, ∞ and −1 follow.
    """
    n_queries, n_blocks = len(tables), len(planes)
    if not (n_queries and n_blocks and k):
        nothing = np.full((n_queries, k), np.inf, np.float32), np.full((n_queries, k), -1, np.int64)
        return _finished(*nothing, offsets)
    rows = min(QUERY_BLOCK, -(-n_queries // workers.n_jobs))
    n_groups = -(-n_queries // rows)
    n_parts = max(1, min(-(-workers.n_jobs // n_groups), n_blocks // PART_BLOCKS))  # few queries: split codes
    part_blocks = -(-n_blocks // n_parts)
    distances = np.empty((n_parts, n_queries, k), dtype=np.float32)
    positions = np.empty((n_parts, n_queries, k), dtype=np.int64)
    tables = np.ascontiguousarray(tables, dtype=np.float32)

    def search(item: slice) -> None:
        group, part = divmod(item.start, n_parts)
        some = slice(group * rows, min((group + 1) * rows, n_queries))
        blocks = range(part * part_blocks, min((part + 1) * part_blocks, n_blocks))
        _scan(planes, norms, allowed, tables[some], blocks, distances[part, some], positions[part, some])

    workers.run(search, n_groups * n_parts, 1)
    if n_parts > 1:
        return _finished(*nearest_first(list(zip(distances, positions, strict=True)), k), offsets)
    return _finished(distances[0], positions[0], offsets)


def rerank(
    planes: Planes, norms: CodeNorms, tables: Float32, offsets: Float32, shortlist: Positions, k: int,
    workers: Workers,
) -> tuple[Float32, Positions]:  # fmt: skip
    """The k nearest of each query's shortlist, (q, s) positions with −1 for none; returns as `nearest`."""
    distances = np.full((len(tables), k), np.inf, dtype=np.float32)
    positions = np.full((len(tables), k), -1, dtype=np.int64)
    tables = np.ascontiguousarray(tables, dtype=np.float32)
    candidates = np.ascontiguousarray(shortlist, dtype=np.int64)

    def rank(rows: slice) -> None:
        rerank_rows(planes, norms.values, tables[rows], candidates[rows], distances[rows], positions[rows])

    if k and len(norms):
        workers.run(rank, len(tables), RERANKED)
    return _finished(distances, positions, offsets)


def _scan(
    planes: Planes, norms: CodeNorms, allowed: LaneMasks, tables: Float32, blocks: range, distances: Float32,
    positions: Positions,
) -> None:  # fmt: skip
    """The k nearest of a few queries among some blocks, into (q, k) distances and positions."""
    n_queries, width, _ = tables.shape
    bits, slack = bounds_of(tables, norms) if len(blocks) > BOUNDED_BLOCKS else (0, np.zeros(n_queries))
    n_exact = EXACT_BLOCKS if bits else len(blocks)
    bits = bits or 8
    wide = n_tables(width, bits, wide=False) > WIDE_TABLES
    n, n_first = n_tables(width, bits, wide), 2 if wide else 1
    chunk = max(1, CHUNK_BYTES // ((1 + n) * LANES * TILE)) * TILE
    index = aligned_zeros((chunk, 1 + n, LANES))
    rounded = aligned_zeros((n_queries, n_first * LANES + n * (VALUES if bits == 8 else LANES)))
    scan_blocks(
        planes, planes.view(np.uint64), allowed, norms.values, norms.levels.view(np.uint64), norms.floors,
        tables, slack, bits, wide, blocks.start, blocks.stop, n_exact, index.view(np.uint64), rounded,
        distances, positions,
    )  # fmt: skip


def bounds_of(tables: Float32, norms: CodeNorms) -> tuple[int, Float64]:
    """Bits that are looked up at once, 0 for none, and how far a distance can be below its bound, (q,)."""
    n_queries, width, _ = tables.shape
    sizes, spreads, residuals = np.empty((3, n_queries))
    measure_tables(tables, sizes, spreads, residuals)
    slack = ROUNDING * (width + 2) * (sizes + norms.largest)
    if (residuals <= ADDITIVE * spreads).all():
        return index_bits(), slack + residuals
    return (8 if index_bits() == 6 else 0), slack


def _finished(distances: Float32, positions: Positions, offsets: Float32) -> tuple[Float32, Positions]:
    """Squared distances: with the offset, at least 0."""
    return np.maximum(distances + offsets[:, None], np.float32(0)), positions


# ---- Candidates ranked by their true distances


RANKED = 64  # queries whose candidates a worker ranks at a time
AHEAD = 8  # candidates whose vectors are fetched before their turn
LEAST_LENGTH, MOST_LENGTH = 1e-15, 1e18  # between which float32 holds the squares of a row


def rank_by_vectors(
    X: Array, candidates: Positions, vectors: Array, k: int, *, metric: str, n_jobs: int | None
) -> tuple[Float32, Positions]:
    """The k nearest of each query's candidates by ‖x − y‖², and their positions, (q, k).

    X : (q, D); candidates : (q, m) positions, −1 for none, of vectors, (n, D), in memory or mapped. metric :
    "euclidean"; "cosine", rows are divided by their norms first; or "inner_product", distances are −xᵀy, so
    that the nearest have the largest product. Equal distances are ordered by position.
    """
    distances = np.empty((len(X), k), dtype=np.float32)
    positions = np.empty((len(X), k), dtype=np.int64)
    by_product, by_angle = metric == "inner_product", metric == "cosine"
    candidates = np.ascontiguousarray(candidates, dtype=np.int64)
    halves = vectors.dtype == np.float16
    in_place = vectors.dtype == np.float32 and not by_product and not by_angle
    rows = (vectors.view(np.uint16) if halves else vectors).reshape(-1)  # numba has no float16

    def rank(some: slice) -> None:
        x = np.ascontiguousarray(X[some], dtype=np.float64)
        how = halves, in_place, by_product, by_angle
        rank_rows(x, candidates[some], rows, *how, distances[some], positions[some])

    with Workers(n_jobs, blas=False) as workers:
        check_finite(X, workers)
        workers.run(rank, len(X), RANKED)
    largest = 1.0 if by_angle else float(np.abs(X).max(initial=0.0))
    if largest < LEAST_SQUARED:  # it depends on the vectors whether their distances can be told apart
        largest = max(largest, float(np.abs(vectors[np.maximum(candidates, 0)]).max(initial=0.0)))
    check_squares(distances[positions >= 0], largest)
    return distances, positions


@kernel
def rank_rows(
    X: Float64, candidates: Positions, rows: Any, halves: bool, in_place: bool, by_product: bool,
    by_angle: bool, distances: Float32, positions: Positions,
) -> None:  # fmt: skip
    """The k nearest of each query's candidates, as rank_by_vectors has them.

    rows : flat; halves : of float16; in_place : of float32, and as they are.
    """
    k, n_dims, size = distances.shape[1], X.shape[1], rows.itemsize
    near: Any = np.empty(k)
    y: Any = np.empty(0 if in_place else n_dims, dtype=np.float32)
    for q in range(len(X)):
        listed, where, count = candidates[q], positions[q], 0
        x = X[q] / _length(X[q]) if by_angle else X[q]
        for i in range(min(AHEAD, len(listed))):
            _fetch_row(address(rows) + size * n_dims * max(listed[i], 0), size * n_dims)
        for i in range(len(listed)):
            if i + AHEAD < len(listed):
                _fetch_row(address(rows) + size * n_dims * max(listed[i + AHEAD], 0), size * n_dims)
            if listed[i] < 0:
                continue
            start, at = listed[i] * n_dims, address(y)
            if in_place:
                at = address(rows) + size * start
            elif halves:
                for d in range(n_dims):
                    y[d] = half(rows[start + d])
            else:
                for d in range(n_dims):
                    y[d] = rows[start + d]
            scale = 1.0 / _length(y) if by_angle else 1.0
            far = -dot(x, y) if by_product else squared_apart(address(x), at, n_dims, scale)
            if count < k or far <= near[0]:
                count = offer(near, where, count, far, listed[i])
        in_order(near, where, count)
        distances[q] = near


@kernel
def _length(x: Any) -> float:
    """The norm of a row; 1 if it is 0, by which it can be divided."""
    norm = np.sqrt(dot(x, x))
    if not LEAST_LENGTH <= norm <= MOST_LENGTH:
        norm = norm_of(x)
    return norm if norm > 0 else 1.0


@kernel
def _fetch_row(at: int, size: int) -> None:
    for line in range(0, size, LANES):
        fetch_line(at + line)


def distances_by(metric: str, x: Float64, y: Float64) -> Float64:
    """By which the rows of y, (n, D), are ordered for x, (D,), the nearest first, (n,)."""
    if metric == "inner_product":
        products: Float64 = np.einsum("nd,d->n", y, x)
        return -products
    x, y = (_unit(x[None])[0], _unit(y)) if metric == "cosine" else (x, y)
    squared: Float64 = np.einsum("nd,nd->n", y - x, y - x)
    return squared


def _unit(rows: Float64) -> Float64:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    divided: Float64 = rows / np.where(norms > 0, norms, 1)
    return divided
