"""The pictures of docs/performance.md, drawn from raw results: `python benchmarks/pictures.py`."""

from __future__ import annotations

import json
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from record import RESULTS

IMAGES = RESULTS.parent / "images"
STEPS = {"h": ("h steps", "#0072b2"), "z": ("Z steps", "#d55e00"), "rest": ("start and the rest", "#999999")}


def growth() -> None:
    """CPU time by rows and by bits, with the share of each step, and the line of linear growth."""
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axes, what, title in (
        (panels[0], "rows", "128 dimensions, 32 bits"),
        (panels[1], "bits", "50,000 × 128"),
    ):
        rows = best_of(what)
        sizes = [row[what] for row in rows]
        draw_shares(axes, sizes, rows)
        first = rows[0]["cpu_seconds"]
        linear = [first * size / sizes[0] for size in sizes]
        axes.plot(range(len(sizes)), linear, "k--", lw=1, label=f"linear in the {what}")
        axes.set_xticks(range(len(sizes)), [f"{size:,}" for size in sizes])
        axes.set_xlabel(what)
        axes.set_title(title, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panels[0].set_ylabel("CPU seconds of a fit")
    panels[0].legend(frameon=False, fontsize=9)
    panels[1].legend(handles=panels[1].get_lines(), frameon=False, fontsize=9)
    figure.savefig(IMAGES / "performance-growth.png", dpi=150)


def best_of(what: str) -> list[dict[str, Any]]:
    """The fit with the least CPU time of each size."""
    lines = (RESULTS / f"speed-{what}.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [
        min((row for row in rows if row[what] == size), key=lambda row: row["cpu_seconds"])
        for size in sorted({row[what] for row in rows})
    ]


def draw_shares(axes: Axes, sizes: list[int], rows: list[dict[str, Any]]) -> None:
    """Bars of CPU time, split as wall time was."""
    bottom = [0.0] * len(sizes)
    for step, (label, colour) in STEPS.items():
        heights = [
            row["cpu_seconds"]
            * (row[step] if step != "rest" else row["seconds"] - row["h"] - row["z"])
            / row["seconds"]
            for row in rows
        ]
        axes.bar(range(len(sizes)), heights, 0.6, bottom=bottom, color=colour, label=label)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]


if __name__ == "__main__":
    growth()
