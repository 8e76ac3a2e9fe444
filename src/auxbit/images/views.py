"""Views of pictures, mirrored, turned and cropped: a collection of their codes beside that of pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from auxbit.collection.collection import Collection
from auxbit.collection.storage import State, is_collection
from auxbit.core.checks import Array, Float32, Packed, require
from auxbit.core.maps import bytes_per_code
from auxbit.core.progress import Progress
from auxbit.images.features import Pixels

FOLDER = "views"  # in that of the collection
SHARE = 0.8  # of the side, that a crop keeps
CROPS = {
    "middle": (0.5, 0.5), "top left": (0, 0), "top right": (1, 0), "bottom left": (0, 1),
    "bottom right": (1, 1),
}  # fmt: skip
NAMES = ("mirrored", "turned left", "upside down", "turned right", *CROPS)
PLACES = 16  # a view is number id × PLACES + its place in NAMES
READ = 16_384  # views whose metadata are in memory together


def views_of(pixels: Pixels) -> Iterator[Pixels]:
    """(n, side, side, 3) of pictures → as many of each view, in the order of NAMES."""
    yield np.ascontiguousarray(pixels[:, :, ::-1])
    for turns in (1, 2, 3):
        yield np.ascontiguousarray(np.rot90(pixels, turns, axes=(1, 2)))
    for across, down in CROPS.values():
        yield _cropped(pixels, across, down)


def _cropped(pixels: Pixels, across: float, down: float) -> Pixels:
    """A part of each picture, scaled to the side of the whole."""
    image, side = require("PIL.Image", extra="images", purpose="reading pictures"), pixels.shape[1]
    edge = SHARE * side
    left, top = across * (side - edge), down * (side - edge)
    box = (left, top, left + edge, top + edge)
    made = (image.fromarray(each).resize((side, side), image.Resampling.BICUBIC, box) for each in pixels)
    return np.stack([np.asarray(each) for each in made])


class Seen(NamedTuple):
    """A picture that was found by one of its views: its id, how far the view is, and its name."""

    id: int
    distance: float | int
    view: str


class Views:
    """The views of the pictures of a collection, with vectors and codes of the same model.

    The two are two collections: pictures are added first, and what has no views yet gets them when pictures
    are read again. What the pictures do not have any more is to be left out.
    """

    def __init__(self, collection: Collection) -> None:
        self.collection = collection

    @classmethod
    def open(cls, folder: Path, *, read_only: bool = True, n_jobs: int | None = None) -> Self | None:
        """The views in the folder of a collection of pictures; None if there are none."""
        if not is_collection(folder / FOLDER):
            return None
        return cls(Collection(folder / FOLDER, read_only=read_only, n_jobs=n_jobs))

    @classmethod
    def create(cls, pictures: Collection, *, n_jobs: int | None = None) -> Self:
        """No views yet, of as many bits as the pictures have."""
        assert pictures.path is not None
        state = pictures.state
        how: dict[str, Any] = {"n_features": state.n_features, "vectors": state.vectors, "n_jobs": n_jobs}
        return cls(Collection.create(pictures.path / FOLDER, bits=state.n_bits, **how))

    def checksums(self) -> dict[int, str]:
        """The SHA-256 of the file that views are of, by the id of the picture."""
        ids = self.collection.ids
        first = ids[ids % PLACES == 0]
        found: dict[int, str] = {}
        for start in range(0, len(first), READ):
            some = first[start : start + READ]
            sums = (each.get("sha256", "") for each in self.collection.metadata(some))
            found.update(zip((some // PLACES).tolist(), sums))
        return found

    def put(self, ids: Sequence[int], sha256: Sequence[str], vectors: Float32) -> None:
        """Add the views of pictures, (n, views, D), or replace them."""
        n, state = vectors.shape[1], self.collection.state
        codes = None
        if state.model is None:
            codes = np.zeros((n * len(ids), bytes_per_code(state.n_bits)), dtype=np.uint8)
        self.collection.add(
            vectors.reshape(n * len(ids), -1), codes=codes, ids=self._numbers(ids), upsert=True,
            metadata=[{"sha256": each} if not place else {} for each in sha256 for place in range(n)],
        )  # fmt: skip

    def drop(self, ids: Sequence[int]) -> None:
        """Delete the views of pictures, if there are any."""
        numbers = self._numbers(ids)
        there = numbers[self.collection.holds(numbers)] if len(self.collection) else numbers[:0]
        if len(there):
            self.collection.delete(there)

    def follow(self, pictures: Collection, progress: Progress) -> None:
        """Take over the model of the pictures, and forget the views of those that are gone."""
        known = np.unique(self.collection.ids // PLACES)
        self.drop(known[~pictures.holds(known)].tolist() if len(known) else [])
        if len(self.collection) and not self.suits(pictures.state):
            self.collection.retrain(pictures.model, progress=progress)
            self.collection.about = _of_model(pictures.state)

    def suits(self, pictures: State) -> bool:
        """Whether the codes are of the model that the pictures have now."""
        return self.collection.about == _of_model(pictures)

    def search(self, vector: Float32 | None, k: int, **how: Any) -> list[Seen]:
        """At least k pictures, if there are, by each of their views that is near, nearest first."""
        distances, numbers = self.collection.search(vector, k * len(NAMES), **how)
        return [
            Seen(number // PLACES, distance, NAMES[number % PLACES])
            for number, distance in zip(numbers.ravel().tolist(), distances.ravel().tolist())
        ]

    def within(self, codes: Packed, radius: int) -> list[list[int]]:
        """For each code the pictures of which a view is that near."""
        lims, _, numbers = self.collection.search_radius(codes=codes, r=radius)
        return [(numbers[a:b] // PLACES).tolist() for a, b in pairwise(lims)]

    def of(self, id_: int) -> tuple[Packed, Float32]:
        """Codes and vectors of the views of a picture, (views, …), none if it has no views yet."""
        numbers = self._numbers([id_])
        there = numbers[self.collection.holds(numbers)]
        return self.collection.codes(there), self.collection.vectors(there).astype(np.float32)

    def close(self) -> None:
        """Let go of the files."""
        self.collection.close()

    def _numbers(self, ids: Sequence[int]) -> Array:
        numbers: Array = np.asarray(ids, dtype=np.int64)[:, None] * PLACES + np.arange(len(NAMES))
        return numbers.ravel()


def _of_model(pictures: State) -> str:
    return json.dumps({"views of": pictures.key, "model": pictures.model})
