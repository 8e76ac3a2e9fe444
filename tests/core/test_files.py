from __future__ import annotations

import errno
import hashlib
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
import zlib
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxbit.core import files
from auxbit.core.files import (
    CHUNK,
    Checked,
    Connections,
    Flat,
    WriterLock,
    append_checked,
    check_layout,
)
from auxbit.core.parallel import FORK_SECONDS, unforked
from auxbit.errors import Damaged, FileExists, FileProblem, InUse, InvalidInput


def leftovers(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir() if entry.name.endswith(".part")]


def test_what_is_written_is_read_back(tmp_path):
    files.write_bytes(tmp_path / "a.bin", b"\x00\xff")
    files.write_text(tmp_path / "b.txt", "μ\n")
    assert (tmp_path / "a.bin").read_bytes() == b"\x00\xff"
    assert (tmp_path / "b.txt").read_bytes() == "μ\n".encode()
    assert leftovers(tmp_path) == []


def test_folders_on_the_way_are_made(tmp_path):
    files.write_text(tmp_path / "new" / "deeper" / "a.txt", "a")
    assert (tmp_path / "new" / "deeper" / "a.txt").read_text() == "a"


def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path):
    files.write_text(tmp_path / ("é" * 125 + ".npy"), "a")
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("overwrite", [True, False])
def test_an_exception_leaves_the_folder_as_it_was(tmp_path, overwrite):
    target = tmp_path / "a.txt"
    if overwrite:
        target.write_text("old")

    def stop_half_way():
        with files.replacing(target, overwrite=overwrite) as temporary:
            temporary.write_text("half")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        stop_half_way()
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("a.txt", "old")] * overwrite


KILLED = """
import os, sys
from auxbit.core import files
with files.replacing(sys.argv[1]) as temporary:
    with temporary.open("wb") as file:
        file.write(b"new" * 100_000)
        file.flush()
        print("written", flush=True)
        sys.stdin.read()
"""


def test_a_kill_in_the_middle_leaves_the_old_file_whole_and_a_later_run_works(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")
    command = [sys.executable, "-c", KILLED, str(target)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert target.read_text() == "old"
    files.write_text(target, "new")
    assert target.read_text() == "new"


def test_an_existing_file_is_not_overwritten_unless_asked(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(FileExists, match=r"a\.txt exists\. Choose another name, or overwrite"):
        files.write_text(target, "new", overwrite=False)
    assert target.read_text() == "old"
    files.write_text(target, "new", overwrite=True)
    assert target.read_text() == "new"


def test_a_refused_block_does_not_run(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(FileExists, match="exists"), files.replacing(tmp_path / "a.txt", overwrite=False):
        raise AssertionError("the block ran")


def test_a_file_made_meanwhile_is_kept(tmp_path):
    target = tmp_path / "a.txt"

    def be_overtaken():
        with files.replacing(target, overwrite=False) as temporary:
            temporary.write_text("ours")
            target.write_text("theirs")

    with pytest.raises(FileExists, match=r"a\.txt exists"):
        be_overtaken()
    assert target.read_text() == "theirs"
    assert leftovers(tmp_path) == []


def test_a_link_to_nowhere_counts_as_existing(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExists, match="link exists"):
        files.write_text(tmp_path / "link", "new", overwrite=False)


def test_a_folder_is_refused_before_the_work(tmp_path):
    with pytest.raises(FileProblem, match="is a folder"), files.replacing(tmp_path):
        raise AssertionError("the block ran")


def test_without_hard_links_an_existing_file_is_still_refused(tmp_path, monkeypatch):
    def no_links(*_):
        raise OSError("not supported")

    monkeypatch.setattr(os, "link", no_links)
    files.write_text(tmp_path / "a.txt", "a", overwrite=False)
    with pytest.raises(FileExists, match="exists"):
        files.write_text(tmp_path / "a.txt", "b", overwrite=False)
    assert (tmp_path / "a.txt").read_text() == "a"


@pytest.mark.parametrize("round_", range(5))
def test_of_two_writers_that_race_without_overwriting_exactly_one_wins(tmp_path, round_):
    target = tmp_path / "a.txt"
    both_written = threading.Barrier(2)
    outcomes = []

    def write(content):
        try:
            with files.replacing(target, overwrite=False) as temporary:
                temporary.write_text(content)
                both_written.wait(10)
            outcomes.append(content)
        except FileExists:
            outcomes.append("refused")

    threads = [threading.Thread(target=write, args=(content,)) for content in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("refused") == 1
    assert target.read_text() in outcomes
    assert leftovers(tmp_path) == []


@pytest.fixture
def umask():
    before = os.umask(0)
    os.umask(before)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_permissions_follow_the_umask(tmp_path, umask, mask, mode):
    umask(mask)
    files.write_text(tmp_path / "a.txt", "a")
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == mode


def test_permissions_follow_the_umask_where_the_block_puts_another_file_there(tmp_path, umask):
    umask(0o022)
    with files.replacing(tmp_path / "a.txt") as temporary:
        private = tmp_path / "private"
        private.touch(mode=0o600)
        private.rename(temporary)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o644


def test_the_umask_is_never_changed_not_even_for_a_moment(tmp_path, monkeypatch):
    def changed(mask):
        raise AssertionError("os.umask was called")

    monkeypatch.setattr(os, "umask", changed)
    files.write_text(tmp_path / "a.txt", "a")


def test_a_checksum_does_not_depend_on_the_chunks():
    whole = hashlib.sha256(b"abcdef").hexdigest()
    assert files.checksum([b"abcdef"]) == files.checksum([b"ab", memoryview(b"cdef"), b""]) == whole


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_waits_for_a_change_that_takes_its_lock_meanwhile_and_not_the_other_way_round(tmp_path):
    files.WriterLock(tmp_path / "another").acquire("another")  # filelock is imported
    begun = threading.Event()

    def change():
        with unforked:
            begun.set()
            while not unforked._forking:
                time.sleep(0.001)
            lock = files.WriterLock(tmp_path / "lock")
            lock.acquire("a change")
            lock.release()

    thread = threading.Thread(target=change)
    thread.start()
    begun.wait()
    before = time.monotonic()
    child = os.fork()
    if not child:
        os._exit(0)
    assert time.monotonic() - before < FORK_SECONDS / 2
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ---- layouts

LAYOUT = "axes float64 D m; axis int64 L 0..m-1; rest float32 2 L-m+1; width float64 1 >0"


def fitting(D=5, m=3, L=4):
    rng = np.random.default_rng(0)
    return {
        "axes": rng.normal(size=(D, m)), "axis": np.arange(L) % m, "width": np.array([0.5]),
        "rest": np.zeros((2, L - m + 1), np.float32),
    }  # fmt: skip


def test_tensors_that_fit_a_layout_pass_and_say_what_its_letters_stand_for():
    sizes = {"D": 5}
    check_layout(fitting(), LAYOUT, sizes)
    assert sizes == {"D": 5, "m": 3, "L": 4}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"axes": np.zeros((6, 3))}, r"of a\.axes is \(6, 3\) of float64, expected \(D=5, m=3\) of float64"),
        ({"axes": np.zeros(5)}, r"of a\.axes is \(5\) of float64, expected \(D=5, m\) of float64"),
        ({"axes": np.zeros((5, 3), np.float32)}, r"axes is \(5, 3\) of float32, expected"),
        ({"axes": np.full((5, 3), np.inf)}, r"of a\.axes has numbers that are not finite"),
        ({"axes": np.zeros((5, 2))}, r"of a\.axis has values of 0 to 2, expected 0\.\.m-1"),
        ({"axis": np.array([0, 1, 2, -1])}, r"of a\.axis has values of -1 to 2"),
        (
            {"axis": np.zeros(5, np.int64)},
            r"rest is \(2, 2\) of float32, expected \(2, L-m\+1=3\) of float32",
        ),
        ({"width": np.zeros(1)}, r"of a\.width has values of 0\.0 to 0\.0, expected >0"),
        ({"more": np.zeros(1)}, r"expected of a\.axes, .*, found of a\.axes, .*, of a\.more"),
    ],
)
def test_tensors_that_do_not_fit_a_layout_are_refused_and_named(changed, why):
    with pytest.raises(InvalidInput, match=why):
        check_layout(fitting() | changed, LAYOUT, {"D": 5}, "of a.")


# ---- flat files

WHOLE = np.random.default_rng(1).integers(0, 256, 5 * CHUNK, dtype=np.uint8)


def slow_checks(content):
    """The checksums of all chunks."""
    chunks = [content[start : start + CHUNK] for start in range(0, len(content), CHUNK)]
    return {number: zlib.crc32(each) for number, each in enumerate(chunks)}


@given(sizes=st.lists(st.lists(st.integers(0, CHUNK), max_size=4), max_size=4), on_disk=st.booleans())
def test_appended_pieces_have_the_checksums_of_the_whole_and_come_back(tmp_path_factory, sizes, on_disk):
    flat = Flat(tmp_path_factory.mktemp("flat") / "codes.0" if on_disk else None)
    rows, end = {}, 0
    for change in sizes:
        pieces = np.split(WHOLE[end : end + sum(change)], np.cumsum(change)[:-1])
        found = flat.append(end, iter(pieces), 64, rows.get(end // CHUNK, 0))
        rows |= found
        end = min(end + sum(change), len(WHOLE))
        assert rows == slow_checks(WHOLE[:end].tobytes())
        content = flat.content(end, 64)
        assert content[:end].tobytes() == WHOLE[:end].tobytes()
        assert len(content) == end + 64
        content[end:] = 7  # for ourselves alone, where a file is mapped
    if on_disk and end:
        assert flat.path.read_bytes() == WHOLE[:end].tobytes() + bytes(64)


def test_what_lies_behind_the_end_is_written_over(tmp_path):
    flat = Flat(tmp_path / "codes.0")
    first = flat.append(0, [WHOLE[:100]], 64)
    flat.append(100, [WHOLE[:CHUNK]], 64, first[0])  # and never committed
    again = flat.append(100, [WHOLE[100:300]], 64, first[0])
    assert again == slow_checks(WHOLE[:300].tobytes())
    assert flat.content(300)[:300].tobytes() == WHOLE[:300].tobytes()


def test_a_file_without_room_behind_its_end_is_read_into_memory(tmp_path):
    (tmp_path / "codes.0").write_bytes(WHOLE[:1000].tobytes())
    content = Flat(tmp_path / "codes.0").content(1000, 64)
    assert content.tobytes() == WHOLE[:1000].tobytes() + bytes(64)


def test_a_damaged_chunk_is_named_when_it_is_first_used_or_noted(tmp_path):
    flat = Flat(tmp_path / "codes.0", "Ask for help.")
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE checks (file TEXT, chunk INTEGER, checksum INTEGER)")
    append_checked(database, flat, "codes.0", 0, [WHOLE])
    with flat.path.open("r+b") as file:
        file.seek(2 * CHUNK + 5)
        file.write(bytes([WHOLE[2 * CHUNK + 5] ^ 1]))
    strict, lenient = (Checked(flat, "codes.0", lenient=each) for each in (False, True))
    for each in (strict, lenient):
        each.grow(database, len(WHOLE))
    strict.check_rows(np.array([0, 1]), CHUNK)  # the others are not looked at
    with pytest.raises(Damaged, match=r"64 KB from byte 131,072 on do not match.*Ask for help\."):
        strict.check_rows(np.array([1, 3]), CHUNK + 1)
    lenient.check()
    assert list(lenient.spoilt(64, 2)) == [slice(2 * CHUNK // 32, 3 * CHUNK // 32)]
    database.execute("DELETE FROM checks WHERE chunk = 3")
    with pytest.raises(Damaged, match=r"lacks checksums of .*codes\.0\. Ask for help\."):
        Checked(flat, "codes.0", lenient=False).grow(database, len(WHOLE))
    database.close()


def test_small_additions_to_a_long_file_of_codes_find_a_large_page_reserved(tmp_path):
    codes, vectors, step = Flat(tmp_path / "codes.0"), Flat(tmp_path / "vectors.0"), 3 * 2**18
    whole = np.random.default_rng(0).integers(0, 256, 9 * step, dtype=np.uint8)
    sizes = []
    for start in range(0, len(whole), step):
        codes.append(start, [whole[start : start + step]], 64)
        vectors.append(start, [whole[start : start + step]], 0)
        sizes.append(codes.path.stat().st_size)
    assert sizes[0] == step + 64  # a short file is not made longer
    assert sizes[-1] % files.LARGE_PAGE == 0 or not files.HAS_LARGE_PAGES
    assert sizes[-1] <= len(whole) + 2 * files.LARGE_PAGE
    assert vectors.path.stat().st_size == len(whole)
    for flat, room in ((codes, 64), (vectors, 0)):
        assert flat.content(len(whole), room).tobytes() == whole.tobytes() + bytes(room)


@pytest.mark.skipif(not hasattr(os, "pread"), reason="without pread the database is asked")
def test_the_file_of_a_lock_tells_readers_the_last_commit_and_that_one_is_being_made(tmp_path):
    writer, reader = WriterLock(tmp_path / "writer.lock"), WriterLock(tmp_path / "writer.lock")
    reader.look()
    assert not reader.notes(7)  # there is no file
    writer.acquire("it")
    reader.look()
    assert not reader.notes(7)
    writer.note(7)
    assert [reader.notes(each) for each in (7, 8)] == [True, False]
    with suppress(ZeroDivisionError), writer.committing(8):
        assert [reader.notes(each) for each in (7, 8)] == [False, False]
        raise ZeroDivisionError
    assert [reader.notes(each) for each in (7, 8)] == [False, False]  # only the database can tell
    with writer.committing(8):
        pass
    assert [reader.notes(each) for each in (7, 8)] == [False, True]
    with pytest.raises(InUse, match=f"process {os.getpid()}"):
        reader.acquire("it")
    writer.release()
    assert reader.notes(8)  # as long as nobody writes
    writer.path.unlink()  # which nobody should do
    with pytest.raises(FileNotFoundError), writer.committing(9):
        raise AssertionError("what readers cannot be told of is not committed")
    writer.acquire("it")
    writer.note(9)
    reader.look()
    assert reader.notes(9)
    reader.release()
    assert not reader.notes(9)


def test_a_disk_without_room_for_a_large_page_still_takes_what_is_added(tmp_path, monkeypatch):
    codes, step, write = Flat(tmp_path / "codes.0"), 3 * 2**18, files.write_all
    whole = np.random.default_rng(0).integers(0, 256, 3 * step, dtype=np.uint8)

    def full(descriptor, buffer):
        if len(buffer) == files.LARGE_PAGE:
            write(descriptor, buffer[:4096])
            raise OSError(errno.ENOSPC, "No space left on device")
        write(descriptor, buffer)

    monkeypatch.setattr(files, "write_all", full)
    monkeypatch.setattr(files, "HAS_LARGE_PAGES", True)
    for start in range(0, len(whole), step):
        codes.append(start, [whole[start : start + step]], 64)
    assert codes.path.stat().st_size == len(whole) + 64
    assert codes.content(len(whole), 64).tobytes() == whole.tobytes() + bytes(64)


@pytest.mark.parametrize("on_disk", [True, False])
def test_connections_that_nobody_closed_are_closed_with_the_last_reference(on_disk, tmp_path, monkeypatch):
    closed = []

    class Noted(sqlite3.Connection):
        def close(self):
            closed.append(self)
            super().close()

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Noted))
    path = tmp_path / "d.sqlite" if on_disk else None
    if on_disk:
        sqlite3.connect(path).close()
        closed.clear()
    connections = Connections(path, lambda connection: None)
    connections.writer().execute("CREATE TABLE x (y)")
    with connections.reading() as reader:
        assert reader.execute("SELECT count(*) FROM x").fetchone() == (0,)
    del connections, reader
    assert len(closed) == (2 if on_disk else 1)
