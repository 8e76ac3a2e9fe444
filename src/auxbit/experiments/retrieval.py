"""Precision and recall of all methods by bits, and precision/recall curves: figures 6 to 8 and 10."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from auxbit import evaluate
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.experiments import compare
from auxbit.experiments.study import Cell, Claim, Fits, Problem, Result, Row, Trained, checked, means
from auxbit.plot import paper

METHODS = ("ba-agh", "ba", "bfa", "itq", "agh", "sph", "sh", "klsh", "tpca", "lsh")
BITS = (8, 16, 24, 32)


@dataclass(frozen=True)
class Neighbours:
    """K true neighbours; retrieved are the k nearest by Hamming distance, or all within each radius."""

    K: int
    k: int
    radii: tuple[int, ...]


@dataclass(frozen=True)
class Preset:
    """The sets of one figure of the paper; curves : whether it has precision/recall curves."""

    figure: str
    sets: tuple[Neighbours, ...]
    curves: bool = True
    bits: tuple[int, ...] = BITS


PRESETS = {
    "nuswide": Preset("fig. 6", tuple(Neighbours(K, K, (1, 2)) for K in (100, 500, 1500))),
    "sift": Preset("fig. 7", (Neighbours(10_000, 10_000, (1, 2, 3)),), curves=False),
    "cifar": Preset("fig. 8", (Neighbours(1000, 100, (3, 4)), Neighbours(50, 50, (3, 4)))),
    "nuswide-lite": Preset("fig. 10", (Neighbours(50, 50, (1, 2, 3)),)),
}
OF_DATA = {"cifar10": "cifar", "sift1m": "sift", "nuswide": "nuswide"}


def preset_of(name: str | None, problem: Problem) -> Preset:
    """The preset of that name, or the one meant for the problem, with sets of at most a tenth of the rows."""
    name = name or OF_DATA.get(problem.name, "nuswide-lite")
    if name not in PRESETS:
        raise InvalidParameter("preset", name, f"one of {', '.join(PRESETS)}")
    preset, most = PRESETS[name], max(1, len(problem.train) // 10)
    sets = (replace(each, K=min(each.K, most), k=min(each.k, most)) for each in preset.sets)
    return replace(preset, sets=tuple(dict.fromkeys(sets)))


def cells(methods: Iterable[str], bits: Iterable[int], seeds: Iterable[int]) -> list[Cell]:
    """Every fit, in the order in which tables list them; a method without randomness has the first seed."""
    return [Cell(label.lower(), each, seed) for label, each, seed in compare.cells(methods, bits, seeds)]


def run(
    fits: Fits, *, preset: Preset, methods: Iterable[str] = METHODS, bits: Iterable[int] | None = None,
    seeds: Iterable[int] = (0,),
) -> Result:  # fmt: skip
    """Measure all methods on the sets of a preset."""
    problem, bits, seeds, methods = fits.problem, tuple(bits or preset.bits), tuple(seeds), tuple(methods)
    rows: list[Row] = []
    curves: list[Row] = []
    for made in fits.all(cells(methods, bits, seeds)):
        for each in preset.sets:
            settings = {"retrieval": asdict(each)}
            found = fits.derived(made.cell, settings, partial(_measure, fits=fits, each=each))
            rows += [made.row() | {"K": each.K} | row for row in found["precision"]]
            curves += [made.row() | {"K": each.K} | row for row in found["curve"]]
    if not rows:
        raise InvalidInput(f"no method can have {', '.join(map(str, bits))} bits on {problem.name}.")
    tables = {
        "retrieval": means(rows, ("method", "bits", "K", "retrieved")),
        "curves": means(curves, ("method", "bits", "K", "radius")),
    }
    return Result(
        "retrieval",
        f"Precision and recall on {problem.name}",
        f"As {preset.figure} of the paper: precision of what is retrieved, by the number of bits L, for K "
        "true neighbours, retrieving the k nearest codes (ties averaged) or all within Hamming distance r (a "
        "query without any counts as 0); then precision and recall within r = 0, 1, 2, … for each L, without "
        "the queries that retrieve nothing.",
        {"data": problem.name, "train_rows": len(problem.train), "queries": len(problem.queries),
         "columns": int(problem.train.shape[1]), "preset": asdict(preset), "methods": list(methods),
         "bits": list(bits), "seeds": list(seeds)},
        tables,
        _figures(tables, preset, problem),
        _claims(tables["retrieval"], problem.name),
    )  # fmt: skip


def _measure(made: Trained, *, fits: Fits, each: Neighbours) -> dict[str, Any]:
    ranking = fits.ranking(made, each.K)
    found = {f"k={each.k}": evaluate.precision_recall_at_k(ranking, each.k, ties="average")}
    for r in each.radii:
        found[f"r={r}"] = evaluate.precision_recall_at_radius(ranking, min(r, made.cell.bits))
    precision = [{"retrieved": how} | both._asdict() for how, both in found.items()]
    curve = evaluate.precision_recall_curve(ranking)
    points = zip(*(column.tolist() for column in curve), strict=True)
    named = (dict(zip(curve._fields, point, strict=True)) for point in points)
    return {"precision": precision, "curve": [point for point in named if point["answered"]]}


def _figures(tables: dict[str, list[Row]], preset: Preset, problem: Problem) -> dict[str, Any]:
    drawn = {"retrieval": (paper.precision_panels, "precision, K = {} true neighbours")}
    if preset.curves:
        drawn["curves"] = (paper.curve_panels, "precision and recall within r, K = {}")
    figures = {}
    for (name, (draw, title)), K in product(drawn.items(), [each.K for each in preset.sets]):
        rows = [row for row in tables[name] if row["K"] == K]
        figures[f"{name}-K{K}"] = partial(draw, rows, title=f"{problem.name}: {title.format(K)}")
    return figures


def _claims(rows: list[Row], data: str) -> list[Claim]:
    at = {(row["method"], row["bits"], row["K"], row["retrieved"]): row["precision"] for row in rows}
    every = sorted({key[1:] for key in at}, key=str)

    def above(better: str, worse: str) -> list[tuple[str, bool]]:
        return [
            (f"L={L}, K={K}, {how}: {at[better, L, K, how]:.3f} against {at[worse, L, K, how]:.3f}",
             at[better, L, K, how] >= at[worse, L, K, how])
            for L, K, how in every
            if (better, L, K, how) in at and (worse, L, K, how) in at
        ]  # fmt: skip

    lengths = sorted({row["bits"] for row in rows})
    before, last = lengths[-2:] if len(lengths) > 1 else (0, 0)
    radii = sorted({(K, int(how[2:])) for _, _, K, how in at if how.startswith("r=")}, reverse=True)
    smallest = {K: f"r={r}" for K, r in radii}  # the last one of each K stays
    falls = [
        (f"{m}, K={K}, {how}: {at[m, before, K, how]:.3f} to {at[m, last, K, how]:.3f}",
         at[m, last, K, how] < at[m, before, K, how])
        for m in ("BA", "BA-AGH", "BFA")
        for L, K, how in every
        if last == L and how == smallest.get(K)
        if {(m, before, K, how), (m, last, K, how)} <= at.keys()
    ]  # fmt: skip
    found = {
        "BA (from ITQ) is above its start ITQ in precision": above("BA", "ITQ"),
        "BA (from AGH) is above its start AGH": above("BA-AGH", "AGH"),
        "BA is above BFA": above("BA", "BFA"),
        "AGH is the better start: BA from AGH above BA from ITQ": above("BA-AGH", "BA"),
        "precision at the smallest r falls at large L (the last two)": falls,
    }
    return checked("retrieval", data, found)
