"""HammingIndex: codes with ids in memory, and every way to search them.

Positions count codes in the order of insertion. What searches speaks of positions only; ids are looked up
at the end. A removed code keeps its position, and is not returned, until half of the codes are removed.
"""

from __future__ import annotations

import copy
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from auxbit.core.checks import (
    LEAST_SQUARED,
    Array,
    Bytes,
    Distances,
    Ids,
    Mask,
    Packed,
    PathLike,
    Positions,
    as_array,
    check_finite,
    check_integer,
    check_positive,
    check_squares,
)
from auxbit.core.decoders import Decoder, ListDecoder, decoder_from, decoder_parts
from auxbit.core.files import Format, Tensors, check_layout
from auxbit.core.maps import bytes_per_code, check_n_bits, check_packed, refuse_hamming, to_words
from auxbit.core.parallel import Guard, Workers, block_slices, kernel, resolve_n_jobs
from auxbit.core.progress import html_table
from auxbit.data.vectors import as_rows
from auxbit.errors import IndexFileError, InvalidInput, InvalidParameter
from auxbit.index import asymmetric, scan
from auxbit.index.codes import (
    LANES,
    MAX_ID,
    Among,
    CodeBlocks,
    CodeNorms,
    CodeStore,
    LaneMasks,
    all_lanes,
    as_bools,
    check_ids,
    nearest_first,
)
from auxbit.index.lists import RECALL, ListSearch
from auxbit.quantiser.lists import check_lists, number_of_lists

if TYPE_CHECKING:
    from auxbit.hashers.base import Hasher
    from auxbit.index.multi_index import MultiIndex

# ---- Exact search: the scan, or tables of substrings if they are faster. The answers are the same
#
# Tables take some ten bytes for each byte of a code, and the time of thousands of scans. They are made
# after enough queries, and only if they take a small part of the memory. They know the codes up to some
# position; those that came since are scanned, until they are many.

Ranges = tuple[Positions, Distances, Positions]

TAIL_SHARE = 8  # tables are made again when an eighth of the codes came after them
MEMORY_SHARE = 8  # the part of the machine's memory that tables may take with kind="auto": an eighth
TRIALS = 64  # queries after which tables are judged by how many of them they finish:
LEAST_FINISHED = 0.6  # with a smaller share the rest, looked for twice, takes more than they save
CODES_PER_QUERY = 500  # to make tables costs as much as they save in a query for that many codes
FEWEST_CODES = 60_000  # with fewer, a scan takes less time than a search of tables at its best


class ExactSearch:
    """Searches a CodeBlocks. kind : "linear", "multi" or "auto", the faster of them, query by query."""

    def __init__(self, kind: str, n_bits: int) -> None:
        self.kind, self.n_bits = kind, n_bits
        self._tables: MultiIndex | None = None
        self._made_of: tuple[CodeBlocks, int] | None = None  # and its version
        self._asked = 0  # queries that tables would have been worthwhile for, since they were made
        self._tried: dict[int, tuple[int, int]] = {}  # by bits of k: queries, and how many tables finished
        self._building = threading.Lock()

    def nearest(
        self, codes: CodeBlocks, allowed: LaneMasks, queries: Packed, k: int, workers: Workers
    ) -> tuple[Distances, Positions]:
        """The k nearest allowed codes, (q, k), by (distance, position), as scan.nearest has them."""
        tables = self._up_to_date(codes, len(queries), workers, k=k)
        if tables is None:
            return scan.nearest(codes.planes, allowed, queries, self.n_bits, k, workers)
        distances, positions, finished = tables.nearest(queries, k, allowed, workers)
        self._note(k, finished)
        if not finished.all():
            rest = ~finished
            found = scan.nearest(codes.planes, allowed, queries[rest], self.n_bits, k, workers)
            distances[rest], positions[rest] = found
        if finished.any() and len(tables) < codes.size:
            planes, masks, first = _tail(codes, allowed, len(tables))
            more = scan.nearest(planes, masks, queries[finished], self.n_bits, k, workers)
            more_positions = np.where(more[1] >= 0, more[1] + first, -1)
            known = distances[finished], positions[finished]
            distances[finished], positions[finished] = nearest_first([known, (more[0], more_positions)], k)
        return distances, positions

    def within(
        self, codes: CodeBlocks, allowed: LaneMasks, queries: Packed, radius: int, workers: Workers
    ) -> Ranges:
        """All allowed codes within the radius, as scan.within has them."""
        tables = self._up_to_date(codes, len(queries), workers, radius=radius)
        if tables is None:
            return scan.within(codes.planes, allowed, queries, self.n_bits, radius, workers)
        lims, distances, positions, finished = tables.within(queries, radius, allowed, workers)
        answers: list[tuple[Ranges, Positions]] = [((lims, distances, positions), np.arange(len(queries)))]
        if not finished.all():
            rest = np.flatnonzero(~finished)
            more = scan.within(codes.planes, allowed, queries[rest], self.n_bits, radius, workers)
            answers.append((more, rest))
        if finished.any() and len(tables) < codes.size:
            planes, masks, first = _tail(codes, allowed, len(tables))
            rows = np.flatnonzero(finished)
            lims, distances, found = scan.within(planes, masks, queries[rows], self.n_bits, radius, workers)
            answers.append(((lims, distances, found + first), rows))
        return answers[0][0] if len(answers) == 1 else merge_ranges(answers, len(queries))

    def _up_to_date(
        self, codes: CodeBlocks, n_queries: int, workers: Workers, *, k: int = 0, radius: int = -1
    ) -> MultiIndex | None:
        """The tables, made or made again if that pays, or None if a scan is the better choice.

        Another thread may make others meanwhile: what tables cover is read from them, not from this object.
        """
        if self.kind == "linear" or not codes.size or not n_queries:
            return None
        if self.kind == "auto" and codes.size < FEWEST_CODES:
            return None
        from auxbit.index.multi_index import MultiIndex, worthwhile  # kernels that few searches need

        if self.kind == "auto" and not worthwhile(codes.size, self.n_bits, k=k, radius=radius):
            return None
        tried, finished = self._tried.get(k.bit_length(), (0, 0))
        if self.kind == "auto" and k and tried >= TRIALS and finished < LEAST_FINISHED * tried:
            return None
        with self._building:
            known = self._made_of == (codes, codes.version)
            tail = codes.size - (len(self._tables) if known and self._tables is not None else 0)
            self._asked += n_queries
            if tail > codes.size // TAIL_SHARE and self._pays(codes):
                self._tables = MultiIndex.build(codes.packed(), self.n_bits, workers)
                self._made_of, self._asked, self._tried = (codes, codes.version), 0, {}
            elif tail > codes.size // 2:
                return None
            return self._tables

    def _note(self, k: int, finished: npt.NDArray[np.bool_]) -> None:
        """Keep how well tables do for such k: on codes that lie far apart they seldom finish."""
        with self._building:
            tried, done = self._tried.get(k.bit_length(), (0, 0))
            self._tried[k.bit_length()] = tried + len(finished), done + int(finished.sum())

    def _pays(self, codes: CodeBlocks) -> bool:
        """Whether to make tables now."""
        if self.kind == "multi":
            return True
        from auxbit.index.multi_index import MultiIndex

        enough = self._asked * CODES_PER_QUERY >= codes.size
        return enough and MultiIndex.bytes_for(codes.size, self.n_bits) * MEMORY_SHARE <= _memory()


def _tail(codes: CodeBlocks, allowed: LaneMasks, covered: int) -> tuple[Bytes, LaneMasks, int]:
    """The blocks with codes past the first `covered`, masks of these codes, the first block's position."""
    block, begun = divmod(covered, LANES)
    masks = allowed[block:].copy()
    if begun:
        masks[0] &= ~np.uint64((1 << begun) - 1)
    return codes.planes[block:], masks, block * LANES


def merge_ranges(answers: list[tuple[Ranges, Positions]], n_queries: int) -> Ranges:
    """One answer of several, each with the numbers of the queries that it is about."""
    queries = np.concatenate([np.repeat(rows, np.diff(lims)) for (lims, _, _), rows in answers])
    distances = np.concatenate([each[1] for each, _ in answers])
    positions = np.concatenate([each[2] for each, _ in answers])
    order = np.lexsort((positions, distances, queries))
    lims = np.zeros(n_queries + 1, dtype=np.int64)
    np.cumsum(np.bincount(queries, minlength=n_queries), out=lims[1:])
    return lims, distances[order], positions[order]


@lru_cache(maxsize=1)
def _memory() -> int:
    """The machine's memory in bytes; 8 GB if it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return 8 * 10**9


# ---- Near-duplicates: pairs within a radius, joined into groups

Within = Callable[[Packed], Ranges]

QUERIES, FIRST_QUERIES = 1024, 16  # codes whose neighbours are searched at once: at most, and at first
ANSWERS = 2**24  # of one such search: some 300 MB


def distinct_codes(codes: Packed) -> tuple[Packed, Positions]:
    """The different codes, (m, width), and for each row which of them it is, (n,)."""
    rows, width = np.ascontiguousarray(codes), codes.shape[1]
    # up to 8 bytes as one number: sorting these is many times faster than sorting bytes
    keys: Any = to_words(rows) if width <= 8 else rows.view(np.dtype((np.void, width)))
    _, first, which = np.unique(keys.ravel(), return_index=True, return_inverse=True)
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
            per_query = max(1, len(found) // (len(lims) - 1))
            step = max(1, min(QUERIES, 2 * step, ANSWERS // per_query))
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


# ---- HammingIndex

SquaredDistances = npt.NDArray[np.float32]

KINDS = ("auto", "linear", "multi")
FORMER_KINDS = ("hnsw", "ivf")  # of index files: FAISS's approximate indexes, over the same codes
MOST_ANSWERS = 2**31 - 1
SHORTLIST = 10  # times k, in a two-stage search
TABLE_BYTES = 2**28  # of the tables of queries that are searched by the decoder at once
REFINED, REFINED_QUERIES = 100, 16  # candidates for a finer code, at least, and queries at a time

LISTS_VERSION = 2  # which versions without lists cannot read
INDEX = Format(
    "auxbit index",
    "index",
    LISTS_VERSION,
    "an auxbit index",
    "Indexes are made by HammingIndex.save.",
    IndexFileError,
)


def check_probes(probes: object, recall: object, has_lists: bool) -> None:
    """Refuse what is no number of lists to search, and no part of the answers to find."""
    if recall is not None and (
        isinstance(recall, bool) or not isinstance(recall, Real) or not 0 < float(recall) <= 1
    ):
        raise InvalidParameter("recall", recall, "a share above 0 and at most 1", "Try 0.95.")
    if probes is None:
        return
    if recall is not None:
        raise InvalidInput("probes and recall both set how many lists are searched: give one of them.")
    if isinstance(probes, str) and probes == "all":
        return
    check_integer("probes", probes, 1, None, 'Or "all".')
    if not has_lists:
        raise InvalidInput(
            "probes is a number of lists, and there are none for this search, which reads all codes. Leave "
            "it out, or make lists: fit_decoder(X, lists=…), or for hash codes HammingIndex(n_bits, lists=…)."
        )


def check_decoder(decoder: object, n_bits: int) -> None:
    """Refuse what is no decoder, and one for codes of other bits."""
    if not isinstance(decoder, Decoder):
        hint = " Did you mean its decoder_?" if hasattr(decoder, "decoder_") else ""
        raise InvalidInput(f"decoder must be a hasher's decoder_, got {type(decoder).__name__}.{hint}")
    if decoder.n_bits != n_bits:
        raise InvalidInput(f"the decoder is for codes of {decoder.n_bits} bits, but n_bits is {n_bits}.")


def coding_for(decoder: Decoder | None, coding: str | None, mu: float | None) -> tuple[str, float]:
    """The codes of an index: as given, else those that the decoder is for; refuses what does not suit it."""
    meant = 0.0 if decoder is None or decoder.mu is None else decoder.mu
    if coding is None:
        coding = "hash" if decoder is None else decoder.coding
    if coding not in ("hash", "optimal"):
        raise InvalidParameter("coding", coding, "'hash' or 'optimal'")
    if coding == "hash" and decoder is not None and decoder.mu == 0:
        raise InvalidInput(
            "the decoder is fitted to optimal codes, so it cannot rank hash codes. Add codes of "
            'encode(X, coding="optimal"), or leave out the decoder.'
        )
    if mu is not None and mu != 0:
        mu = check_positive("mu", mu, remedy="Or mu=0, for codes that are chosen for the decoder alone.")
    return coding, 0.0 if coding == "hash" else meant if mu is None else float(mu)


class HammingIndex:
    """Nearest neighbours among binary codes of `n_bits` bits. Searches are exact.

    >>> import numpy as np
    >>> from auxbit import HammingIndex
    >>> codes = np.array([[0b0000], [0b0001], [0b0111]], dtype=np.uint8)
    >>> index = HammingIndex(n_bits=4)
    >>> index.add(codes, ids=[10, 11, 12])
    >>> distances, ids = index.search(codes[:1], k=2)
    >>> distances.tolist(), ids.tolist()
    ([[0, 1]], [[10, 11]])

    kind : "linear" (a scan), "multi" (multi-index hashing) or "auto" (the faster of them).
    decoder : a hasher's decoder_, for search_asymmetric.
    coding, mu : what codes it holds, as in `encode`; by default those that the decoder is fitted to, or hash
        codes without a decoder. Searches that make no sense for them are refused: optimal codes at mu=0 have
        no meaningful Hamming distances.
    model : the fitted hasher that makes the codes, instead of n_bits and decoder; the attribute `model` is
        then its fingerprint.

    Any number of threads may search at once; a change waits for running searches, and later ones wait for it.
    """

    def __init__(
        self, n_bits: int | None = None, *, model: Hasher | None = None, kind: str = "auto",
        decoder: Decoder | None = None, coding: str | None = None, mu: float | None = None,
        lists: str | int | None = None, n_jobs: int | None = None,
    ) -> None:  # fmt: skip
        self.model: str | None = None
        if model is not None:
            if n_bits is not None or decoder is not None or not hasattr(model, "decoder_"):
                raise InvalidInput("model must be a fitted hasher, and n_bits and decoder left out with it.")
            n_bits = model.code_bits(coding or model.decoder_.coding)
            decoder = None if coding == "hash" and model.decoder_.mu == 0 else model.decoder_
        self.n_bits = check_n_bits(n_bits)
        if not isinstance(kind, str) or kind not in KINDS:
            hint = "FAISS has it: see auxbit.export.to_faiss." if kind in FORMER_KINDS else ""
            raise InvalidParameter("kind", kind, f"one of {', '.join(KINDS)}", hint)
        if decoder is not None:
            check_decoder(decoder, self.n_bits)
        resolve_n_jobs(n_jobs)  # says now what is wrong with it
        self.kind, self.n_jobs = kind, n_jobs
        self.coding, self.mu = coding_for(decoder, coding, mu)
        if model is not None:
            self.model = model.fingerprint(self.coding)
        self._guard = Guard()
        self._store = CodeStore(self.n_bits, decoder)
        self._exact = ExactSearch(kind, self.n_bits)
        self._lists = self._list_search(decoder, lists)

    def _list_search(self, decoder: Decoder | None, lists: str | int | None) -> ListSearch | None:
        if lists is not None:
            check_lists(lists)
        if isinstance(decoder, ListDecoder):
            if lists not in (None, "auto", len(decoder.centroids)):
                has = f"{len(decoder.centroids)}, as the model has them"
                raise InvalidParameter("lists", lists, has, "fit_decoder(X, lists=…) makes others.")
            return ListSearch(self.n_bits, decoder, None)
        if lists is None:
            return None
        self._check_hamming()  # other codes can be divided by their model alone
        return ListSearch(self.n_bits, None, lists)

    @classmethod
    def over(cls, store: CodeStore, **how: Any) -> Self:
        """An index over existing codes, which are not copied. how : as in HammingIndex."""
        index = cls(store.n_bits, decoder=store.decoder, **how)
        index._store = store
        return index

    def __copy__(self) -> Self:
        return copy.deepcopy(self)  # two indexes that shared codes would change them behind each other's back

    def __reduce__(self) -> tuple[Any, ...]:
        with self._guard.reading():  # so that a copy is of the index before or after a change
            store = copy.deepcopy(self._store)
        # a copy makes again what is derived from the codes, and has a guard of its own
        how: dict[str, Any] = {"kind": self.kind, "coding": self.coding, "mu": self.mu, "n_jobs": self.n_jobs}
        how["lists"] = None if self._lists is None else self._lists.lists
        return partial(type(self).over, **how), (store,), {"model": self.model}

    def __len__(self) -> int:
        return len(self._store)

    def __contains__(self, id_: object) -> bool:
        if not isinstance(id_, int | np.integer) or not 0 <= int(id_) <= MAX_ID:
            return False
        with self._guard.reading():
            return bool(self._store.places(np.array([id_], dtype=np.int64))[0] >= 0)

    def __repr__(self) -> str:
        holds = f"{len(self):,} codes, {self.nbytes:,} bytes, {'no' if self.decoder is None else 'a'} decoder"
        holds += f", {self.n_lists:,} lists" if self.n_lists else ""
        return f"HammingIndex(n_bits={self.n_bits}, kind={self.kind!r}, coding={self.coding!r}): {holds}"

    def _repr_html_(self) -> str:
        decoder = "none" if self.decoder is None else type(self.decoder).__name__
        facts = [("bits", f"{self.n_bits:,}"), ("codes", f"{len(self):,}"), ("bytes", f"{self.nbytes:,}")]
        facts += [("kind", self.kind), ("coding", self.coding), ("decoder", decoder)]
        facts += [("lists", f"{self.n_lists:,}")] if self.n_lists else []
        return html_table("HammingIndex", [], facts)

    def _check_hamming(self) -> None:
        refuse_hamming(
            "the index", self.coding, self.mu,
            "Search it with search_asymmetric(X); for Hamming distances take codes of encode(X), or for both "
            'ways those of a decoder fitted with mu=0.03 (coding="optimal").',
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """The size of codes, ids and norms in bytes, mapped from files or in memory."""
        return self._store.nbytes + (0 if self._lists is None else self._lists.nbytes)

    @property
    def n_lists(self) -> int:
        """The number of lists; 0: searches read all codes. The first search makes lists of hash codes."""
        return 0 if self._lists is None else self._lists.n_lists

    @property
    def decoder(self) -> Decoder | None:
        """The decoder of asymmetric search, or None."""
        return self._store.decoder

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
        """Add packed codes, (n, ceil(n_bits/8)) uint8, under `ids`, (n,) integers.

        By default ids are the next integers. An id that is there already is an error, and nothing is added;
        with `upsert` its code is replaced at its position, as if the codes were added one by one.
        """
        packed = check_packed(codes, self.n_bits)
        given = None if ids is None else check_ids(ids, len(packed))
        if isinstance(self.decoder, ListDecoder):
            self.decoder.split(packed)  # refuses numbers of lists that are not there
        with self._guard.writing():
            self._store.add(packed, given, upsert)

    def remove(self, ids: npt.ArrayLike) -> None:
        """Remove the codes with these ids. An id that is not there is an error, and nothing is removed."""
        unwanted = np.unique(check_ids(ids))
        with self._guard.writing():
            self._store.remove(unwanted)

    def attach(self, decoder: Decoder) -> None:
        """Use this decoder for asymmetric search."""
        check_decoder(decoder, self.n_bits)
        coding_for(decoder, self.coding, self.mu)
        with self._guard.writing():
            self._store.attach(decoder)
            if isinstance(decoder, ListDecoder):
                self._lists = self._list_search(decoder, None)

    @contextmanager
    def reading(self) -> Iterator[CodeStore]:
        """The contents of the index, which do not change within the `with` block."""
        with self._guard.reading():
            yield self._store

    @contextmanager
    def changing(self) -> Iterator[CodeStore]:
        """The contents of the index, to be changed while no search runs."""
        with self._guard.writing():
            yield self._store

    def search(
        self, query_codes: npt.ArrayLike, k: int = 10, *, among: Among = None,
        probes: int | str | None = None, recall: float | None = None,
    ) -> tuple[Distances, Ids]:  # fmt: skip
        """The k nearest codes to each query, ordered by distance, then position of insertion.

        query_codes : (q, ceil(n_bits/8)) uint8 → distances (q, k) int32, ids (q, k) int64. If there are
            fewer than k codes, rows end in ids of -1 at distance 2**31 - 1, as in FAISS.
        among : search only these codes: a list of ids (some may be missing), or one boolean per code in the
            order of `ids`.
        probes : with lists: how many lists near a query are searched, or "all". If they hold fewer than k
            codes, ids end in -1.
        recall : instead of probes: the share of the k nearest to find (0.98), from which the number of lists
            follows, as measured on held-out queries when the lists were made.
        """
        k = check_integer("k", k, 1, MOST_ANSWERS, "Try k=10.")
        self._check_hamming()
        check_probes(probes, recall, self._lists is not None)
        queries = check_packed(query_codes, self.n_bits, "query_codes")
        with self._guard.reading(), Workers(self.n_jobs, blas=False) as workers:
            if self._by_lists():
                distances, found = self._listed(queries, k, probes, recall, among, workers)
                whole = np.where(found >= 0, distances, 0).astype(np.int32)
                whole[found < 0] = scan.PADDING_DISTANCE
                return whole, self._store.ids.at(found)
            near, found = self._nearest(queries, k, among, workers)
            return near, self._store.ids.at(found)

    def search_radius(
        self, query_codes: npt.ArrayLike, r: int, *, among: Among = None,
        probes: int | str | None = None, recall: float | None = None,
    ) -> tuple[Ids, Distances, Ids]:  # fmt: skip
        """All codes within distance r, inclusive, ordered by distance, then position of insertion.

        Returns lims (q+1,) int64, distances int32, ids int64 in FAISS's layout: the results of query i are
        those from lims[i] to lims[i+1]. probes, recall : as in `search`, for the recall of the ten nearest.
        """
        r = check_integer("r", r, 0, None, "Try r=2.")
        self._check_hamming()
        check_probes(probes, recall, self._lists is not None)
        queries = check_packed(query_codes, self.n_bits, "query_codes")
        with self._guard.reading(), Workers(self.n_jobs, blas=False) as workers:
            r = min(r, self.n_bits)
            if self._by_lists():
                assert self._lists is not None
                parts, wanted = (self._store.codes, self._store.alive), self._allowed(among)
                self._lists.up_to_date(*parts, workers)
                n = self._n_probes(10, probes, recall, wanted)
                lims, distances, positions = self._lists.within(*parts, queries, r, n, wanted, workers)
                return lims, distances, self._store.ids.at(positions)
            codes, allowed, chosen = self._store.selection(among, len(queries))
            if chosen is None:
                lims, distances, positions = self._exact.within(codes, allowed, queries, r, workers)
            else:
                lims, distances, few = scan.within(codes.planes, allowed, queries, self.n_bits, r, workers)
                positions = chosen[few]
            return lims, distances, self._store.ids.at(positions)

    def search_asymmetric(
        self, X: npt.ArrayLike, k: int = 10, *, query_codes: npt.ArrayLike | None = None,
        shortlist: int | None = None, among: Among = None, probes: int | str | None = None,
        recall: float | None = None, sure_of: int | None = None,
    ) -> tuple[SquaredDistances, Ids]:  # fmt: skip
        """The k codes z whose reconstructions f(z) are nearest to each query; queries are not hashed.

        X : (q, D), like the rows of fit → distances ‖x − f(z)‖² (q, k) float32 (of normalized rows if the
            hasher normalizes; tables add the expected error of a code, decoder.errors), and ids (q, k) int64,
            ordered by distance, then position of insertion. Missing results have id -1 at distance inf.
        query_codes : hasher.encode(X), for a search in two stages: the decoder ranks only the `shortlist`, by
            default the 10·k nearest in Hamming distance.
        probes, recall : as in `search`; recall is that of the first `sure_of` results, by default of all k.
        """
        k = check_integer("k", k, 1, MOST_ANSWERS, "Try k=10.")
        sure_of = k if sure_of is None else check_integer("sure_of", sure_of, 1, None, "Try sure_of=k.")
        rows = self._query_rows(X)
        check_probes(probes, recall, isinstance(self.decoder, ListDecoder))
        if isinstance(self.decoder, ListDecoder):
            if query_codes is not None:
                raise InvalidInput("a search of lists does not use query_codes: give only X.")
            with self._guard.reading(), Workers(self.n_jobs, blas=False) as workers:
                distances, found = self._listed(rows, k, probes, recall, among, workers, sure_of)
                return np.maximum(distances, np.float32(0)), self._store.ids.at(found)
        if shortlist is not None:
            remedy = f"It must hold the k={k} answers."
            shortlist = check_integer("shortlist", shortlist, k, MOST_ANSWERS, remedy)
            if query_codes is None:
                raise InvalidInput(
                    "a shortlist is found by Hamming distance: give query_codes=hasher.encode(X), too."
                )
        if query_codes is not None:
            self._check_hamming()
        queries = None if query_codes is None else check_packed(query_codes, self.n_bits, "query_codes")
        if queries is not None and len(queries) != len(rows):
            raise InvalidInput(f"X has {len(rows)} rows, but query_codes has {len(queries)}.")
        at_once = max(1, TABLE_BYTES // (1024 * bytes_per_code(self.n_bits)))
        with self._guard.reading(), Workers(self.n_jobs, blas=False) as workers:
            answers = [
                self._asymmetric(rows[some], None if queries is None else queries[some], k, shortlist, among,
                                 workers)
                for some in list(block_slices(len(rows), at_once)) or [slice(0, 0)]
            ]  # fmt: skip
            distances = np.concatenate([each for each, _ in answers])
            found = np.concatenate([each for _, each in answers])
            return distances, self._store.ids.at(found)

    def find_duplicates(self, r: int = 0) -> list[Ids]:
        """Groups of at least two items whose codes are joined by chains of steps up to r bits.

        Returns the ids of each group; items and groups are in the order of insertion.
        """
        r = check_integer("r", r, 0, None, "r=0 finds equal codes.")
        if r:
            self._check_hamming()
        with self._guard.reading(), Workers(self.n_jobs, blas=False) as workers:

            def searcher(different: Packed) -> Within:
                blocks, search = CodeBlocks.of(different, self.n_bits), ExactSearch("auto", self.n_bits)
                allowed = all_lanes(len(different))
                return lambda queries: search.within(blocks, allowed, queries, min(r, self.n_bits), workers)

            present = self._store.present()
            found = groups(self._store.codes.take(present), r, searcher)
            return [self._store.ids.at(present[rows]) for rows in found]

    def save(self, path: PathLike, *, overwrite: bool = True) -> None:
        """Write codes, ids and decoder to a file, atomically; `HammingIndex.load` reads it.

        Ids are left out if they are 0, 1, 2, …
        """
        with self.reading() as store:
            present = store.present()
            ids = store.ids.at(present)
            tensors: Tensors = {"codes": store.codes.take(present)}
            header: dict[str, Any] = {"n_bits": self.n_bits, "kind": self.kind, "options": {}}
            header |= {"coding": self.coding, "mu": self.mu, "model": self.model}
            header["lists"] = None if self._lists is None else self._lists.lists
            header |= {"next_id": store.ids.next_id, "decoder": None}
        if not np.array_equal(ids, np.arange(len(ids))):
            tensors["ids"] = ids
        if self.decoder is not None:
            header["decoder"], parts = decoder_parts(self.decoder)
            tensors |= {f"decoder.{key}": value for key, value in parts.items()}
        version = 1 if self._lists is None else LISTS_VERSION
        INDEX.write(path, header, tensors, version=version, overwrite=overwrite)

    @classmethod
    def load(cls, path: PathLike, *, n_jobs: int | None = None) -> Self:
        """Read an index that was saved."""
        resolve_n_jobs(n_jobs)
        header, tensors = INDEX.read(path)
        try:
            n_bits, kind = check_n_bits(header["n_bits"]), header["kind"]
            arrays = {key: value for key, value in tensors.items() if not key.startswith("decoder.")}
            layout = "codes uint8 n M" + ("; ids int64 n" if "ids" in arrays else "")
            check_layout(arrays, layout, {"M": bytes_per_code(n_bits)})
            parts = {key[8:]: value for key, value in tensors.items() if key.startswith("decoder.")}
            decoder = None if header["decoder"] is None else decoder_from(header["decoder"], parts)
            kind = "auto" if kind in FORMER_KINDS else kind
            # None: of an older version
            how = {"coding": header.get("coding"), "mu": header.get("mu"), "lists": header.get("lists")}
            index = cls(n_bits, kind=kind, decoder=decoder, n_jobs=n_jobs, **how)
            index.model = header.get("model")
            index.add(arrays["codes"], arrays.get("ids"))
            if not 0 <= header["next_id"] <= MAX_ID + 1:
                raise ValueError(f"next_id {header['next_id']}")
            with index.changing() as store:
                store.ids.next_id = max(store.ids.next_id, int(header["next_id"]))
        except InvalidInput as error:
            raise IndexFileError(f"{path} is not a complete auxbit index: {error}.") from error
        except (KeyError, TypeError, AttributeError, ValueError, IndexError, ArithmeticError) as error:
            raise IndexFileError(f"{path} is not a complete auxbit index: {error!r}.") from error
        return index

    def _nearest(self, queries: Packed, k: int, among: Among, workers: Workers) -> tuple[Distances, Ids]:
        """Distances and positions of the k nearest."""
        codes, allowed, chosen = self._store.selection(among, len(queries))
        if chosen is not None:
            distances, found = scan.nearest(codes.planes, allowed, queries, self.n_bits, k, workers)
            return distances, np.where(found >= 0, np.append(chosen, -1)[found], -1)
        return self._exact.nearest(codes, allowed, queries, k, workers)

    def _asymmetric(
        self, rows: Array, queries: Packed | None, k: int, shortlist: int | None, among: Among,
        workers: Workers,
    ) -> tuple[SquaredDistances, Ids]:  # fmt: skip
        """Distances and positions of the k nearest by the decoder, of all codes or of a shortlist."""
        codes, (tables, offsets) = (self._store.codes.planes, self._norms()), self._query_tables(rows)
        if queries is None:
            _, allowed, _ = self._store.selection(among)
            return asymmetric.nearest(*codes, allowed, tables, offsets, k, workers)
        listed = max(k, min(shortlist or SHORTLIST * k, len(self)))
        _, near = self._nearest(queries, listed, among, workers)
        return asymmetric.rerank(*codes, tables, offsets, near, k, workers)

    def _by_lists(self) -> bool:
        """Whether there are lists of hash codes to search, which are made if need be."""
        if self._lists is None or self._lists.decoder is not None:
            return False
        return number_of_lists(self._lists.lists, self._store.codes.size) > 0 and len(self) > 0

    def _allowed(self, among: Among) -> Mask | None:
        """One truth value per position, of codes that may be returned; None: all that are there."""
        if among is None:
            return None
        _, masks, _ = self._store.selection(among)
        return as_bools(masks, self._store.codes.size)

    def _n_probes(self, k: int, probes: int | str | None, recall: float | None, allowed: Mask | None) -> int:
        """How many lists to search."""
        assert self._lists is not None
        if probes is not None:
            return self._lists.n_lists if probes == "all" else min(int(probes), self._lists.n_lists)
        n_allowed = len(self) if allowed is None else int(np.count_nonzero(allowed))
        return self._lists.coverage.probes(RECALL if recall is None else float(recall), k, n_allowed)

    def _listed(
        self, asked: Array, k: int, probes: int | str | None, recall: float | None, among: Among,
        workers: Workers, sure_of: int | None = None,
    ) -> tuple[SquaredDistances, Ids]:  # fmt: skip
        """Distances and positions of the k nearest in the lists nearest to each query."""
        assert self._lists is not None
        codes, alive, allowed = self._store.codes, self._store.alive, self._allowed(among)
        self._lists.up_to_date(codes, alive, workers)  # tells how many lists are wanted
        n_probes = self._n_probes(min(k, sure_of or k), probes, recall, allowed)
        decoder = self._lists.decoder
        if decoder is None or decoder.fine is None or not codes.size:
            return self._lists.nearest(codes, alive, asked, k, n_probes, allowed, workers)
        wanted = max(k, REFINED, SHORTLIST * k)
        _, found = self._lists.nearest(codes, alive, asked, wanted, n_probes, allowed, workers)
        return self._refined(decoder, asked, found, k, workers)

    def _refined(
        self, decoder: ListDecoder, rows: Array, found: Positions, k: int, workers: Workers
    ) -> tuple[SquaredDistances, Ids]:
        """The k nearest of candidates, (q, m), by their whole codes."""
        distances = np.empty((len(rows), k), dtype=np.float32)
        positions = np.empty((len(rows), k), dtype=np.int64)

        def rank(some: slice) -> None:
            places = found[some]
            codes = self._store.codes.take(np.maximum(places, 0).ravel())
            apart = decoder.decode(codes).reshape(*places.shape, -1) - decoder.b
            apart -= decoder.centred(rows[some])[:, None]
            far = np.einsum("qmd,qmd->qm", apart, apart) + decoder.expected(codes).reshape(places.shape)
            near = np.where(places >= 0, far, np.inf).astype(np.float32), places
            distances[some], positions[some] = nearest_first([near], k)

        workers.run(rank, len(rows), REFINED_QUERIES)
        return distances, positions

    def keep_lists(self, path: Path, key: str) -> None:
        """Write the sorted codes to a file, for `adopt_lists` of an index over these codes, or more."""
        with self._guard.reading(), Workers(self.n_jobs, blas=False) as workers:
            if self._lists is not None:
                self._lists.save(path, key, self._store.codes, self._store.alive, workers)

    def adopt_lists(self, path: Path, key: str) -> None:
        """Map a file of keep_lists, if it has this key."""
        with self._guard.reading():
            if self._lists is not None:
                self._lists.adopt(path, key, self._store.codes)

    def probes_for(self, recall: float = RECALL, k: int = 10) -> int:
        """How many lists a search must read to find this share of the k nearest."""
        check_probes(None, recall, self._lists is not None)
        with self._guard.reading(), Workers(self.n_jobs, blas=False) as workers:
            if self._lists is None or not len(self):
                raise InvalidInput("the index has no lists, or no codes: every search reads all codes.")
            self._lists.up_to_date(self._store.codes, self._store.alive, workers)
            return self._n_probes(check_integer("k", k, 1), None, recall, None)

    def _norms(self) -> CodeNorms:
        if self._store.norms is None:
            remedy = "HammingIndex(n_bits, decoder=hasher.decoder_)"
            raise InvalidInput(f"asymmetric search needs a decoder. Make the index by {remedy}.")
        return self._store.norms

    def _query_rows(self, X: npt.ArrayLike) -> Array:
        """The queries as an array that the decoder can be compared with, (q, D)."""
        decoder = self.decoder if isinstance(self.decoder, ListDecoder) else self._norms().decoder
        rows, n_dims = as_array(as_rows(X)), decoder.n_features
        if rows.ndim != 2 or rows.shape[1] != n_dims or rows.dtype.kind not in "fiub":
            raise InvalidInput(
                f"X must be rows of {n_dims} numbers, as the model was fitted to, shape (q, {n_dims}); "
                f"got shape {rows.shape} of {rows.dtype}."
            )
        with Workers(1, blas=False) as workers:
            check_finite(rows, workers)
        return rows

    def _query_tables(self, rows: Array) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        decoder = self._norms().decoder
        with np.errstate(over="ignore", invalid="ignore"):
            tables, offsets = decoder.query_tables(rows), decoder.query_offsets(rows)
        largest = decoder.reach
        if largest < LEAST_SQUARED and len(rows):  # then a query that is far away is fine
            largest = max(largest, float(np.abs(decoder.centred(rows)).max(axis=1).min()))
        check_squares(tables, largest)
        check_squares(offsets, largest)
        return tables, offsets
