"""Processes that decode, as seen from the outside: whether they run, hang, or are gone."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import termios
import time
from pathlib import Path

import helpers.picture_files as files

GOOD = files.saved(files.noise(48, 32), "JPEG", exif=files.exif_of(6, "2021:07:04 09:05:01"))
PATIENCE = 30.0  # seconds after which something that should happen at once has failed


def wait_until(true):
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.005)


def state_of(process):
    """The state of a process as a letter, Z for one that has ended; None where there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def is_gone(process):
    return state_of(process) in (None, "Z")


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def stop(process):
    """Stop a process in its tracks, as one that hangs."""
    os.kill(process, signal.SIGSTOP)
    wait_until(lambda: state_of(process) == "T")


def has_been_asked(process):
    """Whether a request waits in a pipe of a process that is stopped."""
    return any(_waiting(each) for each in Path(f"/proc/{process}/fd").iterdir() if _is_pipe(each))


def _is_pipe(descriptor):
    return os.readlink(descriptor).startswith("pipe:") and os.stat(descriptor).st_mode & 0o400


def _waiting(descriptor):
    try:
        with open(os.open(descriptor, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as pipe:
            return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder) > 0
    except OSError:
        return False
