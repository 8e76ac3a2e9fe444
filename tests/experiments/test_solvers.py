"""Solvers of the relaxed problem of the Z step: the same minima, timed to the same accuracy."""

from __future__ import annotations

import numpy as np
import pytest

from auxbit.experiments import solvers
from auxbit.experiments.study import Fits
from auxbit.mac.z_step import ZProblem


@pytest.fixture(scope="module")
def boxes() -> solvers.BoxProblems:
    rng = np.random.default_rng(0)
    Q, R = np.linalg.qr(rng.normal(size=(12, 6)))
    shared = ZProblem(Q, np.ascontiguousarray(R), np.zeros(6), 0.1)
    return solvers.BoxProblems(
        shared, 3 * rng.normal(size=(20, 6)), rng.integers(0, 2, (20, 6)).astype(np.uint8)
    )


def test_every_solver_finds_what_projected_gradients_find(boxes: solvers.BoxProblems) -> None:
    G, C = boxes.shared.G, boxes.shared.linear_terms(boxes.Y, boxes.H)
    z, step = np.full(boxes.H.shape, 0.5), 1 / np.linalg.eigvalsh(G)[-1]
    for _ in range(5000):
        z = np.clip(z - step * (z @ G - C), 0, 1)
    assert ((z > 0) & (z < 1)).any()
    for solver in (solvers.by_admm, *solvers.GENERAL.values()):
        np.testing.assert_allclose(solver(boxes, 1e-10), z, atol=1e-4)


def test_the_loosest_tolerance_is_accurate_and_the_next_looser_one_is_not(boxes: solvers.BoxProblems) -> None:
    least = boxes.objective(solvers.by_bvls(boxes, 1e-14))
    tol = solvers.loosest(solvers.by_admm, boxes, least)
    place = solvers.TOLERANCES.index(tol)
    assert place > 0
    looser = solvers.TOLERANCES[place - 1]
    assert solvers.above(boxes, solvers.by_admm(boxes, tol), least) <= solvers.ACCURACY
    assert solvers.above(boxes, solvers.by_admm(boxes, looser), least) > solvers.ACCURACY
    assert solvers.loosest(lambda points, tol: np.zeros(points.H.shape), boxes, least) is None


def test_both_sides_are_timed_to_the_same_accuracy_and_the_ratio_is_theirs(fits: Fits) -> None:
    result = solvers.run(fits, bits=(6, 70), mus=(0.1,), n_points=50, n_general=5, repeats=1)
    (row,) = result.tables["solvers"]  # ITQ has no 70 bits of 64 dimensions
    assert row["bits"] == 6
    assert max(row["admm_above"], row["general_above"]) <= solvers.ACCURACY
    assert row["ratio"] == pytest.approx(row["general_seconds"] / row["admm_seconds"])
    assert 0 <= row["ratio_without_call"] <= row["ratio"]
    assert row["general"] in solvers.GENERAL
    assert len(result.figures["solvers"]().axes) == 1


@pytest.mark.parametrize(("ratios", "holds"), [((12.0, 300.0), True), ((9.0, 50.0), False), ((), None)])
def test_the_claim_holds_from_ten_times_on(ratios: tuple[float, ...], holds: bool | None) -> None:
    rows = [{"ratio": ratio, "ratio_without_call": ratio / 2, "general": "BVLS"} for ratio in ratios]
    assert solvers._claim(rows, "digits").holds is holds


def test_rows_that_codes_reconstruct_without_error_leave_nothing_to_compare(
    boxes: solvers.BoxProblems,
) -> None:
    exact = solvers.BoxProblems(boxes.shared, boxes.H @ boxes.shared.R.T, boxes.H)
    assert solvers.compare(exact, 5, 1) is None
    assert solvers.compare(boxes, 5, 1) is not None
