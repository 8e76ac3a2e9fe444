"""Answers: an item, an upload or a vector as a query; the nearest by a mode, perhaps within a radius."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from auxbit.core.checks import Array, Ids, Packed
from auxbit.errors import AuxbitError, InvalidInput
from auxbit.index.asymmetric import distances_by
from auxbit.serve import schemas
from auxbit.serve.security import MAX_RANKED, Problem, not_found
from auxbit.serve.state import ITEMS, Site, Upload, bits_text, consistently, modes_of


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
    document = consistently(site.collection, lambda: _Search(site, asked, wanted).answer())
    document["milliseconds"] = round(1000 * (time.perf_counter() - start), 3)
    return document


def warm_up(site: Site) -> None:
    """Load the model and the codes, and compile what searches need, before somebody waits for it."""
    ids = site.collection.ids
    for mode in modes_of(site.collection.state)[0] if len(ids) else ():
        for radius in (None, 1):
            with suppress(AuxbitError):  # whoever searches is told what is damaged
                answer(site, Asked(id=int(ids[0])), Wanted(1, mode, radius))


class _Search:
    """One search. x : the query as (1, D) float32, None if the mode does not need it; code : (1, bytes)."""

    def __init__(self, site: Site, asked: Asked, wanted: Wanted) -> None:
        self.site, self.collection, self.asked, self.wanted = site, site.collection, asked, wanted
        self.state, self.reconstructs = self.collection.state, site.reconstructs
        self.n_bits, self.metric = self.state.n_bits, self.collection.model.scaling_.metric
        modes, default = modes_of(self.state)
        self.mode = wanted.mode or default
        if self.mode not in modes:
            text = f"mode {self.mode} is not possible here. Possible are: {', '.join(modes)}."
            raise Problem(422, "invalid", text)
        if wanted.radius is not None and wanted.radius > self.n_bits:
            raise Problem(422, "invalid", f"radius must be at most the {self.n_bits} bits of a code.")
        self.own = -1 if asked.id is None else asked.id  # which is not among its own results
        self.x: Array | None
        self.code: Packed
        if asked.id is not None:
            self.x, self.code = self._of_item(asked.id)
        else:
            self.x, self.code = self._of_vector(asked.vector if asked.upload is None else asked.upload.vector)

    def answer(self) -> dict[str, Any]:
        """The document, but for the time that it took."""
        wanted = self.wanted
        distances, ids = self._nearest() if wanted.radius is None else self._within(wanted.radius)
        return {
            "query": self._query(),
            "mode": self.mode,
            "k": wanted.k,
            "radius": wanted.radius,
            "items": self.state.items,
            "milliseconds": 0.0,
            "results": self._results(distances, ids),
        }

    def _of_item(self, id_: int) -> tuple[Array | None, Packed]:
        try:
            code = np.frombuffer(self.site.known.of([id_])[0].code, dtype=np.uint8)[None]
            x = None if self.mode == "hamming" else self.collection.vectors([id_]).astype(np.float32)
            if self.metric == "inner_product":  # as a query it has another code
                code = self.site.code_of(self.collection.model.decode(code) if x is None else x)
            return x, code
        except InvalidInput:
            if id_ in self.collection:
                raise
            raise not_found(f"Item {id_}") from None

    def _of_vector(self, vector: Array | None) -> tuple[Array, Packed]:
        assert vector is not None
        dimension = self.state.n_features
        if vector.shape != (dimension,):
            text = f"vector has {len(vector)} numbers; those of this collection have {dimension}."
            raise Problem(422, "invalid", text)
        with np.errstate(over="ignore"):
            x = vector.astype(np.float32)[None]
        if not np.isfinite(x).all():
            raise Problem(422, "invalid", "vector has numbers that are too large for float32.")
        return x, self.site.code_of(x)

    def _nearest(self) -> tuple[Array, Ids]:
        """Distances and ids of the k nearest, without the item searched from."""
        k = self.wanted.k
        some = k if self.own < 0 else k + 1
        if self.mode == "hamming":
            distances, ids = self.collection.search(codes=self.code, k=some, mode="hamming")
        elif self.mode == "asymmetric":
            distances, ids = self.collection.search(self.x, some, mode="asymmetric")
        else:
            distances, ids = self.collection.search(self.x, some, codes=self.code, rerank=True)
        keep = np.flatnonzero(ids[0] != self.own)[:k]
        found: Array = distances[0][keep]
        return (found if self.mode == "hamming" else self._shown(found)), ids[0][keep]

    def _within(self, radius: int) -> tuple[Array, Ids]:
        """As `_nearest`, of what lies within the radius; of at most MAX_RANKED, the nearest by Hamming."""
        k, hamming = self.wanted.k, self.mode == "hamming"
        some = (k if hamming else MAX_RANKED) + 1
        distances, ids = self.collection.search(codes=self.code, k=some, mode="hamming")
        near = (distances[0] <= radius) & (ids[0] != self.own)
        bits, candidates = distances[0][near], ids[0][near]
        if hamming or not len(candidates):
            return bits[:k], candidates[:k]
        assert self.x is not None
        distance = self._to_reconstructions if self.mode == "asymmetric" else self._to_vectors
        squared = distance(self.x, candidates)
        best = np.argsort(squared, kind="stable")[:k]
        return self._shown(squared[best]), candidates[best]

    def _shown(self, squared: Array) -> Array:
        """Distances; by inner product vectors have none, and minus the products are shown."""
        if self.mode == "reranked" and self.metric == "inner_product":
            return squared.astype(np.float64)
        return _roots(squared)

    def _to_reconstructions(self, x: Array, ids: Ids) -> Array:
        """‖x − f(z)‖² for the codes z of these items."""
        decoder, codes = self.collection.model.decoder_, self.collection.codes(ids)
        with np.errstate(over="ignore", invalid="ignore"):
            tables, offset = decoder.query_tables(x)[0], decoder.query_offsets(x)[0]
            terms = tables[np.arange(codes.shape[1]), codes].sum(axis=1, dtype=np.float64)
            squared: Array = offset + terms + decoder.squared_norms(codes)
        return squared

    def _to_vectors(self, x: Array, ids: Ids) -> Array:
        """By the metric, ‖x − y‖² or −xᵀy for the vectors y of these items."""
        y = self.collection.vectors(ids).astype(np.float64)
        with np.errstate(over="ignore"):  # in float32, as a search without a radius has them
            far: Array = distances_by(self.metric, x[0].astype(np.float64), y).astype(np.float32)
        return far

    def _results(self, distances: Array, ids: Ids) -> list[dict[str, Any]]:
        known = self.site.known.of(ids.tolist())
        codes = np.frombuffer(b"".join(each.code for each in known), dtype=np.uint8)
        hamming = np.bitwise_count(codes.reshape(-1, self.code.shape[1]) ^ self.code).sum(
            axis=1, dtype=np.int64
        )
        return [
            each.item
            | {
                "reconstruction": self._reconstruction(f"{ITEMS}/{each.item['id']}"),
                "distance": distance,
                "hamming": bits,
                "code": each.bits,
            }
            for each, distance, bits in zip(known, distances.tolist(), hamming.tolist(), strict=True)
        ]

    def _query(self) -> dict[str, Any]:
        about: dict[str, Any] = dict.fromkeys(schemas.Query.model_fields)
        (about["code"],) = bits_text(self.code, self.n_bits)
        if self.asked.id is not None:
            place = f"{ITEMS}/{self.asked.id}"
            about |= self.site.known.of([self.asked.id])[0].item
        elif self.asked.upload is not None:
            upload, place = self.asked.upload, f"/api/v1/uploads/{self.asked.upload.hash}"
            about |= {"upload": upload.hash, "file": upload.file, "thumbnail": f"{place}/thumbnail"}
            about |= {"width": upload.width, "height": upload.height}
        else:
            return about
        return about | {"reconstruction": self._reconstruction(place)}

    def _reconstruction(self, place: str) -> str | None:
        return f"{place}/reconstruction" if self.reconstructs else None


def _roots(squared: Array) -> Array:
    if not np.isfinite(squared).all():
        raise InvalidInput("the vector is too far from all others: distances to it cannot be told apart.")
    roots: Array = np.sqrt(np.maximum(squared, 0)).astype(np.float64)
    return roots
