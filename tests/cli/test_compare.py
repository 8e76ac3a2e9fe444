"""`auxbit compare` and `bits`: what they print, write and refuse."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auxbit.cli.compare import BITS_FILES
from helpers.cli_runner import run, run_json

# ---- compare


def test_compare_writes_table_results_and_plot(tmp_path: Path, digits: Any) -> None:
    np.save(tmp_path / "x.npy", digits)
    out = tmp_path / "out"
    result = run(
        "compare", tmp_path / "x.npy", "--methods", "itq,lsh,pq", "--bits", "8,13", "--seeds", 1, "--out", out
    )
    assert {path.name for path in out.iterdir()} == {
        "table.csv",
        "results.json",
        "precision.png",
        "rows.jsonl",
    }
    assert "Left out: PQ at 13 bits" in result.stdout
    assert "LSH" in result.stderr  # rows appear as they finish
    assert len((out / "table.csv").read_text().splitlines()) == 1 + 6
    again = run("compare", tmp_path / "x.npy", "--methods", "itq", "--bits", 8, "--out", out, code=1)
    assert "--force" in again.stderr


def test_compare_needs_no_files_for_the_embedded_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("compare", "digits", "--methods", "lsh", "--bits", "8", "--seeds", 2, "--json")
    document = json.loads(result.stdout)
    assert document["rows"][0]["seeds"] == 2
    assert result.stderr == ""
    assert not list(tmp_path.iterdir())


def test_wrong_lists_of_bits_are_wrong_usage() -> None:
    assert "--bits" in run("compare", "digits", "--bits", "8,x", code=2).stderr
    assert "Did you mean itq" in run("compare", "digits", "--methods", "iqt", code=2).stderr


def test_too_few_rows_to_compare_on_say_how_many_are_needed(tmp_path: Path) -> None:
    assert "at most 1795" in run("compare", "digits", "--n-queries", 1797, code=1).stderr
    np.save(tmp_path / "one.npy", np.ones((1, 4)))
    assert "has 1 row; a comparison needs at least 3" in run("compare", tmp_path / "one.npy", code=1).stderr


@pytest.mark.slow
def test_an_interrupted_comparison_keeps_its_rows_and_resumes(tmp_path: Path) -> None:
    arguments = ["compare", "digits", "--methods", "lsh,ba", "--bits", "8", "--seeds", "3", "--out", "out"]
    command = [sys.executable, "-m", "auxbit", *arguments]
    rows = tmp_path / "out" / "rows.jsonl"
    with subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        while process.poll() is None and not (rows.exists() and rows.read_text().count("\n") >= 4):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "is kept in out. Resume with:" in stderr
    assert "this is what is finished" in stdout
    assert "LSH" in stdout
    kept = rows.read_text().splitlines()
    assert 4 <= len(kept) < 6
    assert {path.name for path in rows.parent.iterdir()} == {"rows.jsonl"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert len(done.stderr.splitlines()) == 6 - len(kept)
    assert rows.read_text().splitlines()[: len(kept)] == kept
    assert (rows.parent / "table.csv").exists()


# ---- bits


def test_bits_recommends_the_cheapest_setting_and_the_commands_that_make_it(folder: Path) -> None:
    arguments = ("bits", "base.npy", "--recall", "0.9", "--rerank", 20, "--bits", "16,32", "--rows", "700")
    shown = run(*arguments, "--jobs", "1", "--metric", "cosine").stdout
    assert "Recall in 1,462 rows, by 35 held-out queries, estimated from 700 of them" in shown
    assert "The cheapest with a recall@10 of 0.9: " in shown
    create, search = (line.removeprefix("Next:").split() for line in shown.splitlines()[-2:])
    assert create[:3] == ["auxbit", "collection", "create"]
    run(*create[1:])
    found = run_json(*search[1:])
    assert len(found["results"]) == 300
    assert found["rerank"] == 20


def test_bits_without_a_recall_gives_table_json_and_pictures(folder: Path) -> None:
    found = run_json("bits", "base.npy", "--bits", "8,16", "--rows", "300", "--out", "o", "--jobs", "1")
    assert found["best"] is None
    assert [row["bits"] for row in found["table"]] == [8] * 4 + [16] * 4
    assert {path.name for path in Path("o").iterdir()} == set(BITS_FILES)
    assert json.loads(Path("o/bits.json").read_text())["settings"]["rerank"] == 40
    assert "exists" in run("bits", "base.npy", "--bits", "8", "--out", "o", code=1).stderr


def test_bits_refuses_what_is_no_list_of_bits_and_an_unknown_metric(folder: Path) -> None:
    assert "not a list of integers" in run("bits", "base.npy", "--bits", "8,x", code=2).stderr
    assert "one of euclidean" in run("bits", "base.npy", "--metric", "dot", code=2).stderr
