"""Edit: a transaction with a snapshot of what it begins with, and what it does to items.

Rows that come get ids and numbers, codes and vectors go behind those in the flat files, and the rest into
SQL tables; or all of the flat files are written again.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from auxbit.collection.snapshot import Snapshot, checksum, spoilt
from auxbit.collection.storage import Change
from auxbit.core.checks import Array, Ids, Packed, Positions
from auxbit.core.files import append_checked, integers
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
from auxbit.errors import InvalidInput
from auxbit.index.codes import LANES, full_planes, last_planes, numbers_from, runs, runs_check

BLOCK_ROWS = 2**14  # that are copied at a time, a multiple of 64
MEASURED_ROWS = 4096  # of an addition, whose reconstruction errors are measured
RUN_ROWS = 16  # integer ids are kept as runs if they are that long on average

Attachments = Sequence[bytes | None]


class Edit(Change):
    """A change of a collection. now : what it was at the beginning."""

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
        largest = 0 if own is None or isinstance(own[0], str) else max(own) + 1
        self.update(next_number=max(last, largest))
        self.report |= {"rows": n, "first_number": int(numbers[0]), **errors}
        return ids_array(numbers if own is None else own, self.state.ids)

    def _encoded(self, X: Array | None, codes: Array | None) -> tuple[Packed, dict[str, Any]]:
        """The codes of rows to add, and their reconstruction errors if they came as vectors."""
        from auxbit.core.maps import check_packed
        from auxbit.hashers.files import as_packed

        state = self.state
        if codes is not None:
            packed = np.asarray(codes)
            if packed.ndim == 2 and packed.shape[1] == state.n_bits and state.n_bits > 1:
                packed = as_packed(packed, state.n_bits, "codes")
            packed = check_packed(packed, state.n_bits)
            if X is not None and len(X) != len(packed):
                raise InvalidInput(f"X has {len(X)} rows, codes {len(packed)}.")
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
        following = numbers_from(state.next_number, n)
        if given is None:
            if state.ids not in (None, "integer"):
                raise InvalidInput(
                    f"the ids of the collection are {KINDS[state.ids]}: give those of the rows, ids=… "
                    "(--id-column NAME or --ids FILE)."
                )
            if n:
                self.update(ids="integer")
            return following, None
        ids, kind = given
        listed = ids.tolist() if isinstance(ids, np.ndarray) else ids
        if n and state.ids not in (None, kind):
            raise InvalidInput(f"the ids of the collection are {state.ids}, and {listed[0]!r} is {kind}.")
        refuse_repeats(ids, "ids")
        if not n:
            return following, None
        self.update(ids=kind)
        new = isinstance(ids, np.ndarray) and ids[0] >= state.next_number and bool((np.diff(ids) > 0).all())
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
        """Note which items lie from position `first` on; what goes on with the last stretch becomes one."""
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
        names = set().union(*filter(None, rows or ()))
        self.connection.executemany("INSERT OR IGNORE INTO fields VALUES (?)", [(name,) for name in names])

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
