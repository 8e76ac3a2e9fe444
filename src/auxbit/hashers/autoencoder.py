"""The paper's two models as estimators: BinaryAutoencoder and BinaryFactorAnalysis."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from auxbit.core.checks import (
    Array,
    Bits,
    Float32,
    Float64,
    Ids,
    Packed,
    PathLike,
    as_array,
    check_integer,
    check_positive,
    warn,
)
from auxbit.core.features import (
    OwnFeatures,
    RbfFeatures,
    choose_anchors,
    given_bandwidth,
    median_distance_to,
)
from auxbit.core.maps import Features, LinearEncoder, Scaling, bytes_per_code, encode, pack_bools, unpack
from auxbit.core.parallel import draw_rows, sample_rows
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.hashers.anchor_graph import AnchorGraphHashing
from auxbit.hashers.base import Hasher
from auxbit.hashers.linear import leading_axes, random_rotation, rotated_axes, rows_to_rotate, signs_of
from auxbit.mac.affinity import MOST_ROWS, Affinity, label_numbers
from auxbit.mac.checkpoint import identity
from auxbit.mac.fit import (
    FITTED_COPIES,
    Beginning,
    Continued,
    FactorCodes,
    FeatureSample,
    Fitted,
    Place,
    Plan,
    SampledTable,
    Table,
    fit,
)
from auxbit.mac.h_step import SvmOptions
from auxbit.mac.loop import Record
from auxbit.mac.steps import Augmented, Objective, Reconstruction
from auxbit.mac.z_step import ZOptions
from auxbit.quantiser.fit import TableReconstruction

logger = logging.getLogger("auxbit")

H_SOLVERS = ("svm", "ridge")
DECODERS = ("linear", "tables")
PENALTIES = ("quadratic", "augmented")
ENCODERS = ("linear", "rbf")
DEFAULT_CENTRES, ROWS_PER_CENTRE, MOST_CENTRES = 1000, 10, 10_000
BANDWIDTHS = (0.35, 0.7)  # of the median distance between rows and centres; the first has the lowest error
MEASURED_ROWS = 2000  # for that distance
ON_MISS = ("continue", "return")
OBJECTIVES = ("reconstruction", "affinity")
BFA_SHARE = 0.01  # of the first μ of BA: the small, constant one of BFA

# What None means for a parameter. "paper" is sections 4 and 6 to the letter: relaxed solutions are those of
# the QP, by ADMM, and a μ that does not raise the validation precision is undone, until Z = h(X).
PRESETS: dict[str, dict[str, Any]] = {
    "default": {
        "init": "itq", "mu0": "auto", "mu_factor": 1.4, "mu": "auto", "C": "auto", "z_solver": "auto",
        "z_start": "best", "z_options": {}, "patience": 3, "on_miss": "continue",
    },
    "paper": {
        "init": "agh", "mu0": 0.01, "mu_factor": 2.0, "mu": 1e-4, "C": 100.0, "z_solver": "paper",
        "z_start": "relaxed", "z_options": {"admm_iterations": 100}, "patience": 50, "on_miss": "return",
    },
}  # fmt: skip
STREAM_ROWS = 20_000  # that partial_fit keeps
GONE_BACK, GONE_BACK_HALVES = 8.0, 6.0  # in μ, when a fit continues from a model by whole or half steps
FEW_ROWS = 5_000  # fits to fewer differ most by where they end: one that continues lets μ grow more slowly
LARGEST_MU = 1e12  # rows are scaled to a range of 1, so theorem 4.1 ends the path far below this


class _Trained(Hasher):
    """What both models share: fitting, parameters of the steps, history, saving."""

    history_: list[Record]
    n_iter_: int
    n_passes_: int | None = None
    C_: float
    preset: str
    group_size: int
    z_options: dict[str, Any] | None
    callback: Callable[[Record], object] | None
    verbose: int

    def fit(
        self, X: Any, y: object = None, *, memory: str | int | None = None,
        checkpoint: PathLike | None = None, resume: bool = False, client: Any = None,
        init: Hasher | None = None,
    ) -> Self:  # fmt: skip
        """Learn the hash function from the rows of X, (n, D).

        y : labels of the rows for objective="affinity", (n,) whole numbers or texts; ignored otherwise.
        X : an array or a DataFrame in memory, or a column of vectors, as df["embedding"]. Or rows that are
            read out of core, about twice per iteration: the path of an .npy, .fvecs, .bvecs, .h5 or .parquet
            file (or a folder of .parquet files), or any object with `shape` and row slices; or a dask array,
            whose chunks stay where they are.
        memory : a limit for all arrays together, as "1GB"; if given, an array is read out of core as well.
        checkpoint : a folder in which the state is saved after each iteration; with resume=True, an
            interrupted fit resumes from there and ends with the same model.
        client : a dask.distributed.Client, for a path that its workers can read.
        init : a fitted model of the same class and bits to continue from, for example one fitted to fewer
            rows: its hash function and features, its codes and its C are taken over, and μ starts at an
            eighth of that at which it was found (with fewer than 5,000 rows at a sixth, and it grows in half
            steps). It may be this model itself.

        All or nothing: if fit fails, the model stays as it was before.
        """
        if resume and checkpoint is None:
            raise InvalidInput("resume=True needs the folder to resume from: give checkpoint=FOLDER.")
        with self._all_or_nothing():
            n_bits = self.check_bits(self.n_bits)
            self._check_kept(checkpoint)
            rng, folder = self._generator(), None if checkpoint is None else Path(checkpoint)
            plan = self._plan(n_bits)
            with self._opened(X, n_bits, memory, client, checkpoint, n_features=plan.n_features) as place:
                labels, table, budget = self._labels(y), place.table, place.budget
                if isinstance(plan.objective, Affinity):
                    plan, table, labels = self._with_pairs(plan, labels, place, rng)
                    budget = None
                plan = plan if init is None else self._continued(plan, init, table.shape[0])
                fitted = fit(plan, table, place.workers, rng, budget=budget, checkpoint=folder, resume=resume)
                self._warn_of(fitted, continued=init is not None)
                labels = None if labels is None else labels[fitted.sampled]
                self._stream = Stream(fitted.sample, labels, float(fitted.n_rows), rng)
                self.history_, self.n_passes_ = fitted.outcome.history, fitted.n_passes
                self.n_iter_, self.C_ = len(self.history_), fitted.C
                self._adopt(
                    fitted.scaling, fitted.encoder, fitted.f, fitted.sample, fitted.n_rows, fitted.sampled
                )  # fmt: skip
        return self

    def partial_fit(
        self, X: Any, y: object = None, *, decay: float = 1.0, most_rows: int = STREAM_ROWS
    ) -> Self:
        """Update the model with one batch of a stream of rows. X : (n, D); y : as in fit.

        The model keeps a sample of all rows so far, at most `most_rows`, and is fitted to it; `fit` keeps
        4,096 of its rows. Model files, pickles and copies hold no sample. decay : the weight of earlier rows
        relative to this batch; below 1, old rows are gradually forgotten.

        All or nothing: if it fails, model and sample stay as they were.
        """
        decay = check_positive("decay", decay, most=1.0)
        most_rows = check_integer("most_rows", most_rows, 2)
        before: Stream | None = vars(self).get("_stream")
        if before is None and hasattr(self, "encoder_"):
            raise InvalidInput(
                "partial_fit has no earlier rows to continue with: models from files and copies keep none. "
                "Use fit(X, init=model), which continues from any model."
            )
        with self._all_or_nothing():
            raw = self._validate(X, reset=before is None)
            labels = self._labels(y)
            if labels is not None and len(labels) != len(raw):
                raise InvalidInput(f"y has {len(labels)} labels for {len(raw)} rows.")
            begun = before or Stream(raw[:0], None if labels is None else labels[:0], 0.0, self._generator())
            stream = begun.followed_by(raw, labels, decay, most_rows)
            names = vars(self).get("feature_names_in_")
            self.fit(stream.rows, stream.labels, init=None if before is None else self)
            self._stream = stream  # fit has kept fewer of them
            if names is not None:  # the sample is an array, without those of the batch
                self.feature_names_in_ = names
        return self

    def _labels(self, y: Any) -> Array | None:
        """Those that the objective is about, if it is about any."""
        given = y is not None and getattr(self, "objective", None) == "affinity"
        return as_array(y, "y").reshape(-1) if given else None

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_stream"}  # rows stay here

    def _plan(self, n_bits: int) -> Plan:
        """What is to be fitted, with all parameters checked: the start, which comes after, takes time."""
        raise NotImplementedError

    def _continued(self, plan: Plan, model: Hasher, n_rows: int) -> Plan:
        """The plan that continues from a fitted model, with so many rows."""
        if not isinstance(model, type(self)) or not hasattr(model, "history_"):
            raise InvalidInput(f"fit(init=…) takes a fitted {type(self).__name__} to continue from.")
        halves = n_rows < FEW_ROWS and getattr(self, "mu_schedule", None) is None
        kept = [each.mu for each in model.history_ if each.kept]
        back = GONE_BACK_HALVES if halves else GONE_BACK
        least = kept[-1] / back if kept and plan.settled is None else 0.0

        def rest(mu: float) -> list[float]:
            values = plan.schedule(mu)
            late = [each for each in values if each >= least] or values[-1:]
            return _with_means(late)[: len(values)] if halves else late

        features = self._kept_features(model)
        if features is not None:
            plan = replace(
                plan, features=partial(same_features, features, model.scaling_), linear_first=False
            )
        return replace(
            plan, schedule=rest, start=partial(continued, model, features), C=plan.C or model.C_ or None,
            refines=False,
            identity=lambda: plan.identity() | {"init": model.fingerprint()},
        )  # fmt: skip

    def _kept_features(self, model: Hasher) -> Features | None:
        """Those of the model, if this one is to have such features, of rows that are scaled alike."""
        features, theirs = getattr(model.encoder_, "features", None), model.scaling_
        alike = not (self.lift or theirs.lift) and bool(self.normalize) == theirs.normalize
        if isinstance(features, OwnFeatures):
            return features if alike and not isinstance(self.encoder, str) else None
        asked = self.n_centres in (None, model.n_centres) and self.bandwidth in (None, model.bandwidth)
        return features if alike and asked and self.encoder == "rbf" else None

    def _with_pairs(
        self, plan: Plan, labels: Array | None, place: Place, rng: np.random.RandomState
    ) -> tuple[Plan, Table, Array | None]:
        """With affinity: what pairs are made by, the rows that have them, in memory, and their labels."""
        (n_rows, D), init, most = place.table.shape, self._chosen("init"), MOST_ROWS
        if place.budget is not None:
            most = min(MOST_ROWS, place.budget.rows_of(FITTED_COPIES * 8 * D, 1.0, MOST_ROWS))
        numbers = None if labels is None else label_numbers(labels, n_rows)
        if labels is not None and not (plan.validation is None or isinstance(plan.validation, str)):
            raise InvalidParameter(
                "validation", "an array", "'auto' or None with labels",
                "'auto' holds out rows with their labels.",
            )  # fmt: skip
        seed = rng.randint(np.iinfo(np.int32).max)
        chosen = draw_rows(n_rows, most, rng) if n_rows > most else np.arange(n_rows)
        if labels is not None and numbers is not None:
            labels, numbers = labels[chosen], numbers[chosen]
        if not isinstance(init, str | Hasher):
            plan = replace(plan, start=partial(first_codes, _check_codes(init, n_rows, plan.n_bits)[chosen]))
        assert isinstance(plan.objective, Affinity)
        plan = replace(plan, objective=replace(plan.objective, labels=numbers, seed=seed))
        return plan, SampledTable(place.table, chosen, place.workers), labels

    def _chosen(self, name: str) -> Any:
        """A parameter, or what the preset says if it is None."""
        if not isinstance(self.preset, str) or self.preset not in PRESETS:
            raise InvalidParameter("preset", self.preset, " or ".join(map(repr, PRESETS)))
        given = getattr(self, name)
        return PRESETS[self.preset][name] if given is None else given

    def _shared_plan(self, n_bits: int, schedule: Callable[[float], list[float]], **options: Any) -> Plan:
        """The parts of a plan that both models have."""
        if self.callback is not None and not callable(self.callback):
            raise InvalidParameter("callback", self.callback, "None or something that can be called")
        z_solver, z_options = self._chosen("z_solver"), self._chosen("z_options")
        if z_solver == "paper":
            z_solver = "enumerate" if n_bits < 16 else "alternating"
        z = ZOptions.resolve(n_bits, z_solver, self._chosen("z_start"), self.group_size, z_options)
        h_solver = getattr(self, "h_solver", "svm")
        if h_solver not in H_SOLVERS:
            raise InvalidParameter("h_solver", h_solver, " or ".join(map(repr, H_SOLVERS)))
        C = _number_or_auto("C", self._chosen("C"))
        return Plan(
            n_bits, schedule, SvmOptions(ridge=h_solver == "ridge"), self._objective(z),
            partial(first_codes, self._chosen("init")), C=C, report=self._report,
            identity=lambda: identity(self.get_params(deep=False)),
            **options | self._preparation() | self._features(),
        )  # fmt: skip

    def _features(self) -> dict[str, Any]:
        """What a plan says of features."""
        if isinstance(self.encoder, str) and self.encoder not in ENCODERS:
            allowed = f"{' or '.join(map(repr, ENCODERS))}, or an object that can be called with rows"
            raise InvalidParameter("encoder", self.encoder, allowed)
        n_centres = self.n_centres
        if n_centres is not None:
            n_centres = check_integer("n_centres", n_centres, 1, MOST_CENTRES, "Try n_centres=1000.")
        if self.bandwidth is not None:
            check_positive("bandwidth", self.bandwidth, remedy="It is a distance in the units of X.")
        if not isinstance(self.encoder, str):
            return {"features": partial(own_features, self.encoder)}
        if self.encoder == "linear":
            return {}
        features = partial(rbf_features, n_centres, self.bandwidth)
        return {"features": features, "n_features": n_centres or DEFAULT_CENTRES}

    def _check_kept(self, checkpoint: object) -> None:
        if checkpoint == "":  # which Path takes for the current folder
            raise InvalidParameter("checkpoint", checkpoint, "a folder", "Use '.' for the current one.")
        if checkpoint is not None and not isinstance(self.encoder, str):
            raise InvalidParameter(
                "encoder", self.encoder, "'linear' or 'rbf' with checkpoint=",
                "A checkpoint cannot hold objects of your own: leave checkpoint out.",
            )  # fmt: skip
        if checkpoint is not None and getattr(self, "objective", None) == "affinity":
            raise InvalidParameter(
                "objective", "affinity", "'reconstruction' with checkpoint=",
                f"It trains on at most {MOST_ROWS:,} rows in memory: leave checkpoint out, and fit again.",
            )  # fmt: skip

    def _objective(self, z: ZOptions) -> Objective:
        """What codes are to be good for."""
        penalty = getattr(self, "penalty", "quadratic")
        for name, value, allowed in (("decoder", self.decoder, DECODERS), ("penalty", penalty, PENALTIES)):
            if not isinstance(value, str) or value not in allowed:
                raise InvalidParameter(name, value, " or ".join(map(repr, allowed)))
        if penalty == "augmented" and (self.decoder == "tables" or z.scans):
            raise InvalidParameter(
                "penalty", penalty, "'quadratic' with tables, z_solver='enumerate' or a group_size above 6"
            )
        if self.decoder == "tables":
            return TableReconstruction()
        return Augmented(z) if penalty == "augmented" else Reconstruction(z)

    def _warn_of(self, fitted: Fitted, *, continued: bool) -> None:
        """Say what a user would not see: that nothing was learned. One that continues may have nothing to."""
        first = fitted.outcome.history[0]
        if first.changed == 0 and not continued:
            warn(
                f"the first Z step, with mu={first.mu:.3g}, changed no bit: nothing was learned beyond init. "
                "If you set mu0, mu or mu_schedule, try a smaller value, or leave it at None. Otherwise no "
                "other bit would lower the error, as happens if rows lie in tight clusters. Try more bits or "
                "another init.",
                ConvergenceWarning,
            )

    def _report(self, record: Record, n_passes: int | None) -> None:
        self.n_passes_ = n_passes  # so far, for a callback
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
        history = [asdict(record) for record in self.history_]
        saved = {"history_": history, "n_iter_": self.n_iter_, "C_": self.C_}
        return saved if self.n_passes_ is None else saved | {"n_passes_": self.n_passes_}

    def _restore_attributes(self, saved: dict[str, Any]) -> None:
        self.history_ = [Record(**record) for record in saved["history_"]]
        self.n_iter_, self.n_passes_ = saved["n_iter_"], saved.get("n_passes_")
        self.C_ = saved.get("C_", getattr(self, "C", None)) or 0.0  # C was always a number once


@dataclass(frozen=True)
class Stream:
    """A sample of the rows that `partial_fit` was given. weight : of all rows so far, faded.

    labels : of the rows; None if they have none.
    """

    rows: Array
    labels: Array | None
    weight: float
    rng: np.random.RandomState

    def followed_by(self, raw: Array, labels: Array | None, decay: float, most: int) -> Stream:
        """With a further batch, whose share of the sample is its share of the weight."""
        if (labels is None) != (self.labels is None):
            raise InvalidInput("give labels, y, with all batches of a stream or with none.")
        weight, rng = decay * self.weight + len(raw), copy.deepcopy(self.rng)
        room = min(most, len(self.rows) + len(raw))
        new = min(len(raw), max(1, round(room * len(raw) / weight)))
        old = min(len(self.rows), room - new)
        new = min(len(raw), room - old)
        chosen = draw_rows(len(self.rows), old, rng), draw_rows(len(raw), new, rng)
        rows = np.concatenate([self.rows[chosen[0]], raw[chosen[1]]])
        if labels is not None and self.labels is not None:
            labels = np.concatenate([self.labels[chosen[0]], labels[chosen[1]]])
        return Stream(rows, labels, weight, rng)


class BinaryAutoencoder(_Trained):
    """Binary autoencoder (BA): min Σ‖x − f(h(x))‖² (eq. 2) over linear hash functions h and decoders f.

    >>> from sklearn.datasets import load_digits
    >>> from auxbit import BinaryAutoencoder, HammingIndex
    >>> X = load_digits().data
    >>> ba = BinaryAutoencoder(n_bits=16, random_state=0).fit(X)
    >>> codes = ba.encode(X)  # packed, two bytes per row
    >>> codes.shape, ba.transform(X).shape, ba.decode(codes).shape
    ((1797, 2), (1797, 16), (1797, 64))
    >>> index = HammingIndex(model=ba)
    >>> index.add(codes)
    >>> distances, ids = index.search(ba.encode(X[:5]), k=3)
    >>> distances[:, 0].tolist()
    [0, 0, 0, 0, 0]

    Parameters
    ----------
    n_bits : bits per code, 1 to 1024.
    preset : the values of parameters that are None. "default": init="itq", mu0="auto", mu_factor=1.4,
        C="auto", z_solver="auto", z_start="best", patience=3, on_miss="continue". "paper": init="agh",
        mu0=0.01, mu_factor=2, C=100, enumeration below 16 bits and alternation from there on,
        z_start="relaxed" with z_options={"admm_iterations": 100}, patience=50, on_miss="return".
    init : where the codes start: "itq", "agh", "tpca", "bfa", "lsh", "random", "auto" (the one of the first
        four that leads to the lowest error on a sample), a hasher (fitted ones are used as they are), or an
        array of codes with a row for each row of X.
    encoder : the input of the linear function h. "linear": the row. "rbf": the row and Gaussian features,
        exp(−‖x − c‖²/2σ²) for each of `n_centres` centres c. Or a callable of your own, or a transformer of
        scikit-learn, that takes rows, (n, D), in the units of X, and returns features, (n, m); several
        threads may call it at once; if it has `fit`, a copy of it is fitted to a sample first. The fit starts
        from that of a linear h, and its error is never higher (with validation: its precision never lower).
    n_centres : number of centres of encoder="rbf", from k-means on at most 10,000 rows; None: 1,000, or a
        tenth of the rows if there are fewer than 10,000.
    bandwidth : σ of encoder="rbf", in the units of X. None: a share of the median distance between rows and
        centres, 0.35 or 0.7, by validation precision of short fits to a sample; 0.35 without validation.
    decoder : f, "linear" (one vector per bit) or "tables" (one vector per value of each byte; the parameters
        z_… are then unused, and codes of rows that are not in memory have at most 128 bits). Either way f is
        fitted to hash codes; fit_decoder replaces it by one fitted to optimal codes.
    normalize : divide rows by their norms, to find neighbours by cosine.
    lift : add a coordinate to the rows, to find neighbours by inner product; queries are then encoded by
        encode(X, queries=True).
    penalty : "quadratic", μ‖z − h(x)‖²; or "augmented", which adds multipliers (only for rows in memory).
    mu0, mu_factor : the penalty starts at mu0 and is multiplied by mu_factor after each step. The paper's
        factor is 2; a smaller one takes longer and ends with less error (see docs/training.md). mu0="auto":
        0.01, as in the paper, or less if that would prevent most changes (outliers, long codes, text
        embeddings).
    mu_schedule : a rising list of penalties instead of mu0 and mu_factor.
    steps_per_mu : alternations for each value of the penalty.
    C : weight of the slack in the SVMs of the h step. "auto": large, as in the paper, or one of two smaller
        values if that gives a higher validation precision; `C_` is the one used.
    h_solver : "svm"; or "ridge", least squares to ±1 instead of SVMs: it needs no pass over the rows.
    z_solver : "auto" (exact to 16 bits, alternating above), "exact" (branch and bound), "enumerate" (the
        paper's, to 24 bits), "alternating".
    z_start : what alternation starts from: "warm", the old code; "relaxed", as in the paper, the better of
        that and the binarised relaxed solution; "best", each of the two, keeping the better result per row.
    group_size : bits optimised jointly by alternation; costs 2^group_size.
    z_options : switches of the Z step: theorem_4_3, running_bound, incremental, optimality (or a list of
        conditions: "necessary", "beck", "jeyakumar", "xia"; the second and third by default); admm_iterations
        (0: the relaxed solution is the one without the box, clipped to it) and admm_tol; max_nodes of
        branch and bound per point; history_ counts the points that ran out of them as unproven.
    validation : "auto" holds out a tenth of the rows (at most 1,000) as queries and returns the model with
        the best precision on them (with fewer than 100 rows: None); an array of rows: those are the queries;
        None: run until Z = h(X) (theorem 4.1).
    patience : how many values of μ in a row may fail to raise the validation precision.
    on_miss : after a μ that fails to: "continue" from its codes, or "return" to the best codes so far.
    max_iter : the most iterations.
    callback : called after each iteration with its Record.
    random_state : seed. The same seed gives the same bits for any n_jobs.
    n_jobs : threads; None for all cores.
    verbose : 1 logs each iteration.
    objective : "reconstruction", the paper's; or "affinity" (supervised hashing): rows with the same label,
        y of fit(X, y), get similar codes, and other rows different ones. Without y, Euclidean neighbours
        get similar codes, which is seldom better than "reconstruction" (docs/training.md). It trains on at
        most 10,000 rows, a sample if there are more. z_solver to z_options are unused; history_ has this
        loss instead of squared errors; with labels, validation="auto" counts rows with the query's label
        as true neighbours. The decoder is fitted at the end.
    n_neighbors : with "affinity", how many similar rows each row is compared with, and about as many others.

    Attributes
    ----------
    encoder_, decoder_ : h on scaled rows, f in the units of X, fitted to all rows.
    history_ : one Record per iteration.
    n_iter_ : number of iterations.
    n_passes_ : how often all rows were read; None if they were in memory.
    """

    def __init__(
        self, n_bits: int = 32, *, preset: str = "default", init: Any = None, encoder: Any = "linear",
        n_centres: int | None = None, bandwidth: float | None = None, decoder: str = "linear",
        normalize: bool = False, lift: bool = False, penalty: str = "quadratic",
        mu0: float | str | None = None, mu_factor: float | None = None, mu_schedule: Any = None,
        steps_per_mu: int = 1, C: float | str | None = None, h_solver: str = "svm",
        z_solver: str | None = None, z_start: str | None = None, group_size: int = 1,
        z_options: dict[str, Any] | None = None, validation: Any = "auto", patience: int | None = None,
        on_miss: str | None = None, max_iter: int = 50, callback: Callable[[Record], object] | None = None,
        random_state: Any = None, n_jobs: int | None = None, verbose: int = 0,
        objective: str = "reconstruction", n_neighbors: int = 50,
    ) -> None:  # fmt: skip
        self.n_bits = n_bits
        self.preset = preset
        self.init = init
        self.encoder = encoder
        self.n_centres = n_centres
        self.bandwidth = bandwidth
        self.decoder = decoder
        self.normalize = normalize
        self.lift = lift
        self.penalty = penalty
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
        self.on_miss = on_miss
        self.max_iter = max_iter
        self.callback = callback
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.objective = objective
        self.n_neighbors = n_neighbors

    def _plan(self, n_bits: int) -> Plan:
        patience = check_integer("patience", self._chosen("patience"), 1)
        on_miss = self._chosen("on_miss")
        if on_miss not in ON_MISS:
            raise InvalidParameter("on_miss", on_miss, " or ".join(map(repr, ON_MISS)))
        options = {"validation": self.validation, "patience": patience, "returns": on_miss == "return"}
        return self._shared_plan(n_bits, self._schedule(), **options)

    def _objective(self, z: ZOptions) -> Objective:
        n_neighbors = check_integer("n_neighbors", self.n_neighbors, 1, remedy="Try n_neighbors=50.")
        if not isinstance(self.objective, str) or self.objective not in OBJECTIVES:
            raise InvalidParameter("objective", self.objective, " or ".join(map(repr, OBJECTIVES)))
        reconstruction = super()._objective(z)
        if self.objective != "affinity":
            return reconstruction
        if type(reconstruction) is not Reconstruction:
            raise InvalidParameter(
                "objective", "affinity", "'reconstruction' with decoder='tables' or penalty='augmented'"
            )
        return Affinity(n_neighbors)

    def _schedule(self) -> Callable[[float], list[float]]:
        """Section 4.4: μ for each iteration, given the one that suits the rows."""
        steps = check_integer("steps_per_mu", self.steps_per_mu, 1)
        max_iter = check_integer("max_iter", self.max_iter, 1)
        given = self.mu_schedule
        if given is not None:
            if not isinstance(given, (list, tuple, np.ndarray)):
                raise InvalidParameter("mu_schedule", given, "a rising list of positive numbers")
            values = [check_positive("mu_schedule", value, most=LARGEST_MU) for value in given]
            if not values or any(b <= a for a, b in pairwise(values)):
                raise InvalidParameter("mu_schedule", given, "a rising list of positive numbers")
            return lambda mu: [mu for mu in values for _ in range(steps)][:max_iter]
        mu0 = _number_or_auto("mu0", self._chosen("mu0"), most=LARGEST_MU)
        factor = self._chosen("mu_factor")
        factor = check_positive("mu_factor", factor, above=1.0, remedy="The paper's is 2.")

        def growing(mu: float) -> list[float]:
            values: list[float] = []
            mu = mu if mu0 is None else mu0
            while mu <= LARGEST_MU and len(values) < max_iter:
                values += [mu] * steps
                mu *= factor
            return values[:max_iter]

        return growing

    def _warn_of(self, fitted: Fitted, *, continued: bool) -> None:
        super()._warn_of(fitted, continued=continued)
        outcome, start = fitted.outcome, fitted.start_precision
        last = outcome.history[-1]
        if outcome.stopped == "schedule" and last.precision is None:
            warn(
                f"the fit ended at mu={last.mu:.3g}, with {last.mismatched} bits of Z that differ from h(X). "
                "Raise max_iter or mu_factor, or extend mu_schedule.",
                ConvergenceWarning,
            )
        best = max((each.precision or 0.0 for each in outcome.history), default=0.0)
        if start is not None and start > best and not continued:
            warn(
                f"the method of init has a higher validation precision ({start:.3f}) than the autoencoder "
                f"that starts from it ({best:.3f}). Use that method itself, or another init.",
                ConvergenceWarning,
            )


class BinaryFactorAnalysis(_Trained):
    """Binary factor analysis (BFA): min Σ‖x − f(z)‖² over free codes z, then a classifier for each bit.

    >>> from sklearn.datasets import load_digits
    >>> from auxbit import BinaryFactorAnalysis
    >>> X = load_digits().data
    >>> bfa = BinaryFactorAnalysis(n_bits=16, random_state=0).fit(X)
    >>> bfa.encode(X).shape  # packed: two bytes per row
    (1797, 2)

    As in section 4 of the paper: MAC (the method of auxiliary coordinates, which also fits BA) with a small,
    constant penalty. The hash function is fitted only at the end: a baseline for BA.

    Parameters
    ----------
    n_bits : bits per code, 1 to 1024.
    init : as for BinaryAutoencoder; None: "tpca", which works best for BFA in the paper.
    mu : the constant penalty, on data scaled to a largest range of 1. "auto", or None with the default
        preset: a hundredth of what BinaryAutoencoder's mu0 would be.
    tol : the fit ends when an iteration lowers the error E_Q by less than this share.
    The other parameters are those of BinaryAutoencoder.
    """

    def __init__(
        self, n_bits: int = 32, *, preset: str = "default", init: Any = None, encoder: Any = "linear",
        n_centres: int | None = None, bandwidth: float | None = None, decoder: str = "linear",
        normalize: bool = False, lift: bool = False, mu: float | str | None = None, tol: float = 1e-4,
        C: float | str | None = None, z_solver: str | None = None, z_start: str | None = None,
        group_size: int = 1, z_options: dict[str, Any] | None = None, max_iter: int = 50,
        callback: Callable[[Record], object] | None = None, random_state: Any = None,
        n_jobs: int | None = None, verbose: int = 0,
    ) -> None:  # fmt: skip
        self.n_bits = n_bits
        self.preset = preset
        self.init = init
        self.encoder = encoder
        self.n_centres = n_centres
        self.bandwidth = bandwidth
        self.decoder = decoder
        self.normalize = normalize
        self.lift = lift
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

    def _plan(self, n_bits: int) -> Plan:
        given, tol = self._chosen("mu"), check_positive("tol", self.tol)
        constant = _number_or_auto("mu", given, most=LARGEST_MU)
        max_iter = check_integer("max_iter", self.max_iter, 1)

        def schedule(mu: float) -> list[float]:
            return [BFA_SHARE * mu if constant is None else constant] * max_iter

        return self._shared_plan(n_bits, schedule, settled=tol)

    def _chosen(self, name: str) -> Any:
        return "tpca" if name == "init" and self.init is None else super()._chosen(name)


def _number_or_auto(name: str, value: Any, **limits: Any) -> float | None:
    """A positive number, or None for "auto"."""
    if isinstance(value, str) and value != "auto":
        raise InvalidParameter(name, value, "'auto' or a positive number")
    return None if isinstance(value, str) else check_positive(name, value, **limits)


# ---- Features to choose from, of a sample


def rbf_features(n_centres: int | None, bandwidth: float | None, sample: FeatureSample) -> list[RbfFeatures]:
    """Gaussian features to the centres of k-means, by bandwidths to choose from, or by one in units of X."""
    X, workers = sample.X, sample.workers
    wanted = min(DEFAULT_CENTRES, max(1, len(X) // ROWS_PER_CENTRE)) if n_centres is None else n_centres
    centres = choose_anchors(X, wanted, workers, sample.rng)
    if bandwidth is not None:
        return [RbfFeatures.of(centres, given_bandwidth(bandwidth, sample.scaling), X)]
    distance = median_distance_to(X[sample_rows(len(X), MEASURED_ROWS)], centres)
    return [RbfFeatures.of(centres, share * distance, X) for share in BANDWIDTHS]


def own_features(encoder: Any, sample: FeatureSample) -> list[OwnFeatures]:
    """Those of a copy of the user's object."""
    return [OwnFeatures.of(clone(encoder, safe=False), sample.X, sample.scaling)]


def same_features(features: Features, theirs: Scaling, sample: FeatureSample) -> list[Features]:
    """Those of a model, for rows that are scaled as the sample."""
    return [features.rescaled(theirs, sample.scaling)]


def _show_log() -> None:
    """Let verbose=1 be seen where the program has not set up logging itself."""
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
    if logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)


# ---- Where MAC starts (section 6): the first codes Z, from a method's name, a hasher, or an array

STARTS = ("itq", "agh", "tpca", "bfa", "lsh", "random", "auto")
COMPARED_STARTS, COMPARED_ROWS = ("itq", "agh", "tpca", "bfa"), 5000  # by init="auto"

# ITQ as a start is run from a few rotations to its end, which momentum brings nearer and makes a better
# one: where MAC ends depends on the start as much as on the schedule (docs/performance.md)
ITQ_ITERATIONS, ITQ_ROWS, ITQ_MOMENTUM = 50, 200_000, 1.0
MOST_ROTATIONS, ROTATED_BITS = 8, 256  # the more bits, the less rotations differ and the more they cost
AGH_ANCHORS = 300


def first_codes(init: Any, given: Beginning) -> LinearEncoder | FactorCodes | FirstCodes:
    """The hash function that MAC starts from, or, if the start has no linear one, its codes."""
    if isinstance(init, Hasher):
        return _by_hasher(init, given)
    if not isinstance(init, str):
        return GivenCodes(_check_codes(init, given.table.shape[0], given.n_bits))
    if init not in STARTS:
        raise InvalidParameter("init", init, f"one of {', '.join(STARTS)}, a hasher, or an array of codes")
    if init == "random":
        return _random_codes(given)
    if init == "auto":
        return first_codes(_best_start(given), given)
    if init == "bfa":
        return FactorCodes(signs_of(_directions("tpca", given)))
    if init == "agh":
        seed = given.rng.randint(np.iinfo(np.int32).max)
        anchors = max(AGH_ANCHORS, given.n_bits + 1)
        hasher = AnchorGraphHashing(given.n_bits, n_anchors=anchors, random_state=seed)
        return HasherCodes(hasher.fit(given.X), given.scaling)
    if init == "lsh":
        directions = given.rng.standard_normal((given.shape[1], given.n_bits))
    else:
        directions = _directions(init, given)
    return signs_of(directions)


def _best_start(given: Beginning) -> str:
    """The start that leads to the lowest error on a sample, with μ doubled each time."""
    rows, errors = given.raw(sample_rows(given.shape[0], COMPARED_ROWS)), {}
    seed = int(given.rng.randint(np.iinfo(np.int32).max))
    for name in COMPARED_STARTS:
        model = BinaryAutoencoder(
            given.n_bits, init=name, normalize=given.scaling.normalize, lift=given.scaling.lift > 0,
            mu_factor=2.0, validation=None, random_state=seed, n_jobs=given.workers.n_jobs,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:
                errors[name] = -model.fit(rows).score(rows)
            except InvalidInput:  # too few rows for this start
                continue
    return min(errors, key=errors.__getitem__)


def _directions(name: str, given: Beginning) -> Float64:
    """The projections that "itq" and "tpca" start with, (D, n_bits), whose signs are the bits."""
    (n, D), n_bits, rng = given.shape, given.n_bits, given.rng
    n_axes = min(n_bits, n, D)
    directions = leading_axes(given, n_axes)
    if name == "itq":
        n_init = max(1, min(MOST_ROTATIONS, ROTATED_BITS // n_bits))
        rows = given.scaled(rows_to_rotate(given, ITQ_ROWS))
        directions = rotated_axes(
            rows, directions, given.workers, rng,
            n_iter=ITQ_ITERATIONS, n_init=n_init, momentum=ITQ_MOMENTUM,
        )  # fmt: skip
    if n_axes < n_bits:
        directions = np.hstack([directions, _random_directions(directions, n_bits - n_axes, rng)])
        warn(
            f"init={name!r} has axes for only {n_axes} of n_bits={n_bits} bits: the other "
            f"{n_bits - n_axes} start from random rotations of them.",
        )
    return directions


def _random_directions(axes: Float64, n: int, rng: np.random.RandomState) -> Float64:
    """`n` directions in the span of `axes`, from as many random rotations as it takes."""
    rotations = [axes @ random_rotation(axes.shape[1], rng) for _ in range(-(-n // axes.shape[1]))]
    return np.hstack(rotations)[:, :n]


def _by_hasher(init: Hasher, given: Beginning) -> LinearEncoder | HasherCodes:
    """The hash function of a hasher, or its codes: as it is if fitted, else a clone fitted to these rows."""
    hasher, D = init, given.table.shape[1]
    if init.n_bits != given.n_bits:
        raise InvalidInput(f"init has {init.n_bits} bits, but n_bits={given.n_bits}.")
    if not hasattr(init, "encoder_"):
        hasher = clone(init)
        if hasher.random_state is None:  # so that our own seed decides
            hasher.set_params(random_state=given.rng.randint(np.iinfo(np.int32).max))
        hasher.fit(given.raw(given.at_hand()))
    if hasher.n_features_in_ != D:
        raise InvalidInput(f"init was fitted to {hasher.n_features_in_} columns, but X has {D}.")
    h, (ours, theirs) = hasher.encoder_, (given.scaling, hasher.scaling_)
    if not isinstance(h, LinearEncoder) or (ours.normalize, ours.lift) != (theirs.normalize, theirs.lift):
        return HasherCodes(hasher, None)
    return _for_scaling(h.weights, h.bias, theirs, ours)


def _for_scaling(weights: Float32, bias: Float32, theirs: Scaling, ours: Scaling) -> LinearEncoder:
    """For rows that are scaled as ours, from one of rows scaled as theirs; features are the same of both."""
    D, W = len(ours.mean), weights.astype(np.float64)
    moved = bias + (ours.mean - theirs.mean) / theirs.scale @ W[:D]
    W[:D] *= ours.scale / theirs.scale
    return LinearEncoder(W.astype(np.float32), moved.astype(np.float32))


def _with_means(values: list[float]) -> list[float]:
    """Rising values, and between any two of them their geometric mean."""
    return [each for a, b in pairwise(values) for each in (a, (a * b) ** 0.5)] + values[-1:]


def continued(model: Hasher, features: object, given: Beginning) -> Continued | HasherCodes:
    """What continues from a fitted model; features : its own, if they are kept."""
    found = _by_hasher(model, given)
    if features is not None:
        h: Any = model.encoder_
        return Continued(_for_scaling(h.weights, h.bias, model.scaling_, given.scaling))
    return Continued(found) if isinstance(found, LinearEncoder) else found


def _random_codes(given: Beginning) -> RandomCodes | GivenCodes:
    n, n_bits = given.shape[0], given.n_bits
    if given.budget is not None:  # blocks that know nothing of each other
        return RandomCodes(int(given.rng.randint(np.iinfo(np.int32).max)), n_bits)
    bits = np.zeros((given.table.shape[0], n_bits), dtype=np.uint8)
    bits[given.rows.places(np.arange(n))] = given.rng.randint(0, 2, (n, n_bits))
    return GivenCodes(bits)


class FirstCodes(Protocol):
    """What makes first codes."""

    def __call__(self, raw: Array, places: Ids) -> Packed:
        """The codes of rows as they came, whose numbers in the table are `places`."""

    def of_queries(self, raw: Array) -> Packed | None:
        """The codes that the start's own hash function gives to other rows, None if it has none."""

    def part(self, start: int, stop: int) -> FirstCodes:
        """The same, for no more than the rows start..stop of the table: what another machine needs of it."""


@dataclass(frozen=True)
class RandomCodes:
    """Random bits, the same for the same block of rows and seed."""

    seed: int
    n_bits: int

    def __call__(self, raw: Array, places: Ids) -> Packed:
        rng = np.random.default_rng([self.seed, int(places[0])])
        return pack_bools(rng.integers(0, 2, (len(raw), self.n_bits), dtype=np.uint8))

    def of_queries(self, raw: Array) -> None:
        """Random bits have no hash function."""

    def part(self, start: int, stop: int) -> RandomCodes:
        return self


@dataclass(frozen=True)
class HasherCodes:
    """The codes of a fitted hasher. scaling : of the rows before, if it was fitted to scaled ones."""

    hasher: Hasher
    scaling: Scaling | None

    def __call__(self, raw: Array, places: Ids) -> Packed:
        hasher = self.hasher
        rows = raw if self.scaling is None else self.scaling.apply(raw)
        return encode(rows, hasher.encoder_, hasher.scaling_, hasher.decoder_.hash_bits, 1)

    def of_queries(self, raw: Array) -> Packed:
        return self(raw, np.arange(len(raw)))

    def part(self, start: int, stop: int) -> HasherCodes:
        return self


@dataclass(frozen=True)
class GivenCodes:
    """Codes that the user gave, (m, n_bits) of 0/1, for the rows of the table from `first` on."""

    bits: Bits
    first: int = 0

    def __call__(self, raw: Array, places: Ids) -> Packed:
        return pack_bools(self.bits[places - self.first])

    def of_queries(self, raw: Array) -> None:
        """Only the rows have codes."""

    def part(self, start: int, stop: int) -> GivenCodes:
        return GivenCodes(self.bits[start - self.first : stop - self.first], start)


def _check_codes(init: Any, n_rows: int, n_bits: int) -> Bits:
    """Codes that the user gave, packed or not, as (n, n_bits) of 0/1."""
    codes = as_array(init, "init")
    wanted = f"an (n, {n_bits}) array of 0 and 1 or packed codes (n, {bytes_per_code(n_bits)}) of uint8"
    if codes.ndim != 2 or codes.dtype.kind not in "uib" or len(codes) != n_rows:
        raise InvalidInput(
            f"init must be {wanted} with n={n_rows}, got shape {codes.shape} of {codes.dtype}."
        )
    if codes.shape[1] == n_bits and ((codes == 0) | (codes == 1)).all():
        return np.array(codes, dtype=np.uint8, order="C")
    if codes.shape[1] == bytes_per_code(n_bits) and codes.dtype == np.uint8:
        return unpack(codes, n_bits)
    raise InvalidInput(
        f"init must be {wanted}, got shape {codes.shape} with values {codes.min()} to {codes.max()}."
    )
