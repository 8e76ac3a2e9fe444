"""The best codes for a decoder: min ‖x − f(z)‖² + μ‖z − h(x)‖² per row, not only near h(x) as in the Z step.

μ is a dial: 0 takes the code that reconstructs a row best (quantisation), a large one h(x) itself (hashing).
What is found for a row depends on the row alone: every sum runs in an order of its own, every choice that
could be random is the same for all rows.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from auxbit.core.checks import Float32, Float64, Packed
from auxbit.core.decoders import Decoder, ListDecoder, TableDecoder, byte_contributions
from auxbit.core.maps import VALUES, LinearDecoder, pack_bools, unpack
from auxbit.core.parallel import Workers
from auxbit.errors import InvalidParameter
from auxbit.quantiser import kernels
from auxbit.quantiser.kernels import Panels, row_products, tile_products, to_panels
from auxbit.quantiser.lists import Centroids

# ---- The best codes for a decoder of tables, f(z) = b + Σ_j T_j[byte j of z]: additive quantisation
#
# With one or two bytes all values are tried; with more tabu search changes one byte at a time. It reads
# what values of two bytes cost each other, M²·256² numbers; beyond PAIRED_BYTES bytes these are too many for
# the cache, and that many bytes at a time are searched for what the others leave of the row.

PAIRED_BYTES = 16  # 34 MB of pairs
EXACT_BYTES = 2
LARGEST_COST = 32_500.0  # in whole numbers, of a byte's pairs together, from the lowest to the highest
COARSE = 64.0  # whole numbers per byte, below which their rounding tells in what codes leave of a row
SMALLEST_PAIR = 1e-30  # whose inverse float32 can hold
STEPS_PER_BYTE, LEAST_STEPS, MOST_STEPS = 8, 50, 80  # of tabu search, for each row
TOGETHER = 64  # rows whose costs are made together


def values_of_bytes(n_bits: int, width: int) -> npt.NDArray[np.int64]:
    """How many values each byte of a code can have, (M,)."""
    values = np.full(width, VALUES, dtype=np.int64)
    values[-1] = 1 << (n_bits - 8 * (width - 1))
    return values


class Coder:
    """Codes for one decoder and one μ; `solve` may be called from several threads."""

    block_rows = 256  # that are best solved together

    def solve(self, X: Any, H: Packed, start: Packed) -> Packed:
        """X : (n, D) scaled, H : (n, M) h(x), start : (n, M) codes not to be worse than → (n, M)."""
        raise NotImplementedError


class ExactTableCoder(Coder):
    """Codes of at most two bytes that minimise ‖x − f(z)‖² + μ‖z − h(x)‖², in float64, by trying them all.

    columns : (D, M·256) the tables' vectors; norms : (M·256,) their squares; pairs : (256, 256).
    """

    def __init__(self, tables: Float64, b: Float64, n_bits: int, mu: float) -> None:
        """Prepare what all rows share. tables : (M, 256, D) float64, M at most 2."""
        flat = tables.reshape(-1, tables.shape[2])
        self.b, self.mu, self.n_values = b, mu, values_of_bytes(n_bits, len(tables))
        self.columns, self.norms = np.ascontiguousarray(flat.T), np.einsum("vd,vd->v", flat, flat)
        self.pairs = 2 * (tables[0] @ tables[-1].T)

    def solve(self, X: Float32 | Float64, H: Packed, start: Packed) -> Packed:
        """The codes of a block of rows; start is not needed."""
        products = np.empty((len(X), self.columns.shape[1]))
        row_products(X, self.b, self.columns, products)
        U = costs_by_themselves(products, self.norms, H, self.mu)
        Z = np.empty_like(H)
        if H.shape[1] == 1:
            Z[:, 0] = U[:, 0, : self.n_values[0]].argmin(axis=1)
        else:
            kernels.enumerate_two(U, self.pairs, self.n_values, Z)
        return Z


class TableCoder(Coder):
    """Codes with a low ‖x − f(z)‖² + μ‖z − h(x)‖², of scaled rows, by tabu search.

    panels : the tables' vectors as columns; norms : (M·256,) their squares; pairs, limits, unit as
    `pairs_in_whole_numbers` gives them.
    """

    def __init__(self, tables: Float64, b: Float64, n_bits: int, mu: float, effort: float = 1.0) -> None:
        """Prepare what all rows share. tables : (M, 256, D) float64; steps of search by effort."""
        M, _, D = tables.shape
        self.b, self.mu, self.tables = b.astype(np.float32), mu, tables.astype(np.float32)
        flat, self.n_values = tables.reshape(M * VALUES, D), values_of_bytes(n_bits, M)
        self.panels: Panels = to_panels(flat.T)
        self.norms = np.einsum("vd,vd->v", flat, flat)
        for j, n in enumerate(self.n_values):
            self.norms[j * VALUES + n : (j + 1) * VALUES] = np.inf  # never chosen
        self.pairs, self.limits, unit = pairs_in_whole_numbers(tables, self.n_values)
        self.unit, self.exact = np.float32(unit), COARSE * M / unit
        self.n_steps = round(min(max(STEPS_PER_BYTE * M, LEAST_STEPS), MOST_STEPS) * effort)

    def solve(self, X: Float32, H: Packed, start: Packed) -> Packed:
        """The codes of some rows."""
        products = tile_products(X - self.b, self.panels)
        U = costs_by_themselves(products, self.norms.astype(np.float32), H, self.mu)
        Z = start.copy()
        whole = np.empty((min(len(X), TOGETHER), len(self.norms)), dtype=np.int16)
        for first in range(0, len(X), TOGETHER):
            some = slice(first, min(first + TOGETHER, len(X)))
            W, z = whole[: some.stop - first], Z[some]
            kernels.in_whole_numbers(U[some], self.limits, self.n_values, self.unit, W)
            kernels.search_bytes(W, self.pairs, self.n_steps, z)
            kernels.keep_better(W, self.pairs, X[some], self.b, self.tables, H[some], self.mu, start[some], z)
        kernels.settle_bytes(X, self.b, self.tables, self.panels, self.norms, H, self.mu, self.exact, Z)
        return Z


class WideTableCoder(Coder):
    """As TableCoder, for codes of more bytes: a part of them at a time, for what the others leave of a row.

    apart : vectors of different parts are orthogonal, so that no part has to do with another.
    """

    def __init__(self, tables: Float64, b: Float64, n_bits: int, mu: float, effort: float = 1.0) -> None:
        """A coder for each part of the bytes. tables : (M, 256, D) float64."""
        self.b, self.mu, self.tables, M = b, mu, tables.astype(np.float32), len(tables)
        parts = independent_parts(tables)
        self.apart = len(parts) > 1
        self.parts = []
        for own in parts if self.apart else np.array_split(np.arange(M), -(-M // PAIRED_BYTES)):
            bits = 8 * len(own) - (8 * M - n_bits if own[-1] == M - 1 else 0)
            part = np.ascontiguousarray(tables[own])
            self.parts.append((own, table_coder(part, np.zeros_like(b), bits, mu, effort)))

    def solve(self, X: Float32, H: Packed, start: Packed) -> Packed:
        """The codes of some rows."""
        rows = np.asarray(X - self.b, dtype=np.float32)
        Z, rest = self._first(rows, H, start)
        if not self.apart:
            left = rows - self._stored(np.arange(len(self.tables)), start)
            Z, rest = self._better(H, start, left, Z, rest)
            self._improve(H, Z, rest)
        return Z

    def _first(self, rows: Float32, H: Packed, start: Packed) -> tuple[Packed, Float32]:
        """Codes part by part, each for what those before it leave, and what all leave of the rows."""
        Z, rest = np.empty_like(H), rows.copy()
        for own, coder in self.parts:
            Z[:, own] = coder.solve(rest, _bytes_of(H, own), _bytes_of(start, own))
            if not self.apart:
                rest -= self._stored(own, Z)
        return Z, rest

    def _improve(self, H: Packed, Z: Packed, rest: Float32) -> None:
        """Each part again, beside the others. rest : what the codes leave of the rows."""
        for own, coder in self.parts:
            rest += self._stored(own, Z)
            Z[:, own] = coder.solve(rest, _bytes_of(H, own), _bytes_of(Z, own))
            rest -= self._stored(own, Z)

    def _stored(self, own: npt.NDArray[np.intp], Z: Packed) -> Float32:
        """What the tables of some bytes add up to."""
        total = np.zeros((len(Z), self.tables.shape[2]), dtype=np.float32)
        for j in own:
            total += self.tables[j, Z[:, j]]
        return total

    def _better(
        self, H: Packed, start: Packed, left: Float32, Z: Packed, rest: Float32
    ) -> tuple[Packed, Float32]:
        """The better of two codes of each row, the start and Z, which leave `left` and `rest` of it."""
        before = np.square(left).sum(axis=1) + self.mu * np.bitwise_count(start ^ H).sum(axis=1)
        now = np.square(rest).sum(axis=1) + self.mu * np.bitwise_count(Z ^ H).sum(axis=1)
        better = (before < now)[:, None]
        return np.where(better, start, Z), np.where(better, left, rest)


class ErrorCoder(Coder):
    """Codes of which the decoder's error_bits tell how much the other bits leave of a row."""

    def __init__(self, f: TableDecoder, mu: float, effort: float) -> None:
        """A coder for the other bits."""
        self.f = f
        self.coder = table_coder(f.tables.astype(np.float64), f.b, f.n_bits - f.error_bits, mu, effort)

    def solve(self, X: Float32, H: Packed, start: Packed) -> Packed:
        """The codes of some rows."""
        Z = self.coder.solve(X, self._without(H), self._without(start))
        return with_error_bits(self.f, Z, np.square(X - self.f.decode(Z)).sum(axis=1))

    def _without(self, codes: Packed) -> Packed:
        kept = codes.copy()
        kept[:, -1] &= (1 << self.f.error_place) - 1
        return kept


def with_error_bits(f: TableDecoder, codes: Packed, errors: npt.NDArray[np.floating[Any]]) -> Packed:
    """The codes with f's error_bits set, so that the error f expects is nearest to that of the row, (n,)."""
    levels = np.arange(1 << f.error_bits, dtype=np.uint8) << f.error_place
    apart = np.empty((len(codes), len(levels)))
    for number, level in enumerate(levels):
        tried = codes.copy()
        tried[:, -1] |= level
        apart[:, number] = np.abs(errors - f.errors_of(tried))
    told = codes.copy()
    told[:, -1] |= levels[apart.argmin(axis=1)]
    return told


def _bytes_of(codes: Packed, own: npt.NDArray[np.intp]) -> Packed:
    return np.ascontiguousarray(codes[:, own])


PROBES, ORTHOGONAL = 8, 1e-4


def independent_parts(tables: Float64) -> list[npt.NDArray[np.intp]]:
    """The bytes in parts, so that vectors of different parts are orthogonal; often it is one part.

    Told by a few random sums of each table's vectors: they are orthogonal if all vectors are, and if not,
    only by a chance that does not come.
    """
    M = len(tables)
    probes = np.random.RandomState(0).standard_normal((M, PROBES, VALUES)) @ tables
    norms = np.linalg.norm(probes, axis=2)
    products = np.abs(np.einsum("iad,jbd->iajb", probes, probes, optimize=True))
    joined = (products > ORTHOGONAL * norms[:, :, None, None] * norms[None, None]).any(axis=(1, 3))
    _, label = connected_components(csr_matrix(joined))
    return [np.flatnonzero(label == each) for each in range(label.max() + 1)] if M else []


class ListCoder(Coder):
    """Codes of what is left of rows, behind the numbers of their lists."""

    def __init__(self, f: ListDecoder, inner: Coder, fine: Coder | None) -> None:
        """With a coder for what is left of rows, and for what that leaves, if it is coded again."""
        self.f, self.inner, self.fine, self.centroids = f, inner, fine, Centroids(f.centroids)

    def solve(self, X: Float32, H: Packed, start: Packed) -> Packed:
        """The codes of some rows; H and start have no list's number."""
        owners = self.centroids.nearest(X)
        left = X - self.f.centres[owners]
        codes = self.inner.solve(left, H, start)
        if self.fine is None or self.f.fine is None:
            return self.f.joined(owners, codes)
        left = (left - self.f.inner.decode(codes)).astype(np.float32)
        nothing = np.zeros((len(X), len(self.f.fine.tables)), dtype=np.uint8)
        return self.f.joined(owners, codes, self.fine.solve(left, nothing, nothing))


def table_coder(tables: Float64, b: Float64, n_bits: int, mu: float, effort: float) -> Coder:
    """The coder for tables, (M, 256, D) float64, by the number of bytes."""
    if len(tables) <= EXACT_BYTES:
        return ExactTableCoder(tables, b, n_bits, mu)
    if len(tables) <= PAIRED_BYTES:
        return TableCoder(tables, b, n_bits, mu, effort)
    return WideTableCoder(tables, b, n_bits, mu, effort)


def costs_by_themselves(
    products: npt.NDArray[np.floating[Any]], norms: Any, H: Packed, mu: float
) -> npt.NDArray[np.floating[Any]]:
    """‖T_j[v]‖² − 2⟨x − b, T_j[v]⟩ + μ·(bits in which v differs from byte j of h), (n, M, 256).

    products : (n, M·256), ⟨x − b, T_j[v]⟩, which is overwritten.
    """
    products *= -2
    products += norms
    costs = products.reshape(len(products), -1, VALUES)
    if mu:
        kernels.add_mismatches(costs, H, mu)
    return costs


def pairs_in_whole_numbers(
    tables: Float64, n_values: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int16], Float32, float]:
    """2⟨T_i[u], T_j[v]⟩ as whole numbers, (M, 256, M·256) int16 at [i, u, 256j + v], 0 where i = j.

    Also how far apart the costs of a byte's values by themselves may lie before what other bytes cost
    can no longer make up for it, (M,), and the whole numbers that a unit of cost has.
    A constant is taken from each two tables' products, which changes no comparison of codes.
    """
    M = len(n_values)
    middle, spread = np.zeros((M, M)), np.zeros((M, M))
    T, products = tables.astype(np.float32), {}
    for j in range(M):
        for i in range(j):
            products[i, j] = 2 * (T[i, : n_values[i]] @ T[j, : n_values[j]].T)
            low, high = float(products[i, j].min()), float(products[i, j].max())
            middle[i, j], spread[i, j] = (low + high) / 2, high - low
    spread += spread.T
    limits = spread.sum(axis=1)
    largest = float(limits.max())
    unit = LARGEST_COST / largest if largest > SMALLEST_PAIR else 1.0
    pairs = np.zeros((M, VALUES, M, VALUES), dtype=np.int16)
    for (i, j), product in products.items():
        whole = np.rint((product - middle[i, j]) * unit).astype(np.int16)
        pairs[i, : n_values[i], j, : n_values[j]] = whole
        pairs[j, : n_values[j], i, : n_values[i]] = whole.T
    return pairs.reshape(M, VALUES, M * VALUES), (limits * 1.001).astype(np.float32), unit


# ---- The best codes for a linear decoder, and for either kind

STEPS_PER_BIT, LEAST_BIT_STEPS, MOST_BIT_STEPS = 12, 400, 1500  # of tabu search, for each row
LARGEST_MU = 1e12
SMALLEST_COST = 1e-200  # whose inverse can be multiplied with
FARTHEST = 1e9  # coordinate of a scaled row; sums of squares stay finite in float32
LARGEST_BIT_COST = 2.0**28  # of a bit by itself, in whole numbers; with all couplings below 2^30


def check_mu(mu: object) -> float:
    """Return μ as a float that is finite and not negative."""
    if isinstance(mu, bool) or not isinstance(mu, Real) or not 0.0 <= float(mu) <= LARGEST_MU:
        allowed = f"a number from 0 (free codes) to {LARGEST_MU:g}"
        raise InvalidParameter("mu", mu, allowed, "At 1e3 codes are those of h for all but far rows.")
    return float(mu)


def coder_of(f: Decoder, mu: float, effort: float = 1.0) -> Coder:
    """The coder for a decoder of scaled rows; a lower effort takes less time. Exact to 16 bits."""
    if isinstance(f, ListDecoder):
        fine = None if f.fine is None else coder_of(f.fine, 0.0, effort)
        return ListCoder(f, coder_of(f.inner, mu, effort), fine)
    if isinstance(f, LinearDecoder):
        if f.n_bits > 8 * EXACT_BYTES:
            return LinearCoder(f, mu, effort)
        return ExactLinearCoder(f, mu)
    if f.error_bits:
        return ErrorCoder(f, mu, effort)
    return table_coder(f.tables.astype(np.float64), f.b, f.n_bits, mu, effort)


def within_reach(X: Float32) -> Float32:
    """Scaled rows with coordinates that can be computed with: those of fit lie within 1 of each other."""
    return np.clip(X, -FARTHEST, FARTHEST)


def optimal_codes(X: Float32, H: Packed, start: Packed, coder: Coder, workers: Workers) -> Packed:
    """The coder's codes of all rows. X : (n, D) scaled, H, start : (n, M) → (n, M)."""
    out = np.empty_like(H)

    def fill(rows: slice) -> None:
        out[rows] = coder.solve(X[rows], H[rows], start[rows])

    workers.run(fill, len(X), coder.block_rows)
    return out


class ExactLinearCoder(Coder):
    """All codes of at most 16 bits are tried, on y = Qᵀ(x − b) for A = QR: L numbers per row instead of D."""

    def __init__(self, f: LinearDecoder, mu: float) -> None:
        """Prepare what all rows share."""
        Q, R = np.linalg.qr(f.A)
        self.b, self.Q, zero = f.b, np.ascontiguousarray(Q), np.zeros(len(R))
        values = byte_contributions(LinearDecoder(R, zero))
        self.inner = ExactTableCoder(values, zero, f.n_bits, mu)

    def solve(self, X: Float32, H: Packed, start: Packed) -> Packed:
        """The codes of some rows; start is not needed."""
        Y = np.empty((len(X), self.Q.shape[1]))
        kernels.row_products(X, self.b, self.Q, Y)
        return self.inner.solve(Y, H, start)


class LinearCoder(Coder):
    """Tabu search from the better of two starts, then single and pairwise flips in float64.

    A : (D, L), G : (L, L) AᵀA + μI, free : (L, L) its pseudo-inverse, which leads to the best real code;
    couplings : (L, L) int32, 2AᵀA less its diagonal, in whole multiples of `place`, `unit` a unit of cost;
    reach : (L,) what all other bits can change of a bit's cost.
    """

    def __init__(self, f: LinearDecoder, mu: float, effort: float = 1.0) -> None:
        """Prepare what all rows share."""
        gram, L = f.A.T @ f.A, f.n_bits
        self.b, self.A, self.mu, self.G = f.b, f.A, mu, gram + mu * np.eye(L)
        couplings = 2 * gram
        np.fill_diagonal(couplings, 0.0)
        # a bit whose cost alone is beyond what all others can add or take is decided by it
        self.reach = 1.001 * np.abs(couplings).sum(axis=1)
        largest = float(self.reach.max())
        self.place = 1 << (L - 1).bit_length()
        self.unit = LARGEST_BIT_COST / self.place / largest if largest > SMALLEST_COST else 1.0
        self.couplings = np.rint(couplings * self.unit).astype(np.int32) * np.int32(self.place)
        self.n_steps = max(L, round(min(max(STEPS_PER_BIT * L, LEAST_BIT_STEPS), MOST_BIT_STEPS) * effort))
        self.free = np.asarray(np.linalg.pinv(self.G, rcond=1e-10, hermitian=True), dtype=np.float64)

    def solve(self, X: Float32, H: Packed, start: Packed) -> Packed:
        """The codes of some rows."""
        n, L = len(X), len(self.G)
        bits = unpack(H, L)
        C = np.empty((n, L))
        kernels.row_products(X, self.b, self.A, C)
        alone = self.G.diagonal() - self.mu - 2 * C  # what setting a bit costs, if no other is set
        alone += self.mu * (1.0 - 2.0 * bits)
        C += self.mu * bits
        starts = np.empty((n, 2, L), dtype=np.uint8)
        relaxed = np.empty((n, L))
        kernels.row_products(C, np.zeros(L), self.free, relaxed)
        starts[:, 0], starts[:, 1] = unpack(start, L), relaxed > 0.5
        np.clip(alone, -self.reach, self.reach, out=alone)
        whole = np.rint(alone * self.unit).astype(np.int32) * np.int32(self.place)
        Z = np.empty((n, L), dtype=np.uint8)
        kernels.tabu_search(self.couplings, whole, starts, self.n_steps, Z)
        kernels.settle(self.G, C, starts[:, 0], Z)
        return pack_bools(Z)
