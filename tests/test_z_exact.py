from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slow_truths import DECODERS, brute_force, make_points, point_energy, points

SWITCHES = ("theorem2", "optimality", "running_bound", "incremental")
COMBINATIONS = [dict(zip(SWITCHES, on, strict=True)) for on in itertools.product([True, False], repeat=4)]
EXACT = [{"theorem2": a, "optimality": b} for a in (True, False) for b in (True, False)]


def check_global(case, Z):
    """The codes are as good as the best of all 2^L."""
    excess = case.energies(Z) - brute_force(case.problem, case.Y, case.H)
    assert (excess <= 1e-11 * case.energies(Z) + case.rounding).all()


@pytest.mark.parametrize("solver", ["exact", "enumerate"])
@settings(max_examples=150)
@given(case=points(st.integers(1, 9)))
@example(case=make_points("zero", 3, 5, 1e-8, 0))
@example(case=make_points("zero", 3, 5, 1e4, 0))
@example(case=make_points("low rank", 2, 9, 1e-8, 0))
def test_exact_solvers_equal_brute_force(solver, case):
    for switches in ({}, {"theorem2": False, "optimality": False}):
        Z, counts = case.solve(solver, **switches)
        check_global(case, Z)
        assert counts.unproven == 0


@pytest.mark.parametrize("solver", ["exact", "enumerate"])
@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize(("D", "mu"), [(20, 0.01), (20, 1.0), (5, 1e-8)])
def test_exact_solvers_equal_brute_force_at_14_bits(solver, kind, D, mu):
    case = make_points(kind, D, 14, mu, seed=D, n=3)
    check_global(case, case.solve(solver)[0])
    check_global(case, case.solve(solver, theorem2=False, optimality=False)[0])


@settings(max_examples=25)
@given(points(st.integers(1, 5)))
def test_exact_solvers_equal_brute_force_on_the_problem_before_its_reduction(case):
    codes = list(itertools.product((0, 1), repeat=case.H.shape[1]))
    Z = {solver: case.solve(solver)[0] for solver in ("exact", "enumerate")}
    for i, (x, h) in enumerate(zip(case.X, case.H, strict=True)):
        best = min(point_energy(x, case.f, h, case.mu, z) for z in codes)
        float32_loses = 1e-6 * (np.square(x - case.f.b).sum() + np.square(case.f.A).sum())
        for found in Z.values():
            assert point_energy(x, case.f, h, case.mu, found[i]) <= best + float32_loses


def all_counts(case, solver, combinations):
    counts = {}
    for switches in combinations:
        Z, counts[tuple(switches.values())] = case.solve(solver, **switches)
        check_global(case, Z)
        total = counts[tuple(switches.values())].energy
        assert total == pytest.approx(case.energies(Z).sum(), rel=1e-9, abs=10 * case.rounding.sum())
    return counts


def check_switching_off_saves_nothing(counts):
    """Every switch, with the others as they may be: off evaluates at least as much as on."""
    for on, off in itertools.permutations(counts, 2):
        if sum(on) == sum(off) + 1 and all(a >= b for a, b in zip(on, off, strict=True)):
            assert counts[off].codes_evaluated >= counts[on].codes_evaluated
            assert counts[off].dimensions_evaluated >= counts[on].dimensions_evaluated


@settings(max_examples=60)
@given(points(st.integers(1, 7)))
def test_no_switch_of_enumeration_changes_the_energy_or_costs_evaluations(case):
    counts = all_counts(case, "enumerate", COMBINATIONS)
    check_switching_off_saves_nothing(counts)
    n, L = case.H.shape
    everything = counts[False, False, False, False]
    assert everything.codes_evaluated == n * 2**L
    assert everything.dimensions_evaluated == n * 2**L * min(L, case.X.shape[1])
    for on, count in counts.items():
        assert on[0] or count.pruned == 0
        assert on[1] or count.certified == 0


@settings(max_examples=60)
@given(points(st.integers(1, 9)))
def test_no_switch_of_branch_and_bound_changes_the_energy_or_costs_nodes(case):
    counts = all_counts(case, "exact", EXACT)
    check_switching_off_saves_nothing(counts)
    for (theorem2, optimality), count in counts.items():
        assert theorem2 or count.pruned == 0
        assert optimality or count.certified == 0


@pytest.mark.parametrize("switch", SWITCHES)
def test_each_acceleration_of_enumeration_is_one(switch):
    case = make_points("random", 12, 8, 1.0, seed=5, n=40)
    on, off = case.solve("enumerate")[1], case.solve("enumerate", **{switch: False})[1]
    if switch == "incremental":
        assert off.codes_evaluated == on.codes_evaluated
        # without it, every dimension of every code is looked at
        assert off.dimensions_evaluated == 8 * off.codes_evaluated > on.dimensions_evaluated
    else:
        assert off.codes_evaluated > on.codes_evaluated


def test_the_running_bound_stops_at_the_distance_of_theorem_2():
    # with μ just above e(h)/2, no code at distance 2 or more is looked at
    case = make_points("random", 6, 7, 1.0, seed=0, n=1)
    case.Z = case.H.copy()
    case.mu = float(case.energies(case.H)[0]) / 1.999
    only = {"theorem2": False, "optimality": False, "incremental": False}
    _, counts = case.solve("enumerate", **only)
    assert counts.codes_evaluated <= 1 + 7
    assert case.solve("enumerate", running_bound=False, **only)[1].codes_evaluated == 2**7


def test_branch_and_bound_visits_a_small_part_of_the_tree():
    case = make_points("random", 40, 14, 0.01, seed=0, n=50)
    counts = case.solve("exact", theorem2=False, optimality=False)[1]
    assert 14 * 50 <= counts.codes_evaluated < 0.1 * 50 * 2**14


@settings(max_examples=60)
@given(points(st.integers(2, 9)), st.integers(0, 40))
def test_points_out_of_nodes_are_reported_and_never_worse_than_their_start(case, max_nodes):
    free, unlimited = case.solve("exact", theorem2=False, optimality=False)
    Z, counts = case.solve("exact", theorem2=False, optimality=False, max_nodes=max_nodes)
    assert (case.energies(Z) <= case.energies(case.Z) * (1 + 1e-9) + case.rounding).all()
    assert counts.codes_evaluated <= min(unlimited.codes_evaluated, max_nodes * len(Z))
    assert 0 <= counts.unproven <= len(Z)
    if counts.unproven == 0:
        np.testing.assert_array_equal(Z, free)
        assert counts.codes_evaluated == unlimited.codes_evaluated


def test_a_budget_that_is_too_small_leaves_every_point_unproven_and_a_sufficient_one_none():
    case = make_points("correlated", 10, 12, 0.01, seed=1, n=20)
    _, counts = case.solve("exact", theorem2=False, optimality=False, max_nodes=3)
    assert counts.unproven == 20
    assert counts.codes_evaluated == 60
    nodes = case.solve("exact", theorem2=False, optimality=False)[1].codes_evaluated
    assert case.solve("exact", theorem2=False, optimality=False, max_nodes=nodes)[1].unproven == 0


@pytest.mark.parametrize("solver", ["exact", "enumerate"])
@pytest.mark.parametrize("switches", [{}, {"theorem2": False, "optimality": False}])
def test_a_global_old_code_is_kept_where_another_is_as_good(solver, switches):
    case = make_points("repeated", 9, 8, 1e-3, seed=4, n=30)
    case.H[:] = 0
    case.Z = case.solve("enumerate")[0]
    swapped = case.Z.copy()
    for i, j in itertools.combinations(range(8), 2):  # equal columns: their bits may change places
        if (case.f.A[:, i] == case.f.A[:, j]).all():
            swapped[:, [i, j]] = case.Z[:, [j, i]]
            break
    assert (swapped != case.Z).any()
    for codes in (case.Z, swapped):
        case.Z = codes
        kept = case.energies(case.H) >= case.mu
        found = case.solve(solver, **switches)[0]
        np.testing.assert_array_equal(found[kept], codes[kept])
