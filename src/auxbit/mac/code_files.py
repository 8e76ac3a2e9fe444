"""Codes of rows that are not in memory: packed bits, twice, in memory where they fit, else mapped files."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import numpy as np

from auxbit.codes import Packed, bytes_per_code
from auxbit.errors import FileProblem

NAMES = ("codes-0.bits", "codes-1.bits")
CHUNK_BYTES = 1 << 24


class CodePair:
    """Packed codes twice: those as they are, and room for the next; `swap` makes the next the present.

    A pass that is broken off leaves the codes as they are whole.
    """

    def __init__(self, n: int, n_bits: int, folder: Path | None = None, present: int = 0) -> None:
        self.n_bits, self.present, self._folder = n_bits, present, folder
        shape = (n, bytes_per_code(n_bits))
        if folder is None:
            self._pair: list[Packed] = [np.zeros(shape, dtype=np.uint8) for _ in NAMES]
        else:
            self._pair = [_mapped(folder / name, shape) for name in NAMES]

    @property
    def now(self) -> Packed:
        """The codes as they are, (n, M)."""
        return self._pair[self.present]

    @property
    def following(self) -> Packed:
        """Room for the next."""
        return self._pair[1 - self.present]

    def swap(self) -> None:
        """The codes just written are the codes as they are."""
        self.present = 1 - self.present

    def sync(self) -> None:
        """Make the codes as they are durable, where they are in a file."""
        if isinstance(self.now, np.memmap) and self._folder is not None:
            self.now.flush()
            descriptor = os.open(self._folder / NAMES[self.present], os.O_RDWR)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def checksum(self) -> int:
        """CRC-32 of the codes as they are: tells codes that are torn, lost or another's."""
        flat, found = self.now.reshape(-1), 0
        for start in range(0, flat.size, CHUNK_BYTES):
            found = zlib.crc32(flat[start : start + CHUNK_BYTES].data, found)
        return found


def _mapped(path: Path, shape: tuple[int, int]) -> Packed:
    size = shape[0] * shape[1]
    try:
        with path.open("a+b") as file:
            if os.fstat(file.fileno()).st_size != size:
                file.truncate(0)
                file.truncate(size)
            if hasattr(os, "posix_fallocate"):  # a full disk is an error here, not a SIGBUS while writing
                os.posix_fallocate(file.fileno(), 0, size)
        mapped: Packed = np.memmap(path, dtype=np.uint8, mode="r+", shape=shape)
    except OSError as error:
        raise FileProblem(f"{path} could not be made: {error.strerror or error}.") from error
    return mapped
