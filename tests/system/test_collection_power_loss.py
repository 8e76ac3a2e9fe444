from __future__ import annotations

import os
import random
import shutil
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from auxbit import Collection
from auxbit.core import files
from helpers.collection_truth import Contents, change, difference
from helpers.power_loss import Recorded
from helpers.simulated_disk import SimulatedDisk, lay_out


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


@pytest.mark.parametrize("seed", range(4))
def test_a_power_loss_takes_no_acknowledged_change_and_leaves_none_by_half(tmp_path, seed):
    recorded = Recorded(tmp_path, seed, n_changes=16)
    losses = list(recorded.losses(random.Random(seed), share=0.4))
    assert len(losses) > 80
    assert [loss for loss in losses if loss] == []


@pytest.mark.parametrize("lies", ["files", "folders"])
def test_a_disk_that_does_not_sync_is_noticed(tmp_path, lies):
    recorded = Recorded(tmp_path, 0, n_changes=6, lies=(lies,))
    assert any(recorded.losses(random.Random(0)))


def test_a_segment_that_is_not_synced_before_the_manifest_is_noticed(tmp_path, monkeypatch):
    @contextmanager
    def creating_without_sync(path):
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
        yield descriptor
        os.close(descriptor)

    monkeypatch.setattr(files, "creating", creating_without_sync)
    recorded = Recorded(tmp_path, 1, n_changes=6)
    assert any("damaged" in loss for loss in recorded.losses(random.Random(0)))


def test_names_that_are_not_synced_before_the_manifest_are_noticed_unless_names_keep_their_order(
    tmp_path, monkeypatch
):
    real = files.sync_folder
    monkeypatch.setattr(files, "sync_folder", lambda path: path.name == "collection" or real(path))
    recorded = Recorded(tmp_path, 1, n_changes=6)
    assert any("missing" in loss for loss in recorded.losses(random.Random(0), in_order=False))
    assert not any(recorded.losses(random.Random(0), share=0.3, in_order=True))


def test_a_collection_in_new_folders_is_there_with_all_its_parents(tmp_path):
    disk = SimulatedDisk(tmp_path)
    with disk.recording():
        Collection.create(tmp_path / "new" / "deeper" / "c", n_bits=8).close()
    for state in random_states(disk):
        assert "new/deeper/c/manifest.jsonl" in state


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
        Collection.create(path, n_bits=16, overwrite=True).close()
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
