"""Writing files so that a crash leaves the old one whole, and checking what is read back."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from auxbit.errors import FileExists, FileProblem

BINARY = getattr(os, "O_BINARY", 0)  # Windows would write line ends of its own
MOST_AT_ONCE = 2**24  # bytes: an interrupt need not wait for gigabytes


@contextmanager
def replacing(path: str | os.PathLike[str], *, overwrite: bool = True) -> Iterator[Path]:
    """Yield a temporary name in the folder of `path`; on success sync it and rename it to `path`.

    On an exception the temporary file is removed and whatever stood at `path` stays as it was.
    """
    target = Path(path)
    refuse_existing(target, overwrite=overwrite)
    make_folder(target.parent)
    temporary = target.parent / f".{target.name[:40]}.{secrets.token_hex(8)}.part"
    # created here, so that the kernel applies the umask: asking for it would change it for other threads
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    mode = temporary.stat().st_mode & 0o777
    try:
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


def write_bytes(path: str | os.PathLike[str], content: bytes, *, overwrite: bool = True) -> None:
    """Write `content` to `path` atomically."""
    with replacing(path, overwrite=overwrite) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | BINARY)
        try:
            write_all(descriptor, content)
        finally:
            os.close(descriptor)


def write_text(path: str | os.PathLike[str], content: str, *, overwrite: bool = True) -> None:
    """Write `content` to `path` atomically, as UTF-8."""
    write_bytes(path, content.encode(), overwrite=overwrite)


@contextmanager
def creating(path: str | os.PathLike[str]) -> Iterator[int]:
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


def make_folder(path: str | os.PathLike[str]) -> None:
    """Make a folder and those that it is in, unless they are there, and their names durable."""
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


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Make the names in a folder durable: files made, renamed and removed."""
    _sync(Path(path))


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """Raise FileExists where `path` must not be overwritten, FileProblem where it is a folder."""
    if path.is_dir():
        raise FileProblem(f"{path} is a folder; expected the name of a file to write.")
    if not overwrite and os.path.lexists(path):
        raise _exists(path)


def checksum(chunks: Iterable[bytes | memoryview]) -> str:
    """SHA-256 of the chunks one after another, in hexadecimal."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def _rename_if_free(temporary: Path, target: Path) -> None:
    """Rename, unless somebody made `target` since we looked: a hard link refuses atomically."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise _exists(target) from None
    except OSError:  # a file system without hard links
        refuse_existing(target, overwrite=False)
        os.replace(temporary, target)


def _exists(path: Path) -> FileExists:
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
