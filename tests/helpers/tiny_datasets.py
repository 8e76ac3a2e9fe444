"""What tests of published data sets share: numbers to fill them with, and a CIFAR-10 of 24 images."""

from __future__ import annotations

import io
import struct
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
