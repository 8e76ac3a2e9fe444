"""The figures of the paper's experiments, drawn from their tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from auxbit.plot import style
from auxbit.plot.style import FAINT, INK, STYLES, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL, TALL = 3.1, 3.0  # inches
ENERGIES = {
    "E_BFA": ("$E_{BFA}$", STYLES["BFA"]),
    "E_Q": ("$E_Q$", STYLES["ITQ"]),
    "E_BA": ("$E_{BA}$", STYLES["BA"]),
}
SHARES = {"mismatched": ("Z ≠ h(X)", STYLES["BA"]), "pruned": ("spared by theorem 4.3", STYLES["SH"])}
# group sizes from light to dark; the exact Z step in the colour of BA
GROUPS = {1: "#7fcdbb", 2: "#41b6c4", 4: "#1d91c0", 8: "#225ea8", 16: "#0c2c84"}


def precision_panels(rows: Table, *, title: str) -> Figure:
    """Precision by bits, a panel for each way to retrieve. rows : method, bits, retrieved, precision."""
    ways = list(style.grouped(rows, "retrieved").items())

    def draw(axes: Axes, place: int) -> None:
        way, some = ways[place]
        style.lines_by_bits(axes, some, "precision")
        style.heading(axes, f"{way[2:]} nearest codes" if way.startswith("k=") else f"within r ≤ {way[2:]}")

    figure = _panels(len(ways), draw, title)
    figure.axes[0].set_ylabel("precision")
    return figure


def curve_panels(rows: Table, *, title: str) -> Figure:
    """Precision by recall, a panel for each number of bits. rows : method, bits, radius, and both."""
    every = sorted(style.grouped(rows, "bits").items())

    def draw(axes: Axes, place: int) -> None:
        L, some = every[place]
        for method, curve in reversed(style.grouped(some, "method").items()):
            curve = sorted(curve, key=lambda row: int(row["radius"]))
            x, y = [row["recall"] for row in curve], [row["precision"] for row in curve]
            style.draw_line(axes, x, y, style.look(method), markersize=3, linewidth=1.2, label=method)
        axes.set(xlabel="recall", xlim=(0, 1), ylim=(0, None))
        style.heading(axes, f"L = {L}")

    figure = _panels(len(every), draw, title, columns=4)
    figure.axes[0].set_ylabel("precision")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    return figure


def wrapper_panels(rows: Table, *, k: int, radius: int, title: str) -> Figure:
    """Error and precisions by bits. rows : method, bits, reconstruction_error, precision_r, precision_k."""
    panels = {
        "reconstruction_error": "reconstruction error",
        "precision_r": f"precision, r ≤ {radius}",
        "precision_k": f"precision, k = {k}",
    }

    def draw(axes: Axes, place: int) -> None:
        column = list(panels)[place]
        style.lines_by_bits(axes, rows, column, from_zero=place > 0)
        style.heading(axes, panels[column])

    return _panels(3, draw, f"{title}: respecting the binary constraints")


def entropy_panels(rows: Table, counts: Table, *, title: str) -> Figure:
    """L_eff by bits with its bounds, and counts per code. rows : method, bits, train, queries, …_bound."""

    def draw(axes: Axes, place: int) -> None:
        if place == 1:
            _counts(axes, counts)
            return
        style.lines_by_bits(axes, rows, "queries", dashed=True, labels=False)
        style.lines_by_bits(axes, rows, "train")
        bits = sorted({row["bits"] for row in rows})
        for side, dots in (("train", ":"), ("queries", (0, (1, 3)))):
            bound = {row["bits"]: row[f"{side}_bound"] for row in rows}
            axes.plot(bits, [bound[L] for L in bits], linestyle=dots, color=INK, linewidth=1.2)
        lowest = min(min(row["train"], row["queries"]) for row in rows)
        axes.set_ylim(0.9 * lowest, 1.06 * max(row["train_bound"] for row in rows))
        style.heading(axes, "effective bits: training rows, - - queries")

    return _panels(2 if counts else 1, draw, f"{title}: code utilisation", width=4.0)


def path_panels(rows: Table, *, title: str) -> Figure:
    """Energies along the path, and the share of bits in which Z and h(X) differ, a row for each L."""
    every = sorted(style.grouped(rows, "bits").items())

    def draw(axes: Axes, place: int) -> None:
        L, some = every[place // 2]
        lines, what = ((ENERGIES, "energies"), (SHARES, "shares of bits and of rows"))[place % 2]
        x, ends = [row["mu"] for row in some], []
        axes.set_xscale("log")
        for name, (label, look) in lines.items():
            y = [row[name] for row in some]
            style.draw_line(axes, x, y, look, markersize=3.5)
            ends.append((y[-1], label, look.colour))
        style.label_ends(axes, x[-1], ends)
        if lines is ENERGIES:
            style.short_numbers(axes)
        else:
            axes.set_ylim(-0.02, 1.02)
        style.heading(axes, f"L = {L}: {what}")
        axes.set_xlabel("μ")

    return _panels(2 * len(every), draw, f"{title}: from BFA to BA as μ grows", columns=2, width=3.9)


def altopt_panels(rows: Table, *, title: str) -> Figure:
    """E_BA by iteration and by time. rows : how, start, g, iteration, seconds, E_BA."""

    def draw(axes: Axes, place: int) -> None:
        x_name = ("iteration", "seconds")[place]
        for how, line in style.grouped(rows, "how").items():
            start, g = line[0]["start"], line[0]["g"]
            colour = STYLES["BA"].colour if start == "exact" else GROUPS.get(g, FAINT)
            axes.plot(
                [row[x_name] for row in line], [row["E_BA"] for row in line],
                linestyle="--" if start == "warm" else "-", color=colour, linewidth=1.4,
                marker="o" if start == "exact" else None, markersize=3, label=how,
            )  # fmt: skip
        if x_name == "seconds":
            axes.set_xscale("log")
            axes.set_xticks(style.log_ticks(*axes.get_xlim()))
            axes.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
            axes.xaxis.set_minor_formatter(lambda value, place: "")
        axes.set_xlabel("iteration" if place == 0 else "seconds of training")
        style.heading(axes, "$E_{BA}$ by iteration" if place == 0 else "$E_{BA}$ by time")
        style.short_numbers(axes)

    figure = _panels(2, draw, f"{title}: the Z step by groups of bits", width=3.9)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


def _counts(axes: Axes, counts: Table) -> None:
    for place, (method, line) in enumerate(style.grouped(counts, "method").items()):
        colour = style.look(method).colour
        axes.plot([row["rank"] for row in line], [row["count"] for row in line], color=colour, linewidth=1.5)
        axes.annotate(
            f"{method}, {line[-1]['rank']:,} codes used", (0.98, 0.95 - 0.075 * place),
            xycoords="axes fraction", ha="right", fontsize=8, color=colour,
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="codes, most used first", ylabel="rows with this code")
    style.heading(axes, f"rows per code, L = {counts[0]['bits']}")


def _panels(
    n: int, draw: Callable[[Any, int], None], title: str, *, columns: int = 3, width: float = PANEL
) -> Figure:
    """Panels of one size; four in two lines of two."""
    columns = min(n, 2 if n == 4 and columns == 3 else columns)
    lines = -(-n // columns)
    figure = style.new_figure(width * columns + 0.4, TALL * lines + 0.3, title)
    for place, axes in enumerate(figure.subplots(lines, columns, squeeze=False).flat):
        if place < n:
            draw(axes, place)
            style.tidy(axes)
        else:
            axes.set_axis_off()
    return figure
