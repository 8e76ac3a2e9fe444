"""The paper's figures: a panel for each part, a line for each method, drawn from small tables."""

from __future__ import annotations

from typing import Any

import pytest

from auxbit.plot import paper
from auxbit.plot.style import STYLES

METHODS = ("BA", "ITQ")


def titles(figure: Any) -> list[str]:
    return [axes.get_title() for axes in figure.axes if axes.get_title()]


def test_precision_has_a_panel_for_each_way_to_retrieve() -> None:
    rows = [
        {"method": method, "bits": bits, "retrieved": way, "precision": bits / 100}
        for way in ("k=50", "r=1", "r=2", "r=3")
        for method in METHODS
        for bits in (8, 16)
    ]
    figure = paper.precision_panels(rows, title="digits")
    assert titles(figure) == ["50 nearest codes", "within r ≤ 1", "within r ≤ 2", "within r ≤ 3"]
    assert all(len(axes.containers) == 2 for axes in figure.axes)
    assert {container[0].get_color() for container in figure.axes[0].containers} == {
        STYLES[method].colour for method in METHODS
    }


def test_curves_have_a_panel_for_each_number_of_bits_and_rise_in_radius() -> None:
    rows = [
        {"method": method, "bits": bits, "radius": r, "precision": 1 - r / 4, "recall": r / 4}
        for bits in (16, 8)
        for method in METHODS
        for r in (2, 0, 1)
    ]
    figure = paper.curve_panels(rows, title="digits")
    assert titles(figure) == ["L = 8", "L = 16"]
    for axes in figure.axes:
        assert [list(line.get_xdata()) for line in axes.lines] == [[0, 0.25, 0.5]] * 2


def test_errors_do_not_start_at_zero_and_precisions_do() -> None:
    rows = [
        {
            "method": method,
            "bits": bits,
            "reconstruction_error": 1e6 + bits,
            "precision_r": 0.5,
            "precision_k": 0.6,
        }
        for method in METHODS
        for bits in (8, 16)
    ]
    error, *precisions = paper.wrapper_panels(rows, k=50, radius=2, title="digits").axes
    assert error.get_ylim()[0] > 9e5
    assert [axes.get_ylim()[0] for axes in precisions] == [0, 0]


@pytest.mark.parametrize("n_counts", [0, 3])
def test_effective_bits_are_drawn_with_their_bounds_and_counts_if_there_are_any(n_counts: int) -> None:
    rows = [
        {
            "method": "BA",
            "bits": L,
            "train": 0.9 * L,
            "train_bound": L,
            "queries": 0.8 * L,
            "queries_bound": L,
        }
        for L in (4, 8)
    ]
    counts = [{"method": "BA", "bits": 8, "rank": n + 1, "count": 9 - n} for n in range(n_counts)]
    figure = paper.entropy_panels(rows, counts, title="digits")
    assert len(figure.axes) == 1 + bool(n_counts)
    assert [list(line.get_ydata()) for line in figure.axes[0].lines[-2:]] == [[4, 8]] * 2
    if n_counts:
        assert "BA, 3 codes used" in {text.get_text() for text in figure.axes[1].texts}


def test_the_path_has_energies_and_shares_for_each_number_of_bits() -> None:
    rows = [
        {
            "bits": L,
            "mu": 0.01 * 2**i,
            "E_Q": 3.0,
            "E_BFA": 2.0,
            "E_BA": 4.0,
            "mismatched": 0.1,
            "pruned": 0.2,
        }
        for L in (8, 16)
        for i in range(3)
    ]
    figure = paper.path_panels(rows, title="digits")
    assert [len(axes.lines) for axes in figure.axes] == [3, 2, 3, 2]
    assert figure.axes[1].get_ylim() == (-0.02, 1.02)
    assert all(axes.get_xscale() == "log" for axes in figure.axes)


def test_warm_starts_are_dashed_and_the_exact_step_has_markers() -> None:
    rows = [
        {"how": how, "start": start, "g": g, "iteration": i, "seconds": 0.1 * i, "E_BA": 10.0 - i}
        for how, start, g in (
            ("g = 1, warm", "warm", 1),
            ("g = 1, relaxed", "relaxed", 1),
            ("exact", "exact", 0),
        )
        for i in (1, 2)
    ]
    for axes in paper.altopt_panels(rows, title="digits").axes:
        assert [line.get_linestyle() for line in axes.lines] == ["--", "-", "-"]
        assert [line.get_marker() for line in axes.lines] == ["None", "None", "o"]


def test_the_axis_of_time_has_numbers_though_all_times_lie_within_a_factor_of_two() -> None:
    rows = [
        {"how": "exact", "start": "exact", "g": 0, "iteration": i, "seconds": 2.0 + i / 2, "E_BA": 10.0 - i}
        for i in (1, 2, 3)
    ]
    figure = paper.altopt_panels(rows, title="digits")
    figure.canvas.draw()
    axes = figure.axes[1]
    low, high = axes.get_xlim()
    labels = axes.get_xticklabels()
    shown = [label.get_text() for label in labels if low <= label.get_position()[0] <= high]
    assert len([text for text in shown if text]) >= 3
