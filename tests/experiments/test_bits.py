"""The cheapest codes: what is tried and measured, which row is chosen, and the commands that make it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auxbit import BinaryAutoencoder, HammingIndex, evaluate
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.experiments import bits
from auxbit.experiments.measure import about
from auxbit.experiments.study import Row

WANTED = 0.96


@pytest.fixture(scope="module")
def choice(digits: Any) -> bits.Choice:
    return bits.choose_bits(digits, recall=WANTED, rerank=40, bits=(8, 16, 32, 64), max_rows=900, n_jobs=1)


def measured(*values: tuple[int, str, int | None, float]) -> list[Row]:
    return [dict(zip(("bits", "coding", "rerank", "recall"), each)) for each in values]


def test_the_cheapest_row_that_finds_enough_is_chosen() -> None:
    rows = measured(
        (32, "hash", None, 0.3), (32, "optimal", None, 0.5), (32, "hash", 40, 0.7), (32, "optimal", 40, 0.9),
        (64, "hash", None, 0.5), (64, "optimal", None, 0.95),
    )  # fmt: skip
    assert bits._cheapest(rows, 0.6, 40) is rows[2]
    assert bits._cheapest(rows, 0.6, None) is rows[5]
    assert bits._cheapest(rows, 0.5, 40) is rows[1]
    assert bits._cheapest(rows, 0.96, 40) is None


def test_numbers_of_bits_double_up_to_eight_per_dimension_and_what_ba_can_make() -> None:
    assert bits._counts(None, 64) == [32, 64, 128, 256, 512]
    assert bits._counts(None, 1536) == [32, 64, 128, 256, 512, 1024]
    assert bits._counts(None, 3) == [24]
    assert bits._counts((64, 8, 64), 3) == [8, 64]


def test_it_stops_at_the_first_number_of_bits_that_finds_enough(choice: bits.Choice) -> None:
    assert choice.best is not None
    assert choice.best["bits"] == choice.rows[-1]["bits"] < 64
    assert choice.best["recall"] >= WANTED
    assert all(row["recall"] < WANTED for row in choice.rows if row["bits"] < choice.best["bits"])
    assert choice.settings["sample_rows"] + choice.settings["queries"] == 900
    for row in choice.rows:
        assert row["payload_bytes"] == row["bits"] // 8
        assert row["vector_bytes"] == (128 if row["rerank"] else 0)


def test_figures_are_those_of_held_out_queries(choice: bits.Choice, digits: Any) -> None:
    learned, searched, asked = bits._split(digits, 500, 900, 0)
    assert not (set(searched) | set(learned)) & set(asked)
    assert len(learned) == len(searched) == 720
    assert not set(learned) & set(searched)  # 1,797 are enough for others to train on
    base, queries = digits[searched], digits[asked]
    truth = evaluate.ground_truth(base, queries, 50)
    model = BinaryAutoencoder(8, random_state=0, n_jobs=1).fit(digits[learned])
    index = HammingIndex(8)
    index.add(model.encode(base))
    found = index.search(model.encode(queries), 50)[1]
    row = next(row for row in choice.rows if (row["bits"], row["coding"]) == (8, "hash"))
    assert row["recall"] == evaluate.recall_at(evaluate.retrieved_ranking(found, truth), 10)
    assert row["effective_bits"] == evaluate.effective_bits(model.encode(base))


def test_few_rows_are_both_trained_on_and_searched(digits: Any) -> None:
    learned, searched, asked = bits._split(digits[:300], 500, 900, 0)
    np.testing.assert_array_equal(learned, searched)
    assert (len(searched), len(asked)) == (240, 60)


def test_re_ranked_rows_find_more_and_keep_vectors(choice: bits.Choice) -> None:
    of = {(row["bits"], row["coding"], bool(row["rerank"])): row for row in choice.rows}
    for L, coding, again in of:
        if again:
            assert of[L, coding, True]["recall"] > of[L, coding, False]["recall"]
            assert of[L, coding, True]["search_ms"] > of[L, coding, False]["search_ms"]
    assert of[16, "optimal", False]["recall"] > of[16, "hash", False]["recall"]


def test_without_a_wanted_recall_nothing_is_recommended(digits: Any) -> None:
    found = bits.choose_bits(digits, bits=(8, 16), max_rows=300, n_jobs=1)
    assert found.best is None
    assert bits.verdict(found) == ""
    assert bits.commands(found, "x.npy") == []
    assert [row["bits"] for row in found.rows] == [8] * 4 + [16] * 4
    assert "Measured on a sample: 60 held-out queries in 240 of 1,797 rows" in bits.on_what(found.settings)


def test_what_is_not_reached_is_said_with_the_most_that_was(digits: Any) -> None:
    found = bits.choose_bits(digits, recall=0.999, bits=(8,), max_rows=300, n_jobs=1)
    assert found.best is None
    assert "No codes that were tried have a recall@10 of 0.999" in bits.verdict(found)
    assert "Re-rank" in bits.verdict(found)


def test_codes_alone_are_chosen_if_re_ranking_was_not_asked_for(digits: Any) -> None:
    found = bits.choose_bits(digits, recall=0.6, bits=(8, 64), max_rows=900, n_jobs=1)
    assert found.best is not None
    assert (found.best["bits"], found.best["rerank"]) == (64, None)
    assert "With vectors kept beside the codes: 8 bits" in bits.verdict(found)


def test_a_linear_decoder_is_measured_where_the_best_takes_too_long(
    digits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(bits.Runner):
        def run(self, cell: Any, method: Any) -> Row:
            if cell[0] == "BA-optimal" and cell[1] > 8:
                return about(cell, skipped="it takes too long.")
            return super().run(cell, method)

    monkeypatch.setattr(bits, "Runner", Slow)
    found = bits.choose_bits(digits, bits=(8, 16), max_rows=900, n_jobs=1)
    kinds = {row["bits"]: row["decoder"] for row in found.rows if row["coding"] == "optimal"}
    assert kinds == {8: "tables", 16: "linear"}
    assert [(row["method"], row["bits"]) for row in found.left_out] == [("BA-optimal", 16)]


def test_inner_products_need_lifted_rows_which_is_said(digits: Any) -> None:
    found = bits.choose_bits(digits, recall=0.2, metric="inner_product", bits=(16,), max_rows=900, n_jobs=1)
    assert "rows of lift_rows and queries of lift_queries" in bits.verdict(found)
    create, search = bits.commands(found, "x.npy")
    assert "lifted.npy" in create
    assert "lifted-queries.npy" in search


def test_the_figure_marks_the_choice_and_the_wanted_recall(choice: bits.Choice) -> None:
    result = bits.as_result(choice)
    left, right = result.figures["bits"]().axes
    assert choice.best is not None
    assert f"{choice.best['bits']} bits" in {text.get_text() for text in left.texts}
    for axes in (left, right):
        assert any(set(line.get_ydata()) == {WANTED} for line in axes.lines)
    assert result.settings["best"] == choice.best


def test_bad_parameters_are_named() -> None:
    X = np.zeros((30, 3))
    with pytest.raises(InvalidInput, match="at least 20 rows, got 5"):
        bits.choose_bits(X[:5])
    with pytest.raises(InvalidParameter, match=r"recall=95 is invalid: expected a share above 0, at most 1"):
        bits.choose_bits(X, recall=95)
    with pytest.raises(InvalidInput, match="bits must not be empty"):
        bits.choose_bits(X, bits=())
    with pytest.raises(InvalidParameter, match="queries=0"):
        bits.choose_bits(X, n_queries=0)
    with pytest.raises(InvalidParameter, match="one of euclidean, cosine, inner_product"):
        bits.choose_bits(X, metric="dot")
