"""The endpoints of searches: by item, by vector, by upload."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Path, Query
from fastapi.responses import Response
from starlette.datastructures import UploadFile
from starlette.requests import Request

from auxbit.codes import MAX_BITS
from auxbit.index.id_table import MAX_ID
from auxbit.serve import schemas
from auxbit.serve.answering import errors, json_answer, kept, picture_type, pictures
from auxbit.serve.errors import Problem
from auxbit.serve.item_routes import reconstructed
from auxbit.serve.limits import MAX_K
from auxbit.serve.searching import Asked, Wanted, answer
from auxbit.serve.site import Site
from auxbit.serve.uploads import Upload

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
