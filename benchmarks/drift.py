"""How the limits of drift were chosen: `python benchmarks/drift.py NAME`, raw results in docs/results/.

alike    rows held out of what was trained on: how near each measure comes to its limit; none must be due
order    consecutive rows of the same set, which often have one source: how often they are due
drifts   rows that are really different: which measures tell, and what retraining would gain
shares   rows of which only a share is different: from what share on it is told
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from auxbit import ITQ, LSH, BinaryAutoencoder
from auxbit.hashers.drift import Drift, compare
from real_data import digits
from record import Results, data_folder, run, table

BITS = (16, 32, 64)
SEEDS = (6, 7, 8)  # the limits were chosen on 0 to 5
SHORT = {"reconstruction error": "error", "mean bit shift": "mean", "largest bit shift": "largest",
         "effective bits": "L_eff"}  # fmt: skip
Split = tuple[np.ndarray, np.ndarray]


@cache
def rows_of(name: str) -> np.ndarray:
    """All rows of a set, as bytes where they are."""
    if name == "digits":
        return digits()
    if name == "mnist":
        return np.load(data_folder() / "mnist" / "train_images.npy").reshape(60_000, -1)
    return np.load(data_folder() / name / ("learn.npy" if name == "siftsmall" else "base.npy"))


def split(name: str, n_train: int, n_rest: int, seed: int) -> Split:
    """Rows to train on and others of the same set."""
    X = rows_of(name)
    order = np.random.RandomState(seed).permutation(len(X))[: n_train + n_rest]
    return X[order[:n_train]].astype(np.float32), X[order[n_train:]].astype(np.float32)


def drift_of(model: Any, added: np.ndarray) -> Drift:
    """What a collection would find after adding these rows, coded as the model's record is."""
    record = model.training_
    codes = model.encode(added, coding=record.coding, mu=record.mu)
    return compare(record, codes, model.n_bits, model._error_of(added, codes))


def measured(drift: Drift) -> dict[str, float]:
    """Changes and limits by short names, for the raw results."""
    changes = {SHORT[m.name]: m.change for m in drift.measures}
    return changes | {f"{SHORT[m.name]} limit": m.limit for m in drift.measures}


# ---- rows of the same kind

METHODS: dict[str, Callable[[int, int], Any]] = {
    "LSH": lambda bits, seed: LSH(bits, random_state=seed, n_jobs=1),
    "ITQ": lambda bits, seed: ITQ(bits, random_state=seed, n_jobs=1),
    "BA": lambda bits, seed: BinaryAutoencoder(bits, random_state=seed, n_jobs=1, max_iter=10),
    "tables": lambda bits, seed: ITQ(bits, random_state=seed, n_jobs=1),
}
SAME = [  # set, trained on, methods, numbers of rows added
    ("digits", 1200, ("LSH", "ITQ", "BA"), (200, 597)),
    ("siftsmall", 1500, ("LSH", "ITQ", "BA", "tables"), (200, 1000, 20_000)),
    ("siftsmall", 4900, ("LSH", "ITQ", "BA"), (200, 1000, 20_000)),
    ("sift_photos", 50_000, ("LSH", "ITQ"), (200, 1000, 20_000)),
    ("mnist", 10_000, ("LSH", "ITQ"), (200, 1000, 20_000)),
]


def pieces(n_rest: int, n: int, most: int = 8) -> Iterator[slice]:
    """At most that many pieces of n rows that do not overlap."""
    for start in range(0, min(n_rest - n + 1, most * n), n):
        yield slice(start, start + n)


def alike(results: Results) -> str:
    """Rows held out of what was trained on: the largest change of each measure over 3 seeds, 200 to 20,000
    rows and up to 8 draws each, as a share of its limit (an error's of what it may grow by), and how often
    retraining was due.
    """
    lines = []
    for name, n_train, methods, sizes in SAME:
        for method in methods:
            for bits in BITS:
                found = list(held_out(results, name, n_train, method, bits, sizes))
                near = [max(nearness(d, short) for d in found) for short in SHORT.values()]
                shares = ("–" if np.isnan(share) else f"{share:.2f}" for share in near)
                due = f"{sum(d.due for d in found)} of {len(found)}"
                lines.append((name, f"{n_train:,}", method, bits, *shares, due))
    return table(("rows", "trained on", "method", "bits", *SHORT.values(), "due"), lines)


def held_out(
    results: Results, name: str, n_train: int, method: str, bits: int, sizes: tuple[int, ...]
) -> Iterator[Drift]:
    for seed in SEEDS:
        train, rest = split(name, n_train, max(sizes), seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of few iterations
            model = METHODS[method](bits, seed).fit(train)
        if method == "tables":
            model.fit_decoder(train, "tables", n_iter=3)
            rest = rest[:2000]  # optimal codes take their time
        for n in sizes:
            for piece in pieces(len(rest), n):
                drift = drift_of(model, rest[piece])
                results.add(rows=name, trained=n_train, method=method, bits=bits, seed=seed, added=n,
                            due=drift.due, **measured(drift))  # fmt: skip
                yield drift


def nearness(drift: Drift, short: str) -> float:
    """The change as a share of the limit; of errors, both less 1."""
    (m,) = (m for m in drift.measures if SHORT[m.name] == short)
    if m.limit is None:
        return float("nan")
    return (m.change - 1) / (m.limit - 1) if short == "error" else m.change / m.limit


def order(results: Results) -> str:
    """Consecutive rows of a set of which others, drawn at random, were trained on (ITQ): how often due.
    Rows that stand together in siftsmall are alike, those of the photographs are mixed.
    """
    sizes = (200, 1000, 4000)
    for name in ("siftsmall", "sift_photos", "mnist"):
        for bits in BITS:
            for seed in SEEDS:
                X = rows_of(name)
                chosen = np.random.RandomState(seed).permutation(len(X))[:10_000]
                model = METHODS["ITQ"](bits, seed).fit(X[chosen].astype(np.float32))
                rest = np.delete(X, chosen, axis=0)[:14_900].astype(np.float32)
                for n in sizes:
                    for piece in pieces(len(rest), n, 20):
                        drift = drift_of(model, rest[piece])
                        results.add(
                            rows=name, bits=bits, seed=seed, added=n, due=drift.due, **measured(drift)
                        )
    lines = []
    for name in ("siftsmall", "sift_photos", "mnist"):
        found = [[row["due"] for row in results.where(rows=name, added=n)] for n in sizes]
        lines.append((name, *(f"{sum(due)} of {len(due)}" for due in found)))
    return table(("rows", *(f"{n:,} added" for n in sizes)), lines)


# ---- rows that are different


def noisy(X: np.ndarray, deviation: float) -> np.ndarray:
    return (X + np.random.RandomState(9).normal(0, deviation, X.shape)).astype(np.float32)


def of_digits(name: str, wanted: range, n_train: int, n_rest: int, seed: int, narrow: bool) -> Split:
    """Trained on some digits and given the others, or (narrow) trained on all and given these."""
    if name == "digits":
        from sklearn.datasets import load_digits

        labels = load_digits().target
    else:
        labels = np.load(data_folder() / "mnist" / "train_labels.npy")
    X, order = rows_of(name), np.random.RandomState(seed).permutation(len(labels))
    chosen = np.isin(labels[order], list(wanted))
    if narrow:
        train, rest = order[:n_train], order[n_train:][chosen[n_train:]]
    else:
        train, rest = order[chosen][:n_train], order[~chosen]
    return X[train].astype(np.float32), X[rest[:n_rest]].astype(np.float32)


def later(seed: int) -> Split:
    """siftsmall in its order: the first rows and the last."""
    X, start = rows_of("siftsmall").astype(np.float32), 2000 * (seed % 3)
    return X[start : start + 10_000], X[-4000 - start : len(X) - start]


def changed(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[int], Split]:
    def make(seed: int) -> Split:
        train, rest = split(name, 10_000, 4000, seed)
        return train, change(rest)

    return make


DRIFTS: dict[str, Callable[[int], Split]] = {
    "photographs → siftsmall": lambda seed: (
        split("sift_photos", 10_000, 0, seed)[0],
        split("siftsmall", 4000, 0, seed)[0],
    ),
    "siftsmall → photographs": lambda seed: (
        split("siftsmall", 10_000, 0, seed)[0],
        split("sift_photos", 4000, 0, seed)[0],
    ),
    "siftsmall → later rows of it": later,
    "digits 0–4 → 5–9": lambda seed: of_digits("digits", range(5), 800, 800, seed, False),
    "digits → 0–4 only": lambda seed: of_digits("digits", range(5), 900, 420, seed, True),
    "MNIST 0–4 → 5–9": lambda seed: of_digits("mnist", range(5), 10_000, 4000, seed, False),
    "MNIST → 0–4 only": lambda seed: of_digits("mnist", range(5), 10_000, 4000, seed, True),
    "MNIST → 7 only": lambda seed: of_digits("mnist", range(7, 8), 10_000, 4000, seed, True),
    "MNIST, brightness × 0.9": changed("mnist", lambda X: 0.9 * X),
    "MNIST, brightness × 0.6": changed("mnist", lambda X: np.float32(0.6) * X),
    "MNIST, noise of 10": changed("mnist", lambda X: noisy(X, 10)),
    "MNIST, noise of 40": changed("mnist", lambda X: noisy(X, 40)),
    "MNIST, mean + 5": changed("mnist", lambda X: X + 5),
    "MNIST, mean + 20": changed("mnist", lambda X: X + 20),
    "photographs, noise of 5": changed("sift_photos", lambda X: noisy(X, 5)),
    "photographs, noise of 15": changed("sift_photos", lambda X: noisy(X, 15)),
    "photographs, × 1.1": changed("sift_photos", lambda X: np.float32(1.1) * X),
    "photographs, × 1.4": changed("sift_photos", lambda X: np.float32(1.4) * X),
    "photographs, mean + 2": changed("sift_photos", lambda X: X + 2),
    "photographs, mean + 10": changed("sift_photos", lambda X: X + 10),
}


def drifts(results: Results) -> str:
    """Rows that differ from those trained on (ITQ, the mean over 3 seeds): changes, in bold where they are
    over the limit for every seed; due, of 3 seeds with 200 rows and with all (2,000; fewer of digits); and
    the error on new rows of the added kind after retraining on as many rows of both, as a share of that
    without.
    """
    lines = []
    for name, make in DRIFTS.items():
        for bits in BITS:
            for seed in SEEDS:
                train, rest = make(seed)
                half = len(rest) // 2
                added, fresh = rest[:half], rest[half:]
                model = METHODS["ITQ"](bits, seed).fit(train)
                all_rows, few = drift_of(model, added), drift_of(model, added[:200])
                both = np.concatenate([train[: len(added)], added])
                gain = METHODS["ITQ"](bits, seed).fit(both).score(fresh) / model.score(fresh)
                results.add(drift=name, bits=bits, seed=seed, due=all_rows.due, due_200=few.due,
                            retrained=gain, **measured(all_rows))  # fmt: skip
            where = {"drift": name, "bits": bits}
            told = [shown(results, short, where) for short in SHORT.values()]
            due = [sum(row[key] for row in results.where(**where)) for key in ("due_200", "due")]
            lines.append((name, bits, *told, *due, f"{results.mean('retrained', **where):.2f}"))
    return table(("drift", "bits", *SHORT.values(), "due, 200", "due, all", "retrained"), lines)


def shown(results: Results, short: str, where: dict[str, Any]) -> str:
    rows = results.where(**where)
    text = f"{results.mean(short, **where):.3f}"
    return f"**{text}**" if all(row[short] > row[f"{short} limit"] for row in rows) else text


def shares(results: Results) -> str:
    """2,000 rows of which a share is of another kind (ITQ): due, of 3 seeds."""
    kinds = (
        "photographs → siftsmall",
        "MNIST 0–4 → 5–9",
        "MNIST, brightness × 0.6",
        "photographs, noise of 15",
    )
    percents = (5, 10, 20, 30, 50, 75, 100)
    for kind in kinds:
        for bits in BITS:
            for seed in SEEDS:
                train, rest = DRIFTS[kind](seed)
                model = METHODS["ITQ"](bits, seed).fit(train[:-2000])
                for percent in percents:
                    n = 20 * percent
                    drift = drift_of(model, np.concatenate([rest[:n], train[-2000 : len(train) - n]]))
                    results.add(kind=kind, bits=bits, seed=seed, percent=percent, due=drift.due,
                                **measured(drift))  # fmt: skip
    lines = [
        (
            kind,
            bits,
            *(sum(row["due"] for row in results.where(kind=kind, bits=bits, percent=p)) for p in percents),
        )
        for kind in kinds
        for bits in BITS
    ]
    return table(("drift", "bits", *(f"{percent} %" for percent in percents)), lines)


if __name__ == "__main__":
    run("drift", {"alike": alike, "order": order, "drifts": drifts, "shares": shares})
