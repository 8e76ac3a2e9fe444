"""The pictures of docs/performance.md, docs/search.md and docs/methods.md, drawn from raw results.

`python benchmarks/pictures.py` draws all, with a name only that one.
"""

from __future__ import annotations

import csv
import json
import sys
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from auxbit.plot.figures import precision
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


WAYS = {
    "optimal, tables": ("#d55e00", "o", "-", "optimal codes, tables"),
    "optimal, linear": ("#e69f00", "s", "-", "optimal codes, linear decoder"),
    "asymmetric, h(x)": ("#0072b2", "D", "-", "hash codes by the decoder"),
    "Hamming": ("#56b4e9", "^", "-", "hash codes by Hamming distance"),
    "PQ": ("#000000", "*", "--", "FAISS PQ"),
    "the best OPQ": ("#777777", "p", "--", "FAISS OPQ, its best setting"),
}


def coding() -> None:
    """Precision@50 by bytes per code: each way to use a binary autoencoder, FAISS's PQ and OPQ."""
    lines = (RESULTS / "coding-precision.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained", sharey=True)
    for axes, data in zip(panels, ("sift_photos", "mnist"), strict=True):
        for way, (colour, marker, line, label) in WAYS.items():
            points = [(bits, mean_precision(rows, data, bits, way)) for bits in (16, 32, 64)]
            axes.plot(*zip(*points, strict=True), color=colour, marker=marker, ls=line, ms=5, label=label)
        axes.set_xscale("log", base=2)
        axes.set_xticks((16, 32, 64), ("16", "32", "64"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("bits per code")
        axes.set_title({"sift_photos": "SIFT descriptors", "mnist": "MNIST"}[data], fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylim(0, None)  # both have the same, so once both are drawn
    panels[0].set_ylabel("share of the 50 true neighbours\namong the first 50 found")
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(IMAGES / "search-precision.png", dpi=150)


def mean_precision(rows: list[dict[str, Any]], data: str, bits: int, way: str) -> float:
    """The mean over seeds; of OPQ, that of its best setting."""
    found: dict[str, list[float]] = {}
    for row in rows:
        same = row["way"] == way or (way == "the best OPQ" and row["way"].startswith("OPQ"))
        if row["data"] == data and row["bits"] == bits and same:
            found.setdefault(row["way"], []).append(row["precision"])
    return max(sum(each) / len(each) for each in found.values())


def comparisons() -> None:
    """Precision@50 by bits, one line per method: what `auxbit compare` wrote of each data set."""
    for data in ("digits", "siftsmall", "MNIST"):
        with (RESULTS / f"compare-{data.lower()}.csv").open() as file:
            rows = [
                {"method": row["method"], "bits": int(row["bits"]), "precision": float(row["precision"])}
                | {"precision_std": float(row["precision_std"])}
                for row in csv.DictReader(file)
                if row["precision"]
            ]
        figure = precision(rows, title=f"{data}: precision of the 50 nearest (K = 50)")
        figure.savefig(IMAGES / f"compare-{data.lower()}.png", dpi=200)


PICTURES = {drawing.__name__: drawing for drawing in (growth, coding, comparisons)}

if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        PICTURES[name]()
