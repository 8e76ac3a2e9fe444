"""The pictures in a folder and in those within it."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

from auxbit.collection import manifest
from auxbit.errors import FileProblem
from auxbit.images.decoding import SUFFIXES

Skipped = list[tuple[str, str]]


class Found(NamedTuple):
    """A file that may hold a picture; `name` is relative to the folder that was walked, with `/`."""

    path: Path
    name: str
    size: int
    mtime_ns: int


def walk(folder: str | os.PathLike[str], skipped: Skipped | None = None) -> list[Found]:
    """Every file under `folder` whose suffix is that of a picture, in natural order: img2 before img10.

    Hidden files and folders are left out, and so are collections. A folder that several links lead to is
    walked once. What cannot be read goes to `skipped` as (name, reason). A single file is found as it is,
    whatever its suffix.
    """
    top = Path(folder)
    skipped = [] if skipped is None else skipped
    _refuse_odd_name(top)
    try:
        kind = top.stat()
    except FileNotFoundError:
        raise FileProblem(f"{top} does not exist. Name a folder of pictures, or a picture.") from None
    except OSError as error:
        raise FileProblem(f"{top} cannot be read: {error.strerror}.") from error
    if stat.S_ISREG(kind.st_mode):
        return [Found(top, top.name, kind.st_size, kind.st_mtime_ns)]
    if not stat.S_ISDIR(kind.st_mode):
        raise FileProblem(f"{top} is neither a folder nor a file. Name a folder of pictures, or a picture.")
    if (top / manifest.NAME).is_file():
        raise FileProblem(f"{top} is a collection of auxbit. Name the folder that its pictures are in.")
    if not os.access(top, os.R_OK | os.X_OK):
        raise FileProblem(f"{top} cannot be read: its permissions do not allow it.")
    return sorted(_Walk(top, skipped).found, key=lambda each: natural(each.name))


def natural(name: str) -> tuple[tuple[tuple[tuple[int, int | str], ...], ...], str]:
    """A key that sorts names by folder, letters without regard to case, and numbers by their value."""
    return tuple(tuple(_chunks(part)) for part in name.split("/")), name


def _chunks(part: str) -> list[tuple[int, int | str]]:
    pieces = re.split(r"([0-9]+)", part.casefold())
    return [(0, int(piece)) if piece[0] in "0123456789" else (1, piece) for piece in pieces if piece]


class _Walk:
    def __init__(self, top: Path, skipped: Skipped) -> None:
        self._top, self._skipped = top, skipped
        self.found: list[Found] = []
        self._walked: set[tuple[int, int]] = set()
        self._links: list[Path] = []
        self._tree(top)
        # links to folders last: a folder is found under its own name if it has one here
        while self._links:
            self._links.sort(key=lambda path: natural(path.as_posix()), reverse=True)
            self._tree(self._links.pop())

    def _tree(self, start: Path) -> None:
        folders = [start]
        while folders:
            folder = folders.pop()
            try:
                place = folder.stat()
                if (place.st_dev, place.st_ino) in self._walked:
                    continue
                self._walked.add((place.st_dev, place.st_ino))
                with os.scandir(folder) as listing:
                    entries = list(listing)
            except OSError as error:
                self._skip(folder, f"cannot be read: {error.strerror or error}")
                continue
            if not any(entry.name == manifest.NAME for entry in entries):  # not into a collection
                folders += self._look_at(entries)

    def _look_at(self, entries: list[os.DirEntry[str]]) -> list[Path]:
        """Keep the pictures and links among the entries of a folder; return the folders."""
        folders = []
        for entry in entries:
            if entry.name.startswith("."):
                continue
            path = Path(entry.path)
            picture = path.suffix.lower() in SUFFIXES
            try:
                if entry.is_dir():
                    if _is_odd(entry.name):
                        self._skip(path, "has a name that is not UTF-8")
                    elif entry.is_symlink():
                        self._links.append(path)
                    else:
                        folders.append(path)
                elif picture:
                    self._keep(entry, path)
            except OSError as error:
                if picture:
                    self._skip(path, f"cannot be read: {error.strerror or error}")
        return folders

    def _keep(self, entry: os.DirEntry[str], path: Path) -> None:
        about = entry.stat()
        if _is_odd(entry.name):
            self._skip(path, "has a name that is not UTF-8")
        elif not stat.S_ISREG(about.st_mode):
            self._skip(path, "is not a regular file")
        else:
            self.found.append(Found(path, self._name(path), about.st_size, about.st_mtime_ns))

    def _name(self, path: Path) -> str:
        return path.relative_to(self._top).as_posix()

    def _skip(self, path: Path, reason: str) -> None:
        name = os.fsencode(self._name(path)).decode("utf-8", "backslashreplace")
        self._skipped.append((name, reason))


def _is_odd(name: str) -> bool:
    """Whether a name is not UTF-8, and so cannot be kept as text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return True
    return False


def _refuse_odd_name(path: Path) -> None:
    if _is_odd(str(path)):
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise FileProblem(f"{shown} has a name that is not UTF-8. Rename it.")
