"""Tables of rows that are not in memory, and what a fit asks of them. Here: rows that this process reads.

dask_table.py has rows on a cluster.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from auxbit.blocks import Workers
from auxbit.codes import Packed
from auxbit.mac.checkpoint import CONTENT
from auxbit.mac.code_files import CodePair
from auxbit.mac.local_passes import LocalPasses
from auxbit.mac.scaled_rows import ScaledRows
from auxbit.mac.summed_rows import Passes
from auxbit.maps import Float32, Scaling
from auxbit.memory_budget import Budget
from auxbit.row_source import RowSource, fingerprint, take_rows

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]


class CodesOf(Protocol):
    """What makes first codes."""

    def __call__(self, raw: Array, places: Ids) -> Packed:
        """The codes of rows as they came, whose numbers in the table are `places`."""

    def part(self, start: int, stop: int) -> CodesOf:
        """The same, for no more than the rows start..stop of the table: what another machine needs of it."""


class TablePasses(Passes, Protocol):
    """Passes over the rows of a table that are not held out, with their codes."""

    count: int
    truth: Ids | None  # (q, K) the true neighbours of validation queries

    def fill(self, codes_of: CodesOf) -> None:
        """Let codes be made of rows as they came and their numbers in the table. A pass."""

    def nearest(self, queries: Float32, k: int) -> Ids:
        """The k nearest rows to each query, (q, k). A pass."""

    def places(self, rows: Ids) -> Ids:
        """The numbers in the table of these rows."""

    @property
    def present(self) -> int:
        """Which of two files the codes are in."""

    def sync(self) -> None:
        """Make the codes durable, where they are in a file."""


class Table(Protocol):
    """Rows somewhere."""

    @property
    def shape(self) -> tuple[int, int]:
        """(n, D)."""

    def about(self) -> dict[str, Any]:
        """What tells this table from another: a fit that goes on must have the same."""

    def measure(self, normalize: bool, held_out: Ids | None) -> Scaling:
        """Mean and range of all rows; refuses what is not finite. A pass.

        held_out : those that passes will leave out, as a table may lay out its shards by them.
        """

    def take(self, rows: Ids) -> Array:
        """These rows, rising, as they came."""

    def passes(
        self, scaling: Scaling, held_out: Ids | None, n_bits: int, folder: Path | None, present: int
    ) -> TablePasses:
        """Passes over the rows that are not held out; codes in files of `folder`, if one is given."""


class LocalTable:
    """Rows that this process reads by slices."""

    def __init__(self, source: RowSource, budget: Budget, workers: Workers) -> None:
        self._source, self._budget, self._workers = source, budget, workers
        self.shape = (len(source), int(source.shape[1]))

    def about(self) -> dict[str, Any]:
        rows, columns = self.shape
        about = {
            "number of rows": rows,
            "number of columns": columns,
            "type of numbers": str(self._source.dtype),
        }
        return about | {CONTENT: fingerprint(self._source)}

    def measure(self, normalize: bool, held_out: Ids | None) -> Scaling:
        return Scaling.measure(self._source, self._workers, normalize=normalize)

    def take(self, rows: Ids) -> Array:
        return take_rows(self._source, rows)

    def passes(
        self, scaling: Scaling, held_out: Ids | None, n_bits: int, folder: Path | None, present: int
    ) -> LocalPasses:
        rows = ScaledRows(self._source, scaling, held_out)
        row_bytes = 4 * self.shape[1] + 9 * n_bits  # of the sample: a row, two scores and a label a bit
        sampled = self._budget.rows_of(row_bytes, 0.2, most=2**20)
        return LocalPasses(rows, CodePair(len(rows), n_bits, folder, present), self._workers, sampled)
