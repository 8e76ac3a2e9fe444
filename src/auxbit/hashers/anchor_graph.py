"""Anchor graph hashing (Liu et al. 2011): eigenvectors of a graph in which rows are joined by anchors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import eigh

from auxbit.core.checks import Float32, Float64, Ids, check_integer, warn
from auxbit.core.features import SAMPLE_ROWS, find_anchors, given_bandwidth, median_reach, nearest_anchors
from auxbit.core.maps import Encoder
from auxbit.core.parallel import Workers, kernel, some_rows
from auxbit.errors import InvalidParameter
from auxbit.hashers.base import Hasher, Learned
from auxbit.mac.fit import Beginning

EIGENVALUE_CUT = 1e-10  # eigenvalues are in 0..1; eigenvectors of smaller ones are rounding errors
ROUNDING = 1e-9  # of eigenfunctions, whose mean square is 1


@dataclass(frozen=True)
class AnchorGraphEncoder(Encoder):
    """First the signs of r eigenfunctions y(x) = z(x)ᵀW, then those of y − b⁺ where y ≥ 0, b⁻ − y elsewhere.

    z(x) are the shares of x in its s nearest anchors, which sum to 1.

    anchors : (m, D) float32, scaled; bandwidth : σ, one float64; n_neighbors : s, one int64; weights : W,
    (m, r) float64; thresholds : (2, L − r) float64, b⁺ and b⁻ of the first eigenfunctions.
    """

    LAYOUT = (
        "anchors float32 m D; bandwidth float64 1 >0; n_neighbors int64 1 1..m; "
        "weights float64 m r; thresholds float64 2 L-r"
    )

    anchors: Float32
    bandwidth: Float64
    n_neighbors: Ids
    weights: Float64
    thresholds: Float64

    def scores(self, X: Float32) -> Float64:
        """X : (n, D) scaled → (n, L)."""
        share, ids = self.shares(X)
        y = np.zeros((len(X), self.weights.shape[1]))
        _weigh(share, ids, self.weights, y)
        y[np.abs(y) < ROUNDING] = 0.0  # so that equal rows have equal bits in any block
        above, below = self.thresholds
        halved = y[:, : len(above)]
        return np.hstack([y, np.where(halved >= 0, halved - above, below - halved)])

    def shares(self, X: Float32) -> tuple[Float64, Ids]:
        """The s entries of each row of Z that are not 0, and their columns, (n, s) each."""
        return anchor_shares(X, self.anchors, self.n_neighbors.item(), self.bandwidth.item())


class AnchorGraphHashing(Hasher):
    """Anchor graph hashing: signs of the smoothest eigenfunctions of a graph that joins rows by anchors.

    >>> from sklearn.datasets import load_digits
    >>> from auxbit import AnchorGraphHashing
    >>> X = load_digits().data
    >>> agh = AnchorGraphHashing(n_bits=16, random_state=0).fit(X)
    >>> agh.encode(X).shape  # packed: two bytes per row
    (1797, 2)

    The graph is A = ZΛ⁻¹Zᵀ, Z being the shares of rows in near anchors. All is computed from the m×m matrix
    M = Λ^(−1/2) ZᵀZ Λ^(−1/2): its eigenvectors, except the trivial one of eigenvalue 1, become functions of
    any row. So m anchors give m − 1 of them.

    Note: at few bits two layers do worse than one. The paper uses two for many bits, where one layer would
    need eigenfunctions that are not smooth. Its thresholds are not medians: they give the smallest balanced
    cut of the graph.

    Parameters
    ----------
    n_bits : bits per code; at most m − 1 with one layer and 2(m − 1) with two. If the rows have too few
        eigenfunctions (few rows, or few that differ), fit warns, and the remaining bits are 1.
    n_layers : 1 for one bit per eigenfunction; 2 for two, the second of which halves both sides of the first.
    n_anchors : number of anchors m, from k-means on at most 10,000 rows; fewer if fewer rows are distinct.
    anchors : (m, D) rows in the units of X to use as anchors instead; n_anchors is then ignored.
    n_neighbors : how many nearest anchors a row has a share in, s in the paper; all, if there are fewer.
    bandwidth : σ of the shares, in proportion to exp(−‖x − u‖²/2σ²), in the units of X. None for the median
        distance of a row to its n_neighbors-th anchor, over √2, on at most 10,000 rows.
    normalize : divide rows by their norms, to find neighbours by cosine.
    lift : add a coordinate to the rows, to find neighbours by inner product; queries are then encoded by
        encode(X, queries=True).
    random_state : seed of the anchors.
    n_jobs : threads; None for all cores. The result does not depend on it.
    """

    def __init__(
        self, n_bits: int = 32, *, n_layers: int = 1, n_anchors: int = 300, anchors: Any = None,
        n_neighbors: int = 5, bandwidth: float | None = None, normalize: bool = False,
        lift: bool = False, random_state: Any = None, n_jobs: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(n_bits, normalize=normalize, lift=lift, random_state=random_state, n_jobs=n_jobs)
        self.n_layers = n_layers
        self.n_anchors = n_anchors
        self.anchors = anchors
        self.n_neighbors = n_neighbors
        self.bandwidth = bandwidth

    def _learn(self, given: Beginning) -> Learned:
        X, workers, rng = given.X, given.workers, given.rng
        n_layers = check_integer("n_layers", self.n_layers, 1, 2)
        n_neighbors = check_integer("n_neighbors", self.n_neighbors, 1, remedy="Try n_neighbors=5.")
        bandwidth = None if self.bandwidth is None else given_bandwidth(self.bandwidth, given.scaling)
        anchors = find_anchors(self.anchors, self.n_anchors, X, given.scaling, workers, rng)
        _check_n_bits(given.n_bits, n_layers, self.n_anchors if self.anchors is None else len(anchors))
        n_functions = -(-given.n_bits // n_layers)

        n_neighbors = min(n_neighbors, len(anchors))
        if bandwidth is None:
            bandwidth = median_reach(some_rows(X, rng, SAMPLE_ROWS), anchors, n_neighbors) / np.sqrt(2.0)
        products = anchor_products(X, anchors, n_neighbors, bandwidth, workers)
        used = products.any(axis=0)  # other anchors are near no row of X, so they change nothing
        anchors, products = anchors[used], products[np.ix_(used, used)]

        weights = eigenfunctions(products, n_functions)
        found = weights.shape[1]
        if found < n_functions:
            warn(
                f"n_bits={given.n_bits} is more than AnchorGraphHashing has eigenfunctions for: these "
                f"rows have {found}, n_layers={n_layers}, so the remaining bits are 1 in every code. "
                "Use fewer bits, or more distinct rows."
            )
            weights = np.hstack([weights, np.zeros((len(anchors), n_functions - found))])
        sigma, nearest = np.array(float(bandwidth)), np.array(min(n_neighbors, len(anchors)))
        encoder = AnchorGraphEncoder(anchors, sigma, nearest, weights, np.empty((2, 0)))
        n_halved = given.n_bits - n_functions
        thresholds = layer_thresholds(X, encoder, products.sum(axis=0), n_halved, workers)
        return Learned(replace(encoder, thresholds=thresholds))


def _check_n_bits(n_bits: int, n_layers: int, n_anchors: int) -> None:
    most = n_layers * (n_anchors - 1)
    if n_bits > most:
        enough = -(-n_bits // n_layers) + 1
        raise InvalidParameter(
            "n_bits", n_bits, f"at most {most} with {n_anchors} anchors and n_layers={n_layers}",
            f"Use at least {enough} anchors, for example n_anchors={10 * enough}.",
        )  # fmt: skip


def anchor_shares(X: Float32, anchors: Float32, n_neighbors: int, bandwidth: float) -> tuple[Float64, Ids]:
    """exp(−d²/2σ²) of the s nearest anchors of each row, divided by their sum."""
    share, ids = nearest_anchors(X, anchors, n_neighbors)
    share -= share.min(axis=1, keepdims=True)  # the quotient is the same, and never 0/0, however far x is
    share *= -0.5 / bandwidth**2
    np.exp(share, out=share)
    share /= share.sum(axis=1, keepdims=True)
    return share, ids


def anchor_products(X: Float32, anchors: Float32, s: int, bandwidth: float, workers: Workers) -> Float64:
    """ZᵀZ, (m, m). Its rows sum to the diagonal Λ of Zᵀ1, because rows of Z sum to 1."""

    def product(rows: slice) -> tuple[Float64]:
        out = np.zeros((len(anchors), len(anchors)))
        _add_products(*anchor_shares(X[rows], anchors, s, bandwidth), out)
        return (out,)

    return np.asarray(workers.sum(product, len(X))[0])


def eigenfunctions(products: Float64, n_functions: int) -> Float64:
    """W = √n Λ^(−1/2) V Σ^(−1/2), (m, r), for the largest r eigenvalues Σ of M but the trivial one.

    There may be fewer: at most m − 1, and only those whose eigenvalue is not 0. Signs by the largest entry.
    """
    degrees = products.sum(axis=0)
    root = np.sqrt(degrees)
    M = products / np.outer(root, root)
    trivial = root / np.linalg.norm(root)
    M -= np.outer(trivial, trivial)  # only this one: a graph of several parts has more of eigenvalue 1
    values, vectors = eigh(M)
    values, vectors = values[::-1][:n_functions], vectors[:, ::-1][:, :n_functions]
    usable = values > EIGENVALUE_CUT
    values, vectors = values[usable], vectors[:, usable]
    W = np.sqrt(degrees.sum()) * vectors / root[:, None] / np.sqrt(values)
    largest = W[np.abs(W).argmax(axis=0), np.arange(W.shape[1])]
    return np.ascontiguousarray(W * np.where(largest < 0, -1.0, 1.0))


def layer_thresholds(
    X: Float32, encoder: AnchorGraphEncoder, degrees: Float64, n_halved: int, workers: Workers
) -> Float64:
    """b⁺ and b⁻, (2, n_halved): pᵀLp is smallest with 1ᵀp = 0, p being y − b⁺ where y ≥ 0, b⁻ − y elsewhere.

    L = I − ZΛ⁻¹Zᵀ and L1 = 0. So with q = |y| and e = [y ≥ 0], p is q − (b⁺ + b⁻) e + b⁻ and pᵀLp depends on
    c = b⁺ + b⁻ only: c = qᵀLe / eᵀLe. The balance 1ᵀp = 0 settles the rest.
    """
    if n_halved == 0:
        return np.empty((2, 0))
    m = len(encoder.anchors)

    def sums(rows: slice) -> tuple[Float64, ...]:
        share, ids = encoder.shares(X[rows])
        y = encoder.scores(X[rows])[:, :n_halved]
        q, e = np.abs(y), (y >= 0).astype(np.float64)
        Zq, Ze = np.zeros((m, n_halved)), np.zeros((m, n_halved))
        _spread(share, ids, q, Zq)
        _spread(share, ids, e, Ze)
        return q.sum(axis=0), e.sum(axis=0), (q * e).sum(axis=0), Zq, Ze

    q_sum, n_above, qe, Zq, Ze = workers.sum(sums, len(X))
    n = float(len(X))
    qLe = qe - (Zq * Ze / degrees[:, None]).sum(axis=0)
    eLe = n_above - (Ze**2 / degrees[:, None]).sum(axis=0)
    # if no edge joins the two sides (eLe = 0) every c is as good: then halve each side at its mean
    cut = eLe > 1e-9 * n
    n_below = n - n_above
    means = qe / np.maximum(n_above, 1.0) - (q_sum - qe) / np.maximum(n_below, 1.0)
    c = np.where(cut, qLe / np.where(cut, eLe, 1.0), means)
    return np.stack([(q_sum + n_below * c) / n, (n_above * c - q_sum) / n])


@kernel
def _add_products(share: Float64, ids: Ids, out: Float64) -> None:
    for i in range(share.shape[0]):
        for a in range(share.shape[1]):
            for b in range(share.shape[1]):
                out[ids[i, a], ids[i, b]] += share[i, a] * share[i, b]


@kernel
def _weigh(share: Float64, ids: Ids, W: Float64, out: Float64) -> None:
    """Add ZW to `out`, (n, r)."""
    for i in range(share.shape[0]):
        for a in range(share.shape[1]):
            for j in range(W.shape[1]):
                out[i, j] += share[i, a] * W[ids[i, a], j]


@kernel
def _spread(share: Float64, ids: Ids, values: Float64, out: Float64) -> None:
    """Add Zᵀ values to `out`, (m, r)."""
    for i in range(share.shape[0]):
        for a in range(share.shape[1]):
            for j in range(values.shape[1]):
                out[ids[i, a], j] += share[i, a] * values[i, j]
