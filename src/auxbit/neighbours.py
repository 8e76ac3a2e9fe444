"""Exact nearest neighbours among vectors: the ground truth that codes are measured against."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from auxbit.blocks import BLOCK_ROWS, Workers, block_slices
from auxbit.checks import LARGEST, check_integer
from auxbit.compiled import kernel
from auxbit.errors import InvalidInput

Ids = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Array = npt.NDArray[Any]

QUERY_BLOCK, MOST_BASE_ROWS = 128, 16384
UNIT = 2.0**-24  # unit roundoff of float32


def ground_truth(X_base: npt.ArrayLike, X_query: npt.ArrayLike, k: int, *, n_jobs: int | None = None) -> Ids:
    """Row numbers, (q, k) int64, of the k Euclidean nearest base rows to each query, by (distance, id).

    Exact for squared distances summed in float64 from the differences: products in float32 only sieve out
    rows that their rounding-error bound proves too far. Memory-mapped rows are read twice, block by block.
    """
    base, queries = _check_vectors(X_base, "X_base"), _check_vectors(X_query, "X_query")
    n, n_dims = base.shape
    if queries.shape[1] != n_dims:
        raise InvalidInput(f"X_query must have the {n_dims} columns of X_base, got {queries.shape[1]}.")
    k = check_integer("k", k, 1, n, f"X_base has {n} rows.")
    with Workers(n_jobs) as workers:
        return _nearest(_Sieve.measure(base, queries, workers), base, queries, k, workers)[1]


def nearest_scaled(
    base: Any, queries: npt.NDArray[np.float32], k: int, workers: Workers
) -> tuple[Float64, Ids]:
    """As `ground_truth`, of rows that are read by slices, once, and are known to lie within ±2 of 0.

    base : (n, D) as `mac.shard.Slices`. Also returns the squared distances, (q, k), inf beyond n rows.
    """
    reach = max(2.0, float(np.abs(queries).max()))
    sieve = _Sieve.within(np.zeros(base.shape[1]), reach)
    return _nearest(sieve, base, queries, k, workers, most_rows=BLOCK_ROWS)


def _nearest(
    sieve: _Sieve, base: Any, queries: Array, k: int, workers: Workers, most_rows: int = MOST_BASE_ROWS
) -> tuple[Float64, Ids]:
    """Squared distances and rows of the k nearest, reading the base block by block."""
    n, n_dims = base.shape
    base_rows = int(np.clip(2**22 // n_dims, 256, most_rows))
    query_rows = max(1, min(QUERY_BLOCK, 2**23 // max(k, base_rows)))
    best = np.full((len(queries), k), np.inf)
    ids = np.full((len(queries), k), -1, dtype=np.int64)
    asked = sieve.shrink(queries, workers)
    for rows in block_slices(n, base_rows):
        block = sieve.shrink(base[rows], workers)

        def scan(some: slice, start: int = rows.start, block: _Shrunk = block) -> None:
            _update(sieve, asked.rows(some), block, start, best[some], ids[some])

        workers.run(scan, len(queries), query_rows)
    return best, ids


class _Shrunk(NamedTuple):
    """Rows as they came, their centred, scaled copies in float32, and the squared norms of those."""

    raw: Array
    small: npt.NDArray[np.float32]
    norms: Float64

    def rows(self, some: slice) -> _Shrunk:
        return _Shrunk(self.raw[some], self.small[some], self.norms[some])


class _Sieve(NamedTuple):
    """How rows are centred and scaled, and how far products of their float32 copies may be off.

    With x' = scale (x − centre), x̃ its float32 copy and u the unit roundoff, ‖q'‖² + ‖b'‖² − 2q̃ᵀb̃ as computed
    is within error (‖q'‖+‖b'‖)² ≤ 2 error (‖q'‖²+‖b'‖²) of ‖q'−b'‖²: γ_d/2 comes from summing d products in
    any order, u each from rounding the vectors, ‖b'‖² and the sum; the rest is slack for float64.
    """

    centre: Float64
    scale: float
    error: float
    underflow: float

    @classmethod
    def measure(cls, base: Array, queries: Array, workers: Workers) -> _Sieve:
        low, high, centre = _extent(base, "X_base", workers)
        query_low, query_high, _ = _extent(queries, "X_query", workers)
        corners = np.concatenate([low, high, query_low, query_high]) - np.tile(centre, 4)
        return cls.within(centre, float(np.abs(corners).max()))

    @classmethod
    def within(cls, centre: Float64, reach: float) -> _Sieve:
        """For rows that are nowhere farther than `reach` from the centre."""
        reach = max(reach, 2.0**-400)  # so that the square of the scale is finite
        n_dims = len(centre)
        gamma = n_dims * UNIT / (1 - n_dims * UNIT)
        return cls(centre, 2.0 ** -np.ceil(np.log2(reach)), gamma / 2 + 6 * UNIT, n_dims * 2.0**-115)

    def shrink(self, X: Array, workers: Workers) -> _Shrunk:
        raw = np.asarray(X)
        shrunk = _Shrunk(raw, np.empty(raw.shape, dtype=np.float32), np.empty(len(raw)))

        def convert(rows: slice) -> None:
            block = (raw[rows].astype(np.float64) - self.centre) * self.scale
            shrunk.small[rows] = block
            shrunk.norms[rows] = np.einsum("ij,ij->i", block, block)

        workers.run(convert, len(raw), 1024)
        return shrunk

    def threshold(self, furthest: Float64, norms: Float64) -> npt.NDArray[np.float32]:
        """What ‖b'‖² (1 − 2 error) − 2q̃ᵀb̃ cannot exceed where b is as near to q as `furthest`."""
        limit = furthest * self.scale**2 - norms * (1 - 2 * self.error) + self.underflow
        return np.nextafter(limit.astype(np.float32), np.float32(np.inf))


def _update(sieve: _Sieve, asked: _Shrunk, block: _Shrunk, start: int, best: Float64, ids: Ids) -> None:
    """Let the base rows start, start+1, … compete for the k places of each query in `best` and `ids`."""
    k = best.shape[1]
    bound = (-2 * asked.small) @ block.small.T
    bound += (block.norms * (1 - 2 * sieve.error)).astype(np.float32)
    furthest = best[:, -1]
    if start == 0 and k < len(block.raw):  # any k rows bound the k-th distance from above
        seeds = np.argpartition(bound, k - 1, axis=1)[:, :k]
        owners = np.repeat(np.arange(len(seeds)), k)
        furthest = _pair_distances(asked.raw, block.raw, owners, seeds.ravel()).reshape(-1, k).max(axis=1)
    owners, rows = np.nonzero(bound <= sieve.threshold(furthest, asked.norms)[:, None])
    distances = _pair_distances(asked.raw, block.raw, owners, rows)
    order = np.lexsort((distances, owners))  # stable: ties stay in the order of ids
    _merge(owners[order], distances[order], rows[order] + start, best, ids)


def _pair_distances(A: Array, B: Array, left: Ids, right: Ids) -> Float64:
    """Squared distances between rows left[i] of A and right[i] of B, in float64."""
    out = np.empty(len(left))
    for some in block_slices(len(left), max(1, 2**20 // A.shape[1])):
        _squared_distances(A[left[some]].astype(np.float64), B[right[some]].astype(np.float64), out[some])
    return out


@kernel
def _squared_distances(A: Float64, B: Float64, out: Float64) -> None:
    for i in range(A.shape[0]):
        total = 0.0
        for j in range(A.shape[1]):
            total += (A[i, j] - B[i, j]) ** 2
        out[i] = total


@kernel
def _merge(owners: Ids, distances: Float64, rows: Ids, best: Float64, ids: Ids) -> None:
    """Merge candidates, sorted by (owner, distance), into the owners' sorted k; the old win ties."""
    k = best.shape[1]
    i = 0
    while i < len(owners):
        owner = owners[i]
        old_best, old_ids, old = best[owner].copy(), ids[owner].copy(), 0
        for place in range(k):
            if i < len(owners) and owners[i] == owner and distances[i] < old_best[old]:
                best[owner, place], ids[owner, place] = distances[i], rows[i]
                i += 1
            else:
                best[owner, place], ids[owner, place] = old_best[old], old_ids[old]
                old += 1
        while i < len(owners) and owners[i] == owner:
            i += 1


def _check_vectors(X: npt.ArrayLike, name: str) -> Array:
    vectors = np.asarray(X)
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiub" or 0 in vectors.shape:
        raise InvalidInput(
            f"{name} must be a 2-D array of numbers with at least one row and one column, "
            f"got shape {vectors.shape} of {vectors.dtype}."
        )
    return vectors


def _extent(X: Array, name: str, workers: Workers) -> tuple[Float64, Float64, Float64]:
    """Smallest, largest and mean values of the columns."""

    def extent(rows: slice) -> tuple[Float64, Float64, Float64]:
        block = np.asarray(X[rows]).astype(np.float64)
        with np.errstate(all="ignore"):  # what is not finite is refused below
            return block.min(axis=0), block.max(axis=0), block.sum(axis=0)

    lows, highs, sums = (np.array(each) for each in zip(*workers.map(extent, len(X))))
    low, high = lows.min(axis=0), highs.max(axis=0)
    if not (low >= -LARGEST).all() or not (high <= LARGEST).all():  # NaN fails every comparison
        raise InvalidInput(
            f"{name} must be finite, of magnitude at most {LARGEST:g}, and has a column with "
            f"values from {low.min()} to {high.max()}. Remove or fill such rows first."
        )
    return low, high, sums.sum(axis=0) / len(X)
