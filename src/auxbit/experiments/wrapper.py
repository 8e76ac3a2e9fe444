"""How much respecting the binary constraints helps: reconstruction error and precision, figure 3."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import product

from auxbit import evaluate
from auxbit.errors import InvalidInput
from auxbit.experiments.retrieval import about_ba, both_ba, cells, shown
from auxbit.experiments.study import (
    PAPER,
    Case,
    Claim,
    Fits,
    Result,
    Row,
    Trained,
    above,
    checked,
    error_of,
    means,
    verdict,
)
from auxbit.hashers.registry import find_method
from auxbit.plot import paper

METHODS = ("ba", "bfa", "itq", "tpca")  # the paper's
BITS = (8, 12, 16, 20, 24, 28, 32)
ERROR = "reconstruction_error"
ROUNDING = 1e-9  # of errors that are equal but for the order of sums


def run(
    fits: Fits, *, bits: Iterable[int] = BITS, seeds: Iterable[int] = (0,), preset: str = PAPER, K: int = 50,
    k: int = 50, radius: int = 2,
) -> Result:  # fmt: skip
    """Relaxing the bits away and thresholding (tPCA, ITQ) against keeping them (BFA, BA)."""
    problem, bits, seeds = fits.problem, tuple(bits), tuple(seeds)
    K, k = (min(each, max(1, len(problem.train) // 10)) for each in (K, k))
    methods = shown(preset, METHODS)

    def measure(made: Trained) -> Row:
        ranking, r = fits.ranking(made, K), min(radius, made.cell.bits)
        return {
            "precision_k": evaluate.precision_recall_at_k(ranking, k, ties="average").precision,
            "precision_r": evaluate.precision_recall_at_radius(ranking, r).precision,
        }

    rows: list[Row] = []
    for made in fits.all(cells(methods, bits, seeds, preset)):
        error: Row = {"reconstruction_error": made.facts["train_error"] * len(problem.train)}
        if made.start is not None:
            error["start_error"] = made.start.facts["train_error"] * len(problem.train)
            error["gain"] = error["start_error"] - error["reconstruction_error"]
        settings = {"wrapper": {"K": K, "k": k, "r": radius}}
        rows.append(made.row() | error | fits.derived(made.cell, settings, measure))
    if not rows:
        raise InvalidInput(f"no method can have {', '.join(map(str, bits))} bits on {problem.name}.")
    table = means(rows, ("method", "bits"), spread=True)
    return Result(
        "wrapper",
        f"Respecting the binary constraints, on {problem.name}",
        f"As fig. 3 of the paper: the BA objective, Σ‖x − f(h(x))‖² over the training rows, and the "
        f"precision within Hamming distance {radius} and of the {k} nearest codes, for {K} true neighbours. "
        f"{about_ba(preset)} Means over seeds; bars are standard deviations. The start_error is that of the "
        "hash function that this very BA started from, with the decoder that is best for its codes.",
        {"data": problem.name, "train_rows": len(problem.train), "queries": len(problem.queries),
         "preset": preset, "bits": list(bits), "seeds": list(seeds), "K": K, "k": k, "r": radius,
         "methods": list(methods)},
        {"wrapper": table},
        {"wrapper": partial(paper.wrapper_panels, table, k=k, radius=radius, title=problem.name)},
        _claims(table, preset, problem.name),
    )  # fmt: skip


def _claims(table: list[Row], preset: str, data: str) -> list[Claim]:
    at = {(row["method"], row["bits"]): row for row in table}
    ours, others = both_ba(preset), [find_method(name).label for name in METHODS[1:]]
    every = sorted({row["bits"] for row in table})

    def extreme(method: str, values: Iterable[str], sign: int, rivals: Iterable[str]) -> list[Case]:
        """At each L, whether a method has the highest value of all (sign 1), or the lowest (-1)."""
        cases: list[Case] = []
        for value, L in product(values, every):
            against = [at[m, L] for m in rivals if m != method and (m, L) in at]
            if against and (row := at.get((method, L))) is not None:
                best = sorted(against, key=lambda row: sign * float(row[value]))[-1]
                text = f"L={L}, {value}: {row[value]:.6g} against {best[value]:.6g} of {best['method']}"
                high, low = (row, best) if sign > 0 else (best, row)
                cases.append((text, above(high, low, value)))
        return cases

    start = [
        (f"{row['method']}, L={row['bits']}: {row[ERROR]:.6g} against {row['start_error']:.6g}",
         verdict(row["gain"], error_of(row, "gain"), slack=ROUNDING * row[ERROR]))
        for row in table
        if row.get("gain") is not None
    ]  # fmt: skip
    precisions = ("precision_k", "precision_r")
    found: dict[str, list[Case]] = {}
    for ba, label in ours.items():
        found |= {
            f"{ba} has the lowest reconstruction error at every L": extreme(label, [ERROR], -1, others),
            f"{ba} has the highest precision at every L": extreme(label, precisions, 1, others),
        }
    worst = ["BA", *others]
    found |= {
        "MAC never ends above its own start's reconstruction error": start,
        "tPCA has the highest reconstruction error at every L": extreme("tPCA", [ERROR], 1, worst),
        "tPCA has the lowest precision at every L": extreme("tPCA", precisions, -1, worst),
    }
    return checked("wrapper", data, found)
