"""Rows that are read by slices: of mapped files, Parquet, HDF5, or any object that slices; memory budgets.

open_rows("vectors.npy")         memory-mapped; .fvecs, .bvecs, .ivecs too
open_rows("vectors.parquet")     decoded while it is read; or a folder of such files, in order of their names
open_rows("vectors.h5:train")    one slice at a time
open_rows(anything)              an array, or an object with `shape` and row slices
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from auxbit.core.checks import Array
from auxbit.core.files import checksum
from auxbit.core.parallel import BLOCK_ROWS
from auxbit.data.vectors import ParquetRows, check_there, explained, hdf5_dataset, read_vectors, split_key
from auxbit.errors import DataFileError, InvalidInput, InvalidParameter

FEW = 8  # rows of a block are read one by one; if more are wanted, the block is read from first to last
SAMPLES, SAMPLE_ROWS = 5, 64  # places, and rows at each, that a fingerprint is made of


class RowSource(Protocol):
    """Rows that can be read by slices, (n, D)."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def __getitem__(self, rows: slice) -> Array: ...

    def __len__(self) -> int: ...


def open_rows(X: Any) -> RowSource:
    """X as rows that are read by slices; only headers are read here."""
    if isinstance(X, str | os.PathLike):
        return _open_path(X)
    shape = getattr(X, "shape", None)
    if not isinstance(shape, tuple) or not hasattr(X, "__getitem__"):
        X = np.asarray(X)
        shape = X.shape
    if len(shape) != 2 or 0 in shape:
        raise InvalidInput(f"X must have rows and columns, (n, D); got shape {shape}.")
    if isinstance(X, np.ndarray):
        _check_type(X.dtype)
        return X
    return Sliced(X)


def take_rows(source: RowSource, rows: npt.NDArray[np.integer[Any]]) -> Array:
    """The rows of these numbers, which rise; rows between them are read only if they are few."""
    if isinstance(source, np.ndarray):
        return np.asarray(source[rows])
    out = np.empty((len(rows), source.shape[1]), dtype=source.dtype)
    edges = np.searchsorted(rows, np.arange(0, len(source) + BLOCK_ROWS, BLOCK_ROWS))
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist()):
        if high - low > FEW:
            first = int(rows[low])
            out[low:high] = source[slice(first, int(rows[high - 1]) + 1)][rows[low:high] - first]
        else:
            for place in range(low, high):
                out[place] = source[slice(int(rows[place]), int(rows[place]) + 1)][0]
    return out


def fingerprint(source: RowSource) -> str:
    """A checksum of some rows, which tells them from others of the same shape without reading all."""
    n = len(source)
    starts = np.unique(np.linspace(0, max(0, n - SAMPLE_ROWS), SAMPLES).astype(np.int64)).tolist()
    some = (np.ascontiguousarray(source[slice(start, start + SAMPLE_ROWS)]) for start in starts)
    return checksum(rows.tobytes() for rows in some)


class Sliced:
    """Any object with `shape` and row slices; further axes are laid out in a row."""

    def __init__(self, X: Any) -> None:
        self._X = X
        self.shape: tuple[int, int] = (int(X.shape[0]), math.prod(map(int, X.shape[1:])))
        first = np.asarray(X[0:1])
        if first.shape != (1, *X.shape[1:]):
            raise InvalidInput(
                f"X has shape {tuple(X.shape)}, but X[0:1] has {first.shape}: expected rows by slices."
            )
        self.dtype = first.dtype
        _check_type(self.dtype)

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(self.shape[0])
        some = np.asarray(self._X[start:stop])
        if some.shape[:1] != (max(stop - start, 0),) or some.dtype != self.dtype:
            raise InvalidInput(
                f"X changed while it was read: rows {start} to {stop} came as {some.shape} of {some.dtype}."
            )
        return some.reshape(len(some), self.shape[1])

    def __len__(self) -> int:
        return self.shape[0]


class Hdf5Rows(Sliced):
    """A dataset of an HDF5 file, which stays open as long as this is."""

    def __init__(self, source: Path, key: str | None) -> None:
        self._source = source
        with explained(source):
            super().__init__(hdf5_dataset(source, key))

    def __getitem__(self, rows: slice) -> Array:
        with explained(self._source):
            return super().__getitem__(rows)


def _open_path(path: str | os.PathLike[str]) -> RowSource:
    source, key = split_key(path)
    if source.is_dir():
        parts = sorted(source.rglob("*.parquet"))
        if not parts:
            raise DataFileError(f"{source} is a folder without .parquet files; expected a file of vectors.")
        return ParquetRows(parts, key)
    check_there(source)
    suffix = source.suffix.lower()
    if suffix == ".parquet":
        return ParquetRows([source], key)
    if suffix in (".h5", ".hdf5"):
        return Hdf5Rows(source, key)
    if suffix == ".npz":
        raise DataFileError(f"{source} can only be read whole: .npz is compressed. Save it as .npy.")
    return read_vectors(path)


def _check_type(dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "biuf":
        raise InvalidInput(f"X must be numbers, got {dtype}.")


# ---- how much memory a fit may use

UNITS = {"": 1, "b": 1, "k": 10**3, "kb": 10**3, "kib": 2**10, "m": 10**6, "mb": 10**6, "mib": 2**20,
         "g": 10**9, "gb": 10**9, "gib": 2**30, "t": 10**12, "tb": 10**12, "tib": 2**40}  # fmt: skip
LEAST = 128 * 10**6
DEFAULT = "1GB"
THREAD_BYTES = 20 * 10**6  # per thread, for rows of any length: mostly pairs of neighbours


@dataclass(frozen=True)
class Budget:
    """Bytes for all arrays at once; the interpreter and its libraries come on top."""

    total: int

    @classmethod
    def parse(cls, memory: object) -> Budget:
        """From "1GB", "512MB", "1.5GiB", or a number of bytes."""
        allowed = f"bytes, as '1GB', '512MB' or a number, at least {LEAST // 10**6}MB"
        if isinstance(memory, bool) or not isinstance(memory, Real | str):
            raise InvalidParameter("memory", memory, allowed)
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(memory).lower())
        total = int(float(found[1]) * UNITS.get(found[2], 0)) if found else 0
        if total < LEAST:
            raise InvalidParameter("memory", memory, allowed)
        return cls(total)

    def threads(self, n_columns: int, n_bits: int, most: int) -> int:
        """How many threads have room for their blocks of such rows, at most `most`."""
        # a block as read and scaled, its scores and codes, and XᵀX; all threads share what is made of XᵀX
        block = BLOCK_ROWS * (16 * n_columns + 40 * n_bits)
        each, shared = THREAD_BYTES + block + 16 * n_columns**2, 40 * n_columns**2
        if self.total < shared + each:
            allowed = f"at least {-(-(shared + each) // 10**6)}MB for rows of {n_columns} numbers"
            raise InvalidParameter("memory", self.total, allowed)
        return min(most, (self.total - shared) // each)

    def rows_of(self, row_bytes: int, share: float, most: int, least: int = 1000) -> int:
        """How many rows of `row_bytes` bytes fit into a share of it, within limits."""
        return max(min(int(self.total * share) // max(row_bytes, 1), most), least)
