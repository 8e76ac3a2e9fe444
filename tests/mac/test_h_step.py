from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from auxbit.core.maps import LinearEncoder
from auxbit.core.parallel import BLOCK_ROWS, Workers
from auxbit.mac import steps
from auxbit.mac.h_step import SvmOptions, solve_svms
from helpers.slow_truths import random_rows
from helpers.svm_cases import fit, flip, labelled_digits, liblinear, objectives, rows_of, svm_objective


@pytest.fixture(scope="module")
def digits():
    return labelled_digits()


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

    monkeypatch.setattr(steps, "solve_svms", watched)
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


def test_bits_not_solved_to_tolerance_are_continued(digits, bits_solved):
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


def test_an_encoder_to_begin_with_keeps_its_codes_and_gets_the_scale_of_an_svm(digits):
    X = digits[0]
    h = LinearEncoder(
        1e-3 * np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32), np.zeros(4, "f")
    )
    with Workers(1) as workers:
        rows = rows_of(X, h(X), workers)
        adopted = rows.begin(h)
    np.testing.assert_array_equal(adopted(X), h(X))
    ratio = adopted.weights / h.weights
    np.testing.assert_allclose(ratio, np.broadcast_to(ratio[0], ratio.shape), rtol=1e-5)
    t = np.abs(adopted.scores(X).astype(float))
    best = [minimize_scalar(lambda a, t=t[:, bit]: np.square(1 - a * t).sum()).x for bit in range(4)]
    np.testing.assert_allclose(best, 1, rtol=1e-5)


def test_an_encoder_to_begin_with_without_scores_stays_as_it_is():
    X = np.zeros((5, 2), np.float32)
    h = LinearEncoder(np.ones((2, 3), np.float32), np.zeros(3, np.float32))
    with Workers(1) as workers:
        adopted = rows_of(X, h(X), workers).begin(h)
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


def test_refining_keeps_the_rough_weights_of_a_bit_whose_exact_svm_would_change_codes(digits):
    X, Z = digits
    rough = fit(X, Z)
    svm = SvmOptions(C=1e-5)  # so much regularised that its own SVMs misclassify
    with Workers(1) as workers:
        codes = rough(X)
        exact = rows_of(X, codes, workers, svm).h_step(None, exact=True)
        assert (exact(X) != codes).any()
        refined = rows_of(X, codes, workers, svm).refine(rough)
    np.testing.assert_array_equal(refined(X), codes)


def test_the_scores_noted_are_those_of_h_after_any_number_of_steps(digits):
    X, Z = digits
    rng = np.random.default_rng(0)
    with Workers(1) as workers:
        rows = rows_of(X, Z.copy(), workers)
        h = rows.h_step(None)
        for _ in range(20):  # steps added up would add up their rounding
            rows.Z[...] = np.where(rng.random(Z.shape) < 0.1, 1 - Z, Z)
            h = rows.h_step(h)
            np.testing.assert_array_equal(rows.rows.scores, h.scores(X))
        assert rows.z_step(h, rows.f_step(), 1e6).mismatched == 0
    np.testing.assert_array_equal(rows.Z, h(X))


def test_the_classifiers_are_the_same_to_the_last_bit_for_any_number_of_jobs():
    X, _, h, _ = random_rows(n=3 * BLOCK_ROWS + 9, D=8)
    Z = flip(h(X), 0.05)
    one, two = fit(X, Z, svm=SvmOptions(), n_jobs=1), fit(X, Z, svm=SvmOptions(), n_jobs=2)
    assert one.weights.tobytes() == two.weights.tobytes()
    assert one.bias.tobytes() == two.bias.tobytes()


def test_asking_again_without_a_warm_start_solves_again(digits):
    X, Z = digits
    with Workers(1) as workers:
        rows = rows_of(X, Z, workers)
        first, second = rows.h_step(None, exact=True), rows.h_step(None, exact=True)
    np.testing.assert_allclose(second.weights, first.weights, rtol=1e-3, atol=1e-3)
