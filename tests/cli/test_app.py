"""The command line as a whole: help, version, suggestions, and the reference in docs."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import typer

import auxbit
from auxbit.cli.app import SECTIONS, app
from auxbit.cli.reference import reference
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


def test_the_help_has_every_command_in_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("--help").stdout
    named = [name for names in SECTIONS.values() for name in names]
    assert sorted(named) == sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert not re.search(r"\.\.\.$", shown.partition("Search:")[2], re.M)


def test_version_is_the_version_of_the_package() -> None:
    assert run("--version").stdout == f"auxbit {auxbit.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_every_command_has_a_help_text(command: str) -> None:
    assert f"Usage: auxbit {command}" in run(*command.split(), "--help").stdout
    section = reference().split(f"## auxbit {command}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    assert lines
    assert all(len(line.split(" | ")[1]) > 10 for line in lines)


@pytest.mark.parametrize("command", [*COMMANDS, "serve", "images search", "images add", "collection get"])
def test_usage_has_one_pair_of_brackets_around_an_argument(command: str) -> None:
    usage = run(*command.split(), "--help").stdout.partition("\n\n")[0]
    assert not re.search(r"\[\[|\]\]|…", usage)


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
