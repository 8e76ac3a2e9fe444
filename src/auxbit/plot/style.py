"""What figures are made of: how methods look, an empty figure, tidy axes, names at the ends of lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from auxbit.core.checks import require
from auxbit.hashers.registry import METHODS, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, WRONG = "#222222", "#b0b0b0", "#c2185b"


STYLES = {method.label: method.style for method in METHODS.values()}
OTHER = Style("#332288", "h")


def style(method: str) -> Style:
    """The look of a method; unknown ones share one."""
    return STYLES.get(method, OTHER)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches."""
    made: Figure = require("matplotlib.figure", extra="plot", purpose="plotting").Figure(
        figsize=(width, height), layout="constrained"
    )
    return made


def tidy(axes: Axes) -> None:
    """Axes with no frame but the left and the bottom, and faint lines behind."""
    axes.spines[["right"]].set_visible(False)
    axes.spines[["top"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, color=FAINT)
    axes.xaxis.label.set_fontsize(9)
    axes.yaxis.label.set_fontsize(9)


def label_ends(axes: Axes, x: float, ends: Iterable[tuple[float, str, str]]) -> None:
    """Name lines at their right ends; names that would overlap are moved apart and joined to theirs."""
    low, high = axes.get_ylim()
    gap = 0.055 * (high - low)
    wanted = sorted(ends)
    groups: list[list[float]] = []  # labels that touch, placed around the mean of their wanted places
    for y, _, _ in wanted:
        groups.append([y])
        while len(groups) > 1 and _spread(groups[-2], gap)[-1] + gap > _spread(groups[-1], gap)[0]:
            groups[-2:] = [groups[-2] + groups[-1]]
    places = [place for group in groups for place in _spread(group, gap)]
    offsets = require("matplotlib.transforms", extra="plot", purpose="plotting").offset_copy
    beside = offsets(axes.transData, axes.figure, x=22, units="points")
    thin = {"arrowstyle": "-", "linewidth": 0.6, "alpha": 0.7, "shrinkA": 1, "shrinkB": 5, "relpos": (0, 0.5)}
    for place, (y, label, colour) in zip(places, wanted):
        axes.annotate(
            label, (x, y), xytext=(x, place), textcoords=beside, va="center", fontsize=8.5, color=colour,
            annotation_clip=False, arrowprops=thin | {"color": colour},
        )  # fmt: skip


def _spread(group: Sequence[float], gap: float) -> list[float]:
    first = sum(group) / len(group) - gap * (len(group) - 1) / 2
    return [first + gap * place for place in range(len(group))]


# ---- dark backgrounds

PAPER, DARK_PAPER = "#ffffff", "#16181d"
# what is drawn in ink, or too dark to be seen on a dark ground, by its colour on a light one
ON_DARK = {
    INK: "#e8e8e8",
    "#000000": "#ffffff",
    FAINT: "#7a7d85",
    "#e6e6e6": "#33363d",
    "#777777": "#a0a3aa",
    "#555555": "#b8bbc2",
    "#332288": "#a99cf0",
    "#882255": "#d9639a",
    "#0072b2": "#6f86ff",
    "#0c2c84": "#6f8fe8",
    "#225ea8": "#5b9bd5",
    WRONG: "#ff5c93",
}


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
        for get, put in (
            ("get_color", "set_color"),
            ("get_edgecolor", "set_edgecolor"),
            ("get_markerfacecolor", "set_markerfacecolor"),
            ("get_markeredgecolor", "set_markeredgecolor"),
        ):
            if hasattr(artist, get) and hasattr(artist, put) and artist is not figure.patch:
                colour = getattr(artist, get)()
                if isinstance(colour, (str, tuple)):
                    getattr(artist, put)(lit(colour))
    for axes in figure.axes:
        axes.set_facecolor(DARK_PAPER)
        axes.tick_params(colors=ON_DARK[INK], which="both")
        for spine in axes.spines.values():
            spine.set_edgecolor(ON_DARK[FAINT])
        for label in (axes.xaxis.label, axes.yaxis.label, axes.title):
            label.set_color(ON_DARK[INK])
    return figure
