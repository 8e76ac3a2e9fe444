"""Published data sets by name or folder: rows to search, queries, and what is known about either.

    photos = datasets.load("cifar10", data="…")          # or AUXBIT_DATA/cifar10
    vectors = photos.vectors(cache="…")                  # .base (50000, 320), .queries (10000, 320)

A folder is recognised by its files, whatever its name. Nothing is downloaded: if a data set is missing, the
error says where it is published and which files are expected.
"""

from __future__ import annotations

import gzip
import math
import os
import re
import tarfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from auxbit.core.checks import Array, Float32
from auxbit.data import gist
from auxbit.data.vectors import embedded_digits, explained, map_npy, nearest, read_vectors
from auxbit.errors import DataFileError, InvalidParameter

# ---- the formats of images: CIFAR-10's binary archive and MNIST's idx

CIFAR_ROW = 1 + 3 * 32 * 32  # label, then red, green and blue, row by row
CIFAR_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
MOST_BYTES = 1 << 26  # of a batch: the published ones have 31 MB
IDX_BYTES = 8  # the code of unsigned bytes in an idx header
MOST_UNZIPPED = 1032  # bytes that one byte of a .gz file can become


class Labelled(NamedTuple):
    """Images and labels to learn from, then those of the queries."""

    images: Array
    labels: Array
    query_images: Array
    query_labels: Array


def read_idx(path: Path) -> Array:
    """An idx file of unsigned bytes, memory-mapped, or read if its name ends with .gz."""
    is_zipped = path.suffix == ".gz"
    with explained(path, "idx"), gzip.open(path, "rb") if is_zipped else path.open("rb") as file:
        start = file.read(4)
        if len(start) < 4 or start[:2] != b"\0\0" or start[2] != IDX_BYTES or not 1 <= start[3] <= 4:
            raise DataFileError(f"{path} is not an idx file of unsigned bytes: it starts with {start!r}.")
        n_axes, lengths = start[3], file.read(4 * start[3])
        if len(lengths) < 4 * n_axes:
            raise DataFileError(f"{path} is cut short: its header ends after {4 + len(lengths)} bytes.")
        shape = tuple(int(length) for length in np.frombuffer(lengths, ">u4"))
        size, on_disk = math.prod(shape), path.stat().st_size
        # of a zipped file, no more than it can hold, whatever its header says
        content = file.read(min(size, MOST_UNZIPPED * on_disk) + 1) if is_zipped else b""
        if size != (len(content) if is_zipped else on_disk - 4 - 4 * n_axes):
            expected = f"expected {size} bytes for the shape {shape}"
            raise DataFileError(f"{path} is cut short or too long: {expected}.")
        if is_zipped:
            return np.frombuffer(content, np.uint8).reshape(shape)
        return np.memmap(path, np.uint8, mode="r", offset=4 + 4 * n_axes, shape=shape)


def cifar_batches(source: Path) -> dict[str, Path]:
    """The binary files of CIFAR-10 in a folder, by name, or {} if there are none."""
    for folder in (source, source / "cifar-10-batches-bin"):
        found = {name: folder / f"{name}.bin" for name in CIFAR_BATCHES}
        if found["data_batch_1"].is_file():
            return found
    return {}


def read_cifar(source: Path) -> Labelled:
    """CIFAR-10 from a folder or the archive itself: images (n, 32, 32, 3), labels (n,)."""
    with explained(source, "CIFAR-10"):
        raw = _in_folder(source) if source.is_dir() else _in_archive(source)
        if missing := [name for name in CIFAR_BATCHES if name not in raw]:
            raise DataFileError(f"{source} lacks {', '.join(missing)}, of the six batches of CIFAR-10.")
        batches = [_batch(f"{source}: {name}", raw.pop(name)) for name in CIFAR_BATCHES]
    images, labels = (np.concatenate(parts) for parts in zip(*batches[:-1], strict=True))
    return Labelled(images, labels, *batches[-1])


def _in_folder(source: Path) -> dict[str, bytes]:
    there = {name: path for name, path in cifar_batches(source).items() if path.is_file()}
    for path in there.values():
        _refuse_large(f"{path}", path.stat().st_size)
    return {name: path.read_bytes() for name, path in there.items()}


def _in_archive(source: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with tarfile.open(source, "r:*") as archive:
        for member in archive:
            name = Path(member.name).name
            if name in CIFAR_BATCHES:
                raise python_version(source)
            if name.removesuffix(".bin") in CIFAR_BATCHES and member.isfile():
                _refuse_large(f"{source}: {name}", member.size)
                file = archive.extractfile(member)
                assert file is not None  # it is a regular file
                found[name.removesuffix(".bin")] = file.read()
    return found


def python_version(source: Path) -> DataFileError:
    """The error for CIFAR-10's Python version."""
    return DataFileError(
        f"{source} is the Python version of CIFAR-10. It is pickled, and pickles are never loaded, as they "
        "can run any code. Use cifar-10-binary.tar.gz: the same images, published beside it at "
        "https://www.cs.toronto.edu/~kriz/cifar.html."
    )


def _refuse_large(name: str, size: int) -> None:
    if size > MOST_BYTES:
        raise DataFileError(f"{name} has {size} bytes; a batch of CIFAR-10 has about 31 million.")


def _batch(name: str, raw: bytes) -> tuple[Array, Array]:
    if not raw or len(raw) % CIFAR_ROW:
        raise DataFileError(f"{name} has {len(raw)} bytes; expected a multiple of {CIFAR_ROW}.")
    rows = np.frombuffer(raw, np.uint8).reshape(-1, CIFAR_ROW)
    labels, images = rows[:, 0].copy(), rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    if labels.max() > 9:
        raise DataFileError(f"{name} has the label {labels.max()}; CIFAR-10's are 0..9.")
    return np.ascontiguousarray(images), labels


# ---- rows of numbers as text, as NUS-WIDE's features are published


def read_number_rows(paths: Sequence[Path]) -> Float32:
    """The rows of several files side by side, (n, Σ d); every file has one line for each of the n rows."""
    parts = [_number_rows(path) for path in paths]
    for path, part in zip(paths, parts, strict=True):
        if len(part) != len(parts[0]):
            raise DataFileError(f"{path} has {len(part)} rows, but {paths[0]} has {len(parts[0])}.")
    return np.hstack(parts)


def _number_rows(path: Path) -> Float32:
    """Finite numbers that are separated by blanks, one line per row; lines without any are passed over."""
    with explained(path, "text"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of files without numbers, and of overflow: both are refused below
        try:
            rows = np.loadtxt(path, np.float32, comments=None, ndmin=2, encoding="latin-1")
        except ValueError as error:
            raise DataFileError(_bad_line(path) or f"{path} cannot be read as text: {error}") from error
    if rows.size == 0:
        raise DataFileError(f"{path} has no numbers in it; expected rows of numbers as text.")
    if not np.isfinite(rows).all():
        raise DataFileError(_bad_line(path) or f"{path} has a number that is not finite.")
    return rows


def _bad_line(path: Path) -> str | None:
    """What is wrong with the first line that has not the first line's count of finite numbers."""
    expected = 0
    with path.open(encoding="latin-1") as file:
        for number, line in enumerate(file, start=1):
            words = line.split()
            expected = expected or len(words)
            for place, word in enumerate(words, start=1):
                try:
                    fine = abs(float(word)) <= float(np.finfo(np.float32).max)  # NaN fails every comparison
                except ValueError:
                    fine = False
                if not fine:
                    return f"{path}, line {number}: value {place} is {word[:40]!r}, not a finite float32."
            if words and len(words) != expected:
                return f"{path}, line {number}: expected {expected} numbers as before, found {len(words)}."
    return None


# ---- data sets, each recognised by its files, whatever the name of their folder
#
# A reader returns None if its data set is not there; one that is incomplete or broken is an error.

FEATURES = ("CH", "CM55", "CORR", "EDH", "WT", "BoW")  # of NUS-WIDE
CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
DIGIT_QUERIES, DIGIT_SEED = 300, 0

# Train_Normalized_CH.dat, BoW_Train_int.dat; of the light version Normalized_CH_Lite_Train.dat
_FEATURE_FILE = re.compile(
    r"(?:(?P<first>Train|Test)_)?(?:Normalized|(?P<bow>BoW))(?:_(?P<kind>CH|CM55|CORR|EDH|WT|int))?"
    r"(?P<lite>_Lite)?(?:_(?P<last>Train|Test))?(?:_int)?\.dat"
)
_LABEL_FILE = re.compile(r"(?P<lite>Lite_)?Labels_(?P<concept>.+)_(?P<split>Train|Test)\.txt")


class Vectors(NamedTuple):
    """Rows to search, queries, and rows to learn from, which are those to search if there are no others."""

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
                shapes = f"have shape {rows.shape[1:]}, but the base {self.base.shape[1:]}"
                raise DataFileError(f"{self.name}: {what} {shapes}.")

    @property
    def images(self) -> Array | None:
        """The base as images, (n, h, w) or (n, h, w, 3), if it is made of images."""
        return self.base if self.base.ndim > 2 else None

    @property
    def query_images(self) -> Array | None:
        """The queries as images."""
        return self.queries if self.queries.ndim > 2 else None

    def vectors(
        self, kind: str | None = None, *, cache: str | os.PathLike[str] | None = None,
        n_jobs: int | None = None, progress: Callable[[int], object] | None = None,
    ) -> Vectors:  # fmt: skip
        """Rows for a hasher: vectors as they are, images as "gist" or "pixels".

        By default colour images become GIST-320, and grey ones pixels. With a folder `cache`, GIST is
        computed once. `progress` is called with the number of images done since the last call.
        """
        if kind not in (None, "gist", "pixels") or (kind and self.images is None):
            allowed = "None: these are vectors already" if self.images is None else "None, 'gist' or 'pixels'"
            raise InvalidParameter("kind", kind, allowed)
        if (kind or ("gist" if self.base.ndim == 4 else "pixels")) == "pixels":
            parts = (self.base, self.queries, self.base if self.learn is None else self.learn)
            return Vectors(*(rows.reshape(len(rows), -1) for rows in parts))
        described = partial(gist.cached_gist, folder=cache, n_jobs=n_jobs, progress=progress)
        base, queries = described(self.base), described(self.queries)
        return Vectors(base, queries, base)


def digits() -> Dataset:
    X, labels = embedded_digits()
    order = np.random.default_rng(DIGIT_SEED).permutation(len(X))
    asked, kept = np.sort(order[:DIGIT_QUERIES]), np.sort(order[DIGIT_QUERIES:])
    about = "1,797 handwritten digits of 8 × 8 pixels that come with scikit-learn; 300 of them are queries"
    parts = Labelled(X[kept], labels[kept], X[asked], labels[asked])
    return _labelled("digits", about, parts, tuple("0123456789"))


def _labelled(name: str, about: str, parts: Labelled, classes: tuple[str, ...]) -> Dataset:
    return Dataset(
        name, about, parts.images, parts.query_images,
        labels=parts.labels, query_labels=parts.query_labels, classes=classes,
    )  # fmt: skip


def _read_npy(path: Path) -> Array:
    """An array of any number of dimensions, memory-mapped."""
    with explained(path):
        return map_npy(path)


def _npy_images(path: Path, shape: tuple[int, ...]) -> Labelled | None:
    """train_images.npy and so on, if the images have that shape."""
    stems = ("train_images", "train_labels", "test_images", "test_labels")
    files = [path / f"{stem}.npy" for stem in stems]
    if not files[0].is_file() or _read_npy(files[0]).shape[1:] != shape:
        return None
    if missing := [file.name for file in files if not file.is_file()]:
        raise DataFileError(f"{path} lacks {', '.join(missing)}.")
    return Labelled(*map(_read_npy, files))


def cifar10(path: Path) -> Dataset | None:
    if path.is_file() and not path.name.endswith((".tar.gz", ".tgz", ".tar")):
        return None
    archive = path if path.is_file() else path / "cifar-10-binary.tar.gz"
    parts = None
    if path.is_dir():
        parts = read_cifar(path) if cifar_batches(path) else _npy_images(path, (32, 32, 3))
    if parts is None and archive.is_file():
        parts = read_cifar(archive)
    if parts is None:
        python = ("cifar-10-python.tar.gz", "data_batch_1", "cifar-10-batches-py/data_batch_1")
        if found := [path / name for name in python if (path / name).is_file()]:
            raise python_version(found[0])
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


def texmex(path: Path) -> Dataset | None:
    """PREFIX_base.fvecs, PREFIX_query.fvecs, and perhaps PREFIX_learn.fvecs and PREFIX_groundtruth.ivecs."""
    inside = [path, *(path / name for name in ("sift", "siftsmall"))] if path.is_dir() else []
    bases = [file for folder in inside for file in folder.glob("*_base.[fb]vecs")]
    if not bases:
        return None
    base = min(bases)
    prefix = base.name.removesuffix(f"_base{base.suffix}")
    parts = {part: base.with_name(f"{prefix}_{part}{base.suffix}") for part in ("base", "query", "learn")}
    parts["groundtruth"] = base.with_name(f"{prefix}_groundtruth.ivecs")
    about = f"{prefix}: vectors of the TEXMEX corpus"
    return _vectors({"sift": "sift1m"}.get(prefix, prefix), about, parts)


def npy_vectors(path: Path, name: str | None) -> Dataset | None:
    """base.npy and query.npy, and perhaps learn.npy and groundtruth.npy."""
    parts = {part: path / f"{part}.npy" for part in ("base", "query", "learn", "groundtruth")}
    if not parts["base"].is_file() or not parts["query"].is_file():
        return None
    name = name or path.resolve().name
    return _vectors(name, f"{name}: vectors in a folder of .npy files", parts)


def _vectors(name: str, about: str, parts: dict[str, Path]) -> Dataset:
    base, queries = read_vectors(parts["base"]), read_vectors(parts["query"])
    more = (parts["learn"], parts["groundtruth"])
    learn, truth = (read_vectors(path) if path.is_file() else None for path in more)
    return Dataset(name, about, base, queries, learn=learn, neighbours=truth)


def ann_benchmarks(path: Path) -> Dataset | None:
    if path.suffix.lower() not in (".hdf5", ".h5") or not path.is_file():
        return None
    base, queries, neighbours = (read_vectors(path, key=key) for key in ("train", "test", "neighbors"))
    return Dataset(path.stem, f"{path.stem}: a file of ann-benchmarks", base, queries, neighbours=neighbours)


def nuswide(path: Path, name: str, feature_files: tuple[str, ...]) -> Dataset | None:
    """Features and, if they are there too, the 81 concepts of each image."""
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
    if missing := [" of ".join(key) for part in wanted for key in part if key not in found]:
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
    files = ([found[name, split] for name in names] for split in ("Train", "Test"))
    train, test = (read_number_rows(each).astype(np.uint8) for each in files)
    return names, train, test


# ---- data sets by name

__all__ = ["NAMES", "Dataset", "Vectors", "load"]

WAVELETS = ("WT",)  # the features of NUS-WIDE that the paper uses

_NUSWIDE = "https://lms.comp.nus.edu.sg/wp-content/uploads/2019/research/nuswide/NUS-WIDE.html"
_TEXMEX = "http://corpus-texmex.irisa.fr"
_PUBLISHED = {
    "cifar10": "It is published at https://www.cs.toronto.edu/~kriz/cifar.html; expected is "
    "cifar-10-binary.tar.gz, or what it holds (cifar-10-batches-bin/data_batch_1.bin to data_batch_5.bin and "
    "test_batch.bin), or train_images.npy, train_labels.npy, test_images.npy and test_labels.npy.",
    "mnist": "It is published at http://yann.lecun.com/exdb/mnist; expected are train-images-idx3-ubyte, "
    "train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, each perhaps with .gz, or "
    "train_images.npy, train_labels.npy, test_images.npy and test_labels.npy.",
    "siftsmall": f"It is published at {_TEXMEX} (siftsmall.tar.gz); expected are siftsmall_base.fvecs, "
    "siftsmall_query.fvecs, siftsmall_learn.fvecs and siftsmall_groundtruth.ivecs, or base.npy, query.npy, "
    "learn.npy and groundtruth.npy.",
    "sift1m": f"It is published at {_TEXMEX} (sift.tar.gz); expected are sift_base.fvecs, sift_query.fvecs, "
    "sift_learn.fvecs and sift_groundtruth.ivecs.",
    "sift_photos": "It is not published; expected are base.npy and query.npy, any vectors of yours.",
    "nuswide": f"It is published at {_NUSWIDE} (Low-Level Features, Groundtruth); expected are "
    "Train_Normalized_WT.dat and Test_Normalized_WT.dat, and of other features likewise "
    "(Train_Normalized_CH.dat …, BoW_Train_int.dat), and perhaps Labels_airport_Train.txt ….",
    "nuswide-lite": f"It is published at {_NUSWIDE} (NUS-WIDE-LITE); expected are "
    "Normalized_WT_Lite_Train.dat and Normalized_WT_Lite_Test.dat, and of other features likewise "
    "(Normalized_CH_Lite_Train.dat …), and perhaps Lite_Labels_airport_Train.txt ….",
}
NAMES = (*_PUBLISHED, "digits")


def load(
    name_or_path: str | os.PathLike[str], *, data: str | os.PathLike[str] | None = None,
    feature_files: tuple[str, ...] = WAVELETS,
) -> Dataset:  # fmt: skip
    """A data set by name, looked for in `data` or else in the folder AUXBIT_DATA, or by its path.

    Names: cifar10, mnist, siftsmall, sift1m, sift_photos, nuswide, nuswide-lite, digits (embedded). A path:
    a folder of any of these, an archive of CIFAR-10, or an .hdf5 file of ann-benchmarks.
    feature_files : of NUS-WIDE, put side by side: some of CH, CM55, CORR, EDH, WT, BoW
    """
    if wrong := [kind for kind in feature_files if kind not in FEATURES]:
        raise InvalidParameter("feature_files", wrong[0], f"some of {', '.join(FEATURES)}")
    name = os.fspath(name_or_path)
    if name == "digits":
        return digits()
    if name not in _PUBLISHED:
        path, known = Path(name), ", ".join(NAMES)
        if not path.exists():
            raise DataFileError(f"{path} does not exist.{nearest(name, NAMES)} Known names: {known}.")
        if (found := _recognised(path, feature_files)) is None:
            raise DataFileError(
                f"{path} is not a known data set. Known: {known}, and .hdf5 files of "
                "ann-benchmarks. Load one of these names to see which files it needs."
            )
        return found
    places = _places(name, data)
    for place in places:
        if place.exists() and (found := _recognised(place, feature_files, name)) is not None:
            return found
    looked = f"was not found in {' or '.join(map(str, places))}" if places else "has no folder to be in"
    raise DataFileError(
        f"{name} {looked}. {_PUBLISHED[name]} Give its folder by --data, or set AUXBIT_DATA to a folder that "
        f"contains a folder {name}."
    )


def _places(name: str, data: str | os.PathLike[str] | None) -> list[Path]:
    if data is not None:
        return [Path(data) / name, Path(data)]
    if os.environ.get("AUXBIT_DATA"):
        return [Path(os.environ["AUXBIT_DATA"]) / name]
    return [Path(name)] if Path(name).exists() else []


def _recognised(path: Path, feature_files: tuple[str, ...], name: str | None = None) -> Dataset | None:
    """The data set in a folder or file, if there is one and it is the one of that name."""
    readers: list[tuple[tuple[str, ...], Callable[[Path], Dataset | None]]] = [
        (("cifar10",), cifar10),
        (("mnist",), mnist),
        (("nuswide-lite",), lambda place: nuswide(place, "nuswide-lite", feature_files)),
        (("nuswide",), lambda place: nuswide(place, "nuswide", feature_files)),
        (("siftsmall", "sift1m"), texmex),
        (("siftsmall", "sift1m", "sift_photos"), lambda place: npy_vectors(place, name)),
        ((), ann_benchmarks),
    ]
    for names, read in readers:
        if (name is None or name in names) and (found := read(path)) is not None:
            return found if name in (None, found.name) else None
    return None
