"""Connection: HTTP of one client by uvicorn, with the limits on size, time and number that uvicorn lacks."""

from __future__ import annotations

import asyncio
import http
import os
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from auxbit.serve.security import HEADERS, Limits, Problem

SLICE = 16_384  # bytes given to the parser at once: what comes in one read may be larger than a head may be
LINGER_SECONDS = 2.0  # for a client that was refused to read why
OWN_FILES = 128  # of the collection, of SQLite for each thread (at most 98), of decoders


class Connection(HttpToolsProtocol):
    """A client. Its request is first a head (the line and the headers), then perhaps a body.

    The time for bodies that are read is the gate's concern; here it is the head, bodies that nobody reads,
    answers that the client does not take, and the end of the server.
    """

    def __init__(self, *args: Any, limits: Limits, **options: Any) -> None:
        super().__init__(*args, **options)
        self.limits = limits
        self._head_bytes, self._in_head, self._has_body, self._refused = 0, True, True, False
        self._since = self.loop.time()  # nothing is asked since
        self._timer: asyncio.TimerHandle | None = None  # for the head, or for a body that nobody reads
        self._writing: asyncio.TimerHandle | None = None  # for what the client does not take

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody has come; with too many of them, whoever has asked nothing for longest must go."""
        super().connection_made(transport)
        self._limit_head()
        if len(self.connections) > most_connections(self.limits):
            idle = [each for each in self.connections if isinstance(each, Connection) and each.is_idle]
            oldest = min(idle, key=lambda each: each._since)
            if oldest is not self:
                oldest.transport.abort()
            else:  # all others are being answered
                self._refuse(503, "busy", "The server has too many connections: try again.")

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        for timer in (self._timer, self._writing):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    # ---- heads

    def data_received(self, data: bytes) -> None:
        """Some bytes have come."""
        for start in range(0, len(data), SLICE):
            if self._refused or self.transport.is_closing():
                return
            part = data[start : start + SLICE]
            super().data_received(part)
            if self._in_head:
                self._head_bytes += len(part)
                if self._head_bytes > self.limits.head_bytes:
                    text = f"The address and headers are larger than {self.limits.head_bytes:,} bytes."
                    self._refuse(431, "too_large", text)
        # whatever came has ended uvicorn's wait for a next request, even if it was an empty line
        if self._timer is None and (self._in_head or (self._has_body and self.is_idle)):
            self._limit_head()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_head, self._has_body = True, False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._in_head, self._head_bytes = False, 0
        self._stop_timer()
        super().on_headers_complete()
        if self.parser.should_upgrade():  # to what is not spoken here: nothing after it can be understood
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        """The body is there, too."""
        self._has_body = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What came is not HTTP."""
        self._refuse(
            400, "bad_request", "This is not a request of HTTP/1.1, or its headers contradict each other."
        )

    def _limit_head(self) -> None:
        self._after(self.limits.head_seconds, self._head_too_slow)

    def _head_too_slow(self) -> None:
        if not self.is_idle:  # the request before is being answered
            self._limit_head()
        elif self._head_bytes:
            text = f"The address and headers took longer than {self.limits.head_seconds:g} s."
            self._refuse(408, "too_slow", text)
        else:
            self.transport.abort()

    def _after(self, seconds: float, then: Callable[[], object]) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, then)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---- answers

    def on_response_complete(self) -> None:
        """An answer has been given; the client may still be sending a body, and has a while to take it."""
        self._since = self.loop.time()
        super().on_response_complete()
        if self.transport.is_closing() or not self._has_body:
            self._after(self.limits.write_seconds, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        """Nothing more is asked; what was answered is sent to its end, if the client takes it."""
        super().timeout_keep_alive_handler()
        self._after(self.limits.write_seconds, self.transport.abort)

    def pause_writing(self) -> None:
        """The client does not take what is sent."""
        super().pause_writing()
        self._writing = self.loop.call_later(self.limits.write_seconds, self.transport.abort)
        self._limit_answers()

    def _limit_answers(self) -> None:
        """If answers that nobody takes fill the memory, whoever has not taken theirs for longest must go."""
        clients = [each for each in self.connections if isinstance(each, Connection)]
        slow = [(each._writing.when(), each.transport) for each in clients if each._writing is not None]
        slow.sort(key=lambda pair: pair[0])
        n_bytes = sum(transport.get_write_buffer_size() for _, transport in slow)
        for _, transport in slow[:-1]:
            if n_bytes <= self.limits.held_bytes:
                return
            n_bytes -= transport.get_write_buffer_size()
            transport.abort()

    def resume_writing(self) -> None:
        """It does again."""
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        super().resume_writing()

    # ---- the end

    def shutdown(self) -> None:
        """The server ends: what is being answered is finished, what is being sent must come soon."""
        super().shutdown()
        if not self._has_body:
            self.loop.call_later(self.limits.end_seconds, self._give_up)

    def _give_up(self) -> None:
        if not self._has_body and not self.is_idle and not self.transport.is_closing():
            self._refuse(503, "ending", "The server is ending, and the body of the request is not complete.")

    def _refuse(self, status: int, code: str, text: str) -> None:
        """Say why, unless an answer has begun, and hear nothing more."""
        self._refused = True
        self._stop_timer()
        if self.is_idle or not self.cycle.response_started:
            body = Problem(status, code, text).response().body
            lines = [f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}", "Connection: close"]
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
            lines += [f"{name}: {value}" for name, value in HEADERS.items()]
            self.transport.write("\r\n".join([*lines, "", ""]).encode() + bytes(body))
        if self.cycle is not None and not self.is_idle:
            self.cycle.disconnected = True  # for the app the client is gone
            self.cycle.message_event.set()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._after(LINGER_SECONDS, self.transport.abort)


def most_connections(limits: Limits) -> int:
    """How many clients there may be at once: each may need two files, one of them for its upload."""
    if os.name != "posix":
        return limits.connections
    import resource

    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limits.connections if files < 0 else max(8, min(limits.connections, (files - OWN_FILES) // 2))
