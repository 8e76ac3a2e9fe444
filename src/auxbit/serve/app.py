"""The app: every endpoint of the API, the files of the page, and the gate before them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, FastAPI, Query
from fastapi import Path as InPath
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import NotModifiedResponse, StaticFiles

from auxbit import __version__
from auxbit.core import files
from auxbit.core.checks import Packed
from auxbit.core.maps import MAX_BITS
from auxbit.images.decode import Decoders
from auxbit.images.pictures import COMPARISON, Pictures
from auxbit.index.codes import MAX_ID
from auxbit.serve import schemas, security
from auxbit.serve.schemas import Error
from auxbit.serve.search import Asked, Wanted, answer
from auxbit.serve.security import LOOPBACK_NAMES, MAX_ITEMS, MAX_K, Gate, Limits, Problem, not_found
from auxbit.serve.state import ITEMS, Site, bits_text, consistently, item_of, version_of

API = "/api/v1"
REVALIDATE = "private, no-cache"
FOREVER = "private, max-age=31536000, immutable"

FILES = StaticFiles(directory=Path(__file__).with_name("static"))

# ---- What the description of the API says of parameters and errors

ItemId = Annotated[int, InPath(ge=0, le=MAX_ID)]
UploadHash = Annotated[str, InPath(pattern="^[0-9a-f]{64}$")]
K = Annotated[int, Query(ge=1, le=MAX_K, description="How many results")]
Mode = Annotated[schemas.Mode | None, Query(description="What distance; by default the collection's own")]
Radius = Annotated[
    int | None, Query(ge=0, le=MAX_BITS, description="Only what is within this Hamming distance")
]
ALWAYS = (401, 403, 410)  # no token, a foreign page, a collection that is gone
MEANINGS = {
    400: "Malformed",
    401: "The token is missing or wrong",
    403: "Another host's name, or a page of another origin",
    404: "Not there",
    408: "The body came too slowly",
    410: "The collection, or this part of it, cannot be read",
    413: "Too many bytes or pixels",
    415: "Not a picture",
    422: "Values that cannot be used",
}
PICTURE = {"content": {"image/png": {}, "image/jpeg": {}}, "description": "A PNG or JPEG"}
FILE_FIELD = {
    "type": "object",
    "required": ["file"],
    "properties": {"file": {"type": "string", "format": "binary"}},
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


# ---- The app


def make_app(
    source: Pictures,
    *,
    token: str | None = None,
    allowed_hosts: Collection[str] | None = LOOPBACK_NAMES,
    limits: Limits | None = None,
    decoders: Decoders | None = None,
) -> FastAPI:
    """The app that serves the pictures of an open collection, which is left open when it ends.

    token : what clients must know; allowed_hosts : names to answer to, None for any; decoders : what decodes
    uploads, closed by whoever made them.
    """
    limits = limits or Limits()
    site = Site(source, limits, decoders)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        site.close()

    app = FastAPI(
        title="auxbit",
        version=__version__,
        description="Search pictures by short binary codes.",
        openapi_url=f"{API}/openapi.json",
        docs_url=None,  # they would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.add_middleware(Gate, token=token, allowed_hosts=allowed_hosts, limits=limits)
    security.install(app, lambda: f"{source.path.parent}{os.sep}")
    for routes in (about_routes, item_routes, search_routes):
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
        return json_answer(site.stats() | {"has_comparison": (site.pictures.path / COMPARISON).is_file()})

    @router.get("/model", response_model=schemas.ModelReport, responses=errors())
    def model() -> Response:
        """How the model was trained, and how its codes use their bits."""
        return json_answer(site.report())

    @router.get("/comparison", response_model=schemas.Comparison, responses=errors(404))
    def comparison() -> Response:
        """Methods side by side, if a comparison was run."""
        return json_answer(site.comparison())

    return router


def item_routes(site: Site) -> APIRouter:
    """The endpoints below /items: listings, one item, its pictures."""
    router = APIRouter(tags=["items"])
    collection = site.collection

    @router.get("/items", response_model=schemas.Items, responses=errors(422))
    def list_items(
        name: Annotated[
            str, Query(max_length=300, description="A part of the file name, in either case")
        ] = "",
        order: schemas.Order = "added",
        seed: Annotated[int, Query(ge=0, lt=2**53, description="Of order=random")] = 0,
        offset: Annotated[int, Query(ge=0, lt=2**53)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_ITEMS)] = 100,
    ) -> Response:
        """A part of all items, or of those with a name."""

        def found() -> dict[str, Any]:
            ids = site.listing().select(name, order, seed)
            some = ids[offset : offset + limit].tolist()
            rows = collection.metadata(some) if some else []
            return {"total": len(ids), "offset": offset, "items": list(map(item_of, some, rows))}

        return json_answer(consistently(collection, found))

    @router.get("/items/{id}", response_model=schemas.ItemDetail, responses=errors(404))
    def item(id: ItemId) -> Response:
        """All about one item."""

        def found() -> dict[str, Any]:
            row = site.metadata(id)
            return item_of(id, row) | {
                "bytes": row.get("bytes", 0),
                "format": row.get("format", ""),
                "taken": row.get("taken"),
                "code": bits_text(collection.codes([id]), collection.n_bits)[0],
                "reconstruction": f"{ITEMS}/{id}/reconstruction" if site.reconstructs else None,
                "picture": f"{ITEMS}/{id}/picture",
            }

        return json_answer(consistently(collection, found))

    @router.get("/items/{id}/thumbnail", response_class=Response, responses=pictures(422))
    def thumbnail(
        request: Request,
        id: ItemId,
        v: Annotated[str, Query(max_length=64, description="Of the address in listings: may be kept")] = "",
    ) -> Response:
        """The small picture of an item."""
        content, tag = consistently(collection, lambda: site.thumbnail(id))
        return thumbnail_answer(request, content, tag, FOREVER if v and v == tag else REVALIDATE)

    @router.get("/items/{id}/picture", response_class=Response, responses=pictures(415, 413))
    async def picture(request: Request, id: ItemId) -> Response:
        """The picture itself, upright, at most 1600 pixels on the longer side, as JPEG."""
        row = site.metadata(id)
        run = asyncio.get_running_loop().run_in_executor
        content = await run(site.decoding, site.preview, id, row)
        return kept(request, content, "image/jpeg", f"{version_of(row)}-p")

    @router.get("/items/{id}/reconstruction", response_class=Response, responses=pictures())
    def reconstruction(request: Request, id: ItemId) -> Response:
        """What the decoder makes of the item's code, as PNG."""
        site.metadata(id)
        return reconstruction_answer(site, request, collection.codes([id]))

    return router


def search_routes(site: Site) -> APIRouter:
    """The endpoints below /search and /uploads: by item, by vector, by upload."""
    router = APIRouter(tags=["search"])

    def found(file: UploadFile, wanted: Wanted) -> dict[str, Any]:
        return answer(site, Asked(upload=site.remember(file.file.read(), file.filename or "")), wanted)

    @router.get("/search", response_model=schemas.Answer, responses=errors(404, 422))
    async def search(
        id: Annotated[int | None, Query(ge=0, le=MAX_ID, description="Search from this item")] = None,
        upload: Annotated[
            str | None, Query(pattern="^[0-9a-f]{64}$", description="Search from this earlier upload")
        ] = None,
        k: K = 20,
        mode: Mode = None,
        radius: Radius = None,
    ) -> Response:
        """The nearest to an item, which is not among them, or to an upload: give one of the two."""
        if (id is None) == (upload is None):
            raise Problem(422, "invalid", "Give id, an item to search from, or upload, not both.")
        asked = Asked(id=id) if upload is None else Asked(upload=site.upload(upload))
        return json_answer(await site.soon(lambda: answer(site, asked, Wanted(k, mode, radius))))

    @router.post("/search/vector", response_model=schemas.Answer, responses=errors(400, 408, 413, 422))
    def search_by_vector(query: schemas.VectorQuery) -> Response:
        """The nearest to a vector, of as many numbers as those of the collection have."""
        asked = Asked(vector=np.array(query.vector, dtype=np.float64))
        return json_answer(answer(site, asked, Wanted(query.k, query.mode, query.radius)))

    @router.post(
        "/search/upload", response_model=schemas.Answer, openapi_extra=FORM,
        responses=errors(400, 408, 413, 415, 422),
    )  # fmt: skip
    async def search_by_upload(
        request: Request, k: K = 20, mode: Mode = None, radius: Radius = None
    ) -> Response:
        """The nearest to a picture, sent as the field `file` of a form; it is remembered for a while."""
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
            return json_answer(await run(site.decoding, found, file, Wanted(k, mode, radius)))

    @router.get("/uploads/{hash}/thumbnail", response_class=Response, responses=pictures())
    def upload_thumbnail(request: Request, hash: UploadHash) -> Response:
        """The small picture of an upload."""
        return thumbnail_answer(request, site.upload(hash).thumbnail, hash[:24])

    @router.get("/uploads/{hash}/reconstruction", response_class=Response, responses=pictures())
    def upload_reconstruction(request: Request, hash: UploadHash) -> Response:
        """What the decoder makes of the code of an upload, as PNG."""
        upload = site.upload(hash)
        return reconstruction_answer(site, request, site.code_of(upload.vector[None]))

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
