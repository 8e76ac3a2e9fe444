"""How many bits: the rule on data where the answer is plain, and the command."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auxbit import evaluate
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.experiments import bits
from auxbit.experiments.study import Cell, Fits, Problem, Row


def measured(*values: tuple[int, float, float]) -> list[Row]:
    return [{"bits": L, "effective_bits": e, "bound": 20.0, "precision": p} for L, e, p in values]


def advise(rows: list[Row], n_rows: int = 2**10) -> bits.Advice:
    return bits.advise(rows, n_rows, {}, {})


def clusters(n: int, n_clusters: int, noise: float) -> Any:
    rng = np.random.default_rng(0)
    return 10 * rng.normal(size=(n_clusters, 40))[np.arange(n) % n_clusters] + noise * rng.normal(
        size=(n, 40)
    )


# ---- the rule


def test_the_smallest_number_is_chosen_at_which_the_bound_is_reached_and_precision_is_slow() -> None:
    advice = advise(measured((8, 6.0, 0.2), (16, 9.5, 0.4), (24, 9.8, 0.5), (32, 9.9, 0.52), (64, 10.0, 0.6)))
    assert (advice.bits, advice.settled) == (24, True)  # at 16 precision still grows by a quarter for 8 bits
    assert "98% of the 10.0 that 1,024 rows can have" in advice.reason


def test_a_use_of_codes_that_stagnates_below_the_bound_is_enough() -> None:
    advice = advise(measured((8, 3.0, 0.2), (16, 3.1, 0.2), (32, 3.2, 0.21)))
    assert (advice.bits, advice.settled) == (8, True)
    assert "stagnates" in advice.reason


def test_precision_that_still_grows_asks_for_more_bits_whatever_the_use_of_codes() -> None:
    advice = advise(measured((8, 9.5, 0.1), (16, 9.9, 0.2), (24, 10.0, 0.3)))
    assert (advice.bits, advice.settled) == (24, False)
    assert "precision still grew by 50% for the last 8 bits" in advice.reason


def test_a_use_of_codes_that_still_grows_asks_for_more_bits_though_precision_does_not() -> None:
    advice = advise(measured((8, 4.0, 0.5), (16, 7.0, 0.5)))
    assert (advice.bits, advice.settled) == (16, False)
    assert "still grew by 0.38 per bit" in advice.reason


def test_one_dip_of_precision_is_not_taken_for_its_end() -> None:
    rows = measured((8, 9.5, 0.20), (16, 9.9, 0.19), (24, 10.0, 0.40), (32, 10.0, 0.41))
    assert advise(rows).bits == 24


def test_growth_is_judged_per_bit_and_gain_for_eight_bits_however_far_apart_the_numbers_are() -> None:
    low, high = measured((8, 4.0, 0.2), (40, 6.0, 0.4))
    assert bits.most_growth(low, [high]) == pytest.approx(2 / 32)
    assert bits.most_gain(low, [high]) == pytest.approx(2 ** (1 / 4) - 1)
    assert bits.most_gain(low | {"precision": 0.0}, [high]) == float("inf")
    assert bits.most_gain(low | {"precision": 0.0}, [high | {"precision": 0.0}]) == 0.0


def test_one_number_of_bits_alone_cannot_be_judged() -> None:
    advice = advise(measured((8, 4.0, 0.5)))
    assert (advice.bits, advice.settled) == (8, False)
    assert "all that was tried" in advice.reason


# ---- data where the answer is plain


def test_few_tight_clusters_need_few_bits() -> None:
    X = clusters(1200, 8, 1e-3)
    advice = bits.choose_bits(X, bits=(8, 16, 32), n_jobs=1)
    assert (advice.bits, advice.settled) == (8, True)
    assert advice.rows[0]["effective_bits"] < 3.5
    assert "stagnates" in advice.reason


def test_the_use_of_codes_of_few_rows_ends_at_the_logarithm_of_their_number() -> None:
    X = np.random.default_rng(0).normal(size=(256, 40))
    advice = bits.choose_bits(X, bits=(4, 8, 16, 24, 32, 40), n_jobs=1)
    assert [row["bound"] for row in advice.rows] == [4, 8, 8, 8, 8, 8]
    assert advice.settled
    assert 8 < advice.bits < 40
    assert "of the 8.0 that 256 rows can have" in advice.reason


def test_figures_are_of_all_rows_and_of_the_held_out_queries(digits: Any) -> None:
    advice = bits.choose_bits(digits, bits=(8,), n_queries=50, max_rows=400, n_jobs=1)
    assert (advice.settings["rows"], advice.settings["sample_rows"], advice.settings["queries"]) == (
        1797,
        350,
        50,
    )
    sample, asked = bits._split(digits, 50, 400, 0)
    assert not set(sample) & set(asked)
    from auxbit import ITQ

    model = ITQ(8, random_state=0, n_jobs=1).fit(digits[sample])
    truth = evaluate.ground_truth(digits[sample], digits[asked], 35)
    ranking = evaluate.hamming_ranking(model.encode(digits[sample]), model.encode(digits[asked]), truth, 8)
    (row,) = advice.rows
    assert row["effective_bits"] == evaluate.effective_bits(model.encode(digits))
    assert row["precision"] == evaluate.precision_recall_at_k(ranking, 35, ties="average").precision
    nearest = evaluate.hamming_ranking(
        model.encode(digits[sample]), model.encode(digits[asked]), truth[:, :10], 8
    )
    assert row["recall"] == evaluate.precision_recall_at_k(nearest, 35, ties="average").recall
    assert row["growth"] == row["effective_bits"] / 8


def test_codes_of_all_rows_are_made_in_blocks(
    monkeypatch: pytest.MonkeyPatch, digits: Any, model: Any
) -> None:
    monkeypatch.setattr(bits, "ENCODED_AT_ONCE", 100)
    np.testing.assert_array_equal(bits.encode_all(model.encode, digits, 16), model.encode(digits))


def test_numbers_of_bits_that_a_method_cannot_have_are_left_out_with_the_reason() -> None:
    X = np.random.default_rng(0).normal(size=(100, 10))
    advice = bits.choose_bits(X, bits=(4, 8, 16), n_jobs=1)
    assert [row["bits"] for row in advice.rows] == [4, 8]
    assert list(advice.left_out) == [16]
    with pytest.raises(InvalidInput, match="none of these numbers of bits"):
        bits.choose_bits(X, bits=(16,), n_jobs=1)


def test_bad_parameters_are_named() -> None:
    X = np.zeros((30, 3))
    with pytest.raises(InvalidInput, match="at least 20 rows, got 5"):
        bits.choose_bits(X[:5])
    with pytest.raises(InvalidParameter, match=r"method='lsh' is invalid: expected one of itq, ba"):
        bits.choose_bits(X, method="lsh")
    with pytest.raises(InvalidInput, match="bits must not be empty"):
        bits.choose_bits(X, bits=())
    with pytest.raises(InvalidParameter, match="queries=0"):
        bits.choose_bits(X, n_queries=0)


def test_a_problem_of_the_experiments_is_judged_by_the_codes_of_its_store(digits: Any) -> None:
    problem = Problem("digits", digits[100:500], digits[:100])
    fits = Fits(problem, None, n_jobs=1)
    result = bits.run(fits, bits=(8, 16, 70))
    rows = result.tables["bits"]
    assert [row["bits"] for row in rows] == [8, 16]
    assert rows[1]["effective_bits"] == evaluate.effective_bits(fits.get(Cell("itq", 16, 0)).train)
    assert result.settings["reason"] in result.about
    marked = result.figures["bits"]().axes[1]
    assert f"{result.settings['recommended']} bits" in {text.get_text() for text in marked.texts}
