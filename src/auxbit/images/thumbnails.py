"""The thumbnails of a collection of pictures: one file that is only ever added to."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path
from struct import Struct

from auxbit.errors import Damaged, FileProblem, InvalidInput
from auxbit.files import BINARY, sync_folder, write_all
from auxbit.index.guard import Guard

NAME = "thumbnails.pack"
MAGIC = b"axT1"
HEADER = Struct("<4sII")  # magic, length, CRC-32 of what follows
LARGEST = 2**26  # bytes of one: a length beyond is damage


class Thumbnails:
    """Records in `thumbnails.pack`, found by their offset; any thread may read.

    Only the writer of the collection appends. What a writer that was killed left at the end stays there,
    and nothing refers to it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder) / NAME
        self._descriptor: int | None = None
        self._closed = False
        self._opening = threading.Lock()
        self._seeking = threading.Lock()
        self._guard = Guard()  # a descriptor must not be closed while somebody reads from it

    def append(self, pictures: Sequence[bytes]) -> list[int]:
        """Add thumbnails; they are on disk when their offsets are returned."""
        for picture in pictures:
            if len(picture) > LARGEST:
                raise InvalidInput(f"a thumbnail of {len(picture):,} bytes; at most {LARGEST:,} are kept.")
        with self._guard.writing():
            self._refuse_closed()
            if not pictures:
                return []
            try:
                return self._append(pictures)
            except OSError as error:
                raise FileProblem(f"{self.path} cannot be added to: {error.strerror or error}.") from error

    def read(self, offset: int) -> bytes:
        """The thumbnail at an offset that `append` returned, checked."""
        with self._guard.reading():
            self._refuse_closed()
            descriptor = self._opened()
            header = self._at(descriptor, HEADER.size, offset) if offset >= 0 else b""
            if len(header) < HEADER.size:
                raise self._damaged(offset, "ends before it")
            magic, length, checksum = HEADER.unpack(header)
            if magic != MAGIC or length > LARGEST:
                raise self._damaged(offset, "has no thumbnail there")
            content = self._at(descriptor, length, offset + HEADER.size)
        if len(content) < length:
            raise self._damaged(offset, "is cut short")
        if zlib.crc32(content) != checksum:
            raise self._damaged(offset, "does not match its checksum")
        return content

    def close(self) -> None:
        """Let go of the file."""
        with self._guard.writing():
            self._closed = True
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def _append(self, pictures: Sequence[bytes]) -> list[int]:
        new = not self.path.exists()
        descriptor = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_APPEND | BINARY, 0o666)
        try:
            start = os.fstat(descriptor).st_size
            records = [HEADER.pack(MAGIC, len(each), zlib.crc32(each)) + each for each in pictures]
            try:
                write_all(descriptor, b"".join(records))
                os.fsync(descriptor)
            except BaseException:
                os.ftruncate(descriptor, start)  # half a batch is of no use, and a full disk needs the room
                raise
        finally:
            os.close(descriptor)
        if new:
            sync_folder(self.path.parent)
        offsets = [start]
        for record in records[:-1]:
            offsets.append(offsets[-1] + len(record))
        return offsets

    def _opened(self) -> int:
        with self._opening:
            if self._descriptor is None:
                try:
                    self._descriptor = os.open(self.path, os.O_RDONLY | BINARY)
                except FileNotFoundError:
                    raise Damaged(
                        f"{self.path} is missing: restore it, or make the collection anew."
                    ) from None
                except OSError as error:
                    raise FileProblem(f"{self.path} cannot be read: {error.strerror or error}.") from error
            return self._descriptor

    def _at(self, descriptor: int, length: int, offset: int) -> bytes:
        """Up to `length` bytes at an offset; fewer only at the end of the file."""
        content = b""
        try:
            while len(content) < length:
                more = self._some(descriptor, length - len(content), offset + len(content))
                if not more:
                    break
                content += more
        except (OSError, OverflowError) as error:
            raise self._damaged(offset, f"cannot be read ({error})") from error
        return content

    def _some(self, descriptor: int, length: int, offset: int) -> bytes:
        if hasattr(os, "pread"):
            return os.pread(descriptor, length, offset)
        with self._seeking:  # Windows
            os.lseek(descriptor, offset, os.SEEK_SET)
            return os.read(descriptor, length)

    def _damaged(self, offset: int, what: str) -> Damaged:
        return Damaged(
            f"{self.path} {what} (byte {offset:,}). Restore this file, or make the collection anew."
        )

    def _refuse_closed(self) -> None:
        if self._closed:
            raise InvalidInput(f"{self.path} is closed. Open the collection again.")
