"""Asymmetric search: codes z by ‖x − f(z)‖², with the query x left as it is.

The distance that orders codes is d(z) = ((norm + T[0, byte 0]) + T[1, byte 1]) + ..., in float32, with the
norm ‖f(z) − b‖² and the tables T of the query, as decoders.py makes them; equal distances are ordered by
position. The squared distance that is answered is d(z) plus the query's offset, at least 0. Every way of
searching gives exactly these answers.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from auxbit.blocks import Workers
from auxbit.codes import Packed
from auxbit.decoders import Decoder
from auxbit.errors import InvalidInput
from auxbit.index.code_blocks import LANES, LaneMasks, Planes, Positions
from auxbit.index.table_bounds import LEVELS, ROUNDING, VALUES, measure_tables, n_tables
from auxbit.index.table_kernels import rerank_rows, scan_blocks
from auxbit.index.table_lookups import TILE, index_bits

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Scalar = TypeVar("Scalar", bound=np.generic)

RESCALE = "Rescale the rows that the hasher is fitted to, and the queries."
QUERY_BLOCK = 256  # queries that share one pass over the codes
RERANKED = 64  # queries whose shortlists a worker ranks at a time
CHUNK_BYTES = 24 * 1024  # indices that these queries go through in turn: they stay in the first-level cache
EXACT_BLOCKS = 16  # of 64 codes, whose exact distances are the first limit
BOUNDED_BLOCKS = 32  # so many blocks are worth preparing bounds for
PART_BLOCKS = 512  # the fewest blocks that are worth a thread of their own
ADDITIVE = 1e-3  # the part of tables' spread that they may deviate by from sums over bits
WIDE_TABLES = 30  # with more, sums of bytes are too coarse
GRID_SAMPLE = 65536  # norms that the grid of levels is made from


class CodeNorms:
    """Squared norms ‖f(z) − b‖² of codes by position, float32, and a level of 64 of each for the bounds.

    Level i holds norms of at least `floors[i]`. Levels are made anew when the number of codes has doubled.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.size = 0
        self.largest = 0.0  # |norm|, ever
        self.floors = np.zeros(LEVELS, dtype=np.float32)
        self._norms = np.zeros(0, dtype=np.float32)
        self._levels = np.zeros(0, dtype=np.uint8)
        self._levels_made_at = 0

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
        first, size = self.size, self.size + len(codes)
        self.reserve(size)
        self._put(slice(first, size), codes)
        self.size = size
        if self.size >= 2 * self._levels_made_at and self.size:
            self._make_levels()

    def reserve(self, size: int) -> None:
        """Make room for `size` norms in all."""
        if size > len(self._norms):
            capacity = -(-max(size, len(self._norms) * 5 // 4) // LANES) * LANES
            self._norms, self._levels = _extended(self._norms, capacity), _extended(self._levels, capacity)

    def replace(self, positions: Positions, codes: Packed) -> None:
        """Put the norms of packed codes in the place of those at these positions."""
        self._put(positions, codes)

    def _put(self, where: slice | Positions, codes: Packed) -> None:
        if len(codes):
            with np.errstate(over="ignore", invalid="ignore"):
                norms = self.decoder.squared_norms(codes)
            if not np.isfinite(norms).all():
                raise InvalidInput(f"reconstructions are too large to be squared in float32. {RESCALE}")
            self.floors[0] = min(self.floors[0], norms.min())
            self.largest = max(self.largest, float(np.abs(norms).max()))
            self._norms[where] = norms
            self._levels[where] = self._level_of(norms)

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


def nearest(
    planes: Planes,
    norms: CodeNorms,
    allowed: LaneMasks,
    tables: Float32,
    offsets: Float32,
    k: int,
    workers: Workers,
) -> tuple[Float32, Positions]:
    """The k nearest of all allowed codes, by (distance, position): squared distances and positions, (q, k).

    planes : (n_blocks, width, 64); allowed : (n_blocks,); tables : (q, width, 256); offsets : (q,).
    Where there are fewer than k codes, ∞ and −1 follow.
    """
    n_queries, n_blocks = len(tables), len(planes)
    if not (n_queries and n_blocks and k):
        return _finished(
            np.full((n_queries, k), np.inf, np.float32), np.full((n_queries, k), -1, np.int64), offsets
        )
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
    return _finished(*_merged(distances, positions), offsets)


def rerank(
    planes: Planes, norms: CodeNorms, tables: Float32, offsets: Float32, shortlist: Positions, k: int,
    workers: Workers,
) -> tuple[Float32, Positions]:  # fmt: skip
    """The k nearest of each query's shortlist, (q, s) positions with −1 for none; answers as `nearest`."""
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
    planes: Planes,
    norms: CodeNorms,
    allowed: LaneMasks,
    tables: Float32,
    blocks: range,
    distances: Float32,
    positions: Positions,
) -> None:
    """The k nearest of a few queries among some blocks, into (q, k) distances and positions."""
    n_queries, width, _ = tables.shape
    bits, slack = _bounds(tables, norms) if len(blocks) > BOUNDED_BLOCKS else (0, np.zeros(n_queries))
    n_exact = EXACT_BLOCKS if bits else len(blocks)
    bits = bits or 8
    wide = n_tables(width, bits, wide=False) > WIDE_TABLES
    n, n_first = n_tables(width, bits, wide), 2 if wide else 1
    chunk = max(1, CHUNK_BYTES // ((n_first + n) * LANES * TILE)) * TILE
    index = _aligned((chunk, n_first + n, LANES))
    rounded = _aligned((n_queries, n_first * LANES + n * (VALUES if bits == 8 else LANES)))
    scan_blocks(
        planes,
        planes.view(np.uint64),
        allowed,
        norms.values,
        norms.levels.view(np.uint64),
        norms.floors,
        tables,
        slack,
        bits,
        wide,
        blocks.start,
        blocks.stop,
        n_exact,
        index.view(np.uint64),
        rounded,
        distances,
        positions,
    )


def _bounds(tables: Float32, norms: CodeNorms) -> tuple[int, Float64]:
    """Bits that are looked up at once, 0 for none, and how far a distance can be below its bound, (q,)."""
    n_queries, width, _ = tables.shape
    sizes, spreads, residuals = np.empty((3, n_queries))
    measure_tables(tables, sizes, spreads, residuals)
    slack = ROUNDING * (width + 2) * (sizes + norms.largest)
    if (residuals <= ADDITIVE * spreads).all():
        return index_bits(), slack + residuals
    return (8 if index_bits() == 6 else 0), slack


def _merged(distances: Float32, positions: Positions) -> tuple[Float32, Positions]:
    """The k nearest of several parts, (parts, q, k) → (q, k)."""
    n_parts, n_queries, k = distances.shape
    if n_parts == 1:
        return distances[0], positions[0]
    all_distances = distances.transpose(1, 0, 2).reshape(n_queries, -1)
    all_positions = positions.transpose(1, 0, 2).reshape(n_queries, -1)
    order = np.lexsort((all_positions, all_distances), axis=1)[:, :k]
    return np.take_along_axis(all_distances, order, 1), np.take_along_axis(all_positions, order, 1)


def _finished(distances: Float32, positions: Positions, offsets: Float32) -> tuple[Float32, Positions]:
    """Squared distances: with the offset, at least 0."""
    return np.maximum(distances + offsets[:, None], np.float32(0)), positions


def _extended(array: npt.NDArray[Scalar], size: int) -> npt.NDArray[Scalar]:
    grown = np.zeros(size, dtype=array.dtype)
    grown[: len(array)] = array
    return grown


def _aligned(shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Zeros that begin at a multiple of 64 bytes."""
    size = int(np.prod(shape))
    raw = np.zeros(size + LANES, dtype=np.uint8)
    start = -raw.ctypes.data % LANES
    return raw[start : start + size].reshape(shape)
