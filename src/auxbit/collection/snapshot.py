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
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from auxbit.collection.storage import DATABASE, FROM_COPY, OR_SKIP, State, Storage, layout_check
from auxbit.core.checks import Array, Bytes, Ids, Packed, Positions, check_finite, check_integer, warn
from auxbit.core.decoders import refuse_hamming
from auxbit.core.files import CHUNK, Checked
from auxbit.core.maps import check_packed
from auxbit.data.records import KINDS, Row, ids_array, read_records, stored_ids
from auxbit.data.vectors import as_rows, nearest
from auxbit.data.where import Where, scalar_sql
from auxbit.errors import CollectionError, Damaged, InvalidInput, ModelFileError
from auxbit.index.codes import (
    LANES,
    At,
    CodeBlocks,
    CodeStore,
    IdTable,
    LaneSet,
    Stretches,
    allowed_positions,
    as_bools,
)

if TYPE_CHECKING:
    from auxbit.core.decoders import Decoder
    from auxbit.hashers.base import Hasher
    from auxbit.index.hamming import HammingIndex

AT_ONCE = 10_000  # ids or numbers in one statement
MOST_KNOWN = 2**20  # ids that are remembered
FACTOR, FEWEST = 10, 100  # candidates for each answer of a re-ranked search, by default, and at least
MOST_ANSWERS = 2**31 - 1

# ---- Rows of the database


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


def integers(connection: sqlite3.Connection, query: str, *parameters: Any) -> Ids:
    """The rows of a query, (n, width)."""
    found = connection.execute(query, parameters)
    try:
        return np.array(found.fetchall(), dtype=np.int64).reshape(-1, len(found.description))
    except (TypeError, ValueError, OverflowError) as error:
        raise Damaged(f"{DATABASE} is damaged: {error}. {FROM_COPY}") from error


# ---- Views


class View:
    """Which item lies where, which are deleted, and the codes and vectors, of one generation, at `state`."""

    def __init__(self, storage: Storage, state: State, n_jobs: int | None, *, lenient: bool) -> None:
        self.state, self.generation = replace(state, positions=0, commit=-1), generation_of(state)
        self.n_jobs = n_jobs
        self._stretches = Stretches()
        self._deleted = 0  # the checksum of what was read of `deleted`
        self.alive = LaneSet()
        self.known_ids: dict[int, Any] = {}  # of numbers that were looked up; they never get others
        self.lost: Ids = np.zeros(0, dtype=np.int64)  # numbers of items that are left out as damaged
        self._spoilt: dict[int, str] = {}  # of the rows of `items`
        self._storage, self._lenient, self.place = storage, lenient, storage.place
        self._codes = Checked(storage.flat(state.codes), lenient=lenient)
        self._vectors = Checked(storage.flat(state.vectors_file), lenient=lenient)
        self._index: HammingIndex | None = None
        self._making = threading.RLock()  # of the index and the model, by several readers
        self._model_bytes: Bytes | None = None  # mapped, not read
        if storage.folder is not None and state.model is not None:
            with suppress(OSError):
                size = (storage.folder / state.model).stat().st_size
                self._model_bytes = storage.flat(state.model).content(size)

    def is_at(self, state: State, *, or_further: bool = False) -> bool:
        """Whether it shows this state, or one that was committed later and has the same positions."""
        same = self.generation == generation_of(state)
        return same and (
            self.state.commit == state.commit or (or_further and self.state.commit > state.commit)
        )

    def advance(self, connection: sqlite3.Connection, state: State) -> None:
        """Take in what was added and deleted since, at the state that the connection sees."""
        before, size = self.state, self.state.positions
        fresh = integers(
            connection, "SELECT first_position, count, first_number FROM stretches "
            "WHERE first_position + count > ? ORDER BY first_position", size,
        )  # fmt: skip
        self._stretches = self._stretches.then(fresh)
        query = "SELECT in_commit, first_number, count FROM deleted WHERE in_commit > ?"
        gone = integers(connection, query, before.commit)
        self._deleted = layout_check(gone, self._deleted)
        if layout_check(self._stretches.rows, self._deleted) != state.layout:
            raise Damaged(
                f"{self.place}: {DATABASE} is damaged: `stretches` and `deleted` do not match their "
                f"checksum. {FROM_COPY}"
            )
        self._map(connection, self._codes, state.codes, state.code_bytes, LANES * state.width)
        last = np.frombuffer(state.last_codes, dtype=np.uint8)  # behind the mapped ones, for us alone
        self._codes.content[state.code_bytes :][: len(last)] = last
        if state.vectors is not None:
            self._map(connection, self._vectors, state.vectors_file, state.positions * state.row_bytes)
        self.state = state
        if self._index is None:
            self.alive.append(state.positions - size)
        else:  # which has the same set of those that are not deleted
            self._codes.check()
            with self._index.changing() as store:
                store.grow(self.planes, state.positions)
        _, firsts, counts = gone.T
        every = np.repeat(firsts - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        self._discard(self.positions_of(every))
        if self._lenient:
            self._lose_damaged(connection)

    def _map(
        self, connection: sqlite3.Connection, flat: Checked, name: str, length: int, room: int = 0
    ) -> None:
        """Map what was committed of a flat file."""
        query = "SELECT chunk, checksum FROM checks WHERE file = ? AND chunk >= ? ORDER BY chunk"
        chunks, sums = integers(connection, query, name, flat.n_full).T
        if not np.array_equal(chunks, np.arange(flat.n_full, -(-length // CHUNK))):
            raise Damaged(f"{self.place}: {DATABASE} lacks checksums of {name}. {FROM_COPY}")
        flat.grow(length, sums, room)

    def _discard(self, positions: Positions) -> Positions:
        """Take items out of those that are there; returns which were."""
        there = np.unique(positions[self.alive.holds(positions)])
        self.alive.discard(there)
        return there

    def _lose_damaged(self, connection: sqlite3.Connection) -> None:
        """Leave out what has a part in damaged 64 KB of a flat file, or a damaged row, or lacks its row."""
        state, gone = self.state, np.zeros(self.state.positions, dtype=np.bool_)
        for flat, size, rows in (
            (self._codes, LANES * state.width, LANES),
            (self._vectors, state.row_bytes, 1),
        ):
            flat.check()
            for some in flat.spoilt(size, rows):
                gone[some] = True
        self._spoilt = spoilt_items(connection)
        positions = self.positions_of(np.fromiter(self._spoilt, dtype=np.int64))
        gone[positions[positions >= 0]] = True
        if state.ids not in (None, "integer"):  # then every item has a row
            rows_there = integers(connection, "SELECT number FROM items WHERE id IS NOT NULL")
            gone |= ~np.isin(np.arange(state.positions), self.positions_of(rows_there.ravel()))
        lost = self._discard(np.flatnonzero(gone))
        self.lost = np.union1d(self.lost, self.numbers_at(lost))

    def damage(self) -> list[str]:
        """What was found to be wrong, one line each; nothing is looked for but by damaged="skip"."""
        found = [
            f"{name}: {len(flat.damage)} times 64 KB do not match their checksums"
            for name, flat in ((self.state.codes, self._codes), (self.state.vectors_file, self._vectors))
            if flat.damage
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
        return self._stretches.ids_at(positions)

    def positions_of(self, numbers: Ids) -> Positions:
        """Where items lie, -1 if one is not in the files; deleted ones may still be."""
        return self._stretches.find(numbers)

    def present(self) -> Positions:
        """The positions that are not deleted, in order."""
        if self.alive.count == self.alive.size:
            return np.arange(self.alive.size, dtype=np.int64)
        return allowed_positions(self.alive.masks)

    # ---- codes, vectors, model

    @property
    def planes(self) -> Bytes:
        """The codes as blocks of byte planes, (n_blocks, width, 64)."""
        width, blocks = self.state.width, -(-self.state.positions // LANES)
        return self._codes.content[: blocks * width * LANES].reshape(blocks, width, LANES)

    def codes(self, positions: Positions) -> Packed:
        """The packed codes at these positions, (n, width)."""
        blocks = positions // LANES
        self._codes.check_rows(blocks[blocks < self.state.positions // LANES], LANES * self.state.width)
        return np.ascontiguousarray(self.planes[blocks, :, positions % LANES])

    def vectors(self, positions: Positions) -> Array:
        """The vectors at these positions, (n, D), in the type that they are kept in."""
        rows: Array = self.mapped_vectors(positions)[positions]
        return rows

    def mapped_vectors(self, positions: Positions) -> Array:
        """All vectors, where they lie in the file; those at these positions are sound."""
        if self.state.vectors is None:
            raise InvalidInput(f"{self.place} keeps no vectors.")
        self._vectors.check_rows(positions, self.state.row_bytes)
        shape = (self.state.positions, self.state.n_features or 0)
        rows: Array = self._vectors.content.view(self.state.vectors).reshape(shape)
        return rows

    def index(self, decoder: Decoder | None = None) -> HammingIndex:
        """The index over the codes, by positions; with a decoder, ready for asymmetric search."""
        made = self._index
        if made is not None and (decoder is None or made.decoder is decoder):
            return made
        from auxbit.index.hamming import HammingIndex

        with self._making:
            if self._index is None:
                self._codes.check()
                blocks = CodeBlocks.mapped(self.planes, self.state.n_bits, self.state.positions)
                store = CodeStore.of(blocks, IdTable.numbered(self.state.positions), self.alive)
                how = {"coding": self.state.coding, "mu": self.state.mu, "n_jobs": self.n_jobs}
                how["lists"] = self.state.lists
                self._index = HammingIndex.over(store, **how)
                if self.state.lists is not None:
                    self._adopt_lists()
            if decoder is not None and self._index.decoder is not decoder:
                self._index.attach(decoder)
                if self.state.list_bits:
                    self._adopt_lists()
            return self._index

    def _adopt_lists(self) -> None:
        """Map the codes that lie sorted by list, as far as they do."""
        if self._storage.folder is not None and self._index is not None and not self._lenient:
            self._index.adopt_lists(self._storage.folder / self.state.lists_file, self.lists_key)

    @property
    def lists_key(self) -> str:
        """Names the codes of this generation."""
        return f"{self.state.key} {self.state.generation} {self.state.model}"

    def keep_lists(self) -> None:
        """Write the codes sorted by list, for those who open the collection later."""
        if self._storage.folder is not None and self.state.has_lists and self.state.positions:
            decoder = self.model().decoder_ if self.state.list_bits else None
            path = self._storage.folder / self.state.lists_file
            self.index(decoder).keep_lists(path, self.lists_key)

    def model(self) -> Hasher:
        """The hasher, loaded at first use."""
        name, models = self.state.model, self._storage.models
        if name is None:
            raise InvalidInput(
                f"{self.place} has no model: it holds codes alone. Search and add codes=…, or give "
                "a model to Collection.create."
            )
        with self._making:
            if name not in models:
                models.clear()  # one is enough
                models[name] = self._loaded(name)
            found: Hasher = models[name]
            return found

    def _loaded(self, name: str) -> Hasher:
        from auxbit.hashers.registry import load

        assert self._storage.folder is not None
        path, state = self._storage.folder / name, self.state
        try:
            model = load(path)
        except ModelFileError:
            if path.exists() or self._model_bytes is None:
                raise
            with tempfile.TemporaryDirectory() as temporary:  # a retraining has removed it since
                (Path(temporary) / name).write_bytes(self._model_bytes.tobytes())
                model = load(Path(temporary) / name)
        found = model.code_bits(state.coding), int(model.n_features_in_)
        if found[0] != state.n_bits or state.n_features not in (None, found[1]):
            # its decoder would be taken to be that of these codes
            raise CollectionError(
                f"{self.place}: {name} makes codes of {found[0]} bits from rows of {found[1]}, "
                f"expected {state.n_bits} bits from {state.n_features}. {FROM_COPY}"
            )
        model.n_jobs = self.n_jobs
        return model


def generation_of(state: State) -> tuple[str, int]:
    """What changes with the meaning of positions."""
    return state.key, state.generation


# ---- Snapshots


@dataclass(frozen=True)
class Snapshot:
    """A connection, if one is needed, and a view at the same state, for the length of a read."""

    connection: Any
    view: View

    @property
    def state(self) -> State:
        """What was committed."""
        return self.view.state

    @property
    def metric(self) -> str:
        """By which neighbours are meant: that of the model."""
        return "euclidean" if self.state.model is None else self.view.model().scaling_.metric

    # ---- ids

    def find(self, ids: Ids | list[str]) -> Ids:
        """The numbers of items by their ids, -1 if one is not there."""
        listed = ids.tolist() if isinstance(ids, np.ndarray) else ids
        found = np.full(len(listed), -1, dtype=np.int64)
        if self.state.own_ids:
            known = {id_: number for number, id_, _ in self.rows("id", listed)}
            found[:] = [known.get(each, -1) for each in listed]
        if isinstance(ids, np.ndarray):
            rest = np.flatnonzero(found < 0)
            if self.state.own_ids:  # an item with an id of its own is not known by its number
                own = {number for number, id_, _ in self.rows("number", ids[rest].tolist())
                       if id_ is not None}  # fmt: skip
                rest = rest[[number not in own for number in ids[rest].tolist()]]
            found[rest] = ids[rest]
        found[~self.view.alive.holds(self.view.positions_of(found))] = -1
        return found

    def places(self, ids: Any) -> Positions:
        """The positions of items by their ids, as the user gives them; InvalidInput if one is not there."""
        (given, kind), own = stored_ids(ids), self.state.ids or "integer"
        numbers = self.find(given) if kind == own else np.full(len(given), -1, dtype=np.int64)
        if (numbers < 0).any():
            id_ = given[int((numbers < 0).argmax())]
            id_ = int(id_) if kind == "integer" else id_
            why = "" if kind == own else f", whose ids are {KINDS[own]}"
            raise InvalidInput(f"id {id_!r} is not in the collection{why}.")
        return self.view.positions_of(numbers)

    def chosen(self, ids: Any, where: Any = None) -> Positions:
        """The positions of items by their ids, or of those that `where` finds, or of all."""
        if ids is not None:
            return self.places(ids)
        return self.view.present() if where is None else self.matching(Where.of(where))

    def knows_ids(self, positions: Positions) -> bool:
        """Whether the ids at these positions need not be looked up in the database."""
        known = self.view.known_ids
        numbers = self.view.numbers_at(positions.ravel()).tolist() if self.state.own_ids else ()
        return all(number in known for number in numbers)

    def ids_at(self, positions: Positions) -> Array:
        """The ids of items at these positions, of the same shape."""
        numbers = self.view.numbers_at(positions.ravel())
        if not self.state.own_ids:
            return numbers.reshape(positions.shape)
        listed, known = numbers.tolist(), self.view.known_ids
        unknown = [number for number in listed if number not in known]
        if unknown:
            if len(known) > MOST_KNOWN:
                known = self.view.known_ids = {}
                unknown = listed
            own = {number: id_ for number, id_, _ in self._all_rows(unknown) if id_ is not None}
            ids = ids_array([own.get(number, number) for number in unknown], self.state.ids)
            known.update(zip(unknown, ids.tolist()))
        found = np.empty(len(listed), dtype=np.int64 if self.state.ids == "integer" else object)
        found[:] = [known[number] for number in listed]
        return found.reshape(positions.shape)

    def codes_and_error(self, positions: Positions, since: int) -> tuple[Packed, float | None]:
        """Codes and their mean error, from vectors, else as measured when rows from `since` on came."""
        codes = self.view.codes(positions)
        if self.state.vectors is not None:
            return codes, self.view.model()._error_of(self.view.vectors(positions), codes)
        first = int(self.view.numbers_at(np.array([since]))[0])
        n, total = self.connection.execute(
            "SELECT sum(error_rows), sum(error_sum) FROM commits WHERE first_number + rows > ?", (first,)
        ).fetchone()
        return codes, total / n if n else None

    # ---- metadata

    def metadata(self, positions: Positions) -> list[Row]:
        """The metadata of items at these positions, {} if there are none."""
        numbers = self.view.numbers_at(positions).tolist()
        found = {number: text for number, _, text in self._all_rows(numbers)}
        return [json.loads(found.get(number) or "{}") for number in numbers]

    def items(self, positions: Positions, *, vectors: bool = False, codes: bool = False) -> list[Row]:
        """Items as dicts of id and metadata, and of vector and code if wanted."""
        columns = {"id": self.ids_at(positions).tolist(), "metadata": self.metadata(positions)}
        columns |= {"vector": self.view.vectors(positions)} if vectors else {}
        columns |= {"code": self.view.codes(positions)} if codes else {}
        return [dict(zip(columns, row)) for row in zip(*columns.values())]

    def count(self, where: Where) -> int:
        """How many items have the metadata that `where` asks for."""
        asked = self._as_sql(where)
        if asked is None:
            return len(self.matching(where))
        condition, parameters, by_default = asked
        query = f"SELECT count(*) FROM items WHERE {condition}"
        n = int(self.connection.execute(query, parameters).fetchone()[0])
        return self.view.alive.count - n if by_default else n

    def matching(self, where: Where) -> Positions:
        """The positions of items whose metadata `where` asks for, in order."""
        asked = self._as_sql(where)
        if asked is None:
            present = self.view.present()
            fits = [where.matches(row) for row in self.metadata(present)]
            return present[np.array(fits, dtype=np.bool_)]
        condition, parameters, by_default = asked
        # as one text: a tuple for each of many numbers would take longer than finding them
        query = f"SELECT group_concat(number) FROM items WHERE {condition}"
        text = self.connection.execute(query, parameters).fetchone()[0]
        found = self.view.positions_of(np.fromstring(text or "", dtype=np.int64, sep=","))
        found = found[self.view.alive.holds(found)]
        size = self.state.positions
        if not by_default and len(found) < size // 64:
            return np.sort(found)
        match = as_bools(self.view.alive.masks, size) if by_default else np.zeros(size, dtype=np.bool_)
        match[found] = not by_default  # with many of them this is faster than sorting
        return np.flatnonzero(match)

    def _as_sql(self, where: Where) -> tuple[str, list[Any], bool] | None:
        """A condition on rows of `items`, with parameters; or None if metadata must be read.

        And whether items without metadata match: these need no row, and the condition finds all that do not.
        """
        self.warn_of_unknown(where.fields)
        if where.function is not None or len(self.view.lost):  # SQLite may stumble over what is damaged
            return None
        by_default = where.matches({})
        return *(where.opposite if by_default else where).sql(indexed=self.indexed_fields()), by_default

    def warn_of_unknown(self, fields: Iterable[str]) -> None:
        """Say that no item has a field: what is then found is seldom what was meant."""
        known = self.fields()
        for field in sorted(fields):
            if field not in known and field.partition(".")[0] not in known:
                there = f" Fields are {', '.join(known[:20])}." if known else " No item has metadata."
                warn(f"no item has the field {field!r}.{nearest(field, known)}{there}")

    def fields(self) -> list[str]:
        """The fields of metadata that items have or had."""
        return [name for (name,) in self.connection.execute("SELECT name FROM fields ORDER BY name")]

    def indexed_fields(self) -> list[str]:
        """The fields of metadata that have an index."""
        rows = self.connection.execute(
            "SELECT substr(name, 7) FROM sqlite_master WHERE type = 'index' AND name LIKE 'field %' "
            "ORDER BY 1"
        )
        return [name for (name,) in rows]

    def ordered(self, positions: Positions, field: str, descending: bool) -> Positions:
        """Positions in the order of a field; items without it come last."""
        self.warn_of_unknown([field])
        by, way = scalar_sql(field), "DESC" if descending else "ASC"
        query = f"SELECT number FROM items WHERE {by} IS NOT NULL ORDER BY {by} {way}, number"
        found = self.view.positions_of(integers(self.connection, query).ravel())
        found = found[np.isin(found, positions)]
        return np.concatenate([found, np.setdiff1d(positions, found)])

    def _all_rows(self, numbers: list[int]) -> list[tuple[int, Any, str | None]]:
        """The rows of items by their numbers; only those whose ids are their numbers may have none."""
        found = list(self.rows("number", numbers))
        if self.state.ids not in (None, "integer") and len(found) < len(set(numbers)):
            raise Damaged(f"{self.view.place}: {DATABASE} is damaged: items have no id. {FROM_COPY}")
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
                        f"does not match its checksum. {OR_SKIP}"
                    )
                yield number, id_, text


# ---- Queries


class Queries:
    """Vectors or codes to search a snapshot for. X : (q, D) or None; single : it was one vector or code."""

    def __init__(self, now: Snapshot, X: Any, codes: Any, like: Any, column: str | None) -> None:
        """Given by one of X, codes and like, or by X with its codes. column : of vectors in a file."""
        self.now = now
        if like is not None:
            X, codes = self._of_item(now.places([like]))
        elif isinstance(codes if X is None else X, str | os.PathLike):
            X, codes = self._read(codes if X is None else X, column, are_codes=X is None)
        if X is None and codes is None:
            raise InvalidInput("nothing to search for: give X, rows to encode, codes=… or like=id.")
        self.single, self.how = False, dict[str, Any]()
        self.X: Array | None = None
        self._packed: Packed | None = None
        if X is not None:
            rows = X if type(X) is np.ndarray else np.asarray(as_rows(X))
            self.single = rows.ndim == 1
            self.X = rows[None] if rows.ndim == 1 else rows
        if codes is not None:
            packed = np.asarray(codes)
            self.single |= packed.ndim == 1
            self._packed = check_packed(packed[None] if packed.ndim == 1 else packed, now.state.n_bits)

    def _of_item(self, place: Positions) -> tuple[Array | None, Array | None]:
        """An item: its vector if that is kept, and its code if there is no vector or no model."""
        view, state = self.now.view, self.now.state
        X = None if state.vectors is None else view.vectors(place)[0]
        codes = view.codes(place) if X is None or state.model is None else None
        if codes is not None and (state.by_decoder or self.now.metric == "inner_product"):
            # what the decoder makes of the code is all there is; a lifted query has another code than a row
            return view.model().decode(codes)[0], None
        return X, None if codes is None else codes[0]

    def _read(self, source: Any, column: str | None, *, are_codes: bool) -> tuple[Array | None, Array | None]:
        """The rows of a file as vectors, or as codes if they have the shape of these."""
        from auxbit.hashers.files import as_packed, rows_are_codes

        found, state = read_records(source, vectors=column, metadata=()), self.now.state
        X = np.asarray(found.X[:])
        if rows_are_codes(X, found.name, state.n_bits, None if are_codes else state.n_features):
            return None, as_packed(X, state.n_bits, found.name)
        check_finite(X, name=found.name)
        return X, None

    def __len__(self) -> int:
        rows = self.X if self.X is not None else self._packed
        return 0 if rows is None else len(rows)

    @property
    def codes(self) -> Packed:
        """The packed codes of the queries."""
        if self._packed is None:
            model = self.now.view.model()
            if not len(self):
                return np.zeros((0, self.now.state.width), dtype=np.uint8)
            self._packed = model.encode(np.asarray(self.X), queries=True)
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

    def _check_hamming(self) -> None:
        refuse_hamming(
            self.now.view.place, self.now.state.coding, self.now.state.mu,
            'Search it with vectors, without mode and radius; or create it with coding="hash" '
            "(--coding hash), or for both ways with mu=0.03 (--mu 0.03).",
        )  # fmt: skip

    def within(
        self, r: int, where: Where | None, probes: int | str | None, recall: float | None
    ) -> tuple[Array, Array, Positions]:
        """All items within a Hamming distance: lims, distances and positions."""
        self._check_hamming()
        self._note(where, radius=r)
        search = self.now.view.index().search_radius
        return search(self.codes, r, among=self._among(where), probes=probes, recall=recall)

    def nearest(
        self, k: int, mode: str | None, rerank: bool | int | None, where: Where | None,
        probes: int | str | None, recall: float | None,
    ) -> tuple[Array, Positions]:  # fmt: skip
        """Distances and positions of the nearest; all queries get as many as there are, at most k."""
        mode, n_candidates = self._ways(mode, rerank, k)
        self._note(where, k=k, mode=mode, rerank=n_candidates or None)
        view, among = self.now.view, self._among(where)
        available = view.alive.count if among is None else len(among.positions)
        wanted, k = min(n_candidates or k, available), min(k, available)
        X = self.rows if mode == "asymmetric" or n_candidates else None
        asked: Array
        search: Callable[..., tuple[Array, Positions]]
        how: dict[str, Any] = {"among": among, "probes": probes, "recall": recall}
        if mode == "hamming":
            self._check_hamming()
            asked = self.codes
        else:
            asked = np.asarray(X)
        if not wanted:
            kind = np.int32 if X is None else np.float32
            return np.zeros((len(asked), 0), dtype=kind), np.zeros((len(asked), 0), dtype=np.int64)
        if mode == "hamming":
            search = view.index().search
        else:
            search, how["sure_of"] = view.index(view.model().decoder_).search_asymmetric, k
        distances, found = search(asked, wanted, **how)
        # with lists there may be so many items, but not in those searched
        if self.now.state.has_lists and len(short := np.flatnonzero(found[:, k - 1] < 0)):
            how |= {"probes": "all", "recall": None}
            distances[short], found[short] = search(asked[short], wanted, **how)
        if not n_candidates or X is None:
            return distances, found
        from auxbit.index.asymmetric import rank_by_vectors

        vectors = view.mapped_vectors(np.maximum(found, 0).ravel())
        return rank_by_vectors(X, found, vectors, k, metric=self.now.metric, n_jobs=view.n_jobs)

    def _note(
        self, where: Where | None, *, k: int | None = None, radius: int | None = None, mode: str = "hamming",
        rerank: int | None = None,
    ) -> None:  # fmt: skip
        """Keep how it is searched, for answers to tell."""
        asked = None if where is None else str(where)
        self.how = {"k": k, "radius": radius, "mode": mode, "rerank": rerank, "where": asked}

    def _ways(self, mode: str | None, rerank: bool | int | None, k: int) -> tuple[str, int]:
        """How to find k answers, "asymmetric" or "hamming", and how many to rank again, 0 for none."""
        state = self.now.state
        if mode is None:
            mode = "asymmetric" if state.coding == "optimal" and self.X is not None else "hamming"
            if rerank is None:
                rerank = self.X is not None and state.vectors is not None
        if rerank is False or rerank is None:
            return mode, 0
        if state.vectors is None:
            raise InvalidInput(
                "rerank needs the vectors, and the collection keeps none. Create it with "
                'vectors="float16", or search with mode="asymmetric", which needs the decoder alone.'
            )
        n = max(FACTOR * k, FEWEST) if rerank is True else rerank
        return mode, check_integer("rerank", n, k, MOST_ANSWERS, f"It must hold the k={k} answers.")

    def _among(self, where: Where | None) -> Any:
        if where is None:
            return None
        return At(self.now.matching(where))
