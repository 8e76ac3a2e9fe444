"""The Z step (section 4.3): N binary problems min ‖x − f(z)‖² + μ‖z − h(x)‖², reduced, chosen, chained.

A point goes through: theorem 4.3 (is h(x) itself optimal?), a start, alternation over groups of bits, a
certificate (appendix A), and, for the exact solvers, branch and bound or enumeration.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.checks import check_integer, check_positive
from auxbit.errors import InvalidParameter
from auxbit.mac import z_exact, z_kernels
from auxbit.mac.optimality import Thresholds, thresholds
from auxbit.mac.relax import RelaxedSolver
from auxbit.maps import Float32, Float64, LinearDecoder

Bits = npt.NDArray[np.uint8]

SOLVERS = ("auto", "exact", "enumerate", "alternating")
STARTS = {"warm": z_kernels.WARM, "relaxed": z_kernels.RELAXED, "best": z_kernels.BEST}
EXACT_UP_TO = 16
ENUMERATE_UP_TO = 24
LARGEST_GROUP = 20


@dataclass(frozen=True)
class ZOptions:
    """How the Z step is solved; the switches are the paper's accelerations, on unless measured."""

    solver: str
    start: str = "best"
    group_size: int = 1
    theorem2: bool = True
    optimality: bool = True
    running_bound: bool = True
    incremental: bool = True
    admm_iterations: int = 10
    admm_tol: float = 1e-3
    max_nodes: int = 10**9

    @classmethod
    def resolve(
        cls, n_bits: int, z_solver: str, z_start: str, group_size: int, z_options: dict[str, Any] | None
    ) -> ZOptions:
        """Check the estimator's parameters and settle "auto"."""
        if z_solver not in SOLVERS:
            raise InvalidParameter("z_solver", z_solver, f"one of {', '.join(SOLVERS)}")
        if not isinstance(z_start, str) or z_start not in STARTS:
            raise InvalidParameter("z_start", z_start, f"one of {', '.join(STARTS)}")
        group = check_integer("group_size", group_size, 1, LARGEST_GROUP, "A group costs 2^group_size.")
        if z_solver == "enumerate" and n_bits > ENUMERATE_UP_TO:
            raise InvalidParameter(
                "z_solver",
                z_solver,
                f"at most {ENUMERATE_UP_TO} bits for enumeration, not {n_bits}",
                "Use z_solver='exact' (branch and bound) or 'alternating'.",
            )
        if z_solver == "auto":
            z_solver = "exact" if n_bits <= EXACT_UP_TO else "alternating"
        return cls(z_solver, z_start, min(group, n_bits), **_check_options(z_options))

    @property
    def uses_relaxed(self) -> bool:
        """Whether alternation starts from the relaxed problem for some points."""
        return self.solver == "alternating" and self.start != "warm"


@dataclass(frozen=True)
class ZProblem:
    """What all points share for one decoder and one μ (theorem 4.2): Q, R from A = QR, G = RᵀR + μI."""

    Q: Float64
    R: Float64
    offset: Float64
    mu: float

    @classmethod
    def reduce(cls, f: LinearDecoder, mu: float) -> ZProblem:
        """QR of the decoder; min(D, L) rows remain of D."""
        Q, R = np.linalg.qr(f.A)
        return cls(Q, np.ascontiguousarray(R), f.b @ Q, mu)

    def project(self, X: Float32) -> Float64:
        """Y = Qᵀ(x − b) for a block of rows."""
        return (X @ self._Q32).astype(np.float64) - self.offset

    def linear_terms(self, Y: Float64, H: Bits) -> Float64:
        """C = Rᵀy + μh."""
        return np.ascontiguousarray(Y @ self.R + self.mu * H)

    @cached_property
    def G(self) -> Float64:
        return self.R.T @ self.R + self.mu * np.eye(self.R.shape[1])

    @cached_property
    def thresholds(self) -> Thresholds:
        return thresholds(self.G)

    @cached_property
    def triangular(self) -> tuple[Float64, Float64, Float64, npt.NDArray[np.intp]]:
        """S, Q1, Q2 and a column order with ‖y − Rz‖² + μ‖z − h‖² = ‖t − Sz‖² + const, t = yQ1 + √μ hQ2.

        From the QR of R stacked on √μI, so nothing is squared and singular decoders need no special care.
        """
        L = self.R.shape[1]
        stacked = np.vstack([self.R, np.sqrt(self.mu) * np.eye(L)])
        order = _search_order(stacked)
        Q, S = np.linalg.qr(stacked[:, order])
        m = len(self.R)
        return np.ascontiguousarray(S), Q[:m], np.sqrt(self.mu) * Q[m:], order

    def prepare(self, *, exact: bool) -> None:
        """Compute what the blocks share, once, before threads ask for it."""
        _ = self.G, self.thresholds, self._Q32, exact and self.triangular

    @cached_property
    def _Q32(self) -> Float32:
        return self.Q.astype(np.float32)


@dataclass(frozen=True)
class Points:
    """Points of a block: y = Qᵀ(x − b), h(x), and c = Rᵀy + μh, each (n, L) or (n, min(D, L))."""

    Y: Float64
    H: Bits
    C: Float64

    def __getitem__(self, rows: npt.NDArray[np.intp]) -> Points:
        return Points(self.Y[rows], self.H[rows], self.C[rows])


@dataclass
class ZCounts:
    """Sums over points; energies leave out ‖x − b‖² − ‖y‖², which does not depend on z."""

    energy: float = 0.0
    hash_energy: float = 0.0
    projected: float = 0.0
    pruned: int = 0
    certified: int = 0
    unproven: int = 0
    codes_evaluated: int = 0
    dimensions_evaluated: int = 0


class ZSolver:
    """The Z step for one decoder and one μ; `solve` is called on blocks from several threads."""

    def __init__(self, f: LinearDecoder, mu: float, options: ZOptions) -> None:
        self.problem, self.options = ZProblem.reduce(f, mu), options
        self.problem.prepare(exact=options.solver == "exact")
        self._relaxed: RelaxedSolver | None = None
        if options.uses_relaxed:
            self._relaxed = RelaxedSolver.factorise(
                self.problem.G, max_iter=options.admm_iterations, tol=options.admm_tol
            )

    def solve(self, X: Float32, H: Bits, Z: Bits, warm: tuple[Float32, Float32] | None) -> ZCounts:
        """Solve a block of points in place. Z : (n, L) old codes become new ones; warm : ADMM's (w, u)."""
        problem, mu = self.problem, self.problem.mu
        Y = problem.project(X)
        points = Points(Y, H, problem.linear_terms(Y, H))
        squared = np.einsum("nl,nl->n", Y, Y)
        const = squared + mu * H.sum(axis=1)
        hash_energy = z_kernels.energies(problem.G, points.C, H) + const
        counts = ZCounts(hash_energy=float(hash_energy.sum()), projected=float(squared.sum()))

        at_hash = hash_energy < mu if self.options.theorem2 else np.zeros(len(Z), dtype=bool)
        Z[at_hash] = H[at_hash]  # theorem 4.3: h(x) is a global minimiser
        counts.pruned = int(at_hash.sum())
        counts.energy = float(hash_energy[at_hash].sum())
        todo = np.flatnonzero(~at_hash)
        if len(todo):
            codes = Z[todo]
            if self.options.solver == "enumerate":
                energy = self._enumerate(points[todo], codes, counts)
            else:
                starts = self._relax(points.C, todo, warm)
                energy = self._alternate(points[todo], starts, codes, counts)
            Z[todo] = codes
            counts.energy += float((energy + const[todo]).sum())
        return counts

    def _relax(
        self, C: Float64, todo: npt.NDArray[np.intp], warm: tuple[Float32, Float32] | None
    ) -> Float64 | None:
        """Relaxed solutions of the points to do, and their ADMM state for the next step."""
        if self._relaxed is None or warm is None:
            return None
        w, u = warm[0][todo], warm[1][todo]
        solution = self._relaxed.solve(C[todo], w, u)
        warm[0][todo], warm[1][todo] = w, u
        return solution

    def _alternate(self, points: Points, starts: Float64 | None, codes: Bits, counts: ZCounts) -> Float64:
        """Alternation from the chosen start, then, if exact, branch and bound for what is not certified."""
        energy, certified = np.empty(len(codes)), np.empty(len(codes), dtype=np.bool_)
        limits, options = self.problem.thresholds, self.options
        z_kernels.alternate_points(
            self.problem.G, points.C, np.empty((0, 0)) if starts is None else starts, codes,
            z_kernels.WARM if starts is None else STARTS[options.start], options.group_size,
            options.optimality, limits.smallest_eigenvalue, limits.row_gap, energy, certified,
        )  # fmt: skip
        counts.certified = int(certified.sum())
        if options.solver == "exact" and not certified.all():
            rest = np.flatnonzero(~certified)
            codes[rest] = self._branch_and_bound(points[rest], codes[rest], counts)
            energy[rest] = z_kernels.energies(self.problem.G, points.C[rest], codes[rest])
        return energy

    def _branch_and_bound(self, points: Points, codes: Bits, counts: ZCounts) -> Bits:
        S, Q1, Q2, order = self.problem.triangular
        found = np.ascontiguousarray(codes[:, order])
        nodes = np.empty(len(found), dtype=np.int64)
        z_exact.branch_and_bound(S, points.Y @ Q1 + points.H @ Q2, found, self.options.max_nodes, nodes)
        counts.codes_evaluated = int(np.where(nodes < 0, self.options.max_nodes, nodes).sum())
        counts.unproven = int((nodes < 0).sum())
        out = np.empty_like(codes)
        out[:, order] = found
        return out

    def _enumerate(self, points: Points, codes: Bits, counts: ZCounts) -> Float64:
        limits, options = self.problem.thresholds, self.options
        tally = np.empty((len(codes), 3), dtype=np.int64)
        z_exact.enumerate_codes(
            self.problem.R, points.Y, points.H, self.problem.mu, codes, options.running_bound,
            options.incremental, options.optimality, limits.smallest_eigenvalue, limits.row_gap,
            self.problem.G, points.C, tally,
        )  # fmt: skip
        counts.codes_evaluated, counts.dimensions_evaluated, counts.certified = map(int, tally.sum(axis=0))
        return z_kernels.energies(self.problem.G, points.C, codes)


def _check_options(z_options: Any) -> dict[str, Any]:
    """The switches as given, or an error that names what is allowed."""
    if z_options is None:
        return {}
    known = [field.name for field in fields(ZOptions) if field.name not in ("solver", "start", "group_size")]
    if not isinstance(z_options, dict) or not set(z_options) <= set(known):
        raise InvalidParameter("z_options", z_options, f"a dict with keys among {', '.join(known)}")
    for key, value in z_options.items():
        if key in ("max_nodes", "admm_iterations"):
            check_integer(f"z_options[{key!r}]", value, 0)
        elif key == "admm_tol":
            check_positive(f"z_options[{key!r}]", value)
        elif not isinstance(value, bool):
            raise InvalidParameter(f"z_options[{key!r}]", value, "True or False")
    return dict(z_options)


def _search_order(columns: Float64) -> npt.NDArray[np.intp]:
    """Columns by a sorted QR, the smallest remaining one first: the search then begins with large steps."""
    remaining = columns.copy()
    order: list[int] = []
    left = list(range(columns.shape[1]))
    while left:
        norms = np.einsum("ml,ml->l", remaining[:, left], remaining[:, left])
        chosen = left.pop(int(np.argmin(norms)))
        order.append(chosen)
        norm = np.linalg.norm(remaining[:, chosen])
        if left and norm > 0:
            q = remaining[:, chosen] / norm
            remaining[:, left] -= np.outer(q, q @ remaining[:, left])
    return np.array(order, dtype=np.intp)
