"""Fitting a decoder to the best codes that it can have: codes and least squares by turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from auxbit.blocks import Workers
from auxbit.codes import Packed, bytes_per_code, unpack
from auxbit.decoders import VALUES, Decoder, LinearDecoder, TableDecoder
from auxbit.kernels import choose_anchors, nearest_anchors
from auxbit.mac.coding import coder_of, optimal_codes
from auxbit.mac.f_step import decoder_sums, f_step
from auxbit.mac.table_coding import values_of_bytes
from auxbit.mac.table_step import table_step
from auxbit.maps import Float32

Turned = Callable[[int, int], object]

KINDS = ("linear", "tables")
TURNS = 15
EFFORT = 0.5  # of the search for codes while the decoder is not settled yet, as a share of the usual one
SHRINK = 1.0  # rows by which each vector of a table is held where it is


def fit_decoder(
    X: Float32,
    H: Packed,
    f: Decoder,
    kind: str,
    mu: float,
    n_iter: int | None,
    workers: Workers,
    rng: np.random.RandomState,
    callback: Turned | None = None,
) -> Decoder:
    """A decoder of this kind for its best codes at this μ. X : (n, D) scaled, H : h(X), f : a start.

    callback : called after each turn with its number, from 1, and how many there will be.
    """
    codes = H
    if kind == "linear":
        f = f if isinstance(f, LinearDecoder) else f_step(decoder_sums(X, unpack(H, f.n_bits), workers))
    elif mu == 0:
        f, codes = product_start(X, f.n_bits, workers, rng)
    elif isinstance(f, LinearDecoder):
        f = TableDecoder.of(f)
    n_iter = n_iter or TURNS
    for number, turn in enumerate(alternate_codes(X, H, f, codes, mu, n_iter, workers), start=1):
        f = turn.decoder
        if callback is not None:
            callback(number, n_iter)
    return f


@dataclass(frozen=True)
class Fitted:
    """A turn of the alternation: the decoder, the codes that it was fitted to, the mean of the objective."""

    decoder: Decoder
    codes: Packed
    objective: float


def alternate_codes(
    X: Float32, H: Packed, f: Decoder, codes: Packed, mu: float, n_iter: int, workers: Workers
) -> Iterator[Fitted]:
    """Yield a turn after each least squares: codes for the decoder, then the decoder for the codes.

    X : (n, D) scaled, H : (n, M) h(X); codes : (n, M) to begin with, for which f is fitted already.
    """
    for _ in range(n_iter):
        codes = optimal_codes(X, H, codes, coder_of(f, mu, EFFORT), workers)
        f = fit_to(X, codes, f, workers)
        yield Fitted(f, codes, objective(X, H, f, codes, mu, workers))


def fit_to(X: Float32, codes: Packed, f: Decoder, workers: Workers) -> Decoder:
    """The decoder of f's kind that fits these codes, by least squares."""
    if isinstance(f, LinearDecoder):
        return f_step(decoder_sums(X, unpack(codes, f.n_bits), workers))
    assert isinstance(f, TableDecoder)
    return table_step(X, codes, f, SHRINK, workers)


def objective(X: Float32, H: Packed, f: Decoder, codes: Packed, mu: float, workers: Workers) -> float:
    """The mean over rows of ‖x − f(z)‖² + μ‖z − h(x)‖²."""

    def block(rows: slice) -> tuple[float]:
        residual = X[rows] - f.decode(codes[rows])
        differing = np.bitwise_count(codes[rows] ^ H[rows]).sum(dtype=np.int64)
        return (float(np.einsum("nd,nd->", residual, residual)) + mu * float(differing),)

    return float(workers.sum(block, len(X))[0]) / len(X)


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
