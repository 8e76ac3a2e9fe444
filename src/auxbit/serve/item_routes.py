"""The endpoints of items: listings, one item, its pictures."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response
from starlette.requests import Request

from auxbit import files
from auxbit.codes import Packed
from auxbit.errors import CollectionError, FileProblem, InvalidInput
from auxbit.index.id_table import MAX_ID
from auxbit.serve import schemas
from auxbit.serve.answering import FOREVER, REVALIDATE, errors, json_answer, kept, picture_type, pictures
from auxbit.serve.catalogue import name_in
from auxbit.serve.errors import Problem, not_found
from auxbit.serve.known_items import ITEMS, bits_text, item_of, version_of
from auxbit.serve.limits import MAX_ITEMS
from auxbit.serve.pixels import png
from auxbit.serve.site import Site
from auxbit.serve.states import consistently

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
