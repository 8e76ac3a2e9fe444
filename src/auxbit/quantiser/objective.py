"""MAC with a decoder of tables: h is trained for the decoder that will be used (paper, section 4.3, g = 8).

Eq. (5) with f(z) = b + Σ_j T_j[z_j], a vector for each value of each byte of a code. The Z step is over bytes
instead of bits, by the coders of search; the f step is least squares over the tables. Everything else of the
loop is as for the linear decoder, from whose least-squares fit the tables start in every step: values of
bytes that no row has stay there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from auxbit.core.checks import Array, Bits, Float32, Float64, Ids
from auxbit.core.decoders import Plain, TableDecoder
from auxbit.core.maps import LinearEncoder, pack_bools, unpack
from auxbit.errors import InvalidParameter
from auxbit.mac.loop import DecoderSums, Moments, f_step
from auxbit.mac.steps import ByRows, MemoryRows
from auxbit.mac.z_step import ZCounts
from auxbit.quantiser.coder import coder_of
from auxbit.quantiser.fit import SHRINK, TABLES_EFFORT, table_step


class TableReconstruction(ByRows):
    """Σ ‖x − f(z)‖² + μ‖z − h(x)‖² with a decoder of tables; see `mac.steps.Objective`."""

    def check_elsewhere(self) -> None:
        raise InvalidParameter(
            "decoder", "tables", "'linear' for rows that are not in memory",
            "fit_decoder replaces the decoder afterwards, there as well.",
        )  # fmt: skip

    def f_step(self, rows: MemoryRows, sums: DecoderSums, h: LinearEncoder | None = None) -> TableDecoder:
        codes = pack_bools(rows.Z if h is None else rows.hashes(h))
        X = np.ascontiguousarray(rows.X[:, : rows.n_decoded])
        return table_step(X, codes, TableDecoder.of(f_step(sums)), SHRINK, rows.workers)

    def energies(self, sums: Sequence[Any], f: Plain, moments: Moments) -> tuple[float, float]:
        return float(sums[0]), float(sums[1])

    def changes(self, rows: Any, some: Ids, X: Float32, Z: Bits, f: Plain) -> Float64:
        assert isinstance(f, TableDecoder)
        codes, left = pack_bools(Z), X - f(Z)
        change = np.empty(Z.shape)
        for bit in range(Z.shape[1]):
            table, value = f.tables[bit // 8], codes[:, bit // 8]
            step = table[value ^ np.uint8(1 << bit % 8)] - table[value]
            change[:, bit] = np.square(step).sum(axis=1) - 2 * np.einsum("nd,nd->n", step, left)
        return change

    def solver(self, f: TableDecoder, mu: float) -> TableSolver:
        return TableSolver(f, mu)


class TableSolver:
    """The Z step for one decoder of tables and one μ, over bytes: exact to 16 bits, else tabu search."""

    def __init__(self, f: TableDecoder, mu: float) -> None:
        self.f, self.mu, self.coder = f, mu, coder_of(f, mu, TABLES_EFFORT)

    def solve(self, X: Float32, H: Bits, Z: Bits, kept: tuple[Array, ...] = ()) -> ZCounts:
        """Codes from the better of the old ones and h(x), in place."""
        hashes, old = pack_bools(H), pack_bools(Z)
        at_hash, at_old = self._energies(X, hashes, hashes), self._energies(X, hashes, old)
        start = np.where((at_old < at_hash)[:, None], old, hashes)
        codes = self.coder.solve(np.ascontiguousarray(X[:, : len(self.f.b)]), hashes, start)
        energy = self._energies(X, hashes, codes)
        worse = energy > np.minimum(at_old, at_hash)  # by rounding
        codes[worse], energy[worse] = start[worse], np.minimum(at_old, at_hash)[worse]
        Z[...] = unpack(codes, Z.shape[1])
        return ZCounts(energy=float(energy.sum()), hash_energy=float(at_hash.sum()))

    def _energies(self, X: Float32, hashes: Any, codes: Any) -> Float64:
        left = X[:, : len(self.f.b)] - self.f.decode(codes)
        penalty = self.mu * np.bitwise_count(hashes ^ codes).sum(axis=1)
        return np.asarray(np.einsum("nd,nd->n", left, left) + penalty)
