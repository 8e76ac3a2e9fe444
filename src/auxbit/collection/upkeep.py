"""The upkeep of a collection: merging small segments, compaction, retraining."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from auxbit.codes import Packed
from auxbit.collection.coding import coding_of
from auxbit.collection.manifest import Errors, Manifest, Part
from auxbit.collection.rewriting import Advance, copied_columns
from auxbit.collection.segment_file import Written
from auxbit.collection.snapshot import Snapshot
from auxbit.collection.storage import Storage
from auxbit.errors import InvalidInput

if TYPE_CHECKING:  # scikit-learn takes longer to import than a collection to open
    from auxbit.hashers.base import Hasher

Ids = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

MERGED = 16  # segments of a size that become one
MERGED_BYTES = 2**30  # larger ones are left to compact
MOST_PARTS = 128
MEASURED_ROWS = 4096  # of an addition, whose reconstruction errors are kept
TRAINING_ROWS = 100_000


def compact(storage: Storage, advance: Advance | None = None) -> None:
    """Write what is not deleted into one segment, and let go of the rest."""
    with storage.repairing() as manifest:
        positions = storage.view.present()
        errors = _errors_of(storage.view.snapshot)
        _replace_all(storage, manifest.but(), positions, manifest.n_bits, None, errors, advance)


def retrain(
    storage: Storage,
    model: Hasher | None,
    X: Array | None,
    advance: Advance | None,
    step: Callable[[str], None],
) -> Hasher:
    """Train, or take `model`, write the new codes beside the old, and switch to them in one step."""
    with storage.changing() as manifest:
        view = storage.view
        positions, snapshot = view.present(), view.snapshot
        if X is not None and (np.ndim(X) != 2 or len(X) != len(positions)):
            raise InvalidInput(
                f"X must have a row for each of the {len(positions):,} items, in the order of ids."
            )
        if model is None and not len(positions):
            raise InvalidInput(f"{storage.folder} is empty: there is nothing to train on.")
        if X is None and manifest.vectors is None:
            raise InvalidInput(
                "the collection keeps no vectors to make new codes from. Give X, a row for each item in the "
                'order of ids; or create it with vectors="float16".'
            )

        def rows_of(some: slice | Ids) -> Array:
            return X[some] if X is not None else snapshot.vectors(positions[some])

        if model is None:
            model = _trained(storage, manifest, rows_of, len(positions), step)
        step("encoding")
        if manifest.n_features is not None and model.n_features_in_ != manifest.n_features:
            raise InvalidInput(
                f"the model is for rows of {model.n_features_in_} numbers, the collection for "
                f"{manifest.n_features}."
            )

        coding, mu = manifest.coding, manifest.mu
        if manifest.model is None:  # its codes were made elsewhere, or are still to be made
            coding, mu = coding_of(model, None, None)

        def codes(rows: slice) -> Packed:
            return model.encode(rows_of(rows), coding=coding, mu=mu)

        n_bits = model.decoder_.n_bits
        name = storage.write_model(manifest, model)
        after = manifest.but(
            model=name, n_bits=n_bits, n_features=model.n_features_in_, next_file=manifest.next_file + 1,
            trained_at=len(positions), coding=coding, mu=mu,
        )  # fmt: skip
        _replace_all(storage, after, positions, n_bits, codes, Errors(), advance)
    return model


def _replace_all(
    storage: Storage, manifest: Manifest, positions: Ids, n_bits: int, codes: Any,
    errors: Errors, advance: Advance | None,
) -> None:  # fmt: skip
    """Commit a generation with these rows alone, in one segment."""
    snapshot = storage.view.snapshot
    segments: tuple[Part, ...] = ()
    if len(positions):
        columns = copied_columns(snapshot, positions, n_bits=n_bits, codes=codes, advance=advance)
        written = storage.write(manifest, len(positions), columns)
        segments = (Part(written.file, written.rows, written.bytes, written.check, errors),)
    trained_at = int(np.searchsorted(positions, manifest.trained_at)) if codes is None else len(positions)
    storage.commit(
        manifest.but(
            segments=segments, removed=(), generation=manifest.generation + 1, trained_at=trained_at,
            next_file=manifest.next_file + 1,
        )
    )  # fmt: skip


def _trained(
    storage: Storage, manifest: Manifest, rows_of: Callable[[Ids], Array], n: int, step: Callable[[str], None]
) -> Hasher:
    """A model like the present one, fitted to the rows of the collection, or to a sample of them."""
    from sklearn.base import clone

    old = storage.view.model()
    some = np.arange(n)
    if n > TRAINING_ROWS:
        some = np.sort(np.random.default_rng(0).choice(n, TRAINING_ROWS, replace=False))
    X = np.asarray(rows_of(some), dtype=np.float32)
    step(f"training on {len(X):,} rows")
    model: Hasher = clone(old).fit(X)
    if manifest.coding == "optimal":
        step("fitting the decoder")
        kind = "tables" if hasattr(old.decoder_, "tables") else "linear"
        model.fit_decoder(X, kind, mu=manifest.mu)
    return model


def measured_errors(model: Hasher, X: Array, packed: Packed) -> Errors:
    """The reconstruction errors of some of the rows."""
    some = np.unique(np.linspace(0, len(X) - 1, min(len(X), MEASURED_ROWS)).astype(np.int64))
    return Errors(len(X), model._error_of(np.asarray(X[some]), packed[some]))


def _errors_of(snapshot: Snapshot) -> Errors:
    """Of what was added since the training."""
    parts = zip(snapshot.manifest.segments, snapshot.starts[1:], strict=True)
    return sum((part.errors for part, end in parts if end > snapshot.manifest.trained_at), Errors())


def tidy(storage: Storage) -> None:
    """Merge small segments; a failure leaves them as they are, and the change that led to it."""
    try:
        manifest = storage.manifest
        starts = storage.view.snapshot.starts
        # what was trained on and what was added since stay apart: their errors are not to be mixed
        border = int(np.searchsorted(starts[:-1], manifest.trained_at))
        for first, parts in ((0, manifest.segments[:border]), (border, manifest.segments[border:])):
            run = run_to_merge(parts)
            if run is not None:
                _merge(storage, slice(first + run.start, first + run.stop))
                return
    except (OSError, MemoryError):  # a full disk, or damage that a search will name
        storage.sweep()


def _merge(storage: Storage, run: slice) -> None:
    """Make one segment of several; positions stay as they are."""
    manifest, snapshot = storage.manifest, storage.view.snapshot
    positions = np.arange(snapshot.starts[run.start], snapshot.starts[run.stop])
    columns = copied_columns(snapshot, positions, n_bits=manifest.n_bits)
    written = storage.write(manifest, len(positions), columns)
    errors = sum((part.errors for part in manifest.segments[run]), Errors())
    part = Part(written.file, written.rows, written.bytes, written.check, errors)
    segments = (*manifest.segments[: run.start], part, *manifest.segments[run.stop :])
    storage.commit(manifest.but(segments=segments, next_file=manifest.next_file + 1))


def run_to_merge(parts: Sequence[Written]) -> slice | None:
    """Which files are to become one, None where none are.

    Sizes are classes by powers of 16: sixteen of one class, with smaller ones among them, make one of the
    next, so that each row is copied about once a class. Where sizes alternate so that many are left, the
    sixteen neighbours with the fewest bytes become one.
    """

    def size_class(part: Written) -> int:
        return (part.rows.bit_length() - 1) // (MERGED.bit_length() - 1)

    classes = [size_class(part) for part in parts]
    for level in range(max(classes, default=-1) + 1):
        first = len(parts)
        while first and classes[first - 1] <= level:
            first -= 1
        small = sum(part.bytes for part in parts[first:]) <= MERGED_BYTES
        if small and classes[first:].count(level) >= MERGED:
            return slice(first, len(parts))
    if len(parts) <= MOST_PARTS:
        return None
    sizes = np.convolve([part.bytes for part in parts], np.ones(MERGED), mode="valid")
    least = int(sizes.argmin())
    return slice(least, least + MERGED)
