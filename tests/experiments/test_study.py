"""What experiments share: fits and rows that are kept, claims that can fail, data sets as problems."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from auxbit import ITQ
from auxbit.core import files
from auxbit.data import gist
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.experiments import study
from auxbit.experiments.study import Cell, Claim, Fits, KeptRows, array_checksum

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


# ---- rows kept on disk


def test_kept_rows_survive_a_line_cut_short_and_belong_to_their_settings(tmp_path):
    path = tmp_path / "rows.jsonl"
    row = {"method": "BA", "bits": 8, "seed": 0, "precision": 0.5}
    kept = KeptRows(path, {"K": 50})
    kept.add(row)
    with path.open("a") as file:
        file.write('{"key": "cut sho')
    kept.add(row | {"seed": 1})
    assert kept.read() == {("BA", 8, 0): row, ("BA", 8, 1): row | {"seed": 1}}
    assert KeptRows(path, {"K": 51}).read() == {}


def test_the_checksum_of_an_array_depends_on_values_shape_and_type():
    X = np.arange(12, dtype=np.float32).reshape(3, 4)
    others = [X.reshape(4, 3), X.astype(np.float64), X + 1]
    assert len({array_checksum(each) for each in [X, *others]}) == 4
    assert array_checksum(np.asfortranarray(X)) == array_checksum(X)


def test_arrays_are_kept_beside_their_row_and_a_damaged_file_counts_as_missing(tmp_path):
    row, codes = {"method": "BA", "bits": 8, "seed": 0}, np.arange(6, dtype=np.uint8).reshape(3, 2)
    KeptRows(tmp_path / "rows.jsonl", {"K": 50}).add(row, {"codes": codes}, options=(("a", 1),))
    kept = KeptRows(tmp_path / "rows.jsonl", {"K": 50})
    assert kept.read(options=(("a", 1),)) == {("BA", 8, 0): row}
    assert kept.read() == kept.read(options=(("a", 2),)) == {}
    np.testing.assert_array_equal(kept.read_arrays(row, options=(("a", 1),))["codes"], codes)
    (path,) = tmp_path.glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-1])
    assert kept.read_arrays(row, options=(("a", 1),)) is None


def test_without_a_path_rows_are_kept_in_memory():
    kept = KeptRows(None, {})
    kept.add({"method": "BA", "bits": 8, "seed": 0, "pair": (1, 2)})
    assert kept.read() == {("BA", 8, 0): {"method": "BA", "bits": 8, "seed": 0, "pair": [1, 2]}}


# ---- claims


def test_a_claim_holds_only_if_it_does_in_every_case():
    cases = {"c": [("a", True), ("b", True)], "f": [("a", True), ("b: 1 against 2", False)], "n": []}
    held, failed, not_measured = study.checked("e", "d", cases)
    assert held.holds is True
    assert failed == Claim("f", "fails in 1 of 2 cases: b: 1 against 2", False, "e", "d", 2, 1, 0)
    assert not_measured.holds is None


def test_ties_speak_neither_for_a_claim_nor_against_it():
    cases = {"c": [("a", True), ("b", None)], "f": [("a", None), ("b", False)], "t": [("a", None)]}
    held, failed, tied = study.checked("e", "d", cases)
    assert (held.holds, held.ours) == (True, "holds in 1 of 2 cases, 1 tie")
    assert (failed.holds, failed.ours) == (False, "fails in 1 of 2 cases, 1 tie: b")
    assert (tied.holds, tied.ties) == (None, 1)


@pytest.mark.parametrize(("n_held", "n_failed", "holds"), [(2, 1, True), (1, 1, False), (0, 1, False)])
def test_a_claim_about_most_cases_holds_if_more_are_for_it_than_against(n_held, n_failed, holds):
    cases = [("a", True)] * n_held + [("b", False)] * n_failed + [("t", None)]
    (found,) = study.checked("e", "d", {"c": cases}, mostly=True)
    assert found.holds is holds


def test_means_within_two_standard_errors_are_a_tie():
    def row(values):
        return study.means([{"m": 1, "seed": s, "p": p} for s, p in enumerate(values)], ("m",), spread=True)[
            0
        ]

    low, high = (0.1, 0.2, 0.3), (0.2, 0.3, 0.4)
    error = np.hypot(*(np.std(each, ddof=1) / np.sqrt(3) for each in (low, high)))
    assert 2 * error > 0.1
    assert study.above(row(high), row(low), "p") is study.above(row(low), row(high), "p") is None
    apart = tuple(p + 2 * error for p in low)
    assert study.above(row(tuple(p + 1e-9 for p in apart)), row(low), "p") is True
    assert study.above(row(low), row(tuple(p + 1e-9 for p in apart)), "p") is False
    assert study.above(row(tuple(p - 1e-9 for p in apart)), row(low), "p") is None
    assert study.above(row((0.1,)), row((0.1,)), "p") is True  # one seed: no spread, and equal is not below


# ---- the start of a BA


def test_a_linear_start_is_the_first_hash_function_of_the_path(problem, tmp_path):
    cell = Cell.under("paper", "ba-itq", 8, 0, validation=None)
    made = Fits(problem, tmp_path).get(cell)
    error = made.start.facts["train_error"] * len(problem.train)
    assert error == pytest.approx(made.facts["history"][0]["E_BA"], rel=1e-5)
    first = study.fit(Cell("ba-itq", 8, 0, (*cell.options, ("max_iter", 1))), problem, 1)
    np.testing.assert_array_equal(made.start.train, first.train)
    np.testing.assert_array_equal(made.start.queries, first.queries)
    kept = Fits(problem, tmp_path).get(cell)
    assert kept.start.facts == made.start.facts
    np.testing.assert_array_equal(kept.start.queries, made.start.queries)


def test_the_start_of_ba_from_agh_is_agh_with_its_own_precision_on_the_validation_queries(problem):
    made = study.fit(Cell.under("paper", "ba", 8, 0), problem, 1)
    first = made.facts["history"][0]["precision"]
    assert made.start.facts["validation"] not in (None, first)  # that of the SVMs of AGH's codes
    assert (made.start.train != made.train).any()
    assert study.fit(Cell("itq", 8), problem, 1).start is None


def test_fits_under_another_preset_are_others(problem, tmp_path):
    fits = Fits(problem, tmp_path)
    fits.get(Cell.under("paper", "ba", 4, 0))
    other = Cell.under("default", "ba", 4, 0)
    assert fits.missing([other]) == [other]
    with pytest.raises(InvalidParameter, match="preset='papers' is invalid"):
        Cell.under("papers", "ba", 4, 0)


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


# ---- what is kept belongs to the code that computed it


@pytest.fixture
def changed_source(tmp_path, monkeypatch):
    """A copy of the package as what code_key reads, and a function that changes a byte of a file in it."""
    copy = tmp_path / "auxbit"
    ignored = shutil.ignore_patterns("__pycache__", "static")
    shutil.copytree(Path(study.__file__).parents[1], copy, ignore=ignored)
    monkeypatch.setattr(files.importlib.resources, "files", {"auxbit": copy}.__getitem__)
    files.code_key.cache_clear()

    def change(name):
        (copy / name).write_bytes((copy / name).read_bytes() + b"#")
        files.code_key.cache_clear()

    yield change
    files.code_key.cache_clear()


def test_the_key_of_code_is_of_its_text_and_not_of_the_process(changed_source):
    code = "from auxbit.core.files import code_key; from auxbit.experiments.study import *; "
    code += "print(code_key(*FITTING), code_key(*MEASURING))"
    keys = [files.code_key(*study.FITTING), files.code_key(*study.MEASURING)]
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == keys
    assert len(set(keys)) == 2


@pytest.mark.parametrize(
    ("name", "fitting", "measuring"),
    [
        ("mac/z_step.py", True, True),
        ("core/maps.py", True, True),
        ("hashers/linear.py", True, True),
        ("quantiser/kernels.py", True, True),
        ("data/gist.py", True, True),
        ("evaluate.py", True, True),
        ("experiments/study.py", True, True),
        ("experiments/retrieval.py", False, True),
        ("index/hamming.py", False, True),
        ("plot/paper.py", False, False),
        ("cli/experiment.py", False, False),
        ("serve/app.py", False, False),
    ],
)
def test_a_changed_byte_of_what_computes_results_changes_the_key(changed_source, name, fitting, measuring):
    before = files.code_key(*study.FITTING), files.code_key(*study.MEASURING)
    changed_source(name)
    after = files.code_key(*study.FITTING), files.code_key(*study.MEASURING)
    assert (before[0] != after[0], before[1] != after[1]) == (fitting, measuring)


def test_other_versions_of_libraries_change_the_key(changed_source, monkeypatch):
    before = files.code_key("core")
    versions = files.versions() | {"numba": "99"}
    monkeypatch.setattr(files, "versions", lambda: versions)
    files.code_key.cache_clear()
    assert files.code_key("core") != before


def test_fits_of_other_code_are_made_again_and_only_measures_of_other_measures(
    problem, tmp_path, changed_source
):
    def derive():
        fits, fresh, calls = (
            Fits(problem, tmp_path / "raw", on_fit=lambda cell, new: fresh.append(new)),
            [],
            [],
        )
        fits.get(Cell("lsh", 8))
        fits.derived(Cell("lsh", 8), {"K": 5}, lambda made: calls.append(made) or 1)
        return fresh[0], len(calls)

    assert derive() == (True, 1)
    assert derive() == (False, 0)
    changed_source("plot/paper.py")
    assert derive() == (False, 0)
    changed_source("experiments/retrieval.py")
    assert derive() == (False, 1)
    changed_source("mac/loop.py")
    assert derive() == (True, 1)


def test_kept_rows_of_other_code_are_not_found(tmp_path, changed_source):
    row = {"method": "BA", "bits": 8, "seed": 0}
    KeptRows(tmp_path / "rows.jsonl", {"K": 50}).add(row)
    assert KeptRows(tmp_path / "rows.jsonl", {"K": 50}).read()
    changed_source("index/scan.py")
    assert not KeptRows(tmp_path / "rows.jsonl", {"K": 50}).read()


def test_descriptors_of_other_code_are_made_again(tmp_path, changed_source, monkeypatch):
    images, made = np.random.default_rng(0).integers(0, 256, (3, 16, 16), dtype=np.uint8), []
    compute = gist.gist
    monkeypatch.setattr(gist, "gist", lambda *args, **options: made.append(1) or compute(*args, **options))
    for name, expected in (("mac/loop.py", 1), ("mac/loop.py", 1), ("data/gist.py", 2)):
        changed_source(name)
        gist.cached_gist(images, tmp_path / "cache")
        assert len(made) == expected
