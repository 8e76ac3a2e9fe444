"""Several methods and numbers of bits side by side: one row per method, bits and seed.

rows = compare(X_train, X_base, X_query, ["ba", "ba-optimal", "pq"], [32, 64])
rows = compare(X_train, X_base, X_query, {"mine": MyHasher, "ba": "ba"}, [32, 64])
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from auxbit import evaluate
from auxbit.core import files
from auxbit.core.checks import Array, as_array, check_finite, check_integer
from auxbit.core.parallel import Workers
from auxbit.data.vectors import as_rows, read_data
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.experiments.measure import (
    RERANKED,
    Bench,
    Candidate,
    about,
    find_candidates,
    in_metric,
    prepare,
)
from auxbit.experiments.study import KeptRows, Row, RowKey, array_checksum, as_csv, check_folder, means
from auxbit.experiments.worker import CellProcess, CellStopped
from auxbit.hashers.registry import COMPARED_METHODS
from auxbit.plot import figures as plot

Methods = Sequence[str] | Mapping[str, Any]
LIMIT = 300.0  # seconds of a cell
LATE = ("RQ", "LSQ", "PLSQ", "OPQ")  # which may take minutes: after all others, that these are seen soon


def compare(
    X_train: Any, X_base: Any, X_query: Any, methods: Methods = COMPARED_METHODS,
    bits: Sequence[int] | None = None, *, K: int = 50, k: int = 50, radius: int = 2,
    seeds: Sequence[int] = (0,), metric: str = "euclidean", rerank: int = RERANKED,
    limit: float | None = None, n_jobs: int | None = None, known: Mapping[RowKey, Row] | None = None,
    on_row: Callable[[Row], object] = lambda row: None,
) -> list[Row]:  # fmt: skip
    """Fit each method for each number of bits and seed on X_train, and measure it on X_base and X_query.

    X_train, X_base, X_query : (n, D) arrays, frames or lists of rows.
    methods : names of the registry, "module:Class", or a mapping of your names to estimators, classes or
        functions of n_bits; anything with `fit` and `encode`, to packed codes, or `transform`, to 0 and 1.
    bits : None for `default_bits` of the dimensions.
    metric : "euclidean", "cosine" or "inner_product": rows are normalised or lifted for all methods alike.
    rerank : candidates that are ranked again by their vectors, for "recall_reranked".
    limit : seconds of a cell. Cells then run in another process, which is ended if one takes longer; objects
        of a mapping stay in this one. What would take longer by what fewer bits took is left out.

    `known` rows, by (method, bits, seed), are not computed again; `on_row` is called with each new one. A
    row without figures says why under "skipped".
    """
    found, rows = find_candidates(methods), dict(known or {})
    of_base = X_train is X_base
    X_base, X_query = _rows(X_base, "X_base"), _rows(X_query, "X_query")
    X_train = X_base if of_base else _rows(X_train, "X_train")
    n_dims = _n_dims(X_base, metric)
    wanted = cells(found, bits or default_bits(n_dims), seeds, n_dims)
    runner: Runner | None = None
    with ExitStack() as stack:
        for cell in sorted(wanted, key=lambda cell: (cell[0] in LATE, cell[1])):
            if cell in rows:
                continue
            if runner is None:
                _check_trained(X_train, X_base, n_jobs)
                trained, base, asked = rows_in_metric(metric, X_train, X_base, X_query, n_jobs)
                task = prepare(base, asked, K=K, k=k, radius=radius, n_jobs=n_jobs, rerank=rerank)
                runner = Runner(Bench(trained, task), limit)
                stack.callback(runner.close)
            rows[cell] = runner.run(cell, found[cell[0]])
            on_row(rows[cell])
    return [dict(rows[cell]) for cell in wanted]


def _rows(X: Any, name: str) -> Array:
    """Rows of an array, a frame or a list as an array, (n, D)."""
    rows = X if isinstance(X, np.memmap) else as_array(as_rows(X, name), name)
    if rows.ndim != 2 or rows.dtype.kind in "OSUV":
        raise InvalidInput(f"{name} must be rows of numbers, (n, D), got shape {rows.shape} of {rows.dtype}.")
    return rows


def _n_dims(X: Array, metric: str) -> int:
    """The dimensions of the rows that are compared: lifted ones have one more."""
    return int(X.shape[1]) + (evaluate.check_metric(metric) == "inner_product")


def default_bits(n_dims: int) -> list[int]:
    """32 bits and doubled, up to 256, but no more than 8 per dimension."""
    return [bits for bits in (32, 64, 128, 256) if bits <= 8 * n_dims] or [8 * n_dims]


def cells(
    methods: Iterable[str] | Mapping[str, Any], bits: Iterable[int], seeds: Iterable[int], n_dims: int = 1
) -> list[RowKey]:
    """Every (method's label, bits, seed) once; a method without randomness has the first seed only.

    n_dims : of the rows: sign bits are as many, whatever numbers of bits are compared, RaBitQ's at least.
    """
    found = find_candidates(methods)
    bits, seeds = list(bits), list(seeds)
    if not (found and bits and seeds):
        raise InvalidInput("methods, bits and seeds must not be empty.")
    return list(
        dict.fromkeys(
            (each.label, _bits_of(each, L, n_dims), seed if each.seeded else seeds[0])
            for each, L, seed in product(found.values(), bits, seeds)
        )
    )


def _bits_of(method: Candidate, bits: int, n_dims: int) -> int:
    """Sign bits are as many as dimensions, and those of RaBitQ at least as many."""
    checked = method.check(bits)
    return {"sign": n_dims, "rabitq": max(checked, n_dims)}.get(method.name or "", checked)


class Runner:
    """Cells, one after another, by rising bits; each in another process if there is a limit."""

    def __init__(self, bench: Bench, limit: float | None) -> None:
        if limit is not None and not limit > 0:
            raise InvalidParameter("limit", limit, "a number of seconds above 0, or None")
        self.bench, self.limit = bench, limit
        self._process: CellProcess | None = None
        self._slowest: dict[str, tuple[int, float]] = {}  # bits and seconds that a method took

    def run(self, cell: RowKey, method: Candidate) -> Row:
        """The row of a method, (label, bits, seed), or one that says why there are no figures."""
        label, bits, _ = cell
        if self.limit is not None and label in self._slowest:
            before, seconds = self._slowest[label]
            if seconds * bits / before > self.limit:
                why = "was stopped" if np.isinf(seconds) else f"took {seconds:.0f} s"
                remedy = f"raise the limit of {self.limit:g} s per cell."
                return about(cell, skipped=f"it {why} at {before} bits; {remedy}")
        try:
            row = self._run(cell, method)
        except CellStopped as error:
            self._slowest[label] = bits, np.inf
            return about(cell, skipped=str(error))
        except InvalidInput as error:  # the data were checked before: it is about this method and these bits
            return about(cell, skipped=str(error))
        n, q = len(self.bench.task.base), len(self.bench.task.queries)
        spent = row["seconds_fit"] + 1e-6 * row["encode_us"] * n + 1e-3 * row["search_ms"] * q
        self._slowest[label] = bits, spent
        return row

    def _run(self, cell: RowKey, method: Candidate) -> Row:
        label, bits, seed = cell
        if self.limit is None or method.name is None:
            return self.bench.run(method, bits, seed)
        if self._process is None:
            self._process = CellProcess(self.bench.X_train, self.bench.task, self.limit)
        return self._process.run(method.name, label, bits, seed)

    def close(self) -> None:
        """End the other process."""
        if self._process is not None:
            self._process.close()


def _check_trained(X_train: Array, X_base: Array, n_jobs: int | None) -> None:
    if len(X_train) < 2 or X_train.shape[1] != X_base.shape[1]:
        expected = f"at least 2, with {X_base.shape[1]} columns, got shape {X_train.shape}"
        raise InvalidInput(f"the rows to train on must be {expected}.")
    if X_train is not X_base:
        with Workers(n_jobs) as workers:
            check_finite(X_train, workers, "the rows to train on")


def rows_in_metric(
    metric: str, X_train: Array, X_base: Array, X_query: Array, n_jobs: int | None
) -> tuple[Array, Array, Array]:
    """Rows to train on, to search and to search for, whose Euclidean neighbours are those by the metric."""
    if evaluate.check_metric(metric) == "euclidean":
        return X_train, X_base, X_query
    check_finite(X_base, name="the base")
    check_finite(X_query, name="the queries")
    if X_train is X_base:
        base, asked = in_metric(metric, X_base, X_query, n_jobs=n_jobs)
        return base, base, asked
    both, asked = in_metric(metric, np.concatenate([X_train, X_base]), X_query, n_jobs=n_jobs)
    return both[: len(X_train)], both[len(X_train) :], asked


def mean_over_seeds(rows: Iterable[Row]) -> list[Row]:
    """One row per method and number of bits: means, spreads as `…_std`, and how many seeds."""
    keys = (
        "method",
        "bits",
        "search",
        "decoder",
        "skipped",
        "payload_bytes",
        "resident_bytes",
        "model_bytes",
    )
    return means(rows, keys, spread=True)


def best_first(rows: Iterable[Row]) -> list[Row]:
    """By rising bits, and by falling precision among equal bits."""
    return sorted(rows, key=lambda row: (row["bits"], -(row.get("precision") or 0.0)))


# ---- a comparison on files, whose rows are kept as they finish

FILES = {"table": "table.csv", "results": "results.json", "plot": "precision.png"}
ROWS = "rows.jsonl"
LEAST_ROWS = 3  # two to train on, one to search for


def compare_files(
    data: str, methods: Methods = COMPARED_METHODS, bits: Sequence[int] | None = None, *,
    queries: str | None = None, n_queries: int = 500, train: str | None = None, K: int = 50, k: int = 50,
    radius: int = 2, seeds: int = 1, metric: str = "euclidean", rerank: int = RERANKED,
    limit: float | None = LIMIT, out: str | None = None, overwrite: bool = False, n_jobs: int | None = None,
    on_start: Callable[[int], object] = lambda n_cells: None,
    on_row: Callable[[Row, bool], object] = lambda row, fresh: None,
) -> Row:  # fmt: skip
    """Compare methods on the rows of files; returns means over seeds, and what they were measured on.

    queries : a file; by default n_queries rows of `data`, drawn with a fixed seed. train : a file of other
    rows to train on. out : a folder for table.csv, results.json, precision.png and rows.jsonl, from which a
    comparison that was stopped resumes; methods of your own, which may have changed, are measured again.
    on_start : called with the number of cells; on_row : with each row, and whether it is a new one. The rest
    is as in `compare`.
    """
    folder = Path(out) if out is not None else None
    if folder is not None:
        check_folder(folder, FILES.values(), overwrite=overwrite)
    found = find_candidates(methods)  # what is wrong is said before files are read
    trained, base, asked = _rows_of_files(data, queries, n_queries, train)
    n_dims = _n_dims(base, metric)
    counts = list(bits or default_bits(n_dims))
    wanted = cells(found, counts, range(seeds), n_dims)
    on_start(len(wanted))
    checksums = [array_checksum(X) for X in (trained, base, asked)] if folder is not None else []
    about_data = {"K": K, "k": k, "radius": radius, "metric": metric, "rerank": rerank}
    settings = {"data": checksums} | about_data
    kept = KeptRows(folder and folder / ROWS, settings)
    known = known_rows(kept, found)
    for cell in wanted:
        if cell in known:
            on_row(known[cell], False)

    def finished(row: Row) -> None:
        # with a higher limit it may have figures
        if not row["skipped"] and found[row["method"]].is_known:
            kept.add(row)
        on_row(row, True)

    rows = compare(
        trained, base, asked, methods, counts, K=K, k=k, radius=radius, seeds=range(seeds), metric=metric,
        rerank=rerank, limit=limit, n_jobs=n_jobs, known=known, on_row=finished,
    )  # fmt: skip
    result: Row = {
        "data": data, "train_rows": len(trained), "base_rows": len(base), "queries": len(asked),
        **about_data, "seeds": seeds, "rows": best_first(mean_over_seeds(rows)),
    }  # fmt: skip
    return result if folder is None else result | {"files": _write(result, folder, overwrite)}


def known_rows(kept: KeptRows, methods: Methods) -> dict[RowKey, Row]:
    """The kept rows of those methods whose labels tell what they are."""
    known = {label for label, each in find_candidates(methods).items() if each.is_known}
    return {cell: row for cell, row in kept.read().items() if cell[0] in known}


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
