"""The relaxed Z step: min ‖y − Rz‖² + μ‖z − h‖² over z in [0, 1]^L, by ADMM (section 4.3).

All points share G = RᵀR + μI, so one factorisation serves them all; each ends by its own residual.
Warm-started from the previous Z step's solution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from auxbit.compiled import reordering_kernel
from auxbit.maps import Float32, Float64


@dataclass(frozen=True)
class RelaxedSolver:
    """ADMM with the splitting z = w, w in the box, and scaled multipliers u. inverse : (L, L)."""

    inverse: Float64
    rho: float
    max_iter: int
    tol: float

    @classmethod
    def factorise(cls, G: Float64, *, max_iter: int, tol: float) -> RelaxedSolver:
        """Factorise G + ρI once; ρ is the geometric mean of G's extreme eigenvalues."""
        values = np.linalg.eigvalsh(G)
        largest = max(float(values[-1]), 1e-12)
        rho = float(np.sqrt(max(float(values[0]), 1e-4 * largest) * largest))
        factor = cho_factor(G + rho * np.eye(len(G)))
        return cls(np.ascontiguousarray(cho_solve(factor, np.eye(len(G)))), rho, max_iter, tol)

    def solve(self, c: Float64, w: Float32, u: Float32, todo: Any = None) -> Float64:
        """Iterate in place on a block. c : (n, L) linear terms; w, u : (n, L) warm start and result.

        todo : (n,) bool, the rows to solve (all of them without it); the others stay as they are.
        """
        todo = np.ones(len(c), dtype=np.bool_) if todo is None else todo
        box = w.astype(np.float64)
        admm(self.rho * self.inverse, c @ self.inverse, box, u, todo, self.max_iter, self.tol)
        w[...] = box
        return box


@reordering_kernel
def admm(shift: Any, target: Any, W: Any, U: Any, todo: Any, max_iter: Any, tol: Any) -> None:
    """ADMM for each row to do, until neither w nor z − w moves by more than tol. W, U : (n, L), in place."""
    n, L = W.shape
    z, w, u = np.empty(L), np.empty(L), np.empty(L)
    for k in range(n):
        if not todo[k]:
            continue
        for j in range(L):
            w[j], u[j] = W[k, j], U[k, j]
        for _ in range(max_iter):
            for j in range(L):
                z[j] = target[k, j]
            for i in range(L):
                step = w[i] - u[i]
                for j in range(L):
                    z[j] += step * shift[i, j]
            residual = 0.0
            for j in range(L):
                total = u[j] + z[j]
                box = min(max(total, 0.0), 1.0)
                residual = max(residual, abs(box - w[j]), abs(z[j] - box))
                w[j] = box
                u[j] = total - box
            if residual < tol:
                break
        for j in range(L):
            W[k, j], U[k, j] = w[j], u[j]
