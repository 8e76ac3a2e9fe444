"""Rows of data that answer the three steps of MAC. Here: rows in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from auxbit.core.codes import pack_bools, unpack
from auxbit.core.decoders import LinearDecoder
from auxbit.core.maps import LinearEncoder
from auxbit.core.parallel import Workers
from auxbit.core.types import Bits, Float32, Float64, Indices, Packed
from auxbit.mac.f_step import DecoderSums, decoder_sums, f_step
from auxbit.mac.h_step import (
    ArraySvmRows,
    CorrectedLine,
    SampledLine,
    SlackSums,
    SvmOptions,
    gram_solver,
    line_search,
    ridge_weights,
    slack_sums_of,
    solve_svms,
)
from auxbit.mac.rows import Sample, Sums, ZTask
from auxbit.mac.z_step import ZOptions, ZSolver


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


# ---- The three steps of MAC from sums over shards: the same for rows on disk and rows on a cluster
#
# An iteration takes two passes over the rows: one along the SVMs' step, whose size a sample has told
# nearly, and the Z step's own, which gathers what the next h and f steps need.


class Passes(Protocol):
    """Rows in shards. Each call but the last is a pass over all of them, and returns sums.

    The sample is for the size of a step; None where it shall be found by looking at all rows, several times.
    """

    n_rows: int
    n_features: int

    def moments(self) -> Sums: ...
    def begin(self, W: Float64) -> Sums: ...
    def code_sums(self) -> Sums: ...
    def hash_sums(self, W: Float64) -> Sums: ...
    def slack_sums(self, W: Float64) -> Sums: ...
    def hessian_product(self, W: Float64, P: Float64, bits: Indices) -> Sums: ...
    def along_step(self, W: Float64, P: Float64, bits: Indices, sizes: Float64) -> Sums: ...
    def differing(self, W: Float64) -> Sums: ...
    def z_pass(self, task: ZTask, judged: Packed | None) -> Sums: ...
    def judge(self, W: Float64, judged: Packed) -> Sums: ...
    def sample(self) -> Sample | None: ...


@dataclass(frozen=True)
class State:
    """Where a fit stands between two iterations: with the codes, all that the next one needs."""

    W: Float64
    slack: Float64  # (5, L) and
    product: Float64  # (D, L), at the scores of W for the codes as they are
    ZZ: Float64
    z: Float64
    XZ: Float64
    solved: Any


class SummedRows:
    """Rows that answer the three steps by passes. Only W, f and sums go to the shards and come back."""

    def __init__(
        self, passes: Passes, gram: Float64, n_bits: int, *, svm: SvmOptions, z: ZOptions,
        queries: Float32 | None = None,
    ) -> None:  # fmt: skip
        self.passes, self.svm, self.z, self.n_bits = passes, svm, z, n_bits
        self.n_rows = passes.n_rows
        self._gram = gram
        self._total = gram[-1, :-1].copy()
        self._squared_norm = float(np.trace(gram[:-1, :-1]))
        self._gram_solve = gram_solver(gram, svm.C)
        self._queries = queries
        self._W = np.zeros((passes.n_features + 1, n_bits))
        self._noted: LinearEncoder | None = None
        self._slack: SlackSums | None = None  # at W, for the codes as they are
        self._codes: DecoderSums | None = None
        self._solved = np.zeros(n_bits, dtype=bool)
        self._begun = False
        self._judged: tuple[LinearEncoder, Sums] | None = None
        self._sample: Sample | None = None

    # ---- the steps

    def begin(self, h: LinearEncoder) -> LinearEncoder:
        """Let Z be h(X), and h have its weights scaled as an SVM would: see `shards.Rows.adopt`."""
        W = _weights(h)
        ZZ, z, XZ, total, square = self.passes.begin(W)
        self._codes = DecoderSums(self.n_rows, ZZ, z, XZ.T, self._total)
        scale = np.where((total > 0) & (square > 0), total / np.where(square > 0, square, 1.0), 1.0)
        self._begun = True
        return self._keep(W * scale)

    def h_step(self, h: LinearEncoder | None, *, exact: bool = False) -> LinearEncoder:
        """The L SVMs for the current codes, from h as a warm start; bits solved already are skipped."""
        if h is None or exact or h is not self._noted:
            self._solved &= h is self._noted
            self._slack = None
            self._W = np.zeros_like(self._W) if h is None else _weights(h)
        codes, W = self._code_sums(), self._W
        one_class = (codes.z == 0) | (codes.z == self.n_rows)
        bits = np.flatnonzero(~one_class & ~self._solved)
        if len(bits) and self.svm.ridge:
            W = ridge_weights(self._gram, codes, self.svm.C)
        elif len(bits):
            loop = (
                self.svm.for_next_steps(self.n_rows, self.passes.n_features)
                if self._begun
                else self.svm.for_first_step()
            )
            options = self.svm if exact else loop
            if h is None:
                W = self._W = self._solved_on_sample(bits, options)
            W, solved = solve_svms(
                self, W, bits, self._slack_sums()[bits], self._gram_solve, self._zero_norm(), options,
                search=self._search,
            )  # fmt: skip
            if options.tol <= self.svm.tol:
                self._solved[bits] = solved[bits]
        self._begun = True
        if one_class.any():
            W = W.copy()
            W[:, one_class] = 0.0
            W[-1, one_class] = np.where(codes.z[one_class] > 0, 1.0, -1.0)
        return self._keep(W)

    def _solved_on_sample(self, bits: Indices, options: SvmOptions) -> Float64:
        """Weights to begin with: the sample stands for all rows; 0 where it is all of them, or none."""
        W, share = self._W, self._share()
        if share in (0, 1):
            return W
        assert self._sample is not None
        labels = unpack(self._sample.codes(), self.n_bits)
        with Workers(1) as workers:
            rows = ArraySvmRows(self._sample.rows, labels, workers)
            C, search = options.C / share, partial(line_search, rows)
            options = replace(options, C=C)
            sums = rows.count(bits)
            return solve_svms(rows, W, bits, sums, self._gram_solve, self._zero_norm(), options, search)[0]

    def refine(self, h: LinearEncoder) -> LinearEncoder:
        """Solve each SVM to full tolerance, and take it where that leaves the bit's codes as they are."""
        if self.svm.ridge:
            return h
        exact = self.h_step(h, exact=True)
        same = self.passes.differing(_weights(exact))[0] == 0
        return LinearEncoder(np.where(same, exact.weights, h.weights), np.where(same, exact.bias, h.bias))

    def f_step(self) -> LinearDecoder:
        """The least-squares decoder for the current codes."""
        return f_step(self._code_sums())

    def z_step(self, h: LinearEncoder, f: LinearDecoder, mu: float) -> ZReport:
        """New codes for every row; no row's e(z) rises."""
        if h is not self._noted:
            self._keep(_weights(h))
        queries = None if self._queries is None else pack_bools(h(self._queries))
        sums = self.passes.z_pass(ZTask(self._W, f, mu, self.z), queries)
        counts, (flips, mismatched, slack, product, ZZ, z, XZ), seen = sums[:8], sums[8:15], sums[15:]
        self._slack = slack_sums_of(slack, product)
        self._codes = DecoderSums(self.n_rows, ZZ, z, XZ.T, self._total)
        self._solved &= flips == 0
        self._judged = (h, seen) if seen else None
        energy, hash_energy = energies(counts, f, self.n_rows, self._squared_norm, self._total)
        return ZReport(energy, hash_energy, int(flips.sum()), int(mismatched), *map(int, counts[3:]))

    def decoder_of(self, h: LinearEncoder) -> LinearDecoder:
        """The least-squares decoder for the codes h(X)."""
        ZZ, z, XZ = self.passes.hash_sums(_weights(h))
        return f_step(DecoderSums(self.n_rows, ZZ, z, XZ.T, self._total))

    def histograms(self, h: LinearEncoder) -> Sums:
        """How many codes, and how many true neighbours, are at each distance from each query: (q, L+1)."""
        if self._judged is not None and self._judged[0] is h:
            return self._judged[1]
        assert self._queries is not None
        return self.passes.judge(_weights(h), pack_bools(h(self._queries)))

    # ---- going on after a crash

    def state(self) -> State:
        """All but the codes that the next iteration needs."""
        slack, codes = self._slack_sums(), self._code_sums()
        sums = np.stack(
            [slack.slack, slack.half_gradient[-1], slack.active, slack.active_square, slack.square]
        )
        return State(self._W, sums, slack.half_gradient[:-1], codes.ZZ, codes.z, codes.ZX.T, self._solved)

    def restore(self, state: State) -> LinearEncoder:
        """Stand where `state` was taken, the codes being those of that moment."""
        self._slack = slack_sums_of(state.slack, state.product)
        self._codes = DecoderSums(self.n_rows, state.ZZ, state.z, state.XZ.T, self._total)
        slack = self._slack
        self._solved, self._begun = np.asarray(state.solved, dtype=bool).copy(), True
        h = self._keep(state.W)
        self._slack = slack
        return h

    # ---- SvmRows

    def count(self, bits: Indices) -> SlackSums:
        self._slack = None
        return self._slack_sums()[bits]

    def hessian_product(self, P: Float64, bits: Indices) -> Float64:
        product, bias = self.passes.hessian_product(self._W, P, bits)
        return np.vstack([product, bias])

    def _search(
        self, bits: Indices, W: Float64, step: Float64, gradient: Float64, slack: Float64, C: float
    ) -> Float64:
        """As h_step.line_search, in one pass: a sample tells where that looks, all rows what is there."""

        def look(sizes: Float64) -> Float64:
            return np.asarray(self.passes.along_step(self._W, step, bits, sizes)[0])

        line = CorrectedLine(self._sizes_to_look_at(bits, W, step, C), look)
        size = line_search(line, bits, W, step, gradient, slack, C)
        self._W = self._W.copy()
        self._W[:, bits] += size * step
        self._slack = None
        return size

    def _sizes_to_look_at(self, bits: Indices, W: Float64, step: Float64, C: float) -> Float64:
        """0 and the sizes that a search on the sample asks for, (m, len(bits))."""
        share = self._share()
        if self._sample is None:
            return np.zeros((1, len(bits)))
        labels = np.ascontiguousarray(unpack(self._sample.codes(), self.n_bits)[:, bits])
        trial = SampledLine(self._sample.rows, self._W[:, bits], step, labels, share)
        line_search(trial, bits, W, step, trial.gradient(W, C), trial.slack, C)
        return np.vstack([np.zeros(len(bits)), *trial.sizes])

    def _share(self) -> float:
        """The share of rows in the sample, 0 where there is none."""
        if self._sample is None:
            self._sample = self.passes.sample()
        return 0.0 if self._sample is None else len(self._sample.rows) / self.n_rows

    # ---- what is known

    def _keep(self, W: Float64) -> LinearEncoder:
        if W is not self._W:
            self._slack = None
        self._W, self._noted = W, LinearEncoder(W[:-1].astype(np.float32), W[-1].astype(np.float32))
        return self._noted

    def _slack_sums(self) -> SlackSums:
        if self._slack is None:
            self._slack = slack_sums_of(*self.passes.slack_sums(self._W))
        return self._slack

    def _code_sums(self) -> DecoderSums:
        if self._codes is None:
            ZZ, z, XZ = self.passes.code_sums()
            self._codes = DecoderSums(self.n_rows, ZZ, z, XZ.T, self._total)
        return self._codes

    def _zero_norm(self) -> Float64:
        return self.svm.zero_norm(self._code_sums())


def _weights(h: LinearEncoder) -> Float64:
    return np.vstack([h.weights, h.bias]).astype(np.float64)
