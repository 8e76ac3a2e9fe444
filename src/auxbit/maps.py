"""The maps of the model: scaling of the data, the linear encoder h(x) and the linear decoder f(z).

x --Scaling--> x' --LinearEncoder--> z = h(x') --LinearDecoder--> f(z), back in the units of x'.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.blocks import Workers

Floats = npt.NDArray[np.floating[Any]]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scaling:
    """Zero mean, largest feature range 1: one scale for all features, so distances keep their order.

    mean : (D,) float64; with `normalize`, rows are first divided by their norm.
    """

    mean: Float64
    scale: float
    normalize: bool = False

    @classmethod
    def measure(cls, X: npt.NDArray[Any], workers: Workers, *, normalize: bool = False) -> Scaling:
        """Read the mean and the largest range off the rows of X."""
        low = np.full(X.shape[1], np.inf)
        high = np.full(X.shape[1], -np.inf)
        total = np.zeros(X.shape[1])

        def extent(rows: slice) -> tuple[Float64, Float64, Float64]:
            block = _as_float64(X[rows], normalize)
            return block.min(axis=0), block.max(axis=0), block.sum(axis=0)

        for block_low, block_high, block_total in workers.map(extent, X.shape[0]):
            np.minimum(low, block_low, out=low)
            np.maximum(high, block_high, out=high)
            total += block_total
        largest_range = float((high - low).max())
        return cls(total / X.shape[0], largest_range if largest_range > 0 else 1.0, normalize)

    def apply(self, X: npt.NDArray[Any]) -> Float32:
        """Scale one block of rows; the subtraction is done in float64, so a large mean costs no digits."""
        block = _as_float64(X, self.normalize)
        block -= self.mean
        block /= self.scale
        return block.astype(np.float32)

    def apply_all(self, X: npt.NDArray[Any], workers: Workers) -> Float32:
        """Scale all rows into one contiguous array."""
        out = np.empty(X.shape, dtype=np.float32)

        def fill(rows: slice) -> None:
            out[rows] = self.apply(X[rows])

        workers.run(fill, X.shape[0])
        return out


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


@dataclass(frozen=True)
class LinearDecoder:
    """f(z) = Az + b. A : (D, L) float64, b : (D,) float64."""

    A: Float64
    b: Float64

    def __call__(self, Z: npt.NDArray[np.uint8]) -> Float64:
        """The reconstruction f(Z) of each row of bits, (n, D)."""
        return Z @ self._rows + self.b

    def in_units_of(self, scaling: Scaling) -> LinearDecoder:
        """The same decoder for data before `scaling`."""
        return LinearDecoder(self.A * scaling.scale, self.b * scaling.scale + scaling.mean)

    @cached_property
    def _rows(self) -> Float64:
        return np.ascontiguousarray(self.A.T)


def _as_float64(X: npt.NDArray[Any], normalize: bool) -> Float64:
    block = np.array(X, dtype=np.float64, order="C")
    if normalize:
        norms = np.sqrt(np.einsum("nd,nd->n", block, block))
        block /= np.where(norms > 0, norms, 1.0)[:, None]
    return block
