"""Collections of small pictures, made in this process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from auxbit.collection.collection import Collection
from auxbit.images import build
from auxbit.images.build import Report
from auxbit.images.decode import Decoded, decode
from auxbit.images.pictures import Pictures
from helpers.picture_files import noise, saved

SMALL: dict[str, Any] = {"features": "pixels", "side": 8, "bits": 8, "method": "itq"}


class Counting:
    """Decodes in this process, and counts how often; `hook` is called with the number before each."""

    def __init__(self, hook: Any = None) -> None:
        self.decoded = 0
        self._hook = hook

    def decode(self, content: bytes, side: int) -> Decoded:
        self.decoded += 1
        if self._hook is not None:
            self._hook(self.decoded)
        return decode(content, side)


class Told:
    """Progress, written down: (stage, total, steps)."""

    def __init__(self) -> None:
        self.stages: list[SimpleNamespace] = []

    def stage(self, what: str, total: int | None) -> None:
        self.stages.append(SimpleNamespace(what=what, total=total, done=0))

    def advance(self, steps: int = 1) -> None:
        self.stages[-1].done += steps

    def say(self, detail: str) -> None:
        assert detail


def put(path: Path, seed: int, size: tuple[int, int] = (24, 20)) -> Path:
    """Write a picture that is different for each seed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(saved(noise(*size, seed=seed)))
    return path


def folder_of(path: Path, n: int = 12) -> Path:
    """A folder with pictures img0.png, img1.png, …"""
    for number in range(n):
        put(path / f"img{number}.png", number)
    return path


def create(folder: Any, out: Any, **options: Any) -> Report:
    """`building.create` of few bits and in this process, unless told otherwise."""
    return build.create(folder, out, **{"decoders": Counting(), "n_jobs": 1} | SMALL | options)


def again(folder: Any, out: Any, **options: Any) -> Report:
    """The same without a word on features and model, as when it goes on."""
    return build.create(folder, out, **{"decoders": Counting(), "n_jobs": 1} | options)


def add(places: Any, out: Any, **options: Any) -> Report:
    """`building.add` in this process."""
    return build.add(places, out, **{"decoders": Counting(), "n_jobs": 1} | options)


def contents(out: Any) -> dict[str, tuple[Any, ...]]:
    """By path: id, hash, vector, code and thumbnail of each item."""
    with Pictures.open(out) as pictures:
        collection = pictures.collection
        ids = collection.ids
        rows = zip(ids.tolist(), collection.metadata(ids), collection.vectors(ids), collection.codes(ids))
        return {
            f"{about['root']}/{about['file']}": (
                id_, about["sha256"], vector.tobytes(), code.tobytes(), pictures.thumbnail(id_)
            )
            for id_, about, vector, code in rows
        }  # fmt: skip


def files_of(out: Any) -> list[str]:
    """The names of the items' files, in the order of their ids."""
    with Collection.open(out, read_only=True) as collection:
        return [each["file"] for each in collection.metadata(sorted(collection.ids.tolist()))]
