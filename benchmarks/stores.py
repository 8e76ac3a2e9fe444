"""The figures of docs/stores.md: `python benchmarks/stores.py NAME`, raw results in docs/results/.

push     64-bit codes pushed to each store, new and again, with and without metadata
search   exact and approximate searches in each store: time per query, recall

AUXBIT_CODES is how many codes, by default a million. Servers are those of the wheels that the tests use.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from auxbit import ITQ, HammingIndex
from auxbit.stores import Store, connect
from auxbit.stores.push import of_arrays, push
from helpers.store_servers import Milvus, Postgres
from real_data import sift_photos
from record import Results, run, table

N_CODES = int(os.environ.get("AUXBIT_CODES") or 1_000_000)
BITS, K = 64, 10
MEMORY = "?options=-c%20maintenance_work_mem%3D1GB"  # so that the graph of HNSW is built in memory
STORES = ("PostgreSQL, pgvector", "Milvus server", "Milvus Lite file")
INDEXES: dict[str, dict[str, Any]] = {
    "PostgreSQL, pgvector": {"kind": "hnsw", "option": "ef_search", "values": (40, 100, 400)},
    "Milvus server": {"kind": "ivf", "option": "n_probe", "values": (8, 32, 128)},
}


@contextmanager
def opened(name: str) -> Iterator[Store]:
    """A store of a kind, with a server and a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder
        server: Any = None
        if name.startswith("PostgreSQL"):
            server = Postgres()
        elif name == "Milvus server":
            server = Milvus()
        memory = MEMORY if name.startswith("PostgreSQL") else ""
        url = server.url() + memory if server else str(Path(folder) / "c.db")
        try:
            options = {} if "PostgreSQL" in name else {"timeout": 600.0}
            with connect(url, **options) as store:
                yield store
        finally:
            if server is not None:
                server.close()


def codes_of_photos(n: int, n_queries: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes of SIFT descriptors of photographs; beyond 100,000, repeated with a few bits flipped."""
    X = sift_photos(101_000)
    model = ITQ(BITS, random_state=0).fit(X[:20_000])
    codes, queries = model.encode(X[:100_000]), model.encode(X[100_000 : 100_000 + n_queries])
    rng = np.random.default_rng(0)
    many = codes[rng.integers(len(codes), size=n)]
    flips = np.packbits(rng.random((n, BITS)) < 0.03, axis=1)
    flips[: min(n, len(codes))] = 0
    many[: min(n, len(codes))] = codes[: min(n, len(codes))]
    return many ^ flips, queries


def pushing(results: Results) -> str:
    """Random codes with ids, in batches: into a new store, then again in the place of the same rows."""
    codes = np.random.default_rng(0).integers(0, 256, (N_CODES, BITS // 8), dtype=np.uint8)
    metadata = [{"row": row, "name": f"item {row}"} for row in range(N_CODES)]
    for name in STORES:
        for rows in ("codes", "codes, metadata of two fields"):
            source = of_arrays(codes, BITS, metadata=None if rows == "codes" else metadata, identity="push")
            with opened(name) as store:
                for what in ("new", "again"):
                    wall, cpu = time.perf_counter(), time.process_time()
                    push(store, source)
                    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
                    assert store.count() == N_CODES
                    results.add(
                        store=name, rows=rows, push=what, codes=N_CODES, seconds=wall, cpu_seconds=cpu
                    )
    made = []
    for name in STORES:
        for rows in ("codes", "codes, metadata of two fields"):
            found = {row["push"]: row for row in results.where(store=name, rows=rows)}
            if found:
                rates = [f"{N_CODES / found[what]['seconds']:,.0f}" for what in ("new", "again")]
                own = f"{N_CODES / found['new']['cpu_seconds']:,.0f}"
                made.append((name, rows, f"{N_CODES:,}", *rates, own))
    head = ("store", "rows of", "pushed", "new, a second", "again, a second", "a CPU-second here")
    return table(head, made)


def searching(results: Results) -> str:
    """Codes of SIFT descriptors, k = 10, 100 queries: exact ones equal HammingIndex, recall of the others."""
    codes, queries = codes_of_photos(N_CODES, 100)
    index = HammingIndex(BITS)
    index.add(codes)
    wanted = index.search(queries, K)[0]
    for name in STORES:
        with opened(name) as store:
            push(store, of_arrays(codes, BITS, identity="search"))
            measure(results, store, queries, wanted, store=name, search="exact", build=0.0)
            if name not in INDEXES:
                continue
            kind, option, values = (INDEXES[name][key] for key in ("kind", "option", "values"))
            start = time.perf_counter()
            store.create_index(kind)
            build = time.perf_counter() - start
            for value in values:
                setattr(store, option, value)
                what = f"{kind}, {option}={value}"
                measure(results, store, queries, wanted, store=name, search=what, build=build)
    rows = [
        (
            row["store"],
            row["search"],
            f"{row['build']:.0f} s" if row["build"] else "-",
            f"{1000 * row['seconds']:.2f} ms",
            f"{row['recall']:.3f}",
        )
        for row in results.rows
    ]
    return table(
        ("store", f"search of {N_CODES:,}", "index built in", "a query", "recall of the 10 nearest"), rows
    )


def measure(results: Results, searched: Store, queries: np.ndarray, wanted: np.ndarray, **about: Any) -> None:
    """Recall counts an answer as found if it is as near as the true one of its place."""
    searched.search(queries[:2], K)  # warm
    start = time.perf_counter()
    distances, _ = searched.search(queries, K)
    seconds = (time.perf_counter() - start) / len(queries)
    recall = float(np.mean([np.mean(found <= true[-1]) for found, true in zip(distances, wanted)]))
    if about["search"] == "exact":
        np.testing.assert_array_equal(distances, wanted)
    results.add(codes=N_CODES, seconds=seconds, recall=recall, **about)


if __name__ == "__main__":
    run("stores", {"push": pushing, "search": searching})
