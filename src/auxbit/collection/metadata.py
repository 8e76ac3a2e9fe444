"""Metadata: one JSON object per item, kept as text end to end, read back by row or by field.

offsets : (n+1,) int64
text    : (bytes,) uint8; row i is the UTF-8 JSON text[offsets[i]:offsets[i+1]], empty without metadata
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.data.records import PLAIN, encode_metadata
from auxbit.data.records import Row as Row
from auxbit.data.records import key_of as key_of
from auxbit.data.records import to_json as to_json

Offsets = npt.NDArray[np.int64]
Text = npt.NDArray[np.uint8]

CHUNK_ROWS = 2**14
CHUNK_BYTES = 2**23  # of text: as Python objects it takes about ten times as much


# ---- Rows to text


def encode_rows(rows: Any, n: int) -> tuple[Offsets, Text]:
    """Return `offsets` (n+1,) and `text` of n rows of metadata.

    rows : n mappings, or None for an item without; or a mapping of fields to n values each; or None
    """
    encoded = [b"" if text is None else text.encode() for text in encode_metadata(rows, n)]
    offsets = np.zeros(n + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, encoded), dtype=np.int64, count=n), out=offsets[1:])
    return offsets, np.frombuffer(b"".join(encoded), dtype=np.uint8)


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
