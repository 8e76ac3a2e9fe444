"""Which data set a folder holds, and what is said where there is none."""

from __future__ import annotations

import pytest

from auxbit.data import datasets
from auxbit.errors import DataFileError
from helpers import tiny_datasets
from helpers.tiny_datasets import write_cifar
from helpers.vector_files import is_mapped

no_data_folder = tiny_datasets.no_data_folder


@pytest.mark.parametrize(
    ("name", "site", "file"),
    [
        ("cifar10", "cs.toronto.edu/~kriz/cifar", "data_batch_1.bin"),
        ("mnist", "yann.lecun.com", "train-images-idx3-ubyte"),
        ("siftsmall", "corpus-texmex.irisa.fr", "siftsmall_base.fvecs"),
        ("sift1m", "corpus-texmex.irisa.fr", "sift_base.fvecs"),
        ("sift_photos", "not published", "base.npy"),
        ("nuswide", "lms.comp.nus.edu.sg", "Train_Normalized_WT.dat"),
        ("nuswide-lite", "lms.comp.nus.edu.sg", "Normalized_WT_Lite_Train.dat"),
    ],
)
def test_a_missing_data_set_says_where_it_is_published_and_which_files_are_expected(
    tmp_path, monkeypatch, name, site, file
):
    monkeypatch.chdir(tmp_path)
    for data, complaint in ((None, "has no folder to be in"), (tmp_path, "was not found in")):
        with pytest.raises(DataFileError, match=complaint) as raised:
            datasets.load(name, data=data)
        for expected in (site, file, "--data", "AUXBIT_DATA"):
            assert expected in str(raised.value)
    monkeypatch.setenv("AUXBIT_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataFileError, match="was not found in"):
        datasets.load(name)


def test_a_path_with_nothing_known_in_it_says_what_is_known(tmp_path):
    with pytest.raises(DataFileError, match="Did you mean mnist"):
        datasets.load("mnst")
    with pytest.raises(DataFileError, match="is not a known data set"):
        datasets.load(tmp_path)
    (tmp_path / "a.txt").write_text("1 2 3")
    with pytest.raises(DataFileError, match="is not a known data set"):
        datasets.load(tmp_path / "a.txt")


def test_a_folder_of_another_data_set_is_not_taken_for_the_one_asked_for(tmp_path):
    write_cifar(tmp_path, "binary")
    with pytest.raises(DataFileError, match="mnist was not found"):
        datasets.load("mnist", data=tmp_path)


def test_the_real_folders_are_recognised(real_data, monkeypatch):
    monkeypatch.setenv("AUXBIT_DATA", str(real_data))
    shapes = {"mnist": (60000, 28, 28), "siftsmall": (10000, 128), "sift_photos": (200000, 128)}
    there = {name: shape for name, shape in shapes.items() if (real_data / name).is_dir()}
    for name, shape in there.items():
        found = datasets.load(name)
        assert found.name == name
        assert found.base.shape == shape
        assert is_mapped(found.base)
