"""Kernels of the quantiser: tabu search for bits and for bytes, least squares for tables, products of rows.

Tabu search always takes the best change of one bit (under a linear decoder) or one byte (of tables), up or
down, but not of those that it changed last, and keeps the best code it passes. Under a linear decoder a row's
best code minimises e(z) = zᵀGz − 2cᵀz over z in {0, 1}^L.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.core.checks import Float32
from auxbit.core.parallel import kernel
from auxbit.core.simd import LINE, ROWS, SHORTS, TILE_COLUMNS, least_short, multiply_tile, pass_on, popcount
from auxbit.mac.z_step import alternate_bits, flip, half_gradient

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

    start : (n, L) codes that come instead if e is lower there: whole numbers are only nearly right.
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


# ---- A decoder of tables: two bytes are enumerated, more are searched
#
# A row's best bytes minimise e(z) = Σ_j U_j[z_j] + Σ_{i<j} P_ij[z_i, z_j], U what each value of a byte
# costs by itself and P what two of them cost each other: 2⟨T_i[u], T_j[v]⟩, the same for all rows.

VALUES = 256
SHORT_ZERO = np.int32(-(2**14))  # of costs by themselves: with what pairs add or take they fill int16
NEVER = np.int16(2**15 - 1)  # more than the cost of any value that a byte may have
BYTE_TENURE_SPREAD = 3  # a byte that was changed stays as it is for 1 to 3 steps
SETTLED = 1e-9  # part of what is worth settling that is no gain
MOST_SWEEPS = 20
VALUE_TENURE = 4  # changes for which a byte does not return to the value that it had


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
    """U : (n, M, 256) as whole multiples of the unit, above the cheapest value, into out : (n, M·256) int16.

    What costs more than the limit of its byte above the cheapest value can never be chosen, whatever the
    other bytes are: cut off there, so that a row far away needs no larger numbers.
    """
    for r in range(U.shape[0]):
        for j in range(U.shape[1]):
            u, first = U[r, j], j * VALUES
            least = u[0]
            for v in range(1, n_values[j]):
                least = min(least, u[v])
            for v in range(n_values[j]):
                out[r, first + v] = np.int32(np.rint(min(u[v] - least, limits[j]) * unit)) + SHORT_ZERO
            for v in range(n_values[j], VALUES):
                out[r, first + v] = NEVER


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
def _add_pairs(sums: Any, P: Any, i: Any, value: Any) -> None:
    """Add what all values of all bytes cost beside this value of byte i."""
    for k in range(sums.size):
        sums[k] += P[i, value, k]


@kernel
def _exchange_pairs(sums: Any, P: Any, i: Any, before: Any, now: Any) -> None:
    for k in range(sums.size):
        sums[k] += P[i, now, k] - P[i, before, k]


@kernel
def _first_bytes(U: Any, P: Any, start: Any, sums: Any, z: Any) -> int:
    """Begin with the bytes one by one, each the best beside those before it, or the start, if it costs less.

    U : (M·256,), start : (M,); z gets the bytes, sums what each value of each byte costs beside the others.
    Returns the cost.
    """
    at, value = sums.ctypes.data, np.int64(0)
    sums[:] = U
    for j in range(z.size):
        least = least_short(at + SHORTS * j)
        z[j] = least & (VALUES - 1)
        value += least >> 8
        _add_pairs(sums, P, j, z[j])
    held = whole_cost(U, P, start)
    if held > value:
        return int(value)
    sums[:] = U
    for j in range(z.size):
        z[j] = start[j]
        _add_pairs(sums, P, j, z[j])
    return int(held)


@kernel
def search_bytes(U: Any, P: Any, n_steps: Any, Z: Any) -> None:
    """Tabu search: Z : (n, M) uint8 becomes the best code of each row on a walk, none worse than it was.

    U : (n, M·256) int16 of `in_whole_numbers`; P : (M, 256, M·256) int16, P[i, z_i, 256j + z_j], 0 for i = j.
    A step changes the byte, and to the value, that costs least, up or down; but not one of the bytes changed
    last, unless that leads to the best code so far, nor to one of the values left last. The walk does not end
    on a new best code, but continues from there as long as steps go down.
    """
    n, M = Z.shape
    sums, until = np.empty(M * VALUES, dtype=np.int16), np.empty(M, dtype=np.int64)
    z, best = np.empty(M, dtype=np.int64), np.empty(M, dtype=np.int64)
    left, hidden = np.empty(VALUE_TENURE, dtype=np.int64), np.empty(M + VALUE_TENURE, dtype=np.int16)
    at = sums.ctypes.data
    for r in range(n):
        value = _first_bytes(U[r], P, Z[r], sums, z)
        lowest, step = value, 0
        best[:] = z
        until[:] = 0
        while step < n_steps or value == lowest:
            n_left = min(step, VALUE_TENURE)
            for j in range(M):
                hidden[j] = sums[j * VALUES + z[j]]
            for k in range(n_left):
                hidden[M + k] = sums[left[k]]
            _hide(sums, z, left[:n_left])
            change, byte, new = np.int64(2**62), -1, 0
            for j in range(M):
                least = least_short(at + SHORTS * j)
                own = (least >> 8) - hidden[j]
                free = (least >> 8) < NEVER and (until[j] <= step or value + own < lowest)
                if free and own < change:
                    change, byte, new = own, j, least & (VALUES - 1)
            for j in range(M):
                sums[j * VALUES + z[j]] = hidden[j]
            for k in range(n_left):
                sums[left[k]] = hidden[M + k]
            if byte < 0 or (step >= n_steps and change >= 0):
                break
            value += int(change)
            left[step % VALUE_TENURE] = byte * VALUES + z[byte]
            _exchange_pairs(sums, P, byte, z[byte], new)
            z[byte] = new
            step += 1
            until[byte] = step + min(1 + step % BYTE_TENURE_SPREAD, M - 2)
            if value < lowest:
                lowest = value
                best[:] = z
        for j in range(M):
            Z[r, j] = best[j]


@kernel
def _hide(sums: Any, z: Any, left: Any) -> None:
    """Make the present values of bytes, and those left last, too dear to be chosen."""
    for j in range(z.size):
        sums[j * VALUES + z[j]] = NEVER
    for place in left:
        sums[place] = NEVER


@kernel
def whole_cost(U: Any, P: Any, z: Any) -> int:
    """What a code costs, in whole numbers."""
    cost = np.int64(0)
    for j in range(z.size):
        cost += U[j * VALUES + z[j]]
        for i in range(j):
            cost += P[i, z[i], j * VALUES + z[j]]
    return int(cost)


@kernel
def keep_better(U: Any, P: Any, X: Any, b: Any, tables: Any, H: Any, mu: Any, start: Any, Z: Any) -> None:
    """Put the start back where it is the better code: whole numbers are only nearly right.

    U, P : as for search_bytes, which tell most; X : (n, D), tables : (M, 256, D), H, start, Z : (n, M) uint8,
    to compare the others in float64.
    """
    n, M = Z.shape
    rest = np.empty(X.shape[1])
    doubt = M * (M + 1)  # more than what rounding changes of two codes' costs
    for r in range(n):
        same = True
        for j in range(M):
            same &= Z[r, j] == start[r, j]
        if same or whole_cost(U[r], P, Z[r]) + doubt < whole_cost(U[r], P, start[r]):
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
def settle_bytes(
    X: Any, b: Any, tables: Any, panels: Any, norms: Any, H: Any, mu: Any, exact: Any, Z: Any
) -> None:
    """Set bytes to their best value, one after another, until none is better, in float64.

    Only of rows of which codes leave less than `exact`, a squared length: whole numbers are too coarse there.
    X : (n, D), tables : (M, 256, D), panels : their vectors, norms : (M·256,) their squares; H, Z : (n, M).
    """
    n, M = Z.shape
    D, lanes = X.shape[1], panels.shape[2]
    rest, costs = np.empty(D), np.empty(VALUES)
    for r in range(n):
        for d in range(D):
            rest[d] = X[r, d] - b[d]
        for j in range(M):
            for d in range(D):
                rest[d] -= tables[j, Z[r, j], d]
        left = 0.0
        for d in range(D):
            left += rest[d] * rest[d]
        since = 0 if left < exact else M
        for turn in range(MOST_SWEEPS * M):
            if since == M:
                break
            j = turn % M
            first = j * VALUES
            for d in range(D):
                rest[d] += tables[j, Z[r, j], d]
            for v in range(VALUES):
                costs[v] = norms[first + v]
            for p in range(VALUES // lanes):
                for d in range(D):
                    twice = 2.0 * rest[d]
                    for lane in range(lanes):
                        costs[p * lanes + lane] -= twice * panels[first // lanes + p, d, lane]
            best = int(Z[r, j])
            for v in range(VALUES):
                costs[v] += mu * popcount(np.uint64(v ^ np.int64(H[r, j])))
            for v in range(VALUES):
                if costs[v] < costs[best] - SETTLED * exact:
                    best = v
            since = since + 1 if best == Z[r, j] else 1
            Z[r, j] = best
            for d in range(D):
                rest[d] -= tables[j, best, d]


SOLVED_DIMS = LINE  # tables of 16 bytes then take a quarter of a megabyte
MOST_STEPS = 1000


@kernel
def solve_tables(X: Any, Z: Any, counts: Any, shrink: Any, pulls: Any, tolerance: Any, T: Any) -> None:
    """Tables T : (M·256, 16) with the least Σ(x − Σ_j T[z_j])² + shrink·‖T − T as given‖² + Σ pull·T².

    Each of 16 dimensions is a problem of its own; conjugate gradients, divided by the rows of each value.
    X : (n, 16) and T float32, Z : (n, M) uint8; counts : (M·256,) rows of each value, pulls : (16,).
    """
    gradient, step, image = np.zeros_like(T), np.empty_like(T), np.empty_like(T)
    _subtract_rows(X, Z, T, gradient)
    now, first, along = np.zeros(SOLVED_DIMS), np.zeros(SOLVED_DIMS), np.empty(SOLVED_DIMS)
    for k in range(len(T)):
        for d in range(SOLVED_DIMS):
            gradient[k, d] -= pulls[d] * T[k, d]
            step[k, d] = gradient[k, d] / (counts[k] + shrink + pulls[d])
            now[d] += gradient[k, d] * step[k, d]
    first[:] = now
    for _ in range(MOST_STEPS):
        if not (now > tolerance * first).any():
            break
        _image(Z, step, image)
        along[:] = 0.0
        for k in range(len(T)):
            for d in range(SOLVED_DIMS):
                image[k, d] += (shrink + pulls[d]) * step[k, d]
                along[d] += step[k, d] * image[k, d]
        for d in range(SOLVED_DIMS):
            along[d] = now[d] / along[d] if along[d] > 0.0 else 0.0
        before = now.copy()
        now[:] = 0.0
        for k in range(len(T)):
            for d in range(SOLVED_DIMS):
                T[k, d] += along[d] * step[k, d]
                gradient[k, d] -= along[d] * image[k, d]
                now[d] += gradient[k, d] * gradient[k, d] / (counts[k] + shrink + pulls[d])
        for d in range(SOLVED_DIMS):
            along[d] = now[d] / before[d] if before[d] > 0.0 else 0.0
        for k in range(len(T)):
            for d in range(SOLVED_DIMS):
                step[k, d] = gradient[k, d] / (counts[k] + shrink + pulls[d]) + along[d] * step[k, d]


@kernel
def add_values(X: Any, Z: Any, counts: Any, totals: Any) -> None:
    """Add to counts, (M·256, M·256), the pairs of values of each row, and to totals, (M·256, D), the row."""
    D = totals.shape[1]
    for r in range(Z.shape[0]):
        for j in range(Z.shape[1]):
            value = j * VALUES + Z[r, j]
            for d in range(D):
                totals[value, d] += X[r, d]
            for k in range(Z.shape[1]):
                counts[value, k * VALUES + Z[r, k]] += 1


@kernel
def _subtract_rows(X: Any, Z: Any, T: Any, sums: Any) -> None:
    """Add what the tables leave of each row to the sums of its bytes' values."""
    rest = np.empty(SOLVED_DIMS, dtype=T.dtype)
    for r in range(Z.shape[0]):
        for d in range(SOLVED_DIMS):
            rest[d] = X[r, d]
        for j in range(Z.shape[1]):
            k = j * VALUES + Z[r, j]
            for d in range(SOLVED_DIMS):
                rest[d] -= T[k, d]
        for j in range(Z.shape[1]):
            k = j * VALUES + Z[r, j]
            for d in range(SOLVED_DIMS):
                sums[k, d] += rest[d]


@kernel
def _image(Z: Any, step: Any, out: Any) -> None:
    """The sums, by the bytes' values, of what a step of the tables adds to the rows."""
    n, M = Z.shape
    codes_at, step_at, out_at = Z.ctypes.data, step.ctypes.data, out.ctypes.data
    out[:] = 0.0
    for r in range(n):
        pass_on(codes_at + r * M, M, step_at, out_at)


# ---- Products of rows with many columns, as fast as BLAS's, and independent of the rows beside a row
#
# BLAS rounds by how many rows there are, so that the code of a row would depend on its neighbours. Here
# every sum runs over the dimensions in their order; a tile of 4 rows × 64 columns of sums stays in
# registers.

Panels = npt.NDArray[np.float32]  # (K / 64, D, 64)

GROUP = 128  # rows that go through all panels before the next ones


def to_panels(columns: npt.NDArray[np.floating[Any]]) -> Panels:
    """Columns, (D, K) with K a multiple of 64, in panels of 64 that are read from front to end."""
    D, K = columns.shape
    panels = columns.astype(np.float32).reshape(D, K // TILE_COLUMNS, TILE_COLUMNS).transpose(1, 0, 2)
    return np.ascontiguousarray(panels)


def tile_products(X: Float32, panels: Panels) -> Float32:
    """X times the columns of the panels, (n, D) → (n, K) float32."""
    n, D = X.shape
    rows = np.zeros((-(-n // ROWS) * ROWS, D), dtype=np.float32)
    rows[:n] = X
    out = np.empty((len(rows), panels.shape[0] * TILE_COLUMNS), dtype=np.float32)
    _multiply(rows, panels, out)
    return out[:n]


@kernel
def _multiply(X: Any, panels: Any, out: Any) -> None:
    n, D = X.shape
    K = out.shape[1]
    X_at, panels_at, out_at = X.ctypes.data, panels.ctypes.data, out.ctypes.data
    for group in range(0, n, GROUP):
        for p in range(len(panels)):
            for r in range(group, min(n, group + GROUP), ROWS):
                here = out_at + 4 * (r * K + p * TILE_COLUMNS)
                multiply_tile(X_at + 4 * r * D, 4 * D, panels_at + 4 * p * D * TILE_COLUMNS, D, here, 4 * K)
