"""Query images beside the nearest images that each method retrieves: figure 9."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from auxbit.core.checks import Array, Ids
from auxbit.core.maps import hamming_distances
from auxbit.errors import InvalidInput
from auxbit.experiments.retrieval import about_ba, cells
from auxbit.experiments.study import PAPER, Fits, Problem, Result, Row, Trained
from auxbit.index import HammingIndex
from auxbit.plot import figures
from auxbit.plot.figures import EXACT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("ba", "bfa", "itq", "sph", "agh", "klsh", "sh", "tpca", "lsh")
BITS, SHOWN, NEAREST = 32, 6, 10


def run(
    fits: Fits, *, bits: int = BITS, methods: Iterable[str] = METHODS, k: int = NEAREST,
    n_queries: int = SHOWN, seed: int = 0, preset: str = PAPER,
) -> Result:  # fmt: skip
    """The k nearest codes of some queries for every method, beside the true neighbours."""
    problem, methods, k = fits.problem, tuple(methods), min(k, len(fits.problem.train))
    shown = fits.all(cells(methods, [bits], [seed], preset))
    if not shown:
        raise InvalidInput(f"none of {', '.join(methods)} can have {bits} bits on {problem.name}.")
    lists = {EXACT: fits.truth(k)}
    lists |= {made.cell.label: nearest_codes(made, k, fits.n_jobs) for made in shown}
    chosen = choose_queries(len(problem.queries), problem.query_labels, n_queries, seed)
    drawn: dict[str, Callable[[], Figure]] = {}
    if problem.train_images is not None and problem.query_images is not None:
        images = problem.train_images, problem.query_images
        drawn["samples"] = partial(_draw, problem, *images, lists, chosen, bits)
    about = (
        f"As fig. 9 of the paper: {len(chosen)} queries, each beside its {k} nearest rows, first the true "
        f"(Euclidean) ones, then those whose codes of {bits} bits are nearest, equal distances in the order "
        "of the rows. The queries are drawn with a fixed seed"
    )
    about += ", with different labels if there are any. " if problem.query_labels is not None else ". "
    if has_labels(problem):
        about += "What has another label than the query is framed. "
    if not drawn:
        instead = "the tables list row numbers and distances, and nothing is drawn"
        about += f"{problem.name} has no images: {instead}. "
    about += f"Shares in the first table are over all queries. {about_ba(preset)}"
    return Result(
        "samples",
        f"What each method retrieves, on {problem.name}",
        about,
        {"data": problem.name, "train_rows": len(problem.train), "queries": len(problem.queries),
         "bits": bits, "k": k, "methods": list(methods), "shown": chosen.tolist(), "seed": seed,
         "preset": preset},
        {"samples": shares(lists, problem), "samples-rows": listed(lists, shown, problem, chosen)},
        drawn,
    )  # fmt: skip


def nearest_codes(made: Trained, k: int, n_jobs: int | None) -> Ids:
    """Row numbers of the k nearest codes to each query's, (q, k), ties by position."""
    index = HammingIndex(made.cell.bits, n_jobs=n_jobs)
    index.add(made.train)
    return index.search(made.queries, k)[1]


def choose_queries(n: int, labels: Array | None, wanted: int, seed: int) -> Ids:
    """Some of n queries, in rising order: one of each label as long as there are any, the rest at random."""
    order = np.random.RandomState(seed).permutation(n)
    if labels is not None:
        _, first = np.unique(np.asarray(labels)[order], return_index=True)
        fresh = np.isin(np.arange(n), first)
        order = np.concatenate([order[fresh], order[~fresh]])
    return np.sort(order[:wanted]).astype(np.int64)


def has_labels(problem: Problem) -> bool:
    """Whether rows and queries have labels to compare."""
    return problem.train_labels is not None and problem.query_labels is not None


def shares(lists: dict[str, Ids], problem: Problem) -> list[Row]:
    """Of what each method retrieves for all queries: the share of true neighbours, and of right labels."""
    true, rows = lists[EXACT], []
    for method, ids in lists.items():
        found = float((ids[:, :, None] == true[:, None, :]).any(2).mean())
        row: Row = {"method": method, "true_neighbours": found}
        if has_labels(problem):
            row["right_labels"] = float(1 - _wrong(problem, ids).mean())
        rows.append(row)
    return rows


def listed(lists: dict[str, Ids], fits: list[Trained], problem: Problem, chosen: Ids) -> list[Row]:
    """What is shown, a row for each: its place, row number, distances, and label."""
    codes = {made.cell.label: made for made in fits}
    rows: list[Row] = []
    for query in chosen:
        asked = np.asarray(problem.queries[query], dtype=np.float64)
        for method, ids in lists.items():
            found = ids[query]
            gaps = np.asarray(problem.train[found], dtype=np.float64) - asked
            euclidean = np.sqrt(np.square(gaps).sum(axis=1)).tolist()
            hamming: list[int | None] = [None] * len(found)
            if made := codes.get(method):
                hamming = hamming_distances(made.queries[query : query + 1], made.train[found])[0].tolist()
            each = zip(found.tolist(), euclidean, hamming, strict=True)
            for place, (row_number, far, bits) in enumerate(each, start=1):
                row: Row = {"query": int(query), "method": method, "place": place, "row": row_number,
                            "hamming": bits, "euclidean": far}  # fmt: skip
                if problem.train_labels is not None:
                    row["label"] = problem.train_labels[row_number].item()
                if problem.query_labels is not None:
                    row["query_label"] = problem.query_labels[query].item()
                rows.append(row)
    return rows


def _draw(
    problem: Problem, of_rows: Array, of_queries: Array, lists: dict[str, Ids], chosen: Ids, bits: int
) -> Figure:
    brightest = max(1, int(of_rows.max()))

    def shown(pictures: Array) -> Array:
        """As they are, but that the brightest pixel of the whole set is white: digits may end at 16."""
        return np.minimum(np.asarray(pictures, dtype=np.float64) * (255 / brightest), 255).astype(np.uint8)

    wrong = {method: _wrong(problem, ids) for method, ids in lists.items()}
    panels = []
    for query in chosen:
        name = f"query {query}"
        if problem.query_labels is not None:
            name += f"\nlabel {problem.query_labels[query]}"
        rows = [(method, shown(of_rows[ids[query]]), wrong[method][query]) for method, ids in lists.items()]
        panels.append({"query": shown(of_queries[query]), "caption": name, "rows": rows})
    framed = "; framed: another label than the query's" if has_labels(problem) else ""
    return figures.retrieved(panels, title=f"{problem.name}: the nearest by codes of {bits} bits{framed}")


def _wrong(problem: Problem, ids: Ids) -> npt.NDArray[np.bool_]:
    """Which of the rows have another label than their query; none if there are no labels. ids : (q, k)."""
    if problem.train_labels is None or problem.query_labels is None:
        return np.zeros(ids.shape, dtype=np.bool_)
    found: npt.NDArray[np.bool_] = problem.train_labels[ids] != problem.query_labels[:, None]
    return found
