"""Images to vectors: GIST, the descriptor of the paper's experiments (Oliva and Torralba 2001).

An image is made grey, its local contrast is normalised (`prefilter`), and the mean magnitudes of oriented
filters in 4 × 4 blocks are its vector: 16 · (8 + 8 + 4) = 320 values.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from auxbit import files
from auxbit.blocks import Workers
from auxbit.checks import check_integer
from auxbit.data import read_vectors, write_vectors
from auxbit.errors import DataFileError, InvalidInput, InvalidParameter
from auxbit.gist import Float32, add_block_means, bands

LEAST_SIDE = 16
BLOCK_IMAGES = 64  # handed to a thread at a time
MARGIN = 5  # pixels of reflection around the image while its contrast is normalised
CUT_OFF = 4  # cycles an image: what varies more slowly is brightness, not contrast
LEAST_DEVIATION = 0.2  # so that flat regions stay flat
VERSION = 1  # of the numbers: a new one makes what is cached worthless


def gist(
    images: npt.ArrayLike,
    *,
    blocks: int = 4,
    orientations: tuple[int, ...] = (8, 8, 4),
    size: int | None = None,
    prefilter: bool = True,
    colour: bool = False,
    n_jobs: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Float32:
    """GIST descriptors: (n, blocks² · Σ orientations) float32, 320-D unless asked otherwise.

    images : (n, h, w) grey or (n, h, w, 3) colour, of brightness 0..255 as integers or floats, h and w ≥ 16
    orientations : of each scale, the finest first
    size : resize the shorter side to it and take the square in the middle
    prefilter : log(1 + x), less its low frequencies, over its local standard deviation
    colour : describe the three channels one after another, 3 times as long, instead of their mean
    progress : called with the number of images done since the last call

    The values of a descriptor are in the order (channel,) filter, block row, block column.
    The descriptor of an image depends on nothing but the image: not on n_jobs nor on the images beside it.
    """
    source = _checked(images)
    orientations = _check_orientations(orientations)
    if size is not None:
        size = check_integer("size", size, LEAST_SIDE)
    height, width = (size, size) if size else source.shape[1:3]
    blocks = check_integer("blocks", blocks, 1, min(height, width))
    channels = 3 if colour and source.ndim == 4 else 1
    if colour and source.ndim == 3:
        raise InvalidParameter("colour", colour, f"False for grey images, of shape {source.shape}")
    filters = bands(height, width, orientations)
    out = np.empty((len(source), channels, sum(orientations), blocks, blocks), dtype=np.float32)

    def describe(rows: slice) -> int:
        planes = _planes(source[rows], rows.start, colour=colour)
        if size:
            planes = _resized(planes, size)
        if prefilter:
            planes = normalised_contrast(planes)
        flat = out[rows].reshape(-1, sum(orientations), blocks, blocks)
        for band in filters:
            add_block_means(planes.reshape(-1, height, width), band, blocks, flat)
        return len(planes)

    with Workers(n_jobs) as workers:
        for done in workers.map(describe, len(source), BLOCK_IMAGES):
            if progress is not None:
                progress(done)
    return out.reshape(len(source), math.prod(out.shape[1:]))


def cached_gist(
    images: npt.NDArray[Any], folder: str | os.PathLike[str] | None, **options: Any
) -> npt.NDArray[np.float32]:
    """As gist(images, **options), kept in a folder under a name made of the images' bytes and the options."""
    if folder is None:
        return gist(images, **options)
    said = {name: value for name, value in options.items() if name not in ("n_jobs", "progress")}
    about = repr((VERSION, images.shape, images.dtype.str, sorted(said.items()))).encode()
    path = Path(folder) / f"gist-{files.checksum(_content(images, about))[:32]}.npy"
    if path.exists():
        try:
            kept = read_vectors(path)
        except DataFileError:
            kept = np.empty((0, 0))  # a damaged file is made anew
        if len(kept) == len(images) and kept.dtype == np.float32:
            return kept
    made = gist(images, **options)
    write_vectors(path, made, overwrite=True)
    return made


def normalised_contrast(planes: Float32) -> Float32:
    """Whiten and equalise: (n, channels, h, w) float32 of 0..255 → the same shape.

    With x = log(1 + brightness), continued by reflection to a square of n × n pixels, and ∗ g the filter
    exp(−(f_y² + f_x²) ln 2 / CUT_OFF²) at frequencies of f cycles in n pixels, a low-pass:
    y = x − x ∗ g, and the result is y / (0.2 + sqrt(|m² ∗ g|)), m the mean of y over the channels.
    """
    matrices = _smoothing(*planes.shape[2:])
    x = np.log1p(planes)
    y = x[:, :, matrices.rows[:, None], matrices.columns]
    y -= (matrices.into_y @ x) @ matrices.into_x
    mean = y[:, 0] if y.shape[1] == 1 else y.sum(axis=1) / np.float32(y.shape[1])
    variance = (matrices.crop_y @ (mean * mean)) @ matrices.crop_x
    inside = y[:, :, MARGIN : MARGIN + x.shape[2], MARGIN : MARGIN + x.shape[3]]
    contrast: Float32 = inside / (np.float32(LEAST_DEVIATION) + np.sqrt(np.abs(variance)))[:, None]
    return contrast


class _Smoothing(NamedTuple):
    """The low-pass of an image as matrices on either side of it."""

    rows: npt.NDArray[np.intp]  # (n,): which row of the image a row of the square repeats
    columns: npt.NDArray[np.intp]
    into_y: Float32  # (n, h): reflection and low-pass
    into_x: Float32  # (w, n)
    crop_y: Float32  # (h, n): low-pass, only where the image is
    crop_x: Float32  # (n, w)


@lru_cache(maxsize=8)
def _smoothing(height: int, width: int) -> _Smoothing:
    side = max(height, width) + 2 * MARGIN
    side += side % 2
    frequencies = np.fft.fftfreq(side, 1 / side)
    transfer = np.exp(-(frequencies**2) * np.log(2) / CUT_OFF**2)
    low_pass = np.fft.ifft(transfer[:, None] * np.fft.fft(np.eye(side), axis=0), axis=0).real
    rows, columns = _reflected(height, side), _reflected(width, side)
    into_y, into_x = (low_pass @ np.eye(n)[source] for n, source in ((height, rows), (width, columns)))
    crop_y, crop_x = (low_pass[MARGIN : MARGIN + n] for n in (height, width))
    matrices = (np.ascontiguousarray(m, dtype=np.float32) for m in (into_y, into_x.T, crop_y, crop_x.T))
    return _Smoothing(rows, columns, *matrices)


def _reflected(length: int, side: int) -> npt.NDArray[np.intp]:
    """Which pixel each of `side` pixels repeats: MARGIN by reflection around, the rest after that."""
    source = np.pad(np.arange(length), MARGIN, mode="symmetric")
    return np.pad(source, (0, side - len(source)), mode="symmetric")


def _checked(images: npt.ArrayLike) -> npt.NDArray[Any]:
    source = np.asanyarray(images)
    if source.ndim not in (3, 4) or (source.ndim == 4 and source.shape[3] != 3):
        raise InvalidInput(
            f"images must have shape (n, h, w), or (n, h, w, 3) in colour; got {source.shape}. "
            "A single image is image[None]."
        )
    if min(source.shape[1:3]) < LEAST_SIDE:
        raise InvalidInput(
            f"images must be at least {LEAST_SIDE} × {LEAST_SIDE} pixels, got shape {source.shape}. "
            "A single image is image[None]."
        )
    if source.dtype.kind not in "uif":
        raise InvalidInput(f"images must be integers or floats of 0..255, got {source.dtype}.")
    return source


def _check_orientations(orientations: object) -> tuple[int, ...]:
    if not isinstance(orientations, (tuple, list)) or not orientations:
        raise InvalidParameter(
            "orientations", orientations, "numbers of orientations, one a scale", "Try (8, 8, 4)."
        )
    return tuple(check_integer("orientations", value, 1, 64) for value in orientations)


def _planes(images: npt.NDArray[Any], first: int, *, colour: bool) -> Float32:
    """(n, h, w) or (n, h, w, 3) → (n, channels, h, w) float32, contiguous."""
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused below
        planes = images.astype(np.float32, order="C")
    allowed = planes >= 0
    allowed &= np.isfinite(planes)
    if not allowed.all():
        image = int((~allowed).reshape(len(images), -1).any(axis=1).argmax())
        raise InvalidInput(
            f"image {first + image} has negative, infinite or undefined values; expected 0..255."
        )
    if images.ndim == 3:
        return planes[:, None]
    if colour:
        return np.ascontiguousarray(planes.transpose(0, 3, 1, 2))
    grey: Float32 = (planes[..., 0] + planes[..., 1] + planes[..., 2]) / np.float32(3)
    return grey[:, None]


def _resized(planes: Float32, size: int) -> Float32:
    """(n, channels, h, w) → (n, channels, size, size): the square in the middle, scaled."""
    height, width = planes.shape[2:]
    if height == width == size:
        return planes
    shorter = min(height, width)
    down, across = (_scaling(n, max(size, round(n * size / shorter)), size) for n in (height, width))
    scaled: Float32 = (down @ planes) @ np.ascontiguousarray(across.T)
    return scaled


@lru_cache(maxsize=8)
def _scaling(length: int, scaled: int, size: int) -> Float32:
    """(size, length): linear interpolation to `scaled` pixels, of which the middle `size`; rows sum to 1.

    Where pixels are merged the triangle is as wide as a new pixel, so that nothing is left out.
    """
    step = length / scaled
    centres = (np.arange(size) + (scaled - size) // 2 + 0.5) * step - 0.5
    weights = np.maximum(0, 1 - np.abs(np.arange(length) - centres[:, None]) / max(step, 1))
    return np.ascontiguousarray(weights / weights.sum(axis=1, keepdims=True), dtype=np.float32)


def _content(images: npt.NDArray[Any], about: bytes) -> Iterator[bytes | memoryview]:
    yield about
    for start in range(0, len(images), BLOCK_IMAGES):
        yield np.ascontiguousarray(images[start : start + BLOCK_IMAGES]).tobytes()
