from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from auxbit.core import checks
from auxbit.data.vectors import as_rows, open_rows
from auxbit.errors import InvalidInput, MissingExtra
from helpers.vector_columns import COLUMNS, objects

X = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8])
@pytest.mark.parametrize("kind", COLUMNS)
def test_a_column_of_vectors_is_rows_of_the_same_numbers(kind, dtype):
    rows = (X * 50 + 128).astype(dtype)
    found = as_rows(COLUMNS[kind](rows))
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, rows, strict=kind not in ("pandas of lists", "list of lists"))
    assert found.dtype.kind in ("f" if dtype().dtype.kind == "f" else "iu")


@pytest.mark.parametrize("kind", COLUMNS)
def test_rows_by_slices_may_be_a_column(kind):
    np.testing.assert_array_equal(open_rows(COLUMNS[kind](X))[2:5], X[2:5])


@pytest.mark.parametrize(
    "other",
    [
        X,
        X.astype(object),
        X[0],
        X[0].tolist(),
        [],
        "docs.parquet",
        pd.DataFrame(X),
        pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}),
        pl.DataFrame(X),
        pa.table({"a": X[:, 0]}),
    ],
    ids=lambda other: f"{type(other).__module__}.{type(other).__name__}",
)
def test_what_is_no_column_of_vectors_stays_as_it_is(other):
    assert as_rows(other) is other


RAGGED = [[1.0, 2.0], [3.0, 4.0], [5.0], [6.0, 7.0]]
MISSING = [[1.0, 2.0], [3.0, 4.0], None, [6.0, 7.0]]
HOLES = [[1.0, 2.0], [3.0, 4.0], [5.0, None], [6.0, 7.0]]


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (RAGGED, "X has a vector of 1 numbers in row 2; expected 2 numbers in each"),
        ([np.ones(2), np.ones(2), np.ones(3)], "X has a vector of 3 numbers in row 2; expected 2"),
        (pd.Series(RAGGED), "X has a vector of 1 numbers in row 2"),
        (pl.Series(RAGGED), "X has a list of 1 values in row 2; expected lists of 2, the same"),
        (pa.chunked_array([RAGGED[:2], RAGGED[2:]]), "X has a list of 1 values in row 2; expected"),
        (MISSING, "X has None in row 2; expected 2 numbers in each"),
        ([None, *MISSING], "X has None in row 0; expected 2 numbers in each"),
        (objects(MISSING), "X has None in row 2"),
        (pd.Series([*RAGGED[:2], np.nan]), "X has nan in row 2; expected 2 numbers"),
        (pl.Series(MISSING), "X has a null in row 2; expected numbers only"),
        (pa.array(MISSING), "X has a null in row 2"),
        (HOLES, "X has None among the numbers of row 2"),
        (pd.Series(HOLES), "X has None among the numbers of row 2"),
        (pl.Series(HOLES), "X has a null in row 2"),
        (pa.chunked_array([HOLES[:1], HOLES[1:]]), "X has a null in row 2"),
        (pa.array([["a"]]), r"X is a column of list<.*string>; expected lists of numbers"),
        (pa.array([[], []], pa.list_(pa.float32())), "list of 0 values in row 0; expected .* at least 1"),
        (pd.DataFrame({"n": [1], "e": [X[0]]}), r"X is a frame with columns of lists: 'e'\. .* as X\['e'\]"),
        (pl.DataFrame({"n": [1], "e": [[1.0]]}), r"X is a frame with columns of lists: 'e'\. .* as X\['e'\]"),
        (pa.table({"n": [1], "e": [[1.0]]}), r"X is a frame with columns of lists: 'e'\. .* as X\['e'\]"),
    ],
)  # fmt: skip
def test_a_column_that_is_no_rows_is_explained(column, why):
    with pytest.raises(InvalidInput, match=why):
        as_rows(column)


def test_polars_without_pyarrow_names_the_extra(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(checks.importlib, "import_module", missing)
    with pytest.raises(MissingExtra, match=r"frames of polars needs pyarrow: pip install 'auxbit\[data\]'"):
        as_rows(pl.Series([[1.0]]))


def test_no_package_is_imported_to_recognise_its_columns():
    code = (
        "import sys, numpy as np; from auxbit.data.vectors import as_rows; as_rows([np.ones(2)] * 3); "
        "print({'pandas', 'polars', 'pyarrow'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
