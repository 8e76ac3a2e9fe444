"""Precision and recall of all methods: what evaluate says of the kept codes, and the claims on them."""

from __future__ import annotations

import numpy as np
import pytest

from auxbit import evaluate
from auxbit.errors import InvalidParameter
from auxbit.evaluate import ground_truth
from auxbit.experiments import retrieval
from auxbit.experiments.study import Cell

SMALL = retrieval.Caption("fig. 10", (retrieval.Neighbours(10, 10, (1, 2)),), bits=(4, 8))


def claim(rows, words, judged=(), preset="paper"):
    (found,) = [each for each in retrieval._claims(rows, list(judged), preset, "d") if words in each.claim]
    return found


def test_retrieval_is_what_evaluate_says_of_the_codes(problem, fits):
    result = retrieval.run(fits, caption=SMALL, methods=("itq", "lsh"), seeds=(0, 1))
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
        assert np.std(found) > 0
        assert row["precision_std"] == pytest.approx(np.std(found))
        assert row["seeds"] == 2
    assert {row["retrieved"] for row in result.tables["retrieval"]} == {"k=10", "r=1", "r=2"}
    assert all(row["answered"] > 0 for row in result.tables["curves"])


def test_sets_are_no_larger_than_a_tenth_of_the_rows(problem):
    fitted = retrieval.caption_of("nuswide", problem)
    assert [(each.K, each.k) for each in fitted.sets] == [(34, 34)]
    with pytest.raises(InvalidParameter, match="caption='x' is invalid: expected one of nuswide, sift"):
        retrieval.caption_of("x", problem)


# ---- BA and its preset


def test_figures_show_ba_from_both_starts_and_each_fit_says_its_preset():
    assert retrieval.shown("paper")[:3] == ("ba", "ba-itq", "bfa")
    assert retrieval.shown("default")[:3] == ("ba", "ba-agh", "bfa")
    with pytest.raises(InvalidParameter, match="preset='x' is invalid: expected default or paper"):
        retrieval.shown("x")
    made = {cell.method: cell.options for cell in retrieval.cells(("ba", "bfa", "itq"), [8], [0], "default")}
    assert made == {"ba": (("preset", "default"),), "bfa": (("preset", "default"),), "itq": ()}


@pytest.mark.parametrize(("preset", "label"), [("paper", "BA"), ("default", "BA-AGH")])
def test_ba_from_agh_is_compared_with_the_codes_of_its_own_agh(problem, fits, preset, label):
    result = retrieval.run(fits, caption=SMALL, methods=(label.lower(),), bits=(8,), preset=preset)
    made = fits.get(Cell.under(preset, label.lower(), 8, 0))
    (row,) = [row for row in result.tables["retrieval"] if row["retrieved"] == "r=1"]
    truth = ground_truth(problem.train, problem.queries, 10)
    ranking = evaluate.hamming_ranking(made.start.train, made.start.queries, truth, 8)
    expected = evaluate.precision_recall_at_radius(ranking, 1).precision
    assert row["start_precision"] == pytest.approx(expected)
    assert row["gain"] == pytest.approx(row["precision"] - expected)
    assert result.settings["preset"] == preset


# ---- claims


@pytest.mark.parametrize(("gain", "spread", "holds"), [(0.1, 0, True), (-0.1, 0, False), (-0.1, 0.2, None)])
def test_ba_is_held_against_its_own_start_and_not_against_the_method_of_that_name(gain, spread, holds):
    own = {"start_precision": 0.5 - gain, "gain": gain, "gain_std": spread}
    rows = [
        {"method": "BA", "bits": 16, "K": 5, "retrieved": "k=5", "precision": 0.5, "seeds": 3} | own,
        {"method": "AGH", "bits": 16, "K": 5, "retrieved": "k=5", "precision": 0.9, "seeds": 3},
    ]
    assert claim(rows, "BA from AGH is above its own start").holds is holds
    assert claim(rows, "BA from ITQ is above its own start").holds is None
    (judged,) = [{"method": "BA", "bits": 16, "precision": 0.5, "seeds": 3} | own]
    assert claim([], "on the validation queries", [judged]).holds is holds


def test_claims_about_most_cases_may_fail_in_some_and_name_the_best_rival():
    def rows(values):
        return [
            {"method": method, "bits": 16, "K": 5, "retrieved": how, "precision": value}
            for how, pair in values.items()
            for method, value in zip(("BA", "ITQ", "SPH", "LSH"), pair, strict=True)
        ]

    ahead, behind = (0.5, 0.4, 0.3, 0.9), (0.5, 0.4, 0.6, 0.9)  # LSH is not of the paper
    found = claim(rows({"k=5": ahead, "r=1": ahead, "r=2": behind}), "BA from AGH is mostly above all")
    assert found.holds is True
    assert found.ours == "fails in 1 of 3 cases: L=16, K=5, r=2: 0.500 against 0.600 of SPH"
    assert claim(rows({"k=5": behind}), "BA from AGH is mostly above all").holds is False


def test_whether_precision_falls_is_told_at_the_smallest_radius_and_the_last_bits():
    rows = [
        {"method": "BA", "bits": bits, "K": 5, "retrieved": how, "precision": value}
        for how, values in (("r=3", (0.2, 0.5, 0.4)), ("r=4", (0.2, 0.5, 0.6)))
        for bits, value in zip((8, 16, 32), values, strict=True)
    ]
    assert claim(rows, "smallest r falls").holds is True
    rows[2]["precision"] = 0.7
    assert claim(rows, "smallest r falls").ours == "fails in 1 of 1 cases: BA, K=5, r=3: 0.500 to 0.700"


def test_precision_of_the_nearest_codes_must_grow_from_each_number_of_bits_to_the_next():
    rows = [
        {"method": "BA", "bits": bits, "K": 5, "retrieved": "k=5", "precision": value}
        for bits, value in ((8, 0.2), (16, 0.5), (32, 0.4))
    ]
    found = claim(rows, "k nearest codes grows with L")
    assert found.ours == "fails in 1 of 2 cases: BA, K=5, k=5: 0.500 to 0.400"
