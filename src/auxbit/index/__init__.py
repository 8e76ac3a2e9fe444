"""Indexes over packed binary codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from auxbit.index.hamming import HammingIndex

__all__ = ["HammingIndex"]


def __getattr__(name: str) -> Any:
    if name == "HammingIndex":  # imported on first use: numba takes a second that codes on disk do not need
        from auxbit.index.hamming import HammingIndex

        return HammingIndex
    raise AttributeError(f"module 'auxbit.index' has no attribute {name!r}")
