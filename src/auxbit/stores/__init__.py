"""Codes kept and searched by other programs: PostgreSQL with pgvector, Milvus, FAISS."""

from auxbit.errors import StoreError, StoreExists, StoreUnreachable
from auxbit.stores.connecting import connect
from auxbit.stores.protocol import Store

__all__ = ["Store", "StoreError", "StoreExists", "StoreUnreachable", "connect"]
