"""Multi-index hashing (Norouzi, Punjani and Fleet): exact search that reads few codes where some are near.

Codes are cut into substrings, each with a table of the codes by its value. Codes that are near the query
are near it in some substring, so they are found a few flips away from the query's own buckets. A search
that would read too much stops, and is left to a scan: sizes of buckets are known before they are read.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from auxbit.blocks import Workers
from auxbit.codes import Packed
from auxbit.index.code_blocks import LaneMasks, Positions
from auxbit.index.multi_index_kernels import (
    DISTANCE_AT,
    NO_KEY,
    PROBE_COST,
    ROOM,
    nearest_block,
    within_block,
)
from auxbit.index.multi_index_tables import (
    LOOK_COST,
    MAX_CODES,
    Keys,
    Tables,
    choose_n_tables,
    make_tables,
    to_words,
)

Distances = npt.NDArray[np.int32]
Finished = npt.NDArray[np.bool_]

PADDING_DISTANCE = np.iinfo(np.int32).max
QUERY_BLOCK = 64
POSITION = MAX_CODES  # the bits of a key that are a position
MAX_KEPT = 2**21  # keys of a block: 16 MB a worker
SCAN_SPEED = 20  # codes that a scan goes over while a search of tables reads one
QUERY_COST = 1500  # of any search, in codes read
KEY_COST = 150  # of an answer beyond what it costs a scan
MIN_BITS, MAX_BITS = 24, 128  # shorter codes are dense, where a scan soon has enough; longer take much memory


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
        a_code = 4 if n_bits <= 32 else 8 * -(-n_bits // 64)
        return choose_n_tables(n, n_bits) * (a_code + 4) * n

    def nearest(
        self, queries: Packed, k: int, allowed: LaneMasks, workers: Workers, budget: float | None = None
    ) -> tuple[Distances, Positions, Finished]:
        """The k nearest allowed codes, by (distance, position), to each query whose search is finished.

        queries : (q, width) packed, allowed : (n_blocks,) lane masks → distances (q, k) int32, positions
        (q, k) int64, finished (q,). Rows end in positions of -1 at distance 2**31 - 1 where there are fewer
        than k codes; rows that are not finished hold nothing else. budget : what a search may cost, in codes
        read, or math.inf; by default what a scan costs. A search that would cost more stops; where that
        happens to most queries of a block, the rest of it is not begun.
        """
        limit, capacity = self._limit(budget, k), 2 * min(k, len(self)) + ROOM
        farthest = likely_distance(int(np.bitwise_count(allowed).sum()), self.n_bits, 2 * k)
        words = to_words(queries, self.n_bits)
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
        words = to_words(queries, self.n_bits)
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


@lru_cache(maxsize=1024)  # asked for every search, of which the shortest takes no longer
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


def likely_distance(n: int, n_bits: int, k: int) -> int:
    """The distance of the k-th nearest of n codes that are spread evenly: of others it is rarely larger."""
    distance, within = 0, 1
    while n * within < int(k) << n_bits and distance < n_bits:
        distance += 1
        within += math.comb(n_bits, distance)
    return distance
