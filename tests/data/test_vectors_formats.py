"""Files of vectors of every format: there and back, and what is not there or not what it seems."""

from __future__ import annotations

import os
import struct
import tempfile
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from auxbit.core import checks
from auxbit.data import vectors
from auxbit.data.vectors import embedded_digits, read_vectors, write_vectors
from auxbit.errors import DataFileError, InvalidParameter, MissingExtra
from helpers.vector_files import NUMBERS, is_mapped, save_lists, some_rows


def matrices(dtype):
    shapes = st.tuples(st.integers(1, 9), st.integers(1, 9))
    return hnp.arrays(dtype, shapes, elements=hnp.from_dtype(np.dtype(dtype), allow_nan=False))


# ---- every format, there and back


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
    monkeypatch.setattr(vectors, "CHUNK_BYTES", 40)
    rows = some_rows(11, 2)
    write_vectors(tmp_path / "a.fvecs", rows)
    expected = b"".join(struct.pack("<iff", 2, *map(float, row)) for row in rows)
    assert (tmp_path / "a.fvecs").read_bytes() == expected


def test_extensions_may_be_upper_case(tmp_path):
    write_vectors(tmp_path / "A.FVECS", some_rows())
    np.testing.assert_array_equal(read_vectors(tmp_path / "A.FVECS"), some_rows())


# ---- files that are not there, or not what they seem


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


def npy(shape: object, content: bytes) -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + content


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.parametrize("shape", [(-1, 4), (-2, -2), (2**60, 4), (2**33, 4), (2**62, 2**62, 4)])
def test_a_header_that_lies_is_refused_before_memory_is_taken(tmp_path, suffix, shape, little_memory):
    path, content = tmp_path / f"a{suffix}", npy(shape, bytes(64))
    if suffix == ".npz":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.npy", content)
    else:
        path.write_bytes(content)
    with pytest.raises(DataFileError, match=r"less than nothing|truncated|its header promises"):
        read_vectors(path)


def test_an_archive_in_a_compression_without_limits_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.npy", npy((4, 4), bytes(64)))
    with pytest.raises(DataFileError, match="has a compression that NumPy does not use"):
        read_vectors(tmp_path / "a.npz")


def test_an_unknown_extension_lists_the_known_ones(tmp_path):
    (tmp_path / "a.csv").write_text("1,2")
    with pytest.raises(
        DataFileError,
        match=r"unknown extension '\.csv'\. Known: \.npy, \.npz, .*\.hdf5\. Save its vectors as \.npy",
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
    monkeypatch.setattr(checks.importlib, "import_module", missing)
    with pytest.raises(MissingExtra, match=rf"needs {package}: pip install 'auxbit\[data\]'"):
        read_vectors(tmp_path / f"a{suffix}")


# ---- digits, real data


def test_the_digits_need_no_file():
    X, labels = embedded_digits()
    assert (X.shape, X.dtype, X.min(), X.max()) == ((1797, 64), np.float32, 0, 16)
    assert (labels.shape, labels.dtype, set(labels)) == ((1797,), np.int64, set(range(10)))


def test_real_images_and_descriptors_are_read_as_rows(real_data):
    images = read_vectors(real_data / "mnist" / "test_images.npy")
    assert (images.shape, images.dtype) == ((10000, 784), np.uint8)
    assert is_mapped(images)
    assert read_vectors(real_data / "siftsmall" / "base.npy").shape == (10000, 128)
