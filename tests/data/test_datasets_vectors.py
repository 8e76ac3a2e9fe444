"""SIFT, NUS-WIDE and other vectors, made tiny in the formats in which they are published."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from auxbit.data import datasets
from auxbit.data.vectors import write_vectors
from auxbit.errors import DataFileError, InvalidParameter
from helpers import tiny_datasets
from helpers.tiny_datasets import RANDOM
from helpers.vector_files import is_mapped

no_data_folder = tiny_datasets.no_data_folder


# ---- SIFT and other vectors


@pytest.mark.parametrize(("prefix", "name"), [("sift", "sift1m"), ("siftsmall", "siftsmall")])
def test_texmex_files_are_read_memory_mapped(tmp_path, prefix, name):
    parts = {
        part: RANDOM.random((n, 4)).astype(np.float32)
        for part, n in (("base", 9), ("query", 2), ("learn", 5))
    }
    for part, rows in parts.items():
        write_vectors(tmp_path / f"{prefix}_{part}.fvecs", rows)
    truth = RANDOM.integers(0, 9, (2, 3)).astype(np.int32)
    write_vectors(tmp_path / f"{prefix}_groundtruth.ivecs", truth)
    found = datasets.load(name, data=tmp_path)
    assert found.name == name
    assert is_mapped(found.base)
    np.testing.assert_array_equal(found.neighbours, truth)
    for part, rows in zip(found.vectors(), parts.values(), strict=True):
        np.testing.assert_array_equal(part, rows)
    other = {"sift1m": "siftsmall", "siftsmall": "sift1m"}[name]
    with pytest.raises(DataFileError, match=f"{other} was not found"):
        datasets.load(other, data=tmp_path)


def test_folders_of_npy_vectors_are_read_by_name_and_by_path(tmp_path, monkeypatch):
    base, query = (
        RANDOM.integers(0, 256, (9, 4), dtype=np.uint8),
        RANDOM.integers(0, 256, (2, 4), dtype=np.uint8),
    )
    folder = tmp_path / "sift_photos"
    folder.mkdir()
    np.save(folder / "base.npy", base)
    np.save(folder / "query.npy", query)
    monkeypatch.setenv("AUXBIT_DATA", str(tmp_path))
    for found in (
        datasets.load("sift_photos"),
        datasets.load(folder),
        datasets.load("sift_photos", data=folder),
    ):
        assert found.name == "sift_photos"
        np.testing.assert_array_equal(found.base, base)
        np.testing.assert_array_equal(found.queries, query)
        assert found.vectors().learn.base is not None
        assert found.neighbours is None
        assert found.images is None
    with pytest.raises(InvalidParameter, match="these are vectors already"):
        found.vectors("gist")


def test_ann_benchmarks_files_are_read(tmp_path):
    base, queries = RANDOM.random((9, 4)).astype(np.float32), RANDOM.random((2, 4)).astype(np.float32)
    neighbours = RANDOM.integers(0, 9, (2, 3)).astype(np.int32)
    with h5py.File(tmp_path / "glove-4-angular.hdf5", "w") as file:
        file["train"], file["test"], file["neighbors"] = base, queries, neighbours
        file["distances"] = np.zeros((2, 3), np.float32)
    found = datasets.load(tmp_path / "glove-4-angular.hdf5")
    assert found.name == "glove-4-angular"
    for part, expected in ((found.base, base), (found.queries, queries), (found.neighbours, neighbours)):
        np.testing.assert_array_equal(part, expected)


@pytest.mark.parametrize("wrong", ["query", "groundtruth", "learn"])
def test_parts_that_do_not_fit_together_are_refused(tmp_path, wrong):
    shapes = {"base": (9, 4), "query": (2, 4), "learn": (5, 4), "groundtruth": (2, 3)}
    shapes[wrong] = (3, 5)
    for part, shape in shapes.items():
        np.save(tmp_path / f"{part}.npy", np.zeros(shape, np.int32))
    with pytest.raises(DataFileError, match=r"have shape|has \d lists of neighbours for \d rows"):
        datasets.load(tmp_path)


def test_the_digits_need_no_folder():
    found = datasets.load("digits")
    assert found.base.shape == (1497, 64)
    assert found.queries.shape == (300, 64)
    together = np.concatenate([found.base, found.queries])
    from auxbit.data.vectors import embedded_digits

    X, labels = embedded_digits()
    assert sorted(map(bytes, together)) == sorted(map(bytes, X))
    assert (
        np.bincount(np.concatenate([found.labels, found.query_labels])).tolist()
        == np.bincount(labels).tolist()
    )


# ---- NUS-WIDE


def write_text(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(" ".join(f"{value:g}" for value in row) + " \n" for row in rows))


def write_nuswide(folder, lite):
    """Two features and two concepts of five and three images, in the folders of the archives."""
    made = {}
    for split, n in (("Train", 5), ("Test", 3)):
        for kind, width in (("CH", 3), ("WT", 2)):
            rows = np.round(RANDOM.random((n, width)), 4)
            made[kind, split] = rows.astype(np.float32)
            name = f"Normalized_{kind}_Lite_{split}.dat" if lite else f"{split}_Normalized_{kind}.dat"
            write_text(folder / ("NUS-WIDE-Lite_features" if lite else "Low_Level_Features") / name, rows)
        if not lite:
            made["BoW", split] = RANDOM.integers(0, 9, (n, 4))
            write_text(folder / "Low_Level_Features" / f"BoW_{split}_int.dat", made["BoW", split])
            write_text(
                folder / "Low_Level_Features" / "Normalized_CH.dat", [[1, 2, 3]]
            )  # both splits: not used
        for concept in ("sky", "airport"):
            made[concept, split] = RANDOM.integers(0, 2, (n, 1))
            name = f"{'Lite_' if lite else ''}Labels_{concept}_{split}.txt"
            write_text(folder / "Groundtruth" / name, made[concept, split])
    return made


@pytest.mark.parametrize("name", ["nuswide", "nuswide-lite"])
def test_nus_wide_is_read_from_its_text_files(tmp_path, name):
    made = write_nuswide(tmp_path / name, name == "nuswide-lite")
    found = datasets.load(name, data=tmp_path)
    assert found.name == name
    np.testing.assert_array_equal(found.base, made["WT", "Train"])
    np.testing.assert_array_equal(found.queries, made["WT", "Test"])
    assert found.classes == ("airport", "sky")
    np.testing.assert_array_equal(found.labels, np.hstack([made["airport", "Train"], made["sky", "Train"]]))
    assert found.query_labels.shape == (3, 2)
    both = datasets.load(tmp_path / name, feature_files=("WT", "CH"))
    np.testing.assert_array_equal(both.queries, np.hstack([made["WT", "Test"], made["CH", "Test"]]))


def test_features_of_nus_wide_are_chosen_and_missing_ones_are_named(tmp_path):
    made = write_nuswide(tmp_path, False)
    np.testing.assert_array_equal(datasets.load(tmp_path, feature_files=("BoW",)).base, made["BoW", "Train"])
    with pytest.raises(
        DataFileError, match="lacks the features EDH of Train, EDH of Test; there are BoW, CH, WT"
    ):
        datasets.load(tmp_path, feature_files=("EDH",))
    with pytest.raises(InvalidParameter, match="feature_files='WAVELET'"):
        datasets.load(tmp_path, feature_files=("WAVELET",))
    for file in (tmp_path / "Groundtruth").iterdir():
        file.unlink()
    assert datasets.load(tmp_path).labels is None
