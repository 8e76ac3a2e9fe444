"""A store by its address."""

from __future__ import annotations

from typing import Any

from auxbit.stores.addresses import parse
from auxbit.stores.protocol import DEFAULT_NAME, Store


def connect(url: str, name: str = DEFAULT_NAME, **options: Any) -> Store:
    """The store at postgresql://…, milvus://host:port, in a file.db of Milvus Lite or a file.faiss.

    name : of the table or collection there. options : as the store's class takes them.

    >>> with connect("postgresql://localhost/photos", "codes") as store:
    ...     store.create(n_bits=64)
    ...     store.add(codes, ids, metadata=rows)
    ...     distances, ids = store.search(query_codes, k=10, where={"year": {">=": 2020}})
    """
    address = parse(url)
    if address.kind == "pgvector":
        from auxbit.stores.pgvector_store import PgvectorStore

        return PgvectorStore(address, name, **options)
    if address.kind == "faiss":
        from auxbit.stores.faiss_store import FaissStore

        return FaissStore(address.text, **options)
    from auxbit.stores.milvus_store import MilvusStore

    return MilvusStore(address, name, **options)
