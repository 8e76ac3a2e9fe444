"""Snapshot: a committed state of a collection, what is kept of it between searches, and queries of it.

The view maps the flat files and knows which item lies where. It grows with the collection; each generation of
the files has its own. A snapshot joins it with a connection to the database at the same commit.
"""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
import threading
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from auxbit.collection.storage import CHUNK, DATABASE, LANES, TRIES, State, Storage, row_checks
from auxbit.core.checks import (
    Array,
    Bytes,
    Ids,
    Mask,
    Packed,
    PathLike,
    Positions,
    check_finite,
    check_integer,
    warn,
)
from auxbit.core.parallel import Guard
from auxbit.data.records import Row, checked_ids, read_records
from auxbit.data.vectors import as_rows, nearest
from auxbit.data.where import Where
from auxbit.errors import CollectionError, Damaged, FileProblem, InvalidInput, ModelFileError

if TYPE_CHECKING:
    from auxbit.core.maps import Decoder
    from auxbit.hashers.base import Hasher
    from auxbit.index.hamming import HammingIndex

AT_ONCE = 10_000  # ids or numbers in one statement
KINDS = {"integer": "integers", "text": "text", "uuid": "UUIDs", None: "integers"}  # of ids


# ---- Ids: integers, text or UUIDs, one kind in a collection


def check_ids(ids: Any, n: int | None = None) -> tuple[Ids | list[str], str]:
    """Ids as they are stored, int64 or text, and their kind: "integer", "text" or "uuid"."""
    given = ids if isinstance(ids, np.ndarray | list) else list(ids)
    if isinstance(ids, str | bytes) or getattr(given, "ndim", 1) != 1 or (n is not None and len(given) != n):
        wanted = f"one per row, {n} of them" if n is not None else "a list"
        raise InvalidInput(f"ids must be {wanted}; got {np.shape(given) or repr(ids)}.")
    found = checked_ids(given, "ids")
    if isinstance(found, np.ndarray):
        if len(found) and found.min() < 0:
            raise InvalidInput(f"ids that are integers must lie in 0..2**63-1, got {found.min()}.")
        return found, "integer"
    if isinstance(found[0], uuid.UUID):
        return list(map(str, found)), "uuid"
    try:
        ("".join(found)).encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"ids must be text that UTF-8 can hold: {error}.") from error
    if "" in found:
        raise InvalidInput("ids must not be empty text.")
    return found, "text"


def as_array(ids: Sequence[Any] | Ids, kind: str | None) -> Array:
    """Ids as answers have them: (n,) int64, or objects, str or UUID."""
    if kind in (None, "integer"):
        return np.asarray(ids, dtype=np.int64)
    out = np.empty(len(ids), dtype=object)
    out[:] = [uuid.UUID(each) for each in ids] if kind == "uuid" else ids
    return out


def typed_ids(values: Iterable[Any], kind: str | None) -> list[Any]:
    """Ids that come as text, or as numbers that text looks like, as a collection of this kind has them."""
    made: Callable[[str], Any] = str if kind == "text" else uuid.UUID if kind == "uuid" else int
    found = []
    for each in values:
        try:
            found.append(made(str(each)))
        except ValueError as error:
            what = f"{each!r} cannot be an id of the collection: its ids are {KINDS[kind]}."
            raise InvalidInput(what) from error
    return found


def checksum(number: int, id_: Any, metadata: str | None) -> int:
    """What `items` keeps beside a row."""
    return zlib.crc32(f"{number}\0{id_}\0{metadata}".encode())


def spoilt_items(connection: sqlite3.Connection) -> dict[int, str]:
    """The rows of `items` that do not match their checksums: numbers, and ids as far as they can be read."""
    rows = connection.execute(
        "SELECT number, CAST(id AS BLOB), CAST(metadata AS BLOB), checksum FROM items "
        "WHERE checksum IS NOT NULL"
    )
    found = {}
    for number, id_, text, check in rows:
        as_bytes = (b"None" if each is None else each for each in (id_, text))
        if zlib.crc32(b"\0".join([str(number).encode(), *as_bytes])) != check:
            found[number] = str(number) if id_ is None else repr(id_.decode(errors="replace"))
    return found


def runs(numbers: Ids) -> Iterator[tuple[int, int, int]]:
    """Where numbers rise by one: the place of the first, how many, and the first number."""
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    starts = np.concatenate([[0], breaks]) if len(numbers) else breaks
    counts = np.diff(np.append(starts, len(numbers)))
    yield from zip(starts.tolist(), counts.tolist(), numbers[starts].tolist())


# ---- Views


def _integers(connection: sqlite3.Connection, query: str, parameters: Any, width: int) -> Ids:
    """Rows of a query, (n, width)."""
    try:
        return np.array(connection.execute(query, parameters).fetchall(), dtype=np.int64).reshape(-1, width)
    except (TypeError, ValueError, OverflowError) as error:
        raise Damaged(f"{DATABASE} is damaged: {error}. Restore it from a copy.") from error


class Checked:
    """The bytes of a flat file, each 64 KB compared with its checksum before its first use."""

    def __init__(self, storage: Storage, name: str, *, lenient: bool) -> None:
        self._flat, self._lenient, self.name = storage.flat(name), lenient, name
        self.content: Bytes = np.zeros(0, dtype=np.uint8)
        self._length = 0
        self._rows = np.zeros((0, 2), dtype=np.int64)  # of chunks: bytes and checksum
        self._fine: Mask = np.zeros(0, dtype=np.bool_)
        self.damage: list[int] = []  # chunks that do not match, if that is to be survived

    def grow(self, connection: sqlite3.Connection, length: int, room: int = 0) -> None:
        """Map the file again, now that it has `length` committed bytes, with some room behind them."""
        self.content = self._flat.content(length, room, lenient=self._lenient)
        full = self._length // CHUNK  # chunks that cannot have changed
        fresh = _integers(
            connection, "SELECT chunk, bytes, checksum FROM checks WHERE file = ? AND chunk >= ? "
            "ORDER BY chunk", (self.name, full), 3,
        )  # fmt: skip
        chunks = np.arange(full, -(-length // CHUNK))
        sizes = np.minimum(CHUNK, length - chunks * CHUNK)
        if not np.array_equal(fresh[:, :2], np.stack([chunks, sizes], axis=1)):
            raise Damaged(
                f"{DATABASE} is damaged: it has no checksums for the {length:,} bytes of "
                f"{self._flat.path or self.name}. Restore it from a copy."
            )
        self._rows = np.concatenate([self._rows[:full], fresh[:, 1:]])
        self._fine = np.concatenate([self._fine[:full], np.zeros(len(fresh), dtype=np.bool_)])
        self._length = length

    def check(self, chunks: npt.NDArray[np.int64] | None = None) -> None:
        """Compare chunks, by default all, with their checksums."""
        wanted = np.arange(len(self._fine)) if chunks is None else chunks
        for chunk in wanted[~self._fine[wanted]].tolist():
            size, expected = self._rows[chunk].tolist()
            if zlib.crc32(self.content[chunk * CHUNK : chunk * CHUNK + size].data) == expected:
                self._fine[chunk] = True
            elif self._lenient:
                self.damage.append(chunk)
                self._fine[chunk] = True
            else:
                raise Damaged(
                    f"{self._flat.path} is damaged: 64 KB from byte {chunk * CHUNK:,} on do not match their "
                    'checksum. Restore the file from a copy; or open the rest with damaged="skip" '
                    "(--skip-damaged)."
                )

    def check_rows(self, rows: Positions, size: int) -> None:
        """Compare what holds these rows of `size` bytes each."""
        if len(rows) and size:
            first, last = rows * size // CHUNK, ((rows + 1) * size - 1) // CHUNK
            spans = [first + step for step in range(int((last - first).max()) + 1)]
            self.check(np.unique(np.concatenate([np.minimum(span, last) for span in spans])))

    def spoilt(self, size: int, rows_each: int) -> Iterator[slice]:
        """The rows in damaged chunks, of which `rows_each` take `size` bytes."""
        for chunk in self.damage:
            first, last = chunk * CHUNK // size, -(-min((chunk + 1) * CHUNK, self._length) // size)
            yield slice(first * rows_each, last * rows_each)


class View:
    """Which item lies where, which are deleted, and the codes and vectors, of one generation."""

    def __init__(self, storage: Storage, state: State, n_jobs: int | None, *, lenient: bool) -> None:
        from auxbit.index.codes import LaneSet

        self.key, self.commit, self.n_jobs = generation_of(state), -1, n_jobs
        self.size, self.model_file = 0, state.model
        self.firsts = self.numbers = np.zeros(0, dtype=np.int64)  # of stretches: position and number
        self.alive = LaneSet()
        self.lost: Ids = self.numbers  # of items that are left out, since they are damaged
        self._spoilt: dict[int, str] = {}  # of the rows of `items`
        self._storage, self._lenient, self.place = storage, lenient, storage.place
        self._codes = Checked(storage, state.codes, lenient=lenient)
        self._vectors = Checked(storage, state.vectors_file, lenient=lenient)
        self._index: HammingIndex | None = None
        self._model: Hasher | None = None
        self._model_bytes: Bytes | None = None  # mapped, not read
        if storage.folder is not None and state.model is not None:
            with suppress(OSError):
                size = (storage.folder / state.model).stat().st_size
                self._model_bytes = storage.flat(state.model).content(size)
        self._making = threading.RLock()  # of the index and the model, by several readers

    def advance(self, connection: sqlite3.Connection, state: State) -> None:
        """Take in what was added and deleted since, at the state that the connection sees."""
        fresh = self._table(
            connection, "SELECT first_position, count, first_number, checksum FROM stretches "
            "WHERE first_position + count > ? ORDER BY first_position", self.size,
        )  # fmt: skip
        kept = int(np.searchsorted(self.firsts, fresh[0, 0])) if len(fresh) else len(self.firsts)
        ends = np.append(fresh[:, 0], state.positions)
        if ends[0] > self.size or (np.diff(ends) != fresh[:, 1]).any():
            raise Damaged(f"{self.place}: {DATABASE} is damaged: items are missing in `stretches`.")
        self.firsts = np.concatenate([self.firsts[:kept], fresh[:, 0]])
        self.numbers = np.concatenate([self.numbers[:kept], fresh[:, 2]])
        self._codes.grow(connection, state.code_bytes, state.block_bytes)
        self._lay_last_block(state)
        if state.vectors is not None:
            self._vectors.grow(connection, state.vector_bytes)
        if self._index is None:
            self.alive.append(state.positions - self.size)
        else:  # which has the same set of those that are not deleted
            self._codes.check()
            with self._index.changing() as store:
                store.grow(self.planes(state), state.positions)
        self.size = state.positions
        gone = self._table(
            connection, "SELECT in_commit, first_number, count, checksum FROM deleted WHERE in_commit > ?",
            self.commit,
        )  # fmt: skip
        self.discard(self.positions_of(_spread(gone[:, 1:])))
        if self.alive.count != state.items and not len(self.lost):
            raise Damaged(f"{self.place}: {DATABASE} is damaged: `deleted` is not complete.")
        if self._lenient:
            self._lose_damaged(connection, state)
        self.commit = state.commit

    def _table(self, connection: sqlite3.Connection, query: str, after: int) -> Ids:
        """The rows of `stretches` or `deleted`, (n, 3), that match their checksums."""
        found = _integers(connection, query, (after,), 4)
        if (row_checks(found[:, :3]) != found[:, 3]).any():
            raise Damaged(
                f"{self.place}: {DATABASE} is damaged: `stretches` or `deleted` do not match their "
                "checksums. Restore it from a copy."
            )
        return found[:, :3]

    def _lay_last_block(self, state: State) -> None:
        """Put the codes of the block that is not full behind the mapped ones, for ourselves alone."""
        last = np.frombuffer(state.last_codes, dtype=np.uint8)
        if len(last) not in (0, state.block_bytes):
            raise Damaged(f"{self.place}: the codes of the last block are not complete.")
        self._codes.content[state.code_bytes :][: len(last)] = last

    def _lose_damaged(self, connection: sqlite3.Connection, state: State) -> None:
        self._codes.check()
        spoilt = list(self._codes.spoilt(state.block_bytes, LANES))
        if state.vectors is not None:
            self._vectors.check()
            spoilt += self._vectors.spoilt(state.row_bytes, 1)
        gone = np.zeros(self.size, dtype=np.bool_)
        for some in spoilt:
            gone[some] = True
        self._spoilt = spoilt_items(connection)
        positions = self.positions_of(np.fromiter(self._spoilt, dtype=np.int64))
        gone[positions[positions >= 0]] = True
        if state.ids not in (None, "integer"):  # then every item has a row
            rows = connection.execute("SELECT number FROM items WHERE id IS NOT NULL").fetchall()
            there = self.positions_of(np.array(rows, dtype=np.int64).ravel())
            gone |= ~np.isin(np.arange(self.size), there)
        left_out = np.flatnonzero(gone)
        left_out = left_out[self.alive.holds(left_out)]
        self.lost = np.union1d(self.lost, self.numbers_at(left_out))
        self.alive.discard(left_out)

    def discard(self, positions: Positions) -> None:
        """Note that the items at these positions are deleted."""
        positions = positions[positions >= 0]
        self.alive.discard(np.unique(positions[self.alive.holds(positions)]))

    def damage(self) -> list[str]:
        """What was found to be wrong, one line each; nothing is looked for but by damaged="skip"."""
        each = [(self._codes.name, self._codes.damage), (self._vectors.name, self._vectors.damage)]
        found = [
            f"{name}: {len(chunks)} times 64 KB do not match their checksums"
            for name, chunks in each
            if chunks
        ]
        return found + [
            f"{DATABASE}: item {id_} does not match its checksum" for id_ in self._spoilt.values()
        ]

    @property
    def spoilt_rows(self) -> list[int]:
        """The numbers of what must go from the database with the items that are lost."""
        return sorted({*self.lost.tolist(), *self._spoilt})

    # ---- positions and numbers

    def numbers_at(self, positions: Positions) -> Ids:
        """The numbers of the items at these positions."""
        if len(self.firsts) == 1:
            return positions + int(self.numbers[0] - self.firsts[0])
        place = np.searchsorted(self.firsts, positions, side="right") - 1
        found: Ids = self.numbers[place] + positions - self.firsts[place]
        return found

    def positions_of(self, numbers: Ids) -> Positions:
        """Where items lie, -1 if one is not in the files; deleted ones may still be."""
        if not len(self.firsts):
            return np.full(len(numbers), -1, dtype=np.int64)
        place = np.searchsorted(self.numbers, numbers, side="right") - 1
        within = numbers - self.numbers[np.maximum(place, 0)]
        counts = np.diff(np.append(self.firsts, self.size))
        there = (place >= 0) & (within < counts[place])
        return np.where(there, self.firsts[place] + within, -1)

    def present(self) -> Positions:
        """The positions that are not deleted, in order."""
        from auxbit.index.codes import allowed_positions

        if self.alive.count == self.size:
            return np.arange(self.size, dtype=np.int64)
        return allowed_positions(self.alive.masks)

    # ---- codes, vectors, model

    def planes(self, state: State) -> Bytes:
        """The codes as blocks of byte planes, (n_blocks, width, 64)."""
        width, blocks = -(-state.n_bits // 8), -(-state.positions // LANES)
        return self._codes.content[: blocks * width * LANES].reshape(blocks, width, LANES)

    def codes(self, state: State, positions: Positions) -> Packed:
        """The packed codes at these positions, (n, width)."""
        blocks = positions // LANES
        self._codes.check_rows(blocks[blocks < state.positions // LANES], state.block_bytes)
        return np.ascontiguousarray(self.planes(state)[blocks, :, positions % LANES])

    def vectors(self, state: State, positions: Positions) -> Array:
        """The vectors at these positions, (n, D), in the type that they are kept in."""
        self._vectors.check_rows(positions, state.row_bytes)
        rows = self._vectors.content[: state.vector_bytes].view(state.vectors or "float32")
        return rows.reshape(state.positions, state.n_features or 0)[positions]

    def index(self, state: State, decoder: Decoder | None = None) -> HammingIndex:
        """The index over the codes, by positions; with a decoder, ready for asymmetric search."""
        made = self._index
        if made is not None and (decoder is None or made.decoder is decoder):
            return made
        from auxbit.index.codes import CodeBlocks, CodeStore, IdTable
        from auxbit.index.hamming import HammingIndex

        with self._making:
            if self._index is None:
                self._codes.check()
                blocks = CodeBlocks.mapped(self.planes(state), state.n_bits, self.size)
                store = CodeStore.of(blocks, IdTable.numbered(self.size), self.alive)
                how = {"coding": state.coding, "mu": state.mu, "n_jobs": self.n_jobs}
                self._index = HammingIndex.over(store, **how)
            if decoder is not None and self._index.decoder is not decoder:
                self._index.attach(decoder)
            return self._index

    def model(self, state: State) -> Hasher:
        """The hasher, loaded at first use."""
        if state.model is None:
            raise InvalidInput(
                f"{self.place} has no model: it holds codes alone. Search and add codes=…, or give "
                "a model to Collection.create."
            )
        with self._making:
            if self._model is None:
                self._model = self._storage.models.get(state.model) or self._loaded(state, state.model)
            return self._model

    def _loaded(self, state: State, name: str) -> Hasher:
        from auxbit.hashers.registry import load

        assert self._storage.folder is not None
        path = self._storage.folder / name
        try:
            model = load(path)
        except ModelFileError:
            if path.exists() or self._model_bytes is None:
                raise
            with tempfile.TemporaryDirectory() as temporary:  # a retraining has removed it since
                (Path(temporary) / name).write_bytes(self._model_bytes.tobytes())
                model = load(Path(temporary) / name)
        found = model.decoder_.n_bits, int(model.n_features_in_)
        if found[0] != state.n_bits or state.n_features not in (None, found[1]):
            # its decoder would be taken to be that of these codes
            raise CollectionError(
                f"{self.place}: {name} makes codes of {found[0]} bits from rows of {found[1]}, "
                f"expected {state.n_bits} bits from {state.n_features}. Restore it from a copy."
            )
        model.n_jobs = self.n_jobs
        return model

    def keep_model(self, before: View) -> None:
        """Take over the model of the generation before, if it is the same."""
        if (self.key[0], self.model_file) == (before.key[0], before.model_file):
            self._model = before._model


def generation_of(state: State) -> tuple[str, int]:
    """What changes with the meaning of positions."""
    return state.key, state.generation


def _spread(rows: npt.NDArray[np.int64]) -> Ids:
    """All numbers of runs, (n, 2): first and count."""
    first, counts = rows[:, 0], rows[:, 1]
    before = np.cumsum(counts) - counts
    return np.repeat(first - before, counts) + np.arange(counts.sum())


# ---- Snapshots


@dataclass(frozen=True)
class Snapshot:
    """A state with a connection and a view at that state, for the length of a read."""

    connection: sqlite3.Connection
    state: State
    view: View

    # ---- ids

    def find(self, ids: Ids | list[str]) -> Ids:
        """The numbers of items by their ids, -1 if one is not there."""
        listed = ids.tolist() if isinstance(ids, np.ndarray) else ids
        found = np.full(len(listed), -1, dtype=np.int64)
        if self.state.own_ids:
            known = {id_: number for number, id_, _ in self.rows("id", listed)}
            found[:] = [known.get(each, -1) for each in listed]
            found[~self.view.alive.holds(self.view.positions_of(found))] = -1
        if isinstance(ids, np.ndarray) and self.state.ids != "text":
            rest = np.flatnonzero(found < 0)
            there = self.view.alive.holds(self.view.positions_of(ids[rest]))
            rest = rest[there]
            if self.state.own_ids and len(rest):  # an item with an id of its own is not known by its number
                own = {number for number, id_, _ in self.rows("number", ids[rest].tolist())
                       if id_ is not None}  # fmt: skip
                rest = rest[[number not in own for number in ids[rest].tolist()]]
            found[rest] = ids[rest]
        return found

    def places(self, ids: Any) -> Positions:
        """The positions of items by their ids, as the user gives them; InvalidInput if one is not there."""
        given, kind = check_ids(ids)
        numbers = np.full(len(given), -1, dtype=np.int64)
        if len(given) and kind == (self.state.ids or "integer"):
            numbers = self.find(given)
        positions = self.view.positions_of(numbers)
        missing = ~self.view.alive.holds(positions)
        if missing.any():
            id_ = given[int(missing.argmax())]
            id_ = int(id_) if kind == "integer" else id_
            why = "" if kind == (self.state.ids or "integer") else f", whose ids are {KINDS[self.state.ids]}"
            raise InvalidInput(f"id {id_!r} is not in the collection{why}.")
        return positions

    def ids_at(self, positions: Positions) -> Array:
        """The ids of items at these positions, of the same shape."""
        numbers = self.view.numbers_at(positions.ravel())
        if not self.state.own_ids:
            return as_array(numbers, "integer").reshape(positions.shape)
        listed = numbers.tolist()
        own = {number: id_ for number, id_, _ in self._all_rows(listed) if id_ is not None}
        found = as_array([own.get(number, number) for number in listed], self.state.ids)
        return found.reshape(positions.shape)

    # ---- metadata

    def metadata(self, positions: Positions) -> list[Row]:
        """The metadata of items at these positions, {} if there are none."""
        numbers = self.view.numbers_at(positions).tolist() if len(positions) else []
        found = {number: text for number, _, text in self._all_rows(numbers)}
        return [json.loads(found.get(number) or "{}") for number in numbers]

    def items(self, positions: Positions, *, vectors: bool = False, codes: bool = False) -> list[Row]:
        """Items as dicts of id and metadata, and of vector and code if wanted."""
        if vectors and self.state.vectors is None:
            raise InvalidInput("the collection keeps no vectors.")
        ids, rows = self.ids_at(positions).tolist(), self.metadata(positions)
        items: list[Row] = [{"id": id_, "metadata": row} for id_, row in zip(ids, rows)]
        for name, wanted, read in (("vector", vectors, self.view.vectors), ("code", codes, self.view.codes)):
            for item, value in zip(items, read(self.state, positions) if wanted else ()):
                item[name] = value
        return items

    def matching(self, where: Where) -> Positions:
        """The positions of items whose metadata `where` asks for, in order."""
        self.warn_of_unknown(where.fields)
        if where.function is not None or len(self.view.lost):  # SQLite may stumble over what is damaged
            present = self.view.present()
            fits = [bool((where.function or where.matches)(row)) for row in self.metadata(present)]
            return present[np.array(fits, dtype=np.bool_)]
        condition, parameters = where.sql(indexed=self.indexed_fields())
        by_default = where.matches({})  # items without metadata need no row
        wanted = f"NOT ({condition})" if by_default else condition
        # as one text: a tuple for each of many numbers would take longer than finding them
        row = self.connection.execute(f"SELECT group_concat(number) FROM items WHERE {wanted}", parameters)
        numbers = np.fromstring(row.fetchone()[0] or "", dtype=np.int64, sep=",")
        positions = self.view.positions_of(np.sort(numbers))
        positions = positions[self.view.alive.holds(positions)]
        return np.setdiff1d(self.view.present(), positions) if by_default else positions

    def warn_of_unknown(self, fields: Iterable[str]) -> None:
        """Say that no item has a field: what is then found is seldom what was meant."""
        known = {name for (name,) in self.connection.execute("SELECT name FROM fields")}
        for field in sorted(fields):
            if field not in known and field.partition(".")[0] not in known:
                there = f" Fields are {', '.join(sorted(known)[:20])}." if known else " No item has metadata."
                warn(f"no item has the field {field!r}.{nearest(field, known)}{there}")

    def indexed_fields(self) -> list[str]:
        """The fields of metadata that have an index."""
        rows = self.connection.execute(
            "SELECT substr(name, 7) FROM sqlite_master WHERE type = 'index' AND name LIKE 'field %' "
            "ORDER BY 1"
        )
        return [name for (name,) in rows]

    def ordered(self, positions: Positions, field: str, descending: bool) -> Positions:
        """Positions in the order of a field; items without it come last."""
        from auxbit.data.where import scalar_sql

        self.warn_of_unknown([field])
        by, way = scalar_sql(field), "DESC" if descending else "ASC"
        rows = self.connection.execute(
            f"SELECT number FROM items WHERE {by} IS NOT NULL ORDER BY {by} {way}, number"
        ).fetchall()
        found = self.view.positions_of(np.array(rows, dtype=np.int64).ravel())
        found = found[np.isin(found, positions)]
        return np.concatenate([found, np.setdiff1d(positions, found)])

    def _all_rows(self, numbers: list[int]) -> list[tuple[int, Any, str | None]]:
        """The rows of items by their numbers; only those whose ids are their numbers may have none."""
        found = list(self.rows("number", numbers))
        if self.state.ids not in (None, "integer") and len(found) < len(set(numbers)):
            raise Damaged(
                f"{self.view.place}: {DATABASE} is damaged: items have no id. Restore it from a copy."
            )
        return found

    def rows(self, key: str, values: Sequence[Any]) -> Iterator[tuple[int, Any, str | None]]:
        """The rows of `items` whose key is one of these values: number, id and metadata."""
        within = f"{key} IN (SELECT value FROM json_each(?))"
        if self.view.spoilt_rows:  # of which some cannot even be read
            within += f" AND number NOT IN ({', '.join(map(str, self.view.spoilt_rows))})"
        for start in range(0, len(values), AT_ONCE):
            some = json.dumps(values[start : start + AT_ONCE])
            for number, id_, text, check in self.connection.execute(
                f"SELECT number, id, metadata, checksum FROM items WHERE {within}", (some,)
            ).fetchall():
                if check is not None and check != checksum(number, id_, text):
                    raise Damaged(
                        f"{self.view.place}: {DATABASE} is damaged: item {number if id_ is None else id_!r} "
                        "does not match its checksum. Restore it from a copy; or open the rest with "
                        'damaged="skip" (--skip-damaged).'
                    )
                yield number, id_, text


class Snapshots:
    """Gives out snapshots of a storage, which share a view as long as nothing is committed."""

    def __init__(self, storage: Storage, n_jobs: int | None, *, lenient: bool = False) -> None:
        self.storage, self.n_jobs, self.lenient = storage, n_jobs, lenient
        self._guard = Guard()
        self._view: View | None = None

    @contextmanager
    def taken(self) -> Iterator[Snapshot]:
        """The present state."""
        for attempt in range(TRIES):
            with self.storage.reading() as (connection, state):
                try:
                    self.bring_up(connection, state)
                except FileNotFoundError as error:
                    if attempt < TRIES - 1:
                        continue  # a compaction has removed the files of the state before it
                    raise Damaged(f"{error.filename} is missing. Restore it from a copy.") from error
                if self.lenient and self._outdated(state):
                    continue
                with self._guard.reading():
                    view = self._view
                    if view is not None and (view.key, view.commit) == (generation_of(state), state.commit):
                        yield Snapshot(connection, state, view)
                        return
        raise FileProblem(f"{self.storage.place} changes faster than it can be read. Try again.")

    def _outdated(self, state: State) -> bool:
        """Whether what seems to be damaged are files that a compaction has removed since."""
        if self._view is None or not self._view.damage() or self.storage.state.codes == state.codes:
            return False
        self.forget()
        return True

    @contextmanager
    def within(self, connection: sqlite3.Connection, state: State) -> Iterator[Snapshot]:
        """The state that a change begins with."""
        self.bring_up(connection, state)
        with self._guard.reading():
            assert self._view is not None
            yield Snapshot(connection, state, self._view)

    def bring_up(self, connection: sqlite3.Connection, state: State) -> None:
        """Bring the view up to a state, unless it is there or further."""
        view = self._view
        if view is not None and view.key == generation_of(state) and view.commit >= state.commit:
            return
        with self._guard.writing():
            if self._view is None or self._view.key != generation_of(state):
                fresh = View(self.storage, state, self.n_jobs, lenient=self.lenient)
                if self._view is not None:
                    fresh.keep_model(self._view)
                fresh.advance(connection, state)
                self._view = fresh
            elif self._view.commit < state.commit:
                try:
                    self._view.advance(connection, state)
                except BaseException:
                    self._view = None  # it may be half up to date
                    raise

    def forget(self) -> None:
        """Let go of what is mapped."""
        with self._guard.writing():
            self._view = None


# ---- Queries

FACTOR, FEWEST = 10, 100  # candidates for each answer of a re-ranked search, by default, and at least
MOST_ANSWERS = 2**31 - 1


def _refuse_hamming(place: str, what: str) -> None:
    raise InvalidInput(
        f"{place} holds optimal codes, chosen for the decoder alone, and Hamming distances between them mean "
        f"nothing: there is no {what} by them. Search with vectors and without a mode; or create it with "
        'coding="hash" (--coding hash), or for both ways with mu=0.03 (--mu 0.03).'
    )


class Queries:
    """Vectors or codes to search a snapshot for. X : (q, D) or None; single : it was one vector or code."""

    def __init__(self, now: Snapshot, X: Array | None, packed: Packed | None, single: bool) -> None:
        self.now, self.X, self._packed, self.single = now, X, packed, single

    @classmethod
    def of(cls, now: Snapshot, X: Any, codes: Any, like: Any, column: str | None = None) -> Queries:
        """The queries as they are given, by exactly one of X, codes and like, or X with its codes."""
        if like is not None:
            return cls._of_item(now, now.places([like]))
        if isinstance(X, str | os.PathLike):
            X, codes = _read(now, X, column, are_codes=False)
        elif isinstance(codes, str | os.PathLike):
            X, codes = _read(now, codes, column, are_codes=True)
        if X is None and codes is None:
            raise InvalidInput("nothing to search for: give X, rows to encode, codes=… or like=id.")
        rows = X if X is None or type(X) is np.ndarray else np.asarray(as_rows(X))
        packed = None if codes is None else np.asarray(codes)
        single = 1 in [each.ndim for each in (rows, packed) if each is not None]
        if packed is not None:
            from auxbit.core.maps import check_packed

            packed = check_packed(packed[None] if packed.ndim == 1 else packed, now.state.n_bits, "codes")
        return cls(now, rows[None] if rows is not None and rows.ndim == 1 else rows, packed, single)

    @classmethod
    def _of_item(cls, now: Snapshot, place: Positions) -> Queries:
        """An item: its vector if that is kept, and its code if there is no vector or no model."""
        X, state = None if now.state.vectors is None else now.view.vectors(now.state, place), now.state
        if X is not None and state.model is not None:
            return cls(now, X, None, True)
        codes = now.view.codes(state, place)
        if state.by_decoder:  # all that is known of the item is what the decoder makes of its code
            return cls(now, now.view.model(state).decode(codes), None, True)
        return cls(now, X, codes, True)

    def __len__(self) -> int:
        rows = self.X if self.X is not None else self._packed
        return 0 if rows is None else len(rows)

    @property
    def codes(self) -> Packed:
        """The packed codes of the queries."""
        if self._packed is None:
            model = self.now.view.model(self.now.state)
            if not len(self):
                return np.zeros((0, -(-self.now.state.n_bits // 8)), dtype=np.uint8)
            self._packed = model.encode(np.asarray(self.X))
        return self._packed

    @property
    def rows(self) -> Array:
        """The queries themselves, of the right dimension."""
        if self.X is None:
            raise InvalidInput(
                'optimal codes, rerank and mode="asymmetric" compare vectors, and the queries are codes: '
                "give X."
            )
        n_features = self.now.state.n_features
        if self.X.ndim != 2 or self.X.shape[1] != n_features or self.X.dtype.kind not in "fiub":
            raise InvalidInput(
                f"X must be rows of {n_features} numbers, shape (q, {n_features}); got shape {self.X.shape} "
                f"of {self.X.dtype}."
            )
        return self.X

    def within(self, r: int, where: Where | None) -> tuple[Array, Array, Positions]:
        """All items within a Hamming distance: lims, distances and positions."""
        if self.now.state.by_decoder:
            _refuse_hamming(self.now.view.place, "search within a radius")
        index = self.now.view.index(self.now.state)
        return index.search_radius(self.codes, r, among=self._among(where))

    def nearest(
        self, k: int, mode: str, n_candidates: int, where: Where | None, n_jobs: int | None
    ) -> tuple[Array, Positions]:
        """Distances and positions of the nearest; all queries get as many as there are, at most k."""
        view, state, among = self.now.view, self.now.state, self._among(where)
        available = view.alive.count if among is None else len(among.positions)
        wanted, k = min(n_candidates or k, available), min(k, available)
        if mode == "hamming" and state.by_decoder:
            _refuse_hamming(self.now.view.place, "search")
        X = self.rows if mode == "asymmetric" or n_candidates else None
        if not wanted:
            kind = np.float32 if X is not None else np.int32
            n = len(self) if X is not None else len(self.codes)
            return np.zeros((n, 0), dtype=kind), np.zeros((n, 0), dtype=np.int64)
        distances: Array
        if mode == "asymmetric":
            index = view.index(state, view.model(state).decoder_)
            distances, found = index.search_asymmetric(np.asarray(X), wanted, among=among)
        else:
            distances, found = view.index(state).search(self.codes, wanted, among=among)
        if not n_candidates or X is None:
            return distances, found
        from auxbit.index.asymmetric import rank_by_vectors

        normalize = state.model is not None and bool(view.model(state).normalize)
        vectors_at = partial(view.vectors, state)
        return rank_by_vectors(X, found, vectors_at, k, normalize=normalize, n_jobs=n_jobs)

    @property
    def can_rerank(self) -> bool:
        """Whether there are vectors of items to compare those of the queries with."""
        return self.X is not None and self.now.state.vectors is not None

    def n_candidates(self, rerank: bool | int | None, k: int) -> int:
        """How many are to be ranked again, 0 for none."""
        if rerank is False or rerank is None:
            return 0
        if self.now.state.vectors is None:
            raise InvalidInput(
                "rerank needs the vectors, and the collection keeps none. Create it with "
                'vectors="float16", or search with mode="asymmetric", which needs the decoder alone.'
            )
        n = max(FACTOR * k, FEWEST) if rerank is True else rerank
        return check_integer("rerank", n, k, MOST_ANSWERS, f"It must hold the k={k} answers.")

    def _among(self, where: Where | None) -> Any:
        if where is None:
            return None
        from auxbit.index.codes import At

        return At(self.now.matching(where))


def _read(
    now: Snapshot, source: PathLike, column: str | None, *, are_codes: bool
) -> tuple[Array | None, Array | None]:
    """The rows of a file as vectors, or as codes if they have the shape of these."""
    from auxbit.hashers.files import as_packed, rows_are_codes

    found = read_records(source, vectors=column, metadata=())
    X, state = np.asarray(found.X[:]), now.state
    if rows_are_codes(X, found.name, state.n_bits, None if are_codes else state.n_features):
        return None, as_packed(X, state.n_bits, found.name)
    check_finite(X, name=found.name)
    return X, None
