"""The appendix's conditions: recognising a global minimiser of a binary quadratic when we stand on it.

In ±1 variables s = 2z − 1 the Z step's e(z) is ½sᵀQs + bᵀs + constant with Q = ½G, G = RᵀR + μI,
and (Qs + b) = Gz − c =: v, half the gradient of e at z. So each condition reads off v alone:

  sufficient (Beck & Teboulle)     s_i v_i ≤ λ_min(Q) for all i
  sufficient (Jeyakumar et al.)    s_i v_i ≤ q̃_i = Q_ii − Σ_{j≠i} |Q_ij| for all i
  necessary                        s_i v_i ≤ Q_ii for all i: no single flip lowers e

Either sufficient condition is enough by itself. The appendix's two tests on the relaxed solution x are
special cases for y = sgn(x): where x is binary, s_i v_i ≤ 0 ≤ λ_min; and Y Q (y − x) ≤ λ_min together
with the relaxed problem's own optimality gives s_i v_i ≤ λ_min. So testing the binarised code covers them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from auxbit.compiled import kernel
from auxbit.maps import Float64


@dataclass(frozen=True)
class Thresholds:
    """What s_i v_i is held against, for all points: λ_min, q̃ and diag(Q), each (L,)."""

    smallest_eigenvalue: Float64
    row_gap: Float64
    diagonal: Float64


def thresholds(G: Float64) -> Thresholds:
    """λ_min(Q), q̃ and diag(Q) for Q = ½G, once for all points; lowered by what rounding could add."""
    Q = 0.5 * G
    values = np.linalg.eigvalsh(Q)
    slack = 1e-12 * max(float(values[-1]), 1e-300)
    diagonal = Q.diagonal().copy()
    row_gap = 2 * diagonal - np.abs(Q).sum(axis=1)
    return Thresholds(np.full(len(Q), values[0] - slack), row_gap - slack, diagonal)


@kernel
def passes(z: Any, v: Any, threshold: Any) -> bool:
    """Whether s_i v_i ≤ threshold_i for all i. z : (L,) uint8 of 0/1, v = Gz − c."""
    for i in range(z.size):  # noqa: SIM110  numba has no generators
        if (v[i] if z[i] else -v[i]) > threshold[i]:
            return False
    return True
