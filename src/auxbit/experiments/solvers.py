"""The relaxed problem of the Z step (section 4.3): ADMM for all points against a general QP solver."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.optimize import lsq_linear, minimize

from auxbit.core.checks import Bits, Float64
from auxbit.core.maps import Scaling, unpack
from auxbit.core.parallel import Workers
from auxbit.experiments.retrieval import cells
from auxbit.experiments.study import Claim, Fits, Problem, Result, Row, Trained
from auxbit.mac.loop import decoder_sums, f_step
from auxbit.mac.z_step import RelaxedSolver, ZProblem
from auxbit.plot import figures

METHOD, BITS = "itq", (8, 16, 32)  # the fits whose codes the problems are made of
MUS = (0.01, 1.0)  # the first μ of the paper's schedule, and one that binds
MANY, FEW = 2000, 40  # points that ADMM and a general solver are timed on
ACCURACY = 1e-6  # of the mean objective, that the worst point may be above its minimum
TOLERANCES = (1e-3, 1e-4, 1e-5, 1e-6, 1e-8, 1e-10)  # the loosest that is accurate is timed
MOST_ITERATIONS = 100_000
EXPECTED = 10  # times faster, at least


@dataclass(frozen=True)
class BoxProblems:
    """Problems min ‖y − Rz‖² + μ‖z − h‖² over z in [0, 1]^L. Y : (n, min(D, L)), H : (n, L)."""

    shared: ZProblem
    Y: Float64
    H: Bits

    def objective(self, z: Float64) -> Float64:
        """The value of each at z : (n, L)."""
        gap, away = self.Y - z @ self.shared.R.T, z - self.H
        return np.asarray(np.square(gap).sum(axis=1) + self.shared.mu * np.square(away).sum(axis=1))


def by_admm(problems: BoxProblems, tol: float) -> Float64:
    """All points with one factorisation, from h(x)."""
    shared = problems.shared
    solver = RelaxedSolver.factorise(shared.G, max_iter=MOST_ITERATIONS, tol=tol)
    start = problems.H.astype(np.float32)
    return solver.solve(shared.linear_terms(problems.Y, problems.H), start, np.zeros_like(start))


def by_bvls(problems: BoxProblems, tol: float) -> Float64:
    """One point at a time, as least squares with bounds: active sets (BVLS)."""
    mu, L = problems.shared.mu, problems.H.shape[1]
    stacked = np.vstack([problems.shared.R, np.sqrt(mu) * np.eye(L)])
    targets = np.hstack([problems.Y, np.sqrt(mu) * problems.H])
    found = [lsq_linear(stacked, t, (0, 1), method="bvls", tol=tol, max_iter=100 * L).x for t in targets]
    return np.array(found)


def by_minimize(problems: BoxProblems, tol: float, *, method: str) -> Float64:
    """One point at a time, from h(x), by a method of scipy.optimize.minimize that takes bounds."""
    G, C = problems.shared.G, problems.shared.linear_terms(problems.Y, problems.H)
    bounds = [(0.0, 1.0)] * len(G)
    # L-BFGS-B also stops by the gradient; both by the fall of the objective, which is of second order in z
    options = {"ftol": tol * 1e-3, "maxiter": 1000} | ({"gtol": tol} if method == "L-BFGS-B" else {})

    def value(z: Float64, c: Float64) -> tuple[float, Float64]:
        slope = G @ z
        return float(z @ slope / 2 - c @ z), slope - c

    found = [
        minimize(value, h, args=(c,), jac=True, method=method, bounds=bounds, options=options).x
        for h, c in zip(problems.H.astype(np.float64), C, strict=True)
    ]
    return np.asarray(np.clip(found, 0.0, 1.0))


Solver = Callable[[BoxProblems, float], Float64]
GENERAL: dict[str, Solver] = {
    "lsq_linear (BVLS)": by_bvls,
    "minimize (L-BFGS-B)": partial(by_minimize, method="L-BFGS-B"),
    "minimize (SLSQP)": partial(by_minimize, method="SLSQP"),
}


def run(
    fits: Fits, *, bits: Iterable[int] = BITS, mus: Sequence[float] = MUS, n_points: int = MANY,
    n_general: int = FEW, repeats: int = 3, seed: int = 0,
) -> Result:  # fmt: skip
    """CPU seconds per point to the same accuracy, for the codes and the decoder that ITQ starts MAC with."""
    problem, bits, n_points = fits.problem, tuple(bits), min(n_points, len(fits.problem.train))
    n_general = min(n_general, n_points)
    settings: dict[str, Any] = {
        "mus": list(mus), "points": n_points, "points_general": n_general, "repeats": repeats,
        "accuracy": ACCURACY,
    }  # fmt: skip
    rows: list[Row] = []
    for made in fits.all(cells([METHOD], bits, [seed])):
        rows += fits.derived(made.cell, {"solvers": settings}, partial(_measure, problem, settings))
    title = f"{problem.name}: the relaxed problem of the Z step"
    return Result(
        "solvers",
        f"ADMM against a general QP solver, on {problem.name}",
        "Section 4.3 of the paper (it has no figure): the relaxed Z step, min ‖x − f(z)‖² + μ‖z − h(x)‖² "
        "over the box [0, 1]^L, by our ADMM, one factorisation for all points, against the fastest of the "
        f"general solvers of SciPy ({', '.join(GENERAL)}), one point at a time. Both stop at the loosest "
        f"tolerance with which no point is above its minimum by more than {ACCURACY:g} of the mean "
        "objective; CPU time on one thread. The paper compares with Matlab's quadprog. SciPy's solvers are "
        "called from Python: ratio_without_call leaves out what such a call costs for a problem of one "
        "variable.",
        {"data": problem.name, "train_rows": len(problem.train), "bits": list(bits), "seed": seed} | settings,
        {"solvers": rows},
        {"solvers": partial(figures.solver_panels, rows, title=title)} if rows else {},
        [_claim(rows, problem.name)],
    )


def _measure(problem: Problem, settings: dict[str, Any], made: Trained) -> list[Row]:
    H = unpack(made.train, made.cell.bits)
    with Workers(1) as workers:  # also holds BLAS to one thread
        X = Scaling.measure(problem.train, workers).apply_all(problem.train, workers)
        decoder = f_step(decoder_sums(X, H, workers))
        rows = []
        for mu in settings["mus"]:
            shared, n = ZProblem.reduce(decoder, mu), settings["points"]
            points = BoxProblems(shared, shared.project(X[:n]), H[:n])
            if found := compare(points, settings["points_general"], settings["repeats"]):
                rows.append({"bits": made.cell.bits, "mu": mu} | found)
    return rows


def compare(points: BoxProblems, n_general: int, repeats: int) -> Row | None:
    """CPU seconds per point of ADMM and of the fastest general solver, measured by turns, the best of each.

    None if no tolerance makes them accurate, as when codes reconstruct the rows without error.
    """
    few = BoxProblems(points.shared, points.Y[:n_general], points.H[:n_general])
    least = few.objective(by_bvls(few, 1e-14))
    admm_tol = loosest(by_admm, few, least)
    tolerances = {name: loosest(solver, few, least) for name, solver in GENERAL.items()}
    usable = {name: tol for name, tol in tolerances.items() if tol is not None}
    if admm_tol is None or not usable:
        return None
    one = ZProblem(np.ones((1, 1)), np.ones((1, 1)), np.zeros(1), 0.01)  # its time is that of a call
    single = BoxProblems(one, np.full((n_general, 1), 0.5), np.zeros((n_general, 1), dtype=np.uint8))
    seconds: dict[str, float] = {}
    for _ in range(max(1, repeats)):
        seconds["admm"] = min(seconds.get("admm", np.inf), _cpu(by_admm, points, admm_tol))
        for name, tol in usable.items():
            seconds[name] = min(seconds.get(name, np.inf), _cpu(GENERAL[name], few, tol))
    fastest = min(usable, key=lambda name: seconds[name])
    call = min(_cpu(GENERAL[fastest], single, usable[fastest]) for _ in range(max(1, repeats)))
    return {
        "points": len(points.H), "admm_seconds": seconds["admm"], "admm_tolerance": admm_tol,
        "general": fastest, "general_seconds": seconds[fastest], "general_tolerance": usable[fastest],
        "ratio": seconds[fastest] / seconds["admm"],
        "ratio_without_call": max(0.0, seconds[fastest] - call) / seconds["admm"],
        "admm_above": above(few, by_admm(few, admm_tol), least),
        "general_above": above(few, GENERAL[fastest](few, usable[fastest]), least),
    }  # fmt: skip


def loosest(solver: Solver, points: BoxProblems, least: Float64) -> float | None:
    """The loosest tolerance with which a solver is accurate on all points, None if none is."""
    accurate = (tol for tol in TOLERANCES if above(points, solver(points, tol), least) <= ACCURACY)
    return next(accurate, None)


def above(points: BoxProblems, z: Float64, least: Float64) -> float:
    """How far the worst point is above its least value, as a share of the mean of those."""
    return float((points.objective(z) - least).max() / max(float(least.mean()), np.finfo(np.float64).tiny))


def _cpu(solver: Solver, points: BoxProblems, tol: float) -> float:
    start = time.process_time()
    solver(points, tol)
    return (time.process_time() - start) / len(points.H)


def _claim(rows: list[Row], data: str) -> Claim:
    claim = "the ADMM is 10 to 100 times faster than a general QP solver"
    if not rows:
        return Claim(claim, "not measured", None, "solvers", data)
    ratios, without = [row["ratio"] for row in rows], [row["ratio_without_call"] for row in rows]
    names = ", ".join(dict.fromkeys(row["general"] for row in rows))
    ours = (
        f"{min(ratios):.0f} to {max(ratios):.0f} times faster than SciPy's {names}; without the cost of a "
        f"call from Python, {min(without):.0f} to {max(without):.0f} times"
    )
    return Claim(claim, ours, bool(min(ratios) >= EXPECTED), "solvers", data)
