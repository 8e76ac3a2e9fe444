"""Codes kept and searched by other programs: PostgreSQL with pgvector, Milvus, SQLite, DuckDB and others."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from auxbit.errors import StoreError, StoreExists, StoreUnreachable
from auxbit.stores.base import DEFAULT_NAME, Store, parse

__all__ = ["Store", "StoreError", "StoreExists", "StoreUnreachable", "connect"]

CLASSES = {
    "pgvector": "pgvector.PgvectorStore",
    "milvus": "milvus.MilvusStore",
    "milvus file": "milvus.MilvusStore",
    "sqlite": "sqlite.SqliteStore",
    "duckdb": "duckdb.DuckdbStore",
    "lancedb": "lancedb.LancedbStore",
    "chdb": "clickhouse.ClickhouseStore",
}


def connect(url: str, name: str = DEFAULT_NAME, **options: Any) -> Store:
    """The store at postgresql://…, milvus://host:port, or in a file.sqlite, file.duckdb, folder.lancedb …

    name : of the table or collection there. options : as the store's class takes them.

    >>> with connect("postgresql://localhost/photos", "codes") as store:
    ...     store.create(n_bits=64)
    ...     store.add(codes, ids, metadata=rows)
    ...     distances, ids = store.search(X, model=ba, k=10, where={"year": {">=": 2020}})
    """
    address = parse(url)
    module, _, made = CLASSES[address.kind].partition(".")
    store: Store = getattr(import_module(f"auxbit.stores.{module}"), made)(address, name, **options)
    return store
