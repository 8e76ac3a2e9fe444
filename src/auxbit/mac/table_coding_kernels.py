"""Kernels for the best bytes of a row under a decoder of tables: enumeration of two, local search of more.

A row's best bytes minimise e(z) = Σ_j U_j[z_j] + Σ_{i<j} P_ji[z_i, z_j], U what each value of a byte costs
by itself and P what two of them cost each other: 2⟨T_i[u], T_j[v]⟩, the same for all rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from auxbit.compiled import kernel

VALUES = 256
LEAST_BITS = np.int32(VALUES - 1)  # of a cost in whole numbers: the value of the byte that has it
NEVER = np.int32(2**30)  # more than any cost in whole numbers
MOST_SWEEPS = 100  # until a code settles; a few are enough


@kernel
def add_mismatches(U: Any, H: Any, mu: Any) -> None:
    """Add μ times the number of bits in which each value of a byte differs from h(x)'s. U : (n, M, 256)."""
    set_bits = np.zeros(VALUES, dtype=np.uint8)
    for v in range(1, VALUES):
        set_bits[v] = set_bits[v >> 1] + (v & 1)
    for r in range(U.shape[0]):
        for j in range(U.shape[1]):
            for v in range(VALUES):
                U[r, j, v] += U.dtype.type(mu * set_bits[v ^ H[r, j]])


@kernel
def in_whole_numbers(U: Any, limits: Any, n_values: Any, unit: Any, out: Any) -> None:
    """U : (n, M, 256) as whole multiples of the unit times 256, plus the value of the byte.

    What costs more than the limit of its byte above the cheapest value can never be chosen, whatever the
    other bytes are: cut off there, so that a row far away needs no larger numbers.
    """
    for r in range(U.shape[0]):
        for j in range(U.shape[1]):
            u = U[r, j]
            least = u[0]
            for v in range(1, n_values[j]):
                least = min(least, u[v])
            for v in range(n_values[j]):
                out[r, j, v] = np.int32(np.rint(min(u[v] - least, limits[j]) * unit)) * VALUES + v
            for v in range(n_values[j], VALUES):
                out[r, j, v] = NEVER + v


@kernel
def enumerate_two(U: Any, P: Any, n_values: Any, Z: Any) -> None:
    """The best of all pairs of values of two bytes. U : (n, 2, 256), P : (256, 256) by values of 0 and 1."""
    lowest, owner = np.empty(VALUES), np.empty(VALUES, dtype=np.int64)
    for r in range(Z.shape[0]):
        lowest[:] = np.inf
        for u in range(n_values[0]):
            own, row = U[r, 0, u], P[u]
            for v in range(VALUES):  # 256 minima at once: no order of comparisons to keep
                cost = own + row[v]
                better = cost < lowest[v]
                lowest[v] = cost if better else lowest[v]
                owner[v] = u if better else owner[v]
        best = np.inf
        for v in range(n_values[1]):
            if lowest[v] + U[r, 1, v] < best:
                best = lowest[v] + U[r, 1, v]
                Z[r, 0], Z[r, 1] = owner[v], v


@kernel
def costs_of_values(U: Any, P: Any, Z: Any, r: Any, j: Any, first: Any, sums: Any) -> None:
    """What each value of byte j of row r costs beside the row's `first` bytes, into sums : (256,) int32.

    Arrays are indexed, not cut into views: counting the references to views takes longer than the sums.
    """
    for v in range(VALUES):
        sums[v] = 0
    i = 0
    while i + 4 <= first:
        a, b, c, d = np.int64(Z[r, i]), np.int64(Z[r, i + 1]), np.int64(Z[r, i + 2]), np.int64(Z[r, i + 3])
        for v in range(VALUES):
            sums[v] = sums[v] + P[j, i, a, v] + P[j, i + 1, b, v] + P[j, i + 2, c, v] + P[j, i + 3, d, v]
        i += 4
    while i < first:
        a = np.int64(Z[r, i])
        for v in range(VALUES):
            sums[v] = sums[v] + P[j, i, a, v]
        i += 1
    for v in range(VALUES):
        sums[v] = sums[v] * VALUES + U[r, j, v]


@kernel
def cheapest(sums: Any) -> Any:
    """The least cost, in whose last eight bits its value is."""
    least = sums[0]
    for v in range(1, VALUES):
        least = min(least, sums[v])
    return least


@kernel
def local_search(U: Any, P: Any, Z: Any, moves: Any, n_moved: Any, n_sweeps: Any, n_rounds: Any) -> None:
    """Iterated local search; no row's code gets worse than in Z : (n, M) uint8, which has the results.

    U : (n, M, 256) int32 of `in_whole_numbers`; P : (M, M, 256, 256) int16, P[j, i, z_i, z_j], 0 for i = j.
    A round moves some bytes to the best of their other values, then sweeps over all bytes, setting each to
    its best; what comes out worse than the best so far is taken back. moves : the bytes in their order,
    the same for every row. All rows take a step together, which so finds a byte's share of P in the cache.
    """
    n, M = Z.shape
    sums, best = np.empty(VALUES, dtype=np.int32), Z.copy()
    since, gain = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    for r in range(n):  # another start than Z: bytes one by one, each the best beside those before it
        change = np.int64(0)
        for j in range(M):
            change -= U[r, j, best[r, j]]
            for i in range(j):
                change -= VALUES * np.int64(P[j, i, best[r, i], best[r, j]])
            costs_of_values(U, P, Z, r, j, j, sums)
            least = cheapest(sums)
            Z[r, j] = least & LEAST_BITS
            change += least
        for j in range(M):
            if change < 0:
                best[r, j] = Z[r, j]
            else:
                Z[r, j] = best[r, j]
    place = 0
    for round_ in range(n_rounds + 2):
        if 0 < round_ <= n_rounds:
            for _ in range(n_moved):
                j = moves[place]
                place += 1
                for r in range(n):
                    costs_of_values(U, P, Z, r, j, M, sums)
                    before = sums[Z[r, j]]
                    sums[Z[r, j]] = np.int32(2**31 - 1)
                    least = cheapest(sums)
                    gain[r] += least - before
                    Z[r, j] = least & LEAST_BITS
        j = moves[place]
        place += 1
        since[:] = 0
        # in the end the best code is swept over until it settles
        for _ in range((n_sweeps if round_ <= n_rounds else MOST_SWEEPS) * M):
            j = j + 1 if j + 1 < M else 0
            moving = False
            for r in range(n):
                if since[r] < M:
                    moving = True
                    costs_of_values(U, P, Z, r, j, M, sums)
                    least = cheapest(sums)
                    change = least - sums[Z[r, j]]
                    since[r] = 0 if change < 0 else since[r] + 1
                    gain[r] += change
                    Z[r, j] = least & LEAST_BITS
            if not moving:
                break
        for r in range(n):
            for j in range(M):
                if gain[r] < 0:
                    best[r, j] = Z[r, j]
                else:
                    Z[r, j] = best[r, j]
            gain[r] = 0


@kernel
def whole_cost(U: Any, P: Any, Z: Any, r: Any) -> int:
    """What the code of row r costs, in whole numbers."""
    cost = np.int64(0)
    for j in range(Z.shape[1]):
        cost += U[r, j, Z[r, j]]
        for i in range(j):
            cost += VALUES * np.int64(P[j, i, Z[r, i], Z[r, j]])
    return int(cost)


@kernel
def keep_better(U: Any, P: Any, X: Any, b: Any, tables: Any, H: Any, mu: Any, start: Any, Z: Any) -> None:
    """Put the start back where it is the better code: whole numbers are only nearly right.

    U, P : as for local_search, which tell most; X : (n, D), tables : (M, 256, D), H, start, Z : (n, M) uint8,
    to compare the others in float64.
    """
    n, M = Z.shape
    rest = np.empty(X.shape[1])
    doubt = VALUES * M * (M + 1)  # more than what rounding changes of two codes' costs
    for r in range(n):
        same = True
        for j in range(M):
            same &= Z[r, j] == start[r, j]
        if same or whole_cost(U, P, Z, r) + doubt < whole_cost(U, P, start, r):
            continue
        values = (0.0, 0.0)
        for which in range(2):
            value = 0.0
            for d in range(rest.size):
                rest[d] = X[r, d] - b[d]
            for j in range(M):
                byte = np.int64(start[r, j] if which else Z[r, j])
                for d in range(rest.size):
                    rest[d] -= tables[j, byte, d]
                differing = byte ^ np.int64(H[r, j])
                while differing:
                    value += mu * (differing & 1)
                    differing >>= 1
            for d in range(rest.size):
                value += rest[d] * rest[d]
            values = (value, values[0])
        if values[0] < values[1]:
            for j in range(M):
                Z[r, j] = start[r, j]


@kernel
def sweep_residuals(
    X: Any, tables: Any, norms: Any, H: Any, mu: Any, n_values: Any, n_sweeps: Any, Z: Any
) -> None:
    """Set each byte to its best beside the others, in sweeps, without tables of pairs: for wide codes.

    X : (n, D) float64, rows less b; tables : (M, D, 256), norms : (M, 256), all float64.
    """
    n, M = Z.shape
    D = X.shape[1]
    rest, sums = np.empty(D), np.empty(VALUES)
    for r in range(n):
        rest[:] = X[r]
        for j in range(M):
            for d in range(D):
                rest[d] -= tables[j, d, Z[r, j]]
        since, j = 0, 0
        for _ in range(n_sweeps * M):
            if since == M:
                break
            old = Z[r, j]
            sums[:] = norms[j]
            for d in range(D):
                x = rest[d] + tables[j, d, old]
                rest[d] = x
                row = tables[j, d]
                for v in range(VALUES):
                    sums[v] = sums[v] - 2.0 * x * row[v]
            for v in range(VALUES):
                differing = v ^ H[r, j]
                while differing:
                    sums[v] += mu * (differing & 1)
                    differing >>= 1
            new = old
            for v in range(n_values[j]):
                if sums[v] < sums[new]:
                    new = np.uint8(v)
            since = since + 1 if new == old else 0
            Z[r, j] = new
            for d in range(D):
                rest[d] -= tables[j, d, new]
            j = j + 1 if j + 1 < M else 0


@kernel
def count_pairs(Z: Any, counts: Any) -> None:
    """How often two values of two bytes stand in one row. Z : (n, M) uint8, counts : (M·256, M·256)."""
    n, M = Z.shape
    for r in range(n):
        for i in range(M):
            row = counts[i * VALUES + Z[r, i]]
            for j in range(M):
                row[j * VALUES + Z[r, j]] += 1


@kernel
def add_rows(X: Any, Z: Any, sums: Any) -> None:
    """Add each row to the sums of its bytes' values. X : (n, D), Z : (n, M) uint8, sums : (M·256, D)."""
    for r in range(Z.shape[0]):
        for j in range(Z.shape[1]):
            total = sums[j * VALUES + Z[r, j]]
            for d in range(X.shape[1]):
                total[d] += X[r, d]
