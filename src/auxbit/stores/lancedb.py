"""LancedbStore: codes in a table of LanceDB, compared by its Hamming distance, exactly or by an IVF index."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import numpy as np

from auxbit.core.checks import Array, Ids, Packed, check_integer, require
from auxbit.core.maps import bytes_per_code
from auxbit.data.where import Where
from auxbit.errors import InvalidParameter
from auxbit.stores.base import DEFAULT_NAME, Address, Found, Progress, Rows, mark
from auxbit.stores.embedded import EmbeddedStore, listed

MARK_KEY = b"auxbit"


class LancedbStore(EmbeddedStore):
    """Codes in a table of LanceDB, in the folder of the database; its schema's metadata marks it as auxbit's.

    use_index : let `search` without `where` use an approximate index (create_index) if there is one, which
    may miss some neighbours; n_probe : how many of its lists are searched. Conditions are evaluated in this
    process, on the metadata of all rows, and LanceDB gets ids.
    """

    program = "LanceDB"
    indexes = ("ivf",)

    def __init__(
        self, url: str | Address, name: str = DEFAULT_NAME, *, use_index: bool = True, n_probe: int = 32
    ) -> None:
        super().__init__(url, name)
        self.use_index, self.n_probe = use_index, check_integer("n_probe", n_probe, 1)

    def _driver(self) -> Any:
        return require("lancedb", extra="lancedb", purpose="LanceDB")

    def _errors(self) -> tuple[type[Exception], ...]:
        return (ValueError, RuntimeError, OSError)

    def _open(self) -> Any:
        return self._driver().connect(str(self._path), read_consistency_interval=timedelta(0))

    def close(self) -> None:
        """Forget the connection: LanceDB has nothing to close."""
        self._opened = None

    @property
    def _table(self) -> Any:
        with self._translated():
            return self._engine.open_table(self.name)

    @property
    def exact(self) -> bool:
        """Whether `search` misses nothing."""
        with self._translated():
            return not self.use_index or not self._table.list_indices()

    def create_index(self, kind: str = "ivf", *, n_lists: int | None = None) -> None:
        """Sort the codes into lists (IVF_FLAT), by default √n of them."""
        if kind != "ivf":
            raise InvalidParameter("kind", kind, "'ivf', LanceDB's IVF_FLAT")
        n_lists = max(1, int(np.sqrt(self.count()))) if n_lists is None else n_lists
        n_lists = check_integer("n_lists", n_lists, 1)
        flat = require("lancedb.index", extra="lancedb", purpose="LanceDB").IvfFlat
        with self._translated():
            self._table.create_index("code", config=flat(distance_type="hamming", num_partitions=n_lists))

    def count(self, where: Any = None) -> int:
        """How many rows there are, or have the metadata that `where` asks for."""
        _ = self._known()
        with self._translated():
            return int(self._table.count_rows()) if where is None else len(self._matching(where))

    # ---- making the table, adding and reading rows

    def _description(self) -> str | None:
        try:
            found = self._engine.open_table(self.name).schema.metadata or {}
        except (ValueError, FileNotFoundError):
            return None
        return str(found.get(MARK_KEY, b"").decode())

    def _make(self, about: dict[str, Any], present: dict[str, Any] | None) -> None:
        arrow = require("pyarrow", extra="lancedb", purpose="LanceDB")
        fields = {"id": arrow.int64(), "code": arrow.list_(arrow.uint8(), bytes_per_code(about["n_bits"]))}
        if about["n_features"] is not None:
            fields["vector"] = arrow.list_(arrow.float32(), about["n_features"])
        fields["metadata"] = arrow.string()
        schema = arrow.schema(list(fields.items()), metadata={MARK_KEY: mark(**about)})
        with self._translated():
            self._engine.create_table(self.name, schema=schema, mode="overwrite" if present else "create")

    def _drop_table(self) -> None:
        with self._translated():
            self._engine.drop_table(self.name)

    def _delete(self, condition: str) -> None:
        with self._translated():
            self._table.delete(condition)

    def _add(self, rows: Rows, upsert: bool, progress: Progress) -> None:
        """In one commit: all or none."""
        if not upsert:
            self._refuse_known(rows)
        arrow, table = require("pyarrow", extra="lancedb", purpose="LanceDB"), self._table
        columns = {"id": rows.ids, "code": _lists_of(rows.codes)}
        if rows.vectors is not None:
            columns["vector"] = _lists_of(rows.vectors)
        texts = [b"{}"] * len(rows) if rows.texts is None else rows.texts
        incoming = arrow.table(columns | {"metadata": [text.decode() for text in texts]})
        with self._translated():
            if table.count_rows(f"id >= {rows.ids.min()} AND id <= {rows.ids.max()}"):
                merged = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
                merged.execute(incoming)
            else:
                table.add(incoming)
        progress(len(rows))

    def _select(self, columns: list[str], condition: str) -> list[tuple[Any, ...]]:
        with self._translated():
            rows = self._table.search().where(condition).select(columns).limit(None).to_arrow()
        return list(zip(*(each.to_pylist() for each in rows.columns)))

    def _matching(self, where: Any) -> Ids:
        """The ids of the rows that fulfil conditions."""
        wanted = Where.of(where)
        with self._translated():
            every = self._table.search().select(["id", "metadata"]).limit(None).to_arrow()
        holds = [wanted.matches(json.loads(text)) for text in every["metadata"].to_pylist()]
        ids: Ids = every["id"].to_numpy()[np.array(holds, dtype=bool)]
        return ids

    # ---- searching

    def _nearest(self, queries: Packed, k: int, where: Any, column: str = "") -> list[Found]:
        table, n, among = self._table, self.count(), self._among(where)
        return [self._one(table, each, among, column, min(k, n), None) for each in queries]

    def _within(self, queries: Packed, r: int, where: Any) -> list[Found]:
        table, n, among = self._table, self.count(), self._among(where)
        return [self._one(table, each, among, "", n, r) for each in queries]

    def _among(self, where: Any) -> str | None:
        return None if where is None else listed(self._matching(where))

    def _one(self, table: Any, code: Array, among: str | None, column: str, k: int, r: int | None) -> Found:
        if not k or among == listed(np.zeros(0, dtype=np.int64)):
            empty = np.zeros((0, self.n_features or 0 if column == "vector" else len(code)))
            return Found(np.zeros(0, np.int32), np.zeros(0, np.int64), empty.astype(np.uint8))
        with self._translated():
            query = table.search(code, vector_column_name="code").distance_type("hamming").limit(k)
            lists = self.use_index and among is None and r is None
            query = query.nprobes(self.n_probe) if lists else query.bypass_vector_index()
            query = query if among is None else query.where(among, prefilter=True)
            query = query if r is None else query.distance_range(upper_bound=r + 0.5)
            rows = query.select(["id", "_distance", *([column] if column else [])]).to_arrow()
        values = rows[column].combine_chunks().flatten().to_numpy() if column else None
        found = values if values is None else values.reshape(len(rows), -1)
        return Found(
            np.round(rows["_distance"].to_numpy()).astype(np.int32), rows["id"].to_numpy(), found
        ).sorted()


def _lists_of(values: Array) -> Any:
    """Rows of an array as a column of lists."""
    arrow = require("pyarrow", extra="lancedb", purpose="LanceDB")
    return arrow.FixedSizeListArray.from_arrays(arrow.array(values.ravel()), values.shape[1])
