"""Pushes: all rows of a collection, or of arrays, go into a store in batches; a push can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.collection.collection import Collection
from auxbit.core import files
from auxbit.core.checks import Array, Ids
from auxbit.core.maps import Scaling, check_n_bits, check_packed, lifted, lifted_queries
from auxbit.data.records import KINDS, records_of
from auxbit.data.vectors import read_data
from auxbit.data.where import Where
from auxbit.errors import DataFileError, InvalidInput, StoreError
from auxbit.hashers.base import Hasher
from auxbit.hashers.files import CodesMade, as_packed, check_asked, holds_codes, read_vectors_for
from auxbit.index.codes import check_ids, repeats
from auxbit.index.queries import Answers
from auxbit.stores.base import Progress, Store, checked_floats, refuse_for_decoder

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
    model: str | None = None  # the fingerprint of the hasher that makes the codes

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Pushed:
    """What a push has done: `rows` brought in, from row `first` of the source on."""

    rows: int
    first: int
    created: bool


def of_collection(collection: Collection, *, vectors: bool = False) -> Source:
    """The items of a collection as they are now; `vectors` : with their vectors, for re-ranking.

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
        codes = collection.model.encode(X) if encodes else collection.codes(some)
        batch: dict[str, Any] = {"codes": codes, "metadata": collection.metadata(some)}
        if vectors:
            batch["vectors"] = X if scaling is None else comparable(X, scaling)
        return batch

    what = f"{'vectors' if vectors else 'codes'}{' hashed' * encodes}"
    identity = f"collection {state.key} {state.generation} {state.commit} {what}"
    made_by = None if state.model is None else collection.model.fingerprint()
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
        raise InvalidInput(f"ids must differ, and {numbers[repeats(numbers)][0]} comes more than once.")
    if metadata is not None and len(metadata) != len(packed):
        raise InvalidInput(f"metadata has {len(metadata)} rows for {len(packed)} codes.")
    X = None if vectors is None else np.asarray(vectors)
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
    vectors: str | None = None,
) -> Source:  # fmt: skip
    """The rows of an .npy file of packed codes, with what other files say about them.

    n_bits : by default 8 for each byte of a code. ids, metadata, vectors : files with one row per code.
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
    known = 8 * rows.shape[1] if made is None or made.n_bits is None else made.n_bits
    n_bits = check_n_bits(known if n_bits is None else n_bits)
    source = of_arrays(
        as_packed(rows, n_bits, codes),
        n_bits,
        ids=None if found.ids is None else check_ids(found.ids, name=str(ids)),
        metadata=found.metadata,
        vectors=None if vectors is None else read_data(vectors),
        identity=identity_of_files([codes, ids, metadata, vectors], n_bits),
    )
    if made is None:
        return source
    return replace(
        source, coding=made.coding, mu=made.mu, model=made.model if made.coding == "hash" else None
    )


def search_file(
    store: Store, source: str, k: int = 10, *, model: Hasher | None = None, radius: int | None = None,
    rerank: int | None = None, where: Any = None,
) -> Answers:  # fmt: skip
    """Search a store for the rows of a file: the k nearest, or all within a Hamming radius.

    source : packed codes, or vectors, which `model` encodes. rerank : how many candidates are ranked by the
    distances of their vectors, 0 for none; by default 10 k, at least 100, if the store keeps vectors.
    """
    codes, X = _read_queries(store, source, model)
    if rerank is None and X is not None and store.n_features is not None and radius is None:
        rerank = store.default_candidates(k)
    if rerank and X is None:
        raise InvalidInput(
            "--rerank compares vectors: give --queries of vectors, and --model to encode them."
        )
    conditions = Where.of(where) if where else None
    about = {
        "store": repr(store),
        "items": store.count(),
        "bits": store.n_bits,
        "exact": store.exact or conditions is not None or radius is not None,
        "queries": len(codes),
        "k": None if radius is not None else k,
        "radius": radius,
        "mode": "hamming",
        "rerank": rerank or None,
        "where": None if conditions is None else str(conditions),
    }
    found: tuple[Array, ...]
    if radius is not None:
        found = store.search_radius(codes, radius, where=conditions)
    else:
        ranked: dict[str, Any] = {"rerank": X, "candidates": rerank} if rerank else {}
        found = store.search(codes, k, where=conditions, **ranked)
    return Answers.of(found, store.metadata, about)


def _read_queries(store: Store, source: str, model: Hasher | None) -> tuple[Array, Array | None]:
    """The queries of a file: their codes, and themselves if they are vectors, which `model` encodes.

    Vectors are divided by their norms or lifted if the model does so, as those that are pushed are.
    """
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
    if store.model not in (None, model.fingerprint()):
        raise InvalidInput(
            f"the codes of {store!r} were made by another model: give the one whose codes were pushed."
        )
    if model.code_bits("hash") != store.n_bits:
        raise InvalidInput(
            f"the model makes codes of {model.code_bits('hash')} bits, and the store has {store.n_bits}."
        )
    rows = read_data(source)
    if holds_codes(rows, model.n_bits, model.n_features_in_):
        check_asked(CodesMade.of_file(source), source, queries=True)
        return as_packed(rows, model.n_bits, source), None
    X = read_vectors_for(model, source)
    return model.encode(X, queries=True), comparable(X, model.scaling_, queries=True)


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
    """Bring all rows of a source into a store, which is made if it is missing; ids replace their rows.

    resume : continue an interrupted push of the same source; if there is none, begin. overwrite : replace
    the store by an empty one first. index : build this approximate index afterwards. stopped : called with
    the number of rows that are in, if it ends early.
    """
    if resume and overwrite:
        raise InvalidInput("what is replaced cannot be resumed: resume or overwrite, not both.")
    created = overwrite or not store.exists
    if created:
        store.create(
            source.n_bits, n_features=source.n_features, coding=source.coding, mu=source.mu,
            model=source.model, overwrite=overwrite,
        )  # fmt: skip
    else:
        _check_same(store, source)
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
                store.add(batch.pop("codes"), source.ids[rows], **batch, progress=progress)
                if source.identity:
                    store.remember_push(source.identity, rows.stop)
            done = rows.stop
        if index is not None and store.exact:
            store.create_index(index)
        if source.identity:
            store.remember_push(source.identity, None)
    except BaseException:
        if stopped is not None:
            stopped(done)
        raise
    return Pushed(len(source) - first, first, created)


def _check_same(store: Store, source: Source) -> None:
    """Refuse rows that do not fit what is there."""
    remedy = "Choose another name, or replace it with --force (overwrite=True)."
    if store.n_bits != source.n_bits:
        raise StoreError(
            f"{store!r} holds codes of {store.n_bits} bits, and these have {source.n_bits}. {remedy}"
        )
    if None not in (store.model, source.model) and store.model != source.model:
        raise StoreError(f"the codes of {store!r} were made by another model than these. {remedy}")
    if store.n_features != source.n_features:
        kept, given = (
            f"vectors of {n}" if n else "no vectors" for n in (store.n_features, source.n_features)
        )
        raise StoreError(f"{store!r} keeps {kept}, and these rows have {given}. {remedy}")


def comparable(X: Array, scaling: Scaling, *, queries: bool = False) -> Array:
    """Rows whose Euclidean distances are those that the model of that scaling is for."""
    if scaling.lift:
        return (lifted_queries if queries else lifted)(X, scaling.lift).astype(np.float32)
    if not scaling.normalize:
        return X
    norms = np.linalg.norm(X.astype(np.float64), axis=1, keepdims=True)
    divided: Array = (X / np.where(norms > 0, norms, 1)).astype(np.float32)
    return divided
