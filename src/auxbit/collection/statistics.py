"""What a collection holds, and whether its model still fits what is added."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from auxbit.collection.manifest import Errors
from auxbit.collection.snapshot import Snapshot
from auxbit.collection.storage import Storage
from auxbit.errors import ModelFileError

if TYPE_CHECKING:  # SciPy and numba, which opening a collection need not wait for
    from auxbit.collection.drift import Drift
    from auxbit.hashers.base import Hasher

Positions = npt.NDArray[np.int64]

COMPARED_ROWS = 10_000  # a sample of what was added
NEWEST_ROWS = 4096  # and those that came last, which show a change before it shows in all


@dataclass(frozen=True)
class Statistics:
    """Sizes, and drift. drift : by "added", a sample of all since the training, and "newest", the last 4096.

    retrain : whether retraining is due, for `reasons`; where nothing can be compared, reasons say why.
    """

    path: str
    items: int
    deleted: int
    n_bits: int
    n_features: int | None
    method: str | None
    coding: str
    vectors: str | None
    segments: int
    bytes: dict[str, int] = field(default_factory=dict)
    added: int = 0
    drift: dict[str, Drift] = field(default_factory=dict)
    retrain: bool = False
    reasons: list[str] = field(default_factory=list)

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


def statistics_of(storage: Storage) -> Statistics:
    """Measure a collection as it is now."""
    view = storage.view
    present = view.present()  # first: the snapshot after it has their rows
    snapshot = view.snapshot
    manifest = snapshot.manifest
    added = present[present >= manifest.trained_at]
    drift: dict[str, Drift] = {}
    method, reasons = None, ["codes alone: there is no model to compare with"]
    if manifest.model is not None:
        try:
            model = view.model()
            method = type(model).__name__
            drift, reasons = _drift(model, snapshot, added)
        except ModelFileError as error:  # the rest can still be counted
            reasons = [str(error)]
    due = any(found.due for found in drift.values())
    return Statistics(
        str(storage.folder), len(present), snapshot.n_positions - len(present), manifest.n_bits,
        manifest.n_features, method, manifest.coding, manifest.vectors, len(manifest.segments),
        _bytes(snapshot), len(added), drift, due, reasons,
    )  # fmt: skip


def _drift(model: Hasher, snapshot: Snapshot, added: Positions) -> tuple[dict[str, Drift], list[str]]:
    """What was added against what was trained on, and sentences about it."""
    manifest = snapshot.manifest
    record = getattr(model, "training_", None)
    if record is None:
        return {}, ["the model has no record of what it was trained on: it was saved by an older version"]
    if not record.is_of(manifest.coding, manifest.mu):
        return {}, [
            f"the model's record is of {record.coding} codes, the collection's are {manifest.coding}: "
            "call fit_decoder(X, mu=…) with the mu of the collection before it is created"
        ]
    if not len(added):
        return {}, ["nothing has been added since the model was trained"]
    from auxbit.collection.drift import compare

    some = added
    if len(added) > COMPARED_ROWS:
        some = np.sort(np.random.default_rng(0).choice(added, COMPARED_ROWS, replace=False))
    samples = {"added": (some, int(added[0]))}
    if len(added) > NEWEST_ROWS:
        samples["newest"] = added[-NEWEST_ROWS:], int(added[-NEWEST_ROWS])
    found = {
        name: compare(record, snapshot.codes(rows), manifest.n_bits, _error(model, snapshot, rows, first))
        for name, (rows, first) in samples.items()
    }
    reasons = [
        f"{reason} ({name})" if each.due else reason
        for name, each in found.items()
        for reason in each.reasons
    ]
    return found, list(dict.fromkeys(reasons))


def _error(model: Hasher, snapshot: Snapshot, rows: Positions, first: int) -> float | None:
    """The reconstruction error of these rows from their vectors, else as measured when they came."""
    if snapshot.manifest.vectors is not None:
        return model._error_of(snapshot.vectors(rows), snapshot.codes(rows))
    parts = zip(snapshot.manifest.segments, snapshot.starts[1:], strict=True)
    measured = sum((part.errors for part, end in parts if end > first), Errors())
    return measured.mean if measured.rows else None


def _bytes(snapshot: Snapshot) -> dict[str, int]:
    """Bytes on disk by what they hold."""
    found: dict[str, int] = {}
    for segment in snapshot.parts():
        for name, place in segment.places.items() if segment is not None else ():
            kind = "metadata" if name in ("offsets", "text") else name
            found[kind] = found.get(kind, 0) + place.stop - place.start
    total = sum(part.bytes for part in (*snapshot.manifest.segments, *snapshot.manifest.removed))
    return found | {"total": total}
