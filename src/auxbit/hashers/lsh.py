"""Locality-sensitive hashing: signs of random projections of the centred rows (Andoni & Indyk 2008)."""

from __future__ import annotations

from typing import Any

import numpy as np

from auxbit.hashers.base import Hasher, Learned, Training
from auxbit.maps import LinearEncoder


class LSH(Hasher):
    """Random hyperplanes through the mean. Data-independent; any number of bits.

    Parameters
    ----------
    n_bits : bits a code, 1 to 1024.
    random_state : seed of the projections.
    n_jobs : threads; None for all cores. The result does not depend on it.
    """

    def __init__(self, n_bits: int = 32, *, random_state: Any = None, n_jobs: int | None = None) -> None:
        self.n_bits = n_bits
        self.random_state = random_state
        self.n_jobs = n_jobs

    def _learn(self, training: Training) -> Learned:
        directions = training.rng.standard_normal((training.X.shape[1], training.n_bits))
        return Learned(LinearEncoder(directions.astype(np.float32), np.zeros(training.n_bits, np.float32)))
