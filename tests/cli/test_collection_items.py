"""`auxbit collection get`, `list`, `update`, `duplicates`, `index`; ids as text; `auxbit info`."""

from __future__ import annotations

import json
import shlex
import shutil
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auxbit import Collection
from helpers.cli_runner import run, run_json
from helpers.collection_runner import c, c_json, items, metadata_of, records, write_rows


@pytest.fixture(scope="session")
def texts(digits: Any, trained: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`docs`, a collection of 300 digits with ids doc-0 to doc-299, to be copied."""
    folder = tmp_path_factory.mktemp("docs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("m.safetensors").write_bytes(trained)
        write_rows("docs.jsonl", records(digits[:300]))
        rows = ("--data", "docs.jsonl", "--id-column", "id", "--model", "m.safetensors")
        c("create", "docs", *rows, "--vectors", "float32")
    return folder / "docs"


@pytest.fixture
def docs(place: Path, texts: Path) -> Path:
    """The working folder with a copy of `docs` in it."""
    shutil.copytree(texts, "docs")
    return place


def lines(command: str, *words: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in c(command, *words, "--json").stdout.splitlines()]


def one(id_: Any, folder: str = "docs") -> dict[str, Any]:
    with Collection.open(folder, read_only=True) as found:
        metadata: dict[str, Any] = found.metadata([id_])[0]
        return metadata


# ---- ids as they are typed


def test_text_ids_name_items_everywhere(docs: Path, digits: Any) -> None:
    found = c_json("search", "docs", "--id", "doc-5", "--k", 3)
    with Collection.open("docs") as opened:
        assert found["results"][0]["ids"] == opened.search(digits[5], 3).ids.tolist()
    assert found["results"][0]["ids"][0] == "doc-5"
    assert "doc-5" in c("search", "docs", "--id", "doc-5").stdout
    c("search", "docs", "-q", "queries.npy", "--k", 2, "--out", "found.npz")
    with np.load("found.npz") as written:
        assert written["ids"].shape == (300, 2)
        assert written["ids"][5, 0] == "doc-5"
    c("delete", "docs", "--ids", "doc-1,doc-2")
    Path("gone.txt").write_text("doc-3\ndoc-4\n")
    assert c_json("delete", "docs", "--ids-file", "gone.txt")["items"] == 296
    for command in (("get", "doc-1"), ("delete", "--ids", "doc-0,doc-1"), ("search", "--id", "doc-1")):
        said = c(command[0], "docs", *command[1:], code=1).stderr
        assert "id 'doc-1' is not in the collection" in said
    assert items("docs") == 296


def test_uuids_are_typed_as_text(place: Path, digits: Any) -> None:
    names = [uuid.UUID(int=row + 1) for row in range(20)]
    with Collection.create("uuids", digits[:20], method="itq", bits=8, ids=names) as made:
        made.update_metadata([names[3]], {"row": 3})
    assert lines("get", "uuids", names[3]) == [{"id": str(names[3]), "metadata": {"row": 3}}]
    assert c_json("search", "uuids", "--id", names[3], "--k", 1)["retrieved"] == 1
    assert "its ids are UUIDs" in c("get", "uuids", "three", code=1).stderr
    c("delete", "uuids", "--ids", ",".join(map(str, names[:5])))
    assert items("uuids") == 15


def test_ids_of_a_collection_of_text_may_look_like_numbers(place: Path, digits: Any) -> None:
    with Collection.create("numbers", digits[:20], method="itq", bits=8, ids=[str(n) for n in range(20)]):
        pass
    assert lines("get", "numbers", 7) == [{"id": "7", "metadata": {}}]
    Path("gone.txt").write_text("1\n2\n")
    c("delete", "numbers", "--ids-file", "gone.txt")
    assert items("numbers") == 18


# ---- get and list


def test_get_shows_items_with_all_of_their_metadata(docs: Path) -> None:
    shown = c("get", "docs", "doc-7", "doc-2").stdout
    assert shown.split("\n\n")[0] == "id     doc-7\nlabel  7\nname   item 7\neven   false\nrow    7"
    assert "item 2" in shown.split("\n\n")[1]
    rows = metadata_of(8)
    assert lines("get", "docs", "doc-7", "doc-2") == [
        {"id": "doc-7", "metadata": rows[7]},
        {"id": "doc-2", "metadata": rows[2]},
    ]
    assert "Missing argument" in c("get", "docs", code=2).stderr


def test_what_a_terminal_would_act_on_is_not_printed(docs: Path) -> None:
    with Collection.open("docs") as opened:
        opened.update_metadata(["doc-0"], {"name": "\x1b[31mred\x07"})
    for command in (("get", "doc-0"), ("list", "--limit", 1), ("search", "--id", "doc-0", "--k", 1)):
        shown = c(command[0], "docs", *command[1:]).stdout
        assert "red" in shown
        assert "\x1b" not in shown
        assert "\x07" not in shown


def test_list_shows_items_and_how_to_see_more(docs: Path) -> None:
    shown = c("list", "docs").stdout
    assert shown.split()[:5] == ["id", "label", "name", "even", "row"]
    assert len([line for line in shown.splitlines() if "item " in line]) == 20
    assert "20 of 300 items" in shown
    again = shown.splitlines()[-1]
    assert again == "auxbit collection list docs --offset 20"
    assert "item 20" in run(*shlex.split(again)[1:]).stdout
    assert [line["id"] for line in lines("list", "docs")] == [f"doc-{row}" for row in range(300)]


def test_list_takes_conditions_an_order_and_a_part(docs: Path) -> None:
    rows = metadata_of(300)
    wanted = [row for row in rows if row["label"] in (3, 4) and not row["row"] < 100]
    where = ("--where", "label=3,4 and not row<100")
    found = lines("list", "docs", *where)
    assert [line["metadata"] for line in found] == wanted
    falling = lines("list", "docs", *where, "--order", "-row", "--limit", 3, "--offset", 1)
    assert [line["metadata"] for line in falling] == wanted[::-1][1:4]
    shown = c("list", "docs", *where, "--order", "-row", "--limit", 2).stdout
    assert "2 of 40 items that fit" in shown
    assert shown.splitlines()[-1].endswith("--limit 2 --order -row --offset 2")
    assert "40 items that fit." in c("list", "docs", *where, "--offset", 30).stdout
    assert c("list", "docs", "--where", "label=11").stdout == "docs has no items that fit.\n"
    assert c("list", "docs", "--offset", 300).stdout == "None of 300 items.\n"


def test_a_field_that_no_item_has_is_said_once(docs: Path) -> None:
    for words in (("--where", "lable=3"), ("--order", "lable")):
        said = c("list", "docs", *words).stderr
        assert said.count("no item has the field 'lable'. Did you mean label?") == 1
    assert "'lable'" in c("delete", "docs", "--where", "lable=3", "--yes").stderr
    assert items("docs") == 300


# ---- update


def test_update_sets_and_removes_fields(docs: Path) -> None:
    sets = ("--set", "name=Ä, b", "--set", "row=1.5", "--set", 'tags=["a", "b"]', "--set", "where.city=Rome")
    shown = c("update", "docs", "--ids", "doc-1,doc-2", *sets, "--remove", "even").stdout
    assert shown == "docs: metadata of 2 items updated.\n"
    for row in (1, 2):
        assert one(f"doc-{row}") == {
            "label": row, "name": "Ä, b", "row": 1.5, "tags": ["a", "b"], "where": {"city": "Rome"},
        }  # fmt: skip
    assert one("doc-3") == metadata_of(4)[3]
    c("update", "docs", "--ids", "doc-1", "--set", "where.street=Via Appia", "--set", "row=null")
    assert one("doc-1")["where"] == {"city": "Rome", "street": "Via Appia"}
    assert "row" not in one("doc-1")
    done = c_json("update", "docs", "--where", "label=4 and row>=100", "--set", "seen=true")
    assert done == {"collection": "docs", "updated": 20}
    assert [line["metadata"]["row"] for line in lines("list", "docs", "--where", "seen=true")] == list(
        range(104, 300, 10)
    )
    assert c_json("search", "docs", "--id", "doc-1", "--k", 1)["results"][0]["distances"] == [0]


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_update_takes_rows_of_a_file(docs: Path, ending: str) -> None:
    rows = [{"id": "doc-5", "lang": "de", "row": 50}, {"id": "doc-6", "lang": "en", "row": 60}]
    write_rows(f"new.{ending}", rows)
    assert c_json("update", "docs", "--metadata", f"new.{ending}", "--id-column", "id")["updated"] == 2
    assert one("doc-5") == metadata_of(6)[5] | {"lang": "de", "row": 50}
    write_rows(f"plain.{ending}", [{"lang": "fr"}, {"lang": "it"}])
    c("update", "docs", "--metadata", f"plain.{ending}", "--ids", "doc-6,doc-5")
    assert (one("doc-6")["lang"], one("doc-5")["lang"]) == ("fr", "it")


def test_update_says_what_is_wrong_and_changes_nothing(docs: Path) -> None:
    write_rows("new.csv", [{"id": "doc-5", "lang": "de"}, {"id": "doc-x", "lang": "en"}])
    before = lines("list", "docs")
    by_id = ("--ids", "doc-1")
    for options, code, message in (
        ((), 2, "one of --ids, --ids-file, --where and --id-column"),
        (("--set", "a=1"), 2, "one of --ids, --ids-file, --where and --id-column"),
        ((*by_id, "--where", "row=1", "--set", "a=1"), 2, "one of --ids"),
        (by_id, 2, "give --set or --remove, or --metadata FILE"),
        ((*by_id, "--set", "a=1", "--metadata", "new.csv"), 2, "give --set or --remove, or --metadata"),
        ((*by_id, "--set", "a"), 2, "'a' is not like year=2010"),
        ((*by_id, "--set", "=1"), 2, "'=1' is not like year=2010"),
        ((*by_id, "--set", "a=1", "--set", "a=2"), 2, "'a' is given twice"),
        ((*by_id, "--set", "a=1", "--set", "a.b=2"), 2, "within a field that is set as well"),
        ((*by_id, "--set", "a=1", "--remove", "a"), 2, "'a' is given twice"),
        (("--id-column", "id", "--set", "a=1"), 2, "a column of --metadata FILE"),
        (("--where", "row=1", "--metadata", "new.csv"), 2, "rows of --metadata are for ids"),
        (("--ids", "doc-1,doc-x", "--set", "a=1"), 1, "id 'doc-x' is not in the collection"),
        (("--metadata", "new.csv", "--id-column", "id"), 1, "id 'doc-x' is not in the collection"),
        (
            ("--metadata", "new.csv", "--id-column", "key"),
            1,
            "no field 'key', the id of its item; it has 'id'",
        ),
        (("--metadata", "new.csv", *by_id), 1, "2 rows for 1 items"),
        (("--metadata", "now.csv", *by_id), 1, "Did you mean new.csv"),
    ):
        assert message in " ".join(c("update", "docs", *options, code=code).stderr.split())
    assert lines("list", "docs") == before


# ---- duplicates and index


def test_duplicates_are_those_of_the_codes(docs: Path, digits: Any) -> None:
    copies = [row | {"id": f"copy-{number}"} for number, row in enumerate(records(digits[:3]))]
    write_rows("copies.jsonl", copies)
    c("add", "docs", "--data", "copies.jsonl", "--id-column", "id")
    with Collection.open("docs") as opened:
        wanted = [group.tolist() for group in opened.duplicates(1)]
    found = c_json("duplicates", "docs", "--radius", 1)
    assert found["groups"] == wanted
    assert any({"doc-0", "copy-0"} <= set(group) for group in c_json("duplicates", "docs")["groups"])
    shown = c("duplicates", "docs").stdout
    assert "of 303 items are in" in shown
    assert "Next: auxbit collection get docs doc-" in shown
    assert "is invalid" in c("duplicates", "docs", "--radius", -1, code=2).stderr


def test_an_index_is_made_and_removed(docs: Path) -> None:
    where = ("--where", "label=3")
    before = lines("list", "docs", *where)
    assert c("index", "docs", "label").stdout == "docs: label has an index now.\n"
    assert run_json("info", "docs")["indexed"] == ["label"]
    assert lines("list", "docs", *where) == before
    assert c_json("index", "docs", "label", "--remove")["indexed"] is False
    assert run_json("info", "docs")["indexed"] == []
    assert "Did you mean label?" in c("index", "docs", "lable").stderr


# ---- info


def test_info_tells_what_a_collection_is(docs: Path) -> None:
    shown = run("info", "docs").stdout
    for line in ("kind        collection", "items       300", "ids         text", "method      ITQ"):
        assert line in shown.splitlines()
    assert "fields      even, label, name, row" in shown
    Path("plain").mkdir()
    assert "plain is not a collection" in run("info", "plain", code=1).stderr


def test_a_collection_of_an_older_version_is_named_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old").mkdir()
    Path("old", "manifest.jsonl").write_text("{}")
    said = "old was made by an older version of auxbit. Create it again from your vectors."
    for command in (("stats", "old"), ("list", "old"), ("add", "old", "--data", "x.npy")):
        assert said in c(*command, code=1).stderr
    assert said in run("info", "old", code=1).stderr
    assert said in run("images", "search", "old", "--id", 3, code=1).stderr
