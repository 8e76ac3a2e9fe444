"""Rows of a source as MAC sees them: scaled, without those that are held out, a block at a time."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.blocks import BLOCK_ROWS, block_slices
from auxbit.maps import Float32, Scaling
from auxbit.row_source import RowSource, take_rows


class ScaledRows:
    """Rows of `source`, scaled as they are read. left_out : numbers of rows, rising, that are not among them.

    Row i is the i-th of those that are left, so blocks are the same as of rows in memory. What a slice
    returns is the thread's own room, filled anew when that thread asks again: fresh memory for each block
    costs as much as the work on it where the allocator gives memory back at once, as Dask tells it to.
    """

    def __init__(self, source: RowSource, scaling: Scaling, left_out: npt.NDArray[Any] | None = None) -> None:
        self._source, self._scaling = source, scaling
        self._left_out = np.zeros(0, dtype=np.int64) if left_out is None else np.asarray(left_out)
        self.shape = (len(source) - len(self._left_out), source.shape[1])
        self._own = threading.local()

    def __getitem__(self, rows: slice) -> Float32:
        raw, gaps = self._read(rows)
        out = self._room(len(raw) - len(gaps))
        filled, begin = 0, 0
        for gap in (*gaps.tolist(), len(raw)):
            self._scaling.apply_to(raw[begin:gap], out[filled : filled + gap - begin])
            filled, begin = filled + gap - begin, gap + 1
        return out

    def raw(self, rows: slice) -> npt.NDArray[Any]:
        """These rows as they came."""
        raw, gaps = self._read(rows)
        return np.delete(raw, gaps, axis=0) if len(gaps) else raw

    def _read(self, rows: slice) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """The rows from the first of these to the last, and which of them are left out."""
        start, stop, _ = rows.indices(self.shape[0])
        if start >= stop:
            return np.empty((0, self.shape[1]), dtype=self._source.dtype), self._left_out[:0]
        first, last = self.places(np.array([start, stop - 1]))
        low, high = np.searchsorted(self._left_out, (first, last))
        return np.asarray(self._source[slice(int(first), int(last) + 1)]), self._left_out[low:high] - first

    def _room(self, n: int) -> Float32:
        room: Float32 | None = getattr(self._own, "room", None)
        if room is None or len(room) < n:
            room = self._own.room = np.empty((max(n, BLOCK_ROWS), self.shape[1]), dtype=np.float32)
        return room[:n]

    def __len__(self) -> int:
        return self.shape[0]

    def places(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The numbers in the source of these rows."""
        return places_of(rows, self._left_out)

    def take(self, rows: npt.NDArray[Any]) -> Float32:
        """These rows, rising, scaled."""
        out = np.empty((len(rows), self.shape[1]), dtype=np.float32)
        for some in block_slices(len(rows)):  # so that they are in memory twice only for a moment
            out[some] = self._scaling.apply(take_rows(self._source, self.places(rows[some])))
        return out


def places_of(rows: npt.NDArray[Any], left_out: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The numbers in the source of these rows of those that are left."""
    gaps = left_out - np.arange(len(left_out))  # how many rows stay before each that does not
    return np.asarray(rows + np.searchsorted(gaps, rows, side="right"))
