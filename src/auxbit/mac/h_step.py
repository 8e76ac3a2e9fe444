"""The h step (section 4.2): L linear SVMs, solved as one problem.

Bit l minimises ½‖w‖² + C Σ max(0, 1 − y wᵀx)² with y = ±1 from its column of Z and the bias as a
feature of 1: what LIBLINEAR's solver 2 minimises. All bits advance together by truncated Newton, with
conjugate gradients preconditioned by the Gram matrix of all rows. The rows are touched only by two
matrix products a step, X P and Xᵀ(…), both sums over rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from auxbit.blocks import Workers
from auxbit.compiled import kernel
from auxbit.maps import Float32, Float64

MAX_BACKTRACKS = 8


class SvmRows(Protocol):
    """Rows with ±1 labels, for the bits under way."""

    def evaluate(self, W: Float64) -> tuple[Float64, Float64]:
        """Σ slack² (L,) and its half gradient (D+1, L) at W; remembers which rows are active."""

    def hessian_product(self, P: Float64) -> Float64:
        """Σ over active rows of x xᵀ P, (D+1, L)."""

    def active_fraction(self) -> float:
        """The share of (row, bit) pairs with positive slack at the last W."""


@dataclass(frozen=True)
class SvmOptions:
    """C and `tol` as in the authors' code; `tol` is relative to the gradient at W = 0, as in LIBLINEAR.

    `forcing` is how far an inner solve by conjugate gradients goes, in `max_cg` steps at most.
    """

    C: float = 100.0
    tol: float = 1e-3
    max_newton: int = 100
    max_cg: int = 50
    forcing: float = 0.3

    def for_first_step(self) -> SvmOptions:
        """The start's codes: a looser tolerance gives the same precision for a third of the products."""
        return replace(self, tol=max(self.tol, 1e-2))

    def for_next_steps(self) -> SvmOptions:
        """Inside the loop a few steps are enough: the codes change again anyway."""
        return replace(self, max_newton=min(self.max_newton, 2), max_cg=min(self.max_cg, 8), forcing=0.1)


@dataclass(frozen=True)
class SvmSolution:
    """W : (D+1, L) with the biases in the last row; residual : (L,) ‖gradient‖, in units of `tol`."""

    W: Float64
    residual: Float64


def solve_svms(
    rows: SvmRows, W: Float64, gram: Float64, zero_norm: Float64, options: SvmOptions
) -> SvmSolution:
    """Newton steps on all bits at once, from the warm start W.

    gram : (D+1, D+1) XᵀX with the feature of 1; zero_norm : (L,) what each bit's ‖gradient‖ is held
    against: at W = 0, times the share of the rarer class.
    """
    C, W = options.C, W.copy()
    loss, gradient = _objective(rows, W, C)
    stuck = np.zeros(W.shape[1], dtype=bool)
    for _ in range(options.max_newton):
        residual = np.linalg.norm(gradient, axis=0)
        active = (residual > options.tol * zero_norm) & ~stuck
        if not active.any():
            break
        solve = _gram_preconditioner(gram, C, rows.active_fraction())
        step = _conjugate_gradients(rows, gradient * active, C, solve, options)
        slope = np.einsum("dl,dl->l", gradient, step)
        size = np.ones(W.shape[1])
        for _ in range(MAX_BACKTRACKS):
            new_loss, new_gradient = _objective(rows, W + size * step, C)
            worse = new_loss > loss + 1e-4 * size * slope + 1e-9 * np.abs(loss)
            if not worse.any():
                break
            size[worse] *= 0.5
        failed = worse | (new_loss > loss)  # float32 has no digits left for this bit
        stuck |= failed
        if failed.any():
            size[failed] = 0.0
            new_loss, new_gradient = _objective(rows, W + size * step, C)
        W = W + size * step
        loss, gradient = new_loss, new_gradient
    return SvmSolution(W, np.linalg.norm(gradient, axis=0) / zero_norm)


def _objective(rows: SvmRows, W: Float64, C: float) -> tuple[Float64, Float64]:
    slack, half_gradient = rows.evaluate(W)
    return 0.5 * np.einsum("dl,dl->l", W, W) + C * slack, W + 2 * C * half_gradient


def _gram_preconditioner(gram: Float64, C: float, fraction: float) -> Callable[[Float64], Float64]:
    matrix = (2 * C * max(fraction, 1e-6)) * gram
    matrix.flat[:: len(matrix) + 1] += 1.0
    factor = cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)
    return lambda B: cho_solve(factor, B, check_finite=False)


def _conjugate_gradients(
    rows: SvmRows,
    gradient: Float64,
    C: float,
    precondition: Callable[[Float64], Float64],
    options: SvmOptions,
) -> Float64:
    """Solve (I + 2C Σ x xᵀ) step = −gradient for every bit, each column with its own scalars."""
    step = np.zeros_like(gradient)
    residual = -gradient
    solved = precondition(residual)
    direction = solved.copy()
    rho = np.einsum("dl,dl->l", residual, solved)
    target = options.forcing**2 * rho
    for _ in range(options.max_cg):
        going = rho > target
        if not going.any():
            break
        product = direction + 2 * C * rows.hessian_product(direction)
        curvature = np.einsum("dl,dl->l", direction, product)
        alpha = np.where(going & (curvature > 0), rho / np.where(curvature > 0, curvature, 1.0), 0.0)
        step += alpha * direction
        residual -= alpha * product
        solved = precondition(residual)
        new_rho = np.einsum("dl,dl->l", residual, solved)
        direction = solved + np.where(rho > 0, new_rho / np.where(rho > 0, rho, 1.0), 0.0) * direction
        rho = np.where(going, new_rho, rho)
    return step


class ArraySvmRows:
    """SvmRows over arrays in memory. X : (n, D) float32, Z : (n, L) uint8 of 0/1."""

    def __init__(self, X: Float32, Z: npt.NDArray[np.uint8], workers: Workers) -> None:
        self._X, self._Z, self._workers = X, Z, workers
        self._active = np.empty(Z.shape, dtype=np.uint8)
        self._fraction = 1.0

    def evaluate(self, W: Float64) -> tuple[Float64, Float64]:
        weights, bias = W[:-1].astype(np.float32), W[-1].astype(np.float32)

        def block(rows: slice) -> tuple[Float64, Float32, Float64, float]:
            X, active = self._X[rows], self._active[rows]
            scores = X @ weights
            loss, bias_sum = _slack(
                scores, bias, self._Z[rows], active
            )  # scores become y(yt − 1) where active
            return loss, X.T @ scores, bias_sum, float(active.sum(dtype=np.int64))

        loss, gradient, bias_sum, n_active = self._workers.sum(block, len(self._X))
        self._fraction = float(n_active) / self._Z.size
        return loss, np.vstack([gradient, bias_sum])

    def hessian_product(self, P: Float64) -> Float64:
        weights, bias = P[:-1].astype(np.float32), P[-1].astype(np.float32)

        def block(rows: slice) -> tuple[Float32, Float64]:
            X = self._X[rows]
            scores = X @ weights
            bias_sum = _mask(scores, bias, self._active[rows])
            return X.T @ scores, bias_sum

        product, bias_sum = self._workers.sum(block, len(self._X))
        return np.vstack([product, bias_sum])

    def active_fraction(self) -> float:
        return self._fraction


@kernel
def _slack(scores: Any, bias: Any, Z: Any, active: Any) -> tuple[Float64, Float64]:
    """Turn scores t into t − y where y t < 1, else 0; mark those; return Σ slack² and column sums."""
    n, L = scores.shape
    loss, sums = np.zeros(L), np.zeros(L)
    for i in range(n):
        for j in range(L):
            y = np.float32(1.0) if Z[i, j] else np.float32(-1.0)
            t = scores[i, j] + bias[j]
            on = y * t < np.float32(1.0)
            d = t - y if on else np.float32(0.0)
            active[i, j] = on
            scores[i, j] = d
            loss[j] += np.float64(d) * np.float64(d)
            sums[j] += d
    return loss, sums


@kernel
def _mask(scores: Any, bias: Any, active: Any) -> Float64:
    """Add the bias, zero the inactive entries in place, and return column sums."""
    n, L = scores.shape
    sums = np.zeros(L)
    for i in range(n):
        for j in range(L):
            t = scores[i, j] + bias[j] if active[i, j] else np.float32(0.0)
            scores[i, j] = t
            sums[j] += t
    return sums
