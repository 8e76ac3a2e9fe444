"""Whether rows that were added are still like those that the model was trained on.

Compared are the reconstruction error, how often each bit is 1, and the effective number of bits. Each has a
tolerance, chosen by benchmarks/drift.py, to which its limit adds what sampling alone may do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import betaln, ndtr, ndtri

from auxbit.core.checks import Float64, Packed, Positions, check_positive
from auxbit.core.maps import check_packed, unpack
from auxbit.core.parallel import block_slices
from auxbit.errors import InvalidInput
from auxbit.evaluate import code_counts
from auxbit.hashers.base import Hasher, TrainingRecord

ENOUGH_ROWS = 200
COMPARED_ROWS = 4096  # at most: effective bits depend on the number of rows, so both sides have the same
SAMPLED_ROWS = 10_000  # of what was added
NEWEST_ROWS = 4096  # and those that came last, which show a change before it shows in all
ERROR_TOLERANCE = 0.10
MEAN_SHIFT_TOLERANCE = 0.06
LARGEST_SHIFT_TOLERANCE = 0.10
EFFECTIVE_BITS_TOLERANCE = 0.5
SIGMAS = 4.0  # of sampling noise that are added to the tolerances
VECTORS_PER_BIT = 4  # learning codes fits as closely as that many vectors: LSH 0, ITQ 2, autoencoders 4
CLOSEST_FIT = 0.5  # vectors for each row trained on; with more, errors say nothing of new rows
LARGEST_RATIO = 1e300  # of errors; JSON has no infinity

ERROR, EFFECTIVE_BITS = "reconstruction error", "effective bits"
MEAN_SHIFT, LARGEST_SHIFT = "mean bit shift", "largest bit shift"


Read = Callable[[Positions, int], tuple[Packed, float | None]]


class Measure(NamedTuple):
    """One comparison. exceeded : change > limit; a limit of None: shown, but not judged.

    reconstruction error : means of the squared error; change is their ratio. Not judged if too few rows
        were trained on for the number of bits and tables.
    mean bit shift : the share of ones among all bits; change is the mean over bits of |shift of P(bit = 1)|.
    largest bit shift : P(bit = 1) of the bit that shifted most; change is |shift|.
    effective bits : of equally many rows of both; change is by how much they fell, in bits.
    """

    name: str
    trained: float
    added: float
    change: float
    limit: float | None
    exceeded: bool


@dataclass(frozen=True)
class Drift:
    """What `compare` found. due : retraining is due, for these reasons.

    enough : whether there are enough rows to tell; if not, due is False and reasons say what is missing.
    """

    measures: list[Measure]
    due: bool
    reasons: list[str]
    enough: bool
    n_added: int


def compare(
    record: TrainingRecord, added_codes: npt.ArrayLike, n_bits: int, added_error: float | None = None
) -> Drift:
    """Compare codes of rows that were added with those that were trained on.

    added_codes : (n, ceil(n_bits/8)) uint8, made as those of the record (`record.is_of`); a random sample of
        some ten thousand tells as much as millions would.
    added_error : mean over these rows of ‖x − f(z)‖², in the units of X; without it only codes are compared.

    The order of the rows does not matter.
    """
    trained = check_packed(record.codes, n_bits, "the record's codes")
    if not len(trained):
        raise InvalidInput("the training record has no codes to compare with. Fit the model again.")
    added = check_packed(added_codes, n_bits, "added_codes")
    if added_error is not None and added_error != 0:
        added_error = check_positive("added_error", added_error)
    if not len(added):
        return Drift([], False, [_too_few("added", 0)], False, 0)
    measures = [] if added_error is None else [_error(record, n_bits, added_error, len(added))]
    measures += _bit_shifts(unpack(trained, n_bits), _bit_means(added, n_bits), len(added))
    measures.append(_effective_bits(trained, added))
    sides = (("trained on", len(trained)), ("added", len(added)))
    missing = [_too_few(what, n) for what, n in sides if n < ENOUGH_ROWS]
    reasons = missing or [_sentence(found) for found in measures if found.exceeded]
    return Drift(measures, bool(reasons) and not missing, reasons, not missing, len(added))


def compare_added(
    record: TrainingRecord | None, coding: str, mu: float, n_bits: int, added: Positions,
    read: Read,
) -> tuple[dict[str, Drift], list[str]]:  # fmt: skip
    """Compare what was added, by "added", a sample of all of it, and "newest", the last 4096.

    added : where the rows lie, in their order. read : for some of them, which stand for all from a place on,
    their codes, made by coding and mu, and their mean error. Returns no comparison if there is nothing to
    compare; and sentences that say why.
    """
    if record is None:
        return {}, ["the model has no record of what it was trained on: it was saved by an older version"]
    if not record.is_of(coding, mu):
        return {}, [
            f"the model's record is of {record.coding} codes, the collection's are {coding}: "
            "call fit_decoder(X, mu=…) with the mu of the collection before it is created"
        ]
    if not len(added):
        return {}, ["nothing has been added since the model was trained"]
    samples = {"added": added}
    if len(added) > SAMPLED_ROWS:
        samples["added"] = np.sort(np.random.default_rng(0).choice(added, SAMPLED_ROWS, replace=False))
    if len(added) > NEWEST_ROWS:
        samples["newest"] = added[-NEWEST_ROWS:]
    found = {}
    for name, rows in samples.items():
        codes, error = read(rows, int(added[0] if name == "added" else rows[0]))
        found[name] = compare(record, codes, n_bits, error)
    reasons = [
        f"{reason} ({name})" if each.due else reason
        for name, each in found.items()
        for reason in each.reasons
    ]
    return found, list(dict.fromkeys(reasons))


@dataclass(frozen=True)
class Statistics:
    """Sizes of a collection, and drift. drift : by "added" and "newest", as in compare_added; added : rows.

    retrain : whether retraining is due, for `reasons`; if nothing can be compared, reasons say why.
    """

    path: str
    items: int
    deleted: int
    n_bits: int
    n_features: int | None
    coding: str
    vectors: str | None
    ids: str | None
    bytes: dict[str, int]
    method: str | None = None
    metric: str | None = None
    added: int = 0
    drift: dict[str, Drift] = field(default_factory=dict)
    retrain: bool = False
    reasons: Sequence[str] = ("codes alone: there is no model to compare with",)

    def compared(self, model: Hasher, mu: float, n_bits: int, added: Positions, read: Read) -> Statistics:
        """The same, and what compare_added finds."""
        record = getattr(model, "training_", None)
        drift, reasons = compare_added(record, self.coding, mu, n_bits, added, read)
        return replace(
            self, method=type(model).__name__, metric=model.scaling_.metric, added=len(added), drift=drift,
            reasons=reasons, retrain=any(found.due for found in drift.values()),
        )  # fmt: skip

    def document(self) -> dict[str, Any]:
        """All of it for JSON."""
        drift = {
            name: {"rows": found.n_added, "enough": found.enough,
                   "measures": [measure._asdict() for measure in found.measures]}
            for name, found in self.drift.items()
        }  # fmt: skip
        return vars(self) | {"drift": drift, "reasons": list(self.reasons)}


# ---- reconstruction error


def _error(record: TrainingRecord, n_bits: int, added: float, n_added: int) -> Measure:
    growth, limit = expected_growth(record, n_bits), None
    if growth is not None:
        noise = SIGMAS * record.variation * np.sqrt(1 / n_added + 1 / len(record.codes))
        limit = growth * (1 + ERROR_TOLERANCE + noise)
    return _measure(ERROR, record.error, added, _ratio(added, record.error), limit)


def expected_growth(record: TrainingRecord, n_bits: int) -> float | None:
    """By what factor new rows of the same kind are reconstructed worse than those that were trained on.

    (1 + p/n) / (1 − p/n) for least squares of p vectors to n rows. Codes that were learned from the rows
    count as further vectors, some for each bit. None if n is too small for it to mean anything.
    """
    share = (record.n_vectors + VECTORS_PER_BIT * n_bits) / record.n_rows
    return (1 + share) / (1 - share) if share <= CLOSEST_FIT else None


def _ratio(added: float, trained: float) -> float:
    if added <= trained * LARGEST_RATIO:
        return added / trained if trained > 0 else 1.0
    return LARGEST_RATIO


# ---- bits


def _bit_shifts(Z: npt.NDArray[np.uint8], added: Float64, n_added: int) -> list[Measure]:
    """The mean and the largest shift. Z : (m, L) bits that were trained on, added : (L,) means.

    Without drift shifts are about normal, with the covariances of the bits, which tell how large the mean
    of their sizes and the largest of them may well be.
    """
    together = (Z.T.astype(np.float64) @ Z) / len(Z)  # sums of whole numbers, exact in any order
    trained = np.diag(together)
    shift = np.abs(added - trained)
    covariance = (together - np.outer(trained, trained)) * (1 / n_added + 1 / len(Z))
    deviation = np.sqrt(np.maximum(np.diag(covariance), 0))
    scale = np.outer(deviation, deviation)
    rho = np.clip(np.divide(covariance, scale, out=np.zeros_like(scale), where=scale > 0), -1, 1)
    # the covariance of |a| and |b| for normal a and b with correlation ρ
    of_sizes = 2 / np.pi * scale * (np.sqrt(1 - rho**2) + rho * np.arcsin(rho) - 1)
    noise = np.sqrt(2 / np.pi) * deviation.mean() + SIGMAS * np.sqrt(of_sizes.mean())
    one_of_all = -ndtri(ndtr(-SIGMAS) / len(shift)) * deviation.max()
    bit = int(shift.argmax())
    return [
        _measure(MEAN_SHIFT, trained.mean(), added.mean(), shift.mean(), MEAN_SHIFT_TOLERANCE + noise),
        _measure(LARGEST_SHIFT, trained[bit], added[bit], shift[bit], LARGEST_SHIFT_TOLERANCE + one_of_all),
    ]


def _bit_means(codes: Packed, n_bits: int) -> Float64:
    """The share of codes that have each bit, (n_bits,), in blocks: bits take eight times the codes' room."""
    ones = np.zeros(n_bits, dtype=np.int64)
    for rows in block_slices(len(codes)):
        ones += unpack(codes[rows], n_bits).sum(axis=0, dtype=np.int64)
    return ones / len(codes)


# ---- effective bits


def _effective_bits(trained: Packed, added: Packed) -> Measure:
    counts = [code_counts(trained), code_counts(added)]
    n = min(len(trained), len(added), COMPARED_ROWS)
    before, after = (expected_effective_bits(some, n) for some in counts)
    noise = SIGMAS * np.sqrt(sum(_surprise_variance(some) / some.sum() for some in counts))
    return _measure(EFFECTIVE_BITS, before, after, before - after, EFFECTIVE_BITS_TOLERANCE + noise)


def expected_effective_bits(counts: npt.NDArray[np.int64], n: int) -> float:
    """The mean of `effective_bits` over all ways to draw n rows without replacement. counts : (K,) of codes.

    log2 n − Σ E[k log2 k] / n, where k, how many of a code's rows are drawn, is hypergeometric.
    """
    total, expected = int(counts.sum()), 0.0
    for count, times in zip(*np.unique(counts[counts > 1], return_counts=True)):
        k = np.arange(max(2, n - total + count), min(count, n) + 1)  # a code that is drawn once adds nothing
        log_share = _log_choose(count, k) + _log_choose(total - count, n - k) - _log_choose(total, n)
        expected += times * float(np.exp(log_share) @ (k * np.log2(k)))
    return max(0.0, float(np.log2(n)) - expected / n)


def _log_choose(n: int, k: npt.ArrayLike) -> Float64:
    """The logarithm of the binomial coefficient of n and k."""
    k = np.asarray(k, dtype=np.float64)
    logarithm: Float64 = -betaln(1 + n - k, 1 + k) - np.log1p(n)
    return logarithm


def _surprise_variance(counts: npt.NDArray[np.int64]) -> float:
    """The variance over rows of −log2 of the share of their codes, whose mean is the effective bits."""
    share = counts / counts.sum()
    surprise = -np.log2(share)
    return float(share @ (surprise - share @ surprise) ** 2)


# ---- sentences


def _measure(name: str, trained: float, added: float, change: float, limit: float | None) -> Measure:
    exceeded = limit is not None and bool(change > limit)
    return Measure(
        name, float(trained), float(added), float(change), None if limit is None else float(limit), exceeded
    )


def _sentence(found: Measure) -> str:
    if found.name == ERROR:
        return (
            f"the error of what was added is {found.change:.2f} times that of what was trained on "
            f"(limit {found.limit:.2f})"
        )
    if found.name == MEAN_SHIFT:
        return (
            f"the share of ones of a bit shifted by {found.change:.3f} on average (limit {found.limit:.3f})"
        )
    if found.name == LARGEST_SHIFT:
        return (
            f"a bit that was 1 in {found.trained:.0%} of what was trained on is 1 in {found.added:.0%} of "
            f"what was added (limit {found.limit:.0%} apart)"
        )
    return f"the effective bits fell from {found.trained:.2f} to {found.added:.2f} (limit {found.limit:.2f})"


def _too_few(what: str, n_rows: int) -> str:
    return f"{n_rows} rows that were {what} are too few to tell: {ENOUGH_ROWS} are needed"
