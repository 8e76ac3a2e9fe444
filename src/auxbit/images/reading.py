"""Reading pictures side by side: files in threads, decoded in other processes, given back in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple

from auxbit import files
from auxbit.blocks import resolve_n_jobs
from auxbit.errors import BadPicture
from auxbit.images.decoding import Decoded
from auxbit.images.sources import GONE, Item, Source

Decode = Callable[[bytes, int], Decoded]

AHEAD = 512  # pictures that are read while the ones before them are described, if they are small
AHEAD_BYTES = 2**27


class Read(NamedTuple):
    """A picture that was read. known : the item that it replaces; decoded : None where that is the same."""

    source: Source
    known: Item | None
    sha256: str
    decoded: Decoded | None


class Bad(NamedTuple):
    """A picture that cannot be read, and why."""

    source: Source
    reason: str


def read_pictures(
    wanted: Iterable[tuple[Source, Item | None]], decode: Decode, side: int, n_jobs: int | None = None
) -> Generator[Read | Bad, None, None]:
    """Read each picture, and decode it unless it is the same as the item that is known of it.

    Where this is left early, threads that still decode end by themselves as `decode` does.
    """

    def read(source: Source, known: Item | None) -> Read | Bad:
        try:
            content = source.read()
            sha256 = files.checksum([content])
            same = known is not None and known.sha256 == sha256
            return Read(source, known, sha256, None if same else decode(content, side))
        except BadPicture as error:
            return Bad(source, str(error))
        except GONE:
            return Bad(source, "is not there any more")
        except OSError as error:
            return Bad(source, f"cannot be read: {error.strerror or error}")

    pool = ThreadPoolExecutor(resolve_n_jobs(n_jobs) + 1)  # one reads while the others wait for decoders
    try:
        rest = iter(wanted)
        ahead = fitting(AHEAD, side)
        running: deque[Future[Read | Bad]] = deque(pool.submit(read, *each) for each in islice(rest, ahead))
        while running:
            result = running.popleft().result()
            running.extend(pool.submit(read, *each) for each in islice(rest, 1))
            yield result
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def fitting(most: int, side: int) -> int:
    """How many pictures, at most so many, are held in memory at a time."""
    return max(16, min(most, AHEAD_BYTES // (3 * side**2)))
