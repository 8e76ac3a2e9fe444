"""Storage: bytes come back as they were appended, and the database says what they are."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from auxbit import LSH, Collection
from auxbit.collection.storage import DATABASE
from auxbit.errors import CollectionError, InvalidInput
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
