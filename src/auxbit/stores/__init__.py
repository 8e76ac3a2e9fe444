"""Codes kept and searched by other programs: PostgreSQL with pgvector, and Milvus."""

from auxbit.errors import StoreError, StoreExists, StoreUnreachable
from auxbit.stores.base import Store, connect

__all__ = ["Store", "StoreError", "StoreExists", "StoreUnreachable", "connect"]
