"""Files: written so that a crash leaves the old one whole, locked by one writer, checked when read."""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import importlib.resources
import json
import math
import mmap
import os
import platform
import re
import secrets
import socket
import sqlite3
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from auxbit.core.checks import Array, Bytes, Ids, Mask, PathLike, Positions, check_mapped, mapped_file
from auxbit.core.parallel import unforked
from auxbit.errors import AuxbitError, Damaged, FileExists, FileProblem, InUse, InvalidInput, InvalidParameter

if TYPE_CHECKING:
    from filelock import FileLock

BINARY = getattr(os, "O_BINARY", 0)  # Windows would write line ends of its own
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)  # which say nothing about a file
MOST_AT_ONCE = 2**24  # bytes: an interrupt need not wait for gigabytes


@contextmanager
def write_errors(path: PathLike) -> Iterator[None]:
    """Say of an error of the system which file could not be written."""
    try:
        yield
    except AuxbitError:
        raise
    except OSError as error:
        raise FileProblem(f"{path} could not be written: {error.strerror or error}.") from error


@contextmanager
def replacing(path: PathLike, *, overwrite: bool = True) -> Iterator[Path]:
    """Yield a temporary name in the folder of `path`; on success sync it and rename it to `path`.

    On an exception the temporary file is removed and whatever stood at `path` stays as it was.
    """
    target = Path(path)
    refuse_existing(target, overwrite=overwrite)
    with write_errors(target):
        make_folder(target.parent)
        temporary = target.parent / f".{target.name[:40]}.{secrets.token_hex(8)}.part"
        try:
            # made here, so that the kernel applies the umask: asking for it would change it for other threads
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            mode = temporary.stat().st_mode & 0o777
            yield temporary
            temporary.chmod(mode)  # the caller may have put another file there, as safetensors does
            _sync(temporary)
            if overwrite:
                os.replace(temporary, target)
            else:
                _rename_if_free(temporary, target)
            _sync(target.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def restoring(path: PathLike, with_: PathLike) -> Iterator[None]:
    """On an exception let a small file be as it was, unless what it is about, `with_`, was replaced."""

    def there() -> int | None:
        return os.stat(with_).st_ino if os.path.exists(with_) else None

    note, replaced = Path(path), there()
    with write_errors(note):
        before = note.read_bytes() if note.exists() else None
    try:
        yield
    except BaseException:
        if there() == replaced:
            if before is None:
                note.unlink(missing_ok=True)
            elif note.read_bytes() != before:
                write_bytes(note, before)
        raise


def write_bytes(path: PathLike, content: bytes, *, overwrite: bool = True) -> None:
    """Write `content` to `path` atomically."""
    with replacing(path, overwrite=overwrite) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | BINARY)
        try:
            write_all(descriptor, content)
        finally:
            os.close(descriptor)


def write_text(path: PathLike, content: str, *, overwrite: bool = True) -> None:
    """Write `content` to `path` atomically, as UTF-8."""
    write_bytes(path, content.encode(), overwrite=overwrite)


@contextmanager
def creating(path: PathLike) -> Iterator[int]:
    """Yield the descriptor of a new file; on success sync it, on an exception remove it.

    Its name is durable only after sync_folder, and nothing may refer to it before.
    """
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | BINARY, 0o666)
    try:
        try:
            yield descriptor
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        os.unlink(path)
        raise


def write_all(descriptor: int, content: Any) -> None:
    """Write all of a buffer, however many calls that takes."""
    rest = memoryview(content).cast("B")
    while rest:
        rest = rest[os.write(descriptor, rest[:MOST_AT_ONCE]) :]


def make_folder(path: PathLike) -> None:
    """Make a folder and its parents if they are missing, and make their names durable."""
    missing, place = [], Path(path).absolute()
    while not place.exists():
        missing.append(place)
        place = place.parent
    for each in reversed(missing):
        try:
            os.mkdir(each)
        except FileExistsError:
            continue  # somebody else was faster
        _sync(each.parent)


@contextmanager
def new_folder(path: PathLike) -> Iterator[Path]:
    """Yield a new folder for files under a temporary name; on success sync it and rename it to `path`."""
    target = Path(path)
    make_folder(target.parent)
    temporary = target.parent / f".{target.name[:40]}.{secrets.token_hex(8)}.part"
    os.mkdir(temporary)
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, target)
    finally:
        with suppress(OSError):  # shutil.rmtree needs more descriptors, and there may be none left
            for name in os.listdir(temporary):
                os.unlink(temporary / name)
        with suppress(OSError):
            os.rmdir(temporary)
    _sync(target.parent)


def sync_folder(path: PathLike) -> None:
    """Make the names in a folder durable: files made, renamed and removed."""
    _sync(Path(path))


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """Raise FileExists if `path` must not be overwritten, FileProblem if it is a folder."""
    if path.is_dir():
        raise FileProblem(f"{path} is a folder; expected the name of a file to write.")
    if not overwrite and os.path.lexists(path):
        raise exists(path)


def check_output(path: PathLike, *, overwrite: bool, endings: Sequence[str] = (), name: str = "out") -> None:
    """Refuse, before long work, a file that could not be written after it.

    endings : what its name may end in, () for anything; name : of the parameter, for errors.
    """
    target = Path(path)
    if endings and target.suffix.lower() not in endings:
        raise InvalidParameter(name, str(target), f"a name that ends in {' or '.join(endings)}")
    refuse_existing(target, overwrite=overwrite)
    folder = next(parent for parent in target.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise FileProblem(f"{target} cannot be written: {folder} is a file, not a folder.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise FileProblem(f"{target} cannot be written: no permission to write in {folder}.")


def checksum(chunks: Iterable[bytes | memoryview]) -> str:
    """SHA-256 of the chunks one after another, in hexadecimal."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


LIBRARIES = ("numpy", "scipy", "numba", "scikit-learn", "faiss-cpu")  # that numbers depend on


def versions() -> dict[str, str]:
    """Of auxbit, of Python, and of the libraries that results depend on, if they are installed."""
    from auxbit import __version__

    found = {"python": platform.python_version(), "auxbit": __version__}
    for name in LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


@cache
def code_key(*parts: str) -> str:
    """A checksum of the source of parts of auxbit, "core" or "data/gist.py", and of versions().

    What is kept on disk to save its computation is kept under the key of what computes it.
    """

    def sources(place: Any) -> Iterator[bytes]:
        if place.is_file():
            yield f"{place.name} ".encode() + place.read_bytes()
        else:
            for each in sorted(place.iterdir(), key=lambda each: str(each.name)):
                if each.name.endswith(".py") or (each.is_dir() and each.name != "__pycache__"):
                    yield from sources(each)

    package = importlib.resources.files("auxbit")
    texts = (text for part in sorted(set(parts)) for text in sources(package / part))
    content = (checksum([text]).encode() for text in texts)
    return checksum([json.dumps(versions(), sort_keys=True).encode(), *content])[:16]


def _rename_if_free(temporary: Path, target: Path) -> None:
    """Rename, unless somebody made `target` since we looked: a hard link refuses atomically."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise exists(target) from None
    except OSError:  # a file system without hard links
        refuse_existing(target, overwrite=False)
        os.replace(temporary, target)


def exists(path: Path) -> FileExists:
    """The error of something that is in the way."""
    return FileExists(f"{path} exists. Choose another name, or overwrite it with --force (overwrite=True).")


def _sync(path: Path) -> None:
    flags = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) if path.is_dir() else os.O_RDWR
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open a folder to sync it
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- One writer at a time


class WriterLock:
    """Held from `acquire` to `release`, or to the end of the process, however that comes.

    The file stays: to remove it would let two processes lock two files of one name. What it says about the
    holder is for people; the lock is the system's. It begins with the number of the last commit, if the
    holder notes it, so that readers can see at once that nothing was committed.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)
        self._lock: FileLock | None = None
        self._seen, self._looking = -1, threading.Lock()  # the file, as `notes` reads it

    @property
    def held(self) -> bool:
        """Whether this object holds the lock, in this process: a forked child does not."""
        return self._lock is not None and self._lock.is_locked

    def acquire(self, what: str) -> None:
        """Take the lock for `what`, at once, or raise InUse and say who has it."""
        if self.held:
            return
        filelock = _filelock()
        lock = filelock.FileLock(
            self.path, blocking=False, thread_local=False,  # whoever closes may be another thread
            fallback_to_soft=False, preserve_lock_file=True, on_acquired=_sign,
        )  # fmt: skip
        try:
            lock.acquire()
        except filelock.Timeout as error:
            raise InUse(f"{what} is being written to by {self._holder()}; one writer at a time.") from error
        except OSError as error:
            raise FileProblem(f"{what} cannot be written to: {error.strerror} ({self.path}).") from error
        self._lock = lock

    def release(self) -> None:
        """Let others write; does nothing if the lock is not held."""
        if self._lock is not None and self.held:
            self._lock.release()
        self._lock = None
        self.look(closing=True)

    def note(self, commit: int | None) -> None:
        """Tell readers the last commit; None while another is made, which may or may not succeed."""
        descriptor = os.open(self.path, os.O_WRONLY | BINARY)
        try:
            write_all(descriptor, memoryview(_commit_text(commit)))
        finally:
            os.close(descriptor)

    @contextmanager
    def committing(self, commit: int) -> Iterator[None]:
        """Let readers ask the database for the length of the block, in which this commit is made."""
        self.note(None)
        yield
        with suppress(OSError):  # it is made: they go on asking
            self.note(commit)

    def notes(self, commit: int) -> bool:
        """Whether this is still the last commit; False if that cannot be told without the database."""
        try:
            return self._seen >= 0 and os.pread(self._seen, NOTE_BYTES, 0) == _commit_text(commit)
        except (OSError, AttributeError):  # it was closed just now; Windows has no pread
            return False

    def look(self, *, closing: bool = False) -> None:
        """Have the file open that is there now, for `notes`; or none any more."""
        with unforked, self._looking:
            with suppress(OSError):
                if not closing and os.path.samestat(os.fstat(self._seen), os.stat(self.path)):
                    return
            if self._seen >= 0:
                self._seen, old = -1, self._seen
                os.close(old)
            with suppress(OSError):  # there is none before the first change
                self._seen = -1 if closing else os.open(self.path, os.O_RDONLY | BINARY)

    def __del__(self) -> None:  # without waiting for a fork: it may be called in the midst of one
        if self._seen >= 0:
            os.close(self._seen)

    def _holder(self) -> str:
        try:
            about: dict[str, Any] = json.loads(self.path.read_text())
            mine = " (this process)" if about["pid"] == os.getpid() else ""
            return f"process {about['pid']}{mine} on {about['host']} since {about['since']}"
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"


@cache
def _filelock() -> ModuleType:
    """The library, imported on use: many files are read and never locked."""
    import filelock

    unforked.hook()  # a fork that waited for filelock first would keep a section of ours from its lock
    return filelock


def _sign(descriptor: int) -> None:
    """Write into the lock file who holds it."""
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    about = {"pid": os.getpid(), "host": socket.gethostname(), "since": now}
    with suppress(OSError):  # a full disk: the lock holds all the same
        os.ftruncate(descriptor, 0)
        os.write(descriptor, _commit_text(None) + json.dumps(about)[1:].encode())


@lru_cache(maxsize=64)
def _commit_text(commit: int | None) -> bytes:
    """How the file of a lock begins, as JSON."""
    return f'{{"commit": {"null" if commit is None else commit:>20}, '.encode()


NOTE_BYTES = len(_commit_text(None))


# ---- Flat files: bytes that are only added to, with a checksum for each 64 KB

CHUNK = 2**16  # bytes that share a checksum
WRITTEN_BYTES = 2**23  # at a time, at least, if there are so many
LARGE_PAGE, HAS_LARGE_PAGES = 2**21, hasattr(mmap, "MADV_HUGEPAGE")  # of Linux


def aligned_zeros(shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Zeros that begin on a 64-byte boundary, so that no vector crosses two lines of the cache."""
    size = math.prod(shape)
    raw = np.zeros(size + 64, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].reshape(shape)


def _gathered(pieces: Iterable[Array]) -> Iterator[memoryview]:
    """The bytes of arrays, some megabytes at a time: Linux keeps what is written at once in large pages."""
    waiting, size = list[Bytes](), 0
    for piece in pieces:
        waiting.append(np.ascontiguousarray(piece).reshape(-1).view(np.uint8))
        size += len(waiting[-1])
        if size >= WRITTEN_BYTES:
            yield (waiting[0] if len(waiting) == 1 else np.concatenate(waiting)).data
            waiting, size = [], 0
    if waiting:
        yield np.concatenate(waiting).data


def _reserve_large_page(descriptor: int, end: int, room: int) -> None:
    """Write zeros where the next large page begins: what is added there later in small pieces lies in it.

    Scans of ten million codes in small pages take a tenth longer. Only of what is read from end to end.
    If the disk has no room for them, nothing is reserved.
    """
    ahead = -(-(end + room) // LARGE_PAGE) * LARGE_PAGE
    size = os.fstat(descriptor).st_size
    if room and 2 * end > LARGE_PAGE and size <= ahead and HAS_LARGE_PAGES:
        os.lseek(descriptor, ahead, os.SEEK_SET)
        try:
            write_all(descriptor, memoryview(bytes(LARGE_PAGE)))
        except OSError:
            os.ftruncate(descriptor, size)  # what was written of them would be missing elsewhere


class Flat:
    """Bytes that are only added to: a file that is mapped, or memory if the path is None.

    remedy : what errors tell to do about damage.
    """

    def __init__(self, path: Path | None, remedy: str = "Restore it from a copy.") -> None:
        self.path, self.remedy = path, remedy
        self._memory = np.zeros(0, dtype=np.uint8)

    def append(self, end: int, pieces: Iterable[Array], room: int, check: int = 0) -> dict[int, int]:
        """Write from byte `end` on, which was the end, with `room` free bytes behind; synced at return.

        check : the CRC-32 of the chunk that was begun. Returns those of all chunks that have changed.
        """
        found, first = dict[int, int](), end
        descriptor = None
        if self.path is not None:
            descriptor = os.open(self.path, os.O_CREAT | os.O_RDWR | BINARY, 0o666)
        try:
            for buffer in _gathered(pieces):
                self._write(descriptor, end, buffer)
                while len(buffer):
                    chunk, filled = divmod(end, CHUNK)
                    some, buffer = buffer[: CHUNK - filled], buffer[CHUNK - filled :]
                    check = found[chunk] = zlib.crc32(some, check if filled else 0)
                    end += len(some)
            self._write(descriptor, end, memoryview(bytes(room)))
            if descriptor is not None:
                _reserve_large_page(descriptor, end, room)
                os.fsync(descriptor)
        finally:
            if descriptor is not None:
                os.close(descriptor)
        if self.path is not None and not first:
            sync_folder(self.path.parent)  # its name is durable before anything refers to it
        return found

    def _write(self, descriptor: int | None, at: int, buffer: memoryview) -> None:
        if descriptor is not None:
            os.lseek(descriptor, at, os.SEEK_SET)
            write_all(descriptor, buffer)
        else:
            self._reserve(at + len(buffer))[at : at + len(buffer)] = buffer

    def _reserve(self, size: int) -> Bytes:
        """The memory, which now has `size` bytes and more."""
        if size > len(self._memory):
            grown = aligned_zeros((max(size, len(self._memory) * 5 // 4),))
            grown[: len(self._memory)] = self._memory
            self._memory = grown
        return self._memory

    def content(self, length: int, room: int = 0, *, lenient: bool = False) -> Bytes:
        """The first `length` bytes, mapped, and `room` behind them; what is written there stays with us.

        lenient : what a file that was cut short lacks is zeros.
        """
        if self.path is None or not length:
            return (self if self.path is None else Flat(None))._reserve(length + room)[: length + room]
        size = 0
        try:
            with open(self.path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size >= length + room:
                    mapped = mmap.mmap(file.fileno(), length + room, access=mmap.ACCESS_COPY)
                    if room and HAS_LARGE_PAGES:  # codes, which are read from end to end
                        with suppress(OSError):  # a kernel without them
                            mapped.madvise(mmap.MADV_HUGEPAGE)
                    return np.frombuffer(mapped, dtype=np.uint8)
                some = np.frombuffer(file.read(length), dtype=np.uint8)
        except FileNotFoundError:
            if not lenient:
                raise
            some = self._memory
        except OSError as error:
            kind = FileProblem if error.errno in SHORTAGES else Damaged
            raise kind(f"{self.path} cannot be read: {error.strerror}.") from error
        if size < length and not lenient:
            raise Damaged(
                f"{self.path} is damaged: it has {size:,} bytes instead of {length:,}. {self.remedy}"
            )
        content = Flat(None)._reserve(length + room)[: length + room]
        content[: len(some)] = some
        return content


class Checked:
    """The bytes of a flat file, each 64 KB compared with its checksum before its first use.

    The checksums are in the table `checks` (file, chunk, checksum) of a database.
    """

    def __init__(self, flat: Flat, name: str, *, lenient: bool) -> None:
        """Begin with none; lenient : note what is damaged, rather than raise an error."""
        self.flat, self.name, self._lenient, self.length = flat, name, lenient, 0
        self.content: Bytes = np.zeros(0, dtype=np.uint8)
        self._mapped: mmap.mmap | None = None  # what the content lies in
        self._sums: Ids = np.zeros(0, dtype=np.int64)
        self._fine: Mask = np.zeros(0, dtype=np.bool_)
        self.damage: list[int] = []  # chunks that do not match, if that is to be survived

    @property
    def n_full(self) -> int:
        """How many chunks cannot change any more."""
        return self.length // CHUNK

    def grow(self, connection: sqlite3.Connection, length: int, room: int = 0) -> None:
        """Map the file again, now that it has `length` bytes, with some room behind them."""
        query = "SELECT chunk, checksum FROM checks WHERE file = ? AND chunk >= ? ORDER BY chunk"
        chunks, sums = integers(connection, query, self.name, self.n_full).T
        if not np.array_equal(chunks, np.arange(self.n_full, -(-length // CHUNK))):
            raise Damaged(
                f"the database lacks checksums of {self.flat.path or self.name}. {self.flat.remedy}"
            )
        self.content = self.flat.content(length, room, lenient=self._lenient)
        self._mapped = mapped_file(self.content)
        self._sums = np.concatenate([self._sums[: self.n_full], sums])
        self._fine = np.concatenate([self._fine[: self.n_full], np.zeros(len(sums), dtype=np.bool_)])
        self.length = length

    def check_length(self) -> None:
        """Refuse a file that was cut short since; every search passes here."""
        if self._mapped is not None and self._mapped.size() < len(self._mapped):
            check_mapped(self.content, self.flat.path, Damaged)

    def check(self, chunks: Positions | None = None) -> None:
        """Compare chunks, by default all, with their checksums, if the file is still as long."""
        self.check_length()
        wanted = np.arange(len(self._fine)) if chunks is None else chunks
        for chunk in wanted[~self._fine[wanted]].tolist():
            content = self.content[chunk * CHUNK : min((chunk + 1) * CHUNK, self.length)]
            if zlib.crc32(content.data) != self._sums[chunk]:
                if not self._lenient:
                    raise Damaged(
                        f"{self.flat.path} is damaged: 64 KB from byte {chunk * CHUNK:,} on do not match "
                        f"their checksum. {self.flat.remedy}"
                    )
                self.damage.append(chunk)
            self._fine[chunk] = True

    def check_rows(self, rows: Positions, size: int) -> None:
        """Compare what holds these rows of `size` bytes each."""
        if len(rows) and size:
            first, last = rows * size // CHUNK, ((rows + 1) * size - 1) // CHUNK
            spans = [first + step for step in range(int((last - first).max()) + 1)]
            chunks = np.concatenate([np.minimum(span, last) for span in spans])
            self.check(np.unique(chunks[~self._fine[chunks]]))

    def spoilt(self, size: int, rows_each: int) -> Iterator[slice]:
        """The rows in damaged chunks, of which `rows_each` take `size` bytes."""
        for chunk in self.damage:
            first, last = chunk * CHUNK // size, -(-min((chunk + 1) * CHUNK, self.length) // size)
            yield slice(first * rows_each, last * rows_each)


def append_checked(
    connection: sqlite3.Connection, flat: Flat, name: str, end: int, pieces: Iterable[Array], room: int = 0
) -> None:
    """Append to a flat file, from its committed end on, and note the checksums for `Checked`."""
    query = "SELECT checksum FROM checks WHERE file = ? AND chunk = ?"
    begun = connection.execute(query, (name, end // CHUNK)).fetchone()
    found = flat.append(end, pieces, room, begun[0] if begun else 0)
    connection.executemany(
        "INSERT OR REPLACE INTO checks VALUES (?, ?, ?)", [(name, *each) for each in found.items()]
    )


class Kept:
    """A file that can be read even if it is removed later: it is mapped now, and not read before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content: Bytes | None = None
        with suppress(OSError, Damaged):
            self._content = Flat(path).content(path.stat().st_size)

    def read(self, load: Callable[[Path], Any]) -> Any:
        """What `load` makes of its path, or, if it is gone by then, of that of a copy."""
        try:
            return load(self._path)
        except AuxbitError:
            if self._path.exists() or self._content is None:
                raise
        with tempfile.TemporaryDirectory() as temporary:
            copy = Path(temporary) / self._path.name
            copy.write_bytes(self._content.tobytes())
            return load(copy)


# ---- SQLite databases, on any disk

WAIT_SECONDS = 10.0  # for a transaction of somebody else
MAPPED = 2**28  # bytes of a database that are read where they lie, twice as fast as by copies

Prepare = Callable[[sqlite3.Connection], object]


@contextmanager
def database_errors(place: object, name: str) -> Iterator[None]:
    """Say what an error of SQLite means for whoever uses the database `name` of a place."""
    try:
        yield
    except (UnicodeDecodeError, OverflowError) as error:  # of text that is none, and of numbers
        raise Damaged(f"{place}: {name} is damaged ({error}). Restore it from a copy.") from error
    except sqlite3.Error as error:
        text, code = str(error), _name_of(error)
        if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise InUse(f"{place} is being written to by another process; one writer at a time.") from error
        said = ("malformed", "Could not decode", "no such", "unsupported file format")
        if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or any(each in text for each in said):
            raise Damaged(f"{place}: {name} is damaged ({text}). Restore it from a copy.") from error
        if code.startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN")):
            raise FileProblem(
                f"{place} could not be written to, or read: {text}. It is as it was before."
            ) from error
        raise


def _name_of(error: sqlite3.Error) -> str:
    """The name that SQLite has for an error, as SQLITE_BUSY."""
    return getattr(error, "sqlite_errorname", None) or ""


def connect(
    path: Path | None, prepare: Prepare, *statements: str, options: str = "mode=rw"
) -> sqlite3.Connection:
    """A connection to a database, on which these statements were executed; None: to a new one in memory.

    prepare : called with it, to check the database or to register functions.
    """
    connection: sqlite3.Connection = sqlite3.connect(
        ":memory:" if path is None else f"{path.absolute().as_uri()}?{options}", uri=True,
        isolation_level=None, check_same_thread=False, timeout=WAIT_SECONDS,
    )  # fmt: skip
    try:
        for each in (f"PRAGMA mmap_size = {MAPPED}", *statements):
            connection.execute(each).fetchall()
        prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection


class Reader(NamedTuple):
    """A connection that reads. seen : the files of a folder that we cannot write to, as they were.

    SQLite cannot lock what lies there. Others may change it: then it is opened again.
    """

    connection: sqlite3.Connection
    seen: tuple[object, ...] | None = None

    @classmethod
    def of(cls, path: Path, prepare: Prepare) -> Reader:
        """A connection to a database that may lie on a disk that cannot be written to."""
        first = "SELECT 1 FROM sqlite_schema"
        for options in ("mode=rw", "mode=ro"):  # the second of a folder or disk that cannot be written to
            try:
                return cls(connect(path, prepare, "PRAGMA query_only = 1", first, options=options))
            except sqlite3.OperationalError as error:
                if not _name_of(error).startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
                    raise  # such as a lock that somebody holds, who may be writing
        # there SQLite can have no locks, and an index of its log only in memory
        seen, log = cls.seen_at(path), path.with_name(f"{path.name}-wal")
        alone = f"mode=ro&vfs={'win32' if os.name == 'nt' else 'unix'}-none"
        if not log.exists() or not log.stat().st_size:
            alone = "immutable=1"
        exclusive = "PRAGMA locking_mode = EXCLUSIVE"
        return cls(connect(path, prepare, exclusive, first, options=alone), seen)

    @staticmethod
    def seen_at(path: Path) -> tuple[object, ...]:
        """What tells one content of a database, and of its log, from another."""
        found: list[object] = []
        for each in (path, path.with_name(f"{path.name}-wal")):
            with suppress(FileNotFoundError):
                about = each.stat()
                found += [each.name, about.st_ino, about.st_size, about.st_mtime_ns]
        return tuple(found)

    def outdated(self, path: Path) -> bool:
        """Whether somebody has changed the files since."""
        return self.seen is not None and self.seen != self.seen_at(path)


process = os.getpid()  # kept, because it costs a system call, and every search asks


def _note_process() -> None:
    global process
    process = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_process)


class Connections:
    """Connections to a database: of those who read it, each for one thread at a time, and of who writes it.

    Each process has its own: a forked child may not even close those of its parent. Of a database in memory,
    path=None, there is only one, for one thread at a time. writing : held by the thread that writes.
    """

    def __init__(self, path: Path | None, prepare: Prepare) -> None:
        self.path, self._prepare, self.closed, self.writing = path, prepare, False, threading.RLock()
        self._free, self._writers = dict[int, list[Reader]](), dict[int, sqlite3.Connection]()
        self._only = connect(None, prepare) if path is None else None

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that no other thread uses meanwhile."""
        if self.path is None:
            with self.writing:
                yield self.writer()
            return
        free, reader = self._free.setdefault(process, []), None
        with suppress(IndexError):  # asked for, not looked up: another thread may be faster
            reader = free.pop()
        if reader is not None and reader.outdated(self.path):
            reader.connection.close()
            reader = None
        reader = reader or Reader.of(self.path, self._prepare)
        try:
            yield reader.connection
            if reader.outdated(self.path):
                raise FileProblem(f"{self.path} was changed while it was read. Try again.")
        finally:
            if self.closed:
                reader.connection.close()
            else:
                free.append(reader)

    def writer(self) -> sqlite3.Connection:
        """The connection to write by."""
        if self._only is not None:
            return self._only
        if process not in self._writers:
            settings = ("PRAGMA synchronous = FULL", "PRAGMA cache_size = -65536")
            self._writers[process] = connect(self.path, self._prepare, *settings)
        return self._writers[process]

    def shrink(self) -> None:
        """Give the room of deleted rows back to the disk; if that fails, nothing has changed."""
        with unforked, self.writing, suppress(sqlite3.Error):  # as for want of room on the disk
            connection = self.writer()
            connection.execute("VACUUM")
            connection.execute("PRAGMA busy_timeout = 0")  # a log that somebody reads stays for now
            try:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                connection.execute(f"PRAGMA busy_timeout = {1000 * WAIT_SECONDS:.0f}")

    def close(self) -> None:
        """Close all that are not in use; readers close their own."""
        self.closed = True
        while self._free.get(process):
            self._free[process].pop().connection.close()
        if process in self._writers:
            self._writers.pop(process).close()  # the last connection takes the log into the database

    def __del__(self) -> None:  # Python 3.13 warns of connections that are left open
        with suppress(AttributeError, sqlite3.Error):  # of what could not be opened
            self.close()
            if self._only is not None:
                self._only.close()


def integers(connection: sqlite3.Connection, query: str, *parameters: Any) -> Ids:
    """The rows of a query of integers, (n, width)."""
    found = connection.execute(query, parameters)
    try:
        return np.array(found.fetchall(), dtype=np.int64).reshape(-1, len(found.description))
    except (TypeError, ValueError, OverflowError) as error:
        raise Damaged(f"the database is damaged: {error}. Restore it from a copy.") from error


def unlike_fields(record: Any, patterns: Mapping[str, str]) -> str | None:
    """The first field of a dataclass whose value is of another type than it says, or unlike its pattern.

    Numbers are 0 and up, and fit into 64 bits.
    """
    kinds: dict[str, Any] = {"int": int, "float": int | float, "str": str, "bytes": bytes}
    for field in fields(record):
        value, (kind, _, other) = getattr(record, field.name), str(field.type).partition(" | ")
        if value is None and other == "None":
            continue
        fine = isinstance(value, kinds[kind])
        if fine and isinstance(value, int | float):
            fine = 0 <= value < 2**63
        if fine and field.name in patterns:
            fine = re.fullmatch(patterns[field.name], value) is not None
        if not fine:
            return field.name
    return None


# ---- Files of arrays with a JSON header: safetensors with a format, a version and a checksum

Tensors = dict[str, npt.NDArray[Any]]

CHUNK_BYTES = 1 << 24


@dataclass(frozen=True)
class Format:
    """A kind of file. name, key: of the format and of the header in its metadata; version: the newest that is
    read; what: in errors; made_by: a sentence on what writes such files.
    """

    name: str
    key: str
    version: int
    what: str
    made_by: str
    error: type[FileProblem]

    def write(
        self, path: PathLike, header: dict[str, Any], tensors: Tensors, *, version: int | None = None,
        overwrite: bool = True,
    ) -> None:  # fmt: skip
        """Write header and tensors, atomically; version: the oldest that can hold them."""
        from auxbit import __version__

        tensors = {key: np.ascontiguousarray(value) for key, value in sorted(tensors.items())}
        metadata = {
            "format": self.name,
            "format_version": str(version or self.version),
            "auxbit_version": __version__,
            self.key: json.dumps(header),
        }
        metadata["checksum"] = _checksum(metadata, tensors)
        with replacing(path, overwrite=overwrite) as temporary:
            try:
                save_file(tensors, temporary, metadata)
            except SafetensorError as error:  # of a full disk, for one
                raise self.error(f"{path} could not be written: {error}.") from error

    def read(self, path: PathLike) -> tuple[dict[str, Any], Tensors]:
        """The header, with format_version and auxbit_version, and the tensors of a file that is whole."""
        if not Path(path).is_file():
            if Path(path).is_dir():
                raise self.error(f"{path} is a folder; expected {self.what}. {self.made_by}")
            raise self.error(f"{path} does not exist or is not a file.")
        try:
            with open(path, "rb"):  # tells why not: safetensors would say that it is not there
                pass
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  not a dict
        except OSError as error:
            raise self.error(f"{path} cannot be read: {error.strerror or error}.") from error
        except SafetensorError as error:
            what = f"{path} is not {self.what}, or was cut short: {error}. {self.made_by}"
            raise self.error(what) from error
        if metadata.get("format") != self.name:
            raise self.error(f"{path} is a safetensors file, but not {self.what}. {self.made_by}")
        version = metadata.get("format_version", "")
        if version not in map(str, range(1, self.version + 1)):
            made_by = metadata.get("auxbit_version", "a newer version")
            raise self.error(
                f"{path} has format {version or '?'}, made by auxbit {made_by}; this version reads up to "
                f"format {self.version}. Upgrade: pip install -U auxbit."
            )
        if metadata.pop("checksum", None) != _checksum(metadata, tensors):
            raise self.error(f"{path} is damaged: its checksum does not match. Restore it from a copy.")
        try:
            header: dict[str, Any] = dict(json.loads(metadata[self.key]))
        except (KeyError, ValueError, TypeError, RecursionError) as error:
            raise self.error(f"{path} has no readable header: {error!r}.") from error
        made = {"format_version": int(version), "auxbit_version": metadata.get("auxbit_version", "?")}
        return header | made, tensors


def format_of(path: str | os.PathLike[str]) -> str:
    """The name of a safetensors file's format, as "auxbit model"; "" if it has none or cannot be read."""
    try:
        with safe_open(path, framework="numpy") as file:
            return str((file.metadata() or {}).get("format", ""))
    except (SafetensorError, OSError):
        return ""


def _checksum(metadata: dict[str, str], tensors: Tensors) -> str:
    """Of everything in the file, so that no byte of it can change unnoticed."""

    def chunks() -> Iterator[bytes | memoryview]:
        yield json.dumps(metadata, sort_keys=True).encode()
        for key, tensor in sorted(tensors.items()):
            yield f"{key} {tensor.dtype.str} {tensor.shape}".encode()
            flat = tensor.reshape(-1).view(np.uint8)
            for start in range(0, flat.size, CHUNK_BYTES):
                yield flat[start : start + CHUNK_BYTES].data

    return checksum(chunks())


# ---- Layouts: what tensors must be. Checked before a kernel sees them, because kernels trust shapes


def check_layout(tensors: Mapping[str, Any], layout: str, sizes: dict[str, int], what: str = "") -> None:
    """Raise InvalidInput unless the tensors are those of a layout and fit each other, with finite numbers.

    tensors : arrays; of other things with the shape and dtype of one, values are not looked at.
    layout : for each a name, a type, the length of each axis, and perhaps the range of its values, as in
        "axes float64 D m; axis int64 L 0..m-1; width float64 1 >0". A length is a number, a letter, or a
        sum of these.
    sizes : what letters stand for; letters that are not there yet are added.
    what : before the names, in errors.
    """
    said = {name: rest for name, *rest in map(str.split, layout.split(";"))}
    if tensors.keys() != said.keys():
        found = ", ".join(f"{what}{name}" for name in sorted(tensors))
        raise InvalidInput(f"expected {', '.join(what + name for name in sorted(said))}, found {found}")
    for name, (dtype, *axes) in said.items():
        tensor, limits = tensors[name], axes.pop() if re.search(r"[.>]", axes[-1]) else ""
        if len(tensor.shape) == len(axes):
            sizes |= {axis: n for axis, n in zip(axes, tensor.shape) if axis.isalpha() and axis not in sizes}
        lengths = [_length(axis, sizes) for axis in axes]
        if list(tensor.shape) != lengths or tensor.dtype != np.dtype(dtype):
            wanted = ", ".join(
                axis if n is None or axis.isdigit() else f"{axis}={n}" for axis, n in zip(axes, lengths)
            )
            came = f"{what}{name} is ({', '.join(map(str, tensor.shape))}) of {tensor.dtype}"
            raise InvalidInput(f"{came}, expected ({wanted}) of {dtype}")
        if isinstance(tensor, np.ndarray):
            _check_values(tensor, limits, sizes, what + name)


def _check_values(tensor: npt.NDArray[Any], limits: str, sizes: dict[str, int], name: str) -> None:
    if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
        raise InvalidInput(f"{name} has numbers that are not finite")
    if limits and tensor.size:
        low, _, high = limits.partition("..")
        least, most = (_length(low, sizes), _length(high, sizes)) if high else (np.nextafter(0, 1), np.inf)
        if not (tensor.min() >= least and tensor.max() <= most):
            raise InvalidInput(f"{name} has values of {tensor.min()} to {tensor.max()}, expected {limits}")


def _length(said: str, sizes: dict[str, int]) -> int | None:
    """The number that "7", "D" or "m-1" stands for; None if a letter of it is not known."""
    terms = [(sign, sizes.get(term, term)) for sign, term in re.findall(r"([+-]?)(\w+)", said)]
    if any(isinstance(term, str) and term.isalpha() for _, term in terms):
        return None
    return sum(int(f"{sign}{term}") for sign, term in terms)
