"""Charts of our own objects: drawn into axes that are given or made, and returned."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

from auxbit import LSH, BinaryAutoencoder, Collection, HammingIndex, evaluate, plot
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.experiments.bits import Choice

mpl.use("Agg")
X = np.random.default_rng(0).normal(size=(120, 6))


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    mpl.pyplot.close("all")


def test_the_history_of_a_fit_has_errors_and_precisions_of_every_iteration():
    ba = BinaryAutoencoder(4, random_state=0).fit(X)
    errors, precision = plot.history(ba)
    assert [len(line.get_xdata()) for line in errors.lines] == [len(ba.history_)] * 2
    assert list(precision.lines[0].get_ydata()) == [record.precision for record in ba.history_]
    assert errors.figure.number in mpl.pyplot.get_fignums()  # so that a notebook shows it


def test_charts_are_drawn_into_axes_that_are_given():
    ba = BinaryAutoencoder(4, random_state=0, validation=None).fit(X)
    mine = Figure().subplots()
    assert plot.history(ba, axes=[mine]) == [mine]
    rows = [{"method": "BA", "bits": 8, "precision": 0.5}]
    another = Figure().subplots()
    assert plot.precision(rows, ax=another) is another
    assert mpl.pyplot.get_fignums() == []


def test_a_single_axes_is_enough_for_a_history_and_two_are_needed_for_others():
    model, axes = BinaryAutoencoder(4, random_state=0).fit(X), Figure().subplots()
    assert plot.history(model, axes=axes) == [axes]
    assert axes.lines
    with pytest.raises(InvalidParameter, match=r"axes=.* is invalid: expected 2 or more"):
        plot.codes(model.encode(X), axes=axes)
    with pytest.raises(InvalidInput, match="recall needs what choose_bits returns, got NoneType"):
        plot.recall(None)


def test_a_model_without_a_history_is_refused():
    with pytest.raises(InvalidInput, match="history needs a fitted BinaryAutoencoder"):
        plot.history(LSH(4))


def test_methods_are_drawn_as_means_over_seeds():
    rows = [
        {"method": "BA", "bits": bits, "seed": seed, "precision": bits / 100 + seed / 10}
        for bits in (8, 16)
        for seed in (0, 1)
    ]
    line = plot.precision([*rows, {"method": "ITQ", "bits": 8, "precision": None}]).containers[0][0]
    assert list(line.get_ydata()) == pytest.approx([0.13, 0.21])
    with pytest.raises(InvalidParameter, match="value='speed' is invalid"):
        plot.precision(rows, value="speed")


def test_rows_whose_measure_is_nan_are_left_out():
    """pandas has NaN where a row had None."""
    rows = [{"method": "BA", "bits": bits, "precision": bits / 100} for bits in (8, 16)]
    unknown = {"method": "ITQ", "bits": 8, "precision": float("nan")}
    axes = plot.precision([unknown, *rows])
    assert [text.get_text() for text in axes.texts] == ["BA"]
    with pytest.raises(InvalidParameter, match="at least one number to draw"):
        plot.precision([unknown])


def test_methods_that_find_nothing_are_drawn():
    rows = [{"method": "BA", "bits": bits, "precision": 0.0} for bits in (8, 16)]
    low, high = plot.precision(rows).get_ylim()
    assert low == 0 < high


def test_curves_begin_at_the_first_radius_that_retrieves_something():
    codes = LSH(8, random_state=0).fit(X).encode(X)
    truth = evaluate.ground_truth(X, X[:10], k=5)
    ranking = evaluate.hamming_ranking(codes, codes[:10], truth, n_bits=8)
    axes = plot.curve({"LSH": ranking, "again": ranking})
    assert len(axes.lines) == 2
    assert list(axes.lines[0].get_xdata()) == list(evaluate.precision_recall_curve(ranking).recall)
    assert len(plot.curve(ranking).texts) == 6  # the first radii are named


def test_codes_of_collections_indexes_and_arrays_are_drawn_alike():
    model = LSH(12, random_state=0).fit(X)
    codes = model.encode(X)
    index = HammingIndex(model=model)
    index.add(codes)
    with Collection.create(None, model, coding="hash") as collection:
        collection.add(X)
        drawn = [plot.codes(collection), plot.codes(index), plot.codes(codes, n_bits=12)]
    heights = [[bar.get_height() for bar in shares.patches] for shares, _ in drawn]
    assert heights[0] == heights[1] == heights[2] == list(model.transform(X).mean(axis=0))
    for _, distances in drawn:
        assert sum(bar.get_height() for bar in distances.patches) == pytest.approx(1)


def test_what_holds_no_codes_is_refused():
    with pytest.raises(InvalidInput, match="a Collection, a HammingIndex or packed codes"):
        plot.codes(X)


def test_recall_is_drawn_by_bytes_and_by_time():
    row = {"coding": "hash", "rerank": None, "bits": 32, "payload_bytes": 4, "search_ms": 0.1, "recall": 0.5}
    rows = [row, row | {"bits": 64, "payload_bytes": 8, "search_ms": 0.2, "recall": 0.7}]
    by_bytes, by_time = plot.recall(Choice(rows[1], rows, [], {"recall_at": 10, "recall": 0.6}))
    assert by_bytes.get_ylabel() == "recall@10"
    assert list(by_time.lines[0].get_xdata()) == [0.1, 0.2]
