"""What stands before every request: who may ask, from where, how much; the form of errors; the headers."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import parse_qsl, urlencode, urlsplit

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from auxbit.errors import (
    AuxbitError,
    BadPicture,
    CollectionError,
    Damaged,
    FileProblem,
    InUse,
    InvalidInput,
)

logger = logging.getLogger("auxbit.serve")

CODES = {
    400: "bad_request", 404: "not_found", 405: "method_not_allowed", 408: "too_slow", 410: "gone",
    413: "too_large", 415: "not_a_picture", 422: "invalid", 503: "busy",
}  # fmt: skip


# ---- Errors: {"error": {"code": …, "message": …}}, whatever raised them


class Problem(AuxbitError):
    """An answer other than 200: a status, a code for programs, a sentence for people."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code

    @property
    def document(self) -> dict[str, Any]:
        """What is sent."""
        return {"error": {"code": self.code, "message": str(self)}}

    def response(self, headers: Mapping[str, str] | None = None) -> Response:
        """The answer. Half a surrogate pair, which UTF-8 lacks, is escaped by JSON."""
        return Response(json.dumps(self.document).encode(), self.status, headers, "application/json")


def not_found(what: str) -> Problem:
    """The thing with that name is not there."""
    return Problem(404, "not_found", f"{what} is not there.")


def problem_of(error: Exception) -> Problem | None:
    """What to answer to an error; None for one that nobody foresaw."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException):
        return Problem(error.status_code, CODES.get(error.status_code, "refused"), str(error.detail))
    text = str(error)
    if isinstance(error, BadPicture):
        # a picture that is too large is still a picture
        status, code = (413, "too_many_pixels") if " pixels; at most " in text else (415, "not_a_picture")
        return Problem(status, code, f"The picture {text.rstrip('.')}.")
    if isinstance(error, InvalidInput):
        return Problem(422, "invalid", text)
    if isinstance(error, Damaged):
        return Problem(410, "damaged", text)
    if isinstance(error, CollectionError):
        return Problem(410, "collection_gone", text)
    if isinstance(error, InUse):
        return Problem(409, "in_use", text)
    if isinstance(error, FileProblem):
        return Problem(404, "file_gone", text)
    return None


def install(app: FastAPI, problem_of: Callable[[Exception], Problem | None]) -> None:
    """Let the app answer errors of ours, of validation and of routing in one form."""

    # asynchronous, else each would be run in another thread
    async def ours(request: Request, error: Exception) -> Response:
        problem = problem_of(error)
        if problem is None:
            raise error
        return problem.response()

    app.add_exception_handler(AuxbitError, ours)
    app.add_exception_handler(RequestValidationError, _not_valid)
    app.add_exception_handler(HTTPException, _of_http)


async def _not_valid(request: Request, error: Any) -> Response:
    found: Sequence[Any] = error.errors()
    if any(each["loc"][:1] == ("path",) for each in found):  # no item or upload has such an id
        return not_found("What the address names").response()
    text = f"{sentence_of(found)}. /api/v1/openapi.json describes it."
    return Problem(422, "invalid", text).response()


def sentence_of(found: Sequence[Any], skip: int = 1) -> str:
    """What pydantic found to be wrong. skip : how many parts of each place name the whole."""
    sentences = [
        f"{'.'.join(map(str, each['loc'][skip:])) or 'the body'}: {each['msg']}" for each in found[:5]
    ]
    return "; ".join(sentences) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")


async def _of_http(request: Request, error: Any) -> Response:
    texts = {
        404: "There is nothing at this address. /api/v1/openapi.json lists what there is.",
        405: f"{request.method} is not allowed here. /api/v1/openapi.json lists what is.",
    }
    status, text = error.status_code, texts.get(error.status_code, str(error.detail))
    return Problem(status, CODES.get(status, "refused"), text).response(error.headers)


# ---- Limits

MAX_K = 200
MAX_ITEMS = 500  # of one page of a listing
MAX_ADDED = 1000  # items that one request adds or deletes, or one step of a stream
MAX_TEXT = 2000  # letters of a text to search for, or of conditions
MAX_RANKED = 10_000  # items within a radius that are ranked by a distance other than Hamming's
MULTIPART_BYTES = 64 * 1024  # what a form may have around its file


@dataclass(frozen=True)
class Limits:
    """Bytes and pixels of an upload; bytes of any other body; uploads remembered; seconds for a body.

    head_bytes, head_seconds : of the address and headers of a request; a client that asks nothing for that
    long is sent away. write_seconds : for a client to take an answer. end_seconds : for a body that is on its
    way when the server ends. connections : at most, and less than half of the files that may be open.
    held_bytes : of all bodies together that are read or answered, and of all answers that are not taken.
    """

    upload_bytes: int = 20_000_000
    upload_pixels: int = 50_000_000
    body_bytes: int = 4_000_000
    uploads: int = 256
    uploads_bytes: int = 64 * 2**20
    body_seconds: float = 120.0
    head_bytes: int = 65_536
    head_seconds: float = 10.0
    write_seconds: float = 60.0
    end_seconds: float = 3.0
    connections: int = 1000
    held_bytes: int = 2**28


# ---- The gate

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
SMALL_BYTES = 2**16  # a body of that size is read even if others hold all that may be held
DRAINED_BYTES = 2**28  # read and thrown away, of a body that is too large
DRAINED_SECONDS = 5.0  # for a body that there is no room for
NO_ROOM = "The bodies of other requests take all memory that there is for them: try again."
UPLOAD_PATH = "/api/v1/search/upload"
STREAM_PATHS = ("/api/v1/search/stream", "/api/v1/items/stream")  # bodies of any length
STREAM_RATE = 10_000  # bytes per second that one must bring, beside the seconds of any body
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


class Gate:
    """ASGI middleware around the whole app.

    allowed_hosts : what the Host header may be, against names of others that resolve to this machine; None:
    any. token : what a client must know; None: nothing.
    """

    def __init__(
        self, app: ASGIApp, *, token: str | None, allowed_hosts: Collection[str] | None, limits: Limits
    ) -> None:
        self.app, self.limits = app, limits
        self.allowed_hosts = None if allowed_hosts is None else {each.lower() for each in allowed_hosts}
        self.pass_ = None if token is None else Pass(token)
        self.room = Room(limits.held_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # a web socket is closed by the server
        started, empty = False, scope["method"] == "HEAD"
        body = Body(receive, self._most_bytes(scope["path"]), self.limits.body_seconds, self.room)

        async def answer(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), *_RAW_HEADERS]
                MutableHeaders(raw=message["headers"]).setdefault("cache-control", "no-store")
            elif empty and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        scope = {**scope, "auxbit.body": body, "method": "GET" if empty else scope["method"]}
        try:
            headers = Headers(scope=scope)
            entered = self._let_in(scope, headers)
            if entered is not None:
                await entered(scope, receive, answer)
                return
            await body.check_announced(headers.get("content-length"))
            await self.app(scope, body.receive, answer)
        except ClientDisconnect:
            return
        except Exception as error:  # nothing may take the server down, and no answer may lack the headers
            problem = problem_of(error)
            if problem is None:
                logger.exception("%s %s failed", scope["method"], scope["path"])
                problem = Problem(500, "internal", "The server failed; its log says where.")
            if not started:
                await problem.response()(scope, receive, answer)
        finally:
            body.hold(0)

    def _most_bytes(self, path: str) -> int | None:
        if path in STREAM_PATHS:
            return None
        return self.limits.upload_bytes + MULTIPART_BYTES if path == UPLOAD_PATH else self.limits.body_bytes

    def _let_in(self, scope: Scope, headers: Headers) -> ASGIApp | None:
        """Refuse, or answer in place of the app; None: let the app answer."""
        # not by Starlette's TrustedHostMiddleware, which answers in plain text and names no remedy
        host = headers.get("host", "")
        if self.allowed_hosts is not None and name_of(host) not in self.allowed_hosts:
            text = f"This server does not answer to the name {host[:100]!r}: use 127.0.0.1."
            raise Problem(403, "wrong_host", text)
        if scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            _check_origin(headers, host)
        return self.pass_.check(scope, headers) if self.pass_ is not None else None


def name_of(host: str) -> str:
    """The name in a Host header, without its port; "" if it is malformed."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _check_origin(headers: Headers, host: str) -> None:
    """A page of somebody else must not make its visitors' browsers ask us to do something."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
    try:
        foreign = origin is not None and (urlsplit(origin).netloc.lower() != host.lower() or not host)
    except ValueError:  # malformed
        foreign = True
    if foreign or site not in ("none", "same-origin"):
        raise Problem(403, "cross_origin", "Requests from pages of other origins are not answered.")


class Pass:
    """A token, and the cookie that stands for it: its name and value do not reveal the token."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        digest = hashlib.sha256(b"auxbit cookie\0" + self._token).hexdigest()
        self._name, self._value = f"auxbit_{digest[:8]}", digest[8:]

    def check(self, scope: Scope, headers: Headers) -> ASGIApp | None:
        """Refuse whoever does not know the token; `/?token=…` sets the cookie and leads on without it."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        by_bearer = scheme.lower() == "bearer" and self._is_token(bearer.strip())
        cookies, expected = headers.get("cookie", "").split(";"), f"{self._name}={self._value}".encode()
        by_cookie = any(hmac.compare_digest(each.strip().encode(), expected) for each in cookies)
        if scope["path"] == "/" and given:
            if all(map(self._is_token, given)):
                return self._welcome(urlencode([(n, v) for n, v in query if n != "token"]), headers)
        elif by_bearer or by_cookie:
            return None
        text = "This server asks for its token: open /?token=… once, or send `Authorization: Bearer …`."
        raise Problem(401, "token_needed", text)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self._token)

    def _welcome(self, query: str, headers: Headers) -> ASGIApp:
        there = f"/?{query}" if query else "/"
        # after a link from elsewhere a browser follows redirects without strict cookies, but not a refresh
        elsewhere = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        how = {"refresh": f"0; url={there}"} if elsewhere else {"location": there}
        response = Response(status_code=200 if elsewhere else 303, headers=how)
        response.set_cookie(self._name, self._value, max_age=2592000, httponly=True, samesite="strict")
        return response


@dataclass
class Room:
    """Memory that all bodies share. most, used : bytes."""

    most: int
    used: int = 0


class Body:
    """The body of a request, counted as it comes: too much or too slow ends it.

    most : bytes; None for a stream. seconds : that may be waited for it. room : for all bodies together.
    What it raises is an HTTPException, which passes through readers of bodies unchanged.
    """

    def __init__(self, receive: Receive, most: int | None, seconds: float, room: Room) -> None:
        self._receive, self._most, self._seconds, self._room, self._held = receive, most, seconds, room, 0
        self._size, self._waited, self._complete = 0, 0.0, False

    async def check_announced(self, length: str | None) -> None:
        """Refuse a body whose announced length is too large."""
        if self._most is None or length is None or not length.isdecimal():
            return
        if int(length[:20]) > self._most:
            await self._refuse_size()

    async def receive(self) -> Message:
        """The next part."""
        if self._complete:
            return await self._receive()  # waits for the client to leave
        message = await self._next()
        if self._most is not None:
            if self._size > self._most:
                await self._refuse_size()
            if not self.hold(self._size):
                self._seconds = min(self._seconds, self._waited + DRAINED_SECONDS)
                with suppress(HTTPException):  # too slow
                    await self._drain()
                raise HTTPException(503, NO_ROOM)
        return message

    def hold(self, n_bytes: int) -> bool:
        """Take that many bytes of the room in place of those before; whether there are as many.

        The reader of a stream tells how many it holds.
        """
        self._room.used += n_bytes - self._held
        self._held = n_bytes
        alone = self._room.used == n_bytes
        return n_bytes <= SMALL_BYTES or alone or self._room.used <= self._room.most

    async def _next(self) -> Message:
        time, allowed = asyncio.get_running_loop().time, self._seconds
        if self._most is None:
            allowed += self._size / STREAM_RATE
        start = time()
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, allowed - self._waited))
        except TimeoutError:
            raise HTTPException(408, f"The body took longer than {allowed:g} s.") from None
        self._waited += time() - start
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        return message

    async def _refuse_size(self) -> NoReturn:
        await self._drain()
        raise HTTPException(413, f"The body is larger than {self._most:,} bytes, the most that is read.")

    async def _drain(self) -> None:
        """Let the client send its body before it is refused: most clients do not listen before."""
        while not self._complete and self._size < DRAINED_BYTES:
            await self._next()
