"""Answers as the browser keeps them, and how the description of the API names their errors."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from auxbit.serve.errors import CODES
from auxbit.serve.schemas import Error

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
