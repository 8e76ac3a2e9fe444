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

from auxbit.collection import metadata as texts
from auxbit.collection import storage as upkeep
from auxbit.collection.storage import (
    LOCK,
    MANIFEST,
    Column,
    Errors,
    Manifest,
    Part,
    Snapshot,
    Storage,
    View,
    Written,
    coding_of,
    file_name,
    measured_errors,
    new_columns,
    number_of,
    run_to_merge,
    sweep,
    tidy,
    vector_column,
)
from auxbit.collection.where import Where
from auxbit.core import files
from auxbit.core.checks import check_finite, check_integer
from auxbit.core.codes import bytes_per_code, check_n_bits, check_packed
from auxbit.core.files import WriterLock
from auxbit.core.parallel import Workers
from auxbit.core.types import Array, Float32, Ids, Packed, PathLike, Positions
from auxbit.errors import AuxbitError, FileExists, FileProblem, InvalidInput, InvalidParameter, ModelFileError
from auxbit.export import to_faiss, to_onnx
from auxbit.index.codes import MAX_ID, At, check_ids, repeats
from auxbit.index.hamming import MOST_ANSWERS

if TYPE_CHECKING:
    from auxbit.collection.drift import Statistics
    from auxbit.hashers.base import Hasher

# ---- What changes a collection: adding and deleting rows


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


# ---- Making a collection: a folder that appears whole or not at all

VECTORS = (None, "float32", "float16")


def create(
    path: Path,
    model: Hasher | None,
    *,
    vectors: str | None,
    coding: str | None,
    mu: float | None,
    n_bits: int | None,
    n_features: int | None,
    overwrite: bool,
) -> None:
    """Make the folder of an empty collection."""
    manifest = _manifest(model, vectors, coding, mu, n_bits, n_features)
    refuse_existing(path, overwrite=overwrite)
    try:
        _make(path.absolute(), model, manifest)
    except AuxbitError:
        raise
    except OSError as error:
        raise FileProblem(f"{path} could not be made: {error.strerror or error}.") from error


def _make(path: Path, model: Hasher | None, manifest: Manifest) -> None:
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
    """Commit an empty collection in the place of one that is there: it is the old one or the new one."""
    lock = WriterLock(path / LOCK)
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


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """Raise FileExists where something stands at `path` that must not be replaced."""
    if not os.path.lexists(path) or (path.is_dir() and not any(path.iterdir())):
        return
    if not overwrite:
        raise FileExists(f"{path} exists. Choose another name, or replace it with --force (overwrite=True).")
    if not (path / MANIFEST).is_file():
        raise FileExists(f"{path} is not a collection, and is not replaced by one. Choose another name.")


def _manifest(
    model: Hasher | None,
    vectors: str | None,
    coding: str | None,
    mu: float | None,
    n_bits: int | None,
    n_features: int | None,
) -> Manifest:
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


# ---- Collection

MODES = ("hamming", "asymmetric")


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

    @classmethod
    def create(
        cls,
        path: PathLike,
        model: Hasher | None = None,
        *,
        vectors: str | None = None,
        coding: str | None = None,
        mu: float | None = None,
        n_bits: int | None = None,
        n_features: int | None = None,
        overwrite: bool = False,
        n_jobs: int | None = None,
    ) -> Self:
        """Make an empty collection in a new folder.

        model : a fitted hasher, of which a copy is kept; without one it holds codes of `n_bits`, made
            elsewhere, and vectors of `n_features` numbers.
        vectors : keep them as "float32" or "float16", for re-ranking and retraining; None: keep codes only.
        coding, mu : how rows are encoded, as in `encode`: "hash", or "optimal" for search by the decoder;
            None: as the model's decoder is meant, optimal after fit_decoder.
        """
        create(
            Path(path), model, vectors=vectors, coding=coding, mu=mu, n_bits=n_bits, n_features=n_features,
            overwrite=overwrite,
        )  # fmt: skip
        return cls.open(path, n_jobs=n_jobs)

    @classmethod
    def open(
        cls, path: PathLike, *, read_only: bool = False, damaged: str = "error", n_jobs: int | None = None
    ) -> Self:
        """Open a collection; nothing but its manifest is read before it is needed.

        damaged : "error", or "skip" to read what is left where files are damaged, without changing it:
            `damage` lists what is wrong, and `compact` makes the rest a whole collection again.
        """
        if damaged not in ("error", "skip"):
            raise InvalidParameter("damaged", damaged, "'error' or 'skip'")
        salvage = damaged == "skip"
        return cls(Storage(Path(path), read_only=read_only, salvage=salvage, n_jobs=n_jobs))

    def add(
        self,
        X: npt.ArrayLike | None = None,
        *,
        codes: npt.ArrayLike | None = None,
        ids: npt.ArrayLike | None = None,
        metadata: Any = None,
        upsert: bool = False,
        trained: bool = False,
    ) -> Ids:
        """Add rows, all or none; they are on disk when it returns their ids.

        X : (n, D), encoded by the stored model; or codes : (n, ceil(n_bits/8)) uint8, packed, made elsewhere.
        ids : (n,) integers of 0 and up; numbered on if left out. One that is there already is an error, and
            with `upsert` its row is replaced.
        metadata : a list with a dict for each row, or a dict with a list of values for each field.
        trained : the model was fitted to these rows; `stats` compares those that come after them with it.
        """
        rows = None if X is None else np.asarray(X)
        packed = None if codes is None else np.asarray(codes)
        return add(self._storage, rows, packed, ids, metadata, upsert, trained)

    def delete(self, ids: npt.ArrayLike | None = None, *, where: Any = None) -> int:
        """Delete by id, all or none, or what `where` finds; returns how many rows."""
        if (ids is None) == (where is None):
            raise InvalidInput("say what to delete: ids, or where=…")
        if where is None:
            return delete(self._storage, ids)
        with self._storage.changing():
            found = np.flatnonzero(self._storage.view.matching(Where.of(where)))
            return delete(self._storage, None, found)

    def search(
        self,
        X: npt.ArrayLike | None = None,
        k: int = 10,
        *,
        codes: npt.ArrayLike | None = None,
        mode: str | None = None,
        rerank: bool | int = False,
        where: Any = None,
    ) -> tuple[npt.NDArray[Any], Ids]:
        """The k nearest items to each query: distances (q, k) and ids (q, k), nearest first.

        X : (q, D), or codes : (q, ceil(n_bits/8)) uint8. Fewer than k: the rest have id -1.
        mode : "hamming", distances in bits, int32; or "asymmetric", by the squared distance from x itself to
            what the decoder makes of a code, float32. None: asymmetric where coding is "optimal".
        rerank : True, or a number of candidates (10 k): so many are found by `mode` and ranked anew by their
            true squared distances, float32, from the vectors on disk.
        where : metadata to search among, {"label": "cat", "year": {">=": 2020}}.
        """
        return nearest(self._storage, X, k, codes, self._mode(mode), rerank, _where(where))

    def search_radius(
        self,
        X: npt.ArrayLike | None = None,
        r: int = 2,
        *,
        codes: npt.ArrayLike | None = None,
        where: Any = None,
    ) -> tuple[Ids, npt.NDArray[np.int32], Ids]:
        """All items within Hamming distance r: lims (q+1,), distances, ids, as HammingIndex has them."""
        return within(self._storage, X, r, codes, _where(where))

    def find_duplicates(self, r: int = 0) -> list[Ids]:
        """Groups of two and more items, joined by chains of codes within distance r of each other."""
        return self._storage.view.index().find_duplicates(r)

    def metadata(self, ids: npt.ArrayLike) -> list[dict[str, Any]]:
        """The metadata of items, {} where one has none, and for an id of -1, which marks a missing answer."""
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

    def holds(self, ids: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Which of these ids are there, (n,)."""
        found: npt.NDArray[np.bool_] = self._storage.view.places(check_ids(ids)) >= 0
        return found

    @property
    def ids(self) -> Ids:
        """All ids, in the order in which rows were added, (n,) int64."""
        view = self._storage.view
        return view.ids.at(view.present())

    def compact(self, *, advance: Callable[[int], None] | None = None) -> None:
        """Write everything into one file without what is deleted; searches go on meanwhile.

        Takes as much disk again until it is done. advance : called with numbers of rows.
        """
        upkeep.compact(self._storage, advance)

    def retrain(
        self,
        model: Hasher | None = None,
        *,
        X: npt.ArrayLike | None = None,
        advance: Callable[[int], None] | None = None,
        step: Callable[[str], None] | None = None,
    ) -> Hasher:
        """Make new codes by another model, beside the old ones, and switch to them in one step.

        model : a fitted hasher; None: one like the present, fitted to the vectors of the collection, or to
        100,000 of them. X : (n, D) in the order of `ids`, of a collection that keeps no vectors. Searches go
        on meanwhile. advance, step : called with numbers of rows, and with what is being done.
        """
        rows = None if X is None else np.asarray(X)
        return upkeep.retrain(self._storage, model, rows, advance, step or (lambda what: None))

    def export(
        self, path: PathLike, to: str = "faiss", *, form: str = "auto", overwrite: bool = False
    ) -> str:
        """Write codes and ids as a FAISS index, or, with to="onnx", the hash function; returns the form.

        form : as in `auxbit.export.to_faiss`; "auto" is "additive" where coding is "optimal".
        """
        return export(self._storage, path, to, form, overwrite)

    def stats(self) -> Statistics:
        """Sizes, and how what was added differs from what the model was trained on."""
        from auxbit.collection.drift import statistics_of

        return statistics_of(self._storage)

    def check(self) -> list[str]:
        """Compare every byte with its checksum; returns what is damaged, a line each."""
        from auxbit.collection.storage import Snapshot

        _ = self._storage.view  # says that it is closed
        return list(Snapshot.salvage(self._storage.folder).damage)

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
    def n_jobs(self) -> int | None:
        """How many threads search and encode; None: all cores."""
        return self._storage.n_jobs

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

    @property
    def path(self) -> Path:
        """The folder."""
        return self._storage.folder

    def lock(self) -> None:
        """Become the writer now, rather than at the first change; InUse where another process is."""
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
        lost = view.snapshot.lost
        if lost is not None:
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

    def _mode(self, mode: str | None) -> str:
        if mode is None:
            return "asymmetric" if self._storage.manifest.coding == "optimal" else "hamming"
        if mode not in MODES:
            raise InvalidParameter("mode", mode, " or ".join(map(repr, MODES)))
        return mode

    def _places(self, view: Any, ids: npt.ArrayLike) -> Ids:
        wanted = check_ids(ids)
        places: Ids = view.places(wanted)
        if (places < 0).any():
            raise InvalidInput(f"id {int(wanted[(places < 0).argmax()])} is not in the collection.")
        return places


def _where(where: Any) -> Where | None:
    return None if where is None else Where.of(where)


# ---- Candidates ranked anew by true distances, from vectors that stay on disk: retrieve more, then verify

FACTOR = 10  # candidates for each answer, unless told


def rerank(
    snapshot: Snapshot, X: npt.NDArray[Any], candidates: Positions, k: int, normalize: bool, workers: Workers
) -> tuple[Float32, Positions]:
    """The k nearest of each query's candidates by ‖x − y‖², and their positions, (q, k).

    X : (q, D); candidates : (q, m) positions, -1 for none. `normalize` divides rows by their norm first.
    Ties go to the smaller position; missing answers are -1 at distance inf.
    """
    distances = np.full((len(X), k), np.inf, dtype=np.float32)
    positions = np.full((len(X), k), -1, dtype=np.int64)

    def rank(rows: slice) -> None:
        for row in range(rows.start, rows.stop):
            near = np.sort(candidates[row][candidates[row] >= 0])
            vectors = snapshot.vectors(near).astype(np.float64)  # float16 squares would overflow
            squared = _squared_distances(np.asarray(X[row], dtype=np.float64), vectors, normalize)
            best = np.argsort(squared, kind="stable")[:k]
            distances[row, : len(best)], positions[row, : len(best)] = squared[best], near[best]

    workers.run(rank, len(X), 1)
    return distances, positions


def _squared_distances(
    x: npt.NDArray[np.float64], vectors: npt.NDArray[np.float64], normalize: bool
) -> npt.NDArray[np.float64]:
    if normalize:
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = vectors / np.where(norms > 0, norms, 1)
        x = x / (np.linalg.norm(x) or 1)
    difference = vectors - x
    squared: npt.NDArray[np.float64] = np.einsum("nd,nd->n", difference, difference)
    return squared


# ---- Searching a collection: queries become codes or tables, filters positions, positions ids

Answer = TypeVar("Answer")


def nearest(
    storage: Storage,
    X: npt.ArrayLike | None,
    k: int,
    codes: npt.ArrayLike | None,
    mode: str,
    reranked: bool | int,
    where: Where | None,
) -> tuple[Array, Ids]:
    """The k nearest of the present state of a collection: distances and ids, (q, k)."""
    k = check_integer("k", k, 1, MOST_ANSWERS, "Try k=10.")
    return _answer(storage, lambda view: _nearest(view, X, k, codes, mode, reranked, where))


def within(
    storage: Storage, X: npt.ArrayLike | None, r: int, codes: npt.ArrayLike | None, where: Where | None
) -> tuple[Ids, npt.NDArray[np.int32], Ids]:
    """All within a Hamming distance: lims, distances, ids."""

    def search(view: View) -> tuple[Ids, npt.NDArray[np.int32], Ids]:
        return view.index().search_radius(_codes(view, X, codes), r, among=_among(view, where))

    return _answer(storage, search)


def _answer(storage: Storage, search: Callable[[View], Answer]) -> Answer:
    """What a search of the present state finds; once more if a retraining took the model away meanwhile."""
    while True:
        view = storage.view
        try:
            return search(view)
        except ModelFileError:
            if storage.manifest.model == view.snapshot.manifest.model:
                raise


def _nearest(
    view: View, X: npt.ArrayLike | None, k: int, codes: npt.ArrayLike | None, mode: str,
    reranked: bool | int, where: Where | None,
) -> tuple[Array, Ids]:  # fmt: skip
    among = _among(view, where)
    n_candidates = _candidates(view, reranked, k)
    if mode == "asymmetric":
        view.model()  # says that there is none
    rows = _queries(view, X) if n_candidates or mode == "asymmetric" else None
    distances: Array
    if mode == "asymmetric":
        assert rows is not None
        index = view.index_with(view.model().decoder_)
        distances, found = index.asymmetric_positions(rows, n_candidates or k, among=among)
    else:
        distances, found = view.index().positions(_codes(view, X, codes), n_candidates or k, among)
    if n_candidates:
        assert rows is not None
        normalize = view.snapshot.manifest.model is not None and bool(view.model().normalize)
        with Workers(view.n_jobs) as workers:
            check_finite(rows, workers)
            distances, found = rerank(view.snapshot, rows, found, k, normalize, workers)
    return distances, view.ids.at(found)


def _among(view: View, where: Where | None) -> At | None:
    return None if where is None else At(np.flatnonzero(view.matching(where)))


def _candidates(view: View, reranked: bool | int, k: int) -> int:
    """How many are to be ranked anew, 0 for none."""
    if reranked is False or reranked is None:
        return 0
    manifest = view.snapshot.manifest
    if manifest.vectors is None:
        raise InvalidInput(
            "rerank needs the vectors, and the collection keeps none. Create it with "
            'vectors="float16", or search with mode="asymmetric", which needs the decoder alone.'
        )
    n = FACTOR * k if reranked is True else reranked
    return check_integer("rerank", n, k, MOST_ANSWERS, f"It must hold the k={k} answers.")


def _codes(view: View, X: npt.ArrayLike | None, codes: npt.ArrayLike | None) -> Packed:
    """The codes of the queries."""
    if codes is not None:
        return check_packed(codes, view.snapshot.manifest.n_bits, "codes")
    if X is None:
        raise InvalidInput("nothing to search for: give X, rows to encode, or codes=…")
    rows = np.asarray(X)
    model = view.model()
    if rows.ndim == 2 and not len(rows):
        return np.zeros((0, bytes_per_code(view.snapshot.manifest.n_bits)), dtype=np.uint8)
    return model.encode(rows)


def _queries(view: View, X: npt.ArrayLike | None) -> Array:
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


# ---- A collection as a file that others read: a FAISS index of its codes, or its hash function as ONNX


def export(storage: Storage, path: str | os.PathLike[str], to: str, form: str, overwrite: bool) -> str:
    """Write the file; returns its form."""
    if to not in ("faiss", "onnx"):
        raise InvalidParameter("to", to, "'faiss' or 'onnx'")
    view = storage.view
    present = view.present()  # first: the snapshot after it has their rows
    manifest = view.snapshot.manifest
    if to == "onnx":
        to_onnx(view.model(), path, overwrite=overwrite)
        return "onnx"
    model = None if manifest.model is None else view.model()
    if form == "auto" and manifest.coding == "optimal":
        form = "additive"  # the ranking that such codes are for
    codes, ids = view.snapshot.codes(present), view.ids.at(present)
    return to_faiss(path, model, codes, ids, form=form, overwrite=overwrite)
