"""scikit-learn's own checks of estimators, on every hasher."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.estimator_checks import parametrize_with_checks

from auxbit import AnchorGraphHashing, BinaryAutoencoder, BinaryFactorAnalysis
from helpers.every_hasher import HASHERS

# check → reason, for checks that an estimator cannot pass by its nature. There is none.
EXPECTED_FAILURES: dict[str, str] = {}


@parametrize_with_checks(
    [
        *(hasher(n_bits=2) for hasher in HASHERS),
        AnchorGraphHashing(n_bits=2, n_layers=2),
        BinaryAutoencoder(n_bits=2, encoder="rbf"),
        BinaryFactorAnalysis(n_bits=2, encoder="rbf"),
        BinaryAutoencoder(n_bits=2, encoder=np.square),
        BinaryAutoencoder(n_bits=2, objective="affinity"),
        BinaryAutoencoder(n_bits=2, objective="affinity", encoder="rbf"),
        BinaryAutoencoder(n_bits=2, penalty="augmented"),
        BinaryAutoencoder(n_bits=2, decoder="tables"),
        BinaryAutoencoder(n_bits=2, decoder="tables", encoder="rbf"),
    ],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_the_estimator_passes_the_check(estimator: Any, check: Any) -> None:
    check(estimator)
