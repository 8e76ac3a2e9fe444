"""Segments: what is written is read back, by others too, and no byte changes unnoticed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from auxbit import LSH, Collection
from auxbit.collection import storage
from auxbit.collection.storage import CHUNK_BYTES, COPIES, MANIFEST, Column, Errors, Manifest, Part, Segment
from auxbit.errors import CollectionError, Damaged

ROWS = 3000


def columns(rows=ROWS, dims=20):
    rng = np.random.default_rng(0)
    vectors = rng.random((rows, dims)).astype(np.float32)
    lengths = rng.integers(0, 90, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    text = rng.integers(0, 256, offsets[-1], dtype=np.uint8)
    planes = rng.integers(0, 256, (-(-rows // 64), 8, 64), dtype=np.uint8)
    ids = np.arange(rows)
    return {"codes": planes, "ids": ids, "offsets": offsets, "text": text, "vectors": vectors}


def write(folder, arrays, rows=ROWS, pieces=lambda array: [array]):
    made = [Column(name, array.dtype, array.shape, pieces(array)) for name, array in arrays.items()]
    return storage.write(folder / "segment-000000.safetensors", rows, made)


def test_columns_come_back_as_they_were_written_in_whatever_pieces(tmp_path):
    arrays = columns()
    written = write(tmp_path, arrays, pieces=lambda array: np.array_split(array, 7))
    segment = Segment(tmp_path, written)
    assert segment.path.stat().st_size == written.bytes
    for name, array in arrays.items():
        np.testing.assert_array_equal(segment.column(name), array)
        assert segment.unchecked(name).ctypes.data % 64 == 0
        assert not segment.column(name).flags.writeable
    some = np.array([5, 2999, 0, 5])
    np.testing.assert_array_equal(segment.take("vectors", some), arrays["vectors"][some])
    segment.check_spans("text", np.array([70_000]), np.array([70_100]))
    np.testing.assert_array_equal(segment.unchecked("text")[70_000:70_100], arrays["text"][70_000:70_100])


@pytest.mark.parametrize("name", ["codes", "ids", "offsets", "text", "vectors"])
def test_columns_that_are_not_as_the_manifest_says_are_refused_whatever_their_checksums(tmp_path, name):
    manifest = Manifest(64, n_features=20, vectors="float32")
    Segment(tmp_path, write(tmp_path, columns())).fitting(manifest)
    changes = [
        lambda array: array[:-1],
        lambda array: array[:0],
        lambda array: array[..., :-1],
        lambda array: array[None],
        lambda array: array.astype(np.uint32),
    ]
    for change in changes[3:] if name == "text" else changes:  # which has any length
        (tmp_path / "segment-000000.safetensors").unlink()
        written = write(tmp_path, columns() | {name: change(columns()[name])})
        with pytest.raises(Damaged, match=rf"segment-000000\.safetensors is damaged: {name} is .*, expected"):
            Segment(tmp_path, written).fitting(manifest)
    (tmp_path / "segment-000000.safetensors").unlink()
    some = {each: array for each, array in columns().items() if each != name}
    with pytest.raises(Damaged, match=r"expected .*, found "):
        Segment(tmp_path, write(tmp_path, some)).fitting(manifest)


def test_a_model_of_other_rows_or_codes_is_not_taken_for_that_of_the_collection(tmp_path):
    X = np.random.default_rng(0).normal(size=(200, 50))
    with Collection.create(tmp_path / "c", LSH(8, random_state=0).fit(X)) as collection:
        collection.add(X)
        name = collection.manifest.model
    for rows, bits in ((X, 17), (X[:, :40], 8)):
        LSH(bits, random_state=0).fit(rows).save(tmp_path / "c" / name)
        why = rf"is not the model of this collection: .* of {bits} bits from rows of {rows.shape[1]}"
        with pytest.raises(CollectionError, match=why):
            Collection.open(tmp_path / "c").search(X[:2], mode="asymmetric")


def test_a_segment_is_a_safetensors_file_that_others_can_read(tmp_path):
    arrays = columns()
    write(tmp_path, arrays)
    with safe_open(tmp_path / "segment-000000.safetensors", framework="numpy") as file:
        for name, array in arrays.items():
            np.testing.assert_array_equal(file.get_tensor(name), array)


@given(sizes=st.lists(st.integers(0, 3 * CHUNK_BYTES), max_size=5))
def test_pieces_of_any_size_have_the_checksums_of_the_whole(tmp_path_factory, sizes):
    folder = tmp_path_factory.mktemp("segment")
    whole = np.random.default_rng(0).integers(0, 256, sum(sizes), dtype=np.uint8)
    pieces = np.split(whole, np.cumsum(sizes)[:-1]) if sizes else []
    column = Column("text", np.uint8, whole.shape, pieces)
    segment = Segment(folder, storage.write(folder / "s", 1, [column]))
    assert segment.damage() == {}
    np.testing.assert_array_equal(segment.column("text"), whole)


def test_pieces_that_do_not_make_up_their_column_leave_no_file(tmp_path):
    column = Column("ids", np.int64, (3,), [np.arange(2)])
    with pytest.raises(ValueError, match="16 bytes instead of 24"):
        storage.write(tmp_path / "s", 3, [column])
    assert list(tmp_path.iterdir()) == []


@given(data=st.data())
def test_a_flipped_bit_is_noticed_before_what_it_is_in_is_used(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("segment")
    arrays = columns()
    written = write(folder, arrays)
    path = folder / written.file
    front = Segment(folder, written).front_bytes
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    if place < front:
        with pytest.raises(Damaged, match=written.file):
            Segment(folder, written)
        return
    segment = Segment(folder, written)
    for name, array in arrays.items():
        here = segment.places[name].start <= place < segment.places[name].stop
        if here:
            with pytest.raises(Damaged, match=rf"{written.file} is damaged: 64 KB of column '{name}'"):
                segment.column(name)
        else:
            np.testing.assert_array_equal(segment.column(name), array)


@pytest.mark.parametrize("name", ["codes", "ids", "offsets", "text", "vectors"])
def test_only_rows_with_a_part_in_a_damaged_chunk_are_lost(tmp_path, name):
    rows = 30_000
    arrays = columns(rows)
    written = write(tmp_path, arrays, rows)
    segment = Segment(tmp_path, written)
    chunk = segment.places[name].n_chunks // 2
    content = bytearray(segment.path.read_bytes())
    content[segment.places[name].start + chunk * CHUNK_BYTES + 17] ^= 4
    segment.path.write_bytes(content)
    segment = Segment(tmp_path, written)
    damage = segment.damage()
    assert {column: chunks.tolist() for column, chunks in damage.items()} == {name: [chunk]}
    lost = segment.lost_rows(damage)
    for row in range(rows):
        at = {
            "codes": (row // 64 * 512, row // 64 * 512 + 512),
            "ids": (row * 8, row * 8 + 8),
            "offsets": (row * 8, row * 8 + 16),
            "text": (arrays["offsets"][row], arrays["offsets"][row + 1]),
            "vectors": (row * 80, row * 80 + 80),
        }[name]
        touched = at[0] < (chunk + 1) * CHUNK_BYTES and at[1] > chunk * CHUNK_BYTES
        assert lost[row] == (touched and at[0] < at[1]), row


def test_a_file_cut_short_is_an_error_or_what_is_left_of_it(tmp_path):
    arrays = columns(30_000)
    written = write(tmp_path, arrays, 30_000)
    path = tmp_path / written.file
    path.write_bytes(path.read_bytes()[: written.bytes * 2 // 3])
    with pytest.raises(Damaged, match="bytes instead of"):
        Segment(tmp_path, written)
    segment = Segment(tmp_path, written, lenient=True)
    lost = segment.lost_rows(segment.damage())
    assert 0 < lost.sum() < 30_000
    np.testing.assert_array_equal(segment.unchecked("vectors")[~lost], arrays["vectors"][~lost])


# ---- the manifest


def manifest():
    part = Part("segment-000000.safetensors", 10, 999, 123, Errors(10, 0.5))
    return Manifest(16, 64, model="model-000000.safetensors", segments=(part,), next_id=10, next_file=2)


def test_a_manifest_comes_back_as_it_was_written(tmp_path):
    manifest().write(tmp_path)
    assert Manifest.read(tmp_path) == manifest()


@given(data=st.data())
def test_one_damaged_copy_of_the_manifest_does_no_harm(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("manifest")
    manifest().write(folder)
    content = bytearray((folder / MANIFEST).read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (folder / MANIFEST).write_bytes(content)
    assert Manifest.read(folder) == manifest()


def test_a_manifest_that_cannot_be_used_says_why(tmp_path):
    with pytest.raises(CollectionError, match=r"has no manifest\. Collections are made by"):
        Manifest.read(tmp_path)
    with pytest.raises(CollectionError, match="does not exist"):
        Manifest.read(tmp_path / "nothing")
    (tmp_path / MANIFEST).write_text("{}\n{}\n")
    with pytest.raises(Damaged, match="no copy of it matches its checksum"):
        Manifest.read(tmp_path)
    manifest().write(tmp_path)
    lines = (tmp_path / MANIFEST).read_text().split("\n\n")
    assert lines == [lines[0]] * COPIES + [""]
    for change, match in [
        ({"format_version": 99}, "has format 99, made by auxbit .*Upgrade"),
        ({"n_bits": 0}, "not a complete manifest"),
        ({"segments": [{"file": "../x", "rows": 1, "bytes": 1, "check": 1, "errors": {}}]}, "file name"),
        ({"unknown": 1}, "not a complete manifest"),
    ]:
        body = json.dumps(json.loads(json.loads(lines[0])["manifest"]) | change)
        from auxbit.core.files import checksum

        line = json.dumps({"check": checksum([body.encode()]), "manifest": body})
        (tmp_path / MANIFEST).write_text(line)
        with pytest.raises(CollectionError, match=match):
            Manifest.read(tmp_path)
