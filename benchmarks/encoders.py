"""The table of docs/training.md on encoders, decoders and objectives of MAC: `python benchmarks/encoders.py`.

Each line of docs/results/encoders.jsonl is one fit. A run that is interrupted continues where it was, and the
table has the means over the seeds that are there. `--seeds 0 1 --data mnist --bits 16 --ways rbf` is for a
part of it, `--table` to write the page only. AUXBIT_DATA is a folder with siftsmall, mnist, sift_photos,
wordnet and, for GIST, cifar10.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from auxbit import BinaryAutoencoder, HammingIndex
from auxbit.core.checks import Array, Ids
from auxbit.data.gist import gist
from auxbit.evaluate import ground_truth, hamming_ranking, precision_recall_at_k, retrieved_ranking
from record import RESULTS, Results, data_folder, fill_in, table

K = 50
N_TRAIN = 5_000
MORE_ROWS = 20_000  # of a part of the cells, with one seed
DATA = ("digits", "siftsmall", "mnist", "gist", "sift_photos", "wordnet")
BITS, SEEDS = (16, 32, 64, 128), (0, 1, 2)
WAYS: dict[str, dict[str, str]] = {
    "linear": {},
    "rbf": {"encoder": "rbf"},
    "tables": {"decoder": "tables"},
    "affinity": {"objective": "affinity"},
    "rbf, tables": {"encoder": "rbf", "decoder": "tables"},
    "rbf, affinity": {"encoder": "rbf", "objective": "affinity"},
}
WHOLE = ("linear", "rbf")  # also fitted without validation, for E_BA
COMMAND = "python benchmarks/encoders.py"


def load(name: str, n_train: int) -> tuple[Array, Array]:
    """At most so many rows to train on and to search, and a tenth as many queries, at most 1,000."""
    n_queries = min(n_train // 10, 1000)
    if name == "digits":
        X = np.random.default_rng(0).permutation(load_digits().data.astype(np.float32))
        return X[300:], X[:300]
    if name == "siftsmall":
        X = np.load(data_folder() / name / "learn.npy").astype(np.float32)
        return X[:n_train], X[n_train : n_train + n_queries]
    folder = data_folder() / ("cifar10" if name == "gist" else name)
    parts = ("train_images", "test_images") if name in ("mnist", "gist") else ("base", "query")
    base, queries = (np.load(folder / f"{part}.npy", mmap_mode="r") for part in parts)
    base, queries = np.array(base[:n_train]), np.array(queries[:n_queries])
    if name == "gist":
        return gist(base), gist(queries)
    return base.reshape(len(base), -1).astype(np.float32), queries.reshape(len(queries), -1).astype(
        np.float32
    )


def measure(
    X: Array, Q: Array, truth: Ids, bits: int, seed: int, way: str, validation: Any
) -> dict[str, Any]:
    """One fit: error, precision by both rankings, CPU seconds to train, microseconds to encode a row."""
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of bits beyond the dimensions
        ba = BinaryAutoencoder(bits, validation=validation, random_state=seed, **WAYS[way]).fit(X)
    train = time.process_time() - start
    ba.set_params(n_jobs=1)
    encode = []
    for _ in range(3):
        start = time.process_time()
        codes = ba.encode(X)
        encode.append(time.process_time() - start)
    index = HammingIndex(bits, decoder=ba.decoder_)
    index.add(codes)
    found = index.search_asymmetric(Q, K)[1]
    hamming = precision_recall_at_k(hamming_ranking(codes, ba.encode(Q), truth), K, ties="average")
    asymmetric = precision_recall_at_k(retrieved_ranking(found, truth), K)
    return {
        "error": -ba.score(X) * len(X), "hamming": hamming.precision, "asymmetric": asymmetric.precision,
        "train": train, "encode": 1e6 * min(encode) / len(X), "C": ba.C_, "iterations": ba.n_iter_,
        "bandwidth": float(ba.encoder_.bandwidth[0]) if "rbf" in way else None,
    }  # fmt: skip


def cells(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """The data set of each fit, and what tells the fit."""
    for seed, data, bits in product(options.seeds, options.data, options.bits):
        for way, validation in [*product(WAYS, ["auto"]), *product(WHOLE, [None])]:
            if way not in options.ways:
                continue
            about = {"data": data, "rows": options.rows, "bits": bits, "seed": seed}
            yield data, about | {"way": way, "validation": validation}


def gains(
    results: Results, value: str, validation: Any = "auto", *, rows: int = N_TRAIN, absolute: bool = True
) -> str:
    """A table of one value: of linear as it is, of the other ways in percent of it, with the same seeds."""
    where = {"validation": validation, "rows": rows}
    ways = [way for way in WAYS if results.where(way=way, **where)]
    lines = []
    for data, bits in product(DATA, BITS):
        held = {
            way: {row["seed"]: row[value] for row in results.where(data=data, bits=bits, way=way, **where)}
            for way in ways
        }
        base = held.pop("linear", {})
        if base:
            mean = f"{np.mean(list(base.values())):{'.3f' if absolute else '.4g'}}"
            cells = [_gain(found, base) for found in held.values()]
            lines.append([data, bits, f"{mean}{_seeds(base, rows)}", *cells])
    return table(["data", "bits", *ways], lines)


def _gain(found: dict[int, float], base: dict[int, float]) -> str:
    """In percent, and over how many seeds if not over as many as linear's."""
    if not found:
        return ""
    mean = np.mean([value / base[seed] - 1 for seed, value in found.items()])
    return f"{100 * mean:+.1f} %" + ("" if len(found) == len(base) else f" ({len(found)})")


def _seeds(found: dict[int, float], rows: int) -> str:
    """How many, if not all."""
    return "" if len(found) == len(SEEDS) or rows == MORE_ROWS else f" ({len(found)})"


def costs(results: Results) -> str:
    """CPU seconds to train and microseconds to encode a row, of each way."""
    rows = []
    for data, bits in product(DATA, BITS):
        where = {"data": data, "bits": bits, "validation": "auto", "rows": N_TRAIN}
        held = [results.where(way=way, **where) for way in WAYS]
        if held[0]:
            rows.append([data, bits, *(_cost(some) for some in held)])
    return table(["data", "bits", *WAYS], rows)


def _cost(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return ""
    train, encode = (np.mean([row[value] for row in rows]) for value in ("train", "encode"))
    return f"{train:.1f} / {encode:.1f}"


def write(results: Results) -> None:
    """Fill in the tables of the page."""
    seeds = len({row["seed"] for row in results.where(rows=N_TRAIN)})
    parts = [
        (
            "Hamming precision at K = k = 50, and what the other ways find beside linear",
            gains(results, "hamming"),
        ),
        ("Precision at 50 by the decoder, ‖x − f(z)‖", gains(results, "asymmetric")),
        ("E_BA on the rows trained on, of the same fits", gains(results, "error", absolute=False)),
        (
            "E_BA on the rows trained on, fits without validation",
            gains(results, "error", None, absolute=False),
        ),
        ("CPU seconds to train / CPU microseconds of one thread to encode a row", costs(results)),
        (
            f"Hamming precision of {MORE_ROWS:,} rows, one seed (`--rows {MORE_ROWS} --seeds 0`)",
            gains(results, "hamming", rows=MORE_ROWS),
        ),
    ]
    text = "\n\n".join(f"{title}:\n\n{made}" for title, made in parts)
    print(text)
    about = (
        f"`{COMMAND}`: but for the last table at most {N_TRAIN:,} rows to train on and to search, means of "
        f"{seeds} seeds, or of as many as are in brackets; an empty cell has not been run. Fits with "
        "validation, but for the second table of E_BA."
    )
    fill_in("encoders", f"{text}\n\n{about}")


def main() -> None:
    """Measure what is not there yet, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", default=DATA, choices=DATA)
    parser.add_argument("--rows", type=int, default=N_TRAIN, choices=(N_TRAIN, MORE_ROWS))
    parser.add_argument("--bits", nargs="+", type=int, default=BITS)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--ways", nargs="+", default=tuple(WAYS), choices=WAYS)
    parser.add_argument("--table", action="store_true", help="run nothing")
    options = parser.parse_args()
    path = RESULTS / "encoders.jsonl"
    done = path.read_text() if path.exists() else ""
    results = Results("encoders", COMMAND)
    path.write_text(done)  # as they are: each line names the machine that measured it
    results.rows = [json.loads(line) for line in done.splitlines()]
    rows: dict[str, tuple[Array, Array, Ids]] = {}
    for data, about in () if options.table else cells(options):
        if results.where(**about):
            continue
        if data not in rows:
            X, Q = load(data, options.rows)
            rows[data] = X, Q, ground_truth(X, Q, K)
        made = measure(*rows[data], about["bits"], about["seed"], about["way"], about["validation"])
        results.add(**about, **made)
        print(results.rows[-1], flush=True)
    write(results)


if __name__ == "__main__":
    main()
