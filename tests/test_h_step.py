from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from sklearn.datasets import load_digits
from sklearn.svm import LinearSVC

from auxbit.blocks import BLOCK_ROWS, Workers
from auxbit.mac import shards
from auxbit.mac.f_step import decoder_sums
from auxbit.mac.h_step import SvmOptions, gram_solver, line_search, solve_svms
from auxbit.mac.shards import Rows
from auxbit.mac.svm_rows import ArraySvmRows
from auxbit.mac.z_step import ZOptions
from auxbit.maps import LinearEncoder
from slow_truths import random_rows

TIGHT = SvmOptions(tol=1e-6, max_newton=100, max_cg=200, forcing=1e-3)


@pytest.fixture(scope="module")
def digits():
    X = load_digits().data[:800]
    X = ((X - X.mean(axis=0)) / 16).astype(np.float32)
    directions = np.random.default_rng(0).normal(size=(64, 4))
    return X, (X @ directions >= 0.2).astype(np.uint8)


def flip(Z, share, seed=1):
    return Z ^ (np.random.default_rng(seed).random(Z.shape) < share).astype(np.uint8)


def rows_of(X, Z, workers, svm=TIGHT):
    return Rows(X, Z, workers, svm=svm, z=ZOptions("alternating", start="warm"))


def fit(X, Z, h=None, svm=TIGHT, n_jobs=1):
    with Workers(n_jobs) as workers:
        return rows_of(X, Z, workers, svm).h_step(h, exact=True)


def svm_objective(X, z, w, bias, C=100.0):
    """½‖w‖² + ½ bias² + C Σ max(0, 1 − y(wᵀx + bias))², as LIBLINEAR regularises the bias too."""
    w, margin = w.astype(float), (2.0 * z - 1) * (X.astype(float) @ w.astype(float) + float(bias))
    return 0.5 * w @ w + 0.5 * float(bias) ** 2 + C * np.square(np.maximum(0, 1 - margin)).sum()


def objectives(X, Z, h, C=100.0):
    return [svm_objective(X, Z[:, i], h.weights[:, i], h.bias[i], C) for i in range(Z.shape[1])]


def liblinear(X, Z, C=100.0):
    """The slow truth, (D+1, L) with the biases last."""
    model = LinearSVC(dual=False, C=C, tol=1e-8, intercept_scaling=1, fit_intercept=True, max_iter=20_000)
    fitted = [model.fit(X.astype(float), z) and np.r_[model.coef_[0], model.intercept_] for z in Z.T]
    return np.array(fitted).T


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.3], ids=["separable", "noisy", "very noisy"])
@pytest.mark.parametrize("C", [100.0, 0.1])
def test_all_bits_together_reach_the_solutions_of_liblinear(digits, noise, C):
    X, Z = digits[0], flip(digits[1], noise)
    svm = SvmOptions(C=C, tol=1e-6, max_newton=100, max_cg=200, forcing=1e-3)
    h, truth = fit(X, Z, svm=svm), liblinear(X, Z, C)
    wanted = [svm_objective(X, z, w[:-1], w[-1], C) for z, w in zip(Z.T, truth.T, strict=True)]
    np.testing.assert_allclose(objectives(X, Z, h, C), wanted, rtol=1e-4)
    ours = np.vstack([h.weights, h.bias])
    assert np.linalg.norm(ours - truth, axis=0).max() < 0.01 * np.linalg.norm(truth, axis=0).min()


def test_an_exact_h_step_is_within_liblinears_usual_tolerance_of_the_optimum(digits):
    X, Z = digits[0], flip(digits[1], 0.02)
    with Workers(1) as workers:
        h = rows_of(X, Z, workers, SvmOptions()).h_step(None, exact=True)
    wanted = [svm_objective(X, z, w[:-1], w[-1]) for z, w in zip(Z.T, liblinear(X, Z).T, strict=True)]
    np.testing.assert_allclose(objectives(X, Z, h), wanted, rtol=2e-3)


@settings(max_examples=15)
@given(st.integers(5, 60), st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**20))
def test_small_problems_reach_the_solutions_of_liblinear(n, D, L, seed):
    X, Z, _, _ = random_rows(n, D, L, seed)
    Z[0], Z[1] = 0, 1
    wanted = [svm_objective(X, z, w[:-1], w[-1]) for z, w in zip(Z.T, liblinear(X, Z).T, strict=True)]
    np.testing.assert_allclose(objectives(X, Z, fit(X, Z)), wanted, rtol=1e-3)


def test_a_warm_start_reaches_the_solution_of_a_cold_one(digits):
    X, Z = digits
    elsewhere = fit(X, flip(Z, 0.2))
    cold, warm = fit(X, Z), fit(X, Z, h=elsewhere)
    np.testing.assert_allclose(objectives(X, Z, warm), objectives(X, Z, cold), rtol=1e-4)
    scale = np.abs(cold.weights).max()
    np.testing.assert_allclose(warm.weights, cold.weights, atol=0.02 * scale)
    np.testing.assert_allclose(warm.bias, cold.bias, atol=0.02 * scale)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_an_h_step_never_raises_a_bits_objective_above_its_warm_start(digits, noise):
    X, Z = digits[0], flip(digits[1], noise)
    with Workers(1) as workers:
        rows = rows_of(X, Z, workers, SvmOptions())
        h = rows.h_step(None)
        for mu in (0.01, 0.02, 0.04, 0.08):
            assert rows.z_step(h, rows.f_step(), mu).changed > 0
            after = rows.h_step(h)
            before = np.array(objectives(X, rows.Z, h))
            assert (np.array(objectives(X, rows.Z, after)) <= before * (1 + 1e-6)).all()
            h = after


def test_the_first_h_step_goes_to_a_hundredth_of_the_gradient_and_an_exact_one_further(digits):
    X, Z = digits[0], flip(digits[1], 0.05)
    ones = np.c_[X, np.ones(len(X))].astype(float)
    share = np.minimum(Z.mean(axis=0), 1 - Z.mean(axis=0))
    zero_norm = 200 * np.linalg.norm(ones.T @ (2.0 * Z - 1), axis=0) * share

    def residual(h):
        slack = np.maximum(0, 1 - (2.0 * Z - 1) * (X @ h.weights + h.bias))
        W = np.vstack([h.weights, h.bias])
        return np.linalg.norm(W - 200 * ones.T @ ((2.0 * Z - 1) * slack), axis=0) / zero_norm

    with Workers(1) as workers:
        first = rows_of(X, Z, workers, SvmOptions()).h_step(None)
        exact = rows_of(X, Z, workers, SvmOptions()).h_step(None, exact=True)
    assert residual(first).max() < 1.1e-2
    assert residual(exact).max() < 1.1e-3


@pytest.mark.parametrize("h", [None, "warm"])
def test_bits_with_one_class_get_no_weights_and_a_bias_of_one_or_minus_one(digits, h):
    X, Z = digits
    mixed = fit(X, Z)
    Z = Z.copy()
    Z[:, 1], Z[:, 2] = 0, 1
    after = fit(X, Z, h=mixed if h else None)
    assert (after.weights[:, 1:3] == 0).all()
    assert after.bias[1:3].tolist() == [-1, 1]
    np.testing.assert_allclose(objectives(X, Z, after)[::3], objectives(X, Z, mixed)[::3], rtol=1e-4)
    assert (after(X)[:, 1:3] == [0, 1]).all()


def test_codes_with_no_mixed_bit_need_no_svm_at_all():
    X, Z, _, _ = random_rows()
    h = fit(X, np.ones_like(Z))
    assert (h.weights == 0).all()
    assert (h.bias == 1).all()


@pytest.fixture
def bits_solved(monkeypatch):
    """How many bits each problem had that was solved, in order."""
    seen = []

    def watched(rows, W, bits, *rest):
        seen.append(len(bits))
        return solve_svms(rows, W, bits, *rest)

    monkeypatch.setattr(shards, "solve_svms", watched)
    return seen


def test_bits_solved_already_are_skipped_until_their_codes_change(digits, bits_solved):
    X, Z = digits[0], digits[1].copy()
    with Workers(1) as workers:
        rows = rows_of(X, Z, workers)
        h = rows.h_step(None, exact=True)
        again = rows.h_step(h)
        assert bits_solved == [4]
        assert again.weights.tobytes() == h.weights.tobytes()
        f = rows.f_step()
        rows.Z[:, 2] = h(X)[:, 2]
        codes = rows.Z.copy()
        report = rows.z_step(h, f, 1e-3)
        changed = (codes != rows.Z).any(axis=0)
        assert report.changed > 0
        after = rows.h_step(h)
    assert bits_solved == [4, changed.sum()]
    assert after.weights[:, ~changed].tobytes() == h.weights[:, ~changed].tobytes()
    assert (after.weights[:, changed] != h.weights[:, changed]).any(axis=0).all()


def test_only_the_bits_that_a_z_step_changes_are_solved_again(digits, bits_solved):
    X, Z = digits[0], digits[1].copy()
    with Workers(1) as workers:
        rows = rows_of(X, Z, workers)
        h = rows.h_step(None, exact=True)
        target = h(X)
        target[:50, 1] ^= 1
        ones = LinearEncoder(np.zeros_like(h.weights), np.ones(4, np.float32))
        f = rows.f_step()
        Z[:] = target
        rows.z_step(h, f, 1e6)  # with a huge μ, to the codes of the h it is given
        np.testing.assert_array_equal(rows.Z, h(X))
        rows.h_step(h)
        assert bits_solved == [4, 1]
        rows.z_step(ones, f, 1e6)
        assert (rows.Z == 1).all()
        after = rows.h_step(h)
    assert bits_solved == [4, 1]
    assert (after.weights == 0).all()


def test_bits_not_solved_to_tolerance_are_gone_on_with(digits, bits_solved):
    X, Z = digits[0], flip(digits[1], 0.1)
    with Workers(1) as workers:
        rows = rows_of(X, Z, workers, SvmOptions(tol=3e-4))
        h = rows.h_step(None)
        rows.z_step(h, rows.f_step(), 1e-4)
        for _ in range(2):
            h = rows.h_step(h)
        assert bits_solved == [4, 4, 4]
        h = rows.h_step(h, exact=True)
        rows.h_step(h)
    assert bits_solved == [4, 4, 4, 4]


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
    return rows, (W, bits, rows.count(bits), gram_solver(ones.T @ ones, options.C), zero_norm, options)


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
    assert rows.columns < 4 * max(alone)
    assert rows.columns == pytest.approx(sum(alone), rel=0.1)


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
            rows, (_, bits, _, gram_solve, zero_norm, options) = cold(X, Z, workers, TIGHT)
            rows.note(W)
            sums = rows.count(bits)
            if not corrected:  # κ = 1
                rows_count = rows.count

                def count(bits, rows_count=rows_count):
                    sums = rows_count(bits)
                    return replace(sums, active_square=sums.square * sums.active / len(X))

                rows.count, sums = count, count(bits)
            rows.columns = 0
            solve_svms(rows, W, bits, sums, gram_solve, zero_norm, options)
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
        moved, kept = W + size * step, rows.scores.copy()
        rows.note(moved)
    np.testing.assert_allclose(kept, rows.scores, rtol=1e-4, atol=1e-4 * (1 + np.abs(rows.scores).max()))
    for bit in range(L):
        before = svm_objective(X, Z[:, bit], W[:-1, bit], W[-1, bit])
        assert svm_objective(X, Z[:, bit], moved[:-1, bit], moved[-1, bit]) <= before * (1 + 1e-5)


@pytest.mark.parametrize("bits", [[0, 1, 2, 3], [1, 3], [2]])
def test_products_for_some_bits_are_those_of_their_columns(digits, bits):
    X, Z = digits[0], flip(digits[1], 0.1)
    rng, bits = np.random.default_rng(0), np.array(bits)
    W, P = rng.normal(size=(65, 4)), rng.normal(size=(65, len(bits)))
    ones = np.c_[X, np.ones(len(X))].astype(float)
    with Workers(1) as workers:
        rows = ArraySvmRows(X, Z, workers)
        rows.note(W)
        sums = rows.count(np.arange(4))
        some = rows.count(bits)
        hessian = rows.hessian_product(P, bits)
        squares = rows.aim(P, bits)
        size = rng.random(len(bits))
        along = rows.along(size, bits)
        rows.advance(size, bits)
    for name in ("slack", "active", "active_square", "square"):
        np.testing.assert_allclose(getattr(some, name), getattr(sums, name)[bits], rtol=1e-6)
    np.testing.assert_allclose(some.half_gradient, sums.half_gradient[:, bits], rtol=1e-4, atol=1e-3)
    y, scores, aimed = 2.0 * Z - 1, ones @ W, ones @ P
    active = (y * scores < 1)[:, bits]
    np.testing.assert_allclose(hessian, ones.T @ (active * aimed), rtol=1e-3, atol=0.05)
    np.testing.assert_allclose(squares, (active * aimed**2).sum(axis=0), rtol=1e-4)
    after = scores.copy()
    after[:, bits] += size * aimed
    slack = np.maximum(0, 1 - y * after)[:, bits]
    np.testing.assert_allclose(along[0], np.square(slack).sum(axis=0), rtol=1e-4)
    np.testing.assert_allclose(along[1], -(y[:, bits] * slack * aimed).sum(axis=0), rtol=1e-3, atol=0.05)
    np.testing.assert_allclose(along[2], ((slack > 0) * aimed**2).sum(axis=0), rtol=1e-3)
    np.testing.assert_allclose(rows.scores, after, rtol=1e-3, atol=1e-3)


def test_counting_labels_gives_the_sums_of_both_steps(digits):
    X, Z = digits[0], flip(digits[1], 0.1)
    with Workers(1) as workers:
        rows = ArraySvmRows(X, Z, workers)
        rows.note(np.random.default_rng(0).normal(size=(65, 4)))
        sums, ZZ, XZ = rows.count_labels()
        alone, truth = rows.count(np.arange(4)), decoder_sums(X, Z, workers)
    np.testing.assert_array_equal(ZZ, truth.ZZ)
    np.testing.assert_allclose(XZ.T, truth.ZX, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(sums.half_gradient, alone.half_gradient, rtol=1e-4, atol=1e-2)
    np.testing.assert_array_equal(sums.slack, alone.slack)


def test_an_adopted_encoder_keeps_its_codes_and_gets_the_scale_of_an_svm(digits):
    X = digits[0]
    h = LinearEncoder(
        1e-3 * np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32), np.zeros(4, "f")
    )
    with Workers(1) as workers:
        rows = rows_of(X, h(X), workers)
        adopted = rows.adopt(h)
    np.testing.assert_array_equal(adopted(X), h(X))
    ratio = adopted.weights / h.weights
    np.testing.assert_allclose(ratio, np.broadcast_to(ratio[0], ratio.shape), rtol=1e-5)
    t = np.abs(adopted.scores(X).astype(float))
    best = [minimize_scalar(lambda a, t=t[:, bit]: np.square(1 - a * t).sum()).x for bit in range(4)]
    np.testing.assert_allclose(best, 1, rtol=1e-5)


def test_an_adopted_encoder_without_scores_stays_as_it_is():
    X = np.zeros((5, 2), np.float32)
    h = LinearEncoder(np.ones((2, 3), np.float32), np.zeros(3, np.float32))
    with Workers(1) as workers:
        adopted = rows_of(X, h(X), workers).adopt(h)
    np.testing.assert_array_equal(adopted.weights, h.weights)


def test_refining_solves_to_tolerance_and_leaves_the_codes_alone(digits):
    X, Z = digits
    rough = fit(X, Z, svm=SvmOptions(tol=0.3, forcing=0.5))
    with Workers(1) as workers:
        codes = rough(X)
        rows = rows_of(X, codes, workers, SvmOptions())
        refined = rows.refine(rough)
    np.testing.assert_array_equal(refined(X), codes)
    before, after = objectives(X, codes, rough), objectives(X, codes, refined)
    assert (np.array(after) <= before).all()
    assert sum(after) < sum(before)


def test_the_classifiers_are_the_same_to_the_last_bit_for_any_number_of_jobs():
    X, _, h, _ = random_rows(n=3 * BLOCK_ROWS + 9, D=8)
    Z = flip(h(X), 0.05)
    one, two = fit(X, Z, svm=SvmOptions(), n_jobs=1), fit(X, Z, svm=SvmOptions(), n_jobs=2)
    assert one.weights.tobytes() == two.weights.tobytes()
    assert one.bias.tobytes() == two.bias.tobytes()


def test_the_gradient_of_the_rows_is_that_of_their_slack():
    X, Z, h, _ = random_rows(n=200)
    W = np.vstack([h.weights, h.bias]).astype(float)
    bits = np.arange(Z.shape[1])
    with Workers(1) as workers:
        rows = ArraySvmRows(X, Z, workers)
        rows.note(W)
        sums = rows.count(bits)
        step = 1e-3 * np.random.default_rng(0).normal(size=W.shape)
        change = rows.hessian_product(step, bits)
        rows.note(W + step)
        moved = rows.count(bits).half_gradient
    scores = X @ W[:-1] + W[-1]
    margins = (2.0 * Z - 1) * scores
    np.testing.assert_allclose(sums.slack, np.square(np.maximum(0, 1 - margins)).sum(axis=0), rtol=1e-5)
    np.testing.assert_array_equal(sums.active, (margins < 1).sum(axis=0))
    np.testing.assert_allclose(sums.square, np.square(scores).sum(axis=0), rtol=1e-5)
    np.testing.assert_allclose(sums.active_square, (np.square(scores) * (margins < 1)).sum(axis=0), rtol=1e-5)
    ones = np.c_[X, np.ones(len(X))]
    truth = ones.T @ (np.minimum(0, margins - 1) * (2.0 * Z - 1))
    np.testing.assert_allclose(sums.half_gradient, truth, atol=1e-3)
    np.testing.assert_allclose(moved - sums.half_gradient, change, atol=0.02 * np.abs(change).max())


def test_asking_again_without_a_warm_start_solves_again(digits):
    X, Z = digits
    with Workers(1) as workers:
        rows = rows_of(X, Z, workers)
        first, second = rows.h_step(None, exact=True), rows.h_step(None, exact=True)
    np.testing.assert_allclose(second.weights, first.weights, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("C", [100.0, 1e6, 1e100])
def test_rows_of_low_rank_have_a_preconditioner_all_the_same(C):
    rng = np.random.RandomState(0)
    X = (rng.rand(300, 2) @ rng.rand(2, 30)).astype(np.float32)
    ones = np.c_[X, np.ones(300, np.float32)]
    solved = gram_solver((ones.T @ ones).astype(np.float64), C)(np.eye(31))
    assert np.isfinite(solved).all()
    assert np.linalg.eigvalsh((solved + solved.T) / 2).min() > 0
