"""Requests at a fixed rate to a server on this machine, timed from the moment that each was due.

`python benchmarks/http_load.py vectors` measures the table of docs/http.md: 500 searches by vector per second
for 30 seconds, in a million codes of 64 bits, answered by `auxbit serve` on loopback. The collection stays in
benchmarks/raw/.

`python benchmarks/http_load.py hostile` sends 100,000 requests of all kinds, many of them meant to harm,
beside clients that are slow or say nothing, to `auxbit serve --demo`: ten minutes, all on loopback.
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
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from auxbit import ITQ, Collection
from helpers import hostile_clients as clients
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
def serving(path: Path | str, log: int | IO[str] = subprocess.STDOUT) -> Iterator[tuple[str, int]]:
    """`auxbit serve` of a collection, or with an option, at a free port: its address and process."""
    command = [sys.executable, "-m", "auxbit", "serve", str(path), "--port", "0", "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
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


# ---- Clients that no server wants

REQUESTS, PARTS, IDLE = 100_000, 10, 1000
QUIET_SECONDS = 3.0  # whoever was refused has two to read why
SLOW = {  # clients of each part: how many, and the seconds after which they give up
    clients.says_nothing: (IDLE, 30),
    clients.slow_head: (50, 30),
    clients.empty_lines: (50, 30),
    clients.heavy_body: (100, 30),
}
PATIENT = {clients.slow_body: (50, 150)}  # of the first part alone: two minutes pass before they are refused


def hostile(results: Results) -> str:
    """100,000 requests to a server of 1,797 pictures on loopback, of which 40 % are malformed, huge or
    aborted, beside 1,200 connections in each tenth that are idle, slow or heavy. Memory and files are those
    of the server after each tenth, when its clients have left; times are of the searches among the requests.
    """
    with tempfile.TemporaryFile("w+") as log, serving("--demo", log) as (address, process):
        port = int(urlsplit(address).port or 80)
        asyncio.run(clients.crowd(port, 2000, at_once=64))  # starts threads and decoders, which are kept
        time.sleep(QUIET_SECONDS)
        first = log.seek(0, os.SEEK_END)
        found = [_told("before", clients.held(process), None)]
        results.add(part=0, held=vars(clients.held(process)))
        for part in range(1, PARTS + 1):
            cpu, begun = cpu_seconds(process), time.perf_counter()
            seen, slow, most = asyncio.run(_part(port, process, part))
            time.sleep(QUIET_SECONDS)
            held, outcomes = clients.held(process), _named(seen.outcomes)
            results.add(part=part, requests=seen.n, outcomes=outcomes, unexpected=_named(seen.unexpected),
                        slow=slow, held=vars(held), most=vars(most), seconds=time.perf_counter() - begun,
                        cpu_seconds=cpu_seconds(process) - cpu, load=os.getloadavg()[0],
                        **_times(seen))  # fmt: skip
            found.append(_told(f"{part * REQUESTS // PARTS:,}", held, seen))
        log.seek(first)
        lines = log.read().splitlines()
        results.add(log_lines=len(lines), log=lines[:20])
    head = ("requests", "memory", "files", "of SQLite", "threads", "searches", "median", "p99", "failed")
    return table(head, found) + "\n\n" + _of_slow(results) + f" The server's log had {len(lines)} lines."


async def _part(port: int, process: int, part: int) -> tuple[clients.Seen, dict, clients.Held]:
    """A tenth of the requests, what came of the slow clients beside them, the most that the server held."""
    beside = SLOW | (PATIENT if part == 1 else {})
    waiting = [_outcomes(port, client, *many) for client, many in beside.items()]
    sending = asyncio.gather(clients.crowd(port, REQUESTS // PARTS, at_once=64, seed=part), *waiting)
    most = clients.held(process)
    while not sending.done():
        most = max(most, clients.held(process), key=lambda held: held.memory)
        await asyncio.sleep(0.5)
    seen, *slow = sending.result()
    return seen, {client.__name__: each for client, each in zip(beside, slow, strict=True)}, most


async def _outcomes(port: int, client: clients.Slow, n: int, longest: float) -> dict[str, object]:
    """What came of them, and after how many seconds at least and at most."""
    ended = await clients.slow(port, client, n, longest)
    seconds = [each for _, each in ended]
    counts = Counter(str(outcome) for outcome, _ in ended)
    return {"outcomes": dict(counts), "soonest": min(seconds), "latest": max(seconds)}


def _named(outcomes: dict[tuple[str, clients.Outcome], int]) -> dict[str, int]:
    return {f"{kind}: {outcome}": n for (kind, outcome), n in sorted(outcomes.items(), key=str)}


def _times(seen: clients.Seen) -> dict[str, float]:
    return {f"p{q}": float(np.percentile(seen.seconds, q) * 1000) for q in (50, 99, 100)}


def _told(requests: str, held: clients.Held, seen: clients.Seen | None) -> tuple[object, ...]:
    """A row of the table."""
    row = requests, f"{held.memory:.0f} MB", held.files, held.databases, held.threads
    if seen is None:
        return *row, *"––––"
    times = _times(seen)
    found = f"{len(seen.seconds):,}", f"{times['p50']:.1f} ms", f"{times['p99']:.0f} ms"
    return *row, *found, sum(seen.unexpected.values())


def _of_slow(results: Results) -> str:
    """A sentence on the slow clients of all parts."""
    said = []
    for client in (each.__name__ for each in SLOW | PATIENT):
        parts = [row["slow"][client] for row in results.rows if client in row.get("slow", ())]
        counts: Counter[str] = sum((Counter(each["outcomes"]) for each in parts), Counter())
        latest = max(each["latest"] for each in parts)
        told = ", ".join(f"{n:,} × {outcome}" for outcome, n in counts.most_common())
        said.append(f"{client.replace('_', ' ')}: {told}, at the latest after {latest:.0f} s")
    most = max(row["most"]["memory"] for row in results.rows if "most" in row)
    return f"Slow clients: {'; '.join(said)}. The most memory meanwhile was {most:.0f} MB."


if __name__ == "__main__":
    run("http_load", {"vectors": vectors, "hostile": hostile}, quick=["vectors"])
