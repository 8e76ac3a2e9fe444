"""Snapshot: a committed state of a collection, and Edit: a change, which begins with one.

The view maps the flat files and knows which item lies where. It grows with the collection; each generation of
the files has its own. A snapshot joins it with a connection to the database at the same commit. An edit joins
a snapshot with a transaction.
"""

from __future__ import annotations

import json
import math
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from auxbit.collection.storage import DATABASE, FROM_COPY, OR_SKIP, Change, State, Storage, understood
from auxbit.core.checks import Array, Ids, Packed, Positions, as_array
from auxbit.core.files import Checked, Kept, append_checked, integers
from auxbit.core.maps import check_packed
from auxbit.core.parallel import block_slices
from auxbit.core.progress import Progress
from auxbit.data.records import (
    KINDS,
    Records,
    Row,
    encode_metadata,
    ids_array,
    refuse_known,
    refuse_repeats,
    stored_ids,
)
from auxbit.data.vectors import blocks
from auxbit.data.where import Where, scalar_sql, warn_of_unknown
from auxbit.errors import CollectionError, Damaged, InvalidInput
from auxbit.index.codes import (
    LANES,
    At,
    CodeStore,
    Stretches,
    as_bools,
    full_planes,
    last_planes,
    numbers_from,
    runs,
    runs_check,
)
from auxbit.index.queries import Queries

if TYPE_CHECKING:
    from auxbit.core.decoders import Decoder
    from auxbit.hashers.base import Hasher
    from auxbit.index.hamming import HammingIndex

AT_ONCE = 10_000  # ids or numbers in one statement
MOST_KNOWN = 2**20  # ids that are remembered
MOST_LISTED = 2**25  # numbers in one text, of which SQLite has at most a billion bytes
BLOCK_ROWS = 2**14  # that are copied at a time, a multiple of 64
MEASURED_ROWS = 4096  # of an addition, whose reconstruction errors are measured
NUMBERED = 2**63 - 2**32  # numbers stay below: one id such as 2**63 - 1 would otherwise leave none
RUN_ROWS = 16  # integer ids are kept as runs if they are that long on average

Attachments = Sequence[bytes | None]

# ---- Rows of the database


def checksum(number: int, id_: Any, metadata: str | None) -> int:
    """What `items` keeps beside a row."""
    return zlib.crc32(f"{number}\0{id_}\0{metadata}".encode())


def spoilt(connection: sqlite3.Connection, table: str, *columns: str) -> dict[int, list[bytes]]:
    """The rows of a table that do not match their checksums: by number, these columns of them as bytes."""
    cells = ", ".join(f"CAST(ifnull({name}, 'None') AS BLOB)" for name in columns)
    rows = connection.execute(f"SELECT number, checksum, {cells} FROM {table} WHERE checksum IS NOT NULL")
    return {number: found for number, check, *found in rows if zlib.crc32(b"\0".join(found)) != check}


# ---- Views


class View:
    """Which item lies where, which are deleted, and the codes and vectors, of one generation, at `state`.

    It is what Queries search.
    """

    def __init__(self, storage: Storage, state: State, n_jobs: int | None, *, lenient: bool) -> None:
        self.place, self.n_bits, self.n_features = storage.place, state.n_bits, state.n_features
        self.coding, self.mu, self.kept = state.coding, state.mu, state.vectors
        self.has_lists, self.n_jobs = state.has_lists, n_jobs
        self.state = replace(state, positions=0, commit=-1)
        self.stretches, self.store = Stretches(), CodeStore(state.n_bits, None)
        self._deleted = 0  # the checksum of what was read of `deleted`
        self.known_ids: dict[int, Any] = {}  # of numbers that were looked up; they never get others
        self.lost: Ids = np.zeros(0, dtype=np.int64)  # numbers of items that are left out as damaged
        self._spoilt: dict[int, list[bytes]] = {}  # of the rows of `items`
        self._storage, self._lenient = storage, lenient
        self._codes = Checked(storage.flat(state.codes), state.codes, lenient=lenient)
        self._vectors = Checked(storage.flat(state.vectors_file), state.vectors_file, lenient=lenient)
        self._index: HammingIndex | None = None
        self._making = threading.RLock()  # of the index and the model, by several readers
        if storage.folder is not None and state.model is not None:
            self._model_file = Kept(storage.folder / state.model)  # which a retraining may remove

    def is_at(self, state: State, *, or_further: bool = False) -> bool:
        """Whether it shows this state, or one that was committed later and has the same positions."""
        same, ahead = self.state.files_key == state.files_key, self.state.commit - state.commit
        return same and (ahead >= 0 if or_further else ahead == 0)

    def advance(self, connection: sqlite3.Connection, state: State) -> None:
        """Take in what was added and deleted since, at the state that the connection sees."""
        before, size = self.state, self.state.positions
        fresh = integers(
            connection, "SELECT first_position, count, first_number FROM stretches "
            "WHERE first_position + count > ? ORDER BY first_position", size,
        )  # fmt: skip
        self.stretches = self.stretches.then(fresh)
        query = "SELECT in_commit, first_number, count FROM deleted WHERE in_commit > ?"
        gone = integers(connection, query, before.commit)
        self._deleted = runs_check(gone, self._deleted)
        # a checksum keeps nobody from crafting what it is of
        fewer = (gone[:, 2] > 0).all() and gone[:, 2].sum(dtype=np.float64) <= state.next_number
        same = runs_check(self.stretches.rows, self._deleted) == state.layout
        if not (same and fewer and self.stretches.cover(state.positions)):
            raise Damaged(
                f"{self.place}: {DATABASE} is damaged: `stretches` and `deleted` do not match their "
                f"checksum, or the items. {FROM_COPY}"
            )
        self._codes.grow(connection, state.code_bytes, LANES * state.width)
        last = np.frombuffer(state.last_codes, dtype=np.uint8)  # behind the mapped ones, for us alone
        self._codes.content[state.code_bytes :][: len(last)] = last
        if state.vectors is not None:
            self._vectors.grow(connection, state.positions * state.row_bytes)
        self.state = state
        if self._index is not None:
            self._codes.check()
        with nullcontext() if self._index is None else self._index.changing():
            shape = -(-state.positions // LANES), state.width, LANES
            self.store.grow(self._codes.content[: math.prod(shape)].reshape(shape), state.positions)
        _, firsts, counts = gone.T
        every = np.repeat(firsts - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        self.store.alive.take_out(self.stretches.find(every))
        if self._lenient:
            self._lose_damaged(connection)

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
        self._spoilt = spoilt(connection, "items", "number", "id", "metadata")
        positions = self.stretches.find(np.fromiter(self._spoilt, dtype=np.int64))
        gone[positions[positions >= 0]] = True
        if state.ids not in (None, "integer"):  # then every item has a row
            rows_there = integers(connection, "SELECT number FROM items WHERE id IS NOT NULL")
            gone |= ~np.isin(np.arange(state.positions), self.stretches.find(rows_there.ravel()))
        lost = self.store.alive.take_out(np.flatnonzero(gone))
        self.lost = np.union1d(self.lost, self.stretches.ids_at(lost))

    def damage(self) -> list[str]:
        """What was found to be wrong, one line each; nothing is looked for but by damaged="skip"."""
        found = [
            f"{name}: {len(flat.damage)} times 64 KB do not match their checksums"
            for name, flat in ((self.state.codes, self._codes), (self.state.vectors_file, self._vectors))
            if flat.damage
        ]
        for number, (_, id_, _) in self._spoilt.items():
            shown = number if id_ == b"None" else repr(id_.decode(errors="replace"))
            found.append(f"{DATABASE}: item {shown} does not match its checksum")
        return found

    @property
    def spoilt_rows(self) -> list[int]:
        """The numbers of what must go from the database with the items that are lost."""
        return sorted({*self.lost.tolist(), *self._spoilt})

    # ---- codes, vectors, model

    def codes(self, positions: Positions) -> Packed:
        """The packed codes at these positions, (n, width)."""
        blocks = positions // LANES
        self._codes.check_rows(blocks[blocks < self.state.positions // LANES], LANES * self.state.width)
        return self.store.codes.take(positions)

    def vectors(self, positions: Positions) -> Array:
        """The vectors at these positions, (n, D), in the type that they are kept in."""
        rows: Array = self.mapped_vectors(positions)[positions]
        return rows

    def mapped_vectors(self, positions: Positions) -> Array:
        """All vectors, where they lie in the file; those at these positions are sound."""
        if self.state.vectors is None:
            raise InvalidInput(f'{self.place} keeps no vectors. Create it with vectors="float16".')
        self._vectors.check_rows(positions, self.state.row_bytes)
        shape = (self.state.positions, self.state.n_features or 0)
        rows: Array = self._vectors.content.view(self.state.vectors).reshape(shape)
        return rows

    def index(self, decoder: Decoder | None = None) -> HammingIndex:
        """The index over the codes, by positions; with a decoder, ready for asymmetric search."""
        made = self._index
        self._codes.check_length()
        if made is not None and (decoder is None or made.decoder is decoder):
            return made
        from auxbit.index.hamming import HammingIndex

        with self._making:
            if self._index is None:
                self._codes.check()
                how = {"coding": self.coding, "mu": self.mu, "n_jobs": self.n_jobs}
                self._index = HammingIndex.over(self.store, lists=self.state.lists, **how)
            if decoder is not None and self._index.decoder is not decoder:
                self._index.attach(decoder)
            if self._storage.folder is not None and not self._lenient:  # what lies sorted by list is mapped
                self._index.adopt_lists(self._storage.folder / self.state.lists_file, self.lists_key)
            return self._index

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

    @property
    def metric(self) -> str:
        """By which neighbours are meant: that of the model."""
        return "euclidean" if self.state.model is None else self.model().scaling_.metric

    def model(self) -> Hasher:
        """The hasher, loaded at first use."""
        name, models = self.state.model, self._storage.models
        if name is None:
            raise InvalidInput(
                f"{self.place} holds codes without a model. Search and add by codes=…, or give a model to "
                "Collection.create."
            )
        with self._making:
            if name not in models:
                models.clear()  # one is enough
                models[name] = self._loaded(name)
            found: Hasher = models[name]
            return found

    def _loaded(self, name: str) -> Hasher:
        from auxbit.hashers.registry import load

        model: Hasher = self._model_file.read(load)
        found = model.code_bits(self.coding), int(model.n_features_in_)
        if found[0] != self.n_bits or self.n_features not in (None, found[1]):
            # its decoder would be taken to be that of these codes
            raise CollectionError(
                f"{self.place}: {name} makes codes of {found[0]} bits from rows of {found[1]}, "
                f"expected {self.n_bits} bits from {self.n_features}. {FROM_COPY}"
            )
        model.n_jobs = self.n_jobs
        return model


# ---- Snapshots


class Snapshot(NamedTuple):
    """A connection, if one is needed, and a view at the same state, for the length of a read."""

    connection: Any
    view: View

    @property
    def state(self) -> State:
        """What was committed."""
        return self.view.state

    # ---- ids

    def find(self, ids: Ids | list[str], kind: str) -> Ids:
        """The numbers of items by their ids, of a kind; -1 if one is not there."""
        listed = ids.tolist() if isinstance(ids, np.ndarray) else ids
        found = np.full(len(listed), -1, dtype=np.int64)
        if kind != (self.state.ids or "integer"):
            return found
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
        found[~self.view.store.alive.holds(self.view.stretches.find(found))] = -1
        return found

    def places(self, ids: Any) -> Positions:
        """The positions of items by their ids, as the user gives them; InvalidInput if one is not there."""
        (given, kind), own = stored_ids(ids), self.state.ids or "integer"
        numbers = self.find(given, kind)
        if (numbers < 0).any():
            id_ = given[int((numbers < 0).argmax())]
            id_ = int(id_) if kind == "integer" else id_
            why = "" if kind == own else f", whose ids are {KINDS[own]}"
            raise InvalidInput(f"id {id_!r} is not in the collection{why}.")
        return self.view.stretches.find(numbers)

    def chosen(self, ids: Any, where: Any = None) -> Positions:
        """The positions of items by their ids, or of those that `where` finds, or of all."""
        if ids is not None:
            return self.places(ids)
        return self.view.store.present() if where is None else self.matching(Where.of(where))

    def ids_at(self, positions: Positions) -> Array:
        """The ids of items at these positions, of the same shape.

        Without a connection KeyError, if one has not been looked up before.
        """
        view, numbers = self.view, self.view.stretches.ids_at(positions)
        if not view.state.own_ids:
            return numbers
        listed, known = numbers.ravel().tolist(), view.known_ids
        unknown = [] if self.connection is None else [each for each in listed if each not in known]
        if unknown:
            if len(known) > MOST_KNOWN:
                known = view.known_ids = {}
                unknown = listed
            own = {number: id_ for number, id_, _ in self._all_rows(unknown) if id_ is not None}
            with understood(f"{view.place}: an id"):
                ids = ids_array([own.get(number, number) for number in unknown], self.state.ids)
            known.update(zip(unknown, ids.tolist()))
        kind = np.int64 if view.state.ids == "integer" else object
        return np.fromiter(map(known.__getitem__, listed), kind, len(listed)).reshape(positions.shape)

    def queries(self, X: Any, codes: Any, like: Any, column: str | None, mode: str | None = None) -> Queries:
        """What is searched for: X, codes, or an item, by its vector if that is kept, else by its code."""
        if like is None:
            return Queries(self.view, X, codes, column)
        if not (X is codes is None):
            raise InvalidInput("like is the id of an item to search for: give like alone, or X or codes.")
        view, place = self.view, self.places([like])
        X = None if view.kept is None else view.vectors(place)[0]
        if X is not None and self.state.model is not None:
            return Queries(view, X)
        codes = view.codes(place)
        if self.state.by_decoder or view.metric == "inner_product" or mode == "asymmetric":
            # what the decoder makes of the code is all there is; a lifted query has another code than a row
            return Queries(view, view.model().decode(codes)[0])
        return Queries(view, X, codes[0])

    def codes_and_error(self, positions: Positions, since: int) -> tuple[Packed, float | None]:
        """Codes and their mean error, from vectors, else as measured when rows from `since` on came."""
        codes = self.view.codes(positions)
        if self.state.vectors is not None:
            return codes, self.view.model()._error_of(self.view.vectors(positions), codes)
        first = int(self.view.stretches.ids_at(np.array([since]))[0])
        n, total = self.connection.execute(
            "SELECT sum(error_rows), sum(error_sum) FROM commits WHERE first_number + rows > ?", (first,)
        ).fetchone()
        return codes, total / n if n else None

    # ---- metadata

    def metadata(self, positions: Positions) -> list[Row]:
        """The metadata of items at these positions, {} if there are none."""
        numbers = self.view.stretches.ids_at(positions).tolist()
        found = {number: text for number, _, text in self._all_rows(numbers)}
        with understood(f"{self.view.place}: the metadata of an item"):
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
        return self.view.store.alive.count - n if by_default else n

    def among(self, where: Where | None) -> At | None:
        """What a search may return; None: everything."""
        return None if where is None else At(self.matching(where))

    def matching(self, where: Where) -> Positions:
        """The positions of items whose metadata `where` asks for, in order."""
        asked = self._as_sql(where)
        if asked is None:
            present = self.view.store.present()
            fits = [where.matches(row) for row in self.metadata(present)]
            return present[np.array(fits, dtype=np.bool_)]
        condition, parameters, by_default = asked
        found = self.view.stretches.find(self._numbers(condition, parameters))
        alive, size = self.view.store.alive, self.state.positions
        if not by_default and len(found) < size // 64:
            return np.sort(found[alive.holds(found)])
        match = np.full(size + 1, by_default)  # with many of them this is faster than sorting
        match[found] = not by_default  # of -1, the last one
        return np.flatnonzero(match[:size] & as_bools(alive.masks, size))

    def _numbers(self, condition: str, parameters: list[Any]) -> Ids:
        """The numbers of the rows of `items` that fulfil a condition."""
        firsts = self.view.stretches.ids_at(np.arange(0, self.state.positions, MOST_LISTED)).tolist()
        texts = []
        for first, following in zip(firsts, [*firsts[1:], 2**63]):
            part = f"number >= {first} AND number < {following}" if len(firsts) > 1 else "1"
            # as one text: a tuple for each of many numbers would take longer than finding them
            query = f"SELECT group_concat(number) FROM items WHERE {condition} AND {part}"
            texts.append(self.connection.execute(query, parameters).fetchone()[0] or "")
        every = [np.fromstring(text, dtype=np.int64, sep=",") for text in texts]
        return np.concatenate([np.zeros(0, dtype=np.int64), *every])

    def _as_sql(self, where: Where) -> tuple[str, list[Any], bool] | None:
        """A condition on rows of `items`, with parameters; or None if metadata must be read.

        And whether items without metadata match: these need no row, and the condition finds all that do not.
        """
        warn_of_unknown(where.fields, self.fields())
        if where.function is not None or len(self.view.lost):  # SQLite may stumble over what is damaged
            return None
        by_default = where.matches({})
        return *(where.opposite if by_default else where).sql(indexed=self.indexed_fields()), by_default

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
        warn_of_unknown([field], self.fields())
        by, way = scalar_sql(field), "DESC" if descending else "ASC"
        query = f"SELECT number FROM items WHERE {by} IS NOT NULL ORDER BY {by} {way}, number"
        found = self.view.stretches.find(integers(self.connection, query).ravel())
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


# ---- Edits


class Edit(Change):
    """A change of a collection. now : what it was at the beginning.

    Rows that come get ids and numbers, codes and vectors go behind those in the flat files, and the rest into
    SQL tables; or all of the flat files are written again.
    """

    now: Snapshot

    # ---- adding

    def add(
        self, rows: Records, X: Array | None, codes: Array | None, *, upsert: bool, trained: bool,
        attachments: Attachments | None = None,
    ) -> Array:  # fmt: skip
        """Add rows, with their vectors or codes or both; returns their ids."""
        from auxbit.hashers.files import check_kept

        before, n = self.state, len(rows)
        given = None if rows.ids is None else stored_ids(rows.ids, n)
        metadata = None if rows.metadata is None else rows.metadata[:]
        texts = None if metadata is None else encode_metadata(metadata, n)
        packed, errors = self._encoded(X, codes)
        if before.vectors is not None:
            scaling = None if before.model is None else self.now.view.model().scaling_
            X = check_kept(X, before.n_features, before.vectors, scaling)
        numbers, own = self._settle_ids(given, n, upsert)
        if not n:
            return ids_array([], before.ids)
        self._append(packed, X, numbers)
        self._insert_items(numbers, own, texts)
        self.note_fields(metadata)
        pairs = zip(numbers.tolist(), attachments or ())
        self.connection.executemany(
            "INSERT INTO attachments VALUES (?, ?, ?)",
            [(number, each, zlib.crc32(each)) for number, each in pairs if each is not None],
        )
        last = int(numbers[-1]) + 1
        if trained and before.trained == before.next_number:
            self.update(trained=last)
        near = [] if own is None or isinstance(own[0], str) else [each for each in own if each < NUMBERED]
        self.update(next_number=max(last, max(near, default=-1) + 1))
        self.report |= {"rows": n, "first_number": int(numbers[0]), **errors}
        return ids_array(numbers if own is None else own, self.state.ids)

    def _encoded(self, X: Array | None, codes: Array | None) -> tuple[Packed, dict[str, Any]]:
        """The codes of rows to add, and their reconstruction errors if they came as vectors."""
        from auxbit.hashers.files import as_packed

        state = self.state
        if codes is not None:
            packed = as_array(codes, "codes")
            if packed.ndim == 2 and packed.shape[1] == state.n_bits and state.n_bits > 1:
                packed = as_packed(packed, state.n_bits, "codes")
            packed = check_packed(packed, state.n_bits)
            if X is not None and len(X) != len(packed):
                raise InvalidInput(f"X has {len(X)} rows, but codes has {len(packed)}: give one per row.")
            return packed, {}
        model = self.now.view.model()
        if X is None or not len(X):
            return np.zeros((0, state.width), dtype=np.uint8), {}
        packed = model.encode(X, coding=state.coding, mu=state.mu)
        some = np.unique(np.linspace(0, len(X) - 1, min(len(X), MEASURED_ROWS)).astype(np.int64))
        mean = model._error_of(np.asarray(X[some]), packed[some])
        return packed, {"error_rows": len(X), "error_sum": mean * len(X)}

    def _settle_ids(
        self, given: tuple[Any, str] | None, n: int, upsert: bool
    ) -> tuple[Ids, list[Any] | None]:
        """The numbers of n rows, and their ids if these are others; rows that they replace are deleted."""
        state = self.state
        if n and state.next_number + n > NUMBERED:
            raise InvalidInput(
                "items are numbered from the largest id below 2**63-2**32 on, and after "
                f"{state.next_number - 1} too few numbers are left for {n:,} rows. Copy all items into a new "
                "collection, with smaller ids or with text as ids."
            )
        following = numbers_from(state.next_number, n)
        if given is None:
            if state.ids not in (None, "integer"):
                raise InvalidInput(
                    f"the ids of the collection are {KINDS[state.ids]}: give an id for each row by ids=… "
                    "(--id-column NAME or --ids FILE)."
                )
            if n:
                self.update(ids="integer")
            return following, None
        ids, kind = given
        listed = ids.tolist() if isinstance(ids, np.ndarray) else ids
        if n and state.ids not in (None, kind):
            raise InvalidInput(f"the collection's ids are {KINDS[state.ids]}, but {listed[0]!r} is {kind}.")
        refuse_repeats(ids, "ids")
        if not n:
            return following, None
        self.update(ids=kind)
        new = (
            isinstance(ids, np.ndarray) and ids[0] >= state.next_number and bool((np.diff(ids) > 0).all())
            and ids[-1] < NUMBERED
        )  # fmt: skip
        if upsert or (isinstance(ids, np.ndarray) and not new):  # of text the database tells what is there
            known = self.now.find(ids, kind)
            if not upsert:
                refuse_known(ids, known >= 0)
            self.delete(np.sort(known[known >= 0]))
        if new and len(runs(ids)) <= max(1, n // RUN_ROWS):
            return ids, None
        self.update(own_ids=1)
        return following, listed

    def _append(self, packed: Packed, X: Array | None, numbers: Ids) -> None:
        """Write codes and vectors behind those that are there, and note which items they are."""
        state, width = self.state, packed.shape[1]
        begun = state.positions % LANES
        head = np.frombuffer(state.last_codes, dtype=np.uint8).reshape(-1, LANES).T[:begun]
        every = np.concatenate([head.reshape(begun, width), packed])
        if len(every) >= LANES:
            self._extend(state.codes, state.code_bytes, [full_planes(every)], LANES * width)
        if state.vectors is not None and X is not None:
            dtype = np.dtype(state.vectors).newbyteorder("<")
            pieces = (np.asarray(X[rows], dtype=dtype) for rows in blocks(X))
            self._extend(state.vectors_file, state.positions * state.row_bytes, pieces)
        self._note_stretches(state.positions, numbers)
        self.update(positions=state.positions + len(packed), last_codes=last_planes(every).tobytes())

    def _extend(self, name: str, end: int, pieces: Iterable[Array], room: int = 0) -> None:
        append_checked(self.connection, self.storage.flat(name), name, end, pieces, room)

    def _note_stretches(self, first: int, numbers: Ids) -> None:
        """Note which items lie from position `first` on; what continues the last stretch joins it."""
        rows, layout = runs(numbers), self.state.layout
        rows[:, 0] += first
        last = integers(self.connection, "SELECT * FROM stretches ORDER BY first_position DESC LIMIT 1")
        if len(last) and len(rows) and last[0, 2] + last[0, 1] == rows[0, 2]:
            layout = runs_check(-last, layout)
            rows[0] = last[0, 0], last[0, 1] + rows[0, 1], last[0, 2]
        self._insert("stretches", rows, layout)

    def _insert(self, table: str, rows: Ids, layout: int) -> None:
        """Insert rows into `stretches` or `deleted`, or replace those that begin alike."""
        self.connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?)", rows.tolist())
        self.update(layout=runs_check(rows, layout))

    def _insert_items(self, numbers: Ids, own: list[Any] | None, texts: Sequence[str | None] | None) -> None:
        """Store ids and metadata of items that have any of their own."""
        if own is None and texts is None:
            return
        none = [None] * len(numbers)
        rows = (
            (number, id_, text, checksum(number, id_, text))
            for number, id_, text in zip(numbers.tolist(), own or none, texts or none)
            if id_ is not None or text is not None
        )
        try:
            self.connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?)", rows)
        except sqlite3.IntegrityError:
            refuse_known(own or [], self.now.find(own or [], str(self.state.ids)) >= 0)
            raise

    # ---- changing and deleting

    def note_fields(self, rows: Sequence[Row | None] | None) -> None:
        """Keep the names of fields, so that a misspelt one can be told from one that finds nothing."""
        names = [(name,) for name in set().union(*filter(None, rows or ()))]
        try:
            self.connection.executemany("INSERT OR IGNORE INTO fields VALUES (?)", names)
        except UnicodeEncodeError as error:
            raise InvalidInput(
                f"metadata has the field {error.object!r}, whose name UTF-8 cannot hold: rename it."
            ) from error

    def update_items(self, positions: Positions, rows: Sequence[Row | None], *, replace: bool) -> None:
        """Change metadata: fields are set, None removes one; with `replace` all others are removed."""
        texts = encode_metadata(rows, len(positions))
        for number, text in zip(self.now.view.stretches.ids_at(positions).tolist(), texts):
            _, id_, old = next(self.now.rows("number", [number]), (number, None, None))
            if not replace:
                patch = self.connection.execute("SELECT json_patch(?, ?)", (old or "{}", text or "{}"))
                text = patch.fetchone()[0]
            self.connection.execute(
                "INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?)",
                (number, id_, text, checksum(number, id_, text)),
            )
        self.note_fields(rows)
        self.update(updated=self.before.commit + 1)

    def delete(self, numbers: Ids) -> None:
        """Delete items by their numbers, which rise."""
        self._forget(("items", "attachments"), numbers.tolist())
        _, counts, firsts = runs(numbers).T
        commits = np.full(len(firsts), self.before.commit + 1)
        self._insert("deleted", np.stack([commits, firsts, counts], axis=1), self.state.layout)
        self.update(deleted=self.state.deleted + len(numbers))

    def _forget(self, tables: Sequence[str], numbers: Iterable[int]) -> None:
        listed = [(number,) for number in numbers]
        for table in tables:
            self.connection.executemany(f"DELETE FROM {table} WHERE number = ?", listed)

    # ---- all of it again

    def rewrite(self, codes: Callable[[slice], Packed] | None, progress: Progress) -> None:
        """Write the next generation of the flat files, with other codes if given."""
        before, view, last = self.before, self.now.view, [b""]
        positions, number = view.store.present(), before.generation + 1
        n = len(positions)
        parts = list(block_slices(n, BLOCK_ROWS))

        def planes() -> Iterator[Array]:
            for rows in parts:
                packed = view.codes(positions[rows]) if codes is None else codes(rows)
                yield full_planes(packed)
                last[0] = last_planes(packed).tobytes()
                progress.advance(len(packed))

        for table in ("checks", "deleted", "stretches"):
            self.connection.execute(f"DELETE FROM {table}")
        names = {"codes": f"codes.{number}", "vectors_file": f"vectors.{number}"}
        self.update(generation=number, positions=n, deleted=0, layout=0, **names)
        self._extend(self.state.codes, 0, planes(), LANES * self.state.width)
        if before.vectors is not None:
            kept = (view.vectors(positions[rows]) for rows in parts)
            self._extend(self.state.vectors_file, 0, kept)
        self._note_stretches(0, view.stretches.ids_at(positions))
        self.update(last_codes=last[0])

    def tidy(self, *, repair: bool) -> None:
        """Find the names of fields again; repair : remove rows that do not match their checksums."""
        if repair:
            self._repair()
        self.connection.execute("DELETE FROM fields")
        self.connection.execute(
            "INSERT OR IGNORE INTO fields SELECT key FROM items, json_each(items.metadata) "
            "WHERE items.metadata IS NOT NULL"
        )

    def _repair(self) -> None:
        """Remove what does not match its checksum, and make the indexes of `items` again."""
        indexes = self.connection.execute(
            "SELECT sql, replace(name, '\"', '\"\"') FROM sqlite_master "
            "WHERE type = 'index' AND tbl_name = 'items' AND sql IS NOT NULL"
        ).fetchall()
        for _, name in indexes:  # first: SQLite could not find there what has changed
            self.connection.execute(f'DROP INDEX "{name}"')
        self._forget(("items", "attachments"), self.now.view.spoilt_rows)
        self._forget(("attachments",), spoilt(self.connection, "attachments", "content"))
        for statement, _ in indexes:
            self.connection.execute(statement)
