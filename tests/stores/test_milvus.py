"""What is Milvus's own: other people's collections and files, names, limits."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest

from auxbit import HammingIndex
from auxbit.errors import FileProblem, InvalidInput, InvalidParameter
from auxbit.stores import StoreError, StoreExists, StoreUnreachable, connect, milvus
from auxbit.stores.push import of_arrays, push
from helpers.index_truth import random_codes
from helpers.store_servers import PASSWORD, free_port, skip_without_milvus_file

pytest_plugins = ["helpers.store_fixtures"]


@pytest.fixture
def file(store_folder):
    skip_without_milvus_file()
    return str(store_folder / "m.db")


def test_more_answers_than_milvus_gives_at_once_are_fetched_in_parts(file, monkeypatch):
    monkeypatch.setattr(milvus, "MOST_FOUND", 7)
    base = random_codes(100, 8)
    index = HammingIndex(8)
    index.add(base)
    with connect(file, "parts") as store:
        store.create(8)
        store.add(base, np.arange(100), metadata=[{"even": row % 2 == 0} for row in range(100)])
        for r in (0, 1, 3, 8):
            for ours, true in zip(
                store.search_radius(base[:4], r), index.search_radius(base[:4], r), strict=True
            ):
                np.testing.assert_array_equal(ours, true)
        even = np.arange(0, 100, 2)
        answers = store.search_radius(base[:4], 8, where={"even": True})
        for ours, true in zip(answers, index.search_radius(base[:4], 8, among=even), strict=True):
            np.testing.assert_array_equal(ours, true)
        with pytest.raises(
            InvalidParameter, match="k=8 is invalid: expected at most 7, which is all that Milvus"
        ):
            store.search(base[:1], 8)
        assert store.delete(np.arange(95)) == 95
        assert (store.search(base[:1], 8)[1][0] >= 0).sum() == 5


def test_a_file_that_only_a_failed_push_made_is_removed(tmp_path):
    skip_without_milvus_file()
    place = tmp_path / "new.db"
    with connect(str(place)) as store:
        assert not store.exists
        source = of_arrays(random_codes(2, 8), 8, metadata=[{}, {"a.b": 1}])
        with pytest.raises(InvalidInput, match=r"'a\.b' has a dot.*--without-metadata"):
            push(store, source)
    assert not place.exists()


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a b", 'x"; drop', "é", "x" * 256, 3])
def test_names_that_milvus_does_not_take_are_refused(file, name):
    with pytest.raises(InvalidParameter, match=r"name=.* expected letters, digits and _"):
        connect(file, name)


def test_a_collection_that_auxbit_has_not_made_is_left_alone(file):
    from pymilvus import MilvusClient

    with connect(file, "ours") as store:
        theirs = MilvusClient(file)
        theirs.create_collection("theirs", dimension=4)
        with connect(file, "theirs") as other:
            for attempt in (lambda: other.create(8), lambda: other.create(8, overwrite=True), other.count):
                with pytest.raises(
                    StoreExists, match="'theirs' was not made by auxbit, so it is not changed"
                ):
                    attempt()
        assert theirs.has_collection("theirs")
        theirs.close()
        assert not store.exists


def test_an_error_that_milvus_lite_does_not_explain_is_not_taken_for_a_server_that_is_gone(file, monkeypatch):
    def fails(*_, **__):
        raise client._driver.MilvusException(message="Retry timeout: 30.0s, StatusCode.UNKNOWN")

    with connect(file) as store:
        client = store._client
        monkeypatch.setattr(client.milvus, "insert", fails)
        with pytest.raises(StoreError, match=r"StatusCode\.UNKNOWN\. Is there room on the disk") as found:
            client.call("insert")
    assert not isinstance(found.value, StoreUnreachable)


def test_milvus_lite_says_that_it_has_no_approximate_index(file):
    with connect(file, "flat") as store:
        store.create(8)
        with pytest.raises(StoreError, match="Milvus Lite has no approximate index for bits"):
            store.create_index("ivf")


def test_a_database_of_somebody_else_is_left_alone(tmp_path):
    skip_without_milvus_file()
    path = tmp_path / "theirs.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE x (y)")
    database.close()
    before = path.read_bytes()
    with pytest.raises(FileProblem, match=r"theirs\.db is not a file of Milvus Lite, and is left alone"):
        connect(str(path))
    assert path.read_bytes() == before
    text = tmp_path / "text.db"
    text.write_text("not a database")
    with pytest.raises(FileProblem, match="is not a file of Milvus Lite"):
        connect(str(text))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a b.db", "a file name of up to 36 letters"),
        ("x" * 40 + ".db", "a file name of up to 36 letters"),
        ("nowhere/x.db", "there is no folder"),
        ("folder.db", "is a folder"),
    ],
)
def test_files_that_cannot_be_made_are_refused(tmp_path, name, why):
    skip_without_milvus_file()
    (tmp_path / "folder.db").mkdir()
    with pytest.raises((FileProblem, InvalidParameter), match=why):
        connect(str(tmp_path / name))


def test_a_milvus_that_is_not_there_is_told():
    with pytest.raises(StoreUnreachable, match=r"milvus://u@127\.0\.0\.1:\d+ cannot be reached") as found:
        connect(f"milvus://u:{PASSWORD}@127.0.0.1:{free_port()}", timeout=1.0)
    assert PASSWORD not in str(found.value)
    assert found.value.__cause__ is None


def test_a_server_before_2_4_says_that_it_keeps_no_other_vectors(places):
    with connect(places.url("milvus"), "two") as store:
        with pytest.raises(StoreError, match=r"keeps one vector per row, the code\. Use 2\.4 or later"):
            store.create(8, n_features=4)
        assert not store.exists
