"""# The paper in 60 lines of NumPy

The method of auxiliary coordinates (MAC), written as plainly as possible, and then
auxbit's. Both start from the same codes and use the same values of μ; auxbit runs the
same algorithm with solvers that scale.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.svm import LinearSVC

from auxbit import BinaryAutoencoder, ThresholdedPCA

X = load_digits().data
X = (X - X.mean(axis=0)) / np.ptp(X)
L = 8
ALL = (np.arange(2**L)[:, None] >> np.arange(L) & 1).astype(float)  # every code of L bits


# %% The three steps of figure 1 of the paper. Hash function h: one linear SVM per bit.
def h_step(X, Z):
    svms = [LinearSVC(C=100, dual=False, tol=1e-3).fit(X, bit) for bit in Z.T.astype(int)]
    return np.array([np.append(svm.coef_[0], svm.intercept_) for svm in svms])


def hashed(X, W):
    return (X @ W[:, :-1].T + W[:, -1] >= 0).astype(float)


# %% The decoder f: least squares.
def f_step(X, Z):
    return np.linalg.lstsq(np.column_stack([Z, np.ones(len(Z))]), X, rcond=None)[0]


def decoded(Z, A):
    return Z @ A[:-1] + A[-1]


# %% The codes Z: for every row the best of all codes, eq. (5).
def z_step(X, HX, A, mu):
    reconstruction = ((X[:, None, :] - decoded(ALL, A)) ** 2).sum(axis=2)
    mismatch = (HX[:, None, :] != ALL).sum(axis=2)
    return ALL[np.argmin(reconstruction + mu * mismatch, axis=1)]


# %% The loop: μ grows until the codes equal those of the hash function.
Z = ThresholdedPCA(L).fit(X).transform(X).astype(float)
for mu in 0.01 * 2.0 ** np.arange(30):
    W, A = h_step(X, Z), f_step(X, Z)
    Z = z_step(X, hashed(X, W), A, mu)
    HX = hashed(X, W)
    E_Q = ((X - decoded(Z, A)) ** 2).sum() + mu * np.sum(Z != HX)
    E_BA = ((X - decoded(HX, f_step(X, HX))) ** 2).sum()
    differ = np.sum(Z != HX)
    print(
        f"μ = {mu:7.2f}  E_Q = {E_Q:.1f}  E_BA = {E_BA:.1f}  bits that differ: {differ}"
    )
    if not differ:
        break

# %% auxbit, from the same codes, with the paper's settings and with its own defaults.
for preset in ("paper", "default"):
    ba = BinaryAutoencoder(L, init="tpca", preset=preset, validation=None, random_state=0)
    ba.fit(X)
    error = ((X - ba.decode(ba.encode(X))) ** 2).sum()
    print(f"auxbit, preset={preset!r}: E_BA = {error:.1f} after {ba.n_iter_} iterations")
