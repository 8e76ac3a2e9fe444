"""What is Milvus's and FAISS's own: other people's collections and files, names, limits."""

from __future__ import annotations

import json
import sqlite3

import numpy as np
import pytest

from auxbit import HammingIndex
from auxbit.errors import FileProblem, InvalidParameter
from auxbit.stores import StoreError, StoreExists, StoreUnreachable, connect, milvus
from helpers.index_truth import random_codes
from helpers.store_servers import PASSWORD, free_port, skip_without_milvus_file

pytest_plugins = ["helpers.store_fixtures"]
pytestmark = pytest.mark.xdist_group("stores")


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
                    StoreExists, match="'theirs' that auxbit has not made, and it is left alone"
                ):
                    attempt()
        assert theirs.has_collection("theirs")
        theirs.close()
        assert not store.exists


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
        with pytest.raises(StoreError, match=r"keeps one vector a row, the code: 2\.4 and later"):
            store.create(8, n_features=4)
        assert not store.exists


# ---- FAISS


def test_a_faiss_file_is_what_faiss_reads(tmp_path):
    import faiss

    codes = random_codes(50, 13)
    with connect(str(tmp_path / "c.faiss")) as store:
        store.create(13)
        store.add(codes, np.arange(50) * 3)
    index = faiss.read_index_binary(str(tmp_path / "c.faiss"))
    distances, ids = index.search(codes, 1)
    assert (distances == 0).all()
    assert set(ids.ravel().tolist()) <= set(range(0, 150, 3))


def test_a_file_that_auxbit_has_not_made_is_left_alone(tmp_path):
    path = tmp_path / "theirs.faiss"
    path.write_bytes(b"something")
    store = connect(str(path))
    for attempt in (lambda: store.create(8), lambda: store.create(8, overwrite=True), store.count):
        with pytest.raises(
            StoreExists, match=r"theirs\.faiss\.json beside it does not say that auxbit has made it"
        ):
            attempt()
    assert path.read_bytes() == b"something"


def test_a_damaged_file_is_told(tmp_path):
    path = tmp_path / "c.faiss"
    with connect(str(path)) as store:
        store.create(16)
        store.add(random_codes(5, 16), np.arange(5))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(FileProblem, match=r"c\.faiss cannot be read by FAISS"):
        connect(str(path)).count()
    path.write_bytes(content)
    note = path.with_name("c.faiss.json")
    note.write_text(json.dumps(json.loads(note.read_text()) | {"n_bits": 64}))
    with pytest.raises(FileProblem, match="has codes of 16 bits, not 64"):
        connect(str(path)).count()


def test_an_empty_file_is_not_sorted_into_lists(tmp_path):
    with connect(str(tmp_path / "c.faiss")) as store:
        store.create(8)
        with pytest.raises(StoreError, match="is empty: add codes before"):
            store.create_index("ivf")


def test_lists_can_be_made_again_of_what_is_in_lists(tmp_path):
    codes = random_codes(400, 32)
    with connect(str(tmp_path / "c.faiss"), n_probe=1000) as store:
        store.create(32)
        store.add(codes, np.arange(400))
        store.create_index("ivf", n_lists=8)
        store.add(codes[:10], np.arange(1000, 1010))
        store.create_index("ivf", n_lists=16)
        assert store.count() == 410
    with connect(str(tmp_path / "c.faiss")) as store:
        assert store.exact  # as many lists are looked at as there are
        store.n_probe = 15
        assert not store.exact
        store.n_probe = 16
        index = HammingIndex(32)
        index.add(np.vstack([codes, codes[:10]]), np.append(np.arange(400), np.arange(1000, 1010)))
        np.testing.assert_array_equal(store.search(codes[:20], 7)[0], index.search(codes[:20], 7)[0])


def test_what_could_not_be_written_is_not_there(tmp_path, monkeypatch):
    codes = np.arange(12, dtype=np.uint8).reshape(6, 2)
    with connect(str(tmp_path / "c.faiss")) as store:
        store.create(16)
        store.add(codes[:3], np.arange(3))

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as broken:
            broken.setattr("auxbit.core.files.os.replace", full)
            with pytest.raises(OSError, match="No space left"):
                store.add(codes[3:], np.arange(3, 6))
        assert store.count() == 3
        store.add(codes[3:], np.arange(3, 6))
        assert store.count() == 6
