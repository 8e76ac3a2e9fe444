"""The MAC algorithm: figure 1 of the paper, as a generator, and the records of its iterations."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Protocol

from auxbit.core.maps import LinearDecoder, LinearEncoder


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

    def f_step(self) -> LinearDecoder:
        """The decoder for the current codes."""

    def z_step(self, h: LinearEncoder, f: LinearDecoder, mu: float) -> ZReport:
        """New codes."""


@dataclass(frozen=True)
class Step:
    """Where the path is after one iteration. ends_mu : the next iteration has another μ, or there is none."""

    mu: float
    h: LinearEncoder
    f: LinearDecoder
    report: ZReport
    seconds: tuple[float, ...]
    ends_mu: bool = True


def alternate(
    data: Data, schedule: Sequence[float], *, h: LinearEncoder | None = None, fitted: bool = False
) -> Iterator[Step]:
    """Figure 1. Input: X and a first Z, both in `data`; a schedule μ₁ < μ₂ < …

    for μ in the schedule
        for l = 1, …, L:  h_l ← an SVM that separates the bits z_l of the rows        h step, section 4.2
        f ← the least-squares fit of X by Z                                           f step, section 4.1
        for n = 1, …, N:  z_n ← argmin ‖x_n − f(z)‖² + μ‖z − h(x_n)‖²                 Z step, section 4.3
        if Z = h(X) then stop                                                         theorem 4.1

    h : where the h step starts; `fitted`, if the codes are h(X) already, so that the first one is skipped.
    """
    for mu, next_mu in zip_longest(schedule, schedule[1:]):
        lap = Laps()
        h = h if fitted and h is not None else data.h_step(h)
        fitted = False
        lap()
        f = data.f_step()
        lap()
        report = data.z_step(h, f, mu)
        lap()
        yield Step(mu, h, f, report, tuple(lap.seconds), mu != next_mu)
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
