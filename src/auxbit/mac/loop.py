"""The MAC algorithm (fig. 1 of the paper): alternate the three steps while μ grows, and know when to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from auxbit.core.decoders import LinearDecoder
from auxbit.core.maps import LinearEncoder
from auxbit.mac.steps import ZReport


class Data(Protocol):
    """Rows of data, wherever they live, that answer the three steps."""

    def h_step(self, h: LinearEncoder | None) -> LinearEncoder:
        """The L classifiers for the current codes."""

    def f_step(self) -> LinearDecoder:
        """The decoder for the current codes."""

    def z_step(self, h: LinearEncoder, f: LinearDecoder, mu: float) -> ZReport:
        """New codes."""


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


@dataclass(frozen=True)
class Step:
    """Where the path stands after one iteration."""

    mu: float
    h: LinearEncoder
    f: LinearDecoder
    report: ZReport
    seconds: tuple[float, float, float]
    ends_mu: bool = True


def alternate(
    data: Data,
    schedule: Iterable[float],
    *,
    first: LinearEncoder | None = None,
    after: LinearEncoder | None = None,
) -> Iterator[Step]:
    """Yield a step for each μ of the schedule; ends after a Z step that leaves Z = h(X).

    first : the hash function of the first step, where the codes come from one; no SVMs are fitted then.
    after : the hash function of the step before the first, where the path goes on.
    """
    h = after
    for mu, next_mu in _with_next(schedule):
        start = time.perf_counter()
        h = first if first is not None and h is None else data.h_step(h)
        after_h = time.perf_counter()
        f = data.f_step()
        after_f = time.perf_counter()
        report = data.z_step(h, f, mu)
        after_z = time.perf_counter()
        yield Step(mu, h, f, report, (after_h - start, after_f - after_h, after_z - after_f), mu != next_mu)
        if report.mismatched == 0:
            return


@dataclass
class Walk:
    """How far along the path: records, the h kept, its precision, values of μ since that did not raise it."""

    history: list[Record] = field(default_factory=list)
    best: LinearEncoder | None = None
    best_precision: float = -1.0
    improved: bool = False
    misses: int = 0


@dataclass(frozen=True)
class Outcome:
    """The hash function kept and how it was reached; `stopped` says why: matched, patience or schedule."""

    h: LinearEncoder
    history: list[Record]
    stopped: str


def follow(
    steps: Iterable[Step],
    *,
    precision: Callable[[LinearEncoder], float] | None = None,
    patience: int = 3,
    callback: Callable[[Record], object] | None = None,
    energy_unit: float = 1.0,
    walk: Walk | None = None,
    on_step: Callable[[Step, Walk], object] | None = None,
) -> Outcome:
    """Walk along the path and keep the h of the last step, or, with `precision`, the most precise h.

    A μ that does not raise the precision above the best so far is skipped: its h is not kept. After
    `patience` such values of μ in a row the walk ends. Energies are recorded times `energy_unit`.
    walk : where to go on from; on_step : called after each step from which the walk goes on.
    """
    walk = walk or Walk()
    stopped = "schedule" if walk.misses < patience else "patience"
    for step in steps if walk.misses < patience else ():
        score = precision(step.h) if precision is not None else None
        kept = score is None or score > walk.best_precision
        if kept:
            walk.best, walk.improved = step.h, True
            walk.best_precision = score if score is not None else walk.best_precision
        record = _record(len(walk.history) + 1, step, score, kept, energy_unit)
        walk.history.append(record)
        if step.report.mismatched == 0:
            stopped = "matched"
        elif step.ends_mu:
            walk.misses, walk.improved = 0 if walk.improved else walk.misses + 1, False
            stopped = "patience" if walk.misses >= patience else stopped
        if callback is not None:
            callback(record)
        if stopped != "schedule":
            break
        if on_step is not None:
            on_step(step, walk)
    if walk.best is None:
        raise ValueError("the schedule has no value of mu")
    return Outcome(walk.best, walk.history, stopped)


def _with_next(values: Iterable[float]) -> Iterator[tuple[float, float | None]]:
    """Each value with the one that follows it, the last with None."""
    waiting: float | None = None
    for value in values:
        if waiting is not None:
            yield waiting, value
        waiting = value
    if waiting is not None:
        yield waiting, None


def _record(iteration: int, step: Step, precision: float | None, kept: bool, unit: float) -> Record:
    report = step.report
    record = Record(
        iteration, step.mu, report.E_Q, report.E_BA, report.changed, report.mismatched, precision, kept,
        *step.seconds, report.pruned, report.certified, report.unproven, report.codes_evaluated,
        report.dimensions_evaluated,
    )  # fmt: skip
    return replace(record, E_Q=record.E_Q * unit, E_BA=record.E_BA * unit)
