"""Statistics: what a collection holds, and whether its model still fits what is added."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from auxbit.collection.snapshot import Snapshot
from auxbit.core.checks import Packed, Positions
from auxbit.errors import ModelFileError
from auxbit.hashers.drift import Drift, compare

if TYPE_CHECKING:
    from auxbit.hashers.base import Hasher

SAMPLED_ROWS = 10_000  # a sample of what was added
NEWEST_ROWS = 4096  # and those that came last, which show a change before it shows in all


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
        state, present = now.state, now.view.present()
        added = present[now.view.numbers_at(present) >= state.trained]
        drift: dict[str, Drift] = {}
        method, metric, reasons = None, None, ["codes alone: there is no model to compare with"]
        if state.model is not None:
            try:
                model = now.view.model()
                method, metric = type(model).__name__, model.scaling_.metric
                drift, reasons = _drift(model, now, added)
            except ModelFileError as error:  # the rest can still be counted
                reasons = [str(error)]
        due = any(found.due for found in drift.values())
        return cls(
            place, len(present), state.positions - len(present), state.n_bits, state.n_features, method,
            metric, state.coding, state.vectors, state.ids, n_bytes, len(added), drift, due, reasons,
        )  # fmt: skip

    def document(self) -> dict[str, Any]:
        """All of it for JSON."""
        drift = {
            name: {
                "rows": found.n_added,
                "enough": found.enough,
                "measures": [measure._asdict() for measure in found.measures],
            }
            for name, found in self.drift.items()
        }
        return vars(self) | {"drift": drift}


def _drift(model: Hasher, now: Snapshot, added: Positions) -> tuple[dict[str, Drift], list[str]]:
    """What was added against what was trained on, and sentences about it."""
    state, record = now.state, getattr(model, "training_", None)
    if record is None:
        return {}, ["the model has no record of what it was trained on: it was saved by an older version"]
    if not record.is_of(state.coding, state.mu):
        return {}, [
            f"the model's record is of {record.coding} codes, the collection's are {state.coding}: "
            "call fit_decoder(X, mu=…) with the mu of the collection before it is created"
        ]
    if not len(added):
        return {}, ["nothing has been added since the model was trained"]
    samples = {"added": added}
    if len(added) > SAMPLED_ROWS:
        samples["added"] = np.sort(np.random.default_rng(0).choice(added, SAMPLED_ROWS, replace=False))
    firsts = {"added": state.trained}
    if len(added) > NEWEST_ROWS:
        samples["newest"] = added[-NEWEST_ROWS:]
        firsts["newest"] = int(now.view.numbers_at(added[-NEWEST_ROWS : -NEWEST_ROWS + 1])[0])
    found = {}
    for name, rows in samples.items():
        codes = now.view.codes(rows)
        found[name] = compare(record, codes, state.n_bits, _mean_error(model, now, rows, codes, firsts[name]))
    reasons = [
        f"{reason} ({name})" if each.due else reason
        for name, each in found.items()
        for reason in each.reasons
    ]
    return found, list(dict.fromkeys(reasons))


def _mean_error(model: Hasher, now: Snapshot, rows: Positions, codes: Packed, first: int) -> float | None:
    """The reconstruction error of these rows from their vectors, else as measured when they came."""
    if now.state.vectors is not None:
        return model._error_of(now.view.vectors(rows), codes)
    n, total = now.connection.execute(
        "SELECT sum(error_rows), sum(error_sum) FROM commits WHERE first_number + rows > ?", (first,)
    ).fetchone()
    return total / n if n else None
