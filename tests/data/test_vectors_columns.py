"""Vectors in Parquet and HDF5: the columns and datasets that are read, and those that are refused."""

from __future__ import annotations

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from auxbit.data import vectors
from auxbit.data.records import read_records, records_of
from auxbit.data.vectors import open_rows, read_vectors
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


def test_the_index_that_pandas_writes_beside_the_columns_is_not_part_of_the_vectors(tmp_path):
    frame = pd.DataFrame(np.arange(12.0).reshape(4, 3), columns=["a", "b", "c"]).drop(index=1)
    frame.to_parquet(tmp_path / "rows.parquet")
    assert "__index_level_0__" in pq.read_schema(tmp_path / "rows.parquet").names
    for read in (read_vectors, lambda path: open_rows(path)[:], lambda path: read_records(path).X[:]):
        np.testing.assert_array_equal(read(tmp_path / "rows.parquet"), frame.to_numpy())


def test_an_index_with_a_name_is_metadata_or_ids_and_not_part_of_the_vectors(tmp_path):
    frame = pd.DataFrame(np.arange(12.0).reshape(4, 3), columns=["a", "b", "c"], index=[9, 7, 5, 3])
    frame = frame.rename_axis("key")
    table = pa.Table.from_pandas(frame)
    file, arrow = tmp_path / "rows.parquet", tmp_path / "rows.arrow"
    frame.to_parquet(file)
    with pa.ipc.new_file(arrow, table.schema) as writer:
        writer.write_table(table)
    for read in (read_vectors, lambda path: open_rows(path)[:]):
        np.testing.assert_array_equal(read(file), frame.to_numpy())
    for source in (frame, table, file, arrow):
        found = records_of(source)
        np.testing.assert_array_equal(found.X[:], frame.to_numpy())
        assert found.metadata[:2] == [{"key": 9}, {"key": 7}]
        assert list(records_of(source, ids="key").ids) == [9, 7, 5, 3]
        named = records_of(source, vectors="key,c")
        np.testing.assert_array_equal(named.X[:], [[9, 2], [7, 5], [5, 8], [3, 11]])
    pq.write_table(table.replace_schema_metadata({"pandas": "[1"}), file)
    assert read_vectors(file).shape == (4, 4)


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


@pytest.mark.parametrize("kind", ["lists", "columns"])
def test_a_changed_byte_in_parquet_gives_an_error_or_all_rows_with_one_value_changed(tmp_path, kind):
    rows, path = np.random.default_rng(0).standard_normal((20, 2)).astype(np.float32), tmp_path / "a.parquet"
    lists = {"v": pa.array(list(rows), pa.list_(pa.float32()))}
    table = pa.table(lists if kind == "lists" else dict(zip("xy", rows.T)))
    pq.write_table(table, path, row_group_size=8, use_dictionary=False, store_schema=False)
    whole, refused = path.read_bytes(), 0
    for place in range(len(whole)):
        for flip in (1, 16):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :])
            for some in (slice(None), slice(6, 10)):
                try:
                    read = np.ascontiguousarray(open_rows(path)[some])
                except DataFileError:
                    refused += 1
                    continue
                assert (read.shape, read.dtype) == (rows[some].shape, rows.dtype), (place, flip)
                assert np.sum(read.view(np.uint32) != rows[some].view(np.uint32)) <= 1, (place, flip)
    assert refused > 1000


def test_pages_of_parquet_with_checksums_are_verified(tmp_path):
    rows, path = some_rows(20, 2), tmp_path / "a.parquet"
    pq.write_table(pa.table(dict(zip("xy", rows.T))), path, use_dictionary=False, compression="none",
                   write_page_checksum=True)  # fmt: skip
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(rows[:, 0].tobytes())] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(DataFileError, match=r"a\.parquet cannot be read as \.parquet: .*CRC"):
        read_vectors(path)


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


@pytest.mark.parametrize("chunks", [None, (4, 3)])
def test_rows_of_hdf5_that_were_never_written_are_not_read_as_zeros(tmp_path, chunks):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("train", (11, 3), np.float32, chunks=chunks)
        if chunks:
            dataset[:6] = some_rows(6)
    for read in (read_vectors, open_rows):
        with pytest.raises(DataFileError, match=r"holds less than its shape, \(11, 3\): it was not"):
            read(tmp_path / "a.h5")


def test_a_virtual_dataset_of_hdf5_is_read(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["part"] = some_rows(5)
        layout = h5py.VirtualLayout((5, 3), np.float32)
        layout[:] = h5py.VirtualSource(file["part"])
        file.create_virtual_dataset("train", layout)
    np.testing.assert_array_equal(read_vectors(tmp_path / "a.h5"), some_rows(5))


@pytest.mark.parametrize("there", [True, False])
def test_virtual_rows_of_hdf5_that_come_from_nowhere_are_not_read_as_zeros(tmp_path, there):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["part"] = some_rows(5)
        layout = h5py.VirtualLayout((8, 3), np.float32)
        layout[:5] = h5py.VirtualSource(file["part"])
        if not there:
            layout[5:] = h5py.VirtualSource(".", "other", (3, 3))
        file.create_virtual_dataset("train", layout)
    for read in (read_vectors, open_rows):
        with pytest.raises(DataFileError, match=r"holds less than its shape, \(8, 3\): it was not"):
            read(tmp_path / "a.h5")


def _external_storage(file, other):
    file.create_dataset("train", (3, 4), np.uint8, external=[(str(other), 0, 12)])


def _external_link(file, other):
    file["elsewhere"] = h5py.ExternalLink(str(other), "/")
    file["train"] = h5py.SoftLink("/elsewhere/train")


def _virtual(file, other):
    layout = h5py.VirtualLayout((3, 4), np.float64)
    layout[:] = h5py.VirtualSource(str(other), "train", shape=(3, 4))
    file.create_virtual_dataset("train", layout)


def _virtual_of_external(file, other):
    part = file.create_dataset("part", (3, 4), np.uint8, external=[(str(other), 0, 12)])
    layout = h5py.VirtualLayout((3, 4), np.uint8)
    layout[:] = h5py.VirtualSource(part)
    file.create_virtual_dataset("train", layout)


@pytest.mark.parametrize("make", [_external_storage, _external_link, _virtual, _virtual_of_external])
def test_hdf5_does_not_read_other_files_of_the_machine(tmp_path, make):
    other = tmp_path / "secret.h5"
    with h5py.File(other, "w") as file:
        file["train"] = np.ones((3, 4))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        make(file, other)
    for read in (read_vectors, open_rows):
        with pytest.raises(DataFileError, match=r"is not in the file but in another, .*secret\.h5"):
            read(tmp_path / "a.h5")


def test_a_link_of_hdf5_that_leads_to_itself_is_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["train"] = h5py.SoftLink("/other")
        file["other"] = h5py.SoftLink("/train")
    with pytest.raises(DataFileError, match="leads to itself"):
        read_vectors(tmp_path / "a.h5")


@pytest.mark.parametrize(("shape", "chunks"), [((2**60, 4), (1, 4)), ((2**40, 4), (2**20, 4))])
def test_hdf5_that_says_it_is_huge_takes_no_memory(tmp_path, shape, chunks, little_memory):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("train", shape, np.float32, chunks=chunks)
    for read in (read_vectors, open_rows):
        with pytest.raises(DataFileError, match="written to its end"):
            read(tmp_path / "a.h5")


def test_virtual_rows_that_are_more_than_a_file_can_hold_are_refused(tmp_path, little_memory):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["part"] = some_rows(5)
        layout = h5py.VirtualLayout((2**40, 3), np.float32)
        layout[:] = h5py.VirtualSource(".", "part", (2**40, 3))
        file.create_virtual_dataset("train", layout)
    with pytest.raises(DataFileError, match="is damaged: its header promises 13,194,139,533,312 bytes"):
        read_vectors(tmp_path / "a.h5")
