"""Figures of training, comparisons, retrieved pictures and numbers of bits, drawn from rows (lists of dicts).

Nothing here computes a metric, and pyplot is not used. The paper's own figures are in paper.py.

figure = precision(rows)          # rows: method, bits, precision
write(figure, "precision.svg")    # .png or .svg, all or nothing
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from auxbit.core import files
from auxbit.core.checks import Array, require
from auxbit.errors import InvalidParameter
from auxbit.hashers.registry import Style
from auxbit.plot import style
from auxbit.plot.style import FAINT, INK, STYLES, WRONG, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")
DPI = 200
# the parts of a fit, by their column of speed-ups: name, style, and the column of their seconds
PARTS = {
    "speedup": ("whole fit", STYLES["BA"], "seconds"),
    "speedup_h": ("h step", STYLES["ITQ"], "seconds_h"),
    "speedup_f": ("f step", STYLES["LSH"], "seconds_f"),
    "speedup_z": ("Z step", Style("#009e73", "s"), "seconds_z"),
}
CELL = 0.27  # inches per picture
LARGEST_PICTURE = 64  # pixels per side: what is larger is averaged down
EXACT = "exact"  # the row of true neighbours, which is no method
NAMES, QUERY = 1.7, 2.1  # the room of methods' names and of the query, in pictures
WIDE = 8  # from this ratio of the most to the fewest bits on, they are drawn on a logarithmic axis
SMALL_PART = 0.05  # of a fit's time: a part below that says nothing about the whole, and is not drawn


def check_output(path: str | os.PathLike[str]) -> None:
    """Refuse now, before the work, a path that no figure could be written to."""
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise InvalidParameter("plot", os.fspath(path), f"a name that ends in {' or '.join(FORMATS)}")
    require("matplotlib", extra="plot", purpose="plotting")


def write(figure: Figure, path: str | os.PathLike[str], *, overwrite: bool = False, about: str = "") -> None:
    """Write a figure as .png or .svg by the extension of `path`; the same figure gives the same bytes.

    about : what made it, kept in the file's metadata.
    """
    check_output(path)
    matplotlib = require("matplotlib", extra="plot", purpose="plotting")
    kind = Path(path).suffix.lower().removeprefix(".")
    metadata: dict[str, str | None] = {"Description": about} if about else {}
    if kind == "svg":
        metadata["Date"] = None
    with (
        matplotlib.rc_context({"svg.hashsalt": "auxbit", "svg.fonttype": "none"}),
        files.replacing(path, overwrite=overwrite) as temporary,
    ):
        figure.savefig(temporary, format=kind, dpi=DPI, metadata=metadata)


# ---- figures


def history(records: Table, *, title: str = "Training the binary autoencoder") -> Figure:
    """E_Q and E_BA by iteration, μ along the top; below, the validation precision if there is one.

    records : iteration, mu, E_Q, E_BA, and with validation also precision and kept.
    """
    judged = any(row.get("precision") is not None for row in records)
    figure = style.new_figure(5.0, 4.6 if judged else 3.2, title)
    heights = [2, 1] if judged else [1]
    panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    draw_history(list(panels), records)
    return figure


def draw_history(panels: Sequence[Axes], records: Table) -> None:
    """Energies into the first of the panels, validation precision into the second, if there is one."""
    iterations = [row["iteration"] for row in records]
    judged = [row for row in records if row.get("precision") is not None]
    energy = panels[0]
    ends = []
    for name, label, look in (("E_BA", "$E_{BA}$", STYLES["BA"]), ("E_Q", "$E_Q$", STYLES["ITQ"])):
        values = [row[name] for row in records]
        style.draw_line(energy, iterations, values, look, markersize=3.5)
        ends.append((values[-1], label, look.colour))
    style.label_ends(energy, iterations[-1], ends)
    energy.set_ylabel("squared error, training rows")
    energy.yaxis.set_major_formatter(lambda value, place: f"{value:,.6g}" if value < 1e7 else f"{value:.4g}")
    _mark_penalties(energy, records)
    if judged and len(panels) > 1:
        _validation_panel(panels[1], judged)
    for panel in panels:
        style.tidy(panel)
        panel.locator_params(axis="x", integer=True)
    panels[-1].set_xlabel("iteration")


def precision(
    rows: Table, *, values: Mapping[str, str] | None = None, title: str = "Precision of the nearest codes"
) -> Figure:
    """Precision by bits, one line per method; with only one number of bits, one bar per method.

    rows : method, bits, and for each of `values`, column to panel title, its mean and perhaps `…_std`. Rows
    without the value are left out.
    """
    values = values or {"precision": ""}
    known = [row for row in rows if row.get(next(iter(values))) is not None]
    if not known:
        raise InvalidParameter("values", list(values), "columns with at least one number to draw")
    several = len({row["bits"] for row in known}) > 1
    figure = style.new_figure(5.0 if len(values) == 1 else 3.2 * len(values), 3.3, title)
    panels = figure.subplots(1, len(values), squeeze=False, sharey=not several)[0]
    for panel, (value, name) in zip(panels, values.items()):
        draw_methods(panel, known, value)
        style.heading(panel, name)
    for panel in panels:  # after all are drawn: they may share the axis
        panel.set_ylim(bottom=0)
    panels[0].set_ylabel("precision")
    return figure


def draw_methods(axes: Axes, rows: Table, value: str) -> None:
    """A value by bits, one line per method; with only one number of bits, one bar per method."""
    known = [row for row in rows if row.get(value) is not None]
    if len({row["bits"] for row in known}) > 1:
        _lines_and_levels(axes, known, value)
        axes.set_xlabel("bits per code")
    else:
        _bars_by_method(axes, known, value)
    style.tidy(axes)


def pr_curves(rows: Table, *, title: str = "Precision and recall within radius r") -> Figure:
    """Precision by recall, one curve per method and number of bits; of a single curve, radii are marked.

    rows : method, bits, radius, precision, recall, in rising radius; None if nothing was retrieved.
    """
    figure = style.new_figure(5.0, 3.4, title)
    axes = figure.subplots()
    if draw_curves(axes, rows) > 1:
        figure.legend(loc="outside right center", frameon=False, fontsize=8)
    return figure


def draw_curves(axes: Axes, rows: Table) -> int:
    """Precision by recall, one curve per method and number of bits; returns how many there are."""
    known = [row for row in rows if row["precision"] is not None and row["recall"] is not None]
    several = len({row["bits"] for row in known}) > 1
    curves = dict.fromkeys((row["method"], row["bits"]) for row in known)
    for method, bits in curves:
        curve = [row for row in known if (row["method"], row["bits"]) == (method, bits)]
        x, y = [row["recall"] for row in curve], [row["precision"] for row in curve]
        name = f"{method}, {bits} bits" if several else method
        style.draw_line(axes, x, y, style.look(method), markersize=3.5, clip_on=False, label=name)
        if len(curves) == 1:
            _mark_radii(axes, curve)
    axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1))
    style.tidy(axes)
    return len(curves)


def speedup(rows: Table, *, title: str = "Speed-up by processors") -> Figure:
    """Speed-up of the whole fit and of its steps by processors, one panel per number of bits.

    rows : bits, processors, and for each of PARTS its speed-up and seconds. Dashed: perfect speed-up.
    """
    groups = style.grouped(sorted(rows, key=lambda row: int(row["processors"])), "bits")
    figure = style.new_figure(4.2 if len(groups) == 1 else 3.4 * len(groups), 3.3, title)
    panels = figure.subplots(1, len(groups), squeeze=False, sharey=True)[0]
    ends = [_speedup_lines(panel, group) for panel, group in zip(panels, groups.values())]
    for panel, bits, names in zip(panels, groups, ends):  # after all are drawn: they share the axis
        style.tidy(panel)
        most = groups[bits][-1]["processors"]
        style.label_ends(panel, most, names)
        step = -(-most // 8)
        panel.set_xticks(sorted({1, *range(step, most + 1, step)}))
        style.heading(panel, f"{bits} bits" if len(groups) > 1 else "")
        panel.set_xlabel("number of processors")
    panels[0].set_ylabel("speed-up")
    return figure


# ---- parts of figures


def _mark_penalties(axes: Axes, records: Table) -> None:
    """Write μ along the top, at no more than seven iterations."""
    step = -(-len(records) // 7)
    shown = list(records[::step])
    top = axes.secondary_xaxis("top")
    top.set_xticks(
        [row["iteration"] for row in shown],
        [f"{row['mu']:{'.2g' if row['mu'] < 10 else '.0f'}}" for row in shown],
    )
    top.set_xlabel("penalty μ", fontsize=9)
    top.tick_params(labelsize=8, color=FAINT)
    top.spines["top"].set_visible(False)


def _validation_panel(axes: Axes, judged: Table) -> None:
    look = STYLES["BA"]
    x, y = [row["iteration"] for row in judged], [row["precision"] for row in judged]
    axes.plot(x, y, color=INK, marker=".", linewidth=1.2)
    kept = [row for row in judged if row["kept"]][-1]
    axes.plot(kept["iteration"], kept["precision"], look.marker, color=look.colour, markersize=7)
    axes.annotate(
        "model kept", (kept["iteration"], kept["precision"]), xytext=(0, 7), textcoords="offset points",
        ha="center", fontsize=8, color=look.colour,
    )  # fmt: skip
    axes.set_ylabel("validation\nprecision")
    axes.margins(y=0.4)


def _lines_and_levels(axes: Axes, rows: Table, value: str) -> None:
    """Lines by bits; methods that have one number of bits alone, above those of others, as level lines."""
    groups = style.grouped(rows, "method").values()
    most = max((row["bits"] for some in groups for row in some if len(some) > 1), default=0)
    drawn = [row for row in rows if row["bits"] <= most] or list(rows)
    style.lines_by_bits(axes, drawn, value, labels=False)
    bits = sorted({row["bits"] for row in drawn})
    if bits[-1] >= WIDE * bits[0]:
        axes.set_xscale("log", base=2)
        axes.set_xticks(bits, list(map(str, bits)))
        axes.xaxis.set_minor_locator(_no_ticks())
    ends = []
    for method, some in style.grouped(drawn, "method").items():
        last, colour = max(some, key=lambda row: int(row["bits"])), style.look(method).colour
        if last["bits"] == bits[-1]:
            ends.append((last[value], method, colour))
            continue
        axes.annotate(
            method, (last["bits"], last[value]), xytext=(7, 0), textcoords="offset points", va="center",
            fontsize=8.5, color=colour,
        )  # fmt: skip
    for row in rows if len(drawn) < len(rows) else ():
        if row["bits"] > most:
            colour, name = style.look(row["method"]).colour, f"{row['method']}, {row['bits']} bits"
            axes.axhline(row[value], color=colour, linestyle=":", linewidth=1.2)
            ends.append((row[value], name, colour))
    axes.set_ylim(0, 1.05 * max(row[value] for row in rows) or 1)
    style.label_ends(axes, bits[-1], ends)


def _bars_by_method(axes: Axes, rows: Table, value: str) -> None:
    for place, row in enumerate(rows):
        look = style.look(row["method"])
        spread = row.get(f"{value}_std") or None
        axes.bar(place, row[value], width=0.62, color=look.colour, yerr=spread, ecolor=INK)
        axes.annotate(
            f"{row[value]:.3f}", (place, row[value] + (spread or 0.0)), xytext=(0, 2),
            textcoords="offset points", ha="center", fontsize=8, color=INK,
        )  # fmt: skip
    axes.set_xticks(range(len(rows)), [row["method"] for row in rows])
    axes.margins(y=0.12)


def _speedup_lines(axes: Axes, rows: Table) -> list[tuple[float, str, str]]:
    """Draw them, and return where each ends, its name and its colour."""
    x = [row["processors"] for row in rows]
    axes.plot(x, x, "--", color=FAINT, linewidth=1.2)
    ends = [(float(x[-1]), "perfect", "#777777")]
    for column, (name, look, seconds) in reversed(PARTS.items()):  # the whole fit ends up on top
        y = [row[column] for row in rows]
        if None in y or max(row[seconds] / row["seconds"] for row in rows) < SMALL_PART:
            continue
        every = slice(None, None, -(-len(x) // 16))  # more markers would hide their line
        style.draw_line(axes, x, y, look, markevery=every)
        ends.append((y[-1], f"{name} {y[-1]:.2f}", look.colour))
    return ends


def _mark_radii(axes: Axes, curve: Table) -> None:
    for row in curve[:6]:
        axes.annotate(
            f"r = {row['radius']}", (row["recall"], row["precision"]), xytext=(5, 3),
            textcoords="offset points", fontsize=7, color=INK,
        )  # fmt: skip


# ---- retrieved pictures


def retrieved(panels: Table, *, title: str, columns: int = 2) -> Figure:
    """Queries beside what each method retrieves, one row per method; what is wrong is framed.

    panels : query (h, w) or (h, w, 3) uint8, caption, and rows: a list of (method, pictures (k, h, w[, 3])
    uint8, wrong (k,) bool).
    """
    n_methods, n_found = len(panels[0]["rows"]), len(panels[0]["rows"][0][1])
    columns = min(columns, len(panels))
    lines = -(-len(panels) // columns)
    width = columns * (n_found + QUERY + NAMES + 0.4) * CELL
    figure = style.new_figure(width, lines * (n_methods + 0.5) * CELL + 0.4, title, 9)
    figure.set_layout_engine("constrained", w_pad=0.02, h_pad=0.03, hspace=0.03, wspace=0.03)
    for place, axes in enumerate(figure.subplots(lines, columns, squeeze=False).flat):
        axes.set_axis_off()
        if place < len(panels):
            _draw_query(axes, panels[place])
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
                  color=INK if method == EXACT else style.look(method).colour)  # fmt: skip
        for place in np.flatnonzero(wrong):
            corner = left + place + 0.04, line + 0.04
            frame = patches.Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=WRONG, linewidth=0.9)
            axes.add_patch(frame)
    axes.set(xlim=(-0.05, left + n_found), ylim=(len(rows), -0.05), aspect="equal")


def mosaic(lines: Sequence[Array]) -> npt.NDArray[np.uint8]:
    """Pictures in a grid, transparent between them. lines : its rows, (k, h, w[, 3]) uint8 each."""
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
    """A picture of at most 64 pixels per side, by the means of squares of pixels."""
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
    """CPU time per point by bits, one panel per μ. rows : bits, mu, admm_seconds, general_seconds, ratio."""
    every = sorted({row["mu"] for row in rows})
    figure = style.new_figure(3.5 * len(every) + 0.3, 3.1, title)
    for axes, mu in zip(figure.subplots(1, len(every), squeeze=False, sharey=True)[0], every):
        some = sorted((row for row in rows if row["mu"] == mu), key=lambda row: int(row["bits"]))
        bits, ends = [row["bits"] for row in some], []
        for column, name, look in (
            ("admm_seconds", "our ADMM", STYLES["BA"]),
            ("general_seconds", "general QP solver", STYLES["ITQ"]),
        ):
            y = [1e6 * row[column] for row in some]
            style.draw_line(axes, bits, y, look)
            ends.append((y[-1], name, look.colour))
        for row in some:
            between = 1e6 * (row["admm_seconds"] * row["general_seconds"]) ** 0.5
            axes.annotate(f"{row['ratio']:.0f}×", (row["bits"], between), ha="center", va="center",
                          fontsize=8.5, color=INK)  # fmt: skip
        for y_end, name, colour in ends:
            axes.annotate(name, (bits[-1], y_end), xytext=(4, 8), textcoords="offset points", ha="right",
                          fontsize=8.5, color=colour)  # fmt: skip
        axes.set_yscale("log")
        axes.set_xticks(bits)
        axes.yaxis.set_major_formatter(lambda value, place: f"{value:g}")
        axes.margins(x=0.12, y=0.18)
        style.heading(axes, f"μ = {mu:g}")
        axes.set_xlabel("bits L")
        style.tidy(axes)
    figure.axes[0].set_ylabel("CPU microseconds per point")
    return figure


# ---- how many bits

# ways to search, by coding and whether they are re-ranked: name and look
SEARCHED = {
    ("hash", False): ("hash codes", Style("#0072b2", "o")),
    ("hash", True): ("hash codes, re-ranked", Style("#0072b2", "o", "--")),
    ("optimal", False): ("optimal codes", Style("#d55e00", "s")),
    ("optimal", True): ("optimal codes, re-ranked", Style("#d55e00", "s", "--")),
}


def recall_panels(
    rows: Table, *, title: str, name: str, wanted: float | None = None, best: Mapping[str, Any] | None = None
) -> Figure:
    """Recall by the bytes of a code and by the time of a query, one line per way to search.

    rows : bits, coding, rerank, payload_bytes, search_ms, recall; wanted : a recall, drawn as a line; best :
    the row that is marked.
    """
    figure = style.new_figure(8.6, 3.7, title)
    panels = figure.subplots(1, 2, sharey=True)
    draw_recall(panels, rows, name=name, wanted=wanted, best=best)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8.5)
    return figure


def draw_recall(
    panels: Sequence[Axes], rows: Table, *, name: str, wanted: float | None, best: Mapping[str, Any] | None
) -> None:
    """Recall by bytes into the first panel, by time into the second."""
    for axes, column in zip(panels, ("payload_bytes", "search_ms")):
        for (coding, again), (label, look) in SEARCHED.items():
            line = [row for row in rows if row["coding"] == coding and bool(row["rerank"]) == again]
            x, y = [row[column] for row in line], [row["recall"] for row in line]
            inside = {"markerfacecolor": "white" if again else look.colour, "label": label}
            style.draw_line(axes, x, y, look, **inside | ({"linestyle": "none"} if axes is panels[1] else {}))
            for row in line if axes is panels[1] and not again else ():
                axes.annotate(
                    str(row["bits"]), (row[column], row["recall"]), xytext=(6, -3),
                    textcoords="offset points", fontsize=7, color=look.colour,
                )  # fmt: skip
        if wanted is not None:
            axes.axhline(wanted, color=FAINT, linewidth=1.0, linestyle=":")
        if best is not None:
            axes.plot(best[column], best["recall"], "o", markersize=13, markerfacecolor="none", color=INK)
        axes.set_xscale("log")
        ticks = sorted({row[column] for row in rows}) if column == "payload_bytes" else None
        values = [row[column] for row in rows]
        axes.set_xticks(ticks or style.log_ticks(min(values), max(values)))
        axes.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
        axes.xaxis.set_minor_locator(_no_ticks())
        axes.margins(x=0.08)
        axes.set_ylim(0, 1.04)
        style.tidy(axes)
    panels[0].set_xlabel("bytes of a code (re-ranking keeps the vectors, too)")
    panels[1].set_xlabel("milliseconds per query, at the bits beside the marks")
    panels[0].set_ylabel(name)
    if best is not None:
        panels[0].annotate(
            f"{best['bits']} bits", (best["payload_bytes"], best["recall"]), xytext=(9, -13),
            textcoords="offset points", fontsize=8.5, weight="bold", color=INK,
        )  # fmt: skip


def _no_ticks() -> Any:
    return require("matplotlib.ticker", extra="plot", purpose="plotting").NullLocator()
