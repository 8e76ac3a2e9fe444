"""The arrays that everything here is about, by name. Shapes are in the docstrings of what takes them."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

PathLike = str | os.PathLike[str]

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Floats = npt.NDArray[np.floating[Any]]
Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

Bits = npt.NDArray[np.uint8]  # (n, L) of 0/1
Packed = npt.NDArray[np.uint8]  # (n, ceil(L/8)), eight bits per byte
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

Ids = npt.NDArray[np.int64]  # what users call rows
Positions = npt.NDArray[np.int64]  # where rows are, counted from 0
Indices = npt.NDArray[np.intp]
Distances = npt.NDArray[np.int32]  # of Hamming
