"""Methods side by side on the vectors of a collection of pictures, kept with it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit import __version__, files
from auxbit.checks import check_integer
from auxbit.errors import InvalidInput
from auxbit.experiments.compare import cells, compare, mean_over_seeds
from auxbit.experiments.kept import KeptRows, Row, array_checksum
from auxbit.images.pictures import Pictures
from auxbit.images.progress import Progress, Silent
from auxbit.images.writing import COMPARISON, COMPARISON_ROWS
from auxbit.training_record import sample_rows

MOST_ROWS = 50_000  # of the pictures that are trained on and searched
LEAST_PICTURES = 10
SHARE = 5  # at most one of so many pictures is a query
RENAMED = {"squared_error": "reconstruction_error", "seconds": "seconds_fit"}
KEPT = (
    "method", "bits", "search", "seeds", "skipped", "precision", "recall", "map", "squared_error",
    "effective_bits", "effective_bits_bound", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """Methods and bits to compare; n_queries, k and true neighbours are fewer where pictures are few."""

    methods: Sequence[str]
    bits: Sequence[int]
    n_queries: int = 500
    K: int = 50
    k: int = 50
    seeds: int = 1


def compare_pictures(
    folder: str | os.PathLike[str],
    plan: Plan,
    *,
    command: str = "",
    overwrite: bool = False,
    n_jobs: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Compare, and keep the table as comparison.json in the folder of the collection; returns it.

    Some pictures are set aside as queries, and searched for among the others. What is finished is kept, so
    that it goes on where it was stopped; overwrite : measure all of it again.
    """
    progress = progress or Silent()
    path = Path(folder)
    wanted = cells(plan.methods, plan.bits, range(check_integer("seeds", plan.seeds, 1)))
    with Pictures.open(path, n_jobs=n_jobs) as pictures:
        base, queries = _rows(pictures, plan.n_queries)
    k, K = (min(check_integer(name, getattr(plan, name), 1), len(base)) for name in ("k", "K"))
    settings = {
        "base": array_checksum(base), "queries": array_checksum(queries), "K": K, "k": k,
        "version": __version__,
    }  # fmt: skip
    kept = KeptRows(path / COMPARISON_ROWS, settings)
    known = {} if overwrite else kept.read()
    progress.stage("comparing", len(wanted))
    progress.advance(sum(cell in known for cell in wanted))

    def finished(row: Row) -> None:
        kept.add(row)
        progress.advance(1)
        progress.say(f"{row['method']}, {row['bits']} bits")

    rows = compare(
        base, base, queries, plan.methods, plan.bits, K=K, k=k, seeds=range(plan.seeds), n_jobs=n_jobs,
        known=known, on_row=finished,
    )  # fmt: skip
    found = {
        "rows": [_summary(row) for row in mean_over_seeds(rows)],
        "queries": len(queries),
        "items": len(base),
        "K": K,
        "k": k,
        "command": command,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    files.write_text(path / COMPARISON, json.dumps(found, indent=2, allow_nan=False) + "\n")
    return found


def _rows(pictures: Pictures, n_queries: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The vectors to search, and those to search for, drawn with a fixed seed."""
    ids = pictures.collection.ids
    if len(ids) < LEAST_PICTURES:
        raise InvalidInput(
            f"a comparison needs at least {LEAST_PICTURES} pictures, and there are {len(ids)}. "
            "Add some by `auxbit images add`."
        )
    n = min(check_integer("n_queries", n_queries, 1), len(ids) // SHARE)
    some = ids[sample_rows(len(ids), MOST_ROWS + n)]
    X = np.asarray(pictures.collection.vectors(some), dtype=np.float32)
    order = np.random.RandomState(0).permutation(len(X))
    return X[np.sort(order[n:])], X[np.sort(order[:n])]


def _summary(row: Row) -> Row:
    """What the page shows; None where there is no figure."""
    kept = {name: row.get(RENAMED.get(name, name)) for name in KEPT}
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value
        for name, value in kept.items()
    }
