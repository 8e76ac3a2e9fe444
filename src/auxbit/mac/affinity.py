"""Affinity as the objective of MAC: pairs of rows that belong together attract, others repel.

With s = 2z − 1, in ±1, and pairs (n, m) with y = 1 for rows that attract and y = −1 for those that repel,

    E(Z) = 1/p Σ (s_nᵀs_m / L − t·y_nm)²        over the pairs, of which there are p for each row

is the loss of supervised hashing with kernels (Liu et al., 2012), and MAC for it (Raziperchikolaei and
Carreira-Perpiñán, 2016) adds μ Σ ‖z − h(x)‖² as for the autoencoder. The h step is the same; no decoder is
needed. In the Z step rows are coupled, so it alternates over bits: with the others fixed, one bit of all rows
is a binary quadratic problem, on which single flips descend, and, of few rows, chains of flips. Of at most
EXACT_ROWS rows all values are tried.

Rows attract each other that have the same label (t = 1), or that are Euclidean neighbours. Of these t = ½:
nobody's code is that of all its neighbours and the reverse of all others, and codes that come close to it
are those of a few clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from auxbit.core.checks import Bits, Float32, Float64, Ids, Packed
from auxbit.core.decoders import Plain
from auxbit.core.maps import LinearDecoder, LinearEncoder, unpack
from auxbit.core.parallel import kernel
from auxbit.errors import InvalidInput
from auxbit.evaluate import Ranking, ground_truth
from auxbit.mac.loop import DecoderSums, Moments, f_step, neighbours_to_find
from auxbit.mac.steps import MemoryRows, Rows, Sums
from auxbit.mac.z_step import ZCounts

Signs = npt.NDArray[np.int8]  # (L, n) of ±1, a bit of all rows side by side
Residuals = npt.NDArray[np.int16]  # s_nᵀs_m − L·y_nm of each pair

MOST_ROWS = 10_000  # that have pairs: true neighbours of n rows cost n², and pairs are held in memory
TARGETS = {"labels": 1.0, "neighbours": 0.5}  # t, by validation (docs/training.md)
SWEEPS = 1  # over all bits in a Z step; three end no better
EXACT_ROWS = 12  # up to which the minimum is global
CHAINED_ROWS, CHAIN = 1000, 64  # flips in chains, for up to so many rows: of more, codes find no more by them
ROUNDING = 1e-9  # of the penalty's sums


@dataclass(frozen=True)
class Pairs:
    """Pairs of n rows, each noted at both of them: those of row i are starts[i] to starts[i + 1].

    others : (e,) the other row, rising for each row; attract : (e,) 1, or −1 for pairs that repel.
    """

    starts: Ids
    others: npt.NDArray[np.int32]
    attract: Signs

    @classmethod
    def of(cls, near: Ids, far: Ids, n_rows: int) -> Pairs:
        """From pairs that attract and such that repel, (…, 2) each; a pair that is in both attracts."""
        keys = [np.unique(_keys(each, n_rows)) for each in (near, far)]
        keys[1] = np.setdiff1d(keys[1], keys[0], assume_unique=True)
        both = np.concatenate(keys)
        order = np.argsort(both)
        attract = np.repeat(np.array([1, -1], dtype=np.int8), [len(each) for each in keys])
        starts = np.searchsorted(both[order], np.arange(n_rows + 1) * n_rows)
        return cls(starts.astype(np.int64), (both[order] % n_rows).astype(np.int32), attract[order])

    @property
    def n_rows(self) -> int:
        """How many rows."""
        return len(self.starts) - 1

    @property
    def per_row(self) -> float:
        """p, each pair counted once."""
        return len(self.others) / 2 / self.n_rows

    def residuals(self, S: Signs, target: int) -> Residuals:
        """s_nᵀs_m − target·y_nm of each pair. S : (L, n)."""
        out = np.empty(len(self.others), dtype=np.int16)
        _residuals(self.starts, self.others, self.attract, np.ascontiguousarray(S.T), target, out)
        return out


def _keys(pairs: Ids, n_rows: int) -> Ids:
    """Both orders of each pair as one number, those of a row with itself left out."""
    one, other = pairs.reshape(-1, 2).T
    apart = one != other
    one, other = one[apart], other[apart]
    return np.concatenate([one * n_rows + other, other * n_rows + one])


# ---- Which rows attract and which repel


def neighbour_pairs(X: Float32, n_neighbors: int, rng: np.random.RandomState, n_jobs: int) -> Pairs:
    """The nearest rows attract, as many random ones repel. X : (n, D)."""
    n = len(X)
    k = min(n_neighbors, (n - 1) // 2)
    rows = np.arange(n)
    near = ground_truth(X, X, k + 1, n_jobs=n_jobs)
    own_last = np.argsort(near == rows[:, None], axis=1, kind="stable")  # copies of a row may come before it
    near = np.take_along_axis(near, own_last, axis=1)[:, :k]
    k = max(k, 1)
    far = (rows[:, None] + rng.randint(1, n, (n, k))) % n
    return Pairs.of(_beside(rows, near), _beside(rows, far), n)


def label_pairs(labels: Ids, n_neighbors: int, rng: np.random.RandomState) -> Pairs:
    """Random rows of the same label attract, as many of others repel. labels : (n,)."""
    n = len(labels)
    order = np.argsort(labels, kind="stable")
    _, first, size = np.unique(labels[order], return_index=True, return_counts=True)
    near, far = [], []
    for start, count in zip(first, size):
        own = np.arange(count)
        members, shape = order[start : start + count], (count, n_neighbors)
        if count > 1:
            places = (own[:, None] + rng.randint(1, count, shape)) % count
            near.append(_beside(members, members[places]))
        if count < n:
            places = (start + count + rng.randint(0, n - count, shape)) % n
            far.append(_beside(members, order[places]))
    none = np.empty((0, 2), dtype=np.int64)
    return Pairs.of(np.concatenate([none, *near]), np.concatenate([none, *far]), n)


def _beside(rows: Ids, others: Ids) -> Ids:
    """The pairs of each row with its others. rows : (n,), others : (n, k) → (n·k, 2)."""
    return np.stack([np.repeat(rows, others.shape[1]), others.ravel()], axis=1)


def label_numbers(y: Any, n_rows: int) -> Ids:
    """Labels of rows as whole numbers from 0. y : (n,) numbers or texts, one label for each row."""
    labels, otherwise = np.asarray(y), "Leave y out, and neighbours attract."
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (n_rows,):
        raise InvalidInput(
            f"y must be one label for each of the {n_rows} rows of X, got shape {labels.shape}. {otherwise}"
        )
    as_object = labels.astype(object)
    if any(label is None or label != label for label in as_object):
        raise InvalidInput("y has rows without a label (NaN or None). Fit to the rows that have one.")
    if labels.dtype.kind == "f" and not (labels == np.rint(labels)).all():
        raise InvalidInput(
            f"y must be labels, whole numbers or texts, and has {labels[labels != np.rint(labels)][0]}. "
            f"Divide it into classes first. {otherwise}"
        )
    try:
        kinds, numbers = np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise InvalidInput("y must be labels of one type: all numbers or all texts.") from error
    if len(kinds) in (1, n_rows):
        what = "the same label for all rows, so none repel" if len(kinds) == 1 else "no label twice"
        raise InvalidInput(f"y has {what}: there is nothing to learn from it. {otherwise}")
    return np.asarray(numbers, dtype=np.int64)


# ---- The objective


@dataclass
class Affinity:
    """The objective above. labels : of all rows of the table, or None for Euclidean neighbours.

    n_neighbors : rows that each attracts, and about as many that it repels; seed : what draws them.
    """

    n_neighbors: int
    seed: int = 0
    labels: Ids | None = None
    _pairs: Pairs | None = field(default=None, init=False, repr=False)

    def check_elsewhere(self, n_bits: int, memory: int) -> None:
        """Its rows are in memory, brought there if need be."""

    def f_step(
        self, rows: Rows, sums: DecoderSums, h: LinearEncoder | None = None, more: Float32 | None = None
    ) -> LinearDecoder:
        """Least squares, as the energy does not depend on it."""
        return f_step(sums)

    def unit(self, scale: float) -> float:
        """Energies are numbers without a unit."""
        return 1.0

    def pairs(self, rows: MemoryRows) -> Pairs:
        """Those of these rows, made once."""
        if self._pairs is None:
            rng = np.random.RandomState(self.seed)
            if self.labels is None:
                self._pairs = neighbour_pairs(
                    rows.X[:, : rows.n_decoded], self.n_neighbors, rng, rows.workers.n_jobs
                )
            else:
                own = self.labels[rows.places(np.arange(rows.n_rows))]
                self._pairs = label_pairs(own, self.n_neighbors, rng)
        return self._pairs

    def target(self, n_bits: int) -> int:
        """t·L as a whole number: what products of the codes of a pair should be, or minus that."""
        share = TARGETS["neighbours" if self.labels is None else "labels"]
        return max(1, round(share * n_bits))

    def z_pass(self, rows: MemoryRows, h: LinearEncoder, f: Plain, mu: float, queries: Any) -> Sums:
        """From the better of the old codes and h(X), each bit of all rows in turn."""
        pairs, (n, L) = self.pairs(rows), rows.Z.shape
        H, S = signs_of(rows.scores >= 0), signs_of(rows.Z)
        unit, target = L * L * pairs.per_row, self.target(L)
        r, at_hash = pairs.residuals(S, target), pairs.residuals(H, target)
        hash_energy = _squares(at_hash)
        if hash_energy <= _squares(r) + mu * unit * np.count_nonzero(S != H):
            S, r = H.copy(), at_hash
        alternate_bits(pairs.starts, pairs.others, r, S, H, mu * unit, SWEEPS)
        Z, mismatched = (S.T > 0).view(np.uint8), np.count_nonzero(S != H)
        flips = (Z != rows.Z).sum(axis=0)
        rows.Z[...] = Z
        energy = _squares(r) / unit + mu * mismatched
        return *astuple(ZCounts(energy, hash_energy / unit, unproven=n)), flips, mismatched

    def energies(
        self, rows: Any, sums: Sequence[Any], h: LinearEncoder, f: Plain, mu: float, moments: Moments
    ) -> tuple[float, float]:
        return float(sums[0]), float(sums[1])

    def changes(self, rows: MemoryRows, some: Ids, X: Float32, Z: Bits, f: Plain) -> Float64:
        """A flip changes the product of a pair by −2st, and (r − 2st)² − r² = 4 − 4rst."""
        pairs, codes = self.pairs(rows), rows.Z.copy()
        codes[some] = Z
        S = signs_of(codes)
        r = pairs.residuals(S, self.target(len(S))).astype(np.float64)
        fields = csr_array((r, pairs.others, pairs.starts), shape=(len(codes), len(codes))) @ S.T
        change = 4.0 * (np.diff(pairs.starts)[:, None] - S.T * fields)
        return np.asarray(change[some] / (len(S) ** 2 * pairs.per_row))

    def ranking(self, rows: MemoryRows, h: LinearEncoder | None, queries: Packed) -> Ranking:
        """With labels, rows of a query's label count as found; otherwise its Euclidean neighbours."""
        if self.labels is None or rows.held_out is None:
            return rows.ranking(h, queries)
        codes = rows.Z if h is None else rows.hashes(h)
        own = self.labels[rows.places(np.arange(rows.n_rows))]
        return label_ranking(codes, own, unpack(queries, rows.n_bits), self.labels[rows.held_out])


def label_ranking(codes: Bits, labels: Ids, query_codes: Bits, query_labels: Ids) -> Ranking:
    """How many rows, and rows of its own label, each query has at each Hamming distance.

    codes : (n, L) of 0/1; labels : (n,). As a ranking of K rows, for precision with ties averaged alone.
    """
    n, L = codes.shape
    S, asked = (2.0 * each.astype(np.float32) - 1 for each in (codes, query_codes))
    counts = np.empty((len(asked), L + 1), dtype=np.int64)
    hits = np.empty_like(counts)
    for i, (query, label) in enumerate(zip(asked, query_labels)):
        distance = ((L - S @ query) / 2).astype(np.int64)
        counts[i] = np.bincount(distance, minlength=L + 1)
        hits[i] = np.bincount(distance[labels == label], minlength=L + 1)
    return Ranking(np.zeros((len(asked), neighbours_to_find(n)), dtype=np.int64), counts, hits, n)


def signs_of(Z: Any) -> Signs:
    """Codes (n, L) of 0/1 as (L, n) of ±1."""
    return np.ascontiguousarray(2 * Z.T.astype(np.int8) - 1)


def _squares(r: Residuals) -> float:
    """Σ r² over pairs, which are noted twice."""
    return float(np.square(r, dtype=np.int64).sum()) / 2


# ---- Kernels


@kernel
def _residuals(starts: Ids, others: Any, attract: Signs, S: Signs, target: int, out: Residuals) -> None:
    """S : (n, L)."""
    L = S.shape[1]
    for i in range(S.shape[0]):
        for e in range(starts[i], starts[i + 1]):
            product = 0
            for bit in range(L):
                product += S[i, bit] * S[others[e], bit]
            out[e] = product - target * attract[e]


@kernel
def alternate_bits(
    starts: Ids, others: Any, r: Residuals, S: Signs, H: Signs, penalty: float, sweeps: int
) -> None:
    """Lower Σ r² + penalty · (bits of S unlike H) over one bit after the other; r and S change in place.

    Without its own products s_n s_m in r, a bit's energy is 2 Σ r s_n s_m over pairs and a constant. Two
    descents, from the old bits and from H's, are tried, and the lower one is kept.
    """
    for _ in range(sweeps):
        changed = False
        for bit in range(len(S)):
            s, h = S[bit], H[bit]
            _add_products(starts, others, s, -1, r)
            best = s.copy()
            lowest = descend(starts, others, r, best, h, penalty)
            if (s != h).any():
                tried = h.copy()
                if descend(starts, others, r, tried, h, penalty) < lowest:
                    best = tried
            changed = changed or (best != s).any()
            s[:] = best
            _add_products(starts, others, s, 1, r)
        if not changed:
            break


@kernel
def _add_products(starts: Ids, others: Any, s: Any, by: int, r: Residuals) -> None:
    for i in range(len(s)):
        own = by * s[i]
        for e in range(starts[i], starts[i + 1]):
            r[e] += own * s[others[e]]


@kernel
def _change(s: Any, h: Any, fields: Ids, penalty: float, i: int) -> float:
    """What the flip of row i would change of the energy."""
    change: float = -4.0 * s[i] * fields[i] + (penalty if s[i] == h[i] else -penalty)
    return change


@kernel
def _flip(starts: Ids, others: Any, c: Residuals, s: Any, fields: Ids, i: int) -> None:
    s[i] = -s[i]
    for e in range(starts[i], starts[i + 1]):
        fields[others[e]] += 2 * c[e] * s[i]


@kernel
def _flip_chain(starts: Ids, others: Any, c: Residuals, s: Any, h: Any, fields: Ids, penalty: float) -> bool:
    """Flip up to CHAIN rows, each the best of those not flipped yet, and keep those to the lowest energy.

    Leads out of minima over single flips, as Kernighan and Lin do for cuts of graphs. → whether it was lower.
    """
    n, total, lowest, kept = len(s), 0.0, 0.0, 0
    done, order = np.zeros(n, dtype=np.bool_), np.empty(min(n, CHAIN), dtype=np.int64)
    for k in range(len(order)):
        best, least = -1, np.inf
        for i in range(n):
            if not done[i]:
                change = _change(s, h, fields, penalty, i)
                if change < least:
                    best, least = i, change
        _flip(starts, others, c, s, fields, best)
        done[best], order[k], total = True, best, total + least
        if total < lowest - ROUNDING * abs(least):
            lowest, kept = total, k + 1
    for k in range(len(order) - 1, kept - 1, -1):
        _flip(starts, others, c, s, fields, order[k])
    return kept > 0


@kernel
def _flip_to_best(
    starts: Ids, others: Any, c: Residuals, s: Any, h: Any, fields: Ids, penalty: float
) -> None:
    """The lowest of all 2ⁿ values of s, which differ from one to the next in one row (Gray's order)."""
    best, total, lowest = s.copy(), 0.0, 0.0
    for number in range(1, 1 << len(s)):
        i = 0
        while not number >> i & 1:
            i += 1
        change = _change(s, h, fields, penalty, i)
        _flip(starts, others, c, s, fields, i)
        total += change
        if total < lowest - ROUNDING * abs(change):
            best[:], lowest = s, total
    for i in range(len(s)):
        if s[i] != best[i]:
            _flip(starts, others, c, s, fields, i)


@kernel
def descend(starts: Ids, others: Any, c: Residuals, s: Any, h: Any, penalty: float) -> float:
    """Flip rows of s, (n,), while that lowers 2 Σ c s_n s_m + penalty · (rows unlike h); returns that energy.

    One by one in their order, then in chains, or to the best of all. Sums are of whole numbers, so a flip is
    made only if it does lower it.
    """
    n = len(s)
    fields = np.zeros(n, dtype=np.int64)  # Σ c s_m of each row
    for i in range(n):
        for e in range(starts[i], starts[i + 1]):
            fields[i] += c[e] * s[others[e]]
    flipped = n > EXACT_ROWS
    if not flipped:
        _flip_to_best(starts, others, c, s, h, fields, penalty)
    while flipped:
        flipped = False
        for i in range(n):
            if _change(s, h, fields, penalty, i) < 0:
                _flip(starts, others, c, s, fields, i)
                flipped = True
        if not flipped and n <= CHAINED_ROWS:
            flipped = _flip_chain(starts, others, c, s, h, fields, penalty)
    energy = 0.0
    for i in range(n):
        energy += s[i] * fields[i] + (penalty if s[i] != h[i] else 0.0)
    return energy
