"""Codes kept and searched by other programs: PostgreSQL with pgvector, and Milvus."""

from __future__ import annotations

from typing import Any

from auxbit.errors import StoreError, StoreExists, StoreUnreachable
from auxbit.stores.base import DEFAULT_NAME, Store, parse

__all__ = ["Store", "StoreError", "StoreExists", "StoreUnreachable", "connect"]


def connect(url: str, name: str = DEFAULT_NAME, **options: Any) -> Store:
    """The store at postgresql://…, milvus://host:port, or in a file.db of Milvus Lite.

    name : of the table or collection there. options : as the store's class takes them.

    >>> with connect("postgresql://localhost/photos", "codes") as store:
    ...     store.create(n_bits=64)
    ...     store.add(codes, ids, metadata=rows)
    ...     distances, ids = store.search(query_codes, k=10, where={"year": {">=": 2020}})
    """
    address = parse(url)
    if address.kind == "pgvector":
        from auxbit.stores.pgvector import PgvectorStore

        return PgvectorStore(address, name, **options)
    from auxbit.stores.milvus import MilvusStore

    return MilvusStore(address, name, **options)
