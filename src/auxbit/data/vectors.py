"""Vectors in files: read as rows of a 2-D array, memory-mapped if the format allows it, and written whole.

.npy                     memory-mapped; images (n, h, w, …) become rows (n, h*w*…)
.npz                     read into memory; `key` names the array, or the path does: "file.npz:name"
.fvecs .bvecs .ivecs     memory-mapped (TEXMEX: each row is its dimension as int32, then its values)
.parquet                 read into memory; a column of lists, or all numeric columns  (extra `data`)
.h5 .hdf5                read into memory; the dataset `key`, by default "train"       (extra `data`)
"""

from __future__ import annotations

import math
import os
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from auxbit.core import files
from auxbit.core.checks import check_finite
from auxbit.core.types import Array
from auxbit.data.tables import ParquetRows, check_rows, check_there, choose, chunks, explained, read_hdf5
from auxbit.errors import DataFileError, InvalidInput, InvalidParameter

MAX_DIMENSION = 1_000_000  # a larger one in a .fvecs header means that the file is something else
SAMPLED_HEADERS = 256
BLOCK_BYTES = 1 << 26

_VECS: dict[str, str] = {".fvecs": "<f4", ".bvecs": "|u1", ".ivecs": "<i4"}


def read_vectors(path: str | os.PathLike[str], *, key: str | None = None) -> Array:
    """Return the vectors in a file as the rows of an array, (n, d), read-only if memory-mapped.

    `key` names the array of an .npz, the column of a .parquet or the dataset of an .h5 file.
    """
    source, key = split_key(path, key)
    check_there(source)
    suffix = source.suffix.lower()
    if suffix not in _READERS:
        raise DataFileError(f"{source} has the unknown extension {suffix!r}. Known: {', '.join(_READERS)}.")
    if key is not None and suffix not in _KEYED:
        raise InvalidParameter("key", key, f"None for {source}: a {suffix} file holds one array")
    with explained(source):
        return _READERS[suffix](source, key)


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
        "file": name,
        "kind": "data",
        "rows": len(X),
        "columns": X.shape[1],
        "dtype": str(X.dtype),
        "megabytes": round(X.size * X.dtype.itemsize / 1e6, 3),
        "memory_mapped": isinstance(X, np.memmap),
        "smallest": low,
        "largest": high,
        "nan_or_infinite": bad,
    }


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
    with source.open("rb") as file:
        shape, dtype = _npy_header(file, source)
        check_rows(source, shape, dtype)
        there = source.stat().st_size - file.tell()
    row_bytes = math.prod(shape[1:]) * dtype.itemsize
    if there < shape[0] * row_bytes:
        raise DataFileError(
            f"{source} is truncated: expected {shape[0]} rows of {row_bytes} bytes, "
            f"there are {there // row_bytes} whole rows."
        )
    array: Array = np.load(source, mmap_mode="r", allow_pickle=False)
    return array.reshape(len(array), -1)


def _read_npz(source: Path, key: str | None) -> Array:
    with zipfile.ZipFile(source) as archive:
        members = {name.removesuffix(".npy"): name for name in archive.namelist()}
        if key is None and len(members) == 1:
            (key,) = members
        if key not in members:
            raise choose(source, "array", key, members)
        with archive.open(members[key]) as file:
            check_rows(source, *_npy_header(file, source))
            file.seek(0)
            array: Array = np.lib.format.read_array(file, allow_pickle=False)
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


_READERS: dict[str, Callable[[Path, str | None], Array]] = {
    ".npy": _read_npy, ".npz": _read_npz, ".fvecs": _read_vecs, ".bvecs": _read_vecs, ".ivecs": _read_vecs,
    ".parquet": lambda source, key: ParquetRows([source], key)[:], ".h5": read_hdf5, ".hdf5": read_hdf5,
}  # fmt: skip
_KEYED = frozenset({".npz", ".parquet", ".h5", ".hdf5"})
