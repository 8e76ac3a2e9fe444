from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import lsq_linear

from auxbit.mac.z_step import ZProblem, passes, thresholds
from helpers.slow_truths import DECODERS, all_codes, make_decoder, make_points, points


def half_gradients(case):
    """v = Gz − c of every code for every point, (n, 2^L, L)."""
    codes = all_codes(case.H.shape[1])
    return codes, (codes @ case.problem.G)[None] - case.problem.linear_terms(case.Y, case.H)[:, None]


def energies_of_all(case):
    codes = all_codes(case.H.shape[1])
    return np.array([case.energies(np.tile(code, (len(case.H), 1))) for code in codes]).T


def make_problem(kind, D, L, mu, seed):
    return ZProblem.reduce(make_decoder(kind, D, L, np.random.default_rng(seed)), mu)


def check_certified_codes_are_global(case):
    """Returns how many codes each of the two sufficient conditions certified."""
    limits, (codes, V) = case.problem.thresholds, half_gradients(case)
    certified = np.zeros(2, dtype=int)
    for values, vs, rounding in zip(energies_of_all(case), V, case.rounding, strict=True):
        for value, z, v in zip(values, codes, vs, strict=True):
            yes = [passes(z, v, limits.smallest_eigenvalue), passes(z, v, limits.row_gap)]
            certified += yes
            if any(yes):
                assert value <= values.min() + rounding
    return certified


@given(points(st.integers(1, 7)))
def test_a_certified_code_is_a_global_minimiser(case):
    check_certified_codes_are_global(case)


@pytest.mark.parametrize("kind", DECODERS)
def test_both_certificates_are_given_for_every_kind_of_decoder(kind):
    certified = np.zeros(2, dtype=int)
    for seed in range(8):
        for mu in (1e-8, 0.03, 1.0, 100.0):
            certified += check_certified_codes_are_global(make_points(kind, 6, 5, mu, seed))
    assert (certified > 20).all()


@settings(max_examples=100)
@given(
    st.sampled_from(DECODERS),
    st.integers(1, 9),
    st.integers(1, 9),
    st.floats(-8, 4),
    st.sampled_from(["smallest_eigenvalue", "row_gap"]),
    st.integers(0, 2**20),
)
def test_a_code_at_the_very_threshold_is_global(kind, D, L, power, name, seed):
    problem = make_problem(kind, D, L, 10.0**power, seed)
    rng = np.random.default_rng(seed)
    G, threshold = problem.G, getattr(problem.thresholds, name)
    z = rng.integers(0, 2, L).astype(np.uint8)
    margin = np.where(rng.random(L) < 0.7, 0.0, rng.exponential(size=L) * np.trace(G))
    margin += 1e-13 * np.abs(G).sum()
    v = (2.0 * z - 1) * (threshold - margin)
    assert passes(z, v, threshold)
    # e(z') − e(z) = d'Gd + 2v'd for d = z' − z
    d = all_codes(L) - z.astype(float)
    rises = np.einsum("ki,ij,kj->k", d, G, d) + 2 * d @ v
    assert rises.min() >= -1e-11 * np.abs(G).sum()


@given(points(st.integers(1, 8)))
def test_the_necessary_condition_holds_at_every_global_minimiser(case):
    limits, (codes, V) = case.problem.thresholds, half_gradients(case)
    for values, vs, rounding in zip(energies_of_all(case), V, case.rounding, strict=True):
        best = values.argmin()
        assert passes(codes[best], vs[best], limits.diagonal + rounding)


@given(points(st.integers(1, 7)))
def test_the_necessary_condition_fails_where_one_flip_helps(case):
    limits, (codes, V) = case.problem.thresholds, half_gradients(case)
    L = codes.shape[1]
    place = {tuple(code): i for i, code in enumerate(codes.tolist())}
    for values, vs, rounding in zip(energies_of_all(case), V, case.rounding, strict=True):
        for i, z in enumerate(codes):
            flips = [values[place[tuple((z ^ (np.arange(L) == bit)).tolist())]] for bit in range(L)]
            if min(flips) < values[i] - 4 * rounding:
                assert not passes(z, vs[i], limits.diagonal)


@pytest.mark.parametrize("mu", [0.01, 1.0])
def test_with_an_orthogonal_decoder_every_global_minimiser_is_certified(mu):
    for seed in range(20):
        case = make_points("orthogonal", 9, 6, mu, seed)
        codes, V = half_gradients(case)
        limits = case.problem.thresholds
        for values, vs in zip(energies_of_all(case), V, strict=True):
            best = values.argmin()
            assert passes(codes[best], vs[best], limits.smallest_eigenvalue)
            assert passes(codes[best], vs[best], limits.row_gap)
            worst = values.argmax()
            assert not passes(codes[worst], vs[worst], limits.smallest_eigenvalue)


def test_the_thresholds_are_those_of_the_appendix():
    G = np.array([[4.0, 1.0, -0.5], [1.0, 3.0, 0.0], [-0.5, 0.0, 2.0]])
    limits = thresholds(G)
    assert limits.smallest_eigenvalue == pytest.approx([np.linalg.eigvalsh(G / 2)[0]] * 3)
    assert limits.row_gap == pytest.approx([2 - 0.75, 1.5 - 0.5, 1 - 0.25])
    assert limits.diagonal == pytest.approx([2, 1.5, 1])


def test_v_is_the_left_side_of_the_appendix_in_plus_minus_one_variables():
    case = make_points("random", 7, 5, 0.3, seed=0)
    codes, V = half_gradients(case)
    G, C = case.problem.G, case.problem.linear_terms(case.Y, case.H)
    Q, b = G / 2, G.sum(axis=1) / 2 - C  # e(z) = ½s'Qs + b's + constant with z = (s + 1)/2
    S = 2.0 * codes - 1
    values = 0.5 * np.einsum("ki,ij,kj->k", S, Q, S) + (b @ S.T)
    np.testing.assert_allclose(np.ptp(values - energies_of_all(case), axis=1), 0, atol=1e-9)
    np.testing.assert_allclose(S @ Q + b[:, None], V, atol=1e-9)


@settings(max_examples=100)
@given(points(st.integers(1, 8), st.floats(-2, 3).map(lambda power: 10.0**power)))
def test_the_appendix_conditions_on_the_relaxed_solution_imply_ours(case):
    check_relaxed_conditions(case)


def test_the_appendix_conditions_on_the_relaxed_solution_are_met_at_times():
    met = sum(
        check_relaxed_conditions(make_points(kind, 8, 5, mu, seed))
        for kind in DECODERS
        for mu in (0.1, 1.0, 10.0)
        for seed in range(3)
    )
    assert (met > 20).all()


def check_relaxed_conditions(case):
    """Returns how many points met each of the appendix's two conditions."""
    problem, L = case.problem, case.H.shape[1]
    G, limits, met = problem.G, problem.thresholds, np.zeros(2, dtype=int)
    stacked = np.vstack([problem.R, np.sqrt(case.mu) * np.eye(L)])
    slack = 1e-8 * np.abs(G).sum()
    for y, h, c in zip(case.Y, case.H, problem.linear_terms(case.Y, case.H), strict=True):
        target = np.r_[y, np.sqrt(case.mu) * h]
        x = 2 * lsq_linear(stacked, target, (0, 1), method="bvls", tol=1e-15).x - 1
        code = (x >= 0).astype(np.uint8)
        s, v = 2.0 * code - 1, G @ code - c
        if (np.abs(x) == 1).all():  # the relaxed solution is binary
            met[0] += 1
            assert passes(code, v, np.zeros(L) + slack)
        if (s * (G / 2 @ (s - x)) <= limits.smallest_eigenvalue).all():
            met[1] += 1
            assert passes(code, v, limits.smallest_eigenvalue + slack)
    return met
