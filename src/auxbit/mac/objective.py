"""The objective functions of the paper, from sums over rows.

E_BA(h, f)   = Σ ‖x − f(h(x))‖²                       the binary autoencoder, eq. (2)
E_BFA(Z, f)  = Σ ‖x − f(z)‖²                          binary factor analysis, eq. (3): the codes are free
E_Q(Z, h, f) = Σ ‖x − f(z)‖² + μ‖z − h(x)‖²           the quadratic penalty that MAC descends on, eq. (5)

Records of a fit have E_Q and E_BA. The Z step sums them up on its way, in the coordinates of theorem 4.2,
y = Qᵀ(x − b): what it leaves out, Σ ‖x − b‖² − ‖y‖², depends on no code, so it is added here.

The f step (section 4.1) minimises all three over f(z) = Az + b by least squares. The rows are touched only
through ZᵀZ, Zᵀ1, ZᵀX and Xᵀ1, so it does not matter where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from auxbit.core.checks import Bits, Float32, Float64
from auxbit.core.maps import LinearDecoder
from auxbit.core.parallel import Workers


@dataclass(frozen=True)
class Moments:
    """Of n rows. gram : (D+1, D+1) XᵀX with a feature of 1; total : (D,) Σx; squared_norm : Σ‖x‖²."""

    gram: Float64
    total: Float64
    squared_norm: float

    @classmethod
    def of(cls, XX: Float64, total: Float64, n: int) -> Moments:
        """From XᵀX, (D, D), and Σx."""
        D = len(total)
        gram = np.empty((D + 1, D + 1))
        gram[:D, :D], gram[:D, D], gram[D, :D], gram[D, D] = XX, total, total, n
        return cls.of_gram(gram)

    @classmethod
    def of_gram(cls, gram: Float64) -> Moments:
        """From XᵀX with the feature of 1."""
        return cls(gram, gram[-1, :-1].copy(), float(np.trace(gram[:-1, :-1])))

    @property
    def n(self) -> int:
        """How many rows."""
        return int(self.gram[-1, -1])


def energies(sums: Sequence[Any], f: LinearDecoder, rows: Moments) -> tuple[float, float]:
    """E_Q and E_BA. sums : of the Z step, e(z), e(h(x)) without its penalty of 0, and ‖y‖²."""
    energy, hash_energy, projected = (float(each) for each in sums[:3])
    rest = rows.squared_norm - 2 * float(f.b @ rows.total) + rows.n * float(f.b @ f.b) - projected
    return energy + rest, hash_energy + rest


# ---- The f step


@dataclass(frozen=True)
class DecoderSums:
    """What least squares needs of N rows. ZZ : (L, L), z : (L,), ZX : (L, D), x : (D,)."""

    n: int
    ZZ: Float64
    z: Float64
    ZX: Float64
    x: Float64


def decoder_sums(X: Float32, Z: Bits, workers: Workers) -> DecoderSums:
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
