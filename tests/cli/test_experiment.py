"""`auxbit experiment …`: every experiment from one command, one report of all, and going on after a stop."""

from __future__ import annotations

import json
import os
import re

import pytest

from auxbit.experiments import study
from auxbit.experiments.campaign import NAMES
from helpers.cli_runner import run

FIGURES = (*NAMES[:3], "retrieval-K50", "curves-K50", *NAMES[4:])


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """The folder of `experiment all --quick`, and what it printed; tests/experiments runs each by itself."""
    folder = tmp_path_factory.mktemp("all")
    before = os.getcwd()
    os.chdir(folder)
    try:
        result = run("experiment", "all", "--quick", "--out", "found")
    finally:
        os.chdir(before)
    return folder / "found", result.output


@pytest.mark.slow
def test_every_experiment_writes_its_figures_tables_and_settings(everything):
    folder, _ = everything
    for name in NAMES:
        settings = json.loads((folder / "digits" / f"{name}.json").read_text())
        assert settings["settings"]["data"] == "digits"
        assert settings["versions"]["auxbit"]
    for figure in FIGURES:
        for ending in (".svg", ".png", "-dark.svg", "-dark.png"):
            drawn = folder / "digits" / f"{figure}{ending}"
            if figure != "parallel" or len(os.sched_getaffinity(0)) > 1:
                assert drawn.stat().st_size > 1000, drawn


@pytest.mark.slow
def test_the_report_holds_every_result_and_asks_nobody_else(everything):
    folder, printed = everything
    page = (folder / "report.html").read_text()
    for name in ("wrapper", "altopt", "retrieval", "samples", "entropy", "path", "solvers"):
        assert name in page
    assert "BA from AGH has the lowest reconstruction error at every L" in page
    assert "BA from AGH has the lowest reconstruction error at every L" in (folder / "claims.csv").read_text()
    assert not re.search(r"""(src|href)=["'](https?:)?//""", page)
    assert "<script" not in page
    assert "report.html" in printed
    assert "BA from AGH has the lowest reconstruction error at every L (digits)" in printed


@pytest.mark.slow
def test_a_second_run_fits_nothing_again(everything, monkeypatch):
    folder, _ = everything
    monkeypatch.setattr(study, "fit", lambda *args: pytest.fail("it was fitted again"))
    result = run("experiment", "entropy", "--quick", "--out", str(folder), "--json")
    assert {row["method"] for row in json.loads(result.stdout)["results"][0]["tables"]["entropy"]} >= {
        "BA",
        "ITQ",
    }


def test_an_interrupt_keeps_what_is_finished(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = study.fit
    fits = []

    def interrupted(*args):
        if len(fits) == 2:
            raise KeyboardInterrupt
        fits.append(args)
        return made(*args)

    monkeypatch.setattr(study, "fit", interrupted)
    result = run("experiment", "wrapper", "--bits", "4,6", "--rows", "300", "--out", "o", code=130)
    assert "What was done is kept in o. Resume with:\nauxbit experiment wrapper --bits 4,6 " in result.output
    monkeypatch.setattr(study, "fit", lambda *args: fits.append(args) or made(*args))
    n_fits = 2 * (2 * 3 + 1 + 3 + 1)  # both BA and ITQ have three seeds; BFA and tPCA are not random
    for _ in range(2):  # the first goes on with the third fit, the second has nothing left to fit
        run("experiment", "wrapper", "--bits", "4,6", "--rows", "300", "--out", "o")
        assert len(fits) == n_fits


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("experiment", "wrapper", "--data", "cifar11"), 1, "Known names"),
        (("experiment", "wrapper", "--data", "nuswide"), 1, "is published at"),
        (("experiment", "retrieval", "--caption", "x"), 2, "--caption='x' is invalid"),
        (("experiment", "path", "--preset", "x"), 2, "--preset='x' is invalid: expected default or paper"),
        (
            ("experiment", "parallel", "--preset", "x"),
            2,
            "--preset='x' is invalid: expected default or paper",
        ),
        (("experiment", "altopt", "--seeds", "2"), 2, "No such option"),
        (("experiment", "wrapper", "--bits", "none"), 2, "bits"),
        (("experiment", "everything"), 2, "No such command"),
        (("experiment",), 2, "retrieval"),
    ],
)
def test_mistakes_are_named_with_their_remedy(tmp_path, monkeypatch, arguments, code, says):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AUXBIT_DATA", raising=False)
    result = run(*arguments, code=code)
    assert says in result.output
    assert not list(tmp_path.glob("**/*.csv"))


def test_a_file_of_vectors_will_do(tmp_path, monkeypatch, digits):
    import numpy as np

    monkeypatch.chdir(tmp_path)
    np.save("v.npy", digits[:300])
    run("experiment", "entropy", "--data", "v.npy", "--bits", "4,8", "--out", "o")
    assert (tmp_path / "o" / "v" / "entropy.csv").exists()
