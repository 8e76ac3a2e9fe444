"""Clusters to measure on. What runs in their workers is the tests' own: counting bytes, dying on command."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from helpers.dask_cluster import bytes_sent, count_bytes, die_in
from helpers.dask_cluster import local_cluster as cluster
from real_data import sift_photos

__all__ = ["bytes_sent", "cluster", "count_bytes", "die_in", "nothing", "rows_in_file"]


@contextmanager
def rows_in_file(n: int) -> Iterator[tuple[np.ndarray, Path]]:
    """SIFT descriptors of photographs, (n, 128) uint8, in memory and in a file."""
    X = sift_photos(n).astype(np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "x.npy", X)
        yield X, Path(folder) / "x.npy"


def nothing(rows: np.ndarray, given: float) -> tuple[np.ndarray]:
    """A shard's work that is none."""
    return (np.zeros(1),)
