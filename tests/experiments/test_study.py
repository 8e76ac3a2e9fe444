"""The paper's experiments: raw results that are kept, metrics that derive from them, claims that can fail."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from auxbit import ITQ, evaluate
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.evaluate import ground_truth
from auxbit.experiments import altopt, campaign, entropy, path, retrieval, study, wrapper
from auxbit.experiments.study import Cell, Claim, Fits, Problem

SMALL = retrieval.Preset("fig. 10", (retrieval.Neighbours(10, 10, (1, 2)),), bits=(4, 8))


@pytest.fixture(scope="module")
def problem(digits):
    return Problem("digits", digits[60:400], digits[:60])


@pytest.fixture(scope="module")
def fits(problem, tmp_path_factory):
    return Fits(problem, tmp_path_factory.mktemp("raw"))


# ---- raw results


def test_a_fit_that_is_kept_is_not_made_again(problem, tmp_path, monkeypatch):
    made = Fits(problem, tmp_path).get(Cell("itq", 8))
    np.testing.assert_array_equal(made.train, ITQ(8, random_state=0).fit(problem.train).encode(problem.train))
    monkeypatch.setattr(study, "fit", lambda *args: pytest.fail("it was made again"))
    seen = []
    again = Fits(problem, tmp_path, on_fit=lambda cell, fresh: seen.append((cell, fresh)))
    assert again.missing([Cell("itq", 8), Cell("itq", 9)]) == [Cell("itq", 9)]
    np.testing.assert_array_equal(again.get(Cell("itq", 8)).queries, made.queries)
    assert again.get(Cell("itq", 8)).facts == made.facts
    assert seen == [(Cell("itq", 8), False)]


def test_another_seed_option_or_problem_is_another_fit(problem, tmp_path):
    fits = Fits(problem, tmp_path)
    fits.get(Cell("itq", 8))
    others = [Cell("itq", 8, 1), Cell("itq", 7), Cell("lsh", 8), Cell("ba", 8, 0, (("max_iter", 1),))]
    assert fits.missing(others) == others
    smaller = Fits(problem.smaller(100, 10), tmp_path)
    assert smaller.missing([Cell("itq", 8)]) == [Cell("itq", 8)]


def test_a_damaged_file_is_made_again(problem, tmp_path):
    fits = Fits(problem, tmp_path)
    fits.get(Cell("lsh", 8))
    (path,) = fits.folder.glob("*.safetensors")
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    assert Fits(problem, tmp_path).missing([Cell("lsh", 8)]) == [Cell("lsh", 8)]


def test_what_derives_from_a_fit_is_kept_with_its_settings(problem, tmp_path):
    fits, calls = Fits(problem, tmp_path), []

    def compute(made):
        calls.append(made.cell)
        return {"n": len(made.train)}

    for _ in range(2):
        assert fits.derived(Cell("lsh", 8), {"K": 5}, compute) == {"n": 340}
    assert len(calls) == 1
    Fits(problem, tmp_path).derived(Cell("lsh", 8), {"K": 5}, compute)
    assert len(calls) == 1
    fits.derived(Cell("lsh", 8), {"K": 6}, compute)
    assert len(calls) == 2


def test_a_method_that_cannot_have_so_many_bits_is_left_out(problem, tmp_path):
    made = Fits(problem, None).get(Cell("agh", 1000))
    assert made.skipped
    assert Fits(problem, None).all([Cell("agh", 1000)]) == []


# ---- experiments


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


def test_the_wrapper_experiment_shows_errors_of_the_training_rows(problem, fits):
    result = wrapper.run(fits, bits=(4, 8), K=10, k=10)
    at = {(row["method"], row["bits"]): row["reconstruction_error"] for row in result.tables["wrapper"]}
    model = ITQ(8, random_state=0).fit(problem.train)
    assert at["ITQ", 8] == pytest.approx(-model.score(problem.train) * len(problem.train))
    assert at["BA", 8] <= at["ITQ", 8]
    assert {claim.holds for claim in result.claims} <= {True, False}


def test_effective_bits_lie_below_their_bounds(problem, fits):
    result = entropy.run(fits, methods=("itq", "lsh", "tpca"), bits=(4, 8), K=10)
    for row in result.tables["entropy"]:
        assert row["train"] <= row["train_bound"] + 1e-9
        assert row["queries"] <= row["queries_bound"] + 1e-9
    counts = [row for row in result.tables["counts"] if row["method"] == "ITQ"]
    assert counts[0]["rank"] == 1
    assert counts == sorted(counts, key=lambda row: -row["count"])


def test_the_path_ends_where_the_three_energies_are_one(problem, fits):
    rows = path.run(fits, bits=(8,)).tables["path"]
    assert rows[-1]["mismatched"] == 0
    assert rows[-1]["E_BFA"] == pytest.approx(rows[-1]["E_Q"])
    assert rows[-1]["E_Q"] == pytest.approx(rows[-1]["E_BA"], rel=1e-6)
    assert all(row["E_BFA"] <= row["E_Q"] * (1 + 1e-9) for row in rows)
    assert rows[0]["mismatched"] > 0


def test_alternating_optimisation_has_a_line_for_every_start_and_group(problem, fits):
    result = altopt.run(fits, bits=8, groups=(1, 2))
    assert {row["how"] for row in result.tables["altopt"]} == {
        "g = 1, warm", "g = 2, warm", "g = 1, relaxed", "g = 2, relaxed", "exact",
    }  # fmt: skip
    seconds = [row["seconds"] for row in result.tables["altopt"] if row["how"] == "exact"]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize("name", ["wrapper", "retrieval", "entropy", "path", "altopt"])
def test_results_are_written_as_tables_settings_and_figures(problem, fits, tmp_path, name):
    settings = campaign.Settings(bits=(4, 8), methods=("itq", "tpca", "ba", "bfa"), groups=(1,))
    (experiment,) = campaign.planned(problem, settings, [name])
    result = experiment.run(fits)
    written = study.write_result(result, tmp_path)
    assert all(each.stat().st_size > 0 for each in written)
    for table, rows in result.tables.items():
        with (tmp_path / f"{table}.csv").open() as file:
            written_rows = list(csv.DictReader(file))
        assert len(written_rows) == len(rows)
        assert all(row["made_with_seeds"] == "0" and "auxbit" in row["made_by"] for row in written_rows)
    document = json.loads((tmp_path / f"{name}.json").read_text())
    assert document["settings"]["data"] == "digits"
    assert document["versions"]["auxbit"]
    for figure in result.figures:
        for suffix in (".svg", ".png", "-dark.svg", "-dark.png"):
            assert b"auxbit" in (tmp_path / f"{figure}{suffix}").read_bytes()
    assert not fits.missing(experiment.cells)


def test_an_experiment_that_is_not_there_is_an_error(problem):
    with pytest.raises(InvalidParameter, match="experiment='wraper' is invalid"):
        campaign.planned(problem, campaign.Settings(), ["wraper"])


# ---- claims


def test_a_claim_holds_only_if_it_does_in_every_case():
    cases = {"c": [("a", True), ("b", True)], "f": [("a", True), ("b: 1 against 2", False)], "n": []}
    held, failed, not_measured = study.checked("e", "d", cases)
    assert held.holds is True
    assert failed == Claim("f", "fails in 1 of 2 cases: b: 1 against 2", False, "e", "d")
    assert not_measured.holds is None


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


# ---- problems


def test_a_file_of_vectors_gives_a_tenth_of_its_rows_as_queries(tmp_path, digits):
    np.save(tmp_path / "v.npy", digits[:200])
    found = study.load(str(tmp_path / "v.npy"))
    assert found.train.shape == (180, 64)
    assert found.queries.shape == (20, 64)
    rows = {row.tobytes() for row in np.vstack([found.train, found.queries])}
    assert rows == {row.tobytes() for row in digits[:200]}
    small = study.load(str(tmp_path / "v.npy"), n_train=50, n_queries=5)
    assert (len(small.train), len(small.queries)) == (50, 5)
    np.save(tmp_path / "few.npy", digits[:10])
    with pytest.raises(InvalidInput, match="needs at least 20"):
        study.load(str(tmp_path / "few.npy"))


def test_digits_have_images_and_labels():
    found = study.load("digits", n_train=100, n_queries=10)
    assert found.train_images.shape == (100, 8, 8)
    assert found.query_labels.shape == (10,)
    np.testing.assert_array_equal(found.train_images.reshape(100, -1) // 15, found.train)


def test_means_are_over_seeds():
    rows = [{"method": "A", "bits": 8, "seed": seed, "value": value} for seed, value in ((0, 1.0), (1, 3.0))]
    assert study.means(rows, ("method", "bits")) == [{"method": "A", "bits": 8, "seeds": 2, "value": 2.0}]


def test_data_with_few_columns_leave_out_what_they_cannot_have(tmp_path, digits):
    np.save(tmp_path / "ten.npy", digits[:300, 20:30])
    found = campaign.Campaign(tmp_path / "o", campaign.Settings(bits=(4, 12), methods=("itq", "lsh", "ba")))
    found.add(str(tmp_path / "ten.npy"), ["wrapper", "entropy"])
    found.run()
    assert [result.name for _, result in found.results] == ["wrapper", "entropy"]
    assert any("ITQ, 12 bits" in each for each in found.left_out())


def test_data_that_are_not_finite_are_refused_before_anything_is_fitted(tmp_path, digits):
    rows = digits[:100].copy()
    rows[3, 4] = np.nan
    np.save(tmp_path / "nan.npy", rows)
    with pytest.raises(InvalidInput, match=r"nan\.npy"):
        campaign.Campaign(tmp_path / "o", campaign.Settings()).add(str(tmp_path / "nan.npy"), ["wrapper"])
    with pytest.raises(InvalidParameter, match="n_bits=0 is invalid"):
        campaign.Campaign(tmp_path / "o", campaign.Settings(bits=(0,))).add("digits", ["wrapper"])


def test_results_of_other_data_or_fewer_rows_have_folders_of_their_own(tmp_path, digits):
    for folder, rows in (("a", digits[:100]), ("b", digits[100:200])):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "x.npy", rows)
    found = campaign.Campaign(tmp_path / "o", campaign.Settings(bits=(4,), methods=("lsh",)))
    for folder in ("a", "b"):
        found.add(str(tmp_path / folder / "x.npy"), ["entropy"])
    found.add(str(tmp_path / "a" / "x.npy"), ["entropy"], n_train=50)
    found.run()
    assert [each.name for each in found.folders()] == ["x", "x-2", "x-50-rows"]


def test_a_fit_of_another_version_is_made_again(problem, tmp_path, monkeypatch):
    Fits(problem, tmp_path).get(Cell("lsh", 8))
    monkeypatch.setattr(study, "versions", lambda: {"auxbit": "99"})
    assert Fits(problem, tmp_path).missing([Cell("lsh", 8)]) == [Cell("lsh", 8)]
