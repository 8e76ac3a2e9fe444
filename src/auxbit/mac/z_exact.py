"""Exact Z step: branch and bound over the triangular system, and the paper's enumeration.

Both find a global minimiser of e(z) = ‖y − Rz‖² + μ‖z − h‖² over z in {0, 1}^L for each point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular

from auxbit.compiled import kernel, reordering_kernel
from auxbit.mac.optimality import passes
from auxbit.mac.z_kernels import half_gradient
from auxbit.maps import Float64


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
