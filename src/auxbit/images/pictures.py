"""Pictures: a collection of pictures, opened to be searched."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from auxbit import files
from auxbit.checks import check_integer
from auxbit.collection.collection import Collection
from auxbit.errors import BadPicture, CollectionError, FileProblem, InvalidInput, InvalidParameter
from auxbit.images.about import About
from auxbit.images.decoding import Decoded, decode
from auxbit.images.describing import Describer
from auxbit.images.opening import finished, open_pictures
from auxbit.images.recipe import Recipe
from auxbit.images.sources import read_file
from auxbit.images.thumbnails import Thumbnails

Float32 = npt.NDArray[np.float32]

MODES = ("hamming", "asymmetric", "reranked")


class Picture(NamedTuple):
    """An answer: the item, its file's name, and how far it is, in bits or as a Euclidean distance."""

    id: int
    file: str
    distance: float | int


@dataclass(frozen=True)
class _Parts:
    """What depends on the collection that is in the folder, which another may replace."""

    about: About
    describer: Describer
    thumbnails: Thumbnails


class Pictures:
    """A collection of pictures; made by `auxbit.images.building.create`, opened by `open`.

    >>> with Pictures.open("pets.auxbit") as pets:
    ...     for id, file, distance in pets.search("cat.jpg", k=5): ...
    """

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self._changing = threading.Lock()
        self._replaced: list[_Parts] = []  # somebody may still read their thumbnails
        self._parts = self._opened()

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, n_jobs: int | None = None, read_only: bool = True) -> Self:
        """Open a collection of pictures that is finished; what another process adds is seen."""
        collection, _ = open_pictures(path, read_only=read_only, n_jobs=n_jobs)
        try:
            return cls(collection)
        except BaseException:
            collection.close()
            raise

    def _opened(self) -> _Parts:
        about, state, folder = finished(self.collection), self.collection.manifest, self.collection.path
        describer = Describer(about.recipe, folder, n_jobs=self.collection.n_jobs)
        if describer.dimension != state.n_features:
            raise CollectionError(
                f"{folder} holds vectors of {state.n_features} numbers, and its recipe makes "
                f"{describer.dimension}. Make it anew by `auxbit images create … --force`."
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
        """What is known of an item: its metadata; InvalidInput where there is none of this id."""
        found = self.collection.metadata([id_])[0]
        if not {"file", "root", "sha256", "thumbnail"} <= set(found):
            raise InvalidInput(f"item {id_} is not a picture: it was added without one.")
        return found

    def thumbnail(self, id_: int) -> bytes:
        """The small picture of an item, PNG or JPEG."""
        parts = self._now()
        return parts.thumbnails.read(int(self.about(id_)["thumbnail"]))

    def original(self, id_: int) -> bytes:
        """The file that an item was made of; FileProblem where it is gone, or is another by now."""
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
        self, picture: str | os.PathLike[str] | bytes | int, k: int = 10, *, mode: str | None = None
    ) -> list[Picture]:
        """The k pictures that look most like one: a file, its bytes, or the id of an item.

        mode : "hamming", distances in bits; "asymmetric", from the picture's vector to what the decoder makes
            of codes; "reranked", true distances of the best of these. None: what the codes are made for.
        An item is not among its own answers. BadPicture where a file is not a picture.
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

    def _vector(self, picture: str | os.PathLike[str] | bytes | int) -> Float32:
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
