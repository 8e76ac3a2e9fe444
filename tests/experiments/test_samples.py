"""What methods retrieve: tables and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auxbit.core.maps import hamming_distances
from auxbit.errors import InvalidInput
from auxbit.experiments import samples
from auxbit.experiments.study import Cell, Fits, Problem, write_result

METHODS = ("itq", "lsh")


def digits_problem(digits: Any, *, images: bool = True, labels: bool = True) -> Problem:
    pictures = digits.reshape(-1, 8, 8).astype(np.uint8)
    marks = np.arange(len(digits)) % 7
    return Problem(
        "digits", digits[60:360], digits[:60],
        *((pictures[60:360], pictures[:60]) if images else (None, None)),
        *((marks[60:360], marks[:60]) if labels else (None, None)),
    )  # fmt: skip


@pytest.fixture(scope="module")
def problem(digits: Any) -> Problem:
    return digits_problem(digits)


@pytest.fixture(scope="module")
def fits(problem: Problem) -> Fits:
    return Fits(problem, None, n_jobs=1)


@pytest.fixture(scope="module")
def result(problem: Problem, fits: Fits) -> Any:
    return samples.run(fits, bits=12, methods=METHODS, k=5, n_queries=3)


# ---- what is retrieved


def test_the_rows_listed_are_the_nearest_codes_with_ties_by_position(
    problem: Problem, fits: Fits, result: Any
) -> None:
    made = fits.get(Cell("itq", 12, 0))
    distances = hamming_distances(made.queries, made.train)
    rows = [row for row in result.tables["samples-rows"] if row["method"] == "ITQ"]
    assert len(rows) == 3 * 5
    for query in {row["query"] for row in rows}:
        found = [row for row in rows if row["query"] == query]
        nearest = np.argsort(distances[query], kind="stable")[:5]
        assert [row["row"] for row in found] == nearest.tolist()
        assert [row["hamming"] for row in found] == distances[query][nearest].tolist()
        assert [row["place"] for row in found] == [1, 2, 3, 4, 5]


def test_the_first_method_is_the_true_neighbours(problem: Problem, result: Any) -> None:
    rows = result.tables["samples-rows"]
    assert result.tables["samples"][0]["method"] == rows[0]["method"] == "exact"
    query = rows[0]["query"]
    distances = np.sqrt(np.square(problem.train - problem.queries[query]).sum(axis=1))
    exact = [row for row in rows if row["method"] == "exact" and row["query"] == query]
    np.testing.assert_allclose([row["euclidean"] for row in exact], np.sort(distances)[:5], rtol=1e-6)
    assert {row["hamming"] for row in exact} == {None}


def test_shares_are_of_all_queries(problem: Problem, fits: Fits, result: Any) -> None:
    made = fits.get(Cell("lsh", 12, 0))
    ids = np.argsort(hamming_distances(made.queries, made.train), axis=1, kind="stable")[:, :5]
    gaps = problem.queries[:, None, :].astype(float) - problem.train[None]
    true = np.argsort(np.square(gaps).sum(axis=2), axis=1, kind="stable")[:, :5]
    common = np.mean([len(set(a) & set(b)) / 5 for a, b in zip(ids.tolist(), true.tolist(), strict=True)])
    right = (problem.train_labels[ids] == problem.query_labels[:, None]).mean()
    (row,) = [row for row in result.tables["samples"] if row["method"] == "LSH"]
    assert row == {
        "method": "LSH",
        "true_neighbours": pytest.approx(common),
        "right_labels": pytest.approx(right),
    }


def test_queries_are_of_different_labels_and_the_same_for_a_seed() -> None:
    labels = np.repeat([0, 1, 2, 3], [97, 1, 1, 1])
    chosen = samples.choose_queries(100, labels, 4, 0)
    assert sorted(labels[chosen]) == [0, 1, 2, 3]
    assert chosen.tolist() == samples.choose_queries(100, labels, 4, 0).tolist()
    assert chosen.tolist() != samples.choose_queries(100, labels, 4, 1).tolist()
    assert len(set(samples.choose_queries(100, labels, 6, 0).tolist())) == 6
    assert len(samples.choose_queries(3, None, 6, 0)) == 3


def test_methods_that_cannot_have_so_many_bits_are_left_out(problem: Problem, fits: Fits) -> None:
    found = samples.run(fits, bits=70, methods=("lsh", "itq"), k=2, n_queries=1)
    assert [row["method"] for row in found.tables["samples"]] == ["exact", "LSH"]
    with pytest.raises(InvalidInput, match="none of itq can have 70 bits on digits"):
        samples.run(fits, bits=70, methods=("itq",))


# ---- pictures


def test_wrong_labels_are_framed_and_counted_as_in_the_table(problem: Problem, result: Any) -> None:
    figure = result.figures["samples"]()
    wrong = sum(row["label"] != row["query_label"] for row in result.tables["samples-rows"])
    assert sum(len(axes.patches) for axes in figure.axes) == wrong > 0


def test_without_labels_nothing_is_framed(digits: Any) -> None:
    problem = digits_problem(digits, labels=False)
    result = samples.run(Fits(problem, None, n_jobs=1), bits=8, methods=("lsh",), k=3, n_queries=2)
    assert not any(axes.patches for axes in result.figures["samples"]().axes)
    assert "framed" not in result.about
    assert set(result.tables["samples"][0]) == {"method", "true_neighbours"}


def test_without_images_there_are_tables_alone_and_that_is_said(digits: Any, tmp_path: Path) -> None:
    problem = digits_problem(digits, images=False)
    result = samples.run(Fits(problem, None, n_jobs=1), bits=8, methods=("lsh",), k=3, n_queries=2)
    assert result.figures == {}
    assert "digits has no images" in result.about
    written = {path.name for path in write_result(result, tmp_path)}
    assert written == {"samples.csv", "samples-rows.csv", "samples.json"}


def test_grey_pictures_are_not_inverted_and_the_brightest_of_the_set_is_white(
    problem: Problem, result: Any
) -> None:
    drawn = result.figures["samples"]().axes[0].images[0].get_array()
    picture = problem.query_images[result.tables["samples-rows"][0]["query"]]
    assert problem.train_images.max() == 16
    for channel in range(3):
        np.testing.assert_array_equal(drawn[1:-1, 1:-1, channel], picture * 255.0 // 16)
