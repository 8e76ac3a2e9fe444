from __future__ import annotations

import os
import pickle
import struct
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from auxbit import data, extras, tables
from auxbit.data import embedded_digits, read_vectors, write_npy_rows, write_vectors
from auxbit.errors import DataFileError, FileExists, InvalidInput, InvalidParameter, MissingExtra

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


def matrices(dtype):
    shapes = st.tuples(st.integers(1, 9), st.integers(1, 9))
    return hnp.arrays(dtype, shapes, elements=hnp.from_dtype(np.dtype(dtype), allow_nan=False))


def save_lists(path, rows, kind, **options):
    pq.write_table(
        pa.table({"id": pa.array(range(len(rows))), "vector": pa.array(rows, kind)}), path, **options
    )


# every format, there and back


@pytest.mark.parametrize(("suffix", "dtype"), [(s, t) for s, types in NUMBERS.items() for t in types])
@settings(max_examples=15)
@given(drawn=st.data())
def test_what_is_written_is_read_back_memory_mapped(suffix, dtype, drawn):
    rows = drawn.draw(matrices(dtype))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"rows{suffix}"
        write_vectors(path, rows)
        read = read_vectors(path)
        assert isinstance(read, np.memmap)
        assert read.dtype == rows.dtype
        assert not read.flags.writeable
        np.testing.assert_array_equal(read, rows)


@settings(max_examples=15)
@given(matrices(np.float32))
def test_npz_parquet_and_hdf5_give_back_what_their_libraries_wrote(rows):
    with tempfile.TemporaryDirectory() as folder:
        np.savez_compressed(f"{folder}/a.npz", rows)
        save_lists(f"{folder}/a.parquet", list(rows), pa.list_(pa.float32()))
        with h5py.File(f"{folder}/a.h5", "w") as file:
            file["train"] = rows
        for name in ("a.npz", "a.parquet", "a.h5"):
            read = read_vectors(f"{folder}/{name}")
            assert read.dtype == np.float32
            np.testing.assert_array_equal(read, rows)


def test_vecs_are_written_in_chunks_as_texmex_defines_them(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "CHUNK_BYTES", 40)
    rows = some_rows(11, 2)
    write_vectors(tmp_path / "a.fvecs", rows)
    expected = b"".join(struct.pack("<iff", 2, *map(float, row)) for row in rows)
    assert (tmp_path / "a.fvecs").read_bytes() == expected


def test_extensions_may_be_upper_case(tmp_path):
    write_vectors(tmp_path / "A.FVECS", some_rows())
    np.testing.assert_array_equal(read_vectors(tmp_path / "A.FVECS"), some_rows())


# .npy and .npz


def test_images_become_rows_without_a_copy(tmp_path):
    images = some_rows(5, 24, np.uint8).reshape(5, 2, 4, 3)
    np.save(tmp_path / "images.npy", images)
    read = read_vectors(tmp_path / "images.npy")
    assert read.shape == (5, 24)
    assert is_mapped(read)
    np.testing.assert_array_equal(read, images.reshape(5, 24))


def test_a_fortran_ordered_array_is_read_as_its_rows(tmp_path):
    np.save(tmp_path / "a.npy", np.asfortranarray(some_rows()))
    np.testing.assert_array_equal(read_vectors(tmp_path / "a.npy"), some_rows())


def test_a_truncated_npy_says_how_many_rows_are_whole(tmp_path):
    np.save(tmp_path / "a.npy", some_rows(7, 3))
    whole = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(whole[:-13])
    with pytest.raises(
        DataFileError, match=r"a\.npy is truncated: expected 7 rows of 12 bytes, .* 5 whole rows"
    ):
        read_vectors(tmp_path / "a.npy")


@pytest.mark.parametrize("content", [b"x", b"this is a text file, not an array", pickle.dumps([1, 2])])
def test_garbage_in_an_npy_is_said_to_be_no_array(tmp_path, content):
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(DataFileError, match=r"a\.npy is not an \.npy array: it starts with b"):
        read_vectors(tmp_path / "a.npy")


def test_a_broken_npy_header_is_explained(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00\x10\x00{'descr': oops  \n" + bytes(50))
    with pytest.raises(DataFileError, match=r"a\.npy cannot be read as \.npy"):
        read_vectors(tmp_path / "a.npy")


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (np.array([["a", 1]], dtype=object), "holds pickled Python objects, which are never loaded"),
        (np.array([["a", "b"]]), "holds <U1; expected real numbers"),
        (np.ones((2, 2), complex), "holds complex128; expected real numbers"),
        (np.zeros((2, 2), [("x", "f4")]), "expected real numbers"),
        (np.arange(5), r"1-D array of 5 values.*reshape\(-1, 1\).*reshape\(1, -1\)"),
        (np.float32(3), "holds a single value"),
        (np.empty((0, 4)), r"holds no rows \(shape \(0, 4\)\)"),
        (np.empty((4, 0)), r"holds rows without values \(shape \(4, 0\)\)"),
    ],
)
def test_what_is_not_rows_of_numbers_is_refused(tmp_path, suffix, array, problem):
    path = tmp_path / f"a{suffix}"
    (np.save if suffix == ".npy" else np.savez)(path, array, allow_pickle=True)
    with pytest.raises(DataFileError, match=problem) as caught:
        read_vectors(path)
    assert str(path) in str(caught.value)


def test_an_array_of_an_npz_is_chosen_by_key_or_in_the_path(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, base=some_rows(), query=some_rows(2))
    assert len(read_vectors(path, key="query")) == 2
    assert len(read_vectors(f"{path}:base")) == 7
    assert len(read_vectors(f"{path}:base", key="base")) == 7
    with pytest.raises(
        DataFileError,
        match=r"several arrays. Choose by key=, of base, query; on the command line as .*a\.npz:base\.",
    ):
        read_vectors(path)
    with pytest.raises(
        DataFileError, match=r"no array 'bose'. Did you mean base\? Choose by key=, .*a\.npz:base\."
    ):
        read_vectors(path, key="bose")
    with pytest.raises(InvalidParameter, match=r"key='query' is invalid: expected 'base' or None"):
        read_vectors(f"{path}:base", key="query")


def test_a_file_whose_name_looks_like_a_key_is_read_as_itself(tmp_path):
    np.savez(tmp_path / "a.npz:base.npz", some_rows())
    assert len(read_vectors(tmp_path / "a.npz:base.npz")) == 7


def test_an_npz_with_no_arrays_or_none_at_all_is_refused(tmp_path):
    np.savez(tmp_path / "none.npz")
    with pytest.raises(DataFileError, match=r"none\.npz has no array at all"):
        read_vectors(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("not a zip file")
    with pytest.raises(DataFileError, match=r"text\.npz cannot be read as \.npz: File is not a zip file"):
        read_vectors(tmp_path / "text.npz")


def test_a_damaged_npz_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", a=np.random.default_rng(0).normal(size=(200, 20)))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[5000:5100] = bytes(100)
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(DataFileError, match=r"a\.npz cannot be read as \.npz"):
        read_vectors(tmp_path / "a.npz")


# .fvecs, .bvecs, .ivecs


@pytest.mark.parametrize(("suffix", "size"), [(".fvecs", 16), (".bvecs", 7), (".ivecs", 16)])
@pytest.mark.parametrize("cut", [1, 3, 5])
def test_truncated_vecs_say_what_is_whole(tmp_path, suffix, size, cut):
    path = tmp_path / f"a{suffix}"
    write_vectors(path, some_rows(9, 3, NUMBERS[suffix][0]))
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(
        DataFileError,
        match=rf"a{suffix} is truncated or not .* records of {size} bytes .* 8 whole records and",
    ):
        read_vectors(path)


def test_vecs_shorter_than_one_record_have_no_whole_record(tmp_path):
    (tmp_path / "a.fvecs").write_bytes(struct.pack("<if", 128, 1.0))
    with pytest.raises(DataFileError, match=r"records of 516 bytes .* 0 whole records and 8 bytes more"):
        read_vectors(tmp_path / "a.fvecs")


@pytest.mark.parametrize(
    "content", [b"ab", struct.pack("<i", 0), struct.pack("<i", -1), b"\x93NUMPY\x01\x00"]
)
def test_vecs_that_start_with_no_sane_dimension_are_refused(tmp_path, content):
    (tmp_path / "a.bvecs").write_bytes(content)
    with pytest.raises(
        DataFileError, match=r"a\.bvecs is not a \.bvecs file, there are 0 whole records: expected"
    ):
        read_vectors(tmp_path / "a.bvecs")


@pytest.mark.parametrize("record", [1, 450, 999])
def test_vecs_with_rows_of_other_dimensions_are_refused(tmp_path, record, monkeypatch):
    monkeypatch.setattr(data, "SAMPLED_HEADERS", 1000)
    path = tmp_path / "a.ivecs"
    write_vectors(path, some_rows(1000, 3, np.int32))
    content = bytearray(path.read_bytes())
    content[16 * record : 16 * record + 4] = struct.pack("<i", 5)
    path.write_bytes(content)
    with pytest.raises(
        DataFileError, match=rf"1000 whole records, but record {record} says .* dimension is 5"
    ):
        read_vectors(path)


def test_the_last_of_many_records_is_always_looked_at(tmp_path):
    path = tmp_path / "a.bvecs"
    write_vectors(path, some_rows(5000, 3, np.uint8))
    content = bytearray(path.read_bytes())
    content[-7] = 9
    path.write_bytes(content)
    with pytest.raises(DataFileError, match="record 4999 says that its dimension is 9"):
        read_vectors(path)


# Parquet


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float32()), pa.list_(pa.float32(), 3), pa.large_list(pa.float32())]
)
@pytest.mark.parametrize("key", [None, "vector"])
def test_a_list_column_is_found_and_read_over_row_groups_and_chunks(tmp_path, kind, key, monkeypatch):
    monkeypatch.setattr(tables, "PARQUET_ROWS", 4)
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
    monkeypatch.setattr(tables, "PARQUET_ROWS", 2)
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


# HDF5


@pytest.mark.parametrize("suffix", [".h5", ".hdf5"])
def test_hdf5_is_read_in_chunks_and_train_is_the_default(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(tables, "CHUNK_BYTES", 50)
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


# files that are not there, or not what they seem


def test_a_missing_file_suggests_its_neighbours(tmp_path):
    write_vectors(tmp_path / "sift_base.fvecs", some_rows())
    with pytest.raises(
        DataFileError, match=r"sift_bse\.fvecs does not exist\. Did you mean sift_base\.fvecs\?"
    ):
        read_vectors(tmp_path / "sift_bse.fvecs")
    with pytest.raises(DataFileError, match=r"zzz\.npz does not exist\.$"):
        read_vectors(f"{tmp_path}/zzz.npz:name")
    with pytest.raises(DataFileError, match=r"there is no folder .*nowhere"):
        read_vectors(tmp_path / "nowhere" / "a.npy")


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".fvecs", ".bvecs", ".ivecs", ".parquet", ".h5", ".hdf5"])
def test_empty_and_damaged_files_of_every_format_are_named(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    path.touch()
    with pytest.raises(DataFileError, match=rf"a{suffix} is empty \(0 bytes\)"):
        read_vectors(path)
    path.write_bytes(b"\xff\xff\xff\xff neither this nor that")
    with pytest.raises(DataFileError, match=rf"a{suffix} (cannot be read as|is not a)"):
        read_vectors(path)


def test_an_unknown_extension_lists_the_known_ones(tmp_path):
    (tmp_path / "a.csv").write_text("1,2")
    with pytest.raises(
        DataFileError, match=r"unknown extension '\.csv'\. Known: \.npy, \.npz, \.fvecs, .*\.hdf5"
    ):
        read_vectors(tmp_path / "a.csv")


def test_a_folder_is_not_a_file_of_vectors(tmp_path):
    with pytest.raises(DataFileError, match="is a folder"):
        read_vectors(tmp_path)


def test_a_key_for_a_file_of_one_array_is_refused(tmp_path):
    write_vectors(tmp_path / "a.npy", some_rows())
    with pytest.raises(
        InvalidParameter, match=r"key='x' is invalid: expected None for .*a \.npy file holds one array"
    ):
        read_vectors(tmp_path / "a.npy", key="x")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_permission_is_named(tmp_path):
    write_vectors(tmp_path / "a.npy", some_rows())
    (tmp_path / "a.npy").chmod(0)
    with pytest.raises(DataFileError, match=r"a\.npy cannot be read as \.npy: .*Permission denied"):
        read_vectors(tmp_path / "a.npy")


@pytest.mark.parametrize(("suffix", "package"), [(".parquet", "pyarrow"), (".h5", "h5py")])
def test_a_missing_extra_names_its_pip_command(tmp_path, suffix, package, monkeypatch):
    def missing(name):
        raise ImportError(name)

    (tmp_path / f"a{suffix}").write_bytes(b"some bytes")
    monkeypatch.setattr(extras.importlib, "import_module", missing)
    with pytest.raises(MissingExtra, match=rf"needs {package}: pip install 'auxbit\[data\]'"):
        read_vectors(tmp_path / f"a{suffix}")


# writing


def test_writing_refuses_to_overwrite_unless_asked(tmp_path):
    path = tmp_path / "a.npy"
    write_vectors(path, some_rows())
    with pytest.raises(FileExists, match="exists"):
        write_vectors(path, some_rows(2))
    assert len(read_vectors(path)) == 7
    write_vectors(path, some_rows(2), overwrite=True)
    assert len(read_vectors(path)) == 2


def test_a_mapped_file_may_be_overwritten_by_a_part_of_itself(tmp_path):
    path = tmp_path / "a.fvecs"
    write_vectors(path, some_rows())
    mapped = read_vectors(path)
    write_vectors(path, mapped[::2], overwrite=True)
    np.testing.assert_array_equal(read_vectors(path), some_rows()[::2])
    np.testing.assert_array_equal(mapped, some_rows())


@pytest.mark.parametrize(
    ("suffix", "array", "problem"),
    [
        (".fvecs", np.ones((2, 2)), r"keeps float32, got float64. Convert by astype"),
        (".fvecs", np.ones((2, 2), np.int64), "keeps float32, got int64"),
        (".bvecs", np.ones((2, 2), np.float32), r"keeps integers of 0..255, got float32. Try .fvecs or .npy"),
        (".bvecs", np.array([[0, 256]]), r"keeps integers of 0..255, got 0..256"),
        (".bvecs", np.array([[-1, 2]]), r"keeps integers of 0..255, got -1..2"),
        (".ivecs", np.array([[0, 2**31]]), r"keeps integers of -2147483648..2147483647, got 0..2147483648"),
        (
            ".npy",
            np.arange(3),
            r"expected a 2-D array of numbers with rows and columns, got shape \(3,\) of int64",
        ),
        (".npy", np.empty((0, 3)), r"got shape \(0, 3\)"),
        (".npy", np.array([["a"]]), "of <U1"),
        (".ivecs", np.array([[None]]), "of object"),
    ],
)
def test_arrays_that_a_format_cannot_keep_are_refused_and_no_file_is_left(tmp_path, suffix, array, problem):
    with pytest.raises(InvalidInput, match=problem):
        write_vectors(tmp_path / f"a{suffix}", array)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("suffix", "dtype"), [(".fvecs", np.uint8), (".bvecs", np.int64), (".ivecs", np.int64)]
)
def test_other_types_are_converted_where_no_value_changes(tmp_path, suffix, dtype):
    write_vectors(tmp_path / f"a{suffix}", some_rows(dtype=dtype))
    read = read_vectors(tmp_path / f"a{suffix}")
    assert read.dtype == NUMBERS[suffix][0]
    np.testing.assert_array_equal(read, some_rows())


def test_an_extension_that_is_not_written_is_refused(tmp_path):
    with pytest.raises(DataFileError, match=r"known extensions are \.npy, \.fvecs, \.bvecs, \.ivecs"):
        write_vectors(tmp_path / "a.parquet", some_rows())


def test_rows_are_streamed_into_an_npy_that_appears_when_done(tmp_path):
    path = tmp_path / "a.npy"
    with write_npy_rows(path, (7, 3), np.float32) as out:
        for start in range(0, 7, 2):
            out[start : start + 2] = some_rows()[start : start + 2]
        assert not path.exists()
    np.testing.assert_array_equal(np.load(path), some_rows())
    with pytest.raises(ValueError, match="read-only"):
        out[0] = 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.npy"]


def test_an_exception_while_streaming_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.npy"
    write_vectors(path, some_rows())

    def stop_half_way():
        with write_npy_rows(path, (2, 2), "f4", overwrite=True) as out:
            out[0] = 1
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        stop_half_way()
    np.testing.assert_array_equal(read_vectors(path), some_rows())
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.npy"]


def test_streaming_refuses_other_names_types_and_files_in_the_way(tmp_path):
    write_vectors(tmp_path / "a.npy", some_rows())
    for path, dtype, error, problem in [
        ("a.npy", "f4", FileExists, "exists"),
        ("a.fvecs", "f4", DataFileError, "only .npy can"),
        ("b.npy", object, InvalidParameter, "dtype=.*a type of numbers"),
    ]:
        with pytest.raises(error, match=problem), write_npy_rows(tmp_path / path, (2, 2), dtype):
            raise AssertionError("the block ran")


# digits, real data


def test_the_digits_need_no_file():
    X, labels = embedded_digits()
    assert (X.shape, X.dtype, X.min(), X.max()) == ((1797, 64), np.float32, 0, 16)
    assert (labels.shape, labels.dtype, set(labels)) == ((1797,), np.int64, set(range(10)))


def test_real_images_and_descriptors_are_read_as_rows(real_data):
    images = read_vectors(real_data / "mnist" / "test_images.npy")
    assert (images.shape, images.dtype) == ((10000, 784), np.uint8)
    assert is_mapped(images)
    assert read_vectors(real_data / "siftsmall" / "base.npy").shape == (10000, 128)
