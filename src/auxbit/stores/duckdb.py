"""DuckdbStore: codes in a table of a DuckDB file, compared by bit_count(xor(…))."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from auxbit.core.checks import require
from auxbit.data.where import judge
from auxbit.errors import FileProblem
from auxbit.stores.base import Progress, Rows, mark
from auxbit.stores.embedded import SqlStore, arrow_rows, literal


class DuckdbStore(SqlStore):
    """Codes in a table of a DuckDB file, which may have other tables; its comment marks it as auxbit's."""

    program = "DuckDB"
    distance = "bit_count(xor(CAST(code AS BIT), CAST(CAST(? AS BLOB) AS BIT)))"

    def _driver(self) -> Any:
        return require("duckdb", extra="duckdb", purpose="DuckDB")

    def _errors(self) -> tuple[type[Exception], ...]:
        return (self._driver().Error,)

    def _open(self) -> Any:
        duckdb = self._driver()
        if self._path.is_dir():
            raise FileProblem(f"{self._path} is a folder; expected a file of DuckDB.")
        connection = duckdb.connect(str(self._path))
        with suppress(duckdb.CatalogException, duckdb.NotImplementedException):  # another connection has
            connection.create_function("auxbit_holds", judge, ["VARCHAR", "VARCHAR"], "BOOLEAN")
        return connection

    def _remove(self) -> None:
        super()._remove()
        Path(f"{self._path}.wal").unlink(missing_ok=True)  # stays if the disk was full

    def _run(self, statement: str, values: Any = ()) -> list[tuple[Any, ...]]:
        with self._translated():
            found: list[tuple[Any, ...]] = self._engine.execute(statement, list(values)).fetchall()
            return found

    def _description(self) -> str | None:
        tables = "SELECT comment FROM duckdb_tables() WHERE lower(table_name) = lower(?)"
        views = "SELECT '' FROM duckdb_views() WHERE lower(view_name) = lower(?)"
        found = self._run(f"{tables} UNION ALL {views}", [self.name, self.name])
        return (found[0][0] or "") if found else None

    def _make(self, about: dict[str, Any], present: dict[str, Any] | None) -> None:
        vector = "vector BLOB NOT NULL, " if about["n_features"] is not None else ""
        with self._whole():
            if present is not None:
                self._run(f"DROP TABLE {self.table}")
            self._run(
                f"CREATE TABLE {self.table} (id BIGINT PRIMARY KEY CHECK (id >= 0), code BLOB NOT NULL, "
                f"{vector}metadata VARCHAR NOT NULL)"
            )
            self._run(f"COMMENT ON TABLE {self.table} IS {literal(mark(**about))}")

    def _add(self, rows: Rows, upsert: bool, progress: Progress) -> None:
        """In one statement: all or none."""
        if not upsert:
            self._refuse_known(rows)
        with self._translated():
            self._engine.register("auxbit_incoming", arrow_rows(rows))
            self._engine.execute(f"INSERT OR REPLACE INTO {self.table} BY NAME SELECT * FROM auxbit_incoming")
            self._engine.unregister("auxbit_incoming")
        progress(len(rows))
