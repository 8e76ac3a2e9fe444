"""What tests of files of vectors share: the types that a format keeps, rows, and Parquet of lists."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

NUMBERS = {
    ".npy": [np.float16, np.float32, np.float64, np.uint8, np.int64, np.bool_, np.dtype(">f4")],
    ".fvecs": [np.float32],
    ".bvecs": [np.uint8],
    ".ivecs": [np.int32],
}


def is_mapped(array) -> bool:
    while array is not None:
        if isinstance(array, np.memmap):
            return True
        array = getattr(array, "base", None)
    return False


def some_rows(n=7, d=3, dtype=np.float32):
    return np.random.default_rng(0).integers(0, 200, (n, d)).astype(dtype)


def save_lists(path, rows, kind, **options):
    pq.write_table(
        pa.table({"id": pa.array(range(len(rows))), "vector": pa.array(rows, kind)}), path, **options
    )
