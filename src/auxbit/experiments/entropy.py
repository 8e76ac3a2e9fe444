"""Code utilisation: the effective number of bits of each method, and counts per code, figure 11."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from auxbit import evaluate
from auxbit.errors import InvalidInput
from auxbit.experiments.retrieval import BITS, METHODS, cells
from auxbit.experiments.study import Claim, Fits, Result, Row, Trained, checked, means
from auxbit.plot import paper

HISTOGRAM = ("BA", "ITQ", "tPCA", "LSH")
POINTS = 200  # of a histogram's line


def run(
    fits: Fits, *, methods: Iterable[str] = METHODS, bits: Iterable[int] = BITS, seeds: Iterable[int] = (0,),
    K: int = 50,
) -> Result:  # fmt: skip
    """L_eff of the codes of training rows and queries, and how many rows share a code."""
    problem, methods, bits, seeds = fits.problem, tuple(methods), tuple(bits), tuple(seeds)
    K, middle = min(K, max(1, len(problem.train) // 10)), sorted(bits)[len(bits) // 2]
    rows: list[Row] = []
    counts: list[Row] = []

    def precision(made: Trained) -> Row:
        ranking = fits.ranking(made, K)
        return {"precision": evaluate.precision_recall_at_k(ranking, K, ties="average").precision}

    for made in fits.all(cells(methods, bits, seeds)):
        cell, row = made.cell, made.row()
        for side, codes in (("train", made.train), ("queries", made.queries)):
            row[side] = evaluate.effective_bits(codes)
            row[f"{side}_bound"] = evaluate.effective_bits_bound(cell.bits, len(codes))
        rows.append(row | fits.derived(cell, {"precision": {"K": K, "k": K}}, precision))
        if cell.seed == seeds[0] and cell.label in HISTOGRAM and cell.bits == middle:
            counts += _histogram(made.row(), evaluate.code_counts(made.train))
    if not rows:
        raise InvalidInput(f"no method can have {', '.join(map(str, bits))} bits on {problem.name}.")
    table = means(rows, ("method", "bits"))
    return Result(
        "entropy",
        f"Code utilisation on {problem.name}",
        "As fig. 11 of the paper: the effective number of bits, the entropy of the codes, by the number of "
        "bits (solid: training rows, dashed: queries; dotted: the bounds min(L, log₂ n)), and how many rows "
        f"each code has at L = {middle}, most used first.",
        {"data": problem.name, "train_rows": len(problem.train), "queries": len(problem.queries),
         "methods": list(methods), "bits": list(bits), "seeds": list(seeds), "K": K, "k": K},
        {"entropy": table, "counts": counts},
        {"entropy": partial(paper.entropy_panels, table, counts, title=problem.name)},
        _claims(table, problem.name),
    )  # fmt: skip


def _histogram(row: Row, counts: Any) -> list[Row]:
    """Counts of codes, largest first, at ranks that are evenly spread on a logarithmic axis."""
    ordered = np.sort(counts)[::-1]
    ranks = np.unique(np.geomspace(1, len(ordered), POINTS).astype(int))
    return [row | {"rank": int(rank), "count": int(ordered[rank - 1])} for rank in ranks]


def _claims(table: list[Row], data: str) -> list[Claim]:
    at = {(row["method"], row["bits"]): row for row in table}
    every = sorted({row["bits"] for row in table})
    highest = [
        (f"L={L}: {best} has {at[best, L]['train']:.2f}, tPCA {at['tPCA', L]['train']:.2f}", best == "tPCA")
        for L in every
        if ("tPCA", L) in at
        for best in [max((m for m, bits in at if bits == L), key=lambda m: at[m, L]["train"])]
    ]
    above = [
        (f"L={L}: {at['BA', L]['train']:.2f} against {at['ITQ', L]['train']:.2f}",
         at["BA", L]["train"] >= at["ITQ", L]["train"])
        for L in every
        if ("BA", L) in at and ("ITQ", L) in at
    ]  # fmt: skip
    alike = []
    for L in every:
        others = [m for m, bits in at if bits == L and m != "tPCA"]
        if len(others) > 2:
            rank = spearmanr([at[m, L]["train"] for m in others], [at[m, L]["precision"] for m in others])[0]
            if not np.isnan(rank):  # of measures that are all the same
                alike.append((f"L={L}: rank correlation {rank:.2f}", bool(rank >= 0.5)))
    grows = [
        (f"{m}: {at[m, a]['train']:.2f} to {at[m, b]['train']:.2f}", at[m, b]["train"] >= at[m, a]["train"])
        for m in sorted({m for m, _ in at})
        for a, b in pairwise([L for L in every if (m, L) in at])
    ]
    found = {
        "tPCA has the highest L_eff": highest,
        "BA is above ITQ in L_eff": above,
        "L_eff and precision rank the methods alike, tPCA apart (rank correlation of at least 0.5)": alike,
        "L_eff grows with L": grows,
    }
    return checked("entropy", data, found)
