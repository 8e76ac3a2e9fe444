"""Kernels that choose: the k nearest of the codes that a scan comes upon, or all within a radius.

A hit is one number, query << QUERY_AT | distance << DISTANCE_AT | position.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.compiled import kernel
from auxbit.index.code_blocks import LANES, LaneMasks, Positions
from auxbit.index.scan_kernels import Codes, QueryWords, address, next_hit, tile_blocks, trailing_zeros
from auxbit.popcount import popcount

Distances = npt.NDArray[np.int32]
Hits = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int64]

DISTANCE_AT, QUERY_AT = 44, 55
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
                    lane = trailing_zeros(hits)
                    hits &= hits - np.uint64(1)
                    distance = np.int64(block[lane])
                    if distance > most:
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

    counts : (q, r+1) int64, by query and distance. Returns the block to go on with, `stop` at the end, and
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
                    lane = trailing_zeros(hits)
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
