"""Rows that are read by slices: the same whatever they lie in."""

from __future__ import annotations

import os
import threading

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxbit.data.vectors import fingerprint, open_rows, take_rows
from auxbit.errors import DataFileError, InvalidInput
from helpers.large_rows import KINDS, OnlySlices, clustered, stored, write_parquet

N = 900
X = clustered(N, 5, np.uint8)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """X in all kinds of files and objects."""
    types = {".fvecs": np.float32, ".parquet": np.float64}
    made = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp("rows")
        made[kind] = open_rows(stored(kind, X.astype(types.get(kind, np.uint8)), folder))
    return made


@pytest.mark.parametrize("kind", KINDS)
@given(start=st.integers(0, N + 5), length=st.integers(0, N + 5))
def test_a_slice_is_the_same_rows_in_any_kind_of_file(sources, kind, start, length):
    np.testing.assert_array_equal(sources[kind][start : start + length], X[start : start + length])


@pytest.mark.parametrize("kind", KINDS)
@given(rows=st.sets(st.integers(0, N - 1), max_size=80))
def test_rows_are_taken_by_their_numbers(sources, kind, rows):
    wanted = np.array(sorted(rows), dtype=np.int64)
    np.testing.assert_array_equal(take_rows(sources[kind], wanted), X[wanted])


@pytest.mark.parametrize("kind", KINDS)
def test_shape_and_length_are_known_before_rows_are_read(sources, kind):
    assert sources[kind].shape == X.shape
    assert len(sources[kind]) == N
    assert sources[kind].dtype == sources[kind][0:1].dtype


def test_few_rows_of_many_are_read_one_by_one_and_many_by_blocks():
    asked = []

    class Noting(OnlySlices):
        def __getitem__(self, rows):
            asked.append(rows.stop - rows.start)
            return super().__getitem__(rows)

    source = open_rows(Noting(np.zeros((20_000, 2), dtype=np.float32)))
    asked.clear()
    take_rows(source, np.array([3, 9000, 19_999]))
    assert asked == [1, 1, 1]
    asked.clear()
    take_rows(source, np.arange(0, 20_000, 50))
    assert len(asked) == 5
    assert max(asked) <= 4096


def test_threads_that_read_parquet_at_once_get_their_own_rows(tmp_path):
    path = tmp_path / "rows.parquet"
    rows = clustered(30_000, 3)
    write_parquet(path, rows, 7000)
    source, wrong = open_rows(path), []

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for start in rng.integers(0, 30_000, 15):
            if not np.array_equal(source[start : start + 500], rows[start : start + 500]):
                wrong.append(start)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_rows_of_parquet_that_follow_each_other_are_decoded_once(tmp_path, monkeypatch):
    path = tmp_path / "rows.parquet"
    write_parquet(path, clustered(20_000, 3), 20_000)
    source, opened = open_rows(path), []
    monkeypatch.setattr(pq, "ParquetFile", _counting(pq.ParquetFile, opened))
    for start in range(0, 20_000, 1000):
        source[start : start + 1000]
    assert len(opened) == 1


def _counting(original, calls):
    def opening(*arguments, **options):
        calls.append(arguments)
        return original(*arguments, **options)

    return opening


def test_a_folder_of_parquet_is_read_by_name_with_folders_in_it_and_without_empty_parts(tmp_path):
    write_parquet(tmp_path / "b.parquet", X[100:200])
    write_parquet(tmp_path / "a.parquet", X[:100])
    (tmp_path / "c").mkdir()
    write_parquet(tmp_path / "c" / "d.parquet", X[200:300])
    write_parquet(tmp_path / "aa.parquet", X[:0])
    np.testing.assert_array_equal(open_rows(tmp_path)[:], X[:300])


def test_parts_of_parquet_with_columns_in_another_order_are_read_by_their_names(tmp_path):
    pq.write_table(pa.table({"a": [1.0, 2.0], "b": [10.0, 20.0]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"b": [30.0], "a": [3.0]}), tmp_path / "b.parquet")
    np.testing.assert_array_equal(open_rows(tmp_path)[:], [[1, 10], [2, 20], [3, 30]])


def test_parts_of_parquet_with_other_types_share_one_that_holds_both(tmp_path):
    write_parquet(tmp_path / "a.parquet", X[:10])
    write_parquet(tmp_path / "b.parquet", X[10:20].astype(np.float32) + 0.5)
    rows = open_rows(tmp_path)
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows[5:15], np.vstack([X[5:10], X[10:15] + 0.5]))


def test_images_in_hdf5_become_rows_as_they_do_in_npy(tmp_path):
    images = np.arange(5 * 2 * 3).reshape(5, 2, 3)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["train"] = images
    np.testing.assert_array_equal(open_rows(tmp_path / "x.h5")[1:4], images.reshape(5, -1)[1:4])


def test_the_key_of_a_dataset_is_in_the_path(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["train"], file["other"] = X[:3], X[3:7]
    np.testing.assert_array_equal(open_rows(f"{tmp_path}/x.h5:other")[:], X[3:7])


def test_a_fingerprint_tells_rows_from_others_and_not_files_from_arrays(sources):
    assert fingerprint(sources[".npy"]) == fingerprint(sources["folder"]) == fingerprint(X)
    other = X.copy()
    other[-1, 0] ^= 1
    assert fingerprint(other) != fingerprint(X)


def test_a_fingerprint_is_of_a_few_rows_only(tmp_path):
    counted = []

    class Noting(OnlySlices):
        def __getitem__(self, rows):
            counted.append(len(super().__getitem__(rows)))
            return super().__getitem__(rows)

    fingerprint(open_rows(Noting(np.zeros((10_000, 2)))))
    assert sum(counted) <= 400


def broken_parquet(folder):
    (folder / "x.parquet").write_bytes(b"PAR1 and nothing of the kind")
    return folder / "x.parquet"


def broken_hdf5(folder):
    (folder / "x.h5").write_bytes(b"not HDF5")
    return folder / "x.h5"


def empty_file(folder):
    (folder / "x.parquet").touch()
    return folder / "x.parquet"


def packed_arrays(folder):
    np.savez(folder / "x.npz", X)
    return folder / "x.npz"


def parts_of_other_width(folder):
    write_parquet(folder / "a.parquet", X[:3])
    write_parquet(folder / "b.parquet", X[:3, :2])
    return folder


def parts_of_other_columns(folder):
    pq.write_table(pa.table({"a": [1.0], "b": [2.0]}), folder / "a.parquet")
    pq.write_table(pa.table({"a": [1.0], "c": [2.0]}), folder / "b.parquet")
    return folder


def unknown_suffix(folder):
    (folder / "x.csv").write_text("1,2\n")
    return folder / "x.csv"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (broken_parquet, r"x\.parquet cannot be read as \.parquet"),
        (broken_hdf5, r"x\.h5 cannot be read as \.h5"),
        (empty_file, r"x\.parquet is empty"),
        (packed_arrays, r"x\.npz can only be read whole.*Save it as \.npy"),
        (parts_of_other_width, r"b\.parquet has rows of 2 numbers, but .*a\.parquet of 5"),
        (parts_of_other_columns, r"b\.parquet lacks the column 'b', which .*a\.parquet has\. Give the files"),
        (unknown_suffix, r"unknown extension '\.csv'"),
        (lambda folder: folder, r"is a folder without \.parquet files"),
        (lambda folder: folder / "none.npy", r"none\.npy does not exist"),
        (lambda folder: folder / "none.parquet", r"none\.parquet does not exist"),
    ],
)
def test_a_path_that_holds_no_rows_is_refused(tmp_path, make, why):
    with pytest.raises(DataFileError, match=why):
        open_rows(make(tmp_path))


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (np.zeros(5), r"must have rows and columns.*\(5,\)"),
        (np.zeros((0, 5)), r"must have rows and columns.*\(0, 5\)"),
        (np.zeros((5, 2, 2)), r"must have rows and columns"),
        (np.array([["a", "b"]]), r"must be numbers"),
        (OnlySlices(np.array([["a", "b"]])), r"must be numbers"),
        (OnlySlices(np.zeros((3, 2), dtype=complex)), r"must be numbers"),
    ],
)
def test_what_is_not_rows_of_numbers_is_refused(rows, why):
    with pytest.raises(InvalidInput, match=why):
        open_rows(rows)


def test_an_object_whose_slices_are_not_rows_is_refused():
    class Columns(OnlySlices):
        def __getitem__(self, rows):
            return self._X[:, rows]

    with pytest.raises(InvalidInput, match=r"X\[0:1\] has \(3, 1\)"):
        open_rows(Columns(np.zeros((3, 2))))


@pytest.mark.parametrize(
    "later", [np.zeros((2, 2)), np.zeros((4, 2)), np.zeros((3, 3)), np.zeros((3, 2), np.float32)]
)
def test_slices_of_another_shape_or_type_than_the_first_are_refused(later):
    class Changing(OnlySlices):
        def __getitem__(self, rows):
            return later if rows.start else self._X[rows]

    rows = open_rows(Changing(np.zeros((6, 2))))
    with pytest.raises(InvalidInput, match=r"X changed while it was read: rows 2 to 5 are now "):
        rows[2:5]


def test_rows_of_a_mapped_file_that_was_cut_short_are_not_taken(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((5000, 16), np.float32))
    rows = np.load(tmp_path / "x.npy", mmap_mode="r")
    os.truncate(tmp_path / "x.npy", 200)
    with pytest.raises(DataFileError, match=r"x\.npy was cut short while it was in use: it has 200 bytes"):
        take_rows(rows, np.array([3, 4000]))


@pytest.mark.parametrize("n", [100, 130, 70])
def test_parquet_that_is_replaced_while_it_is_read_is_refused(tmp_path, monkeypatch, n):
    monkeypatch.setattr("auxbit.data.vectors.resolve_n_jobs", lambda n_jobs: 1)  # so that few chunks are kept
    write_parquet(tmp_path / "a.parquet", X[:100], 10)
    write_parquet(tmp_path / "b.parquet", X[100:200], 10)
    rows = open_rows(tmp_path)
    np.testing.assert_array_equal(rows[:], X[:200])
    write_parquet(tmp_path / "a.parquet", X[300 : 300 + n], 10)
    with pytest.raises(DataFileError, match=r"a\.parquet was changed while it was read\. Begin again"):
        rows[:]


def test_a_null_in_the_middle_of_parquet_names_its_row(tmp_path):
    values = [[1.0, 2.0], [3.0, 4.0], [5.0, None], [7.0, 8.0]]
    pq.write_table(pa.table({"v": pa.array(values)}), tmp_path / "x.parquet")
    rows = open_rows(tmp_path / "x.parquet")
    for _ in range(2):  # the second to ask is told the same
        with pytest.raises(DataFileError, match=r"has a null in row 2"):
            rows[0:4]
