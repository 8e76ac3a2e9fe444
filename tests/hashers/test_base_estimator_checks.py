"""scikit-learn's own checks of estimators, on every hasher."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from auxbit import AnchorGraphHashing, BinaryAutoencoder, BinaryFactorAnalysis
from helpers.every_hasher import HASHERS

# check → reason, for checks that an estimator cannot pass by its nature. There is none.
EXPECTED_FAILURES: dict[str, str] = {}


OFTEN = [
    *(hasher(n_bits=2) for hasher in HASHERS),
    AnchorGraphHashing(n_bits=2, n_layers=2),
    BinaryAutoencoder(n_bits=2, encoder="rbf"),
    BinaryAutoencoder(n_bits=2, encoder=np.square),
    BinaryAutoencoder(n_bits=2, objective="affinity"),
    BinaryAutoencoder(n_bits=2, penalty="augmented"),
    BinaryAutoencoder(n_bits=2, decoder="tables", encoder="rbf"),
]
MODELS = [  # every choice of MAC with every other that it can be with
    (BinaryAutoencoder, {}),
    (BinaryAutoencoder, {"decoder": "tables"}),
    (BinaryAutoencoder, {"objective": "affinity"}),
    (BinaryAutoencoder, {"penalty": "augmented"}),
    (BinaryFactorAnalysis, {}),
    (BinaryFactorAnalysis, {"decoder": "tables"}),
]
EVERY = [
    model(n_bits=2, encoder=encoder, **options)
    for model, options in MODELS
    for encoder in ("linear", "rbf", np.square)
]


@parametrize_with_checks(OFTEN, expected_failed_checks=lambda estimator: EXPECTED_FAILURES)
def test_the_estimator_passes_the_check(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(EVERY, expected_failed_checks=lambda estimator: EXPECTED_FAILURES)
def test_every_combination_passes_the_check(estimator: Any, check: Any) -> None:
    check(estimator)
