"""The f step for a decoder of tables: least squares, shrunk towards the tables as they are."""

from __future__ import annotations

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from auxbit.blocks import Workers
from auxbit.codes import Packed
from auxbit.decoders import VALUES, TableDecoder
from auxbit.mac.table_coding_kernels import add_rows, count_pairs
from auxbit.maps import Float32, Float64

SOLVED_BYTES = 16  # a system of 4,096 equations; wider codes are fitted a byte at a time
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
