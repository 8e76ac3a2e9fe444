"""The tables of docs/quality.md: `python benchmarks/quality.py`, which resumes where it was stopped.

Precision at K = k = 50 and recall@10 of every method at equal payload bytes. Each cell (data, bits, method,
seed) runs in a process of its own and is kept in docs/results/quality.jsonl as soon as it is done; cells
that are there are not run again.

    python benchmarks/quality.py --methods tables pq --bits 32 64 --data wordnet --seeds 0 1 2
    python benchmarks/quality.py --limit 600        # seconds of a cell; slower ones are noted and left out
    python benchmarks/quality.py --few              # instead, models of a few rows (quality-few.jsonl)
    python benchmarks/quality.py --table            # only write the page again

AUXBIT_DATA is a folder with sift_photos, mnist, wordnet, for GIST cifar10, and minilm as
benchmarks/minilm.py makes it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from auxbit.core.checks import Array, Ids, Packed
from auxbit.data.gist import gist
from auxbit.evaluate import ground_truth
from auxbit.experiments.quantisers import MAKERS, ByDecoder, Quantiser, make_quantiser
from auxbit.hashers.registry import make_hasher
from auxbit.quantiser.fit import levels_of
from record import RESULTS, data_folder, fill_in, machine, table

BITS = (32, 64, 128, 256)
DATA = ("sift_photos", "mnist", "gist", "wordnet", "minilm")
OURS = "auto"
METHODS = (OURS, "pq", "pca-rabitq", "pca-rabitq2", "itq-rabitq", "eden", "ash", "rq", "lsq", "plsq", "opq")
FEW_METHODS = (OURS, "rq", "pq")
N_TRAIN, N_BASE, N_QUERIES, K = 50_000, 100_000, 1000, 50
FEW_ROWS = ((1000, 64), (2500, 128), (9500, 256))  # and bits: hardly more rows than vectors of the tables
PATH, FEW_PATH = RESULTS / "quality.jsonl", RESULTS / "quality-few.jsonl"


# ---- data


def rows_of(name: str) -> tuple[Array, Array]:
    """Rows to search, of which the first 50,000 are trained on, and queries."""
    folder = data_folder() / ("cifar10" if name == "gist" else name)
    if name in ("mnist", "gist"):
        images = [np.load(folder / f"{part}_images.npy") for part in ("train", "test")]
        base, queries = (gist(each) if name == "gist" else each.reshape(len(each), -1) for each in images)
    else:
        base, queries = (np.load(folder / f"{part}.npy") for part in ("base", "query"))
    both = [each.astype(np.float32) for each in (base[:N_BASE], queries[:N_QUERIES])]
    if name in ("wordnet", "minilm"):
        both = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in both]
    return both[0], both[1]


def prepared(name: str) -> tuple[Array, Array, Ids]:
    """Rows, queries and the true neighbours, which are kept from cell to cell."""
    path = Path(tempfile.gettempdir()) / f"auxbit-quality-{name}.npz"
    if not path.exists():
        base, queries = rows_of(name)
        np.savez(path, base=base, queries=queries, truth=ground_truth(base, queries, K))
    held = np.load(path)
    return held["base"], held["queries"], held["truth"]


# ---- EDEN and ASH: some axes, a few bits of each, factors of each row


class Axes(Quantiser):
    """Rows in some orthonormal axes, each coordinate one of 2^b levels; norm and scale are kept beside.

    The estimate of a distance is ‖q‖² + ‖x‖² − 2·s·⟨Wᵀq, levels⟩ with s = ‖Wᵀx‖² / ⟨Wᵀx, levels⟩.
    learned : the axes are improved on the codes of the rows (ASH), else principal axes rotated at random
    (EDEN, after the reduction that any rate below a bit per dimension needs). Levels are those that are best
    for a Gaussian coordinate (Lloyd and Max); a row's scale is the best of several.
    """

    SCALES = np.linspace(0.7, 1.3, 7)
    TURNS = 15

    def __init__(self, bits: int, bits_per_axis: int, *, learned: bool, seed: int) -> None:
        super().__init__(bits, seed=seed, n_jobs=1)
        self.bits_per_axis, self.learned = bits_per_axis, learned
        self.levels = gaussian_levels(bits_per_axis)

    def _train(self, X: Array) -> None:
        rng = np.random.default_rng(self.seed)
        m = min(self.bits // self.bits_per_axis, X.shape[1])
        self.mean = X.mean(axis=0)
        self.payload_bytes = m * self.bits_per_axis // 8
        self.resident_bytes = self.payload_bytes + 8
        centred = X - self.mean
        _, V = np.linalg.eigh(centred.T @ centred)
        self.W = V[:, ::-1][:, :m] @ np.linalg.qr(rng.standard_normal((m, m)))[0].astype(np.float32)
        if self.learned:
            for _ in range(self.TURNS):
                Y = centred @ self.W
                decoded = self.levels[self._levels_of(Y)]
                decoded *= ((Y * decoded).sum(axis=1) / np.square(decoded).sum(axis=1))[:, None]
                U, _, Vt = np.linalg.svd(centred.T @ decoded, full_matrices=False)
                self.W = U @ Vt

    def _levels_of(self, Y: Array) -> Packed:
        """The level of each coordinate, with the scale that makes the least angle."""
        size = np.sqrt(np.square(Y).mean(axis=1, keepdims=True)) + 1e-30
        cuts = (self.levels[1:] + self.levels[:-1]) / 2
        best, codes = np.full(len(Y), -1.0), np.zeros(Y.shape, dtype=np.uint8)
        for scale in self.SCALES if self.bits_per_axis > 1 else (1.0,):
            found = np.searchsorted(cuts, Y / (scale * size)).astype(np.uint8)
            decoded = self.levels[found]
            cosine = (Y * decoded).sum(axis=1) / np.linalg.norm(decoded, axis=1)
            better = cosine > best
            best[better], codes[better] = cosine[better], found[better]
        return codes

    def _codes(self, X: Array) -> Packed:
        centred = X - self.mean
        Y = centred @ self.W
        codes = self._levels_of(Y)
        self.norms = np.square(centred).sum(axis=1)
        self.scales = np.square(Y).sum(axis=1) / ((Y * self.levels[codes]).sum(axis=1) + 1e-30)
        return codes

    def _fill(self, codes: Packed) -> None:
        self.decoded = self.levels[codes] * self.scales[:, None]

    def _nearest(self, queries: Array, k: int) -> Ids:
        found = []
        for some in np.array_split(queries, -(-len(queries) // 100)):
            costs = self.norms - 2 * ((some - self.mean) @ self.W) @ self.decoded.T
            near = np.argpartition(costs, k, axis=1)[:, :k]
            found.append(np.take_along_axis(near, np.take_along_axis(costs, near, 1).argsort(axis=1), 1))
        return np.concatenate(found)


def gaussian_levels(bits: int) -> Array:
    """The 2^bits levels with the least squared error for a standard Gaussian."""
    sample = np.random.default_rng(0).standard_normal(200_000)
    return levels_of(sample, 2**bits).astype(np.float32)


# ---- cells


def make(method: str, bits: int, n_dims: int, seed: int) -> Quantiser:
    """A method that is not fitted."""
    if method in ("eden", "ash"):
        return Axes(bits, 1 if method == "eden" else 2, learned=method == "ash", seed=seed)
    if method in MAKERS:
        return make_quantiser(method, bits, seed=seed, n_jobs=1)
    carrier = make_hasher("itq" if bits <= n_dims else "lsh", bits, random_state=seed, n_jobs=1)
    return ByDecoder(carrier, bits, coding="optimal", seed=seed, n_jobs=1)


def measure(data: str, bits: int, method: str, seed: int) -> dict[str, Any]:
    """The row of a cell."""
    base, queries, truth = prepared(data)
    model = make(method, bits, base.shape[1], seed)
    model.fit(base[:N_TRAIN])
    model.encode(base[:300])  # compile
    model.add(base)
    found = model.search(queries, K)

    return {
        "precision": shared(found, truth, K), "recall": shared(found, truth, 10),
        "train": model.times["fit"].cpu,
        "encode": 1e6 * model.times["encode"].cpu / len(base), "payload": model.payload_bytes,
        "resident": model.resident_bytes, "kind": getattr(model, "decoder", None),
    }  # fmt: skip


def measure_few(data: str, rows: int, bits: int, method: str, seed: int) -> dict[str, Any]:
    """The row of a cell of few rows: searched are those trained on, and then as many new ones."""
    base, queries, _ = prepared(data)
    order = np.random.default_rng(seed).permutation(len(base))
    own, new = (base[np.sort(order[some])] for some in (slice(rows), slice(rows, 2 * rows)))
    model = make(method, bits, base.shape[1], seed)
    model.fit(own)
    row: dict[str, Any] = {"train": model.times["fit"].cpu, "kind": getattr(model, "decoder", None)}
    for name, searched in (("own", own), ("new", new)):
        model.add(searched)
        row[name] = shared(model.search(queries, K), ground_truth(searched, queries, K), K)
    return row


def shared(found: Ids, truth: Ids, k: int) -> float:
    """The share of the true k that are among the first k found."""
    return float(np.mean([len(np.intersect1d(a[:k], b[:k])) / k for a, b in zip(found, truth, strict=True)]))


def run_cell(cell: dict[str, Any], limit: float) -> dict[str, Any]:
    """The row of a cell, from a process of its own; why there is none, if it fails or takes too long."""
    command = [sys.executable, __file__, "--cell", json.dumps(cell)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"stopped": f"more than {limit:.0f} s"}
    if done.returncode:
        why = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
        return {"stopped": why[-1][:200]}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def finished(path: Path) -> list[dict[str, Any]]:
    """The rows that there are."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# ---- the page


def page(rows: list[dict[str, Any]]) -> None:
    """Write the tables into docs/quality.md."""
    for value, title in (("precision", "precision"), ("recall", "recall")):
        lines = []
        for data in DATA:
            for bits in BITS:
                means = {method: _mean(rows, value, data, bits, method) for method in METHODS}
                known = [each for each in means.values() if each is not None]
                if known:
                    cells = [
                        _cell(means[method], max(known) if means[OURS] is not None else None)
                        for method in METHODS
                    ]
                    lines.append([data, bits, *cells])
        fill_in(f"quality-{title}", table(["data", "bits", *METHODS], lines))
    for value, digits in (("train", 0), ("encode", 0)):
        lines = []
        for data in DATA:
            for bits in BITS:
                means = {method: _mean(rows, value, data, bits, method) for method in METHODS}
                if any(each is not None for each in means.values()):
                    cells = ["" if each is None else f"{each:.{digits}f}" for each in means.values()]
                    lines.append([data, bits, *cells])
        fill_in(f"quality-{value}", table(["data", "bits", *METHODS], lines))


def few_page(rows: list[dict[str, Any]]) -> None:
    """Write the table of few rows into docs/quality.md."""
    lines = []
    for data in DATA:
        for n_rows, bits in FEW_ROWS:
            where = {"data": data, "rows": n_rows, "bits": bits}
            of = {row["method"]: row for row in rows if where.items() <= row.items() and "own" in row}
            if of:
                cells = [
                    f"{of[each]['own']:.3f} / {of[each]['new']:.3f}" if each in of else ""
                    for each in FEW_METHODS
                ]
                times = [f"{of[each]['train']:.0f}" if each in of else "" for each in FEW_METHODS]
                lines.append([data, f"{n_rows:,}", bits, *cells, " / ".join(times)])
    fill_in("quality-few", table(["data", "rows", "bits", *FEW_METHODS, "CPU seconds to train"], lines))


def _mean(rows: list[dict[str, Any]], value: str, data: str, bits: int, method: str) -> float | None:
    where = {"data": data, "bits": bits, "method": method}
    found = [row[value] for row in rows if where.items() <= row.items() and value in row]
    return float(np.mean(found)) if found else None


def _cell(mean: float | None, best: float | None) -> str:
    if mean is None:
        return ""
    return f"**{mean:.3f}**" if mean == best else f"{mean:.3f}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", nargs="+", default=DATA, choices=DATA)
    parser.add_argument("--bits", nargs="+", type=int, default=BITS)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds of a cell")
    parser.add_argument("--again", action="store_true", help="also cells that were stopped before")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--few", action="store_true", help="models of a few rows, by auto, RQ and PQ")
    parser.add_argument("--cell", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        print(json.dumps((measure_few if "rows" in options.cell else measure)(**options.cell), default=float))
        return
    cells = [
        {"data": data, "bits": bits, "method": method, "seed": seed}
        for seed in options.seeds for method in options.methods for bits in options.bits
        for data in options.data
    ]  # fmt: skip
    if options.few:
        cells = [
            {"data": data, "rows": rows, "bits": bits, "method": method, "seed": 0}
            for rows, bits in FEW_ROWS for data in options.data for method in FEW_METHODS
        ]  # fmt: skip
    path = FEW_PATH if options.few else PATH
    rows = finished(path)
    for cell in [] if options.table else cells:
        held = [row for row in rows if cell.items() <= row.items()]
        if held and not (options.again and "stopped" in held[-1]):
            continue
        row = cell | run_cell(cell, options.limit)
        with path.open("a") as file:
            file.write(json.dumps(row | {"machine": machine()}) + "\n")
        rows = [*(each for each in rows if each not in held), row]
        print(row, flush=True)
    (few_page if options.few else page)(rows)


if __name__ == "__main__":
    main()
