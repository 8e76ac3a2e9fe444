"""Processes that decode pictures: a picture that kills or stalls its decoder harms nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any, BinaryIO, TypeVar, cast

import numpy as np

from auxbit.errors import AuxbitError, BadPicture, InvalidInput, InvalidParameter
from auxbit.extras import require
from auxbit.images.decoder_process import frame, read_frame
from auxbit.images.decoding import FORMATS, MAX_PIXELS, Decoded, check_sides

START_SECONDS = 60.0  # a process may take this long to start, on a machine that is busy
LARGEST_FILE = 2**26  # bytes of a thumbnail or preview: more is no answer
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")

Answer = TypeVar("Answer")


class Decoders:
    """Up to n processes that decode pictures, for any number of threads; started as they are needed.

    n : processes; None: as many as there are cores
    seconds : for one picture; a process that takes longer is killed
    memory : bytes of address space for one process

    with Decoders() as decoders:
        decoded = decoders.decode(content, side=32)
    """

    def __init__(self, n: int | None = None, *, seconds: float = 20.0, memory: int = 2 * 2**30) -> None:
        if n is not None and n < 1:
            raise InvalidParameter("n", n, "at least one process, or None")
        if not 0 < seconds < 1e6:
            raise InvalidParameter("seconds", seconds, "a positive number of seconds")
        if memory < 2**28:
            raise InvalidParameter("memory", memory, "at least 256 MiB, which Python and Pillow need")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._n = n or cores
        self._seconds, self._memory = seconds, memory
        self._changed = threading.Condition()
        self._idle: list[_Child] = []
        self._children = 0  # idle, at work, or about to start
        self._closed = False
        self._watch = _Watch(min(seconds, START_SECONDS))
        self._last_resort = weakref.finalize(self, self._watch.end)

    def decode(
        self, content: bytes, side: int, *, longest: int = 256, max_pixels: int = MAX_PIXELS
    ) -> Decoded:
        """Do what decoding.decode does, in another process; blocks until one is free."""
        check_sides(side, longest)
        size = side * side * 3

        def understood(header: dict[str, Any], body: bytes) -> Decoded:
            pixels = np.frombuffer(body, dtype=np.uint8, count=size).reshape(side, side, 3).copy()
            kind = FORMATS[FORMATS.index(header["format"])]
            taken = None if header["taken"] is None else str(header["taken"])
            return Decoded(pixels, body[size:], int(header["width"]), int(header["height"]), kind, taken)

        options = {"side": side, "longest": longest, "max_pixels": max_pixels}
        return self._ask("decode", options, content, size + LARGEST_FILE, understood)

    def preview(self, content: bytes, *, longest: int = 1600, max_pixels: int = MAX_PIXELS) -> bytes:
        """Do what decoding.preview does, in another process."""
        check_sides(1, longest)
        options = {"longest": longest, "max_pixels": max_pixels}
        return self._ask("preview", options, content, LARGEST_FILE, lambda _, body: body)

    @property
    def processes(self) -> list[int]:
        """The ids of the processes that run now."""
        return self._watch.processes()

    def close(self) -> None:
        """End the processes once they are done with what they are at; whoever still waits gets an error."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            # all of them come back in time, unless an interrupt struck between two steps of a thread
            done = START_SECONDS + self._seconds
            self._changed.wait_for(lambda: self._children == len(self._idle), timeout=done)
            idle, self._idle, self._children = self._idle, [], 0
        for child in idle:
            child.end()
        self._last_resort()

    def __enter__(self) -> Decoders:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(
        self,
        task: str,
        options: dict[str, int],
        content: bytes,
        largest: int,
        understood: Callable[[dict[str, Any], bytes], Answer],
    ) -> Answer:
        child = self._take()
        usable = False
        try:
            header, body = child.ask(frame({"task": task, "options": options}, content), largest)
            bad = header.get("bad")
            answer = None if bad else understood(header, body)
            usable = not child.expired
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            if isinstance(error, BadPicture):
                raise
            raise BadPicture("made the decoder answer nonsense") from None
        finally:
            self._give_back(child, usable)
        if answer is None:
            raise BadPicture(str(bad))
        return answer

    def _take(self) -> _Child:
        """A process that nobody else uses: one that waits for work, or a new one."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._idle or self._children < self._n)
            if self._closed:
                raise InvalidInput("the decoders are closed, so no picture can be decoded. Make new ones.")
            child = self._idle.pop() if self._idle else None
            if child is None:
                self._children += 1
        try:
            if child is not None and child.process.poll() is not None:  # killed while it was idle
                child.end()
                child = None
            return child or _Child(self._watch, self._seconds, self._memory)
        except BaseException:
            self._forget()
            raise

    def _give_back(self, child: _Child, usable: bool) -> None:
        if not usable:
            child.kill()
            self._forget()
            return
        with self._changed:
            self._idle.append(child)
            self._changed.notify_all()

    def _forget(self) -> None:
        with self._changed:
            self._children -= 1
            self._changed.notify_all()


class _Child:
    """A decoder process, and the time by which it must have answered."""

    def __init__(self, watch: _Watch, seconds: float, memory: int) -> None:
        require("PIL.Image", extra="images", purpose="reading pictures")
        command = [sys.executable, "-P", "-m", "auxbit.images.decoder_process", str(seconds), str(memory)]
        # it finds the same packages as we do, wherever we found them
        places = os.pathsep.join(os.path.abspath(place) for place in sys.path)
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=2**16,
                env={**os.environ, **ONE_THREAD, "PYTHONPATH": places},
            )
        except OSError as error:
            raise AuxbitError(f"the process that decodes pictures cannot start: {error}.") from error
        self._requests = cast(IO[bytes], self.process.stdin)
        self._answers = cast(BinaryIO, self.process.stdout)
        self._seconds = seconds
        self._lock = threading.Lock()
        self.deadline: float | None = None
        self.expired = False
        self._watch = watch
        watch.add(self)
        if self._exchange(b"", 0, START_SECONDS) is None:
            self.kill()
            tried = " ".join(command[:4])
            raise AuxbitError(
                f"the process that decodes pictures does not start ({self._how_it_ended()}). "
                f"See what `{tried} 20 {memory}` says."
            )

    def ask(self, request: bytes, largest: int) -> tuple[dict[str, Any], bytes]:
        """The answer to a request; BadPicture where the process dies of it, or takes too long."""
        answer = self._exchange(request, largest, self._seconds)
        if answer is not None:
            return answer
        self.kill()
        if self.expired:
            raise BadPicture(f"took longer than {self._seconds:g} s to decode")
        raise BadPicture(f"made the decoder die ({self._how_it_ended()})")

    def kill_if_late(self, now: float) -> float | None:
        """Seconds until the process must have answered; None where it need not, or no longer can."""
        with self._lock:
            if self.deadline is None or self.expired:
                return None
            if now < self.deadline:
                return self.deadline - now
            self.expired = True
            self.process.kill()
            return None

    def end(self) -> None:
        """Let an idle process end by itself, as it does when there can be no more requests."""
        self._close(self._requests)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=2)
        self.kill()

    def kill(self) -> None:
        """Kill the process, if it still runs, and let go of it."""
        self.process.kill()
        self.process.wait()
        self._watch.remove(self)
        self._close(self._requests)
        self._close(self._answers)

    def _exchange(self, request: bytes, largest: int, seconds: float) -> tuple[dict[str, Any], bytes] | None:
        with self._lock:
            self.deadline = time.monotonic() + seconds
        try:
            self._requests.write(request)
            self._requests.flush()
            return read_frame(self._answers, largest)
        except OSError:  # the pipe is broken
            return None
        finally:
            with self._lock:
                self.deadline = None

    def _how_it_ended(self) -> str:
        code = self.process.returncode
        if code >= 0:
            return f"exit code {code}"
        return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"

    @staticmethod
    def _close(stream: IO[bytes]) -> None:
        with suppress(OSError):  # what was not sent yet cannot be
            stream.close()


class _Watch:
    """A thread that kills the processes that are late. It knows nothing of their Decoders."""

    def __init__(self, longest_sleep: float) -> None:
        # a deadline that is set while the thread sleeps lies at least this far ahead
        self._longest_sleep = longest_sleep
        self._lock = threading.RLock()  # `end` may come with a collection of garbage, at any moment
        self._children: set[_Child] = set()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, child: _Child) -> None:
        """Look after a process from now on."""
        with self._lock:
            self._children.add(child)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="auxbit-decoders", daemon=True)
                self._thread.start()

    def remove(self, child: _Child) -> None:
        """Look after it no longer."""
        with self._lock:
            self._children.discard(child)

    def processes(self) -> list[int]:
        """The ids of those that it looks after and that still run."""
        with self._lock:
            children = list(self._children)
        return sorted(child.process.pid for child in children if child.process.poll() is None)

    def end(self) -> None:
        """End the thread, and every process that nobody has ended: their Decoders were never closed."""
        self._stop.set()
        with self._lock:
            thread, left = self._thread, list(self._children)
        for child in left:
            child.kill()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        pause = self._longest_sleep
        while not self._stop.wait(pause):
            with self._lock:
                children = list(self._children)
            now = time.monotonic()
            left = [rest for child in children if (rest := child.kill_if_late(now)) is not None]
            pause = min([self._longest_sleep, *left])
