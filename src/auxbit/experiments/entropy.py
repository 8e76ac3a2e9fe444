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
from auxbit.experiments.retrieval import OTHERS, Caption, about_ba, both_ba, cells, measured, place, shown
from auxbit.experiments.study import (
    PAPER,
    Case,
    Claim,
    Fits,
    Result,
    Row,
    above,
    checked,
    error_of,
    means,
    verdict,
)
from auxbit.plot import paper

STAGNANT = 0.1  # effective bits that a further bit brings: less is stagnation
HISTOGRAM = ("BA", "ITQ", "tPCA", "AGH")
POINTS = 200  # of a histogram's line
ALIKE = 0.5  # rank correlation: from here on, two orders are alike
LABELS = ("BA", *OTHERS)  # the paper's methods, which claims are about


def run(
    fits: Fits, *, caption: Caption, methods: Iterable[str] | None = None, bits: Iterable[int] | None = None,
    seeds: Iterable[int] = (0,), preset: str = PAPER,
) -> Result:  # fmt: skip
    """L_eff of the codes of training rows and queries, how many rows share a code, and precision."""
    problem, bits, seeds = fits.problem, tuple(bits or caption.bits), tuple(seeds)
    methods, middle = tuple(methods or shown(preset)), sorted(bits)[len(bits) // 2]
    rows: list[Row] = []
    counts: list[Row] = []
    precisions: list[Row] = []
    for made in fits.all(cells(methods, bits, seeds, preset)):
        cell, row = made.cell, made.row()
        for side, codes in (("train", made.train), ("queries", made.queries)):
            row[side] = evaluate.effective_bits(codes)
            row[f"{side}_bound"] = evaluate.effective_bits_bound(cell.bits, len(codes))
        rows.append(row)
        for each in caption.sets:
            found = measured(fits, made, each)["precision"]
            precisions += [
                made.row() | {"K": each.K, "retrieved": one["retrieved"], "precision": one["precision"]}
                for one in found
            ]
        if cell.seed == seeds[0] and cell.label in HISTOGRAM and cell.bits == middle:
            counts += _histogram(made.row(), evaluate.code_counts(made.train))
    if not rows:
        raise InvalidInput(f"no method can have {', '.join(map(str, bits))} bits on {problem.name}.")
    table = means(rows, ("method", "bits"), spread=True)
    ranks = means(_ranks(rows, precisions, seeds), ("bits", "K", "retrieved"), spread=True)
    falls = means(precisions, ("method", "bits", "K", "retrieved"), spread=True)
    return Result(
        "entropy",
        f"Code utilisation on {problem.name}",
        "As fig. 11 of the paper: the effective number of bits, the entropy of the codes, by the number of "
        "bits (solid: training rows, dashed: queries; dotted: the bounds min(L, log₂ n)), and how many rows "
        f"each code has at L = {middle}, most used first. {about_ba(preset)} Means over seeds; bars are "
        "standard deviations. Claims are about the paper's methods, without LSH and the other BA; table "
        f"ranks has the rank correlation of L_eff and precision as in {caption.figure}, tPCA left out.",
        {"data": problem.name, "train_rows": len(problem.train), "queries": len(problem.queries),
         "preset": preset, "methods": list(methods), "bits": list(bits), "seeds": list(seeds)},
        {"entropy": table, "ranks": ranks, "counts": counts},
        {"entropy": partial(paper.entropy_panels, table, counts, title=problem.name)},
        _claims(table, ranks, falls, preset, problem.name),
    )  # fmt: skip


def _histogram(row: Row, counts: Any) -> list[Row]:
    """Counts of codes, largest first, at ranks that are evenly spread on a logarithmic axis."""
    ordered = np.sort(counts)[::-1]
    ranks = np.unique(np.geomspace(1, len(ordered), POINTS).astype(int))
    return [row | {"rank": int(rank), "count": int(ordered[rank - 1])} for rank in ranks]


def _ranks(rows: list[Row], precisions: list[Row], seeds: tuple[int, ...]) -> list[Row]:
    """For each seed, how alike the paper's methods, tPCA apart, are ordered by L_eff and by precision.

    A method without randomness has the same values for every seed.
    """
    others = [label for label in LABELS if label != "tPCA"]
    L_eff = {(row["method"], row["bits"], row["seed"]): row["train"] for row in rows}
    found = {
        (row["method"], row["bits"], row["K"], row["retrieved"], row["seed"]): row["precision"]
        for row in precisions
    }
    made: list[Row] = []
    for L, K, how in dict.fromkeys((row["bits"], row["K"], row["retrieved"]) for row in precisions):
        for seed in seeds:
            pairs = []
            for m in others:
                used = seed if (m, L, seed) in L_eff else seeds[0]
                if (m, L, used) in L_eff:
                    pairs.append((L_eff[m, L, used], found[m, L, K, how, used]))
            if len(pairs) > 2 and all(len(set(side)) > 1 for side in zip(*pairs, strict=True)):
                correlation = float(spearmanr(*zip(*pairs, strict=True))[0])
                made.append({"bits": L, "K": K, "retrieved": how, "seed": seed, "correlation": correlation})
    return made


def _claims(table: list[Row], ranks: list[Row], precisions: list[Row], preset: str, data: str) -> list[Claim]:
    of_all = {(row["method"], row["bits"]): row for row in table}
    at = {key: row for key, row in of_all.items() if key[0] in LABELS}
    every = sorted({bits for _, bits in at})
    highest: list[Case] = []
    for L in every:
        for side, what in (("train", "rows"), ("queries", "queries")):
            rivals = [row for (m, bits), row in at.items() if bits == L and m != "tPCA"]
            if ("tPCA", L) in at and rivals:
                ours, best = at["tPCA", L], max(rivals, key=lambda row: float(row[side]))
                text = f"L={L}, {what}: {best['method']} has {best[side]:.2f}, tPCA {ours[side]:.2f}"
                highest.append((text, above(ours, best, side)))
    improved: dict[str, list[Case]] = {}
    for ba, label in both_ba(preset).items():
        pairs = [(of_all.get((label, L)), at.get(("ITQ", L))) for L in every]
        improved[f"{ba} is above ITQ in L_eff"] = [
            (f"L={a['bits']}: {a['train']:.2f} against {b['train']:.2f}", above(a, b, "train"))
            for a, b in pairs
            if a is not None and b is not None
        ]
    lines = {m: [at[m, L] for L in every if (m, L) in at] for m in LABELS}
    grows: list[Case] = [
        (f"{m}: {a['train']:.2f} to {b['train']:.2f}", above(b, a, "train"))
        for m, line in lines.items()
        for a, b in pairwise(line)
    ]
    found = {
        "tPCA has the highest L_eff": highest,
        **improved,
        f"L_eff and precision within r rank the methods alike (rank correlation of at least {ALIKE})": [
            (f"{place(row)}: {row['correlation']:.2f}",
             verdict(row["correlation"] - ALIKE, error_of(row, "correlation")))
            for row in ranks
            if row["retrieved"].startswith("r=")
        ],
        "methods whose precision within the smallest r falls at large L have a stagnant L_eff "
        f"(less than {STAGNANT:g} for a further bit)": _stagnant(at, precisions),
        "L_eff grows with L": grows,
    }  # fmt: skip
    generally = {
        "L_eff ranks the methods more like precision within r than like that of the k nearest": _nearer(ranks)
    }
    return checked("entropy", data, found) + checked("entropy", data, generally, mostly=True)


def _nearer(ranks: list[Row]) -> list[Case]:
    """For each L and K, the mean rank correlation over the radii against the one for the k nearest."""
    cases: list[Case] = []
    for L, K in dict.fromkeys((row["bits"], row["K"]) for row in ranks):
        some = [row for row in ranks if (row["bits"], row["K"]) == (L, K)]
        within = [row["correlation"] for row in some if row["retrieved"].startswith("r=")]
        nearest = [row["correlation"] for row in some if row["retrieved"].startswith("k=")]
        if within and nearest:
            mean = float(np.mean(within))
            cases.append((f"L={L}, K={K}: {mean:.2f} against {nearest[0]:.2f}", mean >= nearest[0]))
    return cases


def _stagnant(at: dict[tuple[str, int], Row], precisions: list[Row]) -> list[Case]:
    """Of methods whose precision falls between the last two L, within the smallest r, what L_eff does."""
    lengths = sorted({bits for _, bits in at})[-2:]
    radii = sorted({int(row["retrieved"][2:]) for row in precisions if row["retrieved"].startswith("r=")})
    cases: list[Case] = []
    if len(lengths) < 2 or not radii:
        return cases
    value = {
        (row["method"], row["bits"], row["K"]): row
        for row in precisions
        if row["retrieved"] == f"r={radii[0]}"
    }
    low, high = lengths
    for m, K in dict.fromkeys((m, K) for m, _, K in value):
        keys = (m, low, K), (m, high, K)
        if not all(key in value for key in keys) or not {(m, low), (m, high)} <= at.keys():
            continue
        before, after = (value[key] for key in keys)
        if above(before, after, "precision") is True and before["precision"] > after["precision"]:
            growth = (at[m, high]["train"] - at[m, low]["train"]) / (high - low)
            cases.append((f"{m}, K={K}: {growth:.3f} for a further bit", growth < STAGNANT))
    return cases
