"""Stores in files and folders: what is somebody else's is left alone, what is not there is not made."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import numpy as np
import pytest

from auxbit.errors import FileProblem, InvalidParameter
from auxbit.stores import StoreError, StoreExists, connect
from auxbit.stores.push import of_arrays, push
from helpers.index_truth import random_codes
from helpers.store_servers import EMBEDDED, skip_without

KINDS = [kind for kind in EMBEDDED if kind != "chdb"]  # of which a process can open one folder


@pytest.fixture(params=KINDS)
def path(request, tmp_path):
    skip_without(request.param)
    return tmp_path / EMBEDDED[request.param][0]


def test_a_search_of_what_is_not_there_makes_nothing(path):
    with connect(str(path)) as store:
        assert not store.exists
        with pytest.raises(
            StoreError, match=r"no table 'auxbit_codes' in .*: create it first \(auxbit store"
        ):
            store.count()
    assert not path.exists()


def test_what_was_made_is_removed_with_its_file_if_it_is_dropped_at_once(path):
    with connect(str(path)) as store:
        store.create(8)
        assert path.exists()
        store.drop()
    assert not path.exists()
    with connect(str(path)) as store:
        store.create(8)
    with connect(str(path)) as store:
        store.drop()
        assert not store.exists
    assert path.exists()  # it was there before


def test_codes_live_beside_other_tables_and_these_are_left_alone(tmp_path):
    skip_without("sqlite")
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE theirs (x)")
        database.execute("CREATE VIEW seen AS SELECT 1")
        database.commit()
    for name in ("theirs", "THEIRS", "seen"):
        with connect(f"sqlite:{path}", name) as store:
            for attempt in (lambda: store.create(8), lambda: store.create(8, overwrite=True), store.count):
                with pytest.raises(StoreExists, match="was not made by auxbit, so it is not changed"):
                    attempt()
    codes = random_codes(3, 16)
    with connect(f"sqlite:{path}", "codes") as store:
        store.create(16)
        store.add(codes, [1, 2, 3], metadata=[{"a": 1}, {}, {}])
    with closing(sqlite3.connect(path)) as database:  # anybody can read them
        rows = database.execute("SELECT id, code, metadata FROM codes ORDER BY id").fetchall()
        assert [row[1] for row in rows] == [code.tobytes() for code in codes]
        assert rows[0][2] == '{"a":1}'
        assert database.execute("SELECT count(*) FROM theirs").fetchone() == (0,)


def test_a_table_of_duckdb_that_auxbit_has_not_made_is_left_alone(tmp_path):
    skip_without("duckdb")
    import duckdb

    with duckdb.connect(str(tmp_path / "d.duckdb")) as database:
        database.execute("CREATE TABLE theirs (x INT)")
    with (
        connect(str(tmp_path / "d.duckdb"), "theirs") as store,
        pytest.raises(StoreExists, match="not made by auxbit"),
    ):
        store.create(8, overwrite=True)


def test_files_of_other_kinds_are_refused(path):
    path.write_text("no database" * 1000)
    with connect(str(path)) as store, pytest.raises((FileProblem, StoreError), match=path.name):
        store.create(8)
    assert path.read_text().startswith("no database")


@pytest.mark.parametrize("name", ["", "1a", "a-b", 'x"; DROP TABLE y', "é", "x" * 64, 3])
def test_names_that_would_need_quotes_are_refused(path, name):
    with pytest.raises(InvalidParameter, match=r"name=.* expected up to 63 letters, digits and _"):
        connect(str(path), name)


@pytest.mark.parametrize("name", ["select", "Order", "table"])
def test_a_keyword_of_sql_may_be_the_name(path, name):
    codes = random_codes(4, 16)
    with connect(str(path), name) as store:
        store.create(16)
        store.create(16, overwrite=True)
        store.add(codes, range(4), metadata=[{"row": row} for row in range(4)])
        assert store.delete([2]) == 1
        assert store.search(codes[1:2], 1)[1].tolist() == [[1]]
        assert store.count("row = 3") == 1
        assert store.metadata([3]) == [{"row": 3}]
        store.drop()


def test_a_folder_that_is_not_there_is_told(path):
    with pytest.raises(FileProblem, match="there is no folder"):
        connect(str(path.parent / "nowhere" / path.name))


def test_a_batch_goes_in_as_a_whole(path):
    codes = random_codes(4, 16)
    with connect(str(path)) as store:
        store.create(16)

        def fails(rows):
            raise KeyboardInterrupt

        if path.suffix == ".sqlite":
            with pytest.raises(KeyboardInterrupt):
                store.add(codes, np.arange(4), progress=fails)
            assert store.count() == 0
        store.add(codes, np.arange(4))
        assert store.count() == 4


def test_a_push_onto_a_full_disk_is_told_and_leaves_nothing(path, monkeypatch):
    resource = pytest.importorskip("resource", reason="this system has no limits of files")
    monkeypatch.setenv("XDG_STATE_HOME", str(path.parent / "state"))
    source = of_arrays(random_codes(20_000, 128), 128)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with connect(str(path)) as store:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
            with pytest.raises(StoreError, match=r" says: .*([Ff]ull|[Tt]oo large|I/O)"):
                push(store, source)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [each.name for each in path.parent.iterdir() if each.is_file() or each == path] == []
