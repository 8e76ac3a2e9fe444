"""Thresholded PCA: the signs of the leading principal components."""

from __future__ import annotations

from typing import Any

import numpy as np

from auxbit.hashers.base import Hasher, Learned, Training
from auxbit.hashers.pca import check_axes, principal_axes
from auxbit.maps import LinearEncoder


class ThresholdedPCA(Hasher):
    """The filter approach in its plainest form: relax to PCA, then threshold at the mean.

    Parameters
    ----------
    n_bits : bits a code; at most the number of dimensions.
    random_state : unused, for a common interface.
    n_jobs : threads; None for all cores. The result does not depend on it.
    """

    def __init__(self, n_bits: int = 32, *, random_state: Any = None, n_jobs: int | None = None) -> None:
        self.n_bits = n_bits
        self.random_state = random_state
        self.n_jobs = n_jobs

    def _learn(self, training: Training) -> Learned:
        check_axes(training.n_bits, training.X, "thresholded PCA")
        axes = principal_axes(training.X, training.n_bits, training.workers)
        return Learned(LinearEncoder(axes.astype(np.float32), np.zeros(training.n_bits, np.float32)))
