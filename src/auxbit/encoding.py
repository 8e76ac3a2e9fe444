"""From rows to packed codes: scores, thresholds and packing in one pass over blocks.

A linear encoder's scores are one product in float32, of the rows as they are. What float32 cannot tell
from 0 is computed again in float64, in one fixed order: so the code of a row depends on nothing but the
row, not on the rows beside it, the number of threads, the type of the array or its layout.
(Margins are wide enough for rows like those of fit; rows far away from these have larger scores too.)
"""

from __future__ import annotations

import sys
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from auxbit.blocks import BLOCK_ROWS, Workers, resolve_n_jobs
from auxbit.checks import acceptable, check_finite, check_numbers
from auxbit.codes import Packed, bytes_per_code, pack_bools
from auxbit.compiled import kernel
from auxbit.maps import Float32, Float64, LinearEncoder, RawEncoder, Scaling, dot

CACHED_ROWS = 1024  # whose scores stay in the cache until they are packed
# Products of up to so many terms OpenBLAS computes on one thread of its own accord. Fewer than a few of
# them take less time than to forbid it others, and none waits for a core that has something else to do.
ONE_THREAD, FEW = 2**18, 4

LARGEST_FLOAT32 = np.finfo(np.float32).max
# a factor that moves the lowest bit of byte k of a word to bit k of the highest byte
GATHER = np.uint64(0x0102040810204080 if sys.byteorder == "little" else 0x8040201008040201)
HIGHEST = np.uint64(56)


class Encoder(Protocol):
    """A learned hash function on scaled rows: bit l is 1 where score l is at least 0."""

    def scores(self, X: Float32) -> npt.NDArray[np.floating[Any]]:
        """X : (n, D) scaled → (n, L)."""

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays that make it up, by the names of its constructor's parameters."""


def encode(
    X: npt.NDArray[Any], encoder: Encoder, scaling: Scaling, n_bits: int, n_jobs: int | None
) -> Packed:
    """The packed code of each row. X : (n, D) as the user gave it → (n, ceil(n_bits/8)) uint8."""
    check_numbers(X)
    jobs, out = resolve_n_jobs(n_jobs), np.empty((len(X), bytes_per_code(n_bits)), dtype=np.uint8)
    if isinstance(encoder, LinearEncoder):
        raw = encoder.before(scaling)
        at_once = min(ONE_THREAD // raw.weights.size, CACHED_ROWS)
        if raw.shows_all and len(X) <= FEW * at_once and encode_block(X, raw, out, at_once):
            return out
    with Workers(jobs if len(X) > BLOCK_ROWS else 1) as workers:
        encode_into(out, X, encoder, scaling, workers)
    return out


def encode_into(
    out: Packed, X: npt.NDArray[Any], encoder: Encoder, scaling: Scaling, workers: Workers
) -> None:
    """Write the packed code of each row to `out`, or raise what check_finite raises."""
    raw = encoder.before(scaling) if isinstance(encoder, LinearEncoder) else None
    if raw is None or not raw.shows_all:
        check_finite(X, workers)

    def fill(rows: slice) -> bool:
        if raw is not None:
            return encode_block(X[rows], raw, out[rows])
        out[rows] = pack_bools(encoder.scores(scaling.apply(X[rows])) >= 0)
        return True

    for finite in workers.map(fill, len(X)):
        if not finite:
            check_finite(X, workers)


def encode_block(X: npt.NDArray[Any], encoder: RawEncoder, out: Packed, at_once: int = CACHED_ROWS) -> bool:
    """Write the packed codes of one block of rows. False: a number is not finite, and `out` means nothing.

    A NaN or an infinity among the numbers of a row makes its scores NaN or infinite, which need no pass
    of their own: they are in doubt like scores near 0, and only rows in doubt are looked at again.
    """
    if len(encoder.unused) and not acceptable(X[:, encoder.unused]).all():
        return False
    scores = np.empty((min(len(X), at_once), len(encoder.bias)), dtype=np.float32)
    doubtful, doubts, n_doubtful = np.empty(len(X), dtype=np.intp), np.empty_like(out), 0
    bias, margin = encoder.bias, encoder.margin
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(X), at_once):
            rows = encoder.rows(X[start : start + at_once])
            some = np.dot(rows, encoder.weights, out=scores[: len(rows)])
            n_doubtful = _threshold(some, bias, margin, start, out, doubtful, doubts, n_doubtful)
    if n_doubtful:
        again = X[doubtful[:n_doubtful]]
        if not acceptable(again).all():
            return False
        exact = encoder.scaling.exactly(again)
        _settle(exact, encoder.exact, encoder.exact_bias, doubtful[:n_doubtful], doubts, out)
    return True


@kernel
def _threshold(
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
def _settle(
    X: Float64, W: Float64, bias: Float64, rows: npt.NDArray[np.intp], doubts: Packed, out: Packed
) -> None:
    """Decide the bits in doubt in float64. X : (m, D) scaled, W : (L, D); row i of X is rows[i] of `out`."""
    for i in range(len(rows)):
        for bit in range(len(W)):
            byte, mask = bit // 8, 1 << bit % 8
            if doubts[i, byte] & mask:
                score = dot(X[i], W[bit]) + bias[bit]
                out[rows[i], byte] = out[rows[i], byte] | mask if score >= 0 else out[rows[i], byte] & ~mask
