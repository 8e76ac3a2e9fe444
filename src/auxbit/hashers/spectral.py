"""Spectral hashing (Weiss, Torralba & Fergus 2009): signs of the Laplacian's eigenfunctions over a box."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from auxbit.core.checks import Float32, Float64, Integers
from auxbit.core.maps import Encoder
from auxbit.hashers.base import Hasher, Learned
from auxbit.hashers.linear import principal_axes
from auxbit.mac.fit import Beginning

FLAT = 1e-9  # projections that differ by no more than this share of the largest entry differ by rounding


class SpectralHashing(Hasher):
    """Spectral hashing: signs of the smoothest eigenfunctions of a uniform distribution in a box of PCA axes.

    >>> from sklearn.datasets import load_digits
    >>> from auxbit import SpectralHashing
    >>> X = load_digits().data
    >>> SpectralHashing(n_bits=16).fit(X).encode(X).shape  # packed: two bytes per row
    (1797, 2)

    Over an interval [a, b] the k-th eigenfunction is cos(kπ(x − a)/(b − a)), and its eigenvalue grows with
    the frequency k/(b − a) alone. So bits use the smallest frequencies over all axes, several on a long axis,
    and there may be more bits than dimensions. Outside of [a, b] the cosine continues.

    Note: products of cosines along two axes are not used, as in the paper: their signs are products of the
    signs of other bits, and bits should be independent.

    Parameters
    ----------
    n_bits : bits per code, 1 to 1024.
    normalize : divide rows by their norms, to find neighbours by cosine.
    lift : add a coordinate to the rows, to find neighbours by inner product; queries are then encoded by
        encode(X, queries=True).
    random_state : unused, for a common interface.
    n_jobs : threads; None for all cores. The result does not depend on it.
    """

    def _learn(self, given: Beginning) -> Learned:
        X, n_bits, workers = given.X, given.n_bits, given.workers
        axes = principal_axes(X, min(n_bits, *X.shape), workers)
        low, high, largest = np.full(axes.shape[1], np.inf), np.full(axes.shape[1], -np.inf), 0.0

        def extent(rows: slice) -> tuple[Float64, Float64, float]:
            projected = X[rows].astype(np.float64) @ axes
            return projected.min(axis=0), projected.max(axis=0), float(np.abs(X[rows]).max())

        for block_low, block_high, block_largest in workers.map(extent, len(X)):
            np.minimum(low, block_low, out=low)
            np.maximum(high, block_high, out=high)
            largest = max(largest, block_largest)
        ranges = np.where(high - low > FLAT * largest, high - low, 0.0)
        axis, mode = smoothest_modes(ranges, n_bits)
        frequency = np.pi * mode / np.where(ranges[axis] > 0, ranges[axis], np.inf)
        return Learned(SpectralEncoder(axes, low, axis, frequency))


@dataclass(frozen=True)
class SpectralEncoder(Encoder):
    """Bit l is the sign of cos(frequency_l · (x · axes[:, axis_l] − low[axis_l])).

    axes : (D, m) float64, low : (m,) float64, axis : (L,) int64, frequency : (L,) float64.
    """

    LAYOUT = "axes float64 D m; low float64 m; axis int64 L 0..m-1; frequency float64 L"

    axes: Float64
    low: Float64
    axis: Integers
    frequency: Float64

    def scores(self, X: Float32) -> Float64:
        """X : (n, D) scaled → (n, L); in float64, as high frequencies magnify rounding."""
        phase = (X.astype(np.float64) @ self.axes - self.low)[:, self.axis]
        phase *= self.frequency
        return np.cos(phase, out=phase)


def smoothest_modes(ranges: Float64, n_bits: int) -> tuple[Integers, Integers]:
    """Choose the n_bits smallest eigenvalues: axis and mode k ≥ 1 of each, (n_bits,) int64, smoothest first.

    1 − exp(−ε²/2 (kπ/range)²) rises with k/range whatever ε is. Mode 0, the constant, is no candidate. Ties
    go to the earlier axis, and an axis of range 0 comes last.
    """
    with np.errstate(divide="ignore"):
        frequency = np.arange(1, n_bits + 1) / ranges[:, None]  # one axis may get all n_bits
    chosen = np.argsort(frequency, axis=None, kind="stable")[:n_bits]
    axis, mode = np.divmod(chosen, n_bits)
    return axis.astype(np.int64), mode.astype(np.int64) + 1
