"""Variants of MAC beside the default: `python benchmarks/variants.py [penalty tables continued stream]`.

Rows are at most 10,000 to train on and to search, with queries apart. AUXBIT_DATA is a folder with siftsmall,
mnist, sift_photos and wordnet.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_digits

from auxbit import BinaryAutoencoder, HammingIndex
from auxbit.core.checks import Array, Packed
from auxbit.evaluate import ground_truth
from record import Results, data_folder, run, table

DATA, SEEDS, K = ("digits", "siftsmall", "mnist", "sift_photos", "wordnet"), (0, 1, 2), 50
N_ROWS, N_QUERIES = 10_000, 500


def rows_of(name: str) -> tuple[Array, Array]:
    """Rows and queries, float32."""
    if name == "digits":
        X = np.random.default_rng(0).permutation(load_digits().data.astype(np.float32))
        return X[300:], X[:300]
    folder = data_folder() / name
    if name == "mnist":
        X = np.load(folder / "train_images.npy", mmap_mode="r")[: N_ROWS + N_QUERIES].astype(np.float32)
        X = X.reshape(len(X), -1)
    else:
        X = np.load(folder / "base.npy", mmap_mode="r")[: N_ROWS + N_QUERIES].astype(np.float32)
    if name == "wordnet":
        X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X[N_QUERIES:], X[:N_QUERIES]


def fitted(model: BinaryAutoencoder, X: Array, **how: Any) -> tuple[BinaryAutoencoder, float]:
    """The model after a fit, and the CPU seconds of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.process_time()
        model.fit(X, **how)
    return model, time.process_time() - start


def share(found: Array, truth: Array) -> float:
    """Precision at K = k."""
    return float(np.mean([len(set(a) & set(b)) for a, b in zip(found, truth, strict=True)])) / K


def by_hamming(codes: Packed, asked: Packed, truth: Array) -> float:
    index = HammingIndex(8 * codes.shape[1])
    index.add(codes)
    return share(index.search(asked, k=K)[1], truth)


def penalty(results: Results) -> str:
    """The quadratic penalty and the augmented Lagrangian, without validation."""
    for name in DATA:
        X, _ = rows_of(name)
        for seed in SEEDS:
            for bits in (8, 32):
                for factor in (1.1, 1.4, 2.0):
                    for kind in ("quadratic", "augmented"):
                        model = BinaryAutoencoder(
                            bits, penalty=kind, mu_factor=factor, validation=None, max_iter=300,
                            random_state=seed, n_jobs=1,
                        )  # fmt: skip
                        model, seconds = fitted(model, X)
                        results.add(
                            data=name, seed=seed, bits=bits, factor=factor, penalty=kind,
                            error=-model.score(X), iterations=model.n_iter_, seconds=seconds,
                        )  # fmt: skip
    lines = []
    for name in DATA:
        for bits in (8, 32):
            for factor in (1.1, 1.4, 2.0):
                where = {"data": name, "bits": bits, "factor": factor}
                of = {
                    value: [results.mean(value, penalty=kind, **where) for kind in ("quadratic", "augmented")]
                    for value in ("error", "iterations", "seconds")
                }
                least = results.mean("error", data=name, bits=bits, factor=1.1, penalty="quadratic")
                errors = [f"{100 * (each / least - 1):+.2f} %" for each in of["error"]]
                counts = [f"{each:.0f}" for each in of["iterations"]]
                lines.append([name, bits, factor, *errors, *counts, *(f"{s:.2f}" for s in of["seconds"])])
    head = ["data", "bits", "factor", "E_BA, quadratic", "augmented", "iterations, quadratic", "augmented"]
    return table([*head, "CPU s, quadratic", "augmented"], lines)


def tables(results: Results) -> str:
    """Tables inside MAC, against tables that replace the linear decoder afterwards."""
    for name in DATA:
        X, Q = rows_of(name)
        truth = ground_truth(X, Q, K)
        for seed in SEEDS:
            for bits in (16, 32, 64):
                for kind in ("linear", "tables"):
                    model, seconds = fitted(BinaryAutoencoder(bits, decoder=kind, random_state=seed), X)
                    asked = model.encode(Q)
                    found = {"hamming": by_hamming(model.encode(X), asked, truth), "seconds": seconds}
                    for mu in (None, 0.01, 0.0):
                        if mu is not None or kind == "linear":
                            model.fit_decoder(X, "tables", mu=1e6 if mu is None else mu)
                        codes = model.encode(X, coding="hash") if mu is None else model.encode(
                            X, coding="optimal", mu=mu
                        )  # fmt: skip
                        index = HammingIndex(bits, decoder=model.decoder_)
                        index.add(codes)
                        found[f"by decoder {mu}"] = share(index.search_asymmetric(Q, k=K)[1], truth)
                    results.add(data=name, seed=seed, bits=bits, decoder=kind, **found)
    columns = ("hamming", "by decoder None", "by decoder 0.01", "by decoder 0.0", "seconds")
    lines = []
    for name in DATA:
        for bits in (16, 32, 64):
            cells = [
                " / ".join(
                    f"{results.mean(value, data=name, bits=bits, decoder=kind):.3f}"
                    for kind in ("linear", "tables")
                )
                for value in columns
            ]
            lines.append([name, bits, *cells])
    head = ["data", "bits", "Hamming", "hash codes by tables", "codes at μ = 0.01", "codes at μ = 0"]
    made = table([*head, "CPU s to train"], lines)
    return f"{made}\n\nEach cell: trained with a linear decoder / with tables inside MAC. Precision at {K}."


def continued(results: Results) -> str:
    """A tenth of the rows is new: from nothing, and from the model of the others."""
    for name in DATA:
        X, _ = rows_of(name)
        for seed in SEEDS:
            for bits in (8, 32):
                for validation in (None, "auto"):
                    plain = BinaryAutoencoder(bits, validation=validation, random_state=seed, n_jobs=1)
                    before, _ = fitted(clone(plain), X[: len(X) * 9 // 10])
                    fresh, seconds = fitted(clone(plain), X)
                    model, again = fitted(clone(plain), X, init=before)
                    results.add(
                        data=name, seed=seed, bits=bits, validation=validation, seconds=again / seconds,
                        error=model.score(X) / fresh.score(X) - 1,
                        before=before.score(X) / fresh.score(X) - 1,
                        precision=_precision(model) - _precision(fresh),
                    )  # fmt: skip
    lines = []
    for name in DATA:
        for bits in (8, 32):
            cells = []
            for validation in (None, "auto"):
                where = {"data": name, "bits": bits, "validation": validation}
                errors = [100 * results.mean(value, **where) for value in ("before", "error")]
                cells += [f"{each:+.2f} %" for each in errors]
                cells.append(f"{results.mean('seconds', **where):.2f}")
            gained = results.mean("precision", data=name, bits=bits, validation="auto")
            lines.append([name, bits, *cells, f"{gained:+.3f}"])
    head = [
        "data",
        "bits",
        "E_BA of the old model",
        "continued",
        "time",
        "the same with validation",
        "continued",
    ]
    made = table([*head, "time", "validation precision"], lines)
    return f"{made}\n\nAll against a fit from nothing to all rows; means of {len(SEEDS)} seeds."


def _precision(model: BinaryAutoencoder) -> float:
    return max(each.precision or 0.0 for each in model.history_)


def stream(results: Results) -> str:
    """Ten batches by partial_fit, against the first alone and against all rows at once."""
    for name in DATA:
        X, Q = rows_of(name)
        truth = ground_truth(X, Q, K)
        for seed in SEEDS:
            plain = BinaryAutoencoder(32, random_state=seed, n_jobs=1)
            streamed, seconds = clone(plain), 0.0
            for batch in np.array_split(X, 10):
                start = time.process_time()
                streamed.partial_fit(batch)
                seconds += time.process_time() - start
            whole, at_once = fitted(clone(plain), X)
            first, _ = fitted(clone(plain), X[: len(X) // 10])
            for way, model in (("stream", streamed), ("first", first), ("whole", whole)):
                found = by_hamming(model.encode(X), model.encode(Q), truth)
                results.add(
                    data=name, seed=seed, way=way, error=-model.score(X), precision=found,
                    seconds=seconds / at_once,
                )  # fmt: skip
    lines = []
    for name in DATA:
        whole = results.mean("error", data=name, way="whole")
        errors = [
            100 * (results.mean("error", data=name, way=way) / whole - 1) for way in ("first", "stream")
        ]
        found = [results.mean("precision", data=name, way=way) for way in ("first", "stream", "whole")]
        seconds = results.mean("seconds", data=name, way="stream")
        cells = [f"{each:+.1f} %" for each in errors] + [f"{each:.3f}" for each in found]
        lines.append([name, *cells, f"{seconds:.1f}"])
    head = [
        "data",
        "E_BA of the first batch",
        "of the stream",
        "precision of the first batch",
        "of the stream",
    ]
    return table([*head, "of all rows at once", "time of the stream"], lines)


if __name__ == "__main__":
    run("variants", {"penalty": penalty, "tables": tables, "continued": continued, "stream": stream})
