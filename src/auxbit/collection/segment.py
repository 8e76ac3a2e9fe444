"""A segment that is mapped into memory: columns that are read where they lie, checked as they are touched."""

from __future__ import annotations

import mmap
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.collection.segment_file import CHUNK_BYTES, Place, Written, read_front
from auxbit.errors import Damaged
from auxbit.index.code_blocks import LANES

Rows = npt.NDArray[np.int64]


class Segment:
    """An immutable file of columns. A chunk of 64 KB is compared with its checksum before its first use.

    `lenient` opens a file that was cut short, too: what is missing fails its checksums. The mapping holds
    the file, even when its name is gone: a compaction takes nothing away from a reader.
    """

    def __init__(self, folder: Path, written: Written, *, lenient: bool = False) -> None:
        self.path, self.rows, self.check = folder / written.file, written.rows, written.check
        self._content = _mapped(self.path, written.bytes, lenient)
        self.places, self._checks = read_front(self._content, self.path, written.check)
        self._checked = {name: np.zeros(place.n_chunks, np.bool_) for name, place in self.places.items()}

    @property
    def front_bytes(self) -> int:
        """Bytes of header and checksums, before the columns."""
        return int(self._checks.ctypes.data - self._content.ctypes.data + self._checks.nbytes)

    def __contains__(self, name: str) -> bool:
        return name in self.places

    def unchecked(self, name: str) -> npt.NDArray[Any]:
        """A column as it lies in the file, read-only."""
        place = self.places[name]
        return self._content[place.start : place.stop].view(place.dtype).reshape(place.shape)

    def column(self, name: str) -> npt.NDArray[Any]:
        """A whole column, checked, read-only."""
        self._check(name, np.arange(self.places[name].n_chunks))
        return self.unchecked(name)

    def take(self, name: str, rows: Rows) -> npt.NDArray[Any]:
        """Rows of a column with one entry a row, a copy; only what holds these is read."""
        place = self.places[name]
        size = place.dtype.itemsize * int(np.prod(place.shape[1:], dtype=np.int64))
        self.check_spans(name, rows * size, (rows + 1) * size)
        return self.unchecked(name)[rows]

    def span(self, name: str, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Bytes start..stop of a column."""
        self.check_spans(name, np.array([start]), np.array([stop]))
        place = self.places[name]
        return self._content[place.start + start : place.start + stop]

    def damage(self) -> dict[str, Rows]:
        """The chunks that fail their checksums, by column; reads all of the file.

        From then on nothing is checked any more: the rest can be read, without the rows of these chunks.
        """
        found = {}
        for name, place in self.places.items():
            bad = [chunk for chunk in range(place.n_chunks) if not self._is_whole(place, chunk)]
            if bad:
                found[name] = np.array(bad, dtype=np.int64)
            self._checked[name][:] = True
        return found

    def lost_rows(self, damage: dict[str, Rows]) -> npt.NDArray[np.bool_]:
        """Which rows have some part in damaged chunks, (rows,)."""
        lost = np.zeros(self.rows, dtype=np.bool_)
        for name, chunks in damage.items():
            place = self.places[name]
            size = max(1, (place.stop - place.start) // max(1, place.shape[0]))  # bytes an entry
            for chunk in chunks.tolist():
                start, stop = chunk * CHUNK_BYTES, (chunk + 1) * CHUNK_BYTES
                if name == "text":
                    lost |= self._rows_with_text(start, stop)
                    continue
                first, last = start // size, -(-stop // size)
                if name == "codes":
                    first, last = first * LANES, last * LANES
                elif name == "offsets":
                    first = max(0, first - 1)  # entry i also ends row i - 1
                lost[first:last] = True
        return lost

    def _rows_with_text(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        offsets = self.unchecked("offsets")
        first, end = offsets[:-1], offsets[1:]
        within: npt.NDArray[np.bool_] = (first < stop) & (end > start) & (first != end)
        return within

    def check_spans(self, name: str, starts: Rows, stops: Rows) -> None:
        """Compare what holds the bytes starts[i]..stops[i] of a column with its checksums."""
        if not len(starts):
            return
        first, last = starts // CHUNK_BYTES, -(-stops // CHUNK_BYTES)
        widest = int((last - first).max(initial=0))
        touched = [np.minimum(first + i, last - 1)[last > first] for i in range(widest)]
        if touched:
            self._check(name, np.unique(np.concatenate(touched)))

    def _check(self, name: str, chunks: Rows) -> None:
        place, checked = self.places[name], self._checked[name]
        for chunk in chunks[~checked[chunks]].tolist():
            if not self._is_whole(place, chunk):
                raise Damaged(
                    f"{self.path} is damaged: 64 KB of column {name!r}, from byte "
                    f"{place.start + chunk * CHUNK_BYTES} on, do not match their checksum. Restore the file "
                    'from a copy; or open the rest with damaged="skip" (--skip-damaged).'
                )
            checked[chunk] = True

    def _is_whole(self, place: Place, chunk: int) -> bool:
        start = place.start + chunk * CHUNK_BYTES
        content = self._content[start : min(start + CHUNK_BYTES, place.stop)]
        return zlib.crc32(content.data) == int(self._checks[place.first_check + chunk])


def _mapped(path: Path, n_bytes: int, lenient: bool) -> npt.NDArray[np.uint8]:
    """The bytes of a file, read-only."""
    try:
        return _read(path, n_bytes, lenient)
    except FileNotFoundError:
        raise
    except OSError as error:
        if isinstance(error, Damaged):
            raise
        raise Damaged(f"{path} cannot be read: {error.strerror}.") from error


def _read(path: Path, n_bytes: int, lenient: bool) -> npt.NDArray[np.uint8]:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == n_bytes:
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)
        if not lenient:
            raise Damaged(
                f"{path} is damaged: it has {size:,} bytes instead of {n_bytes:,}. Restore it from a copy; "
                'or open the rest with damaged="skip" (--skip-damaged).'
            )
        content = np.zeros(n_bytes, dtype=np.uint8)
        some = np.frombuffer(file.read(n_bytes), dtype=np.uint8)
        content[: len(some)] = some
        return content
