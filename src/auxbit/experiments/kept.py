"""Rows of an experiment: kept as JSON lines as they finish, so that it can go on after a stop; or as CSV."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit import files

Row = dict[str, Any]
Cell = tuple[str, int, int]

BLOCK_BYTES = 1 << 24


class KeptRows:
    """The rows in `path` that were made with the same settings; rows of other settings stay in the file."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.key = files.checksum([json.dumps(settings, sort_keys=True).encode()])[:16]

    def read(self) -> dict[Cell, Row]:
        """What is finished, by (method, bits, seed); a line cut short by a crash is passed over."""
        rows: dict[Cell, Row] = {}
        if not self.path.exists():
            return rows
        for line in self.path.read_text(errors="replace").splitlines():
            try:
                kept = json.loads(line)
                if kept["key"] == self.key:
                    row = kept["row"]
                    rows[row["method"], row["bits"], row["seed"]] = row
            except (ValueError, KeyError, TypeError):
                continue
        return rows

    def add(self, row: Row) -> None:
        """Append a row and see it to the disk."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a line was cut short
                    file.write(b"\n")
            file.write(json.dumps({"key": self.key, "row": row}).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table as CSV, with the columns of its rows in order of appearance; None is left empty."""
    text = io.StringIO()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def array_checksum(X: npt.NDArray[Any]) -> str:
    """SHA-256 of the values, shape and type of an array, read in blocks of rows."""
    step = max(1, BLOCK_BYTES // max(1, X[:1].nbytes))
    blocks = (np.ascontiguousarray(X[start : start + step]).tobytes() for start in range(0, len(X), step))
    content = files.checksum(blocks)
    return files.checksum([f"{X.shape} {X.dtype.str} {content}".encode()])
