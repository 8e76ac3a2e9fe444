"""Exact search: the scan, or tables of substrings where these are faster. The answers are the same.

Tables take some ten bytes for each byte of a code, and the time of thousands of scans: they are made once so
many queries have been asked, and if they take but a part of the memory. They know the codes up to some
position; those that came since are scanned, until they are many.
"""

from __future__ import annotations

import os
import threading
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from auxbit.blocks import Workers
from auxbit.codes import Packed
from auxbit.index import linear
from auxbit.index.code_blocks import LANES, CodeBlocks, LaneMasks
from auxbit.index.multi_index import MultiIndex, worthwhile

Distances = npt.NDArray[np.int32]
Positions = npt.NDArray[np.int64]
Ranges = tuple[Positions, Distances, Positions]

TAIL_SHARE = 8  # tables are made anew when an eighth of the codes came after them
MEMORY_SHARE = 8  # of the machine's memory, that tables may take if nobody asked for them
TRIALS = 64  # queries after which tables are judged by how many of them they finish:
LEAST_FINISHED = 0.6  # with a smaller share the rest, looked for twice, takes more than they save
CODES_A_QUERY = 500  # to make tables costs as much as they save in a query for so many codes


class ExactSearch:
    """Searches a CodeBlocks. kind : "linear", "multi" or "auto", the faster of them, query by query."""

    def __init__(self, kind: str, n_bits: int) -> None:
        self.kind, self.n_bits = kind, n_bits
        self._tables: MultiIndex | None = None
        self._made_of: tuple[CodeBlocks, int] | None = None  # and its version
        self._asked = 0  # queries that tables would have been worthwhile for, since they were made
        self._tried: dict[int, tuple[int, int]] = {}  # by bits of k: queries, and how many tables finished
        self._building = threading.Lock()

    def nearest(
        self, codes: CodeBlocks, allowed: LaneMasks, queries: Packed, k: int, workers: Workers
    ) -> tuple[Distances, Positions]:
        """The k nearest allowed codes, (q, k), by (distance, position), as linear.nearest has them."""
        tables = self._up_to_date(codes, len(queries), workers, k=k)
        if tables is None:
            return linear.nearest(codes.planes, allowed, queries, self.n_bits, k, workers)
        distances, positions, finished = tables.nearest(queries, k, allowed, workers)
        self._note(k, finished)
        if not finished.all():
            rest = ~finished
            found = linear.nearest(codes.planes, allowed, queries[rest], self.n_bits, k, workers)
            distances[rest], positions[rest] = found
        if finished.any() and len(tables) < codes.size:
            planes, masks, first = _tail(codes, allowed, len(tables))
            more = linear.nearest(planes, masks, queries[finished], self.n_bits, k, workers)
            more_positions = np.where(more[1] >= 0, more[1] + first, -1)
            merged = merge(distances[finished], positions[finished], more[0], more_positions)
            distances[finished], positions[finished] = merged
        return distances, positions

    def within(
        self, codes: CodeBlocks, allowed: LaneMasks, queries: Packed, radius: int, workers: Workers
    ) -> Ranges:
        """All allowed codes within the radius, as linear.within has them."""
        tables = self._up_to_date(codes, len(queries), workers, radius=radius)
        if tables is None:
            return linear.within(codes.planes, allowed, queries, self.n_bits, radius, workers)
        lims, distances, positions, finished = tables.within(queries, radius, allowed, workers)
        answers: list[tuple[Ranges, Positions]] = [((lims, distances, positions), np.arange(len(queries)))]
        if not finished.all():
            rest = np.flatnonzero(~finished)
            more = linear.within(codes.planes, allowed, queries[rest], self.n_bits, radius, workers)
            answers.append((more, rest))
        if finished.any() and len(tables) < codes.size:
            planes, masks, first = _tail(codes, allowed, len(tables))
            rows = np.flatnonzero(finished)
            lims, distances, positions = linear.within(
                planes, masks, queries[rows], self.n_bits, radius, workers
            )
            answers.append(((lims, distances, positions + first), rows))
        return answers[0][0] if len(answers) == 1 else merge_ranges(answers, len(queries))

    def _up_to_date(
        self, codes: CodeBlocks, n_queries: int, workers: Workers, *, k: int = 0, radius: int = -1
    ) -> MultiIndex | None:
        """The tables, made or made anew where that pays, or None where a scan is the better choice.

        Another thread may make others meanwhile: what tables cover is asked of them, not of this object.
        """
        if self.kind == "linear" or not codes.size or not n_queries:
            return None
        if self.kind == "auto" and not worthwhile(codes.size, self.n_bits, k=k, radius=radius):
            return None
        tried, finished = self._tried.get(k.bit_length(), (0, 0))
        if self.kind == "auto" and k and tried >= TRIALS and finished < LEAST_FINISHED * tried:
            return None
        with self._building:
            known = self._made_of == (codes, codes.version)
            tail = codes.size - (len(self._tables) if known and self._tables is not None else 0)
            self._asked += n_queries
            if tail > codes.size // TAIL_SHARE and self._pays(codes):
                self._tables = MultiIndex.build(codes.packed(), self.n_bits, workers)
                self._made_of, self._asked, self._tried = (codes, codes.version), 0, {}
            elif tail > codes.size // 2:
                return None
            return self._tables

    def _note(self, k: int, finished: npt.NDArray[np.bool_]) -> None:
        """Keep how well tables do for such k: on codes that lie far apart they seldom finish."""
        with self._building:
            tried, done = self._tried.get(k.bit_length(), (0, 0))
            self._tried[k.bit_length()] = tried + len(finished), done + int(finished.sum())

    def _pays(self, codes: CodeBlocks) -> bool:
        """Whether to make tables now."""
        if self.kind == "multi":
            return True
        enough = self._asked * CODES_A_QUERY >= codes.size
        return enough and MultiIndex.bytes_for(codes.size, self.n_bits) * MEMORY_SHARE <= _memory()


def _tail(
    codes: CodeBlocks, allowed: LaneMasks, covered: int
) -> tuple[npt.NDArray[np.uint8], LaneMasks, int]:
    """The blocks with codes past the first `covered`, masks of these codes, the first block's position."""
    block, begun = divmod(covered, LANES)
    masks = allowed[block:].copy()
    if begun:
        masks[0] &= ~np.uint64((1 << begun) - 1)
    return codes.planes[block:], masks, block * LANES


def merge(
    distances: Distances, positions: Positions, others: Distances, other_positions: Positions
) -> tuple[Distances, Positions]:
    """The k first of two answers to the same queries, (q, k) each, of different positions."""
    k = distances.shape[1]
    all_distances = np.hstack([distances, others])
    all_positions = np.hstack([positions, other_positions])
    # padding has the largest distance of all, so its position of -1 does no harm
    order = np.lexsort((all_positions, all_distances), axis=1)[:, :k]
    return (
        np.take_along_axis(all_distances, order, axis=1),
        np.take_along_axis(all_positions, order, axis=1),
    )


def merge_ranges(answers: list[tuple[Ranges, Positions]], n_queries: int) -> Ranges:
    """One answer of several, each with the numbers of the queries that it is about."""
    queries = np.concatenate([np.repeat(rows, np.diff(lims)) for (lims, _, _), rows in answers])
    distances = np.concatenate([each[1] for each, _ in answers])
    positions = np.concatenate([each[2] for each, _ in answers])
    order = np.lexsort((positions, distances, queries))
    lims = np.zeros(n_queries + 1, dtype=np.int64)
    np.cumsum(np.bincount(queries, minlength=n_queries), out=lims[1:])
    return lims, distances[order], positions[order]


@lru_cache(maxsize=1)
def _memory() -> int:
    """The machine's memory in bytes; where it does not say, 8 GB."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return 8 * 10**9
