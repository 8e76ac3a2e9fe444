"""Search of lists: codes sorted by the list that they are in, of which the ones near a query are scanned.

With a decoder that has lists (core/decoders.py), a code's list is in its first bytes. The distance that
orders codes is ((norm + T[0, byte 0]) + T[1, byte 1] + …) + the list's offset, in float32; equal ones are
ordered by position. Hash codes are divided by the distance of their bits to centroids, which are found on
the codes themselves.

Slots count the codes of a segment, which are sorted. Codes that came since are a segment of their own, as in
a log of merged runs: a segment is merged with the one before it when it has an eighth of its codes.
"""

from __future__ import annotations

import json
import math
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.core.checks import (
    Array,
    Bytes,
    Float32,
    Float64,
    Packed,
    PathLike,
    Positions,
    Words,
    check_squares,
)
from auxbit.core.decoders import LEARNED_KS, Coverage, ListDecoder, TableDecoder
from auxbit.core.files import replacing
from auxbit.core.maps import unpack
from auxbit.core.parallel import Workers, block_slices, kernel
from auxbit.core.simd import TILE, address, index_bits, lowest_bit, popcount
from auxbit.index.asymmetric import (
    CHUNK_BYTES,
    CROWD,
    LOOSE,
    WIDE_TABLES,
    bounds_of,
    code_distance,
    in_order,
    limit_of,
    next_tile,
    offer,
    squared_distance,
)
from auxbit.index.bounds import (
    NARROW_LIMIT,
    ROUNDING,
    VALUES,
    WIDE_LIMIT,
    n_tables,
    round_tables,
    smallest_sum,
    split_codes,
    widest_entry,
)
from auxbit.index.codes import (
    LANES,
    CodeBlocks,
    CodeNorms,
    LaneMasks,
    LaneSet,
    aligned_zeros,
    as_bools,
    lanes_of,
    nearest_first,
)
from auxbit.index.scan import next_hit
from auxbit.quantiser.lists import (
    ASKED,
    ASKED_SHARE,
    ROWS_PER_LIST,
    Centroids,
    find_centroids,
    number_of_lists,
    ranks_of,
)

# ---- Kernels: the lists nearest to queries, and the nearest codes of these lists

EVERY = np.uint64(2**64 - 1)


@kernel
def nearest_lists(costs: Float32, near: Float32, lists: Positions) -> None:
    """The lists with the least costs, (q, K), in order, of equals the first, into (q, probes) each."""
    for q in range(len(costs)):
        count = 0
        for number in range(costs.shape[1]):
            if count < lists.shape[1] or costs[q, number] < near[q, 0]:
                count = offer(near[q], lists[q], count, costs[q, number], number)
        in_order(near[q], lists[q], count)


@kernel
def all_in_order(counts: Positions, distances: Float32, positions: Positions) -> None:
    """Turn the heaps into lists, nearest first."""
    for q in range(len(counts)):
        in_order(distances[q], positions[q], counts[q])


@kernel
def exact_offsets(rows: Float64, centres: Float32, lists: Positions, out: Float32) -> None:
    """‖x − c‖² of rows, (q, D), and the centres of some lists each, (q, probes), in float64."""
    for q in range(len(rows)):
        for i in range(lists.shape[1]):
            out[q, i] = squared_distance(rows[q], centres[lists[q, i]], 1.0)


@kernel
def edge_mask(block: int, start: int, stop: int) -> Any:
    """The lanes of a block that are slots start..stop."""
    mask = EVERY
    if block == start // LANES:
        mask &= EVERY << np.uint64(start % LANES)
    if block == (stop - 1) // LANES:
        mask &= EVERY >> np.uint64(LANES - 1 - (stop - 1) % LANES)
    return mask


@kernel
def scan_lists(
    planes: Bytes, plane_words: Words, allowed: Words, norms: Float32, level_words: Words, floors: Float32,
    order: Any, starts: Positions, tables: Float32, slack: Float64, least: Float32, bits: int, wide: bool,
    pair_lists: Positions, pair_queries: Positions, pair_offsets: Float32, index: Words, rounded: Bytes,
    counts: Positions, distances: Float32, positions: Positions,
) -> None:  # fmt: skip
    """Offer the codes of lists to the k nearest of queries, pair by pair; those of one list come together.

    planes to floors as in asymmetric.scan_blocks, by slots; order : the position of each slot;
    starts : (K+1,) slots; slack, least : (q,), the least offset of a query's lists; bits : 0 for no bounds;
    counts : (q,), of heaps of k. Their order is left to the caller.
    """
    n_queries, chunk, block_bytes = len(tables), len(index) - TILE, index.shape[1] * LANES
    n, k, bounded = index.shape[1] - (2 if wide else 1), distances.shape[1], bits > 0
    bases, widest = np.zeros(n_queries), np.zeros(n_queries)
    units, ranges = np.zeros(n_queries), np.full(n_queries, np.inf)
    lowest = np.empty((n_queries, n))
    buffer, masks = np.empty(LANES, dtype=np.float32), np.empty(TILE, dtype=np.uint64)
    highest = WIDE_LIMIT if wide else NARROW_LIMIT
    index_words, entries = index.reshape(-1), rounded.reshape(-1)
    pair = 0
    while pair < len(pair_lists):
        number, end = pair_lists[pair], pair
        while end < len(pair_lists) and pair_lists[end] == number:
            end += 1
        start, stop = starts[number], starts[number + 1]
        for first in range(start // LANES, -(-stop // LANES) if stop > start else start // LANES, chunk):
            last, split = min(first + chunk, -(-stop // LANES)), False
            for p in range(pair, end):
                q, offset = pair_queries[p], pair_offsets[p]
                table, nearest, where, count = tables[q], distances[q], positions[q], counts[q]
                block = first
                while block < last and (count < k or not bounded):
                    mask = allowed[block] & edge_mask(block, start, stop)
                    count = _offer_lanes(
                        planes, norms, order, table, offset, block, mask, nearest, where, count, buffer
                    )
                    block += 1
                counts[q] = count
                if block == last:
                    continue
                if ranges[q] == np.inf:
                    bases[q], widest[q] = smallest_sum(table, floors, bits, lowest[q])
                # tables are rounded for the query's nearest list, in which sums may be the largest
                left = np.float64(nearest[0]) + slack[q] - least[q] - bases[q]
                if 0 < left < LOOSE * ranges[q]:
                    ranges[q] = left
                    units[q] = highest / left
                    if wide and widest[q] > 0:
                        units[q] = min(units[q], widest_entry(n) / min(left, widest[q]))
                    round_tables(table, floors, bits, wide, lowest[q], units[q], rounded[q])
                left = np.float64(nearest[0]) + slack[q] - offset - bases[q]
                limit, of = limit_of(left, units[q], highest), q * rounded.shape[1]
                if limit < 0:
                    continue
                if not split:
                    split_codes(plane_words, level_words, bits, wide, first, last, index)
                    split = True
                while block < last and limit >= 0:
                    at, tiles = (block - first) * block_bytes, -(-(last - block) // TILE)
                    found = next_tile(bits, wide, index_words, at, tiles, n, entries, of, limit, masks)
                    block += TILE * found
                    for u in range(min(TILE, last - block)):
                        mask = masks[u] & allowed[block + u] & edge_mask(block + u, start, stop)
                        count = _offer_lanes(
                            planes, norms, order, table, offset, block + u, mask, nearest, where, count,
                            buffer,
                        )  # fmt: skip
                    left = np.float64(nearest[0]) + slack[q] - offset - bases[q]
                    limit = limit_of(left, units[q], highest)
                    block += TILE
        pair = end


@kernel
def _offer_lanes(
    planes: Bytes, norms: Float32, order: Any, table: Float32, offset: Any, block: int, mask: Any,
    nearest: Float32, where: Positions, count: int, buffer: Float32,
) -> int:  # fmt: skip
    """Offer the codes of a block that are in the mask to a heap; return how many it holds."""
    start = block * LANES
    if popcount(mask) < CROWD:
        while mask:
            slot = start + lowest_bit(mask)
            distance = code_distance(planes, norms, table, slot) + offset
            if count < len(nearest) or distance <= nearest[0]:
                count = offer(nearest, where, count, distance, int(order[slot]))
            mask &= mask - np.uint64(1)
        return count
    for lane in range(LANES):
        buffer[lane] = norms[start + lane]
    for j in range(planes.shape[1]):
        for lane in range(LANES):
            buffer[lane] += table[j, planes[block, j, lane]]
    for lane in range(LANES):
        distance = buffer[lane] + offset
        if mask >> np.uint64(lane) & np.uint64(1) and (count < len(nearest) or distance <= nearest[0]):
            count = offer(nearest, where, count, distance, int(order[start + lane]))
    return count


@kernel
def scan_hash_lists(
    codes: Bytes, allowed: Words, order: Any, starts: Positions, words: Any, lists: Positions, n_bits: int,
    counts: Positions, distances: Float32, positions: Positions,
) -> None:  # fmt: skip
    """Offer hash codes of lists, (q, probes), to the k nearest of each query by Hamming distance.

    codes : flat planes; words : (q, width) as in index/scan.py.
    """
    width, k = words.shape[1], distances.shape[1]
    codes_at, words_at = address(codes), address(words)
    block = np.empty(LANES, dtype=np.uint16)
    for q in range(len(words)):
        nearest, where, count, query = distances[q], positions[q], counts[q], words_at + 4 * q * width
        for number in lists[q]:
            start, stop = starts[number], starts[number + 1]
            first, last = start // LANES, -(-stop // LANES)
            if start == stop:
                continue
            masks = _list_masks(allowed, start, stop)
            masks_at, i = address(masks) - 8 * first, first
            while i < last:
                most = n_bits if count < k else int(nearest[0])
                i, hits = next_hit(width, codes_at, masks_at, i, last, query, most, address(block))
                while hits:
                    lane = lowest_bit(hits)
                    hits &= hits - np.uint64(1)
                    distance = np.float32(block[lane])
                    if count < k or distance <= nearest[0]:
                        count = offer(nearest, where, count, distance, int(order[i * LANES + lane]))
                i += 1
        counts[q] = count


@kernel
def _list_masks(allowed: Words, start: int, stop: int) -> Words:
    first, last = start // LANES, -(-stop // LANES)
    masks = allowed[first:last].copy()
    masks[0] &= edge_mask(first, start, stop)
    masks[-1] &= edge_mask(last - 1, start, stop)
    return masks


@kernel
def within_hash_lists(
    codes: Bytes, allowed: Words, order: Any, starts: Positions, words: Any, lists: Positions, r: int,
    counts: Positions, distances: Any, positions: Positions, fill: bool,
) -> None:  # fmt: skip
    """Count the hash codes of lists within r of each query; or write them, from counts[q] on."""
    width = words.shape[1]
    codes_at, words_at = address(codes), address(words)
    block = np.empty(LANES, dtype=np.uint16)
    for q in range(len(words)):
        query, at = words_at + 4 * q * width, counts[q]
        for number in lists[q]:
            start, stop = starts[number], starts[number + 1]
            first, last = start // LANES, -(-stop // LANES)
            if start == stop:
                continue
            masks = _list_masks(allowed, start, stop)
            masks_at, i = address(masks) - 8 * first, first
            while i < last:
                i, hits = next_hit(width, codes_at, masks_at, i, last, query, r, address(block))
                while hits:
                    lane = lowest_bit(hits)
                    hits &= hits - np.uint64(1)
                    if fill:
                        distances[at], positions[at] = block[lane], order[i * LANES + lane]
                    at += 1
                i += 1
        counts[q] = at


# ---- Sorted codes

SORTED = 2**18  # codes whose norms are computed at a time


class SortedCodes:
    """Some codes of an index, sorted by list, by position within a list.

    starts : (K+1,) the first slot of each list; order : the position of each slot; norms : None for hash
    codes.
    """

    def __init__(
        self, numbers: Positions, codes: Packed, positions: Positions, n_lists: int, n_bits: int,
        decoder: ListDecoder | None,
    ) -> None:  # fmt: skip
        """Of the list of each code, (n,), whole codes, (n, width), and their positions, which rise."""
        small = numbers.astype(np.uint16) if n_lists <= 2**16 else numbers  # which numpy sorts by digits
        by_list = np.argsort(small, kind="stable")
        self.order = positions[by_list].astype(
            np.uint32 if len(positions) == 0 or positions[-1] < 2**32 else np.int64
        )
        self.starts = np.zeros(n_lists + 1, dtype=np.int64)
        np.cumsum(np.bincount(numbers, minlength=n_lists), out=self.starts[1:])
        own = slice(None)  # of a code's bytes, what a scan reads
        if decoder is not None:
            own = slice(decoder.number_bytes, decoder.number_bytes + decoder.inner_bytes)
            n_bits = decoder.inner.n_bits
        self.blocks, self.norms = CodeBlocks(n_bits), None
        self.blocks.reserve(len(codes))
        if decoder is not None:
            self.norms = CodeNorms(decoder)
            self.norms.reserve(len(codes))
        for some in block_slices(len(codes), SORTED):
            part = codes[by_list[some]]
            self.blocks.append(part[:, own])
            if self.norms is not None:
                self.norms.append(part)

    def __len__(self) -> int:
        return len(self.order)

    @property
    def nbytes(self) -> int:
        """The bytes that codes, positions and norms take."""
        norms = 0 if self.norms is None else self.norms.values.nbytes + self.norms.levels.nbytes
        return self.blocks.planes.nbytes + self.order.nbytes + self.starts.nbytes + norms

    def masks(self, allowed: npt.NDArray[np.bool_]) -> LaneMasks:
        """By slots, of one truth value per position."""
        return lanes_of(allowed[self.order])

    def save(self, path: PathLike, about: dict[str, Any], more: dict[str, Array]) -> None:
        """Write a file that `mapped` maps, atomically. about, more : JSON and arrays that belong to it."""
        arrays = {"planes": self.blocks.planes, "order": self.order, "starts": self.starts} | more
        if self.norms is not None:
            arrays |= {"norms": self.norms.values, "levels": self.norms.levels, "floors": self.norms.floors}
            about = about | {"largest": self.norms.largest}
        write_arrays(path, about | {"n_bits": self.blocks.n_bits}, arrays)

    @classmethod
    def mapped(
        cls, about: dict[str, Any], arrays: dict[str, Array], decoder: ListDecoder | None
    ) -> SortedCodes:
        """What `save` has written, where it lies."""
        made = cls.__new__(cls)
        made.order, made.starts, made.norms = arrays["order"], arrays["starts"], None
        made.blocks = CodeBlocks.mapped(arrays["planes"], about["n_bits"], len(made.order))
        if decoder is not None:
            made.norms = CodeNorms.mapped(decoder, len(made.order), about["largest"], arrays)
        return made


# ---- Files of arrays, each on a boundary of 64 bytes

HEAD = 2**12  # bytes for JSON, at least


def write_arrays(path: PathLike, about: dict[str, Any], arrays: dict[str, Array]) -> None:
    """Write arrays behind a line of JSON, which knows their places and the checksum of all that follows."""
    places, end, check = {}, 0, 0
    for name, array in arrays.items():
        places[name] = {"at": end, "shape": list(array.shape), "dtype": array.dtype.str}
        check = zlib.crc32(np.ascontiguousarray(array).data, check)
        end += -(-array.nbytes // LANES) * LANES
    text = json.dumps({"about": about, "arrays": places, "checksum": check}).encode() + b"\n"
    head = -(-max(len(text) + 8, HEAD) // LANES) * LANES
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(head.to_bytes(8, "little") + text.ljust(head - 8, b" "))
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).data)
            file.write(bytes(-array.nbytes % LANES))


def map_arrays(path: Path) -> tuple[dict[str, Any], dict[str, Array]] | None:
    """What `write_arrays` has written, mapped; None if it is not there, or not whole."""
    try:
        content = np.memmap(path, dtype=np.uint8, mode="r")
        head = int.from_bytes(content[:8].tobytes(), "little")
        found = json.loads(content[8:head].tobytes())
        arrays, check = {}, 0
        for name, place in found["arrays"].items():
            dtype, shape = np.dtype(place["dtype"]), tuple(place["shape"])
            start = head + place["at"]
            flat = content[start : start + dtype.itemsize * math.prod(shape)]
            arrays[name] = np.asarray(flat).view(dtype).reshape(shape)
            check = zlib.crc32(np.asarray(flat).data, check)
        return (found["about"], arrays) if check == found["checksum"] else None
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None


Heaps = tuple[Positions, Float32, Positions]  # counts, (q,), distances and positions, (q, k)


def empty_heaps(n_queries: int, k: int) -> Heaps:
    """Heaps of the k nearest that hold nothing yet."""
    shape = (n_queries, k)
    return np.zeros(n_queries, dtype=np.int64), np.empty(shape, np.float32), np.empty(shape, np.int64)


# ---- Searches

RECALL = 0.98  # part of the nearest that the lists searched hold, if nothing else is asked for
MERGED = 8  # a segment with more than an eighth of the codes of the one before it is merged with it
AT_ONCE = 512  # queries whose tables are held
QUERY_BLOCK = 256  # queries that share one pass over their lists
FEW_QUERIES = 16  # of a block, with fewer each query goes through its lists in order
MANY_PROBES = 16  # lists of which one is searched, or more
PART_CODES = 2**17  # of lists, that are worth a thread of their own
MOST_PAIRS = 2**24  # of queries and lists that a thread holds


class ListSearch:
    """Searches the lists of an index. decoder : with lists; or None: hash codes, in so many `lists`."""

    def __init__(self, n_bits: int, decoder: ListDecoder | None, lists: str | int | None) -> None:
        self.n_bits, self.decoder, self.lists = n_bits, decoder, lists
        # without b, by which rows may lie far from 0, where float32 is coarse
        self.centroids = None if decoder is None else Centroids(decoder.centroids - decoder.b)
        self._building = threading.Lock()
        self._segments: list[tuple[int, SortedCodes]] = []  # and the first position of each
        self._of: CodeBlocks | None = None
        self._covered = 0  # positions
        self._changed: tuple[int, SortedCodes] | None = None  # and the version of codes that it is of
        self._masks: dict[int, tuple[Any, LaneMasks]] = {}
        self.coverage = Coverage.unknown(1) if decoder is None else decoder.coverage

    @property
    def n_lists(self) -> int:
        """How many there are; of hash codes none before there are codes."""
        return 0 if self.centroids is None else len(self.centroids.centroids)

    @property
    def nbytes(self) -> int:
        """The bytes of sorted codes."""
        return sum(each.nbytes for _, each in self._segments)

    # ---- what is searched

    def up_to_date(self, codes: CodeBlocks, alive: LaneSet, workers: Workers) -> list[SortedCodes]:
        """The sorted codes: segments, and last of all those that have changed since, if any have."""
        with self._building:
            if self._of is not codes or len(codes.changed) * MERGED >= max(codes.size, 1):
                self._segments, self._covered, self._changed, self._of = [], 0, None, codes
                codes.watch()
            first = self._covered
            while self._segments and first < codes.size:
                at, segment = self._segments[-1]
                if (codes.size - first) * MERGED < len(segment):
                    break
                first = at
                self._segments.pop()
            if first < codes.size:
                self._sort(codes, first, alive, workers)
            found = [each for _, each in self._segments]
            if len(codes.changed):
                if self._changed is None or self._changed[0] != codes.version:
                    self._changed = codes.version, self._sorted(codes.take(codes.changed), codes.changed)
                found.append(self._changed[1])
            return found

    def save(self, path: PathLike, key: str, codes: CodeBlocks, alive: LaneSet, workers: Workers) -> None:
        """Write all codes as one segment, for `adopt`; key : names the codes, and what they are."""
        with self._building:
            self._segments, self._covered, self._of = [], 0, None
        if not codes.size:
            return
        self.up_to_date(codes, alive, workers)
        more: dict[str, Array] = {"coverage": self.coverage.parts}
        if self.decoder is None and self.centroids is not None:
            more["centroids"] = self.centroids.centroids
        self._segments[0][1].save(path, {"key": key, "rows": self.coverage.n_rows}, more)

    def adopt(self, path: Path, key: str, codes: CodeBlocks) -> None:
        """Take in what was saved of the first codes, if it is of these; else nothing changes."""
        found = map_arrays(path)
        if found is None or found[0].get("key") != key or len(found[1]["order"]) > codes.size:
            return
        about, arrays = found
        with self._building:
            if self.decoder is None:
                self.centroids = Centroids(np.array(arrays["centroids"]))
                self.coverage = Coverage(np.array(arrays["coverage"]), int(about["rows"]))
            segment = SortedCodes.mapped(about, arrays, self.decoder)
            self._segments, self._covered, self._of = [(0, segment)], len(segment), codes
            self._changed, self._masks = None, {}
            codes.watch()
            codes.watched = len(segment)

    def _sort(self, codes: CodeBlocks, first: int, alive: LaneSet, workers: Workers) -> None:
        """Make a segment of the positions from `first` on."""
        positions = np.arange(first, codes.size)
        packed = codes.take(positions) if first else codes.packed()
        if self.decoder is None and not first:
            self._learn_centroids(packed, workers)
        self._segments.append((first, self._sorted(packed, positions)))
        self._covered, self._masks = codes.size, {}
        codes.watched = codes.size
        if not first and self.decoder is None:
            self._learn(codes, alive, workers)

    def _sorted(self, packed: Packed, positions: Positions) -> SortedCodes:
        numbers = self.numbers_of(packed)
        return SortedCodes(numbers, packed, positions, self.n_lists, self.n_bits, self.decoder)

    def numbers_of(self, packed: Packed) -> Positions:
        """The list of each code."""
        if self.decoder is not None:
            return self.decoder.split(packed)[0]
        assert self.centroids is not None
        rows = (packed[some] for some in block_slices(len(packed), SORTED))
        found = [self.centroids.nearest(unpack(each, self.n_bits).astype(np.float32)) for each in rows]
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    def _learn_centroids(self, packed: Packed, workers: Workers) -> None:
        rng, wanted = np.random.RandomState(0), max(1, number_of_lists(self.lists, len(packed)))
        some = packed[np.sort(rng.permutation(len(packed))[: ROWS_PER_LIST * wanted])]
        bits = unpack(some, self.n_bits).astype(np.float32)
        self.centroids = Centroids(find_centroids(bits, wanted, workers, rng))

    def _learn(self, codes: CodeBlocks, alive: LaneSet, workers: Workers) -> None:
        """From some of the hash codes: in which of their lists their neighbours are."""
        (_, segment), present = self._segments[0], as_bools(alive.masks, codes.size)
        places = np.flatnonzero(present)
        self.coverage = Coverage.unknown(self.n_lists)
        if len(places) < ASKED_SHARE:
            return
        asked = codes.take(np.sort(np.random.RandomState(0).permutation(places)[:ASKED]))
        costs, k = self._costs(asked), min(LEARNED_KS[-1], len(places) // ASKED_SHARE) + 1
        everything = [(segment, segment.masks(present))]
        _, found = self._search(everything, asked, None, costs, k, self.n_lists, workers)
        numbers = self.numbers_of(codes.take(np.maximum(found, 0).ravel())).reshape(found.shape)
        self.coverage = Coverage.of(ranks_of(costs, numbers)[:, 1:], self.n_lists, len(places))

    def _costs(self, asked: Array) -> Float32:
        """By which lists are near to queries, (q, K)."""
        assert self.centroids is not None
        if self.decoder is None:
            return self.centroids.costs(unpack(asked, self.n_bits).astype(np.float32))
        return self.centroids.costs(self.decoder.centred(asked).astype(np.float32))

    def _present(
        self, codes: CodeBlocks, alive: LaneSet, allowed: npt.NDArray[np.bool_] | None, workers: Workers
    ) -> list[tuple[SortedCodes, LaneMasks]]:
        """What is searched, and which slots may be returned. allowed : one truth value per position."""
        parts, found = self.up_to_date(codes, alive, workers), []
        n_segments = len(parts) - (len(codes.changed) > 0)
        key = (alive.size, alive.count, codes.version)
        for number, part in enumerate(parts):
            kept = self._masks.get(number)
            if allowed is None and kept is not None and kept[0] == key:
                found.append((part, kept[1]))
                continue
            present = as_bools(alive.masks, codes.size) if allowed is None else allowed.copy()
            if number < n_segments:
                present[codes.changed] = False
            found.append((part, part.masks(present)))
            if allowed is None:
                self._masks[number] = key, found[-1][1]
        return found

    # ---- searches

    def nearest(
        self, codes: CodeBlocks, alive: LaneSet, asked: Array, k: int, probes: int,
        allowed: npt.NDArray[np.bool_] | None, workers: Workers,
    ) -> tuple[Float32, Positions]:  # fmt: skip
        """Distances and positions of the k nearest in each query's first lists, (q, k).

        asked : rows, or packed hash codes.
        """
        segments, found, tables = self._present(codes, alive, allowed, workers), [], None
        if self.decoder is not None:
            shape = (min(AT_ONCE, len(asked)), self.decoder.inner_bytes, VALUES)
            tables = np.empty(shape, dtype=np.float32)
        for some in list(block_slices(len(asked), AT_ONCE)) or [slice(0, 0)]:
            # products are made here, where BLAS has all cores, not by threads that would share them; of as
            # many queries whatever the number of threads, as they are rounded differently for others
            rows, costs, own = asked[some], self._costs(asked[some]), None
            if self.decoder is not None and tables is not None:
                rows, own = self.decoder.centred(rows), tables[: len(rows)]
                check_squares(np.einsum("qd,qd->q", rows, rows), self.decoder.reach)
                self.decoder.inner.rough_tables(rows, own)
            found.append(self._search(segments, rows, own, costs, k, probes, workers))
        return np.concatenate([each for each, _ in found]), np.concatenate([each for _, each in found])

    def within(
        self, codes: CodeBlocks, alive: LaneSet, asked: Packed, r: int, probes: int,
        allowed: npt.NDArray[np.bool_] | None, workers: Workers,
    ) -> tuple[Positions, npt.NDArray[np.int32], Positions]:  # fmt: skip
        """The hash codes within r in each query's first lists: lims, distances, positions, as index/scan."""
        segments, costs = self._present(codes, alive, allowed, workers), self._costs(asked)

        def search(rows: slice) -> list[tuple[Positions, Array, Positions]]:
            lists = self._first_lists(costs[rows], probes)
            return [(queries + rows.start, distances, positions)
                    for queries, distances, positions in (_within(*each, asked[rows], lists, r)
                                                          for each in segments)]  # fmt: skip

        per_job = max(1, min(QUERY_BLOCK, -(-len(asked) // workers.n_jobs)))
        found = [each for part in workers.map(search, len(asked), per_job) for each in part]
        nothing = (np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int64))
        queries, distances, positions = (np.concatenate(each) for each in zip(nothing, *found, strict=True))
        order = np.lexsort((positions, distances, queries))
        lims = np.concatenate([[0], np.cumsum(np.bincount(queries, minlength=len(asked)))])
        return lims, distances[order], positions[order]

    def _first_lists(self, costs: Float32, probes: int) -> Positions:
        """The lists nearest to each query, in order, (q, probes)."""
        if probes * MANY_PROBES > self.n_lists:  # heaps would be slower
            lists = np.argpartition(costs, min(probes, self.n_lists) - 1, axis=1)[:, :probes].astype(np.int64)
            order = np.argsort(np.take_along_axis(costs, lists, axis=1), axis=1, kind="stable")
            return np.take_along_axis(lists, order, axis=1)
        shape = (len(costs), min(probes, self.n_lists))
        lists, near = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.float32)
        nearest_lists(costs, near, lists)
        return lists

    def _search(
        self, segments: list[tuple[SortedCodes, LaneMasks]], asked: Array, tables: Float32 | None,
        costs: Float32, k: int, probes: int, workers: Workers,
    ) -> tuple[Float32, Positions]:  # fmt: skip
        """As `nearest`, of hash codes, or of rows without b and their tables."""
        n_queries, probes = len(asked), min(probes, self.n_lists)
        per_job = -(-n_queries // workers.n_jobs)
        rows = max(1, min(QUERY_BLOCK, per_job, MOST_PAIRS // max(1, probes)))
        n_groups = -(-n_queries // rows)
        n_codes = sum(len(each) for each, _ in segments) * probes // max(1, self.n_lists)
        n_parts = max(1, min(-(-workers.n_jobs // max(1, n_groups)), n_codes // PART_CODES))
        found: list[Any] = [None] * (n_groups * n_parts)

        def search(item: slice) -> None:
            group, part = divmod(item.start, n_parts)
            some = slice(group * rows, min((group + 1) * rows, n_queries))
            lists = self._first_lists(costs[some], probes)
            heaps = empty_heaps(len(lists), k)
            own = np.ascontiguousarray(lists[:, part::n_parts])
            self._scan(segments, asked[some], None if tables is None else tables[some], own, heaps)
            all_in_order(*heaps)
            found[item.start] = heaps[1:]

        workers.run(search, n_groups * n_parts, 1)
        groups = [
            nearest_first(found[at : at + n_parts], k) if n_parts > 1 else found[at]
            for at in range(0, len(found), n_parts)
        ]
        if not groups:
            return np.empty((0, k), dtype=np.float32), np.empty((0, k), dtype=np.int64)
        return np.concatenate([each[0] for each in groups]), np.concatenate([each[1] for each in groups])

    def _scan(
        self, segments: list[tuple[SortedCodes, LaneMasks]], asked: Array, tables: Float32 | None,
        lists: Positions, heaps: Heaps,
    ) -> None:  # fmt: skip
        if self.decoder is None or tables is None:
            words = asked.astype(np.uint32) * np.uint32(0x01010101)
            for segment, masks in segments:
                flat = segment.blocks.planes.reshape(-1)
                scan_hash_lists(flat, masks, segment.order, segment.starts, words, lists, self.n_bits, *heaps)
            return
        scan = DecoderScan(self.decoder, asked, tables, lists)
        for segment, masks in segments:
            if len(segment):
                scan.offer(segment, masks, heaps)


def _within(
    segment: SortedCodes, masks: LaneMasks, asked: Packed, lists: Positions, r: int
) -> tuple[Positions, npt.NDArray[np.int32], Positions]:
    """Queries, distances and positions of all hash codes within r in the queries' lists."""
    words = asked.astype(np.uint32) * np.uint32(0x01010101)
    what = (segment.blocks.planes.reshape(-1), masks, segment.order, segment.starts, words, lists, r)
    counts = np.zeros(len(asked), dtype=np.int64)
    within_hash_lists(*what, counts, np.empty(0, np.int32), np.empty(0, np.int64), False)
    ends = np.cumsum(counts)
    n = int(ends[-1]) if len(ends) else 0
    distances, positions = np.empty(n, np.int32), np.empty(n, np.int64)
    within_hash_lists(*what, ends - counts, distances, positions, True)
    return np.repeat(np.arange(len(asked)), counts), distances, positions


class DecoderScan:
    """Queries without b, (q, D), their tables, and their lists, (q, probes), to scan by the decoder."""

    def __init__(self, decoder: ListDecoder, rows: Array, tables: Float32, lists: Positions) -> None:
        self.tables, self.reach = np.ascontiguousarray(tables, dtype=np.float32), None
        if isinstance(decoder.inner, TableDecoder):  # what entries of the tables can add up to, in size
            self.reach = 2.01 * np.linalg.norm(rows, axis=1) * decoder.inner.longest
        offsets = np.empty(lists.shape, dtype=np.float32)
        exact_offsets(rows, decoder.centres, lists, offsets)
        self.least, self.most = offsets.min(axis=1, initial=np.inf), offsets.max(axis=1, initial=0.0)
        queries = np.repeat(np.arange(len(lists)), lists.shape[1]).reshape(lists.shape)
        # the nearest lists first, which give a limit; then queries with the same list together
        order = np.arange(lists.size)
        if len(lists) >= FEW_QUERIES:
            keys = lists + len(decoder.centroids)
            keys[:, 0] -= len(decoder.centroids)
            small = np.uint16 if len(decoder.centroids) <= 2**15 else np.int64  # numpy sorts it by digits
            order = np.argsort(keys.ravel().astype(small), kind="stable")
        self.pairs: tuple[Any, Any, Any] = (
            lists.ravel()[order], queries.ravel()[order], offsets.ravel()[order],
        )  # fmt: skip

    def offer(self, segment: SortedCodes, masks: LaneMasks, heaps: Heaps) -> None:
        """Offer the codes of a segment."""
        assert segment.norms is not None
        norms, planes, width = segment.norms, segment.blocks.planes, self.tables.shape[1]
        if self.reach is None:
            bits, slack = bounds_of(self.tables, norms)
        else:
            bits, slack = 8 if index_bits() == 6 else 0, ROUNDING * (width + 2) * (self.reach + norms.largest)
        slack = slack + ROUNDING * 4 * (self.most + norms.largest)
        kind = bits or 8
        wide = n_tables(width, kind, wide=False) > WIDE_TABLES
        n, n_first = n_tables(width, kind, wide), 2 if wide else 1
        chunk = max(1, CHUNK_BYTES // ((n_first + n) * LANES * TILE)) * TILE
        index = aligned_zeros((chunk + TILE, n_first + n, LANES))
        rounded = aligned_zeros((len(self.tables), n_first * LANES + n * (VALUES if kind == 8 else LANES)))
        scan_lists(
            planes, planes.view(np.uint64), masks, norms.values, norms.levels.view(np.uint64), norms.floors,
            segment.order, segment.starts, self.tables, slack, self.least, bits, wide, *self.pairs,
            index.view(np.uint64), rounded, *heaps,
        )  # fmt: skip
