"""Pixels to vectors, by a recipe."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from auxbit.errors import InvalidInput
from auxbit.features import gist
from auxbit.images import colour
from auxbit.images.network import Network, load_network
from auxbit.images.recipe import Recipe

Float32 = npt.NDArray[np.float32]
Pixels = npt.NDArray[np.uint8]

GIST_VALUES = 320
LARGEST = float(np.finfo(np.float16).max)  # vectors are kept as float16


class Describer:
    """Makes vectors of pictures: `describer(pixels)`. Safe to call from several threads.

    folder : where the network of an "onnx" recipe is kept; network : its bytes, where it is not kept yet
    n_jobs : threads, None for all cores
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: Path | None = None,
        *,
        network: bytes | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.recipe, self.n_jobs = recipe, n_jobs
        if recipe.kind != "onnx":
            return
        if network is not None:
            self._network = Network(network, recipe, "the network")
        elif folder is not None:
            self._network = load_network(folder, recipe)
        else:
            raise InvalidInput("a recipe with a network needs the folder that the network is in.")

    @property
    def dimension(self) -> int:
        """How many numbers a vector has."""
        recipe = self.recipe
        if recipe.kind == "onnx":
            return self._network.dimension
        if recipe.kind == "pixels":
            return recipe.side**2 * (1 if recipe.grey else 3)
        return GIST_VALUES + (colour.VALUES if recipe.colour else 0)

    def __call__(self, pixels: Pixels) -> Float32:
        """(n, side, side, 3) → (n, dimension), of which a row depends on nothing but its picture.

        InvalidInput where a network gives what cannot be kept.
        """
        side = self.recipe.side
        if pixels.ndim != 4 or pixels.shape[1:] != (side, side, 3) or pixels.dtype != np.uint8:
            raise InvalidInput(
                f"pictures must have shape (n, {side}, {side}, 3) and type uint8, "
                f"got {pixels.shape} of {pixels.dtype}."
            )
        if not len(pixels):
            return np.empty((0, self.dimension), dtype=np.float32)
        if self.recipe.kind == "onnx":
            return _checked(self._network(pixels, self.n_jobs))
        if self.recipe.kind == "pixels":
            return self._flat(pixels)
        structure = gist(pixels, n_jobs=self.n_jobs)
        if not self.recipe.colour:
            return structure
        return np.hstack([structure, colour.histograms(pixels, self.recipe.colour, n_jobs=self.n_jobs)])

    def _flat(self, pixels: Pixels) -> Float32:
        values = pixels.astype(np.float32)
        if self.recipe.grey:
            values = values.sum(axis=3) / np.float32(3)
        return values.reshape(len(pixels), -1)

    def picture_of(self, vectors: npt.ArrayLike) -> Pixels:
        """The pictures that vectors of pixels stand for: (n, D) → (n, side, side), in colour with 3 channels.

        What a decoder makes of a code is clipped to 0..255.
        """
        if self.recipe.kind != "pixels":
            raise InvalidInput(
                f"features {self.recipe.kind} cannot be turned back into a picture: pixels alone can."
            )
        rows, side = np.asarray(vectors), self.recipe.side
        if rows.ndim != 2 or rows.shape[1] != self.dimension:
            raise InvalidInput(
                f"vectors of these pictures have shape (n, {self.dimension}), got {rows.shape}."
            )
        shape = (len(rows), side, side) if self.recipe.grey else (len(rows), side, side, 3)
        pictures: Pixels = np.clip(np.rint(rows), 0, 255).astype(np.uint8)
        return pictures.reshape(shape)


def _checked(vectors: Float32) -> Float32:
    """Vectors that can be kept; NaN fails every comparison."""
    wrong = ~(np.abs(vectors) <= LARGEST).all(axis=1)
    if wrong.any():
        row = int(wrong.argmax())
        bad = float(vectors[row][~(np.abs(vectors[row]) <= LARGEST)][0])
        raise InvalidInput(
            f"the network makes {bad:g} of picture {row}: numbers must be finite, and at most {LARGEST:g}. "
            "Are --mean and --std those that it was trained with?"
        )
    return vectors
