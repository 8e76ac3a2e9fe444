"""HammingIndex: codes with ids in memory, and every way to search them.

Positions count codes in the order of insertion. What searches speaks of positions only; ids are looked up
at the end. A removed code keeps its position, and is not answered, until half of the codes are removed.
"""

from __future__ import annotations

import copy
import os
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from auxbit.blocks import Workers, resolve_n_jobs
from auxbit.checks import check_finite, check_integer
from auxbit.codes import Packed, check_n_bits, check_packed
from auxbit.decoders import Decoder, LinearDecoder, TableDecoder
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.index import approximate, asymmetric, duplicates, linear
from auxbit.index.code_blocks import CodeBlocks, all_lanes
from auxbit.index.exact import ExactSearch
from auxbit.index.guard import Guard
from auxbit.index.id_table import MAX_ID, check_ids
from auxbit.index.store import Among, CodeStore

Distances = npt.NDArray[np.int32]
SquaredDistances = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

EXACT_KINDS = ("auto", "linear", "multi")
MOST_ANSWERS = 2**31 - 1
SHORTLIST = 10  # times k, in a two-stage search


class HammingIndex:
    """Nearest neighbours among binary codes of `n_bits` bits.

    kind : "auto" (exact: a scan, or multi-index hashing where that is faster), "linear", "multi" (exact, by
    one of them), "hnsw", "ivf" (approximate, by FAISS; `options` are theirs). decoder : a hasher's decoder_,
    for search_asymmetric. Any number of threads may search at once; one that changes the index waits for
    the searches under way, and later ones for it.

    >>> index = HammingIndex(n_bits=32)
    >>> index.add(codes)
    >>> distances, ids = index.search(query_codes, k=10)
    """

    def __init__(
        self,
        n_bits: int,
        *,
        kind: str = "auto",
        decoder: Decoder | None = None,
        options: dict[str, int | None] | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_bits = check_n_bits(n_bits)
        if not isinstance(kind, str) or kind not in (*EXACT_KINDS, *approximate.KINDS):
            raise InvalidParameter("kind", kind, f"one of {', '.join((*EXACT_KINDS, *approximate.KINDS))}")
        if decoder is not None and not isinstance(decoder, LinearDecoder | TableDecoder):
            hint = " Did you mean its decoder_?" if hasattr(decoder, "decoder_") else ""
            raise InvalidInput(f"decoder must be a hasher's decoder_, got {type(decoder).__name__}.{hint}")
        if decoder is not None and decoder.n_bits != self.n_bits:
            raise InvalidInput(f"the decoder is for codes of {decoder.n_bits} bits, and n_bits is {n_bits}.")
        resolve_n_jobs(n_jobs)  # says now what is wrong with it
        self.kind, self.n_jobs = kind, n_jobs
        self.decoder: Decoder | None = decoder
        self.options = approximate.check_options(kind, options)
        self._guard = Guard()
        self._store = CodeStore(self.n_bits, decoder)
        self._exact = ExactSearch(kind if kind in EXACT_KINDS else "linear", self.n_bits)
        self._approximate: approximate.ApproximateIndex | None = None
        if kind in approximate.KINDS:
            self._approximate = approximate.ApproximateIndex(kind, self.n_bits, self.options)

    def __copy__(self) -> Self:
        return copy.deepcopy(self)  # two indexes that shared codes would change them behind each other's back

    def __reduce__(self) -> tuple[Any, ...]:
        with self._guard.reading():  # so that a copy is of the index before or after a change
            store = copy.deepcopy(self._store)
        return _restored, (
            type(self),
            self.n_bits,
            self.kind,
            self.decoder,
            self.options,
            self.n_jobs,
            store,
        )

    def __len__(self) -> int:
        return len(self._store)

    def __contains__(self, id_: object) -> bool:
        if not isinstance(id_, int | np.integer) or not 0 <= int(id_) <= MAX_ID:
            return False
        with self._guard.reading():
            return bool(self._store.places(np.array([id_], dtype=np.int64))[0] >= 0)

    def __repr__(self) -> str:
        return f"HammingIndex(n_bits={self.n_bits}, kind={self.kind!r}) of {len(self):,} codes"

    @property
    def codes(self) -> Packed:
        """The packed codes in the order of insertion, (n, ceil(n_bits/8)) uint8, a copy."""
        with self._guard.reading():
            return self._store.codes.take(self._store.present())

    @property
    def ids(self) -> Ids:
        """The ids in the order of insertion, (n,) int64, a copy."""
        with self._guard.reading():
            return self._store.ids.at(self._store.present())

    def add(self, codes: npt.ArrayLike, ids: npt.ArrayLike | None = None, *, upsert: bool = False) -> None:
        """Add packed codes, (n, ceil(n_bits/8)) uint8, under `ids`, (n,) integers, or numbered on.

        An id that is there already is an error, and nothing is added; with `upsert` its code is replaced
        where it stands, as if the codes came one by one.
        """
        packed = check_packed(codes, self.n_bits)
        given = None if ids is None else check_ids(ids, len(packed))
        with self._guard.writing():
            self._store.add(packed, given, upsert)

    def remove(self, ids: npt.ArrayLike) -> None:
        """Remove the codes with these ids. An id that is not there is an error, and nothing is removed."""
        unwanted = np.unique(check_ids(ids))
        with self._guard.writing():
            self._store.remove(unwanted)

    def search(
        self, query_codes: npt.ArrayLike, k: int = 10, *, among: Among = None
    ) -> tuple[Distances, Ids]:
        """The k nearest codes to each query, ordered by distance, then position of insertion.

        query_codes : (q, ceil(n_bits/8)) uint8 → distances (q, k) int32, ids (q, k) int64. Where there are
        fewer than k codes, rows end in ids of -1 at distance 2**31 - 1, as in FAISS. among : search only
        these, a list of ids (of which some may be missing), or one truth value a code in the order of `ids`.
        """
        return self.positions(query_codes, k, among, as_ids=True)

    def positions(
        self, query_codes: npt.ArrayLike, k: int, among: Among = None, *, as_ids: bool = False
    ) -> tuple[Distances, Ids]:
        """As `search`, with positions in the place of ids, and -1 for none."""
        k = check_integer("k", k, 1, MOST_ANSWERS, "Try k=10.")
        queries = check_packed(query_codes, self.n_bits, "query_codes")
        with self._guard.reading(), Workers(self.n_jobs, blas=False) as workers:
            distances, found = self._nearest(queries, k, among, workers)
            return distances, self._store.ids.at(found) if as_ids else found

    def search_radius(
        self, query_codes: npt.ArrayLike, r: int, *, among: Among = None
    ) -> tuple[Ids, Distances, Ids]:
        """All codes within distance r, inclusive, ordered by distance, then position of insertion.

        Returns lims (q+1,) int64, distances int32, ids int64, FAISS's layout: the answers to query i are
        those from lims[i] up to lims[i+1]. Exact for every kind of index.
        """
        r = check_integer("r", r, 0, None, "Try r=2.")
        queries = check_packed(query_codes, self.n_bits, "query_codes")
        with self._guard.reading(), Workers(self.n_jobs, blas=False) as workers:
            codes, allowed, chosen = self._store.selection(among)
            r = min(r, self.n_bits)
            if chosen is None:
                lims, distances, positions = self._exact.within(codes, allowed, queries, r, workers)
            else:
                lims, distances, few = linear.within(codes.planes, allowed, queries, self.n_bits, r, workers)
                positions = chosen[few]
            return lims, distances, self._store.ids.at(positions)

    def search_asymmetric(
        self,
        X: npt.ArrayLike,
        k: int = 10,
        *,
        query_codes: npt.ArrayLike | None = None,
        shortlist: int | None = None,
        among: Among = None,
    ) -> tuple[SquaredDistances, Ids]:
        """The k codes z whose reconstructions f(z) are nearest to each query, which is not hashed.

        X : (q, D), like the rows of fit → ‖x − f(z)‖² (q, k) float32, of rows divided by their norms where
        the hasher does so, and ids (q, k) int64, ordered by distance, then position of insertion. With
        query_codes=hasher.encode(X) in two stages: the `shortlist`, 10 k unless given, nearest in Hamming
        distance are ranked anew. Missing answers: id -1 at distance inf.
        """
        return self.asymmetric_positions(X, k, query_codes, shortlist, among, as_ids=True)

    def asymmetric_positions(
        self,
        X: npt.ArrayLike,
        k: int,
        query_codes: npt.ArrayLike | None = None,
        shortlist: int | None = None,
        among: Among = None,
        *,
        as_ids: bool = False,
    ) -> tuple[SquaredDistances, Ids]:
        """As `search_asymmetric`, with positions in the place of ids, and -1 for none."""
        k = check_integer("k", k, 1, MOST_ANSWERS, "Try k=10.")
        rows, tables, offsets = self._query_tables(X)
        if shortlist is not None:
            shortlist = check_integer(
                "shortlist", shortlist, k, MOST_ANSWERS, f"It must hold the k={k} answers."
            )
            if query_codes is None:
                raise InvalidInput(
                    "a shortlist is made by Hamming distance: give query_codes=hasher.encode(X)."
                )
        with self._guard.reading(), Workers(self.n_jobs, blas=False) as workers:
            if query_codes is None:
                _, allowed, _ = self._store.selection(among, copy_few=False)
                distances, found = asymmetric.nearest(
                    self._store.codes.planes, self._norms(), allowed, tables, offsets, k, workers
                )
            else:
                queries = check_packed(query_codes, self.n_bits, "query_codes")
                if len(queries) != len(rows):
                    raise InvalidInput(f"X has {len(rows)} rows, query_codes {len(queries)}.")
                listed = max(k, min(shortlist or SHORTLIST * k, len(self)))
                _, near = self._nearest(queries, listed, among, workers)
                distances, found = asymmetric.rerank(
                    self._store.codes.planes, self._norms(), tables, offsets, near, k, workers
                )
            return distances, self._store.ids.at(found) if as_ids else found

    def find_duplicates(self, r: int = 0) -> list[Ids]:
        """Groups of two and more items, joined by chains of codes within distance r of each other.

        → the ids of each group, items and groups in the order of insertion.
        """
        r = check_integer("r", r, 0, None, "r=0 finds equal codes.")
        with self._guard.reading(), Workers(self.n_jobs, blas=False) as workers:

            def searcher(different: Packed) -> duplicates.Within:
                blocks, search = CodeBlocks.of(different, self.n_bits), ExactSearch("auto", self.n_bits)
                allowed = all_lanes(len(different))
                return lambda queries: search.within(blocks, allowed, queries, min(r, self.n_bits), workers)

            present = self._store.present()
            found = duplicates.groups(self._store.codes.take(present), r, searcher)
            return [self._store.ids.at(present[rows]) for rows in found]

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = True) -> None:
        """Write codes, ids and decoder to a file, atomically; `HammingIndex.load` reads it."""
        from auxbit.index.index_file import save

        save(self, path, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, n_jobs: int | None = None) -> Self:
        """Read an index that was saved."""
        from auxbit.index.index_file import load

        return load(cls, path, n_jobs)

    def _nearest(self, queries: Packed, k: int, among: Among, workers: Workers) -> tuple[Distances, Ids]:
        """Distances and positions of the k nearest, whichever way is meant to find them."""
        codes, allowed, chosen = self._store.selection(among)
        if chosen is not None:
            distances, found = linear.nearest(codes.planes, allowed, queries, self.n_bits, k, workers)
            return distances, np.where(found >= 0, np.append(chosen, -1)[found], -1)
        if among is not None or self._approximate is None or not len(self):
            return self._exact.nearest(codes, allowed, queries, k, workers)
        distances = np.full((len(queries), k), linear.PADDING_DISTANCE, dtype=np.int32)
        positions = np.full((len(queries), k), linear.PADDING_POSITION, dtype=np.int64)
        near, found, finished = self._approximate.nearest(codes, self._store.alive, queries, k, self.n_jobs)
        width = min(k, len(self))
        distances[:, :width], positions[:, :width] = near[:, :width], found[:, :width]
        if not finished.all():
            rest = ~finished
            distances[rest], positions[rest] = self._exact.nearest(codes, allowed, queries[rest], k, workers)
        return distances, positions

    def _norms(self) -> asymmetric.CodeNorms:
        if self._store.norms is None:
            raise InvalidInput(
                "asymmetric search needs a decoder: HammingIndex(n_bits, decoder=hasher.decoder_)."
            )
        return self._store.norms

    def _query_tables(self, X: npt.ArrayLike) -> tuple[Any, npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        decoder = self._norms().decoder
        rows, n_dims = np.asarray(X), len(decoder.b)
        if rows.ndim != 2 or rows.shape[1] != n_dims or rows.dtype.kind not in "fiub":
            raise InvalidInput(
                f"X must be rows of {n_dims} numbers, as the decoder makes them, shape (q, {n_dims}); "
                f"got shape {rows.shape} of {rows.dtype}."
            )
        with Workers(1, blas=False) as workers:
            check_finite(rows, workers)
        with np.errstate(over="ignore", invalid="ignore"):
            tables, offsets = decoder.query_tables(rows), decoder.query_offsets(rows)
        if not (np.isfinite(tables).all() and np.isfinite(offsets).all()):
            raise InvalidInput(f"distances to X are too large for float32. {asymmetric.RESCALE}")
        return rows, tables, offsets


def _restored(
    index_class: type[HammingIndex],
    n_bits: int,
    kind: str,
    decoder: Any,
    options: Any,
    n_jobs: Any,
    store: Any,
) -> HammingIndex:
    """A copy, which makes anew what is derived from the codes, and has a guard of its own."""
    index = index_class(n_bits, kind=kind, decoder=decoder, options=options or None, n_jobs=n_jobs)
    index._store = store
    return index
