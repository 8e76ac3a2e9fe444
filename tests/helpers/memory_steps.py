"""The steps of MAC on rows in memory, in one call."""

from __future__ import annotations

from typing import Any

from auxbit.mac.steps import MemoryRows, Reconstruction, Steps


class MemorySteps(Steps):
    """Steps on X, (n, D), with the codes Z, (n, L), which are changed in place."""

    def __init__(self, X: Any, Z: Any, workers: Any, *, z: Any, **options: Any) -> None:
        super().__init__(MemoryRows(X, Z, workers), objective=Reconstruction(z), **options)
        self.X, self.Z = X, Z
