"""Rounds of killing a writer at random moments: `python tests/helpers/crash_writer.py FOLDER ROUNDS SEED`.

Each round forks a writer that acknowledges its changes on a pipe, kills it, and compares what is on disk with
the contents after the last acknowledged change, or after the one under way. The first difference is printed
and ends it with status 1. With signals behind, as `… SEED SIGINT SIGTERM`, a writer gets one of these,
which raises an exception in it, and then closes its collection and ends.
"""

from __future__ import annotations

import faulthandler
import os
import random
import shutil
import signal
import sqlite3
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from helpers.collection_truth import Contents, change, difference, found_after

ROUNDS_OF_A_FOLDER = 25
CALLS = ("open", "close", "write", "lseek", "fsync", "ftruncate", "replace", "link", "unlink", "mkdir")


def be_killed_at(call: int, before: bool) -> None:
    """Let this process be killed at its n-th call of the system or statement of SQL, before or after it."""
    calls = count()

    def counted(real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def do(*args: Any, **options: Any) -> Any:
            if next(calls) != call:
                return real(*args, **options)
            try:
                if not before:
                    real(args[0], args[1][: len(args[1]) // 2]) if name == "write" else real(*args, **options)
            finally:
                os.kill(os.getpid(), signal.SIGKILL)

        return do

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name), name))

    class Counted(sqlite3.Connection):
        execute = counted(sqlite3.Connection.execute, "execute")
        executemany = counted(sqlite3.Connection.executemany, "executemany")

    sqlite3.connect = partial(sqlite3.connect, factory=Counted)


class Signalled(BaseException):
    """A signal has come, as KeyboardInterrupt says of one."""


def raise_signalled(number: int, frame: Any) -> None:
    """Handle a signal."""
    raise Signalled


def write_on(path: Path, contents: Contents | None, seed: int, number: int, acknowledge: int) -> None:
    """Make changes one after another, for as long as this process lives, or until a signal."""
    collection = None
    send = os.write
    try:
        for n in count(number):
            make, contents = change(contents, seed, n)
            collection = make(path, collection)
            send(acknowledge, b".")
    except Signalled:
        for name in ("SIGINT", "SIGTERM"):
            signal.signal(signal.Signals[name], signal.SIG_IGN)
        if collection is not None:
            collection.close()
        os._exit(0)


def warm_up(path: Path) -> None:
    """Import and compile all that a writer needs, so that each need not do it anew."""
    for seed in range(3):
        contents, collection = None, None
        for number in range(20):
            make, contents = change(contents, seed, number)
            collection = make(path, collection)
        found = difference(collection, contents) or collection.check()
        collection.close()
        shutil.rmtree(path)
        if found:
            raise SystemExit(f"without a crash: {found}")


def killed_writer(path: Path, contents: Contents | None, seed: int, number: int, rng: random.Random) -> int:
    """Fork a writer and kill it; returns how many changes it has acknowledged."""
    heard, acknowledge = os.pipe()
    by_itself, call, before = rng.random() < 0.5, int(rng.expovariate(1 / 150)), rng.random() < 0.5
    child = os.fork()
    if not child:
        signal.alarm(300)  # a writer that hangs; a busy machine may stop one for long
        try:
            if by_itself:
                be_killed_at(call, before)
            write_on(path, contents, seed, number, acknowledge)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    os.close(acknowledge)
    if not by_itself:
        time.sleep(rng.random() * 0.05)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with open(heard, "rb") as pipe:
        acknowledged = len(pipe.read())
    if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
        raise SystemExit(f"the writer ended otherwise, status {status}")
    return acknowledged


def signalled(child: int, chosen: signal.Signals) -> int:
    """Send a signal until the process has ended: C code may lose the exception that a signal raises."""
    for tries in count(1):
        os.kill(child, chosen)
        until = time.monotonic() + 3 * tries
        while time.monotonic() < until:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status
            time.sleep(0.001)
    raise AssertionError


def signalled_writer(
    path: Path, contents: Contents | None, seed: int, number: int, rng: random.Random, names: list[str]
) -> int:
    """Fork a writer and send it a signal; returns how many changes it has acknowledged."""
    heard, acknowledge = os.pipe()
    chosen = signal.Signals[rng.choice(names)]
    child = os.fork()
    if not child:
        faulthandler.dump_traceback_later(30, exit=True)  # a writer that hangs shows where
        try:
            signal.signal(chosen, raise_signalled)
            try:
                os.write(acknowledge, b"!")  # ready
            except Signalled:  # before it has begun
                os._exit(0)
            write_on(path, contents, seed, number, acknowledge)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    os.close(acknowledge)
    with open(heard, "rb", buffering=0) as pipe:
        pipe.read(1)
        time.sleep(rng.random() * 0.05)
        status = signalled(child, chosen)
        acknowledged = len(pipe.readall())
    if status:
        raise SystemExit(f"the writer did not end well after {chosen.name}, status {status}")
    return acknowledged


def main(folder: Path, n_rounds: int, seed: int, *names: str) -> None:
    """Rounds of killing, or of signals of these names, a new collection every few of them."""
    warm_up(folder / "warm")
    rng = random.Random(seed)
    acknowledged = 0
    for round_ in range(n_rounds):
        if round_ % ROUNDS_OF_A_FOLDER == 0:
            run = seed * 1000 + round_ // ROUNDS_OF_A_FOLDER
            path, number, contents = folder / f"collection-{run}", 0, None
        given = (path, contents, run, number, rng)
        done = signalled_writer(*given, list(names)) if names else killed_writer(*given)
        for n in range(number, number + done):
            contents = change(contents, run, n)[1]
        following = change(contents, run, number + done)[1]
        wrong, came_about = found_after(path, contents, following)
        if wrong:
            raise SystemExit(f"round {round_} of seed {seed}, change {number + done} of {run}: {wrong}")
        contents = following if came_about else contents
        number, acknowledged = number + done + came_about, acknowledged + done
        if (round_ + 1) % ROUNDS_OF_A_FOLDER == 0:
            shutil.rmtree(path, ignore_errors=True)
    what = "signals" if names else "kills"
    print(f"{n_rounds} {what}, {acknowledged} acknowledged changes, none lost and none half")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
