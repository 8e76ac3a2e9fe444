"""Shards of rows on the workers of a Dask cluster: where each lives, work on all of them, and its sums.

Whatever lies on a worker is the result of a task, so what a lost worker had, Dask computes again: rows from
where they came, codes by all Z steps so far. Each worker has one task at a time, which uses all its threads:
a task that waits might be given to an idle worker, and its rows would travel.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from itertools import count
from typing import Any, Protocol
from uuid import uuid4

import numpy as np

from auxbit.blocks import Workers
from auxbit.errors import AuxbitError, ClusterProblem
from auxbit.extras import require
from auxbit.mac.shard import Sums

FAN_IN = 8  # sums that one task adds up
PATIENCE = 60  # seconds that a cluster without workers is waited for
LARGEST_CARRIED = "16GB"  # what a task carries is sent on purpose, and Dask need not warn

Future = Any


class Unit(Protocol):
    """Submits the work on shard i; returns the future that is done when all of it is."""

    def __call__(self, i: int, where: dict[str, Any]) -> Future:
        """As `where` goes to `Shards.submit`, it is done on the worker of the shard."""


class Shards:
    """Rows in shards. starts : (m+1,) the first row of each, and how many rows there are.

    homes : the address of each one's worker; without, they are spread over the workers.
    """

    def __init__(self, client: Any, starts: list[int], homes: list[str] | None = None) -> None:
        self._dask = require("distributed", extra="dask", purpose="training on a cluster")
        self.client, self.starts = client, starts
        self.rows: list[Future] = []
        self._names, self._number = f"auxbit-{uuid4().hex[:12]}", count()
        self._workers = self._present()
        self.homes = homes or _spread(self._workers, len(starts) - 1)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def keep(self, rows: list[Future]) -> None:
        """Let these be the rows of the shards, from now on."""
        self.rows = rows
        self._find_homes()

    def submit(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Future:
        """Run a function on some worker."""
        name = getattr(function, "__name__", "task").strip("_")
        key = f"{self._names}-{name}-{next(self._number)}"
        with cluster_errors(self.client):
            return self.client.submit(function, *arguments, key=key, pure=False, **options)

    def hold(self, value: Any) -> Future:
        """A future of `value` for many tasks, made by a task that carries it: it can be made again."""
        config = require("dask", extra="dask", purpose="training on a cluster").config
        with config.set({"distributed.admin.large-graph-warning-threshold": LARGEST_CARRIED}):
            return self.submit(_itself, value)

    def each(self, unit: Unit) -> list[Future]:
        """Work on every shard, on its own worker, one at a time there; returns what `unit` returned."""
        self._look_for_losses()
        waiting: dict[str, deque[int]] = defaultdict(deque)
        for i, home in enumerate(self.homes):
            waiting[home].append(i)
        futures: list[Future] = [None] * len(self)
        owners: dict[Any, str] = {}
        running = self._dask.as_completed()

        def begin_next(home: str) -> None:
            if waiting[home]:
                i = waiting[home].popleft()
                # a worker that is lost meanwhile is not waited for
                futures[i] = unit(i, {"workers": [home], "allow_other_workers": True})
                owners[futures[i].key] = home
                running.add(futures[i])

        with cluster_errors(self.client):
            for home in list(waiting):
                begin_next(home)
            for done in running:
                if done.status != "finished":
                    done.result()  # raises
                begin_next(owners[done.key])
        return futures

    def total(self, parts: list[Future], join: Callable[[list[Any]], Any] | None = None) -> Any:
        """The sum of what these futures hold, added in their order, the last few here, the others there."""
        join = join or add_sums
        while len(parts) > FAN_IN:
            groups = [parts[first : first + FAN_IN] for first in range(0, len(parts), FAN_IN)]
            parts = [self.submit(join, group) for group in groups]
        return join(self.gather(parts))

    def gather(self, futures: list[Future]) -> list[Any]:
        """What these futures hold, here."""
        with cluster_errors(self.client):
            return list(self.client.gather(futures))

    # ---- where shards are

    def _present(self) -> dict[str, int]:
        """The workers, and how many threads each has."""
        with cluster_errors(self.client):
            workers: dict[str, int] = self.client.nthreads()
            if not workers:
                try:
                    self.client.wait_for_workers(1, timeout=PATIENCE)
                except TimeoutError as error:
                    raise ClusterProblem(
                        f"The cluster has had no workers for {PATIENCE} s. Start some: `dask worker …`."
                    ) from error
                workers = self.client.nthreads()
        return workers

    def _look_for_losses(self) -> None:
        workers = self._present()
        if workers.keys() != self._workers.keys():
            self._workers = workers
            self._find_homes()

    def _find_homes(self) -> None:
        """Where rows are; those of lost workers are waited for until they are somewhere again."""
        if not self.rows:
            self.homes = _spread(self._workers, len(self))
            return
        with cluster_errors(self.client):
            self._dask.wait(self.rows)
            holders = self.client.who_has(self.rows)
        load: Counter[str] = Counter()
        for i, future in enumerate(self.rows):
            held = list(holders.get(future.key, ())) or list(self._workers)
            self.homes[i] = self.homes[i] if self.homes[i] in held else min(held, key=lambda a: load[a])
            load[self.homes[i]] += 1


def _spread(workers: dict[str, int], n: int) -> list[str]:
    """Neighbouring shards to one worker, as many as it has threads for."""
    ends = np.cumsum(list(workers.values())) / sum(workers.values())
    return [list(workers)[int(np.searchsorted(ends, (i + 0.5) / n))] for i in range(n)]


def _itself(value: Any) -> Any:
    return value


def add_sums(parts: list[Sums | None]) -> Sums | None:
    """Tuples of sums added in their order; None stands for a shard without rows."""
    found = [part for part in parts if part is not None]
    if not found:
        return None
    totals = [np.array(term) for term in found[0]]
    for part in found[1:]:
        for total, term in zip(totals, part, strict=True):
            total += term
    return tuple(totals)


@contextmanager
def threads_of_worker() -> Iterator[Workers]:
    """All threads of the worker that runs this task."""
    distributed = require("distributed", extra="dask", purpose="training on a cluster")
    with Workers(distributed.get_worker().state.nthreads) as workers:
        yield workers


@contextmanager
def cluster_errors(client: Any) -> Iterator[None]:
    """Say what it means where Dask gives up."""
    distributed = require("distributed", extra="dask", purpose="training on a cluster")
    try:
        yield
    except distributed.KilledWorker as error:
        raise ClusterProblem(
            f"Workers died again and again while they computed {error.task}: most often they had too little "
            "memory. Start them with more, or give smaller chunks."
        ) from error
    except Exception as error:
        gone = client.status != "running" or isinstance(error, CancelledError | distributed.CancelledError)
        if isinstance(error, AuxbitError) or not gone:
            raise
        raise ClusterProblem(
            f"The scheduler of the cluster or its client was closed in mid-fit ({error}). Fit again."
        ) from error
