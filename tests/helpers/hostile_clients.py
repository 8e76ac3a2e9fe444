"""Clients that no server wants: huge, malformed, slow or gone ones, beside searches that must be answered.

`tests/system/test_server_process.py` sends some hundreds of requests, `benchmarks/http_load.py` many more.
All of it goes to a server of pictures on this machine.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

HOST = "127.0.0.1"
WAIT = 30.0  # seconds for an answer: no client waits without an end
Outcome = int | str  # a status; "closed" without one; "left" if the client did; "no answer" in time
Slow = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Seen:
    """How often a kind of client came to an outcome, and the seconds of searches that were answered."""

    outcomes: Counter[tuple[str, Outcome]] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    @property
    def unexpected(self) -> dict[tuple[str, Outcome], int]:
        """The outcomes that the clients should not have had."""
        return {each: n for each, n in self.outcomes.items() if each[1] != KINDS[each[0]].expected}

    @property
    def n(self) -> int:
        """All requests."""
        return self.outcomes.total()


@dataclass(frozen=True)
class Kind:
    """A kind of request. share : of all; sent : from head to end; leaves : before it has an answer."""

    share: float
    expected: Outcome
    sent: bytes
    leaves: bool = False


def head(line: str, *fields: str) -> bytes:
    """The head of a request, after which the server closes the connection."""
    return "\r\n".join([f"{line} HTTP/1.1", f"Host: {HOST}", "Connection: close", *fields, "", ""]).encode()


def _upload(content: bytes, announced: int | None = None) -> bytes:
    start = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x.png"\r\n\r\n'
    body = start + content + b"\r\n--b--\r\n"
    fields = "Content-Type: multipart/form-data; boundary=b", f"Content-Length: {announced or len(body)}"
    return head("POST /api/v1/search/upload?k=1", *fields) + body


def _json(path: str, body: bytes, announced: int | None = None) -> bytes:
    fields = "Content-Type: application/json", f"Content-Length: {announced or len(body)}"
    return head(f"POST {path}", *fields) + body


SEARCH = b"GET /api/v1/search?id=3&k=10 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
UPGRADE = head("GET /api/v1/health", "Upgrade: websocket").replace(b": close", b": Upgrade")
KINDS = {
    "search": Kind(0.6, 200, SEARCH),
    "huge head": Kind(0.09, 431, head("GET /api/v1/health", f"X-Huge: {'x' * 200_000}")),
    "many headers": Kind(0.01, 431, head("GET /api/v1/health", *["X: y"] * 20_000)),
    "not HTTP": Kind(0.08, 400, b"\x16\x03\x01\x02\x00\x01 hello\r\n\r\n"),
    "two lengths": Kind(0.02, 400, head("POST /", "Content-Length: 5", "Content-Length: 7")),
    "upgrade": Kind(0.02, 200, UPGRADE),
    "half an upload": Kind(0.1, "left", _upload(b"x" * 100_000, announced=200_000), leaves=True),
    "half a document": Kind(0.05, "left", _json("/api/v1/search/vector", b"[1, " * 100, 1000), leaves=True),
    "answer not awaited": Kind(0.01, "left", head("GET /api/v1/items?limit=500"), leaves=True),
    "not a picture": Kind(0.01, 415, _upload(b"\x89PNG\r\n\x1a\n" + b"x" * 5000)),
    "not a vector": Kind(0.009, 422, _json("/api/v1/search/vector", b'{"vector": [1, 2]}')),
    "huge body": Kind(0.001, 413, _json("/api/v1/search/vector", b" " * 4_200_000)),
}


async def crowd(port: int, requests: int, *, at_once: int = 32, seed: int = 0) -> Seen:
    """That many requests of all kinds in a random order, some at once; searches keep their connections."""
    kinds = iter(
        random.Random(seed).choices(list(KINDS), [each.share for each in KINDS.values()], k=requests)
    )
    seen = Seen()

    async def client() -> None:
        searches = Searches(port)
        for kind in kinds:
            if kind == "search":
                seen.outcomes[kind, await searches.ask(seen.seconds)] += 1
            else:
                seen.outcomes[kind, await _once(port, KINDS[kind])] += 1
        searches.close()

    await asyncio.gather(*(client() for _ in range(at_once)))
    return seen


async def _once(port: int, kind: Kind) -> Outcome:
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(HOST, port), WAIT)
    except OSError:
        return "closed"
    try:
        writer.write(kind.sent)
        if not kind.leaves:
            return await _outcome(reader)
        await writer.drain()
        return "left"
    except ConnectionError:
        return "left" if kind.leaves else "closed"
    finally:
        _abort(writer)


async def _outcome(reader: asyncio.StreamReader, seconds: float = WAIT) -> Outcome:
    """The status of the answer, which ends with the connection."""
    try:
        received = await asyncio.wait_for(reader.read(), seconds)
    except TimeoutError:
        return "no answer"
    except ConnectionError:
        return "closed"
    return int(received.split()[1]) if received else "closed"


def _abort(writer: asyncio.StreamWriter) -> None:
    """Leave without a word: the server gets a reset, and no port stays in use."""
    if not writer.transport.is_closing():
        connected = writer.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class Searches:
    """A client that searches on a connection that is kept open."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, seconds: list[float]) -> Outcome:
        """One search; once more if the server has closed the connection since the last, as browsers do."""
        begun, outcome = time.perf_counter(), "closed"  # type: float, Outcome
        for _ in range(2):
            kept = self._open is not None
            try:
                outcome = await asyncio.wait_for(self._ask(), WAIT)
            except TimeoutError:
                outcome = "no answer"
            except (OSError, asyncio.IncompleteReadError):
                self.close()
                outcome = "closed"
                if kept:
                    continue
            break
        if outcome == 200:
            seconds.append(time.perf_counter() - begun)
        return outcome

    async def _ask(self) -> Outcome:
        if self._open is None:
            self._open = await asyncio.open_connection(HOST, self._port)
        reader, writer = self._open
        writer.write(SEARCH)
        fields = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        length = next(each for each in fields if each.startswith(b"content-length:"))
        await reader.readexactly(int(length.split()[1]))
        return int(fields[0].split()[1])

    def close(self) -> None:
        if self._open is not None:
            _abort(self._open[1])
            self._open = None


# ---- Clients that take their time


async def _drip(writer: asyncio.StreamWriter, text: bytes) -> None:
    """One byte per second."""
    while True:
        writer.write(text)
        await asyncio.sleep(1)


async def says_nothing(writer: asyncio.StreamWriter) -> None:
    """Connects, and no more."""


async def slow_head(writer: asyncio.StreamWriter) -> None:
    """Sends a head that never ends."""
    writer.write(b"GET /api/v1/health HTTP/1.1\r\nX: ")
    await _drip(writer, b"x")


async def half_a_request(writer: asyncio.StreamWriter) -> None:
    """Sends a half of a head, and then nothing."""
    writer.write(b"GET /api/v1/health HTTP/1.1\r\nX: ")


async def slow_body(writer: asyncio.StreamWriter) -> None:
    """Sends a body byte by byte."""
    writer.write(_json("/api/v1/search/vector", b"[", announced=1000))
    await _drip(writer, b" ")


async def heavy_body(writer: asyncio.StreamWriter) -> None:
    """Sends almost all of a body that is as large as it may be, and then nothing."""
    writer.write(_json("/api/v1/search/vector", b" " * 3_900_000, announced=4_000_000))
    await writer.drain()


async def empty_lines(writer: asyncio.StreamWriter) -> None:
    """Is answered, and then sends an empty line, which is not yet a request."""
    writer.write(SEARCH)
    await asyncio.sleep(1)
    writer.write(b"\r\n")


async def slow(port: int, client: Slow, n: int, longest: float) -> list[tuple[Outcome, float]]:
    """What n such clients come to, and after how many seconds; those still there at the longest leave."""

    async def one() -> tuple[Outcome, float]:
        begun = time.perf_counter()
        try:
            reader, writer = await asyncio.open_connection(HOST, port)
        except OSError:
            return "closed", time.perf_counter() - begun
        sending = asyncio.create_task(_quietly(client, writer))
        try:
            return await _outcome(reader, longest), time.perf_counter() - begun
        finally:
            sending.cancel()
            _abort(writer)

    return await asyncio.gather(*(one() for _ in range(n)))


async def _quietly(client: Slow, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):  # the server has closed: what it said is read by others
        await client(writer)


# ---- The server


@dataclass(frozen=True)
class Held:
    """What a process holds: megabytes of memory; descriptors, but for those of SQLite; those; threads.

    SQLite has two files open for each thread that has ever read, at most 49 of them.
    """

    memory: float
    files: int
    databases: int
    threads: int


def held(process: int) -> Held:
    """As of now (Linux)."""
    of, targets = Path(f"/proc/{process}"), list[str]()
    for each in (of / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            targets.append(str(each.readlink()))
    status = dict(line.split(":", 1) for line in (of / "status").read_text().splitlines())
    databases = sum(".sqlite" in each for each in targets)
    memory = int(status["VmRSS"].split()[0]) / 1024
    return Held(memory, len(targets) - databases, databases, int(status["Threads"]))
