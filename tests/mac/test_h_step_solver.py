from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from auxbit.core.parallel import Workers
from auxbit.mac.h_step import (
    ArraySvmRows,
    SvmOptions,
    _conjugate_gradients,
    gram_solver,
    line_search,
    ridge_weights,
    solve_svms,
)
from auxbit.mac.loop import decoder_sums
from helpers.slow_truths import random_rows
from helpers.svm_cases import TIGHT, fit, flip, labelled_digits, svm_objective


@pytest.fixture(scope="module")
def digits():
    return labelled_digits()


class Counted(ArraySvmRows):
    """Counts the columns that go into products with X."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.columns, self.newton_steps = 0, 0

    def count(self, bits):
        self.columns += len(bits)
        return super().count(bits)

    def hessian_product(self, P, bits):
        assert P.shape[1] == len(bits)
        self.columns += 2 * len(bits)
        return super().hessian_product(P, bits)

    def aim(self, P, bits):
        self.columns += len(bits)
        self.newton_steps += 1
        return super().aim(P, bits)


def cold(X, Z, workers, options):
    """Rows, all bits, and what `solve_svms` needs to solve them from W = 0."""
    ones = np.c_[X, np.ones(len(X))].astype(float)
    rows, bits = Counted(X, Z, workers), np.arange(Z.shape[1])
    zero_norm = 2 * options.C * np.linalg.norm(ones.T @ (2.0 * Z - 1), axis=0)
    W = np.zeros((X.shape[1] + 1, Z.shape[1]))
    gram_solve = gram_solver(ones.T @ ones, options.C)
    return rows, (W, bits, rows.count(bits), gram_solve, zero_norm, options)


def test_a_bit_that_float32_cannot_take_further_is_left_alone(digits):
    X, Z = digits[0], flip(digits[1], 0.1)
    options = SvmOptions(tol=1e-7, max_newton=1000)
    with Workers(1) as workers:
        rows, problem = cold(X, Z, workers, options)
        W, _ = solve_svms(rows, *problem)
        assert rows.newton_steps < 100
        rows.note(W)
        gradient = W + 200 * rows.count(np.arange(4)).half_gradient
    assert (np.linalg.norm(gradient, axis=0) / problem[4]).max() < 1e-4


def test_bits_that_have_converged_cost_no_more_products(digits):
    X, Z = digits[0], digits[1].copy()
    Z[:, 1:] = flip(Z[:, 1:], 0.2)
    with Workers(1) as workers:
        alone = []
        for bit in range(4):
            rows, problem = cold(X, np.ascontiguousarray(Z[:, bit : bit + 1]), workers, SvmOptions())
            solve_svms(rows, *problem)
            alone.append(rows.columns)
        rows, problem = cold(X, Z, workers, SvmOptions())
        _, solved = solve_svms(rows, *problem)
    assert solved.all()
    # nearer to what each bit costs alone than to what all cost for as long as the slowest: rounding decides
    assert rows.columns < (sum(alone) + 4 * max(alone)) / 2


def test_a_step_of_the_loop_is_one_product_each_way_with_many_rows_and_a_few_more_with_few(digits):
    X, Z = digits[0], flip(digits[1], 0.1)
    many, few = SvmOptions().for_next_steps(6400, 64), SvmOptions().for_next_steps(6399, 64)
    products = {}
    with Workers(1) as workers:
        for options in (many, few):
            rows, problem = cold(X, Z, workers, options)
            solve_svms(rows, *problem)
            products[options] = rows.columns / 4
    assert products[many] == 2
    assert 2 < products[few] <= 2 + 2 * 4


def test_the_preconditioner_knows_how_rows_with_slack_spread_along_the_weights(digits):
    # the same solve from a warm start, with and without the rank-one correction
    X, Z = digits[0], flip(digits[1], 0.05)
    start = fit(X, flip(Z, 0.05, seed=2))
    W = np.vstack([start.weights, start.bias]).astype(float)
    costs = {}
    with Workers(1) as workers:
        for corrected in (True, False):
            rows, (_, bits, _, *rest) = cold(X, Z, workers, TIGHT)
            rows.note(W)
            sums = rows.count(bits)
            if not corrected:  # κ = 1
                rows_count = rows.count

                def count(bits, rows_count=rows_count):
                    sums = rows_count(bits)
                    return replace(sums, active_square=sums.square * sums.active / len(X))

                rows.count, sums = count, count(bits)
            rows.columns = 0
            solve_svms(rows, W, bits, sums, *rest)
            costs[corrected] = rows.columns
    assert costs[True] < costs[False]


def test_the_line_search_finds_the_minimum_along_a_step(digits):
    X, Z = digits[0], flip(digits[1], 0.1)
    rng = np.random.default_rng(0)
    W, step = rng.normal(size=(65, 4)), rng.normal(size=(65, 4))
    with Workers(1) as workers:
        rows, bits = ArraySvmRows(X, Z, workers), np.arange(4)
        rows.note(W)
        sums = rows.count(bits)
        gradient = W + 200 * sums.half_gradient
        step *= -np.sign((gradient * step).sum(axis=0))  # downhill
        size = line_search(rows, bits, W, step, gradient, sums.slack, 100.0)
    for bit in range(4):

        def along(t, bit=bit):
            w = W[:, bit] + t * step[:, bit]
            return svm_objective(X, Z[:, bit], w[:-1], w[-1])

        truth = minimize_scalar(along, bounds=(0, 10), method="bounded", options={"xatol": 1e-10})
        assert along(size[bit]) <= truth.fun + 1e-4 * (along(0) - truth.fun)


@settings(max_examples=30)
@given(st.integers(2, 40), st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**20))
def test_a_line_search_never_raises_the_objective(n, D, L, seed):
    X, Z, h, _ = random_rows(n, D, L, seed)
    W = np.vstack([h.weights, h.bias]).astype(float)
    step = np.random.default_rng(seed).normal(size=W.shape) * 10.0 ** np.random.default_rng(seed).integers(
        -4, 5
    )
    with Workers(1) as workers:
        rows, bits = ArraySvmRows(X, Z, workers), np.arange(L)
        rows.note(W)
        sums = rows.count(bits)
        gradient = W + 200 * sums.half_gradient
        size = line_search(rows, bits, W, step, gradient, sums.slack, 100.0)
        moved = W + size * step
        np.testing.assert_array_equal(rows.search(bits, W, step, gradient, sums.slack, 100.0), size)
        kept = rows.scores.copy()
        rows.note(moved)
    np.testing.assert_array_equal(kept, rows.scores)
    for bit in range(L):
        before = svm_objective(X, Z[:, bit], W[:-1, bit], W[-1, bit])
        assert svm_objective(X, Z[:, bit], moved[:-1, bit], moved[-1, bit]) <= before * (1 + 1e-5)


@pytest.mark.parametrize("C", [100.0, 1e6, 1e100])
def test_rows_of_low_rank_have_a_preconditioner_all_the_same(C):
    rng = np.random.RandomState(0)
    X = (rng.rand(300, 2) @ rng.rand(2, 30)).astype(np.float32)
    ones = np.c_[X, np.ones(300, np.float32)]
    solved = gram_solver((ones.T @ ones).astype(np.float64), C)(np.eye(31))
    assert np.isfinite(solved).all()
    assert np.linalg.eigvalsh((solved + solved.T) / 2).min() > 0


# what the solver stands on, each against a line of NumPy


def labelled(n=60, D=5, L=3, seed=0):
    """Rows with a feature of 1, and codes with one class rarer than the other."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D)).astype(np.float32)
    return X, np.c_[X, np.ones(n)].astype(float), (rng.random((n, L)) < [0.5, 0.9, 0.1]).astype(np.uint8)


@pytest.mark.parametrize("C", [1e-3, 0.1, 10.0])
def test_the_shared_factorisation_is_that_of_the_identity_and_the_gram_matrix(C):
    _, ones, Z = labelled()
    found = gram_solver(ones.T @ ones, C)(ones.T @ Z)
    np.testing.assert_allclose(
        found, np.linalg.solve(np.eye(6) + C * ones.T @ ones, ones.T @ Z), rtol=1e-3, atol=1e-6
    )


@pytest.mark.parametrize("C", [1e-3, 0.1, 10.0])
def test_ridge_weights_are_where_the_gradient_is_zero(C):
    X, ones, Z = labelled()
    with Workers(1) as workers:
        W = ridge_weights(ones.T @ ones, decoder_sums(X, Z, workers), C)
    y = 2.0 * Z - 1  # ½‖w‖² + C Σ(wᵀx − y)²
    np.testing.assert_allclose(W + 2 * C * ones.T @ (ones @ W - y), 0, atol=1e-3 * C * len(X))


def test_the_tolerance_refers_to_the_gradient_at_zero_times_the_share_of_the_rarer_class():
    X, ones, Z = labelled()
    with Workers(1) as workers:
        found = SvmOptions(C=7.0).zero_norm(decoder_sums(X, Z, workers))
    gradient = -2 * 7.0 * ones.T @ (2.0 * Z - 1)  # at W = 0 every row has slack
    rarer = np.minimum(Z.mean(axis=0), 1 - Z.mean(axis=0))
    assert (rarer < 0.5).all()
    np.testing.assert_allclose(found, np.linalg.norm(gradient, axis=0) * rarer, rtol=1e-5)


class Gradients:
    """The products of conjugate gradients for given matrices, one per bit; counts them."""

    def __init__(self, matrices):
        self.matrices, self.products = matrices, np.zeros(len(matrices), dtype=int)

    def hessian_product(self, P, bits):
        self.products[bits] += 1
        return np.stack([self.matrices[bit] @ p for bit, p in zip(bits, P.T, strict=True)], axis=1)


def conjugate_gradients(seed, **options):
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(4, 6, 6)) * 10.0 ** rng.uniform(-1, 1, size=(4, 1, 6))
    rows, gradient = Gradients(half @ half.transpose(0, 2, 1)), rng.normal(size=(6, 4))
    options = SvmOptions(C=0.5, **options)
    step = _conjugate_gradients(rows, np.arange(4), gradient, lambda B, columns: B.copy(), options)
    residual = (
        -gradient - step - np.stack([A @ s for A, s in zip(rows.matrices, step.T, strict=True)], axis=1)
    )
    return rows.products, np.linalg.norm(residual, axis=0) / np.linalg.norm(gradient, axis=0)


@given(st.integers(0, 2**20))
def test_conjugate_gradients_are_done_after_as_many_products_as_there_are_dimensions(seed):
    products, left = conjugate_gradients(seed, forcing=1e-4, max_cg=50)
    assert (products <= 7).all()  # 6, and one for rounding; steepest descent takes hundreds
    assert (left <= 1e-4).all()


@given(st.integers(0, 2**20), st.sampled_from([0.3, 0.1, 0.01]))
def test_conjugate_gradients_end_with_the_first_residual_that_is_small_enough(seed, forcing):
    products, left = conjugate_gradients(seed, forcing=forcing, max_cg=50)
    assert (left <= forcing).all()
    for bit, n in enumerate(products):
        before, still = (
            conjugate_gradients(seed, forcing=1e-9, max_cg=n - 1) if n > 1 else (products, np.ones(4))
        )
        assert still[bit] > forcing
        assert n == 1 or before[bit] == n - 1
