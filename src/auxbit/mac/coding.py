"""The best codes for a decoder: min ‖x − f(z)‖² + μ‖z − h(x)‖² a row, not only near h(x) as in the Z step.

μ is a dial: 0 takes the code that reconstructs a row best (quantisation), a large one h(x) itself (hashing).
What is found for a row depends on the row alone: every sum runs in an order of its own, every choice that
could be random is the same for all rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Protocol

import numpy as np
import numpy.typing as npt

from auxbit.blocks import Workers
from auxbit.codes import Packed, pack_bools, unpack
from auxbit.decoders import Decoder, LinearDecoder, TableDecoder, byte_contributions
from auxbit.errors import InvalidParameter
from auxbit.mac import coding_kernels as kernels
from auxbit.mac import table_coding
from auxbit.maps import Float32, Float64

STEPS_A_BIT, LEAST_STEPS, MOST_STEPS = 12, 400, 1500  # of tabu search, for each row
LARGEST_MU = 1e12
SMALLEST_COST = 1e-200  # whose inverse can be multiplied with
FARTHEST = 1e9  # coordinate of a scaled row; sums of squares stay finite in float32
LARGEST_COST = 2.0**28  # of a bit by itself, in whole numbers; with all couplings below 2^30


def check_mu(mu: object) -> float:
    """Return μ as a float that is finite and not negative."""
    if isinstance(mu, bool) or not isinstance(mu, Real) or not 0.0 <= float(mu) <= LARGEST_MU:
        allowed = f"a number from 0 (free codes) to {LARGEST_MU:g}"
        raise InvalidParameter("mu", mu, allowed, "At 1e3 codes are those of h for all but far rows.")
    return float(mu)


class Coder(Protocol):
    """Codes for one decoder and one μ; `solve` may be called from several threads."""

    @property
    def block_rows(self) -> int:
        """How many rows are best solved together."""

    def solve(self, X: Float32, H: Packed, start: Packed) -> Packed:
        """X : (n, D) scaled, H : (n, M) h(x), start : (n, M) codes not to be worse than → (n, M)."""


def coder_of(f: Decoder, mu: float, effort: float = 1.0) -> Coder:
    """The coder for a decoder of scaled rows; a lower effort takes less time. Exact to 16 bits."""
    if isinstance(f, LinearDecoder):
        if f.n_bits > 8 * table_coding.EXACT_BYTES:
            return LinearCoder.of(f, mu, effort)
        return ExactLinearCoder.of(f, mu)
    assert isinstance(f, TableDecoder)
    values = f.tables.astype(np.float64)
    if len(values) <= table_coding.EXACT_BYTES:
        return table_coding.ExactTableCoder.of(values, f.b, f.n_bits, mu)
    if len(values) <= table_coding.PAIRED_BYTES:
        return table_coding.TableCoder.of(values, f.b, f.n_bits, mu, effort)
    return table_coding.WideTableCoder.of(values, f.b, f.n_bits, mu)


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


@dataclass(frozen=True)
class ExactLinearCoder:
    """All codes of at most 16 bits are tried, on y = Qᵀ(x − b) for A = QR: L numbers a row instead of D."""

    b: Float64
    Q: Float64
    inner: table_coding.ExactTableCoder
    block_rows: int = 256

    @classmethod
    def of(cls, f: LinearDecoder, mu: float) -> ExactLinearCoder:
        """Prepare what all rows share."""
        Q, R = np.linalg.qr(f.A)
        zero = np.zeros(len(R))
        values = byte_contributions(LinearDecoder(R, zero))
        return cls(f.b, np.ascontiguousarray(Q), table_coding.ExactTableCoder.of(values, zero, f.n_bits, mu))

    def solve(self, X: Float32, H: Packed, start: Packed) -> Packed:
        """The codes of some rows. X : (n, D) scaled, H : (n, M) h(x); start is not needed."""
        Y = np.empty((len(X), self.Q.shape[1]))
        kernels.row_products(X, self.b, self.Q, Y)
        return self.inner.solve(Y, H, start)


@dataclass(frozen=True)
class LinearCoder:
    """Tabu search from the better of two starts, then single and pairwise flips in float64.

    A : (D, L), G : (L, L) AᵀA + μI, free : (L, L) its pseudo-inverse, which leads to the best real code;
    couplings : (L, L) int32, 2AᵀA less its diagonal, in whole multiples of `place`, `unit` a unit of cost;
    reach : (L,) what all other bits can change of a bit's cost.
    """

    b: Float64
    A: Float64
    mu: float
    G: Float64
    free: Float64
    couplings: npt.NDArray[np.int32]
    reach: Float64
    unit: float
    place: int
    n_steps: int
    block_rows: int = 256

    @classmethod
    def of(cls, f: LinearDecoder, mu: float, effort: float = 1.0) -> LinearCoder:
        """Prepare what all rows share."""
        gram, L = f.A.T @ f.A, f.n_bits
        G = gram + mu * np.eye(L)
        couplings = 2 * gram
        np.fill_diagonal(couplings, 0.0)
        # a bit whose cost alone is beyond what all others can add or take is decided by it
        reach = 1.001 * np.abs(couplings).sum(axis=1)
        largest = float(reach.max())
        place = 1 << (L - 1).bit_length()
        unit = LARGEST_COST / place / largest if largest > SMALLEST_COST else 1.0
        whole = np.rint(couplings * unit).astype(np.int32) * np.int32(place)
        steps = max(L, round(min(max(STEPS_A_BIT * L, LEAST_STEPS), MOST_STEPS) * effort))
        free: Float64 = np.asarray(np.linalg.pinv(G, rcond=1e-10, hermitian=True), dtype=np.float64)
        return cls(f.b, f.A, mu, G, free, whole, reach, unit, place, steps)

    def solve(self, X: Float32, H: Packed, start: Packed) -> Packed:
        """The codes of some rows. X : (n, D) scaled; H, start : (n, M), h(x) and codes to improve on."""
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
