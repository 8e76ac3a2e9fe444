"""scikit-learn's own checks of estimators, on every hasher."""

from __future__ import annotations

from typing import Any

from sklearn.utils.estimator_checks import parametrize_with_checks

from auxbit import AnchorGraphHashing
from helpers.every_hasher import HASHERS

# check → reason, for checks that an estimator cannot pass by its nature. There is none.
EXPECTED_FAILURES: dict[str, str] = {}


@parametrize_with_checks(
    [*(hasher(n_bits=2) for hasher in HASHERS), AnchorGraphHashing(n_bits=2, n_layers=2)],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_the_estimator_passes_the_check(estimator: Any, check: Any) -> None:
    check(estimator)
