"""A collection of pictures, opened to be searched: what it says of itself, and `Pictures`."""

from __future__ import annotations

import json
import os
import shlex
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from auxbit import __version__
from auxbit.collection import storage
from auxbit.collection.collection import Collection
from auxbit.core import files
from auxbit.core.checks import Float32, PathLike, check_integer
from auxbit.errors import (
    AuxbitError,
    BadPicture,
    CollectionError,
    Damaged,
    FileProblem,
    InvalidInput,
    InvalidParameter,
)
from auxbit.images import features
from auxbit.images.decode import Decoded, decode
from auxbit.images.features import Describer, Recipe
from auxbit.images.sources import read_file

FORMAT, VERSION = "auxbit pictures", 1
MODES = ("hamming", "asymmetric", "reranked")
VECTORS = "float16"  # as which vectors are kept
MADE_BY = "Collections of pictures are made by `auxbit images create DIR --out NAME`."
MAKE_AGAIN = "make the collection again by `auxbit images create … --force`."
COMPARISON, COMPARISON_ROWS = "comparison.json", "comparison-rows.jsonl"
BESIDE = (features.FILE, COMPARISON, COMPARISON_ROWS)  # files of ours in the folder of the collection
OF_PICTURES = {"file", "root", "sha256"}  # metadata that every picture has

# ---- What makes a collection one of pictures


@dataclass(frozen=True)
class About:
    """How the vectors and codes of pictures are made, and which folders they come from.

    bits, method, seed : of the model that is fitted once all pictures are read
    roots : absolute folders, in which items name files
    """

    recipe: Recipe
    bits: int
    method: str
    seed: int
    roots: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """As it is kept with the collection, in JSON."""
        document = {"format": FORMAT, "format_version": VERSION, "auxbit_version": __version__}
        return json.dumps(document | asdict(self) | {"recipe": self.recipe.document()})

    @classmethod
    def parse(cls, text: str, place: object) -> About:
        """What `text` made. place : where it is kept, for errors."""
        try:
            document = json.loads(text)
        except ValueError as error:
            raise Damaged(f"{place} is damaged: it is not JSON. Restore it, or {MAKE_AGAIN}") from error
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise Damaged(f"{place} is not what it should be. Restore it, or {MAKE_AGAIN}")
        if document.get("format_version") != VERSION:
            raise CollectionError(
                f"{place} was written by auxbit {document.get('auxbit_version')}, and this version cannot "
                "read it. Upgrade: pip install -U auxbit."
            )
        try:
            recipe = Recipe.from_document(document["recipe"])
            roots = tuple(map(str, document["roots"]))
            return cls(recipe, int(document["bits"]), str(document["method"]), int(document["seed"]), roots)
        except (KeyError, TypeError, ValueError, AuxbitError) as error:
            raise Damaged(f"{place} is not complete: {error!r}. Restore it, or {MAKE_AGAIN}") from error

    @classmethod
    def of(cls, collection: Collection, *, finished: bool = False) -> About:
        """What makes a collection one of pictures, and, if `finished`, one that has a model.

        CollectionError if it is not.
        """
        path, state = collection.path, collection.state
        if state.about is None:
            raise CollectionError(f"{path} is a collection, but not of pictures. {MADE_BY}")
        about = cls.parse(state.about, f"{path}: what it says about its pictures")
        if finished and state.model is None:
            root = about.roots[0] if about.roots else "DIR"
            resume = shlex.join(["auxbit", "images", "create", root, "--out", str(path)])
            raise CollectionError(
                f"{path} is not finished: its {state.items:,} pictures have no codes yet. "
                f"Resume with: {resume}"
            )
        return about


def open_pictures(
    path: PathLike, *, read_only: bool = False, n_jobs: int | None = None
) -> tuple[Collection, About]:
    """The collection of pictures in a folder; CollectionError if there is none, or it is not finished."""
    storage.check_folder(Path(path), MADE_BY)
    collection = Collection(path, read_only=read_only, n_jobs=n_jobs)
    try:
        return collection, About.of(collection, finished=True)
    except BaseException:
        collection.close()
        raise


# ---- Pictures


class Picture(NamedTuple):
    """A result: the item, its file's name, and how far it is, in bits or as a Euclidean distance."""

    id: int
    file: str
    distance: float | int


class _Parts(NamedTuple):
    """What belongs to the collection of this key, which another may replace."""

    key: str
    recipe: Recipe
    describer: Describer


class Pictures:
    """A collection of pictures; made by `auxbit.images.build.create`, opened by `open`.

    >>> with Pictures.open("pets.auxbit") as pets:
    ...     for id, file, distance in pets.search("cat.jpg", k=5): ...
    """

    def __init__(self, collection: Collection) -> None:
        assert collection.path is not None  # pictures are never kept in memory alone
        self.collection, self.path = collection, collection.path
        self._changing = threading.Lock()
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
        state, recipe = self.collection.state, About.of(self.collection, finished=True).recipe
        describer = Describer(recipe, self.path, n_jobs=self.collection.n_jobs)
        if describer.dimension != state.n_features:
            raise CollectionError(
                f"{self.path} holds vectors of {state.n_features} numbers, and its recipe makes "
                f"{describer.dimension}: {MAKE_AGAIN}"
            )
        return _Parts(state.key, recipe, describer)

    def _now(self) -> _Parts:
        """The parts of the collection that is there now: `create --force` puts another in its place."""
        if self.collection.state.key == self._parts.key:
            return self._parts
        with self._changing:
            if self.collection.state.key != self._parts.key:
                self._parts = self._opened()
            return self._parts

    @property
    def recipe(self) -> Recipe:
        """How pictures become vectors."""
        return self._now().recipe

    @property
    def describer(self) -> Describer:
        """Makes vectors of pixels."""
        return self._now().describer

    @property
    def roots(self) -> Sequence[str]:
        """The folders that pictures were read from."""
        return About.of(self.collection).roots

    def describe(self, decoded: Decoded) -> Float32:
        """The vector of a picture that was decoded for this recipe's side, (D,), rounded as items' are."""
        vector: Float32 = self.describer(decoded.pixels[None])[0].astype(VECTORS).astype(np.float32)
        return vector

    def known(self, sha256: str) -> list[int]:
        """The ids of the pictures whose files have this SHA-256, in the order in which they were added."""
        return [each["id"] for each in self.collection.list({"sha256": sha256}, limit=None)]

    def about(self, id_: int) -> dict[str, Any]:
        """What is known of an item: its metadata; InvalidInput if there is no item of this id."""
        found = self.collection.metadata([id_])[0]
        if not set(found) >= OF_PICTURES:
            raise InvalidInput(f"item {id_} is not a picture: it was added without one.")
        return found

    def thumbnail(self, id_: int) -> bytes:
        """The small picture of an item, PNG or JPEG."""
        self.about(id_)
        try:
            return self.collection.attachment(id_)
        except InvalidInput as error:
            raise Damaged(
                f"{self.path}: the thumbnail of item {id_} is missing. Restore it, or {MAKE_AGAIN}"
            ) from error

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
            of codes; "reranked", true distances of the best of these, which is the default.
        An item is not among its own results. BadPicture if a file is not a picture.
        """
        if mode is not None and mode not in MODES:
            raise InvalidParameter("mode", mode, f"one of {', '.join(MODES)}")
        k = check_integer("k", k, 1, None, "Try k=10.")
        own = int(picture) if isinstance(picture, int | np.integer) else None
        vector = self._vector(picture)
        distances, ids = self.collection.search(
            vector[None], k if own is None else k + 1, mode=None if mode == "reranked" else mode,
            rerank=True if mode == "reranked" else None,
        )  # fmt: skip
        found = [pair for pair in zip(ids[0].tolist(), distances[0].tolist()) if pair[0] != own][:k]
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
        self.collection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.collection)

    def __repr__(self) -> str:
        return f"Pictures({str(self.path)!r})"
