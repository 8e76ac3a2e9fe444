from __future__ import annotations

import builtins
import errno
import os
import resource
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from auxbit import Collection
from auxbit.errors import AuxbitError, FileProblem, InvalidInput
from helpers.collection_truth import Contents, D, difference, found_after, model

CALLS = ("open", "write", "lseek", "fsync", "replace", "link", "unlink", "mkdir", "listdir", "scandir")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, D)).astype(np.float32)


class Faults:
    """Lets the n-th call of the system fail that is about files below a folder.

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
        ):
            yield self

    def _around(self, real, name):
        def call(*args, **options):
            elsewhere = args[0] not in self._descriptors and not str(args[0]).startswith(self.folder)
            if elsewhere or (self.kind == "interrupt" and name == "open of Python"):
                return real(*args, **options)  # an interrupt before `with` would leave the file open
            self.calls += 1
            fails = self.calls == self.at + 1 or (self.came and self.kind == "from then on")
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


@pytest.fixture(scope="module")
def templates(tmp_path_factory):
    """Collections with deletions and contents, of few segments, and of so many that one more merges them."""
    return {n: _template(tmp_path_factory.mktemp("faults") / "template", n) for n in (2, 15)}


def _template(path: Path, n_segments: int) -> tuple[Path, Contents]:
    contents = Contents.empty(0)
    with Collection.create(path, model(0), vectors="float16", n_jobs=1) as collection:
        for ids in np.split(np.arange(30), n_segments):
            rows = [{"n": int(i)} for i in ids]
            collection.add(X[ids], metadata=rows)
            contents = contents.added(ids, model(0).encode(X[ids]), rows, X[ids])
        collection.delete([3, 4])
    return path, contents.without(np.array([3, 4]))


def _added(contents, ids):
    return contents.added(ids, model(0).encode(X[ids]), None, X[ids])


CHANGES = {
    "add that merges": (lambda c: c.add(X[30:32]), lambda s: _added(s, np.arange(30, 32))),
    "upsert": (
        lambda c: c.add(X[1:3], ids=[1, 2], upsert=True, metadata=[{}, {}]),
        lambda s: _added(s, np.arange(1, 3)),
    ),
    "delete": (lambda c: c.delete([7, 8]), lambda s: s.without(np.array([7, 8]))),
    "compact": (lambda c: c.compact(), lambda s: s),
    "retrain": (lambda c: c.retrain(model(1)), lambda s: s.retrained(1)),
}


@pytest.mark.parametrize("kind", ["once", "from then on", "interrupt"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_fault_at_any_call_leaves_all_as_it_was_or_as_it_was_to_be(templates, tmp_path, name, kind):
    original, before = templates[15 if "merges" in name else 2]
    make, what_follows = CHANGES[name]
    after = what_follows(before)
    for at in range(0, 1000, 3 if "merges" in name else 1):  # a merge takes a hundred calls
        path = tmp_path / "c"
        shutil.copytree(original, path)
        with Collection.open(path, n_jobs=1) as collection:
            collection.delete([])  # is the writer
            error: BaseException | None = None
            with Faults(path, at, kind).injected() as faults:
                try:
                    make(collection)
                except (AuxbitError, KeyboardInterrupt) as raised:
                    error = raised
            where = f"{kind} at call {at} of {name}: {error!r}"
            found = {
                text
                for text, each in (("before", before), ("after", after))
                if not difference(collection, each)
            }
            if error is None:
                assert "after" in found, where
            elif kind == "interrupt":
                assert found, where
            else:
                assert isinstance(error, FileProblem), where
                assert "No space left" in str(error), where
                assert ("after" if "is made" in str(error) else "before") in found, where
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
    ids = collection.add(codes=np.zeros((1, now.codes.shape[1]), np.uint8), X=X[:1])
    following = now.added(ids, np.zeros((1, now.codes.shape[1]), np.uint8), None, X[:1])
    collection.close()
    wrong, came_about = found_after(path, now, following)
    return wrong or ("" if came_about else "a later addition is lost"), came_about


@pytest.mark.parametrize("kind", ["once", "from then on", "interrupt"])
def test_a_fault_at_any_call_of_create_leaves_nothing_or_a_collection(tmp_path, kind):
    for at in range(1000):
        root = tmp_path / str(at)
        root.mkdir()
        with Faults(root, at, kind).injected() as faults:
            try:
                Collection.create(root / "c", model(0), vectors="float16").close()
                error = None
            except (FileProblem, KeyboardInterrupt) as raised:
                error = raised
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


def test_an_empty_collection_answers_and_changes_as_any_other(tmp_path):
    with Collection.create(tmp_path / "c", model(0), vectors="float16", n_jobs=1) as collection:
        for options in ({}, {"rerank": True}, {"mode": "asymmetric"}, {"where": {"n": 1}}):
            distances, ids = collection.search(X[:2], k=3, **options)
            assert (ids == -1).all()
            assert distances.shape == (2, 3)
        assert [len(each) for each in collection.search_radius(X[:2], 5)] == [3, 0, 0]
        assert collection.find_duplicates() == collection.metadata([]) == collection.check() == []
        assert collection.add(X[:0]).tolist() == collection.ids.tolist() == []
        assert collection.delete([]) == collection.delete(where={"n": 1}) == collection.stats().items == 0
        collection.compact()
        collection.retrain(model(1))
        assert difference(collection, Contents.empty(1)) == ""
        with pytest.raises(InvalidInput, match="k=0 is invalid"):
            collection.search(X[:2], k=0)
        with pytest.raises(InvalidInput, match="12"):
            collection.search(X[:2, :5])
        with pytest.raises(InvalidInput, match="id 5 comes twice"):
            collection.add(X[:2], ids=[5, 5])
        collection.add(X[:3])
        collection.delete([0, 1, 2])
        assert len(collection) == 0
        assert (collection.search(X[:2], k=9, rerank=True)[1] == -1).all()


# ---- a disk that is really full

FULL = """
import sys
import numpy as np
from auxbit import Collection
from auxbit.errors import FileProblem
import resource, signal

path, limit = sys.argv[1:]
if int(limit):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
codes = np.random.default_rng(0).integers(0, 256, size=(4000, 8), dtype=np.uint8)
added = failed = 0
with Collection.create(path, n_bits=64, n_jobs=1) as collection:
    size = 1000
    while size:
        try:
            collection.add(codes=codes[:size])
            added += size
        except FileProblem as error:
            failed += 1
            assert "could not be written to" in str(error), error
            size //= 2
        assert len(collection) == added
        if added > 100_000:
            break
    try:
        collection.compact()
    except FileProblem as error:
        assert "could not be written to" in str(error), error
    try:
        collection.delete(np.arange(0, added, 2))
        added -= (added + 1) // 2
    except FileProblem as error:
        assert "could not be written to" in str(error), error
    assert len(collection) == added, (len(collection), added)
    assert collection.check() == []
with Collection.open(path, n_jobs=1) as collection:
    assert len(collection) == added
    assert (collection.search(codes=codes[:5], k=1)[0] >= 0).all()
print(added, failed)
"""


def _fill_up(path: Path, limit: int) -> tuple[int, int]:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path), str(limit)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    added, failed = map(int, done.stdout.split())
    return added, failed


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="files cannot be limited")
def test_files_that_may_not_grow_further_end_in_errors_and_lose_nothing(tmp_path):
    added, failed = _fill_up(tmp_path / "c", 12_000)
    assert added > 1000
    assert failed


def test_a_full_file_system_ends_in_errors_and_loses_nothing(tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    mount = shutil.which("mount")
    options = [mount, "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(place)]
    if mount is None or subprocess.run(options, capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here: that needs root")
    try:
        added, failed = _fill_up(place / "c", 0)
    finally:
        subprocess.run(["umount", str(place)], check=True)
    assert added > 1000
    assert failed
