"""The kernel, anchors and bandwidths (kernels.py) against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist, pdist
from sklearn.cluster import KMeans

from auxbit.core import features as kernels
from auxbit.core.features import (
    choose_anchors,
    find_anchors,
    gaussian,
    given_bandwidth,
    median_distance,
    median_reach,
    nearest_anchors,
    squared_distances,
)
from auxbit.core.maps import Scaling
from auxbit.core.parallel import BLOCK_ROWS, Workers, some_rows
from auxbit.errors import InvalidInput, InvalidParameter


def rows(n, dimensions, seed=0):
    return np.random.default_rng(seed).uniform(-0.5, 0.5, size=(n, dimensions)).astype(np.float32)


def chosen(X, n_anchors, seed=0, n_jobs=1):
    with Workers(n_jobs) as workers:
        return choose_anchors(X, n_anchors, workers, np.random.RandomState(seed))


# ---- distances and the kernel


def test_squared_distances_are_those_of_the_differences():
    X, anchors = rows(70, 9), rows(13, 9, seed=1)
    np.testing.assert_allclose(squared_distances(X, anchors), cdist(X, anchors) ** 2, rtol=1e-12)
    assert (squared_distances(X, X[:5])[range(5), range(5)] < 1e-15).all()
    assert (squared_distances(X, X) >= 0).all()


def test_rows_that_lie_close_together_far_from_the_mean_keep_their_distances():
    X = (np.float32(0.75) + rows(40, 5) * np.float32(1e-5)).astype(np.float32)
    np.testing.assert_allclose(squared_distances(X, X[:7]), cdist(X, X[:7]) ** 2, atol=1e-15)


def test_the_kernel_is_gaussian_with_the_bandwidth_as_its_standard_deviation():
    X, anchors = rows(20, 3), rows(6, 3, seed=1)
    expected = np.exp(-(cdist(X, anchors) ** 2) / (2 * 0.3**2))
    np.testing.assert_allclose(gaussian(squared_distances(X, anchors), 0.3), expected, rtol=1e-10)


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 1000), st.data())
def test_the_nearest_anchors_are_the_first_of_all_when_sorted(n, m, seed, data):
    s = data.draw(st.integers(1, m))
    X, anchors = rows(n, 4, seed), rows(m, 4, seed + 1)
    near, ids = nearest_anchors(X, anchors, s)
    truth = cdist(X, anchors) ** 2
    np.testing.assert_allclose(near, np.sort(truth, axis=1)[:, :s], rtol=2e-5)
    np.testing.assert_allclose(np.take_along_axis(truth, ids, axis=1), near, rtol=1e-9)


def test_of_anchors_equally_near_but_for_rounding_the_first_is_taken():
    anchors = np.array([[1, 0], [0, 1 - 1e-7], [-1, 0], [0, -0.5]], dtype=np.float32)
    _, ids = nearest_anchors(np.zeros((1, 2), np.float32), anchors, 3)
    assert ids.tolist() == [[3, 0, 1]]


# ---- anchors


def test_where_rows_are_few_the_anchors_are_the_distinct_ones():
    X = np.repeat(rows(9, 4), 3, axis=0)
    anchors = chosen(X, 10)
    assert np.array_equal(anchors, np.unique(X, axis=0))
    assert np.array_equal(chosen(X, 9), anchors)
    assert len(chosen(X, 8)) == 8
    assert chosen(np.zeros((20, 3), np.float32), 300).shape == (1, 3)


def test_anchors_are_means_of_the_rows_nearest_to_them_once_k_means_converges(monkeypatch):
    monkeypatch.setattr(kernels, "KMEANS_ITERATIONS", 200)
    X = rows(500, 3)
    anchors = chosen(X, 12)
    owner = cdist(X, anchors).argmin(axis=1)
    for number, anchor in enumerate(anchors):
        np.testing.assert_allclose(anchor, X[owner == number].mean(axis=0), atol=1e-6)


def test_anchors_cover_the_rows_about_as_well_as_scikit_learns_k_means():
    X = rows(2000, 6)
    reference = KMeans(50, n_init=1, random_state=0).fit(X).inertia_
    assert (cdist(X, chosen(X, 50)).min(axis=1) ** 2).sum() < 1.03 * reference


def test_a_centre_without_rows_stays_where_it_is():
    X = rows(50, 2)
    centres = np.array([[0, 0], [9, 9]], dtype=np.float32)
    with Workers(1) as workers:
        moved = kernels._k_means_step(X, centres, workers)
    np.testing.assert_allclose(moved[0], X.mean(axis=0), atol=1e-6)
    assert moved[1].tolist() == [9, 9]


def test_anchors_are_the_same_for_any_number_of_threads_and_change_with_the_seed():
    X = rows(2 * BLOCK_ROWS + 100, 5)
    first = chosen(X, 40)
    assert np.array_equal(chosen(X, 40, n_jobs=3), first)
    assert not np.array_equal(chosen(X, 40, seed=1), first)


def test_anchors_come_from_a_sample_of_rows_and_short_data_are_the_sample():
    X = np.arange(25_000, dtype=np.float32)[:, None]
    sample = some_rows(X, np.random.RandomState(0), kernels.SAMPLE_ROWS)[:, 0]
    assert len(sample) == kernels.SAMPLE_ROWS
    assert (np.diff(sample) > 0).all()
    assert some_rows(X[:9], np.random.RandomState(0), 10).shape == (9, 1)


def found(given, n_anchors=5):
    X = rows(60, 4) * 8 + 100
    with Workers(1) as workers:
        scaling = Scaling.measure(X, workers)
        rng = np.random.RandomState(0)
        return find_anchors(given, n_anchors, scaling.apply(X), scaling, workers, rng), scaling


@pytest.mark.parametrize("form", [np.asarray, list, lambda anchors: anchors.astype(np.float64)])
def test_given_anchors_are_taken_as_they_are_in_the_units_of_the_rows(form):
    given = rows(7, 4, seed=5) + 100
    anchors, scaling = found(form(given))
    np.testing.assert_allclose(anchors * scaling.scale + scaling.mean, given, rtol=1e-6)
    assert anchors.dtype == np.float32


@pytest.mark.parametrize(
    "given",
    [np.zeros(4), np.zeros((3, 5)), np.zeros((1, 4)), np.zeros((0, 4)), 7, "k-means", [["a"] * 4] * 2],
)
def test_anchors_of_another_shape_or_kind_are_refused(given):
    with pytest.raises(InvalidInput, match=r"anchors must be None or an \(m, 4\) array .* got shape"):
        found(given)


def test_anchors_of_unequal_lengths_masked_or_with_nan_are_refused():
    with pytest.raises(InvalidInput, match=r"anchors must be an array of numbers: .*inhomog"):
        found([[1, 2, 3, 4], [1, 2]])
    with pytest.raises(InvalidInput, match="anchors has masked numbers, 8 of"):
        found(np.ma.masked_array(np.ones((2, 4)), mask=True))
    with pytest.raises(InvalidInput, match="anchors contains NaN at row 0, column 0"):
        found(np.full((3, 4), np.nan))


@pytest.mark.parametrize("n_anchors", [1, 0, 2.5, "300", None, True])
def test_a_number_of_anchors_below_two_is_refused(n_anchors):
    with pytest.raises(InvalidParameter, match=r"n_anchors=.* at least 2\. Try n_anchors=300"):
        found(None, n_anchors)


# ---- bandwidths


def test_the_bandwidths_are_medians_of_distances():
    X, anchors = rows(80, 4), rows(15, 4, seed=1)
    assert median_distance(anchors) == pytest.approx(np.sqrt(np.median(pdist(anchors) ** 2)))
    third = np.sort(cdist(X, anchors) ** 2, axis=1)[:, 2]
    assert median_reach(X, anchors, 3) == pytest.approx(np.sqrt(np.median(third)), rel=1e-5)


def test_where_nothing_differs_the_bandwidth_is_one():
    X = np.full((6, 3), 0.1, dtype=np.float32)
    assert median_distance(X) == median_distance(X[:1]) == median_reach(X, X, 1) == 1


def test_one_row_far_away_leaves_the_bandwidth_to_the_others():
    anchors = np.vstack([rows(30, 3) * np.float32(1e-4), np.ones((1, 3), np.float32)])
    assert median_distance(anchors) < 1e-3
    assert median_reach(anchors, anchors, 5) < 1e-3


def test_a_given_bandwidth_is_in_the_units_of_the_rows():
    assert given_bandwidth(6, Scaling(np.zeros(3), 4.0)) == 1.5
    for bad in (0, -1, np.inf, np.nan, "1", True):
        with pytest.raises(InvalidParameter, match=r"bandwidth=.* None measures one"):
            given_bandwidth(bad, Scaling(np.zeros(3), 4.0))
