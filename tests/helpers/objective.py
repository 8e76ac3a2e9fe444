"""The objective functions by their definitions, row by row: what records of a fit are compared with."""

from __future__ import annotations

import numpy as np

from auxbit.core.checks import Bits, Float32
from auxbit.core.maps import LinearDecoder, LinearEncoder
from auxbit.core.parallel import Workers


def E_BA(X: Float32, h: LinearEncoder, f: LinearDecoder, workers: Workers) -> float:
    """Σ ‖x − f(h(x))‖², the nested objective of the binary autoencoder."""

    def block(rows: slice) -> tuple[float]:
        return (_squared_error(X[rows], h(X[rows]), f),)

    return float(workers.sum(block, len(X))[0])


def E_BFA(X: Float32, Z: Bits, f: LinearDecoder, workers: Workers) -> float:
    """Σ ‖x − f(z)‖², the objective of binary factor analysis: the codes are free."""

    def block(rows: slice) -> tuple[float]:
        return (_squared_error(X[rows], Z[rows], f),)

    return float(workers.sum(block, len(X))[0])


def E_Q(X: Float32, Z: Bits, h: LinearEncoder, f: LinearDecoder, mu: float, workers: Workers) -> float:
    """Σ ‖x − f(z)‖² + μ‖z − h(x)‖², the quadratic-penalty function that MAC descends on."""

    def block(rows: slice) -> tuple[float]:
        mismatch = np.count_nonzero(Z[rows] != h(X[rows]))
        return (_squared_error(X[rows], Z[rows], f) + mu * mismatch,)

    return float(workers.sum(block, len(X))[0])


def _squared_error(X: Float32, Z: Bits, f: LinearDecoder) -> float:
    residual = X - f(Z)
    return float(np.einsum("nd,nd->", residual, residual))
