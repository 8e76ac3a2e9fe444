"""GIST's filters: the mean magnitude of oriented band-pass filters in each block of an image.

An image x of h × w pixels is continued by reflection, PADDING pixels on every side, and filtered in the
Fourier domain. Filter o of the O_s of scale s (0 the finest) is real there: at r cycles a pixel in
direction φ,

    G(r, φ) = exp(−3.5 (r / r_s − 1)² − 2π (O_s / 8)² (φ + πo / O_s)²),   r_s = 0.3 / 1.85^s,

with the angle wrapped into −π..π (Oliva and Torralba 2001, in the form of their published programs).
G is not symmetric, so the filtered image u + iv is complex; sqrt(u² + v²) is averaged over the blocks.

Only h × w of the padded pixels are wanted, of real images, so Fourier transforms are not the fastest way:
all is written in cosines and sines about the centre of the image, in which reflection is a change of sign.
Let cc, cs, sc, ss be the coefficients of x (cosine or sine of k down, then of l across) and s, d, a, b the
sums over the four signs of the frequencies (±k, ±l) of G, G σ_k σ_l, G σ_l, G σ_k. Then u and v have

    cos k:  u = s [cc, cs] + d [−ss, sc]     v = −a [cs, −cc] − b [sc, ss]
    sin k:  u = s [sc, ss] + d [cs, −cc]     v =  b [cc, cs] + a [−ss, sc]

in [cos l, sin l]. So a filter is two products with small matrices of cosines and sines, all real, and
half of the rows comes free: those above the centre are the sum, those below the difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.compiled import kernel

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

PADDING = 32  # pixels of reflection on every side, as in the published programs
FINEST, RATIO = 0.3, 1.85  # cycles a pixel of the finest scale; each scale is so much coarser than the last
NEGLIGIBLE = 1e-7  # of a filter's peak: float32 does not see what is left out
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
    return Band(
        first,
        count,
        _packed(by_group.reshape(groups, 4, K, TOGETHER * 2 * L)),
        _packed(into_y),
        _packed(into_x.T),
        _packed(out_of_y.reshape(2, K, height)[:, :, height // 2 :].transpose(0, 2, 1)),
        _packed(out_of_x),
    )


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
    """As float32; what is only the rounding of 0 becomes 0, lest products be subnormal, which are slow."""
    magnitudes = np.abs(array)
    return np.ascontiguousarray(np.where(magnitudes < TINY * magnitudes.max(), 0, array), dtype=np.float32)


def block_edges(length: int, blocks: int) -> Integers:
    """Where the blocks of a side begin and end, (blocks + 1,)."""
    return np.arange(blocks + 1, dtype=np.int64) * length // blocks


def add_block_means(images: Float32, band: Band, blocks: int, out: Float32) -> None:
    """Fill in the columns of a band. images : (n, h, w) prefiltered; out : (n, n_filters, blocks, blocks)."""
    _, height, width = images.shape
    _block_means(
        images,
        band.gains,
        band.into_y,
        band.into_x,
        band.out_of_y,
        band.out_of_x,
        block_edges(height, blocks),
        block_edges(width, blocks),
        out[:, band.first : band.first + band.count],
    )


@kernel
def _block_means(
    images: Float32, gains: Float32, into_y: Float32, into_x: Float32, out_of_y: Float32, out_of_x: Float32,
    edges_y: Integers, edges_x: Integers, out: Float32,
) -> None:  # fmt: skip
    """The filters of a band on each image by itself, so that none depends on those beside it."""
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
                _add_magnitudes(
                    sums[y, 0, f],
                    differences[y, 0, f],
                    sums[y, 1, f],
                    differences[y, 1, f],
                    sign,
                    column_sums,
                )
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
