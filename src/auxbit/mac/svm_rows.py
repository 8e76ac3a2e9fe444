"""Rows in memory that answer the h step: products with X, block by block, and what lies between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.blocks import Workers
from auxbit.compiled import kernel
from auxbit.mac.h_step import Indices, SlackSums
from auxbit.maps import Float32, Float64

Bits = npt.NDArray[np.uint8]


class ArraySvmRows:
    """SvmRows over arrays. X : (n, D) float32; Z : (n, L) uint8 of 0/1, which may change between calls.

    scores : (n, L) float32, those of the W noted last. The bias is a feature of 1 that is nowhere stored.
    """

    def __init__(self, X: Float32, Z: Bits, workers: Workers) -> None:
        self.n_rows = len(X)
        self._X, self._Z, self._workers = X, Z, workers
        self.scores = np.zeros(Z.shape, dtype=np.float32)
        self._aimed = np.empty(Z.shape, dtype=np.float32)
        self._active = np.zeros(Z.shape, dtype=np.bool_)

    def note(self, W: Float64) -> None:
        """Note the scores of W, (D+1, L). One product."""
        weights, bias = _split(W)

        def block(rows: slice) -> None:
            np.dot(self._X[rows], weights, out=self.scores[rows])
            self.scores[rows] += bias

        self._workers.run(block, self.n_rows)

    def magnitudes(self) -> tuple[Float64, Float64]:
        """Σ|t| and Σt² of each bit's scores."""

        def block(rows: slice) -> tuple[Float64, Float64]:
            scores = self.scores[rows].astype(np.float64)
            return np.abs(scores).sum(axis=0), np.square(scores).sum(axis=0)

        total, square = self._workers.sum(block, self.n_rows)
        return total, square

    def scale(self, by: Float64) -> None:
        """Multiply each bit's scores by a number."""
        self.scores *= by.astype(np.float32)

    def count(self, bits: Indices) -> SlackSums:
        def block(rows: slice) -> tuple[Any, ...]:
            scores, Z, active = (self._of(of, rows, bits) for of in (self.scores, self._Z, self._active))
            residual = np.empty(scores.shape, dtype=np.float32)
            sums = slack_of(scores, Z, active, residual)
            self._put_back(self._active, rows, bits, active)
            return sums, self._X[rows].T @ residual

        sums, product = self._workers.sum(block, self.n_rows)
        return slack_sums_of(sums, product)

    def count_labels(self) -> tuple[SlackSums, Float64, Float64]:
        """`count` for all bits, and ZᵀZ (L, L) and XᵀZ (D, L), by one product of twice the width."""
        L = self._Z.shape[1]

        def block(rows: slice) -> tuple[Any, ...]:
            both = np.empty((rows.stop - rows.start, 2 * L), dtype=np.float32)
            residual, labels = both[:, :L], both[:, L:]
            labels[...] = self._Z[rows]
            sums = slack_of(self.scores[rows], self._Z[rows], self._active[rows], residual)
            return sums, self._X[rows].T @ both, labels.T @ labels

        sums, product, ZZ = self._workers.sum(block, self.n_rows)
        return slack_sums_of(sums, product[:, :L]), ZZ, product[:, L:]

    def hessian_product(self, P: Float64, bits: Indices) -> Float64:
        weights, bias = _split(P)

        def block(rows: slice) -> tuple[Float32, Float64]:
            scores = self._X[rows] @ weights
            sums = mask_scores(scores, bias, self._of(self._active, rows, bits))
            return self._X[rows].T @ scores, sums

        product, bias_sum = self._workers.sum(block, self.n_rows)
        return np.vstack([product, bias_sum])

    def aim(self, P: Float64, bits: Indices) -> Float64:
        weights, bias = _split(P)

        def block(rows: slice) -> tuple[Float64]:
            aimed = self._of(self._aimed, rows, bits)
            np.dot(self._X[rows], weights, out=aimed)
            aimed += bias
            self._put_back(self._aimed, rows, bits, aimed)
            return (_active_squares(aimed, self._of(self._active, rows, bits)),)

        return np.asarray(self._workers.sum(block, self.n_rows)[0])

    def along(self, size: Float64, bits: Indices) -> tuple[Float64, Float64, Float64]:
        size32 = size.astype(np.float32)

        def block(rows: slice) -> tuple[Any, ...]:
            scores, aimed, Z = (self._of(of, rows, bits) for of in (self.scores, self._aimed, self._Z))
            return (slack_along(scores, aimed, size32, Z),)

        sums = self._workers.sum(block, self.n_rows)[0]
        return sums[0], sums[1], sums[2]

    def advance(self, size: Float64, bits: Indices) -> None:
        size32 = size.astype(np.float32)

        def block(rows: slice) -> None:
            scores = self._of(self.scores, rows, bits)
            scores += size32 * self._of(self._aimed, rows, bits)
            self._put_back(self.scores, rows, bits, scores)

        self._workers.run(block, self.n_rows)

    def _of(self, array: Any, rows: slice, bits: Indices) -> Any:
        """The columns `bits` of a block: the block itself if they are all, else a copy."""
        return array[rows] if len(bits) == array.shape[1] else np.take(array[rows], bits, axis=1)

    def _put_back(self, array: Any, rows: slice, bits: Indices, values: Any) -> None:
        """Write what `_of` gave, and has been changed since, to where it came from."""
        if len(bits) < array.shape[1]:
            array[rows][:, bits] = values


def _split(P: Float64) -> tuple[Float32, Float32]:
    """Weights and biases, contiguous: a strided matrix is slow to multiply with."""
    return P[:-1].astype(np.float32), P[-1].astype(np.float32)


def slack_sums_of(sums: Float64, product: Float64) -> SlackSums:
    """The sums of `slack_of`, (5, L), and Xᵀ residual, (D, L), put together."""
    slack, bias_sum, active, active_square, square = sums
    return SlackSums(slack, np.vstack([product, bias_sum]), active, active_square, square)


@kernel
def slack_of(scores: Any, Z: Any, active: Any, residual: Any) -> Float64:
    """Set residual to t − y where y t < 1, else 0, and mark those: `active`.

    Sums (5, L): slack², residual, how many are active, t² of the active, t² of all.
    """
    n, L = scores.shape
    sums = np.zeros((5, L))
    for i in range(n):
        for j in range(L):
            t = scores[i, j]
            y = np.float32(1.0) if Z[i, j] else np.float32(-1.0)
            on = y * t < np.float32(1.0)
            d = t - y if on else np.float32(0.0)
            active[i, j] = on
            residual[i, j] = d
            square = np.float64(t) * np.float64(t)
            sums[0, j] += np.float64(d) * np.float64(d)
            sums[1, j] += d
            sums[2, j] += 1.0 if on else 0.0
            sums[3, j] += square if on else 0.0
            sums[4, j] += square
    return sums


@kernel
def mask_scores(scores: Any, bias: Any, active: Any) -> Float64:
    """Add the bias, zero the entries without slack in place, and return column sums."""
    n, L = scores.shape
    sums = np.zeros(L)
    for i in range(n):
        for j in range(L):
            t = scores[i, j] + bias[j] if active[i, j] else np.float32(0.0)
            scores[i, j] = t
            sums[j] += t
    return sums


@kernel
def _active_squares(scores: Any, active: Any) -> Float64:
    n, L = scores.shape
    sums = np.zeros(L)
    for i in range(n):
        for j in range(L):
            t = np.float64(scores[i, j])
            sums[j] += t * t if active[i, j] else 0.0
    return sums


@kernel
def slack_along(scores: Any, aimed: Any, size: Any, Z: Any) -> Float64:
    """Σ slack², and half its first and second derivative by the size. → (3, L)."""
    n, L = scores.shape
    sums = np.zeros((3, L))
    for i in range(n):
        for j in range(L):
            p = aimed[i, j]
            t = scores[i, j] + size[j] * p
            y = np.float32(1.0) if Z[i, j] else np.float32(-1.0)
            on = y * t < np.float32(1.0)
            d = np.float64(t - y) if on else 0.0
            q = np.float64(p) if on else 0.0
            sums[0, j] += d * d
            sums[1, j] += d * q
            sums[2, j] += q * q
    return sums
