"""Fitting a binary autoencoder to rows that are not in memory: the same loop, by passes over a table."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from auxbit.core.checks import check_integer
from auxbit.core.codes import bytes_per_code, check_n_bits, pack_bools
from auxbit.core.maps import LinearEncoder, Scaling, encode
from auxbit.core.parallel import Workers, block_slices, is_dask_array, resolve_n_jobs, sample_rows
from auxbit.core.types import Array, Float32, Float64, Ids, Packed
from auxbit.data.rows import DEFAULT, Budget, RowSource, fingerprint, open_rows, take_rows
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.evaluate import Ranking, precision_recall_at_k
from auxbit.hashers.base import Hasher, Training, record_of
from auxbit.hashers.linear import axes_of
from auxbit.hashers.start import NAMES, check_codes, directions_by_name, fitted_start, sampled_rows
from auxbit.mac.checkpoint import CONTENT, Checkpoint, Prepared, identity
from auxbit.mac.cluster import dask_table
from auxbit.mac.loop import Record, Step, Walk, alternate, follow
from auxbit.mac.rows import CodePair, LocalPasses, ScaledRows
from auxbit.mac.steps import Passes, SummedRows, with_one
from auxbit.mac.validation import neighbours_to_find

if TYPE_CHECKING:
    from auxbit.hashers.autoencoder import BinaryAutoencoder

# ---- Tables of rows that are not in memory, and what a fit asks of them. Here: rows that this process reads
#
# dask_table.py has rows on a cluster.


class CodesOf(Protocol):
    """What makes first codes."""

    def __call__(self, raw: Array, places: Ids) -> Packed:
        """The codes of rows as they came, whose numbers in the table are `places`."""

    def part(self, start: int, stop: int) -> CodesOf:
        """The same, for no more than the rows start..stop of the table: what another machine needs of it."""


class TablePasses(Passes, Protocol):
    """Passes over the rows of a table that are not held out, with their codes."""

    count: int
    truth: Ids | None  # (q, K) the true neighbours of validation queries

    def fill(self, codes_of: CodesOf) -> None:
        """Let codes be made of rows as they came and their numbers in the table. A pass."""

    def nearest(self, queries: Float32, k: int) -> Ids:
        """The k nearest rows to each query, (q, k). A pass."""

    def places(self, rows: Ids) -> Ids:
        """The numbers in the table of these rows."""

    @property
    def present(self) -> int:
        """Which of two files the codes are in."""

    def sync(self) -> None:
        """Make the codes durable, where they are in a file."""


class Table(Protocol):
    """Rows somewhere."""

    @property
    def shape(self) -> tuple[int, int]:
        """(n, D)."""

    def about(self) -> dict[str, Any]:
        """What tells this table from another: a fit that goes on must have the same."""

    def measure(self, normalize: bool, held_out: Ids | None) -> Scaling:
        """Mean and range of all rows; refuses what is not finite. A pass.

        held_out : those that passes will leave out, as a table may lay out its shards by them.
        """

    def take(self, rows: Ids) -> Array:
        """These rows, rising, as they came."""

    def passes(
        self, scaling: Scaling, held_out: Ids | None, n_bits: int, folder: Path | None, present: int
    ) -> TablePasses:
        """Passes over the rows that are not held out; codes in files of `folder`, if one is given."""


class LocalTable:
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

    def measure(self, normalize: bool, held_out: Ids | None) -> Scaling:
        return Scaling.measure(self._source, self._workers, normalize=normalize)

    def take(self, rows: Ids) -> Array:
        return take_rows(self._source, rows)

    def passes(
        self, scaling: Scaling, held_out: Ids | None, n_bits: int, folder: Path | None, present: int
    ) -> LocalPasses:
        rows = ScaledRows(self._source, scaling, held_out)
        row_bytes = 4 * self.shape[1] + 9 * n_bits  # of the sample: a row, two scores and a label a bit
        sampled = self._budget.rows_of(row_bytes, 0.2, most=2**20)
        return LocalPasses(rows, CodePair(len(rows), n_bits, folder, present), self._workers, sampled)


# ---- Fitting a binary autoencoder to rows that are not in memory

CODES_SHARE = 0.25  # of the budget: codes that take more are kept in files
TAKEN_ROWS = 16_384  # as they came, at a time
FITTED_ROWS = 100_000  # that another method, to start from, is fitted to, and
FITTED_COPIES = 8  # of them that it may make


def is_large(X: Any, memory: object, checkpoint: object, client: object) -> bool:
    """Whether rows are to be read by passes: asked for, or X is no array, nor meant to become one."""
    if memory is not None or checkpoint is not None or client is not None:
        return True
    if isinstance(X, str | os.PathLike):
        return True
    sliced = hasattr(X, "shape") and hasattr(X, "__getitem__")
    # these become arrays if asked, but are used because they need not; SciPy's and pandas' are scikit-learn's
    elsewhere = type(X).__module__.partition(".")[0] in ("dask", "h5py", "zarr")
    known = any(hasattr(X, name) for name in ("__array__", "__array_interface__", "iloc", "tocsr"))
    return elsewhere or (sliced and not known)


def fit(
    model: BinaryAutoencoder, X: Any, memory: str | int | None,
    checkpoint: str | os.PathLike[str] | None, resume: bool, client: Any,
) -> None:  # fmt: skip
    """Fit `model` to rows that are read by passes, here or by the workers of a cluster."""
    budget = Budget.parse(DEFAULT if memory is None else memory)
    folder = None if checkpoint is None else Path(checkpoint)
    if resume and folder is None:
        raise InvalidInput("resume=True needs the checkpoint folder to go on from: checkpoint=…")
    on_cluster = client is not None or is_dask_array(X)
    if on_cluster and folder is not None:
        raise InvalidInput(
            "checkpoint= needs the codes here, and on a cluster they stay with the workers; what a lost "
            "worker had is computed again. Fit without checkpoint=, or without a client."
        )
    n_bits, n_jobs = check_n_bits(model.n_bits), resolve_n_jobs(model.n_jobs)
    rows = None if on_cluster else open_rows(X)
    if rows is not None and memory is not None:
        n_jobs = budget.threads(rows.shape[1], n_bits, n_jobs)
    with Workers(n_jobs) as workers:
        table: Table = dask_table(X, client) if rows is None else LocalTable(rows, budget, workers)
        fit_table(model, table, workers, budget, folder, resume)


@dataclass
class Fit:
    """What the parts of a fit share."""

    model: BinaryAutoencoder
    table: Table
    workers: Workers
    budget: Budget
    n_bits: int
    rng: np.random.RandomState


def fit_table(
    model: BinaryAutoencoder, table: Table, workers: Workers, budget: Budget, checkpoint: Path | None,
    resume: bool,
) -> None:  # fmt: skip
    """Fit `model` to the rows of a table, and set its attributes.

    checkpoint : a folder for the state after each iteration; resume : go on from the one in it, if any.
    """
    fit = Fit(model, table, workers, budget, check_n_bits(model.n_bits), model._generator())
    schedule, patience = model._schedule(), check_integer("patience", model.patience, 1)
    options = model._step_options(fit.n_bits)
    _refuse_what_needs_memory(model, options)
    kept = Checkpoint(checkpoint, identity(model, budget) | table.about()) if checkpoint is not None else None
    with ExitStack() as stack:
        if kept is not None:
            stack.callback(kept.close)
        resumed = kept.open(resume=resume) if kept is not None else None
        folder = checkpoint
        if folder is None and 2 * table.shape[0] * bytes_per_code(fit.n_bits) > CODES_SHARE * budget.total:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="auxbit-")))
        prepared = resumed.prepared if resumed is not None else _measured(fit)
        present = resumed.present if resumed is not None else 0
        passes = table.passes(prepared.scaling, prepared.held_out, fit.n_bits, folder, present)
        passes.count = resumed.passes if resumed is not None else 1
        if kept is not None and resumed is not None:
            kept.check_codes(resumed, passes)
        queries = _queries(fit, prepared)
        if resumed is None:
            prepared = _prepared(prepared, passes, queries)
        passes.truth = prepared.truth
        data = SummedRows(passes, prepared.gram, fit.n_bits, queries=queries, **options)
        walk, first, after = Walk(), None, None
        if resumed is not None:
            walk, after = resumed.walk, data.restore(resumed.state)
        else:
            first = _start(fit, data, passes, prepared)

        def report(record: Record) -> None:
            model.n_passes_ = passes.count  # so far, for a callback
            model._report(record)

        def keep(step: Step, walk: Walk) -> None:
            if kept is not None:
                kept.write(prepared, data.state(), walk, passes)

        outcome = follow(
            alternate(data, schedule[len(walk.history) :], first=first, after=after),
            precision=None if queries is None else lambda h: _precision(data, passes, h),
            patience=patience, callback=report, energy_unit=prepared.scaling.scale**2,
            walk=walk, on_step=keep,
        )  # fmt: skip
        model._warn_if_unfinished(outcome)
        h = data.refine(outcome.h) if outcome.stopped == "matched" and queries is None else outcome.h
        decoder = data.decoder_of(h)
        _set_attributes(fit, prepared, passes, h, decoder, outcome.history)


def _refuse_what_needs_memory(model: BinaryAutoencoder, options: dict[str, Any]) -> None:
    if model.decoder != "linear":
        raise InvalidParameter(
            "decoder", model.decoder, "'linear' for data that are not in memory",
            "Call fit_decoder on a sample of the rows afterwards.",
        )  # fmt: skip
    if options["z"].uses_relaxed:
        raise InvalidParameter(
            "z_options", model.z_options, "no admm_iterations for data that are not in memory"
        )


def _measured(fit: Fit) -> Prepared:
    if fit.table.shape[0] < 2:
        raise InvalidInput(f"X has {fit.table.shape[0]} row; a model needs at least 2 to be fitted to.")
    held_out = fit.model._hold_out(fit.table.shape[0], fit.rng)
    scaling = fit.table.measure(bool(fit.model.normalize), held_out)
    return Prepared(scaling, np.zeros((0, 0)), held_out, None)


def _prepared(measured: Prepared, passes: TablePasses, queries: Float32 | None) -> Prepared:
    products, total = passes.moments()
    gram = with_one(products, total, passes.n_rows)
    truth = None if queries is None else passes.nearest(queries, neighbours_to_find(passes.n_rows))
    return replace(measured, gram=gram, truth=truth)


def _queries(fit: Fit, prepared: Prepared) -> Float32 | None:
    """The validation queries, scaled."""
    held_out, D = None, fit.table.shape[1]
    if prepared.held_out is not None:
        held_out = prepared.scaling.apply(fit.table.take(prepared.held_out))
    nothing = np.empty((0, D), dtype=np.float32)
    training = Training(nothing, nothing, prepared.scaling, fit.n_bits, fit.workers, fit.rng, None, held_out)
    queries: Float32 | None = fit.model._queries(training)
    return queries


def _start(fit: Fit, data: SummedRows, passes: TablePasses, prepared: Prepared) -> LinearEncoder | None:
    """Make the first codes; returns the linear hash function that made them, if one did."""
    init, n, rng, n_bits = fit.model.init, passes.n_rows, fit.rng, fit.n_bits
    if isinstance(init, str) and init not in NAMES:
        raise InvalidParameter("init", init, f"one of {', '.join(NAMES)}, a hasher, or an array of codes")
    if isinstance(init, str) and init in ("itq", "tpca"):

        def take(rows: npt.NDArray[Any] | None) -> Float32:
            wanted = passes.places(np.arange(n) if rows is None else rows)
            out = np.empty((len(wanted), fit.table.shape[1]), dtype=np.float32)
            for some in block_slices(len(wanted), TAKEN_ROWS):
                out[some] = prepared.scaling.apply(fit.table.take(wanted[some]))
            return out

        def sample(most: int) -> Float32:
            row_bytes = 4 * (fit.table.shape[1] + 4 * n_bits)  # a row, and what ITQ makes of it
            return sampled_rows(n, fit.budget.rows_of(row_bytes, 0.4, most), rng, take)

        def axes(n_axes: int) -> Float64:
            return axes_of(prepared.gram[:-1, :-1], prepared.gram[-1, :-1], n, n_axes)

        shape = (n, passes.n_features)
        return data.begin(_encoder(directions_by_name(init, n_bits, shape, axes, sample, fit.workers, rng)))
    if isinstance(init, str) and init == "lsh":
        return data.begin(_encoder(rng.standard_normal((passes.n_features, n_bits))))
    passes.fill(_codes_of(fit, passes, prepared))
    return None


def _codes_of(fit: Fit, passes: TablePasses, prepared: Prepared) -> Any:
    """What makes the first codes of rows as they came, for starts that are not linear."""
    init, n_bits = fit.model.init, fit.n_bits
    if isinstance(init, str) and init == "random":
        return RandomCodes(int(fit.rng.randint(np.iinfo(np.int32).max)), n_bits)
    if isinstance(init, str | Hasher):
        most = fit.budget.rows_of(FITTED_COPIES * 8 * fit.table.shape[1], 1.0, FITTED_ROWS)
        rows = passes.places(sample_rows(passes.n_rows, most))
        hasher = fitted_start(init, n_bits, fit.rng, lambda: fit.table.take(rows), prepared.scaling)
        if hasher.n_features_in_ != fit.table.shape[1]:
            raise InvalidInput(f"init is for {hasher.n_features_in_} columns; X has {fit.table.shape[1]}.")
        return HasherCodes(hasher, prepared.scaling if isinstance(init, str) else None)
    return GivenCodes(check_codes(init, fit.table.shape[0], n_bits))


@dataclass(frozen=True)
class RandomCodes:
    """Random bits, the same for the same block of rows and seed."""

    seed: int
    n_bits: int

    def __call__(self, raw: Array, places: Ids) -> Packed:
        rng = np.random.default_rng([self.seed, int(places[0])])
        return pack_bools(rng.integers(0, 2, (len(raw), self.n_bits), dtype=np.uint8))

    def part(self, start: int, stop: int) -> RandomCodes:
        return self


@dataclass(frozen=True)
class HasherCodes:
    """The codes of a fitted hasher. scaling : rows are scaled before, where it was fitted to such."""

    hasher: Hasher
    scaling: Scaling | None

    def __call__(self, raw: Array, places: Ids) -> Packed:
        hasher = self.hasher
        rows = raw if self.scaling is None else self.scaling.apply(raw)
        return encode(rows, hasher.encoder_, hasher.scaling_, hasher.decoder_.n_bits, 1)

    def part(self, start: int, stop: int) -> HasherCodes:
        return self


@dataclass(frozen=True)
class GivenCodes:
    """Codes that the user gave, (m, n_bits) of 0/1, for the rows of the table from `first` on."""

    bits: npt.NDArray[np.uint8]
    first: int = 0

    def __call__(self, raw: Array, places: Ids) -> Packed:
        return pack_bools(self.bits[places - self.first])

    def part(self, start: int, stop: int) -> GivenCodes:
        return GivenCodes(self.bits[start - self.first : stop - self.first], start)


def _precision(data: SummedRows, passes: TablePasses, h: LinearEncoder) -> float:
    counts, hits = (each.astype(np.int64) for each in data.histograms(h))
    assert passes.truth is not None
    ranking = Ranking(np.zeros(passes.truth.shape, dtype=np.int64), counts, hits, passes.n_rows)
    return precision_recall_at_k(ranking, passes.truth.shape[1], ties="average").precision


def _set_attributes(
    fit: Fit, prepared: Prepared, passes: TablePasses, h: LinearEncoder, decoder: Any, history: list[Any]
) -> None:
    model, scaling = fit.model, prepared.scaling
    some = fit.table.take(passes.places(sample_rows(passes.n_rows)))
    model.scaling_, model.encoder_ = scaling, h
    model.decoder_ = decoder.in_units_of(scaling)
    model.history_, model.n_iter_, model.n_passes_ = history, len(history), passes.count
    model.n_features_in_ = fit.table.shape[1]
    if hasattr(model, "feature_names_in_"):  # of a fit before
        del model.feature_names_in_
    codes = encode(some, h, scaling, fit.n_bits, 1)
    model.training_ = record_of(some, codes, model.decoder_, scaling, passes.n_rows)


def _encoder(directions: Float64) -> LinearEncoder:
    return LinearEncoder(directions.astype(np.float32), np.zeros(directions.shape[1], np.float32))
