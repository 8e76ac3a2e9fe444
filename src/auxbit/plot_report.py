"""Figures beside the paper's own curves: retrieved pictures, the relaxed problem's solvers, how many bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from auxbit.extras import require
from auxbit.plot_parts import FAINT, INK, STYLES, WRONG, label_ends, new_figure, style, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Table = Sequence[Mapping[str, Any]]
Array = npt.NDArray[Any]

CELL = 0.27  # inches a picture
LARGEST_PICTURE = 64  # pixels a side: what is larger is averaged down
EXACT = "exact"  # the row of true neighbours, which is no method
NAMES, QUERY = 1.7, 2.1  # the room of methods' names and of the query, in pictures
GENERAL = "general QP solver"


# ---- retrieved pictures


def retrieved_pictures(panels: Table, *, title: str, columns: int = 2) -> Figure:
    """Queries beside what each method retrieves, a row a method; pictures as they are, wrong labels framed.

    panels : query (h, w) or (h, w, 3) uint8, caption, and rows: a list of (method, pictures (k, h, w[, 3])
    uint8, wrong (k,) bool).
    """
    n_methods, n_found = len(panels[0]["rows"]), len(panels[0]["rows"][0][1])
    columns = min(columns, len(panels))
    lines = -(-len(panels) // columns)
    width = columns * (n_found + QUERY + NAMES + 0.4) * CELL
    figure = new_figure(width, lines * (n_methods + 0.5) * CELL + 0.4)
    figure.set_layout_engine("constrained", w_pad=0.02, h_pad=0.03, hspace=0.03, wspace=0.03)
    for place, axes in enumerate(figure.subplots(lines, columns, squeeze=False).flat):
        axes.set_axis_off()
        if place < len(panels):
            _draw_query(axes, panels[place])
    figure.suptitle(title, fontsize=9, color=INK)
    return figure


def _draw_query(axes: Axes, panel: Mapping[str, Any]) -> None:
    patches = require("matplotlib.patches", extra="plot", purpose="plotting")
    rows = panel["rows"]
    n_found, left, middle = len(rows[0][1]), QUERY + NAMES, len(rows) / 2
    look: dict[str, Any] = {"interpolation": "none", "aspect": "equal"}
    axes.imshow(
        mosaic([panel["query"][None]]), extent=(0, QUERY, middle + QUERY / 2, middle - QUERY / 2), **look
    )
    axes.text(QUERY / 2, middle - QUERY / 2 - 0.15, panel["caption"], ha="center", va="bottom", fontsize=7,
              color=INK)  # fmt: skip
    axes.imshow(mosaic([found for _, found, _ in rows]), extent=(left, left + n_found, len(rows), 0), **look)
    for line, (method, _, wrong) in enumerate(rows):
        axes.text(left - 0.12, line + 0.5, method, ha="right", va="center", fontsize=7, weight="bold",
                  color=INK if method == EXACT else style(method).colour)  # fmt: skip
        for place in np.flatnonzero(wrong):
            axes.add_patch(
                patches.Rectangle(
                    (left + place + 0.04, line + 0.04), 0.92, 0.92, fill=False, edgecolor=WRONG, linewidth=0.9
                )
            )
    axes.set(xlim=(-0.05, left + n_found), ylim=(len(rows), -0.05), aspect="equal")


def mosaic(lines: Sequence[Array]) -> npt.NDArray[np.uint8]:
    """Pictures in a grid, a line a row of it, transparent between them. lines : (k, h, w[, 3]) uint8 each."""
    small = [np.stack([_opaque(shrunk(picture)) for picture in line]) for line in lines]
    k, height, width = small[0].shape[:3]
    side = max(height, width)
    gap = max(1, round(side / 16))
    cell, top, left = side + 2 * gap, gap + (side - height) // 2, gap + (side - width) // 2
    out = np.zeros((len(small) * cell, k * cell, 4), dtype=np.uint8)
    for i, line in enumerate(small):
        for j, picture in enumerate(line):
            y, x = i * cell + top, j * cell + left
            out[y : y + height, x : x + width] = picture
    return out


def shrunk(picture: Array) -> npt.NDArray[np.uint8]:
    """A picture of at most 64 pixels a side, by the means of squares of pixels."""
    step = -(-max(picture.shape[:2]) // LARGEST_PICTURE)
    if step == 1:
        return np.asarray(picture, dtype=np.uint8)
    height, width = (max(1, size // step) for size in picture.shape[:2])
    part = picture[: height * step, : width * step].astype(np.float64)
    squares: Array = part.reshape(
        height, min(step, part.shape[0]), width, min(step, part.shape[1]), *picture.shape[2:]
    )
    return np.asarray(np.rint(squares.mean(axis=(1, 3))), dtype=np.uint8)


def _opaque(picture: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Grey or RGB as RGBA."""
    colours = np.repeat(picture[..., None], 3, axis=2) if picture.ndim == 2 else picture[..., :3]
    return np.concatenate([colours, np.full((*picture.shape[:2], 1), 255, dtype=np.uint8)], axis=2)


# ---- the relaxed problem's solvers


def solver_panels(rows: Table, *, title: str) -> Figure:
    """CPU time a point by bits, a panel for each μ. rows : bits, mu, admm_seconds, general_seconds, ratio."""
    every = sorted({row["mu"] for row in rows})
    figure = new_figure(3.5 * len(every) + 0.3, 3.1)
    for axes, mu in zip(figure.subplots(1, len(every), squeeze=False, sharey=True)[0], every):
        some = sorted((row for row in rows if row["mu"] == mu), key=lambda row: int(row["bits"]))
        bits, ends = [row["bits"] for row in some], []
        for column, name, look in (
            ("admm_seconds", "our ADMM", STYLES["BA"]),
            ("general_seconds", GENERAL, STYLES["ITQ"]),
        ):
            y = [1e6 * row[column] for row in some]
            axes.plot(bits, y, color=look.colour, marker=look.marker, markersize=4.5, linewidth=1.5)
            ends.append((y[-1], name, look.colour))
        for row in some:
            between = 1e6 * (row["admm_seconds"] * row["general_seconds"]) ** 0.5
            axes.annotate(
                f"{row['ratio']:.0f}×",
                (row["bits"], between),
                ha="center",
                va="center",
                fontsize=8.5,
                color=INK,
            )
        for y_end, name, colour in ends:
            axes.annotate(name, (bits[-1], y_end), xytext=(4, 8), textcoords="offset points", ha="right",
                          fontsize=8.5, color=colour)  # fmt: skip
        axes.set_yscale("log")
        axes.set_xticks(bits)
        axes.yaxis.set_major_formatter(lambda value, place: f"{value:g}")
        axes.margins(x=0.12, y=0.18)
        axes.set_title(f"μ = {mu:g}", fontsize=9, color=INK)
        axes.set_xlabel("bits L")
        tidy(axes)
    figure.axes[0].set_ylabel("CPU microseconds a point")
    figure.suptitle(title, fontsize=10, color=INK)
    return figure


# ---- how many bits


def bits_panels(
    rows: Table, *, chosen: int, n_rows: int, method: str, names: Mapping[str, str], title: str
) -> Figure:
    """L_eff with its bound, and precision with recall, by bits; the number that is recommended is marked.

    rows : bits, effective_bits, and the columns that are named : on the right, the first dashed.
    """
    figure = new_figure(8.2, 3.3)
    left, right = figure.subplots(1, 2)
    look, bits = style(method), [row["bits"] for row in rows]
    limit = float(np.log2(n_rows))
    corner = sorted({0.0, *map(float, bits), *([limit] if limit < bits[-1] else [])})
    left.plot(corner, np.minimum(corner, limit), ":", color=INK, linewidth=1.2)
    left.annotate(f"bound: min(L, log₂ {n_rows:,})", (bits[-1], min(limit, bits[-1])), xytext=(0, 4),
                  textcoords="offset points", ha="right", fontsize=8, color=INK)  # fmt: skip
    y = [row["effective_bits"] for row in rows]
    left.plot(bits, y, color=look.colour, marker=look.marker, markersize=5, linewidth=1.5)
    left.set_ylim(0, 1.15 * min(limit, bits[-1]))
    left.set_title(f"effective bits of the codes of {method}", fontsize=9, color=INK)
    ends = []
    for (column, name), line in zip(names.items(), ("--", "-")):
        y = [row[column] for row in rows]
        right.plot(bits, y, line, color=look.colour, marker=look.marker, markersize=5, linewidth=1.5)
        ends.append((y[-1], name, look.colour))
    right.set_ylim(0, 1.05 * max(0.05, *(row[name] for row in rows for name in names)))
    right.set_title("what the nearest codes find", fontsize=9, color=INK)
    for axes in (left, right):
        axes.axvline(chosen, color=FAINT, linewidth=6, alpha=0.35, zorder=0)
        axes.set_xticks(bits)
        axes.set_xlim(0, bits[-1] * 1.03)
        axes.set_xlabel("bits L")
        tidy(axes)
    right.annotate(f"{chosen} bits", (chosen, 0.02), xycoords=("data", "axes fraction"), xytext=(5, 0),
                   textcoords="offset points", fontsize=8.5, weight="bold", color=INK)  # fmt: skip
    label_ends(right, bits[-1], ends)
    figure.suptitle(title, fontsize=10, color=INK)
    return figure
