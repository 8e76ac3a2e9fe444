"""Kernels of the alternating Z step: greedy binarisation, alternation over groups of bits, a block of points.

Each point minimises e(z) = zᵀGz − 2cᵀz + const with G = RᵀR + μI and c = Rᵀy + μh. A point's state is
its code z and v = Gz − c, half the gradient: flipping bit i changes e by G_ii − 2 s_i v_i, s_i = ±1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from auxbit.compiled import kernel, reordering_kernel
from auxbit.mac.optimality import passes

WARM, RELAXED, BEST = 0, 1, 2


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
