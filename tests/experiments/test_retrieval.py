"""Precision and recall of all methods: what evaluate says of the kept codes, and the claims on them."""

from __future__ import annotations

import numpy as np
import pytest

from auxbit import evaluate
from auxbit.errors import InvalidParameter
from auxbit.evaluate import ground_truth
from auxbit.experiments import retrieval
from auxbit.experiments.study import Cell

SMALL = retrieval.Preset("fig. 10", (retrieval.Neighbours(10, 10, (1, 2)),), bits=(4, 8))


def test_retrieval_is_what_evaluate_says_of_the_codes(problem, fits):
    result = retrieval.run(fits, preset=SMALL, methods=("itq", "lsh"), seeds=(0, 1))
    truth = ground_truth(problem.train, problem.queries, 10)
    for bits in (4, 8):
        found = []
        for seed in (0, 1):
            made = fits.get(Cell("itq", bits, seed))
            ranking = evaluate.hamming_ranking(made.train, made.queries, truth, bits)
            found.append(evaluate.precision_recall_at_k(ranking, 10, ties="average").precision)
        (row,) = [
            row
            for row in result.tables["retrieval"]
            if (row["method"], row["bits"], row["retrieved"]) == ("ITQ", bits, "k=10")
        ]
        assert row["precision"] == pytest.approx(np.mean(found))
        assert row["seeds"] == 2
    assert {row["retrieved"] for row in result.tables["retrieval"]} == {"k=10", "r=1", "r=2"}
    assert all(row["answered"] > 0 for row in result.tables["curves"])


def test_sets_are_no_larger_than_a_tenth_of_the_rows(problem):
    fitted = retrieval.preset_of("nuswide", problem)
    assert [(each.K, each.k) for each in fitted.sets] == [(34, 34)]
    with pytest.raises(InvalidParameter, match="preset='x' is invalid: expected one of nuswide, sift"):
        retrieval.preset_of("x", problem)


def test_claims_follow_the_numbers():
    def rows(better):
        return [
            {"method": method, "bits": 16, "K": 5, "retrieved": "k=5", "precision": value}
            for method, value in (("BA", 0.5), ("ITQ", better), ("BFA", 0.2))
        ]

    for value, holds in ((0.4, True), (0.6, False)):
        claims = retrieval._claims(rows(value), "d")
        (claim,) = [each for each in claims if "above its start ITQ" in each.claim]
        assert claim.holds is holds


def test_whether_precision_falls_is_told_at_the_smallest_radius_and_the_last_bits():
    rows = [
        {"method": "BA", "bits": bits, "K": 5, "retrieved": how, "precision": value}
        for how, values in (("r=3", (0.2, 0.5, 0.4)), ("r=4", (0.2, 0.5, 0.6)))
        for bits, value in zip((8, 16, 32), values, strict=True)
    ]
    (claim,) = [each for each in retrieval._claims(rows, "d") if "smallest r falls" in each.claim]
    assert claim.holds is True
    rows[2]["precision"] = 0.7
    (claim,) = [each for each in retrieval._claims(rows, "d") if "smallest r falls" in each.claim]
    assert claim.ours == "fails in 1 of 1 cases: BA, K=5, r=3: 0.500 to 0.700"
