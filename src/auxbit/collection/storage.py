"""Storage: the folder of a collection, `collection.sqlite` and flat files of codes and vectors; or memory.

A change appends bytes to the flat files and syncs them; then one SQL transaction commits how many there are,
with their checksums. What lies past the committed length does not exist, and is written over by the next
change. A compaction writes the next generation of the flat files, and switches to it in one transaction.

Positions count the codes in a file. Numbers count items in the order they were added in, and are never used
again: a compaction changes positions, not numbers, and leaves all SQL tables but the small ones as they are.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import secrets
import sqlite3
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from auxbit.core import files
from auxbit.core.checks import Array, Bytes
from auxbit.core.files import BINARY, WriterLock
from auxbit.data import where
from auxbit.data.vectors import nearest
from auxbit.errors import CollectionError, Damaged, FileExists, FileProblem, InUse, InvalidInput

DATABASE, LOCK = "collection.sqlite", "writer.lock"
FORMAT = 2
APPLICATION = 0x41757862  # "Auxb": `file` and SQLite's own tools can tell whose database it is
CHUNK = 2**16  # bytes of a flat file that share a checksum
LANES = 64  # codes of a block, see index/codes.py
WAIT_SECONDS = 10.0  # for a transaction of somebody else
TRIES = 100  # at a state whose files a compaction removes while they are opened
MAPPED = 2**28  # bytes of the database that are read where they lie, twice as fast as by copies
MADE_BY = "Collections are made by Collection.create or `auxbit collection create`."
RUN_ROWS = 16  # integer ids are kept as runs if they are that long on average

SCHEMA = """
CREATE TABLE settings (
  -- What the collection is now: one row for each field of State in auxbit/collection/storage.py, and the
  -- CRC-32 of all of them.
  name TEXT PRIMARY KEY, value
) WITHOUT ROWID;
CREATE TABLE commits (
  -- One row per change. rows: items added, from first_number on. error_sum: the sum of the reconstruction
  -- errors of error_rows of them, by which the model is judged later.
  number INTEGER PRIMARY KEY, time TEXT NOT NULL, change TEXT NOT NULL, first_number INTEGER, rows INTEGER,
  error_rows INTEGER, error_sum REAL
);
CREATE TABLE items (
  -- Items with an id of their own or with metadata. An item without an id here has its number as its id.
  -- checksum: CRC-32 of the row; set it to NULL if you change a row yourself.
  number INTEGER PRIMARY KEY, id, metadata TEXT, checksum INTEGER
);
CREATE UNIQUE INDEX items_by_id ON items (id) WHERE id IS NOT NULL;
CREATE TABLE attachments (
  -- Bytes that belong to items, such as thumbnails of pictures.
  number INTEGER PRIMARY KEY, content BLOB NOT NULL, checksum INTEGER NOT NULL
);
CREATE TABLE fields (
  -- The names of metadata fields that items have or had.
  name TEXT PRIMARY KEY
) WITHOUT ROWID;
CREATE TABLE stretches (
  -- Which items lie in the flat files: `count` from first_position on, numbered from first_number on.
  -- checksum: 3 of the first column, 5 of the second and 7 of the third, modulo 2^31 - 1.
  first_position INTEGER PRIMARY KEY, count INTEGER NOT NULL, first_number INTEGER NOT NULL,
  checksum INTEGER NOT NULL
);
CREATE TABLE deleted (
  -- Items that still lie in the flat files and are deleted: `count` numbers from first_number on.
  -- checksum: as in stretches.
  in_commit INTEGER, first_number INTEGER, count INTEGER NOT NULL, checksum INTEGER NOT NULL,
  PRIMARY KEY (in_commit, first_number)
) WITHOUT ROWID;
CREATE TABLE checks (
  -- CRC-32 of the first `bytes` bytes of each 64 KB of a flat file.
  file TEXT, chunk INTEGER, bytes INTEGER NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY (file, chunk)
) WITHOUT ROWID;
CREATE VIEW listing AS
  -- All items with their ids, in the order they were added in.
  WITH RECURSIVE numbers (number, last) AS (
    SELECT first_number, first_number + count - 1 FROM stretches
    UNION ALL SELECT number + 1, last FROM numbers WHERE number < last
  )
  SELECT numbers.number AS number, coalesce(items.id, numbers.number) AS id, items.metadata AS metadata
  FROM numbers LEFT JOIN items USING (number)
  WHERE NOT EXISTS (SELECT 1 FROM deleted WHERE numbers.number >= deleted.first_number
                    AND numbers.number < deleted.first_number + deleted.count)
  ORDER BY numbers.number;
"""


@dataclass(frozen=True)
class State:
    """A collection at one commit; each field is a row of `settings`.

    key : no other collection has it. positions : codes in the file, of which `deleted` are deleted.
    codes, vectors_file, model : names of files; vectors : the type they are kept in; None for none.
    coding, mu : how the model encodes. ids : "integer", "text" or "uuid", None while there are none;
    own_ids : whether some items have ids other than their numbers. trained : the model was fitted to the
    items with smaller numbers. updated : the last commit that changed metadata of items.
    last_codes : the codes of the last block, which is not full, in planes.
    about : a JSON object of whoever uses the collection, such as the recipe of pictures.
    """

    n_bits: int
    key: str = ""
    n_features: int | None = None
    vectors: str | None = None
    coding: str = "hash"
    mu: float = 0.0
    model: str | None = None
    codes: str = "codes.0"
    vectors_file: str = "vectors.0"
    positions: int = 0
    deleted: int = 0
    ids: str | None = None
    own_ids: int = 0
    next_number: int = 0
    trained: int = 0
    updated: int = 0
    generation: int = 0
    commit: int = 0
    last_codes: bytes = b""
    about: str | None = None
    auxbit_version: str = ""

    @property
    def items(self) -> int:
        """How many are not deleted."""
        return self.positions - self.deleted

    @property
    def block_bytes(self) -> int:
        """Of 64 codes."""
        return -(-self.n_bits // 8) * LANES

    @property
    def code_bytes(self) -> int:
        """Of the full blocks, which are in the file."""
        return self.positions // LANES * self.block_bytes

    @property
    def vector_bytes(self) -> int:
        """Of all vectors, which are in the file."""
        return self.positions * self.row_bytes

    @property
    def row_bytes(self) -> int:
        """Of a vector."""
        return 0 if self.vectors is None else (self.n_features or 0) * np.dtype(self.vectors).itemsize

    @property
    def files(self) -> set[str]:
        """The names of all flat files and of the model."""
        return {name for name in (self.codes, self.vectors_file, self.model) if name is not None}


COLUMNS = tuple(field.name for field in fields(State))


# ---- Flat files


class Checks(NamedTuple):
    """A row of `checks`."""

    chunk: int
    bytes: int
    checksum: int


class Appended:
    """The checksums of bytes that come after a known end. last : the row of the chunk that is begun."""

    def __init__(self, end: int, last: Checks | None) -> None:
        self.rows: list[Checks] = []
        self._chunk, self._filled = divmod(end, CHUNK)
        self._check = last.checksum if last is not None and self._filled else 0

    def take(self, piece: memoryview) -> None:
        """Add the bytes that follow."""
        while len(piece):
            some, piece = piece[: CHUNK - self._filled], piece[CHUNK - self._filled :]
            self._check, self._filled = zlib.crc32(some, self._check), self._filled + len(some)
            if self.rows and self.rows[-1].chunk == self._chunk:
                self.rows.pop()
            self.rows.append(Checks(self._chunk, self._filled, self._check))
            if self._filled == CHUNK:
                self._chunk, self._filled, self._check = self._chunk + 1, 0, 0


class Flat:
    """Bytes that are only added to: a file that is mapped, or memory if the path is None."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._memory = np.zeros(0, dtype=np.uint8)

    def append(
        self, end: int, pieces: Iterable[Array], room: int, last: Checks | None = None
    ) -> list[Checks]:
        """Write from byte `end` on, which was the end, with `room` free bytes behind; synced at return."""
        found = Appended(end, last)
        if self.path is None:
            for buffer in _buffers(pieces):
                found.take(buffer)
                self._reserve(end + len(buffer) + room)
                self._memory[end : end + len(buffer)] = buffer
                end += len(buffer)
            self._reserve(end + room)
            return found.rows
        is_new = not end
        descriptor = os.open(self.path, os.O_CREAT | os.O_RDWR | BINARY, 0o666)
        try:
            os.lseek(descriptor, end, os.SEEK_SET)
            for buffer in _buffers(pieces):
                found.take(buffer)
                files.write_all(descriptor, buffer)
                end += len(buffer)
            if os.fstat(descriptor).st_size < end + room:
                os.ftruncate(descriptor, end + room)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            files.sync_folder(self.path.parent)  # its name is durable before anything refers to it
        return found.rows

    def content(self, length: int, room: int = 0, *, lenient: bool = False) -> Bytes:
        """The first `length` bytes, mapped, and `room` behind them; what is written there stays with us.

        lenient : what a file that was cut short lacks is zeros.
        """
        if self.path is None:
            self._reserve(length + room)
            return self._memory[: length + room]
        size, some = 0, b""
        if length:
            try:
                with open(self.path, "rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    if size >= length + room:
                        mapped = mmap.mmap(file.fileno(), length + room, access=mmap.ACCESS_COPY)
                        return np.frombuffer(mapped, dtype=np.uint8)
                    if lenient or size >= length:
                        some = file.read(length)
            except FileNotFoundError:
                if not lenient:
                    raise
            except OSError as error:
                raise Damaged(f"{self.path} cannot be read: {error.strerror}.") from error
        if size < length and not lenient:
            raise Damaged(
                f"{self.path} is damaged: it has {size:,} bytes instead of {length:,}. Restore it from a "
                'copy; or open the rest with damaged="skip" (--skip-damaged).'
            )
        from auxbit.index.codes import aligned_zeros

        content = aligned_zeros((length + room,))
        content[: len(some)] = np.frombuffer(some, dtype=np.uint8)
        return content

    def _reserve(self, size: int) -> None:
        if size > len(self._memory):
            from auxbit.index.codes import aligned_zeros

            grown = aligned_zeros((max(size, len(self._memory) * 5 // 4),))
            grown[: len(self._memory)] = self._memory
            self._memory = grown


def _buffers(pieces: Iterable[Array]) -> Iterator[memoryview]:
    for piece in pieces:
        flat = np.ascontiguousarray(piece).reshape(-1)
        if flat.size:
            yield flat.view(np.uint8).data


# ---- Connections


@contextmanager
def explained(place: object) -> Iterator[None]:
    """Say what an error of SQLite means for a collection."""
    try:
        yield
    except sqlite3.Error as error:
        name, code = str(error), _name_of(error)
        if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise InUse(f"{place} is being written to by another process; one writer at a time.") from error
        said = ("malformed", "Could not decode", "no such", "unsupported file format")
        if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or any(each in name for each in said):
            raise Damaged(f"{place}: {DATABASE} is damaged ({name}). Restore it from a copy.") from error
        if code.startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN")):
            raise FileProblem(
                f"{place} could not be written to, or read: {name}. It is as it was before."
            ) from error
        raise


class Frozen(sqlite3.Connection):
    """To a database as it was, in a folder that we cannot write to: SQLite cannot lock it there.

    Others may, so it is opened again if the files have changed.
    """

    of: Path
    seen: tuple[object, ...]

    @property
    def outdated(self) -> bool:
        """Whether the database or its log has changed."""
        return self.seen != _seen(self.of)


def _seen(path: Path) -> tuple[object, ...]:
    """What tells one content of a database, and of its log, from another."""
    found: list[object] = []
    for each in (path, path.with_name(f"{path.name}-wal")):
        with contextlib.suppress(FileNotFoundError):
            about = each.stat()
            found += [each.name, about.st_ino, about.st_size, about.st_mtime_ns]
    return tuple(found)


class Pool:
    """Connections that read, one for each thread that does; of a collection in memory there is only one.

    A forked child may not use the connections of its parent, and makes its own.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection], only: sqlite3.Connection | None) -> None:
        self._connect, self._only, self._turn = connect, only, threading.RLock()
        self._process, self._free, self._closed = os.getpid(), list[sqlite3.Connection](), False
        self._of_parents: list[sqlite3.Connection] = []  # for a child must not even close them

    @contextmanager
    def borrowed(self) -> Iterator[sqlite3.Connection]:
        """A connection that no other thread uses meanwhile."""
        if self._only is not None:
            with self._turn:
                yield self._only
            return
        if self._process != os.getpid():
            self._of_parents += self._free
            self._process, self._free = os.getpid(), []
        free = self._free
        try:
            connection = free.pop()
        except IndexError:  # asked for, not looked up: another thread may be faster
            connection = self._connect()
        if isinstance(connection, Frozen) and connection.outdated:
            connection.close()
            connection = self._connect()
        try:
            yield connection
            if isinstance(connection, Frozen) and connection.outdated:
                raise FileProblem(f"{connection.of} was changed while it was read. Try again.")
        finally:
            if self._closed:
                connection.close()
            else:
                free.append(connection)

    def close(self) -> None:
        """Close those that are not in use now, and the others after it."""
        self._closed = True
        while self._free and self._process == os.getpid():
            self._free.pop().close()


def connect(folder: Path | None, *, write: bool = False) -> sqlite3.Connection:
    """A connection to the database of a folder; it must be there. None: one in memory."""
    if folder is None:
        return _prepared(_opened(None))
    path = folder / DATABASE
    if write:
        return _prepared(_opened(path, "mode=rw"), "PRAGMA synchronous=FULL", "PRAGMA cache_size=-65536")
    for options in ("mode=rw", "mode=ro"):  # the second of a folder or disk that cannot be written to
        try:
            return _prepared(_opened(path, options), "PRAGMA query_only=1", "SELECT 1 FROM sqlite_schema")
        except sqlite3.OperationalError as error:
            if not _name_of(error).startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
                raise  # such as a lock that somebody holds, who may be writing
    return _of_read_only_disk(path)


def _of_read_only_disk(path: Path) -> sqlite3.Connection:
    """SQLite cannot share a log on such a disk: without one it needs none, else both are copied."""
    log, seen = path.with_name(f"{path.name}-wal"), _seen(path)
    if not log.exists() or not log.stat().st_size:
        connection = _prepared(_opened(path, "immutable=1", factory=Frozen), "SELECT 1 FROM sqlite_schema")
    else:
        connection = _prepared(_opened(None, factory=Frozen))
        with tempfile.TemporaryDirectory() as temporary:
            for each in (path, log):
                Path(temporary, each.name).write_bytes(each.read_bytes())
            with contextlib.closing(_opened(Path(temporary, path.name), "mode=rw")) as copied:
                copied.backup(connection)
    assert isinstance(connection, Frozen)
    connection.of, connection.seen = path, seen
    return connection


def _opened(path: Path | None, options: str = "", **more: Any) -> sqlite3.Connection:
    made: sqlite3.Connection = sqlite3.connect(
        ":memory:" if path is None else f"{path.absolute().as_uri()}?{options}", uri=True,
        isolation_level=None, check_same_thread=False, timeout=WAIT_SECONDS, **more,
    )  # fmt: skip
    return made


def _prepared(connection: sqlite3.Connection, *statements: str) -> sqlite3.Connection:
    try:
        connection.execute(f"PRAGMA mmap_size = {MAPPED}")
        where.register(connection)
        for each in statements:
            connection.execute(each).fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def _name_of(error: sqlite3.Error) -> str:
    """The name that SQLite has for an error, as SQLITE_BUSY."""
    return getattr(error, "sqlite_errorname", None) or ""


def read_state(connection: sqlite3.Connection, before: State | None = None) -> State:
    """What the settings say; `before` itself if nothing was committed since."""
    commit = connection.execute("SELECT value FROM settings WHERE name = 'commit'").fetchone()
    if before is not None and commit is not None and commit[0] == before.commit:
        return before
    found = dict(connection.execute("SELECT name, value FROM settings").fetchall())
    if found.pop("checksum", None) != _settings_check(found) or "n_bits" not in found:
        raise Damaged(f"the settings in {DATABASE} do not match their checksum. Restore it from a copy.")
    return State(**{name: value for name, value in found.items() if name in COLUMNS})


def _settings_check(found: dict[str, Any]) -> int:
    return zlib.crc32(repr(sorted(found.items(), key=lambda each: str(each[0]))).encode())


def write_state(connection: sqlite3.Connection, after: State, before: State | None) -> None:
    """Store the settings that have changed."""
    changed = [
        (name, getattr(after, name))
        for name in COLUMNS
        if before is None or getattr(after, name) != getattr(before, name)
    ]
    put = "INSERT OR REPLACE INTO settings VALUES (?, ?)"
    connection.executemany(put, changed)
    found = dict(connection.execute("SELECT name, value FROM settings WHERE name <> 'checksum'").fetchall())
    connection.execute(put, ("checksum", _settings_check(found)))


def row_checks(rows: Array) -> Array:
    """The checksums of rows of `stretches` and `deleted`, (n, 3): no change of a single bit keeps them."""
    prime = 2**31 - 1
    checks: Array = (rows % prime * (3, 5, 7)).sum(axis=1) % prime
    return checks


# ---- Storage


@dataclass
class Change:
    """A transaction: what it has of the collection, and what it makes of it.

    state : as it will be committed, replaced step by step. report : what `commits` says of it.
    made : whether there is anything to commit.
    """

    connection: sqlite3.Connection
    before: State
    state: State
    report: dict[str, Any]
    made: bool = False

    def update(self, **changes: Any) -> None:
        """Change fields of the state; without any, note that rows of other tables were changed."""
        self.state, self.made = replace(self.state, **changes), True


class Storage:
    """What is shared by all that reads or changes an open collection."""

    def __init__(self, folder: Path | None, *, read_only: bool, state: State | None = None) -> None:
        """Open a folder; or with None make a collection in memory, of this state."""
        self.folder, self.read_only, self.closed = folder, read_only, False
        self.place = str(folder) if folder is not None else "the collection in memory"
        self._memory: dict[str, Flat] = {}
        self.models: dict[str, Any] = {}  # by the name of their file, in memory
        self._lock = None if folder is None else WriterLock(folder / LOCK)
        self._changing = threading.RLock()
        self._writer: tuple[int, sqlite3.Connection] | None = None
        only = None
        if folder is None:
            only = connect(None)
            lay_out(only, state or State(1))
        else:
            check_folder(folder)
        self._path = "" if folder is None else str(folder / DATABASE)
        self._file = self._found_file()
        self._pool = Pool(lambda: connect(folder), only)
        self._state: State | None = None
        try:
            with self.reading() as (_, first):
                self._state = first
        except BaseException:
            self._pool.close()
            raise

    def _found_file(self) -> tuple[int, int] | None:
        """What tells the database from another file of its name; CollectionError if it is not there."""
        if self.folder is None:
            return None
        try:
            found = os.stat(self._path)
        except OSError as error:
            check_folder(self.folder)
            raise FileProblem(f"{self.place} cannot be read: {error.strerror}.") from error
        return found.st_dev, found.st_ino

    def _check_usable(self) -> None:
        """Refuse a folder that was moved, removed or replaced: its open files could still be used."""
        if self.closed:
            raise InvalidInput(f"{self.place} is closed. Open it again.")
        if self._found_file() != self._file:
            raise CollectionError(f"{self.place} was replaced by another collection. Open it again.")

    @contextmanager
    def reading(self) -> Iterator[tuple[sqlite3.Connection, State]]:
        """A connection that sees one committed state for the length of the block, and that state."""
        self._check_usable()
        with explained(self.place), self._pool.borrowed() as connection:
            if connection.in_transaction:  # in memory, by whoever calls this within a change
                yield connection, read_state(connection)
                return
            try:
                connection.execute("BEGIN")
                state = read_state(connection, self._state)
                self._state = state
                yield connection, state
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    @property
    def state(self) -> State:
        """The present state."""
        with self.reading() as (_, state):
            return state

    def lock(self) -> None:
        """Become the writer, until close; InUse if another process is."""
        self._check_usable()
        if self.read_only:
            raise CollectionError(f"{self.place} was opened to be read: open it without that to change it.")
        if self._lock is not None and not self._lock.held:
            self._lock.acquire(f"the collection {self.place}")
            self.sweep()

    @contextmanager
    def changing(self, what: str) -> Iterator[Change]:
        """A transaction that is committed at the end of the block, and undone by an exception in it."""
        with self._changing, explained(self.place), self._writing() as connection:
            if connection.in_transaction:
                raise InvalidInput(f"{self.place} is being changed: wait until that has returned.")
            try:
                connection.execute("BEGIN IMMEDIATE")
                before = read_state(connection, self._state)
                change = Change(connection, before, before, {"change": what})
                yield change
                if change.made:
                    self._commit(change)
                else:
                    connection.execute("ROLLBACK")
            except BaseException as error:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                self.sweep()
                if isinstance(error, OSError) and not isinstance(error, FileProblem):
                    raise FileProblem(
                        f"{self.place} could not be written to: {error.strerror or error}. "
                        "It is as it was before."
                    ) from error
                raise
            if change.state.files != before.files:
                self.sweep()

    def _commit(self, change: Change) -> None:
        change.update(commit=change.before.commit + 1)
        write_state(change.connection, change.state, change.before)
        report = change.report
        change.connection.execute(
            "INSERT INTO commits VALUES (?, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), ?, ?, ?, ?, ?)",
            (change.state.commit, report["change"], report.get("first_number"), report.get("rows"),
             report.get("error_rows"), report.get("error_sum")),
        )  # fmt: skip
        change.connection.execute("COMMIT")
        self._state = change.state

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        self.lock()
        if self.folder is None:
            with self._pool.borrowed() as only:
                yield only
            return
        if self._writer is None or self._writer[0] != os.getpid():
            self._writer = os.getpid(), connect(self.folder, write=True)
        yield self._writer[1]

    def flat(self, name: str) -> Flat:
        """A flat file."""
        if self.folder is not None:
            return Flat(self.folder / name)
        return self._memory.setdefault(name, Flat(None))

    def extend(self, change: Change, name: str, end: int, pieces: Iterable[Array], room: int = 0) -> None:
        """Append to a flat file, from its committed end on, and note the checksums."""
        chunk = end // CHUNK
        row = change.connection.execute(
            "SELECT chunk, bytes, checksum FROM checks WHERE file = ? AND chunk = ?", (name, chunk)
        ).fetchone()
        found = self.flat(name).append(end, pieces, room, None if row is None else Checks(*row))
        change.connection.executemany(
            "INSERT OR REPLACE INTO checks VALUES (?, ?, ?, ?)", [(name, *each) for each in found]
        )

    def sweep(self) -> None:
        """Remove flat files and models of ours that the committed state does not name.

        Only the writer may: what another process has written and not committed yet looks the same.
        """
        if self.folder is None:
            state = self._state
            for kept in (self._memory, self.models):
                for name in set(kept) - (state.files if state is not None else set()):
                    del kept[name]
            return
        if self._lock is not None and self._lock.held:
            # what cannot be removed now is left to the next writer: Windows keeps what somebody has mapped
            with contextlib.suppress(OSError, sqlite3.Error), self.reading() as (_, state):
                for path in self.folder.iterdir():
                    ours = re.fullmatch(r"(codes|vectors)\.\d+|model\.\d+\.safetensors|\..*\.part", path.name)
                    if ours and path.name not in state.files:
                        with contextlib.suppress(OSError):
                            path.unlink()

    def shrink(self) -> None:
        """Give the room of deleted rows in the database back to the disk."""
        # what fails here, for want of room on the disk, has changed nothing
        with (
            self._changing, explained(self.place), contextlib.suppress(sqlite3.OperationalError),
            self._writing() as connection,
        ):  # fmt: skip
            connection.execute("VACUUM")
            if self.folder is not None:
                connection.execute("PRAGMA busy_timeout = 0")  # a log that somebody reads stays for now
                try:
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                finally:
                    connection.execute(f"PRAGMA busy_timeout = {1000 * WAIT_SECONDS:.0f}")

    def bytes(self) -> dict[str, int]:
        """Bytes on disk or in memory by what they hold; the room behind the end is not counted."""
        with self.reading() as (connection, state):
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            size = connection.execute("PRAGMA page_size").fetchone()[0]
        found = {"codes": state.code_bytes, "vectors": state.vector_bytes, "ids and metadata": pages * size}
        if self.folder is not None and state.model is not None:
            with contextlib.suppress(OSError):
                found["model"] = (self.folder / state.model).stat().st_size
        return found | {"total": sum(found.values())}

    def close(self) -> None:
        """Release the lock and the connections; waits for a change under way."""
        with self._changing:
            if self.closed:
                return
            self.closed = True
            self._pool.close()
            if self._writer is not None and self._writer[0] == os.getpid():
                self._writer[1].close()  # the last connection takes the log into the database
            if self._lock is not None:
                self._lock.release()


# ---- Folders


def check_folder(folder: Path, made_by: str = MADE_BY) -> None:
    """Refuse a folder that is no collection of ours, or of another version, and say what to do."""
    path = folder / DATABASE
    if not path.is_file():
        if (folder / "manifest.jsonl").is_file():
            raise CollectionError(f"{folder} was made by an older auxbit; make it again from your vectors.")
        what, near = "is not a collection", ""
        if not folder.exists():
            what = "does not exist"
            with contextlib.suppress(OSError):
                others = [each.name for each in folder.absolute().parent.iterdir() if is_collection(each)]
                near = nearest(folder.name, others)
        raise CollectionError(f"{folder} {what}.{near} {made_by}")
    with explained(folder), contextlib.closing(connect(folder)) as connection:
        ours = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if ours != APPLICATION:
            raise CollectionError(f"{path} is a database, but not of a collection of auxbit.")
        if version != FORMAT:
            raise CollectionError(
                f"{folder} has format {version}, made by a newer auxbit; this version reads {FORMAT}. "
                "Upgrade: pip install -U auxbit."
            )


def is_collection(folder: Path) -> bool:
    """Whether a collection is in a folder."""
    return (folder / DATABASE).is_file()


def refuse_existing(folder: Path, *, overwrite: bool) -> None:
    """Raise FileExists if something is in the way that must not be replaced."""
    if not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not overwrite:
        raise FileExists(
            f"{folder} exists. Choose another name, or replace it with --force (overwrite=True)."
        )
    if not is_collection(folder):
        raise FileExists(f"{folder} is not a collection, and is not replaced by one. Choose another name.")


def lay_out(connection: sqlite3.Connection, state: State) -> None:
    """Make the tables of an empty collection."""
    connection.executescript(
        f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {FORMAT}; BEGIN; {SCHEMA}"
    )
    write_state(connection, state, None)
    connection.execute("COMMIT")


def make_folder(folder: Path, state: State, save_model: Callable[[Path], object] | None) -> None:
    """An empty collection in a new folder, which appears whole or not at all; save_model writes its model.

    What replaces a collection is committed like a change: a crash leaves the old one or the new one.
    """
    files.make_folder(folder.parent)
    if is_collection(folder):
        _replace(folder, state, save_model)
        return
    temporary = folder.parent / f".{folder.name[:40]}.{secrets.token_hex(8)}.part"
    os.mkdir(temporary)
    try:
        if save_model is not None and state.model is not None:
            save_model(temporary / state.model)
        with explained(folder):
            connection = _opened(temporary / DATABASE, "mode=rwc")
            with contextlib.closing(connection):
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                lay_out(connection, state)
        files.sync_folder(temporary)
        os.replace(temporary, folder)
    finally:
        if temporary.exists():
            for each in temporary.iterdir():
                each.unlink()
            temporary.rmdir()
    files.sync_folder(folder.parent)


def _replace(folder: Path, state: State, save_model: Callable[[Path], object] | None) -> None:
    storage = Storage(folder, read_only=False)
    try:
        with storage.changing("created in place of another") as change:
            number = change.before.generation + 1
            model = None if state.model is None else f"model.{number}.safetensors"
            if save_model is not None and model is not None:
                save_model(folder / model)
            tables = ("commits", "items", "attachments", "fields", "stretches", "deleted", "checks")
            for table in tables:
                change.connection.execute(f"DELETE FROM {table}")
            change.state = state
            change.update(
                model=model, generation=number, codes=f"codes.{number}", vectors_file=f"vectors.{number}"
            )
    finally:
        storage.close()
