"""How methods look, names at the ends of lines, and dark backgrounds."""

from __future__ import annotations

import numpy as np
import pytest

from auxbit.plot import figures, style
from auxbit.plot.style import STYLES

ROWS = [
    {"method": method, "bits": bits, "precision": bits / 40 + shift, "precision_std": 0.01}
    for shift, method in enumerate(("BA", "ITQ", "PQ"))
    for bits in (8, 16, 32)
]


def test_a_method_has_one_colour_and_marker_of_its_own() -> None:
    assert len({style.colour for style in STYLES.values()}) == len(STYLES)
    assert len({style.marker for style in STYLES.values()}) == len(STYLES)
    drawn = figures.precision(ROWS).axes[0].containers
    assert {container[0].get_color() for container in drawn} == {
        STYLES[m].colour for m in ("BA", "ITQ", "PQ")
    }


def test_labels_at_line_ends_do_not_overlap() -> None:
    crowded = [
        {"method": method, "bits": bits, "precision": 0.5 + 0.001 * place}
        for place, method in enumerate(STYLES)
        for bits in (8, 16)
    ]
    axes = figures.precision(crowded).axes[0]
    places = sorted(text.xyann[1] for text in axes.texts)
    gap = 0.05 * (axes.get_ylim()[1] - axes.get_ylim()[0])
    assert len(places) == len(STYLES)
    assert places[-1] <= axes.get_ylim()[1]  # the title is above
    assert np.diff(places).min() > gap


def test_methods_that_are_not_known_share_a_look() -> None:
    assert style.look("mine") == style.look("yours") == style.OTHER
    assert style.look("BA") == STYLES["BA"]


@pytest.mark.parametrize(
    ("low", "high"), [(0.05, 210.0), (2.0, 9.0), (3.0, 3.9), (0.0073, 0.065), (1e-3, 1e9), (2.5, 2.5)]
)
def test_a_logarithmic_axis_has_numbers_within_it_however_short_it_is(low: float, high: float) -> None:
    ticks = style.log_ticks(low, high)
    assert ticks == sorted(set(ticks))
    assert low <= ticks[0] <= ticks[-1] <= high
    assert len(ticks) in range(1 if low == high else 3, 10)


def test_rows_are_grouped_in_order_of_appearance() -> None:
    groups = style.grouped([{"b": 2, "n": 0}, {"b": 1, "n": 1}, {"b": 2, "n": 2}], "b")
    assert [(key, [row["n"] for row in rows]) for key, rows in groups.items()] == [(2, [0, 2]), (1, [1])]


def test_a_dark_figure_has_light_ink_and_keeps_the_colours_of_methods() -> None:
    figure = style.darken(figures.precision(ROWS))
    axes = figure.axes[0]
    assert axes.get_facecolor() == figure.get_facecolor()
    assert max(figure.get_facecolor()[:3]) < 0.2
    assert axes.yaxis.label.get_color() == style.ON_DARK[style.INK]
    colours = {container[0].get_color() for container in axes.containers}
    assert STYLES["BA"].colour in colours
