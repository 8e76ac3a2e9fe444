"""The figures of docs/collections.md: `python benchmarks/collection.py NAME`, raw results in docs/results/.

open     opening a collection of ten million codes: time and memory before the first search
add      items added per second, durable at return; beside SQLite's own bulk insert of the same rows
search   searching through a collection against the index in memory
where    conditions with and without an index on the field, beside the same question to SQLite itself
rerank   precision and cost of re-ranking with vectors on disk
large    a hundred million codes: opening and searching them
defaults what a collection finds without options, beside hash codes and each decoder
text     text embeddings at equal bytes, with and without re-ranking: the table of the README
estimates  what `auxbit bits` estimates from a sample beside what is found in all rows
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from auxbit import ITQ, BinaryAutoencoder, Collection, HammingIndex
from auxbit.core.decoders import kind_of
from auxbit.evaluate import ground_truth
from auxbit.experiments.bits import _draw
from auxbit.experiments.compare import compare
from auxbit.experiments.measure import Task, first_of
from real_data import digits, sift_photos
from record import Results, data_folder, run, table

MILLIONS = 10
ABOUT = ("command", "machine")
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
own = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) / 1024
print(json.dumps({"codes": n, "import": imported - begun, "open": opened - imported, "mb": resident,
                  "first_search": first - before, "second_search": again - first, "own_mb": own}))
"""


def random_codes(n: int, seed: int, bits: int = 64) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, bits // 8), dtype=np.uint8)


def fill(folder: Path, millions: int) -> Collection:
    collection = Collection.create(folder, bits=64)
    for batch in range(millions * 1_000_000 // BATCH):
        collection.add(codes=random_codes(BATCH, batch))
    return collection


def opening(results: Results) -> str:
    """A new process opens ten million 64-bit codes and searches; the best of three."""
    return opened(results, MILLIONS)


def large(results: Results) -> str:
    """A new process opens a hundred million 64-bit codes (800 MB) and searches; the best of three."""
    return opened(results, 100)


def opened(results: Results, millions: int) -> str:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "c"
        fill(folder, millions).close()
        for _ in range(3):
            command = [sys.executable, "-c", OPENING, str(folder)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            results.add(**found)
    least = {name: min(row[name] for row in results.rows) for name in results.rows[0] if name not in ABOUT}
    head = ("codes", "import", "open", "resident", "first search", "second", "memory of its own")
    row = (
        f"{least['codes']:,}",
        f"{1000 * least['import']:.0f} ms",
        f"{1000 * least['open']:.1f} ms",
        f"{least['mb']:.0f} MB",
        f"{least['first_search']:.2f} s",
        f"{1000 * least['second_search']:.1f} ms",
        f"{least['own_mb']:.0f} MB",
    )
    return table(head, [row])


def adding(results: Results) -> str:
    """Items in batches of 100,000, each durable at return; 64-bit codes, CPU time and wall time."""
    numbers = np.random.default_rng(0).permutation(20 * BATCH)
    names = [
        [f"doc-{number}" for number in numbers[start : start + BATCH]]
        for start in range(0, 20 * BATCH, BATCH)
    ]
    rows = [{"row": row, "name": f"item {row}"} for row in range(BATCH)]
    vectors = np.random.default_rng(0).random((BATCH, 128), dtype=np.float32)
    cases: dict[str, Callable[[int], dict[str, Any]]] = {
        "codes, ids numbered by us": lambda seed: {},
        "codes, integers as ids in any order": lambda seed: {
            "ids": numbers[seed * BATCH : (seed + 1) * BATCH]
        },
        "codes, text ids, two fields of metadata": lambda seed: {"ids": names[seed], "metadata": rows},
        "codes, vectors of 128 numbers, float16": lambda seed: {"X": vectors},
    }
    for case, more in cases.items():
        options = {"n_features": 128, "vectors": "float16"} if "vectors" in case else {}
        batches = [random_codes(BATCH, seed) for seed in range(10)]
        with (
            tempfile.TemporaryDirectory() as temporary,
            Collection.create(Path(temporary) / "c", bits=64, **options) as collection,
        ):
            wall, cpu = time.perf_counter(), time.process_time()
            for seed, codes in enumerate(batches):
                collection.add(codes=codes, **more(seed))
            noted(results, case, wall, cpu)
    with tempfile.TemporaryDirectory() as temporary:
        plain = sqlite3.connect(Path(temporary) / "plain.sqlite", isolation_level=None)
        for setting in ("journal_mode = WAL", "synchronous = FULL", "cache_size = -65536"):
            plain.execute(f"PRAGMA {setting}")
        plain.execute("CREATE TABLE items (number INTEGER PRIMARY KEY, id UNIQUE, metadata TEXT)")
        wall, cpu = time.perf_counter(), time.process_time()
        for seed in range(10):
            plain.execute("BEGIN")
            of_batch = zip(range(seed * BATCH, (seed + 1) * BATCH), names[seed], map(json.dumps, rows))
            plain.executemany("INSERT INTO items VALUES (?, ?, ?)", of_batch)
            plain.execute("COMMIT")
        noted(results, "SQLite alone: the same text ids and metadata, no codes", wall, cpu)
        plain.close()
    made = [
        (row["case"], f"{row['a_second']:,.0f}", f"{row['codes'] / row['cpu_seconds']:,.0f}")
        for row in results.rows
    ]
    return table(("items", "per second", "per CPU-second"), made)


def noted(results: Results, case: str, wall: float, cpu: float) -> None:
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    results.add(case=case, codes=10 * BATCH, seconds=wall, cpu_seconds=cpu, a_second=10 * BATCH / wall)


def searching(results: Results) -> str:
    """The k = 10 nearest 64-bit codes: CPU time through a collection and of HammingIndex, with an array of
    names beside it if ids are text; one thread, the least of 300 for one query, of 20 for a hundred; both
    opened five times, as it matters where pages lie."""
    for kind, millions in (("numbers", 1), ("text", 1), ("numbers", 10)):
        n = millions * 1_000_000
        with tempfile.TemporaryDirectory() as temporary:
            folder, path = Path(temporary) / "c", Path(temporary) / "c.index"
            index = HammingIndex(64, n_jobs=1)
            with Collection.create(folder, bits=64) as collection:
                for start in range(0, n, BATCH):
                    codes = random_codes(BATCH, start)
                    named = [f"doc-{number}" for number in range(start, start + BATCH)]
                    collection.add(codes=codes, ids=named if kind == "text" else None)
                    index.add(codes)
            index.save(path)
            for n_queries in (1, 100):
                queries, repeats = random_codes(n_queries, 7), 60 if n_queries == 1 else 4
                names = np.array([f"doc-{i}" for i in range(n)], dtype=object) if kind == "text" else None
                times = np.array([side_by_side(folder, path, queries, repeats, names) for _ in range(5)])
                ours, theirs = times.min(axis=0).tolist()
                results.add(ids=kind, codes=n, queries=n_queries, collection=ours, index=theirs)
    rows = [
        (
            f"{row['codes']:,}",
            row["ids"],
            row["queries"],
            f"{1000 * row['index']:.3f} ms",
            f"{1000 * row['collection']:.3f} ms",
            f"{row['collection'] / row['index']:.2f}",
        )
        for row in results.rows
    ]
    return table(("codes", "ids", "queries at once", "index", "collection", "ratio"), rows)


def side_by_side(
    folder: Path, path: Path, queries: np.ndarray, repeats: int, names: np.ndarray | None
) -> list[float]:
    """CPU time of a search through a collection and through an index in memory, to the same answers."""
    index = HammingIndex.load(path, n_jobs=1)

    def by_index() -> tuple[np.ndarray, np.ndarray]:
        distances, found = index.search(queries, 10)
        return distances, found if names is None else names[found]

    with Collection.open(folder, n_jobs=1) as collection:
        sides = (lambda: collection.search(codes=queries, k=10), by_index)
        for ours, theirs in zip(*(tuple(side()) for side in sides), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        return least_seconds(sides, repeats)


def conditions(results: Results) -> str:
    """A million items with two fields: count(where), the same by SQLite, and search(codes, where=where) for
    the ten nearest to one code; CPU time, least of eleven, one thread."""
    n, query = 1_000_000, random_codes(1, 7)
    with (
        tempfile.TemporaryDirectory() as temporary,
        Collection.create(Path(temporary) / "c", bits=64, n_jobs=1) as collection,
    ):
        for start in range(0, n, BATCH):
            rows = [{"year": 1000 + row % 1000, "name": f"item {row}"} for row in range(start, start + BATCH)]
            collection.add(codes=random_codes(BATCH, start), metadata=rows)
        plain = sqlite3.connect(Path(temporary) / "c" / "collection.sqlite")
        asked = {"year = 1500": "= 1500", "year >= 1990": ">= 1990", "year >= 1900": ">= 1900"}
        for state in ("no index", "index on year"):
            if state != "no index":
                collection.index_field("year")
            for where, sql in asked.items():
                question = f"SELECT count(*) FROM items WHERE metadata ->> '$.year' {sql}"
                sides = least_seconds(
                    (
                        lambda where=where: collection.count(where),
                        lambda q=question: plain.execute(q).fetchall(),
                        lambda where=where: collection.search(codes=query, where=where),
                    ),
                    11,
                )
                found, names = collection.count(where), ("collection", "sqlite", "search")
                results.add(state=state, where=where, found=found, **dict(zip(names, sides, strict=True)))
        plain.close()
    made = [
        (row["state"], row["where"], f"{row['found']:,}", f"{1000 * row['collection']:.1f} ms",
         f"{1000 * row['sqlite']:.1f} ms" if row["state"] == "no index" else "",
         f"{1000 * row['search']:.1f} ms")
        for row in results.rows
    ]  # fmt: skip
    return table(("", "condition", "items found", "count", "SQLite alone", "search"), made)


def least_seconds(sides: tuple[Callable[[], Any], ...], repeats: int) -> list[float]:
    """The least CPU time of each side, in turn so that all of them meet the same neighbours."""
    times: list[list[float]] = [[] for _ in sides]
    for _ in range(repeats):
        for side, found in zip(sides, times, strict=True):
            start = time.process_time()
            side()
            found.append(time.process_time() - start)
    return [min(found) for found in times]


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
    return table(("vectors on disk", "candidates", "precision", "CPU per query"), rows)


def some_data() -> dict[str, tuple[np.ndarray, np.ndarray, bool]]:
    """Rows to search, queries, and whether they are compared by cosine."""
    base, queries = (np.load(data_folder() / "wordnet" / f"{name}.npy") for name in ("base", "query"))
    words = base[np.random.RandomState(0).permutation(len(base))[:20_000]].astype(np.float32)
    images = np.load(data_folder() / "mnist" / "train_images.npy").reshape(60_000, -1)[:20_500]
    photos, pixels = sift_photos(20_500), digits()
    return {
        "digits": (pixels[300:], pixels[:300], False),
        "SIFT of photographs": (photos[500:], photos[:500], False),
        "MNIST": (images[500:], images[:500], False),
        "text, 1,000 rows": (words[:1000], queries[:500].astype(np.float32), True),
        "text, 20,000 rows": (words, queries[:500].astype(np.float32), True),
    }


def defaults(results: Results) -> str:
    """Recall@10 of held-out queries: hash codes by Hamming distance, each decoder, and what Collection.create
    makes without options, without and with vectors; text by cosine."""
    ways: dict[str, dict[str, Any]] = {
        "hash codes": {"coding": "hash"},
        "linear": {"decoder": "linear"},
        "tables": {"decoder": "tables"},
        "default": {},
        "default, vectors kept": {"vectors": "float16"},
    }
    for (name, (base, queries, cosine)), bits in product(some_data().items(), (32, 64)):
        metric, model = "cosine" if cosine else "euclidean", None
        truth = ground_truth(base, queries, 10, metric=metric)
        for way, how in ways.items():
            begun = time.process_time()
            how = how | ({"metric": metric, "bits": bits} if "vectors" not in how else {"model": model})
            made = Collection.create(None, base, **how)
            seconds, model = time.process_time() - begun, made.model
            found = made.search(queries, 10).ids
            shares = [len(set(a) & set(b)) / 10 for a, b in zip(found.tolist(), truth.tolist(), strict=True)]
            kind = kind_of(model.decoder_)[0]
            results.add(
                data=name, rows=len(base), dims=base.shape[1], bits=bits, way=way, decoder=kind,
                recall=float(np.mean(shares)), seconds=seconds,
            )  # fmt: skip
    cells: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in results.rows:
        key = (row["data"], f"{row['rows']:,} × {row['dims']}", row["bits"])
        cells.setdefault(key, {})[row["way"]] = row
    *others, own, kept = ways
    lines = [
        (
            data, size, bits, *(f"{found[way]['recall']:.3f}" for way in others),
            f"**{found[own]['recall']:.3f}**", found[own]["decoder"], f"{found[kept]['recall']:.3f}",
            f"{found[own]['seconds']:.0f} s",
        )
        for (data, size, bits), found in cells.items()
    ]  # fmt: skip
    head = ("data", "rows", "bits", *others, own, "its decoder", kept, "CPU to make it")
    return table(head, lines)


def text(results: Results) -> str:
    """Recall@10 by cosine of codes alone → if the best 100 are ranked again by their vectors: 1,000 queries
    among 116,659 text embeddings of 256 numbers (WordNet's glosses); all are trained on 20,000 of them.
    Constants of our fit were compared on this set, too (docs/quality.md)."""
    base, queries = (np.load(data_folder() / "wordnet" / f"{name}.npy") for name in ("base", "query"))
    base, queries = base.astype(np.float32), queries.astype(np.float32)
    rows = base[np.random.RandomState(0).permutation(len(base))[:20_000]]
    compare(
        rows, base, queries, ("ba-optimal", "pq", "pca-rabitq", "sign"), (64, 128, 256), metric="cosine",
        rerank=100, seeds=(0,), limit=None, on_row=lambda row: results.add(**row),
    )  # fmt: skip
    return text_table(results)


def text_table(results: Results) -> str:
    """One line per method, one column per number of bytes: codes alone → re-ranked."""
    names = {"BA-optimal": "**auxbit**", "PQ": "PQ", "PCA-RaBitQ": "PCA and RaBitQ", "sign": "sign bits"}
    cells = {
        (row["method"], row["payload_bytes"]): f"{row['recall_at']:.3f} → {row['recall_reranked']:.3f}"
        for row in results.rows
        if not row["skipped"]
    }
    sizes = sorted({n_bytes for _, n_bytes in cells})
    lines = [
        (label, *(cells.get((method, n_bytes), "") for n_bytes in sizes)) for method, label in names.items()
    ]
    return table(("recall@10", *(f"{n_bytes} bytes per row" for n_bytes in sizes)), lines)


def fewer(results: Results) -> str:
    """Recall@10 by cosine if fewer dimensions are kept, one byte each, as people cut Matryoshka embeddings,
    and after re-ranking the best 100 by their vectors: the data of `text`; the model of these embeddings was
    not trained to be cut, so its principal axes (of 20,000 rows) are beside its first dimensions."""
    base, queries = (np.load(data_folder() / "wordnet" / f"{name}.npy") for name in ("base", "query"))
    base, queries = (
        X / np.linalg.norm(X, axis=1, keepdims=True) for X in (base.astype("f4"), queries.astype("f4"))
    )
    truth = ground_truth(base, queries, k=10)
    rows = base[np.random.RandomState(0).permutation(len(base))[:20_000]]
    axes = np.linalg.eigh(np.cov(rows.T))[1][:, ::-1].astype(np.float32)
    for what, turn in (("first dimensions", np.eye(256, dtype=np.float32)), ("principal axes", axes)):
        for kept in (8, 16, 32, 64, 128):
            cut, asked = base @ turn[:, :kept], queries @ turn[:, :kept]
            step = np.abs(cut).max() / 127
            cut = np.round(cut / step)
            cut /= np.maximum(
                np.linalg.norm(cut, axis=1, keepdims=True), 1e-9
            )  # by cosine, as such are searched
            alone, again = [], []
            for query, short, true in zip(queries, asked, truth):
                near = cut @ short
                best = np.argpartition(-near, 100)[:100]
                alone.append(np.isin(best[np.argsort(-near[best])[:10]], true).mean())
                again.append(np.isin(best[np.argsort(-(base[best] @ query))[:10]], true).mean())
            shares = {"recall_at": np.mean(alone), "recall_reranked": np.mean(again)}
            results.add(what=what, dimensions=kept, payload_bytes=kept, **shares)
    lines = [
        (row["payload_bytes"], row["what"], f"{row['recall_at']:.3f}", f"{row['recall_reranked']:.3f}")
        for row in sorted(results.rows, key=lambda row: (row["payload_bytes"], row["what"]))
    ]
    return table(("bytes per row", "what is kept", "alone", "100 re-ranked"), lines)


def estimates(results: Results) -> str:
    """How near `auxbit bits` comes to the recall in all rows if it encodes 40,000 of them: hash codes of ITQ,
    trained on 10,000 rows, by Hamming distance; recall@10 of codes alone and of 40 and 100 candidates that
    are ranked again, estimated → in all rows, for 500 queries."""
    data = (("wordnet", "cosine", (64, 128, 256)), ("sift_photos", "euclidean", (32, 64, 128)))
    for name, metric, lengths in data:
        X = np.load(data_folder() / name / "base.npy").astype(np.float32)
        drawn, every = (_draw(X, 500, rows, 0, metric, None) for rows in (40_000, len(X)))
        assert drawn.truth is not None
        true = drawn.searched[drawn.truth]
        for bits in lengths:
            model = ITQ(bits, random_state=0, normalize=metric == "cosine").fit(X[drawn.learned])
            row: dict[str, Any] = {"data": name, "rows": len(every.searched), "bits": bits}
            for way, sample in (("estimated", drawn), ("in all", every)):
                index = HammingIndex(bits)
                index.add(model.encode(X[sample.searched]))
                ids = index.search(model.encode(X[drawn.asked]), 100)[1]
                task = Task(X[:0], X[:0], true, weights=sample.weights)
                for k in (10, 40, 100):
                    first = first_of(task, ids, k)
                    found = np.where(first < 0, -1, sample.searched[first])
                    row[f"{way}, {k}"] = float((found[:, :, None] == true[:, None]).any(axis=1).mean())
            results.add(**row)
    head = ("data", "rows", "bits", "codes alone", "40 re-ranked", "100 re-ranked")
    lines = [
        (
            row["data"], f"{row['rows']:,}", row["bits"],
            *(f"{row[f'estimated, {k}']:.3f} → {row[f'in all, {k}']:.3f}" for k in (10, 40, 100)),
        )
        for row in results.rows
    ]  # fmt: skip
    return table(head, lines)


if __name__ == "__main__":
    jobs = {
        "text": text,
        "fewer": fewer,
        "estimates": estimates,
        "defaults": defaults,
        "open": opening,
        "add": adding,
        "search": searching,
        "where": conditions,
        "rerank": reranking,
        "large": large,
    }
    run("collection", jobs)
