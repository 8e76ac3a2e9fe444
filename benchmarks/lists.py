"""Approximate search by lists against other libraries: `python benchmarks/lists.py curves`.

curves   recall@10 against queries per CPU second: docs/results/lists-curves.jsonl, a table and a figure

Each cell (data, bytes per row, method) runs in a process of its own with one thread and a limit of time. Its
rows are recorded when it ends, and a cell that is recorded is not run again: delete its rows to repeat it.
ScaNN and USearch are found on PYTHONPATH; what cannot be imported is recorded as such.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from record import RESULTS, Results, data_folder, run, table

FIGURE = RESULTS.parent / "images" / "lists-curves.png"
CELL_SECONDS = 600
K = 10
TRAINING_ROWS = 100_000
REPEATS = 3
CANDIDATES = (0, 50, 100, 200, 400, 800)  # ranked again by their float32 vectors; 0: none
EFFORTS = (16, 24, 32, 48, 64, 96, 128, 192, 256)  # of a search of a graph
LEAST_GAIN = 0.001  # of recall, for which probes are doubled once more
RECALLS = (0.8, 0.9, 0.95)
DATA = {"wordnet": (116_659, 512), "sift_photos": (200_000, 512), "sift_photos_million": (1_000_000, 1024)}
TITLES = {"wordnet": "WordNet, 116,659 × 256, cosine", "sift_photos": "SIFT, 200,000 × 128",
          "sift_photos_million": "SIFT repeated with noise, 1,000,000 × 128"}  # fmt: skip
ONE_THREAD = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass
class Data:
    """Rows, queries and the K nearest rows of each query; all float32, compared by Euclidean distance."""

    name: str

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """Made once and kept among temporary files."""
        path = Path(tempfile.gettempdir()) / f"auxbit-lists-{self.name}.npz"
        if not path.exists():
            X, Q = _rows(self.name)
            near = faiss.knn(Q, X, K)[1]
            np.savez(path.with_suffix(".part.npz"), X=X, Q=Q, near=near)
            path.with_suffix(".part.npz").rename(path)
        with np.load(path) as file:
            return dict(file)

    @property
    def X(self) -> np.ndarray:
        return self.arrays["X"]

    @property
    def Q(self) -> np.ndarray:
        return self.arrays["Q"]

    @cached_property
    def sample(self) -> np.ndarray:
        return self.X[np.random.RandomState(0).permutation(len(self.X))[:TRAINING_ROWS]]

    @property
    def lists(self) -> int:
        return DATA[self.name][1]

    def recall(self, found: np.ndarray) -> float:
        """The share of the true nearest among the answers."""
        both = zip(found[:, :K], self.arrays["near"], strict=True)
        return float(np.mean([len(np.intersect1d(each, true)) / K for each, true in both]))


def _rows(name: str) -> tuple[np.ndarray, np.ndarray]:
    folder = data_folder() / name.removesuffix("_million")
    X, Q = (np.load(folder / f"{part}.npy").astype(np.float32) for part in ("base", "query"))
    if name == "wordnet":
        return tuple(each / np.linalg.norm(each, axis=1, keepdims=True) for each in (X, Q))
    return (_repeated(X, 5) if name.endswith("_million") else X), Q


def _repeated(X: np.ndarray, times: int) -> np.ndarray:
    """The rows, and again with noise as long as half the median distance of a row to the nearest other."""
    rng = np.random.default_rng(0)
    some = X[rng.permutation(len(X))[:500]]
    nearest = np.sqrt(faiss.knn(some, X, 2)[0][:, 1])
    scale = np.float32(np.median(nearest) / 2 / np.sqrt(X.shape[1]))
    noisy = [X + rng.standard_normal(X.shape, dtype=np.float32) * scale for _ in range(times - 1)]
    return np.concatenate([X, *noisy])


@dataclass
class Built:
    """An index ready to search: what it cost, and search(effort, candidates) → ids (q, K)."""

    train_seconds: float
    build_seconds: float
    bytes_per_row: float
    search: Callable[[int, int], np.ndarray]
    efforts: tuple[int, ...]
    candidates: tuple[int, ...]
    version: str


def _doubled(n_lists: int) -> tuple[int, ...]:
    """1, 2, 4 … half of the lists."""
    return tuple(2**i for i in range(n_lists.bit_length() - 1))


def ours(data: Data, n_bytes: int) -> Built:
    """A decoder of tables with lists; the hash function is of no matter."""
    from auxbit import HammingIndex
    from auxbit.hashers.registry import make_hasher
    from auxbit.index.asymmetric import rank_by_vectors

    X, Q = data.X, data.Q
    model = make_hasher("lsh", 8 * n_bytes, random_state=0, n_jobs=1).fit(X[:20_000])
    start = time.process_time()
    model.fit_decoder(data.sample, "tables", lists=data.lists)
    trained = time.process_time()
    index = HammingIndex(model=model, n_jobs=1)
    index.add(model.encode(X, coding="optimal"))
    index.search_asymmetric(Q[:1], K)  # sorts the codes by list
    built = time.process_time()

    def search(probes: int, candidates: int) -> np.ndarray:
        ids = index.search_asymmetric(Q, candidates or K, probes=probes)[1]
        if not candidates:
            return ids
        return rank_by_vectors(Q, ids, lambda at: X[at], K, metric="euclidean", n_jobs=1)[1]

    return Built(trained - start, built - trained, index.nbytes / len(X), search, _doubled(data.lists),
                 CANDIDATES, version("auxbit"))  # fmt: skip


def _faiss_lists(data: Data, factory: str) -> Built:
    X, Q = data.X, data.Q
    index = faiss.index_factory(X.shape[1], factory)
    start = time.process_time()
    index.train(data.sample)
    trained = time.process_time()
    index.add(X)
    built = time.process_time()
    lists = faiss.extract_index_ivf(index)
    refined = faiss.IndexRefineFlat(index, faiss.swig_ptr(X))

    def search(probes: int, candidates: int) -> np.ndarray:
        lists.nprobe, refined.k_factor = probes, candidates / K
        return (refined if candidates else index).search(Q, K)[1]

    return Built(trained - start, built - trained, lists.code_size + 8, search, _doubled(data.lists),
                 CANDIDATES, faiss.__version__)  # fmt: skip


def faiss_pq(data: Data, n_bytes: int) -> Built:
    """Products of 16 vectors, half a byte each, of the rows themselves."""
    return _faiss_lists(data, f"IVF{data.lists},PQ{2 * n_bytes}x4fs")


def faiss_residual_pq(data: Data, n_bytes: int) -> Built:
    """The same of what the list's centre leaves of a row."""
    return _faiss_lists(data, f"IVF{data.lists},PQ{2 * n_bytes}x4fsr")


def faiss_rabitq(data: Data, n_bytes: int) -> Built:
    """One bit per dimension after a random rotation, and eight bytes of factors per row."""
    return _faiss_lists(data, f"RR{data.X.shape[1]},IVF{data.lists},RaBitQfs")


def faiss_lsq(data: Data, n_bytes: int) -> Built:
    """Sums of vectors out of tables of 256, as ours are, found by local search."""
    return _faiss_lists(data, f"IVF{data.lists},LSQ{n_bytes}x8")


def faiss_hnsw(data: Data, n_bytes: int) -> Built:
    """A graph over the float32 vectors."""
    index = faiss.index_factory(data.X.shape[1], "HNSW32,Flat")
    start = time.process_time()
    index.add(data.X)
    built = time.process_time()

    def search(effort: int, candidates: int) -> np.ndarray:
        index.hnsw.efSearch = effort
        return index.search(data.Q, K)[1]

    size = len(faiss.serialize_index(index)) / len(data.X)
    return Built(0.0, built - start, size, search, EFFORTS, (0,), faiss.__version__)


def scann(data: Data, n_bytes: int) -> Built:
    """Half bytes of asymmetric hashing under a tree of as many leaves; inner products if rows have norm 1."""
    from scann import scann_ops_pybind

    X, Q = data.X, data.Q
    cosine = data.name == "wordnet"
    plan = scann_ops_pybind.builder(X, K, "dot_product" if cosine else "squared_l2").set_n_training_threads(1)
    plan = plan.tree(data.lists, 1, training_sample_size=TRAINING_ROWS, spherical=cosine)
    start = time.process_time()
    threshold = {"anisotropic_quantization_threshold": 0.2} if cosine else {}
    plain = plan.score_ah(X.shape[1] // (2 * n_bytes), **threshold).build()
    built = time.process_time()
    reordered = plan.reorder(max(CANDIDATES)).build()

    def search(probes: int, candidates: int) -> np.ndarray:
        if not candidates:
            return plain.search_batched(Q, K, leaves_to_search=probes)[0]
        return reordered.search_batched(Q, K, candidates, probes)[0]

    return Built(0.0, built - start, n_bytes + 4, search, _doubled(data.lists), CANDIDATES, version("scann"))


def usearch(data: Data, n_bytes: int) -> Built:
    """A graph over 8-bit numbers: SIFT's own, or those of unit vectors."""
    from usearch.index import Index

    from auxbit.index.asymmetric import rank_by_vectors

    X, Q = data.X, data.Q
    cosine = data.name == "wordnet"
    rows, asked = (X, Q) if cosine else (_eight_bits(X), _eight_bits(Q))
    index = Index(ndim=X.shape[1], metric="cos" if cosine else "l2sq", dtype="i8")
    start = time.process_time()
    index.add(np.arange(len(X)), rows, threads=1)
    built = time.process_time()

    def search(effort: int, candidates: int) -> np.ndarray:
        index.expansion_search = max(effort, candidates)
        ids = index.search(asked, candidates or K, threads=1).keys.astype(np.int64)
        if not candidates:
            return ids
        return rank_by_vectors(Q, ids, lambda at: X[at], K, metric="euclidean", n_jobs=1)[1]

    size = index.memory_usage / len(X)
    return Built(0.0, built - start, size, search, EFFORTS, (0, 20), version("usearch"))


def _eight_bits(X: np.ndarray) -> np.ndarray:
    return (np.clip(np.rint(X), 0, 255) - 128).astype(np.int8)


METHODS = {job.__name__: job for job in (ours, faiss_pq, faiss_residual_pq, faiss_hnsw, faiss_rabitq, scann,
                                         usearch, faiss_lsq)}  # fmt: skip
GRAPHS = ("faiss_hnsw", "usearch")  # without a limit of bytes
NAMES = {"ours": "auxbit", "faiss_pq": "FAISS PQ fast scan",
         "faiss_residual_pq": "FAISS PQ fast scan, residuals",
         "faiss_hnsw": "FAISS HNSW, float32", "faiss_rabitq": "FAISS RaBitQ fast scan", "scann": "ScaNN",
         "usearch": "USearch HNSW, 8 bits", "faiss_lsq": "FAISS LSQ"}  # fmt: skip


def cells() -> Iterator[tuple[str, int, str]]:
    """Data, bytes per row (0: no limit) and method: real rows first, and what takes longest last."""
    real, million = ("wordnet", "sift_photos"), ("sift_photos_million",)
    quick = [name for name in METHODS if name != "faiss_lsq"]
    plan = [(real, quick), (million, quick), (real, ["faiss_lsq"])]
    for names, methods in plan:
        for method in methods:
            for name in names:
                if method == "faiss_rabitq":
                    yield from [(name, 16, method)] * (name != "wordnet")
                else:
                    yield from (
                        (name, n_bytes, method) for n_bytes in ((0,) if method in GRAPHS else (8, 16))
                    )


def measure(name: str, n_bytes: int, method: str) -> None:
    """Print the rows of a cell as JSON lines, one for each setting and one of the whole index."""
    faiss.omp_set_num_threads(1)
    data = Data(name)
    built = METHODS[method](data, n_bytes)
    costs = ("train_seconds", "build_seconds", "bytes_per_row", "version")
    _print(whole=True, **{cost: getattr(built, cost) for cost in costs})
    for candidates in built.candidates:
        before = 0.0
        for effort in built.efforts:
            seconds, found = _least_seconds(built.search, effort, candidates)
            recall = data.recall(found)
            _print(effort=effort, candidates=candidates, recall=recall, us=1e6 * seconds / len(data.Q))
            if recall < before + LEAST_GAIN:
                break
            before = recall


def _least_seconds(search: Callable[[int, int], np.ndarray], *setting: int) -> tuple[float, np.ndarray]:
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        found = search(*setting)
        times.append(time.process_time() - start)
    return min(times), found


def _print(**row: Any) -> None:
    print(json.dumps(row, default=float), flush=True)


def run_cell(results: Results, name: str, n_bytes: int, method: str) -> None:
    """Run a cell in a process of its own and record its rows, or why there are none."""
    cell = {"data": name, "rows": DATA[name][0], "bytes": n_bytes, "method": method}
    command = [sys.executable, __file__, "cell", name, str(n_bytes), method]
    try:
        made = subprocess.run(command, capture_output=True, timeout=CELL_SECONDS, env=os.environ | ONE_THREAD)
        output, problem = (
            made.stdout,
            made.stderr.decode().strip().splitlines()[-1:] if made.returncode else [],
        )
        if made.returncode and not problem:
            problem = [f"exit code {made.returncode}"]
    except subprocess.TimeoutExpired as error:
        output, problem = error.stdout or b"", [f"over {CELL_SECONDS} s"]
    rows = [json.loads(line) for line in output.decode().splitlines() if line.startswith("{")]
    for row in rows:
        results.add(**cell, **row)
    if problem:
        results.add(**cell, problem=problem[0])
    print(name, n_bytes, method, f"{len(rows)} rows", *problem, flush=True)


class Kept(Results):
    """Results that keep the rows of earlier runs."""

    def __init__(self, name: str, command: str) -> None:
        path = RESULTS / f"{name}.jsonl"
        earlier = path.read_text() if path.exists() else ""
        super().__init__(name, command)
        self.path.write_text(earlier)
        self.rows = [json.loads(line) for line in earlier.splitlines()]


def curves(results: Results) -> str:
    """Queries per CPU second at a recall@10, one thread, 1000 queries in a batch: the most over numbers of
    probes and of candidates ranked again by float32 vectors, or over the effort of a search of a graph."""
    for name, n_bytes, method in cells():
        if not results.where(data=name, bytes=n_bytes, method=method):
            run_cell(results, name, n_bytes, method)
    draw(results)
    return table(
        ["data", "bytes", "method", *(f"recall ≥ {recall}" for recall in RECALLS),
         "recall ≥ 0.9, not ranked again", "train, CPU s", "add, CPU s", "index, bytes per row"], list(_lines(results)),
    )  # fmt: skip


def _lines(results: Results) -> Iterator[list[str]]:
    order = {(data, n_bytes): None for data in DATA for n_bytes in (8, 16, 0)}
    for data, n_bytes in order:
        for method in METHODS:
            where = {"data": data, "bytes": n_bytes, "method": method}
            if not (rows := results.where(**where)):
                continue
            searched = [row for row in rows if "recall" in row]
            plain = [row for row in searched if not row["candidates"]]
            rates = [_most(searched, recall) for recall in RECALLS] + [_most(plain, 0.9)]
            problem = next((row["problem"] for row in rows if "problem" in row), None)
            costs = [
                f"{whole[cost]:,.0f}"
                for whole in results.where(**where, whole=True)
                for cost in ("train_seconds", "build_seconds", "bytes_per_row")
            ] or [problem, "–", "–"]
            yield [TITLES[data], str(n_bytes or "–"), NAMES[method], *rates, *costs]


def _most(rows: list[dict[str, Any]], recall: float) -> str:
    """The most queries per CPU second of the settings that reach the recall."""
    enough = [1e6 / row["us"] for row in rows if row["recall"] >= recall]
    return f"{max(enough):,.0f}" if enough else "–"


def front(rows: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """Recall and queries per CPU second of the settings that no other one beats in both, by recall."""
    kept: list[tuple[float, float]] = []
    for row in sorted((row for row in rows if "recall" in row), key=lambda row: row["us"]):
        if not kept or row["recall"] > kept[-1][0]:
            kept.append((row["recall"], 1e6 / row["us"]))
    return kept


def draw(results: Results) -> None:
    """One panel for each data set and number of bytes; graphs, which have no limit of bytes, in both."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(DATA), figsize=(13, 8), sharex=True, sharey="col", squeeze=False)
    for column, data in enumerate(DATA):
        for row, n_bytes in enumerate((8, 16)):
            _panel(axes[row, column], results, data, n_bytes)
    for ax in axes[:, 0]:
        ax.set_ylabel("queries per CPU second")
    for ax in axes[-1]:
        ax.set_xlabel("recall@10")
    shown = {
        label: line for ax in axes.flat for line, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    names = [name for name in NAMES.values() if name in shown]
    figure.legend([shown[name] for name in names], names, loc="lower center", ncol=4, frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, dpi=110)
    plt.close(figure)


def _panel(ax: Any, results: Results, data: str, n_bytes: int) -> None:
    for i, method in enumerate(METHODS):
        rows = results.where(data=data, bytes=0 if method in GRAPHS else n_bytes, method=method)
        points = [(recall, rate) for recall, rate in front(rows) if recall >= 0.4]
        if points:
            look = (
                {"color": "black", "linewidth": 3, "zorder": 5}
                if method == "ours"
                else {"color": f"C{i - 1}"}
            )
            dashes = "--" if method in GRAPHS else "-"
            ax.plot(*zip(*points, strict=True), dashes, marker="o", markersize=3, label=NAMES[method], **look)
    ax.set(xlim=(0.5, 1.005), yscale="log", title=f"{TITLES[data]}\n{n_bytes} bytes per row")
    ax.title.set_fontsize(10)
    ax.grid(which="both", alpha=0.25)


if __name__ == "__main__":
    if sys.argv[1:2] == ["cell"]:
        measure(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        run("lists", {"curves": curves})
