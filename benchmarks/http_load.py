"""Requests at a fixed rate to a server on this machine, timed from the moment that each was due.

`python benchmarks/http_load.py vectors` measures the table of docs/http.md: 500 searches by vector per second
for 30 seconds, in a million codes of 64 bits, answered by `auxbit serve` on loopback. The collection stays in
benchmarks/raw/.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from auxbit import ITQ, Collection
from record import Results, run, table

RAW = Path(__file__).parent / "raw"
ITEMS, BITS, DIMENSION, CENTRES = 1_000_000, 64, 128, 4096
RATES, SECONDS, K = (100, 250, 500), 30, 10

IDLE_SECONDS = 2.0  # less than any server's keep-alive


@dataclass
class Load:
    """What came of it: seconds from when each request was due, what the server itself counted, failures."""

    seconds: list[float] = field(default_factory=list)
    at_server: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@contextmanager
def serving(path: Path) -> Iterator[tuple[str, int]]:
    """`auxbit serve` of a collection, at a free port: its address and process."""
    command = [sys.executable, "-m", "auxbit", "serve", str(path), "--port", "0", "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert server.stdout is not None
        found = (re.search(r"http://127\.0\.0\.1:\d+", line) for line in server.stdout)
        yield next(match for match in found if match).group(), server.pid
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def cpu_seconds(process: int) -> float:
    """Of a running process, all threads."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def steady(address: str, paths: Iterator[str | tuple[str, bytes]], *, rate: int, seconds: float) -> Load:
    """Send rate requests a second, whether or not answers come, each on a connection that is kept open."""
    gc.collect()
    gc.freeze()  # the client's own pauses are not the server's
    return asyncio.run(_steady(address, paths, rate, seconds))


async def _steady(address: str, paths: Iterator[str | tuple[str, bytes]], rate: int, seconds: float) -> Load:
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

    async def ask(asked: str | tuple[str, bytes], due: float) -> None:
        path, body = asked if isinstance(asked, tuple) else (asked, b"")
        head = f"{'POST' if body else 'GET'} {path} HTTP/1.1\r\nHost: {host}:{port}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        try:
            reader, writer = await connection()
            writer.write(f"{head}\r\n".encode() + body)
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


# ---- Searches by vector


def rows(n: int, seed: int) -> np.ndarray:
    """Vectors around centres, which are the same for every seed."""
    centres = np.random.default_rng(0).normal(size=(CENTRES, DIMENSION)).astype(np.float32)
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(n, DIMENSION)).astype(np.float32)
    return centres[rng.integers(CENTRES, size=n)] + noise * np.float32(0.5)


def million() -> Path:
    """The collection: a million hash codes of ITQ, without vectors."""
    path = RAW / "million.auxbit"
    if not path.exists():
        RAW.mkdir(exist_ok=True)
        with Collection.create(path, ITQ(BITS, random_state=0).fit(rows(20_000, 1))) as collection:
            for part in range(10):
                collection.add(rows(ITEMS // 10, 2 + part))
    return path


def queries() -> Iterator[tuple[str, bytes]]:
    """Searches by vectors that are not in the collection, over and over."""
    bodies = [
        json.dumps({"vector": np.round(x, 4).tolist(), "k": K}).encode()
        for x in rows(2000, 99).astype(np.float64)
    ]
    while True:
        yield from (("/api/v1/search/vector", body) for body in bodies)


def vectors(results: Results) -> str:
    """Searches by vector (128 numbers, k = 10) in a million codes of 64 bits, for 30 s on loopback."""
    found = []
    with serving(million()) as (address, process):
        steady(address, queries(), rate=50, seconds=2)
        for rate in RATES:
            cpu = cpu_seconds(process)
            load = steady(address, queries(), rate=rate, seconds=SECONDS)
            cpu, n = cpu_seconds(process) - cpu, max(1, len(load.seconds))
            row = {f"p{q}": float(np.percentile(load.seconds or [0], q) * 1000) for q in (50, 99, 100)}
            results.add(rate=rate, answers=n, failed=len(load.failures), failures=load.failures[:5],
                        cpu_ms=cpu / n * 1000, load=os.getloadavg()[0], **row)  # fmt: skip
            times = [f"{row[name]:.1f} ms" for name in ("p50", "p99", "p100")]
            found.append(
                (
                    rate,
                    f"{n:,}",
                    len(load.failures),
                    *times,
                    f"{cpu / n * 1000:.2f} ms",
                    f"{os.getloadavg()[0]:.1f}",
                )
            )
    head = (
        "per second",
        "answers",
        "errors",
        "median",
        "p99",
        "slowest",
        "server's CPU each",
        "load of the machine",
    )
    return table(head, found)


if __name__ == "__main__":
    run("http_load", {"vectors": vectors})
