"""Connections: clients that send too much, too slowly or nothing, do not read, or are there when it ends."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

import pytest
import uvicorn

from auxbit.serve.connection import Connection, most_connections
from auxbit.serve.security import Limits

LIMITS = Limits(head_bytes=20_000, head_seconds=0.4, write_seconds=0.4, end_seconds=0.3)
HEAD = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"


async def app(scope, receive, send):
    """Answers at once, but for /slow; /read reads the body first, the answer of /large is large."""
    if scope["type"] != "http":
        return
    size = 0
    if scope["path"] == "/slow":
        await asyncio.sleep(1)
    while scope["path"] == "/read":
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message["body"])
        if not message["more_body"]:
            break
    body = b"x" * 50_000_000 if scope["path"] == "/large" else str(size).encode()
    await send({"type": "http.response.start", "status": 200,
                "headers": [(b"content-length", str(len(body)).encode())]})  # fmt: skip
    await send({"type": "http.response.body", "body": body})


@contextmanager
def running(**changes):
    """A server of that app in a thread: the server, and its port."""
    http = partial(Connection, limits=replace(LIMITS, **changes))
    config = uvicorn.Config(
        app, http=http, lifespan="off", log_level="warning", timeout_keep_alive=1, ws="none"
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield server, listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(20)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def port():
    with running() as (_, port):
        yield port


@contextmanager
def connected(port, *parts):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        for part in parts:
            client.sendall(part)
        yield client


def received(client):
    """All that comes until the server closes: status and body."""
    parts = []
    while part := client.recv(65536):
        parts.append(part)
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    return (int(head.split()[1]) if head else None), body


def ask(port):
    with connected(port, HEAD + b"Connection: close\r\n\r\n") as client:
        return received(client)


@pytest.mark.parametrize(
    "part", [b"X-Large: " + b"a" * 200_000, b"X: y\r\n" * 40_000], ids=["one large", "many small"]
)
def test_headers_without_an_end_are_refused_long_before_they_end(port, part):
    with connected(port, HEAD, part) as client:
        status, body = received(client)
    assert (status, json.loads(body)["error"]["code"]) == (431, "too_large")
    assert b"20,000 bytes" in body


def test_an_address_without_an_end_is_refused(port):
    with connected(port, b"GET /" + b"a" * 200_000) as client:
        assert received(client)[0] == 431


def test_headers_within_the_limit_and_large_bodies_are_answered(port):
    body = b"b" * 300_000
    head = HEAD.replace(b"GET /", b"POST /read") + b"X-Large: " + b"a" * 15_000
    length = f"\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
    with connected(port, head + length + body) as client:
        assert received(client) == (200, b"300000")


def test_two_requests_on_one_connection_are_counted_apart(port):
    one = HEAD + b"X-Large: " + b"a" * 12_000
    with connected(port, one + b"\r\n\r\n", one + b"\r\nConnection: close\r\n\r\n") as client:
        status, rest = received(client)
    assert status == 200
    assert rest.count(b"200 OK") == 1


def test_an_answer_may_take_longer_than_a_head(port):
    slow = HEAD.replace(b"GET /", b"GET /slow")
    with connected(port, slow + b"\r\n", slow + b"Connection: close\r\n\r\n") as client:
        status, rest = received(client)
    assert status == 200
    assert rest.count(b"200 OK") == 1


@pytest.mark.parametrize(
    ("parts", "status"), [((), None), ((HEAD,), 408), ((b"GET",), 408)], ids=["idle", "half", "a word"]
)
def test_who_asks_nothing_or_by_half_is_sent_away(port, parts, status):
    start = time.monotonic()
    with connected(port, *parts) as client:
        assert received(client)[0] == status
    assert time.monotonic() - start < 10


def test_half_a_second_request_is_not_waited_for_either(port):
    with connected(port, HEAD + b"\r\n") as client:
        assert client.recv(15) == b"HTTP/1.1 200 OK"
        client.sendall(HEAD)
        assert b"408" in b"".join(iter(partial(client.recv, 65536), b""))


def test_a_body_that_nobody_reads_does_not_hold_the_connection(port):
    head = HEAD.replace(b"GET", b"POST") + b"Content-Length: 1000\r\n\r\n"
    with connected(port, head, b"half") as client:
        status, _ = received(client)
    assert status == 200


def test_an_empty_line_after_an_answer_does_not_hold_the_connection(port):
    with connected(port, HEAD + b"\r\n") as client:
        assert client.recv(15) == b"HTTP/1.1 200 OK"
        client.sendall(b"\r\n")
        start = time.monotonic()
        while client.recv(65536):
            pass
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    "sent",
    [b"\x16\x03\x01 hello\r\n\r\n", HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n"],
    ids=["not HTTP", "two lengths"],
)
def test_what_is_not_http_gets_an_error_like_all_others(port, sent):
    with connected(port, sent) as client:
        status, body = received(client)
    assert (status, json.loads(body)["error"]["code"]) == (400, "bad_request")


def test_an_upgrade_to_what_is_not_spoken_is_answered_and_ends_the_connection(port):
    with connected(port, HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n") as client:
        head = b"".join(iter(partial(client.recv, 65536), b"")).lower()
    assert head.startswith(b"http/1.1 200")
    assert b"connection: close" in head


def test_an_answer_that_is_not_taken_is_given_up():
    with running() as (server, port), connected(port) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(HEAD.replace(b"GET /", b"GET /large") + b"\r\n")
        until = time.monotonic() + 10
        while not server.server_state.total_requests and time.monotonic() < until:
            time.sleep(0.02)
        while server.server_state.connections and time.monotonic() < until:
            time.sleep(0.02)
        assert not server.server_state.connections


def test_of_answers_that_nobody_takes_only_some_are_kept():
    # of 50 MB each; the system's own buffers take a part of them
    limits = {"head_seconds": 30, "write_seconds": 60, "held_bytes": 102_000_000}
    with running(**limits) as (server, port), ExitStack() as stack:
        until = time.monotonic() + 20
        for n in range(5):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            client.sendall(HEAD.replace(b"GET /", b"GET /large") + b"\r\n")
            while server.server_state.total_requests <= n and time.monotonic() < until:
                time.sleep(0.01)
        while len(server.server_state.connections) > 2 and time.monotonic() < until:
            time.sleep(0.02)
        assert 1 <= len(server.server_state.connections) <= 2


def test_with_too_many_connections_whoever_has_waited_longest_goes():
    with running(connections=8, head_seconds=30) as (_, port):
        waiting = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(20)]
        try:
            assert ask(port)[0] == 200
            assert waiting[0].recv(10) == b""
            waiting[-1].sendall(HEAD + b"\r\n")
            assert waiting[-1].recv(15) == b"HTTP/1.1 200 OK"
        finally:
            for each in waiting:
                each.close()


def test_if_all_are_being_answered_the_next_is_told_to_come_again():
    head = HEAD.replace(b"GET /", b"POST /read") + b"Content-Length: 3\r\nConnection: close\r\n\r\n"
    with running(connections=8) as (server, port):
        busy = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(8)]
        for each in busy:
            each.sendall(head)
        while len(server.server_state.tasks) < 8:
            time.sleep(0.01)
        status, body = ask(port)
        assert (status, json.loads(body)["error"]["code"]) == (503, "busy")
        for each in busy:
            each.sendall(b"abc")
            assert received(each) == (200, b"3")
            each.close()


def test_the_end_does_not_wait_long_for_half_a_body(caplog):
    head = HEAD.replace(b"GET /", b"POST /read") + b"Content-Length: 1000\r\n\r\n"
    with running() as (server, port), connected(port, head + b"half") as client:
        while not server.server_state.tasks:
            time.sleep(0.01)
        start = time.monotonic()
        server.should_exit = True
        status, body = received(client)
        assert (status, json.loads(body)["error"]["code"]) == (503, "ending")
    assert time.monotonic() - start < 10
    assert caplog.records == []


def test_the_number_of_connections_leaves_files_to_open(monkeypatch):
    resource = pytest.importorskip("resource", reason="no limits on files on this system")
    for files, most in ((300, 86), (10, 8), (1024, 448), (1_000_000, 1000), (-1, 1000)):
        monkeypatch.setattr(resource, "getrlimit", lambda what, files=files: (files, files))
        assert most_connections(Limits()) == most
