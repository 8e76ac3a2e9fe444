"""The line search of the h step where rows are far away: looking at a sample first, and at all rows once.

h_step.line_search asks for the objective at a few sizes of the step, each derived from what it saw before.
On a sample those sizes come out nearly the same. So all rows are looked at there, at all sizes in one pass,
and the search is repeated with what was seen: at sizes that differ a little, by the parabola through it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from auxbit.mac.h_step import Indices
from auxbit.mac.svm_rows import slack_along
from auxbit.maps import Float32, Float64

NEAR = 0.25  # of a size: farther from where was looked, the parabola is not trusted


class SampledLine:
    """A step seen on a sample, whose sums stand for those of all rows; notes the sizes that are asked for.

    X : (s, D), W, P : (D+1, len(bits)), labels : (s, len(bits)) of 0/1; share : s over all rows.
    """

    def __init__(
        self, X: Float32, W: Float64, P: Float64, labels: npt.NDArray[np.uint8], share: float
    ) -> None:
        self._here, self._aimed = (X @ V[:-1].astype(np.float32) + V[-1].astype(np.float32) for V in (W, P))
        self._labels, self._share, self._P = labels, share, P
        self._start = self._look(np.zeros(P.shape[1]))
        self.sizes: list[Float64] = []

    @property
    def slack(self) -> Float64:
        """Σ slack² before the step."""
        return np.asarray(self._start[0])

    def gradient(self, W: Float64, C: float) -> Float64:
        """A gradient whose slope along the step is that of the sample."""
        square = np.einsum("dl,dl->l", self._P, self._P)
        slope = np.einsum("dl,dl->l", W, self._P) + 2 * C * self._start[1]
        return np.asarray(self._P * (slope / np.where(square > 0, square, 1.0)))

    def aim(self, P: Float64, bits: Indices) -> Float64:
        return np.asarray(self._start[2])

    def along(self, size: Float64, bits: Indices) -> tuple[Float64, Float64, Float64]:
        self.sizes.append(size.copy())
        slack, slope, curvature = self._look(size)
        return slack, slope, curvature

    def advance(self, size: Float64, bits: Indices) -> None:
        pass

    def _look(self, size: Float64) -> Float64:
        sums = slack_along(self._here, self._aimed, size.astype(np.float32), self._labels)
        return np.asarray(sums / self._share)


class CorrectedLine:
    """A step seen by all rows at `sizes`, (m, len(bits)), of which the first are 0; `look` sees more."""

    def __init__(self, sizes: Float64, look: Callable[[Float64], Float64]) -> None:
        self._look, self._sizes, self._seen, self._next = look, sizes, look(sizes), 1

    def aim(self, P: Float64, bits: Indices) -> Float64:
        return np.asarray(self._seen[0, 2])

    def along(self, size: Float64, bits: Indices) -> tuple[Float64, Float64, Float64]:
        if self._next < len(self._sizes):
            at, (slack, slope, curvature) = self._sizes[self._next], self._seen[self._next]
            self._next += 1
            off = size - at
            if (np.abs(off) <= NEAR * np.maximum(size, at)).all():
                return slack + off * (2 * slope + off * curvature), slope + off * curvature, curvature
        slack, slope, curvature = self._look(size[None])[0]
        return slack, slope, curvature

    def advance(self, size: Float64, bits: Indices) -> None:
        pass
