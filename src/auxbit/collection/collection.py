"""Collection: a model, codes, ids, metadata and perhaps vectors in a folder that survives crashes."""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from auxbit.collection import storage
from auxbit.collection.snapshot import (
    KINDS,
    Snapshot,
    Snapshots,
    as_array,
    check_ids,
    checksum,
    runs,
    typed_ids,
)
from auxbit.collection.storage import LANES, RUN_ROWS, Change, State, Storage
from auxbit.core.checks import Array, Mask, Packed, PathLike, Positions, check_finite, check_integer
from auxbit.core.progress import Progress, Silent
from auxbit.data.records import (
    Records,
    Row,
    columns_of,
    encode_metadata,
    metadata_rows,
    read_ids,
    read_records,
    read_table,
    refuse_repeats,
    without_vectors,
)
from auxbit.data.vectors import as_rows
from auxbit.data.where import Where, scalar_sql
from auxbit.errors import AuxbitError, Damaged, FileProblem, InvalidInput, InvalidParameter

if TYPE_CHECKING:
    from auxbit.collection.statistics import Statistics
    from auxbit.hashers.base import Hasher
    from auxbit.index.answers import Answers

MODES = ("hamming", "asymmetric")
VECTORS = (None, "float32", "float16")
FACTOR = 10  # candidates for each answer of a re-ranked search, by default
MOST_ANSWERS = 2**31 - 1
BATCH_ROWS = 131_072  # of a file: each batch is on disk before the next begins
BLOCK_ROWS = 2**14  # that are copied at a time, a multiple of 64
BLOCK_BYTES = 2**24  # of vectors that are converted at a time
MEASURED_ROWS = 4096  # of an addition, whose reconstruction errors are measured
DEFAULT_METHOD, DEFAULT_BITS = "ba", 32
LISTED = 100  # items that `list` returns by default

Items = list[Row]  # the class has a method of that name
Groups = list[Array]
Lines = list[str]
Advance = Callable[[int], object]
Stopped = Callable[[int, int], object]


class Collection:
    """Items with ids, codes, metadata and perhaps vectors, in a folder; `create` makes one.

    What a change has returned from is on disk and stays there. One process writes at a time, from its first
    change until `close`; any number search at once, each search at one committed state. Ids are integers,
    text or UUIDs, one kind in a collection.

    >>> with Collection.create("papers.auxbit", X, bits=128, ids=names, metadata=rows) as papers:
    ...     distances, ids = papers.search(x, k=10, where="year >= 2020 and lang = en")
    >>> papers = Collection("papers.auxbit")
    """

    def __init__(
        self, path: PathLike, *, read_only: bool = False, damaged: str = "error", n_jobs: int | None = None
    ) -> None:
        """Open a collection; no rows are read before they are needed.

        damaged : "error", or "skip" to read what is left of damaged files, without changing it: `damage`
            lists what is wrong, and `compact` makes the rest a whole collection again.
        """
        if damaged not in ("error", "skip"):
            raise InvalidParameter("damaged", damaged, "'error' or 'skip'")
        self._begin(Storage(Path(path), read_only=read_only), n_jobs, lenient=damaged == "skip")

    def _begin(self, opened: Storage, n_jobs: int | None, *, lenient: bool = False) -> None:
        self._storage, self.path = opened, opened.folder
        self.n_jobs = n_jobs  # threads that search and encode; None: all cores
        self._snapshots = Snapshots(opened, n_jobs, lenient=lenient)

    @classmethod
    def open(
        cls, path: PathLike, *, read_only: bool = False, damaged: str = "error", n_jobs: int | None = None
    ) -> Self:
        """The same as Collection(path)."""
        return cls(path, read_only=read_only, damaged=damaged, n_jobs=n_jobs)

    @classmethod
    def create(
        cls, path: PathLike | None, source: Any = None, *, model: Any = None, bits: int | None = None,
        ids: Any = None, metadata: Any = None, vectors_column: str | None = None, codes: Any = None,
        vectors: str | None = None, method: str | None = None, normalize: bool = False,
        coding: str | None = None, mu: float | None = None, decoder: str | None = None,
        n_features: int | None = None, random_state: int = 0, overwrite: bool = False,
        n_jobs: int | None = None, progress: Progress | None = None, stopped: Stopped | None = None,
    ) -> Self:  # fmt: skip
        """Make a collection, in a new folder or, with path=None, in memory.

        source : the first rows: an array, a DataFrame, a file …, all that `add` takes, to which a model is
            fitted; or a fitted model or its file. Without it codes of `bits` are kept, made elsewhere, and
            vectors of `n_features` numbers.
        model : a fitted model or its file, which encodes the rows of `source`.
        bits, method, normalize, random_state : of the model that is fitted; by default 32 bits of "ba".
        ids, metadata, vectors_column, codes, stopped : of the first rows, as in `add`.
        vectors : keep them as "float32" or "float16", for re-ranking and retraining; None: keep codes only.
        coding, mu : how rows are encoded, as in `encode`: "hash", or "optimal" for search by the decoder;
            None: as the model's decoder is meant, optimal after fit_decoder.
        decoder : "linear" or "tables", to be fitted to optimal codes; None for that of the model.
        """
        told, folder = progress or Silent(), None if path is None else Path(path)
        if folder is not None:
            storage.refuse_existing(folder, overwrite=overwrite)
        from auxbit.hashers.files import as_model, suit_coding

        rows = None
        if model is None and (model := as_model(source)) is not None:
            source = None
        elif model is not None:
            model = _given_model(model)
        if codes is not None or source is not None:
            rows = _records(source if codes is None else codes, vectors_column, ids, metadata)
        trains = rows is not None and model is None and codes is None
        if rows is not None and trains:
            wanted = {"method": method, "random_state": random_state} | (
                {"normalize": True} if normalize else {}
            )
            model, bits = _new_model(rows, bits, n_jobs, told, **wanted), None
        if model is not None:
            X = None
            if rows is not None and codes is None and not _hold_codes(rows, *_sizes(model)):
                X = _whole(rows)
            coding, mu = suit_coding(model, X, coding, mu, decoder, told)
        state = _first_state(model, vectors, coding, mu, bits, n_features)
        made = cls._made(folder, model, state, n_jobs)
        try:
            if rows is not None:
                made._add_records(rows, codes is not None, False, trains, 0, told, stopped)
        except InvalidInput:
            made._undo(folder, replaced=overwrite)
            raise
        except BaseException:
            made.close()
            raise
        return made

    @classmethod
    def _made(cls, folder: Path | None, model: Hasher | None, state: State, n_jobs: int | None) -> Self:
        if folder is not None:
            try:
                storage.make_folder(folder.absolute(), state, None if model is None else model.save)
            except AuxbitError:
                raise
            except OSError as error:
                raise FileProblem(f"{folder} could not be made: {error.strerror or error}.") from error
            return cls(folder, n_jobs=n_jobs)
        made = cls.__new__(cls)
        made._begin(Storage(None, read_only=False, state=state), n_jobs)
        if model is not None and state.model is not None:
            made._storage.models[state.model] = model
        return made

    def _undo(self, folder: Path | None, *, replaced: bool) -> None:
        """Take back what was just made, if its first rows cannot be added."""
        empty = not len(self)
        self.close()
        if empty and folder is not None and not replaced:
            shutil.rmtree(folder)

    # ---- changes

    def add(
        self, X: Any = None, *, codes: Any = None, ids: Any = None, metadata: Any = None,
        vectors_column: str | None = None, attachments: Sequence[bytes | None] | None = None,
        upsert: bool = False, trained: bool = False, first_row: int = 0, progress: Progress | None = None,
        stopped: Stopped | None = None,
    ) -> Array:  # fmt: skip
        """Add rows, all or none; they are on disk when it returns their ids.

        X : (n, D), encoded by the stored model; a DataFrame of pandas or polars, a pyarrow table or a list of
            dicts, of which `vectors_column` holds the vectors; or a file of any of these, whose batches of
            131,072 rows are on disk one after another. codes : (n, ceil(n_bits/8)) uint8, packed, made
            elsewhere, or a file of them.
        ids : (n,) integers of 0 and up, text or UUIDs, or the name of their column; by default they continue
            the numbers. An id that is there already is an error; with `upsert` its row is replaced.
        metadata : a list with a dict for each row, a dict with a list for each field, or a DataFrame; of rows
            with columns the names of those to keep, by default all others.
        attachments : bytes or None for each row, which `attachment` gives. trained : the model was fitted
            to these rows; `stats` compares later ones with them. first_row : begin at this row of the file.
        stopped : called if a file ends early, with the row to resume from and the number of rows.
        """
        packed_only = X is None and codes is not None
        source = codes if packed_only else X
        if source is None:
            raise InvalidInput("nothing to add: give X, rows to encode, or codes=…")
        if isinstance(source, str | os.PathLike):
            rows = _records(source, vectors_column, ids, metadata)
            if rows.ids is not None and _has_no_types(ids if _is_file(ids) else source):
                kind = self._storage.state.ids
                if kind is not None and isinstance(rows.ids, np.ndarray) != (kind == "integer"):
                    rows = replace(rows, ids=list(self.parse_ids(rows.ids)))
            self._add_records(rows, packed_only, upsert, trained, first_row, progress or Silent(), stopped)
            return self.ids[len(self) - (len(rows) - first_row) :]
        rows = _records(source, vectors_column, ids, metadata)
        beside = None if codes is None else _whole(rows) if packed_only else np.asarray(codes)
        return self._add(rows, beside, upsert, trained, attachments, packed_only=packed_only)

    def _add_records(
        self, rows: Records, are_codes: bool, upsert: bool, trained: bool, first: int, told: Progress,
        stopped: Stopped | None,
    ) -> None:  # fmt: skip
        """Add the rows of a file from row `first` on, batch by batch."""
        if not 0 <= first <= len(rows):
            raise InvalidParameter("from-row", first, f"0 to {len(rows)}, the rows of {rows.name}")
        self._storage.lock()  # nobody else may add from here on
        if rows.ids is not None and not upsert:
            given, kind = check_ids(rows.ids[first:])
            with self._snapshots.taken() as now:
                if kind == now.state.ids:
                    _refuse_known(np.asarray(given).tolist(), now.find(given))
        state = self._storage.state
        are_codes = _hold_codes(rows, state.n_bits, None if are_codes else state.n_features)
        before, n = state.positions, len(rows)
        told.stage("adding", n - first)
        try:
            for start in range(first, n, BATCH_ROWS):
                part = rows[start : min(start + BATCH_ROWS, n)]
                packed = _whole(part) if are_codes else None
                self._add(part, packed, upsert, trained, None, packed_only=are_codes)
                told.advance(len(part))
        except BaseException as error:
            if stopped is not None:  # from the disk: an interrupt may come just after a batch was committed
                stopped(first + self._storage.state.positions - before, n)
            if isinstance(error, InvalidInput):  # a batch counts its own rows
                if not are_codes:
                    check_finite(rows.X, name=rows.name)
                encode_metadata(rows.metadata, n)
            raise

    def _add(
        self, rows: Records, codes: Array | None, upsert: bool, trained: bool,
        attachments: Sequence[bytes | None] | None, *, packed_only: bool,
    ) -> Array:  # fmt: skip
        n, X = len(rows), None if packed_only else _whole(rows)
        given = None if rows.ids is None else check_ids(rows.ids, n)
        listed = None if rows.metadata is None else rows.metadata[:]
        texts = None if listed is None else encode_metadata(listed, n)
        if attachments is not None and len(attachments) != n:
            raise InvalidInput(f"there are {len(attachments)} attachments for {n} rows.")
        with self._changing("added") as (change, now):
            state = change.state
            packed, errors = _encoded(now, X, codes)
            if state.vectors is not None:
                X = _checked_vectors(X, now)
            numbers, own = _settle_ids(change, now, given, n, upsert)
            if not n:
                return as_array([], state.ids)
            self._append(change, packed, X, numbers)
            try:
                _insert_items(change.connection, numbers, own, texts)
            except sqlite3.IntegrityError:
                _refuse_known(own or [], now.find(own or []))
                raise
            _note_fields(change, listed)
            if attachments is not None:
                change.connection.executemany(
                    "INSERT INTO attachments VALUES (?, ?, ?)",
                    (
                        (int(number), each, zlib.crc32(each))
                        for number, each in zip(numbers, attachments)
                        if each is not None
                    ),
                )
            last = int(numbers[-1]) + 1
            if trained and state.trained == state.next_number:
                change.update(trained=last)
            largest = 0 if own is None or isinstance(own[0], str) else max(own) + 1
            change.update(next_number=max(last, largest))
            change.report |= {"rows": n, "first_number": int(numbers[0]), **errors}
            kind = change.state.ids
        return as_array(numbers if own is None else own, kind)

    def _append(self, change: Change, packed: Packed, X: Array | None, numbers: Positions) -> None:
        """Write codes and vectors behind those that are there, and note which items they are."""
        state, width = change.state, packed.shape[1]
        begun = state.positions % LANES
        head = np.frombuffer(state.last_codes, dtype=np.uint8).reshape(-1, LANES).T[:begun]
        every = np.concatenate([head.reshape(begun, width), packed])
        full = len(every) // LANES * LANES
        if full:
            planes = every[:full].reshape(-1, LANES, width).transpose(0, 2, 1)
            self._storage.extend(change, state.codes, state.code_bytes, [planes], state.block_bytes)
        block = np.zeros((width, LANES), dtype=np.uint8)
        block[:, : len(every) - full] = every[full:].T
        if state.vectors is not None and X is not None:
            pieces = _converted(X, state.vectors)
            self._storage.extend(change, state.vectors_file, state.vector_bytes, pieces)
        _note_stretches(change, state.positions, numbers)
        change.update(positions=state.positions + len(packed), last_codes=block.tobytes())

    def delete(self, ids: Any = None, *, where: Any = None) -> int:
        """Delete by id, all or none, or what `where` finds; returns how many items."""
        if (ids is None) == (where is None):
            raise InvalidInput("say what to delete: ids, or where=…")
        with self._changing("deleted") as (change, now):
            positions = np.unique(now.places(ids)) if where is None else now.matching(Where.of(where))
            if len(positions):
                _delete(change, now.view.numbers_at(positions))
        return len(positions)

    def update_metadata(
        self, ids: Any = None, metadata: Any = None, *, where: Any = None, replace: bool = False
    ) -> int:
        """Change metadata without touching codes and vectors; returns how many items.

        metadata : one dict for all; or a list of dicts, a frame or a file (a Path), with a row for each of
        the ids. ids : or the name of their field in these rows. Fields are set, those that are None are
        removed (RFC 7396), and others stay; with `replace` they are removed, too.
        """
        if (ids is None) == (where is None):
            raise InvalidInput("say which items to update: ids, or where=…")
        if isinstance(metadata, os.PathLike):
            metadata = read_table(metadata)
        if isinstance(ids, str):
            ids, metadata = _ids_within(metadata, ids)
            ids = self.parse_ids(ids)
        with self._changing("metadata updated") as (change, now):
            positions = now.places(ids) if where is None else now.matching(Where.of(where))
            rows = [metadata] * len(positions) if isinstance(metadata, dict) else metadata
            listed = metadata_rows(rows, len(positions))[:]
            texts = encode_metadata(listed, len(positions))
            if len(positions):
                _update_items(now, positions, texts, replace)
                _note_fields(change, listed)
                change.update(updated=change.before.commit + 1)
        return len(positions)

    def index_field(self, field: str, *, remove: bool = False) -> None:
        """Make conditions on a metadata field fast by an index, or remove that."""
        name = '"field ' + field.replace('"', '""') + '"'
        with self._changing("field indexed") as (change, now):
            now.warn_of_unknown([field])
            change.connection.execute(
                f"DROP INDEX IF EXISTS {name}" if remove
                else f"CREATE INDEX IF NOT EXISTS {name} ON items ({scalar_sql(field)})"
            )  # fmt: skip
            change.update()

    def compact(self, *, advance: Advance | None = None) -> None:
        """Write codes and vectors again without what is deleted; searches continue meanwhile.

        Takes as much disk again until it is done. advance : called with numbers of rows.
        """
        with self._changing("compacted", repairs=True) as (change, now):
            self._rewrite(change, now, None, advance)
            connection = change.connection
            if self._snapshots.lenient:
                _repair(connection, now.view.spoilt_rows)
            connection.execute("DELETE FROM fields")
            connection.execute(
                "INSERT OR IGNORE INTO fields SELECT key FROM items, json_each(items.metadata) "
                "WHERE items.metadata IS NOT NULL"
            )
        self._snapshots.lenient = False

    def retrain(
        self, model: Any = None, *, X: Any = None, bits: int | None = None,
        method: str | None = None, random_state: int | None = None, advance: Advance | None = None,
        step: Callable[[str], object] | None = None, progress: Progress | None = None,
    ) -> Hasher:  # fmt: skip
        """Make new codes by another model, beside the old ones, and switch to them in one step.

        model : a fitted hasher or its file; None: one like the present, or of other bits, method and
            random_state, fitted to the vectors of the collection, or to 100,000 of them.
        X : (n, D) or a file, in the order of `ids`, if the collection keeps no vectors. Searches continue
            meanwhile. advance, step : called with numbers of rows, and with what is being done.
        """
        from auxbit.core.parallel import sample_rows
        from auxbit.hashers.files import TRAINING_ROWS, coding_of, suit_decoder

        told = progress or Silent()
        n, advance = len(self), advance or told.advance
        step = step or (lambda what: told.stage(what, n))
        with self._changing("retrained") as (change, now):
            state, positions = change.state, now.view.present()
            given = None if X is None else np.asarray(_records(X).X[:])
            _check_retraining(self._storage.place, state, given, len(positions))

            def rows_of(some: Any) -> Array:
                return given[some] if given is not None else now.view.vectors(state, positions[some])

            new = _given_model(model) if model is not None else self._trained(
                now, rows_of, len(positions), bits, method, random_state, told
            )  # fmt: skip
            if state.n_features not in (None, new.n_features_in_):
                raise InvalidInput(
                    f"the model is for rows of {new.n_features_in_} numbers, the collection for "
                    f"{state.n_features}."
                )
            coding, mu = state.coding, state.mu
            if coding == "optimal" and model is not None:
                some = rows_of(sample_rows(len(positions), TRAINING_ROWS))
                suit_decoder(new, np.asarray(some, dtype=np.float32), mu, None, told)
            if state.model is None:  # its codes were made elsewhere, or are still to be made
                coding, mu = coding_of(new, None, None)
            step("encoding")
            change.update(
                n_bits=new.decoder_.n_bits, n_features=int(new.n_features_in_), coding=coding, mu=mu,
                model=f"model.{state.generation + 1}.safetensors", trained=state.next_number,
            )  # fmt: skip
            if self._storage.folder is not None:
                new.save(self._storage.folder / str(change.state.model))
            else:
                self._storage.models[str(change.state.model)] = new
            self._rewrite(change, now, lambda rows: new.encode(rows_of(rows), coding=coding, mu=mu), advance)
        return new

    def _rewrite(
        self, change: Change, now: Snapshot, codes: Callable[[slice], Packed] | None, advance: Advance | None
    ) -> None:
        """Write the next generation of the flat files, with other codes if given, and note its state."""
        before, positions = change.before, now.view.present()
        number, n, width = before.generation + 1, len(positions), -(-change.state.n_bits // 8)
        last = np.zeros((width, LANES), dtype=np.uint8)

        def blocks() -> Iterator[slice]:
            yield from (slice(start, min(start + BLOCK_ROWS, n)) for start in range(0, n, BLOCK_ROWS))

        def planes() -> Iterator[Array]:
            for rows in blocks():
                packed = now.view.codes(before, positions[rows]) if codes is None else codes(rows)
                full = len(packed) // LANES * LANES
                yield packed[:full].reshape(-1, LANES, width).transpose(0, 2, 1)
                last[:, : len(packed) - full] = packed[full:].T
                if advance is not None:
                    advance(len(packed))

        change.connection.execute("DELETE FROM checks")
        change.connection.execute("DELETE FROM deleted")
        change.connection.execute("DELETE FROM stretches")
        change.update(
            generation=number,
            codes=f"codes.{number}",
            vectors_file=f"vectors.{number}",
            positions=n,
            deleted=0,
        )
        self._storage.extend(change, change.state.codes, 0, planes(), change.state.block_bytes)
        if before.vectors is not None:
            kept = (now.view.vectors(before, positions[rows]) for rows in blocks())
            self._storage.extend(change, change.state.vectors_file, 0, kept)
        _note_stretches(change, 0, now.view.numbers_at(positions))
        change.update(last_codes=last.tobytes())

    @contextmanager
    def _changing(self, what: str, *, repairs: bool = False) -> Iterator[tuple[Change, Snapshot]]:
        """A change, and a snapshot of what it begins with."""
        if self._snapshots.lenient and not repairs:
            raise InvalidInput(
                f'{self._storage.place} was opened with damaged="skip": compact it, or open it without that.'
            )
        with (
            self._storage.changing(what) as change,
            self._snapshots.within(change.connection, change.state) as now,
        ):
            yield change, now

    def _trained(
        self, now: Snapshot, rows_of: Callable[[Any], Array], n: int, bits: int | None, method: str | None,
        random_state: int | None, told: Progress,
    ) -> Hasher:  # fmt: skip
        """A model like the present one, or another, fitted to the rows of the collection or to a sample."""
        from sklearn.base import clone

        from auxbit.core.maps import check_n_bits
        from auxbit.core.parallel import sample_rows
        from auxbit.hashers.files import TRAINING_ROWS, check_enough_rows, suit_decoder
        from auxbit.hashers.registry import fit_reporting, make_hasher

        state = now.state
        if state.model is None and method is None:
            raise InvalidInput(
                f"{self._storage.place} has no model to train again. Give a model (--model), or method and "
                "bits (--method, --bits)."
            )
        X = np.asarray(rows_of(sample_rows(n, TRAINING_ROWS)), dtype=np.float32)
        check_enough_rows(X, self._storage.place)
        n_bits = state.n_bits if bits is None else check_n_bits(bits)
        if method is not None:
            made = make_hasher(method, n_bits, random_state=random_state or 0, n_jobs=self.n_jobs)
        else:
            made = clone(now.view.model(state)).set_params(n_bits=n_bits)
            if random_state is not None:
                made.set_params(random_state=random_state)
        fit_reporting(made, X, told, stage=f"training on {len(X):,} rows")
        if state.coding == "optimal":
            kind = None
            if state.model is not None:
                kind = "tables" if hasattr(now.view.model(state).decoder_, "tables") else "linear"
            suit_decoder(made, X, state.mu, kind, told)
        return made

    # ---- searches

    def search(
        self, X: Any = None, k: int = 10, *, codes: Any = None, like: Any = None, mode: str | None = None,
        rerank: bool | int = False, where: Any = None, vectors_column: str | None = None,
    ) -> Answers:  # fmt: skip
        """The k nearest items to each query, nearest first: `distances, ids = collection.search(X)`.

        X : (q, D), a single vector (D,), which gets one row of answers, or a file, of which `vectors_column`
        holds the vectors; or codes : (q, width) uint8, or a file of them; or like : the id of an item. With
        fewer than k items all are returned.
        mode : "hamming", distances in bits, int32; or "asymmetric", by the squared distance from x itself to
            what the decoder makes of a code, float32. None: asymmetric if coding is "optimal".
        rerank : True, or a number of candidates (10 k): that many are found by `mode` and ranked again by
            their true squared distances, float32, from the vectors on disk.
        where : metadata to search among: "year >= 2020 and lang = en", {"label": "cat"}.
        """
        k = check_integer("k", k, 1, MOST_ANSWERS, "Try k=10.")
        if mode not in (None, *MODES):
            raise InvalidParameter("mode", mode, " or ".join(map(repr, MODES)))
        with self._snapshots.taken() as now:
            asked = Queries.of(now, X, codes, like, vectors_column)
            if mode is None:
                by_decoder = now.state.coding == "optimal" and asked.X is not None
                mode = "asymmetric" if by_decoder else "hamming"
            wanted = None if where is None else Where.of(where)
            n_candidates = _n_candidates(now.state, rerank, k)
            distances, found = _nearest(now, asked, k, mode, n_candidates, wanted, self.n_jobs)
            ids = now.ids_at(found)
            about = self._about(now, asked, wanted) | {"k": k, "mode": mode, "rerank": n_candidates or None}
        if asked.single:
            distances, ids = distances[0], ids[0]
        return self._answers(distances, ids, None, about)

    def search_radius(
        self, X: Any = None, r: int = 2, *, codes: Any = None, like: Any = None, where: Any = None,
        vectors_column: str | None = None,
    ) -> Answers:  # fmt: skip
        """All items within Hamming distance r: `lims, distances, ids`, as HammingIndex has them."""
        with self._snapshots.taken() as now:
            asked = Queries.of(now, X, codes, like, vectors_column)
            wanted = None if where is None else Where.of(where)
            index = now.view.index(now.state)
            lims, distances, found = index.search_radius(asked.codes(now), r, among=_among(now, wanted))
            ids = now.ids_at(found)
            about = self._about(now, asked, wanted) | {"radius": r, "mode": "hamming"}
        return self._answers(distances, ids, lims, about)

    def _about(self, now: Snapshot, asked: Queries, where: Where | None) -> dict[str, Any]:
        return {
            "collection": str(self.path), "items": now.view.alive.count, "bits": now.state.n_bits,
            "queries": len(asked), "k": None, "radius": None, "mode": None, "rerank": None,
            "where": None if where is None else str(where),
        }  # fmt: skip

    def _answers(self, distances: Array, ids: Array, lims: Array | None, about: dict[str, Any]) -> Answers:
        from auxbit.index.answers import Answers

        return Answers(distances, ids, lims=lims, metadata_of=self.metadata, about=about)

    def duplicates(self, r: int = 0) -> Groups:
        """The ids of groups of two and more items, joined by chains of codes within distance r."""
        with self._snapshots.taken() as now:
            return [now.ids_at(group) for group in now.view.index(now.state).find_duplicates(r)]

    # ---- what is in it

    def get(self, ids: Any, *, vectors: bool = False, codes: bool = False) -> Items:
        """Items by their ids: a dict with id and metadata each, and with vector and code if wanted."""
        with self._snapshots.taken() as now:
            return _items(now, now.places(ids), vectors=vectors, codes=codes)

    def list(
        self, where: Any = None, *, limit: int | None = LISTED, offset: int = 0, order: str | None = None
    ) -> Items:
        """Items in the order they were added in, or by a field, "year", or from its largest, "-year"."""
        with self._snapshots.taken() as now:
            positions = now.view.present() if where is None else now.matching(Where.of(where))
            if order is not None:
                positions = now.ordered(positions, order.removeprefix("-"), order.startswith("-"))
            stop = None if limit is None else offset + check_integer("limit", limit, 0)
            return _items(now, positions[offset:stop])

    def batches(self, size: int = 10_000, *, vectors: bool = False) -> Iterator[dict[str, Any]]:
        """All items as they are now, some at a time: ids, metadata, codes, and vectors if wanted."""
        ids = self.ids
        for start in range(0, len(ids), check_integer("size", size, 1)):
            some = ids[start : start + size]
            batch = {"ids": some, "metadata": self.metadata(some), "codes": self.codes(some)}
            yield batch | ({"vectors": self.vectors(some)} if vectors else {})

    def __iter__(self) -> Iterator[Row]:
        for batch in self.batches():
            yield from (
                {"id": id_, "metadata": row} for id_, row in zip(batch["ids"].tolist(), batch["metadata"])
            )

    def metadata(self, ids: Any) -> Items:
        """The metadata of items, {} for one without."""
        with self._snapshots.taken() as now:
            return now.metadata(now.places(ids))

    def vectors(self, ids: Any) -> Array:
        """The vectors of items, (n, D), in the type they are kept in."""
        with self._snapshots.taken() as now:
            if now.state.vectors is None:
                raise InvalidInput(f"{self._storage.place} keeps no vectors.")
            return now.view.vectors(now.state, now.places(ids))

    def codes(self, ids: Any = None) -> Packed:
        """The packed codes of items, (n, ceil(n_bits/8)) uint8; of all, in the order of `ids`."""
        with self._snapshots.taken() as now:
            return now.view.codes(now.state, now.view.present() if ids is None else now.places(ids))

    def attachment(self, id_: Any) -> bytes:
        """The bytes that were added with an item."""
        with self._snapshots.taken() as now:
            number = int(now.view.numbers_at(now.places([id_]))[0])
            row = now.connection.execute(
                "SELECT CAST(content AS BLOB), checksum FROM attachments WHERE number = ?", (number,)
            ).fetchone()
        if row is None:
            raise InvalidInput(f"item {id_!r} has no attachment.")
        if zlib.crc32(row[0]) != row[1]:
            raise Damaged(
                f"{self._storage.place}: the attachment of item {id_!r} does not match its checksum. Restore "
                "the collection from a copy."
            )
        return bytes(row[0])

    def count(self, where: Any = None) -> int:
        """How many items there are, or have the metadata that `where` asks for."""
        if where is None:
            return len(self)
        with self._snapshots.taken() as now:
            return len(now.matching(Where.of(where)))

    def holds(self, ids: Any) -> Mask:
        """Which of these ids are there, (n,)."""
        given, kind = check_ids(ids)
        with self._snapshots.taken() as now:
            if kind != (now.state.ids or "integer"):
                return np.zeros(len(given), dtype=np.bool_)
            found: Mask = now.find(given) >= 0
            return found

    @property
    def ids(self) -> Array:
        """All ids, in the order in which items were added: (n,) int64, or objects, text or UUIDs."""
        with self._snapshots.taken() as now:
            return now.ids_at(now.view.present())

    def export(
        self, path: PathLike, to: str = "faiss", *, form: str = "auto", overwrite: bool = False
    ) -> str:
        """Write codes and ids as a FAISS index, or, with to="onnx", the hash function; returns the form.

        form : as in `auxbit.export.to_faiss`; "auto" is "additive" if coding is "optimal".
        """
        from auxbit.export import to_faiss, to_onnx

        if to not in ("faiss", "onnx"):
            raise InvalidParameter("to", to, "'faiss' or 'onnx'")
        with self._snapshots.taken() as now:
            if to == "onnx":
                to_onnx(now.view.model(now.state), path, overwrite=overwrite)
                return "onnx"
            model = None if now.state.model is None else now.view.model(now.state)
            if form == "auto" and now.state.coding == "optimal":
                form = "additive"  # the ranking that such codes are for
            if now.state.ids in ("text", "uuid"):
                raise InvalidInput("FAISS keeps integers as ids, and those of the collection are not.")
            present = now.view.present()
            codes = now.view.codes(now.state, present)
            return to_faiss(path, model, codes, now.ids_at(present), form=form, overwrite=overwrite)

    def describe(self) -> dict[str, Any]:
        """Its size, and how codes are made."""
        with self._snapshots.taken() as now:
            state, method = now.state, None
            if state.model is not None:
                from auxbit.hashers.registry import label_of

                method = label_of(now.view.model(state))
            fields = [name for (name,) in now.connection.execute("SELECT name FROM fields ORDER BY name")]
            indexes = now.connection.execute(
                "SELECT substr(name, 7) FROM sqlite_master WHERE type = 'index' AND name LIKE 'field %' "
                "ORDER BY 1"
            )
            indexed = [name for (name,) in indexes]
        return {
            "collection": str(self.path), "items": now.view.alive.count, "bits": state.n_bits,
            "dimensions": state.n_features, "method": method, "coding": state.coding, "mu": state.mu,
            "vectors": state.vectors, "ids": state.ids, "fields": fields, "indexed": indexed,
        }  # fmt: skip

    def stats(self) -> Statistics:
        """Sizes, and how what was added differs from what the model was trained on."""
        from auxbit.collection.statistics import Statistics

        n_bytes = self._storage.bytes()
        with self._snapshots.taken() as now:
            return Statistics.of(now, str(self.path), n_bytes)

    def check(self) -> Lines:
        """Compare every byte with its checksum; returns what is damaged, one line each."""
        with self._storage.reading() as (connection, state):
            found = [f"{storage.DATABASE}: {text}" for (text,) in connection.execute("PRAGMA integrity_check")
                     if text != "ok"]  # fmt: skip
            found += [f"{storage.DATABASE}: the attachment of item {number} does not match its checksum"
                      for number in _spoilt_attachments(connection)]  # fmt: skip
            folder = self._storage.folder
            if folder is not None and state.model is not None:
                from auxbit.hashers.registry import read_header

                try:
                    read_header(folder / state.model)
                except FileProblem as error:
                    if self._storage.state.model == state.model:  # else a retraining has just removed it
                        found.append(str(error))
        flat = Snapshots(self._storage, 1, lenient=True)
        try:
            with flat.taken() as now:
                return found + now.view.damage()
        except Damaged as error:
            return [*found, str(error)]

    @property
    def damage(self) -> Lines:
        """What was found to be wrong by damaged="skip"."""
        if not self._snapshots.lenient:
            return []
        with self._snapshots.taken() as now:
            return now.view.damage()

    @property
    def lost(self) -> int:
        """How many items are left out because of damage."""
        if not self._snapshots.lenient:
            return 0
        with self._snapshots.taken() as now:
            return len(now.view.lost)

    @property
    def model(self) -> Hasher:
        """The hasher, loaded at first use."""
        with self._snapshots.taken() as now:
            return now.view.model(now.state)

    @property
    def state(self) -> State:
        """What the collection is at this moment."""
        return self._storage.state

    @property
    def about(self) -> str | None:
        """A text of whoever uses the collection, such as how its pictures become vectors."""
        return self._storage.state.about

    @about.setter
    def about(self, text: str | None) -> None:
        with self._changing("described") as (change, _):
            change.update(about=text)

    @property
    def n_bits(self) -> int:
        """Bits of a code."""
        return self._storage.state.n_bits

    @property
    def n_bytes(self) -> int:
        """Bytes on disk, or in memory."""
        return self._storage.bytes()["total"]

    def parse_ids(self, texts: Iterable[Any]) -> Sequence[Any]:
        """Ids that were typed, or read from text without types, as the collection has them."""
        return typed_ids(texts, self._storage.state.ids)

    def lock(self) -> None:
        """Become the writer now, rather than at the first change; InUse if another process is."""
        self._storage.lock()

    def close(self) -> None:
        """Let others write. What was added is on disk without it."""
        self._storage.close()
        self._snapshots.forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self._storage.state.items - self.lost

    def __bool__(self) -> bool:
        return True  # an empty collection is one

    def __contains__(self, id_: object) -> bool:
        try:
            return bool(self.holds([id_])[0])
        except InvalidInput:
            return False

    def __repr__(self) -> str:
        if self._storage.closed:
            return f"Collection({str(self.path)!r}), closed"
        return f"Collection({str(self.path)!r}) of {len(self):,} items, codes of {self.n_bits} bits"

    def _repr_html_(self) -> str:
        from auxbit.core.progress import html_table

        facts = {} if self._storage.closed else self.describe()
        return html_table(repr(self), [], [each for each in facts.items() if each[1] not in (None, [])])


def load_model(path: PathLike) -> Hasher:
    """The model in a file, or that of a collection."""
    if not Path(path).is_dir():
        from auxbit.hashers.registry import load

        return load(path)
    with Collection(path, read_only=True) as collection:
        return collection.model


# ---- Queries


class Queries:
    """What is searched for. X : (q, D) or None; single : it was one vector or code."""

    def __init__(self, X: Array | None, packed: Packed | None, single: bool) -> None:
        self.X, self._packed, self.single = X, packed, single

    @classmethod
    def of(cls, now: Snapshot, X: Any, codes: Any, like: Any, column: str | None = None) -> Queries:
        """The queries as they are given, by exactly one of X, codes and like, or X with its codes."""
        from auxbit.core.maps import check_packed

        if like is not None:
            return cls._of_item(now, now.places([like]))
        if isinstance(X, str | os.PathLike):
            X, codes = _queries_in(now, X, column, are_codes=False)
        elif isinstance(codes, str | os.PathLike):
            X, codes = _queries_in(now, codes, column, are_codes=True)
        if X is None and codes is None:
            raise InvalidInput("nothing to search for: give X, rows to encode, codes=… or like=id.")
        rows = None if X is None else np.asarray(as_rows(X))
        packed = None if codes is None else np.asarray(codes)
        single = (rows if rows is not None else packed).ndim == 1  # type: ignore[union-attr]
        if packed is not None:
            packed = check_packed(packed[None] if packed.ndim == 1 else packed, now.state.n_bits, "codes")
        return cls(rows[None] if single and rows is not None else rows, packed, single)

    @classmethod
    def _of_item(cls, now: Snapshot, place: Positions) -> Queries:
        """An item: its vector if that is kept, and its code if there is no vector or no model."""
        X = None if now.state.vectors is None else now.view.vectors(now.state, place)
        if X is not None and now.state.model is not None:
            return cls(X, None, True)
        return cls(X, now.view.codes(now.state, place), True)

    def __len__(self) -> int:
        rows = self.X if self.X is not None else self._packed
        return 0 if rows is None else len(rows)

    def codes(self, now: Snapshot) -> Packed:
        """The packed codes of the queries."""
        if self._packed is None:
            model = now.view.model(now.state)
            if not len(self):
                return np.zeros((0, -(-now.state.n_bits // 8)), dtype=np.uint8)
            self._packed = model.encode(np.asarray(self.X))
        return self._packed

    def rows(self, now: Snapshot) -> Array:
        """The queries themselves, of the right dimension."""
        if self.X is None:
            raise InvalidInput(
                'rerank and mode="asymmetric" compare vectors, and the queries are codes: give X '
                "(--queries of vectors)."
            )
        n_features = now.state.n_features
        if self.X.ndim != 2 or self.X.shape[1] != n_features or self.X.dtype.kind not in "fiub":
            raise InvalidInput(
                f"X must be rows of {n_features} numbers, shape (q, {n_features}); got shape {self.X.shape} "
                f"of {self.X.dtype}."
            )
        return self.X


def _queries_in(
    now: Snapshot, source: PathLike, column: str | None, *, are_codes: bool
) -> tuple[Array | None, Array | None]:
    """The rows of a file as vectors, or as codes if they have the shape of these."""
    from auxbit.hashers.files import as_packed

    rows = read_records(source, vectors=column, metadata=())
    X = _whole(rows)
    if _hold_codes(rows, now.state.n_bits, None if are_codes else now.state.n_features):
        return None, as_packed(X, now.state.n_bits, rows.name)
    check_finite(X, name=rows.name)
    return X, None


# ---- Parts of a search


def _among(now: Snapshot, where: Where | None) -> Any:
    from auxbit.index.codes import At

    return None if where is None else At(now.matching(where))


def _n_candidates(state: State, rerank: bool | int, k: int) -> int:
    """How many are to be ranked again, 0 for none."""
    if rerank is False or rerank is None:
        return 0
    if state.vectors is None:
        raise InvalidInput(
            "rerank needs the vectors, and the collection keeps none. Create it with "
            'vectors="float16", or search with mode="asymmetric", which needs the decoder alone.'
        )
    n = FACTOR * k if rerank is True else rerank
    return check_integer("rerank", n, k, MOST_ANSWERS, f"It must hold the k={k} answers.")


def _nearest(
    now: Snapshot, asked: Queries, k: int, mode: str, n_candidates: int, where: Where | None,
    n_jobs: int | None,
) -> tuple[Array, Positions]:  # fmt: skip
    """Distances and positions of the nearest; all queries get as many as there are, at most k."""
    among, alive = _among(now, where), now.view.alive.count
    available = alive if among is None else len(among.positions)
    wanted, k = min(n_candidates or k, available), min(k, available)
    X = asked.rows(now) if mode == "asymmetric" or n_candidates else None
    if not wanted:
        asked.codes(now) if X is None else None
        kind = np.float32 if X is not None else np.int32
        return np.zeros((len(asked), 0), dtype=kind), np.zeros((len(asked), 0), dtype=np.int64)
    distances: Array
    if mode == "asymmetric":
        index = now.view.index(now.state, now.view.model(now.state).decoder_)
        distances, found = index.search_asymmetric(np.asarray(X), wanted, among=among)
    else:
        distances, found = now.view.index(now.state).search(asked.codes(now), wanted, among=among)
    if n_candidates and X is not None:
        from auxbit.index.asymmetric import rank_by_vectors

        normalize = now.state.model is not None and bool(now.view.model(now.state).normalize)
        vectors_at = partial(now.view.vectors, now.state)
        return rank_by_vectors(X, found, vectors_at, k, normalize=normalize, n_jobs=n_jobs)
    return distances, found


def _items(now: Snapshot, positions: Positions, *, vectors: bool = False, codes: bool = False) -> list[Row]:
    ids, rows = now.ids_at(positions).tolist(), now.metadata(positions)
    items: list[Row] = [{"id": id_, "metadata": row} for id_, row in zip(ids, rows)]
    if vectors and now.state.vectors is None:
        raise InvalidInput("the collection keeps no vectors.")
    for name, wanted, read in (("vector", vectors, now.view.vectors), ("code", codes, now.view.codes)):
        for item, value in zip(items, read(now.state, positions) if wanted else ()):
            item[name] = value
    return items


# ---- Rows that come in


def _records(source: Any, column: str | None = None, ids: Any = None, metadata: Any = None) -> Records:
    """Rows with ids and metadata: from one source with columns, or from several."""
    names = isinstance(metadata, str) or (
        isinstance(metadata, list | tuple) and all(isinstance(each, str) for each in metadata)
    )
    if _is_file(metadata):
        metadata, names = read_table(metadata), False
    if _is_file(ids):
        name, ids = str(ids), read_ids(ids)
        refuse_repeats(ids, name)
    rows = isinstance(source, list) and source and isinstance(source[0], dict)
    if isinstance(source, str | os.PathLike) or rows or columns_of(source) is not None:
        of_ids, beside = ids if isinstance(ids, str) else None, metadata is not None and not names
        found = read_records(source, vectors=column, ids=of_ids, metadata=() if beside else metadata)
    else:
        found = Records(np.asarray(as_rows(source)), None, None, "X")
    if not isinstance(ids, str) and ids is not None:
        found = Records(found.X, ids, found.metadata, found.name)
    if metadata is not None and not names:
        found = Records(
            found.X, found.ids, metadata_rows(without_vectors(metadata, found.X), len(found)), found.name
        )
    for what, each in (("ids", found.ids), ("metadata", found.metadata)):
        if each is not None and len(each) != len(found):
            raise InvalidInput(
                f"there are {len(each):,} {what} for the {len(found):,} rows of {found.name}: give one for "
                "each."
            )
    return found


def _ids_within(metadata: Any, field: str) -> tuple[list[Any], list[Row]]:
    """The ids that rows of metadata have as a field, and the rows without it."""
    columns = columns_of(metadata)
    n = len(metadata) if columns is None else max(map(len, columns.values()), default=0)
    rows = [dict(row) for row in metadata_rows(metadata, n)]
    for number, row in enumerate(rows):
        if field not in row:
            there = ", ".join(map(repr, row)) or "none"
            raise InvalidInput(f"row {number} has no field {field!r}, the id of its item; it has {there}.")
    return [row.pop(field) for row in rows], rows


def _is_file(source: Any) -> bool:
    """Whether it names a file, and not a column."""
    return isinstance(source, os.PathLike) or (
        isinstance(source, str) and bool(Path(source).suffix) and Path(source).is_file()
    )


def _has_no_types(path: PathLike) -> bool:
    """Whether a file is of text, in which 1 may be an integer or text."""
    return Path(path).suffix.lower() in (".csv", ".txt")


def _whole(rows: Records) -> Array:
    """All vectors of rows, or their codes."""
    return np.asarray(rows.X[:])


def _hold_codes(rows: Records, n_bits: int, n_features: int | None) -> bool:
    """Whether rows of a file are codes, by their shape; refuses rows that are neither.

    n_features : numbers of a vector; None: they must be codes.
    """
    from auxbit.hashers.files import holds_codes

    X: Any = rows.X
    if n_features is not None and not holds_codes(X, n_bits, n_features):
        if X.shape[1] != n_features:
            raise InvalidInput(
                f"{rows.name} has {X.shape[1]} columns, and the collection is for vectors of {n_features}. "
                "Use data like those of its model, or create another collection."
            )
        return False
    width = -(-n_bits // 8)
    if X.shape[1] not in (width, n_bits) or X.dtype.kind not in "bui":
        raise InvalidInput(
            f"{rows.name} has {X.shape[1]} columns of {X.dtype}; codes of {n_bits} bits are {width} columns "
            f"of uint8, as `auxbit encode` packs them, or {n_bits} of 0 and 1."
        )
    return True


def _encoded(now: Snapshot, X: Array | None, codes: Array | None) -> tuple[Packed, dict[str, Any]]:
    """The codes of rows to add, and their reconstruction errors if they came as vectors."""
    from auxbit.core.maps import check_packed
    from auxbit.hashers.files import as_packed

    state = now.state
    if codes is not None:
        packed = np.asarray(codes)
        if packed.ndim == 2 and packed.shape[1] == state.n_bits and state.n_bits > 1:
            packed = as_packed(packed, state.n_bits, "codes")
        packed = check_packed(packed, state.n_bits)
        if X is not None and len(X) != len(packed):
            raise InvalidInput(f"X has {len(X)} rows, codes {len(packed)}.")
        return packed, {}
    model = now.view.model(state)
    if X is None or not len(X):
        return np.zeros((0, -(-state.n_bits // 8)), dtype=np.uint8), {}
    packed = model.encode(X, coding=state.coding, mu=state.mu)
    some = np.unique(np.linspace(0, len(X) - 1, min(len(X), MEASURED_ROWS)).astype(np.int64))
    mean = model._error_of(np.asarray(X[some]), packed[some])
    return packed, {"error_rows": len(X), "error_sum": mean * len(X)}


def _checked_vectors(X: Array | None, now: Snapshot) -> Array:
    """The vectors to keep, of which their type can hold what matters."""
    state = now.state
    if X is None:
        raise InvalidInput("the collection keeps vectors: give X beside the codes.")
    if X.ndim != 2 or (state.n_features is not None and X.shape[1] != state.n_features):
        raise InvalidInput(f"X must be rows of {state.n_features} numbers, got shape {X.shape}.")
    if X.dtype.kind not in "biuf":
        raise InvalidInput(f"X must be rows of numbers, got {X.dtype}.")
    kept = np.finfo(np.dtype(state.vectors))
    least, most = float(kept.tiny), float(kept.max)
    largest = max(float(X.max()), -float(X.min())) if X.size else 0.0
    if not largest <= most:
        raise InvalidInput(
            f"X has numbers that {state.vectors} cannot hold, over {most:.4g}, or that are not finite. Scale "
            "the rows, or create the collection with vectors='float32'."
        )
    sizes = np.abs(X).max(axis=1, initial=0) if X.dtype.kind == "f" else np.ones(0)
    small = (sizes > 0) & (sizes < least)
    if small.any():
        model = None if state.model is None else now.view.model(state)
        if model is None or not model.scaling_.normalize:  # beside larger rows, small ones may be lost
            small &= max(largest, 0.0 if model is None else model.scaling_.scale) < least
        if (X[small].astype(kept.dtype) != X[small]).any():
            raise InvalidInput(
                f"X has rows that {state.vectors} would round to 0 or nearly so: the numbers of row "
                f"{int(small.argmax())} are under {least:.3g}. Multiply the rows by a number, before the "
                "model is fitted, or create the collection with vectors='float32'."
            )
    return X


def _converted(X: Array, dtype: str) -> Iterator[Array]:
    """Rows in the type that they are kept in, a block at a time."""
    step = max(1, BLOCK_BYTES // (4 * max(1, X.shape[1])))
    for start in range(0, len(X), step):
        yield np.asarray(X[start : start + step], dtype=np.dtype(dtype).newbyteorder("<"))


def _settle_ids(
    change: Change, now: Snapshot, given: tuple[Any, str] | None, n: int, upsert: bool
) -> tuple[Positions, list[Any] | None]:
    """The numbers of n rows to add, and their ids if these are others; rows that they replace are deleted."""
    state = change.state
    if given is None:
        if state.ids not in (None, "integer"):
            raise InvalidInput(
                f"the ids of the collection are {KINDS[state.ids]}: give those of the rows, ids=… "
                "(--id-column NAME or --ids FILE)."
            )
        if n and state.next_number + n - 1 > 2**63 - 1:
            raise InvalidInput(
                f"{n} rows cannot be numbered on: the largest id is {state.next_number - 1}. Give their ids."
            )
        if n:
            change.update(ids="integer")
        return np.arange(state.next_number, state.next_number + n, dtype=np.int64), None
    ids, kind = given
    listed = ids.tolist() if isinstance(ids, np.ndarray) else ids
    if n and state.ids not in (None, kind):
        raise InvalidInput(f"the ids of the collection are {state.ids}, and {listed[0]!r} is {kind}.")
    if len(set(listed)) < n:
        twice = next(each for place, each in enumerate(listed) if each in set(listed[:place]))
        raise InvalidInput(f"id {twice!r} comes twice in ids; nothing was added.")
    if not n:
        return np.zeros(0, dtype=np.int64), None
    change.update(ids=kind)
    rising = isinstance(ids, np.ndarray) and ids[0] >= state.next_number and bool((np.diff(ids) > 0).all())
    if upsert or (isinstance(ids, np.ndarray) and not rising):  # of text the database tells what is there
        known = now.find(ids)
        if not upsert:
            _refuse_known(listed, known)
        _delete(change, np.sort(known[known >= 0]))
    if rising and 1 + np.count_nonzero(np.diff(ids) != 1) <= max(1, n // RUN_ROWS):
        return ids, None
    change.update(own_ids=1)
    return np.arange(state.next_number, state.next_number + n, dtype=np.int64), listed


def _refuse_known(ids: Sequence[Any], numbers: Positions) -> None:
    """Refuse ids that are there: those with a number."""
    known = numbers >= 0
    if known.any():
        first = np.asarray(ids, dtype=object)[known.argmax()]
        raise InvalidInput(
            f"id {first!r} is already in the collection, and {int(known.sum()):,} of the "
            f"{len(ids):,} in all; nothing was added. upsert=True (--upsert) replaces their rows."
        )


def _note_stretches(change: Change, first: int, numbers: Positions) -> None:
    """Note which items lie from position `first` on."""
    rows = [(first + place, count, number) for place, count, number in runs(numbers)]
    last = change.connection.execute(
        "SELECT first_position, count, first_number FROM stretches ORDER BY first_position DESC LIMIT 1"
    ).fetchone()
    if last is not None and rows and last[2] + last[1] == rows[0][2]:
        rows[0] = (last[0], last[1] + rows[0][1], last[2])
    _insert_checked(change.connection, "stretches", rows)


def _insert_checked(connection: sqlite3.Connection, table: str, rows: Sequence[tuple[int, int, int]]) -> None:
    """Insert rows of `stretches` or `deleted` with their checksums."""
    checks = storage.row_checks(np.array(rows, dtype=np.int64).reshape(-1, 3)).tolist()
    connection.executemany(
        f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?, ?)",
        ((*row, check) for row, check in zip(rows, checks)),
    )


def _insert_items(
    connection: sqlite3.Connection, numbers: Positions, own: list[Any] | None,
    texts: Sequence[str | None] | None,
) -> None:  # fmt: skip
    """Store ids and metadata of items that have any of their own."""
    if own is None and texts is None:
        return
    n = len(numbers)
    rows = (
        (number, id_, text, checksum(number, id_, text))
        for number, id_, text in zip(numbers.tolist(), own or [None] * n, texts or [None] * n)
        if id_ is not None or text is not None
    )
    connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?)", rows)


def _update_items(now: Snapshot, positions: Positions, texts: Sequence[str | None], replace: bool) -> None:
    for position, text in zip(positions, texts):
        number = int(now.view.numbers_at(position[None])[0])
        _, id_, old = next(now.rows("number", [number]), (number, None, None))
        if not replace:
            row = now.connection.execute("SELECT json_patch(?, ?)", (old or "{}", text or "{}")).fetchone()
            text = row[0]
        now.connection.execute(
            "INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?)",
            (number, id_, text, checksum(number, id_, text)),
        )


def _note_fields(change: Change, rows: Sequence[Row | None] | None) -> None:
    """Keep the names of fields, so that a misspelt one can be told from one that finds nothing."""
    names = set().union(*filter(None, rows or ()))
    change.connection.executemany("INSERT OR IGNORE INTO fields VALUES (?)", [(name,) for name in names])


def _delete(change: Change, numbers: Positions) -> None:
    """Delete items by their numbers, which rise."""
    _forget_rows(change.connection, numbers.tolist(), ("items", "attachments"))
    commit = change.before.commit + 1
    rows = [(commit, first, count) for _, count, first in runs(numbers)]
    _insert_checked(change.connection, "deleted", rows)
    change.update(deleted=change.state.deleted + len(numbers))


def _forget_rows(connection: sqlite3.Connection, numbers: Iterable[int], tables: Sequence[str]) -> None:
    listed = [(number,) for number in numbers]
    for table in tables:
        connection.executemany(f"DELETE FROM {table} WHERE number = ?", listed)


def _spoilt_attachments(connection: sqlite3.Connection) -> list[int]:
    rows = connection.execute("SELECT number, CAST(content AS BLOB), checksum FROM attachments")
    return [number for number, content, check in rows if zlib.crc32(content or b"") != check]


def _repair(connection: sqlite3.Connection, lost: Iterable[int]) -> None:
    """Remove what does not match its checksum, and make the indexes of `items` again."""
    indexes = connection.execute(
        "SELECT sql, replace(name, '\"', '\"\"') FROM sqlite_master "
        "WHERE type = 'index' AND tbl_name = 'items' AND sql IS NOT NULL"
    ).fetchall()
    for _, name in indexes:  # first: SQLite could not find there what has changed
        connection.execute(f'DROP INDEX "{name}"')
    _forget_rows(connection, lost, ("items", "attachments"))
    _forget_rows(connection, _spoilt_attachments(connection), ("attachments",))
    for statement, _ in indexes:
        connection.execute(statement)


# ---- Models and states


def _given_model(model: Any) -> Hasher:
    """A fitted model, given as such or by its file or its collection."""
    from auxbit.hashers.files import as_model

    found = load_model(model) if isinstance(model, str | os.PathLike) else as_model(model)
    if found is None:
        raise InvalidParameter("model", type(model).__name__, "a fitted model or its file")
    return found


def _sizes(model: Hasher) -> tuple[int, int]:
    """Bits of the codes of a model, and numbers of its rows."""
    return model.decoder_.n_bits, int(model.n_features_in_)


def _new_model(rows: Records, bits: int | None, n_jobs: int | None, told: Progress, **wanted: Any) -> Hasher:
    """A model fitted to rows."""
    from auxbit.hashers.files import LARGEST_SEED, check_enough_rows
    from auxbit.hashers.registry import find_method, fit_reporting, make_hasher

    check_integer("random_state", wanted["random_state"], 0, LARGEST_SEED)
    X = _whole(rows)
    check_enough_rows(X, rows.name)
    method = wanted.pop("method") or DEFAULT_METHOD
    bits = find_method(method).check_bits(DEFAULT_BITS if bits is None else bits)
    model = make_hasher(method, bits, n_jobs=n_jobs, **wanted)
    fit_reporting(model, X, told, stage=f"fitting {method}")
    return model


def _first_state(
    model: Hasher | None, vectors: str | None, coding: str | None, mu: float | None, bits: int | None,
    n_features: int | None,
) -> State:  # fmt: skip
    """The state of an empty collection, of parameters that go together."""
    from auxbit import __version__
    from auxbit.core.maps import check_n_bits

    key = secrets.token_hex(16)
    if vectors not in VECTORS:
        raise InvalidParameter("vectors", vectors, "'float32', 'float16' or None")
    if model is None:
        if coding not in (None, "hash") or mu is not None:
            raise InvalidInput("codes that are made elsewhere have their coding: leave coding and mu out.")
        if bits is None:
            raise InvalidInput("give rows, a fitted model, or bits for codes that are made elsewhere.")
        if vectors is not None and n_features is None:
            raise InvalidInput("to keep vectors without a model, give n_features, their dimension.")
        if n_features is not None:
            n_features = check_integer("n_features", n_features, 1)
        return State(check_n_bits(bits), key, n_features, vectors, auxbit_version=__version__)
    fitted, dims = model.decoder_.n_bits, int(model.n_features_in_)
    if bits not in (None, fitted) or n_features not in (None, dims):
        raise InvalidInput(f"the model has {fitted} bits and {dims} features: leave bits, n_features out.")
    return State(
        fitted, key, dims, vectors, coding or "hash", mu or 0.0, "model.0.safetensors",
        auxbit_version=__version__,
    )  # fmt: skip


def _check_retraining(place: str, state: State, X: Array | None, n: int) -> None:
    if not n:
        raise InvalidInput(f"{place} is empty: there is nothing to train on, nor to encode.")
    if X is not None and (X.ndim != 2 or len(X) != n):
        raise InvalidInput(
            f"X must have a row for each of the {n:,} items, in the order of ids; got {len(X):,}."
        )
    if X is None and state.vectors is None:
        raise InvalidInput(
            f"{place} keeps no vectors to make new codes from. Give X (--data FILE), with a row for each of "
            f'its {n:,} items in the order they were added in; or create it with vectors="float16".'
        )
    if X is not None and state.vectors is not None:
        raise InvalidInput(f"{place} keeps its vectors: leave X (--data) out.")
