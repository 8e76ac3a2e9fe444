"""The Z step (section 4.3): N binary problems min ‖x − f(z)‖² + μ‖z − h(x)‖², reduced, chosen, chained.

A point goes through: theorem 4.3 (is h(x) itself optimal?), alternation over groups of bits from one start
or two, a certificate (appendix A), and, for the exact solvers, branch and bound or enumeration. Whatever is
settled on the way is skipped by what follows.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from auxbit.core.checks import check_integer, check_positive
from auxbit.core.decoders import LinearDecoder
from auxbit.core.parallel import reordering_kernel
from auxbit.core.types import Bits, Float32, Float64
from auxbit.errors import InvalidParameter
from auxbit.mac import z_kernels
from auxbit.mac.z_kernels import Thresholds, thresholds

# ---- The relaxed Z step: min ‖y − Rz‖² + μ‖z − h‖² over z in [0, 1]^L, by ADMM (section 4.3)
#
# All points share G = RᵀR + μI, so one factorisation serves them all; each ends by its own residual.
# Warm-started from the previous Z step's solution.


@dataclass(frozen=True)
class RelaxedSolver:
    """ADMM with the splitting z = w, w in the box, and scaled multipliers u. inverse : (L, L)."""

    inverse: Float64
    rho: float
    max_iter: int
    tol: float

    @classmethod
    def factorise(cls, G: Float64, *, max_iter: int, tol: float) -> RelaxedSolver:
        """Factorise G + ρI once; ρ is the geometric mean of G's extreme eigenvalues."""
        values = np.linalg.eigvalsh(G)
        largest = max(float(values[-1]), 1e-12)
        rho = float(np.sqrt(max(float(values[0]), 1e-4 * largest) * largest))
        factor = cho_factor(G + rho * np.eye(len(G)))
        return cls(np.ascontiguousarray(cho_solve(factor, np.eye(len(G)))), rho, max_iter, tol)

    def solve(self, c: Float64, w: Float32, u: Float32, todo: Any = None) -> Float64:
        """Iterate in place on a block. c : (n, L) linear terms; w, u : (n, L) warm start and result.

        todo : (n,) bool, the rows to solve (all of them without it); the others stay as they are.
        """
        todo = np.ones(len(c), dtype=np.bool_) if todo is None else todo
        box = w.astype(np.float64)
        admm(self.rho * self.inverse, c @ self.inverse, box, u, todo, self.max_iter, self.tol)
        w[...] = box
        return box


@reordering_kernel
def admm(shift: Any, target: Any, W: Any, U: Any, todo: Any, max_iter: Any, tol: Any) -> None:
    """ADMM for each row to do, until neither w nor z − w moves by more than tol. W, U : (n, L), in place."""
    n, L = W.shape
    z, w, u = np.empty(L), np.empty(L), np.empty(L)
    for k in range(n):
        if not todo[k]:
            continue
        for j in range(L):
            w[j], u[j] = W[k, j], U[k, j]
        for _ in range(max_iter):
            for j in range(L):
                z[j] = target[k, j]
            for i in range(L):
                step = w[i] - u[i]
                for j in range(L):
                    z[j] += step * shift[i, j]
            residual = 0.0
            for j in range(L):
                total = u[j] + z[j]
                box = min(max(total, 0.0), 1.0)
                residual = max(residual, abs(box - w[j]), abs(z[j] - box))
                w[j] = box
                u[j] = total - box
            if residual < tol:
                break
        for j in range(L):
            W[k, j], U[k, j] = w[j], u[j]


# ---- The Z step

SOLVERS = ("auto", "exact", "enumerate", "alternating")
STARTS = {"warm": z_kernels.WARM, "relaxed": z_kernels.RELAXED, "best": z_kernels.BEST}
EXACT_UP_TO = 16
ENUMERATE_UP_TO = 24
LARGEST_GROUP = 20


@dataclass(frozen=True)
class ZOptions:
    """How the Z step is solved; the switches are the paper's accelerations, all on by default."""

    solver: str
    start: str = "best"
    group_size: int = 1
    theorem_4_3: bool = True
    optimality: bool = True
    running_bound: bool = True
    incremental: bool = True
    admm_iterations: int = 0
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
        """Whether a state of ADMM is kept from Z step to Z step."""
        return self.solver == "alternating" and self.start != "warm" and self.admm_iterations > 0


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
    def gram(self) -> Float64:
        return self.R.T @ self.R

    @cached_property
    def G(self) -> Float64:
        return self.gram + self.mu * np.eye(self.R.shape[1])

    @cached_property
    def thresholds(self) -> Thresholds:
        return thresholds(self.G)

    @cached_property
    def inverse(self) -> Float64:
        """G⁻¹, by the QR of R stacked on √μI, so that nothing is squared before it is inverted."""
        L = self.R.shape[1]
        S = np.linalg.qr(np.vstack([self.R, np.sqrt(self.mu) * np.eye(L)]), mode="r")
        half = solve_triangular(S, np.eye(L))
        return np.asarray(half @ half.T)

    @cached_property
    def tree(self) -> z_kernels.SearchTree:
        return z_kernels.SearchTree.grow(self.R, self.mu)

    def prepare(self, *, inverse: bool, tree: bool) -> None:
        """Compute what the blocks share, once, before threads ask for it."""
        _ = self.gram, self.G, self.thresholds, self._Q32, inverse and self.inverse, tree and self.tree

    @cached_property
    def _Q32(self) -> Float32:
        return self.Q.astype(np.float32)


@dataclass(frozen=True)
class Block:
    """Points of a block: y = Qᵀ(x − b), h(x), c = Rᵀy + μh, the codes, their e(z), and which remain to do."""

    Y: Float64
    H: Bits
    C: Float64
    Z: Bits
    energy: Float64
    todo: npt.NDArray[np.bool_]


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
        # branch and bound finds a good code by itself, so its incumbent is the old code, gone down from
        self._start = "warm" if options.solver == "exact" else options.start
        self._admm: RelaxedSolver | None = None
        if options.uses_relaxed:
            self._admm = RelaxedSolver.factorise(
                self.problem.G, max_iter=options.admm_iterations, tol=options.admm_tol
            )
        self.problem.prepare(
            inverse=self._start != "warm" and self._admm is None, tree=options.solver == "exact"
        )

    def solve(self, X: Float32, H: Bits, Z: Bits, warm: tuple[Float32, Float32] | None) -> ZCounts:
        """Solve a block of points in place. Z : (n, L) old codes become new ones; warm : ADMM's (w, u)."""
        problem = self.problem
        Y = problem.project(X)
        C = Y @ problem.R  # without μ as yet: in Gh − c it cancels, and a large one would cost digits
        block = Block(Y, H, C, Z, np.empty(len(Z)), np.empty(len(Z), dtype=np.bool_))
        V = H @ problem.gram
        V -= C
        counts = ZCounts(projected=float(np.vdot(Y, Y)))
        counts.hash_energy = z_kernels.at_hash_codes(
            Y, H, C, V, problem.mu, self.options.theorem_4_3, Z, block.energy, block.todo
        )
        C += problem.mu * H
        counts.pruned = len(Z) - int(np.count_nonzero(block.todo))
        if counts.pruned < len(Z):
            if self.options.solver == "enumerate":
                self._enumerate(block, counts)
            else:
                self._alternate(block, V, warm, counts)
            if self.options.solver == "exact":
                self._branch_and_bound(block, counts)
        counts.energy = float(block.energy.sum())
        return counts

    def _alternate(
        self, block: Block, V: Float64, warm: tuple[Float32, Float32] | None, counts: ZCounts
    ) -> None:
        """Alternation; V : (n, L) Gh − c. What is not certified remains to do."""
        problem, options, limits = self.problem, self.options, self.problem.thresholds
        relaxed = gradient = V  # unused by a warm start
        if self._start != "warm":
            if self._admm is not None and warm is not None:
                relaxed = self._admm.solve(block.C, *warm, block.todo)
            else:  # the free solution G⁻¹c, moved into the box, leads as low as ten steps of ADMM
                relaxed = block.H - V @ problem.inverse
                np.clip(relaxed, 0.0, 1.0, out=relaxed)
            gradient = relaxed @ problem.G
            gradient -= block.C
        counts.certified = z_kernels.alternate_points(
            problem.G, block.H, V, relaxed, gradient, block.Z, STARTS[self._start], options.group_size,
            options.optimality, limits.smallest_eigenvalue, limits.row_gap, block.energy, block.todo,
        )  # fmt: skip

    def _branch_and_bound(self, block: Block, counts: ZCounts) -> None:
        tree, max_nodes = self.problem.tree, self.options.max_nodes
        nodes = np.empty(len(block.Z), dtype=np.int64)
        z_kernels.branch_and_bound(
            tree.S, tree.pull, tree.least, tree.columns, tree.relaxed(block.Y, block.H), block.Z,
            block.energy, block.todo, max_nodes, nodes,
        )  # fmt: skip
        counts.codes_evaluated = int(np.where(nodes < 0, max_nodes, nodes).sum())
        counts.unproven = int(np.count_nonzero(nodes < 0))

    def _enumerate(self, block: Block, counts: ZCounts) -> None:
        problem, limits, options = self.problem, self.problem.thresholds, self.options
        tally = np.empty((len(block.Z), 3), dtype=np.int64)
        z_kernels.enumerate_codes(
            problem.R, block.Y, block.H, problem.mu, block.Z, options.running_bound,
            options.incremental, options.optimality, limits.smallest_eigenvalue, limits.row_gap,
            problem.G, block.C, block.todo, tally,
        )  # fmt: skip
        counts.codes_evaluated, counts.dimensions_evaluated, counts.certified = map(int, tally.sum(axis=0))
        gap = block.Y - block.Z @ problem.R.T
        block.energy[:] = np.einsum("nl,nl->n", gap, gap) + problem.mu * (block.Z != block.H).sum(axis=1)


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
