"""What `search` and `evaluate` do with files: plain functions that print nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from auxbit import evaluate
from auxbit.cli import tasks
from auxbit.cli.output import number
from auxbit.core import files
from auxbit.core.types import Array, Packed
from auxbit.errors import InvalidParameter
from auxbit.experiments.compare import Task, figures, prepare, rank
from auxbit.experiments.study import as_csv
from auxbit.hashers.base import Hasher
from auxbit.hashers.registry import METHODS
from auxbit.index import HammingIndex
from auxbit.plot import figures as plot

Step = Callable[[str], object]

RECALL_AT = (1, 10, 100)


@dataclass(frozen=True)
class Found:
    """Answers in FAISS's layout: those to query i are from lims[i] up to lims[i+1]."""

    lims: Array
    distances: Array
    ids: Array
    about: dict[str, Any]

    @property
    def n_queries(self) -> int:
        """How many queries there were."""
        return len(self.lims) - 1

    def line(self, query: int, most: int) -> tuple[str, int, str]:
        """A row of a table: the query, how many were found, and the nearest of them."""
        start, stop = int(self.lims[query]), int(self.lims[query + 1])
        shown = zip(self.ids[start:stop][:most].tolist(), self.distances[start:stop][:most].tolist())
        return str(query), stop - start, "  ".join(f"{row} ({number(distance)})" for row, distance in shown)

    def document(self, *, whole: bool) -> dict[str, Any]:
        """For JSON: with every answer, or only what was asked where a file has the answers."""
        if not whole:
            return self.about
        starts = zip(self.lims[:-1].tolist(), self.lims[1:].tolist())
        results = [
            {"ids": self.ids[a:b].tolist(), "distances": self.distances[a:b].tolist()} for a, b in starts
        ]
        return self.about | {"results": results}


def search_files(
    model: str, base: str, queries: str, *, k: int | None, radius: int | None, codes: bool, coding: str,
    mu: float, asymmetric: bool, shortlist: int | None, out: str | None, force: bool, n_jobs: int | None,
    step: Step,
) -> Found:  # fmt: skip
    """Search the rows of one file for those of another; with `out`, write distances and ids there."""
    if out is not None:
        tasks.check_output(out, force=force, suffix=".npz")
    tasks.check_coding(coding, mu)
    if coding == "optimal" and not mu and not asymmetric:
        raise InvalidParameter(
            "coding", coding, "hash for Hamming distances: optimal codes at μ = 0 are for the decoder",
            "Add --asymmetric, or a --mu of 0.03 and more.",
        )  # fmt: skip
    hasher = tasks.load_model(model)
    index = HammingIndex(hasher.n_bits, decoder=hasher.decoder_ if asymmetric else None, n_jobs=n_jobs)
    step("encoding the base")
    index.add(tasks.codes_of(hasher, base, are_codes=codes, coding=coding, mu=mu))
    holds_codes = codes or tasks.holds_codes(hasher, tasks.read(base))
    if asymmetric and coding != tasks.best_coding(hasher) == "optimal" and not holds_codes:
        warnings.warn("this model's tables are fitted to optimal codes: add --coding optimal.", stacklevel=2)
    rows = None
    if asymmetric:
        rows = tasks.read(queries)
        tasks.check_columns(hasher, rows, queries)
        tasks.check_all_finite(rows, queries)
    asked = None
    if rows is None or shortlist is not None:
        step("encoding the queries")
        asked = tasks.codes_of(hasher, queries)
    step("searching")
    n_queries = len(asked if asked is not None else rows if rows is not None else ())
    about: dict[str, Any] = {
        "bits": hasher.n_bits,
        "n_base": len(index),
        "queries": n_queries,
        "k": k,
        "radius": radius,
        "by": "the decoder" if asymmetric else "Hamming distance",
    }
    if radius is not None and asked is not None:
        lims, distances, ids = index.search_radius(asked, radius)
        arrays: dict[str, Any] = {"lims": lims, "distances": distances, "ids": ids}
    else:
        most = 10 if k is None else min(k, len(index))
        found: tuple[Array, Array]
        if rows is not None:
            found = index.search_asymmetric(rows, most, query_codes=asked, shortlist=shortlist)
        else:
            found = index.search(np.asarray(asked), most)
        near, ids = found
        lims = np.arange(n_queries + 1) * ids.shape[1]
        arrays = {"distances": near, "ids": ids}
        about["retrieved_per_query"] = ids.shape[1]  # fewer than k where the base is smaller
    about["retrieved"] = int(lims[-1])
    if out is not None:
        with files.replacing(out, overwrite=force) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)
        about["written"] = out
    return Found(lims, arrays["distances"].ravel(), ids.ravel(), about)


def duplicate_rows(
    model: str, data: str, radius: int, out: str | None, *, force: bool, n_jobs: int | None, step: Step
) -> dict[str, Any]:
    """Groups of rows with codes near each other; with `out`, a .csv with a line a row."""
    if out is not None:
        tasks.check_output(out, force=force, suffix=".csv")
    hasher = tasks.load_model(model)
    index = HammingIndex(hasher.n_bits, n_jobs=n_jobs)
    step("encoding")
    index.add(tasks.codes_of(hasher, data))
    step("comparing codes")
    groups = [group.tolist() for group in index.find_duplicates(radius)]
    about: dict[str, Any] = {"bits": hasher.n_bits, "n_rows": len(index), "radius": radius, "groups": groups}
    if out is not None:
        table = [{"group": number, "row": row} for number, group in enumerate(groups) for row in group]
        files.write_text(out, as_csv(table) if table else "group,row\n", overwrite=force)
        about["written"] = out
    return about


def evaluate_files(
    model: str, base: str, queries: str, *, truth: str | None, K: int, k: int, radius: int, curve: str | None,
    picture: str | None, coding: str, mu: float, force: bool, n_jobs: int | None, step: Step,
) -> dict[str, Any]:  # fmt: skip
    """Measure a model on files; with `curve` and `picture`, write the PR curve there."""
    _check_outputs(curve, picture, force=force)
    tasks.check_coding(coding, mu)
    hasher = tasks.load_model(model)
    X, asked = tasks.read(base), tasks.read(queries)
    for rows, name in ((X, base), (asked, queries)):
        tasks.check_columns(hasher, rows, name)
        tasks.check_all_finite(rows, name)
    step("finding true neighbours")
    normalized = bool(hasher.scaling_.normalize)
    given = None if truth is None else tasks.read(truth)
    task = prepare(X, asked, K=K, k=k, radius=radius, n_jobs=n_jobs, truth=given, cosine=normalized)
    step("measuring")
    base_codes, ranking = rank(hasher, task, coding, mu)
    by_decoder = _asymmetric(hasher, task, base_codes)
    label = next(
        (m.label for m in METHODS.values() if m.estimator == type(hasher).__name__), type(hasher).__name__
    )
    about = {"method": label, "bits": hasher.n_bits}
    points = evaluate.precision_recall_curve(ranking)
    table = [
        about | {"radius": int(r), "precision": _number(p), "recall": _number(share), "answered": int(n)}
        for r, p, share, n in zip(*points)
    ]
    if curve is not None:
        files.write_text(curve, as_csv(table), overwrite=force)
    if picture is not None:
        title = f"{label}, {hasher.n_bits} bits: precision and recall within radius r"
        plot.write(plot.pr_curves(table, title=title), picture, overwrite=force)
    recall = {str(R): evaluate.recall_at(ranking, R) for R in RECALL_AT if len(X) >= R}
    kind = f"from {truth}" if truth is not None else "by cosine" if normalized else "Euclidean"
    sizes: dict[str, Any] = {"queries": len(asked), "n_base": len(X), "K": K, "k": k, "radius": radius}
    sizes |= {"neighbours": kind, "rows_normalized": normalized, "coding": coding}
    return (
        about
        | sizes
        | by_decoder
        | figures(hasher, task, base_codes, ranking)
        | {"recall_at": recall, "curve": table}
    )


def _asymmetric(hasher: Hasher, task: Task, base_codes: Packed) -> dict[str, Any]:
    """Precision and recall where the decoder ranks."""
    index = HammingIndex(hasher.n_bits, decoder=hasher.decoder_, n_jobs=task.n_jobs)
    index.add(base_codes)
    ids = index.search_asymmetric(task.queries, task.k)[1]
    found = evaluate.precision_recall_at_k(evaluate.retrieved_ranking(ids, task.truth), task.k)
    return {"precision_asymmetric": found.precision, "recall_asymmetric": found.recall}


def _check_outputs(curve: str | None, picture: str | None, *, force: bool) -> None:
    if curve is not None and picture is not None and Path(curve).resolve() == Path(picture).resolve():
        raise InvalidParameter("plot", picture, "another file than that of --curve")
    if curve is not None:
        tasks.check_output(curve, force=force, suffix=".csv", name="curve")
    if picture is not None:
        plot.check_output(picture)
        tasks.check_output(picture, force=force)


def _number(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)
