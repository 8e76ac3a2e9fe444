"""Rows of data that answer the three steps of MAC. Here: rows in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.blocks import Workers
from auxbit.decoders import LinearDecoder
from auxbit.mac.f_step import DecoderSums, decoder_sums, f_step
from auxbit.mac.h_step import SvmOptions, gram_solver, line_search, ridge_weights, solve_svms
from auxbit.mac.svm_rows import ArraySvmRows
from auxbit.mac.z_step import ZOptions, ZSolver
from auxbit.maps import Float32, Float64, LinearEncoder

Bits = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ZReport:
    """What a Z step did. Energies are totals over all rows; `changed` and `mismatched` count bits."""

    E_Q: float
    E_BA: float
    changed: int
    mismatched: int
    pruned: int
    certified: int
    unproven: int
    codes_evaluated: int
    dimensions_evaluated: int


class Rows:
    """Scaled rows and their codes. X : (N, D) float32, Z : (N, L) uint8 of 0/1, changed in place."""

    def __init__(self, X: Float32, Z: Bits, workers: Workers, *, svm: SvmOptions, z: ZOptions) -> None:
        self.X, self.Z, self.workers = X, Z, workers
        self.svm, self.z = svm, z
        self._gram, self._squared_norm, self._total = _moments(X, workers)
        self._gram_solve = gram_solver(self._gram, svm.C)
        self._svms = ArraySvmRows(X, Z, workers)
        self._W = np.zeros((X.shape[1] + 1, Z.shape[1]))  # the weights whose scores self._svms has noted,
        self._noted: LinearEncoder | None = None  # and the encoder with them
        self._begun = False
        self._current: DecoderSums | None = None
        self._solved = np.zeros(Z.shape[1], dtype=bool)  # bits whose SVM is solved for the codes as they are
        self._warm = (Z.astype(np.float32), np.zeros(Z.shape, np.float32)) if z.uses_relaxed else None

    def adopt(self, h: LinearEncoder) -> LinearEncoder:
        """The h whose codes Z are, with each bit's weights scaled as an SVM would: no SVM needs fitting.

        Scores t become at with a = Σ|t| / Σt², which minimises Σ(1 − a|t|)².
        """
        self._note(h)
        total, square = self._svms.magnitudes()
        scale = np.where((total > 0) & (square > 0), total / np.where(square > 0, square, 1.0), 1.0)
        self._svms.scale(scale)
        self._begun = True
        return self._keep(self._W * scale)

    def h_step(self, h: LinearEncoder | None, *, exact: bool = False) -> LinearEncoder:
        """The L SVMs for the current codes, from h as a warm start; bits solved already are skipped.

        With `exact`, to full tolerance; otherwise as far as the loop needs it.
        """
        if h is None:
            self._solved[:] = False
            self._keep(np.zeros_like(self._W))
            self._svms.scores[:] = 0
        elif exact or h is not self._noted:
            self._solved &= h is self._noted
            self._note(h)
        sums, ZZ, XZ = self._svms.count_labels()
        self._current = DecoderSums(len(self.X), ZZ, ZZ.diagonal().copy(), XZ.T, self._total)
        W, ones = self._W, self._current.z
        one_class = (ones == 0) | (ones == len(self.X))
        bits = np.flatnonzero(~one_class & ~self._solved)
        if len(bits) and self.svm.ridge:
            W = ridge_weights(self._gram, self._current, self.svm.C)
            self._svms.note(W)
        elif len(bits):
            first, later = self.svm.for_first_step(), self.svm.for_next_steps(*self.X.shape)
            loop = later if self._begun else first
            self._begun = True
            options = self.svm if exact else loop
            W, solved = solve_svms(
                self._svms,
                W,
                bits,
                sums[bits],
                self._gram_solve,
                self.svm.zero_norm(self._current),
                options,
                partial(line_search, self._svms),
            )
            if options.tol <= self.svm.tol:
                self._solved[bits] = solved[bits]
        if one_class.any():
            W = W.copy()
            W[:, one_class] = 0.0
            W[-1, one_class] = np.where(ones[one_class] > 0, 1.0, -1.0)
            self._svms.scores[:, one_class] = W[-1, one_class]
        return self._keep(W)

    def refine(self, h: LinearEncoder) -> LinearEncoder:
        """Solve each SVM to full tolerance, and take it where that leaves the bit's codes as they are."""
        if self.svm.ridge:
            return h
        exact = self.h_step(h, exact=True)
        same = (encode_rows(self.X, exact, self.workers) == self.Z).all(axis=0)
        return LinearEncoder(np.where(same, exact.weights, h.weights), np.where(same, exact.bias, h.bias))

    def f_step(self) -> LinearDecoder:
        """The least-squares decoder for the current codes."""
        return f_step(self._sums())

    def z_step(self, h: LinearEncoder, f: LinearDecoder, mu: float) -> ZReport:
        """New codes for every row; no row's e(z) rises."""
        solver = ZSolver(f, mu, self.z)
        if h is not self._noted:
            self._note(h)

        def block(rows: slice) -> tuple[Any, ...]:
            X, codes = self.X[rows], self.Z[rows]
            H, old = (self._svms.scores[rows] >= 0).view(np.uint8), codes.copy()
            warm = (self._warm[0][rows], self._warm[1][rows]) if self._warm is not None else None
            counts = solver.solve(X, H, codes, warm)
            return *astuple(counts), (codes != old).sum(axis=0), np.count_nonzero(codes != H)

        *sums, flips, mismatched = self.workers.sum(block, len(self.X))
        energy, hash_energy = energies(sums, f, len(self.X), self._squared_norm, self._total)
        self._solved &= flips == 0
        self._current = None
        if mismatched == 0:  # scores that steps were added to may differ from h's own in the last digits
            mismatched = np.count_nonzero(encode_rows(self.X, h, self.workers) != self.Z)
            if mismatched:
                self._note(h)
        return ZReport(energy, hash_energy, int(flips.sum()), int(mismatched), *map(int, sums[3:]))

    def decoder_of(self, h: LinearEncoder) -> LinearDecoder:
        """The least-squares decoder for the codes h(X)."""
        return f_step(decoder_sums(self.X, encode_rows(self.X, h, self.workers), self.workers))

    def _note(self, h: LinearEncoder) -> None:
        self._W = np.vstack([h.weights, h.bias]).astype(np.float64)
        self._svms.note(self._W)
        self._noted = h

    def _keep(self, W: Float64) -> LinearEncoder:
        """The encoder of W, whose scores are those noted."""
        self._W, self._noted = W, LinearEncoder(W[:-1].astype(np.float32), W[-1].astype(np.float32))
        return self._noted

    def _sums(self) -> DecoderSums:
        """ZᵀX and the like for the codes as they are: one pass serves the h step and the f step."""
        if self._current is None:
            self._current = decoder_sums(self.X, self.Z, self.workers)
        return self._current


def energies(
    sums: Sequence[Any], f: LinearDecoder, n: int, squared_norm: float, total: Float64
) -> tuple[float, float]:
    """E_Q and E_BA from the first three sums of ZCounts, which leave out ‖x − b‖² − ‖y‖²."""
    energy, hash_energy, projected = (float(each) for each in sums[:3])
    rest = squared_norm - 2 * float(f.b @ total) + n * float(f.b @ f.b) - projected
    return energy + rest, hash_energy + rest


def encode_rows(X: Float32, h: LinearEncoder, workers: Workers) -> Bits:
    """h(X), block by block. → (n, L) uint8 of 0/1."""
    Z = np.empty((len(X), len(h.bias)), dtype=np.uint8)

    def fill(rows: slice) -> None:
        Z[rows] = h(X[rows])

    workers.run(fill, len(X))
    return Z


def _moments(X: Float32, workers: Workers) -> tuple[Float64, float, Float64]:
    """XᵀX with a feature of 1 (D+1, D+1), Σ‖x‖² and Σx."""

    def block(rows: slice) -> tuple[Float32, Float64]:
        return X[rows].T @ X[rows], X[rows].sum(axis=0, dtype=np.float64)

    XX, total = workers.sum(block, len(X))
    return with_one(XX, total, len(X)), float(np.trace(XX)), total


def with_one(XX: Float64, total: Float64, n: int) -> Float64:
    """XᵀX with a feature of 1, (D+1, D+1), from XᵀX and Σx of n rows."""
    D = len(total)
    gram = np.empty((D + 1, D + 1))
    gram[:D, :D], gram[:D, D], gram[D, :D], gram[D, D] = XX, total, total, n
    return gram
