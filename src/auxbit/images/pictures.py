"""A collection of pictures, opened to be searched: its description, its thumbnails, and `Pictures`."""

from __future__ import annotations

import json
import os
import shlex
import threading
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from io import FileIO
from itertools import accumulate
from math import sqrt
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple, Self

import numpy as np

from auxbit import __version__
from auxbit.collection.collection import Collection
from auxbit.collection.storage import MANIFEST
from auxbit.core import files
from auxbit.core.checks import Float32, PathLike, check_integer
from auxbit.core.files import BINARY, sync_folder, write_all
from auxbit.data.vectors import nearest
from auxbit.errors import (
    AuxbitError,
    BadPicture,
    CollectionError,
    Damaged,
    FileProblem,
    InvalidInput,
    InvalidParameter,
)
from auxbit.images.decode import Decoded, decode
from auxbit.images.features import Describer, Recipe
from auxbit.images.sources import read_file

ABOUT_NAME, PACK_NAME = "pictures.json", "thumbnails.pack"
FORMAT, VERSION = "auxbit pictures", 1
MODES = ("hamming", "asymmetric", "reranked")
MADE_BY = "Collections of pictures are made by `auxbit images create DIR --out NAME`."
MAKE_AGAIN = "make the collection again by `auxbit images create … --force`."

MAGIC = b"axT1"
HEADER = Struct("<4sII")  # magic, length, CRC-32 of what follows
LARGEST = 2**26  # bytes of one thumbnail: a length beyond is damage

# ---- pictures.json: what makes a collection one of pictures


@dataclass(frozen=True)
class About:
    """How the vectors and codes of pictures are made, and which folders they come from.

    key : of the collection it belongs to; a collection that replaces it has another
    bits, method, seed : of the model that is fitted once all pictures are read
    roots : absolute folders, in which items name files
    """

    key: str
    recipe: Recipe
    bits: int
    method: str
    seed: int
    roots: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        """Keep it with the collection, atomically."""
        document = {"format": FORMAT, "format_version": VERSION, "auxbit_version": __version__}
        content = asdict(self) | {"recipe": self.recipe.document()}
        files.write_text(folder / ABOUT_NAME, json.dumps(document | content, indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path, key: str) -> About | None:
        """What is kept in a folder; None if that is nothing, or belongs to a collection that was replaced."""
        path = folder / ABOUT_NAME
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CollectionError(f"{path} cannot be read: {error.strerror}.") from error
        try:
            document = json.loads(text)
        except ValueError as error:
            raise Damaged(f"{path} is damaged: it is not JSON. Restore it, or {MAKE_AGAIN}") from error
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise Damaged(f"{path} is not what it should be. Restore it, or {MAKE_AGAIN}")
        if document.get("format_version") != VERSION:
            raise CollectionError(
                f"{path} was written by auxbit {document.get('auxbit_version')}, and this version cannot "
                "read it. Upgrade: pip install -U auxbit."
            )
        if document.get("key") != key:
            return None
        try:
            recipe = Recipe.from_document(document["recipe"])
            roots = tuple(map(str, document["roots"]))
            bits, seed = int(document["bits"]), int(document["seed"])
            return cls(key, recipe, bits, str(document["method"]), seed, roots)
        except (KeyError, TypeError, ValueError, AuxbitError) as error:
            raise Damaged(f"{path} is not complete: {error!r}. Restore it, or {MAKE_AGAIN}") from error

    @classmethod
    def of(cls, collection: Collection, *, finished: bool = False) -> About:
        """What makes a collection one of pictures, and, if `finished`, one that has a model.

        CollectionError if it is not.
        """
        path = collection.path
        about = cls.read(path, collection.manifest.key)
        if about is None:
            raise CollectionError(f"{path} is a collection, but not of pictures. {MADE_BY}")
        if finished and collection.manifest.model is None:
            root = about.roots[0] if about.roots else "DIR"
            resume = shlex.join(["auxbit", "images", "create", root, "--out", str(path)])
            raise CollectionError(
                f"{path} is not finished: its {len(collection):,} pictures have no codes yet. "
                f"Resume with: {resume}"
            )
        return about


def open_pictures(
    path: PathLike, *, read_only: bool = False, n_jobs: int | None = None
) -> tuple[Collection, About]:
    """The collection of pictures in a folder; CollectionError if there is none, or it is not finished."""
    folder = Path(path)
    if not (folder / MANIFEST).is_file():
        what = "is not a collection" if folder.exists() else "does not exist"
        near = ""
        if folder.parent.is_dir():
            others = (each.name for each in folder.parent.iterdir() if (each / MANIFEST).is_file())
            near = nearest(folder.name, others)
        raise CollectionError(f"{folder} {what}.{near} {MADE_BY}")
    collection = Collection.open(folder, read_only=read_only, n_jobs=n_jobs)
    try:
        return collection, About.of(collection, finished=True)
    except BaseException:
        collection.close()
        raise


# ---- Thumbnails


class Thumbnails:
    """Records in `thumbnails.pack`, one file that is only ever added to, found by their offset.

    Any thread may read; only the writer of the collection appends. What a writer that was killed left at the
    end stays there, and nothing refers to it.
    """

    def __init__(self, folder: PathLike) -> None:
        self.path = Path(folder) / PACK_NAME
        self._lock = threading.Lock()  # of the place in the file, and against closing while it is read
        self._file: FileIO | None = None
        self._closed = False

    def append(self, thumbnails: Sequence[bytes]) -> list[int]:
        """Add thumbnails; they are on disk when their offsets are returned."""
        for each in thumbnails:
            if len(each) > LARGEST:
                raise InvalidInput(f"a thumbnail of {len(each):,} bytes; at most {LARGEST:,} are kept.")
        with self._lock:
            self._refuse_closed()
            try:
                return self._append(thumbnails) if thumbnails else []
            except OSError as error:
                raise FileProblem(f"{self.path} cannot be added to: {error.strerror or error}.") from error

    def read(self, offset: int) -> bytes:
        """The thumbnail at an offset that `append` returned, checked."""
        if offset < 0:
            raise self._damaged(offset, "ends before it")
        with self._lock:
            self._refuse_closed()
            file = self._opened()
            try:
                file.seek(offset)
                header = file.read(HEADER.size)
                if len(header) < HEADER.size:
                    raise self._damaged(offset, "ends before it")
                magic, length, checksum = HEADER.unpack(header)
                if magic != MAGIC or length > LARGEST:
                    raise self._damaged(offset, "has no thumbnail there")
                content = file.read(length)
            except (OSError, OverflowError) as error:
                raise self._damaged(offset, f"cannot be read ({error})") from error
        if len(content) < length:
            raise self._damaged(offset, "is cut short")
        if zlib.crc32(content) != checksum:
            raise self._damaged(offset, "does not match its checksum")
        return content

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._closed = True
            if self._file is not None:
                self._file.close()

    def _append(self, thumbnails: Sequence[bytes]) -> list[int]:
        new = not self.path.exists()
        descriptor = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_APPEND | BINARY, 0o666)
        try:
            start = os.fstat(descriptor).st_size
            records = [HEADER.pack(MAGIC, len(each), zlib.crc32(each)) + each for each in thumbnails]
            try:
                write_all(descriptor, b"".join(records))
                os.fsync(descriptor)
            except BaseException:
                os.ftruncate(descriptor, start)  # half a batch is of no use, and a full disk needs the room
                raise
        finally:
            os.close(descriptor)
        if new:
            sync_folder(self.path.parent)
        return list(accumulate(map(len, records[:-1]), initial=start))

    def _opened(self) -> FileIO:
        if self._file is None:
            try:
                # without a buffer, which would hide what is appended
                self._file = open(self.path, "rb", buffering=0)  # noqa: SIM115
            except FileNotFoundError:
                raise Damaged(f"{self.path} is missing. Restore it, or {MAKE_AGAIN}") from None
            except OSError as error:
                raise FileProblem(f"{self.path} cannot be read: {error.strerror or error}.") from error
        return self._file

    def _damaged(self, offset: int, what: str) -> Damaged:
        return Damaged(f"{self.path} {what} (byte {offset:,}). Restore this file, or {MAKE_AGAIN}")

    def _refuse_closed(self) -> None:
        if self._closed:
            raise InvalidInput(f"{self.path} is closed. Open the collection again.")


# ---- Pictures


class Picture(NamedTuple):
    """A result: the item, its file's name, and how far it is, in bits or as a Euclidean distance."""

    id: int
    file: str
    distance: float | int


@dataclass(frozen=True)
class _Parts:
    """What belongs to the collection in the folder, which another may replace."""

    about: About
    describer: Describer
    thumbnails: Thumbnails


class Pictures:
    """A collection of pictures; made by `auxbit.images.build.create`, opened by `open`.

    >>> with Pictures.open("pets.auxbit") as pets:
    ...     for id, file, distance in pets.search("cat.jpg", k=5): ...
    """

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self._changing = threading.Lock()
        self._replaced: list[_Parts] = []  # somebody may still read their thumbnails
        self._parts = self._opened()

    @classmethod
    def open(cls, path: PathLike, *, n_jobs: int | None = None, read_only: bool = True) -> Self:
        """Open a collection of pictures that is finished; it sees what another process adds."""
        collection, _ = open_pictures(path, read_only=read_only, n_jobs=n_jobs)
        try:
            return cls(collection)
        except BaseException:
            collection.close()
            raise

    def _opened(self) -> _Parts:
        about, folder = About.of(self.collection, finished=True), self.collection.path
        describer = Describer(about.recipe, folder, n_jobs=self.collection.n_jobs)
        dimension = self.collection.manifest.n_features
        if describer.dimension != dimension:
            raise CollectionError(
                f"{folder} holds vectors of {dimension} numbers, and its recipe makes {describer.dimension}: "
                + MAKE_AGAIN
            )
        return _Parts(about, describer, Thumbnails(folder))

    def _now(self) -> _Parts:
        """The parts of the collection that is there now: `create --force` puts another in its place."""
        if self.collection.manifest.key == self._parts.about.key:
            return self._parts
        with self._changing:
            if self.collection.manifest.key != self._parts.about.key:
                before, self._parts = self._parts, self._opened()
                self._replaced.append(before)
            return self._parts

    @property
    def recipe(self) -> Recipe:
        """How pictures become vectors."""
        return self._now().about.recipe

    @property
    def describer(self) -> Describer:
        """Makes vectors of pixels."""
        return self._now().describer

    @property
    def roots(self) -> Sequence[str]:
        """The folders that pictures were read from."""
        return self._now().about.roots

    def describe(self, decoded: Decoded) -> Float32:
        """The vector of a picture that was decoded for this recipe's side, (D,)."""
        vector: Float32 = self.describer(decoded.pixels[None])[0]
        return vector

    def about(self, id_: int) -> dict[str, Any]:
        """What is known of an item: its metadata; InvalidInput if there is no item of this id."""
        found = self.collection.metadata([id_])[0]
        if not {"file", "root", "sha256", "thumbnail"} <= set(found):
            raise InvalidInput(f"item {id_} is not a picture: it was added without one.")
        return found

    def thumbnail(self, id_: int) -> bytes:
        """The small picture of an item, PNG or JPEG."""
        return self._now().thumbnails.read(int(self.about(id_)["thumbnail"]))

    def original(self, id_: int) -> bytes:
        """The file that an item was made of; FileProblem if it is gone, or has changed."""
        about = self.about(id_)
        path = Path(about["root"], about["file"])
        try:
            content = read_file(path)
        except (OSError, BadPicture) as error:
            reason = getattr(error, "strerror", None) or error
            raise FileProblem(f"{path}, of which item {id_} was made, cannot be read: {reason}.") from error
        if files.checksum([content]) != about["sha256"]:
            raise FileProblem(
                f"{path} has changed since item {id_} was made of it. Bring the collection up to date by "
                "`auxbit images add`."
            )
        return content

    def search(
        self, picture: PathLike | bytes | int, k: int = 10, *, mode: str | None = None
    ) -> list[Picture]:
        """The k pictures that look most like one: a file, its bytes, or the id of an item.

        mode : "hamming", distances in bits; "asymmetric", from the picture's vector to what the decoder makes
            of codes; "reranked", true distances of the best of these. None: what the codes are made for.
        An item is not among its own results. BadPicture if a file is not a picture.
        """
        if mode is not None and mode not in MODES:
            raise InvalidParameter("mode", mode, f"one of {', '.join(MODES)}")
        k = check_integer("k", k, 1, None, "Try k=10.")
        own = int(picture) if isinstance(picture, int | np.integer) else None
        vector = self._vector(picture)
        distances, ids = self.collection.search(
            vector[None], k if own is None else k + 1, mode=None if mode == "reranked" else mode,
            rerank=mode == "reranked",
        )  # fmt: skip
        found = [pair for pair in zip(ids[0].tolist(), distances[0].tolist()) if pair[0] not in (-1, own)][:k]
        about = self.collection.metadata([id_ for id_, _ in found]) if found else []
        in_bits = distances.dtype.kind == "i"
        return [
            Picture(id_, str(each.get("file", "")), distance if in_bits else sqrt(max(0.0, distance)))
            for (id_, distance), each in zip(found, about)
        ]

    def _vector(self, picture: PathLike | bytes | int) -> Float32:
        if isinstance(picture, int | np.integer):
            if isinstance(picture, bool) or int(picture) not in self.collection:
                raise InvalidInput(f"item {picture} is not in the collection of {len(self):,} pictures.")
            return np.asarray(self.collection.vectors([int(picture)])[0], dtype=np.float32)
        if isinstance(picture, bytes):
            return self.describe(decode(picture, self.recipe.side))
        try:
            return self.describe(decode(read_file(Path(picture)), self.recipe.side))
        except BadPicture as error:
            raise BadPicture(f"{os.fspath(picture)} {error}.") from error
        except OSError as error:
            raise FileProblem(f"{os.fspath(picture)} cannot be read: {error.strerror or error}.") from error

    def close(self) -> None:
        """Let go of the files."""
        for parts in (*self._replaced, self._parts):
            parts.thumbnails.close()
        self.collection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.collection)

    def __repr__(self) -> str:
        return f"Pictures({str(self.collection.path)!r})"
