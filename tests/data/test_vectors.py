"""Vectors in .npy, .npz, .fvecs, .bvecs and .ivecs: what is read, and what is refused."""

from __future__ import annotations

import pickle
import struct
import zipfile

import numpy as np
import pytest

from auxbit.data import vectors
from auxbit.data.vectors import read_vectors, write_vectors
from auxbit.errors import DataFileError, InvalidParameter
from helpers.vector_files import NUMBERS, is_mapped, some_rows

# ---- .npy and .npz


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


def test_an_array_that_is_longer_than_its_header_says_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", some_rows(20))
    changed = (tmp_path / "a.npy").read_bytes().replace(b"(20, 3)", b"(10, 3)")
    (tmp_path / "a.npy").write_bytes(changed)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("v.npy", changed)
    problem = "is longer than its header says: expected 10 rows of 12 bytes, there are 20 whole rows"
    with pytest.raises(DataFileError, match=rf"a\.npy {problem}"):
        read_vectors(tmp_path / "a.npy")
    with pytest.raises(DataFileError, match=r"a\.npz: v\.npy is longer than its header says"):
        read_vectors(tmp_path / "a.npz")


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
    (np.save if suffix == ".npy" else np.savez)(path, array)
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


# ---- .fvecs, .bvecs, .ivecs


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
    monkeypatch.setattr(vectors, "SAMPLED_HEADERS", 1000)
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
