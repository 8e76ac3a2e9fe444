"""The three steps of MAC from sums over rows, wherever the rows are; and rows in memory.

`Steps` is all that the loop sees. It asks rows for sums (the protocol `Rows` below) and solves what follows
from them: SVMs, least squares, energies. Rows in memory keep the scores of the present W between steps, so
that a step costs no product twice. rows.py has rows in files, cluster.py rows on a Dask cluster: they keep
codes alone, and an iteration reads them about twice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from auxbit.core.checks import Array, Bits, Float32, Float64, Ids, Indices, Packed
from auxbit.core.decoders import Plain
from auxbit.core.maps import Encoder, LinearDecoder, LinearEncoder, pack_bools, unpack
from auxbit.core.parallel import Workers
from auxbit.errors import InvalidParameter
from auxbit.evaluate import Ranking, ground_truth, hamming_ranking
from auxbit.mac.h_step import (
    ArraySvmRows,
    SlackSums,
    SvmOptions,
    SvmRows,
    gram_solver,
    ridge_weights,
    slack_sums_of,
    solve_svms,
    split_weights,
)
from auxbit.mac.loop import DecoderSums, Moments, Residuals, ZReport, decoder_sums, energies, f_step
from auxbit.mac.z_step import ZCounts, ZOptions, ZSolver

Sums = tuple[Any, ...]
CodesOf = Callable[[Array, Ids], Packed]  # the codes of rows as they came, with their numbers in the table
BlockSums = Callable[[Float32, Packed], Sums]  # of a block of rows, (k, D), and their codes, (k, M)


class Sample(NamedTuple):
    """Some of the rows, scaled, and what returns the codes that they have at the moment."""

    rows: Float32
    codes: Callable[[], Packed]


class Rows(SvmRows, Protocol):
    """Scaled rows X, (n, D), and their codes Z, (n, L). W, (D+1, L), is the one whose scores are noted.

    X may have features behind the numbers that are reconstructed: for the SVMs they are numbers like others.
    Sums of codes are ZᵀZ (L, L), Σz (L,) and XᵀZ (D, L).
    """

    n_features: int
    n_decoded: int  # of these, the first ones, which f reconstructs
    n_bits: int
    W: Float64
    truth: Ids | None  # (q, K) the true neighbours of the validation queries

    @property
    def n_passes(self) -> int | None:
        """How often all rows were read; None if they are in memory."""

    def places(self, rows: Ids) -> Ids:
        """The numbers in the table of these rows, those that are held out being counted there."""

    def moments(self) -> tuple[Float64, Float64]:
        """XᵀX (D, D) and Σx (D,)."""

    def fill(self, codes_of: Any) -> None:
        """Let these be the codes. codes_of : see CodesOf."""

    def keep(self) -> Any:
        """The present codes and W, to go back to."""

    def go_back(self, kept: Any) -> None:
        """Have the codes and the W that were kept; they can be gone back to again."""

    def forget(self, kept: Any) -> None:
        """What was kept is not needed any more."""

    def begin(self, W: Float64) -> Sums:
        """Note W, and let its codes be Z; the sums of codes, and Σ|t| and Σt² of each bit's scores t."""

    def note(self, W: Float64) -> None:
        """Note the scores of W."""

    def moved_to(self, W: Float64) -> None:
        """W is where line searches have led: the scores noted are its own."""

    def scale(self, by: Float64) -> None:
        """Multiply each bit's weights and scores by a number."""

    def set_constant(self, bits: Indices, values: Float64) -> None:
        """Let these bits have weights 0 and this bias."""

    def sample(self) -> Sample | None:
        """Some of the rows, to try steps on; None if all rows are as quick to ask."""

    def code_sums(self) -> Sums:
        """The sums of codes."""

    def label_sums(self) -> tuple[SlackSums, Float64, Float64, Float64]:
        """The sums of slack at the scores noted, for all bits, and the sums of codes."""

    def hash_sums(self, h: Encoder) -> DecoderSums:
        """The sums of the codes h(X), which are not kept. h : of any kind, for any number of bits."""

    def sums_of(self, function: BlockSums, h: Encoder | None) -> Sums:
        """What a function returns for blocks of rows and their codes, those here or h(x), added up."""

    def differing(self, h: LinearEncoder) -> Ids:
        """How many rows have a bit unlike that of h(x), (L,)."""

    def z_pass(self, h: LinearEncoder, f: Plain, mu: float, objective: ByRows, queries: Any) -> Sums:
        """New codes for every row. The sums of ZCounts, changed rows per bit (L,), bits unlike h(x).

        h : whose scores are noted; queries : their packed codes by h, if `ranking` will be called with h.
        """

    def nearest(self, queries: Float32, k: int) -> Ids:
        """The k nearest rows to each query, (q, k), by the numbers that are reconstructed."""

    def ranking(self, h: LinearEncoder | None, queries: Packed) -> Ranking:
        """Where the true neighbours of queries, `truth`, come among all codes h(x); None: the codes here."""


# ---- What codes are to be good for


class Objective(Protocol):
    """What MAC minimises: an energy of codes and decoder, with a penalty for codes that are not h(x)."""

    def check_elsewhere(self, n_bits: int, memory: int) -> None:
        """Refuse rows that are not in memory, if it needs them there. memory : bytes for all arrays."""

    def f_step(
        self, rows: Any, sums: DecoderSums, h: LinearEncoder | None = None, more: Float32 | None = None
    ) -> Plain:
        """The best decoder for the codes that rows have, or for h(X) and h(more); sums : of these codes."""

    def z_pass(self, rows: Any, h: LinearEncoder, f: Plain, mu: float, queries: Any) -> Sums:
        """New codes, as `Rows.z_pass` returns them; the energy does not rise."""

    def energies(
        self, rows: Any, sums: Sequence[Any], h: LinearEncoder, f: Plain, mu: float, moments: Moments
    ) -> tuple[float, float]:
        """E_Q, of the codes with their penalty, and E_BA, of the codes h(x), from the sums of ZCounts."""

    def changes(self, rows: Any, some: Ids, X: Float32, Z: Bits, f: Plain) -> Float64:
        """By how much the flip of each bit of these rows would change the energy, without the penalty."""

    def unit(self, scale: float) -> float:
        """What makes energies of scaled rows those that are recorded. scale : rows were divided by it."""

    def ranking(self, rows: Any, h: LinearEncoder | None, queries: Packed) -> Ranking:
        """Where rows that validation queries should find come among all codes, as `Rows.ranking`."""


class ByRows(ABC):
    """An objective that is a sum over rows: codes are chosen row by row, blocks of them on any machine."""

    @abstractmethod
    def solver(self, f: Any, mu: float) -> Solver:
        """What all rows share in a Z step."""

    def kept(self, Z: Bits) -> tuple[Array, ...]:
        """What is kept of each row from one Z step to the next, to begin with: arrays of n rows."""
        return ()

    def z_pass(self, rows: Rows, h: LinearEncoder, f: Plain, mu: float, queries: Any) -> Sums:
        return rows.z_pass(h, f, mu, self, queries)

    def unit(self, scale: float) -> float:
        """Squares in the units of X."""
        return scale**2

    def ranking(self, rows: Rows, h: LinearEncoder | None, queries: Packed) -> Ranking:
        return rows.ranking(h, queries)


class Solver(Protocol):
    """Chooses the codes of blocks of rows, from several threads."""

    def solve(self, X: Float32, H: Bits, Z: Bits, kept: tuple[Array, ...]) -> ZCounts:
        """Change Z, (n, L), and what is kept of these rows, in place."""


@dataclass(frozen=True)
class Reconstruction(ByRows):
    """The paper's objective, eq. (5): Σ ‖x − f(z)‖² + μ‖z − h(x)‖² with a linear f."""

    z: ZOptions

    def check_elsewhere(self, n_bits: int, memory: int) -> None:
        if self.z.uses_relaxed:
            raise InvalidParameter(
                "z_options", {"admm_iterations": self.z.admm_iterations},
                "no admm_iterations for rows that are not in memory", "Set it to 0: preset='paper' sets 100.",
            )  # fmt: skip

    def f_step(
        self, rows: Any, sums: DecoderSums, h: LinearEncoder | None = None, more: Float32 | None = None
    ) -> LinearDecoder:
        return f_step(sums)

    def energies(
        self, rows: Any, sums: Sequence[Any], h: LinearEncoder, f: Plain, mu: float, moments: Moments
    ) -> tuple[float, float]:
        assert isinstance(f, LinearDecoder)
        found = energies(sums, f, moments)
        E_Q, E_BA = found or rows.sums_of(Residuals(h, f, mu), None)
        return float(E_Q), float(E_BA)

    def changes(self, rows: Any, some: Ids, X: Float32, Z: Bits, f: Plain) -> Float64:
        assert isinstance(f, LinearDecoder)
        signs = 2.0 * Z - 1
        return np.asarray(np.square(f.A).sum(axis=0) + 2 * signs * ((X - f(Z)) @ f.A))

    def kept(self, Z: Bits) -> tuple[Array, ...]:
        """Of ADMM: solutions and multipliers, (n, L) each."""
        return (Z.astype(np.float32), np.zeros(Z.shape, np.float32)) if self.z.uses_relaxed else ()

    def solver(self, f: LinearDecoder, mu: float) -> Solver:
        return ZSolver(f, mu, self.z)


class Augmented(Reconstruction):
    """The same as an augmented Lagrangian: Σ ‖x − f(z)‖² + μ‖z − h(x)‖² − λᵀ(z − h(x)).

    λ, of each bit of each row, grows by 2μ(h(x) − z) after each Z step: a bit that stays unlike h(x) comes
    to cost more than others, without a larger μ.
    """

    def check_elsewhere(self, n_bits: int, memory: int) -> None:
        raise InvalidParameter(
            "penalty", "augmented", "'quadratic' for rows that are not in memory",
            "Multipliers would take 32 times the memory of the codes.",
        )  # fmt: skip

    def energies(
        self, rows: Any, sums: Sequence[Any], h: LinearEncoder, f: Plain, mu: float, moments: Moments
    ) -> tuple[float, float]:
        """The multipliers of the step are gone: what they, and μ, made of E_Q is known as a difference."""
        E_BA = super().energies(rows, sums, h, f, mu, moments)[1]
        return E_BA + float(sums[0] - sums[1]), E_BA

    def kept(self, Z: Bits) -> tuple[Array, ...]:
        return *super().kept(Z), np.zeros(Z.shape, np.float32)

    def solver(self, f: LinearDecoder, mu: float) -> Solver:
        return AugmentedSolver(ZSolver(f, mu, self.z))


@dataclass(frozen=True)
class AugmentedSolver:
    """Solves with multipliers, the last of what is kept of rows, and takes these along."""

    inner: ZSolver

    def solve(self, X: Float32, H: Bits, Z: Bits, kept: tuple[Array, ...]) -> ZCounts:
        *warm, multipliers = kept
        counts = self.inner.solve(X, H, Z, tuple(warm), multipliers)
        multipliers += np.float32(2 * self.inner.problem.mu) * (H.astype(np.float32) - Z)
        return counts


@dataclass(frozen=True)
class State:
    """Where a fit is between two iterations: with the codes, all that the next one needs."""

    W: Float64
    slack: Float64  # (5, L) and
    product: Float64  # (D, L), at the scores of W for the present codes
    ZZ: Float64
    z: Float64
    XZ: Float64
    solved: Any


class Steps:
    """The steps of MAC on `rows`. moments : of X, if they are known; queries : of the validation, scaled."""

    def __init__(
        self, rows: Rows, *, svm: SvmOptions, objective: Objective, moments: Moments | None = None,
        queries: Float32 | None = None,
    ) -> None:  # fmt: skip
        self.rows, self.svm, self.objective = rows, svm, objective
        self.moments = moments or Moments.of(*rows.moments(), rows.n_rows)
        self._decoded = first_moments(self.moments, rows.n_decoded)
        self._gram_solve = gram_solver(self.moments.gram, svm.C)
        self._queries = queries
        self._noted: LinearEncoder | None = None  # the encoder with the weights rows.W
        self._codes: DecoderSums | None = None  # of the present codes
        self._solved = np.zeros(rows.n_bits, dtype=bool)  # bits whose SVM is solved for the present codes
        self._begun = False

    @property
    def h(self) -> LinearEncoder | None:
        """The encoder whose scores are noted."""
        return self._noted

    def use(self, C: float) -> None:
        """Weigh the slack of the SVMs by C from now on."""
        if self.svm.C != C:
            self.svm, self._gram_solve = replace(self.svm, C=C), gram_solver(self.moments.gram, C)
            self._solved[:] = False

    def keep(self) -> Any:
        """The present state, to go back to."""
        return self.rows.keep(), self._codes, self._solved.copy(), self._noted, self._begun

    def go_back(self, kept: Any) -> LinearEncoder:
        """Be where `keep` was called; the h of that moment."""
        rows, self._codes, solved, self._noted, self._begun = kept
        self.rows.go_back(rows)
        self._solved = solved.copy()
        assert self._noted is not None
        return self._noted

    def forget(self, kept: Any) -> None:
        """What was kept is not needed any more."""
        self.rows.forget(kept[0])

    # ---- the start

    def begin(self, h: LinearEncoder, *, solved: bool = False) -> LinearEncoder:
        """Let Z be h(X); returns h with each bit's weights scaled as an SVM would: no SVM needs fitting.

        Scores t become at with a = Σ|t| / Σt², which minimises Σ(1 − a|t|)².
        solved : they are those of SVMs already.
        """
        *codes, total, square = self.rows.begin(self._padded(weights_of(h)))
        self._codes = self._decoder_sums(*codes)
        scale = np.where((total > 0) & (square > 0), total / np.where(square > 0, square, 1.0), 1.0)
        if not solved:
            self.rows.scale(scale)
        self._begun = True
        return self._keep()

    # ---- the steps

    def h_step(self, h: LinearEncoder | None, *, exact: bool = False) -> LinearEncoder:
        """Section 4.2: the L SVMs for the current codes, from h as a warm start.

        Bits that are solved already are skipped. With `exact`, to full tolerance; otherwise as far as the
        loop needs it.
        """
        rows = self.rows
        if h is None:
            self._solved[:] = False
            rows.note(self._first_weights())
        elif exact or h is not self._noted:
            self._solved &= h is self._noted
            rows.note(weights_of(h))
        slack, *codes = rows.label_sums()
        self._codes = self._decoder_sums(*codes)
        ones = self._codes.z
        one_class = (ones == 0) | (ones == rows.n_rows)
        bits = np.flatnonzero(~one_class & ~self._solved)
        if len(bits) and self.svm.ridge:
            rows.note(ridge_weights(self.moments.gram, self._codes, self.svm.C))
        elif len(bits):
            loop = self.svm.for_next_steps(rows.n_rows, rows.n_features)
            loop, self._begun = loop if self._begun else self.svm.for_first_step(), True
            options = self.svm if exact else loop
            W, solved = self._solve(rows, rows.W, bits, slack[bits], options)
            rows.moved_to(W)
            if options.tol <= self.svm.tol:
                self._solved[bits] = solved[bits]
        if one_class.any():
            constant = np.flatnonzero(one_class)
            rows.set_constant(constant, np.where(ones[constant] > 0, 1.0, -1.0))
        return self._keep()

    def f_step(self) -> Plain:
        """Section 4.1: the least-squares decoder for the current codes."""
        if self._codes is None:
            self._codes = self._decoder_sums(*self.rows.code_sums())
        return self.objective.f_step(self.rows, self._cut(self._codes))

    def z_step(self, h: LinearEncoder, f: Plain, mu: float) -> ZReport:
        """Section 4.3: new codes for every row; the energy does not rise."""
        if h is not self._noted:
            self.rows.note(weights_of(h))
            self._noted = h
        queries = None if self._queries is None else pack_bools(h(self._queries))
        *counts, flips, mismatched = self.objective.z_pass(self.rows, h, f, mu, queries)
        self._solved &= flips == 0
        self._codes = None
        E_Q, E_BA = self.objective.energies(self.rows, counts, h, f, mu, self._decoded)
        return ZReport(E_Q, E_BA, int(flips.sum()), int(mismatched), *map(int, counts[3:]))

    # ---- the end

    def refine(self, h: LinearEncoder) -> LinearEncoder:
        """Solve each SVM to full tolerance, and take it if that leaves the bit's codes as they are."""
        if self.svm.ridge:
            return h
        exact = self.h_step(h, exact=True)
        same = self.rows.differing(exact) == 0
        return LinearEncoder(np.where(same, exact.weights, h.weights), np.where(same, exact.bias, h.bias))

    def decoder_of(self, h: LinearEncoder, more: Float32 | None = None) -> Plain:
        """The least-squares decoder for the codes h(X). more : further rows, that were held out, (q, D)."""
        sums = self.rows.hash_sums(h)
        if more is not None:
            with Workers(1) as workers:
                sums = sums + decoder_sums(more, h(more), workers)
        return self.objective.f_step(self.rows, self._cut(sums), h, more)

    def ranking(self, h: LinearEncoder) -> Ranking:
        """Where the true neighbours of the validation queries come among all codes h(x)."""
        assert self._queries is not None
        return self.objective.ranking(self.rows, h, pack_bools(h(self._queries)))

    # ---- resuming after a crash

    def state(self) -> State:
        """All but the codes that the next iteration needs."""
        slack, ZZ, z, XZ = self.rows.label_sums()
        sums = np.stack(
            [slack.slack, slack.half_gradient[-1], slack.active, slack.active_square, slack.square]
        )
        return State(self.rows.W, sums, slack.half_gradient[:-1], ZZ, z, XZ, self._solved)

    def restore(self, state: State) -> LinearEncoder:
        """Be where `state` was taken; the codes are those of that moment."""
        rows: Any = self.rows
        rows.restore(state.W, slack_sums_of(state.slack, state.product), (state.ZZ, state.z, state.XZ))
        self._solved, self._begun = np.asarray(state.solved, dtype=bool).copy(), True
        return self._keep()

    # ---- what they share

    def _solve(
        self, rows: SvmRows, W: Float64, bits: Indices, slack: SlackSums, options: SvmOptions
    ) -> tuple[Float64, Any]:
        assert self._codes is not None
        zero_norm = self.svm.zero_norm(self._codes)
        return solve_svms(rows, W, bits, slack, self._gram_solve, zero_norm, options)

    def _first_weights(self) -> Float64:
        """What the first SVMs start from: those of a sample, if the rows have one, otherwise 0."""
        rows = self.rows
        W, sample = np.zeros((rows.n_features + 1, rows.n_bits)), rows.sample()
        share = 0.0 if sample is None else len(sample.rows) / rows.n_rows
        if sample is None or self.svm.ridge or share == 1:
            return W
        self._codes = self._decoder_sums(*rows.code_sums())
        bits = np.flatnonzero((self._codes.z > 0) & (self._codes.z < rows.n_rows))
        options = self.svm.for_first_step()
        with Workers(1) as workers:
            some = ArraySvmRows(sample.rows, unpack(sample.codes(), rows.n_bits), workers)
            options = replace(options, C=options.C / share)
            return self._solve(some, W, bits, some.count(bits), options)[0]

    def _decoder_sums(self, ZZ: Float64, z: Float64, XZ: Float64) -> DecoderSums:
        return DecoderSums(self.rows.n_rows, ZZ, z, XZ.T, self.moments.total)

    def _cut(self, sums: DecoderSums) -> DecoderSums:
        """Those of the numbers that are reconstructed."""
        D = self.rows.n_decoded
        return replace(sums, ZX=sums.ZX[:, :D], x=sums.x[:D])

    def _padded(self, W: Float64) -> Float64:
        """W, of rows that may be without features, with weights 0 for these."""
        missing = self.rows.n_features + 1 - len(W)
        return np.insert(W, [len(W) - 1] * missing, 0.0, axis=0) if missing else W

    def _keep(self) -> LinearEncoder:
        """The encoder of the weights noted."""
        W = self.rows.W
        self._noted = LinearEncoder(*split_weights(W))
        return self._noted


class MemoryRows(ArraySvmRows):
    """Rows in memory, with the scores of W. X : (n, D) float32; Z : (n, L) uint8 of 0/1, changed in place.

    raw, chosen : the rows before they were scaled, and which of them are here, for first codes. n_decoded :
    how many of the first numbers of X are reconstructed, all of them by default; held_out : the rows that are
    queries of the validation.
    """

    n_passes: int | None = None
    truth: Ids | None = None

    def __init__(
        self, X: Float32, Z: Bits, workers: Workers, raw: Array | None = None, chosen: Indices | None = None,
        n_decoded: int | None = None, held_out: Ids | None = None,
    ) -> None:  # fmt: skip
        super().__init__(X, Z, workers)
        self.X, self.Z, self.workers = X, Z, workers
        self.n_features, self.n_bits = X.shape[1], Z.shape[1]
        self.n_decoded = X.shape[1] if n_decoded is None else n_decoded
        self.W = np.zeros((X.shape[1] + 1, Z.shape[1]))
        self._raw, self._chosen, self.held_out = raw, chosen, held_out
        self._kept: Any = None  # what an objective keeps of each row from Z step to Z step

    def places(self, rows: Ids) -> Ids:
        return rows if self._chosen is None else self._chosen[rows]

    def moments(self) -> tuple[Float64, Float64]:
        def block(rows: slice) -> Sums:
            return self.X[rows].T @ self.X[rows], self.X[rows].sum(axis=0, dtype=np.float64)

        XX, total = self.workers.sum(block, len(self.X))
        return XX, total

    def fill(self, codes_of: CodesOf) -> None:
        assert self._raw is not None
        raw = self._raw

        def block(rows: slice) -> None:
            places = self.places(np.arange(rows.start, rows.stop))
            self.Z[rows] = unpack(codes_of(raw[places], places), self.n_bits)

        self.workers.run(block, len(self.X))

    def keep(self) -> Any:
        return self.Z.copy(), self.W, _copies(self._kept)

    def go_back(self, kept: Any) -> None:
        Z, W, of_rows = kept
        self.Z[...] = Z
        self._kept = _copies(of_rows)
        self.note(W)

    def forget(self, kept: Any) -> None:
        """Copies in memory go by themselves."""

    def begin(self, W: Float64) -> Sums:
        self.note(W)
        np.greater_equal(self.scores, 0, out=self.Z.view(np.bool_))
        return *self.code_sums(), *self.magnitudes()

    def note(self, W: Float64) -> None:
        super().note(W)
        self.W = W

    def moved_to(self, W: Float64) -> None:
        if len(self.together) == self.n_bits:
            self.W = W
        else:  # those of all bits in one product, as rows out of core compute them
            self.note(W)

    def scale(self, by: Float64) -> None:
        self.note(self.W * by)

    def set_constant(self, bits: Indices, values: Float64) -> None:
        self.W = self.W.copy()
        self.W[:, bits] = 0.0
        self.W[-1, bits] = values
        self.scores[:, bits] = values

    def sample(self) -> None:
        """No sample: the scores of all rows are at hand."""

    def code_sums(self) -> Sums:
        sums = decoder_sums(self.X, self.Z, self.workers)
        return sums.ZZ, sums.z, sums.ZX.T

    def label_sums(self) -> tuple[SlackSums, Float64, Float64, Float64]:
        slack, ZZ, XZ = self.count_labels()
        return slack, ZZ, ZZ.diagonal().copy(), XZ

    def hash_sums(self, h: Encoder) -> DecoderSums:
        return decoder_sums(self.X, self.hashes(h), self.workers)

    def sums_of(self, function: BlockSums, h: Encoder | None) -> Sums:
        Z = self.Z if h is None else self.hashes(h)
        return self.workers.sum(lambda rows: function(self.X[rows], pack_bools(Z[rows])), len(self.X))

    def differing(self, h: LinearEncoder) -> Ids:
        return np.asarray((self.hashes(h) != self.Z).sum(axis=0))

    def z_pass(self, h: LinearEncoder, f: Plain, mu: float, objective: ByRows, queries: Any) -> Sums:
        solver = objective.solver(f, mu)
        if self._kept is None:
            self._kept = objective.kept(self.Z)

        def block(rows: slice) -> Sums:
            X, codes = self.X[rows], self.Z[rows]
            H, old = (self.scores[rows] >= 0).view(np.uint8), codes.copy()
            counts = solver.solve(X, H, codes, tuple(each[rows] for each in self._kept))
            return *astuple(counts), (codes != old).sum(axis=0), np.count_nonzero(codes != H)

        return self.workers.sum(block, len(self.X))

    def nearest(self, queries: Float32, k: int) -> Ids:
        return ground_truth(self.X[:, : self.n_decoded], queries, k, n_jobs=self.workers.n_jobs)

    def ranking(self, h: LinearEncoder | None, queries: Packed) -> Ranking:
        assert self.truth is not None
        codes = pack_bools(self.Z if h is None else self.hashes(h))
        return hamming_ranking(codes, queries, self.truth, n_jobs=self.workers.n_jobs)

    def hashes(self, h: Encoder) -> Bits:
        """h(X), (n, L)."""
        if isinstance(h, LinearEncoder) and np.array_equal(weights_of(h), self.W.astype(np.float32)):
            return (self.scores >= 0).view(np.uint8)
        Z = np.empty((len(self.X), h(self.X[:1]).shape[1]), dtype=np.uint8)

        def fill(rows: slice) -> None:
            Z[rows] = h(self.X[rows])

        self.workers.run(fill, len(self.X))
        return Z


def _copies(arrays: tuple[Array, ...] | None) -> tuple[Array, ...] | None:
    return None if arrays is None else tuple(each.copy() for each in arrays)


def first_moments(moments: Moments, D: int) -> Moments:
    """Those of the first D numbers of rows."""
    if len(moments.total) == D:
        return moments
    return Moments.of(moments.gram[:D, :D], moments.total[:D], moments.n)


def weights_of(h: LinearEncoder) -> Float64:
    """Weights and biases of h as W, (D+1, L)."""
    return np.vstack([h.weights, h.bias]).astype(np.float64)
