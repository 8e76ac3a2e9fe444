"""Tables of rows on a Dask cluster: the chunks of a dask array, or parts of a file that its workers read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.blocks import BLOCK_ROWS
from auxbit.checks import check_numbers, first_unusable, refuse_number
from auxbit.dask_blocks import is_dask_array, whole_rows
from auxbit.errors import ClusterProblem, DataFileError, InvalidInput, InvalidParameter
from auxbit.extras import require
from auxbit.mac.dask_passes import DaskPasses
from auxbit.mac.dask_shards import Future, Shards, cluster_errors, threads_of_worker
from auxbit.mac.scaled_rows import places_of
from auxbit.maps import Extent, Scaling
from auxbit.row_source import open_rows, take_rows

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]
Found = tuple[Extent | None, tuple[int, int, float] | None]

SHARD_BYTES = 256 * 2**20  # of a file that one task reads
CONNECTED_WITHIN = 10  # seconds
LEAST_SHARDS = 16  # where the rows are enough for as many blocks


def dask_table(X: Any, client: Any) -> DaskTable:
    """The rows of a dask array, or of a file by its path, on the workers of `client`, or the default one."""
    client = _checked(client)
    if is_dask_array(X):
        return DaskTable(client, array=whole_rows(X))
    if isinstance(X, str | os.PathLike):
        return DaskTable(client, path=os.path.abspath(os.fspath(X)))
    if type(X).__module__.startswith("dask"):
        raise InvalidInput("X must be a dask array: X.to_dask_array(lengths=True) makes one of a dataframe.")
    raise InvalidInput(
        f"With a client, X must be a dask array or a path that the workers can read, not {type(X).__name__}. "
        "dask.array.from_array(X, chunks=(100_000, -1)) makes an array; but rows that are in memory here are "
        "fitted as well without a client."
    )


def client_at(address: str) -> Any:
    """A client of the scheduler at `address`; closing it leaves the cluster as it is."""
    distributed = require("distributed", extra="dask", purpose="training on a cluster")
    try:
        return distributed.Client(address, timeout=CONNECTED_WITHIN)
    except (OSError, ValueError) as error:  # TimeoutError is an OSError
        raise ClusterProblem(
            f"No Dask scheduler answers at {address}: {error}. `dask scheduler` starts one and prints its "
            "address, as tcp://host:8786."
        ) from error


class DaskTable:
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

    def measure(self, normalize: bool, held_out: Ids | None) -> Scaling:
        shards = self._loaded(held_out)

        def unit(i: int, where: dict[str, Any]) -> Future:
            return shards.submit(_extent, shards.rows[i], normalize, shards.starts[i], **where)

        extent, unusable = shards.total(shards.each(unit), _join_extents)
        if unusable is not None:
            refuse_number(*unusable)
        scaling: Scaling = extent.scaling(normalize)
        return scaling

    def take(self, rows: Ids) -> Array:
        shards = self._loaded(None)
        ends = np.searchsorted(rows, shards.starts)
        wanted = [(i, rows[a:b] - shards.starts[i]) for i, (a, b) in enumerate(pairwise(ends)) if b > a]
        parts = shards.gather([shards.submit(_take, shards.rows[i], some) for i, some in wanted])
        return np.concatenate(parts) if parts else np.empty((0, self.shape[1]), dtype=self._dtype)

    def passes(
        self, scaling: Scaling, held_out: Ids | None, n_bits: int, folder: Path | None, present: int
    ) -> DaskPasses:
        return DaskPasses(self._loaded(held_out), self.shape[1], scaling, held_out, n_bits)

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

    Where those are multiples of a block, blocks are those of a fit on one machine, and so are its sums.
    """
    return [0, *places_of(whole[whole > 0], left_out).tolist(), n]


def _checked(client: Any) -> Any:
    distributed = require("distributed", extra="dask", purpose="training on a cluster")
    if client is None:
        try:
            client = distributed.get_client()
        except ValueError as error:
            raise InvalidInput(
                "A dask array is fitted by the workers of a dask.distributed.Client, and there is none. "
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


# ---- what workers do


def _describe(path: str) -> tuple[tuple[int, int], np.dtype[Any]]:
    source = open_rows(path)
    return (len(source), int(source.shape[1])), source.dtype


def _read(path: str, part: list[int], about: Any) -> Array:
    source = open_rows(path)
    found = (len(source), int(source.shape[1])), source.dtype
    if found != about:
        raise DataFileError(f"{path} was {about[0]} of {about[1]}, and is {found[0]} of {found[1]} now.")
    return np.array(source[slice(*part)])  # in memory, not mapped: a pass shall not wait for a disk


def _cut(raw: Array, piece: Piece) -> Array:
    return np.array(raw[piece.start : piece.stop])


def _join(parts: list[Array], cuts: list[Piece | None]) -> Array:
    return np.concatenate([
        np.asarray(part if cut is None else part[cut.start : cut.stop]) for part, cut in zip(parts, cuts)
    ])  # fmt: skip


def _take(raw: Array, rows: Ids) -> Array:
    return take_rows(np.asarray(raw), rows)


def _extent(raw: Array, normalize: bool, first: int) -> Found:
    """The extent of a shard, and the first number in it that cannot be used."""
    rows = np.asarray(raw)
    if not len(rows):
        return None, None
    check_numbers(rows)
    with threads_of_worker() as workers:
        unusable = first_unusable(rows, workers) if normalize else None
        extent = Extent.of(rows, workers, normalize)
        if unusable is None and not extent.is_usable:
            unusable = first_unusable(rows, workers)
    return extent, None if unusable is None else (first + unusable[0], *unusable[1:])


def _join_extents(parts: list[Found]) -> Found:
    total: Extent | None = None
    for extent, _ in parts:
        if extent is not None:
            total = extent if total is None else total + extent
    return total, next((unusable for _, unusable in parts if unusable is not None), None)
