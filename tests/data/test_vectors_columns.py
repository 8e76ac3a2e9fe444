"""Vectors in Parquet and HDF5: the columns and datasets that are read, and those that are refused."""

from __future__ import annotations

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from auxbit.data import vectors
from auxbit.data.vectors import read_vectors
from auxbit.errors import DataFileError
from helpers.vector_files import save_lists, some_rows

# ---- Parquet


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float32()), pa.list_(pa.float32(), 3), pa.large_list(pa.float32())]
)
@pytest.mark.parametrize("key", [None, "vector"])
def test_a_list_column_is_found_and_read_over_row_groups_and_chunks(tmp_path, kind, key, monkeypatch):
    monkeypatch.setattr(vectors, "BLOCK_ROWS", 4)
    rows = some_rows(23, 3)
    save_lists(tmp_path / "a.parquet", list(rows), kind, row_group_size=10)
    np.testing.assert_array_equal(read_vectors(tmp_path / "a.parquet", key=key), rows)


@pytest.mark.parametrize("number", [pa.float16(), pa.float64(), pa.int8(), pa.uint16()])
def test_a_list_column_keeps_its_type(tmp_path, number):
    rows = some_rows(4, 3).clip(0, 100).astype(number.to_pandas_dtype())
    save_lists(tmp_path / "a.parquet", list(rows), pa.list_(number))
    read = read_vectors(f"{tmp_path}/a.parquet:vector")
    assert read.dtype == rows.dtype
    np.testing.assert_array_equal(read, rows)


def test_without_lists_all_numeric_columns_are_the_matrix(tmp_path):
    table = pa.table(
        {"x": pa.array([1, 2], pa.int16()), "name": ["a", "b"], "y": pa.array([0.5, 1.5], pa.float32())}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    read = read_vectors(tmp_path / "a.parquet")
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, [[1, 0.5], [2, 1.5]])


def test_an_empty_row_group_is_passed_over(tmp_path):
    schema = pa.schema([("v", pa.list_(pa.float32()))])
    with pq.ParquetWriter(tmp_path / "a.parquet", schema) as writer:
        for rows in ([], [[1.0, 2.0]], [], [[3.0, 4.0]]):
            writer.write_table(pa.table({"v": pa.array(rows, pa.list_(pa.float32()))}, schema=schema))
    np.testing.assert_array_equal(read_vectors(tmp_path / "a.parquet"), [[1, 2], [3, 4]])


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (
            [[1, 2], [3, 4], [5, 6, 7]],
            "a list of 3 values in row 2; expected lists of 2, the same for every row",
        ),
        ([[1, 2], [3, 4], [], [5, 6]], "a list of 0 values in row 2; expected lists of 2"),
        ([[], []], "a list of 0 values in row 0; expected lists of at least 1"),
        ([[1, 2], [3, 4], [3, 4], None], "column 'vector' has a null in row 3"),
        ([[1, 2], [3, 4], [3, None]], "column 'vector' has a null in row 2"),
        ([], r"holds no rows"),
    ],
)
def test_lists_that_make_no_matrix_are_refused(tmp_path, rows, problem, monkeypatch):
    monkeypatch.setattr(vectors, "BLOCK_ROWS", 2)
    save_lists(tmp_path / "a.parquet", rows, pa.list_(pa.float32()))
    with pytest.raises(DataFileError, match=problem):
        read_vectors(tmp_path / "a.parquet")


def test_a_null_in_a_numeric_column_is_refused(tmp_path):
    pq.write_table(pa.table({"x": [1, 2, 3], "y": [1.0, None, 2.0]}), tmp_path / "a.parquet")
    with pytest.raises(DataFileError, match=r"a\.parquet: column 'y' has a null in row 1"):
        read_vectors(tmp_path / "a.parquet")


def test_a_parquet_column_must_be_there_and_the_only_candidate(tmp_path):
    lists = pa.array([[1.0]], pa.list_(pa.float32()))
    pq.write_table(pa.table({"vector": lists, "image": lists, "id": [1]}), tmp_path / "two.parquet")
    pq.write_table(pa.table({"name": ["a"]}), tmp_path / "text.parquet")
    with pytest.raises(DataFileError, match=r"several list columns. Choose by key=, .*two\.parquet:vector\."):
        read_vectors(tmp_path / "two.parquet")
    with pytest.raises(DataFileError, match=r"no list column 'vectors'. Did you mean vector\?"):
        read_vectors(tmp_path / "two.parquet", key="vectors")
    with pytest.raises(DataFileError, match=r"no list column 'id'"):
        read_vectors(tmp_path / "two.parquet", key="id")
    with pytest.raises(DataFileError, match="no list column at all"):
        read_vectors(tmp_path / "text.parquet", key="name")
    with pytest.raises(DataFileError, match="no column of numbers, nor of lists of numbers"):
        read_vectors(tmp_path / "text.parquet")


# ---- HDF5


@pytest.mark.parametrize("suffix", [".h5", ".hdf5"])
def test_hdf5_is_read_in_chunks_and_train_is_the_default(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(vectors, "CHUNK_BYTES", 50)
    path = tmp_path / f"a{suffix}"
    with h5py.File(path, "w") as file:
        file.create_dataset("train", data=some_rows(11), chunks=(4, 3), compression="gzip")
        file["group/images"] = some_rows(4, 12, np.uint8).reshape(4, 2, 6)
        file["link"] = h5py.SoftLink("/train")
    np.testing.assert_array_equal(read_vectors(path), some_rows(11))
    np.testing.assert_array_equal(read_vectors(path, key="link"), some_rows(11))
    np.testing.assert_array_equal(read_vectors(f"{path}:group/images"), some_rows(4, 12, np.uint8))


def test_hdf5_without_the_dataset_lists_those_it_has(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["base"] = some_rows()
        file["more/trains"] = some_rows()
    with pytest.raises(
        DataFileError, match=r"no dataset 'train'. Did you mean .*Choose by key=, of base, more/trains"
    ):
        read_vectors(tmp_path / "a.h5")
    with pytest.raises(DataFileError, match="no dataset 'more'"):
        read_vectors(tmp_path / "a.h5", key="more")


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (["a", "b"], "never loaded"),
        (np.zeros(4), "1-D array"),
        (np.zeros((0, 4)), "no rows"),
        (h5py.Empty("f4"), "single value"),
    ],
)
def test_an_hdf5_dataset_that_is_not_rows_of_numbers_is_refused(tmp_path, array, problem):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["train"] = array
    with pytest.raises(DataFileError, match=problem):
        read_vectors(tmp_path / "a.h5")
