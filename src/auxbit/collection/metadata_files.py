"""Metadata in files: one row an item, in the order of the items.

.jsonl .ndjson    an object a line, null for an item without
.json             a list of objects
.csv              a header line; numbers, true and false become what they are, empty cells are left out
.parquet          a row an item, nulls are left out  (extra `data`)
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from auxbit.collection.metadata import Row
from auxbit.errors import DataFileError
from auxbit.extras import require

_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", re.ASCII)  # as in JSON: 007 is text


def read_table(path: str | os.PathLike[str]) -> list[Row]:
    """The rows of a file of metadata, by its extension."""
    source = Path(path)
    reader = _READERS.get(source.suffix.lower())
    if reader is None:
        known = ", ".join(_READERS)
        raise DataFileError(f"{source} has the unknown extension {source.suffix!r}. Known: {known}.")
    return reader(source)


def read_jsonl(path: str | os.PathLike[str]) -> list[Row]:
    """The rows of a file with one JSON object a line."""
    source = Path(path)
    rows = []
    for number, line in enumerate(_text(source).rstrip().split("\n"), 1):
        if not line.strip():
            raise DataFileError(f"{source}, line {number} is empty. Write {{}} for an item without metadata.")
        rows.append(_object(_parsed(line, source, number), f"{source}, line {number}"))
    return rows


def read_json(path: str | os.PathLike[str]) -> list[Row]:
    """The rows of a file that is one JSON list of objects."""
    source = Path(path)
    content = _parsed(_text(source), source)
    if not isinstance(content, list):
        raise DataFileError(f"{source} holds no list; expected a list of objects, one an item.")
    return [_object(row, f"{source}, entry {number}") for number, row in enumerate(content)]


def read_csv(path: str | os.PathLike[str]) -> list[Row]:
    """The rows of a file with a header line and commas."""
    source = Path(path)
    lines = csv.reader(io.StringIO(_text(source).rstrip("\r\n"), newline=""), strict=True)
    rows = []
    try:
        names = _checked_names(source, next(lines, []))
        for cells in lines:
            if len(cells) != len(names):
                raise DataFileError(
                    f"{source}, line {lines.line_num} has {len(cells)} cells, the header {len(names)}. "
                    "Give every item a line with a cell for each field, empty where it has none."
                )
            rows.append({name: _cell(cell) for name, cell in zip(names, cells) if cell})
    except csv.Error as error:
        raise DataFileError(f"{source}, line {lines.line_num}: {error}.") from error
    return rows


def read_parquet(path: str | os.PathLike[str]) -> list[Row]:
    """The rows of a Parquet file."""
    source = Path(path)
    parquet = require("pyarrow.parquet", extra="data", purpose="reading .parquet files")
    try:
        with parquet.ParquetFile(source) as file:
            batches = [batch.to_pylist() for batch in file.iter_batches()]
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise DataFileError(f"{source} cannot be read: {error}") from error
    return [
        {name: cell for name, cell in row.items() if cell is not None} for rows in batches for row in rows
    ]


_READERS: dict[str, Callable[[Path], list[Row]]] = {
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".json": read_json,
    ".csv": read_csv,
    ".parquet": read_parquet,
}


def _text(source: Path) -> str:
    try:
        content = source.read_bytes()
    except OSError as error:
        raise DataFileError(f"{source} cannot be read: {error.strerror}.") from error
    if not content:
        raise DataFileError(f"{source} is empty (0 bytes).")
    try:
        return content.decode("utf-8-sig")  # spreadsheets write a mark in front
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataFileError(f"{source}, line {line} is not UTF-8 text. Save the file as UTF-8.") from error


def _parsed(text: str, source: Path, line: int | None = None) -> Any:
    """The JSON value `text`, which is one line of the file or all of it."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        at = f"{source}, line {(line or 1) + error.lineno - 1}, column {error.colno}"
        raise DataFileError(f"{at} is not JSON: {error.msg}.") from error
    except (ValueError, RecursionError) as error:
        raise DataFileError(f"{source}{f', line {line}' if line else ''}: {error}.") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON, write null")


def _object(value: Any, place: str) -> Row:
    if value is not None and not isinstance(value, dict):
        raise DataFileError(f"{place} is {json.dumps(value)[:60]}; expected an object, or null.")
    return value or {}


def _checked_names(source: Path, header: list[str]) -> list[str]:
    names = [name.strip() for name in header]
    if not names:
        raise DataFileError(f"{source} has no header line. Its first line is to name the fields.")
    unnamed = next((number for number, name in enumerate(names, 1) if not name), None)
    if unnamed is not None:
        raise DataFileError(
            f"{source}, line 1: column {unnamed} has no name. With pandas, write index=False."
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataFileError(f"{source}, line 1: two columns are named {twice!r}.")
    return names


def _cell(cell: str) -> Any:
    """A cell as a condition of `where` would read it, so that field=cell finds it."""
    if cell in ("true", "false") or (_NUMBER.fullmatch(cell) and math.isfinite(float(cell))):
        return json.loads(cell)
    return cell
