"""Several experiments on several data sets: what is planned, written, left out, and refused."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.experiments import campaign, retrieval, study


@pytest.mark.parametrize(
    "name", ["wrapper", pytest.param("retrieval", marks=pytest.mark.slow), "entropy", "path", "altopt"]
)
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
        assert all(row["made_with_preset"] == "paper" for row in written_rows)
    document = json.loads((tmp_path / f"{name}.json").read_text())
    assert document["settings"]["data"] == "digits"
    assert document["versions"]["auxbit"]
    for figure in result.figures:
        for suffix in (".svg", ".png", "-dark.svg", "-dark.png"):
            assert b"auxbit" in (tmp_path / f"{figure}{suffix}").read_bytes()
    assert not fits.missing(experiment.cells)


def test_every_fit_of_ba_and_bfa_is_under_the_preset(problem):
    for preset in ("paper", "default"):
        settings = campaign.Settings(preset=preset, bits=(4, 8))
        cells = [cell for each in campaign.planned(problem, settings) for cell in each.cells]
        ours = [cell for cell in cells if cell.method.startswith("b")]
        assert {cell.method for cell in ours} == set(retrieval.shown(preset)[:3])
        assert all(dict(cell.options)["preset"] == preset for cell in ours)
    with pytest.raises(InvalidParameter, match="preset='x' is invalid"):
        campaign.planned(problem, campaign.Settings(preset="x"))


def test_altopt_has_all_rows(digits):
    large = study.Problem("d", np.tile(digits, (20, 1)), digits[:10])
    (experiment,) = campaign.planned(large, campaign.Settings(), ["altopt"])
    assert experiment.problem is large


def test_an_experiment_that_is_not_there_is_an_error(problem):
    with pytest.raises(InvalidParameter, match="experiment='wraper' is invalid"):
        campaign.planned(problem, campaign.Settings(), ["wraper"])


@pytest.mark.slow
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
