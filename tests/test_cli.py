"""The command line, as a user meets it: what it prints, writes, refuses, and how it exits."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auxbit
from auxbit import ITQ
from auxbit.cli.reference import reference
from auxbit.experiments.methods import DEFAULT_METHODS, HASHERS, METHODS
from cli_runner import run, run_json

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


def auxbit_process(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "auxbit.cli", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


# ---- the whole app


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
    assert "Did you mean 'search'?" in result.stderr


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
    written = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
    assert written.read_text() == reference(), "run: make reference"


def test_the_reference_is_written_to_docs_unless_told_otherwise(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for arguments, written in (((), "docs/cli.md"), (("other.md",), "other.md")):
        command = [sys.executable, "-m", "auxbit.cli.reference", *arguments]
        subprocess.run(command, cwd=tmp_path, check=True)
        assert (tmp_path / written).read_text() == reference()


def test_the_methods_in_the_help_are_those_of_the_registry() -> None:
    text = reference()
    assert f"`--method` {'|'.join(HASHERS)} ".replace("|", "\\|") in text
    assert f"Default: `{','.join(DEFAULT_METHODS)}`." in text
    listed = next(line for line in text.splitlines() if line.startswith("| `--methods`"))
    assert all(f" {name}" in listed for name in METHODS)


# ---- each command at work


@pytest.mark.parametrize("method", HASHERS)
def test_fit_writes_a_model_of_each_method_that_loads(folder: Path, method: str) -> None:
    few = ["--max-iter", 3] if method in ("ba", "ba-agh", "bfa", "sph") else []
    result = run("fit", "base.npy", "--out", "new.safetensors", "--method", method, "--bits", 8, *few)
    assert auxbit.load("new.safetensors").n_bits == 8
    assert "effective bits" in result.stdout
    assert "Next: auxbit encode new.safetensors base.npy" in result.stdout


def test_fit_passes_its_options_on_and_reports_in_json(folder: Path) -> None:
    summary = run_json(
        "fit", "base.npy", "-o", "new.safetensors", "--bits", 8, "--init", "tpca", "--mu-factor", 2,
        "--mu0", 0.1, "--validation", "none", "--z-solver", "alternating", "--normalize", "--seed", 5,
        "--jobs", 1,
    )  # fmt: skip
    parameters = auxbit.load("new.safetensors").get_params()
    wanted = {"init": "tpca", "mu_factor": 2, "mu0": 0.1, "validation": None, "z_solver": "alternating",
              "normalize": True, "random_state": 5, "n_jobs": 1}  # fmt: skip
    assert {name: parameters[name] for name in wanted} == wanted
    assert summary["iterations"] == len(summary["history"]) > 0
    assert summary["reconstruction_error"] > 0


def test_encode_writes_the_codes_of_the_model_and_decode_their_reconstructions(
    folder: Path, digits: Any
) -> None:
    model = auxbit.load("m.safetensors")
    run("encode", "m.safetensors", "base.npy", "--out", "codes.npy")
    np.testing.assert_array_equal(np.load("codes.npy"), model.encode(digits[300:]))
    run("decode", "m.safetensors", "codes.npy", "--out", "again.npy")
    np.testing.assert_allclose(np.load("again.npy"), model.decode(np.load("codes.npy")), rtol=1e-5)


def test_unpacked_codes_have_a_column_a_bit_and_decode_as_well(folder: Path, digits: Any) -> None:
    model = auxbit.load("m.safetensors")
    run("encode", "m.safetensors", "base.npy", "--out", "bits.npy", "--unpacked")
    np.testing.assert_array_equal(np.load("bits.npy"), model.transform(digits[300:]))
    run("decode", "m.safetensors", "bits.npy", "--out", "again.npy")
    np.testing.assert_allclose(np.load("again.npy"), model.inverse_transform(np.load("bits.npy")), rtol=1e-5)


def test_blocks_of_any_size_give_the_same_codes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("encode", "m.safetensors", "base.npy", "--out", "whole.npy")
    monkeypatch.setattr("auxbit.cli.tasks.BLOCK_BYTES", 1000)
    run("encode", "m.safetensors", "base.npy", "--out", "parts.npy")
    np.testing.assert_array_equal(np.load("whole.npy"), np.load("parts.npy"))


def test_hints_can_be_pasted_into_a_shell(folder: Path) -> None:
    Path("base.npy").rename("my base (1).npy")
    fitted = run("fit", "my base (1).npy", "-o", "a model", "--method", "lsh", "--bits", 8).stdout
    assert "Next: auxbit encode 'a model' 'my base (1).npy' --out codes.npy" in fitted
    encoded = run("encode", "a model", "my base (1).npy", "-o", "my codes.npy").stdout
    assert "Next: auxbit search 'a model' --base 'my codes.npy' --queries 'my base (1).npy'" in encoded


def test_info_names_the_parameters_that_could_not_be_saved(folder: Path, digits: Any) -> None:
    auxbit.BinaryAutoencoder(8, init=ITQ(8, random_state=0), max_iter=2, random_state=0).fit(digits).save("i")
    assert run_json("info", "i")["left_out"] == {"init": "ITQ"}
    assert "init=ITQ" in run("info", "i").stdout
    run("fit", "base.npy", "-o", "ba.safetensors", "--bits", 8, "--max-iter", 2)
    assert "left_out" not in run_json("info", "ba.safetensors")  # not the command's own progress bar


def test_one_of_several_arrays_is_chosen_as_the_message_says(folder: Path, digits: Any) -> None:
    np.savez("two.npz", a=digits[:50], b=digits[50:])
    fit = ("--method", "lsh", "--bits", 8, "-o", "new.safetensors")
    assert "on the command line as two.npz:a." in run("fit", "two.npz", *fit, code=1).stderr
    run("fit", "two.npz:a", *fit)


def test_info_says_what_a_model_is_and_how_it_was_trained(folder: Path) -> None:
    run("fit", "base.npy", "-o", "ba.safetensors", "--bits", 8, "--max-iter", 4)
    facts = run_json("info", "ba.safetensors")
    assert (facts["kind"], facts["class"], facts["bits"]) == ("model", "BinaryAutoencoder", 8)
    assert facts["iterations"] == 4
    assert "validation precision" in run("info", "ba.safetensors").stdout


def test_info_says_what_a_data_file_is(folder: Path) -> None:
    facts = run_json("info", "base.npy")
    assert (facts["rows"], facts["columns"], facts["dtype"]) == (1497, 64, "float32")
    assert (facts["smallest"], facts["largest"], facts["nan_or_infinite"]) == (0, 16, 0)


def test_demo_prints_the_table_and_writes_every_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auxbit.experiments.demo.SEEDS", (0,))
    result = run("demo", "--out", "demo")
    assert all(method in result.stdout for method in ("tPCA", "ITQ", "BFA", "BA"))
    written = {path.name for path in Path("demo").iterdir()}
    pictures = {"history.png", "precision.png", "digits.png"}
    assert written == {"model.safetensors", "codes.npy", "table.csv", "results.json"} | pictures
    table = {row["method"]: row for row in json.loads(Path("demo/results.json").read_text())["rows"]}
    assert table["BA"]["reconstruction_error"] < table["ITQ"]["reconstruction_error"]
    before = Path("demo/table.csv").read_bytes()
    assert "exists" in run("demo", "--out", "demo", code=1).stderr
    assert Path("demo/table.csv").read_bytes() == before


# ---- bad input


def test_nan_is_named_by_row_and_column(folder: Path, digits: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = digits[300:].copy()
    bad[700, 3] = np.nan
    np.save("bad.npy", bad)
    monkeypatch.setattr("auxbit.cli.tasks.BLOCK_BYTES", 64 * 4 * 100)
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
    assert result.stderr.startswith("warning: n_bits=8 is more than")
    assert json.loads(result.stdout)["n_bits"] == 8


# ---- real processes


def test_ctrl_c_exits_130_with_a_short_message_and_no_partial_file(folder: Path) -> None:
    np.lib.format.open_memmap("large.npy", mode="w+", dtype=np.float32, shape=(4_000_000, 64))  # all holes
    before = {path.name for path in folder.iterdir()}
    process = auxbit_process("encode", "m.safetensors", "large.npy", "--out", "codes.npy", cwd=folder)
    while process.poll() is None and not list(folder.glob(".codes*")):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert stdout == ""
    assert stderr.startswith("interrupted")
    assert "Traceback" not in stderr
    assert {path.name for path in folder.iterdir()} == before


def test_a_closed_pipe_is_quiet(folder: Path) -> None:
    search = ("search", "m.safetensors", "--base", "base.npy", "--queries", "base.npy", "--k", 200, "--json")
    process = auxbit_process(*search, cwd=folder)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    process.wait(timeout=60)


def test_a_long_fit_shows_progress_on_a_terminal_and_only_results_on_stdout(folder: Path) -> None:
    rows = np.random.RandomState(0).standard_normal((150_000, 60)).astype(np.float32)  # a second and more
    np.save("large.npy", rows)
    ours, theirs = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "auxbit.cli",
        "fit",
        "large.npy",
        "-o",
        "new.safetensors",
        "--max-iter",
        "8",
    ]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, cwd=folder, env=environment
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # Linux's way of saying that the other end is closed
                break
            if not part:
                break
            shown += part
        os.close(ours)
        assert process.stdout is not None
        printed = process.stdout.read().decode()
    assert process.returncode == 0
    assert b"fitting ba" in shown
    assert b"iteration" in shown
    assert b"Traceback" not in shown
    assert printed.startswith("model")
    assert "\x1b" not in printed
