"""Vectors in files: read as rows of a 2-D array, memory-mapped if the format allows it, and written whole.

.npy                     memory-mapped; images (n, h, w, …) become rows (n, h*w*…)
.npz                     read into memory; `key` names the array, or the path does: "file.npz:name"
.fvecs .bvecs .ivecs     memory-mapped (TEXMEX: each row is its dimension as int32, then its values)
.parquet                 read into memory; a column of lists, or all numeric columns  (extra `data`)
.h5 .hdf5                read into memory; the dataset `key`, by default "train"       (extra `data`)
"""

from __future__ import annotations

import difflib
import math
import os
import re
import struct
import tarfile
import threading
import tokenize
import zipfile
import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import numpy.typing as npt

from auxbit.core import files
from auxbit.core.checks import Array, as_array, check_finite, check_mapped, require
from auxbit.core.files import checksum
from auxbit.core.parallel import BLOCK_ROWS, resolve_n_jobs
from auxbit.errors import AuxbitError, DataFileError, InvalidInput, InvalidParameter

CHUNK_BYTES = 1 << 24
_FAILURES = (  # the last two are of NumPy, on a header that is no Python literal
    OSError, ValueError, TypeError, RuntimeError, EOFError, LookupError, ArithmeticError, MemoryError,
    zipfile.BadZipFile, zlib.error, tarfile.TarError, struct.error, SyntaxError, tokenize.TokenError,
)  # fmt: skip
PAGE_BYTES = 1 << 20  # read at once; without a buffer, PyArrow reads a whole row group
MAX_LINKS = 16  # from one name of an HDF5 file to another
MOST_COMPRESSED = 1100  # bytes of a file per byte that it takes: zlib reaches 1,032, a lie any number
MAX_DIMENSION = 1_000_000  # a larger one in a .fvecs header means that the file is something else
SAMPLED_HEADERS = 256
BLOCK_BYTES = 1 << 26

WITH_COLUMNS = (".csv", ".jsonl", ".ndjson", ".json", ".arrow", ".feather", ".ipc")  # files of collections

_VECS: dict[str, str] = {".fvecs": "<f4", ".bvecs": "|u1", ".ivecs": "<i4"}


def read_vectors(path: str | os.PathLike[str], *, key: str | None = None) -> Array:
    """Return the vectors in a file as the rows of an array, (n, d), read-only if memory-mapped.

    `key` names the array of an .npz, the column of a .parquet or the dataset of an .h5 file.
    """
    source, key = split_key(path, key)
    check_there(source)
    suffix = source.suffix.lower()
    if suffix not in _READERS:
        raise unknown_extension(source, *_READERS)
    if key is not None and suffix not in _KEYED:
        raise InvalidParameter("key", key, f"None for {source}: a {suffix} file holds one array")
    with explained(source):
        return _READERS[suffix](source, key)


def unknown_extension(source: Path, *known: str) -> DataFileError:
    """An error that lists the extensions that are known."""
    suffix = source.suffix.lower()
    said = f"{source} has the unknown extension {suffix!r}. Known: {', '.join(known)}."
    if suffix in WITH_COLUMNS and suffix not in known:
        said += f" Save its vectors as .npy; `auxbit collection create` reads {suffix} as it is."
    return DataFileError(said)


def read_data(name: str, *, finite: bool = False) -> Array:
    """The rows of a file; or of the embedded digits, if `name` is "digits" and no file is called so.

    finite : refuse NaN and infinity, which a file of vectors should not have.
    """
    if Path(name).suffix.lower() == ".safetensors":
        raise DataFileError(f"{name} looks like a model; expected a file of vectors here.")
    X = embedded_digits()[0] if is_digits(name) else read_vectors(name)
    if finite:
        check_finite(X, name=name)
    return X


def is_digits(name: str) -> bool:
    """Whether `name` means the embedded digits, and not a file."""
    return name == "digits" and not Path(name).exists()


def blocks(X: Array) -> Iterator[slice]:
    """The rows in blocks of some 64 MB, which fit into memory where all of them may not."""
    return chunks(len(X), max(1, X[:1].nbytes), BLOCK_BYTES)


def describe_vectors(name: str) -> dict[str, Any]:
    """Size, type and range of the vectors in a file."""
    X = read_data(name)
    low, high, bad = np.inf, -np.inf, 0
    for rows in blocks(X):
        block = np.asarray(X[rows])
        finite = block[np.isfinite(block)]
        bad += block.size - finite.size
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    return {
        "file": name, "kind": "data", "rows": len(X), "columns": X.shape[1], "dtype": str(X.dtype),
        "megabytes": round(X.size * X.dtype.itemsize / 1e6, 3), "memory_mapped": isinstance(X, np.memmap),
        "smallest": low, "largest": high, "nan_or_infinite": bad,
    }  # fmt: skip


def write_vectors(path: str | os.PathLike[str], array: npt.ArrayLike, *, overwrite: bool = False) -> None:
    """Write rows, (n, d), as .npy, .fvecs, .bvecs or .ivecs by the extension of `path`; all or nothing."""
    target, rows = Path(path), np.asarray(array)
    suffix = target.suffix.lower()
    if suffix != ".npy" and suffix not in _VECS:
        raise DataFileError(f"{target} cannot be written: known extensions are .npy, {', '.join(_VECS)}.")
    if rows.ndim != 2 or 0 in rows.shape or rows.dtype.kind not in "buif":
        raise InvalidInput(
            f"{target}: expected a 2-D array of numbers with rows and columns, "
            f"got shape {rows.shape} of {rows.dtype}."
        )
    if suffix in _VECS:
        _check_fits(rows, suffix, target)
    with files.replacing(target, overwrite=overwrite) as temporary, temporary.open("wb") as file:
        if suffix == ".npy":
            np.save(file, rows, allow_pickle=False)
        else:
            _save_vecs(file, rows, _VECS[suffix])


@contextmanager
def write_npy_rows(
    path: str | os.PathLike[str], shape: tuple[int, ...], dtype: npt.DTypeLike, *, overwrite: bool = False
) -> Iterator[Array]:
    """Yield a memory-mapped array to fill, `out[a:b] = …`; without an error it becomes the file `path`."""
    target = Path(path)
    if target.suffix.lower() != ".npy":
        raise DataFileError(f"{target} cannot be written by rows: only .npy can.")
    if np.dtype(dtype).hasobject:
        raise InvalidParameter("dtype", dtype, "a type of numbers, not Python objects")
    with files.replacing(target, overwrite=overwrite) as temporary:
        out = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.dtype(dtype), shape=shape)
        if hasattr(os, "posix_fallocate"):  # a full disk is an error here, not a SIGBUS while writing
            with temporary.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, temporary.stat().st_size)
        yield out
        out.flush()
        out.flags.writeable = False  # the array outlives the block, and the finished file must not change


def embedded_digits() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Return scikit-learn's handwritten digits, (1797, 64) float32 of 0..16, and their labels."""
    from sklearn.datasets import load_digits  # 2 s to import

    X, labels = load_digits(return_X_y=True)
    return X.astype(np.float32), labels.astype(np.int64)


def split_key(path: str | os.PathLike[str], key: str | None = None) -> tuple[Path, str | None]:
    """Split "file.npz:name" into path and key; a file whose name is all of it comes first."""
    text = os.fspath(path)
    parts = re.fullmatch(rf"(.+?(?:{'|'.join(map(re.escape, sorted(_KEYED)))})):(.+)", text, re.IGNORECASE)
    if parts is None or os.path.lexists(text):
        return Path(text), key
    if key not in (None, parts[2]):
        raise InvalidParameter("key", key, f"{parts[2]!r} or None, since the path names {parts[2]!r}")
    return Path(parts[1]), parts[2]


def _npy_header(file: IO[bytes], source: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    start = file.read(np.lib.format.MAGIC_LEN)
    if start[:6] != np.lib.format.MAGIC_PREFIX:
        raise DataFileError(f"{source} is not an .npy array: it starts with {start!r}.")
    file.seek(0)
    is_first = np.lib.format.read_magic(file) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype


def _read_npy(source: Path, key: str | None = None) -> Array:
    array = map_npy(source, check_rows)
    return array.reshape(len(array), -1)


def map_npy(
    source: Path, check: Callable[[Path, tuple[int, ...], np.dtype[Any]], None] | None = None
) -> Array:
    """An .npy array of any shape, memory-mapped; refused unless it is as long as its header says."""
    with source.open("rb") as file:
        shape, dtype = _npy_header(file, source)
        if check is not None:
            check(source, shape, dtype)
        there = source.stat().st_size - file.tell()
    size = math.prod(shape) * dtype.itemsize
    if there != size:
        problem = "truncated" if there < size else "longer than its header says"
        n, row_bytes = math.prod(shape[:1]), math.prod(shape[1:]) * dtype.itemsize
        raise DataFileError(
            f"{source} is {problem}: expected {n} rows of {row_bytes} bytes, "
            f"there are {there // max(1, row_bytes)} whole rows."
        )
    array: Array = np.load(source, mmap_mode="r", allow_pickle=False)
    return array


def _read_npz(source: Path, key: str | None) -> Array:
    with zipfile.ZipFile(source) as archive:
        members = {name.removesuffix(".npy"): name for name in archive.namelist()}
        if key is None and len(members) == 1:
            (key,) = members
        if key not in members:
            raise choose(source, "array", key, members)
        about = archive.getinfo(members[key])
        if about.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise DataFileError(f"{source} has a compression that NumPy does not use. Save it by np.savez.")
        with archive.open(about) as file:
            shape, dtype = _npy_header(file, source)
            check_rows(source, shape, dtype)
            _check_size(source, math.prod(shape) * dtype.itemsize, source.stat().st_size)
            file.seek(0)
            array: Array = np.lib.format.read_array(file, allow_pickle=False)
            if file.read(1):  # at its end, the archive's checksum is verified
                raise DataFileError(f"{source}: {members[key]} is longer than its header says.")
    return array.reshape(len(array), -1)


def _read_vecs(source: Path, key: str | None = None) -> Array:
    dtype = np.dtype(_VECS[source.suffix.lower()])
    size = source.stat().st_size
    with source.open("rb") as file:
        dimension = int.from_bytes(file.read(4), "little", signed=True)
    if size < 4 or not 1 <= dimension <= MAX_DIMENSION:
        raise DataFileError(
            f"{source} is not a {source.suffix} file, there are 0 whole records: expected it to start with "
            f"a dimension in 1..{MAX_DIMENSION} as int32, got {dimension if size >= 4 else f'{size} bytes'}."
        )
    record = 4 + dimension * dtype.itemsize
    n, rest = divmod(size, record)
    expected = f"expected records of {record} bytes (4 + {dimension} values of {dtype.name})"
    if n == 0 or rest:
        raise DataFileError(
            f"{source} is truncated or not a {source.suffix} file: {expected}, "
            f"there are {n} whole records and {rest} bytes more."
        )
    raw = np.memmap(source, dtype=np.uint8, mode="r", shape=(n, record))
    sample = np.unique(np.linspace(0, n - 1, min(n, SAMPLED_HEADERS)).astype(np.intp))
    headers = np.ascontiguousarray(raw[sample, :4]).view("<i4")[:, 0]
    if (headers != dimension).any():
        wrong = int(np.flatnonzero(headers != dimension)[0])
        raise DataFileError(
            f"{source} is inconsistent: {expected}, which makes {n} whole records, "
            f"but record {sample[wrong]} says that its dimension is {headers[wrong]}."
        )
    return raw[:, 4:].view(dtype)


def _check_fits(rows: Array, suffix: str, target: Path) -> None:
    """Refuse rows that would be changed by writing them."""
    dtype = np.dtype(_VECS[suffix])
    if suffix == ".fvecs":
        if not np.can_cast(rows.dtype, dtype, "safe"):
            raise InvalidInput(f"{target} keeps float32, got {rows.dtype}. Convert by astype(np.float32).")
        return
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    if rows.dtype.kind == "f":
        raise InvalidInput(f"{target} keeps integers of {low}..{high}, got {rows.dtype}. Try .fvecs or .npy.")
    least, most = int(rows.min()), int(rows.max())
    if least < low or most > high:
        raise InvalidInput(f"{target} keeps integers of {low}..{high}, got {least}..{most}. Try .npy.")


def _save_vecs(file: IO[bytes], rows: Array, dtype: str) -> None:
    record = np.dtype([("dimension", "<i4"), ("values", dtype, (rows.shape[1],))])
    for part in chunks(len(rows), record.itemsize):
        records = np.empty(len(rows[part]), dtype=record)
        records["dimension"], records["values"] = rows.shape[1], rows[part]
        file.write(records.tobytes())


# ---- What readers share


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
    if not shape or min(shape) <= 0:
        what = "a single value" if not shape else "no rows" if shape[0] == 0 else "rows without values"
        what = "less than nothing" if shape and min(shape) < 0 else what
        raise DataFileError(f"{source} holds {what} (shape {shape}); expected rows (n, d).")


def _check_size(source: Path, claimed: int, there: int) -> None:
    """Refuse to make room for what a file says it holds, if it cannot."""
    if claimed > there * MOST_COMPRESSED:
        raise DataFileError(
            f"{source} is damaged: its header promises {claimed:,} bytes, but it has only {there:,}."
        )


def chunks(n_rows: int, row_bytes: int, at_once: int = CHUNK_BYTES) -> Iterator[slice]:
    """The rows in slices of about `at_once` bytes."""
    step = max(1, at_once // row_bytes)
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


def choose(source: Path, what: str, key: str | None, names: Iterable[str]) -> DataFileError:
    """The error for a `key` that is not among `names`, or that is needed."""
    names = list(names)
    if not names:
        return DataFileError(f"{source} has no {what} at all.")
    problem = f"several {what}s." if key is None else f"no {what} {key!r}.{nearest(key, names)}"
    near = difflib.get_close_matches(key or "", names, n=1) or names
    remedy = f"Choose by key=, of {', '.join(names)}; on the command line as {source}:{near[0]}."
    return DataFileError(f"{source} has {problem} {remedy}")


def nearest(name: str, names: Iterable[str]) -> str:
    """Say which of `names` may have been meant, if any is close."""
    near = difflib.get_close_matches(name, list(names), n=3)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def check_there(source: Path) -> None:
    """Refuse what is no file, or an empty one."""
    if source.is_dir():
        raise DataFileError(f"{source} is a folder; expected a file of vectors.")
    if not source.exists():
        if not source.parent.is_dir():
            raise DataFileError(f"{source} does not exist: there is no folder {source.parent}.")
        near = nearest(source.name, (entry.name for entry in source.parent.iterdir()))
        raise DataFileError(f"{source} does not exist.{near}")
    if source.stat().st_size == 0:
        raise DataFileError(f"{source} is empty (0 bytes).")


@contextmanager
def explained(source: Path, what: str = "") -> Iterator[None]:
    """Turn what other libraries raise on a broken file into a DataFileError that names it."""
    try:
        yield
    except AuxbitError:
        raise
    except _FAILURES as error:
        what = what or source.suffix.lower()
        raise DataFileError(f"{source} cannot be read as {what}: {error or type(error).__name__}") from error


# ---- Columns of Parquet files and datasets of HDF5 files, whole or by slices


class ParquetGroups:
    """The matrix in a Parquet file, by row groups. sizes : rows of each; width : numbers per row, 0 for none.

    names : the columns that it is made of, in their order.
    Groups may be larger than memory: they are decoded page by page, one chunk of rows at a time.
    """

    def __init__(self, source: Path, key: str | None, columns: list[str] | None = None) -> None:
        self.source = source
        check_there(source)
        self.seen = _as_it_is(source)
        with explained(source), open_parquet(source) as file:
            self.names, self.dtype, self._of_lists = _choose_columns(source, file.schema_arrow, key, columns)
            self.sizes = group_sizes(source, file)
            self.width = len(self.names)
            if self._of_lists:
                first = next(file.iter_batches(batch_size=1, columns=self.names), None)
                self.width = 0 if first is None else self._values(first, 0, 0).shape[1]

    def batches(self, group: int) -> Iterator[tuple[int, Array]]:
        """The rows from this group on, by chunks, each with the number of its first row."""
        with open_parquet(self.source) as file:
            for row, batch in parquet_batches(self.source, file, self.names, group):
                yield row, self._values(batch, row, self.width)

    def _values(self, batch: Any, row: int, width: int) -> Array:
        columns = {f"{self.source}: column {name!r}": batch.column(name) for name in self.names}
        if self._of_lists:
            return _list_rows(*columns.popitem(), row, width)
        for what, column in columns.items():
            _refuse_nulls(what, column, row)
        return np.stack([column.to_numpy().astype(self.dtype) for column in columns.values()], axis=1)


def parquet_files(source: Path) -> list[Path]:
    """The file itself, or the Parquet files in a folder, in the order of their names."""
    if not source.is_dir():
        check_there(source)
        return [source]
    parts = sorted(source.rglob("*.parquet"))
    if not parts:
        raise DataFileError(f"{source} is a folder without .parquet files; expected a file of vectors.")
    return parts


def open_parquet(source: Path) -> Any:
    """A ParquetFile, which verifies the checksums of pages that have one."""
    parquet = require("pyarrow.parquet", extra="data", purpose="reading .parquet files")
    options = {"buffer_size": PAGE_BYTES, "pre_buffer": False, "page_checksum_verification": True}
    return parquet.ParquetFile(source, **options)


def group_sizes(source: Path, file: Any) -> list[int]:
    """How many rows each row group of a ParquetFile has."""
    about = file.metadata
    sizes = [about.row_group(group).num_rows for group in range(about.num_row_groups)]
    if min(sizes, default=0) < 0 or sum(sizes) != about.num_rows:
        raise DataFileError(
            f"{source} is damaged: its row groups have {sizes} rows, which do not add up to the "
            f"{about.num_rows} that it says. Write it again."
        )
    return sizes


def parquet_batches(
    source: Path, file: Any, columns: list[str] | None = None, group: int = 0
) -> Iterator[tuple[int, Any]]:
    """Chunks of rows from this row group on, each with the number of its first row.

    A group that has not the rows that the file says is refused: PyArrow stops early without an error.
    """
    sizes = group_sizes(source, file)
    row = sum(sizes[:group])
    for number in range(group, len(sizes)):
        end = row + sizes[number]
        damaged = f"{source} is damaged: row group {number} has not the {sizes[number]} rows that it says."
        for batch in file.iter_batches(BLOCK_ROWS, row_groups=[number], columns=columns):
            if row + len(batch) > end:
                raise DataFileError(f"{damaged} Write it again.")
            yield row, batch
            row += len(batch)
        if row < end:
            raise DataFileError(f"{damaged} Write it again.")


def _choose_columns(
    source: Path, schema: Any, key: str | None, columns: list[str] | None
) -> tuple[list[str], np.dtype[Any], bool]:
    """The columns that make the matrix, the NumPy type of their numbers, and whether they are lists.

    key : the one of lists; columns : those of numbers.
    """
    lists, numbers = number_columns(schema, index_columns(schema) if columns is None else ())
    if columns is not None:
        wrong = next((name for name in columns if name not in numbers), None)
        if wrong is not None:
            raise DataFileError(f"{source} has no column {wrong!r} of numbers.")
        return columns, np.result_type(*(numbers[name] for name in columns)), False
    if (key is None and len(lists) > 1) or (key is not None and key not in lists):
        raise choose(source, "list column", key, lists)
    chosen = {key: lists[key]} if key is not None else lists or numbers
    if not chosen:
        raise DataFileError(f"{source} has no column of numbers, nor of lists of numbers.")
    return list(chosen), np.result_type(*chosen.values()), bool(lists)


def index_columns(schema: Any) -> list[Any]:
    """The columns of an Arrow schema that are an index of pandas: its numbers are not those of vectors."""
    try:
        named = list((schema.pandas_metadata or {}).get("index_columns", ()))
    except (ValueError, TypeError, AttributeError, RecursionError):  # pandas did not write it
        named = []
    return [name for name in schema.names if name in named or is_index(name)]


def is_index(name: object) -> bool:
    """Whether pandas calls an index without a name so in a file."""
    return isinstance(name, str) and re.fullmatch(r"__index_level_\d+__", name) is not None


def number_columns(schema: Any, but: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The columns of lists of numbers and those of numbers in an Arrow schema, each with its NumPy type."""
    types = require("pyarrow.types", extra="data", purpose="reading .parquet files")
    lists: dict[str, Any] = {}
    numbers: dict[str, Any] = {}
    for field in schema:
        kind, found = field.type, numbers
        if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            kind, found = kind.value_type, lists
        if is_number(kind) and field.name not in but:
            found[field.name] = kind.to_pandas_dtype()
    return lists, numbers


def is_number(kind: Any) -> bool:
    """Whether an Arrow type is of integers or floats."""
    types = require("pyarrow.types", extra="data", purpose="reading Arrow columns")
    return bool(types.is_integer(kind) or types.is_floating(kind))


def _list_rows(
    what: str, column: Any, row: int = 0, dimension: int = 0, error: type[AuxbitError] = DataFileError
) -> Array:
    """A chunk of an Arrow column of lists, from `row` on, as (rows, d); `dimension` : 0 if not yet known."""
    compute = require("pyarrow.compute", extra="data", purpose="reading Arrow columns")
    column = getattr(column, "storage", column)  # tensors of one shape are an extension of lists
    _refuse_nulls(what, column, row, error=error)
    lengths = compute.list_value_length(column).to_numpy(zero_copy_only=False)
    dimension = dimension or int(lengths[0])
    if (lengths != dimension).any() or dimension == 0:
        wrong = int((lengths != dimension).argmax())
        raise error(
            f"{what} has a list of {lengths[wrong]} values in row {row + wrong}; "
            f"expected lists of {dimension or 'at least 1'}, the same for every row."
        )
    values = column.flatten()
    _refuse_nulls(what, values, row, per_row=dimension, error=error)
    return np.asarray(values.to_numpy()).reshape(-1, dimension)


def _refuse_nulls(
    what: str, values: Any, row: int, per_row: int = 1, error: type[AuxbitError] = DataFileError
) -> None:
    if values.null_count:
        at = int(values.is_null().to_numpy(zero_copy_only=False).argmax()) // per_row
        raise error(f"{what} has a null in row {row + at}; expected numbers only.")


def read_hdf5(source: Path, key: str | None) -> Array:
    """The dataset `key`, or "train", as rows."""
    dataset = hdf5_dataset(source, key)
    with dataset.file:
        return np.asarray(dataset[...]).reshape(len(dataset), -1)


def hdf5_dataset(source: Path, key: str | None) -> Any:
    """The dataset `key`, or "train", of a file that stays open with it."""
    h5py = require("h5py", extra="data", purpose="reading .h5 files")
    name, file = "train" if key is None else key, h5py.File(source, "r")
    try:
        dataset = _hdf5_item(source, file, name)
        if not isinstance(dataset, h5py.Dataset):
            found: list[str] = []
            file.visititems(lambda path, item: found.append(path) if isinstance(item, h5py.Dataset) else None)
            raise choose(source, "dataset", name, found)
        check_rows(source, dataset.shape or (), dataset.dtype)
        _check_written(source, dataset)
        _check_size(source, dataset.nbytes, source.stat().st_size)
    except BaseException:
        file.close()
        raise
    return dataset


def _hdf5_item(source: Path, group: Any, name: str, depth: int = 0) -> Any:
    """What a name in a group stands for, None if there is nothing; links into other files are refused."""
    h5py = require("h5py", extra="data", purpose="reading .h5 files")
    if depth > MAX_LINKS:
        raise DataFileError(f"{source}: {name!r} is a link that leads to itself. Write the file again.")
    item = group.file if name.startswith("/") else group
    for part in filter(None, name.split("/")):
        link = item.get(part, getlink=True) if isinstance(item, h5py.Group) else None
        if isinstance(link, h5py.ExternalLink):
            raise _elsewhere(source, part, link.filename)
        if isinstance(link, h5py.SoftLink):
            item = _hdf5_item(source, item, link.path, depth + 1)
        else:
            item = None if link is None else item[part]
    return item


def _check_written(source: Path, dataset: Any, seen: set[str] | None = None) -> None:
    """Refuse a dataset of which the file has not all, or more: HDF5 would read zeros, or leave rows out.

    Nor may it be elsewhere: a file that somebody sent could have any file of this machine read as vectors.
    """
    seen = set() if seen is None else seen
    seen.add(dataset.name)
    if dataset.external:
        raise _elsewhere(source, dataset.name, dataset.external[0][0])
    if dataset.is_virtual:
        parts, size = dataset.virtual_sources(), math.prod(dataset.shape)
        whole = sum(part.vspace.get_select_npoints() for part in parts) >= size
        for part in parts:
            if part.file_name != ".":
                raise _elsewhere(source, dataset.name, part.file_name)
            item = _hdf5_item(source, dataset.file, part.dset_name)
            whole = whole and item is not None
            if hasattr(item, "is_virtual") and item.name not in seen:
                _check_written(source, item, seen)
    else:
        whole = dataset.id.get_storage_size() == dataset.nbytes
    if dataset.chunks:
        steps = list(zip(dataset.shape, dataset.chunks))
        there: set[tuple[int, ...]] = set()
        dataset.id.chunk_iter(lambda chunk: there.add(chunk.chunk_offset))
        within = (at < size and not at % step for each in there for at, (size, step) in zip(each, steps))
        whole = len(there) == math.prod(-(-size // step) for size, step in steps) and all(within)
    if not whole:
        raise DataFileError(
            f"{source}: the dataset {dataset.name} holds less than its shape, {dataset.shape}: it was not "
            "written to its end, or is damaged. Write it again, or resize it to its rows."
        )


def _elsewhere(source: Path, what: str, place: object) -> DataFileError:
    return DataFileError(
        f"{source}: {what} is not in the file but in another, {place}, which is not read. "
        "Copy it into one file, by h5repack or h5py."
    )


class ParquetColumns:
    """Columns of a Parquet file, by row groups. names : which, None for all; sizes : rows of each group.

    index : those of the file that are an index of pandas.
    """

    def __init__(self, source: Path, names: list[str] | None = None) -> None:
        self.source = source
        check_there(source)
        self.seen = _as_it_is(source)
        with explained(source), open_parquet(source) as file:
            schema, self.sizes = file.schema_arrow, group_sizes(source, file)
        there, self.index = schema.names, index_columns(schema)
        self.names = list(there) if names is None else names
        wrong = next((name for name in self.names if there.count(name) != 1), None)
        if wrong is not None:
            problem = "two columns" if wrong in there else "no column"
            raise DataFileError(f"{source} has {problem} {wrong!r}.")

    def batches(self, group: int) -> Iterator[tuple[int, Any]]:
        """The rows from this group on, as batches of Arrow, each with the number of its first row."""
        with open_parquet(self.source) as file:
            yield from parquet_batches(self.source, file, self.names, group)


def _as_it_is(source: Path) -> tuple[int, int]:
    """What tells a file from one that takes its place: files are opened again for each pass."""
    about = source.stat()
    return about.st_size, about.st_mtime_ns


class ParquetStream:
    """Rows of Parquet files, one file after another, by chunks, in order. n : how many there are.

    Rows that follow those of the last call are decoded from where that ended. The last few chunks are kept,
    since threads do not ask in order. Going back farther decodes the row group from its start.
    """

    def __init__(self, parts: Sequence[ParquetGroups] | Sequence[ParquetColumns]) -> None:
        self._groups: list[tuple[ParquetGroups | ParquetColumns, int]] = []
        self._starts = [0]  # of the groups, and where the last one ends
        for part in parts:
            for group, n in enumerate(part.sizes):
                self._groups.append((part, group))
                self._starts.append(self._starts[-1] + n)
        self.n = self._starts[-1]
        self._lock = threading.Lock()
        self._kept: deque[tuple[int, Any]] = deque(maxlen=2 * resolve_n_jobs(None) + 2)
        self._stream: Generator[tuple[int, Any], None, None] | None = None
        self._next = 0  # the row that the stream comes to

    def pieces(self, start: int, stop: int) -> Iterator[Any]:
        """The rows from `start` on, before `stop`, in pieces of chunks."""
        with self._lock:
            while start < stop:
                first, chunk = self._chunk_with(start)
                some = chunk[start - first : stop - first]
                yield some
                start += len(some)

    def _chunk_with(self, row: int) -> tuple[int, Any]:
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
            self._stream = None  # the next call starts again, and raises the same
            raise
        raise DataFileError(f"{self._groups[group][0].source} ended before row {row}: was it changed?")

    def _from(self, group: int) -> Generator[tuple[int, Any], None, None]:
        """Chunks from this group on."""
        while group < len(self._groups):
            part, number = self._groups[group]
            start = self._starts[group - number]  # of the file
            with explained(part.source):
                if _as_it_is(part.source) != part.seen:
                    raise DataFileError(f"{part.source} was changed while it was read. Begin again.")
                for row, chunk in part.batches(number):
                    yield start + row, chunk
            group += len(part.sizes) - number


class ParquetRows:
    """The rows of one Parquet file or of several, one after another, (n, D).

    They are the list column `key`, or the only list column, or all columns of numbers, or those of `columns`.
    """

    def __init__(self, paths: list[Path], key: str | None, columns: list[str] | None = None) -> None:
        parts = [ParquetGroups(path, key, columns) for path in paths]
        parts = [part for part in parts if sum(part.sizes)] or parts[:1]
        self.dtype, width = np.result_type(*(part.dtype for part in parts)), parts[0].width
        if wrong := next((part for part in parts if part.width != width), None):
            raise DataFileError(
                f"{wrong.source} has rows of {wrong.width} numbers, but {parts[0].source} of {width}."
            )
        for part in parts:
            lacks = next((name for name in parts[0].names if name not in part.names), None)
            if lacks is not None:
                raise DataFileError(
                    f"{part.source} lacks the column {lacks!r}, which {parts[0].source} has. Give the files "
                    "the same columns, or read them one by one."
                )
            part.names = parts[0].names  # which may be in another order
        self._stream = ParquetStream(parts)
        self.shape = (self._stream.n, width)
        check_rows(parts[0].source, self.shape, self.dtype)

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(self.shape[0])
        out, done = np.empty((max(0, stop - start), self.shape[1]), dtype=self.dtype), 0
        for some in self._stream.pieces(start, stop):
            if len(some) == len(out):  # within one chunk: no copy
                return np.asarray(some, dtype=self.dtype)
            out[done : done + len(some)] = some
            done += len(some)
        return out

    def __len__(self) -> int:
        return self.shape[0]


_READERS: dict[str, Callable[[Path, str | None], Array]] = {
    ".npy": _read_npy, ".npz": _read_npz, ".fvecs": _read_vecs, ".bvecs": _read_vecs, ".ivecs": _read_vecs,
    ".parquet": lambda source, key: ParquetRows([source], key)[:], ".h5": read_hdf5, ".hdf5": read_hdf5,
}  # fmt: skip
VECTOR_FILES = tuple(_READERS)
_KEYED = frozenset({".npz", ".parquet", ".h5", ".hdf5"})


# ---- Columns of vectors in memory
#
# A column is a Series of pandas or polars, an Arrow array, a list or an array of objects, whose vectors are
# equally long. They are known by the name of their package, so that none has to be imported.

VECTORS = (list, tuple, np.ndarray)


def package_of(X: Any) -> str:
    """The name of the package that X comes from."""
    return type(X).__module__.partition(".")[0]


def as_rows(X: Any, name: str = "X") -> Any:
    """A column of vectors as an array, (n, D) of the type that their numbers have; anything else as it is."""
    if isinstance(X, np.ma.MaskedArray):
        return as_array(X, name)
    package = package_of(X)
    if package in ("pandas", "polars", "pyarrow"):
        if hasattr(X, "columns"):
            _refuse_nested(X, package, name)
            return X
        if package != "pandas":
            return _arrow_rows(as_arrow(X), name)
        X = X.to_numpy()
    of_objects = isinstance(X, np.ndarray) and X.ndim == 1 and X.dtype.hasobject
    if (of_objects or isinstance(X, list | tuple)) and any(isinstance(each, VECTORS) for each in X):
        return stacked(X, name)
    return X


def as_arrow(X: Any) -> Any:
    """A frame or a Series of polars as that of Arrow, without a copy if it can be; Arrow's own as it is."""
    if package_of(X) == "pyarrow":
        return X
    arrow = require("pyarrow", extra="data", purpose="reading frames of polars")
    return arrow.table(X) if hasattr(X, "columns") else arrow.chunked_array(X)


def _refuse_nested(frame: Any, package: str, name: str) -> None:
    """Refuse a frame with a column of vectors, of which scikit-learn would not say what is wrong."""
    if package == "pandas":
        kinds = zip(frame.columns, frame.dtypes)
        objects = [column for column, kind in kinds if kind == object] if len(frame) else []  # noqa: E721
        nested = [column for column in objects if isinstance(frame[column].iloc[0], VECTORS)]
    elif package == "polars":
        nested = [column for column, kind in frame.schema.items() if kind.is_nested()]
    else:
        nested = [field.name for field in frame.schema if field.type.num_fields]
    if nested:
        listed = ", ".join(map(repr, nested))
        raise InvalidInput(
            f"{name} is a frame with columns of lists: {listed}. Give the column of vectors alone, as "
            f"{name}[{nested[0]!r}]."
        )


def stacked(vectors: Any, name: str, first: int = 0, width: int = 0) -> Array:
    """The vectors in a list, or in an array of objects, as the rows of one array.

    first : the number of the first row, for messages; width : how long they are to be, 0 for as the first.
    """
    listed = list(vectors)
    lengths = [len(each) if isinstance(each, VECTORS) else None for each in listed]
    width = width or next((length for length in lengths if length is not None), 0)
    for row, length in enumerate(lengths):
        if length != width:
            found = repr(listed[row])[:40] if length is None else f"a vector of {length} numbers"
            wanted = f"{width} numbers in each" if width else 'vectors, such as "[0.1, 0.2]"'
            raise InvalidInput(f"{name} has {found} in row {first + row}; expected {wanted}.")
    try:
        rows = np.stack(listed) if all(type(each) is np.ndarray for each in listed) else np.array(listed)
    except ValueError as error:
        raise InvalidInput(f"{name} must be vectors of numbers: {error}") from error
    if rows.dtype.hasobject and any(None in each for each in listed):
        row = next(row for row, each in enumerate(listed) if None in each)
        raise InvalidInput(f"{name} has None among the numbers of row {first + row}; expected numbers only.")
    return rows


def _arrow_rows(column: Any, name: str) -> Array:
    """A column of Arrow as rows; one that is no column of lists as it is, in one dimension."""
    parts = [part for part in getattr(column, "chunks", [column]) if len(part)]
    kind = getattr(column.type, "storage_type", column.type)
    if not parts or not hasattr(kind, "value_type"):
        return np.asarray(column)
    if not is_number(kind.value_type):
        raise InvalidInput(f"{name} is a column of {kind}; expected lists of numbers.")
    done: list[Array] = []
    for part in parts:
        row, width = sum(map(len, done)), done[0].shape[1] if done else 0
        done.append(_list_rows(name, part, row, width, error=InvalidInput))
    return done[0] if len(done) == 1 else np.concatenate(done)


# ---- Rows by slices, of any of these files or of any object that slices
#
# open_rows("vectors.npy")         memory-mapped; .fvecs, .bvecs, .ivecs too
# open_rows("vectors.parquet")     decoded while it is read; or a folder of such files, in order of names
# open_rows("vectors.h5:train")    one slice at a time
# open_rows(anything)              an array, or an object with `shape` and row slices

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
    X = as_rows(X)
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
        check_mapped(source, getattr(source, "filename", None) or "the file of X")
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
                f"X has shape {tuple(X.shape)}, but X[0:1] has {first.shape}: slices must return rows."
            )
        self.dtype = first.dtype
        _check_type(self.dtype)

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(self.shape[0])
        some = np.asarray(self._X[start:stop])
        expected = (max(stop - start, 0), *self._X.shape[1:])
        if some.shape != expected or some.dtype != self.dtype:
            raise InvalidInput(
                f"X changed while it was read: rows {start} to {stop} are now {some.shape} of {some.dtype}."
            )
        return some.reshape(len(some), self.shape[1])

    def __len__(self) -> int:
        return self.shape[0]


class Hdf5Rows(Sliced):
    """A dataset of an HDF5 file, which stays open as long as this is, or until `close`."""

    def __init__(self, source: Path, key: str | None) -> None:
        self._source = source
        with explained(source):
            super().__init__(hdf5_dataset(source, key))

    def __getitem__(self, rows: slice) -> Array:
        with explained(self._source):
            return super().__getitem__(rows)

    def close(self) -> None:
        """Let go of the file: HDF5 lets nobody write to it while it is open."""
        self._X.file.close()


def _open_path(path: str | os.PathLike[str]) -> RowSource:
    source, key = split_key(path)
    suffix = source.suffix.lower()
    if suffix == ".parquet" or source.is_dir():
        return ParquetRows(parquet_files(source), key)
    check_there(source)
    if suffix in (".h5", ".hdf5"):
        return Hdf5Rows(source, key)
    if suffix == ".npz":
        raise DataFileError(f"{source} can only be read whole: .npz is compressed. Save it as .npy.")
    return read_vectors(path)


def _check_type(dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "biuf":
        raise InvalidInput(f"X must be numbers, got {dtype}.")


# ---- How much memory a fit may use

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
