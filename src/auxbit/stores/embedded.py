"""Stores that this process opens itself, in a file or a folder, without a server: what they share."""

from __future__ import annotations

import json
import shutil
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from auxbit.core.checks import Array, Ids, Packed, require
from auxbit.core.maps import bytes_per_code
from auxbit.core.parallel import block_slices
from auxbit.data.where import Where
from auxbit.errors import AuxbitError, FileProblem, InvalidInput, InvalidParameter, StoreError
from auxbit.index.codes import check_ids
from auxbit.stores.base import DEFAULT_NAME, PLAIN_NAME, Address, Found, Rows, Store, parse, sought_ids

MANY_IDS = 8192  # in one statement


class EmbeddedStore(Store):
    """A store in a file or folder, opened when it is first needed and made by `create`."""

    batch_rows = 65_536
    program: ClassVar[str]  # its name, for people

    def __init__(self, url: str | Address, name: str = DEFAULT_NAME) -> None:
        super().__init__(url if isinstance(url, Address) else parse(url), name)
        if not isinstance(name, str) or not PLAIN_NAME.fullmatch(name):
            raise InvalidParameter("name", name, "up to 63 letters, digits and _, not a digit first")
        self._path = Path(self.address.text).absolute()
        if not self._path.parent.is_dir():
            raise FileProblem(f"{self._path} cannot be made: there is no folder {self._path.parent}.")
        self._driver()
        self._opened: Any = None
        self._is_new = False  # the file or folder was not there before

    @property
    def _engine(self) -> Any:
        if self._opened is None:
            self._is_new = not self._path.exists()
            try:
                with self._translated():
                    self._opened = self._open()
            except BaseException:
                if self._is_new:
                    self._remove()  # what was made by half could not be opened again
                raise
        return self._opened

    def close(self) -> None:
        """Close the file or folder."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise errors of ours instead of the driver's."""
        try:
            yield
        except AuxbitError:
            raise
        except self._errors() as error:
            text = " ".join(str(error).split())[:300]
            raise StoreError(f"{self.address.shown}: {self.program} says: {text}") from None

    def _find(self) -> dict[str, Any] | None:
        """What is not there is not opened, since that would make it."""
        there = self._opened is not None or (self._path.exists() and self._has_content())
        return super()._find() if there else None

    def _has_content(self) -> bool:
        return self._path.is_dir() or self._path.stat().st_size > 0

    def _drop(self, present: dict[str, Any]) -> None:
        """Remove the table, and the file or folder, too, if this object made it."""
        self._drop_table()
        if not self._is_new:
            return
        self.close()
        self._remove()
        self._is_new = False

    def _remove(self) -> None:
        if self._path.is_dir():
            shutil.rmtree(self._path)
        else:
            self._path.unlink(missing_ok=True)

    def delete(self, ids: npt.ArrayLike) -> int:
        """Delete rows by id; returns how many there were."""
        _ = self._known()
        there = np.array([row[0] for row in self._by_id(check_ids(ids))], dtype=np.int64)
        for some in block_slices(len(there), MANY_IDS):
            self._delete(listed(there[some]))
        return len(there)

    def metadata(self, ids: npt.ArrayLike) -> list[dict[str, Any]]:
        """The metadata of rows, {} for one that has none or is not there."""
        wanted = sought_ids(ids)
        found = {row[0]: json.loads(row[1]) for row in self._by_id(wanted, "metadata")}
        return [found.get(each, {}) for each in wanted.tolist()]

    def _by_id(self, ids: Ids, *columns: str) -> list[tuple[Any, ...]]:
        """The id and other columns of the rows with these ids, of which some may be missing."""
        unique, found = np.unique(ids[ids >= 0]), list[tuple[Any, ...]]()
        for some in block_slices(len(unique), MANY_IDS):
            found += self._select(["id", *columns], listed(unique[some]))
        return found

    def _refuse_known(self, rows: Rows) -> None:
        """Refuse rows of which one is there."""
        if known := self._by_id(rows.ids):
            raise InvalidInput(
                f"id {known[0][0]} is already in {self.name!r}; nothing was added. upsert=True replaces its "
                "row."
            )

    @abstractmethod
    def _driver(self) -> Any:
        """The module that opens the file, or an error that names the extra."""

    @abstractmethod
    def _errors(self) -> tuple[type[Exception], ...]:
        """What it raises."""

    @abstractmethod
    def _open(self) -> Any:
        """Open the file or folder, which is made if it is not there."""

    @abstractmethod
    def _drop_table(self) -> None:
        """Remove the table."""

    @abstractmethod
    def _delete(self, condition: str) -> None:
        """Delete the rows that fulfil a condition of SQL."""

    @abstractmethod
    def _select(self, columns: list[str], condition: str) -> list[tuple[Any, ...]]:
        """Columns of the rows that fulfil a condition of SQL."""


class SqlStore(EmbeddedStore):
    """An embedded store that is asked by SQL.

    Its columns are id, code, vector if there are vectors, both as bytes, and metadata, text of JSON. A
    subclass says how statements are run, how codes are compared and how rows come in.
    """

    distance: ClassVar[str]  # of the column code to a query, ?, as SQL
    source: ClassVar[str] = "{table}"  # what stands after FROM

    @property
    def table(self) -> str:
        """Its name as SQL has it: one that is a keyword has to be quoted."""
        return f'"{self.name}"'

    @property
    def _from(self) -> str:
        return self.source.format(table=self.table)

    def count(self, where: Any = None) -> int:
        """How many rows there are, or have the metadata that `where` asks for."""
        _ = self._known()
        condition, values = self._condition(where)
        return int(self._run(f"SELECT count(*) FROM {self._from} WHERE {condition}", values)[0][0])

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """What is changed inside is changed as a whole."""
        self._run("BEGIN")
        try:
            yield
            self._run("COMMIT")
        except BaseException:
            with suppress(StoreError):  # after an error of the disk a database has undone it already
                self._run("ROLLBACK")
            raise

    def _drop_table(self) -> None:
        self._run(f"DROP TABLE {self.table}")

    def _delete(self, condition: str) -> None:
        self._run(f"DELETE FROM {self.table} WHERE {condition}")

    def _select(self, columns: list[str], condition: str) -> list[tuple[Any, ...]]:
        return self._run(f"SELECT {', '.join(columns)} FROM {self._from} WHERE {condition}")

    def _condition(self, where: Any) -> tuple[str, list[Any]]:
        """What stands after WHERE, and its values: rows are judged as a Collection judges them, by Python."""
        return ("1 = 1", []) if where is None else Where.of(where).judged()

    def _nearest(self, queries: Packed, k: int, where: Any, column: str = "") -> list[Found]:
        return self._hits(queries, where, column, f"ORDER BY distance, id LIMIT {k}")

    def _within(self, queries: Packed, r: int, where: Any) -> list[Found]:
        return self._hits(queries, where, "", f"WHERE distance <= {r} ORDER BY distance, id")

    def _hits(self, queries: Packed, where: Any, column: str, rest: str) -> list[Found]:
        """What each query finds, by a scan of all codes."""
        (condition, values), extra = self._condition(where), f", {column}" if column else ""
        distance = self.distance.format(width=bytes_per_code(self.n_bits))
        inner = f"SELECT id, {distance} AS distance{extra} FROM {self._from} WHERE {condition}"
        statement = f"SELECT id, distance{extra} FROM ({inner}) AS every {rest}"
        return [self._found(self._run(statement, [each.tobytes(), *values]), column) for each in queries]

    def _found(self, rows: list[tuple[Any, ...]], column: str) -> Found:
        ids = np.array([row[0] for row in rows], dtype=np.int64)
        distances = np.array([row[1] for row in rows], dtype=np.int32)
        if not column:
            return Found(distances, ids)
        in_code, in_vector = (np.uint8, bytes_per_code(self.n_bits)), (np.float32, self.n_features or 0)
        dtype, width = in_code if column == "code" else in_vector
        values = np.frombuffer(b"".join(row[2] for row in rows), dtype=dtype)
        return Found(distances, ids, values.reshape(len(rows), width))

    @abstractmethod
    def _run(self, statement: str, values: Any = ()) -> list[tuple[Any, ...]]:
        """Run a statement with its values; returns all rows of what it finds."""


def literal(text: str) -> str:
    """A text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"


def listed(ids: Ids) -> str:
    """A condition for these ids, as SQL."""
    return f"id IN ({', '.join(map(str, ids.tolist()))})"


def arrow_rows(rows: Rows) -> Any:
    """Rows as a pyarrow.Table of the columns of an SqlStore."""
    arrow = require("pyarrow", extra="data", purpose="this store")
    texts = ["{}"] * len(rows) if rows.texts is None else [text.decode() for text in rows.texts]

    def binary(values: Array) -> Any:
        buffer = arrow.py_buffer(np.ascontiguousarray(values).tobytes())
        size = values.shape[1] * values.itemsize
        return arrow.FixedSizeBinaryArray.from_buffers(arrow.binary(size), len(values), [None, buffer])

    columns = {"id": arrow.array(rows.ids), "code": binary(rows.codes)}
    if rows.vectors is not None:
        columns["vector"] = binary(rows.vectors)
    return arrow.table(columns | {"metadata": arrow.array(texts, arrow.string())})
