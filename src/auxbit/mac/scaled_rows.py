"""Rows of a source as MAC sees them: scaled, without those that are held out, a block at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.blocks import block_slices
from auxbit.maps import Float32, Scaling
from auxbit.row_source import RowSource, take_rows


class ScaledRows:
    """Rows of `source`, scaled as they are read. left_out : numbers of rows, rising, that are not among them.

    Row i is the i-th of those that are left, so blocks are the same as of rows in memory.
    """

    def __init__(self, source: RowSource, scaling: Scaling, left_out: npt.NDArray[Any] | None = None) -> None:
        self._source, self._scaling = source, scaling
        self._left_out = np.zeros(0, dtype=np.int64) if left_out is None else np.asarray(left_out)
        self.shape = (len(source) - len(self._left_out), source.shape[1])

    def __getitem__(self, rows: slice) -> Float32:
        return self._scaling.apply(self.raw(rows))

    def raw(self, rows: slice) -> npt.NDArray[Any]:
        """These rows as they came."""
        start, stop, _ = rows.indices(self.shape[0])
        if start >= stop:
            return np.empty((0, self.shape[1]), dtype=self._source.dtype)
        first, last = self.places(np.array([start, stop - 1]))
        raw = self._source[slice(int(first), int(last) + 1)]
        low, high = np.searchsorted(self._left_out, (first, last))
        if high > low:
            raw = np.delete(raw, self._left_out[low:high] - first, axis=0)
        return np.asarray(raw)

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
