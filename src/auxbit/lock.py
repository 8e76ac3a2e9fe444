"""One writer at a time: a lock file that the system releases when its holder dies."""

from __future__ import annotations

import json
import os
import socket
import time
import weakref
from pathlib import Path
from typing import Any

from auxbit.errors import FileProblem, InUse

_HELD: weakref.WeakSet[WriterLock] = weakref.WeakSet()


class WriterLock:
    """Held from `acquire` to `release`, or to the end of the process, however that comes.

    The file stays: to remove it would let two processes lock two files of one name. What it says about the
    holder is for people; the lock is the system's.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._descriptor: int | None = None
        self._pid = 0

    @property
    def held(self) -> bool:
        """Whether this object holds the lock, in this process: a forked child has but a copy of it."""
        return self._descriptor is not None and self._pid == os.getpid()

    def acquire(self, what: str) -> None:
        """Take the lock for `what`, at once, or raise InUse and say who has it."""
        if self.held:
            return
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise FileProblem(f"{what} cannot be written to: {error.strerror} ({self.path}).") from error
        try:
            _lock(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise InUse(f"{what} is being written to by {self._holder()}; one writer at a time.") from error
        try:
            about = {
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            }
            os.ftruncate(descriptor, 0)
            os.write(descriptor, json.dumps(about).encode())
        except OSError:  # of a full disk: the lock holds all the same
            pass
        self._descriptor, self._pid = descriptor, os.getpid()
        _HELD.add(self)

    def release(self) -> None:
        """Let others write; nothing happens where the lock is not held."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def _holder(self) -> str:
        try:
            about: dict[str, Any] = json.loads(self.path.read_text())
            mine = " (this process)" if about["pid"] == os.getpid() else ""
            return f"process {about['pid']}{mine} on {about['host']} since {about['since']}"
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"


def _let_go_after_fork() -> None:
    """A child shares the parent's lock through its descriptor, and would keep it when the parent lets go."""
    for lock in list(_HELD):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_after_fork)


def _lock(descriptor: int) -> None:
    """Lock an open file without waiting; OSError where somebody else has."""
    if os.name == "nt":
        import msvcrt

        # far behind the text, so that others can read who holds it
        os.lseek(descriptor, 2**30, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        os.lseek(descriptor, 0, os.SEEK_SET)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
