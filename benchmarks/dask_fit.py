"""The figures of docs/scale.md on clusters: `python benchmarks/dask_fit.py NAME`, results in docs/results/.

same     bits and E_BA of models fitted by 1, 2 and 4 workers against the local model
wire     bytes that travel in an iteration, by the number of rows
lost     a worker killed in each step: the model, and what it costs
round    seconds of an iteration beside those of fits on this machine
tasks    what a round costs in which nothing is computed
billion  a billion rows on a hundred machines, worked out from what is measured here
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np

from auxbit import BinaryAutoencoder
from auxbit.mac.cluster import Shards
from dask_billion import billion
from dask_cluster_parts import bytes_sent, cluster, count_bytes, die_in, nothing, rows_in_file
from large import photo_rows
from real_data import sift_photos
from record import Results, run, table

ROWS = int(os.environ.get("AUXBIT_DASK_ROWS", "200000"))
WORKERS = (1, 2, 4)
BITS = (16, 32)
REPEATS = 3


def model(n_bits: int, **options: Any) -> BinaryAutoencoder:
    return BinaryAutoencoder(n_bits, **({"random_state": 0, "n_jobs": 1} | options))


def same(results: Results) -> str:
    """SIFT descriptors of photographs, uint8: models of a cluster against that of the same rows in memory."""
    with rows_in_file(ROWS) as (X, path):
        local = {n_bits: model(n_bits).fit(X) for n_bits in BITS}
        codes = {n_bits: local[n_bits].transform(X) for n_bits in BITS}
        for n_workers in WORKERS:
            with cluster(n_workers) as client:
                sources = {
                    "file": path,
                    "array, chunks of 30,001 rows": da.from_array(X, chunks=(30_001, -1)),
                }
                for n_bits in BITS:
                    for name, source in sources.items():
                        fitted = model(n_bits).fit(source, client=client)
                        results.add(
                            bits=n_bits,
                            workers=n_workers,
                            source=name,
                            rows=len(X),
                            equal=float(np.mean(fitted.transform(X) == codes[n_bits])),
                            energy=fitted.score(X) / local[n_bits].score(X) - 1,
                            iterations=(fitted.n_iter_, local[n_bits].n_iter_),
                        )
    rows = [
        (
            row["bits"],
            row["workers"],
            row["source"],
            f"{100 * row['equal']:.4f} %",
            f"{100 * row['energy']:+.4f} %",
            f"{row['iterations'][0]} and {row['iterations'][1]}",
        )
        for row in results.rows
    ]
    return table(("bits", "workers", "rows from", "bits equal", "E_BA", "iterations, there and here"), rows)


def wire(results: Results) -> str:
    """Bytes that all processes write to connections in an iteration, mean of three; 2 workers, 4 shards."""
    with cluster(2) as client:
        count_bytes()
        client.run(count_bytes)
        for n_bits in BITS:
            for n in (25_000, 50_000, 100_000, 200_000):
                seen: list[tuple[int, int]] = []

                def note(record: Any, seen: list[tuple[int, int]] = seen) -> None:
                    seen.append((bytes_sent(), sum(client.run(bytes_sent).values())))

                rows = da.from_array(sift_photos(n).astype(np.uint8), chunks=(n // 4, -1))
                options = {"max_iter": 4, "mu0": 1e-4, "mu_factor": 1.01, "patience": 9, "callback": note}
                fitted = model(n_bits, **options).fit(rows, client=client)
                client_bytes, worker_bytes = ((last - first) / 3 for first, last in zip(seen[0], seen[3]))
                results.add(
                    bits=n_bits,
                    rows=n,
                    by_client=client_bytes,
                    by_workers=worker_bytes,
                    passes=fitted.n_passes_,
                    row_bytes=n * 128,
                    code_bytes=n * n_bits // 8,
                )
    rows = [
        (
            row["bits"],
            f"{row['rows']:,}",
            f"{row['by_workers'] / 1e6:.2f} MB",
            f"{row['by_client'] / 1e6:.2f} MB",
            f"{row['code_bytes'] / 1e6:.2f} MB",
            f"{row['row_bytes'] / 1e6:.1f} MB",
        )
        for row in results.rows
    ]
    head = ("bits", "rows", "sent by workers", "by client and scheduler", "all codes would be", "all rows")
    return table(head, rows)


def lost(results: Results) -> str:
    """One of two workers killed (SIGKILL, and started again) in mid-fit, 16 bits: the model and the time."""
    share = 8  # a worker has half of the 16 shards
    cases = (("none", "", 0), ("h step, iteration 3", "along_step", 4 * share + 2))
    cases += (
        ("Z step, iteration 3", "z_pass", 2 * share + 2),
        ("Z step, iteration 6", "z_pass", 5 * share + 2),
    )
    cases += (("decoder at the end", "hash_sums", 2),)
    with rows_in_file(ROWS) as (_, path):
        weights = None
        for case, name, calls in cases:
            for _ in range(REPEATS if case == "none" else 1):
                with cluster(2) as client, tempfile.TemporaryDirectory() as folder:
                    model(16, max_iter=1).fit(path, client=client)  # kernels are loaded
                    if name:
                        client.run(die_in, "auxbit.mac.rows", name, calls, f"{folder}/died")
                    start = time.perf_counter()
                    fitted = model(16, patience=20, max_iter=8).fit(path, client=client)
                    seconds = time.perf_counter() - start
                    died = Path(f"{folder}/died").exists()
                weights = fitted.encoder_.weights if weights is None else weights
                identical = bool(np.array_equal(weights, fitted.encoder_.weights))
                results.add(case=case, seconds=seconds, died=died, identical=identical)
    whole = results.least("seconds", case="none")
    rows = [
        (
            case,
            "yes" if all(row["identical"] for row in results.where(case=case)) else "no",
            f"{results.least('seconds', case=case):.1f} s",
            f"{results.least('seconds', case=case) / whole:.2f}",
        )
        for case, _, _ in cases
    ]
    return table(("worker killed in", "identical model", "fit", "of the undisturbed"), rows)


def seconds_an_iteration(fit: Callable[[BinaryAutoencoder], Any]) -> float:
    """The mean from the first iteration, before which all is loaded, to the last, judging included."""
    ends: list[float] = []
    fit(model(32, max_iter=5, patience=20, callback=lambda record: ends.append(time.perf_counter())))
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def rounds(results: Results) -> str:
    """Seconds of an iteration, 32 bits, rows of 128 float32, the least of two fits; one thread a worker."""
    for n in (100_000, 500_000):
        with photo_rows(n) as path:
            X = np.load(path)

            def measure(where: str, fit: Callable[[BinaryAutoencoder], Any], n: int = n) -> None:
                for _ in range(2):
                    results.add(where=where, rows=n, seconds=seconds_an_iteration(fit))

            measure("here, in memory", lambda each, X=X: each.fit(X))
            measure("here, by passes", lambda each, path=path: each.fit(path))
            for n_workers in WORKERS:
                with cluster(n_workers) as client:
                    name = f"{n_workers} worker" + "s" * (n_workers > 1)
                    measure(name, lambda each, client=client, path=path: each.fit(path, client=client))
    rows = []
    for row in {(row["rows"], row["where"]): row for row in results.rows}.values():
        n, where = row["rows"], row["where"]
        local, here = (results.least("seconds", rows=n, where=w) for w in ("here, in memory", where))
        rows.append((f"{n:,}", where, f"{here:.2f} s", f"{here / local:.2f}"))
    return table(("rows", "fit", "an iteration", "of in memory"), rows)


def tasks(results: Results) -> str:
    """A round in which every shard returns a number: what tasks cost, by their number; two workers."""
    with cluster(2) as client:
        for n in (16, 64, 256, 1024):
            shards = Shards(client, list(range(n + 1)))
            shards.keep(shards.each(lambda i, where, s=shards: s.submit(np.zeros, 8, **where)))
            for _ in range(REPEATS):
                start = time.perf_counter()
                given = shards.hold(0.0)
                parts = shards.each(
                    lambda i, where, s=shards, g=given: s.submit(nothing, s.rows[i], g, **where)
                )
                shards.total(parts)
                results.add(shards=n, seconds=time.perf_counter() - start)
    rows = [
        (n, f"{1000 * (least := results.least('seconds', shards=n)):.0f} ms", f"{1000 * least / n:.2f} ms")
        for n in (16, 64, 256, 1024)
    ]
    return table(("shards", "round", "a shard"), rows)


if __name__ == "__main__":
    jobs = {"same": same, "wire": wire, "lost": lost, "round": rounds, "tasks": tasks, "billion": billion}
    run("dask_fit", jobs)
