from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auxbit.core.parallel import BLOCK_ROWS, Workers
from auxbit.errors import InvalidParameter
from auxbit.mac.h_step import SvmOptions
from auxbit.mac.z_step import (
    EXACT_UP_TO,
    SCAN_FROM,
    Conditions,
    Groups,
    ZOptions,
    search_order,
    thresholds,
)
from helpers.memory_steps import MemorySteps
from helpers.slow_truths import (
    DECODERS,
    all_codes,
    alternate_slowly,
    brute_force,
    greedy_bits,
    make_points,
    point_energy,
    points,
    random_rows,
    reduced_energies,
    relaxed_minimiser,
)

STARTS = ("warm", "relaxed", "best")
ACCELERATIONS = ("running_bound", "incremental", "optimality")
group_sizes = st.sampled_from([1, 2, 3, 5, 7, 20])  # 20: no smaller than any L here, so one group


def best_change_of_a_group(case, Z, g):
    """The least energy of each row over all changes of any one group of g bits."""
    best = case.energies(Z)
    for first in range(0, Z.shape[1], g):
        width = min(g, Z.shape[1] - first)
        for pattern in all_codes(width):
            changed = Z.copy()
            changed[:, first : first + width] = pattern
            best = np.minimum(best, case.energies(changed))
    return best


@pytest.mark.parametrize("start", STARTS)
@settings(max_examples=120)
@given(
    case=points(st.integers(1, 12)),
    g=group_sizes,
    theorem_4_3=st.booleans(),
    admm_iterations=st.sampled_from([0, 10]),
)
def test_no_points_energy_ever_rises(start, case, g, theorem_4_3, admm_iterations):
    Z, counts = case.solve("alternating", start, g, theorem_4_3=theorem_4_3, admm_iterations=admm_iterations)
    before, after = case.energies(case.Z), case.energies(Z)
    assert (after <= before * (1 + 1e-9) + case.rounding).all()
    assert counts.energy == pytest.approx(after.sum(), rel=1e-9, abs=10 * case.rounding.sum())


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("admm_iterations", [0, 1, 10])
@settings(max_examples=40)
@given(case=points(st.integers(1, 10)), g=group_sizes)
def test_the_result_is_a_local_minimum_for_its_groups(start, admm_iterations, case, g):
    Z, _ = case.solve("alternating", start, g, theorem_4_3=False, admm_iterations=admm_iterations)
    after = case.energies(Z)
    assert (after <= best_change_of_a_group(case, Z, g) * (1 + 1e-9) + 10 * case.rounding).all()


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("g", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", ["correlated", "random", "integer"])
def test_old_codes_next_to_the_best_ones_are_neither_left_alone_nor_made_worse(start, g, kind):
    case = make_points(kind, 10, 12, 0.01, seed=g, n=200)
    case.Z = case.solve("exact")[0]
    case.Z[np.arange(200), np.random.default_rng(0).integers(0, 12, 200)] ^= 1
    Z, _ = case.solve("alternating", start, g, theorem_4_3=False)
    after = case.energies(Z)
    assert (after <= case.energies(case.Z) * (1 + 1e-9) + case.rounding).all()
    assert (after <= best_change_of_a_group(case, Z, g) * (1 + 1e-9) + 10 * case.rounding).all()


@pytest.mark.parametrize("start", STARTS)
@settings(max_examples=60)
@given(case=points(st.integers(1, 12)))
def test_one_group_of_all_bits_is_exact(start, case):
    L = case.H.shape[1]
    Z, _ = case.solve("alternating", start, L)
    wanted = brute_force(case.problem, case.Y, case.H)
    assert (case.energies(Z) <= wanted * (1 + 1e-9) + 10 * case.rounding).all()


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("g", [1, 3, 7])
@pytest.mark.parametrize("kind", DECODERS)
def test_forty_bits_alternate_as_well(start, g, kind):
    case = make_points(kind, 30, 40, 0.05, seed=g, n=30)
    Z, counts = case.solve("alternating", start, g, theorem_4_3=False)
    after = case.energies(Z)
    assert (after <= case.energies(case.Z) * (1 + 1e-9) + case.rounding).all()
    assert (after <= best_change_of_a_group(case, Z, g) * (1 + 1e-9) + 10 * case.rounding).all()
    assert counts.energy == pytest.approx(after.sum(), rel=1e-9)
    again = case.energies(type(case)(case.X, case.f, case.H, Z, case.mu).solve("alternating", "warm", g)[0])
    np.testing.assert_allclose(again, after, rtol=1e-9, atol=float(case.rounding.max()))


@given(points(st.integers(1, 8)), group_sizes)
def test_certified_points_of_the_alternating_solver_are_global(case, g):
    Z, counts = case.solve("alternating", "best", g, theorem_4_3=False)
    best = case.energies(Z) <= brute_force(case.problem, case.Y, case.H) * (1 + 1e-9) + case.rounding
    assert counts.certified <= best.sum()
    assert case.solve("alternating", "best", g, optimality=False)[1].certified == 0


def codes_from(case, start, g, relaxed):
    """Section 4.3 to the letter, point by point; relaxed : (n, L) relaxed solutions."""
    problem, found = case.problem, []
    for y, h, old, x in zip(case.Y, case.H, case.Z, relaxed, strict=True):
        energies = partial(reduced_energies, problem, y, h)
        binarised = greedy_bits(problem.G, problem.linear_terms(y[None], h[None])[0], x).astype(np.uint8)
        if start == "relaxed":
            found.append(alternate_slowly(energies, min(old, binarised, key=energies), g))
        else:
            ends = [alternate_slowly(energies, old, g), alternate_slowly(energies, binarised, g)]
            found.append(ends[0] if start == "warm" else min(ends, key=energies))
    return np.array(found)


@pytest.mark.parametrize("g", [1, 3, 7])
@pytest.mark.parametrize("kind", ["random", "correlated"])
@pytest.mark.parametrize("admm_iterations", [0, 10_000])
def test_codes_are_those_of_the_paper_done_slowly(g, kind, admm_iterations):
    case = make_points(kind, 12, 16, 0.05, seed=3, n=150)
    case.Z = case.solve("alternating", "warm")[0]
    case.Z[::2, ::11] ^= 1  # good old codes, so that neither start is always the lower one
    if admm_iterations:
        relaxed = [relaxed_minimiser(case.problem, y, h) for y, h in zip(case.Y, case.H, strict=True)]
    else:
        free = np.linalg.solve(case.problem.G, case.problem.linear_terms(case.Y, case.H).T).T
        relaxed = np.clip(free, 0, 1)
    options = {"admm_iterations": admm_iterations, "admm_tol": 1e-9, "theorem_4_3": False}
    wanted = {start: codes_from(case, start, g, np.array(relaxed)) for start in STARTS}
    for start, codes in wanted.items():
        Z, counts = case.solve("alternating", start, g, **options)
        np.testing.assert_array_equal(Z, codes)
        assert counts.energy == pytest.approx(case.energies(codes).sum(), rel=1e-9)
    if kind == "random" and g < 7:  # no start can stand for another
        assert len({codes.tobytes() for codes in wanted.values()}) == 3


def by_groups(case, g, on=ACCELERATIONS):
    """Alternation over groups of g bits from the old codes, with these accelerations inside the groups."""
    return case.solve(
        "alternating", "warm", g, theorem_4_3=False, **{name: name in on for name in ACCELERATIONS}
    )


@settings(max_examples=40)
@given(points(st.integers(7, 11)), st.sampled_from([7, 9, 11]))
def test_no_acceleration_inside_groups_changes_the_result(case, g):
    wanted = case.energies(by_groups(case, g, ())[0])
    for on in product([True, False], repeat=3):
        Z, counts = by_groups(case, g, [name for name, yes in zip(ACCELERATIONS, on, strict=True) if yes])
        after = case.energies(Z)
        assert counts.energy == pytest.approx(after.sum(), rel=1e-9, abs=10 * case.rounding.sum())
        assert (after <= case.energies(case.Z) * (1 + 1e-9) + case.rounding).all()
        if g >= Z.shape[1]:  # one group: no tie leads elsewhere
            np.testing.assert_allclose(after, wanted, rtol=1e-9, atol=10 * case.rounding.max())
        assert (after <= best_change_of_a_group(case, Z, g) * (1 + 1e-9) + 10 * case.rounding).all()


@pytest.mark.parametrize("kind", ["random", "correlated", "orthogonal"])
@pytest.mark.parametrize("g", [7, 8, 13, 16])
def test_groups_of_a_scan_end_where_those_of_the_gray_code_do(kind, g):
    for mu in (0.01, 1.0):
        case = make_points(kind, 20, 16, mu, seed=g, n=60)
        slow, nothing = by_groups(case, g, ())
        assert nothing.codes_evaluated == nothing.dimensions_evaluated == 0
        for on in (ACCELERATIONS, *((name,) for name in ACCELERATIONS)):
            np.testing.assert_array_equal(by_groups(case, g, on)[0], slow)


def test_each_acceleration_saves_something_inside_groups():
    case = make_points("random", 20, 16, 1.0, seed=1, n=60)
    every = by_groups(case, 8)[1]
    without = {
        name: by_groups(case, 8, [other for other in ACCELERATIONS if other != name])[1]
        for name in ACCELERATIONS
    }
    assert every.dimensions_evaluated < without["running_bound"].dimensions_evaluated
    assert every.dimensions_evaluated < 0.5 * without["incremental"].dimensions_evaluated
    assert every.dimensions_evaluated < without["optimality"].dimensions_evaluated
    assert without["incremental"].dimensions_evaluated == 8 * without["incremental"].codes_evaluated


def test_groups_are_scanned_from_seven_bits_on_if_anything_is_to_be_gained():
    assert SCAN_FROM == 7
    assert not ZOptions("alternating", group_size=6).scans
    assert ZOptions("alternating", group_size=7).scans
    assert ZOptions("enumerate", group_size=3, running_bound=False, incremental=False).scans
    assert not ZOptions("alternating", group_size=7, running_bound=False, incremental=False).scans


@given(points(st.integers(2, 12)), st.integers(2, 12))
def test_with_the_other_bits_fixed_a_groups_energy_is_that_of_its_triangle(case, g):
    none = Conditions.of(case.problem.G, [slice(None)], ())
    groups, Q = Groups.reduce(case.problem, ZOptions("enumerate", group_size=g), none)
    T, P, L = groups.triangles, case.Y @ Q, case.H.shape[1]
    assert sorted(groups.columns) == list(range(L))
    for first in range(0, L, g):
        own = groups.columns[first : first + g]
        np.testing.assert_array_equal(
            own - first, search_order(case.problem.G[first : first + g, first : first + g])
        )
        np.testing.assert_allclose(
            np.tril(T[first : first + g, first : first + g], -1), 0, atol=1e-12 * np.abs(T).max()
        )
        assert (T[first + groups.rank : first + g] == 0).all()
        for z, y, p, rounding in zip(case.Z, case.Y, P, case.rounding, strict=True):
            codes = np.tile(z, (20, 1))
            codes[:, own] = np.random.default_rng(0).integers(0, 2, (20, len(own)))
            whole = np.square(y - codes @ case.problem.R.T).sum(axis=1)
            part = np.square(p - codes[:, groups.columns] @ T.T)[:, first : first + g].sum(axis=1)
            assert np.ptp(whole - part) <= 1e-11 * whole.max() + 100 * rounding
            assert (part <= whole + 1e-11 * whole + 100 * rounding).all()


@given(points(st.integers(3, 12)), st.integers(2, 11))
def test_a_group_is_held_against_the_thresholds_of_its_own_block(case, g):
    G, options = case.problem.G, ZOptions("alternating", group_size=min(g, len(case.f.A.T)))
    groups, _ = Groups.reduce(case.problem, options, Conditions.of(G, [slice(None)], options.optimality))
    for first in range(0, len(G), options.group_size):
        own = slice(first, first + options.group_size)
        limits = thresholds(G[own, own])
        found = groups.conditions.sufficient[:, own]
        np.testing.assert_array_equal(found, [limits.smallest_eigenvalue, limits.row_gap])


def test_the_best_start_is_as_low_as_both_point_by_point():
    case = make_points("correlated", 20, 24, 0.02, seed=0, n=200)
    ends = {start: case.energies(case.solve("alternating", start)[0]) for start in STARTS}
    assert ends["relaxed"].sum() < ends["warm"].sum()
    assert (ends["best"] <= np.minimum(ends["warm"], ends["relaxed"]) * (1 + 1e-9)).all()
    # old codes that are hard to beat are kept by both
    case.Z = case.solve("exact")[0]
    for start in ("relaxed", "best"):
        Z, _ = case.solve("alternating", start)
        np.testing.assert_allclose(case.energies(Z), case.energies(case.Z), rtol=1e-9)


@given(points(st.integers(1, 6)))
def test_the_reduction_changes_every_codes_energy_by_the_same_amount(case):
    codes = all_codes(case.H.shape[1])
    x, h = case.X[0], case.H[0]
    full = np.array([point_energy(x, case.f, h, case.mu, z) for z in codes])
    n = len(codes)
    reduced = case.problem.R @ codes.T
    reduced = np.square(case.Y[0][:, None] - reduced).sum(0) + case.mu * (codes != h).sum(1)
    G, c = case.problem.G, case.problem.linear_terms(case.Y[:1], case.H[:1])[0]
    quadratic = np.einsum("ki,ij,kj->k", codes.astype(float), G, codes.astype(float)) - 2 * codes @ c
    scale = np.square(x - case.f.b).sum() + np.square(case.f.A).sum() * codes.shape[1]
    assert np.ptp(full - reduced) <= 1e-5 * scale + 1e-12 * case.mu * n
    assert np.ptp(quadratic - reduced) <= 1e-12 * (scale + case.mu * codes.shape[1])
    assert (full >= reduced - 1e-5 * scale).all()


# theorem 4.3 and the finite μ


@pytest.mark.parametrize("solver", ["exact", "enumerate", "alternating"])
@pytest.mark.parametrize("start", STARTS)
@settings(max_examples=20)
@given(case=points(st.integers(1, 9)))
def test_above_the_finite_mu_every_point_gets_its_hash_code(solver, start, case):
    residual = np.square(case.X - case.f(case.H)).sum(axis=1)
    case.mu = 1.001 * float(residual.max()) + 1e-5
    Z, counts = case.solve(solver, start)
    np.testing.assert_array_equal(Z, case.H)
    assert counts.pruned == len(Z)
    assert counts.codes_evaluated == 0
    if solver != "alternating":  # theorem 4.3 says that h(x) is global, so searching finds it too
        for switches in ({"theorem_4_3": False}, {"theorem_4_3": False, "optimality": False}):
            np.testing.assert_array_equal(case.solve(solver, start, **switches)[0], case.H)


@given(points(st.integers(1, 8)))
def test_theorem_2_skips_only_points_whose_hash_code_is_global(case):
    at_hash = case.energies(case.H)
    best = brute_force(case.problem, case.Y, case.H)
    skipped = at_hash < case.mu
    assert (at_hash[skipped] <= best[skipped] * (1 + 1e-9) + case.rounding[skipped]).all()
    sure = np.abs(at_hash - case.mu) > case.rounding
    counts = case.solve("alternating")[1]
    assert abs(counts.pruned - (skipped & sure).sum()) <= (~sure).sum()


# the whole step


@pytest.mark.parametrize("solver", ["exact", "enumerate", "alternating"])
@pytest.mark.parametrize("start", STARTS)
def test_the_z_step_is_the_same_to_the_last_bit_for_any_number_of_jobs(solver, start):
    X, Z, h, f = random_rows(n=2 * BLOCK_ROWS + 17, L=7)
    results = []
    for n_jobs in (1, 2):
        with Workers(n_jobs) as workers:
            options = ZOptions.resolve(7, solver, start, 2, None)
            rows = MemorySteps(X, Z.copy(), workers, svm=SvmOptions(), z=options)
            reports = [rows.z_step(h, f, mu) for mu in (0.1, 1.0)]
            results.append((rows.Z.tobytes(), reports))
    assert results[0] == results[1]


def test_rows_are_solved_each_by_itself():
    case = make_points("random", 10, 8, 0.1, seed=0, n=30)
    together = case.solve("alternating", "warm", 3)[0]
    for i in range(30):
        alone = type(case)(case.X[i : i + 1], case.f, case.H[i : i + 1], case.Z[i : i + 1], case.mu)
        found = alone.solve("alternating", "warm", 3)[0]
        np.testing.assert_allclose(alone.energies(found), alone.energies(together[i : i + 1]), rtol=1e-6)


# options


def test_auto_is_exact_to_16_bits_and_alternating_above():
    assert EXACT_UP_TO == 16
    assert ZOptions.resolve(16, "auto", "best", 1, None).solver == "exact"
    assert ZOptions.resolve(17, "auto", "best", 1, None).solver == "alternating"


def test_the_conditions_of_optimality_are_all_none_or_those_that_are_named():
    def names(options):
        return tuple(ZOptions.resolve(8, "auto", "best", 1, options).optimality)

    assert names(None) == names({}) == ("beck", "jeyakumar")  # the paper's
    assert names({"optimality": True}) == ("necessary", "beck", "jeyakumar", "xia")
    assert names({"optimality": False}) == names({"optimality": []}) == ()
    assert names({"optimality": ["xia"]}) == ("xia",)


def test_a_group_larger_than_the_code_is_the_code():
    assert ZOptions.resolve(5, "alternating", "best", 8, None).group_size == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((8, "newton", "best", 1, None), "z_solver='newton' is invalid: expected one of auto, exact"),
        ((8, "auto", "cold", 1, None), "z_start='cold' is invalid: expected one of warm, relaxed, best"),
        ((8, "auto", "best", 0, None), r"group_size=0 is invalid: expected an integer in 1\.\.20"),
        ((8, "auto", "best", 21, None), r"group_size=21 is invalid: expected an integer in 1\.\.20"),
        ((8, "auto", "best", 1.5, None), r"group_size=1\.5 is invalid"),
        ((32, "enumerate", "best", 1, None), "at most 24 bits for enumeration, not 32"),
        (
            (8, "auto", "best", 1, {"magic": 1}),
            "z_options=.* is invalid: expected a dict with keys among .*theorem_4_3",
        ),
        ((8, "auto", "best", 1, {"solver": "exact"}), "z_options=.* is invalid"),
        ((8, "auto", "best", 1, "theorem_4_3"), "z_options='theorem_4_3' is invalid: expected a dict"),
        (
            (8, "auto", "best", 1, {"theorem_4_3": 1}),
            r"z_options\['theorem_4_3'\]=1 is invalid: expected True or False",
        ),
        (
            (8, "auto", "best", 1, {"optimality": ["beck", "newton"]}),
            r"z_options\['optimality'\]=\['beck', 'newton'\] is invalid: expected True, False, or a list of",
        ),
        ((8, "auto", "best", 1, {"optimality": "xia"}), r"z_options\['optimality'\]='xia' is invalid"),
        ((8, "auto", "best", 1, {"optimality": 1}), r"z_options\['optimality'\]=1 is invalid"),
        ((8, "auto", "best", 1, {"admm_tol": 0}), r"z_options\['admm_tol'\]=0 is invalid"),
        ((8, "auto", ["best"], 1, None), r"z_start=\['best'\] is invalid"),
        ((8, "auto", "best", True, None), "group_size=True is invalid"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(InvalidParameter, match=message):
        ZOptions.resolve(*arguments)


@pytest.mark.parametrize("mu", [1e3, 1e12])
def test_a_large_penalty_costs_the_energies_no_digits(mu):
    case = make_points("random", 10, 8, mu, seed=0, n=50)
    _, counts = case.solve("alternating")
    truth = np.square(case.Y - case.H @ case.problem.R.T).sum()
    assert counts.hash_energy == pytest.approx(truth, rel=1e-12)
