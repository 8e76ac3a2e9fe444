"""The three steps of MAC from sums over shards: the same for rows on disk and rows on a cluster.

An iteration takes two passes over the rows: one along the SVMs' step, whose size a sample has told nearly,
and the Z step's own, which gathers what the next h and f steps need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from auxbit.blocks import Workers
from auxbit.codes import Packed, pack_bools, unpack
from auxbit.decoders import LinearDecoder
from auxbit.mac.f_step import DecoderSums, f_step
from auxbit.mac.h_step import (
    Indices,
    SlackSums,
    SvmOptions,
    gram_solver,
    line_search,
    ridge_weights,
    solve_svms,
)
from auxbit.mac.line import CorrectedLine, SampledLine
from auxbit.mac.shard import Sums, ZTask
from auxbit.mac.shards import ZReport, energies
from auxbit.mac.svm_rows import ArraySvmRows, slack_sums_of
from auxbit.mac.z_step import ZOptions
from auxbit.maps import Float32, Float64, LinearEncoder


class Sample(NamedTuple):
    """Some of the rows, scaled, and what tells the codes that they have at the moment."""

    rows: Float32
    codes: Callable[[], Packed]


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
