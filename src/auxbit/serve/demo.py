"""The embedded digits as a collection of pictures, in a temporary folder, with a small comparison."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from auxbit.data import embedded_digits
from auxbit.images.building import build
from auxbit.images.comparing import Plan, compare_pictures
from auxbit.images.decoding import decode
from auxbit.images.progress import Progress
from auxbit.images.recipe import Recipe
from auxbit.images.sources import Source
from auxbit.serve.pixels import png

NAME = "digits"
SIDE, BITS = 8, 32
LEVELS = 16  # the digits' greys are 0 to 16
METHODS, COMPARED_BITS = ("tpca", "itq", "bfa", "ba"), (8, 16, 32)


@contextmanager
def digits_collection(progress: Progress | None = None, n_jobs: int | None = None) -> Iterator[Path]:
    """The folder of the collection, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="auxbit-demo-", ignore_cleanup_errors=True) as folder:
        path = Path(folder, NAME)
        recipe = Recipe("pixels", SIDE, grey=True)
        sources = list(_sources(Path(folder, "pictures")))
        build(sources, path, recipe, bits=BITS, n_jobs=n_jobs, decode=decode, progress=progress)
        plan = Plan(METHODS, COMPARED_BITS, n_queries=300)
        compare_pictures(path, plan, command="auxbit serve --demo", n_jobs=n_jobs, progress=progress)
        yield path


def _sources(folder: Path) -> Iterator[Source]:
    """The digits as PNG files, named by what they show."""
    folder.mkdir()
    X, labels = embedded_digits()
    grey = np.rint(X.reshape(-1, SIDE, SIDE) * (255 / LEVELS)).astype(np.uint8)
    for number, (picture, label) in enumerate(zip(grey, labels)):
        path, content = folder / f"digit-{label}-{number:04d}.png", png(picture)
        path.write_bytes(content)
        yield Source(str(folder), path.name, len(content), path.stat().st_mtime_ns, path.read_bytes)
