"""Dask arrays: recognising one without importing Dask, and mapping its blocks of rows without computing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.errors import InvalidInput

Array = npt.NDArray[Any]


def is_dask_array(X: Any) -> bool:
    """Whether X is a dask array; nobody has one before Dask is imported."""
    module = sys.modules.get("dask.array")
    return module is not None and isinstance(X, module.Array)


def whole_rows(X: Any) -> Any:
    """The dask array X, (n, D), with no block that ends within a row; nothing is computed."""
    if X.ndim != 2:
        raise InvalidInput(f"X must have rows and columns, (n, D); got a dask array of shape {X.shape}.")
    if X.dtype.kind not in "biuf":
        raise InvalidInput(f"X must be numbers, got a dask array of {X.dtype}.")
    return X if X.numblocks[1] == 1 else X.rechunk({1: -1})


def map_rows(X: Any, function: Callable[[Array], Array], n_features: int, width: int) -> Any:
    """The dask array of function(block), (n, width) uint8, for the blocks of X, (n, n_features): lazy."""
    rows = whole_rows(X)
    if rows.shape[1] != n_features:
        raise InvalidInput(f"X has {rows.shape[1]} features, but the model was fitted to {n_features}.")
    empty = np.empty((0, width), dtype=np.uint8)
    chunks = (rows.chunks[0], (width,))
    return rows.map_blocks(NonEmpty(function, width), dtype=empty.dtype, chunks=chunks, meta=empty)


class NonEmpty:
    """A function of blocks that is not asked about blocks without rows."""

    def __init__(self, function: Callable[[Array], Array], width: int) -> None:
        self._function, self._width = function, width

    def __call__(self, block: Any) -> Array:
        rows = np.asarray(block)
        return self._function(rows) if len(rows) else np.empty((0, self._width), dtype=np.uint8)
