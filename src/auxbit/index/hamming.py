"""HammingIndex: codes with ids in memory, and every way to search them.

Positions count codes in the order of insertion. What searches speaks of positions only; ids are looked up
at the end. A removed code keeps its position, and is not answered, until half of the codes are removed.
"""

from __future__ import annotations

import copy
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from auxbit.core.checks import check_finite, check_integer
from auxbit.core.codes import bytes_per_code, check_n_bits, check_packed
from auxbit.core.decoders import Decoder, LinearDecoder, TableDecoder, decoder_from, decoder_parts
from auxbit.core.files import Format, Tensors
from auxbit.core.parallel import Workers, kernel, resolve_n_jobs
from auxbit.core.types import Distances, Ids, Packed, Positions
from auxbit.errors import AuxbitError, IndexFileError, InvalidInput, InvalidParameter
from auxbit.index import asymmetric, scan
from auxbit.index.asymmetric import CodeNorms
from auxbit.index.codes import (
    MAX_ID,
    CodeBlocks,
    IdTable,
    LaneMasks,
    LaneSet,
    all_lanes,
    allowed_positions,
    check_ids,
    lanes_of,
    repeats,
)
from auxbit.index.multi_index import ExactSearch

# ---- Searches side by side, changes alone


class Guard:
    """Many may read at a time, one may write, and then nobody reads. Writers who wait go first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0
        self._writing = False
        self._writers_waiting = 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Wait until nobody writes or waits to; keep writers out for the length of the block."""
        with self._changed:
            self._changed.wait_for(lambda: not self._writing and not self._writers_waiting)
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Wait until nobody reads or writes; keep all others out for the length of the block."""
        with self._changed:
            self._writers_waiting += 1
            try:
                self._changed.wait_for(lambda: not self._writing and not self._readers)
                self._writing = True
            finally:
                self._writers_waiting -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._writing = False
                self._changed.notify_all()


# ---- Groups of codes that are near each other: pairs within a radius, joined into groups

Within = Callable[[Packed], tuple[Positions, npt.NDArray[np.int32], Positions]]

QUERIES, FIRST_QUERIES = 1024, 16  # codes whose neighbours are asked for at once: at most, and to begin with
ANSWERS = 2**24  # of one asking: some 300 MB


def distinct_codes(codes: Packed) -> tuple[Packed, Positions]:
    """The different codes, (m, width), and for each row which of them it is, (n,)."""
    if codes.shape[1] <= 8:  # as one number: sorting these is many times faster than sorting bytes
        padded = np.zeros((len(codes), 8), dtype=np.uint8)
        padded[:, : codes.shape[1]] = codes
        _, first, which = np.unique(padded.view(np.uint64).ravel(), return_index=True, return_inverse=True)
    else:
        rows = np.ascontiguousarray(codes).view(np.dtype((np.void, codes.shape[1]))).ravel()
        _, first, which = np.unique(rows, return_index=True, return_inverse=True)
    return codes[first], which.astype(np.int64)


def groups(codes: Packed, radius: int, index_of: Callable[[Packed], Within]) -> list[Positions]:
    """Rows joined by chains of codes within `radius` of each other, in groups of two and more.

    Equal codes are joined first, so that a million copies are one code; `index_of` makes a radius search
    over the different codes. → a list of rising row numbers, by their first.
    """
    if not len(codes):
        return []
    if radius >= 8 * codes.shape[1]:
        return [np.arange(len(codes))] if len(codes) > 1 else []
    different, which = distinct_codes(codes)
    leaders = np.arange(len(different), dtype=np.int64)
    if radius > 0:
        within = index_of(different)
        start, step = 0, FIRST_QUERIES
        while start < len(different):
            lims, _, found = within(different[start : start + step])
            _join(leaders, start, lims, found)
            start += len(lims) - 1
            a_query = max(1, len(found) // (len(lims) - 1))
            step = max(1, min(QUERIES, 2 * step, ANSWERS // a_query))
        _settle(leaders)
    group = leaders[which]
    order = np.argsort(group, kind="stable")
    bounds = np.flatnonzero(np.diff(group[order], prepend=-1, append=-1))
    found_groups = [order[a:b] for a, b in itertools.pairwise(bounds) if b - a > 1]
    return sorted(found_groups, key=lambda rows: int(rows[0]))


@kernel
def _leader(leaders: Any, i: int) -> int:
    while leaders[i] != i:
        leaders[i] = leaders[leaders[i]]
        i = leaders[i]
    return i


@kernel
def _join(leaders: Any, start: int, lims: Any, found: Any) -> None:
    """Join code start + q with the codes found for query q; the smallest of a group leads it."""
    for q in range(len(lims) - 1):
        mine = _leader(leaders, start + q)
        for at in range(lims[q], lims[q + 1]):
            other = _leader(leaders, found[at])
            if other < mine:
                leaders[mine] = other
                mine = other
            else:
                leaders[other] = mine


@kernel
def _settle(leaders: Any) -> None:
    for i in range(len(leaders)):
        leaders[i] = _leader(leaders, i)


# ---- Approximate search by FAISS: a graph (HNSW) or lists (IVF) over the same codes, for those who
# want them.
#
# Distances are true; some neighbours may be missed. Only k-nearest searches over the whole index are
# approximate: radius searches and filtered ones scan, and are exact.

# what each kind can be told, and what it is unless told
KINDS: dict[str, dict[str, int | None]] = {
    "hnsw": {"links": 32, "ef_construction": 64, "ef_search": 96},
    "ivf": {"lists": None, "probes": 16},
}
CODES_A_LIST = 64  # on average, if the number of lists is left to us
TRAINING_CODES_A_LIST = 64


def check_options(kind: str, options: Any) -> dict[str, int | None]:
    """The options of an approximate kind, with the defaults of those not given."""
    defaults = KINDS.get(kind, {})
    if options is None:
        return dict(defaults)
    if not isinstance(options, dict) or not set(options) <= set(defaults):
        allowed = f"a dict with keys among {', '.join(defaults)}" if defaults else f"None for kind={kind!r}"
        raise InvalidParameter("options", options, allowed)
    for key, value in options.items():
        if value is not None or defaults[key] is not None:
            check_integer(f"options[{key!r}]", value, 2 if key == "links" else 1)
    return defaults | options


class ApproximateIndex:
    """FAISS's index of the codes of a CodeBlocks; `nearest` brings it up to date by itself."""

    def __init__(self, kind: str, n_bits: int, options: dict[str, int | None]) -> None:
        self.kind, self.n_bits, self.options = kind, n_bits, options
        self._index: Any = None
        self._covered = 0  # positions that it knows
        self._trained_on = 0
        self._made_of: tuple[CodeBlocks, int] | None = None  # and its version
        self._building = threading.Lock()

    def nearest(
        self, codes: CodeBlocks, alive: LaneSet, queries: Packed, k: int, n_jobs: int | None
    ) -> tuple[Distances, Positions, npt.NDArray[np.bool_]]:
        """The k nearest that FAISS finds, by (distance, position), and which queries it found k for."""
        with faiss_threads(n_jobs):
            self._update(codes)
            dead = codes.size - alive.count
            wanted = min(k if not dead else 2 * k + 16, codes.size)
            distances, positions = self._index.search(np.ascontiguousarray(queries), wanted)
        positions = positions.astype(np.int64)
        usable = alive.holds(positions)
        # by (distance, position), what cannot be used last; FAISS orders equal distances as it likes
        far = np.where(usable, distances.astype(np.int64), np.iinfo(np.int64).max)
        order = np.lexsort((positions, far), axis=1)[:, :k]
        finished = usable.sum(axis=1) >= min(k, alive.count)
        return (
            np.take_along_axis(distances, order, axis=1).astype(np.int32),
            np.take_along_axis(positions, order, axis=1),
            finished,
        )

    def _update(self, codes: CodeBlocks) -> None:
        """Add what came since the last search."""
        with self._building:
            known = self._made_of == (codes, codes.version)
            if not known or (self.kind == "ivf" and codes.size > 4 * self._trained_on):
                self._index, self._covered = self._empty(codes), 0
                self._made_of = (codes, codes.version)
            if self._covered < codes.size:
                new = np.arange(self._covered, codes.size, dtype=np.int64)
                self._index.add(codes.take(new))
                self._covered = codes.size

    def _empty(self, codes: CodeBlocks) -> Any:
        import faiss

        bits = 8 * codes.width  # bits past n_bits are zeros, which no distance sees
        if self.kind == "hnsw":
            graph: Any = faiss.IndexBinaryHNSW(bits, self.options["links"] or 0)
            graph.hnsw.efConstruction = self.options["ef_construction"]
            graph.hnsw.efSearch = self.options["ef_search"]
            return graph
        most = min(codes.size, int(16 * np.sqrt(codes.size)))
        lists = min(self.options["lists"] or max(1, codes.size // CODES_A_LIST), most)
        coarse: Any = faiss.IndexBinaryFlat(bits)
        index: Any = faiss.IndexBinaryIVF(coarse, bits, lists)
        index.own_fields = True
        coarse.this.disown()  # it is deleted with the index
        index.nprobe = min(self.options["probes"] or 1, lists)
        index.cp.min_points_per_centroid = 1  # it would print a warning
        n_training = min(codes.size, TRAINING_CODES_A_LIST * lists)
        index.train(codes.take(np.linspace(0, codes.size - 1, n_training).astype(np.int64)))
        self._trained_on = codes.size
        return index


@contextmanager
def faiss_threads(n_jobs: int | None) -> Iterator[None]:
    """Let FAISS use that many threads for the length of the block."""
    import faiss

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(resolve_n_jobs(n_jobs))
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


# ---- What an index holds: codes, ids, norms for a decoder, and which codes have not been removed


class At(NamedTuple):
    """Positions to search among, rising, of codes that were there a moment ago, be they removed since."""

    positions: Ids


Among = npt.ArrayLike | At | None

FEW_SHARE = 8  # of the codes: where a filter leaves fewer than one in so many, these are copied and scanned
MANY_REMOVED = 4096
ATTACHED = 2**18  # codes whose norms are computed at a time


class CodeStore:
    """Codes by position, in the order of insertion, and what belongs to them."""

    def __init__(self, n_bits: int, decoder: Decoder | None) -> None:
        self.n_bits, self.decoder = n_bits, decoder
        self.codes, self.ids, self.alive = CodeBlocks(self.n_bits), IdTable(), LaneSet()
        self.norms = None if self.decoder is None else CodeNorms(self.decoder)

    @classmethod
    def of(cls, codes: CodeBlocks, ids: IdTable, alive: LaneSet) -> CodeStore:
        """A store of parts that are there already; `attach` adds norms."""
        store = cls(codes.n_bits, None)
        store.codes, store.ids, store.alive = codes, ids, alive
        return store

    def __len__(self) -> int:
        return self.alive.count

    def attach(self, decoder: Decoder) -> None:
        """Compute the norms that asymmetric search with this decoder needs."""
        norms = CodeNorms(decoder)
        norms.reserve(self.codes.size)
        for start in range(0, self.codes.size, ATTACHED):
            norms.append(self.codes.take(np.arange(start, min(start + ATTACHED, self.codes.size))))
        self.decoder, self.norms = decoder, norms

    def add(self, packed: Packed, ids: Ids | None, upsert: bool) -> None:
        """Append codes under ids, or numbered on; `upsert` replaces the codes of ids that are there."""
        if ids is None:
            ids = self.ids.number_on(len(packed))
        elif len(ids):
            packed, ids = self._settle_known(packed, ids, upsert)
        if len(ids):
            self.append(packed, ids)

    def remove(self, ids: Ids) -> None:
        """Remove codes by their ids, all or none."""
        places = self.places(ids)
        if (places < 0).any():
            missing = int(ids[(places < 0).argmax()])
            raise InvalidInput(f"id {missing} is not in the index; nothing was removed.")
        self.alive.discard(places)
        if self.codes.size - len(self) > max(MANY_REMOVED, len(self)):
            self._compact()

    def append(self, packed: Packed, ids: Ids) -> None:
        """Add codes at the end, under ids that are not there."""
        first, next_id = self.codes.size, self.ids.next_id
        try:
            if self.norms is not None:
                self.norms.append(packed)
            self.codes.append(packed)
            self.ids.append(ids)
            self.alive.append(len(ids))
        except BaseException:  # no memory left, or an interrupt: all of them end where they did
            if self.norms is not None:
                self.norms.size = first
            self.codes.size = first
            self.ids.truncate(first, next_id)
            self.alive.truncate(first)
            raise

    def present(self) -> Ids:
        """The positions of codes that have not been removed."""
        if len(self) == self.codes.size:
            return np.arange(self.codes.size, dtype=np.int64)
        return allowed_positions(self.alive.masks)

    def places(self, ids: Ids) -> Ids:
        """The positions of ids, -1 where one is missing or removed."""
        places = self.ids.find(ids)
        return np.where(self.alive.holds(places), places, -1)

    def selection(self, among: Among, *, copy_few: bool = True) -> tuple[CodeBlocks, LaneMasks, Ids | None]:
        """The codes to search, which of them may be answered, and, of a copy of few, their positions."""
        if among is None:
            return self.codes, self.alive.masks, None
        if isinstance(among, At):
            return self._chosen(among.positions, copy_few)
        wanted = np.asarray(sorted(among) if isinstance(among, set | frozenset) else among)
        if wanted.dtype == np.bool_:
            if wanted.shape != (len(self),):
                raise InvalidInput(
                    f"among must have one truth value a code, shape ({len(self)},), got {wanted.shape}; "
                    "or a list of ids."
                )
            chosen = self.present()[wanted]
        else:
            chosen = np.unique(self.places(check_ids(wanted, name="among")))
            chosen = chosen[chosen >= 0]
        return self._chosen(chosen, copy_few)

    def _chosen(self, chosen: Ids, copy_few: bool) -> tuple[CodeBlocks, LaneMasks, Ids | None]:
        """The selection of positions, in order."""
        if copy_few and len(chosen) * FEW_SHARE <= self.codes.size:
            return CodeBlocks.of(self.codes.take(chosen), self.n_bits), all_lanes(len(chosen)), chosen
        allowed = np.zeros(self.codes.size, dtype=np.bool_)
        allowed[chosen] = True
        return self.codes, lanes_of(allowed), None

    def _settle_known(self, packed: Packed, ids: Ids, upsert: bool) -> tuple[Packed, Ids]:
        """Refuse ids that are there, or replace their codes; returns what remains to be appended."""
        places, again = self.places(ids), repeats(ids)
        known = places >= 0
        if not upsert and (known | again).any():
            first = int((known | again).argmax())
            place = "is already in the index" if known[first] else "comes twice in ids"
            raise InvalidInput(f"id {ids[first]} {place}; nothing was added. upsert=True replaces its code.")
        if not (known | again).any():
            return packed, ids
        last = {each: row for row, each in enumerate(ids.tolist())}  # in the order of first appearance
        rows = np.array(list(last.values()), dtype=np.int64)
        old, new = rows[known[rows]], rows[~known[rows]]
        if len(old):
            if self.norms is not None:  # first, as it is what may fail
                self.norms.replace(places[old], packed[old])
            self.codes.replace(places[old], packed[old])
        return packed[new], ids[new]

    def _compact(self) -> None:
        """Copy what has not been removed together, in its order."""
        present, fresh = self.present(), CodeStore(self.n_bits, self.decoder)
        fresh.append(self.codes.take(present), self.ids.at(present))
        fresh.ids.next_id = self.ids.next_id
        self.codes, self.ids, self.alive, self.norms = fresh.codes, fresh.ids, fresh.alive, fresh.norms


# ---- HammingIndex

SquaredDistances = npt.NDArray[np.float32]

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
        if not isinstance(kind, str) or kind not in (*EXACT_KINDS, *KINDS):
            raise InvalidParameter("kind", kind, f"one of {', '.join((*EXACT_KINDS, *KINDS))}")
        if decoder is not None and not isinstance(decoder, LinearDecoder | TableDecoder):
            hint = " Did you mean its decoder_?" if hasattr(decoder, "decoder_") else ""
            raise InvalidInput(f"decoder must be a hasher's decoder_, got {type(decoder).__name__}.{hint}")
        if decoder is not None and decoder.n_bits != self.n_bits:
            raise InvalidInput(f"the decoder is for codes of {decoder.n_bits} bits, and n_bits is {n_bits}.")
        resolve_n_jobs(n_jobs)  # says now what is wrong with it
        self.kind, self.n_jobs = kind, n_jobs
        self.decoder: Decoder | None = decoder
        self.options = check_options(kind, options)
        self._guard = Guard()
        self._store = CodeStore(self.n_bits, decoder)
        self._exact = ExactSearch(kind if kind in EXACT_KINDS else "linear", self.n_bits)
        self._approximate: ApproximateIndex | None = None
        if kind in KINDS:
            self._approximate = ApproximateIndex(kind, self.n_bits, self.options)

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
                lims, distances, few = scan.within(codes.planes, allowed, queries, self.n_bits, r, workers)
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

            def searcher(different: Packed) -> Within:
                blocks, search = CodeBlocks.of(different, self.n_bits), ExactSearch("auto", self.n_bits)
                allowed = all_lanes(len(different))
                return lambda queries: search.within(blocks, allowed, queries, min(r, self.n_bits), workers)

            present = self._store.present()
            found = groups(self._store.codes.take(present), r, searcher)
            return [self._store.ids.at(present[rows]) for rows in found]

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = True) -> None:
        """Write codes, ids and decoder to a file, atomically; `HammingIndex.load` reads it."""
        save(self, path, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, n_jobs: int | None = None) -> Self:
        """Read an index that was saved."""
        return load(cls, path, n_jobs)

    def _nearest(self, queries: Packed, k: int, among: Among, workers: Workers) -> tuple[Distances, Ids]:
        """Distances and positions of the k nearest, whichever way is meant to find them."""
        codes, allowed, chosen = self._store.selection(among)
        if chosen is not None:
            distances, found = scan.nearest(codes.planes, allowed, queries, self.n_bits, k, workers)
            return distances, np.where(found >= 0, np.append(chosen, -1)[found], -1)
        if among is not None or self._approximate is None or not len(self):
            return self._exact.nearest(codes, allowed, queries, k, workers)
        distances = np.full((len(queries), k), scan.PADDING_DISTANCE, dtype=np.int32)
        positions = np.full((len(queries), k), scan.PADDING_POSITION, dtype=np.int64)
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


# ---- Index files: codes, ids and decoder of a HammingIndex, as safetensors

Index = TypeVar("Index", bound=HammingIndex)

INDEX = Format(
    "auxbit index", "index", 1, "an auxbit index", "Indexes are made by HammingIndex.save.", IndexFileError
)


def save(index: HammingIndex, path: str | os.PathLike[str], *, overwrite: bool = True) -> None:
    """Write an index, atomically. Ids are left out where they are 0, 1, 2, …"""
    with index._guard.reading():
        store = index._store
        present = store.present()
        ids = store.ids.at(present)
        tensors: Tensors = {"codes": store.codes.take(present)}
        header: dict[str, Any] = {
            "n_bits": index.n_bits,
            "kind": index.kind,
            "options": index.options,
            "next_id": store.ids.next_id,
            "decoder": None,
        }
        if not np.array_equal(ids, np.arange(len(ids))):
            tensors["ids"] = ids
        if index.decoder is not None:
            header["decoder"], parts = decoder_parts(index.decoder)
            tensors |= {f"decoder.{key}": value for key, value in parts.items()}
    INDEX.write(path, header, tensors, overwrite=overwrite)


def load(index_class: type[Index], path: str | os.PathLike[str], n_jobs: int | None) -> Index:
    """Read an index back."""
    resolve_n_jobs(n_jobs)
    header, tensors = INDEX.read(path)
    try:
        n_bits, codes = header["n_bits"], tensors["codes"]
        parts = {
            key.removeprefix("decoder."): value
            for key, value in tensors.items()
            if key.startswith("decoder.")
        }
        decoder = decoder_from(header["decoder"], parts) if header["decoder"] is not None else None
        index = index_class(
            n_bits, kind=header["kind"], decoder=decoder, options=header["options"] or None, n_jobs=n_jobs
        )
        if len(codes) or codes.shape == (0, bytes_per_code(n_bits)):
            index.add(check_packed(codes, n_bits), tensors.get("ids"))
        if not 0 <= header["next_id"] <= MAX_ID + 1:
            raise ValueError(f"next_id {header['next_id']}")
        index._store.ids.next_id = max(index._store.ids.next_id, int(header["next_id"]))
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, AuxbitError) as error:
        raise IndexFileError(f"{path} is not a complete auxbit index: {error!r}.") from error
    return index
