from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from auxbit.mac.z_step import SearchTree, search_order
from helpers.slow_truths import (
    DECODERS,
    all_codes,
    brute_force,
    brute_force_in_halves,
    make_points,
    point_energy,
    points,
)

SWITCHES = ("theorem_4_3", "optimality", "running_bound", "incremental")
COMBINATIONS = [dict(zip(SWITCHES, on, strict=True)) for on in itertools.product([True, False], repeat=4)]
EXACT = [{"theorem_4_3": a, "optimality": b} for a in (True, False) for b in (True, False)]


WAYS = ({}, {"theorem_4_3": False, "optimality": False})


def check_global(case, *solved):
    """The codes of every solution are as good as the best of all 2^L."""
    best = brute_force(case.problem, case.Y, case.H)
    for Z, counts in solved:
        excess = case.energies(Z) - best
        assert (excess <= 1e-11 * case.energies(Z) + case.rounding).all()
        assert counts.unproven == 0


@settings(max_examples=150)
@given(case=points(st.integers(1, 9)))
@example(case=make_points("zero", 3, 5, 1e-8, 0))
@example(case=make_points("zero", 3, 5, 1e4, 0))
@example(case=make_points("low rank", 2, 9, 1e-8, 0))
def test_exact_solvers_equal_brute_force(case):
    check_global(case, *(case.solve(solver, **on) for solver in ("exact", "enumerate") for on in WAYS))


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize(("D", "mu"), [(20, 0.01), (20, 1.0), (5, 1e-8)])
def test_exact_solvers_equal_brute_force_at_14_bits(kind, D, mu):
    case = make_points(kind, D, 14, mu, seed=D, n=3)
    check_global(case, *(case.solve(solver, **on) for solver in ("exact", "enumerate") for on in WAYS))


@pytest.mark.parametrize(("L", "n"), [(20, 3), (24, 1)])
@pytest.mark.parametrize(
    ("kind", "D"), [("random", 30), ("correlated", 22), ("integer", 12), ("low rank", 30)]
)
def test_branch_and_bound_equals_enumeration_at_20_and_24_bits(kind, D, L, n):
    case = make_points(kind, D, L, 0.05, seed=L, n=n)
    Z, counts = case.solve("exact", theorem_4_3=False, optimality=False)
    assert counts.unproven == 0
    wanted = [brute_force_in_halves(case.problem, y, h) for y, h in zip(case.Y, case.H, strict=True)]
    np.testing.assert_allclose(case.energies(Z), wanted, rtol=1e-11, atol=float(case.rounding.max()))
    assert counts.energy == pytest.approx(sum(wanted), rel=1e-9)


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
    solved = {tuple(switches.values()): case.solve(solver, **switches) for switches in combinations}
    check_global(case, *solved.values())
    for Z, counts in solved.values():
        wanted = pytest.approx(case.energies(Z).sum(), rel=1e-9, abs=10 * case.rounding.sum())
        assert counts.energy == wanted
    return {switches: counts for switches, (_, counts) in solved.items()}


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
    for (theorem_4_3, optimality), count in counts.items():
        assert theorem_4_3 or count.pruned == 0
        assert optimality or count.certified == 0


@pytest.mark.parametrize("switch", SWITCHES)
def test_each_acceleration_of_enumeration_is_one(switch):
    case = make_points("random", 12, 8, 1.0, seed=5, n=40)
    on, off = case.solve("enumerate")[1], case.solve("enumerate", **{switch: False})[1]
    assert off.dimensions_evaluated > on.dimensions_evaluated
    if switch == "incremental":
        # without it, every dimension of every code is looked at, and no codes are skipped together
        assert off.dimensions_evaluated == 8 * off.codes_evaluated
        assert off.codes_evaluated > on.codes_evaluated
    else:
        both = case.solve("enumerate", **{switch: False, "incremental": False})[1]
        assert both.codes_evaluated > case.solve("enumerate", incremental=False)[1].codes_evaluated


def test_the_running_bound_stops_at_the_distance_of_theorem_2():
    # with μ just above e(h)/2, no code at distance 2 or more is looked at
    case = make_points("random", 6, 7, 1.0, seed=0, n=1)
    case.Z = case.H.copy()
    case.mu = float(case.energies(case.H)[0]) / 1.999
    only = {"theorem_4_3": False, "optimality": False, "incremental": False}
    _, counts = case.solve("enumerate", **only)
    assert counts.codes_evaluated <= 1 + 7
    assert case.solve("enumerate", running_bound=False, **only)[1].codes_evaluated == 2**7


# the search tree


def descend_tree(tree, x, z, level):
    """Decide the bits of z from the last down to `level`: what it costs, and the rest's best real values."""
    free, cost = x.copy(), 0.0
    for i in range(len(z) - 1, level - 1, -1):
        step = z[i] - free[i]
        cost += tree.S[i, i] ** 2 * step**2
        free[:i] += tree.pull[i, :i] * step
    return cost, free[:level]


def check_bounds(case):
    """Every node of the tree of every point; returns the largest bound in units of the best energy."""
    tree = SearchTree.grow(case.problem.R, case.mu)
    L, codes, largest = case.H.shape[1], all_codes(case.H.shape[1]), 0.0
    for x, rounding in zip(tree.relaxed(case.Y, case.H), case.rounding, strict=True):
        values = np.square((codes - x) @ tree.S.T).sum(axis=1)
        for level in range(L + 1):
            for decided in all_codes(L - level):
                z = np.r_[np.zeros(level), decided]
                cost, free = descend_tree(tree, x, z, level)
                bound = tree.least[level, :level] @ np.minimum(np.square(free), np.square(free - 1))
                below = values[(codes[:, level:] == decided).all(axis=1)].min()
                assert cost + bound <= below * (1 + 1e-11) + 10 * rounding
                if level == 0:  # at a leaf the cost is the energy
                    assert cost == pytest.approx(below, rel=1e-9, abs=10 * rounding)
                largest = max(largest, bound / (below + rounding))
    return largest


@settings(max_examples=60)
@given(points(st.integers(1, 6)))
def test_what_a_node_costs_at_least_is_not_above_the_best_code_below_it(case):
    check_bounds(case)


@pytest.mark.parametrize("kind", [kind for kind in DECODERS if kind != "zero"])  # there x is binary
def test_the_bound_is_worth_something_for_every_kind_of_decoder(kind):
    assert check_bounds(make_points(kind, 8, 6, 0.1, seed=1)) > 0.3


@given(points(st.integers(1, 12)))
def test_the_tree_is_the_problem_up_to_a_constant(case):
    tree, codes = SearchTree.grow(case.problem.R, case.mu), all_codes(min(case.H.shape[1], 8))
    codes = np.hstack([codes, np.zeros((len(codes), case.H.shape[1] - codes.shape[1]), dtype=np.uint8)])
    assert sorted(tree.columns) == list(range(case.H.shape[1]))
    for y, h, x, rounding in zip(case.Y, case.H, tree.relaxed(case.Y, case.H), case.rounding, strict=True):
        wanted = np.square(y - codes @ case.problem.R.T).sum(axis=1) + case.mu * (codes != h).sum(axis=1)
        found = np.square((codes[:, tree.columns] - x) @ tree.S.T).sum(axis=1)
        assert np.ptp(found - wanted) <= 100 * rounding + 1e-11 * wanted.max()


@given(points(st.integers(1, 12)))
def test_each_diagonal_is_below_its_gram_matrix(case):
    tree = SearchTree.grow(case.problem.R, case.mu)
    for level in range(1, case.H.shape[1] + 1):
        gram = tree.S[:level, :level].T @ tree.S[:level, :level]
        least = tree.least[level]
        assert (least >= 0).all()
        assert (least[level:] == 0).all()
        values = np.linalg.eigvalsh(gram - np.diag(least[:level]))
        assert values[0] >= -1e-14 * level * np.trace(gram)


def test_the_search_decides_first_the_columns_with_most_to_say():
    # orthogonal columns of lengths 3, 1, 2: the longest comes last in the order, where the search begins
    assert search_order(np.diag([9.0, 1.0, 4.0])).tolist() == [1, 2, 0]
    # the second of two equal columns has nothing left once the first is there
    twins = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.5]])
    assert search_order(twins).tolist() == [2, 0, 1]


def test_branch_and_bound_visits_a_small_part_of_the_tree():
    case = make_points("random", 40, 14, 0.01, seed=0, n=50)
    counts = case.solve("exact", theorem_4_3=False, optimality=False)[1]
    assert 14 * 50 <= counts.codes_evaluated < 0.01 * 50 * 2**14


@settings(max_examples=60)
@given(points(st.integers(2, 9)), st.integers(0, 40))
def test_points_out_of_nodes_are_reported_and_never_worse_than_their_start(case, max_nodes):
    free, unlimited = case.solve("exact", theorem_4_3=False, optimality=False)
    Z, counts = case.solve("exact", theorem_4_3=False, optimality=False, max_nodes=max_nodes)
    assert (case.energies(Z) <= case.energies(case.Z) * (1 + 1e-9) + case.rounding).all()
    assert counts.codes_evaluated <= min(unlimited.codes_evaluated, max_nodes * len(Z))
    assert 0 <= counts.unproven <= len(Z)
    if counts.unproven == 0:
        np.testing.assert_array_equal(Z, free)
        assert counts.codes_evaluated == unlimited.codes_evaluated


def test_the_points_that_hit_the_budget_are_the_ones_that_need_more():
    case = make_points("correlated", 10, 12, 0.01, seed=1, n=40)
    off = {"theorem_4_3": False, "optimality": False}
    needed = []
    for i in range(40):
        alone = type(case)(case.X[i : i + 1], case.f, case.H[i : i + 1], case.Z[i : i + 1], case.mu)
        needed.append(alone.solve("exact", **off)[1].codes_evaluated)
    budget = int(np.median(needed))
    counts = case.solve("exact", max_nodes=budget, **off)[1]
    assert counts.unproven == (np.array(needed) > budget).sum() > 0
    assert counts.codes_evaluated == np.minimum(needed, budget).sum()


def test_a_budget_that_is_too_small_leaves_every_point_unproven_and_a_sufficient_one_none():
    case = make_points("correlated", 10, 12, 0.01, seed=1, n=20)
    _, counts = case.solve("exact", theorem_4_3=False, optimality=False, max_nodes=3)
    assert counts.unproven == 20
    assert counts.codes_evaluated == 60
    nodes = case.solve("exact", theorem_4_3=False, optimality=False)[1].codes_evaluated
    assert case.solve("exact", theorem_4_3=False, optimality=False, max_nodes=nodes)[1].unproven == 0


@pytest.mark.parametrize(
    ("solver", "start"),
    [("exact", "best"), ("enumerate", "best"), ("alternating", "best"), ("alternating", "relaxed")],
)
@pytest.mark.parametrize("switches", [{}, {"theorem_4_3": False, "optimality": False}])
def test_a_global_old_code_is_kept_where_another_is_as_good(solver, start, switches):
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
        found = case.solve(solver, start, **switches)[0]
        np.testing.assert_array_equal(found[kept], codes[kept])
