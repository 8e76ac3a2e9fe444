"""The path from BFA to BA: E_Q, E_BFA, E_BA and the bits in which Z and h(X) differ, as μ grows, figure 2."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import pairwise

from auxbit.errors import InvalidInput
from auxbit.experiments.retrieval import about_ba
from auxbit.experiments.study import PAPER, Cell, Claim, Fits, Result, Row, checked
from auxbit.plot import paper

EXPECTED_ITERATIONS = (10, 15)


def cell_of(bits: int, seed: int, preset: str) -> Cell:
    """A fit to the end of the path, with the paper's schedule."""
    return Cell.under(preset, "ba", bits, seed, max_iter=100, mu_factor=2.0, validation=None)


def run(fits: Fits, *, bits: Iterable[int] = (16, 32), seed: int = 0, preset: str = PAPER) -> Result:
    """Follow MAC to the finite μ at which it stops, with the paper's schedule, μ doubled each time."""
    problem, bits = fits.problem, tuple(bits)
    rows: list[Row] = []
    for made in fits.all(cell_of(each, seed, preset) for each in bits):
        unit = made.facts["scale"] ** 2
        n_bits = len(problem.train) * made.cell.bits
        for record in made.facts["history"]:
            row = {"bits": made.cell.bits} | {name: record[name] for name in ("iteration", "mu", "E_Q")}
            row["E_BFA"] = record["E_Q"] - unit * record["mu"] * record["mismatched"]
            row["E_BA"] = record["E_BA"]
            row |= {name: record[name] / n_bits for name in ("mismatched", "changed")}
            rows.append(row | {"pruned": record["pruned"] / len(problem.train)})
    if not rows:
        raise InvalidInput(f"BA cannot have {', '.join(map(str, bits))} bits on {problem.name}.")
    return Result(
        "path",
        f"From BFA to BA on {problem.name}",
        "Fig. 2 of the paper, measured: along the path E_Q = E_BFA + μ·‖Z − h(X)‖². While μ is small, codes "
        "are free and E_BFA is low; as μ grows Z and h(X) come together, until they are equal, at a finite "
        f"μ, and E_Q, E_BFA and E_BA are one. {about_ba(preset)}",
        {"data": problem.name, "train_rows": len(problem.train), "bits": list(bits), "seed": seed,
         "preset": preset, "mu_factor": 2.0},
        {"path": rows},
        {"path": partial(paper.path_panels, rows, title=problem.name)},
        _claims(rows, problem.name),
    )  # fmt: skip


def _claims(rows: list[Row], data: str) -> list[Claim]:
    last = {row["bits"]: row for row in rows}
    low, high = EXPECTED_ITERATIONS
    stops = [
        (f"L={L}: {row['iteration']} iterations, to μ = {row['mu']:.3g}", low <= row["iteration"] <= high)
        for L, row in last.items()
    ]
    together = [
        (f"L={L}: {row['mismatched']:.2g} of the bits differ at the end", row["mismatched"] == 0)
        for L, row in last.items()
    ]
    pruned = []
    for L in last:
        shares = [row["pruned"] for row in rows if row["bits"] == L]
        mostly = sum(b >= a for a, b in pairwise(shares)) >= 0.8 * (len(shares) - 1)
        text = f"L={L}: {shares[0]:.3f} to {shares[-1]:.3f}"
        pruned.append((text, mostly and shares[-1] >= shares[0]))
    found = {
        "MAC stops after 10 to 15 iterations, with μ doubled each time": stops,
        "it stops at a finite μ with Z = h(X)": together,
        "theorem 4.3 spares more points as μ grows": pruned,
    }
    return checked("path", data, found)
