"""What became of faults that were found in collections: several processes, many changes, drift."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from auxbit import ITQ, Collection
from auxbit.errors import Damaged, FileExists, InvalidInput

# ---- elsewhere


def test_an_exported_collection_gives_the_answers_of_the_collection(filled, digits, tmp_path):
    import faiss

    filled.delete([3])
    assert filled.export(tmp_path / "c.faiss") == "lsh"
    distances, _ = faiss.read_index(str(tmp_path / "c.faiss")).search(digits[:9].astype(np.float32), 5)
    np.testing.assert_array_equal(distances, filled.search(digits[:9], 5, mode="hamming")[0])
    with pytest.raises(FileExists, match="exists"):
        filled.export(tmp_path / "c.faiss")


def test_items_can_be_counted_and_looked_up(filled):
    assert filled.count() == len(filled) == 1200
    assert filled.count({"odd": True}) == 350
    assert filled.holds([0, 5000, 4999]).tolist() == [True, True, False]
    assert filled.state.n_bits == filled.n_bits == 16


# ---- several processes


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
        newest = filled.path / filled.state.vectors_file
        content = newest.read_bytes()
        newest.write_bytes(content[:-1])
        for _ in range(2):
            with pytest.raises(Damaged, match="bytes instead of"):
                reader.search(digits[:1])
        newest.write_bytes(content)
        assert (reader.search(digits[:3], 1)[0] == 0).all()


# ---- many changes


def test_ids_that_are_remembered_are_those_of_their_items_and_not_all_of_them(monkeypatch):
    monkeypatch.setattr("auxbit.collection.snapshot.MOST_KNOWN", 8)
    codes = np.arange(40, dtype=np.uint8)[:, None]
    with Collection.create(None, bits=8) as collection:
        collection.add(codes=codes, ids=[f"item {i}" for i in range(40)])
        for some in (slice(0, 5), slice(3, 12), slice(0, 40, 7), slice(0, 5)):
            found = collection.search(codes=codes[some], k=1).ids[:, 0]
            assert found.tolist() == [f"item {i}" for i in range(40)[some]]
            assert len(collection._view.known_ids) <= 8 + 9
        collection.delete(["item 0", "item 3"])
        collection.compact()
        assert collection.search(codes=codes[4:5], k=1).ids[0, 0] == "item 4"


def test_a_search_of_numbered_items_begins_no_transaction_and_sees_every_change(tmp_path, monkeypatch):
    codes = np.arange(40, dtype=np.uint8)[:, None]
    with Collection.create(tmp_path / "c", bits=8) as writer, Collection(tmp_path / "c") as reader:
        for n in range(1, 40):
            assert writer.add(codes=codes[n : n + 1]).tolist() == [n - 1]
            for each in (writer, reader, reader, writer):
                assert each.search(codes=codes[n : n + 1], k=1).ids.tolist() == [[n - 1]]
        begun = []
        monkeypatch.setattr(writer._storage, "reading", lambda: begun.append(True))
        assert writer.search(codes=codes[7:8], k=1).ids.tolist() == [[6]]
        assert not begun


def test_metadata_of_scattered_rows_survive_a_compaction(tmp_path):
    with Collection.create(tmp_path / "c", bits=8) as collection:
        rows = [{"text": "ä" * (row % 7), "row": row} if row % 3 else None for row in range(1000)]
        collection.add(codes=np.zeros((1000, 1), np.uint8), metadata=rows)
        kept = np.flatnonzero(np.random.default_rng(0).random(1000) < 0.5)
        collection.delete(np.setdiff1d(np.arange(1000), kept))
        collection.compact()
        assert collection.metadata(kept) == [rows[row] or {} for row in kept]


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
