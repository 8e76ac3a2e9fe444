"""What a collection holds at one moment: a manifest and the files that it names, mapped.

A snapshot never changes, and stays readable when a compaction has removed its files.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.codes import Packed, bytes_per_code
from auxbit.collection import metadata
from auxbit.collection.manifest import NAME, Manifest
from auxbit.collection.segment import Segment
from auxbit.collection.segment_file import Written
from auxbit.errors import Damaged, FileProblem
from auxbit.index.code_blocks import LANES, CodeBlocks

Positions = npt.NDArray[np.int64]

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
            return tuple(known.get((part.file, part.check)) or Segment(folder, part) for part in parts)

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
            segment, rows, found = _salvaged(folder, part)
            segments.append(segment)
            damage += found
            lost.append(start + np.flatnonzero(rows))
            start += part.rows
        removals = list[Segment | None]()
        for removed in manifest.removed:
            segment, rows, found = _salvaged(folder, removed)
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

    def vectors(self, positions: Positions) -> npt.NDArray[Any]:
        """The vectors at these positions, (n, D), in the type that they are kept in."""
        manifest = self.manifest
        out = np.zeros((len(positions), manifest.n_features or 0), dtype=manifest.vectors)
        for segment, rows, where in self.by_segment(positions):
            out[where] = segment.take("vectors", rows)
        return out

    def metadata(self, positions: Positions) -> list[dict[str, Any]]:
        """The metadata at these positions, {} where there are none."""
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


def _salvaged(folder: Path, part: Written) -> tuple[Segment | None, npt.NDArray[np.bool_], list[str]]:
    """A file as far as it can be read, which of its rows are lost, and what is wrong with it."""
    try:
        segment = Segment(folder, part, lenient=True)
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
    from auxbit.hashers.model_file import read_header  # scikit-learn: only where a model is looked at

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
        self._path = folder / NAME
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
