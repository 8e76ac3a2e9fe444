"""Storage: bytes come back as they were appended, and the database says what they are."""

from __future__ import annotations

import errno
import sqlite3
import time
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from auxbit import LSH, Collection
from auxbit.collection import storage
from auxbit.collection.storage import DATABASE
from auxbit.core.files import WriterLock
from auxbit.errors import CollectionError, InvalidInput, InvalidParameter
from helpers.collection_truth import Contents, D, difference, model

X = np.random.default_rng(0).normal(size=(100, D)).astype(np.float32)


# ---- the database


def test_the_schema_explains_itself(tmp_path):
    Collection.create(tmp_path / "c", bits=8).close()
    with closing(sqlite3.connect(tmp_path / "c" / DATABASE)) as database:
        found = database.execute(
            "SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'view')"
        ).fetchall()
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert len(found) == 9
    for name, sql in found:
        assert "\n  -- " in sql, name


class Kept(StrEnum):
    SINGLE = "float32"


@pytest.mark.parametrize("vectors", [np.str_("float32"), Kept.SINGLE])
def test_settings_in_text_of_any_type_can_be_read_again(tmp_path, vectors):
    with Collection.create(tmp_path / "c", model(0), vectors=vectors, coding=np.str_("hash")) as collection:
        collection.add(X)
        collection.about = np.str_("mine")
    with Collection(tmp_path / "c") as collection:
        state = collection.state
        assert (state.vectors, state.coding, state.about) == ("float32", "hash", "mine")
        np.testing.assert_array_equal(collection.vectors(collection.ids), X)


@pytest.mark.parametrize("text", [5, 1.5, True, b"mine", {"of": "mine"}, "\ud800"])
def test_what_is_no_text_does_not_become_that_of_the_application(tmp_path, text):
    collection = Collection.create(tmp_path / "c", bits=8)
    with pytest.raises(InvalidParameter, match=r"about=.* is invalid: expected a text"):
        collection.about = text
    collection.close()
    assert Collection(tmp_path / "c").about is None


def test_a_change_within_a_change_is_refused_and_the_outer_one_is_made():
    with Collection.create(None, model(0), vectors="float16", n_jobs=1) as collection:
        collection.add(X)
        refused = []

        def add_meanwhile(_):
            with pytest.raises(InvalidInput, match="is being changed"):
                collection.add(X)
            refused.append(True)

        collection.delete([0, 1])
        collection.compact(progress=mock.Mock(advance=add_meanwhile))
        assert refused
        assert len(collection) == 98
        assert collection.check() == []


def test_a_model_of_other_rows_or_codes_is_not_taken_for_that_of_the_collection(tmp_path):
    rows = np.random.default_rng(0).normal(size=(200, 50))
    with Collection.create(tmp_path / "c", LSH(8, random_state=0).fit(rows)) as collection:
        collection.add(rows)
        name = collection.state.model
    for given_rows, bits in ((rows, 17), (rows[:, :40], 8)):
        LSH(bits, random_state=0).fit(given_rows).save(tmp_path / "c" / name)
        why = rf"makes codes of {bits} bits from rows of {given_rows.shape[1]}, expected 8 bits from 50"
        with pytest.raises(CollectionError, match=why):
            Collection.open(tmp_path / "c").search(rows[:2], mode="asymmetric")


@pytest.mark.parametrize("on_disk", [True, False])
def test_an_empty_collection_answers_and_changes_as_any_other(tmp_path, on_disk):
    path = tmp_path / "c" if on_disk else None
    with Collection.create(path, model(0), vectors="float16", n_jobs=1) as collection:
        for options in ({}, {"rerank": True}, {"mode": "asymmetric"}):
            distances, ids = collection.search(X[:2], k=3, **options)
            assert distances.shape == ids.shape == (2, 0)
        assert [len(each) for each in collection.search_radius(X[:2], 5)] == [3, 0, 0]
        assert collection.duplicates() == collection.metadata([]) == collection.check() == []
        assert collection.add(X[:0]).tolist() == collection.ids.tolist() == collection.list() == []
        assert collection.delete([]) == collection.stats().items == len(collection) == 0
        assert collection.codes().shape == (0, 4)
        assert collection.vectors([]).shape == (0, D)
        collection.compact()
        assert difference(collection, Contents.empty(0)) == ""
        with pytest.raises(InvalidInput, match="is empty"):
            collection.retrain(model(1))
        with pytest.raises(InvalidInput, match="k=0 is invalid"):
            collection.search(X[:2], k=0)
        with pytest.raises(InvalidInput, match="12"):
            collection.search(X[:2, :5])
        with pytest.raises(InvalidInput, match="the id 5 twice"):
            collection.add(X[:2], ids=[5, 5])
        collection.add(X[:3])
        collection.delete([0, 1, 2])
        assert len(collection) == 0
        assert collection.search(X[:2], k=9, rerank=True).ids.shape == (2, 0)
        assert collection.add(X[:1]).tolist() == [3]


def test_a_collection_that_could_not_be_made_leaves_nothing(tmp_path):
    with pytest.raises(InvalidInput, match="twice"):
        Collection.create(tmp_path / "c", X, bits=8, method="lsh", ids=[1] * len(X))
    assert list(Path(tmp_path).iterdir()) == []


def test_files_that_a_killed_writer_left_are_removed_by_the_next_and_others_stay(tmp_path, model, digits):
    Collection.create(tmp_path / "c", model).close()
    left = [".tmpTRUKGX", ".model.1.safetensors.part", "codes.7"]  # the first is safetensors' own
    for name in [*left, "notes.txt", ".tmp"]:
        (tmp_path / "c" / name).write_bytes(b"")
    with Collection(tmp_path / "c") as collection:
        collection.add(digits[:5])
        collection.compact()
    names = {path.name for path in (tmp_path / "c").iterdir()}
    assert not names & set(left)
    assert {"notes.txt", ".tmp"} <= names


def test_readers_see_what_is_committed_at_once_even_if_the_writer_cannot_tell_them(tmp_path, monkeypatch):
    codes = np.arange(160, dtype=np.uint8).reshape(20, 8)
    Collection.create(tmp_path / "c", bits=64).close()
    early = Collection(tmp_path / "c")  # before there is a file that tells
    with Collection(tmp_path / "c") as writer:
        writer.add(codes=codes[:5])
        reader = Collection(tmp_path / "c")
        for n in (5, 6, 7):
            for each in (early, reader):
                assert len(each.search(codes=codes[0], k=20).ids) == n
            writer.add(codes=codes[n : n + 1])
        note = WriterLock.note

        def fails(lock, commit):
            if commit is not None:
                raise OSError(errno.ENOSPC, "No space left on device")
            note(lock, commit)

        monkeypatch.setattr(WriterLock, "note", fails)
        writer.add(codes=codes[8:9])
        for each in (early, reader):
            assert len(each.search(codes=codes[0], k=20).ids) == 9
        monkeypatch.setattr(WriterLock, "note", note)
        writer.add(codes=codes[9:10])
        assert reader._storage._lock.notes(reader._storage.state.commit)
        (tmp_path / "c/writer.lock").rename(tmp_path / "elsewhere")  # which nobody should do
    with Collection(tmp_path / "c") as writer:
        writer.add(codes=codes[10:11])
        time.sleep(storage.LOOK_SECONDS)
        for each in (early, reader):
            assert len(each.search(codes=codes[0], k=20).ids) == 11
            each.close()


def test_a_commit_that_fails_is_followed_by_one_that_readers_see(tmp_path):
    codes = np.arange(160, dtype=np.uint8).reshape(20, 8)
    with Collection.create(tmp_path / "c", bits=64) as writer, Collection(tmp_path / "c") as reader:
        writer.add(codes=codes[:5])
        with pytest.raises(InvalidInput):
            writer.add(codes=codes[:5], ids=np.arange(5))
        assert len(reader.search(codes=codes[0], k=20).ids) == 5
        writer.add(codes=codes[5:8])
        assert len(reader.search(codes=codes[0], k=20).ids) == 8
