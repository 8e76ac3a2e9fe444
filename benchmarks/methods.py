"""The figures of docs/methods.md: `python benchmarks/methods.py NAME`, raw results in docs/results/.

precision   every method on scikit-learn's digits, beside what public implementations gave
starts      BA from ITQ and from AGH: precision of the start itself, of the first record, of the model kept
speed       training and encoding 50,000 × 128 at 32 bits
million     training and encoding a million rows
spherical   the spherical Hamming distance beside the plain one
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from auxbit import BinaryAutoencoder
from auxbit.evaluate import ground_truth, hamming_ranking, precision_recall_at_k, retrieved_ranking
from auxbit.hashers.registry import METHODS, make_hasher
from auxbit.hashers.spherical import spherical_search
from record import Results, data_folder, measured, run, table

PUBLIC = {"itq": (0.464, 0.596, 0.681), "tpca": (0.364, 0.424, 0.391), "sh": (0.352, 0.454, 0.486),
          "agh": (0.399, 0.558, 0.577), "agh2": (0.342, 0.450, 0.587), "sph": (0.297, 0.412, 0.524),
          "klsh": (0.209, 0.315, 0.471), "lsh": (0.254, 0.378, 0.521)}  # fmt: skip
BITS = (8, 16, 32)


def precision_of(model: object, base: np.ndarray, queries: np.ndarray, truth: np.ndarray, k: int) -> float:
    ranking = hamming_ranking(model.encode(base), model.encode(queries), truth, model.n_bits)
    return precision_recall_at_k(ranking, k).precision


def precision(results: Results) -> str:
    """1297 rows to train on and search, 500 queries, K = k = 50, mean of three seeds (split and method)."""
    X = load_digits().data
    for seed in range(3):
        order = np.random.RandomState(seed).permutation(len(X))
        base, queries = X[order[:1297]], X[order[1297:]]
        truth = ground_truth(base, queries, 50)
        for name in (*PUBLIC, "ba", "ba-agh", "bfa"):
            for bits in BITS:
                model = make_hasher(name, bits, random_state=seed).fit(base)
                results.add(
                    method=name, bits=bits, seed=seed, precision=precision_of(model, base, queries, truth, 50)
                )
    rows = []
    for name in (*PUBLIC, "ba", "ba-agh", "bfa"):
        ours = [results.mean("precision", method=name, bits=bits) for bits in BITS]
        cells = [f"{value:.3f}" for value in ours]
        if name in PUBLIC:
            if any(value < public - 0.04 for value, public in zip(ours, PUBLIC[name])):
                raise SystemExit(f"{name} is more than 0.04 below the public figures")
            cells = [f"{cell} ({public:.3f})" for cell, public in zip(cells, PUBLIC[name])]
        rows.append([METHODS[name].label, *cells])
    return table(["method", *(f"{bits} bits" for bits in BITS)], rows)


def starts(results: Results) -> str:
    """Tie-averaged precision on the validation queries, which neither the start nor BA has seen."""
    digits = load_digits().data
    sift = np.load(data_folder() / "siftsmall" / "learn.npy")
    mnist = np.load(data_folder() / "mnist" / "train_images.npy")[:20000].reshape(20000, -1)
    rows = []
    for data, X in (("digits", digits), ("siftsmall", sift), ("mnist, 20,000 rows", mnist)):
        order = np.random.RandomState(0).permutation(len(X))
        n_queries = min(1000, len(X) // 10)
        queries, train = X[order[:n_queries]], X[order[n_queries:]]
        k = int(np.clip(len(train) // 100, 10, 100))
        truth = ground_truth(train, queries, k)
        for bits in (16, 32):
            for start in ("itq", "agh"):
                for seed in range(3):
                    own = make_hasher(start, bits, random_state=seed).fit(train)
                    ranking = hamming_ranking(own.encode(train), own.encode(queries), truth, bits)
                    model = BinaryAutoencoder(bits, init=own, validation=queries, random_state=seed).fit(
                        train
                    )
                    kept = max(record.precision for record in model.history_)
                    first = model.history_[0].precision
                    if kept < first:
                        raise SystemExit("the model kept is below its first record")
                    results.add(data=data, bits=bits, start=start, seed=seed, first=first, kept=kept,
                                own=precision_recall_at_k(ranking, k, ties="average").precision)  # fmt: skip
                where = {"data": data, "bits": bits, "start": start}
                means = [results.mean(column, **where) for column in ("own", "first", "kept")]
                rows.append([data, bits, METHODS[start].label, *(f"{mean:.3f}" for mean in means)])
    return table(["data", "bits", "start", "the start's own hash function", "first record", "kept"], rows)


def speed(results: Results) -> str:
    """sift_photos, 50,000 rows, 32 bits, all cores; the second of two fits, so nothing is compiled."""
    X = np.load(data_folder() / "sift_photos" / "base.npy")[:50000].astype(np.float32)
    rows = []
    for name, method in METHODS.items():
        if not method.estimator:
            continue
        make_hasher(name, 32, random_state=0).fit(X[:3000]).encode(X[:3000])
        with measured() as fit:
            model = make_hasher(name, 32, random_state=0).fit(X)
        with measured() as encode:
            model.encode(X)
        results.add(method=name, fit=fit, encode=encode)
        rows.append(
            [method.label, fit["seconds"], fit["cpu_seconds"], encode["seconds"], encode["cpu_seconds"]]
        )
    return table(["method", "fit, wall s", "fit, CPU s", "encode, wall s", "encode, CPU s"], rows)


def million(results: Results) -> str:
    """sift_photos five times with noise, 1,000,000 × 128, 32 bits."""
    photos = np.load(data_folder() / "sift_photos" / "base.npy")
    rng = np.random.RandomState(0)
    X = np.concatenate([photos + rng.randint(0, 4, photos.shape).astype(np.uint8) for _ in range(5)])
    rows = []
    for name in ("itq", "sh", "klsh", "agh", "agh2", "sph"):
        with measured() as fit:
            model = make_hasher(name, 32, random_state=0).fit(X)
        with measured() as encode:
            model.encode(X)
        results.add(method=name, fit=fit, encode=encode)
        rows.append([METHODS[name].label, fit["seconds"], fit["peak_mb"], encode["seconds"]])
    return table(["method", "fit, wall s", "peak above the data, MB", "encode, wall s"], rows)


def spherical(results: Results) -> str:
    """Spherical hashing searched by the Hamming and by the spherical distance, K = k = 50, three seeds."""
    digits = load_digits().data
    order = np.random.RandomState(0).permutation(len(digits))
    learn, base = (np.load(data_folder() / "siftsmall" / f"{name}.npy") for name in ("learn", "base"))
    tasks = {
        "digits": (digits[order[:1297]], digits[order[:1297]], digits[order[1297:]]),
        "siftsmall": (learn, base[500:], base[:500]),
    }
    rows = []
    for data, (train, rest, queries) in tasks.items():
        truth = ground_truth(rest, queries, 50)
        for bits in (8, 16, 32, 64, 128):
            for seed in range(3):
                model = make_hasher("sph", bits, random_state=seed).fit(train)
                codes, asked = model.encode(rest), model.encode(queries)
                found = retrieved_ranking(spherical_search(codes, asked, 50, n_bits=bits)[1], truth)
                pair = {
                    "hamming": precision_of(model, rest, queries, truth, 50),
                    "spherical": precision_recall_at_k(found, 50).precision,
                }
                results.add(data=data, bits=bits, seed=seed, **pair)
            means = [results.mean(column, data=data, bits=bits) for column in ("hamming", "spherical")]
            rows.append([data, bits, *(f"{mean:.3f}" for mean in means)])
    return table(["data", "bits", "Hamming distance", "spherical distance"], rows)


BENCHMARKS = {job.__name__: job for job in (precision, starts, speed, million, spherical)}

if __name__ == "__main__":
    run("methods", BENCHMARKS)
