"""Rows for a collection: read from files, checked before the first is added, added in batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from auxbit.cli import tasks
from auxbit.collection.collection import Collection
from auxbit.collection.metadata import encode_rows, read_table
from auxbit.collection.storage import MANIFEST, Manifest
from auxbit.core.codes import bytes_per_code, check_packed, pack
from auxbit.core.types import Array, Ids, Packed
from auxbit.data.tables import nearest
from auxbit.errors import CollectionError, DataFileError, InvalidInput, InvalidParameter
from auxbit.index.codes import check_ids, repeats

BATCH_ROWS = 131_072  # each batch is on disk before the next begins


def opened(
    folder: str, *, read_only: bool = False, skip_damaged: bool = False, n_jobs: int | None = None
) -> Collection:
    """The collection in a folder; where there is none, the error names one that may have been meant."""
    path = Path(folder)
    if not path.exists() and path.parent.is_dir():
        near = nearest(
            path.name, (entry.name for entry in path.parent.iterdir() if (entry / MANIFEST).is_file())
        )
        raise CollectionError(
            f"there is no collection {folder}.{near} To make one: auxbit collection create {folder} "
            "--data FILE."
        )
    damaged = "skip" if skip_damaged else "error"
    return Collection.open(path, read_only=read_only, damaged=damaged, n_jobs=n_jobs)


@dataclass(frozen=True)
class Rows:
    """Rows to add, from row `first` of their file on.

    X : (n, D) vectors or, where are_codes, (n, ·) codes, as the file has them; ids : (n,) and metadata : n
    dicts, of all rows of the file, None for none.
    """

    source: str
    X: Array
    are_codes: bool
    ids: Ids | None
    metadata: list[dict[str, Any]] | None
    first: int = 0

    def batch(self, rows: slice, n_bits: int) -> dict[str, Any]:
        """What Collection.add takes, of some of the rows."""
        part = np.asarray(self.X[rows])
        given: dict[str, Any] = (
            {"codes": packed(part, n_bits, self.source)} if self.are_codes else {"X": part}
        )
        given["ids"] = None if self.ids is None else self.ids[rows]
        given["metadata"] = None if self.metadata is None else self.metadata[rows]
        return given

    def explain(self) -> None:
        """Raise what is wrong with the rows in terms of the file: a batch has counted its own."""
        if not self.are_codes:
            tasks.check_all_finite(self.X, self.source)
        if self.metadata is not None:
            encode_rows(self.metadata, len(self.metadata))


def read_rows(
    source: str, ids: str | None, metadata: str | None, *, codes: bool, n_bits: int,
    n_features: int | None, first: int = 0,
) -> Rows:  # fmt: skip
    """The rows of a file for a collection of such codes and vectors; n_features None: of codes alone."""
    X = tasks.read(source)
    if not 0 <= first <= len(X):
        raise InvalidParameter("from-row", first, f"0 to {len(X)}, the rows of {source}")
    codes = holds_codes(X, codes=codes, n_bits=n_bits, n_features=n_features)
    check_width(X, source, codes=codes, n_bits=n_bits, n_features=n_features)
    given = None if ids is None else read_ids(ids)
    texts = None if metadata is None else read_table(metadata)
    for name, found in ((ids, given), (metadata, texts)):
        if found is not None and len(found) != len(X):
            raise InvalidInput(
                f"{name} has {len(found):,} rows, and {source} {len(X):,}: one for each is needed."
            )
    if given is not None and repeats(given).any():
        raise InvalidInput(f"{ids}: id {given[repeats(given).argmax()]} comes twice.")
    return Rows(source, X, codes, given, texts, first)


def read_ids(name: str) -> Ids:
    """The ids in an .npy file, (n,) int64."""
    source = Path(name)
    if not source.is_file():
        near = nearest(source.name, (entry.name for entry in source.parent.glob("*.npy")))
        raise DataFileError(f"{name} does not exist.{near}")
    try:
        found = np.load(source, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataFileError(f"{name} cannot be read as .npy: {error}") from error
    if not isinstance(found, np.ndarray):
        raise DataFileError(f"{name} holds several arrays; expected an .npy file of integers.")
    return check_ids(found.ravel() if found.ndim == 2 and found.shape[1] == 1 else found, name=name)


def holds_codes(X: Array, *, codes: bool, n_bits: int, n_features: int | None) -> bool:
    """Whether rows are codes: said so, or nothing else goes with the collection."""
    if codes or n_features is None:
        return True
    return X.dtype == np.uint8 and X.shape[1] == bytes_per_code(n_bits) != n_features


def check_width(X: Array, source: str, *, codes: bool, n_bits: int, n_features: int | None) -> None:
    """Refuse rows that are neither vectors nor codes of a collection."""
    width = bytes_per_code(n_bits)
    if codes:
        if X.shape[1] not in (width, n_bits) or X.dtype.kind not in "bui":
            raise InvalidInput(
                f"{source} has {X.shape[1]} columns of {X.dtype}; codes of {n_bits} bits are {width} columns "
                f"of uint8, as `auxbit encode` packs them, or {n_bits} of 0 and 1."
            )
    elif X.shape[1] != n_features:
        raise InvalidInput(
            f"{source} has {X.shape[1]} columns, and the collection is for vectors of {n_features}. Use data "
            "like those of its model, or create another collection."
        )


def packed(codes: Array, n_bits: int, source: str) -> Packed:
    """Codes of a file, packed or a column a bit, as packed codes."""
    try:
        return (
            pack(codes) if codes.shape[1] == n_bits != bytes_per_code(n_bits) else check_packed(codes, n_bits)
        )
    except InvalidInput as error:
        raise DataFileError(f"{source}: {error}") from error


def add_rows(
    collection: Collection, rows: Rows, *, upsert: bool, advance: Callable[[int], object],
    stopped: Callable[[int], object], trained: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Add rows, a batch after another; returns a summary.

    Where it ends early, by an error or Ctrl-C, `stopped` gets the row to go on from. trained : the model was
    fitted to these rows.
    """
    collection.lock()  # nobody else is to add from here on
    state = collection.manifest
    before, items = state.n_positions, len(collection)
    if rows.are_codes and state.vectors is not None:
        how = "from Python, by add(X, codes=…)" if state.model is None else "without --codes"
        raise InvalidInput(f"{collection.path} keeps vectors, not codes alone: add these, {how}.")
    if rows.ids is not None and not upsert:
        _refuse_known(collection, rows.ids[rows.first :])
    try:
        for start in range(rows.first, len(rows.X), BATCH_ROWS):
            part = slice(start, min(start + BATCH_ROWS, len(rows.X)))
            _add_batch(collection, rows, part, upsert, trained)
            advance(part.stop - part.start)
    except BaseException:
        # from the disk: an interrupt may come after a batch was committed, and before that was told
        stopped(rows.first + Manifest.read(collection.path).n_positions - before)
        raise
    added = len(rows.X) - rows.first
    return {
        "collection": str(collection.path),
        "added": added,
        "replaced": items + added - len(collection),
        "items": len(collection),
        "first_row": rows.first,
    }


def _add_batch(collection: Collection, rows: Rows, part: slice, upsert: bool, trained: bool) -> None:
    try:
        collection.add(upsert=upsert, trained=trained, **rows.batch(part, collection.n_bits))
    except InvalidInput:
        rows.explain()
        raise


def _refuse_known(collection: Collection, ids: Ids) -> None:
    known = collection.holds(ids)
    if known.any():
        raise InvalidInput(
            f"id {ids[known.argmax()]} is already in the collection, and {int(known.sum()):,} of the "
            f"{len(ids):,} in all; nothing was added. --upsert replaces their rows."
        )
