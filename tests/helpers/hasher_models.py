"""What tests of hashers share: hashers that are fitted quickly, and digits to fit them to."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from auxbit import BinaryAutoencoder, BinaryFactorAnalysis

TRAINED = [BinaryAutoencoder, BinaryFactorAnalysis]


def made(hasher, n_bits=6, **parameters):
    """A hasher with a seed, and with few iterations where it iterates."""
    if hasher in TRAINED:
        parameters = {"max_iter": 6, **parameters}
    if hasher is BinaryAutoencoder:
        parameters = {"mu_factor": 3.0, **parameters}
    return hasher(n_bits, random_state=0, **parameters)


@pytest.fixture(scope="module")
def digits():
    """600 digits of 64 pixels, whole numbers of 0..16, float32."""
    return load_digits().data[:600].astype(np.float32)
