"""Kernelized locality-sensitive hashing (Kulis & Grauman 2012): random hyperplanes in a kernel's space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import eigh

from auxbit.core.checks import Float32, Float64, check_integer
from auxbit.core.features import (
    PART_ROWS,
    find_anchors,
    gaussian,
    given_bandwidth,
    median_distance,
    squared_distances,
)
from auxbit.core.maps import Encoder
from auxbit.core.parallel import block_slices
from auxbit.hashers.base import Hasher, Learned
from auxbit.mac.fit import Beginning

EIGENVALUE_CUT = 1e-6  # of the largest; smaller ones are noise, which a power of −1/2 would amplify


@dataclass(frozen=True)
class KernelEncoder(Encoder):
    """Score l of x is Σ_i w_il (κ(x, u_i) − mean_j κ(u_j, u_i)), κ(x, u) = exp(−‖x − u‖²/2σ²).

    anchors : (m, D) float32, scaled; bandwidth : σ, one float64; means : (m,) float64, of the columns of the
    anchors' kernel; weights : (m, L) float64, of zero sum, so the other two terms of centring vanish.
    """

    LAYOUT = "anchors float32 m D; bandwidth float64 1 >0; means float64 m; weights float64 m L"

    anchors: Float32
    bandwidth: Float64
    means: Float64
    weights: Float64

    def scores(self, X: Float32) -> Float64:
        """X : (n, D) scaled → (n, L)."""
        scores = np.empty((len(X), self.weights.shape[1]))
        rounding = 1e-12 * np.abs(self.weights).sum(axis=0)
        for part in block_slices(len(X), PART_ROWS):
            kernel_rows = gaussian(squared_distances(X[part], self.anchors), self.bandwidth.item())
            kernel_rows -= self.means
            scores[part] = kernel_rows @ self.weights
        scores[np.abs(scores) <= rounding] = 0.0  # so that equal rows have equal bits in any block
        return scores


class KernelizedLSH(Hasher):
    """Kernelized LSH: signs of random projections in the space of a Gaussian kernel; any number of bits.

    >>> from sklearn.datasets import load_digits
    >>> from auxbit import KernelizedLSH
    >>> X = load_digits().data
    >>> klsh = KernelizedLSH(n_bits=16, random_state=0).fit(X)
    >>> klsh.encode(X).shape  # packed: two bytes per row
    (1797, 2)

    A direction is the mean of a few random anchors, whitened, nearly Gaussian by the central limit theorem:
    w = K^(−1/2) (e_S/t − e/m) in terms of the m anchors' centred kernel K, S being t of them.

    Note: K is always singular, because it is centred, and other eigenvalues are nearly 0. The root is taken
    by eigenvectors, as in the paper, without those whose eigenvalue is below 10⁻⁶ of the largest.

    Parameters
    ----------
    n_bits : bits per code, 1 to 1024.
    n_anchors : number of anchors, from k-means on at most 10,000 rows; fewer if fewer rows are distinct.
    anchors : (m, D) rows in the units of X to use as anchors instead; n_anchors is then ignored.
    subset_size : how many anchors make one direction, t in the paper; at most half of the anchors.
    bandwidth : σ of exp(−‖x − u‖²/2σ²), in the units of X, the same in fit and in transform. None for the
        median distance between two anchors.
    normalize : divide rows by their norms, to find neighbours by cosine.
    lift : add a coordinate to the rows, to find neighbours by inner product; queries are then encoded by
        encode(X, queries=True).
    random_state : seed of the anchors and of the directions.
    n_jobs : threads; None for all cores. The result does not depend on it.
    """

    def __init__(
        self, n_bits: int = 32, *, n_anchors: int = 300, anchors: Any = None, subset_size: int = 30,
        bandwidth: float | None = None, normalize: bool = False, lift: bool = False,
        random_state: Any = None, n_jobs: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(n_bits, normalize=normalize, lift=lift, random_state=random_state, n_jobs=n_jobs)
        self.n_anchors = n_anchors
        self.anchors = anchors
        self.subset_size = subset_size
        self.bandwidth = bandwidth

    def _learn(self, given: Beginning) -> Learned:
        subset_size = check_integer("subset_size", self.subset_size, 1, remedy="Try subset_size=30.")
        scaling, rng = given.scaling, given.rng
        bandwidth = None if self.bandwidth is None else given_bandwidth(self.bandwidth, scaling)
        anchors = find_anchors(self.anchors, self.n_anchors, given.X, scaling, given.workers, rng)
        if bandwidth is None:
            bandwidth = median_distance(anchors)
        kernel = gaussian(squared_distances(anchors, anchors), bandwidth)
        means = kernel.mean(axis=0)
        subsets = random_subsets(len(anchors), subset_size, given.n_bits, rng)
        weights = inverse_root(kernel - means - means[:, None] + means.mean()) @ subsets
        weights -= weights.mean(axis=0)  # zero but for rounding
        return Learned(KernelEncoder(anchors, np.array(bandwidth), means, weights))


def random_subsets(n_anchors: int, size: int, n_bits: int, rng: np.random.RandomState) -> Float64:
    """e_S/t − e/m for a random S of t = min(size, m/2) anchors per bit, (m, n_bits)."""
    size = max(1, min(size, n_anchors // 2))  # the mean of all anchors is 0
    subsets = np.full((n_anchors, n_bits), -1.0 / n_anchors)
    for bit in range(n_bits):
        subsets[rng.choice(n_anchors, size, replace=False), bit] += 1.0 / size
    return subsets


def inverse_root(K: Float64) -> Float64:
    """K^(−1/2) on the eigenvectors whose eigenvalues are above the cut, and 0 on the others. K : (m, m)."""
    values, vectors = eigh(K)
    kept = values > max(EIGENVALUE_CUT * float(values[-1]), 1e-12 * len(K))
    return np.asarray((vectors[:, kept] / np.sqrt(values[kept])) @ vectors[:, kept].T)
