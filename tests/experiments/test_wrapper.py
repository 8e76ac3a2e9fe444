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
    own = [row for row in result.tables["wrapper"] if row["method"] in ("BA", "BA-ITQ")]
    assert len(own) == 4
    assert all(row["gain"] == pytest.approx(row["start_error"] - row["reconstruction_error"]) for row in own)
    assert {claim.holds for claim in result.claims} <= {True, False}


def claims_of(errors, **of_ba):
    table = [
        {"method": method, "bits": 8, "seeds": 3, "reconstruction_error": value, "precision_k": 1 / value,
         "precision_r": 1 / value} | (of_ba if method == "BA" else {})
        for method, value in errors.items()
    ]  # fmt: skip
    return {each.claim: each.holds for each in wrapper._claims(table, "paper", "d")}


@pytest.mark.parametrize(
    ("gain", "spread", "holds"), [(1, 0, True), (0, 0, True), (-0.1, 0, False), (-1, 2, None)]
)
def test_ba_may_end_at_the_error_of_its_own_start_but_not_above(gain, spread, holds):
    errors = {"BA": 1.0, "ITQ": 0.5, "BFA": 2.5, "tPCA": 3.0}
    found = claims_of(errors, start_error=1.0 + gain, gain=gain, gain_std=spread)
    assert found["MAC never ends above its own start's reconstruction error"] is holds


def test_the_paper_orders_its_four_methods_and_ba_from_another_start_takes_no_part():
    good = {"BA": 1.0, "ITQ": 2.0, "BFA": 2.5, "tPCA": 3.0, "BA-ITQ": 0.5}
    assert {holds for claim, holds in claims_of(good).items() if "start" not in claim} == {True}
    bad = good | {"BFA": 0.9, "ITQ": 2.3, "tPCA": 2.2, "BA-ITQ": 9.0}
    found = claims_of(bad)
    assert {holds for claim, holds in found.items() if "start" not in claim} == {False}
    assert found == claims_of(bad | {"BA-ITQ": 2.0})  # it is no rival of the others
