"""Packed codes, and the maps to them and back: scaling, the linear encoder h(x), the linear decoder f(z).

x --Scaling--> x' --encoder--> z = h(x') --decoder--> f(z), back in the units of x'. Encoders of features are
in core/features.py, decoders of tables and with lists in core/decoders.py.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt

from auxbit.core.checks import (
    LARGEST,
    LARGEST_FLOAT32,
    Bits,
    Float32,
    Float64,
    Packed,
    Words,
    acceptable,
    as_array,
    check_finite,
    check_integer,
    check_numbers,
    check_positive,
)
from auxbit.core.files import check_layout
from auxbit.core.parallel import BLOCK_ROWS, Workers, late_kernel, resolve_n_jobs
from auxbit.errors import InvalidInput

# ---- Binary codes: packing, unpacking, words for popcounts. The one place that knows the bit order
#
# Bits are little-endian within a byte: bit l of a code is bit l % 8 of byte l // 8, as in FAISS, so
# packed codes go there without conversion. Unused bits of the last byte are zero.

MAX_BITS = 2**13  # of codes that are stored, searched and compared: distances fit into 14 bits


def check_n_bits(n_bits: object, most: int = MAX_BITS, more: str = "") -> int:
    """Return `n_bits` as an int, or say what is allowed, and what allows more than that."""
    return check_integer("n_bits", n_bits, 1, most, f"Try n_bits=32{more}.")


def bytes_per_code(n_bits: int) -> int:
    """How many bytes a packed code of `n_bits` bits takes."""
    return -(-n_bits // 8)


def pack(Z: npt.ArrayLike) -> Packed:
    """Pack bits. Z : (n, L) of 0/1 → (n, ceil(L/8)) uint8."""
    bits = as_array(Z, "Z")
    if bits.ndim != 2 or bits.dtype.kind not in "biuf":
        raise InvalidInput(f"pack expects a 2-D array of 0 and 1, got shape {bits.shape} of {bits.dtype}.")
    if bits.dtype != np.bool_ and bits.size and not ((bits == 0) | (bits == 1)).all():
        raise InvalidInput("pack expects only 0 and 1. If these are packed codes, leave out pack.")
    return pack_bools(bits.astype(np.bool_))


def pack_bools(bits: npt.NDArray[Any]) -> Packed:
    """Pack an array that is known to hold only 0 and 1."""
    return np.packbits(bits, axis=1, bitorder="little")


def unpack(codes: npt.ArrayLike, n_bits: int) -> Bits:
    """Unpack codes. codes : (n, ceil(n_bits/8)) uint8 → (n, n_bits) uint8 of 0/1."""
    packed = check_packed(codes, n_bits)
    return np.unpackbits(packed, axis=1, count=n_bits, bitorder="little")


def check_packed(codes: Any, n_bits: int, name: str = "codes") -> Packed:
    """Return `codes` as packed codes of `n_bits` bits, or say what is wrong with them."""
    packed = as_array(codes, name)
    width = bytes_per_code(check_n_bits(n_bits))
    if packed.ndim != 2 or packed.shape[1] != width or packed.dtype != np.uint8:
        raise InvalidInput(
            f"{name} must be packed codes of {n_bits} bits: a (n, {width}) array of uint8, "
            f"got shape {packed.shape} of {packed.dtype}. encode() makes them, pack() packs 0/1 arrays."
        )
    unused = 8 * width - n_bits
    if unused and packed.size and (packed[:, -1] >> (8 - unused)).any():
        raise InvalidInput(f"{name} have bits set beyond the first {n_bits}: were they made with more bits?")
    return np.ascontiguousarray(packed)  # kernels read them by address


def to_words(codes: Packed) -> Words:
    """Pad packed codes with zero bytes and view them as 64-bit words, (n, ceil(bytes/8)) uint64.

    Only popcounts are taken of words, so the machine's byte order does not matter.
    """
    n, width = codes.shape
    n_words = max(1, -(-width // 8))
    if width == 8 * n_words and codes.flags.c_contiguous:
        return codes.view(np.uint64)
    padded = np.zeros((n, 8 * n_words), dtype=np.uint8)
    padded[:, :width] = codes
    return padded.view(np.uint64)


def hamming_distances(a: Packed, b: Packed) -> npt.NDArray[np.int32]:
    """All pairs of Hamming distances. a : (n, w), b : (m, w) packed → (n, m) int32, for small n and m."""
    if a.shape[1] != b.shape[1]:
        raise InvalidInput(f"codes of {a.shape[1]} and of {b.shape[1]} bytes have no Hamming distance.")
    differing = np.bitwise_xor(to_words(a)[:, None, :], to_words(b)[None, :, :])
    distances: npt.NDArray[np.int32] = np.bitwise_count(differing).sum(axis=2, dtype=np.int32)
    return distances


def only_for_decoder(coding: str, mu: float) -> bool:
    """Whether such codes are for the decoder alone: Hamming distances between them mean nothing."""
    return coding == "optimal" and mu == 0


def refuse_hamming(holder: str, coding: str, mu: float, remedy: str) -> None:
    """Refuse to compare such codes by Hamming distance, if that means nothing."""
    if only_for_decoder(coding, mu):
        raise InvalidInput(
            f"{holder} holds optimal codes, chosen for the decoder alone: Hamming distances between them "
            f"mean nothing. {remedy}"
        )


# ---- Codes in planes, for Hamming distances from one query to many codes (core/simd.py)
#
# Planes are (n_words, n): word w of all codes side by side, so that the loop over codes runs
# in SIMD registers for any number of words. Words have 32 bits for codes of up to 32 bits, else 64.

Planes = npt.NDArray[np.unsignedinteger[Any]]

CHUNK = 1024  # codes whose distances are taken at once: buffer and planes stay in the first-level cache


def to_planes(codes: Packed, n_bits: int) -> Planes:
    """Turn packed codes, (n, ceil(n_bits/8)), into planes: (n_words, n) uint32 or uint64, contiguous."""
    return np.ascontiguousarray(query_words(codes, n_bits).T)


def query_words(codes: Packed, n_bits: int) -> Planes:
    """Turn packed codes into rows of words, (n, n_words): uint32 up to 32 bits, above that uint64."""
    dtype = np.dtype("<u4" if n_bits <= 32 else "<u8")  # bit l is bit l of a word on any machine
    padded = np.zeros((len(codes), -(-codes.shape[1] // dtype.itemsize) * dtype.itemsize), dtype=np.uint8)
    padded[:, : codes.shape[1]] = codes
    return padded.view(dtype).astype(dtype.newbyteorder("="), copy=False)


# ---- Scaling and encoders

HARMLESS_MEAN = 8.0  # means of up to this many ranges cost 3 of float32's 24 bits, as margins allow for
MARGIN = 2.0**-20  # of the largest sum of terms: 16 roundings of float32


@dataclass(frozen=True)
class Scaling:
    """Zero mean, largest feature range 1 (section 6). One scale for all, so distances keep their order.

    mean : (D,) float64; with `normalize`, rows are first divided by their norm. lift : if it is not 0, rows
    first get a further coordinate that makes them that long, as in `lifted`, and the mean has it, too.
    """

    mean: Float64
    scale: float
    normalize: bool = False
    lift: float = 0.0

    @classmethod
    def of_file(cls, mean: npt.NDArray[Any], header: dict[str, Any], sizes: dict[str, int]) -> Scaling:
        """What a model file holds; InvalidInput if that is no scaling of rows of these sizes."""
        check_layout({"mean": mean}, "mean float64 D", sizes, "scaling.")
        scale, lift = check_positive("scale", header["scale"]), header.get("lift", 0.0)
        lift = check_positive("lift", lift) if lift else 0.0
        return cls(mean, scale, bool(header["normalize"]), lift)

    @classmethod
    def measure(cls, X: Any, workers: Workers, *, normalize: bool = False, lift: bool = False) -> Scaling:
        """Read the mean and the largest range off the rows of X; refuse what check_finite refuses.

        X : (n, D), an array, or rows that are read by slices. lift : to the length of the longest row.
        """
        check_numbers(X)
        longest = largest_norm(X, workers) or 1.0 if lift else 0.0
        extent = Extent.of(X, workers, normalize, longest)
        if not extent.is_usable:
            check_finite(X, workers)
        return extent.scaling(normalize, longest)

    @property
    def metric(self) -> str:
        """By which neighbours of rows are Euclidean neighbours once they are scaled."""
        return "inner_product" if self.lift else "cosine" if self.normalize else "euclidean"

    def apply(self, X: npt.NDArray[Any]) -> Float32:
        """Scale one block of rows; the subtraction is done in float64, so a large mean costs no digits."""
        out = np.empty((len(X), len(self.mean)), dtype=np.float32)
        self.apply_to(X, out)
        return out

    def apply_all(
        self, X: npt.NDArray[Any], workers: Workers, rows: npt.NDArray[np.integer[Any]] | None = None
    ) -> Float32:
        """Scale all rows, or these `rows` in their order, into one contiguous array."""
        out = np.empty((len(X) if rows is None else len(rows), len(self.mean)), dtype=np.float32)

        def fill(some: slice) -> None:
            self.apply_to(X[some] if rows is None else X[rows[some]], out[some])

        workers.run(fill, len(out))
        return out

    def exactly(self, X: npt.NDArray[Any]) -> Float64:
        """Scale a few rows in float64 to the end."""
        scaled: Float64 = (self._readable(X) - self.mean) / self.scale
        return scaled

    def apply_to(self, X: npt.NDArray[Any], out: Float32) -> None:
        """Scale one block of rows into `out`."""
        shift(self._readable(X), self.mean, self.scale, out)

    def _readable(self, X: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return _readable(X, self.normalize, self.lift_of(X))

    def lift_of(self, X: npt.NDArray[Any]) -> float:
        """The length that these rows are lifted to; 0 if they have the further coordinate, as queries do."""
        return self.lift if X.shape[1] < len(self.mean) else 0.0


@dataclass(frozen=True)
class Extent:
    """Smallest, largest values and sums of the columns of n rows; those of shards can be joined."""

    n: int
    low: npt.NDArray[Any]
    high: npt.NDArray[Any]
    total: Float64

    @classmethod
    def of(cls, X: Any, workers: Workers, normalize: bool = False, lift: float = 0.0) -> Extent:
        """X : (n, D), an array, or rows that are read by slices."""
        D = X.shape[1] + bool(lift)  # which is NaN if a number of X is

        def extent(rows: slice) -> tuple[npt.NDArray[Any], npt.NDArray[Any], Float64]:
            raw = X[rows]
            block = _readable(raw, normalize, lift)
            low, high, total = block[0].copy(), block[0].copy(), np.zeros(D)
            widen(block, low, high, total)
            if normalize and not acceptable(raw).all():  # a norm that overflows leaves no trace of it
                total[:] = np.nan
            return low, high, total

        low, high, total = np.full(D, np.inf), np.full(D, -np.inf), np.zeros(D)
        for block_low, block_high, block_total in workers.map(extent, X.shape[0]):
            np.minimum(low, block_low, out=low)
            np.maximum(high, block_high, out=high)
            total += block_total
        return cls(X.shape[0], low, high, total)

    def __add__(self, other: Extent) -> Extent:
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return Extent(self.n + other.n, low, high, self.total + other.total)

    @property
    def is_usable(self) -> bool:
        """NaN and infinity are in the total, what is too large is an extreme: no pass of its own for them."""
        within = self.low.min() >= -LARGEST and self.high.max() <= LARGEST
        return bool(np.isfinite(self.total).all() and within)

    def scaling(self, normalize: bool, lift: float = 0.0) -> Scaling:
        """Of rows of this extent."""
        largest_range = float((self.high - self.low).max())
        return Scaling(self.total / self.n, largest_range if largest_range > 0 else 1.0, normalize, lift)


class Encoder:
    """A learned hash function on scaled rows: bit l is 1 where score l is at least 0.

    The fields of a subclass, a frozen dataclass, are the arrays that make it up; LAYOUT says how they fit
    rows of D numbers, codes of L bits, and each other, as in check_layout.
    """

    LAYOUT: ClassVar[str]

    @classmethod
    def of_file(cls, tensors: dict[str, npt.NDArray[Any]], sizes: dict[str, int]) -> Self:
        """What a model file holds; InvalidInput if that is no such encoder of these sizes."""
        check_layout(tensors, cls.LAYOUT, sizes, "encoder.")
        return cls(**tensors)

    def scores(self, X: Float32) -> npt.NDArray[np.floating[Any]]:
        """X : (n, D) scaled → (n, L)."""
        raise NotImplementedError

    def __call__(self, X: Float32) -> npt.NDArray[np.uint8]:
        """The bits of h(X), (n, L) uint8 of 0/1."""
        return (self.scores(X) >= 0).view(np.uint8)

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """What a model file keeps of this encoder: its arrays by the names of the fields."""
        return without_derived(vars(self))


def without_derived(state: dict[str, Any]) -> dict[str, Any]:
    """What copies and files keep: what was derived (names with a _) is derived again."""
    return {name: value for name, value in state.items() if not name.startswith("_")}


@dataclass(frozen=True)
class LinearEncoder(Encoder):
    """h(x) = σ(Wx) (section 3), σ(t) = 1 for t ≥ 0, else 0. weights : (D, L) float32, bias : (L,) float32."""

    LAYOUT = "weights float32 D L; bias float32 L"

    weights: Float32
    bias: Float32

    def scores(self, X: Float32) -> Float32:
        """The L real numbers whose signs are the bits. X : (n, D) scaled → (n, L)."""
        scores = X @ self.weights
        scores += self.bias
        return scores

    def before(self, scaling: Scaling) -> RawEncoder:
        """The same encoder for rows before `scaling`; kept, as it costs more than the code of a row."""
        kept: RawEncoder | None = vars(self).get("_before")
        if kept is None or kept.scaling is not scaling:
            kept = vars(self)["_before"] = RawEncoder.of(self, scaling)
        return kept

    def __getstate__(self) -> dict[str, Any]:
        return self.tensors()  # copies and pickles derive the rest again


@dataclass(frozen=True)
class RawEncoder:
    """A linear encoder of rows before scaling: σ(xW + bias) where it could be `folded`, else of scaled rows.

    weights : (D, L), bias, margin : (L,) float32. A score within its margin of 0 may owe its sign to
    float32's rounding. exact : (L, D) float64 and exact_bias : (L,) float64 decide these, on scaled rows.
    unused : the features without weights, whose NaN need not show in scores: BLAS may leave zeros out.
    """

    scaling: Scaling
    folded: bool
    weights: Float32
    bias: Float32
    margin: Float32
    exact: Float64
    exact_bias: Float64
    unused: npt.NDArray[np.intp]

    @classmethod
    def of(cls, encoder: LinearEncoder, scaling: Scaling) -> RawEncoder:
        """Fold the scaling into the weights, unless float32 would lose too much by that.

        Scores of raw rows are differences of sums as large as the mean: their rounding grows with it,
        and with it the share of scores that have to be computed again. Scales far from 1 overflow.
        """
        W, bias = encoder.weights.astype(np.float64), encoder.bias.astype(np.float64)
        exact, exact_bias = np.ascontiguousarray(W.T), bias
        largest = np.abs(scaling.mean).max(initial=0.0)
        folded = largest <= HARMLESS_MEAN * scaling.scale
        folded = folded and 1e-18 <= scaling.scale <= 1e18 and np.abs(W).max(initial=0.0) <= 1e18
        reach = np.ones(len(W))
        if folded:
            W = W / scaling.scale
            bias = bias - scaling.mean @ W
            reach = np.abs(scaling.mean) + scaling.scale
        margin = MARGIN * (reach @ np.abs(W) + np.abs(exact_bias))
        weights = np.ascontiguousarray(W, dtype=np.float32)
        rounded = weights, bias.astype(np.float32), margin.astype(np.float32)
        unused = np.flatnonzero(~weights[: len(W) - (scaling.lift > 0)].any(axis=1))
        return cls(scaling, bool(folded), *rounded, exact, exact_bias, unused)

    @property
    def shows_all(self) -> bool:
        """Whether any number that check_finite refuses makes scores NaN or infinite; a norm may hide one."""
        return self.folded or not self.scaling.normalize

    def rows(self, X: npt.NDArray[Any]) -> Float32:
        """The float32 rows that `weights` take. X : (n, D) of any numbers."""
        if not self.folded:
            return self.scaling.apply(X)
        if self.scaling.normalize:
            rows = np.empty(X.shape, dtype=np.float32)
            divide_by_norms(_readable(X, False), np.empty(X.shape[1]), LARGEST, rows)
            return rows
        if self.scaling.lift_of(X):
            return lifted(X, self.scaling.lift).astype(np.float32)
        return X if X.dtype == np.float32 else X.astype(np.float32, order="C")


# ---- Features behind the numbers of a scaled row (core/features.py has some)


class Features(Protocol):
    """A map of scaled rows to m further numbers."""

    @property
    def width(self) -> int:
        """How many."""

    def fill(self, rows: Float32) -> None:
        """Write the features of rows behind their numbers. rows : (n, D + m), whose first D are scaled."""

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """What files keep; InvalidInput if they cannot."""

    def rescaled(self, theirs: Scaling, ours: Scaling) -> Features:
        """The same features of rows that are scaled as ours, not as theirs."""

    def encoder(self, h: LinearEncoder) -> Encoder:
        """The hash function of rows without features. h : of rows with them, weights (D + m, L)."""


def lengthened(X: Float32, features: Features | None, workers: Workers | None = None) -> Float32:
    """Scaled rows, (n, D), with their features behind them, (n, D + m); many rows in blocks on threads."""
    if features is None:
        return X
    rows = np.empty((len(X), X.shape[1] + features.width), dtype=np.float32)

    def fill(some: slice) -> None:
        rows[some, : X.shape[1]] = X[some]
        features.fill(rows[some])

    if workers is None:
        fill(slice(None))
    else:
        workers.run(fill, len(X))
    return rows


def width_of(features: Features | None) -> int:
    """How many features."""
    return 0 if features is None else features.width


# ---- The linear decoder
#
# ‖x − f(z)‖² = ‖x − b‖² − 2(x − b)ᵀ(f(z) − b) + ‖f(z) − b‖²: one offset per query, one table entry per byte
# of the code (for any decoder the middle term is a sum over bytes), one norm per code.

VALUES = 256  # of a byte
NORM_ROWS = 4096  # codes whose norms are taken at once
NORM_BITS = 2**22  # of these codes: 32 MB of float64


class BaseDecoder:
    """What all decoders share."""

    LAYOUT: ClassVar[str]  # as in Encoder
    b: Float64  # the reconstruction of a code to which no byte contributes, (D,)
    normalize: bool
    lift: float  # of the rows that it reconstructs, as in Scaling
    mu: float | None  # of the optimal codes that it is fitted to; None: it is fitted to hash codes
    steady = False  # whether rough_tables of a row are the same to the last bit whatever rows are beside it

    def centred(self, X: npt.NDArray[Any]) -> Float64:
        """X − b, for queries X as f reconstructs rows."""
        return decoded_rows(X, self.normalize, self.lift) - self.b

    @property
    def n_features(self) -> int:
        """The numbers of a query."""
        return len(self.b) - (self.lift > 0)

    @property
    def coding(self) -> str:
        """The codes that it is for: "hash" or "optimal"."""
        return "hash" if self.mu is None else "optimal"

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """What a model file keeps of this decoder."""
        raise NotImplementedError

    @cached_property
    def _reach(self) -> float:
        return max(
            float(np.abs(each).max()) for name, each in self.tensors().items() if name in ("A", "tables")
        )

    @property
    def reach(self) -> float:
        """The largest magnitude among the numbers that are added to b."""
        return self._reach

    def expected(self, codes: Packed) -> Float64:
        """The ‖x − f(z)‖² that search expects of rows with these codes, (n, M) → (n,); 0: it is not known."""
        return np.zeros(len(codes))

    def query_offsets(self, X: npt.NDArray[Any]) -> Float32:
        """‖x − b‖²: with a code's entries of the tables and its norm it makes ‖x − f(z)‖². → (q,) float32."""
        return squared_lengths(self.centred(X))

    def __getstate__(self) -> dict[str, Any]:
        return without_derived(vars(self))


@dataclass(frozen=True)
class LinearDecoder(BaseDecoder):
    """f(z) = Az + b. A : (D, L) float64, b : (D,) float64; `normalize`: of rows divided by their norms."""

    LAYOUT = "A float64 D L; b float64 D"

    A: Float64
    b: Float64
    normalize: bool = False
    mu: float | None = None
    lift: float = 0.0

    @property
    def n_bits(self) -> int:
        """L, the bits per code."""
        return int(self.A.shape[1])

    @property
    def hash_bits(self) -> int:
        """Of the codes of h beside it."""
        return self.n_bits

    def __call__(self, Z: npt.NDArray[np.uint8]) -> Float64:
        """The reconstruction f(Z) of each row of bits, (n, D)."""
        return Z @ self._rows + self.b

    def decode(self, codes: Packed) -> Float64:
        """The reconstruction of packed codes, (n, ceil(L/8)) → (n, D)."""
        return self(unpack(codes, self.n_bits))

    def in_units_of(self, scaling: Scaling) -> LinearDecoder:
        """The same decoder for data before `scaling`."""
        b = self.b * scaling.scale + scaling.mean
        return LinearDecoder(self.A * scaling.scale, b, scaling.normalize, lift=scaling.lift)

    def in_scale_of(self, scaling: Scaling) -> LinearDecoder:
        """Undo `in_units_of`."""
        return LinearDecoder(self.A / scaling.scale, (self.b - scaling.mean) / scaling.scale)

    def query_tables(self, X: npt.NDArray[Any]) -> Float32:
        """−2(x − b)ᵀAz for each query and each value of each byte of z. X : (q, D) → (q, ceil(L/8), 256)."""
        tables = np.empty((len(X), bytes_per_code(self.n_bits), VALUES), dtype=np.float32)
        self.rough_tables(self.centred(X), tables)
        return tables

    def rough_tables(self, rows: Float64, out: Float32) -> None:
        """The same of rows without b, (q, D), into (q, ceil(L/8), 256)."""
        terms = np.zeros((len(rows), out.shape[1] * 8))
        terms[:, : self.n_bits] = -2 * (rows @ self.A)
        sums_of_subsets(terms.reshape(-1, 8), out.reshape(-1, VALUES))

    def squared_norms(self, codes: Packed) -> Float32:
        """‖f(z) − b‖² of packed codes, (n, ceil(L/8)) → (n,) float32."""
        D, L = self.A.shape
        gram = self.A.T @ self.A if L <= D else None  # with more bits than dimensions Az itself is cheaper
        out = np.empty(len(codes), dtype=np.float32)
        step = max(1, min(NORM_ROWS, NORM_BITS // L))
        for start in range(0, len(codes), step):
            Z = unpack(codes[start : start + step], L).astype(np.float64)
            if gram is None:
                out[start : start + step] = squared_lengths(Z @ self._rows)
            else:
                out[start : start + step] = np.einsum("nl,nl->n", Z @ gram, Z)
        return out

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """What a model file keeps of this decoder."""
        return {"A": self.A, "b": self.b}

    @cached_property
    def _rows(self) -> Float64:
        return np.ascontiguousarray(self.A.T)


def squared_lengths(rows: Float64) -> Float32:
    """‖x‖² of each row, (n,)."""
    lengths: Float64 = np.einsum("nd,nd->n", rows, rows)
    return lengths.astype(np.float32)


# ---- Rows as scaling and decoders take them


def decoded_rows(X: npt.NDArray[Any], normalize: bool, lift: float = 0.0) -> Float64:
    """Queries as a decoder reconstructs rows: float64, divided by norms or lifted if the hasher does so."""
    rows = np.asarray(X, dtype=np.float64)
    if lift:
        return lifted_queries(rows, lift)
    return _readable(rows, normalize) if normalize else rows


def _readable(X: npt.NDArray[Any], normalize: bool, lift: float = 0.0) -> npt.NDArray[Any]:
    """A block of rows as the kernels take it: its own numbers if they are of a common type."""
    common = X.dtype in (np.float32, np.float64, np.uint8)
    with np.errstate(over="ignore"):  # what float64 cannot hold becomes inf, which is refused
        block: npt.NDArray[Any] = np.ascontiguousarray(X, dtype=None if common else np.float64)
    if lift:
        return lifted(block, lift)
    if not normalize:
        return block
    unit = np.empty(X.shape)
    divide_by_norms(block, np.empty(X.shape[1]), np.inf, unit)
    return unit


# ---- Inner products as Euclidean distances: rows get one more coordinate
#
# For rows of one length M, ‖q − x‖² = ‖q‖² + M² − 2qᵀx falls as the inner product grows. Queries have 0 in
# the new place, so that it adds nothing to the product.


def largest_norm(X: Any, workers: Workers) -> float:
    """The largest ‖x‖ of the rows. X : (n, D), an array, or rows that are read by slices."""
    return float(max(workers.map(lambda rows: row_norms(X[rows]).max(initial=0.0), len(X)), default=0.0))


def row_norms(X: npt.NDArray[Any]) -> Float64:
    """‖x‖ of each row of a block, (n,), of which the squares neither overflow nor vanish."""
    norms = np.empty(len(X))
    measure_norms(_readable(X, False), norms)
    return norms


def lifted(X: npt.NDArray[Any], length: float) -> Float64:
    """Rows with a further coordinate that gives them the length, 0 for longer ones. (n, D) → (n, D + 1)."""
    out = np.empty((len(X), X.shape[1] + 1))
    out[:, :-1] = X
    share = np.minimum(row_norms(X) / length, 1.0)
    out[:, -1] = length * np.sqrt((1 - share) * (1 + share))
    return out


def lifted_queries(X: npt.NDArray[Any], length: float) -> Float64:
    """Queries of the length of lifted rows, with 0 in the place of the further coordinate.

    Their own length changes no order of products; by codes, a much shorter query would be nearest to the
    shortest reconstructions, whatever their direction.
    """
    norms = row_norms(X)
    out = np.zeros((len(X), X.shape[1] + 1))
    out[:, :-1] = X / np.where(norms > 0, norms, 1.0)[:, None] * length
    return out


# ---- From rows to packed codes: scores, thresholds and packing in one pass over blocks
#
# A linear encoder's scores are one product in float32, of the rows as they are. What float32 cannot tell
# from 0 is computed again in float64, in one fixed order: so the code of a row depends on nothing but the
# row, not on the rows beside it, the number of threads, the type of the array or its layout. (Margins are
# wide enough for rows like those of fit; rows far away from these have larger scores too.)

CACHED_ROWS = 1024  # whose scores stay in the cache until they are packed
# Products of up to this many terms OpenBLAS computes on one thread by itself. A few of them take less time
# than limiting its threads would, and none waits for a core that is busy.
ONE_THREAD, FEW = 2**18, 4


def encode(
    X: npt.NDArray[Any], encoder: Encoder, scaling: Scaling, n_bits: int, n_jobs: int | None
) -> Packed:
    """The packed code of each row. X : (n, D) as the user gave it → (n, ceil(n_bits/8)) uint8."""
    check_numbers(X)
    jobs, out = resolve_n_jobs(n_jobs), np.empty((len(X), bytes_per_code(n_bits)), dtype=np.uint8)
    if isinstance(encoder, LinearEncoder):
        raw = encoder.before(scaling)
        at_once = min(ONE_THREAD // raw.weights.size, CACHED_ROWS)
        if raw.shows_all and len(X) <= FEW * at_once and encode_block(X, raw, out, at_once):
            return out
    with Workers(jobs if len(X) > BLOCK_ROWS else 1) as workers:
        encode_into(out, X, encoder, scaling, workers)
    return out


def encode_into(
    out: Packed, X: npt.NDArray[Any], encoder: Encoder, scaling: Scaling, workers: Workers
) -> None:
    """Write the packed code of each row to `out`, or raise what check_finite raises."""
    raw = encoder.before(scaling) if isinstance(encoder, LinearEncoder) else None
    if raw is None or not raw.shows_all:
        check_finite(X, workers)

    def fill(rows: slice) -> bool:
        if raw is not None:
            return encode_block(X[rows], raw, out[rows])
        out[rows] = pack_bools(encoder.scores(scaling.apply(X[rows])) >= 0)
        return True

    for finite in workers.map(fill, len(X)):
        if not finite:
            check_finite(X, workers)


def encode_block(X: npt.NDArray[Any], encoder: RawEncoder, out: Packed, at_once: int = CACHED_ROWS) -> bool:
    """Write the packed codes of one block of rows. False: a number is not finite, and `out` means nothing.

    A NaN or an infinity among the numbers of a row makes its scores NaN or infinite, which need no pass
    of their own: they are in doubt like scores near 0, and only rows in doubt are checked again.
    """
    if len(encoder.unused) and not acceptable(X[:, encoder.unused]).all():
        return False
    scores = np.empty((min(len(X), at_once), len(encoder.bias)), dtype=np.float32)
    doubtful, doubts, n_doubtful = np.empty(len(X), dtype=np.intp), np.empty_like(out), 0
    bias, margin = encoder.bias, encoder.margin
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(X), at_once):
            rows = encoder.rows(X[start : start + at_once])
            some = np.dot(rows, encoder.weights, out=scores[: len(rows)])
            n_doubtful = threshold(some, bias, margin, start, out, doubtful, doubts, n_doubtful)
    if n_doubtful:
        again = X[doubtful[:n_doubtful]]
        if not acceptable(again).all():
            return False
        exact = encoder.scaling.exactly(again)
        settle(exact, encoder.exact, encoder.exact_bias, doubtful[:n_doubtful], doubts, out)
    return True


# ---- Kernels


@late_kernel
def widen(X: npt.NDArray[Any], low: npt.NDArray[Any], high: npt.NDArray[Any], total: Float64) -> None:
    """Widen low and high to the rows of X and add these to the total, in float64, row after row."""
    for row in range(X.shape[0]):
        for d in range(X.shape[1]):
            x = X[row, d]
            low[d] = x if x < low[d] else low[d]
            high[d] = x if x > high[d] else high[d]
            total[d] += x


@late_kernel
def shift(X: npt.NDArray[Any], mean: Float64, scale: float, out: Float32) -> None:
    """(X - mean) / scale in float64, rounded once: as fast as memory is, so float32 would gain nothing."""
    for row in range(X.shape[0]):
        for d in range(X.shape[1]):
            out[row, d] = (X[row, d] - mean[d]) / scale


@late_kernel
def dot(x: Float64, y: Float64) -> float:
    """The inner product in one fixed order, as four sums, which a processor adds at a time."""
    a = b = c = d = 0.0
    whole = len(x) - len(x) % 4
    for i in range(0, whole, 4):
        a += x[i] * y[i]
        b += x[i + 1] * y[i + 1]
        c += x[i + 2] * y[i + 2]
        d += x[i + 3] * y[i + 3]
    for i in range(whole, len(x)):
        a += x[i] * y[i]
    return (a + b) + (c + d)


LEAST_NORM = 1e-150  # whose square float64 can hold


@late_kernel
def norm_of(x: npt.NDArray[Any]) -> float:
    """‖x‖ of a row, in units of its largest number: squares neither overflow nor vanish."""
    largest = 0.0
    for d in range(len(x)):
        largest = max(largest, abs(np.float64(x[d])))
    unit, total = largest if largest > 0 else 1.0, 0.0
    for d in range(len(x)):
        share = x[d] / unit
        total += share * share
    measured: float = largest * np.sqrt(total)
    return measured


@late_kernel
def divide_by_norms(X: npt.NDArray[Any], row64: Float64, limit: float, out: npt.NDArray[Any]) -> None:
    """Divide each row by its norm, unless that is 0; beyond the limit to NaN, lest it hide what is wrong."""
    for row in range(X.shape[0]):
        for d in range(X.shape[1]):
            row64[d] = X[row, d]
        norm = np.sqrt(dot(row64, row64))
        if norm < LEAST_NORM:
            norm = norm_of(row64)
            norm = norm if norm > 0 else 1.0
        elif not norm <= limit:
            norm = np.nan
        for d in range(X.shape[1]):
            out[row, d] = row64[d] / norm


@late_kernel
def measure_norms(X: npt.NDArray[Any], out: Float64) -> None:
    """‖x‖ of each row, (n,)."""
    for row in range(X.shape[0]):
        out[row] = norm_of(X[row])


# a factor that moves the lowest bit of byte k of a word to bit k of the highest byte
GATHER = np.uint64(0x0102040810204080 if sys.byteorder == "little" else 0x8040201008040201)
HIGHEST = np.uint64(56)


@late_kernel
def threshold(
    scores: Float32,
    bias: Float32,
    margin: Float32,
    start: int,
    out: Packed,
    doubtful: npt.NDArray[np.intp],
    doubts: Packed,
    n_doubtful: int,
) -> int:
    """Pack the signs of scores + bias into the rows of `out` from `start` on.

    Appends the rows that have a score within its margin of 0, or none that is finite, to `doubtful`, and
    to `doubts` which bits these are, packed; returns how many there are by then.
    """
    n_bits, width = scores.shape[1], out.shape[1]
    bits, unsure = np.zeros(8 * width, dtype=np.uint8), np.zeros(8 * width, dtype=np.uint8)
    words, unsure_words = bits.view(np.uint64), unsure.view(np.uint64)
    for row in range(scores.shape[0]):
        sure = True
        for bit in range(n_bits):
            score = scores[row, bit] + bias[bit]
            bits[bit] = score >= 0
            sure &= (abs(score) >= margin[bit]) & (abs(score) <= LARGEST_FLOAT32)
        for byte in range(width):
            out[start + row, byte] = (words[byte] * GATHER) >> HIGHEST
        if not sure:
            for bit in range(n_bits):
                size = abs(scores[row, bit] + bias[bit])
                unsure[bit] = not ((size >= margin[bit]) & (size <= LARGEST_FLOAT32))
            for byte in range(width):
                doubts[n_doubtful, byte] = (unsure_words[byte] * GATHER) >> HIGHEST
            doubtful[n_doubtful] = start + row
            n_doubtful += 1
    return n_doubtful


@late_kernel
def settle(
    X: Float64, W: Float64, bias: Float64, rows: npt.NDArray[np.intp], doubts: Packed, out: Packed
) -> None:
    """Decide the bits in doubt in float64. X : (m, D) scaled, W : (L, D); row i of X is rows[i] of `out`."""
    for i in range(len(rows)):
        for bit in range(len(W)):
            byte, mask = bit // 8, 1 << bit % 8
            if doubts[i, byte] & mask:
                score = dot(X[i], W[bit]) + bias[bit]
                out[rows[i], byte] = out[rows[i], byte] | mask if score >= 0 else out[rows[i], byte] & ~mask


@late_kernel
def sums_of_subsets(terms: Float64, out: Float32) -> None:
    """The sum of the terms, (n, 8), that each value of a byte has a bit for, (n, 256)."""
    sums = np.zeros(out.shape[1])
    for row in range(len(terms)):
        for bit in range(8):
            n = 1 << bit
            for value in range(n):
                sums[n + value] = sums[value] + terms[row, bit]
        for value in range(len(sums)):
            out[row, value] = sums[value]
