"""The figures of docs/search.md on coding: `python benchmarks/coding.py NAME`, raw results in docs/results/.

precision   Hamming, asymmetric and optimal coding against FAISS's PQ and OPQ at equal bytes, three seeds
dial        what μ does to precision by Hamming distance and by the decoder
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import faiss
import numpy as np

from auxbit import BinaryAutoencoder, HammingIndex
from auxbit.evaluate import ground_truth, precision_recall_at_k, retrieved_ranking
from record import Results, data_folder, run, table

SEEDS = (0, 1, 2)
K = 50
N_TRAIN = 50_000
Costs = dict[str, float]


def sift_photos() -> tuple[np.ndarray, np.ndarray]:
    """100,000 rows to search, of which the first 50,000 are trained on, and 1,000 queries."""
    folder = data_folder() / "sift_photos"
    return np.load(folder / "base.npy")[:100_000].astype(np.float32), np.load(folder / "query.npy").astype(
        np.float32
    )


def mnist() -> tuple[np.ndarray, np.ndarray]:
    """60,000 rows to search, of which the first 50,000 are trained on, and 1,000 queries."""
    folder = data_folder() / "mnist"
    base, queries = (np.load(folder / f"{name}_images.npy") for name in ("train", "test"))
    return base.reshape(len(base), -1).astype(np.float32), queries[:1000].reshape(1000, -1).astype(np.float32)


@contextmanager
def timed(costs: Costs, what: str) -> Iterator[None]:
    """Add the CPU seconds of the block."""
    start = time.process_time()
    yield
    costs[what] = costs.get(what, 0.0) + time.process_time() - start


def search(index: Callable[[], tuple[Any, np.ndarray]], truth: np.ndarray, costs: Costs) -> float:
    """The precision of the answers, whose CPU time is added."""
    with timed(costs, "search"):
        _, ids = index()
    return precision_recall_at_k(retrieved_ranking(ids, truth), K).precision


def ours(
    bits: int, seed: int, X: np.ndarray, Q: np.ndarray, truth: np.ndarray
) -> Iterator[tuple[str, float, Costs]]:
    """Each way to use a binary autoencoder, with its precision and CPU seconds."""
    fit: Costs = {}
    with timed(fit, "train"):
        ba = BinaryAutoencoder(bits, validation=None, random_state=seed).fit(X[:N_TRAIN])
    ba.set_params(n_jobs=1)
    costs = dict(fit)
    with timed(costs, "encode"):
        codes = ba.encode(X)
    index = HammingIndex(bits, decoder=ba.decoder_, n_jobs=1)
    index.add(codes)
    asked = ba.encode(Q)
    index.search_asymmetric(Q[:2], K, query_codes=asked[:2])  # compile
    index.search_asymmetric(Q[:2], K)
    yield "Hamming", search(lambda: index.search(asked, K), truth, c := dict(costs)), c
    two = partial(index.search_asymmetric, Q, K, query_codes=asked)
    yield "two stages", search(two, truth, c := dict(costs)), c
    yield "asymmetric, h(x)", search(lambda: index.search_asymmetric(Q, K), truth, c := dict(costs)), c
    for kind in ("linear", "tables"):
        costs = dict(fit)
        ba.encode(X[:300], coding="optimal")
        with timed(costs, "train"):
            ba.set_params(n_jobs=None).fit_decoder(X[:N_TRAIN], kind)
        ba.set_params(n_jobs=1)
        ba.encode(X[:300], coding="optimal")  # compile
        with timed(costs, "encode"):
            codes = ba.encode(X, coding="optimal")
        index = HammingIndex(bits, decoder=ba.decoder_, n_jobs=1)
        index.add(codes)
        yield (
            f"optimal, {kind}",
            search(lambda index=index: index.search_asymmetric(Q, K), truth, costs),
            costs,
        )


def theirs(
    bits: int, seed: int, X: np.ndarray, Q: np.ndarray, truth: np.ndarray
) -> Iterator[tuple[str, float, Costs]]:
    """FAISS's PQ, and OPQ to all dimensions and to 4, 8, 16 and 32 per byte."""
    D, M = X.shape[1], bits // 8
    for name, d_out in (
        ("PQ", 0),
        ("OPQ", D),
        ("OPQ, 4 dimensions per byte", 4 * M),
        *((f"OPQ, {each} per byte", each * M) for each in (8, 16, 32)),
    ):
        if d_out > D or (name == "OPQ" and (D > 200 or seed)):  # it takes FAISS minutes
            continue
        costs: Costs = {}
        flat = faiss.IndexPQ(d_out or D, M, 8)
        flat.pq.cp.seed = 1234 + seed
        index: Any = flat
        if d_out:
            rotation, inner = faiss.OPQMatrix(D, M, d_out), faiss.ProductQuantizer(d_out, M, 8)
            inner.cp.seed = 1234 + seed
            rotation.pq = inner
            index = faiss.IndexPreTransform(rotation, flat)
        faiss.omp_set_num_threads(2)
        with timed(costs, "train"):
            index.train(X[:N_TRAIN])
        faiss.omp_set_num_threads(1)
        with timed(costs, "encode"):
            codes = index.sa_encode(X)
        index.add_sa_codes(codes, np.arange(len(X))) if not d_out else flat.add_sa_codes(codes)
        index.ntotal = flat.ntotal
        yield name, search(lambda index=index: index.search(Q, K), truth, costs), costs


def precision(results: Results) -> str:
    """Precision at K = k = 50, the same 50,000 rows to train on; CPU seconds to train, CPU microseconds to
    encode a row and to answer a query, of one thread."""
    faiss.omp_set_num_threads(1)
    sets = {"sift_photos": sift_photos(), "mnist": mnist()}
    truths = {data: ground_truth(X, Q, K) for data, (X, Q) in sets.items()}
    for seed in SEEDS:
        for data, (X, Q) in sets.items():
            for bits in (16, 32, 64) if not seed else (32, 64):
                for side in (ours, theirs):
                    for name, found, costs in side(bits, seed, X, Q, truths[data]):
                        micros = {
                            "encode": 1e6 * costs["encode"] / len(X),
                            "search": 1e6 * costs["search"] / len(Q),
                        }
                        results.add(data=data, bits=bits, seed=seed, way=name, precision=found,
                                    train=costs["train"], **micros)  # fmt: skip
                        print(data, bits, seed, name, round(found, 4), costs, flush=True)
    return precision_table(results)


def precision_table(results: Results) -> str:
    """Means over the seeds that there are."""
    rows = []
    for data in ("sift_photos", "mnist"):
        for bits in (16, 32, 64):
            for way in dict.fromkeys(row["way"] for row in results.where(data=data, bits=bits)):
                where = {"data": data, "bits": bits, "way": way}
                found = [row["precision"] for row in results.where(**where)]
                spread = f" ± {np.std(found):.4f}" if len(found) > 1 else ""
                rows.append([data, bits, way, f"{np.mean(found):.4f}{spread}", len(found),
                             f"{results.mean('train', **where):.1f}",
                             f"{results.mean('encode', **where):.1f}",
                             f"{results.mean('search', **where):.0f}"])  # fmt: skip
    return table(["data", "bits", "way", "precision", "seeds", "train, s", "encode, µs", "search, µs"], rows)


def dial(results: Results) -> str:
    """sift_photos, 32 bits, linear decoder refitted at each μ, seed 0: precision at K = k = 50 of hashed
    queries by Hamming distance and of real ones by the decoder, over the same stored codes."""
    X, Q = sift_photos()
    truth = ground_truth(X, Q, K)
    rows = []
    for mu in (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, "hash"):
        ba = BinaryAutoencoder(32, validation=None, random_state=0).fit(X[:N_TRAIN])
        if mu == "hash":
            codes = ba.encode(X)
        else:
            ba.fit_decoder(X[:N_TRAIN], "linear", mu=mu)
            codes = ba.encode(X, coding="optimal", mu=mu)
        index = HammingIndex(32, decoder=ba.decoder_)
        index.add(codes)
        asked, hashed = (ba.encode(rows, coding="hash") for rows in (Q, X))
        differing = float(np.bitwise_count(codes ^ hashed).sum(axis=1).mean())
        found = [
            search(answers, truth, {})
            for answers in (
                lambda index=index, asked=asked: index.search(asked, K),
                lambda index=index, asked=asked: index.search_asymmetric(Q, K, query_codes=asked),
                lambda index=index: index.search_asymmetric(Q, K),
            )
        ]
        results.add(mu=mu, differing=differing, hamming=found[0], two_stages=found[1], asymmetric=found[2])
        rows.append(
            [mu if mu != "hash" else "∞: h(x)", f"{differing:.2f}", *(f"{each:.4f}" for each in found)]
        )
        print(rows[-1], flush=True)
    head = ["μ", "bits that differ from h(x)", "Hamming", "two stages", "asymmetric"]
    return table(head, rows)


BENCHMARKS = {job.__name__: job for job in (precision, dial)}

if __name__ == "__main__":
    run("coding", BENCHMARKS)
