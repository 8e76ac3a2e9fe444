"""The figures of the paper's experiments, drawn from their tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from auxbit.hashers.registry import Style
from auxbit.plot.style import FAINT, INK, STYLES, label_ends, new_figure, style, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Table = Sequence[Mapping[str, Any]]

PANEL, TALL = 3.1, 3.0  # inches
ENERGIES = {
    "E_BFA": ("$E_{BFA}$", STYLES["BFA"]),
    "E_Q": ("$E_Q$", STYLES["ITQ"]),
    "E_BA": ("$E_{BA}$", STYLES["BA"]),
}
# group sizes from light to dark; the exact Z step in the colour of BA
GROUPS = {1: "#7fcdbb", 2: "#41b6c4", 4: "#1d91c0", 8: "#225ea8", 16: "#0c2c84"}


def precision_panels(rows: Table, *, title: str) -> Figure:
    """Precision by bits, a panel for each way to retrieve. rows : method, bits, retrieved, precision."""
    ways = list(dict.fromkeys(row["retrieved"] for row in rows))

    def draw(axes: Axes, place: int) -> None:
        lines_by_bits(axes, [row for row in rows if row["retrieved"] == ways[place]], "precision")
        axes.set_title(_way(ways[place]), fontsize=9, color=INK)

    figure = _panels(len(ways), draw, title)
    figure.axes[0].set_ylabel("precision")
    return figure


def curve_panels(rows: Table, *, title: str) -> Figure:
    """Precision by recall, a panel for each number of bits. rows : method, bits, radius, and both."""
    every = sorted({row["bits"] for row in rows})

    def draw(axes: Axes, place: int) -> None:
        some = [row for row in rows if row["bits"] == every[place]]
        for method in reversed(list(dict.fromkeys(row["method"] for row in some))):
            curve = sorted(
                (row for row in some if row["method"] == method), key=lambda row: int(row["radius"])
            )
            look = style(method)
            axes.plot(
                [row["recall"] for row in curve], [row["precision"] for row in curve], look.line,
                color=look.colour, marker=look.marker, markersize=3, linewidth=1.2, label=method,
            )  # fmt: skip
        axes.set(xlabel="recall", xlim=(0, 1), ylim=(0, None))
        axes.set_title(f"L = {every[place]}", fontsize=9, color=INK)

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
        lines_by_bits(axes, rows, column, from_zero=place > 0)
        axes.set_title(panels[column], fontsize=9, color=INK)

    return _panels(3, draw, f"{title}: respecting the binary constraints")


def entropy_panels(rows: Table, counts: Table, *, title: str) -> Figure:
    """L_eff by bits with its bounds, and counts per code. rows : method, bits, train, queries, …_bound."""

    def draw(axes: Axes, place: int) -> None:
        if place == 1:
            _counts(axes, counts)
            return
        lines_by_bits(axes, rows, "queries", dashed=True, labels=False)
        lines_by_bits(axes, rows, "train")
        bits = sorted({row["bits"] for row in rows})
        for side, dots in (("train", ":"), ("queries", (0, (1, 3)))):
            bound = {row["bits"]: row[f"{side}_bound"] for row in rows}
            axes.plot(bits, [bound[L] for L in bits], linestyle=dots, color=INK, linewidth=1.2)
        lowest = min(min(row["train"], row["queries"]) for row in rows)
        axes.set_ylim(0.9 * lowest, 1.06 * max(row["train_bound"] for row in rows))
        axes.set_title("effective bits: training rows, - - queries", fontsize=9, color=INK)

    return _panels(2 if counts else 1, draw, f"{title}: code utilisation", width=4.0)


def path_panels(rows: Table, *, title: str) -> Figure:
    """Energies along the path, and the share of bits in which Z and h(X) differ, a row for each L."""
    every = sorted({row["bits"] for row in rows})

    def draw(axes: Axes, place: int) -> None:
        some = [row for row in rows if row["bits"] == every[place // 2]]
        x = [row["mu"] for row in some]
        axes.set_xscale("log")
        if place % 2 == 0:
            ends = []
            for name, (label, look) in ENERGIES.items():
                y = [row[name] for row in some]
                axes.plot(x, y, color=look.colour, marker=look.marker, markersize=3.5, linewidth=1.5)
                ends.append((y[-1], label, look.colour))
            label_ends(axes, x[-1], ends)
            _short_numbers(axes)
        else:
            shares = (
                ("mismatched", "Z ≠ h(X)", STYLES["BA"]),
                ("pruned", "spared by theorem 2", STYLES["SH"]),
            )
            ends = []
            for name, label, look in shares:
                y = [row[name] for row in some]
                axes.plot(x, y, color=look.colour, marker=look.marker, markersize=3.5, linewidth=1.5)
                ends.append((y[-1], label, look.colour))
            label_ends(axes, x[-1], ends)
            axes.set_ylim(-0.02, 1.02)
        what = "energies" if place % 2 == 0 else "shares of bits and of rows"
        axes.set_title(f"L = {every[place // 2]}: {what}", fontsize=9, color=INK)
        axes.set_xlabel("μ")

    return _panels(2 * len(every), draw, f"{title}: from BFA to BA as μ grows", columns=2, width=3.9)


def altopt_panels(rows: Table, *, title: str) -> Figure:
    """E_BA by iteration and by time. rows : how, start, g, iteration, seconds, E_BA."""

    def draw(axes: Axes, place: int) -> None:
        x_name = ("iteration", "seconds")[place]
        for how in dict.fromkeys(row["how"] for row in rows):
            line = [row for row in rows if row["how"] == how]
            start, g = line[0]["start"], line[0]["g"]
            colour = STYLES["BA"].colour if start == "exact" else GROUPS.get(g, FAINT)
            axes.plot(
                [row[x_name] for row in line], [row["E_BA"] for row in line],
                linestyle="--" if start == "warm" else "-", color=colour, linewidth=1.4,
                marker="o" if start == "exact" else None, markersize=3, label=how,
            )  # fmt: skip
        if x_name == "seconds":
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
            axes.xaxis.set_minor_formatter(lambda value, place: "")
        axes.set_xlabel("iteration" if place == 0 else "seconds of training")
        axes.set_title("$E_{BA}$ by iteration" if place == 0 else "$E_{BA}$ by time", fontsize=9, color=INK)
        _short_numbers(axes)

    figure = _panels(2, draw, f"{title}: the Z step by groups of bits", width=3.9)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


def lines_by_bits(
    axes: Axes, rows: Table, value: str, *, dashed: bool = False, labels: bool = True, from_zero: bool = True
) -> None:
    """A line a method over the number of bits, named at its end."""
    ends = []
    for method in reversed(list(dict.fromkeys(row["method"] for row in rows))):
        line = sorted((row for row in rows if row["method"] == method), key=lambda row: int(row["bits"]))
        look = style(method)
        axes.plot(
            [row["bits"] for row in line], [row[value] for row in line], "--" if dashed else look.line,
            color=look.colour, marker=look.marker, markersize=2.5 if dashed else 4.5,
            linewidth=0.9 if dashed else 1.5,
        )  # fmt: skip
        ends.append((line[-1][value], method, look.colour))
    axes.set_xticks(sorted({row["bits"] for row in rows}))
    axes.set_xlabel("bits L")
    if from_zero:
        axes.set_ylim(0, 1.05 * max(row[value] for row in rows))
    else:
        _short_numbers(axes)
    if labels:
        label_ends(axes, max(row["bits"] for row in rows), ends)


def _counts(axes: Axes, counts: Table) -> None:
    ends = []
    for method in dict.fromkeys(row["method"] for row in counts):
        line = [row for row in counts if row["method"] == method]
        look: Style = style(method)
        axes.plot(
            [row["rank"] for row in line], [row["count"] for row in line], color=look.colour, linewidth=1.5
        )
        ends.append((method, look.colour, line[-1]["rank"]))
    for place, (method, colour, rank) in enumerate(ends):
        axes.annotate(
            f"{method}, {rank:,} codes used", (0.98, 0.95 - 0.075 * place), xycoords="axes fraction",
            ha="right", fontsize=8, color=colour,
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="codes, most used first", ylabel="rows with this code")
    axes.set_title(f"rows a code, L = {counts[0]['bits']}", fontsize=9, color=INK)


def _panels(
    n: int, draw: Callable[[Any, int], None], title: str, *, columns: int = 3, width: float = PANEL
) -> Figure:
    columns = min(n, 2 if n == 4 and columns == 3 else columns)
    lines = -(-n // columns)
    figure = new_figure(width * columns + 0.4, TALL * lines + 0.3)
    every = figure.subplots(lines, columns, squeeze=False).ravel()
    for place, axes in enumerate(every):
        if place < n:
            draw(axes, place)
            tidy(axes)
        else:
            axes.set_axis_off()
    figure.suptitle(title, fontsize=10, color=INK)
    return figure


def _short_numbers(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(
        lambda value, place: f"{value:,.10g}" if abs(value) < 1e7 else f"{value:.3g}"
    )


def _way(retrieved: str) -> str:
    return (
        f"{retrieved.replace('k=', '')} nearest codes"
        if retrieved.startswith("k")
        else f"within r ≤ {retrieved[2:]}"
    )
