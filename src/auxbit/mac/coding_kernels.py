"""Kernels for the best code of a row under a linear decoder: products in fixed order, tabu search, settling.

A row's best code minimises e(z) = zᵀGz − 2cᵀz over z in {0, 1}^L. Tabu search always takes the best flip,
up or down, but not of the bits that it flipped last, and keeps the best code that it passes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from auxbit.compiled import kernel
from auxbit.mac.z_kernels import alternate_bits, flip, half_gradient

COLUMNS = 1024  # of W, a row's products with which are made at once: with D of some hundreds they stay in L2
RING = 64  # more than the longest tenure
SHORTEST_TENURE, TENURE_SPREAD = np.int64(5), np.int64(3)  # steps for which a bit stays flipped: 5 to 8
FORBIDDEN = np.int32(2**30)  # more than any change of e in whole numbers


@kernel
def row_products(X: Any, b: Any, W: Any, out: Any) -> None:
    """(x − b)ᵀW for each row. X : (n, D), W : (D, K), out : (n, K) of W's type.

    Not by BLAS, whose rounding depends on how many rows there are: each sum runs over d = 0, 1, 2, … in
    this order, so that the result for a row does not depend on the rows beside it.
    """
    n, D = X.shape
    kind = W.dtype.type
    for low in range(0, W.shape[1], COLUMNS):
        high = min(low + COLUMNS, W.shape[1])
        for r in range(n):
            sums = out[r, low:high]
            sums[:] = kind(0)
            d = 0
            while d + 4 <= D:  # four at a time: the sums are read and written less often
                x0, x1 = kind(X[r, d]) - b[d], kind(X[r, d + 1]) - b[d + 1]
                x2, x3 = kind(X[r, d + 2]) - b[d + 2], kind(X[r, d + 3]) - b[d + 3]
                w0, w1, w2, w3 = W[d, low:high], W[d + 1, low:high], W[d + 2, low:high], W[d + 3, low:high]
                for k in range(sums.size):
                    sums[k] = sums[k] + x0 * w0[k] + x1 * w1[k] + x2 * w2[k] + x3 * w3[k]
                d += 4
            while d < D:
                x0, w0 = kind(X[r, d]) - b[d], W[d, low:high]
                for k in range(sums.size):
                    sums[k] = sums[k] + x0 * w0[k]
                d += 1


@kernel
def tabu_search(couplings: Any, alone: Any, starts: Any, n_steps: Any, Z: Any) -> None:
    """Z : (n, L) becomes the best code on a walk from the better of a row's two starts.

    In whole numbers, multiples of 2^s ≥ L, so that a flip's change and its bit are found by one minimum:
    couplings : (L, L) int32, 2G without its diagonal; alone : (n, L) int32, the cost of each bit by itself.
    starts : (n, 2, L) uint8. The sum of |couplings| of a bit and its cost alone stay below 2^29.
    """
    n, L = Z.shape
    sign, best_sign = np.empty(L, dtype=np.int32), np.empty(L, dtype=np.int32)  # 1 for a bit that is set
    change, tag = np.empty(L, dtype=np.int32), np.empty(L, dtype=np.int32)
    ring = np.empty(RING, dtype=np.int64)
    place = 1
    while place < L:
        place *= 2
    for r in range(n):
        value = np.int64(0)
        first = 0
        for which in range(2):  # the lower of the two starts is the one that is walked to last
            here = starts[r, which]
            e = np.int64(0)
            for i in range(L):
                if here[i]:
                    e += alone[r, i]
                    for j in range(i):
                        if here[j]:
                            e += couplings[i, j]
            if which == 0 or e < value:
                value, first = e, which
        for i in range(L):
            sign[i], tag[i], change[i] = -1, i, alone[r, i]
        for i in range(L):
            if starts[r, first, i]:
                _flip_whole(couplings, sign, change, i)
        best = value
        best_sign[:] = sign
        head, tail = np.int64(0), np.int64(0)
        for step in range(n_steps):
            least = np.int32(2**31 - 1)
            for i in range(L):
                least = min(least, np.int32(change[i] + tag[i]))
            bit = np.int64(least) & (place - 1)
            value += change[bit]
            _flip_whole(couplings, sign, change, bit)
            tag[bit] += FORBIDDEN
            ring[head % RING] = bit
            head += 1
            while head - tail > SHORTEST_TENURE + (step & TENURE_SPREAD):
                tag[ring[tail % RING]] -= FORBIDDEN
                tail += 1
            if value < best:
                best = value
                best_sign[:] = sign
        for i in range(L):
            Z[r, i] = best_sign[i] > 0


@kernel
def _flip_whole(couplings: Any, sign: Any, change: Any, i: Any) -> None:
    """Flip bit i and correct what the flips of all bits would change."""
    own = change[i]
    if sign[i] > 0:
        for j in range(sign.size):
            change[j] += sign[j] * couplings[i, j]
    else:
        for j in range(sign.size):
            change[j] -= sign[j] * couplings[i, j]
    change[i] = -own
    sign[i] = -sign[i]


@kernel
def settle(G: Any, C: Any, start: Any, Z: Any) -> None:
    """Flip single bits and pairs of bits of each row of Z : (n, L) while that lowers e, in float64.

    start : (n, L) codes that come instead, where e is lower there: whole numbers are only nearly right.
    """
    n, L = Z.shape
    v, alone, sign = np.empty(L), np.empty(L), np.empty(L)
    largest = 0.0
    for i in range(L):
        largest = max(largest, G[i, i])
    tol = 1e-12 * largest
    for r in range(n):
        half_gradient(G, C[r], start[r], v)
        held = _value(C[r], start[r], v)
        for attempt in range(2):
            z = Z[r]
            half_gradient(G, C[r], z, v)
            while True:
                alternate_bits(G, z, v, tol)
                i, j = _best_pair(G, z, v, alone, sign, tol)
                if i < 0:
                    break
                flip(G, z, v, i)
                flip(G, z, v, j)
            if attempt == 1 or _value(C[r], z, v) <= held:
                break
            z[:] = start[r]


@kernel
def _value(c: Any, z: Any, v: Any) -> float:
    """e(z) = zᵀ(v − c) for v = Gz − c."""
    e = 0.0
    for i in range(z.size):
        if z[i]:
            e += v[i] - c[i]
    return e


@kernel
def _best_pair(G: Any, z: Any, v: Any, alone: Any, sign: Any, tol: Any) -> tuple[int, int]:
    """The two bits whose flip lowers e most, or (−1, −1) if none lowers it by more than tol."""
    L = z.size
    for i in range(L):
        sign[i] = 1.0 if z[i] else -1.0
        alone[i] = G[i, i] - 2.0 * sign[i] * v[i]
    best, best_i, best_j = -tol, -1, -1
    for i in range(L):
        twice = 2.0 * sign[i]
        for j in range(i):
            if alone[i] + alone[j] + twice * sign[j] * G[i, j] < best:
                best, best_i, best_j = alone[i] + alone[j] + twice * sign[j] * G[i, j], i, j
    return best_i, best_j
