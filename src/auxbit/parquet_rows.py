"""Rows of Parquet files by slices: decoded as they are asked for, as they lie one after another."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.blocks import BLOCK_ROWS, resolve_n_jobs
from auxbit.data import check_there, explained
from auxbit.errors import DataFileError
from auxbit.tables import ParquetGroups, check_rows

Array = npt.NDArray[Any]


class ParquetRows:
    """The rows of one Parquet file or of several, one after another, (n, D).

    Whoever asks for rows that follow those of before has them decoded from where that ended; the last few
    chunks are kept, as threads do not ask in order. To go back is to begin with the row group again.
    """

    def __init__(self, paths: list[Path], key: str | None) -> None:
        parts = [_groups(path, key) for path in paths]
        parts = [part for part in parts if sum(part.sizes)] or parts[:1]
        self.dtype, width = np.result_type(*(part.dtype for part in parts)), parts[0].width
        wrong = next((part for part in parts if part.width != width), None)
        if wrong is not None:
            raise DataFileError(
                f"{wrong.source} has rows of {wrong.width} numbers, and {parts[0].source} of {width}."
            )
        self._groups: list[tuple[ParquetGroups, int]] = []
        self._starts = [0]  # of the groups, and where the last one ends
        for part in parts:
            for group, n in enumerate(part.sizes):
                self._groups.append((part, group))
                self._starts.append(self._starts[-1] + n)
        self.shape = (self._starts[-1], width)
        check_rows(parts[0].source, self.shape, self.dtype)
        self._lock = threading.Lock()
        self._kept: deque[tuple[int, Array]] = deque(maxlen=2 * resolve_n_jobs(None) + 2)
        self._stream: Generator[tuple[int, Array], None, None] | None = None
        self._next = 0  # the row that the stream comes to

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(self.shape[0])
        parts = []
        with self._lock:
            while start < stop:
                first, chunk = self._chunk_with(start)
                parts.append(chunk[start - first : stop - first])
                start += len(parts[-1])
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty((0, self.shape[1]), dtype=self.dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def _chunk_with(self, row: int) -> tuple[int, Array]:
        """The chunk that this row is in, and the number of its first row."""
        for first, chunk in self._kept:
            if first <= row < first + len(chunk):
                return first, chunk
        group = bisect_right(self._starts, row) - 1
        if self._stream is None or row < self._next or self._starts[group] > self._next:
            if self._stream is not None:
                self._stream.close()
            self._stream = self._from(group)
        try:
            for first, chunk in self._stream:
                self._kept.append((first, chunk))
                self._next = first + len(chunk)
                if row < self._next:
                    return first, chunk
        except BaseException:
            self._stream = None  # the next to ask begins anew, and is told the same
            raise
        raise DataFileError(f"{self._groups[group][0].source} ended before row {row} of all: was it changed?")

    def _from(self, group: int) -> Generator[tuple[int, Array], None, None]:
        """Chunks from this group on."""
        while group < len(self._groups):
            part, number = self._groups[group]
            start = self._starts[group - number]  # of the file
            with explained(part.source):
                for row, values in part.batches(number, BLOCK_ROWS):
                    yield start + row, values.astype(self.dtype, copy=False)
            group += len(part.sizes) - number


def _groups(path: Path, key: str | None) -> ParquetGroups:
    check_there(path)
    with explained(path):
        return ParquetGroups(path, key)
