"""Clusters to measure on, and what runs in their workers: counting bytes, dying on command."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, LocalCluster
from distributed.comm.tcp import TCP

from auxbit.mac import shard
from real_data import sift_photos

SENT = [0]


@contextmanager
def cluster(n_workers: int) -> Iterator[Client]:
    """Workers of one thread each, in processes of their own."""
    options = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "silence_logs": 50}
    with LocalCluster(n_workers=n_workers, **options) as local, Client(local) as client:
        client.wait_for_workers(n_workers)
        yield client


@contextmanager
def rows_in_file(n: int) -> Iterator[tuple[np.ndarray, Path]]:
    """SIFT descriptors of photographs, (n, 128) uint8, in memory and in a file."""
    X = sift_photos(n).astype(np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "x.npy", X)
        yield X, Path(folder) / "x.npy"


def count_sent() -> None:
    """Count every byte that this process writes to a connection of Dask's from now on."""
    if getattr(TCP.write, "counts", False):
        return
    original = TCP.write

    async def write(self: Any, *arguments: Any, **options: Any) -> Any:
        n = await original(self, *arguments, **options)
        SENT[0] += n
        return n

    write.counts = True  # type: ignore[attr-defined]
    TCP.write = write


def sent() -> int:
    """Bytes since count_sent."""
    return SENT[0]


def die_in(name: str, calls: int, flag: str) -> None:
    """Let a function of auxbit.mac.shard kill its process at this call, in the first process there."""
    original, seen = getattr(shard, name), []

    def deadly(*arguments: Any) -> Any:
        seen.append(None)
        if len(seen) == calls and not Path(flag).exists():
            Path(flag).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments)

    deadly.__module__, deadly.__qualname__ = original.__module__, original.__qualname__
    setattr(shard, name, deadly)


def nothing(rows: np.ndarray, given: float) -> tuple[np.ndarray]:
    """A shard's work that is none."""
    return (np.zeros(1),)
