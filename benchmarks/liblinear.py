"""Against scikit-learn's LinearSVC: `python benchmarks/liblinear.py NAME`, raw results in docs/results/.

50,000 × 320 real rows, 32 bits; both sides are measured in one run.

fit       a whole fit against LinearSVC for one bit
h_step    all SVMs of an h step solved to tolerance, against LinearSVC for as many bits
loop      the error of a fit against that of the same loop with LinearSVC as its h step (several minutes)
"""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC

from auxbit.core.maps import LinearEncoder
from auxbit.core.parallel import Workers
from auxbit.mac import fit as mac_fit
from auxbit.mac.h_step import SvmOptions
from auxbit.mac.steps import MemoryRows, Steps
from auxbit.mac.z_step import ZOptions
from real_data import rotated_mnist, total_error
from record import Results, measured, run, table
from speed import compile_kernels, fitted

C = 100.0
ONE_BIT = "LinearSVC, one bit"


def linear_svc() -> LinearSVC:
    return LinearSVC(dual=False, C=C, tol=1e-3)


def with_flips(codes: np.ndarray, share: float = 0.03) -> np.ndarray:
    """Codes that no hyperplane gives, as they are after a Z step."""
    return codes ^ (np.random.RandomState(0).random_sample(codes.shape) < share).astype(np.uint8)


def fit(results: Results) -> str:
    """From ITQ codes to the finite-μ stop, three seeds; LinearSVC on two of the final bits, 3 % flipped."""
    X = rotated_mnist()
    compile_kernels(X)
    for seed in range(3):
        with measured() as cost:
            model = fitted(X, 32, random_state=seed)
        results.add(side="auxbit", seed=seed, E_BA=total_error(model, X), **cost)
    codes = with_flips(model.transform(X))
    for bit in range(2):
        with measured() as cost:
            linear_svc().fit(X, codes[:, bit])
        results.add(side=ONE_BIT, bit=bit, **cost)
    ours, theirs = (results.mean("cpu_seconds", side=side) for side in ("auxbit", ONE_BIT))
    row = [f"{ours:.2f}", f"{theirs:.2f}", f"**{ours / theirs:.2f}**", "< 1"]
    return table(["auxbit, whole fit, CPU s", "LinearSVC, one bit, CPU s", "ratio", "goal"], [row])


def h_step(results: Results) -> str:
    """From W = 0 to LIBLINEAR's tolerance, codes of a fit with 3 % flipped; LinearSVC's two bits times 16."""
    X = rotated_mnist()
    codes = with_flips(fitted(X, 32).transform(X))
    with Workers() as workers:
        options = {"svm": SvmOptions(C=C), "z": ZOptions("alternating", start="warm")}
        rows = Steps(MemoryRows(X, codes, workers), **options)
        with measured() as cost:
            h = rows.h_step(None, exact=True)
    results.add(side="auxbit", **cost)
    excess = []
    for bit in range(2):
        with measured() as cost:
            model = linear_svc().fit(X, codes[:, bit])
        ours = svm_objective(X, codes[:, bit], h.weights[:, bit], h.bias[bit])
        theirs = svm_objective(X, codes[:, bit], model.coef_[0], model.intercept_[0])
        excess.append(ours / theirs - 1)
        results.add(side=ONE_BIT, bit=bit, objective=theirs, objective_of_auxbit=ours, **cost)
    ours, theirs = (results.mean("cpu_seconds", side=side) for side in ("auxbit", ONE_BIT))
    row = [
        f"{ours:.2f}",
        f"{32 * theirs:.0f}",
        f"**{32 * theirs / ours:.0f}**",
        f"{100 * max(excess):+.3f} %",
    ]
    return table(["auxbit, CPU s", "LinearSVC, CPU s", "times less", "objective against LinearSVC's"], [row])


def loop(results: Results) -> str:
    """10,000 rows, 32 bits, two seeds: E_BA at the finite-μ stop, same start and schedule."""
    X, rows = rotated_mnist()[:10_000], []
    compile_kernels(X)
    for seed in range(2):
        with measured() as ours:
            error = total_error(fitted(X, 32, random_state=seed), X)
        mac_fit.Steps = LibLinearSteps
        try:
            with measured() as theirs:
                truth = total_error(fitted(X, 32, random_state=seed), X)
        finally:
            mac_fit.Steps = Steps
        results.add(seed=seed, ours=error, liblinear=truth, ours_cost=ours, liblinear_cost=theirs)
        difference = f"**{100 * (error / truth - 1):+.2f} %**"
        seconds = f"{ours['cpu_seconds']:.2f}", f"{theirs['cpu_seconds']:.0f}"
        rows.append([seed, f"{error:.1f}", f"{truth:.1f}", difference, "≤ +0.20 %", *seconds])
    head = ["seed", "E_BA", "with LinearSVC", "difference", "goal", "CPU s", "with LinearSVC"]
    return table(head, rows)


class LibLinearSteps(Steps):
    """The slow truth of the h step: LinearSVC for each bit, to its end."""

    def h_step(self, h: LinearEncoder | None, *, exact: bool = False) -> LinearEncoder:
        with ThreadPoolExecutor() as pool, warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            models = list(pool.map(lambda labels: linear_svc().fit(self.rows.X, labels), self.rows.Z.T))
        weights = np.stack([model.coef_[0] for model in models], axis=1)
        bias = np.array([model.intercept_[0] for model in models])
        return LinearEncoder(weights.astype(np.float32), bias.astype(np.float32))

    def refine(self, h: LinearEncoder) -> LinearEncoder:
        return h


def svm_objective(X: np.ndarray, labels: np.ndarray, w: np.ndarray, bias: float) -> float:
    w, bias = w.astype(np.float64), float(bias)
    slack = np.maximum(0, 1 - (2.0 * labels - 1) * (X.astype(np.float64) @ w + bias))
    return float(0.5 * (w @ w + bias**2) + C * np.square(slack).sum())


if __name__ == "__main__":
    run("liblinear", {job.__name__: job for job in (fit, h_step, loop)}, quick=["fit", "h_step"])
