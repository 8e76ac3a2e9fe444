"""The data that benchmarks share, and what the authors' own code reached on them."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from record import data_folder

AUTHORS_ERROR = {("digits", 8): 3954.0, ("digits", 16): 2803.8, ("digits", 32): 1711.7,
                 ("siftsmall", 16): 43534.3, ("siftsmall", 32): 34235.9}  # fmt: skip
AUTHORS_CPU_SECONDS = {16: 382.0, 32: 909.0}  # on siftsmall's learn


def digits() -> np.ndarray:
    return load_digits().data / 16


def siftsmall(name: str = "learn") -> np.ndarray:
    return np.load(data_folder() / "siftsmall" / f"{name}.npy")


def siftsmall_scaled() -> np.ndarray:
    """Learn with the largest range made 1, in which the authors' errors are."""
    X = siftsmall().astype(np.float32)
    return X / np.ptp(X, axis=0).max()


def rotated_mnist() -> np.ndarray:
    """50,000 × 320: MNIST's pixels under a random rotation, cut to 320 dimensions."""
    images = np.load(data_folder() / "mnist" / "train_images.npy").reshape(60000, -1)[:50000]
    rotation = np.linalg.qr(np.random.RandomState(0).standard_normal((784, 784)))[0][:, :320]
    X = images @ rotation.astype(np.float32)
    return ((X - X.mean(axis=0)) / np.ptp(X, axis=0).max()).astype(np.float32)


def sift_photos(n_rows: int) -> np.ndarray:
    """SIFT descriptors of photographs, n_rows × 128 float32, rows drawn with a fixed seed."""
    base = np.load(data_folder() / "sift_photos" / "base.npy", mmap_mode="r")
    order = np.random.RandomState(0).permutation(len(base))[:n_rows]
    return base[order].astype(np.float32)


def total_error(model: Any, X: np.ndarray) -> float:
    """Σ‖x − f(h(x))‖²."""
    return -model.score(X) * len(X)
