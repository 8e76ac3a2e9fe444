"""Indexes over packed binary codes."""

from auxbit.index.hamming import HammingIndex

__all__ = ["HammingIndex"]
