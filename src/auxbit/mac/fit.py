"""The one driver of a fit: rows from anywhere, a start, the loop, validation, checkpoints.

A `Table` is where rows come from: an array in memory, a file or anything that is sliced, a Dask cluster. It
measures them and gives `Rows`, on which `Steps` are the same everywhere.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from auxbit.core.checks import Array, Bits, Float32, Float64, Ids, Indices, as_array
from auxbit.core.decoders import Plain
from auxbit.core.features import SAMPLE_ROWS
from auxbit.core.maps import Encoder, Features, LinearEncoder, Scaling, bytes_per_code, lengthened, unpack
from auxbit.core.parallel import Workers, block_slices, is_dask_array, sample_rows
from auxbit.data.vectors import DEFAULT, Budget, Hdf5Rows, RowSource, fingerprint, open_rows, take_rows
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.evaluate import ground_truth
from auxbit.mac.checkpoint import CONTENT, Checkpoint, Prepared, Resumed
from auxbit.mac.cluster import ClusterTable, cluster_table
from auxbit.mac.h_step import SvmOptions
from auxbit.mac.loop import (
    Moments,
    Outcome,
    Record,
    Walk,
    alternate,
    follow,
    given_queries,
    hold_out,
    neighbours_to_find,
    precision_of,
)
from auxbit.mac.rows import CodePair, FileRows, ScaledRows, places_of
from auxbit.mac.steps import ByRows, MemoryRows, Objective, Rows, Steps, first_moments

LINEAR = "linear"  # the folder, in that of a checkpoint, of the fit that one with features starts from
CODES_SHARE = 0.25  # of the budget: codes that take more are kept in files
TAKEN_ROWS = 16_384  # as they came, at a time
SAMPLE_SHARE, MOST_SAMPLED = 0.2, 2**20  # of the budget; rows that are held for steps to be tried on
FITTED_ROWS = 100_000  # out of core: rows that are fitted to by what needs them at hand, and
FITTED_COPIES = 8  # copies of them that it may make


# ---- What is fitted


@dataclass(frozen=True)
class Plan:
    """A fit, all but the rows.

    schedule : returns μ for each iteration, given a first μ that suits the rows.
    C : of the SVMs; None: what suits the rows, by validation if there is any.
    start : makes the first codes: returns the linear hash function that gives them, or what makes them of
        rows as they came. validation : "auto", None, or query rows. returns : a μ that does not raise the
        precision is undone. settled : the loop ends when E_Q falls by less than this share, and the SVMs of
        the last codes are solved to full tolerance (BFA). refines : without validation, so are those of a
        path that ended in Z = h(X), as far as codes stay what they are.
    features : returns those to choose from, the first being the one if nothing is there to choose by; None: h
        is linear. n_features : how many they are at most, as far as that is known. linear_first : begin with
        the fit of a linear h, unless `settled`; otherwise `start` knows of the features.
    report : is given each record and how often all rows were read by then, None for rows in memory.
    identity : returns what a fit that resumes must have in common with the one interrupted, as JSON.
    """

    n_bits: int
    schedule: Callable[[float], list[float]]
    svm: SvmOptions
    objective: Objective
    start: Callable[[Beginning], Any]
    C: float | None = None
    validation: Any = None
    patience: int = 3
    returns: bool = False
    settled: float | None = None
    refines: bool = True
    normalize: bool = False
    lift: bool = False
    features: Callable[[FeatureSample], list[Features]] | None = None
    n_features: int = 0
    linear_first: bool = True
    report: Callable[[Record, int | None], object] | None = None
    identity: Callable[[], dict[str, Any]] = dict


@dataclass(frozen=True)
class Fitted:
    """What a fit found. f is for scaled rows; sample : these rows as they came; n_rows : trained on.

    h is for scaled rows with their features, `encoder` for those without. C : of the SVMs; start_precision :
    that of the start's own hash function, if it is not a linear one.
    """

    prepared: Prepared
    h: LinearEncoder
    f: Plain
    outcome: Outcome
    C: float
    start_precision: float | None
    n_passes: int | None
    sampled: Ids
    sample: Array
    n_rows: int

    @property
    def scaling(self) -> Scaling:
        """Of the rows."""
        return self.prepared.scaling

    @property
    def encoder(self) -> Encoder:
        """The hash function of scaled rows."""
        features = self.prepared.features
        return self.h if features is None else features.encoder(self.h)


@dataclass(frozen=True)
class FeatureSample:
    """What features are made of. X : some of the rows that are trained on, scaled, (n, D)."""

    X: Float32
    scaling: Scaling
    workers: Workers
    rng: np.random.RandomState


@dataclass(frozen=True)
class Beginning:
    """What a hash function or a start is learned from: rows, their moments, and the generator of the fit.

    budget : None for rows in memory; gram : of their moments, if they are known.
    """

    table: Table
    rows: Rows
    scaling: Scaling
    n_bits: int
    workers: Workers
    rng: np.random.RandomState
    budget: Budget | None
    gram: Float64 | None = None

    @cached_property
    def moments(self) -> Moments:
        """Of the rows; a pass, if they are not known yet."""
        if self.gram is not None:
            return Moments.of_gram(self.gram)
        return Moments.of(*self.rows.moments(), self.rows.n_rows)

    @property
    def X(self) -> Float32:
        """Rows at hand, scaled, for what is not learned from sums: all, or a sample that memory has room for.

        Rows that are not in memory are FITTED_ROWS at most.
        """
        return self.scaled(self.at_hand())

    def at_hand(self) -> Ids | None:
        """The numbers of the rows of X, rising; None for all of them."""
        n, D = self.shape
        most = n if self.budget is None else self.fitting(FITTED_COPIES * 8 * D, 1.0, FITTED_ROWS)
        return None if n <= most else sample_rows(n, most)

    @property
    def shape(self) -> tuple[int, int]:
        """(n, D) of the rows that are trained on, without features."""
        return self.rows.n_rows, self.rows.n_decoded

    def raw(self, rows: Ids | None) -> Array:
        """These rows, rising, as they came; all of them for None."""
        return self.table.take(self.rows.places(np.arange(self.rows.n_rows) if rows is None else rows))

    def scaled(self, rows: Ids | None) -> Float32:
        """These rows, rising, scaled; all of them for None."""
        if isinstance(self.rows, MemoryRows):
            X = self.rows.X[:, : self.shape[1]]
            return np.ascontiguousarray(X if rows is None else X[rows])
        wanted = np.arange(self.rows.n_rows) if rows is None else rows
        out = np.empty((len(wanted), self.shape[1]), dtype=np.float32)
        for some in block_slices(len(wanted), TAKEN_ROWS):
            out[some] = self.scaling.apply(self.raw(wanted[some]))
        return out

    def fitting(self, row_bytes: int, share: float, most: int) -> int:
        """How many rows of this size fit into a share of the budget, at most `most`."""
        return most if self.budget is None else self.budget.rows_of(row_bytes, share, most)


def fit(
    plan: Plan, table: Table, workers: Workers, rng: np.random.RandomState, *,
    budget: Budget | None = None, checkpoint: Path | None = None, resume: bool = False,
) -> Fitted:  # fmt: skip
    """Fit by MAC to the rows of a table.

    checkpoint : a folder for the state after each iteration; resume : from the one in it, if there is one.
    """
    check_enough_rows(table)
    _check_elsewhere(plan, table, budget, checkpoint)
    drawn = deepcopy(rng)  # for features: their draws neither change the linear fit nor depend on its draws
    with ExitStack() as stack:
        kept = None if checkpoint is None else Checkpoint(checkpoint, _about(plan, table, budget))
        resumed = None
        if kept is not None:
            stack.callback(kept.close)
            resumed = kept.open(resume=resume)
        folder = checkpoint
        code_bytes = 2 * table.shape[0] * bytes_per_code(plan.n_bits)
        if folder is None and budget is not None and code_bytes > CODES_SHARE * budget.total:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="auxbit-")))
        options: dict[str, Any] = {"budget": budget, "checkpoint": checkpoint, "resume": resume}
        linear = None if resumed is not None else _linear_first(plan, table, workers, rng, **options)
        if resumed is not None:
            prepared = resumed.prepared
        elif linear is not None:
            prepared, plan = linear.prepared, replace(plan, start=lambda given: linear.h)
        else:
            prepared = _measured(plan, table, rng)
        queries = _queries(plan, table, prepared, workers)
        if resumed is None:
            prepared = _with_features(plan, table, prepared, linear, queries, workers, drawn, budget)
        queries = None if queries is None else lengthened(queries, prepared.features)
        present = 0 if resumed is None else resumed.present
        rows: Any = table.rows(
            prepared.scaling, prepared.held_out, plan.n_bits, folder, present, prepared.features
        )
        if rows.n_passes is not None:  # those that measure; what a crash costs is not counted
            begun = 1 + plan.lift if linear is None else linear.n_passes
            rows.n_passes = begun if resumed is None else resumed.passes - rows.holds_all
        if kept is not None and resumed is not None:
            kept.check_codes(resumed, rows)
        else:
            prepared = _prepared(prepared, rows, queries)
        rows.truth, moments = prepared.truth, Moments.of_gram(prepared.gram)
        steps = Steps(rows, svm=plan.svm, objective=plan.objective, moments=moments, queries=queries)
        descent = Descent(
            plan, steps, rows, energy_unit=plan.objective.unit(prepared.scaling.scale), queries=queries
        )
        if resumed is not None:
            descent.resume(prepared, resumed)
        else:
            known = (prepared.scaling, plan.n_bits, workers, rng, budget)
            given = Beginning(table, rows, *known, first_moments(moments, rows.n_decoded).gram)
            prepared = descent.begin(given, prepared)

        def keep(walk: Walk) -> None:
            if kept is not None:
                kept.write(prepared, steps.state(), walk, steps.svm.C, rows)

        outcome = descent.run(keep)
        found = _finished(plan, steps, outcome, validated=queries is not None)
        f = steps.decoder_of(found, None if prepared.held_out is None else queries)
        sampled = rows.places(sample_rows(rows.n_rows))
        return Fitted(
            prepared, found, f, outcome, steps.svm.C,
            descent.start_precision if linear is None else linear.start_precision, rows.n_passes, sampled,
            table.take(sampled), rows.n_rows,
        )  # fmt: skip


@dataclass(frozen=True)
class FactorCodes:
    """A start: the free codes of binary factor analysis, eq. (3), from those of `start`."""

    start: LinearEncoder

    def settle(self, steps: Steps, some: Ids, X: Float32) -> LinearEncoder:
        """MAC with a small, constant μ, to its end; the codes are then those of BFA, and h fits them."""
        h = steps.begin(self.start)
        mu = 0.01 * first_mu(steps.objective, steps.rows, some, X, self.start(X), steps.f_step())
        return follow(alternate(steps, [mu] * 50, h=h, fitted=True), settled=1e-4).h


@dataclass(frozen=True)
class Continued:
    """A start: where another fit ended. h : its hash function, for these rows as they are scaled."""

    h: LinearEncoder


class Descent:
    """The walk of one fit: where μ and C start, from what the start's codes are like, and where it leads."""

    def __init__(
        self, plan: Plan, steps: Steps, rows: Rows, *, energy_unit: float, queries: Float32 | None
    ) -> None:
        self._plan, self._steps, self._rows, self._energy_unit = plan, steps, rows, energy_unit
        self._queries = queries
        self._walk, self._schedule, self._fitted = Walk(), list[float](), False
        self._h: LinearEncoder | None = None
        self._values: list[float] = []  # of C, to choose from
        self._judged: tuple[LinearEncoder, float] | None = None
        self.start_precision: float | None = None

    def begin(self, given: Beginning, prepared: Prepared) -> Prepared:
        """Make the first codes, and see from them where μ and C start."""
        plan, steps = self._plan, self._steps
        made = plan.start(given)
        sampled = sample_rows(self._rows.n_rows, MEASURED_ROWS)
        X = given.scaled(sampled)
        longer = lengthened(X, prepared.features)
        size = float(np.median(np.einsum("nd,nd->n", longer, longer)))
        shape = self._rows.n_rows, self._rows.n_features
        self._values = [plan.C] if plan.C is not None else suitable_C(size, *shape)
        if self._queries is None:
            del self._values[1:]
        steps.use(self._values[0])
        if isinstance(made, LinearEncoder):
            self._h, Z = steps.begin(made), made(X)
            self._fitted = True
        elif isinstance(made, Continued):
            self._h, Z = steps.begin(made.h, solved=True), made.h(longer[:, : len(made.h.weights)])
            self._fitted = True
        elif isinstance(made, FactorCodes):
            h = made.settle(steps, sampled, X)
            self._h, Z = steps.h_step(h), h(longer)  # its sums of codes have the same last digits anywhere
            self._fitted = True
        else:
            self._rows.fill(made)
            Z = unpack(made(given.raw(sampled), self._rows.places(sampled)), plan.n_bits)
            self.start_precision = self._precision_of_start(made, given, prepared)
        mu = first_mu(plan.objective, self._rows, sampled, X, Z, steps.f_step())
        self._schedule = plan.schedule(mu)
        return replace(prepared, mu=mu)

    def resume(self, prepared: Prepared, resumed: Resumed) -> None:
        """Continue from a checkpoint."""
        self._steps.use(resumed.C)
        self._walk, self._h = resumed.walk, self._steps.restore(resumed.state)
        self._schedule = self._plan.schedule(prepared.mu)

    def run(self, keep: Callable[[Walk], object]) -> Outcome:
        """Walk to the end. keep : called after each step that is not the last."""
        if len(self._values) > 1:
            self._choose_C(keep)
        return self._follow(None, keep)

    def _choose_C(self, keep: Callable[[Walk], object]) -> None:
        """Try each C for a few steps after the first, which all share, and continue with the most precise.

        The first state of a checkpoint is the one after this: trials write over codes as no other step does.
        """
        steps = self._steps
        if self._follow(1).stopped == "matched":
            return
        begun, shared = steps.keep(), self._walk
        best: tuple[float, Walk, Any] | None = None
        for C in self._values:
            steps.go_back(begun)
            steps.use(C)
            self._walk = replace(shared, history=list(shared.history))
            self._follow(TRIED_STEPS, quiet=True)
            if best is None or self._walk.best_precision > best[1].best_precision:
                if best is not None:
                    steps.forget(best[2])
                best = (C, self._walk, steps.keep())
        assert best is not None
        C, self._walk, state = best
        steps.go_back(state)
        steps.use(C)
        for each in (begun, state):
            steps.forget(each)
        if self._walk.history[-1].mismatched:
            keep(self._walk)
        for record in self._walk.history[len(shared.history) :]:
            self._report(record)

    def _follow(
        self, most: int | None, keep: Callable[[Walk], object] | None = None, *, quiet: bool = False
    ) -> Outcome:
        """Take at most that many steps."""
        done = len(self._walk.history)
        if done and not self._walk.history[-1].mismatched:
            return Outcome(self._best(), self._walk.history, "matched")
        undoes = self._plan.returns and most is None and self._queries is not None
        path = alternate(
            self._steps, self._schedule[done:], h=self._steps.h if done else self._h,
            fitted=self._fitted and not done, helps=self._helps if undoes else None,
        )  # fmt: skip
        return follow(
            islice(path, most), precision=None if self._queries is None else self._precision,
            patience=self._plan.patience if most is None else len(self._schedule),
            settled=self._plan.settled, callback=None if quiet else self._report,
            energy_unit=self._energy_unit, walk=self._walk, on_step=keep,
        )  # fmt: skip

    def _best(self) -> LinearEncoder:
        assert self._walk.best is not None
        return self._walk.best

    def _helps(self, h: LinearEncoder) -> bool:
        return self._precision(h) > self._walk.best_precision

    def _precision(self, h: LinearEncoder) -> float:
        if self._judged is None or self._judged[0] is not h:
            self._judged = (h, precision_of(self._steps.ranking(h)))
        return self._judged[1]

    def _precision_of_start(self, made: Any, given: Beginning, prepared: Prepared) -> float | None:
        """That of the hash function whose codes these are, if there is one that gives queries theirs."""
        if self._queries is None:
            return None
        held_out, asked = prepared.held_out, self._plan.validation
        codes = made.of_queries(np.asarray(asked) if held_out is None else given.table.take(held_out))
        return None if codes is None else precision_of(self._plan.objective.ranking(self._rows, None, codes))

    def _report(self, record: Record) -> None:
        if self._plan.report is not None:
            self._plan.report(record, self._rows.n_passes)


def check_enough_rows(table: Table) -> None:
    """Refuse a single row to fit to."""
    if table.shape[0] < 2:
        raise InvalidInput(f"X has {table.shape[0]} row; a model needs at least 2 to be fitted to.")


def _check_elsewhere(plan: Plan, table: Table, budget: Budget | None, checkpoint: Path | None) -> None:
    """Refuse what cannot be for rows that are not in memory."""
    if checkpoint is not None and isinstance(table, ClusterTable):
        raise InvalidInput(
            "checkpoint= needs the codes here, but on a cluster they stay with the workers (a lost worker's "
            "part is computed again). Fit without checkpoint=, or without a client."
        )
    if budget is not None:
        plan.objective.check_elsewhere(plan.n_bits, budget.total)
    if plan.returns and checkpoint is not None:
        raise InvalidParameter("on_miss", "return", "'continue' with checkpoint=")


def _about(plan: Plan, table: Table, budget: Budget | None) -> dict[str, Any]:
    """What a fit that resumes must have the same; the budget decides on the sizes of samples."""
    return plan.identity() | {"memory": None if budget is None else budget.total} | table.about()


# ---- Where μ and C start (section 4.4)
#
# The paper's values, μ₁ = 0.01 and a large C, are for rows whose largest range is 1, and whose bits are worth
# much more than 0.01. One outlier, heavy tails, long codes or rows with little structure make bits worth
# less: then μ = 0.01 forbids all changes. So both are held against what the start's codes show.

MEASURED_ROWS = 5000
PAPER_MU, GAINS_KEPT = 0.01, 0.8
LARGE_C, SMALLER_C = 100.0, (4.0, 0.5)
TRIED_STEPS, TRIED_FEATURES = 2, 4
TRIAL_COPIES = 2  # of a sample's rows with features, that trying them out takes


def first_mu(objective: Objective, rows: Rows, some: Ids, X: Float32, Z: Bits, f: Plain) -> float:
    """The first μ, at most the paper's: four fifths of the flips of one bit that help are still made.

    X : (m, D) these rows, scaled; Z : (m, L) their codes. If no flip helps, small beside the error.
    """
    change = objective.changes(rows, some, X, Z, f)
    helps = change < 0
    if helps.any():
        return min(PAPER_MU, float(np.quantile(-change[helps], 1 - GAINS_KEPT)))
    residual = X - f(Z)
    error = float(np.median(np.einsum("nd,nd->n", residual, residual)))
    return min(PAPER_MU, max(0.006 * error, 1e-12))


def suitable_C(size: float, n: int, D: int) -> list[float]:
    """A large C, as in the paper, and smaller ones, for few rows or long codes, whose SVMs generalise better.

    size : the median ‖x‖². The regulariser ½‖w‖² shrinks directions in which 2C Σx² is not much above 1: C is
    held against n rows of `size` over D directions.
    """
    size = max(size, 1e-30)
    large = LARGE_C / min(1.0, size)
    return [large, *(C for value in SMALLER_C if (C := value * D / (n * size)) < large)]


def _finished(plan: Plan, steps: Steps, outcome: Outcome, *, validated: bool) -> LinearEncoder:
    if plan.settled is not None:
        return steps.h_step(outcome.h, exact=True)
    last = outcome.stopped == "matched" and outcome.history[-1].kept
    return steps.refine(outcome.h) if last and plan.refines and not validated else outcome.h


def _measured(plan: Plan, table: Table, rng: np.random.RandomState) -> Prepared:
    held_out = hold_out(plan.validation, table.shape[0], rng)
    scaling = table.measure(held_out, normalize=plan.normalize, lift=plan.lift)
    return Prepared(scaling, np.zeros((0, 0)), held_out, None)


def _prepared(measured: Prepared, rows: Rows, queries: Float32 | None) -> Prepared:
    moments = Moments.of(*rows.moments(), rows.n_rows)
    truth = measured.truth  # of the fit before, if there was one
    if queries is not None and truth is None:
        decoded = np.ascontiguousarray(queries[:, : rows.n_decoded])
        truth = rows.nearest(decoded, neighbours_to_find(rows.n_rows))
    return replace(measured, gram=moments.gram, truth=truth)


def _linear_first(
    plan: Plan, table: Table, workers: Workers, rng: np.random.RandomState, *, budget: Budget | None,
    checkpoint: Path | None, resume: bool,
) -> Fitted | None:  # fmt: skip
    """The linear fit that one with features starts from: it cannot end with more error or less precision."""
    if plan.features is None or plan.settled is not None or not plan.linear_first:
        return None
    within = None if checkpoint is None else checkpoint / LINEAR
    options: dict[str, Any] = {"budget": budget, "checkpoint": within, "resume": resume}
    return fit(replace(plan, features=None), table, workers, rng, **options)


def _with_features(
    plan: Plan, table: Table, prepared: Prepared, linear: Fitted | None, queries: Float32 | None,
    workers: Workers, rng: np.random.RandomState, budget: Budget | None,
) -> Prepared:  # fmt: skip
    """Choose features: by what the fits of a sample from the linear one find, if there are queries."""
    if plan.features is None:
        return prepared
    row_bytes = TRIAL_COPIES * 4 * (len(prepared.scaling.mean) + plan.n_features)
    most = SAMPLE_ROWS if budget is None else budget.rows_of(row_bytes, SAMPLE_SHARE, SAMPLE_ROWS)
    left_out = np.zeros(0, dtype=np.int64) if prepared.held_out is None else prepared.held_out
    sampled = sample_rows(table.shape[0] - len(left_out), most)
    X = prepared.scaling.apply(table.take(places_of(sampled, left_out)))
    found = plan.features(FeatureSample(X, prepared.scaling, workers, rng))
    by_rows = isinstance(plan.objective, ByRows)  # so that it can be tried on some of them
    if len(found) == 1 or linear is None or queries is None or not by_rows:
        return replace(prepared, features=found[0])
    truth = ground_truth(X, queries, neighbours_to_find(len(X)), n_jobs=workers.n_jobs)
    precisions = [_precision_with(each, plan, X, linear, queries, truth, workers) for each in found]
    return replace(prepared, features=found[int(np.argmax(precisions))])


def _precision_with(
    features: Features, plan: Plan, X: Float32, linear: Fitted, queries: Float32, truth: Ids, workers: Workers
) -> float:
    """The best validation precision of a few steps with these features, on a sample of the rows."""
    rows = MemoryRows(
        lengthened(X, features, workers), np.zeros((len(X), plan.n_bits), np.uint8), workers,
        n_decoded=X.shape[1],
    )  # fmt: skip
    rows.truth = truth
    asked = lengthened(queries, features)
    steps = Steps(rows, svm=replace(plan.svm, C=linear.C), objective=plan.objective, queries=asked)
    h, all_rows = steps.begin(linear.h), np.arange(len(X))
    mu = first_mu(plan.objective, rows, all_rows, X, linear.h(X), steps.f_step())
    path = alternate(steps, plan.schedule(mu)[:TRIED_FEATURES], h=h, fitted=True)
    walk = Walk()
    follow(path, precision=lambda h: precision_of(steps.ranking(h)), patience=TRIED_FEATURES, walk=walk)
    return walk.best_precision


def _queries(plan: Plan, table: Table, prepared: Prepared, workers: Workers) -> Float32 | None:
    """The validation queries, scaled."""
    if prepared.held_out is not None:
        return prepared.scaling.apply(table.take(prepared.held_out))
    if plan.validation is None or isinstance(plan.validation, str):
        return None
    validation = as_array(plan.validation, "validation")
    asked = given_queries(validation, table.shape[1], prepared.scaling, workers)
    if not np.isfinite(asked).all():
        raise InvalidInput(
            "validation has numbers that float32 cannot hold in the scale of X. Give rows like those of X."
        )
    return asked


# ---- Where rows come from


class Table(Protocol):
    """Rows somewhere."""

    @property
    def shape(self) -> tuple[int, int]:
        """(n, D)."""

    def about(self) -> dict[str, Any]:
        """What distinguishes this table from others: a fit that resumes must have the same."""

    def measure(self, held_out: Ids | None, *, normalize: bool, lift: bool) -> Scaling:
        """Mean and range of all rows; refuses what is not finite. A pass, or two to lift rows.

        held_out : those that are not trained on, as a table may lay out its shards by them.
        """

    def take(self, rows: Ids) -> Array:
        """These rows, rising, as they came."""

    def rows(
        self, scaling: Scaling, held_out: Ids | None, n_bits: int, folder: Path | None, present: int,
        features: Features | None = None,
    ) -> Rows:  # fmt: skip
        """The rows that are not held out, with features; codes in files of `folder`, if one is given."""


class ArrayTable:
    """Rows in memory, (n, D)."""

    def __init__(self, raw: Array, workers: Workers) -> None:
        self.raw, self._workers = raw, workers
        self.shape: tuple[int, int] = raw.shape

    def about(self) -> dict[str, Any]:
        return {}

    def measure(self, held_out: Ids | None, *, normalize: bool, lift: bool) -> Scaling:
        return Scaling.measure(self.raw, self._workers, normalize=normalize, lift=lift)

    def take(self, rows: Ids) -> Array:
        return self.raw[rows] if self.raw.flags.owndata else take_rows(self.raw, rows)  # which may be mapped

    def rows(
        self, scaling: Scaling, held_out: Ids | None, n_bits: int, folder: Path | None, present: int,
        features: Features | None = None,
    ) -> MemoryRows:  # fmt: skip
        chosen = None if held_out is None else np.setdiff1d(np.arange(len(self.raw)), held_out)
        X = scaling.apply_all(self.raw, self._workers, chosen)
        longer, Z = lengthened(X, features, self._workers), np.zeros((len(X), n_bits), np.uint8)
        return MemoryRows(longer, Z, self._workers, self.raw, chosen, n_decoded=X.shape[1], held_out=held_out)


class SampledTable(ArrayTable):
    """Some rows of a table, brought into memory, and scaled as all of its rows are. chosen : rising."""

    def __init__(self, whole: Table, chosen: Indices, workers: Workers) -> None:
        super().__init__(whole.take(chosen), workers)
        self._whole = whole

    def measure(self, held_out: Ids | None, *, normalize: bool, lift: bool) -> Scaling:
        return self._whole.measure(None, normalize=normalize, lift=lift)


class FileTable:
    """Rows that this process reads by slices."""

    def __init__(self, source: RowSource, budget: Budget, workers: Workers) -> None:
        self._source, self._budget, self._workers = source, budget, workers
        self.shape = (len(source), int(source.shape[1]))

    def about(self) -> dict[str, Any]:
        rows, columns = self.shape
        about = {
            "number of rows": rows,
            "number of columns": columns,
            "type of numbers": str(self._source.dtype),
        }
        return about | {CONTENT: fingerprint(self._source)}

    def measure(self, held_out: Ids | None, *, normalize: bool, lift: bool) -> Scaling:
        return Scaling.measure(self._source, self._workers, normalize=normalize, lift=lift)

    def take(self, rows: Ids) -> Array:
        return take_rows(self._source, rows)

    def rows(
        self, scaling: Scaling, held_out: Ids | None, n_bits: int, folder: Path | None, present: int,
        features: Features | None = None,
    ) -> FileRows:  # fmt: skip
        rows = ScaledRows(self._source, scaling, held_out, features)
        row_bytes = 4 * rows.shape[1] + 9 * n_bits  # of the sample: a row, two scores and a label per bit
        sampled = self._budget.rows_of(row_bytes, SAMPLE_SHARE, most=MOST_SAMPLED)
        return FileRows(rows, CodePair(len(rows), n_bits, folder, present), self._workers, sampled)


def is_elsewhere(X: Any, memory: object, checkpoint: object, client: object) -> bool:
    """Whether rows are read out of core: requested, or X is no array, nor meant to become one."""
    if memory is not None or checkpoint is not None or client is not None:
        return True
    if isinstance(X, str | os.PathLike):
        return True
    sliced = hasattr(X, "shape") and hasattr(X, "__getitem__")
    # these become arrays if asked, but are used because they need not; SciPy's and pandas' are scikit-learn's
    elsewhere = type(X).__module__.partition(".")[0] in ("dask", "h5py", "zarr")
    known = any(hasattr(X, name) for name in ("__array__", "__array_interface__", "iloc", "tocsr"))
    return elsewhere or (sliced and not known)


@dataclass(frozen=True)
class Place:
    """A table whose rows can be read, the threads for it, and how much memory; None for rows in memory."""

    table: Table
    workers: Workers
    budget: Budget | None = None

    def sample(self, most: int) -> Array:
        """Rows as they came: all, if they are in memory; else at most that many, drawn at random."""
        if isinstance(self.table, ArrayTable):
            return self.table.raw
        return self.table.take(sample_rows(self.table.shape[0], most))


@contextmanager
def open_elsewhere(
    X: Any, n_bits: int, n_jobs: int, *, memory: str | int | None, client: Any, n_features: int = 0
) -> Iterator[Place]:
    """Rows that are read out of core, here or by the workers of a cluster. n_features : that they get."""
    budget = Budget.parse(DEFAULT if memory is None else memory)
    rows = None if client is not None or is_dask_array(X) else open_rows(X)
    try:
        if rows is not None and memory is not None:
            n_jobs = budget.threads(rows.shape[1] + n_features, n_bits, n_jobs)
        with Workers(n_jobs) as workers:
            table: Table = cluster_table(X, client) if rows is None else FileTable(rows, budget, workers)
            yield Place(table, workers, budget)
    finally:
        if isinstance(rows, Hdf5Rows):
            rows.close()
