"""What is in a folder of data: each data set is recognised by its files, whatever the folder's name.

A reader returns None where its data set is not; where it is but is incomplete or broken, that is an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from auxbit import features
from auxbit.data import embedded_digits, read_vectors
from auxbit.dataset_files import Labelled, cifar_batches, read_cifar, read_idx, read_npy
from auxbit.errors import DataFileError, InvalidParameter
from auxbit.number_text import read_number_rows
from auxbit.tables import Array

FEATURES = ("CH", "CM55", "CORR", "EDH", "WT", "BoW")  # of NUS-WIDE
CIFAR_ARCHIVES = ("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz")
CIFAR_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
DIGIT_QUERIES, DIGIT_SEED = 300, 0

# Train_Normalized_CH.dat, BoW_Train_int.dat; of the light version Normalized_CH_Lite_Train.dat
_FEATURE_FILE = re.compile(
    r"(?:(?P<first>Train|Test)_)?(?:Normalized|(?P<bow>BoW))(?:_(?P<kind>CH|CM55|CORR|EDH|WT|int))?"
    r"(?P<lite>_Lite)?(?:_(?P<last>Train|Test))?(?:_int)?\.dat"
)
_LABEL_FILE = re.compile(r"(?P<lite>Lite_)?Labels_(?P<concept>.+)_(?P<split>Train|Test)\.txt")


class Vectors(NamedTuple):
    """Rows to search, to ask with and to learn from; the last are the first if a data set has none."""

    base: Array
    queries: Array
    learn: Array


@dataclass(frozen=True)
class Dataset:
    """base, queries : vectors (n, d), or images (n, h, w) or (n, h, w, 3), as stored, often memory-mapped."""

    name: str
    about: str
    base: Array
    queries: Array
    learn: Array | None = None  # vectors that are not searched
    labels: Array | None = None  # (n,) classes, or (n, concepts) of 0/1
    query_labels: Array | None = None
    neighbours: Array | None = None  # (queries, k): rows of base, the nearest first
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together."""
        for what, part, length in (
            ("labels", self.labels, len(self.base)),
            ("query labels", self.query_labels, len(self.queries)),
            ("lists of neighbours", self.neighbours, len(self.queries)),
        ):
            if part is not None and len(part) != length:
                raise DataFileError(f"{self.name} has {len(part)} {what} for {length} rows.")
        for what, rows in (("queries", self.queries), ("rows to learn from", self.learn)):
            if rows is not None and rows.shape[1:] != self.base.shape[1:]:
                raise DataFileError(
                    f"{self.name}: {what} have shape {rows.shape[1:]}, but the base {self.base.shape[1:]}."
                )

    @property
    def images(self) -> Array | None:
        """The base as images, (n, h, w) or (n, h, w, 3), if it is made of images."""
        return self.base if self.base.ndim > 2 else None

    @property
    def query_images(self) -> Array | None:
        """The queries as images."""
        return self.queries if self.queries.ndim > 2 else None

    def vectors(
        self,
        kind: str | None = None,
        *,
        cache: str | os.PathLike[str] | None = None,
        n_jobs: int | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> Vectors:
        """Rows for a hasher: vectors as they are, images by `kind`: "gist", or "pixels".

        Colour images become GIST-320 unless told otherwise, grey ones pixels. With a folder `cache`, GIST is
        computed once. `progress` is called with the number of images done since the last call.
        """
        if kind not in (None, "gist", "pixels") or (kind and self.images is None):
            allowed = (
                "None, 'gist' or 'pixels'" if self.images is not None else "None: these are vectors already"
            )
            raise InvalidParameter("kind", kind, allowed)
        if (kind or ("gist" if self.base.ndim == 4 else "pixels")) == "pixels":
            parts = [
                _rows(self.base),
                _rows(self.queries),
                _rows(self.base if self.learn is None else self.learn),
            ]
            return Vectors(*parts)
        base, queries = (
            features.cached_gist(images, cache, n_jobs=n_jobs, progress=progress)
            for images in (self.base, self.queries)
        )
        return Vectors(base, queries, base)


def _rows(array: Array) -> Array:
    return array.reshape(len(array), -1)


def digits() -> Dataset:
    X, labels = embedded_digits()
    order = np.random.default_rng(DIGIT_SEED).permutation(len(X))
    asked, kept = np.sort(order[:DIGIT_QUERIES]), np.sort(order[DIGIT_QUERIES:])
    about = "1,797 handwritten digits of 8 × 8 pixels that come with scikit-learn; 300 of them are queries"
    classes = tuple("0123456789")
    return Dataset(
        "digits", about, X[kept], X[asked], labels=labels[kept], query_labels=labels[asked], classes=classes
    )


# ---- images


def _labelled(name: str, about: str, parts: Labelled, classes: tuple[str, ...]) -> Dataset:
    return Dataset(
        name, about, parts.images, parts.query_images,
        labels=parts.labels, query_labels=parts.query_labels, classes=classes,
    )  # fmt: skip


def _npy_images(path: Path, shape: tuple[int, ...]) -> Labelled | None:
    """train_images.npy and so on, if the images have that shape."""
    stems = ("train_images", "train_labels", "test_images", "test_labels")
    files = [path / f"{stem}.npy" for stem in stems]
    if not files[0].is_file() or read_npy(files[0]).shape[1:] != shape:
        return None
    if missing := [file.name for file in files if not file.is_file()]:
        raise DataFileError(f"{path} lacks {', '.join(missing)}.")
    return Labelled(*map(read_npy, files))


def cifar10(path: Path) -> Dataset | None:
    if path.is_file() and not path.name.endswith((".tar.gz", ".tgz", ".tar")):
        return None
    archives = (
        [path] if path.is_file() else [path / name for name in CIFAR_ARCHIVES if (path / name).is_file()]
    )
    parts = None
    if path.is_dir():
        parts = read_cifar(path) if cifar_batches(path) else _npy_images(path, (32, 32, 3))
    if parts is None and archives:
        parts = read_cifar(archives[0])
    if parts is None:
        return None
    return _labelled("cifar10", "CIFAR-10: 32 × 32 colour images in 10 classes", parts, CIFAR_CLASSES)


def mnist(path: Path) -> Dataset | None:
    about, classes = "MNIST: 28 × 28 grey images of handwritten digits", tuple("0123456789")
    if (parts := _npy_images(path, (28, 28))) is not None:
        return _labelled("mnist", about, parts, classes)
    found = [
        [path / f"{prefix}-{kind}{mark}{code}-ubyte{end}" for mark in "-." for end in ("", ".gz")]
        for prefix in ("train", "t10k")
        for kind, code in (("images", "idx3"), ("labels", "idx1"))
    ]
    there = [next((file for file in files if file.is_file()), None) for files in found]
    if there[0] is None:
        return None
    if missing := [files[0].name for files, file in zip(found, there, strict=True) if file is None]:
        raise DataFileError(f"{path} lacks {', '.join(missing)} (or .gz).")
    return _labelled("mnist", about, Labelled(*(read_idx(file) for file in there if file)), classes)


# ---- vectors


def texmex(path: Path) -> Dataset | None:
    """PREFIX_base.fvecs, PREFIX_query.fvecs, and perhaps PREFIX_learn.fvecs and PREFIX_groundtruth.ivecs."""
    inside = [path, *(path / name for name in ("sift", "siftsmall"))] if path.is_dir() else []
    bases = [
        file for folder in inside for kind in ("fvecs", "bvecs") for file in folder.glob(f"*_base.{kind}")
    ]
    if not bases:
        return None
    base = min(bases)
    prefix, kind = base.name.removesuffix(f"_base{base.suffix}"), base.suffix
    parts = {part: base.with_name(f"{prefix}_{part}{kind}") for part in ("query", "learn")}
    truth = base.with_name(f"{prefix}_groundtruth.ivecs")
    return Dataset(
        {"sift": "sift1m"}.get(prefix, prefix),
        f"{prefix}: vectors of the TEXMEX corpus",
        read_vectors(base),
        read_vectors(parts["query"]),
        learn=read_vectors(parts["learn"]) if parts["learn"].is_file() else None,
        neighbours=read_vectors(truth) if truth.is_file() else None,
    )


def npy_vectors(path: Path, name: str | None) -> Dataset | None:
    """base.npy and query.npy, and perhaps learn.npy and groundtruth.npy."""
    if not (path / "base.npy").is_file() or not (path / "query.npy").is_file():
        return None
    learn, truth = path / "learn.npy", path / "groundtruth.npy"
    name = name or path.resolve().name
    return Dataset(
        name,
        f"{name}: vectors in a folder of .npy files",
        read_vectors(path / "base.npy"),
        read_vectors(path / "query.npy"),
        learn=read_vectors(learn) if learn.is_file() else None,
        neighbours=read_vectors(truth) if truth.is_file() else None,
    )


def ann_benchmarks(path: Path) -> Dataset | None:
    if path.suffix.lower() not in (".hdf5", ".h5") or not path.is_file():
        return None
    base, queries, neighbours = (read_vectors(path, key=key) for key in ("train", "test", "neighbors"))
    return Dataset(path.stem, f"{path.stem}: a file of ann-benchmarks", base, queries, neighbours=neighbours)


def nuswide(path: Path, name: str, feature_files: tuple[str, ...]) -> Dataset | None:
    """Features and, where they are there too, the 81 concepts of each image."""
    if not path.is_dir():
        return None
    lite = name == "nuswide-lite"
    found: dict[tuple[str, str], Path] = {}
    for file in sorted(path.rglob("*.dat")):
        said = _FEATURE_FILE.fullmatch(file.name)
        if said and bool(said["lite"]) == lite and (split := said["first"] or said["last"]):
            found["BoW" if said["bow"] else said["kind"], split] = file
    if not found:
        return None
    wanted = [[(kind, split) for kind in feature_files] for split in ("Train", "Test")]
    if missing := [
        f"{kind} of {split}" for part in wanted for kind, split in part if (kind, split) not in found
    ]:
        there = ", ".join(sorted({kind for kind, _ in found}))
        raise DataFileError(
            f"{path} lacks the features {', '.join(missing)}; there are {there}. Choose by feature_files."
        )
    base, queries = (read_number_rows([found[key] for key in part]) for part in wanted)
    concepts, labels, query_labels = _concepts(path, lite)
    about = f"{name}: features {', '.join(feature_files)} of photographs with 81 concepts"
    return Dataset(name, about, base, queries, labels=labels, query_labels=query_labels, classes=concepts)


def _concepts(path: Path, lite: bool) -> tuple[tuple[str, ...], Array | None, Array | None]:
    found: dict[tuple[str, str], Path] = {}
    for file in sorted(path.rglob("*Labels_*.txt")):
        said = _LABEL_FILE.fullmatch(file.name)
        if said and bool(said["lite"]) == lite:
            found[said["concept"], said["split"]] = file
    names = tuple(sorted({concept for concept, _ in found}))
    if not names or any((name, split) not in found for name in names for split in ("Train", "Test")):
        return (), None, None
    train, test = (
        read_number_rows([found[name, split] for name in names]).astype(np.uint8)
        for split in ("Train", "Test")
    )
    return names, train, test
