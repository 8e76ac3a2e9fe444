"""The command line as a whole: help, version, suggestions, and the reference in docs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import auxbit
from auxbit.cli.reference import reference
from auxbit.hashers.registry import DEFAULT_METHODS, HASHER_NAMES, METHODS
from helpers.cli_runner import run

COMMANDS = (
    "fit",
    "encode",
    "decode",
    "search",
    "duplicates",
    "evaluate",
    "compare",
    "info",
    "demo",
    "experiment parallel",
)


def test_no_arguments_show_the_help() -> None:
    result = run(code=2)
    assert all(command.split()[0] in result.output for command in COMMANDS)


def test_version_is_the_version_of_the_package() -> None:
    assert run("--version").stdout == f"auxbit {auxbit.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_every_command_has_a_help_text(command: str) -> None:
    assert f"Usage: auxbit {command}" in run(*command.split(), "--help").stdout
    section = reference().split(f"## auxbit {command}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    assert lines
    assert all(len(line.split(" | ")[1]) > 10 for line in lines)


def test_a_mistyped_command_suggests_the_nearest() -> None:
    result = run("serch", code=2)
    assert "Did you mean" in result.stderr
    assert "'search'" in result.stderr


def test_a_mistyped_option_suggests_the_nearest() -> None:
    assert "--out" in run("fit", "digits", "--ot", "m", code=2).stderr


def test_help_is_there_without_importing_what_is_heavy() -> None:
    code = (
        "import sys\nfrom auxbit.cli.app import app\n"
        "try:\n    app(['fit', '--help'])\nexcept SystemExit:\n    pass\n"
        "print({'numpy', 'sklearn', 'numba', 'faiss', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_the_reference_in_docs_is_up_to_date() -> None:
    written = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
    assert written.read_text() == reference(), "run: make reference"


def test_the_reference_is_written_to_docs_unless_told_otherwise(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for arguments, written in (((), "docs/cli.md"), (("other.md",), "other.md")):
        command = [sys.executable, "-m", "auxbit.cli.reference", *arguments]
        subprocess.run(command, cwd=tmp_path, check=True)
        assert (tmp_path / written).read_text() == reference()


def test_the_methods_in_the_help_are_those_of_the_registry() -> None:
    text = reference()
    assert f"`--method` {'|'.join(HASHER_NAMES)} ".replace("|", "\\|") in text
    assert f"Default: `{','.join(DEFAULT_METHODS)}`." in text
    listed = next(line for line in text.splitlines() if line.startswith("| `--methods`"))
    assert all(f" {name}" in listed for name in METHODS)
