from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from auxbit import Collection
from auxbit.collection.storage import DATABASE, LOCK, Storage
from auxbit.core import files
from helpers.collection_truth import Contents, change, difference
from helpers.power_loss import Recorded
from helpers.simulated_disk import SimulatedDisk, lay_out


@pytest.fixture
def tmp_path(tmp_path):
    """In memory: what the simulated disk loses does not depend on the disk below."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as name:
        yield Path(name)


def random_states(disk, n=300, in_order=None):
    """Contents that a crash at the end may leave."""
    state = [disk.crashes(random.Random(seed), 1.0, in_order) for seed in range(n)]
    return [list(each)[-1][1] for each in state]


# ---- what the disk does


def test_what_is_synced_with_its_name_is_always_there(tmp_path):
    disk = SimulatedDisk(tmp_path)
    with disk.recording():
        files.write_bytes(tmp_path / "a", b"first")
        files.write_bytes(tmp_path / "a", b"second")
    assert {state["a"] for state in random_states(disk)} == {b"second"}
    seen = {content.get("a") for _, content in disk.crashes(random.Random(0), share=20)}
    assert seen == {None, b"first", b"second"}


def test_writes_that_are_not_synced_may_be_dropped_torn_or_reordered(tmp_path):
    disk = SimulatedDisk(tmp_path)
    with disk.recording():
        descriptor = os.open(tmp_path / "a", os.O_CREAT | os.O_WRONLY)
        os.write(descriptor, b"1" * 2000)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, b"2" * 1000)
        os.close(descriptor)
        files.sync_folder(tmp_path)
    seen = {state["a"] for state in random_states(disk)}
    assert {b"", b"1" * 2000, b"2" * 1000, b"2" * 1000 + b"1" * 1000, bytes(2000)} <= seen
    assert any(content.startswith(b"2" * 512 + b"1") for content in seen)
    assert any(set(content) - {0, ord("1"), ord("2")} for content in seen)


def test_names_that_are_not_synced_may_be_lost_or_come_back(tmp_path):
    disk = SimulatedDisk(tmp_path)
    with disk.recording():
        for name in "ab":
            files.write_bytes(tmp_path / name, name.encode())
        os.replace(tmp_path / "a", tmp_path / "c")
        (tmp_path / "b").unlink()
        (tmp_path / "d").mkdir()

    def names(in_order):
        return {"".join(sorted(state)) for state in random_states(disk, in_order=in_order)}

    assert names(in_order=True) == {"ab", "bc", "c", "cd"}
    assert names(in_order=False) == {"ab", "bc", "a", "c", "abd", "bcd", "ad", "cd"}


# ---- what a collection survives


@pytest.mark.parametrize("seed", range(3))
def test_a_power_loss_takes_no_acknowledged_change_and_leaves_none_by_half(tmp_path, seed):
    recorded = Recorded(tmp_path, seed, n_changes=16)
    losses = list(recorded.losses(random.Random(seed), share=0.7))
    assert len(losses) > 40
    assert [loss for loss in losses if loss] == []


@pytest.mark.parametrize("lies", ["files", "folders"])
def test_a_disk_that_does_not_sync_is_noticed(tmp_path, lies):
    recorded = Recorded(tmp_path, 0, n_changes=6, lies=(lies,))
    assert any(recorded.losses(random.Random(0)))


@pytest.mark.parametrize("prefix", ["codes", "vectors"])
def test_a_flat_file_that_is_not_synced_before_the_commit_is_noticed(tmp_path, monkeypatch, prefix):
    real = files.Flat.append

    def append(self, *args):
        if not self.path.name.startswith(prefix):
            return real(self, *args)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", lambda descriptor: None)
            return real(self, *args)

    monkeypatch.setattr(files.Flat, "append", append)
    recorded = Recorded(tmp_path, 0, n_changes=6)
    assert any(f"{prefix}." in loss for loss in recorded.losses(random.Random(0), share=2))


def test_names_that_are_not_synced_before_the_commit_are_noticed(tmp_path, monkeypatch):
    real = files.sync_folder
    monkeypatch.setattr(files, "sync_folder", lambda path: path.name == "collection" or real(path))
    recorded = Recorded(tmp_path, 0, n_changes=6)
    losses = [loss for loss in recorded.losses(random.Random(0), share=2, in_order=False) if loss]
    assert any("missing" in loss for loss in losses)


def test_a_commit_before_the_bytes_it_counts_is_noticed(tmp_path, monkeypatch):
    """The order of the two is what all rests on."""
    real = Storage._commit

    def commit_first(self, change):
        real(self, change)
        for flat, args in later:
            append(flat, *args)
        later.clear()

    def put_off(flat, end, pieces, *args):
        whole = [np.array(piece) for piece in pieces]
        later.append((flat, (end, whole, *args)))
        in_memory = files.Flat(None)
        append(in_memory, 0, [np.zeros(end, dtype=np.uint8)], 0)
        return append(in_memory, end, whole, *args)

    append, later = files.Flat.append, []
    monkeypatch.setattr(Storage, "_commit", commit_first)
    monkeypatch.setattr(files.Flat, "append", put_off)
    recorded = Recorded(tmp_path, 1, n_changes=4)
    assert any(recorded.losses(random.Random(0), share=4))


def test_a_collection_in_new_folders_is_there_with_all_its_parents(tmp_path):
    disk = SimulatedDisk(tmp_path)
    with disk.recording():
        Collection.create(tmp_path / "new" / "deeper" / "c", bits=8).close()
    for state in random_states(disk):
        assert f"new/deeper/c/{DATABASE}" in state


def test_a_model_file_in_new_folders_is_there_with_all_its_parents(tmp_path):
    disk = SimulatedDisk(tmp_path)
    with disk.recording():
        files.write_bytes(tmp_path / "new" / "deeper" / "a", b"a")
    for state in random_states(disk):
        assert state.get("new/deeper/a") == b"a"


def test_a_collection_that_is_replaced_is_there_as_it_was_or_as_it_is(tmp_path):
    disk, root = SimulatedDisk(tmp_path / "disk"), tmp_path / "disk"
    root.mkdir()
    path = root / "c"
    with disk.recording():
        collection, before = None, None
        for number in range(4):
            make, before = change(before, 1, number, 100)
            collection = make(path, collection)
        collection.close()
        disk.mark(0)
        Collection.create(path, bits=16, overwrite=True).close()
        disk.mark(1)
    after = Contents(16, None, np.zeros(0, np.int64), np.zeros((0, 2), np.uint8))
    found = set()
    for acknowledged, content in disk.crashes(random.Random(0), share=2):
        if acknowledged < 0:
            continue
        lay_out(content, tmp_path / "after")
        with Collection.open(tmp_path / "after" / "c", read_only=True, n_jobs=1) as left:
            states = {name: difference(left, each) for name, each in (("before", before), ("after", after))}
            found |= {(acknowledged, name) for name, wrong in states.items() if not wrong} or {str(states)}
        shutil.rmtree(tmp_path / "after")
    assert found == {(0, "before"), (0, "after"), (1, "after")}


def test_the_folder_that_the_tests_are_made_in_is_not_the_disk(tmp_path):
    """Nothing outside the simulated disk is journalled."""
    (tmp_path / "disk").mkdir()
    disk = SimulatedDisk(tmp_path / "disk")
    with disk.recording():
        files.write_bytes(tmp_path / "elsewhere", b"a")
    assert disk.journal == []
    assert Path(tmp_path / "elsewhere").read_bytes() == b"a"


# ---- the log of SQLite, cut anywhere


@pytest.fixture(scope="module", params=[(0, 13, 22), (1, 2, 26), (2, 20, 30)])
def killed(request, tmp_path_factory):
    """A collection whose changes from one on are in the log alone, as a kill leaves it, and its contents."""
    seed, first, stop = request.param
    path = tmp_path_factory.mktemp("log") / "live"
    collection, contents = None, [None]
    for number in range(stop):
        if number == first:
            collection.close()  # which empties the log
            collection = Collection.open(path, n_jobs=1)
            generation = collection.state.generation
        make, after = change(contents[-1], seed, number, 300)
        collection = make(path, collection)
        contents.append(after)
    assert collection.state.generation == generation  # else the files of states before would be gone
    found = {
        each.name: each.read_bytes() for each in path.iterdir() if each.name not in (LOCK, f"{DATABASE}-shm")
    }
    collection.close()
    return found, contents[first:]


def opened_with(log, found, path):
    """Of which of the contents a collection is whose log is another, and what is wrong with it."""
    found, contents = found
    lay_out({"": None} | found | {LOG: log}, path)
    try:
        with Collection.open(path, n_jobs=1) as collection:
            which = [at for at, each in enumerate(contents) if not difference(collection, each)]
            assert collection.check() == []
            collection.add(codes=contents[0].codes[:1], X=vectors_of(contents[0]), ids=new_ids(contents[0]))
            assert collection.check() == []
    finally:
        shutil.rmtree(path)
    return which


def vectors_of(contents):
    return None if contents.vectors is None else contents.vectors[:1].astype(np.float32)


def new_ids(contents):
    return ["new"] if contents.text else None


LOG = f"{DATABASE}-wal"


def test_a_log_that_is_cut_gives_a_committed_state_before_it(killed, tmp_path):
    whole = killed[0][LOG]
    rng = random.Random(0)
    seen, last = set(), 0
    for size in sorted([0, 1, len(whole), *(rng.randrange(len(whole)) for _ in range(20))]):
        which = opened_with(whole[:size], killed, tmp_path / "c")
        assert which, f"no committed state with {size} bytes of the log"
        assert which[-1] >= last, "a longer log gives an older state"
        last = which[0]
        seen |= set(which)
    assert {0, len(killed[1]) - 1} <= seen
    assert len(seen) > 5


def test_a_flipped_bit_in_the_log_gives_a_committed_state_before_it(killed, tmp_path):
    whole = killed[0][LOG]
    rng = random.Random(1)
    seen = set()
    for place in [0, 9, 33, *(rng.randrange(len(whole)) for _ in range(20))]:
        log = bytearray(whole)
        log[place] ^= 1 << rng.randrange(8)
        which = opened_with(bytes(log), killed, tmp_path / "c")
        assert which, f"no committed state with a flipped bit at byte {place} of the log"
        seen |= set(which)
    assert 0 in seen
    assert len(seen) > 5
