"""scikit-learn's own checks of estimators, on every hasher."""

from __future__ import annotations

from typing import Any

from sklearn.utils.estimator_checks import parametrize_with_checks

from auxbit import (
    ITQ,
    LSH,
    AnchorGraphHashing,
    BinaryAutoencoder,
    BinaryFactorAnalysis,
    KernelizedLSH,
    SpectralHashing,
    SphericalHashing,
    ThresholdedPCA,
)

# check → reason, for checks that an estimator cannot pass by its nature. There is none.
EXPECTED_FAILURES: dict[str, str] = {}


@parametrize_with_checks(
    [
        LSH(n_bits=2),
        ThresholdedPCA(n_bits=2),
        ITQ(n_bits=2),
        SpectralHashing(n_bits=2),
        KernelizedLSH(n_bits=2),
        AnchorGraphHashing(n_bits=2),
        AnchorGraphHashing(n_bits=2, n_layers=2),
        SphericalHashing(n_bits=2),
        BinaryAutoencoder(n_bits=2),
        BinaryFactorAnalysis(n_bits=2),
    ],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_the_estimator_passes_the_check(estimator: Any, check: Any) -> None:
    check(estimator)
