"""The app: endpoints put together behind the gate."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, FastAPI, Path, Query
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response

from auxbit import __version__
from auxbit.core import files
from auxbit.core.checks import require
from auxbit.core.codes import MAX_BITS
from auxbit.core.types import Packed
from auxbit.errors import CollectionError, Damaged, FileProblem, InvalidInput
from auxbit.images.build import COMPARISON
from auxbit.images.decode import Decoders
from auxbit.images.pictures import Pictures
from auxbit.index.codes import MAX_ID
from auxbit.serve import schemas, security
from auxbit.serve.schemas import Error
from auxbit.serve.search import Asked, Wanted, answer
from auxbit.serve.security import CODES, LOOPBACK_NAMES, MAX_ITEMS, MAX_K, Gate, Limits, Problem, not_found
from auxbit.serve.state import ITEMS, Site, Upload, bits_text, consistently, item_of, name_in, version_of

# ---- Answers as the browser keeps them, and how the description of the API names their errors

REVALIDATE = "private, no-cache"
FOREVER = "private, max-age=31536000, immutable"

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
SAME = {"description": "The same as the client has"}

assert set(CODES) >= set(MEANINGS) - {401, 403}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What the description says of these statuses, and of those that every endpoint has."""
    every = sorted({*statuses, *ALWAYS})
    return {status: {"model": Error, "description": MEANINGS[status]} for status in every}


def pictures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The responses of an endpoint that gives a picture."""
    return {200: PICTURE, 304: SAME, **errors(404, *statuses)}


def json_answer(document: Any) -> Response:
    """A document, serialised once."""
    return json_bytes(json.dumps(document, allow_nan=False, separators=(",", ":")).encode())


def json_bytes(content: bytes) -> Response:
    """A document that is serialised already."""
    return Response(content, media_type="application/json")


def kept(
    request: Request, content: bytes, media_type: str, etag: str, *, cache_control: str = REVALIDATE
) -> Response:
    """Something that the client may keep: 304 where it has it."""
    headers = {"etag": etag, "cache-control": cache_control}
    if has_it(request, etag):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=media_type)


def has_it(request: Request, etag: str) -> bool:
    """Whether the client says that it has what this tag names."""
    given = request.headers.get("if-none-match")
    return given is not None and any(
        each.strip().removeprefix("W/") in (etag, "*") for each in given.split(",")
    )


def picture_type(content: bytes) -> str:
    """The media type of a thumbnail, which we made ourselves."""
    return "image/png" if content.startswith(b"\x89PNG") else "image/jpeg"


# ---- The endpoints about the whole: health, statistics, model, comparison


def info_routes(site: Site) -> APIRouter:
    """The endpoints about the whole."""
    router = APIRouter(tags=["about"])
    collection = site.collection

    @router.get("/health", response_model=schemas.Health, responses=errors())
    def health() -> Response:
        """Whether the server is up and can read the collection."""
        return json_answer({"status": "ok", "version": __version__, "items": len(collection)})

    @router.get("/stats", response_model=schemas.Stats, responses=errors())
    def stats() -> Response:
        """The collection in figures, and what this server allows."""
        return json_answer(
            site.stats()
            | {
                "has_comparison": (collection.path / COMPARISON).is_file(),
                "max_k": MAX_K,
                "max_upload_bytes": site.limits.upload_bytes,
                "max_upload_pixels": site.limits.upload_pixels,
            }
        )

    @router.get("/model", response_model=schemas.ModelReport, responses=errors())
    def model() -> Response:
        """How the model was trained, and how its codes use their bits."""
        return json_bytes(site.report())

    @router.get("/comparison", response_model=schemas.Comparison, responses=errors(404))
    def comparison() -> Response:
        """Methods side by side, where a comparison was run."""
        return json_answer(_comparison(site))

    return router


def _comparison(site: Site) -> Any:
    path = site.collection.path / COMPARISON
    try:
        document = json.loads(path.read_bytes(), parse_constant=lambda name: None)
    except FileNotFoundError:
        command = f"auxbit images compare {site.collection.path.name}"
        raise Problem(404, "no_comparison", f"No comparison was run here yet: {command}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(f"{path} cannot be read: {error}.") from error
    if not isinstance(document, dict) or not isinstance(document.get("rows"), list):
        raise Damaged(f"{path} is not a comparison.")
    return document


# ---- The files of the page: a fixed list, read once from the package. No name from outside is ever opened

PACKAGE = "auxbit.serve"
MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "ico": "image/vnd.microsoft.icon",
    "woff2": "font/woff2",
    "webmanifest": "application/manifest+json",
}


class StaticFile(NamedTuple):
    """A file of the page, ready to be sent."""

    content: bytes
    media_type: str
    etag: str


def load() -> dict[str, StaticFile]:
    """The files by their names below /static/."""
    return {name: _read(file) for name, file in _walk(resources.files(PACKAGE) / "static", "")}


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.rpartition(".")[2] in MEDIA_TYPES:
            yield f"{prefix}{entry.name}", entry


def _read(file: Traversable) -> StaticFile:
    content = file.read_bytes()
    media_type = MEDIA_TYPES[file.name.rpartition(".")[2]]
    return StaticFile(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


# ---- Pixels as PNG files


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """A picture, (h, w) or (h, w, 3), as PNG."""
    image: Any = require("PIL.Image", extra="web", purpose="drawing pictures").fromarray(pixels)
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


# ---- The endpoints of items: listings, one item, its pictures

ItemId = Annotated[int, Path(ge=0, le=MAX_ID)]


def item_routes(site: Site) -> APIRouter:
    """The endpoints below /items."""
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
            ids = site.catalogue().select(name, order, seed)
            some = ids[offset : offset + limit].tolist()
            rows = collection.metadata(some) if some else []
            return {"total": len(ids), "offset": offset, "items": list(map(item_of, some, rows))}

        return json_answer(consistently(collection, found))

    @router.get("/items/{id}", response_model=schemas.ItemDetail, responses=errors(404))
    def item(id: ItemId) -> Response:
        """All about one item."""

        def found() -> dict[str, Any]:
            row = _metadata(site, id)
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
        content, etag = consistently(
            collection, lambda: (_thumbnail(site, id), version_of(_metadata(site, id)))
        )
        cache = FOREVER if v and v == etag else REVALIDATE
        return kept(request, content, picture_type(content), f'"{etag}"', cache_control=cache)

    @router.get("/items/{id}/picture", response_class=Response, responses=pictures(415, 413))
    async def picture(request: Request, id: ItemId) -> Response:
        """The picture itself, upright, at most 1600 pixels on the longer side, as JPEG."""
        row = _metadata(site, id)
        run = asyncio.get_running_loop().run_in_executor
        content = await run(site.decoding, _preview, site, id, row)
        return kept(request, content, "image/jpeg", f'"{version_of(row)}-p"')

    @router.get("/items/{id}/reconstruction", response_class=Response, responses=pictures())
    def reconstruction(request: Request, id: ItemId) -> Response:
        """What the decoder makes of the item's code, as PNG."""
        _metadata(site, id)
        return reconstructed(site, request, collection.codes([id]))

    return router


def reconstructed(site: Site, request: Request, code: Packed) -> Response:
    """The picture f(z) of a code, (1, bytes)."""
    if not site.reconstructs:
        raise Problem(404, "no_reconstruction", "Only vectors of pixels can be shown as pictures again.")
    pixels = site.pictures.describer.picture_of(site.collection.model.decode(code))[0]
    content = png(pixels)
    return kept(request, content, "image/png", f'"{files.checksum([content])[:24]}"')


def _metadata(site: Site, id_: int) -> dict[str, Any]:
    if id_ not in site.collection:
        raise not_found(f"Item {id_}")
    return site.collection.metadata([id_])[0]


def _thumbnail(site: Site, id_: int) -> bytes:
    _metadata(site, id_)
    try:
        return site.pictures.thumbnail(id_)
    except InvalidInput as error:  # an item that was added without a picture
        raise Problem(404, "not_found", str(error)) from error


def _preview(site: Site, id_: int, row: dict[str, Any]) -> bytes:
    try:
        content = site.pictures.original(id_)
    except CollectionError:
        raise
    except InvalidInput as error:
        raise Problem(404, "not_found", str(error)) from error
    except FileProblem as error:
        raise Problem(
            404, "file_gone",
            f"The file {name_in(row)} is gone, or is another than item {id_} was made of. "
            "`auxbit images add` brings the collection up to date.",
        ) from error  # fmt: skip
    return site.decoders.preview(content)


# ---- The endpoints of searches: by item, by vector, by upload

K = Annotated[int, Query(ge=1, le=MAX_K, description="How many results")]
Mode = Annotated[schemas.Mode | None, Query(description="What distance; the collection's own unless given")]
Radius = Annotated[
    int | None, Query(ge=0, le=MAX_BITS, description="Only what is within this Hamming distance")
]
UploadHash = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]

FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {"file": {"type": "string", "format": "binary"}},
                }
            }
        },
    }
}
LONGEST_NAME = 300


def search_routes(site: Site) -> APIRouter:
    """The endpoints below /search and /uploads."""
    router = APIRouter(tags=["search"])

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
            raise Problem(
                415, "not_multipart", "Send the picture as the field `file` of a multipart/form-data form."
            )
        async with request.form(max_files=1, max_fields=8) as form:
            file = form.get("file")
            if not isinstance(file, UploadFile):
                raise Problem(422, "invalid", "The form has no file in its field `file`.")
            if file.size is not None and file.size > site.limits.upload_bytes:
                raise Problem(
                    413, "too_large",
                    f"The file has {file.size:,} bytes; at most {site.limits.upload_bytes:,} are taken.",
                )  # fmt: skip
            found = await asyncio.get_running_loop().run_in_executor(
                site.decoding, _answer_upload, site, file, Wanted(k, mode, radius)
            )
        return json_answer(found)

    @router.get("/uploads/{hash}/thumbnail", response_class=Response, responses=pictures())
    def upload_thumbnail(request: Request, hash: UploadHash) -> Response:
        """The small picture of an upload."""
        content = site.upload(hash).thumbnail
        return kept(request, content, picture_type(content), f'"{hash[:24]}"')

    @router.get("/uploads/{hash}/reconstruction", response_class=Response, responses=pictures())
    def upload_reconstruction(request: Request, hash: UploadHash) -> Response:
        """What the decoder makes of the code of an upload, as PNG."""
        upload = site.upload(hash)
        return reconstructed(site, request, site.collection.model.encode(upload.vector[None]))

    return router


def _answer_upload(site: Site, file: UploadFile, wanted: Wanted) -> dict[str, Any]:
    content = file.file.read()
    if not content:
        raise Problem(422, "empty_file", "The file is empty: 0 bytes came.")
    upload = _upload(site, content, _plain_name(file.filename or ""))
    return answer(site, Asked(upload=upload), wanted)


def _upload(site: Site, content: bytes, name: str) -> Upload:
    """Decode and describe a picture, unless it is remembered."""
    hash_, key = hashlib.sha256(content).hexdigest(), site.collection.manifest.key
    upload = site.uploads.find(hash_, key)
    if upload is None:
        pictures = site.pictures
        decoded = site.decoders.decode(content, pictures.recipe.side, max_pixels=site.limits.upload_pixels)
        vector = pictures.describe(decoded)
        upload = Upload(hash_, key, name, decoded.thumbnail, decoded.width, decoded.height, vector)
    upload = replace(upload, file=name)
    site.uploads.keep(upload)
    return upload


def _plain_name(name: str) -> str:
    """The last part of a file name from outside: it is shown, and never opened."""
    last = name.replace("\\", "/").rpartition("/")[2]
    return "".join(each for each in last if each.isprintable())[:LONGEST_NAME]


# ---- The app

API = "/api/v1"


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
    uploads, closed by who made it.
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
    security.install(app, lambda: f"{source.collection.path.parent}{os.sep}")
    for routes in (info_routes, item_routes, search_routes):
        app.include_router(routes(site), prefix=API)
    _add_page(app)
    app.state.site = site
    return app


def _add_page(app: FastAPI) -> None:
    files = load()

    def send(request: Request, name: str) -> Response:
        if name not in files:
            raise not_found("A file of this name")
        return kept(request, files[name].content, files[name].media_type, files[name].etag)

    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return send(request, "index.html")

    @app.get("/static/{name:path}", include_in_schema=False)
    async def static(request: Request, name: str) -> Response:
        return send(request, name)
