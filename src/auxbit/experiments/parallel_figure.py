"""Speed-up of training by processors as an experiment of the paper: figure 5."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from auxbit import plot
from auxbit.experiments import parallel
from auxbit.experiments.study import Claim, Problem, Result
from auxbit.experiments.trained import Store

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NEARLY = 0.9  # of perfect: what the paper calls nearly perfect scaling


def run(
    problem: Problem, store: Store, *, bits: tuple[int, ...] = (16,), repeats: int = 2, seed: int = 0
) -> Result:
    """Time fits on 1, 2, … processors, as many as there are."""
    fits = parallel.planned(bits, repeats=repeats, n_jobs=store.n_jobs)
    folder = None if store.folder is None else store.folder / "parallel"
    found = parallel.run_parallel(
        problem.train, fits, seed=seed, source=problem.name, out_dir=folder, overwrite=True
    )
    rows: list[dict[str, Any]] = found.pop("rows")
    draw: dict[str, Callable[[], Figure]] = {
        "parallel": partial(plot.speedup, rows, title=f"{problem.name}: speed-up by processors")
    }
    return Result(
        "parallel",
        f"Speed-up by processors on {problem.name}",
        "As fig. 5 of the paper: how many times as fast a fit is on so many processors, and its h, f and Z "
        "steps. The codes are the same to the last bit on any number of them.",
        {key: value for key, value in found.items() if key != "files"} | {"data": problem.name},
        {"parallel": rows},
        draw if found["processors"] > 1 else {},
        [_claim(rows, found["processors"], problem.name)],
    )


def _claim(rows: list[dict[str, Any]], processors: int, data: str) -> Claim:
    text = "training scales nearly perfectly with processors (at least 0.9 of perfect)"
    if processors < 2:
        return Claim(text, "one processor is all that it may use here", None, "parallel", data)
    last = [row for row in rows if row["processors"] == processors]
    worst = min(row["speedup"] for row in last)
    return Claim(
        text,
        f"{worst:.2f} times as fast on {processors} processors",
        worst >= NEARLY * processors,
        "parallel",
        data,
    )
