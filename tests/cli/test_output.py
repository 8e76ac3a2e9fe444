"""What commands print: numbers, sizes, names of files, commands to resume with."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from auxbit.cli import output


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (float("nan"), "-"), (3, "3"), (0.12345, "0.123"), (0.0, "0"), (123.456, "123.5"),
     (12345.6, "12,346"), (2.5e9, "2.5e+09"), ("text", "text")],
)  # fmt: skip
def test_numbers_have_the_digits_that_matter(value: object, shown: str) -> None:
    assert output.number(value) == shown


@pytest.mark.parametrize(
    ("n_bytes", "shown"), [(999, "999 bytes"), (1500, "1.5 kB"), (2.5e9, "2.5 GB"), (3e12, "3.0 TB")]
)
def test_sizes_have_units(n_bytes: float, shown: str) -> None:
    assert output.size(n_bytes) == shown


def test_json_has_null_for_what_is_no_finite_number(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"a": float("nan"), "b": (1, float("inf")), 3: None})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [1, None], "3": None}


def test_names_of_files_cannot_act_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.say("evil\x1b[31m.sqlite: 3 rows\nNext: …")
    assert capsys.readouterr().out == "evil\\x1b[31m.sqlite: 3 rows\nNext: …\n"
    assert output.printable("evil\x1b[31m.png") == "evil\\x1b[31m.png"


@pytest.mark.parametrize("width", [10, 20, 30])
@pytest.mark.parametrize("words", [["hash codes", "optimal codes by the decoder"], ["x", "y"]])
def test_a_table_that_is_too_wide_cuts_no_number_and_no_word(
    width: int, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "WIDE", width)
    rows = [[words[0], 0.123, 12345.6], [words[1], 0.456, 98765.4]]
    output.print_table(["name", "recall@10", "µs per row"], rows)
    output.print_table(["id", "text"], [["a-long-id-without-spaces", "some words of text"]])
    shown = capsys.readouterr().out
    assert "…" not in shown
    told = ["recall@10", "0.123", "12,346", "0.456", "98,765", "a-long-id-without-spaces", "words", "text"]
    assert all(text in shown for text in [*told, *" ".join(words).split()])


# ---- resuming

small = typer.Typer(rich_markup_mode=None)


@small.callback()
def group() -> None:
    """A group, so that the command has two words."""


@small.command()
def work(
    context: typer.Context,
    places: list[str],
    url: Annotated[str, typer.Option(metavar="URL")] = "",
    where: Annotated[list[str] | None, typer.Option("--where", "-w")] = None,
    bits: int = 8,
    quick: Annotated[bool, typer.Option("--quick")] = False,
    force: Annotated[bool, typer.Option("--force")] = False,
    resume: Annotated[bool, typer.Option("--resume")] = False,
) -> None:
    again = output.given_again(context, "--resume", without=["--force"], hidden=["--url"])
    output.say_resume("Half is done.", again)


def resumed(*words: str) -> Any:
    return CliRunner().invoke(small, ["work", *words], prog_name="auxbit").stderr.splitlines()


def test_a_command_is_repeated_as_it_was_given() -> None:
    said, command = resumed("a b", "c", "-w", "x=1", "--where", "y?", "--quick")
    assert said == "Half is done. Resume with:"
    assert command == "auxbit work 'a b' c --where x=1 --where 'y?' --quick --resume"


def test_options_that_would_begin_again_and_secrets_are_not_repeated() -> None:
    _, command = resumed("a", "--force", "--resume", "--url", "postgresql://u:secret@h/db")
    assert command == "auxbit work a --url URL --resume"
