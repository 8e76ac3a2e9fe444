"""What `collection create`, `delete`, `compact` and `retrain` do: plain functions that print nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from auxbit.cli import tasks
from auxbit.cli.collection_rows import Rows, check_width, read_rows
from auxbit.collection.collection import Collection, refuse_existing
from auxbit.collection.storage import MANIFEST, TRAINING_ROWS, coding_of
from auxbit.core.checks import check_integer
from auxbit.core.codes import check_n_bits
from auxbit.core.parallel import sample_rows
from auxbit.core.types import Array
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.hashers.registry import label_of, make_hasher

if TYPE_CHECKING:
    from auxbit.hashers.base import Hasher

Step = Callable[[str], None]
OnRecord = Callable[[Any], object]


@dataclass(frozen=True)
class Plan:
    """A collection to be made. hasher : fitted where it comes from a file, None where there are codes alone.

    coding, mu, decoder : as asked for; None for what suits the model.
    """

    out: str
    n_bits: int
    hasher: Hasher | None
    rows: Rows | None
    vectors: str | None
    coding: str | None
    mu: float | None
    decoder: str | None


def plan(
    out: str, *, data: str | None, codes: bool, ids: str | None, metadata: str | None, model: str | None,
    method: str | None, bits: int | None, parameters: dict[str, Any], vectors: str | None, coding: str | None,
    mu: float | None, decoder: str | None, force: bool,
) -> Plan:  # fmt: skip
    """Read and check all that a collection is to be made of, before the work and before anything is written.

    `model` is a file; else a model of `method` and `parameters` is to be fitted to the data; with neither it
    is a collection of codes alone.
    """
    refuse_existing(Path(out), overwrite=force)
    tasks.check_output(Path(out) / MANIFEST, force=force)
    if coding is not None or mu is not None:
        tasks.check_coding(coding or "optimal", mu or 0.0)
    hasher, n_features, n_bits = None, None, bits or 0
    if model is not None:
        hasher = tasks.load_model(model)
        n_bits, n_features = hasher.decoder_.n_bits, int(hasher.n_features_in_)
    elif method is not None and data is not None:
        check_integer("seed", parameters["random_state"], 0, tasks.LARGEST_SEED)
        hasher = make_hasher(method, check_n_bits(n_bits), **parameters)
        n_features = tasks.read(data).shape[1]
    rows = None
    if data is not None:
        codes_alone = codes or hasher is None
        rows = read_rows(data, ids, metadata, codes=codes_alone, n_bits=n_bits, n_features=n_features)
        if rows.are_codes and vectors is not None:
            raise InvalidInput(f"{data} holds codes, without vectors to keep: leave --vectors out.")
    return Plan(out, check_n_bits(n_bits), hasher, rows, vectors, coding, mu, decoder)


def create(plan: Plan, *, force: bool, n_jobs: int | None, step: Step, on_record: OnRecord) -> Collection:
    """Make the empty collection of a plan; its model is fitted first, where that is not so yet."""
    coding, mu = "hash", 0.0
    if plan.hasher is not None:
        rows = plan.rows if plan.rows is not None and not plan.rows.are_codes else None
        if not hasattr(plan.hasher, "encoder_"):
            if rows is None:
                raise InvalidInput("a model is fitted to vectors, and the data are codes. Give --model.")
            train(plan.hasher, rows.X, rows.source, on_record)
        coding, mu = _coding(plan)
        if coding == "optimal":
            X = None if rows is None else rows.X[sample_rows(len(rows.X), TRAINING_ROWS)]
            fit_for_optimal_codes(plan.hasher, X, mu, plan.decoder, step)
    return Collection.create(
        plan.out, plan.hasher, vectors=plan.vectors, coding=coding, mu=mu,
        n_bits=None if plan.hasher is not None else plan.n_bits, overwrite=force, n_jobs=n_jobs,
    )  # fmt: skip


def describe(collection: Collection) -> dict[str, Any]:
    """The facts of a collection that was made or changed."""
    state = collection.manifest
    return {
        "collection": str(collection.path),
        "items": len(collection),
        "bits": state.n_bits,
        "dimensions": state.n_features,
        "method": None if state.model is None else label_of(collection.model),
        "coding": state.coding,
        "mu": state.mu,
        "vectors": state.vectors,
    }


def compact(collection: Collection, advance: Callable[[int], None]) -> dict[str, Any]:
    """Compact a collection; returns how much smaller it became."""
    before, deleted = _bytes(collection), collection.manifest.n_positions - len(collection)
    damage = collection.damage
    collection.compact(advance=advance)
    return {
        "collection": str(collection.path),
        "items": len(collection),
        "dropped": deleted,
        "bytes_before": before,
        "bytes_after": _bytes(collection),
        "damage": damage,
    }


def retrain(
    collection: Collection, *, model: str | None, data: str | None, method: str | None, bits: int | None,
    seed: int | None, step: Step, advance: Callable[[int], None], on_record: OnRecord,
) -> dict[str, Any]:  # fmt: skip
    """Make new codes by the model in a file, or by one that is fitted to the items; returns the facts."""
    state, X = collection.manifest, None
    if not len(collection):
        raise InvalidInput(f"{collection.path} is empty: there is nothing to train on, nor to encode.")
    if data is not None:
        X = _rows_of_items(collection, data)
    elif state.vectors is None:
        raise InvalidInput(
            f"{collection.path} keeps no vectors to make new codes from. Add --data FILE, a row for each of "
            f"its {len(collection):,} items, in the order they were added in."
        )
    hasher = None
    if model is not None:
        hasher = tasks.load_model(model)
        if state.n_features not in (None, hasher.n_features_in_):
            raise InvalidInput(
                f"{model} is for vectors of {hasher.n_features_in_}, the collection for {state.n_features}."
            )
    elif method is not None or bits is not None or seed is not None:
        hasher = _new_model(collection, method, bits, seed)
    elif state.model is None:
        raise InvalidInput(
            f"{collection.path} has no model to train again. Add --model, or --method and --bits."
        )
    if hasher is not None and (model is None or state.coding == "optimal"):
        sample = _sample(collection, X)
        if model is None:
            step(f"training on {len(sample):,} rows")
            train(hasher, sample, str(collection.path), on_record)
        if state.coding == "optimal":
            fit_for_optimal_codes(hasher, sample, state.mu, None, step)
    collection.retrain(hasher, X=X, advance=advance, step=step)
    return describe(collection)


def train(model: Hasher, X: Array, source: str, on_record: OnRecord) -> None:
    """Fit a model to rows, telling of its iterations where it has them."""
    if len(X) < 2:
        raise InvalidInput(f"{source} has {len(X)} row; a model needs at least 2 to be fitted to.")
    tells = "callback" in model.get_params(deep=False)
    if tells:
        model.set_params(callback=on_record)
    try:
        model.fit(X)
    except InvalidParameter as error:
        if error.parameter == "n_bits":  # checked before: it is these rows that cannot have so many
            raise InvalidInput(str(error)) from error
        raise
    finally:
        if tells:
            model.set_params(callback=None)  # it showed the progress, and is no part of the model


def fit_for_optimal_codes(model: Hasher, X: Array | None, mu: float, kind: str | None, step: Step) -> None:
    """Give a model a decoder for optimal codes, unless it has one. X : rows to fit it to, None for none."""
    from auxbit.core.decoders import TableDecoder

    present = "tables" if isinstance(model.decoder_, TableDecoder) else "linear"
    record = model.training_
    suits = record.is_of("optimal", mu) if record is not None else present == "tables"
    if suits and kind in (None, present):
        return
    if X is None:
        raise InvalidInput(
            "the model's decoder is not fitted to optimal codes of that kind. Add --data FILE of vectors to "
            "fit one to, or drop what asks for it: --coding, --mu, --decoder."
        )
    step("fitting the decoder")
    model.fit_decoder(X, kind or present, mu=mu)


def _coding(plan: Plan) -> tuple[str, float]:
    """How a collection encodes: as asked for, else as the model's decoder is meant."""
    assert plan.hasher is not None
    asked = plan.coding or ("optimal" if plan.decoder is not None or plan.mu is not None else None)
    return coding_of(plan.hasher, asked, plan.mu)


def _new_model(collection: Collection, method: str | None, bits: int | None, seed: int | None) -> Hasher:
    """A model to fit: of another method, or like the present one with other bits."""
    from sklearn.base import clone

    n_bits = check_n_bits(collection.n_bits if bits is None else bits)
    if seed is not None:
        check_integer("seed", seed, 0, tasks.LARGEST_SEED)
    if method is not None:
        return make_hasher(method, n_bits, random_state=seed or 0, n_jobs=collection.n_jobs)
    model: Hasher = clone(collection.model).set_params(n_bits=n_bits)
    return model if seed is None else model.set_params(random_state=seed)


def _rows_of_items(collection: Collection, data: str) -> Array:
    """The rows of a file, one for each item of a collection without vectors."""
    state, X = collection.manifest, tasks.read(data)
    if state.vectors is not None:
        raise InvalidInput(f"{collection.path} keeps its vectors: leave --data out.")
    if len(X) != len(collection):
        raise InvalidInput(
            f"{data} has {len(X):,} rows, and the collection {len(collection):,} items. One for each is "
            "needed, in the order they were added in, as Collection.open(…).ids lists them."
        )
    if state.n_features is not None:
        check_width(X, data, codes=False, n_bits=state.n_bits, n_features=state.n_features)
    tasks.check_all_finite(X, data)
    return X


def _sample(collection: Collection, X: Array | None) -> Array:
    """Vectors of at most 100,000 items, float32."""
    some = sample_rows(len(collection), TRAINING_ROWS)
    found = X[some] if X is not None else collection.vectors(collection.ids[some])
    return np.asarray(found, dtype=np.float32)


def _bytes(collection: Collection) -> int:
    state = collection.manifest
    return sum(part.bytes for part in (*state.segments, *state.removed))
