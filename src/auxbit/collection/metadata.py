"""Metadata: one JSON object per item, kept as text end to end, read back by row or by field.

offsets : (n+1,) int64
text    : (bytes,) uint8; row i is the UTF-8 JSON text[offsets[i]:offsets[i+1]], empty without metadata
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path, PurePath
from types import NoneType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from auxbit.core.checks import PathLike
from auxbit.data.vectors import explained, open_parquet, parquet_batches
from auxbit.errors import DataFileError, InvalidInput

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
            return f"{shown} is not JSON ({type(value).__name__})"
    for each in inner:
        why = problem(each, fine, depth + 1)
        if why:
            return why
    return ""


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
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _iso(moment: np.datetime64 | date) -> str:
    day: Any = moment
    if isinstance(moment, np.datetime64):
        coarser = moment.astype("M8[us]")  # Python knows no finer dates, and no years beyond 9999
        day = moment.item() if isinstance(moment.item(), date) or coarser != moment else coarser.item()
    return str(day.isoformat() if isinstance(day, date) else moment)


ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",\n", ":"), default=_python)


Offsets = npt.NDArray[np.int64]
Text = npt.NDArray[np.uint8]
Row = dict[str, Any]

CHUNK_ROWS = 2**14
CHUNK_BYTES = 2**23  # of text: as Python objects it takes about ten times as much


# ---- Rows to text


def encode_rows(rows: Any, n: int) -> tuple[Offsets, Text]:
    """Return `offsets` (n+1,) and `text` of n rows of metadata.

    rows : n mappings, or None for an item without; or a mapping of fields to n values each; or None
    """
    offsets = np.zeros(n + 1, dtype=np.int64)
    if rows is None:
        return offsets, np.zeros(0, dtype=np.uint8)
    take = _by_columns(rows, n) if isinstance(rows, Mapping) else _by_rows(rows, n)
    parts = []
    for first in range(0, n, CHUNK_ROWS):
        encoded = _encode_chunk(take(slice(first, first + CHUNK_ROWS)), first)
        offsets[first + 1 : first + 1 + len(encoded)] = np.fromiter(map(len, encoded), dtype=np.int64)
        parts.append(b"".join(encoded))
    np.cumsum(offsets, out=offsets)
    return offsets, np.frombuffer(b"".join(parts), dtype=np.uint8)


def _encode_chunk(rows: list[Any], first: int) -> list[bytes]:
    try:
        _check_types(Mapping | NoneType, rows)
        plain = [row if type(row) is dict else dict(row or {}) for row in rows]
        _check_types(str, (key for row in plain for key in row))  # json would make text of others
        # no string holds a bare line end, so this splits between objects and nowhere else
        pieces = ENCODER.encode(plain)[2:-2].split("},\n{")
        if len(pieces) != len(rows):  # a value is a list of objects
            pieces = [ENCODER.encode(row)[1:-1] for row in plain]
        nested = (row for row, piece in zip(plain, pieces) if "{" in piece or "[" in piece)
        if any(problem(row, ENCODABLE, -1) for row in nested):
            raise TypeError
    except (TypeError, ValueError, RecursionError) as error:
        _name_the_problem(rows, first, error)
    return [_utf8("{" + piece.replace(",\n", ",") + "}") if piece else b"" for piece in pieces]


def _check_types(allowed: Any, values: Iterable[Any]) -> None:
    if not all(issubclass(kind, allowed) for kind in set(map(type, values))):
        raise TypeError


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # half a surrogate pair has no UTF-8, but JSON can escape it
        return json.dumps(json.loads(text), separators=(",", ":")).encode()


def _name_the_problem(rows: list[Any], first: int, error: Exception) -> NoReturn:
    for number, row in enumerate(rows, first):
        if row is not None and not isinstance(row, Mapping):
            raise InvalidInput(
                f"metadata row {number} is a {type(row).__name__}; expected a dict, or None. "
                "Of a table give its rows: frame.to_dict('records') or table.to_pylist()."
            ) from error
        for field, value in (row or {}).items():
            if not isinstance(field, str):
                raise InvalidInput(f"metadata row {number} has the field {field!r}; use text.") from error
            why = problem(value)
            if why:
                raise InvalidInput(f"metadata row {number}, field {field!r}: {why}. {REMEDY}.") from error
    raise error


def _by_rows(rows: Any, n: int) -> Callable[[slice], list[Any]]:
    listed = _listed(rows, "metadata")
    if len(listed) != n:
        raise InvalidInput(f"metadata has {len(listed)} rows for {n} items. Give one each, None for none.")
    return listed.__getitem__


def _by_columns(columns: Mapping[Any, Any], n: int) -> Callable[[slice], list[Any]]:
    lists = [_listed(values, f"metadata field {field!r}") for field, values in columns.items()]
    for field, values in zip(columns, lists):
        if len(values) != n:
            raise InvalidInput(
                f"metadata field {field!r} has {len(values)} values for {n} items. "
                "A mapping is of columns: give one value per item, or a list of rows."
            )
    if not lists:
        return ([None] * n).__getitem__
    return lambda part: [dict(zip(columns, row)) for row in zip(*(values[part] for values in lists))]


def _listed(values: Any, name: str) -> list[Any]:
    if isinstance(values, np.ndarray) and values.ndim and values.dtype.kind in "biufU":
        return list(values.tolist())
    unordered = isinstance(values, str | bytes | set | frozenset | Mapping)
    if unordered or not hasattr(values, "__iter__") or getattr(values, "ndim", 1) == 0:
        raise InvalidInput(
            f"{name} is a {type(values).__name__}; expected a list, in the order of the items."
        )
    return list(values)


# ---- Text to rows and columns


def rows_at(offsets: Offsets, text: Text, positions: npt.ArrayLike) -> list[Row]:
    """The metadata at `positions` (m,): {} for an item without, and for position -1, no item."""
    where = np.asarray(positions, dtype=np.int64)
    there = where >= 0
    starts, stops = offsets[np.where(there, where, 0)], offsets[np.where(there, where + 1, 0)]
    spans = zip(starts.tolist(), stops.tolist())
    return [json.loads(text[a:b].tobytes().decode()) if a < b else {} for a, b in spans]


@dataclass(frozen=True, eq=False)
class Column:
    """One field of n rows: its distinct values, and which of them each row has.

    values : the distinct values, in the order of their first rows
    codes  : (n,) int32 positions in `values`, -1 if the field is missing
    """

    values: list[Any]
    codes: npt.NDArray[np.int32]
    by_key: Mapping[Any, int]

    def find(self, value: Any) -> list[int]:
        """The position of `value` in `values`, nothing if no row has it."""
        code = self.by_key.get(key_of(value), -1)
        return [code] if code >= 0 else []

    @cached_property
    def numbers(self) -> tuple[list[Any], npt.NDArray[np.int64]]:
        """The numbers among `values`, rising, and their positions there; true and false are none."""
        return self._rising({int, float})

    @cached_property
    def texts(self) -> tuple[list[Any], npt.NDArray[np.int64]]:
        """The texts among `values`, rising, and their positions there."""
        return self._rising({str})

    def _rising(self, kinds: set[type]) -> tuple[list[Any], npt.NDArray[np.int64]]:
        places = [place for place, value in enumerate(self.values) if type(value) in kinds]
        places.sort(key=self.values.__getitem__)
        return [self.values[place] for place in places], np.array(places, dtype=np.int64)


_MISSING: Any = object()


class _Distinct:
    """Values numbered in the order in which they first came."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.by_key: dict[Any, int] = {_MISSING: -1}

    def number(self, values: list[Any]) -> list[int]:
        plain = set(map(type, values)) <= {*PLAIN, object}
        keys = values if plain else [each if each is _MISSING else key_of(each) for each in values]
        new = [key for key in dict.fromkeys(keys) if key not in self.by_key]
        self.by_key.update(zip(new, range(len(self.values), len(self.values) + len(new))))
        firsts = {} if plain else dict(zip(reversed(keys), reversed(values)))
        self.values += [firsts[key] for key in new] if firsts else new
        return list(map(self.by_key.__getitem__, keys))


class Fields:
    """The metadata of n rows by field. A field is parsed at its first use, and kept.

    lost : (n,) bool, rows whose text is damaged: they count as rows without metadata
    """

    def __init__(self, offsets: Offsets, text: Text, lost: npt.NDArray[np.bool_] | None = None) -> None:
        self.n = len(offsets) - 1
        self._offsets, self._text, self._lost = offsets, text, lost
        self._columns: dict[str, Column] = {}
        self._loading = threading.Lock()

    def column(self, field: str) -> Column:
        """The values of `field`; of "a.b" those of b within a, if a row has no field "a.b"."""
        self.load([field])
        return self._columns[field]

    def load(self, fields: Iterable[str]) -> None:
        """Parse several fields in one pass."""
        with self._loading:
            new = {field: _Distinct() for field in fields if field not in self._columns}
            if not new:
                return
            codes = {field: np.full(self.n, -1, dtype=np.int32) for field in new}
            for positions, rows in self.chunks():
                for field, distinct in new.items():
                    codes[field][positions] = distinct.number(_values(rows, field))
            for field, distinct in new.items():
                self._columns[field] = Column(distinct.values, codes[field], distinct.by_key)

    def chunks(self) -> Iterator[tuple[npt.NDArray[np.int64], list[Row]]]:
        """The rows that are not empty, with their positions (rows,), some at a time."""
        first = 0
        while first < self.n:
            ends = self._offsets[first : first + CHUNK_ROWS + 1]
            sizes = np.diff(ends)
            if self._lost is not None:
                sizes[self._lost[first : first + CHUNK_ROWS]] = 0
            count = max(1, int(np.searchsorted(np.cumsum(sizes), CHUNK_BYTES, side="right")))
            rows = np.flatnonzero(sizes[:count])
            if len(rows):
                start = int(ends[rows[0]])
                text = self._text[start : int(ends[rows[-1] + 1])].tobytes()
                spans = zip((ends[rows] - start).tolist(), (ends[rows + 1] - start).tolist())
                joined = b",".join([text[a:b] for a, b in spans])
                yield first + rows, json.loads(f"[{joined.decode()}]")
            first += count


def _values(rows: list[Row], field: str) -> list[Any]:
    if "." not in field:
        return [row.get(field, _MISSING) for row in rows]
    path = field.split(".")
    values = []
    for row in rows:
        value: Any = row.get(field, _MISSING)
        if value is _MISSING:
            value = row
            for part in path:
                value = value.get(part, _MISSING) if isinstance(value, dict) else _MISSING
        values.append(value)
    return values


# ---- Files: one row per item, in the order of the items
#
# .jsonl .ndjson    one object per line, null for an item without
# .json             a list of objects
# .csv              a header line; numbers, true and false become what they are, empty cells are left out
# .parquet          one row per item, nulls are left out  (extra `data`)

_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", re.ASCII)  # as in JSON: 007 is text


def read_table(path: PathLike) -> list[Row]:
    """The rows of a file of metadata, by its extension."""
    source = Path(path)
    reader = _READERS.get(source.suffix.lower())
    if reader is None:
        known = ", ".join(_READERS)
        raise DataFileError(f"{source} has the unknown extension {source.suffix!r}. Known: {known}.")
    return reader(source)


def read_jsonl(source: Path) -> list[Row]:
    """The rows of a file with one JSON object per line."""
    rows = []
    for number, line in enumerate(_text(source).rstrip().split("\n"), 1):
        if not line.strip():
            raise DataFileError(f"{source}, line {number} is empty. Write {{}} for an item without metadata.")
        rows.append(_object(_parsed(line, source, number), f"{source}, line {number}"))
    return rows


def read_json(source: Path) -> list[Row]:
    """The rows of a file that is one JSON list of objects."""
    content = _parsed(_text(source), source)
    if not isinstance(content, list):
        raise DataFileError(f"{source} holds no list; expected a list of objects, one per item.")
    return [_object(row, f"{source}, entry {number}") for number, row in enumerate(content)]


def read_csv(source: Path) -> list[Row]:
    """The rows of a file with a header line and commas."""
    lines = csv.reader(io.StringIO(_text(source).rstrip("\r\n"), newline=""), strict=True)
    rows = []
    try:
        names = _checked_names(source, next(lines, []))
        for cells in lines:
            if len(cells) != len(names):
                raise DataFileError(
                    f"{source}, line {lines.line_num} has {len(cells)} cells, the header {len(names)}. "
                    "Give every item a line with a cell for each field, empty if it has none."
                )
            rows.append({name: _cell(cell) for name, cell in zip(names, cells) if cell})
    except csv.Error as error:
        raise DataFileError(f"{source}, line {lines.line_num}: {error}.") from error
    return rows


def read_parquet(source: Path) -> list[Row]:
    """The rows of a Parquet file."""
    with explained(source), open_parquet(source) as file:
        batches = [batch.to_pylist() for _, batch in parquet_batches(source, file)]
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
