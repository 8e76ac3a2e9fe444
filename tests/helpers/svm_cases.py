"""SVM problems that the tests of the h step share, and their slow truth, LIBLINEAR."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits
from sklearn.svm import LinearSVC

from auxbit.core.parallel import Workers
from auxbit.mac.h_step import SvmOptions
from auxbit.mac.z_step import ZOptions
from helpers.memory_steps import MemorySteps

TIGHT = SvmOptions(tol=1e-6, max_newton=100, max_cg=200, forcing=1e-3)


def labelled_digits():
    """800 digits and four bits that hyperplanes separate."""
    X = load_digits().data[:800]
    X = ((X - X.mean(axis=0)) / 16).astype(np.float32)
    directions = np.random.default_rng(0).normal(size=(64, 4))
    return X, (X @ directions >= 0.2).astype(np.uint8)


def flip(Z, share, seed=1):
    return Z ^ (np.random.default_rng(seed).random(Z.shape) < share).astype(np.uint8)


def rows_of(X, Z, workers, svm=TIGHT):
    return MemorySteps(X, Z, workers, svm=svm, z=ZOptions("alternating", start="warm"))


def fit(X, Z, h=None, svm=TIGHT, n_jobs=1):
    with Workers(n_jobs) as workers:
        return rows_of(X, Z, workers, svm).h_step(h, exact=True)


def svm_objective(X, z, w, bias, C=100.0):
    """½‖w‖² + ½ bias² + C Σ max(0, 1 − y(wᵀx + bias))², as LIBLINEAR regularises the bias too."""
    w, margin = w.astype(float), (2.0 * z - 1) * (X.astype(float) @ w.astype(float) + float(bias))
    return 0.5 * w @ w + 0.5 * float(bias) ** 2 + C * np.square(np.maximum(0, 1 - margin)).sum()


def objectives(X, Z, h, C=100.0):
    return [svm_objective(X, Z[:, i], h.weights[:, i], h.bias[i], C) for i in range(Z.shape[1])]


def liblinear(X, Z, C=100.0):
    """The slow truth, (D+1, L) with the biases last."""
    model = LinearSVC(dual=False, C=C, tol=1e-8, intercept_scaling=1, fit_intercept=True, max_iter=20_000)
    fitted = [model.fit(X.astype(float), z) and np.r_[model.coef_[0], model.intercept_] for z in Z.T]
    return np.array(fitted).T
