"""Exact search of codes by a linear scan: the k nearest, and all within a radius.

Queries go over the codes in groups, a tile of codes at a time, so that a tile is fetched once a group. Few
queries share out the codes instead. Answers are ordered by (distance, position), whatever the split.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from auxbit.blocks import Workers, block_slices
from auxbit.codes import Packed
from auxbit.errors import InvalidInput
from auxbit.index.code_blocks import LANES, LaneMasks, Planes, Positions
from auxbit.index.scan_kernels import Codes, QueryWords, tile_blocks
from auxbit.index.selection import (
    QUERY_GROUP,
    Counts,
    Distances,
    Hits,
    count_lanes,
    place_hits,
    scan_nearest,
    scan_within,
)

PADDING_DISTANCE = np.iinfo(np.int32).max
PADDING_POSITION = -1
MIN_CAPACITY = 2**8  # candidates that are kept for a query before the best are chosen
MAX_CANDIDATES = 2**21  # of a group: 16 MB a worker
FEW_QUERIES = 2**3  # a job; fewer than that share out the codes
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
        """How many codes may be answered, or a number of at least `enough`."""
        return count_lanes(self.allowed, self.start, self.stop, enough)

    def shares(self, n_jobs: int) -> list[slice]:
        """The blocks in as many slices as it takes to keep the jobs busy: one if the queries do."""
        few = len(self.words) < FEW_QUERIES * n_jobs
        n = max(1, min(n_jobs, self.codes.size // PART_BYTES)) if few else 1
        return list(block_slices(self.stop, max(1, -(-self.stop // n)))) or [slice(0, 0)]

    def groups(self, n_shares: int, n_jobs: int, most: int) -> list[slice]:
        """The queries in slices of at most `most`, smaller where that keeps the jobs busy."""
        a_job = len(self.words) if n_shares > 1 else -(-len(self.words) // n_jobs)
        return list(block_slices(len(self.words), max(1, min(most, a_job))))


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

        _merge(list(workers.map(search_share, len(shares), 1)), distances[rows], positions[rows])
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


def _merge(answers: list[tuple[Distances, Positions]], distances: Distances, positions: Positions) -> None:
    """Write the nearest of the answers of shares, given in the order of positions."""
    every_distance = np.concatenate([share[0] for share in answers], axis=1)
    every_position = np.concatenate([share[1] for share in answers], axis=1)
    order = np.argsort(every_distance, axis=1, kind="stable")[:, : distances.shape[1]]
    distances[:, : order.shape[1]] = np.take_along_axis(every_distance, order, axis=1)
    positions[:, : order.shape[1]] = np.take_along_axis(every_position, order, axis=1)


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
    # Answers stand by query, distance and share: where the first of each stands.
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
    a_tile = len(scan.words) * tile_blocks(scan.words.shape[1]) * LANES
    buffer = np.empty(a_tile + 2**15, dtype=np.int64)
    hits, start = [], scan.start
    while start < scan.stop:
        start, n_hits = scan_within(*scan._replace(start=start), counts, buffer)
        hits.append(buffer[:n_hits].copy())
    return hits
