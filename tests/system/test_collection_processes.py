from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from auxbit import Collection, HammingIndex
from auxbit.collection.storage import DATABASE
from auxbit.core.files import WAIT_SECONDS
from auxbit.errors import CollectionError, FileProblem, InUse
from auxbit.hashers import registry
from helpers.collection_truth import Contents, D, model

TESTS = Path(__file__).parents[1]
MEMORY = Path("/dev/shm")
QUERIES = np.random.default_rng(1).normal(size=(4, D)).astype(np.float32)
CODES = np.random.default_rng(2).integers(0, 256, size=(50, 2), dtype=np.uint8)

READER = """
import os
import sys
from auxbit import Collection
import test_collection_processes as tests

with Collection.open(sys.argv[1], read_only=True, n_jobs=1) as reader:
    os.set_blocking(0, False)
    print("ready", flush=True)
    while not tests.told_to_stop():
        print(tests.answers_of(reader), flush=True)
        assert reader.check() == [], reader.check()
print("done", flush=True)
"""

WRITER = """
import sys
from auxbit import Collection
import test_collection_processes as tests

writer = Collection.open(sys.argv[1], n_jobs=1)
writer.add(codes=tests.CODES[:1])
print("writes", flush=True)
sys.stdin.read()
"""


def told_to_stop() -> bool:
    """Whether the standard input of a reader has come to its end."""
    try:
        return os.read(0, 1) == b""
    except BlockingIOError:
        return False


def answers_of(collection: Collection) -> str:
    """One search by the model and the vectors, as a line of text."""
    distances, ids = collection.search(QUERIES, k=5, rerank=8)
    return " ".join(map(str, [*ids.ravel().tolist(), *distances.ravel().tolist()]))


@contextmanager
def process(program: str, path: Path):
    path_of_tests = os.pathsep.join([str(TESTS), str(TESTS / "system"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path_of_tests, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as started:
        try:
            assert started.stdout.readline() in ("ready\n", "writes\n"), started.stderr.read()
            yield started
        finally:
            if started.poll() is None:
                started.kill()


def changes(collection: Collection, n: int, seed: int = 0):
    """Make changes of all kinds one after another, and yield what a search must find after each."""
    rng, contents = np.random.default_rng(seed), Contents.empty(0)
    for _ in range(n):
        kind = rng.choice(["add", "upsert", "delete", "compact", "retrain"], p=[0.4, 0.2, 0.15, 0.1, 0.15])
        size = int(rng.integers(1, 20))
        X = rng.normal(size=(size, D)).astype(np.float32)
        if kind in ("add", "upsert"):
            ids = contents.next_number + np.arange(size)
            if kind == "upsert":
                ids = rng.permutation(contents.next_number + size)[:size]
            collection.add(X, ids=ids, upsert=kind == "upsert")
            contents = contents.added(ids, model(contents.model).encode(X), None, X)
        elif kind == "delete":
            gone = rng.permutation(contents.ids)[: len(contents.ids) // 3]
            collection.delete(gone)
            contents = contents.without(gone)
        elif kind == "compact":
            collection.compact()
        elif len(contents.ids):
            new = int(rng.integers(3))
            collection.retrain(model(new))
            contents = contents.retrained(new)
        yield expected_answers(contents)


def watched(made, seen):
    """What is made one after another; every few wait until one who reads has seen more."""
    for number, each in enumerate(made):
        yield each
        if number % 5 == 0:
            before, begun = len(seen), time.monotonic()
            while len(seen) == before and time.monotonic() - begun < 30:
                time.sleep(0.001)


def expected_answers(contents: Contents) -> str:
    """The slow truth about answers_of."""
    index = HammingIndex(contents.n_bits, n_jobs=1)
    index.add(contents.codes)
    _, near = index.search(model(contents.model).encode(QUERIES), 8)
    n = min(5, len(contents.ids))
    ids, distances = np.zeros((4, n), np.int64), np.zeros((4, n), np.float32)
    for row, (x, found) in enumerate(zip(QUERIES, near, strict=True)):
        at = np.sort(found[found >= 0])
        squared = ((contents.vectors[at].astype(np.float64) - x) ** 2).sum(axis=1)
        best = np.argsort(squared, kind="stable")[:5]
        ids[row], distances[row] = contents.ids[at][best], squared[best]
    return " ".join(map(str, [*ids.ravel().tolist(), *distances.ravel().tolist()]))


def assert_in_order(seen: list[str], states: list[str]) -> int:
    """Each of the answers is that of a state, none of one before; returns how many states were seen."""
    at, visited = 0, set()
    for answer in seen:
        assert answer in states, "an answer of no committed state"
        assert answer in states[at:], "an answer of a state before one that was seen"
        at = states.index(answer, at)
        visited.add(at)
    return len(visited)


@pytest.fixture
def collection(tmp_path):
    with Collection.create(tmp_path / "c", model(0), vectors="float16", n_jobs=1) as made:
        yield made


def test_a_reader_in_another_process_sees_committed_states_alone_and_in_order(collection):
    states = [expected_answers(Contents.empty(0))]
    with process(READER, collection.path) as reader:
        seen: list[str] = []
        listening = threading.Thread(target=lambda: seen.extend(reader.stdout))
        listening.start()
        states += watched(changes(collection, 110), seen)
        reader.stdin.close()
        listening.join()
        assert reader.wait() == 0, reader.stderr.read()
    assert seen.pop() == "done\n"
    seen = [line.rstrip("\n") for line in seen]
    assert assert_in_order(seen, states) > 20
    assert answers_of(collection) == states[-1]


def test_threads_that_share_a_collection_see_committed_states_alone(collection):
    states = [expected_answers(Contents.empty(0))]
    seen: list[str] = []
    stop = threading.Event()

    def read():
        while not stop.is_set():
            seen.append(answers_of(collection))

    reading = threading.Thread(target=read)
    reading.start()
    try:
        states += watched(changes(collection, 120, seed=1), seen)
    finally:
        stop.set()
        reading.join()
    assert assert_in_order(seen, states) > 10


def test_a_reader_that_fails_by_half_does_not_disturb_a_change(tmp_path):
    with Collection.create(tmp_path / "c", bits=16) as collection:
        real, calls = collection._bring_up, []

        def bring_up(*args):
            real(*args)
            calls.append(args)
            if len(calls) == 1:  # as if another thread had begun to bring up what all share, and failed
                collection._view = None

        with mock.patch.object(collection, "_bring_up", bring_up):
            collection.add(codes=CODES)
        assert len(calls) == 2
        assert len(collection) == len(CODES)


def test_a_retraining_while_a_reader_loads_the_model_gives_the_answer_of_a_state(collection):
    list(changes(collection, 10))
    before = answers_of(collection)
    loading = iter([True])

    def load(path):
        if next(loading, False):
            collection.retrain(model(2))
        return real(path)

    real = registry.load
    with Collection.open(collection.path, n_jobs=1) as reader, mock.patch.object(registry, "load", load):
        found = answers_of(reader)
    assert next(loading, None) is None
    assert found in (before, answers_of(collection))


def test_a_second_writer_is_told_which_process_writes_and_may_write_when_that_is_dead(tmp_path):
    path = tmp_path / "c"
    Collection.create(path, bits=16).close()
    with Collection.open(path, n_jobs=1) as second:
        with process(WRITER, path) as first:
            with pytest.raises(InUse, match=rf"is being written to by process {first.pid} on .* one writer"):
                second.add(codes=CODES)
            assert len(second) == 1  # reading goes on
            with pytest.raises(InUse, match=str(first.pid)):
                Collection.create(path, bits=16, overwrite=True)
            os.kill(first.pid, signal.SIGKILL)
            first.wait()
        second.add(codes=CODES)
        assert len(second) == 1 + len(CODES)


def test_a_second_writer_in_the_same_process_is_told_so_until_the_first_is_closed(tmp_path):
    with Collection.create(tmp_path / "c", bits=16) as first, Collection.open(tmp_path / "c") as second:
        first.add(codes=CODES)
        for change in (second.compact, lambda: second.add(codes=CODES), lambda: second.delete([1])):
            with pytest.raises(InUse, match=rf"process {os.getpid()} \(this process\)"):
                change()
        first.close()
        second.add(codes=CODES)
        assert len(second) == 2 * len(CODES)


def test_a_reader_of_a_collection_that_is_replaced_sees_the_new_one(tmp_path):
    with Collection.create(tmp_path / "c", bits=16, n_jobs=1) as old:
        old.add(codes=CODES[:20])
    with Collection.open(tmp_path / "c", n_jobs=1) as reader:
        reader.search(codes=CODES, k=1)
        with Collection.create(tmp_path / "c", bits=16, overwrite=True, n_jobs=1) as new:
            new.add(codes=CODES[20:40])
        np.testing.assert_array_equal(reader.codes(), CODES[20:40])
        assert (reader.search(codes=CODES[20:40], k=1)[0] == 0).all()


def test_what_was_opened_to_be_read_cannot_be_changed(tmp_path):
    Collection.create(tmp_path / "c", bits=16).close()
    with (
        Collection.open(tmp_path / "c", read_only=True) as reader,
        pytest.raises(CollectionError, match="opened with read_only"),
    ):
        reader.add(codes=CODES)


# ---- readers that stay


def test_a_reader_in_the_middle_of_a_read_outlives_two_compactions(collection):
    list(changes(collection, 30))
    with Collection.open(collection.path, n_jobs=1) as reader, reader._reading() as now:
        before, begun = (reader.codes().tolist(), reader.ids.tolist()), time.monotonic()
        for _ in range(2):
            collection.delete(collection.ids[::2])
            collection.compact()
        assert time.monotonic() - begun < WAIT_SECONDS, "a compaction has waited for a reader"
        collection.retrain(model(1))
        present = now.view.store.present()
        assert now.view.codes(present).tolist() == before[0]
        assert now.ids_at(present).tolist() == before[1]
        assert now.view.model().n_bits == now.state.n_bits != 24
        assert len(now.view.vectors(present)) == len(present)


def test_a_reader_that_has_slept_through_compactions_sees_the_last_state(collection):
    states = list(changes(collection, 30))
    with Collection.open(collection.path, n_jobs=1) as reader:
        assert answers_of(reader) == states[-1]
        collection.compact()
        collection.retrain(model(2))
        collection.add(QUERIES)
        assert answers_of(reader) == answers_of(collection)
        assert len(reader) == len(collection)


def test_many_threads_read_while_one_adds(collection):
    """Each sees as many items as were added at some moment, and all their ids."""
    seen, wrong, stop = [], [], threading.Event()

    def read():
        while not stop.is_set():
            ids, n = collection.ids, len(collection)
            seen.append(len(ids))
            if ids.tolist() != list(range(len(ids))) or n < len(ids) or len(ids) % 5:
                wrong.append((ids, n))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for each in threads:
        each.start()
    try:
        for _ in watched(range(60), seen):
            collection.add(np.ones((5, D), np.float32), metadata=[{"n": 1}] * 5)
    finally:
        stop.set()
        for each in threads:
            each.join()
    assert not wrong
    assert len(set(seen)) > 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_reads_and_leaves_the_connections_of_its_parent_alone(collection):
    list(changes(collection, 12))
    before = answers_of(collection)
    children = []
    for _ in range(3):
        child = os.fork()
        if not child:
            status = 1
            try:
                same = answers_of(collection) == before
                try:
                    collection.add(QUERIES)
                except InUse:  # the parent writes
                    status = 0 if same else 2
                collection.close()
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
    assert answers_of(collection) == before
    collection.add(QUERIES)  # is still the writer
    assert collection.check() == []
    with Collection.open(collection.path, n_jobs=1) as reader:
        assert answers_of(reader) == answers_of(collection)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_is_forked_while_others_add_and_search_does_not_hang(collection):
    list(changes(collection, 12))
    stop, errors = threading.Event(), []

    def again_and_again(call):
        while not stop.is_set():
            try:
                call()
            except Exception as error:
                errors.append(error)

    calls = (lambda: collection.add(QUERIES), lambda: collection.search(QUERIES, k=3))
    threads = [threading.Thread(target=again_and_again, args=(call,)) for call in calls]
    for each in threads:
        each.start()
    try:
        for _ in range(25):
            time.sleep(0.002)
            child = os.fork()
            if not child:
                faulthandler.dump_traceback_later(30, exit=True)  # a child that hangs says where, and ends
                found = collection.search(QUERIES, k=3)
                os._exit(0 if len(found.ids) == len(QUERIES) else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        for each in threads:
            each.join()
    assert not errors
    assert collection.check() == []


# ---- disks that cannot be written to


@contextmanager
def read_only(path: Path):
    """The folder on a disk that is mounted to be read alone."""
    mount = shutil.which("mount")
    bound = mount and not subprocess.run([mount, "--bind", path, path], capture_output=True).returncode
    if not bound:
        pytest.skip("a folder cannot be mounted here: that needs root")
    try:
        subprocess.run([mount, "-o", "remount,bind,ro", path], check=True)
        with pytest.raises(OSError, match="Read-only file system"):
            (path / "new").touch()
        yield
    finally:
        subprocess.run(["umount", path], check=True)


@pytest.mark.parametrize("log", ["no log", "a log", "a log and its index", "an empty log"])
def test_a_collection_on_a_read_only_disk_is_read_with_all_that_was_committed(tmp_path, log):
    live, path = tmp_path / "live", tmp_path / "c"
    with Collection.create(live, model(0), vectors="float16", n_jobs=1) as made:
        states = list(changes(made, 25))
        if log in ("a log", "a log and its index"):
            shutil.copytree(live, path)
            if log == "a log":
                (path / f"{DATABASE}-shm").unlink()
            assert (path / f"{DATABASE}-wal").stat().st_size
    if not path.exists():
        shutil.copytree(live, path)
        assert not (path / f"{DATABASE}-wal").exists()
    if log == "an empty log":
        (path / f"{DATABASE}-wal").touch()
    names = sorted(each.name for each in path.iterdir())
    with read_only(path):
        for options in ({}, {"read_only": True}, {"damaged": "skip"}):
            with Collection.open(path, n_jobs=1, **options) as collection:
                assert answers_of(collection) == states[-1]
                assert collection.check() == []
                assert collection.describe()["items"] == len(collection)
        with Collection.open(path, n_jobs=1) as collection:
            with pytest.raises(FileProblem, match="cannot be written to: Read-only file system"):
                collection.add(QUERIES)
            assert answers_of(collection) == states[-1]
    assert sorted(each.name for each in path.iterdir()) == names


@contextmanager
def as_another_user():
    """As somebody who may read all in a folder, and write nothing."""
    if os.getuid() or not MEMORY.is_dir():
        pytest.skip("only root can become another user")
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def shared_folder():
    """A folder that all users may read."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        os.chmod(name, 0o755)
        yield Path(name)


def test_a_folder_of_somebody_else_is_read_while_it_is_written_to(shared_folder):
    path = shared_folder / "c"
    with Collection.create(path, model(0), vectors="float16", n_jobs=1) as made:
        made.add(QUERIES)

    def add_by_its_owner():
        """The log is then taken into the database, which changes it."""
        os.seteuid(0)
        with Collection.open(path, n_jobs=1) as writer:
            writer.add(QUERIES)
        os.seteuid(65534)

    with as_another_user(), Collection.open(path, n_jobs=1) as reader:
        with pytest.raises(FileProblem, match="cannot be written to: Permission denied"):
            reader.add(QUERIES)
        assert reader.ids.tolist() == [0, 1, 2, 3]
        for times in range(2, 5):
            add_by_its_owner()
            assert reader.ids.tolist() == list(range(4 * times))
            assert reader.check() == []
        with pytest.raises(FileProblem, match="was changed while it was read"), reader._reading():
            add_by_its_owner()
        assert len(reader) == 20
        os.seteuid(0)
        with Collection.open(path, n_jobs=1) as writer:
            for times in range(6, 9):
                os.seteuid(0)
                writer.add(QUERIES)
                os.seteuid(65534)
                with Collection.open(path, n_jobs=1) as another:
                    assert len(another) == len(reader) == 4 * times
            os.seteuid(0)
        os.seteuid(65534)
        assert reader.ids.tolist() == list(range(32))
