"""Statistics: what a collection holds, and whether its model still fits what is added."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from auxbit.collection.snapshot import Snapshot
from auxbit.core.checks import Packed, Positions
from auxbit.errors import ModelFileError
from auxbit.hashers.drift import Drift, compare_added


@dataclass(frozen=True)
class Statistics:
    """Sizes, and drift. drift : by "added", a sample of all since the training, and "newest", the last 4096.

    retrain : whether retraining is due, for `reasons`; if nothing can be compared, reasons say why.
    """

    path: str
    items: int
    deleted: int
    n_bits: int
    n_features: int | None
    method: str | None
    metric: str | None
    coding: str
    vectors: str | None
    ids: str | None
    bytes: dict[str, int] = field(default_factory=dict)
    added: int = 0
    drift: dict[str, Drift] = field(default_factory=dict)
    retrain: bool = False
    reasons: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, now: Snapshot, place: str, n_bytes: dict[str, int]) -> Statistics:
        """Measure a collection as it is now."""
        state, view, present = now.state, now.view, now.view.present()
        added = present[view.numbers_at(present) >= state.trained]
        drift: dict[str, Drift] = {}
        method, metric, reasons = None, None, ["codes alone: there is no model to compare with"]

        def read(rows: Positions, since: int) -> tuple[Packed, float | None]:
            """Codes and their mean error, from vectors, else as it was measured when the rows came."""
            codes = view.codes(rows)
            if state.vectors is not None:
                return codes, model._error_of(view.vectors(rows), codes)
            first = int(view.numbers_at(np.array([since]))[0])
            n, total = now.connection.execute(
                "SELECT sum(error_rows), sum(error_sum) FROM commits WHERE first_number + rows > ?", (first,)
            ).fetchone()
            return codes, total / n if n else None

        if state.model is not None:
            try:
                model = view.model()
                method, record = type(model).__name__, getattr(model, "training_", None)
                metric = model.scaling_.metric
                drift, reasons = compare_added(record, state.coding, state.mu, state.n_bits, added, read)
            except ModelFileError as error:  # the rest can still be counted
                reasons = [str(error)]
        due = any(found.due for found in drift.values())
        return cls(
            place, len(present), state.positions - len(present), state.n_bits - state.list_bits,
            state.n_features, method,
            metric, state.coding, state.vectors, state.ids, n_bytes, len(added), drift, due, reasons,
        )  # fmt: skip

    def document(self) -> dict[str, Any]:
        """All of it for JSON."""
        drift = {
            name: {"rows": found.n_added, "enough": found.enough,
                   "measures": [measure._asdict() for measure in found.measures]}
            for name, found in self.drift.items()
        }  # fmt: skip
        return vars(self) | {"drift": drift}
