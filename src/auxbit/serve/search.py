"""Answers: an item, an upload, a vector, a text or a code as a query; the nearest by a mode."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from auxbit.collection.storage import State
from auxbit.core.checks import Array, Packed
from auxbit.core.decoders import squared_distances
from auxbit.core.maps import pack
from auxbit.data.where import Where
from auxbit.errors import AuxbitError, InvalidInput
from auxbit.images.pictures import Pictures
from auxbit.index.asymmetric import distances_by
from auxbit.serve import schemas
from auxbit.serve.security import MAX_RANKED, Problem, not_found
from auxbit.serve.state import ITEMS, Site, Upload, bits_text, consistently, modes_of, plain_id


@dataclass(frozen=True)
class Wanted:
    """How to search: for the k nearest, by a mode (None: the collection's own), within a Hamming radius.

    where : among what; codes : whether results have theirs, None: if they are pictures
    """

    k: int
    mode: str | None = None
    radius: int | None = None
    where: Where | None = None
    codes: bool | None = None


@dataclass(frozen=True, eq=False)
class Asked:
    """What to search for: one of these; vector : (D,); code : text of 0 and 1."""

    id: Any = None
    upload: Upload | None = None
    vector: Array | None = None
    text: str | None = None
    code: str | None = None

    @property
    def n_given(self) -> int:
        """How many of these are given."""
        return sum(each is not None for each in (self.id, self.upload, self.vector, self.text, self.code))


def answer(site: Site, asked: Asked, wanted: Wanted) -> dict[str, Any]:
    """The document of an answer."""
    start = time.perf_counter()
    if asked.text is not None:
        asked = replace(asked, vector=site.vectors_of([asked.text])[0])
    document = consistently(site.collection, lambda: _Search(site, asked, wanted).answer())
    document["milliseconds"] = round(1000 * (time.perf_counter() - start), 3)
    return document


def answers(site: Site, many: Sequence[Asked | Problem], wanted: Wanted) -> list[dict[str, Any]]:
    """What was found for several queries, or an error in its place; vectors are searched for together."""
    queries, found = list(many), list[dict[str, Any]]()
    by_text = {row: each.text for row, each in enumerate(queries) if isinstance(each, Asked) and each.text}
    if by_text:
        made: Sequence[Asked | Problem]
        try:
            made = [Asked(vector=vector) for vector in site.vectors_of(list(by_text.values()))]
        except Problem as problem:  # of which another one holds no queries
            made = [Problem(problem.status, problem.code, str(problem))] * len(by_text)
        for row, asked in zip(by_text, made):
            queries[row] = asked
    by_vector = {}
    for row, each in enumerate(queries):
        if isinstance(each, Problem):  # not raised: it would hold all queries until garbage is collected
            found.append(each.document)
            continue
        try:
            if each.vector is not None:
                by_vector[row] = checked(each.vector, site.collection.state.n_features)
                found.append({})
            else:
                found.append({"results": answer(site, each, wanted)["results"]})
        except (Problem, InvalidInput) as error:
            found.append(_refused(site, error))
    if by_vector:
        X = np.concatenate(list(by_vector.values()))
        for row, document in zip(by_vector, _documents(site, X, wanted)):
            found[row] = document
    return found


def _refused(site: Site, error: Exception) -> dict[str, Any]:
    problem = site.problem_of(error)
    assert problem is not None
    return problem.document


def _documents(site: Site, X: Array, wanted: Wanted) -> list[dict[str, Any]]:
    """What was found for each of these vectors; if one is refused, they are searched for one by one."""
    try:
        together = consistently(site.collection, lambda: _together(site, X, wanted))
        return [{"results": results} for results in together]
    except InvalidInput as error:
        if len(X) == 1:
            return [_refused(site, error)]
    return [each for row in range(len(X)) for each in _documents(site, X[row : row + 1], wanted)]


def _together(site: Site, X: Array, wanted: Wanted) -> list[list[dict[str, Any]]]:
    """The results for each of these vectors, (q, D)."""
    state = site.collection.state
    mode = _mode(state, wanted.mode)
    code = site.code_of(X, state) if mode == "hamming" or state.coding == "hash" else None
    found = nearest(site, mode, X, code, wanted.k, wanted.where)
    known = iter(site.known.of(found.ids.ravel().tolist(), codes=False))
    return [
        [each.item | {"distance": distance} for distance, each in zip(row, known)]
        for row in found.distances.tolist()
    ]


def warm_up(site: Site) -> None:
    """Load the model and the codes, and compile what searches need, before somebody waits for it."""
    ids, state = site.collection.ids[:1].tolist(), site.collection.state
    for mode in modes_of(state)[0] if len(ids) else ():
        for radius in (None,) if state.by_decoder else (None, 1):
            with suppress(AuxbitError):  # whoever searches is told what is damaged
                answer(site, Asked(id=ids[0]), Wanted(1, mode, radius))
            if state.n_features and state.model is not None:
                with suppress(AuxbitError):
                    answer(site, Asked(vector=np.zeros(state.n_features)), Wanted(1, mode, radius))


# ---- What one search and many share


def checked(vector: Array, dimension: int | None) -> Array:
    """A vector as (1, D) float32; a problem if the collection has no such vectors."""
    if vector.shape != (dimension,):
        text = f"vector has {len(vector)} numbers; those of this collection have {dimension}."
        raise Problem(422, "invalid", text)
    with np.errstate(over="ignore"):
        x: Array = vector.astype(np.float32)[None]
    if not np.isfinite(x).all():
        raise Problem(422, "invalid", "vector has numbers that are too large for float32.")
    return x


def _mode(state: State, wanted: str | None) -> str:
    modes, default = modes_of(state)
    if wanted is not None and wanted not in modes:
        text = f"mode {wanted} is not possible here. Possible are: {', '.join(modes)}."
        raise Problem(422, "invalid", text)
    return wanted or default


class Nearest(NamedTuple):
    """Distances, as they are shown, and ids of the k nearest, (q, k); by which view of a picture, if any."""

    distances: Array
    ids: Array
    views: Array | None = None


def nearest(
    site: Site, mode: str, x: Array | None, code: Packed | None, k: int, where: Where | None
) -> Nearest:
    """The k nearest to each query. x : (q, D); code : (q, bytes)."""
    if site.pictures is not None and site.pictures.views() is not None:
        return _by_views(site, site.pictures, mode, x, code, k, where)
    if mode == "hamming":
        found = site.collection.search(codes=code, k=k, mode="hamming", where=where)
    elif mode == "asymmetric":
        found = site.collection.search(x, k, mode="asymmetric", where=where)
    else:
        found = site.collection.search(x, k, codes=code, rerank=True, where=where)
    return Nearest(_shown(site, mode, found.distances), found.ids)


def _by_views(
    site: Site, pictures: Pictures, mode: str, x: Array | None, code: Packed | None, k: int,
    where: Where | None,
) -> Nearest:  # fmt: skip
    """The same for pictures with views, each of which is found by the nearest of these."""
    queries = code if x is None else x
    assert queries is not None
    rows = []
    for row in range(len(queries)):
        codes = None if code is None or mode == "asymmetric" else code[row : row + 1]
        vector = None if x is None else x[row]
        rows.append(pictures.nearest(vector, k, mode=mode, codes=codes, where=where))
    ids, distances, views = (np.array([[each[place] for each in row] for row in rows]) for place in range(3))
    return Nearest(_shown(site, mode, distances), ids, views)


def _shown(site: Site, mode: str, squared: Array) -> Array:
    """Distances; by inner product vectors have none, and minus the products are shown."""
    if mode == "hamming":
        return squared
    if mode == "reranked" and site.metric == "inner_product":
        return squared.astype(np.float64)
    if not np.isfinite(squared).all():
        raise InvalidInput("the vector is too far from all items: their distances cannot be told apart.")
    roots: Array = np.sqrt(np.maximum(squared, 0)).astype(np.float64)
    return roots


# ---- One search


class _Search:
    """One search. item : the item searched from, or whose file is the upload; own : not among its results."""

    def __init__(self, site: Site, asked: Asked, wanted: Wanted) -> None:
        self.site, self.collection, self.asked, self.wanted = site, site.collection, asked, wanted
        self.state, self.reconstructs = self.collection.state, site.reconstructs
        self.mode = _mode(self.state, wanted.mode)
        if wanted.radius is not None:
            self._check_radius(wanted.radius)
        self.own = -1 if asked.id is None else asked.id
        self.item = asked.id if asked.upload is None else site.item_of_upload(asked.upload)
        self.with_codes = site.pictures is not None if wanted.codes is None else wanted.codes
        if asked.id is not None and asked.id not in self.collection:
            raise not_found(f"Item {asked.id}")

    def _check_radius(self, radius: int) -> None:
        if self.state.by_decoder:
            text = "Codes of this collection are for the decoder: they have no radius. Leave it out."
            raise Problem(422, "invalid", text)
        if radius > self.state.n_bits:
            raise Problem(422, "invalid", f"radius must be at most the {self.state.n_bits} bits of a code.")

    @cached_property
    def x(self) -> Array:
        """The query as (1, D) float32."""
        if self.item is not None:
            if self.state.vectors is not None:
                return self.collection.vectors([self.item]).astype(np.float32)
            return self.collection.model.decode(self._own_code)
        if self.asked.code is not None:
            return self.collection.model.decode(self.code)
        vector = self.asked.vector if self.asked.upload is None else self.asked.upload.vector
        assert vector is not None
        return checked(vector, self.state.n_features)

    @cached_property
    def code(self) -> Packed:
        """The code of the query, (1, bytes)."""
        if self.asked.code is not None:
            if len(self.asked.code) != self.state.n_bits:
                text = f"code has {len(self.asked.code)} bits; those of this collection have "
                raise Problem(422, "invalid", f"{text}{self.state.n_bits}.")
            return pack(np.array([list(map(int, self.asked.code))], dtype=np.uint8))
        if self.item is None and self.state.model is None:
            text = "The collection has no model to make a code of a vector: search by id or code."
            raise Problem(422, "invalid", text)
        if self.item is None or self.site.metric == "inner_product":  # as a query it has another code
            return self.site.code_of(self.x, self.state)
        return self._own_code

    @cached_property
    def _own_code(self) -> Packed:
        return np.frombuffer(self.site.known.of([self.item], codes=True)[0].code, dtype=np.uint8)[None]

    def answer(self) -> dict[str, Any]:
        """The document, but for the time that it took."""
        wanted = self.wanted
        found = self._nearest() if wanted.radius is None else self._within(wanted.radius)
        return {
            "query": self._query(),
            "mode": self.mode,
            "k": wanted.k,
            "radius": wanted.radius,
            "where": None if wanted.where is None else str(wanted.where),
            "items": self.state.items,
            "milliseconds": 0.0,
            "results": self._results(found),
        }

    def _nearest(self) -> Nearest:
        """The k nearest, (k,) each, without the item searched from."""
        wanted, by_code = self.wanted, self.mode == "hamming" or self.state.coding == "hash"
        found = nearest(
            self.site, self.mode, None if self.mode == "hamming" else self.x, self.code if by_code else None,
            wanted.k if self.asked.id is None else wanted.k + 1, wanted.where,
        )  # fmt: skip
        keep = np.flatnonzero(found.ids[0] != self.own)[: wanted.k]
        return Nearest(*(None if each is None else each[0][keep] for each in found))  # type: ignore[arg-type]

    def _within(self, radius: int) -> Nearest:
        """As `_nearest`, of what lies within the radius; of at most MAX_RANKED, the nearest by Hamming.

        A radius is of the codes of pictures themselves, whatever views they have.
        """
        k, hamming, where = self.wanted.k, self.mode == "hamming", self.wanted.where
        some = (k if hamming else MAX_RANKED) + 1
        distances, ids = self.collection.search(codes=self.code, k=some, mode="hamming", where=where)
        near = (distances[0] <= radius) & (ids[0] != self.own)
        bits, candidates = distances[0][near], ids[0][near]
        if hamming or not len(candidates):
            return Nearest(bits[:k], candidates[:k])
        distance = self._to_reconstructions if self.mode == "asymmetric" else self._to_vectors
        squared = distance(self.x, candidates)
        best = np.argsort(squared, kind="stable")[:k]
        return Nearest(_shown(self.site, self.mode, squared[best]), candidates[best])

    def _to_reconstructions(self, x: Array, ids: Array) -> Array:
        """‖x − f(z)‖² for the codes z of these items."""
        with np.errstate(over="ignore", invalid="ignore"):
            return squared_distances(self.collection.model.decoder_, x[0], self.collection.codes(ids))

    def _to_vectors(self, x: Array, ids: Array) -> Array:
        """By the metric, ‖x − y‖² or −xᵀy for the vectors y of these items."""
        y = self.collection.vectors(ids).astype(np.float64)
        with np.errstate(over="ignore"):  # in float32, as a search without a radius has them
            far: Array = distances_by(self.site.metric, x[0].astype(np.float64), y).astype(np.float32)
        return far

    def _results(self, near: Nearest) -> list[dict[str, Any]]:
        known, found = self.site.known.of(near.ids.tolist(), codes=self.with_codes), []
        views = [""] * len(known) if near.views is None else near.views.tolist()
        for each, distance, view in zip(known, near.distances.tolist(), views, strict=True):
            result = each.item | {"distance": distance, "hamming": None, "code": None}
            if self.site.pictures is not None:
                result["reconstruction"] = self._reconstruction(f"{ITEMS}/{each.item['id']}")
                result["view"] = view or None
            found.append(result)
        if self.with_codes:
            codes = np.frombuffer(b"".join(each.code for each in known), dtype=np.uint8)
            differ = codes.reshape(-1, self.code.shape[1]) ^ self.code
            hamming = np.bitwise_count(differ).sum(axis=1, dtype=np.int64).tolist()
            for result, each, bits in zip(found, known, hamming):
                result |= {"hamming": bits, "code": each.bits}
        return found

    def _query(self) -> dict[str, Any]:
        kind = schemas.Query if self.site.pictures is None else schemas.PictureQuery
        about: dict[str, Any] = dict.fromkeys(kind.model_fields)
        about["text"] = self.asked.text
        if self.with_codes:
            (about["code"],) = bits_text(self.code, self.state.n_bits)
        if self.asked.id is not None:
            item = self.site.known.of([self.asked.id], codes=False)[0].item
            about |= {"id": plain_id(self.asked.id), "metadata": item["metadata"]}
        if self.site.pictures is None:
            return about
        if self.asked.upload is not None:
            upload, place = self.asked.upload, f"/api/v1/uploads/{self.asked.upload.hash}"
            about |= {"upload": upload.hash, "file": upload.file, "thumbnail": f"{place}/thumbnail"}
            about |= {"width": upload.width, "height": upload.height}
        elif self.asked.id is not None:
            place = f"{ITEMS}/{self.asked.id}"
            about |= {name: item[name] for name in ("file", "thumbnail", "width", "height")}
        else:
            return about
        return about | {"reconstruction": self._reconstruction(place)}

    def _reconstruction(self, place: str) -> str | None:
        return f"{place}/reconstruction" if self.reconstructs else None
