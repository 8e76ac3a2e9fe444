"""A disk that loses power: a journal of the calls that change files, and the folders it might leave behind.

While it is recorded, calls of the os module are made and journalled; fsync only notes what it makes durable.
A crash at any point of the journal leaves of each file what was last synced, and of each later write all,
nothing or a part; and of each folder the names as they were last synced, and of later changes any.

SQLite calls nothing of ours. It is trusted to commit a transaction as one event, after which the database has
its new content for good; its log is not seen.
"""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

SECTOR = 512  # bytes that a disk writes whole
ROOT = 0


@dataclass
class File:
    """Bytes that are durable, and writes since: (offset, bytes), or (size, None) where it was cut."""

    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)

    def whole(self) -> bytes:
        """What a program reads."""
        content = bytearray(self.durable)
        for offset, some in self.pending:
            _put(content, offset, some)
        return bytes(content)

    def crashed(self, rng: random.Random) -> bytes:
        """What the disk might hold."""
        content = bytearray(self.durable)
        writes = list(self.pending)
        if rng.random() < 0.3:
            rng.shuffle(writes)
        kept, torn = rng.choice([(1, 0), (0, 0), (0.9, 0.1), (0.5, 0.2), (0.5, 0)])
        for offset, some in writes:
            fate = rng.random()
            if fate < kept:
                _put(content, offset, some)
            elif some is not None:
                if rng.random() < 0.5:  # the size has reached the disk, the bytes have not
                    _extend(content, offset + len(some), rng)
                if fate < kept + torn and len(some) > 1:
                    start, stop = sorted(_sector(rng.randrange(len(some)), rng) for _ in range(2))
                    _extend(content, offset + start, rng)
                    _put(content, offset + start, some[start:stop])
        return bytes(content)


@dataclass
class Folder:
    """Names that are durable, and changes since: what was done to which names, None for a removal."""

    durable: dict[str, int] = field(default_factory=dict)
    pending: list[dict[str, int | None]] = field(default_factory=list)

    def whole(self) -> dict[str, int]:
        """What a program finds."""
        return _named(self.durable, self.pending)

    def crashed(self, rng: random.Random, in_order: bool) -> dict[str, int]:
        """What the disk might hold: the first of the changes, or any of them."""
        if in_order:
            return _named(self.durable, self.pending[: rng.randint(0, len(self.pending))])
        share = rng.choice([0.2, 0.5, 0.8])
        return _named(self.durable, [each for each in self.pending if rng.random() < share])


class SimulatedDisk:
    """Records what is done under a folder. lies : "files" or "folders", which this disk does not sync."""

    def __init__(self, root: Path, lies: tuple[str, ...] = ()) -> None:
        self.root, self.lies = root, lies
        self.journal: list[tuple[str, int, Any]] = []
        self._now = _State()
        self._opened: dict[int, tuple[int, Path]] = {}
        self._inodes: dict[int, int] = {}

    # ---- recording

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Journal what this process does, until the end of the block."""
        names = ("open", "close", "write", "fsync", "ftruncate", "replace", "rename", "link", "unlink",
                 "remove", "mkdir", "rmdir")  # fmt: skip
        disk = self

        class Journalled(sqlite3.Connection):
            def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
                done = super().execute(statement, *parameters)
                if statement in ("COMMIT", "VACUUM"):
                    disk._committed(self)
                return done

        calls = {name: self._around(getattr(os, name), getattr(self, f"_{name}")) for name in names}
        with (
            mock.patch.multiple(os, **calls),
            mock.patch.object(sqlite3, "connect", partial(sqlite3.connect, factory=Journalled)),
        ):
            yield

    def mark(self, number: int) -> None:
        """Note that change `number` has been acknowledged."""
        self.journal.append(("mark", number, None))

    def _around(self, real: Callable[..., Any], record: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            return record(real, *args, **options)

        return call

    def _open(self, real: Any, path: Any, flags: int, *mode: int, **options: Any) -> int:
        descriptor: int = real(path, flags, *mode, **options)
        if not options and (place := self._place(path)):
            node = self._discover(*place, Path(path))
            self._opened[descriptor] = node, Path(path)
            if flags & os.O_TRUNC:
                self._note("write", node, (0, None))
        return descriptor

    def _close(self, real: Any, descriptor: int) -> None:
        self._opened.pop(descriptor, None)
        real(descriptor)

    def _write(self, real: Any, descriptor: int, content: Any) -> int:
        if descriptor not in self._opened:
            return int(real(descriptor, content))
        offset = os.lseek(descriptor, 0, os.SEEK_CUR)
        written = int(real(descriptor, content))
        self._note("write", self._opened[descriptor][0], (offset, bytes(content[:written])))
        return written

    def _ftruncate(self, real: Any, descriptor: int, size: int) -> None:
        real(descriptor, size)
        if descriptor in self._opened:
            self._note("write", self._opened[descriptor][0], (size, None))

    def _fsync(self, real: Any, descriptor: int) -> None:
        if descriptor not in self._opened:
            return real(descriptor)
        node, path = self._opened[descriptor]
        is_folder = isinstance(self._now.nodes[node], Folder)
        if not is_folder and (content := path.read_bytes()) != self._now.nodes[node].whole():
            self._note("write", node, (0, None))  # by C code, which calls nothing of ours
            self._note("write", node, (0, content))
        if ("folders" if is_folder else "files") not in self.lies:
            self._note("sync", node, None)

    def _committed(self, connection: sqlite3.Connection) -> None:
        path = connection.execute("PRAGMA database_list").fetchone()[2]
        if place := self._place(path) if path else None:
            node = self._discover(*place, Path(path))
            self._note("commit", node, connection.serialize())

    def _replace(self, real: Any, source: Any, target: Any, **options: Any) -> None:
        before, after = self._place(source), self._place(target)
        node = self._discover(*before, Path(source)) if before else None
        real(source, target, **options)
        if before and after:
            assert before[0] == after[0], "only renames within a folder are simulated"
            self._note("names", before[0], {before[1]: None, after[1]: node})

    _rename = _replace

    def _link(self, real: Any, source: Any, target: Any, **options: Any) -> None:
        real(source, target, **options)
        before, after = self._place(source), self._place(target)
        if before and after:
            self._note("names", after[0], {after[1]: self._discover(*before, Path(source))})

    def _unlink(self, real: Any, path: Any, *, dir_fd: int | None = None) -> None:
        if dir_fd is not None and dir_fd in self._opened:  # as shutil.rmtree has it
            place: tuple[int, str] | None = (self._opened[dir_fd][0], os.fspath(path))
        else:
            place = self._place(path) if dir_fd is None else None
        real(path, dir_fd=dir_fd)
        if place:
            self._note("names", place[0], {place[1]: None})

    _remove = _rmdir = _unlink

    def _mkdir(self, real: Any, path: Any, *mode: int, **options: Any) -> None:
        real(path, *mode, **options)
        if place := self._place(path):
            self._discover(*place, Path(path))

    def _place(self, path: Any) -> tuple[int, str] | None:
        """The folder and the name of a path on this disk."""
        if isinstance(path, int) or not Path(path).is_relative_to(self.root):
            return None
        node, *names = ROOT, *Path(path).relative_to(self.root).parts
        for name in names[:-1]:
            node = self._now.nodes[node].whole()[name]
        return node, names[-1] if names else ""

    def _discover(self, folder: int, name: str, path: Path) -> int:
        """The file or folder of that name; a new one if it was made since, be it by C code."""
        if not name:
            return folder
        inode = path.stat().st_ino
        node: int | None = self._now.nodes[folder].whole().get(name)
        if node is None or self._inodes[node] != inode:
            node = 1 + len(self._inodes)
            self._inodes[node] = inode
            self._note("make", node, "folder" if path.is_dir() else "file")
            self._note("names", folder, {name: node})
        return node

    def _note(self, *event: Any) -> None:
        self.journal.append(event)
        self._now.apply(event)

    # ---- what may be left

    def contents(self) -> dict[str, bytes]:
        """What a program finds at the end: the content of each file by its path."""
        return self._now.files()

    def crashes(
        self, rng: random.Random, share: float = 1.0, in_order: bool | None = None
    ) -> Iterator[tuple[int, dict[str, bytes | None]]]:
        """Acknowledged changes and a content of the disk, at points of the journal in turn.

        share : of the points, or how many contents at each. in_order : changes of names reach the disk in
        their order; None: by turns in order and in any.
        """
        state, acknowledged = _State(), -1
        for kind, node, what in self.journal:
            if kind == "mark":
                acknowledged = node
            state.apply((kind, node, what))
            for _ in range(int(share + rng.random())):
                chosen = rng.random() < 0.5 if in_order is None else in_order
                yield acknowledged, state.crashed(rng, chosen)


class _State:
    """Files and folders at a point of the journal."""

    def __init__(self) -> None:
        self.nodes: dict[int, Any] = {ROOT: Folder()}

    def apply(self, event: tuple[str, int, Any]) -> None:
        kind, node, what = event
        if kind == "make":
            self.nodes[node] = Folder() if what == "folder" else File()
        elif kind in ("write", "names"):
            self.nodes[node].pending.append(what)
        elif kind == "sync":
            self.nodes[node].durable = self.nodes[node].whole()
            self.nodes[node].pending = []
        elif kind == "commit":
            self.nodes[node].durable = what

    def files(self) -> dict[str, bytes]:
        whole = _tree(self.nodes, ROOT, "", lambda node: node.whole())
        return {path: content for path, content in whole.items() if content is not None}

    def crashed(self, rng: random.Random, in_order: bool) -> dict[str, bytes | None]:
        def left(node: Any) -> Any:
            return node.crashed(rng, in_order) if isinstance(node, Folder) else node.crashed(rng)

        return _tree(self.nodes, ROOT, "", left)


def lay_out(content: dict[str, bytes | None], root: Path) -> None:
    """Make files and folders (None) as a disk holds them."""
    for name, some in content.items():
        if some is None:
            (root / name).mkdir(parents=True, exist_ok=True)
        else:
            (root / name).write_bytes(some)


def _tree(nodes: dict[int, Any], at: int, path: str, left: Callable[[Any], Any]) -> dict[str, bytes | None]:
    """Paths and contents from a node down; None is a folder."""
    found = left(nodes[at])
    if isinstance(found, bytes):
        return {path: found}
    out: dict[str, bytes | None] = {path: None}
    for name, node in found.items():
        out |= _tree(nodes, node, f"{path}/{name}".lstrip("/"), left)
    return out


def _named(names: dict[str, int], changes: list[dict[str, int | None]]) -> dict[str, int]:
    out = dict(names)
    for change in changes:
        for name, node in change.items():
            if node is None:
                out.pop(name, None)
            else:
                out[name] = node
    return out


def _put(content: bytearray, offset: int, some: bytes | None) -> None:
    if some is None:
        del content[offset:]
        content.extend(bytes(offset - len(content)))
        return
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(some)] = some


def _extend(content: bytearray, size: int, rng: random.Random) -> None:
    missing = max(0, size - len(content))
    content.extend(bytes(missing) if rng.random() < 0.5 else rng.randbytes(missing))


def _sector(place: int, rng: random.Random) -> int:
    """A place where a write may be torn: at a sector, mostly."""
    return place // SECTOR * SECTOR if rng.random() < 0.8 else place
