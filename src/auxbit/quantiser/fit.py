"""Fitting a decoder to the best codes that it can have: codes and least squares in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from auxbit.core.checks import Array, Bits, Float32, Float64, Ids, Packed
from auxbit.core.decoders import ListDecoder, Plain, TableDecoder
from auxbit.core.maps import VALUES, LinearDecoder, LinearEncoder, bytes_per_code, pack_bools, unpack
from auxbit.core.parallel import Workers, some_rows
from auxbit.errors import InvalidParameter
from auxbit.mac.loop import DecoderSums, Moments, decoder_sums, f_step
from auxbit.mac.steps import ByRows, MemoryRows, Rows
from auxbit.mac.z_step import ZCounts
from auxbit.quantiser.coder import coder_of, optimal_codes, values_of_bytes, with_error_bits
from auxbit.quantiser.kernels import SOLVED_DIMS, add_values, solve_tables
from auxbit.quantiser.lists import (
    ASKED,
    ASKED_SHARE,
    SHARE,
    Centroids,
    coverage_of,
    find_centroids,
    k_means,
)

# ---- The f step for a decoder of tables: least squares, shrunk towards the present tables

TOLERANCE = 1e-3  # part of what least squares can still gain that is left


def table_step(
    X: Float32, codes: Packed, present: TableDecoder, shrink: float, workers: Workers,
    pulls: Float64 | None = None, tolerance: float = TOLERANCE,
) -> TableDecoder:  # fmt: skip
    """Least squares over the tables, b as it is: min Σ‖x − f(z)‖² + shrink·Σ‖T_j[v] − present T_j[v]‖².

    X : (n, D) scaled, codes : (n, M). The pull towards the present tables (shrink > 0) decides what rows
    cannot: values without rows, and vectors that could as well be in another byte's table.
    pulls : (D,), the pull of each dimension towards 0, in rows; infinite: nothing is stored of it.
    By conjugate gradients from the present tables, some dimensions at a time.
    """
    M, _, D = present.tables.shape
    pulls = np.zeros(D) if pulls is None else pulls
    stored = np.flatnonzero(np.isfinite(pulls))
    codes = np.ascontiguousarray(codes)
    counts = np.stack([np.bincount(own, minlength=VALUES) for own in codes.T]).ravel()
    held, tables = present.tables.reshape(M * VALUES, D), np.zeros((M * VALUES, D), dtype=np.float32)

    def solve(some: slice) -> None:
        dims = stored[some]
        T = np.zeros((M * VALUES, SOLVED_DIMS), dtype=np.float32)
        rows = np.zeros((len(X), SOLVED_DIMS), dtype=np.float32)
        own, known = np.zeros(SOLVED_DIMS), slice(None, len(dims))
        T[:, known], rows[:, known], own[known] = held[:, dims], X[:, dims] - present.b[dims], pulls[dims]
        largest = np.maximum(np.abs(rows).max(axis=0, initial=0), np.abs(T).max(axis=0))
        units = np.where(largest > 0, np.exp2(np.frexp(largest)[1]), 1.0)  # squares of tiny numbers vanish
        T, rows = (T / units).astype(np.float32), (rows / units).astype(np.float32)
        solve_tables(rows, codes, counts, shrink, own, tolerance, T)
        tables[:, dims] = (T * units)[:, known]

    workers.run(solve, len(stored), SOLVED_DIMS)
    return TableDecoder(tables.reshape(M, VALUES, D), present.b, present.n_bits, present.normalize)


def value_sums(D: int, X: Float32, codes: Packed) -> tuple[Array, Array]:
    """How many rows have each pair of values, (M·256, M·256), and Σx of each value, (M·256, D).

    X : (n, D or more), at most a block; codes : (n, M).
    """
    n_values = VALUES * codes.shape[1]
    counts = np.zeros((n_values, n_values), dtype=np.uint16)
    totals = np.zeros((n_values, D), dtype=np.float32)
    add_values(X, codes, counts, totals)
    return counts, totals


def summed_step(counts: Float64, totals: Float64, present: TableDecoder, shrink: float) -> TableDecoder:
    """What `table_step` tends to, from sums over rows (see `value_sums`), which may lie anywhere."""
    n_rows = counts.diagonal().copy()
    used = np.flatnonzero(n_rows)
    held = present.tables.reshape(len(counts), -1)
    wanted = totals[used] - n_rows[used, None] * present.b + shrink * held[used]
    counts = counts[np.ix_(used, used)]
    counts[np.diag_indices(len(used))] += shrink
    tables = held.copy()
    tables[used] = cho_solve(cho_factor(counts, overwrite_a=True), wanted, overwrite_b=True)
    return replace(present, tables=tables.reshape(present.tables.shape))


# ---- Codes and decoder in turn

Turned = Callable[[int, int], object]
Taken = tuple[Float32, npt.NDArray[np.int64]]  # centres, (m, D), and which of them was taken from each row

KINDS = ("linear", "tables", "auto")
TURNS = 15
EFFORT, TABLES_EFFORT = 0.5, 0.3  # of the search for codes while the decoder is not settled, as a share
SHRINK = 1.0  # rows by which each vector of a table is held where it is
TABLE_ROWS = 50_000  # enough for a decoder with lists
COPIES = 6  # that a fit makes of rows, and of those that it searches for neighbours as many again
LEAST_ROWS = 1000


def rows_of_decoder(memory: int, D: int) -> int:
    """How many rows, of D numbers, a decoder can be fitted to in that many bytes."""
    row = COPIES * 4 * D
    searched = row + 3 * JUDGES  # neighbours by truth, and distances on a few threads
    n = memory // (row + searched)
    return max(LEAST_ROWS, n if n <= SEARCHED else (memory - SEARCHED * searched) // row)


def fit_lists(
    X: Float32, H: Packed, f: Plain, kind: str, n_lists: int, n_iter: int | None, workers: Workers,
    rng: np.random.RandomState, callback: Turned | None = None, *, can_ask: bool = True,
    refine_bits: int = 0,
) -> ListDecoder:  # fmt: skip
    """A decoder with lists, for the best codes of what is left of rows. The others as in fit_decoder.

    Some rows are held out, to ask in which lists neighbours are; of many, some are enough for the decoder.
    can_ask : whether queries are like rows. refine_bits : of a finer code, for what the others leave.
    """
    order = rng.permutation(len(X))
    n_asked = min(ASKED, len(X) // ASKED_SHARE) if can_ask else 0
    asked, rest = X[order[:n_asked]], X[np.sort(order[n_asked:])]
    centroids = Centroids(find_centroids(rest, n_lists, workers, rng))
    coverage = coverage_of(asked, rest, centroids, workers)
    empty = ListDecoder(f, centroids.centroids.astype(np.float64), SHARE, coverage)
    some = np.sort(order[n_asked:][:TABLE_ROWS])
    rows, H = X[some], H[some]
    owners = centroids.nearest_of_all(rows, workers)
    rows -= empty.centres[owners]
    inner = fit_decoder(rows, H, f, kind, 0.0, n_iter, workers, rng, callback, (empty.centres, owners))
    if not refine_bits:
        return replace(empty, inner=inner)
    codes = optimal_codes(rows, H, H, coder_of(inner, 0.0), workers)
    known = inner.decode(codes).astype(np.float32)
    taken = (known + empty.centres[owners], np.arange(len(rows)))
    fine = FreeTables(rows - known, refine_bits, workers, rng, taken).fit(n_iter or TURNS, None)
    return replace(empty, inner=inner, fine=fine)


def fit_decoder(
    X: Float32, H: Packed, f: Plain, kind: str, mu: float, n_iter: int | None, workers: Workers,
    rng: np.random.RandomState, callback: Turned | None = None, taken: Taken | None = None,
) -> Plain:  # fmt: skip
    """A decoder of this kind for its best codes at this μ. X : (n, D) scaled, H : h(X), f : a start.

    kind : "linear", "tables", or "auto": the one whose codes have the lower cost on rows held out.
    callback : called after each turn with its number, from 1, and how many there will be.
    taken : what was taken from the rows, which a search adds again.
    """
    n_iter = n_iter or TURNS
    free = FreeTables(X, f.n_bits, workers, rng, taken) if mu == 0 and kind != "linear" else None
    if kind == "auto":
        kind = choose_kind(X, H, f, mu, workers, rng, free)
    if kind == "tables" and free is not None:
        return free.fit(n_iter, callback)
    f = _first_decoder(X, H, f, kind, workers)
    for number, (turned, _) in enumerate(alternate_codes(X, H, f, H, mu, n_iter, workers), start=1):
        f = turned
        if callback is not None:
            callback(number, n_iter)
    return f


def _effort(f: Plain) -> float:
    """Of the search for codes between two steps of the decoder."""
    return EFFORT if isinstance(f, LinearDecoder) else TABLES_EFFORT


def _first_decoder(X: Float32, H: Packed, f: Plain, kind: str, workers: Workers) -> Plain:
    """What is alternated from h(x): the present decoder, as one of this kind."""
    if kind == "linear" and isinstance(f, TableDecoder):
        return f_step(decoder_sums(X, unpack(H, f.n_bits), workers))
    return TableDecoder.of(f) if kind == "tables" and isinstance(f, LinearDecoder) else f


def alternate_codes(
    X: Float32, H: Packed, f: Plain, codes: Packed, mu: float, n_iter: int, workers: Workers
) -> Iterator[tuple[Plain, Packed]]:
    """Codes for the decoder, then by least squares the decoder for the codes; yields both after each turn.

    X : (n, D) scaled, H : (n, M) h(X); codes : (n, M) to begin with, for which f is fitted already.
    """
    for _ in range(n_iter):
        codes = optimal_codes(X, H, codes, coder_of(f, mu, _effort(f)), workers)
        if isinstance(f, LinearDecoder):
            f = f_step(decoder_sums(X, unpack(codes, f.n_bits), workers))
        else:
            f = table_step(X, codes, f, SHRINK, workers)
        yield f, codes


# ---- Which kind of decoder

HELD, MOST_HELD, LEAST_HELD = 0.1, 2000, 16  # part of the rows that choices are made by, and limits to them
OWN = 1.5  # weight of rows trained on beside new ones, if both count: they will be searched in any case
TRIED_ROWS = 1024  # per byte of a code, of which a first try is made
TRIED_TURNS = 2


def choose_kind(
    X: Float32, H: Packed, f: Plain, mu: float, workers: Workers, rng: np.random.RandomState,
    free: FreeTables | None = None,
) -> str:  # fmt: skip
    """The kind of decoder with the lower ‖x − f(z)‖² + μ‖z − h(x)‖² by a short fit of each.

    The cost is that of rows held out and of rows trained on, for both will be searched. The fits are of some
    of the rows: with more of them, one error rises and the other falls.
    With too few rows to hold some out: "linear", which has the fewest numbers to fit.
    free : tables for free codes (μ = 0), which have been tried already.
    """
    rows, n_held = _tried(len(X), H.shape[1], rng)
    if not n_held:
        return "linear"
    Y, h = X[rows], H[rows]

    def cost(kind: str) -> float:
        tried = _first_decoder(Y[n_held:], h[n_held:], f, kind, workers)
        *_, (tried, _) = alternate_codes(Y[n_held:], h[n_held:], tried, h[n_held:], mu, TRIED_TURNS, workers)
        both = slice(None, 2 * n_held)  # rows held out, and as many that were trained on
        codes = optimal_codes(Y[both], h[both], h[both], coder_of(tried, mu, _effort(tried)), workers)
        left = np.square(Y[both] - tried.decode(codes)).sum(axis=1)
        left += mu * np.bitwise_count(codes ^ h[both]).sum(axis=1)
        return mean_of_both(float(left[:n_held].mean()), float(left[n_held:].mean()))

    tables = cost("tables") if free is None else free.cost
    return "tables" if tables < cost("linear") else "linear"


def mean_of_both(new: float, own: float) -> float:
    """The mean cost of a decoder, from that of new rows and that of the rows that it was trained on."""
    return (new + OWN * own) / (1.0 + OWN)


def _tried(n: int, width: int, rng: np.random.RandomState) -> tuple[npt.NDArray[np.intp], int]:
    """Rows for a first try, of which the first are held out, and how many of them are; 0: too few rows."""
    rows = rng.permutation(n)[: TRIED_ROWS * (width + 1)]
    n_held = min(int(HELD * len(rows)), MOST_HELD)
    return rows, n_held if n_held >= LEAST_HELD else 0


# ---- Tables for free codes (μ = 0)
#
# Rows are turned into their principal axes. There, tables are started in several ways, of which short fits
# tell the best; codes and tables are improved in turn, the tables shaken less and less before codes are
# chosen; and each block of axes is pulled towards 0 as rows held out want it: of axes with little variance
# few rows tell nothing, and what is learned of them is noise. Codes of more than JOINT_BYTES bytes are
# divided: each part codes some of the axes, alone.

JOINT_BYTES = 32
MOST_AXES, LEAST_AXES, ROWS_PER_AXIS = 512, 64, 4
NEGLIGIBLE = 1e-10  # of the largest variance
PULLS = (0.0, 3.0, 12.0, 48.0, np.inf)  # towards 0, in rows
PULLS_OF_FEW = (0.0, 1.0, 3.0, 6.0, 12.0, 24.0, 48.0, np.inf)
FEW = 1.25  # rows for each vector of the tables, at most, which can remember that many
BLOCK, MOST_BLOCKS = 8, 16  # axes that are pulled alike, at least; blocks at most
CHOSEN_AT = (1, 4, 9)  # turns in which pulls are chosen
LAST_TURNS = 2  # in which rows held out are trained on, too
NOISE = 0.7  # of what codes leave of rows, to begin with
COOLED = 0.8  # part of the turns after which tables are no longer shaken
ERROR_BITS = 2  # of a code, which tell how large the error of a row is
SHORTENED_TURNS = 3  # after which tables for that many bits fewer are compared
ERROR_ROWS = 30.0  # by which the error of a value is held at the mean
ERROR_WEIGHTS = (0.0, 0.2, 0.35, 0.5, 0.7, 1.0)
MOST_LEVEL_TURNS = 100
JUDGES, SEARCHED, NEAREST = 1000, 32_768, 10  # rows searched for, among others, and how many of these
ASKED_AT_ONCE = 64
CENTRE_ROWS, CENTRE_TURNS = 10_000, 6  # of k-means, from which alternation continues
NOTED = 4096  # rows that tell how much codes leave


class FreeTables:
    """Tables for the codes that reconstruct rows best. X : (n, D) scaled.

    Making one chooses a start by short fits, which tell its cost: the mean error of new rows and of these.
    """

    def __init__(
        self, X: Float32, n_bits: int, workers: Workers, rng: np.random.RandomState,
        taken: Taken | None = None,
    ) -> None:  # fmt: skip
        self.taken = taken
        total = workers.sum(lambda rows: (X[rows].sum(axis=0, dtype=np.float64),), len(X))[0]
        self.X, self.b, self.n_bits, self.workers, self.rng = X, total / len(X), n_bits, workers, rng
        width = bytes_per_code(n_bits)
        owned, bases = np.array_split(np.arange(width), -(-width // JOINT_BYTES)), [np.eye(X.shape[1])]
        if len(owned) > 1:
            bases = divided_axes(X, self.b, n_bits, len(owned), workers, rng)
        self.parts = []
        for own, basis in zip(owned, bases, strict=True):
            if basis.size:
                rows, bits = turned(X, self.b, basis, workers), min(8 * len(own), n_bits - 8 * int(own[0]))
                self.parts.append((own, basis, _Tables(rows, bits, workers, rng)))
        variance = float(np.square(X - self.b).sum(axis=1).mean())
        self.cost = variance - sum(part.explained for _, _, part in self.parts)

    def fit(self, n_iter: int, callback: Turned | None) -> TableDecoder:
        """The tables after n_iter turns; callback as in fit_decoder.

        With bits for the error of a row instead of the last of the code, if rows that are searched for are
        found better so.
        """
        n_parts = len(self.parts)
        for number, (_, _, part) in enumerate(self.parts):

            def tell(turn: int, number: int = number) -> None:
                before, now = number * n_iter + turn - 1, number * n_iter + turn
                if callback is not None and before // n_parts < now // n_parts:
                    callback(now // n_parts, n_iter)

            part.fit(n_iter, tell)
        f, codes = self._whole(self.n_bits)
        if len(self.X) * HELD < LEAST_HELD:
            return f
        errors = _Errors(self.X, self.taken, self.workers, self.rng)
        f, found = errors.added(f, codes, 0)
        if (self.n_bits - 1) % 8 < ERROR_BITS:
            return f
        own, _, last = self.parts[-1]
        if own[-1] == codes.shape[1] - 1:  # else the last byte is not used
            last.shorten(ERROR_BITS)
        shorter, found_so = errors.added(*self._whole(self.n_bits - ERROR_BITS), ERROR_BITS)
        return shorter if found_so > found else f

    def _whole(self, n_bits: int) -> tuple[TableDecoder, Packed]:
        """The tables of all parts in the dimensions of X, and codes of X."""
        width = bytes_per_code(n_bits)
        tables = np.zeros((width, VALUES, self.X.shape[1]), dtype=np.float32)
        codes = np.zeros((len(self.X), width), dtype=np.uint8)
        for own, basis, part in self.parts:
            f, codes[:, own] = part.result()
            tables[own] = f.tables @ basis.T.astype(np.float32)
        return TableDecoder(tables, self.b, n_bits), codes


def turned(X: Float32, b: Float64, basis: Float64, workers: Workers) -> Float32:
    """(x − b)ᵀ·basis of each row. X : (n, D), basis : (D, k) → (n, k)."""
    out = np.empty((len(X), basis.shape[1]), dtype=np.float32)

    def fill(rows: slice) -> None:
        out[rows] = (X[rows] - b) @ basis

    workers.run(fill, len(X))
    return out


def principal_axes(X: Float32, b: Float64, workers: Workers) -> tuple[Float64, Float64]:
    """The axes with more than negligible variance, (D, r), the largest first, and their variances, (r,)."""

    def block(rows: slice) -> tuple[Float64]:
        centred = X[rows] - b
        return (centred.T @ centred,)

    variances, axes = np.linalg.eigh(np.asarray(workers.sum(block, len(X))[0]) / len(X))
    rank = max(1, int((variances > NEGLIGIBLE * variances[-1]).sum()))
    some = slice(None, -1 - rank, -1)
    return np.ascontiguousarray(axes[:, some]), np.maximum(variances[some], 0.0)


def divided_axes(
    X: Float32, b: Float64, n_bits: int, n_parts: int, workers: Workers, rng: np.random.RandomState
) -> list[Float64]:
    """A basis, (D, k), for each part of the codes: dimensions in their order, or principal axes.

    Principal axes go by turns to the part with the least product of variances so far, as for OPQ. Product
    quantisation of some rows tells which is better.
    """
    D = X.shape[1]
    own = [np.eye(D)[:, dims] for dims in np.array_split(np.arange(D), n_parts)]
    axes, variances = principal_axes(X, b, workers)
    axes, variances = axes[:, : MOST_AXES * n_parts], variances[: MOST_AXES * n_parts]
    logs, members = np.zeros(n_parts), [[] for _ in range(n_parts)]  # type: tuple[Float64, list[list[int]]]
    for i, variance in enumerate(variances):
        open_ = [part for part in range(n_parts) if len(members[part]) <= i // n_parts]
        part = min(open_, key=lambda each: logs[each])
        members[part].append(i)
        logs[part] += np.log(variance / max(variances[-1], 1e-300) + 1.0)
    spun = [axes[:, some] @ random_rotation(len(some), rng) for some in members]
    rows = X[rng.permutation(len(X))[: TRIED_ROWS * (bytes_per_code(n_bits) + 1)]]
    errors = []
    for bases in (own, spun):
        Y = turned(rows, b, np.hstack(bases), workers)
        f, codes = product_start(Y, n_bits, workers, np.random.RandomState(0))
        errors.append(
            float(np.square(rows - b).sum() - np.square(Y).sum() + np.square(Y - f.decode(codes)).sum())
        )
    return own if errors[0] <= errors[1] else spun


def random_rotation(k: int, rng: np.random.RandomState) -> Float64:
    """Orthonormal columns, (k, k)."""
    return np.asarray(np.linalg.qr(rng.standard_normal((k, k)))[0])


class _Errors:
    """Adds to tables what errors rows are expected to have.

    A distance to a reconstruction is too small by the error of the row, but for rows very near to the query
    it is too large by it. So some rows are searched for among the others, with the errors, parts of them and
    none: what finds most is taken.
    """

    def __init__(self, X: Float32, taken: Taken | None, workers: Workers, rng: np.random.RandomState) -> None:
        n_asked = min(int(HELD * len(X)), JUDGES)
        order = rng.permutation(len(X))
        self.X, self.workers = X, workers
        asked, self.stored = order[:n_asked], order[n_asked : n_asked + SEARCHED]
        centres, owners = taken or (np.zeros((1, X.shape[1]), np.float32), np.zeros(len(X), np.int64))
        self.asked, self.taken = X[asked] + centres[owners[asked]], centres[owners[self.stored]]
        rows = X[self.stored] + self.taken
        self.k, self.true = min(NEAREST, len(rows)), np.empty((n_asked, len(rows)), dtype=bool)
        norms = np.square(rows).sum(axis=1)

        def search(some: slice) -> None:
            self.true[some] = _nearest(norms - 2 * self.asked[some] @ rows.T, self.k)

        workers.run(search, n_asked, ASKED_AT_ONCE)

    def added(self, f: TableDecoder, codes: Packed, error_bits: int) -> tuple[TableDecoder, int]:
        """The decoder with errors, for codes with that many more bits, and how many neighbours it finds.

        codes : (n, M) of X. What each value of each byte adds to the squared error is found by least squares;
        the bits tell how far a row is from that.
        """
        left = np.empty((len(self.X), 1), dtype=np.float32)

        def measure(rows: slice) -> None:
            left[rows, 0] = np.square(self.X[rows] - f.decode(codes[rows])).sum(axis=1)

        self.workers.run(measure, len(self.X))
        mean, M = float(left.mean(dtype=np.float64)), len(f.tables)
        nothing = TableDecoder(np.zeros((M, VALUES, 1), dtype=np.float32), np.array([mean]), f.n_bits)
        parts = table_step(left, codes, nothing, ERROR_ROWS, self.workers).tables[:, :, 0]
        made = replace(f, errors=parts.astype(np.float64) + mean / M)
        if error_bits:
            made = _with_levels(made, levels_of(left[:, 0] - made.errors_of(codes), 1 << error_bits))
            codes = with_error_bits(made, codes, left[:, 0])
        found = self._found(made, codes[self.stored])
        best = int(found.argmax())
        if best or error_bits:
            f = replace(made, error_weight=ERROR_WEIGHTS[best])
        return f, int(found[best])

    def _found(self, f: TableDecoder, codes: Packed) -> Float64:
        """How many of the true neighbours are found with each weight of the errors."""
        F, expected = (
            (f.decode(codes) + self.taken).astype(np.float32),
            f.expected(codes).astype(np.float32),
        )
        norms = np.square(F).sum(axis=1)

        def search(some: slice) -> tuple[Float64]:
            costs = norms - 2 * self.asked[some] @ F.T
            near = (_nearest(costs + weight * expected, self.k) for weight in ERROR_WEIGHTS)
            return (np.array([float((each & self.true[some]).sum()) for each in near]),)

        return np.asarray(self.workers.sum(search, len(self.asked), ASKED_AT_ONCE)[0])


def _with_levels(f: TableDecoder, levels: Float64) -> TableDecoder:
    """The decoder for codes with some more bits, which tell by how much the error is not as expected."""
    assert f.errors is not None
    n, more = 1 << (f.n_bits % 8), len(levels).bit_length() - 1
    tables, errors = f.tables.copy(), f.errors.copy()
    for number, level in enumerate(levels):
        some = slice(number * n, (number + 1) * n)
        tables[-1, some], errors[-1, some] = f.tables[-1, :n], f.errors[-1, :n] + level
    return replace(f, tables=tables, errors=errors, n_bits=f.n_bits + more, error_bits=more)


def levels_of(values: Float64, n_levels: int) -> Float64:
    """Numbers, ascending, each the mean of the values that are nearest to it: k-means of numbers."""
    levels = np.quantile(values, (np.arange(n_levels) + 0.5) / n_levels)
    for _ in range(MOST_LEVEL_TURNS):
        owner = np.searchsorted((levels[1:] + levels[:-1]) / 2, values)
        counts, before = np.bincount(owner, minlength=n_levels), levels
        means = np.bincount(owner, values, minlength=n_levels) / np.maximum(counts, 1)
        levels = np.where(counts > 0, means, levels)
        if np.array_equal(levels, before):
            break
    return np.asarray(levels)


def _nearest(costs: Float32, k: int) -> npt.NDArray[np.bool_]:
    """Whether each is among the k least of its row, (q, n)."""
    near: npt.NDArray[np.bool_] = costs <= np.partition(costs, k - 1, axis=1)[:, k - 1 : k]
    return near


class _Tables:
    """Tables and codes of some rows, in their principal axes. X : (n, D) float32 of mean 0.

    start : the tables to begin with; explained : what they keep of the variance, of new rows and of these.
    """

    def __init__(self, X: Float32, n_bits: int, workers: Workers, rng: np.random.RandomState) -> None:
        zero = np.zeros(X.shape[1])
        most = min(MOST_AXES, max(LEAST_AXES, len(X) // ROWS_PER_AXIS))
        self.axes = principal_axes(X, zero, workers)[0][:, :most]
        self.n_bits, self.workers, self.rng = n_bits, workers, rng
        self.order = rng.permutation(len(X))
        self.Y = turned(X[self.order], zero, self.axes, workers)
        n_held = min(int(HELD * len(X)), MOST_HELD)
        self.n_held = n_held if n_held >= LEAST_HELD else 0
        self.blocks = np.array_split(
            np.arange(self.Y.shape[1]), min(MOST_BLOCKS, -(-self.Y.shape[1] // BLOCK))
        )
        self.start, self.explained = self._best_start()

    def fit(self, n_iter: int, tell: Callable[[int], None]) -> None:
        """Codes and tables in turn; tell is called after each."""
        f = self.start
        codes = np.zeros((len(self.Y), len(f.tables)), dtype=np.uint8)
        pulls = self._usual_pulls(f, self.Y[: self.n_held or NOTED])
        cooled = COOLED * n_iter
        for turn in range(n_iter):
            heat = NOISE * max(0.0, 1.0 - (turn + 1) / cooled)
            shaken = self._shaken(f, codes, heat) if turn else f
            codes = self._codes(self.Y, codes, shaken)
            first = 0 if turn >= n_iter - LAST_TURNS else self.n_held
            if turn in CHOSEN_AT and first:
                pulls = self._best_pulls(codes, f)
            f = table_step(self.Y[first:], codes[first:], f, SHRINK, self.workers, pulls)
            tell(turn + 1)
        self.f, self.codes, self.pulls = f, codes, pulls

    def result(self) -> tuple[TableDecoder, Packed]:
        """The tables in the dimensions of X, and codes of X."""
        tables = self.f.tables @ self.axes.T.astype(np.float32)
        f = TableDecoder(tables, np.zeros(len(self.axes)), self.f.n_bits)
        return f, self.codes[np.argsort(self.order)]

    def shorten(self, n_bits: int) -> None:
        """Continue with that many bits fewer, taken from the last byte."""
        tables, last = self.f.tables.copy(), self.codes[:, -1]
        self.n_bits -= n_bits
        rest = (self.Y - self.f.decode(self.codes) + tables[-1, last]).astype(np.float32)
        n_values = int(values_of_bytes(self.n_bits, len(tables))[-1])
        centres, owners = centres_of(rest, n_values, self.workers, self.rng)
        tables[-1] = 0.0
        tables[-1, : len(centres)] = centres
        codes, f = self.codes.copy(), TableDecoder(tables, self.f.b, self.n_bits)
        codes[:, -1] = owners
        for _ in range(SHORTENED_TURNS):
            codes = self._codes(self.Y, codes, f)
            f = table_step(self.Y, codes, f, SHRINK, self.workers, self.pulls)
        self.f, self.codes = f, codes

    def _codes(self, Y: Float32, start: Packed, f: TableDecoder) -> Packed:
        return optimal_codes(Y, start, start, coder_of(f, 0.0, TABLES_EFFORT), self.workers)

    def _shaken(self, f: TableDecoder, codes: Packed, heat: float) -> TableDecoder:
        """The tables with noise, by which codes leave where they are stuck."""
        if not heat:
            return f
        left = (self.Y[:NOTED] - f.decode(codes[:NOTED])).std(axis=0) / np.sqrt(len(f.tables))
        noise = self.rng.standard_normal(f.tables.shape) * (heat * left)
        return TableDecoder((f.tables + noise).astype(np.float32), f.b, self.n_bits)

    def _usual_pulls(self, f: TableDecoder, rows: Float32) -> Float64:
        """What least squares with noise want: the noise of a row over the variance of a table's vectors.

        None, if there are hardly any rows, which all have vectors of their own.
        """
        if not self.n_held:
            return np.zeros(self.Y.shape[1])
        codes = self._codes(rows, np.zeros((len(rows), len(f.tables)), dtype=np.uint8), f)
        left, total = np.square(rows - f.decode(codes)).sum(), np.square(rows, dtype=np.float64).sum()
        pull = len(f.tables) * left / max(total - left, 0.01 * total, 1e-300)
        return np.full(self.Y.shape[1], min(float(pull), PULLS[-2]))

    def _best_pulls(self, codes: Packed, f: TableDecoder) -> Float64:
        """For each block of axes the pull with the least error on the rows held out.

        Few rows can be remembered, and they are what will be searched: their own error counts, too.
        """
        n, r = self.n_held, self.Y.shape[1]
        few = len(self.Y) <= FEW * VALUES * len(f.tables)
        tried, judged = (PULLS_OF_FEW, slice(None)) if few else (PULLS, slice(n))
        errors = np.empty((len(tried), r))
        for number, pull in enumerate(tried):
            made = table_step(self.Y[n:], codes[n:], f, SHRINK, self.workers, np.full(r, pull))
            squares = np.square(self.Y[judged] - made.decode(codes[judged]))
            errors[number] = squares[:n].mean(axis=0)
            if few:
                errors[number] += OWN * squares[n:].mean(axis=0)
        pulls = np.empty(r)
        for dims in self.blocks:
            pulls[dims] = tried[int(errors[:, dims].sum(axis=1).argmin())]
        return pulls

    # ---- where to begin

    def _best_start(self) -> tuple[TableDecoder, float]:
        """Of several starts the one with the least error on rows held out after a short fit; explained."""
        width = bytes_per_code(self.n_bits)
        rows = self.Y[: self.n_held + TRIED_ROWS * width]
        train, held = rows[self.n_held :], rows[: self.n_held or len(rows)]
        found = []
        for start in (self._native_start, self._spun_start, self._residual_start):
            f, codes = start(train)
            for _ in range(TRIED_TURNS):
                pulls = self._usual_pulls(f, train[:NOTED])
                f = table_step(train, codes, f, SHRINK, self.workers, pulls)
                codes = self._codes(train, codes, f)
            f = table_step(train, codes, f, SHRINK, self.workers, pulls)
            trained = self._left(train, codes, f)
            codes = self._codes(held, np.zeros((len(held), width), dtype=np.uint8), f)
            found.append((self._left(held, codes, f), trained, f))
        new, trained, f = min(found, key=lambda each: each[0])
        total = float(np.square(self.Y).sum(axis=1).mean())
        return f, total - mean_of_both(new, trained)

    def _left(self, Y: Float32, codes: Packed, f: TableDecoder) -> float:
        return float(np.square(Y - f.decode(codes)).sum(axis=1).mean())

    def _native_start(self, rows: Float32) -> tuple[TableDecoder, Packed]:
        """Product quantisation of the dimensions as they are."""
        return self._product_in(rows, self.axes.T)

    def _spun_start(self, rows: Float32) -> tuple[TableDecoder, Packed]:
        """Product quantisation after a random rotation: each byte has its share of all axes."""
        return self._product_in(rows, random_rotation(rows.shape[1], self.rng))

    def _product_in(self, rows: Float32, basis: Float64) -> tuple[TableDecoder, Packed]:
        f, codes = product_start((rows @ basis).astype(np.float32), self.n_bits, self.workers, self.rng)
        tables = f.tables @ basis.T.astype(np.float32)
        return TableDecoder(tables, np.zeros(rows.shape[1]), self.n_bits), codes

    def _residual_start(self, rows: Float32) -> tuple[TableDecoder, Packed]:
        """Residual quantisation: each byte has the k-means centres of what those before it leave."""
        width = bytes_per_code(self.n_bits)
        tables = np.zeros((width, VALUES, rows.shape[1]), dtype=np.float32)
        codes, rest = np.zeros((len(rows), width), dtype=np.uint8), rows.copy()
        for j, n_values in enumerate(values_of_bytes(self.n_bits, width)):
            centres, codes[:, j] = centres_of(rest, int(n_values), self.workers, self.rng)
            tables[j, : len(centres)] = centres
            rest -= centres[codes[:, j]]
        return TableDecoder(tables, np.zeros(rows.shape[1]), self.n_bits), codes


def product_start(
    X: Float32, n_bits: int, workers: Workers, rng: np.random.RandomState
) -> tuple[TableDecoder, Packed]:
    """Product quantisation: a byte for each part of the dimensions, its values the part's k-means centres."""
    width, D = bytes_per_code(n_bits), X.shape[1]
    tables = np.zeros((width, VALUES, D), dtype=np.float32)
    codes = np.zeros((len(X), width), dtype=np.uint8)
    n_values: npt.NDArray[np.int64] = values_of_bytes(n_bits, width)
    for j, dims in enumerate(np.array_split(np.arange(D), width)):
        if len(dims):
            part = np.ascontiguousarray(X[:, dims])
            centres, codes[:, j] = centres_of(part, int(n_values[j]), workers, rng)
            tables[j, : len(centres), dims] = centres.T
    return TableDecoder(tables, np.zeros(D), n_bits), codes


def centres_of(
    X: Float32, k: int, workers: Workers, rng: np.random.RandomState
) -> tuple[Float32, npt.NDArray[np.int64]]:
    """k-means centres of a sample of rows, (at most k, D), and which is the nearest to each row, (n,)."""
    centres = k_means(some_rows(X, rng, CENTRE_ROWS), k, CENTRE_TURNS, workers, rng)
    return centres, Centroids(centres).nearest_of_all(X, workers)


# ---- MAC with a decoder of tables: h is trained for the decoder that will be used (section 4.3, g = 8)
#
# Eq. (5) with f(z) = b + Σ_j T_j[z_j], a vector for each value of each byte of a code. The Z step is over
# bytes instead of bits, by the coders of search; the f step is least squares over the tables. Everything else
# of the loop is as for the linear decoder, from whose least-squares fit the tables start in every step:
# values of bytes that no row has stay there.
#
# The f step needs no rows at hand: how many rows have each pair of values, and the sum of the rows of each
# value, give it, so it is the same wherever rows are. Their matrix has (256 M)² numbers for M bytes.

SUMMED_BYTES = 8  # of a code, in memory; conjugate gradients on the rows themselves are quicker beyond
MOST_SUMMED_BYTES = 16  # if rows are elsewhere
MATRICES = 4  # as large as that of the counts, that the f step holds


class TableReconstruction(ByRows):
    """Σ ‖x − f(z)‖² + μ‖z − h(x)‖² with a decoder of tables; see `mac.steps.Objective`."""

    def check_elsewhere(self, n_bits: int, memory: int) -> None:
        remedy = "fit_decoder(X, 'tables') replaces a linear decoder afterwards, there as well."
        if bytes_per_code(n_bits) > MOST_SUMMED_BYTES:
            allowed = f"at most {8 * MOST_SUMMED_BYTES} with decoder='tables' for rows that are not in memory"
            raise InvalidParameter("n_bits", n_bits, allowed, remedy)
        needed = MATRICES * 8 * (VALUES * bytes_per_code(n_bits)) ** 2
        if needed > memory / 2:
            allowed = f"at least {-(-2 * needed // 10**6)}MB with decoder='tables' and {n_bits} bits"
            raise InvalidParameter("memory", memory, allowed, remedy)

    def f_step(
        self, rows: Rows, sums: DecoderSums, h: LinearEncoder | None = None, more: Float32 | None = None
    ) -> TableDecoder:
        start, D = TableDecoder.of(f_step(sums)), rows.n_decoded
        if isinstance(rows, MemoryRows) and len(start.tables) > SUMMED_BYTES:
            X, Z = rows.X, rows.Z if h is None else rows.hashes(h)
            if more is not None and h is not None:
                X, Z = np.concatenate([X, more]), np.concatenate([Z, h(more)])
            return table_step(np.ascontiguousarray(X[:, :D]), pack_bools(Z), start, SHRINK, rows.workers)
        counts, totals = rows.sums_of(partial(value_sums, D), h)
        if more is not None and h is not None:
            for total, term in zip((counts, totals), value_sums(D, more, pack_bools(h(more)))):
                total += term
        return summed_step(counts, totals, start, SHRINK)

    def energies(
        self, rows: Any, sums: Sequence[Any], h: LinearEncoder, f: Plain, mu: float, moments: Moments
    ) -> tuple[float, float]:
        return float(sums[0]), float(sums[1])

    def changes(self, rows: Any, some: Ids, X: Float32, Z: Bits, f: Plain) -> Float64:
        assert isinstance(f, TableDecoder)
        codes, left = pack_bools(Z), X - f(Z)
        change = np.empty(Z.shape)
        for bit in range(Z.shape[1]):
            table, value = f.tables[bit // 8], codes[:, bit // 8]
            step = table[value ^ np.uint8(1 << bit % 8)] - table[value]
            change[:, bit] = np.square(step).sum(axis=1) - 2 * np.einsum("nd,nd->n", step, left)
        return change

    def solver(self, f: TableDecoder, mu: float) -> TableSolver:
        return TableSolver(f, mu)


class TableSolver:
    """The Z step for one decoder of tables and one μ, over bytes: exact to 16 bits, else tabu search."""

    def __init__(self, f: TableDecoder, mu: float) -> None:
        self.f, self.mu, self.coder = f, mu, coder_of(f, mu, TABLES_EFFORT)

    def solve(self, X: Float32, H: Bits, Z: Bits, kept: tuple[Array, ...] = ()) -> ZCounts:
        """Codes from the better of the old ones and h(x), in place."""
        hashes, old = pack_bools(H), pack_bools(Z)
        at_hash, at_old = self._energies(X, hashes, hashes), self._energies(X, hashes, old)
        start = np.where((at_old < at_hash)[:, None], old, hashes)
        codes = self.coder.solve(np.ascontiguousarray(X[:, : len(self.f.b)]), hashes, start)
        energy = self._energies(X, hashes, codes)
        worse = energy > np.minimum(at_old, at_hash)  # by rounding
        codes[worse], energy[worse] = start[worse], np.minimum(at_old, at_hash)[worse]
        Z[...] = unpack(codes, Z.shape[1])
        return ZCounts(energy=float(energy.sum()), hash_energy=float(at_hash.sum()))

    def _energies(self, X: Float32, hashes: Any, codes: Any) -> Float64:
        left = X[:, : len(self.f.b)] - self.f.decode(codes)
        penalty = self.mu * np.bitwise_count(hashes ^ codes).sum(axis=1)
        return np.asarray(np.einsum("nd,nd->n", left, left) + penalty)
