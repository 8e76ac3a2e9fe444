"""Approximate search by lists against other libraries: `python benchmarks/lists.py curves`.

curves   recall@10 against queries per CPU second: docs/results/lists-curves.jsonl, a table and a figure
share    what is found by the part of a centroid that is taken from rows
growth   how the cost of a search grows with the rows, and what a second thread gains
large    a hundred million codes

Each cell (data, bytes per row, method) runs in a process of its own, with one thread and a limit of time. Its
rows are recorded when it ends, and a cell that is recorded is not run again: delete its rows to repeat it.
Our models and codes are kept among temporary files, to search them again without another fit.
ScaNN, USearch and RaBitQ-Library are found on PYTHONPATH; what cannot be imported is recorded as such.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np

from auxbit import HammingIndex, load
from auxbit.hashers.registry import make_hasher
from auxbit.index.asymmetric import rank_by_vectors
from record import RESULTS, Results, data_folder, resident, run, table

RECORDED = RESULTS / "lists-curves.jsonl"
EARLIER = RECORDED.read_text() if RECORDED.exists() else ""
FIGURE = RESULTS.parent / "images" / "lists-curves.png"
CELL_SECONDS = 1800
LARGE = 10**8
GROWTH = ((100_000, "sift_photos", 512), (10**6, "sift_photos_million", 1024),
          (10**7, "sift_photos_million", 4096))  # fmt: skip
K = 10
TRAINING_ROWS = 100_000
FEWER_ROWS = 20_000  # that our tables of 32 bytes are fitted to, which takes long
REPEATS = 3
CANDIDATES = (0, 20, 30, 50, 100, 200, 400, 800)  # ranked again by their float32 vectors; 0: none
EFFORTS = (16, 24, 32, 48, 64, 96, 128, 192, 256)  # of a search of a graph
LEAST_GAIN = 0.001  # of recall, for which probes are doubled once more, or there are more candidates
RECALLS = (0.8, 0.9, 0.95)
LISTS = {"wordnet": 512, "sift_photos": 512, "sift_photos_million": 1024}
ROWS = {"wordnet": 116_659, "sift_photos": 200_000, "sift_photos_million": 1_000_000}
TITLES = {"wordnet": "WordNet, 116,659 × 256, cosine", "sift_photos": "SIFT, 200,000 × 128",
          "sift_photos_million": "SIFT repeated with noise, 1,000,000 × 128"}  # fmt: skip
ONE_THREAD = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Data:
    """Rows X, queries Q and their K nearest rows; float32, compared by Euclidean distance.

    They are made once and kept among temporary files.
    """

    def __init__(self, name: str) -> None:
        path = Path(tempfile.gettempdir()) / f"auxbit-lists-{name}.npz"
        if not path.exists():
            X, Q = _rows(name)
            np.savez(path.with_suffix(".part.npz"), X=X, Q=Q, near=faiss.knn(Q, X, K)[1])
            path.with_suffix(".part.npz").rename(path)
        with np.load(path) as file:
            self.X, self.Q, self.near = (file[part] for part in ("X", "Q", "near"))
        self.name, self.lists, self.cosine = name, LISTS[name], name == "wordnet"

    def sample(self) -> np.ndarray:
        return self.X[np.random.RandomState(0).permutation(len(self.X))[:TRAINING_ROWS]]

    def recall(self, found: np.ndarray) -> float:
        """The share of the true nearest among the answers."""
        both = zip(found[:, :K], self.near, strict=True)
        return float(np.mean([len(np.intersect1d(each, true)) / K for each, true in both]))

    def rank(self, ids: np.ndarray) -> np.ndarray:
        """Candidates ranked again by their vectors, with our own function."""
        return rank_by_vectors(self.Q, ids, self.X, K, metric="euclidean", n_jobs=1)[1]


def _rows(name: str) -> tuple[np.ndarray, np.ndarray]:
    folder = data_folder() / name.removesuffix("_million")
    X, Q = (np.load(folder / f"{part}.npy").astype(np.float32) for part in ("base", "query"))
    if name == "wordnet":
        X, Q = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (X, Q))
    return (_repeated(X, 5) if name.endswith("_million") else X), Q


def _repeated(X: np.ndarray, times: int) -> np.ndarray:
    """The rows, and again with noise as long as half the median distance of a row to the nearest other."""
    rng = np.random.default_rng(0)
    some = X[rng.permutation(len(X))[:500]]
    nearest = np.sqrt(faiss.knn(some, X, 2)[0][:, 1])
    scale = np.float32(np.median(nearest) / 2 / np.sqrt(X.shape[1]))
    noisy = [X + rng.standard_normal(X.shape, dtype=np.float32) * scale for _ in range(times - 1)]
    return np.concatenate([X, *noisy])


class Built(NamedTuple):
    """An index ready to search: what it cost, and search(effort, candidates) → ids (q, K)."""

    train_seconds: float
    build_seconds: float
    bytes_per_row: float
    version: str
    search: Callable[[int, int], np.ndarray]
    efforts: tuple[int, ...]
    candidates: tuple[int, ...] = CANDIDATES


def _probes(n_lists: int) -> tuple[int, ...]:
    """1, 2, 3, 4, 6, 8, 12 … half of the lists."""
    return tuple(sorted({2**i * n // 2 for i in range(n_lists.bit_length() - 1) for n in (2, 3)} - {0}))[:-1]


def ours(data: Data, n_bytes: int) -> Built:
    """A decoder of tables with lists; the hash function is of no matter."""
    model, codes, trained, encoded = coded(data, n_bytes, data.lists)
    start = time.process_time()
    index = HammingIndex(model=model, n_jobs=1)
    index.add(codes)
    index.search_asymmetric(data.Q[:1], K)  # sorts the codes by list
    built = time.process_time() - start + encoded

    def search(probes: int, candidates: int) -> np.ndarray:
        ids = index.search_asymmetric(data.Q, candidates or K, probes=probes)[1]
        return data.rank(ids) if candidates else ids

    size = index.nbytes / len(data.X)
    return Built(trained, built, size, version("auxbit"), search, _probes(data.lists))


def coded(data: Data, n_bytes: int, n_lists: int) -> tuple[Any, np.ndarray, float, float]:
    """A model with lists, the codes of all rows, and the CPU seconds of both; kept among temporary files."""
    stem = Path(tempfile.gettempdir()) / f"auxbit-lists-{data.name}-{n_bytes}-{n_lists}"
    if not stem.with_suffix(".npz").exists():
        model = make_hasher("lsh", 8 * n_bytes, random_state=0, n_jobs=1).fit(data.X[:20_000])
        start = time.process_time()
        rows = data.sample()[: FEWER_ROWS if n_bytes == 32 else TRAINING_ROWS]
        model.fit_decoder(rows, "tables", lists=n_lists)
        trained = time.process_time()
        codes = model.encode(data.X, coding="optimal")
        seconds = trained - start, time.process_time() - trained
        model.save(stem.with_suffix(".safetensors"))
        np.savez(stem.with_suffix(".npz"), codes=codes, seconds=seconds)
    with np.load(stem.with_suffix(".npz")) as file:
        return load(stem.with_suffix(".safetensors")), file["codes"], *file["seconds"].tolist()


def faiss_lists(data: Data, n_bytes: int, factory: str) -> Built:
    """FAISS's lists of codes, which IndexRefineFlat ranks again."""
    dim = data.X.shape[1]
    about = {"dim": dim, "lists": data.lists, "bytes": n_bytes, "halves": 2 * n_bytes}
    index = faiss.index_factory(dim, factory.format(**about))
    start = time.process_time()
    index.train(data.sample())
    trained = time.process_time()
    index.add(data.X)
    built = time.process_time()
    lists = faiss.extract_index_ivf(index)
    refined = faiss.IndexRefineFlat(index, faiss.swig_ptr(data.X))

    def search(probes: int, candidates: int) -> np.ndarray:
        lists.nprobe, refined.k_factor = probes, candidates / K
        return (refined if candidates else index).search(data.Q, K)[1]

    size = lists.code_size + 8  # and an id
    return Built(trained - start, built - trained, size, faiss.__version__, search, _probes(data.lists))


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
    return Built(0.0, built - start, size, faiss.__version__, search, EFFORTS, (0,))


def scann(data: Data, n_bytes: int) -> Built:
    """Half bytes of asymmetric hashing in a tree of as many leaves.

    Of unit rows, too: squared distances gave a higher recall than inner products, anisotropic or not.
    """
    from scann import scann_ops_pybind

    plan = scann_ops_pybind.builder(data.X, K, "squared_l2").set_n_training_threads(1)
    plan = plan.tree(data.lists, 1, training_sample_size=TRAINING_ROWS)
    plan = plan.score_ah(data.X.shape[1] // (2 * n_bytes))
    start = time.process_time()
    plain = plan.build()
    built = time.process_time()
    reordered = plan.reorder(max(CANDIDATES)).build()

    def search(probes: int, candidates: int) -> np.ndarray:
        if not candidates:
            return plain.search_batched(data.Q, K, leaves_to_search=probes)[0]
        return reordered.search_batched(data.Q, K, candidates, probes)[0]

    return Built(0.0, built - start, n_bytes + 4, version("scann"), search, _probes(data.lists))


def rabitqlib(data: Data, n_bytes: int) -> Built:
    """RaBitQ by its authors, a bit per dimension; its answers are ranked again as ours are."""
    from rabitqlib import FinalAssignmentMode, IvfIndex, RaBitQKMeans

    dim = data.X.shape[1]
    start = time.process_time()
    means = RaBitQKMeans(dim, data.lists, num_threads=1, final_assignment=FinalAssignmentMode.Exact)
    means.train(data.X)
    trained = time.process_time()
    index = IvfIndex(dim=dim, max_elements=len(data.X), num_clusters=data.lists, nbits=1, metric="l2")
    index.build(data.X, means.centroids, means.assignments)
    built = time.process_time()

    def search(probes: int, candidates: int) -> np.ndarray:
        ids = index.search(data.Q, candidates or K, probes)[0].astype(np.int64)
        ids = np.where(ids < len(data.X), ids, -1)  # where lists hold fewer
        return data.rank(ids) if candidates else ids

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        index.save(str(path))
        size = path.stat().st_size / len(data.X)
    return Built(trained - start, built - trained, size, version("rabitqlib"), search, _probes(data.lists))


def usearch(data: Data, n_bytes: int) -> Built:
    """A graph over 8-bit numbers: SIFT's own, or those of unit vectors."""
    from usearch.index import Index

    rows, asked = (each if data.cosine else _eight_bits(each) for each in (data.X, data.Q))
    index = Index(ndim=rows.shape[1], metric="cos" if data.cosine else "l2sq", dtype="i8")
    start = time.process_time()
    index.add(np.arange(len(rows)), rows, threads=1)
    built = time.process_time()

    def search(effort: int, candidates: int) -> np.ndarray:
        index.expansion_search = max(effort, candidates)
        ids = index.search(asked, candidates or K, threads=1).keys.astype(np.int64)
        return data.rank(ids) if candidates else ids

    size = index.memory_usage / len(rows)
    return Built(0.0, built - start, size, version("usearch"), search, EFFORTS, (0, 20))


def _eight_bits(X: np.ndarray) -> np.ndarray:
    return (np.clip(np.rint(X), 0, 255) - 128).astype(np.int8)


METHODS: dict[str, Callable[[Data, int], Built]] = {
    "ours": ours,
    "faiss_pq": partial(faiss_lists, factory="IVF{lists},PQ{halves}x4fs"),
    "faiss_residual_pq": partial(faiss_lists, factory="IVF{lists},PQ{halves}x4fsr"),  # of rows less centres
    "faiss_hnsw": faiss_hnsw,
    "faiss_rabitq": partial(faiss_lists, factory="RR{dim},IVF{lists},RaBitQfs"),  # a bit per dimension
    "rabitqlib": rabitqlib,
    "scann": scann,
    "usearch": usearch,
    "faiss_lsq": partial(faiss_lists, factory="IVF{lists},LSQ{bytes}x8"),
}
GRAPHS = ("faiss_hnsw", "usearch")  # without a limit of bytes
NAMES = {"ours": "auxbit", "faiss_pq": "FAISS PQ fast scan",
         "faiss_residual_pq": "FAISS PQ fast scan, residuals", "faiss_hnsw": "FAISS HNSW, float32",
         "faiss_rabitq": "FAISS RaBitQ fast scan", "rabitqlib": "RaBitQ-Library", "scann": "ScaNN",
         "usearch": "USearch HNSW, 8 bits", "faiss_lsq": "FAISS LSQ"}  # fmt: skip


def cells() -> Iterator[tuple[str, int, str]]:
    """Data, bytes per row (0: no limit) and method: real rows first, and what takes longest last."""
    real, million = ("wordnet", "sift_photos"), ("sift_photos_million",)
    quick = [name for name in METHODS if name != "faiss_lsq"]
    for names, methods in ((real, quick), (million, quick), (real, ["faiss_lsq"])):
        for method in methods:
            for name in names:
                sizes = (0,) if method in GRAPHS else (8, 16, 32) if name in real else (8, 16)
                if method in ("faiss_rabitq", "rabitqlib"):  # a bit per dimension
                    sizes = (32,) if name == "wordnet" else (16,)
                yield from ((name, n_bytes, method) for n_bytes in sizes)


def measure(name: str, n_bytes: int, method: str) -> None:
    """Print the rows of a cell as JSON lines, one of the index and one for each setting of a search."""
    faiss.omp_set_num_threads(1)
    data = Data(name)
    built = METHODS[method](data, n_bytes)
    print(json.dumps(dict(zip(Built._fields[:4], built[:4], strict=True))), flush=True)
    most = 0.0
    for candidates in built.candidates:
        before = 0.0
        for effort in built.efforts:
            us, recall = _cost(built.search, data, effort, candidates)
            row = {"effort": effort, "candidates": candidates, "recall": recall, "us": us}
            print(json.dumps(row), flush=True)
            if recall < before + LEAST_GAIN:
                break
            before = recall
        if candidates and before < most + LEAST_GAIN:
            break
        most = before if candidates else 0.0


def _cost(search: Callable[[int, int], np.ndarray], data: Data, *setting: int) -> tuple[float, float]:
    """The least microseconds of CPU time per query, and the recall."""
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        found = search(*setting)
        times.append(time.process_time() - start)
    return 1e6 * min(times) / len(data.Q), data.recall(found)


def run_cell(results: Results, name: str, n_bytes: int, method: str) -> None:
    """Run a cell in a process of its own and record its rows, or why there are none."""
    cell = {"data": name, "rows": ROWS[name], "bytes": n_bytes, "method": method}
    command = [sys.executable, __file__, "cell", name, str(n_bytes), method]
    try:
        made = subprocess.run(command, capture_output=True, timeout=CELL_SECONDS, env=os.environ | ONE_THREAD)
        last = made.stderr.decode().strip().splitlines()[-1:] or [f"exit code {made.returncode}"]
        output, problem = made.stdout, last if made.returncode else []
    except subprocess.TimeoutExpired as error:
        output, problem = error.stdout or b"", [f"over {CELL_SECONDS} s"]
    rows = [json.loads(line) for line in output.decode().splitlines() if line.startswith("{")]
    for row in [*rows, *({"problem": each} for each in problem)]:
        results.add(**cell, **row)
    print(name, n_bytes, method, f"{len(rows)} rows", *problem, flush=True)


def resume(results: Results) -> None:
    """Put back the rows of earlier runs, which a new file of results does not have."""
    results.path.write_text(EARLIER)
    results.rows = [json.loads(line) for line in EARLIER.splitlines()]


def curves(results: Results) -> str:
    """Queries per CPU second at a recall@10, one thread, 1000 queries in a batch: the most over numbers of
    probes and of candidates ranked again by float32 vectors, or over the effort of a search of a graph.
    """
    resume(results)
    for name, n_bytes, method in cells():
        if not results.where(data=name, bytes=n_bytes, method=method):
            run_cell(results, name, n_bytes, method)
    draw(results)
    head = ["data", "bytes", "method", *(f"recall ≥ {recall}" for recall in RECALLS),
            "most recall, not ranked again", "build, CPU s", "index, bytes per row"]  # fmt: skip
    order = [(data, n_bytes, method) for data in ROWS for n_bytes in (8, 16, 32, 0) for method in METHODS]
    return table(head, (line for cell in order if (line := _line(results, *cell))))


def _line(results: Results, data: str, n_bytes: int, method: str) -> list[str]:
    """A row of the table, or none if the cell has not been run."""
    rows = results.where(data=data, bytes=n_bytes, method=method)
    found = [row for row in rows if "recall" in row]
    rates = [_most(found, recall) for recall in RECALLS]
    alone = max((row["recall"] for row in found if not row["candidates"]), default=0)
    costs = [
        (f"{row['train_seconds'] + row['build_seconds']:,.0f}", f"{row['bytes_per_row']:,.0f}")
        for row in rows
        if "version" in row
    ]
    problems = [(row["problem"], "–") for row in rows if "problem" in row]
    rates += [f"{alone:.2f}", *(costs + problems)[0]] if rows else []
    return [TITLES[data], str(n_bytes or "–"), NAMES[method], *rates] if rows else []


def _most(rows: list[dict[str, Any]], recall: float) -> str:
    """The most queries per CPU second of the settings that reach the recall."""
    rates = [1e6 / row["us"] for row in rows if row["recall"] >= recall]
    return f"{max(rates):,.0f}" if rates else "–"


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

    figure, axes = plt.subplots(2, len(ROWS), figsize=(13, 8.5), sharex=True, sharey="col", squeeze=False)
    for column, data in enumerate(ROWS):
        for row, n_bytes in enumerate((8, 16)):
            _panel(axes[row, column], results, data, n_bytes)
        axes[-1, column].set_xlabel("recall@10")
    for ax in axes[:, 0]:
        ax.set_ylabel("queries per CPU second")
    shown = {line.get_label(): line for ax in axes.flat for line in ax.get_lines()}
    names = [name for name in NAMES.values() if name in shown]
    figure.legend([shown[name] for name in names], names, loc="lower center", ncol=4, frameon=False,
                  title="up and right is better; dashed: graphs, which hold whole vectors")  # fmt: skip
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    figure.savefig(FIGURE, dpi=110)
    plt.close(figure)


def _panel(ax: Any, results: Results, data: str, n_bytes: int) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    for i, method in enumerate(METHODS):
        points = front(results.where(data=data, bytes=0 if method in GRAPHS else n_bytes, method=method))
        seen = [(recall, rate) for recall, rate in points if recall >= 0.5]
        if seen:
            look = {"color": f"C{i - 1}"} if i else {"color": "black", "linewidth": 3, "zorder": 5}
            style = "--" if method in GRAPHS else "-"
            ax.plot(*zip(*seen, strict=True), style, marker="o", markersize=3, label=NAMES[method], **look)
    ax.set(xlim=(0.5, 1.005), yscale="log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_title(f"{TITLES[data]}\n{n_bytes} bytes per row", fontsize=10)
    ax.grid(which="both", alpha=0.25)


# ---- What is taken from rows, and a hundred million codes


def share(results: Results) -> str:
    """Precision at K = k = 50 and recall@10 of codes alone, all lists searched, by the part of a centroid
    that is taken from rows: 100,000 rows, 20,000 of them trained on, 1,024 lists, one seed."""
    from auxbit.quantiser import fit

    for name, bits in product(("sift_photos", "wordnet"), (32, 64)):
        data = Data(name)
        X, Q = data.X[:100_000], data.Q
        true, rows = faiss.knn(Q, X, 50)[1], X[np.random.RandomState(0).permutation(len(X))[:20_000]]
        for part in (None, 0.5, 1.0):
            fit.SHARE = part or 0.0
            model = make_hasher("lsh", bits, random_state=0, n_jobs=1).fit(rows[:2000])
            model.fit_decoder(rows, "tables", lists=None if part is None else 1024)
            index = HammingIndex(model=model, n_jobs=1)
            index.add(model.encode(X, coding="optimal"))
            found = index.search_asymmetric(Q, 50, **({} if part is None else {"probes": "all"}))[1]
            results.add(
                data=name,
                bits=bits,
                part=part,
                precision=_shared(found, true),
                recall=_shared(found[:, :K], true[:, :K]),
            )
    names = {None: "no lists", 0.5: "half", 1.0: "all"}
    lines = [
        (
            name,
            bits,
            *(f"{row['precision']:.3f} / {row['recall']:.3f}" for row in results.where(data=name, bits=bits)),
        )
        for name, bits in product(("sift_photos", "wordnet"), (32, 64))
    ]
    return table(["data", "bits", *(names[part] for part in names)], lines)


def large(results: Results) -> str:
    """A hundred million codes of 64 bits in 4,096 lists, in memory: synthetic codes, those of a million rows
    of sift_photos (repeated with noise) with one byte of each drawn at random; k = 10, 200 queries, one
    thread. Recall is that of a search of all lists."""
    data, rng = Data("sift_photos_million"), np.random.default_rng(0)
    model = make_hasher("lsh", 64, random_state=0, n_jobs=2).fit(data.X[:20_000])
    model.fit_decoder(data.X[np.sort(rng.permutation(len(data.X))[:400_000])], "tables", lists=4096)
    codes = model.encode(data.X, coding="optimal")
    index = HammingIndex(model=model, n_jobs=1)
    for _ in range(LARGE // len(codes)):
        some = codes.copy()
        some[np.arange(len(codes)), rng.integers(2, 10, len(codes))] = rng.integers(0, 256, len(codes))
        index.add(some)
    start = time.process_time()
    index.search_asymmetric(data.Q[:1], K)
    built, Q = time.process_time() - start, data.Q[:200]
    every = _timed(lambda: index.search_asymmetric(Q, K, probes="all")[1])
    lines = [("all", "1", f"{every[0] / len(Q) * 1e3:.2f} ms", f"{len(Q) / every[0]:,.0f}")]
    for probes in (1, 4, 16, 32, 64, 128):
        seconds, found = _timed(lambda probes=probes: index.search_asymmetric(Q, K, probes=probes)[1])
        recall = _shared(found, every[1])
        results.add(rows=len(index), probes=probes, recall=recall, seconds=seconds, built=built,
                    bytes=index.nbytes, peak=resident("VmHWM"))  # fmt: skip
        lines.append(
            (probes, f"{recall:.3f}", f"{seconds / len(Q) * 1e3:.2f} ms", f"{len(Q) / seconds:,.0f}")
        )
    made = f"{index.nbytes / 1e9:.1f} GB of codes, sorted in {built:.0f} s of CPU (encoding not counted)."
    made += f" Peak of the process: {resident('VmHWM') / 1e3:.1f} GB."
    return (
        table(["lists searched", "recall", "CPU per query", "queries per CPU second"], lines) + f"\n\n{made}"
    )


def growth(results: Results) -> str:
    """The cost of a search at 0.9 of what a search of all lists finds: 8-byte codes, k = 10, 500 queries, the
    fewest probes (in steps of a fifth) that reach it, CPU time of one thread, the least of five. Rows of
    sift_photos, the million, and ten times the codes of the million, all but once with a byte of each drawn
    at random. Threads: wall time of a batch, and of single queries over all lists."""
    for n_rows, name, n_lists in GROWTH:
        results.add(rows=n_rows, lists=n_lists, **_search_costs(n_rows, Data(name), n_lists))
    first, lines = results.rows[0], []
    for row in results.rows:
        times, root = row["us"] / first["us"], (row["rows"] / first["rows"]) ** 0.5
        gains = (f"{row[f'{what}_1'] / row[f'{what}_2']:.2f}" for what in ("batch", "single"))
        cells = (f"{row['rows']:,}", f"{row['lists']:,}", row["probes"], f"{row['us']:.1f} µs")
        lines.append((*cells, f"{times:.2f}", f"{root:.2f}", *gains))
    head = ["rows", "lists", "probes", "CPU per query", "times the first", "√ of the rows, times the first",
            "gain of a second thread, batch", "gain, single query"]  # fmt: skip
    return table(head, lines)


def _search_costs(n_rows: int, data: Data, n_lists: int) -> dict[str, float]:
    """The probes that 0.9 of the answers take, and what such searches cost; microseconds per query."""
    model, codes, *_ = coded(data, 8, n_lists)
    index, Q, rng = HammingIndex(model=model, n_jobs=1), data.Q[:500], np.random.default_rng(0)
    for start in range(0, n_rows, len(codes)):
        some = codes[: n_rows - start].copy()
        if start:
            some[np.arange(len(some)), rng.integers(2, 10, len(some))] = rng.integers(0, 256, len(some))
        index.add(some)
    true = index.search_asymmetric(Q, K, probes="all")[1]
    steps = sorted({min(n_lists, round(1.2**i)) for i in range(60)})
    probes = next(n for n in steps if _shared(index.search_asymmetric(Q, K, probes=n)[1], true) >= 0.9)

    def batch() -> None:
        index.search_asymmetric(Q, K, probes=probes)

    def single() -> None:
        for x in Q[:20]:
            index.search_asymmetric(x[None], K, probes="all")

    row = {"probes": probes, "us": 1e6 / len(Q) * _least(batch, time.process_time)}
    for index.n_jobs in (1, 2):
        row[f"batch_{index.n_jobs}"] = 1e6 / len(Q) * _least(batch, time.perf_counter)
        row[f"single_{index.n_jobs}"] = 1e6 / 20 * _least(single, time.perf_counter)
    return row


def _least(search: Callable[[], None], clock: Callable[[], float]) -> float:
    """The least seconds of five."""
    times = []
    for _ in range(5):
        start = clock()
        search()
        times.append(clock() - start)
    return min(times)


def _shared(found: np.ndarray, true: np.ndarray) -> float:
    """The share of true answers among those found."""
    both = zip(found, true, strict=True)
    return float(np.mean([len(np.intersect1d(each, wanted)) for each, wanted in both]) / true.shape[1])


def _timed(search: Callable[[], np.ndarray]) -> tuple[float, np.ndarray]:
    start = time.process_time()
    found = search()
    return time.process_time() - start, found


if __name__ == "__main__":
    if sys.argv[1:2] == ["cell"]:
        measure(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        run("lists", {"curves": curves, "share": share, "growth": growth, "large": large})
