"""Several methods and numbers of bits side by side: a row for each method, bits and seed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from auxbit import evaluate
from auxbit.core.checks import check_finite, check_integer
from auxbit.core.codes import check_n_bits
from auxbit.core.parallel import Workers, block_slices, resolve_n_jobs
from auxbit.core.types import Array, Packed
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.evaluate import ground_truth
from auxbit.experiments.study import Row, RowKey
from auxbit.hashers.registry import DEFAULT_METHODS, find_method, make_hasher

if TYPE_CHECKING:
    from auxbit.hashers.base import Hasher

# ---- Product quantisation by FAISS at equal bits: PQ and OPQ, searched asymmetrically (the query is
# not coded).
#
# Not Hamming codes, so rows of their own in a comparison: what the same bits give to a slower search.

# with fewer rows FAISS's threads mostly wait: OPQ of the digits took 19 s on two of them, 1.6 s on one
MANY_ROWS = 50_000
MAX_CENTROID_BITS, USUAL_CENTROID_BITS = 12, 8


@contextmanager
def faiss_threads(n_jobs: int | None) -> Iterator[None]:
    """Let FAISS use that many threads for the length of the block."""
    import faiss

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(resolve_n_jobs(n_jobs))
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


class Shape(NamedTuple):
    """M parts of the vector, each coded in `n_bits` bits."""

    M: int
    n_bits: int


def choose_shape(bits: int, n_dims: int, n_train: int) -> Shape:
    """M and its bits with M * n_bits = bits, M dividing the dimensions, and n_bits nearest to the usual 8."""
    most = min(MAX_CENTROID_BITS, int(np.log2(max(n_train, 1))))
    found = [
        Shape(bits // each, each)
        for each in range(1, most + 1)
        if bits % each == 0 and n_dims % (bits // each) == 0
    ]
    if not found:
        raise InvalidParameter(
            "bits",
            bits,
            f"M × b for product quantisation, M dividing {n_dims} dimensions and b at most {most}",
        )
    return min(found, key=lambda shape: (abs(shape.n_bits - USUAL_CENTROID_BITS), shape.n_bits))


class ProductQuantizer:
    """FAISS's PQ, or OPQ with `rotate`, behind the few calls that a comparison needs."""

    def __init__(self, bits: int, *, rotate: bool, seed: int = 0, n_jobs: int | None = None) -> None:
        self.bits, self.rotate, self.seed, self.n_jobs = bits, rotate, seed, n_jobs

    def fit(self, X: npt.NDArray[Any]) -> float:
        """Train on the rows of X, (n, D); returns the seconds."""
        import faiss

        D = X.shape[1]
        shape = choose_shape(self.bits, D, len(X))
        flat = faiss.IndexPQ(D, *shape)
        _prepare(flat.pq, self.seed)
        self._index: Any = flat
        if self.rotate:
            rotation = faiss.OPQMatrix(D, shape.M)
            inner = faiss.ProductQuantizer(D, *shape)
            _prepare(inner, self.seed)
            rotation.pq = inner
            self._index = faiss.IndexPreTransform(rotation, flat)
            self._parts = (rotation, inner, flat)  # FAISS keeps bare pointers to them
        start = time.perf_counter()
        with faiss_threads(self.n_jobs if len(X) >= MANY_ROWS else 1):
            self._index.train(np.ascontiguousarray(X, dtype=np.float32))
        return time.perf_counter() - start

    def encode(self, X: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        """The codes of the rows, (n, ceil(bits/8)) uint8."""
        with faiss_threads(self.n_jobs):
            codes: npt.NDArray[np.uint8] = self._index.sa_encode(np.ascontiguousarray(X, dtype=np.float32))
        return codes

    def error(self, X: npt.NDArray[Any], codes: npt.NDArray[np.uint8]) -> float:
        """The mean over rows of the squared distance from a row to the reconstruction of its code."""
        total = 0.0
        for rows in block_slices(len(X)):
            residual = X[rows].astype(np.float64) - self._index.sa_decode(np.ascontiguousarray(codes[rows]))
            total += float(np.einsum("nd,nd->", residual, residual))
        return total / len(X)

    def search(self, X: npt.NDArray[Any], queries: npt.NDArray[Any], k: int) -> npt.NDArray[np.int64]:
        """Row numbers, (q, k), of the rows of X whose reconstructions are nearest to each query."""
        self._index.reset()
        with faiss_threads(self.n_jobs):
            self._index.add(np.ascontiguousarray(X, dtype=np.float32))
            _, ids = self._index.search(np.ascontiguousarray(queries, dtype=np.float32), k)
        return np.asarray(ids, dtype=np.int64)


def _prepare(quantizer: Any, seed: int) -> None:
    quantizer.cp.seed = 1234 + seed  # FAISS's own default, moved by ours
    quantizer.cp.min_points_per_centroid = 1  # it would print a warning for each part


# ---- Several methods and numbers of bits side by side

IDENTITY = ("method", "bits", "seed", "search", "skipped")


class Task(NamedTuple):
    """What codes are measured on: rows to search, queries, their K true neighbours, and where to look."""

    base: Array
    queries: Array
    truth: npt.NDArray[np.int64]
    k: int = 50
    radius: int = 2
    n_jobs: int | None = None


def compare(
    X_train: Array,
    X_base: Array,
    X_query: Array,
    methods: Sequence[str] = DEFAULT_METHODS,
    bits: Sequence[int] = (8, 16, 24, 32),
    *,
    K: int = 50,
    k: int = 50,
    radius: int = 2,
    seeds: Sequence[int] = (0, 1, 2),
    n_jobs: int | None = None,
    known: Mapping[RowKey, Row] | None = None,
    on_row: Callable[[Row], object] | None = None,
) -> list[Row]:
    """Fit each method for each number of bits and seed on X_train, and measure it on X_base and X_query.

    `known` rows, by (method, bits, seed), are not computed again; `on_row` is called with each new one. Where
    a method cannot have so many bits, its row says why under "skipped" and has no figures.
    """
    wanted = cells(methods, bits, seeds)
    known = known or {}
    rows: list[Row] = []
    task: Task | None = None
    for cell in wanted:
        if cell in known:
            rows.append(dict(known[cell]))
            continue
        if task is None:
            task = prepare(X_base, X_query, K=K, k=k, radius=radius, n_jobs=n_jobs)
            _check_training(X_train, task)
        rows.append(_run(cell, X_train, task))
        if on_row is not None:
            on_row(rows[-1])
    return rows


def cells(methods: Iterable[str], bits: Iterable[int], seeds: Iterable[int]) -> list[RowKey]:
    """Every (method's label, bits, seed) once; a method without randomness has the first seed only."""
    found = {name.lower(): find_method(name) for name in methods}
    bits, seeds = [check_n_bits(each) for each in bits], list(seeds)
    if not (found and bits and seeds):
        raise InvalidInput("methods, bits and seeds must not be empty.")
    every = (
        (method.label, each, seed)
        for method in found.values()
        for each in bits
        for seed in (seeds if method.seeded else seeds[:1])
    )
    return list(dict.fromkeys(every))


def prepare(
    X_base: Array, X_query: Array, *, K: int, k: int, radius: int, n_jobs: int | None,
    truth: Array | None = None, cosine: bool = False,
) -> Task:  # fmt: skip
    """Check the rows and find the true neighbours, Euclidean or by cosine, unless `truth` has K or more."""
    with Workers(n_jobs) as workers:
        check_finite(X_base, workers, "the base")
        check_finite(X_query, workers, "the queries")
    for name, value in (("k", k), ("K", K)):
        if check_integer(name, value, 1) > len(X_base):
            raise InvalidInput(f"{name}={value} is more than the {len(X_base)} rows to search. Lower {name}.")
    radius = check_integer("radius", radius, 0, None, "It is a Hamming distance.")
    if truth is None:
        base, queries = (_unit_rows(X, n_jobs) if cosine else X for X in (X_base, X_query))
        truth = ground_truth(base, queries, K, n_jobs=n_jobs)
    elif truth.shape[1] < K:
        raise InvalidInput(f"the truth has {truth.shape[1]} neighbours a query, fewer than K={K}. Lower K.")
    return Task(X_base, X_query, np.ascontiguousarray(truth[:, :K]), k, radius, n_jobs)


def measure(model: Hasher, task: Task) -> Row:
    """The figures of a fitted hasher."""
    return figures(model, task, *rank(model, task))


def rank(model: Hasher, task: Task, coding: str = "hash", mu: float = 0.0) -> tuple[Packed, evaluate.Ranking]:
    """The codes of the base, and where the true neighbours come among them; queries are always hashed."""
    base, queries = model.encode(task.base, coding=coding, mu=mu), model.encode(task.queries)
    return base, evaluate.hamming_ranking(base, queries, task.truth, model.n_bits, n_jobs=task.n_jobs)


def figures(model: Hasher, task: Task, base: Packed, ranking: evaluate.Ranking) -> Row:
    """What a row says. Precision and recall are at k, with ties by id and averaged."""
    by_id = evaluate.precision_recall_at_k(ranking, task.k)
    averaged = evaluate.precision_recall_at_k(ranking, task.k, ties="average")
    within = evaluate.precision_recall_at_radius(ranking, min(task.radius, model.n_bits))
    return {
        "reconstruction_error": model._error_of(task.base, base),
        "precision": by_id.precision,
        "recall": by_id.recall,
        "precision_average": averaged.precision,
        "recall_average": averaged.recall,
        "precision_radius": within.precision,
        "recall_radius": within.recall,
        "map": evaluate.mean_average_precision(ranking, ties="average"),
        "effective_bits": evaluate.effective_bits(base),
        "effective_bits_bound": evaluate.effective_bits_bound(model.n_bits, len(base)),
    }


def mean_over_seeds(rows: Iterable[Row]) -> list[Row]:
    """One row for each method and number of bits: means, spreads as `…_std`, and how many seeds."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["method"], row["bits"]), []).append(row)
    return [_mean(group) for group in groups.values()]


def _mean(group: list[Row]) -> Row:
    first = group[0]
    mean: Row = {key: first[key] for key in IDENTITY if key != "seed"} | {"seeds": len(group)}
    for key in first:
        values = [row[key] for row in group]
        if key not in IDENTITY:
            mean[key] = None if None in values else fmean(values)
            if not key.endswith("_bound"):
                mean[f"{key}_std"] = None if None in values else pstdev(values)
    return mean


def _run(cell: RowKey, X_train: Array, task: Task) -> Row:
    label, bits, seed = cell
    search = "Hamming" if find_method(label).estimator else "asymmetric"
    row: Row = {"method": label, "bits": bits, "seed": seed, "search": search, "skipped": None}
    try:
        return row | (_run_hasher if search == "Hamming" else _run_product)(cell, X_train, task)
    except InvalidInput as error:  # the data were checked before: it is about this method and these bits
        return row | {"skipped": str(error)}


def _run_hasher(cell: RowKey, X_train: Array, task: Task) -> Row:
    label, bits, seed = cell
    model = make_hasher(label, bits, random_state=seed, n_jobs=task.n_jobs)
    start = time.perf_counter()
    model.fit(X_train)
    return {"seconds_fit": time.perf_counter() - start} | measure(model, task)


def _run_product(cell: RowKey, X_train: Array, task: Task) -> Row:
    """PQ and OPQ give lists of ids: no Hamming radius, no ties to average."""
    label, bits, seed = cell
    model = ProductQuantizer(bits, rotate=label == "OPQ", seed=seed, n_jobs=task.n_jobs)
    seconds = model.fit(X_train)
    codes = model.encode(task.base)
    ranking = evaluate.retrieved_ranking(model.search(task.base, task.queries, task.k), task.truth)
    found = evaluate.precision_recall_at_k(ranking, task.k)
    nothing = dict.fromkeys(
        ("precision_average", "recall_average", "precision_radius", "recall_radius", "map")
    )
    return {
        "seconds_fit": seconds,
        "reconstruction_error": model.error(task.base, codes),
        "precision": found.precision,
        "recall": found.recall,
        **nothing,
        "effective_bits": evaluate.effective_bits(codes),
        "effective_bits_bound": evaluate.effective_bits_bound(bits, len(codes)),
    }


def _unit_rows(X: Array, n_jobs: int | None) -> npt.NDArray[np.float64]:
    """The rows divided by their norm, whose Euclidean neighbours are those by cosine; zero rows stay."""
    out = np.empty(X.shape)

    def fill(rows: slice) -> None:
        block = X[rows].astype(np.float64)
        norms = np.sqrt(np.einsum("nd,nd->n", block, block))
        out[rows] = block / np.where(norms > 0, norms, 1.0)[:, None]

    with Workers(n_jobs) as workers:
        workers.run(fill, len(X))
    return out


def _check_training(X_train: Array, task: Task) -> None:
    if len(X_train) < 2 or X_train.shape[1] != task.base.shape[1]:
        raise InvalidInput(
            f"the rows to train on must be at least 2, with {task.base.shape[1]} columns, "
            f"got shape {X_train.shape}."
        )
    if X_train is not task.base:
        with Workers(task.n_jobs) as workers:
            check_finite(X_train, workers, "the rows to train on")
