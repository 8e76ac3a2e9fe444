"""Images to vectors: GIST, the descriptor of the paper's experiments (Oliva and Torralba 2001).

An image is made grey, its local contrast is normalised (`prefilter`), and the mean magnitudes of oriented
filters in 4 × 4 blocks are its vector: 16 · (8 + 8 + 4) = 320 values.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from auxbit.core import files
from auxbit.core.checks import Array, Float32, Float64, Integers, check_integer
from auxbit.core.parallel import Workers, block_slices, kernel
from auxbit.data.vectors import read_vectors, write_vectors
from auxbit.errors import DataFileError, InvalidInput, InvalidParameter

# ---- the filters: the mean magnitude of oriented band-pass filters in each block of an image
#
# An image x of h × w pixels is continued by reflection, PADDING pixels on every side, and filtered in the
# Fourier domain. Filter o of the O_s of scale s (0 the finest) is real there: at r cycles per pixel in
# direction φ,
#
#     G(r, φ) = exp(−3.5 (r / r_s − 1)² − 2π (O_s / 8)² (φ + πo / O_s)²),   r_s = 0.3 / 1.85^s,
#
# with the angle wrapped into −π..π (Oliva and Torralba 2001, in the form of their published programs). G
# is not symmetric, so the filtered image u + iv is complex; sqrt(u² + v²) is averaged over the blocks.
#
# Only h × w of the padded pixels are wanted, and images are real, so Fourier transforms are not the fastest
# way. All is written in cosines and sines about the centre of the image, where reflection is a change of
# sign. Let cc, cs, sc, ss be the coefficients of x (cosine or sine of k down, then of l across) and s,
# d, a, b the sums over the four signs of the frequencies (±k, ±l) of G, G σ_k σ_l, G σ_l, G σ_k. Then u
# and v have
#
#     cos k:  u = s [cc, cs] + d [−ss, sc]     v = −a [cs, −cc] − b [sc, ss]
#     sin k:  u = s [sc, ss] + d [cs, −cc]     v =  b [cc, cs] + a [−ss, sc]
#
# in [cos l, sin l]. So a filter is two products with small real matrices of cosines and sines. Half of the
# rows cost nothing more: those above the centre are the sum, those below the difference.

PADDING = 32  # pixels of reflection on every side, as in the published programs
FINEST, RATIO = 0.3, 1.85  # cycles per pixel of the finest scale; how much coarser each next scale is
NEGLIGIBLE = 1e-7  # of a filter's peak: what is left out is below the rounding of float32
TINY = 1e-9
TOGETHER = 4  # filters whose intermediate results stay in the cache


@dataclass(frozen=True)
class Band:
    """Consecutive filters that need the frequencies below K down and L across, and the matrices for them."""

    first: int  # of the filters
    count: int
    gains: Float32  # (groups, 4, K, TOGETHER * 2L): s, d, a, b of each filter, twice, for cos l and sin l
    into_y: Float32  # (2K, h): pixels to cosines and sines
    into_x: Float32  # (w, 2L)
    out_of_y: Float32  # (2, ceil(h/2), K): cosines, sines at the rows from the centre down
    out_of_x: Float32  # (2L, w): cosines and sines at all columns


@lru_cache(maxsize=8)
def bands(height: int, width: int, orientations: tuple[int, ...]) -> tuple[Band, ...]:
    """The filters for images of one size, finest scale first."""
    shape = height + 2 * PADDING, width + 2 * PADDING
    filters = [
        (filter_, _reach(scale, shape))
        for scale, n_orientations in enumerate(orientations)
        for filter_ in scale_filters(scale, n_orientations, *shape)
    ]
    made, first = [], 0
    for (K, L), some in groupby(filters, key=lambda item: item[1]):
        gains = np.stack([_gains(filter_)[:, :K, :L] for filter_, _ in some])
        made.append(_band(first, gains, height, width))
        first += len(gains)
    return tuple(made)


def scale_filters(scale: int, n_orientations: int, rows: int, columns: int) -> Iterator[Float64]:
    """G of each orientation of a scale, (rows, columns) float64 in the order of numpy.fft."""
    down, across = np.fft.fftfreq(rows)[:, None], np.fft.fftfreq(columns)[None, :]
    radial = -3.5 * (np.hypot(down, across) * RATIO**scale / FINEST - 1) ** 2
    direction = np.arctan2(down, across)
    for orientation in range(n_orientations):
        angle = direction + np.pi * orientation / n_orientations
        angle = np.where(angle > np.pi, angle - 2 * np.pi, angle)
        yield np.exp(radial - 2 * np.pi * (n_orientations / 8) ** 2 * angle**2)


def _reach(scale: int, shape: tuple[int, int]) -> tuple[int, int]:
    """How many frequencies down and across a scale needs, of those from 0 to the highest."""
    highest = FINEST / RATIO**scale * (1 + np.sqrt(-np.log(NEGLIGIBLE) / 3.5))
    K, L = (min(n // 2, int(highest * n)) + 1 for n in shape)
    return K, L


def _gains(filter_: Float64) -> Float64:
    """s, d, a, b of a filter: (4, H//2 + 1, W//2 + 1), over the number of pixels."""
    H, W = filter_.shape
    down, across = np.fft.fftfreq(H, 1 / H).round(), np.fft.fftfreq(W, 1 / W).round()
    sign_y, sign_x = np.where(down < 0, -1, 1)[:, None], np.where(across < 0, -1, 1)[None, :]
    rows, columns = np.abs(down).astype(int)[:, None], np.abs(across).astype(int)[None, :]
    sums = np.zeros((4, H // 2 + 1, W // 2 + 1))
    signs: tuple[Any, ...] = (1, sign_y * sign_x, sign_x, sign_y)
    for total, sign in zip(sums, signs, strict=True):
        np.add.at(total, (rows, columns), filter_ * sign / (H * W))
    return sums


def _band(first: int, gains: Float64, height: int, width: int) -> Band:
    count, _, K, L = gains.shape
    groups = -(-count // TOGETHER)
    padded = np.zeros((groups * TOGETHER, 4, K, 2 * L))  # filters that are 0 fill up the last group
    padded[:count, ..., :L] = padded[:count, ..., L:] = gains
    by_group = padded.reshape(groups, TOGETHER, 4, K, 2 * L).transpose(0, 2, 3, 1, 4)
    into_y, out_of_y = _waves(height, K)
    into_x, out_of_x = _waves(width, L)
    grouped = by_group.reshape(groups, 4, K, TOGETHER * 2 * L)
    lower = out_of_y.reshape(2, K, height)[:, :, height // 2 :].transpose(0, 2, 1)
    return Band(first, count, *map(_packed, (grouped, into_y, into_x.T, lower, out_of_x)))


def _waves(length: int, n_frequencies: int) -> tuple[Float64, Float64]:
    """Cosines, then sines, of the first frequencies of the padded length, about the centre.

    (2K, length) of the reflected image, summed into the pixels that are repeated, and (2K, length) plain.
    """
    padded = np.arange(-PADDING, length + PADDING) - (length - 1) / 2
    angles = 2 * np.pi / len(padded) * np.arange(n_frequencies)[:, None] * padded
    waves = np.concatenate([np.cos(angles), np.sin(angles)])
    into = np.zeros((2 * n_frequencies, length))
    source = np.pad(np.arange(length), PADDING, mode="symmetric")
    np.add.at(into.T, source, waves.T)
    return into, waves[:, PADDING : PADDING + length]


def _packed(array: npt.NDArray[Any]) -> Float32:
    """As float32; rounding errors of 0 become 0, because subnormal products are slow."""
    magnitudes = np.abs(array)
    return np.ascontiguousarray(np.where(magnitudes < TINY * magnitudes.max(), 0, array), dtype=np.float32)


def add_block_means(images: Float32, band: Band, blocks: int, out: Float32) -> None:
    """Fill in the columns of a band. images : (n, h, w) prefiltered; out : (n, n_filters, blocks, blocks)."""
    edges_y, edges_x = (np.arange(blocks + 1, dtype=np.int64) * side // blocks for side in images.shape[1:])
    _block_means(
        images, band.gains, band.into_y, band.into_x, band.out_of_y, band.out_of_x,
        edges_y, edges_x, out[:, band.first : band.first + band.count],
    )  # fmt: skip


@kernel
def _block_means(
    images: Float32, gains: Float32, into_y: Float32, into_x: Float32, out_of_y: Float32, out_of_x: Float32,
    edges_y: Integers, edges_x: Integers, out: Float32,
) -> None:  # fmt: skip
    """The filters of a band, one image at a time, so that no result depends on the images beside it."""
    groups, _, K, columns = gains.shape
    n, _, width = images.shape
    half, L, count = out_of_y.shape[1], into_x.shape[1] // 2, out.shape[1]
    across = np.empty((2 * K, width), np.float32)
    coefficients = np.empty((2 * K, 2 * L), np.float32)
    P, Q = np.empty((K, columns), np.float32), np.empty((K, columns), np.float32)
    R, T = np.empty((K, columns), np.float32), np.empty((K, columns), np.float32)
    cosines, sines = np.empty((K, 2 * columns), np.float32), np.empty((K, 2 * columns), np.float32)
    even, odd = np.empty((half, 2 * columns), np.float32), np.empty((half, 2 * columns), np.float32)
    rows = half * 2 * TOGETHER
    sums, differences = np.empty((rows, width), np.float32), np.empty((rows, width), np.float32)
    for i in range(n):
        np.dot(into_y, images[i], across)
        np.dot(across, into_x, coefficients)
        _lay_out(coefficients, L, P, Q, R, T)
        for group in range(groups):
            for k in range(K):
                s, d, a, b = gains[group, 0, k], gains[group, 1, k], gains[group, 2, k], gains[group, 3, k]
                _add_products(s, P[k], d, Q[k], cosines[k, :columns])
                _add_products(s, R[k], d, T[k], sines[k, :columns])
                _add_products(a, T[k], b, R[k], cosines[k, columns:])  # −v, of which only v² is wanted
                _add_products(b, P[k], a, Q[k], sines[k, columns:])
            np.dot(out_of_y[0], cosines, even)
            np.dot(out_of_y[1], sines, odd)
            np.dot(even.reshape(rows, 2 * L), out_of_x, sums)
            np.dot(odd.reshape(rows, 2 * L), out_of_x, differences)
            first = group * TOGETHER
            _average(
                sums.reshape(half, 2, TOGETHER, width), differences.reshape(half, 2, TOGETHER, width),
                edges_y, edges_x, out[i, first : min(first + TOGETHER, count)],
            )  # fmt: skip


@kernel
def _lay_out(coefficients: Float32, L: int, P: Float32, Q: Float32, R: Float32, T: Float32) -> None:
    """[cc, cs], [−ss, sc], [sc, ss], [cs, −cc], each once for every filter of a group."""
    K, columns = P.shape
    for k in range(K):
        cosine, sine = coefficients[k], coefficients[K + k]
        for start in range(0, columns, 2 * L):
            middle, end = start + L, start + 2 * L
            _copy(cosine, P[k, start:end], np.float32(1))
            _copy(sine, R[k, start:end], np.float32(1))
            _copy(sine[L:], Q[k, start:middle], np.float32(-1))
            _copy(sine[:L], Q[k, middle:end], np.float32(1))
            _copy(cosine[L:], T[k, start:middle], np.float32(1))
            _copy(cosine[:L], T[k, middle:end], np.float32(-1))


@kernel
def _copy(source: Float32, out: Float32, factor: np.float32) -> None:
    for i in range(out.shape[0]):
        out[i] = factor * source[i]


@kernel
def _add_products(a: Float32, x: Float32, b: Float32, y: Float32, out: Float32) -> None:
    for i in range(out.shape[0]):
        out[i] = a[i] * x[i] + b[i] * y[i]


@kernel
def _average(sums: Float32, differences: Float32, edges_y: Integers, edges_x: Integers, out: Float32) -> None:
    """Means of sqrt(u² + v²) over blocks. sums, differences : (half, u and v, filters, w) of cos k, sin k."""
    height = edges_y[-1]
    column_sums = np.empty(edges_x[-1], np.float32)
    for f in range(out.shape[0]):
        for j in range(out.shape[1]):
            column_sums[:] = 0
            for row in range(edges_y[j], edges_y[j + 1]):
                if row >= height // 2:
                    y, sign = row - height // 2, np.float32(1)
                else:
                    y, sign = (height - 1) // 2 - row, np.float32(-1)
                u, v = (sums[y, 0, f], differences[y, 0, f]), (sums[y, 1, f], differences[y, 1, f])
                _add_magnitudes(u[0], u[1], v[0], v[1], sign, column_sums)
            for m in range(out.shape[2]):
                total = np.float32(0)
                for x in range(edges_x[m], edges_x[m + 1]):
                    total += column_sums[x]
                size = (edges_y[j + 1] - edges_y[j]) * (edges_x[m + 1] - edges_x[m])
                out[f, j, m] = total / np.float32(size)


@kernel
def _add_magnitudes(
    u_even: Float32, u_odd: Float32, v_even: Float32, v_odd: Float32, sign: np.float32, out: Float32
) -> None:
    for x in range(out.shape[0]):
        u = u_even[x] + sign * u_odd[x]
        v = v_even[x] - sign * v_odd[x]  # −v and v
        out[x] += np.sqrt(u * u + v * v)


# ---- images to vectors

LEAST_SIDE = 16
BLOCK_IMAGES = 64  # that a thread takes at a time
MARGIN = 5  # pixels of reflection around the image while its contrast is normalised
CUT_OFF = 4  # cycles per image: what varies more slowly is brightness, not contrast
LEAST_DEVIATION = 0.2  # so that flat regions stay flat


def gist(
    images: npt.ArrayLike, *, blocks: int = 4, orientations: tuple[int, ...] = (8, 8, 4),
    size: int | None = None, prefilter: bool = True, colour: bool = False, n_jobs: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Float32:  # fmt: skip
    """GIST descriptors: (n, blocks² · Σ orientations) float32, 320-D by default.

    images : (n, h, w) grey or (n, h, w, 3) colour, of brightness 0..255 as integers or floats, h and w ≥ 16
    orientations : of each scale, the finest first
    size : resize the shorter side to it and take the square in the middle
    prefilter : log(1 + x), less its low frequencies, over its local standard deviation
    colour : describe the three channels one after another, 3 times as long, instead of their mean
    progress : called with the number of images done since the last call

    The values of a descriptor are in the order (channel,) filter, block row, block column.
    The descriptor of an image depends on the image only: not on n_jobs, nor on the images beside it.
    """
    source = _checked(images)
    if not isinstance(orientations, (tuple, list)) or not orientations:
        allowed = "numbers of orientations, one per scale"
        raise InvalidParameter("orientations", orientations, allowed, "Try (8, 8, 4).")
    orientations = tuple(check_integer("orientations", value, 1, 64) for value in orientations)
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


def cached_gist(images: Array, folder: str | os.PathLike[str] | None, **options: Any) -> Float32:
    """As gist(images, **options), kept in a folder, named by the images' bytes, the options and the code."""
    if folder is None:
        return gist(images, **options)
    said = {name: value for name, value in options.items() if name not in ("n_jobs", "progress")}
    code = files.code_key("data/gist.py", "core/parallel.py")
    about = repr((code, images.shape, images.dtype.str, sorted(said.items()))).encode()
    blocks = block_slices(len(images), BLOCK_IMAGES)
    content = chain([about], (np.ascontiguousarray(images[rows]).tobytes() for rows in blocks))
    path = Path(folder) / f"gist-{files.checksum(content)[:32]}.npy"
    with suppress(DataFileError):  # a file that is missing or damaged is made again
        kept = read_vectors(path)
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
    wrong = None
    if source.ndim not in (3, 4) or (source.ndim == 4 and source.shape[3] != 3):
        wrong = f"have shape (n, h, w), or (n, h, w, 3) in colour; got {source.shape}"
    elif min(source.shape[1:3]) < LEAST_SIDE:
        wrong = f"be at least {LEAST_SIDE} × {LEAST_SIDE} pixels, got shape {source.shape}"
    if wrong:
        raise InvalidInput(f"images must {wrong}. A single image is image[None].")
    if source.dtype.kind not in "uif":
        raise InvalidInput(f"images must be integers or floats of 0..255, got {source.dtype}.")
    return source


def _planes(images: npt.NDArray[Any], first: int, *, colour: bool) -> Float32:
    """(n, h, w) or (n, h, w, 3) → (n, channels, h, w) float32, contiguous."""
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused below
        planes = images.astype(np.float32, order="C")
    allowed = planes >= 0
    allowed &= np.isfinite(planes)
    if not allowed.all():
        bad = first + int((~allowed).reshape(len(images), -1).any(axis=1).argmax())
        raise InvalidInput(f"image {bad} has negative, infinite or undefined values; expected 0..255.")
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

    If the image becomes smaller, the triangle is as wide as a new pixel, so that no pixel is left out.
    """
    step = length / scaled
    centres = (np.arange(size) + (scaled - size) // 2 + 0.5) * step - 0.5
    weights = np.maximum(0, 1 - np.abs(np.arange(length) - centres[:, None]) / max(step, 1))
    return np.ascontiguousarray(weights / weights.sum(axis=1, keepdims=True), dtype=np.float32)
