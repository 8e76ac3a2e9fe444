"""The cheapest codes: what is tried and measured, which row is chosen, and the commands that make it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auxbit import ITQ, BinaryAutoencoder, HammingIndex, evaluate
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.experiments import bits
from auxbit.experiments.measure import Task, about, first_of
from auxbit.experiments.study import Row
from helpers.cli_runner import run, run_json

WANTED = 0.9


@pytest.fixture(scope="module")
def choice(digits: Any) -> bits.Choice:
    return bits.choose_bits(digits[:900], recall=WANTED, rerank=12, bits=(8, 16, 32, 64), n_jobs=1)


def measured(*values: tuple[int, str, int | None, float]) -> list[Row]:
    return [dict(zip(("bits", "coding", "rerank", "recall"), each)) for each in values]


def test_the_cheapest_row_that_finds_enough_is_chosen() -> None:
    rows = measured(
        (32, "hash", None, 0.3), (32, "optimal", None, 0.5), (32, "hash", 40, 0.7), (32, "optimal", 40, 0.9),
        (64, "hash", None, 0.5), (64, "optimal", None, 0.95),
    )  # fmt: skip
    assert bits._cheapest(rows, 0.6) is rows[2]
    assert bits._cheapest(rows, 0.6, alone=True) is rows[5]
    assert bits._cheapest(rows, 0.5) is rows[1]
    assert bits._cheapest(rows, 0.96) is None


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
    assert choice.settings["sample_rows"] == choice.settings["seen_rows"] == 720
    for row in choice.rows:
        assert row["payload_bytes"] == row["bits"] // 8
        assert row["vector_bytes"] == (128 if row["rerank"] else 0)


def test_figures_are_those_of_held_out_queries(choice: bits.Choice, digits: Any) -> None:
    X = digits[:900]
    drawn = bits._draw(X, 500, 900, 0, "euclidean", 1)
    assert not (set(drawn.searched) | set(drawn.learned)) & set(drawn.asked)
    assert len(drawn.searched) == 720
    base, queries = X[drawn.searched], X[drawn.asked]
    truth = evaluate.ground_truth(base, queries, 10)
    model = BinaryAutoencoder(8, random_state=0, n_jobs=1).fit(X[drawn.learned])
    index = HammingIndex(8)
    index.add(model.encode(base))
    found = index.search(model.encode(queries), 10)[1]
    row = next(row for row in choice.rows if (row["bits"], row["coding"]) == (8, "hash"))
    assert row["recall"] == evaluate.recall_at(evaluate.retrieved_ranking(found, truth), 10)
    assert row["effective_bits"] == evaluate.effective_bits(model.encode(base))


@pytest.mark.parametrize("metric", ["euclidean", "cosine", "inner_product"])
def test_a_sample_holds_all_true_neighbours_and_stands_for_all_rows(digits: Any, metric: str) -> None:
    drawn = bits._draw(digits, 40, 900, 0, metric, 1)
    assert drawn.truth is not None
    assert drawn.weights is not None
    others = np.setdiff1d(np.arange(len(digits)), drawn.asked)
    true = evaluate.ground_truth(digits[others], digits[drawn.asked], 10, metric=metric)
    np.testing.assert_array_equal(drawn.searched[drawn.truth], others[true])
    assert len(drawn.searched) == 900
    assert drawn.weights.sum() == pytest.approx(len(others))
    assert not set(drawn.searched) & set(drawn.asked)
    assert not set(drawn.learned) & set(drawn.asked)


def test_recall_in_all_rows_is_estimated_from_a_sample(digits: Any) -> None:
    model = ITQ(16, random_state=0, n_jobs=1).fit(digits)

    def recall(drawn: bits.Drawn, k: int) -> float:
        base, queries = digits[drawn.searched], digits[drawn.asked]
        index = HammingIndex(16)
        index.add(model.encode(base))
        truth = evaluate.ground_truth(base, queries, 10) if drawn.truth is None else drawn.truth
        task = Task(base, queries, truth, weights=drawn.weights)
        found = first_of(task, index.search(model.encode(queries), k)[1], k)
        return float(np.mean([len(set(a) & set(b)) for a, b in zip(found.tolist(), truth.tolist())]) / 10)

    for seed in range(3):
        whole, part = (bits._draw(digits, 65, most, seed, "euclidean", 1) for most in (2_000, 1_300))
        np.testing.assert_array_equal(whole.asked, part.asked)
        for k in (10, 40):
            assert recall(part, k) == pytest.approx(recall(whole, k), abs=0.03), (seed, k)


def test_it_is_said_that_recall_is_estimated() -> None:
    settings = {"rows": 5_000, "seen_rows": 4_950, "sample_rows": 1_000, "queries": 50, "train_rows": 900}
    said = "Recall in 4,950 rows, by 50 held-out queries, estimated from 1,000"
    assert bits.on_what(settings).startswith(said)
    assert bits.on_what(settings | {"rows": 10_000}).startswith("Recall in 4,950 of 10,000 rows")


def test_rows_of_a_sample_push_back_those_behind_them() -> None:
    X = np.zeros((4, 1))
    task = Task(X, X[:1], np.array([[0]]), weights=np.array([1.0, 5.0, 1.0, 5.0]))
    ids = np.array([[1, 0, 3, 2]])
    assert first_of(task, ids, 5).tolist() == [[1, -1, -1, -1]]
    assert first_of(task, ids, 6).tolist() == [[1, 0, -1, -1]]
    assert first_of(task, ids, 11).tolist() == [[1, 0, 3, -1]]
    assert first_of(task._replace(weights=None), ids, 2).tolist() == [[1, 0]]


def test_few_rows_are_both_trained_on_and_searched(digits: Any) -> None:
    drawn = bits._draw(digits[:300], 500, 900, 0, "euclidean", 1)
    np.testing.assert_array_equal(drawn.learned, drawn.searched)
    assert (len(drawn.searched), len(drawn.asked)) == (240, 60)


def test_re_ranked_rows_find_more_and_keep_vectors(choice: bits.Choice) -> None:
    of = {(row["bits"], row["coding"], bool(row["rerank"])): row for row in choice.rows}
    for L, coding, again in of:
        if again:
            assert of[L, coding, True]["recall"] > of[L, coding, False]["recall"]
            assert of[L, coding, True]["search_ms"] > of[L, coding, False]["search_ms"]
    assert of[8, "optimal", False]["recall"] > of[8, "hash", False]["recall"]


def test_without_a_wanted_recall_nothing_is_recommended(digits: Any) -> None:
    found = bits.choose_bits(digits[:300], rerank=10, bits=(8, 16), n_jobs=1)
    assert found.best is None
    assert bits.verdict(found) == ""
    assert bits.commands(found, "x.npy") == []
    assert [row["bits"] for row in found.rows] == [8] * 4 + [16] * 4
    assert bits.on_what(found.settings) == "Measured by 60 held-out queries in the other 240 rows."


def test_what_is_not_reached_is_said_with_the_most_that_was(digits: Any) -> None:
    found = bits.choose_bits(digits, recall=0.999, rerank=20, bits=(8,), max_rows=900, n_jobs=1)
    assert found.best is None
    assert "No codes that were tried have a recall@10 of 0.999" in bits.verdict(found)
    assert "Re-rank" in bits.verdict(found)


def test_codes_alone_are_chosen_if_nothing_is_to_be_re_ranked(digits: Any) -> None:
    found = bits.choose_bits(digits[:900], recall=0.85, rerank=0, bits=(8, 32), n_jobs=1)
    assert found.best is not None
    assert (found.best["bits"], found.best["rerank"]) == (32, None)
    assert "With vectors kept beside the codes: 8 bits" in bits.verdict(found)


def test_what_codes_alone_do_not_reach_is_told_of_codes_alone(digits: Any) -> None:
    found = bits.choose_bits(digits[:900], recall=0.99, rerank=0, bits=(8, 32), n_jobs=1)
    assert found.best is None
    alone = max(row["recall"] for row in found.rows if not row["rerank"])
    said = bits.verdict(found)
    assert f"a recall@10 of 0.99 alone. The most that was found is {alone:.3f}: 32 bits" in said
    assert "With vectors kept beside the codes: " in said


def test_what_codes_alone_find_is_said_beside_the_choice(choice: bits.Choice) -> None:
    again = next(row for row in choice.rows if row["rerank"])
    settings = choice.settings | {"recall": again["recall"]}
    said = bits.verdict(replace(choice, best=again, settings=settings))
    assert f"Without vectors, {again['bits']} bits find 0." in said


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


@pytest.mark.parametrize("metric", [pytest.param("cosine", marks=pytest.mark.slow), "inner_product"])
def test_who_follows_the_commands_finds_what_was_promised(
    digits: Any, metric: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    X = digits[np.random.RandomState(3).permutation(len(digits))]  # writers come one after another
    X = X + 8 * (np.arange(len(X)) % 3 == 0)[:, None]  # norms differ
    np.save("x.npy", X[300:])
    np.save("queries.npy", X[:300])
    found = bits.choose_bits(X[300:], recall=0.9, metric=metric, bits=(16, 32), n_queries=200, n_jobs=1)
    assert found.best is not None
    create, search = bits.commands(found, "x.npy")
    run(*create)
    answers = [each["ids"] for each in run_json(*search)["results"]]
    truth = evaluate.ground_truth(X[300:], X[:300], 10, metric=metric)
    recall = evaluate.recall_at(evaluate.retrieved_ranking(answers, truth), 10)
    assert recall > found.best["recall"] - 0.03


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
