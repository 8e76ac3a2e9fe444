"""Published data sets, made tiny in the formats in which they are published."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auxbit import dataset_files, datasets
from auxbit.data import write_vectors
from auxbit.dataset_files import CIFAR_BATCHES, read_plain_pickle
from auxbit.errors import DataFileError, InvalidParameter
from auxbit.features import gist

RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (6, 4, 3, 32, 32), dtype=np.uint8)  # six batches of four images
LABELS = RANDOM.integers(0, 10, (6, 4), dtype=np.uint8)


@pytest.fixture(autouse=True)
def no_data_folder(monkeypatch):
    monkeypatch.delenv("AUXBIT_DATA", raising=False)


def is_mapped(array):
    while array is not None and not isinstance(array, np.memmap):
        array = getattr(array, "base", None)
    return array is not None


# ---- CIFAR-10


def python_batch(pixels, labels):
    """As Python 2's cPickle wrote it in 2009: protocol 2, bytes as strings, NumPy's names of that time."""

    def text(value):
        return b"U" + bytes([len(value)]) + value.encode()

    values = pixels.tobytes()
    dtype = b"cnumpy\ndtype\nq\x05" + text("u1") + b"K\x00K\x01\x87q\x06Rq\x07"
    dtype += b"(K\x03" + text("|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x08b"
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85q\x04" + text("b")
    array += b"\x87q\x09Rq\x0a(K\x01M" + struct.pack("<H", len(pixels)) + b"M\x00\x0c\x86q\x0b" + dtype
    array += b"\x89T" + struct.pack("<i", len(values)) + values + b"tq\x0cb"
    numbers = b"]q\x0d(" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    names = b"]q\x0e(" + b"".join(text(f"photo_{i}.png") for i in range(len(labels))) + b"e"
    pairs = text("data") + array + text("labels") + numbers + text("batch_label") + text("batch 1 of 5")
    return b"\x80\x02}q\x01(" + pairs + text("filenames") + names + b"u."


def cifar_files(binary):
    """The content of each batch's file, by name."""
    made = {}
    for name, pixels, labels in zip(CIFAR_BATCHES, PIXELS, LABELS, strict=True):
        flat = pixels.reshape(len(pixels), -1)
        if binary:
            made[f"{name}.bin"] = np.concatenate([labels[:, None], flat], axis=1).tobytes()
        else:
            made[name] = python_batch(flat, labels)
    return made


def write_archive(path, files, folder):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def write_cifar(folder, form):
    binary = "binary" in form
    files, inner = cifar_files(binary), "cifar-10-batches-bin" if binary else "cifar-10-batches-py"
    if "archive" in form:
        write_archive(folder / f"cifar-10-{'binary' if binary else 'python'}.tar.gz", files, inner)
        return
    target = folder / inner if "inner" in form else folder
    target.mkdir(exist_ok=True)
    for name, content in files.items():
        (target / name).write_bytes(content)


def check_cifar(found):
    images = PIXELS.transpose(0, 1, 3, 4, 2)
    assert found.name == "cifar10"
    np.testing.assert_array_equal(found.base, images[:5].reshape(-1, 32, 32, 3))
    np.testing.assert_array_equal(found.queries, images[5])
    np.testing.assert_array_equal(found.labels, LABELS[:5].reshape(-1))
    np.testing.assert_array_equal(found.query_labels, LABELS[5])
    assert found.images is found.base
    assert found.classes[3] == "cat"


@pytest.mark.parametrize(
    "form", ["binary", "python", "binary inner", "python inner", "binary archive", "python archive"]
)
def test_cifar_is_read_from_either_archive_and_from_what_they_hold(tmp_path, form):
    write_cifar(tmp_path, form)
    check_cifar(datasets.load(tmp_path))
    check_cifar(datasets.load("cifar10", data=tmp_path))
    if "archive" in form:
        check_cifar(datasets.load(next(tmp_path.iterdir())))


def test_the_batch_that_the_tests_make_is_a_pickle_that_python_reads_alike():
    raw = python_batch(PIXELS[0].reshape(4, -1), LABELS[0])
    content = pickle.loads(raw, encoding="latin-1")
    np.testing.assert_array_equal(content["data"], PIXELS[0].reshape(4, -1))
    assert content["labels"] == LABELS[0].tolist()


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_batches_that_python_3_pickled_again_are_read_too(tmp_path, protocol):
    for name, pixels, labels in zip(CIFAR_BATCHES, PIXELS, LABELS, strict=True):
        content = {"data": pixels.reshape(4, -1), "labels": labels.tolist(), "filenames": ["a"] * 4}
        (tmp_path / name).write_bytes(pickle.dumps(content, protocol))
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


class Crafted:
    """Would write a file if it were unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


class CallsEval:
    def __reduce__(self):
        return eval, ("1 + 1",)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_malicious_batch_is_refused_and_nothing_of_it_is_run(tmp_path, protocol):
    folder, trace = tmp_path / "data", tmp_path / "trace"
    folder.mkdir()
    write_cifar(folder, "python")
    for bad in (Crafted(trace), {"data": Crafted(trace), "labels": []}, CallsEval()):
        (folder / "data_batch_3").write_bytes(pickle.dumps(bad, protocol))
        with pytest.raises(DataFileError, match=r"data_batch_3 is refused: its pickle (names|has)"):
            datasets.load(folder)
    assert not trace.exists()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x80\x02",
        b"\x80\x02.",
        b"\x80\x02}q\x01(u",
        b"\x80\x02R.",
        b"\x80\x02Nb.",
        b"\x80\x02]K\x01K\x02u.",
        b"\x80\x02jq\x00\x00\x00.",
        b"\x80\x02r\xff\xff\xff\x7f.",
        b"cos\nsystem\n(S'true'\ntR.",
        b"(S'true'\nios\nsystem\n.",
        b"\x80\x02T\xff\xff\xff\x7fabc.",
        b"\x80\x02K\x01K\x01\x86\x81.",
        b"not a pickle",
    ],
)
def test_broken_and_crafted_pickles_are_refused(raw):
    with pytest.raises(DataFileError, match="it is"):
        read_plain_pickle(raw, "it")


@settings(max_examples=200)
@given(st.data())
def test_a_batch_with_some_bytes_changed_is_read_or_refused(drawn):
    raw = bytearray(python_batch(PIXELS[0, :1].reshape(1, -1), LABELS[0, :1]))
    small = [*range(330), *range(len(raw) - 120, len(raw))]  # not within the pixels
    for at in drawn.draw(st.lists(st.sampled_from(small), min_size=1, max_size=4)):
        raw[at] = drawn.draw(st.integers(0, 255))
    try:
        images, labels = dataset_files._batch("it", bytes(raw), False)
    except DataFileError:
        return
    assert images.shape == (1, 32, 32, 3)
    assert labels.shape == (1,)


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
    monkeypatch.setattr(dataset_files, "MOST_BYTES", 1000)
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
        (lambda raw: raw[:2], "no idx file"),
        (lambda raw: b"\0\0\x0d\x03" + raw[4:], "no idx file of unsigned bytes"),
        (lambda raw: raw[:4] + b"\xff" * 12 + raw[16:], "cut short or too long"),
    ],
)
def test_a_broken_idx_file_is_refused(tmp_path, zipped, change, complaint):
    raw = change(idx(MNIST["train-images-idx3-ubyte"]))
    path = tmp_path / ("a.gz" if zipped else "a")
    path.write_bytes(gzip.compress(raw) if zipped else raw)
    with pytest.raises(DataFileError, match=complaint):
        dataset_files.read_idx(path)


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
    from auxbit.data import embedded_digits

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


# ---- where there is none


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
    with pytest.raises(DataFileError, match="holds no data set that is known here"):
        datasets.load(tmp_path)
    (tmp_path / "a.txt").write_text("1 2 3")
    with pytest.raises(DataFileError, match="holds no data set that is known here"):
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
