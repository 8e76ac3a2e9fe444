"""Comparisons: what a row says, means over seeds, PQ and OPQ, and going on after a stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import auxbit
from auxbit import ITQ, evaluate
from auxbit.data import vectors
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.evaluate import ground_truth
from auxbit.experiments.compare import (
    best_first,
    cells,
    compare,
    compare_files,
    default_bits,
    mean_over_seeds,
)
from auxbit.experiments.measure import Bench, find_candidates, prepare
from auxbit.experiments.worker import CellProcess
from auxbit.hashers import registry


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
    assert row["recall_at"] == evaluate.recall_at(ranking, 10)
    assert (row["payload_bytes"], row["resident_bytes"]) == (2, 2)


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


def test_rows_may_be_frames_and_lists_and_what_is_no_table_is_refused(digits: Any) -> None:
    base, queries = digits[:80], digits[80:90]
    how: Any = {"methods": ["lsh"], "bits": [8], "K": 5, "k": 5, "n_jobs": 1}
    wanted = compare(base, base, queries, **how)[0]["precision"]
    frame = pd.DataFrame(base)
    assert compare(frame, frame, pd.DataFrame(queries), **how)[0]["precision"] == wanted
    assert compare(base.tolist(), base.tolist(), queries.tolist(), **how)[0]["precision"] == wanted
    for wrong in (base[0], None, np.full((9, 64), "a")):
        with pytest.raises(InvalidInput, match="X_query must be rows of numbers"):
            compare(base, base, wrong, **how)
    with pytest.raises(InvalidInput, match="all rows are 0, and so are all inner products"):
        compare(0 * base, 0 * base, queries, metric="inner_product", **how)


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


# ---- ways, metrics, own methods, limits


def test_optimal_codes_find_more_than_hash_codes_and_re_ranking_finds_most(digits: Any) -> None:
    base, queries = digits[300:], digits[:100]
    rows = compare(base, base, queries, ["ba", "ba-asymmetric", "ba-optimal", "sign"], [32], n_jobs=1)
    found = {row["method"]: row for row in rows}
    order = ("BA", "BA-asymmetric", "BA-optimal")
    assert sorted(order, key=lambda name: found[name]["recall_at"]) == list(order)
    assert [found[name]["payload_bytes"] for name in order] == [4, 4, 4]
    assert all(row["recall_reranked"] > row["recall_at"] + 0.15 for row in rows)
    assert (found["sign"]["bits"], found["sign"]["payload_bytes"]) == (64, 8)
    fits = [found[name]["seconds_fit"] for name in order]
    assert fits[0] <= fits[1] < 1.5 * fits[0]
    assert fits[1] < fits[2]  # fitted once, and a decoder for optimal codes
    ranked = best_first(rows)
    assert ranked[0]["method"] == "BA-optimal"
    assert ranked[-1]["method"] == "sign"


@pytest.mark.parametrize("metric", ["cosine", "inner_product"])
def test_rows_are_compared_by_the_metric(metric: str, digits: Any) -> None:
    rng = np.random.default_rng(0)
    base, queries = digits[300:1300] * rng.gamma(4, size=(1000, 1)), digits[:100]
    (row,) = compare(base, base, queries, ["pq"], [64], metric=metric, n_jobs=1)
    (wrong,) = compare(base, base, queries, ["pq"], [64], n_jobs=1)
    truths = {each: ground_truth(base, queries, 50, metric=each) for each in (metric, "euclidean")}
    assert not np.array_equal(truths[metric], truths["euclidean"])
    assert row["recall_reranked"] > 0.95
    assert row["precision"] != wrong["precision"]
    (other,) = compare(base[:500].copy(), base, queries, ["pq"], [row["bits"]], metric=metric, n_jobs=1)
    assert other["recall_reranked"] > 0.9


class Halves:
    """A transformer to 0 and 1 that knows nothing of auxbit."""

    def __init__(self, n_bits: int = 8, threshold: float = 8.0) -> None:
        self.n_bits, self.threshold = n_bits, threshold

    def fit(self, X: Any, y: object = None) -> Halves:
        return self

    def transform(self, X: Any) -> Any:
        return (X[:, : self.n_bits] > self.threshold).astype(int)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {"n_bits": self.n_bits, "threshold": self.threshold}

    def set_params(self, **params: Any) -> Halves:
        for name, value in params.items():
            setattr(self, name, value)
        return self


def test_estimators_of_ones_own_are_compared_by_class_object_function_and_name(
    digits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, queries = digits[300:700], digits[:50]
    monkeypatch.setattr(registry, "METHODS", dict(registry.METHODS))
    auxbit.register("halves", Halves)
    methods = {
        "class": Halves, "object": Halves(5), "function": lambda n_bits: Halves(n_bits),
        "registered": "halves", "hasher": ITQ, "known": "itq",
    }  # fmt: skip
    rows = {row["method"]: row for row in compare(base, base, queries, methods, [16], n_jobs=1)}
    assert list(rows) == list(methods)
    assert len({rows[name]["precision"] for name in ("class", "object", "function", "registered")}) == 1
    assert rows["hasher"]["precision"] == rows["known"]["precision"]
    assert rows["class"]["reconstruction_error"] is None
    (row,) = compare(base, base, queries, ["halves"], [65], n_jobs=1)
    assert "returns an array of shape" in row["skipped"]
    (row,) = compare(base, base, queries, {"mine": lambda bits: Halves(bits)}, [16], n_jobs=1)
    assert "a class or function of n_bits and random_state. Name its parameter 'bits'" in row["skipped"]
    with pytest.raises(InvalidParameter, match="a name that none of auxbit's methods has"):
        auxbit.register("ba", Halves)
    with pytest.raises(InvalidParameter, match="a word in lower case"):
        auxbit.register("My own", Halves)
    with pytest.raises(InvalidParameter, match="module:Class that can be imported"):
        compare(base, base, queries, ["nowhere:Nothing"], [16])


def test_what_a_folder_keeps_of_a_method_is_not_taken_for_another_of_its_name(
    digits: Any, tmp_path: Path
) -> None:
    np.save(tmp_path / "digits.npy", digits[:400])

    def precision(methods: Any) -> float:
        how: dict[str, Any] = {"out": str(tmp_path / "out"), "overwrite": True, "limit": None, "n_jobs": 1}
        (row,) = compare_files(str(tmp_path / "digits.npy"), methods, [8], n_queries=50, **how)["rows"]
        return float(row["precision"])

    lsh, itq = precision(["lsh"]), precision(["itq"])
    assert lsh != itq
    assert precision({"mine": auxbit.LSH}) == lsh
    assert precision({"mine": ITQ}) == precision({"mine": "itq"}) == itq
    assert precision({"ITQ": auxbit.LSH}) == lsh
    assert precision(["itq"]) == itq


SLOW = """
import time
from auxbit import ITQ

class Slow(ITQ):
    def fit(self, X):
        time.sleep(0.01 if self.n_bits == 8 else 600)
        return super().fit(X)

class Dying(ITQ):
    def fit(self, X):
        import os
        os._exit(7)

class Failing(ITQ):
    def fit(self, X):
        print("this is no answer")
        raise ZeroDivisionError("by nothing")
"""


def test_a_cell_that_takes_too_long_is_stopped_and_larger_ones_are_left_out(
    digits: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_methods.py").write_text(SLOW)
    monkeypatch.chdir(tmp_path)
    base, queries = digits[300:700], digits[:50]
    methods = ["slow_methods:Slow", "itq"]
    rows = compare(base, base, queries, methods, [8, 16, 24], limit=3.0, K=20, k=10, n_jobs=1)
    found = {(row["method"], row["bits"]): row for row in rows}
    alone = compare(base, base, queries, ["itq"], [8, 24], K=20, k=10, n_jobs=1)
    assert found["Slow", 8]["precision"] == found["ITQ", 8]["precision"] == alone[0]["precision"]
    assert found["Slow", 16]["skipped"] == "it took more than 3 s, the limit of a cell."
    assert found["Slow", 24]["skipped"] == "it was stopped at 16 bits; raise the limit of 3 s per cell."
    assert found["ITQ", 24]["precision"] == alone[1]["precision"]


def test_a_method_whose_process_dies_or_fails_does_not_end_the_comparison(
    digits: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_methods.py").write_text(SLOW)
    monkeypatch.chdir(tmp_path)
    methods = ["slow_methods:Dying", "slow_methods:Failing", "lsh"]
    rows = compare(digits[300:], digits[300:], digits[:20], methods, [8], limit=100.0, n_jobs=1)
    assert rows[0]["skipped"] == "its process ended with 7."
    assert rows[1]["skipped"] == "ZeroDivisionError: by nothing"
    assert rows[2]["precision"] > 0


def test_the_process_and_its_folder_are_gone_at_the_end(digits: Any) -> None:
    bench = Bench(digits[:300], prepare(digits[:300], digits[300:310], K=10, k=10, radius=2, n_jobs=1))
    with CellProcess(bench.X_train, bench.task, 100.0) as cells_:
        row = cells_.run("lsh", "LSH", 8, 0)
        process, folder = cells_._process, cells_._folder.name
        assert row["precision"] == bench.run(find_candidates(["lsh"])["LSH"], 8, 0)["precision"]
        assert process is not None
        assert process.poll() is None
    assert process.poll() is not None
    assert not Path(folder).exists()


def test_sign_bits_are_as_many_as_dimensions_and_those_of_rabitq_at_least(digits: Any) -> None:
    found = cells(["sign", "rabitq", "lsh"], [32, 128], [0], 64)
    assert found == [("sign", 64, 0), ("RaBitQ", 64, 0), ("RaBitQ", 128, 0), ("LSH", 32, 0), ("LSH", 128, 0)]
    rows = compare(
        digits[300:], digits[300:], digits[:50], ["sign", "rabitq"], [32], metric="inner_product", n_jobs=1
    )
    assert [(row["bits"], row["payload_bytes"]) for row in rows] == [(65, 9), (65, 9)]
    assert all(row["precision"] > 0.2 for row in rows)


def test_default_bits_are_at_most_eight_per_dimension() -> None:
    assert default_bits(1536) == [32, 64, 128, 256]
    assert default_bits(10) == [32, 64]
    assert default_bits(2) == [16]


def test_rows_have_the_names_of_a_mapping_also_in_another_process(digits: Any) -> None:
    methods = {"hashed": "itq", "again": "itq", "itq": "itq"}
    rows = compare(digits[300:], digits[300:], digits[:50], methods, [8], limit=60.0, n_jobs=1)
    assert [row["method"] for row in rows] == ["hashed", "again", "ITQ"]
    assert rows[0]["precision"] == rows[2]["precision"]


def test_classes_of_the_same_name_are_told_apart_also_in_another_process(
    digits: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, base in (("first_of_two", "ITQ"), ("second_of_two", "LSH"), ("third", "ITQ")):
        name = "LSH" if module == "third" else "Mine"
        (tmp_path / f"{module}.py").write_text(f"import auxbit\nclass {name}(auxbit.{base}):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    methods = ["first_of_two:Mine", "second_of_two:Mine", "third:LSH", "lsh", "itq"]
    rows = compare(digits[300:], digits[300:], digits[:50], methods, [8], limit=60.0, n_jobs=1)
    assert [row["method"] for row in rows] == [*methods[:3], "LSH", "ITQ"]
    found = [row["precision"] for row in rows]
    assert found[0] == found[2] == found[4] != found[1] == found[3]
    with pytest.raises(InvalidParameter, match=r"methods='BA' is invalid: expected one method of that name"):
        cells({"ba": "ba", "BA": ITQ}, [8], [0])
