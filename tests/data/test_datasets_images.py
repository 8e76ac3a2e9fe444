"""CIFAR-10 and MNIST, made tiny in the formats in which they are published."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest

from auxbit.data import datasets
from auxbit.data.gist import gist
from auxbit.errors import DataFileError, InvalidParameter
from helpers import tiny_datasets
from helpers.tiny_datasets import LABELS, PIXELS, RANDOM, write_cifar
from helpers.vector_files import is_mapped

no_data_folder = tiny_datasets.no_data_folder


# ---- CIFAR-10


def check_cifar(found):
    images = PIXELS.transpose(0, 1, 3, 4, 2)
    assert found.name == "cifar10"
    np.testing.assert_array_equal(found.base, images[:5].reshape(-1, 32, 32, 3))
    np.testing.assert_array_equal(found.queries, images[5])
    np.testing.assert_array_equal(found.labels, LABELS[:5].reshape(-1))
    np.testing.assert_array_equal(found.query_labels, LABELS[5])
    assert found.images is found.base
    assert found.classes[3] == "cat"


@pytest.mark.parametrize("form", ["binary", "binary inner", "binary archive"])
def test_cifar_is_read_from_its_binary_archive_and_from_what_it_holds(tmp_path, form):
    write_cifar(tmp_path, form)
    check_cifar(datasets.load(tmp_path))
    check_cifar(datasets.load("cifar10", data=tmp_path))
    if "archive" in form:
        check_cifar(datasets.load(next(tmp_path.iterdir())))


@pytest.mark.parametrize("form", ["python", "python inner", "python archive"])
def test_the_python_version_of_cifar_is_refused_and_the_binary_one_is_named(tmp_path, form):
    write_cifar(tmp_path, form)
    sources = [(tmp_path, None), ("cifar10", tmp_path)]
    if "archive" in form:
        sources.append((next(tmp_path.iterdir()), None))
    for source, data in sources:
        with pytest.raises(DataFileError, match=r"Python version of CIFAR-10.*Use cifar-10-binary\.tar\.gz"):
            datasets.load(source, data=data)
    write_cifar(tmp_path, "binary")
    check_cifar(datasets.load(tmp_path))


def test_cifar_as_npy_is_memory_mapped(tmp_path):
    images = PIXELS.transpose(0, 1, 3, 4, 2)
    np.save(tmp_path / "train_images.npy", images[:5].reshape(-1, 32, 32, 3))
    np.save(tmp_path / "train_labels.npy", LABELS[:5].reshape(-1))
    np.save(tmp_path / "test_images.npy", images[5])
    with pytest.raises(DataFileError, match=r"lacks test_labels\.npy"):
        datasets.load(tmp_path)
    np.save(tmp_path / "test_labels.npy", LABELS[5])
    check_cifar(datasets.load(tmp_path))
    assert is_mapped(datasets.load(tmp_path).base)


def test_cifar_that_is_not_whole_or_not_cifar_is_refused(tmp_path):
    write_cifar(tmp_path, "binary")
    whole = (tmp_path / "data_batch_2.bin").read_bytes()
    (tmp_path / "data_batch_2.bin").write_bytes(whole[:-1])
    with pytest.raises(DataFileError, match="data_batch_2 has 12291 bytes; expected a multiple of 3073"):
        datasets.load(tmp_path)
    (tmp_path / "data_batch_2.bin").write_bytes(b"\x0a" + whole[1:])
    with pytest.raises(DataFileError, match="has the label 10"):
        datasets.load(tmp_path)
    (tmp_path / "data_batch_2.bin").unlink()
    with pytest.raises(DataFileError, match="lacks data_batch_2, of the six batches"):
        datasets.load(tmp_path)


def test_a_broken_archive_is_refused(tmp_path):
    write_cifar(tmp_path, "binary archive")
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(DataFileError, match=r"cannot be read as CIFAR-10|lacks"):
        datasets.load(path)
    path.write_bytes(b"nothing")
    with pytest.raises(DataFileError, match="cannot be read as CIFAR-10"):
        datasets.load(path)


def test_a_batch_of_gigabytes_is_not_even_read(tmp_path, monkeypatch):
    write_cifar(tmp_path, "binary archive")
    monkeypatch.setattr(datasets, "MOST_BYTES", 1000)
    with pytest.raises(DataFileError, match="has 12292 bytes; a batch of CIFAR-10"):
        datasets.load(tmp_path)


def test_the_vectors_of_colour_images_are_gist_cached_where_asked(tmp_path):
    folder, cache = tmp_path / "data", tmp_path / "cache"
    folder.mkdir()
    write_cifar(folder, "binary")
    found, done = datasets.load(folder), []
    made = found.vectors(n_jobs=1, progress=done.append)
    assert not cache.exists()
    assert sum(done) == 24
    np.testing.assert_array_equal(made.base, gist(found.base))
    np.testing.assert_array_equal(made.queries, gist(found.queries))
    assert made.learn is made.base
    for _ in range(2):
        np.testing.assert_array_equal(found.vectors(cache=cache).base, made.base)
    assert len(list(cache.iterdir())) == 2
    assert found.vectors("pixels").queries.shape == (4, 3072)
    with pytest.raises(InvalidParameter, match="kind='sift'"):
        found.vectors("sift")


# ---- MNIST


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


MNIST = {
    "train-images-idx3-ubyte": RANDOM.integers(0, 256, (7, 28, 28), dtype=np.uint8),
    "train-labels-idx1-ubyte": RANDOM.integers(0, 10, 7, dtype=np.uint8),
    "t10k-images-idx3-ubyte": RANDOM.integers(0, 256, (3, 28, 28), dtype=np.uint8),
    "t10k-labels-idx1-ubyte": RANDOM.integers(0, 10, 3, dtype=np.uint8),
}


def check_mnist(found):
    assert found.name == "mnist"
    parts = (found.base, found.labels, found.queries, found.query_labels)
    for part, expected in zip(parts, MNIST.values(), strict=True):
        np.testing.assert_array_equal(part, expected)
    np.testing.assert_array_equal(found.vectors().base, found.base.reshape(7, 784))
    np.testing.assert_array_equal(found.vectors("gist").queries, gist(found.queries))


@pytest.mark.parametrize("form", ["plain", "gz", "dots", "npy"])
def test_mnist_is_read_from_idx_zipped_or_not_and_from_npy(tmp_path, form):
    stems = ("train_images", "train_labels", "test_images", "test_labels")
    for (name, array), stem in zip(MNIST.items(), stems, strict=True):
        if form == "npy":
            np.save(tmp_path / f"{stem}.npy", array)
        elif form == "gz":
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
        else:
            (tmp_path / (name.replace("-idx", ".idx") if form == "dots" else name)).write_bytes(idx(array))
    found = datasets.load("mnist", data=tmp_path)
    check_mnist(found)
    assert is_mapped(found.base) == (form != "gz")


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda raw: raw[:-1], "cut short or too long: expected 5488 bytes"),
        (lambda raw: raw + b"0", "cut short or too long"),
        (lambda raw: raw[:10], "cut short: its header ends after 10 bytes"),
        (lambda raw: raw[:2], "not an idx file"),
        (lambda raw: b"\0\0\x0d\x03" + raw[4:], "not an idx file of unsigned bytes"),
        (lambda raw: raw[:4] + b"\xff" * 12 + raw[16:], "cut short or too long"),
    ],
)
def test_a_broken_idx_file_is_refused(tmp_path, zipped, change, complaint):
    raw = change(idx(MNIST["train-images-idx3-ubyte"]))
    path = tmp_path / ("a.gz" if zipped else "a")
    path.write_bytes(gzip.compress(raw) if zipped else raw)
    with pytest.raises(DataFileError, match=complaint):
        datasets.read_idx(path)
