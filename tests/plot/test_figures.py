"""Figures: drawn from tables, written whole, the same look for a method everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auxbit.errors import FileExists, InvalidParameter, MissingExtra
from auxbit.plot import figures as plot

HISTORY = [
    {"iteration": i, "mu": 0.01 * 1.3**i, "E_Q": 90.0 - i, "E_BA": 100.0 - i, "precision": p, "kept": kept}
    for i, (p, kept) in enumerate([(0.1, True), (0.3, True), (0.2, False)], start=1)
]
ROWS = [
    {"method": method, "bits": bits, "precision": bits / 40 + shift, "precision_std": 0.01}
    for shift, method in enumerate(("BA", "ITQ", "PQ"))
    for bits in (8, 16, 32)
]
CURVE = [
    {"method": method, "bits": 2, "radius": r, "precision": p, "recall": q}
    for method in ("BA", "ITQ")
    for r, p, q in ((0, None, None), (1, 0.8, 0.2), (2, 0.1, 1.0))
]
SPEEDUPS = [
    {
        "bits": bits,
        "processors": p,
        "seconds": 10 / p,
        "seconds_h": 3 / p,
        "seconds_f": 0.1 / p,
        "seconds_z": 6 / p,
        "speedup": p,
        "speedup_h": 0.8 * p,
        "speedup_f": 0.5,
        "speedup_z": 0.9 * p,
    }
    for bits in (16, 32)
    for p in (1, 2, 3)
]


def digit_panel() -> dict[str, Any]:
    pictures = np.arange(4 * 64, dtype=np.uint8).reshape(4, 8, 8)
    rows = [
        ("ITQ", pictures, np.array([False, True, False, True])),
        ("BA", pictures, np.zeros(4, dtype=bool)),
    ]
    return {"query": pictures[0], "caption": "query: 1", "rows": rows}


def figures() -> dict[str, Any]:
    return {
        "history": plot.history(HISTORY),
        "history without validation": plot.history([row | {"precision": None} for row in HISTORY]),
        "lines": plot.precision(ROWS),
        "bars": plot.precision([row for row in ROWS if row["bits"] == 8]),
        "curves": plot.pr_curves(CURVE),
        "one curve": plot.pr_curves(CURVE[:3]),
        "speed-ups": plot.speedup(SPEEDUPS),
        "speed-ups at one number of bits": plot.speedup(SPEEDUPS[:3]),
        "retrieved": plot.retrieved([digit_panel()] * 3, title="retrieved"),
    }


@pytest.mark.parametrize("name", figures().keys())
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_every_figure_is_written_as_png_and_svg(tmp_path: Path, name: str, suffix: str) -> None:
    path = tmp_path / f"figure{suffix}"
    plot.write(figures()[name], path)
    start = {".png": b"\x89PNG", ".svg": b"<?xml"}[suffix]
    assert path.read_bytes().startswith(start)


def test_a_method_with_more_bits_than_all_others_is_a_level_line_and_wide_ranges_are_logarithmic() -> None:
    rows = [{"method": "ITQ", "bits": bits, "precision": bits / 300} for bits in (32, 64, 128, 256)]
    rows += [
        {"method": "LSQ", "bits": 32, "precision": 0.4},
        {"method": "sign", "bits": 1536, "precision": 0.9},
    ]
    axes = plot.precision(rows).axes[0]
    assert axes.get_xscale() == "log"
    assert axes.get_xlim()[1] < 400
    assert {text.get_text() for text in axes.texts} == {"ITQ", "LSQ", "sign, 1536 bits"}
    assert any(set(line.get_ydata()) == {0.9} for line in axes.lines)
    assert plot.precision(ROWS).axes[0].get_xscale() == "linear"


def test_recall_is_drawn_by_bytes_and_by_time() -> None:
    rows = [
        {"bits": 8 * n, "payload_bytes": n, "coding": coding, "rerank": again, "recall": 1 - 0.5 / n,
         "search_ms": 0.1 * n}
        for coding in ("hash", "optimal") for again in (None, 40) for n in (4, 8)
    ]  # fmt: skip
    left, right = plot.recall_panels(rows, title="t", name="recall@10", wanted=0.9, best=rows[1]).axes
    assert [tick.get_text() for tick in left.get_xticklabels()] == ["4", "8"]
    assert "64 bits" in {text.get_text() for text in left.texts}
    assert {text.get_text() for text in right.texts} == {"32", "64"}
    assert len(plot.recall_panels(rows, title="t", name="recall@10").axes[0].lines) == 4


def test_one_number_of_bits_makes_bars_that_start_at_zero() -> None:
    axes = plot.precision([row for row in ROWS if row["bits"] == 8]).axes[0]
    assert len(axes.patches) == 3
    assert axes.get_ylim()[0] == 0


def test_several_values_make_panels_with_one_scale_that_holds_all_bars() -> None:
    rows = [{"method": "BA", "bits": 8, "low": 0.1, "high": 0.9}]
    figure = plot.precision(rows, values={"low": "of 10", "high": "of 50"})
    assert [axes.get_title() for axes in figure.axes] == ["of 10", "of 50"]
    assert all(axes.get_ylim()[1] > 0.9 for axes in figure.axes)


def test_rows_without_the_value_are_left_out() -> None:
    rows = [*ROWS, {"method": "OPQ", "bits": 8, "precision": None}]
    assert len(plot.precision(rows).axes[0].containers) == 3
    with pytest.raises(InvalidParameter, match="at least one number"):
        plot.precision(rows[-1:])


def test_wrong_neighbours_are_framed_and_right_ones_are_not() -> None:
    axes = plot.retrieved([digit_panel()], title="retrieved", columns=1).axes[0]
    assert len(axes.patches) == 2


def test_the_model_that_was_kept_is_marked_in_the_history() -> None:
    panels = plot.history(HISTORY).axes
    marked = panels[1].lines[-1]
    assert (marked.get_xdata()[0], marked.get_ydata()[0]) == (2, 0.3)


def test_speed_ups_have_a_panel_for_each_number_of_bits_and_a_dashed_line_of_perfect_ones() -> None:
    panels = plot.speedup(SPEEDUPS).axes
    assert [axes.get_title() for axes in panels] == ["16 bits", "32 bits"]
    for axes in panels:
        perfect, *others = axes.lines
        assert perfect.get_linestyle() == "--"
        assert list(perfect.get_xdata()) == list(perfect.get_ydata()) == [1, 2, 3]
        assert len(others) == 3
        assert list(axes.get_xticks()) == [1, 2, 3]
        assert {text.get_text() for text in axes.texts} == {
            "perfect", "whole fit 3.00", "h step 2.40", "Z step 2.70",
        }  # fmt: skip


def test_a_step_is_drawn_where_it_takes_a_twentieth_of_the_time_or_more() -> None:
    slow = [row | {"seconds_f": row["seconds"] / 19} for row in SPEEDUPS[:3]]
    assert "f step 0.50" in {text.get_text() for text in plot.speedup(slow).axes[0].texts}
    unknown = [row | {"speedup_h": None} for row in SPEEDUPS[:3]]
    assert len(plot.speedup(unknown).axes[0].lines) == 3


def test_speed_ups_on_many_processors_have_few_ticks_and_markers() -> None:
    many = [SPEEDUPS[0] | {"processors": p, "speedup": p} for p in range(1, 65)]
    axes = plot.speedup(many).axes[0]
    assert list(axes.get_xticks()) == [1, 8, 16, 24, 32, 40, 48, 56, 64]


def test_the_same_figure_gives_the_same_svg(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        plot.write(plot.precision(ROWS), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_an_existing_picture_is_kept_by_default(tmp_path: Path) -> None:
    path = tmp_path / "old.png"
    path.write_bytes(b"precious")
    with pytest.raises(FileExists, match="exists"):
        plot.write(plot.precision(ROWS), path)
    assert path.read_bytes() == b"precious"
    plot.write(plot.precision(ROWS), path, overwrite=True)
    assert path.read_bytes() != b"precious"


def test_an_unknown_extension_is_refused_before_anything_is_drawn() -> None:
    with pytest.raises(InvalidParameter, match=r"ends in \.png or \.svg"):
        plot.check_output("figure.bmp")


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"plotting needs matplotlib: pip install 'auxbit\[plot\]'"):
        plot.check_output("figure.png")


def test_colours_are_drawn_as_they_are() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (1, 6, 6, 3)).astype(np.uint8)
    drawn = plot.mosaic([picture])
    np.testing.assert_array_equal(drawn[1:-1, 1:-1, :3], picture[0])
    assert (drawn[1:-1, 1:-1, 3] == 255).all()
    assert (drawn[0, :, 3] == 0).all()


def test_pictures_that_are_not_square_are_centred_in_their_cells() -> None:
    drawn = plot.mosaic([np.full((2, 4, 8), 7, dtype=np.uint8), np.full((2, 4, 8), 9, dtype=np.uint8)])
    assert drawn.shape == (20, 20, 4)
    assert (drawn[3:7, 1:9, 0] == 7).all()
    assert (drawn[13:17, 11:19, 0] == 9).all()
    assert (drawn[..., 3] == 255).sum() == 4 * 4 * 8


@pytest.mark.parametrize("shape", [(200, 130), (200, 130, 3), (65, 65), (640, 2)])
def test_large_pictures_are_averaged_down(shape: tuple[int, ...]) -> None:
    picture = np.full(shape, 100, dtype=np.uint8)
    picture[::2] = 200
    small = plot.shrunk(picture)
    assert max(small.shape[:2]) <= 64
    assert small.shape[2:] == shape[2:]
    assert abs(int(small.astype(int).mean()) - 150) <= 18
