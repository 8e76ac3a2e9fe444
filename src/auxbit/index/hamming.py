"""HammingIndex: exact search over packed codes by a linear scan with popcounts.

Positions count codes in the order of insertion. Kernels speak of positions only; ids are looked up at
the end. All answers are ordered by (distance, position).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.blocks import Workers, resolve_n_jobs
from auxbit.codes import Packed, bytes_per_code, check_n_bits, check_packed
from auxbit.compiled import kernel
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.popcount import CHUNK, Planes, chunk_distances, from_planes, query_words, to_planes

Distances = npt.NDArray[np.int32]
Ids = npt.NDArray[np.int64]

PADDING_ID = -1
PADDING_DISTANCE = np.iinfo(np.int32).max
QUERY_BLOCK = 16  # queries that share one pass over the codes
MAX_ID = np.iinfo(np.int64).max


class HammingIndex:
    """Exact nearest neighbours in Hamming distance among codes of `n_bits` bits.

    >>> index = HammingIndex(n_bits=32)
    >>> index.add(codes)
    >>> distances, ids = index.search(query_codes, k=10)
    """

    def __init__(self, n_bits: int, *, n_jobs: int | None = None) -> None:
        self.n_bits = check_n_bits(n_bits)
        resolve_n_jobs(n_jobs)  # says now what is wrong with it
        self.n_jobs = n_jobs
        self._size = 0
        self._planes: Planes = to_planes(np.zeros((0, bytes_per_code(self.n_bits)), np.uint8), self.n_bits)
        self._ids: Ids = np.zeros(0, dtype=np.int64)
        self._next_id = 0
        # Made when ids first come out of order: rising ids cannot collide, and a dict is large.
        self._positions: dict[int, int] | None = None

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"HammingIndex(n_bits={self.n_bits}) of {self._size} codes"

    @property
    def codes(self) -> Packed:
        """The packed codes in the order of insertion, (n, ceil(n_bits/8)) uint8, a copy."""
        return from_planes(self._planes[:, : self._size], self.n_bits)

    @property
    def ids(self) -> Ids:
        """The ids in the order of insertion, (n,) int64, a copy."""
        return self._ids[: self._size].copy()

    def add(self, codes: npt.ArrayLike, ids: npt.ArrayLike | None = None, *, upsert: bool = False) -> None:
        """Add packed codes, (n, ceil(n_bits/8)) uint8, under `ids`, (n,) integers, or numbered on.

        An id that is there already is an error, and nothing is added; with `upsert` its code is replaced
        where it stands, as if the codes came one by one.
        """
        packed = check_packed(codes, self.n_bits)
        new_ids = self._number_on(len(packed)) if ids is None else _check_ids(ids, len(packed))
        if len(new_ids) == 0:
            return
        planes = to_planes(packed, self.n_bits)
        rising = new_ids[0] >= self._next_id and bool((np.diff(new_ids) > 0).all())
        if upsert and not rising:
            self._upsert(planes, new_ids)
            return
        if not rising:
            self._refuse_duplicates(new_ids)
        self._append(planes, new_ids)

    def search(self, query_codes: npt.ArrayLike, k: int = 10) -> tuple[Distances, Ids]:
        """The k nearest codes to each query, ordered by distance, then position of insertion.

        query_codes : (q, ceil(n_bits/8)) uint8 → distances (q, k) int32, ids (q, k) int64. Where there are
        fewer than k codes, rows end in ids of -1 at distance 2**31 - 1, as in FAISS.
        """
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
            raise InvalidParameter("k", k, "an integer of at least 1", "Try k=10.")
        queries, planes, all_ids = self._snapshot(query_codes)
        found = min(int(k), len(all_ids))
        distances = np.full((len(queries), k), PADDING_DISTANCE, dtype=np.int32)
        ids = np.full((len(queries), k), PADDING_ID, dtype=np.int64)
        if not found:
            return distances, ids

        def scan(rows: slice) -> None:
            block = queries[rows]
            positions = np.empty((len(block), found), dtype=np.int64)
            _search_block(planes, block, self.n_bits, distances[rows, :found], positions)
            ids[rows, :found] = all_ids[positions]

        block_rows = max(1, min(QUERY_BLOCK, 2**21 // found))  # a worker's candidates stay below 50 MB
        with Workers(self.n_jobs) as workers:
            workers.run(scan, len(queries), block_rows)
        return distances, ids

    def search_radius(self, query_codes: npt.ArrayLike, r: int) -> tuple[Ids, Distances, Ids]:
        """All codes within distance r, inclusive, ordered by distance, then position of insertion.

        Returns lims (q+1,) int64, distances int32, ids int64, FAISS's layout: the answers to query i are
        those from lims[i] up to lims[i+1].
        """
        if isinstance(r, bool) or not isinstance(r, (int, np.integer)) or r < 0:
            raise InvalidParameter("r", r, "an integer of at least 0", "Try r=2.")
        queries, planes, all_ids = self._snapshot(query_codes)
        radius = min(int(r), self.n_bits)
        # starts[i, d]: where the answers to query i at distance d begin; at first, how many they are.
        starts = np.zeros((len(queries), radius + 1), dtype=np.int64)
        lims = np.zeros(len(queries) + 1, dtype=np.int64)

        def count(rows: slice) -> None:
            _count_block(planes, queries[rows], starts[rows])

        def fill(rows: slice) -> None:
            _fill_block(planes, queries[rows], all_ids, starts[rows], distances, ids)

        with Workers(self.n_jobs) as workers:
            workers.run(count, len(queries), QUERY_BLOCK)
            np.cumsum(starts.sum(axis=1), out=lims[1:])
            starts[...] = (np.cumsum(starts.ravel()) - starts.ravel()).reshape(starts.shape)
            distances = np.empty(lims[-1], dtype=np.int32)
            ids = np.empty(lims[-1], dtype=np.int64)
            workers.run(fill, len(queries), QUERY_BLOCK)
        return lims, distances, ids

    def _snapshot(self, query_codes: npt.ArrayLike) -> tuple[Planes, Planes, Ids]:
        """Queries as rows of words, planes and ids of the codes now in the index."""
        packed = check_packed(query_codes, self.n_bits, "query_codes")
        queries = query_words(packed, self.n_bits)
        return queries, self._planes[:, : self._size], self._ids[: self._size]

    def _number_on(self, n: int) -> Ids:
        if self._next_id + n - 1 > MAX_ID:
            raise InvalidInput(f"ids cannot be numbered on: the largest id is {self._next_id - 1}. Pass ids.")
        return np.arange(n, dtype=np.int64) + (self._next_id if n else 0)

    def _append(self, planes: Planes, ids: Ids) -> None:
        first, size = self._size, self._size + len(ids)
        if size > len(self._ids):
            capacity = max(size, 2 * len(self._ids))
            grown: Planes = np.empty((len(planes), capacity), dtype=planes.dtype)
            grown[:, :first] = self._planes[:, :first]
            grown_ids = np.empty(capacity, dtype=np.int64)
            grown_ids[:first] = self._ids[:first]
            self._planes, self._ids = grown, grown_ids
        self._planes[:, first:size] = planes
        self._ids[first:size] = ids
        if self._positions is not None:
            self._positions.update(zip(ids.tolist(), range(first, size)))
        if len(ids):
            self._next_id = max(self._next_id, int(ids.max()) + 1)
        self._size = size

    def _where(self) -> dict[int, int]:
        if self._positions is None:
            self._positions = dict(zip(self._ids[: self._size].tolist(), range(self._size)))
        return self._positions

    def _refuse_duplicates(self, ids: Ids) -> None:
        where, seen = self._where(), set[int]()
        for each in ids.tolist():
            if each in where or each in seen:
                place = "is already in the index" if each in where else "comes twice in ids"
                raise InvalidInput(f"id {each} {place}; nothing was added. upsert=True replaces its code.")
            seen.add(each)

    def _upsert(self, planes: Planes, ids: Ids) -> None:
        """Last one wins; a new id stands where it came first."""
        where = self._where()
        last = {each: row for row, each in enumerate(ids.tolist())}  # in the order of first appearance
        old = [(where[each], row) for each, row in last.items() if each in where]
        new = [row for each, row in last.items() if each not in where]
        if old:
            targets, rows = zip(*old)
            self._planes[:, list(targets)] = planes[:, list(rows)]
        if new:
            self._append(planes[:, new], ids[new])


def _check_ids(ids: npt.ArrayLike, n: int) -> Ids:
    given = np.asarray(ids)
    if given.ndim != 1 or len(given) != n:
        raise InvalidInput(f"ids must be one integer a code, shape ({n},), got shape {given.shape}.")
    if n and given.dtype.kind not in "iu":
        raise InvalidInput(f"ids must be integers, got {given.dtype}.")
    if n and (int(given.min()) < 0 or int(given.max()) > MAX_ID):
        bad = int(given.min()) if int(given.min()) < 0 else int(given.max())
        raise InvalidInput(f"ids must lie in 0..2**63-1, got {bad}: -1 marks missing answers.")
    return given.astype(np.int64)


@kernel
def _search_block(planes: Any, queries: Any, n_bits: int, distances: Any, positions: Any) -> None:
    """Fill distances and positions, (q, k), with the k nearest of at least k codes to each query.

    A candidate is kept if it is nearer than `limit`, which falls as soon as k candidates are at least as
    near as it: later codes at that distance lose their ties. When 2k are kept, only the best k stay.
    """
    n_queries, k = positions.shape
    n = planes.shape[1]
    kept_distance = np.empty((n_queries, 2 * k), dtype=np.int32)
    kept_position = np.empty((n_queries, 2 * k), dtype=np.int64)
    kept = np.zeros(n_queries, dtype=np.int64)
    limit = np.full(n_queries, n_bits + 1, dtype=np.int64)
    nearer = np.zeros(n_queries, dtype=np.int64)  # candidates below the limit, fewer than k
    histogram = np.zeros((n_queries, n_bits + 1), dtype=np.int64)
    buffer = np.empty(CHUNK, dtype=np.uint16)
    for start in range(0, n, CHUNK):
        stop = min(n, start + CHUNK)
        for i in range(n_queries):
            if chunk_distances(planes, start, stop, queries[i], buffer) >= limit[i]:
                continue
            for j in range(stop - start):
                d = np.int64(buffer[j])
                if d >= limit[i]:
                    continue
                if kept[i] == 2 * k:
                    kept[i] = _keep_best(kept_distance[i], kept_position[i], limit[i], k - nearer[i])
                kept_distance[i, kept[i]] = d
                kept_position[i, kept[i]] = start + j
                kept[i] += 1
                histogram[i, d] += 1
                nearer[i] += 1
                while nearer[i] >= k:
                    limit[i] -= 1
                    nearer[i] -= histogram[i, limit[i]]
    for i in range(n_queries):
        _sort_best(kept_distance[i, : kept[i]], kept_position[i], n_bits, distances[i], positions[i])


@kernel
def _keep_best(distance: Any, position: Any, limit: int, n_at_limit: int) -> int:
    """Keep, in order, the candidates below `limit` and the first `n_at_limit` at it; return how many."""
    n = 0
    for j in range(len(distance)):
        if distance[j] > limit or (distance[j] == limit and n_at_limit == 0):
            continue
        if distance[j] == limit:
            n_at_limit -= 1
        distance[n] = distance[j]
        position[n] = position[j]
        n += 1
    return n


@kernel
def _sort_best(distance: Any, position: Any, n_bits: int, out_distance: Any, out_position: Any) -> None:
    """Sort by counting, which keeps the order of positions, and write the first k."""
    place = np.zeros(n_bits + 2, dtype=np.int64)
    for j in range(len(distance)):
        place[distance[j] + 1] += 1
    for d in range(n_bits + 1):
        place[d + 1] += place[d]
    for j in range(len(distance)):
        at = place[distance[j]]
        place[distance[j]] += 1
        if at < len(out_distance):
            out_distance[at] = distance[j]
            out_position[at] = position[j]


@kernel
def _count_block(planes: Any, queries: Any, counts: Any) -> None:
    """Count the codes at each distance 0..r from each query. counts : (q, r+1) int64, zeros at first."""
    radius = counts.shape[1] - 1
    buffer = np.empty(CHUNK, dtype=np.uint16)
    for start in range(0, planes.shape[1], CHUNK):
        stop = min(planes.shape[1], start + CHUNK)
        for i in range(len(queries)):
            if chunk_distances(planes, start, stop, queries[i], buffer) <= radius:
                for j in range(stop - start):
                    if buffer[j] <= radius:
                        counts[i, buffer[j]] += 1


@kernel
def _fill_block(planes: Any, queries: Any, all_ids: Any, starts: Any, distances: Any, ids: Any) -> None:
    """Write the answers within r where they belong; starts : (q, r+1), moved on by each answer."""
    radius = starts.shape[1] - 1
    buffer = np.empty(CHUNK, dtype=np.uint16)
    for start in range(0, planes.shape[1], CHUNK):
        stop = min(planes.shape[1], start + CHUNK)
        for i in range(len(queries)):
            if chunk_distances(planes, start, stop, queries[i], buffer) <= radius:
                for j in range(stop - start):
                    if buffer[j] <= radius:
                        at = starts[i, buffer[j]]
                        starts[i, buffer[j]] += 1
                        distances[at] = buffer[j]
                        ids[at] = all_ids[start + j]
