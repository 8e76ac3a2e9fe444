"""Data sets as problems: rows to train on and to search, and queries that are not among them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from auxbit import data, datasets
from auxbit.errors import InvalidInput
from auxbit.experiments.study import Problem, part, some_of

HELD_OUT, MOST_HELD_OUT = 10, 1000  # one row in ten is a query, where a file has no queries of its own
VECTOR_FILES = (".npy", ".npz", ".fvecs", ".bvecs", ".ivecs", ".parquet")
KEYED = re.compile(r"\.(h5|hdf5|parquet|npz):[^/\\\\]+$", re.IGNORECASE)  # a file and what to read of it


def load(
    source: str,
    *,
    folder: str | None = None,
    n_train: int | None = None,
    n_queries: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    n_jobs: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Problem:
    """A data set by name, or by the path of its folder; or a file of vectors, of which some become queries.

    folder : where data sets are, in the place of AUXBIT_DATA; cache : where features of images are kept.
    n_train, n_queries : at most so many, drawn with a fixed seed.
    """
    if Path(source).suffix.lower() in VECTOR_FILES or KEYED.search(source):
        return _of_file(source).smaller(n_train, n_queries)
    found = datasets.load(source, data=folder)
    rows, asked = some_of(len(found.base), n_train), some_of(len(found.queries), n_queries)
    small = replace(
        found, base=found.base[rows], queries=found.queries[asked], learn=None, neighbours=None,
        labels=part(found.labels, rows), query_labels=part(found.query_labels, asked),
    )  # fmt: skip
    vectors = small.vectors(cache=cache, n_jobs=n_jobs, progress=progress)
    images, query_images = small.images, small.query_images
    if small.name == "digits":
        images, query_images = (  # of 0 to 16
            (15 * X).astype(np.uint8).reshape(-1, 8, 8) for X in (small.base, small.queries)
        )
    labels, query_labels = (
        None if each is None or each.ndim > 1 else each for each in (small.labels, small.query_labels)
    )
    return Problem(
        small.name, vectors.base, vectors.queries, images, query_images, labels, query_labels, small.about
    )


def _of_file(source: str) -> Problem:
    """The rows of a file, some of them held out as queries."""
    X = data.read_vectors(source)
    if len(X) < 2 * HELD_OUT:
        raise InvalidInput(f"{source} has {len(X)} rows; an experiment wants at least {2 * HELD_OUT}.")
    order = np.random.RandomState(0).permutation(len(X))
    n_queries = min(len(X) // HELD_OUT, MOST_HELD_OUT)
    asked, kept = np.sort(order[:n_queries]), np.sort(order[n_queries:])
    name = Path(KEYED.sub("", source)).stem
    return Problem(name, X[kept], X[asked], about=f"{source}; {n_queries:,} of its rows are the queries")
