"""The maps before the code: scaling of the data and the linear encoder h(x). decoders.py has those after it.

x --Scaling--> x' --LinearEncoder--> z = h(x') --decoder--> f(z), back in the units of x'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.blocks import Workers
from auxbit.checks import LARGEST, acceptable, check_finite, check_numbers
from auxbit.compiled import kernel

Floats = npt.NDArray[np.floating[Any]]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

HARMLESS_MEAN = 8.0  # means of up to so many ranges cost three bits of float32's 24, of which margins know
MARGIN = 2.0**-20  # of the largest sum of terms: 16 roundings of float32


@dataclass(frozen=True)
class Scaling:
    """Zero mean, largest feature range 1: one scale for all features, so distances keep their order.

    mean : (D,) float64; with `normalize`, rows are first divided by their norm.
    """

    mean: Float64
    scale: float
    normalize: bool = False

    @classmethod
    def measure(cls, X: Any, workers: Workers, *, normalize: bool = False) -> Scaling:
        """Read the mean and the largest range off the rows of X; refuse what check_finite refuses.

        X : (n, D), an array, or rows that are read by slices.
        """
        check_numbers(X)
        extent = Extent.of(X, workers, normalize)
        if not extent.is_usable:
            check_finite(X, workers)
        return extent.scaling(normalize)

    def apply(self, X: npt.NDArray[Any]) -> Float32:
        """Scale one block of rows; the subtraction is done in float64, so a large mean costs no digits."""
        out = np.empty(X.shape, dtype=np.float32)
        self.apply_to(X, out)
        return out

    def apply_all(
        self, X: npt.NDArray[Any], workers: Workers, rows: npt.NDArray[np.integer[Any]] | None = None
    ) -> Float32:
        """Scale all rows, or these `rows` in their order, into one contiguous array."""
        out = np.empty((len(X) if rows is None else len(rows), X.shape[1]), dtype=np.float32)

        def fill(some: slice) -> None:
            self.apply_to(X[some] if rows is None else X[rows[some]], out[some])

        workers.run(fill, len(out))
        return out

    def exactly(self, X: npt.NDArray[Any]) -> Float64:
        """Scale a few rows in float64 to the end."""
        scaled: Float64 = (_readable(X, self.normalize) - self.mean) / self.scale
        return scaled

    def apply_to(self, X: npt.NDArray[Any], out: Float32) -> None:
        """Scale one block of rows into `out`."""
        _shift(_readable(X, self.normalize), self.mean, self.scale, out)


@dataclass(frozen=True)
class Extent:
    """Smallest, largest values and sums of the columns of n rows; those of shards can be joined."""

    n: int
    low: npt.NDArray[Any]
    high: npt.NDArray[Any]
    total: Float64

    @classmethod
    def of(cls, X: Any, workers: Workers, normalize: bool = False) -> Extent:
        """X : (n, D), an array, or rows that are read by slices."""

        def extent(rows: slice) -> tuple[npt.NDArray[Any], npt.NDArray[Any], Float64]:
            raw = X[rows]
            block = _readable(raw, normalize)
            low, high, total = block[0].copy(), block[0].copy(), np.zeros(X.shape[1])
            _extent(block, low, high, total)
            if normalize and not acceptable(raw).all():  # a norm that overflows leaves no trace of it
                total[:] = np.nan
            return low, high, total

        low, high, total = np.full(X.shape[1], np.inf), np.full(X.shape[1], -np.inf), np.zeros(X.shape[1])
        for block_low, block_high, block_total in workers.map(extent, X.shape[0]):
            np.minimum(low, block_low, out=low)
            np.maximum(high, block_high, out=high)
            total += block_total
        return cls(X.shape[0], low, high, total)

    def __add__(self, other: Extent) -> Extent:
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return Extent(self.n + other.n, low, high, self.total + other.total)

    @property
    def is_usable(self) -> bool:
        """NaN and infinity are in the total, what is too large is an extreme: no pass of its own for them."""
        within = self.low.min() >= -LARGEST and self.high.max() <= LARGEST
        return bool(np.isfinite(self.total).all() and within)

    def scaling(self, normalize: bool) -> Scaling:
        """Of rows of this extent."""
        largest_range = float((self.high - self.low).max())
        return Scaling(self.total / self.n, largest_range if largest_range > 0 else 1.0, normalize)


@dataclass(frozen=True)
class LinearEncoder:
    """h(x) = σ(Wx), σ(t) = 1 for t ≥ 0 and 0 otherwise. weights : (D, L) float32, bias : (L,) float32."""

    weights: Float32
    bias: Float32

    def scores(self, X: Float32) -> Float32:
        """The L real numbers whose signs are the bits. X : (n, D) scaled → (n, L)."""
        scores = X @ self.weights
        scores += self.bias
        return scores

    def __call__(self, X: Float32) -> npt.NDArray[np.uint8]:
        """The bits of h(X), (n, L) uint8 of 0/1."""
        return (self.scores(X) >= 0).view(np.uint8)

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """What a model file keeps of this encoder."""
        return {"weights": self.weights, "bias": self.bias}

    def before(self, scaling: Scaling) -> RawEncoder:
        """The same encoder for rows before `scaling`; kept, as it costs more than the code of a row."""
        kept: RawEncoder | None = vars(self).get("_before")
        if kept is None or kept.scaling is not scaling:
            kept = vars(self)["_before"] = RawEncoder.of(self, scaling)
        return kept

    def __getstate__(self) -> dict[str, Any]:
        return self.tensors()  # copies and pickles make anew what was derived


@dataclass(frozen=True)
class RawEncoder:
    """A linear encoder of rows before scaling: σ(xW + bias) where it could be `folded`, else of scaled rows.

    weights : (D, L), bias, margin : (L,) float32. A score within its margin of 0 may owe its sign to
    float32's rounding. exact : (L, D) float64 and exact_bias : (L,) float64 decide these, on scaled rows.
    unused : the features without weights, whose NaN need not show in scores: BLAS may leave zeros out.
    """

    scaling: Scaling
    folded: bool
    weights: Float32
    bias: Float32
    margin: Float32
    exact: Float64
    exact_bias: Float64
    unused: npt.NDArray[np.intp]

    @classmethod
    def of(cls, encoder: LinearEncoder, scaling: Scaling) -> RawEncoder:
        """Fold the scaling into the weights, unless float32 would lose too much by that.

        Scores of raw rows are differences of sums as large as the mean: their rounding grows with it,
        and with it the share of scores that have to be computed again. Scales far from 1 overflow.
        """
        W, bias = encoder.weights.astype(np.float64), encoder.bias.astype(np.float64)
        exact, exact_bias = np.ascontiguousarray(W.T), bias
        largest = np.abs(scaling.mean).max(initial=0.0)
        folded = largest <= HARMLESS_MEAN * scaling.scale
        folded = folded and 1e-18 <= scaling.scale <= 1e18 and np.abs(W).max(initial=0.0) <= 1e18
        reach = np.ones(len(W))
        if folded:
            W = W / scaling.scale
            bias = bias - scaling.mean @ W
            reach = np.abs(scaling.mean) + scaling.scale
        margin = MARGIN * (reach @ np.abs(W) + np.abs(exact_bias))
        weights = np.ascontiguousarray(W, dtype=np.float32)
        return cls(
            scaling,
            bool(folded),
            weights,
            bias.astype(np.float32),
            margin.astype(np.float32),
            exact,
            exact_bias,
            np.flatnonzero(~weights.any(axis=1)),
        )

    @property
    def shows_all(self) -> bool:
        """Whether any number that check_finite refuses makes scores NaN or infinite; a norm may hide one."""
        return self.folded or not self.scaling.normalize

    def rows(self, X: npt.NDArray[Any]) -> Float32:
        """The float32 rows that `weights` take. X : (n, D) of any numbers."""
        if not self.folded:
            return self.scaling.apply(X)
        if self.scaling.normalize:
            rows = np.empty(X.shape, dtype=np.float32)
            _normalize(_readable(X, False), np.empty(X.shape[1]), LARGEST, rows)
            return rows
        return X if X.dtype == np.float32 else X.astype(np.float32, order="C")


def decoded_rows(X: npt.NDArray[Any], normalize: bool) -> Float64:
    """Rows as a decoder reconstructs them: float64, divided by their norms where the hasher does so."""
    rows = np.asarray(X, dtype=np.float64)
    return _readable(rows, normalize) if normalize else rows


def _readable(X: npt.NDArray[Any], normalize: bool) -> npt.NDArray[Any]:
    """A block of rows as the kernels take it: its own numbers where they are of a common type."""
    common = X.dtype in (np.float32, np.float64, np.uint8)
    block: npt.NDArray[Any] = np.ascontiguousarray(X, dtype=None if common else np.float64)
    if not normalize:
        return block
    unit = np.empty(X.shape)
    _normalize(block, np.empty(X.shape[1]), np.inf, unit)
    return unit


@kernel
def _extent(X: npt.NDArray[Any], low: npt.NDArray[Any], high: npt.NDArray[Any], total: Float64) -> None:
    """Widen low and high to the rows of X and add these to the total, in float64, row after row."""
    for row in range(X.shape[0]):
        for d in range(X.shape[1]):
            x = X[row, d]
            low[d] = x if x < low[d] else low[d]
            high[d] = x if x > high[d] else high[d]
            total[d] += x


@kernel
def _shift(X: npt.NDArray[Any], mean: Float64, scale: float, out: Float32) -> None:
    """(X - mean) / scale in float64, rounded once: as fast as memory is, so float32 would gain nothing."""
    for row in range(X.shape[0]):
        for d in range(X.shape[1]):
            out[row, d] = (X[row, d] - mean[d]) / scale


@kernel
def dot(x: Float64, y: Float64) -> float:
    """The inner product in one fixed order, as four sums, which a processor adds at a time."""
    a = b = c = d = 0.0
    whole = len(x) - len(x) % 4
    for i in range(0, whole, 4):
        a += x[i] * y[i]
        b += x[i + 1] * y[i + 1]
        c += x[i + 2] * y[i + 2]
        d += x[i + 3] * y[i + 3]
    for i in range(whole, len(x)):
        a += x[i] * y[i]
    return (a + b) + (c + d)


@kernel
def _normalize(X: npt.NDArray[Any], row64: Float64, limit: float, out: npt.NDArray[Any]) -> None:
    """Divide each row by its norm, unless that is 0; beyond the limit to NaN, lest it hide what is wrong."""
    for row in range(X.shape[0]):
        for d in range(X.shape[1]):
            row64[d] = X[row, d]
        norm = np.sqrt(dot(row64, row64))
        if norm == 0:
            norm = 1.0
        elif not norm <= limit:
            norm = np.nan
        for d in range(X.shape[1]):
            out[row, d] = row64[d] / norm
