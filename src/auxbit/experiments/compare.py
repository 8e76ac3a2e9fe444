"""Several methods and numbers of bits side by side: one row per method, bits and seed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from auxbit import evaluate
from auxbit.core import files
from auxbit.core.checks import Array, Float64, Ids, Packed, check_finite, check_integer
from auxbit.core.parallel import Workers
from auxbit.core.progress import Progress, Silent
from auxbit.data.vectors import read_data
from auxbit.errors import InvalidInput
from auxbit.evaluate import ground_truth
from auxbit.experiments.quantisers import make_quantiser
from auxbit.experiments.study import KeptRows, Row, RowKey, array_checksum, as_csv, check_folder, means
from auxbit.hashers.base import Hasher
from auxbit.hashers.registry import DEFAULT_METHODS, find_method, label_of, make_hasher
from auxbit.index.hamming import HammingIndex
from auxbit.plot import figures as plot

# ---- the comparison


class Task(NamedTuple):
    """What codes are measured on: rows to search, queries, K true neighbours, and k and r to retrieve."""

    base: Array
    queries: Array
    truth: Ids
    k: int = 50
    radius: int = 2
    n_jobs: int | None = None


def compare(
    X_train: Array, X_base: Array, X_query: Array, methods: Sequence[str] = DEFAULT_METHODS,
    bits: Sequence[int] = (8, 16, 24, 32), *, K: int = 50, k: int = 50, radius: int = 2,
    seeds: Sequence[int] = (0, 1, 2), n_jobs: int | None = None,
    known: Mapping[RowKey, Row] | None = None, on_row: Callable[[Row], object] = lambda row: None,
) -> list[Row]:  # fmt: skip
    """Fit each method for each number of bits and seed on X_train, and measure it on X_base and X_query.

    `known` rows, by (method, bits, seed), are not computed again; `on_row` is called with each new one. If a
    method cannot have that many bits, its row says why under "skipped" and has no figures.
    """
    rows: list[Row] = []
    task: Task | None = None
    for cell in cells(methods, bits, seeds):
        if known and cell in known:
            rows.append(dict(known[cell]))
            continue
        if task is None:
            task = prepare(X_base, X_query, K=K, k=k, radius=radius, n_jobs=n_jobs)
            if len(X_train) < 2 or X_train.shape[1] != X_base.shape[1]:
                expected = f"at least 2, with {X_base.shape[1]} columns, got shape {X_train.shape}"
                raise InvalidInput(f"the rows to train on must be {expected}.")
            if X_train is not X_base:
                with Workers(n_jobs) as workers:
                    check_finite(X_train, workers, "the rows to train on")
        rows.append(_run(cell, X_train, task))
        on_row(rows[-1])
    return rows


def cells(methods: Iterable[str], bits: Iterable[int], seeds: Iterable[int]) -> list[RowKey]:
    """Every (method's label, bits, seed) once; a method without randomness has the first seed only."""
    found = {name.lower(): find_method(name) for name in methods}
    bits, seeds = list(bits), list(seeds)
    if not (found and bits and seeds):
        raise InvalidInput("methods, bits and seeds must not be empty.")
    every = product(found.values(), bits, seeds)
    return list(
        dict.fromkeys((m.label, m.check_bits(L), seed if m.seeded else seeds[0]) for m, L, seed in every)
    )


def prepare(
    X_base: Array, X_query: Array, *, K: int, k: int, radius: int, n_jobs: int | None,
    truth: Array | None = None, cosine: bool = False,
) -> Task:  # fmt: skip
    """Check the rows and find the K true neighbours, Euclidean or by cosine, if `truth` is not given."""
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
        raise InvalidInput(f"the truth has {truth.shape[1]} neighbours per query, fewer than K={K}. Lower K.")
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
        "precision": by_id.precision, "recall": by_id.recall,
        "precision_average": averaged.precision, "recall_average": averaged.recall,
        "precision_radius": within.precision, "recall_radius": within.recall,
        "map": evaluate.mean_average_precision(ranking, ties="average"),
        "effective_bits": evaluate.effective_bits(base),
        "effective_bits_bound": evaluate.effective_bits_bound(model.n_bits, len(base)),
    }  # fmt: skip


def mean_over_seeds(rows: Iterable[Row]) -> list[Row]:
    """One row per method and number of bits: means, spreads as `…_std`, and how many seeds."""
    return means(rows, ("method", "bits", "search", "skipped"), spread=True)


def _run(cell: RowKey, X_train: Array, task: Task) -> Row:
    hashes = find_method(cell[0]).estimator
    try:
        return run_hasher(cell, X_train, task)[1] if hashes else _run_quantiser(cell, X_train, task)
    except InvalidInput as error:  # the data were checked before: it is about this method and these bits
        return _about(cell, "Hamming" if hashes else "asymmetric", skipped=str(error))


def _about(cell: RowKey, search: str, skipped: str | None = None) -> Row:
    return dict(zip(("method", "bits", "seed"), cell)) | {"search": search, "skipped": skipped}


def run_hasher(cell: RowKey, X_train: Array, task: Task) -> tuple[Hasher, Row]:
    """Fit a method, (label, bits, seed), and measure it: the model and its row."""
    label, bits, seed = cell
    model = make_hasher(label, bits, random_state=seed, n_jobs=task.n_jobs)
    start = time.perf_counter()
    model.fit(X_train)
    seconds = {"seconds_fit": time.perf_counter() - start}
    return model, _about(cell, "Hamming") | seconds | measure(model, task)


def _run_quantiser(cell: RowKey, X_train: Array, task: Task) -> Row:
    """Quantisers give lists of ids: no Hamming radius, no ties to average."""
    label, bits, seed = cell
    model = make_quantiser(label.lower(), bits, seed=seed, n_jobs=task.n_jobs).fit(X_train)
    codes = model.add(task.base)
    ranking = evaluate.retrieved_ranking(model.search(task.queries, task.k), task.truth)
    found = evaluate.precision_recall_at_k(ranking, task.k)
    nothing = ("precision_average", "recall_average", "precision_radius", "recall_radius", "map")
    plain = model.resident_bytes == model.payload_bytes  # factors beside codes would count as codes
    return _about(cell, "asymmetric") | {
        "seconds_fit": model.times["fit"].wall, "reconstruction_error": model.error(task.base, codes),
        "precision": found.precision, "recall": found.recall, **dict.fromkeys(nothing),
        "effective_bits": evaluate.effective_bits(codes) if plain else None,
        "effective_bits_bound": evaluate.effective_bits_bound(bits, len(codes)),
    }  # fmt: skip


def _unit_rows(X: Array, n_jobs: int | None) -> Float64:
    """The rows divided by their norm, whose Euclidean neighbours are those by cosine; zero rows stay."""
    out = np.empty(X.shape)

    def fill(rows: slice) -> None:
        block = X[rows].astype(np.float64)
        norms = np.sqrt(np.einsum("nd,nd->n", block, block))
        out[rows] = block / np.where(norms > 0, norms, 1.0)[:, None]

    with Workers(n_jobs) as workers:
        workers.run(fill, len(X))
    return out


# ---- one fitted model

RECALL_AT = (1, 10, 100)


def evaluate_model(
    model: Hasher, X_base: Array, X_query: Array, *, truth: Array | None = None, K: int = 50, k: int = 50,
    radius: int = 2, coding: str = "hash", mu: float = 0.0, n_jobs: int | None = None,
    progress: Progress | None = None,
) -> Row:  # fmt: skip
    """Precision, recall and more of a fitted model; "curve" has precision and recall for each radius.

    truth : (q, K or more) row numbers of X_base, nearest first; by default the Euclidean neighbours, or for a
    model that divides rows by their norms, those by cosine. coding, mu : how the base is encoded.
    """
    told = progress or Silent()
    normalized = bool(model.scaling_.normalize)
    told.stage("finding true neighbours", None)
    task = prepare(X_base, X_query, K=K, k=k, radius=radius, n_jobs=n_jobs, truth=truth, cosine=normalized)
    told.stage("measuring", None)
    base, ranking = rank(model, task, coding, mu)
    index = HammingIndex(model.n_bits, decoder=model.decoder_, n_jobs=n_jobs)
    index.add(base)
    by_decoder = evaluate.retrieved_ranking(index.search_asymmetric(task.queries, k)[1], task.truth)
    asymmetric = evaluate.precision_recall_at_k(by_decoder, k)
    about = {"method": label_of(model), "bits": model.n_bits}
    sizes = {"queries": len(X_query), "n_base": len(X_base), "K": K, "k": k, "radius": radius}
    curve = []
    for r, p, share, n in zip(*(column.tolist() for column in evaluate.precision_recall_curve(ranking))):
        found = {"precision": p, "recall": share} if n else {"precision": None, "recall": None}
        curve.append(about | {"radius": r} | found | {"answered": n})
    neighbours = "given" if truth is not None else "by cosine" if normalized else "Euclidean"
    row = about | sizes | {"neighbours": neighbours, "rows_normalized": normalized, "coding": coding}
    row |= {"precision_asymmetric": asymmetric.precision, "recall_asymmetric": asymmetric.recall}
    recall_at = {str(R): evaluate.recall_at(ranking, R) for R in RECALL_AT if len(X_base) >= R}
    return row | figures(model, task, base, ranking) | {"recall_at": recall_at, "curve": curve}


# ---- a comparison on files, whose rows are kept as they finish

FILES = {"table": "table.csv", "results": "results.json", "plot": "precision.png"}
ROWS = "rows.jsonl"
LEAST_ROWS = 3  # two to train on, one to search for


def compare_files(
    data: str, methods: Sequence[str] = DEFAULT_METHODS, bits: Sequence[int] = (8, 16, 24, 32), *,
    queries: str | None = None, n_queries: int = 500, train: str | None = None, K: int = 50, k: int = 50,
    radius: int = 2, seeds: int = 3, out: str | None = None, overwrite: bool = False,
    n_jobs: int | None = None, on_row: Callable[[Row, bool], object] = lambda row, fresh: None,
) -> Row:  # fmt: skip
    """Compare methods on the rows of files; returns means over seeds, and what they were measured on.

    queries : a file; by default n_queries rows of `data`, drawn with a fixed seed. train : a file of other
    rows to train on. out : a folder for table.csv, results.json, precision.png and rows.jsonl, from which a
    comparison that was stopped resumes. on_row : called with each row, and whether it is a new one.
    """
    folder = Path(out) if out is not None else None
    if folder is not None:
        check_folder(folder, FILES.values(), overwrite=overwrite)
    wanted = cells(methods, bits, range(seeds))
    trained, base, asked = _rows_of_files(data, queries, n_queries, train)
    checksums = [array_checksum(X) for X in (trained, base, asked)] if folder is not None else []
    settings = {"data": checksums, "K": K, "k": k, "radius": radius}
    kept = KeptRows(folder and folder / ROWS, settings)
    known = kept.read()
    for cell in wanted:
        if cell in known:
            on_row(known[cell], False)

    def finished(row: Row) -> None:
        kept.add(row)
        on_row(row, True)

    rows = compare(
        trained, base, asked, methods, bits, K=K, k=k, radius=radius, seeds=range(seeds), n_jobs=n_jobs,
        known=known, on_row=finished,
    )  # fmt: skip
    result: Row = {
        "data": data, "train_rows": len(trained), "base_rows": len(base), "queries": len(asked),
        "K": K, "k": k, "radius": radius, "seeds": seeds, "rows": mean_over_seeds(rows),
    }  # fmt: skip
    return result if folder is None else result | {"files": _write(result, folder, overwrite)}


def _rows_of_files(
    data: str, queries: str | None, n_queries: int, train: str | None
) -> tuple[Array, Array, Array]:
    """The rows to train on, to search, and to search for."""
    X = read_data(data)
    if queries is not None:
        base, asked = X, _read_like(X, queries)
    else:
        check_integer("n_queries", n_queries, 1)
        if len(X) < LEAST_ROWS:
            raise InvalidInput(
                f"{data} has {len(X)} row{'s' * (len(X) > 1)}; a comparison needs at least {LEAST_ROWS}, to "
                "train on and to search for. Give more, or --queries a file of its own."
            )
        if n_queries > len(X) - 2:
            raise InvalidInput(
                f"n_queries={n_queries} of the {len(X)} rows of {data} leaves too few to search. "
                f"Lower --n-queries to at most {len(X) - 2}, or give --queries a file of its own."
            )
        order = np.random.RandomState(0).permutation(len(X))
        asked, base = X[np.sort(order[:n_queries])], X[np.sort(order[n_queries:])]
    check_finite(X, name=data)
    return base if train is None else _read_like(X, train), base, asked


def _write(result: Row, folder: Path, overwrite: bool) -> dict[str, str]:
    paths = {key: folder / name for key, name in FILES.items()}
    rows = result["rows"]
    files.write_text(paths["table"], as_csv(rows), overwrite=overwrite)
    files.write_text(paths["results"], json.dumps(result, indent=2), overwrite=overwrite)
    if any(row.get("precision") is not None for row in rows):
        title = f"{Path(result['data']).name}: precision of the {result['k']} nearest (K = {result['K']})"
        plot.write(plot.precision(rows, title=title), paths["plot"], overwrite=overwrite)
    return {key: str(path) for key, path in (paths | {"rows": folder / ROWS}).items()}


def _read_like(X: Array, name: str) -> Array:
    """The rows of another file, of as many columns."""
    other = read_data(name, finite=True)
    if other.shape[1] != X.shape[1]:
        columns = f"{other.shape[1]} columns, and the rows to search have {X.shape[1]}"
        raise InvalidInput(f"{name} has {columns}. Use files of the same vectors.")
    return other
