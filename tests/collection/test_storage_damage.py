from __future__ import annotations

import json
import os
import shutil
import struct
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxbit import Collection
from auxbit.collection.storage import MANIFEST, Manifest
from auxbit.errors import AuxbitError, CollectionError, Damaged
from helpers.collection_truth import Contents, D, difference, model

CHUNK = 2**16
SIZES = (12_000, 700, 3000)  # rows of the segments: columns of several chunks, and of one
WHERE = {"n": {"<": 700}}


class Whole:
    """A collection before it is damaged: its contents by position, and the bytes of its files."""

    def __init__(self, path):
        self.path, rng = path, np.random.default_rng(0)
        n = sum(SIZES)
        X = rng.normal(size=(n, D)).astype(np.float32)
        ids = np.arange(n)
        ids[-500:] = ids[:500]  # replace the first, by an upsert
        rows = [{"n": i, "text": "x" * (i % 7)} if i % 5 else {} for i in range(n)]
        with Collection.create(path, model(1), vectors="float16", n_jobs=1) as collection:
            start = 0
            for size in SIZES:
                some = slice(start, start + size)
                collection.add(X[some], ids=ids[some], metadata=rows[some], upsert=True)
                start += size
            collection.delete(ids[1000:1100])
        everything = Contents.empty(1)
        self.positions = replace(
            everything, ids=ids, codes=model(1).encode(X), rows=tuple(rows), vectors=X.astype(np.float16),
            next_id=int(ids.max()) + 1,
        )  # fmt: skip
        self.manifest = Manifest.read(path)
        self.removed = dict(zip((each.file for each in self.manifest.removed),
                                (np.arange(500), np.arange(1000, 1100)), strict=True))  # fmt: skip
        self.bytes = {name: (path / name).read_bytes() for name in sorted(self.manifest.files | {MANIFEST})}

    def contents(self, lost=(), back=()):
        """What is there without lost positions, and with deletions undone; of equal ids the last counts."""
        here = np.ones(len(self.positions.ids), bool)
        for name, gone in self.removed.items():
            here[gone] = name in back
        here[list(lost)] = False
        kept = np.flatnonzero(here)
        last = {int(self.positions.ids[at]): at for at in kept.tolist()}
        kept = np.array(sorted(last.values()), dtype=np.int64)
        p = self.positions
        return replace(
            p,
            ids=p.ids[kept],
            codes=p.codes[kept],
            rows=tuple(p.rows[i] for i in kept),
            vectors=p.vectors[kept],
        )

    def lost_rows(self, name, damaged):
        """The slow truth: rows of a segment with a byte in 64 KB of a column that are not as they were."""
        content = self.bytes[name]
        ends, layout = layout_of(content)
        rows, front = layout["ids"]["shape"][0], ends["checks"][1]
        if damaged is None or damaged[:front] != content[:front]:
            return np.ones(rows, bool)

        def changed(column):
            start, stop = ends[column]
            chunks = [slice(at, min(at + CHUNK, stop)) for at in range(start, stop, CHUNK)]
            return [each.start - start for each in chunks if damaged[each] != content[each]]

        texts = np.frombuffer(content[slice(*ends["offsets"])], "<i8")
        r = np.arange(rows)
        width = layout["codes"]["shape"][1]
        spans = {
            "codes": (r // 64 * 64 * width, (r // 64 + 1) * 64 * width),
            "ids": (8 * r, 8 * r + 8),
            "offsets": (8 * r, 8 * r + 16),
            "text": (texts[:-1], texts[1:]),
            "vectors": (2 * D * r, 2 * D * (r + 1)),
        }
        lost = np.zeros(rows, bool)
        for column, (first, last) in spans.items():
            for at in changed(column):
                lost |= (first < at + CHUNK) & (last > at) & (last > first)
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


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return Whole(tmp_path_factory.mktemp("damage") / "c")


def layout_of(content):
    """Where the columns of a segment begin and end, from the header as safetensors has it; and the header."""
    (length,) = struct.unpack("<Q", content[:8])
    layout = json.loads(content[8 : 8 + length])
    layout.pop("__metadata__")
    ends = {name: [8 + length + at for at in entry["data_offsets"]] for name, entry in layout.items()}
    return ends, layout


def regions_of(content):
    """The parts of a file by name: the columns of a segment and what is before them, or halves."""
    if b"auxbit segment" not in content[:200]:
        return {"first half": (0, len(content) // 2), "second half": (len(content) // 2, len(content))}
    ends, _ = layout_of(content)
    front = {"header": (0, ends["checks"][0])}
    return front | {name.split(".")[0]: each for name, each in ends.items() if each[0] < each[1]}


def flipped(content, place, bit):
    return content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]


@given(data=st.data())
def test_a_flipped_bit_is_noticed_and_its_file_named_or_it_does_no_harm(whole, data):
    regions = [(name, each) for name, content in whole.bytes.items() for each in regions_of(content).values()]
    name, (start, stop) = data.draw(st.sampled_from(regions), label="where")
    place, bit = data.draw(st.tuples(st.integers(start, stop - 1), st.integers(0, 7)), label="place, bit")
    truth = whole.contents()
    queries = truth.vectors[:3].astype(np.float32)
    readings = {
        "ids": lambda c: np.array_equal(c.ids, truth.ids),
        "codes": lambda c: np.array_equal(c.codes(), truth.codes),
        "metadata": lambda c: c.metadata(truth.ids) == list(truth.rows),
        "vectors": lambda c: np.array_equal(c.vectors(truth.ids), truth.vectors),
        "search": lambda c: np.array_equal(c.search(codes=truth.codes[:3], k=1)[0][:, 0], [0, 0, 0]),
        "model": lambda c: np.array_equal(c.model.encode(queries), model(1).encode(queries)),
        "where": lambda c: found_where(c, truth) == matching(truth),
    }
    with whole.damaged({name: flipped(whole.bytes[name], place, bit)}):
        noticed = []
        for reading, is_right in readings.items():
            try:
                with Collection.open(whole.path, n_jobs=1) as collection:
                    assert is_right(collection), f"{reading} is wrong"
            except AuxbitError as error:
                noticed.append(str(error))
        assert all(name in error for error in noticed)
        found = Collection.open(whole.path, damaged="skip", n_jobs=1).check()
        assert bool(found) == bool(noticed)
        assert all(name in line for line in found)
        assert not (name == MANIFEST and noticed), "one copy of the manifest is enough"


def found_where(collection, truth):
    ids = collection.search(codes=truth.codes[:1], k=800, where=WHERE)[1]
    return sorted(ids[ids >= 0].tolist())


def matching(truth):
    return sorted(int(i) for i, row in zip(truth.ids, truth.rows, strict=True) if row.get("n", 700) < 700)


def damage(whole, how, rng):
    """Some files of a collection, damaged."""
    by_upsert, by_delete = whole.removed
    name = {"positions": by_delete, "upsert": by_upsert}.get(how, whole.manifest.segments[0].file)
    content, how = whole.bytes[name], "positions" if how == "upsert" else how
    if how == "several":
        columns = rng.permutation(["ids", "codes", "text", "offsets", "vectors", "upsert"])[:3]
        every = [damage(whole, column, rng) for column in columns]
        return every[0] | every[1] | every[2]
    if how == "an id of another row":  # of position 9000, in another 64 KB than position 808
        return {name: flipped(content, layout_of(content)[0]["ids"][0] + 8 * 9000 + 1, 5)}
    if how in ("cut", "zeros"):
        at = int(rng.integers(len(content)))
        rest = bytes(min(5000, len(content) - at)) + content[at + 5000 :] if how == "zeros" else b""
        return {name: content[:at] + rest}
    if how in ("longer", "missing"):
        return {name: content + b"more" if how == "longer" else None}
    return {name: flipped(content, int(rng.integers(*regions_of(content)[how])), int(rng.integers(8)))}


HOW = ("header", "checks", "codes", "ids", "offsets", "text", "vectors", "positions", "upsert", "padding",
       "an id of another row", "cut", "zeros", "longer", "missing", "several")  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("how", HOW)
def test_the_rest_of_a_damaged_collection_is_exactly_what_is_not_damaged(whole, how, seed):
    files = damage(whole, how, np.random.default_rng([seed, HOW.index(how)]))
    lost, start = [], 0
    for part in whole.manifest.segments:
        if part.file in files:
            lost += (start + np.flatnonzero(whole.lost_rows(part.file, files[part.file]))).tolist()
        start += part.rows
    back = {
        name
        for name in whole.removed
        if name in files and not _same_positions(whole.bytes[name], files[name])
    }
    expected = whole.contents(lost, back)
    with whole.damaged(files):
        with Collection.open(whole.path, damaged="skip", n_jobs=1) as rest:
            assert difference(rest, expected) == ""
            assert found_where(rest, expected) == matching(expected)
            assert bool(rest.damage) == bool(lost or back) or how == "longer"
            with pytest.raises(CollectionError, match="skip"):
                rest.delete(expected.ids[:1])
            rest.compact()
            assert difference(rest, expected) == ""
        with Collection.open(whole.path, n_jobs=1) as again:
            assert difference(again, expected) == ""
            assert again.check() == []
            again.add(codes=expected.codes[:1], X=expected.vectors[:1])


def _same_positions(content, damaged):
    """Whether a file of deletions is as it was but for its padding."""
    stop = layout_of(content)[0]["positions"][1]
    return damaged is not None and damaged[:stop] == content[:stop]


def test_a_change_of_a_damaged_collection_is_refused_and_makes_it_no_worse(whole):
    name = whole.manifest.segments[0].file
    content = bytearray(whole.bytes[name])
    content[len(content) // 2] ^= 1  # of the vectors
    with whole.damaged({name: bytes(content)}), Collection.open(whole.path, n_jobs=1) as collection:
        with pytest.raises(Damaged, match=name):
            collection.compact()
        with pytest.raises(Damaged, match=name):
            collection.retrain(model(0))
        collection.add(codes=whole.positions.codes[:1], X=whole.positions.vectors[:1].astype(np.float32))
        assert len(collection) == len(whole.contents().ids) + 1
        assert [name in line for line in collection.check()] == [True]


def search_in(path, whole):
    with Collection.open(path, n_jobs=1) as collection:
        collection.search(whole.positions.vectors[:1].astype(np.float32))


def test_what_is_missing_or_no_collection_is_named(whole, tmp_path):
    for name in whole.bytes:
        message = name if name != MANIFEST else "has no manifest"
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
    for name in whole.bytes:
        path = tmp_path / name
        shutil.copytree(whole.path, path)
        (path / name).unlink()
        (path / name).mkdir()
        with pytest.raises(AuxbitError, match=name):
            search_in(path, whole)
