"""How many bits a database needs, by the effective bits of its codes and by precision (section 6.6)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from auxbit import evaluate
from auxbit.core.checks import Array, Packed, check_integer
from auxbit.core.maps import bytes_per_code
from auxbit.core.parallel import block_slices
from auxbit.errors import InvalidInput
from auxbit.evaluate import ground_truth
from auxbit.experiments.study import Cell, Fits, Result, Row, Trained
from auxbit.hashers.registry import find_method, make_hasher
from auxbit.plot import figures

BITS = (8, 16, 24, 32, 48, 64)
METHODS = ("itq", "ba")
ROWS, QUERIES = 20_000, 500
NEAREST, WANTED, SHORTLIST = 50, 10, 100
ENCODED_AT_ONCE = 1 << 16  # rows
FULL = 0.9  # of log2 N: from here on, L_eff counts as having reached it
STAGNANT = 0.1  # effective bits that a further bit brings: less is stagnation
SLOW = 0.1  # by which 8 further bits, one byte per row, raise precision: less is slow

RULE = (
    f"The rule: the smallest number of bits L at which L_eff has reached {FULL:.0%} of log₂ N, or no larger "
    f"L tried brings {STAGNANT:g} effective bits for a further bit; and at which no larger L tried raises "
    f"precision by {SLOW:.0%} for every 8 further bits."
)


@dataclass(frozen=True)
class Advice:
    """How many bits to use and why; `settled` False: the largest tried, at which something still grows.

    rows : for each number of bits, L_eff of all rows, its bound, its growth per bit, precision, and recall.
    """

    bits: int
    reason: str
    settled: bool
    rows: list[Row]
    left_out: dict[int, str]
    settings: dict[str, Any]


def choose_bits(
    X: Array, *, bits: Iterable[int] = BITS, method: str = "itq", n_queries: int = QUERIES,
    max_rows: int = ROWS, seed: int = 0, n_jobs: int | None = None, name: str = "data",
    on_bits: Callable[[Row], object] = lambda row: None,
) -> Advice:  # fmt: skip
    """Measure codes of several lengths on the rows of a database, and recommend one. X : (n, D).

    Precision is measured on a sample of `max_rows` rows, of which `n_queries`, at most a fifth, are held out
    as queries and the others are trained on and searched. L_eff is that of the codes of all rows.
    """
    label, counts = _planned(method, bits)
    sample, asked = _split(X, n_queries, max_rows, seed)
    base, queries = np.asarray(X[sample]), np.asarray(X[asked])
    sizes = Sizes.of(len(base))
    truth = ground_truth(base, queries, sizes.K, n_jobs=n_jobs)

    def measure(L: int) -> Row | str:
        model = make_hasher(method, L, random_state=seed, n_jobs=n_jobs)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of bits beyond the dimensions
                model.fit(base)
        except InvalidInput as error:  # these data cannot have that many bits
            return str(error)
        found = sizes.measure(model.encode(base), model.encode(queries), truth, L, n_jobs)
        row = _row(L, encode_all(model.encode, X, L)) | found
        on_bits(row)
        return row

    settings = {
        "data": name, "rows": len(X), "sample_rows": len(base), "queries": len(queries), "method": label,
        "bits": counts, "seed": seed,
    }  # fmt: skip
    return _advice(measure, sizes, settings)


def run(fits: Fits, *, bits: Iterable[int] = BITS, method: str = "itq", seed: int = 0) -> Result:
    """The same for a problem of the experiments, from the codes of its fits."""
    label, counts = _planned(method, bits)
    n_rows, n_queries = len(fits.problem.train), len(fits.problem.queries)
    sizes = Sizes.of(n_rows)

    def compute(made: Trained) -> Row:
        return sizes.measure(made.train, made.queries, fits.truth(sizes.K), made.cell.bits, fits.n_jobs)

    def measure(L: int) -> Row | str:
        made = fits.get(Cell(method.lower(), L, seed))
        return made.skipped or _row(L, made.train) | fits.derived(made.cell, {"bits": asdict(sizes)}, compute)

    settings = {
        "data": fits.problem.name, "rows": n_rows, "sample_rows": n_rows, "queries": n_queries,
        "method": label, "bits": counts, "seed": seed,
    }  # fmt: skip
    return as_result(_advice(measure, sizes, settings))


def _planned(method: str, bits: Iterable[int]) -> tuple[str, list[int]]:
    """The method's label and the numbers of bits, rising; refuses before the work what cannot be tried."""
    found = find_method(method, METHODS)
    label, counts = found.label, sorted({found.check_bits(each) for each in bits})
    if not counts:
        raise InvalidInput("bits must not be empty.")
    return label, counts


def _advice(measure: Callable[[int], Row | str], sizes: Sizes, settings: dict[str, Any]) -> Advice:
    """From what `measure` gives for each number of bits: a row, or why there is none."""
    found = {L: measure(L) for L in settings["bits"]}
    rows = [row for row in found.values() if not isinstance(row, str)]
    left_out = {L: why for L, why in found.items() if isinstance(why, str)}
    if not rows:
        why = next(iter(left_out.values()))
        raise InvalidInput(f"{settings['method']} can have none of these numbers of bits: {why}")
    return advise(rows, settings["rows"], left_out, settings | {"K": sizes.K, "k": sizes.K} | asdict(sizes))


@dataclass(frozen=True)
class Sizes:
    """K true neighbours against the K nearest codes, and the `wanted` nearest in a shortlist of codes."""

    K: int
    wanted: int
    shortlist: int

    @classmethod
    def of(cls, n_rows: int) -> Sizes:
        """No more than a tenth of the rows each, so that few rows do not make it easy."""
        most = max(1, n_rows // 10)
        return cls(min(NEAREST, most), min(WANTED, most), min(SHORTLIST, most))

    def measure(self, base: Packed, queries: Packed, truth: Any, L: int, n_jobs: int | None) -> Row:
        """Precision of the K nearest codes, recall of the wanted ones in the shortlist; ties averaged."""
        ranking = evaluate.hamming_ranking(base, queries, truth, L, n_jobs=n_jobs)
        nearest = evaluate.hamming_ranking(base, queries, truth[:, : self.wanted], L, n_jobs=n_jobs)
        return {
            "precision": evaluate.precision_recall_at_k(ranking, self.K, ties="average").precision,
            "recall": evaluate.precision_recall_at_k(nearest, self.shortlist, ties="average").recall,
        }


def encode_all(encode: Callable[[Array], Packed], X: Array, n_bits: int) -> Packed:
    """The codes of all rows, (n, bytes), in blocks that fit in memory."""
    codes = np.empty((len(X), bytes_per_code(n_bits)), dtype=np.uint8)
    for rows in block_slices(len(X), ENCODED_AT_ONCE):
        codes[rows] = encode(X[rows])
    return codes


# ---- the rule


def advise(rows: Sequence[Row], n_rows: int, left_out: dict[int, str], settings: dict[str, Any]) -> Advice:
    """Apply the rule to what was measured. rows : bits, effective_bits, precision, of n_rows rows."""
    ordered = [dict(row) for row in sorted(rows, key=lambda row: int(row["bits"]))]
    before: Row = {"bits": 0, "effective_bits": 0.0}
    for row in ordered:
        row["growth"] = (row["effective_bits"] - before["effective_bits"]) / (row["bits"] - before["bits"])
        before = row
    limit = float(np.log2(n_rows))
    for place, row in enumerate(ordered[:-1]):
        larger = ordered[place + 1 :]
        growth, gain = most_growth(row, larger), most_gain(row, larger)
        full = row["effective_bits"] >= FULL * limit
        if (full or growth < STAGNANT) and gain < SLOW:
            slowed = f"Precision grows by at most {gain:.1%} for 8 further bits."
            slowed = slowed if gain > 0 else "Precision does not grow with further bits either."
            reason = f"{_utilised(row, n_rows, limit, growth, full)} {slowed}"
            return Advice(row["bits"], reason, True, ordered, left_out, settings)
    return Advice(ordered[-1]["bits"], _unsettled(ordered, limit), False, ordered, left_out, settings)


def most_growth(row: Row, larger: Sequence[Row]) -> float:
    """The most effective bits that a further bit brings, up to any larger number of bits."""
    L, found = row["bits"], row["effective_bits"]
    return float(max((more["effective_bits"] - found) / (more["bits"] - L) for more in larger))


def most_gain(row: Row, larger: Sequence[Row]) -> float:
    """The most by which 8 further bits raise precision, as a share of it, up to any larger number of bits."""
    L, found = row["bits"], row["precision"]
    if found <= 0:
        return float("inf") if any(more["precision"] > 0 for more in larger) else 0.0
    return float(max((more["precision"] / found) ** (8 / (more["bits"] - L)) - 1 for more in larger))


def _utilised(row: Row, n_rows: int, limit: float, growth: float, full: bool) -> str:
    L, found = row["bits"], row["effective_bits"]
    if full:
        return (
            f"At {L} bits L_eff is {found:.1f}, {found / limit:.0%} of the {limit:.1f} that {n_rows:,} rows "
            "can have: few rows share a code, and further bits cannot part many more."
        )
    return (
        f"At {L} bits L_eff is {found:.1f} of at most {limit:.1f} and stagnates: further bits bring at most "
        f"{max(growth, 0.0):.2f} effective bits each, so that many rows share codes however long they are."
    )


def _unsettled(ordered: Sequence[Row], limit: float) -> str:
    last, L, found = ordered[-1], ordered[-1]["bits"], ordered[-1]["effective_bits"]
    if len(ordered) == 1:
        return f"{L} bits is all that was tried: with one number of bits there is no growth to judge."
    gain, growth = most_gain(ordered[-2], [last]), most_growth(ordered[-2], [last])
    grew = f"L_eff, {found:.1f} of at most {limit:.1f}, still grew by {growth:.2f} per bit"
    if gain >= SLOW:
        grew = f"precision still grew by {gain:.0%} for the last 8 bits"
    return f"{L} bits is the most that was tried, and {grew}; more bits may be worth trying."


def as_result(advice: Advice) -> Result:
    """What was measured, with its figure, as other experiments give it."""
    made = advice.settings
    verdict = f"{advice.bits} bits" if advice.settled else f"{advice.bits} bits or more"
    names = {
        "recall": f"{made['wanted']} nearest rows\nin {made['shortlist']} codes",
        "precision": f"precision of\n{made['K']} nearest codes",
    }
    figure = partial(
        figures.bits_panels, advice.rows, chosen=advice.bits, n_rows=made["rows"], method=made["method"],
        names=names, title=f"{made['data']}: {verdict}",
    )  # fmt: skip
    return Result(
        "bits",
        f"How many bits for {made['data']}: {verdict}",
        "The paper's use of L_eff, with precision, to choose L for a database (section 6, beside fig. 11). "
        f"{advice.reason} {RULE} Left: L_eff of all {made['rows']:,} rows, and its bound "
        f"min(L, log₂ N). Right: precision of the {made['K']} nearest codes, and the share of the "
        f"{made['wanted']} nearest rows that is among the {made['shortlist']} nearest codes (dashed).",
        made | {"recommended": advice.bits, "settled": advice.settled, "reason": advice.reason},
        {"bits": advice.rows},
        {"bits": figure},
    )


def _row(L: int, codes: Packed) -> Row:
    bound = evaluate.effective_bits_bound(L, len(codes))
    return {"bits": L, "effective_bits": evaluate.effective_bits(codes), "bound": bound}


def _split(X: Array, n_queries: int, max_rows: int, seed: int) -> tuple[Array, Array]:
    """Positions of the rows to train on and to search, and of the queries, both in rising order."""
    if len(X) < 20:
        raise InvalidInput(f"choosing a number of bits needs at least 20 rows, got {len(X)}.")
    most = min(len(X), check_integer("rows", max_rows, 20))
    held_out = min(check_integer("queries", n_queries, 1), most // 5)
    order = np.random.RandomState(seed).permutation(len(X))[:most]
    return np.sort(order[held_out:]), np.sort(order[:held_out])
