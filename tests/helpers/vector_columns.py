"""The same vectors as a column of each kind that users have."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa


def objects(X):
    """An array of objects, of which each is a row."""
    column = np.empty(len(X), dtype=object)
    column[:] = list(X)
    return column


def chunked(X):
    """An Arrow column whose chunks are slices of a longer one, one of them empty."""
    longer = pa.array(np.concatenate([X[-1:], X, X[:1]]).tolist(), pa.list_(pa.from_numpy_dtype(X.dtype)))
    half = len(X) // 2
    return pa.chunked_array([longer[1 : 1 + half], longer[:0], longer[1 + half : 1 + len(X)]])


COLUMNS = {
    "pandas of arrays": lambda X: pd.Series(list(X)),
    "pandas of lists": lambda X: pd.Series(X.tolist(), index=range(5, 5 + len(X))),
    "pandas of Arrow": lambda X: pd.Series(
        X.tolist(), dtype=pd.ArrowDtype(pa.list_(pa.from_numpy_dtype(X.dtype)))
    ),
    "polars of arrays": lambda X: pl.Series("v", X),
    "polars of lists": lambda X: pl.Series("v", X).arr.to_list(),
    "Arrow, fixed size": lambda X: pa.FixedSizeListArray.from_arrays(X.ravel(), X.shape[1]),
    "Arrow, chunks": chunked,
    "Arrow, large lists": lambda X: pa.array(X.tolist(), pa.large_list(pa.from_numpy_dtype(X.dtype))),
    "Arrow, tensors": lambda X: pa.FixedShapeTensorArray.from_numpy_ndarray(X),
    "list of arrays": list,
    "tuple of arrays": lambda X: tuple(X),
    "list of lists": lambda X: X.tolist(),
    "objects": objects,
}
