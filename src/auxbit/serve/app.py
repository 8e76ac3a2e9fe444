"""The app: every endpoint of the API, the files of the page, and the gate before them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from collections.abc import Collection as Several
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, FastAPI, Query
from fastapi import Path as InPath
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Receive, Scope, Send

from auxbit import __version__
from auxbit.collection.collection import Collection
from auxbit.core import files
from auxbit.core.checks import Packed
from auxbit.core.maps import MAX_BITS
from auxbit.images.decode import Decoders
from auxbit.images.pictures import COMPARISON, Pictures
from auxbit.serve import schemas, security
from auxbit.serve.schemas import Error
from auxbit.serve.search import Asked, Wanted, answer, answers
from auxbit.serve.security import (
    LOOPBACK_NAMES,
    MAX_ADDED,
    MAX_ITEMS,
    MAX_K,
    MAX_TEXT,
    NO_ROOM,
    Gate,
    Limits,
    Problem,
    not_found,
    sentence_of,
)
from auxbit.serve.state import ITEMS, Embed, Row, Site, bits_text, consistently, name_in, version_of

API = "/api/v1"
MAX_DUPLICATES = 100  # groups at once
TEXT: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}, "description": "Lines of text"}}
REVALIDATE = "private, no-cache"
FOREVER = "private, max-age=31536000, immutable"

FILES = StaticFiles(directory=Path(__file__).with_name("static"))

# ---- What the description of the API says of parameters and errors

ItemId = Annotated[str, InPath(max_length=1000, description="An integer, text or UUID")]
UploadHash = Annotated[str, InPath(pattern="^[0-9a-f]{64}$")]
K = Annotated[int, Query(ge=1, le=MAX_K, description="How many results")]
Mode = Annotated[schemas.Mode | None, Query(description="Which distance; by default that of the collection")]
Radius = Annotated[
    int | None, Query(ge=0, le=MAX_BITS, description="Only items within this Hamming distance")
]
Conditions = Annotated[
    str | None, Query(max_length=MAX_TEXT, description='On metadata, such as "year >= 2020 and lang = en"')
]
Codes = Annotated[bool | None, Query(description="Return codes; by default only for pictures")]
ALWAYS = (401, 403, 410)  # no token, a foreign page, a collection that is gone
MEANINGS = {
    400: "Malformed",
    401: "The token is missing or wrong",
    403: "Another host's name, or a page of another origin",
    404: "Not there",
    408: "The body came too slowly",
    409: "Another process writes to the collection",
    410: "The collection, or this part of it, cannot be read",
    413: "Too many bytes or pixels",
    415: "Not a picture",
    422: "Values that cannot be used",
    502: "The function that makes vectors of texts failed",
    503: "Too many connections, or bodies of others that fill the memory: try again",
}
LINES = "application/x-ndjson"
PICTURE = {"content": {"image/png": {}, "image/jpeg": {}}, "description": "A PNG or JPEG"}
FILE_FIELD = {
    "type": "object",
    "required": ["file"],
    "properties": {"file": {"type": "string", "format": "binary"}},
}
STREAM = {"requestBody": {"required": True, "content": {LINES: {"schema": {"type": "string"}}}}}
STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"content": {LINES: {"schema": {"type": "string"}}}, "description": "JSON, line by line"}
}
FORM = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": FILE_FIELD}}}}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What the description says of these statuses, and of those that every endpoint has."""
    every = sorted({*statuses, *ALWAYS})
    return {status: {"model": Error, "description": MEANINGS[status]} for status in every}


def pictures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The responses of an endpoint that gives a picture."""
    return {200: PICTURE, 304: {"description": "The same as the client has"}, **errors(404, *statuses)}


# ---- Responses


def json_answer(document: Any) -> Response:
    """A document; bytes are one that is serialised already."""
    if not isinstance(document, bytes):
        document = json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
    return Response(document, media_type="application/json")


def kept(
    request: Request, content: bytes, media_type: str, tag: str, *, cache_control: str = REVALIDATE
) -> Response:
    """Something that the client may keep: 304 if it has what the tag names."""
    headers = {"etag": f'"{tag}"', "cache-control": cache_control}
    response = Response(content, headers=headers, media_type=media_type)
    if FILES.is_not_modified(response.headers, request.headers):
        return NotModifiedResponse(response.headers)
    return response


def thumbnail_answer(request: Request, content: bytes, tag: str, cache_control: str = REVALIDATE) -> Response:
    """A thumbnail, which we made ourselves, so that it is a PNG or a JPEG."""
    media_type = "image/png" if content.startswith(b"\x89PNG") else "image/jpeg"
    return kept(request, content, media_type, tag, cache_control=cache_control)


def reconstruction_answer(site: Site, request: Request, code: Packed) -> Response:
    """The picture that the decoder makes of a code, (1, bytes)."""
    content = site.reconstruction(code)
    return kept(request, content, "image/png", files.checksum([content])[:24])


# ---- Streams of lines, in and out

SEARCHED = 256  # lines that are searched for together
LONG_LINES = 4  # as long as they may be, are worked on together at most


class Lines(Response):
    """Lines of JSON, sent as they are made; the request may still be read meanwhile."""

    def __init__(self, documents: AsyncIterator[Row]) -> None:
        super().__init__(media_type=LINES)
        del self.headers["content-length"]
        self.documents = documents

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for document in self.documents:
            text = json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n"
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def lines_of(request: Request, at_once: int, longest: int) -> AsyncIterator[list[bytes]]:
    """The lines of a body, some at once, but not many long ones; empty ones are left out."""
    rest, lines = bytearray(), list[bytes]()
    async for part in request.stream():
        first, *more = part.split(b"\n")
        rest += first
        for line in more:
            lines.append(bytes(rest))
            rest = bytearray(line)
        if len(rest) > longest:
            raise Problem(413, "too_large", f"A line is larger than {longest:,} bytes.")
        lines = [line for line in lines if line.strip()]
        n_bytes = sum(map(len, lines))
        if not request.scope["auxbit.body"].hold(len(rest) + n_bytes):
            raise Problem(503, "busy", NO_ROOM)
        while len(lines) >= at_once or n_bytes > LONG_LINES * longest:
            some, lines = lines[:at_once], lines[at_once:]
            yield some
            n_bytes = sum(map(len, lines))
    if some := [line for line in [*lines, bytes(rest)] if line.strip()]:
        yield some


async def streamed(
    request: Request, at_once: int, longest: int, work: Callable[[list[bytes]], list[Row]]
) -> Response:
    """What `work` makes of the lines of a body; a problem is a status if it comes first, else a line."""

    async def documents() -> AsyncIterator[Row]:
        async for lines in lines_of(request, at_once, longest):
            for document in await run_in_threadpool(work, lines):
                yield document

    made = documents()
    first = await anext(made, None)

    async def rest() -> AsyncIterator[Row]:
        if first is None:
            return
        yield first
        try:
            async for document in made:
                yield document
        except Exception as error:
            problem = request.app.state.site.problem_of(error)
            if problem is None:
                raise
            yield problem.document

    return Lines(rest())


# ---- The app


def make_app(
    source: Pictures | Collection,
    *,
    token: str | None = None,
    allowed_hosts: Several[str] | None = LOOPBACK_NAMES,
    limits: Limits | None = None,
    decoders: Decoders | None = None,
    embed: Embed | None = None,
    writable: bool = False,
) -> FastAPI:
    """The app that serves an open collection, or one of pictures, which is left open when it ends.

    token : what clients must know; allowed_hosts : names to answer to, None for any; decoders : what decodes
    uploads, closed by whoever made them; embed : makes vectors, (n, D), of n texts, for search by words.
    writable : clients may add and delete, but not pictures.
    """
    limits = limits or Limits()
    site = Site(source, limits, decoders, embed=embed, writable=writable)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        site.close()

    app = FastAPI(
        title="auxbit",
        version=__version__,
        description="Search vectors and pictures by short binary codes.",
        openapi_url=f"{API}/openapi.json",
        docs_url=None,  # they would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.add_middleware(Gate, token=token, allowed_hosts=allowed_hosts, limits=limits)
    security.install(app, site.problem_of)
    for routes in (about_routes, item_routes, change_routes, search_routes):
        app.include_router(routes(site), prefix=API)
    app.include_router(page_routes())
    app.state.site = site
    return app


def about_routes(site: Site) -> APIRouter:
    """The endpoints about the whole: health, statistics, model, comparison."""
    router = APIRouter(tags=["about"])
    collection = site.collection

    @router.get("/health", response_model=schemas.Health, responses=errors())
    def health() -> Response:
        """Whether the server is up and can read the collection."""
        return json_answer({"status": "ok", "version": __version__, "items": len(collection)})

    @router.get("/stats", response_model=schemas.Stats, responses=errors())
    def stats() -> Response:
        """The collection in figures, and what this server allows."""
        has_comparison = site.pictures is not None and (site.pictures.path / COMPARISON).is_file()
        return json_answer(site.stats() | {"has_comparison": has_comparison})

    @router.get("/model", response_model=schemas.ModelReport, responses=errors())
    def model() -> Response:
        """How the model was trained, and how its codes use their bits."""
        return json_answer(site.report())

    @router.get("/comparison", response_model=schemas.Comparison, responses=errors(404))
    def comparison() -> Response:
        """Methods side by side, if a comparison was run."""
        return json_answer(site.comparison())

    @router.get("/duplicates", response_model=schemas.Duplicates, responses=errors(422))
    def duplicates(
        radius: Annotated[
            int | None, Query(ge=0, le=MAX_BITS, description="Bits that may differ; without it, same bytes")
        ] = None,
        offset: Annotated[int, Query(ge=0, lt=2**53)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_DUPLICATES)] = 50,
    ) -> Response:
        """Groups of items that are the same, to the byte, or whose codes are near each other."""

        def found() -> Row:
            every = site.duplicates(radius)
            groups = [group[:MAX_ITEMS] for group in every.groups[offset : offset + limit]]
            known = iter(site.known.of([id_ for group in groups for id_ in group], codes=False))
            return {
                "radius": radius, "total": len(every.groups), "spare": len(every.spare), "offset": offset,
                "groups": [{"items": [next(known).item for _ in group]} for group in groups],
            }  # fmt: skip

        return json_answer(consistently(collection, found))

    @router.get("/duplicates/spare", response_class=Response, responses=TEXT | errors(422))
    def spare(radius: Annotated[int | None, Query(ge=0, le=MAX_BITS)] = None) -> Response:
        """What could be deleted if one of each group is kept, one file or id per line; nothing is deleted.

        Names that hold a line break are left out.
        """

        def found() -> list[str]:
            ids = site.duplicates(radius).spare
            if site.pictures is None:
                return list(map(str, ids))
            return [name_in(row) for row in collection.metadata(ids)] if ids else []

        names = [name for name in consistently(collection, found) if len(name.splitlines()) == 1]
        headers = {"content-disposition": 'attachment; filename="could-be-deleted.txt"'}
        text = "".join(f"{name}\n" for name in names).encode(errors="replace")
        return Response(text, headers=headers, media_type="text/plain; charset=utf-8")

    return router


def item_routes(site: Site) -> APIRouter:
    """The endpoints below /items that read: listings, single items, their pictures."""
    router = APIRouter(tags=["items"])
    collection = site.collection

    def details(ids: list[Any], *, vectors: bool) -> list[Row]:
        rows, codes = collection.metadata(ids), bits_text(collection.codes(ids), collection.n_bits)
        kept = vectors and collection.state.vectors is not None
        made = collection.vectors(ids).tolist() if kept else [None] * len(ids)
        found = []
        for id_, row, code, vector in zip(ids, rows, codes, made, strict=True):
            item = site.item_of(id_, row) | {"code": code, "vector": vector}
            if site.pictures is not None:
                item |= {
                    "bytes": row.get("bytes", 0),
                    "format": row.get("format", ""),
                    "taken": row.get("taken"),
                    "reconstruction": f"{ITEMS}/{id_}/reconstruction" if site.reconstructs else None,
                    "picture": f"{ITEMS}/{id_}/picture",
                }
            found.append(item)
        return found

    @router.get("/items", response_model=schemas.Items, responses=errors(422))
    def list_items(
        where: Conditions = None,
        name: Annotated[
            str, Query(max_length=300, description="For pictures: a part of the file name, in any case")
        ] = "",
        order: Annotated[str, Query(
            max_length=1000, description="`added`; a field of the metadata, `-year` for descending; for "
            "pictures also `name` and `random`"
        )] = "added",
        seed: Annotated[int, Query(ge=0, lt=2**53, description="Seed of order=random")] = 0,
        offset: Annotated[int, Query(ge=0, lt=2**53)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_ITEMS)] = 100,
    ) -> Response:  # fmt: skip
        """A part of all items, or of those that match conditions or a name."""
        by_name = site.pictures is not None and (name or order in ("name", "random"))
        if order not in (("added", "name", "random") if site.pictures is not None else ("added",)):
            site.check_fields("order", [order.removeprefix("-")])
        if name and site.pictures is None:
            raise Problem(422, "invalid", "name is only for pictures. Give where, conditions on metadata.")
        if name and order not in ("added", "name", "random"):
            raise Problem(422, "invalid", "Order by a field cannot be combined with name: give where.")
        wanted = site.conditions(where)

        def found() -> Row:
            if not by_name:
                by = None if order == "added" else order
                rows = collection.list(wanted, limit=limit, offset=offset, order=by)
                items = [site.item_of(each["id"], each["metadata"]) for each in rows]
                return {"total": collection.count(wanted), "offset": offset, "items": items}
            ids = site.listing().select(name, order, seed)
            if wanted is not None:
                ids = ids[np.isin(ids, [each["id"] for each in collection.list(wanted, limit=None)])]
            some = ids[offset : offset + limit].tolist()
            listed = collection.metadata(some) if some else []
            return {"total": len(ids), "offset": offset, "items": list(map(site.item_of, some, listed))}

        return json_answer(consistently(collection, found))

    @router.get(
        "/items/{id}", response_model=schemas.PictureDetail | schemas.ItemDetail, responses=errors(404, 422)
    )
    def item(
        id: ItemId, vector: Annotated[bool, Query(description="Return its vector, if it is kept")] = False
    ) -> Response:
        """All about one item."""
        known = site.parse_id(id)

        def found() -> Row:
            site.metadata(known)
            return details([known], vectors=vector)[0]

        return json_answer(consistently(collection, found))

    @router.post("/items/get", response_model=schemas.Got, responses=errors(400, 404, 408, 413, 422, 503))
    def items(wanted: schemas.ItemIds) -> Response:
        """All about some items, in the order of their ids."""
        ids = [site.parse_id(each) for each in wanted.ids]

        def found() -> Row:
            for id_, there in zip(ids, collection.holds(ids)):
                if not there:
                    raise not_found(f"Item {id_}")
            return {"items": details(ids, vectors=wanted.vectors)}

        return json_answer(consistently(collection, found))

    @router.get("/items/{id}/thumbnail", response_class=Response, responses=pictures(422))
    def thumbnail(
        request: Request,
        id: ItemId,
        v: Annotated[str, Query(max_length=64, description="Of the address in listings: may be kept")] = "",
    ) -> Response:
        """The small picture of an item."""
        content, tag = consistently(collection, lambda: site.thumbnail(site.parse_id(id)))
        return thumbnail_answer(request, content, tag, FOREVER if v and v == tag else REVALIDATE)

    @router.get("/items/{id}/picture", response_class=Response, responses=pictures(415, 413))
    async def picture(request: Request, id: ItemId) -> Response:
        """The picture itself, upright, at most 1600 pixels on the longer side, as JPEG."""
        known = site.parse_id(id)
        row = site.metadata(known)
        site.with_pictures()
        run = asyncio.get_running_loop().run_in_executor
        content = await run(site.decoding, site.preview, known, row)
        return kept(request, content, "image/jpeg", f"{version_of(row)}-p")

    @router.get("/items/{id}/reconstruction", response_class=Response, responses=pictures())
    def reconstruction(request: Request, id: ItemId) -> Response:
        """The picture that the item's code decodes to, as PNG."""
        known = site.parse_id(id)
        site.metadata(known)
        return reconstruction_answer(site, request, collection.codes([known]))

    return router


def change_routes(site: Site) -> APIRouter:
    """The endpoints that add and delete, for those who know the token."""
    router = APIRouter(tags=["changes"])
    collection = site.collection

    def deleted(**what: Any) -> Response:
        n = collection.delete(**what)
        return json_answer({"deleted": n, "items": len(collection)})

    @router.post("/items", response_model=schemas.Added, responses=errors(400, 408, 409, 413, 422, 503))
    def add(given: schemas.NewItems) -> Response:
        """Add items, all or none; they are on disk when the response is sent."""
        site.check_writable()
        ids = site.add(given.items, upsert=given.upsert)
        return json_answer({"ids": ids, "items": len(collection)})

    @router.post(
        "/items/stream", response_class=Response, openapi_extra=STREAM,
        responses=STREAMED | errors(400, 408, 409, 413, 422, 503),
    )  # fmt: skip
    async def add_stream(request: Request, upsert: bool = False) -> Response:
        """Add items, one JSON object per line, 1000 at a time; a line of the answer tells of each thousand.

        An error ends it: what was told of before is on disk, and nothing after it.
        """
        site.check_writable()
        before = 0

        def work(lines: list[bytes]) -> list[Row]:
            nonlocal before
            items = [parsed(schemas.NewItem, line, before + row) for row, line in enumerate(lines)]
            site.add(items, upsert=upsert, place=lambda row: f"line {before + row + 1}")
            before += len(items)
            return [{"added": before, "items": len(collection)}]

        return await streamed(request, MAX_ADDED, site.limits.body_bytes, work)

    @router.delete("/items/{id}", response_model=schemas.Deleted, responses=errors(404, 409, 422))
    def delete(id: ItemId) -> Response:
        """Delete one item."""
        site.check_writable()
        known = site.parse_id(id)
        site.metadata(known)
        return deleted(ids=[known])

    @router.post(
        "/items/delete", response_model=schemas.Deleted, responses=errors(400, 404, 408, 409, 413, 422, 503)
    )
    def delete_some(given: schemas.Unwanted) -> Response:
        """Delete items by their ids, all or none, or those that match conditions."""
        site.check_writable()
        if (given.ids is None) == (not given.where):
            raise Problem(422, "invalid", "Give ids, or where: conditions on the items to delete.")
        if given.ids is None:
            return deleted(where=site.conditions(given.where))
        return deleted(ids=[site.parse_id(each) for each in given.ids])

    return router


def parsed(kind: type[Any], line: bytes, number: int) -> Any:
    """A line of a stream as a document; a problem if it is none."""
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        where = f"line {number + 1}: {sentence_of(error.errors(include_url=False), skip=0)}"
        raise Problem(422, "invalid", where) from None


def search_routes(site: Site) -> APIRouter:
    """The endpoints below /search and /uploads: by item, text, vector, upload."""
    router = APIRouter(tags=["search"])

    def found(file: UploadFile, wanted: Wanted) -> Row:
        return answer(site, Asked(upload=site.remember(file.file.read(), file.filename or "")), wanted)

    def sought(line: bytes, number: int) -> Asked | Problem:
        try:
            given = parsed(schemas.Sought, line, number)
            id_ = None if given.id is None else site.parse_id(given.id)
            vector = None if given.vector is None else np.array(given.vector, dtype=np.float64)
            asked = Asked(id=id_, vector=vector, text=given.text, code=given.code)
            if asked.n_given == 1:
                return asked
            return Problem(422, "invalid", f"line {number + 1}: give vector, id, text or code, one of them.")
        except Problem as problem:
            # another one: what was raised holds all lines until garbage is collected
            return Problem(problem.status, problem.code, str(problem))

    @router.get("/search", response_model=schemas.Answer, responses=errors(404, 422, 502))
    async def search(
        id: Annotated[str | None, Query(max_length=1000, description="Search from this item")] = None,
        text: Annotated[
            str | None, Query(pattern=r"\S", max_length=MAX_TEXT, description="Search for this text")
        ] = None,
        upload: Annotated[
            str | None, Query(pattern="^[0-9a-f]{64}$", description="Search from this earlier upload")
        ] = None,
        k: K = 20,
        mode: Mode = None,
        radius: Radius = None,
        where: Conditions = None,
        codes: Codes = None,
    ) -> Response:
        """The items nearest to an item (without itself), a text or an upload: give one of these."""
        if sum(each is not None for each in (id, text, upload)) != 1:
            raise Problem(422, "invalid", "Give one of id (an item to search from), text and upload.")
        asked = Asked(
            id=None if id is None else site.collection.parse_ids([id])[0], text=text,
            upload=None if upload is None else site.upload(upload),
        )  # fmt: skip

        def work() -> Row:
            return answer(site, asked, Wanted(k, mode, radius, site.conditions(where), codes))

        if text is not None or where is not None:
            return json_answer(await run_in_threadpool(work))
        return json_answer(await site.soon(work, mode))

    @router.post("/search/vector", response_model=schemas.Answer, responses=errors(400, 408, 413, 422, 503))
    async def search_by_vector(query: schemas.VectorQuery) -> Response:
        """The items nearest to a vector of the collection's dimension, or to a code."""
        vector = None if query.vector is None else np.array(query.vector, dtype=np.float64)
        asked = Asked(vector=vector, code=query.code)
        if asked.n_given != 1:
            raise Problem(422, "invalid", "Give either vector or code.")

        def work() -> Row:
            where = site.conditions(query.where)
            return answer(site, asked, Wanted(query.k, query.mode, query.radius, where, query.codes))

        if query.where:
            return json_answer(await run_in_threadpool(work))
        return json_answer(await site.soon(work, query.mode))

    @router.post(
        "/search/stream", response_class=Response, openapi_extra=STREAM,
        responses=STREAMED | errors(400, 408, 413, 422, 502, 503),
    )  # fmt: skip
    async def search_stream(
        request: Request, k: K = 20, mode: Mode = None, where: Conditions = None
    ) -> Response:
        """The nearest to each line, a JSON object with a vector, id, text or code; one line of results each.

        A line that cannot be searched for gets an error in place of results.
        """
        wanted, before = Wanted(k, mode, None, await run_in_threadpool(site.conditions, where), False), 0

        def work(lines: list[bytes]) -> list[Row]:
            nonlocal before
            queries = [sought(line, before + row) for row, line in enumerate(lines)]
            before += len(lines)
            return answers(site, queries, wanted)

        return await streamed(request, SEARCHED, site.limits.body_bytes, work)

    @router.post(
        "/search/upload", response_model=schemas.Answer, openapi_extra=FORM,
        responses=errors(400, 404, 408, 413, 415, 422, 503),
    )  # fmt: skip
    async def search_by_upload(
        request: Request, k: K = 20, mode: Mode = None, radius: Radius = None, where: Conditions = None
    ) -> Response:
        """The items nearest to a picture, sent as the field `file` of a form; it is kept for a while."""
        site.with_pictures()
        conditions = site.conditions(where)
        if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
            text = "Send the picture as the field `file` of a multipart/form-data form."
            raise Problem(415, "not_multipart", text)
        async with request.form(max_files=1, max_fields=8) as form:
            file = form.get("file")
            if not isinstance(file, UploadFile):
                raise Problem(422, "invalid", "The form has no file in its field `file`.")
            most = site.limits.upload_bytes
            if file.size is not None and file.size > most:
                text = f"The file has {file.size:,} bytes; at most {most:,} are taken."
                raise Problem(413, "too_large", text)
            run = asyncio.get_running_loop().run_in_executor
            wanted = Wanted(k, mode, radius, conditions)
            return json_answer(await run(site.decoding, found, file, wanted))

    @router.get("/uploads/{hash}/thumbnail", response_class=Response, responses=pictures())
    def upload_thumbnail(request: Request, hash: UploadHash) -> Response:
        """The small picture of an upload."""
        return thumbnail_answer(request, site.upload(hash).thumbnail, hash[:24])

    @router.get("/uploads/{hash}/reconstruction", response_class=Response, responses=pictures())
    def upload_reconstruction(request: Request, hash: UploadHash) -> Response:
        """The picture that the code of an upload decodes to, as PNG."""
        upload = site.upload(hash)
        return reconstruction_answer(site, request, site.code_of(upload.vector[None], site.collection.state))

    return router


def page_routes() -> APIRouter:
    """The files of the page: a fixed list. No name from outside is ever opened."""
    router = APIRouter(include_in_schema=False)
    names = {each.name for each in Path(str(FILES.directory)).iterdir()}

    async def send(request: Request, name: str) -> Response:
        if name not in names:
            raise not_found("A file of this name")
        response = await FILES.get_response(name, request.scope)
        response.headers["cache-control"] = REVALIDATE
        if name.endswith(".js"):  # some systems call it text/plain, and then no browser runs it
            response.headers["content-type"] = "text/javascript; charset=utf-8"
        return response

    @router.get("/")
    async def page(request: Request) -> Response:
        return await send(request, "index.html")

    @router.get("/static/{name:path}")
    async def static(request: Request, name: str) -> Response:
        return await send(request, name)

    return router
