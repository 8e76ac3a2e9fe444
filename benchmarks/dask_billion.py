"""A billion rows on a hundred machines, worked out from what a pass costs a row, and a round a task."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from auxbit import BinaryAutoencoder
from auxbit.core.maps import LinearDecoder, Scaling, pack_bools
from auxbit.core.parallel import Workers
from auxbit.evaluate import nearest_scaled
from auxbit.mac import rows as shard
from auxbit.mac.cluster import FAN_IN, SHARD_BYTES, Shards
from auxbit.mac.rows import ScaledRows
from auxbit.mac.z_step import ZOptions
from dask_cluster_parts import cluster, nothing, rows_in_file
from record import Results, table

ROWS, DIMENSIONS, BITS, QUERIES = 10**9, 128, 32, 1000
MACHINES, THREADS = 100, 8
ITERATIONS = 20
LOOKS = 4  # passes of an h step: a line search at 0 and three sizes
MEASURED = 100_000
REPEATS = 3
NETWORK = 125e6  # bytes a second that a machine reads from storage: a link of 1 Gbit/s
PRICE = 0.40  # dollars per machine and hour


def least_seconds(function: Callable[[], Any]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def seconds_a_row() -> dict[str, float]:
    """Of each kind of pass, on one thread."""
    with rows_in_file(MEASURED) as (X, _), Workers(1) as workers:
        scaling = Scaling.measure(X, workers)
        rows = ScaledRows(X, scaling, np.arange(QUERIES))
        model = BinaryAutoencoder(BITS, random_state=0, max_iter=3, n_jobs=1).fit(X[:20_000])
        h, f = model.encoder_, model.decoder_.in_scale_of(model.scaling_)
        assert isinstance(f, LinearDecoder)
        W = np.vstack([h.weights, h.bias]).astype(np.float64)
        codes, out = (shard.empty_codes(len(rows), BITS) for _ in range(2))
        shard.begin(rows, None, W, codes, None, workers)
        queries = scaling.apply(X[:QUERIES])
        truth = nearest_scaled(rows, queries, 100, workers)[1]
        judges = shard.Judges.of(pack_bools(h(queries)), BITS, truth, 0, len(rows))
        task = shard.ZTask(W, f, model.history_[-1].mu, ZOptions.resolve(BITS, "auto", "best", 1, None))
        bits, sizes = np.arange(BITS), np.ones((1, BITS))
        kinds: dict[str, Callable[[], Any]] = {
            "along": lambda: shard.along_step(rows, codes, shard.Line(W, bits, bits), W, sizes, workers),
            "z": lambda: shard.z_pass(rows, codes, task, out, judges, workers),
            "nearest": lambda: nearest_scaled(rows, queries, 100, workers),
            "moments": lambda: shard.moments(rows, workers),
        }
        return {name: least_seconds(kind) / len(rows) for name, kind in kinds.items()}


def seconds_a_task(n: int = 256) -> float:
    """What a shard adds to a round in which nothing is computed."""
    with cluster(2) as client:
        shards = Shards(client, list(range(n + 1)))
        shards.keep(shards.each(lambda i, where: shards.submit(np.zeros, 8, **where)))

        def round_of_nothing() -> None:
            given = shards.hold(0.0)
            shards.total(shards.each(lambda i, where: shards.submit(nothing, shards.rows[i], given, **where)))

        return least_seconds(round_of_nothing) / n


def billion(results: Results) -> str:
    """A billion rows of 128 bytes, 32 bits, 100 machines of 8 threads, from costs measured on two cores."""
    row, task = seconds_a_row(), seconds_a_task()
    rows_a_thread = ROWS / MACHINES / THREADS
    n_shards = -(-ROWS * DIMENSIONS // SHARD_BYTES)
    z_sums = 8 * (2 * DIMENSIONS * BITS + BITS**2 + 7 * BITS + 2 * QUERIES * (BITS + 1))
    parameters = 8 * 2 * (DIMENSIONS + 1) * BITS
    through_client = 2 * FAN_IN * z_sums  # workers to scheduler, scheduler to client
    between_workers = n_shards * z_sums * FAN_IN / (FAN_IN - 1) + LOOKS * MACHINES * parameters
    passes = {
        "an evaluation along the h step": (row["along"], LOOKS * ITERATIONS),
        "the Z step": (row["z"], ITERATIONS),
        "true neighbours of the queries": (row["nearest"], 1),
        "mean, products, first codes": (3 * row["moments"], 1),
    }
    lines, total = [], 0.0
    for name, (seconds, times) in passes.items():
        compute, wait = rows_a_thread * seconds, n_shards * task
        total += times * (compute + wait)
        lines.append((name, f"{1e6 * seconds:.2f} µs", f"{compute:.1f} s", f"{wait:.1f} s", times))
    load = ROWS * DIMENSIONS / MACHINES / NETWORK
    total += load
    hours = total / 3600 * MACHINES
    memory = ROWS * (DIMENSIONS + 2 * BITS / 8) / MACHINES
    results.add(
        row=row, task=task, shards=n_shards, z_sums=z_sums, through_client=through_client,
        between_workers=between_workers, load=load, total=total, memory=memory,
        cost=hours * PRICE,
    )  # fmt: skip
    made = table(("pass", "per row, one thread", "computing", "tasks", "times"), lines)
    return (
        f"{made}\n\n"
        f"{n_shards} shards. To read the rows: {load:.0f} s. Memory: {memory / 1e9:.1f} GB per machine. "
        f"An iteration sends {between_workers / 1e6:.0f} MB between workers "
        f"({between_workers / MACHINES / 1e6:.1f} MB per machine) and {through_client / 1e6:.0f} MB through "
        f"scheduler and client. {ITERATIONS} iterations: {total / 60:.0f} minutes, "
        f"{hours:.0f} machine-hours, ${hours * PRICE:.0f} at ${PRICE:.2f} each."
    )
