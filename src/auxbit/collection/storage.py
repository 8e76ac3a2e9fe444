"""Storage: the folder of a collection, `collection.sqlite` and flat files of codes and vectors; or memory.

A change appends bytes to the flat files and syncs them; then one SQL transaction commits how many there are,
with their checksums. What lies past the committed length does not exist, and is written over by the next
change. A compaction writes the next generation of the flat files, and switches to it in one transaction.

Positions count the codes in a file. Numbers count items in the order they were added in, and are never used
again: a compaction changes positions, not numbers, and leaves all SQL tables but the small ones as they are.
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from auxbit.core import files
from auxbit.core.files import Connections, Flat, WriterLock, connect, database_errors, unlike_fields
from auxbit.core.maps import only_for_decoder
from auxbit.core.parallel import unforked
from auxbit.data import where
from auxbit.data.vectors import nearest
from auxbit.errors import CollectionError, Damaged, FileExists, FileProblem, InvalidInput, InvalidParameter
from auxbit.index.codes import LANES

DATABASE, LOCK = "collection.sqlite", "writer.lock"
FORMAT, OLDEST = 4, 3  # that is written, and the oldest that is read
APPLICATION = 0x41757862  # "Auxb": `file` and SQLite's own tools can tell whose database it is
LOOK_SECONDS = 0.05  # after which the lock's file is opened again, if it is another one
FROM_COPY = "Restore it from a copy."
OR_SKIP = 'Restore it from a copy; or open the rest with damaged="skip" (--skip-damaged).'
SETTINGS = {  # what they are like: names of files lead nowhere but into the folder
    "vectors": "float32|float16", "ids": "integer|text|uuid", "coding": "hash|optimal",
    "codes": r"codes\.\d+", "vectors_file": r"vectors\.\d+", "model": r"model\.\d+\.safetensors",
}  # fmt: skip
OLDER = "was made by an older version of auxbit. Create it again from your vectors."
MADE_BY = "Collections are made by Collection.create or `auxbit collection create`."

TABLES = ("settings", "commits", "items", "attachments", "fields", "stretches", "deleted", "checks")
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
  first_position INTEGER PRIMARY KEY, count INTEGER NOT NULL, first_number INTEGER NOT NULL
);
CREATE TABLE deleted (
  -- Items that still lie in the flat files and are deleted: `count` numbers from first_number on.
  in_commit INTEGER, first_number INTEGER, count INTEGER NOT NULL, PRIMARY KEY (in_commit, first_number)
) WITHOUT ROWID;
CREATE TABLE checks (
  -- CRC-32 of each 64 KB of a flat file, up to its end.
  file TEXT, chunk INTEGER, checksum INTEGER NOT NULL, PRIMARY KEY (file, chunk)
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

    key : no other collection has it. positions : codes in the file, of which `deleted` are deleted; layout :
    `layout_check` of `stretches` and `deleted`. codes, vectors_file, model : names of files; vectors : the
    type they are kept in; None for none. coding, mu : how the model encodes. ids : "integer", "text" or
    "uuid", None while there are none; own_ids : whether some items have ids other than their numbers.
    trained : the model was fitted to the items with smaller numbers. updated : the last commit that changed
    metadata of items. lists : into which an index divides codes for Hamming distances; those of codes for the
    decoder are the model's, and take list_bits of the n_bits. last_codes : the codes of the last block, which
    is not full, in planes. about : a JSON object of whoever uses the collection, as for pictures.
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
    layout: int = 0
    ids: str | None = None
    own_ids: int = 0
    next_number: int = 0
    trained: int = 0
    updated: int = 0
    generation: int = 0
    commit: int = 0
    lists: int | None = None
    list_bits: int = 0
    last_codes: bytes = b""
    about: str | None = None
    auxbit_version: str = ""

    @property
    def by_decoder(self) -> bool:
        """Whether the codes are for the decoder alone: Hamming distances between them mean nothing."""
        return only_for_decoder(self.coding, self.mu)

    @property
    def files_key(self) -> tuple[str, int]:
        """What changes with the meaning of positions."""
        return self.key, self.generation

    @property
    def items(self) -> int:
        """How many are not deleted."""
        return self.positions - self.deleted

    @property
    def width(self) -> int:
        """Bytes of a code."""
        return -(-self.n_bits // 8)

    @property
    def code_bytes(self) -> int:
        """Of the full blocks, which are in the file."""
        return self.positions // LANES * LANES * self.width

    @property
    def row_bytes(self) -> int:
        """Of a vector."""
        return 0 if self.vectors is None else (self.n_features or 0) * np.dtype(self.vectors).itemsize

    @property
    def lists_file(self) -> str:
        """Of codes sorted by list, made from the others; it may be missing."""
        return f"lists.{self.generation}"

    @property
    def has_lists(self) -> bool:
        """Whether items are divided into lists."""
        return self.list_bits > 0 or self.lists is not None

    @property
    def files(self) -> set[str]:
        """The names of all flat files and of the model."""
        names = {name for name in (self.codes, self.vectors_file, self.model) if name is not None}
        return names | ({self.lists_file} if self.has_lists else set())


def read_state(connection: sqlite3.Connection, before: State | None = None) -> State:
    """What the settings say; `before` itself if nothing was committed since."""
    commit = connection.execute("SELECT value FROM settings WHERE name = 'commit'").fetchone()
    if before is not None and commit == (before.commit,):
        return before
    found = dict(connection.execute("SELECT name, value FROM settings").fetchall())
    if found.pop("checksum", None) != _settings_check(found):
        raise Damaged(f"the settings in {DATABASE} do not match their checksum. Restore it from a copy.")
    with understood("the settings"):
        state = State(**found)
        wrong = unlike_fields(state, SETTINGS)
        if wrong or not (1 <= state.n_bits < 2**16 and state.deleted <= state.positions <= state.next_number):
            raise ValueError(wrong or "numbers do not fit each other")
        return state


@contextmanager
def understood(what: str) -> Iterator[None]:
    """Say that something in the database is nothing of ours: a checksum keeps nobody from crafting it."""
    try:
        yield
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise Damaged(f"{what} in {DATABASE} cannot be understood: {error}. {FROM_COPY}") from error


def write_state(connection: sqlite3.Connection, state: State) -> None:
    """Store the settings."""
    found = {field.name: getattr(state, field.name) for field in fields(State)}
    for name, value in found.items():
        if isinstance(value, str):  # of NumPy or an enumeration: the checksum is of what will be read
            found[name] = str.__str__(value)
    found["checksum"] = _settings_check(found)
    connection.executemany("INSERT OR REPLACE INTO settings VALUES (?, ?)", found.items())


def _settings_check(found: dict[str, Any]) -> int:
    return zlib.crc32("\n".join(sorted(map(repr, found.items()))).encode())


def _prepare(path: Path, connection: sqlite3.Connection) -> None:
    """Refuse a database that is none of ours, or of another version, and say what to do."""
    where.register(connection)
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
        raise CollectionError(f"{path} is a database, but not that of an auxbit collection. {MADE_BY}")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version < OLDEST:
        raise CollectionError(f"{path.parent} {OLDER}")
    if version > FORMAT:
        raise CollectionError(
            f"{path.parent} has format {version} of a newer auxbit; this version reads {FORMAT}. "
            "Upgrade: pip install -U auxbit."
        )


# ---- Storage


@dataclass
class Change:
    """A transaction: what it has of the collection, and what it makes of it.

    state : as it will be committed, replaced step by step. report : what `commits` says of it.
    made : whether there is anything to commit.
    """

    storage: Storage
    connection: sqlite3.Connection
    before: State
    state: State
    report: dict[str, Any]
    made: bool = False

    def update(self, **changes: Any) -> None:
        """Change fields of the state; without any, note that rows of other tables were changed."""
        self.state, self.made = replace(self.state, **changes), True


C = TypeVar("C", bound=Change)


class Storage:
    """What is shared by all that reads or changes an open collection."""

    def __init__(self, folder: Path | None, *, read_only: bool, state: State | None = None) -> None:
        """Open a folder; or with None make a collection in memory, of this state."""
        self.folder, self.read_only = folder, read_only
        self.place = str(folder) if folder is not None else "the collection in memory"
        self.models: dict[str, Any] = {}  # by the name of their file
        self._memory: dict[str, Flat] = {}
        self._state, self._noting = state, threading.Lock()
        self._sole: int | None = None  # the process of the only writer, which need not ask what was committed
        self._path = self._lock = None
        self._file: tuple[int, int] | None = None  # which the database was when it was opened
        self._looked = -LOOK_SECONDS  # when the lock's file was last looked at
        if folder is None:
            self.connections = Connections(None, where.register)
            lay_out(self.connections.writer(), state or State(1))
            return
        self._path, self._lock = folder / DATABASE, WriterLock(folder / LOCK)
        self.connections = Connections(self._path, partial(_prepare, self._path))
        try:
            check_folder(folder)
            self._note(self.state)
        except BaseException:
            self.close()
            raise

    def _check_usable(self) -> None:
        """Refuse a folder that was moved, removed or replaced: its open files could still be used."""
        if self.connections.closed:
            raise InvalidInput(f"{self.place} is closed. Open it again.")
        if self._path is None or self._lock is None:
            return
        try:
            if (now := time.monotonic()) > self._looked + LOOK_SECONDS:
                self._lock.look()
                self._looked = now
            found = os.stat(self._path)
        except OSError as error:
            check_folder(self._path.parent)
            raise FileProblem(f"{self.place} cannot be read: {error.strerror}.") from error
        self._file = self._file or (found.st_dev, found.st_ino)
        if self._file != (found.st_dev, found.st_ino):
            raise CollectionError(f"{self.place} was replaced by another collection. Open it again.")

    @contextmanager
    def reading(self) -> Iterator[tuple[sqlite3.Connection, State]]:
        """A connection that sees one committed state for the length of the block, and that state."""
        self._check_usable()
        with unforked, database_errors(self.place, DATABASE), self.connections.reading() as connection:
            if connection.in_transaction:  # in memory, by whoever calls this within a change
                yield connection, read_state(connection)
                return
            try:
                connection.execute("BEGIN")
                state = read_state(connection, self._state)
                if state is not self._state:
                    self._note(state)
                yield connection, state
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    @property
    def state(self) -> State:
        """The present state."""
        known, lock = None if self.connections.closed else self._state, self._lock
        if known and (self._sole == files.process or (lock and lock.notes(known.commit))):
            self._check_usable()
            return known
        with self.reading() as (_, state):
            return state

    def lock(self) -> None:
        """Become the writer, until close; InUse if another process is."""
        self._check_usable()
        if self.read_only:
            raise CollectionError(f"{self.place} was opened with read_only=True. Open it without that.")
        if self._lock is not None and not self._lock.held:
            self._lock.acquire(f"the collection {self.place}")
            self.sweep()

    @contextmanager
    def changing(self, what: str, kind: type[C]) -> Iterator[C]:
        """A transaction that is committed at the end of the block, and undone by an exception in it."""
        with unforked, self.connections.writing, database_errors(self.place, DATABASE):
            self.lock()
            connection = self.connections.writer()
            if connection.in_transaction:
                raise InvalidInput(f"{self.place} is being changed. Wait until that call returns.")
            try:
                connection.execute("BEGIN IMMEDIATE")
                before = self._note(read_state(connection, self._state))
                self._sole = files.process
                change = kind(self, connection, before, before, {"change": what})
                yield change
                if change.made:
                    self._commit(change)
                else:
                    connection.execute("ROLLBACK")
            except BaseException as error:
                self._sole = None  # an interrupt may have come just after the commit
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
        write_state(change.connection, change.state)
        names = ("change", "first_number", "rows", "error_rows", "error_sum")
        change.connection.execute(
            "INSERT INTO commits VALUES (?, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), ?, ?, ?, ?, ?)",
            (change.state.commit, *map(change.report.get, names)),
        )
        with nullcontext() if self._lock is None else self._lock.committing(change.state.commit):
            change.connection.execute("COMMIT")
        self._note(change.state)

    def _note(self, state: State) -> State:
        """Keep a state, unless a later one is known."""
        with self._noting:
            if self._state is None or state.commit > self._state.commit:
                self._state = state
        return state

    def flat(self, name: str) -> Flat:
        """A flat file."""
        if self.folder is not None:
            return Flat(self.folder / name, OR_SKIP)
        return self._memory.setdefault(name, Flat(None))

    def sweep(self) -> None:
        """Remove flat files and models of ours that the committed state does not name.

        Only the writer may: what another process has written and not committed yet looks the same.
        """
        named = set() if self._state is None else self._state.files
        for kept in (self._memory, self.models):
            for name in set(kept) - named:
                del kept[name]
        if self.folder is not None and self._lock is not None and self._lock.held:
            ours = re.compile(r"(codes|vectors|lists)\.\d+|model\.\d+\.safetensors|\..*\.part|\.tmp\w{6}")
            with suppress(OSError, sqlite3.Error), self.reading() as (_, state):
                self._lock.note(state.commit)
                for path in self.folder.iterdir():
                    if ours.fullmatch(path.name) and path.name not in state.files:
                        with suppress(OSError):  # Windows keeps what somebody has mapped
                            path.unlink()

    def bytes(self) -> dict[str, int]:
        """Bytes on disk or in memory by what they hold; the room behind the end is not counted."""
        with self.reading() as (connection, state):
            pages, size = (connection.execute(f"PRAGMA page_{x}").fetchone()[0] for x in ("count", "size"))
        vectors = state.positions * state.row_bytes
        found = {"codes": state.code_bytes, "vectors": vectors, "ids and metadata": pages * size}
        for what, name in (("model", state.model), ("sorted by list", state.lists_file)):
            if self.folder is not None and name is not None:
                with suppress(OSError):
                    found[what] = (self.folder / name).stat().st_size
        return found | {"total": sum(found.values())}

    def close(self) -> None:
        """Release the lock and the connections; waits for a change under way, readers close their own."""
        with unforked, self.connections.writing:
            self._sole = None
            self.connections.close()
            if self._lock is not None:
                self._lock.release()


# ---- Folders


def is_collection(folder: Path) -> bool:
    """Whether a collection is in a folder."""
    return (folder / DATABASE).is_file()


def check_folder(folder: Path, made_by: str = MADE_BY) -> None:
    """Refuse a folder that is no collection of ours, and say what to do."""
    try:
        if is_collection(folder):
            return
        is_older, is_there = (folder / "manifest.jsonl").is_file(), folder.exists()
    except OSError as error:  # its name is too long, or it is not for us
        raise FileProblem(f"{folder} cannot be read: {error.strerror}.") from error
    if is_older:
        raise CollectionError(f"{folder} {OLDER}")
    what, near = "is not a collection", ""
    if not is_there:
        what = "does not exist"
        with suppress(OSError):
            others = [each.name for each in folder.absolute().parent.iterdir() if is_collection(each)]
            near = nearest(folder.name, others)
    raise CollectionError(f"{folder} {what}.{near} {made_by}")


def refuse_existing(folder: Path, *, overwrite: bool) -> None:
    """Raise FileExists if something is in the way that must not be replaced."""
    if "\0" in str(folder):
        raise InvalidParameter("path", str(folder), "a name without the character NUL")
    if not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not overwrite:
        raise files.exists(folder)
    if not is_collection(folder):
        raise FileExists(f"{folder} is not a collection, so it is not replaced. Choose another name.")


def lay_out(connection: sqlite3.Connection, state: State) -> None:
    """Make the tables of an empty collection."""
    connection.executescript(
        f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {FORMAT}; BEGIN; {SCHEMA}"
    )
    write_state(connection, state)
    connection.execute("COMMIT")


def make_folder(folder: Path, state: State, save_model: Callable[[Path], object] | None) -> None:
    """An empty collection in a new folder, which appears whole or not at all; save_model writes its model.

    What replaces a collection is committed like a change: a crash leaves the old one or the new one.
    """
    try:
        if is_collection(folder):
            return _replace(folder, state, save_model)
        with files.new_folder(folder) as temporary:
            if save_model is not None and state.model is not None:
                save_model(temporary / state.model)
            durable = (where.register, "PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL")
            with (
                database_errors(folder, DATABASE),
                closing(connect(temporary / DATABASE, *durable, options="mode=rwc")) as made,
            ):
                lay_out(made, state)
    except FileProblem:
        raise
    except OSError as error:
        raise FileProblem(f"{folder} could not be made: {error.strerror or error}.") from error


def _replace(folder: Path, state: State, save_model: Callable[[Path], object] | None) -> None:
    storage = Storage(folder, read_only=False)
    with closing(storage), storage.changing("created in place of another", Change) as change:
        number = change.before.generation + 1
        model = None if state.model is None else f"model.{number}.safetensors"
        if save_model is not None and model is not None:
            save_model(folder / model)
        for table in TABLES:
            change.connection.execute(f"DELETE FROM {table}")
        change.state = state
        change.update(
            model=model, generation=number, codes=f"codes.{number}", vectors_file=f"vectors.{number}"
        )
