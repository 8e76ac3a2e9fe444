"""Fitting a decoder to the best codes that it can have: codes and least squares in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from auxbit.core.anchors import choose_anchors, nearest_anchors
from auxbit.core.checks import Float32, Float64, Packed
from auxbit.core.maps import VALUES, Decoder, LinearDecoder, TableDecoder, bytes_per_code, unpack
from auxbit.core.parallel import Workers
from auxbit.mac.loop import decoder_sums, f_step
from auxbit.quantiser.coder import coder_of, optimal_codes, values_of_bytes
from auxbit.quantiser.kernels import add_rows, count_pairs

# ---- The f step for a decoder of tables: least squares, shrunk towards the present tables

SOLVED_BYTES = 16  # a system of 4,096 equations; wider codes are fitted byte by byte
SWEEPS = 2
SUMMED_ROWS = 16_384  # sums of a block are as large as the tables


def table_step(
    X: Float32, codes: Packed, present: TableDecoder, shrink: float, workers: Workers
) -> TableDecoder:
    """Least squares over the tables, b as it is: min Σ‖x − f(z)‖² + shrink·Σ‖T_j[v] − present T_j[v]‖².

    X : (n, D) scaled, codes : (n, M). The pull towards the present tables (shrink > 0) decides what rows
    cannot: values without rows, and vectors that could as well be in another byte's table.
    Beyond SOLVED_BYTES bytes: a few sweeps over the bytes, each the least squares beside the others.
    """
    M, _, D = present.tables.shape
    flat = present.tables.reshape(M * VALUES, D).astype(np.float64)
    if M > SOLVED_BYTES:
        flat = _byte_by_byte(X, codes, present, shrink, workers)
    else:
        sums = _sums_by_value(X, codes, present.b, workers) + shrink * flat
        counts = np.zeros((M * VALUES, M * VALUES))
        count_pairs(codes, counts)
        counts[np.diag_indices(M * VALUES)] += shrink
        factor = cho_factor(counts, lower=True, overwrite_a=True, check_finite=False)
        flat = cho_solve(factor, sums, overwrite_b=True, check_finite=False)
    tables = flat.reshape(M, VALUES, D).astype(np.float32)
    return TableDecoder(tables, present.b, present.n_bits, present.normalize)


def _sums_by_value(X: Float32, codes: Packed, b: Float64, workers: Workers) -> Float64:
    """Σ(x − b) over the rows that have each value of each byte, (M·256, D)."""
    shape = (codes.shape[1] * VALUES, X.shape[1])

    def block(rows: slice) -> tuple[Float64]:
        sums = np.zeros(shape)
        add_rows(X[rows] - b, codes[rows], sums)
        return (sums,)

    (sums,) = workers.sum(block, len(X), SUMMED_ROWS)
    return np.asarray(sums)


def _byte_by_byte(
    X: Float32, codes: Packed, present: TableDecoder, shrink: float, workers: Workers
) -> Float64:
    """The tables after a few sweeps over the bytes, (M·256, D)."""
    held = present.tables.astype(np.float64)
    tables = held.copy()
    rest = np.empty(X.shape, dtype=np.float32)

    def start(rows: slice) -> None:
        rest[rows] = X[rows] - present.decode(codes[rows])

    workers.run(start, len(X))
    for _ in range(SWEEPS):
        for j in range(codes.shape[1]):
            before, own = tables[j].copy(), codes[:, j : j + 1]
            counts = np.bincount(own[:, 0], minlength=VALUES)[:, None]
            sums = _sums_by_value(rest, own, np.zeros(X.shape[1]), workers) + counts * before
            tables[j] = (sums + shrink * held[j]) / (counts + shrink)
            moved = (tables[j] - before).astype(np.float32)

            def move(rows: slice, moved: Float32 = moved, own: Packed = own) -> None:
                rest[rows] -= moved[own[rows, 0]]

            workers.run(move, len(X))
    return tables.reshape(-1, X.shape[1])


# ---- Codes and decoder in turn

Turned = Callable[[int, int], object]

KINDS = ("auto", "linear", "tables")
TURNS = 15
EFFORT = 0.5  # of the search for codes while the decoder is not settled yet, as a share of the usual one
SHRINK = 1.0  # rows by which each vector of a table is held where it is


def fit_decoder(
    X: Float32, H: Packed, f: Decoder, kind: str, mu: float, n_iter: int | None, workers: Workers,
    rng: np.random.RandomState, callback: Turned | None = None,
) -> Decoder:  # fmt: skip
    """A decoder of this kind for its best codes at this μ. X : (n, D) scaled, H : h(X), f : a start.

    callback : called after each turn with its number, from 1, and how many there will be.
    """
    codes = H
    if kind == "auto":
        kind = "tables" if len(X) >= 2560 else "linear"
    if kind == "linear":
        f = f if isinstance(f, LinearDecoder) else f_step(decoder_sums(X, unpack(H, f.n_bits), workers))
    elif mu == 0:
        f, codes = product_start(X, f.n_bits, workers, rng)
    elif isinstance(f, LinearDecoder):
        f = TableDecoder.of(f)
    n_iter = n_iter or TURNS
    for number, (turned, _) in enumerate(alternate_codes(X, H, f, codes, mu, n_iter, workers), start=1):
        f = turned
        if callback is not None:
            callback(number, n_iter)
    return f


def alternate_codes(
    X: Float32, H: Packed, f: Decoder, codes: Packed, mu: float, n_iter: int, workers: Workers
) -> Iterator[tuple[Decoder, Packed]]:
    """Codes for the decoder, then by least squares the decoder for the codes; yields both after each turn.

    X : (n, D) scaled, H : (n, M) h(X); codes : (n, M) to begin with, for which f is fitted already.
    """
    for _ in range(n_iter):
        codes = optimal_codes(X, H, codes, coder_of(f, mu, EFFORT), workers)
        if isinstance(f, LinearDecoder):
            f = f_step(decoder_sums(X, unpack(codes, f.n_bits), workers))
        else:
            f = table_step(X, codes, f, SHRINK, workers)
        yield f, codes


def product_start(
    X: Float32, n_bits: int, workers: Workers, rng: np.random.RandomState
) -> tuple[TableDecoder, Packed]:
    """Product quantisation: a byte for each part of the dimensions, its values the part's k-means centres."""
    width, D = bytes_per_code(n_bits), X.shape[1]
    tables = np.zeros((width, VALUES, D), dtype=np.float32)
    codes = np.zeros((len(X), width), dtype=np.uint8)
    n_values: npt.NDArray[np.int64] = values_of_bytes(n_bits, width)
    for j, dims in enumerate(np.array_split(np.arange(D), width)):
        if len(dims):
            part = np.ascontiguousarray(X[:, dims])
            centres = choose_anchors(part, int(n_values[j]), workers, rng)
            tables[j, : len(centres), dims] = centres.T

            def assign(rows: slice, part: Float32 = part, centres: Float32 = centres, j: int = j) -> None:
                codes[rows, j] = nearest_anchors(part[rows], centres, 1)[1][:, 0]

            workers.run(assign, len(X))
    return TableDecoder(tables, np.zeros(D), n_bits), codes
