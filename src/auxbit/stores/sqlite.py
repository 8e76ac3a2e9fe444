"""SqliteStore: codes in a table of a SQLite file, compared by sqlite-vec's vec_distance_hamming.

The file is opened by apsw, since the sqlite3 of many Pythons can load no extension. The mark is a comment in
the text of CREATE TABLE, which SQLite keeps.
"""

from __future__ import annotations

import re
from typing import Any

from auxbit.core.checks import require
from auxbit.data.where import Where, judge
from auxbit.errors import FileProblem
from auxbit.stores.base import MARK, Progress, Rows, mark
from auxbit.stores.embedded import SqlStore

BUSY_MS = 30_000  # that it waits for others who write
INSERT_ROWS = 8192  # between two reports of progress
COMMENT = re.compile(rf"/\* ({re.escape(MARK)}.*?) \*/")  # the mark in SQL


class SqliteStore(SqlStore):
    """Codes in a table of a SQLite file, which may have other tables; the bytes of codes are as they are."""

    program = "SQLite"
    distance = "CAST(vec_distance_hamming(vec_bit(code), vec_bit(?)) AS INTEGER)"

    def _driver(self) -> Any:
        require("sqlite_vec", extra="sqlite", purpose="SQLite")
        return require("apsw", extra="sqlite", purpose="SQLite")

    def _errors(self) -> tuple[type[Exception], ...]:
        return (self._driver().Error,)

    def _open(self) -> Any:
        apsw = self._driver()
        if self._path.is_dir():
            raise FileProblem(f"{self._path} is a folder; expected a file of SQLite.")
        connection = apsw.Connection(str(self._path))
        try:
            connection.set_busy_timeout(BUSY_MS)
            connection.execute("PRAGMA schema_version").fetchall()
            connection.enable_load_extension(True)
            connection.load_extension(require("sqlite_vec", extra="sqlite", purpose="").loadable_path())
            connection.enable_load_extension(False)
        except apsw.NotADBError:
            connection.close()
            raise FileProblem(f"{self._path} is not a SQLite database, and is left alone.") from None
        except BaseException:
            connection.close()
            raise
        connection.create_scalar_function("auxbit_holds", judge, 2, deterministic=True)
        return connection

    def _run(self, statement: str, values: Any = ()) -> list[tuple[Any, ...]]:
        with self._translated():
            return list(self._engine.execute(statement, values))

    def _description(self) -> str | None:
        found = self._run("SELECT sql, type FROM sqlite_master WHERE lower(name) = lower(?)", [self.name])
        if not found:
            return None
        marked = COMMENT.search(found[0][0] or "")
        return marked[1] if marked and found[0][1] == "table" else ""

    def _make(self, about: dict[str, Any], present: dict[str, Any] | None) -> None:
        vector = "vector BLOB NOT NULL, " if about["n_features"] is not None else ""
        with self._whole():
            if present is not None:
                self._run(f"DROP TABLE {self.table}")
            self._run(
                f"CREATE TABLE {self.table} (/* {mark(**about)} */ id INTEGER PRIMARY KEY CHECK (id >= 0), "
                f"code BLOB NOT NULL, {vector}metadata TEXT NOT NULL)"
            )

    def _add(self, rows: Rows, upsert: bool, progress: Progress) -> None:
        """In one transaction: all or none."""
        places = "?, ?, ?, ?" if rows.vectors is not None else "?, ?, ?"
        with self._translated(), self._whole():
            if not upsert:
                self._refuse_known(rows)
            for part in rows.parts(INSERT_ROWS):
                columns: list[Any] = [part.ids.tolist(), map(bytes, part.codes)]
                if part.vectors is not None:
                    columns.append(row.tobytes() for row in part.vectors)
                columns.append(["{}"] * len(part) if part.texts is None else map(bytes.decode, part.texts))
                self._engine.executemany(
                    f"INSERT OR REPLACE INTO {self.table} VALUES ({places})", zip(*columns)
                )
                progress(len(part))

    def _condition(self, where: Any) -> tuple[str, list[Any]]:
        """In SQL, as in a Collection; Python judges what SQLite cannot say."""
        return ("1", []) if where is None else Where.of(where).sql()
