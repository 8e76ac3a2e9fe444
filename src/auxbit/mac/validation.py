"""Early stopping (section 4.4): which h is kept along the path of μ, and when the path ends.

Validation queries are rows that are not trained on. A hash function is as good as its precision on them: the
share of their true neighbours among the nearest codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from auxbit.core.checks import Float32, Indices, check_finite
from auxbit.core.maps import LinearEncoder, Scaling
from auxbit.core.parallel import Workers, draw_rows
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.evaluate import Ranking, precision_recall_at_k
from auxbit.mac.loop import Record, Step

AUTO_SHARE, AUTO_MOST, AUTO_LEAST = 10, 1000, 10


# ---- The queries


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
    return scaling.apply(rows)


def neighbours_to_find(n_rows: int) -> int:
    """K = k: 1 % of the rows, between 10 and 100."""
    return min(int(np.clip(n_rows // 100, 10, 100)), n_rows)


def precision_of(ranking: Ranking) -> float:
    """Precision of the k nearest codes against the K = k true neighbours, ties averaged."""
    return precision_recall_at_k(ranking, ranking.ranks.shape[1], ties="average").precision


# ---- The path


@dataclass
class Walk:
    """How far along the path: records, the h kept, its precision, values of μ since that did not raise it."""

    history: list[Record] = field(default_factory=list)
    best: LinearEncoder | None = None
    best_precision: float = -1.0
    improved: bool = False
    misses: int = 0

    def take(self, step: Step, precision: float | None, unit: float) -> Record:
        """Note a step; its h is kept if there is no precision, or if that is the highest so far."""
        kept = precision is None or precision > self.best_precision
        if kept:
            self.best, self.improved = step.h, True
            self.best_precision = self.best_precision if precision is None else precision
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
    """Walk along the path and keep the h of the last step, or, with `precision`, the most precise h.

    A μ that does not raise the precision above the best so far is skipped: its h is not kept. After
    `patience` such values of μ in a row the walk ends. With `settled` it also ends after a step by which E_Q
    falls by less than this share. Energies are recorded times `energy_unit`.
    walk : where to resume; on_step : called after each step that is not the last.
    """
    walk = walk or Walk()
    stopped = "schedule" if walk.misses < patience else "patience"
    for step in steps if walk.misses < patience else ():
        record = walk.take(step, precision(step.h) if precision is not None else None, energy_unit)
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
