"""The paper's two models as estimators: BinaryAutoencoder and BinaryFactorAnalysis."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict
from itertools import pairwise, repeat
from typing import Any, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from auxbit.core.checks import check_finite, check_integer, check_positive, warn
from auxbit.core.maps import LinearEncoder
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.hashers.base import Hasher, Learned, Training
from auxbit.hashers.start import Start, first_codes
from auxbit.mac.h_step import SvmOptions
from auxbit.mac.loop import Outcome, Record, alternate, follow
from auxbit.mac.steps import Rows
from auxbit.mac.validation import Validation, choose_queries
from auxbit.mac.z_step import ZOptions

logger = logging.getLogger("auxbit")

H_SOLVERS = ("svm", "ridge")
LARGEST_MU = 1e12  # rows are scaled to a range of 1, so theorem 4.1 ends the path far below this


class _Trained(Hasher):
    """What both models share: parameters of the steps, history, saving."""

    history_: list[Record]
    n_iter_: int
    n_passes_: int | None = None
    C: float
    z_solver: str
    z_start: str
    group_size: int
    z_options: dict[str, Any] | None
    callback: Callable[[Record], object] | None
    verbose: int

    def _step_options(self, n_bits: int) -> dict[str, Any]:
        """The options of the h and Z steps, checked: before the start is computed, which takes time."""
        if self.callback is not None and not callable(self.callback):
            raise InvalidParameter("callback", self.callback, "None or something that can be called")
        z = ZOptions.resolve(n_bits, self.z_solver, self.z_start, self.group_size, self.z_options)
        h_solver = getattr(self, "h_solver", "svm")
        if h_solver not in H_SOLVERS:
            raise InvalidParameter("h_solver", h_solver, " or ".join(map(repr, H_SOLVERS)))
        return {"svm": SvmOptions(C=check_positive("C", self.C), ridge=h_solver == "ridge"), "z": z}

    def _report(self, record: Record) -> None:
        if self.verbose:
            _show_log()
            precision = "" if record.precision is None else f" precision {record.precision:.4f}"
            logger.info(
                "%3d mu %.4g  E_Q %.6g  E_BA %.6g  changed %d  mismatched %d%s",
                *(record.iteration, record.mu, record.E_Q, record.E_BA, record.changed, record.mismatched),
                precision,
            )
        if self.callback is not None:
            self.callback(record)

    def _saved_attributes(self) -> dict[str, Any]:
        saved = {"history_": [asdict(record) for record in self.history_], "n_iter_": self.n_iter_}
        return saved if self.n_passes_ is None else saved | {"n_passes_": self.n_passes_}

    def _restore_attributes(self, saved: dict[str, Any]) -> None:
        self.history_ = [Record(**record) for record in saved["history_"]]
        self.n_iter_, self.n_passes_ = saved["n_iter_"], saved.get("n_passes_")


class BinaryAutoencoder(_Trained):
    """Binary autoencoder (BA): min Σ‖x − f(h(x))‖² over linear hash functions h and decoders f, by MAC.

    Parameters
    ----------
    n_bits : bits a code, 1 to 1024.
    init : where the codes start: "itq", "agh", "tpca", "lsh", "random", a hasher (fitted ones are used as
        they are), or an array of codes with a row for each row of X.
    decoder : "linear", or "tables": after the fit, fit_decoder(X, "tables"), for search by ‖query − f(z)‖ in
        codes of encode(X, coding="optimal"); the hash function is the same, and `score`, of f(h(x)), falls.
    normalize : divide rows by their norm first, so that cosine neighbours become Euclidean ones.
    mu0, mu_factor : the penalty starts at mu0 and grows by mu_factor each step; the paper's factor is 2, a
        smaller one takes longer and ends lower (docs/training.md has the measurements).
    mu_schedule : a rising list of penalties instead of mu0 and mu_factor.
    steps_per_mu : alternations for each value of the penalty.
    C : weight of the slack in the SVMs of the h step.
    h_solver : "svm"; or "ridge", least squares to ±1 in the place of SVMs: it needs no pass over the rows.
    z_solver : "auto" (exact to 16 bits, alternating above), "exact" (branch and bound), "enumerate" (the
        paper's, to 24 bits), "alternating".
    z_start : what alternation starts from: "warm", "relaxed", or both, the "best" result kept for each point.
    group_size : bits optimised jointly by alternation; costs 2^group_size.
    z_options : switches of the Z step: theorem2, optimality, running_bound, incremental; admm_iterations
        (0: the relaxed solution is the one without the box, clipped to it) and admm_tol; max_nodes of
        branch and bound a point, whose history_ counts the points that ran out of them as unproven.
    validation : "auto" holds out a tenth of the rows (at most 1,000) as queries and returns the model with
        the best precision on them (with fewer than 100 rows: None); an array of rows: those are the queries;
        None: run until Z = h(X).
    patience : how many penalties in a row may fail to raise the validation precision.
    max_iter : iterations at most.
    callback : called with each Record.
    random_state : seed. The same seed gives the same bits for any n_jobs.
    n_jobs : threads; None for all cores.
    verbose : 1 logs each iteration.

    Attributes
    ----------
    encoder_, decoder_ : h on scaled rows, f in the units of X.
    history_ : one Record an iteration.
    n_iter_ : how many.
    n_passes_ : how often all rows were read; None where they were in memory.
    """

    def __init__(
        self, n_bits: int = 32, *, init: Any = "itq", decoder: str = "linear", normalize: bool = False,
        mu0: float = 0.01, mu_factor: float = 1.4, mu_schedule: Any = None, steps_per_mu: int = 1,
        C: float = 100.0, h_solver: str = "svm", z_solver: str = "auto", z_start: str = "best",
        group_size: int = 1, z_options: dict[str, Any] | None = None, validation: Any = "auto",
        patience: int = 3, max_iter: int = 50, callback: Callable[[Record], object] | None = None,
        random_state: Any = None, n_jobs: int | None = None, verbose: int = 0,
    ) -> None:  # fmt: skip
        self.n_bits = n_bits
        self.init = init
        self.decoder = decoder
        self.normalize = normalize
        self.mu0 = mu0
        self.mu_factor = mu_factor
        self.mu_schedule = mu_schedule
        self.steps_per_mu = steps_per_mu
        self.C = C
        self.h_solver = h_solver
        self.z_solver = z_solver
        self.z_start = z_start
        self.group_size = group_size
        self.z_options = z_options
        self.validation = validation
        self.patience = patience
        self.max_iter = max_iter
        self.callback = callback
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def fit(
        self, X: Any, y: object = None, *, memory: str | int | None = None,
        checkpoint: str | os.PathLike[str] | None = None, resume: bool = False, client: Any = None,
    ) -> Self:  # fmt: skip
        """Learn the hash function from the rows of X, (n, D); y is ignored.

        X : an array in memory. Or rows that are read by passes, some two an iteration: the path of an .npy,
            .fvecs, .bvecs, .parquet (or a folder of such) or .h5 file, or anything with `shape` and row
            slices; or a dask array, whose chunks stay where they are.
        memory : how much all arrays may take, "1GB"; given, an array is read by passes, too.
        checkpoint : a folder in which the state is kept after each μ; with `resume`, a fit that was broken
            off goes on from there, to the same model.
        client : a dask.distributed.Client, for a path that its workers can read.

        All or nothing: where it fails, a model fitted before stays as it was.
        """
        from auxbit.mac import fit as large_fit

        if not large_fit.is_large(X, memory, checkpoint, client):
            if resume:
                raise InvalidInput("resume=True needs the checkpoint folder to go on from: checkpoint=…")
            return super().fit(X, y)
        with self._all_or_nothing():
            large_fit.fit(self, X, memory, checkpoint, resume, client)
        return self

    def _learn(self, training: Training) -> Learned:
        schedule = self._schedule()
        patience = check_integer("patience", self.patience, 1)
        options = self._step_options(training.n_bits)
        queries = self._queries(training)
        start = first_codes(self.init, training)
        data = Rows(training.X, start.codes, training.workers, **options)
        judge = Validation(training.X, queries, training.workers) if queries is not None else None
        outcome = follow(
            alternate(data, schedule, first=_first(data, start)),
            precision=judge.precision if judge is not None else None,
            patience=patience,
            callback=self._report,
            energy_unit=training.scaling.scale**2,
        )
        self._warn_if_unfinished(outcome)
        attributes = {"history_": outcome.history, "n_iter_": len(outcome.history), "n_passes_": None}
        h = data.refine(outcome.h) if outcome.stopped == "matched" and judge is None else outcome.h
        return Learned(h, data.decoder_of(h), attributes)

    def _schedule(self) -> list[float]:
        steps = check_integer("steps_per_mu", self.steps_per_mu, 1)
        max_iter = check_integer("max_iter", self.max_iter, 1)
        if self.mu_schedule is not None:
            if not isinstance(self.mu_schedule, (list, tuple, np.ndarray)):
                raise InvalidParameter("mu_schedule", self.mu_schedule, "a rising list of positive numbers")
            values = [check_positive("mu_schedule", value, most=LARGEST_MU) for value in self.mu_schedule]
            if not values or any(b <= a for a, b in pairwise(values)):
                raise InvalidParameter("mu_schedule", self.mu_schedule, "a rising list of positive numbers")
        else:
            mu0 = check_positive("mu0", self.mu0, most=LARGEST_MU)
            factor = check_positive("mu_factor", self.mu_factor, above=1.0, remedy="The paper's is 2.")
            values = []
            while mu0 <= LARGEST_MU and len(values) * steps < max_iter:
                values.append(mu0)
                mu0 *= factor
        return [mu for mu in values for _ in range(steps)][:max_iter]

    def _hold_out(self, n_rows: int, rng: np.random.RandomState) -> np.ndarray | None:
        if isinstance(self.validation, str):
            if self.validation != "auto":
                allowed = "'auto', None, or an array of query rows"
                raise InvalidParameter("validation", self.validation, allowed)
            return choose_queries(n_rows, rng)
        return None

    def _queries(self, training: Training) -> Any:
        """The validation queries, scaled, or None."""
        if self.validation is None or isinstance(self.validation, str):
            return training.held_out
        rows = np.asarray(self.validation)
        D = training.X.shape[1]
        if rows.ndim != 2 or rows.shape[1] != D or not len(rows) or rows.dtype.kind not in "buif":
            raise InvalidInput(
                f"validation must be 'auto', None, or query rows (q, {D}) of numbers, "
                f"got shape {rows.shape} of {rows.dtype}."
            )
        check_finite(rows, training.workers, "validation")
        return training.scaling.apply(rows)

    def _warn_if_unfinished(self, outcome: Outcome) -> None:
        last = outcome.history[-1]
        if outcome.stopped == "schedule" and last.precision is None:
            warn(
                f"The penalty ended at mu={last.mu:.3g} with {last.mismatched} bits of Z unlike h(X). "
                "Raise max_iter or mu_factor, or extend mu_schedule.",
                ConvergenceWarning,
            )


class BinaryFactorAnalysis(_Trained):
    """Binary factor analysis (BFA): min Σ‖x − f(z)‖² over free codes z, then a classifier for each bit.

    As in the paper, MAC with a small, constant penalty: the filter approach to compare BA with.

    Parameters
    ----------
    n_bits : bits a code, 1 to 1024.
    init : as for BinaryAutoencoder; "tpca" works best for BFA in the paper.
    mu : the constant penalty, on data scaled to a largest range of 1.
    tol : the alternation ends when E_Q falls by less than this share.
    Other parameters as for BinaryAutoencoder.
    """

    def __init__(
        self, n_bits: int = 32, *, init: Any = "tpca", decoder: str = "linear", normalize: bool = False,
        mu: float = 1e-4, tol: float = 1e-4, C: float = 100.0, z_solver: str = "auto", z_start: str = "best",
        group_size: int = 1, z_options: dict[str, Any] | None = None, max_iter: int = 50,
        callback: Callable[[Record], object] | None = None, random_state: Any = None,
        n_jobs: int | None = None, verbose: int = 0,
    ) -> None:  # fmt: skip
        self.n_bits = n_bits
        self.init = init
        self.decoder = decoder
        self.normalize = normalize
        self.mu = mu
        self.tol = tol
        self.C = C
        self.z_solver = z_solver
        self.z_start = z_start
        self.group_size = group_size
        self.z_options = z_options
        self.max_iter = max_iter
        self.callback = callback
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _learn(self, training: Training) -> Learned:
        mu, tol = check_positive("mu", self.mu, most=LARGEST_MU), check_positive("tol", self.tol)
        max_iter = check_integer("max_iter", self.max_iter, 1)
        options = self._step_options(training.n_bits)
        start = first_codes(self.init, training)
        data = Rows(training.X, start.codes, training.workers, **options)
        steps = _until_settled(alternate(data, repeat(mu, max_iter), first=_first(data, start)), tol)
        outcome = follow(steps, callback=self._report, energy_unit=training.scaling.scale**2)
        h = data.h_step(outcome.h, exact=True)
        attributes = {"history_": outcome.history, "n_iter_": len(outcome.history)}
        return Learned(h, data.decoder_of(h), attributes)


def _first(data: Rows, start: Start) -> LinearEncoder | None:
    """The first hash function: the start's own, where it is linear, so that no SVM is fitted to its codes."""
    return data.adopt(start.encoder) if start.encoder is not None else None


def _until_settled(steps: Iterable[Any], tol: float) -> Iterable[Any]:
    """Pass steps on until E_Q falls by less than `tol` of itself."""
    previous = np.inf
    for step in steps:
        yield step
        if previous - step.report.E_Q <= tol * abs(step.report.E_Q):
            return
        previous = step.report.E_Q


def _show_log() -> None:
    """Let verbose=1 be seen where the program has not set up logging itself."""
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
    if logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)
