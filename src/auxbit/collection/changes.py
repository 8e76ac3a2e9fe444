"""What changes a collection: adding and deleting rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.codes import Packed, bytes_per_code, check_packed
from auxbit.collection import metadata as texts
from auxbit.collection.manifest import Errors, Manifest, Part
from auxbit.collection.rewriting import new_columns, vector_column
from auxbit.collection.segment_file import Column, Written
from auxbit.collection.storage import Storage
from auxbit.collection.upkeep import measured_errors, run_to_merge, tidy
from auxbit.errors import InvalidInput
from auxbit.index.id_table import MAX_ID, check_ids, repeats

Ids = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


def add(
    storage: Storage,
    X: Array | None,
    codes: Packed | None,
    ids: npt.ArrayLike | None,
    rows: Any,
    upsert: bool,
    trained: bool,
) -> Ids:
    """Add rows, all or none; returns their ids."""
    with storage.changing() as manifest:
        packed, errors = _encoded(storage, manifest, X, codes)
        n = len(packed)
        given, gone = _settle_ids(storage, manifest, ids, n, upsert)
        encoded = texts.encode_rows(rows, n) if rows is not None else None
        vectors = None
        if manifest.vectors is not None:
            vectors = vector_column(_to_keep(X, manifest), manifest.vectors)
        if not n:
            return given
        columns = new_columns(packed, manifest.n_bits, given, encoded, vectors)
        written = storage.write(manifest, n, columns)
        part = Part(written.file, n, written.bytes, written.check, errors)
        next_id = max(manifest.next_id, int(given.max()) + 1)
        after = manifest.but(
            segments=(*manifest.segments, part), next_file=manifest.next_file + 1, next_id=next_id
        )
        if trained and manifest.trained_at == manifest.n_positions:
            after = after.but(trained_at=after.n_positions)
        if len(gone):
            after = _with_removed(storage, after, gone)
        storage.commit(after)
        tidy(storage)
    return given


def delete(storage: Storage, ids: npt.ArrayLike | None, positions: Ids | None = None) -> int:
    """Delete rows by id, all or none, or by position; returns how many."""
    with storage.changing() as manifest:
        if positions is None:
            unwanted = np.unique(check_ids(ids if ids is not None else []))
            positions = storage.view.places(unwanted)
            if (positions < 0).any():
                missing = int(unwanted[(positions < 0).argmax()])
                raise InvalidInput(f"id {missing} is not in the collection; nothing was deleted.")
        if len(positions):
            storage.commit(_with_removed(storage, manifest.but(), positions))
            tidy(storage)
    return len(positions)


def _encoded(
    storage: Storage, manifest: Manifest, X: Array | None, codes: Packed | None
) -> tuple[Packed, Errors]:
    """The codes of rows to add, and their reconstruction errors if they came as vectors."""
    if X is None and codes is None:
        raise InvalidInput("nothing to add: give X, rows to encode, or codes=…")
    if codes is not None:
        packed = check_packed(codes, manifest.n_bits)
        if X is not None and len(X) != len(packed):
            raise InvalidInput(f"X has {len(X)} rows, codes {len(packed)}.")
        return packed, Errors()
    assert X is not None
    model = storage.view.model()
    if np.ndim(X) == 2 and not len(X):
        return np.zeros((0, bytes_per_code(manifest.n_bits)), dtype=np.uint8), Errors()
    packed = model.encode(X, coding=manifest.coding, mu=manifest.mu)
    return packed, measured_errors(model, np.asarray(X), packed)


def _to_keep(X: Array | None, manifest: Manifest) -> Array:
    """The vectors to keep, which fit into their type."""
    if X is None:
        raise InvalidInput("the collection keeps vectors: give X beside the codes.")
    rows = np.asarray(X)
    if rows.ndim != 2 or (manifest.n_features is not None and rows.shape[1] != manifest.n_features):
        raise InvalidInput(f"X must be rows of {manifest.n_features} numbers, got shape {rows.shape}.")
    if rows.dtype.kind not in "biuf":
        raise InvalidInput(f"X must be rows of numbers, got {rows.dtype}.")
    most = float(np.finfo(np.dtype(manifest.vectors)).max)
    if rows.size and not max(float(rows.max()), -float(rows.min())) <= most:
        raise InvalidInput(
            f"X has numbers that {manifest.vectors} cannot hold, over {most:.4g}, or that are not finite. "
            "Scale the rows, or create the collection with vectors='float32'."
        )
    return rows


def _settle_ids(
    storage: Storage, manifest: Manifest, ids: npt.ArrayLike | None, n: int, upsert: bool
) -> tuple[Ids, Ids]:
    """The ids of n rows to add, and the positions of rows that they replace."""
    if ids is None:
        if n and manifest.next_id + n - 1 > MAX_ID:
            raise InvalidInput(
                f"{n} rows cannot be numbered on: the largest id is {manifest.next_id - 1}. Give their ids."
            )
        return np.arange(manifest.next_id, manifest.next_id + n, dtype=np.int64), np.zeros(0, dtype=np.int64)
    given = check_ids(ids, n)
    again = repeats(given)
    if again.any():
        raise InvalidInput(f"id {given[again.argmax()]} comes twice in ids; nothing was added.")
    if not n or given.min() >= manifest.next_id:  # no need to look: all are new
        return given, np.zeros(0, dtype=np.int64)
    places = storage.view.places(given)
    known = places >= 0
    if known.any() and not upsert:
        raise InvalidInput(
            f"id {given[known.argmax()]} is already in the collection; nothing was added. "
            "upsert=True (--upsert) replaces it."
        )
    return given, places[known]


def _with_removed(storage: Storage, manifest: Manifest, positions: Ids) -> Manifest:
    """The manifest with these positions deleted; many files of deletions become one."""
    gone, kept = np.sort(positions), manifest.removed
    run = run_to_merge((*kept, Written("", len(gone), gone.nbytes, 0)))
    if run is not None and run.stop > len(kept):  # with others of its size
        older = storage.view.snapshot.removals[run.start : len(kept)]
        gone = np.sort(np.concatenate([gone, *(each.column("positions") for each in older if each)]))
        kept = kept[: run.start]
    written = storage.write_removed(manifest, Column("positions", np.int64, gone.shape, [gone]))
    return manifest.but(removed=(*kept, written), next_file=manifest.next_file + 1, changes=manifest.changes)
