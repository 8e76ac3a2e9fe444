"""Hashing methods, one a file, all with the contract of base.py."""
