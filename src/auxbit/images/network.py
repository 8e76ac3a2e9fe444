"""A network of the user's own that makes vectors of pictures: an ONNX file, run by onnxruntime."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit import files
from auxbit.blocks import Workers
from auxbit.errors import CollectionError, FileProblem, InvalidInput, InvalidParameter
from auxbit.extras import require
from auxbit.images.recipe import Channels, Recipe

Float32 = npt.NDArray[np.float32]

FILE = "features.onnx"  # the copy in the folder of the collection
USUAL_SIDE = 224  # of networks that take pictures of any size
MOST_VALUES = 65_536
REASON_LETTERS = 200


class Network:
    """Makes vectors of pictures, each by itself: what it makes of one depends on no other.

    content : the bytes of the ONNX file, of which `recipe` says how it is called
    """

    def __init__(self, content: bytes, recipe: Recipe, name: str) -> None:
        self.recipe, self._name = recipe, name
        self._session = _session(content, name)
        self._batch = _batch_of(self._session)
        black = np.zeros((1, recipe.side, recipe.side, 3), dtype=np.uint8)
        self.dimension = self._run(black[0]).size
        if not 1 <= self.dimension <= MOST_VALUES:
            raise InvalidInput(
                f"{name} makes {self.dimension:,} numbers of a picture; 1 to {MOST_VALUES:,} are expected. "
                "Its first output must be the vector of the picture."
            )

    def __call__(self, pixels: npt.NDArray[np.uint8], n_jobs: int | None = None) -> Float32:
        """(n, side, side, 3) uint8 → (n, dimension)."""
        out = np.empty((len(pixels), self.dimension), dtype=np.float32)

        def describe(rows: slice) -> None:
            for row in range(rows.start, rows.stop):
                out[row] = self._run(pixels[row])

        with Workers(n_jobs, blas=False) as workers:
            workers.run(describe, len(pixels), 1)
        return out

    def _run(self, picture: npt.NDArray[np.uint8]) -> Float32:
        """The vector of one picture, (side, side, 3) → (dimension,)."""
        recipe = self.recipe
        mean, std = (np.array(each, dtype=np.float32) for each in (recipe.mean, recipe.std))
        scaled: Float32 = (picture.astype(np.float32) / np.float32(255) - mean) / std
        if recipe.layout == "nchw":
            scaled = scaled.transpose(2, 0, 1)
        batch = np.ascontiguousarray(np.broadcast_to(scaled, (self._batch, *scaled.shape)))
        try:
            made = np.asarray(self._session.run([recipe.output], {recipe.input: batch})[0])
            vectors: Float32 = made.astype(np.float32).reshape(self._batch, -1)
            return vectors[0]  # type: ignore[no-any-return]
        except Exception as error:  # onnxruntime's errors have no common base but this
            raise InvalidInput(
                f"{self._name} could not be run on a picture of {recipe.side} × {recipe.side} pixels: "
                f"{_reason(error)}"
            ) from error


def network_recipe(content: bytes, name: str, side: int | None, mean: Channels, std: Channels) -> Recipe:
    """How the network in a file is called; InvalidInput where it does not take pictures.

    side : as asked for, None for what the network takes, 224 where it takes any
    """
    session = _session(content, name)
    shape = _input_shape(session, name)
    channels_last = shape[1] != 3 and shape[3] == 3
    if not channels_last and isinstance(shape[1], int) and shape[1] != 3:
        raise InvalidInput(
            f"{name} takes input of shape {_shown(shape)}; colour pictures have 3 channels, as in "
            "(n, 3, height, width) or (n, height, width, 3)."
        )
    height, width = shape[1:3] if channels_last else shape[2:]
    fixed = {size for size in (height, width) if isinstance(size, int)}
    if len(fixed) == 2:
        raise InvalidInput(f"{name} takes pictures of {height} × {width} pixels; squares are made here.")
    wanted = next(iter(fixed), None)
    if wanted is not None and side not in (None, wanted):
        raise InvalidParameter(
            "side", side, f"{wanted}, which is what {name} takes", "Leave it out to have it so."
        )
    side = wanted or side or USUAL_SIDE
    called = session.get_inputs()[0].name, session.get_outputs()[0].name
    recipe = Recipe(
        "onnx", side, mean=mean, std=std, sha256=files.checksum([content]), input=called[0],
        output=called[1], layout="nhwc" if channels_last else "nchw",
    )  # fmt: skip
    Network(content, recipe, name)  # says now what would fail later
    return recipe


def load_network(folder: Path, recipe: Recipe) -> Network:
    """The network that is kept in the folder of a collection."""
    path = folder / FILE
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CollectionError(
            f"{path}, the network that makes the vectors, cannot be read: {error.strerror}. "
            "Restore it from a copy, or make the collection anew."
        ) from error
    if files.checksum([content]) != recipe.sha256:
        raise CollectionError(
            f"{path} is not the network that the collection was made with. Restore it from a copy, or make "
            "the collection anew."
        )
    return Network(content, recipe, str(path))


def read_network(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a network's file."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise FileProblem(f"{path} cannot be read: {error.strerror}.") from error


def _session(content: bytes, name: str) -> Any:
    runtime = require("onnxruntime", extra="onnx", purpose="describing pictures by a network")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # pictures run side by side
    options.log_severity_level = 4
    try:
        return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise InvalidInput(
            f"{name} is not an ONNX network that onnxruntime can run: {_reason(error)} "
            "It must be a single file, without weights beside it."
        ) from error


def _input_shape(session: Any, name: str) -> list[Any]:
    inputs = session.get_inputs()
    if len(inputs) != 1 or len(inputs[0].shape) != 4:
        found = ", ".join(f"{each.name} of shape {_shown(each.shape)}" for each in inputs) or "none"
        raise InvalidInput(
            f"{name} does not take pictures: it must have one input of shape (n, 3, height, width) or "
            f"(n, height, width, 3), and has {found}."
        )
    if inputs[0].type != "tensor(float)":
        raise InvalidInput(f"{name} takes {inputs[0].type}; float32, tensor(float), is expected.")
    return list(inputs[0].shape)


def _batch_of(session: Any) -> int:
    size = session.get_inputs()[0].shape[0]
    return size if isinstance(size, int) and size > 0 else 1


def _shown(shape: list[Any]) -> str:
    return f"({', '.join(str(size) if isinstance(size, int) else 'any' for size in shape)})"


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return (text[:REASON_LETTERS] + " …" if len(text) > REASON_LETTERS else text.rstrip(".")) + "."
