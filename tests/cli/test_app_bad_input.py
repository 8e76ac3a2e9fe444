"""Bad input on the command line: errors that name it, and files that stay as they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.cli_runner import run


def test_nan_is_named_by_row_and_column(folder: Path, digits: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = digits[300:].copy()
    bad[700, 3] = np.nan
    np.save("bad.npy", bad)
    monkeypatch.setattr("auxbit.data.vectors.BLOCK_BYTES", 64 * 4 * 100)
    commands = [
        ("fit", "bad.npy", "-o", "out"),
        ("encode", "m.safetensors", "bad.npy", "-o", "out.npy"),
        ("search", "m.safetensors", "-b", "bad.npy", "-q", "base.npy"),
        ("evaluate", "m.safetensors", "-b", "base.npy", "-q", "bad.npy"),
        ("compare", "bad.npy", "--methods", "lsh", "--bits", 8),
    ]
    for command in commands:
        error = run(*command, code=1).stderr
        assert error.startswith("error: ")
        assert "NaN at row 700, column 3" in error
    assert not Path("out.npy").exists()


def test_rows_of_another_dimension_are_refused_with_both_numbers(folder: Path) -> None:
    np.save("narrow.npy", np.zeros((5, 63)))
    for command in (
        ("encode", "m.safetensors", "narrow.npy", "-o", "out.npy"),
        ("search", "m.safetensors", "-b", "base.npy", "-q", "narrow.npy"),
        ("evaluate", "m.safetensors", "-b", "narrow.npy", "-q", "base.npy"),
    ):
        error = run(*command, code=1).stderr
        assert "63" in error
        assert "64" in error
    assert "63" in run("compare", "base.npy", "-q", "narrow.npy", code=1).stderr


def test_a_missing_file_suggests_the_nearest_name(folder: Path) -> None:
    assert "Did you mean base.npy" in run("fit", "bse.npy", "-o", "out", code=1).stderr
    assert "does not exist" in run("encode", "no.safetensors", "base.npy", "-o", "out.npy", code=1).stderr
    assert "does not exist" in run("info", "no.safetensors", code=1).stderr


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.npy", b"", "empty"),
        ("cut.fvecs", np.array([4], "<i4").tobytes() + bytes(14), "truncated"),
        ("text.npy", b"these are words", "not an .npy"),
        ("notes.txt", b"these are words", "unknown extension"),
    ],
)
def test_a_file_that_is_not_data_is_named_and_explained(
    folder: Path, name: str, content: bytes, message: str
) -> None:
    Path(name).write_bytes(content)
    for command in (("fit", name, "-o", "out"), ("info", name)):
        error = run(*command, code=1).stderr
        assert name in error
        assert message in error


def test_one_row_is_too_few_to_fit(folder: Path) -> None:
    np.save("one.npy", np.ones((1, 4)))
    assert "at least 2" in run("fit", "one.npy", "-o", "out", code=1).stderr


def test_bits_out_of_range_say_what_is_allowed(folder: Path) -> None:
    assert "1..1024" in run("fit", "base.npy", "-o", "out", "--bits", 0, code=2).stderr
    error = run("fit", "base.npy", "-o", "out", "--method", "itq", "--bits", 65, code=1).stderr
    assert "at most 64" in error
    assert "LSH" in error


@pytest.mark.parametrize(
    "command",
    [
        ("fit", "base.npy", "-o", "out", "--method", "foo"),
        ("fit", "base.npy", "-o", "out", "--bits", 5000),
        ("fit", "base.npy", "-o", "out", "--z-solver", "foo"),
        ("fit", "base.npy", "-o", "out", "--init", "foo"),
        ("fit", "base.npy", "-o", "out", "--validation", "foo"),
        ("fit", "base.npy", "-o", "out", "--mu-factor", 0.5),
        ("fit", "base.npy", "-o", "out", "--max-iter", 0),
        ("fit", "base.npy", "-o", "out", "--seed", -1),
        ("fit", "base.npy", "-o", "out", "--jobs", 0),
        ("encode", "m.safetensors", "base.npy", "-o", "codes.txt"),
        ("search", "m.safetensors", "-b", "base.npy", "-q", "base.npy", "-o", "found.txt"),
        ("search", "m.safetensors", "-b", "base.npy", "-q", "base.npy", "--radius", -1),
        ("evaluate", "m.safetensors", "-b", "base.npy", "-q", "base.npy", "--plot", "pr.txt"),
        ("compare", "base.npy", "--methods", "foo"),
        ("compare", "base.npy", "--bits", "5000"),
        ("compare", "base.npy", "--K", -5),
        ("compare", "base.npy", "--n-queries", 0),
    ],
    ids=lambda command: f"{command[0]} {command[-2]} {command[-1]}",
)
def test_a_value_that_an_option_never_has_is_wrong_usage(folder: Path, command: tuple[object, ...]) -> None:
    before = set(folder.iterdir())
    assert "nvalid" in run(*command, code=2).stderr
    assert set(folder.iterdir()) == before


def test_a_seed_out_of_range_says_the_range(folder: Path) -> None:
    error = run("fit", "base.npy", "-o", "out", "--seed", 99999999999, code=2).stderr
    assert "0..4294967295" in error
    run("fit", "base.npy", "-o", "out", "--method", "lsh", "--seed", 4294967295)


@pytest.mark.parametrize("kept", [0, 5, 100, 1000])
def test_a_truncated_model_is_refused(folder: Path, trained: bytes, kept: int) -> None:
    Path("cut.safetensors").write_bytes(trained[:kept])
    for command in (("encode", "cut.safetensors", "base.npy", "-o", "out.npy"), ("info", "cut.safetensors")):
        assert "cut.safetensors" in run(*command, code=1).stderr


def test_a_model_of_a_newer_version_asks_for_an_upgrade(folder: Path, trained: bytes) -> None:
    newer = trained.replace(b'"format_version":"1"', b'"format_version":"9"')
    assert newer != trained
    Path("newer.safetensors").write_bytes(newer)
    assert "Upgrade" in run("encode", "newer.safetensors", "base.npy", "-o", "out.npy", code=1).stderr


def test_a_model_that_is_not_ours_is_refused(folder: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"a": np.zeros(3)}, "foreign.safetensors")
    assert "not an auxbit model" in run("info", "foreign.safetensors", code=1).stderr
    assert "not an auxbit model" in run("encode", "base.npy", "base.npy", "-o", "out.npy", code=1).stderr


@pytest.mark.parametrize(
    "command",
    [
        ("fit", "base.npy", "--method", "lsh", "-o"),
        ("encode", "m.safetensors", "base.npy", "-o"),
        ("search", "m.safetensors", "-b", "base.npy", "-q", "queries.npy", "-o"),
        ("evaluate", "m.safetensors", "-b", "base.npy", "-q", "queries.npy", "--plot"),
        ("evaluate", "m.safetensors", "-b", "base.npy", "-q", "queries.npy", "--curve"),
    ],
    ids=lambda command: f"{command[0]} {command[-1]}",
)
def test_an_output_that_exists_stays_as_it_is_without_force(folder: Path, command: tuple[str, ...]) -> None:
    suffix = {"fit": ".safetensors", "encode": ".npy", "search": ".npz", "evaluate": ".png"}[command[0]]
    suffix = ".csv" if command[-1] == "--curve" else suffix
    out = Path(f"old{suffix}")
    out.write_bytes(b"precious")
    assert "--force" in run(*command, out, code=1).stderr
    assert out.read_bytes() == b"precious"
    run(*command, out, "--force")
    assert out.read_bytes() != b"precious"
    assert not list(folder.glob(".*"))


def test_a_crash_while_writing_leaves_the_old_file_whole(folder: Path, digits: Any) -> None:
    Path("codes.npy").write_bytes(b"precious")
    bad = digits.copy()
    bad[-1, -1] = np.inf
    np.save("bad.npy", bad)
    error = run("encode", "m.safetensors", "bad.npy", "-o", "codes.npy", "--force", code=1).stderr
    assert "inf at row 1796, column 63" in error
    assert Path("codes.npy").read_bytes() == b"precious"
    assert not list(folder.glob(".*"))


def test_a_folder_that_cannot_be_written_to_is_said_before_the_work(folder: Path) -> None:
    error = run("fit", "base.npy", "-o", "base.npy/m.safetensors", code=1).stderr
    assert "is a file, not a folder" in error


def test_options_that_do_not_apply_to_a_method_are_wrong_usage(folder: Path) -> None:
    error = run("fit", "base.npy", "-o", "out", "--method", "itq", "--mu-factor", 2, code=2).stderr
    assert "does not apply to --method itq" in error
    assert "Did you mean itq?" in run("fit", "base.npy", "-o", "out", "--method", "iqt", code=2).stderr


def test_warnings_are_one_line_on_stderr(folder: Path) -> None:
    np.save("low.npy", np.random.RandomState(0).standard_normal((60, 4)))
    result = run("fit", "low.npy", "-o", "low.safetensors", "--bits", 8, "--max-iter", 2, "--json")
    assert result.stderr.startswith("warning: init='itq' has axes for only")
    assert json.loads(result.stdout)["n_bits"] == 8


def test_what_is_not_finite_is_named_by_its_file(folder: Path) -> None:
    X = np.ones((30, 4), dtype=np.float32)
    X[7, 2] = np.nan
    np.save("holes.npy", X)
    for command in (("fit", "holes.npy", "-o", "out"), ("bits", "holes.npy")):
        assert "holes.npy contains NaN at row 7, column 2" in run(*command, code=1).stderr
