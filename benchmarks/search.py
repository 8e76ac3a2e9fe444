"""The figures of docs/search.md on speed: `python benchmarks/search.py NAME`, raw results in docs/results/.

hamming      the k nearest of a million codes against FAISS's flat scan, in batches and one by one
radius       all within a radius against FAISS's hash tables
tables       multi-index hashing against our own scan, by number of codes
asymmetric   search by the decoder against FAISS's IndexPQ and 4-bit fast scan
duplicates   groups of near-duplicates among a million codes
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import faiss
import numpy as np

from auxbit import ITQ, BinaryAutoencoder, HammingIndex
from auxbit.core.decoders import TableDecoder
from auxbit.index.hamming import CODES_PER_QUERY
from real_data import sift_photos
from record import Results, run, table

MILLION = 1_000_000
BATCH = 500
REPEATS = 5
# tables and their bits that FAISS is tried with, by the bits of a code
THEIR_TABLES = {32: ((2, 16), (1, 16), (1, 20), (1, 24)), 64: ((4, 16), (3, 21), (2, 20), (1, 20))}


def cpu_seconds(*sides: Callable[[], object], repeats: int = REPEATS) -> list[float]:
    """The least CPU time of each side, measured in turn so that all of them meet the same neighbours."""
    least = [np.inf] * len(sides)
    for _ in range(repeats):
        for i, side in enumerate(sides):
            start = time.process_time()
            side()
            least[i] = min(least[i], time.process_time() - start)
    return least


def one_by_one(index: Any, queries: np.ndarray, k: int) -> None:
    for each in queries:
        index.search(each[None], k)


def random_codes(n: int, bits: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, bits // 8), dtype=np.uint8)


def noisy(codes: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Codes repeated to n, with one bit in fifty flipped."""
    rng = np.random.default_rng(seed)
    repeated = codes[np.arange(n) % len(codes)]
    for start in range(0, n, 100_000):
        some = repeated[start : start + 100_000]
        some ^= np.packbits(rng.random((len(some), 8 * codes.shape[1])) < 0.02, axis=1)
    return repeated


def learned_codes(bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes of SIFT descriptors repeated with bit noise to a million, and the codes of other descriptors."""
    X = sift_photos(51_000)
    most = 50 if bits <= 128 else 5  # with more bits than dimensions an iteration takes its time
    hasher = BinaryAutoencoder(bits, validation=None, max_iter=most, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the bits beyond the dimensions
        codes = hasher.fit(X[:20_000]).encode(X)
    return noisy(codes[:50_000], MILLION, 0), codes[50_000 : 50_000 + BATCH]


def code_sets(bits: int) -> Iterable[tuple[str, np.ndarray, np.ndarray]]:
    yield "random", random_codes(MILLION, bits, 0), random_codes(BATCH, bits, 1)
    yield "learned", *learned_codes(bits)


def hamming(results: Results) -> str:
    """HammingIndex(kind="linear") and FAISS IndexBinaryFlat in one run, one thread, a million codes:
    queries per CPU second, equal distances."""
    faiss.omp_set_num_threads(1)
    rows = []
    for bits in (32, 64, 128, 256):
        for name, codes, queries in code_sets(bits):
            ours, flat = HammingIndex(bits, kind="linear", n_jobs=1), faiss.IndexBinaryFlat(bits)
            ours.add(codes)
            flat.add(codes)
            for k in (10, 100):
                if not np.array_equal(ours.search(queries, k)[0], flat.search(queries, k)[0]):
                    raise SystemExit("the distances differ")
                batch = cpu_seconds(partial(ours.search, queries, k), partial(flat.search, queries, k))
                few = queries[:20]
                single = cpu_seconds(
                    partial(one_by_one, ours, few, k),
                    partial(one_by_one, flat, few, k),
                )
                rates = [BATCH / seconds for seconds in batch] + [len(few) / seconds for seconds in single]
                gigabytes = codes.nbytes * rates[2] / 1e9
                results.add(bits=bits, codes=name, k=k, ours=rates[0], faiss=rates[1], single=rates[2],
                            single_faiss=rates[3], gigabytes_a_second=gigabytes)  # fmt: skip
                rows.append([bits, name, k, f"{rates[0]:,.0f}", f"{rates[1]:,.0f}",
                             f"**{rates[0] / rates[1]:.1f}**", f"{rates[2]:,.0f}",
                             f"**{rates[2] / rates[3]:.1f}**", f"{gigabytes:.1f}"])  # fmt: skip
                print(rows[-1], flush=True)
    head = ["bits", "codes", "k", "auxbit, batches of 500", "FAISS", "times", "auxbit, one by one", "times",
            "GB scanned per second"]  # fmt: skip
    return table(head, rows)


def radius(results: Results) -> str:
    """search_radius (kind="auto") and FAISS's exact hash tables in one run, one thread, a million codes,
    500 queries: queries per CPU second, equal answers."""
    faiss.omp_set_num_threads(1)
    rows = []
    for bits, r in ((32, 2), (64, 4)):
        for name, codes, queries in code_sets(bits):
            ours = HammingIndex(bits, n_jobs=1)
            ours.add(codes)
            others = {
                f"MultiHash, {tables_} tables of {width} bits" if tables_ > 1 else f"Hash, {width} bits": (
                    tables_, width, r // tables_
                )
                for tables_, width in THEIR_TABLES[bits]
            }  # fmt: skip
            for _ in range(5):  # tables are made once they pay
                found = ours.search_radius(queries, r)
            timed: list[Callable[[], object]] = [partial(ours.search_radius, queries, r)]
            names = []
            for label, (n_tables, width, flips) in others.items():
                if n_tables == 1:
                    index = faiss.IndexBinaryHash(bits, width)
                else:
                    index = faiss.IndexBinaryMultiHash(bits, n_tables, width)
                index.nflip = flips
                index.add(codes)
                lims, _, _ = index.range_search(queries, r + 1)  # theirs is exclusive
                if not np.array_equal(lims, found[0]):
                    raise SystemExit(f"{label} finds other answers")
                names.append(label)
                timed.append(partial(index.range_search, queries, r + 1))
            seconds = cpu_seconds(*timed)
            best = int(np.argmin(seconds[1:]))
            rates = BATCH / seconds[0], BATCH / seconds[1 + best]
            results.add(bits=bits, r=r, codes=name, ours=rates[0], faiss=rates[1], faiss_kind=names[best],
                        answers=len(found[1]) / BATCH)  # fmt: skip
            rows.append([bits, r, name, f"{len(found[1]) / BATCH:,.1f}", f"{rates[0]:,.0f}",
                         f"{rates[1]:,.0f}", names[best], f"**{rates[0] / rates[1]:.1f}**"])  # fmt: skip
            print(rows[-1], flush=True)
    return table(["bits", "r", "codes", "results per query", "auxbit", "FAISS", "its fastest", "times"], rows)


def tables(results: Results) -> str:
    """kind="auto" against kind="linear" in one run, one thread, k-nearest: queries per CPU second once
    the tables are made."""
    rows = []
    for bits, n in ((32, MILLION), (32, 10 * MILLION), (64, MILLION)):
        learned, asked = learned_codes(bits)
        sets = {
            "random": (random_codes(n, bits, 0), random_codes(100, bits, 1)),
            "learned": (noisy(learned, n, 1) if n > MILLION else learned, asked[:100]),
        }
        for name, (codes, queries) in sets.items():
            auto, scan = HammingIndex(bits, n_jobs=1), HammingIndex(bits, kind="linear", n_jobs=1)
            for index in (auto, scan):
                index.add(codes)
            for _ in range(n // CODES_PER_QUERY // len(queries) + 1):  # tables are made once they pay
                auto.search(queries, 1)
            for k in (1, 10, 100):
                for ours, truth in zip(auto.search(queries, k), scan.search(queries, k), strict=True):
                    if not np.array_equal(ours, truth):
                        raise SystemExit("the answers differ")
                seconds = cpu_seconds(
                    partial(auto.search, queries, k), partial(scan.search, queries, k), repeats=3
                )
                rates = [len(queries) / each for each in seconds]
                results.add(bits=bits, n=n, codes=name, k=k, auto=rates[0], linear=rates[1])  # fmt: skip
                rows.append([bits, f"{n:,}", name, k, f"{rates[0]:,.0f}", f"{rates[1]:,.0f}",
                             f"{rates[0] / rates[1]:.1f}"])  # fmt: skip
                print(rows[-1], flush=True)
    return table(["bits", "codes", "of which kind", "k", "auto", "linear", "times"], rows)


def asymmetric(results: Results) -> str:
    """search_asymmetric over a million codes against FAISS with the same bytes per code, one thread, 200
    queries, one run: queries per CPU-second. Tables are a decoder of 256 vectors per byte."""
    faiss.omp_set_num_threads(1)
    X = sift_photos(60_000)
    queries = X[50_000:50_200]
    rows = []
    for bits in (32, 64, 128):
        hasher = ITQ(bits, random_state=0).fit(X[:20_000])
        codes = noisy(hasher.encode(X[:50_000]), MILLION, 0)
        linear = HammingIndex(bits, kind="linear", decoder=hasher.decoder_, n_jobs=1)
        linear.add(codes)
        free = HammingIndex(bits, decoder=_shaken(TableDecoder.of(hasher.decoder_)), n_jobs=1)
        free.add(codes)
        pq, fast = faiss.IndexPQ(128, bits // 8, 8), faiss.IndexPQFastScan(128, bits // 4, 4)
        for theirs in (pq, fast):
            theirs.train(X[:20_000])
        pq.add_sa_codes(codes)
        additive = faiss.IndexResidualQuantizerFastScan(128, bits // 4, 4)
        additive.rq.max_beam_size = 1  # its speed, not its codes, is measured
        additive.train(X[:5_000])
        faiss.omp_set_num_threads(2)
        for theirs in (fast, additive):
            theirs.add(np.tile(X[:50_000], (20, 1)))
        faiss.omp_set_num_threads(1)
        asked = hasher.encode(queries)
        for k in (10, 50):
            seconds = cpu_seconds(
                partial(linear.search_asymmetric, queries, k),
                partial(free.search_asymmetric, queries, k),
                partial(linear.search_asymmetric, queries, k, query_codes=asked),
                partial(linear.search, asked, k),
                partial(pq.search, queries, k),
                partial(fast.search, queries, k),
                partial(additive.search, queries, k),
                repeats=3,
            )
            rates = [len(queries) / each for each in seconds]
            results.add(bits=bits, k=k, linear=rates[0], tables=rates[1], two_stage=rates[2],
                        hamming=rates[3], pq=rates[4], fast_scan=rates[5], additive=rates[6])  # fmt: skip
            rows.append([bits, k, *(f"{rate:,.0f}" for rate in rates), f"**{rates[0] / rates[4]:.1f}**",
                         f"**{rates[1] / rates[4]:.1f}**", f"{rates[0] / max(rates[5:]):.1f}",
                         f"{rates[2] / rates[3]:.2f}"])  # fmt: skip
            print(rows[-1], flush=True)
    head = ["bits", "k", "linear decoder", "tables", "two stages", "Hamming", "IndexPQ", "PQ fast scan",
            "additive fast scan", "linear / IndexPQ", "tables / IndexPQ", "linear / the faster fast scan",
            "two stages / Hamming"]  # fmt: skip
    return table(head, rows)


def _shaken(decoder: TableDecoder) -> TableDecoder:
    """Tables that no longer are sums over bits."""
    noise = np.random.default_rng(0).normal(size=decoder.tables.shape) * decoder.tables.std() * 0.3
    return TableDecoder((decoder.tables + noise).astype(np.float32), decoder.b, decoder.n_bits)


def duplicates(results: Results) -> str:
    """find_duplicates among a million codes of SIFT descriptors with bit noise, two threads, seconds."""
    rows = []
    for bits in (32, 64):
        codes, _ = learned_codes(bits)
        index = HammingIndex(bits)
        index.add(codes)
        for r in (0, 1, 2):
            start = time.perf_counter()
            groups = index.find_duplicates(r)
            seconds = time.perf_counter() - start
            results.add(bits=bits, r=r, seconds=seconds, groups=len(groups))
            rows.append([bits, r, f"{len(groups):,}", f"{seconds:.1f}"])
    return table(["bits", "r", "groups", "seconds"], rows)


BENCHMARKS = {job.__name__: job for job in (hamming, radius, tables, asymmetric, duplicates)}

if __name__ == "__main__":
    run("search", BENCHMARKS)
