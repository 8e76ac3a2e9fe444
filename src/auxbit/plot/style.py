"""What figures are made of: how methods look, panels, lines with names at their ends, dark backgrounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from auxbit.core.checks import require
from auxbit.hashers.registry import METHODS, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Table = Sequence[Mapping[str, Any]]

INK, FAINT, WRONG = "#222222", "#b0b0b0", "#c2185b"
STYLES = {method.label: method.style for method in METHODS.values()}
OTHER = Style("#332288", "h")


def look(method: str) -> Style:
    """The look of a method; unknown ones share one."""
    return STYLES.get(method, OTHER)


def new_figure(width: float, height: float, title: str, fontsize: float = 10) -> Figure:
    """An empty figure with its title, in inches."""
    matplotlib = require("matplotlib.figure", extra="plot", purpose="plotting")
    made: Figure = matplotlib.Figure(figsize=(width, height), layout="constrained")
    made.suptitle(title, fontsize=fontsize, color=INK)
    return made


def tidy(axes: Axes) -> None:
    """Axes with no frame but the left and the bottom, and faint lines behind."""
    axes.spines[["right", "top"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, color=FAINT)
    axes.xaxis.label.set_fontsize(9)
    axes.yaxis.label.set_fontsize(9)


def heading(axes: Axes, text: str) -> None:
    """Name a panel."""
    axes.set_title(text, fontsize=9, color=INK)


def short_numbers(axes: Axes) -> None:
    """Write the numbers beside the axis without an offset or a factor."""
    axes.yaxis.set_major_formatter(
        lambda value, place: f"{value:,.10g}" if abs(value) < 1e7 else f"{value:.3g}"
    )


def log_ticks(low: float, high: float, least: int = 3) -> list[float]:
    """Round numbers within low..high, both positive: powers of ten, and more where these are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for between in ((1,), (1, 3), (1, 2, 5), range(1, 10), [n / 10 for n in range(10, 100)]):
        every = (float(f"{n * 10.0**power:.3g}") for power in powers for n in between)
        ticks = [each for each in every if low <= each <= high]
        if len(ticks) >= least:
            break
    return ticks[:: -(-len(ticks) // 8)] if ticks else [low]


def grouped(rows: Table, column: str) -> dict[Any, list[Mapping[str, Any]]]:
    """The rows by their value in a column, in order of appearance."""
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row[column], []).append(row)
    return groups


def draw_line(axes: Axes, x: Sequence[Any], y: Sequence[Any], seen: Style, **options: Any) -> None:
    """A line that is seen as a method is; options are those of matplotlib."""
    usual: dict[str, Any] = {"markersize": 4.5, "linewidth": 1.5, "linestyle": seen.line}
    axes.plot(x, y, color=seen.colour, marker=seen.marker, **usual | options)


def lines_by_bits(
    axes: Axes, rows: Table, value: str, *, dashed: bool = False, labels: bool = True, from_zero: bool = True
) -> None:
    """One line per method over the number of bits, named at its end. rows : method, bits, value, …_std."""
    ends = []
    for method, some in reversed(grouped(rows, "method").items()):  # the first one ends up on top
        line = sorted(some, key=lambda row: int(row["bits"]))
        seen, spread = look(method), [row.get(f"{value}_std") or 0.0 for row in line]
        axes.errorbar(
            [row["bits"] for row in line], [row[value] for row in line], yerr=spread if any(spread) else None,
            linestyle="--" if dashed else seen.line, color=seen.colour, marker=seen.marker,
            markersize=2.5 if dashed else 4.5, linewidth=0.9 if dashed else 1.5, elinewidth=1,
        )  # fmt: skip
        ends.append((line[-1][value], method, seen.colour))
    axes.set_xticks(sorted({row["bits"] for row in rows}))
    axes.set_xlabel("bits L")
    if from_zero:
        axes.set_ylim(0, 1.05 * max(row[value] for row in rows) or 1)
    else:
        short_numbers(axes)
    if labels:
        label_ends(axes, max(row["bits"] for row in rows), ends)


def label_ends(axes: Axes, x: float, ends: Iterable[tuple[float, str, str]]) -> None:
    """Name lines at their right ends; names that would overlap are moved apart and joined to theirs."""
    low, high = axes.get_ylim()
    gap = 0.055 * (high - low)
    wanted = sorted(ends)
    groups: list[list[float]] = []  # labels that touch, placed around the mean of their wanted places
    for y, _, _ in wanted:
        groups.append([y])
        while (
            len(groups) > 1 and _spread(groups[-2], gap, high)[-1] + gap > _spread(groups[-1], gap, high)[0]
        ):
            groups[-2:] = [groups[-2] + groups[-1]]
    places = [place for group in groups for place in _spread(group, gap, high)]
    offsets = require("matplotlib.transforms", extra="plot", purpose="plotting").offset_copy
    beside = offsets(axes.transData, axes.figure, x=22, units="points")
    thin = {"arrowstyle": "-", "linewidth": 0.6, "alpha": 0.7, "shrinkA": 1, "shrinkB": 5, "relpos": (0, 0.5)}
    for place, (y, label, colour) in zip(places, wanted):
        axes.annotate(
            label, (x, y), xytext=(x, place), textcoords=beside, va="center", fontsize=8.5, color=colour,
            annotation_clip=False, arrowprops=thin | {"color": colour},
        )  # fmt: skip


def _spread(group: Sequence[float], gap: float, high: float) -> list[float]:
    """Around their mean, but not above the axes, where the title is."""
    height = gap * (len(group) - 1)
    first = min(sum(group) / len(group) - height / 2, high - height)
    return [first + gap * place for place in range(len(group))]


# ---- dark backgrounds

DARK_PAPER = "#16181d"
# what is drawn in ink, or too dark to be seen on a dark ground, by its colour on a light one
ON_DARK = {
    INK: "#e8e8e8", "#000000": "#ffffff", FAINT: "#7a7d85", "#e6e6e6": "#33363d", "#777777": "#a0a3aa",
    "#555555": "#b8bbc2", "#332288": "#a99cf0", "#882255": "#d9639a", "#0072b2": "#6f86ff",
    "#0c2c84": "#6f8fe8", "#225ea8": "#5b9bd5", WRONG: "#ff5c93", "#a33c00": "#ffb27a",
    "#117733": "#4fbf7a", "#666666": "#a6a8ae", "#994455": "#d98a9a",
}  # fmt: skip


def darken(figure: Figure) -> Figure:
    """The same figure for a dark background."""
    colours = require("matplotlib.colors", extra="plot", purpose="plotting")

    def lit(colour: object) -> object:
        try:
            red, green, blue, alpha = colours.to_rgba(colour)
        except (ValueError, TypeError):  # a colour for each of many points
            return colour
        found = ON_DARK.get(colours.to_hex((red, green, blue)))
        return colour if found is None else colours.to_rgba(found, alpha)

    figure.set_facecolor(DARK_PAPER)
    for artist in figure.findobj():
        for name in ("color", "edgecolor", "markerfacecolor", "markeredgecolor"):
            get, put = getattr(artist, f"get_{name}", None), getattr(artist, f"set_{name}", None)
            if get and put and artist is not figure.patch:
                colour = get()
                if isinstance(colour, (str, tuple)):
                    put(lit(colour))
    for axes in figure.axes:
        axes.set_facecolor(DARK_PAPER)
        axes.tick_params(colors=ON_DARK[INK], which="both")
        for spine in axes.spines.values():
            spine.set_edgecolor(ON_DARK[FAINT])
        for label in (axes.xaxis.label, axes.yaxis.label, axes.title):
            label.set_color(ON_DARK[INK])
    return figure
