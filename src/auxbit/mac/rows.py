"""Rows out of core: read again for every sum that a step of MAC needs. Here: rows that this process reads.

A pass reads each block of rows once and does all that can be done with it: scores, the Z step, and the sums
that the next h and f steps need. Nothing is kept but codes, so it does not matter where rows live: in a file
here, or in shards on the workers of cluster.py, whose sums are added up in the order of the shards.
"""

from __future__ import annotations

import os
import tempfile
import threading
import zlib
from abc import ABC, abstractmethod
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from auxbit.core.checks import Bits, Float32, Float64, Ids, Indices, Packed, check_mapped
from auxbit.core.decoders import Plain
from auxbit.core.files import write_errors
from auxbit.core.maps import (
    CHUNK,
    Encoder,
    Features,
    LinearEncoder,
    Scaling,
    bytes_per_code,
    lengthened,
    pack_bools,
    query_words,
    to_planes,
    unpack,
    width_of,
)
from auxbit.core.parallel import BLOCK_ROWS, Workers, block_slices, kernel
from auxbit.core.simd import chunk_distances, popcount
from auxbit.data.vectors import RowSource, take_rows
from auxbit.errors import FileProblem
from auxbit.evaluate import Ranking, nearest_scaled
from auxbit.mac.h_step import (
    CorrectedLine,
    SampledLine,
    SlackSums,
    line_search,
    mask_scores,
    slack_along,
    slack_of,
    slack_sums_of,
    split_weights,
)
from auxbit.mac.loop import DecoderSums
from auxbit.mac.steps import BlockSums, ByRows, CodesOf, Sample, Sums, weights_of


class Slices(Protocol):
    """Rows that can be read by slices."""

    @property
    def shape(self) -> tuple[int, int]:
        """(n, D)."""

    def __getitem__(self, rows: slice) -> Float32:
        """These rows, scaled, float32."""


@dataclass(frozen=True)
class Judges:
    """Validation queries. words : (q, n_words), their codes; rows, owners : the true neighbours by row of the
    shard, rising, and whose they are.
    """

    words: npt.NDArray[Any]
    rows: Ids
    owners: Ids

    @classmethod
    def of(cls, codes: Packed, n_bits: int, truth: Ids, start: int, stop: int) -> Judges:
        """For the rows start..stop of all. codes : (q, M) of the queries, truth : (q, K) rows of all."""
        return cls(query_words(codes, n_bits), *neighbours_among(truth, start, stop))


def neighbours_among(truth: Ids, start: int, stop: int) -> tuple[Ids, Ids]:
    """Which of the rows start..stop are true neighbours, counted from start, rising; and whose they are."""
    owners, places = np.nonzero((truth >= start) & (truth < stop))
    rows = truth[owners, places] - start
    order = np.argsort(rows, kind="stable")
    return rows[order], owners[order]


def moments(X: Slices, workers: Workers) -> Sums:
    """XᵀX (D, D) and Σx (D,)."""

    def block(rows: slice) -> Sums:
        some = X[rows]
        return some.T @ some, some.sum(axis=0, dtype=np.float64)

    return workers.sum(block, X.shape[0])


def begin(X: Slices, old: Any, W: Float64, out: Packed, judges: None, workers: Workers) -> Sums:
    """Write the codes of W, (D+1, L). → ZᵀZ, Σz and XᵀZ of them, and Σ|t|, Σt² of each bit's scores t."""

    def block(rows: slice) -> Sums:
        some = X[rows]
        scores = _scores(some, W)
        Z = scores >= 0
        out[rows] = pack_bools(Z)
        sizes = scores.astype(np.float64)
        return (
            *_products(some, Z.astype(np.float32)), np.abs(sizes).sum(axis=0), np.square(sizes).sum(axis=0),
        )  # fmt: skip

    return workers.sum(block, X.shape[0])


def code_sums(X: Slices, Z: Packed, n_bits: int, workers: Workers) -> Sums:
    """ZᵀZ, Σz and XᵀZ of codes that are there."""

    def block(rows: slice) -> Sums:
        return _products(X[rows], unpack(Z[rows], n_bits).astype(np.float32))

    return workers.sum(block, X.shape[0])


def hash_sums(X: Slices, h: Encoder, workers: Workers) -> Sums:
    """ZᵀZ, Σz and XᵀZ of the codes h(X), which are not kept, and Σx."""

    def block(rows: slice) -> Sums:
        some = X[rows]
        return *_products(some, h(some).astype(np.float32)), some.sum(axis=0, dtype=np.float64)

    return workers.sum(block, X.shape[0])


def sums_of_codes(X: Slices, Z: Packed, function: BlockSums, workers: Workers) -> Sums:
    """What a function returns for blocks of rows and the codes that are there, added up."""
    return workers.sum(lambda rows: function(X[rows], Z[rows]), X.shape[0])


def sums_of_hashes(X: Slices, h: Encoder, function: BlockSums, workers: Workers) -> Sums:
    """The same for the codes h(X)."""

    def block(rows: slice) -> Sums:
        some = X[rows]
        return function(some, pack_bools(h(some)))

    return workers.sum(block, X.shape[0])


@dataclass(frozen=True)
class Line:
    """The bits that a sum is about, those of `columns` at these `places`: all of them get scores at once, as
    in memory, since products of another width may have other last digits. W : (D+1, L).
    """

    W: Float64
    columns: Indices
    places: Any

    def scores(self, X: Float32) -> Float32:
        """Those of the bits at the places."""
        scores = _scores(X, self.W[:, self.columns])
        return scores if len(self.places) == scores.shape[1] else np.take(scores, self.places, axis=1)

    def codes(self, Z: Packed) -> Bits:
        """The bits at the places of packed codes."""
        return np.ascontiguousarray(unpack(Z, self.W.shape[1])[:, self.columns[self.places]])


def slack_sums(X: Slices, Z: Packed, line: Line, workers: Workers) -> Sums:
    """The sums (5, bits) of `slack_of` and Xᵀ residual, (D, bits), at the scores of W."""

    def block(rows: slice) -> Sums:
        some, codes = X[rows], line.codes(Z[rows])
        scores = line.scores(some)
        residual = np.empty_like(scores)
        sums = slack_of(scores, codes, np.empty(scores.shape, dtype=np.bool_), residual)
        return sums, some.T @ residual

    return workers.sum(block, X.shape[0])


def label_sums(X: Slices, Z: Packed, W: Float64, workers: Workers) -> Sums:
    """`slack_sums` of all bits, and the sums of codes that are there."""

    def block(rows: slice) -> Sums:
        some = X[rows]
        return _labelled(some, _scores(some, W), unpack(Z[rows], W.shape[1]))

    return workers.sum(block, X.shape[0])


def hessian_product(X: Slices, Z: Packed, line: Line, P: Float64, workers: Workers) -> Sums:
    """Σ over the rows with slack of x xᵀ P, as (D, bits) and (bits,)."""

    def block(rows: slice) -> Sums:
        some = X[rows]
        codes, scores = line.codes(Z[rows]), line.scores(some)
        active, residual = np.empty(scores.shape, dtype=np.bool_), np.empty_like(scores)
        slack_of(scores, codes, active, residual)
        weights, bias = split_weights(P)
        product = some @ weights
        sums = mask_scores(product, bias, active)
        return some.T @ product, sums

    return workers.sum(block, X.shape[0])


def along_step(X: Slices, Z: Packed, line: Line, P: Float64, sizes: Float64, workers: Workers) -> Sums:
    """Σ slack², half its slope and half its curvature at W + size · P, for several sizes.

    P : (D+1, bits), sizes : (m, bits) → (m, 3, bits).
    """

    def block(rows: slice) -> Sums:
        some = X[rows]
        here, aimed, codes = line.scores(some), _scores(some, P), line.codes(Z[rows])
        return (np.stack([slack_along(here, aimed, size, codes) for size in sizes.astype(np.float32)]),)

    return workers.sum(block, X.shape[0])


def differing(X: Slices, Z: Packed, W: Float64, workers: Workers) -> Sums:
    """How many rows have a bit unlike that of W, (L,)."""

    def block(rows: slice) -> Sums:
        return (((_scores(X[rows], W) >= 0) != unpack(Z[rows], W.shape[1])).sum(axis=0),)

    return workers.sum(block, X.shape[0])


@dataclass(frozen=True)
class ZTask:
    """A Z step. W : (D+1, L) of h; f, mu, objective : the problem and how it is solved."""

    W: Float64
    f: Plain
    mu: float
    objective: ByRows


def z_pass(X: Slices, Z: Packed, task: ZTask, out: Packed, judges: Judges | None, workers: Workers) -> Sums:
    """New codes for every row, and all sums of a Z step and of the h and f steps after it.

    Z : (n, M) packed, read; out : (n, M) packed, written, may be Z itself.
    → *ZCounts, flips (L,), bits unlike h(x), (5, L) and (D, L) of `slack_sums`, ZᵀZ, Σz, XᵀZ,
    and with judges the histograms of distances, of all codes h(x) and of the true neighbours, (q, L+1) each.
    """
    solver, L = task.objective.solver(task.f, task.mu), task.W.shape[1]

    def block(rows: slice) -> Sums:
        some = X[rows]
        scores = _scores(some, task.W)
        H = (scores >= 0).view(np.uint8)
        old = unpack(Z[rows], L)
        codes = old.copy()
        counts = solver.solve(some, H, codes, ())
        out[rows] = pack_bools(codes)
        seen = _judged(H, L, judges, rows) if judges is not None else ()
        changed, unlike = (codes != old).sum(axis=0), np.count_nonzero(codes != H)
        return *astuple(counts), changed, unlike, *_labelled(some, scores, codes), *seen

    return workers.sum(block, X.shape[0])


def judge_pass(X: Slices, W: Float64, judges: Judges, workers: Workers) -> Sums:
    """The histograms of `z_pass` alone."""
    L = W.shape[1]

    def block(rows: slice) -> Sums:
        return _judged((_scores(X[rows], W) >= 0).view(np.uint8), L, judges, rows)

    return workers.sum(block, X.shape[0])


def judge_codes(X: Slices, Z: Packed, n_bits: int, judges: Judges, workers: Workers) -> Sums:
    """The histograms of `z_pass` for the codes that are there."""

    def block(rows: slice) -> Sums:
        return _judged(unpack(Z[rows], n_bits), n_bits, judges, rows)

    return workers.sum(block, X.shape[0])


def _scores(X: Float32, W: Float64) -> Float32:
    weights, bias = split_weights(W)
    scores: Float32 = X @ weights
    scores += bias
    return scores


def _labelled(X: Float32, scores: Float32, codes: Bits) -> Sums:
    """(5, L) and (D, L) of `slack_sums`, ZᵀZ, Σz and XᵀZ: by the same products as rows in memory."""
    L = codes.shape[1]
    both = np.empty((len(X), 2 * L), dtype=np.float32)
    residual, labels = both[:, :L], both[:, L:]
    labels[...] = codes
    sums = slack_of(scores, codes, np.empty(scores.shape, dtype=np.bool_), residual)
    product = X.T @ both
    return sums, product[:, :L], labels.T @ labels, labels.sum(axis=0, dtype=np.float64), product[:, L:]


def _products(X: Float32, Z: Float32) -> Sums:
    return Z.T @ Z, Z.sum(axis=0, dtype=np.float64), X.T @ Z


def _judged(H: npt.NDArray[np.uint8], L: int, judges: Judges, rows: slice) -> Sums:
    planes = to_planes(pack_bools(H), L)
    counts = np.zeros((len(judges.words), L + 1), dtype=np.int64)
    hits = np.zeros_like(counts)
    _count_distances(planes, judges.words, counts)
    first, last = np.searchsorted(judges.rows, (rows.start, rows.stop))
    _count_pairs(planes, judges.words, judges.rows[first:last] - rows.start, judges.owners[first:last], hits)
    return counts, hits


@kernel
def _count_distances(planes: Any, queries: Any, counts: Ids) -> None:
    """Add to counts[q, d] how many codes are at distance d from query q."""
    n, buffer = planes.shape[1], np.empty(CHUNK, dtype=np.uint16)
    for start in range(0, n, CHUNK):
        stop = min(n, start + CHUNK)
        for q in range(len(queries)):
            chunk_distances(planes, start, stop, queries[q], buffer)
            for i in range(stop - start):
                counts[q, buffer[i]] += 1


@kernel
def _count_pairs(planes: Any, queries: Any, rows: Ids, owners: Ids, hits: Ids) -> None:
    """Add to hits[q, d] the rows that are true neighbours of query q, their owner."""
    for i in range(len(rows)):
        distance = 0
        for w in range(planes.shape[0]):
            distance += popcount(planes[w, rows[i]] ^ queries[owners[i], w])
        hits[owners[i], distance] += 1


def empty_codes(n: int, n_bits: int) -> Packed:
    """Room for the codes of n rows."""
    return np.zeros((n, bytes_per_code(n_bits)), dtype=np.uint8)


# ---- Rows of a source as MAC sees them: scaled, without those that are held out, a block at a time


class ScaledRows:
    """Rows of `source`, scaled as they are read. left_out : numbers of rows, rising, that are not among them;
    features : what follows the scaled numbers of a row.

    Row i is the i-th of those that are left, so blocks are the same as of rows in memory. What a slice
    returns is the thread's own buffer, filled again when that thread reads on: fresh memory for each block
    costs as much as the work on it if the allocator gives memory back at once, as Dask configures it to.
    """

    def __init__(
        self, source: RowSource, scaling: Scaling, left_out: npt.NDArray[Any] | None = None,
        features: Features | None = None,
    ) -> None:  # fmt: skip
        self._source, self._scaling, self._features = source, scaling, features
        self._left_out = np.zeros(0, dtype=np.int64) if left_out is None else np.asarray(left_out)
        self.n_scaled = len(scaling.mean)
        self.shape = (len(source) - len(self._left_out), self.n_scaled + width_of(features))
        self._own = threading.local()

    def __getitem__(self, rows: slice) -> Float32:
        raw, gaps = self._read(rows)
        out = self._room(len(raw) - len(gaps))
        scaled, filled, begin = out[:, : self.n_scaled], 0, 0
        for gap in (*gaps.tolist(), len(raw)):
            self._scaling.apply_to(raw[begin:gap], scaled[filled : filled + gap - begin])
            filled, begin = filled + gap - begin, gap + 1
        if self._features is not None:
            self._features.fill(out)
        return out

    def without_features(self) -> ScaledRows:
        """The same rows, of the numbers that are reconstructed alone."""
        return ScaledRows(self._source, self._scaling, self._left_out)

    def raw(self, rows: slice) -> npt.NDArray[Any]:
        """These rows as they came."""
        raw, gaps = self._read(rows)
        return np.delete(raw, gaps, axis=0) if len(gaps) else raw

    def _read(self, rows: slice) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """The rows from the first of these to the last, and which of them are left out."""
        start, stop, _ = rows.indices(self.shape[0])
        if start >= stop:
            return np.empty((0, self._source.shape[1]), dtype=self._source.dtype), self._left_out[:0]
        check_mapped(self._source, getattr(self._source, "filename", None) or "the file of X")
        first, last = self.places(np.array([start, stop - 1]))
        low, high = np.searchsorted(self._left_out, (first, last))
        return np.asarray(self._source[slice(int(first), int(last) + 1)]), self._left_out[low:high] - first

    def _room(self, n: int) -> Float32:
        room: Float32 | None = getattr(self._own, "room", None)
        if room is None or len(room) < n:
            room = self._own.room = np.empty((max(n, BLOCK_ROWS), self.shape[1]), dtype=np.float32)
        return room[:n]

    def __len__(self) -> int:
        return self.shape[0]

    def places(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The numbers in the source of these rows."""
        return places_of(rows, self._left_out)

    def take(self, rows: npt.NDArray[Any]) -> Float32:
        """These rows, rising, scaled."""
        out = np.empty((len(rows), self.shape[1]), dtype=np.float32)
        for some in block_slices(len(rows)):  # so that they are in memory twice only for a moment
            scaled = self._scaling.apply(take_rows(self._source, self.places(rows[some])))
            out[some] = lengthened(scaled, self._features)
        return out


def places_of(rows: npt.NDArray[Any], left_out: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The numbers in the source of these rows of those that are left."""
    gaps = left_out - np.arange(len(left_out))  # how many rows stay before each that does not
    return np.asarray(rows + np.searchsorted(gaps, rows, side="right"))


# ---- Codes of rows that are not in memory: packed bits, twice, in memory if they fit, else in mapped files

NAMES, KEPT = ("codes-0.bits", "codes-1.bits"), "kept-"  # and how the names of copies begin
CHUNK_BYTES = 1 << 24


class CodePair:
    """Packed codes twice: the present ones, and room for the next; `swap` makes the next the present.

    A pass that is interrupted leaves the present codes whole.
    """

    def __init__(self, n: int, n_bits: int, folder: Path | None = None, present: int = 0) -> None:
        self.n_bits, self.present, self._folder = n_bits, present, folder
        shape = (n, bytes_per_code(n_bits))
        if folder is None:
            self._pair: list[Packed] = [np.zeros(shape, dtype=np.uint8) for _ in NAMES]
        else:
            self._pair = [_mapped(folder / name, shape) for name in NAMES]

    @property
    def now(self) -> Packed:
        """The present codes, (n, M)."""
        return self._pair[self.present]

    @property
    def following(self) -> Packed:
        """Room for the next."""
        return self._pair[1 - self.present]

    def swap(self) -> None:
        """The codes just written are the present ones."""
        self.present = 1 - self.present

    def sync(self) -> None:
        """Make the present codes durable, if they are in a file."""
        if isinstance(self.now, np.memmap) and self._folder is not None:
            path = self._folder / NAMES[self.present]
            with write_errors(path):
                self.now.flush()
                descriptor = os.open(path, os.O_RDWR)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)

    def copy(self) -> Packed:
        """The present codes once more, in a file if these are in one: see `remove`."""
        if self._folder is None:
            return self.now.copy()
        with write_errors(self._folder):
            handle, name = tempfile.mkstemp(".bits", KEPT, self._folder)
            os.close(handle)
        copy = _mapped(Path(name), self.now.shape)
        copy[...] = self.now
        return copy

    def take(self, codes: Packed) -> None:
        """Let these be the present codes."""
        self.following[...] = codes
        self.swap()

    @staticmethod
    def remove(codes: Packed) -> None:
        """Remove a copy."""
        if isinstance(codes, np.memmap):
            Path(str(codes.filename)).unlink(missing_ok=True)

    def checksum(self) -> int:
        """CRC-32 of the present codes: detects codes that are torn, lost or of another fit."""
        flat, found = self.now.reshape(-1), 0
        for start in range(0, flat.size, CHUNK_BYTES):
            found = zlib.crc32(flat[start : start + CHUNK_BYTES].data, found)
        return found


def _mapped(path: Path, shape: tuple[int, int]) -> Packed:
    size = shape[0] * shape[1]
    try:
        with path.open("a+b") as file:
            if os.fstat(file.fileno()).st_size != size:
                file.truncate(0)
                file.truncate(size)
            if hasattr(os, "posix_fallocate"):  # a full disk is an error here, not a SIGBUS while writing
                os.posix_fallocate(file.fileno(), 0, size)
        mapped: Packed = np.memmap(path, dtype=np.uint8, mode="r+", shape=shape)
    except OSError as error:
        raise FileProblem(f"{path} could not be made: {error.strerror or error}.") from error
    return mapped


# ---- Rows as `Steps` sees them

SAMPLE_ROWS = 65_536  # for the size of a step


class StreamedRows(ABC):
    """Rows that are not kept: every sum is a pass over all of them. See the protocol `steps.Rows`.

    A subclass says how a function of this file is run over all rows, in `_sums` and `_new_codes`.
    """

    def __init__(self, n_rows: int, n_features: int, n_decoded: int, n_bits: int) -> None:
        self.n_rows, self.n_features, self.n_bits = n_rows, n_features, n_bits
        self.n_decoded = n_decoded
        self.n_passes = 0
        self.W, self._columns = np.zeros((n_features + 1, n_bits)), np.arange(n_bits)
        self.truth: Ids | None = None
        self._slack: SlackSums | None = None  # at W, for the present codes
        self._codes: Sums | None = None  # of the present codes
        self._seen: tuple[LinearEncoder, Sums] | None = None  # histograms of an encoder's codes
        self._sampled: Sample | None = None

    @abstractmethod
    def fill(self, codes_of: Any) -> None:
        """Let codes be made of the rows as they came and their numbers in the table. A pass."""

    @abstractmethod
    def places(self, rows: Ids) -> Ids:
        """The numbers in the table of these rows."""

    @abstractmethod
    def nearest(self, queries: Float32, k: int) -> Ids:
        """The k nearest rows to each query, (q, k). A pass."""

    @abstractmethod
    def sample(self) -> Sample | None:
        """Some of the rows, for the size of a step."""

    @abstractmethod
    def _sums(self, function: Any, *arguments: Any, coded: bool = True, judged: Any = None) -> Sums:
        """The sums of a pass that leaves codes as they are: function(X, [codes,] *arguments, …)."""

    @abstractmethod
    def _new_codes(self, function: Any, argument: Any, judged: Any = None) -> Sums:
        """The sums of a pass that makes new codes; these are the codes from then on."""

    @abstractmethod
    def _kept_codes(self) -> Any:
        """The present codes, which stay as they are when new ones are made."""

    @abstractmethod
    def _take_codes(self, codes: Any) -> None:
        """Let codes that were kept be the present ones."""

    # ---- sums

    def keep(self) -> Any:
        return self._kept_codes(), self.W, self._slack, self._codes

    def go_back(self, kept: Any) -> None:
        self._take_codes(kept[0])
        self.restore(*kept[1:])

    def forget(self, kept: Any) -> None:  # noqa: B027  codes that are never changed go by themselves
        pass

    def moments(self) -> tuple[Float64, Float64]:
        XX, total = self._sums(moments, coded=False)
        return XX, total

    def begin(self, W: Float64) -> Sums:
        self.note(W)
        *codes, total, square = self._new_codes(begin, W)
        self._codes = tuple(codes)
        return *codes, total, square

    def code_sums(self) -> Sums:
        if self._codes is None:
            self._codes = self._sums(code_sums, self.n_bits)
        return self._codes

    def label_sums(self) -> tuple[SlackSums, Float64, Float64, Float64]:
        if self._slack is None or self._codes is None:
            slack, product, *codes = self._sums(label_sums, self.W)
            self._slack, self._codes = slack_sums_of(slack, product), tuple(codes)
        ZZ, z, XZ = self._codes
        return self._slack, ZZ, z, XZ

    def hash_sums(self, h: Encoder) -> DecoderSums:
        ZZ, z, XZ, x = self._sums(hash_sums, h, coded=False)
        return DecoderSums(self.n_rows, ZZ, z, XZ.T, x)

    def sums_of(self, function: BlockSums, h: Encoder | None) -> Sums:
        if h is None:
            return self._sums(sums_of_codes, function)
        return self._sums(sums_of_hashes, h, function, coded=False)

    def differing(self, h: LinearEncoder) -> Ids:
        return np.asarray(self._sums(differing, weights_of(h))[0])

    def z_pass(self, h: LinearEncoder, f: Plain, mu: float, objective: ByRows, queries: Any) -> Sums:
        sums = self._new_codes(z_pass, ZTask(self.W, f, mu, objective), queries)
        report, (slack, product, *codes), seen = sums[:10], sums[10:15], sums[15:]
        self._slack, self._codes = slack_sums_of(slack, product), tuple(codes)
        self._seen = (h, seen) if seen else None
        return report

    def ranking(self, h: LinearEncoder | None, queries: Packed) -> Ranking:
        if h is None:
            seen = self._sums(judge_codes, self.n_bits, judged=queries)
        elif self._seen is not None and self._seen[0] is h:
            seen = self._seen[1]
        else:
            seen = self._sums(judge_pass, weights_of(h), coded=False, judged=queries)
            self._seen = (h, seen)
        counts, hits = (each.astype(np.int64) for each in seen)
        assert self.truth is not None
        return Ranking(np.zeros(self.truth.shape, dtype=np.int64), counts, hits, self.n_rows)

    # ---- W and its line search

    def note(self, W: Float64) -> None:
        self.W, self._slack, self._columns = W, None, np.arange(self.n_bits)

    moved_to = note

    def scale(self, by: Float64) -> None:
        self.note(self.W * by)

    def set_constant(self, bits: Indices, values: Float64) -> None:
        W = self.W.copy()
        W[:, bits] = 0.0
        W[-1, bits] = values
        self.note(W)

    def restore(self, W: Float64, slack: SlackSums | None, codes: Sums | None) -> None:
        """Take up W and the sums of the present codes again, as they were before an interruption."""
        self.note(W)
        self._slack, self._codes = slack, codes

    def count(self, bits: Indices) -> SlackSums:
        return slack_sums_of(*self._sums(slack_sums, self._line(bits)))

    def hessian_product(self, P: Float64, bits: Indices) -> Float64:
        product, bias = self._sums(hessian_product, self._line(bits), P)
        return np.vstack([product, bias])

    def search(
        self, bits: Indices, W: Float64, step: Float64, gradient: Float64, slack: Float64, C: float
    ) -> Float64:
        """As h_step.line_search, in one pass: a sample finds the sizes to evaluate on all rows."""

        def evaluate(sizes: Float64) -> Float64:
            return np.asarray(self._sums(along_step, self._line(bits), step, sizes)[0])

        line = CorrectedLine(self._sizes_on_sample(bits, W, step, C), evaluate)
        size = line_search(line, bits, W, step, gradient, slack, C)
        ahead = self.W.copy()
        ahead[:, bits] += size * step
        self.note(ahead)
        self._columns = bits
        return size

    def _line(self, bits: Indices) -> Line:
        return Line(self.W, self._columns, np.searchsorted(self._columns, bits))

    def _sizes_on_sample(self, bits: Indices, W: Float64, step: Float64, C: float) -> Float64:
        """0 and the sizes that a search on the sample evaluates, (m, len(bits))."""
        sample = self.sample()
        if sample is None or len(sample.rows) == self.n_rows:  # all rows are as quick to ask
            return np.zeros((1, len(bits)))
        labels = np.ascontiguousarray(unpack(sample.codes(), self.n_bits)[:, bits])
        trial = SampledLine(sample.rows, self.W[:, bits], step, labels, len(sample.rows) / self.n_rows)
        line_search(trial, bits, W, step, trial.gradient(W, C), trial.slack, C)
        return np.vstack([np.zeros(len(bits)), *trial.sizes])


class FileRows(StreamedRows):
    """Rows that this process reads, in blocks on threads, with their codes.

    If the sample has room for all rows, they are read once and held: all sums are then those of rows in
    memory, to the last bit.
    """

    def __init__(
        self, X: ScaledRows, codes: CodePair, workers: Workers, sample_rows: int = SAMPLE_ROWS
    ) -> None:
        super().__init__(*X.shape, X.n_scaled, codes.n_bits)
        self.X, self.codes, self._workers = X, codes, workers
        step = -(-self.n_rows // sample_rows)
        self._chosen = np.arange(step // 2, self.n_rows, step)
        self.holds_all = len(self._chosen) == self.n_rows

    def fill(self, codes_of: CodesOf) -> None:
        out = self.codes.now

        def block(rows: slice) -> None:
            out[rows] = codes_of(self.X.raw(rows), self.X.places(np.arange(rows.start, rows.stop)))

        self.n_passes += 1
        self._workers.run(block, self.n_rows)

    def _kept_codes(self) -> Packed:
        return self.codes.copy()

    def _take_codes(self, codes: Packed) -> None:
        self.codes.take(codes)

    def forget(self, kept: Any) -> None:
        self.codes.remove(kept[0])

    def places(self, rows: Ids) -> Ids:
        return self.X.places(rows)

    def nearest(self, queries: Float32, k: int) -> Ids:
        if self.holds_all:
            rows: Any = self.sample().rows[:, : self.n_decoded]
        else:
            rows, self.n_passes = self.X.without_features(), self.n_passes + 1
        return nearest_scaled(rows, queries, k, self._workers)[1]

    def sample(self) -> Sample:
        if self._sampled is None:
            self.n_passes += self.holds_all
            rows = self.X.take(self._chosen)
            self._sampled = Sample(rows, lambda: np.asarray(self.codes.now[self._chosen]))
        return self._sampled

    def _sums(self, function: Any, *arguments: Any, coded: bool = True, judged: Any = None) -> Sums:
        codes = (self.codes.now,) if coded else ()
        judges = () if judged is None else (self._judges(judged),)
        sums: Sums = function(self._all_rows(), *codes, *arguments, *judges, self._workers)
        return sums

    def _new_codes(self, function: Any, argument: Any, judged: Any = None) -> Sums:
        """The new codes are written beside the present ones, so that a pass that fails leaves those whole."""
        judges = None if judged is None else self._judges(judged)
        rows, now, following = self._all_rows(), self.codes.now, self.codes.following
        sums: Sums = function(rows, now, argument, following, judges, self._workers)
        self.codes.swap()
        return sums

    def _all_rows(self) -> Slices:
        """All rows for a pass: those held, or to be read again."""
        if self.holds_all:
            return self.sample().rows
        self.n_passes += 1
        return self.X

    def _judges(self, judged: Packed) -> Judges | None:
        if self.truth is None:
            return None
        return Judges.of(judged, self.n_bits, self.truth, 0, self.n_rows)
