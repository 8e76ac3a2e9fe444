"""The file of a segment: columns of rows, written once, with a checksum for every 64 KB.

A segment is a safetensors file, so that others can read it too: a header in JSON, then the checksums (CRC-32
of each 64 KB of each column, in the order of the header), then the columns, each from a multiple of 64 bytes
on, so that the file can be searched where it lies. Header and checksums are the front: their own checksum
stands in the manifest, and so nothing in the file can change unnoticed.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from auxbit import files
from auxbit.errors import Damaged

ALIGNMENT = 64  # a line of the cache, and what the scans read at a time
CHUNK_BYTES = 2**16
LENGTH = struct.Struct("<Q")  # of the header, before it
CHECKS = "checks"
DTYPES = {"U8": np.uint8, "U32": np.uint32, "I64": np.int64, "F16": np.float16, "F32": np.float32}
NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}


class Column(NamedTuple):
    """What to write: `pieces`, arrays one after another, make up `shape` in the order of rows."""

    name: str
    dtype: npt.DTypeLike
    shape: tuple[int, ...]
    pieces: Iterable[npt.NDArray[Any]]

    @property
    def n_bytes(self) -> int:
        """The bytes of all pieces."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


class Place(NamedTuple):
    """Where a column is in its file: bytes start..stop, and its first checksum."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    stop: int
    first_check: int

    @property
    def n_chunks(self) -> int:
        """How many checksums it has."""
        return chunks_of(self.stop - self.start)


@dataclass(frozen=True)
class Written:
    """What the manifest keeps of a file: its name, rows and bytes, and the checksum of its front."""

    file: str
    rows: int
    bytes: int
    check: int


def chunks_of(n_bytes: int) -> int:
    """How many checksums so many bytes have."""
    return -(-n_bytes // CHUNK_BYTES)


def write(path: Path, rows: int, columns: Iterable[Column], about: dict[str, str] | None = None) -> Written:
    """Write a new file and sync it; its name is durable after files.sync_folder."""
    columns = list(columns)
    layout, starts, end = _layout(columns)
    header = json.dumps({"__metadata__": {"format": "auxbit segment", **(about or {})}, **layout}).encode()
    header += b" " * (-(LENGTH.size + len(header)) % ALIGNMENT)
    base = LENGTH.size + len(header)
    checks = np.zeros(sum(chunks_of(column.n_bytes) for column in columns), dtype="<u4")
    with files.creating(path) as descriptor:
        files.write_all(descriptor, LENGTH.pack(len(header)) + header + checks.tobytes())
        at, first = checks.nbytes, 0
        for column, start in zip(columns, starts, strict=True):
            files.write_all(descriptor, bytes(start - at))
            found = _write_column(descriptor, column)
            checks[first : first + len(found)] = found
            at, first = start + column.n_bytes, first + len(found)
        files.write_all(descriptor, bytes(end - at))
        os.lseek(descriptor, base, os.SEEK_SET)
        files.write_all(descriptor, checks)
    check = zlib.crc32(checks.data, zlib.crc32(header, zlib.crc32(LENGTH.pack(len(header)))))
    return Written(path.name, rows, base + end, check)


def read_front(content: npt.NDArray[np.uint8], path: Path, check: int) -> tuple[dict[str, Place], Any]:
    """The places of columns and the checksums, (n,) uint32, of a file whose front is whole."""
    try:
        (length,) = LENGTH.unpack(content[: LENGTH.size].tobytes())
        base = LENGTH.size + length
        header = content[LENGTH.size : base].tobytes()
        layout: dict[str, Any] = json.loads(header)
        n_checks = layout[CHECKS]["shape"][0]
        front = content[: base + 4 * n_checks]
        if zlib.crc32(front.data) != check or front.size != base + 4 * n_checks:
            raise ValueError("its checksum does not match")
        places: dict[str, Place] = {}
        first = 0
        for name, entry in layout.items():
            if name in ("__metadata__", CHECKS) or name.startswith("padding"):
                continue
            start, stop = entry["data_offsets"]
            shape = tuple(entry["shape"])
            place = Place(np.dtype(DTYPES[entry["dtype"]]), shape, base + start, base + stop, first)
            places[name] = place
            first += place.n_chunks
    except (struct.error, ValueError, KeyError, TypeError, IndexError) as error:
        raise Damaged(f"{path} is damaged: its header cannot be read ({error}).") from error
    return places, front[base:].view("<u4")


def _layout(columns: list[Column]) -> tuple[dict[str, Any], list[int], int]:
    """The header's entries, where columns start after it, and where the file ends."""
    n_checks = sum(chunks_of(column.n_bytes) for column in columns)
    layout: dict[str, Any] = {CHECKS: _entry("U32", (n_checks,), 0, 4 * n_checks)}
    at, starts = 4 * n_checks, []
    for column in columns:
        at = _pad(layout, at)
        starts.append(at)
        layout[column.name] = _entry(
            NAMES[np.dtype(column.dtype)], column.shape, at, at := at + column.n_bytes
        )
    return layout, starts, _pad(layout, at)


def _pad(layout: dict[str, Any], at: int) -> int:
    """Go on to the next multiple of ALIGNMENT: safetensors wants every byte accounted for."""
    end = -(-at // ALIGNMENT) * ALIGNMENT
    if end > at:
        layout[f"padding.{len(layout)}"] = _entry("U8", (end - at,), at, end)
    return end


def _entry(dtype: str, shape: tuple[int, ...], start: int, stop: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}


def _write_column(descriptor: int, column: Column) -> list[int]:
    """Write the pieces one after another; the checksums of their chunks."""
    checks: list[int] = []
    check, filled, written = 0, 0, 0
    for buffer in _buffers(column):
        files.write_all(descriptor, buffer)
        written += len(buffer)
        while len(buffer):
            some, buffer = buffer[: CHUNK_BYTES - filled], buffer[CHUNK_BYTES - filled :]
            check, filled = zlib.crc32(some, check), filled + len(some)
            if filled == CHUNK_BYTES:
                checks.append(check)
                check = filled = 0
    if filled:
        checks.append(check)
    if written != column.n_bytes:
        raise ValueError(f"column {column.name} came to {written} bytes instead of {column.n_bytes}")
    return checks


def _buffers(column: Column) -> Iterator[memoryview]:
    dtype = np.dtype(column.dtype).newbyteorder("<")
    for piece in column.pieces:
        flat = np.ascontiguousarray(piece, dtype=dtype).reshape(-1)
        if flat.size:
            yield flat.view(np.uint8).data
