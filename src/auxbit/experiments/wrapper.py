"""How much respecting the binary constraints helps: reconstruction error and precision, figure 3."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from auxbit import evaluate
from auxbit.errors import InvalidInput
from auxbit.experiments.retrieval import cells
from auxbit.experiments.study import Claim, Fits, Result, Row, Trained, checked, means
from auxbit.plot import paper

METHODS = ("tpca", "itq", "bfa", "ba-agh", "ba")
BITS = (8, 12, 16, 20, 24, 28, 32)
ROUNDING = 1e-9  # of errors that are equal but for the order of sums


def run(
    fits: Fits, *, bits: Iterable[int] = BITS, seeds: Iterable[int] = (0,), K: int = 50, k: int = 50,
    radius: int = 2,
) -> Result:  # fmt: skip
    """Relaxing the bits away and thresholding (tPCA, ITQ) against keeping them (BFA, BA)."""
    problem, bits, seeds = fits.problem, tuple(bits), tuple(seeds)
    K, k = (min(each, max(1, len(problem.train) // 10)) for each in (K, k))

    def measure(made: Trained) -> Row:
        ranking, r = fits.ranking(made, K), min(radius, made.cell.bits)
        return {
            "precision_k": evaluate.precision_recall_at_k(ranking, k, ties="average").precision,
            "precision_r": evaluate.precision_recall_at_radius(ranking, r).precision,
        }

    rows: list[Row] = []
    for made in fits.all(cells(METHODS, bits, seeds)):
        error = {"reconstruction_error": made.facts["train_error"] * len(problem.train)}
        settings = {"wrapper": {"K": K, "k": k, "r": radius}}
        rows.append(made.row() | error | fits.derived(made.cell, settings, measure))
    if not rows:
        raise InvalidInput(f"no method can have {', '.join(map(str, bits))} bits on {problem.name}.")
    table = means(rows, ("method", "bits"))
    return Result(
        "wrapper",
        f"Respecting the binary constraints, on {problem.name}",
        f"As fig. 3 of the paper: the BA objective, Σ‖x − f(h(x))‖² over the training rows, and the "
        f"precision within Hamming distance {radius} and of the {k} nearest codes, for {K} true neighbours.",
        {"data": problem.name, "train_rows": len(problem.train), "queries": len(problem.queries),
         "bits": list(bits), "seeds": list(seeds), "K": K, "k": k, "r": radius, "methods": list(METHODS)},
        {"wrapper": table},
        {"wrapper": partial(paper.wrapper_panels, table, k=k, radius=radius, title=problem.name)},
        _claims(table, problem.name),
    )  # fmt: skip


def _claims(table: list[Row], data: str) -> list[Claim]:
    at = {(row["method"], row["bits"]): row for row in table}
    every = sorted({row["bits"] for row in table})
    error = "reconstruction_error"
    compared = [L for L in every if ("BA", L) in at and ("ITQ", L) in at and ("tPCA", L) in at]
    lowest = [
        (f"L={L}: {best} has {at[best, L][error]:.6g}, BA {at['BA', L][error]:.6g}", best in ("BA", "BA-AGH"))
        for L in compared
        for best in [min((m for m, bits in at if bits == L), key=lambda m: at[m, L][error])]
    ]
    start = [
        (f"L={L}: {at['BA', L][error]:.6g} against {at['ITQ', L][error]:.6g}",
         at["BA", L][error] <= at["ITQ", L][error] * (1 + ROUNDING))
        for L in compared
    ]  # fmt: skip
    worst = [
        (f"L={L}: {at['tPCA', L]['precision_k']:.3f}",
         at["tPCA", L]["precision_k"] <= min(at[m, L]["precision_k"] for m, bits in at if bits == L))
        for L in compared
    ]  # fmt: skip
    found = {
        "BA has the lowest reconstruction error at every L": lowest,
        "MAC never ends above its start's reconstruction error (BA from ITQ)": start,
        "tPCA has the lowest precision at every L": worst,
    }
    return checked("wrapper", data, found)
