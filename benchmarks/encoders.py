"""The table of docs/training.md on encoders: `python benchmarks/encoders.py [SEEDS]`, resumable.

Each line of docs/results/encoders.jsonl is one fit. A run that is interrupted continues where it was, and the
table has the means over the seeds that are there.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import product
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from auxbit import BinaryAutoencoder, HammingIndex
from auxbit.evaluate import ground_truth, hamming_ranking, precision_recall_at_k, retrieved_ranking
from record import RESULTS, Results, data_folder, fill_in, table

K = 50
N_TRAIN, N_QUERIES = 20_000, 1_000
DATA, BITS = ("digits", "siftsmall", "sift_photos", "wordnet"), (16, 32, 64)
WAYS = tuple(product(("linear", "rbf"), (None, "auto")))  # encoder, validation
COMMAND = "python benchmarks/encoders.py"


def load(name: str) -> tuple[np.ndarray, np.ndarray]:
    """At most 20,000 rows to train on and to search, and at most 1,000 queries."""
    if name == "digits":
        X = np.random.default_rng(0).permutation(load_digits().data.astype(np.float32))
        return X[300:], X[:300]
    folder = data_folder() / name
    if name == "siftsmall":
        X = np.load(folder / "learn.npy").astype(np.float32)
        return X[:N_TRAIN], X[N_TRAIN : N_TRAIN + N_QUERIES]
    base, queries = np.load(folder / "base.npy", mmap_mode="r"), np.load(folder / "query.npy")
    return np.array(base[:N_TRAIN], np.float32), queries[:N_QUERIES].astype(np.float32)


def measure(
    X: np.ndarray, Q: np.ndarray, truth: np.ndarray, bits: int, seed: int, encoder: str, validation: Any
) -> dict[str, Any]:
    """One fit: error, precision by both rankings, CPU seconds to train, microseconds to encode a row."""
    start = time.process_time()
    ba = BinaryAutoencoder(bits, encoder=encoder, validation=validation, random_state=seed).fit(X)
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
        "bandwidth": float(ba.encoder_.bandwidth[0]) if encoder == "rbf" else None,
    }  # fmt: skip


def tabulated(results: Results) -> str:
    """Errors of fits without validation; precision of those with it."""
    rows = []
    for data, bits in product(DATA, BITS):
        if not results.where(data=data, bits=bits):
            continue

        def mean(value: str, encoder: str, validation: Any, data: str = data, bits: int = bits) -> float:
            return results.mean(value, data=data, bits=bits, encoder=encoder, validation=validation)

        def gained(value: str, data: str = data, bits: int = bits) -> list[str]:
            linear, rbf = (mean(value, encoder, "auto", data, bits) for encoder in ("linear", "rbf"))
            return [f"{linear:.3f}", f"{rbf:.3f} ({100 * (rbf / linear - 1):+.1f} %)"]

        error = mean("error", "rbf", None) / mean("error", "linear", None)
        times = [
            f"{mean(value, 'linear', 'auto'):.1f} / {mean(value, 'rbf', 'auto'):.1f}"
            for value in ("train", "encode")
        ]
        rows.append(
            [data, bits, f"{100 * (error - 1):+.1f} %", *gained("hamming"), *gained("asymmetric"), *times]
        )
    head = ["data", "bits", "E_BA of rbf", "Hamming, linear", "rbf", "asymmetric, linear", "rbf",
            "train, s", "encode, µs"]  # fmt: skip
    return table(head, rows)


def main() -> None:
    """Measure what is not there yet, seed by seed, and write the table."""
    path = RESULTS / "encoders.jsonl"
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    results = Results("encoders", COMMAND)
    for row in done:
        results.add(**{name: value for name, value in row.items() if name not in ("command", "machine")})
    for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
        for data in DATA:
            X, Q = load(data)
            truth = ground_truth(X, Q, K)
            for bits, (encoder, validation) in product(BITS, WAYS):
                about = {
                    "data": data,
                    "bits": bits,
                    "seed": seed,
                    "encoder": encoder,
                    "validation": validation,
                }
                if not results.where(**about):
                    results.add(**about, **measure(X, Q, truth, bits, seed, encoder, validation))
                    print(results.rows[-1], flush=True)
    seeds = 1 + max(row["seed"] for row in results.rows)
    made = tabulated(results)
    print(made)
    fill_in(
        "encoders",
        f"{made}\n\n`{COMMAND}`: at most 20,000 rows to train on and to search, K = k = 50, {seeds} seed(s). "
        "E_BA of fits without validation, against that of linear; precision of fits with validation; CPU "
        "seconds to train, CPU microseconds of one thread to encode a row, linear / rbf.",
    )


if __name__ == "__main__":
    main()
