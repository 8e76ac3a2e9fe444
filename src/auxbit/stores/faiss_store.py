"""FaissStore: codes and ids in a file of FAISS, IndexBinaryIDMap2 over IndexBinaryFlat, or IndexBinaryIVF.

It holds codes of a multiple of 8 bits with their ids and nothing else: how many bits they really have is
noted beside it, in file.faiss.json. The file is written anew, atomically, by every change.
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from auxbit.core import files
from auxbit.core.checks import check_integer
from auxbit.core.codes import bytes_per_code, check_n_bits, check_packed
from auxbit.core.types import Array, Distances, Ids
from auxbit.errors import FileProblem, InvalidInput, InvalidParameter, StoreError, StoreExists
from auxbit.index.codes import check_ids
from auxbit.stores.base import MOST_ANSWERS, Progress, by_distance_then_id, checked_rows, joined, padded
from auxbit.stores.push import LocalPushes

FORMAT = "auxbit store"
TRAINING_CODES_A_LIST = 64


class FaissStore:
    """Codes in a FAISS file, kept in memory while it is open; faiss.read_index_binary reads it.

    n_probe : how many lists an approximate index looks at (create_index); without one, searches are exact.
    """

    batch_rows = 1_048_576  # the file is written once a batch

    def __init__(self, path: str | os.PathLike[str], *, n_probe: int = 32) -> None:
        self.path = Path(path)
        self.n_probe = check_integer("n_probe", n_probe, 1)
        self._index: Any = None
        self._about: dict[str, Any] | None = None

    @property
    def n_bits(self) -> int:
        """Bits of a code."""
        return int(self._known()["n_bits"])

    @property
    def n_features(self) -> None:
        """None: only codes are kept."""
        _ = self._known()

    @property
    def exists(self) -> bool:
        """Whether the file is there and ours; an error where it is somebody else's."""
        return self._find() is not None

    @property
    def exact(self) -> bool:
        """Whether `search` misses nothing."""
        _ = self._known()
        return not self._is_lists() or self.n_probe >= int(self._index.nlist)

    def create(self, n_bits: int, *, n_features: int | None = None, overwrite: bool = False) -> None:
        """Write an empty file; see Store.create."""
        n_bits = check_n_bits(n_bits)
        if n_features is not None:
            raise InvalidInput("a FAISS file of codes keeps no vectors: leave n_features out.")
        present = self._find()
        if present is not None and not overwrite:
            raise StoreExists(
                f"{self.path} exists, with codes of {present['n_bits']} bits. Choose another name, or "
                "replace it with --force (overwrite=True)."
            )
        faiss = _faiss()
        about = {"format": FORMAT, "n_bits": n_bits, "key": secrets.token_hex(16), "version": 1}
        index = faiss.IndexBinaryIDMap2(faiss.IndexBinaryFlat(8 * bytes_per_code(n_bits)))
        files.write_text(self._note, json.dumps(about))
        self._about, self._index = about, index
        self._write()

    def add(
        self,
        codes: npt.ArrayLike,
        ids: npt.ArrayLike,
        *,
        metadata: Any = None,
        vectors: npt.ArrayLike | None = None,
        upsert: bool = True,
        progress: Progress | None = None,
    ) -> None:
        """Add rows, all or none; see Store.add."""
        rows = checked_rows(codes, ids, metadata, vectors, n_bits=self.n_bits, n_features=None, upsert=upsert)
        if rows.has_metadata:
            raise InvalidInput("a FAISS file keeps no metadata: leave it out, or push to PostgreSQL.")
        known = rows.ids[np.isin(rows.ids, self._ids())]
        if len(known) and not upsert:
            raise InvalidInput(
                f"id {known[0]} is already in {self.path}; nothing was added. upsert=True replaces its row."
            )
        if len(known):
            self._index.remove_ids(known)
        if len(rows):
            self._index.add_with_ids(rows.codes, rows.ids)
            self._write()
        if progress is not None:
            progress(len(rows))

    def delete(self, ids: npt.ArrayLike) -> int:
        """Delete rows by id; returns how many there were."""
        unwanted = np.unique(check_ids(ids))
        _ = self._known()
        deleted = int(self._index.remove_ids(unwanted)) if len(unwanted) else 0
        if deleted:
            self._write()
        return deleted

    def create_index(self, kind: str = "ivf", *, n_lists: int | None = None) -> None:
        """Sort the codes into lists, 4 √n of them unless told; searches then look at n_probe of them."""
        if kind != "ivf":
            raise InvalidParameter("kind", kind, "'ivf', FAISS's IndexBinaryIVF")
        ids = self._ids()
        if not len(ids):
            raise StoreError(f"{self.path} is empty: add codes before they are sorted into lists.")
        n_lists = int(4 * np.sqrt(len(ids))) if n_lists is None else n_lists
        n_lists = min(check_integer("n_lists", n_lists, 1), len(ids))
        codes = self._codes()
        faiss, bits = _faiss(), 8 * codes.shape[1]
        coarse = faiss.IndexBinaryFlat(bits)
        lists = faiss.IndexBinaryIVF(coarse, bits, n_lists)
        lists.own_fields = True
        coarse.this.disown()  # it is deleted with the lists
        lists.cp.min_points_per_centroid = 1  # it would print a warning
        some = np.linspace(0, len(ids) - 1, min(len(ids), TRAINING_CODES_A_LIST * n_lists)).astype(np.int64)
        lists.train(codes[some])
        lists.add_with_ids(codes, ids)
        self._index = lists
        self._write()

    def search(
        self,
        codes: npt.ArrayLike,
        k: int = 10,
        *,
        where: Any = None,
        rerank: npt.ArrayLike | None = None,
        candidates: int | None = None,
    ) -> tuple[Array, Ids]:
        """The k nearest codes to each query; see Store.search."""
        k = check_integer("k", k, 1, MOST_ANSWERS, "Try k=10.")
        queries = np.ascontiguousarray(check_packed(codes, self.n_bits, "codes"))
        self._refuse_where(where)
        if rerank is not None:
            raise InvalidInput("a FAISS file of codes keeps no vectors to rank by.")
        most = min(k, int(self._index.ntotal))
        if not most or not len(queries):
            return padded([(np.zeros(0), np.zeros(0))] * len(queries), k)
        distances, ids = self._looking(self.n_probe).search(queries, most)
        there = ids >= 0
        return padded(
            [by_distance_then_id(near[mask], row[mask]) for near, row, mask in zip(distances, ids, there)], k
        )

    def search_radius(self, codes: npt.ArrayLike, r: int, *, where: Any = None) -> tuple[Ids, Distances, Ids]:
        """All codes within distance r, inclusive; see Store.search_radius."""
        r = check_integer("r", r, 0, None, "Try r=2.")
        queries = np.ascontiguousarray(check_packed(codes, self.n_bits, "codes"))
        self._refuse_where(where)
        if not self._index.ntotal or not len(queries):
            return joined([(np.zeros(0), np.zeros(0))] * len(queries))
        everywhere = self._looking(None)
        lims, distances, ids = everywhere.range_search(queries, min(r, self.n_bits) + 1)  # leaves it out
        spans = zip(lims[:-1].astype(int).tolist(), lims[1:].astype(int).tolist())
        return joined([by_distance_then_id(distances[a:b], ids[a:b]) for a, b in spans])

    def count(self, where: Any = None) -> int:
        """How many rows there are."""
        _ = self._known()
        self._refuse_where(where)
        return int(self._index.ntotal)

    def metadata(self, ids: npt.ArrayLike) -> list[dict[str, Any]]:
        """Empty: a FAISS file keeps none."""
        return [{} for _ in np.asarray(ids)]

    def transaction(self) -> AbstractContextManager[None]:
        """Nothing: every change is whole by itself."""
        return nullcontext()

    def pushed(self, source: str) -> int:
        """How many rows of a source an interrupted push from this machine has brought here."""
        return LocalPushes(self._known()["key"]).pushed(source)

    def remember_push(self, source: str, rows: int | None) -> None:
        """Note on this machine how far a push is; None: it is complete."""
        LocalPushes(self._known()["key"]).remember(source, rows)

    def close(self) -> None:
        """Free the memory."""
        self._index = self._about = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"FaissStore({str(self.path)!r})"

    # ---- inside

    @property
    def _note(self) -> Path:
        return self.path.with_name(self.path.name + ".json")

    def _find(self) -> dict[str, Any] | None:
        """What the note beside the file says, None where there is no file."""
        if not self.path.exists():
            return None
        try:
            about = json.loads(self._note.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            about = None
        if not isinstance(about, dict) or about.get("format") != FORMAT:
            raise StoreExists(
                f"{self.path} exists, and {self._note.name} beside it does not say that auxbit has made it: "
                "it is left alone. Choose another name."
            )
        return about

    def _known(self) -> dict[str, Any]:
        if self._about is None or self._index is None:
            found = self._find()
            if found is None:
                raise StoreError(f"there is no {self.path}: create it first.")
            faiss = _faiss()
            try:
                index = faiss.read_index_binary(os.fspath(self.path))  # of its own class
            except RuntimeError as error:
                raise FileProblem(f"{self.path} cannot be read by FAISS: {str(error)[:200]}") from error
            if index.d != 8 * bytes_per_code(check_n_bits(found["n_bits"])):
                raise FileProblem(f"{self.path} has codes of {index.d} bits, not {found['n_bits']}.")
            self._about, self._index = found, index
        return self._about

    def _write(self) -> None:
        try:
            with files.replacing(self.path) as temporary:
                _faiss().write_index_binary(self._index, os.fspath(temporary))
        except BaseException as error:
            self._index = None  # what is on disk counts
            if isinstance(error, RuntimeError):
                raise FileProblem(f"{self.path} cannot be written: {str(error)[:200]}") from error
            raise

    def _ids(self) -> Ids:
        _ = self._known()
        if self._is_lists():
            return np.concatenate([ids for ids, _ in self._lists()])
        found: Ids = _faiss().vector_to_array(self._index.id_map).astype(np.int64)
        return found

    def _codes(self) -> npt.NDArray[np.uint8]:
        """The codes in the order of `_ids`."""
        if self._is_lists():
            return np.concatenate([codes for _, codes in self._lists()])
        flat = _faiss().downcast_IndexBinary(self._index.index)
        codes: npt.NDArray[np.uint8] = _faiss().vector_to_array(flat.xb).reshape(-1, self._index.d // 8)
        return codes

    def _lists(self) -> list[tuple[Ids, npt.NDArray[np.uint8]]]:
        """Ids and codes of every list, copies."""
        faiss, lists, width = _faiss(), self._index.invlists, self._index.d // 8
        found = []
        for number in range(lists.nlist):
            size = lists.list_size(number)
            codes = faiss.rev_swig_ptr(lists.get_codes(number), size * width).reshape(size, width).copy()
            found.append((faiss.rev_swig_ptr(lists.get_ids(number), size).astype(np.int64), codes))
        return found

    def _is_lists(self) -> bool:
        return isinstance(self._index, _faiss().IndexBinaryIVF)

    def _looking(self, n_probe: int | None) -> Any:
        """The index, told how many lists to look at; None: all of them."""
        if self._is_lists():
            most = self._index.nlist
            self._index.nprobe = most if n_probe is None else min(n_probe, most)
        return self._index

    def _refuse_where(self, where: Any) -> None:
        if where is not None:
            raise InvalidInput(
                "a FAISS file keeps no metadata: search it without where, or push to PostgreSQL."
            )


def _faiss() -> Any:
    import faiss

    return faiss
