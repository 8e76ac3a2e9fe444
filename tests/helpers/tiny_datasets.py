"""What tests of published data sets share: numbers to fill them with, and a CIFAR-10 of 24 images."""

from __future__ import annotations

import io
import pickle
import tarfile

import numpy as np
import pytest

from auxbit.data.datasets import CIFAR_BATCHES

RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (6, 4, 3, 32, 32), dtype=np.uint8)  # six batches of four images
LABELS = RANDOM.integers(0, 10, (6, 4), dtype=np.uint8)


@pytest.fixture(autouse=True)
def no_data_folder(monkeypatch):
    monkeypatch.delenv("AUXBIT_DATA", raising=False)


def cifar_files(binary):
    """The content of each batch's file, by name."""
    made = {}
    for name, pixels, labels in zip(CIFAR_BATCHES, PIXELS, LABELS, strict=True):
        flat = pixels.reshape(len(pixels), -1)
        if binary:
            made[f"{name}.bin"] = np.concatenate([labels[:, None], flat], axis=1).tobytes()
        else:
            made[name] = pickle.dumps({b"data": flat, b"labels": labels.tolist()}, protocol=2)
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
