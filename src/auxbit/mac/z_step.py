"""The Z step (section 4.3): N binary problems min ‖x − f(z)‖² + μ‖z − h(x)‖².

A point goes through: theorem 4.3 (is h(x) itself optimal?), alternation over groups of bits from one start
or two, a certificate (appendix A), and, for z_solver="exact", branch and bound. Whatever is settled on the
way is skipped by what follows. The optimisation over a group is an enumeration, and the paper's enumeration
of all codes is that of one group of all bits.

Options come first, then what all points share for one decoder and one μ, the solver that chains its parts
for a block of points, and the kernels. In them each point minimises e(z) = zᵀGz − 2cᵀz + const with
G = RᵀR + μI and c = Rᵀy + μh. A point's state is its code z and v = Gz − c, half the gradient: flipping bit i
changes e by G_ii − 2 s_i v_i, s_i = ±1.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from auxbit.core.checks import Bits, Float32, Float64, check_integer, check_positive
from auxbit.core.maps import LinearDecoder
from auxbit.core.parallel import kernel, reordering_kernel
from auxbit.errors import InvalidParameter

WARM: int = 0  # where alternation starts
RELAXED: int = 1
BEST: int = 2
SOLVERS = ("auto", "exact", "enumerate", "alternating")
STARTS = {"warm": WARM, "relaxed": RELAXED, "best": BEST}
CONDITIONS = ("necessary", "beck", "jeyakumar", "xia")  # of appendix A; the others cost more than they save
PAPERS_CONDITIONS = ("beck", "jeyakumar")
EXACT_UP_TO = 16
ENUMERATE_UP_TO = 24
LARGEST_GROUP = 20
SCAN_FROM = 7  # bits in a group: a Gray code takes less time for fewer, as measured on digits and MNIST


@dataclass(frozen=True)
class ZOptions:
    """How the Z step is solved; the switches are the paper's accelerations, all on by default.

    optimality : names among CONDITIONS, or in z_options True for all of them and False for none.
    """

    solver: str
    start: str = "best"
    group_size: int = 1
    theorem_4_3: bool = True
    optimality: Collection[str] = PAPERS_CONDITIONS
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
        group = n_bits if z_solver == "enumerate" else min(group, n_bits)
        return cls(z_solver, z_start, group, **_check_options(z_options))

    @property
    def scans(self) -> bool:
        """Whether the codes of a group are scanned with the paper's accelerations."""
        if self.solver == "enumerate":
            return True
        return self.group_size >= SCAN_FROM and (self.running_bound or self.incremental)

    @property
    def uses_relaxed(self) -> bool:
        """Whether a state of ADMM is kept from Z step to Z step."""
        return self.solver == "alternating" and self.start != "warm" and self.admm_iterations > 0


# ---- What all points share


@dataclass(frozen=True)
class Thresholds:
    """What s_i v_i is held against, for all points: λ_min, q̃ and diag(Q), each (L,)."""

    smallest_eigenvalue: Float64
    row_gap: Float64
    diagonal: Float64
    slack: float


def thresholds(G: Float64) -> Thresholds:
    """λ_min(Q), q̃ and diag(Q) for Q = ½G, once for all points; less `slack`, what rounding could add."""
    Q = 0.5 * G
    values = np.linalg.eigvalsh(Q)
    slack = 1e-12 * max(float(values[-1]), 1e-300)
    diagonal = Q.diagonal().copy()
    row_gap = 2 * diagonal - np.abs(Q).sum(axis=1)
    return Thresholds(np.full(len(Q), values[0] - slack), row_gap - slack, diagonal, slack)


class Conditions(NamedTuple):
    """The conditions of appendix A that are tested, for groups of bits each by itself.

    sufficient : (conditions, L) thresholds of s_i v_i.
    """

    necessary: bool
    sufficient: Float64
    xia: bool
    slack: float

    @classmethod
    def of(cls, G: Float64, groups: Sequence[slice], names: Collection[str]) -> Conditions:
        """Those of these names, among CONDITIONS."""
        limits = [thresholds(G[own, own]) for own in groups]
        both = [np.hstack([each.smallest_eigenvalue, each.row_gap]).reshape(2, -1) for each in limits]
        chosen = [name in names for name in ("beck", "jeyakumar")]
        sufficient = np.ascontiguousarray(np.hstack(both)[chosen])
        slack = max(each.slack for each in limits)
        return cls("necessary" in names, sufficient, "xia" in names, slack)


@dataclass(frozen=True)
class SearchTree:
    """What the searches of all points share, bits in the order of `columns`, the last one decided first.

    Up to a constant e(z) = ‖S(z − x)‖², S : (L, L) upper triangular, x = `relaxed(Y, H)` its minimiser over
    the reals. With the bits above i decided, x* being the best real values of the others, deciding z_i costs
    S_ii²(z_i − x*_i)² and moves x*_j by pull[i, j](z_i − x*_i), j < i. The bits below i then cost at least
    Σ_j least[i, j] dist(x*_j, {0, 1})², because the diagonal matrix of least[i] is ≼ the Gram matrix of
    the first i columns of S.
    """

    S: Float64
    pull: Float64
    least: Float64
    columns: npt.NDArray[np.intp]
    from_y: Float64
    from_h: Float64

    @classmethod
    def grow(cls, R: Float64, mu: float) -> SearchTree:
        """From the QR of R stacked on √μI: nothing is squared, singular decoders need no special care."""
        m, L = R.shape
        stacked = np.vstack([R, np.sqrt(mu) * np.eye(L)])
        columns = search_order(stacked.T @ stacked)
        Q, S = np.linalg.qr(stacked[:, columns])
        inverse = solve_triangular(S, np.eye(L))
        least = np.zeros((L + 1, L))
        for i in range(1, L + 1):
            least[i, :i] = diagonal_below(S[:i, :i], inverse[:i, :i])
        pull = np.tril((inverse * S.diagonal()).T, -1)
        from_y, from_h = Q[:m] @ inverse.T, np.sqrt(mu) * Q[m:] @ inverse.T
        return cls(np.ascontiguousarray(S), pull, least, columns, from_y, from_h)

    def relaxed(self, Y: Float64, H: npt.NDArray[Any]) -> Float64:
        """The minimisers over the reals, (n, L), bits in search order. H : what μ pulls towards."""
        relaxed = H @ self.from_h
        relaxed += Y @ self.from_y
        return relaxed


def search_order(G: Float64) -> npt.NDArray[np.intp]:
    """Columns by Gram matrix, always the one with the least left: the search begins with large steps."""
    left = G.copy()
    waiting = left.diagonal().copy()
    order = np.empty(len(G), dtype=np.intp)
    for place in range(len(G)):
        order[place] = chosen = int(np.argmin(waiting))
        row = left[chosen].copy()
        if row[chosen] > 0:  # what rounding leaves of a column that depends on the others may be below
            left -= np.outer(row / row[chosen], row)
        waiting = np.where(np.isinf(waiting), np.inf, left.diagonal())
        waiting[chosen] = np.inf
    return order


def diagonal_below(S: Float64, inverse: Float64) -> Float64:
    """A large diagonal d with diag(d) ≼ SᵀS: what each bit costs if all others follow it, times what is safe.

    1/(SᵀS)⁻¹_jj is a bound for each bit by itself; λ_min of SᵀS in that scale makes it one for all together.
    """
    alone = 1.0 / np.square(inverse).sum(axis=1)
    scaled = S / np.sqrt(alone)
    values = np.linalg.eigvalsh(scaled.T @ scaled)
    safe = values[0] - 1e-13 * values[-1]  # less what rounding could add
    return np.asarray(max(safe, 0.0) * alone)


@dataclass(frozen=True)
class RelaxedSolver:
    """The relaxed problem, min ‖y − Rz‖² + μ‖z − h‖² over z in [0, 1]^L, by ADMM. inverse : (L, L).

    The splitting is z = w, w in the box, with scaled multipliers u. All points share G = RᵀR + μI, so one
    factorisation serves them all; each starts from the previous Z step's solution and ends by its own
    residual.
    """

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


@dataclass(frozen=True)
class ZProblem:
    """What all points share for one decoder and one μ (theorem 4.2): Q, R from A = QR, G = RᵀR + μI."""

    Q: Float64
    R: Float64
    offset: Float64
    mu: float

    @classmethod
    def reduce(cls, f: LinearDecoder, mu: float) -> ZProblem:
        """QR of the decoder (theorem 4.2, eq. 7); min(D, L) rows remain of D."""
        Q, R = np.linalg.qr(f.A)
        return cls(Q, np.ascontiguousarray(R), f.b @ Q, mu)

    def project(self, X: Float32) -> Float64:
        """Y = Qᵀ(x − b) for a block of rows, of which f may reconstruct the first numbers alone."""
        return (X[:, : len(self.Q)] @ self._Q32).astype(np.float64) - self.offset

    def linear_terms(self, Y: Float64, H: Bits) -> Float64:
        """C = Rᵀy + μh, half of minus the linear term of eq. (7)."""
        return np.ascontiguousarray(Y @ self.R + self.mu * H)

    @cached_property
    def gram(self) -> Float64:
        return self.R.T @ self.R

    @cached_property
    def G(self) -> Float64:
        return self.gram + self.mu * np.eye(self.R.shape[1])

    @cached_property
    def inverse(self) -> Float64:
        """G⁻¹, by the QR of R stacked on √μI, so that nothing is squared before it is inverted."""
        L = self.R.shape[1]
        S = np.linalg.qr(np.vstack([self.R, np.sqrt(self.mu) * np.eye(L)]), mode="r")
        half = solve_triangular(S, np.eye(L))
        return np.asarray(half @ half.T)

    @cached_property
    def tree(self) -> SearchTree:
        return SearchTree.grow(self.R, self.mu)

    def prepare(self, *, inverse: bool, tree: bool) -> None:
        """Compute what the blocks share, once, before threads ask for it."""
        _ = self.gram, self.G, self._Q32, inverse and self.inverse, tree and self.tree

    @cached_property
    def _Q32(self) -> Float32:
        return self.Q.astype(np.float32)


class Groups(NamedTuple):
    """Groups of `size` bits for alternation, and what enumeration inside them shares for all points.

    Theorem 4.2 serves a group I by itself: its columns of R are Q_I T_II with T_II upper triangular, so with
    the other bits fixed ‖y − Rz‖² is ‖p_I − T_I z‖² up to a constant, p_I = Q_Iᵀy and T_I = Q_IᵀR.
    triangles : (L, L) the rows T_I, of which the first `rank` of each group count; columns : (L,) the bits
    that its columns stand for, those of a group in the order of `search_order`. scan: `scan_codes`, with its
    accelerations; otherwise `walk_codes`.
    """

    size: int
    scan: bool
    running_bound: bool
    incremental: bool
    rank: int
    triangles: Float64
    columns: npt.NDArray[np.intp]
    conditions: Conditions

    @classmethod
    def reduce(
        cls, problem: ZProblem, options: ZOptions, conditions: Conditions
    ) -> tuple[Groups, Float64]:  # fmt: skip
        """The groups, and the Q_I side by side, (min(D, L), L), which give p = Qᵀy.

        conditions : those of one group of all bits.
        """
        R, G, g = problem.R, problem.G, options.group_size
        m, L = R.shape
        Q, T, columns = np.zeros((m, L)), np.empty((0, L)), np.arange(L)
        groups = [slice(first, min(first + g, L)) for first in range(0, L, g)]
        if options.scans:
            for own in groups:
                columns[own] = own.start + search_order(G[own, own])
                found = np.linalg.qr(R[:, columns[own]])[0]
                Q[:, own.start : own.start + found.shape[1]] = found
            T = Q.T @ R[:, columns]
        if 1 < g < L:
            conditions = Conditions.of(G, groups, options.optimality)
        return cls(g, options.scans, options.running_bound, options.incremental, m, T, columns, conditions), Q


# ---- The step


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
        # branch and bound finds a good code by itself, so its incumbent is the old code, gone down from;
        # and one group of all bits has but one best code
        self._start = options.start if options.solver == "alternating" else "warm"
        self._admm: RelaxedSolver | None = None
        if options.uses_relaxed:
            self._admm = RelaxedSolver.factorise(
                self.problem.G, max_iter=options.admm_iterations, tol=options.admm_tol
            )
        self.problem.prepare(
            inverse=self._start != "warm" and self._admm is None, tree=options.solver == "exact"
        )
        self._conditions = Conditions.of(self.problem.G, [slice(None)], options.optimality)
        self._groups: Groups | None = None
        self._Q: Float64 | None = None
        if options.group_size > 1 or options.scans:
            self._groups, self._Q = Groups.reduce(self.problem, options, self._conditions)

    def solve(
        self, X: Float32, H: Bits, Z: Bits, warm: tuple[Any, ...] = (), multipliers: Float32 | None = None
    ) -> ZCounts:
        """Solve a block of points in place. Z : (n, L) old codes become new ones; warm : ADMM's w and u.

        multipliers : (n, L) λ of the augmented Lagrangian, which has −λᵀ(z − h) beside the penalty: half of λ
        is added to Rᵀy, and nothing else changes but that e(h) < μ proves nothing any more.
        """
        problem, prunes = self.problem, self.options.theorem_4_3 and multipliers is None
        Y = problem.project(X)
        C = Y @ problem.R  # without μ as yet: in Gh − c it cancels, and a large one would cost digits
        if multipliers is not None:
            C += 0.5 * multipliers
        block = Block(Y, H, C, Z, np.empty(len(Z)), np.empty(len(Z), dtype=np.bool_))
        V = H @ problem.gram
        V -= C
        counts = ZCounts(projected=float(np.vdot(Y, Y)))
        counts.hash_energy = at_hash_codes(Y, H, C, V, problem.mu, prunes, Z, block.energy, block.todo)
        C += problem.mu * H
        counts.pruned = len(Z) - int(np.count_nonzero(block.todo))
        if counts.pruned < len(Z):
            self._alternate(block, V, warm, counts)
            if self.options.solver == "exact":
                targets = H if multipliers is None else H + multipliers / (2 * problem.mu)
                self._branch_and_bound(block, targets, counts)
        counts.energy = float(block.energy.sum())
        if multipliers is not None:
            at_h = float(np.vdot(multipliers.astype(np.float64), H))
            counts.energy, counts.hash_energy = counts.energy + at_h, counts.hash_energy + at_h
        return counts

    def _alternate(self, block: Block, V: Float64, warm: tuple[Any, ...], counts: ZCounts) -> None:
        """Alternation; V : (n, L) Gh − c. What is not certified remains to do."""
        problem = self.problem
        relaxed = gradient = V  # unused by a warm start
        if self._start != "warm":
            if self._admm is not None and warm:
                relaxed = self._admm.solve(block.C, warm[0], warm[1], block.todo)
            else:  # the free solution G⁻¹c, moved into the box, leads as low as ten steps of ADMM
                relaxed = block.H - V @ problem.inverse
                np.clip(relaxed, 0.0, 1.0, out=relaxed)
            gradient = relaxed @ problem.G
            gradient -= block.C
        P = V if self._Q is None else block.Y @ self._Q
        tally = np.zeros(2, dtype=np.int64)
        counts.certified = alternate_points(
            problem.G, block.H, V, P, relaxed, gradient, problem.mu, block.Z, STARTS[self._start],
            self._groups, self._conditions, block.energy, block.todo, tally,
        )  # fmt: skip
        counts.codes_evaluated, counts.dimensions_evaluated = map(int, tally)

    def _branch_and_bound(self, block: Block, targets: npt.NDArray[Any], counts: ZCounts) -> None:
        tree, max_nodes = self.problem.tree, self.options.max_nodes
        nodes = np.empty(len(block.Z), dtype=np.int64)
        branch_and_bound(
            tree.S, tree.pull, tree.least, tree.columns, tree.relaxed(block.Y, targets), block.Z,
            block.energy, block.todo, max_nodes, nodes,
        )  # fmt: skip
        counts.codes_evaluated = int(np.where(nodes < 0, max_nodes, nodes).sum())
        counts.unproven = int(np.count_nonzero(nodes < 0))


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
        elif key == "optimality" and not isinstance(value, bool):
            if not isinstance(value, (list, tuple)) or not all(name in CONDITIONS for name in value):
                allowed = f"True, False, or a list of names among {', '.join(CONDITIONS)}"
                raise InvalidParameter(f"z_options[{key!r}]", value, allowed)
        elif not isinstance(value, bool):
            raise InvalidParameter(f"z_options[{key!r}]", value, "True or False")
    optimality = z_options.get("optimality")
    names = {"optimality": CONDITIONS if optimality else ()} if isinstance(optimality, bool) else {}
    return {**z_options, **names}


# ---- Appendix A: recognising a global minimiser of a binary quadratic
#
# In ±1 variables s = 2z − 1 the Z step's e(z) is ½sᵀQs + bᵀs + constant with Q = ½G, G = RᵀR + μI, and
# (Qs + b) = Gz − c =: v, half the gradient of e at z. So each condition reads off v alone:
#
#   beck        sufficient (Beck & Teboulle)     s_i v_i ≤ λ_min(Q) for all i
#   jeyakumar   sufficient (Jeyakumar et al.)    s_i v_i ≤ q̃_i = Q_ii − Σ_{j≠i} |Q_ij| for all i
#   xia         sufficient (after Xia)           Q − diag(s_i v_i) is positive semidefinite
#   necessary   (Beck & Teboulle)                s_i v_i ≤ Q_ii for all i: no single flip lowers e
#               (Jeyakumar et al.)               bᵀs = Σ s_i v_i − sᵀQs ≤ 0: nor does the flip of all bits
#
# Flipping the bits of a set S changes e by 2(Σ_{i,j in S} s_i Q_ij s_j − Σ_{i in S} s_i v_i). If Q − diag(d)
# is positive semidefinite, the first sum is Σ_{i in S} d_i or more, so s_i v_i ≤ d_i for all i proves s
# global: λ_min and q̃ are such d for all points, and d_i = s_i v_i itself is the best one for a point, since a
# larger d only makes the matrix smaller. The necessary conditions take single bits, and all of them, for S.
#
# Each sufficient condition is enough by itself. With some bits fixed, the same holds for the others with
# their block of Q and their part of v. The appendix's two tests on the relaxed solution x are special cases
# for y = sgn(x): where x is binary, s_i v_i ≤ 0 ≤ λ_min; and Y Q (y − x) ≤ λ_min together with the relaxed
# problem's own optimality gives s_i v_i ≤ λ_min. So testing the binarised code covers them.


@kernel
def passes(z: Any, v: Any, threshold: Any) -> bool:
    """Whether s_i v_i ≤ threshold_i for all i. z : (L,) uint8 of 0/1, v = Gz − c."""
    for i in range(z.size):  # noqa: SIM110  numba has no generators
        if (v[i] if z[i] else -v[i]) > threshold[i]:
            return False
    return True


@reordering_kernel
def may_be_global(G: Any, z: Any, v: Any) -> bool:
    """The necessary conditions: neither the flip of a bit nor that of all lowers e."""
    excess = 0.0  # Σ s_i v_i − sᵀQs
    for i in range(z.size):
        slope = v[i] if z[i] else -v[i]
        if slope > 0.5 * G[i, i]:
            return False
        same = 0.0  # Σ_j Q_ij s_i s_j
        for j in range(z.size):
            same += G[i, j] if z[i] == z[j] else -G[i, j]
        excess += slope - 0.5 * same
    return excess <= 0.0


@reordering_kernel
def is_definite(G: Any, z: Any, v: Any, slack: Any) -> bool:
    """Xia's condition by Cholesky, row after row: most codes that fail do so at an early one."""
    L = z.size
    factor = np.empty((L, L))
    for i in range(L):
        for j in range(i):
            t = 0.5 * G[i, j]
            for k in range(j):
                t -= factor[i, k] * factor[j, k]
            factor[i, j] = t * factor[j, j]
        t = 0.5 * G[i, i] - (v[i] if z[i] else -v[i]) - slack
        for k in range(i):
            t -= factor[i, k] * factor[i, k]
        if t <= 0.0:
            return False
        factor[i, i] = 1.0 / np.sqrt(t)
    return True


@kernel
def is_proven(G: Any, z: Any, v: Any, conditions: Any, first: Any, last: Any) -> bool:
    """Whether any condition proves that bits first to last − 1 are best, with the others as they are."""
    G, z, v = G[first:last, first:last], z[first:last], v[first:last]
    if conditions.necessary and not may_be_global(G, z, v):
        return False
    for k in range(conditions.sufficient.shape[0]):
        if passes(z, v, conditions.sufficient[k, first:last]):
            return True
    return conditions.xia and is_definite(G, z, v, conditions.slack)


# ---- Alternation over groups of bits


@reordering_kernel
def flip(G: Any, z: Any, v: Any, i: Any) -> float:
    """Flip bit i of z, keep v = Gz − c, return by how much e changes."""
    sign = 1.0 if z[i] else -1.0
    change: float = G[i, i] - 2.0 * sign * v[i]
    z[i] ^= 1
    for j in range(z.size):
        v[j] -= sign * G[i, j]
    return change


@reordering_kernel
def move(G: Any, z: Any, v: Any, target: Any) -> float:
    """Flip the bits of z that differ from the target's, return by how much e changes."""
    change = 0.0
    for i in range(z.size):
        if z[i] != target[i]:
            change += flip(G, z, v, i)
    return change


@kernel
def half_gradient(G: Any, c: Any, z: Any, v: Any) -> None:
    """V ← Gz − c for a binary z."""
    L = z.size
    for j in range(L):
        v[j] = -c[j]
    for i in range(L):
        if z[i]:
            for j in range(L):
                v[j] += G[i, j]


@reordering_kernel
def binarise(G: Any, x: Any, v: Any, z: Any, moved: Any) -> None:
    """Greedy binarisation of x: bit after bit, the better of 0 and 1 with the others fixed.

    v : (L,) Gx − c; z : (L,) uint8 and moved : (L,) z − x are results.
    """
    for i in range(z.size):
        slope = v[i]
        for j in range(i):
            slope += G[i, j] * moved[j]
        # e as a function of bit i alone is G_ii t² + 2t(slope − G_ii x_i) + const
        z[i] = 1 if G[i, i] + 2.0 * (slope - G[i, i] * x[i]) < 0.0 else 0
        moved[i] = z[i] - x[i]


@kernel
def alternate_bits(G: Any, z: Any, v: Any, tol: Any) -> float:
    """Flip single bits while that lowers e by more than tol, in passes over the bits; returns the change."""
    L = z.size
    change = 0.0
    since = 0
    i = 0
    while since < L:
        if G[i, i] - 2.0 * (v[i] if z[i] else -v[i]) < -tol:
            change += flip(G, z, v, i)
            since = 0
        else:
            since += 1
        i = i + 1 if i + 1 < L else 0
    return change


@kernel
def alternate_groups(
    G: Any, z: Any, v: Any, h: Any, p: Any, mu: Any, groups: Any, tol: Any, out: Any
) -> float:  # fmt: skip
    """Optimise groups of bits exactly, each by enumeration of its codes, until none helps."""
    L, g = z.size, groups.size
    n_groups = (L + g - 1) // g
    work = np.empty((4, g + 1))
    total = 0.0
    since = 0
    b = 0
    while since < n_groups:
        first, last = b * g, min(b * g + g, L)
        change = 0.0
        if not is_proven(G, z, v, groups.conditions, first, last):
            if groups.scan:
                change = scan_codes(G, z, v, h, p, mu, groups, first, last, tol, work, out)
            else:
                change = walk_codes(G, z, v, first, last, tol, work[0])
        total += change
        since = 0 if change < 0.0 and n_groups > 1 else since + 1
        b = b + 1 if b + 1 < n_groups else 0
    return total


@kernel
def walk_codes(G: Any, z: Any, v: Any, first: Any, last: Any, tol: Any, local: Any) -> float:
    """The best of all patterns of bits first to last − 1, by a Gray code; returns the change of e."""
    size = last - first
    for i in range(size):
        local[i] = v[first + i]
    pattern, best_pattern = 0, 0  # which bits of the group are flipped
    change, best_change = 0.0, -tol
    for step in range(1, 1 << size):
        i = 0  # the bit that the Gray code flips next: the lowest set bit of step
        while not (step >> i) & 1:
            i += 1
        on = z[first + i] ^ ((pattern >> i) & 1)
        sign = 1.0 if on else -1.0
        change += G[first + i, first + i] - 2.0 * sign * local[i]
        for j in range(size):
            local[j] -= sign * G[first + i, first + j]
        pattern ^= 1 << i
        if change < best_change:
            best_change, best_pattern = change, pattern
    total = 0.0
    for i in range(size):
        if (best_pattern >> i) & 1:
            total += flip(G, z, v, first + i)
    return total


@kernel
def scan_codes(
    G: Any, z: Any, v: Any, h: Any, p: Any, mu: Any, groups: Any, first: Any, last: Any, tol: Any, work: Any,
    out: Any,
) -> float:  # fmt: skip
    """The paper's enumeration (section 4.3) of one group, the other bits fixed; returns the change of e.

    Codes are scanned by Hamming distance from h(x).
    running_bound: stop at the distance where μ·distance alone reaches the best value so far;
    incremental: add ‖p_I − T_I z‖² dimension by dimension, the last first, since it depends on the last bit
    alone, and stop at the best value: all codes with the same last bits are above it, so they are skipped.
    A code that a sufficient condition proves best ends the scan.
    out : (2,) codes evaluated, dimensions evaluated.
    """
    T, own, size = groups.triangles[first:last], groups.columns[first:last], last - first
    r, near, trial, sums = work[0], work[1], work[2], work[3]
    rows = min(size, groups.rank)
    best, total = 0.0, 0.0
    for i in range(size):
        near[i], trial[i] = h[own[i]], z[own[i]]
        best += mu * (near[i] != trial[i])
    for i in range(rows):
        r[i] = p[first + i]
        for j in range(z.size):
            if j < first or j >= last:
                r[i] -= T[i, j] * z[groups.columns[j]]
    T = T[:, first:last]
    for i in range(rows):
        best += squared_gap(T[i], r[i], trial, i)
    best -= 1e-12 * best + tol  # an equal code is no reason to change
    for distance in range(size + 1):
        if groups.running_bound and mu * distance >= best:
            break
        # depth first from the last bit, that of h(x) before the other one. `left`: how many of the bits
        # below i have to differ from h(x); sums[i]: the value from row i on, whatever those bits are
        sums[size] = mu * distance
        i, left = size - 1, distance
        trial[i] = near[i]
        while i < size:
            promising = 0 <= left <= i
            if promising and groups.incremental:
                sums[i] = sums[i + 1]
                if i < rows:
                    sums[i] += squared_gap(T[i], r[i], trial, i)
                    out[1] += 1
                out[0] += i == 0
                promising = sums[i] < best
            if promising and i > 0:
                i -= 1
                trial[i] = near[i]
                continue
            if promising:
                if not groups.incremental:
                    sums[0] = sums[size]
                    for k in range(rows):
                        sums[0] += squared_gap(T[k], r[k], trial, k)
                    out[0] += 1
                    out[1] += rows
                if sums[0] < best:
                    best = sums[0] - 1e-12 * sums[0] - tol
                    for k in range(size):
                        if z[own[k]] != trial[k]:
                            total += flip(G, z, v, own[k])
                    if is_proven(G, z, v, groups.conditions, first, last):
                        return total
            while i < size and trial[i] != near[i]:
                left += 1
                i += 1
            if i < size:
                trial[i] = 1.0 - near[i]
                left -= 1
    return total


@reordering_kernel
def squared_gap(row: Any, r: Any, z: Any, i: Any) -> float:
    """(r − Σ row_j z_j)², j from i on."""
    for j in range(i, row.size):
        r -= row[j] * z[j]
    return float(r * r)


@kernel
def descend(G: Any, z: Any, v: Any, h: Any, p: Any, mu: Any, groups: Any, tol: Any, out: Any) -> float:
    """Alternate over groups of bits, or over single ones; returns by how much e changes."""
    if groups is None:  # then the branch below is not compiled, which saves seconds of a first run
        return alternate_bits(G, z, v, tol)
    return alternate_groups(G, z, v, h, p, mu, groups, tol, out)


@reordering_kernel
def at_hash_codes(
    Y: Any, H: Any, C: Any, V: Any, mu: Any, prune: Any, Z: Any, out_energy: Any, todo: Any
) -> float:
    """Theorem 4.3 for a block: rows of Z whose h(x) is proven global become h(x).

    C : (n, L) YR; V : (n, L) HRᵀR − C, which is half the gradient at h(x) for any μ.
    out_energy : (n,) e(h); todo : (n,) whether the row remains to be solved. Returns the sum of e(h).
    """
    n, L = Z.shape
    total = 0.0
    for k in range(n):
        e = 0.0  # ‖y‖² + hᵀ(v − c) = ‖y − Rh‖²
        for i in range(Y.shape[1]):
            e += Y[k, i] * Y[k, i]
        for i in range(L):
            e += H[k, i] * (V[k, i] - C[k, i])
        out_energy[k] = e
        total += e
        todo[k] = not prune or e >= mu
        if not todo[k]:
            for i in range(L):
                Z[k, i] = H[k, i]
    return total


@kernel
def alternate_points(
    G: Any, H: Any, V: Any, P: Any, X: Any, VX: Any, mu: Any, Z: Any, start: Any, groups: Any,
    conditions: Any, energy: Any, todo: Any, out: Any,
) -> int:  # fmt: skip
    """Alternation for the rows to do of a block. Z : (n, L) uint8, the old codes, become the new ones.

    V : (n, L) GH − C and energy : (n,) e(h) go in; energy of the new codes comes out.
    X, VX : (n, L) relaxed solutions and GX − C, unused for start = WARM. start says where alternation
    begins: WARM, the old code; RELAXED, the lower of the old code and the binarised relaxed solution, as in
    the paper; BEST, both, and the lower result is kept.
    P : (n, L) as in `Groups`, used where it scans; conditions : of whole codes.
    todo : (n,) comes back false where a sufficient condition proves the code global; returns how many.
    out : (2,) the counts of `scan_codes` are added to it.
    """
    n, L = Z.shape
    z, z_x, target = np.empty(L, dtype=np.uint8), np.empty(L, dtype=np.uint8), np.empty(L, dtype=np.uint8)
    x, v, v_x, moved = np.empty(L), np.empty(L), np.empty(L), np.empty(L)
    largest = 0.0
    for i in range(L):
        largest = max(largest, G[i, i])
    tol = 1e-12 * largest
    certified = 0
    for k in range(n):
        if not todo[k]:
            continue
        h, p = H[k], P[k]
        for i in range(L):  # h(x), whose v is known, is but a few bits away
            z[i], v[i], target[i] = H[k, i], V[k, i], Z[k, i]
        best = energy[k] + move(G, z, v, target)
        if start != RELAXED:
            best += descend(G, z, v, h, p, mu, groups, tol, out)
        # appendix A: a code that is known to be global needs no other start
        proven = is_proven(G, z, v, conditions, 0, L)
        if start != WARM and not proven:
            for i in range(L):
                x[i], v_x[i] = X[k, i], VX[k, i]
            binarise(G, x, v_x, target, moved)
            for i in range(L):
                z_x[i], v_x[i] = z[i], v[i]
            e = best + move(G, z_x, v_x, target)
            if start == BEST:
                e += descend(G, z_x, v_x, h, p, mu, groups, tol, out)
            if e < best - tol:
                best = e
                for i in range(L):
                    z[i], v[i] = z_x[i], v_x[i]
            if start == RELAXED:
                best += descend(G, z, v, h, p, mu, groups, tol, out)
            proven = is_proven(G, z, v, conditions, 0, L)
        for i in range(L):
            Z[k, i] = z[i]
        energy[k] = best
        todo[k] = not proven
        certified += proven
    return certified


# ---- The exact Z step: branch and bound over the triangular system


@reordering_kernel
def distance(S: Any, x: Any, z: Any) -> float:
    """‖S(z − x)‖²."""
    total = 0.0
    for i in range(z.size):
        d = 0.0
        for j in range(i, z.size):
            d += S[i, j] * (z[j] - x[j])
        total += d * d
    return total


@reordering_kernel
def branch_and_bound(
    S: Any, pull: Any, least: Any, columns: Any, X: Any, Z: Any, energy: Any, todo: Any, max_nodes: Any,
    out_nodes: Any,
) -> None:  # fmt: skip
    """Minimise ‖S(z − x)‖² for each row to do, starting from the incumbent in Z : (n, L), in place.

    energy : (n,) falls by as much as the code found is better than the incumbent.
    Depth first from the last bit, nearer child first, cut where cost and bound reach the best value so far.
    out_nodes : (n,) nodes visited, or −1 for a point that used up `max_nodes` and keeps its best code.
    """
    n, L = Z.shape
    z, best_z = np.empty(L, dtype=np.uint8), np.empty(L, dtype=np.uint8)
    second = np.empty(L, dtype=np.bool_)
    free, cost = np.empty((L, L)), np.zeros(L + 1)
    for k in range(n):
        out_nodes[k] = 0
        if not todo[k]:
            continue
        x = X[k]
        for j in range(L):
            best_z[j] = Z[k, columns[j]]
        held = distance(S, x, best_z)
        best = held * (1.0 - 1e-12)  # an equal code is no reason to change
        bound = 0.0
        for j in range(L):
            free[L - 1, j] = x[j]
            gap = abs(x[j] - 0.5) - 0.5
            bound += least[L, j] * (gap * gap)
        if bound >= best:
            continue
        nodes = 0
        i = L - 1
        z[i] = 1 if x[i] > 0.5 else 0
        second[i] = False
        while i < L:
            if nodes == max_nodes:
                nodes = -1
                break
            nodes += 1
            step = z[i] - free[i, i]
            value = cost[i + 1] + S[i, i] * S[i, i] * (step * step)
            if value < best and i > 0:
                bound = 0.0
                for j in range(i):  # here, not in a function: a call would cost more than the loop
                    t = free[i, j] + pull[i, j] * step
                    free[i - 1, j] = t
                    gap = abs(t - 0.5) - 0.5
                    bound += least[i, j] * (gap * gap)
                if value + bound < best:
                    cost[i] = value
                    i -= 1
                    z[i] = 1 if free[i, i] > 0.5 else 0
                    second[i] = False
                    continue
            else:
                if value < best:
                    value = distance(S, x, z)  # as the incumbent's, so that equal codes compare as equal
                    if value < best:
                        best = value * (1.0 - 1e-12)
                        for j in range(L):
                            best_z[j] = z[j]
                        energy[k] += value - held
                        held = value
                i += 1  # the other child is farther, so it is cut too
            while i < L and second[i]:
                i += 1
            if i < L:
                second[i] = True
                z[i] ^= 1
        for j in range(L):
            Z[k, columns[j]] = best_z[j]
        out_nodes[k] = nodes


# ---- The relaxed Z step


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
