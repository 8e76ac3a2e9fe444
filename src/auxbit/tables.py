"""Tables of vectors that other libraries read: Parquet and HDF5, by chunks, into one array.

Also what all readers of data.py share: is it rows of numbers, which array is meant, how large a chunk is.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.errors import DataFileError
from auxbit.extras import require

Array = npt.NDArray[Any]

CHUNK_BYTES = 1 << 24
PARQUET_ROWS = 4096  # the bytes of a list column are not known beforehand
PAGE_BYTES = 1 << 20  # read at once; without a buffer all of a row group would be


def read_parquet(source: Path, key: str | None) -> Array:
    """The list column `key`, or the only one, or all columns of numbers, as rows."""
    parquet = ParquetGroups(source, key)
    check_rows(source, (sum(parquet.sizes), parquet.width), parquet.dtype)
    out = np.empty((sum(parquet.sizes), parquet.width), parquet.dtype)
    for row, values in parquet.batches():
        out[row : row + len(values)] = values
    return out


class ParquetGroups:
    """The matrix in a Parquet file, by row groups. sizes : rows of each; width : numbers a row, 0 for none.

    Groups may be larger than memory: they are decoded by pages, a chunk of rows at a time.
    """

    def __init__(self, source: Path, key: str | None) -> None:
        self.source = source
        with self._open() as file:
            self._names, self.dtype, self._of_lists = _choose_columns(source, file.schema_arrow, key)
            about = file.metadata
            self.sizes = [about.row_group(group).num_rows for group in range(about.num_row_groups)]
            self.width = len(self._names)
            if self._of_lists:
                first = next(file.iter_batches(batch_size=1, columns=self._names), None)
                self.width = 0 if first is None else self._values(first, 0, 0).shape[1]

    def batches(self, group: int = 0, at_once: int = PARQUET_ROWS) -> Iterator[tuple[int, Array]]:
        """The rows from this group on, by chunks, each with the number of its first row."""
        groups, row = range(group, len(self.sizes)), sum(self.sizes[:group])
        with self._open() as file:
            for batch in file.iter_batches(at_once, row_groups=list(groups), columns=self._names):
                values = self._values(batch, row, self.width)
                yield row, values
                row += len(values)

    def _values(self, batch: Any, row: int, width: int) -> Array:
        for name in self._names:
            _refuse_nulls(self.source, name, batch.column(name), row)
        if self._of_lists:
            return _list_rows(self.source, self._names[0], batch.column(self._names[0]), row, width)
        columns = [batch.column(name).to_numpy().astype(self.dtype) for name in self._names]
        return np.stack(columns, axis=1)

    def _open(self) -> Any:
        parquet = require("pyarrow.parquet", extra="data", purpose="reading .parquet files")
        return parquet.ParquetFile(self.source, buffer_size=PAGE_BYTES, pre_buffer=False)


def _choose_columns(source: Path, schema: Any, key: str | None) -> tuple[list[str], np.dtype[Any], bool]:
    """The columns that make the matrix, the NumPy type of their numbers, and whether they are lists."""
    types = require("pyarrow.types", extra="data", purpose="reading .parquet files")
    lists: dict[str, Any] = {}
    numbers: dict[str, Any] = {}
    for field in schema:
        kind, found = field.type, numbers
        if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            kind, found = kind.value_type, lists
        if types.is_integer(kind) or types.is_floating(kind):
            found[field.name] = kind.to_pandas_dtype()
    if (key is None and len(lists) > 1) or (key is not None and key not in lists):
        raise choose(source, "list column", key, lists)
    chosen = {key: lists[key]} if key is not None else lists or numbers
    if not chosen:
        raise DataFileError(f"{source} has no column of numbers, nor of lists of numbers.")
    return list(chosen), np.result_type(*chosen.values()), bool(lists)


def _list_rows(source: Path, name: str, column: Any, row: int, dimension: int) -> Array:
    """One chunk of a column of lists, from `row` on, as (rows, d); `dimension` is 0 if not yet known."""
    compute = require("pyarrow.compute", extra="data", purpose="reading .parquet files")
    lengths = compute.list_value_length(column).to_numpy(zero_copy_only=False)
    dimension = dimension or int(lengths[0])
    if (lengths != dimension).any() or dimension == 0:
        wrong = int((lengths != dimension).argmax())
        raise DataFileError(
            f"{source}: column {name!r} has a list of {lengths[wrong]} values in row {row + wrong}; "
            f"expected lists of {dimension or 'at least 1'}, the same for every row."
        )
    values = column.flatten()
    _refuse_nulls(source, name, values, row, per_row=dimension)
    rows: Array = values.to_numpy().reshape(-1, dimension)
    return rows


def _refuse_nulls(source: Path, name: str, values: Any, row: int, per_row: int = 1) -> None:
    if values.null_count:
        at = int(values.is_null().to_numpy(zero_copy_only=False).argmax()) // per_row
        raise DataFileError(f"{source}: column {name!r} has a null in row {row + at}; expected numbers only.")


def read_hdf5(source: Path, key: str | None) -> Array:
    """The dataset `key`, or "train", as rows."""
    dataset = hdf5_dataset(source, key)
    with dataset.file:
        out: Array = np.empty(dataset.shape, dataset.dtype)
        for part in chunks(len(out), out[0].nbytes):
            dataset.read_direct(out, part, part)
    return out.reshape(len(out), -1)


def hdf5_dataset(source: Path, key: str | None) -> Any:
    """The dataset `key`, or "train", of a file that stays open with it."""
    h5py = require("h5py", extra="data", purpose="reading .h5 files")
    name = "train" if key is None else key
    file = h5py.File(source, "r")
    try:
        dataset = file.get(name)
        if not isinstance(dataset, h5py.Dataset):
            found: list[str] = []
            file.visititems(lambda path, item: found.append(path) if isinstance(item, h5py.Dataset) else None)
            raise choose(source, "dataset", name, found)
        check_rows(source, dataset.shape or (), dataset.dtype)
    except BaseException:
        file.close()
        raise
    return dataset


def check_rows(source: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Refuse what is not rows of numbers, before any of it is read."""
    if dtype.hasobject:
        raise DataFileError(f"{source} holds pickled Python objects, which are never loaded; save numbers.")
    if dtype.kind not in "buif":
        raise DataFileError(f"{source} holds {dtype}; expected real numbers.")
    if len(shape) == 1:
        raise DataFileError(
            f"{source} holds a 1-D array of {shape[0]} values; expected rows (n, d). Save it as "
            "reshape(-1, 1) for rows of one value, or as reshape(1, -1) for a single row."
        )
    if not shape or 0 in shape:
        what = "a single value" if not shape else "no rows" if shape[0] == 0 else "rows without values"
        raise DataFileError(f"{source} holds {what} (shape {shape}); expected rows (n, d).")


def chunks(n_rows: int, row_bytes: int) -> Iterator[slice]:
    """The rows in slices of about CHUNK_BYTES."""
    step = max(1, CHUNK_BYTES // row_bytes)
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


def choose(source: Path, what: str, key: str | None, names: Iterable[str]) -> DataFileError:
    """The error for a `key` that is not among `names`, or that is needed."""
    names = list(names)
    if not names:
        return DataFileError(f"{source} has no {what} at all.")
    problem = f"several {what}s." if key is None else f"no {what} {key!r}.{nearest(key, names)}"
    near = difflib.get_close_matches(key or "", names, n=1) or names
    return DataFileError(
        f"{source} has {problem} Choose by key=, of {', '.join(names)}; "
        f"on the command line as {source}:{near[0]}."
    )


def nearest(name: str, names: Iterable[str]) -> str:
    """Say which of `names` may have been meant, if any is close."""
    near = difflib.get_close_matches(name, list(names), n=3)
    return f" Did you mean {' or '.join(near)}?" if near else ""
