"""Kernels of the alternating Z step: energies, greedy binarisation, alternation over groups of bits.

Each point minimises e(z) = zᵀGz − 2cᵀz + const with G = RᵀR + μI and c = Rᵀy + μh. A point's state is
its code z and v = Gz − c, half the gradient: flipping bit i changes e by G_ii − 2 s_i v_i, s_i = ±1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from auxbit.compiled import kernel
from auxbit.mac.optimality import passes
from auxbit.maps import Float64

WARM, RELAXED, BEST = 0, 1, 2


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


@kernel
def energy(z: Any, v: Any, c: Any) -> float:
    """e(z) − const = zᵀ(v − c), for v = Gz − c."""
    total = 0.0
    for i in range(z.size):
        if z[i]:
            total += v[i] - c[i]
    return total


@kernel
def energies(G: Any, C: Any, Z: Any) -> Float64:
    """e(z) − const of every row. C : (n, L), Z : (n, L) uint8 → (n,)."""
    n, L = Z.shape
    out, v = np.empty(n), np.empty(L)
    for k in range(n):
        half_gradient(G, C[k], Z[k], v)
        out[k] = energy(Z[k], v, C[k])
    return out


@kernel
def binarise(G: Any, c: Any, x: Any, z: Any, v: Any) -> None:
    """Greedy binarisation: bit after bit, the better of 0 and 1 with the others fixed. Leaves v = Gz − c."""
    L = z.size
    for j in range(L):
        v[j] = -c[j]
    for i in range(L):
        if x[i] != 0.0:
            for j in range(L):
                v[j] += G[i, j] * x[i]
    for i in range(L):
        # e as a function of bit i alone is G_ii t² + 2t(v_i − G_ii x_i) + const
        z[i] = 1 if G[i, i] + 2.0 * (v[i] - G[i, i] * x[i]) < 0.0 else 0
        change = z[i] - x[i]
        if change != 0.0:
            for j in range(L):
                v[j] += G[i, j] * change


@kernel
def alternate_bits(G: Any, z: Any, v: Any, tol: Any) -> None:
    """Flip single bits while that lowers e by more than tol, in passes over the bits."""
    L = z.size
    since = 0
    i = 0
    while since < L:
        sign = 1.0 if z[i] else -1.0
        if G[i, i] - 2.0 * sign * v[i] < -tol:
            z[i] ^= 1
            for j in range(L):
                v[j] -= sign * G[i, j]
            since = 0
        else:
            since += 1
        i = i + 1 if i + 1 < L else 0


@kernel
def alternate_groups(G: Any, z: Any, v: Any, g: Any, tol: Any) -> None:
    """Optimise groups of g bits exactly, each by a Gray-code walk over its 2^g patterns, until none helps."""
    L = z.size
    n_groups = (L + g - 1) // g
    local = np.empty(g)
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
                    sign = 1.0 if z[first + i] else -1.0
                    z[first + i] ^= 1
                    for j in range(L):
                        v[j] -= sign * G[first + i, j]
            since = 0 if n_groups > 1 else n_groups
        else:
            since += 1
        b = b + 1 if b + 1 < n_groups else 0


@kernel
def descend(G: Any, z: Any, v: Any, g: Any, tol: Any) -> None:
    """Alternate over groups of g bits."""
    if g == 1:
        alternate_bits(G, z, v, tol)
    else:
        alternate_groups(G, z, v, g, tol)


@kernel
def alternate_points(
    G: Any,
    C: Any,
    X: Any,
    Z: Any,
    start: Any,
    g: Any,
    certify: Any,
    smallest_eigenvalue: Any,
    row_gap: Any,
    out_energy: Any,
    out_certified: Any,
) -> None:
    """The alternating Z step of a block. Z : (n, L) uint8, the old codes, become the new ones.

    X : (n, L) relaxed solutions (unused for start = WARM). A result worse than the old code is not taken.
    out_energy : (n,) e(z) − const; out_certified : (n,) whether a sufficient condition proves it global.
    """
    n, L = Z.shape
    v_old, v, z = np.empty(L), np.empty(L), np.empty(L, dtype=np.uint8)
    largest = 0.0
    for i in range(L):
        largest = max(largest, G[i, i])
    tol = 1e-12 * largest
    for k in range(n):
        c = C[k]
        half_gradient(G, c, Z[k], v_old)
        old = energy(Z[k], v_old, c)
        from_old = start == WARM
        if start != WARM:
            binarise(G, c, X[k], z, v)
            from_old = start == BEST and old <= energy(z, v, c)
        if from_old:
            z[:] = Z[k]
            v[:] = v_old
        # appendix A: a start that is known to be global, the binarised relaxed solution say, needs no descent
        proven = certify and (passes(z, v, smallest_eigenvalue) or passes(z, v, row_gap))
        if not proven:
            descend(G, z, v, g, tol)
        new = energy(z, v, c)
        if new > old and not from_old:  # the relaxed start led above the old code: go down from that
            z[:] = Z[k]
            v[:] = v_old
            descend(G, z, v, g, tol)
            new = energy(z, v, c)
        if new <= old:
            Z[k] = z
        else:
            new = old
            v[:] = v_old
        out_energy[k] = new
        out_certified[k] = proven or (
            certify and (passes(Z[k], v, smallest_eigenvalue) or passes(Z[k], v, row_gap))
        )
