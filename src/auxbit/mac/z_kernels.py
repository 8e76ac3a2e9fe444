"""Kernels of the alternating Z step: greedy binarisation, alternation over groups of bits, a block of points.

Each point minimises e(z) = zᵀGz − 2cᵀz + const with G = RᵀR + μI and c = Rᵀy + μh. A point's state is
its code z and v = Gz − c, half the gradient: flipping bit i changes e by G_ii − 2 s_i v_i, s_i = ±1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular

from auxbit.core.parallel import kernel, reordering_kernel
from auxbit.core.types import Float64

# ---- The appendix's conditions: recognising a global minimiser of a binary quadratic when we stand on it
#
# In ±1 variables s = 2z − 1 the Z step's e(z) is ½sᵀQs + bᵀs + constant with Q = ½G, G = RᵀR + μI, and
# (Qs + b) = Gz − c =: v, half the gradient of e at z. So each condition reads off v alone:
#
#   sufficient (Beck & Teboulle)     s_i v_i ≤ λ_min(Q) for all i
#   sufficient (Jeyakumar et al.)    s_i v_i ≤ q̃_i = Q_ii − Σ_{j≠i} |Q_ij| for all i
#   necessary                        s_i v_i ≤ Q_ii for all i: no single flip lowers e
#
# Either sufficient condition is enough by itself. The appendix's two tests on the relaxed solution x are
# special cases for y = sgn(x): where x is binary, s_i v_i ≤ 0 ≤ λ_min; and Y Q (y − x) ≤ λ_min together
# with the relaxed problem's own optimality gives s_i v_i ≤ λ_min. So testing the binarised code covers
# them.


@dataclass(frozen=True)
class Thresholds:
    """What s_i v_i is held against, for all points: λ_min, q̃ and diag(Q), each (L,)."""

    smallest_eigenvalue: Float64
    row_gap: Float64
    diagonal: Float64


def thresholds(G: Float64) -> Thresholds:
    """λ_min(Q), q̃ and diag(Q) for Q = ½G, once for all points; lowered by what rounding could add."""
    Q = 0.5 * G
    values = np.linalg.eigvalsh(Q)
    slack = 1e-12 * max(float(values[-1]), 1e-300)
    diagonal = Q.diagonal().copy()
    row_gap = 2 * diagonal - np.abs(Q).sum(axis=1)
    return Thresholds(np.full(len(Q), values[0] - slack), row_gap - slack, diagonal)


@kernel
def passes(z: Any, v: Any, threshold: Any) -> bool:
    """Whether s_i v_i ≤ threshold_i for all i. z : (L,) uint8 of 0/1, v = Gz − c."""
    for i in range(z.size):  # noqa: SIM110  numba has no generators
        if (v[i] if z[i] else -v[i]) > threshold[i]:
            return False
    return True


# ---- Kernels of the alternating Z step

WARM: int = 0
RELAXED: int = 1
BEST: int = 2


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
def alternate_groups(G: Any, z: Any, v: Any, g: Any, tol: Any) -> float:
    """Optimise groups of g bits exactly, each by a Gray-code walk over its 2^g patterns, until none helps."""
    L = z.size
    n_groups = (L + g - 1) // g
    local = np.empty(g)
    total = 0.0
    since = 0
    b = 0
    while since < n_groups:
        first = b * g
        size = min(g, L - first)
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
        if best_pattern:
            for i in range(size):
                if (best_pattern >> i) & 1:
                    total += flip(G, z, v, first + i)
            since = 0 if n_groups > 1 else n_groups
        else:
            since += 1
        b = b + 1 if b + 1 < n_groups else 0
    return total


@kernel
def descend(G: Any, z: Any, v: Any, g: Any, tol: Any) -> float:
    """Alternate over groups of g bits; returns by how much e changes."""
    if g == 1:
        return alternate_bits(G, z, v, tol)
    return alternate_groups(G, z, v, g, tol)


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
    G: Any,
    H: Any,
    V: Any,
    X: Any,
    VX: Any,
    Z: Any,
    start: Any,
    g: Any,
    certify: Any,
    smallest_eigenvalue: Any,
    row_gap: Any,
    energy: Any,
    todo: Any,
) -> int:
    """Alternation for the rows to do of a block. Z : (n, L) uint8, the old codes, become the new ones.

    V : (n, L) GH − C and energy : (n,) e(h) go in; energy of the new codes comes out.
    X, VX : (n, L) relaxed solutions and GX − C, unused for start = WARM. start says where alternation
    begins: the old code, the relaxed solution (then the old code if that led no lower), or both.
    todo : (n,) comes back false where a sufficient condition proves the code global; returns how many.
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
        for i in range(L):  # h(x), whose v is known, is but a few bits away
            z[i], v[i], target[i] = H[k, i], V[k, i], Z[k, i]
        best = energy[k] + move(G, z, v, target)
        if start != RELAXED:
            best += descend(G, z, v, g, tol)
        # appendix A: a code that is known to be global needs no other start
        proven = certify and (passes(z, v, smallest_eigenvalue) or passes(z, v, row_gap))
        if start != WARM and not proven:
            for i in range(L):
                x[i], v_x[i] = X[k, i], VX[k, i]
            binarise(G, x, v_x, target, moved)
            for i in range(L):
                z_x[i], v_x[i] = z[i], v[i]
            e = best + move(G, z_x, v_x, target)
            e += descend(G, z_x, v_x, g, tol)
            if e < best - tol:
                best = e
                for i in range(L):
                    z[i], v[i] = z_x[i], v_x[i]
            elif start == RELAXED:
                best += descend(G, z, v, g, tol)
            proven = certify and (passes(z, v, smallest_eigenvalue) or passes(z, v, row_gap))
        for i in range(L):
            Z[k, i] = z[i]
        energy[k] = best
        todo[k] = not proven
        certified += proven
    return certified


# ---- Exact Z step: branch and bound over the triangular system, and the paper's enumeration
#
# Both find a global minimiser of e(z) = ‖y − Rz‖² + μ‖z − h‖² over z in {0, 1}^L for each point.


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

    def relaxed(self, Y: Float64, H: npt.NDArray[np.uint8]) -> Float64:
        """The minimisers over the reals, (n, L), bits in search order."""
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
    S: Any,
    pull: Any,
    least: Any,
    columns: Any,
    X: Any,
    Z: Any,
    energy: Any,
    todo: Any,
    max_nodes: Any,
    out_nodes: Any,
) -> None:
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


@kernel
def enumerate_codes(
    R: Any,
    Y: Any,
    H: Any,
    mu: Any,
    Z: Any,
    running_bound: Any,
    incremental: Any,
    certify: Any,
    smallest_eigenvalue: Any,
    row_gap: Any,
    G: Any,
    C: Any,
    todo: Any,
    out: Any,
) -> None:
    """The paper's enumeration: codes in increasing Hamming distance from h(x); Z holds the old codes.

    running_bound: stop at the distance where μ·distance alone reaches the best value so far;
    incremental: add ‖y − Rz‖² dimension by dimension and stop above the best value;
    certify: stop at a code that a sufficient condition proves global.
    out : (n, 3) codes evaluated, dimensions evaluated, whether a certificate ended the search.
    """
    n, L = Z.shape
    m = R.shape[0]
    v = np.empty(L)
    z = np.empty(L, dtype=np.uint8)
    for k in range(n):
        codes, dims, ended = 0, 0, False
        out[k, 0], out[k, 1], out[k, 2] = codes, dims, ended
        if not todo[k]:
            continue
        y, h, c = Y[k], H[k], C[k]
        best = 0.0
        for j in range(L):
            best += mu * (Z[k, j] != h[j])
        for i in range(m):
            d = y[i]
            for j in range(i, L):
                if Z[k, j]:
                    d -= R[i, j]
            best += d * d
        best -= 1e-12 * best  # an equal code is no reason to change
        if certify:
            half_gradient(G, c, Z[k], v)
            ended = passes(Z[k], v, smallest_eigenvalue) or passes(Z[k], v, row_gap)
        distance = 0
        while distance <= L and not ended:
            if running_bound and mu * distance >= best:
                break
            mask = (1 << distance) - 1  # the first of the masks with `distance` bits set
            while mask < (1 << L) and not ended:
                for j in range(L):
                    z[j] = h[j] ^ ((mask >> j) & 1)
                codes += 1
                value = mu * distance
                i = m - 1  # the last rows of R are the shortest
                while i >= 0 and not (incremental and value >= best):
                    d = y[i]
                    for j in range(i, L):
                        if z[j]:
                            d -= R[i, j]
                    value += d * d
                    dims += 1
                    i -= 1
                if i < 0 and value < best:
                    best = value * (1.0 - 1e-12)
                    for j in range(L):
                        Z[k, j] = z[j]
                    if certify:
                        half_gradient(G, c, z, v)
                        ended = passes(z, v, smallest_eigenvalue) or passes(z, v, row_gap)
                if distance == 0:
                    break
                low = mask & -mask  # the next mask with as many bits set
                ripple = mask + low
                mask = (((ripple ^ mask) >> 2) // low) | ripple
            distance += 1
        out[k, 0], out[k, 1], out[k, 2] = codes, dims, ended
