"""Operations of which every call of the system fails once, in a process with failing_calls.c preloaded.

Reads jobs from stdin, a line of JSON each, and writes a report, a line of JSON. A job: operation and fault,
by their names in OPERATIONS and FAULTS; place, an empty folder; step: of the calls every step-th is tried.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import hashlib
import json
import os
import re
import resource
import shutil
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from auxbit import BinaryAutoencoder, Collection, load, stores
from auxbit.errors import AuxbitError
from auxbit.hashers.base import MODEL_FILE
from auxbit.hashers.files import encode_file
from auxbit.stores.push import of_arrays, push
from helpers.collection_truth import D, model
from helpers.picture_collections import create, folder_of

MOST = 3000  # calls: an operation that makes more has no end
X = np.random.default_rng(0).normal(size=(1500, D)).astype(np.float32)
ROWS = [{"n": n, "text": "x" * 40} for n in range(len(X))]

# ---- Faults


class Call:
    """Of the calls of these kinds the n-th fails with an error."""

    OPEN, READ, WRITE, SYNC, NAME, MAP, SIZE, MEMORY = (2**bit for bit in range(8))

    def __init__(self, number: int, *kinds: int) -> None:
        self.number, self.kinds, self._library = number, sum(kinds), ctypes.CDLL(None)

    def arm(self, folder: Path, n: int) -> None:
        self._library.failing_calls_arm(
            os.fsencode(folder), self.kinds, ctypes.c_long(n), ctypes.c_int(self.number)
        )

    def disarm(self, n: int) -> bool:
        """Whether the call came."""
        self._library.failing_calls_disarm.restype = ctypes.c_long
        return bool(self._library.failing_calls_disarm() > n)


class Limit:
    """The process may have n times `step` more of a resource than it has, up to MOST times."""

    MOST = 16

    def __init__(self, which: int, used: Callable[[], int], step: int) -> None:
        self._which, self._used, self._step = which, used, step
        self._before = resource.getrlimit(which)

    def arm(self, folder: Path, n: int) -> None:
        resource.setrlimit(self._which, (self._used() + n * self._step, self._before[1]))

    def disarm(self, n: int) -> bool:
        """Whether to go on."""
        resource.setrlimit(self._which, self._before)
        return n < self.MOST


def address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def descriptors() -> dict[str, str]:
    """What is open, by its number; but for the folder that lists them."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found[name] = os.readlink(f"/proc/self/fd/{name}")
    return found


C = Call
FAULTS: dict[str, Any] = {
    "ENOSPC": C(errno.ENOSPC, C.OPEN, C.WRITE, C.SYNC, C.NAME, C.SIZE),
    "EIO": C(errno.EIO, C.OPEN, C.READ, C.WRITE, C.SYNC, C.NAME, C.MAP, C.SIZE),
    "EMFILE": C(errno.EMFILE, C.OPEN),
    "EINTR": C(errno.EINTR, C.OPEN, C.READ, C.WRITE),
    "ENOMEM": C(errno.ENOMEM, C.MAP),
    "memory": C(errno.ENOMEM, C.MEMORY),
    "descriptors": Limit(resource.RLIMIT_NOFILE, lambda: len(os.listdir("/proc/self/fd")) - 1, 1),
    "address space": Limit(resource.RLIMIT_AS, address_space, 2**16),
}

# ---- Operations


@dataclass(frozen=True)
class Operation:
    """prepare : what is there before; run : what may fail; state : what is there, None for nothing."""

    prepare: Callable[[Path], object]
    run: Callable[[Path], object]
    state: Callable[[Path], Any]
    again: bool = False  # may be run again if it was done
    steps: bool = False  # goes through states of its own, from each of which a second try ends the same


def digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def rows_in_a_file(folder: Path) -> None:
    np.save(folder / "rows.npy", X)


def fit(folder: Path) -> None:
    """Out of core, with a checkpoint; resumes what was begun."""
    hasher = BinaryAutoencoder(8, random_state=0, n_jobs=1, max_iter=2)
    hasher.fit(str(folder / "rows.npy"), memory="1GB", checkpoint=folder / "state", resume=True)
    hasher.history_ = [replace(each, seconds_h=0, seconds_f=0, seconds_z=0) for each in hasher.history_]
    hasher.save(folder / "m.safetensors")


def fitted(folder: Path) -> Any:
    if not (folder / "m.safetensors").exists():
        return None
    header, arrays = MODEL_FILE.read(folder / "m.safetensors")
    return header, {name: array.tobytes() for name, array in arrays.items()}


def codes_of_another_model(folder: Path) -> None:
    rows_in_a_file(folder)
    model(0).save(folder / "m.safetensors")
    encode_file(model(1), str(folder / "rows.npy"), folder / "codes.npy")


def encode(folder: Path) -> None:
    hasher = load(folder / "m.safetensors")
    encode_file(hasher, str(folder / "rows.npy"), folder / "codes.npy", overwrite=True)


def codes(folder: Path) -> list[str | None]:
    return [digest(folder / name) for name in ("codes.npy", "codes.npy.json")]


def collection(folder: Path) -> None:
    """With deletions; X[:400] is in it."""
    rows_in_a_file(folder)
    with Collection.create(folder / "c", model(0), vectors="float16", n_jobs=1) as made:
        made.add(X[:400], metadata=ROWS[:400])
        made.delete(np.arange(100, 140))
        made.add(X[400:420], ids=np.arange(400, 420))


def changed(change: Callable[[Path, Collection], object]) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        with Collection.open(folder / "c", n_jobs=1) as opened:
            change(folder, opened)

    return run


def content(folder: Path) -> Any:
    """Of a collection, with one search."""
    if not (folder / "c").exists():
        return None
    with Collection.open(folder / "c", read_only=True, n_jobs=1) as opened:
        assert opened.check() == []
        ids, kept = opened.ids, hashlib.sha256()
        searched = len(ids) and opened.state.model is not None
        found = opened.search(like=int(ids[0]), k=5) if searched else ([], [])
        for each in (ids, opened.codes(), opened.vectors(ids), *found):
            kept.update(np.ascontiguousarray(each).tobytes())
        return opened.n_bits, len(ids), kept.hexdigest(), opened.metadata(ids)


def pictures(folder: Path) -> None:
    folder_of(folder.parent / "pictures", 9)


def store_of(name: str) -> tuple[Callable[[Path], object], Callable[[Path], Any]]:
    def run(folder: Path) -> None:
        os.environ["XDG_STATE_HOME"] = str(folder / "notes")
        with stores.connect(str(folder / name)) as store:
            push(store, of_arrays(PACKED, 32, metadata=ROWS, identity="rows"), resume=True)

    def state(folder: Path) -> Any:
        if not (folder / name).exists():
            return None
        with stores.connect(str(folder / name)) as store:
            if not store.exists or not store.count():
                return None
            distances, ids = store.search(PACKED[:3], k=5)
            return store.count(), distances.tolist(), ids.tolist(), store.metadata(np.arange(len(X)))

    return run, state


def careless(folder: Path) -> None:
    """In two steps, with a temporary file that stays and a descriptor that is never closed."""
    (folder / "a").write_text("a")
    (folder / f"{os.urandom(4).hex()}.part").touch()
    os.open(folder / "a", os.O_RDONLY)
    (folder / "b").write_text("b")


PACKED = model(0).encode(X)
OPERATIONS = {
    "fit": Operation(rows_in_a_file, fit, fitted, again=True),
    "encode": Operation(codes_of_another_model, encode, codes, again=True),
    "create": Operation(
        lambda folder: None,
        lambda folder: Collection.create(folder / "c", model(0), vectors="float16", n_jobs=1).close(),
        content,
    ),
    "add": Operation(
        collection,
        changed(lambda folder, c: c.add(X[420:], metadata=ROWS[420:])),
        content,
    ),
    "add a file": Operation(collection, changed(lambda f, c: c.add(f / "rows.npy")), content),
    "compact": Operation(collection, changed(lambda folder, c: c.compact()), content, again=True),
    "retrain": Operation(collection, changed(lambda folder, c: c.retrain(model(1))), content, again=True),
    "images": Operation(
        pictures,
        lambda folder: create(folder.parent / "pictures", folder / "c", bits=4),
        content,
        again=True,
        steps=True,
    ),
    "careless": Operation(
        lambda folder: None, careless, lambda folder: [digest(folder / name) for name in "ab"], again=True
    ),
    "sqlite": Operation(lambda folder: None, *store_of("codes.sqlite"), again=True),
    "duckdb": Operation(lambda folder: None, *store_of("codes.duckdb"), again=True),
}

# ---- Trials


class Trials:
    """An operation and a fault, which comes at one call after another until it comes no more."""

    def __init__(self, operation: str, fault: str, place: Path) -> None:
        self.operation, self.fault, self.place = OPERATIONS[operation], FAULTS[fault], place
        self.failed, self.errors, self.wrong = 0, Counter[str](), list[str]()
        template = self._fresh("before")
        self.before = self.operation.state(template)
        self._template = place / "template"
        shutil.copytree(template, self._template)
        self.operation.run(template)
        self.after, self._names = self.operation.state(template), names(template)
        assert self.before != self.after or operation == "compact"
        gc.collect()
        gc.freeze()  # what is loaded by now need not be looked through after each trial

    def _fresh(self, name: str) -> Path:
        folder = self.place / name
        folder.mkdir()
        self.operation.prepare(folder)
        return folder

    def all(self, step: int) -> dict[str, Any]:
        n = 0
        while n < MOST and self.one(n):
            n += step
        return {"calls": n, "failed": self.failed, "errors": self.errors, "wrong": self.wrong}

    def one(self, n: int) -> bool:
        """Let the n-th call fail; whether there was one."""
        folder = self.place / str(n)
        shutil.copytree(self._template, folder)
        error, came = self._failing(folder, n)
        problems = self._problems(folder, error)
        self.wrong += [f"call {n}: {each} (after {error})" for each in problems]
        self.failed += error is not None
        if error is not None:
            self.errors[error.replace(str(folder), "…")] += 1
        shutil.rmtree(folder)
        return came

    def _failing(self, folder: Path, n: int) -> tuple[str | None, bool]:
        gc.collect()
        error, came, before = None, True, descriptors()
        self.fault.arm(folder, n)
        try:
            self.operation.run(folder)
        except (AuxbitError, MemoryError) as raised:
            error = f"{type(raised).__name__}: {raised}"
        except Exception as raised:
            came = self.fault.disarm(n)
            error = f"{type(raised).__name__}: {raised}"
            where = traceback.format_exc().splitlines()[-14:]
            self.wrong.append(f"call {n}: {error}, which is no error of ours: {' / '.join(where)}")
        finally:
            came = self.fault.disarm(n) and came
        gc.collect()
        more = {name: to for name, to in descriptors().items() if name not in before}
        if more:
            self.wrong.append(f"call {n}: left open: {more} (after {error})")
        return error, came

    def _problems(self, folder: Path, error: str | None) -> list[str]:
        """What is wrong on disk, now and after a second try."""
        try:
            found, problems = self.operation.state(folder), list[str]()
            if not self.operation.steps and found not in (self.before, self.after):
                problems.append(f"the state is neither that before nor that after: {str(found)[:200]}")
            if error is None and found != self.after:
                problems.append("it has returned, and the state is not that after")
            if found == self.before or self.operation.again:
                self.operation.run(folder)
            if self.operation.state(folder) != self.after:
                problems.append("a second try comes to another state")
            if more := names(folder) - self._names:
                problems.append(f"left behind after a second try: {dict(more)}")
            return problems
        except Exception as raised:
            return [f"then {type(raised).__name__}: {raised} / {traceback.format_exc()[-900:]}"]


def names(folder: Path) -> Counter[str]:
    """Of all that is in a folder, but for their numbers: files of a collection are counted on."""
    return Counter(re.sub(r"\d+", "0", str(path.relative_to(folder))) for path in folder.rglob("*"))


def serve() -> None:
    os.environ.pop("LD_PRELOAD", None)  # for this process alone
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        job = json.loads(line)
        place = Path(job["place"])
        try:
            report = Trials(job["operation"], job["fault"], place).all(job["step"])
        except Exception:
            report = {"calls": 0, "failed": 0, "errors": {}, "wrong": [traceback.format_exc()]}
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    serve()
