"""Collection: a model, codes, ids, metadata and perhaps vectors in a folder that survives crashes."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from auxbit.collection.metadata import encode_rows
from auxbit.collection.storage import (
    LOCK,
    MANIFEST,
    TRAINING_ROWS,
    Errors,
    Manifest,
    Snapshot,
    Storage,
    View,
    coding_of,
    file_name,
    measured_errors,
    new_columns,
    number_of,
    sweep,
    vector_column,
)
from auxbit.collection.where import Where
from auxbit.core import files
from auxbit.core.checks import (
    Array,
    Distances,
    Float32,
    Float64,
    Ids,
    Mask,
    Packed,
    PathLike,
    Positions,
    check_finite,
    check_integer,
    check_squares,
)
from auxbit.core.maps import bytes_per_code, check_n_bits, check_packed
from auxbit.core.parallel import Workers
from auxbit.errors import AuxbitError, FileExists, FileProblem, InvalidInput, InvalidParameter, ModelFileError
from auxbit.index.codes import MAX_ID, At, check_ids, repeats
from auxbit.index.hamming import MOST_ANSWERS

if TYPE_CHECKING:
    from auxbit.collection.drift import Statistics
    from auxbit.hashers.base import Hasher

MODES = ("hamming", "asymmetric")
VECTORS = (None, "float32", "float16")
FACTOR = 10  # candidates for each answer of a re-ranked search, by default

Answer = TypeVar("Answer")


class Collection:
    """Codes with ids, metadata and perhaps vectors, in a folder; made by `create`, opened by `open`.

    What `add` and `delete` have returned from is on disk and stays there. One process writes at a time, from
    its first change until `close`; any number search at once, and see what it writes. Ids are integers.

    >>> with Collection.create("papers.auxbit", model, vectors="float16") as papers:
    ...     papers.add(X, metadata=[{"title": …}, …])
    ...     distances, ids = papers.search(queries, k=10, rerank=True, where={"year": {">=": 2020}})
    ...     papers.metadata(ids[0])
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.path = storage.folder
        self.n_jobs = storage.n_jobs  # threads that search and encode; None: all cores

    @classmethod
    def create(
        cls, path: PathLike, model: Hasher | None = None, *, vectors: str | None = None,
        coding: str | None = None, mu: float | None = None, n_bits: int | None = None,
        n_features: int | None = None, overwrite: bool = False, n_jobs: int | None = None,
    ) -> Self:  # fmt: skip
        """Make an empty collection in a new folder, which appears whole or not at all.

        model : a fitted hasher, of which a copy is kept; without one it holds codes of `n_bits`, made
            elsewhere, and vectors of `n_features` numbers.
        vectors : keep them as "float32" or "float16", for re-ranking and retraining; None: keep codes only.
        coding, mu : how rows are encoded, as in `encode`: "hash", or "optimal" for search by the decoder;
            None: as the model's decoder is meant, optimal after fit_decoder.
        """
        manifest = _empty_manifest(model, vectors, coding, mu, n_bits, n_features)
        folder = Path(path)
        refuse_existing(folder, overwrite=overwrite)
        try:
            _make_folder(folder.absolute(), model, manifest)
        except AuxbitError:
            raise
        except OSError as error:
            raise FileProblem(f"{folder} could not be made: {error.strerror or error}.") from error
        return cls.open(path, n_jobs=n_jobs)

    @classmethod
    def open(
        cls, path: PathLike, *, read_only: bool = False, damaged: str = "error", n_jobs: int | None = None
    ) -> Self:
        """Open a collection; nothing but its manifest is read before it is needed.

        damaged : "error", or "skip" to read what is left of damaged files, without changing it:
            `damage` lists what is wrong, and `compact` makes the rest a whole collection again.
        """
        if damaged not in ("error", "skip"):
            raise InvalidParameter("damaged", damaged, "'error' or 'skip'")
        salvage = damaged == "skip"
        return cls(Storage(Path(path), read_only=read_only, salvage=salvage, n_jobs=n_jobs))

    # ---- changes

    def add(
        self, X: npt.ArrayLike | None = None, *, codes: npt.ArrayLike | None = None,
        ids: npt.ArrayLike | None = None, metadata: Any = None, upsert: bool = False, trained: bool = False,
    ) -> Ids:  # fmt: skip
        """Add rows, all or none; they are on disk when it returns their ids.

        X : (n, D), encoded by the stored model; or codes : (n, ceil(n_bits/8)) uint8, packed, made elsewhere.
        ids : (n,) integers of 0 and up; by default they continue the numbers. An id that is there already
            is an error; with `upsert` its row is replaced.
        metadata : a list with a dict for each row, or a dict with a list of values for each field.
        trained : the model was fitted to these rows; `stats` compares later ones with them.
        """
        rows = None if X is None else np.asarray(X)
        with self._storage.changing() as manifest:
            packed, errors = self._encoded(manifest, rows, codes)
            n = len(packed)
            given, replaced = self._settle_ids(manifest, ids, n, upsert)
            texts = None if metadata is None else encode_rows(metadata, n)
            vectors = None
            if manifest.vectors is not None:
                vectors = vector_column(self._checked_vectors(rows, manifest), manifest.vectors)
            if not n:
                return given
            columns = new_columns(packed, manifest.n_bits, given, texts, vectors)
            part = self._storage.write(manifest, n, columns, errors)
            after = manifest.but(
                segments=(*manifest.segments, part),
                next_file=manifest.next_file + 1,
                next_id=max(manifest.next_id, int(given.max()) + 1),
            )
            if trained and manifest.trained_at == manifest.n_positions:
                after = after.but(trained_at=after.n_positions)
            if len(replaced):
                after = self._storage.without(after, replaced)
            self._storage.commit(after)
            self._storage.tidy()
        return given

    def delete(self, ids: npt.ArrayLike | None = None, *, where: Any = None) -> int:
        """Delete by id, all or none, or what `where` finds; returns how many rows."""
        if (ids is None) == (where is None):
            raise InvalidInput("say what to delete: ids, or where=…")
        with self._storage.changing() as manifest:
            if ids is None:
                positions: Ids = np.flatnonzero(self._storage.view.matching(Where.of(where)))
            else:
                unwanted = np.unique(check_ids(ids))
                positions = self._storage.view.places(unwanted)
                if (positions < 0).any():
                    missing = int(unwanted[(positions < 0).argmax()])
                    raise InvalidInput(f"id {missing} is not in the collection; nothing was deleted.")
            if len(positions):
                self._storage.commit(self._storage.without(manifest.but(), positions))
                self._storage.tidy()
        return len(positions)

    def compact(self, *, advance: Callable[[int], None] | None = None) -> None:
        """Write everything into one file without what is deleted; searches continue meanwhile.

        Takes as much disk again until it is done. advance : called with numbers of rows.
        """
        with self._storage.repairing() as manifest:
            view = self._storage.view
            positions = view.present()
            errors = view.snapshot.errors_since(manifest.trained_at)
            self._storage.replace_all(manifest.but(), positions, None, errors, advance)

    def retrain(
        self, model: Hasher | None = None, *, X: npt.ArrayLike | None = None,
        advance: Callable[[int], None] | None = None, step: Callable[[str], None] | None = None,
    ) -> Hasher:  # fmt: skip
        """Make new codes by another model, beside the old ones, and switch to them in one step.

        model : a fitted hasher; None: one like the present, fitted to the vectors of the collection, or to
        100,000 of them. X : (n, D) in the order of `ids`, if the collection keeps no vectors. Searches
        continue meanwhile. advance, step : called with numbers of rows, and with what is being done.
        """
        given, step = None if X is None else np.asarray(X), step or (lambda what: None)
        with self._storage.changing() as manifest:
            view = self._storage.view
            positions, snapshot = view.present(), view.snapshot
            _check_retraining(self.path, manifest, given, len(positions), model)

            def rows_of(some: slice | Ids) -> Array:
                return given[some] if given is not None else snapshot.vectors(positions[some])

            if model is None:
                model = self._trained(manifest, rows_of, len(positions), step)
            step("encoding")
            if manifest.n_features is not None and model.n_features_in_ != manifest.n_features:
                raise InvalidInput(
                    f"the model is for rows of {model.n_features_in_} numbers, the collection for "
                    f"{manifest.n_features}."
                )
            coding, mu = manifest.coding, manifest.mu
            if manifest.model is None:  # its codes were made elsewhere, or are still to be made
                coding, mu = coding_of(model, None, None)

            def codes(rows: slice) -> Packed:
                return model.encode(rows_of(rows), coding=coding, mu=mu)

            after = manifest.but(
                model=self._storage.write_model(manifest, model), n_bits=model.decoder_.n_bits,
                n_features=model.n_features_in_, next_file=manifest.next_file + 1,
                trained_at=len(positions), coding=coding, mu=mu,
            )  # fmt: skip
            self._storage.replace_all(after, positions, codes, Errors(), advance)
        return model

    # ---- searches

    def search(
        self, X: npt.ArrayLike | None = None, k: int = 10, *, codes: npt.ArrayLike | None = None,
        mode: str | None = None, rerank: bool | int = False, where: Any = None,
    ) -> tuple[Array, Ids]:  # fmt: skip
        """The k nearest items to each query: distances (q, k) and ids (q, k), nearest first.

        X : (q, D), or codes : (q, ceil(n_bits/8)) uint8. Fewer than k: the rest have id -1.
        mode : "hamming", distances in bits, int32; or "asymmetric", by the squared distance from x itself to
            what the decoder makes of a code, float32. None: asymmetric if coding is "optimal".
        rerank : True, or a number of candidates (10 k): that many are found by `mode` and ranked again by
            their true squared distances, float32, from the vectors on disk.
        where : metadata to search among, {"label": "cat", "year": {">=": 2020}}.
        """
        k = check_integer("k", k, 1, MOST_ANSWERS, "Try k=10.")
        if mode is None:
            mode = "asymmetric" if self.manifest.coding == "optimal" else "hamming"
        elif mode not in MODES:
            raise InvalidParameter("mode", mode, " or ".join(map(repr, MODES)))
        wanted = None if where is None else Where.of(where)

        def nearest(view: View) -> tuple[Array, Ids]:
            among, n_candidates = _among(view, wanted), _n_candidates(view, rerank, k)
            decoder = view.model().decoder_ if mode == "asymmetric" else None
            queries = None if decoder is None and not n_candidates else _checked_queries(view, X)
            distances: Array
            if decoder is not None and queries is not None:
                index = view.index_with(decoder)
                distances, found = index.asymmetric_positions(queries, n_candidates or k, among=among)
            else:
                distances, found = view.index().positions(_codes(view, X, codes), n_candidates or k, among)
            if n_candidates and queries is not None:
                distances, found = _reranked(view, queries, found, k)
            return distances, view.ids.at(found)

        return self._answer(nearest)

    def search_radius(
        self, X: npt.ArrayLike | None = None, r: int = 2, *, codes: npt.ArrayLike | None = None,
        where: Any = None,
    ) -> tuple[Ids, Distances, Ids]:  # fmt: skip
        """All items within Hamming distance r: lims (q+1,), distances, ids, as HammingIndex has them."""
        wanted = None if where is None else Where.of(where)

        def within(view: View) -> tuple[Ids, Distances, Ids]:
            return view.index().search_radius(_codes(view, X, codes), r, among=_among(view, wanted))

        return self._answer(within)

    def find_duplicates(self, r: int = 0) -> list[Ids]:
        """Groups of two and more items, joined by chains of codes within distance r of each other."""
        return self._storage.view.index().find_duplicates(r)

    # ---- what is in it

    def metadata(self, ids: npt.ArrayLike) -> list[dict[str, Any]]:
        """The metadata of items; {} for one without, and for an id of -1, which marks a missing answer."""
        view, wanted = self._storage.view, np.asarray(ids)
        there = np.flatnonzero(wanted != -1) if wanted.ndim == 1 else np.arange(len(wanted))
        places = self._places(view, wanted[there])  # first: the snapshot after it has their rows
        found = dict(zip(there.tolist(), view.snapshot.metadata(places), strict=True))
        return [found.get(place, {}) for place in range(len(wanted))]

    def vectors(self, ids: npt.ArrayLike) -> Array:
        """The vectors of items, (n, D), in the type they are kept in."""
        view = self._storage.view
        if view.snapshot.manifest.vectors is None:
            raise InvalidInput("the collection keeps no vectors.")
        places = self._places(view, ids)
        return view.snapshot.vectors(places)

    def codes(self, ids: npt.ArrayLike | None = None) -> Packed:
        """The packed codes of items, (n, ceil(n_bits/8)) uint8; of all, in the order of `ids`."""
        view = self._storage.view
        places = view.present() if ids is None else self._places(view, ids)
        return view.snapshot.codes(places)

    def count(self, where: Any = None) -> int:
        """How many items there are, or have the metadata that `where` asks for."""
        return len(self) if where is None else int(self._storage.view.matching(Where.of(where)).sum())

    def holds(self, ids: npt.ArrayLike) -> Mask:
        """Which of these ids are there, (n,)."""
        found: Mask = self._storage.view.places(check_ids(ids)) >= 0
        return found

    @property
    def ids(self) -> Ids:
        """All ids, in the order in which rows were added, (n,) int64."""
        view = self._storage.view
        return view.ids.at(view.present())

    def export(
        self, path: PathLike, to: str = "faiss", *, form: str = "auto", overwrite: bool = False
    ) -> str:
        """Write codes and ids as a FAISS index, or, with to="onnx", the hash function; returns the form.

        form : as in `auxbit.export.to_faiss`; "auto" is "additive" if coding is "optimal".
        """
        from auxbit.export import to_faiss, to_onnx

        if to not in ("faiss", "onnx"):
            raise InvalidParameter("to", to, "'faiss' or 'onnx'")
        view = self._storage.view
        present = view.present()  # first: the snapshot after it has their rows
        manifest = view.snapshot.manifest
        if to == "onnx":
            to_onnx(view.model(), path, overwrite=overwrite)
            return "onnx"
        model = None if manifest.model is None else view.model()
        if form == "auto" and manifest.coding == "optimal":
            form = "additive"  # the ranking that such codes are for
        codes = view.snapshot.codes(present)
        return to_faiss(path, model, codes, view.ids.at(present), form=form, overwrite=overwrite)

    def stats(self) -> Statistics:
        """Sizes, and how what was added differs from what the model was trained on."""
        from auxbit.collection.drift import Statistics

        return Statistics.of(self._storage.view)

    def check(self) -> list[str]:
        """Compare every byte with its checksum; returns what is damaged, a line each."""
        _ = self._storage.view  # says that it is closed
        return list(Snapshot.salvage(self.path).damage)

    @property
    def damage(self) -> list[str]:
        """What was found to be wrong by damaged="skip"."""
        return list(self._storage.view.snapshot.damage)

    @property
    def lost(self) -> int:
        """How many rows are left out because of damage."""
        lost = self._storage.view.snapshot.lost
        return 0 if lost is None else len(lost)

    @property
    def model(self) -> Hasher:
        """The hasher, loaded at first use."""
        return self._storage.view.model()

    @property
    def manifest(self) -> Manifest:
        """What the collection consists of at this moment."""
        return self._storage.manifest

    @property
    def n_bits(self) -> int:
        """Bits of a code."""
        return self._storage.manifest.n_bits

    def lock(self) -> None:
        """Become the writer now, rather than at the first change; InUse if another process is."""
        self._storage.lock()

    def close(self) -> None:
        """Let others write. What was added is on disk without it."""
        self._storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        view = self._storage.view
        if view.snapshot.lost is not None:
            return len(view.present())
        return view.snapshot.manifest.n_positions - view.snapshot.manifest.n_removed

    def __contains__(self, id_: object) -> bool:
        if not isinstance(id_, int | np.integer) or not 0 <= int(id_) <= MAX_ID:
            return False
        return bool(self._storage.view.places(np.array([id_], dtype=np.int64))[0] >= 0)

    def __repr__(self) -> str:
        if self._storage.closed:
            return f"Collection({str(self.path)!r}), closed"
        return f"Collection({str(self.path)!r}) of {len(self):,} codes of {self.n_bits} bits"

    # ---- inside

    def _places(self, view: View, ids: npt.ArrayLike) -> Positions:
        wanted = check_ids(ids)
        places = view.places(wanted)
        if (places < 0).any():
            raise InvalidInput(f"id {int(wanted[(places < 0).argmax()])} is not in the collection.")
        return places

    def _encoded(
        self, manifest: Manifest, X: Array | None, codes: npt.ArrayLike | None
    ) -> tuple[Packed, Errors]:
        """The codes of rows to add, and their reconstruction errors if they came as vectors."""
        if codes is not None:
            packed = check_packed(codes, manifest.n_bits)
            if X is not None and len(X) != len(packed):
                raise InvalidInput(f"X has {len(X)} rows, codes {len(packed)}.")
            return packed, Errors()
        if X is None:
            raise InvalidInput("nothing to add: give X, rows to encode, or codes=…")
        model = self._storage.view.model()
        if X.ndim == 2 and not len(X):
            return np.zeros((0, bytes_per_code(manifest.n_bits)), dtype=np.uint8), Errors()
        packed = model.encode(X, coding=manifest.coding, mu=manifest.mu)
        return packed, measured_errors(model, X, packed)

    def _checked_vectors(self, X: Array | None, manifest: Manifest) -> Array:
        """The vectors to keep, of which their type can hold what matters."""
        rows, kept = _checked_rows(X, manifest), np.finfo(np.dtype(manifest.vectors))
        least, most = float(kept.tiny), float(kept.max)
        largest = max(float(rows.max()), -float(rows.min())) if rows.size else 0.0
        if not largest <= most:
            raise InvalidInput(
                f"X has numbers that {manifest.vectors} cannot hold, over {most:.4g}, or that are not "
                "finite. Scale the rows, or create the collection with vectors='float32'."
            )
        sizes = np.abs(rows).max(axis=1, initial=0) if rows.dtype.kind == "f" else np.ones(0)
        small = (sizes > 0) & (sizes < least)
        if small.any():
            model = None if manifest.model is None else self._storage.view.model()
            if model is None or not model.scaling_.normalize:  # beside larger rows, small ones may be lost
                small &= max(largest, 0.0 if model is None else model.scaling_.scale) < least
            if (rows[small].astype(kept.dtype) != rows[small]).any():
                raise InvalidInput(
                    f"X has rows that {manifest.vectors} would round to 0 or nearly so: the numbers of row "
                    f"{int(small.argmax())} are under {least:.3g}. Multiply the rows by a number, before "
                    "the model is fitted, or create the collection with vectors='float32'."
                )
        return rows

    def _settle_ids(
        self, manifest: Manifest, ids: npt.ArrayLike | None, n: int, upsert: bool
    ) -> tuple[Ids, Positions]:
        """The ids of n rows to add, and the positions of rows that they replace."""
        nothing = np.zeros(0, dtype=np.int64)
        if ids is None:
            if n and manifest.next_id + n - 1 > MAX_ID:
                raise InvalidInput(
                    f"{n} rows cannot be numbered on: the largest id is {manifest.next_id - 1}. "
                    "Give their ids."
                )
            return np.arange(manifest.next_id, manifest.next_id + n, dtype=np.int64), nothing
        given = check_ids(ids, n)
        again = repeats(given)
        if again.any():
            raise InvalidInput(f"id {given[again.argmax()]} comes twice in ids; nothing was added.")
        if not n or given.min() >= manifest.next_id:  # no need to look: all are new
            return given, nothing
        places = self._storage.view.places(given)
        known = places >= 0
        if known.any() and not upsert:
            raise InvalidInput(
                f"id {given[known.argmax()]} is already in the collection; nothing was added. "
                "upsert=True (--upsert) replaces it."
            )
        return given, places[known]

    def _trained(
        self, manifest: Manifest, rows_of: Callable[[Ids], Array], n: int, step: Callable[[str], None]
    ) -> Hasher:
        """A model like the present one, fitted to the rows of the collection, or to a sample of them."""
        from sklearn.base import clone

        old = self.model
        some = np.arange(n)
        if n > TRAINING_ROWS:
            some = np.sort(np.random.default_rng(0).choice(n, TRAINING_ROWS, replace=False))
        X = np.asarray(rows_of(some), dtype=np.float32)
        step(f"training on {len(X):,} rows")
        model: Hasher = clone(old).fit(X)
        if manifest.coding == "optimal":
            step("fitting the decoder")
            kind = "tables" if hasattr(old.decoder_, "tables") else "linear"
            model.fit_decoder(X, kind, mu=manifest.mu)
        return model

    def _answer(self, search: Callable[[View], Answer]) -> Answer:
        """What a search of the present state finds; once more if a retraining took the model away."""
        while True:
            view = self._storage.view
            try:
                return search(view)
            except ModelFileError:
                if self._storage.manifest.model == view.snapshot.manifest.model:
                    raise


# ---- Making a folder


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """Raise FileExists if something stands at `path` that must not be replaced."""
    if not os.path.lexists(path) or (path.is_dir() and not any(path.iterdir())):
        return
    if not overwrite:
        raise FileExists(f"{path} exists. Choose another name, or replace it with --force (overwrite=True).")
    if not (path / MANIFEST).is_file():
        raise FileExists(f"{path} is not a collection, and is not replaced by one. Choose another name.")


def _make_folder(path: Path, model: Hasher | None, manifest: Manifest) -> None:
    """A folder beside it is filled and renamed; what replaces a collection is committed like a change."""
    files.make_folder(path.parent)
    if (path / MANIFEST).is_file():
        _replace(path, model, manifest)
        return
    temporary = path.parent / f".{path.name[:40]}.{secrets.token_hex(8)}.part"
    os.mkdir(temporary)
    try:
        if model is not None:
            model.save(temporary / file_name("model", 0))
        manifest.write(temporary)
        os.replace(temporary, path)
    finally:
        if temporary.exists():
            shutil.rmtree(temporary)
    files.sync_folder(path.parent)


def _replace(path: Path, model: Hasher | None, manifest: Manifest) -> None:
    """Commit an empty collection over one that is there: a crash leaves the old one or the new one."""
    lock = files.WriterLock(path / LOCK)
    lock.acquire(f"the collection {path}")
    try:
        number = 1 + max((number_of(each.name) for each in path.iterdir()), default=0)
        if model is not None:
            manifest = replace(manifest, model=file_name("model", number))
            model.save(path / file_name("model", number))
        files.sync_folder(path)
        replace(manifest, next_file=number + 1).write(path)
        sweep(path)
    finally:
        lock.release()


def _empty_manifest(
    model: Hasher | None, vectors: str | None, coding: str | None, mu: float | None, n_bits: int | None,
    n_features: int | None,
) -> Manifest:  # fmt: skip
    """The manifest of an empty collection, of parameters that go together."""
    key = secrets.token_hex(16)
    if vectors not in VECTORS:
        raise InvalidParameter("vectors", vectors, "'float32', 'float16' or None")
    if coding not in (None, "hash", "optimal"):
        raise InvalidParameter("coding", coding, "'hash', 'optimal' or None")
    if model is None:
        if n_bits is None:
            raise InvalidInput("give a fitted model, or n_bits for codes that are made elsewhere.")
        if vectors is not None and n_features is None:
            raise InvalidInput("to keep vectors without a model, give n_features, their dimension.")
        if n_features is not None:
            n_features = check_integer("n_features", n_features, 1)
        return Manifest(check_n_bits(n_bits), n_features, key, vectors=vectors)
    if not hasattr(model, "encoder_"):
        raise InvalidInput(f"this {type(model).__name__} is not fitted: call fit first.")
    fitted, dims = model.decoder_.n_bits, int(model.n_features_in_)
    if n_bits not in (None, fitted) or n_features not in (None, dims):
        raise InvalidInput(f"the model has {fitted} bits and {dims} features: leave n_bits, n_features out.")
    coding, mu = coding_of(model, coding, mu)
    return Manifest(
        fitted, dims, key, model=file_name("model", 0), coding=coding, mu=mu, vectors=vectors, next_file=1
    )


# ---- Checks of what is given


def _checked_rows(X: Array | None, manifest: Manifest) -> Array:
    """Rows of numbers to keep."""
    if X is None:
        raise InvalidInput("the collection keeps vectors: give X beside the codes.")
    if X.ndim != 2 or (manifest.n_features is not None and X.shape[1] != manifest.n_features):
        raise InvalidInput(f"X must be rows of {manifest.n_features} numbers, got shape {X.shape}.")
    if X.dtype.kind not in "biuf":
        raise InvalidInput(f"X must be rows of numbers, got {X.dtype}.")
    return X


def _check_retraining(path: Path, manifest: Manifest, X: Array | None, n: int, model: Hasher | None) -> None:
    if X is not None and (X.ndim != 2 or len(X) != n):
        raise InvalidInput(f"X must have a row for each of the {n:,} items, in the order of ids.")
    if model is None and not n:
        raise InvalidInput(f"{path} is empty: there is nothing to train on.")
    if X is None and manifest.vectors is None:
        raise InvalidInput(
            "the collection keeps no vectors to make new codes from. Give X, a row for each item in the "
            'order of ids; or create it with vectors="float16".'
        )


def _checked_queries(view: View, X: npt.ArrayLike | None) -> Array:
    """The queries as they are, of the right dimension."""
    if X is None:
        raise InvalidInput('rerank and mode="asymmetric" need the queries themselves: give X.')
    rows, n_features = np.asarray(X), view.snapshot.manifest.n_features
    if rows.ndim != 2 or rows.shape[1] != n_features or rows.dtype.kind not in "fiub":
        raise InvalidInput(
            f"X must be rows of {n_features} numbers, shape (q, {n_features}); got shape {rows.shape} of "
            f"{rows.dtype}."
        )
    return rows


def _n_candidates(view: View, rerank: bool | int, k: int) -> int:
    """How many are to be ranked again, 0 for none."""
    if rerank is False or rerank is None:
        return 0
    if view.snapshot.manifest.vectors is None:
        raise InvalidInput(
            "rerank needs the vectors, and the collection keeps none. Create it with "
            'vectors="float16", or search with mode="asymmetric", which needs the decoder alone.'
        )
    n = FACTOR * k if rerank is True else rerank
    return check_integer("rerank", n, k, MOST_ANSWERS, f"It must hold the k={k} answers.")


# ---- Parts of a search


def _among(view: View, where: Where | None) -> At | None:
    return None if where is None else At(np.flatnonzero(view.matching(where)))


def _codes(view: View, X: npt.ArrayLike | None, codes: npt.ArrayLike | None) -> Packed:
    """The codes of the queries."""
    if codes is not None:
        return check_packed(codes, view.snapshot.manifest.n_bits, "codes")
    if X is None:
        raise InvalidInput("nothing to search for: give X, rows to encode, or codes=…")
    rows, model = np.asarray(X), view.model()
    if rows.ndim == 2 and not len(rows):
        return np.zeros((0, bytes_per_code(view.snapshot.manifest.n_bits)), dtype=np.uint8)
    return model.encode(rows)


def _reranked(view: View, X: Array, candidates: Positions, k: int) -> tuple[Float32, Positions]:
    """The k nearest of each query's candidates by ‖x − y‖², and their positions, (q, k).

    X : (q, D); candidates : (q, m) positions, -1 for none. Vectors stay on disk, but for the candidates'.
    Rows are divided by their norm first if the model does so. Equal distances are ordered by position;
    missing answers are -1 at distance inf.
    """
    normalize = view.snapshot.manifest.model is not None and bool(view.model().normalize)
    snapshot = view.snapshot
    distances = np.full((len(X), k), np.inf, dtype=np.float32)
    positions = np.full((len(X), k), -1, dtype=np.int64)

    def rank(rows: slice) -> None:
        for row in range(rows.start, rows.stop):
            near = np.sort(candidates[row][candidates[row] >= 0])
            vectors = snapshot.vectors(near).astype(np.float64)  # float16 squares would overflow
            x = np.asarray(X[row], dtype=np.float64)
            squared = _squared_distances(x, vectors, normalize)
            best = np.argsort(squared, kind="stable")[:k]
            largest = 1.0 if normalize else max(np.abs(x).max(), np.abs(vectors).max(initial=0.0))
            check_squares(squared[best], largest)
            distances[row, : len(best)], positions[row, : len(best)] = squared[best], near[best]

    with Workers(view.n_jobs) as workers:
        check_finite(X, workers)
        workers.run(rank, len(X), 1)
    return distances, positions


def _squared_distances(x: Float64, vectors: Float64, normalize: bool) -> Float64:
    if normalize:
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = vectors / np.where(norms > 0, norms, 1)
        x = x / (np.linalg.norm(x) or 1)
    difference = vectors - x
    squared: Float64 = np.einsum("nd,nd->n", difference, difference)
    return squared
