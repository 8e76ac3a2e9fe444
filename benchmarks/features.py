"""GIST: images per second, and the CPU time beside that of Fourier transforms.

`python benchmarks/features.py` runs all, with a name only that one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import scipy.fft

from auxbit.data.gist import PADDING, add_block_means, bands, gist, normalised_contrast, scale_filters
from record import Results, run, table

ORIENTATIONS = (8, 8, 4)
REPEATS = 5


def random_images(n: int, side: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (n, side, side), dtype=np.uint8)


def speed(results: Results) -> str:
    """GIST-320 of random grey images on one and two threads, the best of 5 runs each."""
    rows = []
    for side, n in ((32, 4096), (64, 1024), (128, 256), (256, 64)):
        images = random_images(n, side)
        for threads in (1, 2):
            gist(images[:64], n_jobs=threads)
            job = partial(gist, images, n_jobs=threads)
            best = min(timed(job) for _ in range(REPEATS))
            results.add(side=side, images=n, threads=threads, seconds=best[0], cpu_seconds=best[1])
            rate, each = n / best[0], best[1] / n * 1e6
            rows.append((f"{side} × {side}", threads, f"{rate:,.0f}", f"{each:,.0f}"))
    return table(("image", "threads", "images per second", "CPU µs per image"), rows)


def filters(results: Results) -> str:
    """The filters of GIST by matrices (ours) and by batched float32 FFTs of SciPy, by turns, one thread."""
    rows = []
    for side, n in ((32, 128), (64, 64), (128, 32), (256, 8)):
        planes = normalised_contrast(random_images(n, side)[:, None].astype(np.float32))[:, 0]
        ours, theirs = by_matrices(planes), by_fft(planes)
        difference = float(np.abs(ours - theirs).max() / theirs.max())
        jobs = partial(by_matrices, planes), partial(by_fft, planes)
        times = [[timed(job)[1] for job in jobs] for _ in range(REPEATS)]
        least = [min(pair[i] for pair in times) / n for i in (0, 1)]
        results.add(side=side, images=n, matrices=least[0], fft=least[1], difference=difference)
        micro = [f"{seconds * 1e6:,.0f}" for seconds in least]
        rows.append((f"{side} × {side}", *micro, f"{least[1] / least[0]:.1f}", f"{difference:.0e}"))
    return table(("image", "matrices, CPU µs", "FFT, CPU µs", "ratio", "largest difference"), rows)


def by_matrices(planes: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    out = np.empty((len(planes), sum(ORIENTATIONS), 4, 4), np.float32)
    for band in bands(*planes.shape[1:], ORIENTATIONS):
        add_block_means(planes, band, 4, out)
    return out


def by_fft(planes: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """One forward transform per image, one inverse per filter, of the wanted columns and rows only."""
    n, side, _ = planes.shape
    padded = side + 2 * PADDING
    inside = slice(PADDING, PADDING + side)
    transfer = fourier_filters(padded)
    out = np.empty((n, len(transfer), 4, 4), np.float32)
    for i, plane in enumerate(planes):
        spectrum = scipy.fft.fft2(np.pad(plane, PADDING, mode="symmetric"))
        columns = scipy.fft.ifft(spectrum * transfer, axis=2, overwrite_x=True)[:, :, inside]
        magnitude = np.abs(scipy.fft.ifft(columns, axis=1)[:, inside])
        out[i] = magnitude.reshape(-1, 4, side // 4, 4, side // 4).mean(axis=(2, 4))
    return out


kept: dict[int, npt.NDArray[np.float32]] = {}


def fourier_filters(padded: int) -> npt.NDArray[np.float32]:
    """(filters, padded, padded), made once; what would make products subnormal is 0, as in ours."""
    if padded not in kept:
        made = [f for s, n in enumerate(ORIENTATIONS) for f in scale_filters(s, n, padded, padded)]
        kept[padded] = np.where(np.array(made) < 1e-9, 0, made).astype(np.float32)
    return kept[padded]


def timed(job: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    job()
    return time.perf_counter() - wall, time.process_time() - cpu


if __name__ == "__main__":
    run("features", {"speed": speed, "filters": filters})
