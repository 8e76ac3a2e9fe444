"""Codes, ids, metadata and vectors in a folder on disk."""
