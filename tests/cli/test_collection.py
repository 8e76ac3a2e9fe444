"""`auxbit collection`, `create` and `add`: what they make, print, refuse, and how they exit."""

from __future__ import annotations

import json
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
from auxbit import Collection, HammingIndex
from auxbit.cli.reference import reference
from auxbit.collection.storage import State
from auxbit.collection import collection as collections
from helpers.cli_runner import run
from helpers.collection_runner import c, c_json, items, metadata_of

COMMANDS = (
    "create", "add", "search", "get", "list", "update", "delete", "duplicates", "index", "stats", "compact",
    "retrain", "check", "upgrade",
)  # fmt: skip


def state() -> State:
    with Collection.open("papers", read_only=True) as papers:
        return papers.state


# ---- the group


def test_without_a_command_the_help_lists_them() -> None:
    shown = run("collection", code=2).output
    assert all(f"  {command}  " in shown for command in COMMANDS)
    assert "Did you mean 'search'?" in c("serch", code=2).stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_a_help_text(command: str) -> None:
    assert f"Usage: auxbit collection {command}" in c(command, "--help").stdout
    section = reference().split(f"## auxbit collection {command}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    assert lines
    assert all(len(line.split(" | ")[1]) > 10 for line in lines)


def test_help_is_there_without_importing_what_is_heavy() -> None:
    code = (
        "import sys\nfrom auxbit.cli.app import app\n"
        "try:\n    app(['collection', 'search', '--help'])\nexcept SystemExit:\n    pass\n"
        "print({'numpy', 'sklearn', 'numba', 'faiss'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize(
    "command",
    [
        ("search", "--id", 1), ("add", "--data", "base.npy"), ("delete", "--ids", 1), ("get", 1), ("list",),
        ("update", "--ids", 1, "--set", "a=1"), ("duplicates",), ("index", "a"), ("stats",), ("compact",),
        ("retrain",), ("check",),
    ],
    ids=lambda command: command[0],
)  # fmt: skip
def test_a_folder_that_is_no_collection_says_how_to_make_one(made: Path, command: tuple[object, ...]) -> None:
    missing = c(command[0], "paper", *command[1:], code=1).stderr
    assert "Did you mean papers?" in missing
    assert "`auxbit collection create`" in missing
    Path("plain").mkdir()
    assert "plain is not a collection" in c(command[0], "plain", *command[1:], code=1).stderr
    assert not any(Path("plain").iterdir())


# ---- create


def test_create_fits_a_model_and_adds_the_rows(place: Path, digits: Any) -> None:
    shown = c("create", "new", "--data", "base.npy", "--method", "itq", "--bits", 16).stdout
    assert "ITQ, fitted to base.npy" in shown
    assert shown.endswith("Next: auxbit collection search new --queries base.npy\n")
    with Collection.open("new") as new:
        assert len(new) == 1497
        assert type(new.model).__name__ == "ITQ"
        np.testing.assert_array_equal(new.codes(), new.model.encode(digits[300:]))


def test_create_fits_a_binary_autoencoder_of_32_bits_unless_told(place: Path) -> None:
    np.save("some.npy", np.load("base.npy")[:200])
    facts = c_json("create", "new", "--data", "some.npy", "--vectors", "float16")
    assert (facts["method"], facts["bits"], facts["vectors"], facts["items"]) == ("BA", 32, "float16", 200)
    with Collection.open("new") as new:
        assert new.model.get_params()["callback"] is None  # not the command's own progress bar


def test_create_takes_a_model_and_makes_an_empty_collection_without_data(place: Path) -> None:
    shown = c("create", "new", "--model", "m.safetensors").stdout
    assert "Next: auxbit collection add new --data rows.npy" in shown
    assert items("new") == 0
    assert "Nothing is found among 0 items" in c("search", "new", "-q", "queries.npy").stdout


def test_create_with_bits_alone_is_for_codes(place: Path) -> None:
    assert "add codes --data codes.npy --codes" in c("create", "codes", "--bits", 16).stdout
    c("add", "codes", "--data", "codes.npy")
    found = c_json("search", "codes", "--queries", "codes.npy", "--k", 3)
    index = HammingIndex(16)
    index.add(np.load("codes.npy"))
    assert [answer["ids"] for answer in found["results"]] == index.search(np.load("codes.npy"), 3)[1].tolist()
    assert "2 columns of uint8" in c("add", "codes", "--data", "base.npy", code=1).stderr
    c("create", "at once", "--bits", 16, "--data", "codes.npy", "--codes")
    assert c_json("search", "at once", "-q", "codes.npy", "--k", 3)["results"] == found["results"]


def test_optimal_codes_get_a_decoder_that_is_fitted_to_them(place: Path, digits: Any) -> None:
    some = digits[300:700]
    np.save("some.npy", some)
    facts = c_json("create", "o", "--data", "some.npy", "--model", "m.safetensors", "--coding", "optimal")
    assert facts["coding"] == "optimal"
    wanted = auxbit.load("m.safetensors").fit_decoder(some)
    with Collection.open("o") as new:
        np.testing.assert_array_equal(new.codes(), wanted.encode(some, coding="optimal"))
    shown = c("search", "o", "-q", "queries.npy").stdout
    assert "squared distance" in shown
    assert c_json("search", "o", "--id", 3)["mode"] == "hamming"  # its code is all there is
    tables = ("create", "t", "--data", "some.npy", "--method", "lsh", "--bits", 8, "--decoder", "tables")
    assert c_json(*tables)["coding"] == "optimal"
    with Collection.open("t") as new:
        assert hasattr(new.model.decoder_, "tables")
        new.model.save("t.safetensors")
    assert c_json("create", "again", "--model", "t.safetensors")["coding"] == "optimal"
    without = c("create", "n", "--model", "m.safetensors", "--coding", "optimal", code=1).stderr
    assert "Add --data FILE" in without


def test_create_replaces_only_a_collection_and_only_with_force(made: Path) -> None:
    assert "--force" in c("create", "papers", "--bits", 8, code=1).stderr
    assert items("papers") == 1497
    c("create", "papers", "--bits", 8, "--force")
    assert items("papers") == 0
    assert "not a collection" in c("create", "base.npy", "--bits", 8, "--force", code=1).stderr
    assert "not a folder" in c("create", "base.npy/x", "--bits", 8, code=1).stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "give --data FILE"),
        (("--model", "m.safetensors", "--bits", 8), "bits of its own"),
        (("--model", "m.safetensors", "--method", "itq"), "fitted already"),
        (("--bits", 8, "--method", "itq"), "add --data"),
        (("--bits", 8, "--metadata", "base.jsonl"), "rows of --data"),
        (("--bits", 8, "--vectors", "float16"), "without vectors to keep"),
        (("--bits", 8, "--coding", "optimal"), "made elsewhere"),
        (("--bits", 0), "1..8192"),
        (("--data", "codes.npy", "--codes"), "add --bits N"),
        (("--data", "base.npy", "--coding", "hash", "--decoder", "tables"), "drop --coding hash"),
        (("--data", "base.npy", "--method", "lsh", "--normalize"), "does not apply to --method lsh"),
        (("--data", "base.npy", "--method", "iqt"), "Did you mean itq?"),
        (("--data", "base.npy", "--vectors", "float8"), "not one of float32, float16, none"),
        (("--data", "base.npy", "--coding", "best"), "not one of hash, optimal"),
        (("--data", "base.npy", "--coding", "optimal", "--mu", -1), "mu=-1.0 is invalid"),
        (("--data", "base.npy", "--seed", -1), "0..4294967295"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_create_refuses_what_does_not_go_together(
    place: Path, options: tuple[object, ...], message: str
) -> None:
    assert message in " ".join(c("create", "new", *options, code=2).stderr.split())
    assert not Path("new").exists()


def test_what_is_wrong_with_the_data_is_found_before_a_collection_is_made(place: Path) -> None:
    np.save("narrow.npy", np.zeros((5, 63)))
    np.save("three.npy", np.arange(3))
    model = ("--model", "m.safetensors")
    for options, message in (
        (("--data", "narrow.npy", *model), "63 columns, and the collection is for vectors of 64"),
        (("--data", "queries.npy", "--metadata", "base.jsonl", *model), "1,497 rows, and queries.npy 300"),
        (("--data", "queries.npy", "--ids", "three.npy", *model), "3 rows, and queries.npy 300"),
        (("--data", "queries.npy", "--method", "itq", "--bits", 65), "at most 64"),
        (("--data", "querys.npy", *model), "Did you mean queries.npy"),
        (("--data", "codes.npy", "--vectors", "float16", *model), "codes.npy holds codes"),
    ):
        assert message in c("create", "new", *options, code=1).stderr
        assert not Path("new").exists()


# ---- add


def test_add_puts_vectors_or_codes_with_ids_and_metadata_in(made: Path, digits: Any) -> None:
    np.save("ids.npy", np.arange(5000, 5300))
    Path("q.csv").write_text("name,year\n" + "".join(f"query {row},{1900 + row}\n" for row in range(300)))
    shown = c("add", "papers", "--data", "queries.npy", "--ids", "ids.npy", "--metadata", "q.csv").stdout
    assert shown == "papers: 300 rows added; 1,797 items.\n"
    with Collection.open("papers") as papers:
        np.testing.assert_array_equal(papers.vectors(np.arange(5000, 5300)), digits[:300])
        assert papers.metadata([5007]) == [{"name": "query 7", "year": 1907}]
    known = c("add", "papers", "--data", "queries.npy", "--ids", "ids.npy", code=1).stderr
    assert "id 5000 is already in the collection" in known
    assert "--upsert" in known
    done = c_json("add", "papers", "--data", "queries.npy", "--ids", "ids.npy", "--upsert")
    assert (done["added"], done["replaced"], done["items"]) == (300, 300, 1797)
    assert "keeps vectors" in c("add", "papers", "--data", "codes.npy", code=1).stderr


def test_batches_of_any_size_give_the_same_collection(
    made: Path, monkeypatch: pytest.MonkeyPatch, digits: Any
) -> None:
    monkeypatch.setattr(collections, "BATCH_ROWS", 100)
    c("create", "parts", "--data", "base.npy", "--metadata", "base.jsonl", "--model", "m.safetensors")
    c("add", "parts", "--data", "queries.npy", "--from-row", 250)
    c("add", "papers", "--data", "queries.npy", "--from-row", 250)
    with Collection.open("parts") as parts, Collection.open("papers") as papers:
        np.testing.assert_array_equal(parts.ids, papers.ids)
        np.testing.assert_array_equal(parts.codes(), papers.codes())
        assert parts.metadata(parts.ids) == papers.metadata(papers.ids) == metadata_of(1497) + [{}] * 50


def test_nothing_is_added_where_something_does_not_fit(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collections, "BATCH_ROWS", 100)
    before = state()
    np.save("narrow.npy", np.zeros((300, 63)))
    np.save("twice.npy", np.append(np.arange(5000, 5299), 5000))
    np.save("known.npy", np.append(np.arange(5000, 5299), 7))
    np.save("floats.npy", np.arange(300.0))
    Path("bad.jsonl").write_text("{}\n" * 299 + "words\n")
    rows = ("--data", "queries.npy")
    for options, message in (
        (("--data", "narrow.npy"), "63 columns"),
        ((*rows, "--metadata", "base.jsonl"), "1,497 rows, and queries.npy 300"),
        ((*rows, "--metadata", "bad.jsonl"), "bad.jsonl, line 300"),
        ((*rows, "--metadata", "no.jsonl"), "no.jsonl"),
        ((*rows, "--ids", "twice.npy"), "twice.npy: id 5000 comes twice"),
        ((*rows, "--ids", "known.npy"), "id 7 is already in the collection"),
        ((*rows, "--ids", "floats.npy"), "must be integers"),
        ((*rows, "--ids", "know.npy"), "Did you mean known.npy"),
        ((*rows, "--ids", "base.jsonl"), "base.jsonl cannot be read as .npy"),
        ((*rows, "--codes"), "2 columns of uint8"),
    ):
        assert message in c("add", "papers", *options, code=1).stderr
        assert state() == before
    for options in ((*rows, "--from-row", 301), (*rows, "--from-row", -1), (*rows, "--upsert")):
        c("add", "papers", *options, code=2)


def test_an_error_in_the_middle_says_where_it_stopped_and_how_to_go_on(
    made: Path, digits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collections, "BATCH_ROWS", 100)
    bad = digits[:300].copy()
    bad[234, 5] = np.nan
    np.save("my rows.npy", bad)
    Path("m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metadata_of(300)))
    said = c("add", "papers", "--data", "my rows.npy", "--metadata", "m.jsonl", code=1).stderr.splitlines()
    assert said[0].startswith("200 of 300 rows are in.")
    assert "NaN at row 234, column 5" in said[2]
    assert items("papers") == 1697
    np.save("my rows.npy", digits[:300])
    resume = shlex.split(said[1])
    assert resume[:3] == ["auxbit", "collection", "add"]
    run(*resume[1:])
    with Collection.open("papers") as papers:
        np.testing.assert_array_equal(papers.vectors(np.arange(1497, 1797)), digits[:300])
        assert papers.metadata(np.arange(1497, 1797)) == metadata_of(300)


def test_a_create_that_fails_while_adding_says_how_to_go_on(place: Path, digits: Any) -> None:
    bad = digits[:300].copy()
    bad[7, 5] = np.inf
    np.save("bad.npy", bad)
    said = c("create", "new", "--data", "bad.npy", "--model", "m.safetensors", code=1).stderr
    assert "0 of 300 rows are in" in said
    assert "auxbit collection add new --data bad.npy --from-row 0\n" in said
    assert "inf at row 7, column 5" in said


def test_ctrl_c_loses_no_committed_row_and_the_command_it_prints_goes_on(made: Path) -> None:
    rows = np.lib.format.open_memmap("large.npy", mode="w+", dtype=np.float32, shape=(300_000, 64))  # holes
    rows[:, 0] = np.arange(300_000) % 17
    del rows
    c("create", "many", "--model", "m.safetensors")
    command = [sys.executable, "-m", "auxbit.cli", "collection", "add", "many", "--data", "large.npy"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not list(Path("many").glob("segment-*")):
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert stdout == ""
    assert "Traceback" not in stderr
    here = items("many")
    if here:
        resume = next(line for line in stderr.splitlines() if line.startswith("auxbit"))
        assert resume.endswith(f" --from-row {here}")
        run(*shlex.split(resume)[1:])
    else:  # it came before the first batch was committed
        c("add", "many", "--data", "large.npy")
    with Collection.open("many") as many:
        np.testing.assert_array_equal(many.ids, np.arange(300_000))
        expected = many.model.encode(np.load("large.npy", mmap_mode="r"))
        np.testing.assert_array_equal(many.codes(), expected)


def test_a_second_writer_is_told_who_writes(made: Path) -> None:
    with Collection.open("papers") as papers:
        papers.delete([0])
        for command in (("add", "--data", "queries.npy"), ("delete", "--ids", 1), ("compact",)):
            assert "is being written to by process" in c(command[0], "papers", *command[1:], code=1).stderr
        assert items("papers") == 1496
        assert len(c_json("search", "papers", "--id", 1)["results"][0]["ids"]) == 10
