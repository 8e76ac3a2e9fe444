"""The cheapest codes that find enough: bits, coding and re-ranking, measured on a sample of the rows.

The sample holds the true neighbours of every query among all rows, and some of the other rows, which count
for those that are left out: so recall is that in all rows, though only the sample is encoded.

choice = choose_bits(X, recall=0.95, rerank=40, metric="cosine")
choice.best, choice.rows
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from auxbit import evaluate
from auxbit.core.checks import Array, check_integer
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.experiments.compare import Runner, rows_in_metric
from auxbit.experiments.measure import RERANKED, SHOWN, Bench, find_candidates, prepare
from auxbit.experiments.study import Result, Row
from auxbit.hashers.base import LEARNED_BITS
from auxbit.plot import figures

FEWEST, MOST_PER_DIMENSION = 32, 8
ROWS, QUERIES, LEAST_ROWS = 40_000, 500, 20
MOST_NUMBERS = 2**27  # in rows among which true neighbours are looked for: of more, every second, third …
ENOUGH = 0.99  # recall from which on more bits are not tried if none is requested
TRAINED = 10_000  # rows at most
CODINGS = {"BA": "hash", "BA-optimal": "optimal", "BA-linear": "optimal"}


@dataclass(frozen=True)
class Choice:
    """What was measured, and the cheapest row that finds enough; None if none does, or none was asked for.

    rows : bits, coding, decoder, rerank (candidates, or None), payload_bytes, resident_bytes, vector_bytes
        (of what re-ranking keeps), recall, effective_bits, seconds_fit, encode_us, search_ms. Those of one
        number of bits stand together, the cheapest first.
    left_out : rows without figures, with the reason as "skipped".
    """

    best: Row | None
    rows: list[Row]
    left_out: list[Row]
    settings: dict[str, Any]


def choose_bits(
    X: Array, *, recall: float | None = None, rerank: int | None = None, metric: str = "euclidean",
    bits: Iterable[int] | None = None, n_queries: int = QUERIES, max_rows: int = ROWS, seed: int = 0,
    limit: float | None = None, n_jobs: int | None = None, name: str = "data",
    on_row: Callable[[Row], object] = lambda row: None,
) -> Choice:  # fmt: skip
    """Measure BA's codes by Hamming distance and by the decoder, with and without re-ranking. X : (n, D).

    `n_queries` rows, at most a fifth, are held out as queries. Of more than `max_rows` others the true
    neighbours and a sample of the rest are encoded, and recall in all of them is estimated: within 0.01 if
    candidates are re-ranked, and up to 0.03 too high of codes alone. At most 10,000 rows are trained on,
    others than those that are searched as far as there are any, so that a collection, which is trained on
    more, finds no less.

    recall : the recall@10 that is wanted; numbers of bits are tried until it is reached.
    rerank : candidates that are ranked again by their vectors, by default 40. 0: the choice is among codes
        alone, and what 40 candidates would find is shown beside it.
    bits : by default 32 and doubled, up to 8 per dimension and 1024.
    limit : seconds of a fit, as in `compare`. If the best decoder takes longer, a linear one is measured.
    """
    if recall is not None and not 0 < recall <= 1:
        raise InvalidParameter("recall", recall, "a share above 0, at most 1")
    counts = _counts(bits, X.shape[1])
    evaluate.check_metric(metric)
    seen = X[:: -(-X.size // MOST_NUMBERS)] if len(X) > max_rows else X
    drawn = _draw(seen, n_queries, max_rows, seed, metric, n_jobs)
    base, queries = np.asarray(seen[drawn.searched]), np.asarray(seen[drawn.asked])
    trained = base if np.array_equal(drawn.learned, drawn.searched) else np.asarray(seen[drawn.learned])
    trained, base, queries = rows_in_metric(metric, trained, base, queries, n_jobs)
    K = _n_true(len(base))
    candidates, alone = rerank or RERANKED, rerank == 0
    task = prepare(
        base, queries, K=K, k=K, radius=2, n_jobs=n_jobs, rerank=candidates, truth=drawn.truth
    )._replace(weights=drawn.weights)
    settings = {
        "data": name, "rows": len(X), "dimensions": X.shape[1], "train_rows": len(trained),
        "seen_rows": len(seen) - len(queries), "sample_rows": len(base), "queries": len(queries),
        "metric": metric, "recall": recall, "rerank": candidates, "alone": alone, "bits": counts,
        "recall_at": K, "seed": seed,
    }  # fmt: skip
    methods = find_candidates(label.lower() for label in CODINGS)
    rows: list[Row] = []
    left_out: list[Row] = []
    runner = Runner(Bench(trained, task), limit)
    try:
        for L in counts:
            found: list[Row] = []
            for label in CODINGS:
                if label == "BA-linear" and any(row["coding"] == "optimal" for row in found):
                    continue  # it is for the case that the better decoder takes too long
                row = runner.run((label, L, seed), methods[label])
                both = [] if row["skipped"] else _both(row, candidates, X)
                for each in both:
                    on_row(each)
                found += both
                left_out += [row] if row["skipped"] else []
            rows += sorted(found, key=lambda row: (row["vector_bytes"], row["resident_bytes"]))
            best = _cheapest(rows, ENOUGH if recall is None else recall, alone=alone)
            if best is not None:
                break
    finally:
        runner.close()
    if not rows:
        raise InvalidInput(f"none of these numbers of bits could be measured: {left_out[0]['skipped']}")
    return Choice(best if recall is not None else None, rows, left_out, settings)


def _counts(bits: Iterable[int] | None, n_dims: int) -> list[int]:
    """The numbers of bits to try, rising."""
    if bits is not None:
        check = find_candidates(["ba"])["BA"].check
        counts = sorted({check(each) for each in bits})
        if not counts:
            raise InvalidInput("bits must not be empty.")
        return counts
    most = min(MOST_PER_DIMENSION * n_dims, LEARNED_BITS)
    doubled = [FEWEST << place for place in range(16) if FEWEST << place <= most]
    return doubled or [most]


def _both(row: Row, candidates: int, X: Array) -> list[Row]:
    """What was measured of a coding as two rows: codes alone, and re-ranked."""
    names = ("payload_bytes", "resident_bytes", "effective_bits", "seconds_fit", "encode_us")
    kept = {name: row[name] for name in names}
    about = {"bits": row["bits"], "coding": CODINGS[row["method"]], "decoder": row["decoder"]}
    slower = row["search_ms"] + row["rerank_ms"]
    alone = {"rerank": None, "vector_bytes": 0, "recall": row["recall_at"], "search_ms": row["search_ms"]}
    again = {"rerank": candidates, "vector_bytes": 2 * X.shape[1]}
    again |= {"recall": row["recall_reranked"], "search_ms": slower}
    return [about | each | kept for each in (alone, again)]


def _cheapest(rows: list[Row], recall: float, *, alone: bool = False) -> Row | None:
    """The first that finds enough. alone : only of codes without re-ranking."""
    enough = (row for row in rows if row["recall"] >= recall and not (alone and row["rerank"]))
    return next(enough, None)


class Drawn(NamedTuple):
    """Positions of the rows to train on, to search and to search for, each in rising order.

    truth : (q, K) places in `searched`; weights : for how many rows each of `searched` stands. None: all rows
    are searched.
    """

    learned: Array
    searched: Array
    asked: Array
    truth: Array | None = None
    weights: Array | None = None


def _draw(X: Array, n_queries: int, max_rows: int, seed: int, metric: str, n_jobs: int | None) -> Drawn:
    if len(X) < LEAST_ROWS:
        raise InvalidInput(f"choosing a number of bits needs at least {LEAST_ROWS} rows, got {len(X)}.")
    most = check_integer("rows", max_rows, LEAST_ROWS)
    held_out = min(check_integer("queries", n_queries, 1), len(X) // 5)
    if len(X) - held_out > most:
        held_out = min(held_out, max(1, most // (2 * SHOWN)))  # so that their neighbours are half at most
    asked, others = np.split(np.random.RandomState(seed).permutation(len(X)), [held_out])
    learned, asked = np.sort(others[-min(most, TRAINED) :]), np.sort(asked)
    if len(others) <= most:
        return Drawn(learned, np.sort(others), asked)
    true = _nearest_others(X, asked, _n_true(most), metric, n_jobs)
    near = np.unique(true)
    rest = others[~np.isin(others, near)]
    some = rest[: most - len(near)]
    searched = np.sort(np.concatenate([near, some]))
    weights = np.where(np.isin(searched, near), 1.0, len(rest) / len(some))
    return Drawn(learned, searched, asked, np.searchsorted(searched, true), weights)


def _n_true(n_rows: int) -> int:
    return min(SHOWN, max(1, n_rows // 10))


def _nearest_others(X: Array, asked: Array, k: int, metric: str, n_jobs: int | None) -> Array:
    """Positions, (q, k), of the nearest rows to those asked for, which are not among these themselves."""
    fetched = k
    while True:  # ends: there are at least four times as many others as are asked for
        fetched = min(2 * fetched, len(X))
        ids = evaluate.ground_truth(X, np.asarray(X[asked]), fetched, metric=metric, n_jobs=n_jobs)
        found = [row[~np.isin(row, asked)][:k] for row in ids]
        if min(map(len, found)) == k:
            return np.array(found)


# ---- what is said of it


def on_what(settings: dict[str, Any]) -> str:
    """What the figures were measured on, and what that means."""
    rows, seen, sampled = settings["rows"], settings["seen_rows"], settings["sample_rows"]
    queries = f"{settings['queries']:,} held-out queries"
    if sampled == seen:
        return f"Measured by {queries} in the other {sampled:,} rows."
    every = f" of {rows:,}" if seen + settings["queries"] < rows else ""
    return (
        f"Recall in {seen:,}{every} rows, by {queries}, estimated from {sampled:,} of them: all true\n"
        f"neighbours and a sample of the others, with models of {settings['train_rows']:,} rows."
    )


def verdict(choice: Choice) -> str:
    """What to use, or that nothing was enough."""
    made, best = choice.settings, choice.best
    if made["recall"] is None:
        return ""
    wanted = f"recall@{made['recall_at']} of {made['recall']:g}"
    again = _cheapest(choice.rows, made["recall"])
    kept = ""
    if again is not None:
        kept = f" With vectors kept beside the codes: {described(again)}, with {again['recall']:.3f}."
    if best is None:
        rows = (row for row in choice.rows if not (made["alone"] and row["rerank"]))
        most = max(rows, key=lambda row: float(row["recall"]))
        text = (
            f"No codes that were tried have a {wanted}{' alone' if made['alone'] else ''}. "
            f"The most that was found is {most['recall']:.3f}: {described(most)}."
        )
        return text + (kept or " Re-rank more candidates (--rerank), or try more bits.")
    text = f"The cheapest with a {wanted}: {described(best)}, with {best['recall']:.3f}."
    if again is not None and again["bits"] < best["bits"]:
        text += kept
    elif best["rerank"]:
        same = (row for row in choice.rows if row["bits"] == best["bits"] and not row["rerank"])
        alone = max(row["recall"] for row in same)
        text += f" Without vectors, {best['bits']} bits find {alone:.3f}; --rerank 0 tries more of them."
    return text


def described(row: Row) -> str:
    """A setting in words."""
    codes = "hash codes by Hamming distance" if row["coding"] == "hash" else "optimal codes by the decoder"
    again = f", {row['rerank']} candidates re-ranked by their vectors" if row["rerank"] else ""
    return f"{row['bits']} bits, {codes}{again}"


def commands(choice: Choice, data: str) -> list[list[str]]:
    """The commands that make and search a collection with the best setting."""
    best, made = choice.best, choice.settings
    if best is None:
        return []
    create = ["collection", "create", "items.auxbit", "--data", data, "--bits", str(best["bits"])]
    create += ["--coding", best["coding"]]
    create += ["--decoder", best["decoder"]] if best["decoder"] else []
    create += ["--vectors", "float16"] if best["rerank"] else []
    create += ["--metric", made["metric"]] if made["metric"] != "euclidean" else []
    search = ["collection", "search", "items.auxbit", "--queries", "queries.npy", "--k", str(SHOWN)]
    return [create, search + (["--rerank", str(best["rerank"])] if best["rerank"] else [])]


def as_result(choice: Choice) -> Result:
    """What was measured, with its figure, as experiments give it."""
    made = choice.settings
    title = f"{made['data']}: recall@{made['recall_at']} by bytes and by time"
    figure = partial(
        figures.recall_panels, choice.rows, title=title, wanted=made["recall"], best=choice.best,
        name=f"recall@{made['recall_at']}",
    )  # fmt: skip
    about = f"{verdict(choice)} {on_what(made)}".strip()
    best = {} if choice.best is None else {"best": choice.best}
    return Result("bits", title, about, made | best, {"bits": choice.rows}, {"bits": figure})
