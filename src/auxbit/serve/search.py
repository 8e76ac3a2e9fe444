"""Answers: an item, an upload or a vector as a query; the nearest by a mode, perhaps within a radius."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from auxbit.collection.collection import Collection
from auxbit.core.types import Array, Ids, Packed
from auxbit.errors import AuxbitError, InvalidInput
from auxbit.serve import schemas
from auxbit.serve.security import MAX_RANKED, Problem, not_found
from auxbit.serve.state import ITEMS, Site, Upload, bits_text, consistently, modes_of

UPLOADS = "/api/v1/uploads"


@dataclass(frozen=True)
class Wanted:
    """How to search: for the k nearest, by a mode (None: the collection's own), within a Hamming radius."""

    k: int
    mode: str | None
    radius: int | None


@dataclass(frozen=True, eq=False)
class Asked:
    """What to search for: one of the three."""

    id: int | None = None
    upload: Upload | None = None
    vector: Array | None = None


def answer(site: Site, asked: Asked, wanted: Wanted) -> dict[str, Any]:
    """The document of an answer."""
    start = time.perf_counter()
    document = consistently(site.collection, lambda: _answer(site, asked, wanted))
    document["milliseconds"] = round(1000 * (time.perf_counter() - start), 3)
    return document


def warm_up(site: Site) -> None:
    """Load the model and the codes, and compile what searches need, before somebody waits for it."""
    ids = site.collection.ids
    for mode in modes_of(site.collection.manifest)[0] if len(ids) else ():
        for radius in (None, 1):
            with suppress(AuxbitError):  # whoever searches is told what is damaged
                answer(site, Asked(id=int(ids[0])), Wanted(1, mode, radius))


def _answer(site: Site, asked: Asked, wanted: Wanted) -> dict[str, Any]:
    collection = site.collection
    manifest = collection.manifest
    modes, default = modes_of(manifest)
    mode = wanted.mode or default
    if mode not in modes:
        raise Problem(422, "invalid", f"mode {mode} is not possible here. Possible are: {', '.join(modes)}.")
    if wanted.radius is not None and wanted.radius > manifest.n_bits:
        raise Problem(422, "invalid", f"radius must be at most the {manifest.n_bits} bits of a code.")
    if asked.id is not None:
        x, code = _of_item(site, asked.id, mode)
    else:
        x, code = _of_vector(collection, asked.vector if asked.upload is None else asked.upload.vector)
    if wanted.radius is None:
        distances, ids = _nearest(collection, x, code, mode, wanted.k, asked.id)
    else:
        distances, ids = _within(collection, x, code, mode, wanted.k, asked.id, wanted.radius)
    query, results = _documents(site, asked, code, manifest.n_bits, distances, ids)
    return {
        "query": query,
        "mode": mode,
        "k": wanted.k,
        "radius": wanted.radius,
        "items": len(collection),
        "milliseconds": 0.0,
        "results": results,
    }


def _of_item(site: Site, id_: int, mode: str) -> tuple[Array | None, Packed]:
    """The vector of an item, (1, D), if the mode needs it, and its code, (1, bytes)."""
    collection = site.collection
    try:
        code = np.frombuffer(site.known.of([id_])[0].code, dtype=np.uint8)[None]
        return None if mode == "hamming" else collection.vectors([id_]).astype(np.float32), code
    except InvalidInput:
        if id_ in collection:
            raise
        raise not_found(f"Item {id_}") from None


def _of_vector(collection: Collection, vector: Array | None) -> tuple[Array, Packed]:
    """A vector from outside as (1, D) float32, and its code, (1, bytes)."""
    assert vector is not None
    dimension = collection.manifest.n_features
    if vector.shape != (dimension,):
        raise Problem(
            422, "invalid", f"vector has {len(vector)} numbers; those of this collection have {dimension}."
        )
    with np.errstate(over="ignore"):
        x = vector.astype(np.float32)[None]
    if not np.isfinite(x).all():
        raise Problem(422, "invalid", "vector has numbers that are too large for float32.")
    return x, collection.model.encode(x)


def _nearest(
    collection: Collection, x: Array | None, code: Packed, mode: str, k: int, own: int | None
) -> tuple[Array, Ids]:
    """Distances and ids of the k nearest, without the item searched from."""
    some = k + 1 if own is not None else k
    if mode == "hamming":
        distances, ids = collection.search(codes=code, k=some, mode="hamming")
    elif mode == "asymmetric":
        distances, ids = collection.search(x, some, mode="asymmetric")
    else:
        distances, ids = collection.search(x, some, codes=code, rerank=True)
    keep = np.flatnonzero((ids[0] >= 0) & (ids[0] != (-1 if own is None else own)))[:k]
    found: Array = distances[0][keep]
    return (found if mode == "hamming" else _roots(found)), ids[0][keep]


def _within(
    collection: Collection, x: Array | None, code: Packed, mode: str, k: int, own: int | None, radius: int
) -> tuple[Array, Ids]:
    """As `_nearest`, of what lies within the radius; of more than MAX_RANKED, of the nearest by Hamming."""
    some = (k if mode == "hamming" else MAX_RANKED) + 1
    distances, ids = collection.search(codes=code, k=min(some, len(collection) or 1), mode="hamming")
    near = (ids[0] >= 0) & (distances[0] <= radius) & (ids[0] != (-1 if own is None else own))
    bits, candidates = distances[0][near], ids[0][near]
    if mode == "hamming" or not len(candidates):
        return bits[:k], candidates[:k]
    assert x is not None
    squared = (_to_reconstructions if mode == "asymmetric" else _to_vectors)(collection, x, candidates)
    best = np.argsort(squared, kind="stable")[:k]
    return _roots(squared[best]), candidates[best]


def _to_reconstructions(collection: Collection, x: Array, ids: Ids) -> Array:
    """‖x − f(z)‖² for the codes z of these items."""
    decoder, codes = collection.model.decoder_, collection.codes(ids)
    with np.errstate(over="ignore", invalid="ignore"):
        tables, offset = decoder.query_tables(x)[0], decoder.query_offsets(x)[0]
        terms = tables[np.arange(codes.shape[1]), codes].sum(axis=1, dtype=np.float64)
        squared: Array = offset + terms + decoder.squared_norms(codes)
    return squared


def _to_vectors(collection: Collection, x: Array, ids: Ids) -> Array:
    """‖x − y‖² for the vectors y of these items, of rows divided by their norms if the model does so."""
    rows = np.concatenate([x, collection.vectors(ids)], axis=0, dtype=np.float64)
    if collection.model.normalize:
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        rows /= np.where(norms > 0, norms, 1.0)
    difference = rows[1:] - rows[0]
    with np.errstate(over="ignore"):  # in float32, as a search without a radius has them
        squared: Array = np.einsum("nd,nd->n", difference, difference).astype(np.float32)
    return squared


def _roots(squared: Array) -> Array:
    if not np.isfinite(squared).all():
        raise InvalidInput("the vector is too far from all others: distances to it cannot be told apart.")
    roots: Array = np.sqrt(np.maximum(squared, 0)).astype(np.float64)
    return roots


def _documents(
    site: Site, asked: Asked, code: Packed, n_bits: int, distances: Array, ids: Ids
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The query and its results."""
    known = site.known.of(ids.tolist())
    query = _query(site, asked)
    (query["code"],) = bits_text(code, n_bits)
    codes = np.frombuffer(b"".join(each.code for each in known), dtype=np.uint8).reshape(-1, code.shape[1])
    hamming = np.bitwise_count(codes ^ code).sum(axis=1, dtype=np.int64)
    results = []
    for each, distance, bits in zip(known, distances.tolist(), hamming.tolist(), strict=True):
        url = f"{ITEMS}/{each.item['id']}/reconstruction" if site.reconstructs else None
        results.append(
            {**each.item, "reconstruction": url, "distance": distance, "hamming": bits, "code": each.bits}
        )
    return query, results


def _query(site: Site, asked: Asked) -> dict[str, Any]:
    about: dict[str, Any] = dict.fromkeys(schemas.Query.model_fields)
    if asked.id is not None:
        place = f"{ITEMS}/{asked.id}"
        about |= site.known.of([asked.id])[0].item
    elif asked.upload is not None:
        upload, place = asked.upload, f"{UPLOADS}/{asked.upload.hash}"
        about |= {"upload": upload.hash, "file": upload.file, "width": upload.width, "height": upload.height}
        about["thumbnail"] = f"{place}/thumbnail"
    else:
        return about
    about["reconstruction"] = f"{place}/reconstruction" if site.reconstructs else None
    return about
