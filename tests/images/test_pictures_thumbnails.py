"""Thumbnails in one file: what was appended is read, and damage is told."""

from __future__ import annotations

import errno
import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxbit.core import files as auxbit_files
from auxbit.errors import Damaged, FileProblem, InvalidInput
from auxbit.images import pictures
from auxbit.images.pictures import Thumbnails

HEADER = 12


@pytest.fixture
def pack(tmp_path):
    kept = Thumbnails(tmp_path)
    yield kept
    kept.close()


@given(st.lists(st.lists(st.binary(max_size=300), max_size=5), max_size=5))
def test_what_is_appended_is_read_back(tmp_path_factory, batches):
    folder = tmp_path_factory.mktemp("pack")
    kept = Thumbnails(folder)
    expected = {}
    for batch in batches:
        offsets = kept.append(batch)
        assert len(offsets) == len(batch)
        expected.update(zip(offsets, batch))
    again = Thumbnails(folder)
    for offset, content in expected.items():
        assert kept.read(offset) == again.read(offset) == content
    assert len(expected) == sum(map(len, batches))
    kept.close()
    again.close()


def test_no_file_is_made_before_there_is_something_in_it(pack):
    assert pack.append([]) == []
    assert not pack.path.exists()
    with pytest.raises(Damaged, match=r"thumbnails\.pack is missing"):
        pack.read(0)
    pack.append([b"a"])
    assert pack.read(0) == b"a"


def test_a_reader_sees_what_another_appends(tmp_path, pack):
    (first,) = pack.append([b"one"])
    reader = Thumbnails(tmp_path)
    assert reader.read(first) == b"one"
    (second,) = pack.append([b"two"])
    assert reader.read(second) == b"two"
    reader.close()


def test_many_threads_read_at_once_while_one_appends(pack):
    contents = [bytes([number]) * (number + 1) * 50 for number in range(100)]
    offsets = pack.append(contents)

    def look(turn):
        if turn % 50 == 0:
            pack.append([b"more"])
        return pack.read(offsets[turn % 100]) == contents[turn % 100]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(look, range(1000)))


@pytest.mark.parametrize("torn", [1, HEADER - 1, HEADER, HEADER + 2])
def test_what_a_writer_that_was_killed_left_at_the_end_harms_nothing(tmp_path, pack, torn):
    (first,) = pack.append([b"first"])
    (lost,) = pack.append([b"lost"])
    os.truncate(pack.path, lost + torn)
    writer = Thumbnails(tmp_path)
    (after,) = writer.append([b"after"])
    assert (writer.read(first), writer.read(after)) == (b"first", b"after")
    with pytest.raises(Damaged, match=rf"\(byte {lost}\)"):
        writer.read(lost)
    writer.close()


# ---- damage


def test_any_byte_that_changed_is_noticed_and_the_others_are_read(pack):
    offsets = pack.append([b"first", b"second", b"third"])
    whole = pack.path.read_bytes()
    for place in range(offsets[1], offsets[2]):
        changed = bytearray(whole)
        changed[place] ^= 0x10
        pack.path.write_bytes(changed)
        with pytest.raises(
            Damaged, match=rf"{re.escape(str(pack.path))} .* \(byte {offsets[1]}\)\. Restore this file"
        ):
            pack.read(offsets[1])
        assert (pack.read(offsets[0]), pack.read(offsets[2])) == (b"first", b"third")


@pytest.mark.parametrize(
    ("size", "what"), [(0, "ends before it"), (HEADER - 1, "ends before it"), (HEADER + 3, "is cut short")]
)
def test_a_file_that_is_cut_short_is_told(pack, size, what):
    pack.append([b"thumbnail"])
    os.truncate(pack.path, size)
    with pytest.raises(Damaged, match=rf"{what} \(byte 0\)"):
        pack.read(0)


@pytest.mark.parametrize(
    ("offset", "what"),
    [(-1, "ends before it"), (1, "has no thumbnail"), (10**9, "ends before"), (2**70, "cannot be read")],
)
def test_an_offset_that_was_never_given_is_damage(pack, offset, what):
    pack.append([b"a thumbnail that is long enough"])
    with pytest.raises(Damaged, match=rf"{what}.* \(byte {offset:,}\)"):
        pack.read(offset)


# ---- a full disk, and the end


def test_a_disk_that_is_full_leaves_the_file_as_it_was(pack, monkeypatch):
    (first,) = pack.append([b"first"])
    size = pack.path.stat().st_size

    def full(descriptor, content):
        os.write(descriptor, bytes(content)[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pictures, "write_all", full)
    with pytest.raises(FileProblem, match=r"thumbnails\.pack cannot be added to: No space left on device"):
        pack.append([b"second"])
    assert pack.path.stat().st_size == size
    monkeypatch.setattr(pictures, "write_all", auxbit_files.write_all)
    (second,) = pack.append([b"second"])
    assert (second, pack.read(first), pack.read(second)) == (size, b"first", b"second")


def test_it_is_on_disk_at_return(pack, monkeypatch):
    done = []
    real = os.fsync

    def fsync(descriptor):
        done.append(os.fstat(descriptor).st_ino)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    pack.append([b"a"])
    file, folder = pack.path.stat().st_ino, pack.path.parent.stat().st_ino
    assert done == [file, folder]
    pack.append([b"b"])
    assert done == [file, folder, file]


def test_a_thumbnail_that_could_not_be_read_back_is_refused(pack, monkeypatch):
    monkeypatch.setattr(pictures, "LARGEST", 10)
    with pytest.raises(InvalidInput, match=r"a thumbnail of 11 bytes; at most 10 are kept"):
        pack.append([b"ok", bytes(11)])
    assert not pack.path.exists()


def test_after_close_it_says_so(pack):
    pack.append([b"a"])
    assert pack.read(0) == b"a"
    pack.close()
    pack.close()
    for use in (lambda: pack.read(0), lambda: pack.append([b"b"])):
        with pytest.raises(InvalidInput, match=r"thumbnails\.pack is closed\. Open the collection again\."):
            use()


def test_a_system_without_pread_reads_as_well(pack, monkeypatch):
    monkeypatch.delattr(os, "pread", raising=False)
    offsets = pack.append([b"one", b"two"])
    assert [pack.read(offset) for offset in offsets] == [b"one", b"two"]
