"""Small clusters for tests, workers that kill themselves, and bytes counted where they are sent."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


def rows_of_clusters(n: int, D: int = 12, seed: int = 0) -> Any:
    """Rows around 30 points, (n, D) float32."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(30, D))
    return (centres[rng.integers(0, 30, n)] + 0.4 * rng.normal(size=(n, D))).astype(np.float32)


@contextmanager
def local_cluster(n_workers: int, *, processes: bool = True, threads: int = 1) -> Iterator[Any]:
    """A client of so many workers, closed with them."""
    from distributed import Client, LocalCluster

    options = {"processes": processes, "threads_per_worker": threads, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=n_workers, silence_logs=50, **options) as cluster, Client(cluster) as client:
        client.wait_for_workers(n_workers)
        yield client


# ---- run on workers


def die_in(module: str, name: str, calls: int, flag: str) -> None:
    """Let the function `module.name` kill its process at this call, in the first process that comes to it."""
    import importlib

    holder = importlib.import_module(module)
    original = getattr(holder, name)
    seen = []

    def deadly(*arguments: Any) -> Any:
        seen.append(None)
        if len(seen) == calls:
            try:
                Path(flag).touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments)

    deadly.__module__, deadly.__qualname__ = original.__module__, original.__qualname__
    setattr(holder, name, deadly)


SENT = [0]


def count_bytes() -> None:
    """Count what this process sends from now on."""
    from distributed.comm.tcp import TCP

    if hasattr(TCP.write, "original"):
        return
    original = TCP.write

    async def write(self: Any, *arguments: Any, **options: Any) -> Any:
        n = await original(self, *arguments, **options)
        SENT[0] += n
        return n

    write.original = original  # type: ignore[attr-defined]
    TCP.write = write


def bytes_sent() -> int:
    return SENT[0]


def stop_counting() -> None:
    from distributed.comm.tcp import TCP

    TCP.write = getattr(TCP.write, "original", TCP.write)
