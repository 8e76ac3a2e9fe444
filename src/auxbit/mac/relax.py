"""The relaxed Z step: min ‖y − Rz‖² + μ‖z − h‖² over z in [0, 1]^L, by ADMM (section 4.3).

All N problems share G = RᵀR + μI, so one factorisation serves them all and an iteration is a matrix
product and a clip. Warm-started from the previous Z step's solution.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from auxbit.maps import Float32, Float64


@dataclass(frozen=True)
class RelaxedSolver:
    """ADMM with the splitting z = w, w in the box, and scaled multipliers u. inverse : (L, L)."""

    inverse: Float64
    rho: float
    max_iter: int
    tol: float

    @classmethod
    def factorise(cls, G: Float64, *, max_iter: int = 10, tol: float = 1e-3) -> RelaxedSolver:
        """Factorise G + ρI once; ρ is the geometric mean of G's extreme eigenvalues."""
        values = np.linalg.eigvalsh(G)
        largest = max(float(values[-1]), 1e-12)
        rho = float(np.sqrt(max(float(values[0]), 1e-4 * largest) * largest))
        factor = cho_factor(G + rho * np.eye(len(G)))
        return cls(cho_solve(factor, np.eye(len(G))), rho, max_iter, tol)

    def solve(self, c: Float64, w: Float32, u: Float32) -> Float64:
        """Iterate in place on a block. c : (n, L) linear terms; w, u : (n, L) warm start and result."""
        target, shift = c @ self.inverse, self.rho * self.inverse
        box, multiplier = w.astype(np.float64), u.astype(np.float64)
        for _ in range(self.max_iter):
            z = target + (box - multiplier) @ shift
            multiplier += z
            new_box = np.clip(multiplier, 0.0, 1.0)
            multiplier -= new_box
            change = np.abs(new_box - box).max(initial=0.0)
            gap = np.abs(z - new_box).max(initial=0.0)
            box = new_box
            if max(change, gap) < self.tol:
                break
        w[...], u[...] = box, multiplier
        return box
