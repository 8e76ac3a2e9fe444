"""Collections made of files: create one and fit its model, add the rows of files, retrain, search for files.

All that is read is checked before the first row is added; rows are added in batches, each of which is on disk
before the next begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from auxbit.collection.collection import Collection, refuse_existing
from auxbit.collection.storage import MANIFEST, TRAINING_ROWS, Manifest, coding_of
from auxbit.collection.where import Where
from auxbit.core import files
from auxbit.core.checks import Array, Ids, PathLike, check_finite, check_integer
from auxbit.core.maps import TableDecoder, bytes_per_code, check_n_bits
from auxbit.core.parallel import sample_rows
from auxbit.core.progress import Progress, Silent
from auxbit.data.records import encode_metadata, read_ids, read_table
from auxbit.data.vectors import nearest, read_data
from auxbit.errors import CollectionError, InvalidInput, InvalidParameter
from auxbit.hashers.files import LARGEST_SEED, as_packed, check_coding, check_enough_rows, holds_codes
from auxbit.hashers.registry import fit_reporting, label_of, load, make_hasher
from auxbit.index.answers import Answers
from auxbit.index.codes import check_ids, repeats

if TYPE_CHECKING:
    from collections.abc import Iterator

    from auxbit.hashers.base import Hasher

DEFAULT_METHOD, DEFAULT_BITS = "ba", 32
BATCH_ROWS = 131_072  # each batch is on disk before the next begins

Stopped = Callable[[int, int], object]


def open_collection(
    path: PathLike, *, read_only: bool = False, skip_damaged: bool = False, n_jobs: int | None = None
) -> Collection:
    """The collection in a folder; if there is none, the error names one that may have been meant."""
    folder = Path(path)
    if not folder.exists() and folder.parent.is_dir():
        others = (each.name for each in folder.parent.iterdir() if (each / MANIFEST).is_file())
        raise CollectionError(
            f"there is no collection {path}.{nearest(folder.name, others)} To make one: "
            f"auxbit collection create {path} --data FILE."
        )
    damaged = "skip" if skip_damaged else "error"
    return Collection.open(folder, read_only=read_only, damaged=damaged, n_jobs=n_jobs)


def load_model(path: PathLike) -> Hasher:
    """The model in a file, or that of a collection."""
    if not Path(path).is_dir():
        return load(path)
    with open_collection(path, read_only=True) as collection:
        return collection.model


def create(
    path: PathLike, data: str | None = None, *, model: PathLike | None = None, method: str | None = None,
    n_bits: int | None = None, seed: int = 0, normalize: bool = False, ids: str | None = None,
    metadata: str | None = None, codes: bool = False, vectors: str | None = None, coding: str | None = None,
    mu: float | None = None, decoder: str | None = None, overwrite: bool = False, n_jobs: int | None = None,
    progress: Progress | None = None, stopped: Stopped | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Make a collection, and add the rows of a file; returns its facts.

    model : a file; by default a model is fitted to the data, "ba" of 32 bits unless method and n_bits say
        otherwise. With codes, or without data and model, the collection holds codes of n_bits alone.
    ids, metadata, codes, stopped : as in `add`. vectors, coding, mu : as in Collection.create.
    decoder : "linear" or "tables", to be fitted to optimal codes; None for that of the model.
    """
    told = progress or Silent()
    target, trains = Path(path), data is not None and model is None and not codes
    refuse_existing(target, overwrite=overwrite)
    files.check_output(target / MANIFEST, overwrite=overwrite)
    if coding is not None or mu is not None:
        check_coding(coding or "optimal", mu or 0.0)
    hasher, n_features = None, None
    if model is not None:
        hasher = load(model)
        n_bits, n_features = hasher.decoder_.n_bits, int(hasher.n_features_in_)
    elif trains and data is not None:
        check_integer("seed", seed, 0, LARGEST_SEED)
        method, n_bits = method or DEFAULT_METHOD, check_n_bits(DEFAULT_BITS if n_bits is None else n_bits)
        hasher = make_hasher(
            method, n_bits, random_state=seed, n_jobs=n_jobs, **({"normalize": True} if normalize else {})
        )
        n_features = read_data(data).shape[1]
    n_bits, rows = check_n_bits(n_bits), None
    if data is not None:
        codes = codes or hasher is None
        rows = Rows.read(data, ids, metadata, codes=codes, n_bits=n_bits, n_features=n_features)
        if rows.are_codes and vectors is not None:
            raise InvalidInput(f"{data} holds codes, without vectors to keep: leave --vectors out.")
    if hasher is not None:
        X = None if rows is None or rows.are_codes else rows.X
        if trains:
            if X is None or data is None:
                raise InvalidInput("a model is fitted to vectors, and the data are codes. Give --model.")
            check_enough_rows(X, data)
            fit_reporting(hasher, X, told, stage=f"fitting {method}")
        wanted = coding or (None if decoder is None and mu is None else "optimal")
        coding, mu = coding_of(hasher, wanted, mu)
        if coding == "optimal":
            some = None if X is None else X[sample_rows(len(X), TRAINING_ROWS)]
            _fit_decoder(hasher, some, mu, decoder, told)
    made = Collection.create(
        target, hasher, vectors=vectors, coding=coding, mu=mu, n_bits=None if hasher is not None else n_bits,
        overwrite=overwrite, n_jobs=n_jobs,
    )  # fmt: skip
    with made:
        if rows is not None:
            rows.add_to(made, told, stopped, trained=trains)
        return describe(made)


def add(
    path: PathLike, data: str, *, ids: str | None = None, metadata: str | None = None, codes: bool = False,
    upsert: bool = False, first: int = 0, n_jobs: int | None = None, progress: Progress | None = None,
    stopped: Stopped | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Add the rows of a file to a collection, from row `first` on, batch by batch; returns a summary.

    ids : an .npy file of integers; metadata : a file of one object or line per row, see `read_table`.
    codes : the file holds codes. upsert : replace the rows of ids that are there already.
    stopped : called if it ends early, by an error or Ctrl-C, with the row to resume from and the number of
        rows.
    """
    with open_collection(path, n_jobs=n_jobs) as collection:
        state = collection.manifest
        n_features = state.n_features if state.model is not None else None
        rows = Rows.read(
            data, ids, metadata, codes=codes, n_bits=state.n_bits, n_features=n_features, first=first
        )
        items = len(collection)
        rows.add_to(collection, progress or Silent(), stopped, upsert=upsert)
        added = len(rows.X) - first
        return {
            "collection": str(path),
            "added": added,
            "replaced": items + added - len(collection),
            "items": len(collection),
            "first_row": first,
        }


def retrain(
    path: PathLike, data: str | None = None, *, model: PathLike | None = None, method: str | None = None,
    n_bits: int | None = None, seed: int | None = None, n_jobs: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Make new codes by the model in a file, or by one that is fitted to the items; returns the facts.

    data : a file with one row per item, in the order of ids, for a collection that keeps no vectors.
    method, n_bits, seed : of the model to fit; None for those of the present one.
    """
    told = progress or Silent()
    with open_collection(path, n_jobs=n_jobs) as collection:
        state, X = collection.manifest, None
        if not len(collection):
            raise InvalidInput(f"{path} is empty: there is nothing to train on, nor to encode.")
        if data is not None:
            X = _rows_of_items(collection, data)
        elif state.vectors is None:
            raise InvalidInput(
                f"{path} keeps no vectors to make new codes from. Add --data FILE, with one row for each of "
                f"its {len(collection):,} items, in the order they were added in."
            )
        hasher = None
        if model is not None:
            hasher = load(model)
            if state.n_features not in (None, hasher.n_features_in_):
                raise InvalidInput(
                    f"{model} is for vectors of {hasher.n_features_in_}, the collection for "
                    f"{state.n_features}."
                )
        elif method is not None or n_bits is not None or seed is not None:
            hasher = _new_model(collection, method, n_bits, seed)
        elif state.model is None:
            raise InvalidInput(f"{path} has no model to train again. Add --model, or --method and --bits.")
        if hasher is not None and (model is None or state.coding == "optimal"):
            some = sample_rows(len(collection), TRAINING_ROWS)
            found = X[some] if X is not None else collection.vectors(collection.ids[some])
            sample = np.asarray(found, dtype=np.float32)
            if model is None:
                check_enough_rows(sample, str(path))
                fit_reporting(hasher, sample, told, stage=f"training on {len(sample):,} rows")
            if state.coding == "optimal":
                _fit_decoder(hasher, sample, state.mu, None, told)
        collection.retrain(
            hasher, X=X, advance=told.advance, step=lambda what: told.stage(what, len(collection))
        )
        return describe(collection)


def describe(collection: Collection) -> dict[str, Any]:
    """The facts of a collection: its size, and how codes are made."""
    state = collection.manifest
    return {
        "collection": str(collection.path),
        "items": len(collection),
        "bits": state.n_bits,
        "dimensions": state.n_features,
        "method": None if state.model is None else label_of(collection.model),
        "coding": state.coding,
        "mu": state.mu,
        "vectors": state.vectors,
    }


# ---- Queries: what `search` and `search_radius` of a collection take, X, codes or both


def search(
    collection: Collection, queries: dict[str, Array], k: int = 10, *, radius: int | None = None,
    mode: str | None = None, rerank: int | None = None, where: Any = None,
) -> Answers:  # fmt: skip
    """The k nearest items to queries, or all within a Hamming radius, with their metadata.

    queries : of read_queries or stored_item. mode : by default asymmetric if codes are optimal and queries
    are vectors, else hamming. Others as in Collection.search.
    """
    if "X" not in queries and mode == "asymmetric":
        raise InvalidInput("--mode asymmetric compares vectors with codes, and the queries are codes.")
    if "X" not in queries and rerank is not None:
        raise InvalidInput("--rerank compares vectors, and the queries are codes: search with vectors.")
    if mode is None:
        optimal = collection.manifest.coding == "optimal" and "X" in queries
        mode = "asymmetric" if optimal else "hamming"
    conditions = Where.of(where) if where else None
    about = {
        "collection": str(collection.path),
        "items": len(collection),
        "bits": collection.n_bits,
        "queries": len(next(iter(queries.values()))),
        "k": None if radius is not None else k,
        "radius": radius,
        "mode": mode,
        "rerank": rerank,
        "where": None if conditions is None else str(conditions),
    }
    found: tuple[Array, ...]
    if radius is not None:
        found = collection.search_radius(r=radius, where=conditions, **queries)
    else:
        candidates = False if rerank is None else rerank
        found = collection.search(k=k, mode=mode, rerank=candidates, where=conditions, **queries)
    return Answers.of(found, collection.metadata, about)


def read_queries(collection: Collection, source: str, *, codes: bool = False) -> dict[str, Array]:
    """The queries in a file of vectors, or of codes."""
    state, X = collection.manifest, read_data(source)
    n_features = state.n_features if state.model is not None else None
    codes = _are_codes(X, source, codes=codes, n_bits=state.n_bits, n_features=n_features)
    if codes:
        return {"codes": as_packed(X, state.n_bits, source)}
    check_finite(X, name=source)
    return {"X": X}


def stored_item(collection: Collection, id_: int) -> dict[str, Array]:
    """An item as a query: its vector if that is kept, and its code if there is no vector or no model."""
    if id_ not in collection:
        raise InvalidInput(f"id {id_} is not in the collection, which has {len(collection):,} items.")
    state = collection.manifest
    found = {} if state.vectors is None else {"X": collection.vectors([id_])}
    return found if found and state.model is not None else found | {"codes": collection.codes([id_])}


# ---- Rows of files


@dataclass(frozen=True)
class Rows:
    """Rows to add, from row `first` of their file on.

    X : (n, D) vectors or, if are_codes, (n, ·) codes, as the file has them; ids : (n,) and metadata : n
    dicts, of all rows of the file, None for none.
    """

    source: str
    X: Array
    are_codes: bool
    ids: Ids | None
    metadata: Sequence[dict[str, Any]] | None
    first: int = 0

    @classmethod
    def read(
        cls, source: str, ids: str | None, metadata: str | None, *, codes: bool, n_bits: int,
        n_features: int | None, first: int = 0,
    ) -> Rows:  # fmt: skip
        """The rows of files, for a collection of such codes and vectors; n_features None: of codes alone."""
        X = read_data(source)
        if not 0 <= first <= len(X):
            raise InvalidParameter("from-row", first, f"0 to {len(X)}, the rows of {source}")
        codes = _are_codes(X, source, codes=codes, n_bits=n_bits, n_features=n_features)
        given = None if ids is None else check_ids(read_ids(ids), name=ids)
        texts = None if metadata is None else read_table(metadata)
        for name, found in ((ids, given), (metadata, texts)):
            if found is not None and len(found) != len(X):
                raise InvalidInput(
                    f"{name} has {len(found):,} rows, and {source} {len(X):,}: one for each is needed."
                )
        if given is not None and repeats(given).any():
            raise InvalidInput(f"{ids}: id {given[repeats(given).argmax()]} comes twice.")
        return cls(source, X, codes, given, texts, first)

    def add_to(
        self, collection: Collection, progress: Progress, stopped: Stopped | None, *, upsert: bool = False,
        trained: bool = False,
    ) -> None:  # fmt: skip
        """Add the rows, batch by batch; trained : the model was fitted to them."""
        collection.lock()  # nobody else may add from here on
        state = collection.manifest
        if self.are_codes and state.vectors is not None:
            how = "from Python, by add(X, codes=…)" if state.model is None else "without --codes"
            raise InvalidInput(f"{collection.path} keeps vectors, not codes alone: add these, {how}.")
        if self.ids is not None and not upsert:
            _refuse_known(collection, self.ids[self.first :])
        progress.stage("adding", len(self.X) - self.first)
        with self._telling(collection, stopped):
            for start in range(self.first, len(self.X), BATCH_ROWS):
                part = slice(start, min(start + BATCH_ROWS, len(self.X)))
                collection.add(upsert=upsert, trained=trained, **self._batch(part, state.n_bits))
                progress.advance(part.stop - part.start)

    @contextmanager
    def _telling(self, collection: Collection, stopped: Stopped | None) -> Iterator[None]:
        """If adding ends early, say how far it got, and what is wrong in terms of the file."""
        before = collection.manifest.n_positions
        try:
            yield
        except BaseException as error:
            if stopped is not None:
                # from the disk: an interrupt may come after a batch was committed, and before we know of it
                stopped(self.first + Manifest.read(collection.path).n_positions - before, len(self.X))
            if isinstance(error, InvalidInput):  # a batch counts its own rows
                if not self.are_codes:
                    check_finite(self.X, name=self.source)
                if self.metadata is not None:
                    encode_metadata(self.metadata, len(self.metadata))
            raise

    def _batch(self, rows: slice, n_bits: int) -> dict[str, Any]:
        """What Collection.add takes, of some of the rows."""
        part = np.asarray(self.X[rows])
        given = {"codes": as_packed(part, n_bits, self.source)} if self.are_codes else {"X": part}
        return given | {
            "ids": None if self.ids is None else self.ids[rows],
            "metadata": None if self.metadata is None else self.metadata[rows],
        }


def _are_codes(X: Array, source: str, *, codes: bool, n_bits: int, n_features: int | None) -> bool:
    """Whether rows are codes: by the user's word, or by their shape; refuses rows that are neither."""
    width = bytes_per_code(n_bits)
    if codes or n_features is None or holds_codes(X, n_bits, n_features):
        if X.shape[1] not in (width, n_bits) or X.dtype.kind not in "bui":
            raise InvalidInput(
                f"{source} has {X.shape[1]} columns of {X.dtype}; codes of {n_bits} bits are {width} columns "
                f"of uint8, as `auxbit encode` packs them, or {n_bits} of 0 and 1."
            )
        return True
    _check_width(X, source, n_features)
    return False


def _check_width(X: Array, source: str, n_features: int) -> None:
    if X.shape[1] != n_features:
        raise InvalidInput(
            f"{source} has {X.shape[1]} columns, and the collection is for vectors of {n_features}. Use data "
            "like those of its model, or create another collection."
        )


def _refuse_known(collection: Collection, ids: Ids) -> None:
    known = collection.holds(ids)
    if known.any():
        raise InvalidInput(
            f"id {ids[known.argmax()]} is already in the collection, and {int(known.sum()):,} of the "
            f"{len(ids):,} in all; nothing was added. --upsert replaces their rows."
        )


# ---- Models


def _fit_decoder(model: Hasher, X: Array | None, mu: float, kind: str | None, progress: Progress) -> None:
    """Give a model a decoder for optimal codes, unless it has one. X : rows to fit it to, None for none."""
    present = "tables" if isinstance(model.decoder_, TableDecoder) else "linear"
    record = model.training_
    suits = record.is_of("optimal", mu) if record is not None else present == "tables"
    if suits and kind in (None, present):
        return
    if X is None:
        raise InvalidInput(
            "the model's decoder is not fitted to optimal codes of that kind. Add --data FILE of vectors to "
            "fit one to, or drop --coding, --mu and --decoder."
        )
    progress.stage("fitting the decoder", None)
    model.fit_decoder(X, kind or present, mu=mu)


def _new_model(collection: Collection, method: str | None, n_bits: int | None, seed: int | None) -> Hasher:
    """A model to fit: of another method, or like the present one with other bits."""
    from sklearn.base import clone

    n_bits = check_n_bits(collection.n_bits if n_bits is None else n_bits)
    if seed is not None:
        check_integer("seed", seed, 0, LARGEST_SEED)
    if method is not None:
        return make_hasher(method, n_bits, random_state=seed or 0, n_jobs=collection.n_jobs)
    model: Hasher = clone(collection.model).set_params(n_bits=n_bits)
    return model if seed is None else model.set_params(random_state=seed)


def _rows_of_items(collection: Collection, data: str) -> Array:
    """The rows of a file, one for each item of a collection without vectors."""
    state, X = collection.manifest, read_data(data)
    if state.vectors is not None:
        raise InvalidInput(f"{collection.path} keeps its vectors: leave --data out.")
    if len(X) != len(collection):
        raise InvalidInput(
            f"{data} has {len(X):,} rows, and the collection {len(collection):,} items. One for each is "
            "needed, in the order they were added in, as Collection.open(…).ids lists them."
        )
    if state.n_features is not None:
        _check_width(X, data, state.n_features)
    check_finite(X, name=data)
    return X
