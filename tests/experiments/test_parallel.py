"""Speed-up by processors: what is fitted, what is derived, kept and said. No test depends on the clock."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from auxbit import BinaryAutoencoder
from auxbit.cli.app import app
from auxbit.core.parallel import BLOCK_ROWS
from auxbit.errors import AuxbitError, FileExists, FileProblem, InvalidParameter
from auxbit.experiments import parallel
from auxbit.experiments.parallel import Fit, most_speedup, noisy_digits, planned, run_parallel, speedups

SMALL = ("--rows", 300, "--bits", 8, "--repeats", 2)
WRITTEN = {"table.csv", "results.json", "speedup.png", "speedup.svg", "rows.jsonl"}


def use_cores(monkeypatch: pytest.MonkeyPatch, n_cores: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(n_cores)), raising=False)


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many wherever the tests run; threads beyond the real ones give the same results."""
    use_cores(monkeypatch, 2)


@pytest.fixture(scope="module")
def X() -> Any:
    return noisy_digits(300)


def run(*arguments: object, code: int = 0) -> Any:
    command = ["experiment", "parallel", *map(str, arguments)]
    result = CliRunner().invoke(app, command, prog_name="auxbit")
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def timed(bits: int, processors: int, repeat: int, *seconds: float) -> dict[str, Any]:
    names = ("seconds", "seconds_h", "seconds_f", "seconds_z", "seconds_rest")
    fit = Fit(bits, processors, repeat)
    return fit._asdict() | {"iterations": 5} | dict(zip(names, seconds))


# ---- what is fitted


def test_numbers_of_processors_take_turns_so_that_a_busy_machine_hits_all_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_cores(monkeypatch, 3)
    assert [fit[1:] for fit in planned([16], repeats=2)] == [(1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (3, 1)]
    assert {fit.processors for fit in planned([16], n_jobs=2)} == {1, 2}
    assert {fit.processors for fit in planned([16], n_jobs=-2)} == {1, 2}
    assert max(fit.processors for fit in planned([16], n_jobs=99)) == 3
    assert len(planned([16, 32, 16])) == 2 * 3 * 3


def test_bad_plans_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="n_bits=0 is invalid"):
        planned([8, 0])
    with pytest.raises(InvalidParameter, match="repeats=0 is invalid"):
        planned([8], repeats=0)
    with pytest.raises(InvalidParameter, match="n_jobs=0 is invalid"):
        planned([8], n_jobs=0)
    with pytest.raises(InvalidParameter, match="at least one number of bits"):
        planned([])
    with pytest.raises(InvalidParameter, match="rows=1 is invalid"):
        noisy_digits(1)


def test_the_made_rows_are_digits_with_noise_and_the_same_each_time() -> None:
    X = noisy_digits(4000)
    assert X.shape == (4000, 64)
    assert X.dtype == np.float32
    assert len(np.unique(X, axis=0)) == 4000
    assert np.array_equal(X, noisy_digits(4000))
    assert np.abs(X[:1797] - X[1797:3594]).mean() < 2 < X.std()  # near its repetition, on a scale of 16
    assert parallel.N_ROWS == 50_000


def test_every_fit_is_the_same_but_for_its_processors(X: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []

    class Noted(BinaryAutoencoder):
        def fit(self, X: Any, y: object = None) -> Any:
            made.append({"rows": len(X)} | self.get_params())
            return super().fit(X)

    monkeypatch.setattr(parallel, "BinaryAutoencoder", Noted)
    monkeypatch.setattr(parallel, "WARM_UP_ROWS", 100)
    result = run_parallel(X, planned([8], repeats=2), seed=7)
    assert [(each["rows"], each["n_jobs"]) for each in made] == [(100, 2), *[(300, 1), (300, 2)] * 2]
    assert all(each["random_state"] == 7 and each["validation"] is None for each in made)
    assert result["same_codes"]
    assert len({row["codes"] for row in result["fits"]}) == 1


def test_the_parts_of_a_fit_make_up_the_whole(X: Any) -> None:
    for row in run_parallel(X, planned([8], repeats=1))["fits"]:
        parts = [row[f"seconds_{part}"] for part in ("h", "f", "z", "rest")]
        assert sum(parts) == pytest.approx(row["seconds"])
        assert min(parts) >= 0
        assert row["iterations"] >= 1


def test_the_preset_decides_what_is_fitted_and_is_part_of_what_is_kept(X: Any, tmp_path: Path) -> None:
    fits = planned([8], repeats=1, n_jobs=1)
    found = {
        preset: run_parallel(X, fits, preset=preset, out_dir=tmp_path, overwrite=True)
        for preset in ("paper", "default")
    }
    assert [found[preset]["kept_fits"] for preset in found] == [0, 0]
    for preset, result in found.items():
        model = BinaryAutoencoder(8, preset=preset, validation=None, random_state=0).fit(X)
        assert result["preset"] == preset
        assert result["fits"][0]["codes"] == parallel.array_checksum(model.encode(X))


def test_a_warning_of_the_fit_comes_once(X: Any) -> None:
    few = X[:, 20:24]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_parallel(few, planned([8], repeats=2), preset="default")
    assert len([each for each in caught if "of n_bits=8 bits" in str(each.message)]) == 1


# ---- what is derived


def test_speed_ups_are_of_the_best_of_each_part() -> None:
    rows = [
        timed(16, 1, 0, 10.0, 3.0, 1.0, 5.0, 1.0),
        timed(16, 2, 0, 7.0, 2.0, 1.0, 2.5, 1.5),
        timed(16, 1, 1, 9.0, 4.0, 1.0, 3.0, 1.0),
        timed(16, 2, 1, 6.0, 3.0, 0.5, 2.0, 0.5),
    ]
    one, two = speedups(rows)
    assert (one["seconds"], one["seconds_h"], one["seconds_z"]) == (9, 3, 3)
    assert [one[f"speedup{part}"] for part in ("", "_h", "_f", "_z", "_rest")] == [1] * 5
    assert [two[f"speedup{part}"] for part in ("", "_h", "_f", "_z", "_rest")] == [1.5, 1.5, 2, 1.5, 2]
    assert (two["bits"], two["processors"], two["repeats"], two["iterations"]) == (16, 2, 2, 5)
    assert parallel.spread(rows) == pytest.approx(1 / 6)


def test_a_part_that_took_no_time_has_no_speed_up() -> None:
    rows = [timed(16, p, 0, 10.0, 0.0, 1.0, 5.0, 1.0) for p in (1, 2)]
    assert [row["speedup_h"] for row in speedups(rows)] == [None, None]


@pytest.mark.parametrize(
    ("blocks", "processors", "most"),
    [(1, 4, 1), (0.2, 4, 1), (12, 1, 1), (12, 4, 4), (13, 4, 13 / 4), (12.5, 4, 12.5 / 3.5), (2.5, 4, 2.5)],
)  # fmt: skip
def test_whole_blocks_limit_the_speed_up(blocks: float, processors: int, most: float) -> None:
    assert most_speedup(round(blocks * BLOCK_ROWS), processors) == pytest.approx(most, rel=1e-3)


def test_codes_that_differ_are_an_error(X: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(BinaryAutoencoder):
        def encode(self, X: Any) -> Any:
            codes = super().encode(X)
            codes[-1, -1] ^= self.n_jobs == 2
            return codes

    monkeypatch.setattr(parallel, "BinaryAutoencoder", Wrong)
    with pytest.raises(AuxbitError, match=r"codes of 8 bits on 2 processors are not those on 1.*bug"):
        run_parallel(X, planned([8], repeats=1))
    stderr = run(*SMALL, "--out", tmp_path / "out", code=1).stderr
    assert "error: the codes of 8 bits" in stderr
    assert "rows.jsonl holds fits of another build: remove it" in stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"rows.jsonl"}


# ---- what is kept and written


def test_what_is_kept_is_not_fitted_again(X: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def on_fit(row: Any, fresh: bool) -> None:
        seen.append(fresh)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_parallel(X, planned([8], repeats=2), out_dir=tmp_path, on_fit=on_fit)
    before = (tmp_path / "rows.jsonl").read_text()
    assert before.count("\n") == 3
    result = run_parallel(X, planned([8], repeats=2), out_dir=tmp_path, on_fit=on_fit)
    assert seen == [True] * 3 + [False] * 3 + [True]
    assert result["kept_fits"] == 3
    assert [(row["processors"], row["repeat"]) for row in result["fits"]] == [(1, 0), (2, 0), (1, 1), (2, 1)]
    assert (tmp_path / "rows.jsonl").read_text().startswith(before)
    again = run_parallel(X, planned([8], repeats=2), out_dir=tmp_path, overwrite=True)
    assert again["rows"] == result["rows"]
    other = run_parallel(X, planned([8], repeats=2), out_dir=tmp_path, overwrite=True, seed=1)
    assert other["kept_fits"] == 0
    monkeypatch.setattr("platform.node", lambda: "another machine")
    moved = run_parallel(X, planned([8], repeats=1), out_dir=tmp_path, overwrite=True)
    assert moved["kept_fits"] == 0


def test_results_are_not_overwritten_unasked(X: Any, tmp_path: Path) -> None:
    fits = planned([8], repeats=1)
    (tmp_path / "speedup.svg").write_text("precious")
    with pytest.raises(FileExists, match=r"speedup\.svg exists"):
        run_parallel(X, fits, out_dir=tmp_path)
    with pytest.raises(FileProblem, match="is a file"):
        run_parallel(X, fits, out_dir=tmp_path / "speedup.svg")
    assert [path.name for path in tmp_path.iterdir()] == ["speedup.svg"]


@pytest.mark.slow
def test_an_interrupted_experiment_continues(tmp_path: Path) -> None:
    arguments = ["--rows", "20000", "--bits", "16", "--repeats", "4", "--jobs", "1", "--out", "out"]
    command = [sys.executable, "-m", "auxbit", "experiment", "parallel", *arguments]
    rows = tmp_path / "out" / "rows.jsonl"
    with subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        while process.poll() is None and not (rows.exists() and rows.read_text().count("\n")):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "is kept in out. Resume with:" in stderr
    kept = rows.read_text().splitlines()
    assert 1 <= len(kept) < 4
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert len(done.stderr.splitlines()) == 4 - len(kept)
    assert f"{len(kept)} of the 4 fits were timed before" in done.stdout
    assert rows.read_text().splitlines()[: len(kept)] == kept


# ---- the command


def test_the_command_prints_a_table_and_writes_it_with_a_picture(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("--rows", 300, "--bits", "8,10", "--repeats", 1, "--out", out)
    assert {path.name for path in out.iterdir()} == WRITTEN
    assert "300 rows of 64 numbers: scikit-learn's digits" in result.stdout
    assert "The codes are the same to the last bit on 1 to 2 processors." in result.stdout
    assert "with 300 rows, 2 of them make the steps at most 1.00 times as fast" in result.stdout
    assert str(out / "speedup.png") in result.stdout
    assert len(result.stderr.splitlines()) == 4  # fits appear as they finish
    lines = (out / "table.csv").read_text().splitlines()
    assert lines[0].startswith("bits,processors,repeats,iterations,seconds,seconds_h")
    assert [line.split(",")[:2] for line in lines[1:]] == [["8", "1"], ["8", "2"], ["10", "1"], ["10", "2"]]
    document = json.loads((out / "results.json").read_text())
    assert document["rows"][1]["speedup"] == pytest.approx(
        document["fits"][0]["seconds"] / document["fits"][1]["seconds"]
    )
    assert "--force" in run("--rows", 300, "--bits", 8, "--out", out, code=1).stderr
    forced = run("--rows", 300, "--bits", "8,10", "--repeats", 1, "--out", out, "--force")
    assert "4 of the 4 fits were timed before" in forced.stdout
    assert forced.stderr == ""


def test_json_is_one_document_and_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*SMALL, "--json")
    document = json.loads(result.stdout)
    assert result.stderr == ""
    assert [row["processors"] for row in document["rows"]] == [1, 2]
    assert document["same_codes"] is True
    assert (document["train_rows"], document["processors"], document["repeats"]) == (300, 2, 2)
    assert not list(tmp_path.iterdir())


def test_rows_of_a_file_are_drawn_with_a_fixed_seed(tmp_path: Path, X: Any) -> None:
    np.save(tmp_path / "x.npy", X)
    arguments = (tmp_path / "x.npy", "--rows", 100, "--bits", 8, "--repeats", 1, "--json")
    first, second = (json.loads(run(*arguments).stdout) for _ in range(2))
    assert first["train_rows"] == 100
    assert first["data"] == str(tmp_path / "x.npy")
    assert first["fits"][0]["codes"] == second["fits"][0]["codes"]
    assert json.loads(run(*arguments[:1], *arguments[3:]).stdout)["train_rows"] == 300


def test_with_one_core_there_is_nothing_to_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_cores(monkeypatch, 1)
    out = tmp_path / "out"
    result = run(*SMALL, "--jobs", 4, "--out", out)
    assert "One processor: there is nothing to compare" in result.stdout
    assert "--jobs 4 is more than the cores that this process may use: 1." in result.stdout
    assert "to the last bit" not in result.stdout
    assert {path.name for path in out.iterdir()} == {"table.csv", "results.json", "rows.jsonl"}


def test_equal_fits_that_differ_much_are_remarked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "spread", lambda rows: 0.5)
    assert "Equal fits differ by up to 50%" in run(*SMALL).stdout
    monkeypatch.setattr(parallel, "spread", lambda rows: 0.1)
    assert "Equal fits differ" not in run(*SMALL).stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--bits", "0"), 2, "--bits=0 is invalid"),
        (("--bits", "8,x"), 2, "--bits"),
        (("--bits", ","), 2, "at least one number of bits"),
        (("--repeats", "0"), 2, "--repeats"),
        (("--rows", "1"), 2, "--rows"),
        (("--seed", "-1"), 2, "--seed"),
        (("--jobs", "0"), 2, "--jobs=0 is invalid"),
        (("nothing.npy",), 1, "nothing.npy does not exist"),
        (("digits", "--out", "file.txt"), 1, "is a file, not a folder"),
    ],
)
def test_bad_arguments_say_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file.txt").write_text("precious")
    result = run(*arguments, code=code)
    assert message in result.stderr
    assert result.stdout == ""


def test_rows_that_are_not_finite_are_named(tmp_path: Path, X: Any) -> None:
    bad = X.copy()
    bad[7, 3] = np.nan
    np.save(tmp_path / "bad.npy", bad)
    assert "NaN at row 7, column 3" in run(tmp_path / "bad.npy", code=1).stderr


def test_the_group_shows_its_help_and_suggests_the_nearest_name() -> None:
    invoke = CliRunner().invoke
    shown = invoke(app, ["experiment"], prog_name="auxbit")
    assert "Usage: auxbit experiment" in shown.output
    assert "parallel" in shown.output
    mistyped = invoke(app, ["experiment", "paralel"], prog_name="auxbit")
    assert mistyped.exit_code == 2
    assert "Did you mean 'parallel'" in mistyped.stderr
