"""Precision and recall of all methods by bits, and precision/recall curves: figures 6 to 8 and 10."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise, product
from typing import Any

from auxbit import evaluate
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.experiments import compare
from auxbit.experiments.study import (
    PAPER,
    Case,
    Cell,
    Claim,
    Fits,
    Problem,
    Result,
    Row,
    Trained,
    above,
    check_preset,
    checked,
    error_of,
    means,
    verdict,
)
from auxbit.hashers.registry import find_method
from auxbit.plot import paper

METHODS = ("ba", "bfa", "itq", "agh", "sph", "sh", "klsh", "tpca")  # the paper's
OTHERS = tuple(find_method(name).label for name in METHODS[1:])
FROM_AGH = {PAPER: "ba", "default": "ba-agh"}  # BA itself starts as its preset says, and beside it, as in
FROM_ITQ = {PAPER: "ba-itq", "default": "ba"}  # fig. 7, stands BA from the other start
BITS = (8, 16, 24, 32)


def shown(preset: str, methods: Sequence[str] = (*METHODS, "lsh")) -> tuple[str, ...]:
    """What figures show: methods, of which BA is the first, and BA from the other start beside it."""
    both = FROM_AGH[check_preset(preset)], FROM_ITQ[preset]
    return (*sorted(both), *methods[1:])


@dataclass(frozen=True)
class Neighbours:
    """K true neighbours; retrieved are the k nearest by Hamming distance, or all within each radius."""

    K: int
    k: int
    radii: tuple[int, ...]


@dataclass(frozen=True)
class Caption:
    """The sets of one figure of the paper; curves : whether it has precision/recall curves."""

    figure: str
    sets: tuple[Neighbours, ...]
    curves: bool = True
    bits: tuple[int, ...] = BITS


CAPTIONS = {
    "nuswide": Caption("fig. 6", tuple(Neighbours(K, K, (1, 2)) for K in (100, 500, 1500))),
    "sift": Caption("fig. 7", (Neighbours(10_000, 10_000, (1, 2, 3)),), curves=False),
    "cifar": Caption("fig. 8", (Neighbours(1000, 100, (3, 4)), Neighbours(50, 50, (3, 4)))),
    "nuswide-lite": Caption("fig. 10", (Neighbours(50, 50, (1, 2, 3)),)),
}
OF_DATA = {"cifar10": "cifar", "sift1m": "sift", "nuswide": "nuswide"}


def caption_of(name: str | None, problem: Problem) -> Caption:
    """The caption of that name, or the one for the problem, with sets of at most a tenth of the rows."""
    name = name or OF_DATA.get(problem.name, "nuswide-lite")
    if name not in CAPTIONS:
        raise InvalidParameter("caption", name, f"one of {', '.join(CAPTIONS)}")
    caption, most = CAPTIONS[name], max(1, len(problem.train) // 10)
    sets = (replace(each, K=min(each.K, most), k=min(each.k, most)) for each in caption.sets)
    return replace(caption, sets=tuple(dict.fromkeys(sets)))


def cells(
    methods: Iterable[str], bits: Iterable[int], seeds: Iterable[int], preset: str = PAPER
) -> list[Cell]:
    """Every fit, in the order in which tables list them; a method without randomness has the first seed."""
    every = compare.cells(methods, bits, seeds)
    return [Cell.under(preset, label.lower(), each, seed) for label, each, seed in every]


def run(
    fits: Fits, *, caption: Caption, methods: Iterable[str] | None = None, bits: Iterable[int] | None = None,
    seeds: Iterable[int] = (0,), preset: str = PAPER,
) -> Result:  # fmt: skip
    """Measure all methods on the sets of a caption."""
    problem, bits, seeds = fits.problem, tuple(bits or caption.bits), tuple(seeds)
    methods = tuple(methods or shown(preset))
    rows: list[Row] = []
    curves: list[Row] = []
    judged: list[Row] = []
    for made in fits.all(cells(methods, bits, seeds, preset)):
        for each in caption.sets:
            found = measured(fits, made, each)
            rows += [made.row() | {"K": each.K} | row for row in found["precision"]]
            curves += [made.row() | {"K": each.K} | row for row in found["curve"]]
        if made.start is not None and made.start.facts["validation"] is not None:
            judged.append(made.row() | _validation(made, made.start))
    if not rows:
        raise InvalidInput(f"no method can have {', '.join(map(str, bits))} bits on {problem.name}.")
    tables = {
        "retrieval": means(rows, ("method", "bits", "K", "retrieved"), spread=True),
        "curves": means(curves, ("method", "bits", "K", "radius"), spread=True),
        "validation": means(judged, ("method", "bits"), spread=True),
    }
    return Result(
        "retrieval",
        f"Precision and recall on {problem.name}",
        f"As {caption.figure} of the paper: precision of what is retrieved, by the number of bits L, for K "
        "true neighbours, retrieving the k nearest codes (ties averaged) or all within Hamming distance r (a "
        "query without any counts as 0); then precision and recall within r = 0, 1, 2, … for each L, without "
        f"the queries that retrieve nothing. {about_ba(preset)} Means over seeds; bars are standard "
        "deviations. A start_precision is that of the hash function that this very BA started from, and gain "
        "what it is above it.",
        {"data": problem.name, "train_rows": len(problem.train), "queries": len(problem.queries),
         "columns": int(problem.train.shape[1]), "caption": asdict(caption), "preset": preset,
         "methods": list(methods), "bits": list(bits), "seeds": list(seeds)},
        tables,
        _figures(tables, caption, problem),
        _claims(tables["retrieval"], tables["validation"], preset, problem.name),
    )  # fmt: skip


def both_ba(preset: str) -> dict[str, str]:
    """BA in words, and its label in tables: claims are checked for both starts, whichever is the preset's."""
    named = {"BA from AGH": FROM_AGH, "BA from ITQ": FROM_ITQ}
    return {words: find_method(method[preset]).label for words, method in named.items()}


def about_ba(preset: str) -> str:
    """What BA stands for in a figure."""
    return f"BA starts from {'AGH' if preset == PAPER else 'ITQ'} (preset {preset})."


def measured(fits: Fits, made: Trained, each: Neighbours) -> dict[str, Any]:
    """Precision of each way to retrieve, with that of BA's start, and the precision/recall curve."""
    measure = partial(_measure, fits=fits, each=each)
    found: dict[str, Any] = fits.derived(made.cell, {"retrieval": asdict(each)}, measure)
    return found


def _measure(made: Trained, *, fits: Fits, each: Neighbours) -> dict[str, Any]:
    ranking = fits.ranking(made, each.K)
    rows = _precisions(made, ranking, each)
    if made.start is not None:
        for row, start in zip(rows, _precisions(made, fits.ranking(made.start, each.K), each), strict=True):
            row["start_precision"] = start["precision"]
            row["gain"] = row["precision"] - start["precision"]
    curve = evaluate.precision_recall_curve(ranking)
    points = zip(*(column.tolist() for column in curve), strict=True)
    named = (dict(zip(curve._fields, point, strict=True)) for point in points)
    return {"precision": rows, "curve": [point for point in named if point["answered"]]}


def _precisions(made: Trained, ranking: evaluate.Ranking, each: Neighbours) -> list[Row]:
    found = {f"k={each.k}": evaluate.precision_recall_at_k(ranking, each.k, ties="average")}
    for r in each.radii:
        found[f"r={r}"] = evaluate.precision_recall_at_radius(ranking, min(r, made.cell.bits))
    return [{"retrieved": how} | both._asdict() for how, both in found.items()]


def _validation(made: Trained, start: Trained) -> Row:
    """The precision of BA and of its start on the validation queries, which decide when it stops."""
    before = start.facts["validation"]
    best = max(record["precision"] for record in made.facts["history"])
    return {"start_precision": before, "precision": best, "gain": best - before}


def _figures(tables: dict[str, list[Row]], caption: Caption, problem: Problem) -> dict[str, Any]:
    drawn = {"retrieval": (paper.precision_panels, "precision, K = {} true neighbours")}
    if caption.curves:
        drawn["curves"] = (paper.curve_panels, "precision and recall within r, K = {}")
    figures = {}
    for (name, (draw, title)), K in product(drawn.items(), [each.K for each in caption.sets]):
        rows = [row for row in tables[name] if row["K"] == K]
        figures[f"{name}-K{K}"] = partial(draw, rows, title=f"{problem.name}: {title.format(K)}")
    return figures


def gains(rows: Iterable[Row], method: str) -> list[Case]:
    """Whether BA is above the start that it had, seed by seed, in each row of a table."""
    return [
        (f"{place(row)}: {row['precision']:.3f} against {row['start_precision']:.3f}",
         verdict(row["gain"], error_of(row, "gain")))
        for row in rows
        if row["method"] == method and row.get("gain") is not None
    ]  # fmt: skip


def place(row: Row) -> str:
    """Where a case of a claim is."""
    return f"L={row['bits']}" + (f", K={row['K']}, {row['retrieved']}" if "K" in row else "")


def _claims(rows: list[Row], judged: list[Row], preset: str, data: str) -> list[Claim]:
    at = {(row["method"], row["bits"], row["K"], row["retrieved"]): row for row in rows}
    every = sorted({key[1:] for key in at}, key=str)
    ours = both_ba(preset)
    agh, itq = ours.values()

    def compared(better: str, worse: Iterable[str]) -> list[Case]:
        cases: list[Case] = []
        for L, K, how in every:
            rivals = [at[method, L, K, how] for method in worse if (method, L, K, how) in at]
            if rivals and (row := at.get((better, L, K, how))) is not None:
                best = max(rivals, key=lambda row: float(row["precision"]))
                text = f"{place(row)}: {row['precision']:.3f} against {best['precision']:.3f}"
                named = text if len(rivals) == 1 else f"{text} of {best['method']}"
                cases.append((named, above(row, best, "precision")))
        return cases

    def steps(how: str, K: int, *, last: bool, falls: bool) -> list[Case]:
        """From each L to the next, or to the last one only, whether precision falls, or grows."""
        cases: list[Case] = []
        for m in (agh, itq, "BFA"):
            line = [at[m, L, K, how] for L in lengths if (m, L, K, how) in at]
            for before, after in list(pairwise(line))[-1 if last else 0 :]:
                text = f"{m}, K={K}, {how}: {before['precision']:.3f} to {after['precision']:.3f}"
                pair = (before, after) if falls else (after, before)
                cases.append((text, above(*pair, "precision")))
        return cases

    lengths = sorted({row["bits"] for row in rows})
    radii = sorted({(K, int(how[2:])) for _, _, K, how in at if how.startswith("r=")}, reverse=True)
    smallest = {K: f"r={r}" for K, r in radii}  # the last one of each K stays
    nearest = sorted({(K, how) for _, _, K, how in at if how.startswith("k=")})
    found = {f"{ba} is above its own start in precision": gains(rows, ours[ba]) for ba in ours}
    found |= {
        "BA never ends below its own start on the validation queries": [
            case for label in ours.values() for case in gains(judged, label)
        ]
    }
    found |= {f"{ba} is above BFA": compared(ours[ba], ["BFA"]) for ba in ours}
    found |= {
        "precision within the smallest r falls at large L (the last two)": [
            case for K, how in smallest.items() for case in steps(how, K, last=True, falls=True)
        ],
        "precision of the k nearest codes grows with L (BA and BFA)": [
            case for K, how in nearest for case in steps(how, K, last=False, falls=False)
        ],
    }
    generally = {f"{ba} is mostly above all other methods": compared(ours[ba], OTHERS) for ba in ours}
    generally |= {
        "AGH is mostly the better start: BA from AGH above BA from ITQ": compared(agh, [itq]),
    }
    return checked("retrieval", data, found) + checked("retrieval", data, generally, mostly=True)
