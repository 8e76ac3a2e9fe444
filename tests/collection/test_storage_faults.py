from __future__ import annotations

import builtins
import errno
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from auxbit import Collection
from auxbit.errors import AuxbitError, FileProblem
from helpers.collection_truth import Contents, D, difference, found_after, model

CALLS = ("open", "write", "lseek", "fsync", "ftruncate", "replace", "link", "unlink", "mkdir", "listdir",
         "scandir")  # fmt: skip
RNG = np.random.default_rng(0)
X = RNG.normal(size=(70, D)).astype(np.float32)


class Faults:
    """Lets the n-th call of the system fail that is about files below a folder, or statement of SQL.

    kind : "once", "from then on", or "interrupt", which is a KeyboardInterrupt after the call has been made.
    """

    def __init__(self, folder: Path, at: int, kind: str) -> None:
        self.folder, self.at, self.kind = str(folder), at, kind
        self.calls, self._descriptors = 0, set[int]()

    @property
    def came(self) -> bool:
        return self.calls > self.at

    @contextmanager
    def injected(self):
        wrapped = {name: self._around(getattr(os, name), name) for name in CALLS if hasattr(os, name)}
        with (
            mock.patch.multiple(os, **wrapped),
            mock.patch.object(builtins, "open", self._around(open, "open of Python")),
            mock.patch.object(Faulty, "faults", self),
        ):
            yield self

    def fails(self) -> bool:
        """Whether the present call is one that fails."""
        self.calls += 1
        return self.calls == self.at + 1 or (self.came and self.kind == "from then on")

    def _around(self, real, name):
        def call(*args, **options):
            elsewhere = args[0] not in self._descriptors and not str(args[0]).startswith(self.folder)
            if elsewhere or (self.kind == "interrupt" and name == "open of Python"):
                return real(*args, **options)  # an interrupt before `with` would leave the file open
            fails = self.fails()
            if fails and self.kind != "interrupt":
                if name == "write":  # what a full disk still takes
                    real(args[0], args[1][: len(args[1]) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(args[0]))
            made = real(*args, **options)
            if isinstance(made, int) and name == "open":
                self._descriptors.add(made)
            if fails:
                raise KeyboardInterrupt
            return made

        return call


class Faulty(sqlite3.Connection):
    """A connection whose statements are calls that may fail, but for ROLLBACK, which writes nothing."""

    faults: Faults | None = None

    def execute(self, statement, *parameters):
        return self._guarded(super().execute, statement, *parameters)

    def executemany(self, statement, *parameters):
        return self._guarded(super().executemany, statement, *parameters)

    def _guarded(self, run, statement, *parameters):
        fails = self.faults is not None and statement != "ROLLBACK" and self.faults.fails()
        if fails and self.faults.kind != "interrupt":
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorname = "SQLITE_FULL"
            raise error
        done = run(statement, *parameters)
        if fails:
            raise KeyboardInterrupt
        return done


@pytest.fixture(autouse=True)
def faulty(monkeypatch):
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Faulty))


@pytest.fixture
def place(tmp_path):
    """A folder in memory: a fault does not depend on the disk below."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def template(request, tmp_path_factory):
    """A collection with deletions, and its contents; adding to it fills a block of codes."""
    path, contents = (
        tmp_path_factory.mktemp("faults") / "template",
        Contents.empty(0, text=request.param == "text"),
    )
    with Collection.create(path, model(0), vectors="float16", n_jobs=1) as collection:
        for some in (np.arange(20), np.arange(20, 60)):
            ids = names(some) if contents.text else some
            rows = [{"n": int(i), "text": "x" * 300} for i in some]
            collection.add(X[some], ids=ids, metadata=rows)
            contents = contents.added(ids, model(0).encode(X[some]), rows, X[some])
        collection.delete(contents.ids[[3, 4]])
    return path, contents.without(contents.ids[[3, 4]])


def names(numbers):
    return np.array([f"item {i}" for i in numbers], dtype=object)


def _added(contents, some):
    ids = names(some) if contents.text else some
    return contents.added(ids, model(0).encode(X[some]), None, X[some])


def _id(contents, some):
    return names(some) if contents.text else np.asarray(some)


CHANGES = {
    "add": (
        lambda c, s: c.add(X[60:70], ids=_id(s, np.arange(60, 70))),
        lambda s: _added(s, np.arange(60, 70)),
    ),
    "upsert": (
        lambda c, s: c.add(X[1:20], ids=_id(s, np.arange(1, 20)), upsert=True),
        lambda s: _added(s, np.arange(1, 20)),
    ),
    "delete": (lambda c, s: c.delete(_id(s, [7, 8])), lambda s: s.without(_id(s, [7, 8]))),
    "update": (
        lambda c, s: c.update_metadata(_id(s, [7, 8]), {"m": 1, "n": None}),
        lambda s: s.updated(_id(s, [7, 8]), {"m": 1, "n": None}),
    ),
    "compact": (lambda c, s: c.compact(), lambda s: s),
    "retrain": (lambda c, s: c.retrain(model(1)), lambda s: s.retrained(1)),
}


EVERY = [("integers", name, kind) for name in CHANGES for kind in ("once", "from then on", "interrupt")]
EVERY += [("text", name, "once") for name in ("add", "upsert", "delete", "update")]


@pytest.mark.parametrize(("template", "name", "kind"), EVERY, indirect=["template"])
def test_a_fault_at_any_call_leaves_all_as_it_was_or_as_it_was_to_be(template, place, name, kind):
    original, before = template
    make, what_follows = CHANGES[name]
    after = what_follows(before)
    for at in range(0, 1000, 1 if kind == "once" else 3):
        path = place / "c"
        shutil.copytree(original, path)
        with Collection.open(path, n_jobs=1) as collection:
            collection.lock()  # is the writer
            error: BaseException | None = None
            with Faults(path, at, kind).injected() as faults:
                try:
                    make(collection, before)
                except (AuxbitError, KeyboardInterrupt) as raised:
                    error = raised.with_traceback(None)  # which would keep statements, and these connections
            where = f"{kind} at call {at} of {name}: {error!r}"
            found = {
                text
                for text, each in (("before", before), ("after", after))
                if (text == "after") == (error is None) or kind == "interrupt"
                if not difference(collection, each)
            }
            if error is None:
                assert "after" in found, where
            elif kind == "interrupt":
                assert found, where
            else:
                assert isinstance(error, FileProblem), where
                assert re.search("No space left|disk is full", str(error)), where
                assert "before" in found, where
            now = after if "after" in found else before
            wrong, _ = found_after_fault(collection, path, now)
            assert not wrong, f"{wrong} ({where})"
        shutil.rmtree(path)
        if not faults.came:
            assert at > 5
            return
    raise AssertionError("the change never came to its end")


def found_after_fault(collection, path, now):
    """What is wrong when the same object adds and closes, and others look at it and write."""
    given = ["later"] if now.text else None
    ids = collection.add(codes=np.zeros((1, now.codes.shape[1]), np.uint8), X=X[:1], ids=given)
    following = now.added(ids, np.zeros((1, now.codes.shape[1]), np.uint8), None, X[:1])
    collection.close()
    wrong, came_about = found_after(path, now, following)
    return wrong or ("" if came_about else "a later addition is lost"), came_about


@pytest.mark.parametrize("kind", ["once", "from then on", "interrupt"])
def test_a_fault_at_any_call_of_create_leaves_nothing_or_a_collection(place, kind):
    for at in range(0, 1000, 1 if kind == "once" else 2):
        root = place / str(at)
        root.mkdir()
        with Faults(root, at, kind).injected() as faults:
            try:
                Collection.create(root / "c", model(0), vectors="float16").close()
                error = None
            except (FileProblem, KeyboardInterrupt) as raised:
                error = raised.with_traceback(None)
        wrong, there = found_after(root / "c", None, Contents.empty(0))
        assert not wrong, f"{wrong} ({kind} at call {at}: {error!r})"
        assert there or error is not None
        if kind == "once":
            assert {entry.name for entry in root.iterdir()} <= {"c"}, f"call {at}"
        if not faults.came:
            assert at > 5
            return
        if not there:
            Collection.create(root / "c", model(0), vectors="float16").close()
    raise AssertionError("create never came to its end")


# ---- a disk that is really full

FULL = """
import resource
import sys
from pathlib import Path
import numpy as np
from auxbit.errors import FileProblem
from helpers.collection_truth import change, difference, found_after
from auxbit import Collection

folder = Path(sys.argv[1])
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
rng = np.random.default_rng(0)
failed = made = 0
for seed in range(3):
    path, contents, collection = folder / str(seed), None, None
    for number in range(12):
        make, after = change(contents, seed, number, 300)
        sizes = [each.stat().st_size for each in path.iterdir()] if path.exists() else [4096, 20000]
        limits = [int(rng.choice(sizes) * rng.uniform(0.5, 1.2)) for _ in range(6)]
        for limit in limits:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            try:
                now = make(path, collection)
            except FileProblem as error:
                assert "written" in str(error) or "made" in str(error), error
                failed += 1
            else:
                collection, contents = now, after
                break
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            assert collection is None or not difference(collection, contents), (seed, number, limit)
        else:
            collection, contents = make(path, collection), after
        made += 1
        assert not difference(collection, contents), (seed, number)
    assert collection.check() == []
    collection.close()
    assert found_after(path, contents, contents) == ("", True)
print(made, failed)
"""


def run_child(program: str, *arguments: object) -> str:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_files_that_may_not_grow_further_end_in_errors_and_lose_nothing(place):
    made, failed = map(int, run_child(FULL, place).split())
    assert made == 36
    assert failed > 30


def test_a_database_that_may_not_grow_further_ends_in_errors_and_loses_nothing(place):
    with Collection.create(place / "c", bits=20, n_jobs=1) as collection:
        contents = Contents.empty(None, text=True)
        codes = np.zeros((40, 3), np.uint8)

        def add(number: int) -> Contents:
            ids = names(range(40 * number, 40 * number + 40))
            rows = [{"text": "x" * 500}] * 40
            collection.add(codes=codes, ids=ids, metadata=rows)
            return contents.added(ids, codes, rows, None)

        contents = add(0)
        writer = collection._storage.connections.writer()
        pages = writer.execute("PRAGMA page_count").fetchone()[0]
        for number, more in enumerate([0, 1, 3, 7, 12], start=1):
            writer.execute(f"PRAGMA max_page_count = {pages + more}")
            with pytest.raises(FileProblem, match="database or disk is full"):  # noqa: PT012  at some addition
                for _ in range(20):
                    contents = add(100 * number + len(contents.ids))
            assert difference(collection, contents) == ""
            with Collection.open(place / "c", read_only=True, n_jobs=1) as reader:
                assert difference(reader, contents) == ""
            writer.execute("PRAGMA max_page_count = 1000000")
            contents = add(100 * number + 50_000)
            pages = writer.execute("PRAGMA page_count").fetchone()[0]
        assert collection.check() == []


def test_a_full_file_system_ends_in_errors_and_loses_nothing(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mount = shutil.which("mount")
    options = [mount, "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(small)]
    if mount is None or subprocess.run(options, capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here: that needs root")
    try:
        fill_up(small)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def fill_up(place: Path) -> None:
    """Fill a disk, and enlarge it: what was acknowledged is there all the time."""
    with Collection.create(place / "c", bits=64, n_jobs=1) as collection:
        contents = Contents(64, None, np.zeros(0, np.int64), np.zeros((0, 8), np.uint8))
        size, failed = 1000, 0
        while size:
            codes = RNG.integers(0, 256, size=(size, 8), dtype=np.uint8)
            rows = [{"n": n, "text": "x" * 20} for n in range(size)]
            try:
                ids = collection.add(codes=codes, metadata=rows)
            except FileProblem:
                failed, size = failed + 1, size // 3
            else:
                contents = contents.added(ids, codes, rows, None)
            assert difference(collection, contents) == ""
        assert failed > 5
        with pytest.raises(FileProblem):
            collection.compact()
        with Collection.open(place / "c", read_only=True, n_jobs=1) as reader:
            assert difference(reader, contents) == ""
        subprocess.run(["mount", "-o", "remount,size=8m", str(place)], check=True)
        collection.delete(contents.ids[::2])
        collection.compact()
        assert difference(collection, contents.without(contents.ids[::2])) == ""
        assert collection.check() == []
