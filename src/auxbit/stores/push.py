"""Pushes: all rows of a collection, or of arrays, go into a store in batches; a push can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.collection.collection import Collection
from auxbit.core import files
from auxbit.core.checks import Array, Ids, as_array
from auxbit.core.maps import check_n_bits, check_packed
from auxbit.data.records import KINDS, records_of
from auxbit.data.vectors import read_data
from auxbit.data.where import Where
from auxbit.errors import AuxbitError, DataFileError, InvalidInput, StoreError
from auxbit.hashers.base import Hasher
from auxbit.hashers.files import (
    CodesMade,
    as_packed,
    check_asked,
    check_made_by,
    holds_codes,
    read_vectors_for,
)
from auxbit.index.codes import check_ids, repeats
from auxbit.index.queries import Answers
from auxbit.stores.base import Progress, Store, checked_floats, comparable, refuse_for_decoder

CHUNK_BYTES = 2**22


@dataclass(frozen=True)
class Source:
    """Rows to push. identity : names them and no others, so that a push of them can be resumed.

    read : for a slice of the rows, what Store.add takes beside ids. n_features : None without vectors.
    """

    identity: str
    n_bits: int
    n_features: int | None
    ids: Ids
    read: Callable[[slice], dict[str, Any]]
    coding: str = "hash"
    mu: float = 0.0
    model: str | Hasher | None = None  # that makes the codes, or its fingerprint

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Pushed:
    """What a push has done: `rows` added, from row `first` of the source on."""

    rows: int
    first: int
    created: bool


def of_collection(collection: Collection, *, vectors: bool = False, metadata: bool = True) -> Source:
    """The items of a collection as they are now; `vectors` : with their vectors, for re-ranking.

    metadata : with their metadata, of which some stores cannot keep all.

    Vectors are divided by their norms or lifted if the model does so, so that the store's Euclidean distances
    rank them as the collection's own re-ranking does. Optimal codes that Hamming distance cannot search are
    replaced by hash codes, made from the vectors.
    """
    state = collection.state
    if state.ids not in (None, "integer"):
        raise InvalidInput(
            f"the ids of {collection.path} are {KINDS[state.ids]}, and stores keep integers. Create a "
            "collection of the same rows with numbered ids, and keep these as a field of its metadata."
        )
    if vectors and state.vectors is None:
        raise InvalidInput(f"{collection.path} keeps no vectors: push its codes alone.")
    scaling = None if state.model is None else collection.model.scaling_
    ids, encodes = collection.ids, state.by_decoder and state.vectors is not None
    coding, mu = ("hash", 0.0) if encodes else (state.coding, state.mu)
    refuse_for_decoder(coding, mu)

    def read(rows: slice) -> dict[str, Any]:
        some = ids[rows]
        X = collection.vectors(some).astype(np.float32) if vectors or encodes else np.zeros((0, 0))
        codes = collection.model.encode(X, coding="hash") if encodes else collection.codes(some)
        batch: dict[str, Any] = {"codes": codes}
        if metadata:
            batch["metadata"] = collection.metadata(some)
        if vectors:
            batch["vectors"] = X if scaling is None else comparable(X, scaling)
        return batch

    what = f"{'vectors' if vectors else 'codes'}{' hashed' * encodes}{' alone' * (not metadata)}"
    identity = f"collection {state.key} {state.generation} {state.commit} {what}"
    made_by = None if state.model is None else collection.model
    kept = None if not vectors else state.n_features if scaling is None else len(scaling.mean)
    n_bits = collection.model.code_bits("hash") if encodes else state.n_bits
    return Source(identity, n_bits, kept, ids, read, coding, mu, made_by)


def of_arrays(
    codes: npt.ArrayLike, n_bits: int, *, ids: npt.ArrayLike | None = None,
    metadata: Sequence[Any] | None = None, vectors: npt.ArrayLike | None = None, identity: str = "",
) -> Source:  # fmt: skip
    """Packed codes (n, ceil(n_bits/8)) uint8 with ids (n,), 0 to n − 1 by default, metadata and vectors.

    identity : see `identity_of_files`; without one a push cannot be resumed.
    """
    packed = check_packed(codes, n_bits)
    numbers = np.arange(len(packed), dtype=np.int64) if ids is None else check_ids(ids, len(packed))
    if repeats(numbers).any():
        raise InvalidInput(f"ids must differ, but {numbers[repeats(numbers)][0]} occurs more than once.")
    if metadata is not None and len(metadata) != len(packed):
        raise InvalidInput(f"metadata has {len(metadata)} rows for {len(packed)} codes.")
    X = None if vectors is None else as_array(vectors, "vectors")
    if X is not None and (X.ndim != 2 or len(X) != len(packed)):
        raise InvalidInput(f"vectors must be {len(packed)} rows, one per code; got shape {X.shape}.")

    def read(rows: slice) -> dict[str, Any]:
        batch: dict[str, Any] = {"codes": packed[rows]}
        if metadata is not None:
            batch["metadata"] = list(metadata[rows])
        if X is not None:
            batch["vectors"] = checked_floats(X[rows], X.shape[1], len(X[rows]), "vectors")
        return batch

    return Source(identity, n_bits, None if X is None else X.shape[1], numbers, read)


def of_files(
    codes: str, *, n_bits: int | None = None, ids: str | None = None, metadata: str | None = None,
    vectors: str | None = None, model: Hasher | None = None,
) -> Source:  # fmt: skip
    """The rows of an .npy file of packed codes, with what other files say about them.

    n_bits : by default 8 for each byte of a code. ids, metadata, vectors : files with one row per code.
    model : that made the codes; vectors are prepared for it, and PostgreSQL can rank by its decoder.
    """
    found = records_of(codes, ids=ids and Path(ids), metadata=metadata and Path(metadata))
    rows = np.asarray(found.X[:])
    if rows.dtype != np.uint8:
        raise DataFileError(
            f"{codes} holds {rows.dtype}; expected packed codes of uint8, as `auxbit encode` writes them."
        )
    made = CodesMade.of_file(codes)
    if made is not None:
        refuse_for_decoder(made.coding, made.mu)
        check_asked(made, codes, queries=False)
        if model is not None:
            check_made_by(made, model, codes)
    known = 8 * rows.shape[1] if made is None or made.n_bits is None else made.n_bits
    known = known if model is None else model.code_bits("hash")
    n_bits = check_n_bits(known if n_bits is None else n_bits)
    X = None if vectors is None else read_data(vectors)
    source = of_arrays(
        as_packed(rows, n_bits, codes),
        n_bits,
        ids=None if found.ids is None else check_ids(found.ids, name=str(ids)),
        metadata=found.metadata,
        vectors=X if X is None or model is None else comparable(X, model.scaling_),
        identity=identity_of_files([codes, ids, metadata, vectors], n_bits),
    )
    if made is None:
        return replace(source, model=model)
    maker = made.model if made.coding == "hash" else None
    return replace(source, coding=made.coding, mu=made.mu, model=maker if model is None else model)


def search_file(
    store: Store, source: str, k: int = 10, *, model: Hasher | None = None, radius: int | None = None,
    rerank: int | None = None, where: Any = None, mode: str | None = None, candidates: int | None = None,
) -> Answers:  # fmt: skip
    """Search a store for the rows of a file: the k nearest, or all within a Hamming radius.

    source : packed codes, or vectors, which `model` encodes. mode, candidates : as in Store.search. rerank :
    how many candidates are ranked by the distances of their vectors, 0 for none; by default 10·k, at least
    100, if the store keeps vectors and no mode is given.
    """
    queries, model = _read_queries(store, source, model)
    if model is None and (rerank or mode == "asymmetric"):
        name = "--rerank" if rerank else "--mode asymmetric"
        raise InvalidInput(f"{name} compares vectors: give --queries of vectors, and --model to encode them.")
    by_vectors = None if rerank is None else bool(rerank)
    ranked = "hamming" if radius is not None else store.ranking(model, mode, by_vectors)
    if candidates is None and ranked != "hamming":
        candidates = rerank or store.default_candidates(k, ranked)
    conditions = Where.of(where) if where else None
    about = {
        "store": str(store),
        "items": store.count(),
        "bits": store.n_bits,
        "exact": store.exact or conditions is not None or radius is not None,
        "queries": len(queries),
        "k": None if radius is not None else k,
        "radius": radius,
        "mode": "asymmetric" if ranked == "asymmetric" else "hamming",
        "candidates": candidates,
        "rerank": candidates if ranked == "vectors" else None,
        "where": None if conditions is None else str(conditions),
    }
    found: tuple[Array, ...]
    if radius is not None:
        codes = queries if model is None else model.encode(queries, queries=True)
        found = store.search_radius(codes, radius, where=conditions)
    else:
        found = store.search(
            queries, k, model=model, mode=mode, where=conditions, rerank=by_vectors, candidates=candidates
        )
    return Answers.of(found, store.metadata, about)


def _read_queries(store: Store, source: str, model: Hasher | None) -> tuple[Array, Hasher | None]:
    """The queries of a file: codes, and no model; or vectors, and the model that encodes them."""
    if model is None:
        codes = read_data(source)
        if codes.dtype != np.uint8:
            raise DataFileError(
                f"{source} holds {codes.dtype}, no packed codes: give --model to encode them."
            )
        made = CodesMade.of_file(source)
        if made is not None:
            refuse_for_decoder(made.coding, made.mu)
        check_asked(made, source, queries=True)
        return as_packed(codes, store.n_bits, source), None
    store.check_model(model)
    rows = read_data(source)
    if holds_codes(rows, model.n_bits, model.n_features_in_):
        check_asked(CodesMade.of_file(source), source, queries=True)
        return as_packed(rows, model.n_bits, source), None
    return read_vectors_for(model, source), model


def identity_of_files(paths: Iterable[str | None], n_bits: int) -> str:
    """A checksum of all that is in these files."""

    def chunks() -> Iterable[bytes]:
        for path in paths:
            yield f"{path is not None} {n_bits} ".encode()
            if path is None:
                continue
            try:
                with Path(path).open("rb") as file:
                    while chunk := file.read(CHUNK_BYTES):
                        yield chunk
            except OSError as error:
                raise DataFileError(f"{path} cannot be read: {error.strerror}.") from error

    return f"files {files.checksum(chunks())}"


def push(
    store: Store, source: Source, *, resume: bool = False, overwrite: bool = False,
    index: str | None = None, progress: Progress | None = None,
    stopped: Callable[[int], object] | None = None,
) -> Pushed:  # fmt: skip
    """Add all rows of a source to a store, which is made if it is missing; existing ids are replaced.

    If no row could be added, a store that was made for them is removed again.

    resume : continue an interrupted push of the same source, if there is one. overwrite : replace the store
    by an empty one first. index : build this approximate index afterwards. stopped : called with the number
    of rows that were added, if the push ends early.
    """
    if resume and overwrite:
        raise InvalidInput("a store that is replaced cannot be resumed: give resume or overwrite, not both.")
    if index is not None and index not in store.indexes:
        store.create_index(index)  # which says what there is
    created = overwrite or not store.exists
    if created:
        store.create(
            source.n_bits, n_features=source.n_features, coding=source.coding, mu=source.mu,
            model=source.model, overwrite=overwrite,
        )  # fmt: skip
    else:
        _check_same(store, source)
    model = source.model if isinstance(source.model, Hasher) else None
    first = store.pushed(source.identity) if resume and source.identity else 0
    first = first if 0 <= first <= len(source) else 0
    if progress is not None and first:
        progress(first)
    done = first
    try:
        while done < len(source):
            rows = slice(done, min(done + store.batch_rows, len(source)))
            batch = source.read(rows)
            with store.transaction():
                store.add(batch.pop("codes"), source.ids[rows], **batch, model=model, progress=progress)
                if source.identity:
                    store.remember_push(source.identity, rows.stop)
            done = rows.stop
        if index is not None and store.exact:
            store.create_index(index)
        if source.identity:
            store.remember_push(source.identity, None)
    except BaseException:
        if created and not done:  # nothing is left behind
            with suppress(AuxbitError, OSError):
                store.remember_push(source.identity, None)
            with suppress(AuxbitError):
                store.drop()
        if stopped is not None:
            stopped(done)
        raise
    return Pushed(len(source) - first, first, created)


def _check_same(store: Store, source: Source) -> None:
    """Refuse rows that do not fit what is there."""
    remedy = "Choose another name, or replace it with --force (overwrite=True)."
    if store.n_bits != source.n_bits:
        raise StoreError(
            f"{store} holds codes of {store.n_bits} bits, but these have {source.n_bits}. {remedy}"
        )
    model = source.model.fingerprint() if isinstance(source.model, Hasher) else source.model
    if None not in (store.model, model) and store.model != model:
        raise StoreError(f"the codes of {store} were made by another model than these. {remedy}")
    if store.n_features != source.n_features:
        kept, given = (
            f"vectors of {n}" if n else "no vectors" for n in (store.n_features, source.n_features)
        )
        raise StoreError(f"{store} keeps {kept}, but these rows have {given}. {remedy}")
