"""Kernels of core/maps.py and core/decoders.py: distances, scaling, norms, thresholds, tables of queries.

They are in a file of their own because numba takes time to import and 60 MB: a process that only opens a
collection has no use for it. The two modules import this one on first use (`Later`); kernels of other files
import what they call from here.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.core.checks import LARGEST_FLOAT32, Array, Float32, Float64, Packed
from auxbit.core.parallel import kernel
from auxbit.core.simd import ROWS, TILE_COLUMNS, address, multiply_pairs, popcount

# ---- Hamming distances from one query to many codes, which are in planes


@kernel
def chunk_distances(planes: Array, start: int, stop: int, query: Array, out: npt.NDArray[np.uint16]) -> int:
    """Write the distances from `query`, (n_words,), to codes start..stop into `out`; return the smallest."""
    n = stop - start
    plane, word = planes[0, start:stop], query[0]
    for i in range(n):
        out[i] = np.uint16(popcount(plane[i] ^ word))
    for w in range(1, planes.shape[0]):
        plane, word = planes[w, start:stop], query[w]
        for i in range(n):
            out[i] += np.uint16(popcount(plane[i] ^ word))
    nearest = np.uint16(65535)
    for i in range(n):
        nearest = min(nearest, out[i])
    return int(nearest)


# ---- Scaling and norms of rows


@kernel
def extent(X: npt.NDArray[Any], low: npt.NDArray[Any], high: npt.NDArray[Any], total: Float64) -> None:
    """Widen low and high to the rows of X and add these to the total, in float64, row after row."""
    for row in range(X.shape[0]):
        for d in range(X.shape[1]):
            x = X[row, d]
            low[d] = x if x < low[d] else low[d]
            high[d] = x if x > high[d] else high[d]
            total[d] += x


@kernel
def shift(X: npt.NDArray[Any], mean: Float64, scale: float, out: Float32) -> None:
    """(X - mean) / scale in float64, rounded once: as fast as memory is, so float32 would gain nothing."""
    for row in range(X.shape[0]):
        for d in range(X.shape[1]):
            out[row, d] = (X[row, d] - mean[d]) / scale


@kernel
def dot(x: Float64, y: Float64) -> float:
    """The inner product in one fixed order, as four sums, which a processor adds at a time."""
    a = b = c = d = 0.0
    whole = len(x) - len(x) % 4
    for i in range(0, whole, 4):
        a += x[i] * y[i]
        b += x[i + 1] * y[i + 1]
        c += x[i + 2] * y[i + 2]
        d += x[i + 3] * y[i + 3]
    for i in range(whole, len(x)):
        a += x[i] * y[i]
    return (a + b) + (c + d)


@kernel
def normalize(X: npt.NDArray[Any], row64: Float64, limit: float, out: npt.NDArray[Any]) -> None:
    """Divide each row by its norm, unless that is 0; beyond the limit to NaN, lest it hide what is wrong."""
    for row in range(X.shape[0]):
        for d in range(X.shape[1]):
            row64[d] = X[row, d]
        norm = np.sqrt(dot(row64, row64))
        if norm == 0:
            norm = 1.0
        elif not norm <= limit:
            norm = np.nan
        for d in range(X.shape[1]):
            out[row, d] = row64[d] / norm


@kernel
def norms(X: npt.NDArray[Any], out: Float64) -> None:
    """‖x‖ of each row, (n,), in units of its largest number: squares neither overflow nor vanish."""
    for row in range(X.shape[0]):
        largest = 0.0
        for d in range(X.shape[1]):
            largest = max(largest, abs(np.float64(X[row, d])))
        unit, total = largest if largest > 0 else 1.0, 0.0
        for d in range(X.shape[1]):
            x = X[row, d] / unit
            total += x * x
        out[row] = largest * np.sqrt(total)


# ---- From scores to packed codes

# a factor that moves the lowest bit of byte k of a word to bit k of the highest byte
GATHER = np.uint64(0x0102040810204080 if sys.byteorder == "little" else 0x8040201008040201)
HIGHEST = np.uint64(56)


@kernel
def threshold(
    scores: Float32,
    bias: Float32,
    margin: Float32,
    start: int,
    out: Packed,
    doubtful: npt.NDArray[np.intp],
    doubts: Packed,
    n_doubtful: int,
) -> int:
    """Pack the signs of scores + bias into the rows of `out` from `start` on.

    Appends the rows that have a score within its margin of 0, or none that is finite, to `doubtful`, and
    to `doubts` which bits these are, packed; returns how many there are by then.
    """
    n_bits, width = scores.shape[1], out.shape[1]
    bits, unsure = np.zeros(8 * width, dtype=np.uint8), np.zeros(8 * width, dtype=np.uint8)
    words, unsure_words = bits.view(np.uint64), unsure.view(np.uint64)
    for row in range(scores.shape[0]):
        sure = True
        for bit in range(n_bits):
            score = scores[row, bit] + bias[bit]
            bits[bit] = score >= 0
            sure &= (abs(score) >= margin[bit]) & (abs(score) <= LARGEST_FLOAT32)
        for byte in range(width):
            out[start + row, byte] = (words[byte] * GATHER) >> HIGHEST
        if not sure:
            for bit in range(n_bits):
                size = abs(scores[row, bit] + bias[bit])
                unsure[bit] = not ((size >= margin[bit]) & (size <= LARGEST_FLOAT32))
            for byte in range(width):
                doubts[n_doubtful, byte] = (unsure_words[byte] * GATHER) >> HIGHEST
            doubtful[n_doubtful] = start + row
            n_doubtful += 1
    return n_doubtful


@kernel
def settle(
    X: Float64, W: Float64, bias: Float64, rows: npt.NDArray[np.intp], doubts: Packed, out: Packed
) -> None:
    """Decide the bits in doubt in float64. X : (m, D) scaled, W : (L, D); row i of X is rows[i] of `out`."""
    for i in range(len(rows)):
        for bit in range(len(W)):
            byte, mask = bit // 8, 1 << bit % 8
            if doubts[i, byte] & mask:
                score = dot(X[i], W[bit]) + bias[bit]
                out[rows[i], byte] = out[rows[i], byte] | mask if score >= 0 else out[rows[i], byte] & ~mask


# ---- Tables of queries for a decoder

LEAST_UNIT = 1e-30
LONGEST = 46_000  # of two rows of integers: their product is below 2**31


@kernel
def round_rows(rows: Float64, whole: npt.NDArray[np.int16], units: Float32) -> None:
    """Rows, (n, D), as multiples of a unit each, rounded into the first D columns of whole; units : (n,)."""
    n_dims = rows.shape[1]
    for i in range(len(rows)):
        largest, squares = 0.0, 0.0
        for d in range(n_dims):
            largest, squares = max(largest, abs(rows[i, d])), squares + rows[i, d] * rows[i, d]
        unit = np.float32(max(largest / 32767, np.sqrt(squares) / LONGEST))
        units[i] = unit if unit >= LEAST_UNIT else np.float32(1.0)  # of zeros, or of what float32 cannot hold
        for d in range(n_dims):
            whole[i, d] = np.int16(np.rint(rows[i, d] / units[i]))


@kernel
def multiply_whole(
    rows: npt.NDArray[np.int16], row_units: Float32, panels: npt.NDArray[np.int16], units: Float32,
    out: Float32,
) -> None:  # fmt: skip
    """The products of rows, (q, 2·pairs), and of all columns of panels, (p, pairs, 64, 2), into (q, 64·p)."""
    n, width, columns = len(rows), 2 * rows.shape[1], out.shape[1]
    scratch = np.empty((ROWS, TILE_COLUMNS), dtype=np.float32)
    last, last_units = np.zeros((ROWS, rows.shape[1]), dtype=np.int16), np.zeros(ROWS, dtype=np.float32)
    whole = n - n % ROWS
    last[: n - whole], last_units[: n - whole] = rows[whole:], row_units[whole:]
    for p in range(len(panels)):
        panel, own = address(panels) + p * width * TILE_COLUMNS, address(units) + 4 * p * TILE_COLUMNS
        for r in range(0, whole, ROWS):
            to = address(out) + 4 * (r * columns + p * TILE_COLUMNS)
            multiply_pairs(
                address(rows) + r * width, width, panel, rows.shape[1] // 2, address(row_units) + 4 * r, own,
                to, 4 * columns,
            )  # fmt: skip
        if whole < n:
            multiply_pairs(
                address(last), width, panel, rows.shape[1] // 2, address(last_units), own, address(scratch),
                4 * TILE_COLUMNS,
            )  # fmt: skip
            out[whole:, p * TILE_COLUMNS : (p + 1) * TILE_COLUMNS] = scratch[: n - whole]


@kernel
def sums_of_subsets(terms: Float64, out: Float32) -> None:
    """The sum of the terms, (n, 8), that each value of a byte has a bit for, (n, 256)."""
    sums = np.zeros(out.shape[1])
    for row in range(len(terms)):
        for bit in range(8):
            n = 1 << bit
            for value in range(n):
                sums[n + value] = sums[value] + terms[row, bit]
        for value in range(len(sums)):
            out[row, value] = sums[value]
