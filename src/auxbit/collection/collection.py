"""Collection: a model, codes, ids, metadata and perhaps vectors in a folder that survives crashes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from auxbit.codes import Packed
from auxbit.collection import changes, creation, upkeep
from auxbit.collection.manifest import Manifest
from auxbit.collection.storage import Storage
from auxbit.collection.where import Where
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.index.id_table import MAX_ID, check_ids

if TYPE_CHECKING:  # scikit-learn takes longer to import than a collection to open
    from auxbit.collection.statistics import Statistics
    from auxbit.hashers.base import Hasher

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]
PathLike = str | os.PathLike[str]

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
        creation.create(
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
        return changes.add(self._storage, rows, packed, ids, metadata, upsert, trained)

    def delete(self, ids: npt.ArrayLike | None = None, *, where: Any = None) -> int:
        """Delete by id, all or none, or what `where` finds; returns how many rows."""
        if (ids is None) == (where is None):
            raise InvalidInput("say what to delete: ids, or where=…")
        if where is None:
            return changes.delete(self._storage, ids)
        with self._storage.changing():
            found = np.flatnonzero(self._storage.view.matching(Where.of(where)))
            return changes.delete(self._storage, None, found)

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
        from auxbit.collection import searching

        return searching.nearest(self._storage, X, k, codes, self._mode(mode), rerank, _where(where))

    def search_radius(
        self,
        X: npt.ArrayLike | None = None,
        r: int = 2,
        *,
        codes: npt.ArrayLike | None = None,
        where: Any = None,
    ) -> tuple[Ids, npt.NDArray[np.int32], Ids]:
        """All items within Hamming distance r: lims (q+1,), distances, ids, as HammingIndex has them."""
        from auxbit.collection import searching

        return searching.within(self._storage, X, r, codes, _where(where))

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
        from auxbit.collection import exporting

        return exporting.export(self._storage, path, to, form, overwrite)

    def stats(self) -> Statistics:
        """Sizes, and how what was added differs from what the model was trained on."""
        from auxbit.collection.statistics import statistics_of

        return statistics_of(self._storage)

    def check(self) -> list[str]:
        """Compare every byte with its checksum; returns what is damaged, a line each."""
        from auxbit.collection.snapshot import Snapshot

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
