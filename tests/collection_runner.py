"""Running `auxbit collection …` in tests, and a collection to run it on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import auxbit
from auxbit import Collection
from auxbit.cli import collecting
from auxbit.cli.app import Commands

# typer builds all commands of an app for each run, which takes longer than most of them do
SMALL = typer.Typer(cls=Commands, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
SMALL.add_typer(collecting.group, name="collection")


def c(command: str, *arguments: object, code: int = 0, answer: str = "") -> Any:
    words = ["collection", command, *map(str, arguments)]
    result = CliRunner().invoke(SMALL, words, input=answer, prog_name="auxbit")
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def c_json(command: str, *arguments: object) -> Any:
    return json.loads(c(command, *arguments, "--json").stdout)


def metadata_of(n: int) -> list[dict[str, Any]]:
    return [{"label": row % 10, "name": f"item {row}", "even": row % 2 == 0, "row": row} for row in range(n)]


@pytest.fixture(scope="session")
def papers(digits: Any, trained: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`papers`, a collection of base.npy with vectors and metadata, to be copied."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        np.save("base.npy", digits[300:])
        Path("m.safetensors").write_bytes(trained)
        Path("base.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metadata_of(1497)))
        files = ("--data", "base.npy", "--metadata", "base.jsonl", "--model", "m.safetensors")
        c("create", "papers", *files, "--vectors", "float32")
    return folder / "papers"


@pytest.fixture
def place(folder: Path, digits: Any) -> Path:
    """The working folder, with metadata of base.npy and packed codes of it as well."""
    Path("base.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metadata_of(1497)))
    np.save("codes.npy", auxbit.load("m.safetensors").encode(digits[300:]))
    return folder


@pytest.fixture
def made(place: Path, papers: Path) -> Path:
    """The working folder with a copy of `papers` in it."""
    shutil.copytree(papers, "papers")
    return place


def items(folder: str) -> int:
    with Collection.open(folder, read_only=True) as found:
        return len(found)
