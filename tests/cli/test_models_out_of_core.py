"""`auxbit fit` out of core: memory, checkpoint, resuming."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auxbit
from helpers.cli_runner import run, run_json
from helpers.large_rows import clustered, stored

QUICK = ("--bits", 8, "--max-iter", 3)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with rows.npy and rows.parquet."""
    monkeypatch.chdir(tmp_path)
    for kind in (".npy", ".parquet"):
        stored(kind, clustered(), tmp_path)
    return tmp_path


@pytest.mark.parametrize("method", ["ba", "bfa"])
@pytest.mark.parametrize("data", ["rows.npy", "rows.parquet"])
def test_within_a_budget_the_model_is_that_of_a_fit_in_memory(place, data, method):
    fit = ("--method", method, *QUICK)
    inside = run_json("fit", "rows.npy", "-o", "a.safetensors", *fit)
    summary = run_json("fit", data, "-o", "b.safetensors", *fit, "--memory", "500MB")
    a, b = auxbit.load("a.safetensors"), auxbit.load("b.safetensors")
    np.testing.assert_array_equal(a.transform(clustered()), b.transform(clustered()))
    assert inside["passes"] is None
    assert summary["passes"] == b.n_passes_ == 2  # rows that fit into memory are held
    assert summary["n_rows"] == summary["measured_rows"] == 1500
    assert summary["reconstruction_error"] == pytest.approx(inside["reconstruction_error"], rel=1e-6)
    assert summary["effective_bits"] == inside["effective_bits"]


@pytest.mark.parametrize("method", ["itq", "tpca", "lsh", "klsh"])
@pytest.mark.parametrize("data", ["rows.npy", "rows.parquet"])
def test_methods_without_iterations_are_fitted_out_of_core_as_in_memory(place, data, method):
    fit = ("--method", method, "--bits", 8)
    inside = run_json("fit", "rows.npy", "-o", "a.safetensors", *fit)
    summary = run_json("fit", data, "-o", "b.safetensors", *fit, "--memory", "500MB")
    a, b = auxbit.load("a.safetensors"), auxbit.load("b.safetensors")
    np.testing.assert_array_equal(a.transform(clustered()), b.transform(clustered()))
    assert summary["reconstruction_error"] == pytest.approx(inside["reconstruction_error"], rel=1e-6)


def test_a_decoder_of_tables_is_fitted_out_of_core_to_as_many_rows_as_memory_has_room_for(place, monkeypatch):
    monkeypatch.setattr("auxbit.hashers.files.rows_of_decoder", lambda memory, D: 1000)
    fit = ("--method", "itq", "--bits", 8, "--coding", "optimal", "--decoder", "tables")
    run("fit", "rows.npy", "-o", "a.safetensors", *fit, "--memory", "500MB")
    model = auxbit.load("a.safetensors")
    assert type(model.decoder_).__name__ == "TableDecoder"
    assert model.training_.n_rows == 1000


def test_passes_are_told(place):
    assert re.search(
        r"\npasses +\d+\n", run("fit", "rows.npy", "-o", "m.safetensors", *QUICK, "--memory", "1GB").stdout
    )
    assert "passes" not in run("fit", "rows.npy", "-o", "n.safetensors", *QUICK).stdout


def test_the_progress_bar_counts_passes(place, monkeypatch):
    monkeypatch.setattr("auxbit.mac.fit.MOST_SAMPLED", 1000)
    shown: list[str] = []
    monkeypatch.setattr("auxbit.cli.output.Stages.say", lambda stages, detail: shown.append(detail))
    run("fit", "rows.npy", "-o", "m.safetensors", *QUICK, "--memory", "1GB")
    passes = [int(detail.split("passes ")[1]) for detail in shown]
    assert passes[0] >= 4
    assert passes == sorted(passes)
    shown.clear()
    run("fit", "rows.npy", "-o", "n.safetensors", *QUICK)
    assert shown
    assert not any("passes" in detail for detail in shown)


def test_of_many_rows_some_are_measured(place):
    np.save("many.npy", clustered(30_000, 4))
    summary = run_json("fit", "many.npy", "-o", "m.safetensors", *QUICK, "--max-iter", 1, "--memory", "1GB")
    assert summary["n_rows"] == 30_000
    assert summary["measured_rows"] == 20_000
    text = run("fit", "many.npy", "-o", "n.safetensors", *QUICK, "--max-iter", 1, "--memory", "1GB").stdout
    assert "(20,000 rows)" in text


def test_ridge_takes_fewer_passes(place, monkeypatch):
    monkeypatch.setattr("auxbit.mac.fit.MOST_SAMPLED", 1000)
    passes = [
        run_json(
            "fit", "rows.npy", "-o", f"{solver}.safetensors", *QUICK, "--memory", "1GB", "--h-solver", solver
        )
        for solver in ("svm", "ridge")
    ]
    assert passes[1]["passes"] < passes[0]["passes"]
    assert auxbit.load("ridge.safetensors").h_solver == "ridge"


@pytest.mark.parametrize("method", ["ba", "bfa"])
def test_hash_functions_have_features_if_asked(place, method):
    fit = ("fit", "rows.npy", *QUICK, "--method", method, "--encoder", "rbf")
    assert run_json(*fit, "-o", "a.safetensors")["reconstruction_error"] > 0
    run_json(*fit, "-o", "b.safetensors", "--memory", "1GB")
    a, b = auxbit.load("a.safetensors"), auxbit.load("b.safetensors")
    assert a.encoder == "rbf"
    np.testing.assert_array_equal(a.encoder_.centres, b.encoder_.centres)


def test_a_checkpoint_is_resumed_from_only_if_asked(place):
    fit = ("fit", "rows.npy", *QUICK, "--checkpoint", "state")
    first = run_json(*fit, "-o", "a.safetensors")
    refused = run(*fit, "-o", "b.safetensors", code=1)
    assert "state holds the state of a fit" in refused.stderr
    again = run_json(*fit, "-o", "b.safetensors", "--resume")
    assert again["passes"] == first["passes"]
    a, b = auxbit.load("a.safetensors"), auxbit.load("b.safetensors")
    np.testing.assert_array_equal(a.encoder_.weights, b.encoder_.weights)


def test_the_embedded_digits_can_be_read_out_of_core_too(place):
    assert run_json("fit", "digits", "-o", "m.safetensors", *QUICK, "--memory", "1GB")["n_rows"] == 1797


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (("rows.npy", "--memory", "lots"), 2, "--memory='lots' is invalid: expected bytes, as '1GB'"),
        (("rows.npy", "--memory", "1MB"), 2, "at least 128MB"),
        (("rows.npy", "--resume"), 2, "it needs the folder to resume from: --checkpoint FOLDER"),
        (("rows.npy", "--memory", "1MB", "--method", "sph"), 2, "at least 128MB"),
        (("rows.npy", "--checkpoint", ""), 2, "--checkpoint='' is invalid: expected a folder"),
        (("rows.npy", "--checkpoint", "s", "--method", "itq"), 2, "does not apply to --method itq"),
        (("rows.npy", "--checkpoint", "s", "--method", "sph"), 2, "does not apply to --method sph"),
        (("rows.npy", "--h-solver", "ridge", "--method", "bfa"), 2, "does not apply to --method bfa"),
        (("rows.npy", "--encoder", "rbf", "--method", "itq"), 2, "does not apply to --method itq"),
        (("rows.npy", "--encoder", "rfb"), 2, "'rfb' is not one of linear, rbf"),
        (("rows.npy", "--h-solver", "lda"), 2, "--h-solver='lda' is invalid"),
        (("none.npy", "--memory", "1GB"), 1, "none.npy does not exist"),
        (("rows.npy", "--checkpoint", "rows.parquet"), 1, "rows.parquet is a file; expected a folder"),
        (("nan.npy", "--memory", "1GB"), 1, "contains NaN at row 7, column 2"),
        ((".", "--memory", "1GB"), 0, ""),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else "",
)
def test_exit_codes_and_messages(place, arguments, code, why):
    rows = clustered(200)
    rows[7, 2] = np.nan
    np.save("nan.npy", rows)
    result = run("fit", *arguments, "-o", "m.safetensors", *QUICK, code=code)
    assert why in " ".join(result.stderr.replace("│", " ").split())
    assert Path("m.safetensors").exists() == (code == 0)


@pytest.mark.slow
def test_ctrl_c_names_the_command_that_resumes_and_it_does(place):
    np.save("large.npy", clustered(60_000, 32, seed=4))
    words = [
        "fit", "large.npy", "-o", "my model.safetensors", "--checkpoint", "state", "--bits", "16",
        "--jobs", "1", "--metric", "cosine",
    ]  # fmt: skip
    process = auxbit_process(*words)
    deadline = time.monotonic() + 120
    while process.poll() is None and not Path("state/state.safetensors").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert stdout == ""
    said, command, interrupted = stderr.strip().splitlines()
    assert said == "What was done is kept in state. Resume with:"
    assert interrupted.startswith("interrupted; ")
    assert shlex.split(command)[1:].count("--resume") == 1
    assert not Path("my model.safetensors").exists()
    process = auxbit_process(*shlex.split(command)[1:])
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    model: Any = auxbit.load("my model.safetensors")
    assert model.n_bits == 16
    assert model.normalize


def auxbit_process(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "auxbit", *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )


def test_what_was_given_is_repeated_word_for_word_but_for_what_was_not(place, monkeypatch):
    def interrupted(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("auxbit.hashers.files.fit_file", interrupted)
    given = [
        "rows.npy",
        "--out",
        "a b.safetensors",
        "--bits",
        "16",
        "--checkpoint",
        "s",
        "--force",
        "--resume",
    ]
    result = run("fit", *given, code=130)
    said, command = result.stderr.splitlines()[:2]
    assert said == "What was done is kept in s. Resume with:"
    found = shlex.split(command)
    assert found[:3] == ["auxbit", "fit", "rows.npy"]
    assert sorted(found[3:]) == sorted(given[1:])
    without = run("fit", "rows.npy", "-o", "m.safetensors", code=130)
    assert without.stderr.startswith("interrupted; nothing half-written is left")
