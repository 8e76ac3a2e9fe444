"""ClickhouseStore: codes in a table of ClickHouse, run by chdb in this process, by bitHammingDistance."""

from __future__ import annotations

from functools import cache
from typing import Any

from auxbit.core.checks import require
from auxbit.core.maps import bytes_per_code
from auxbit.data.where import judge
from auxbit.stores.base import Progress, Rows, mark
from auxbit.stores.embedded import SqlStore, arrow_rows, literal

ESCAPED = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\0": "\\0"})


def _judge(metadata: str, wanted: str) -> bool:
    return bool(judge(metadata, wanted))


@cache
def _register() -> None:
    """Give ClickHouse `auxbit_holds`, once in a process."""
    chdb = require("chdb", extra="clickhouse", purpose="ClickHouse")
    chdb.create_function("auxbit_holds", _judge, ["String", "String"], "Bool")


class ClickhouseStore(SqlStore):
    """Codes in a table of ClickHouse in a folder; a process can have only one such folder open.

    Rows of the same id replace each other when parts are merged, and while they are read (FINAL). The table's
    comment marks it as auxbit's.
    """

    program = "ClickHouse"
    distance = "bitHammingDistance(code, CAST(unhex(?) AS FixedString({width})))"
    source = "{table} FINAL"

    def _driver(self) -> Any:
        return require("chdb", extra="clickhouse", purpose="ClickHouse")

    def _errors(self) -> tuple[type[Exception], ...]:
        return (self._driver().ChdbError, RuntimeError)

    def _open(self) -> Any:
        session = require("chdb.session", extra="clickhouse", purpose="ClickHouse").Session(str(self._path))
        _register()
        session.query("SET allow_suspicious_fixed_string_types = 1")  # those of more than 256 bytes
        return session

    def _run(self, statement: str, values: Any = ()) -> list[tuple[Any, ...]]:
        arrow = require("pyarrow", extra="clickhouse", purpose="ClickHouse")
        parameters = {}
        for number, value in enumerate(values):
            statement = statement.replace("?", f"{{p{number}:String}}", 1)
            text = value.hex() if isinstance(value, bytes) else value.translate(ESCAPED)
            parameters[f"p{number}"] = text
        with self._translated():
            answer = self._engine.query(statement, "ArrowStream", params=parameters).bytes()
        if not answer:
            return []
        return list(zip(*(each.to_pylist() for each in arrow.ipc.open_stream(answer).read_all().columns)))

    def _description(self) -> str | None:
        what = "SELECT comment, engine FROM system.tables WHERE database = currentDatabase() AND name = ?"
        found = self._run(what, [self.name])
        return found[0][0] if found else None

    def _make(self, about: dict[str, Any], present: dict[str, Any] | None) -> None:
        if present is not None:
            self._run(f"DROP TABLE {self.table} SYNC")
        n_features, width = about["n_features"], bytes_per_code(about["n_bits"])
        vector = "" if n_features is None else f"vector FixedString({4 * n_features}), "
        self._run(
            f"CREATE TABLE {self.table} (id Int64, code FixedString({width}), {vector}"
            f"metadata String) ENGINE = ReplacingMergeTree ORDER BY id COMMENT {literal(mark(**about))}"
        )

    def _add(self, rows: Rows, upsert: bool, progress: Progress) -> None:
        """In one block: all or none."""
        if not upsert:
            self._refuse_known(rows)
        incoming = arrow_rows(rows)  # found by its name in this frame
        with self._translated():
            names = ", ".join(incoming.column_names)
            self._engine.query(f"INSERT INTO {self.table} ({names}) SELECT {names} FROM Python(incoming)")
        progress(len(rows))
