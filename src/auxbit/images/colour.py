"""The colours of a picture as a small histogram, to stand beside GIST, which sees none.

Colours are brightness (r + g + b)/3, and two differences, r − g and (r + g)/2 − b. Each pixel is shared
between the nearest of 3 × 4 × 4 bins, linearly in each direction, so that a small change of colour is a
small change of the histogram; the square roots of the shares are the values, whose Euclidean distance is
Hellinger's.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from auxbit.blocks import Workers

Float32 = npt.NDArray[np.float32]

BRIGHTNESSES, DIFFERENCES = 3, 4  # bins
SPAN = 0.3  # of the differences, of colours in 0..1: what lies beyond is in the outermost bin
VALUES = BRIGHTNESSES * DIFFERENCES**2
BLOCK_PICTURES = 16  # handed to a thread at a time

# Mean squared distance of two CIFAR-10 test pictures: 0.943 by GIST, 0.576 by these histograms. With this
# factor a weight of 1 makes colour count as much as GIST. Of the 20 nearest of 2,000 of these pictures, the
# share of the same class is 0.353 by GIST, 0.375 with a weight of 0.1, 0.368 with 0.25, 0.338 with 1.
SQUARED_SCALE = 1.64


def histograms(pixels: npt.NDArray[np.uint8], weight: float, *, n_jobs: int | None = None) -> Float32:
    """(n, h, w, 3) → (n, 48): squared distances of pictures are `weight` times what makes them as GIST's."""
    factor = np.float32(np.sqrt(weight * SQUARED_SCALE))
    out = np.empty((len(pixels), VALUES), dtype=np.float32)

    def fill(rows: slice) -> None:
        out[rows] = factor * np.sqrt(_shares(pixels[rows]))

    with Workers(n_jobs) as workers:
        workers.run(fill, len(pixels), BLOCK_PICTURES)
    return out


def _shares(pixels: npt.NDArray[np.uint8]) -> Float32:
    """The share of a picture's pixels in each bin, (n, 48)."""
    values = pixels.reshape(len(pixels), -1, 3).astype(np.float32) / np.float32(255)
    red, green, blue = values[..., 0], values[..., 1], values[..., 2]
    brightness = _memberships((red + green + blue) / np.float32(3), 0.0, 1.0, BRIGHTNESSES)
    red_green = _memberships(red - green, -SPAN, SPAN, DIFFERENCES)
    yellow_blue = _memberships((red + green) / np.float32(2) - blue, -SPAN, SPAN, DIFFERENCES)
    pairs = (brightness[..., :, None] * red_green[..., None, :]).reshape(*red.shape, -1)
    sums: Float32 = np.matmul(pairs.transpose(0, 2, 1), yellow_blue)  # a product a picture, each by itself
    return sums.reshape(len(pixels), VALUES) / np.float32(red.shape[1])


def _memberships(values: Float32, low: float, high: float, n_bins: int) -> Float32:
    """(n, p) → (n, p, n_bins): how much of each value belongs to each bin; they sum to 1."""
    places = np.clip((values - np.float32(low)) / np.float32(high - low), 0, 1) * np.float32(n_bins - 1)
    near: Float32 = np.maximum(0, 1 - np.abs(places[..., None] - np.arange(n_bins, dtype=np.float32)))
    return near
