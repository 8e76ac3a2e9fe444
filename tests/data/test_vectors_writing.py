"""Writing vectors: whole files or none, types that a format keeps, and rows streamed into an .npy."""

from __future__ import annotations

import numpy as np
import pytest

from auxbit.data.vectors import read_vectors, write_npy_rows, write_vectors
from auxbit.errors import DataFileError, FileExists, InvalidInput, InvalidParameter
from helpers.vector_files import NUMBERS, some_rows


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
