"""Any sequence of changes, crashes and reopenings against a dict, and what must hold after each of them."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
import uuid
from contextlib import closing
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from auxbit import Collection
from auxbit.collection.snapshot import Edit
from auxbit.collection.storage import DATABASE, Storage
from auxbit.errors import Damaged, InvalidInput
from auxbit.index.codes import LANES
from helpers.collection_truth import D, model
from helpers.index_truth import slow_search

MEMORY = Path("/dev/shm")  # what is tested does not depend on the disk below
SIZES = st.sampled_from([1, 2, 3, 7, 40, 63, 64, 65, 130])
SEEDS = st.integers(0, 10**6)
KINDS = ("numbered", "own", "mixed", "text", "uuid")
MOST = 600


def id_of(kind, number):
    """A number as an id of this kind; those of integers are not in order."""
    if kind == "text":
        return f"item {number}"
    return uuid.UUID(int=number) if kind == "uuid" else number * 7919 % 10_007


class Item:
    def __init__(self, code, vector, row):
        self.code, self.vector, self.row = code.tolist(), vector.tolist(), row


class Machine(RuleBasedStateMachine):
    """items : by id, in the order they were added in."""

    @initialize(kind=st.sampled_from(KINDS), on_disk=st.sampled_from([True, True, False]))
    def begin(self, kind, on_disk):
        memory = MEMORY if MEMORY.is_dir() else None
        self.folder = tempfile.TemporaryDirectory(dir=memory)
        self.path = Path(self.folder.name) / "c" if on_disk else None
        self.kind, self.items, self.model = kind, {}, 0
        self.copies, self.given = 0, 0
        self.collection = Collection.create(self.path, model(0), vectors="float16", n_jobs=1)

    def teardown(self):
        if hasattr(self, "collection"):
            self.collection.close()
            self.folder.cleanup()

    # ---- changes

    def rows(self, size, seed):
        """Vectors, their codes and metadata."""
        X = np.random.default_rng(seed).normal(size=(size, D)).astype(np.float32)
        rows = [{"n": (seed + i) % 7, "nested": {"a": i}} if (seed + i) % 3 else {} for i in range(size)]
        return X, model(self.model).encode(X), rows

    def store(self, ids, codes, X, rows):
        for id_, code, x, row in zip(ids, codes, X.astype(np.float16), rows, strict=True):
            self.items.pop(id_, None)
            self.items[id_] = Item(code, x, row)

    @precondition(lambda self: len(self.items) < MOST)
    @rule(size=SIZES, seed=SEEDS, plain=st.booleans())
    def add(self, size, seed, plain):
        X, codes, rows = self.rows(size, seed)
        ids = None
        if self.kind in ("own", "text", "uuid") or (self.kind == "mixed" and seed % 2):
            ids = [id_of(self.kind, self.given + i) for i in range(size)]
            self.given += size
            if any(each in self.items for each in ids):
                return
        found = self.collection.add(X, ids=ids, metadata=None if plain else rows)
        if ids is not None:
            assert found.tolist() == ids
        assert not set(found.tolist()) & set(self.items)
        self.store(found.tolist(), codes, X, [{}] * size if plain else rows)

    @precondition(lambda self: self.items)
    @rule(size=SIZES, seed=SEEDS)
    def upsert(self, size, seed):
        X, codes, rows = self.rows(size, seed)
        known = np.random.default_rng(seed).permutation(np.array(list(self.items), dtype=object))
        ids = known[: size // 2 + 1].tolist()
        ids += [id_of(self.kind, 5000 + (seed + i) % 900) for i in range(size - len(ids))]
        if self.kind in ("numbered", "mixed", "own"):
            ids = [int(each) for each in ids]
        ids = list(dict.fromkeys(ids))
        n = len(ids)
        self.collection.add(X[:n], ids=ids, metadata=rows[:n], upsert=True)
        self.store(ids, codes[:n], X[:n], rows[:n])

    def some_ids(self, seed, share):
        known = np.array(list(self.items), dtype=object)
        return np.random.default_rng(seed).permutation(known)[: max(1, int(len(known) * share))].tolist()

    @precondition(lambda self: self.items)
    @rule(seed=SEEDS, share=st.sampled_from([0, 0.1, 0.6, 1]))
    def delete(self, seed, share):
        gone = self.some_ids(seed, share)
        assert self.collection.delete(gone) == len(gone)
        for id_ in gone:
            del self.items[id_]

    def having(self, n):
        return [id_ for id_, item in self.items.items() if item.row.get("n", -1) == n]

    @precondition(lambda self: any("n" in item.row for item in self.items.values()))
    @rule(n=st.integers(0, 6))
    def delete_where(self, n):
        gone = self.having(n)
        assert self.collection.delete(where={"n": n}) == len(gone)
        for id_ in gone:
            del self.items[id_]

    @precondition(lambda self: self.items)
    @rule(seed=SEEDS, replace=st.booleans())
    def update(self, seed, replace):
        ids = self.some_ids(seed, 0.2)
        fields = {"n": seed % 7, "nested": None, "new": [seed]}
        assert self.collection.update_metadata(ids, fields, replace=replace) == len(ids)
        for id_ in ids:
            row = fields if replace else self.items[id_].row | fields
            self.items[id_].row = row if replace else {k: v for k, v in row.items() if v is not None}

    @rule()
    def compact(self):
        self.collection.compact()

    @precondition(lambda self: self.items)
    @rule(number=st.integers(0, 2))
    def retrain(self, number):
        self.collection.retrain(model(number))
        self.model = number
        vectors = np.array([item.vector for item in self.items.values()], dtype=np.float16)
        for item, code in zip(self.items.values(), model(number).encode(vectors), strict=True):
            item.code = code.tolist()

    # ---- changes that fail

    @precondition(lambda self: self.items)
    @rule(seed=SEEDS)
    def add_what_is_there(self, seed):
        X, _, rows = self.rows(3, seed)
        ids = [id_of(self.kind, 20_000), id_of(self.kind, 20_001), *self.some_ids(seed, 0)]
        if ids[2] in ids[:2]:
            return
        with pytest.raises(InvalidInput, match=r"is already in the collection \(1 of the 3"):
            self.collection.add(X, ids=ids, metadata=rows)

    @rule(seed=SEEDS, what=st.sampled_from(["add", "upsert", "delete", "update", "compact", "retrain"]))
    def fail_at_the_commit(self, seed, what):
        if not self.items and what != "compact":
            return
        X, _, rows = self.rows(70, seed)
        ids = [id_of(self.kind, 30_000 + i) for i in range(70)]
        some = self.some_ids(seed, 0.3) if self.items else []
        changes = {
            "add": lambda: self.collection.add(X, ids=ids, metadata=rows, upsert=True),
            "upsert": lambda: self.collection.add(X[: len(some)], ids=some[:70], upsert=True),
            "delete": lambda: self.collection.delete(some),
            "update": lambda: self.collection.update_metadata(some, {"failed": 1}),
            "compact": self.collection.compact,
            "retrain": lambda: self.collection.retrain(model(1)),
        }
        failing = mock.patch.object(Storage, "_commit", side_effect=KeyboardInterrupt)
        with failing, pytest.raises(KeyboardInterrupt):
            changes[what]()

    # ---- ends and beginnings

    @precondition(lambda self: self.path is not None)
    @rule()
    def reopen(self):
        self.collection.close()
        self.collection = Collection.open(self.path, n_jobs=1)

    @precondition(lambda self: self.path is not None)
    @rule(index=st.booleans())
    def crash(self, index):
        """What is on disk now, with the log of SQLite, is all that is left."""
        self.copies += 1
        path = Path(self.folder.name) / f"c{self.copies}"
        shutil.copytree(self.path, path)
        if not index and (path / f"{DATABASE}-shm").exists():
            (path / f"{DATABASE}-shm").unlink()
        self.collection.close()
        shutil.rmtree(self.path)
        self.path, self.collection = path, Collection.open(path, n_jobs=1)

    # ---- what must hold

    @rule(seed=SEEDS, k=st.sampled_from([1, 5, 1000]), n=st.integers(0, 6))
    def search(self, seed, k, n):
        X, queries, _ = self.rows(2, seed)
        ids = list(self.items)
        codes = np.array([item.code for item in self.items.values()], dtype=np.uint8)
        codes = codes.reshape(-1, queries.shape[1])
        wanted = [None, {"n": n}] if any("n" in item.row for item in self.items.values()) else [None]
        for where in wanted:
            among = [place for place, id_ in enumerate(ids) if where is None or id_ in set(self.having(n))]
            near = min(k, len(among))
            distances, found = self.collection.search(X, k, mode="hamming", where=where)
            expected, places = slow_search(codes[among], np.array(among, dtype=np.int64), queries, near)
            assert found.tolist() == [[ids[place] for place in row] for row in places.tolist()]
            assert distances.tolist() == expected.tolist()

    @invariant()
    def all_is_there(self):
        if not hasattr(self, "collection"):
            return
        found, ids = self.collection, list(self.items)
        assert len(found) == found.count() == len(ids)
        assert found.ids.tolist() == ids
        assert found.metadata(ids) == [item.row for item in self.items.values()]
        assert found.codes().tolist() == [item.code for item in self.items.values()]
        assert found.vectors(ids).tolist() == [item.vector for item in self.items.values()]
        assert all(id_ in found for id_ in ids[:3])
        other = id_of(self.kind, 40_000)
        assert (other in found) == (other in self.items)

    @invariant()
    def positions_numbers_and_ids_are_one_to_one(self):
        if not hasattr(self, "collection"):
            return
        with self.collection._reading() as now:
            state, present = now.state, now.view.store.present()
            numbers = now.view.stretches.ids_at(present)
            assert (np.diff(numbers) > 0).all()
            assert not len(numbers) or 0 <= numbers[0] <= numbers[-1] < state.next_number
            assert now.view.stretches.find(numbers).tolist() == present.tolist()
            ids = now.ids_at(present)
            assert len(set(ids.tolist())) == len(present) == state.items == now.view.store.alive.count
            stored = ids if ids.dtype == np.int64 else list(map(str, ids))
            assert now.find(stored, state.ids or "integer").tolist() == numbers.tolist()
            gone = np.setdiff1d(np.arange(state.next_number + 3), numbers)
            assert not now.view.store.alive.holds(now.view.stretches.find(gone)).any()
            assert len(state.last_codes) in (0, LANES * -(-state.n_bits // 8))

    @invariant()
    def anybody_can_list_it_by_sql(self):
        if not hasattr(self, "collection"):
            return
        query = "SELECT id, metadata FROM listing"
        if self.path is None:
            with self.collection._storage.reading() as (connection, _):
                rows = connection.execute(query).fetchall()
        else:
            with closing(sqlite3.connect(self.path / DATABASE)) as plain:
                rows = plain.execute(query).fetchall()
        assert [id_ for id_, _ in rows] == [str(i) if self.kind == "uuid" else i for i in self.items]
        assert [json.loads(text or "{}") for _, text in rows] == [item.row for item in self.items.values()]


Machine.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestMachine = Machine.TestCase


@pytest.mark.parametrize("lost", ["_insert_items", "note_fields"])
def test_the_machine_notices_what_a_change_forgets(monkeypatch, lost):
    monkeypatch.setattr(Edit, lost, lambda *given: None)
    few = settings(
        max_examples=15, stateful_step_count=15, phases=[Phase.generate], report_multiple_bugs=False
    )
    with pytest.raises((AssertionError, UserWarning, Damaged)):
        run_state_machine_as_test(Machine, settings=few)
