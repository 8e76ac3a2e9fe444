"""Pictures to be read: found in folders, matched with the items of a collection, read in parallel."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from auxbit.collection import storage
from auxbit.collection.collection import Collection
from auxbit.core import files
from auxbit.core.checks import PathLike
from auxbit.core.parallel import resolve_n_jobs
from auxbit.errors import BadPicture, FileProblem, printable
from auxbit.images.decode import READ, SUFFIXES, UNREAD, Decoded

Skipped = list[tuple[str, str]]
Decode = Callable[[bytes, int], Decoded]

MOST_BYTES = 2**29  # of a file: more than any picture of 100 million pixels needs
READ_ITEMS = 16_384  # whose metadata are in memory together
AHEAD = 512  # pictures that are read while the ones before them are described, if they are small
AHEAD_BYTES = 2**27
LEADS_OUT = "is a link that leads out of the folder, and is not followed; name what it leads to"
GONE = (FileNotFoundError, NotADirectoryError)

# ---- Files in folders


def walk(
    folder: PathLike, skipped: Skipped | None = None, others: Counter[str] | None = None
) -> list[Source]:
    """Every file under `folder` whose suffix is that of a picture, in natural order: img2 before img10.

    Hidden files and folders are left out, and so are collections. A folder that several links lead to is
    walked once; links that lead out of `folder` are not followed. What cannot be read goes to `skipped` as
    (name, reason), and files of other suffixes are counted in `others`, by suffix. A single file is found as
    it is, whatever its suffix.
    """
    top = Path(folder)
    skipped = [] if skipped is None else skipped
    others = Counter() if others is None else others
    _refuse_odd_name(top)
    try:
        kind = top.stat()
    except FileNotFoundError:
        raise FileProblem(f"{top} does not exist. Name a folder of pictures, or a picture.") from None
    except OSError as error:
        raise FileProblem(f"{top} cannot be read: {error.strerror}.") from error
    if stat.S_ISREG(kind.st_mode):
        return [Source.of(top, top.parent, kind)]
    if not stat.S_ISDIR(kind.st_mode):
        raise FileProblem(f"{top} is neither a folder nor a file. Name a folder of pictures, or a picture.")
    if storage.is_collection(top):
        raise FileProblem(f"{top} is a collection of auxbit. Name the folder that its pictures are in.")
    if not os.access(top, os.R_OK | os.X_OK):
        raise FileProblem(f"{top} cannot be read: its permissions do not allow it.")
    return sorted(_Walk(top, skipped, others).found, key=lambda each: natural(each.name))


def natural(name: str) -> tuple[tuple[tuple[tuple[int, int, str], ...], ...], str]:
    """A key that sorts names by folder, letters without regard to case, and numbers by their value."""
    return tuple(tuple(_chunks(part)) for part in name.casefold().split("/")), name


def _chunks(part: str) -> Iterator[tuple[int, int, str]]:
    for place, piece in enumerate(re.split(r"([0-9]+)", part)):
        if place % 2:  # a number, by the length of its digits and then by these
            digits = piece.lstrip("0")
            yield 0, len(digits), digits
        elif piece:
            yield 1, 0, piece


class _Walk:
    def __init__(self, top: Path, skipped: Skipped, others: Counter[str]) -> None:
        self._top, self._skipped, self._others = top, skipped, others
        self._inside = os.path.realpath(top)
        self.found: list[Source] = []
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
            if not any(entry.name == storage.DATABASE for entry in entries):  # not into a collection
                folders += self._look_at(entries)

    def _look_at(self, entries: list[os.DirEntry[str]]) -> list[Path]:
        """Keep the pictures and links among the entries of a folder; return the folders."""
        folders: list[Path] = []
        for entry in entries:
            if entry.name.startswith("."):
                continue
            path = Path(entry.path)
            suffix = path.suffix.lower()
            picture = suffix in SUFFIXES or suffix in UNREAD
            try:
                is_folder = entry.is_dir()
                if not (is_folder or picture):
                    self._others[suffix] += 1
                elif _is_odd(entry.name):
                    self._skip(path, "has a name that is not UTF-8")
                elif suffix in UNREAD and not is_folder:
                    self._skip(path, f"is not read: {READ} pictures are")
                elif entry.is_symlink() and entry.stat() and self._leads_out(path):
                    self._skip(path, LEADS_OUT)
                elif is_folder:
                    (self._links if entry.is_symlink() else folders).append(path)
                elif not stat.S_ISREG((about := entry.stat()).st_mode):
                    self._skip(path, "is not a regular file")
                else:
                    self.found.append(Source.of(path, self._top, about))
            except OSError as error:
                if picture:
                    self._skip(path, f"cannot be read: {error.strerror or error}")
        return folders

    def _leads_out(self, path: Path) -> bool:
        return not is_within(os.path.realpath(path), self._inside)

    def _skip(self, path: Path, reason: str) -> None:
        name = os.fsencode(path.relative_to(self._top).as_posix()).decode("utf-8", "backslashreplace")
        self._skipped.append((name, reason))


def _is_odd(name: str) -> bool:
    """Whether a name is not UTF-8, and so cannot be kept as text."""
    return name != name.encode(errors="replace").decode()


def _refuse_odd_name(path: Path) -> None:
    if _is_odd(str(path)):
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise FileProblem(f"{shown} has a name that is not UTF-8. Rename it.")


# ---- Sources, and the items made of them


@dataclass(frozen=True)
class Source:
    """A picture to be read. `read` gives its bytes; name : within root; root : "" if there are no files.

    size, mtime_ns : as they were before it is read: a file that is the same in both is not read again.
    """

    root: str
    name: str
    size: int
    mtime_ns: int
    read: Callable[[], bytes] = field(repr=False, compare=False)

    @classmethod
    def of(cls, path: Path, root: Path, about: os.stat_result) -> Source:
        """A file that may hold a picture."""
        name = path.relative_to(root).as_posix()
        return cls(str(root), name, about.st_size, about.st_mtime_ns, lambda: read_file(path))

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
    width: int = 0
    height: int = 0


def read_file(path: Path) -> bytes:
    """The bytes of a file; BadPicture if it is no file, or larger than pictures are."""
    about = os.stat(path)
    if stat.S_ISDIR(about.st_mode):
        raise BadPicture("is a folder")
    if not stat.S_ISREG(about.st_mode):  # opening a pipe would wait for a writer
        raise BadPicture("is not a file")
    if about.st_size > MOST_BYTES:
        raise BadPicture(f"has {about.st_size:,} bytes; at most {MOST_BYTES:,} are read")
    return path.read_bytes()


def find_sources(
    places: Iterable[PathLike], roots: Sequence[str] = (), skipped: Skipped | None = None,
    others: Counter[str] | None = None,
) -> list[Source]:  # fmt: skip
    """The pictures in folders, and single files, each once; FileProblem if there are none.

    roots : known folders: a file in one of them is named relative to it
    skipped, others : to which what is left out is added, as in `walk`
    """
    skipped = [] if skipped is None else skipped
    found: dict[str, Source] = {}
    looked = []
    for place in places:
        looked.append(str(place))
        top = _resolved(Path(place))
        passed_over: Skipped = []
        for source in walk(top, passed_over, others):
            path = Path(source.path)
            known = next((root for root in roots if root and path.is_relative_to(root)), source.root)
            name = path.relative_to(known).as_posix()
            found.setdefault(source.path, replace(source, root=known, name=name))
        # a collection is not a picture that failed: --out may be in this folder
        skipped += [each for each in passed_over if not storage.is_collection(top / each[0])]
    if not found:
        reasons = "".join(f" {printable(name)} {reason}." for name, reason in skipped[:3])
        raise FileProblem(
            f"there are no pictures in {', '.join(looked)}: expected files that end in "
            f"{', '.join(sorted(SUFFIXES))}.{reasons}"
        )
    return list(found.values())


def scope(places: Iterable[PathLike]) -> Callable[[str], bool]:
    """Whether a path is one of these files, or in one of these folders."""
    tops = [str(_resolved(Path(place))) for place in places]
    return lambda path: any(is_within(path, top) for top in tops)


def is_within(path: str, top: str) -> bool:
    """Whether a path is another, or in that folder."""
    return path == top or path.startswith(os.path.join(top, ""))


def items_of(collection: Collection) -> dict[str, Item]:
    """What a collection holds, by path; what was added to it without a picture is left out."""
    ids = collection.ids
    found = {}
    for start in range(0, len(ids), READ_ITEMS):
        some = ids[start : start + READ_ITEMS]
        for id_, about in zip(some.tolist(), collection.metadata(some)):
            try:
                path = os.path.join(about["root"], about["file"])
                size = about.get("width", 0), about.get("height", 0)
                found[path] = Item(id_, about["bytes"], about["mtime_ns"], about["sha256"], *size)
            except (KeyError, TypeError):
                continue
    return found


def is_gone(path: str) -> bool:
    """Whether there is nothing at a path; what cannot be accessed is not gone."""
    try:
        os.lstat(path)
    except OSError as error:
        return isinstance(error, GONE)
    return False


def _resolved(place: Path) -> Path:
    """The absolute path of a place, without links."""
    path = place.resolve()
    _refuse_odd_name(path)
    return path


# ---- Reading: files in threads, decoded in other processes, given back in order


class Read(NamedTuple):
    """A picture that was read. known : the item that it replaces, if there is one."""

    source: Source
    known: Item | None
    sha256: str
    decoded: Decoded

    def metadata(self) -> dict[str, Any]:
        """What the collection keeps of it."""
        source, decoded = self.source, self.decoded
        about = {
            "file": source.name, "root": source.root, "sha256": self.sha256, "bytes": source.size,
            "mtime_ns": source.mtime_ns, "width": decoded.width, "height": decoded.height,
            "format": decoded.format,
        }  # fmt: skip
        return about | ({"taken": decoded.taken} if decoded.taken is not None else {})


class Same(NamedTuple):
    """A picture whose content is that of the known item, under a new date. moved : or at another path."""

    source: Source
    known: Item
    moved: bool = False

    def metadata(self) -> dict[str, Any]:
        """What the collection is to keep of it from now on."""
        source = self.source
        about = {"bytes": source.size, "mtime_ns": source.mtime_ns}
        return about | ({"file": source.name, "root": source.root} if self.moved else {})


class Bad(NamedTuple):
    """A picture that cannot be read, and why."""

    source: Source
    reason: str


def read_pictures(
    wanted: Iterable[tuple[Source, Item | None]], decode: Decode, side: int, n_jobs: int | None = None
) -> Generator[Read | Same | Bad, None, None]:
    """Read each picture, and decode it unless its content is that of the known item.

    If the caller stops early, threads that still decode end as `decode` does.
    """

    def read(source: Source, known: Item | None) -> Read | Same | Bad:
        try:
            content = source.read()
            sha256 = files.checksum([content])
            if known is not None and known.sha256 == sha256:
                return Same(source, known)
            return Read(source, known, sha256, decode(content, side))
        except BadPicture as error:
            return Bad(source, str(error))
        except GONE:
            return Bad(source, "is not there any more")
        except OSError as error:
            return Bad(source, f"cannot be read: {error.strerror or error}")

    pool = ThreadPoolExecutor(resolve_n_jobs(n_jobs) + 1)  # one reads while the others wait for decoders
    try:
        rest = iter(wanted)
        running: deque[Future[Read | Same | Bad]] = deque()
        running.extend(pool.submit(read, *each) for each in islice(rest, fitting(AHEAD, side)))
        while running:
            result = running.popleft().result()
            running.extend(pool.submit(read, *each) for each in islice(rest, 1))
            yield result
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def fitting(most: int, side: int) -> int:
    """How many pictures, at most `most`, are held in memory at a time."""
    return max(16, min(most, AHEAD_BYTES // (3 * side**2)))
