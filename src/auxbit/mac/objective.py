"""The objective functions of the paper, from sums over rows.

E_BA(h, f)   = Σ ‖x − f(h(x))‖²                       the binary autoencoder, eq. (2)
E_BFA(Z, f)  = Σ ‖x − f(z)‖²                          binary factor analysis, eq. (3): the codes are free
E_Q(Z, h, f) = Σ ‖x − f(z)‖² + μ‖z − h(x)‖²           the quadratic penalty that MAC descends on, eq. (5)

Records of a fit have E_Q and E_BA. The Z step sums them up on its way, in the coordinates of theorem 4.2,
y = Qᵀ(x − b): what it leaves out, Σ ‖x − b‖² − ‖y‖², depends on no code, so it is added here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from auxbit.core.decoders import LinearDecoder
from auxbit.core.types import Float64


@dataclass(frozen=True)
class Moments:
    """Of n rows. gram : (D+1, D+1) XᵀX with a feature of 1; total : (D,) Σx; squared_norm : Σ‖x‖²."""

    gram: Float64
    total: Float64
    squared_norm: float

    @classmethod
    def of(cls, XX: Float64, total: Float64, n: int) -> Moments:
        """From XᵀX, (D, D), and Σx."""
        D = len(total)
        gram = np.empty((D + 1, D + 1))
        gram[:D, :D], gram[:D, D], gram[D, :D], gram[D, D] = XX, total, total, n
        return cls.of_gram(gram)

    @classmethod
    def of_gram(cls, gram: Float64) -> Moments:
        """From XᵀX with the feature of 1."""
        return cls(gram, gram[-1, :-1].copy(), float(np.trace(gram[:-1, :-1])))

    @property
    def n(self) -> int:
        """How many rows."""
        return int(self.gram[-1, -1])


def energies(sums: Sequence[Any], f: LinearDecoder, rows: Moments) -> tuple[float, float]:
    """E_Q and E_BA. sums : of the Z step, e(z), e(h(x)) without its penalty of 0, and ‖y‖²."""
    energy, hash_energy, projected = (float(each) for each in sums[:3])
    rest = rows.squared_norm - 2 * float(f.b @ rows.total) + rows.n * float(f.b @ f.b) - projected
    return energy + rest, hash_energy + rest
