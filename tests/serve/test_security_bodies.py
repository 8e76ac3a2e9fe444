"""Bodies of requests: how much is read, and how long it is waited for."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from auxbit.serve.app import lines_of
from auxbit.serve.security import Body, Gate, Limits, Room
from helpers.serve_cases import Client, digits


@pytest.fixture(scope="module")
def client():
    with Client(digits()) as client:
        yield client


def call(client, path, parts, headers=(), seconds=120.0, announced=None):
    """Send a body part by part, as a server does; None waits for ever."""
    limits = Limits(upload_bytes=10_000, body_bytes=5_000, body_seconds=seconds)
    gate = Gate(client.app, token=None, allowed_hosts=None, limits=limits)
    sent, waiting = [], iter(parts)

    async def receive():
        part = next(waiting, None)
        if part is None:
            await asyncio.sleep(60)
        return {"type": "http.request", "body": part, "more_body": part != b""}

    async def send(message):
        sent.append(message)

    fields = [(b"host", b"127.0.0.1"), *headers]
    if announced is not None:
        fields.append((b"content-length", announced))
    scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": path, "raw_path": path.encode()}
    scope |= {"query_string": b"", "headers": fields, "root_path": "", "scheme": "http"}
    asyncio.run(gate(scope, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"])["error"]["code"]


FORM = [(b"content-type", b"multipart/form-data; boundary=b")]
JSON = [(b"content-type", b"application/json")]
START = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'


@pytest.mark.parametrize(
    ("path", "headers", "first"),
    [("/api/v1/search/upload", FORM, START), ("/api/v1/search/vector", JSON, b"["), ("/nowhere", (), b"x")],
)
def test_a_body_that_says_it_is_too_large_is_refused(client, path, headers, first):
    parts = [first, b"1" * 1000, b""]
    assert call(client, path, parts, headers, announced=b"1000000") == (413, "too_large")
    assert call(client, path, parts, headers, announced=b"9" * 400) == (413, "too_large")


@pytest.mark.parametrize("announced", [None, b"100", b"-5", b"x"])
@pytest.mark.parametrize(
    ("path", "headers", "first"),
    [("/api/v1/search/upload", FORM, START), ("/api/v1/search/vector", JSON, b"[")],
)
def test_a_body_is_counted_whatever_it_says_of_itself(client, path, headers, first, announced):
    parts = [first, *[b"1" * 1000] * 200, b""]
    assert call(client, path, parts, headers, announced=announced) == (413, "too_large")


@pytest.mark.parametrize("path", ["/api/v1/search/upload", "/api/v1/search/vector"])
def test_a_body_that_comes_too_slowly_is_given_up(client, path):
    headers = FORM if path.endswith("upload") else JSON
    assert call(client, path, [START, None], headers, seconds=0.05) == (408, "too_slow")


def test_a_stream_may_be_of_any_length_but_not_of_any_slowness(client):
    lines = [(b"content-type", b"application/x-ndjson")]
    parts = [b"{}\n" * 1000] * 3  # more than a body may be
    status, _ = call(client, "/api/v1/search/stream", [*parts, b""], lines)
    assert status == 200  # and each line is told what is wrong with it
    status, code = call(client, "/api/v1/search/stream", [b"{}\n", None], lines, seconds=0.05)
    assert (status, code) == (408, "too_slow")


# ---- all bodies together


def body_of(room, parts, most=10**6):
    """A body that brings these parts."""
    waiting = iter(parts)

    async def receive():
        part = next(waiting)
        return {"type": "http.request", "body": part, "more_body": part != b""}

    return Body(receive, most, 120.0, room)


def test_bodies_that_together_take_too_much_memory_are_refused_but_small_ones_are_read():
    room = Room(200_000)

    async def main():
        large, second, small = (body_of(room, [b"x" * n, b""]) for n in (150_000, 100_000, 60_000))
        await large.receive()
        with pytest.raises(HTTPException, match="take all memory") as refused:
            await second.receive()
        assert refused.value.status_code == 503
        second.hold(0)
        await small.receive()
        assert room.used == 210_000
        for each in (large, small):
            each.hold(0)
        assert room.used == 0
        await body_of(room, [b"x" * 300_000, b""]).receive()  # alone it may be larger

    asyncio.run(main())


def test_a_client_gives_back_its_room_however_its_request_ends(client):
    gate = client.app.middleware_stack or client.app.build_middleware_stack()
    while not isinstance(gate, Gate):
        gate = gate.app
    before = gate.room.used
    assert call(client, "/api/v1/search/vector", [b"[" * 1000, b""], JSON)[0] in (
        400,
        422,
    )  # by the depth that Python reads
    assert call(client, "/api/v1/search/vector", [b"[" * 1000, None], JSON, seconds=0.05) == (408, "too_slow")
    assert gate.room.used == before == 0


def test_long_lines_of_a_stream_are_not_gathered_without_end():
    room, longest = Room(10**9), 5_000
    parts = [b"x" * 4_000 + b"\n"] * 100

    async def main():
        body = body_of(room, [*parts, b""], most=None)
        request = Request({"type": "http", "auxbit.body": body, "headers": []}, body.receive)
        sizes = []
        async for lines in lines_of(request, 256, longest):
            assert sum(map(len, lines)) <= 5 * longest
            assert room.used <= 5 * longest
            sizes.append(len(lines))
        assert sum(sizes) == 100
        assert max(sizes) > 1

    asyncio.run(main())
