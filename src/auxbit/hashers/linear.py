"""Linear methods: the signs of projections of the centred rows.

LSH takes random projections (Andoni & Indyk 2008), tPCA the principal axes, and ITQ the principal axes after
the rotation that makes them most nearly binary (Gong et al. 2013).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh

from auxbit.core.checks import Float32, Float64, Ids, check_integer
from auxbit.core.maps import MARGIN, MAX_BITS, LinearEncoder
from auxbit.core.parallel import Workers, draw_rows, some_rows
from auxbit.errors import InvalidParameter
from auxbit.hashers.base import Hasher, Learned
from auxbit.mac.fit import Beginning
from auxbit.mac.loop import DecoderSums, f_step

# with n_init > 1, rotations are tried on a sample, and only the best is refined on all rows
TRIAL_ROWS, TRIAL_ITERATIONS = 5000, 50
TIE = 2 * MARGIN  # of the sizes of an axis: smaller scores may be 0 but for rounding
ROTATED_SHARE = 0.4  # of the budget, for the rows that a rotation is found on


class LSH(Hasher):
    """Locality-sensitive hashing: random hyperplanes through the mean of the rows; any number of bits.

    >>> from sklearn.datasets import load_digits
    >>> from auxbit import LSH
    >>> X = load_digits().data
    >>> lsh = LSH(n_bits=16, random_state=0).fit(X)
    >>> lsh.encode(X).shape  # packed: two bytes per row
    (1797, 2)

    Parameters
    ----------
    n_bits : bits per code, 1 to 8192.
    normalize : divide rows by their norms, to find neighbours by cosine.
    lift : add a coordinate to the rows, to find neighbours by inner product; queries are then encoded by
        encode(X, queries=True).
    random_state : seed of the projections.
    n_jobs : threads; None for all cores. The result does not depend on it.
    """

    max_bits = MAX_BITS

    def _learn(self, given: Beginning) -> Learned:
        return Learned(signs_of(given.rng.standard_normal((given.shape[1], given.n_bits))))


# ---- principal axes, and their signs


class ThresholdedPCA(Hasher):
    """Thresholded PCA (tPCA): the signs of the leading principal components of the centred rows.

    >>> from sklearn.datasets import load_digits
    >>> from auxbit import ThresholdedPCA
    >>> X = load_digits().data
    >>> ThresholdedPCA(n_bits=16).fit(X).encode(X).shape  # packed: two bytes per row
    (1797, 2)

    Parameters
    ----------
    n_bits : bits per code; at most the number of dimensions.
    normalize : divide rows by their norms, to find neighbours by cosine.
    lift : add a coordinate to the rows, to find neighbours by inner product; queries are then encoded by
        encode(X, queries=True).
    random_state : unused, for a common interface.
    n_jobs : threads; None for all cores. The result does not depend on it.
    """

    max_bits = MAX_BITS

    def _learn(self, given: Beginning) -> Learned:
        check_axes(given.n_bits, given.shape, "thresholded PCA")
        axes = leading_axes(given, given.n_bits)
        # rows that lie across an axis, as those of balanced categories do, have scores of 0 but for rounding,
        # which fit and encode may do differently: all of them get a 1
        bias = TIE * np.abs(axes).sum(axis=0)
        return Learned(replace(signs_of(axes), bias=bias.astype(np.float32)))


def signs_of(directions: Float64) -> LinearEncoder:
    """The hash function whose bits are the signs of projections. directions : (D, L)."""
    return LinearEncoder(directions.astype(np.float32), np.zeros(directions.shape[1], np.float32))


def check_axes(n_bits: int, shape: tuple[int, int], method: str) -> None:
    """PCA has at most min(n, D) axes, and a bit needs one."""
    n, D = shape
    if n_bits > min(n, D):
        raise InvalidParameter(
            "n_bits", n_bits, f"at most {min(n, D)} for {method} on data with n_samples={n}, n_features={D}",
            "LSH, SpectralHashing, SphericalHashing, KernelizedLSH, BinaryAutoencoder, BinaryFactorAnalysis "
            "allow more bits.",
        )  # fmt: skip


def leading_axes(given: Beginning, n_axes: int) -> Float64:
    """The leading principal axes of the rows, wherever they are: from their moments, if these tell them."""
    n, D = given.shape
    if n < D:
        return principal_axes(given.scaled(None), n_axes, given.workers)
    return axes_of(given.moments.gram[:-1, :-1], given.moments.total, n, n_axes)


def principal_axes(X: Float32, n_axes: int, workers: Workers) -> Float64:
    """The leading principal axes of centred rows, (D, n_axes), signs fixed by the largest entry."""
    n, D = X.shape
    if n >= D:
        (products,) = workers.sum(lambda rows: (X[rows].T @ X[rows],), n)
        (total,) = workers.sum(lambda rows: (X[rows].sum(axis=0, dtype=np.float64),), n)
        return axes_of(products, total, n, n_axes)
    centred = X.astype(np.float64)
    centred -= centred.mean(axis=0)
    _, _, Vt = np.linalg.svd(centred, full_matrices=False)
    return _with_signs(Vt[:n_axes].T)


def axes_of(products: Float64, total: Float64, n: int, n_axes: int) -> Float64:
    """The leading principal axes of n rows from XᵀX, (D, D), and Σx, (D,)."""
    D = len(total)
    centred = products - np.outer(total, total / n)
    return _with_signs(eigh(centred, subset_by_index=(D - n_axes, D - 1))[1][:, ::-1])


def _with_signs(axes: Float64) -> Float64:
    """Signs fixed by the largest entry."""
    largest = np.abs(axes).argmax(axis=0)
    signs = np.sign(axes[largest, np.arange(axes.shape[1])])
    return np.ascontiguousarray(axes * np.where(signs == 0, 1.0, signs))


# ---- iterative quantisation


class ITQ(Hasher):
    """Iterative quantization: the PCA components V, rotated by the R that makes them most nearly binary.

    >>> from sklearn.datasets import load_digits
    >>> from auxbit import ITQ
    >>> X = load_digits().data
    >>> itq = ITQ(n_bits=16, random_state=0).fit(X)
    >>> itq.encode(X).shape  # packed: two bytes per row
    (1797, 2)

    It alternates between B and R in min ‖B − VR‖², B in {−1, 1} and R a rotation (eq. 1 of the paper).

    Parameters
    ----------
    n_bits : bits per code; at most the number of dimensions.
    n_iter : the most alternations; 50 in the ITQ paper. It ends earlier if the objective no longer changes.
    n_init : how many random rotations to start from; the one whose codes reconstruct best is kept.
    normalize : divide rows by their norms, to find neighbours by cosine.
    lift : add a coordinate to the rows, to find neighbours by inner product; queries are then encoded by
        encode(X, queries=True).
    random_state : seed of the first rotation.
    n_jobs : threads; None for all cores. The result does not depend on it.
    """

    max_bits = MAX_BITS

    def __init__(
        self, n_bits: int = 32, *, n_iter: int = 50, n_init: int = 1, normalize: bool = False,
        lift: bool = False, random_state: Any = None, n_jobs: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(n_bits, normalize=normalize, lift=lift, random_state=random_state, n_jobs=n_jobs)
        self.n_iter = n_iter
        self.n_init = n_init

    def _learn(self, given: Beginning) -> Learned:
        n_iter, n_init = check_integer("n_iter", self.n_iter, 1), check_integer("n_init", self.n_init, 1)
        check_axes(given.n_bits, given.shape, "ITQ")
        axes, rows = leading_axes(given, given.n_bits), given.scaled(rows_to_rotate(given, given.shape[0]))
        return Learned(
            signs_of(rotated_axes(rows, axes, given.workers, given.rng, n_iter=n_iter, n_init=n_init))
        )


def rows_to_rotate(given: Beginning, most: int) -> Ids | None:
    """The rows that a rotation is found on, None for all: as many as memory has room for, at most `most`."""
    (n, D), n_bits = given.shape, given.n_bits
    most = given.fitting(4 * (D + 4 * n_bits), ROTATED_SHARE, most)  # a row, and what ITQ makes of it
    return None if n <= most else draw_rows(n, most, given.rng)


def rotated_axes(
    X: Float32, axes: Float64, workers: Workers, rng: np.random.RandomState, *, n_iter: int, n_init: int,
    momentum: float = 0.0,
) -> Float64:  # fmt: skip
    """These axes, (D, n_bits), times the rotation that is found on the rows of X."""
    axes32, n_bits = axes.astype(np.float32), axes.shape[1]
    V = np.empty((len(X), n_bits), dtype=np.float32)

    def project(rows: slice) -> None:
        V[rows] = X[rows] @ axes32

    workers.run(project, len(X))
    rotation = random_rotation(n_bits, rng)
    if n_init > 1:
        trial, n_trial = some_rows(V, rng, TRIAL_ROWS), min(n_iter, TRIAL_ITERATIONS)
        starts = [rotation, *(random_rotation(n_bits, rng) for _ in range(n_init - 1))]

        def improve(which: slice) -> tuple[float, Float64]:
            R = rotate_to_binary(partial(signed_products, trial), starts[which.start], n_trial, momentum)
            return _reconstruction_error(trial, R), R

        rotation = min(workers.map(improve, n_init, block_rows=1), key=lambda found: found[0])[1]

    def products(R: Float32) -> Float64:
        return np.asarray(workers.sum(lambda rows: (signed_products(V[rows], R),), len(V))[0])

    return np.asarray(axes @ rotate_to_binary(products, rotation, n_iter, momentum))


def rotate_to_binary(
    products: Callable[[Float32], npt.NDArray[Any]], R: Float64, n_iter: int, momentum: float = 0.0
) -> Float64:
    """Alternate B = sgn(VR) and the Procrustes rotation of VᵀB, from the rotation R, (L, L).

    products : R → VᵀB. With momentum m, B is that of R + m(R − the previous R): it takes fewer steps, and
    passes local optima in which plain alternation stops.
    """
    previous, before = np.inf, R
    for _ in range(n_iter):
        U, singular, Wt = np.linalg.svd(products((R + momentum * (R - before)).astype(np.float32)))
        before, R = R, U @ Wt  # in this order, or it drifts away from the optimum
        total = float(singular.sum())  # what the rotation maximises
        if abs(total - previous) <= 1e-7 * total:
            break
        previous = total
    return R


def signed_products(V: Float32, R: Float32) -> Float32:
    """VᵀB for the codes B = sgn(VR) in {−1, 1}."""
    B = V @ R
    B += np.float32(0)  # −0 becomes 0, whose sign is +
    np.copysign(np.float32(1), B, out=B)
    return np.asarray(V.T @ B)


def _reconstruction_error(V: Float32, R: Float64) -> float:
    """Σ‖v − f(z)‖² for the codes z of VR and their least-squares decoder f."""
    Z = V @ R.astype(np.float32) >= 0
    labels = Z.astype(np.float32)
    total = labels.sum(axis=0, dtype=np.float64), V.sum(axis=0, dtype=np.float64)
    ZZ, ZV = (labels.T @ labels).astype(np.float64), (labels.T @ V).astype(np.float64)
    residual = V - f_step(DecoderSums(len(V), ZZ, total[0], ZV, total[1]))(Z.view(np.uint8))
    return float(np.einsum("nd,nd->", residual, residual))


def random_rotation(n: int, rng: np.random.RandomState) -> Float64:
    """A rotation drawn uniformly: Q of a Gaussian matrix, with R's signs fixed."""
    Q, R = np.linalg.qr(rng.standard_normal((n, n)))
    return np.asarray(Q * np.where(R.diagonal() < 0, -1.0, 1.0))
