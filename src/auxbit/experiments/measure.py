"""What a method finds and what it costs: one row of figures for one fitted method.

task = prepare(X_base, X_query, K=50, k=50, radius=2, n_jobs=None)
row = Bench(X_train, task).run(find_candidates(["ba-optimal"])["BA-optimal"], bits=64, seed=0)
evaluate_model(model, X_base, X_query)        # all ways to search the codes of a fitted model
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from auxbit import evaluate
from auxbit.core.checks import Array, Ids, check_finite, check_integer
from auxbit.core.maps import check_n_bits
from auxbit.core.parallel import Workers
from auxbit.core.progress import Progress, Silent
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.experiments.quantisers import WAYS, ByDecoder, Hashed, Quantiser, Times, make_quantiser
from auxbit.experiments.study import Row, RowKey
from auxbit.hashers.base import Hasher
from auxbit.hashers.files import coding_of
from auxbit.hashers.registry import find_method, label_of

SHOWN = 10  # recall@10
RERANKED = 40  # candidates that are ranked again by their vectors
RECALL_AT, ONE_RECALL_AT = (1, 10, 50), (1, 10, 100)
HALF = 6e4  # float16 ends a little above
LEAST_SECONDS, MOST_SEARCHES = 0.5, 5  # searches are timed as often, and the fastest counts
LONG_SECONDS = 10.0  # a first search that takes longer is not repeated

# ---- what is measured on


class Task(NamedTuple):
    """What codes are measured on: rows to search, queries, K true neighbours, and k and r to retrieve.

    vectors, asked : rows and queries as re-ranking compares them, by Euclidean distance; None: base, queries.
    weights : (n,) how many rows each row of the base stands for, if it is a sample; None: one each.
    """

    base: Array
    queries: Array
    truth: Ids
    k: int = 50
    radius: int = 2
    n_jobs: int | None = None
    rerank: int = RERANKED
    vectors: Array | None = None
    asked: Array | None = None
    weights: Array | None = None


def prepare(
    X_base: Array, X_query: Array, *, K: int, k: int, radius: int, n_jobs: int | None,
    truth: Array | None = None, metric: str = "euclidean", rerank: int = RERANKED,
) -> Task:  # fmt: skip
    """Check the rows and find the K true neighbours, if `truth` is not given."""
    with Workers(n_jobs) as workers:
        check_finite(X_base, workers, "the base")
        check_finite(X_query, workers, "the queries")
    for name, value in (("k", k), ("K", K)):
        if check_integer(name, value, 1) > len(X_base):
            raise InvalidInput(f"{name}={value} is more than the {len(X_base)} rows to search. Lower {name}.")
    radius = check_integer("radius", radius, 0, None, "It is a Hamming distance.")
    rerank = check_integer(
        "rerank", rerank, min(SHOWN, K), None, f"It must hold the {min(SHOWN, K)} answers."
    )
    if truth is None:
        truth = evaluate.ground_truth(X_base, X_query, K, metric=metric, n_jobs=n_jobs)
    elif truth.shape[1] < K:
        raise InvalidInput(f"truth has {truth.shape[1]} neighbours per query, fewer than K={K}. Lower K.")
    vectors = asked = None
    if metric != "euclidean":
        vectors, asked = in_metric(metric, X_base, X_query, n_jobs=n_jobs)
    return Task(
        X_base, X_query, np.ascontiguousarray(truth[:, :K]), k, radius, n_jobs, rerank, vectors, asked
    )


def in_metric(metric: str, base: Array, queries: Array, *, n_jobs: int | None = None) -> tuple[Array, Array]:
    """Rows and queries, float32, whose Euclidean neighbours are those by the metric.

    Rows to train on that are others than the base have to be among `base`, so that all are lifted alike.
    """
    if evaluate.check_metric(metric) == "euclidean":
        return base, queries
    if metric == "cosine":
        rows, asked = (evaluate.unit_rows(X, n_jobs=n_jobs) for X in (base, queries))
    else:
        largest = evaluate.largest_norm(base, n_jobs=n_jobs)
        if not largest:
            raise InvalidInput("all rows are 0, and so are all inner products: give other rows.")
        rows, asked = evaluate.lift_rows(base, largest), evaluate.lift_queries(queries, largest)
    return rows.astype(np.float32), asked.astype(np.float32)


def first_of(task: Task, ids: Ids, k: int) -> Ids:
    """Of each query's ids, (q, s), nearest first, those that would be among the first k of all rows; else −1.

    A row that stands for w rows pushes those behind it back by w places.
    """
    if task.weights is None:
        return ids[:, :k]
    weights = np.where(ids < 0, 1.0, task.weights[ids])
    return np.where(np.cumsum(weights, axis=1) - weights < k, ids, -1)[:, :k]


def reranked(task: Task, ids: Ids, k: int) -> Ids:
    """Of each query's ids, (q, s), −1 for none, the k with the nearest vectors, these in float16."""
    vectors = task.base if task.vectors is None else task.vectors
    asked = task.queries if task.asked is None else task.asked
    kept = np.float16 if vectors.dtype.itemsize > 2 and np.abs(vectors).max(initial=0) < HALF else None
    best = np.empty((len(ids), min(k, ids.shape[1])), dtype=np.int64)
    for query, (row, x) in enumerate(zip(ids, asked)):
        gaps = vectors[np.maximum(row, 0)].astype(kept or vectors.dtype).astype(np.float64) - x
        distances = np.where(row < 0, np.inf, np.einsum("nd,nd->n", gaps, gaps))
        best[query] = row[np.lexsort((row, distances))[:k]]
    return best


# ---- what is measured


class Candidate(NamedTuple):
    """A method of a comparison. name : by which another process can make it, None for an object.

    own : an estimator of the user's, or what makes one; check : a number of bits → it, or an error.
    """

    label: str
    name: str | None
    seeded: bool
    check: Callable[[object], int]
    own: Any = None

    @property
    def is_known(self) -> bool:
        """Whether its label tells what it is; a method of the user's may be another one next time."""
        return self.own is None and self.label == _named(str(self.name)).label

    def make(self, bits: int, seed: int, n_jobs: int | None, start: Hasher | None = None) -> Quantiser:
        """One that is not fitted yet. start : a fitted BA, for the ways of BA."""
        if self.own is None:
            return make_quantiser(str(self.name), bits, seed=seed, n_jobs=n_jobs, start=start)
        return Hashed(own_model(self.own, bits, seed), bits, seed=seed, n_jobs=n_jobs)


def find_candidates(methods: Iterable[str] | Mapping[str, Any]) -> dict[str, Candidate]:
    """The methods by their labels: names of METHODS, "module:Class", or your own estimators by your names.

    A value of a mapping is a name, an estimator (it is cloned; its n_bits and random_state are set), or a
    class or function that makes one from n_bits. Classes of the same name are told apart by their modules.
    """
    named = methods if isinstance(methods, Mapping) else {name: name for name in methods}
    every = [_candidate(name, own) for name, own in named.items()]
    labels, found = Counter(each.label for each in every), dict[str, Candidate]()
    for each in every:
        if labels[each.label] > 1 and each.name is not None and ":" in each.name:
            each = each._replace(label=each.name)
        first = found.setdefault(each.label, each)
        if first.name != each.name or first.own is not each.own:
            raise InvalidParameter("methods", each.label, "one method of that name", "Rename one.")
    if not found:
        raise InvalidInput("methods must not be empty.")
    return found


def _candidate(label: str, own: Any) -> Candidate:
    if isinstance(own, Candidate):
        return own
    if isinstance(own, str):
        return _named(own) if label == own else _named(own)._replace(label=label)
    return Candidate(label, None, True, check_n_bits, own)


def _named(name: str) -> Candidate:
    if ":" in name:
        return Candidate(name.rpartition(":")[2], name, True, check_n_bits, _load(name))
    method = find_method(name)
    if method.made is not None:
        return Candidate(method.label, None, method.seeded, check_n_bits, method.made)
    check = find_method("ba").check_bits if name.lower() in WAYS else method.check_bits
    return Candidate(method.label, name.lower(), method.seeded, check)


def _load(name: str) -> Any:
    """The class at "module:Class", also of a file in the folder where the command runs."""
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidParameter("method", name, "module:Class that can be imported", f"{error}.") from error


def own_model(own: Any, bits: int, seed: int) -> Any:
    """An estimator of the user's, not fitted, for a number of bits and a seed, as far as it takes them."""
    wanted = {"n_bits": bits, "random_state": seed}
    if hasattr(own, "fit") and not inspect.isclass(own):
        from sklearn.base import clone

        model = clone(own)
        return model.set_params(**{key: value for key, value in wanted.items() if key in model.get_params()})
    if not callable(own):
        allowed = "an estimator with fit, or a class or function that makes one"
        raise InvalidParameter("methods", type(own).__name__, allowed)
    taken = inspect.signature(own).parameters
    every = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in taken.values())
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    for key, each in taken.items():
        if key not in wanted and each.default is each.empty and each.kind not in variable:
            allowed = "a class or function of n_bits and random_state"
            raise InvalidParameter("methods", own, allowed, f"Name its parameter {key!r} like one of these.")
    return own(**{key: value for key, value in wanted.items() if every or key in taken})


# ---- measuring


class Bench:
    """Fits methods to the same rows and measures them; BA is fitted once for all of its ways."""

    def __init__(self, X_train: Array, task: Task) -> None:
        self.X_train, self.task = X_train, task
        self._fitted: dict[tuple[int, int], tuple[Hasher, Times]] = {}

    def run(self, method: Candidate, bits: int, seed: int) -> Row:
        """The row of a method; InvalidInput if it cannot have that many bits on these rows."""
        start, before = self._ba(bits, seed) if method.name in WAYS else (None, Times(0.0, 0.0))
        if method.name == "ba":
            model, before = self._ba(bits, seed)
            made: Quantiser = Hashed(model, bits, seed=seed, n_jobs=self.task.n_jobs, fitted=True)
        else:
            made = method.make(bits, seed, self.task.n_jobs, start).fit(self.X_train)
        made.times["fit"] = Times(*(a + b for a, b in zip(before, made.times["fit"])))
        return about((method.label, bits, seed), made) | measure_quantiser(made, self.task)

    def _ba(self, bits: int, seed: int) -> tuple[Hasher, Times]:
        if (bits, seed) not in self._fitted:
            self._fitted = {key: value for key, value in self._fitted.items() if key[0] == bits}
            made = make_quantiser("ba", bits, seed=seed, n_jobs=self.task.n_jobs).fit(self.X_train)
            assert isinstance(made, Hashed)
            self._fitted[bits, seed] = made.model, made.times["fit"]
        return self._fitted[bits, seed]


def about(cell: RowKey, model: Quantiser | None = None, *, skipped: str | None = None) -> Row:
    """How a row begins."""
    known = {"search": None if model is None else model.searched_by, "skipped": skipped}
    known |= {"decoder": model.decoder if isinstance(model, ByDecoder) else None}
    sizes = {name: getattr(model, name, None) for name in ("payload_bytes", "resident_bytes", "model_bytes")}
    return dict(zip(("method", "bits", "seed"), cell)) | known | sizes


def measure_quantiser(model: Quantiser, task: Task) -> Row:
    """The figures of a fitted method. What has no Hamming distances has no ties, radius or mAP."""
    depth, shown = min(len(task.base), max(task.k, task.rerank)), min(SHOWN, task.truth.shape[1])
    model.encode(task.base[:64])  # what is compiled on first use shall not count
    codes = model.add(task.base)
    ids = model.search(task.queries, depth)  # compiles, which is nothing in a long search
    spent = [model.times["search"].wall] if model.times["search"].wall > LONG_SECONDS else []
    while sum(spent) < LEAST_SECONDS and len(spent) < MOST_SEARCHES:
        model.search(task.queries, depth)
        spent.append(model.times["search"].wall)
    ranking = evaluate.retrieved_ranking(ids, task.truth)
    alone = evaluate.retrieved_ranking(first_of(task, ids, shown), task.truth)
    start = time.perf_counter()
    best = reranked(task, first_of(task, ids, task.rerank), shown)
    rerank_ms = 1e3 * (time.perf_counter() - start) / len(ids)
    again = evaluate.retrieved_ranking(best, task.truth)
    found = evaluate.precision_recall_at_k(ranking, task.k)
    nothing = ("precision_average", "recall_average", "precision_radius", "recall_radius", "map")
    plain = codes.shape[1] == model.payload_bytes  # factors beside codes would count as codes
    row = {
        "seconds_fit": model.times["fit"].wall, "cpu_fit": model.times["fit"].cpu,
        "encode_us": 1e6 * model.times["encode"].wall / len(task.base),
        "search_ms": 1e3 * min(spent) / len(task.queries), "rerank_ms": rerank_ms,
        "precision": found.precision, "recall": found.recall,
        "recall_at": evaluate.recall_at(alone, shown), "recall_reranked": evaluate.recall_at(again, shown),
        "reconstruction_error": model.error(task.base, codes), **dict.fromkeys(nothing),
        "effective_bits": evaluate.effective_bits(codes) if plain else None,
        "effective_bits_bound": evaluate.effective_bits_bound(8 * model.payload_bytes, len(codes)),
    }  # fmt: skip
    if isinstance(model, Hashed) and not isinstance(model, ByDecoder):
        ranks = evaluate.hamming_ranking(
            codes, model.encode(task.queries), task.truth, model.bits, n_jobs=task.n_jobs
        )
        row |= by_hamming(ranks, task, model.bits)
        row["effective_bits_bound"] = evaluate.effective_bits_bound(model.bits, len(codes))
    return row


def by_hamming(ranking: evaluate.Ranking, task: Task, n_bits: int) -> Row:
    """Precision and recall at k, with ties by id and averaged, and within the radius; mAP."""
    by_id = evaluate.precision_recall_at_k(ranking, task.k)
    averaged = evaluate.precision_recall_at_k(ranking, task.k, ties="average")
    within = evaluate.precision_recall_at_radius(ranking, min(task.radius, n_bits))
    return {
        "precision": by_id.precision, "recall": by_id.recall,
        "precision_average": averaged.precision, "recall_average": averaged.recall,
        "precision_radius": within.precision, "recall_radius": within.recall,
        "map": evaluate.mean_average_precision(ranking, ties="average"),
    }  # fmt: skip


# ---- one fitted model


def evaluate_model(
    model: Hasher, X_base: Array, X_query: Array, *, truth: Array | None = None, K: int = 50, k: int = 50,
    radius: int = 2, coding: str | None = None, mu: float | None = None, metric: str | None = None,
    rerank: int | None = None, n_jobs: int | None = None, progress: Progress | None = None,
) -> Row:  # fmt: skip
    """What the codes of a fitted model find, by Hamming distance, by the decoder and re-ranked.

    truth : (q, K or more) row numbers of X_base, nearest first; by default the neighbours by `metric`, which
        is that of the model.
    coding, mu : how the base is encoded for the decoder; None: as the decoder was fitted for. Hamming
        distances are those of these codes only if they have a meaning: not for optimal codes with mu = 0.
    rerank : how many candidates are ranked again by their vectors.

    "ways" has one row per way, "curve" precision and recall for each radius.
    """
    told, metric = progress or Silent(), evaluate.check_metric(metric or model.scaling_.metric)
    coding, mu = coding_of(model, coding, mu)
    told.stage("finding true neighbours", None)
    task = prepare(
        X_base, X_query, K=K, k=k, radius=radius, n_jobs=n_jobs, truth=truth, metric=metric,
        rerank=RERANKED if rerank is None else rerank,
    )  # fmt: skip
    told.stage("measuring", None)
    hashed = Hashed(model, model.n_bits, n_jobs=n_jobs, fitted=True)
    decoded = ByDecoder(model, model.n_bits, coding=coding, mu=mu, n_jobs=n_jobs, fitted=True)
    codes, asked = decoded.add(task.base), model.encode(task.queries, queries=True)
    comparable = codes if coding == "hash" or mu > 0 else model.encode(task.base, coding="hash")
    hashed._fill(comparable)
    ranking = evaluate.hamming_ranking(comparable, asked, task.truth, model.n_bits, n_jobs=n_jobs)
    searched = {
        f"{coding if comparable is codes else 'hash'} codes by Hamming distance": hashed,
        f"{coding} codes by the decoder": decoded,
    }
    ways = [row for name, way in searched.items() for row in _ways(name, way, task, rerank)]
    row = {
        "method": label_of(model), "bits": model.n_bits, "queries": len(X_query), "n_base": len(X_base),
        "K": K, "k": k, "radius": radius, "neighbours": "given" if truth is not None else NEIGHBOURS[metric],
        "metric": metric, "model_metric": model.scaling_.metric, "coding": coding, "mu": mu, "rerank": rerank,
        "ways": ways, "reconstruction_error": model._error_of(task.base, codes),
    } | by_hamming(ranking, task, model.n_bits)  # fmt: skip
    row |= {
        "effective_bits": evaluate.effective_bits(codes),
        "effective_bits_bound": evaluate.effective_bits_bound(model.n_bits, len(codes)),
        "recall_at": {str(n): evaluate.recall_at(ranking, n) for n in RECALL_AT if n <= K},
        "one_recall_at": {
            str(R): evaluate.one_recall_at(ranking, R) for R in ONE_RECALL_AT if len(X_base) >= R
        },
    }
    return row | {"curve": _curve(ranking, {"method": row["method"], "bits": row["bits"]})}


NEIGHBOURS = {"euclidean": "Euclidean", "cosine": "by cosine", "inner_product": "by inner product"}


def _ways(name: str, way: Quantiser, task: Task, rerank: int | None) -> list[Row]:
    """What is found in a way, and what is found if that is ranked again by the vectors."""
    shown = min(SHOWN, task.truth.shape[1])
    ids = way.search(task.queries, min(len(task.base), max(task.k, shown, rerank or 0)))
    lists = {name: ids}
    if rerank is not None:
        lists[f"{name}, {rerank} re-ranked"] = reranked(task, ids[:, :rerank], max(task.k, shown))
    rows = []
    for each, found in lists.items():
        ranking = evaluate.retrieved_ranking(found, task.truth)
        row = {"way": each, "precision": None, "recall": None}
        if task.k <= found.shape[1]:  # candidates may be fewer
            row |= evaluate.precision_recall_at_k(ranking, task.k)._asdict()
        rows.append(row | {"recall_at": evaluate.recall_at(ranking, shown)})
    return rows


def _curve(ranking: evaluate.Ranking, named: Row) -> list[Row]:
    curve = []
    for r, p, share, n in zip(*(column.tolist() for column in evaluate.precision_recall_curve(ranking))):
        found = {"precision": p, "recall": share} if n else {"precision": None, "recall": None}
        curve.append(named | {"radius": r} | found | {"answered": n})
    return curve
