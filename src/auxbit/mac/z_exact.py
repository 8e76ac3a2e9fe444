"""Exact Z step kernels: branch and bound over the triangular system, and the paper's enumeration.

Both find a global minimiser of e(z) = ‖y − Rz‖² + μ‖z − h‖² over z in {0, 1}^L for each point.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from auxbit.compiled import kernel
from auxbit.mac.optimality import passes
from auxbit.mac.z_kernels import half_gradient


@kernel
def branch_and_bound(S: Any, T: Any, Z: Any, max_nodes: Any, out_nodes: Any) -> None:
    """Minimise ‖t − Sz‖² for each row, S : (L, L) upper triangular, starting from the incumbent in Z.

    Depth first from the last bit, nearer child first, cut at the best value so far. A point that uses up
    `max_nodes` keeps its best code and gets out_nodes = −1.
    """
    n, L = Z.shape
    z, best_z = np.empty(L, dtype=np.uint8), np.empty(L, dtype=np.uint8)
    second = np.empty(L, dtype=np.bool_)
    centre, cost = np.empty(L), np.zeros(L + 1)
    for k in range(n):
        t = T[k]
        best = 0.0
        for i in range(L - 1, -1, -1):
            d = t[i]
            for j in range(i, L):
                if Z[k, j]:
                    d -= S[i, j]
            best += d * d
        best_z[:] = Z[k]
        best *= 1.0 - 1e-12  # an equal code is no reason to change
        nodes = 0
        i = L - 1
        centre[i] = t[i]
        z[i] = 1 if abs(centre[i] - S[i, i]) < abs(centre[i]) else 0
        second[i] = False
        while i < L:
            nodes += 1
            if nodes > max_nodes:
                break
            d = centre[i] - S[i, i] * z[i]
            value = cost[i + 1] + d * d
            if value < best:
                if i > 0:
                    cost[i] = value
                    i -= 1
                    d = t[i]
                    for j in range(i + 1, L):
                        if z[j]:
                            d -= S[i, j]
                    centre[i] = d
                    z[i] = 1 if abs(d - S[i, i]) < abs(d) else 0
                    second[i] = False
                    continue
                best = value * (1.0 - 1e-12)
                best_z[:] = z
            i += 1  # the other child is farther, so it is cut too
            while i < L and second[i]:
                i += 1
            if i < L:
                second[i] = True
                z[i] ^= 1
        Z[k] = best_z
        out_nodes[k] = -1 if nodes > max_nodes else nodes


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
        y, h, c = Y[k], H[k], C[k]
        codes, dims, ended = 0, 0, False
        best = mu * np.sum(Z[k] != h)
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
                    Z[k] = z
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
