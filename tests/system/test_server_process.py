"""`auxbit serve` as a process: starting, ending in the middle of a request, addresses, tokens."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import pytest

from helpers.hostile_clients import crowd, half_a_request, heavy_body, held, says_nothing, slow
from helpers.serve_cases import N, digit_pixels, digits, png

COMMAND = [sys.executable, "-m", "auxbit", "serve"]


@contextmanager
def served(*arguments, env=None):
    """A server on a free port: its process, and the port that it prints."""
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments), "--port", "0", "--no-browser"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "AUXBIT_TOKEN": "", **(env or {})},
    )
    try:
        line = process.stdout.readline()
        found = re.search(r"http://\S+:(\d+)/", line)
        assert found, line + process.stderr.read()
        process.first_line = line
        yield process, int(found[1])
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.communicate()


def ask(port, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


START = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x.png"\r\n\r\n'


def half_an_upload(port, number=5):
    """A connection on which the first half of an upload is sent, and the other half."""
    body = START + png(digit_pixels(number)) + b"\r\n--b--\r\n"
    head = (
        f"POST /api/v1/search/upload?k=1&mode=reranked HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\nExpect: 100-continue\r\n\r\n"
    )
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.sendall(head.encode())
    assert b"100 Continue" in connection.recv(100)  # so the server is about to read the body
    connection.sendall(body[:90])
    return connection, body[90:]


def received(connection):
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    connection.close()
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    return int(head.split()[1]), body


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGINT])
def test_the_end_finishes_what_is_running(number):
    with served(digits()) as (process, port):
        assert "digits.auxbit" in process.first_line
        assert f"{N} pictures" in process.first_line
        assert ask(port, "/api/v1/search?id=3&k=2")[0] == 200
        connection, rest = half_an_upload(port)
        process.send_signal(number)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:  # until nobody is let in any more
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                time.sleep(0.05)
                continue
            break
        assert process.poll() is None
        connection.sendall(rest)
        status, body = received(connection)
        assert status == 200
        assert json.loads(body)["results"][0]["id"] == 5
        assert process.wait(timeout=20) == 0


@pytest.fixture(scope="module")
def server():
    with served(digits(), "--max-upload-mb", "0.1", "--jobs", "1") as (process, port):
        yield process, port
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
        assert process.stderr.read() == ""


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"GET /static/../app.py", 404),
        (b"GET /static/..%2f..%2fapp.py", 404),
        (b"GET /../../etc/passwd", 404),
        (b"GET /api/v1/items/../health", 404),
        (b"GET //evil.example/", 404),
        (b"GET /api/v1/items/%00", 404),
        (b"GET /" + b"x" * 20_000, 404),
        (b"OPTIONS /api/v1/health", 405),
        (b"PATCH /api/v1/health", 405),
    ],
)
def test_lines_that_no_browser_sends_get_clear_answers(server, line, status):
    connection = socket.create_connection(("127.0.0.1", server[1]), timeout=30)
    connection.sendall(line + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    found, body = received(connection)
    assert found == status
    assert set(json.loads(body)) == {"error"}


def test_a_host_of_another_name_is_refused(server):
    assert ask(server[1], "/api/v1/health", Host="evil.example")[0] == 403
    assert ask(server[1], "/api/v1/health", Host=f"localhost:{server[1]}")[0] == 200


def test_a_client_that_leaves_in_the_middle_harms_nobody(server):
    for _ in range(5):
        connection, _ = half_an_upload(server[1])
        connection.close()
    assert ask(server[1], "/api/v1/health")[0] == 200


@pytest.mark.parametrize("announced", [True, False])
def test_an_upload_that_is_too_large_gets_a_413_that_can_be_read(server, announced):
    parts = [START, *[b"x" * 65536] * 50]
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    if announced:
        headers["Content-Length"] = str(sum(map(len, parts)))
    connection = http.client.HTTPConnection("127.0.0.1", server[1], timeout=30)
    try:
        connection.request(
            "POST", "/api/v1/search/upload", iter(parts), headers, encode_chunked=not announced
        )
        response = connection.getresponse()
        assert (response.status, json.load(response)["error"]["code"]) == (413, "too_large")
    finally:
        connection.close()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no /proc to see what a process holds")
def test_a_hostile_crowd_leaves_nothing_behind_while_searches_are_answered(server):
    """The small form of `python benchmarks/http_load.py hostile`."""

    async def some(port, requests, seed):
        beside = (says_nothing, 50), (half_a_request, 50), (heavy_body, 10)
        waiting = asyncio.gather(*(slow(port, client, n, 30) for client, n in beside))
        seen = await crowd(port, requests, seed=seed)
        waiting.cancel()  # these clients leave, too
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.sleep(2.5)  # whoever was refused has two seconds to read why
        return seen

    process, port = server  # its log must be empty at the end
    asyncio.run(some(port, 100, 0))  # starts threads and decoders, which are kept
    before = held(process.pid)
    seen = asyncio.run(some(port, 300, 1))
    until = time.monotonic() + 20  # a busy machine is slow to close what its clients have left
    while (after := held(process.pid)).files > before.files + 1 and time.monotonic() < until:
        time.sleep(0.2)
    assert seen.unexpected == {}
    assert seen.outcomes["search", 200] > 100
    assert after.files <= before.files + 1
    assert after.databases <= 100
    assert after.memory < before.memory + 60


def test_a_decoder_that_is_killed_is_replaced(server):
    process, port = server
    for number in (1, 2):
        connection, rest = half_an_upload(port, number)
        connection.sendall(rest)
        assert received(connection)[0] == 200
        children = _children(process.pid)
        assert children
        for child in children:
            os.kill(child, signal.SIGKILL)


def _children(pid):
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return [int(each) for each in listed.stdout.split()]


@pytest.mark.slow
def test_the_demo_is_served_and_leaves_nothing_behind(tmp_path):
    with served("--demo", env={"TMPDIR": str(tmp_path)}) as (process, port):
        assert "1,797 pictures" in process.first_line
        assert os.listdir(tmp_path)
        stats = json.loads(ask(port, "/api/v1/stats")[1])
        assert (stats["items"], stats["bits"], stats["reconstructs"]) == (1797, 32, True)
        assert stats["has_comparison"] is True
        rows = json.loads(ask(port, "/api/v1/comparison")[1])["rows"]
        assert {(row["method"], row["bits"]) for row in rows} == {
            (method, bits) for method in ("tPCA", "ITQ", "BFA", "BA") for bits in (8, 16, 32)
        }
        assert ask(port, "/api/v1/items/3/picture")[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    assert os.listdir(tmp_path) == []


def test_with_a_token_it_listens_everywhere():
    with served(digits(), "--host", "0.0.0.0", env={"AUXBIT_TOKEN": "secret"}) as (process, port):
        assert "secret" not in process.first_line
        assert ask(port, "/api/v1/health")[0] == 401
        assert ask(port, "/api/v1/health", Authorization="Bearer secret")[0] == 200
        assert ask(port, "/api/v1/health", Authorization="Bearer secret", Host="box.example")[0] == 200
