"""What became of faults that were found in collections: several processes, many changes, drift."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from auxbit import ITQ, Collection
from auxbit.collection import storage as upkeep
from auxbit.errors import Damaged, FileExists, FileProblem, InUse, InvalidInput, InvalidParameter

# ---- elsewhere


def test_an_exported_collection_gives_the_answers_of_the_collection(filled, digits, tmp_path):
    import faiss

    filled.delete([3])
    assert filled.export(tmp_path / "c.faiss") == "lsh"
    distances, _ = faiss.read_index(str(tmp_path / "c.faiss")).search(digits[:9].astype(np.float32), 5)
    np.testing.assert_array_equal(distances, filled.search(digits[:9], 5)[0])
    assert filled.export(tmp_path / "c.onnx", "onnx") == "onnx"
    with pytest.raises(FileExists, match="exists"):
        filled.export(tmp_path / "c.onnx", "onnx")
    with pytest.raises(InvalidParameter, match="to='milvus' is invalid"):
        filled.export(tmp_path / "x", "milvus")


def test_items_can_be_counted_and_looked_up(filled):
    assert filled.count() == len(filled) == 1200
    assert filled.count({"odd": True}) == 350
    assert filled.holds([0, 5000, 4999]).tolist() == [True, True, False]
    assert filled.manifest.n_bits == filled.n_bits == 16


def test_a_change_whose_view_could_not_be_made_is_not_built_over(filled, digits, monkeypatch):
    from auxbit.collection.storage import Manifest

    storage, write = filled._storage, Manifest.write

    def write_while_another_thread_looks(self, folder):
        storage.refresh()  # it finds the state before, and takes that for the present one
        write(self, folder)

    def no_descriptors(snapshot):
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(Manifest, "write", write_while_another_thread_looks)
        switch, calls = storage._switch, []

        def first_alone(snapshot):
            calls.append(snapshot)
            (switch if len(calls) == 1 else no_descriptors)(snapshot)

        patched.setattr(storage, "_switch", first_alone)
        filled.add(digits[:2], ids=[9000, 9001])
        with pytest.raises(OSError, match="Too many"):
            filled.count()
    filled.add(digits[2:3], ids=[9002])
    assert filled.holds([9000, 9001, 9002]).all()


# ---- several processes


def test_a_compaction_that_is_refused_takes_nothing_from_the_writer(filled, digits, monkeypatch):
    from auxbit.collection.storage import Storage

    commit = Storage.commit

    def commit_after_another_has_tried(self, manifest):
        monkeypatch.setattr(Storage, "commit", commit)
        with Collection.open(self.folder) as other, pytest.raises(InUse, match="is being written to"):
            other.compact()
        commit(self, manifest)

    monkeypatch.setattr(Storage, "commit", commit_after_another_has_tried)
    ids = filled.add(digits[:5])
    with Collection.open(filled.path) as again:
        assert again.holds(ids).all()
        assert again.check() == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_is_not_a_second_writer(tmp_path):
    code = f"""
import os, sys
import numpy as np
from auxbit import Collection
from auxbit.errors import InUse
collection = Collection.create({str(tmp_path / "f")!r}, bits=8)
collection.add(codes=np.zeros((10, 1), np.uint8))
child = os.fork()
if not child:
    try:
        collection.add(codes=np.ones((3, 1), np.uint8))
    except InUse:
        os._exit(7)
    os._exit(0)
refused = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
collection.add(codes=np.full((3, 1), 2, np.uint8))
print(refused, len(collection))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["7", "13"]


def test_a_refresh_that_failed_is_tried_again(filled, digits):
    with Collection.open(filled.path) as reader:
        assert len(reader) == 1200
        filled.add(digits[:3])
        newest = filled.path / filled.manifest.segments[-1].file
        content = newest.read_bytes()
        newest.write_bytes(content[:-1])
        for _ in range(2):
            with pytest.raises(Damaged, match="bytes instead of"):
                len(reader)
        newest.write_bytes(content)
        assert len(reader) == 1203


# ---- many changes


def test_alternating_sizes_do_not_leave_many_segments(tmp_path):
    with Collection.create(tmp_path / "c", bits=8) as collection:
        sizes = [1] * 15 + [20]
        sizes = (sizes * 15 + [300]) * 3
        for size in sizes:
            collection.add(codes=np.zeros((size, 1), np.uint8))
        assert len(collection.state.segments) <= upkeep.MOST_PARTS
        assert len(collection) == sum(sizes)


def test_metadata_of_scattered_rows_survive_a_compaction(tmp_path):
    with Collection.create(tmp_path / "c", bits=8) as collection:
        rows = [{"text": "ä" * (row % 7), "row": row} if row % 3 else None for row in range(1000)]
        collection.add(codes=np.zeros((1000, 1), np.uint8), metadata=rows)
        kept = np.flatnonzero(np.random.default_rng(0).random(1000) < 0.5)
        collection.delete(np.setdiff1d(np.arange(1000), kept))
        collection.compact()
        assert collection.metadata(kept) == [rows[row] or {} for row in kept]
        assert collection.metadata([int(kept[1]), -1]) == [rows[kept[1]] or {}, {}]


def test_what_was_trained_on_does_not_hide_what_was_added(tmp_path, digits):
    model = ITQ(16, random_state=0).fit(digits[:900])
    for compacted in (False, True):
        path = tmp_path / f"{compacted}"
        with Collection.create(path, model) as collection:
            collection.add(digits[:900], trained=True)
            assert collection.stats().added == 0
            collection.add(16 - digits[900:1200])
            if compacted:
                collection.compact()
            stats = collection.stats()
            assert stats.added == 300
            (error,) = [each for each in stats.drift["added"].measures if each.name == "reconstruction error"]
            assert error.added == pytest.approx(
                model._error_of(16 - digits[900:1200], model.encode(16 - digits[900:1200]))
            )
            assert stats.retrain


def test_numbers_that_float16_cannot_hold_are_refused_whatever_their_type(tmp_path):
    with Collection.create(tmp_path / "c", bits=8, n_features=2, vectors="float16") as collection:
        for row in ([70000, 1], [-70000.0, 1], [1j, 1], ["a", "b"]):
            with pytest.raises(InvalidInput, match=r"cannot hold|rows of numbers"):
                collection.add(np.array([row]), codes=np.zeros((1, 1), np.uint8))
        assert len(collection) == 0


def test_a_repair_that_fails_can_be_tried_again(filled, digits, monkeypatch):
    from auxbit.collection.storage import Manifest

    def no_space(*args):
        raise OSError(28, "No space left")

    newest = filled.path / filled.manifest.segments[-1].file
    filled.close()
    newest.write_bytes(newest.read_bytes()[:-100])
    with Collection.open(filled.path, damaged="skip") as rest:
        before = len(rest)
        with monkeypatch.context() as patched:
            patched.setattr(
                Manifest, "write", lambda *args: (_ for _ in ()).throw(OSError(28, "No space left"))
            )
            with pytest.raises(FileProblem, match="No space left"):
                rest.compact()
        assert len(rest) == before
        assert rest.damage
        rest.compact()
        assert rest.check() == []
        assert len(rest) == before


def test_rows_that_were_trained_on_are_merged_as_others_are(tmp_path):
    with Collection.create(tmp_path / "c", bits=8) as collection:
        for _ in range(40):
            collection.add(codes=np.zeros((1, 1), np.uint8), trained=True)
        assert len(collection.state.segments) < 2 * upkeep.MERGED
        assert collection.state.trained_at == 40
        for _ in range(40):
            collection.add(codes=np.zeros((1, 1), np.uint8))
        starts = np.cumsum([0, *(part.rows for part in collection.state.segments)])
        assert 40 in starts  # the border lies between two segments
