"""What tests of the two trained models share: quick models, digits, and errors."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from auxbit import BinaryAutoencoder, BinaryFactorAnalysis

MODELS = [BinaryAutoencoder, BinaryFactorAnalysis]
both_models = pytest.mark.parametrize("model_class", MODELS, ids=lambda cls: cls.__name__)


@pytest.fixture(scope="module")
def digits():
    """All 1797 digits, divided by 16."""
    return load_digits().data / 16


@pytest.fixture(scope="module")
def some():
    """400 of the digits."""
    return load_digits().data[:400] / 16


def short(model_class, n_bits=8, **parameters):
    """A model of few iterations."""
    if model_class is BinaryAutoencoder:
        parameters = {"mu_factor": 3.0, "validation": None, **parameters}
    return model_class(n_bits, **{"random_state": 0, "max_iter": 12, **parameters})


def error_of(model, X):
    return -model.score(X) * len(X)


def decoded(X, Z, new):
    """f(new) for the least-squares decoder f of the codes Z of X."""
    design = np.hstack([Z, np.ones((len(Z), 1))])
    return np.hstack([new, np.ones((len(new), 1))]) @ np.linalg.lstsq(design, X, rcond=None)[0]
