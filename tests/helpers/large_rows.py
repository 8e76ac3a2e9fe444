"""What tests of fits by passes share: rows in files of every kind, and quick models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from auxbit import BinaryAutoencoder
from auxbit.data.vectors import write_vectors

KINDS = (".npy", ".fvecs", ".bvecs", ".parquet", "folder", ".h5", "object", "array")


def clustered(n: int = 1500, d: int = 24, dtype: Any = np.float32, seed: int = 0) -> Any:
    """Rows around 20 centres, from 0 to 255."""
    rng = np.random.default_rng(seed)
    rows = rng.uniform(40, 215, (20, d))[rng.integers(0, 20, n)] + rng.normal(0, 15, (n, d))
    return np.clip(rows, 0, 255).astype(dtype)


class OnlySlices:
    """Rows with a shape and slices, and nothing else."""

    def __init__(self, X: Any) -> None:
        self._X, self.shape = X, X.shape

    def __getitem__(self, rows: slice) -> Any:
        assert isinstance(rows, slice)
        return self._X[rows]


def write_parquet(path: Path, X: Any, group_rows: int = 400) -> None:
    kind = pa.list_(pa.from_numpy_dtype(X.dtype))
    pq.write_table(pa.table({"vector": pa.array(list(X), kind)}), path, row_group_size=group_rows)


def stored(kind: str, X: Any, folder: Path) -> Any:
    """X as something of this kind that `fit` takes."""
    if kind in ("object", "array"):
        return OnlySlices(X) if kind == "object" else X
    path = folder / f"rows{kind if kind.startswith('.') else ''}"
    if kind == ".parquet":
        write_parquet(path, X)
    elif kind == "folder":
        path.mkdir()
        for part, rows in enumerate(np.array_split(X, 3)):
            write_parquet(path / f"part-{part}.parquet", rows, 300)
    elif kind == ".h5":
        with h5py.File(path, "w") as file:
            file.create_dataset("train", data=X, chunks=(100, X.shape[1]))
    else:
        write_vectors(path, X)
    return path


def quick(n_bits: int = 8, **parameters: Any) -> BinaryAutoencoder:
    """A model of few iterations."""
    return BinaryAutoencoder(n_bits, **{"random_state": 0, "max_iter": 5, "n_jobs": 2, **parameters})


def history_of(model: BinaryAutoencoder) -> list[dict[str, Any]]:
    """The history without the seconds."""
    return [
        {name: value for name, value in vars(record).items() if not name.startswith("seconds")}
        for record in model.history_
    ]
