"""docs/cli.md: written from the commands themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from auxbit.cli.reference import reference
from auxbit.hashers.registry import COMPARED_METHODS, HASHER_NAMES, METHODS
from helpers.cli_runner import run


def test_the_reference_in_docs_is_up_to_date() -> None:
    written = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
    assert written.read_text() == reference(), "run: make reference"


def test_the_reference_is_written_to_docs_by_default(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for arguments, written in (((), "docs/cli.md"), (("other.md",), "other.md")):
        command = [sys.executable, "-m", "auxbit.cli.reference", *arguments]
        subprocess.run(command, cwd=tmp_path, check=True)
        assert (tmp_path / written).read_text() == reference()


def test_the_methods_in_the_help_are_those_of_the_registry() -> None:
    text = reference()
    assert f"| `--method` | How codes are learned. Values: {', '.join(HASHER_NAMES)}. " in text
    assert f"Default: `{','.join(COMPARED_METHODS)}`." in text
    listed = next(line for line in text.splitlines() if line.startswith("| `--methods`"))
    assert all(f" {name}" in listed for name in METHODS)


def test_a_default_that_is_no_value_is_told_in_words() -> None:
    text = reference()
    assert "| `--jobs` | Threads. Default: all cores. |" in text
    assert "| `--k`, `-k` | How many neighbours. Default: `10`. |" in text
    assert "unless given" not in text


@pytest.mark.parametrize("group", ["", "collection", "images", "store", "experiment"])
def test_no_line_of_a_list_of_commands_is_cut_at_80_columns(group, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = run(*[group] * bool(group), "--help").stdout.splitlines()
    assert [line for line in lines if line.endswith("...") and "Usage" not in line] == []
