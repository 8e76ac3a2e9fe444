"""Variants of MAC beside the default, all of them or those named: `python benchmarks/variants.py stream`.

Rows are at most 10,000 to train on and to search, with queries apart. AUXBIT_DATA is a folder with siftsmall,
mnist, sift_photos and wordnet.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_digits

from auxbit import BinaryAutoencoder, HammingIndex
from auxbit.core.checks import Array, Packed
from auxbit.core.features import choose_anchors, median_distance_to
from auxbit.core.maps import LinearEncoder
from auxbit.core.parallel import Workers
from auxbit.evaluate import ground_truth
from auxbit.mac.h_step import ridge_weights, split_weights
from auxbit.mac.loop import DecoderSums, decoder_sums, f_step
from auxbit.mac.z_step import ZOptions, ZSolver
from record import Results, data_folder, run, table

DATA, SEEDS, K = ("digits", "siftsmall", "mnist", "sift_photos", "wordnet"), (0, 1, 2), 50
MORE_SEEDS = range(12)  # of digits, 1,497 rows, whose fits differ more from seed to seed
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
        X, Q = rows_of(name)
        truth = ground_truth(X, Q, K)
        for seed in MORE_SEEDS if name == "digits" else SEEDS:
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
                        precision=[
                            by_hamming(each.encode(X), each.encode(Q), truth) for each in (fresh, model)
                        ],
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
                found = np.mean([row["precision"] for row in results.where(**where)], axis=0)
                cells.append(" / ".join(f"{each:.3f}" for each in found))
            lines.append([name, bits, *cells])
    head = ["E_BA of the old model", "continued", "time", "precision"]
    made = table(["data", "bits", *head, "the same with validation", *head[1:]], lines)
    about = f"precision: at {K} by Hamming distance, from nothing / continued"
    seeds = f"means of {len(SEEDS)} seeds, of digits {len(MORE_SEEDS)}"
    return f"{made}\n\nAll against a fit from nothing to all rows; {about}; {seeds}."


def stream(results: Results) -> str:
    """Ten batches by partial_fit, and by sums of rows and codes, against all rows at once."""
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
            models = {"stream": streamed, "first": first, "whole": whole}
            models |= {f"sums {decay}": by_sums(X, first, decay) for decay in DECAYS}
            for way, model in models.items():
                found = by_hamming(model.encode(X), model.encode(Q), truth)
                results.add(
                    data=name, seed=seed, way=way, error=-model.score(X), precision=found,
                    seconds=seconds / at_once,
                )  # fmt: skip
    ways = ("first", *(f"sums {decay}" for decay in DECAYS), "stream")
    lines = []
    for name in DATA:
        whole = results.mean("error", data=name, way="whole")
        errors = [100 * (results.mean("error", data=name, way=way) / whole - 1) for way in ways]
        found = [results.mean("precision", data=name, way=way) for way in (*ways, "whole")]
        cells = [f"{p:.3f} ({e:+.1f} %)" for p, e in zip(found, errors)] + [f"{found[-1]:.3f}"]
        lines.append([name, *cells, f"{results.mean('seconds', data=name, way='stream'):.1f}"])
    head = ["first batch", *(f"sums, decay {decay}" for decay in DECAYS), "partial_fit", "all rows at once"]
    made = table(["data", *head, "time of partial_fit"], lines)
    return f"{made}\n\nPrecision at {K} by Hamming distance (E_BA beside that of all rows at once); 32 bits."


DECAYS = (1.0, 0.7, 0.3)  # of the sums of batches before


def by_sums(X: Array, first: BinaryAutoencoder, decay: float) -> BinaryAutoencoder:
    """A stream by decayed sums: of old batches nothing is kept but XᵀX, ZᵀZ and ZᵀX. From the first batch on.

    Codes of a batch are chosen as MAC chooses them, while μ grows; h, by least squares, and f follow from the
    sums of all batches so far.
    """
    model, C = copy.deepcopy(first), 100.0
    options = ZOptions.resolve(32, "auto", "best", 1, None)
    h, kept = model.encoder_, None
    with Workers(1) as workers:
        for batch in np.array_split(X, 10):
            rows = model.scaling_.apply(batch)
            Z, longer = h(rows), np.hstack([rows, np.ones((len(rows), 1), np.float32)]).astype(np.float64)
            gram = longer.T @ longer
            for mu in [record.mu for record in first.history_]:
                sums, whole = decoder_sums(rows, Z, workers), gram
                if kept is not None:
                    sums, whole = _faded(kept[0], decay) + sums, decay * kept[1] + gram
                h = LinearEncoder(*split_weights(ridge_weights(whole, sums, C)))
                f = f_step(sums)
                ZSolver(f, mu, options).solve(rows, h(rows), Z, ())
            kept = sums, whole
    model.encoder_, model.decoder_ = h, f.in_units_of(model.scaling_)
    return model


def _faded(sums: DecoderSums, decay: float) -> DecoderSums:
    return DecoderSums(*(decay * getattr(sums, each.name) for each in fields(sums)))


def features(results: Results) -> str:
    """What Gaussian features to 1,000 centres cost: to train, and to encode beside bare products."""
    for name in ("siftsmall", "mnist", "wordnet"):
        X, _ = rows_of(name)
        D = X.shape[1]
        for bits in (16, 64):
            plain = BinaryAutoencoder(bits, random_state=0, n_jobs=1)
            model = clone(plain).set_params(encoder="rbf", n_centres=1000)
            fitted(clone(model), X[:2000])  # kernels are compiled
            (_, linear), (model, rbf) = fitted(plain, X), fitted(model, X)
            rows, own = model.scaling_.apply(X), model.encoder_
            centres, W = np.ascontiguousarray(own.centres.T), own.weights

            works = partial(_bare, rows, centres, W), partial(model.encode, X)
            with Workers(1):
                bare, encode = (min(_seconds(work) for _ in range(7)) / len(X) for work in works)
            results.add(data=name, bits=bits, D=D, linear=linear, rbf=rbf, bare=bare, encode=encode)
    lines = []
    for row in results.rows:
        ratio, longer = row["rbf"] / row["linear"], (1000 + row["D"]) / row["D"]
        cells = [f"{row['linear']:.1f}", f"{row['rbf']:.1f}", f"{longer:.1f}", f"{ratio / longer:.2f}"]
        cells += [f"{1e6 * row[each]:.1f}" for each in ("bare", "encode")]
        lines.append([row["data"], row["bits"], *cells, f"{row['encode'] / row['bare']:.2f}"])
    head = ["CPU s to train, linear", "rbf", "how much longer rows are", "rbf / linear / that"]
    return table(["data", "bits", *head, "µs per row of bare products", "encode", "encode / bare"], lines)


def _bare(X: Array, centres: Array, W: Array) -> None:
    """The products of an encoder, a thousand rows at a time, and nothing else. centres : (D, m)."""
    D = len(centres)
    for some in np.array_split(X, len(X) // 1000):
        some @ W[:D] + (some @ centres) @ W[D:]


def _seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


SHARES, CENTRES = (0.2, 0.35, 0.5, 0.7, 1.0), (100, 400, 1000)


def bandwidths(results: Results) -> str:
    """Gaussian features by bandwidth, as a share of the median distance to centres, and by their number."""
    for name in DATA:
        X, Q = rows_of(name)
        X = X[:5000]
        truth = ground_truth(X, Q, K)
        asked = [("linear", None), *product(SHARES, [400]), *product([None], CENTRES)]
        for seed, (share, n) in product((0, 1), asked):
            model = BinaryAutoencoder(32, random_state=seed, n_jobs=1)
            if share != "linear":
                bandwidth = None if share is None else share * _distance(X, n)
                model.set_params(encoder="rbf", n_centres=n, bandwidth=bandwidth)
            model, _ = fitted(model, X)
            found = {
                "judged": max(each.precision for each in model.history_),
                "precision": by_hamming(model.encode(X), model.encode(Q), truth),
            }
            results.add(data=name, seed=seed, share=share, centres=n, C=model.C_, **found)
    lines = []
    for name, value in product(DATA, ("judged", "precision")):
        base = results.mean(value, data=name, share="linear")
        asked = [*product(SHARES, [400]), *product([None], CENTRES)]
        means = [results.mean(value, data=name, share=share, centres=n) for share, n in asked]
        what = "validation" if value == "judged" else "queries"
        lines.append([name, what, f"{base:.3f}", *(f"{100 * (each / base - 1):+.1f} %" for each in means)])
    head = [*(f"{share}" for share in SHARES), *(f"chosen, {n} centres" for n in CENTRES)]
    made = table(["data", "precision of", "linear", *head], lines)
    return f'{made}\n\n400 centres if not said otherwise, 5,000 rows, 32 bits, C="auto", means of two seeds.'


def _distance(X: Array, n_centres: int) -> float:
    """The median distance of rows and centres, in the units of X."""
    with Workers(1) as workers:
        centres = choose_anchors(X, n_centres, workers, np.random.RandomState(0))
    return median_distance_to(X[:2000], centres)


if __name__ == "__main__":
    run(
        "variants",
        {
            "penalty": penalty, "tables": tables, "continued": continued, "stream": stream,
            "features": features, "bandwidths": bandwidths,
        },
    )  # fmt: skip
