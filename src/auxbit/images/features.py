"""How pictures become vectors: recipes, kept as JSON; colour histograms; networks in ONNX files."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from auxbit.core import files
from auxbit.core.checks import Float32, PathLike, check_integer, require
from auxbit.core.parallel import Workers
from auxbit.data.gist import gist
from auxbit.errors import CollectionError, FileProblem, InvalidInput, InvalidParameter

Channels = tuple[float, float, float]
Pixels = npt.NDArray[np.uint8]

KINDS = ("gist", "pixels", "onnx")
SIDES = {"gist": (16, 256), "pixels": (8, 128), "onnx": (8, 1024)}  # least and most: filters, and memory
MOST_COLOUR = 1000.0
LAYOUTS = ("nchw", "nhwc")
OF_NETWORKS = ("mean", "std", "sha256", "input", "output", "layout")

NO_MEAN: Channels = (0.0, 0.0, 0.0)
NO_STD: Channels = (1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Recipe:
    """What a picture's vector is made of: the square in its middle, of side × side pixels.

    kind : "gist", the picture's structure; "pixels", their values; "onnx", a network's output
    colour : weight of a colour histogram beside GIST; 1 counts as much as GIST, 0 means none
    grey : for "pixels": the mean of the channels, a third as many values
    mean, std : for "onnx": what is subtracted from the channels, in 0..1, and what they are divided by
    sha256, input, output, layout : for "onnx": the network's file, and how it is called
    """

    kind: str
    side: int
    colour: float = 0.0
    grey: bool = False
    mean: Channels = NO_MEAN
    std: Channels = NO_STD
    sha256: str = ""
    input: str = ""
    output: str = ""
    layout: str = "nchw"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidParameter("features", self.kind, f"one of {', '.join(KINDS)}")
        check_integer("side", self.side, *SIDES[self.kind], f"It is in pixels, of features {self.kind}.")
        _check_number("colour", self.colour, 0.0, MOST_COLOUR, "1 counts as much as GIST.")
        if self.colour and self.kind != "gist":
            raise InvalidParameter("colour", self.colour, f"0 for features {self.kind}", "It is for GIST.")
        if not isinstance(self.grey, bool) or (self.grey and self.kind != "pixels"):
            raise InvalidParameter("grey", self.grey, "False, or features 'pixels'")
        self._check_network()

    def _check_network(self) -> None:
        for name in ("mean", "std"):
            value = getattr(self, name)
            if not isinstance(value, tuple) or len(value) != 3:
                raise InvalidParameter(name, value, "three numbers, one per channel: red, green, blue")
            for number in value:
                _check_number(name, number, -1e6, 1e6, "Channels are scaled to 0..1 first.")
            if name == "std" and not all(value):
                raise InvalidParameter(name, value, "numbers other than 0, as channels are divided by them")
        if self.kind == "onnx" and not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise InvalidParameter("sha256", self.sha256, "the SHA-256 of the network's file")
        if self.layout not in LAYOUTS:
            raise InvalidParameter("layout", self.layout, " or ".join(LAYOUTS))

    def document(self) -> dict[str, Any]:
        """The recipe for JSON, without what its kind does not use."""
        kept = {"gist": ("colour",), "pixels": ("grey",), "onnx": OF_NETWORKS}[self.kind]
        return {name: value for name, value in asdict(self).items() if name in ("kind", "side", *kept)}

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """The recipe of `document`; InvalidInput if it is none."""
        known = {field.name for field in fields(cls)}
        if not isinstance(document, dict) or not {"kind", "side"} <= set(document) <= known:
            raise InvalidInput(f"this is not a recipe for vectors of pictures: {document!r:.200}")
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in document.items()
        }
        return cls(**values)


def _check_number(name: str, value: object, least: float, most: float, remedy: str) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not isfinite(value) or not least <= value <= most:  # type: ignore[arg-type, operator]
        raise InvalidParameter(name, value, f"a number of {least:g} to {most:g}", remedy)


# ---- Colour histograms, beside GIST, which sees no colours
#
# Colours are brightness (r + g + b)/3, and two differences, r − g and (r + g)/2 − b. Each pixel is shared
# between the nearest of 3 × 4 × 4 bins, linearly in each direction, so that a small change of colour is a
# small change of the histogram. The values are the square roots of the shares: their Euclidean distance is
# Hellinger's.

BRIGHTNESSES, DIFFERENCES = 3, 4  # bins
SPAN = 0.3  # of the differences, of colours in 0..1: what lies beyond is in the outermost bin
VALUES = BRIGHTNESSES * DIFFERENCES**2
BLOCK_PICTURES = 16  # handed to a thread at a time

# Mean squared distance of two CIFAR-10 test pictures: 0.943 by GIST, 0.576 by these histograms. With this
# factor a weight of 1 makes colour count as much as GIST. Of the 20 nearest of 2,000 of these pictures, the
# share of the same class is 0.353 by GIST, 0.375 with a weight of 0.1, 0.368 with 0.25, 0.338 with 1.
SQUARED_SCALE = 1.64


def histograms(pixels: Pixels, weight: float, *, n_jobs: int | None = None) -> Float32:
    """(n, h, w, 3) → (n, 48), scaled so that at a weight of 1 squared distances are as large as GIST's."""
    factor = np.float32(np.sqrt(weight * SQUARED_SCALE))
    out = np.empty((len(pixels), VALUES), dtype=np.float32)

    def fill(rows: slice) -> None:
        out[rows] = factor * np.sqrt(_shares(pixels[rows]))

    with Workers(n_jobs) as workers:
        workers.run(fill, len(pixels), BLOCK_PICTURES)
    return out


def _shares(pixels: Pixels) -> Float32:
    """The share of a picture's pixels in each bin, (n, 48)."""
    values = pixels.reshape(len(pixels), -1, 3).astype(np.float32) / np.float32(255)
    red, green, blue = values[..., 0], values[..., 1], values[..., 2]
    brightness = _memberships((red + green + blue) / np.float32(3), 0.0, 1.0, BRIGHTNESSES)
    red_green = _memberships(red - green, -SPAN, SPAN, DIFFERENCES)
    yellow_blue = _memberships((red + green) / np.float32(2) - blue, -SPAN, SPAN, DIFFERENCES)
    pairs = (brightness[..., :, None] * red_green[..., None, :]).reshape(*red.shape, -1)
    sums: Float32 = np.matmul(pairs.transpose(0, 2, 1), yellow_blue)  # one product per picture
    return sums.reshape(len(pixels), VALUES) / np.float32(red.shape[1])


def _memberships(values: Float32, low: float, high: float, n_bins: int) -> Float32:
    """(n, p) → (n, p, n_bins): how much of each value belongs to each bin; they sum to 1."""
    places = np.clip((values - np.float32(low)) / np.float32(high - low), 0, 1) * np.float32(n_bins - 1)
    near: Float32 = np.maximum(0, 1 - np.abs(places[..., None] - np.arange(n_bins, dtype=np.float32)))
    return near


# ---- Networks: ONNX files of the user's own, run by onnxruntime

FILE = "features.onnx"  # the copy in the folder of the collection
USUAL_SIDE = 224  # of networks that take pictures of any size
MOST_VALUES = 65_536
REASON_LETTERS = 200


class Network:
    """Makes vectors of pictures; what it makes of one depends on no other.

    content : the bytes of the ONNX file, of which `recipe` says how it is called
    """

    def __init__(self, content: bytes, recipe: Recipe, name: str) -> None:
        self.recipe, self._name = recipe, name
        self._session = _session(content, name)
        batch = self._session.get_inputs()[0].shape[0]
        self._batch = batch if isinstance(batch, int) and batch > 0 else 1
        self.dimension = self._run(np.zeros((recipe.side, recipe.side, 3), dtype=np.uint8)).size
        if not 1 <= self.dimension <= MOST_VALUES:
            raise InvalidInput(
                f"{name} makes {self.dimension:,} numbers of a picture; 1 to {MOST_VALUES:,} are expected. "
                "Its first output must be the vector of the picture."
            )

    def __call__(self, pixels: Pixels, n_jobs: int | None = None) -> Float32:
        """(n, side, side, 3) uint8 → (n, dimension)."""
        out = np.empty((len(pixels), self.dimension), dtype=np.float32)

        def describe(rows: slice) -> None:
            for row in range(rows.start, rows.stop):
                out[row] = self._run(pixels[row])

        with Workers(n_jobs, blas=False) as workers:
            workers.run(describe, len(pixels), 1)
        return out

    def _run(self, picture: Pixels) -> Float32:
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
    """How the network in a file is called; InvalidInput if it does not take pictures.

    side : None for what the network takes, or 224 if it takes any
    """
    session = _session(content, name)
    inputs = session.get_inputs()
    shapes = [
        f"({', '.join(str(n) if isinstance(n, int) else 'any' for n in each.shape)})" for each in inputs
    ]
    if len(inputs) != 1 or len(inputs[0].shape) != 4:
        found = ", ".join(f"{each.name} of shape {shape}" for each, shape in zip(inputs, shapes)) or "none"
        raise InvalidInput(
            f"{name} does not take pictures: it must have one input of shape (n, 3, height, width) or "
            f"(n, height, width, 3), and has {found}."
        )
    if inputs[0].type != "tensor(float)":
        raise InvalidInput(f"{name} takes {inputs[0].type}; float32, tensor(float), is expected.")
    shape = inputs[0].shape
    channels_last = shape[1] != 3 and shape[3] == 3
    if not channels_last and isinstance(shape[1], int) and shape[1] != 3:
        raise InvalidInput(
            f"{name} takes input of shape {shapes[0]}; colour pictures have 3 channels, as in "
            "(n, 3, height, width) or (n, height, width, 3)."
        )
    height, width = shape[1:3] if channels_last else shape[2:]
    fixed = {size for size in (height, width) if isinstance(size, int)}
    if len(fixed) == 2:
        raise InvalidInput(f"{name} takes pictures of {height} × {width} pixels; only squares are possible.")
    taken = next(iter(fixed), None)
    if taken is not None and side not in (None, taken):
        raise InvalidParameter("side", side, f"{taken}, which is what {name} takes", "Leave it out.")
    recipe = Recipe(
        "onnx", taken or side or USUAL_SIDE, mean=mean, std=std, sha256=files.checksum([content]),
        input=inputs[0].name, output=session.get_outputs()[0].name, layout=LAYOUTS[channels_last],
    )  # fmt: skip
    Network(content, recipe, name)  # so that it fails now rather than later
    return recipe


def read_network(path: PathLike) -> bytes:
    """The bytes of a network's file."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise FileProblem(f"{path} cannot be read: {error.strerror}.") from error


def _kept_network(path: Path, recipe: Recipe) -> Network:
    """The network that is kept in the folder of a collection."""
    remedy = "Restore it from a copy, or make the collection again."
    try:
        content = read_network(path)
    except FileProblem as error:
        raise CollectionError(f"the network that makes the vectors is missing: {error} {remedy}") from error
    if files.checksum([content]) != recipe.sha256:
        raise CollectionError(f"{path} is not the network that the collection was made with. {remedy}")
    return Network(content, recipe, str(path))


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


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return (text[:REASON_LETTERS] + " …" if len(text) > REASON_LETTERS else text.rstrip(".")) + "."


# ---- Words: a network that makes vectors of texts, to be compared with those of pictures

TEXT_FILE, TOKENIZER_FILE = "text.onnx", "tokenizer.json"  # the copies in the folder of the collection
BESIDE_IDS = {"attention_mask": 1, "token_type_ids": 0}  # further inputs, and their values for a token
INTEGERS = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}


class Words:
    """Makes vectors of texts: `words("a red car")`.

    network, tokenizer : the bytes of an ONNX file, which takes the numbers of tokens, and of a tokenizer.json
    """

    def __init__(self, network: bytes, tokenizer: bytes, name: str = "the network for texts") -> None:
        package = require("tokenizers", extra="text", purpose="search by words")
        self._name, self._session = name, _session(network, name)
        try:
            self._tokenizer = package.Tokenizer.from_buffer(tokenizer)
        except Exception as error:  # what it raises is no public class
            raise InvalidInput(f"the tokenizer of {name} is no tokenizer.json: {_reason(error)}") from error
        self._inputs = self._checked_inputs()
        length = next(iter(self._inputs.values())).shape[1]
        self._length = length if isinstance(length, int) else None
        if self._length is not None:
            self._tokenizer.enable_truncation(self._length)
        self.dimension = len(self("a picture"))

    def __call__(self, text: str) -> Float32:
        """The vector of a text, (dimension,)."""
        if not text.strip():
            raise InvalidParameter("text", text, "words to search for")
        encoded = self._tokenizer.encode(text)
        padding = self._tokenizer.padding or {}
        room = max(0, (self._length or 0) - len(encoded.ids))
        rows = {
            name: [*(encoded.ids if name not in BESIDE_IDS else [BESIDE_IDS[name]] * len(encoded.ids)),
                   *[padding.get("pad_id", 0) if name not in BESIDE_IDS else 0] * room]
            for name in self._inputs
        }  # fmt: skip
        if encoded.attention_mask and "attention_mask" in rows:  # a tokenizer may pad by itself
            rows["attention_mask"] = [*encoded.attention_mask, *[0] * room]
        vector: Float32 = _checked(self._run(rows)[None], "text")[0]
        return vector

    def _run(self, rows: dict[str, list[int]]) -> Float32:
        """The vector of one text, by its inputs."""
        feeds = {
            name: np.array([rows[name]] * _rows_of(each), dtype=INTEGERS[each.type])
            for name, each in self._inputs.items()
        }
        try:
            made = self._session.run([self._session.get_outputs()[0].name], feeds)[0]
        except Exception as error:  # onnxruntime's errors have no common base but this
            raise InvalidInput(f"{self._name} could not be run on a text: {_reason(error)}") from error
        vector: Float32 = np.asarray(made, dtype=np.float32).reshape(len(next(iter(feeds.values()))), -1)[0]
        return vector

    def _checked_inputs(self) -> dict[str, Any]:
        """By name: the numbers of tokens first, then what goes beside them."""
        inputs = self._session.get_inputs()
        ids = [each for each in inputs if each.name not in BESIDE_IDS]
        if len(ids) != 1 or any(len(each.shape) != 2 or each.type not in INTEGERS for each in inputs):
            found = ", ".join(f"{each.name} ({each.type}, {len(each.shape)}-D)" for each in inputs) or "none"
            raise InvalidInput(
                f"{self._name} does not take texts: it must have one input of shape (n, length) for the "
                f"numbers of tokens, integers, and perhaps {', '.join(BESIDE_IDS)}, and has {found}."
            )
        return {each.name: each for each in [*ids, *(each for each in inputs if each not in ids)]}


def _rows_of(one_input: Any) -> int:
    n = one_input.shape[0]
    return n if isinstance(n, int) and n > 0 else 1


# ---- Pixels to vectors, by a recipe

GIST_VALUES = 320
LARGEST = float(np.finfo(np.float16).max)  # vectors are kept as float16


class Describer:
    """Makes vectors of pictures: `describer(pixels)`. Safe to call from several threads.

    folder : where the network of an "onnx" recipe is kept; network : its bytes, if it is not kept yet
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
            self._network = _kept_network(folder / FILE, recipe)
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
        return GIST_VALUES + (VALUES if recipe.colour else 0)

    def __call__(self, pixels: Pixels) -> Float32:
        """(n, side, side, 3) → (n, dimension), of which a row depends on nothing but its picture.

        InvalidInput if a network gives what cannot be kept.
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
            values = pixels.astype(np.float32)
            if self.recipe.grey:
                values = values.sum(axis=3) / np.float32(3)
            return values.reshape(len(pixels), -1)
        structure = gist(pixels, n_jobs=self.n_jobs)
        if not self.recipe.colour:
            return structure
        return np.hstack([structure, histograms(pixels, self.recipe.colour, n_jobs=self.n_jobs)])

    def picture_of(self, vectors: npt.ArrayLike) -> Pixels:
        """The pictures that vectors of pixels stand for: (n, D) → (n, side, side), in colour with 3 channels.

        What a decoder makes of a code is clipped to 0..255.
        """
        if self.recipe.kind != "pixels":
            raise InvalidInput(
                f"features {self.recipe.kind} cannot be turned back into a picture: only pixels can."
            )
        rows, side = np.asarray(vectors), self.recipe.side
        if rows.ndim != 2 or rows.shape[1] != self.dimension:
            raise InvalidInput(
                f"vectors of these pictures have shape (n, {self.dimension}), got {rows.shape}."
            )
        shape = (len(rows), side, side) if self.recipe.grey else (len(rows), side, side, 3)
        pictures: Pixels = np.clip(np.rint(rows), 0, 255).astype(np.uint8)
        return pictures.reshape(shape)


def _checked(vectors: Float32, what: str = "picture") -> Float32:
    """Vectors that can be kept; NaN fails every comparison."""
    wrong = ~(np.abs(vectors) <= LARGEST).all(axis=1)
    if wrong.any():
        row = int(wrong.argmax())
        bad = float(vectors[row][~(np.abs(vectors[row]) <= LARGEST)][0])
        raise InvalidInput(
            f"the network makes {bad:g} of {what} {row}: numbers must be finite, and at most {LARGEST:g}. "
            "Are --mean and --std those that it was trained with?"
        )
    return vectors
