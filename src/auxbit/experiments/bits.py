"""The cheapest codes that find enough: bits, coding and re-ranking, measured on a sample of the rows.

choice = choose_bits(X, recall=0.95, rerank=40, metric="cosine")
choice.best, choice.rows
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from auxbit.core.checks import Array, check_integer
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.experiments.compare import Runner, rows_in_metric
from auxbit.experiments.measure import RERANKED, SHOWN, Bench, find_candidates, prepare
from auxbit.experiments.study import Result, Row
from auxbit.hashers.base import LEARNED_BITS
from auxbit.plot import figures

FEWEST, MOST_PER_DIMENSION = 32, 8
ROWS, QUERIES, LEAST_ROWS = 20_000, 500, 20
TRUE = 50  # neighbours, for precision
ENOUGH = 0.99  # recall from which on more bits are not tried if none is asked for
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

    Of a sample of `max_rows` rows, `n_queries`, at most a fifth, are held out as queries and the others are
    searched. As many, at most 10,000, are trained on, others as far as there are any: so it is with rows that
    are added to a collection later. In all rows recall is lower than in a sample, as they lie closer.

    recall : the recall@10 that is wanted; numbers of bits are tried until it is reached.
    rerank : candidates that are ranked again by their vectors. None: 40 of them are shown, and the choice is
        among codes alone.
    bits : by default 32 and doubled, up to 8 per dimension and 1024.
    limit : seconds of a fit, as in `compare`. If the best decoder takes longer, a linear one is measured.
    """
    if recall is not None and not 0 < recall <= 1:
        raise InvalidParameter("recall", recall, "a share above 0, at most 1")
    counts = _counts(bits, X.shape[1])
    learned, searched, asked = _split(X, n_queries, max_rows, seed)
    base, queries = np.asarray(X[searched]), np.asarray(X[asked])
    trained = base if np.array_equal(learned, searched) else np.asarray(X[learned])
    trained, base, queries = rows_in_metric(metric, trained, base, queries, n_jobs)
    K = min(TRUE, max(1, len(base) // 10))
    candidates = RERANKED if rerank is None else rerank
    task = prepare(base, queries, K=K, k=K, radius=2, n_jobs=n_jobs, rerank=candidates)
    settings = {
        "data": name, "rows": len(X), "dimensions": X.shape[1], "train_rows": len(trained),
        "sample_rows": len(base), "queries": len(queries), "metric": metric, "recall": recall,
        "rerank": candidates, "bits": counts, "recall_at": min(SHOWN, K), "seed": seed,
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
            best = _cheapest(rows, ENOUGH if recall is None else recall, rerank)
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


def _cheapest(rows: list[Row], recall: float, rerank: int | None) -> Row | None:
    """The first that finds enough; re-ranked ones count only if re-ranking was asked for."""
    enough = (row for row in rows if row["recall"] >= recall and (rerank or row["rerank"] is None))
    return next(enough, None)


def _split(X: Array, n_queries: int, max_rows: int, seed: int) -> tuple[Array, Array, Array]:
    """Positions of the rows to train on, to search, and to search for, each in rising order."""
    if len(X) < LEAST_ROWS:
        raise InvalidInput(f"choosing a number of bits needs at least {LEAST_ROWS} rows, got {len(X)}.")
    most = min(len(X), check_integer("rows", max_rows, LEAST_ROWS))
    held_out = min(check_integer("queries", n_queries, 1), most // 5)
    asked, others = np.split(np.random.RandomState(seed).permutation(len(X)), [held_out])
    n = most - held_out
    return np.sort(others[-min(n, TRAINED) :]), np.sort(others[:n]), np.sort(asked)


# ---- what is said of it


def on_what(settings: dict[str, Any]) -> str:
    """What the figures were measured on, and what that means."""
    rows, sampled = settings["rows"], settings["sample_rows"]
    queries = f"{settings['queries']:,} held-out queries"
    if sampled + settings["queries"] >= rows:
        return f"Measured by {queries} in the other {sampled:,} rows."
    return (
        f"Measured on a sample: {queries} in {sampled:,} of {rows:,} rows, with models of "
        f"{settings['train_rows']:,}. In all rows\nrecall is lower, as they lie closer; raise --rows to see."
    )


def verdict(choice: Choice) -> str:
    """What to use, or that nothing was enough."""
    made, best = choice.settings, choice.best
    if made["recall"] is None:
        return ""
    wanted = f"recall@{made['recall_at']} of {made['recall']:g}"
    if best is None:
        most = max(choice.rows, key=lambda row: float(row["recall"]))
        return (
            f"No codes that were tried have a {wanted}. The most that was found is {most['recall']:.3f}: "
            f"{described(most)}. Re-rank candidates (--rerank), more of them, or try more bits."
        )
    text = f"The cheapest with a {wanted}: {described(best)}, with {best['recall']:.3f}."
    again = _cheapest(choice.rows, made["recall"], made["rerank"])
    if again is not None and again["bits"] < best["bits"]:
        text += f" With vectors kept beside the codes: {described(again)}, with {again['recall']:.3f}."
    if made["metric"] == "inner_product":
        text += (
            " Collections compare distances: give them rows of lift_rows and queries of lift_queries, both "
        )
        text += "of auxbit.evaluate."
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
    queries = "queries.npy"
    if made["metric"] == "inner_product":
        data, queries = "lifted.npy", "lifted-queries.npy"
    create = ["collection", "create", "items.auxbit", "--data", data, "--bits", str(best["bits"])]
    create += ["--coding", best["coding"]]
    create += ["--decoder", best["decoder"]] if best["decoder"] else []
    create += ["--vectors", "float16"] if best["rerank"] else []
    create += ["--metric", made["metric"]] if made["metric"] != "euclidean" else []
    search = ["collection", "search", "items.auxbit", "--queries", queries, "--k", str(SHOWN)]
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
