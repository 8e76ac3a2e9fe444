"""Storage: the folder of a collection, its present state, the writer's lock, and committing changes.

A change writes new files, syncs them and their names, and then replaces the manifest: until that has
happened, nothing refers to them; from then on all of the change is there. Files that no manifest names any
more are removed afterwards, or by the next writer.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import re
import struct
import threading
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from auxbit.collection import metadata
from auxbit.collection.metadata import Fields
from auxbit.collection.where import Where
from auxbit.core import files
from auxbit.core.checks import Array, Bytes, Ids, Mask, Packed, Positions
from auxbit.core.files import WriterLock
from auxbit.core.maps import bytes_per_code, check_n_bits
from auxbit.errors import AuxbitError, CollectionError, Damaged, FileProblem, InvalidInput
from auxbit.index.codes import LANES, CodeBlocks, CodeStore, IdTable, LaneSet, allowed_positions, as_bools

if TYPE_CHECKING:
    from auxbit.core.maps import Decoder
    from auxbit.hashers.base import Hasher
    from auxbit.index.hamming import HammingIndex

# ---- Segment files: columns of rows, written once, with a checksum for every 64 KB
#
# A segment is a safetensors file, so that others can read it too: a header in JSON, then the checksums
# (CRC-32 of each 64 KB of each column, in the order of the header), then the columns, each from a
# multiple of 64 bytes on, so that the file can be searched where it lies. Header and checksums are the
# front: their own checksum stands in the manifest, and so nothing in the file can change unnoticed.

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
    pieces: Iterable[Array]

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
    def n_bytes(self) -> int:
        """What its shape takes."""
        return math.prod(self.shape) * self.dtype.itemsize

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
    """How many checksums that many bytes have."""
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


def read_front(content: Bytes, path: Path, check: int) -> tuple[dict[str, Place], Any]:
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
            if not base <= place.start <= place.stop <= len(content) or place.n_bytes != stop - start:
                raise ValueError(f"column {name!r} of shape {shape} has {stop - start} bytes")
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


# ---- The manifest: the file that says what a collection consists of. Replacing it commits a change
#
# It stands in its file twice, a line of JSON each with its own checksum and an empty line between them,
# so that a damaged byte anywhere does no harm. What it does not name is not part of the collection.

MANIFEST = "manifest.jsonl"
FORMAT, VERSION = "auxbit collection", 1
COPIES = 2


@dataclass(frozen=True)
class Errors:
    """Reconstruction errors of rows that came as vectors: how many were measured, and their mean."""

    rows: int = 0
    mean: float = 0.0

    def __add__(self, other: Errors) -> Errors:
        rows = self.rows + other.rows
        return Errors(rows, (self.rows * self.mean + other.rows * other.mean) / rows if rows else 0.0)


@dataclass(frozen=True)
class Part(Written):
    """A segment of rows."""

    errors: Errors = field(default_factory=Errors)


@dataclass(frozen=True)
class Manifest:
    """A collection at one moment.

    Rows have positions, 0, 1, 2, … through `segments`; those in the files `removed` are deleted. Positions
    mean the same as long as `key`, which no other collection has, and `generation` do; `changes` counts
    commits. model : the file of the hasher, of which `coding` and `mu` say how it encodes; it was trained on
    what is before position `trained_at`, or elsewhere. vectors : the type they are kept in, None for none.
    """

    n_bits: int
    n_features: int | None = None
    key: str = ""
    model: str | None = None
    coding: str = "hash"
    mu: float = 0.0
    vectors: str | None = None
    segments: tuple[Part, ...] = ()
    removed: tuple[Written, ...] = ()
    next_id: int = 0
    next_file: int = 0
    trained_at: int = 0
    generation: int = 0
    changes: int = 0

    @property
    def n_positions(self) -> int:
        """Rows, the deleted ones included."""
        return sum(part.rows for part in self.segments)

    @property
    def n_bytes(self) -> int:
        """Of rows and deletions on disk."""
        return sum(part.bytes for part in (*self.segments, *self.removed))

    @property
    def n_removed(self) -> int:
        """Rows that are deleted."""
        return sum(part.rows for part in self.removed)

    @property
    def files(self) -> set[str]:
        """The names of all files that are part of the collection."""
        parts = {part.file for part in (*self.segments, *self.removed)}
        return parts | ({self.model} if self.model is not None else set())

    def write(self, folder: Path) -> None:
        """Make this the manifest of a folder, atomically and durably."""
        from auxbit import __version__

        body = json.dumps(
            {"format": FORMAT, "format_version": VERSION, "auxbit_version": __version__} | asdict(self),
            sort_keys=True,
        )
        line = json.dumps({"check": files.checksum([body.encode()]), "manifest": body})
        files.write_text(folder / MANIFEST, (line + "\n\n") * COPIES)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a folder."""
        path = folder / MANIFEST
        try:
            lines = path.read_bytes().split(b"\n")
        except (FileNotFoundError, NotADirectoryError):
            what = "is not a collection: it has no manifest" if folder.exists() else "does not exist"
            raise CollectionError(
                f"{folder} {what}. Collections are made by Collection.create or `auxbit collection create`."
            ) from None
        except OSError as error:
            raise CollectionError(f"{path} cannot be read: {error.strerror}.") from error
        for line in lines:
            body = _whole(line)
            if body is not None:
                return cls._parse(body, path)
        raise Damaged(f"{path} is damaged: no copy of it matches its checksum. Restore it from a copy.")

    @classmethod
    def _parse(cls, body: str, path: Path) -> Manifest:
        fields: dict[str, Any] = json.loads(body)
        kind, version = fields.pop("format", None), fields.pop("format_version", None)
        made_by = fields.pop("auxbit_version", "a newer version")
        if kind != FORMAT or version != VERSION:
            raise CollectionError(
                f"{path} has format {version}, made by auxbit {made_by}; this version reads {VERSION}. "
                "Upgrade: pip install -U auxbit."
            )
        try:
            check_n_bits(fields["n_bits"])
            segments = tuple(
                Part(**part | {"errors": Errors(**part["errors"])}) for part in fields["segments"]
            )
            removed = tuple(Written(**part) for part in fields["removed"])
            manifest = cls(**fields | {"segments": segments, "removed": removed})
            if any(Path(name).name != name for name in manifest.files):
                raise ValueError("a file name that leads elsewhere")
            return manifest
        except (KeyError, TypeError, ValueError, AuxbitError) as error:
            raise CollectionError(f"{path} is not a complete manifest: {error!r}.") from error

    def continues(self, before: Manifest) -> bool:
        """Whether positions mean the same as in `before`."""
        return (self.key, self.generation) == (before.key, before.generation)

    def but(self, **changes: Any) -> Manifest:
        """The next manifest: this one with some fields changed."""
        return replace(self, **{"changes": self.changes + 1} | changes)


def _whole(line: bytes) -> str | None:
    """The manifest in a line, None if that is damaged."""
    try:
        copy = json.loads(line)
        body: str = copy["manifest"]
        return body if files.checksum([body.encode()]) == copy["check"] else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


# ---- Segments: files mapped into memory, checked as they are touched


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

    def fitting(self, manifest: Manifest) -> Self:
        """Itself, if its columns are as a manifest says: nothing is read from others."""
        layout = {"positions": "int64 n"}
        if "positions" not in self.places:
            layout = {"codes": f"uint8 b M {LANES}", "ids": "int64 n"}
            if "text" in self.places:
                layout |= {"offsets": "int64 n+1", "text": "uint8 t"}
            if manifest.vectors is not None:
                layout["vectors"] = f"{manifest.vectors} n D"
        sizes = {"n": self.rows, "b": -(-self.rows // LANES), "M": bytes_per_code(manifest.n_bits)}
        said = "; ".join(f"{name} {each}" for name, each in layout.items())
        try:
            files.check_layout(self.places, said, sizes | {"D": manifest.n_features or 0})
        except InvalidInput as error:
            raise Damaged(f"{self.path} is damaged: {error}.") from error
        return self

    @property
    def front_bytes(self) -> int:
        """Bytes of header and checksums, before the columns."""
        return int(self._checks.ctypes.data - self._content.ctypes.data + self._checks.nbytes)

    def __contains__(self, name: str) -> bool:
        return name in self.places

    def unchecked(self, name: str) -> Array:
        """A column as it lies in the file, read-only."""
        place = self.places[name]
        return self._content[place.start : place.stop].view(place.dtype).reshape(place.shape)

    def column(self, name: str) -> Array:
        """A whole column, checked, read-only."""
        self._check(name, np.arange(self.places[name].n_chunks))
        return self.unchecked(name)

    def take(self, name: str, rows: Positions) -> Array:
        """Rows of a column with one entry per row, a copy; only what holds these is read."""
        place = self.places[name]
        size = place.dtype.itemsize * int(np.prod(place.shape[1:], dtype=np.int64))
        self.check_spans(name, rows * size, (rows + 1) * size)
        return self.unchecked(name)[rows]

    def damage(self) -> dict[str, Positions]:
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

    def lost_rows(self, damage: dict[str, Positions]) -> Mask:
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

    def _rows_with_text(self, start: int, stop: int) -> Mask:
        offsets = self.unchecked("offsets")
        first, end = offsets[:-1], offsets[1:]
        within: Mask = (first < stop) & (end > start) & (first != end)
        return within

    def check_spans(self, name: str, starts: Positions, stops: Positions) -> None:
        """Compare what holds the bytes starts[i]..stops[i] of a column with its checksums."""
        if not len(starts):
            return
        first, last = starts // CHUNK_BYTES, -(-stops // CHUNK_BYTES)
        widest = int((last - first).max(initial=0))
        touched = [np.minimum(first + i, last - 1)[last > first] for i in range(widest)]
        if touched:
            self._check(name, np.unique(np.concatenate(touched)))

    def _check(self, name: str, chunks: Positions) -> None:
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


def _mapped(path: Path, n_bytes: int, lenient: bool) -> Bytes:
    """The bytes of a file, read-only."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == n_bytes:
                return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)
            some = np.frombuffer(file.read(n_bytes) if lenient else b"", dtype=np.uint8)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}.") from error
    if not lenient:
        raise Damaged(
            f"{path} is damaged: it has {size:,} bytes instead of {n_bytes:,}. Restore it from a copy; "
            'or open the rest with damaged="skip" (--skip-damaged).'
        )
    content = np.zeros(n_bytes, dtype=np.uint8)
    content[: len(some)] = some
    return content


# ---- Snapshots: a manifest and the files that it names, mapped
#
# A snapshot never changes, and stays readable when a compaction has removed its files.

Codes = Callable[[slice], Packed]  # the codes of some of the rows to write
Advance = Callable[[int], None]

BLOCK_ROWS = 2**14  # that are copied at a time, a multiple of 64
TRIES = 100  # at a manifest whose files a writer removes while they are being opened


@dataclass(frozen=True)
class Snapshot:
    """A manifest with its segments. lost : positions whose segment is damaged, of a lenient reading."""

    folder: Path
    manifest: Manifest
    segments: tuple[Segment | None, ...]
    removals: tuple[Segment | None, ...]
    damage: tuple[str, ...] = ()
    lost: Positions | None = None

    @classmethod
    def read(cls, folder: Path, before: Snapshot | None = None) -> Snapshot:
        """The present state of a folder; files that `before` has mapped are not opened again."""
        manifest = Manifest.read(folder)
        for attempt in range(TRIES):
            try:
                return cls.of(folder, manifest, before)
            except FileNotFoundError as error:
                latest = Manifest.read(folder)
                if latest == manifest or attempt == TRIES - 1:
                    raise _missing(Path(str(error.filename))) from error
                manifest = latest
        raise AssertionError("not reached")

    @classmethod
    def of(cls, folder: Path, manifest: Manifest, before: Snapshot | None = None) -> Snapshot:
        """The files of a manifest."""
        known: dict[tuple[str, int], Segment] = {}
        if before is not None and before.manifest.key == manifest.key:
            known = {(each.path.name, each.check): each for each in before.parts() if each}

        def opened(parts: tuple[Written, ...]) -> tuple[Segment, ...]:
            return tuple(
                known.get((part.file, part.check)) or Segment(folder, part).fitting(manifest)
                for part in parts
            )

        return cls(folder, manifest, opened(manifest.segments), opened(manifest.removed))

    @classmethod
    def salvage(cls, folder: Path) -> Snapshot:
        """What can still be read of a folder: every checksum is compared."""
        manifest = Manifest.read(folder)
        for _ in range(TRIES):
            found = cls._salvage(folder, manifest)
            latest = Manifest.read(folder)
            if not found.damage or latest == manifest:  # else what is missing may have been removed since
                break
            manifest = latest
        return found

    @classmethod
    def _salvage(cls, folder: Path, manifest: Manifest) -> Snapshot:
        damage, lost = list[str](), list[Positions]()
        segments, start = list[Segment | None](), 0
        for part in manifest.segments:
            segment, rows, found = _salvaged(folder, part, manifest)
            segments.append(segment)
            damage += found
            lost.append(start + np.flatnonzero(rows))
            start += part.rows
        removals = list[Segment | None]()
        for removed in manifest.removed:
            segment, rows, found = _salvaged(folder, removed, manifest)
            removals.append(None if rows.any() else segment)
            damage += [f"{each}: what was deleted there is back" for each in found]
        if manifest.model is not None:
            damage += _model_damage(folder / manifest.model)
        every = np.concatenate(lost) if lost else np.zeros(0, dtype=np.int64)
        return cls(folder, manifest, tuple(segments), tuple(removals), tuple(damage), every)

    def parts(self) -> tuple[Segment | None, ...]:
        """All files of rows and of deletions."""
        return *self.segments, *self.removals

    @cached_property
    def starts(self) -> Positions:
        """The first position of each segment, and the end: (segments + 1,)."""
        sizes = [part.rows for part in self.manifest.segments]
        return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)

    @property
    def n_positions(self) -> int:
        """Rows, the deleted ones included."""
        return int(self.starts[-1])

    def removed(self) -> Positions:
        """The positions of deleted rows, and of lost ones, each once, in no order."""
        gone = [each.column("positions") for each in self.removals if each is not None]
        if self.lost is not None:
            return np.unique(np.concatenate([*gone, self.lost]))
        found: Positions = np.concatenate([np.zeros(0, dtype=np.int64), *gone])
        return found

    def ids(self, start: int, stop: int) -> Positions:
        """The ids of positions start..stop; those of lost rows are -1."""
        parts = [
            np.full(rows.stop - rows.start, -1, np.int64) if each is None else each.column("ids")[rows]
            for each, rows in self._within(start, stop)
        ]
        if self.lost is None and len(parts) == 1:
            return parts[0]
        ids = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
        if self.lost is not None:  # what may stand there must not be taken for the id of another row
            ids[self.lost[(self.lost >= start) & (self.lost < stop)] - start] = -1
        return ids

    def blocks(self, start: int, stop: int) -> CodeBlocks:
        """The codes of positions start..stop; of a whole segment that is the only one, mapped."""
        n_bits, parts = self.manifest.n_bits, list(self._within(start, stop))
        if len(parts) == 1 and parts[0][0] is not None and parts[0][1] == slice(0, parts[0][0].rows):
            return CodeBlocks.mapped(parts[0][0].column("codes"), n_bits, parts[0][0].rows)
        blocks = CodeBlocks(n_bits)
        blocks.reserve(stop - start)
        for each, rows in parts:
            if each is None:
                blocks.append(np.zeros((rows.stop - rows.start, blocks.width), dtype=np.uint8))
            else:
                blocks.append_planes(each.column("codes"), rows)
        return blocks

    def codes(self, positions: Positions) -> Packed:
        """The packed codes at these positions, (n, width)."""
        out = np.zeros((len(positions), bytes_per_code(self.manifest.n_bits)), dtype=np.uint8)
        for segment, rows, where in self.by_segment(positions):
            touched = np.unique(rows // LANES)
            planes, block = segment.take("codes", touched), np.searchsorted(touched, rows // LANES)
            out[where] = planes[block, :, rows % LANES]
        return out

    def vectors(self, positions: Positions) -> Array:
        """The vectors at these positions, (n, D), in the type that they are kept in."""
        manifest = self.manifest
        out = np.zeros((len(positions), manifest.n_features or 0), dtype=manifest.vectors)
        for segment, rows, where in self.by_segment(positions):
            out[where] = segment.take("vectors", rows)
        return out

    def metadata(self, positions: Positions) -> list[dict[str, Any]]:
        """The metadata at these positions, {} if there are none."""
        out: list[dict[str, Any]] = [{} for _ in positions]
        for segment, rows, where in self.by_segment(positions):
            if "text" in segment:
                ends = segment.take("offsets", np.concatenate([rows, rows + 1]))
                segment.check_spans("text", ends[: len(rows)], ends[len(rows) :])
                texts = segment.unchecked("offsets"), segment.unchecked("text")
                for place, row in zip(where.tolist(), metadata.rows_at(*texts, rows), strict=True):
                    out[place] = row
        return out

    def _within(self, start: int, stop: int) -> Iterator[tuple[Segment | None, slice]]:
        """Segments with the rows of positions start..stop in them, in order."""
        for segment, first, end in zip(self.segments, self.starts[:-1], self.starts[1:], strict=True):
            if first < stop and end > start:
                yield segment, slice(max(0, start - int(first)), int(min(stop, end) - first))

    def by_segment(self, positions: Positions) -> Iterator[tuple[Segment, Positions, Positions]]:
        """Segments, the rows of positions that lie in them, and where these stand among `positions`."""
        number = np.searchsorted(self.starts, positions, side="right") - 1
        for which in np.unique(number).tolist():
            where = np.flatnonzero(number == which)
            segment = self.segments[which]
            if segment is not None:
                yield segment, positions[where] - self.starts[which], where

    def errors_since(self, position: int) -> Errors:
        """The reconstruction errors of segments that end after a position."""
        parts = zip(self.manifest.segments, self.starts[1:], strict=True)
        return sum((part.errors for part, end in parts if end > position), Errors())

    def fields(self, number: int) -> Fields:
        """The metadata of a segment, by field; lost rows have none."""
        segment = self.segments[number]
        assert segment is not None
        if "text" not in segment:
            return Fields(np.zeros(segment.rows + 1, dtype=np.int64), np.zeros(0, dtype=np.uint8))
        lost = None
        if self.lost is not None:
            lost = np.zeros(self.n_positions, dtype=np.bool_)
            lost[self.lost] = True
            lost = lost[self.starts[number] : self.starts[number + 1]]
        return Fields(segment.column("offsets"), segment.column("text"), lost)

    def columns(
        self, positions: Positions, codes: Codes | None, n_bits: int, advance: Advance | None = None
    ) -> list[Column]:
        """The columns of a new segment of rows at these positions, which rise; with other codes if given."""
        n, width = len(positions), bytes_per_code(n_bits)

        def blocks() -> Iterator[slice]:
            for start in range(0, n, BLOCK_ROWS):
                yield slice(start, min(start + BLOCK_ROWS, n))

        def planes() -> Iterator[Array]:
            for rows in blocks():
                packed = self.codes(positions[rows]) if codes is None else codes(rows)
                yield CodeBlocks.of(packed, n_bits).planes
                if advance is not None:
                    advance(rows.stop - rows.start)

        columns = [
            Column("codes", np.uint8, (-(-n // LANES), width, LANES), planes()),
            Column("ids", np.int64, (n,), (self._ids_at(positions[rows]) for rows in blocks())),
        ]
        if any(segment is not None and "text" in segment for segment in self.segments):
            offsets = np.concatenate([[0], np.cumsum(self._text_lengths(positions))]).astype(np.int64)
            texts = (text for rows in blocks() for text in self._texts(positions[rows]))
            columns += [Column("offsets", np.int64, (n + 1,), [offsets])]
            columns += [Column("text", np.uint8, (int(offsets[-1]),), texts)]
        if self.manifest.vectors is not None:
            vectors = (self.vectors(positions[rows]) for rows in blocks())
            shape = n, self.manifest.n_features or 0
            columns += [Column("vectors", self.manifest.vectors, shape, vectors)]
        return columns

    def _ids_at(self, positions: Positions) -> Positions:
        out = np.full(len(positions), -1, dtype=np.int64)
        for segment, rows, where in self.by_segment(positions):
            out[where] = segment.take("ids", rows)
        return out

    def _text_lengths(self, positions: Positions) -> Positions:
        out = np.zeros(len(positions), dtype=np.int64)
        for segment, rows, where in self.by_segment(positions):
            if "text" in segment:
                out[where] = np.diff(segment.column("offsets"))[rows]
        return out

    def _texts(self, positions: Positions) -> Iterator[Bytes]:
        """The texts of rows one after another."""
        for segment, rows, _ in self.by_segment(positions):
            if "text" not in segment:
                continue
            starts, ends = segment.take("offsets", rows), segment.take("offsets", rows + 1)
            segment.check_spans("text", starts, ends)
            text, lengths = segment.unchecked("text"), ends - starts
            if ends[-1] - starts[0] == lengths.sum():  # rows that follow each other
                yield text[starts[0] : ends[-1]]
            else:
                before = np.cumsum(lengths) - lengths  # bytes of the rows before each
                yield text[np.repeat(starts - before, lengths) + np.arange(lengths.sum())]


def _salvaged(folder: Path, part: Written, manifest: Manifest) -> tuple[Segment | None, Mask, list[str]]:
    """A file as far as it can be read, which of its rows are lost, and what is wrong with it."""
    try:
        segment = Segment(folder, part, lenient=True).fitting(manifest)
    except FileNotFoundError:
        return None, np.ones(part.rows, dtype=np.bool_), [str(_missing(folder / part.file))]
    except Damaged as error:
        return None, np.ones(part.rows, dtype=np.bool_), [str(error)]
    damage = segment.damage()
    lost = segment.lost_rows(damage)
    found = [
        f"{segment.path}: {len(chunks)} times 64 KB of column {name!r}" for name, chunks in damage.items()
    ]
    return segment, lost, found


def _model_damage(path: Path) -> list[str]:
    from auxbit.hashers.registry import read_header  # scikit-learn: only if there is a model

    try:
        read_header(path)
    except FileProblem as error:
        return [str(error)]
    return []


def _missing(path: Path) -> Damaged:
    return Damaged(
        f'{path} is missing. Restore it from a copy; or open the rest with damaged="skip" (--skip-damaged).'
    )


class Watch:
    """Tells whether the manifest has been replaced since `mark`.

    The file is held open, so that its inode is not given to the next one: an equal inode is the same file,
    whatever the clock of the file system. Windows does not replace open files: there it is size and time.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / MANIFEST
        self._held: int | None = None
        self._seen: tuple[int, ...] = ()
        self._finalizer: Any = None
        self.mark()

    def mark(self) -> None:
        """Remember the manifest as it is; what is read after that is this one or a later one."""
        self.close()
        try:
            if os.name != "nt":
                self._held = os.open(self._path, os.O_RDONLY)
                self._finalizer = weakref.finalize(self, os.close, self._held)
            self._seen = self._now()
        except OSError:
            self._seen = ()

    def changed(self) -> bool:
        """Whether another manifest, or none, is there."""
        try:
            return self._seen != self._now()
        except OSError:
            return True

    def close(self) -> None:
        """Let go of the file."""
        if self._held is not None:
            self._held = None
            self._finalizer()

    def _now(self) -> tuple[int, ...]:
        found = os.stat(self._path)
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


# ---- Rows from outside as columns of a new segment

BLOCK_BYTES = 2**24  # of vectors that are converted at a time


def new_columns(
    codes: Packed, n_bits: int, ids: Positions, texts: tuple[Any, Any] | None, vectors: Column | None
) -> list[Column]:
    """The columns of rows that come from outside."""
    blocks = CodeBlocks.of(codes, n_bits)
    columns = [
        Column("codes", np.uint8, blocks.planes.shape, [blocks.planes]),
        Column("ids", np.int64, ids.shape, [ids]),
    ]
    if texts is not None:
        columns += [Column("offsets", np.int64, texts[0].shape, [texts[0]])]
        columns += [Column("text", np.uint8, texts[1].shape, [texts[1]])]
    return columns + ([vectors] if vectors is not None else [])


def vector_column(X: Array, dtype: str) -> Column:
    """The rows of X as they are kept, converted a block at a time."""
    step = max(1, BLOCK_BYTES // (4 * max(1, X.shape[1])))
    pieces = (np.asarray(X[start : start + step], dtype=dtype) for start in range(0, len(X), step))
    return Column("vectors", dtype, X.shape, pieces)


# ---- Views: what searches need of a snapshot, made at first use, brought up to date as it grows


class View:
    """Ids and deletions by position, the index over the codes, and fields of metadata, of one generation.

    Positions keep their meaning while it grows, so a search may continue with those that it has found.
    """

    def __init__(self, snapshot: Snapshot, n_jobs: int | None, before: View | None = None) -> None:
        self.snapshot, self.n_jobs = snapshot, n_jobs
        self._model: tuple[str, Hasher] | None = None
        if before is not None and before.snapshot.manifest.key == snapshot.manifest.key:
            self._model = before._model
        self._lock = threading.RLock()
        self._ids: IdTable | None = None
        self._alive = LaneSet()
        self._index: HammingIndex | None = None
        self._fields: dict[str, Fields] = {}

    def model(self) -> Hasher:
        """The hasher of this generation, loaded at first use."""
        folder, name = self.snapshot.folder, self.snapshot.manifest.model
        if name is None:
            raise InvalidInput(
                f"{folder} has no model: it holds codes alone. Search and add codes=…, or give a model "
                "to Collection.create."
            )
        with self._lock:
            if self._model is None or self._model[0] != name:
                from auxbit.hashers.registry import load

                model = load(folder / name)
                self._check_model(model, folder / name)
                model.n_jobs = self.n_jobs
                self._model = name, model
            return self._model[1]

    def _check_model(self, model: Hasher, path: Path) -> None:
        """Refuse a model of other codes or rows: its decoder would be taken to be that of these codes."""
        manifest = self.snapshot.manifest
        expected, found = manifest.n_bits, model.decoder_.n_bits
        if found != expected or manifest.n_features not in (None, model.n_features_in_):
            raise CollectionError(
                f"{path} is not the model of this collection: it makes codes of {found} bits from rows of "
                f"{model.n_features_in_} numbers, expected {expected} bits from {manifest.n_features}. "
                "Restore it from a copy."
            )

    def advance(self, snapshot: Snapshot) -> None:
        """Take in what has been added and deleted since, in a later snapshot of the same generation."""
        with self._lock:
            before = self.snapshot
            # a search that finds new positions must find their rows, too: both change behind the guard
            with self._index.changing() if self._index is not None else nullcontext() as store:
                self._take_in(before, snapshot, store)
                self.snapshot = snapshot
            here = {part.file for part in snapshot.manifest.segments}
            self._fields = {name: fields for name, fields in self._fields.items() if name in here}

    def _take_in(self, before: Snapshot, after: Snapshot, store: CodeStore | None) -> None:
        if self._ids is None:
            return
        start, stop = before.n_positions, after.n_positions
        if stop > start:
            ids = np.ascontiguousarray(after.ids(start, stop))
            if store is not None:  # whose ids and deletions are these
                store.append(after.blocks(start, stop).packed(), ids)
            else:
                self._ids.append(ids)
                self._alive.append(len(ids))
        known = {part.file for part in before.manifest.removed}
        for part, removal in zip(after.manifest.removed, after.removals, strict=True):
            if part.file not in known and removal is not None:
                self._discard(removal.column("positions"))

    def _discard(self, positions: Positions) -> None:
        self._alive.discard(positions[self._alive.holds(positions)])

    @property
    def ids(self) -> IdTable:
        """Ids by position; deleted ones are still there."""
        with self._lock:
            if self._ids is None:
                snapshot = self.snapshot
                ids = IdTable.of(snapshot.ids(0, snapshot.n_positions), snapshot.manifest.next_id)
                self._alive.append(snapshot.n_positions)
                self._discard(snapshot.removed())
                if snapshot.lost is not None:  # of an id whose deletion was lost, the last row counts
                    here = allowed_positions(self._alive.masks)
                    self._alive.discard(here[ids.find(ids.at(here)) != here])
                self._ids = ids
            return self._ids

    @property
    def alive(self) -> LaneSet:
        """The positions that are not deleted."""
        _ = self.ids  # makes both
        return self._alive

    def places(self, ids: Positions) -> Positions:
        """The positions of ids, -1 if one is missing or deleted."""
        with self._lock:
            places = self.ids.find(ids)
            return np.where(self._alive.holds(places), places, -1)

    def present(self) -> Positions:
        """The positions that are not deleted, in order."""
        with self._lock:
            return allowed_positions(self.alive.masks)

    def index(self) -> HammingIndex:
        """The index over the codes."""
        with self._lock:
            if self._index is None:
                from auxbit.index.hamming import HammingIndex

                blocks = self.snapshot.blocks(0, self.snapshot.n_positions)
                self._index = HammingIndex.over(
                    CodeStore.of(blocks, self.ids, self._alive), n_jobs=self.n_jobs
                )
            return self._index

    def index_with(self, decoder: Decoder) -> HammingIndex:
        """The index, ready for asymmetric search with this decoder."""
        with self._lock:
            index = self.index()
            if index.decoder is not decoder:
                with index.changing() as store:
                    store.attach(decoder)
            return index

    def matching(self, where: Where) -> Mask:
        """Which positions have metadata that `where` asks for and are not deleted, (n_positions,)."""
        with self._lock:
            snapshot, mask = self.snapshot, as_bools(self.alive.masks, self.snapshot.n_positions)
        for number, segment in enumerate(snapshot.segments):  # without the lock: others need not wait
            if segment is not None:
                start, stop = snapshot.starts[number], snapshot.starts[number + 1]
                mask[start:stop] &= where.mask(self._fields_of(snapshot, number, segment), segment.rows)
        return mask

    def _fields_of(self, snapshot: Snapshot, number: int, segment: Segment) -> Fields:
        with self._lock:
            fields = self._fields.get(segment.path.name)
            if fields is None:
                fields = self._fields[segment.path.name] = snapshot.fields(number)
            return fields


# ---- Storage

LOCK = "writer.lock"
KINDS = ("segment", "removed", "model")
SUFFIX = ".safetensors"

MERGED = 16  # segments of a size that become one
MERGED_BYTES = 2**30  # larger ones are left to compact
MOST_PARTS = 128
MEASURED_ROWS = 4096  # of an addition, whose reconstruction errors are kept
TRAINING_ROWS = 100_000  # that a model is trained on again

Made = TypeVar("Made")


class Storage:
    """What is shared by all that reads or changes an open collection."""

    def __init__(self, folder: Path, *, read_only: bool, salvage: bool, n_jobs: int | None) -> None:
        self.folder, self.read_only, self.n_jobs = folder, read_only, n_jobs
        self._lock = WriterLock(folder / LOCK)
        self._changing = threading.RLock()  # held by whoever changes the collection
        self._switching = threading.RLock()  # held while the view is brought up to date
        self.closed = False
        self._stale = False  # a commit has begun, and the view may be of the state before
        self._salvaged = salvage
        self._watch = Watch(folder)
        self._view = View(self._read(None), n_jobs)

    @property
    def view(self) -> View:
        """The present state; brought up to date with what another process has written."""
        if self.closed:
            raise InvalidInput(f"the collection {self.folder} is closed. Open it again.")
        others = not self._lock.held and not self._salvaged and self._watch.changed()
        if self._stale or others:
            self.refresh()
        return self._view

    @property
    def manifest(self) -> Manifest:
        """The manifest of the present state."""
        return self.view.snapshot.manifest

    def refresh(self) -> None:
        """Read what is on disk: what another process has written, or a commit that failed has left."""
        with self._switching:
            self._stale = True  # until it is read: what fails here must be tried again
            self._watch.mark()
            self._switch(self._read(self._view.snapshot))
            self._stale = False

    def _read(self, before: Snapshot | None) -> Snapshot:
        return Snapshot.salvage(self.folder) if self._salvaged else Snapshot.read(self.folder, before)

    def lock(self) -> None:
        """Become the writer, until close, or raise InUse."""
        _ = self.view  # says that it is closed
        if self.read_only or self._salvaged:
            why = "was opened to be read" if self.read_only else 'was opened with damaged="skip"'
            raise CollectionError(f"{self.folder} {why}: open it without that to change it.")
        if not self._lock.held:
            self._lock.acquire(f"the collection {self.folder}")
            try:
                self.refresh()
            except BaseException:
                self._lock.release()
                raise
            self.sweep()

    @contextmanager
    def changing(self) -> Iterator[Manifest]:
        """Hold the lock for a change, which is made by `commit`; yields the manifest to change."""
        with self._changing:
            self.lock()
            try:
                yield self.manifest
            except BaseException:
                self.sweep()  # what was written for a change that did not come about
                raise

    @contextmanager
    def repairing(self) -> Iterator[Manifest]:
        """As `changing`, of a collection that was opened in spite of damage; then it is whole again."""
        with self._changing:
            if not self._salvaged:
                with self.changing() as manifest:
                    yield manifest
                return
            snapshot = self.view.snapshot
            if self.read_only:
                raise CollectionError(
                    f"{self.folder} was opened to be read: open it without that to change it."
                )
            self._lock.acquire(f"the collection {self.folder}")
            try:
                if snapshot.manifest != Manifest.read(self.folder):
                    raise CollectionError(f"{self.folder} was changed meanwhile: open it again.")
                yield snapshot.manifest
                self._salvaged = False
            except BaseException:
                self.sweep()
                self._lock.release()
                raise

    def write(self, manifest: Manifest, rows: int, columns: list[Column], errors: Errors) -> Part:
        """Write a new file of rows, to be committed by a manifest with the next number for files."""
        written = self._written("segment", manifest, lambda path: write(path, rows, columns))
        return Part(written.file, rows, written.bytes, written.check, errors)

    def write_model(self, manifest: Manifest, model: Hasher) -> str:
        """Write the model, to be committed by a manifest that names it."""

        def save(path: Path) -> str:
            model.save(path, overwrite=False)
            return path.name

        return self._written("model", manifest, save)

    def without(self, manifest: Manifest, positions: Ids) -> Manifest:
        """The manifest with these positions deleted; many files of deletions become one."""
        gone, kept = np.sort(positions), manifest.removed
        run = run_to_merge((*kept, Written("", len(gone), gone.nbytes, 0)))
        if run is not None and run.stop > len(kept):  # with others of its size
            older = self.view.snapshot.removals[run.start : len(kept)]
            gone = np.sort(np.concatenate([gone, *(each.column("positions") for each in older if each)]))
            kept = kept[: run.start]
        column = Column("positions", np.int64, gone.shape, [gone])
        written = self._written("removed", manifest, lambda path: write(path, len(gone), [column]))
        after = (*kept, written)
        return manifest.but(removed=after, next_file=manifest.next_file + 1, changes=manifest.changes)

    def replace_all(
        self, manifest: Manifest, positions: Ids, codes: Codes | None, errors: Errors, advance: Advance | None
    ) -> None:
        """Commit a generation with these rows alone, in one segment; with other codes if given."""
        segments: tuple[Part, ...] = ()
        if len(positions):
            columns = self.view.snapshot.columns(positions, codes, manifest.n_bits, advance)
            segments = (self.write(manifest, len(positions), columns, errors),)
        trained_at = int(np.searchsorted(positions, manifest.trained_at)) if codes is None else len(positions)
        self.commit(
            manifest.but(
                segments=segments, removed=(), generation=manifest.generation + 1, trained_at=trained_at,
                next_file=manifest.next_file + 1,
            )
        )  # fmt: skip

    def tidy(self) -> None:
        """Merge small segments; a failure leaves them as they are, and the change that led to it."""
        try:
            manifest = self.manifest
            starts = self.view.snapshot.starts
            # what was trained on and what was added since stay apart: their errors are not to be mixed
            border = int(np.searchsorted(starts[:-1], manifest.trained_at))
            for first, parts in ((0, manifest.segments[:border]), (border, manifest.segments[border:])):
                run = run_to_merge(parts)
                if run is not None:
                    self._merge(slice(first + run.start, first + run.stop))
                    return
        except (OSError, MemoryError):  # a full disk, or damage that a search will name
            self.sweep()

    def _merge(self, run: slice) -> None:
        """Make one segment of several; positions stay as they are."""
        manifest, snapshot = self.manifest, self.view.snapshot
        positions = np.arange(snapshot.starts[run.start], snapshot.starts[run.stop])
        errors = sum((part.errors for part in manifest.segments[run]), Errors())
        columns = snapshot.columns(positions, None, manifest.n_bits)
        part = self.write(manifest, len(positions), columns, errors)
        segments = (*manifest.segments[: run.start], part, *manifest.segments[run.stop :])
        self.commit(manifest.but(segments=segments, next_file=manifest.next_file + 1))

    def commit(self, manifest: Manifest) -> None:
        """Make this the state of the collection, durably, or leave it as it was.

        The order matters: the new files were synced when they were written; their names are synced here,
        before a manifest refers to them; what no manifest names any more is removed last.
        """
        self._stale = True  # whatever happens from here on, the next use of the view reads what is on disk
        try:
            files.sync_folder(self.folder)
            manifest.write(self.folder)
        except OSError as error:
            raise _not_written(self.folder, error, made=self._is_on_disk(manifest)) from error
        self._stale = True  # again: a search may have read the state before, meanwhile
        # no memory or descriptors left: the change is made, and the next use of the view finds it
        with self._switching, contextlib.suppress(OSError, MemoryError):
            self._switch(Snapshot.of(self.folder, manifest, self._view.snapshot))
            self._stale = False
        self.sweep()

    def close(self) -> None:
        """Release the lock and what is mapped; waits for a change under way."""
        with self._changing:
            self.closed = True
            self._lock.release()
            self._watch.close()
            nothing = Snapshot(self.folder, Manifest(self._view.snapshot.manifest.n_bits), (), ())
            self._view = View(nothing, self.n_jobs)

    def _written(self, kind: str, manifest: Manifest, write: Callable[[Path], Made]) -> Made:
        path = self.folder / file_name(kind, manifest.next_file)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # of a change that failed, and could not be cleared away
            return write(path)
        except Damaged:  # of what was to be copied
            raise
        except OSError as error:
            raise _not_written(self.folder, error) from error

    def _is_on_disk(self, manifest: Manifest) -> bool:
        """After a commit that failed: whether the manifest has been replaced all the same."""
        try:
            return Manifest.read(self.folder) == manifest
        except OSError:
            return False

    def _switch(self, snapshot: Snapshot) -> None:
        if snapshot.manifest.continues(self._view.snapshot.manifest):
            try:
                self._view.advance(snapshot)
                return
            except MemoryError:
                pass  # what was made in memory is made again, at the next search
        self._view = View(snapshot, self.n_jobs, self._view)

    def sweep(self) -> None:
        """Remove files of ours that are no part of the collection as it is on disk.

        Only the writer may: what another process has written and not committed yet looks the same.
        """
        if self._lock.held:
            sweep(self.folder)


def sweep(folder: Path) -> None:
    """Remove files of ours that the manifest of a folder does not name; what cannot be, is left for later."""
    # Windows keeps a file that somebody has mapped; and if the manifest cannot be read, all are kept
    with contextlib.suppress(OSError):
        keep = Manifest.read(folder).files
        for path in folder.iterdir():
            if path.name not in keep and (number_of(path.name) >= 0 or path.name.endswith(".part")):
                with contextlib.suppress(OSError):
                    os.unlink(path)


def number_of(name: str) -> int:
    """The number of a file of ours, -1 for another."""
    found = re.fullmatch(rf"(?:{'|'.join(KINDS)})-(\d+){re.escape(SUFFIX)}", name)
    return int(found[1]) if found else -1


def file_name(kind: str, number: int) -> str:
    """The name of a file; numbers are never used again."""
    return f"{kind}-{number:06d}{SUFFIX}"


def _not_written(folder: Path, error: OSError, *, made: bool = False) -> FileProblem:
    reason = (error.strerror or str(error)).rstrip(".")
    if made:
        return FileProblem(f"{folder}: {reason}. The change is made, but a power loss may undo it.")
    return FileProblem(f"{folder} could not be written to: {reason}. It is as it was before.")


# ---- Codes and errors of what is added


def coding_of(model: Hasher, coding: str | None, mu: float | None) -> tuple[str, float]:
    """How a collection encodes: as given, else as the model's decoder is meant."""
    from auxbit.quantiser.coder import check_mu

    record = model.training_
    if coding is None and record is not None:
        coding = record.coding
    elif coding is None:  # a model that was saved by an older version: tables are fitted to optimal codes
        coding = "optimal" if hasattr(model.decoder_, "tables") else "hash"
    if coding == "hash":
        return coding, 0.0
    meant = record.mu if record is not None and record.coding == "optimal" else 0.0
    return coding, check_mu(meant if mu is None else mu)


def measured_errors(model: Hasher, X: Array, packed: Packed) -> Errors:
    """The reconstruction errors of some of the rows."""
    some = np.unique(np.linspace(0, len(X) - 1, min(len(X), MEASURED_ROWS)).astype(np.int64))
    return Errors(len(X), model._error_of(np.asarray(X[some]), packed[some]))


def run_to_merge(parts: Sequence[Written]) -> slice | None:
    """Which files are to become one, None if none are.

    Sizes are classes by powers of 16: sixteen of one class, with smaller ones among them, make one of the
    next, so that each row is copied about once per class. If sizes alternate so that many are left, the
    sixteen neighbours with the fewest bytes become one.
    """

    def size_class(part: Written) -> int:
        return (part.rows.bit_length() - 1) // (MERGED.bit_length() - 1)

    classes = [size_class(part) for part in parts]
    for level in range(max(classes, default=-1) + 1):
        first = len(parts)
        while first and classes[first - 1] <= level:
            first -= 1
        small = sum(part.bytes for part in parts[first:]) <= MERGED_BYTES
        if small and classes[first:].count(level) >= MERGED:
            return slice(first, len(parts))
    if len(parts) <= MOST_PARTS:
        return None
    sizes = np.convolve([part.bytes for part in parts], np.ones(MERGED), mode="valid")
    least = int(sizes.argmin())
    return slice(least, least + MERGED)
