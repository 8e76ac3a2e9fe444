"""Rows on a Dask cluster, in shards: rows and codes stay with the workers; W, f and sums travel.

Whatever lies on a worker is the result of a task, so what a lost worker had, Dask computes again: rows from
where they came, codes by all Z steps so far. Each worker has one task at a time, which uses all its threads:
a task that waits might be given to an idle worker, and its rows would travel.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import numpy as np

from auxbit.core.checks import (
    Array,
    Float32,
    Float64,
    Ids,
    Packed,
    check_numbers,
    first_unusable,
    refuse_number,
    require,
)
from auxbit.core.features import OwnFeatures
from auxbit.core.maps import Extent, Features, Scaling, largest_norm, query_words, width_of
from auxbit.core.parallel import BLOCK_ROWS, Workers, block_slices, is_dask_array, whole_rows
from auxbit.data.vectors import open_rows, take_rows
from auxbit.errors import AuxbitError, ClusterProblem, DataFileError, InvalidInput, InvalidParameter
from auxbit.evaluate import nearest_scaled
from auxbit.mac import rows as shard
from auxbit.mac.rows import Judges, ScaledRows, StreamedRows, neighbours_among, places_of
from auxbit.mac.steps import Sums

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
                        f"the cluster has had no workers for {PATIENCE} s. Start some: `dask worker …`."
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
            f"workers died repeatedly while they computed {error.task}, most often for lack of memory. Start "
            "them with more memory, or use smaller chunks."
        ) from error
    except Exception as error:
        gone = client.status != "running" or isinstance(error, CancelledError | distributed.CancelledError)
        if isinstance(error, AuxbitError) or not gone:
            raise
        raise ClusterProblem(
            f"the scheduler of the cluster or its client was closed during the fit ({error}). Fit again."
        ) from error


# ---- Rows as `Steps` sees them

Near = tuple[Ids, Ids] | None  # rows of a shard, rising, and the queries whose neighbours they are
State = tuple[Packed, Sums | None]  # the codes of a shard, and the sums of the pass that made them


@dataclass(frozen=True)
class Setting:
    """What all passes of a fit have in common. held_out : rising numbers of rows that are left out."""

    scaling: Scaling
    held_out: Ids
    n_bits: int
    features: Features | None = None

    def rows(self, raw: Array, first: int) -> ScaledRows:
        """A shard as MAC sees it. raw : rows of the table from `first` on."""
        low, high = np.searchsorted(self.held_out, (first, first + len(raw)))
        return ScaledRows(np.asarray(raw), self.scaling, self.held_out[low:high] - first, self.features)

    def kept_before(self, first: int) -> int:
        """How many rows are before this one, without those that are left out."""
        return first - int(np.searchsorted(self.held_out, first))

    def judges(self, codes: Packed, near: tuple[Ids, Ids]) -> Judges:
        """Queries of these codes, (q, M), and the neighbours they have in a shard."""
        return Judges(query_words(codes, self.n_bits), *near)


class ClusterRows(StreamedRows):
    """Rows in shards on workers, with their codes there."""

    def __init__(self, shards: Shards, setting: Setting) -> None:
        n_decoded = len(setting.scaling.mean)
        n_features = n_decoded + width_of(setting.features)
        super().__init__(shards.starts[-1] - len(setting.held_out), n_features, n_decoded, setting.n_bits)
        self._shards, self._setting, self._held_out = shards, shards.hold(setting), setting.held_out
        self._states: list[Future] = [None] * len(shards)
        self._neighbours: list[Future] | None = None  # what each shard has to know of the truth

    def fill(self, codes_of: Any) -> None:
        shards = self._shards

        def unit(i: int, where: dict[str, Any]) -> Future:
            start, stop = shards.starts[i : i + 2]
            part = shards.hold(codes_of.part(start, stop))
            return shards.submit(_fill, shards.rows[i], self._setting, part, start, **where)

        self.n_passes += 1
        self._states = shards.each(unit)

    def _kept_codes(self) -> list[Future]:
        return list(self._states)

    def _take_codes(self, codes: list[Future]) -> None:
        self._states = list(codes)

    def places(self, rows: Ids) -> Ids:
        return places_of(rows, self._held_out)

    def nearest(self, queries: Float32, k: int) -> Ids:
        shards, asked = self._shards, self._shards.hold(queries)

        def unit(i: int, where: dict[str, Any]) -> Future:
            return shards.submit(_nearest, shards.rows[i], self._setting, asked, k, shards.starts[i], **where)

        self.n_passes += 1
        found: tuple[Float64, Ids] = shards.total(shards.each(unit), _merge_nearest)
        return found[1]

    def sample(self) -> None:
        """No sample: rows are in memory, and evaluating them again is quicker than fetching codes of some."""

    def _sums(self, function: Any, *arguments: Any, coded: bool = True, judged: Any = None) -> Sums:
        shards, given = self._shards, self._shards.hold((arguments, judged))

        def unit(i: int, where: dict[str, Any]) -> Future:
            state, near = self._states[i] if coded else None, self._near(i) if judged is not None else None
            parts = (shards.rows[i], state, self._setting, given, near, shards.starts[i])
            return shards.submit(_pass, function, *parts, **where)

        self.n_passes += 1
        sums: Sums = shards.total(shards.each(unit))
        return sums

    def _new_codes(self, function: Any, argument: Any, judged: Any = None) -> Sums:
        shards, given = self._shards, self._shards.hold((argument, judged))
        states: list[Future] = [None] * len(shards)

        def unit(i: int, where: dict[str, Any]) -> Future:
            near = self._near(i) if judged is not None else None
            parts = (shards.rows[i], self._states[i], self._setting, given, near, shards.starts[i])
            states[i] = shards.submit(_code_pass, function, *parts, **where)
            return shards.submit(_sums_of, states[i], **where)

        self.n_passes += 1
        sums: Sums = shards.total(shards.each(unit))
        self._states = states
        return sums

    def _near(self, shard: int) -> Future:
        """The true neighbours of validation queries in a shard, which stay with it."""
        if self._neighbours is None:
            shards, whole = self._shards, self._shards.hold(self.truth)

            def unit(i: int, where: dict[str, Any]) -> Future:
                return shards.submit(
                    _neighbours, shards.rows[i], self._setting, whole, shards.starts[i], **where
                )

            self._neighbours = shards.each(unit)
        return self._neighbours[shard]


# ---- What workers do: raw are the rows of a shard, the first of which is row `first` of the table, and near
# those of them that are true neighbours of queries


def _pass(
    function: Any, raw: Array, state: State | None, setting: Setting, given: Any, near: Near, first: int
) -> Sums | None:
    X, (arguments, judged) = setting.rows(raw, first), given
    if not len(X):
        return None
    codes = () if state is None else (state[0],)
    judges = () if near is None else (setting.judges(judged, near),)
    with threads_of_worker() as workers:
        sums: Sums = function(X, *codes, *arguments, *judges, workers)
    return sums


def _code_pass(
    function: Any, raw: Array, state: State | None, setting: Setting, given: Any, near: Near, first: int
) -> State:
    X, (argument, judged) = setting.rows(raw, first), given
    codes = shard.empty_codes(len(X), setting.n_bits)
    if not len(X):
        return codes, None
    old, judges = None if state is None else state[0], None if near is None else setting.judges(judged, near)
    with threads_of_worker() as workers:
        return codes, function(X, old, argument, codes, judges, workers)


def _neighbours(raw: Array, setting: Setting, truth: Ids, first: int) -> Near:
    start = setting.kept_before(first)
    return neighbours_among(truth, start, start + len(setting.rows(raw, first)))


def _sums_of(state: State) -> Sums | None:
    return state[1]


def _fill(raw: Array, setting: Setting, codes_of: Any, first: int) -> State:
    X = setting.rows(raw, first)
    codes = shard.empty_codes(len(X), setting.n_bits)
    for rows in block_slices(len(X)):
        codes[rows] = codes_of(X.raw(rows), first + X.places(np.arange(rows.start, rows.stop)))
    return codes, None


def _nearest(raw: Array, setting: Setting, queries: Float32, k: int, first: int) -> tuple[Float64, Ids]:
    X = setting.rows(raw, first).without_features()
    with threads_of_worker() as workers:
        distances, rows = nearest_scaled(X, queries, k, workers)
    return distances, rows + setting.kept_before(first)


def _merge_nearest(parts: list[tuple[Float64, Ids]]) -> tuple[Float64, Ids]:
    """The k nearest of what shards found, by (distance, row): a stable sort keeps the order of rows."""
    distances, rows = (np.hstack(each) for each in zip(*parts, strict=True))
    nearest = np.argsort(distances, axis=1, kind="stable")[:, : parts[0][0].shape[1]]
    return np.take_along_axis(distances, nearest, axis=1), np.take_along_axis(rows, nearest, axis=1)


# ---- Where the rows come from: the chunks of a dask array, or parts of a file that workers read

Found = tuple[Extent | None, tuple[int, int, float] | None]

SHARD_BYTES = 256 * 2**20  # of a file that one task reads
CONNECTED_WITHIN = 10  # seconds
LEAST_SHARDS = 16  # where the rows are enough for as many blocks


def cluster_table(X: Any, client: Any) -> ClusterTable:
    """The rows of a dask array, or of a file by its path, on the workers of `client`, or the default one."""
    client = _checked(client)
    if is_dask_array(X):
        return ClusterTable(client, array=whole_rows(X))
    if isinstance(X, str | os.PathLike):
        return ClusterTable(client, path=os.path.abspath(os.fspath(X)))
    if type(X).__module__.startswith("dask"):
        raise InvalidInput("X must be a dask array: X.to_dask_array(lengths=True) makes one of a dataframe.")
    raise InvalidInput(
        f"with a client, X must be a dask array or a path that the workers can read, not {type(X).__name__}. "
        "Make one by dask.array.from_array(X, chunks=(100_000, -1)); or leave out the client, as rows that "
        "are in memory do not need one."
    )


def client_at(address: str) -> Any:
    """A client of the scheduler at `address`; closing it leaves the cluster as it is."""
    distributed = require("distributed", extra="dask", purpose="training on a cluster")
    try:
        return distributed.Client(address, timeout=CONNECTED_WITHIN)
    except (OSError, ValueError) as error:  # TimeoutError is an OSError
        raise ClusterProblem(
            f"no Dask scheduler responds at {address}: {error}. Start one by `dask scheduler`, which prints "
            "its address, as tcp://host:8786."
        ) from error


class ClusterTable:
    """Rows on a cluster: the chunks of `array`, or parts of the file at `path`."""

    def __init__(self, client: Any, *, array: Any = None, path: str | None = None) -> None:
        self._client, self._array, self._path = client, array, path
        self._shards: Shards | None = None
        if array is not None:
            self.shape, self._dtype = _rows_and_columns(array), array.dtype
        else:
            with cluster_errors(client):
                self.shape, self._dtype = client.submit(_describe, path, pure=False).result()

    def about(self) -> dict[str, Any]:
        return {"rows": self.shape[0], "columns": self.shape[1], "type": str(self._dtype)}

    def measure(self, held_out: Ids | None, *, normalize: bool, lift: bool) -> Scaling:
        shards, longest = self._loaded(held_out), 0.0

        def norm(i: int, where: dict[str, Any]) -> Future:
            return shards.submit(_largest_norm, shards.rows[i], **where)

        def unit(i: int, where: dict[str, Any]) -> Future:
            return shards.submit(_extent, shards.rows[i], normalize, longest, shards.starts[i], **where)

        if lift:
            longest = shards.total(shards.each(norm), max) or 1.0
        extent, unusable = shards.total(shards.each(unit), _join_extents)
        if unusable is not None:
            refuse_number(*unusable)
        scaling: Scaling = extent.scaling(normalize, longest)
        return scaling

    def take(self, rows: Ids) -> Array:
        shards = self._loaded(None)
        ends = np.searchsorted(rows, shards.starts)
        wanted = [(i, rows[a:b] - shards.starts[i]) for i, (a, b) in enumerate(pairwise(ends)) if b > a]
        parts = shards.gather([shards.submit(_take, shards.rows[i], some) for i, some in wanted])
        return np.concatenate(parts) if parts else np.empty((0, self.shape[1]), dtype=self._dtype)

    def rows(
        self, scaling: Scaling, held_out: Ids | None, n_bits: int, folder: Path | None, present: int,
        features: Features | None = None,
    ) -> ClusterRows:  # fmt: skip
        left_out = np.zeros(0, dtype=np.int64) if held_out is None else np.asarray(held_out)
        _check_travels(features)
        return ClusterRows(self._loaded(held_out), Setting(scaling, left_out, n_bits, features))

    def _loaded(self, held_out: Ids | None) -> Shards:
        """The shards, with their rows on workers."""
        if self._shards is None:
            left_out = np.zeros(0, dtype=np.int64) if held_out is None else held_out
            self._shards = self._from_file(left_out) if self._array is None else self._from_chunks(left_out)
        return self._shards

    def _from_file(self, left_out: Ids) -> Shards:
        n, width = self.shape
        n_shards = max(LEAST_SHARDS, -(-n * width * self._dtype.itemsize // SHARD_BYTES))
        rows = BLOCK_ROWS * max(1, round((n - len(left_out)) / n_shards / BLOCK_ROWS))
        starts = _starts(np.arange(0, n - len(left_out), rows), n, left_out)
        shards, about = Shards(self._client, starts), (self.shape, self._dtype)

        def read(i: int, where: dict[str, Any]) -> Future:
            return shards.submit(_read, self._path, starts[i : i + 2], about, retries=2, **where)

        shards.keep(shards.each(read))
        return shards

    def _from_chunks(self, left_out: Ids) -> Shards:
        """A shard is a chunk, but begins and ends with a whole block: a few rows go to a neighbour."""
        chunks = Shards(self._client, [0, *np.cumsum(self._array.chunks[0]).tolist()])
        chunks.keep(self._client.compute(self._array.to_delayed().ravel().tolist()))
        kept = np.array([start - np.searchsorted(left_out, start) for start in chunks.starts])
        whole = np.unique((kept[:-1] + BLOCK_ROWS // 2) // BLOCK_ROWS * BLOCK_ROWS)
        starts = _starts(whole[whole < kept[-1]], self.shape[0], left_out)
        pieces = [_pieces(chunks.starts, *part) for part in pairwise(starts)]
        largest = [max(some, key=lambda piece: piece.stop - piece.start).chunk for some in pieces]
        shards = Shards(self._client, starts, [chunks.homes[chunk] for chunk in largest])

        def lay_out(i: int, where: dict[str, Any]) -> Future:
            own, size = largest[i], chunks.starts[largest[i] + 1] - chunks.starts[largest[i]]
            if pieces[i] == [Piece(own, 0, size)]:
                return chunks.rows[own]
            # pieces of other chunks are cut where those are, so that no more than they travel
            parts = [
                chunks.rows[own]
                if piece.chunk == own
                else chunks.submit(_cut, chunks.rows[piece.chunk], piece)
                for piece in pieces[i]
            ]
            return shards.submit(_join, parts, [p if p.chunk == own else None for p in pieces[i]], **where)

        shards.keep(shards.each(lay_out))
        return shards


@dataclass(frozen=True)
class Piece:
    """Rows start..stop of a chunk."""

    chunk: int
    start: int
    stop: int


def _pieces(starts: list[int], first: int, last: int) -> list[Piece]:
    """The rows first..last of a table whose chunks begin at `starts`."""
    return [
        Piece(i, max(first - start, 0), min(last, stop) - start)
        for i, (start, stop) in enumerate(pairwise(starts))
        if max(first, start) < min(last, stop)
    ]


def _starts(whole: Ids, n: int, left_out: Ids) -> list[int]:
    """Where shards begin, and n. whole : their first rows, numbered without those that are left out.

    If those are multiples of a block, blocks and sums are those of a fit on one machine.
    """
    return [0, *places_of(whole[whole > 0], left_out).tolist(), n]


def _checked(client: Any) -> Any:
    distributed = require("distributed", extra="dask", purpose="training on a cluster")
    if client is None:
        try:
            client = distributed.get_client()
        except ValueError as error:
            raise InvalidInput(
                "a dask array is fitted by the workers of a dask.distributed.Client, and there is none. "
                "Make one first: client = Client() starts workers here, Client(address) uses a cluster."
            ) from error
    if not isinstance(client, distributed.Client):
        raise InvalidParameter("client", client, "a dask.distributed.Client", "Client() starts workers here.")
    if client.asynchronous:
        raise InvalidInput("client is asynchronous, and fit waits for results. Use one that is not.")
    return client


def _rows_and_columns(array: Any) -> tuple[int, int]:
    if any(np.isnan(size) for size in array.shape):
        raise InvalidInput("X does not know how many rows it has. Call X.compute_chunk_sizes() first.")
    if 0 in array.shape:
        raise InvalidInput(f"X must have rows and columns, (n, D); got shape {array.shape}.")
    return int(array.shape[0]), int(array.shape[1])


def _check_travels(features: Features | None) -> None:
    """Refuse an object of the user's that cannot be sent to workers."""
    if not isinstance(features, OwnFeatures):
        return
    try:
        require("cloudpickle", extra="dask", purpose="training on a cluster").dumps(features)
    except Exception as error:  # whatever an object raises
        raise InvalidInput(
            f"encoder, a {type(features.map).__name__}, cannot be sent to the workers of a cluster: {error}. "
            "Fit without a client, or use encoder='rbf'."
        ) from error


# ---- what workers do


def _describe(path: str) -> tuple[tuple[int, int], np.dtype[Any]]:
    source = open_rows(path)
    return (len(source), int(source.shape[1])), source.dtype


def _read(path: str, part: list[int], about: Any) -> Array:
    source = open_rows(path)
    found = (len(source), int(source.shape[1])), source.dtype
    if found != about:
        raise DataFileError(f"{path} was {about[0]} of {about[1]}, but is now {found[0]} of {found[1]}.")
    return np.array(source[slice(*part)])  # in memory, not mapped: a pass shall not wait for a disk


def _cut(raw: Array, piece: Piece) -> Array:
    return np.array(raw[piece.start : piece.stop])


def _join(parts: list[Array], cuts: list[Piece | None]) -> Array:
    return np.concatenate([
        np.asarray(part if cut is None else part[cut.start : cut.stop]) for part, cut in zip(parts, cuts)
    ])  # fmt: skip


def _take(raw: Array, rows: Ids) -> Array:
    return take_rows(np.asarray(raw), rows)


def _largest_norm(raw: Array) -> float:
    rows = np.asarray(raw)
    check_numbers(rows)
    with threads_of_worker() as workers:
        return largest_norm(rows, workers)


def _extent(raw: Array, normalize: bool, lift: float, first: int) -> Found:
    """The extent of a shard, and the first number in it that cannot be used."""
    rows = np.asarray(raw)
    if not len(rows):
        return None, None
    check_numbers(rows)
    with threads_of_worker() as workers:
        unusable = first_unusable(rows, workers) if normalize else None
        extent = Extent.of(rows, workers, normalize, lift)
        if unusable is None and not extent.is_usable:
            unusable = first_unusable(rows, workers)
    return extent, None if unusable is None else (first + unusable[0], *unusable[1:])


def _join_extents(parts: list[Found]) -> Found:
    total: Extent | None = None
    for extent, _ in parts:
        if extent is not None:
            total = extent if total is None else total + extent
    return total, next((unusable for _, unusable in parts if unusable is not None), None)
