"""Collection: a model, codes, ids, metadata and perhaps vectors in a folder that survives crashes."""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from auxbit.collection import storage
from auxbit.collection.snapshot import Attachments, Edit, Snapshot, View, spoilt
from auxbit.collection.storage import State, Storage
from auxbit.core.checks import Array, Mask, Packed, PathLike, check_finite, check_integer
from auxbit.core.maps import check_n_bits
from auxbit.core.parallel import Guard
from auxbit.core.progress import Progress, Silent
from auxbit.data.records import (
    Records,
    Row,
    encode_metadata,
    ids_array,
    ids_within,
    is_file,
    metadata_rows,
    read_table,
    records_of,
    refuse_known,
    stored_ids,
    typed_ids,
)
from auxbit.data.where import Where, scalar_sql, warn_of_unknown
from auxbit.errors import Damaged, FileProblem, InvalidInput, InvalidParameter, ModelFileError
from auxbit.index.queries import Answers, Queries, check_hamming

if TYPE_CHECKING:
    from auxbit.hashers.base import Hasher
    from auxbit.hashers.drift import Statistics

BATCH_ROWS = 131_072  # of a file: each batch is on disk before the next begins
TRIES = 100  # at a state whose files a compaction removes while they are opened
LISTED = 100  # items that `list` returns by default
SORTED_SHARE = 8  # a file that brings more than an eighth of the items has all sorted by list again

Items = list[Row]  # the class has a method of that name
Groups = list[Array]
Lines = list[str]
Stopped = Callable[[int, int], object]


class Collection:
    """A searchable set of items in a folder: ids, codes, metadata and optional vectors. See `create`.

    >>> from sklearn.datasets import load_digits
    >>> from auxbit import Collection
    >>> X, y = load_digits(return_X_y=True)
    >>> rows = [{"label": int(label)} for label in y]
    >>> digits = Collection.create(
    ...     "digits.auxbit", X, bits=16, metadata=rows, vectors="float16"
    ... )
    >>> with digits:
    ...     distances, ids = digits.search(X[:5], k=3)
    ...     found = digits.search(X[7], k=3, where="label >= 5")
    ...     labels = [row["label"] for row in found.metadata]
    >>> ids[:, 0].tolist(), labels
    ([0, 1, 2, 3, 4], [7, 7, 7])
    >>> len(Collection("digits.auxbit"))
    1797

    A change is on disk when its call returns. One process at a time can write, from its first change until
    `close`; any number can search, and each search sees one committed state. The ids of a collection are all
    integers, all text or all UUIDs.
    """

    def __init__(
        self, path: PathLike, *, read_only: bool = False, damaged: str = "error", n_jobs: int | None = None
    ) -> None:
        """Open a collection; rows are read when they are needed.

        damaged : "error", or "skip" to read what is left of damaged files without changing them: `damage`
            lists what is wrong, and `compact` makes a sound collection of the rest.
        """
        if damaged not in ("error", "skip"):
            raise InvalidParameter("damaged", damaged, "'error' or 'skip'")
        self._begin(Storage(Path(path), read_only=read_only), n_jobs, lenient=damaged == "skip")

    def _begin(self, opened: Storage, n_jobs: int | None, *, lenient: bool = False) -> None:
        self._storage, self.path = opened, opened.folder
        self.n_jobs = n_jobs  # threads that search and encode; None: all cores
        self._guard, self._lenient = Guard(), lenient
        self._view: View | None = None  # which all reads share as long as nothing is committed

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
        vectors: str | None = None, method: str | None = None, metric: str | None = None,
        coding: str | None = None, mu: float | None = None, decoder: str | None = None,
        lists: str | int | None = "auto", refine_bits: int = 0, n_features: int | None = None,
        memory: str | int | None = None, random_state: int = 0, overwrite: bool = False,
        n_jobs: int | None = None, progress: Progress | None = None, stopped: Stopped | None = None,
    ) -> Self:  # fmt: skip
        """Make a collection, in a new folder or, with path=None, in memory.

        source : the first rows: an array, a DataFrame, a file, or whatever else `add` takes; a model is
            fitted to them. Or a fitted model or its file, for an empty collection. None: an empty collection
            for codes made elsewhere, of `bits` bits, and perhaps vectors of `n_features` numbers.
        model : a fitted model or its file, which encodes the rows of `source`.
        bits, method, random_state : parameters of the model that is fitted; by default "ba", with about half
            as many bits as dimensions, 16 to 256.
        metric : by which neighbours are near: "euclidean" (by default), "cosine" or "inner_product".
        ids, metadata, vectors_column, codes, stopped : for the first rows, as in `add`.
        vectors : keep them as "float32" or "float16", for re-ranking and retraining; None: keep codes only.
        coding, mu : how rows are encoded, as in `encode`: "hash", or "optimal" for search by the decoder,
            which has the higher recall. None: optimal if the model is fitted here, else as its decoder needs.
        decoder : "linear" or "tables", to be fitted to optimal codes, or "auto", the better of the two; None:
            that of the model, or "auto".
        lists : divide items into that many lists; a search reads only those near the query. "auto": about
            1.5·√n for n rows of 500,000 and more, if a decoder is fitted here to optimal codes.
        refine_bits : with lists, the bits of a second, finer code per item, which ranks candidates again if
            no vectors are kept. memory : limits that of rows, as "2GB", by smaller samples and batches.
        """
        told, folder = progress or Silent(), None if path is None else Path(path)
        if folder is not None:
            storage.refuse_existing(folder, overwrite=overwrite)
        from auxbit.hashers.files import as_model, check_rows, model_for

        rows, are_codes = None, codes is not None
        if model is not None:
            model = load_model(model)
        elif (model := copy(as_model(source))) is not None:
            source = None
        source = codes if are_codes else source
        if source is not None:
            rows = records_of(source, vectors=vectors_column, ids=ids, metadata=metadata)
        elif not (ids is metadata is vectors_column is None):
            raise InvalidInput("ids, metadata and vectors_column are for rows: give these, too, or add them.")
        trains = rows is not None and model is None and not are_codes
        if vectors not in (None, "float32", "float16"):
            raise InvalidParameter("vectors", vectors, "'float32', 'float16' or None")
        X, name = (None, "") if rows is None else (rows.X, rows.name)
        model, made_by = model_for(
            model, X, name, are_codes=are_codes, metric=metric, coding=coding, mu=mu, decoder=decoder,
            lists=lists, refine_bits=refine_bits, method=method, bits=bits, n_features=n_features,
            memory=memory, random_state=random_state, n_jobs=n_jobs, progress=told,
        )  # fmt: skip
        state = _first_state(vectors, None if model is None else "model.0.safetensors", lists, made_by)
        if rows is not None and folder is not None and storage.is_collection(folder):
            scaling = None if model is None else model.scaling_
            check_rows(rows, state.n_bits, state.n_features, vectors, scaling, are_codes=are_codes)
        if folder is not None:
            storage.make_folder(folder.absolute(), state, None if model is None else model.save)
            made = cls(folder, n_jobs=n_jobs)
        else:
            made = cls.__new__(cls)
            made._begin(Storage(None, read_only=False, state=state), n_jobs)
            made._storage.models |= {} if model is None else {str(state.model): model}
        try:
            if rows is not None:
                made._add_file(rows, are_codes, 0, memory, told, stopped, upsert=False, trained=trains)
        except BaseException as error:
            empty = not len(made)
            made.close()
            if isinstance(error, InvalidInput) and empty and folder is not None and not overwrite:
                shutil.rmtree(folder)  # its first rows cannot be added
            raise
        return made

    # ---- states

    @contextmanager
    def _reading(self) -> Iterator[Snapshot]:
        """The present state, which stays as it is for the length of the block."""
        for attempt in range(TRIES):
            with self._storage.reading() as (connection, state):
                try:
                    self._bring_up(connection, state)
                except FileNotFoundError as error:
                    if attempt < TRIES - 1:
                        continue  # a compaction has removed the files of the state before it
                    raise Damaged(f"{error.filename} is missing. Restore it from a copy.") from error
                if self._lenient and self._storage.state.codes != state.codes:
                    continue  # what seems to be damaged are files that a compaction has removed since
                with self._guard.reading():
                    if self._view is not None and self._view.is_at(state):
                        yield Snapshot(connection, self._view)
                        return
        raise FileProblem(f"{self._storage.place} changes faster than it can be read. Try again.")

    @contextmanager
    def _editing(self, what: str, *, repairs: bool = False) -> Iterator[Edit]:
        """A change, which is committed at the end of the block."""
        if self._lenient and not repairs:
            raise InvalidInput(f'{self._storage.place} was opened with damaged="skip". Call compact first.')
        with self._storage.changing(what, Edit) as edit:
            while True:
                self._bring_up(edit.connection, edit.before)
                with self._guard.reading():
                    # a thread that reads may have failed by half, or brought up an older state, just now
                    if self._view is not None and self._view.is_at(edit.before, or_further=True):
                        edit.now = Snapshot(edit.connection, self._view)
                        yield edit
                        return

    def _bring_up(self, connection: sqlite3.Connection, state: State) -> None:
        """Bring the view up to a state, unless it is there or further."""
        if self._view is not None and self._view.is_at(state, or_further=True):
            return
        with self._guard.writing():
            view, self._view = self._view, None  # none, if this fails by half
            if view is None or not view.is_at(state, or_further=True):
                if view is None or view.state.files_key != state.files_key:
                    view = View(self._storage, state, self.n_jobs, lenient=self._lenient)
                view.advance(connection, state)
            self._view = view

    # ---- changes

    def add(
        self, X: Any = None, *, codes: Any = None, ids: Any = None, metadata: Any = None,
        vectors_column: str | None = None, attachments: Attachments | None = None,
        upsert: bool = False, trained: bool = False, first_row: int = 0, memory: str | int | None = None,
        progress: Progress | None = None, stopped: Stopped | None = None,
    ) -> Array:  # fmt: skip
        """Add rows, all or none; returns their ids when they are on disk.

        X : (n, D), encoded by the stored model; a DataFrame of pandas or polars, a pyarrow table or a list of
            dicts, in which `vectors_column` holds the vectors; or a file of any of these, which is committed
            in batches of 131,072 rows. codes : (n, ceil(n_bits/8)) uint8, packed, made elsewhere, or a file
            of them.
        ids : (n,) integers of 0 and up, text or UUIDs, or the name of their column; by default the next
            integers. An id that is there already is an error; with `upsert` its row is replaced.
        metadata : a list with a dict for each row, a dict with a list for each field, or a DataFrame; if X
            has columns, the names of those to keep, by default all others.
        attachments : bytes or None for each row, which `attachment` returns. trained : the model was fitted
            to these rows; `stats` compares later ones with them. first_row : begin at this row of the file.
        memory : limits that of a file's rows, as "2GB", by smaller batches. stopped : called if a file ends
            early, with the row to resume from and the number of rows.
        """
        source = codes if X is None else X
        if source is None:
            raise InvalidInput("there is nothing to add: give X, rows to encode, or codes.")
        rows = records_of(source, vectors=vectors_column, ids=ids, metadata=metadata)
        how: dict[str, Any] = {"upsert": upsert, "trained": trained}
        if attachments is not None and len(attachments) != len(rows):
            raise InvalidInput(f"there are {len(attachments)} attachments for {len(rows)} rows.")
        for each in attachments or ():
            if not isinstance(each, bytes | bytearray | memoryview | None):
                raise InvalidParameter("attachments", [each], "bytes or None for each row", "Encode text.")
        if isinstance(source, str | os.PathLike):
            if X is not None and codes is not None:
                raise InvalidInput("X is a file, and codes go with rows in memory: give one of the two.")
            rows, told = (
                rows.typed(self._storage.state.ids, ids if is_file(ids) else source),
                progress or Silent(),
            )
            return self._add_file(rows, X is None, first_row, memory, told, stopped, attachments, **how)
        given = np.asarray(rows.X[:])
        with self._editing("added") as edit:
            both = (None, given) if X is None else (given, codes)
            return edit.add(rows, *both, attachments=attachments, **how)

    def _add_file(
        self, rows: Records, are_codes: bool, first: int, memory: str | int | None, told: Progress,
        stopped: Stopped | None, attachments: Attachments | None = None, **how: Any,
    ) -> Array:  # fmt: skip
        """Add the rows of a file from row `first` on, batch by batch; returns their ids."""
        from auxbit.hashers.files import check_codes_suit, rows_are_codes, rows_within

        if not 0 <= first <= len(rows):
            raise InvalidParameter("from-row", first, f"0 to {len(rows)}, the rows of {rows.name}")
        self._storage.lock()  # nobody else may add from here on
        if rows.ids is not None and not how["upsert"]:
            given, kind = stored_ids(rows.ids[first:])
            with self._reading() as now:
                refuse_known(given, now.find(given, kind) >= 0)
        state = self._storage.state
        are_codes = rows_are_codes(rows.X, rows.name, state.n_bits, None if are_codes else state.n_features)
        if are_codes and Path(rows.name).suffix:
            model = None if state.model is None else self.model
            check_codes_suit(rows.name, state.coding, state.mu, model)
        before, n, ids = state.positions, len(rows), list[Array]()
        at_once = rows_within(memory, rows.X.shape[1], BATCH_ROWS)
        told.stage("adding", n - first)
        try:
            for start in range(first, n, at_once):
                some = slice(start, min(start + at_once, n))
                part, how["attachments"] = rows[some], attachments and attachments[some]
                X = np.asarray(part.X[:])
                with self._editing("added") as edit:
                    ids.append(edit.add(part, *((None, X) if are_codes else (X, None)), **how))
                told.advance(len(part))
        except BaseException as error:
            if stopped is not None:  # from the disk: an interrupt may come just after a batch was committed
                stopped(first + self._storage.state.positions - before, n)
            if isinstance(error, InvalidInput):  # a batch counts its own rows
                if not are_codes:
                    check_finite(rows.X, name=rows.name)
                encode_metadata(rows.metadata, n)
            raise
        if (self._storage.state.positions - before) * SORTED_SHARE > before:
            self._keep_lists()
        return np.concatenate(ids) if ids else ids_array([], state.ids)

    def delete(self, ids: Any = None, *, where: Any = None) -> int:
        """Delete items by id, all or none, or those that match `where`; returns how many."""
        if (ids is None) == (where is None):
            raise InvalidInput("choose what to delete: give ids or where.")
        with self._editing("deleted") as edit:
            positions = np.unique(edit.now.chosen(ids, where))
            if len(positions):
                edit.delete(edit.now.view.stretches.ids_at(positions))
        return len(positions)

    def update_metadata(
        self, ids: Any = None, metadata: Any = None, *, where: Any = None, replace: bool = False
    ) -> int:
        """Change the metadata of items, not their codes and vectors; returns how many changed.

        metadata : one dict for all; or a list of dicts, a DataFrame or a file (a Path), with one row per id.
        ids : the ids, or the name of their field in these rows.
        replace : also remove the fields that are not given. A given field that is None is removed anyway.
        """
        if (ids is None) == (where is None):
            raise InvalidInput("choose which items to update: give ids or where.")
        if isinstance(metadata, os.PathLike):
            metadata = read_table(metadata)
        if isinstance(ids, str):
            ids, metadata = ids_within(metadata, ids)
            ids = self.parse_ids(ids)
        with self._editing("metadata updated") as edit:
            positions = edit.now.chosen(ids, where)
            rows = [metadata] * len(positions) if isinstance(metadata, dict) else metadata
            listed = metadata_rows(rows, len(positions))[:]
            if len(positions):
                edit.update_items(positions, listed, replace=replace)
        return len(positions)

    def index_field(self, field: str, *, remove: bool = False) -> None:
        """Index a metadata field, to make conditions on it fast; or remove its index."""
        name, by = '"field ' + field.replace('"', '""') + '"', scalar_sql(field)
        with self._editing("field indexed") as edit:
            warn_of_unknown([field], edit.now.fields())
            for each in edit.now.indexed_fields():  # SQLite does not tell a to z from A to Z
                if each != field and each.encode().lower() == field.encode().lower():
                    raise InvalidInput(
                        f"the field {each!r} has an index, and SQLite takes {field!r} for the same name. "
                        "Rename one of the fields, or remove that index."
                    )
            edit.connection.execute(
                f"DROP INDEX IF EXISTS {name}" if remove
                else f"CREATE INDEX IF NOT EXISTS {name} ON items ({by})"
            )  # fmt: skip
            edit.update()

    def compact(self, *, progress: Progress | None = None) -> None:
        """Rewrite codes and vectors without deleted items; searches continue meanwhile.

        It needs as much disk space again until it is done.
        """
        with self._editing("compacted", repairs=True) as edit:
            edit.rewrite(None, progress or Silent())
            edit.tidy(repair=self._lenient)
        self._lenient = False
        self._keep_lists()
        self._storage.connections.shrink()

    def _keep_lists(self) -> None:
        """Write codes sorted by list beside the others, which searches map; without it they sort them."""
        if self._storage.state.has_lists:
            with suppress(OSError), self._reading() as now:  # as a full disk: what was changed is committed
                now.view.keep_lists()

    def retrain(
        self, model: Any = None, *, X: Any = None, bits: int | None = None, method: str | None = None,
        random_state: int | None = None, progress: Progress | None = None,
    ) -> Hasher:  # fmt: skip
        """Encode all items with another model, and switch to the new codes in one step.

        model : a fitted hasher or its file; None: a model like the present one, or with the given bits,
            method and random_state, fitted to the vectors of the collection, at most 100,000 of them.
        X : (n, D) or a file, in the order of `ids`, if the collection keeps no vectors. Searches continue
            meanwhile.
        """
        from auxbit.core.parallel import sample_rows
        from auxbit.hashers.files import TRAINING_ROWS, check_retraining, model_again

        told, place = progress or Silent(), self._storage.place
        with self._editing("retrained") as edit:
            view, state = edit.now.view, edit.state
            positions = view.store.present()
            given = None if X is None else np.asarray(records_of(X).X[:])
            check_retraining(place, given, len(positions), kept=state.vectors is not None)

            def rows_of(some: Any) -> Array:
                return given[some] if given is not None else view.vectors(positions[some])

            # of a damaged model, which another replaces, nothing is asked
            present = None if state.model is None or model is not None else view.model()
            known = state.n_bits if present is None else present.decoder_.hash_bits
            new, made_by = model_again(
                present, None if model is None else load_model(model),
                np.asarray(rows_of(sample_rows(len(positions), TRAINING_ROWS)), dtype=np.float32), place,
                method=method, bits=check_n_bits(known if bits is None else bits),
                coding=None if state.model is None else state.coding, mu=state.mu,
                metric="euclidean" if present is None else view.metric, random_state=random_state,
                n_jobs=self.n_jobs, progress=told,
            )  # fmt: skip
            told.stage("encoding", len(positions))
            name = f"model.{state.generation + 1}.safetensors"
            edit.update(model=name, trained=state.next_number, **made_by)
            if self._storage.folder is not None:
                new.save(self._storage.folder / name)
            else:
                self._storage.models[name] = new
            how = {"coding": made_by["coding"], "mu": made_by["mu"]}
            edit.rewrite(lambda rows: new.encode(rows_of(rows), **how), told)
        self._keep_lists()
        return new

    # ---- searches

    def search(
        self, X: Any = None, k: int = 10, *, codes: Any = None, like: Any = None, mode: str | None = None,
        rerank: bool | int | None = None, where: Any = None, probes: int | str | None = None,
        recall: float | None = None, vectors_column: str | None = None,
    ) -> Answers:  # fmt: skip
        """The k nearest items to each query, nearest first: `distances, ids = collection.search(X)`.

        X : (q, D), a single vector (D,), which gets one row of results, or a file, in which `vectors_column`
            holds the vectors. Or codes, or like. With fewer than k items all are returned.
        codes : (q, width) uint8, or a file of them. like : the id of an item.
        mode : "hamming", distances in bits, int32; or "asymmetric", squared distances from x itself to the
            vector that the decoder makes of a code, float32. None: asymmetric if coding is "optimal".
        rerank : True, or a number of candidates (10·k, at least 100): that many are found by `mode` and
            ranked again by their true squared distances, float32, from the vectors on disk; for inner product
            distances are minus the product. None: if the collection keeps vectors and no mode is given.
        where : search only items with this metadata: "year >= 2020 and lang = en", {"label": "cat"}.
        probes, recall : in a collection with lists, how many lists are searched, or "all"; or the share of
            the k nearest to find, by default 0.98, from which their number follows.
        """
        wanted, asked = None if where is None else Where.of(where), None
        if wanted is None and like is None:  # codes alone may do: a transaction costs time
            state = self._storage.state
            with self._guard.reading():
                if self._view is not None and self._view.state is state:
                    asked = Queries(self._view, X, codes, vectors_column)
                    found = asked.nearest(k, mode, rerank, None, probes, recall)
                    try:
                        return self._answers(Snapshot(None, self._view), asked, wanted, *found)
                    except KeyError:  # an id must be looked up
                        pass
        with self._reading() as now:
            if asked is None or now.state is not state:
                asked = now.queries(X, codes, like, vectors_column, mode)
                found = asked.nearest(k, mode, rerank, now.among(wanted), probes, recall)
            return self._answers(now, asked, wanted, *found)

    def search_radius(
        self, X: Any = None, r: int = 2, *, codes: Any = None, like: Any = None, where: Any = None,
        probes: int | str | None = None, recall: float | None = None, vectors_column: str | None = None,
    ) -> Answers:  # fmt: skip
        """All items within Hamming distance r: `lims, distances, ids`, as HammingIndex.search_radius."""
        with self._reading() as now:
            asked = now.queries(X, codes, like, vectors_column)
            wanted = None if where is None else Where.of(where)
            return self._answers(now, asked, wanted, *asked.within(r, now.among(wanted), probes, recall))

    def _answers(
        self, now: Snapshot, asked: Queries, where: Where | None, distances: Array, positions: Array,
        lims: Array | None = None,
    ) -> Answers:  # fmt: skip
        """What was found, by positions, as answers by ids."""
        ids, how, state, items = now.ids_at(positions), asked.how, now.view.state, now.view.store.alive.count

        def about() -> dict[str, Any]:  # only if asked: every search passes here
            bits, name = state.n_bits - state.list_bits, None if where is None else str(where)
            return {"collection": self._storage.place, "items": items, "bits": bits, **how, "where": name}

        if asked.single and lims is None:
            distances, ids = distances[0], ids[0]
        return Answers(distances, ids, lims, self.metadata, about)

    def duplicates(self, r: int = 0) -> Groups:
        """The ids of groups of at least two items whose codes are joined by chains of steps up to r bits."""
        with self._reading() as now:
            if r:
                check_hamming(now.view)
            return [now.ids_at(group) for group in now.view.index().find_duplicates(r)]

    # ---- what is in it

    def get(self, ids: Any, *, vectors: bool = False, codes: bool = False) -> Items:
        """Items by their ids, one dict each: id and metadata, and if requested vector and code."""
        with self._reading() as now:
            return now.items(now.places(ids), vectors=vectors, codes=codes)

    def list(
        self, where: Any = None, *, limit: int | None = LISTED, offset: int = 0, order: str | None = None
    ) -> Items:
        """Items in the order they were added, or sorted by a field: "year", or "-year" for descending."""
        with self._reading() as now:
            positions = now.chosen(None, where)
            if order is not None and not isinstance(order, str):
                raise InvalidParameter("order", order, "the name of a field, perhaps after a minus")
            if order is not None:
                positions = now.ordered(positions, order.removeprefix("-"), order.startswith("-"))
            start = check_integer("offset", offset, 0)
            stop = None if limit is None else start + check_integer("limit", limit, 0)
            return now.items(positions[start:stop])

    def batches(self, size: int = 10_000, *, vectors: bool = False) -> Iterator[dict[str, Any]]:
        """All items as they are now, in batches: ids, metadata, codes, and vectors if requested."""
        ids = self.ids
        for start in range(0, len(ids), check_integer("size", size, 1)):
            some = ids[start : start + size]
            batch = {"ids": some, "metadata": self.metadata(some), "codes": self.codes(some)}
            yield batch | ({"vectors": self.vectors(some)} if vectors else {})

    def __iter__(self) -> Iterator[Row]:
        for batch in self.batches():
            for id_, row in zip(batch["ids"].tolist(), batch["metadata"]):
                yield {"id": id_, "metadata": row}

    def metadata(self, ids: Any) -> Items:
        """The metadata of items, {} for an item without any."""
        with self._reading() as now:
            return now.metadata(now.places(ids))

    def vectors(self, ids: Any) -> Array:
        """The vectors of items, (n, D), of the type in which they are stored."""
        with self._reading() as now:
            return now.view.vectors(now.places(ids))

    def codes(self, ids: Any = None) -> Packed:
        """The packed codes of items, (n, ceil(n_bits/8)) uint8; of all, in the order of `ids`."""
        with self._reading() as now:
            return now.view.codes(now.chosen(ids))

    def attachment(self, id_: Any) -> bytes:
        """The bytes that were added with an item."""
        with self._reading() as now:
            number = int(now.view.stretches.ids_at(now.places([id_]))[0])
            row = now.connection.execute(
                "SELECT CAST(content AS BLOB), checksum FROM attachments WHERE number = ?", (number,)
            ).fetchone()
        if row is None:
            raise InvalidInput(f"item {id_!r} has no attachment.")
        if zlib.crc32(row[0]) != row[1]:
            what = f"{self._storage.place}: the attachment of item {id_!r} does not match its checksum."
            raise Damaged(f"{what} {storage.FROM_COPY}")
        return bytes(row[0])

    def count(self, where: Any = None) -> int:
        """The number of items, or of those that match `where`."""
        if where is None:
            return len(self)
        with self._reading() as now:
            return now.count(Where.of(where))

    def holds(self, ids: Any) -> Mask:
        """Whether each of these ids is in the collection, (n,) bool."""
        given, kind = stored_ids(ids)
        with self._reading() as now:
            found: Mask = now.find(given, kind) >= 0
            return found

    @property
    def ids(self) -> Array:
        """All ids, in the order in which items were added: (n,) int64, or objects, text or UUIDs."""
        with self._reading() as now:
            return now.ids_at(now.view.store.present())

    def export(self, path: PathLike, *, form: str = "auto", overwrite: bool = False) -> str:
        """Write codes and ids as a FAISS index; returns its form. form : as in `auxbit.export.to_faiss`."""
        from auxbit.export import to_faiss

        with self._reading() as now:
            if now.state.ids in ("text", "uuid"):
                raise InvalidInput("FAISS needs integers as ids: export a collection whose ids are integers.")
            model = None if now.state.model is None else now.view.model()
            present = now.view.store.present()
            return to_faiss(
                path, model, now.view.codes(present), now.ids_at(present), form=form,
                coding=now.state.coding, mu=now.state.mu, overwrite=overwrite,
            )  # fmt: skip

    def describe(self) -> dict[str, Any]:
        """The collection's size, and how its codes are made."""
        with self._reading() as now:
            state, method, metric, lists, finer = now.state, None, now.view.metric, now.state.lists, 0
            if state.model is not None:
                from auxbit.core.decoders import kind_of
                from auxbit.hashers.registry import label_of

                method = label_of(now.view.model())
                if state.list_bits:
                    _, lists, finer = kind_of(now.view.model().decoder_)
            fields, indexed = now.fields(), now.indexed_fields()
        of_lists = {"lists": lists, "refine_bits": finer} if lists else {}
        return {
            "collection": self._storage.place, "items": now.view.store.alive.count,
            "bits": state.n_bits - state.list_bits, **of_lists, "dimensions": state.n_features,
            "method": method, "metric": metric, "coding": state.coding, "mu": state.mu,
            "vectors": state.vectors, "ids": state.ids, "fields": fields, "indexed": indexed,
        }  # fmt: skip

    def stats(self) -> Statistics:
        """Sizes, and how far items added since training differ from those that the model was trained on."""
        from auxbit.hashers.drift import Statistics

        place, n_bytes = self._storage.place, self._storage.bytes()
        with self._reading() as now:
            state, view, present = now.state, now.view, now.view.store.present()
            found = Statistics(
                place, len(present), state.positions - len(present), state.n_bits - state.list_bits,
                state.n_features, state.coding, state.vectors, state.ids, n_bytes,
            )  # fmt: skip
            if state.model is None:
                return found
            added = present[view.stretches.ids_at(present) >= state.trained]
            try:
                return found.compared(view.model(), state.mu, state.n_bits, added, now.codes_and_error)
            except ModelFileError as error:  # the rest can still be counted
                return replace(found, added=len(added), reasons=[str(error)])

    def check(self) -> Lines:
        """Compare every byte with its checksum; returns one line for each damaged part."""
        while True:
            with self._storage.reading() as (connection, state):
                found = [text for (text,) in connection.execute("PRAGMA integrity_check") if text != "ok"]
                found += [f"the attachment of item {number} does not match its checksum"
                          for number in spoilt(connection, "attachments", "content")]  # fmt: skip
                found = [f"{storage.DATABASE}: {text}" for text in found]
                try:
                    view = View(self._storage, state, 1, lenient=True)
                    view.advance(connection, state)
                    found += view.damage()
                    if self.path is not None and state.model is not None:
                        from auxbit.hashers.registry import read_header

                        read_header(self.path / state.model)
                except (Damaged, ModelFileError) as error:
                    found.append(str(error))
            if self._storage.state.files == state.files:  # else a compaction has just removed some
                return found

    @property
    def damage(self) -> Lines:
        """What is damaged, one line each, if opened with damaged="skip"."""
        with self._reading() as now:
            return now.view.damage()

    @property
    def lost(self) -> int:
        """How many items are left out because of damage."""
        if not self._lenient:
            return 0
        with self._reading() as now:
            return len(now.view.lost)

    @property
    def model(self) -> Hasher:
        """The hasher, loaded at first use."""
        with self._reading() as now:
            return now.view.model()

    @property
    def state(self) -> State:
        """The present settings and counts of the collection."""
        return self._storage.state

    @property
    def about(self) -> str | None:
        """A text stored by the application, such as how pictures become vectors."""
        return self._storage.state.about

    @about.setter
    def about(self, text: str | None) -> None:
        # nothing else could be read again
        if text is not None and (not isinstance(text, str) or text != text.encode(errors="replace").decode()):
            raise InvalidParameter("about", text, "a text that UTF-8 can hold, or None")
        with self._editing("described") as edit:
            edit.update(about=text)

    @property
    def n_bits(self) -> int:
        """Bits per code, including the number of its list."""
        return self._storage.state.n_bits

    @property
    def n_bytes(self) -> int:
        """Size in bytes, on disk or in memory."""
        return self._storage.bytes()["total"]

    def parse_ids(self, texts: Iterable[Any]) -> Sequence[Any]:
        """Ids that were typed or read as text, converted to the type of the collection's ids."""
        return typed_ids(texts, self._storage.state.ids)

    def lock(self) -> None:
        """Become the writer now instead of at the first change; raises InUse if another process is."""
        self._storage.lock()

    def close(self) -> None:
        """Let other processes write. All changes are on disk already."""
        self._storage.close()
        with self._guard.writing():
            self._view = None

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
        name = f"Collection({None if self.path is None else str(self.path)!r})"
        if self._storage.connections.closed:
            return f"{name}, closed"
        bits = self.n_bits - self._storage.state.list_bits
        return f"{name} of {len(self):,} items, codes of {bits} bits"

    def _repr_html_(self) -> str:
        from auxbit.core.progress import html_table

        facts = {} if self._storage.connections.closed else self.describe()
        return html_table(repr(self), [], [each for each in facts.items() if each[1] not in (None, [])])


def load_model(source: Any) -> Hasher:
    """The model in a file, or that of a collection; or a copy of a fitted model."""
    if isinstance(source, str | os.PathLike) and Path(source).is_dir():
        with Collection(source, read_only=True) as collection:
            return collection.model
    from auxbit.hashers.files import as_model
    from auxbit.hashers.registry import load

    # a copy: what becomes of it is not the caller's concern, nor the other way round
    found = load(source) if isinstance(source, str | os.PathLike) else copy(as_model(source))
    if found is None:
        raise InvalidParameter("model", type(source).__name__, "a fitted model or its file")
    return found


# ---- States


def _first_state(
    vectors: str | None, model: str | None, lists: str | int | None, made_by: dict[str, Any]
) -> State:
    """The state of an empty collection. made_by : of its codes, as `codes_by` has it."""
    from auxbit import __version__

    if vectors is not None and made_by["n_features"] is None:
        raise InvalidInput("give n_features, the dimension of the vectors to keep, if there is no model.")
    key = secrets.token_hex(16)
    state = State(key=key, vectors=vectors, model=model, auxbit_version=__version__, **made_by)
    # of codes that Hamming distances mean something for; others have those of their model
    return replace(state, lists=lists) if isinstance(lists, int) and not state.by_decoder else state
