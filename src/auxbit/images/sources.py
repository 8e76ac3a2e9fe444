"""Pictures to be read: where they come from, and which of them are in a collection already."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from auxbit.collection import manifest
from auxbit.collection.collection import Collection
from auxbit.errors import BadPicture, FileProblem
from auxbit.images.decoding import SUFFIXES
from auxbit.images.walking import Skipped, walk

MOST_BYTES = 2**29  # of a file: more than any picture of 100 million pixels needs
READ_ITEMS = 16_384  # whose metadata are in memory together
GONE = (FileNotFoundError, NotADirectoryError)


@dataclass(frozen=True)
class Source:
    """A picture to be read. `read` gives its bytes; name : within root, which is "" where there are no files.

    size, mtime_ns : as they were before it is read: a file that is the same in both is not read again.
    """

    root: str
    name: str
    size: int
    mtime_ns: int
    read: Callable[[], bytes] = field(repr=False, compare=False)

    @property
    def path(self) -> str:
        """Root and name, by which an item is known."""
        return os.path.join(self.root, self.name)


class Item(NamedTuple):
    """What a collection knows of a picture."""

    id: int
    size: int
    mtime_ns: int
    sha256: str


def read_file(path: Path) -> bytes:
    """The bytes of a file; BadPicture where it is no file, or larger than pictures are."""
    about = os.stat(path)
    if stat.S_ISDIR(about.st_mode):
        raise BadPicture("is a folder")
    if not stat.S_ISREG(about.st_mode):  # to open a pipe would wait for a writer
        raise BadPicture("is not a file")
    if about.st_size > MOST_BYTES:
        raise BadPicture(f"has {about.st_size:,} bytes; at most {MOST_BYTES:,} are read")
    return path.read_bytes()


def find_sources(
    places: Iterable[str | os.PathLike[str]], roots: Sequence[str] = (), skipped: Skipped | None = None
) -> list[Source]:
    """The pictures in folders, and files, each once; FileProblem where there are none.

    roots : folders that are known: what lies in one of them is named within it
    skipped : a list that (name, reason) of what cannot be looked at is added to
    """
    skipped = [] if skipped is None else skipped
    found: dict[str, Source] = {}
    looked = []
    for place in places:
        looked.append(str(place))
        top = _resolved(Path(place))
        passed_over: Skipped = []
        for each in walk(top, passed_over):
            source = _source(each.path, _root_of(each.path, top, roots), each.size, each.mtime_ns)
            found.setdefault(source.path, source)
        # a collection is no picture that failed: --out may well be in the folder
        skipped += [each for each in passed_over if not (top / each[0] / manifest.NAME).is_file()]
    if not found:
        reasons = "".join(f" {name}: {reason}." for name, reason in skipped[:3])
        raise FileProblem(
            f"there are no pictures in {', '.join(looked)}: files that end in "
            f"{', '.join(sorted(SUFFIXES))} are looked for.{reasons}"
        )
    return list(found.values())


def scope(places: Iterable[str | os.PathLike[str]]) -> Callable[[str], bool]:
    """Whether a path is one of these files, or in one of these folders."""
    tops = [str(_resolved(Path(place))) for place in places]
    return lambda path: any(path == top or path.startswith(os.path.join(top, "")) for top in tops)


def items_of(collection: Collection) -> dict[str, Item]:
    """What a collection holds, by path; what was added to it without a picture is left out."""
    ids = collection.ids
    found = {}
    for start in range(0, len(ids), READ_ITEMS):
        some = ids[start : start + READ_ITEMS]
        for id_, about in zip(some.tolist(), collection.metadata(some)):
            try:
                path = os.path.join(about["root"], about["file"])
                found[path] = Item(id_, about["bytes"], about["mtime_ns"], about["sha256"])
            except (KeyError, TypeError):
                continue
    return found


def is_gone(path: str) -> bool:
    """Whether there is nothing at a path; what merely cannot be looked at is not gone."""
    try:
        os.lstat(path)
    except GONE:
        return True
    except OSError:
        return False
    return False


def _resolved(place: Path) -> Path:
    """The place by the one name that it has, however it was spelt."""
    path = place.resolve()
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise FileProblem(f"the name of {os.fsencode(path)!r} is not UTF-8. Rename it.") from None
    return path


def _root_of(path: Path, top: Path, roots: Sequence[str]) -> Path:
    for root in roots:
        if root and path.is_relative_to(root):
            return Path(root)
    return top if top != path else top.parent


def _source(path: Path, root: Path, size: int, mtime_ns: int) -> Source:
    return Source(str(root), path.relative_to(root).as_posix(), size, mtime_ns, read=lambda: read_file(path))
