"""The figures of training on data larger than memory: `python benchmarks/large.py NAME`.

rows     ten million rows within a budget: memory, time, passes
equal    the same fit in memory and out of core: CPU time, bits, error
ridge    least squares instead of SVMs: passes, CPU time, error
passes   what each kind of pass costs
decoder  how many rows a decoder for optimal codes wants

AUXBIT_ROWS is the number of rows, AUXBIT_SCRATCH a folder for the 5 GB of them (else a temporary one).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import auxbit
from auxbit.core.maps import LinearEncoder, pack_bools
from auxbit.core.parallel import Workers
from auxbit.data.vectors import Budget, write_npy_rows
from auxbit.mac import rows as passes_of
from auxbit.mac.fit import FileTable
from auxbit.mac.loop import neighbours_to_find
from auxbit.mac.z_step import ZOptions
from auxbit.quantiser import fit as decoders
from auxbit.quantiser.coder import coder_of, optimal_codes
from auxbit.quantiser.fit import SHRINK, TABLES_EFFORT, table_step
from real_data import sift_photos
from record import Results, data_folder, run, table

ROWS = int(os.environ.get("AUXBIT_ROWS") or 10_000_000)
SMALLER = min(1_000_000, ROWS)
BITS, MEMORY, SAMPLE_EVERY = 32, "1GB", 0.05
NOISE = 4.0  # of numbers from 0 to 255
COMPARED_ROWS = 1_000_000
# run in a process of its own, whose memory and time are then those of the fit
FIT = """
import json, sys, time
from auxbit import BinaryAutoencoder
import numpy as np
path, out, options, given = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4])
small = np.random.default_rng(0).random((3000, 128), dtype=np.float32)
BinaryAutoencoder(**options | {"max_iter": 2}).fit(small, **given)  # kernels are loaded
X = path if given else np.load(path, mmap_mode="r")
print("begin", flush=True)
wall, cpu = time.perf_counter(), time.process_time()
model = BinaryAutoencoder(**options).fit(X, **given)
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
model.save(out)
print(json.dumps({"seconds": wall, "cpu_seconds": cpu, "passes": model.n_passes_, "iterations": model.n_iter_,
                  "precision": max((record.precision or 0) for record in model.history_)}))
"""


@contextmanager
def photo_rows(n: int) -> Iterator[Path]:
    """A file of n × 128 float32: SIFT descriptors of photographs, again and again, each time perturbed."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("AUXBIT_SCRATCH")) as folder:
        path, X, rng = Path(folder) / "rows.npy", sift_photos(200_000), np.random.default_rng(0)
        step = 50_000
        with write_npy_rows(path, (n, X.shape[1]), np.float32) as out:
            for start in range(0, n, step):
                some = X[start % len(X) :][: min(step, n - start)]
                out[start : start + len(some)] = some + NOISE * rng.standard_normal(
                    some.shape, dtype=np.float32
                )
        yield path


def fitted(path: Path, given: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Fit in a process of its own: its figures, the most of its anonymous memory, in MB, and its model."""
    out = path.with_name("model.safetensors")
    parameters = {"n_bits": BITS, "random_state": 0} | options
    command = [sys.executable, "-c", FIT, str(path), str(out), json.dumps(parameters), json.dumps(given)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "begin\n":
            raise SystemExit("the fit did not begin")
        before = peak = anonymous(process.pid)
        while process.poll() is None:
            peak = max(peak, anonymous(process.pid))
            time.sleep(SAMPLE_EVERY)
        if process.returncode != 0:
            raise SystemExit(f"the fit ended with {process.returncode}")
        figures = json.loads(process.stdout.read())
    return figures | {"mb": peak, "mb_before": before, "model": auxbit.load(out)}


def anonymous(pid: int) -> float:
    """RssAnon of a process in MB: memory that is no file's; 0 when it is over."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) / 1000
    except OSError:
        pass
    return 0.0


def rows(results: Results) -> str:
    """A fit to rows of 128 float32 in a mapped file, 32 bits, memory="1GB": RssAnon of the process."""
    with photo_rows(ROWS) as path:
        for h_solver in ("svm", "ridge"):
            found = fitted(path, {"memory": MEMORY}, h_solver=h_solver)
            model = found.pop("model")
            results.add(
                rows=ROWS,
                gb=path.stat().st_size / 1e9,
                h_solver=h_solver,
                scale=model.scaling_.scale,
                **found,
            )
    made = [
        (
            f"{row['rows']:,}",
            f"{row['gb']:.1f} GB",
            row["h_solver"],
            f"{row['mb']:.0f} MB",
            f"{row['mb_before']:.0f} MB",
            row["iterations"],
            row["passes"],
            f"{row['cpu_seconds']:.0f} s",
            f"{row['seconds']:.0f} s",
        )
        for row in results.rows
    ]
    head = ("rows", "file", "h step", "most memory", "of it before", "iterations", "passes", "CPU", "wall")
    return table(head, made)


def equal(results: Results) -> str:
    """In memory against out of core, 32 bits, memory="1GB": CPU seconds of a fit, bits, error of f(h(x))."""
    for n in sorted({SMALLER, ROWS}):
        if 9e-10 * n * 128 * 8 > available_gb():
            print(f"{n:,} rows do not fit in memory, and are left out", flush=True)
            continue
        with photo_rows(n) as path:
            for repeat in range(2 if n <= 2_000_000 else 1):
                sides = {"passes": fitted(path, {"memory": MEMORY}), "memory": fitted(path, {})}
                models = {name: side.pop("model") for name, side in sides.items()}
                figures = {f"{name}_{key}": side[key] for name, side in sides.items() for key in side}
                results.add(rows=n, repeat=repeat, **compared(path, **models), **figures)
    made = []
    for n in sorted({row["rows"] for row in results.rows}):
        row = results.where(rows=n)[0]
        inside, outside = (results.least(f"{side}_cpu_seconds", rows=n) for side in ("memory", "passes"))
        made.append(
            (
                f"{n:,}",
                f"{inside:.1f} s",
                f"{outside:.1f} s",
                f"{outside / inside:.2f}",
                f"{row['memory_mb']:.0f} MB",
                f"{row['passes_mb']:.0f} MB",
                f"{100 * row['equal_bits']:.3f} %",
                f"{100 * row['error_difference']:+.4f} %",
            )
        )
    head = (
        "rows",
        "CPU in memory",
        "CPU out of core",
        "ratio",
        "in memory",
        "out of core",
        "equal bits",
        "error",
    )
    return table(head, made)


def available_gb() -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) / 1e6
    return 0.0


def compared(path: Path, memory: Any, passes: Any) -> dict[str, float]:
    """The share of equal bits, and how much larger the error out of core is, on at most a million rows."""
    X = np.load(path, mmap_mode="r")
    X = X[:: -(-len(X) // COMPARED_ROWS)]
    same, errors = 0.0, np.zeros(2)
    for start in range(0, len(X), 50_000):
        some = np.array(X[start : start + 50_000])
        same += (memory.transform(some) == passes.transform(some)).sum()
        errors += len(some) * np.array([memory.score(some), passes.score(some)])
    return {"equal_bits": same / (len(X) * BITS), "error_difference": float(errors[1] / errors[0] - 1)}


def ridge(results: Results) -> str:
    """Least squares to ±1 instead of SVMs, out of core, 32 bits; error is that of f(h(x)) on the rows."""
    with photo_rows(SMALLER) as path:
        some = np.load(path, mmap_mode="r")[:: max(1, SMALLER // 100_000)]
        for h_solver in ("svm", "ridge"):
            found = fitted(path, {"memory": MEMORY}, h_solver=h_solver)
            error = -found.pop("model").score(np.array(some))
            results.add(rows=SMALLER, h_solver=h_solver, error=error, **found)
    made = [
        (
            row["h_solver"],
            row["iterations"],
            row["passes"],
            f"{row['cpu_seconds']:.1f} s",
            f"{row['error']:.0f}",
            f"{row['precision']:.4f}",
        )
        for row in results.rows
    ]
    return table(("h step", "iterations", "passes", "CPU", "squared error a row", "precision"), made)


def passes(results: Results) -> str:
    """CPU and wall time of one pass of each kind over rows of 128 float32 in a mapped file, 32 bits."""
    rng = np.random.default_rng(0)
    with photo_rows(SMALLER) as path, Workers() as workers:
        rows_ = FileTable(np.load(path, mmap_mode="r"), Budget.parse(MEMORY), workers)
        scaling = rows_.measure(False, None)
        made = rows_.rows(scaling, None, BITS, None, 0)
        queries = scaling.apply(rows_.take(np.arange(1000)))
        made.truth = made.nearest(queries, neighbours_to_find(made.n_rows))
        W = np.vstack([rng.standard_normal((128, BITS)), np.zeros((1, BITS))])
        made.begin(W)
        P, bits, sizes = W / 10, np.arange(BITS), np.ones((4, BITS))
        h = LinearEncoder(W[:-1].astype(np.float32), W[-1].astype(np.float32))
        f, z = fitted_decoder(made, h), ZOptions.resolve(BITS, "auto", "best", 1, None)
        judged = pack_bools(queries @ W[:-1] >= 0)
        kinds: dict[str, Callable[[], Any]] = {
            "mean and range": lambda: rows_.measure(False, None),
            "XᵀX": made.moments,
            "neighbours of 1,000 queries": lambda: made.nearest(queries, 100),
            "first codes and their sums": lambda: made.begin(W),
            "along the SVMs' step, 4 sizes": lambda: made._sums(passes_of.along_step, W, P, bits, sizes),
            "SVMs' gradient": lambda: made._sums(passes_of.slack_sums, W),
            "SVMs' Hessian times a step": lambda: made.hessian_product(P, bits),
            "Z step, without queries": lambda: made.z_pass(h, f, 0.01, z, None),
            "Z step, judged by 1,000 queries": lambda: made.z_pass(h, f, 0.01, z, judged),
            "sums of h(x), for the decoder": lambda: made.hash_sums(h),
        }
        for kind, read in kinds.items():
            for _ in range(3):
                wall, cpu = time.perf_counter(), time.process_time()
                read()
                results.add(
                    kind=kind,
                    rows=SMALLER,
                    seconds=time.perf_counter() - wall,
                    cpu_seconds=time.process_time() - cpu,
                )
    million = 1e6 / SMALLER
    lines = [
        (
            kind,
            f"{million * results.least('cpu_seconds', kind=kind):.2f} s",
            f"{million * results.least('seconds', kind=kind):.2f} s",
        )
        for kind in kinds
    ]
    return table(("pass", "CPU a million rows", "wall"), lines)


HELD, TURNS_ON_ALL = 10_000, 2
DECODERS = ((32, "tables"), (64, "tables"), (64, "linear"))


def decoder(results: Results) -> str:
    """Squared error of optimal codes on 10,000 rows held out, by the rows of sift_photos that the decoder was
    fitted to; then after two more turns of codes and tables on all 190,000.
    """
    # of codes without bits for errors, which some fits choose to have, and others not
    decoders.ERROR_BITS = 8
    X = np.load(data_folder() / "sift_photos" / "base.npy")
    order = np.random.RandomState(7).permutation(len(X))
    held, rest = X[order[:HELD]], order[HELD:]
    for bits, kind in DECODERS:
        model = auxbit.ITQ(bits, random_state=0).fit(X[np.sort(rest)])
        start = model.decoder_
        for n in (20_000, 50_000, 100_000, len(rest)):
            model.decoder_, cpu = start, time.process_time()
            model.fit_decoder(X[np.sort(rest[:n])], kind)
            cpu = time.process_time() - cpu
            error = model._error_of(held, model.encode(held, coding="optimal"))
            turned = (
                after_turns(model, X[np.sort(rest)], held) if n < len(rest) and kind == "tables" else None
            )
            results.add(bits=bits, kind=kind, rows=n, cpu_seconds=cpu, error=error, turned=turned)
    head = ("decoder", "bits", "rows", "CPU", "error on rows held out", "after two turns on all rows")
    return table(head, [
        (row["kind"], row["bits"], f"{row['rows']:,}", f"{row['cpu_seconds']:.0f} s", f"{row['error']:.0f}",
         "" if row["turned"] is None else f"{row['turned']:.0f}")
        for row in results.rows
    ])  # fmt: skip


def after_turns(model: Any, X: Any, held: Any) -> float:
    """The error on rows held out after turns of codes and tables, without error bits, on all rows."""
    f = model.decoder_.in_scale_of(model.scaling_)
    f = replace(f, errors=None)
    with Workers() as workers:
        rows, new = model.scaling_.apply_all(X, workers), model.scaling_.apply_all(held, workers)
        codes = np.zeros((len(rows), len(f.tables)), dtype=np.uint8)
        for _ in range(TURNS_ON_ALL):
            codes = optimal_codes(rows, codes, codes, coder_of(f, 0.0, TABLES_EFFORT), workers)
            f = table_step(rows, codes, f, SHRINK, workers)
        codes = optimal_codes(new, codes[: len(new)] * 0, codes[: len(new)] * 0, coder_of(f, 0.0), workers)
    return float(np.square(new - f.decode(codes)).sum(axis=1).mean() * model.scaling_.scale**2)


def fitted_decoder(made: Any, h: Any) -> Any:
    """The decoder of the codes of h."""
    from auxbit.mac.loop import f_step

    return f_step(made.hash_sums(h))


if __name__ == "__main__":
    run("large", {"rows": rows, "equal": equal, "ridge": ridge, "passes": passes, "decoder": decoder})
