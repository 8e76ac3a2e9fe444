"""Respecting the binary constraints: errors of the training rows, and the claims on them."""

from __future__ import annotations

import pytest

from auxbit import ITQ
from auxbit.experiments import wrapper


def test_the_wrapper_experiment_shows_errors_of_the_training_rows(problem, fits):
    result = wrapper.run(fits, bits=(4, 8), K=10, k=10)
    at = {(row["method"], row["bits"]): row["reconstruction_error"] for row in result.tables["wrapper"]}
    model = ITQ(8, random_state=0).fit(problem.train)
    assert at["ITQ", 8] == pytest.approx(-model.score(problem.train) * len(problem.train))
    assert at["BA", 8] <= at["ITQ", 8]
    assert {claim.holds for claim in result.claims} <= {True, False}


@pytest.mark.parametrize(("error", "holds"), [(1.0, True), (2.0, True), (2.1, False)])
def test_ba_may_end_at_the_error_of_its_start_but_not_above(error, holds):
    errors = {"BA": error, "ITQ": 2.0, "tPCA": 3.0}
    table = [
        {"method": method, "bits": 8, "reconstruction_error": value, "precision_k": 1 / value}
        for method, value in errors.items()
    ]
    (claim,) = [each for each in wrapper._claims(table, "d") if "never ends above its start" in each.claim]
    assert claim.holds is holds
