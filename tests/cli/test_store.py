"""`auxbit store push` and `search`."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from auxbit import Collection, HammingIndex, load
from auxbit.cli.app import Commands, group
from auxbit.stores import push
from helpers.index_truth import random_codes
from helpers.store_servers import PASSWORD, free_port, skip_without_milvus_file

pytest_plugins = ["helpers.store_fixtures"]
pytestmark = pytest.mark.usefixtures("no_notes_at_home")

SMALL = typer.Typer(cls=Commands, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
SMALL.command()(lambda: None)  # a second command, so that the group keeps its name
SMALL.add_typer(group("store"), name="store")


def s(command, *words, code=0):
    result = CliRunner().invoke(SMALL, ["store", command, *map(str, words)], prog_name="auxbit")
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def s_json(command, *words):
    return json.loads(s(command, *words, "--json").stdout)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """codes.npy, ids.npy and rows.jsonl of 300 items in the working folder."""
    monkeypatch.chdir(tmp_path)
    np.save("codes.npy", random_codes(300, 24))
    np.save("ids.npy", np.arange(1000, 1300))
    with open("rows.jsonl", "w") as file:
        file.writelines(
            json.dumps({"label": "cat" if row % 3 else "dog", "row": row}) + "\n" for row in range(300)
        )
    return ("--ids", "ids.npy", "--metadata", "rows.jsonl")


@pytest.mark.parametrize("kind", ["pgvector", "milvus file", "sqlite", "duckdb", "lancedb"])
def test_codes_of_a_file_are_pushed_and_searched(files, kind, places, tmp_path):
    to = places.url(kind, tmp_path)
    named, more = ("--name", "from_cli"), files
    done = s_json("push", "codes.npy", "--to", to, *named, *more, "--force")
    assert (done["created"], done["pushed"], done["items"], done["bits"]) == (True, 300, 300, 24)
    assert s("push", "codes.npy", "--to", to, *named, *more).stdout.endswith("300 rows pushed; 300 items.\n")
    codes = np.load("codes.npy")
    index = HammingIndex(24)
    index.add(codes, np.arange(1000, 1300))
    np.save("queries.npy", codes[:5])
    found = s_json("search", "--to", to, *named, "--queries", "queries.npy", "--k", 4)
    assert [each["distances"] for each in found["results"]] == index.search(codes[:5], 4)[0].tolist()
    assert found["exact"] is True
    within = s_json("search", "--to", to, *named, "--queries", "queries.npy", "--radius", 6)
    assert within["retrieved"] == index.search_radius(codes[:5], 6)[0][-1]
    s("search", "--to", to, *named, "--queries", "queries.npy", "--out", "found.npz")
    np.testing.assert_array_equal(np.load("found.npz")["distances"], index.search(codes[:5], 10)[0])
    filtered = ("--where", "label=dog", "--where", "row>=100")
    found = s_json("search", "--to", to, *named, "--queries", "queries.npy", *filtered)
    rows = [row for answer in found["results"] for row in answer["metadata"]]
    assert len(rows) == 50
    assert all(row["label"] == "dog" and row["row"] >= 100 for row in rows)
    text = s("search", "--to", to, *named, "--queries", "queries.npy").stdout
    assert "label=dog" in text or "label=cat" in text


def test_a_collection_is_pushed_and_searched_by_its_model(made, places):
    to = ("--to", places.url("pgvector"), "--name", "papers")
    done = s_json("push", "papers", *to, "--with-vectors", "--index", "hnsw", "--force")
    assert (done["pushed"], done["vectors"], done["exact"]) == (1497, 64, False)
    with Collection.open("papers") as papers:
        X = np.load("queries.npy")
        wanted = papers.search(X, 10, mode="hamming")[0]
        by_codes = ("--model", "papers", "--exact", "--mode", "hamming")
        found = s_json("search", *to, "--queries", "queries.npy", *by_codes)
        assert [each["distances"] for each in found["results"]] == wanted.tolist()
        assert (found["store"], found["mode"]) == (f"papers in {places.url('pgvector')}", "hamming")
        decoded = ("--model", "papers", "--exact", "--rerank", 0, "--shortlist", 1497)
        found = s_json("search", *to, "--queries", "queries.npy", *decoded)
        assert (found["mode"], found["candidates"], found["rerank"]) == ("asymmetric", 1497, None)
        np.testing.assert_allclose(
            [each["distances"] for each in found["results"]],
            papers.search(X, 10, mode="asymmetric")[0],
            rtol=1e-3,
        )
        s(
            "search",
            *to,
            "-q",
            "queries.npy",
            "--model",
            "m.safetensors",
            "--rerank",
            1497,
            "--exact",
            "-o",
            "r.npz",
        )
        np.testing.assert_allclose(
            np.load("r.npz")["distances"], papers.search(X, 10, rerank=1497)[0], rtol=1e-3
        )
    approximate = s("search", *to, "--queries", "queries.npy", "--model", "papers", "--ef-search", 400).stdout
    assert "By an approximate index, which may miss neighbours." in approximate
    codes = load("m.safetensors").encode(X)
    np.save("some.npy", codes)
    found = s_json("search", *to, "--queries", "some.npy", "--exact")
    assert [each["distances"] for each in found["results"]] == wanted.tolist()


def test_an_interrupted_push_says_how_to_go_on(files, monkeypatch):
    class Stopped(KeyboardInterrupt):
        """As Ctrl-C does."""

    skip_without_milvus_file()
    from auxbit.stores.milvus import MilvusStore

    monkeypatch.setattr(MilvusStore, "batch_rows", 100)
    real, calls = MilvusStore.add, []

    def add(self, *arguments, **options):
        calls.append(1)
        if len(calls) == 3:
            raise Stopped
        real(self, *arguments, **options)

    monkeypatch.setattr(MilvusStore, "add", add)
    stopped = s("push", "codes.npy", "--to", "c.db", code=130)
    said = "200 of 300 rows are in. Resume with:\nauxbit store push codes.npy --to URL --resume\n"
    assert said in stopped.stderr
    went_on = s("push", "codes.npy", "--to", "c.db", "--resume").stdout
    assert went_on.endswith("100 rows pushed, after 200 before; 300 items.\n")


def test_a_collection_goes_into_any_store_without_its_metadata(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    skip_without_milvus_file()
    with Collection.create("odd", bits=8) as odd:
        odd.add(codes=random_codes(3, 8), metadata=[{"a.b": 1}, {}, {"n": 10**30}])
    refused = s("push", "odd", "--to", "c.db", code=1)
    assert "has a dot" in refused.stderr
    assert "--without-metadata" in refused.stderr
    np.save("q.npy", random_codes(3, 8)[[2]])
    missing = s("search", "--to", "c.db", "-q", "q.npy", code=1)  # nothing was left behind
    assert "there is no collection" in missing.stderr
    assert s_json("push", "odd", "--to", "c.db", "--without-metadata")["items"] == 3
    assert s_json("push", "odd", "--to", "c.sqlite")["items"] == 3  # which keeps all of it
    found = s_json("search", "--to", "c.sqlite", "-q", "q.npy", "-k", 1)
    assert found["results"][0]["metadata"] == [{"n": 10**30}]
    assert "SqliteStore" not in s("push", "odd", "--to", "c.sqlite").stdout


def test_mistakes_are_told_before_anything_happens(files, tmp_path):
    skip_without_milvus_file()
    (tmp_path / "folder").mkdir()
    with Collection.create("texts", bits=8) as texts:
        texts.add(codes=random_codes(2, 8), ids=["a", "b"])
    for words, why in [
        (["push", "codes.npy", "--to", "mysql://u:hidden@h/db"], "expected postgresql://user@host/database"),
        (["push", "codes.npy", "--to", "c.db", "--resume", "--force"], "what is replaced is begun again"),
        (["push", "codes.npy", "--to", "c.db", "--with-vectors"], "give --vectors FILE"),
        (["push", "folder", "--to", "c.db", "--ids", "ids.npy"], "a collection has its own: leave it out"),
        (["push", "codes.npy", "--to", "c.faiss"], "FAISS files are written by `auxbit export`"),
        (["push", "codes.npy", "--to", "c.db", "--bits", "9000"], "--bits=9000 is invalid"),
        (["search", "--to", "c.db", "-q", "codes.npy", "--k", "3", "--radius", "2"], "not both"),
        (["search", "--to", "c.db", "-q", "codes.npy", "--rerank", "3", "--radius", "2"], "drop --rerank"),
        (["search", "--to", "c.db", "-q", "codes.npy", "--ef-search", "9"], "--ef-search=9 is invalid"),
        (["search", "--to", "c.sqlite", "-q", "codes.npy", "--n-probe", "9"], "--n-probe=9 is invalid"),
        (["search", "--to", "c.db", "-q", "codes.npy", "--mode", "near"], "near"),
        (["push", "codes.npy", "--to", "c.db", "--without-metadata"], "leave --metadata out"),
        (["push", "codes.npy", "--to", "c.db", "--index", "hnws"], "'hnws' is not one of hnsw, ivf"),
        (
            ["push", "codes.npy", "--to", "c.sqlite", "--index", "hnsw"],
            "expected none: this store reads all codes",
        ),
        (
            ["search", "--to", "c.db", "-q", "codes.npy", "--out", "x.txt"],
            "a name that ends in .npz or .jsonl",
        ),
    ]:
        result = s(*words, code=2)
        assert why in " ".join(result.stderr.split()), result.stderr
        assert "hidden" not in result.stderr
    for words, why in [
        (["push", "nothing.npy", "--to", "c.db"], "nothing.npy does not exist"),
        (["push", "ids.npy", "--to", "c.db"], "ids.npy"),
        (["push", "folder", "--to", "c.db"], "is not a collection"),
        (["push", "texts", "--to", "c.db"], "the ids of texts are text, and stores keep integers"),
        (["push", "codes.npy", "--to", "c.db", "--bits", "20"], "bits set beyond the first 20"),
        (["push", "codes.npy", "--to", "c.db", "--index", "ivf"], "Milvus Lite has no approximate index"),
    ]:
        result = s(*words, code=1)
        assert why in " ".join(result.stderr.split()), result.stderr
    assert not (tmp_path / "c.db").exists()
    assert not (tmp_path / "c.sqlite").exists()


def test_a_server_that_is_not_there_is_told_without_the_password(files):
    to = f"postgresql://u:{PASSWORD}@127.0.0.1:{free_port()}/db"
    result = s("push", "codes.npy", "--to", to, code=1)
    assert "cannot be reached" in result.stderr
    assert PASSWORD not in result.stdout + result.stderr


def test_milvus_prints_no_tracebacks_beside_our_messages(files):
    skip_without_milvus_file()
    code = "import logging; from auxbit.cli.store import _connected; _connected('c.db', None).close(); "
    code += "print(logging.getLogger('pymilvus.decorators').isEnabledFor(logging.ERROR))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_the_store_may_be_named_by_the_environment(files, monkeypatch):
    skip_without_milvus_file()
    monkeypatch.setenv("AUXBIT_STORE", "c.db")
    assert s_json("push", "codes.npy")["items"] == 300


def test_files_that_changed_since_are_pushed_from_their_first_row(files):
    before = push.identity_of_files(["codes.npy", "ids.npy"], 24)
    np.save("ids.npy", np.arange(300))
    assert push.identity_of_files(["codes.npy", "ids.npy"], 24) != before
