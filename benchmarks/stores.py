"""The figures of docs/stores.md: `python benchmarks/stores.py NAME`, raw results in docs/results/.

push     64-bit codes pushed to each store, new and again, with and without metadata
search   exact and approximate searches in each store: time per query, recall
decoder  recall@10 by Hamming distance, by the decoder and by vectors, beside sign bits at the same bytes

AUXBIT_CODES is how many codes, by default a million. Servers are those of the wheels that the tests use.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from auxbit import ITQ, BinaryAutoencoder, HammingIndex
from auxbit.stores import Store, connect
from auxbit.stores.base import comparable
from auxbit.stores.push import of_arrays, push
from helpers.store_servers import Milvus, Postgres
from real_data import sift_photos
from record import Results, data_folder, run, table

N_CODES = int(os.environ.get("AUXBIT_CODES") or 1_000_000)
BITS, K = 64, 10
MEMORY = "?options=-c%20maintenance_work_mem%3D1GB"  # so that the graph of HNSW is built in memory
STORES = ("PostgreSQL, pgvector", "Milvus server", "Milvus Lite file")
FILES = {"SQLite, sqlite-vec": "c.sqlite", "DuckDB": "c.duckdb", "LanceDB": "c.lancedb"}
TRAINED, SEARCHED, QUERIES = 20_000, 100_000, 100
BY_DECODER, BY_VECTORS = 500, 100  # candidates
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
        url = server.url() + memory if server else str(Path(folder) / FILES.get(name, "c.db"))
        try:
            options = {"timeout": 600.0} if "Milvus" in name else {}
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
    head = ("store", "rows of", "pushed", "new, per second", "again, per second", "per CPU second here")
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


def words_and_photos() -> Iterator[tuple[str, np.ndarray, np.ndarray, dict[str, Any]]]:
    """Names, rows, queries and parameters of the model."""
    words = [np.load(data_folder() / "wordnet" / f"{name}.npy") for name in ("base", "query")]
    yield "WordNet, cosine", *(each.astype(np.float32) for each in words), {"normalize": True}
    queries = np.load(data_folder() / "sift_photos" / "query.npy").astype(np.float32)
    yield "SIFT of photographs", sift_photos(SEARCHED), queries, {}


def by_decoder(results: Results) -> str:
    """Recall@10. As many bits as dimensions, so that binary_quantize has the same bytes; BA trained on 20,000
    rows, seed 0; 100 queries. Shortlists by Hamming distance: 500 for the decoder, 100 for vectors. Time: a
    search by the decoder ranked in the server, over the same ranked here.
    """
    for data, base, queries, how in words_and_photos():
        queries = queries[:QUERIES]
        train = base[np.sort(np.random.default_rng(0).permutation(len(base))[:TRAINED])]
        model = BinaryAutoencoder(base.shape[1], random_state=0, **how).fit(train)
        X, Q = (comparable(each, model.scaling_) for each in (base, queries))
        codes, true = model.encode(base), true_neighbours(X, Q)
        for name in ("PostgreSQL, pgvector", "SQLite, sqlite-vec"):
            with opened(name) as store:
                source = of_arrays(codes, model.n_bits, vectors=X)
                push(store, replace(source, model=model))
                about = {"data": data, "rows": len(base), "store": name, "bytes": codes.shape[1]}
                measure_ranking(results, store, model, queries, true, codes="BA", **about)
                if name.startswith("PostgreSQL"):
                    sign_bits(results, store, X, Q, true, **about)
    rows = []
    for row in results.rows:
        ratio = f"{row['ratio']:.2f}" if row["ratio"] else "-"
        recalls = [f"{row[each]:.3f}" if row[each] is not None else "-" for each in RANKINGS]
        what = f"{row['data']}, {row['rows']:,} × {8 * row['bytes']}"
        rows.append((what, row["store"], row["codes"], row["bytes"], *recalls, ratio))
    head = ("rows", "store", "codes", "bytes", "Hamming", "decoder", "vectors", "time, server / here")
    return table(head, rows)


RANKINGS = ("hamming", "asymmetric", "vectors")


def measure_ranking(
    results: Results, there: Store, model: Any, queries: np.ndarray, true: np.ndarray, **about: Any
) -> None:
    """Recall by each ranking; in PostgreSQL also ranked here, which must give the same, and the times."""
    recalls = {
        "hamming": recall_of(there.search(queries, K, model=model, mode="hamming")[1], true),
        "asymmetric": 0.0,
        "vectors": recall_of(there.search(queries, K, model=model, candidates=BY_VECTORS)[1], true),
    }
    seconds, results_there, own = {}, {}, dict(there._known())
    for where in ("here", "server") if "decoder" in own else ("here",):
        there._about = own if where == "server" else {**own, "decoder": None}
        start = time.perf_counter()
        found = there.search(queries, K, model=model, mode="asymmetric", candidates=BY_DECODER)[1]
        seconds[where] = time.perf_counter() - start
        recalls["asymmetric"] = recall_of(found, true)
        results_there[where] = recalls["asymmetric"]
    ratio = seconds["server"] / seconds["here"] if "server" in seconds else None
    assert np.ptp(list(results_there.values())) < 0.001, results_there  # up to ties and rounding
    results.add(**recalls, ratio=ratio, seconds=seconds, recalls=results_there, **about)


def sign_bits(
    results: Results, there: Any, X: np.ndarray, Q: np.ndarray, true: np.ndarray, **about: Any
) -> None:
    """What binary_quantize of pgvector finds, of the rows as they are, and of rows without their mean."""
    run, D = there._connection.execute, X.shape[1]
    near = f"FROM signs ORDER BY code <~> binary_quantize(%(x)s::vector)::bit({D}), id LIMIT"
    for what, mean in (("sign bits", np.zeros(D)), ("sign bits, mean subtracted", X.mean(axis=0))):
        run("DROP TABLE IF EXISTS signs")
        made = f"SELECT id, binary_quantize(vector - '{as_text(mean)}')::bit({D}) AS code FROM auxbit_codes"
        run(f"CREATE TABLE signs AS {made}")
        found: dict[str, list[list[int]]] = {"hamming": [], "vectors": []}
        for x in Q:
            short = [row[0] for row in run(f"SELECT id {near} {BY_VECTORS}", {"x": as_text(x - mean)})]
            found["hamming"].append(short[:K])
            distances = ((X[short] - x) ** 2).sum(axis=1)
            found["vectors"].append([short[place] for place in np.argsort(distances, kind="stable")[:K]])
        recalls = {name: recall_of(np.array(ids), true) for name, ids in found.items()}
        results.add(codes=what, ratio=None, seconds={}, asymmetric=None, **recalls, **about)


def as_text(x: np.ndarray) -> str:
    return "[" + ",".join(map(str, x.tolist())) + "]"


def recall_of(found: np.ndarray, true: np.ndarray) -> float:
    return float(np.mean([len(set(a) & set(b)) / K for a, b in zip(found.tolist(), true.tolist())]))


def true_neighbours(X: np.ndarray, Q: np.ndarray) -> np.ndarray:
    lengths = np.einsum("nd,nd->n", X, X)
    return np.argsort(lengths[None] - 2 * Q @ X.T, axis=1, kind="stable")[:, :K]


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
    run("stores", {"push": pushing, "search": searching, "decoder": by_decoder})
