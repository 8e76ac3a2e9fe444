"""Published data sets by name or folder: what is searched, what is asked, and what is known about either.

    photos = datasets.load("cifar10", data="…")          # or AUXBIT_DATA/cifar10
    vectors = photos.vectors(cache="…")                  # .base (50000, 320), .queries (10000, 320)

A folder is recognised by its files, whatever its name. Nothing is downloaded: where a data set is missing,
the error says where it is published and which files are expected.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from auxbit import dataset_folders as folders
from auxbit.dataset_folders import Dataset, Vectors
from auxbit.errors import DataFileError, InvalidParameter
from auxbit.tables import nearest

__all__ = ["NAMES", "Dataset", "Vectors", "load"]

WAVELETS = ("WT",)  # the features of NUS-WIDE that the paper uses

_NUSWIDE = "https://lms.comp.nus.edu.sg/wp-content/uploads/2019/research/nuswide/NUS-WIDE.html"
_TEXMEX = "http://corpus-texmex.irisa.fr"
_PUBLISHED = {
    "cifar10": "It is published at https://www.cs.toronto.edu/~kriz/cifar.html; expected is "
    "cifar-10-binary.tar.gz or cifar-10-python.tar.gz, or what they hold "
    "(cifar-10-batches-bin/data_batch_1.bin to data_batch_5.bin and "
    "test_batch.bin; cifar-10-batches-py/data_batch_1 …), or train_images.npy, "
    "train_labels.npy, test_images.npy and test_labels.npy.",
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
    name_or_path: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | None = None,
    feature_files: tuple[str, ...] = WAVELETS,
) -> Dataset:
    """A data set by name, looked for in `data` or else in the folder AUXBIT_DATA, or by its path.

    Names: cifar10, mnist, siftsmall, sift1m, sift_photos, nuswide, nuswide-lite, digits (embedded). A path:
    a folder of any of these, an archive of CIFAR-10, or an .hdf5 file of ann-benchmarks.
    feature_files : of NUS-WIDE, put side by side: some of CH, CM55, CORR, EDH, WT, BoW
    """
    if wrong := [kind for kind in feature_files if kind not in folders.FEATURES]:
        raise InvalidParameter("feature_files", wrong[0], f"some of {', '.join(folders.FEATURES)}")
    name = os.fspath(name_or_path)
    if name == "digits":
        return folders.digits()
    if name not in _PUBLISHED:
        path = Path(name)
        if not path.exists():
            raise DataFileError(
                f"{path} does not exist.{nearest(name, NAMES)} Known names: {', '.join(NAMES)}."
            )
        found = _recognised(path, feature_files)
        if found is None:
            raise DataFileError(
                f"{path} holds no data set that is known here. Known: {', '.join(NAMES)}, and .hdf5 files of "
                "ann-benchmarks. Loading one of these names tells which files are expected of it."
            )
        return found
    places = _places(name, data)
    for place in places:
        if place.exists() and (found := _recognised(place, feature_files, name)) is not None:
            return found
    looked = f"was not found in {' or '.join(map(str, places))}" if places else "has no folder to be in"
    raise DataFileError(
        f"{name} {looked}. {_PUBLISHED[name]} Give its folder by --data, or set AUXBIT_DATA to a folder that "
        f"has a folder {name} in it."
    )


def _places(name: str, data: str | os.PathLike[str] | None) -> list[Path]:
    if data is not None:
        return [Path(data) / name, Path(data)]
    if os.environ.get("AUXBIT_DATA"):
        return [Path(os.environ["AUXBIT_DATA"]) / name]
    return [Path(name)] if Path(name).exists() else []


def _recognised(path: Path, feature_files: tuple[str, ...], name: str | None = None) -> Dataset | None:
    """The data set in a folder or file, if there is one, and the one that was asked for."""
    readers: list[tuple[tuple[str, ...], Callable[[Path], Dataset | None]]] = [
        (("cifar10",), folders.cifar10),
        (("mnist",), folders.mnist),
        (("nuswide-lite",), lambda place: folders.nuswide(place, "nuswide-lite", feature_files)),
        (("nuswide",), lambda place: folders.nuswide(place, "nuswide", feature_files)),
        (("siftsmall", "sift1m"), folders.texmex),
        (("siftsmall", "sift1m", "sift_photos"), lambda place: folders.npy_vectors(place, name)),
        ((), folders.ann_benchmarks),
    ]
    for names, read in readers:
        if (name is None or name in names) and (found := read(path)) is not None:
            return found if name in (None, found.name) else None
    return None
