"""`auxbit collection search`, `delete`, `stats`, `compact`, `retrain` and `check`."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auxbit
from auxbit import Collection
from auxbit.cli import collection
from helpers.collection_runner import c, c_json, items, metadata_of


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 255
    path.write_bytes(content)


# ---- search


def test_search_gives_the_answers_of_the_collection_with_their_metadata(made: Path, digits: Any) -> None:
    with Collection.open("papers") as papers:
        for options, arguments in (
            (("--k", 7), {"k": 7}),
            (("--mode", "asymmetric"), {"mode": "asymmetric"}),
            (("--k", 3, "--rerank", 50), {"k": 3, "rerank": 50}),
            (("--where", "label=3,4", "--where", "row>100"), {"where": {"label": [3, 4], "row": {">": 100}}}),
        ):
            found = c_json("search", "papers", "--queries", "queries.npy", *options)
            distances, ids = papers.search(digits[:300], **arguments)
            assert [answer["ids"] for answer in found["results"]] == ids.tolist()
            shown = [answer["distances"] for answer in found["results"]]
            np.testing.assert_allclose(shown, distances, rtol=1e-6)
            assert [answer["metadata"] for answer in found["results"][:3]] == [
                papers.metadata(near) for near in ids[:3]
            ]


def test_search_within_a_radius_finds_all(made: Path, digits: Any) -> None:
    found = c_json("search", "papers", "-q", "queries.npy", "--radius", 2, "-o", "found.npz")
    with Collection.open("papers") as papers, np.load("found.npz") as written:
        for name, wanted in zip(("lims", "distances", "ids"), papers.search_radius(digits[:300], 2)):
            np.testing.assert_array_equal(written[name], wanted)
    assert "results" not in found
    assert found["retrieved"] > 0


def test_search_writes_all_answers(made: Path) -> None:
    search = ("search", "papers", "-q", "queries.npy", "--where", "label=3", "--where", "row<40")
    whole = c_json(*search)
    shown = c(*search, "--out", "found.jsonl").stdout
    assert "290 queries more" in shown
    assert "Written to found.jsonl." in shown
    assert "--out" not in shown
    assert "--out FILE writes all of them" in c(*search).stdout
    assert "label=3  name=item " in shown
    lines = [json.loads(line) for line in Path("found.jsonl").read_text().splitlines()]
    assert [line.pop("query") for line in lines] == list(range(300))
    assert lines == whole["results"]
    assert [len(line["ids"]) for line in lines] == [4] * 300  # 3, 13, 23 and 33: fewer than k
    c(*search, "--out", "found.npz")
    with np.load("found.npz") as found:
        assert found["ids"].shape == (300, 4)
        assert found["ids"].tolist() == [line["ids"] for line in lines]
    assert "--force" in c(*search, "--out", "found.npz", code=1).stderr
    c(*search, "--out", "found.npz", "--force")


def test_one_query_is_shown_a_line_an_answer(made: Path) -> None:
    shown = c("search", "papers", "--id", 12, "--k", 3).stdout
    assert "label=2  name=item 12  even=true …" in shown
    assert len([line for line in shown.splitlines() if "name=item" in line]) == 3
    assert "metadata" not in c("search", "papers", "--id", 12, "--where", "nothing?").stdout
    shown = c("search", "papers", "--id", 12, "--k", 16).stdout
    assert "… and 6 items more.\n--out FILE writes all of them" in shown


def test_search_by_an_item_is_by_its_vector_or_else_by_its_code(made: Path, digits: Any) -> None:
    with Collection.open("papers") as papers:
        by_vector = c_json("search", "papers", "--id", 5, "--rerank", 100)["results"][0]
        assert by_vector["ids"] == papers.search(digits[305:306], rerank=100)[1][0].tolist()
        assert by_vector["ids"][0] == 5
    c("create", "codes", "--data", "base.npy", "--model", "m.safetensors")
    by_code = c_json("search", "codes", "--id", 5)["results"][0]
    assert by_code["ids"] == c_json("search", "papers", "--id", 5, "--rerank", 0)["results"][0]["ids"]
    by_decoder = c_json("search", "codes", "--id", 5, "--mode", "asymmetric")["results"][0]
    assert by_decoder["ids"][0] == by_code["ids"][0] == 5
    assert "keeps none" in c("search", "codes", "-q", "queries.npy", "--rerank", 50, code=1).stderr
    assert "id 1497 is not in the collection" in c("search", "papers", "--id", 1497, code=1).stderr


def test_where_that_finds_nothing_says_so(made: Path) -> None:
    shown = c("search", "papers", "-q", "queries.npy", "--where", "label=11").stdout
    assert shown == "Nothing is found among 1,497 items with label == 11.\n"


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ((), 2, "one of them"),
        (("-q", "queries.npy", "--id", 1), 2, "one of them"),
        (("-q", "queries.npy", "--k", 1, "--radius", 1), 2, "not both"),
        (("-q", "queries.npy", "--radius", 1, "--rerank", 9), 2, "a radius is of Hamming distance"),
        (("-q", "queries.npy", "--k", 0), 2, "--k=0 is invalid"),
        (("-q", "queries.npy", "--radius", -1), 2, "is invalid"),
        (("-q", "queries.npy", "--rerank", 5), 2, "--rerank=5 is invalid"),
        (("-q", "queries.npy", "--mode", "euclidean"), 2, "is not one of hamming, asymmetric"),
        (("-q", "queries.npy", "--where", "label"), 2, "label=cat"),
        (("-q", "queries.npy", "--out", "found.txt"), 2, ".npz or .jsonl"),
        (("-q", "narrow.npy"), 1, "63 columns, but the collection is for vectors of 64"),
        (("-q", "bad.npy"), 1, "NaN at row 1, column 2"),
        (("-q", "queries.npy", "--codes"), 1, "2 columns of uint8"),
        (("-q", "querys.npy"), 1, "Did you mean queries.npy"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_search_says_what_is_wrong(made: Path, options: tuple[object, ...], code: int, message: str) -> None:
    np.save("narrow.npy", np.zeros((5, 63)))
    bad = np.zeros((3, 64))
    bad[1, 2] = np.nan
    np.save("bad.npy", bad)
    assert message in " ".join(c("search", "papers", *options, code=code).stderr.split())


# ---- delete


def test_delete_by_ids_by_a_file_and_by_metadata(made: Path) -> None:
    shown = c("delete", "papers", "--ids", "1,2,3").stdout
    assert shown.startswith("papers: 3 items deleted, 1,494 left.\n")
    assert "auxbit collection compact papers" in shown
    np.save("gone.npy", np.array([10, 11]))
    assert c_json("delete", "papers", "--ids-file", "gone.npy")["items"] == 1492
    refused = c("delete", "papers", "--where", "label=4", code=2).stderr
    assert "Add --yes to delete them." in refused
    assert items("papers") == 1492
    done = c_json("delete", "papers", "--where", "label=4", "--where", "row<100", "--yes")
    assert (done["deleted"], done["items"]) == (10, 1482)
    with Collection.open("papers") as papers:
        kept = {row["row"] for row in papers.metadata(papers.ids)}
    gone = {1, 2, 3, 10, 11, *range(4, 100, 10)}
    assert kept == set(range(1497)) - gone
    assert c("delete", "papers", "--where", "label=99").stdout == "papers: 0 items deleted, 1,482 left.\n"


def test_delete_asks_before_it_deletes_by_metadata(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection, "_at_terminal", lambda: True)
    command = ("delete", "papers", "--where", "label=4")
    declined = c(*command, code=1, answer="n\n")
    assert "Delete 150 of 1,497 items?" in declined.stderr
    assert items("papers") == 1497
    c(*command, answer="y\n")
    assert items("papers") == 1347
    c("delete", "papers", "--where", "label=5", "--yes")
    assert items("papers") == 1197


def test_delete_says_what_is_wrong_and_deletes_nothing(made: Path) -> None:
    for options, code, message in (
        ((), 2, "one of --ids, --ids-file and --where"),
        (("--ids", 1, "--where", "label=1"), 2, "one of --ids, --ids-file and --where"),
        (("--ids", "1,two"), 1, "'two' cannot be an id of the collection: its ids are integers"),
        (("--ids", "1,1497"), 1, "id 1497 is not in the collection"),
        (("--where", "label=="), 0, "0 items deleted"),
        (("--where", ">3"), 2, "is invalid"),
        (("--ids-file", "none.npy"), 1, "does not exist"),
    ):
        result = c("delete", "papers", *options, code=code)
        assert message in " ".join(result.output.split())
    assert items("papers") == 1497


# ---- stats, compact, retrain


def test_stats_shows_sizes_and_that_retraining_is_not_due(made: Path) -> None:
    shown = c("stats", "papers").stdout
    for text in ("1,497", "ITQ", "float32", "reconstruction error", "effective bits", "fine", "metadata"):
        assert text in shown
    assert shown.splitlines()[-1].startswith("Retraining is not due")
    facts = c_json("stats", "papers")
    assert facts["bytes"]["vectors"] == 1497 * 64 * 4
    assert facts["retrain"] is False


def test_stats_says_that_retraining_is_due_and_by_which_command(made: Path, digits: Any) -> None:
    np.save("other.npy", 16 - digits[::-1])
    c("add", "papers", "--data", "other.npy")
    shown = c("stats", "papers").stdout
    assert "drifted" in shown
    assert "Retraining is due: " in shown
    assert shown.splitlines()[-1] == "Next: auxbit collection retrain papers"
    assert c_json("stats", "papers")["retrain"] is True
    assert "3,294 items have new codes, ITQ of 16 bits" in c("retrain", "papers").stdout
    assert "nothing has been added since the model was trained" in c("stats", "papers").stdout
    c("create", "codes", "--data", "base.npy", "--model", "m.safetensors")
    c("add", "codes", "--data", "other.npy")
    assert c("stats", "codes").stdout.endswith("auxbit collection retrain codes --data FILE\n")


def test_stats_says_why_nothing_can_be_compared(place: Path) -> None:
    c("create", "few", "--model", "m.safetensors")
    np.save("few.npy", np.load("queries.npy")[:50])
    c("add", "few", "--data", "few.npy")
    assert "cannot be told (50 rows" in c("stats", "few").stdout
    c("create", "codes", "--bits", 16)
    assert "there is no model to compare with" in c("stats", "codes").stdout


def test_compact_frees_the_room_of_what_is_deleted(made: Path) -> None:
    c("delete", "papers", "--where", "even=true", "--yes")
    before = c_json("search", "papers", "-q", "queries.npy")
    shown = c("compact", "papers").stdout
    assert "748 items; 749 deleted ones are gone" in shown
    done = c_json("compact", "papers")
    assert (done["items"], done["dropped"], done["damage"]) == (748, 0, [])
    assert c_json("stats", "papers")["bytes"]["vectors"] == 748 * 64 * 4
    assert c_json("search", "papers", "-q", "queries.npy") == before


def test_retrain_makes_codes_of_other_bits_methods_and_models(made: Path, digits: Any) -> None:
    auxbit.LSH(24, random_state=1).fit(digits).save("lsh.safetensors")
    for options, method, bits in (
        (("--bits", 8), "ITQ", 8),
        (("--method", "tpca"), "tPCA", 8),
        (("--method", "lsh", "--bits", 12), "LSH", 12),
        (("--model", "lsh.safetensors"), "LSH", 24),
    ):
        facts = c_json("retrain", "papers", *options)
        assert (facts["method"], facts["bits"], facts["items"]) == (method, bits, 1497)
        with Collection.open("papers") as papers:
            np.testing.assert_array_equal(papers.codes(), papers.model.encode(digits[300:]))
            assert papers.metadata([17]) == metadata_of(18)[17:]
    with Collection.open("papers") as papers:
        given = auxbit.load("lsh.safetensors")
        np.testing.assert_array_equal(papers.model.encode(digits[:5]), given.encode(digits[:5]))


def test_retrain_of_a_collection_without_vectors_takes_its_rows(place: Path, digits: Any) -> None:
    c("create", "codes", "--bits", 16, "--data", "codes.npy", "--codes")
    assert "--data FILE" in c("retrain", "codes", code=1).stderr
    assert "(--model)" in c("retrain", "codes", "--data", "base.npy", code=1).stderr
    assert (
        "each of the 1,497 items, in the order of ids; got 300"
        in c("retrain", "codes", "-d", "queries.npy", code=1).stderr
    )
    facts = c_json("retrain", "codes", "--data", "base.npy", "--model", "m.safetensors")
    assert (facts["method"], facts["dimensions"]) == ("ITQ", 64)
    c("add", "codes", "--data", "queries.npy")
    with Collection.open("codes") as codes:
        model = auxbit.load("m.safetensors")
        np.testing.assert_array_equal(codes.codes(), model.encode(np.vstack([digits[300:], digits[:300]])))


def test_retrain_keeps_the_coding_and_fits_the_decoder_to_it(place: Path, digits: Any) -> None:
    np.save("some.npy", digits[:200])
    model = ("--model", "m.safetensors")
    c(
        "create",
        "o",
        "--data",
        "some.npy",
        *model,
        "--coding",
        "optimal",
        "--mu",
        0.01,
        "--vectors",
        "float32",
    )
    for options in (model, ("--method", "tpca", "--bits", 8), ()):
        facts = c_json("retrain", "o", *options)
        assert (facts["coding"], facts["mu"]) == ("optimal", 0.01)
        with Collection.open("o") as found:
            wanted = found.model.encode(digits[:200], coding="optimal", mu=0.01)
            np.testing.assert_array_equal(found.codes(), wanted)
            assert found.model.training_.is_of("optimal", 0.01)


def test_retrain_says_what_is_wrong(made: Path, digits: Any) -> None:
    auxbit.LSH(8, random_state=0).fit(digits[:, :63]).save("narrow.safetensors")
    for options, code, message in (
        (("--model", "narrow.safetensors"), 1, "for rows of 63 numbers, but the collection for 64"),
        (("--model", "m.safetensors", "--bits", 8), 2, "fitted already"),
        (("--data", "base.npy"), 1, "keeps its vectors: leave out X (--data)"),
        (("--bits", 0), 2, "1..8192"),
        (("--bits", 65), 1, "at most 64"),
        (("--method", "iqt"), 2, "Did you mean itq?"),
    ):
        assert message in " ".join(c("retrain", "papers", *options, code=code).stderr.split())
    with Collection.open("papers") as papers:
        assert papers.n_bits == 16
    c("create", "empty", "--model", "m.safetensors", "--vectors", "float16")
    assert "is empty" in c("retrain", "empty", code=1).stderr


# ---- damage


def test_check_finds_nothing_in_a_whole_collection(made: Path) -> None:
    assert c("check", "papers").stdout.startswith("papers is whole: 1,497 items")
    assert c_json("check", "papers")["damage"] == []


def test_check_names_what_is_damaged_and_the_rest_can_be_kept(made: Path) -> None:
    c("add", "papers", "--data", "queries.npy")
    flip(Path("papers/vectors.0"), 100_000)
    shown = c("check", "papers", code=1).stdout
    assert "vectors.0" in shown
    assert "auxbit collection compact papers --skip-damaged" in shown
    found = json.loads(c("check", "papers", "--json", code=1).stdout)
    assert len(found["damage"]) == 1
    assert 0 < found["lost"] < 1797
    assert "--skip-damaged" in c("search", "papers", "-q", "queries.npy", "--rerank", 1797, code=1).stderr
    left = found["items"]
    assert left + found["lost"] == 1797
    search = c("search", "papers", "-q", "queries.npy", "--skip-damaged")
    assert search.stderr.startswith("warning: ")
    assert c_json("stats", "papers", "--skip-damaged")["items"] == left
    compacted = c("compact", "papers", "--skip-damaged")
    assert f"{found['lost']:,} deleted or damaged ones are gone" in compacted.stdout
    assert f"papers is whole: {left:,} items" in c("check", "papers").stdout


def test_a_damaged_model_is_named_and_can_be_replaced(made: Path) -> None:
    model = Path("papers/model.0.safetensors")
    flip(model, -10)
    shown = c("check", "papers", code=1).stdout
    assert model.name in shown
    assert "auxbit collection retrain papers --model MODEL" in shown
    assert "compact" not in shown
    c("retrain", "papers", "--model", "m.safetensors")
    assert "papers is whole: 1,497 items" in c("check", "papers").stdout


def test_a_missing_file_is_named(made: Path) -> None:
    Path("papers/codes.0").unlink()
    assert "papers/codes.0 is missing" in c("search", "papers", "--id", 1, code=1).stderr
    assert "codes.0" in c("check", "papers", code=1).stdout


def test_a_damaged_database_is_named(made: Path) -> None:
    database = Path("papers/collection.sqlite")
    content = database.read_bytes()
    database.write_bytes(content[:4096] + bytes(len(content) - 4096))
    assert "collection.sqlite" in c("check", "papers", code=1).output
    database.write_bytes(b"no database" * 1000)
    assert "collection.sqlite" in c("check", "papers", code=1).output


def test_items_whose_metadata_are_damaged_are_named_and_can_be_deleted(made: Path) -> None:
    with closing(sqlite3.connect("papers/collection.sqlite")) as database:
        database.execute("UPDATE items SET metadata = '{}' WHERE number = 7")
        database.commit()
    shown = c("check", "papers", code=1).stdout
    assert "item 7 does not match" in shown
    assert "auxbit collection delete papers --ids" in shown
    assert "compact" not in shown
    c("delete", "papers", "--ids", 7)
    assert "papers is whole: 1,496 items" in c("check", "papers").stdout


def test_a_collection_of_a_newer_version_says_what_to_install(made: Path) -> None:
    with closing(sqlite3.connect("papers/collection.sqlite")) as database:
        database.execute("PRAGMA user_version = 99")
    for command in (("check",), ("search", "--id", 1), ("list",), ("delete", "--ids", 1)):
        said = c(command[0], "papers", *command[1:], code=1).stderr
        assert "format 99" in said
        assert "pip install -U auxbit" in said
