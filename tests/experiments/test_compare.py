"""Comparisons: what a row says, means over seeds, PQ and OPQ, and going on after a stop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auxbit import ITQ, evaluate
from auxbit.data import vectors
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.evaluate import ground_truth
from auxbit.experiments.compare import cells, compare, mean_over_seeds


@pytest.fixture(scope="module")
def digits() -> Any:
    return vectors.embedded_digits()[0]


@pytest.fixture(scope="module")
def rows(digits: Any) -> Any:
    base, queries = digits[300:900], digits[:300]
    return compare(base, base, queries, ["itq", "tpca", "pq", "opq"], [8, 16], K=20, k=10, seeds=(0, 1))


def test_a_row_says_what_evaluate_says_of_the_same_model(digits: Any, rows: Any) -> None:
    base, queries = digits[300:900], digits[:300]
    row = next(row for row in rows if (row["method"], row["bits"], row["seed"]) == ("ITQ", 16, 1))
    model = ITQ(16, random_state=1).fit(base)
    truth = ground_truth(base, queries, 20)
    ranking = evaluate.hamming_ranking(model.encode(base), model.encode(queries), truth, 16)
    assert (row["precision"], row["recall"]) == evaluate.precision_recall_at_k(ranking, 10)
    averaged = evaluate.precision_recall_at_k(ranking, 10, ties="average")
    assert (row["precision_average"], row["recall_average"]) == averaged
    assert row["precision_radius"] == evaluate.precision_recall_at_radius(ranking, 2).precision
    assert row["reconstruction_error"] == -model.score(base)
    assert row["effective_bits"] == evaluate.effective_bits(model.encode(base))


def test_each_cell_is_there_once_and_methods_without_randomness_have_one_seed(rows: Any) -> None:
    found = [(row["method"], row["bits"], row["seed"]) for row in rows]
    assert found == cells(["itq", "tpca", "pq", "opq"], [8, 16], [0, 1])
    assert sum(method == "tPCA" for method, _, _ in found) == 2
    assert sum(method == "ITQ" for method, _, _ in found) == 4


def test_product_quantisers_are_marked_asymmetric_and_have_no_hamming_figures(rows: Any) -> None:
    for row in rows:
        is_product = row["method"] in ("PQ", "OPQ")
        assert row["search"] == ("asymmetric" if is_product else "Hamming")
        assert (row["precision_radius"] is None) == is_product
        assert row["precision"] > 0.1
        assert 0 < row["effective_bits"] <= row["effective_bits_bound"]


def test_bits_that_no_product_has_are_left_out_with_the_reason(digits: Any) -> None:
    base = digits[300:]
    (row,) = compare(base, base, digits[:50], ["pq"], [13], K=10, k=10, seeds=[0])
    assert "M dividing 64" in row["skipped"]
    (row,) = compare(base, base, digits[:50], ["itq"], [65], K=10, k=10, seeds=[0])
    assert "at most 64" in row["skipped"]
    assert mean_over_seeds([row])[0]["skipped"] == row["skipped"]


def test_means_over_seeds_have_their_spread(rows: Any) -> None:
    means = mean_over_seeds(rows)
    assert len(means) == 8
    mean = next(mean for mean in means if (mean["method"], mean["bits"]) == ("ITQ", 8))
    values = [row["precision"] for row in rows if (row["method"], row["bits"]) == ("ITQ", 8)]
    assert mean["precision"] == pytest.approx(np.mean(values))
    assert mean["precision_std"] == pytest.approx(np.std(values))
    assert mean["seeds"] == 2
    assert next(mean for mean in means if mean["method"] == "PQ")["map"] is None


def test_known_rows_are_not_computed_again(digits: Any, rows: Any) -> None:
    known = {(row["method"], row["bits"], row["seed"]): row for row in rows}
    fresh: list[Any] = []
    again = compare(
        digits[300:900], digits[300:900], digits[:300], ["itq", "lsh"], [8], K=20, k=10, seeds=(0, 1),
        known=known, on_row=fresh.append,
    )  # fmt: skip
    assert [row["method"] for row in fresh] == ["LSH", "LSH"]
    assert again[:2] == [row for row in rows if (row["method"], row["bits"]) == ("ITQ", 8)]


def test_bad_settings_are_refused_before_anything_is_fitted(digits: Any) -> None:
    base, queries = digits[300:], digits[:300]
    with pytest.raises(InvalidParameter, match="Did you mean itq"):
        compare(base, base, queries, ["iqt"], [8])
    with pytest.raises(InvalidInput, match="k=1500 is more than the 1497 rows"):
        compare(base, base, queries, ["lsh"], [8], k=1500)
    with pytest.raises(InvalidInput, match="must not be empty"):
        compare(base, base, queries, [], [8])
    with pytest.raises(InvalidInput, match="the queries contains NaN at row 0, column 0"):
        compare(base, base, np.full((1, 64), np.nan), ["lsh"], [8])
    with pytest.raises(InvalidInput, match="with 64 columns"):
        compare(base[:, :5], base, queries, ["lsh"], [8])
