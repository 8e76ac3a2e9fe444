"""Scaling: one pass over the rows in their own type, as right as in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auxbit.core.maps import Scaling, largest_norm, lifted, lifted_queries, row_norms
from auxbit.core.parallel import BLOCK_ROWS, Workers
from auxbit.errors import InvalidInput

DTYPES = [np.uint8, np.int32, np.int64, np.float16, np.float32, np.float64, np.longdouble, ">f8", bool]


def true_scaling(X, normalize=False):
    """Mean and largest range in float64, and the rows scaled by them."""
    rows = X.astype(np.float64)
    if normalize:
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        rows = rows / np.where(norms > 0, norms, 1)
    mean, scale = rows.mean(axis=0), np.ptp(rows, axis=0).max() or 1.0
    return mean, scale, (rows - mean) / scale


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 40),
    dimensions=st.integers(1, 20),
    dtype=st.sampled_from(DTYPES),
    normalize=st.booleans(),
    fortran=st.booleans(),
    seed=st.integers(0, 100_000),
)
def test_mean_range_and_scaled_rows_are_those_of_float64(n, dimensions, dtype, normalize, fortran, seed):
    X = np.random.default_rng(seed).uniform(0, 99, size=(n, dimensions)).astype(dtype)
    X = np.asfortranarray(X) if fortran else X
    mean, scale, rows = true_scaling(X, normalize)
    with Workers(1) as workers:
        scaling = Scaling.measure(X, workers, normalize=normalize)
        scaled = scaling.apply_all(X, workers)
    np.testing.assert_allclose(scaling.mean, mean, rtol=1e-13, atol=1e-15)
    assert scaling.scale == pytest.approx(scale, rel=1e-12)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, rows, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(scaling.apply(X), scaled)
    np.testing.assert_allclose(scaling.exactly(X), rows, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("offset", [1e4, -1e6])
def test_a_mean_much_larger_than_the_spread_is_right_to_a_millionth_of_it(offset, dtype):
    rng = np.random.default_rng(0)
    X = (rng.uniform(-0.5, 0.5, size=(3 * BLOCK_ROWS + 5, 7)) + offset).astype(dtype)
    spread = np.ptp(X.astype(np.float64), axis=0).max()
    with Workers(2) as workers:
        scaling = Scaling.measure(X, workers)
        scaled = scaling.apply_all(X, workers)
    true = X.astype(np.longdouble).mean(axis=0)
    assert np.abs(scaling.mean - true).max() < 1e-7 * spread
    np.testing.assert_allclose(scaled, (X - true) / spread, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_scaling_does_not_depend_on_the_number_of_threads(dtype):
    X = np.random.default_rng(1).lognormal(1, 1, size=(3 * BLOCK_ROWS + 1, 9)).astype(dtype)
    found = []
    for n_jobs in (1, 2, 3):
        with Workers(n_jobs) as workers:
            scaling = Scaling.measure(X, workers)
            found.append((scaling.mean.tobytes(), scaling.scale, scaling.apply_all(X, workers).tobytes()))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("normalize", [False, True])
def test_some_rows_are_scaled_in_the_order_asked_for(normalize):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(2 * BLOCK_ROWS + 9, 4)).astype(np.float32)
    with Workers(2) as workers:
        scaling = Scaling.measure(X, workers, normalize=normalize)
        everything = scaling.apply_all(X, workers)
        for rows in (rng.permutation(len(X)), rng.permutation(len(X))[:11], np.array([], dtype=np.intp)):
            some = scaling.apply_all(X, workers, rows=rows)
            assert some.flags.c_contiguous
            np.testing.assert_array_equal(some, everything[rows])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble])
@pytest.mark.parametrize("row", [0, 1, BLOCK_ROWS, BLOCK_ROWS + 6])
@pytest.mark.parametrize("normalize", [False, True])
def test_what_is_not_finite_is_named_when_it_is_measured(value, dtype, row, normalize):
    X = np.ones((BLOCK_ROWS + 7, 3), dtype=dtype)
    X[row, 1] = value
    name = "NaN" if np.isnan(value) else "inf"
    for n_jobs in (1, 2):
        with Workers(n_jobs) as workers, pytest.raises(InvalidInput, match=f"{name} at row {row}, column 1"):
            Scaling.measure(X, workers, normalize=normalize)


@pytest.mark.parametrize("normalize", [False, True])
def test_infinities_that_cancel_and_numbers_too_large_are_named(normalize):
    X = np.ones((10, 2))
    with Workers(1) as workers:
        X[[3, 5], 1] = np.inf, -np.inf
        with pytest.raises(InvalidInput, match="inf at row 3, column 1"):
            Scaling.measure(X, workers, normalize=normalize)
        X[[3, 5], 1] = 1, -1e141
        with pytest.raises(InvalidInput, match=r"X contains -1e\+141 at row 5, column 1"):
            Scaling.measure(X, workers, normalize=normalize)
        X[5, 1] = -1e139
        assert Scaling.measure(X, workers, normalize=normalize).scale > 0
        with pytest.raises(InvalidInput, match="dates or times"):
            Scaling.measure(np.zeros((4, 2), dtype="datetime64[s]"), workers)


# ---- rows that are lifted, for inner products


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 60),
    dimensions=st.integers(1, 12),
    dtype=st.sampled_from([np.uint8, np.int32, np.float16, np.float32, np.float64]),
    power=st.integers(-3, 3),
    seed=st.integers(0, 100_000),
)
def test_lifted_rows_are_ranked_by_distance_as_rows_are_by_inner_product(n, dimensions, dtype, power, seed):
    rng = np.random.default_rng(seed)
    X = (rng.uniform(0, 9, size=(n, dimensions)) * rng.uniform(0.1, 9, size=(n, 1))).astype(dtype)
    queries = rng.normal(size=(5, dimensions)) * 10.0**power
    with Workers(1) as workers:
        longest = largest_norm(X, workers)
        scaling = Scaling.measure(X, workers, lift=True)
    norms = np.linalg.norm(X.astype(np.float64), axis=1)
    assert longest == pytest.approx(norms.max(), rel=1e-12)
    rows, asked = lifted(X, longest or 1.0), lifted_queries(queries, longest or 1.0)
    np.testing.assert_array_equal(rows[:, :-1], X)
    np.testing.assert_allclose(
        rows[:, -1], np.sqrt(np.maximum(longest**2 - norms**2, 0)), rtol=1e-6, atol=1e-6 * longest
    )
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), longest or 1.0, rtol=1e-12)
    products = queries @ X.astype(np.float64).T
    squared = np.square(asked[:, None] - rows[None]).sum(axis=2)
    by_product = np.take_along_axis(products, np.argsort(squared, axis=1), axis=1)
    np.testing.assert_allclose(  # equal products may come in any order
        by_product, -np.sort(-products, axis=1), rtol=0, atol=1e-11 * (np.abs(queries).sum() * longest + 1e-9)
    )
    assert scaling.metric == "inner_product"
    np.testing.assert_allclose(scaling.apply(X), (rows - scaling.mean) / scaling.scale, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(scaling.apply(X), scaling.apply(rows))  # which have the coordinate


@pytest.mark.parametrize("size", [1e-170, 1.0, 1e150])
def test_norms_are_right_where_squares_are_not(size):
    X = np.array([[3.0, 4.0], [0.0, 0.0], [1.0, 0.0]]) * size
    np.testing.assert_allclose(row_norms(X), np.array([5.0, 0.0, 1.0]) * size, rtol=1e-15)
    np.testing.assert_allclose(lifted(X, 5 * size)[:, -1] / size, [0, 5, np.sqrt(24)], rtol=1e-12)
