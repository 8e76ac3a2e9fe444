"""What stands before every request: who may ask, from where, how much; and the headers of every answer."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Collection
from typing import NoReturn
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from auxbit.serve.errors import CODES, Problem, error_response, problem_of
from auxbit.serve.limits import MULTIPART_BYTES, Limits

logger = logging.getLogger("auxbit.serve")

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
DRAINED_BYTES = 2**28  # read and thrown away, of a body that is too large
UPLOAD_PATH = "/api/v1/search/upload"
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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # a web socket is closed by the server
        started, empty = False, scope["method"] == "HEAD"

        async def answer(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), *_RAW_HEADERS]
                MutableHeaders(raw=message["headers"]).setdefault("cache-control", "no-store")
            elif empty and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        if empty:
            scope = {**scope, "method": "GET"}
        try:
            headers = Headers(scope=scope)
            entered = self._let_in(scope, headers)
            if entered is not None:
                await entered(scope, receive, answer)
                return
            body = Body(receive, self._most(scope), self.limits.body_seconds)
            await body.check_announced(headers.get("content-length"))
            await self.app(scope, body.receive, answer)
        except ClientDisconnect:
            return
        except Exception as error:  # nothing may take the server down, and no answer may lack the headers
            problem = problem_of(error) or _of_http(error)
            if problem is None:
                logger.exception("%s %s failed", scope["method"], scope["path"])
                problem = Problem(500, "internal", "The server failed; its log says where.")
            if not started:
                await error_response(problem)(scope, receive, answer)

    def _most(self, scope: Scope) -> int:
        upload = scope["path"] == UPLOAD_PATH
        return self.limits.upload_bytes + MULTIPART_BYTES if upload else self.limits.body_bytes

    def _let_in(self, scope: Scope, headers: Headers) -> ASGIApp | None:
        """Refuse, or answer in place of the app, or None: go on."""
        host = headers.get("host", "")
        if self.allowed_hosts is not None and name_of(host) not in self.allowed_hosts:
            raise Problem(
                403, "wrong_host", f"This server does not answer to the name {host[:100]!r}: use 127.0.0.1."
            )
        if scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            _check_origin(headers, host)
        return self.pass_.check(scope, headers) if self.pass_ is not None else None


def _of_http(error: Exception) -> Problem | None:
    if isinstance(error, HTTPException):
        return Problem(error.status_code, CODES.get(error.status_code, "refused"), str(error.detail))
    return None


def name_of(host: str) -> str:
    """The name in a Host header or an origin, without its port; "" where it is malformed."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _check_origin(headers: Headers, host: str) -> None:
    """A page of somebody else must not make its visitors' browsers ask us to do something."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
    foreign = origin is not None and (urlsplit_netloc(origin) != host.lower() or not host)
    if foreign or site not in ("none", "same-origin"):
        raise Problem(403, "cross_origin", "Requests from pages of other origins are not answered.")


def urlsplit_netloc(origin: str) -> str:
    """Host and port of an origin; "" of a malformed or opaque one."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


class Pass:
    """A token, and the cookie that stands for it: its name and value do not reveal the token."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        digest = hashlib.sha256(b"auxbit cookie\0" + self._token).hexdigest()
        self._name, self._value = f"auxbit_{digest[:8]}", digest[8:]

    def check(self, scope: Scope, headers: Headers) -> ASGIApp | None:
        """Refuse who does not know the token; `/?token=…` sets the cookie and leads on without it."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if scope["path"] == "/" and any(name == "token" for name, _ in query):
            given = [value for name, value in query if name == "token"]
            if all(self._is_token(each) for each in given):
                return self._welcome(urlencode([(n, v) for n, v in query if n != "token"]), headers)
            raise _refused()
        scheme, _, given_token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_token(given_token.strip()):
            return None
        cookies = headers.get("cookie", "").split(";")
        expected = f"{self._name}={self._value}".encode()
        if any(hmac.compare_digest(each.strip().encode(), expected) for each in cookies):
            return None
        raise _refused()

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self._token)

    def _welcome(self, query: str, headers: Headers) -> ASGIApp:
        there = f"/?{query}" if query else "/"
        cookie = f"{self._name}={self._value}; Path=/; HttpOnly; SameSite=Strict; Max-Age=2592000"
        # after a link from elsewhere a browser follows redirects without strict cookies, but not a refresh
        elsewhere = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        how = [(b"refresh", f"0; url={there}".encode())] if elsewhere else [(b"location", there.encode())]

        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            fields = [*how, (b"set-cookie", cookie.encode()), (b"content-length", b"0")]
            status = 200 if elsewhere else 303
            await send({"type": "http.response.start", "status": status, "headers": fields})
            await send({"type": "http.response.body", "body": b""})

        return respond


def _refused() -> Problem:
    return Problem(
        401,
        "token_needed",
        "This server asks for its token: open /?token=… once, or send `Authorization: Bearer …`.",
    )


class Body:
    """The body of a request, counted as it comes: too much or too slow ends it.

    What it raises is an HTTPException, which passes through readers of bodies unchanged.
    """

    def __init__(self, receive: Receive, most: int, seconds: float) -> None:
        self._receive, self._most, self._seconds = receive, most, seconds
        self._size, self._until, self._complete = 0, 0.0, False

    async def check_announced(self, length: str | None) -> None:
        """Refuse by what a client says is coming."""
        if length is not None and length.isdecimal() and int(length[:20]) > self._most:
            await self._refuse()

    async def receive(self) -> Message:
        """The next part."""
        if self._complete:
            return await self._receive()  # waits for the client to leave
        message = await self._next()
        if self._size > self._most:
            await self._refuse()
        return message

    async def _next(self) -> Message:
        now = asyncio.get_running_loop().time()
        self._until = self._until or now + self._seconds
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, self._until - now))
        except TimeoutError:
            raise HTTPException(408, f"The body took longer than {self._seconds:g} s.") from None
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        return message

    async def _refuse(self) -> NoReturn:
        """Say so when the client has sent what it has: most do not listen before."""
        while not self._complete and self._size < DRAINED_BYTES:
            await self._next()
        raise HTTPException(413, f"The body is larger than {self._most:,} bytes, the most that is read.")
