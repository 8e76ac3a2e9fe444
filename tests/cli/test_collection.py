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
from auxbit.collection import collection as collections
from auxbit.collection.storage import State
from helpers.cli_runner import run
from helpers.collection_runner import c, c_json, items, metadata_of, records, write_rows

COMMANDS = (
    "create", "add", "search", "get", "list", "update", "delete", "duplicates", "index", "stats", "compact",
    "retrain", "check",
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
        assert new.state.by_decoder
        np.testing.assert_array_equal(new.codes(), new.model.encode(digits[300:], coding="optimal"))


def test_create_fits_a_binary_autoencoder_with_bits_for_half_of_the_dimensions(place: Path) -> None:
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
    wanted = auxbit.load("m.safetensors").fit_decoder(some, "auto")
    with Collection.open("o") as new:
        np.testing.assert_array_equal(new.codes(), wanted.encode(some, coding="optimal"))
    shown = c("search", "o", "-q", "queries.npy").stdout
    assert "squared distance" in shown
    like = c_json("search", "o", "--id", 3)  # what the decoder makes of its code is all there is
    assert (like["mode"], like["results"][0]["ids"][0]) == ("asymmetric", 3)
    for wrong in (("--radius", 2), ("--mode", "hamming")):
        assert (
            "optimal codes, chosen for the decoder alone"
            in c("search", "o", "-q", "queries.npy", *wrong, code=1).stderr
        )
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
    assert "Not a directory" in c("create", "base.npy/x", "--bits", 8, code=1).stderr


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
        (("--data", "base.npy", "--method", "iqt"), "Did you mean itq?"),
        (("--data", "base.npy", "--vectors", "float8"), "not one of float32, float16, none"),
        (("--data", "base.npy", "--coding", "best"), "not one of hash, optimal"),
        (("--data", "base.npy", "--coding", "optimal", "--mu", -1), "--mu=-1.0 is invalid"),
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
        (("--data", "narrow.npy", *model), "63 columns, but the collection is for vectors of 64"),
        (("--data", "queries.npy", "--metadata", "base.jsonl", *model), "1,497 metadata for the 300 rows"),
        (("--data", "queries.npy", "--ids", "three.npy", *model), "3 ids for the 300 rows of queries.npy"),
        (("--data", "queries.npy", "--method", "itq", "--bits", 65), "at most 64"),
        (("--data", "querys.npy", *model), "Did you mean queries.npy"),
        (("--data", "codes.npy", "--vectors", "float16", *model), "keeps vectors"),
        (("--data", "base.jsonl", *model), "no column of vectors: none of 'label', 'name', 'even', 'row'"),
        (("--data", "queries.npy", "--id-column", "id", *model), "holds only vectors, without columns"),
    ):
        assert message in c("create", "new", *options, code=1).stderr
        assert not Path("new").exists()


# ---- files with columns


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv", "arrow"])
def test_one_file_has_vectors_ids_and_metadata(place: Path, digits: Any, ending: str) -> None:
    file, rows = f"docs.{ending}", records(digits[:300])
    write_rows(file, rows)
    columns = ("--vectors-column", "vector", "--id-column", "id")
    shown = c("create", "docs", "--data", file, *columns, "--method", "itq", "--vectors", "float32").stdout
    assert "ids         text, as doc-0" in shown
    assert "metadata    even, label, name, row" in shown
    assert shown.endswith("Next: auxbit collection search docs --id doc-0\n")
    with Collection.open("docs") as docs:
        assert docs.ids.tolist() == [f"doc-{row}" for row in range(300)]
        np.testing.assert_array_equal(docs.vectors(docs.ids), digits[:300])
        assert docs.metadata(docs.ids) == metadata_of(300)
    some = ("--id-column", "id", "--metadata-columns", "name, row")
    c("create", "some", "--data", file, *some, "--model", "m.safetensors")
    none = ("--metadata-columns", "")
    assert c_json("create", "none", "--data", file, *none, "--model", "m.safetensors")["fields"] == []
    with Collection.open("some") as found:
        assert found.metadata(["doc-7"]) == [{"name": "item 7", "row": 7}]
    by_file = c_json("search", "docs", "-q", file, "--vectors-column", "vector", "--k", 3)
    assert by_file["results"] == c_json("search", "docs", "-q", "queries.npy", "--k", 3)["results"]


def test_more_rows_with_columns_are_added_and_replace_others(place: Path, digits: Any) -> None:
    rows = records(digits[:300])
    write_rows("docs.jsonl", rows[:200])
    write_rows("more.csv", rows[150:])
    by_id = ("--id-column", "id")
    c("create", "docs", "--data", "docs.jsonl", *by_id, "--model", "m.safetensors")
    assert "id 'doc-150' is already" in c("add", "docs", "--data", "more.csv", *by_id, code=1).stderr
    assert items("docs") == 200
    done = c_json("add", "docs", "--data", "more.csv", *by_id, "--upsert")
    assert (done["added"], done["replaced"], done["items"]) == (150, 50, 300)
    with Collection.open("docs") as docs:
        names = [f"doc-{row}" for row in range(300)]
        np.testing.assert_array_equal(docs.codes(names), docs.model.encode(digits[:300]))
        assert docs.metadata(names) == metadata_of(300)


def test_ids_without_types_are_read_as_the_collection_has_them(place: Path, digits: Any) -> None:
    rows = records(digits[:6])
    write_rows("docs.jsonl", rows)
    c("create", "docs", "--data", "docs.jsonl", "--id-column", "id", "--model", "m.safetensors")
    numbered = [row | {"id": str(number)} for number, row in enumerate(rows)]
    write_rows("numbers.csv", numbered)
    c("add", "docs", "--data", "numbers.csv", "--id-column", "id")
    np.save("six.npy", digits[:6])
    Path("six.txt").write_text("".join(f"{number}\n" for number in range(10, 16)))
    c("add", "docs", "--data", "six.npy", "--ids", "six.txt")
    with Collection.open("docs") as docs:
        assert docs.ids.tolist()[6:] == [*map(str, range(6)), *map(str, range(10, 16))]
    write_rows("numbers.jsonl", [row | {"id": number} for number, row in enumerate(rows)])
    mixed = c("add", "docs", "--data", "numbers.jsonl", "--id-column", "id", code=1).stderr
    assert "the collection's ids are text, but 0 is integer" in mixed
    c("create", "numbered", "--data", "six.npy", "--model", "m.safetensors")
    write_rows("docs.csv", rows)
    words = c("add", "numbered", "--data", "docs.csv", "--id-column", "id", code=1).stderr
    assert "'doc-0' cannot be an id of the collection: its ids are integers" in words


def test_what_is_wrong_with_columns_is_said_and_nothing_is_added(made: Path, digits: Any) -> None:
    rows = records(digits[:300])
    write_rows("docs.jsonl", rows)
    write_rows("mixed.jsonl", [row | {"id": n if n % 2 else row["id"]} for n, row in enumerate(rows)])
    write_rows("twice.jsonl", [row | {"id": f"doc-{n % 299}"} for n, row in enumerate(rows)])
    write_rows("narrow.jsonl", [row | {"vector": row["vector"][:-1]} for row in rows])
    write_rows(
        "ragged.jsonl", [row | {"vector": row["vector"][: 63 + (n != 7)]} for n, row in enumerate(rows)]
    )
    write_rows("both.jsonl", [row | {"other": row["vector"]} for row in rows])
    before, by_id = state(), ("--id-column", "id")
    for file, options, message in (
        ("docs", ("--id-column", "key"), "no column 'key'; it has 'id', 'vector', 'label', 'name', 'even'"),
        ("docs", ("--id-column", "ids"), "Did you mean id?"),
        ("docs", ("--vectors-column", "vectors"), "Did you mean vector?"),
        ("docs", ("--metadata-columns", "name,lable"), "no column 'lable'"),
        ("docs", ("--metadata-columns", "vector", "--vectors-column", "vector"), "leave it out"),
        ("docs", by_id, "the collection's ids are integers, but 'doc-0' is text"),
        ("mixed", by_id, "'doc-0' in row 0 and 1 in row 1: ids must be of one type"),
        ("twice", by_id, "the id 'doc-0' twice, in rows 0 and 299"),
        ("narrow", (), "63 columns, but the collection is for vectors of 64"),
        ("ragged", (), "a vector of 63 numbers in row 7"),
        ("both", (), "several columns of lists of numbers: 'vector', 'other'"),
    ):
        said = c("add", "papers", "--data", f"{file}.jsonl", *options, code=1).stderr
        assert message in said
        assert state() == before
    for options in (("--ids", "ids.npy", *by_id), ("--metadata", "m.csv", "--metadata-columns", "name")):
        assert "give one of them" in c("add", "papers", "--data", "docs.jsonl", *options, code=2).stderr


def test_a_collection_with_ids_as_text_asks_for_those_of_new_rows(place: Path, digits: Any) -> None:
    write_rows("docs.jsonl", records(digits[:300]))
    c("create", "docs", "--data", "docs.jsonl", "--id-column", "id", "--model", "m.safetensors")
    assert "--id-column" in c("add", "docs", "--data", "docs.jsonl", code=1).stderr
    assert items("docs") == 300


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
        ((*rows, "--metadata", "base.jsonl"), "1,497 metadata for the 300 rows of queries.npy"),
        ((*rows, "--metadata", "bad.jsonl"), "bad.jsonl, line 300"),
        ((*rows, "--metadata", "no.jsonl"), "no.jsonl"),
        ((*rows, "--ids", "twice.npy"), "twice.npy has the id 5000 twice, in rows 0 and 299"),
        ((*rows, "--ids", "known.npy"), "id 7 is already in the collection"),
        ((*rows, "--ids", "floats.npy"), "ids are integers, text or UUIDs"),
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


def test_a_create_that_fails_while_adding_says_how_to_go_on(
    place: Path, digits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collections, "BATCH_ROWS", 100)
    bad = digits[:300].copy()
    bad[107, 5] = np.inf
    write_rows("bad.parquet", records(bad))
    columns = ("--vectors-column", "vector", "--id-column", "id")
    said = c("create", "new", "--data", "bad.parquet", *columns, "--model", "m.safetensors", code=1).stderr
    assert "100 of 300 rows are in" in said
    again = next(line for line in said.splitlines() if line.startswith("auxbit"))
    assert again.endswith("new --data bad.parquet --vectors-column vector --id-column id --from-row 100")
    assert "inf at row 107, column 5" in said
    write_rows("bad.parquet", records(digits[:300]))
    run(*shlex.split(again)[1:])
    with Collection.open("new") as new:
        assert new.ids.tolist() == [f"doc-{row}" for row in range(300)]
        np.testing.assert_array_equal(new.codes(), new.model.encode(digits[:300]))


def test_a_create_whose_first_row_is_bad_leaves_nothing(place: Path, digits: Any) -> None:
    bad = digits[:300].copy()
    bad[7, 5] = np.inf
    np.save("bad.npy", bad)
    said = c("create", "new", "--data", "bad.npy", "--model", "m.safetensors", code=1).stderr
    assert "inf at row 7, column 5" in said
    assert "Resume" not in said
    assert not Path("new").exists()


def test_ctrl_c_loses_no_committed_row_and_the_command_it_prints_continues(made: Path) -> None:
    rows = np.lib.format.open_memmap("large.npy", mode="w+", dtype=np.float32, shape=(300_000, 64))  # holes
    rows[:, 0] = np.arange(300_000) % 17
    del rows
    c("create", "many", "--model", "m.safetensors")
    command = [sys.executable, "-m", "auxbit", "collection", "add", "many", "--data", "large.npy"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not Path("many/codes.0").exists():
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
