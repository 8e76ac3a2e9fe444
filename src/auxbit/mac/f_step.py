"""The f step (section 4.1): the least-squares decoder f(z) = Az + b, from sums over rows.

The rows are touched only through ZᵀZ, Zᵀ1, ZᵀX and Xᵀ1, so it does not matter where they live.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from auxbit.core.decoders import LinearDecoder
from auxbit.core.parallel import Workers
from auxbit.core.types import Float32, Float64


@dataclass(frozen=True)
class DecoderSums:
    """What least squares needs of N rows. ZZ : (L, L), z : (L,), ZX : (L, D), x : (D,)."""

    n: int
    ZZ: Float64
    z: Float64
    ZX: Float64
    x: Float64


def decoder_sums(X: Float32, Z: npt.NDArray[np.uint8], workers: Workers) -> DecoderSums:
    """Gather the sums in one pass. A block's counts are whole numbers, exact in float32."""

    def block(rows: slice) -> tuple[Float32, Float64, Float32, Float64]:
        Zb, Xb = Z[rows].astype(np.float32), X[rows]
        return Zb.T @ Zb, Zb.sum(axis=0, dtype=np.float64), Zb.T @ Xb, Xb.sum(axis=0, dtype=np.float64)

    ZZ, z, ZX, x = workers.sum(block, len(X))
    return DecoderSums(len(X), ZZ, z, ZX, x)


def f_step(sums: DecoderSums) -> LinearDecoder:
    """The least-squares decoder; a constant or repeated bit gets the one of minimum norm.

    min Σ‖x − Az − b‖² over A and b: centre both sides, solve for A, and b carries the means.
    """
    z_mean, x_mean = sums.z / sums.n, sums.x / sums.n
    covariance = sums.ZZ - np.outer(sums.z, z_mean)
    cross = sums.ZX - np.outer(sums.z, x_mean)
    values, vectors = np.linalg.eigh(covariance)
    # counts are exact, so what is singular shows as rounding of the centring alone
    floor = values.size * np.finfo(np.float64).eps * max(float(sums.ZZ.diagonal().max()), 1.0) * 16
    keep = values > floor
    V = vectors[:, keep]
    A = np.ascontiguousarray(((V / values[keep]) @ (V.T @ cross)).T)
    return LinearDecoder(A, x_mean - A @ z_mean)
