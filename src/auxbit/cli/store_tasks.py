"""What `store push` and `store search` do: plain functions that print nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from auxbit.cli import tasks
from auxbit.cli.collection_answers import Answers, _write
from auxbit.cli.collection_rows import opened, packed, read_ids
from auxbit.collection.metadata import read_table
from auxbit.collection.where import Where
from auxbit.core.codes import check_n_bits
from auxbit.core.types import Array, Packed
from auxbit.errors import DataFileError, InvalidInput, InvalidParameter
from auxbit.stores import Store, connect
from auxbit.stores.base import parse
from auxbit.stores.push import Source, identity_of_files, normalized, of_arrays, of_collection, push

if TYPE_CHECKING:
    from auxbit.hashers.base import Hasher

ALL_LISTS = 65_536  # more than there are


def connected(to: str, name: str | None, *, exact: bool = False, **options: Any) -> Store:
    """The store at an address. exact : without approximate indexes; options : None for what is not given."""
    kind = parse(to).kind
    given = {option: value for option, value in options.items() if value is not None}
    own = "ef_search" if kind == "pgvector" else "n_probe"
    for option, value in given.items():
        if option != own:
            words = option.replace("_", "-")
            raise InvalidParameter(words, value, f"--{own.replace('_', '-')} for this store, or neither")
    if exact:
        given |= {"use_index": False} if kind == "pgvector" else {"n_probe": ALL_LISTS}
    return connect(to, **({} if name is None else {"name": name}), **given)


def collection_source(folder: str, *, vectors: bool) -> tuple[Source, Any]:
    """The items of a collection, and the collection, to be closed."""
    collection = opened(folder, read_only=True)
    try:
        return of_collection(collection, vectors=vectors), collection
    except BaseException:
        collection.close()
        raise


def file_source(
    codes: str, *, bits: int | None, ids: str | None, metadata: str | None, vectors: str | None
) -> Source:
    """The rows of a file of codes, with what other files say about them."""
    rows = tasks.read(codes)
    if rows.dtype != np.uint8:
        raise DataFileError(
            f"{codes} holds {rows.dtype}; expected packed codes of uint8, as `auxbit encode` writes them."
        )
    n_bits = check_n_bits(8 * rows.shape[1] if bits is None else bits)
    return of_arrays(
        packed(np.asarray(rows), n_bits, codes),
        n_bits,
        ids=None if ids is None else read_ids(ids),
        metadata=None if metadata is None else read_table(metadata),
        vectors=None if vectors is None else tasks.read(vectors),
        identity=identity_of_files([codes, ids, metadata, vectors], n_bits),
    )


def pushed(
    store: Store, source: Source, *, resume: bool, force: bool, index: str | None,
    advance: Callable[[int], object], stopped: Callable[[int], object],
) -> dict[str, Any]:  # fmt: skip
    """Push, and what to say about it."""
    done = push(store, source, resume=resume, overwrite=force, index=index, progress=advance, stopped=stopped)
    return {
        "store": repr(store),
        "created": done.created,
        "pushed": done.rows,
        "first_row": done.first,
        "items": store.count(),
        "bits": store.n_bits,
        "vectors": store.n_features,
        "exact": store.exact,
    }


def model_of(path: str) -> Hasher:
    """The model in a file, or that of a collection."""
    if not Path(path).is_dir():
        return tasks.load_model(path)
    with opened(path, read_only=True) as collection:
        return collection.model


def searched(
    store: Store, queries: str, *, model: str | None, k: int, radius: int | None, rerank: int | None,
    where: list[str], out: str | None, force: bool,
) -> Answers:  # fmt: skip
    """Search a store for the rows of a file; with `out`, write the answers there."""
    rows = tasks.read(queries)
    codes, X = _codes(store, queries, rows, model)
    if rerank is not None and X is None:
        raise InvalidInput(
            "--rerank compares vectors: give --queries of vectors, and --model to encode them."
        )
    conditions = Where.of(where) if where else None
    about: dict[str, Any] = {
        "store": repr(store),
        "items": store.count(),
        "bits": store.n_bits,
        "exact": store.exact or conditions is not None or radius is not None,
        "queries": len(codes),
        "k": None if radius is not None else k,
        "radius": radius,
        "mode": "hamming",
        "rerank": rerank,
        "where": None if conditions is None else str(conditions),
    }
    arrays: dict[str, Any]
    if radius is not None:
        lims, distances, ids = store.search_radius(codes, radius, where=conditions)
        arrays = {"lims": lims, "distances": distances, "ids": ids}
    else:
        asked = {} if rerank is None else {"rerank": X, "candidates": rerank}
        near, found = store.search(codes, k, where=conditions, **asked)
        arrays = {"distances": near, "ids": found}
        there = found >= 0
        lims = np.concatenate([[0], np.cumsum(there.sum(axis=1))])
        distances, ids = near[there], found[there]
    about["retrieved"] = int(lims[-1])
    holder: Any = store  # of which only the metadata is asked
    answers = Answers(holder, lims, distances, ids, about)
    if out is not None:
        _write(answers, arrays, out, force=force)
        about["written"] = out
    return answers


def _codes(store: Store, source: str, rows: Array, model: str | None) -> tuple[Packed, Any]:
    """The codes of the queries, and these themselves where they are vectors."""
    if model is None:
        if rows.dtype != np.uint8:
            raise DataFileError(f"{source} holds {rows.dtype}, no packed codes: give --model to encode them.")
        return packed(np.asarray(rows), store.n_bits, source), None
    hasher = model_of(model)
    if hasher.decoder_.n_bits != store.n_bits:
        raise InvalidInput(
            f"{model} makes codes of {hasher.decoder_.n_bits} bits, and the store has {store.n_bits}."
        )
    if tasks.holds_codes(hasher, rows):
        return tasks.as_packed(hasher, np.asarray(rows), source), None
    tasks.check_columns(hasher, rows, source)
    tasks.check_all_finite(rows, source)
    X = np.asarray(rows)
    return hasher.encode(X), normalized(X) if hasher.scaling_.normalize else X
