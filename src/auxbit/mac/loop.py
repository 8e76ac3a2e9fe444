"""The MAC algorithm: figure 1 as a generator, when it stops (section 4.4), and the objective (eq. 2, 3, 5).

`alternate` is figure 1. `follow` walks along it: it keeps the best hash function by its precision on
validation queries, and ends the path. Records have the energies of `energies`; `f_step` (section 4.1)
minimises them over f.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np

from auxbit.core.checks import Bits, Float32, Float64, Indices, Packed, check_finite
from auxbit.core.decoders import Plain
from auxbit.core.maps import LinearDecoder, LinearEncoder, Scaling, lifted_queries, unpack
from auxbit.core.parallel import Workers, block_slices, draw_rows
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.evaluate import Ranking, precision_recall_at_k


@dataclass(frozen=True)
class ZReport:
    """What a Z step did. Energies are totals over all rows; `changed` and `mismatched` count bits."""

    E_Q: float
    E_BA: float
    changed: int
    mismatched: int
    pruned: int
    certified: int
    unproven: int
    codes_evaluated: int
    dimensions_evaluated: int


class Data(Protocol):
    """Rows X and their codes Z, wherever they live, with the three steps on them."""

    def h_step(self, h: LinearEncoder | None) -> LinearEncoder:
        """The L classifiers for the current codes, starting from h if there is one."""

    def f_step(self) -> Plain:
        """The decoder for the current codes."""

    def z_step(self, h: LinearEncoder, f: Plain, mu: float) -> ZReport:
        """New codes."""

    def keep(self) -> Any:
        """The present state, to go back to."""

    def go_back(self, kept: Any) -> LinearEncoder:
        """Be where `keep` was called; the h of that moment."""

    def forget(self, kept: Any) -> None:
        """What was kept is not needed any more."""


@dataclass(frozen=True)
class Step:
    """Where the path is after one iteration. ends_mu : the next iteration has another μ, or there is none."""

    mu: float
    h: LinearEncoder
    f: Plain
    report: ZReport
    seconds: tuple[float, ...]
    ends_mu: bool = True


def alternate(
    data: Data, schedule: Sequence[float], *, h: LinearEncoder | None = None, fitted: bool = False,
    helps: Callable[[LinearEncoder], bool] | None = None,
) -> Iterator[Step]:  # fmt: skip
    """Figure 1. Input: X and a first Z, both in `data`; a schedule μ₁ < μ₂ < …

    for μ in the schedule
        for l = 1, …, L:  h_l ← an SVM that separates the bits z_l of the rows        h step, section 4.2
        f ← the least-squares fit of X by Z                                           f step, section 4.1
        for n = 1, …, N:  z_n ← argmin ‖x_n − f(z)‖² + μ‖z − h(x_n)‖²                 Z step, section 4.3
        if Z = h(X) then stop                                                         theorem 4.1

    h : where the h step starts; `fitted`, if it is for these codes already, so that the first one is skipped.
    helps : whether an h is better than all before it. If not, what the μ before it did to the codes is
        undone: the path continues from the last h that did help (section 6, "skip μ values").
    """
    kept = None
    for mu, next_mu in zip_longest(schedule, schedule[1:]):
        lap = Laps()
        tried = h = h if fitted and h is not None else data.h_step(h)
        fitted = False
        if helps is not None and (kept is None or helps(h)):
            if kept is not None:
                data.forget(kept)
            kept = data.keep()
        elif helps is not None:
            h = data.go_back(kept)
        lap()
        f = data.f_step()
        lap()
        report = data.z_step(h, f, mu)
        lap()
        yield Step(mu, tried, f, report, tuple(lap.seconds), mu != next_mu)
        if report.mismatched == 0:
            return


@dataclass
class Laps:
    """Called after each step, it notes the seconds since the call before."""

    last: float = field(default_factory=time.perf_counter)
    seconds: list[float] = field(default_factory=list)

    def __call__(self) -> None:
        now = time.perf_counter()
        self.seconds.append(now - self.last)
        self.last = now


@dataclass(frozen=True)
class Record:
    """One iteration of MAC: an entry of `history_`. `changed` and `mismatched` count bits."""

    iteration: int
    mu: float
    E_Q: float
    E_BA: float
    changed: int
    mismatched: int
    precision: float | None
    kept: bool
    seconds_h: float
    seconds_f: float
    seconds_z: float
    pruned: int
    certified: int
    unproven: int
    codes_evaluated: int
    dimensions_evaluated: int

    @classmethod
    def of(cls, iteration: int, step: Step, precision: float | None, kept: bool, unit: float) -> Record:
        """The record of a step; energies are multiplied by `unit`, which gives them the units of the rows."""
        report = step.report
        seconds_h, seconds_f, seconds_z = step.seconds
        return cls(
            iteration, step.mu, report.E_Q * unit, report.E_BA * unit, report.changed, report.mismatched,
            precision, kept, seconds_h, seconds_f, seconds_z, report.pruned, report.certified,
            report.unproven, report.codes_evaluated, report.dimensions_evaluated,
        )  # fmt: skip


# ---- Early stopping (section 4.4)
#
# Validation queries are rows that are not trained on. A hash function is as good as its precision on them:
# the share of their true neighbours among the nearest codes.

AUTO_SHARE, AUTO_MOST, AUTO_LEAST = 10, 1000, 10
ROUNDING = 1e-9  # of energies that are equal but for the order of sums


def hold_out(validation: Any, n_rows: int, rng: np.random.RandomState) -> Indices | None:
    """Which rows are not trained on, rising: queries for validation="auto", otherwise none."""
    if not isinstance(validation, str):
        return None
    if validation != "auto":
        raise InvalidParameter("validation", validation, "'auto', None, or an array of query rows")
    return choose_queries(n_rows, rng)


def choose_queries(n_rows: int, rng: np.random.RandomState) -> Indices | None:
    """A tenth of the rows, at most 1,000, as queries; None if that would be fewer than 10."""
    n = min(n_rows // AUTO_SHARE, AUTO_MOST)
    return draw_rows(n_rows, n, rng) if n >= AUTO_LEAST else None


def given_queries(validation: Any, D: int, scaling: Scaling, workers: Workers) -> Float32:
    """Query rows that the user gave, checked and scaled, (q, D)."""
    rows = np.asarray(validation)
    if rows.ndim != 2 or rows.shape[1] != D or not len(rows) or rows.dtype.kind not in "buif":
        raise InvalidInput(
            f"validation must be 'auto', None, or query rows (q, {D}) of numbers, "
            f"got shape {rows.shape} of {rows.dtype}."
        )
    check_finite(rows, workers, "validation")
    return scaling.apply(lifted_queries(rows, scaling.lift) if scaling.lift else rows)


def neighbours_to_find(n_rows: int) -> int:
    """K = k: 1 % of the rows, between 10 and 100."""
    return min(int(np.clip(n_rows // 100, 10, 100)), n_rows)


def precision_of(ranking: Ranking) -> float:
    """Precision of the k nearest codes against the K = k true neighbours, ties averaged."""
    return precision_recall_at_k(ranking, ranking.ranks.shape[1], ties="average").precision


@dataclass
class Walk:
    """How far along the path: records, the h kept, how good it is, values of μ since that did not help."""

    history: list[Record] = field(default_factory=list)
    best: LinearEncoder | None = None
    best_precision: float = -1.0
    least_error: float = math.inf
    improved: bool = False
    misses: int = 0

    def take(self, step: Step, precision: float | None, unit: float, *, last: bool = False) -> Record:
        """Note a step; its h is kept if it is the most precise so far, or, without precision, by E_BA.

        last : keep it in any case.
        """
        error = step.report.E_BA
        if precision is not None:
            kept = precision > self.best_precision
        else:
            kept = last or error <= self.least_error + ROUNDING * abs(error)
        if kept:
            self.best, self.least_error = step.h, error
            self.best_precision = self.best_precision if precision is None else precision
        self.improved = self.improved or kept or precision is None  # patience is for precision alone
        record = Record.of(len(self.history) + 1, step, precision, kept, unit)
        self.history.append(record)
        if step.ends_mu and step.report.mismatched:
            self.misses, self.improved = 0 if self.improved else self.misses + 1, False
        return record

    def has_settled(self, tol: float) -> bool:
        """Whether E_Q fell by no more than this share of itself in the last step."""
        if len(self.history) < 2:
            return False
        before, now = self.history[-2].E_Q, self.history[-1].E_Q
        return before - now <= tol * abs(now)


@dataclass(frozen=True)
class Outcome:
    """The hash function kept and how it was reached; `stopped`: matched, patience, settled or schedule."""

    h: LinearEncoder
    history: list[Record]
    stopped: str


def follow(
    steps: Iterable[Step], *, precision: Callable[[LinearEncoder], float] | None = None, patience: int = 3,
    settled: float | None = None, callback: Callable[[Record], object] | None = None,
    energy_unit: float = 1.0, walk: Walk | None = None, on_step: Callable[[Walk], object] | None = None,
) -> Outcome:  # fmt: skip
    """Walk along the path and keep the most precise h, or, without `precision`, the one with the least E_BA.

    A μ that does not raise the precision above the best so far is skipped: its h is not kept. After
    `patience` such values of μ in a row the walk ends. With `settled` the h of the last step is kept, and the
    walk ends after a step by which E_Q falls by less than this share. Energies are recorded times
    `energy_unit`.
    walk : where to resume; on_step : called after each step that is not the last.
    """
    walk = walk or Walk()
    stopped = "schedule" if walk.misses < patience else "patience"
    for step in steps if walk.misses < patience else ():
        found = precision(step.h) if precision is not None else None
        record = walk.take(step, found, energy_unit, last=settled is not None)
        if step.report.mismatched == 0:
            stopped = "matched"
        elif walk.misses >= patience:
            stopped = "patience"
        elif settled is not None and walk.has_settled(settled):
            stopped = "settled"
        if callback is not None:
            callback(record)
        if stopped != "schedule":
            break
        if on_step is not None:
            on_step(walk)
    if walk.best is None:
        raise ValueError("the schedule has no value of mu")
    return Outcome(walk.best, walk.history, stopped)


# ---- The objective functions of the paper, from sums over rows
#
# E_BA(h, f)   = Σ ‖x − f(h(x))‖²                       the binary autoencoder, eq. (2)
# E_BFA(Z, f)  = Σ ‖x − f(z)‖²                          binary factor analysis, eq. (3): the codes are free
# E_Q(Z, h, f) = Σ ‖x − f(z)‖² + μ‖z − h(x)‖²           the quadratic penalty that MAC descends on, eq. (5)
#
# Records of a fit have E_Q and E_BA. The Z step sums them up on its way, in the coordinates of theorem
# 4.2, y = Qᵀ(x − b): what it leaves out, Σ ‖x − b‖² − ‖y‖², depends on no code, so it is added here. Both
# sums are of float32 products, so that their difference is wrong by up to 1e-6 of Σ ‖x − b‖². Energies that
# are small beside it, as with a row a million times as long as the others, are summed again from residuals.
#
# The f step (section 4.1) minimises all three over f(z) = Az + b by least squares. The rows are touched
# only through ZᵀZ, Zᵀ1, ZᵀX and Xᵀ1, so it does not matter where they are.


@dataclass(frozen=True)
class Moments:
    """Of n rows. gram : (D+1, D+1) XᵀX with a feature of 1; total : (D,) Σx; squared_norm : Σ‖x‖²."""

    gram: Float64
    total: Float64
    squared_norm: float

    @classmethod
    def of(cls, XX: Float64, total: Float64, n: int) -> Moments:
        """From XᵀX, (D, D), and Σx."""
        D = len(total)
        gram = np.empty((D + 1, D + 1))
        gram[:D, :D], gram[:D, D], gram[D, :D], gram[D, D] = XX, total, total, n
        return cls.of_gram(gram)

    @classmethod
    def of_gram(cls, gram: Float64) -> Moments:
        """From XᵀX with the feature of 1."""
        return cls(gram, gram[-1, :-1].copy(), float(np.trace(gram[:-1, :-1])))

    @property
    def n(self) -> int:
        """How many rows."""
        return int(self.gram[-1, -1])


SMALL = 1e-2  # of Σ ‖x − b‖²: energies below it may have fewer than four digits
RESIDUAL_ROWS = 256  # at once, in float64


def energies(sums: Sequence[Any], f: LinearDecoder, rows: Moments) -> tuple[float, float] | None:
    """E_Q and E_BA; None if rounding may have left them too few digits: see `Residuals`.

    sums : of the Z step, e(z), e(h(x)) without its penalty of 0, and ‖y‖².
    """
    energy, hash_energy, projected = (float(each) for each in sums[:3])
    spread = rows.squared_norm - 2 * float(f.b @ rows.total) + rows.n * float(f.b @ f.b)
    rest = spread - projected
    if min(energy, hash_energy) + rest < SMALL * spread:
        return None
    return energy + rest, hash_energy + rest


@dataclass(frozen=True)
class Residuals:
    """Eq. (5) and (2) as they are written, for a block of rows, in float64: a pass more, but all digits."""

    h: LinearEncoder
    f: LinearDecoder
    mu: float

    def __call__(self, X: Float32, codes: Packed) -> tuple[float, float]:
        """E_Q and E_BA. X : (n, D or more); codes : (n, M)."""
        Z, H = unpack(codes, self.f.n_bits), self.h(X)
        return self._error(X, Z) + self.mu * np.count_nonzero(Z != H), self._error(X, H)

    def _error(self, X: Float32, Z: Bits) -> float:
        """Σ ‖x − f(z)‖²."""
        total = 0.0
        for some in block_slices(len(X), RESIDUAL_ROWS):
            left = X[some, : len(self.f.b)] - self.f(Z[some])
            total += float(np.vdot(left, left))
        return total


# ---- The f step


@dataclass(frozen=True)
class DecoderSums:
    """What least squares needs of N rows. ZZ : (L, L), z : (L,), ZX : (L, D), x : (D,)."""

    n: int
    ZZ: Float64
    z: Float64
    ZX: Float64
    x: Float64

    def __add__(self, other: DecoderSums) -> DecoderSums:
        return DecoderSums(
            self.n + other.n, self.ZZ + other.ZZ, self.z + other.z, self.ZX + other.ZX, self.x + other.x
        )


def decoder_sums(X: Float32, Z: Bits, workers: Workers) -> DecoderSums:
    """Gather the sums in one pass. A block's counts are whole numbers, exact in float32.

    XᵀZ, as rows out of core have it: ZᵀX may differ in its last digits, on processors without AVX-512.
    """

    def block(rows: slice) -> tuple[Float32, Float64, Float32, Float64]:
        Zb, Xb = Z[rows].astype(np.float32), X[rows]
        return Zb.T @ Zb, Zb.sum(axis=0, dtype=np.float64), Xb.T @ Zb, Xb.sum(axis=0, dtype=np.float64)

    ZZ, z, XZ, x = workers.sum(block, len(X))
    return DecoderSums(len(X), ZZ, z, XZ.T, x)


def f_step(sums: DecoderSums) -> LinearDecoder:
    """The least-squares decoder; a constant or repeated bit gets the one of minimum norm.

    min Σ‖x − Az − b‖² over A and b: centre both sides, solve for A, and b carries the means.
    """
    z_mean, x_mean = sums.z / sums.n, sums.x / sums.n
    covariance = sums.ZZ - np.outer(sums.z, z_mean)
    cross = sums.ZX - np.outer(sums.z, x_mean)
    values, vectors = np.linalg.eigh(covariance)
    # counts are exact, so what is singular shows as rounding of the centring alone
    floor = values.size * np.finfo(np.float64).eps * max(float(sums.ZZ.diagonal().max()), 1.0) * 16
    keep = values > floor
    V = vectors[:, keep]
    A = np.ascontiguousarray(((V / values[keep]) @ (V.T @ cross)).T)
    return LinearDecoder(A, x_mean - A @ z_mean)
