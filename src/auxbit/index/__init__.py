"""Indexes over packed binary codes."""

from auxbit.index.linear import HammingIndex

__all__ = ["HammingIndex"]
