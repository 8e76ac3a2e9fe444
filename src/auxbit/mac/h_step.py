"""The h step (section 4.2): L linear SVMs, solved as one problem.

Bit l minimises ½‖w‖² + C Σ max(0, 1 − y wᵀx)² with y = ±1 from its column of Z and the bias as a
feature of 1: what LIBLINEAR's solver 2 minimises. All bits advance together by truncated Newton: a few
steps of preconditioned conjugate gradients, then an exact line search. Rows are touched only by matrix
products with X (svm_rows.py), for the bits under way alone: a bit that has converged costs nothing more.

Inside the loop one step is enough, for many rows even with no conjugate gradients at all: a product with X
and one with Xᵀ. The preconditioner knows the Hessian well: see `_precondition`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from auxbit.mac.f_step import DecoderSums
from auxbit.maps import Float64

MANY_ROWS = 100  # for each dimension
LINE_STEPS, MOST_LINE_STEPS = 3, 12  # more than three only while no size is better than 0

Indices = npt.NDArray[np.intp]
Solve = Callable[[Float64], Float64]
Search = Callable[[Indices, Float64, Float64, Float64, Float64, float], Float64]


@dataclass(frozen=True)
class SlackSums:
    """Sums over rows at the scores t that are noted, a column for each bit asked about.

    slack : Σ max(0, 1 − yt)²; half_gradient : (D+1, L) half its gradient; active : rows with slack;
    active_square, square : Σ t² over those rows, over all.
    """

    slack: Float64
    half_gradient: Float64
    active: Float64
    active_square: Float64
    square: Float64

    def __getitem__(self, columns: npt.NDArray[np.bool_] | Indices) -> SlackSums:
        return SlackSums(
            self.slack[columns], self.half_gradient[:, columns], self.active[columns],
            self.active_square[columns], self.square[columns],
        )  # fmt: skip


class SvmRows(Protocol):
    """Rows with ±1 labels that note the scores of one W. `bits` : the columns that a call is about."""

    @property
    def n_rows(self) -> int:
        """How many."""

    def count(self, bits: Indices) -> SlackSums:
        """The sums at the scores noted; notes which rows have slack. One product."""

    def hessian_product(self, P: Float64, bits: Indices) -> Float64:
        """Σ over the rows with slack of x xᵀ P, (D+1, len(bits)). Two products."""


class LineRows(Protocol):
    """Rows along a step from one W."""

    def aim(self, P: Float64, bits: Indices) -> Float64:
        """Note the scores of the direction P; Σ of their squares over the rows with slack. One product."""

    def along(self, size: Float64, bits: Indices) -> tuple[Float64, Float64, Float64]:
        """Σ slack², half its slope and half its curvature at the scores + size · those of the direction."""

    def advance(self, size: Float64, bits: Indices) -> None:
        """Add size · the scores of the direction to the scores."""


@dataclass(frozen=True)
class SvmOptions:
    """C and `tol` as in the authors' code; `tol` is relative to the gradient at W = 0, as in LIBLINEAR.

    `forcing` is how far an inner solve by conjugate gradients goes, in `max_cg` steps at most. With `ridge`
    least squares take the place of SVMs: no pass over the rows is needed for them.
    """

    C: float = 100.0
    tol: float = 1e-3
    max_newton: int = 100
    max_cg: int = 50
    forcing: float = 0.3
    ridge: bool = False

    def for_first_step(self) -> SvmOptions:
        """The start's codes: a looser tolerance gives the same precision for a third of the products."""
        return replace(self, tol=max(self.tol, 1e-2))

    def for_next_steps(self, n_rows: int, n_features: int) -> SvmOptions:
        """Inside the loop one step is enough: the codes change again anyway.

        It takes no conjugate gradients where rows are many to a dimension. Where they are few, those with
        slack are too few to spread like all rows, which the preconditioner relies on: then a few help.
        """
        max_cg = 0 if n_rows >= MANY_ROWS * n_features else 4
        return replace(self, max_newton=1, max_cg=min(self.max_cg, max_cg), forcing=0.1)

    def zero_norm(self, sums: DecoderSums) -> Float64:
        """‖gradient‖ at W = 0 times the share of the rarer class: what LIBLINEAR's tolerance refers to."""
        Xy, y = 2 * sums.ZX.T - sums.x[:, None], 2 * sums.z - sums.n
        norm = 2 * self.C * np.sqrt(np.einsum("dl,dl->l", Xy, Xy) + y * y)
        return np.asarray(norm * np.maximum(np.minimum(sums.z, sums.n - sums.z), 1) / sums.n)


def solve_svms(
    rows: SvmRows,
    W: Float64,
    bits: Indices,
    sums: SlackSums,
    gram_solve: Solve,
    zero_norm: Float64,
    options: SvmOptions,
    search: Search,
) -> tuple[Float64, npt.NDArray[np.bool_]]:
    """Newton steps on `bits` at once from W, (D+1, L), where `sums` are theirs; W and the bits solved.

    gram_solve : see `gram_solver`; zero_norm : (L,) what each bit's ‖gradient‖ is held against: at W = 0,
    times the share of the rarer class; search : `line_search` in these rows. A bit leaves when it is within
    tolerance or cannot be moved.
    """
    W, solved = W.copy(), np.zeros(W.shape[1], dtype=bool)
    for newton in range(options.max_newton):
        if newton:
            sums = rows.count(bits)
        gradient = W[:, bits] + 2 * options.C * sums.half_gradient
        going = np.linalg.norm(gradient, axis=0) > options.tol * zero_norm[bits]
        solved[bits[~going]] = True
        bits, sums, gradient = bits[going], sums[going], gradient[:, going]
        if not len(bits):
            break
        precondition = _precondition(W[:, bits], sums, gram_solve, rows.n_rows, options.C)
        step = _conjugate_gradients(rows, bits, gradient, precondition, options)
        size = search(bits, W[:, bits], step, gradient, sums.slack, options.C)
        W[:, bits] += size * step
        bits = bits[size > 0]  # the others: float32 has no digits left for them
        if not len(bits):
            break
    return W, solved


def gram_solver(gram: Float64, C: float) -> Solve:
    """B → (I + C XᵀX)⁻¹B. gram : (D+1, D+1) XᵀX with the feature of 1. One factorisation serves a fit."""
    matrix = C * gram
    # products of float32 blocks are right to some 1e-7 of the largest; less would leave it singular at times
    matrix.flat[:: len(matrix) + 1] += 1.0 + 1e-6 * matrix.diagonal().max()
    factor = cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)
    return lambda B: np.asarray(cho_solve(factor, B, check_finite=False))


def ridge_weights(gram: Float64, sums: DecoderSums, C: float) -> Float64:
    """Least squares instead of SVMs: min ½‖w‖² + C Σ(wᵀx − y)² for every bit, (D+1, L), from sums alone."""
    Xy = np.vstack([2 * sums.ZX.T - sums.x[:, None], 2 * sums.z - sums.n])
    return gram_solver(2 * gram, C)(2 * C * Xy)


def _precondition(
    W: Float64, sums: SlackSums, gram_solve: Solve, n_rows: int, C: float
) -> Callable[[Float64, Indices], Float64]:
    """An approximate inverse of each bit's Hessian I + 2C Σ x xᵀ, whose sum is over its rows with slack.

    Those rows lie near the bit's hyperplane. Across w they spread like all rows, so XᵀX has the right
    shape; along w they spread κ times as much, κ = mean t² over them ÷ mean t² over all. So the inverse is
    that of XᵀX, corrected by rank one: (1/κ − 1) w wᵀ ÷ wᵀ(I + C XᵀX)w. Scale does not matter to a step.
    """
    spread = sums.active_square * n_rows / np.maximum(sums.active * sums.square, 1e-300)
    kappa = np.clip(spread, 1e-3, 1e3)
    length = np.einsum("dl,dl->l", W, W) + C * sums.square
    along = np.where(length > 0, (1 / kappa - 1) / np.where(length > 0, length, 1.0), 0.0)

    def apply(B: Float64, columns: Indices) -> Float64:
        w = W[:, columns]
        return np.asarray(gram_solve(B) + w * (along[columns] * np.einsum("dl,dl->l", w, B)))

    return apply


def _conjugate_gradients(
    rows: SvmRows,
    bits: Indices,
    gradient: Float64,
    precondition: Callable[[Float64, Indices], Float64],
    options: SvmOptions,
) -> Float64:
    """Solve (I + 2C Σ x xᵀ) step = −gradient for every bit, each column with its own scalars.

    With max_cg = 0 the preconditioner's own answer, which the line search gives its length.
    """
    going = np.arange(len(bits))
    residual = -gradient
    direction = precondition(residual, going)
    if options.max_cg == 0:
        return direction
    step = np.zeros_like(gradient)
    rho = np.einsum("dl,dl->l", residual, direction)
    target = options.forcing**2 * rho
    for _ in range(options.max_cg):
        product = direction + 2 * options.C * rows.hessian_product(direction, bits[going])
        alpha = rho / np.einsum("dl,dl->l", direction, product)
        step[:, going] += alpha * direction
        residual -= alpha * product
        solved = precondition(residual, going)
        new_rho = np.einsum("dl,dl->l", residual, solved)
        direction = solved + new_rho / rho * direction
        on = new_rho > target[going]
        going, residual, direction, rho = going[on], residual[:, on], direction[:, on], new_rho[on]
        if not len(going):
            break
    return step


def line_search(
    rows: LineRows, bits: Indices, W: Float64, step: Float64, gradient: Float64, slack: Float64, C: float
) -> Float64:
    """How far to go along each bit's step: Newton's method on a convex function of one number.

    The scores of a step are one product; the objective anywhere along it then needs no further one. The
    best size seen is taken, and 0 where none is better than staying.
    """
    ww, wp, pp = (np.einsum("dl,dl->l", a, b) for a, b in ((W, W), (W, step), (step, step)))
    curvature = pp + 2 * C * rows.aim(step, bits)
    slope = np.einsum("dl,dl->l", gradient, step)
    best, least = np.zeros(len(bits)), 0.5 * ww + C * slack
    size, low, high = best.copy(), best.copy(), np.full(len(bits), np.inf)
    for tries in range(MOST_LINE_STEPS):
        if tries >= LINE_STEPS and (best > 0).all():
            break
        newton = size - slope / np.where(curvature > 0, curvature, 1.0)
        inside = (newton > low) & (newton < high)
        size = np.where(inside, newton, np.where(np.isinf(high), 2 * size + 1, 0.5 * (low + high)))
        slack, half_slope, half_curvature = rows.along(size, bits)
        value = 0.5 * ww + size * (wp + 0.5 * size * pp) + C * slack
        slope, curvature = wp + size * pp + 2 * C * half_slope, pp + 2 * C * half_curvature
        better = value < least
        best[better], least[better] = size[better], value[better]
        low, high = np.where(slope < 0, size, low), np.where(slope < 0, high, size)
    rows.advance(best, bits)
    return best
