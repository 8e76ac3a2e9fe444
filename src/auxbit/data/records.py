"""Records: rows with vectors, ids and metadata, out of one file, frame or list; and metadata as JSON.

.parquet                 decoded while it is read, by slices; or a folder of such files  (extra `data`)
.arrow .feather .ipc     memory-mapped                                                  (extra `data`)
.jsonl .ndjson           one object per line
.json                    a list of objects
.csv                     a header line; vectors are "[0.1, 0.2]" or "[0.1 0.2]"; empty cells are left out
.npy .npz .fvecs .h5 …   vectors alone, see data/vectors.py
frames                   of pandas and polars, tables of pyarrow, lists of dicts, dicts of columns, arrays
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, time
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path, PurePath
from types import NoneType
from typing import Any, NoReturn, overload
from uuid import UUID

import numpy as np

from auxbit.core.checks import Array, Ids, Integers, Mask, PathLike, as_array, require
from auxbit.data.vectors import (
    VECTOR_FILES,
    VECTORS,
    ParquetColumns,
    ParquetRows,
    ParquetStream,
    RowSource,
    as_arrow,
    as_rows,
    check_there,
    explained,
    index_columns,
    is_digits,
    is_index,
    nearest,
    open_rows,
    package_of,
    parquet_files,
    read_data,
    read_vectors,
    split_key,
    stacked,
    unknown_extension,
)
from auxbit.errors import DataFileError, InvalidInput

Row = dict[str, Any]
AnyIds = Integers | list[Any]  # (n,) integers, or n texts, or n UUIDs

# ---- Values: what JSON makes of Python's and NumPy's types, what is refused, what is equal

MAX_DEPTH = 64  # deeper rows could be written, but not read from a deep call stack
REMEDY = "Give text, numbers, true or false, None, lists or dicts of these, dates or paths"
PLAIN = {str, int, float, NoneType}  # types whose values are equal only if JSON's are
_SAFE = {str, bool, NoneType}  # nothing can be wrong with these
ENCODABLE = PLAIN | _SAFE  # nor with these, once they have been encoded


def to_json(value: Any) -> Any:
    """`value` as it will be read back: Python's own types, lists for arrays, ISO text for dates."""
    why = problem(value)
    if why:
        raise InvalidInput(f"{why}. {REMEDY}.")
    return json.loads(ENCODER.encode(value))


def key_of(value: Any) -> Any:
    """A key that is equal for equal JSON values only: 1 is 1.0, but neither is true."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, list):
        return ("list", *map(key_of, value))
    if isinstance(value, dict):
        return ("dict", frozenset((key, key_of(each)) for key, each in value.items()))
    return ("bool", value)


def problem(value: Any, fine: set[type] = _SAFE, depth: int = 0) -> str:
    """Why `value` cannot be kept, empty if it can; types in `fine` need no check."""
    if depth >= MAX_DEPTH and isinstance(value, Mapping | list | tuple | np.ndarray):
        return f"it is nested more than {MAX_DEPTH} levels deep"
    inner: Iterable[Any] = ()
    if isinstance(value, Mapping):
        wrong = [key for key in value if not isinstance(key, str)]
        if wrong:
            return f"it has the key {wrong[0]!r}, which is not text"
        inner = [each for each in value.values() if type(each) not in fine]
    elif isinstance(value, list | tuple):
        inner = value if set(map(type, value)) - fine else ()
    elif isinstance(value, np.ndarray) and value.dtype.kind == "O":
        return problem(value.tolist(), fine, depth)
    elif type(value) not in fine:
        try:
            ENCODER.encode(value)
        except (TypeError, ValueError):
            shown = "so large an integer" if isinstance(value, int) else repr(value)[:80]
            hint = ": decode it to text, or write it in base64" if isinstance(value, bytes) else ""
            return f"{shown} is not JSON ({type(value).__name__}){hint}"
    for each in inner:
        why = problem(each, fine, depth + 1)
        if why:
            return why
    return ""


def is_missing(value: Any) -> bool:
    """Whether it stands for no value: None, NaN and NaT, and pandas' NA."""
    if value is None or type(value).__name__ in ("NaTType", "NAType"):
        return True
    if isinstance(value, Decimal):
        return value.is_nan()
    return isinstance(value, float | np.floating | np.datetime64 | np.timedelta64) and bool(value != value)


def _python(value: Any) -> Any:
    """What json does not know, as something that it knows."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufUO":
        return value.tolist()
    if isinstance(value, np.ndarray) and value.dtype.kind == "M":
        return [_python(part) for part in value] if value.ndim else _python(value[()])
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.integer) and not isinstance(value, np.timedelta64):
        return int(value)
    if isinstance(value, np.floating):
        return float(value)
    if isinstance(value, np.datetime64 | date) and value == value:  # the missing date is not itself
        return _iso(value)
    if isinstance(value, time):
        return value.isoformat()
    if isinstance(value, Decimal) and value.is_finite():
        return _number(value)
    if isinstance(value, PurePath | UUID):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _number(value: Decimal) -> int | float | str:
    """A number whose JSON text is this very number, else the digits as text."""
    if value == value.to_integral_value() and abs(value) < Decimal(10) ** 40:
        return int(value)
    nearest_float = float(value)
    return nearest_float if Decimal(repr(nearest_float)) == value else str(value)


def _iso(moment: np.datetime64 | date) -> str:
    day: Any = moment
    if isinstance(moment, np.datetime64):
        coarser = moment.astype("M8[us]")  # Python knows no finer dates, and no years beyond 9999
        day = moment.item() if isinstance(moment.item(), date) or coarser != moment else coarser.item()
    return str(day.isoformat() if isinstance(day, date) else moment)


ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",\n", ":"), default=_python)


# ---- Metadata as text: one JSON object per row

CHUNK_ROWS = 2**14


def encode_metadata(rows: Any, n: int) -> list[str | None]:
    """Return the metadata of n rows, each as the text of a JSON object, None if it has none.

    rows : n dicts, or None for a row without; or a frame of pandas or polars, a table of pyarrow, a dict of
    columns of n values each; or None. None, NaN and NaT are JSON's null in a dict; in a column they say that
    the row has no value, and are left out.
    """
    if rows is None:
        return [None] * n
    listed = metadata_rows(rows, n)
    if len(listed) != n:
        raise InvalidInput(f"metadata has {len(listed)} rows for {n} items. Give one each, None for none.")
    texts: list[str | None] = []
    for first in range(0, n, CHUNK_ROWS):
        texts += _encode_chunk(listed[first : first + CHUNK_ROWS], first)
    return texts


def _encode_chunk(rows: Sequence[Any], first: int) -> list[str | None]:
    try:
        _check_types(Mapping | NoneType, rows)
        plain = [row if type(row) is dict else dict(row or {}) for row in rows]
        _check_types(str, (key for row in plain for key in row))  # json would make text of others
        try:
            pieces = _encoded(plain)
        except (TypeError, ValueError):  # perhaps because of NaN
            plain = [{key: None if is_missing(v) else v for key, v in row.items()} for row in plain]
            pieces = _encoded(plain)
        nested = (row for row, piece in zip(plain, pieces) if "{" in piece or "[" in piece)
        if any(problem(row, ENCODABLE, -1) for row in nested):
            raise TypeError
    except (TypeError, ValueError, RecursionError) as error:
        _name_the_problem(rows, first, error)
    return [in_utf8("{" + piece.replace(",\n", ",") + "}") if piece else None for piece in pieces]


def _encoded(rows: list[Row]) -> list[str]:
    """What is between the braces of each row."""
    # no string holds a bare line end, so this splits between objects and nowhere else
    pieces = ENCODER.encode(rows)[2:-2].split("},\n{")
    if len(pieces) != len(rows):  # a value is a list of objects
        pieces = [ENCODER.encode(row)[1:-1] for row in rows]
    return pieces


def _check_types(allowed: Any, values: Iterable[Any]) -> None:
    if not all(issubclass(kind, allowed) for kind in set(map(type, values))):
        raise TypeError


def in_utf8(text: str) -> str:
    """JSON that UTF-8 can hold."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:  # half a surrogate pair has no UTF-8, but JSON can escape it
            return re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text)
    return text


def _name_the_problem(rows: Sequence[Any], first: int, error: Exception) -> NoReturn:
    for number, row in enumerate(rows, first):
        if row is not None and not isinstance(row, Mapping):
            raise InvalidInput(
                f"metadata row {number} is a {type(row).__name__}; expected a dict, or None."
            ) from error
        for field, value in (row or {}).items():
            if not isinstance(field, str):
                raise InvalidInput(f"metadata row {number} has the field {field!r}; use a text.") from error
            why = "" if is_missing(value) else problem(value)
            if why:
                raise InvalidInput(f"metadata row {number}, field {field!r}: {why}. {REMEDY}.") from error
    raise error


def metadata_rows(rows: Any, n: int) -> Sequence[Any]:
    """Rows of any kind as a sequence of dicts."""
    if isinstance(rows, TableRows | list):
        return rows
    columns = columns_of(rows)
    if columns is None:
        return _listed(rows, "metadata")
    for field, values in columns.items():
        if len(values) != n:
            raise InvalidInput(
                f"metadata field {field!r} has {len(values)} values for {n} items. "
                "In a dict or a frame of columns give one value per item; or give a list of dicts."
            )
    return TableRows.of(columns, n)


def _listed(values: Any, name: str) -> list[Any]:
    if isinstance(values, np.ndarray) and values.ndim and values.dtype.kind in "biufU":
        return list(values.tolist())
    unordered = isinstance(values, str | bytes | set | frozenset | Mapping)
    if unordered or not hasattr(values, "__iter__") or getattr(values, "ndim", 1) == 0:
        raise InvalidInput(
            f"{name} is a {type(values).__name__}; expected a list, in the order of the items."
        )
    return list(values)


# ---- Tables: columns by name, of which rows are made when they are read

Columns = dict[Any, Any]  # by name: a Series of pandas, an Arrow column, or a list; all of one length


def columns_of(table: Any) -> Columns | None:
    """The columns of a frame, a table of Arrow or a dict of columns; None if it is none of these."""
    if isinstance(table, Mapping):
        return {name: _column(values, f"metadata field {name!r}") for name, values in table.items()}
    if package_of(table) == "polars" and hasattr(table, "collect"):  # a lazy frame
        table = table.collect()
    if package_of(table) not in ("pandas", "polars", "pyarrow") or not hasattr(table, "columns"):
        return None
    if package_of(table) != "pandas":
        table = as_arrow(table)
        names, columns = list(table.schema.names), dict(zip(table.schema.names, table.columns))
    else:
        levels = _index_of(table)  # columns like the others, as in a file that pandas writes
        names, columns = [*levels, *table.columns], {}
        columns |= {name: table.index.get_level_values(name).to_series() for name in levels}
        columns |= {name: table[name] for name in table.columns}
    if len(columns) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"two columns are named {twice!r}. Rename one.")
    return columns


def _index_of(table: Any) -> list[Any]:
    """The columns that are an index of pandas: ids or metadata, but no numbers of vectors."""
    if package_of(table) == "pandas":
        return [name for name in table.index.names if name is not None and name not in table.columns]
    return index_columns(table.schema) if package_of(table) == "pyarrow" else []


def _column(values: Any, name: str) -> Any:
    """The values of a column as something that `_values` can slice."""
    if package_of(values) == "pandas":
        return values
    return as_arrow(values) if package_of(values) in ("polars", "pyarrow") else _listed(values, name)


def _values(column: Any, start: int, stop: int) -> list[Any]:
    """Some values of a column as Python's own, None for what is missing."""
    if package_of(column) == "pyarrow":
        values = column.slice(start, stop - start).to_pylist()
    elif package_of(column) == "pandas":
        values = column.iloc[start:stop].tolist()
    else:
        values = column[start:stop]
    if set(map(type, values)) <= {str, int, bool, NoneType}:
        return list(values)
    return [None if is_missing(value) else value for value in values]


def _rows_of(columns: Columns, start: int, stop: int) -> list[Row]:
    """Some rows of a table; what is missing is left out."""
    lists = [_values(column, start, stop) for column in columns.values()]
    if not lists:
        return [{} for _ in range(start, stop)]
    if any(NoneType in set(map(type, values)) for values in lists):
        return [
            {name: value for name, value in zip(columns, row) if value is not None} for row in zip(*lists)
        ]
    return [dict(zip(columns, row)) for row in zip(*lists)]


Reader = Callable[[int, int], list[Row]]


class TableRows(Sequence[Row]):
    """Rows of a table as dicts, which are made when they are read.

    names : of the columns; reader : for some of these, what reads rows from a number to another.
    """

    def __init__(self, n: int, names: list[Any], reader: Callable[[list[Any]], Reader]) -> None:
        self.names, self._n, self._reader, self._take = names, n, reader, reader(names)

    @classmethod
    def of(cls, columns: Columns, n: int) -> TableRows:
        """The rows of columns in memory."""

        def reader(names: list[Any]) -> Reader:
            some = {name: columns[name] for name in names}
            return lambda start, stop: _rows_of(some, start, stop)

        return cls(n, list(columns), reader)

    def only(self, names: list[Any]) -> TableRows:
        """The same rows with some of the columns."""
        return TableRows(self._n, names, self._reader)

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, rows: int) -> Row: ...

    @overload
    def __getitem__(self, rows: slice) -> list[Row]: ...

    def __getitem__(self, rows: int | slice) -> Row | list[Row]:
        if isinstance(rows, slice):
            start, stop, step = rows.indices(self._n)
            if step != 1:
                return [self[row] for row in range(start, stop, step)]
            return self._take(start, max(start, stop))
        row = range(self._n)[rows]
        return self._take(row, row + 1)[0]

    def __iter__(self) -> Iterator[Row]:
        for start in range(0, self._n, CHUNK_ROWS):
            yield from self[start : start + CHUNK_ROWS]


def without_vectors(rows: Any, X: RowSource) -> Any:
    """Metadata of any kind that encode_metadata takes, without the columns that hold the vectors X."""
    listed = metadata_rows(rows, len(X))
    head = listed[:HEAD_ROWS]
    if not all(isinstance(row, Mapping | NoneType) for row in head):
        return rows  # encode_metadata refuses them
    vectors = X[: len(head)]
    lists = [name for name, value in (head[0] or {}).items() if _is_vector(value)] if head else []
    same = [name for name in lists if _are([(row or {}).get(name) for row in head], vectors)]
    if not same:
        return rows
    if isinstance(listed, TableRows):
        return listed.only([name for name in listed.names if name not in same])
    return [row and {name: row[name] for name in row if name not in same} for row in listed]


def _are(values: list[Any], vectors: Array) -> bool:
    """Whether these are the vectors, but for rounding."""
    return _equally_long(values) and len(values[0]) == vectors.shape[1] and np.allclose(values, vectors, 1e-3)


# ---- Files of rows


def read_table(path: PathLike) -> Sequence[Row]:
    """The rows of a file of metadata, by its extension."""
    source = Path(path)
    suffix = source.suffix.lower()
    check_there(source)
    if suffix in ROW_FILES:
        return list(ROW_FILES[suffix](source))
    if suffix in ARROW_FILES:
        table = read_arrow(source)
        return TableRows.of(columns_of(table) or {}, len(table))
    if suffix == ".parquet":
        return _parquet_rows([source])
    raise unknown_extension(source, *ROW_FILES, ".parquet", *ARROW_FILES)


def read_jsonl(source: Path) -> Iterator[Row]:
    """The rows of a file with one JSON object per line."""
    empty = 0
    for number, line in enumerate(_lines(source, "\n"), 1):
        if not line.strip():
            empty = empty or number
        elif empty:  # at the end they do no harm
            raise DataFileError(f"{source}, line {empty} is empty. Write {{}} for an item without metadata.")
        else:
            yield _object(_parsed(line, source, number), f"{source}, line {number}")


def read_json(source: Path) -> Iterator[Row]:
    """The rows of a file that is one JSON list of objects."""
    content = _parsed("".join(_lines(source, "")), source)
    if not isinstance(content, list):
        raise DataFileError(f"{source} holds no list; expected a list of objects, one per item.")
    for number, row in enumerate(content):
        yield _object(row, f"{source}, entry {number}")


def read_csv(source: Path) -> Iterator[Row]:
    """The rows of a file with a header line and commas."""
    for row in _csv_cells(source):
        yield {name: _cell(cell) for name, cell in row.items()}


def _csv_cells(source: Path) -> Iterator[dict[str, str]]:
    """The cells of each row that are not empty."""
    csv.field_size_limit(max(MOST_CELL, csv.field_size_limit()))  # vectors are long; Python's has one for all
    lines, empty = csv.reader(_lines(source, ""), strict=True), 0
    try:
        names = _checked_names(source, next(lines, []))
        for cells in lines:
            if not cells:  # a line without anything: at the end it does no harm
                empty = empty or lines.line_num
                continue
            if empty or len(cells) != len(names):
                line, n = (empty, 0) if empty else (lines.line_num, len(cells))
                raise DataFileError(
                    f"{source}, line {line} has {n} cells, the header {len(names)}. "
                    "Give every item a line with a cell for each field, empty if it has none."
                )
            yield {name: cell for name, cell in zip(names, cells) if cell}
    except csv.Error as error:
        raise DataFileError(f"{source}, line {lines.line_num}: {error}.") from error


ROW_FILES: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".json": read_json,
    ".csv": read_csv,
}
ARROW_FILES = (".arrow", ".feather", ".ipc")
MOST_CELL = 2**27  # characters of a cell


def read_arrow(source: Path) -> Any:
    """The table in a file of Arrow, of either of its formats, memory-mapped."""
    arrow = require("pyarrow", extra="data", purpose=f"reading {source.suffix} files")
    ipc = require("pyarrow.ipc", extra="data", purpose=f"reading {source.suffix} files")
    with explained(source):
        mapped = arrow.memory_map(str(source))
        opened = ipc.open_file if mapped.read(6) == b"ARROW1" else ipc.open_stream
        mapped.seek(0)
        table = opened(mapped).read_all()
        table.validate(full=True)  # a damaged offset would be read without a check
    return table


def _parquet_rows(paths: list[Path]) -> TableRows:
    """The rows of Parquet files, decoded while they are read."""

    def reader(names: list[str]) -> Reader:
        stream = ParquetStream([ParquetColumns(path, names) for path in paths])

        def take(start: int, stop: int) -> list[Row]:
            batches = stream.pieces(start, stop)
            return [row for batch in batches for row in _rows_of(columns_of(batch) or {}, 0, len(batch))]

        return take

    parts = [ParquetColumns(path) for path in paths]
    return TableRows(sum(sum(part.sizes) for part in parts), parts[0].names, reader)


def _lines(source: Path, newline: str) -> Iterator[str]:
    """The lines of a text file, with their ends. newline : as in `open`."""
    try:
        with source.open(encoding="utf-8-sig", newline=newline) as file:  # spreadsheets write a mark in front
            yield from file
    except UnicodeDecodeError as error:
        with source.open("rb") as raw:
            line = next((number for number, line in enumerate(raw, 1) if not _is_utf8(line)), 1)
        raise DataFileError(f"{source}, line {line} is not UTF-8 text. Save the file as UTF-8.") from error
    except OSError as error:
        raise DataFileError(f"{source} cannot be read: {error.strerror}.") from error


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _parsed(text: str, source: Path, line: int | None = None) -> Any:
    """The JSON value `text`, which is one line of the file or all of it."""
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        at = f"{source}, line {(line or 1) + error.lineno - 1}, column {error.colno}"
        raise DataFileError(f"{at} is not JSON: {error.msg}.") from error
    except (ValueError, RecursionError) as error:
        raise DataFileError(f"{source}{f', line {line}' if line else ''}: {error}.") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON, write null")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def _object(value: Any, place: str) -> Row:
    if value is not None and not isinstance(value, dict):
        raise DataFileError(f"{place} is {json.dumps(value)[:60]}; expected an object, or null.")
    return value or {}


def _checked_names(source: Path, header: list[str]) -> list[str]:
    names = [name.strip() for name in header]
    if not names:
        raise DataFileError(f"{source} has no header line. Its first line must name the fields.")
    unnamed = next((number for number, name in enumerate(names, 1) if not name), None)
    if unnamed is not None:
        raise DataFileError(
            f"{source}, line 1: column {unnamed} has no name. With pandas, write index=False."
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataFileError(f"{source}, line 1: two columns are named {twice!r}.")
    return names


_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", re.ASCII)  # as in JSON: 007 is text


def _cell(cell: str) -> Any:
    """A cell as a condition of `where` would read it, so that field=cell finds it."""
    if cell in ("true", "false") or (_NUMBER.fullmatch(cell) and math.isfinite(float(cell))):
        return json.loads(cell)
    return cell


# ---- Ids: integers, text or UUIDs, all of one type

ID_TYPES = (int, str, UUID)
_INTEGER = re.compile(r"0|-?[1-9]\d{0,17}", re.ASCII)  # that is written back as it was
_DIGITS = re.compile(r"\s*-?\d+\s*", re.ASCII)


def read_ids(path: PathLike) -> AnyIds:
    """The ids in an .npy file of integers or text, or in a .txt file with one per line.

    If all lines are integers, they are integers, as in a .csv.
    """
    source = Path(path)
    check_there(source)
    if source.suffix.lower() == ".txt":
        return checked_ids(_from_text([line.rstrip("\r\n") for line in _lines(source, "\n")]), str(path))
    try:
        found = np.load(source, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataFileError(f"{path} cannot be read as .npy: {error}") from error
    if not isinstance(found, np.ndarray):
        raise DataFileError(f"{path} holds several arrays; expected an .npy file of integers or text.")
    found = found.ravel() if found.ndim == 2 and found.shape[1] == 1 else found
    if found.ndim != 1:
        raise InvalidInput(f"{path} must hold one value for each row, got shape {found.shape}.")
    return checked_ids(found, str(path))


def checked_ids(values: Any, name: str) -> AnyIds:
    """Ids of one type: integers as int64, text or UUIDs as a list. values : a list or an array."""
    values = as_array(values, name) if isinstance(values, np.ndarray) else values
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu" and values.dtype != np.uint64:
        numbers: Integers = values.astype(np.int64)
        return numbers
    listed = values.tolist() if isinstance(values, np.ndarray) else list(values)
    listed = [int(each) if isinstance(each, np.integer) else each for each in listed]
    kinds = set(map(type, listed))
    kind = type(listed[0]) if listed else int
    if len(kinds) > 1 or kind not in ID_TYPES:
        wrong = (row for row, each in enumerate(listed) if type(each) is not kind or kind not in ID_TYPES)
        _refuse_id(listed, next(wrong), name)
    if kind is not int:
        return listed
    large = next((row for row, each in enumerate(listed) if not -(2**63) <= each < 2**63), None)
    if large is not None:
        raise InvalidInput(f"{name} has the id {listed[large]} in row {large}, which has more than 64 bits.")
    return np.array(listed, dtype=np.int64)


def _refuse_id(ids: list[Any], row: int, name: str) -> NoReturn:
    if is_missing(ids[row]):
        raise InvalidInput(f"{name} has no id in row {row}. Give each row one, or none at all.")
    if type(ids[0]) in ID_TYPES and type(ids[row]) in ID_TYPES:
        raise InvalidInput(
            f"{name} has {ids[0]!r} in row 0 and {ids[row]!r} in row {row}: ids must be of one type."
        )
    raise InvalidInput(f"{name} has {repr(ids[row])[:40]} in row {row}: ids are integers, text or UUIDs.")


def refuse_repeats(ids: AnyIds, name: str) -> None:
    """Refuse ids that come twice, naming the first and its rows."""
    n_different = len(np.unique(ids)) if isinstance(ids, np.ndarray) else len(set(ids))
    if n_different < len(ids):
        before: dict[Any, int] = {}
        for row, each in enumerate(ids if isinstance(ids, list) else ids.tolist()):
            if before.setdefault(each, row) != row:
                raise InvalidInput(f"{name} has the id {each!r} twice, in rows {before[each]} and {row}.")


def refuse_known(ids: AnyIds, known: Mask) -> None:
    """Refuse ids that are in the collection already: those of which `known`, (n,), is true."""
    if known.any():
        first = ids[int(known.argmax())]
        raise InvalidInput(
            f"id {first if isinstance(first, str) else int(first)!r} is already in the collection "
            f"({int(known.sum()):,} of the {len(ids):,} given); nothing was added. Use upsert=True "
            "(--upsert) to replace their rows."
        )


def _from_text(cells: list[Any]) -> list[Any]:
    """Cells as integers, if all of them are; their text can be had from these again."""
    if all(cell is not None and _INTEGER.fullmatch(cell) for cell in cells):
        return list(map(int, cells))
    return cells


KINDS = {"integer": "integers", "text": "text", "uuid": "UUIDs", None: "integers"}  # one in a collection


def stored_ids(ids: Any, n: int | None = None) -> tuple[Ids | list[str], str]:
    """Ids as they are stored, int64 or text, and their kind: "integer", "text" or "uuid"."""
    if isinstance(ids, str | bytes) or not hasattr(ids, "__iter__"):
        raise InvalidInput(f"ids must be a list; got {ids!r}. For one, give [{ids!r}].")
    given = ids if isinstance(ids, np.ndarray | list) else list(ids)
    if getattr(given, "ndim", 1) != 1 or (n is not None and len(given) != n):
        wanted = f"one per row, {n} of them" if n is not None else "a list"
        raise InvalidInput(f"ids must be {wanted}; got shape {np.shape(given)}.")
    found = checked_ids(given, "ids")
    if isinstance(found, np.ndarray):
        if len(found) and found.min() < 0:
            raise InvalidInput(f"ids that are integers must lie in 0..2**63-1, got {found.min()}.")
        return found, "integer"
    if isinstance(found[0], UUID):
        return list(map(str, found)), "uuid"
    text = "".join(found)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"ids must be text that UTF-8 can hold: {error}.") from error
    if "\0" in text:  # up to which SQLite would read them
        raise InvalidInput("ids must not contain the character NUL.")
    if "" in found:
        raise InvalidInput("ids must not be empty text.")
    return found, "text"


def ids_array(ids: Sequence[Any] | Ids, kind: str | None) -> Array:
    """Ids as answers have them: (n,) int64, or objects, str or UUID."""
    if kind in (None, "integer"):
        return np.asarray(ids, dtype=np.int64)
    out = np.empty(len(ids), dtype=object)
    out[:] = [UUID(each) for each in ids] if kind == "uuid" else ids
    return out


def typed_ids(values: Iterable[Any], kind: str | None) -> list[Any]:
    """Ids that come as text, or as numbers that text looks like, as a collection of this kind has them."""
    made: Callable[[str], Any] = str if kind == "text" else UUID if kind == "uuid" else _typed_integer
    found = []
    for each in values:
        try:
            found.append(made(str(each)))
        except ValueError as error:
            what = f"{each!r} cannot be an id of the collection: its ids are {KINDS[kind]}."
            raise InvalidInput(what) from error
    return found


def _typed_integer(text: str) -> int:
    if not _DIGITS.fullmatch(text):  # of int, 1_0 is 10
        raise ValueError
    return int(text)


# ---- Records

HEAD_ROWS = 100  # that tell which column has the vectors
BATCH_ROWS = 4096  # of text, parsed before their vectors become an array


@dataclass(frozen=True, eq=False)
class Records:
    """Rows with vectors, ids and metadata; records[start:stop] reads some of them into memory.

    X : (n, D), an array, memory-mapped if the file can be, or rows that are read by slices: X[:] is all
    ids : (n,) int64, or a list of texts or of UUIDs; None for none
    metadata : n dicts, which are made when they are read if the rows come from a table; None for none
    name : what messages call them
    """

    X: RowSource
    ids: AnyIds | None
    metadata: Sequence[Row] | None
    name: str

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, rows: slice) -> Records:
        ids = None if self.ids is None else self.ids[rows]
        return Records(self.X[rows], ids, None if self.metadata is None else self.metadata[rows], self.name)

    def typed(self, kind: str | None, source: PathLike) -> Records:
        """The same with ids of a kind, if they were read from a file of text, where 1 may be an integer."""
        untyped = kind is not None and str(source).lower().endswith((".csv", ".txt"))
        if not untyped or self.ids is None or isinstance(self.ids, list) != (kind == "integer"):
            return self
        return replace(self, ids=typed_ids(self.ids, kind))


@dataclass(frozen=True)
class _Chosen:
    """Which columns are what. vectors : one of lists, or several of numbers; metadata : None for the rest."""

    vectors: list[Any]
    of_lists: bool
    ids: str | None
    metadata: list[str] | None

    def others(self, names: Iterable[Any]) -> list[Any]:
        """The columns of metadata among `names`."""
        taken = {*self.vectors, self.ids}
        return [name for name in names if name not in taken] if self.metadata is None else self.metadata


@dataclass(frozen=True)
class _Wanted:
    """The columns that are named, as in read_records."""

    vectors: str | None
    ids: str | None
    metadata: list[str] | None


def read_records(
    source: Any, *, vectors: str | None = None, ids: str | None = None,
    metadata: Sequence[str] | str | None = None,
) -> Records:  # fmt: skip
    """The rows of a file, frame or list with their vectors, ids and metadata.

    source : a path of one of the files above, "docs.parquet:embedding" for a column of it, "digits"; a frame
        of pandas or polars, a table of pyarrow, a list of dicts, a dict of columns, an array.
    vectors : the column of vectors, or "x,y,z", those of their numbers; None for the only one that holds
        equally long lists of numbers or, if all columns are numbers, for all of them.
    ids : the column of ids, integers, text or UUIDs, each once; None for none.
    metadata : the columns of metadata; None for all others, () for none.
    """
    listed = [metadata] if isinstance(metadata, str) else metadata
    wanted = _Wanted(vectors, ids, None if listed is None else list(listed))
    if isinstance(source, str | os.PathLike):
        return _read_file(os.fspath(source), wanted)
    columns = columns_of(source)
    if columns is not None:
        return _from_table(columns, f"the {type(source).__name__}", wanted, _index_of(source))
    if isinstance(source, list | tuple) and any(isinstance(row, Mapping) for row in source[:1]):
        return _from_rows(iter(source), "the list", wanted)
    return _vectors_alone(open_rows(source), "X", wanted)


def records_of(source: Any, *, vectors: str | None = None, ids: Any = None, metadata: Any = None) -> Records:
    """Rows as `read_records` has them, whose ids and metadata may also lie beside them.

    ids : the name of their column, the ids themselves, or a file of them. metadata : the names of columns, or
    rows, a frame or a file, one row for each; what in them is the vectors is left out.
    """
    names = isinstance(metadata, str) or (
        isinstance(metadata, list | tuple) and all(isinstance(each, str) for each in metadata)
    )
    if is_file(metadata):
        metadata, names = read_table(metadata), False
    if is_file(ids):
        name, ids = str(ids), read_ids(ids)
        refuse_repeats(ids, name)
    rows = isinstance(source, list) and source and isinstance(source[0], dict)
    numbers = isinstance(source, np.ndarray) and not source.dtype.hasobject
    of_ids, beside = ids if isinstance(ids, str) else None, metadata is not None and not names
    columns: Any = () if beside else metadata
    if not numbers and (isinstance(source, str | os.PathLike) or rows or columns_of(source) is not None):
        found = read_records(source, vectors=vectors, ids=of_ids, metadata=columns)
    else:
        X = _two_dimensional(source if numbers else as_rows(source))
        found = _vectors_alone(X, "X", _Wanted(vectors, of_ids, columns))
        names = names and bool(metadata)  # without columns, [] are rows
    if ids is not None and not isinstance(ids, str):
        in_order = isinstance(ids, list) or getattr(ids, "ndim", 0) > 0
        found = replace(found, ids=ids if in_order else _listed(ids, "ids"))
    if metadata is not None and not names:
        listed = metadata_rows(metadata, len(found))
        found = replace(found, metadata=without_vectors(listed, found.X))
    for what, each in (("ids", found.ids), ("metadata", found.metadata)):
        if each is not None and len(each) != len(found):
            raise InvalidInput(
                f"there are {len(each):,} {what} for the {len(found):,} rows of {found.name}: give one for "
                "each."
            )
    return found


def _two_dimensional(source: Any) -> Array:
    X = as_array(source)
    if X.ndim != 2:
        raise InvalidInput(f"X must be rows of numbers, (n, D), got shape {X.shape} of {X.dtype}.")
    return X


def is_file(source: Any) -> bool:
    """Whether it names a file, and not a column."""
    return isinstance(source, os.PathLike) or (
        isinstance(source, str) and bool(Path(source).suffix) and Path(source).is_file()
    )


def ids_within(metadata: Any, field: str) -> tuple[list[Any], list[Row]]:
    """The ids that rows of metadata have as a field, and the rows without it."""
    columns = columns_of(metadata)
    n = len(metadata) if columns is None else max(map(len, columns.values()), default=0)
    rows = [dict(row) for row in metadata_rows(metadata, n)]
    for number, row in enumerate(rows):
        if field not in row:
            there = ", ".join(map(repr, row)) or "none"
            raise InvalidInput(f"row {number} has no field {field!r}, the id of its item; it has {there}.")
    return [row.pop(field) for row in rows], rows


def _read_file(name: str, wanted: _Wanted) -> Records:
    if is_digits(name):
        return _vectors_alone(read_data(name), name, wanted)
    source, key = split_key(name, wanted.vectors)
    wanted, suffix = replace(wanted, vectors=key), source.suffix.lower()
    if suffix == ".parquet" or source.is_dir():
        return _from_parquet(source, wanted)
    check_there(source)
    if suffix == ".csv":
        return _from_rows(_csv_cells(source), name, wanted, in_file=True, of_text=True)
    if suffix in ROW_FILES:
        return _from_rows(ROW_FILES[suffix](source), name, wanted, in_file=True)
    if suffix in ARROW_FILES:
        table = read_arrow(source)
        return _from_table(columns_of(table) or {}, name, wanted, _index_of(table))
    if suffix not in VECTOR_FILES:
        raise unknown_extension(source, *VECTOR_FILES, *ROW_FILES, *ARROW_FILES)
    X = open_rows(name) if suffix in (".h5", ".hdf5") else read_vectors(source, key=key)
    return _vectors_alone(X, name, replace(wanted, vectors=None))


def _vectors_alone(X: RowSource, name: str, wanted: _Wanted) -> Records:
    column = wanted.vectors or wanted.ids or wanted.metadata
    if column:
        raise InvalidInput(f"{name} holds only vectors, without columns, so there is no column {column!r}.")
    return Records(X, None, None, name)


def _choose(
    name: str, names: list[Any], head: list[Row], wanted: _Wanted, index: Sequence[Any] = ()
) -> _Chosen:
    """Find what is in which column. names : of the columns; head : the first rows; index : of pandas."""
    named, ids, metadata = wanted.vectors, wanted.ids, wanted.metadata
    vectors = [] if named is None else [named] if named in names else named.split(",")
    for column in (*vectors, ids):
        if column is not None and column not in names:
            raise _no_column(name, column, names)
    if ids is not None and ids in vectors:
        raise InvalidInput(f"column {ids!r} of {name} cannot be both vectors and ids.")
    for column, what in (*((each, "vectors") for each in vectors), (ids, "ids")):
        if column is not None and column in (metadata or ()):
            raise InvalidInput(f"column {column!r} of {name} holds the {what}: leave it out of the metadata.")
    if vectors:
        return _Chosen(vectors, len(vectors) == 1, ids, metadata)
    taken = {ids, *(metadata or ()), *index}
    rest = [column for column in names if column not in taken and not is_index(column)]
    lists = [column for column in rest if any(_is_vector(row.get(column)) for row in head)]
    if len(lists) > 1:  # lists of tags, say, are not equally long
        lists = [column for column in lists if _equally_long([row.get(column) for row in head])] or lists
    if len(lists) > 1:
        raise InvalidInput(
            f"{name} has several columns of lists of numbers: {_shown(lists)}. Name the one with vectors "
            "(vectors_column, --vectors-column)."
        )
    if lists:
        return _Chosen(lists, True, ids, metadata)
    numbers = [column for column in rest if all(_is_number(row.get(column)) for row in head)]
    if rest and numbers == rest:
        return _Chosen(rest, False, ids, metadata)
    remedy = " Name the columns of metadata (metadata, --metadata-columns) and of ids, so that the numbers "
    remedy += f"of a vector remain; or name these, as in vectors_column={','.join(map(str, numbers[:3]))!r} "
    remedy += "(--vectors-column)."
    raise InvalidInput(
        f"{name} has no column of vectors: none of {_shown(names)} holds equally long lists of numbers, and "
        f"not all are numbers.{remedy if numbers else ''}"
    )


def _no_column(name: str, column: str, names: Iterable[Any]) -> InvalidInput:
    near = nearest(column, [each for each in names if isinstance(each, str)])
    return InvalidInput(f"{name} has no column {column!r}; it has {_shown(names)}.{near}")


def _shown(names: Iterable[Any]) -> str:
    some = list(map(repr, islice(names, 21)))
    return ", ".join([*some[:20], "…"] if len(some) > 20 else some) or "none"


def _is_vector(value: Any) -> bool:
    some = isinstance(value, VECTORS) and getattr(value, "ndim", 1) > 0 and len(value) > 0
    return some and all(map(_is_number, value))


def _is_number(value: Any) -> bool:
    """Whether it is a number, and no integer that is beyond all floats."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return isinstance(value, float | np.integer | np.floating)


def _cell_shown(value: Any) -> str:
    """What is no number, for a message; Python refuses to write integers of thousands of digits."""
    return f"an integer of {value.bit_length()} bits" if type(value) is int else repr(value)


def _equally_long(values: list[Any]) -> bool:
    return all(map(_is_vector, values)) and len(set(map(len, values))) == 1


def _from_table(columns: Columns, name: str, wanted: _Wanted, index: Sequence[Any]) -> Records:
    """The records in columns in memory, of which some are an index of pandas."""
    n = max(map(len, columns.values()), default=0)
    if n == 0:
        raise InvalidInput(f"{name} has no rows.")
    short = next((column for column, values in columns.items() if len(values) != n), None)
    if short is not None:
        raise InvalidInput(f"column {short!r} of {name} has {len(columns[short])} values, others have {n}.")
    rows = TableRows.of(columns, n)
    chosen = _choose(name, rows.names, rows[:HEAD_ROWS], wanted, index)
    metadata = _metadata_of(rows, chosen, name)
    if chosen.of_lists:
        what = _of(name, chosen.vectors[0])
        X = _checked_vectors(as_rows(columns[chosen.vectors[0]], what), what)
    else:
        X = _numbers([columns[column] for column in chosen.vectors], name, chosen.vectors)
    ids = None if chosen.ids is None else _ids_of(_values(columns[chosen.ids], 0, n), name, chosen.ids)
    return Records(X, ids, metadata, name)


def _metadata_of(rows: TableRows, chosen: _Chosen, name: str) -> TableRows | None:
    others = chosen.others(rows.names)
    for column in others:
        if column not in rows.names:
            raise _no_column(name, column, rows.names)
    return rows.only(others) if others else None


def _of(name: str, column: Any) -> str:
    return f"column {column!r} of {name}"


def _ids_of(values: list[Any], name: str, column: str) -> AnyIds:
    ids = checked_ids(values, _of(name, column))
    refuse_repeats(ids, _of(name, column))
    return ids


def _checked_vectors(X: Any, what: str) -> Array:
    """Rows that as_rows or stacked has made."""
    if not isinstance(X, np.ndarray) or X.ndim != 2 or X.dtype.kind not in "biuf":
        raise InvalidInput(f"{what} holds no vectors; expected equally long lists of numbers.")
    return X


def _numbers(columns: list[Any], name: str, names: list[Any]) -> Array:
    """Columns of numbers as the columns of an array."""
    arrays = []
    for column, values in zip(names, columns):
        found = np.asarray(values)
        if found.dtype.kind not in "iuf" or (found.dtype.kind == "f" and np.isnan(found).any()):
            listed = _values(values, 0, len(values))
            row = next((row for row, each in enumerate(listed) if not _is_number(each)), 0)
            shown = _cell_shown(listed[row])
            raise InvalidInput(f"{_of(name, column)} has {shown} in row {row}; expected numbers.")
        arrays.append(found)
    return np.stack(arrays, axis=1)


def _from_parquet(source: Path, wanted: _Wanted) -> Records:
    """The records in a Parquet file or a folder of them; all but the ids is read later, by slices."""
    paths, name = parquet_files(source), str(source)
    rows = _parquet_rows(paths)
    if not len(rows):
        raise InvalidInput(f"{name} has no rows.")
    index = ParquetColumns(paths[0]).index
    chosen = _choose(name, rows.names, rows[:HEAD_ROWS], wanted, index)
    metadata = _metadata_of(rows, chosen, name)
    X = ParquetRows(paths, chosen.vectors[0]) if chosen.of_lists else ParquetRows(paths, None, chosen.vectors)
    if chosen.ids is None:
        return Records(X, None, metadata, name)
    batches = ParquetStream([ParquetColumns(path, [chosen.ids]) for path in paths]).pieces(0, len(rows))
    ids = [each for batch in batches for each in _values(batch.column(0), 0, len(batch))]
    return Records(X, _ids_of(ids, name, chosen.ids), metadata, name)


def _from_rows(
    rows: Iterator[Any], name: str, wanted: _Wanted, *, in_file: bool = False, of_text: bool = False
) -> Records:
    """The records in rows that come one after another. of_text : values are cells of a .csv."""
    head = list(islice(rows, HEAD_ROWS))
    _refuse_others(head, 0, name)
    if not head:
        raise InvalidInput(f"{name} has no rows.")
    read = [{key: _csv_value(cell) for key, cell in row.items()} for row in head] if of_text else head
    seen = dict.fromkeys(chain.from_iterable(head))
    chosen = _choose(name, list(seen), read, wanted)
    parts: list[Array] = []
    ids: list[Any] = []
    kept: list[Row] = []
    rows, first = chain(head, rows), 0
    while batch := list(islice(rows, BATCH_ROWS)):
        _refuse_others(batch, first, name)
        seen.update(dict.fromkeys(chain.from_iterable(batch)))
        X = _vectors_in(batch, chosen, name, first, parts[0].shape[1] if parts else 0, of_text)
        if in_file and np.isinf(X).any():  # what JSON reads 1e400 as, though it has no infinity
            row = first + int(np.isinf(X).any(axis=1).argmax())
            raise InvalidInput(f"{name} has a number in row {row} that is infinite or too large.")
        parts.append(_smaller(X) if in_file else X)
        ids += [] if chosen.ids is None else [row.get(chosen.ids) for row in batch]
        kept += _metadata_in(batch, chosen, of_text)
        first += len(batch)
    others = chosen.others(seen)
    for column in others:
        if column not in seen:
            raise _no_column(name, column, seen)
    X = parts[0] if len(parts) == 1 else np.concatenate(parts)
    found = None if chosen.ids is None else _ids_of(_from_text(ids) if of_text else ids, name, chosen.ids)
    return Records(X, found, kept if others else None, name)


def _refuse_others(rows: list[Any], first: int, name: str) -> None:
    for number, row in enumerate(rows, first):
        if not isinstance(row, Mapping):
            raise InvalidInput(f"row {number} of {name} is a {type(row).__name__}; expected a dict.")


def _smaller(X: Array) -> Array:
    """Numbers that come from text as float32, which holds what models and collections keep of them."""
    with np.errstate(over="ignore"):
        single = X.astype(np.float32) if X.dtype == np.float64 else X
    return single if np.isfinite(single).all() else X


def _vectors_in(rows: list[Row], chosen: _Chosen, name: str, first: int, width: int, of_text: bool) -> Array:
    """The vectors of some rows, from row `first` on."""
    if chosen.of_lists:
        (column,) = chosen.vectors
        what, found = _of(name, column), [row.get(column) for row in rows]
        found = [_csv_value(cell) for cell in found] if of_text else found
        return _checked_vectors(stacked(found, what, first, width), what)
    matrix = [[row.get(column) for column in chosen.vectors] for row in rows]
    if of_text:
        matrix = [list(map(_csv_value, cells)) for cells in matrix]
    for number, cells in enumerate(matrix, first):
        if not all(map(_is_number, cells)):
            column, cell = next(pair for pair in zip(chosen.vectors, cells) if not _is_number(pair[1]))
            raise InvalidInput(
                f"{_of(name, column)} has {_cell_shown(cell)} in row {number}; expected numbers."
            )
    X = np.array(matrix)
    return X.astype(np.float64) if X.dtype.hasobject else X  # integers of more than 64 bits


def _metadata_in(rows: list[Row], chosen: _Chosen, of_text: bool) -> list[Row]:
    if chosen.metadata is None:
        taken = {*chosen.vectors, chosen.ids}
        found = [{key: value for key, value in row.items() if key not in taken} for row in rows]
    else:
        found = [{key: row[key] for key in chosen.metadata if key in row} for row in rows]
    return [{key: _cell(cell) for key, cell in row.items()} for row in found] if of_text else found


def _csv_value(cell: str | None) -> Any:
    """A cell that may be a vector."""
    if cell is None or not cell.startswith("["):
        return None if cell is None else _cell(cell)
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        pass
    try:  # as NumPy prints short vectors, and so pandas writes them: [0.1 0.2]
        return [float(number) for number in cell.removeprefix("[").removesuffix("]").split()]
    except ValueError:
        return cell
