"""Obvious truths, a few lines each, that the fast code of auxbit.mac is held against."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from scipy.optimize import lsq_linear

from auxbit.core.maps import LinearDecoder, LinearEncoder
from auxbit.mac.z_step import ZCounts, ZOptions, ZProblem, ZSolver

DECODERS = ("random", "correlated", "repeated", "low rank", "zero", "integer", "tiny", "orthogonal")

SMALL = st.integers(1, 8)
ANY_MU = st.one_of(st.floats(-8, 4), st.floats(-3, 1)).map(lambda power: 10.0**power)


def all_codes(L):
    """Every code of L bits, (2^L, L)."""
    return np.array(list(itertools.product((0, 1), repeat=L)), dtype=np.uint8)


def point_energy(x, f, h, mu, z):
    """e(z) = ‖x − f(z)‖² + μ‖z − h‖², one number after another."""
    total = 0.0
    for d in range(len(x)):
        total += (float(x[d]) - f.b[d] - sum(f.A[d, i] for i in range(len(z)) if z[i])) ** 2
    return total + mu * sum(int(a) != int(b) for a, b in zip(z, h, strict=True))


def reduced_energies(problem, Y, H, Z):
    """‖y − Rz‖² + μ‖z − h‖² of each row, in float64 and without expanding the square."""
    gap = Y - Z @ problem.R.T
    return np.square(gap).sum(axis=-1) + problem.mu * (Z != H).sum(axis=-1)


def brute_force(problem, Y, H):
    """The least reduced energy of each row over all 2^L codes."""
    codes = all_codes(H.shape[1])
    return np.array([reduced_energies(problem, y, h, codes).min() for y, h in zip(Y, H, strict=True)])


def brute_force_in_halves(problem, y, h, low=12):
    """The least reduced energy of one row over all 2^L codes, 2^low of them at a time."""
    R, mu = problem.R, problem.mu
    first, best = all_codes(low), np.inf
    reached, flips = first @ R[:, :low].T, (first != h[:low]).sum(axis=1)
    for last in all_codes(len(h) - low):
        gap = y - R[:, low:] @ last - reached
        best = min(best, (np.square(gap).sum(axis=1) + mu * (flips + (last != h[low:]).sum())).min())
    return best


def greedy_bits(G, c, x):
    """Bit after bit, evaluate zᵀGz − 2cᵀz with 0 and with 1 and keep the better."""
    z = np.array(x, dtype=float)
    for i in range(len(z)):
        zero, one = z.copy(), z.copy()
        zero[i], one[i] = 0.0, 1.0
        z = one if one @ G @ one - 2 * c @ one < zero @ G @ zero - 2 * c @ zero else zero
    return z


def alternate_slowly(energies, z, g):
    """Give groups of g bits, in turn, the best of their patterns, until none has a better one.

    energies : of codes, (k, L) → (k,).
    """
    z, since, first = np.array(z, dtype=np.uint8), 0, 0
    while since < len(z):
        patterns = all_codes(min(g, len(z) - first))
        tried = np.tile(z, (len(patterns), 1))
        tried[:, first : first + g] = patterns
        values = energies(tried)
        better = values.min() < values[(tried == z).all(axis=1)].min()
        z, since = (tried[values.argmin()], 0) if better else (z, since + g)
        first = first + g if first + g < len(z) else 0
    return z


def relaxed_minimiser(problem, y, h):
    """The minimiser of ‖y − Rz‖² + μ‖z − h‖² over the box [0, 1]^L, by active sets."""
    stacked = np.vstack([problem.R, np.sqrt(problem.mu) * np.eye(len(h))])
    target = np.r_[y, np.sqrt(problem.mu) * h]
    return lsq_linear(stacked, target, (0, 1), method="bvls", tol=1e-14, max_iter=1000).x


@dataclass
class Points:
    """A Z step to do: rows X, a decoder f, hash codes H, old codes Z, and μ."""

    X: np.ndarray
    f: LinearDecoder
    H: np.ndarray
    Z: np.ndarray
    mu: float

    @property
    def problem(self):
        return ZProblem.reduce(self.f, self.mu)

    @property
    def Y(self):
        return self.problem.project(self.X)

    def energies(self, Z):
        return reduced_energies(self.problem, self.Y, self.H, Z)

    @property
    def rounding(self):
        """What float64 may lose of each row's energy when the square is expanded."""
        size = np.square(self.Y).sum(axis=1) + np.abs(self.problem.G).sum()
        return 1e-13 * size

    def solve(self, solver, start="best", group_size=1, **switches) -> tuple[np.ndarray, ZCounts]:
        """New codes and the counts; the old codes stay as they are."""
        options = ZOptions.resolve(self.Z.shape[1], solver, start, group_size, switches)
        Z = self.Z.copy()
        warm = (Z.astype(np.float32), np.zeros(Z.shape, np.float32)) if options.uses_relaxed else None
        return Z, ZSolver(self.f, self.mu, options).solve(self.X, self.H, Z, warm)


def make_decoder(kind, D, L, rng):
    A = rng.normal(size=(D, L))
    if kind == "correlated":
        A = rng.normal(size=(D, 1)) + 0.1 * A
    elif kind == "repeated":
        A = A[:, rng.integers(0, (L + 1) // 2, L)] * rng.choice([-1, 1], L)
    elif kind == "low rank":
        A = A[:, :1] @ rng.normal(size=(1, L)) + A[:, -1:] @ rng.normal(size=(1, L))
    elif kind == "zero":
        A = np.zeros((D, L))
    elif kind == "integer":  # many codes of equal energy
        A = rng.integers(-1, 2, (D, L)).astype(float)
    elif kind == "tiny":
        A = 1e-5 * A
    elif kind == "orthogonal":
        A = np.linalg.qr(A)[0] @ np.eye(min(D, L), L)
    return LinearDecoder(A, rng.normal(size=D))


def make_points(kind, D, L, mu, seed, n=4):
    """Rows near f of some code, so that the answer is neither h(x) nor the old code."""
    rng = np.random.default_rng(seed)
    f = make_decoder(kind, D, L, rng)
    truth, H, Z = rng.integers(0, 2, (3, n, L)).astype(np.uint8)
    X = (f(truth) + rng.choice([0.1, 1.0]) * rng.normal(size=(n, D))).astype(np.float32)
    H = np.where(rng.random(H.shape) < 0.7, truth, H).astype(np.uint8)
    return Points(X, f, H, Z, mu)


@st.composite
def points(draw, bits=SMALL, mus=ANY_MU):
    """Z steps with decoders of every kind, more bits than dimensions included, μ from 1e-8 to 1e4."""
    kind, D, L = draw(st.sampled_from(DECODERS)), draw(st.integers(1, 12)), draw(bits)
    return make_points(kind, D, L, draw(mus), draw(st.integers(0, 2**20)))


def random_rows(n=300, D=6, L=5, seed=0):
    """Rows, codes, an encoder and a decoder that have nothing to do with each other."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D)).astype(np.float32)
    Z = rng.integers(0, 2, (n, L)).astype(np.uint8)
    h = LinearEncoder(rng.normal(size=(D, L)).astype(np.float32), rng.normal(size=L).astype(np.float32))
    f = LinearDecoder(rng.normal(size=(D, L)), rng.normal(size=D))
    return X, Z, h, f
