"""The figures of docs/collections.md: `python benchmarks/collection.py NAME`, raw results in docs/results/.

open     opening a collection of ten million codes: time and memory before the first search
add      codes added per second, durable at return, with and without vectors and metadata
search   searching through a collection against the index in memory
rerank   precision and cost of re-ranking with vectors on disk
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from auxbit import BinaryAutoencoder, Collection, HammingIndex
from auxbit.evaluate import ground_truth
from real_data import sift_photos
from record import Results, run, table

MILLIONS = 10
BATCH = 100_000
# run in a process of its own: what is in memory there, and when
OPENING = """
import json, sys, time
begun = time.perf_counter()
from auxbit import Collection
imported = time.perf_counter()
collection = Collection.open(sys.argv[1])
n = len(collection)
opened = time.perf_counter()
resident = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")) / 1024
import numpy as np
query = np.zeros((1, (collection.n_bits + 7) // 8), dtype=np.uint8)
before = time.perf_counter()
collection.search(codes=query, k=10)
first = time.perf_counter()
collection.search(codes=query, k=10)
again = time.perf_counter()
print(json.dumps({"codes": n, "import": imported - begun, "open": opened - imported, "mb": resident,
                  "first_search": first - before, "second_search": again - first}))
"""


def random_codes(n: int, seed: int, bits: int = 64) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, bits // 8), dtype=np.uint8)


def fill(folder: Path, millions: int) -> Collection:
    collection = Collection.create(folder, n_bits=64)
    for batch in range(millions * 1_000_000 // BATCH):
        collection.add(codes=random_codes(BATCH, batch))
    return collection


def opening(results: Results) -> str:
    """A new process opens ten million 64-bit codes and searches; as added in batches, and compacted."""
    with tempfile.TemporaryDirectory() as temporary, fill(Path(temporary) / "c", MILLIONS) as collection:
        for state in ("as added", "compacted"):
            if state == "compacted":
                collection.compact()
            segments = collection.stats().segments
            for _ in range(3):
                command = [sys.executable, "-c", OPENING, str(collection.path)]
                found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
                results.add(state=state, segments=segments, **found)
    columns = ("import", "open", "mb", "first_search", "second_search")
    rows = []
    for state in ("as added", "compacted"):
        least = {name: results.least(name, state=state) for name in columns}
        rows.append(
            (
                state,
                results.where(state=state)[0]["segments"],
                f"{1000 * least['import']:.0f} ms",
                f"{1000 * least['open']:.1f} ms",
                f"{least['mb']:.0f} MB",
                f"{least['first_search']:.2f} s",
                f"{1000 * least['second_search']:.1f} ms",
            )
        )
    return table(("codes", "segments", "import", "open", "resident", "first search", "second"), rows)


def adding(results: Results) -> str:
    """Two million 64-bit codes in batches of 100,000, each durable at return; merging is part of it."""
    cases: dict[str, Callable[[int], dict[str, Any]]] = {
        "codes": lambda seed: {},
        "codes, ids in any order": lambda seed: {"ids": shuffled[seed * BATCH : (seed + 1) * BATCH]},
        "codes, metadata of two fields": lambda seed: {"metadata": rows},
        "codes, vectors of 128 numbers, float16": lambda seed: {"X": vectors},
    }
    shuffled = np.random.default_rng(0).permutation(20 * BATCH)
    rows = {"row": np.arange(BATCH), "name": [f"item {row}" for row in range(BATCH)]}
    vectors = np.random.default_rng(0).random((BATCH, 128), dtype=np.float32)
    for case, more in cases.items():
        options = {"n_features": 128, "vectors": "float16"} if "vectors" in case else {}
        n_batches = 20 if case in ("codes", "codes, ids in any order") else 5
        batches = [random_codes(BATCH, seed) for seed in range(n_batches)]
        with (
            tempfile.TemporaryDirectory() as temporary,
            Collection.create(Path(temporary) / "c", n_bits=64, **options) as collection,
        ):
            wall, cpu = time.perf_counter(), time.process_time()
            for seed, codes in enumerate(batches):
                collection.add(codes=codes, **more(seed))
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        n = n_batches * BATCH
        results.add(case=case, codes=n, seconds=wall, cpu_seconds=cpu, a_second=n / wall)
    made = [
        (row["case"], f"{row['a_second']:,.0f}", f"{row['codes'] / row['cpu_seconds']:,.0f}")
        for row in results.rows
    ]
    return table(("rows of", "a second", "a CPU-second"), made)


def searching(results: Results) -> str:
    """The k = 10 nearest of a million codes: CPU time through a collection over that of HammingIndex."""
    with tempfile.TemporaryDirectory() as temporary, fill(Path(temporary) / "c", 1) as collection:
        index = HammingIndex(64)
        index.add(collection.codes())
        for state in ("as added", "compacted", "after one more addition"):
            if state == "compacted":
                collection.compact()
            if state == "after one more addition":
                collection.add(codes=random_codes(1000, 99))
                index.add(random_codes(1000, 99))
            for n_queries in (1, 100):
                queries = random_codes(n_queries, 7)
                repeats = 300 if n_queries == 1 else 20

                def theirs(queries: np.ndarray = queries) -> Any:
                    return index.search(queries, 10)

                def ours(queries: np.ndarray = queries) -> Any:
                    return collection.search(codes=queries, k=10)

                for found, wanted in zip(ours(), theirs(), strict=True):
                    np.testing.assert_array_equal(found, wanted)
                sides = median_seconds((ours, theirs), repeats)
                results.add(state=state, queries=n_queries, collection=sides[0], index=sides[1])
    rows = [
        (
            row["state"],
            row["queries"],
            f"{1000 * row['index']:.3f} ms",
            f"{1000 * row['collection']:.3f} ms",
            f"{row['collection'] / row['index']:.3f}",
        )
        for row in results.rows
    ]
    return table(("collection", "queries at once", "index", "collection", "ratio"), rows)


def median_seconds(sides: tuple[Callable[[], Any], ...], repeats: int) -> list[float]:
    """The median CPU time of each side, in turn so that all of them meet the same neighbours."""
    times: list[list[float]] = [[] for _ in sides]
    for _ in range(repeats):
        for side, found in zip(sides, times, strict=True):
            start = time.process_time()
            side()
            found.append(time.process_time() - start)
    return [float(np.median(found)) for found in times]


def reranking(results: Results) -> str:
    """SIFT descriptors of photographs, 32 bits: precision at K = k = 10 by candidates verified."""
    X = sift_photos(101_000)
    base, queries = X[:100_000], X[100_000:]
    truth = ground_truth(base, queries, 10)
    model = BinaryAutoencoder(32, random_state=0).fit(base[:20_000])
    with tempfile.TemporaryDirectory() as temporary:
        for vectors in ("float32", "float16"):
            with Collection.create(Path(temporary) / vectors, model, vectors=vectors) as collection:
                collection.add(base)
                for rerank in (False, 20, 100, 500):
                    collection.search(queries, 10, rerank=rerank)  # warm
                    start = time.process_time()
                    _, ids = collection.search(queries, 10, rerank=rerank)
                    cost = (time.process_time() - start) / len(queries)
                    hits = [np.isin(found, true).mean() for found, true in zip(ids, truth, strict=True)]
                    results.add(vectors=vectors, rerank=rerank, precision=float(np.mean(hits)), seconds=cost)
    rows = [
        (
            row["vectors"] if row["rerank"] else "codes only",
            row["rerank"] or "none",
            f"{row['precision']:.3f}",
            f"{1e6 * row['seconds']:.0f} µs",
        )
        for row in results.rows
        if row["rerank"] or row["vectors"] == "float32"
    ]
    return table(("vectors on disk", "candidates", "precision", "CPU a query"), rows)


if __name__ == "__main__":
    run("collection", {"open": opening, "add": adding, "search": searching, "rerank": reranking})
