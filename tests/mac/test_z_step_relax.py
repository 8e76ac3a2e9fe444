from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auxbit import AnchorGraphHashing
from auxbit.core.maps import Scaling, unpack
from auxbit.core.parallel import BLOCK_ROWS, Workers
from auxbit.mac import z_step
from auxbit.mac.h_step import SvmOptions
from auxbit.mac.z_step import RelaxedSolver, ZOptions
from helpers.memory_steps import MemorySteps
from helpers.slow_truths import Points, greedy_bits, make_points, points, relaxed_minimiser

mus = st.floats(-3, 3).map(lambda power: 10.0**power)


def bounded_least_squares(case):
    """The relaxed problem of each row by scipy."""
    return np.array([relaxed_minimiser(case.problem, y, h) for y, h in zip(case.Y, case.H, strict=True)])


def linear_terms(case):
    return case.problem.linear_terms(case.Y, case.H)


def solve(case, *, max_iter=20_000, tol=1e-9, warm=None):
    solver = RelaxedSolver.factorise(case.problem.G, max_iter=max_iter, tol=tol)
    w, u = warm or (case.Z.astype(np.float32), np.zeros(case.Z.shape, np.float32))
    return solver.solve(linear_terms(case), w, u), w, u


def relaxed_energy(case, z):
    return np.square(case.Y - z @ case.problem.R.T).sum(1) + case.mu * np.square(z - case.H).sum(1)


@settings(max_examples=40)
@given(points(st.integers(1, 10), mus))
def test_admm_run_long_enough_solves_the_relaxed_problem(case):
    solution, w, _ = solve(case)
    truth = bounded_least_squares(case)
    assert solution.min() >= 0
    assert solution.max() <= 1
    best = relaxed_energy(case, truth)
    assert (relaxed_energy(case, solution) <= best * (1 + 1e-6) + 1e-7 * np.square(case.Y).sum(1)).all()
    np.testing.assert_allclose(w, solution, atol=1e-6)


@pytest.mark.parametrize("kind", ["random", "correlated", "repeated", "orthogonal"])
@pytest.mark.parametrize(("D", "L"), [(12, 8), (4, 8)])
def test_the_relaxed_minimiser_is_unique_and_found(kind, D, L):
    case = make_points(kind, D, L, 0.1, seed=3, n=20)
    truth = bounded_least_squares(case)
    assert ((truth > 0.01) & (truth < 0.99)).any()
    np.testing.assert_allclose(solve(case)[0], truth, atol=1e-5)


@given(points(st.integers(1, 8), mus))
def test_a_warm_start_at_the_solution_stays_there(case):
    solution, w, u = solve(case)
    again, w, _ = solve(case, max_iter=1, warm=(w, u))
    np.testing.assert_allclose(again, solution, atol=1e-4)
    np.testing.assert_allclose(w, solution, atol=1e-4)


def test_a_warm_start_needs_fewer_iterations_than_a_cold_one():
    case = make_points("correlated", 12, 8, 0.1, seed=1, n=50)
    solution, w, u = solve(case)
    warm, cold = solve(case, max_iter=5, warm=(w, u))[0], solve(case, max_iter=5)[0]
    assert np.abs(warm - solution).max() < 0.01 * np.abs(cold - solution).max()


def test_one_factorisation_serves_all_points(monkeypatch):
    n_calls = 0
    factor = z_step.cho_factor

    def counted(*args, **options):
        nonlocal n_calls
        n_calls += 1
        return factor(*args, **options)

    monkeypatch.setattr(z_step, "cho_factor", counted)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2 * BLOCK_ROWS + 3, 5)).astype(np.float32)
    Z = rng.integers(0, 2, (len(X), 6)).astype(np.uint8)
    with Workers(2) as workers:
        options = ZOptions("alternating", start="relaxed", admm_iterations=5)
        rows = MemorySteps(X, Z, workers, svm=SvmOptions(), z=options)
        h, f = rows.h_step(None), rows.f_step()
        rows.z_step(h, f, 0.01)
    assert n_calls == 1


def test_the_state_of_admm_is_kept_for_the_next_z_step():
    case = make_points("correlated", 8, 6, 0.01, seed=2, n=30)
    with Workers(1) as workers:
        options = ZOptions("alternating", start="relaxed", theorem_4_3=False, admm_iterations=3)
        rows = MemorySteps(case.X, case.Z.copy(), workers, svm=SvmOptions(), z=options)
        h = rows.h_step(None)
        for _ in range(300):
            rows.z_step(h, case.f, case.mu)
        kept = rows.rows._kept[0]
    case.H = h(case.X)
    np.testing.assert_allclose(kept, bounded_least_squares(case), atol=1e-3)


@given(points(st.integers(1, 10)), st.booleans())
def test_greedy_binarisation_equals_its_definition(case, from_box):
    G, C = case.problem.G, linear_terms(case)
    x = solve(case, max_iter=10)[0] if from_box else np.random.default_rng(0).random(case.H.shape)
    for c, start in zip(C, x, strict=True):
        z, moved = np.empty(len(c), dtype=np.uint8), np.empty(len(c))
        z_step.binarise(G, start, G @ start - c, z, moved)
        truth = greedy_bits(G, c, start)
        if not (z == truth).all():  # only where both values of a bit are equally good
            i = int((z != truth).argmax())
            both = np.r_[truth[:i], [0.5], start[i + 1 :]]
            slope = G[i, i] / 2 + (G[i] @ both - G[i, i] * 0.5) - c[i]
            assert abs(slope) < 1e-12 * (np.abs(G[i]).sum() + abs(c[i]))
        np.testing.assert_array_equal(moved, z - start)


def test_greedy_binarisation_goes_from_the_first_bit_to_the_last():
    # either bit alone is worth having, both are not: whoever is asked first gets it
    G, c = np.array([[1.0, 0.9], [0.9, 1.0]]), np.array([0.8, 0.8])
    for start, wanted in (([0.0, 0.0], [1, 0]), ([0.0, 1.0], [0, 1])):
        z = np.empty(2, dtype=np.uint8)
        z_step.binarise(G, np.array(start), G @ start - c, z, np.empty(2))
        assert z.tolist() == wanted


@pytest.mark.parametrize(("kind", "mu"), [("random", 0.01), ("random", 1.0), ("correlated", 0.1)])
def test_the_relaxed_start_leads_where_its_definition_does(kind, mu):
    """The free minimiser moved into the box, made binary bit by bit, if that is lower than the old code."""
    case = make_points(kind, 20, 16, mu, seed=3, n=80)
    found, _ = case.solve("alternating", "relaxed", 1, theorem_4_3=False, optimality=False)
    G, C = case.problem.G, linear_terms(case)
    inside = np.clip(np.linalg.solve(G, C.T).T, 0, 1)
    binary = np.array([greedy_bits(G, c, x) for c, x in zip(C, inside, strict=True)], dtype=np.uint8)
    lower = case.energies(binary) < case.energies(case.Z)
    assert lower.any()
    case.Z = np.where(lower[:, None], binary, case.Z)
    wanted, _ = case.solve("alternating", "warm", 1, theorem_4_3=False, optimality=False)
    np.testing.assert_array_equal(found, wanted)


@given(points(st.integers(1, 10), mus))
def test_the_inverse_leads_to_where_the_gradient_is_zero(case):
    problem, C = case.problem, linear_terms(case)
    x = C @ problem.inverse
    size = np.abs(problem.G).sum() * (1 + np.abs(x).max()) + np.abs(C).max()
    np.testing.assert_allclose(x @ problem.G, C, atol=1e-7 * size)
    inside = ((x >= 0) & (x <= 1)).all(axis=1)
    np.testing.assert_allclose(x[inside], bounded_least_squares(case)[inside], atol=1e-5)


@pytest.mark.parametrize("L", [16, 32])
def test_a_hundred_iterations_solve_the_relaxed_problem_of_digits_from_agh(digits, L):
    with Workers(1) as workers:
        X = Scaling.measure(digits, workers).apply_all(digits, workers)
        Z = unpack(AnchorGraphHashing(L, random_state=0).fit(digits).encode(digits), L)
        steps = MemorySteps(X, Z.copy(), workers, svm=SvmOptions(), z=ZOptions("alternating"))
        h, f = steps.h_step(None), steps.f_step()
    H = h(X[::20]).astype(np.uint8)
    case = Points(X[::20], f, H, Z[::20], 0.01)
    truth = bounded_least_squares(case)
    solution = solve(case, max_iter=100, tol=1e-3)[0]
    least = relaxed_energy(case, truth)
    assert (relaxed_energy(case, solution) - least <= 3e-4 * least).all()
    np.testing.assert_allclose(solution, truth, atol=0.03)
    # ten iterations, or the free solution moved into the box, are something else
    for other in (
        solve(case, max_iter=10, tol=1e-3)[0],
        np.clip(linear_terms(case) @ case.problem.inverse, 0, 1),
    ):
        assert (relaxed_energy(case, other) - least).sum() > 0.003 * least.sum()


@settings(max_examples=60)
@given(points(st.integers(1, 10), mus), st.sampled_from([1e-1, 1e-3, 1e-6]))
def test_a_problem_is_stopped_by_its_own_residual_whatever_else_is_in_its_block(case, tol):
    solver = RelaxedSolver.factorise(case.problem.G, max_iter=10, tol=1e-3)
    target, shift = linear_terms(case) @ solver.inverse, solver.rho * solver.inverse
    todo = np.ones(len(target), dtype=bool)

    def run(rows):
        w, u = case.Z[rows].astype(float), np.zeros(case.Z[rows].shape, np.float32)
        z_step.admm(shift, target[rows], w, u, todo[rows], 200, tol)
        return w, u

    w, u = run(slice(None))
    for i in range(len(target)):
        alone = run(slice(i, i + 1))
        np.testing.assert_array_equal(alone[0][0], w[i])
        np.testing.assert_array_equal(alone[1][0], u[i])


def test_easy_problems_stop_early_and_hard_ones_go_on():
    case = make_points("correlated", 12, 8, 0.1, seed=1, n=50)
    truth = bounded_least_squares(case)
    _, w, u = solve(case)
    hard = np.arange(50) % 2 == 1
    w[hard], u[hard] = 1 - w[hard], 0  # the others stand on their solutions
    before = w.copy()
    solution, w, u = solve(case, max_iter=20_000, tol=1e-5, warm=(w, u))
    np.testing.assert_allclose(solution, truth, atol=1e-3)
    assert np.abs(w[~hard] - before[~hard]).max() < 1e-5 < np.abs(w[hard] - before[hard]).max()


def test_rows_that_are_done_keep_their_state():
    case = make_points("random", 12, 8, 0.1, seed=2, n=20)
    solver = RelaxedSolver.factorise(case.problem.G, max_iter=10, tol=1e-3)
    w, u = case.Z.astype(np.float32), np.full(case.Z.shape, 0.5, np.float32)
    todo = np.arange(20) % 3 == 0
    before = w.copy()
    solver.solve(linear_terms(case), w, u, todo)
    np.testing.assert_array_equal(w[~todo], before[~todo])
    assert (u[~todo] == 0.5).all()
    assert (w[todo] != before[todo]).any(axis=1).all()


def test_no_state_of_admm_is_kept_where_none_is_used():
    assert not ZOptions("alternating").uses_relaxed
    assert not ZOptions("exact", admm_iterations=10).uses_relaxed
    assert not ZOptions("alternating", start="warm", admm_iterations=10).uses_relaxed
    assert ZOptions("alternating", admm_iterations=1).uses_relaxed
