"""Damage: a flipped bit is noticed before what it is in is used; the rest can be read, and repaired."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing, contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auxbit import Collection
from auxbit.collection.storage import DATABASE, State, write_state
from auxbit.core.files import CHUNK, integers
from auxbit.errors import AuxbitError, CollectionError, Damaged, InvalidInput
from auxbit.index.codes import runs_check
from auxbit.index.lists import map_arrays, write_arrays
from helpers.collection_truth import Contents, D, difference, model

SIZES = (4000, 300, 1700)  # rows added at a time: files of several chunks
WIDTH = 25  # bytes of a code
MODEL = "model.0.safetensors"


class Whole:
    """A collection before it is damaged: its contents by position, and the bytes of its files."""

    def __init__(self, path, *, text):
        self.path, rng = path, np.random.default_rng(0)
        n = sum(SIZES)
        X = rng.normal(size=(n, D)).astype(np.float32)
        ids = np.arange(n)
        ids[-500:] = ids[:500]  # replace the first, by an upsert
        if text:
            ids = np.array([f"item <{i}>" for i in ids], dtype=object)
        rows = [{"n": i, "text": f"row <{i}>"} if i % 5 else {} for i in range(n)]
        with Collection.create(path, model(3), vectors="float16", n_jobs=1) as collection:
            start = 0
            for size in SIZES:
                some = slice(start, start + size)
                collection.add(
                    X[some], ids=ids[some], metadata=rows[some], upsert=True,
                    attachments=[f"attached <{i}>".encode() for i in range(n)[some]],
                )  # fmt: skip
                start += size
            collection.delete(ids[1000:1100])
            self.positions = Contents(
                200,
                3,
                ids,
                model(3).encode(X),
                tuple(rows),
                X.astype(np.float16),
                collection.state.next_number,
            )
        self.here = np.ones(n, bool)
        self.here[:500] = self.here[1000:1100] = False
        self.bytes = {each.name: each.read_bytes() for each in path.iterdir()}

    def contents(self, lost=()):
        """What is there without lost positions."""
        here = self.here.copy()
        here[list(lost)] = False
        return self.positions.at(np.flatnonzero(here))

    def lost_rows(self, name, damaged):
        """The slow truth: rows with a byte in 64 KB of a flat file that are not as they were."""
        full, row = (len(self.here) // 64 * 64 * WIDTH, 64 * WIDTH) if "codes" in name else (None, 2 * D)
        content = self.bytes[name][:full]
        lost = set()
        for start in range(0, len(content), CHUNK):
            chunk = slice(start, min(start + CHUNK, len(content)))
            if damaged is None or damaged[chunk] != content[chunk]:
                first, last = chunk.start // row, -(-chunk.stop // row)
                each = 64 if "codes" in name else 1
                lost |= set(range(first * each, min(last * each, len(self.here))))
        return lost

    @contextmanager
    def damaged(self, files):
        """These files have other bytes, or are missing (None), until the end of the block."""
        try:
            for name, content in files.items():
                (self.path / name).unlink()
                if content is not None:
                    (self.path / name).write_bytes(content)
            yield
        finally:
            for name in os.listdir(self.path):
                (self.path / name).unlink()
            for name, content in self.bytes.items():
                (self.path / name).write_bytes(content)


@pytest.fixture(scope="module", params=["integers", "text"])
def whole(request, tmp_path_factory):
    return Whole(tmp_path_factory.mktemp("damage") / "c", text=request.param == "text")


@pytest.fixture(scope="module")
def text_whole(tmp_path_factory):
    return Whole(tmp_path_factory.mktemp("damage") / "c", text=True)


def flipped(content, place, bit):
    return content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]


# ---- noticed


def readings(truth):
    """What can be read of a collection, each with whether it is right."""
    queries = truth.vectors[:3].astype(np.float32)
    some = truth.ids[[0, 700, -1]]
    return {
        "ids": lambda c: c.ids.tolist() == truth.ids.tolist(),
        "codes": lambda c: np.array_equal(c.codes(), truth.codes),
        "metadata": lambda c: c.metadata(truth.ids) == list(truth.rows),
        "vectors": lambda c: np.array_equal(c.vectors(truth.ids), truth.vectors),
        "search": lambda c: c.search(codes=truth.codes[:3], k=1)[1][:, 0].tolist() == truth.ids[:3].tolist(),
        "model": lambda c: np.array_equal(c.model.encode(queries), model(3).encode(queries)),
        "numbering": lambda c: c.state.next_number == truth.next_number,
        "items": lambda c: [each["id"] for each in c.get(some)] == some.tolist(),
    }


def noticed_or_harmless(whole, *names, by_check=()):
    """What errors and `check` say of a collection as it is now; nothing that is read may be wrong.

    by_check : what may be wrong, if `check` finds it.
    """
    noticed, wrong = [], []
    try:
        with Collection.open(whole.path, n_jobs=1) as collection:
            for reading, is_right in readings(whole.contents()).items():
                try:
                    wrong += [] if is_right(collection) else [reading]
                except AuxbitError as error:
                    # an id that is not found: an index of SQLite is damaged
                    missing = isinstance(error, InvalidInput) and "is not in the collection" in str(error)
                    noticed.append(DATABASE if missing else str(error))
            found = collection.check()
    except AuxbitError as error:
        noticed, found = [str(error)], [str(error)]
    for text in noticed + found:
        assert any(name in text for name in names) or "has format" in text, text
    assert set(wrong) <= set(by_check)
    assert found or not (noticed or wrong), f"not found by check: {noticed or wrong}"
    return noticed, found


@pytest.mark.parametrize("name", ["codes.0", "vectors.0", MODEL])
@settings(max_examples=5)
@given(share=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_in_a_flat_file_is_noticed_and_its_file_named(whole, name, share, bit):
    content = whole.bytes[name]
    place = int(share * len(content))
    with whole.damaged({name: flipped(content, place, bit)}):
        noticed, found = noticed_or_harmless(whole, name)
    behind_the_end = name == "codes.0" and place >= len(whole.here) // 64 * 64 * WIDTH
    assert bool(noticed) == bool(found) == (not behind_the_end)


@settings(max_examples=25)
@given(data=st.data())
def test_a_flipped_bit_in_the_database_is_noticed_or_does_no_harm(whole, data):
    content = whole.bytes[DATABASE]
    pages = len(content) // 4096
    regions = [
        (0, 100),
        (100, 4096),
        (4096, 20 * 4096),
        *((4096 * i, 4096 * i + 60) for i in range(1, pages)),
    ]
    start, stop = data.draw(st.sampled_from(regions))
    place, bit = data.draw(st.tuples(st.integers(start, stop - 1), st.integers(0, 7)))
    # whether an item whose id is its number has a row is not known: SQLite may lose one, if damaged inside
    by_check = () if whole.positions.text else ("metadata", "ids", "search", "items")
    with whole.damaged({DATABASE: flipped(content, place, bit)}):
        noticed_or_harmless(whole, DATABASE, by_check=by_check)


def places_of(content, text):
    at, found = content.find(text), []
    while at >= 0:
        found.append(at)
        at = content.find(text, at + 1)
    return found


@pytest.mark.parametrize("what", ["metadata", "ids", "attachments", "last codes"])
def test_a_flipped_bit_in_what_the_database_holds_is_noticed_and_named(text_whole, what):
    whole, rng = text_whole, np.random.default_rng(0)
    content = whole.bytes[DATABASE]
    with closing(sqlite3.connect(whole.path / DATABASE)) as database:
        last_codes = database.execute("SELECT value FROM settings WHERE name = 'last_codes'").fetchone()[0]
    text = {
        "metadata": b"row <2222>",
        "ids": b"item <2222>",
        "attachments": b"attached <2222>",
        "last codes": last_codes[:64],
    }[what]
    places = places_of(content, text)
    assert len(places) == (2 if what == "ids" else 1)  # in the table and in its index
    for at in places:
        for _ in range(3):
            place = at + int(rng.integers(len(text)))
            changed = flipped(content, place, int(rng.integers(8)))
            with whole.damaged({DATABASE: changed}):
                noticed, found = noticed_or_harmless(whole, DATABASE)
            assert found
            assert noticed or what == "attachments"
    if what == "attachments":
        with (
            whole.damaged({DATABASE: changed}),
            Collection.open(whole.path) as collection,
            pytest.raises(Damaged, match=r"the attachment of item .*2222.* does not match its checksum"),
        ):
            collection.attachment(whole.positions.ids[2222])


NUMBERS = [("stretches", name) for name in ("first_position", "count", "first_number")]
NUMBERS += [("deleted", name) for name in ("in_commit", "first_number", "count")]
NUMBERS += [("checks", name) for name in ("chunk", "checksum")]
SETTINGS = ("n_bits", "positions", "deleted", "next_number", "own_ids", "commit", "layout")
NUMBERS += [(f"settings WHERE name = '{name}'", "value") for name in SETTINGS]


@pytest.mark.parametrize(("table", "column"), NUMBERS)
@pytest.mark.parametrize("bit", [0, 20])
def test_another_number_in_the_database_is_noticed(text_whole, table, column, bit):
    with text_whole.damaged({}):
        with closing(sqlite3.connect(text_whole.path / DATABASE, isolation_level=None)) as database:
            rows = database.execute(f"SELECT {column} FROM {table}").fetchall()
            (value,) = rows[-1]
            one = (
                f"{table} AND {column} = {value}" if "WHERE" in table else f"{table} WHERE {column} = {value}"
            )
            database.execute(
                f"UPDATE {one} ".replace(" WHERE", f" SET {column} = {value ^ 1 << bit} WHERE", 1)
            )
        noticed, found = noticed_or_harmless(text_whole, DATABASE, "codes.0", "vectors.0")
        assert noticed
        assert found


# ---- the rest


def damage(whole, how, rng):
    """Some files of a collection, damaged, and the positions that are lost by it."""
    name = f"{how.split()[0]}.0"
    if how in ("item", "id"):
        text = b"row <%d>" if how == "item" else b"item <%d>"
        row = int(rng.integers(500, 1000))
        at = places_of(whole.bytes[DATABASE], text % row)[0]
        damaged = flipped(whole.bytes[DATABASE], at + int(rng.integers(5)), int(rng.integers(8)))
        return {DATABASE: damaged}, {row} if whole.here[row] and (how == "id" or row % 5) else set()
    if how == "several":
        every = [damage(whole, each, rng) for each in ("codes flip", "vectors flip", "item")]
        return every[0][0] | every[1][0] | every[2][0], every[0][1] | every[1][1] | every[2][1]
    content = whole.bytes[name]
    at = int(rng.integers(CHUNK, len(content) // 2))
    changed = {
        "flip": flipped(content, at, int(rng.integers(8))),
        "cut": content[:at],
        "longer": content + b"more",
        "missing": None,
    }[how.split()[1]]
    return {name: changed}, whole.lost_rows(name, changed)


HOW = [f"{name} {how}" for name in ("codes", "vectors") for how in ("flip", "cut", "longer", "missing")]


EVERY = [("integers", how) for how in [*HOW, "several", "item"]]
EVERY += [("text", how) for how in ("codes flip", "vectors missing", "several", "item", "id")]


@pytest.mark.parametrize(("whole", "how"), EVERY, indirect=["whole"])
def test_the_rest_of_a_damaged_collection_is_exactly_what_is_not_damaged(whole, how):
    files, lost = damage(whole, how, np.random.default_rng(len(how)))
    expected = whole.contents(lost)
    by_field = [id_ for id_, row in zip(expected.ids.tolist(), expected.rows) if row.get("n", 9000) < 2000]
    with whole.damaged(files):
        with Collection.open(whole.path, damaged="skip", n_jobs=1) as rest:
            assert difference(rest, expected) == ""
            assert rest.search(codes=whole.positions.codes[:1], k=9000, where="n<2000").ids.size == len(
                by_field
            )
            assert bool(rest.damage) == bool(rest.lost) == bool(lost)
            assert rest.lost == whole.here.sum() - len(expected.ids)
            assert rest.holds(whole.positions.ids).sum() == np.isin(whole.positions.ids, expected.ids).sum()
            with pytest.raises(InvalidInput, match="skip"):
                rest.delete(expected.ids[:1])
            rest.compact()
            assert rest.damage == []
            assert difference(rest, expected) == ""
        with Collection.open(whole.path, n_jobs=1) as again:
            assert difference(again, expected) == ""
            assert again.check() == []
            if by_field:
                assert [each["id"] for each in again.list("n<2000", limit=None)] == by_field
            gone = whole.positions.at(np.array(sorted(lost), dtype=np.int64)[:3])
            gone = gone.without(expected.ids)
            if len(gone.ids):  # what was lost can be added again
                again.add(gone.vectors.astype(np.float32), codes=gone.codes, ids=gone.ids)
            assert len(again) == len(expected.ids) + len(gone.ids)


def test_a_change_of_a_damaged_collection_is_refused_and_makes_it_no_worse(whole):
    content = whole.bytes["vectors.0"]
    damaged = {"vectors.0": flipped(content, len(content) // 2, 0)}
    new = ["new"] if whole.positions.text else None
    with whole.damaged(damaged), Collection.open(whole.path, n_jobs=1) as collection:
        with pytest.raises(Damaged, match=r"vectors\.0"):
            collection.compact()
        with pytest.raises(Damaged, match=r"vectors\.0"):
            collection.retrain(model(0))
        X = whole.positions.vectors[:1].astype(np.float32)
        collection.add(X, codes=whole.positions.codes[:1], ids=new)
        assert len(collection) == len(whole.contents().ids) + 1
        assert ["vectors.0" in line for line in collection.check()] == [True]


def test_metadata_that_are_damaged_are_not_updated(whole):
    content = whole.bytes[DATABASE]
    changed = flipped(content, content.find(b"row <2222>"), 0)
    id_ = whole.positions.ids[2222:2223]
    with whole.damaged({DATABASE: changed}), Collection.open(whole.path, n_jobs=1) as collection:
        for change in (lambda: collection.update_metadata(id_, {"m": 1}), lambda: collection.metadata(id_)):
            with pytest.raises(Damaged, match=r"2222.* does not match its checksum"):
                change()


# ---- what is no collection


def search_in(path, whole):
    with Collection.open(path, n_jobs=1) as collection:
        collection.search(whole.positions.vectors[:1].astype(np.float32), rerank=True)


def test_what_is_missing_or_no_collection_is_named(whole, tmp_path):
    for name in set(whole.bytes) - {"writer.lock"}:
        message = name if name != DATABASE else "is not a collection"
        with whole.damaged({name: None}), pytest.raises(AuxbitError, match=message):
            search_in(whole.path, whole)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("hello")
    for name, message in (
        ("empty", "is not a collection"), ("file", "is not a collection"), ("nowhere", "does not exist")
    ):  # fmt: skip
        for options in ({}, {"damaged": "skip"}, {"read_only": True}):
            with pytest.raises(CollectionError, match=f"{name} {message}"):
                Collection.open(tmp_path / name, **options)


def test_a_folder_in_the_place_of_a_file_is_named(whole, tmp_path):
    for name in set(whole.bytes) - {"writer.lock"}:
        path = tmp_path / name
        shutil.copytree(whole.path, path)
        (path / name).unlink()
        (path / name).mkdir()
        with pytest.raises(AuxbitError, match=name if name != DATABASE else "is not a collection"):
            search_in(path, whole)


def test_a_database_of_somebody_else_or_of_a_newer_version_is_refused(tmp_path):
    Collection.create(tmp_path / "c", bits=8).close()
    path = tmp_path / "c" / DATABASE
    whole = path.read_bytes()
    for version, message in (
        (5, r"has format 5 .* this version reads 4\. Upgrade: pip install"),
        (2, r"was made by an older version of auxbit. Create it again from your vectors"),
    ):
        with sqlite3.connect(path) as other:
            other.execute(f"PRAGMA user_version = {version}")
        other.close()
        with pytest.raises(CollectionError, match=message):
            Collection.open(tmp_path / "c")
    path.write_bytes(whole)
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA application_id = 0")
    other.close()
    with pytest.raises(CollectionError, match="is a database, but not that of an auxbit collection"):
        Collection.open(tmp_path / "c")
    for content, message in ((b"", "not that of an aux"), (b"no database " * 99, "file is not a database")):
        path.write_bytes(content)
        with pytest.raises(CollectionError, match=message):
            Collection.open(tmp_path / "c")


# ---- files that are cut short, or crafted, under a collection that is open

ROWS = np.random.default_rng(5).normal(size=(1000, 16)).astype(np.float32)


@pytest.mark.parametrize("options", [{"coding": "hash", "method": "itq"}, {"lists": 4, "vectors": "float32"}])
def test_a_file_that_is_cut_short_under_a_reader_is_an_error_and_not_its_end(tmp_path, options):
    Collection.create(tmp_path / "c", ROWS, bits=16, n_jobs=1, **options).close()
    with Collection.open(tmp_path / "c", n_jobs=1) as collection:
        assert collection.search(ROWS[:3], k=1).ids.ravel().tolist() == [0, 1, 2]
        for name in ("lists.0", "vectors.0", "codes.0"):
            if (path := tmp_path / "c" / name).exists():
                content = path.read_bytes()
                os.truncate(path, 64)
                with pytest.raises(Damaged, match="was cut short while it was in use"):
                    collection.search(ROWS[:3], k=1)
                path.write_bytes(content)
                assert collection.search(ROWS[:3], k=1).ids.ravel().tolist() == [0, 1, 2]


@pytest.mark.parametrize("coding", ["hash", "optimal"])
def test_crafted_lists_are_not_searched(tmp_path, coding):
    Collection.create(tmp_path / "c", ROWS, bits=16, lists=4, coding=coding, n_jobs=1).close()
    path = tmp_path / "c" / "lists.0"
    about, arrays = map_arrays(path)
    arrays = {name: array.copy() for name, array in arrays.items()}
    with Collection.open(tmp_path / "c", n_jobs=1) as collection:
        truth = collection.search(ROWS[:9], k=3)
    spoilt = [
        arrays | {"order": arrays["order"] + np.uint32(1000)},
        arrays | {"order": arrays["order"].astype(np.float64)},
        arrays | {"starts": arrays["starts"][::-1].copy()},
        arrays | {"starts": arrays["starts"] * 2**40},
        arrays | {"planes": arrays["planes"][:1]},
        arrays | {"coverage": arrays["coverage"][:, :3]},
        {name: array for name, array in arrays.items() if name != "order"},
    ]
    headers = [(about, each) for each in spoilt] + [(about | {"n_bits": 4096}, arrays), ({}, arrays)]
    for header, each in headers:
        write_arrays(path, header, each)
        with Collection.open(tmp_path / "c", n_jobs=1) as collection:
            found = collection.search(ROWS[:9], k=3)
            np.testing.assert_array_equal(found.ids, truth.ids)
            np.testing.assert_array_equal(found.distances, truth.distances)


@pytest.mark.parametrize(
    "change",
    [{"codes": "../other"}, {"vectors_file": "/etc/passwd"}, {"model": "../m.safetensors"}, {"n_bits": 2**40},
     {"positions": -1}, {"positions": 2**62}, {"ids": "float"}, {"coding": 7}, {"vectors": "object"}],
)  # fmt: skip
def test_crafted_settings_lead_to_no_other_file_and_to_no_memory(tmp_path, change, little_memory):
    Collection.create(tmp_path / "c", bits=16).close()
    with closing(sqlite3.connect(tmp_path / "c" / DATABASE)) as connection, connection:
        found = dict(connection.execute("SELECT name, value FROM settings").fetchall())
        del found["checksum"]
        write_state(connection, State(**found | change))
    with pytest.raises(Damaged, match=r"the settings in collection.sqlite cannot be understood"):
        Collection.open(tmp_path / "c")


@pytest.mark.parametrize(
    "change",
    ["UPDATE stretches SET count = 1 << 40", "UPDATE stretches SET first_number = -5",
     "UPDATE deleted SET count = 1 << 50", "DELETE FROM stretches"],
)  # fmt: skip
def test_crafted_runs_of_items_are_refused_before_they_take_memory(tmp_path, change, little_memory):
    with Collection.create(tmp_path / "c", bits=16) as made:
        made.add(codes=np.zeros((100, 2), np.uint8))
        made.delete([3])
    with closing(sqlite3.connect(tmp_path / "c" / DATABASE)) as connection, connection:
        connection.execute(change)
        found = dict(connection.execute("SELECT name, value FROM settings").fetchall())
        del found["checksum"]
        gone = integers(connection, "SELECT in_commit, first_number, count FROM deleted")
        rows = integers(connection, "SELECT first_position, count, first_number FROM stretches")
        write_state(connection, State(**found | {"layout": runs_check(rows, runs_check(gone))}))
    with Collection.open(tmp_path / "c") as crafted, pytest.raises(Damaged, match="or the items"):
        crafted.search(codes=np.zeros((1, 2), np.uint8))
