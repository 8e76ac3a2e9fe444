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
    """Open the store at postgresql://…, milvus://host:port, or in file.sqlite, file.duckdb, folder.lancedb …

    name : the name of the table or collection there. options : parameters of the store's class.

    >>> import numpy as np
    >>> from auxbit import LSH, stores
    >>> X = np.random.default_rng(0).normal(size=(100, 8))
    >>> model = LSH(n_bits=64, random_state=0).fit(X)
    >>> with stores.connect("codes.sqlite", "rows") as store:
    ...     store.create(n_bits=64, model=model)
    ...     rows = [{"year": 1950 + i} for i in range(100)]
    ...     store.add(model.encode(X), range(100), metadata=rows, model=model)
    ...     distances, ids = store.search(X[:2], model=model, k=3, where={"year": {"<": 2020}})
    >>> ids[:, 0].tolist()
    [0, 1]
    """
    address = parse(url)
    module, _, made = CLASSES[address.kind].partition(".")
    store: Store = getattr(import_module(f"auxbit.stores.{module}"), made)(address, name, **options)
    return store
