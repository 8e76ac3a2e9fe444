"""The figures of docs/performance.md: `python benchmarks/speed.py NAME`, raw results in docs/results/.

Both sides of a comparison are measured in one run, and what counts is their ratio.

authors   CPU time and error on siftsmall against the authors' own code
rows      how CPU time grows with the number of rows
bits      how CPU time grows with the number of bits
threads   one thread against all
memory    peak memory above the data
encode    encode against the bare product X @ W
exact     the exact Z step against the alternating one, over whole fits
sample    ITQ as a start from some rows against all
startup   import, --help, first and second run
paper     the paper's runtimes on rows of the same size; only if named, as it needs AUXBIT_DATA/cifar10
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from auxbit import BinaryAutoencoder
from auxbit.data import datasets
from auxbit.hashers import autoencoder
from real_data import (
    AUTHORS_CPU_SECONDS,
    AUTHORS_ERROR,
    rotated_mnist,
    sift_photos,
    siftsmall_scaled,
    total_error,
)
from record import Results, data_folder, measured, run, seconds_of, table


def fitted(X: np.ndarray, bits: int, **parameters: Any) -> BinaryAutoencoder:
    """A fit to the finite-μ stop with the default parameters."""
    return BinaryAutoencoder(bits, **{"validation": None, "random_state": 0, **parameters}).fit(X)


def compile_kernels(X: np.ndarray, bits: int = 32, **parameters: Any) -> None:
    """A short fit, so that the next one compiles nothing."""
    fitted(X[:2000], bits, max_iter=3, **parameters).encode(X[:2000])


def seconds_by_step(model: BinaryAutoencoder) -> dict[str, float]:
    return {step: sum(getattr(record, f"seconds_{step}") for record in model.history_) for step in "hfz"}


def authors(results: Results) -> str:
    """Siftsmall's learn, 24,900 × 128, default parameters, no validation stop, three seeds.

    The mean error of the seeds, and of the CPU time the least: other machines share these cores.
    """
    X, lines = siftsmall_scaled(), []
    for bits, seconds in AUTHORS_CPU_SECONDS.items():
        compile_kernels(X, bits)
        for seed in range(3):
            for _ in range(3):
                with measured() as cost:
                    model = fitted(X, bits, random_state=seed)
                found = {"E_BA": total_error(model, X), "iterations": model.n_iter_}
                results.add(bits=bits, seed=seed, **found, **cost)
        ours, error = results.least("cpu_seconds", bits=bits), results.mean("E_BA", bits=bits)
        errors = AUTHORS_ERROR["siftsmall", bits], f"**{error:.1f}**"
        lines.append([bits, seconds, f"{ours:.2f}", f"**{seconds / ours:.0f}**", "≥ 300", *errors])
    head = ["bits", "authors' CPU s", "auxbit's", "times less", "goal", "authors' E_BA", "auxbit's"]
    return table(head, lines)


def rows(results: Results) -> str:
    """sift_photos, 128 dimensions, 32 bits, CPU time of whole fits, best of three."""
    counts = (25_000, 50_000, 100_000, 200_000)
    X = sift_photos(max(counts))
    compile_kernels(X)
    return growth(results, "rows", {n: partial(fitted, X[:n], 32) for n in counts}, goal=2.2)


def bits(results: Results) -> str:
    """sift_photos, 50,000 × 128, CPU time of whole fits, best of three; exact Z steps at 16 bits."""
    X, counts = sift_photos(50_000), (16, 32, 64)
    for count in counts:
        compile_kernels(X, count)
    return growth(results, "bits", {count: partial(fitted, X, count) for count in counts}, goal=2.5)


def growth(results: Results, what: str, jobs: dict[int, Any], *, goal: float) -> str:
    """A row for each size: the best CPU time, its ratio to that of the size before, where it went."""
    lines: list[list[object]] = []
    before = None
    for size, job in jobs.items():
        for _ in range(3):
            with measured() as cost:
                model = job()
            results.add(**{what: size}, iterations=model.n_iter_, **cost, **seconds_by_step(model))
        least = min(results.where(**{what: size}), key=lambda row: row["cpu_seconds"])
        cpu = least["cpu_seconds"]
        ratio = [f"**{cpu / before:.2f}**", f"≤ {goal}"] if before else ["", ""]
        shares = [f"{100 * least[step] / least['seconds']:.0f} %" for step in "hfz"]
        lines.append([f"{size:,}", f"{cpu:.2f}", *ratio, least["iterations"], *shares])
        before = cpu
    return table([what, "CPU s", "ratio", "goal", "iterations", "h steps", "f steps", "Z steps"], lines)


def threads(results: Results) -> str:
    """50,000 × 320, 32 bits, best of five, one thread and all of them in turn."""
    X, counts = rotated_mnist(), (1, len(os.sched_getaffinity(0)))
    compile_kernels(X)
    for _ in range(5):
        for n_jobs in counts:
            with measured() as cost:
                model = fitted(X, 32, n_jobs=n_jobs)
            results.add(n_jobs=n_jobs, **cost, **seconds_by_step(model))
    lines = []
    for name, key, goal in (
        ("whole fit, wall s", "seconds", "≥ 1.7"),
        ("its h steps", "h", ""),
        ("its Z steps", "z", ""),
        ("whole fit, CPU s", "cpu_seconds", ""),
    ):
        one, many = (results.least(key, n_jobs=n_jobs) for n_jobs in counts)
        lines.append([name, f"{one:.2f}", f"{many:.2f}", f"**{one / many:.2f}**", goal])
    return table(["", "1 thread", f"{counts[1]} threads", "times less", "goal"], lines)


def memory(results: Results) -> str:
    """Peak resident memory of a fit above that after import, compilation and loading."""
    lines = []
    for data, X, count in (
        ("50,000 × 320", rotated_mnist(), 32),
        ("200,000 × 128", sift_photos(200_000), 64),
    ):
        limit = 8 * len(X) * count * 4 / 2**20 + 200
        compile_kernels(X, count)
        for validation in ("auto", None):
            with measured() as cost:
                fitted(X, count, validation=validation)
            results.add(data=data, bits=count, validation=validation, limit=limit, **cost)
            peak = f"**{cost['peak_mb']:.0f}**", f"≤ {limit:.0f}", f"{X.nbytes / 2**20:.0f}"
            lines.append([data, count, validation, *peak, f"{cost['seconds']:.1f}"])
    goal = "goal: 8·N·L·4 B + 200 MB"
    return table(["rows × dims", "bits", "validation", "peak, MB", goal, "the data, MB", "wall s"], lines)


def encode(results: Results) -> str:
    """float32 rows to packed codes against numpy's X @ W in float32; best of eighteen, six in a row."""
    lines = []
    for data, X in (("50,000 × 320", rotated_mnist()), ("200,000 × 128", sift_photos(200_000))):
        for count in (32, 64):
            model = fitted(X[:5000], count, max_iter=2)
            W = np.ascontiguousarray(model.encoder_.weights)
            sides = {"product": partial(np.matmul, X, W), "encode": partial(model.encode, X)}
            for side in list(sides) * 3:
                time.sleep(0.5)  # threads of BLAS spin on for a while after a product
                for call in range(8):
                    with measured() as cost:
                        sides[side]()
                    if call > 1:  # by then the cores are awake
                        results.add(data=data, bits=count, side=side, **cost)
            line: list[object] = [data, count]
            for key in ("seconds", "cpu_seconds"):
                theirs, ours = (results.least(key, data=data, bits=count, side=side) for side in sides)
                line += [f"{1000 * theirs:.0f}", f"{1000 * ours:.0f}", f"**{ours / theirs:.2f}**"]
            lines.append([*line, "≤ 1.25"])
    sides_head = ["X @ W, wall ms", "encode", "ratio", "X @ W, CPU ms", "encode", "ratio"]
    return table(["rows × dims", "bits", *sides_head, "goal"], lines)


def exact(results: Results) -> str:
    """Siftsmall's learn, whole fits: least CPU time and mean E_BA of three seeds."""
    X, solvers, lines = siftsmall_scaled(), ("alternating", "exact"), []
    for count, goal in ((16, "< 1.5"), (32, "")):
        for solver in solvers:
            compile_kernels(X, count, z_solver=solver)
            for seed in range(3):
                with measured() as cost:
                    model = fitted(X, count, z_solver=solver, random_state=seed)
                unproven = sum(record.unproven for record in model.history_)
                found = {"E_BA": total_error(model, X), "unproven": unproven}
                results.add(bits=count, solver=solver, seed=seed, **found, **cost)
        cpu = [results.least("cpu_seconds", bits=count, solver=solver) for solver in solvers]
        errors = [f"{results.mean('E_BA', bits=count, solver=solver):.1f}" for solver in solvers]
        unproven = sum(row["unproven"] for row in results.where(bits=count, solver="exact"))
        ratio = f"**{cpu[1] / cpu[0]:.2f}**"
        lines.append([count, *(f"{seconds:.2f}" for seconds in cpu), ratio, goal, *errors, unproven])
    head = [
        "bits",
        "alternating, CPU s",
        "exact",
        "ratio",
        "goal",
        "E_BA, alternating",
        "exact",
        "not proven",
    ]
    return table(head, lines)


def sample(results: Results) -> str:
    """32 bits, three seeds: the start's rotation found on some rows and on all, then the same loop."""
    usual, lines = autoencoder.ITQ_ROWS, []
    for data, X, counts in (
        ("sift_photos, 128 dimensions", sift_photos(200_000), (10_000, 100_000, usual)),
        ("rotated MNIST, 320 dimensions", rotated_mnist(), (10_000, 50_000)),
    ):
        compile_kernels(X)
        unit = float(np.ptp(X, axis=0).max()) ** 2
        for count in counts:
            autoencoder.ITQ_ROWS = count
            for seed in range(3):
                with measured() as cost:
                    model = fitted(X, 32, random_state=seed)
                results.add(data=data, rows=count, seed=seed, E_BA=total_error(model, X) / unit, **cost)
        autoencoder.ITQ_ROWS = usual
        every = results.mean("E_BA", data=data, rows=counts[-1])
        for count in counts:
            error = results.mean("E_BA", data=data, rows=count)
            cpu = results.least("cpu_seconds", data=data, rows=count)
            of = f"{count:,} of {len(X):,}" + (" (the default)" if min(usual, len(X)) == count else "")
            lines.append([data, of, f"{error:.1f}", f"**{100 * (error / every - 1):+.2f} %**", f"{cpu:.2f}"])
    return table(["data", "rows", "E_BA", "against all rows", "CPU s of the fit"], lines)


FIRST_RUN = """
import numpy as np
from auxbit import BinaryAutoencoder, HammingIndex
X = np.random.RandomState(0).standard_normal((2000, 20)).astype(np.float32)
for bits in (16, 18):
    codes = BinaryAutoencoder(bits, random_state=0).fit(X).encode(X)
    index = HammingIndex(bits)
    index.add(codes)
    index.search(codes[:5], 3)
"""


def startup(results: Results) -> str:
    """Fresh processes, wall time, best of five; the first run compiles the kernels of fits and a search."""
    python = sys.executable
    lines = []
    for name, arguments, goal in (
        ("import auxbit", ["-c", "import auxbit"], 0.3),
        ("auxbit --help", ["-m", "auxbit", "--help"], 0.5),
    ):
        taken = min(seconds_of([python, *arguments]) for _ in range(5))
        results.add(what=name, seconds=taken)
        lines.append([name, f"**{taken:.2f}**", f"< {goal}"])
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"NUMBA_CACHE_DIR": folder}
        first = seconds_of([python, "-c", FIRST_RUN], environment)
        second = min(seconds_of([python, "-c", FIRST_RUN], environment) for _ in range(3))
    results.add(what="first run", seconds=first, second=second)
    lines.append(["fits, codes and a search, the first time", f"{first:.1f}", ""])
    lines.append(["the same again", f"{second:.1f}", ""])
    lines.append(["so compiling took, once", f"**{first - second:.1f}**", "< 15"])
    return table(["", "seconds", "goal"], lines)


PAPER_MINUTES = {"CIFAR-10, GIST": 20, "sift_photos, for NUS-WIDE": 50}  # section 6.3, on a laptop of 4 cores


def paper(results: Results) -> str:
    """Whole fits at 32 bits with validation, to rows as many and as wide as the paper's; one fit each.

    CPU time is that of all threads; minutes are wall time on the cores of this machine.
    """
    cifar = datasets.load(data_folder() / "cifar10").vectors().base
    lines = []
    for (name, minutes), X in zip(PAPER_MINUTES.items(), (cifar, sift_photos(161_789)), strict=True):
        for preset in ("paper", "default"):
            how = {"preset": preset, "validation": "auto"}
            compile_kernels(X, **how)
            with measured() as cost:
                model = fitted(X, 32, **how)
            found = {"rows": len(X), "columns": X.shape[1], "iterations": model.n_iter_}
            results.add(data=name, preset=preset, paper_minutes=minutes, **found, **cost)
            size, ours = f"{len(X):,} × {X.shape[1]}", f"**{cost['seconds'] / 60:.2f}**"
            lines.append([name, size, minutes, preset, ours, f"{cost['cpu_seconds']:.0f}", model.n_iter_])
    head = ["rows", "size", "the paper's minutes", "preset", "our minutes", "CPU seconds", "iterations"]
    return table(head, lines)


JOBS: Iterable[Any] = (authors, rows, bits, threads, memory, encode, exact, sample, startup)

if __name__ == "__main__":
    named = {job.__name__: job for job in (*JOBS, paper)}
    run("speed", named, quick=[job.__name__ for job in JOBS])
