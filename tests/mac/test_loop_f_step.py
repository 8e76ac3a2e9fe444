from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxbit.core.maps import LinearDecoder, Scaling
from auxbit.core.parallel import BLOCK_ROWS, Workers
from auxbit.mac.loop import decoder_sums, f_step
from helpers import objective
from helpers.slow_truths import random_rows


def fit(X, Z, n_jobs=1):
    with Workers(n_jobs) as workers:
        return f_step(decoder_sums(X, Z, workers))


def least_squares(X, Z):
    """A and b by lstsq with a column of ones."""
    solution = np.linalg.lstsq(np.c_[Z, np.ones(len(Z))].astype(float), X.astype(float), rcond=None)[0]
    return solution[:-1].T, solution[-1]


def minimum_norm(X, Z):
    """The A of least norm, by the pseudoinverse of the centred codes."""
    Z, X = Z.astype(float), X.astype(float)
    return (np.linalg.pinv(Z - Z.mean(axis=0), rcond=1e-10) @ (X - X.mean(axis=0))).T


def squared_error(X, Z, A, b):
    return np.square(X - Z @ A.T - b).sum()


def check_least_squares(X, Z):
    f = fit(X, Z)
    assert np.isfinite(f.A).all()
    assert np.isfinite(f.b).all()
    # products are summed in float32 within a block
    truth = minimum_norm(X, Z)
    np.testing.assert_allclose(f.A, truth, atol=2e-5 * max(np.abs(X).max(), np.abs(truth).max()))
    total = float(np.square(X - X.mean(axis=0)).sum())
    error = squared_error(X, Z, f.A, f.b)
    assert error == pytest.approx(squared_error(X, Z, *least_squares(X, Z)), rel=1e-6, abs=1e-8 * total)
    np.testing.assert_allclose((X - f(Z)).mean(axis=0), 0, atol=1e-6 * np.abs(X).max())


def test_the_decoder_equals_lstsq_with_a_bias():
    X, Z, _, _ = random_rows(n=500)
    X += 3  # without a bias this would show
    f = fit(X, Z)
    A, b = least_squares(X, Z)
    np.testing.assert_allclose(f.A, A, atol=1e-5)
    np.testing.assert_allclose(f.b, b, atol=1e-5)


@given(st.integers(2, 60), st.integers(1, 9), st.integers(1, 12), st.integers(0, 2**20))
def test_the_decoder_is_the_least_squares_fit_of_minimum_norm_for_any_codes(n, D, L, seed):
    check_least_squares(*random_rows(n, D, L, seed)[:2])


def singular_codes(case, Z):
    Z = Z.copy()
    if case == "constant zero":
        Z[:, 1] = 0
    elif case == "constant one":
        Z[:, 1] = 1
    elif case == "repeated":
        Z[:, 3] = Z[:, 1]
    elif case == "complementary":
        Z[:, 3] = 1 - Z[:, 1]
    elif case == "all at once":
        Z[:, 0], Z[:, 2], Z[:, 3], Z[:, 4] = 0, Z[:, 1], 1 - Z[:, 1], 1
    elif case == "all constant":
        Z[:] = [0, 1, 0, 1, 1]
    return Z


@pytest.mark.parametrize(
    "case",
    [
        "constant zero",
        "constant one",
        "repeated",
        "complementary",
        "all at once",
        "all constant",
    ],
)
@pytest.mark.parametrize("n", [6, 200, BLOCK_ROWS + 50])
def test_singular_codes_get_the_decoder_of_minimum_norm(case, n):
    X, Z, _, _ = random_rows(n=n)
    check_least_squares(X, singular_codes(case, Z))


def test_a_constant_bit_gets_no_weight_and_repeated_bits_share_theirs():
    X, Z, _, _ = random_rows(n=100)
    Z[:, 0], Z[:, 2], Z[:, 3] = 1, Z[:, 1], 1 - Z[:, 1]
    A = fit(X, Z).A
    np.testing.assert_allclose(A[:, 0], 0, atol=1e-9)
    np.testing.assert_allclose(A[:, 2], A[:, 1], atol=1e-9)
    np.testing.assert_allclose(A[:, 3], -A[:, 1], atol=1e-9)


def test_bits_that_differ_in_one_row_of_many_are_not_taken_for_repeated():
    X, Z, _, _ = random_rows(n=3 * BLOCK_ROWS)
    Z[:, 1] = Z[:, 0]
    Z[17, 1] ^= 1
    X[17] += 5
    f, (A, b) = fit(X, Z), least_squares(X, Z)
    assert np.abs(f.A[:, 0] - f.A[:, 1]).max() > 1
    assert squared_error(X, Z, f.A, f.b) == pytest.approx(squared_error(X, Z, A, b), rel=1e-6)


@pytest.mark.parametrize(("n", "D", "L"), [(5, 3, 12), (10, 2, 40), (200, 3, 16), (2, 1, 1), (3, 4, 64)])
def test_more_bits_than_rows_or_dimensions_are_fine(n, D, L):
    check_least_squares(*random_rows(n, D, L)[:2])


@given(st.integers(2, 80), st.integers(1, 6), st.integers(1, 9), st.integers(0, 2**20))
def test_the_f_step_never_raises_E_Q_at_fixed_codes(n, D, L, seed):
    X, Z, h, f = random_rows(n, D, L, seed)
    with Workers(1) as workers:
        best = f_step(decoder_sums(X, Z, workers))
        fitted = objective.E_Q(X, Z, h, best, 0.5, workers)
        assert fitted <= objective.E_Q(X, Z, h, f, 0.5, workers)
        for step in (1e-1, -1e-1, 1e-2, -1e-2):  # nor is there anything lower nearby
            nearby = LinearDecoder(best.A + step * f.A, best.b + step * f.b)
            assert fitted <= objective.E_Q(X, Z, h, nearby, 0.5, workers) + 1e-6 * np.square(X).sum()


def test_the_decoder_is_the_same_to_the_last_bit_for_any_number_of_jobs():
    X, Z, _, _ = random_rows(n=3 * BLOCK_ROWS + 5)
    one, two = fit(X, Z, n_jobs=1), fit(X, Z, n_jobs=2)
    assert one.A.tobytes() == two.A.tobytes()
    assert one.b.tobytes() == two.b.tobytes()


def test_a_decoder_in_the_units_of_the_data_undoes_the_scaling():
    X, Z, _, _ = random_rows()
    raw = 40.0 * X.astype(float) + 1000.0
    with Workers(1) as workers:
        scaling = Scaling.measure(raw, workers)
        rows = scaling.apply_all(raw, workers)
        f = f_step(decoder_sums(rows, Z, workers))
    np.testing.assert_allclose(rows.mean(axis=0), 0, atol=1e-6)
    assert np.ptp(rows, axis=0).max() == pytest.approx(1.0)
    A, b = least_squares(raw, Z)
    np.testing.assert_allclose(f.in_units_of(scaling)(Z), Z @ A.T + b, rtol=1e-5)
