"""Principal axes from the D×D (or n×n) matrix of products: the start of tPCA and ITQ."""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigh

from auxbit.blocks import Workers
from auxbit.errors import InvalidParameter
from auxbit.maps import Float32, Float64


def check_axes(n_bits: int, X: Float32, method: str) -> None:
    """PCA has at most min(n, D) axes, and a bit needs one."""
    n, D = X.shape
    if n_bits > min(n, D):
        raise InvalidParameter(
            "n_bits", n_bits, f"at most {min(n, D)} for {method} on data with n_samples={n}, n_features={D}",
            "LSH, SpectralHashing, SphericalHashing, KernelizedLSH, BinaryAutoencoder, BinaryFactorAnalysis "
            "allow more bits.",
        )  # fmt: skip


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


def random_rotation(n: int, rng: np.random.RandomState) -> Float64:
    """A rotation drawn uniformly: Q of a Gaussian matrix, with R's signs fixed."""
    Q, R = np.linalg.qr(rng.standard_normal((n, n)))
    return np.asarray(Q * np.where(R.diagonal() < 0, -1.0, 1.0))
