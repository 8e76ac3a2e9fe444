from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auxbit.mac.z_step import (
    CONDITIONS,
    Conditions,
    ZProblem,
    is_definite,
    is_proven,
    may_be_global,
    passes,
    thresholds,
)
from helpers.slow_truths import (
    DECODERS,
    all_codes,
    make_decoder,
    make_points,
    points,
    relaxed_minimiser,
)

SUFFICIENT = ("beck", "jeyakumar", "xia")


def linear_terms(case):
    return case.problem.linear_terms(case.Y, case.H)


def half_gradients(case):
    """v = Gz − c of every code for every point, (n, 2^L, L)."""
    codes = all_codes(case.H.shape[1])
    return codes, (codes @ case.problem.G)[None] - linear_terms(case)[:, None]


def energies_of_all(case):
    codes = all_codes(case.H.shape[1])
    return np.array([case.energies(np.tile(code, (len(case.H), 1))) for code in codes]).T


def make_problem(kind, D, L, mu, seed):
    return ZProblem.reduce(make_decoder(kind, D, L, np.random.default_rng(seed)), mu)


def sufficient(name, G, z, v):
    """Whether one condition by itself proves a code."""
    return is_proven(G, z, v, Conditions.of(G, [slice(None)], [name]), 0, len(z))


def check_certified_codes_are_global(case):
    """Returns how many codes each of the sufficient conditions certified."""
    G, (codes, V) = case.problem.G, half_gradients(case)
    certified = np.zeros(len(SUFFICIENT), dtype=int)
    for values, vs, rounding in zip(energies_of_all(case), V, case.rounding, strict=True):
        for value, z, v in zip(values, codes, vs, strict=True):
            yes = [sufficient(name, G, z, v) for name in SUFFICIENT]
            certified += yes
            if any(yes):
                assert value <= values.min() + rounding
    return certified


@given(points(st.integers(1, 7)))
def test_a_certified_code_is_a_global_minimiser(case):
    check_certified_codes_are_global(case)


@pytest.mark.parametrize("kind", DECODERS)
def test_every_certificate_is_given_for_every_kind_of_decoder(kind):
    certified = np.zeros(len(SUFFICIENT), dtype=int)
    for seed in range(8):
        for mu in (1e-8, 0.03, 1.0, 100.0):
            certified += check_certified_codes_are_global(make_points(kind, 6, 5, mu, seed))
    assert (certified > 20).all()
    assert certified[2] >= certified[:2].max()


def slopes(z, v):
    """s_i v_i."""
    return np.where(z, v, -v)


@given(points(st.integers(1, 8)), st.integers(0, 2**20))
def test_xias_condition_is_that_a_matrix_is_positive_definite(case, seed):
    G, rng = case.problem.G, np.random.default_rng(seed)
    limits = thresholds(G)
    for z, v in zip(case.Z, case.Z @ G - linear_terms(case), strict=True):
        for scale in (1.0, rng.random(), 0.0):
            smallest = np.linalg.eigvalsh(G / 2 - np.diag(slopes(z, v) * scale))[0]
            if abs(smallest - limits.slack) > 1e-3 * limits.slack + 1e-14 * np.abs(v).max():
                assert is_definite(G, z, v * scale, limits.slack) == (smallest > limits.slack)


@given(points(st.integers(1, 8)))
def test_xias_condition_is_tighter_than_the_others(case):
    G, (codes, V) = case.problem.G, half_gradients(case)
    for vs in V:
        for z, v in zip(codes, vs, strict=True):
            if sufficient("beck", G, z, v) or sufficient("jeyakumar", G, z, v):
                assert is_definite(G, z, v, 0.0)


def test_xias_condition_proves_codes_that_the_others_do_not():
    case = make_points("random", 20, 12, 1.0, seed=3, n=400)
    counts = {name: case.solve("exact", theorem_4_3=False, optimality=[name])[1] for name in CONDITIONS}
    assert counts["necessary"].certified == 0
    assert 0 < 10 * counts["beck"].certified < counts["xia"].certified < 400
    every = case.solve("exact", theorem_4_3=False, optimality=True)[1]
    assert every.certified == counts["xia"].certified
    assert len({round(count.energy, 6) for count in counts.values()}) == 1


@settings(max_examples=60)
@given(points(st.integers(2, 9)), st.data())
def test_a_group_is_proven_as_if_its_bits_were_the_whole_problem(case, data):
    L = case.H.shape[1]
    first = data.draw(st.integers(0, L - 1))
    own = slice(first, data.draw(st.integers(first + 1, L)))
    rest = [each for each in (slice(0, first), slice(own.stop, L)) if each.stop > each.start]
    names = data.draw(st.lists(st.sampled_from(CONDITIONS), unique=True))
    G, C = case.problem.G, linear_terms(case)
    whole = Conditions.of(G, sorted([own, *rest], key=lambda each: each.start), names)
    part = Conditions.of(G[own, own], [slice(None)], names)
    for z, v in zip(case.Z, case.Z @ G - C, strict=True):
        alone = is_proven(np.ascontiguousarray(G[own, own]), z[own], v[own], part, 0, own.stop - own.start)
        if whole.slack == part.slack or "xia" not in names:
            assert is_proven(G, z, v, whole, own.start, own.stop) == alone


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
    G, threshold = problem.G, getattr(thresholds(problem.G), name)
    z = rng.integers(0, 2, L).astype(np.uint8)
    margin = np.where(rng.random(L) < 0.7, 0.0, rng.exponential(size=L) * np.trace(G))
    margin += 1e-13 * np.abs(G).sum()
    v = (2.0 * z - 1) * (threshold - margin)
    assert passes(z, v, threshold)
    # e(z') − e(z) = d'Gd + 2v'd for d = z' − z
    d = all_codes(L) - z.astype(float)
    rises = np.einsum("ki,ij,kj->k", d, G, d) + 2 * d @ v
    assert rises.min() >= -1e-11 * np.abs(G).sum()


def margin_of_necessity(G, z, v):
    """By how much e rises at least, half of it, if one bit is flipped or all are."""
    Q, s, t = G / 2, 2.0 * z - 1, slopes(z, v)
    return min((Q.diagonal() - t).min(), s @ Q @ s - t.sum())


@given(points(st.integers(1, 8)))
def test_the_necessary_conditions_hold_at_every_global_minimiser(case):
    G, (codes, V) = case.problem.G, half_gradients(case)
    for values, vs, rounding in zip(energies_of_all(case), V, case.rounding, strict=True):
        z, v = codes[values.argmin()], vs[values.argmin()]
        assert passes(z, v, thresholds(G).diagonal + rounding)
        # refused by rounding alone, where another code is as good
        assert may_be_global(G, z, v) or margin_of_necessity(G, z, v) >= -4 * rounding


@given(points(st.integers(1, 7)))
def test_the_necessary_conditions_fail_where_one_flip_helps_or_that_of_all(case):
    G, (codes, V) = case.problem.G, half_gradients(case)
    L = codes.shape[1]
    place = {tuple(code): i for i, code in enumerate(codes.tolist())}
    for values, vs, rounding in zip(energies_of_all(case), V, case.rounding, strict=True):
        for i, z in enumerate(codes):
            flips = [values[place[tuple((z ^ (np.arange(L) == bit)).tolist())]] for bit in range(L)]
            if min(flips) < values[i] - 4 * rounding:
                assert not passes(z, vs[i], thresholds(G).diagonal)
            opposite = values[place[tuple((1 - z).tolist())]]
            if min(*flips, opposite) < values[i] - 4 * rounding:
                assert not may_be_global(G, z, vs[i])
            if min(*flips, opposite) > values[i] + 4 * rounding:
                assert may_be_global(G, z, vs[i])


def test_a_code_that_fails_a_necessary_condition_is_not_tested_further():
    G, z = np.eye(3), np.array([1, 0, 1], dtype=np.uint8)
    v = np.where(z, 1.0, -1.0) * np.array([-5.0, 0.6, -5.0])  # the second bit should flip
    generous = Conditions(True, np.full((1, 3), 9.0), True, 0.0)
    assert not is_proven(G, z, v, generous, 0, 3)
    assert is_proven(G, z, v, generous._replace(necessary=False), 0, 3)


@pytest.mark.parametrize("mu", [0.01, 1.0])
def test_with_an_orthogonal_decoder_every_global_minimiser_is_certified(mu):
    for seed in range(20):
        case = make_points("orthogonal", 9, 6, mu, seed)
        codes, V = half_gradients(case)
        limits = thresholds(case.problem.G)
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
    G, limits, met = problem.G, thresholds(problem.G), np.zeros(2, dtype=int)
    slack = 1e-8 * np.abs(G).sum()
    for y, h, c in zip(case.Y, case.H, linear_terms(case), strict=True):
        x = 2 * relaxed_minimiser(problem, y, h) - 1
        code = (x >= 0).astype(np.uint8)
        s, v = 2.0 * code - 1, G @ code - c
        if (np.abs(x) == 1).all():  # the relaxed solution is binary
            met[0] += 1
            assert passes(code, v, np.zeros(L) + slack)
        if (s * (G / 2 @ (s - x)) <= limits.smallest_eigenvalue).all():
            met[1] += 1
            assert passes(code, v, limits.smallest_eigenvalue + slack)
    return met
