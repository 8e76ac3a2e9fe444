"""Compiled kernels: numba without the GIL, cached on disk, run by the thread pool of blocks.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile with njit(nogil=True, cache=True), keeping the types for mypy."""
    compiler: Any = njit(nogil=True, cache=True)
    compiled: F = compiler(function)
    return compiled


def reordering_kernel(function: F) -> F:
    """A kernel whose sums may be reordered and fused, so that they vectorise; NaN and ∞ are kept."""
    compiler: Any = njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"})
    compiled: F = compiler(function)
    return compiled
