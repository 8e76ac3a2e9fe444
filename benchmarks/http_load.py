"""Requests at a fixed rate to a server on this machine, timed from the moment that each was due."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

IDLE_SECONDS = 2.0  # less than any server's keep-alive


@dataclass
class Load:
    """What came of it: seconds from when each request was due, what the server itself counted, failures."""

    seconds: list[float] = field(default_factory=list)
    at_server: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def steady(address: str, paths: Iterator[str], *, rate: int, seconds: float) -> Load:
    """Send rate requests a second, whether or not answers come, each on a connection that is kept open."""
    gc.collect()
    gc.freeze()  # the client's own pauses are not the server's
    return asyncio.run(_steady(address, paths, rate, seconds))


async def _steady(address: str, paths: Iterator[str], rate: int, seconds: float) -> Load:
    host, port = str(urlsplit(address).hostname), int(urlsplit(address).port or 80)
    assert host in ("127.0.0.1", "localhost", "::1"), "only a server on this machine"
    load, free = Load(), list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]]()
    tasks, begun = [], time.perf_counter()

    async def connection() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """One that was used of late; servers close those that were not."""
        while free:
            used, reader, writer = free.pop()
            if time.perf_counter() - used < IDLE_SECONDS:
                return reader, writer
            writer.close()
        return await asyncio.open_connection(host, port)

    async def ask(path: str, due: float) -> None:
        try:
            reader, writer = await connection()
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            status, body = await _response(reader)
            free.append((time.perf_counter(), reader, writer))
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            load.failures.append(repr(error))
            return
        load.seconds.append(time.perf_counter() - due)
        if status != 200:
            load.failures.append(f"status {status}: {body[:200]!r}")
        else:
            load.at_server.append(json.loads(body)["milliseconds"] / 1000)

    for number in range(round(rate * seconds)):
        due = begun + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(ask(next(paths), due)))
    await asyncio.gather(*tasks)
    for _, _, writer in free:
        writer.close()
    return load


async def _response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
    return int(lines[0].split()[1]), await reader.readexactly(int(fields["content-length"]))
