"""What `compare` does with files: a plan, its rows kept as they finish, and what is written at the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from auxbit import __version__
from auxbit.cli import tasks
from auxbit.core import files
from auxbit.core.checks import check_integer
from auxbit.core.types import Array
from auxbit.errors import FileProblem, InvalidInput
from auxbit.experiments.compare import cells, compare, mean_over_seeds
from auxbit.experiments.study import KeptRows, Row, array_checksum, as_csv
from auxbit.plot import figures

FILES = {"table": "table.csv", "results": "results.json", "plot": "precision.png"}
ROWS = "rows.jsonl"
LEAST_ROWS = 3  # two to train on, one to search for


@dataclass(frozen=True)
class Plan:
    """A comparison as it was asked for."""

    data: str
    queries: str | None
    n_queries: int
    train: str | None
    methods: Sequence[str]
    bits: Sequence[int]
    K: int
    k: int
    radius: int
    seeds: int
    out: str | None
    force: bool
    n_jobs: int | None

    @property
    def n_cells(self) -> int:
        """How many rows there will be; says now what is wrong with methods or bits."""
        return len(cells(self.methods, self.bits, range(self.seeds)))

    @cached_property
    def rows(self) -> tuple[Array, Array, Array]:
        """The rows to train on, to search, and to search for."""
        X = tasks.read(self.data)
        if self.queries is not None:
            base, asked = X, tasks.read(self.queries)
            tasks.check_all_finite(asked, self.queries)
            _check_same_columns(base, asked, self.queries)
        else:
            self._check_n_queries(len(X))
            order = np.random.RandomState(0).permutation(len(X))
            asked, base = X[np.sort(order[: self.n_queries])], X[np.sort(order[self.n_queries :])]
        tasks.check_all_finite(X, self.data)
        if self.train is None:
            return base, base, asked
        trained = tasks.read(self.train)
        tasks.check_all_finite(trained, self.train)
        _check_same_columns(base, trained, self.train)
        return trained, base, asked

    def _check_n_queries(self, n_rows: int) -> None:
        check_integer("n_queries", self.n_queries, 1)
        if n_rows < LEAST_ROWS:
            raise InvalidInput(
                f"{self.data} has {n_rows} row{'s' * (n_rows > 1)}; a comparison needs at least "
                f"{LEAST_ROWS}, to train on and to search for. Give more, or --queries a file of its own."
            )
        if self.n_queries > n_rows - 2:
            raise InvalidInput(
                f"n_queries={self.n_queries} of the {n_rows} rows of {self.data} leaves too few to search. "
                f"Lower --n-queries to at most {n_rows - 2}, or give --queries a file of its own."
            )


def run(plan: Plan, on_row: Callable[[Row, bool], object]) -> dict[str, Any]:
    """Compute what is not kept yet, calling `on_row(row, fresh)` for each, and write the results."""
    folder = Path(plan.out) if plan.out is not None else None
    if folder is not None:
        _check_folder(folder, force=plan.force)
    train, base, asked = plan.rows
    kept = None
    known: dict[tuple[str, int, int], Row] = {}
    if folder is not None:
        checksums = [array_checksum(X) for X in (train, base, asked)]
        settings = {
            "data": checksums,
            "K": plan.K,
            "k": plan.k,
            "radius": plan.radius,
            "version": __version__,
        }
        kept = KeptRows(folder / ROWS, settings)
        known = kept.read()
    for cell in cells(plan.methods, plan.bits, range(plan.seeds)):
        if cell in known:
            on_row(known[cell], False)

    def finished(row: Row) -> None:
        if kept is not None:
            kept.add(row)
        on_row(row, True)

    rows = compare(
        train, base, asked, plan.methods, plan.bits, K=plan.K, k=plan.k, radius=plan.radius,
        seeds=range(plan.seeds), n_jobs=plan.n_jobs, known=known, on_row=finished,
    )  # fmt: skip
    result: dict[str, Any] = {
        "data": plan.data,
        "train_rows": len(train),
        "base_rows": len(base),
        "queries": len(asked),
        "K": plan.K,
        "k": plan.k,
        "radius": plan.radius,
        "seeds": plan.seeds,
        "rows": mean_over_seeds(rows),
    }
    return result | ({"files": _write(result, folder, plan)} if folder is not None else {})


def _write(result: dict[str, Any], folder: Path, plan: Plan) -> dict[str, str]:
    paths = {key: folder / name for key, name in FILES.items()}
    rows = result["rows"]
    files.write_text(paths["table"], as_csv(rows), overwrite=plan.force)
    files.write_text(paths["results"], json.dumps(result, indent=2), overwrite=plan.force)
    if any(row.get("precision") is not None for row in rows):
        title = f"{Path(plan.data).name}: precision of the {plan.k} nearest (K = {plan.K})"
        figures.write(figures.precision(rows, title=title), paths["plot"], overwrite=plan.force)
    return {key: str(path) for key, path in (paths | {"rows": folder / ROWS}).items()}


def _check_folder(folder: Path, *, force: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise FileProblem(f"{folder} is a file; expected the name of a folder to write to.")
    figures.check_output(folder / FILES["plot"])
    for name in FILES.values():
        tasks.check_output(folder / name, force=force)


def _check_same_columns(base: Array, other: Array, name: str) -> None:
    if other.shape[1] != base.shape[1]:
        raise InvalidInput(
            f"{name} has {other.shape[1]} columns, and the rows to search have {base.shape[1]}. "
            "Use files of the same vectors."
        )
