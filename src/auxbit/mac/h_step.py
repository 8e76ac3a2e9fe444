"""The h step (section 4.2): L linear SVMs, solved as one problem.

Instead of the errors of eq. (6) bit l minimises ½‖w‖² + C Σ max(0, 1 − y wᵀx)² with y = ±1 from its column of
Z and the bias as a feature of 1: what LIBLINEAR's solver 2 minimises. All bits advance together by truncated
Newton: a few steps of preconditioned conjugate gradients, then an exact line search. Rows are touched only by
matrix products with X, for the bits under way alone: a bit that has converged costs nothing more.

Inside the loop one step is enough, for many rows even with no conjugate gradients at all: a product with X
and one with Xᵀ. The preconditioner knows the Hessian well: see `_precondition`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from auxbit.core.checks import Bits, Float32, Float64, Indices
from auxbit.core.parallel import Workers, kernel
from auxbit.mac.loop import DecoderSums

MANY_ROWS = 100  # for each dimension
LINE_STEPS, MOST_LINE_STEPS = 3, 12  # more than three only while no size is better than 0

Solve = Callable[[Float64], Float64]


@dataclass(frozen=True)
class SlackSums:
    """Sums over rows at the scores t that are noted, one column per bit of the call.

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

    def search(
        self, bits: Indices, W: Float64, step: Float64, gradient: Float64, slack: Float64, C: float
    ) -> Float64:
        """`line_search` in these rows, whose scores follow: how far to go along each bit's step."""


class LineRows(Protocol):
    """Rows along a step from one W."""

    def aim(self, P: Float64, bits: Indices) -> Float64:
        """Note the scores of the direction P; Σ of their squares over the rows with slack. One product."""

    def along(self, size: Float64, bits: Indices) -> tuple[Float64, Float64, Float64]:
        """Σ slack², half its slope and half its curvature at the scores + size · those of the direction."""


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
    rows: SvmRows, W: Float64, bits: Indices, sums: SlackSums, gram_solve: Solve, zero_norm: Float64,
    options: SvmOptions,
) -> tuple[Float64, npt.NDArray[np.bool_]]:  # fmt: skip
    """Newton steps on `bits` at once from W, (D+1, L), with `sums` there. → W, and which bits are solved.

    gram_solve : see `gram_solver`; zero_norm : (L,) what each bit's ‖gradient‖ is held against: at W = 0,
    times the share of the rarer class. A bit leaves when it is within tolerance or cannot be moved.
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
        size = rows.search(bits, W[:, bits], step, gradient, sums.slack, options.C)
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
    factor = _cholesky(matrix)
    return lambda B: np.asarray(cho_solve(factor, B, check_finite=False))


def _cholesky(matrix: Float64) -> Any:
    """Of a matrix that may be singular but for rounding, as that of features that are nearly alike is."""
    more = 1e-6 * matrix.diagonal().max()
    while True:
        try:
            return cho_factor(matrix, lower=True, check_finite=False)
        except LinAlgError:
            matrix.flat[:: len(matrix) + 1] += more
            more *= 10


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
    rows: SvmRows, bits: Indices, gradient: Float64, precondition: Callable[[Float64, Indices], Float64],
    options: SvmOptions,
) -> Float64:  # fmt: skip
    """Solve (I + 2C Σ x xᵀ) step = −gradient for every bit, each column with its own scalars.

    With max_cg = 0 the preconditioner's own direction, to which the line search gives its length.
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
    return best


# ---- Rows in memory: products with X, block by block, and the kernels between them


class ArraySvmRows:
    """SvmRows over arrays. X : (n, D) float32; Z : (n, L) uint8 of 0/1, which may change between calls.

    scores : (n, L) float32, those of the W noted last. The bias is a feature of 1 that is nowhere stored.
    together : the bits whose scores one product gave last; of other widths the last digits may be others.
    """

    def __init__(self, X: Float32, Z: Bits, workers: Workers) -> None:
        self.n_rows = len(X)
        self._X, self._Z, self._workers = X, Z, workers
        self.scores, self.together = np.zeros(Z.shape, dtype=np.float32), np.arange(Z.shape[1])
        self._aimed = np.empty(Z.shape, dtype=np.float32)
        self._active = np.zeros(Z.shape, dtype=np.bool_)

    def note(self, W: Float64) -> None:
        """Note the scores of W, (D+1, L). One product."""
        self._renew(W, np.arange(W.shape[1]))

    def magnitudes(self) -> tuple[Float64, Float64]:
        """Σ|t| and Σt² of each bit's scores."""

        def block(rows: slice) -> tuple[Float64, Float64]:
            scores = self.scores[rows].astype(np.float64)
            return np.abs(scores).sum(axis=0), np.square(scores).sum(axis=0)

        total, square = self._workers.sum(block, self.n_rows)
        return total, square

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
        weights, bias = split_weights(P)

        def block(rows: slice) -> tuple[Float32, Float64]:
            scores = self._X[rows] @ weights
            sums = mask_scores(scores, bias, self._of(self._active, rows, bits))
            return self._X[rows].T @ scores, sums

        product, bias_sum = self._workers.sum(block, self.n_rows)
        return np.vstack([product, bias_sum])

    def search(
        self, bits: Indices, W: Float64, step: Float64, gradient: Float64, slack: Float64, C: float
    ) -> Float64:
        size = line_search(self, bits, W, step, gradient, slack, C)
        self._renew(W + size * step, bits)
        return size

    def aim(self, P: Float64, bits: Indices) -> Float64:
        weights, bias = split_weights(P)

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

    def _renew(self, W: Float64, bits: Indices) -> None:
        """Note the scores of W, (D+1, len(bits)), by a product: steps added up would add up rounding."""
        weights, bias = split_weights(W)
        self.together = bits

        def block(rows: slice) -> None:
            scores = self._of(self.scores, rows, bits)
            np.dot(self._X[rows], weights, out=scores)
            scores += bias
            self._put_back(self.scores, rows, bits, scores)

        self._workers.run(block, self.n_rows)

    def _of(self, array: Any, rows: slice, bits: Indices) -> Any:
        """The columns `bits` of a block: the block itself if they are all, else a copy."""
        return array[rows] if len(bits) == array.shape[1] else np.take(array[rows], bits, axis=1)

    def _put_back(self, array: Any, rows: slice, bits: Indices, values: Any) -> None:
        """Write what `_of` gave, and has been changed since, to where it came from."""
        if len(bits) < array.shape[1]:
            array[rows][:, bits] = values


def split_weights(P: Float64) -> tuple[Float32, Float32]:
    """Weights and biases, row by row: other orders are slower to multiply with, and round differently."""
    return P[:-1].astype(np.float32, order="C"), P[-1].astype(np.float32)


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


# ---- The line search out of core: on a sample first, then once on all rows
#
# line_search evaluates the objective at a few sizes of the step, each derived from the values before. On a
# sample those sizes come out nearly the same. So all rows are evaluated at all of the sample's sizes in one
# pass, and the search is repeated with these values: at sizes that differ a little, by the parabola through
# them.

NEAR = 0.25  # of a size: farther away than this from one that was evaluated, the parabola is not trusted


class SampledLine:
    """A step seen on a sample, whose sums stand for those of all rows; notes the sizes that are evaluated.

    X : (s, D), W, P : (D+1, len(bits)), labels : (s, len(bits)) of 0/1; share : s over all rows.
    """

    def __init__(
        self, X: Float32, W: Float64, P: Float64, labels: npt.NDArray[np.uint8], share: float
    ) -> None:
        self._here, self._aimed = (X @ w + b for w, b in map(split_weights, (W, P)))
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

    def _look(self, size: Float64) -> Float64:
        sums = slack_along(self._here, self._aimed, size.astype(np.float32), self._labels)
        return np.asarray(sums / self._share)


class CorrectedLine:
    """A step seen by all rows at `sizes`, (m, len(bits)), of which the first are 0; `look` sees others."""

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
